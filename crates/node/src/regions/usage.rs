//! The units that every incarnation has charged under a limit in total, and those that it gave back: for each
//! two counters, which only grow.

use std::collections::BTreeMap;

use acequia_limits::{LimitId, Now};
use acequia_rights::{Incarnation, MemberId};
use crdts::{
    CmRDT, Dot, PNCounter,
    pncounter::{Dir, Op},
};

use super::{Sharing, outbox::Topic, wire::FrameEntry};
use crate::{Catalogue, Node, settings::SETTINGS};

/// What incarnations have charged and given back.
#[derive(Debug, Default)]
pub(super) struct ChargeTotals {
    counters: BTreeMap<LimitId, PNCounter<Incarnation>>,
    /// When to count next: steady clock.
    count_ns: u64,
    /// The rows of those counters: each incarnation's total of charged units. This node's own rows are on the
    /// disk.
    charged: BTreeMap<(Incarnation, LimitId), u64>,
    /// How much of its charges this node has given back in total: on the disk, too.
    returned: BTreeMap<LimitId, u64>,
    /// The batch in which this node's own rows were last written.
    charged_in: u64,
}

impl ChargeTotals {
    /// Counts what this node charged under a limit since the last time, and what it gave back.
    fn count(&mut self, me: Incarnation, limit: LimitId, spent: u64, returned: u64) {
        let counter = self.counters.entry(limit).or_default();
        let op = counter.inc_many(me, spent);
        let charged = op.dot.counter;
        self.charged.insert((me, limit), charged);
        counter.apply(op);
        // A crash may have lost a charge made shortly before it, but not the record by which the charge is
        // given back.
        let before = self.returned.get(&limit).copied().unwrap_or(0);
        let returned = returned.min(charged - before.min(charged));
        if returned > 0 {
            let op = counter.dec_many(me, returned);
            self.returned.insert(limit, op.dot.counter);
            counter.apply(op);
        }
    }

    /// Takes the totals that an incarnation has charged, and given back, under a limit.
    pub(super) fn learn(&mut self, incarnation: Incarnation, limit: LimitId, spent: u64, returned: u64) {
        self.set_totals(incarnation, limit, spent, returned);
        let charged = self.charged.entry((incarnation, limit)).or_default();
        *charged = spent.max(*charged);
    }

    /// Restores what this node charged from the disk.
    fn restore(&mut self, me: Incarnation, limit: LimitId, spent: u64, returned: u64) {
        self.set_totals(me, limit, spent, returned.min(spent));
        self.charged.insert((me, limit), spent);
        self.returned.insert(limit, returned.min(spent));
    }

    fn set_totals(&mut self, incarnation: Incarnation, limit: LimitId, spent: u64, returned: u64) {
        let counter = self.counters.entry(limit).or_default();
        for (total, dir) in [(spent, Dir::Pos), (returned, Dir::Neg)] {
            counter.apply(Op { dot: Dot::new(incarnation, total), dir });
        }
    }

    fn returned(&self, limit: LimitId) -> u64 {
        self.returned.get(&limit).copied().unwrap_or(0)
    }

    fn charged(&self, incarnation: Incarnation, limit: LimitId) -> Option<u64> {
        self.charged.get(&(incarnation, limit)).copied()
    }

    /// The units that an incarnation said it charged, by limit.
    pub(super) fn charged_by(&self, incarnation: Incarnation) -> impl Iterator<Item = (LimitId, u64)> + '_ {
        let all = (incarnation, LimitId(0))..=(incarnation, LimitId(u128::MAX));
        self.charged.range(all).map(|((_, limit), units)| (*limit, *units))
    }
}

impl Sharing {
    /// From time to time, counts what was charged here and sends it once it is on the disk: a process that
    /// goes on with less than it sent would not be heard.
    pub(super) fn count_usage(&mut self, node: &Node, catalogue: &Catalogue, now: Now) {
        if now.steady_ns < self.usage.count_ns {
            return;
        }
        self.usage.count_ns = now.steady_ns + SETTINGS.sharing.usage_ns;
        let me = self.me();
        let mut changed = Vec::new();
        for (slot, spent, returned) in node.take_spent() {
            let Some(limit) = catalogue.id(slot) else { continue };
            self.usage.count(me, limit, spent, returned);
            changed.push(limit);
        }
        if changed.is_empty() {
            return;
        }
        let own: Vec<(LimitId, u64, u64)> = self
            .usage
            .charged_by(me)
            .map(|(limit, units)| (limit, units, self.usage.returned(limit)))
            .collect();
        let Ok(bytes) = postcard::to_allocvec(&own) else { return };
        self.usage.charged_in = node.write_record(crate::journal::USAGE, bytes);
        for limit in changed {
            self.tell_usage(limit, None);
        }
    }

    /// Sends one member, or all, what this node charged under a limit.
    pub(super) fn tell_usage(&mut self, limit: LimitId, to: Option<MemberId>) {
        let (incarnation, after_batch) = (self.me(), self.usage.charged_in);
        let Some(spent) = self.usage.charged(incarnation, limit) else { return };
        let refunded = self.usage.returned(limit);
        for (_, peer) in self.peers.iter_mut().filter(|(region, _)| to.is_none_or(|to| to == **region)) {
            let entry = FrameEntry::Usage { limit, incarnation, spent, refunded };
            peer.outbox.tell(Topic::Usage(limit, incarnation), entry, after_batch);
        }
    }

    pub(crate) fn charged_in(&self) -> u64 {
        self.usage.charged_in
    }

    pub(crate) fn charged(&self, incarnation: Incarnation, limit: LimitId) -> u64 {
        self.usage.charged(incarnation, limit).unwrap_or(0)
    }

    /// Units charged under a limit, less those given back, over all regions.
    pub(crate) fn usage_of(&self, limit: LimitId) -> u128 {
        let counter = self.usage.counters.get(&limit);
        counter.map_or(0, |counter| counter.read().to_string().parse().unwrap_or(0))
    }

    /// Restores this node's charges from the disk.
    pub(crate) fn take_up_usage(&mut self, charged: Vec<(LimitId, u64, u64)>) {
        let me = self.me();
        for (limit, units, returned) in charged {
            self.usage.restore(me, limit, units, returned);
        }
    }
}
