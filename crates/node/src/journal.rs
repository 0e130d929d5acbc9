//! What must be on disk before a reply leaves, so that a restart gives nothing back.
//!
//! A cell that must survive a crash keeps a second state beside its own: the *held* state, which is on disk
//! and owes at least as much. A charge that the held state covers is answered at once. Any other charge
//! *asks* for more: the state after a further chunk goes to the journal, and the reply waits until it is
//! there. A chunk is what was charged in the last second, so a crash wastes no more than that. A busy cell
//! asks when half of its chunk is left, and so hardly ever waits.

mod close;
pub(crate) mod forgotten;
pub(crate) mod restore;

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use acequia_limits::{Algorithm, CellTag, LimitId, Now};
use acequia_rights::mutation::{Mutation, mutated};

use crate::{
    cell::{account::Account, record::CellRecord},
    lock,
};

/// A row of the journal: what a cell owes from now on, or that it owes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The cell's limit.
    pub limit: LimitId,
    /// The cell's tag. The last 65536 tags are the cells that new cells share when memory is full. The tag
    /// before them stands for all cells that a crash forgot.
    pub tag: CellTag,
    /// What the cell owes; `None` if the row may be dropped.
    pub state: Option<CellRecord>,
}

/// A reserved limit id, under which the journal keeps a time: the latest wall clock at which a row was
/// dropped.
pub const WALL: LimitId = LimitId(0);

/// A reserved limit id, under which the journal keeps what a node remembers of itself.
pub const MEMORY: LimitId = LimitId(1);
/// See [`MEMORY`]: the versions of the catalogue.
pub const VERSIONS: LimitId = LimitId(2);
/// See [`MEMORY`]: this node's total charges under each limit.
pub const USAGE: LimitId = LimitId(3);
/// See [`MEMORY`]: charges that may be repeated, or given back, by their names.
pub const CHARGES: LimitId = LimitId(4);
/// See [`MEMORY`]: what a node that shares its region's pools withdrew from the pools of windows.
pub const WITHDRAWALS: LimitId = LimitId(5);
/// See [`MEMORY`]: the nodes of this node's region, by the catalogue.
pub(crate) const MATES: LimitId = LimitId(6);
/// See [`MEMORY`]: the seals of what this node passes on.
pub(crate) const SEALS: LimitId = LimitId(7);

/// A row of [`WALL`].
pub(crate) fn wall_row(wall_ns: u64) -> Row {
    Row { limit: WALL, tag: CellTag(0), state: Some(CellRecord::of_wall(wall_ns)) }
}

impl Row {
    /// The time in a row of [`WALL`].
    pub(crate) fn wall_ns(&self) -> Option<u64> {
        self.state.as_ref().and_then(CellRecord::wall_ns)
    }
}

/// The tag of an overflow cell in the journal: the last of all tags, one for each variant.
pub(crate) const fn overflow_tag(variant: u16) -> CellTag {
    CellTag(u128::MAX - variant as u128)
}

/// The journal's tag for a bucket's unknown cells: the debt that an earlier crash forgot.
pub(crate) const FORGOTTEN: CellTag = CellTag(overflow_tag(u16::MAX).0 - 1);

/// Whether the tag belongs to an overflow cell.
pub(crate) const fn is_overflow(tag: CellTag) -> bool {
    tag.0 >= overflow_tag(u16::MAX).0
}

/// Roughly the bytes that a row takes while it waits for the disk.
const ROW_BYTES: usize = size_of::<Row>() + 64;

/// The rows that wait for the disk, and how far the disk has come.
#[derive(Debug)]
pub(crate) struct Journal {
    /// The rows of the open batch, in the order of the changes. Locked after any shard.
    rows: Mutex<Vec<Row>>,
    open_batch: AtomicU64,
    /// Rows of the batch that is on its way to the disk.
    rows_in_hand: AtomicUsize,
    committed_batch: AtomicU64,
    /// Whether the last write failed.
    is_down: AtomicBool,
    /// Bytes that charges and waiting rows take from the memory for cells, as last counted.
    beside_bytes: AtomicUsize,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            rows: Mutex::default(),
            open_batch: AtomicU64::new(1),
            rows_in_hand: AtomicUsize::new(0),
            committed_batch: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
            beside_bytes: AtomicUsize::new(0),
        }
    }
}

impl Journal {
    /// As [`crate::Node::take_rows`].
    pub(crate) fn take_rows(&self) -> Option<(u64, Vec<Row>)> {
        let mut rows = lock(&self.rows);
        if rows.is_empty() {
            return None;
        }
        let batch = self.open_batch.fetch_add(1, Ordering::AcqRel);
        self.rows_in_hand.store(rows.len(), Ordering::Relaxed);
        Some((batch, std::mem::take(&mut *rows)))
    }

    /// Adds a row to the open batch; returns the batch.
    pub(crate) fn push(&self, row: Row) -> u64 {
        let mut rows = lock(&self.rows);
        rows.push(row);
        self.open_batch.load(Ordering::Acquire)
    }

    /// Adds rows for which nobody waits.
    pub(crate) fn append(&self, mut rows: Vec<Row>) {
        lock(&self.rows).append(&mut rows);
    }

    /// Deletes rows from the disk whose contents are true only once, as `Node::restore` returned them.
    pub(crate) fn delete_taken(&self, taken: Vec<Row>) {
        if !mutated(Mutation::StoppedTwice) {
            self.append(taken);
        }
    }

    pub(crate) fn committed(&self, batch: u64) {
        self.committed_batch.fetch_max(batch, Ordering::AcqRel);
        self.rows_in_hand.store(0, Ordering::Relaxed);
        self.is_down.store(false, Ordering::Release);
    }

    pub(crate) fn failed(&self) {
        self.is_down.store(true, Ordering::Release);
    }

    pub(crate) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }

    pub(crate) fn progress(&self) -> JournalProgress {
        JournalProgress {
            committed: self.committed_batch.load(Ordering::Acquire),
            open: self.open_batch.load(Ordering::Acquire),
        }
    }

    /// Counts the waiting rows, beside `charges_bytes` of charges.
    pub(crate) fn count_beside(&self, charges_bytes: usize) {
        let waiting = lock(&self.rows).len() + self.rows_in_hand.load(Ordering::Relaxed);
        self.beside_bytes.store(charges_bytes + waiting * ROW_BYTES, Ordering::Relaxed);
    }

    /// Bytes that charges and waiting rows take from the memory for cells, as last counted.
    pub(crate) fn beside_bytes(&self) -> usize {
        self.beside_bytes.load(Ordering::Relaxed)
    }
}

/// A state on the heap, and what the journal knows of it.
#[derive(Debug, Default)]
pub(crate) struct HeapCell {
    /// The state.
    pub(crate) state: Vec<u64>,
    /// A state that is surely on disk; empty if there is none.
    held: Vec<u64>,
    /// A state on its way to the disk, and its batch; 0 if there is none.
    asked: Vec<u64>,
    asked_in: u64,
    /// Whether the disk has a row of the cell, or will: even a row without meaning must be deleted.
    written: bool,
    /// The bytes counted for the cell from the beginning: what it may grow to.
    bytes_max: usize,
    /// The bytes counted for the cell now: its account grows and shrinks where nobody counts.
    pub(crate) bytes_counted: usize,
    /// The cell's dealings with other regions, if there are any.
    pub(crate) account: Option<Box<Account>>,
    /// Units that callers may spend until their leases end: see `lease`.
    leased: u64,
    recent: RecentUnits,
}

/// Units charged in the last second, from a count for this second and one for the second before. Saturates.
#[derive(Clone, Copy, Debug, Default)]
struct RecentUnits {
    /// The second of the steady clock that `this` counts.
    second: u32,
    this: u32,
    before: u32,
}

/// A second, in nanoseconds.
const SECOND_NS: u64 = 1_000_000_000;

impl RecentUnits {
    /// Counts a charge, and returns the units charged in the last second, including this charge.
    fn count(&mut self, units: u64, now: Now) -> u64 {
        // Only the difference of two seconds matters, so the number may wrap.
        let second = (now.steady_ns / SECOND_NS) as u32;
        match second.wrapping_sub(self.second) {
            0 => {}
            1 => *self = Self { second, this: 0, before: self.this },
            _ => *self = Self { second, this: 0, before: 0 },
        }
        self.this = self.this.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        let left_ns = SECOND_NS - now.steady_ns % SECOND_NS;
        u64::from(self.this) + u64::from(self.before) * left_ns / SECOND_NS
    }
}

/// What was just charged to a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellCharge {
    pub(crate) units: u64,
    /// Units that are left: no more than these are reserved.
    pub(crate) left: u64,
    pub(crate) salt: u32,
}

/// The bytes that allocators give for this many words.
const fn allocated(words: usize) -> usize {
    (words * size_of::<u64>()).next_multiple_of(16)
}

/// The journal's progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalProgress {
    /// The last batch that is surely on disk.
    pub(crate) committed: u64,
    /// The batch that rows join now.
    pub(crate) open: u64,
}

impl HeapCell {
    pub(crate) fn new(state: Vec<u64>) -> Self {
        Self { state, ..Self::default() }
    }

    /// A cell that may grow to as many words as the algorithm ever needs. If it is journalled, the two states
    /// for the journal take as much again, each.
    pub(crate) fn sized(state: Vec<u64>, algorithm: &Algorithm, durable: bool) -> Self {
        let states = if durable { 3 } else { 1 };
        let bytes_max = size_of::<Self>() + states * allocated(algorithm.state_words_max());
        Self { state, bytes_max, ..Self::default() }
    }

    /// A cell that was read from the journal.
    pub(crate) fn restored(state: Vec<u64>) -> Self {
        Self { held: state.clone(), state, written: true, ..Self::default() }
    }

    /// Units that callers may spend until their leases end.
    #[inline]
    pub(crate) fn leased(&self) -> u64 {
        self.leased
    }

    /// Changes the number of leased units.
    pub(crate) fn lease(&mut self, change: impl FnOnce(u64) -> u64) {
        self.leased = change(self.leased);
        if let Some(account) = self.account.as_deref_mut() {
            account.lease(self.leased);
        }
    }

    /// Bytes that the cell takes, with its vectors.
    pub(crate) fn bytes(&self) -> usize {
        let states = [&self.state, &self.held, &self.asked];
        let bytes: usize = states.iter().map(|state| allocated(state.capacity())).sum();
        let account = self.account.as_ref().map_or(0, |account| account.bytes());
        (size_of::<Self>() + bytes).max(self.bytes_max) + account
    }

    /// Discards the held state, which was written under another variant: the next charge writes anew.
    pub(crate) fn forget_held(&mut self) {
        self.held.clear();
        self.asked.clear();
        self.asked_in = 0;
    }

    /// Discards the held state if loans have changed its meaning.
    pub(crate) fn forget_held_if_variant_changed(&mut self) {
        let has_changed = self.account.as_deref_mut().is_some_and(Account::take_variant_changed);
        if has_changed && !mutated(Mutation::CoverByAnotherRate) {
            self.forget_held();
        }
    }

    /// As [`HeapCell::forget_held`], if the variant changes the meaning of the state.
    pub(crate) fn forget_held_of(&mut self, algorithm: &Algorithm) {
        if !matches!(algorithm, Algorithm::FixedWindow(_)) {
            self.forget_held();
        }
    }

    /// Notes that the disk has no row of the cell any more.
    pub(crate) fn forget_written(&mut self) {
        self.forget_held();
        self.written = false;
    }

    /// The state to write: one that covers the cell's state and, if possible, one that the disk has or will
    /// have, so that charges which that state covers need not wait.
    pub(crate) fn state_to_write(&mut self, algorithm: &Algorithm, now: Now) -> Vec<u64> {
        let covers = |state: &Vec<u64>| !state.is_empty() && algorithm.covers(state, &self.state, now);
        if self.asked_in > 0 && covers(&self.asked) {
            self.asked.clone()
        } else if covers(&self.held) {
            self.held.clone()
        } else {
            self.state.clone()
        }
    }

    /// Notes a state on its way to the disk.
    pub(crate) fn ask(&mut self, state: Vec<u64>, batch: u64) {
        self.asked = state;
        self.sent_in(batch);
    }

    /// The states that the disk may have: a restart counts their units as spent.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = &[u64]> {
        [self.held.as_slice(), self.asked.as_slice()].into_iter().filter(|state| !state.is_empty())
    }

    /// Replaces the state and discards the held state: the variant changed, and with it the state's meaning.
    pub(crate) fn rewrite(&mut self, state: Vec<u64>) {
        let account = self.account.take();
        let Self { written, bytes_max, bytes_counted, leased, recent, .. } = *self;
        *self = Self { written, bytes_max, bytes_counted, account, leased, recent, ..Self::new(state) };
    }

    /// Whether no row of the cell is, or will be, on disk.
    pub(crate) fn is_unwritten(&self) -> bool {
        !self.written
    }

    /// Whether a charge of `units` would be covered by what is surely on disk.
    pub(crate) fn would_hold(
        &mut self,
        algorithm: &Algorithm,
        now: Now,
        units: u64,
        salt: u32,
        progress: JournalProgress,
    ) -> bool {
        self.learn(progress);
        let mut after = self.state.clone();
        algorithm.charge_heap(&mut after, now, units, salt);
        algorithm.covers(&self.held, &after, now)
    }

    /// After a charge: returns the batch that the reply must wait for (0: none). Passes to `ask` the state
    /// that must be written in the open batch, if any.
    pub(crate) fn settle(
        &mut self,
        algorithm: &Algorithm,
        now: Now,
        charged: CellCharge,
        progress: JournalProgress,
        ask: impl FnOnce(&[u64]),
    ) -> u64 {
        self.learn(progress);
        let CellCharge { units, left, salt } = charged;
        let chunk = algorithm.chunk_max().min(self.recent.count(units, now)).min(left);
        let ahead = |units: u64| {
            let mut state = self.state.clone();
            if units > 0 {
                algorithm.charge_heap(&mut state, now, units, salt);
            }
            state
        };
        let held = algorithm.covers(&self.held, &self.state, now);
        if held {
            let plenty = chunk == 0
                || self.asked_in > 0
                || algorithm.covers(&self.held, &ahead(chunk.div_ceil(2)), now);
            if plenty {
                return 0;
            }
        } else if self.asked_in > 0 && algorithm.covers(&self.asked, &self.state, now) {
            return self.asked_in;
        }
        let state = ahead(chunk);
        ask(&state);
        self.asked = state;
        self.asked_in = progress.open;
        if held { 0 } else { progress.open }
    }

    /// Notes that the present state was written in a batch.
    pub(crate) fn ask_as_is(&mut self, batch: u64) {
        self.asked.clone_from(&self.state);
        self.sent_in(batch);
    }

    /// Notes the batch in which the asked state really travels: the open batch may have left since.
    pub(crate) fn sent_in(&mut self, batch: u64) {
        self.asked_in = batch;
        self.written = true;
    }

    fn learn(&mut self, progress: JournalProgress) {
        if self.asked_in > 0 && self.asked_in <= progress.committed {
            self.held = std::mem::take(&mut self.asked);
            self.asked_in = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use acequia_limits::{Rate, meter::Meter};

    use super::*;

    fn bucket() -> Algorithm {
        let rate = Rate::parse("640/h").expect("a rate");
        Algorithm::TokenBucket(Meter::new(rate, 640))
    }

    /// Charges one unit; returns the batch that the reply waits for, and whether a row was written.
    fn charge(cell: &mut HeapCell, now: Now, progress: JournalProgress) -> (u64, bool) {
        let algorithm = bucket();
        let left = algorithm.probe(&cell.state, now, 1, 0).remaining;
        algorithm.charge_heap(&mut cell.state, now, 1, 0);
        let mut written = false;
        let charged = CellCharge { units: 1, left, salt: 0 };
        let wait = cell.settle(&algorithm, now, charged, progress, |_| written = true);
        (wait, written)
    }

    #[test]
    fn units_charged_in_the_last_second_are_reserved_in_advance() {
        let mut cell = HeapCell::default();
        let now = Now::at(1 << 60);
        // The first charge waits for the disk and reserves as much again. Charges that come before the row is
        // on disk wait, too.
        assert_eq!(charge(&mut cell, now, JournalProgress { committed: 0, open: 1 }), (1, true));
        assert_eq!(charge(&mut cell, now, JournalProgress { committed: 0, open: 1 }), (1, false));
        assert_eq!(charge(&mut cell, now, JournalProgress { committed: 0, open: 1 }), (1, true));
        // The more is charged, the more is reserved, up to the 64th part of the limit. So fewer and fewer
        // charges wait, and then none.
        let (mut waits, mut writes) = (0, 0);
        for batch in 1..=50 {
            let (wait, written) =
                charge(&mut cell, now, JournalProgress { committed: batch, open: batch + 1 });
            waits += u64::from(wait > 0);
            writes += u64::from(written);
        }
        assert_eq!((waits, writes), (0, 10));
    }

    #[test]
    fn a_rarely_charged_cell_waits_once_and_reserves_one_charge() {
        let mut cell = HeapCell::default();
        for charges in 0..20 {
            let now = Now::at((1 << 60) + charges * 5 * SECOND_NS);
            let (wait, written) =
                charge(&mut cell, now, JournalProgress { committed: charges, open: charges + 1 });
            assert_eq!((wait > 0, written), (charges == 0, true));
            let owed = |state: &[u64]| 640 - bucket().probe(state, now, 1, 0).remaining;
            let most = cell.reserved().map(owed).max();
            assert_eq!(most, Some(owed(&cell.state) + 1), "a crash wastes one unit");
        }
    }

    #[test]
    fn units_of_the_last_second_are_counted_in_two_halves() {
        let mut recent = RecentUnits::default();
        let at = |ms: u64| Now::at((1 << 60) / SECOND_NS * SECOND_NS + ms * 1_000_000);
        for (ms, units, charged) in [
            (0, 3, 3),
            (900, 7, 10),
            (1_000, 1, 11),
            (1_500, 1, 7),
            (1_999, 1, 3),
            (4_000, 5, 5),
            (4_000, u64::MAX, u64::from(u32::MAX)),
        ] {
            assert_eq!(recent.count(units, at(ms)), charged, "{ms} ms");
        }
    }

    #[test]
    fn units_that_are_not_on_disk_are_not_covered() {
        let mut cell = HeapCell::default();
        let now = Now::at(1 << 60);
        let progress = JournalProgress { committed: 0, open: 1 };
        assert!(!cell.would_hold(&bucket(), now, 1, 0, progress));
        charge(&mut cell, now, progress);
        assert!(!cell.would_hold(&bucket(), now, 1, 0, progress), "asked is not held");
        assert!(cell.would_hold(&bucket(), now, 1, 0, JournalProgress { committed: 1, open: 2 }));
        assert!(!cell.would_hold(&bucket(), now, 2, 0, JournalProgress { committed: 1, open: 2 }));
    }
}
