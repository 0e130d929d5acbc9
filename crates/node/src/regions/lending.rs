//! What this node has lent: the numbers of its loans, when they are renewed, and which must come back.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::Now;
use acequia_rights::mutation::{Mutation, mutated};
use smallvec::SmallVec;

use super::{CellKey, Sharing, outbox::Topic, wire::FrameEntry};
use crate::{Catalogue, Node, cell::locked_cell::LockedCell, journal::HeapCell, settings::SETTINGS};

/// What this node has lent.
#[derive(Debug, Default)]
pub(super) struct Lending {
    pub(super) numbers: LoanNumbers,
    /// Cells whose loans rest on what is held of the region's pool, since more is lent than stands. The value
    /// says until when such loans may be renewed: steady clock.
    backed: BTreeMap<CellKey, u64>,
    /// Cells that have lent more than their own part now covers.
    pub(super) over_lent: BTreeSet<CellKey>,
}

/// Loan numbers: reserved on disk in chunks, each used once.
#[derive(Debug, Default)]
pub(super) struct LoanNumbers {
    next: u64,
    pub(super) reserved: u64,
}

impl Lending {
    pub(super) fn new(loans: u64) -> Self {
        Self { numbers: LoanNumbers { next: loans, reserved: loans }, ..Self::default() }
    }

    /// Notes until when the loans of a cell that rest on the pool may be renewed; `None` if none does.
    pub(super) fn set_backed(&mut self, key: CellKey, renews_until_ns: Option<u64>) {
        match renews_until_ns {
            Some(until_ns) => self.backed.insert(key, until_ns),
            None => self.backed.remove(&key),
        };
    }

    /// A version is acknowledged only once no cell has lent more than its own part covers.
    pub(super) fn conforms(&self) -> bool {
        self.over_lent.is_empty() || mutated(Mutation::ConformAtOnce)
    }
}

impl LoanNumbers {
    /// The next number, reserved on disk in the open batch or before.
    pub(super) fn take(&mut self, node: &Node) -> u64 {
        self.next += 1;
        if self.next > self.reserved {
            self.reserved = self.next + SETTINGS.sharing.loan_numbers_ahead;
            node.remember(|memory| memory.loans = self.reserved);
        }
        self.next
    }
}

/// A loan that rests on a hold on the region's pool ends before that hold: it is renewed until this time, and
/// not after it.
fn may_still_renew(renews_until_ns: u64, now: Now) -> bool {
    now.steady_ns < renews_until_ns || mutated(Mutation::LeaseRenewsToTheEnd)
}

impl Sharing {
    /// Stops renewing loans that rest on a hold on the region's pool, if that hold ends soon. This comes
    /// before each renewal: while a peer cannot be told of so many loans, nothing is renewed for it.
    pub(super) fn freeze_backed(&mut self, node: &Node, catalogue: &Catalogue, now: Now) {
        let due = self.lending.backed.iter().filter(|(_, until_ns)| !may_still_renew(**until_ns, now));
        let due: SmallVec<[CellKey; 4]> = due.map(|(key, _)| *key).collect();
        for key in due {
            let until_ns = LockedCell { node, catalogue, key, now, which: None }.at(false, |_, cell| {
                let HeapCell { account: Some(account), .. } = cell else { return None };
                if !may_still_renew(account.renews_until_ns()?, now) {
                    account.freeze_all(&mut node.sessions_mut());
                }
                account.renews_until_ns()
            });
            self.lending.set_backed(key, until_ns.flatten());
        }
    }

    /// Renews the loans to every peer whose heartbeat was heard since the last time, a few times a second.
    pub(super) fn renew(&mut self, node: &Node, now: Now) {
        if self.process.restored_disk {
            return;
        }
        let mut sessions = node.sessions_mut();
        for peer in self.peers.values_mut() {
            let is_early = now.steady_ns < peer.renewed_ns + SETTINGS.sharing.pulse_ns;
            if is_early
                || !peer.is_reached(now.steady_ns, SETTINGS.sharing.reach_ns)
                || self.versions.closed(peer.incarnation)
            {
                continue;
            }
            if let Some(session) = sessions.get_mut(&peer.incarnation)
                && let Some(renew) = session.renew(now.steady_ns)
            {
                peer.renewed_ns = now.steady_ns;
                peer.outbox.tell(Topic::Renew, FrameEntry::Renew(renew), 0);
            }
        }
    }
}
