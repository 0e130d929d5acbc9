//! What this node takes of windows, as its disk has it, for later processes of the node.
//!
//! Units that a window's pool has granted are spent or come back while the window lasts, which may be a
//! month. If a pool has forgotten, every node tells it what the node took, with all that earlier processes of
//! the node did ([`acequia_rights::pool::window`]). So a cell's row says how much all processes of the node
//! may have of each window at most. A call for more leaves when the row that covers its result is on the
//! disk.
//!
//! Withdrawals of earlier processes are told to a pool that remembers since another *generation* than the
//! row's. A pool that remembers since the row's generation knows better: it has what the processes really
//! took, and counts that as spent when a later process calls.

use std::collections::BTreeMap;

use acequia_limits::{CellTag, LimitId};
use acequia_rights::pool::Generation;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{Row, cell::record::CellRecord, journal::WITHDRAWALS};

/// The most that a node may have of a window's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Withdrawal {
    /// The window, by its end on the wall clock, in nanoseconds.
    pub(super) end_ns: u64,
    /// Units that all processes of the node took and did not give back, at most.
    pub(super) units: u64,
    /// The generation since which the pool remembered that was told of all these units; the default if none
    /// was told.
    pub(super) told_in: Generation,
}

/// A cell's row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WithdrawalRow {
    pub(super) limit: LimitId,
    pub(super) tag: CellTag,
    pub(super) windows: Vec<Withdrawal>,
}

/// A withdrawal that was put in line for the disk.
#[derive(Clone, Copy, Debug)]
struct Written {
    end_ns: u64,
    units: u64,
    /// The batch with which it goes to the disk.
    batch: u64,
}

/// Units of a window that the disk must cover.
#[derive(Clone, Copy, Debug)]
struct Wish {
    end_ns: u64,
    units: u64,
}

/// The withdrawals of one cell, by window.
#[derive(Debug, Default)]
pub(super) struct Withdrawals {
    /// Withdrawals of earlier processes.
    before: SmallVec<[Withdrawal; 1]>,
    /// Withdrawals of this process: for each window the last that may be on the disk, and the one after it.
    written: SmallVec<[Written; 2]>,
    /// What the next row must say, if one is needed.
    wish: Option<Wish>,
    has_row: bool,
}

impl WithdrawalRow {
    /// The row of this record.
    pub(super) fn row(&self) -> Row {
        let bytes = postcard::to_allocvec(self).expect("numbers can be written");
        Row { state: Some(CellRecord::of_record(bytes)), ..removed(self.limit, self.tag) }
    }

    pub(super) fn read(row: &Row) -> Option<Self> {
        postcard::from_bytes(row.state.as_ref()?.record()).ok()
    }
}

/// The row that removes a cell's record.
pub(super) const fn removed(limit: LimitId, tag: CellTag) -> Row {
    // Both are hashes.
    Row { limit: WITHDRAWALS, tag: CellTag(limit.0 ^ tag.0), state: None }
}

impl Withdrawals {
    /// The withdrawals in a row.
    pub(super) fn of(windows: Vec<Withdrawal>) -> Self {
        Self { before: SmallVec::from_vec(windows), has_row: true, ..Self::default() }
    }

    /// Forgets windows that ended by this time, and so are over by every wall.
    pub(super) fn forget(&mut self, until_ns: u64) {
        self.before.retain(|withdrawal| withdrawal.end_ns > until_ns);
        self.written.retain(|written| written.end_ns > until_ns);
    }

    /// Whether earlier processes took anything of windows that are not over.
    pub(super) fn has_before(&self) -> bool {
        !self.before.is_empty()
    }

    /// Whether the disk has a row of this cell.
    pub(super) const fn has_row(&self) -> bool {
        self.has_row
    }

    /// What earlier processes took of a window, as far as a pool must be told that remembers since this
    /// generation.
    pub(super) fn before(&self, end_ns: u64, since: Generation) -> u64 {
        let told = |withdrawal: &&Withdrawal| withdrawal.end_ns == end_ns && withdrawal.told_in != since;
        self.before.iter().find(told).map_or(0, |withdrawal| withdrawal.units)
    }

    /// The windows of which earlier processes took, by their ends.
    pub(super) fn ends(&self) -> impl Iterator<Item = u64> + '_ {
        self.before.iter().map(|withdrawal| withdrawal.end_ns)
    }

    /// The most that all processes have, if this one has `units`.
    pub(super) fn with_before(&self, end_ns: u64, units: u64) -> u64 {
        let before = self.before.iter().find(|withdrawal| withdrawal.end_ns == end_ns);
        before.map_or(0, |withdrawal| withdrawal.units).saturating_add(units)
    }

    /// Whether the disk covers these units of a window. If not, the next row will, with `ahead` more.
    pub(super) fn is_written(&mut self, end_ns: u64, units: u64, ahead: u64, committed: u64) -> bool {
        let covers = |written: &&Written| written.end_ns == end_ns && written.units >= units;
        let mut covering = self.written.iter().filter(covers).map(|written| written.batch);
        let with_ahead = units.saturating_add(ahead);
        // A row ahead, so that the next call need not wait.
        if covering.clone().next().is_none() || self.most(end_ns) < with_ahead {
            self.wish = Some(Wish { end_ns, units: with_ahead });
        }
        covering.any(|batch| batch <= committed)
    }

    /// Whether another row is needed.
    pub(super) const fn wants_row(&self) -> bool {
        self.wish.is_some()
    }

    /// The most units of a window that were put in line.
    fn most(&self, end_ns: u64) -> u64 {
        let of_it = self.written.iter().filter(|written| written.end_ns == end_ns);
        of_it.map(|written| written.units).max().unwrap_or(0)
    }

    /// The next row's windows, if one is needed. `told_in` gives for a window the generation since which a
    /// pool remembers that was told of all withdrawals.
    pub(super) fn next(&mut self, told_in: impl Fn(u64) -> Generation) -> Option<Vec<Withdrawal>> {
        let Wish { end_ns, units } = self.wish.take()?;
        let mut own: BTreeMap<u64, u64> = BTreeMap::from([(end_ns, units.max(self.most(end_ns)))]);
        for written in &self.written {
            own.entry(written.end_ns).or_insert(self.most(written.end_ns));
        }
        let before = self.before.iter().filter(|withdrawal| !own.contains_key(&withdrawal.end_ns)).copied();
        let mut windows: Vec<Withdrawal> = before.collect();
        windows.extend(own.iter().map(|(end_ns, units)| Withdrawal {
            end_ns: *end_ns,
            units: *units,
            told_in: told_in(*end_ns),
        }));
        Some(windows)
    }

    /// Notes that such a row goes with a batch. Entries below what is on the disk by now are dropped.
    pub(super) fn goes(&mut self, windows: &[Withdrawal], batch: u64, committed: u64) {
        self.has_row = true;
        for Withdrawal { end_ns, units, .. } in windows.iter().copied() {
            let is_before =
                |withdrawal: &Withdrawal| (withdrawal.end_ns, withdrawal.units) == (end_ns, units);
            let is_known = |written: &Written| (written.end_ns, written.units) == (end_ns, units);
            if !self.before.iter().any(is_before) && !self.written.iter().any(is_known) {
                self.written.push(Written { end_ns, units, batch });
            }
        }
        let on_disk: Vec<Written> =
            self.written.iter().filter(|written| written.batch <= committed).copied().collect();
        self.written.retain(|written| {
            !on_disk.iter().any(|other| other.end_ns == written.end_ns && other.units > written.units)
        });
    }
}

#[cfg(test)]
mod tests {
    use acequia_rights::pool::Taker;

    use super::*;

    fn generation(number: u64) -> Generation {
        Generation { number, by: Taker { node: 1, process_number: 1, call: number } }
    }

    #[test]
    fn a_row_on_disk_covers_its_call_and_the_next_one() {
        let mut withdrawals = Withdrawals::default();
        assert!(!withdrawals.is_written(10, 100, 100, 0), "nothing is");
        let row = withdrawals.next(|_| generation(1)).expect("a row");
        assert_eq!(row, [Withdrawal { end_ns: 10, units: 200, told_in: generation(1) }]);
        withdrawals.goes(&row, 1, 0);
        assert!(!withdrawals.is_written(10, 100, 100, 0), "it is on its way");
        assert_eq!(withdrawals.next(|_| generation(1)), None, "once");
        assert!(withdrawals.is_written(10, 100, 100, 1));
        // The next call needs no row, and has one written for the call after it.
        assert!(withdrawals.is_written(10, 200, 100, 1));
        let row = withdrawals.next(|_| generation(1)).expect("a row");
        assert_eq!(row[0].units, 300);
        withdrawals.goes(&row, 2, 1);
        assert!(withdrawals.is_written(10, 200, 50, 1), "the first is there still");
        assert!(!withdrawals.is_written(10, 300, 0, 1) && withdrawals.is_written(10, 300, 0, 2));
        for batch in 4..100 {
            let units = batch * 100;
            assert!(!withdrawals.is_written(10, units, 0, batch - 1));
            let row = withdrawals.next(|_| generation(1)).expect("a row");
            withdrawals.goes(&row, batch, batch - 1);
        }
        assert!(withdrawals.written.len() <= 2, "{:?}", withdrawals.written);
    }

    #[test]
    fn an_earlier_withdrawal_is_reported_in_a_new_generation_and_kept() {
        let before = Withdrawal { end_ns: 10, units: 70, told_in: generation(1) };
        let mut withdrawals =
            Withdrawals::of(vec![before, Withdrawal { end_ns: 20, units: 5, told_in: generation(1) }]);
        assert_eq!(withdrawals.before(10, generation(1)), 0, "the pool knows");
        assert_eq!(withdrawals.before(10, generation(2)), 70);
        let needs = withdrawals.with_before(10, 30);
        assert!(!withdrawals.is_written(10, needs, 0, 9));
        let mut row = withdrawals.next(|_| generation(2)).expect("a row");
        row.sort_by_key(|withdrawal| withdrawal.end_ns);
        assert_eq!((row[0].units, row[0].told_in), (100, generation(2)));
        assert_eq!((row[1].units, row[1].told_in), (5, generation(1)), "as it was");
        withdrawals.goes(&row, 1, 0);
        withdrawals.forget(15);
        assert!(withdrawals.has_before() && withdrawals.before(10, generation(2)) == 0);
        withdrawals.forget(20);
        assert!(!withdrawals.has_before() && withdrawals.has_row());
    }

    #[test]
    fn a_withdrawal_record_reads_back_as_written_and_garbage_is_refused() {
        let windows = vec![Withdrawal { end_ns: u64::MAX, units: 7, told_in: generation(3) }];
        let record = WithdrawalRow { limit: LimitId(9), tag: CellTag(12), windows };
        let row = record.row();
        assert_eq!((row.limit, row.tag), (WITHDRAWALS, CellTag(9 ^ 12)));
        assert_eq!(WithdrawalRow::read(&row), Some(record));
        let garbage = Row { state: Some(CellRecord::of_record(vec![255; 40])), ..row };
        assert_eq!(WithdrawalRow::read(&garbage), None);
    }
}
