//! Decides who lends what to whom, who gives back, and who asks.
//!
//! Every decision here is safe: `rights` bounds what may be lent, given or returned. A wrong, old or missing
//! view of another region wastes some of a limit and admits nothing. So this file may be changed freely: its
//! worth is measured, not proven.
//!
//! *Rates*, and the capacity of sliding windows, are pushed. Every region sees the same demands and
//! computes the same fair targets. A region with more than its target gives the others what they miss: first
//! what it borrowed from them, then its own. Burst goes along in proportion. Units alone are lent for
//! requests that need more at once than a region can hold. The *rights of a window* are pulled: a
//! region that is about to run dry asks those that have most.

use acequia_limits::{Part, RATE_PARTS};
use acequia_rights::MemberId;
use smallvec::SmallVec;

use super::target::{ResourceClaim, water_fill};

use crate::settings::SETTINGS;

/// A region's place in a cell, as one node sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) region: MemberId,
    /// How much the region could use.
    pub(crate) want: u64,
    /// How much it may use now, with what is on its way to it.
    pub(crate) holds: u64,
    /// Its standing part.
    pub(crate) standing: u64,
    /// Units that it must be able to hold at once; 0 if it can hold enough.
    pub(crate) short: u64,
    pub(crate) weight: u32,
    /// Smaller classes are served first.
    pub(crate) class: u8,
    /// How much of its standing part it gets before anybody gets more, if it wants that.
    pub(crate) floor: u64,
}

/// A loan that this region holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Borrowed {
    pub(crate) from: MemberId,
    pub(crate) number: u64,
    pub(crate) part: Part,
}

/// What this region is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    /// Units in a second, rounded up.
    pub(crate) units: u64,
    /// Units of a mean request, in thousandths.
    pub(crate) cost_milli: u64,
    /// The smallest cost since requests needed more units at once than there are, not counting units borrowed
    /// for such requests alone; `None` if none did lately.
    pub(crate) least_short: Option<u64>,
}

/// One node's knowledge of a cell's rate, or of its capacity in a sliding window.
#[derive(Debug)]
pub(crate) struct RateView<'a> {
    pub(crate) own: Seat,
    /// The regions that can be reached.
    pub(crate) others: &'a [Seat],
    /// The part that could still be lent, in rate and in units: of the own share, and of the pool.
    pub(crate) spare: Part,
    /// The piece of the part that is kept even if others need it.
    pub(crate) floor: Part,
    /// The loans that this region holds.
    pub(crate) held: &'a [Borrowed],
    /// The loans that this region has out, and to whom.
    pub(crate) lent: &'a [(MemberId, Part)],
    /// Whether it is time to end loans that go both ways between two regions.
    pub(crate) nets: bool,
    /// Units of the whole limit.
    pub(crate) units_total: u64,
    /// Units that this region can hold now.
    pub(crate) units: u64,
    pub(crate) requests: Requests,
    /// Whether this is a rate; if not, it is units of a sliding window.
    pub(crate) is_rate: bool,
    /// Units that could be charged now: of a sliding window only these may move.
    pub(crate) left: u64,
    /// Whether a mate is the cell's owner: a first request here then finds a unit there.
    pub(crate) is_mate: bool,
    /// Whether the cell became active a moment ago: a pause then says little about its demand, so nothing
    /// goes back unasked.
    pub(crate) is_new: bool,
}

/// The decisions about a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RebalancePlan {
    pub(crate) lend: SmallVec<[(MemberId, Part); 4]>,
    pub(crate) give_back: SmallVec<[(MemberId, u64); 4]>,
    /// Whether this region, or one that it sees, has less than it wants: worth another rebalance soon.
    pub(crate) is_scarce: bool,
}

/// Decides about a cell's rate, or about its capacity in a sliding window.
pub(crate) fn plan(view: &RateView<'_>) -> RebalancePlan {
    let mut plan = RebalancePlan::default();
    let seats: SmallVec<[Seat; 8]> = std::iter::once(view.own).chain(view.others.iter().copied()).collect();
    let total: u64 = seats.iter().map(|seat| seat.standing).sum();
    let targets = targets(total, &seats, view.is_rate);
    let fair = total / seats.len() as u64;
    let quantum = (total / SETTINGS.sharing.quantum).max(1);
    let band = (fair / SETTINGS.sharing.dead_band).max(quantum);
    // A region that misses at least `band` of what it wants gets all that its target allows.
    let missing = |seat: &Seat, target: u64| {
        let need = seat.want.min(target).saturating_sub(seat.holds);
        if need >= band { target.saturating_sub(seat.holds) } else { 0 }
    };
    let deficits: SmallVec<[u64; 8]> =
        seats.iter().zip(&targets).map(|(seat, target)| missing(seat, *target)).collect();
    let deficit: u64 = deficits[1..].iter().sum();
    plan.is_scarce = deficits.iter().any(|d| *d > 0) || seats.iter().any(|seat| seat.short > 0);
    lend_units(view, &mut plan);
    if view.nets && deficits.iter().all(|missed| *missed == 0) {
        net(view, &mut plan);
    }
    if view.is_rate {
        give_units_back(view, &mut plan);
    }
    if deficits[0] > 0 {
        return plan;
    }
    // A floor is kept even if nobody asks for it.
    let more = |seat: &Seat, target: u64| seat.holds.saturating_sub(target.max(seat.floor));
    let surplus = more(&view.own, targets[0]);
    let surplus_all: u64 = seats.iter().zip(&targets).map(|(seat, target)| more(seat, *target)).sum();
    // Each region with a surplus gives its part of what is missing, rounded up. Rounded down, regions with a
    // unit each would all give nothing.
    let mut give = match (deficit, surplus_all) {
        (0, _) | (_, 0) => 0,
        (d, s) if d >= s => surplus,
        (d, s) => u64::try_from((u128::from(surplus) * u128::from(d)).div_ceil(u128::from(s))).unwrap_or(0),
    };
    // Borrowed units far beyond the want go back unasked, so that their giver can lend them on.
    let unused = !view.is_new && view.own.holds > view.own.want.saturating_mul(2);
    let back = if unused { view.own.holds.saturating_sub(view.own.want + view.own.want / 4) } else { give };
    let returned = give_back(view, &deficits, back, &mut plan);
    give = give.saturating_sub(returned);
    if give >= quantum && deficit > 0 {
        lend_own(view, &deficits, give.min(deficit), quantum, &mut plan);
    }
    plan
}

/// The target of each seat: what it wants if there is enough, and its part of the rest.
///
/// The rest of a rate is split by what each seat wants. Units of a sliding window come back long after they
/// were used. If they are few, chance decides who was asked for some in that time. So the rest of a sliding
/// window first fills each seat up to its standing part.
fn targets(total: u64, seats: &[Seat], is_rate: bool) -> SmallVec<[u64; 8]> {
    let claims: SmallVec<[ResourceClaim; 8]> = seats
        .iter()
        .map(|s| ResourceClaim { want: s.want, floor: s.floor, weight: s.weight, class: s.class })
        .collect();
    let mut targets = water_fill(total, &claims);
    let mut rest = total - targets.iter().sum::<u64>();
    if !is_rate {
        let lacks = |target: u64, seat: &Seat| seat.standing.saturating_sub(target);
        let all: u128 =
            targets.iter().zip(seats).map(|(target, seat)| u128::from(lacks(*target, seat))).sum();
        let part = rest;
        for (target, seat) in targets.iter_mut().zip(seats) {
            let lack = lacks(*target, seat);
            let more = u128::from(lack) * u128::from(part) / all.max(1);
            let more = u64::try_from(more).unwrap_or(u64::MAX).min(lack);
            *target += more;
            rest -= more;
        }
    }
    let wanted: u128 = seats.iter().map(|seat| u128::from(seat.want)).sum();
    if rest > 0 && wanted > 0 {
        for (target, seat) in targets.iter_mut().zip(seats) {
            *target += u64::try_from(u128::from(rest) * u128::from(seat.want) / wanted).unwrap_or(0);
        }
    }
    targets
}

/// Gives back units that were borrowed alone, if no request here needs them, or if they are enough for a
/// request that waits at their giver.
fn give_units_back(view: &RateView<'_>, plan: &mut RebalancePlan) {
    for loan in view.held.iter().filter(|loan| loan.part.rate == 0) {
        let owner = view.others.iter().find(|seat| seat.region == loan.from);
        let is_missed = owner.is_some_and(|owner| (1..=loan.part.units).contains(&owner.short));
        if is_missed || view.requests.least_short.is_none() {
            plan.give_back.push((loan.from, loan.number));
        }
    }
}

/// Gives back a loan from a region that has borrowed as much. That region does the same, or is asked for no
/// more than it has left. Two loans that meet are of no use, and each of them may end alone.
fn net(view: &RateView<'_>, plan: &mut RebalancePlan) {
    let mut left = view.left;
    for seat in view.others {
        let mut lent = total(view.lent.iter().filter(|(to, _)| *to == seat.region).map(|(_, part)| *part));
        let mut held: SmallVec<[Borrowed; 8]> =
            view.held.iter().copied().filter(|loan| loan.from == seat.region).collect();
        held.retain(|loan| !view.is_rate || loan.part.rate > 0);
        held.sort_by_key(|loan| (loan.part.rate, loan.part.units, loan.number));
        for loan in held {
            let is_met = if view.is_rate {
                lent.rate >= loan.part.rate
            } else {
                lent.units.min(left) >= loan.part.units
            };
            if is_met {
                lent.rate = lent.rate.saturating_sub(loan.part.rate);
                lent.units = lent.units.saturating_sub(loan.part.units);
                left = left.saturating_sub(loan.part.units);
                plan.give_back.push((loan.from, loan.number));
            }
        }
    }
}

/// The sum of some parts.
fn total(parts: impl Iterator<Item = Part>) -> Part {
    parts.fold(Part::default(), |sum, part| Part {
        rate: sum.rate.saturating_add(part.rate),
        units: sum.units.saturating_add(part.units),
    })
}

/// Gives whole loans back, up to `most`: first to regions that miss something. Such a region may also get a
/// loan that is up to twice as large as the rest of `most`, and lends the excess again. Otherwise it would
/// get a loan of the own part, while its own loan stays here.
fn give_back(view: &RateView<'_>, deficits: &[u64], most: u64, plan: &mut RebalancePlan) -> u64 {
    let weigh = |part: Part| if view.is_rate { u64::from(part.rate) } else { part.units };
    let misses = |region: MemberId| {
        let at = view.others.iter().position(|seat| seat.region == region);
        at.map_or(0, |at| deficits[at + 1])
    };
    let mut held: SmallVec<[Borrowed; 8]> = view.held.iter().copied().collect();
    held.retain(|loan| !plan.give_back.contains(&(loan.from, loan.number)));
    held.sort_by_key(|loan| {
        (std::cmp::Reverse(misses(loan.from)), std::cmp::Reverse(weigh(loan.part)), loan.number)
    });
    let (mut rest, mut left) = (most, view.left);
    for loan in &held {
        let weight = weigh(loan.part);
        if weight > rest || weight == 0 || (!view.is_rate && loan.part.units > left) {
            continue;
        }
        rest -= weight;
        left = left.saturating_sub(loan.part.units);
        plan.give_back.push((loan.from, loan.number));
    }
    let larger = held.iter().filter(|loan| {
        let twice = rest.min(misses(loan.from)).saturating_mul(2);
        (rest + 1..=twice).contains(&weigh(loan.part))
            && (view.is_rate || loan.part.units <= left)
            && !plan.give_back.contains(&(loan.from, loan.number))
    });
    if let Some(loan) = larger.min_by_key(|loan| weigh(loan.part)) {
        plan.give_back.push((loan.from, loan.number));
        return most;
    }
    most - rest
}

/// Lends of the own standing part to regions that miss something, in proportion. The remainder goes to the
/// one that misses most.
fn lend_own(view: &RateView<'_>, deficits: &[u64], give: u64, quantum: u64, plan: &mut RebalancePlan) {
    let lent_units: u64 = plan.lend.iter().map(|(_, part)| part.units).sum();
    let kept = units_kept(view).max(view.floor.units);
    let mut units_left = view.spare.units.saturating_sub(lent_units).saturating_sub(kept);
    let mut rate_left = view.spare.rate.saturating_sub(view.floor.rate);
    if !view.is_rate {
        units_left = units_left.min(view.left.saturating_sub(lent_units));
    }
    let most = if view.is_rate { u64::from(rate_left) } else { units_left };
    let give = give.min(most);
    let deficit: u128 = deficits[1..].iter().map(|missed| u128::from(*missed)).sum();
    let mut by_need: SmallVec<[(u64, MemberId); 8]> =
        deficits[1..].iter().copied().zip(view.others.iter().map(|seat| seat.region)).collect();
    by_need.sort_by_key(|(missed, _)| std::cmp::Reverse(*missed));
    let share = |missed: u64| {
        let share = u128::from(give) * u128::from(missed) / deficit.max(1);
        u64::try_from(share).unwrap_or(0)
    };
    let mut odd =
        give - by_need.iter().map(|(missed, _)| share(*missed)).filter(|s| *s >= quantum).sum::<u64>();
    for (missed, region) in by_need {
        let mut piece = Some(share(missed)).filter(|piece| *piece >= quantum).unwrap_or(0);
        let more = odd.min(missed.saturating_sub(piece));
        if piece + more < quantum {
            continue;
        }
        piece += more;
        odd -= more;
        let part = if view.is_rate {
            let rate = u32::try_from(piece).unwrap_or(u32::MAX).min(rate_left);
            let units = units_with(view, region, rate).min(units_left);
            rate_left -= rate;
            units_left -= units;
            Part { rate, units }
        } else {
            let units = piece.min(units_left);
            units_left -= units;
            Part { rate: 0, units }
        };
        if part.rate > 0 || part.units > 0 {
            plan.lend.push((region, part));
        }
    }
}

/// Units that go along with a piece of the rate to a region. Burst goes with its rate, since a rate with too
/// little burst could never be used. It goes in proportion, since a region that takes more leaves others with
/// too little. The proportion counts all that was lent both ways: of many small pieces, none is worth a unit
/// alone.
fn units_with(view: &RateView<'_>, region: MemberId, rate: u32) -> u64 {
    let out = total(view.lent.iter().filter(|(to, _)| *to == region).map(|(_, part)| *part));
    let back = total(view.held.iter().filter(|loan| loan.from == region).map(|loan| loan.part));
    let rate = (u64::from(out.rate) + u64::from(rate)).saturating_sub(u64::from(back.rate));
    let whole = u128::from(RATE_PARTS);
    let due = (u128::from(rate) * u128::from(view.units_total) + whole / 2) / whole;
    u64::try_from(due).unwrap_or(u64::MAX).saturating_add(back.units).saturating_sub(out.units)
}

/// Units that are not lent, so that what is left of the own part can be used. A region that is asked keeps
/// some of its rate's units for chance, and enough for a request of twice the mean cost. A silent region
/// keeps one, so that a first request is answered at once; but none if that would leave half of the limit in
/// silent regions. For a sliding window, only that one is kept, and none if a mate is the cell's owner.
fn units_kept(view: &RateView<'_>) -> u64 {
    let regions = view.others.len() as u64 + 1;
    let for_first = u64::from(view.units_total >= 2 * regions && (view.is_rate || !view.is_mate));
    if !view.is_rate {
        return for_first;
    }
    let for_dear = view.requests.cost_milli.saturating_mul(2).div_ceil(1_000);
    view.requests.units.min(SETTINGS.sharing.units_kept).max(for_dear).max(for_first)
}

/// Lends units to regions that must be able to hold more at once than they can. If needed, everything is
/// lent, even the floor, since no smaller part would let such a request pass. But units are kept that a rate
/// in use here needs. If this region is short, too, the first of all short regions gets the units: otherwise
/// all would hand each other what is of use to none.
fn lend_units(view: &RateView<'_>, plan: &mut RebalancePlan) {
    // Only the unused units of a sliding window can move.
    let mut spare = if view.is_rate { view.spare.units } else { view.spare.units.min(view.left) };
    let is_of_use =
        view.requests.units > 0 && view.requests.least_short.is_none_or(|least| least <= view.units);
    if view.is_rate && is_of_use {
        spare = spare.saturating_sub(units_kept(view));
    }
    let short = || view.others.iter().filter(|seat| seat.short > 0);
    let first = short().map(|seat| seat.region).min();
    for seat in short() {
        if view.own.short > 0 && (first != Some(seat.region) || view.own.region < seat.region) {
            continue;
        }
        // Units that were lent to it alone already.
        let lent = view.lent.iter().filter(|(to, part)| view.is_rate && part.rate == 0 && *to == seat.region);
        let lent = total(lent.map(|(_, part)| *part)).units;
        let units = seat.short.saturating_sub(lent).min(spare);
        if units > 0 {
            spare -= units;
            plan.lend.push((seat.region, Part { rate: 0, units }));
        }
    }
}

/// A region's part in the rights of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stake {
    /// Units that could be charged there now.
    pub(crate) left: u64,
    /// Units asked for there a second, in thousandths.
    pub(crate) demand_milli: u64,
    /// Smaller classes are served first.
    pub(crate) class: u8,
    /// Units that it keeps even if nobody asks for them there.
    pub(crate) floor: u64,
}

/// One node's knowledge of the rights of the open window.
///
/// The remaining rights are best used if all regions run dry at the same time: from then on every denial is a
/// true one. So a region *needs* what it is asked for until the window ends, or its part of what is left, if
/// that part is less. It asks for these units while there is time, and gives none of them away.
#[derive(Clone, Debug)]
pub(crate) struct WindowView {
    pub(crate) own: Stake,
    /// The regions that can be reached.
    pub(crate) others: SmallVec<[(MemberId, Stake); 8]>,
    /// Mates for which this node acts, if the region's pool has nothing: what each has by itself, to be
    /// asked for when the other regions have nothing.
    pub(crate) mates: SmallVec<[(MemberId, Stake); 8]>,
    /// The time until the window ends.
    pub(crate) time_left_ns: u64,
    /// The longest round trip to a peer that can be reached.
    pub(crate) round_ns: u64,
    /// The largest cost that was denied since the last rebalance.
    pub(crate) denied: u64,
    /// Units that may still be asked for here, if the limit has few. A region that asks and still has some
    /// left gets only units beyond these.
    pub(crate) likely: u64,
}

impl WindowView {
    /// Units that a region needs until the window ends, or its part of what is left after the classes that
    /// are served first, if that is less. At least its floor, as far as it wants that, and one unit if there
    /// is any demand.
    fn need(&self, of: Stake) -> u64 {
        let others = self.others.iter().map(|(_, stake)| *stake);
        let (mut left, mut first, mut demand) = (0_u128, 0_u128, 0_u128);
        for stake in others.chain([self.own]) {
            left += u128::from(stake.left);
            if stake.class < of.class {
                first += u128::from(units_in(stake.demand_milli, self.time_left_ns));
            } else if stake.class == of.class {
                demand += u128::from(stake.demand_milli);
            }
        }
        let rest = left.saturating_sub(first);
        let part = rest.saturating_mul(u128::from(of.demand_milli)) / demand.max(1);
        let wanted = units_in(of.demand_milli, self.time_left_ns);
        let need = wanted.min(u64::try_from(part).unwrap_or(u64::MAX));
        need.max(wanted.min(of.floor)).max(u64::from(of.demand_milli > 0))
    }

    /// Units that a region gives to nobody.
    fn kept(&self, of: Stake) -> u64 {
        self.need(of).max(of.floor)
    }

    /// Below this many units it is time to ask. That is half of what is asked for at once, so that an answer
    /// comes long before nothing is left; and at least twice what is used until an answer can come.
    pub(crate) fn low_water(&self) -> u64 {
        let early_ns =
            (SETTINGS.sharing.ahead_ns / 2).max(self.round_ns.saturating_mul(2)).min(self.time_left_ns);
        let few = if self.own.demand_milli > 0 { SETTINGS.sharing.units_few / 2 } else { 0 };
        let early = units_in(self.own.demand_milli, early_ns).max(few);
        let need = self.need(self.own);
        early.min(need - need / SETTINGS.sharing.need_band).max(self.denied.min(need))
    }

    /// Whom to ask for how much: the regions that have most beyond their need, in proportion.
    pub(crate) fn ask(&self, most_asked: usize) -> SmallVec<[(MemberId, u64); 4]> {
        let mut asks = SmallVec::new();
        let denied = if self.denied > self.own.left { self.denied } else { 0 };
        if self.own.left >= self.low_water() && denied == 0 {
            return asks;
        }
        let ahead = units_in(self.own.demand_milli, self.time_left_ns.min(SETTINGS.sharing.ahead_ns))
            .max(SETTINGS.sharing.units_few);
        let wanted = ahead.min(self.need(self.own)).max(denied).saturating_sub(self.own.left);
        let more =
            |(region, stake): &(MemberId, Stake)| (stake.left.saturating_sub(self.kept(*stake)), *region);
        let of = |all: &[(MemberId, Stake)]| -> SmallVec<[(u64, MemberId); 8]> {
            all.iter().map(more).filter(|(more, _)| *more > 0).collect()
        };
        let mut rich = of(&self.others);
        if rich.is_empty() {
            rich = of(&self.mates);
        }
        rich.sort_unstable_by(|a, b| b.cmp(a));
        rich.truncate(most_asked);
        let all: u128 = rich.iter().map(|(more, _)| u128::from(*more)).sum();
        for (more, region) in rich {
            let units = (u128::from(wanted) * u128::from(more)).div_ceil(all);
            let units = u64::try_from(units).unwrap_or(u64::MAX);
            if units > 0 {
                asks.push((region, units));
            }
        }
        asks
    }

    /// How many of the rights here can be given to a region that asks for `units`: none that a region needs
    /// which is served before it. A region that still has some left, by its advertisement and its demand
    /// since, asks ahead of time.
    pub(crate) fn give(&self, to: MemberId, units: u64) -> u64 {
        let class = self.others.iter().find(|(region, _)| *region == to).map_or(0, |(_, stake)| stake.class);
        let before = self.others.iter().filter(|(_, stake)| stake.class < class);
        let missed: u64 = before
            .map(|(_, stake)| self.need(*stake).saturating_sub(stake.left))
            .fold(0, u64::saturating_add);
        let is_ahead = self.others.iter().any(|(region, stake)| *region == to && stake.left > 0);
        let kept = self.kept(self.own).max(if is_ahead { self.likely } else { 0 });
        units.min(self.own.left.saturating_sub(kept).saturating_sub(missed))
    }
}

/// Units that come in `ns` at `milli` thousandths of a unit a second.
pub(crate) fn units_in(milli: u64, ns: u64) -> u64 {
    u64::try_from(u128::from(milli) * u128::from(ns) / 1_000_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    const S: u64 = 1_000_000_000;

    fn seat(region: u16, want: u64, holds: u64) -> Seat {
        Seat {
            region: MemberId(region),
            want,
            holds,
            standing: 200_000,
            short: 0,
            weight: 1,
            class: 0,
            floor: 0,
        }
    }

    /// A bucket of a thousand units among five regions, of which this is the first.
    fn rate_view<'a>(own: Seat, others: &'a [Seat], held: &'a [Borrowed]) -> RateView<'a> {
        RateView {
            own,
            others,
            spare: Part { rate: 199_999, units: 200 },
            floor: Part::default(),
            held,
            lent: &[],
            nets: false,
            units_total: 1_000,
            units: 200,
            requests: Requests { units: 100, cost_milli: 1_000, least_short: None },
            is_rate: true,
            left: 200,
            is_mate: false,
            is_new: false,
        }
    }

    #[test]
    fn a_region_with_surplus_lends_to_the_region_that_lacks_rate() {
        let others = [
            seat(1, 800_000, 200_000),
            seat(2, 50_000, 200_000),
            seat(3, 50_000, 200_000),
            seat(4, 50_000, 200_000),
        ];
        let plan = plan(&rate_view(seat(0, 50_000, 200_000), &others, &[]));
        assert!(plan.is_scarce && plan.give_back.is_empty());
        let [(region, part)] = plan.lend[..] else { panic!("one loan: {plan:?}") };
        assert_eq!(region, MemberId(1));
        assert!((149_000..=151_000).contains(&part.rate), "{part:?}");
        // Units go along in proportion to the rate.
        let whole = u64::from(RATE_PARTS);
        assert_eq!(part.units, (1_000 * u64::from(part.rate) + whole / 2) / whole);
    }

    #[test]
    fn unwanted_units_of_a_sliding_window_stay_with_their_owners() {
        let of = |region, want, standing| Seat { standing, ..seat(region, want, standing) };
        let few = [of(0, 4, 7), of(1, 2, 7), of(2, 0, 6)];
        assert_eq!(targets(20, &few, false).as_slice(), [7, 7, 6]);
        // A rate is split by what each wants: a region that wants nothing gets nothing.
        assert_eq!(targets(20, &few, true)[2], 0);
        let more = [of(0, 15, 7), of(1, 2, 7), of(2, 0, 6)];
        let all = targets(20, &more, false);
        assert!(all[0] >= 15 && all.iter().sum::<u64>() <= 20, "{all:?}");
    }

    #[test]
    fn a_region_that_asks_ahead_gets_only_units_not_likely_needed_here() {
        let of =
            |left| WindowView { likely: 2, ..window_view((3, 0), [(left, 0), (0, 0), (0, 0), (0, 0)], 20) };
        assert_eq!((of(1).give(MemberId(1), 5), of(0).give(MemberId(1), 5)), (1, 3));
    }

    #[test]
    fn small_differences_move_no_loan() {
        let others = [seat(1, 209_000, 200_000), seat(2, 150_000, 200_000)];
        assert_eq!(plan(&rate_view(seat(0, 150_000, 200_000), &others, &[])), RebalancePlan::default());
    }

    #[test]
    fn an_unused_loan_is_returned_without_a_request() {
        let part = Part { rate: 125_000, units: 100 };
        let held =
            [1, 2, 3, 4].map(|region| Borrowed { from: MemberId(region), number: u64::from(region), part });
        let others = [1, 2, 3, 4].map(|region| seat(region, 75_000, 75_000));
        let back = plan(&rate_view(seat(0, 75_000, 700_000), &others, &held)).give_back;
        assert_eq!(back.len(), 4, "{back:?}");
        // While they are used, loans first go back to regions that miss something.
        let others = [seat(1, 75_000, 75_000), seat(2, 300_000, 75_000), seat(3, 75_000, 75_000)];
        let back = plan(&rate_view(seat(0, 500_000, 650_000), &others, &held)).give_back;
        assert_eq!(back.as_slice(), [(MemberId(2), 2)]);
    }

    #[test]
    fn a_silent_region_keeps_a_unit_unless_units_are_as_few_as_regions() {
        let others = [seat(1, 800_000, 200_000), seat(2, 0, 200_000)];
        let mut view = rate_view(seat(0, 0, 200_000), &others, &[]);
        (view.requests.units, view.requests.cost_milli) = (0, 0);
        view.spare.units = 3;
        let units = |view: &RateView<'_>| plan(view).lend.iter().map(|(_, part)| part.units).sum::<u64>();
        view.units_total = 10;
        assert_eq!(units(&view), 2);
        view.units_total = 3;
        view.spare.units = 1;
        assert_eq!(units(&view), 1);
    }

    #[test]
    fn of_silent_regions_with_a_unit_each_one_lends_its_unit() {
        let unit = |region, want, holds| Seat { standing: 1, ..seat(region, want, holds) };
        let others = [unit(1, 4, 1), unit(2, 0, 1), unit(3, 0, 1), unit(4, 0, 1)];
        let own = unit(0, 0, 1);
        let view = RateView {
            spare: Part { rate: 0, units: 1 },
            units_total: 5,
            requests: Requests { cost_milli: 1_000, ..Requests::default() },
            is_rate: false,
            left: 1,
            ..rate_view(own, &others, &[])
        };
        assert_eq!(plan(&view).lend.as_slice(), [(MemberId(1), Part { rate: 0, units: 1 })]);
    }

    #[test]
    fn loans_in_both_directions_are_returned_and_small_loans_carry_units() {
        let part = Part { rate: 60_000, units: 60 };
        let held = [(1, part), (2, Part { rate: 90_000, units: 90 })].map(|(from, part)| Borrowed {
            from: MemberId(from),
            number: 7,
            part,
        });
        let others = [seat(1, 250_000, 200_000), seat(2, 250_000, 200_000)];
        let lent = [(MemberId(1), part), (MemberId(2), part)];
        let own = seat(0, 250_000, 200_000);
        let mut view = RateView { lent: &lent, ..rate_view(own, &others, &held) };
        assert_eq!(plan(&view), RebalancePlan::default(), "while demand moves they may be of use");
        view.nets = true;
        assert_eq!(plan(&view).give_back.as_slice(), [(MemberId(1), 7)]);
        // Five thousandths of the rate are worth the first of two hundred units.
        let lent = [(MemberId(1), Part { rate: RATE_PARTS / 1_000, units: 0 }); 4];
        let units = |lent| {
            units_with(
                &RateView { lent, held: &[], units_total: 200, ..view },
                MemberId(1),
                RATE_PARTS / 1_000,
            )
        };
        assert_eq!((units(&lent[..1]), units(&lent)), (0, 1));
    }

    #[test]
    fn if_no_region_can_afford_a_request_the_first_gets_the_others_units() {
        let short = |region| Seat { short: 4, ..seat(region, 200_000, 200_000) };
        let others = [short(1), short(2)];
        let few = |own: Seat, least, units| {
            let view = RateView {
                units_total: 6,
                requests: Requests { units: 100, cost_milli: 4_000, least_short: Some(least) },
                units,
                ..rate_view(own, &[], &[])
            };
            plan(&RateView { spare: Part { rate: 199_999, units }, others: &others, ..view }).lend
        };
        let two = Part { rate: 0, units: 2 };
        assert_eq!(few(short(3), 4, 2).as_slice(), [(MemberId(1), two)]);
        assert!(few(short(0), 4, 2).is_empty(), "it comes first itself");
        assert!(few(short(3), 2, 2).is_empty(), "what is of use here stays");
    }

    fn window_view(own: (u64, u64), others: [(u64, u64); 4], seconds_left: u64) -> WindowView {
        let stake =
            |(left, per_s): (u64, u64)| Stake { left, demand_milli: per_s * 1_000, ..Stake::default() };
        WindowView {
            own: stake(own),
            others: (1..).map(MemberId).zip(others.map(stake)).collect(),
            mates: SmallVec::new(),
            time_left_ns: seconds_left * S,
            round_ns: S / 5,
            denied: 0,
            likely: 0,
        }
    }

    #[test]
    fn a_region_asks_for_no_units_while_it_has_plenty() {
        let plenty = window_view((10_000, 1_000), [(20_000, 50); 4], 40);
        assert!(plenty.ask(3).is_empty());
        assert!(plenty.own.left >= plenty.low_water());
    }

    #[test]
    fn a_region_that_runs_low_asks_regions_with_surplus_in_proportion() {
        let low = window_view((4_000, 1_000), [(20_000, 0), (10_000, 0), (500, 50), (0, 0)], 40);
        let asks: SmallVec<[(MemberId, u64); 4]> = smallvec![(MemberId(1), 4_000), (MemberId(2), 2_000)];
        assert_eq!(low.ask(3), asks, "ten seconds' worth in all");
    }

    #[test]
    fn near_the_end_of_a_window_each_region_keeps_its_part() {
        // 3 000 left and 1 200 a second asked for: two and a half seconds' worth for each.
        let hot = window_view((1_500, 1_000), [(375, 50); 4], 20);
        assert_eq!(hot.ask(4).iter().map(|(_, units)| units).sum::<u64>(), 1_000);
        let mild = window_view((375, 50), [(1_500, 1_000), (375, 50), (375, 50), (375, 50)], 20);
        assert_eq!(mild.give(MemberId(1), 10_000), 250);
        assert!(mild.ask(3).is_empty());
        // Once all have their parts nothing moves.
        let fair = window_view((2_500, 1_000), [(125, 50); 4], 20);
        assert!(fair.ask(3).is_empty());
        assert_eq!(
            window_view((125, 50), [(2_500, 1_000), (125, 50), (125, 50), (125, 50)], 20)
                .give(MemberId(1), 100),
            0
        );
    }

    #[test]
    fn a_silent_region_gives_all_and_a_large_cost_is_asked_for_in_full() {
        assert_eq!(window_view((1, 0), [(0, 1), (1, 0), (1, 0), (1, 0)], 20).give(MemberId(1), 5), 1);
        let mut dear = window_view((10, 0), [(30, 0), (30, 0), (0, 0), (0, 0)], 20);
        dear.denied = 50;
        assert_eq!(dear.ask(3).iter().map(|(_, units)| units).sum::<u64>(), 40);
    }

    #[test]
    fn a_node_asks_its_mates_when_no_other_region_has_units() {
        let mut view = window_view((0, 1), [(2, 0), (0, 0), (0, 0), (0, 0)], 20);
        view.mates = smallvec![(MemberId(7), Stake { left: 1, ..Stake::default() })];
        assert!(view.ask(3).iter().all(|(region, _)| *region == MemberId(1)));
        view.others[0].1.left = 0;
        assert_eq!(view.ask(3).as_slice(), [(MemberId(7), 1)], "what is needed first");
        // A mate keeps what it is asked for itself.
        view.mates[0].1.demand_milli = 100;
        assert!(view.ask(3).is_empty());
    }

    #[test]
    fn a_priority_region_borrows_everything_except_the_floor() {
        // Two busy regions, one of them served first, and this one, which could lend.
        let others = [
            Seat { class: 1, ..seat(1, 600_000, 200_000) },
            seat(2, 600_000, 200_000),
            Seat { class: 1, ..seat(3, 0, 200_000) },
            Seat { class: 1, ..seat(4, 0, 200_000) },
        ];
        let own = Seat { class: 1, floor: 50_000, ..seat(0, 0, 200_000) };
        let floor = Part { rate: 50_000, units: 50 };
        let requests = Requests { cost_milli: 1_000, ..Requests::default() };
        let view = RateView { requests, floor, ..rate_view(own, &others, &[]) };
        let lent = plan(&view).lend;
        let of = |region| {
            lent.iter().filter(|(to, _)| *to == MemberId(region)).map(|(_, part)| part.rate).sum::<u32>()
        };
        assert!(of(2) >= 2 * of(1), "600 000 for the first, and 400 000 are left: {lent:?}");
        let total: u32 = lent.iter().map(|(_, part)| part.rate).sum();
        assert!((140_000..=149_999).contains(&total), "all but the floor: {lent:?}");
        assert!(lent.iter().map(|(_, part)| part.units).sum::<u64>() <= 150, "{lent:?}");
        // The first wants everything. This one wants much, too, and its floor comes before that.
        let others = [seat(1, 0, 0), seat(2, 1_000_000, 200_000), seat(3, 0, 0), seat(4, 0, 0)];
        let own = Seat { class: 1, floor: 50_000, ..seat(0, 600_000, 50_000) };
        assert!(plan(&RateView { floor, ..rate_view(own, &others, &[]) }).lend.is_empty());
        let own = Seat { holds: 200_000, ..own };
        let lent = plan(&RateView { floor, ..rate_view(own, &others, &[]) }).lend;
        assert!(matches!(lent[..], [(MemberId(2), Part { rate: 140_000..=149_999, .. })]), "{lent:?}");
    }

    #[test]
    fn a_priority_region_gets_the_window_units_it_wants_and_floors_hold() {
        // 4 000 left; the first wants 3 000 until the end, and so does another.
        let mut view = window_view((1_000, 0), [(1_000, 150), (1_000, 150), (1_000, 0), (0, 0)], 20);
        view.others[1].1.class = 1;
        view.others[2].1.class = 1;
        view.own.class = 1;
        assert_eq!(view.need(view.others[0].1), 3_000);
        assert_eq!(view.need(view.others[1].1), 1_000);
        view.others[1].1.class = 0;
        assert_eq!(view.need(view.others[0].1), 2_000, "of one class they have parts");
        view.own.floor = 300;
        assert_eq!(view.give(MemberId(1), 5_000), 700);
        view.own.floor = 2_000;
        assert_eq!(view.give(MemberId(1), 5_000), 0);
        // Units that the first region misses are not given to another.
        (view.own.floor, view.others[1].1.class) = (0, 1);
        assert_eq!(view.give(MemberId(1), 5_000), 1_000);
        assert_eq!(view.give(MemberId(2), 5_000), 0);
    }

    #[test]
    fn an_extreme_demand_does_not_overflow() {
        // One request may cost as much as a number can say.
        let endless = Stake { left: u64::MAX, demand_milli: u64::MAX, ..Stake::default() };
        let mut view = window_view((0, 0), [(0, 0); 4], 20);
        view.own.demand_milli = u64::MAX;
        view.others.iter_mut().for_each(|(_, stake)| *stake = endless);
        assert!(view.low_water() > 0);
        assert!(!view.ask(3).is_empty());
        view.own.left = u64::MAX;
        view.give(MemberId(1), u64::MAX);
    }
}
