//! The cells of a node that lease from their pools, and when each is rebalanced.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::Now;

use super::{cell::CellLease, held::HeldByLimit, withdrawals::Withdrawals};
use crate::{regions::CellKey, settings::SETTINGS};

/// The leases by cell. A cell that is being rebalanced, or has an answer, is taken out meanwhile.
#[derive(Debug, Default)]
pub(super) struct LeasedCells {
    leases: BTreeMap<CellKey, CellLease>,
    /// When each cell is rebalanced next: steady clock.
    due: BTreeSet<(u64, CellKey)>,
    /// What all cells held at their last rebalance.
    pub(super) held: HeldByLimit,
    /// Cells whose pool had nothing for them: other regions may have.
    dry: BTreeSet<CellKey>,
    /// Cells that may have something to give back; `None` unless the node stops.
    leaving: Option<BTreeSet<CellKey>>,
}

impl LeasedCells {
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    pub(super) fn get(&self, key: CellKey) -> Option<&CellLease> {
        self.leases.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: CellKey) -> Option<&mut CellLease> {
        self.leases.get_mut(&key)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (CellKey, &mut CellLease)> {
        self.leases.iter_mut().map(|(key, lease)| (*key, lease))
    }

    pub(super) fn keys(&self) -> Vec<CellKey> {
        self.leases.keys().copied().collect()
    }

    /// Takes a cell out.
    pub(super) fn take(&mut self, key: CellKey) -> Option<CellLease> {
        self.leases.remove(&key)
    }

    /// Puts a cell back, which is rebalanced when it was due before.
    pub(super) fn put_back(&mut self, key: CellKey, lease: CellLease) {
        self.leases.insert(key, lease);
    }

    /// Puts a cell back that was rebalanced, and is again after this long.
    pub(super) fn put_back_for(&mut self, key: CellKey, mut lease: CellLease, after_ns: u64, now: Now) {
        lease.due_ns = now.steady_ns + after_ns;
        self.due.insert((lease.due_ns, key));
        self.leases.insert(key, lease);
    }

    /// A cell of which earlier processes took.
    pub(super) fn restore(&mut self, key: CellKey, withdrawals: Withdrawals, now: Now) {
        self.leases.insert(key, CellLease::after(withdrawals, now.steady_ns));
        self.due.insert((now.steady_ns, key));
    }

    /// A cell calls: it is rebalanced now, or soon if that was done just before.
    pub(super) fn wake(&mut self, key: CellKey, now_ns: u64) {
        if let Some(lease) = self.leases.get(&key) {
            let apart_ns =
                if lease.is_quiet(now_ns) { SETTINGS.pool.apart_in_vain_ns } else { SETTINGS.pool.apart_ns };
            let due_ns = (lease.rebalanced_ns + apart_ns).clamp(now_ns, lease.due_ns.max(now_ns));
            return self.rebalance_at(key, due_ns);
        }
        if self.leases.len() < SETTINGS.pool.cells_max {
            self.leases.insert(key, CellLease::new(now_ns));
            self.due.insert((now_ns, key));
        }
    }

    pub(super) fn rebalance_at(&mut self, key: CellKey, due_ns: u64) {
        if let Some(lease) = self.leases.get_mut(&key) {
            self.due.remove(&(lease.due_ns, key));
            lease.due_ns = due_ns;
            self.due.insert((due_ns, key));
        }
    }

    /// When the next cell is due.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| *due_ns)
    }

    /// The next cell that is due now, and then not any more.
    pub(super) fn pop_due(&mut self, now: Now) -> Option<CellKey> {
        if self.next_due_ns()? > now.steady_ns {
            return None;
        }
        self.due.pop_first().map(|(_, key)| key)
    }

    /// Other regions may have what a cell's pool has not.
    pub(super) fn note_dry(&mut self, key: CellKey) {
        if self.dry.len() < SETTINGS.pool.rebalances_max {
            self.dry.insert(key);
        }
    }

    /// The cells whose pool had nothing for them, since the last call of this function.
    pub(super) fn take_dry(&mut self) -> Vec<CellKey> {
        std::mem::take(&mut self.dry).into_iter().collect()
    }

    /// The node stops: all cells give back what they hold.
    pub(super) fn leave(&mut self, now_ns: u64) {
        let keys = self.keys();
        for key in &keys {
            self.rebalance_at(*key, now_ns);
        }
        self.leaving = Some(keys.into_iter().collect());
    }

    pub(super) const fn are_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Notes that a rebalanced cell has nothing more to give back, or cannot give back.
    pub(super) fn left(&mut self, key: CellKey) {
        if let Some(leaving) = &mut self.leaving {
            leaving.remove(&key);
        }
    }

    /// Whether all that could be given back is, since the node began to stop.
    pub(super) fn have_left(&self) -> bool {
        self.leaving.as_ref().is_none_or(BTreeSet::is_empty)
    }
}
