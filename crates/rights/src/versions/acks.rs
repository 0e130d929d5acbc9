//! Acknowledgements: what an incarnation promises, and when all have promised.

use acequia_limits::Now;
use serde::{Deserialize, Serialize};

use super::{Allocation, Until, VersionId, Versions};
use crate::{
    identity::Incarnation,
    mutation::{Mutation, mutated},
};

/// The most by which the time in an acknowledgement may be ahead of a node's wall clock, two days: no clock
/// is further off.
pub const ACK_AHEAD_NS_MAX: u64 = 2 * 86_400 * 1_000_000_000;

/// An incarnation's word that it conforms to a version. A register that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ack {
    /// The version whose budgets the incarnation conforms to.
    pub version_id: VersionId,
    /// The version's allocation, whose shares the incarnation conforms to.
    pub allocation: VersionId,
    /// Wall time: no window that starts at this time or later was used before the allocation was in the
    /// incarnation's chain.
    pub from_wall_ns: u64,
    /// The authority that made the version, in case two nodes act as the authority of one epoch.
    pub authority: Incarnation,
}

/// The result of hearing an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The acknowledgement says more than was known.
    New,
    /// Nothing new.
    Known,
    /// No allocation in the chain asks this incarnation, or its clock is days ahead. It will send the
    /// acknowledgement again.
    Unasked,
}

impl Ack {
    /// An acknowledgement counts for the very allocation that it names, and for no earlier one (rule 4).
    fn counts_for(&self, allocation: &Allocation) -> bool {
        let names_it =
            allocation.version_id == self.allocation && allocation.authority == Some(self.authority);
        names_it || (mutated(Mutation::LaterAckCounts) && allocation.version_id <= self.allocation)
    }
}

/// The promised time allows for two clock errors. The clock may have been ahead before a restart, and be
/// behind now. So may the clock of a fenced incarnation, which may have used windows that start up to ε after
/// it ended.
fn clock_margin_ns(clock_error_ns: u64) -> u64 {
    if mutated(Mutation::NoClockMargin) { 0 } else { 2 * clock_error_ns }
}

impl Versions {
    /// Whether an acknowledgement of another incarnation counts: an allocation in the chain asks for it.
    pub fn asks(&self, incarnation: Incarnation) -> bool {
        incarnation != self.kept.me && self.kept.chain.iter().any(|allocation| allocation.asks(incarnation))
    }

    /// Hears an incarnation's acknowledgement, from itself or by way of others.
    pub fn learn_ack(&mut self, incarnation: Incarnation, ack: Ack, now: Now) -> Learned {
        if !self.asks(incarnation) || ack.from_wall_ns.saturating_sub(now.wall_ns) > ACK_AHEAD_NS_MAX {
            return Learned::Unasked;
        }
        self.join(incarnation, ack, now)
    }

    /// Joins an acknowledgement with what is known of the incarnation.
    pub(super) fn join(&mut self, incarnation: Incarnation, ack: Ack, now: Now) -> Learned {
        let known = self.kept.acks.entry(incarnation).or_insert(ack);
        let more = Ack {
            from_wall_ns: ack.from_wall_ns.max(known.from_wall_ns),
            ..if ack.version_id > known.version_id { ack } else { *known }
        };
        let new = more != *known;
        *known = more;
        // An earlier acknowledgement that arrives late may still count for its own allocation.
        let credited = self.credit(incarnation, ack) | self.credit(incarnation, more);
        if !new && !credited {
            return Learned::Known;
        }
        self.supersede(now);
        self.revision += 1;
        Learned::New
    }

    /// Counts an acknowledgement for the very allocation that it names.
    pub(super) fn credit(&mut self, incarnation: Incarnation, ack: Ack) -> bool {
        let mut credited = false;
        for allocation in &mut self.kept.chain {
            if ack.counts_for(allocation) && allocation.asks(incarnation) {
                let from = allocation.acked.entry(incarnation).or_insert_with(|| {
                    credited = true;
                    0
                });
                credited |= *from < ack.from_wall_ns;
                *from = ack.from_wall_ns.max(*from);
            }
        }
        credited
    }

    /// Supersedes all allocations older than the newest agreed one.
    pub(super) fn supersede(&mut self, now: Now) {
        let Some(agreed) = (0..self.kept.chain.len()).rev().find(|&at| self.is_agreed(at)) else { return };
        let allocation = &self.kept.chain[agreed];
        let windows_wall_ns = allocation.acked.values().copied().max().unwrap_or(0);
        for allocation in &mut self.kept.chain[..agreed] {
            if allocation.until == Until::Agreed {
                allocation.until = Until::Superseded { windows_wall_ns, steady_ns: now.steady_ns };
            }
        }
    }

    /// Whether every member and every leaver of an allocation has acknowledged that very allocation (rule 4).
    pub(super) fn is_agreed(&self, at: usize) -> bool {
        let allocation = &self.kept.chain[at];
        let mut awaited = allocation.asked().filter(|incarnation| self.must_acknowledge(*incarnation, at));
        allocation.split.is_some() && awaited.all(|incarnation| allocation.acked.contains_key(&incarnation))
    }

    /// An allocation waits for all of its members and leavers: also for those whose share it does not lower,
    /// and for the survivors of a fenced incarnation. Any of them may have skipped a version.
    fn must_acknowledge(&self, incarnation: Incarnation, at: usize) -> bool {
        let allocation = &self.kept.chain[at];
        let is_lowered = || {
            let before = at.checked_sub(1).and_then(|before| self.kept.chain.get(before));
            let rate = |allocation: &Allocation| allocation.part(incarnation, 1 << 40, 0, true).rate;
            before.is_none_or(|before| rate(before) > rate(allocation))
        };
        !(mutated(Mutation::RaiseBeforeAck)
            || (mutated(Mutation::AskLoweredOnly) && !is_lowered())
            || (mutated(Mutation::SkipSurvivorAck) && !allocation.fenced.is_empty()))
    }

    /// The version that this node should acknowledge once it conforms: it lends nothing beyond its new
    /// shares, has dropped the loans that it held from closed incarnations, and uses [`Versions::share`].
    pub fn ack_due(&self) -> Option<VersionId> {
        let version = self.version()?;
        let asked = self.kept.chain.last().is_some_and(|allocation| allocation.asks(self.kept.me));
        let said = self.kept.own.is_some_and(|own| {
            (own.version_id, own.allocation, own.authority)
                == (version.version_id, version.allocation, version.authority)
        });
        (asked && !said).then_some(version.version_id)
    }

    /// Records that this node conforms to the version `version_id`, and returns whether that version was due.
    /// `wall_ns` is the latest time that its wall clock ever showed, before restarts too if the node knows.
    /// The acknowledgement becomes [`Versions::own_ack`] once the record is stored.
    pub fn conform(&mut self, version_id: VersionId, wall_ns: u64) -> bool {
        if self.ack_due() != Some(version_id) {
            return false;
        }
        let Some(version) = self.version() else { return false };
        // Spared windows use older allocations, even if the clock was further ahead at the adoption than it
        // may be.
        let spared_ns = self.kept.spared.values().map(|spared| spared.before_wall_ns).max().unwrap_or(0);
        let margin_ns = clock_margin_ns(version.clock_error_ns);
        let latest_ns = wall_ns.max(spared_ns).saturating_add(margin_ns + 1);
        let (allocation, authority) = (version.allocation, version.authority);
        let from_wall_ns = match self.kept.own {
            // The allocation is unchanged, so the promised time holds.
            Some(own) if own.allocation == allocation && own.authority == authority => own.from_wall_ns,
            Some(own) => own.from_wall_ns.max(latest_ns),
            None => latest_ns,
        };
        self.kept.own = Some(Ack { version_id, allocation, from_wall_ns, authority });
        self.revision += 1;
        self.own_revision = self.revision;
        true
    }

    /// The acknowledgement that this node sends to everybody: its latest that is on disk (rule 3).
    pub fn own_ack(&self) -> Option<Ack> {
        if mutated(Mutation::AckBeforeDurable) { self.kept.own } else { self.own_stored }
    }

    /// The known acknowledgements, to be passed on.
    pub fn acks(&self) -> impl Iterator<Item = (Incarnation, Ack)> + '_ {
        self.kept.acks.iter().map(|(&incarnation, &ack)| (incarnation, ack))
    }
}
