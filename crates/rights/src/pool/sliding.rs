//! The pool of a sliding window: nodes hold units, each a sliding window of its own.
//!
//! **Theorem 8.** At every instant `Σ used in the last window <= units`. *Proof.* As Theorem 4: a node holds at most what the pool has down for
//! it, admits no more than that in any window, and gives back only what it has not used in the last one. What is taken back from
//! a process that is gone, at a lease's end, or in an answer that was lost, may be used up to that instant, and leaves the window one
//! window after it; so long it *lingers* ([`Exchange::lingers_us`]: the window, stretched by the drift bound, and 2ε, since the pool may
//! count 2ε too much). So what is granted, is held, or lingers is at most the units. ∎
//!
//! Where nodes go by different totals, what others hold counts in proportion ([`super`]), and the units are the largest that somebody goes
//! by; what lingers are units that were used.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    CallContext, Generation, NODES_MAX, POOL_MAX, Refused, TIME_MAX, Taker, in_proportion, is_past, time_at,
};
use crate::mutation::{Mutation, mutated};

/// What lingers is counted in so many pieces of the time that it does, each until the end of its piece.
const PIECES: u64 = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SlidingLease {
    boot: u32,
    call: u64,
    units: u64,
    end_us: u64,
    /// What it said that it needed before it lingers no more.
    lingers_us: u64,
}

/// What is known of one cell's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sliding {
    since: Generation,
    at_us: u64,
    /// Units, by when they linger no more.
    lingering: BTreeMap<u64, u64>,
    nodes: BTreeMap<u16, SlidingLease>,
    /// What each node's units are a part of, as it said last. The last field: records of before it was kept lack its end only.
    totals: BTreeMap<u16, u64>,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Who calls.
    pub taker: Taker,
    /// Units that it holds, and keeps.
    pub keeps: u64,
    /// Of the units that it held and does not keep, those that it has not used in the last window.
    pub unused: u64,
    /// Units more that it would like.
    pub wanted: u64,
    /// Of those, units without which it needs no others now.
    pub needed: u64,
    /// Units that stay for others.
    pub reserved: u64,
    /// How long it counts on what is granted, by the pool's clock: see [`super::keep_us`].
    pub keep_us: u64,
    /// How long what it used may count, by the pool's clock: at least 1.
    pub lingers_us: u64,
    /// Units that the region has put into the pool: at most [`POOL_MAX`].
    pub total: u64,
    /// By how much more than true time may seem to have passed between two calls.
    pub slack_us: u64,
}

/// What a call leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// Units that the node may hold.
    pub units: u64,
    /// Units that nobody has.
    pub left: u64,
}

impl Sliding {
    /// Takes back what a node does not keep, and grants what there is.
    ///
    /// # Errors
    /// The call changes nothing that counts.
    pub fn exchange(&mut self, ask: &Exchange, context: &CallContext) -> Result<Exchanged, Refused> {
        let Taker { node, boot, call } = ask.taker;
        if self.since != context.since {
            *self = Self { since: context.since, ..Self::default() };
        }
        let now_us = time_at(self.at_us, context, ask.slack_us)?;
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        if (boot, call) <= (known.boot, known.call) && !mutated(Mutation::PoolHearsOlderCalls) {
            return Err(Refused::Stale);
        }
        if known.boot == 0 && self.nodes.len() >= NODES_MAX {
            let is_over = |lease: &SlidingLease| {
                lease.units == 0 && is_past(lease.end_us, self.at_us, context, ask.slack_us)
            };
            self.nodes.retain(|_, lease| !is_over(lease));
            if self.nodes.len() >= NODES_MAX {
                return Err(Refused::TooManyNodes);
            }
        }
        self.settle(now_us);
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        let mut units = ask.keeps.min(POOL_MAX);
        let unused = if boot > known.boot { 0 } else { ask.unused };
        self.linger(known.units.saturating_sub(units).saturating_sub(unused), self.at_us, ask.lingers_us);
        self.nodes.remove(&node);

        let total = ask.total.min(POOL_MAX);
        let mut left = total.saturating_sub((self.out(total) + units).min(POOL_MAX));
        // Before, what had been spent is not known, and may count for a window more.
        if (context.grants || mutated(Mutation::PoolGrantsUntold))
            && self.at_us >= context.fresh_us.saturating_add(ask.lingers_us)
        {
            let free = left.saturating_sub(ask.reserved);
            if ask.needed <= free {
                let granted = ask.wanted.min(free);
                units += granted;
                left -= granted;
            }
        }
        let end_us = self.at_us.saturating_add(ask.keep_us).min(TIME_MAX);
        self.nodes.insert(node, SlidingLease { boot, call, units, end_us, lingers_us: ask.lingers_us });
        self.totals.insert(node, total);
        self.totals.retain(|node, _| self.nodes.contains_key(node));
        Ok(Exchanged { units, left })
    }

    /// When the cell surely says no more than an absent one, by the wall clock in microseconds.
    pub fn over_us(&self, ask: &Exchange, context: &CallContext) -> u64 {
        let ends = self.nodes.values().filter(|lease| lease.units > 0).map(|lease| lease.end_us);
        let latest_us = ends.fold(self.at_us.max(context.fresh_us), u64::max);
        latest_us.saturating_add(2 * ask.lingers_us).saturating_add(ask.slack_us).min(TIME_MAX)
    }

    fn settle(&mut self, now_us: u64) {
        self.at_us = now_us;
        let ended: Vec<(u16, SlidingLease)> = self
            .nodes
            .iter()
            .filter(|(_, lease)| lease.end_us <= now_us && lease.units > 0)
            .map(|(node, lease)| (*node, *lease))
            .collect();
        for (node, lease) in ended {
            if !mutated(Mutation::PoolLingersNot) {
                self.linger(lease.units, lease.end_us, lease.lingers_us);
            }
            // Calls before the last one still do nothing.
            self.nodes.insert(node, SlidingLease { units: 0, ..lease });
        }
        self.lingering.retain(|until_us, _| *until_us > now_us);
    }

    /// Units that are held or linger, of a pool that has so many.
    fn out(&self, total: u64) -> u64 {
        let of = |node| self.totals.get(node).copied().unwrap_or(total);
        let held = self.nodes.iter().map(|(node, lease)| in_proportion(lease.units, total, of(node)));
        held.chain(self.lingering.values().copied()).fold(0, |sum, units| (sum + units).min(POOL_MAX))
    }

    /// Units that were used until `from_us` at the latest.
    fn linger(&mut self, units: u64, from_us: u64, lingers_us: u64) {
        if units > 0 {
            let piece_us = lingers_us.div_ceil(PIECES).max(1);
            let until_us = (from_us.saturating_add(lingers_us)).div_ceil(piece_us).saturating_mul(piece_us);
            let lingering = self.lingering.entry(until_us.min(TIME_MAX)).or_default();
            *lingering = (*lingering + units).min(POOL_MAX);
        }
    }
}

/// What a node holds of a sliding window's pool, as it knows itself. It stays on the safe side of what the pool has down for it. What
/// it used in the last window the node counts itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingBalance {
    units: u64,
    call: u64,
    /// When the call was sent that is not answered: steady clock.
    sent_ns: Option<u64>,
    /// When it holds nothing any more: steady clock.
    end_ns: u64,
}

impl SlidingBalance {
    /// Units that it may have used in any window, until it ends.
    pub const fn units(&self, now_ns: u64) -> u64 {
        if now_ns < self.end_ns { self.units } else { 0 }
    }

    /// When it ends, unless a call is answered before: steady clock.
    pub const fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// What is held is over, and of a call that is under way the answer does not count any more.
    pub const fn end(&mut self) {
        (self.units, self.sent_ns, self.end_ns) = (0, None, 0);
    }

    /// Before a call: so many units that were not used in the last window go back. Returns the number of the call, and the units
    /// that are kept.
    pub fn ask(&mut self, unused: u64, now_ns: u64) -> (u64, u64) {
        self.units = self.units(now_ns).saturating_sub(unused);
        self.call += 1;
        self.sent_ns = Some(now_ns);
        (self.call, self.units)
    }

    /// The answer to a call of a generation that grants, which counts from when the call was sent. Nothing if there was a later one, or it comes too late.
    pub fn answer(&mut self, call: u64, units: u64, ttl_ns: u64, now_ns: u64) -> bool {
        let sent_ns = self.sent_ns.filter(|_| call == self.call);
        let end_ns = sent_ns.map(|sent_ns| sent_ns.saturating_add(ttl_ns)).filter(|end_ns| now_ns < *end_ns);
        let Some(end_ns) = end_ns else { return false };
        (self.sent_ns, self.end_ns) = (None, end_ns);
        self.units = self.units.max(units);
        true
    }
}
