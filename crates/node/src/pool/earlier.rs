//! What this process knows of earlier ones' withdrawals of windows, from their rows
//! ([`super::withdrawals`]).

use std::collections::BTreeMap;

use acequia_limits::{CellTag, LimitId, Now};
use acequia_rights::mutation::{Mutation, mutated};

use super::{
    Leases,
    cell::CellLease,
    group_of,
    withdrawals::{self, WithdrawalRow, Withdrawals},
};
use crate::{Catalogue, Node, Row, lock, regions::CellKey};

/// Withdrawals of earlier processes that no cell's lease has.
#[derive(Debug)]
pub(super) struct EarlierWithdrawals {
    /// From when on withdrawals of windows are known: wall clock, in microseconds.
    pub(super) known_from_us: u64,
    /// Withdrawals under limits that are not in force, or of cells without room.
    of_no_lease: BTreeMap<(LimitId, CellTag), Withdrawals>,
}

impl EarlierWithdrawals {
    /// Nothing is known from before the time at which this process began.
    pub(super) const fn unknown_before(begun_us: u64) -> Self {
        Self { known_from_us: begun_us, of_no_lease: BTreeMap::new() }
    }

    /// Takes those of a cell, which has a lease again.
    pub(super) fn take(&mut self, limit: LimitId, tag: CellTag) -> Option<Withdrawals> {
        self.of_no_lease.remove(&(limit, tag))
    }
}

impl Leases {
    /// Restores the withdrawals of earlier processes. Returns whether all rows can be read.
    fn restore(&mut self, node: &Node, rows: Vec<Row>, now: Now) -> bool {
        let (mut knows_all, mut reads_all) = (true, true);
        for row in rows {
            let Some(WithdrawalRow { limit, tag, windows }) = WithdrawalRow::read(&row) else {
                reads_all = false;
                node.push_row(Row { state: None, ..row });
                continue;
            };
            let mut withdrawals = Withdrawals::of(windows);
            withdrawals.forget(self.adopted.clocks.over_ns(now));
            if !withdrawals.has_before() {
                node.push_row(withdrawals::removed(limit, tag));
                continue;
            }
            let Some(slot) = node.slot_of(limit).filter(|_| node.knows(limit)) else {
                // No pool of it can be told before the limit is in force again.
                knows_all = false;
                self.earlier.of_no_lease.insert((limit, tag), withdrawals);
                continue;
            };
            let key = CellKey { slot, tag };
            self.groups.of_mut(group_of(tag)).cells.insert(key);
            self.cells.restore(key, withdrawals, now);
        }
        if let Some(knows_from_us) = self.home.knows_from_us.filter(|_| knows_all && reads_all) {
            self.earlier.known_from_us = knows_from_us;
        }
        reads_all
    }

    /// Gives up a cell for which there is no room: this process holds nothing of it. As for a limit that is
    /// not in force, no pool is told what earlier processes took of its windows. So a generation that does
    /// not know the withdrawals counts all windows that began before this process as spent, and waits for
    /// nobody because of them.
    pub(super) fn know_nothing_of(
        &mut self,
        node: &Node,
        catalogue: &Catalogue,
        key: CellKey,
        lease: CellLease,
    ) {
        let (limit, withdrawals) = (catalogue.id(key.slot), lease.withdrawals);
        if withdrawals.has_before() {
            self.earlier.known_from_us = self.home.begun_us;
            self.earlier.of_no_lease.extend(limit.map(|limit| ((limit, key.tag), withdrawals)));
        } else if let Some(limit) = limit.filter(|_| withdrawals.has_row()) {
            node.push_row(withdrawals::removed(limit, key.tag));
        }
    }
}

impl Node {
    /// Takes the rows kept under [`WITHDRAWALS`](crate::journal::WITHDRAWALS): the withdrawals of earlier
    /// processes. To be called once, when the limits are in force, and before any call is made. Returns
    /// whether all rows can be read. If not, neither this process nor later ones know what those rows said of
    /// open windows: [`RegionSetup::knows_from_us`](super::RegionSetup::knows_from_us) is `begun_us` from then on,
    /// and must be on the disk before any row is.
    pub fn restore_withdrawals(&self, rows: Vec<Row>, now: Now) -> bool {
        let Some(leases) = &self.leases else { return true };
        lock(leases).restore(self, remembered(rows), self.not_before(now))
    }
}

/// A process knows what earlier ones took of windows.
fn remembered(rows: Vec<Row>) -> Vec<Row> {
    if mutated(Mutation::LeaseForgetsWithdrawals) { Vec::new() } else { rows }
}
