//! One cell that other regions have to do with: what is known of it here, and what is done about it.

use std::num::NonZeroU16;

use acequia_limits::{Algorithm, Now, Part, RATE_PARTS};
use acequia_rights::{MemberId, VersionId};
use smallvec::SmallVec;

use super::{
    demand::Demand,
    policy::{Seat, Stake, units_in},
    wire::Rough,
};

/// A cell that nobody asked for, in any region that said so, for so long gives everything back.
const IDLE_NS: u64 = 10_000_000_000;
/// A region that was not asked for a cell for so long has no use for it, as far as anybody can know.
const UNASKED_NS: u64 = 60_000_000_000;
/// A view of another region that was not renewed for so long is not gone by any more.
const VIEW_NS: u64 = 10 * 1_000_000_000;
/// What a region has left, where it said nothing of the window that is open.
const UNKNOWN: Rough = Rough(u16::MAX);
/// The most units, or parts of a rate, that a region is believed to have: no honest peer tells of more, and sums of as many stay in range.
const SAID_MAX: u64 =
    if acequia_limits::UNITS_MAX > RATE_PARTS as u64 { acequia_limits::UNITS_MAX } else { RATE_PARTS as u64 };

/// What one region said of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// Who said so.
    pub(crate) of: MemberId,
    pub(crate) demand: Rough,
    pub(crate) holds: Rough,
    pub(crate) left: Rough,
    /// What it speaks for, where that is not its own standing part.
    pub(crate) stands: Option<Rough>,
    pub(crate) short: u64,
    /// The frame that said it is short; news in a later one that does not say so again ends it.
    pub(crate) short_frame: u64,
    pub(crate) at_ns: u64,
    /// The frame that said so: an earlier one is no news.
    pub(crate) frame: u64,
}

impl View {
    /// A region that has said nothing.
    fn silent(of: MemberId) -> Self {
        let none = Rough::default();
        Self {
            of,
            demand: none,
            holds: none,
            left: none,
            stands: None,
            short: 0,
            short_frame: 0,
            at_ns: 0,
            frame: 0,
        }
    }

    /// What it had left, if it said so of the window that is open.
    pub(crate) fn known_left(&self) -> Option<u64> {
        (self.left != UNKNOWN).then(|| self.left.get().min(SAID_MAX))
    }
}

/// What this region told the others last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advertised {
    pub(crate) demand: Rough,
    pub(crate) holds: Rough,
    pub(crate) left: Rough,
    /// What it speaks for, where that is not its own standing part.
    pub(crate) stands: Option<Rough>,
    pub(crate) at_ns: u64,
}

/// Rights that a region asked for in a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedRights {
    pub(crate) by: MemberId,
    pub(crate) end_ns: u64,
    pub(crate) units: u64,
    /// When it was heard: steady clock.
    pub(crate) at_ns: u64,
}

/// A piece that was lent, and may not show yet in what its new holder says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) to: MemberId,
    pub(crate) weight: u64,
    pub(crate) at_ns: u64,
}

/// A cell that is shared actively.
#[derive(Debug)]
pub(crate) struct ActiveCell {
    pub(crate) demand: Demand,
    /// What was surely asked for in a span of a sliding window's length, when something was denied: units a second, in thousandths.
    proven_milli: Rough,
    pub(crate) views: SmallVec<[View; 2]>,
    pub(crate) advertised: Option<Advertised>,
    pub(crate) asked: Vec<AskedRights>,
    pub(crate) pieces: SmallVec<[Piece; 1]>,
    /// The next look, and the last: steady clock.
    pub(crate) due_ns: u64,
    pub(crate) looked_ns: u64,
    /// Whether it is looked at with the next tick.
    pub(crate) is_called: bool,
    /// No more rights are asked for before this time.
    pub(crate) quiet_until_ns: u64,
    /// Nothing is said to its pool before this time for who has joined since the window began.
    pub(crate) says_after_ns: u64,
    /// Times that asking brought nothing, in a row.
    pub(crate) asked_in_vain: u16,
    /// The last cost that needs more units than there are without those that were borrowed for it alone; 0 where nobody
    /// has asked for such a one lately.
    pub(crate) short: u64,
    /// When it was asked for: steady clock.
    pub(crate) short_ns: u64,
    /// The smallest cost that was asked for since there is such a one.
    pub(crate) least: u64,
    /// The window that is open, by its end; 0 where there are none.
    pub(crate) window: u64,
    /// What was received in it, when it was last looked at.
    pub(crate) received: u64,
    /// Whether a peer that began anew must be told what it was given.
    pub(crate) regive: bool,
    /// One more than which of its limit's numbers it has, where that is known and the limit has several.
    which: Option<NonZeroU16>,
    /// The version of the catalogue in which the others were told so.
    pub(crate) which_of: VersionId,
    /// The newest version of the catalogue in which this region was asked for it itself: then it knows which.
    pub(crate) asked_of: Option<VersionId>,
    /// When this region was last asked for it, or another region said anything of note.
    busy_ns: u64,
    /// When this region was last asked for it; 0 for never.
    asked_ns: u64,
    /// The time at which it became warm: steady clock.
    since_ns: u64,
}

impl ActiveCell {
    /// This region was asked for it.
    pub(crate) fn note_asked(&mut self, now_ns: u64) {
        self.busy_ns = now_ns;
        self.asked_ns = now_ns;
    }

    /// Another region said something of note.
    pub(crate) fn note_busy(&mut self, now_ns: u64) {
        self.busy_ns = now_ns;
    }

    /// Whether the cell became warm less than `for_ns` ago.
    pub(crate) fn is_new(&self, now_ns: u64, for_ns: u64) -> bool {
        now_ns.saturating_sub(self.since_ns) < for_ns
    }

    /// Whether this region was not asked for it for long.
    fn is_unasked(&self, now_ns: u64) -> bool {
        self.asked_ns == 0 || now_ns.saturating_sub(self.asked_ns) > UNASKED_NS
    }

    /// Whether nobody has asked for it for long, in any region that says so. Regions see that within a message's time of each
    /// other, so that none forgets a cell of which another one goes on to speak.
    pub(crate) fn is_idle(&self, now_ns: u64) -> bool {
        let asks = |view: &View| view.demand.get() > 0 && now_ns.saturating_sub(view.at_ns) < VIEW_NS;
        now_ns.saturating_sub(self.busy_ns) > IDLE_NS && !self.views.iter().any(asks)
    }

    /// Of a sliding window so many units are used, and so many more were missed since the last look.
    pub(crate) fn note_used(&mut self, (used, missed): (u64, u64), window_ns: u64) {
        let units = if missed > 0 { used.saturating_add(missed) } else { used };
        // What is wanted for it is no less, though a thousandth a second is many units of a long window.
        let milli = (u128::from(units) * 1_000 * 1_000_000_000).div_ceil(u128::from(window_ns.max(1))) + 1;
        let milli = Rough::new(u64::try_from(milli).unwrap_or(u64::MAX));
        self.proven_milli = if missed > 0 { milli } else { self.proven_milli.min(milli) };
    }

    /// What is asked for here of a flow or of rights, in thousandths of a unit a second. Where units come back long after they were used, or not
    /// at all, what few questions seem to say is not gone by: what was lent for that would be missed elsewhere.
    pub(crate) fn demand_milli(&self, resource: &Resource) -> u64 {
        match resource {
            Resource::Rate { .. } => self.demand.units_milli(),
            Resource::Rights => self.demand.sure_milli(),
            Resource::Units { .. } => self.demand.sure_milli().max(self.proven_milli.get()),
        }
    }

    /// What the others hear of that: a mean that falls slowly is none once nobody has asked for long, or regions would take each other's
    /// memories for questions.
    pub(crate) fn told_demand_milli(&self, resource: &Resource, now_ns: u64) -> u64 {
        let is_over = now_ns.saturating_sub(self.asked_ns) > IDLE_NS;
        if is_over { 0 } else { self.demand_milli(resource) }
    }

    /// Units that the others said they have used of a window that is open, or of a sliding one: as far as they said so.
    pub(crate) fn used_elsewhere(&self, global: &Algorithm) -> u64 {
        if global.has_rate() {
            // What a bucket owes is over before it is heard of.
            return 0;
        }
        let used = |view: &View| Some(view.holds.get().saturating_sub(view.known_left()?));
        self.views.iter().filter_map(used).fold(0, u64::saturating_add)
    }

    /// Which of its limit's numbers it has, as the others are told.
    pub(crate) fn which(&self) -> Option<u16> {
        self.which.map(|which| which.get() - 1)
    }

    /// The others are told so in a version of the catalogue.
    pub(crate) fn set_which(&mut self, which: Option<u16>, of: VersionId) {
        // There are fewer sets of numbers.
        self.which = which.and_then(|which| NonZeroU16::new(which.saturating_add(1)));
        self.which_of = of;
    }

    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            demand: Demand::since(now_ns),
            proven_milli: Rough::default(),
            views: SmallVec::new(),
            advertised: None,
            asked: Vec::new(),
            pieces: SmallVec::new(),
            due_ns: u64::MAX,
            looked_ns: 0,
            is_called: false,
            quiet_until_ns: 0,
            says_after_ns: 0,
            asked_in_vain: 0,
            short: 0,
            short_ns: 0,
            least: u64::MAX,
            window: 0,
            received: 0,
            regive: false,
            which: None,
            which_of: VersionId::default(),
            asked_of: None,
            busy_ns: now_ns,
            asked_ns: 0,
            since_ns: now_ns,
        }
    }

    pub(crate) fn view(&self, region: MemberId, now_ns: u64) -> Option<&View> {
        let found = self.views.iter().find(|view| view.of == region);
        found.filter(|view| now_ns.saturating_sub(view.at_ns) < VIEW_NS)
    }

    pub(crate) fn view_mut(&mut self, region: MemberId) -> &mut View {
        let at = match self.views.iter().position(|view| view.of == region) {
            Some(at) => at,
            None => {
                self.views.push(View::silent(region));
                self.views.len() - 1
            }
        };
        &mut self.views[at]
    }

    /// Goes on to a window: what regions said they have left was of another.
    pub(crate) fn enter(&mut self, end_ns: u64) {
        if self.window != end_ns {
            self.window = end_ns;
            self.received = 0;
            self.views.iter_mut().for_each(|view| view.left = UNKNOWN);
        }
    }

    /// What another region has of a window's rights by now, as far as is known.
    pub(crate) fn stake(&self, region: MemberId, standing_units: u64, now_ns: u64, round_ns: u64) -> Stake {
        match self.view(region, now_ns) {
            None => Stake { left: standing_units, ..Stake::default() },
            Some(view) => {
                let age_ns = now_ns.saturating_sub(view.at_ns) + round_ns / 2;
                let left = view.known_left().unwrap_or(standing_units);
                let demand_milli = view.demand.get();
                let left = left.saturating_sub(units_in(demand_milli, age_ns));
                Stake { left, demand_milli, ..Stake::default() }
            }
        }
    }

    /// What is on its way to a region.
    pub(crate) fn pending(&mut self, to: MemberId, now_ns: u64, round_ns: u64) -> u64 {
        let shows_after = round_ns.saturating_mul(5) / 4 + 50_000_000;
        self.pieces.retain(|piece| now_ns.saturating_sub(piece.at_ns) < shows_after || piece.to != to);
        self.pieces.iter().filter(|piece| piece.to == to).map(|piece| piece.weight).sum()
    }

    /// Another region's place.
    pub(crate) fn seat(
        &mut self,
        region: MemberId,
        standing: Part,
        resource: &Resource,
        now_ns: u64,
        round_ns: u64,
    ) -> Seat {
        let pending = self.pending(region, now_ns, round_ns);
        let view = self.view(region, now_ns).copied();
        let told = view.and_then(|view| view.stands).map(Rough::get);
        let standing_of = told.unwrap_or_else(|| resource.weigh(standing)).min(SAID_MAX);
        let (want, holds, short) = match view {
            Some(view) => (resource.want(view.demand.get()), view.holds.get(), view.short),
            None => (0, standing_of, 0),
        };
        let weight = u32::try_from(standing_of.min(u64::from(u32::MAX))).unwrap_or(1);
        Seat {
            region,
            want,
            holds: holds.saturating_add(pending).min(SAID_MAX),
            standing: standing_of,
            short,
            weight,
            class: 0,
            floor: 0,
        }
    }
}

/// What of a limit flows between regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// A bucket's rate, in parts; `milli` units a second in thousandths in all.
    Rate { milli: u64 },
    /// A sliding window's units, and for how long each counts.
    Units { window_ns: u64, total: u64 },
    /// A window's rights: they do not flow, they are given.
    Rights,
}

impl Resource {
    pub(crate) fn of(global: &Algorithm) -> Self {
        match global {
            Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => {
                Self::Rate { milli: meter.rate_milli().max(1) }
            }
            Algorithm::FixedWindow(_) => Self::Rights,
            Algorithm::SlidingLog(_) | Algorithm::SlidingSlots(_) | Algorithm::SlidingApproximate(_) => {
                Self::Units { window_ns: global.period_ns(), total: global.budget() }
            }
        }
    }

    /// A part, in what flows.
    pub(crate) fn weigh(&self, part: Part) -> u64 {
        match self {
            Self::Rate { .. } => u64::from(part.rate),
            Self::Units { .. } | Self::Rights => part.units,
        }
    }

    /// What this region could use of a cell of `budget` units.
    ///
    /// Most keys live in one region. So a region that nobody asked for long needs nothing beyond its demand. Any other region cannot be sure that
    /// it will not use its own part, until its demand has lasted as long as the bucket takes to fill, or as the window: a burst comes and goes
    /// within that.
    /// Where that takes longer than other regions shall wait, a region without demand lends half of its part at once.
    pub(crate) fn want_here(
        &self,
        active_cell: &ActiveCell,
        standing: Part,
        budget: u64,
        now_ns: u64,
    ) -> u64 {
        const LONGEST_NS: u128 = 5_000_000_000;
        let (want, demand) = (self.want(active_cell.demand_milli(self)), &active_cell.demand);
        let fills_ns = match self {
            Self::Rate { milli } => u128::from(budget) * 1_000 * 1_000_000_000 / u128::from(*milli),
            Self::Units { window_ns, .. } => u128::from(*window_ns),
            Self::Rights => return want,
        };
        if active_cell.is_unasked(now_ns) {
            return want;
        }
        if u128::from(demand.age_ns()) >= fills_ns.min(LONGEST_NS) {
            return want;
        }
        let is_silent = demand.events_milli() == 0;
        let part = self.weigh(standing);
        want.max(if is_silent && fills_ns > LONGEST_NS { part / 2 } else { part })
    }

    /// What a demand could use: a hundredth more than is asked for, at most all of it.
    pub(crate) fn want(&self, demand_milli: u64) -> u64 {
        let demand = demand_milli.saturating_add(demand_milli / 100);
        match self {
            Self::Rate { milli } => {
                let parts = u128::from(demand) * u128::from(RATE_PARTS) / u128::from(*milli);
                u64::try_from(parts).unwrap_or(u64::MAX).min(u64::from(RATE_PARTS))
            }
            Self::Units { window_ns, total } => {
                // Nothing for chance: where it is scarce, a unit that is sure to be used elsewhere is
                // worth more, and where it is not, what is left over is shared out as well.
                // Less than a thousandth a second is said as one.
                units_in(demand.saturating_sub(1), *window_ns)
                    .saturating_add(u64::from(demand > 0))
                    .min(*total)
            }
            Self::Rights => units_in(demand, 1_000_000_000),
        }
    }
}

/// When to look at a cell again: often where much is asked, so that a change is seen soon.
pub(crate) fn look_after(events_milli: u64, is_scarce: bool) -> u64 {
    /// Events between two looks.
    const EVENTS: u64 = 8;
    const SHORTEST_NS: u64 = 20_000_000;
    let longest = if is_scarce { 250_000_000 } else { 2_000_000_000 };
    let ns = u128::from(EVENTS) * 1_000 * 1_000_000_000 / u128::from(events_milli.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX).clamp(SHORTEST_NS, longest)
}

/// How long until all of a window is over, on the wall clock.
pub(crate) fn time_left_ns(end_ns: u64, now: Now) -> u64 {
    end_ns.saturating_sub(now.wall_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_cell_of_three_regions_takes_three_eighths_of_a_kilobyte() {
        let mut active_cell = ActiveCell::new(1);
        for region in [1, 2] {
            active_cell.view_mut(MemberId(region)).at_ns = 1;
        }
        assert!(!active_cell.views.spilled(), "what two other regions say fits in");
        assert!(size_of::<ActiveCell>() <= 384, "{} bytes", size_of::<ActiveCell>());
    }
}
