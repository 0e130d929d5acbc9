//! The cells that new ones share when memory is full: one for each set of a limit's numbers.
//!
//! **A shared cell owes no less than any key whose numbers are that set's, of all that was charged in shared cells.** Whose keys were in
//! one is not known, and with other numbers a key may come to any other cell: an override is added, removed, or ends. So when numbers begin, each set of them gets a cell
//! that owes as much as whichever of those before owes most.
//!
//! Shared cells are always under the numbers of the catalogue that is published, but for overrides that end by themselves: those are
//! carried over by who first finds one that has ended, and from then on no thread goes by a clock that reads less.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
};

use acequia_limits::{Algorithm, Now, algorithm::State};

use crate::{
    Catalogue, Node, Row,
    catalogue::Registry,
    journal::{HeapCell, overflow_tag},
    kept::Kept,
    lock, more_than_forgotten, presumed,
};

/// Whose new cells share one: those of a limit under one set of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OverflowKey {
    pub(crate) slot: u16,
    pub(crate) numbers: u16,
}

impl OverflowKey {
    /// The cell as the journal knows it.
    pub(crate) fn row(self, catalogue: &Catalogue, state: Option<Kept>) -> Option<Row> {
        Some(Row { limit: catalogue.id(self.slot)?, tag: overflow_tag(self.numbers), state })
    }
}

/// The shared cells of a node.
pub(crate) type Overflow = BTreeMap<OverflowKey, HeapCell>;

impl Node {
    /// Limits are as the registry says from now on. The shared cells have their numbers in the same step: a thread that looks at
    /// those sees first whether its catalogue is this one.
    pub(crate) fn publish(&self, registry: &Registry, now: Now) {
        let version = self.version.load(Ordering::Acquire) + 1;
        let catalogue = Arc::new(registry.catalogue(version));
        let mut shared = lock(&self.overflow);
        self.carry_shared(&catalogue, &mut shared, None, self.not_before(now));
        *lock(&self.catalogue) = catalogue;
        self.version.store(version, Ordering::Release);
    }

    /// Carries the shared cells of numbers that are over to all that there are now, those of one slot or of any.
    pub(crate) fn carry_shared(
        &self,
        catalogue: &Catalogue,
        shared: &mut Overflow,
        slot: Option<u16>,
        now: Now,
    ) {
        let of = |key: &OverflowKey| slot.is_none_or(|slot| key.slot == slot);
        let is_over = |key: &OverflowKey| of(key) && catalogue.is_over(key.slot, key.numbers, now);
        let over: Vec<OverflowKey> = shared.keys().copied().filter(is_over).collect();
        let mut written: BTreeSet<OverflowKey> = BTreeSet::new();
        let mut gone = Vec::new();
        for old in over {
            let Some(cell) = shared.remove(&old) else { continue };
            for numbers in catalogue.heirs(old.slot, old.numbers, now) {
                let heir = OverflowKey { slot: old.slot, numbers };
                let Some(state) = self.carried(catalogue, (old, heir), &cell.words, now) else { continue };
                match shared.get_mut(&heir) {
                    None => drop(shared.insert(heir, HeapCell::new(state.words().to_vec()))),
                    Some(there) => {
                        let Some(local) = catalogue.local(heir.slot, numbers) else { continue };
                        let all = local.least().join(&there.words, state.words(), now);
                        there.rewrite(all.words().to_vec());
                        if !there.is_unwritten() {
                            written.insert(heir);
                        }
                    }
                }
                if !cell.is_unwritten() {
                    written.insert(heir);
                }
            }
            if !cell.is_unwritten() {
                gone.extend(old.row(catalogue, None));
            }
        }
        for key in written {
            if let (Some(cell), Some(local)) = (shared.get_mut(&key), catalogue.local(key.slot, key.numbers))
                && let Some(row) = key.row(catalogue, Some(Kept::new(local.least(), &cell.words, now)))
            {
                cell.ask_as_is(self.push_row(row));
            }
        }
        lock(&self.rows).append(&mut gone);
    }

    /// What a shared cell owes as one of the numbers that come after.
    fn carried(
        &self,
        catalogue: &Catalogue,
        (old, heir): (OverflowKey, OverflowKey),
        words: &[u64],
        now: Now,
    ) -> Option<State> {
        let least = catalogue.local(heir.slot, heir.numbers)?.least();
        let state = catalogue.carry_shared(heir.slot, (old.numbers, heir.numbers), words, now)?;
        // What a crash forgot of each key is counted when the key is charged, but of buckets.
        Some(match least.has_rate() {
            true => {
                self.not_less_than_forgotten(catalogue, (heir.slot, heir.numbers), (least, 0), now, state)
            }
            false => state,
        })
    }

    /// Where an override of a limit has ended, its keys are other cells' from now on.
    #[cold]
    pub(crate) fn end_overrides(&self, catalogue: &Catalogue, shared: &mut Overflow, slot: u16, now: Now) {
        self.carry_shared(catalogue, shared, Some(slot), now);
        // For other threads too, which may have looked at the clock before.
        self.forgotten_wall_ns.fetch_max(now.wall_ns, Ordering::AcqRel);
    }

    /// The cells that new ones shared stand for every set of numbers that the limit has now: a row
    /// does not say whose keys were in it.
    pub(crate) fn restore_shared(
        &self,
        slot: u16,
        all: &[(u16, Algorithm)],
        shared: &[Kept],
        presumed: Option<&Registry>,
        (error_ns, now): (Option<u64>, Now),
    ) {
        for (numbers, algorithm) in all {
            let mut joined: Option<State> = None;
            for kept in shared {
                let Some(old) = kept.algorithm(algorithm) else { continue };
                let state = algorithm.convert_sometime(&old, kept.state(&old, error_ns, now).words(), now);
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
                let cell = HeapCell::restored(state.words().to_vec());
                lock(&self.overflow).insert(OverflowKey { slot, numbers: *numbers }, cell);
                self.overflowing.store(true, Ordering::Release);
            }
        }
    }

    /// Queues the shared cells of these slots for the journal, unless a crash presumes as much: see `Node::write_cells`.
    pub(crate) fn write_shared(&self, catalogue: &Catalogue, slots: &[u16], overdrawn: &[u16], now: Now) {
        let mut shared = lock(&self.overflow);
        for (key, cell) in shared.iter_mut().filter(|(key, _)| slots.contains(&key.slot)) {
            let Some(local) = catalogue.local(key.slot, key.numbers) else { continue };
            let algorithm = local.least();
            let is_presumed = algorithm.has_rate()
                && algorithm.owed(&cell.words, now) <= presumed(catalogue, overdrawn, key.slot, 0);
            if is_presumed || algorithm.is_idle(&cell.words, now) {
                continue;
            }
            if let Some(row) = key.row(catalogue, Some(Kept::new(algorithm, &cell.words, now))) {
                let batch = self.push_row(row);
                cell.forget_held();
                cell.ask_as_is(batch);
            }
        }
    }

    /// Forgets the shared cells that are idle, in memory and in the journal.
    pub(crate) fn sweep_overflow(&self, catalogue: &Catalogue, now: Now) {
        let mut shared = lock(&self.overflow);
        shared.retain(|key, cell| {
            let idle = catalogue.is_idle_shared(key.slot, key.numbers, &cell.words, now);
            if idle && !cell.is_unwritten() {
                lock(&self.rows).extend(key.row(catalogue, None));
            }
            !idle
        });
        self.overflowing.store(!shared.is_empty(), Ordering::Release);
    }
}
