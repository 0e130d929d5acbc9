//! The units that every incarnation has charged under a limit in total, and those that it gave back: for each
//! two counters, which only grow.

use acequia_limits::LimitId;
use acequia_rights::{Incarnation, MemberId};
use crdts::{
    CmRDT, Dot,
    pncounter::{Dir, Op},
};

use super::{Sharing, outbox::Topic, wire::Entry};
use crate::{Catalogue, Node};

impl Sharing {
    /// Counts what was charged here since the last time, and sends it once it is on the disk: a process that
    /// goes on with less than it sent would not be heard.
    pub(super) fn count_usage(&mut self, node: &Node, catalogue: &Catalogue) {
        let me = self.me();
        let mut changed = Vec::new();
        for (slot, spent, returned) in node.take_spent() {
            let Some(limit) = catalogue.id(slot) else { continue };
            let counter = self.usage.entry(limit).or_default();
            let op = counter.inc_many(me, spent);
            let charged = op.dot.counter;
            self.charged.insert((me, limit), charged);
            counter.apply(op);
            // A crash may have lost a charge made shortly before it, but not the record by which the charge
            // is given back.
            let before = self.returned.get(&limit).copied().unwrap_or(0);
            let returned = returned.min(charged - before.min(charged));
            if returned > 0 {
                let op = counter.dec_many(me, returned);
                self.returned.insert(limit, op.dot.counter);
                counter.apply(op);
            }
            changed.push(limit);
        }
        if changed.is_empty() {
            return;
        }
        let own: Vec<(LimitId, u64, u64)> =
            self.charged_by(me).map(|(limit, units)| (limit, units, self.returned_of(limit))).collect();
        let Ok(bytes) = postcard::to_allocvec(&own) else { return };
        self.charged_in = node.write_record(crate::journal::USAGE, bytes);
        for limit in changed {
            self.tell_usage(limit, None);
        }
    }

    /// Sends one member, or all, what this node charged under a limit.
    pub(super) fn tell_usage(&mut self, limit: LimitId, to: Option<MemberId>) {
        let (incarnation, after_batch) = (self.me(), self.charged_in);
        let Some(spent) = self.charged.get(&(incarnation, limit)).copied() else { return };
        let refunded = self.returned_of(limit);
        for (_, peer) in self.peers.iter_mut().filter(|(region, _)| to.is_none_or(|to| to == **region)) {
            let entry = Entry::Usage { limit, incarnation, spent, refunded };
            peer.outbox.tell(Topic::Usage(limit, incarnation), entry, after_batch);
        }
    }

    fn returned_of(&self, limit: LimitId) -> u64 {
        self.returned.get(&limit).copied().unwrap_or(0)
    }

    pub(crate) fn charged_in(&self) -> u64 {
        self.charged_in
    }

    pub(crate) fn charged(&self, incarnation: Incarnation, limit: LimitId) -> u64 {
        self.charged.get(&(incarnation, limit)).copied().unwrap_or(0)
    }

    /// The units that an incarnation said it charged, by limit.
    pub(super) fn charged_by(&self, incarnation: Incarnation) -> impl Iterator<Item = (LimitId, u64)> + '_ {
        let all = (incarnation, LimitId(0))..=(incarnation, LimitId(u128::MAX));
        self.charged.range(all).map(|((_, limit), units)| (*limit, *units))
    }

    /// Restores this node's charges from the disk.
    pub(crate) fn take_up_usage(&mut self, charged: Vec<(LimitId, u64, u64)>) {
        let me = self.me();
        for (limit, units, returned) in charged {
            let counter = self.usage.entry(limit).or_default();
            counter.apply(Op { dot: Dot::new(me, units), dir: Dir::Pos });
            counter.apply(Op { dot: Dot::new(me, returned.min(units)), dir: Dir::Neg });
            self.charged.insert((me, limit), units);
            self.returned.insert(limit, returned.min(units));
        }
    }
}
