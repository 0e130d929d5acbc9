//! The pool of a token or leaky bucket. The pool is a bucket itself; nodes hold parts of it, each with a rate
//! and units.
//!
//! A pool of `units` and `rate` lends parts to nodes. It keeps the *debt* of the rest: units charged that the
//! rate has not yet given back. Parts move with debt as loans do ([`crate::loan`], whose table holds here,
//! too). A node counts the part that it holds as a bucket of its own, by its steady clock.
//!
//! **Theorem 7.** `admitted(s, t] <= units + rate · (t − s)` for every interval.
//!
//! *Proof.* As for Theorem 3, with the pool as the giver. A node holds at most what the pool records for it.
//! So a part of the rate drains at one place at a time, and debts sum to at most the units. Only the pool's
//! clock is new. *Grants.* Between two grants that are taken up, the pool may have drained for the slack too
//! long. So it grants no token out of the last slack of draining. While anything is owed, and until nothing
//! has been owed for the slack, the level counts as lower by what the whole rate gives in the slack. So what
//! drained too soon is not granted before it would have drained in truth. *Parts that come back* begin to
//! drain in the pool at the time of the call, which may be 2ε before they last drained at the holder. So they
//! bring as debt what their rate gives in the slack. *Parts taken back* from a process that is gone, at a
//! lease's end, or of a lost answer are owed whole. ∎
//!
//! If nodes use different variants of the limit, what others hold counts in proportion ([`super`]), and the
//! units are the largest that any node uses.
//!
//! A unit weighs `weight` *ticks*; a part of the rate gives `gives` ticks in `step_us` microseconds, which is
//! no more than the limit says ([`BucketParams::of`]). All numbers are integers, and no product that counts
//! is above 2^53.

use std::collections::BTreeMap;

use acequia_limits::{Part, RATE_PARTS, meter::Meter};
use serde::{Deserialize, Serialize};

use super::{
    CallContext, Generation, NODES_MAX, POOL_MAX, PoolRefused, TIME_MAX, Taker, in_proportion, is_past,
    time_at,
};
use crate::{
    loan::CellChange,
    mutation::{Mutation, mutated},
};

/// The most that the units of a pool may weigh together, in ticks.
const WEIGHT_MAX: u64 = 1 << 50;

/// The least weight of a unit, if possible: the rate is rounded down by less than one part in so many.
const WEIGHT_MIN: u64 = 1 << 12;

/// The size of a cell's pool, by its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketParams {
    /// Ticks that a unit weighs: 1 to 2^50.
    pub weight: u64,
    /// Ticks that one of [`RATE_PARTS`] gives in a step: 1 to 2^12.
    pub gives: u64,
    /// Microseconds of a step, at least 1.
    pub step_us: u64,
    /// Parts of the rate, at most [`RATE_PARTS`], and units, which together weigh at most 2^50.
    pub part: Part,
    /// By how much more than true time may seem to have passed between two calls: see [`super::slack_us`].
    pub slack_us: u64,
}

impl BucketParams {
    /// The parameters of a part of a limit's bucket. `None` if a script cannot count the numbers: more than
    /// 2^50 units, or a rate above 2^12 a nanosecond.
    pub fn of(whole: &Meter, part: Part, slack_us: u64) -> Option<Self> {
        let (n, p) = whole.terms();
        // The weight of a unit if a part gives one tick a microsecond: the parts times microseconds in which
        // one unit comes, rounded up.
        let (parts, micros) = (u128::from(p) * u128::from(RATE_PARTS), u128::from(n) * 1_000);
        let units = u128::from(part.units.max(1));
        let gives = (0..=12).map(|shift| 1_u64 << shift);
        let gives =
            gives.into_iter().find(|gives| parts * u128::from(*gives) >= micros * u128::from(WEIGHT_MIN));
        let gives = gives.unwrap_or(1 << 12);
        let heaviest = u128::from(WEIGHT_MAX) / units;
        if heaviest == 0 {
            return None;
        }
        let fine = (parts * u128::from(gives)).div_ceil(micros);
        let step_us = fine.div_ceil(heaviest).max(1);
        let weight = (parts * u128::from(gives)).div_ceil(micros * step_us);
        let (weight, step_us) = (u64::try_from(weight).ok()?, u64::try_from(step_us).ok()?);
        let fits = weight <= WEIGHT_MAX / part.units.max(1) && step_us <= POOL_MAX;
        fits.then_some(Self { weight, gives, step_us, part, slack_us })
    }

    /// Ticks that parts of the rate give in a time, rounded up, at most [`WEIGHT_MAX`].
    fn gives_in(&self, rate: u64, us: u64) -> u64 {
        us.div_ceil(self.step_us).saturating_mul(self.gives * rate).min(WEIGHT_MAX)
    }

    /// The tick of these parameters.
    const fn tick(&self) -> Tick {
        Tick { weight: self.weight, gives: self.gives, step_us: self.step_us }
    }
}

/// The meaning of a tick: two pools whose ticks are equal count debts alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Tick {
    weight: u64,
    gives: u64,
    step_us: u64,
}

/// The lease of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct BucketLease {
    process_number: u32,
    call: u64,
    rate: u64,
    units: u64,
    end_us: u64,
    /// The rate that the node would like to have.
    wanted: u64,
}

impl BucketLease {
    /// Whether the record says more than which call was the last.
    const fn is_held(&self) -> bool {
        self.rate > 0 || self.units > 0 || self.wanted > 0
    }

    /// Units that come back without debt. All that an earlier process held comes back owed: nobody knows what
    /// that process spent.
    fn tokens_back(&self, ask: &Exchange) -> u64 {
        if ask.taker.process_number <= self.process_number {
            ask.tokens
        } else if mutated(Mutation::PoolTrustsTheDead) {
            POOL_MAX
        } else {
            0
        }
    }
}

/// The record of one cell's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    since: Generation,
    /// The pool's time. 0 before the first call.
    at_us: u64,
    /// The debt in ticks: at most [`POOL_MAX`].
    debt: u64,
    /// More debt, in units: only if the debt is too large to be counted in ticks, as when the pool's units
    /// have become far fewer.
    beyond: u64,
    /// For how long nothing has been owed, in microseconds: at most the slack.
    idle_us: u64,
    /// The [`CallContext::unknown_until_us`] up to which unknown spending is owed already, and the pool's
    /// units at that time.
    unknown_until_us: u64,
    unknown: u64,
    tick: Tick,
    nodes: BTreeMap<u16, BucketLease>,
    /// The whole that each node's part is a part of, as the node said last. The last field: records written
    /// without it lack only their end.
    wholes: BTreeMap<u16, Part>,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Who calls.
    pub taker: Taker,
    /// The part that the node holds, and keeps.
    pub keeps: Part,
    /// Units that the node held, does not keep, and does not owe.
    pub tokens: u64,
    /// The further part that the node would like: parts of the rate, and units.
    pub wanted: Part,
    /// The least tokens (units without debt) that are of use: if fewer are free, no units are granted. At
    /// most the wanted units.
    pub needed: u64,
    /// Units of the level that stay for others.
    pub reserved: u64,
    /// How long the node counts on what is granted, by the pool's clock: see [`super::keep_us`].
    pub keep_us: u64,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// The part that the node may hold.
    pub part: Part,
    /// Units by which the node's debt grows.
    pub owed: u64,
    /// Whole units that could be granted now.
    pub left: u64,
    /// Parts of the rate that the node would get if the pool were divided in proportion to what each node
    /// would like.
    pub fair: u32,
}

impl Bucket {
    /// Takes back what a node does not keep, and grants what there is.
    ///
    /// # Errors
    /// The pool refused the call, and changed nothing that counts.
    pub fn exchange(
        &mut self,
        ask: &Exchange,
        params: &BucketParams,
        context: &CallContext,
    ) -> Result<Exchanged, PoolRefused> {
        let Taker { node, process_number, call } = ask.taker;
        if self.since != context.since {
            *self = Self { since: context.since, ..Self::default() };
        }
        let now_us = time_at(self.at_us, context, params.slack_us)?;
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        if !ask.taker.comes_after(known.process_number, known.call) {
            return Err(PoolRefused::Stale);
        }
        if known.process_number == 0 && self.nodes.len() >= NODES_MAX {
            let is_over = |lease: &BucketLease| {
                !lease.is_held() && is_past(lease.end_us, self.at_us, context, params.slack_us)
            };
            self.nodes.retain(|_, lease| !is_over(lease));
            if self.nodes.len() >= NODES_MAX {
                return Err(PoolRefused::TooManyNodes);
            }
        }
        self.settle(now_us, params, context);
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        let (mut rate, mut units) =
            (u64::from(ask.keeps.rate.min(RATE_PARTS)), ask.keeps.units.min(POOL_MAX));
        let tokens = known.tokens_back(ask);
        let (back, slower) = (known.units.saturating_sub(units), known.rate.saturating_sub(rate));
        self.owe(back.saturating_sub(tokens), params);
        self.owe_late(slower, params);
        self.nodes.remove(&node);

        let (lent_rate, lent_units) = self.lent_of(params.part);
        let spare_rate = u64::from(params.part.rate).saturating_sub(lent_rate.saturating_add(rate));
        let spare_units = params.part.units.saturating_sub(lent_units.saturating_add(units));
        let level = self.level(spare_units, params);
        let liked = (rate + u64::from(ask.wanted.rate)).min(u64::from(RATE_PARTS));
        let fair = self.fair(liked, params);
        let (mut owed, mut left) = (0, level);
        if context.may_grant() && context.wall_us >= context.unknown_until_us {
            rate += fair.saturating_sub(rate).min(spare_rate);
            let wanted = ask.wanted.units.min(spare_units);
            let tokens = level.saturating_sub(ask.reserved).min(wanted);
            if tokens >= ask.needed {
                // Units go with the debt that the pool has for them. Otherwise nobody would owe other units,
                // and they would be lost.
                let gained = wanted.min(tokens + self.debt / params.weight);
                owed = gained - tokens;
                self.debt = self.debt.saturating_sub(owed.saturating_mul(params.weight));
                units += gained;
                left -= tokens;
            }
        }
        let end_us = self.at_us.saturating_add(ask.keep_us).min(TIME_MAX);
        self.nodes.insert(node, BucketLease { process_number, call, rate, units, end_us, wanted: liked });
        self.wholes.insert(node, params.part);
        self.wholes.retain(|node, _| self.nodes.contains_key(node));
        let part = Part { rate: u32::try_from(rate).unwrap_or(RATE_PARTS), units };
        Ok(Exchanged { part, owed, left, fair: u32::try_from(fair).unwrap_or(RATE_PARTS) })
    }

    /// When the record surely says no more than an absent one, by the wall clock in microseconds.
    pub fn over_us(&self, params: &BucketParams, context: &CallContext) -> u64 {
        if params.part.rate == 0 || self.beyond > 0 {
            return TIME_MAX;
        }
        let ends = self.nodes.values().filter(|lease| lease.is_held()).map(|lease| lease.end_us);
        let latest_us = ends.fold(self.at_us.max(context.unknown_until_us), u64::max);
        let rate = u64::from(params.part.rate);
        let units = params.part.units.max(self.lent().1);
        let owed = 2 * units.saturating_mul(params.weight).min(WEIGHT_MAX);
        let ticks = self.debt + owed + params.gives_in(rate, params.slack_us);
        let refill_us = ticks.div_ceil(params.gives * rate).saturating_mul(params.step_us);
        latest_us.saturating_add(refill_us).saturating_add(2 * params.slack_us).min(TIME_MAX)
    }

    /// Lets time pass until now.
    fn settle(&mut self, now_us: u64, params: &BucketParams, context: &CallContext) {
        self.convert(params);
        if self.has_unknown_before(context.unknown_until_us) {
            (self.unknown_until_us, self.unknown) = (context.unknown_until_us, 0);
            self.at_us = self.at_us.max(context.unknown_until_us);
        }
        if self.has_forgotten() {
            self.owe_unknown(params);
        }
        // Leases that ended, the earliest first: what they held drains here from their end on.
        while let Some(end_us) = self.next_end(now_us) {
            self.drain(end_us, params);
            let ended = |lease: &BucketLease| lease.end_us <= end_us && lease.is_held();
            let (rate, units) = sum(self.nodes.values().filter(|lease| ended(lease)));
            self.owe(owed_at_end(units), params);
            self.owe_late(rate, params);
            // Calls before the last one still do nothing.
            let over = self.nodes.values_mut().filter(|lease| ended(lease));
            over.for_each(|lease| (lease.rate, lease.units, lease.wanted) = (0, 0, 0));
        }
        self.drain(now_us, params);
    }

    /// Spending before `unknown_until_us` is unknown, even if a call came since: the call may have come before
    /// this was known, whatever its clock said.
    fn has_unknown_before(&self, unknown_until_us: u64) -> bool {
        self.unknown_until_us < unknown_until_us
            && (self.at_us < unknown_until_us || !mutated(Mutation::PoolForgetsUnknown))
    }

    /// A pool that may have forgotten something owes all that it does not know.
    fn has_forgotten(&self) -> bool {
        self.unknown_until_us > 0 && !mutated(Mutation::PoolBeginsFull)
    }

    /// The end of the earliest lease that has ended.
    fn next_end(&self, now_us: u64) -> Option<u64> {
        let held = self.nodes.values().filter(|lease| lease.is_held());
        held.map(|lease| lease.end_us).filter(|end_us| *end_us <= now_us).min()
    }

    /// Owes all units that may have been spent at unknown times: those that are not lent, and later those by
    /// which the pool has grown.
    fn owe_unknown(&mut self, params: &BucketParams) {
        let units = params.part.units;
        if self.unknown == 0 {
            // Only lent units can be elsewhere, and no more than their part of the present total.
            let lent = self.lent().1.min(self.lent_of(params.part).1);
            let rest = units.saturating_sub(lent).saturating_mul(params.weight);
            (self.debt, self.idle_us) = (self.debt.max(rest.min(WEIGHT_MAX)), 0);
        } else {
            self.owe(units.saturating_sub(self.unknown), params);
        }
        self.unknown = self.unknown.max(units);
    }

    fn drain(&mut self, now_us: u64, params: &BucketParams) {
        let steps = now_us.saturating_sub(self.at_us) / params.step_us;
        self.at_us += steps * params.step_us;
        let gives = params.gives * u64::from(params.part.rate).saturating_sub(self.lent().0);
        let needed = if self.debt == 0 {
            0
        } else if gives == 0 {
            u64::MAX
        } else {
            self.debt.div_ceil(gives)
        };
        if steps >= needed {
            self.debt = 0;
            self.idle_us = (steps - needed)
                .saturating_mul(params.step_us)
                .saturating_add(self.idle_us)
                .min(params.slack_us);
        } else {
            self.debt -= steps * gives;
        }
        // At most so much debt as `debt` holds drains between two calls.
        let beyond = std::mem::take(&mut self.beyond);
        self.owe(beyond, params);
    }

    /// Whole units that could be granted, if `spare_units` are not lent.
    fn level(&self, spare_units: u64, params: &BucketParams) -> u64 {
        let unproven = params.gives_in(u64::from(params.part.rate), self.unproven_us(params));
        let ticks = spare_units.saturating_mul(params.weight).min(WEIGHT_MAX);
        ticks.saturating_sub(self.debt).saturating_sub(unproven) / params.weight
    }

    /// For how long the pool may have drained too soon: what drained then is not granted yet.
    fn unproven_us(&self, params: &BucketParams) -> u64 {
        if mutated(Mutation::PoolGrantsUnsure) { 0 } else { params.slack_us.saturating_sub(self.idle_us) }
    }

    /// A node's part of the rate. If the nodes would like more than there is, each gets a part in proportion
    /// to what it would like.
    fn fair(&self, liked: u64, params: &BucketParams) -> u64 {
        let rate = u64::from(params.part.rate);
        let all = self.nodes.values().fold(liked, |sum, lease| sum + lease.wanted);
        if all <= rate { liked } else { liked * rate / all }
    }

    /// Rate and units that nodes hold.
    fn lent(&self) -> (u64, u64) {
        sum(self.nodes.values())
    }

    /// Rate and units that nodes hold, in proportion to a pool of `whole` ([`super`]).
    fn lent_of(&self, whole: Part) -> (u64, u64) {
        let part = |(node, lease): (&u16, &BucketLease)| {
            let of = self.wholes.get(node).copied().unwrap_or(whole);
            let rate = in_proportion(lease.rate, whole.rate.into(), of.rate.into());
            BucketLease { rate, units: in_proportion(lease.units, whole.units, of.units), ..*lease }
        };
        let parts: Vec<BucketLease> = self.nodes.iter().map(part).collect();
        sum(parts.iter())
    }

    /// Owes for parts of the rate that come back and may have drained at their holder within the slack.
    fn owe_late(&mut self, rate: u64, params: &BucketParams) {
        let ticks = params.gives_in(rate, drained_elsewhere_us(params));
        if ticks > POOL_MAX - self.debt {
            self.owe(ticks.div_ceil(params.weight), params);
        } else if ticks > 0 {
            (self.debt, self.idle_us) = (self.debt + ticks, 0);
        }
    }

    fn owe(&mut self, units: u64, params: &BucketParams) {
        if units == 0 {
            return;
        }
        let counted = units.min((POOL_MAX - self.debt) / params.weight);
        let rest = owed_beyond_ticks(units - counted);
        self.debt += counted * params.weight;
        (self.beyond, self.idle_us) = (self.beyond.saturating_add(rest).min(POOL_MAX), 0);
    }

    /// Converts debts under other parameters to as many units, rounded up.
    fn convert(&mut self, params: &BucketParams) {
        if self.tick != params.tick() {
            let units = if self.debt == 0 { 0 } else { self.debt / self.tick.weight + 1 };
            let owed = units.saturating_add(self.beyond);
            (self.debt, self.beyond) = (0, 0);
            self.tick = params.tick();
            self.owe(owed, params);
        }
    }
}

/// A lease that ends comes back with all of its units owed.
fn owed_at_end(units: u64) -> u64 {
    if mutated(Mutation::PoolOwesNothing) { 0 } else { units }
}

/// For how long a part that comes back may still have drained at its holder.
fn drained_elsewhere_us(params: &BucketParams) -> u64 {
    if mutated(Mutation::PoolDrainsEarly) { 0 } else { params.slack_us }
}

/// Debt that ticks cannot count is kept in units.
fn owed_beyond_ticks(units: u64) -> u64 {
    if mutated(Mutation::PoolForgetsBeyond) { 0 } else { units }
}

/// Sums the rate and the units of leases.
fn sum<'a>(leases: impl Iterator<Item = &'a BucketLease>) -> (u64, u64) {
    let add = |sum: u64, more: u64| (sum + more).min(POOL_MAX);
    leases.fold((0, 0), |(rate, units), lease| (add(rate, lease.rate), add(units, lease.units)))
}

/// The part that a node holds of a pool, as the node itself knows. Never more than the pool records for the
/// node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketBalance {
    part: Part,
    call: u64,
    /// When the unanswered call was sent: steady clock.
    sent_ns: Option<u64>,
    /// When the holding ends: steady clock.
    end_ns: u64,
}

impl BucketBalance {
    /// The part that the node holds.
    pub const fn part(&self) -> Part {
        self.part
    }

    /// When the holding ends, unless a call is answered before: steady clock.
    pub const fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// When the unanswered call was sent: steady clock. `None` if no call is under way.
    pub const fn asking_since_ns(&self) -> Option<u64> {
        self.sent_ns
    }

    /// Prepares a call: gives back what is not kept, `tokens` of its units unspent. Returns the number of the
    /// call.
    pub fn ask(&mut self, keeps: Part, tokens: u64, now_ns: u64) -> (u64, CellChange) {
        let back = Part {
            rate: self.part.rate.saturating_sub(keeps.rate),
            units: self.part.units.saturating_sub(keeps.units),
        };
        self.stop_using(back);
        self.call += 1;
        self.sent_ns = Some(now_ns);
        (self.call, CellChange::lose(back, back.units.saturating_sub(tokens)))
    }

    /// A node gives parts back before the call that says so leaves.
    fn stop_using(&mut self, back: Part) {
        if !mutated(Mutation::BalanceKeepsWhatItGave) {
            self.part = Part { rate: self.part.rate - back.rate, units: self.part.units - back.units };
        }
    }

    /// Takes the answer to a call of a generation that grants. The holding lasts for `ttl_ns` from when the
    /// call was sent. `None` if a later call was sent. If the answer comes more than `late_ns` after its call,
    /// the node does not take up the grant, but what it kept goes on. This is a margin that no history is
    /// known to need.
    pub fn answer(
        &mut self,
        call: u64,
        answer: &Exchanged,
        ttl_ns: u64,
        late_ns: u64,
        now_ns: u64,
    ) -> Option<CellChange> {
        let sent_ns = self.sent_ns.filter(|_| self.is_latest(call))?;
        self.sent_ns = None;
        let end_ns = holds_from(sent_ns, now_ns).saturating_add(ttl_ns);
        if now_ns >= end_ns {
            return None;
        }
        if now_ns > sent_ns.saturating_add(late_ns) {
            self.end_ns = end_ns;
            return Some(CellChange::default());
        }
        let gained = Part {
            rate: answer.part.rate.saturating_sub(self.part.rate),
            units: answer.part.units.saturating_sub(self.part.units),
        };
        self.part = Part { rate: self.part.rate + gained.rate, units: self.part.units + gained.units };
        self.end_ns = end_ns;
        Some(CellChange::gain(gained, answer.owed))
    }

    /// Only the answer to the latest call counts.
    fn is_latest(&self, call: u64) -> bool {
        call == self.call || mutated(Mutation::BalanceHearsOlderCalls)
    }

    /// Ends the holding, if it is time.
    pub fn settle(&mut self, now_ns: u64) -> Option<CellChange> {
        let over = now_ns >= self.end_ns && self.part != Part::default();
        over.then(|| {
            self.stop_waiting();
            let part = std::mem::take(&mut self.part);
            CellChange::lose(part, part.units)
        })
    }

    /// After the end, the answer to a call that is under way counts no more: it would bring back what is over,
    /// without the debt for it.
    fn stop_waiting(&mut self) {
        if !mutated(Mutation::BalanceHearsAfterItsEnd) {
            self.sent_ns = None;
        }
    }
}

/// A holding counts from when the call was sent, not from when the answer came.
fn holds_from(sent_ns: u64, answered_ns: u64) -> u64 {
    if mutated(Mutation::BalanceDatesFromAnswer) { answered_ns } else { sent_ns }
}
