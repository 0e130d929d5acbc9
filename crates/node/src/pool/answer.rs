//! How a node takes the answers of pools.

use acequia_limits::Now;
use acequia_rights::{
    mutation::{Mutation, mutated},
    pool::{PoolRefused, bucket, group::GroupStatus, sliding, window},
};

use super::{
    LATE_NS, LEASE_NS, Leases, PoolReply,
    cell::CellLease,
    clock_promise::ClockPromise,
    group::GroupView,
    pending::{About, CellCall, PendingCall, Subject},
};
use crate::{
    Node,
    cell::{
        account::{Account, CellContext, LeaseTimes},
        locked_cell::LockedCell,
    },
    journal::HeapCell,
};

impl Leases {
    /// Gives up calls that were lost on the way.
    pub(super) fn give_up(&mut self, node: &Node, now: Now) {
        while let Some(id) = self.calls.first_lost(now) {
            self.answer(node, id, &PoolReply::Nothing, now);
        }
    }

    /// Takes the answer to a call.
    pub(super) fn answer(&mut self, node: &Node, id: u64, reply: &PoolReply, now: Now) {
        let Some(pending) = self.calls.end_call(id) else { return };
        self.groups.note_silence(node, &pending, *reply != PoolReply::Nothing, now);
        // If the catalogue has changed since the call, its grant is not taken up, and its report of the group
        // does not count.
        let counts = pending.adopted == self.adopted.versions || *reply == PoolReply::Nothing;
        let reply = if counts { reply } else { &PoolReply::Refused(PoolRefused::Stale) };
        self.calls.count(reply, now);
        if let PoolReply::Known(known) | PoolReply::Unknown(known) = reply {
            self.hear(pending.group, known, id, now);
            self.show(node, pending.group);
        }
        match pending.about {
            About::Group => self.answer_about_group(pending.group, id, reply, now),
            About::Cell(call) => self.answer_about_cell(node, &pending, call, reply, now),
        }
    }

    /// Takes a report of a group's state.
    fn hear(&mut self, number: u16, known: &GroupStatus, id: u64, now: Now) {
        let is_other = self.groups.hear(number, known, id, now.steady_ns);
        self.calls.counts.generations += u64::from(is_other);
        for key in self.groups.of(number).untold.clone() {
            self.cells.rebalance_at(key, now.steady_ns);
        }
    }

    fn answer_about_group(&mut self, number: u16, id: u64, reply: &PoolReply, now: Now) {
        let group = self.groups.of_mut(number);
        match reply {
            PoolReply::Nothing => group.miss(id, now.steady_ns),
            PoolReply::Known(_) | PoolReply::Unknown(_) => {}
            PoolReply::Swept(dropped) => {
                group.is_same(id);
                self.groups.watch.hears_swept(number, *dropped);
            }
            _ => group.is_same(id),
        }
    }

    fn answer_about_cell(
        &mut self,
        node: &Node,
        pending: &PendingCall,
        call: CellCall,
        reply: &PoolReply,
        now: Now,
    ) {
        let Some(mut lease) = self.cells.take(call.key) else { return };
        let ended = lease.end_call();
        let end_ns = call.subject.end_ns();
        let is_grant = matches!(reply, PoolReply::Took(_) | PoolReply::Exchanged(_) | PoolReply::Slid(_));
        let mut came = None;
        // No answer of an earlier generation is taken up.
        if is_grant && self.groups.of(pending.group).generation() == pending.generation {
            lease.tell(end_ns, pending.generation, ended);
            came = self.take_up(node, &mut lease, pending.group, call, reply, now);
            // A part that is not renewed is not told more often than one that is.
            lease.renewed_ns = pending.sent_ns;
        }
        match came {
            Some(units) => lease.came(units, call.wants_more, ended, now.steady_ns),
            None => lease.missed(now.steady_ns),
        }
        let is_unheard = *reply == PoolReply::Nothing && self.cells.are_leaving();
        lease.statements.unheard = is_unheard.then_some(end_ns);
        self.cells.put_back(call.key, lease);
        if came.is_some_and(|units| units > 0) {
            node.remote_supply.tell();
            node.forwards.call();
        }
        self.cells.wake(call.key, now.steady_ns);
    }

    /// Takes up what a pool granted. Returns the units that came, if the answer counts.
    fn take_up(
        &self,
        node: &Node,
        lease: &mut CellLease,
        group: u16,
        call: CellCall,
        reply: &PoolReply,
        now: Now,
    ) -> Option<u64> {
        let catalogue = node.catalogue();
        let locked_cell = LockedCell { node, catalogue: &catalogue, key: call.key, now, which: None };
        let came = locked_cell.at(false, |context, cell| {
            let HeapCell { account: Some(account), state, .. } = cell else { return None };
            account.settle(state, context, now, &*node.sessions());
            account.keep_part(state, context, now.wall_ns, None, now);
            let pool = context.local.pool_of(context.global, context.salt, u64::MAX).unwrap_or_default();
            lease.follow(account, context, pool);
            let (group, clocks) = (self.groups.of(group), self.adopted.clocks);
            let units = PoolGrant { lease, account, state, context, group, clocks, now }.take_up(call, reply);
            account.goes_by_pool(context);
            if units.is_some_and(|units| units > 0) {
                account.expect_units_anew();
            }
            cell.forget_held_if_variant_changed();
            units
        });
        came.flatten()
    }
}

/// What a pool has granted to a cell.
struct PoolGrant<'a> {
    lease: &'a mut CellLease,
    account: &'a mut Account,
    state: &'a mut Vec<u64>,
    context: &'a CellContext<'a>,
    group: &'a GroupView,
    clocks: ClockPromise,
    now: Now,
}

impl PoolGrant<'_> {
    /// Takes it up. Returns the units that came, if the answer counts.
    fn take_up(&mut self, call: CellCall, reply: &PoolReply) -> Option<u64> {
        match (call.subject, reply) {
            (Subject::Window { end_ns }, PoolReply::Took(took)) => self.took(end_ns, took),
            // The limit was lowered while the call was under way.
            (subject, _) if subject.is_of_more(self.context) => None,
            (Subject::Part { number, .. }, PoolReply::Exchanged(part)) => self.exchanged(number, part),
            (Subject::Part { number, .. }, PoolReply::Slid(part)) => self.slid(number, part),
            _ => None,
        }
    }

    fn took(&mut self, end_ns: u64, took: &window::Took) -> Option<u64> {
        // Near its end other nodes may have left the window, and tell nobody any more what they took of it.
        if end_ns.saturating_sub(self.now.wall_ns) <= self.clocks.apart_ns() {
            return None;
        }
        self.lease.hears_left(end_ns, took.left);
        let before = self.lease.withdrawals.before(end_ns, self.group.remembers_since());
        let came = self.account.withdrew(self.context, end_ns, took.taken.saturating_sub(before));
        // Units that were taken of a window that was open at the change stay.
        if !self.lease.statements.is_answered(end_ns) {
            return Some(came);
        }
        // The units were granted by what the region, or the limit, had before.
        self.account.return_to_pool(self.context, end_ns, came, came);
        self.lease.statements.untell(end_ns);
        Some(0)
    }

    fn exchanged(&mut self, number: u64, answer: &bucket::Exchanged) -> Option<u64> {
        self.lease.hears_left_in_all(answer.left);
        self.lease.hears_fair(answer.fair);
        let (held, part) = (self.account.pooled(), answer.part);
        let is_more = part.rate > held.rate || part.units > held.units;
        if !may_be_renewed(self.group, is_more) {
            return None;
        }
        let times = LeaseTimes { ttl_ns: LEASE_NS, late_ns: LATE_NS };
        self.account.exchanged(self.state, self.context, number, answer, times, self.now)
    }

    fn slid(&mut self, number: u64, answer: &sliding::Slid) -> Option<u64> {
        self.lease.hears_left_in_all(answer.left);
        if !may_be_renewed(self.group, answer.units > self.account.pooled().units) {
            return None;
        }
        self.account.slid(self.state, self.context, number, answer.units, LEASE_NS, self.now)
    }
}

/// No lease is renewed before its generation grants. Until then the generation before it may go on granting
/// to nodes that have not heard of the new one, and takes leases back at their ends. A grant of more proves
/// that the generation grants.
fn may_be_renewed(group: &GroupView, is_more: bool) -> bool {
    is_more || group.grants() || mutated(Mutation::LeaseRenewedUngranted)
}
