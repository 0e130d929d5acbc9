//! One rebalance of a cell: what was asked of it here, what the others said about it, and what to do about
//! it.

use acequia_limits::{CellTag, Now, Part};
use acequia_rights::{
    Incarnation, MemberId, Offer,
    loan::LOANS_PER_PEER_MAX,
    mutation::{Mutation, mutated},
    session::stretch,
};
use smallvec::SmallVec;

use super::{
    CellKey, REACH_NS, Sharing,
    cell::{ActiveCell, Advertised, AskedRights, Piece, Resource, rebalance_after_ns, time_left_ns},
    demand::Demand,
    membership,
    outbox::Topic,
    peer::Peer,
    policy::{Borrowed, Plan, RateView, Seat, Stake, WindowView, plan, units_in},
    wire::{Entry, Rough, ShortId},
};
use crate::{
    Catalogue, Node,
    catalogue::{local::Guard, preference::Preference},
    cell::{
        account::{Account, CellContext, Offered, Rebalancer},
        locked_cell::LockedCell,
    },
    forwards::Owner,
    journal::HeapCell,
    lock,
};

/// A request for more than a region can hold counts for this long after it was last repeated.
const SHORT_NS: u64 = 3_000_000_000;
/// Units borrowed for such a request, if they are enough, are kept for this long after the last one.
const SPARE_SHORT_NS: u64 = 10_000_000_000;
/// The demand of a bucket's cell is hardly known at first. So the cell is rebalanced every `NEW_REBALANCE_NS` for
/// `NEW_REBALANCES_NS`.
const NEW_REBALANCE_NS: u64 = 30_000_000;
const NEW_REBALANCES_NS: u64 = 200_000_000;
/// A pause says little about the demand of a cell that became active less than this ago.
const NEW_NS: u64 = 1_000_000_000;
/// How often loans that go both ways between two regions are ended. While demand moves, they come and go by
/// themselves.
const NET_NS: u64 = 5_000_000_000;
/// How old the advertisement of a cell in use gets.
const REFRESH_NS: u64 = 4_000_000_000;
/// The first wait before rights are asked for again. It doubles each time asking brought nothing.
const ASK_NS: u64 = 250_000_000;
const ASK_NS_MAX: u64 = 4_000_000_000;
/// Units that must first be taken from the region's pool are there soon, or not at all. Meanwhile the cell is
/// rebalanced this often, and a request of another region waits no longer than `POOL_NS_MAX`.
const POOL_NS: u64 = 20_000_000;
const POOL_NS_MAX: u64 = 1_000_000_000;
/// How often a window's pool is told what it has, for nodes that joined since the window began: it may have
/// forgotten.
const SAY_NS: u64 = 60_000_000_000;
/// If the pool does not give all at once, one part in this many of a planned loan is worth lending.
const PIECES: u64 = 4;
/// The most peers that are asked at once.
const ASKED_MAX: usize = 3;

impl Sharing {
    /// Rebalances a cell: what was asked of it, what the others said, and what to do about it.
    pub(super) fn rebalance(&mut self, node: &Node, catalogue: &Catalogue, slot: u32, now: Now) {
        let Some(key) = self.cells.key(slot) else { return };
        let Some(mut active_cell) = self.cells.at_mut(slot).and_then(Option::take) else { return };
        self.rebalances.remove(&(active_cell.due_ns, slot));
        active_cell.is_called = false;
        let owned = self.owns_nothing().is_none();
        let which = self.told_of(key, Some(&active_cell));
        let locked_cell = LockedCell { node, catalogue, key, now, which };
        let none = Preference::default();
        let preference = catalogue.preference(key.0).unwrap_or(&none);
        let owner = node.forwards.owner(key.1, catalogue.active_of(key.0), now);
        let of = (node, preference, owner);
        let again = locked_cell
            .at(owned, |context, cell| self.rebalance_cell(&mut active_cell, of, key, context, cell, now));
        self.tells.clear();
        if (std::mem::take(&mut self.wants_pool) | std::mem::take(&mut self.says))
            && let Some(leases) = &node.leases
        {
            lock(leases).wake(key, now.steady_ns);
        }
        active_cell.rebalanced_ns = now.steady_ns;
        if let Some((true, after_ns)) = again.flatten()
            && let Some(place) = self.cells.at_mut(slot)
        {
            active_cell.due_ns = now.steady_ns + after_ns;
            self.rebalances.insert((active_cell.due_ns, slot));
            *place = Some(active_cell);
        } else {
            self.cells.remove(key);
            for peer in self.peers.values_mut() {
                peer.outbox.names.forget(key);
            }
        }
    }

    /// The cell's variant, as reported by a peer that is asked for the cell. `None` if this region is asked
    /// itself, and so knows.
    pub(super) fn told_of(&self, key: CellKey, active_cell: Option<&ActiveCell>) -> Option<u16> {
        let is_asked = active_cell.is_some_and(|active_cell| active_cell.asked_of == Some(self.version_id()));
        self.told.get(&key).copied().filter(|_| !is_asked)
    }

    /// Has the cell introduced again if its variant is news to the others. Peers that are not asked for the
    /// cell cannot know the variant, and would give the cell no more than the least variant gives.
    fn name_again(&mut self, active_cell: &mut ActiveCell, key: CellKey, which: Option<u16>) {
        let version_id = self.version_id();
        if (active_cell.which(), active_cell.which_of) == (which, version_id) {
            return;
        }
        let is_news = which.is_some() || active_cell.which() != which;
        active_cell.set_which(which, version_id);
        if is_news {
            self.peers.values_mut().for_each(|peer| peer.outbox.names.forget(key));
        }
    }

    /// Returns whether the cell stays active, and when to rebalance it again.
    fn rebalance_cell(
        &mut self,
        active_cell: &mut ActiveCell,
        (node, preference, owner): (&Node, &Preference, Owner),
        key: CellKey,
        context: &CellContext<'_>,
        cell: &mut HeapCell,
        now: Now,
    ) -> Option<(bool, u64)> {
        let offered = {
            let HeapCell { account, words, .. } = cell;
            let account = account.as_deref_mut()?;
            account.settle(words, context, now, &*node.sessions());
            let mut sessions = node.sessions_mut();
            for (from, number) in account.tell_ended(&mut sessions) {
                let entry = Entry::Refused { id: ShortId::default(), number };
                self.tells.push((from.member, Topic::Refused(key, number), entry));
            }
            account.freeze_refused(&mut sessions);
            account.take_offered(Rebalancer::Regions)
        };
        if offered.events > 0 {
            active_cell.asked_of = Some(self.version_id());
        }
        // A guess is not sent: others would take it for known.
        let which = context.which.filter(|_| node.catalogue().has_several_numbers(key.0));
        self.name_again(active_cell, key, which);
        if let Some(account) = cell.account.as_deref_mut() {
            account.hear_used(active_cell.used_elsewhere(context.global));
        }
        // An override that ends leaves less, without a new version.
        if cell.account.as_deref().is_some_and(Account::is_over_lent) {
            self.over_lent.insert(key);
        }
        // More than any cell could ever give is not counted as demand.
        let most = u64::from(offered.events).saturating_mul(context.global.budget());
        active_cell.demand.observe(offered.units.min(most), offered.events.into(), now.steady_ns);
        if offered.events > 0 {
            active_cell.note_asked(now.steady_ns);
        } else if active_cell.is_idle(now.steady_ns) && active_cell.demand.units_milli() > 0 {
            // A mean that falls slowly would make the others lend units that go back at once.
            active_cell.demand = Demand::since(now.steady_ns);
        }
        let resource = Resource::of(context.global);
        let scarce = match resource {
            Resource::Rights => self.rebalance_window(
                active_cell,
                (node, preference, owner),
                key,
                context,
                cell,
                offered.denied,
                now,
            ),
            _ => {
                let of = (node, preference, owner);
                self.rebalance_rate(active_cell, of, key, context, cell, &resource, &offered, now)
            }
        };
        let unwritten = cell.account.as_deref_mut()?.take_unwritten();
        let batch = if unwritten { node.write_account(key, cell, now) } else { 0 };
        for (region, topic, entry) in self.tells.drain(..) {
            if let Some(peer) = self.peers.get_mut(&region) {
                let early = match topic {
                    Topic::Grant(..) => mutated(Mutation::GrantBeforeDurable),
                    Topic::Give(..) => mutated(Mutation::GiveBeforeDurable),
                    _ => false,
                };
                peer.outbox.tell(topic, entry, if early { 0 } else { batch });
            }
        }
        self.tell_news(active_cell, (node, key, owner), context, cell, &resource, scarce, now);
        let account = cell.account.as_deref_mut()?;
        if active_cell.is_idle(now.steady_ns) && account.is_at_home(now) {
            if account.leave_alone(Rebalancer::Regions) && account.is_empty(now) {
                cell.forget_held_if_renumbered();
                cell.account = None;
            }
            return Some((false, 0));
        }
        let mut after_ns = rebalance_after_ns(active_cell.demand.events_milli(), scarce);
        let is_rate = matches!(resource, Resource::Rate { .. });
        if is_rate && active_cell.is_new(now.steady_ns, NEW_REBALANCES_NS) && offered.events > 0 {
            after_ns = after_ns.min(NEW_REBALANCE_NS);
        }
        Some((true, if self.wants_pool { after_ns.min(POOL_NS) } else { after_ns }))
    }

    /// Rebalances a rate, or a sliding window: lends and gives back.
    #[expect(clippy::too_many_arguments, reason = "one look has one caller")]
    fn rebalance_rate(
        &mut self,
        active_cell: &mut ActiveCell,
        (node, preference, owner): (&Node, &Preference, Owner),
        key: CellKey,
        context: &CellContext<'_>,
        cell: &mut HeapCell,
        resource: &Resource,
        offered: &Offered,
        now: Now,
    ) -> bool {
        let HeapCell { account: Some(account), words, .. } = cell else { return false };
        let left = account.unleased(words, now, context.salt);
        let effective = account.effective();
        let budget = context.global.budget();
        if active_cell.advertised.is_none() && (left < effective.units || self.beats.process_number() > 1) {
            // Units are gone, so this region was asked. After a restart this is unknown, and counts as asked.
            active_cell.note_asked(now.steady_ns);
        }
        note_short(active_cell, account, offered, budget, now);
        let (reach, standing) = match node.leases {
            None => (Part::default(), account.standing()),
            // The standing part as the others know it, with the piece of it that is in the pool.
            Some(_) => (
                within_reach(node, key.1, account, context, owner),
                self.standing_for(node, account, owner, context, now),
            ),
        };
        let beside = self.kept_by_mates(node, account, owner, context, resource, now);
        if let Resource::Units { window_ns, .. } = resource {
            let missed = if offered.denied <= budget { u64::from(offered.missed).min(budget) } else { 0 };
            let used = effective.units.saturating_sub(left).saturating_add(beside);
            active_cell.note_used((used, missed), *window_ns);
        }
        let own = Seat {
            region: self.me().member,
            want: resource.want_here(active_cell, standing, budget, now.steady_ns),
            holds: resource.weigh(effective).saturating_add(resource.weigh(reach)).saturating_add(beside),
            standing: resource.weigh(standing),
            short: if active_cell.short > effective.units { active_cell.short } else { 0 },
            weight: u32::try_from(resource.weigh(standing)).unwrap_or(1),
            class: preference.class(self.me().member),
            floor: preference.floor(resource.weigh(standing)),
        };
        let mut others: SmallVec<[Seat; 8]> = SmallVec::new();
        for peer in self.peers.values().filter(|peer| self.is_partner(peer, now)) {
            if self.is_spoken_for(node, owner, peer) {
                continue;
            }
            let standing = self.standing_of(peer.incarnation, context, now);
            let mut seat =
                active_cell.seat(peer.incarnation.member, standing, resource, now.steady_ns, peer.round_ns());
            let is_less = Rough::new(resource.weigh(standing)) > Rough::new(seat.standing);
            if is_less && seat.want == 0 && seat.short == 0 {
                // Another node of the peer's region speaks for the peer.
                continue;
            }
            seat.class = preference.class(seat.region);
            seat.floor = preference.floor(seat.standing);
            others.push(seat);
        }
        let held: SmallVec<[Borrowed; 8]> = account
            .book()
            .held()
            .iter()
            .map(|held| Borrowed { from: held.from.member, number: held.number, part: held.part })
            .collect();
        let lent: SmallVec<[(MemberId, Part); 8]> =
            account.book().lent().iter().map(|lent| (lent.to.member, lent.part)).collect();
        let nets = active_cell.rebalanced_ns / NET_NS != now.steady_ns / NET_NS;
        let spare = account.spare(self.lent_for_ns(), now);
        let spare = Part {
            rate: spare.rate.saturating_add(reach.rate),
            units: spare.units.saturating_add(reach.units),
        };
        let flow = RateView {
            own,
            others: &others,
            spare,
            floor: floor_of(preference, standing),
            held: &held,
            lent: &lent,
            nets,
            units_total: budget,
            units: effective.units,
            asked: active_cell.demand.units_milli().div_ceil(1_000),
            cost_milli: active_cell.demand.cost_milli(),
            needs_units: active_cell.short > 0,
            least: active_cell.least,
            is_rate: matches!(resource, Resource::Rate { .. }),
            left: left.saturating_add(reach.units),
            is_mate: matches!(owner, Owner::Mate(_)),
            is_new: active_cell.is_new(now.steady_ns, NEW_NS),
        };
        let mut plan = plan(&flow);
        if !context.in_force {
            plan.lend.clear();
            plan.give_back = held.iter().map(|loan| (loan.from, loan.number)).collect();
        }
        if active_cell.is_idle(now.steady_ns) {
            // The regions that last wanted some have not been asked either, and would give it back.
            plan.lend.clear();
            plan.give_back = held.iter().map(|loan| (loan.from, loan.number)).collect();
        }
        let scarce = plan.is_scarce;
        let missing = self.carry_out(plan, active_cell, node, key, context, cell, resource, now);
        if let HeapCell { account: Some(account), .. } = cell
            && node.leases.is_some()
        {
            account.want_for_others(missing);
            self.wants_pool = missing != Part::default();
            match account.renews_until_ns() {
                Some(until_ns) => self.backed.insert(key, until_ns),
                None => self.backed.remove(&key),
            };
        }
        scarce
    }

    /// Carries a plan out. Returns what was to be lent, but must first be taken from the region's pool.
    #[expect(clippy::too_many_arguments, reason = "one look has one caller")]
    fn carry_out(
        &mut self,
        plan: Plan,
        active_cell: &mut ActiveCell,
        node: &Node,
        key: CellKey,
        context: &CellContext<'_>,
        cell: &mut HeapCell,
        resource: &Resource,
        now: Now,
    ) -> Part {
        let mut missing = Part::default();
        let HeapCell { account: Some(account), words, .. } = cell else { return missing };
        let durable = node.catalogue().is_durable(key.0);
        let mut sessions = node.sessions_mut();
        for (region, number) in plan.give_back {
            let Some(from) =
                account.book().held().iter().find(|held| held.number == number && held.from.member == region)
            else {
                continue;
            };
            let from = from.from;
            let Some(session) = sessions.get_mut(&from) else { continue };
            if let Ok(back) = account.give_back(words, context, (from, number), session, (durable, now)) {
                let entry = Entry::Return { id: ShortId::default(), back };
                self.tells.push((region, Topic::Return(key, number), entry));
            }
        }
        if node.is_journal_down() || self.restored_disk {
            return missing;
        }
        for (region, part) in plan.lend {
            let Some(peer) = self.peers.get(&region) else { continue };
            let to = peer.incarnation;
            if self.versions.closed(to) {
                continue;
            }
            let wanted = part;
            let mut part = part;
            if node.leases.is_some() {
                // Units to lend are taken from the pool first. The units that came must be worth a loan.
                let spare = account.spare(self.lent_for_ns(), now);
                let mut units = spare.units;
                if !account.algorithm.has_rate() {
                    units = units.min(account.unleased(words, now, context.salt));
                }
                part = Part { rate: wanted.rate.min(spare.rate), units: wanted.units.min(units) };
            }
            if part != wanted {
                missing.rate = missing.rate.saturating_add(wanted.rate);
                missing.units = missing.units.saturating_add(wanted.units);
                if resource.weigh(part) < resource.weigh(wanted) / PIECES || part.units == 0 {
                    continue;
                }
            }
            let with_peer = account.book().lent().iter().filter(|lent| lent.to == to).count();
            if with_peer >= LOANS_PER_PEER_MAX {
                continue;
            }
            let Some(session) = sessions.get_mut(&to) else { continue };
            let tokens = part.units.min(account.unleased(words, now, context.salt));
            let number = self.loans.take(node);
            let offer = Offer { number, to, part, tokens, ttl_ns: self.home.loan_ttl_ns };
            if let Ok(grant) = account.lend(words, context, &offer, session, now) {
                missing.rate = missing.rate.saturating_sub(part.rate);
                missing.units = missing.units.saturating_sub(part.units);
                self.traffic.lent += 1;
                let loans = (account.book().lent().len() + account.book().held().len()) as u64;
                self.traffic.loans_max = self.traffic.loans_max.max(loans);
                active_cell.pieces.push(Piece {
                    to: region,
                    weight: resource.weigh(part),
                    at_ns: now.steady_ns,
                });
                let entry = Entry::Grant { id: ShortId::default(), grant };
                self.tells.push((region, Topic::Grant(key, number), entry));
            }
        }
        missing
    }

    /// The longest time that a loan counts without being renewed.
    fn lent_for_ns(&self) -> u64 {
        let drift_ppm = self.versions.version().map_or(0, |version| version.drift_ppm);
        stretch(self.home.loan_ttl_ns, drift_ppm)
    }

    /// Rebalances a window's rights: asks for them, and gives.
    #[expect(clippy::too_many_arguments, reason = "one look has one caller")]
    fn rebalance_window(
        &mut self,
        active_cell: &mut ActiveCell,
        (node, preference, owner): (&Node, &Preference, Owner),
        key: CellKey,
        context: &CellContext<'_>,
        cell: &mut HeapCell,
        denied: u64,
        now: Now,
    ) -> bool {
        let (mut in_hand, end_ns) = {
            let Some(account) = cell.account.as_deref() else { return false };
            (account.available(&cell.words, cell.reserved(), now, context.salt), account.window())
        };
        let Some(account) = cell.account.as_deref_mut() else { return false };
        active_cell.enter(end_ns);
        let heard = |peer: &&Peer| peer.is_reached(now.steady_ns, REACH_NS);
        let pooled = within_reach(node, key.1, account, context, owner).units;
        let reached = || self.peers.values().filter(heard);
        let time_left_ns = time_left_ns(end_ns, now);
        let window_ns = u128::from(context.global.period_ns().max(1));
        // The floor falls as the window goes by, since fewer requests may still come.
        let place = |region: MemberId, standing_units: u64, stake: Stake| {
            let floor = u128::from(preference.floor(standing_units)) * u128::from(time_left_ns) / window_ns;
            let floor = u64::try_from(floor).unwrap_or(u64::MAX).min(standing_units);
            Stake { class: preference.class(region), floor, ..stake }
        };
        let place_of = |peer: &Peer| {
            let standing = self.standing_of(peer.incarnation, context, now).units;
            let region = peer.incarnation.member;
            let stake = active_cell.stake(region, standing, now.steady_ns, peer.round_ns());
            (region, place(region, standing, stake))
        };
        let (mut others, mut mates) = (SmallVec::new(), SmallVec::new());
        for peer in reached() {
            if !self.is_spoken_for(node, owner, peer) {
                others.push(place_of(peer));
            } else if pooled == 0 {
                mates.push(place_of(peer));
            }
        }
        // Without a pool, requests also find units at mates, by forwards. They do not if the mates were just
        // asked in vain, or if the denied request is not forwarded.
        let least = denied.max(1);
        let finds = owner == Owner::Own
            && !node.has_pool(key.1)
            && (denied == 0 || account.is_forwarded(now) || node.forwards.is_asking(key))
            && node.forwards.next_mate(key, least, now).is_some();
        // A mate with less than a request needs has nothing for it.
        let lefts =
            mates.iter().map(|(_, stake): &(MemberId, Stake)| stake.left).filter(|left| *left >= least);
        let of_mates: u64 = if finds { lefts.fold(0, u64::saturating_add) } else { 0 };
        let left = in_hand.saturating_add(pooled);
        let own = Stake { left, demand_milli: active_cell.demand.sure_milli(), ..Stake::default() };
        let mut stock = WindowView {
            own: place(self.me().member, account.standing().units, own),
            others,
            mates,
            time_left_ns,
            round_ns: reached().map(Peer::round_ns).max().unwrap_or(0),
            denied: if denied <= context.global.budget() { denied } else { 0 },
            likely: match owner {
                Owner::Each => 0,
                _ => {
                    let half = self.standing_for(node, account, owner, context, now).units.div_ceil(2);
                    let likely = (u128::from(half) * u128::from(time_left_ns)).div_ceil(window_ns);
                    u64::try_from(likely).unwrap_or(half)
                }
            },
        };
        let received = account.open().received().iter().map(|(_, units)| units).sum();
        if received != active_cell.received {
            (active_cell.received, active_cell.asked_in_vain) = (received, 0);
            if owner != Owner::Each && stock.own.left == 0 {
                // A region that was asked has answered: with few units, the next request need not wait.
                active_cell.quiet_until_ns = now.steady_ns;
            }
        }
        if std::mem::take(&mut active_cell.regive) {
            if !account.open().given().is_empty() {
                account.write_again();
            }
            for (region, cumulative) in account.open().given() {
                let entry = Entry::Give { id: ShortId::default(), end_ns, cumulative: *cumulative };
                self.tells.push((*region, Topic::Give(key, end_ns), entry));
            }
        }
        let asked = std::mem::take(&mut active_cell.asked);
        let is_closed = node.is_closed(context, end_ns);
        let may_give =
            !node.is_journal_down() && self.owns_nothing().is_none() && context.in_force && !is_closed;
        let (mut for_others, budget) = (0, context.global.budget());
        for asked in asked.into_iter().filter(|asked| asked.end_ns == end_ns && may_give) {
            let AskedRights { by, units, at_ns, .. } = asked;
            // Nobody is given more than it believes that this region owns. The rest goes back to the regions
            // that gave it, and they give it on.
            let stands = self.versions.surely_stands_for_region_of(self.me().member, budget, context.salt);
            let (wanted, may_give) = (stock.give(by, units), account.open().may_give(by, stands));
            let could = wanted.min(may_give);
            let give = could.min(in_hand);
            if could > give && now.steady_ns.saturating_sub(at_ns) < POOL_NS_MAX {
                for_others += could - give;
                active_cell.asked.push(AskedRights { units: could - give, ..asked });
            }
            let mut gifts: SmallVec<[(MemberId, u64); 4]> = SmallVec::new();
            gifts.push((by, give));
            let mut beyond = (wanted - could).min(in_hand - give);
            for (region, _) in account.open().received().iter().filter(|(region, _)| *region != by) {
                if beyond > 0 && self.peers.get(region).is_some_and(|peer| self.is_partner(peer, now)) {
                    let back = account.open().may_give(*region, 0).min(beyond);
                    beyond -= back;
                    gifts.push((*region, back));
                }
            }
            for (to, give) in gifts {
                if give > 0
                    && let Ok(cumulative) = account.give(context, to, give, in_hand)
                {
                    in_hand -= give;
                    stock.own.left -= give;
                    stock
                        .others
                        .iter_mut()
                        .filter(|(r, _)| *r == to)
                        .for_each(|(_, stake)| stake.left += give);
                    self.traffic.given += 1;
                    let entry = Entry::Give { id: ShortId::default(), end_ns, cumulative };
                    self.tells.push((to, Topic::Give(key, end_ns), entry));
                }
            }
            // A new advertisement tells the asker whom not to ask again.
            active_cell.advertised = None;
        }
        account.want_for_others(Part { rate: 0, units: for_others });
        self.wants_pool = for_others > 0;
        // A node that joined since the window began, and is asked now, goes by what the pool was told.
        if context.local.spares()
            && now.steady_ns >= active_cell.says_after_ns
            && stock.others.iter().any(|(_, stake)| stake.demand_milli > 0)
        {
            (self.says, active_cell.says_after_ns) = (true, now.steady_ns + SAY_NS);
        }
        if node.leases.is_none() {
            account.set_low_water(stock.low_water());
        }
        stock.own.left = stock.own.left.saturating_add(of_mates);
        let short = stock.own.left < stock.low_water() || stock.denied > stock.own.left;
        // Nobody shall give units that this node cannot take up.
        let may_ask = self.owns_nothing().is_none()
            && !context.local.owns_nothing_of(end_ns)
            && context.in_force
            && !is_closed;
        if !short {
            active_cell.asked_in_vain = 0;
        } else if now.steady_ns >= active_cell.quiet_until_ns && may_ask {
            let asks = stock.ask(ASKED_MAX);
            for (region, units) in &asks {
                if let Some(peer) = self.peers.get_mut(region) {
                    let entry = Entry::Ask { id: ShortId::default(), end_ns, units: *units };
                    peer.outbox.tell(Topic::Ask(key, end_ns), entry, 0);
                }
            }
            if !asks.is_empty() {
                // The next request waits until the answers can be here.
                let wait =
                    ASK_NS.max(stock.round_ns + stock.round_ns / 4) << active_cell.asked_in_vain.min(6);
                active_cell.asked_in_vain = active_cell.asked_in_vain.saturating_add(1);
                active_cell.quiet_until_ns = now.steady_ns + wait.min(ASK_NS_MAX);
            }
        }
        short
    }

    /// Advertises how a cell is doing, if that is news.
    #[expect(clippy::too_many_arguments, reason = "one look has one caller")]
    fn tell_news(
        &mut self,
        active_cell: &mut ActiveCell,
        (node, key, owner): (&Node, CellKey, Owner),
        context: &CellContext<'_>,
        cell: &HeapCell,
        resource: &Resource,
        scarce: bool,
        now: Now,
    ) {
        let Some(account) = cell.account.as_deref() else { return };
        let demand = active_cell.told_demand_milli(resource, now.steady_ns);
        let more = resource.weigh(within_reach(node, key.1, account, context, owner));
        let left = account.unleased(&cell.words, now, context.salt).saturating_add(more);
        let beside = self.kept_by_mates(node, account, owner, context, resource, now);
        let holds = resource.weigh(account.effective()).saturating_add(more).saturating_add(beside);
        // An idle cell needs no advertisements, until some region is asked for it and says so.
        let is_idle = active_cell.is_idle(now.steady_ns);
        let stands = (owner != Owner::Each)
            .then(|| Rough::new(resource.weigh(self.standing_for(node, account, owner, context, now))));
        let due = match active_cell.advertised {
            None => true,
            Some(advertised) => {
                let age = now.steady_ns.saturating_sub(advertised.at_ns);
                let differs =
                    |old: Rough, new: u64, part: u64| old.get().abs_diff(new) > new.max(old.get()) / part;
                // The others assume that what was left is used at the advertised demand.
                let by_now = |advertised: Advertised, age: u64| {
                    Rough::new(advertised.left.get().saturating_sub(units_in(advertised.demand.get(), age)))
                };
                let changed = advertised.stands != stands
                    || differs(advertised.demand, demand, if scarce { 8 } else { 3 })
                    || differs(advertised.holds, holds, 32)
                    || (*resource == Resource::Rights && differs(by_now(advertised, age), left, 8));
                let is_old = age >= if scarce { REFRESH_NS / 4 } else { REFRESH_NS };
                (changed && age >= 15_000_000) || (is_old && !is_idle)
            }
        };
        if !due {
            return;
        }
        let advertised = Advertised {
            demand: Rough::new(demand),
            holds: Rough::new(holds),
            left: Rough::new(left),
            stands,
            at_ns: now.steady_ns,
        };
        active_cell.advertised = Some(advertised);
        for peer in self.peers.values_mut().filter(|peer| peer.is_reached(now.steady_ns, REACH_NS)) {
            let id = ShortId::default();
            let Advertised { demand, holds, left, .. } = advertised;
            let entry = Entry::Advertisement { id, demand, holds, left, stands };
            peer.outbox.tell(Topic::Advertisement(key), entry, 0);
            if active_cell.short > account.effective().units {
                peer.outbox.tell(Topic::Short(key), Entry::Short { id, units: active_cell.short }, 0);
            }
        }
    }

    /// Whether a peer can be lent to and asked now: it was heard, and the catalogue names it.
    pub(super) fn is_partner(&self, peer: &Peer, now: Now) -> bool {
        peer.is_reached(now.steady_ns, REACH_NS) && self.versions.owns(peer.incarnation)
    }

    /// The standing part that this node speaks for.
    fn standing_for(
        &self,
        node: &Node,
        account: &Account,
        owner: Owner,
        context: &CellContext<'_>,
        now: Now,
    ) -> Part {
        match owner {
            Owner::Each => return self.standing_of(self.me(), context, now),
            // The rest is in the pool, and the owner speaks for it.
            Owner::Mate(_) => return account.standing(),
            Owner::Own => {}
        }
        let members = node.guard.as_ref().map_or(&[][..], Guard::members);
        let others = members.iter().filter_map(|region| self.peers.get(region)).map(|peer| peer.incarnation);
        let parts = std::iter::once(self.me())
            .chain(others)
            .map(|incarnation| self.standing_of(incarnation, context, now));
        parts.fold(Part::default(), |all, part| Part {
            rate: all.rate + part.rate,
            units: all.units + part.units,
        })
    }

    /// At the owner of a sliding window: how much of the region's standing part its mates keep. The region
    /// holds those units. They count as used, since this node cannot lend them.
    fn kept_by_mates(
        &self,
        node: &Node,
        account: &Account,
        owner: Owner,
        context: &CellContext<'_>,
        resource: &Resource,
        now: Now,
    ) -> u64 {
        if owner != Owner::Own || !matches!(resource, Resource::Units { .. }) {
            return 0;
        }
        let standing = self.standing_for(node, account, owner, context, now).units;
        let pool = context.local.pool(context.global, context.salt).unwrap_or_default();
        standing.saturating_sub(account.standing().units).saturating_sub(pool.units)
    }

    /// Whether this node speaks for a peer about a cell.
    fn is_spoken_for(&self, node: &Node, owner: Owner, peer: &Peer) -> bool {
        let is_mate =
            || node.guard.as_ref().is_some_and(|guard| guard.members().contains(&peer.incarnation.member));
        owner == Owner::Own && is_mate()
    }

    /// The standing part that an incarnation has of a cell, as far as is known here.
    fn standing_of(
        &self,
        incarnation: Incarnation,
        context: &CellContext<'_>,
        now: Now,
    ) -> acequia_limits::Part {
        let kind = membership::kind_of(context.global, now);
        self.versions.share(incarnation, context.global.budget(), context.salt, kind)
    }
}

/// Notes whether a request needs more units at once than there are, not counting units borrowed for such
/// requests.
fn note_short(active_cell: &mut ActiveCell, account: &Account, offered: &Offered, budget: u64, now: Now) {
    let units = account.effective().units;
    let is_alone = |part: &Part| account.algorithm.has_rate() && part.rate == 0;
    let held = account.book().held().iter().map(|held| held.part);
    let borrowed: u64 = held.filter(is_alone).map(|part| part.units).sum();
    let since_ns = now.steady_ns.saturating_sub(active_cell.short_ns);
    if offered.largest > units.saturating_sub(borrowed) && offered.largest <= budget {
        active_cell.short = offered.largest;
        active_cell.short_ns = now.steady_ns;
    } else if since_ns > if active_cell.short > units { SHORT_NS } else { SPARE_SHORT_NS } {
        active_cell.short = 0;
    }
    if active_cell.short == 0 {
        active_cell.least = u64::MAX;
    } else if offered.events > 0 {
        active_cell.least = active_cell.least.min(offered.smallest);
    }
}

/// How much of the region's pool could be taken to give it away.
fn within_reach(
    node: &Node,
    tag: CellTag,
    account: &Account,
    context: &CellContext<'_>,
    owner: Owner,
) -> Part {
    let unknown = || match owner {
        Owner::Each => context.local.each_of_pool(context.global, context.salt),
        Owner::Own => context.local.pool(context.global, context.salt).unwrap_or_default(),
        Owner::Mate(_) => Part::default(),
    };
    match owner {
        // The owner gives it away.
        Owner::Mate(_) => Part::default(),
        _ if !node.has_pool(tag) => Part::default(),
        _ => account.within_reach().unwrap_or_else(unknown),
    }
}

/// The piece of a standing part that is not lent.
fn floor_of(preference: &Preference, standing: Part) -> Part {
    // At most the standing part, so that it fits.
    let rate = preference.floor(u64::from(standing.rate)) as u32;
    Part { rate, units: preference.floor(standing.units) }
}
