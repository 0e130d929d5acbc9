//! Who lends what to whom, who gives back, who asks.
//!
//! Whatever is decided here is safe: what may be lent, given or returned is bounded by `rights`, and
//! a view of another region that is wrong, old or missing wastes some of a limit and admits nothing.
//! So this file may be changed freely; what it is worth is measured, not proven.
//!
//! *Flows* (rates, and the capacity of sliding windows) are pushed: every region sees the same
//! demands, computes the same fair targets, and whoever has more than its target gives the others
//! what they miss. *Stocks* (the rights of a window) are pulled: who is about to run dry asks those
//! that have most.

use acequia_limits::Part;
use acequia_rights::Region;
use smallvec::SmallVec;

use super::target::{Claim, water_fill};

/// Of a fair part: a smaller need is left alone.
const DEAD_BAND: u64 = 20;
/// Of the whole: a smaller piece is not worth a loan.
const QUANTUM: u64 = 128;
/// Units that a region keeps if it is asked for as many a second: chance brings requests close
/// together, and a bucket that holds fewer turns some away that its rate has room for.
const UNITS_KEPT: u64 = 8;

/// A region's place in a cell, as one node sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) region: Region,
    /// What it could use.
    pub(crate) want: u64,
    /// What it may use now, with what is on its way to it.
    pub(crate) holds: u64,
    /// Its standing part.
    pub(crate) standing: u64,
    /// Units that it must be able to hold at once; 0 where it holds enough.
    pub(crate) short: u64,
    pub(crate) weight: u32,
}

/// A loan that this region holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Borrowed {
    pub(crate) from: Region,
    pub(crate) number: u64,
    pub(crate) part: Part,
}

/// What one node knows of a flow.
#[derive(Debug)]
pub(crate) struct Flow<'a> {
    pub(crate) own: Seat,
    /// Those that can be reached.
    pub(crate) others: &'a [Seat],
    /// What of the own standing part is not lent: in rate, and in units.
    pub(crate) spare: Part,
    /// What this region borrowed.
    pub(crate) held: &'a [Borrowed],
    /// Units of the whole limit.
    pub(crate) units_total: u64,
    /// Units that this region is asked for in a second.
    pub(crate) asked: u64,
    /// Whether the flow is a rate; or else units of a sliding window.
    pub(crate) is_rate: bool,
    /// Units that could be charged now: what of a sliding window may move.
    pub(crate) left: u64,
}

/// What to do about a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) lend: SmallVec<[(Region, Part); 4]>,
    pub(crate) give_back: SmallVec<[(Region, u64); 4]>,
    /// Whether this region, or one that it sees, has less than it wants: worth another look soon.
    pub(crate) is_scarce: bool,
}

/// Decides about a flow.
pub(crate) fn plan(flow: &Flow<'_>) -> Plan {
    let mut plan = Plan::default();
    let seats: SmallVec<[Seat; 8]> = std::iter::once(flow.own).chain(flow.others.iter().copied()).collect();
    let total: u64 = seats.iter().map(|seat| seat.standing).sum();
    let targets = targets(total, &seats);
    let fair = total / seats.len() as u64;
    let quantum = (total / QUANTUM).max(1);
    let band = (fair / DEAD_BAND).max(quantum);
    // What each misses of what it wants, and is then given up to its target.
    let missing = |seat: &Seat, target: u64| {
        let need = seat.want.min(target).saturating_sub(seat.holds);
        if need >= band { target.saturating_sub(seat.holds) } else { 0 }
    };
    let deficits: SmallVec<[u64; 8]> =
        seats.iter().zip(&targets).map(|(seat, target)| missing(seat, *target)).collect();
    let deficit: u64 = deficits[1..].iter().sum();
    plan.is_scarce = deficits.iter().any(|d| *d > 0) || seats.iter().any(|seat| seat.short > 0);
    lend_units(flow, &mut plan);
    if deficits[0] > 0 {
        return plan;
    }
    let surplus = flow.own.holds.saturating_sub(targets[0]);
    let surplus_all: u64 =
        seats.iter().zip(&targets).map(|(seat, target)| seat.holds.saturating_sub(*target)).sum();
    // Who has more than its target gives its part of what is missing, rounded up: else regions with a
    // unit each would all give nothing.
    let mut give = match (deficit, surplus_all) {
        (0, _) | (_, 0) => 0,
        (d, s) if d >= s => surplus,
        (d, s) => u64::try_from((u128::from(surplus) * u128::from(d)).div_ceil(u128::from(s))).unwrap_or(0),
    };
    // What is borrowed and far more than is wanted goes back unasked: its owner can lend it on.
    let unused = flow.own.holds > flow.own.want.saturating_mul(2);
    let back = if unused { flow.own.holds.saturating_sub(flow.own.want + flow.own.want / 4) } else { give };
    let returned = give_back(flow, &deficits, back, &mut plan);
    give = give.saturating_sub(returned);
    if give >= quantum && deficit > 0 {
        lend_flow(flow, &deficits, give.min(deficit), quantum, &mut plan);
    }
    plan
}

/// What each seat should have: what it wants if there is enough, and its part of what is left over.
fn targets(total: u64, seats: &[Seat]) -> SmallVec<[u64; 8]> {
    let claims: SmallVec<[Claim; 8]> =
        seats.iter().map(|seat| Claim { want: seat.want, floor: 0, weight: seat.weight, class: 0 }).collect();
    let mut targets = water_fill(total, &claims);
    let rest = total - targets.iter().sum::<u64>();
    let wanted: u128 = seats.iter().map(|seat| u128::from(seat.want)).sum();
    if rest > 0 && wanted > 0 {
        for (target, seat) in targets.iter_mut().zip(seats) {
            *target += u64::try_from(u128::from(rest) * u128::from(seat.want) / wanted).unwrap_or(0);
        }
    }
    targets
}

/// Gives whole loans back, up to `most`: first to those that miss something.
fn give_back(flow: &Flow<'_>, deficits: &[u64], most: u64, plan: &mut Plan) -> u64 {
    let weigh = |part: Part| if flow.is_rate { u64::from(part.rate) } else { part.units };
    let misses = |region: Region| {
        let at = flow.others.iter().position(|seat| seat.region == region);
        at.map_or(0, |at| deficits[at + 1])
    };
    let mut held: SmallVec<[Borrowed; 8]> = flow.held.iter().copied().collect();
    held.sort_by_key(|loan| {
        (std::cmp::Reverse(misses(loan.from)), std::cmp::Reverse(weigh(loan.part)), loan.number)
    });
    let (mut rest, mut left) = (most, flow.left);
    for loan in held {
        let weight = weigh(loan.part);
        if weight > rest || weight == 0 && most == 0 || (!flow.is_rate && loan.part.units > left) {
            continue;
        }
        rest -= weight;
        left = left.saturating_sub(loan.part.units);
        plan.give_back.push((loan.from, loan.number));
    }
    most - rest
}

/// Lends of the own standing part to those that miss something, in proportion; what does not go
/// round goes to the one that misses most.
fn lend_flow(flow: &Flow<'_>, deficits: &[u64], give: u64, quantum: u64, plan: &mut Plan) {
    let lent_units: u64 = plan.lend.iter().map(|(_, part)| part.units).sum();
    let mut units_left = flow.spare.units.saturating_sub(lent_units).saturating_sub(units_kept(flow));
    let mut rate_left = flow.spare.rate;
    if !flow.is_rate {
        units_left = units_left.min(flow.left);
    }
    let most = if flow.is_rate { u64::from(rate_left) } else { units_left };
    let give = give.min(most);
    let deficit: u128 = deficits[1..].iter().map(|missed| u128::from(*missed)).sum();
    let mut by_need: SmallVec<[(u64, Region); 8]> =
        deficits[1..].iter().copied().zip(flow.others.iter().map(|seat| seat.region)).collect();
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
        let part = if flow.is_rate {
            let rate = u32::try_from(piece).unwrap_or(u32::MAX).min(rate_left);
            // Burst goes with its rate: a rate with too little burst could never be used.
            let units = u128::from(units_left) * u128::from(rate) / u128::from(rate_left.max(1));
            let units = u64::try_from(units).unwrap_or(0);
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

/// Units that are not lent, so that what is left of the own part can be used: for who is asked, some
/// for chance; for who is silent, one, so that a first request is answered at once. Where that would
/// leave half of the limit in regions that are silent, not even that.
fn units_kept(flow: &Flow<'_>) -> u64 {
    let regions = flow.others.len() as u64 + 1;
    let for_first = u64::from(flow.units_total >= 2 * regions);
    if !flow.is_rate {
        return for_first;
    }
    flow.asked.min(UNITS_KEPT).max(for_first)
}

/// Lends units to those that must be able to hold more at once than they can: everything, if it takes
/// that, since no smaller part would ever let such a request pass.
fn lend_units(flow: &Flow<'_>, plan: &mut Plan) {
    if !flow.is_rate {
        return;
    }
    let mut spare = flow.spare.units;
    for seat in flow.others.iter().filter(|seat| seat.short > 0) {
        let units = seat.short.min(spare);
        if units > 0 {
            spare -= units;
            plan.lend.push((seat.region, Part { rate: 0, units }));
        }
    }
}

/// What a region has of a stock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stake {
    /// Units that could be charged there now.
    pub(crate) left: u64,
    /// Units asked for there a second, in thousandths.
    pub(crate) demand_milli: u64,
}

/// What one node knows of a stock: the rights of a window that is open.
///
/// What is left is best used if all regions run dry at the same time: from then on every denial is a
/// true one. So a region *needs* what it is asked for until the window ends, or where there is less,
/// its part of what is left. It asks for that while there is time, and gives nothing of it away.
#[derive(Clone, Debug)]
pub(crate) struct Stock {
    pub(crate) own: Stake,
    /// Those that can be reached.
    pub(crate) others: SmallVec<[(Region, Stake); 8]>,
    /// Until the window ends.
    pub(crate) time_left_ns: u64,
    /// The longest time there and back to a peer that can be reached.
    pub(crate) round_ns: u64,
    /// The largest cost that was denied since the last look.
    pub(crate) denied: u64,
}

/// The longest demand that is asked for at once: more would have to come back when demand moves.
const AHEAD_NS: u64 = 10 * 1_000_000_000;
/// A region that has so much less than it needs asks; and a piece that is so much less is no help.
const NEED_BAND: u64 = 16;

impl Stock {
    /// Units that a region needs until the window ends, or until nothing is left anywhere.
    fn need(&self, of: Stake) -> u64 {
        let others = self.others.iter().map(|(_, stake)| *stake);
        let all = others.chain([self.own]).fold((0_u128, 0_u128), |(left, demand), stake| {
            (left + u128::from(stake.left), demand + u128::from(stake.demand_milli))
        });
        let part = all.0 * u128::from(of.demand_milli) / all.1.max(1);
        let wanted = units_in(of.demand_milli, self.time_left_ns);
        wanted.min(u64::try_from(part).unwrap_or(u64::MAX)).max(u64::from(of.demand_milli > 0))
    }

    /// Units below which it is time to ask: half of what is asked for at once, so that an answer is
    /// there long before nothing is; and at least what is used until one can be there, twice.
    pub(crate) fn low_water(&self) -> u64 {
        let early_ns = (AHEAD_NS / 2).max(self.round_ns.saturating_mul(2)).min(self.time_left_ns);
        let early = units_in(self.own.demand_milli, early_ns) + u64::from(self.own.demand_milli > 0);
        let need = self.need(self.own);
        early.min(need - need / NEED_BAND).max(self.denied.min(need))
    }

    /// Whom to ask for how much: those that have most more than they need, in proportion.
    pub(crate) fn ask(&self, most_asked: usize) -> SmallVec<[(Region, u64); 4]> {
        let mut asks = SmallVec::new();
        let denied = if self.denied > self.own.left { self.denied } else { 0 };
        if self.own.left >= self.low_water() && denied == 0 {
            return asks;
        }
        let ahead = units_in(self.own.demand_milli, self.time_left_ns.min(AHEAD_NS));
        let wanted = ahead.min(self.need(self.own)).max(denied).saturating_sub(self.own.left);
        let mut rich: SmallVec<[(u64, Region); 8]> = self
            .others
            .iter()
            .map(|(region, stake)| (stake.left.saturating_sub(self.need(*stake)), *region))
            .filter(|(more, _)| *more > 0)
            .collect();
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

    /// What of the rights here can be given to one that asks for `units`.
    pub(crate) fn give(&self, units: u64) -> u64 {
        units.min(self.own.left.saturating_sub(self.need(self.own)))
    }
}

/// Units that come in so much time at so many thousandths a second.
pub(crate) fn units_in(milli: u64, ns: u64) -> u64 {
    u64::try_from(u128::from(milli) * u128::from(ns) / 1_000_000_000_000).unwrap_or(u64::MAX)
}
