//! The cells that new cells share when memory is full: one for each variant of a limit.
//!
//! **A shared cell owes at least as much as any key with its variant, over all charges to shared cells.**
//! Nobody knows which keys were in a shared cell. A key with another variant may come to any other cell: an
//! override is added, is removed, or ends. So when variants begin, each gets a cell that owes as much as the
//! earlier cell that owed most.
//!
//! Shared cells always have the variants of the published catalogue, except when an override ends by itself.
//! The first thread that finds such an override carries its cell over. From then on, no thread uses an
//! earlier clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
};

use acequia_limits::{Algorithm, CellTag, LimitId, Now, algorithm::State};

use crate::{
    Catalogue, Node, Row,
    catalogue::{Registry, local::Local},
    cell::record::CellRecord,
    journal::{HeapCell, overflow_tag, wall_row},
    lock, more_than_forgotten, presumed,
};

/// The limit and variant whose new cells share one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OverflowKey {
    pub(crate) slot: u32,
    pub(crate) numbers: u16,
}

impl OverflowKey {
    /// The cell's row for the journal.
    pub(crate) fn row(self, catalogue: &Catalogue, state: Option<CellRecord>) -> Option<Row> {
        Some(Row { limit: catalogue.id(self.slot)?, tag: overflow_tag(self.numbers), state })
    }
}

/// The shared cells of a node.
pub(crate) type Overflow = BTreeMap<OverflowKey, HeapCell>;

impl Node {
    /// Publishes the registry's limits. The shared cells get the new variants in the same step. A thread that
    /// reads shared cells first checks that its catalogue is this one, and uses no earlier clock.
    pub(crate) fn publish(&self, registry: &Registry, now: Now) {
        let version = self.version.load(Ordering::Acquire) + 1;
        let (before, catalogue) = (self.catalogue(), Arc::new(registry.catalogue(version)));
        let now = self.not_before(now);
        let mut shared = lock(&self.overflow);
        if !shared.is_empty() {
            self.leave_behind(now);
            // Overrides that ended by themselves continued under the old variants.
            self.carry_shared(&before, &mut shared, None, now);
            self.carry_shared(&catalogue, &mut shared, None, now);
        }
        *lock(&self.catalogue) = catalogue;
        self.version.store(version, Ordering::Release);
    }

    /// Carries shared cells over if overrides of the limit have ended: their keys belong to other cells from
    /// now on.
    #[cold]
    pub(crate) fn end_overrides(&self, catalogue: &Catalogue, shared: &mut Overflow, slot: u32, now: Now) {
        // Other threads, which may have read the clock before, must not go back either.
        self.leave_behind(now);
        self.carry_shared(catalogue, shared, Some(slot), now);
    }

    /// Carries shared cells over from ended variants to all that may have followed, for one slot or all.
    /// Within a slot, the variant that ended first comes first.
    fn carry_shared(&self, catalogue: &Catalogue, shared: &mut Overflow, slot: Option<u32>, now: Now) {
        let over_at = |key: &OverflowKey| catalogue.over_at(key.slot, key.numbers, now);
        let (mut written, mut gone) = (BTreeSet::new(), Vec::new());
        let slots: BTreeSet<u32> = match slot {
            Some(slot) => [slot].into(),
            None => shared.keys().map(|key| key.slot).collect(),
        };
        for slot in slots {
            let of_slot = OverflowKey { slot, numbers: 0 }..=OverflowKey { slot, numbers: u16::MAX };
            loop {
                let all: Vec<OverflowKey> = shared.range(of_slot.clone()).map(|(key, _)| *key).collect();
                let ended = all.iter().filter_map(over_at);
                let Some(then) = ended.min_by_key(|then| then.wall_ns) else { break };
                let mut cells = Vec::new();
                for old in all.iter().filter(|old| over_at(old) == Some(then)) {
                    let Some(cell) = shared.remove(old) else { continue };
                    if !cell.is_unwritten() {
                        gone.extend(old.row(catalogue, None));
                    }
                    cells.push((old.numbers, cell));
                }
                self.carry_all(catalogue, shared, (slot, cells), (then, now), &mut written);
            }
        }
        for key in written {
            if let (Some(cell), Some(local)) = (shared.get_mut(&key), catalogue.local(key.slot, key.numbers))
                && let Some(row) = key.row(catalogue, Some(CellRecord::new(local.least(), &cell.words, now)))
            {
                cell.ask_as_is(self.push_row(row));
            }
        }
        lock(&self.rows).append(&mut gone);
    }

    /// Carries cells of one slot that ended at `then` to each variant that their keys may have had next.
    fn carry_all(
        &self,
        catalogue: &Catalogue,
        shared: &mut Overflow,
        (slot, cells): (u32, Vec<(u16, HeapCell)>),
        (then, now): (Now, Now),
        written: &mut BTreeSet<OverflowKey>,
    ) {
        let least = |numbers: u16| catalogue.local(slot, numbers).map(Local::least);
        let is_written = cells.iter().any(|(_, cell)| !cell.is_unwritten());
        // There may be a thousand of each, and nearly all have the same meaning for the same words.
        let mut olds: Vec<(u16, State)> = Vec::new();
        for (numbers, cell) in &cells {
            let Some(own) = least(*numbers) else { continue };
            let state = State::Heap(cell.words.clone());
            let same = olds.iter_mut().find(|(other, _)| {
                catalogue.is_of_one_role(slot, *other, *numbers)
                    && least(*other).is_some_and(|other| other.means_as(own))
            });
            match same {
                Some((_, all)) => *all = own.join(all.words(), &cell.words, now),
                None => olds.push((*numbers, state)),
            }
        }
        for (old, state) in &olds {
            let mut made: Vec<(&Algorithm, State)> = Vec::new();
            for numbers in catalogue.heirs(slot, *old, then) {
                let (Some(own), Some(written_under)) = (least(numbers), least(*old)) else { continue };
                let state = match made.iter().find(|(other, _)| other.means_as(own)) {
                    Some((_, state)) => state.clone(),
                    None => {
                        let at = [then, now].map(|at| own.convert(written_under, state.words(), at));
                        let state = own.join(at[0].words(), at[1].words(), now);
                        made.push((own, state.clone()));
                        state
                    }
                };
                let key = OverflowKey { slot, numbers };
                let all = match shared.get(&key) {
                    Some(there) => own.join(&there.words, state.words(), now),
                    None => state,
                };
                let cell = shared.entry(key).or_default();
                if is_written || !cell.is_unwritten() {
                    written.insert(key);
                }
                cell.rewrite(self.and_forgotten(catalogue, key, own, all, now).words().to_vec());
            }
        }
    }

    /// Adds the debt of a bucket that a crash forgot. For other algorithms, the debt is counted when a key is
    /// charged.
    fn and_forgotten(
        &self,
        catalogue: &Catalogue,
        OverflowKey { slot, numbers }: OverflowKey,
        least: &Algorithm,
        state: State,
        now: Now,
    ) -> State {
        match least.has_rate() {
            true => self.not_less_than_forgotten(catalogue, (slot, numbers), (least, 0), now, state),
            false => state,
        }
    }

    /// Restores the cells that new cells shared, once for every present variant: a row does not say which
    /// keys were in it. If the disk keeps them (`is_kept`), each gets a row of its own, since each process
    /// numbers variants anew.
    pub(crate) fn restore_shared(
        &self,
        (limit, slot): (LimitId, u32),
        all: &[(u16, Algorithm)],
        shared: &[(CellTag, CellRecord)],
        (presumed, is_kept): (Option<&Registry>, bool),
        (error_ns, now): (Option<u64>, Now),
    ) {
        let mut rows = Vec::new();
        for (numbers, algorithm) in all {
            let mut joined: Option<State> = None;
            for (_, kept) in shared {
                let Some(old) = kept.algorithm(algorithm) else { continue };
                let state = kept.state(&old, error_ns, now);
                let state = self.after_set_back(&old, state, None, now);
                let state = algorithm.convert_sometime(&old, state.words(), now);
                joined = Some(match joined {
                    None => state,
                    Some(first) => algorithm.join(first.words(), state.words(), now),
                });
            }
            let more = |state| match presumed {
                Some(registry) => more_than_forgotten(registry, (slot, *numbers), state, now).ok(),
                None => Some(state),
            };
            if let Some(state) = joined.and_then(more) {
                let mut cell = HeapCell::new(state.words().to_vec());
                if is_kept {
                    let tag = overflow_tag(*numbers);
                    let state = Some(CellRecord::new(algorithm, &cell.words, now));
                    cell.ask_as_is(self.push_row(Row { limit, tag, state }));
                    rows.push(tag);
                }
                lock(&self.overflow).insert(OverflowKey { slot, numbers: *numbers }, cell);
                self.overflowing.store(true, Ordering::Release);
            }
        }
        if is_kept {
            let gone = shared.iter().map(|(tag, _)| *tag).filter(|tag| !rows.contains(tag));
            lock(&self.rows).extend(gone.map(|tag| Row { limit, tag, state: None }));
        }
    }

    /// Queues the shared cells of these sorted slots for the journal, unless a crash presumes at least as
    /// much debt: see `Node::write_cells`.
    pub(crate) fn write_shared(&self, catalogue: &Catalogue, slots: &[u32], overdrawn: &[u32], now: Now) {
        let mut shared = lock(&self.overflow);
        for (key, cell) in shared.iter_mut().filter(|(key, _)| slots.binary_search(&key.slot).is_ok()) {
            let Some(local) = catalogue.local(key.slot, key.numbers) else { continue };
            let algorithm = local.least();
            let is_presumed = algorithm.has_rate()
                && algorithm.owed(&cell.words, now) <= presumed(catalogue, overdrawn, key.slot, 0);
            if is_presumed || algorithm.is_idle(&cell.words, now) {
                continue;
            }
            if let Some(row) = key.row(catalogue, Some(CellRecord::new(algorithm, &cell.words, now))) {
                let batch = self.push_row(row);
                cell.forget_held();
                cell.ask_as_is(batch);
            }
        }
    }

    /// Drops the idle shared cells, in memory and in the journal.
    pub(crate) fn sweep_overflow(&self, catalogue: &Catalogue, now: Now) {
        let mut shared = lock(&self.overflow);
        let before = shared.len();
        let mut rows = Vec::new();
        shared.retain(|key, cell| {
            let idle = catalogue.is_idle_shared(key.slot, key.numbers, &cell.words, now);
            if idle && !cell.is_unwritten() {
                rows.extend(key.row(catalogue, None));
            }
            !idle
        });
        if shared.len() < before {
            self.leave_behind(now);
        }
        if !rows.is_empty() {
            rows.push(wall_row(now.wall_ns.max(self.left.latest_ns())));
            lock(&self.rows).append(&mut rows);
        }
        self.overflowing.store(!shared.is_empty(), Ordering::Release);
    }
}
