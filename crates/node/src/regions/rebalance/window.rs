//! Rebalances a window's rights: they are asked for, and given away for good.

use acequia_limits::Part;
use acequia_rights::MemberId;
use smallvec::SmallVec;

use super::{
    super::{
        Sharing,
        cell::{ActiveCell, AskedRights, View, WindowState, time_left_ns},
        outbox::Topic,
        peer::Peer,
        policy::{Stake, WindowView},
        wire::{FrameEntry, ShortId},
    },
    Effects, Round,
};
use crate::{cell::account::Account, forwards::Owner, journal::HeapCell, settings::SETTINGS};

/// The open window of a cell during a rebalance.
struct OpenWindow<'a> {
    account: &'a mut Account,
    end_ns: u64,
    /// Units that this node can give away now.
    in_hand: u64,
    view: WindowView,
    /// Whether rights of the window may move: the limit is in force, and this node has not left the window.
    moves: bool,
}

impl Sharing {
    /// Rebalances a window's rights: gives them to those that asked, and asks for them. Returns whether this
    /// region is short of them.
    pub(super) fn rebalance_window(
        &mut self,
        round: &Round<'_>,
        active_cell: &mut ActiveCell,
        cell: &mut HeapCell,
        denied: u64,
        effects: &mut Effects,
    ) -> bool {
        let now_ns = round.now.steady_ns;
        let Some(account) = cell.account.as_deref() else { return false };
        let in_hand = account.available(&cell.state, cell.reserved(), round.now, round.context.salt);
        let Some(account) = cell.account.as_deref_mut() else { return false };
        let end_ns = account.window();
        let view = self.window_view(round, active_cell, account, in_hand, denied);
        let at_mates = units_at_mates(round, account, &view, denied);
        let received = account.open().received().iter().map(|(_, units)| units).sum();
        if active_cell.window.note_received(received) && round.owner != Owner::Each && view.own.left == 0 {
            // A region that was asked has answered: with few units, the next request need not wait.
            active_cell.window.quiet_until_ns = now_ns;
        }
        if std::mem::take(&mut active_cell.window.tells_again) {
            tell_gifts_again(round, account, end_ns, effects);
        }
        let moves = round.context.in_force && !round.node.is_closed(round.context, end_ns);
        let mut window = OpenWindow { account, end_ns, in_hand, view, moves };
        let for_others = self.give_to_askers(round, active_cell, &mut window, effects);
        window.account.want_for_others(Part { rate: 0, units: for_others });
        effects.wants_pool = for_others > 0;
        effects.reports = is_report_due(round, &mut active_cell.window, &window.view);
        if round.node.leases.is_none() {
            window.account.set_low_water(window.view.low_water());
        }
        window.view.own.left = window.view.own.left.saturating_add(at_mates);
        self.ask_if_short(round, &mut active_cell.window, &window)
    }

    /// What this node knows of the open window.
    fn window_view(
        &self,
        round: &Round<'_>,
        active_cell: &ActiveCell,
        account: &Account,
        in_hand: u64,
        denied: u64,
    ) -> WindowView {
        let now = round.now;
        let time_left_ns = time_left_ns(account.window(), now);
        let window_ns = u128::from(round.context.global.period_ns().max(1));
        // The floor falls as the window goes by, since fewer requests may still come.
        let place = |region: MemberId, standing_units: u64, stake: Stake| {
            let floor =
                u128::from(round.preference.floor(standing_units)) * u128::from(time_left_ns) / window_ns;
            let floor = u64::try_from(floor).unwrap_or(u64::MAX).min(standing_units);
            Stake { class: round.preference.class(region), floor, ..stake }
        };
        let place_of = |peer: &Peer| {
            let standing = self.standing_of(peer.incarnation, round).units;
            let region = peer.incarnation.member;
            let stake = active_cell.stake(region, standing, now.steady_ns, peer.round_ns());
            let placed = place(region, standing, stake);
            // What others keep back for a debt, they cannot use.
            let unused = Stake { demand_milli: 0, floor: 0, ..placed };
            (region, if account.owes() { unused } else { placed })
        };
        let pooled = round.within_reach(account).units;
        let reached =
            || self.peers.values().filter(|peer| peer.is_reached(now.steady_ns, SETTINGS.sharing.reach_ns));
        let (mut others, mut mates) = (SmallVec::new(), SmallVec::new());
        for peer in reached() {
            if !round.acts_for(peer) {
                others.push(place_of(peer));
            } else if pooled == 0 {
                mates.push(place_of(peer));
            }
        }
        let left = in_hand.saturating_add(pooled);
        let own = Stake { left, demand_milli: active_cell.demand.sure_milli(), ..Stake::default() };
        let likely = match round.owner {
            Owner::Each => 0,
            Owner::Own | Owner::Mate(_) => {
                let half = self.standing_for(round, account).units.div_ceil(2);
                let likely = (u128::from(half) * u128::from(time_left_ns)).div_ceil(window_ns);
                u64::try_from(likely).unwrap_or(half)
            }
        };
        WindowView {
            own: place(self.me().member, account.standing().units, own),
            others,
            mates,
            time_left_ns,
            round_ns: reached().map(Peer::round_ns).max().unwrap_or(0),
            denied: if denied <= round.budget() { denied } else { 0 },
            likely,
        }
    }

    /// Gives rights to the members that asked for them. Returns how many more must first be taken from the
    /// region's pool.
    fn give_to_askers(
        &mut self,
        round: &Round<'_>,
        active_cell: &mut ActiveCell,
        window: &mut OpenWindow<'_>,
        effects: &mut Effects,
    ) -> u64 {
        let asked = std::mem::take(&mut active_cell.window.asked);
        if round.node.is_journal_down() || self.owns_nothing().is_some() || !window.moves {
            return 0;
        }
        let mut for_others = 0;
        let end_ns = window.end_ns;
        let mut kept = window.account.kept_for_debts();
        for asked in asked.into_iter().filter(|asked| asked.end_ns == end_ns) {
            // What is kept back for a debt goes to the region that owes.
            let owed = active_cell.view(asked.by, round.now.steady_ns).map_or(0, View::owed);
            let pays = owed.min(kept).min(asked.units);
            kept -= pays;
            let wanted = window.view.give(asked.by, asked.units).max(pays);
            let could = wanted.min(self.may_give(round, window, asked.by));
            let give = could.min(window.in_hand);
            let missing = could - give;
            let waited_ns = round.now.steady_ns.saturating_sub(asked.at_ns);
            if missing > 0 && waited_ns < SETTINGS.sharing.pool_ns_max {
                for_others += missing;
                active_cell.window.asked.push(AskedRights { units: missing, ..asked });
            }
            let beyond = (wanted - could).min(window.in_hand - give);
            let gifts_back = self.gifts_back(round, window, asked.by, beyond);
            self.give(round, window, asked.by, give, effects);
            for (region, back) in gifts_back {
                self.give(round, window, region, back, effects);
            }
            // A new advertisement tells the asker whom not to ask again.
            active_cell.advertised = None;
        }
        for_others
    }

    /// Nobody is given more than it believes that this region owns.
    fn may_give(&self, round: &Round<'_>, window: &OpenWindow<'_>, to: MemberId) -> u64 {
        let (me, salt) = (self.me().member, round.context.salt);
        let stands = self.versions.surely_stands_for_region_of(me, round.budget(), salt);
        window.account.open().may_give(to, stands)
    }

    /// Rights beyond what an asker may be given: they go back to the regions that gave them, and these give
    /// them on.
    fn gifts_back(
        &self,
        round: &Round<'_>,
        window: &OpenWindow<'_>,
        asker: MemberId,
        mut beyond: u64,
    ) -> SmallVec<[(MemberId, u64); 4]> {
        let mut gifts = SmallVec::new();
        let open = window.account.open();
        for (region, _) in open.received().iter().filter(|(region, _)| *region != asker) {
            if beyond > 0 && self.peers.get(region).is_some_and(|peer| self.is_partner(peer, round.now)) {
                let back = open.may_give(*region, 0).min(beyond);
                beyond -= back;
                gifts.push((*region, back));
            }
        }
        gifts
    }

    /// Gives a member some rights.
    fn give(
        &mut self,
        round: &Round<'_>,
        window: &mut OpenWindow<'_>,
        to: MemberId,
        units: u64,
        effects: &mut Effects,
    ) {
        if units == 0 {
            return;
        }
        let Ok(cumulative) = window.account.give(round.context, to, units, window.in_hand) else { return };
        window.in_hand -= units;
        window.view.own.left -= units;
        for (_, stake) in window.view.others.iter_mut().filter(|(region, _)| *region == to) {
            stake.left += units;
        }
        self.traffic.given += 1;
        tell_gift(round, to, window.end_ns, cumulative, effects);
    }

    /// Asks other members for rights, if this region is short of them. Returns whether it is.
    fn ask_if_short(&mut self, round: &Round<'_>, state: &mut WindowState, window: &OpenWindow<'_>) -> bool {
        let OpenWindow { end_ns, ref view, moves, .. } = *window;
        if view.own.left >= view.low_water() && view.denied <= view.own.left {
            state.asked_in_vain = 0;
            return false;
        }
        let now_ns = round.now.steady_ns;
        // Nobody shall give units that this node cannot take up.
        let takes = self.owns_nothing().is_none() && !round.context.local.owns_nothing_of(end_ns);
        if now_ns < state.quiet_until_ns || !takes || !moves {
            return true;
        }
        let asks = view.ask(SETTINGS.sharing.asked_max);
        for (region, units) in &asks {
            if let Some(peer) = self.peers.get_mut(region) {
                let entry = FrameEntry::Ask { id: ShortId::default(), end_ns, units: *units };
                peer.outbox.tell(Topic::Ask(round.key, end_ns), entry, 0);
            }
        }
        if !asks.is_empty() {
            // The next request waits until the answers can be here.
            let wait_ns =
                SETTINGS.sharing.ask_ns.max(view.round_ns + view.round_ns / 4) << state.asked_in_vain.min(6);
            state.asked_in_vain = state.asked_in_vain.saturating_add(1);
            state.quiet_until_ns = now_ns + wait_ns.min(SETTINGS.sharing.ask_ns_max);
        }
        true
    }
}

/// Units that requests find at mates, by forwards, if the region has no pool. They find none if the mates
/// were just asked in vain, or if the denied request is not forwarded.
fn units_at_mates(round: &Round<'_>, account: &Account, view: &WindowView, denied: u64) -> u64 {
    let forwards = &round.node.forwards;
    // A mate with less than a request needs has nothing for it.
    let least = denied.max(1);
    let finds = round.owner == Owner::Own
        && !round.node.has_pool(round.key.tag)
        && (denied == 0 || account.is_forwarded(round.now) || forwards.is_asking(round.key))
        && forwards.next_mate(round.key, least, round.now).is_some();
    let lefts = view.mates.iter().map(|(_, stake)| stake.left).filter(|left| *left >= least);
    if finds { lefts.fold(0, u64::saturating_add) } else { 0 }
}

/// Tells everybody again what it was given in a window.
fn tell_gifts_again(round: &Round<'_>, account: &mut Account, end_ns: u64, effects: &mut Effects) {
    if !account.open().given().is_empty() {
        account.write_again();
    }
    for (region, cumulative) in account.open().given() {
        tell_gift(round, *region, end_ns, *cumulative, effects);
    }
}

fn tell_gift(round: &Round<'_>, to: MemberId, end_ns: u64, cumulative: u64, effects: &mut Effects) {
    let entry = FrameEntry::Give { id: ShortId::default(), end_ns, cumulative };
    effects.tell(to, Topic::Give(round.key, end_ns), entry);
}

/// Whether the pool shall be told what this node has. A node that joined since the window began, and is asked
/// now, goes by that.
fn is_report_due(round: &Round<'_>, state: &mut WindowState, view: &WindowView) -> bool {
    let is_due = round.context.local.spares()
        && round.now.steady_ns >= state.reports_after_ns
        && view.others.iter().any(|(_, stake)| stake.demand_milli > 0);
    if is_due {
        state.reports_after_ns = round.now.steady_ns + SETTINGS.sharing.report_ns;
    }
    is_due
}
