//! The pool of a token or leaky bucket: a bucket of its own, of which nodes hold parts, each with its rate and units.
//!
//! A pool of `units` and `rate` has lent what nodes hold. It keeps the *debt* of what is left: units charged that the rate has not yet
//! given back. Parts move with debt as loans do ([`crate::loan`], whose table holds here, too): what a node holds it counts as a bucket of
//! its own, by its steady clock.
//!
//! **Theorem 7.** `admitted(s, t] <= units + rate · (t − s)` for every interval. *Proof.* As that of Theorem 3, with the pool as the giver:
//! a node holds at most what the pool has down for it, so a part of the rate drains at one place at a time and debts sum to at most
//! the units. What is new is the pool's clock. *Grants.* Between two that are taken up it may have drained for the slack too long. So no
//! token is granted out of the last slack of draining: while anything is owed, and until nothing has been for the slack, the level
//! counts as lower by what the whole rate gives in it; what was drained too soon is not granted before it would have drained in truth.
//! *Parts that come back* begin to drain in the pool at the time of the call, which may be 2ε before the holder's last; so they bring
//! what their rate gives in the slack as debt. *What is taken back* from a process that is gone, at a lease's end, or in an answer that
//! was lost, is owed whole. ∎ Where nodes go by different numbers, what others hold counts in proportion ([`super`]), and the units are the
//! largest that somebody goes by.
//!
//! Numbers: a unit weighs `weight` *ticks*; a part of the rate gives `gives` ticks in `step_us` microseconds, which is no more than the limit
//! says ([`Terms::of`]). All are integers, and no product that counts is above 2^53.

use std::collections::BTreeMap;

use acequia_limits::{Part, RATE_PARTS, meter::Meter};
use serde::{Deserialize, Serialize};

use super::{
    CallContext, Generation, NODES_MAX, POOL_MAX, Refused, TIME_MAX, Taker, in_proportion, is_past, time_at,
};
use crate::{
    loan::Change,
    mutation::{Mutation, mutated},
};

/// What the units of a pool may weigh together, in ticks.
const WEIGHT_MAX: u64 = 1 << 50;

/// What a unit weighs at least where it can: the rate is rounded down by less than one part in so many.
const WEIGHT_MIN: u64 = 1 << 12;

/// What a limit puts into the pool of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketParams {
    /// Ticks that a unit weighs: 1 to 2^50.
    pub weight: u64,
    /// Ticks that one of [`RATE_PARTS`] gives in a step: 1 to 2^12.
    pub gives: u64,
    /// Microseconds of a step, at least 1.
    pub step_us: u64,
    /// Parts of the rate, at most [`RATE_PARTS`], and units, of which all together weigh at most 2^50.
    pub part: Part,
    /// By how much more than true time may seem to have passed between two calls.
    pub slack_us: u64,
}

impl BucketParams {
    /// The terms of a part of a limit's bucket. Nothing where its numbers are too large to be counted by a script: more than 2^50 units, or
    /// a rate above 2^12 a nanosecond.
    pub fn of(whole: &Meter, part: Part, slack_us: u64) -> Option<Self> {
        let (n, p) = whole.terms();
        // What a unit weighs if a part gives one tick a microsecond: parts and microseconds in which one unit comes, rounded up.
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

    /// What parts of the rate give in a time, in ticks: at least what they do, at most [`WEIGHT_MAX`].
    fn gives_in(&self, rate: u64, us: u64) -> u64 {
        us.div_ceil(self.step_us).saturating_mul(self.gives * rate).min(WEIGHT_MAX)
    }

    /// Whether debts under these terms mean the same.
    const fn counts_as(&self, other: &(u64, u64, u64)) -> bool {
        self.weight == other.0 && self.gives == other.1 && self.step_us == other.2
    }
}

/// What one node holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct BucketLease {
    boot: u32,
    call: u64,
    rate: u64,
    units: u64,
    end_us: u64,
    /// The rate that it would like to have.
    wanted: u64,
}

impl BucketLease {
    /// Whether it says anything beyond which call was the last.
    const fn is_held(&self) -> bool {
        self.rate > 0 || self.units > 0 || self.wanted > 0
    }
}

/// What is known of one cell's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    since: Generation,
    /// The pool's time. 0 where nothing was ever asked.
    at_us: u64,
    /// Units that are owed, in ticks: at most [`POOL_MAX`].
    debt: u64,
    /// Units that are owed besides: there are any only where they are too many to be counted in ticks, as when the units of the pool have
    /// become far fewer.
    beyond: u64,
    /// For how long nothing has been owed, at most the slack.
    idle_us: u64,
    /// Until when nothing was known of what was spent, as far as that is owed; and of how many units.
    fresh_us: u64,
    unknown: u64,
    /// What a tick is: weight, gives, step.
    terms: (u64, u64, u64),
    nodes: BTreeMap<u16, BucketLease>,
    /// What each node's part is a part of, as it said last. The last field: records of before it was kept lack its end only.
    wholes: BTreeMap<u16, Part>,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Who calls.
    pub taker: Taker,
    /// What it holds, and keeps.
    pub keeps: Part,
    /// Of the units that it held and does not keep, those that are not owed.
    pub tokens: u64,
    /// What it would like to hold besides: parts of the rate, and units.
    pub wanted: Part,
    /// Units with tokens without which it needs no more units now. At most those wanted.
    pub needed: u64,
    /// Units of the level that stay for others.
    pub reserved: u64,
    /// How long it counts on what is granted, by the pool's clock: see [`super::keep_us`].
    pub keep_us: u64,
}

/// What a call leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// What the node may hold.
    pub part: Part,
    /// Units that it must owe besides what it does.
    pub owed: u64,
    /// Whole units that could be granted now.
    pub left: u64,
    /// Parts of the rate that would be its share, were everybody to get in proportion to what he would like.
    pub fair: u32,
}

impl Bucket {
    /// Takes back what a node does not keep, and grants what there is.
    ///
    /// # Errors
    /// The call changes nothing that counts.
    pub fn exchange(
        &mut self,
        ask: &Exchange,
        params: &BucketParams,
        context: &CallContext,
    ) -> Result<Exchanged, Refused> {
        let Taker { node, boot, call } = ask.taker;
        if self.since != context.since {
            *self = Self { since: context.since, ..Self::default() };
        }
        let now_us = time_at(self.at_us, context, params.slack_us)?;
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        if (boot, call) <= (known.boot, known.call) && !mutated(Mutation::PoolHearsOlderCalls) {
            return Err(Refused::Stale);
        }
        if known.boot == 0 && self.nodes.len() >= NODES_MAX {
            let is_over = |lease: &BucketLease| {
                !lease.is_held() && is_past(lease.end_us, self.at_us, context, params.slack_us)
            };
            self.nodes.retain(|_, lease| !is_over(lease));
            if self.nodes.len() >= NODES_MAX {
                return Err(Refused::TooManyNodes);
            }
        }
        self.settle(now_us, params, context);
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        let (mut rate, mut units) =
            (u64::from(ask.keeps.rate.min(RATE_PARTS)), ask.keeps.units.min(POOL_MAX));
        // Of an earlier process everything comes back, and all of it is owed.
        let trusts = mutated(Mutation::PoolTrustsTheDead);
        let tokens = if boot > known.boot { if trusts { POOL_MAX } else { 0 } } else { ask.tokens };
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
        if (context.grants || mutated(Mutation::PoolGrantsUntold)) && context.wall_us >= context.fresh_us {
            rate += fair.saturating_sub(rate).min(spare_rate);
            let wanted = ask.wanted.units.min(spare_units);
            let tokens = level.saturating_sub(ask.reserved).min(wanted);
            if tokens >= ask.needed {
                // Units go with the debt that there is for them: others would be owed by nobody before, and be lost.
                let gained = wanted.min(tokens + self.debt / params.weight);
                owed = gained - tokens;
                self.debt = self.debt.saturating_sub(owed.saturating_mul(params.weight));
                units += gained;
                left -= tokens;
            }
        }
        let end_us = self.at_us.saturating_add(ask.keep_us).min(TIME_MAX);
        self.nodes.insert(node, BucketLease { boot, call, rate, units, end_us, wanted: liked });
        self.wholes.insert(node, params.part);
        self.wholes.retain(|node, _| self.nodes.contains_key(node));
        let part = Part { rate: u32::try_from(rate).unwrap_or(RATE_PARTS), units };
        Ok(Exchanged { part, owed, left, fair: u32::try_from(fair).unwrap_or(RATE_PARTS) })
    }

    /// When the cell surely says no more than an absent one, by the wall clock in microseconds.
    pub fn over_us(&self, params: &BucketParams, context: &CallContext) -> u64 {
        if params.part.rate == 0 || self.beyond > 0 {
            return TIME_MAX;
        }
        let ends = self.nodes.values().filter(|lease| lease.is_held()).map(|lease| lease.end_us);
        let latest_us = ends.fold(self.at_us.max(context.fresh_us), u64::max);
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
        // A call may have come before it was known until when nothing is, whatever its clock said.
        let is_late = self.at_us < context.fresh_us || !mutated(Mutation::PoolForgetsFresh);
        if self.fresh_us < context.fresh_us && is_late {
            (self.fresh_us, self.unknown) = (context.fresh_us, 0);
            self.at_us = self.at_us.max(context.fresh_us);
        }
        if self.fresh_us > 0 && !mutated(Mutation::PoolBeginsFull) {
            self.owe_unknown(params);
        }
        // Leases that ended, the earliest first: what they held drains here from then on.
        while let Some(end_us) = self.next_end(now_us) {
            self.drain(end_us, params);
            let ended = |lease: &BucketLease| lease.end_us <= end_us && lease.is_held();
            let (rate, units) = sum(self.nodes.values().filter(|lease| ended(lease)));
            if !mutated(Mutation::PoolOwesNothing) {
                self.owe(units, params);
            }
            self.owe_late(rate, params);
            // Calls before the last one still do nothing.
            let over = self.nodes.values_mut().filter(|lease| ended(lease));
            over.for_each(|lease| (lease.rate, lease.units, lease.wanted) = (0, 0, 0));
        }
        self.drain(now_us, params);
    }

    /// When the earliest of the leases that have ended did.
    fn next_end(&self, now_us: u64) -> Option<u64> {
        let held = self.nodes.values().filter(|lease| lease.is_held());
        held.map(|lease| lease.end_us).filter(|end_us| *end_us <= now_us).min()
    }

    /// All that may have been spent when nothing was known of it is owed from now on: what is not lent of the units that there are, and
    /// those that come later by which there are more.
    fn owe_unknown(&mut self, params: &BucketParams) {
        let units = params.part.units;
        if self.unknown == 0 {
            // No more than is lent can be elsewhere, and no more than is a part of these.
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
        // At most as much as this holds drains between two calls.
        let beyond = std::mem::take(&mut self.beyond);
        self.owe(beyond, params);
    }

    /// Whole units that could be granted, where so many are not lent.
    fn level(&self, spare_units: u64, params: &BucketParams) -> u64 {
        let slack_us = if mutated(Mutation::PoolGrantsUnsure) { 0 } else { params.slack_us };
        let unsure_us = slack_us.saturating_sub(self.idle_us);
        let unsure = params.gives_in(u64::from(params.part.rate), unsure_us);
        let ticks = spare_units.saturating_mul(params.weight).min(WEIGHT_MAX);
        ticks.saturating_sub(self.debt).saturating_sub(unsure) / params.weight
    }

    /// A node's part of the rate, if everybody gets in proportion to what he would like, where that is more than there is.
    fn fair(&self, liked: u64, params: &BucketParams) -> u64 {
        let rate = u64::from(params.part.rate);
        let all = self.nodes.values().fold(liked, |sum, lease| sum + lease.wanted);
        if all <= rate { liked } else { liked * rate / all }
    }

    /// What nodes hold, of the rate and of the units.
    fn lent(&self) -> (u64, u64) {
        sum(self.nodes.values())
    }

    /// The same in proportion ([`super`]), of a pool that has so much.
    fn lent_of(&self, whole: Part) -> (u64, u64) {
        let part = |(node, lease): (&u16, &BucketLease)| {
            let of = self.wholes.get(node).copied().unwrap_or(whole);
            let rate = in_proportion(lease.rate, whole.rate.into(), of.rate.into());
            BucketLease { rate, units: in_proportion(lease.units, whole.units, of.units), ..*lease }
        };
        let parts: Vec<BucketLease> = self.nodes.iter().map(part).collect();
        sum(parts.iter())
    }

    /// Parts of the rate come back that may have drained elsewhere until the slack ago.
    fn owe_late(&mut self, rate: u64, params: &BucketParams) {
        if !mutated(Mutation::PoolDrainsEarly) {
            let ticks = params.gives_in(rate, params.slack_us);
            if ticks > POOL_MAX - self.debt {
                self.owe(ticks.div_ceil(params.weight), params);
            } else if ticks > 0 {
                (self.debt, self.idle_us) = (self.debt + ticks, 0);
            }
        }
    }

    fn owe(&mut self, units: u64, params: &BucketParams) {
        if units == 0 {
            return;
        }
        let counted = units.min((POOL_MAX - self.debt) / params.weight);
        let rest = if mutated(Mutation::PoolForgetsBeyond) { 0 } else { units - counted };
        self.debt += counted * params.weight;
        (self.beyond, self.idle_us) = (self.beyond.saturating_add(rest).min(POOL_MAX), 0);
    }

    /// Debts under other terms are as many units, rounded up.
    fn convert(&mut self, params: &BucketParams) {
        if !params.counts_as(&self.terms) {
            let units = if self.debt == 0 { 0 } else { self.debt / self.terms.0 + 1 };
            let owed = units.saturating_add(self.beyond);
            (self.debt, self.beyond) = (0, 0);
            self.terms = (params.weight, params.gives, params.step_us);
            self.owe(owed, params);
        }
    }
}

/// Of the rate and of the units.
fn sum<'a>(leases: impl Iterator<Item = &'a BucketLease>) -> (u64, u64) {
    let add = |sum: u64, more: u64| (sum + more).min(POOL_MAX);
    leases.fold((0, 0), |(rate, units), lease| (add(rate, lease.rate), add(units, lease.units)))
}

/// What a node holds of a pool, as it knows itself. It stays on the safe side of what the pool has down for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketBalance {
    part: Part,
    call: u64,
    /// When the call was sent that is not answered: steady clock.
    sent_ns: Option<u64>,
    /// When it holds nothing any more: steady clock.
    end_ns: u64,
}

impl BucketBalance {
    /// What it holds.
    pub const fn part(&self) -> Part {
        self.part
    }

    /// When it ends, unless a call is answered before.
    pub const fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// Whether a call is on its way, since when.
    pub const fn asking_since_ns(&self) -> Option<u64> {
        self.sent_ns
    }

    /// Before a call: what is not kept is given back, `tokens` of its units unspent. Returns the number of the call.
    pub fn ask(&mut self, keeps: Part, tokens: u64, now_ns: u64) -> (u64, Change) {
        let back = Part {
            rate: self.part.rate.saturating_sub(keeps.rate),
            units: self.part.units.saturating_sub(keeps.units),
        };
        if !mutated(Mutation::PurseKeepsWhatItGave) {
            self.part = Part { rate: self.part.rate - back.rate, units: self.part.units - back.units };
        }
        self.call += 1;
        self.sent_ns = Some(now_ns);
        (self.call, Change::lose(back, back.units.saturating_sub(tokens)))
    }

    /// The answer to a call of a generation that grants, which counts from when the call was sent. Nothing if there was a later one; and what is granted by one that
    /// comes more than `late_ns` after its call is not taken up, though what is kept goes on: a margin, which no history is known to need.
    pub fn answer(
        &mut self,
        call: u64,
        answer: &Exchanged,
        (ttl_ns, late_ns): (u64, u64),
        now_ns: u64,
    ) -> Option<Change> {
        let sent_ns =
            self.sent_ns.filter(|_| call == self.call || mutated(Mutation::PurseHearsOlderCalls))?;
        self.sent_ns = None;
        let from_ns = if mutated(Mutation::PurseDatesFromAnswer) { now_ns } else { sent_ns };
        let end_ns = from_ns.saturating_add(ttl_ns);
        if now_ns >= end_ns {
            return None;
        }
        if now_ns > sent_ns.saturating_add(late_ns) {
            self.end_ns = end_ns;
            return Some(Change::default());
        }
        let gained = Part {
            rate: answer.part.rate.saturating_sub(self.part.rate),
            units: answer.part.units.saturating_sub(self.part.units),
        };
        self.part = Part { rate: self.part.rate + gained.rate, units: self.part.units + gained.units };
        self.end_ns = end_ns;
        Some(Change::gain(gained, answer.owed))
    }

    /// What ends by itself, if it is time. Of a call that is under way the answer does not count any more: it would bring back what is
    /// over, without what was owed for it.
    pub fn settle(&mut self, now_ns: u64) -> Option<Change> {
        let over = now_ns >= self.end_ns && self.part != Part::default();
        over.then(|| {
            if !mutated(Mutation::PurseHearsAfterItsEnd) {
                self.sent_ns = None;
            }
            let part = std::mem::take(&mut self.part);
            Change::lose(part, part.units)
        })
    }
}
