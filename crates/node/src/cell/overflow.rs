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
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use acequia_limits::{Algorithm, CellTag, Now, algorithm::State};

use crate::{
    Catalogue, CellWrite, Node, Row,
    catalogue::{Registry, VariantKey, local::Local},
    cell::record::CellRecord,
    journal::{
        HeapCell,
        forgotten::{MaybeForgotten, more_than_forgotten},
        overflow_tag,
        restore::RestoredLimit,
        wall_row,
    },
    lock,
};

impl VariantKey {
    /// The journal's row of the cell that new cells with this variant share.
    pub(crate) fn row(self, catalogue: &Catalogue, state: Option<CellRecord>) -> Option<Row> {
        Some(Row { limit: catalogue.id(self.slot)?, tag: overflow_tag(self.variant), state })
    }
}

/// The shared cells of a node, by the variant whose new cells share one.
pub(crate) type Overflow = BTreeMap<VariantKey, HeapCell>;

/// The shared cells under their lock, and whether there are any.
#[derive(Debug, Default)]
pub(crate) struct SharedCells {
    cells: Mutex<Overflow>,
    any: AtomicBool,
}

impl SharedCells {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Overflow> {
        lock(&self.cells)
    }

    /// Whether new cells are shared now.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Notes that there is a shared cell.
    pub(crate) fn note_any(&self) {
        self.any.store(true, Ordering::Release);
    }
}

/// A pass that carries shared cells over to the variants that followed theirs.
struct CarryPass<'a> {
    node: &'a Node,
    catalogue: &'a Catalogue,
    shared: &'a mut Overflow,
    now: Now,
    /// The cells that the disk must have.
    written: BTreeSet<VariantKey>,
    /// Rows of cells that are gone.
    gone: Vec<Row>,
}

impl Node {
    /// Publishes the registry's limits. The shared cells get the new variants in the same step. A thread that
    /// reads shared cells first checks that its catalogue is this one, and uses no earlier clock.
    pub(crate) fn publish(&self, registry: &Registry, now: Now) {
        let (before, catalogue) =
            (self.catalogue(), Arc::new(registry.catalogue(self.limits.next_version())));
        let now = self.not_before(now);
        let mut shared = self.overflow.lock();
        if !shared.is_empty() {
            self.leave_behind(now);
            // Overrides that ended by themselves continued under the old variants.
            self.carry_shared(&before, &mut shared, None, now);
            self.carry_shared(&catalogue, &mut shared, None, now);
        }
        self.limits.publish(catalogue);
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
    fn carry_shared(&self, catalogue: &Catalogue, shared: &mut Overflow, slot: Option<u32>, now: Now) {
        let slots: BTreeSet<u32> = match slot {
            Some(slot) => [slot].into(),
            None => shared.keys().map(|key| key.slot).collect(),
        };
        let (written, gone) = (BTreeSet::new(), Vec::new());
        let mut pass = CarryPass { node: self, catalogue, shared, now, written, gone };
        for slot in slots {
            pass.carry_slot(slot);
        }
        pass.write();
    }

    /// Adds the debt of a bucket that a crash forgot. For other algorithms, the debt is counted when a key is
    /// charged.
    fn and_forgotten(
        &self,
        catalogue: &Catalogue,
        key: VariantKey,
        least: &Algorithm,
        state: State,
        now: Now,
    ) -> State {
        match least.has_rate() {
            true => {
                let cell = MaybeForgotten { catalogue, key, algorithm: least, salt: 0, now };
                self.not_less_than_forgotten(&cell, state)
            }
            false => state,
        }
    }

    /// Restores the cells that new cells shared, once for every present variant: a row does not say which
    /// keys were in it. If the disk keeps them (`is_kept`), each gets a row of its own, since each process
    /// numbers variants anew.
    pub(crate) fn restore_shared(
        &self,
        registry: &Registry,
        limit: &RestoredLimit<'_>,
        shared: &[(CellTag, CellRecord)],
        is_kept: bool,
    ) {
        let mut rows = Vec::new();
        for live in limit.all {
            let algorithm = live.local.least();
            let key = VariantKey { slot: limit.slot, variant: live.number };
            let joined = self.joined(limit, algorithm, shared).and_then(|state| match limit.lost {
                Some(_) => more_than_forgotten(registry, key, state, limit.now).ok(),
                None => Some(state),
            });
            if let Some(state) = joined {
                let mut cell = HeapCell::new(state.as_slice().to_vec());
                if is_kept {
                    let tag = overflow_tag(key.variant);
                    let state = Some(CellRecord::new(algorithm, &cell.state, limit.now));
                    cell.ask_as_is(self.push_row(Row { limit: limit.id, tag, state }));
                    rows.push(tag);
                }
                self.overflow.lock().insert(key, cell);
                self.overflow.note_any();
            }
        }
        if is_kept {
            let gone = shared.iter().map(|(tag, _)| *tag).filter(|tag| !rows.contains(tag));
            self.journal.append(gone.map(|tag| Row { limit: limit.id, tag, state: None }).collect());
        }
    }

    /// The least state that owes as much as each of these rows, under the present variant `algorithm`.
    fn joined(
        &self,
        limit: &RestoredLimit<'_>,
        algorithm: &Algorithm,
        shared: &[(CellTag, CellRecord)],
    ) -> Option<State> {
        let now = limit.now;
        let states = shared.iter().filter_map(|(_, kept)| {
            let old = kept.algorithm(algorithm)?;
            let state = kept.state(&old, limit.error_ns, now);
            let state = self.clock.after_set_back(&old, state, None, now);
            Some(algorithm.convert_sometime(&old, state.as_slice(), now))
        });
        states.reduce(|first, state| algorithm.join(first.as_slice(), state.as_slice(), now))
    }

    /// Queues the shared cells of these sorted slots for the journal, unless a crash presumes at least as
    /// much debt: see `Node::write_cells`.
    pub(crate) fn write_shared(&self, write: CellWrite<'_>, slots: &[u32]) {
        let CellWrite { catalogue, now, .. } = write;
        let mut shared = self.overflow.lock();
        for (key, cell) in shared.iter_mut().filter(|(key, _)| slots.binary_search(&key.slot).is_ok()) {
            let Some(local) = catalogue.local(key.slot, key.variant) else { continue };
            let algorithm = local.least();
            let is_presumed =
                algorithm.has_rate() && algorithm.owed(&cell.state, now) <= write.presumed(key.slot, 0);
            if is_presumed || algorithm.is_idle(&cell.state, now) {
                continue;
            }
            if let Some(row) = key.row(catalogue, Some(CellRecord::new(algorithm, &cell.state, now))) {
                let batch = self.push_row(row);
                cell.forget_held();
                cell.ask_as_is(batch);
            }
        }
    }

    /// Drops the idle shared cells, in memory and in the journal.
    pub(crate) fn sweep_overflow(&self, catalogue: &Catalogue, now: Now) {
        let mut shared = self.overflow.lock();
        let before = shared.len();
        let mut rows = Vec::new();
        shared.retain(|key, cell| {
            let idle = catalogue.is_idle_shared(key.slot, key.variant, &cell.state, now);
            if idle && !cell.is_unwritten() {
                rows.extend(key.row(catalogue, None));
            }
            !idle
        });
        if shared.len() < before {
            self.leave_behind(now);
        }
        if !rows.is_empty() {
            rows.push(wall_row(now.wall_ns.max(self.clock.left.latest_ns())));
            self.journal.append(rows);
        }
        self.overflow.any.store(!shared.is_empty(), Ordering::Release);
    }
}

impl CarryPass<'_> {
    /// Carries the cells of one slot over. The variant that ended first comes first.
    fn carry_slot(&mut self, slot: u32) {
        let (catalogue, now) = (self.catalogue, self.now);
        let over_at = |key: &VariantKey| catalogue.over_at(key.slot, key.variant, now);
        let of_slot = VariantKey { slot, variant: 0 }..=VariantKey { slot, variant: u16::MAX };
        loop {
            let all: Vec<VariantKey> = self.shared.range(of_slot.clone()).map(|(key, _)| *key).collect();
            let ended = all.iter().filter_map(over_at);
            let Some(then) = ended.min_by_key(|then| then.wall_ns) else { break };
            let mut cells = Vec::new();
            for old in all.iter().filter(|old| over_at(old) == Some(then)) {
                let Some(cell) = self.shared.remove(old) else { continue };
                if !cell.is_unwritten() {
                    self.gone.extend(old.row(catalogue, None));
                }
                cells.push((old.variant, cell));
            }
            self.carry_all(slot, &cells, then);
        }
    }

    /// Carries cells of one slot, by variant, that ended at `then`: to each variant that their keys may have
    /// had next.
    fn carry_all(&mut self, slot: u32, cells: &[(u16, HeapCell)], then: Now) {
        let (catalogue, now) = (self.catalogue, self.now);
        let least = |variant: u16| catalogue.local(slot, variant).map(Local::least);
        let is_written = cells.iter().any(|(_, cell)| !cell.is_unwritten());
        for (old, state) in &self.joined(slot, cells) {
            let mut made: Vec<(&Algorithm, State)> = Vec::new();
            for variant in catalogue.heirs(slot, *old, then) {
                let (Some(own), Some(written_under)) = (least(variant), least(*old)) else { continue };
                let state = match made.iter().find(|(other, _)| other.means_as(own)) {
                    Some((_, state)) => state.clone(),
                    None => {
                        let at = [then, now].map(|at| own.convert(written_under, state.as_slice(), at));
                        let state = own.join(at[0].as_slice(), at[1].as_slice(), now);
                        made.push((own, state.clone()));
                        state
                    }
                };
                let key = VariantKey { slot, variant };
                let all = match self.shared.get(&key) {
                    Some(there) => own.join(&there.state, state.as_slice(), now),
                    None => state,
                };
                let cell = self.shared.entry(key).or_default();
                if is_written || !cell.is_unwritten() {
                    self.written.insert(key);
                }
                cell.rewrite(self.node.and_forgotten(catalogue, key, own, all, now).as_slice().to_vec());
            }
        }
    }

    /// Joins the cells whose variants give the same meaning to a state. There may be a thousand cells, and
    /// nearly all variants give the same meaning.
    fn joined(&self, slot: u32, cells: &[(u16, HeapCell)]) -> Vec<(u16, State)> {
        let catalogue = self.catalogue;
        let least = |variant: u16| catalogue.local(slot, variant).map(Local::least);
        let mut joined: Vec<(u16, State)> = Vec::new();
        for (variant, cell) in cells {
            let Some(own) = least(*variant) else { continue };
            let same = joined.iter_mut().find(|(other, _)| {
                catalogue.is_of_one_role(slot, *other, *variant)
                    && least(*other).is_some_and(|other| other.means_as(own))
            });
            match same {
                Some((_, all)) => *all = own.join(all.as_slice(), &cell.state, self.now),
                None => joined.push((*variant, State::Heap(cell.state.clone()))),
            }
        }
        joined
    }

    /// Queues the rows of cells that changed, and then of those that are gone.
    fn write(self) {
        for key in self.written {
            if let (Some(cell), Some(local)) =
                (self.shared.get_mut(&key), self.catalogue.local(key.slot, key.variant))
                && let Some(row) =
                    key.row(self.catalogue, Some(CellRecord::new(local.least(), &cell.state, self.now)))
            {
                cell.ask_as_is(self.node.push_row(row));
            }
        }
        self.node.journal.append(self.gone);
    }
}
