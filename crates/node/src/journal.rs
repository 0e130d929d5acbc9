//! What must be on disk before a reply leaves, so that a restart gives nothing back.
//!
//! A cell that must survive a crash keeps, beside its state, the state that is *held* on disk,
//! which owes at least as much. A charge that the held state covers is answered at once. One that
//! it does not cover *asks* for more: the state after a further chunk goes to the journal, and the
//! reply waits until it is there. A chunk is what was charged in the last second, so a crash wastes no more than that.
//! A busy cell asks when half of its chunk is left, and so hardly ever waits.

use acequia_limits::{Algorithm, CellTag, LimitId, Now};
use acequia_rights::mutation::{Mutation, mutated};

use crate::{account::Account, record::CellRecord};

/// A line of the journal: what a cell owes from now on, or that it owes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose cell it is.
    pub limit: LimitId,
    /// Which of its cells. The last 65536 tags are the cells that new ones share when memory is full, and the one before
    /// is all cells that a crash forgot.
    pub tag: CellTag,
    /// What it owes. Nothing: the row may be forgotten.
    pub state: Option<CellRecord>,
}

/// About what a row takes that waits for the disk, in bytes.
pub(crate) const ROW_BYTES: usize = size_of::<Row>() + 64;

/// The limit, which cannot be, under which the journal keeps a time: the latest wall clock at which a
/// row was forgotten.
pub const WALL: LimitId = LimitId(0);

/// The limits, which cannot be, under which the journal keeps what a node remembers of itself, and the
/// versions of the catalogue.
pub const MEMORY: LimitId = LimitId(1);
/// See [`MEMORY`].
pub const VERSIONS: LimitId = LimitId(2);
/// See [`MEMORY`]: what this node charged under each limit, in all.
pub const USAGE: LimitId = LimitId(3);
/// See [`MEMORY`]: charges that may be asked for again, or given back, by their names.
pub const CHARGES: LimitId = LimitId(4);
/// See [`MEMORY`]: what a node among others of its region took of their pools' windows.
pub const TAKINGS: LimitId = LimitId(5);
/// See [`MEMORY`]: who the nodes of its region were, where the catalogue says so.
pub(crate) const MATES: LimitId = LimitId(6);
/// See [`MEMORY`]: the seals of what this node passes on.
pub(crate) const SEALS: LimitId = LimitId(7);

/// A row of [`WALL`].
pub(crate) fn wall_row(wall_ns: u64) -> Row {
    Row { limit: WALL, tag: CellTag(0), state: Some(CellRecord::of_wall(wall_ns)) }
}

impl Row {
    /// What a row of [`WALL`] says.
    pub(crate) fn wall_ns(&self) -> Option<u64> {
        self.state.as_ref().and_then(CellRecord::wall_ns)
    }
}

/// The tag of an overflow cell in the journal: the last of all tags, one for each set of numbers.
pub(crate) const fn overflow_tag(numbers: u16) -> CellTag {
    CellTag(u128::MAX - numbers as u128)
}

/// The tag, in the journal, of the cells of a bucket of which nothing is known: what an earlier crash forgot of them.
pub(crate) const FORGOTTEN: CellTag = CellTag(overflow_tag(u16::MAX).0 - 1);

/// Whether a tag is an overflow cell's.
pub(crate) const fn is_overflow(tag: CellTag) -> bool {
    tag.0 >= overflow_tag(u16::MAX).0
}

/// A state on the heap, and what the journal knows of it.
#[derive(Debug, Default)]
pub(crate) struct HeapCell {
    /// The state.
    pub(crate) words: Vec<u64>,
    /// A state that is surely on disk. Empty where nothing is.
    held: Vec<u64>,
    /// A state on its way to the disk, and the batch it travels in. 0 where none is.
    asked: Vec<u64>,
    asked_in: u64,
    /// Whether the disk has a row of it, or will: even one that says nothing any more must go.
    written: bool,
    /// What it is accounted as from its first day: what it may grow to.
    bytes_max: usize,
    /// What it is accounted as now: an account grows and shrinks where nobody counts.
    pub(crate) bytes_counted: usize,
    /// What other regions have to do with it, if they have.
    pub(crate) account: Option<Box<Account>>,
    /// Units that callers may spend until their leases end: see `lease`.
    leased: u64,
    recent: Recent,
}

/// Units that were charged in the last second, by a count for this second and one for the second before. Saturates.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// The steady clock's second that `this` is of.
    second: u32,
    this: u32,
    before: u32,
}

/// A second, in nanoseconds.
const SECOND_NS: u64 = 1_000_000_000;

impl Recent {
    /// Counts a charge, and gives what was charged in the last second, this charge included.
    fn count(&mut self, units: u64, now: Now) -> u64 {
        // Only the difference of two seconds counts, so the number may wrap.
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
pub(crate) struct Charged {
    pub(crate) units: u64,
    /// Units that are left: no more is reserved.
    pub(crate) left: u64,
    pub(crate) salt: u32,
}

/// Bytes that so many words take, as allocators give them.
const fn allocated(words: usize) -> usize {
    (words * size_of::<u64>()).next_multiple_of(16)
}

/// What the journal is doing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// The last batch that is surely on disk.
    pub(crate) committed: u64,
    /// The batch that rows go to now.
    pub(crate) open: u64,
}

impl HeapCell {
    pub(crate) fn new(words: Vec<u64>) -> Self {
        Self { words, ..Self::default() }
    }

    /// A cell that may grow to as many words as the algorithm ever needs; what the journal knows of
    /// it takes as much again, twice.
    pub(crate) fn sized(words: Vec<u64>, algorithm: &Algorithm, durable: bool) -> Self {
        let states = if durable { 3 } else { 1 };
        let bytes_max = size_of::<Self>() + states * allocated(algorithm.words_max());
        Self { words, bytes_max, ..Self::default() }
    }

    /// A cell that was read from the journal.
    pub(crate) fn restored(words: Vec<u64>) -> Self {
        Self { held: words.clone(), words, written: true, ..Self::default() }
    }

    /// Units that callers may spend until their leases end.
    #[inline]
    pub(crate) fn leased(&self) -> u64 {
        self.leased
    }

    /// Leases so many units more, or fewer.
    pub(crate) fn lease(&mut self, change: impl FnOnce(u64) -> u64) {
        self.leased = change(self.leased);
        if let Some(account) = self.account.as_deref_mut() {
            account.lease(self.leased);
        }
    }

    /// Bytes it takes, its vectors included.
    pub(crate) fn bytes(&self) -> usize {
        let states = [&self.words, &self.held, &self.asked];
        let words: usize = states.iter().map(|state| allocated(state.capacity())).sum();
        let account = self.account.as_ref().map_or(0, |account| account.bytes());
        (size_of::<Self>() + words).max(self.bytes_max) + account
    }

    /// What the disk holds was written under other numbers: the next charge writes anew.
    pub(crate) fn forget_held(&mut self) {
        self.held.clear();
        self.asked.clear();
        self.asked_in = 0;
    }

    /// Forgets what the disk holds if loans have changed what it means.
    pub(crate) fn forget_held_if_renumbered(&mut self) {
        let renumbered = self.account.as_deref_mut().is_some_and(Account::take_renumbered);
        if renumbered && !mutated(Mutation::CoverByAnotherRate) {
            self.forget_held();
        }
    }

    /// As [`HeapCell::forget_held`], where the numbers change what the words mean.
    pub(crate) fn forget_held_of(&mut self, algorithm: &Algorithm) {
        if !matches!(algorithm, Algorithm::FixedWindow(_)) {
            self.forget_held();
        }
    }

    /// The disk has no row of it any more.
    pub(crate) fn forget_written(&mut self) {
        self.forget_held();
        self.written = false;
    }

    /// A state to write that covers the cell's and whatever the disk holds already, so that charges which
    /// that covers need not wait.
    pub(crate) fn words_to_write(&mut self, algorithm: &Algorithm, now: Now) -> Vec<u64> {
        let covers = |words: &Vec<u64>| !words.is_empty() && algorithm.covers(words, &self.words, now);
        if self.asked_in > 0 && covers(&self.asked) {
            self.asked.clone()
        } else if covers(&self.held) {
            self.held.clone()
        } else {
            self.words.clone()
        }
    }

    /// A state is on its way to the disk.
    pub(crate) fn ask(&mut self, words: Vec<u64>, batch: u64) {
        self.asked = words;
        self.sent_in(batch);
    }

    /// The units that the disk may count as spent beyond what is: a restart will.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = &[u64]> {
        [self.held.as_slice(), self.asked.as_slice()].into_iter().filter(|words| !words.is_empty())
    }

    /// Forgets what the disk holds: the numbers changed, and with them what the words mean.
    pub(crate) fn rewrite(&mut self, words: Vec<u64>) {
        let account = self.account.take();
        let Self { written, bytes_max, bytes_counted, leased, recent, .. } = *self;
        *self = Self { written, bytes_max, bytes_counted, account, leased, recent, ..Self::new(words) };
    }

    /// Whether nothing of it is, or will be, on disk.
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
        progress: Progress,
    ) -> bool {
        self.learn(progress);
        let mut after = self.words.clone();
        algorithm.charge_heap(&mut after, now, units, salt);
        algorithm.covers(&self.held, &after, now)
    }

    /// After a charge: gives the batch that the reply must wait for (0: none), and through `ask`
    /// the state that must be written in the open batch, if any.
    pub(crate) fn settle(
        &mut self,
        algorithm: &Algorithm,
        now: Now,
        charged: Charged,
        progress: Progress,
        ask: impl FnOnce(&[u64]),
    ) -> u64 {
        self.learn(progress);
        let Charged { units, left, salt } = charged;
        let chunk = algorithm.chunk_max().min(self.recent.count(units, now)).min(left);
        let ahead = |units: u64| {
            let mut words = self.words.clone();
            if units > 0 {
                algorithm.charge_heap(&mut words, now, units, salt);
            }
            words
        };
        let held = algorithm.covers(&self.held, &self.words, now);
        if held {
            let plenty = chunk == 0
                || self.asked_in > 0
                || algorithm.covers(&self.held, &ahead(chunk.div_ceil(2)), now);
            if plenty {
                return 0;
            }
        } else if self.asked_in > 0 && algorithm.covers(&self.asked, &self.words, now) {
            return self.asked_in;
        }
        let words = ahead(chunk);
        ask(&words);
        self.asked = words;
        self.asked_in = progress.open;
        if held { 0 } else { progress.open }
    }

    /// The state as it is was written to a batch.
    pub(crate) fn ask_as_is(&mut self, batch: u64) {
        self.asked.clone_from(&self.words);
        self.sent_in(batch);
    }

    /// The batch that the asked state really travels in: the open one may have been taken since.
    pub(crate) fn sent_in(&mut self, batch: u64) {
        self.asked_in = batch;
        self.written = true;
    }

    fn learn(&mut self, progress: Progress) {
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

    /// Charges one unit, and gives what the reply waits for and whether a row was written.
    fn charge(cell: &mut HeapCell, now: Now, progress: Progress) -> (u64, bool) {
        let algorithm = bucket();
        let left = algorithm.probe(&cell.words, now, 1, 0).remaining;
        algorithm.charge_heap(&mut cell.words, now, 1, 0);
        let mut written = false;
        let charged = Charged { units: 1, left, salt: 0 };
        let wait = cell.settle(&algorithm, now, charged, progress, |_| written = true);
        (wait, written)
    }

    #[test]
    fn what_was_charged_in_the_last_second_is_reserved_ahead_of_use() {
        let mut cell = HeapCell::default();
        let now = Now::at(1 << 60);
        // The first charge waits for the disk, and reserves as much again; those that come before it is there wait, too.
        assert_eq!(charge(&mut cell, now, Progress { committed: 0, open: 1 }), (1, true));
        assert_eq!(charge(&mut cell, now, Progress { committed: 0, open: 1 }), (1, false));
        assert_eq!(charge(&mut cell, now, Progress { committed: 0, open: 1 }), (1, true));
        // The more are charged, the more is reserved, to the 64th part of the limit. So ever fewer wait, and then none.
        let (mut waits, mut writes) = (0, 0);
        for batch in 1..=50 {
            let (wait, written) = charge(&mut cell, now, Progress { committed: batch, open: batch + 1 });
            waits += u64::from(wait > 0);
            writes += u64::from(written);
        }
        assert_eq!((waits, writes), (0, 10));
    }

    #[test]
    fn a_cell_that_is_seldom_charged_waits_once_and_has_a_charge_ahead() {
        let mut cell = HeapCell::default();
        for charges in 0..20 {
            let now = Now::at((1 << 60) + charges * 5 * SECOND_NS);
            let (wait, written) = charge(&mut cell, now, Progress { committed: charges, open: charges + 1 });
            assert_eq!((wait > 0, written), (charges == 0, true));
            let owed = |words: &[u64]| 640 - bucket().probe(words, now, 1, 0).remaining;
            let most = cell.reserved().map(owed).max();
            assert_eq!(most, Some(owed(&cell.words) + 1), "a crash wastes one unit");
        }
    }

    #[test]
    fn units_of_the_last_second_are_those_of_two_counts() {
        let mut recent = Recent::default();
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
    fn what_the_disk_does_not_hold_is_not_covered() {
        let mut cell = HeapCell::default();
        let now = Now::at(1 << 60);
        let progress = Progress { committed: 0, open: 1 };
        assert!(!cell.would_hold(&bucket(), now, 1, 0, progress));
        charge(&mut cell, now, progress);
        assert!(!cell.would_hold(&bucket(), now, 1, 0, progress), "asked is not held");
        assert!(cell.would_hold(&bucket(), now, 1, 0, Progress { committed: 1, open: 2 }));
        assert!(!cell.would_hold(&bucket(), now, 2, 0, Progress { committed: 1, open: 2 }));
    }
}
