//! How much of its pool a cell wants: as much as demand says that it will use, before it runs out.
//!
//! But for one thing nothing here is a matter of safety: pools grant what they have, whatever they are asked. What was asked for when there was
//! more, and not heard of, may not be taken up: [`Leased::distrust`].

use std::cmp::Ordering;

use acequia_limits::{Algorithm, Now, Part, RATE_PARTS};
use acequia_rights::{
    mutation::{Mutation, mutated},
    pool::{Generation, window::PART},
};
use smallvec::SmallVec;

use super::withdrawals::Withdrawals;
use crate::{
    account::{Account, CellContext, Offered, Withdrawn},
    sharing::{Demand, look_after, units_in},
};

/// Demand is met for so long, at least, by what is held when the next call is made.
const SOON_NS: u64 = 60_000_000;
/// What is held when a pool cannot be reached lasts so long, where there is enough of it: demand is met beforehand for so long.
pub(super) const AHEAD_NS: u64 = 70_000_000_000;
/// A cell that nobody asked for, for so long, gives everything back; and one of whose pool no other takes, while there are few.
const IDLE_NS: u64 = 10_000_000_000;
const IDLE_ALONE_NS: u64 = 75_000_000_000;
/// So many units more than demand says are held, where others need not miss them, since requests come in bunches: what is held is to last
/// when its pool cannot be reached.
const BUNCH: u64 = 3;
/// What is not used for so long goes back.
const SPARE_NS: u64 = 1_000_000_000;
/// What was taken of a window before it opened is kept for such a part of it, and no longer than until a cell that nobody asks for gives back.
const OPENS_PART: u64 = 6;
/// A pool of which there are fewer units a node, at once and in each second, is *scarce*: what one holds and does not use the others miss.
/// So nodes hold no unit of it that they would not use while it is full once, give back what is not used for so long, and else ask for each.
const SCARCE: u64 = 8;
const SCARCE_SPARE_NS: u64 = 100_000_000;
/// A cell of which earlier processes took is found room for, or it is given up.
const ROOM_NS: u64 = 10_000_000_000;
/// What waits for the store's word is looked at again after so long.
const WORD_NS: u64 = 50_000_000;
/// What has an end is renewed so often.
const RENEW_NS: u64 = 5_000_000_000;
/// A pool that had nothing is asked again after so long, and twice as long each time, up to the second.
const VAIN_NS: u64 = 4_000_000;
const VAIN_NS_MAX: u64 = 500_000_000;
/// One of a window of few units, which gives none that is not needed, is asked for those after so long.
const SCANT_NS: u64 = 4_000_000_000;
/// A pool that has little left, and so gives less than such a part of all that it ever had, is asked no more often.
const LITTLE_NS: u64 = 15_000_000;
const LITTLE_PART: u64 = 1_024;
/// A call that waits for the disk is made so long after it is there, at most.
const DISK_NS: u64 = 1_000_000;
/// A pool that had nothing may have something after so long.
const DRY_NS: u64 = 1_000_000_000;
/// Whoever was denied so long ago waits no more.
const WAITS_NS: u64 = 5_000_000;
/// What a pool said that it had left so long ago, it may have more of now.
const LEFT_NS: u64 = 1_000_000_000;
/// What is wanted for later, and not soon, is asked for no more often.
const LATER_NS: u64 = 1_000_000_000;

/// A cell that takes from its pool.
#[derive(Debug)]
pub(super) struct CellLease {
    pub(super) demand: Demand,
    /// The call that is under way.
    pub(super) pending: Option<u64>,
    /// The next look, and the last: steady clock.
    pub(super) due_ns: u64,
    pub(super) looked_ns: u64,
    /// When it was last asked for; and after how long it gives everything back.
    busy_ns: u64,
    idle_ns: u64,
    /// When more was last wanted than there was.
    tight_ns: u64,
    /// Until when half of its part stays, of a sliding window: steady clock.
    half_until_ns: u64,
    /// When the pool was last called with success.
    pub(super) renewed_ns: u64,
    /// No more is asked for before this time, and how often that brought nothing, in a row.
    pub(super) quiet_until_ns: u64,
    in_vain: u32,
    /// No more is asked for ahead of need before this time, since that alone brought nothing; and until when nothing is there but for need.
    ahead_from_ns: u64,
    scant_until_ns: u64,
    /// Units that came last.
    pub(super) chunk: u64,
    /// Units that it held at the last look.
    pub(super) held: u64,
    /// Units that the pool had left, when it last said so: of a window the one that is open. And that of one that follows, by its end.
    pub(super) left: Option<u64>,
    later_left: Option<(u64, u64)>,
    /// Nothing more is asked for of windows that follow before this time.
    later_from_ns: u64,
    /// The part of the rate that is this node's, if every node's is in proportion to what it would like.
    pub(super) fair: Option<u32>,
    /// The window that is open.
    window: u64,
    /// What it takes of windows, as the disk has it, and what earlier processes took.
    pub(super) withdrawals: Withdrawals,
    /// Whether a call waits for the disk.
    pub(super) waits_for_disk: bool,
    /// What was denied and not asked for, since no call could be made or since there was not enough for all.
    unasked: Missed,
    /// What the last look found that was missed, and what of the call under way.
    missed: Missed,
    asked: Missed,
    /// Whether something is to be given back when the store was heard.
    pub(super) wants_word: bool,
    /// In which generation it was last told what is held, by the window's end; 0 where there are no edges.
    told: SmallVec<[(u64, Generation); 2]>,
    /// The window of the last call, by its end, or 0 where there are no edges: if this node stops, and nobody answered the call.
    pub(super) unheard: Option<u64>,
    /// Whether the call that is under way says what is held now.
    says_now: bool,
    /// Windows, by their ends, of which something was asked for and nothing heard since; and whether there was more then.
    unanswered: SmallVec<[(u64, bool); 2]>,
    /// What the pool has in all.
    under: Part,
    /// What may be held of it at most, where that is less than what is.
    most: Option<Part>,
}

/// What was denied: units in all, the largest cost, and since when.
#[derive(Clone, Copy, Debug, Default)]
struct Missed {
    units: u32,
    denied: u64,
    since_ns: u64,
    /// What must come for one of them to pass, and what is asked for.
    least: u64,
    needed: u64,
    /// Whether nothing is needed of a window of which more is asked for; and whether that has not begun.
    is_ahead: bool,
    is_later: bool,
}

/// What a cell has, and what was asked of it since the last look.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseInputs {
    pub(super) offered: Offered,
    pub(super) available: u64,
    pub(super) standing: Part,
    /// What its pool has in all.
    pub(super) pool: Part,
    /// The whole limit's units: no request can have more.
    pub(super) budget: u64,
    /// What other regions are to be given, and what they have been lent; and what must be held now, since that is out.
    pub(super) for_others: Part,
    pub(super) lent: Part,
    pub(super) kept: Part,
    pub(super) nodes: u64,
    /// Whether this node has to do with it for all of them.
    pub(super) speaks: bool,
    /// Whether what is held may last though nobody asks for it.
    pub(super) lasts: bool,
    /// Whether it is of a window without edges: what comes back of it comes bit by bit.
    pub(super) slides: bool,
}

impl LeaseInputs {
    /// Whether what a node holds of the pool and does not use is missed by others, of one that gives so many thousandths of a unit a second.
    const fn is_scarce(&self, a_second_milli: u64) -> bool {
        let few = SCARCE * self.nodes;
        self.nodes > 1 && self.pool.units < few && a_second_milli < few * 1_000
    }

    /// Whether no other node takes of the pool, of few units: what this one holds of them nobody misses unless it dies.
    const fn is_alone(&self) -> bool {
        self.nodes == 1 && self.speaks
    }

    /// Whether other regions ask for what this one has.
    fn is_wanted_elsewhere(&self) -> bool {
        self.lent != Part::default() || self.for_others != Part::default()
    }

    /// What of the pool this node would like to hold, to have so much besides what other regions have been lent and are to be given.
    fn beside_others(&self, own: Part) -> Part {
        let all = |own: u64, lent: u64, for_others: u64, standing: u64| {
            own.saturating_add(lent).saturating_add(for_others).saturating_sub(standing)
        };
        let (lent, to, standing) = (self.lent, self.for_others, self.standing);
        let rate = all(own.rate.into(), lent.rate.into(), to.rate.into(), standing.rate.into());
        let rate = rate.min(self.pool.rate.into()) as u32;
        let units = all(own.units, lent.units, to.units, standing.units).min(self.pool.units);
        Part { rate: rate.max(self.kept.rate), units: units.max(self.kept.units) }
    }
}

/// What it wants of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WindowWant {
    pub(super) wanted: u64,
    pub(super) needed: u64,
    pub(super) returns: u64,
}

/// What it wants of a bucket or a sliding window: to keep so much of what it holds, and to have so much more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RateWant {
    pub(super) keeps: Part,
    pub(super) wanted: Part,
    pub(super) needed: u64,
}

impl CellLease {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            demand: Demand::since(now_ns),
            pending: None,
            unheard: None,
            due_ns: now_ns,
            looked_ns: 0,
            busy_ns: now_ns,
            idle_ns: IDLE_NS,
            tight_ns: now_ns,
            half_until_ns: 0,
            renewed_ns: 0,
            quiet_until_ns: 0,
            in_vain: 0,
            ahead_from_ns: 0,
            scant_until_ns: 0,
            chunk: 0,
            held: 0,
            left: None,
            later_left: None,
            later_from_ns: 0,
            fair: None,
            window: 0,
            withdrawals: Withdrawals::default(),
            waits_for_disk: false,
            unasked: Missed::default(),
            missed: Missed::default(),
            asked: Missed::default(),
            wants_word: false,
            told: SmallVec::new(),
            says_now: false,
            unanswered: SmallVec::new(),
            under: Part::default(),
            most: None,
        }
    }

    /// One of which earlier processes took.
    pub(super) fn after(withdrawals: Withdrawals, now_ns: u64) -> Self {
        Self { withdrawals, ..Self::new(now_ns) }
    }

    /// Goes by what its pool has, and by how much of it may be held. Where that is something else than before, all that is held is told
    /// again; and what was asked for, and not heard of, may have been granted when there was more.
    pub(super) fn follow(&mut self, account: &mut Account, context: &CellContext<'_>, pool: Part) {
        (self.under, self.most) = (pool, account.most_of_pool());
        if !account.take_told_of_other() {
            return;
        }
        self.told.clear();
        self.says_now = false;
        if let Algorithm::FixedWindow(window) = context.global {
            self.distrust(|end_ns| account.is_later(window, end_ns, context.salt));
        }
    }

    /// What was asked for of such windows, and not heard of, was granted when there was more.
    pub(super) fn distrust(&mut self, is_such: impl Fn(u64) -> bool) {
        if !mutated(Mutation::LeaseTakesUpMore) {
            self.unanswered.iter_mut().for_each(|(end_ns, is_of_more)| *is_of_more |= is_such(*end_ns));
        }
    }

    /// More of a window is asked for, by its end.
    pub(super) fn asks_of(&mut self, end_ns: u64) {
        if !self.is_unanswered(end_ns) {
            self.unanswered.push((end_ns, false));
        }
    }

    /// The pool has said what of a window was granted. Says whether something of that may have been when there was more.
    pub(super) fn is_answered(&mut self, end_ns: u64) -> bool {
        let is_of_more = self.may_be_of_more(end_ns);
        self.unanswered.retain(|(window, _)| *window != end_ns);
        is_of_more
    }

    /// Windows that end before a time are over.
    pub(super) fn forget_unanswered(&mut self, over_ns: u64) {
        self.unanswered.retain(|(window, _)| *window > over_ns);
    }

    /// Windows of which it is not known what was granted: by their ends.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = u64> {
        self.unanswered.iter().map(|(window, _)| *window)
    }

    pub(super) fn is_unanswered(&self, end_ns: u64) -> bool {
        self.unanswered().any(|window| window == end_ns)
    }

    /// Whether what is heard first of a window may have been granted when there was more.
    pub(super) fn may_be_of_more(&self, end_ns: u64) -> bool {
        self.unanswered.contains(&(end_ns, true))
    }

    /// What is held is as much as may be, or soon is, of a pool that has so much in all, and that does not know.
    pub(super) fn goes_by(&mut self, pool: Part, most: Option<Part>) {
        (self.under, self.most, self.left, self.fair) = (pool, most, None, None);
        self.told.clear();
    }

    /// Keeps to what may be held, and asks for no more while that is less than what is. What cannot be given back now is `kept`, and not
    /// asked about again and again.
    fn bounded(&mut self, flow: Option<RateWant>, held: Part, kept: Part, now: Now) -> Option<RateWant> {
        let Some(most) = self.most else { return flow };
        if held.rate <= most.rate && held.units <= most.units {
            self.most = None;
            return flow;
        }
        let keeps = flow.map_or(held, |flow| flow.keeps);
        let rate = keeps.rate.min(most.rate.max(kept.rate));
        let keeps = Part { rate, units: keeps.units.min(most.units.max(kept.units)) };
        (keeps != held || self.is_renewal_due(held, now)).then_some(RateWant { keeps, ..RateWant::default() })
    }

    /// Whether less may be held than is.
    pub(super) const fn must_shrink(&self) -> bool {
        self.most.is_some()
    }

    /// What is held of a window is not what the pool was told.
    pub(super) fn untell(&mut self, end_ns: u64) {
        self.told.retain(|(window, _)| *window != end_ns);
    }

    /// A call is made, which says what is held; none, if there is no room for it.
    pub(super) const fn calls(&mut self, id: Option<u64>) {
        (self.pending, self.says_now) = (id, id.is_some());
        self.asked = self.missed;
    }

    /// The pool knows what the last call said, in a generation.
    pub(super) fn tell(&mut self, end_ns: u64, generation: Generation) {
        self.told.retain(|(window, _)| *window != end_ns && *window >= self.window);
        if self.says_now {
            self.told.push((end_ns, generation));
        }
    }

    pub(super) fn was_told(&self, end_ns: u64, generation: Generation) -> bool {
        self.told.contains(&(end_ns, generation)) || mutated(Mutation::LeaseUntold)
    }

    /// Whether the disk knows what a call for so much may bring; if not, it soon will, and `ahead` more.
    pub(super) fn covers(&mut self, withdrawn: &Withdrawn, wanted: u64, ahead: u64, committed: u64) -> bool {
        let units = (withdrawn.withdrawn - withdrawn.returned).saturating_add(wanted);
        let units = self.withdrawals.with_before(withdrawn.end_ns, units);
        self.withdrawals.is_written(withdrawn.end_ns, units, ahead, committed)
    }

    /// Takes in what was asked for.
    pub(super) fn observe(&mut self, inputs: &LeaseInputs, now: Now) {
        let Offered { units, events, .. } = inputs.offered;
        // What no cell could ever give is not asked for.
        let most = u64::from(events).saturating_mul(inputs.budget);
        self.demand.observe(units.min(most), events.into(), now.steady_ns);
        self.looked_ns = now.steady_ns;
        self.idle_ns =
            if inputs.lasts && (inputs.is_alone() || inputs.slides) { IDLE_ALONE_NS } else { IDLE_NS };
        if events > 0 {
            self.busy_ns = now.steady_ns;
        } else if self.is_idle(now) && self.demand.units_milli() > 0 {
            self.demand = Demand::since(now.steady_ns);
        }
    }

    /// What was asked for since the last look, and what was denied before it and not asked for: of that, in all, only what somebody may wait
    /// for still.
    pub(super) fn with_unasked(&mut self, offered: Offered, now: Now) -> Offered {
        let before = std::mem::take(&mut self.unasked);
        let still_waits = before.units > 0 && now.steady_ns < before.since_ns + WAITS_NS;
        let units = if still_waits { before.units } else { 0 };
        let since_ns = if still_waits { before.since_ns } else { now.steady_ns };
        let offered = Offered {
            missed: offered.missed.saturating_add(units),
            denied: offered.denied.max(before.denied),
            ..offered
        };
        let (units, denied) = (offered.missed, offered.denied);
        self.missed = Missed { units, denied, since_ns, ..Missed::default() };
        offered
    }

    /// No call is made of what the last look found, and not for want of need.
    pub(super) const fn leave_unasked(&mut self) {
        self.unasked = self.missed;
    }

    /// Whether nobody has asked for it for long.
    pub(super) fn is_idle(&self, now: Now) -> bool {
        now.steady_ns.saturating_sub(self.busy_ns) > self.idle_ns
    }

    /// Whether there has been no room for it for long, since it was to be looked at for the first time.
    pub(super) const fn is_out_of_room(&self, now: Now) -> bool {
        self.looked_ns == 0 && self.pending.is_none() && now.steady_ns.saturating_sub(self.busy_ns) > ROOM_NS
    }

    /// When to look again, of what has no end.
    pub(super) fn look_after(&self) -> u64 {
        if self.waits_for_disk {
            return DISK_NS;
        }
        if self.wants_word {
            return WORD_NS;
        }
        let is_busy = self.looked_ns.saturating_sub(self.busy_ns) < IDLE_NS;
        look_after(self.demand.events_milli(), is_busy && self.in_vain == 0 && self.demand.events_milli() > 0)
    }

    /// Whether its pool has nothing for it, as far as is known, or nothing beyond what is needed: what is missed may be had elsewhere.
    pub(super) const fn is_dry(&self, now: Now) -> bool {
        let has_nothing = self.in_vain > 0 && now.steady_ns < self.quiet_until_ns + DRY_NS;
        has_nothing || now.steady_ns < self.scant_until_ns
    }

    /// Whether no call can be made now: its pool had nothing a moment ago, or is being asked.
    pub(super) const fn is_quiet(&self, now_ns: u64) -> bool {
        now_ns < self.quiet_until_ns || self.pending.is_some()
    }

    /// Whether anything was denied that somebody may wait for.
    pub(super) const fn is_missed(&self) -> bool {
        self.missed.denied > 0
    }

    /// What one of those needs that were denied.
    pub(super) const fn least(&self) -> u64 {
        self.missed.least
    }

    /// What of its pool this node could take without taking what the others may need as well: all of it where it speaks for them.
    pub(super) fn within_reach(&self, inputs: &LeaseInputs, held: Part, now: Now) -> Part {
        if self.is_dry(now) || self.must_shrink() {
            return Part::default();
        }
        let left = self.left.unwrap_or_else(|| inputs.pool.units.saturating_sub(held.units));
        let takers = if inputs.speaks { 1 } else { inputs.nodes };
        // No more than the pool's.
        let rate = u64::from(inputs.pool.rate.saturating_sub(held.rate)) / takers;
        Part { rate: rate as u32, units: left / takers }
    }

    /// Less than this left calls for a look.
    pub(super) fn low_water(&self) -> u64 {
        self.soon().max(self.chunk / 2)
    }

    /// The pool said how much it has left of a window, by its end. Of one that is over nobody wants to know.
    pub(super) fn hears_left(&mut self, end_ns: u64, left: u64) {
        match end_ns.cmp(&self.window) {
            Ordering::Less => {}
            Ordering::Greater => self.later_left = Some((end_ns, left)),
            Ordering::Equal => self.left = Some(left),
        }
    }

    /// The answer to a call that wanted more came, and brought so many units.
    pub(super) fn came(&mut self, units: u64, wanted: bool, now_ns: u64) {
        if self.asked.is_later {
            // What there is of the window that is open is another matter.
            let after_ns = if units > 0 { 0 } else { LATER_NS };
            self.later_from_ns = now_ns + after_ns;
        } else if units > 0 {
            // A large pool gives little by little from the beginning: of that alone nobody need wait.
            let is_little = units < self.soon() / 4 && units <= self.under.units / LITTLE_PART;
            let quiet_until_ns = if is_little { now_ns + LITTLE_NS } else { 0 };
            (self.chunk, self.in_vain, self.quiet_until_ns) = (units, 0, quiet_until_ns);
            if units > self.asked.needed {
                (self.ahead_from_ns, self.scant_until_ns) = (0, 0);
            }
        } else if wanted && self.has_left_least() {
            // There is not enough for all, and enough for one.
            self.leave_of_call();
        } else if wanted && self.asked.is_ahead && self.left.is_some_and(|left| left > 0) {
            // What little there is is for whoever needs it.
            (self.ahead_from_ns, self.scant_until_ns) = (now_ns + SCANT_NS, now_ns + DRY_NS);
        } else if wanted {
            self.quiet_until_ns = now_ns + (VAIN_NS << self.in_vain.min(8)).min(VAIN_NS_MAX);
            self.in_vain = self.in_vain.saturating_add(1);
        }
    }

    /// Whether the pool refused since it had less than was needed for all, and enough for one.
    fn has_left_least(&self) -> bool {
        let Missed { least, needed, .. } = self.asked;
        least > 0 && self.left.is_some_and(|left| (least..needed).contains(&left))
    }

    /// What the last call was for is to be asked for again, beside what was missed since.
    fn leave_of_call(&mut self) {
        let (asked, since) = (std::mem::take(&mut self.asked), self.unasked);
        let since_ns = if since.units > 0 { since.since_ns.min(asked.since_ns) } else { asked.since_ns };
        let (units, denied) = (since.units.saturating_add(asked.units), since.denied.max(asked.denied));
        self.unasked = Missed { units, denied, since_ns, ..Missed::default() };
    }

    /// Nobody answered, or not what was asked.
    pub(super) fn missed(&mut self, now_ns: u64) {
        self.asked = Missed::default();
        self.came(0, true, now_ns);
    }

    /// A window that has so much time left.
    pub(super) fn window(
        &mut self,
        inputs: &LeaseInputs,
        (withdrawn, time_left_ns): (&Withdrawn, u64),
        now: Now,
    ) -> Option<WindowWant> {
        if self.window < withdrawn.end_ns {
            (self.window, self.in_vain, self.quiet_until_ns, self.chunk) = (withdrawn.end_ns, 0, 0, 0);
            // That nothing was left may be long ago.
            let is_its = |(end_ns, left): &(u64, u64)| *end_ns == withdrawn.end_ns && *left > 0;
            self.left = self.later_left.filter(is_its).map(|(_, left)| left);
            (self.ahead_from_ns, self.scant_until_ns) = (0, 0);
            // What was taken of it before it opened is for those who come now.
            self.tight_ns = now.steady_ns.saturating_add((time_left_ns / OPENS_PART).min(IDLE_NS));
        }
        // Of what is left no node holds more than its own part ahead of time, or others would have to ask for it back.
        let left = self.left.unwrap_or(inputs.pool.units);
        let part = inputs.pool.units / inputs.nodes;
        let most = (left / inputs.nodes + by_chance(part)).min(left);
        let with_own = if inputs.is_alone() { inputs.available } else { 0 };
        let ahead = self.ample_in(time_left_ns.min(AHEAD_NS)).min((most + with_own).max(self.soon()));
        let needed = self.needed(inputs, now).saturating_add(inputs.for_others.units);
        if ahead > inputs.available || needed > 0 {
            self.tight_ns = self.tight_ns.max(now.steady_ns);
        }
        // The pool gives a part of what it has beyond what is needed: little by little, so that no node has idle what others need.
        let is_short = inputs.available < ahead / 2 || self.is_later(inputs.available, ahead, LATER_NS, now);
        let is_low = needed > 0 || (is_short && now.steady_ns >= self.ahead_from_ns);
        if is_low && now.steady_ns >= self.quiet_until_ns {
            let wanted =
                ahead.saturating_sub(inputs.available).saturating_add(inputs.for_others.units).max(needed);
            // A pool of few units gives none of them that is not needed. Where no other takes of it, what it has is for nothing else.
            self.missed.is_ahead = needed == 0 && left / inputs.nodes < PART;
            let needed = if needed == 0 && inputs.is_alone() { wanted.min(left).min(PART) } else { needed };
            return Some(WindowWant { wanted, needed, returns: 0 });
        }
        let held = withdrawn.withdrawn - withdrawn.returned;
        let spare = inputs.available.saturating_sub(ahead + ahead / 2).min(held);
        // What nobody else takes may be asked for again.
        let spare_ns = if inputs.is_alone() && inputs.lasts { IDLE_ALONE_NS } else { SPARE_NS };
        let is_spare = now.steady_ns.saturating_sub(self.tight_ns) > spare_ns;
        (is_spare && spare > held / 8).then_some(WindowWant { returns: spare, ..WindowWant::default() })
    }

    /// A window that follows, of which its pool has so many units, before it opens: a pool that cannot be reached then shall not be missed.
    pub(super) fn later_window(
        &mut self,
        inputs: &LeaseInputs,
        (withdrawn, pool): (&Withdrawn, u64),
        length_ns: u64,
        now: Now,
    ) -> Option<WindowWant> {
        if now.steady_ns < self.later_from_ns {
            return None;
        }
        let held = withdrawn.withdrawn - withdrawn.returned;
        let known = self.later_left.filter(|(end_ns, _)| *end_ns == withdrawn.end_ns);
        let left = known.map_or(pool, |(_, left)| left.saturating_add(held)).min(pool);
        // Half of this node's part, and as many more as may come by chance.
        let part = pool / inputs.nodes;
        let most = if inputs.is_alone() { left } else { part.min(part / 2 + by_chance(part)) };
        let ahead = self.ample_in(length_ns.min(AHEAD_NS)).min(most);
        let every_ns = LATER_NS.min(length_ns / 8);
        let is_low = ahead > u64::from(!inputs.is_alone()) && self.is_later(held, ahead, every_ns, now);
        if !is_low || now.steady_ns < self.quiet_until_ns {
            return None;
        }
        self.missed = Missed { is_later: true, ..self.missed };
        // All at once: nobody spends it yet, and what is not used goes back.
        Some(WindowWant { wanted: ahead - held, needed: ahead - held, returns: 0 })
    }

    /// A bucket, of which so much is held. The whole limit gives `rate_milli` units a second, in thousandths.
    pub(super) fn bucket(
        &mut self,
        inputs: &LeaseInputs,
        held: Part,
        rate_milli: u64,
        now: Now,
    ) -> Option<RateWant> {
        let of_pool_milli = u128::from(rate_milli) * u128::from(inputs.pool.rate) / u128::from(RATE_PARTS);
        let is_scarce = inputs.is_scarce(u64::try_from(of_pool_milli).unwrap_or(u64::MAX));
        let more = if is_scarce || inputs.is_wanted_elsewhere() { 0 } else { self.bunch_rate(inputs.pool) };
        // The pool has not said yet what the other nodes would like. They may be asked at the same time, so this one asks for no more than its part.
        let most_rate = match self.fair {
            None if !is_scarce => {
                let of_pool = u64::from(inputs.pool.rate) / inputs.nodes;
                // No more than the pool's.
                inputs.standing.rate.saturating_add(of_pool as u32).min(RATE_PARTS)
            }
            _ => RATE_PARTS,
        };
        let liked_rate = self.asked_rate(rate_milli).saturating_add(more).min(most_rate);
        let liked = inputs.beside_others(Part { rate: liked_rate, units: 0 });
        let mut rate = self.fair.map_or(liked.rate, |fair| liked.rate.min(fair)).max(inputs.kept.rate);
        let mut along = along(inputs.pool, rate).max(liked.units);
        if is_scarce && u128::from(inputs.pool.units) * u128::from(rate) < u128::from(inputs.pool.rate) {
            // Less than a unit goes along.
            let of_others = inputs.beside_others(Part::default());
            (rate, along) = (of_others.rate, of_others.units);
        }
        let needed = self.needed(inputs, now);
        let has = held.units + inputs.standing.units;
        let is_low = self.demand.events_milli() > 0 && inputs.available < (has / 4).min(self.soon().max(1));
        if needed > 0 || is_low {
            self.tight_ns = now.steady_ns;
        }
        let spare_ns = if is_scarce { SCARCE_SPARE_NS } else { SPARE_NS };
        let is_spare = now.steady_ns.saturating_sub(self.tight_ns) > spare_ns;
        let mut flow = RateWant { keeps: held, ..RateWant::default() };
        if self.is_idle(now) {
            flow.keeps = Part { rate: held.rate.min(liked.rate), units: held.units.min(liked.units) };
            flow.wanted = Part { rate: liked.rate - flow.keeps.rate, units: liked.units - flow.keeps.units };
        } else {
            // A little to and fro is not worth a call.
            if held.rate > rate + rate / 8 {
                flow.keeps.rate = rate;
            }
            if is_scarce {
                let asks = needed > 0 && now.steady_ns >= self.quiet_until_ns;
                let goes = asks || is_spare || inputs.available == 0;
                flow.keeps.units = if goes { held.units.min(along) } else { held.units };
            } else if is_spare && held.units > along + along / 2 + 1 {
                flow.keeps.units = along.max(held.units.saturating_sub(inputs.available)).max(liked.units);
            }
            let wanted_rate = if is_scarce { rate } else { liked.rate };
            flow.wanted.rate = wanted_rate.saturating_sub(flow.keeps.rate);
            flow.wanted.units = along.saturating_sub(flow.keeps.units);
            if (needed > 0 || is_low) && now.steady_ns >= self.quiet_until_ns {
                // Of a scarce pool what goes back with the call counted as there.
                let unspent = inputs.available.saturating_sub(inputs.standing.units);
                let back = if is_scarce { (held.units - flow.keeps.units).min(unspent) } else { 0 };
                flow.needed = needed.max(1) + back;
                let more = if is_scarce { 0 } else { has };
                flow.wanted.units = flow.wanted.units.max(more).max(flow.needed);
            }
        }
        let grows = rate > held.rate + held.rate / 8 || flow.wanted.units > 0;
        let is_changed = (grows && now.steady_ns >= self.quiet_until_ns) || flow.keeps != held;
        let flow = (is_changed || self.is_renewal_due(held, now)).then_some(flow);
        self.bounded(flow, held, inputs.kept, now)
    }

    /// A sliding window, of which so many units are held.
    pub(super) fn sliding(
        &mut self,
        inputs: &LeaseInputs,
        held: u64,
        window_ns: u64,
        now: Now,
    ) -> Option<RateWant> {
        let a_second_milli = u128::from(inputs.pool.units) * 1_000_000_000_000 / u128::from(window_ns.max(1));
        let is_scarce = inputs.is_scarce(u64::try_from(a_second_milli).unwrap_or(u64::MAX));
        let ahead = self.ample_in(window_ns).min(self.most_ahead(inputs, held, is_scarce));
        let aim = inputs.beside_others(Part { rate: 0, units: ahead }).units;
        let needed = self.needed(inputs, now);
        if needed > 0 || aim > held {
            self.tight_ns = now.steady_ns;
        }
        let spare_ns = if is_scarce { SCARCE_SPARE_NS } else { SPARE_NS.max(window_ns / 4) };
        let is_spare = now.steady_ns.saturating_sub(self.tight_ns) > spare_ns;
        let part = |units| Part { rate: 0, units };
        // Half of this node's part is no other's to miss, for so long after half of that was wanted as one that nobody asks for keeps it: what
        // is asked for now and then alone does not keep it.
        let own = inputs.pool.units / inputs.nodes;
        let half = if inputs.lasts { own.min(own / 2 + 2 * by_chance(own)) } else { 0 };
        if aim >= half / 2 {
            self.half_until_ns = now.steady_ns.saturating_add(IDLE_ALONE_NS);
        }
        let half = if now.steady_ns < self.half_until_ns { half } else { 0 };
        let mut flow = RateWant { keeps: part(held), ..RateWant::default() };
        if self.is_idle(now) {
            flow.keeps = part(held.min(aim));
            flow.wanted = part(aim - flow.keeps.units);
        } else if is_scarce {
            if (needed > 0 || aim > held) && now.steady_ns >= self.quiet_until_ns {
                (flow.wanted, flow.needed) = (part(aim.saturating_sub(held).max(needed)), needed);
            } else if is_spare {
                // What was used in the last window stays.
                flow.keeps = part(held.saturating_sub(inputs.available).max(aim.min(held)));
            }
        } else if is_spare && held > aim.max(half) + aim / 4 {
            flow.keeps = part(aim.max(half));
        } else if now.steady_ns >= self.quiet_until_ns {
            // Of what is left no node takes more than its own part at once.
            let most = self.left.map_or(inputs.pool.units / inputs.nodes, |left| left.div_ceil(2));
            flow.wanted = part(aim.saturating_sub(held).min(most).max(needed));
            flow.needed = needed;
        }
        let is_changed = flow.wanted.units > held / 16 || flow.needed > 0 || flow.keeps.units != held;
        let flow = (is_changed || self.is_renewal_due(part(held), now)).then_some(flow);
        self.bounded(flow, part(held), inputs.kept, now)
    }

    /// What this node may have ahead of need of what has no edges: its part, and beyond it little more than it needs soon, since another may
    /// need its own before that is back; of a scarce pool nothing.
    fn most_ahead(&self, inputs: &LeaseInputs, held: u64, is_scarce: bool) -> u64 {
        if is_scarce {
            return 0;
        }
        if inputs.nodes == 1 {
            return u64::MAX;
        }
        let is_low = inputs.available < self.soon().max(1);
        let more = if is_low { held / 8 + self.soon().max(1) } else { 0 };
        let part = (inputs.pool.units / inputs.nodes).max(held.saturating_add(more));
        inputs.standing.units.saturating_add(part)
    }

    /// Whether what is there for later should be more, and it was not asked for just before.
    const fn is_later(&self, held: u64, ahead: u64, every_ns: u64, now: Now) -> bool {
        held < ahead - ahead / 8 && now.steady_ns >= self.renewed_ns + every_ns
    }

    fn is_renewal_due(&self, held: Part, now: Now) -> bool {
        held != Part::default()
            && now.steady_ns >= self.renewed_ns + RENEW_NS
            && now.steady_ns >= self.quiet_until_ns
    }

    /// Units without which what was denied cannot pass: all of it, since it may wait; but no more than half of what there is, so far as is
    /// known, unless one request needs more.
    fn needed(&mut self, inputs: &LeaseInputs, now: Now) -> u64 {
        let Offered { denied, missed, .. } = inputs.offered;
        let least = if denied <= inputs.budget { denied.saturating_sub(inputs.available) } else { 0 };
        let left = self.left.filter(|_| now.steady_ns < self.renewed_ns + LEFT_NS);
        let half = left.unwrap_or(inputs.pool.units).div_ceil(2);
        let all = u64::from(missed).saturating_sub(inputs.available);
        let needed = if least > 0 { all.min(half).max(least) } else { 0 };
        (self.missed.least, self.missed.needed) = (least, needed);
        needed
    }

    /// A tenth more than is asked for in a time.
    fn wanted_in(&self, ns: u64) -> u64 {
        let milli = self.demand.units_milli();
        units_in(milli.saturating_add(milli / 10), ns)
    }

    /// The same, and what comes in bunches: of many that come by chance, about the root of their number more or less.
    fn ample_in(&self, ns: u64) -> u64 {
        if self.demand.events_milli() == 0 {
            return 0;
        }
        let wanted = self.wanted_in(ns);
        wanted.saturating_add(wanted.isqrt()).saturating_add(BUNCH)
    }

    /// Parts of the rate that come with a bunch of units.
    fn bunch_rate(&self, pool: Part) -> u32 {
        if self.demand.events_milli() == 0 {
            return 0;
        }
        // No more than the pool's.
        (u64::from(pool.rate) * BUNCH.min(pool.units) / pool.units.max(1)) as u32
    }

    fn soon(&self) -> u64 {
        units_in(self.demand.units_milli(), SOON_NS)
    }

    /// Parts of the rate that would be used: a tenth more than is asked for.
    fn asked_rate(&self, rate_milli: u64) -> u32 {
        let milli = u128::from(self.demand.units_milli()) * 11 / 10;
        let parts = (milli * u128::from(RATE_PARTS)).div_ceil(u128::from(rate_milli.max(1)));
        u32::try_from(parts).unwrap_or(RATE_PARTS).min(RATE_PARTS)
    }
}

/// Of many requests that come by chance, about the root of their number come more or less: so many beside a part, or beside half of one.
const fn by_chance(part: u64) -> u64 {
    part.isqrt()
}

/// Units of a pool that go along with a part of its rate.
fn along(pool: Part, rate: u32) -> u64 {
    if pool.rate == 0 {
        return 0;
    }
    let units = (u128::from(pool.units) * u128::from(rate)).div_ceil(u128::from(pool.rate));
    u64::try_from(units).unwrap_or(pool.units).min(pool.units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_later_window_lacks_is_another_matter() {
        let mut lease = CellLease::new(0);
        lease.window = 100;
        lease.hears_left(100, 7);
        lease.missed.is_later = true;
        lease.calls(Some(1));
        lease.hears_left(200, 0);
        lease.came(0, true, 5);
        assert_eq!((lease.left, lease.later_left), (Some(7), Some((200, 0))));
        assert!(!lease.is_dry(Now::at(6)) && lease.quiet_until_ns == 0);
        assert_eq!(lease.later_from_ns, 5 + LATER_NS);
        // Of the one that is open it is.
        lease.missed = Missed::default();
        lease.calls(Some(2));
        lease.hears_left(50, 3);
        lease.hears_left(100, 0);
        lease.came(0, true, 5);
        assert_eq!(lease.left, Some(0));
        assert!(lease.is_dry(Now::at(6)) && lease.quiet_until_ns > 5);
    }
}
