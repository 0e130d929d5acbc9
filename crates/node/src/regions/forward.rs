//! Forwards between nodes of one region ([`crate::forwards`]): sends this node's own, charges those of its
//! mates, and takes the answers.

use acequia_limits::{Algorithm, Now, UNITS_MAX};
use acequia_rights::{
    Incarnation, MemberId, Refusal,
    mutation::{Mutation, mutated},
};
use smallvec::SmallVec;
use std::collections::BTreeMap;

use super::{
    CellKey, Sharing,
    outbox::Topic,
    wire::{FrameEntry, FrameHeader, Whole},
};
use crate::{
    Catalogue, Node,
    catalogue::local::GuardShare,
    cell::{
        account::{Account, CellContext},
        locked_cell::LockedCell,
    },
    forwards::{OutgoingForward, ReceivedForward, may_be_forwarded},
    journal::HeapCell,
    settings::SETTINGS,
    shard_of,
};

/// The result of a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForwardResult {
    Done,
    /// There are no units now, and some may come.
    Later,
    /// This node will not charge it.
    Never,
}

impl Sharing {
    /// Notes which nodes of the region are heard, and gives up forwards that got no answer.
    pub(super) fn keep_forwards(&mut self, node: &Node, now: Now) {
        let Some(guard) = &node.setup.guard else { return };
        let own = self.me().member;
        let is_live = |region: &MemberId| {
            *region == own || self.peers.get(region).is_some_and(|peer| self.is_partner(peer, now))
        };
        let owns = self.owns_nothing().is_none();
        let live: SmallVec<[MemberId; 8]> =
            guard.members().iter().copied().filter(|region| owns && is_live(region)).collect();
        let members = self.versions.version().map_or(0, |version| version.members.len());
        node.forwards.see(own, &live, members, now);
        let (is_news, least, silent) = node.forwards.expire(now);
        for key in silent {
            Self::call_here(node, key);
        }
        for region in guard.members() {
            if let Some(peer) = self.peers.get_mut(region) {
                peer.outbox.forget_forwards(least);
                peer.outbox.forget_forward_replies(now.steady_ns);
            }
        }
        if is_news {
            node.remote_supply.tell();
        }
        // Units that came since, from others or by time, are for the forwards that wait here.
        self.serve_forwards(node, now);
    }

    /// Queues this node's forwards, and charges those of mates that wait here, if there are units by now.
    pub(super) fn serve_forwards(&mut self, node: &Node, now: Now) {
        for OutgoingForward { number, to, limit, tag, whole, units, is_again } in node.forwards.take_out() {
            if let Some(peer) = self
                .peers
                .get_mut(&to)
                .filter(|peer| peer.is_reached(now.steady_ns, SETTINGS.sharing.reach_ns))
            {
                // Filled in when the entry is sent.
                let within_us = 0;
                let entry = FrameEntry::Forward { limit, tag, whole, number, units, within_us, is_again };
                peer.outbox.tell(Topic::Forward(number), entry, 0);
            }
        }
        let mut held = node.forwards.take_held();
        if held.is_empty() {
            return;
        }
        let catalogue = node.catalogue();
        // If one forward finds too few units of a cell, another for as many finds no more.
        let mut missing: BTreeMap<CellKey, u64> = BTreeMap::new();
        held.retain_mut(|held| {
            let least = missing.get(&held.key).copied();
            let is_vain = now.steady_ns < held.until_ns && least.is_some_and(|least| held.units >= least);
            let waits = is_vain || !self.serve(node, &catalogue, held, now);
            if waits {
                missing.insert(held.key, least.map_or(held.units, |least| least.min(held.units)));
            }
            waits
        });
        node.forwards.put_held(held);
    }

    /// Answers a forward if there are units, if none can come, or if it is too late. Returns whether it is
    /// answered, or nobody waits for it any more.
    fn serve(&mut self, node: &Node, catalogue: &Catalogue, held: &mut ReceivedForward, now: Now) -> bool {
        let ReceivedForward { from, process_number, number, units, .. } = *held;
        let Some(peer) = self.peers.get(&from.member) else { return true };
        if (peer.incarnation, peer.process_number) != (from, process_number) {
            return true;
        }
        let is_late = now.steady_ns >= held.until_ns;
        let charge =
            if is_late { ForwardResult::Later } else { self.charge_forward(node, catalogue, held, now) };
        let units = match charge {
            ForwardResult::Done => {
                node.forwards.count_charged();
                Some(units)
            }
            ForwardResult::Later if is_late => Some(0),
            ForwardResult::Later => return false,
            ForwardResult::Never => None,
        };
        self.answer(from, number, units, now);
        true
    }

    /// Charges this node's cell, as for a request of its own.
    fn charge_forward(
        &self,
        node: &Node,
        catalogue: &Catalogue,
        held: &mut ReceivedForward,
        now: Now,
    ) -> ForwardResult {
        let ReceivedForward { key, whole, units, .. } = *held;
        let CellKey { slot, tag } = key;
        let active = catalogue.active_of(slot).filter(|active| active.is_in_force(now.wall_ns));
        let owns_nothing = self.owns_nothing().is_some() || node.owns_nothing().is_some();
        let algorithm =
            active.filter(|active| may_be_forwarded(active)).map(|active| &active.limit.algorithm);
        let may_give = |global: &Algorithm| is_of_variant(global, whole) && units <= global.budget();
        if owns_nothing || node.forwards.is_closed() || !algorithm.is_some_and(may_give) {
            return ForwardResult::Never;
        }
        // A cell that is missing may have been dropped by a clock that reads more.
        let now = node.not_behind(now);
        // More units may come, from the pool or from other regions, only to the owner of a cell that has a
        // pool.
        let has_pool = node.has_pool(tag) && !node.is_journal_down();
        let is_owner = node.forwards.is_owner(tag, active);
        let may_come = has_pool && is_owner;
        let is_first = !std::mem::replace(&mut held.is_told, true);
        let locked_cell = LockedCell { node, catalogue, key, now, which: None };
        let charged = locked_cell.at(true, |context, cell| {
            cell.forget_held_if_variant_changed();
            let HeapCell { account: Some(account), state, .. } = cell else {
                return (ForwardResult::Never, false);
            };
            let is_new = account.calls_first();
            // Callers may spend the units that they lease without asking, and other regions may owe units.
            let is_free = account.kept_back() == 0 && context.in_force;
            if !may_give(context.global) || !is_free || node.forwards.is_closed() {
                return (ForwardResult::Never, is_new);
            }
            // While the lock was waited for, cells may have been dropped by a later clock.
            if node.is_behind(now) {
                return (ForwardResult::Later, is_new);
            }
            account.settle(state, context, now, &*node.sessions());
            let end_ns = account.window();
            if context.local.owns_nothing_of(end_ns) || node.is_closed(context, end_ns) {
                return (ForwardResult::Never, is_new);
            }
            if is_owner {
                account.note_forwarded(now);
            }
            let verdict = account.algorithm.probe(state, now, units, context.salt);
            let is_there = verdict.allowed && verdict.delay_ns == 0;
            if !is_there && !may_come {
                return (ForwardResult::Never, is_new);
            }
            let calls = (is_first && account.offer(units, units, &verdict, now)) || is_new;
            if is_there {
                charge(account, state, units, context, now);
            }
            (if is_there { ForwardResult::Done } else { ForwardResult::Later }, calls)
        });
        let (charge, calls) = charged.unwrap_or((ForwardResult::Never, false));
        if charge == ForwardResult::Done || calls {
            let mut cells = node.shards[shard_of(tag)].lock();
            if charge == ForwardResult::Done {
                cells.count_spent(slot, units);
            }
            if calls {
                cells.attend(key);
                drop(cells);
                node.call(shard_of(tag));
            }
        }
        charge
    }

    /// Takes a forward of a mate.
    pub(super) fn take_forward(
        &mut self,
        node: &Node,
        header: &FrameHeader,
        entry: &FrameEntry,
        now: Now,
    ) -> Result<(), Refusal> {
        let FrameEntry::Forward { limit, tag, whole, number, units, within_us, is_again } = *entry else {
            return Err(Refusal::Malformed);
        };
        let from = header.incarnation;
        if !self.is_mate(node, from) || units > UNITS_MAX {
            return Err(Refusal::Malformed);
        }
        if units == 0 {
            // It is a probe of how far away this node is.
            self.answer(from, number, Some(0), now);
            return Ok(());
        }
        let Some(slot) = node.slot_of(limit) else {
            self.answer(from, number, None, now);
            return Err(Refusal::Unknown(number));
        };
        let within_ns = (u64::from(within_us) * 1_000).min(crate::FORWARD_NS);
        let mut held = ReceivedForward {
            from,
            process_number: header.process_number,
            number,
            key: CellKey { slot, tag: crate::journal_tag(tag) },
            whole,
            units,
            until_ns: now.steady_ns + within_ns,
            is_told: is_again,
        };
        let catalogue = node.catalogue();
        if !self.serve(node, &catalogue, &mut held, now) && !node.forwards.hold(held) {
            self.answer(from, number, Some(0), now);
        }
        Ok(())
    }

    fn answer(&mut self, to: Incarnation, number: u64, units: Option<u64>, now: Now) {
        if let Some(peer) = self.peers.get_mut(&to.member) {
            peer.outbox.tell_forward_reply(number, units, now.steady_ns);
        }
    }

    /// Takes the answer to a forward of this process.
    pub(super) fn take_forward_reply(
        &self,
        node: &Node,
        header: &FrameHeader,
        number: u64,
        units: Option<u64>,
        now: Now,
    ) -> Result<(), Refusal> {
        // An answer to a forward of an earlier process is for nobody.
        if !self.process.is_answered_by(header) || !self.is_mate(node, header.incarnation) {
            return Err(Refusal::Malformed);
        }
        // On an old disk, this process may use the numbers of another one.
        if self.owns_nothing().is_some() {
            return Err(Refusal::Unknown(number));
        }
        let asked = node.forwards.asked(number);
        // A late answer is no fault. Those that wait need not hear of an answer without units.
        if node.forwards.came(header.incarnation.member, number, units, now) && units != Some(0) {
            match (units, asked) {
                (None, Some((key, wanted, true))) => Self::miss_here(node, key, wanted, now),
                // The request was counted when it came. No mate has units, so other regions are asked.
                (None, Some((key, wanted, false))) if node.forwards.next_mate(key, wanted, now).is_none() => {
                    Self::call_here(node, key);
                }
                _ => {}
            }
            node.remote_supply.tell();
        }
        Ok(())
    }

    /// Counts a request that waits for units and cannot be forwarded, and that was not counted here when it
    /// came. It needs units from the pool or from other regions, as if the cell had no forwards.
    fn miss_here(node: &Node, key: CellKey, units: u64, now: Now) {
        let catalogue = node.catalogue();
        let locked_cell = LockedCell { node, catalogue: &catalogue, key, now, which: None };
        let calls = locked_cell.at(true, |context, cell| {
            cell.forget_held_if_variant_changed();
            let HeapCell { account: Some(account), state, .. } = cell else { return false };
            account.settle(state, context, now, &*node.sessions());
            let verdict = account.algorithm.probe(state, now, units, context.salt);
            let is_new = account.calls_first();
            account.offer(units, units, &verdict, now) || is_new
        });
        if calls == Some(true) {
            Self::call_here(node, key);
        }
    }

    /// Calls for a rebalance of a cell.
    fn call_here(node: &Node, key: CellKey) {
        node.shards[shard_of(key.tag)].lock().attend(key);
        node.call(shard_of(key.tag));
    }

    /// Whether an incarnation is another node of this region, and the catalogue names it.
    fn is_mate(&self, node: &Node, incarnation: Incarnation) -> bool {
        let members = node.setup.guard.as_ref().map_or(&[][..], GuardShare::members);
        members.contains(&incarnation.member)
            && incarnation.member != self.me().member
            && self.versions.owns(incarnation)
    }
}

/// A forward is charged only under the variant by which its sender decides.
fn is_of_variant(global: &Algorithm, whole: Whole) -> bool {
    Whole::of(global) == whole || mutated(Mutation::ForwardOfAnotherVariant)
}

/// Charges a forward: this comes before the answer that lets the mate's request pass.
fn charge(account: &mut Account, state: &mut Vec<u64>, units: u64, context: &CellContext<'_>, now: Now) {
    if !mutated(Mutation::ForwardUncharged) {
        account.algorithm.charge_heap(state, now, units, context.salt);
    }
}
