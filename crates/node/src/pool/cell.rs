//! How much of its pool a cell wants: as much as it will use by its demand, before that runs out.
//!
//! With one exception, safety does not depend on this module: pools grant only what they have, whatever they
//! are asked. The exception: a window's units that were asked for when the pool had more, and not heard of,
//! may not be taken up ([`CellLease::distrust`]).

use std::cmp::Ordering;

use acequia_limits::{Algorithm, Now, Part, RATE_PARTS};
use acequia_rights::{
    mutation::{Mutation, mutated},
    pool::{Generation, window::PART},
};
use smallvec::SmallVec;

use super::withdrawals::Withdrawals;
use crate::{
    cell::account::{Account, CellContext, Offered, Withdrawn},
    regions::{Demand, rebalance_after_ns, units_in},
};

/// The held units last at least this long by demand when the next call is made.
const SOON_NS: u64 = 60_000_000;
/// Demand is met this far ahead, if the pool has enough: so long the held units last without the pool.
pub(super) const AHEAD_NS: u64 = 70_000_000_000;
/// A cell without requests gives everything back after `IDLE_NS`. While there are few cells, the time is
/// `IDLE_ALONE_NS` for a sliding window, and for a window's pool of which no other node takes.
const IDLE_NS: u64 = 10_000_000_000;
const IDLE_ALONE_NS: u64 = 75_000_000_000;
/// Units to hold beyond demand, if other nodes can spare them: requests come in bunches, and the held units
/// are to last while the pool cannot be reached.
const BUNCH: u64 = 3;
/// Units that are not used for this long go back.
const SPARE_NS: u64 = 1_000_000_000;
/// Units that were taken of a window before it opened are kept for this fraction of the window, and at most
/// for `IDLE_NS`.
const OPENS_PART: u64 = 6;
/// A pool is *scarce* if its units, and its units a second, are below this number for each node: other nodes
/// need what one holds and does not use. So of a scarce pool a node holds no unit ahead of need beyond those
/// that it uses while the pool fills once. It gives units back after `SCARCE_SPARE_NS`, and asks for each
/// further one.
const SCARCE: u64 = 8;
const SCARCE_SPARE_NS: u64 = 100_000_000;
/// A cell of which earlier processes took is given up if there is no room for it for this long.
const ROOM_NS: u64 = 10_000_000_000;
/// A cell that waits for a word from the store is rebalanced again after this long.
const WORD_NS: u64 = 50_000_000;
/// How often a lease is renewed.
const RENEW_NS: u64 = 5_000_000_000;
/// A pool that had nothing is asked again after `VAIN_NS`; the time doubles with each miss in a row, up to
/// `VAIN_NS_MAX`.
const VAIN_NS: u64 = 4_000_000;
const VAIN_NS_MAX: u64 = 500_000_000;
/// A window's pool of few units gives none ahead of need: it is asked again for those after this long.
const SCANT_NS: u64 = 4_000_000_000;
/// A large pool that gives less than this fraction of all its units has little left, and is asked no more
/// often than each `LITTLE_NS`.
const LITTLE_NS: u64 = 15_000_000;
const LITTLE_PART: u64 = 1_024;
/// A call that waits for the disk is made at most this long after the row is there.
const DISK_NS: u64 = 1_000_000;
/// A pool that had nothing may have something after this long.
const DRY_NS: u64 = 1_000_000_000;
/// A request that was denied this long ago waits no more.
const WAITS_NS: u64 = 5_000_000;
/// The pool may have more by now than it said this long ago.
const LEFT_NS: u64 = 1_000_000_000;
/// How often units are asked for that are only wanted later.
const LATER_NS: u64 = 1_000_000_000;

/// A cell that leases from its pool.
#[derive(Debug)]
pub(super) struct CellLease {
    pub(super) demand: Demand,
    /// The call that is under way.
    pub(super) pending: Option<u64>,
    /// The times of the next rebalance and of the last one: steady clock.
    pub(super) due_ns: u64,
    pub(super) rebalanced_ns: u64,
    /// When a request last came; and after how long without one everything goes back.
    busy_ns: u64,
    idle_ns: u64,
    /// When more was last wanted than there was: steady clock.
    tight_ns: u64,
    /// Until when half of this node's part stays, of a sliding window: steady clock.
    half_until_ns: u64,
    /// When the pool was last called with success: steady clock.
    pub(super) renewed_ns: u64,
    /// No more is asked for before this time; and how many calls in a row brought nothing.
    pub(super) quiet_until_ns: u64,
    in_vain: u32,
    /// No more is asked for ahead of need before the first time, since such a call brought nothing. Until the
    /// second time the pool gives units only for need.
    ahead_from_ns: u64,
    scant_until_ns: u64,
    /// Units that the last grant brought.
    pub(super) chunk: u64,
    /// Units that the cell held at the last rebalance.
    pub(super) held: u64,
    /// Units that the pool had left when it last said so: for windows, of the open one. And those of a later
    /// window, with the window's end.
    pub(super) left: Option<u64>,
    later_left: Option<(u64, u64)>,
    /// No more is asked for of later windows before this time.
    later_from_ns: u64,
    /// The part of the rate for this node, if every node gets in proportion to what it would like.
    pub(super) fair: Option<u32>,
    /// The open window, by its end.
    window: u64,
    /// Withdrawals from windows by all processes, as the disk has them.
    pub(super) withdrawals: Withdrawals,
    /// Whether a call waits for the disk.
    pub(super) waits_for_disk: bool,
    /// Denied units that were not asked for, because no call could be made or there was not enough for all.
    unasked: Missed,
    /// The requests that the last rebalance found denied, and those that the call under way is for.
    missed: Missed,
    asked: Missed,
    /// Whether the cell waits for a word from the store, to give something back.
    pub(super) wants_word: bool,
    /// The generations in which the pool was last told what is held, by the window's end; 0 if there are no
    /// edges.
    told: SmallVec<[(u64, Generation); 2]>,
    /// The window of the last call, by its end (0 if there are no edges), if this node stops and nobody
    /// answered.
    pub(super) unheard: Option<u64>,
    /// Whether the call under way tells what is held now.
    says_now: bool,
    /// Windows, by their ends, of which something was asked for and nothing heard since; and whether the pool
    /// had more when that was asked.
    unanswered: SmallVec<[(u64, bool); 2]>,
    /// What the pool has in all.
    under: Part,
    /// The most that may be held, if that is less than what is held.
    most: Option<Part>,
}

/// Denied requests: units in all, the largest cost, and when this began.
#[derive(Clone, Copy, Debug, Default)]
struct Missed {
    units: u32,
    denied: u64,
    since_ns: u64,
    /// Units that must come for one denied request to pass, and units to ask for.
    least: u64,
    needed: u64,
    /// Whether the call for more of a window is only ahead of need; and whether that window has not begun.
    is_ahead: bool,
    is_later: bool,
}

/// The state of a cell, and what was asked of it since the last rebalance.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseInputs {
    pub(super) offered: Offered,
    pub(super) available: u64,
    pub(super) standing: Part,
    /// What the pool has in all.
    pub(super) pool: Part,
    /// The budget of the whole limit: no request can have more.
    pub(super) budget: u64,
    /// What other regions are to be given, what they have been lent, and what of the pool cannot be given
    /// back now.
    pub(super) for_others: Part,
    pub(super) lent: Part,
    pub(super) kept: Part,
    pub(super) nodes: u64,
    /// Whether this node is the cell's owner, for all nodes of the region.
    pub(super) speaks: bool,
    /// Whether units may be held for long without requests.
    pub(super) lasts: bool,
    /// Whether the limit is a sliding window, whose units come back bit by bit.
    pub(super) slides: bool,
}

impl LeaseInputs {
    /// Whether other nodes need what this node holds and does not use, of a pool that gives `a_second_milli`
    /// thousandths of a unit a second.
    const fn is_scarce(&self, a_second_milli: u64) -> bool {
        let few = SCARCE * self.nodes;
        self.nodes > 1 && self.pool.units < few && a_second_milli < few * 1_000
    }

    /// Whether no other node takes of the pool. Then nobody needs what this node holds of few units, unless
    /// it dies.
    const fn is_alone(&self) -> bool {
        self.nodes == 1 && self.speaks
    }

    /// Whether other regions want what this node has.
    fn is_wanted_elsewhere(&self) -> bool {
        self.lent != Part::default() || self.for_others != Part::default()
    }

    /// What this node would like to hold of the pool, to have `own` beside what other regions have been lent
    /// and are to be given.
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

/// What a cell wants of a window's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WindowWant {
    pub(super) wanted: u64,
    pub(super) needed: u64,
    pub(super) returns: u64,
}

/// What a cell wants of a bucket's or a sliding window's pool: what it keeps of its lease, and how much more.
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
            rebalanced_ns: 0,
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

    /// A cell of which earlier processes took.
    pub(super) fn after(withdrawals: Withdrawals, now_ns: u64) -> Self {
        Self { withdrawals, ..Self::new(now_ns) }
    }

    /// Follows what the pool has, and how much of it may be held. If that has changed, the pool is told again
    /// all that is held. Calls without an answer may have been granted when the pool had more.
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

    /// Marks unanswered calls of such windows as granted when the pool had more.
    pub(super) fn distrust(&mut self, is_such: impl Fn(u64) -> bool) {
        if !mutated(Mutation::LeaseTakesUpMore) {
            self.unanswered.iter_mut().for_each(|(end_ns, is_of_more)| *is_of_more |= is_such(*end_ns));
        }
    }

    /// Notes that more of a window is asked for, by the window's end.
    pub(super) fn asks_of(&mut self, end_ns: u64) {
        if !self.is_unanswered(end_ns) {
            self.unanswered.push((end_ns, false));
        }
    }

    /// The pool has said what it granted of a window. Returns whether some of that may have been granted when
    /// the pool had more.
    pub(super) fn is_answered(&mut self, end_ns: u64) -> bool {
        let is_of_more = self.may_be_of_more(end_ns);
        self.unanswered.retain(|(window, _)| *window != end_ns);
        is_of_more
    }

    /// Forgets windows that end before a time: they are over.
    pub(super) fn forget_unanswered(&mut self, over_ns: u64) {
        self.unanswered.retain(|(window, _)| *window > over_ns);
    }

    /// Windows whose grants are not known yet, by their ends.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = u64> {
        self.unanswered.iter().map(|(window, _)| *window)
    }

    pub(super) fn is_unanswered(&self, end_ns: u64) -> bool {
        self.unanswered().any(|window| window == end_ns)
    }

    /// Whether the first answer about a window may tell of units that were granted when the pool had more.
    pub(super) fn may_be_of_more(&self, end_ns: u64) -> bool {
        self.unanswered.contains(&(end_ns, true))
    }

    /// The lease is, or soon will be, at the most that may be held of a pool that has this in all. The pool
    /// does not know that yet.
    pub(super) fn goes_by(&mut self, pool: Part, most: Option<Part>) {
        (self.under, self.most, self.left, self.fair) = (pool, most, None, None);
        self.told.clear();
    }

    /// Bounds a want by what may be held, and asks for no more while more than that is held. `kept` cannot be
    /// given back now, and is not asked about again and again.
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

    /// The pool was told something else than what is held of a window.
    pub(super) fn untell(&mut self, end_ns: u64) {
        self.told.retain(|(window, _)| *window != end_ns);
    }

    /// A call is made that tells what is held; `None` if there was no room for the call.
    pub(super) const fn calls(&mut self, id: Option<u64>) {
        (self.pending, self.says_now) = (id, id.is_some());
        self.asked = self.missed;
    }

    /// The pool of a generation knows what the last call told.
    pub(super) fn tell(&mut self, end_ns: u64, generation: Generation) {
        self.told.retain(|(window, _)| *window != end_ns && *window >= self.window);
        if self.says_now {
            self.told.push((end_ns, generation));
        }
    }

    pub(super) fn was_told(&self, end_ns: u64, generation: Generation) -> bool {
        self.told.contains(&(end_ns, generation)) || mutated(Mutation::LeaseUntold)
    }

    /// Whether the disk covers what a call for `wanted` may bring. If not, the next row will, with `ahead`
    /// more.
    pub(super) fn covers(&mut self, withdrawn: &Withdrawn, wanted: u64, ahead: u64, committed: u64) -> bool {
        let units = (withdrawn.withdrawn - withdrawn.returned).saturating_add(wanted);
        let units = self.withdrawals.with_before(withdrawn.end_ns, units);
        self.withdrawals.is_written(withdrawn.end_ns, units, ahead, committed)
    }

    /// Takes in what was asked for since the last rebalance.
    pub(super) fn observe(&mut self, inputs: &LeaseInputs, now: Now) {
        let Offered { units, events, .. } = inputs.offered;
        // A cell can never give more than its budget to each request.
        let most = u64::from(events).saturating_mul(inputs.budget);
        self.demand.observe(units.min(most), events.into(), now.steady_ns);
        self.rebalanced_ns = now.steady_ns;
        self.idle_ns =
            if inputs.lasts && (inputs.is_alone() || inputs.slides) { IDLE_ALONE_NS } else { IDLE_NS };
        if events > 0 {
            self.busy_ns = now.steady_ns;
        } else if self.is_idle(now) && self.demand.units_milli() > 0 {
            self.demand = Demand::since(now.steady_ns);
        }
    }

    /// Adds the requests that were denied before the last rebalance and not asked for. Their units count only
    /// while a request may still wait for them.
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

    /// Keeps what this rebalance found missing, since no call can be made for it.
    pub(super) const fn leave_unasked(&mut self) {
        self.unasked = self.missed;
    }

    /// Whether no request has come for long.
    pub(super) fn is_idle(&self, now: Now) -> bool {
        now.steady_ns.saturating_sub(self.busy_ns) > self.idle_ns
    }

    /// Whether there has been no room for the cell for long, since its first rebalance was due.
    pub(super) const fn is_out_of_room(&self, now: Now) -> bool {
        self.rebalanced_ns == 0
            && self.pending.is_none()
            && now.steady_ns.saturating_sub(self.busy_ns) > ROOM_NS
    }

    /// After how long the cell is rebalanced again.
    pub(super) fn rebalance_after_ns(&self) -> u64 {
        if self.waits_for_disk {
            return DISK_NS;
        }
        if self.wants_word {
            return WORD_NS;
        }
        let is_busy = self.rebalanced_ns.saturating_sub(self.busy_ns) < IDLE_NS;
        rebalance_after_ns(
            self.demand.events_milli(),
            is_busy && self.in_vain == 0 && self.demand.events_milli() > 0,
        )
    }

    /// Whether the pool is known to have nothing for the cell, or nothing beyond need. Then other regions may
    /// have what is missing.
    pub(super) const fn is_dry(&self, now: Now) -> bool {
        let has_nothing = self.in_vain > 0 && now.steady_ns < self.quiet_until_ns + DRY_NS;
        has_nothing || now.steady_ns < self.scant_until_ns
    }

    /// Whether the pool cannot be asked now: it had nothing a moment ago, or a call is under way.
    pub(super) const fn is_quiet(&self, now_ns: u64) -> bool {
        now_ns < self.quiet_until_ns || self.pending.is_some()
    }

    /// Whether something was denied that a request may wait for.
    pub(super) const fn is_missed(&self) -> bool {
        self.missed.denied > 0
    }

    /// Units that one of the denied requests needs.
    pub(super) const fn least(&self) -> u64 {
        self.missed.least
    }

    /// What this node could take of the pool without taking what other nodes may need as well. The owner may
    /// take all of it, since it acts for them.
    pub(super) fn within_reach(&self, inputs: &LeaseInputs, held: Part, now: Now) -> Part {
        if self.is_dry(now) || self.must_shrink() {
            return Part::default();
        }
        let left = self.left.unwrap_or_else(|| inputs.pool.units.saturating_sub(held.units));
        let takers = if inputs.speaks { 1 } else { inputs.nodes };
        // At most the pool's.
        let rate = u64::from(inputs.pool.rate.saturating_sub(held.rate)) / takers;
        Part { rate: rate as u32, units: left / takers }
    }

    /// With fewer units than this, a rebalance is called for.
    pub(super) fn low_water(&self) -> u64 {
        self.soon().max(self.chunk / 2)
    }

    /// Notes how much the pool said it has left of a window, by the window's end. Windows that are over are
    /// ignored.
    pub(super) fn hears_left(&mut self, end_ns: u64, left: u64) {
        match end_ns.cmp(&self.window) {
            Ordering::Less => {}
            Ordering::Greater => self.later_left = Some((end_ns, left)),
            Ordering::Equal => self.left = Some(left),
        }
    }

    /// Notes the answer to a call, which brought these units; `wanted`: the call wanted some.
    pub(super) fn came(&mut self, units: u64, wanted: bool, now_ns: u64) {
        if self.asked.is_later {
            // A later window says nothing about the open one.
            let after_ns = if units > 0 { 0 } else { LATER_NS };
            self.later_from_ns = now_ns + after_ns;
        } else if units > 0 {
            // A large pool gives little by little from the beginning: small grants alone are no reason to
            // wait.
            let is_little = units < self.soon() / 4 && units <= self.under.units / LITTLE_PART;
            let quiet_until_ns = if is_little { now_ns + LITTLE_NS } else { 0 };
            (self.chunk, self.in_vain, self.quiet_until_ns) = (units, 0, quiet_until_ns);
            if units > self.asked.needed {
                (self.ahead_from_ns, self.scant_until_ns) = (0, 0);
            }
        } else if wanted && self.has_left_least() {
            // There is not enough for all requests, but enough for one.
            self.leave_of_call();
        } else if wanted && self.asked.is_ahead && self.left.is_some_and(|left| left > 0) {
            // The little that is left is for requests that need it.
            (self.ahead_from_ns, self.scant_until_ns) = (now_ns + SCANT_NS, now_ns + DRY_NS);
        } else if wanted {
            self.quiet_until_ns = now_ns + (VAIN_NS << self.in_vain.min(8)).min(VAIN_NS_MAX);
            self.in_vain = self.in_vain.saturating_add(1);
        }
    }

    /// Whether the pool refused because it had less than all requests need, and enough for one.
    fn has_left_least(&self) -> bool {
        let Missed { least, needed, .. } = self.asked;
        least > 0 && self.left.is_some_and(|left| (least..needed).contains(&left))
    }

    /// The last call's requests are asked for again, with those that were denied since.
    fn leave_of_call(&mut self) {
        let (asked, since) = (std::mem::take(&mut self.asked), self.unasked);
        let since_ns = if since.units > 0 { since.since_ns.min(asked.since_ns) } else { asked.since_ns };
        let (units, denied) = (since.units.saturating_add(asked.units), since.denied.max(asked.denied));
        self.unasked = Missed { units, denied, since_ns, ..Missed::default() };
    }

    /// Nobody answered the call, or the answer does not count.
    pub(super) fn missed(&mut self, now_ns: u64) {
        self.asked = Missed::default();
        self.came(0, true, now_ns);
    }

    /// What is wanted of the open window, which has this much time left.
    pub(super) fn window(
        &mut self,
        inputs: &LeaseInputs,
        (withdrawn, time_left_ns): (&Withdrawn, u64),
        now: Now,
    ) -> Option<WindowWant> {
        if self.window < withdrawn.end_ns {
            (self.window, self.in_vain, self.quiet_until_ns, self.chunk) = (withdrawn.end_ns, 0, 0, 0);
            // An old report that nothing was left may be out of date.
            let is_its = |(end_ns, left): &(u64, u64)| *end_ns == withdrawn.end_ns && *left > 0;
            self.left = self.later_left.filter(is_its).map(|(_, left)| left);
            (self.ahead_from_ns, self.scant_until_ns) = (0, 0);
            // Units that were taken of it before it opened are for the requests that come now.
            self.tight_ns = now.steady_ns.saturating_add((time_left_ns / OPENS_PART).min(IDLE_NS));
        }
        // Ahead of need no node holds more than its own part of what is left, or others would have to ask for
        // it back.
        let left = self.left.unwrap_or(inputs.pool.units);
        let part = inputs.pool.units / inputs.nodes;
        let most = (left / inputs.nodes + by_chance(part)).min(left);
        let with_own = if inputs.is_alone() { inputs.available } else { 0 };
        let ahead = self.ample_in(time_left_ns.min(AHEAD_NS)).min((most + with_own).max(self.soon()));
        let needed = self.needed(inputs, now).saturating_add(inputs.for_others.units);
        if ahead > inputs.available || needed > 0 {
            self.tight_ns = self.tight_ns.max(now.steady_ns);
        }
        // Beyond need, the pool gives only a fraction of what it has: little by little, so that no node has
        // units idle that others need.
        let is_short = inputs.available < ahead / 2 || self.is_later(inputs.available, ahead, LATER_NS, now);
        let is_low = needed > 0 || (is_short && now.steady_ns >= self.ahead_from_ns);
        if is_low && now.steady_ns >= self.quiet_until_ns {
            let wanted =
                ahead.saturating_sub(inputs.available).saturating_add(inputs.for_others.units).max(needed);
            // A pool of few units gives none ahead of need. If no other node takes of it, what is wanted
            // counts as needed.
            self.missed.is_ahead = needed == 0 && left / inputs.nodes < PART;
            let needed = if needed == 0 && inputs.is_alone() { wanted.min(left).min(PART) } else { needed };
            return Some(WindowWant { wanted, needed, returns: 0 });
        }
        let held = withdrawn.withdrawn - withdrawn.returned;
        let spare = inputs.available.saturating_sub(ahead + ahead / 2).min(held);
        // Units that no other node takes can be asked for again.
        let spare_ns = if inputs.is_alone() && inputs.lasts { IDLE_ALONE_NS } else { SPARE_NS };
        let is_spare = now.steady_ns.saturating_sub(self.tight_ns) > spare_ns;
        (is_spare && spare > held / 8).then_some(WindowWant { returns: spare, ..WindowWant::default() })
    }

    /// What is wanted of a window before it opens, of which the pool has these units. The window can then
    /// open while the pool cannot be reached.
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
        // All at once: nobody spends them yet, and unused units go back.
        Some(WindowWant { wanted: ahead - held, needed: ahead - held, returns: 0 })
    }

    /// What is wanted of a bucket's pool, of which this part is held. The whole limit gives `rate_milli`
    /// thousandths of a unit a second.
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
        // The pool has not said yet what the other nodes would like. They may ask at the same time, so this
        // node asks for at most its part.
        let most_rate = match self.fair {
            None if !is_scarce => {
                let of_pool = u64::from(inputs.pool.rate) / inputs.nodes;
                // At most the pool's.
                inputs.standing.rate.saturating_add(of_pool as u32).min(RATE_PARTS)
            }
            _ => RATE_PARTS,
        };
        let liked_rate = self.asked_rate(rate_milli).saturating_add(more).min(most_rate);
        let liked = inputs.beside_others(Part { rate: liked_rate, units: 0 });
        let mut rate = self.fair.map_or(liked.rate, |fair| liked.rate.min(fair)).max(inputs.kept.rate);
        let mut along = along(inputs.pool, rate).max(liked.units);
        if is_scarce && u128::from(inputs.pool.units) * u128::from(rate) < u128::from(inputs.pool.rate) {
            // Less than a unit belongs to that rate.
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
            // Small changes are not worth a call.
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
                // Units that go back to a scarce pool with this call count as if they were there already.
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

    /// What is wanted of a sliding window's pool, of which these units are held.
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
        // Other nodes do not need half of this node's part. The half stays for `IDLE_ALONE_NS` after half of
        // it was last wanted: rare requests alone do not keep it.
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
                // Units that were used in the last window stay.
                flow.keeps = part(held.saturating_sub(inputs.available).max(aim.min(held)));
            }
        } else if is_spare && held > aim.max(half) + aim / 4 {
            flow.keeps = part(aim.max(half));
        } else if now.steady_ns >= self.quiet_until_ns {
            // No node takes more than its own part of what is left at once.
            let most = self.left.map_or(inputs.pool.units / inputs.nodes, |left| left.div_ceil(2));
            flow.wanted = part(aim.saturating_sub(held).min(most).max(needed));
            flow.needed = needed;
        }
        let is_changed = flow.wanted.units > held / 16 || flow.needed > 0 || flow.keeps.units != held;
        let flow = (is_changed || self.is_renewal_due(part(held), now)).then_some(flow);
        self.bounded(flow, part(held), inputs.kept, now)
    }

    /// The most that this node may hold ahead of need of a sliding window: its part, and beyond that little
    /// more than it needs soon. Another node may need its own part before those units are back. 0 for a
    /// scarce pool.
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

    /// Whether more should be held for later, and none was asked for just before.
    const fn is_later(&self, held: u64, ahead: u64, every_ns: u64, now: Now) -> bool {
        held < ahead - ahead / 8 && now.steady_ns >= self.renewed_ns + every_ns
    }

    fn is_renewal_due(&self, held: Part, now: Now) -> bool {
        held != Part::default()
            && now.steady_ns >= self.renewed_ns + RENEW_NS
            && now.steady_ns >= self.quiet_until_ns
    }

    /// Units that the denied requests need: all of them, since they may wait. But at most half of what the
    /// pool has, as far as is known, unless one request needs more.
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

    /// Units for the demand of a time, and a tenth more.
    fn wanted_in(&self, ns: u64) -> u64 {
        let milli = self.demand.units_milli();
        units_in(milli.saturating_add(milli / 10), ns)
    }

    /// Units for the demand of a time with a margin for bunches: the root of the number of units, and
    /// [`BUNCH`].
    fn ample_in(&self, ns: u64) -> u64 {
        if self.demand.events_milli() == 0 {
            return 0;
        }
        let wanted = self.wanted_in(ns);
        wanted.saturating_add(wanted.isqrt()).saturating_add(BUNCH)
    }

    /// The part of the rate that belongs to a bunch of units.
    fn bunch_rate(&self, pool: Part) -> u32 {
        if self.demand.events_milli() == 0 {
            return 0;
        }
        // At most the pool's.
        (u64::from(pool.rate) * BUNCH.min(pool.units) / pool.units.max(1)) as u32
    }

    fn soon(&self) -> u64 {
        units_in(self.demand.units_milli(), SOON_NS)
    }

    /// The part of the rate that would be used: a tenth more than the demand.
    fn asked_rate(&self, rate_milli: u64) -> u32 {
        let milli = u128::from(self.demand.units_milli()) * 11 / 10;
        let parts = (milli * u128::from(RATE_PARTS)).div_ceil(u128::from(rate_milli.max(1)));
        u32::try_from(parts).unwrap_or(RATE_PARTS).min(RATE_PARTS)
    }
}

/// About how far the number of random requests varies: the root of their number. A node holds as many units
/// beside a part, or half of one.
const fn by_chance(part: u64) -> u64 {
    part.isqrt()
}

/// The units of a pool that belong to a part of its rate.
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
        // An empty answer about the open window counts.
        lease.missed = Missed::default();
        lease.calls(Some(2));
        lease.hears_left(50, 3);
        lease.hears_left(100, 0);
        lease.came(0, true, 5);
        assert_eq!(lease.left, Some(0));
        assert!(lease.is_dry(Now::at(6)) && lease.quiet_until_ns > 5);
    }
}
