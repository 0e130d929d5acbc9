//! Rebalances a rate, or a sliding window: its parts are lent and given back.

use std::{collections::BTreeMap, num::NonZeroU64};

use acequia_limits::{Now, Part};
use acequia_rights::{
    Incarnation, MemberId, Offer, Session,
    loan::{Grant, LOANS_PER_PEER_MAX},
    session::stretch,
};
use smallvec::SmallVec;

use super::{
    super::{
        Sharing,
        cell::{ActiveCell, Piece, Resource, Shortage, SlotsSeen},
        outbox::Topic,
        policy::{Borrowed, RateView, RebalancePlan, Requests, Seat, plan},
        wire::{FrameEntry, Rough, ShortId},
    },
    Effects, Round,
};
use crate::{
    catalogue::preference::Preference,
    cell::account::{Account, LoanId, Offered},
    forwards::Owner,
    journal::HeapCell,
    settings::SETTINGS,
};

/// An account whose loans change, with the sessions that bound them.
struct LendingAccount<'a> {
    account: &'a mut Account,
    state: &'a mut Vec<u64>,
    sessions: &'a mut BTreeMap<Incarnation, Session>,
    is_durable: bool,
}

impl Sharing {
    /// Rebalances a rate, or a sliding window: lends and gives back. Returns whether it is scarce.
    pub(super) fn rebalance_rate(
        &mut self,
        round: &Round<'_>,
        active_cell: &mut ActiveCell,
        cell: &mut HeapCell,
        offered: &Offered,
        effects: &mut Effects,
    ) -> bool {
        let HeapCell { account: Some(account), state, .. } = cell else { return false };
        let plan = self.plan_rate(round, active_cell, account, state, offered);
        let is_scarce = plan.is_scarce;
        let missing = self.carry_out(round, plan, active_cell, cell, effects);
        if let HeapCell { account: Some(account), .. } = cell
            && round.node.leases.is_some()
        {
            account.want_for_others(missing);
            effects.wants_pool = missing != Part::default();
            self.lending.set_backed(round.key, account.renews_until_ns());
        }
        is_scarce
    }

    /// Decides who lends to whom, by what this node knows.
    fn plan_rate(
        &self,
        round: &Round<'_>,
        active_cell: &mut ActiveCell,
        account: &Account,
        state: &[u64],
        offered: &Offered,
    ) -> RebalancePlan {
        let (now, resource, budget) = (round.now, &round.resource, round.budget());
        let left = account.unleased(state, now, round.context.salt);
        let effective = account.effective();
        if active_cell.advertised.is_none() && (left < effective.units || self.process.number() > 1) {
            // Units are gone, so this region was asked. After a restart this is unknown, and counts as asked.
            active_cell.activity.note_asked(now.steady_ns);
        }
        note_short(active_cell, account, offered, budget, now);
        let (reach, standing) = match round.node.leases {
            None => (Part::default(), account.standing()),
            // The standing part as the others know it, with the piece of it that is in the pool.
            Some(_) => (round.within_reach(account), self.standing_for(round, account)),
        };
        let beside = self.kept_by_mates(round, account);
        note_use(round, active_cell, effective.units.saturating_sub(left).saturating_add(beside), offered);
        let short = active_cell.short();
        let weight = resource.weigh(standing);
        let own = Seat {
            region: self.me().member,
            want: resource.want_here(active_cell, standing, budget, now.steady_ns),
            holds: resource.weigh(effective).saturating_add(resource.weigh(reach)).saturating_add(beside),
            standing: weight,
            short: if short > effective.units { short } else { 0 },
            weight: u32::try_from(weight).unwrap_or(1),
            class: round.preference.class(self.me().member),
            floor: round.preference.floor(weight),
        };
        let others = self.seats_of_others(round, active_cell);
        let (held, lent) = (held_loans(account), lent_loans(account));
        let spare = account.spare(self.lent_for_ns(), now);
        let view = RateView {
            own,
            others: &others,
            spare: Part {
                rate: spare.rate.saturating_add(reach.rate),
                units: spare.units.saturating_add(reach.units),
            },
            floor: floor_of(round.preference, standing),
            held: &held,
            lent: &lent,
            nets: active_cell.rebalanced_ns / SETTINGS.sharing.net_ns
                != now.steady_ns / SETTINGS.sharing.net_ns,
            units_total: budget,
            units: effective.units,
            requests: Requests {
                units: active_cell.demand.units_milli().div_ceil(1_000),
                cost_milli: active_cell.demand.cost_milli(),
                least_short: active_cell.shortage.map(|shortage| shortage.least),
            },
            is_rate: matches!(resource, Resource::Rate { .. }),
            left: left.saturating_add(reach.units),
            is_mate: matches!(round.owner, Owner::Mate(_)),
            is_new: active_cell.activity.is_new(now.steady_ns, SETTINGS.sharing.new_ns),
        };
        let mut plan = plan(&view);
        // Nothing is lent of a limit that is not in force. If nobody asks for the cell any more, the regions
        // that last wanted some have not been asked either, and would give it back.
        if !round.context.in_force || active_cell.is_idle(now.steady_ns) {
            plan.lend.clear();
            plan.give_back = held.iter().map(|loan| (loan.from, loan.number)).collect();
        }
        plan
    }

    /// The seats of the regions that can be lent to now.
    fn seats_of_others(&self, round: &Round<'_>, active_cell: &mut ActiveCell) -> SmallVec<[Seat; 8]> {
        let mut seats = SmallVec::new();
        for peer in self.peers.values().filter(|peer| self.is_partner(peer, round.now)) {
            if round.acts_for(peer) {
                continue;
            }
            let standing = self.standing_of(peer.incarnation, round);
            let mut seat = active_cell.seat(
                peer.incarnation.member,
                standing,
                &round.resource,
                round.now.steady_ns,
                peer.round_ns(),
            );
            let is_less = Rough::new(round.resource.weigh(standing)) > Rough::new(seat.standing);
            if is_less && seat.want == 0 && seat.short == 0 {
                // Another node of the peer's region acts for the peer.
                continue;
            }
            seat.class = round.preference.class(seat.region);
            seat.floor = round.preference.floor(seat.standing);
            seats.push(seat);
        }
        seats
    }

    /// Carries a plan out. Returns what was to be lent, but must first be taken from the region's pool.
    fn carry_out(
        &mut self,
        round: &Round<'_>,
        plan: RebalancePlan,
        active_cell: &mut ActiveCell,
        cell: &mut HeapCell,
        effects: &mut Effects,
    ) -> Part {
        let mut missing = Part::default();
        let HeapCell { account: Some(account), state, .. } = cell else { return missing };
        let is_durable = round.node.catalogue().is_durable(round.key.slot);
        let sessions = &mut round.node.sessions_mut();
        let mut loans = LendingAccount { account, state, sessions, is_durable };
        for (region, number) in plan.give_back {
            give_back(round, &mut loans, region, number, effects);
        }
        if round.node.is_journal_down() || self.process.restored_disk {
            return missing;
        }
        for (region, wanted) in plan.lend {
            let Some(to) = self.borrower(region) else { continue };
            let part = self.lendable(round, &loans, wanted);
            if part != wanted {
                missing.rate = missing.rate.saturating_add(wanted.rate);
                missing.units = missing.units.saturating_add(wanted.units);
                let is_worth_it =
                    round.resource.weigh(part) >= round.resource.weigh(wanted) / SETTINGS.sharing.pieces;
                if !is_worth_it || part.units == 0 {
                    continue;
                }
            }
            let Some(grant) = self.lend(round, &mut loans, to, part) else { continue };
            missing.rate = missing.rate.saturating_sub(part.rate);
            missing.units = missing.units.saturating_sub(part.units);
            let weight = round.resource.weigh(part);
            active_cell.pieces.push(Piece { to: region, weight, at_ns: round.now.steady_ns });
            let topic = Topic::Grant(round.key, grant.number);
            effects.tell(region, topic, FrameEntry::Grant { id: ShortId::default(), grant });
        }
        missing
    }

    /// The incarnation that is lent to in a region, if there is one.
    fn borrower(&self, region: MemberId) -> Option<Incarnation> {
        let to = self.peers.get(&region)?.incarnation;
        (!self.versions.closed(to)).then_some(to)
    }

    /// How much of a planned loan can be lent now. Units to lend are taken from the pool first.
    fn lendable(&self, round: &Round<'_>, loans: &LendingAccount<'_>, wanted: Part) -> Part {
        if round.node.leases.is_none() {
            return wanted;
        }
        let account = &*loans.account;
        let spare = account.spare(self.lent_for_ns(), round.now);
        let mut units = spare.units;
        if !account.algorithm.has_rate() {
            units = units.min(account.unleased(loans.state, round.now, round.context.salt));
        }
        Part { rate: wanted.rate.min(spare.rate), units: wanted.units.min(units) }
    }

    /// Lends a part, unless the peer has many loans already.
    fn lend(
        &mut self,
        round: &Round<'_>,
        loans: &mut LendingAccount<'_>,
        to: Incarnation,
        part: Part,
    ) -> Option<Grant> {
        let LendingAccount { account, state, sessions, .. } = loans;
        let with_peer = account.book().lent().iter().filter(|lent| lent.to == to).count();
        if with_peer >= LOANS_PER_PEER_MAX {
            return None;
        }
        let session = sessions.get_mut(&to)?;
        let tokens = part.units.min(account.unleased(state, round.now, round.context.salt));
        let number = self.lending.numbers.take(round.node);
        let offer = Offer { number, to, part, tokens, ttl_ns: self.process.home.loan_ttl_ns };
        let grant = account.lend(state, round.context, &offer, session, round.now).ok()?;
        self.traffic.lent += 1;
        let count = (account.book().lent().len() + account.book().held().len()) as u64;
        self.traffic.loans_max = self.traffic.loans_max.max(count);
        Some(grant)
    }

    /// The longest time that a loan counts without being renewed.
    fn lent_for_ns(&self) -> u64 {
        stretch(self.process.home.loan_ttl_ns, self.drift_ppm())
    }
}

/// Gives a loan back that this region holds.
fn give_back(
    round: &Round<'_>,
    loans: &mut LendingAccount<'_>,
    region: MemberId,
    number: u64,
    effects: &mut Effects,
) {
    let LendingAccount { account, state, sessions, is_durable } = loans;
    let mut held = account.book().held().iter();
    let Some(held) = held.find(|held| held.number == number && held.from.member == region) else { return };
    let from = held.from;
    let Some(session) = sessions.get_mut(&from) else { return };
    if let Ok(back) = account.give_back(
        state,
        round.context,
        LoanId { peer: from, number },
        session,
        *is_durable,
        round.now,
    ) {
        let entry = FrameEntry::Return { id: ShortId::default(), back };
        effects.tell(region, Topic::Return(round.key, number), entry);
    }
}

fn held_loans(account: &Account) -> SmallVec<[Borrowed; 8]> {
    let held = account.book().held().iter();
    held.map(|held| Borrowed { from: held.from.member, number: held.number, part: held.part }).collect()
}

fn lent_loans(account: &Account) -> SmallVec<[(MemberId, Part); 8]> {
    account.book().lent().iter().map(|lent| (lent.to.member, lent.part)).collect()
}

/// Notes how many of a sliding window's units are used, or how many slots are taken.
fn note_use(round: &Round<'_>, active_cell: &mut ActiveCell, used: u64, offered: &Offered) {
    let Resource::Units { window_ns, total, has_slots } = round.resource else { return };
    let budget = round.budget();
    let missed = if offered.denied <= budget { u64::from(offered.missed).min(budget) } else { 0 };
    if has_slots {
        let asked_milli = active_cell.demand.units_milli();
        let passed_ns = round.now.steady_ns.saturating_sub(active_cell.rebalanced_ns);
        let seen = SlotsSeen { taken: used, missed, asked_milli, passed_ns };
        active_cell.window.note_slots(seen, total);
    } else {
        active_cell.window.note_used(used, missed, window_ns);
    }
}

/// Notes whether a request needs more units at once than there are, not counting units borrowed for such
/// requests.
fn note_short(active_cell: &mut ActiveCell, account: &Account, offered: &Offered, budget: u64, now: Now) {
    let units = account.effective().units;
    let is_alone = |part: &Part| account.algorithm.has_rate() && part.rate == 0;
    let held = account.book().held().iter().map(|held| held.part);
    let borrowed: u64 = held.filter(is_alone).map(|part| part.units).sum();
    let is_short = offered.largest > units.saturating_sub(borrowed) && offered.largest <= budget;
    let is_over = |shortage: &Shortage| {
        let lasts_ns = if shortage.units.get() > units {
            SETTINGS.sharing.short_ns
        } else {
            SETTINGS.sharing.spare_short_ns
        };
        now.steady_ns.saturating_sub(shortage.at_ns) > lasts_ns
    };
    let before = active_cell.shortage.take();
    let least = before.map_or(u64::MAX, |shortage| shortage.least);
    let short = if is_short { NonZeroU64::new(offered.largest) } else { None };
    active_cell.shortage = match short {
        Some(units) => Some(Shortage { units, at_ns: now.steady_ns, least }),
        None => before.filter(|shortage| !is_over(shortage)),
    };
    if let Some(shortage) = &mut active_cell.shortage
        && offered.events > 0
    {
        shortage.least = shortage.least.min(offered.smallest);
    }
}

/// The piece of a standing part that is not lent.
fn floor_of(preference: &Preference, standing: Part) -> Part {
    // At most the standing part, so that it fits.
    let rate = preference.floor(u64::from(standing.rate)) as u32;
    Part { rate, units: preference.floor(standing.units) }
}
