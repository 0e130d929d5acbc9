//! One active cell: what this node knows about it, and what it does about it.

use std::num::{NonZeroU16, NonZeroU64};

use acequia_limits::{Algorithm, Now, Part, RATE_PARTS};
use acequia_rights::{MemberId, VersionId};
use smallvec::SmallVec;

use super::{
    demand::Demand,
    policy::{Seat, Stake, units_in},
    wire::Rough,
};

use crate::settings::SETTINGS;

/// The value of `left` for a region that has said nothing about the open window.
const UNKNOWN: Rough = Rough(u16::MAX);
/// The most units, or parts of a rate, that a region is believed to have. No honest peer advertises more, and
/// sums of such values stay in range.
const SAID_MAX: u64 =
    if acequia_limits::UNITS_MAX > RATE_PARTS as u64 { acequia_limits::UNITS_MAX } else { RATE_PARTS as u64 };

/// A slot that was missed counts as taken for at least this part of the time that a mean is taken over, in
/// thousandths. Otherwise a region without any slots would seem to want none.
const SLOT_LASTS_MILLI: u128 = 50;

/// All slots of a cell, as [`WindowState`] counts their parts.
const SLOTS_ALL: u128 = u16::MAX as u128;

/// Slots of requests under way, as one node sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotsSeen {
    /// Those that are taken.
    pub(crate) taken: u64,
    /// Those that were asked for in vain since the last rebalance.
    pub(crate) missed: u64,
    /// Those that are asked for a second, in thousandths.
    pub(crate) asked_milli: u64,
    /// The time since the last rebalance.
    pub(crate) passed_ns: u64,
}

/// The numbers of an advertisement of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advertised {
    pub(crate) demand: Rough,
    pub(crate) holds: Rough,
    pub(crate) left: Rough,
    /// The standing part that the member acts for, if that is not its own.
    pub(crate) stands: Option<Rough>,
    /// Units that the member's cell owes ([`acequia_limits::debt`]).
    pub(crate) owed: Rough,
}

/// One member's statements about a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// The member.
    pub(crate) of: MemberId,
    /// Its newest advertisement.
    pub(crate) said: Advertised,
    /// Units that it must be able to hold at once; 0 if it can hold enough.
    pub(crate) short: u64,
    /// The frame that carried `short`. An advertisement in a later frame ends it, unless that frame carries
    /// it again.
    pub(crate) short_frame: u64,
    pub(crate) at_ns: u64,
    /// The frame of the newest advertisement: earlier frames are ignored.
    pub(crate) frame: u64,
}

impl View {
    /// The view of a member that has said nothing.
    fn silent(of: MemberId) -> Self {
        Self { of, said: Advertised::default(), short: 0, short_frame: 0, at_ns: 0, frame: 0 }
    }

    /// Whether the statements still count.
    fn is_fresh(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) < SETTINGS.sharing.view_ns
    }

    /// The units that the member owes.
    pub(crate) fn owed(&self) -> u64 {
        self.said.owed.get().min(SAID_MAX)
    }

    /// The units that the member had left, if it said so about the open window.
    pub(crate) fn known_left(&self) -> Option<u64> {
        (self.said.left != UNKNOWN).then(|| self.said.left.get().min(SAID_MAX))
    }
}

/// This node's last advertisement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastAdvertisement {
    pub(crate) said: Advertised,
    pub(crate) at_ns: u64,
}

/// Rights that a region asked for in a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedRights {
    pub(crate) by: MemberId,
    pub(crate) end_ns: u64,
    pub(crate) units: u64,
    /// When the request came: steady clock.
    pub(crate) at_ns: u64,
}

/// A piece that was lent, and that its holder's advertisements may not show yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) to: MemberId,
    pub(crate) weight: u64,
    pub(crate) at_ns: u64,
}

/// When a cell is rebalanced next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextRebalance {
    /// At the next tick.
    Called,
    /// At this time: steady clock.
    At(NonZeroU64),
}

/// Requests here need more units at once than there are, not counting units borrowed for such requests alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    /// The last such cost.
    pub(crate) units: NonZeroU64,
    /// When it was last asked for: steady clock.
    pub(crate) at_ns: u64,
    /// The smallest cost that was asked for since the shortage began.
    pub(crate) least: u64,
}

/// The state of a cell whose limit counts in windows. All but the last field belong to the open fixed window.
#[derive(Debug, Default)]
pub(crate) struct WindowState {
    /// Its end; 0 if there are no windows.
    end_ns: u64,
    /// Rights that others asked for.
    pub(crate) asked: Vec<AskedRights>,
    /// Units received by the last rebalance.
    received: u64,
    /// No more rights are asked for before this time: steady clock.
    pub(crate) quiet_until_ns: u64,
    /// How often in a row asking brought nothing.
    pub(crate) asked_in_vain: u16,
    /// Before this time the pool gets no further report for nodes that joined since the window began: steady
    /// clock.
    pub(crate) reports_after_ns: u64,
    /// Whether a peer must be told again what it was given.
    pub(crate) tells_again: bool,
    /// Demand that denials proved: the units used and missed in a sliding window's length, in thousandths of
    /// a unit a second.
    proven_milli: Rough,
    /// The mean of the slots that requests under way have taken, and of those that they missed, as a part of all:
    /// [`SLOTS_ALL`] are all.
    slots_part: u16,
}

/// The variant of a cell, as the nodes tell each other. Versions are the default ones for "never".
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VariantNews {
    /// The variant plus one, if the variant is known and the limit has several.
    told: Option<NonZeroU16>,
    /// The version of the catalogue in which the others were told the variant.
    told_in: VersionId,
    /// The newest version of the catalogue in which this region was asked for the cell itself, and so knows
    /// the variant.
    pub(crate) asked_in: VersionId,
}

/// When a cell was last of use to anybody: steady clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activity {
    /// When the cell became active.
    since_ns: u64,
    /// When this region was last asked for the cell.
    asked_ns: Option<NonZeroU64>,
    /// When this region was last asked for the cell, or another region reported something of note.
    busy_ns: u64,
}

/// A cell that is shared actively.
#[derive(Debug)]
pub(crate) struct ActiveCell {
    pub(crate) demand: Demand,
    pub(crate) views: SmallVec<[View; 2]>,
    /// What the others were told last; `None` if they are to be told anew.
    pub(crate) advertised: Option<LastAdvertisement>,
    pub(crate) pieces: SmallVec<[Piece; 1]>,
    pub(crate) next: NextRebalance,
    /// When the cell was last rebalanced: steady clock.
    pub(crate) rebalanced_ns: u64,
    pub(crate) shortage: Option<Shortage>,
    pub(crate) window: WindowState,
    pub(crate) variant: VariantNews,
    pub(crate) activity: Activity,
}

impl Activity {
    fn since(now_ns: u64) -> Self {
        Self { since_ns: now_ns, asked_ns: None, busy_ns: now_ns }
    }

    /// Notes that this region was asked for the cell.
    pub(crate) fn note_asked(&mut self, now_ns: u64) {
        self.busy_ns = now_ns;
        self.asked_ns = NonZeroU64::new(now_ns);
    }

    /// Notes that another region reported more demand, or a shortage.
    pub(crate) fn note_busy(&mut self, now_ns: u64) {
        self.busy_ns = now_ns;
    }

    /// Whether the cell became active less than `for_ns` ago.
    pub(crate) fn is_new(&self, now_ns: u64, for_ns: u64) -> bool {
        now_ns.saturating_sub(self.since_ns) < for_ns
    }

    /// Whether this region was not asked for the cell for longer than `for_ns`.
    fn is_unasked(&self, now_ns: u64, for_ns: u64) -> bool {
        self.asked_ns.is_none_or(|asked_ns| now_ns.saturating_sub(asked_ns.get()) > for_ns)
    }
}

impl VariantNews {
    /// The variant, as the others are told.
    pub(crate) fn told(&self) -> Option<u16> {
        self.told.map(|variant| variant.get() - 1)
    }

    /// Notes the variant, which the others are told in a version of the catalogue. Returns whether they do
    /// not know it yet.
    pub(crate) fn tell(&mut self, variant: Option<u16>, version_id: VersionId) -> bool {
        let before = self.told();
        if (before, self.told_in) == (variant, version_id) {
            return false;
        }
        // There are fewer variants than that.
        self.told = variant.and_then(|variant| NonZeroU16::new(variant.saturating_add(1)));
        self.told_in = version_id;
        variant.is_some() || before != variant
    }
}

impl WindowState {
    /// Notes how many units this node received in the open window. Returns whether more came since the last
    /// rebalance.
    pub(crate) fn note_received(&mut self, received: u64) -> bool {
        let is_news = received != self.received;
        if is_news {
            (self.received, self.asked_in_vain) = (received, 0);
        }
        is_news
    }

    /// Notes the used units of a sliding window, and how many more were missed since the last rebalance.
    pub(crate) fn note_used(&mut self, used: u64, missed: u64, window_ns: u64) {
        let units = if missed > 0 { used.saturating_add(missed) } else { used };
        // Rounded up, so that the want is no less than these units: a thousandth a second is many units of a
        // long window.
        let milli = (u128::from(units) * 1_000 * 1_000_000_000).div_ceil(u128::from(window_ns.max(1))) + 1;
        let milli = Rough::new(u64::try_from(milli).unwrap_or(u64::MAX));
        self.proven_milli = if missed > 0 { milli } else { self.proven_milli.min(milli) };
    }

    /// Notes the slots that are taken, and those that were missed since the last rebalance.
    ///
    /// A missed slot would have been taken for about as long as the others are: by Little's law, those that are
    /// taken, divided by those that are asked for a second. The missed slot counts by a quarter: where slots are
    /// scarce, another region is sure to use one, and this region uses its last ones only at times.
    pub(crate) fn note_slots(&mut self, seen: SlotsSeen, total: u64) {
        let SlotsSeen { taken, missed, asked_milli, passed_ns } = seen;
        let mean_ns = u128::from(SETTINGS.sharing.slots_ns);
        let asked = u128::from(units_in(asked_milli, SETTINGS.sharing.slots_ns)).max(1);
        let lasts_milli = (u128::from(taken) * 1_000 / asked).clamp(SLOT_LASTS_MILLI, 1_000);
        let passed_ns = u128::from(passed_ns).min(mean_ns);
        let part = |milli: u128| milli * SLOTS_ALL / (u128::from(total).max(1) * 1_000);
        let kept = u128::from(self.slots_part) * (mean_ns - passed_ns);
        let mean = (kept + part(u128::from(taken) * 1_000) * passed_ns + mean_ns / 2) / mean_ns;
        let slots = mean + part(u128::from(missed) * lasts_milli / 4);
        self.slots_part = u16::try_from(slots).unwrap_or(u16::MAX);
    }
}

impl ActiveCell {
    /// A cell that became active just now, and is called.
    pub(crate) fn called(now_ns: u64) -> Self {
        Self {
            demand: Demand::since(now_ns),
            views: SmallVec::new(),
            advertised: None,
            pieces: SmallVec::new(),
            next: NextRebalance::Called,
            rebalanced_ns: 0,
            shortage: None,
            window: WindowState::default(),
            variant: VariantNews::default(),
            activity: Activity::since(now_ns),
        }
    }

    /// Whether no region is known to have been asked for long. Regions see this within a message's time of
    /// each other, so none forgets a cell about which another goes on to speak.
    pub(crate) fn is_idle(&self, now_ns: u64) -> bool {
        let asks = |view: &View| view.said.demand.get() > 0 && view.is_fresh(now_ns);
        now_ns.saturating_sub(self.activity.busy_ns) > SETTINGS.sharing.idle_ns
            && !self.views.iter().any(asks)
    }

    /// Whether any other region says that it owes units.
    pub(crate) fn hears_of_debts(&self, now_ns: u64) -> bool {
        self.views.iter().any(|view| view.owed() > 0 && view.is_fresh(now_ns))
    }

    /// The units that a request needs at once and that this region cannot hold; 0 if there is none.
    pub(crate) fn short(&self) -> u64 {
        self.shortage.map_or(0, |shortage| shortage.units.get())
    }

    /// The demand here for a rate, for units or for rights, in thousandths of a unit a second. If units come
    /// back long after they were used, or never, a few requests prove no demand: what was lent for it would
    /// be missed elsewhere.
    pub(crate) fn demand_milli(&self, resource: &Resource) -> u64 {
        match resource {
            Resource::Rate { .. } => self.demand.units_milli(),
            Resource::Rights => self.demand.sure_milli(),
            // How often slots are asked for says little: most come back long before they lapse.
            Resource::Units { window_ns, has_slots: true, total } => {
                let slots = u128::from(self.window.slots_part) * u128::from(*total) * 1_000 * 1_000_000_000;
                let milli = slots.div_ceil(SLOTS_ALL * u128::from((*window_ns).max(1)));
                u64::try_from(milli).unwrap_or(u64::MAX)
            }
            Resource::Units { .. } => self.demand.sure_milli().max(self.window.proven_milli.get()),
        }
    }

    /// The demand that the others hear of. Once nobody has asked for long, a mean that falls slowly counts as
    /// zero: otherwise regions would take each other's memories for requests.
    pub(crate) fn told_demand_milli(&self, resource: &Resource, now_ns: u64) -> u64 {
        if self.activity.is_unasked(now_ns, SETTINGS.sharing.idle_ns) {
            0
        } else {
            self.demand_milli(resource)
        }
    }

    /// Units of the open window, or of a sliding one, that the others reported as used.
    pub(crate) fn used_elsewhere(&self, global: &Algorithm) -> u64 {
        if global.has_rate() {
            // A bucket's debt is over before a report of it arrives.
            return 0;
        }
        let used = |view: &View| {
            let held_and_owed = view.said.holds.get().saturating_add(view.owed());
            Some(held_and_owed.saturating_sub(view.known_left()?))
        };
        self.views.iter().filter_map(used).fold(0, u64::saturating_add)
    }

    pub(crate) fn view(&self, region: MemberId, now_ns: u64) -> Option<&View> {
        let found = self.views.iter().find(|view| view.of == region);
        found.filter(|view| view.is_fresh(now_ns))
    }

    /// Units to keep back of the `left` units here, because other regions owe units that they do not have: this
    /// region's part of those debts, by how much each region has left. Nothing is kept back for a region that
    /// cannot be heard.
    pub(crate) fn kept_for_debts(&self, left: u64, now_ns: u64) -> u64 {
        let (mut owed, mut all) = (0_u128, u128::from(left));
        for view in self.views.iter().filter(|view| view.is_fresh(now_ns)) {
            owed += u128::from(view.owed());
            let used_since = units_in(view.said.demand.get(), now_ns.saturating_sub(view.at_ns));
            all += u128::from(view.known_left().unwrap_or(0).saturating_sub(used_since));
        }
        let kept = (owed * u128::from(left)).div_ceil(all.max(1));
        u64::try_from(kept).unwrap_or(u64::MAX).min(left)
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

    /// Units that other regions owe, as far as they can be heard.
    pub(crate) fn owed_elsewhere(&self, now_ns: u64) -> u64 {
        let fresh = self.views.iter().filter(|view| view.is_fresh(now_ns));
        fresh.map(View::owed).fold(0, u64::saturating_add)
    }

    /// Moves on to a window: what regions reported as left belongs to another one, and so does what they owe,
    /// unless debts are carried.
    pub(crate) fn enter(&mut self, end_ns: u64, carries: bool) {
        if self.window.end_ns != end_ns {
            let was_in_another = self.window.end_ns != 0;
            self.window.end_ns = end_ns;
            self.window.received = 0;
            for view in &mut self.views {
                view.said.left = UNKNOWN;
                if was_in_another && !carries {
                    view.said.owed = Rough::default();
                }
            }
        }
    }

    /// The rights that another region has left in a window by now, as far as is known.
    pub(crate) fn stake(&self, region: MemberId, standing_units: u64, now_ns: u64, round_ns: u64) -> Stake {
        match self.view(region, now_ns) {
            None => Stake { left: standing_units, ..Stake::default() },
            Some(view) => {
                let age_ns = now_ns.saturating_sub(view.at_ns) + round_ns / 2;
                let left = view.known_left().unwrap_or(standing_units);
                let demand_milli = view.said.demand.get();
                let left = left.saturating_sub(units_in(demand_milli, age_ns));
                Stake { left, demand_milli, ..Stake::default() }
            }
        }
    }

    /// Lent pieces that are on their way to a member.
    pub(crate) fn pending(&mut self, to: MemberId, now_ns: u64, round_ns: u64) -> u64 {
        let shows_after = round_ns.saturating_mul(5) / 4 + 50_000_000;
        self.pieces.retain(|piece| now_ns.saturating_sub(piece.at_ns) < shows_after || piece.to != to);
        self.pieces.iter().filter(|piece| piece.to == to).map(|piece| piece.weight).sum()
    }

    /// The seat of another region.
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
        let told = view.and_then(|view| view.said.stands).map(Rough::get);
        let standing_of = told.unwrap_or_else(|| resource.weigh(standing)).min(SAID_MAX);
        let (want, holds, short) = match view {
            Some(view) => (resource.want(view.said.demand.get()), view.said.holds.get(), view.short),
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

/// The resource of a limit that regions lend or give each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// A bucket's rate, in parts: in all, `milli` thousandths of a unit a second.
    Rate { milli: u64 },
    /// A sliding window's units: `total` in all, each counted for `window_ns`; slots for as long at most as their
    /// request goes on.
    Units { window_ns: u64, total: u64, has_slots: bool },
    /// A window's rights: these are given, not lent.
    Rights,
}

impl Resource {
    pub(crate) fn of(global: &Algorithm, has_slots: bool) -> Self {
        match global {
            Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => {
                Self::Rate { milli: meter.rate_milli().max(1) }
            }
            Algorithm::FixedWindow(_) => Self::Rights,
            Algorithm::SlidingLog(_) | Algorithm::SlidingSlots(_) | Algorithm::SlidingApproximate(_) => {
                Self::Units { window_ns: global.period_ns(), total: global.budget(), has_slots }
            }
        }
    }

    /// The piece of `part` that this resource counts: its rate or its units.
    pub(crate) fn weigh(&self, part: Part) -> u64 {
        match self {
            Self::Rate { .. } => u64::from(part.rate),
            Self::Units { .. } | Self::Rights => part.units,
        }
    }

    /// How much this region could use of a cell of `budget` units.
    ///
    /// Most keys live in one region. So a region that nobody asked for long needs nothing beyond its demand.
    /// Any other region may yet use its own part, until its demand has lasted as long as the bucket takes to
    /// fill, or as the window: a burst comes and goes within that time. If that takes longer than other
    /// regions should wait, a region without demand lends half of its part at once.
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
            // Slots are free again when a burst is over.
            Self::Units { has_slots: true, .. } | Self::Rights => return want,
            Self::Units { window_ns, .. } => u128::from(*window_ns),
        };
        if active_cell.activity.is_unasked(now_ns, SETTINGS.sharing.unasked_ns) {
            return want;
        }
        if u128::from(demand.age_ns()) >= fills_ns.min(LONGEST_NS) {
            return want;
        }
        let is_silent = demand.events_milli() == 0;
        let part = self.weigh(standing);
        want.max(if is_silent && fills_ns > LONGEST_NS { part / 2 } else { part })
    }

    /// How much a demand could use: a hundredth more than is asked for, but at most all of it.
    pub(crate) fn want(&self, demand_milli: u64) -> u64 {
        let demand = demand_milli.saturating_add(demand_milli / 100);
        match self {
            Self::Rate { milli } => {
                let parts = u128::from(demand) * u128::from(RATE_PARTS) / u128::from(*milli);
                u64::try_from(parts).unwrap_or(u64::MAX).min(u64::from(RATE_PARTS))
            }
            Self::Units { window_ns, total, .. } => {
                // Nothing is added for chance. If units are scarce, one that is sure to be used elsewhere is
                // worth more; if not, the rest is shared out as well. Demand below a thousandth a second is
                // reported as one.
                units_in(demand.saturating_sub(1), *window_ns)
                    .saturating_add(u64::from(demand > 0))
                    .min(*total)
            }
            Self::Rights => units_in(demand, 1_000_000_000),
        }
    }
}

/// When to rebalance a cell again: sooner if much is asked, so that a change is seen soon.
pub(crate) fn rebalance_after_ns(events_milli: u64, is_scarce: bool) -> u64 {
    /// Events between two rebalances.
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
    fn demand_for_slots_is_what_is_taken_at_one_time_and_not_how_often_slots_are_asked_for() {
        const MS: u64 = 1_000_000;
        let resource = Resource::Units { window_ns: 600_000 * MS, total: 100, has_slots: true };
        let mut active_cell = ActiveCell::called(0);
        let mut now_ns = 0;
        // Five seconds in which 200 slots a second are asked for. Requests go on for a tenth of a second.
        let mut want_after = |taken: u64, missed: u64| {
            for _ in 0..250 {
                now_ns += 20 * MS;
                active_cell.demand.observe(4, 4, now_ns);
                let asked_milli = active_cell.demand.units_milli();
                let seen = SlotsSeen { taken, missed, asked_milli, passed_ns: 20 * MS };
                active_cell.window.note_slots(seen, 100);
            }
            resource.want(active_cell.demand_milli(&resource))
        };
        assert!((20..=22).contains(&want_after(20, 0)));
        // All are denied: twenty more could be under way, and count by a quarter.
        assert!((24..=28).contains(&want_after(20, 4)));
        assert!((2..=5).contains(&want_after(0, 4)), "a region without slots wants some");
        assert!(want_after(0, 0) <= 1, "what is over is forgotten");
    }

    #[test]
    fn an_active_cell_of_three_regions_takes_at_most_384_bytes() {
        let mut active_cell = ActiveCell::called(1);
        for region in [1, 2] {
            active_cell.view_mut(MemberId(region)).at_ns = 1;
        }
        assert!(!active_cell.views.spilled(), "what two other regions say fits in");
        assert!(size_of::<ActiveCell>() <= 384, "{} bytes", size_of::<ActiveCell>());
    }
}
