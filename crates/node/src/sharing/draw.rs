//! Draws between nodes of one region ([`crate::draws`]): says which are asked for, charges those of others, and hears what became of its own.

use acequia_limits::{Now, UNITS_MAX};
use acequia_rights::{
    Refusal, Region,
    broken::{Broken, broken},
};
use smallvec::SmallVec;
use std::collections::BTreeSet;

use super::{
    CellKey, REACH_NS, Sharing,
    outbox::Topic,
    wire::{Entry, Header, Whole},
};
use crate::{
    Catalogue, Node,
    draws::{Asking, Held, may_be_drawn},
    journal::HeapCell,
    shard_of,
    visit::Visit,
};

impl Sharing {
    /// Which nodes of the region are heard; and what was drawn and has not come is given up.
    pub(super) fn keep_draws(&mut self, node: &Node, now: Now) {
        let Some(guard) = &node.guard else { return };
        let own = self.me().region;
        let is_live = |region: &Region| {
            *region == own
                || (self.peers.get(region).is_some_and(|peer| self.is_partner(peer, now))
                    && !node.draws.is_far(*region, now))
        };
        let owns = self.owns_nothing().is_none();
        let live: SmallVec<[Region; 8]> =
            guard.members().iter().copied().filter(|region| owns && is_live(region)).collect();
        let members = self.versions.version().map_or(0, |version| version.members.len());
        node.draws.see(own, live, members);
        let (is_news, least) = node.draws.expire(now);
        for region in guard.members() {
            if let Some(peer) = self.peers.get_mut(region) {
                peer.outbox.forget_draws(least);
            }
        }
        if is_news {
            node.elsewhere.tell();
        }
        // What this node got since, of others or by time, is for those that wait here.
        self.serve_draws(node, now);
    }

    /// Puts in line what is to be drawn, and charges what others have drawn if there are units by now.
    pub(super) fn serve_draws(&mut self, node: &Node, now: Now) {
        for Asking { number, to, limit, tag, whole, units, within_us } in node.draws.take_out() {
            if let Some(peer) =
                self.peers.get_mut(&to).filter(|peer| peer.is_reached(now.steady_ns, REACH_NS))
            {
                let entry = Entry::Draw { limit, tag, whole, number, units, within_us };
                peer.outbox.tell(Topic::Draw(number), entry, 0);
            }
        }
        let mut held = node.draws.take_held();
        if held.is_empty() {
            return;
        }
        let catalogue = node.catalogue();
        // Of what one finds nothing of, another finds nothing.
        let mut empty: BTreeSet<CellKey> = BTreeSet::new();
        held.retain_mut(|held| {
            let is_vain = now.steady_ns < held.until_ns && empty.contains(&held.key);
            let waits = is_vain || !self.serve(node, &catalogue, held, now);
            if waits {
                empty.insert(held.key);
            }
            waits
        });
        node.draws.put_held(held);
    }

    /// Answers a draw, if there are units, or it is too late. Says whether it is answered, or nobody waits for it any more.
    fn serve(&mut self, node: &Node, catalogue: &Catalogue, held: &mut Held, now: Now) -> bool {
        let Held { from, boot, number, units, .. } = *held;
        let Some(peer) = self.peers.get(&from.region) else { return true };
        if (peer.writer, peer.boot) != (from, boot) {
            return true;
        }
        let is_late = now.steady_ns >= held.until_ns;
        let is_charged = !is_late && self.charge_drawn(node, catalogue, held, now);
        if !is_charged && !is_late {
            return false;
        }
        if is_charged {
            node.draws.count_charged();
        }
        if let Some(peer) = self.peers.get_mut(&from.region) {
            let units = if is_charged { units } else { 0 };
            peer.outbox.tell(Topic::Drawn(number), Entry::Drawn { number, units }, 0);
        }
        true
    }

    /// Charges this node's cell, as for a request of its own; says whether it could.
    fn charge_drawn(&self, node: &Node, catalogue: &Catalogue, held: &mut Held, now: Now) -> bool {
        let Held { key, whole, units, .. } = *held;
        let (slot, tag) = key;
        let owns = self.owns_nothing().is_none();
        let may = catalogue.active_of(slot).filter(|active| active.is_in_force(now.wall_ns));
        if !owns || node.owns_nothing().is_some() || !may.is_some_and(may_be_drawn) {
            return false;
        }
        let is_first = !std::mem::replace(&mut held.is_told, true);
        let visit = Visit { node, catalogue, key, now, which: None };
        let charged = visit.at(true, |ground, cell| {
            cell.forget_held_if_renumbered();
            let HeapCell { account: Some(account), words, .. } = cell else { return (false, false) };
            account.settle(words, ground, now, &*node.sessions());
            let verdict = account.algorithm.probe(words, now, units, ground.salt);
            let fits = verdict.allowed && verdict.delay_ns == 0;
            // What callers lease of it they may spend without asking.
            let is_there = fits
                && (Whole::of(ground.global) == whole || broken(Broken::DrawOfOtherNumbers))
                && now.wall_ns >= node.wall_high_ns()
                && account.leased() == 0
                && ground.in_force
                && !ground.local.owns_nothing()
                && !node.draws.is_closed();
            let calls = is_first && account.offer((units, units), &verdict, now);
            if is_there && !broken(Broken::DrawUncharged) {
                account.algorithm.charge_heap(words, now, units, ground.salt);
            }
            (is_there, calls)
        });
        let (is_charged, calls) = charged.unwrap_or((false, false));
        if is_charged || calls {
            let mut cells = node.shards[shard_of(tag)].lock();
            if is_charged {
                cells.count_spent(slot, units);
            }
            if calls {
                cells.attend(slot, tag);
                drop(cells);
                node.call(shard_of(tag));
            }
        }
        is_charged
    }

    /// A node of the region draws.
    pub(super) fn take_draw(
        &mut self,
        node: &Node,
        header: &Header,
        entry: &Entry,
        now: Now,
    ) -> Result<(), Refusal> {
        let Entry::Draw { limit, tag, whole, number, units, within_us } = *entry else {
            return Err(Refusal::Malformed);
        };
        let from = header.writer;
        let is_mate = node.guard.as_ref().is_some_and(|guard| guard.members().contains(&from.region));
        if !is_mate || !(1..=UNITS_MAX).contains(&units) || !self.versions.owns(from) {
            return Err(Refusal::Malformed);
        }
        let slot = node.slot_of(limit).ok_or(Refusal::Unknown(number))?;
        let within_ns = (u64::from(within_us) * 1_000).min(crate::DRAW_NS);
        let mut held = Held {
            from,
            boot: header.boot,
            number,
            key: (slot, crate::journal_tag(tag)),
            whole,
            units,
            until_ns: now.steady_ns + within_ns,
            is_told: false,
        };
        let catalogue = node.catalogue();
        if !self.serve(node, &catalogue, &mut held, now)
            && !node.draws.hold(held)
            && let Some(peer) = self.peers.get_mut(&from.region)
        {
            peer.outbox.tell(Topic::Drawn(number), Entry::Drawn { number, units: 0 }, 0);
        }
        Ok(())
    }

    /// What this process drew has come, or is not to be had.
    pub(super) fn take_drawn(
        &self,
        node: &Node,
        header: &Header,
        (number, units): (u64, u64),
        now: Now,
    ) -> Result<(), Refusal> {
        // What an earlier process drew is for nobody.
        let is_own =
            (header.seen.incarnation, header.seen.boot) == (self.home.writer.incarnation, self.beats.boot());
        if !is_own || !node.draws.came(header.writer.region, number, units, now) {
            return Err(Refusal::Unknown(number));
        }
        node.elsewhere.tell();
        Ok(())
    }
}
