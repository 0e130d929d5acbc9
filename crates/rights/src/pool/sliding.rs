//! The pool of a sliding window: nodes hold units, each node as a sliding window of its own.
//!
//! **Theorem 8.** At every instant `Σ used in the last window <= units`.
//!
//! *Proof.* As for Theorem 4. A node holds at most what the pool records for it, admits no more than that in
//! any window, and gives back only what it has not used in the last window. Other units are taken back from a
//! process that is gone, at a lease's end, or of an answer that was lost. These may be used up to that
//! instant, and leave the window one window after it. So long they *linger* ([`Slide::lingers_us`]): the
//! window, stretched by the drift bound, and 2ε, since the pool may count 2ε too much. So the units that are
//! granted, held, or lingering are at most the pool's units. ∎
//!
//! If nodes use different totals, what others hold counts in proportion ([`super`]), and the units are the
//! largest that any node uses. Lingering units are units that were used, and count as units.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    CallContext, Generation, NODES_MAX, POOL_MAX, PoolRefused, TIME_MAX, Taker, in_proportion, is_past,
    time_at,
};
use crate::mutation::{Mutation, mutated};

/// The lingering time is cut into so many pieces; units linger until the end of their piece.
const PIECES: u64 = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SlidingLease {
    process_number: u32,
    call: u64,
    units: u64,
    end_us: u64,
    /// How long units of this lease linger, as the node said.
    lingers_us: u64,
}

impl SlidingLease {
    /// Units of a lease that ends linger: the node may have used all of them.
    fn may_have_used(&self) -> u64 {
        if mutated(Mutation::PoolLingersNot) { 0 } else { self.units }
    }
}

/// The record of one cell's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sliding {
    since: Generation,
    at_us: u64,
    /// Lingering units, by when they linger no more.
    lingering: BTreeMap<u64, u64>,
    nodes: BTreeMap<u16, SlidingLease>,
    /// The total that each node's units are a part of, as the node said last. The last field: records written
    /// without it lack only their end.
    totals: BTreeMap<u16, u64>,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slide {
    /// Who calls.
    pub taker: Taker,
    /// Units that the node holds, and keeps.
    pub keeps: u64,
    /// Units that the node held, does not keep, and has not used in the last window.
    pub unused: u64,
    /// Further units that the node would like.
    pub wanted: u64,
    /// The least useful grant: if fewer units are free, nothing is granted.
    pub needed: u64,
    /// Units that stay for others.
    pub reserved: u64,
    /// How long the node counts on what is granted, by the pool's clock: see [`super::keep_us`].
    pub keep_us: u64,
    /// How long units that the node used may count, by the pool's clock: at least 1.
    pub lingers_us: u64,
    /// Units that the region has put into the pool: at most [`POOL_MAX`].
    pub total: u64,
    /// By how much more than true time may seem to have passed between two calls: see [`super::slack_us`].
    pub slack_us: u64,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slid {
    /// Units that the node may hold.
    pub units: u64,
    /// Units that nobody has.
    pub left: u64,
}

impl Sliding {
    /// Takes back what a node does not keep, and grants what there is.
    ///
    /// # Errors
    /// The pool refused the call, and changed nothing that counts.
    pub fn exchange(&mut self, ask: &Slide, context: &CallContext) -> Result<Slid, PoolRefused> {
        let Taker { node, process_number, call } = ask.taker;
        if self.since != context.since {
            *self = Self { since: context.since, ..Self::default() };
        }
        let now_us = time_at(self.at_us, context, ask.slack_us)?;
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        if !ask.taker.comes_after(known.process_number, known.call) {
            return Err(PoolRefused::Stale);
        }
        if known.process_number == 0 && self.nodes.len() >= NODES_MAX {
            let is_over = |lease: &SlidingLease| {
                lease.units == 0 && is_past(lease.end_us, self.at_us, context, ask.slack_us)
            };
            self.nodes.retain(|_, lease| !is_over(lease));
            if self.nodes.len() >= NODES_MAX {
                return Err(PoolRefused::TooManyNodes);
            }
        }
        self.settle(now_us);
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        let mut units = ask.keeps.min(POOL_MAX);
        let unused = if process_number > known.process_number { 0 } else { ask.unused };
        self.linger(known.units.saturating_sub(units).saturating_sub(unused), self.at_us, ask.lingers_us);
        self.nodes.remove(&node);

        let total = ask.total.min(POOL_MAX);
        let mut left = total.saturating_sub((self.out(total) + units).min(POOL_MAX));
        // Until then earlier spending is unknown, and may count for one window more.
        if context.may_grant() && self.at_us >= context.unknown_until_us.saturating_add(ask.lingers_us) {
            let free = left.saturating_sub(ask.reserved);
            if ask.needed <= free {
                let granted = ask.wanted.min(free);
                units += granted;
                left -= granted;
            }
        }
        let end_us = self.at_us.saturating_add(ask.keep_us).min(TIME_MAX);
        self.nodes
            .insert(node, SlidingLease { process_number, call, units, end_us, lingers_us: ask.lingers_us });
        self.totals.insert(node, total);
        self.totals.retain(|node, _| self.nodes.contains_key(node));
        Ok(Slid { units, left })
    }

    /// When the record surely says no more than an absent one, by the wall clock in microseconds.
    pub fn over_us(&self, ask: &Slide, context: &CallContext) -> u64 {
        let ends = self.nodes.values().filter(|lease| lease.units > 0).map(|lease| lease.end_us);
        let latest_us = ends.fold(self.at_us.max(context.unknown_until_us), u64::max);
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
            self.linger(lease.may_have_used(), lease.end_us, lease.lingers_us);
            // Calls before the last one still do nothing.
            self.nodes.insert(node, SlidingLease { units: 0, ..lease });
        }
        self.lingering.retain(|until_us, _| *until_us > now_us);
    }

    /// Units that are held or linger, in proportion to a pool of `total`.
    fn out(&self, total: u64) -> u64 {
        let of = |node| self.totals.get(node).copied().unwrap_or(total);
        let held = self.nodes.iter().map(|(node, lease)| in_proportion(lease.units, total, of(node)));
        held.chain(self.lingering.values().copied()).fold(0, |sum, units| (sum + units).min(POOL_MAX))
    }

    /// Adds units that were last used at `from_us` at the latest.
    fn linger(&mut self, units: u64, from_us: u64, lingers_us: u64) {
        if units > 0 {
            let piece_us = lingers_us.div_ceil(PIECES).max(1);
            let until_us = (from_us.saturating_add(lingers_us)).div_ceil(piece_us).saturating_mul(piece_us);
            let lingering = self.lingering.entry(until_us.min(TIME_MAX)).or_default();
            *lingering = (*lingering + units).min(POOL_MAX);
        }
    }
}

/// The units that a node holds of a sliding window's pool, as the node itself knows. Never more than the pool
/// records for the node. The node itself counts what it used in the last window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingBalance {
    units: u64,
    call: u64,
    /// When the unanswered call was sent: steady clock.
    sent_ns: Option<u64>,
    /// When the holding ends: steady clock.
    end_ns: u64,
}

impl SlidingBalance {
    /// Units that the node may use in any window, until the holding ends.
    pub const fn units(&self, now_ns: u64) -> u64 {
        if now_ns < self.end_ns { self.units } else { 0 }
    }

    /// When the holding ends, unless a call is answered before: steady clock.
    pub const fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// Ends the holding. The answer to a call that is under way counts no more.
    pub const fn end(&mut self) {
        (self.units, self.sent_ns, self.end_ns) = (0, None, 0);
    }

    /// Prepares a call: gives back units that were not used in the last window. Returns the number of the
    /// call, and the units that are kept.
    pub fn ask(&mut self, unused: u64, now_ns: u64) -> (u64, u64) {
        self.units = self.units(now_ns).saturating_sub(unused);
        self.call += 1;
        self.sent_ns = Some(now_ns);
        (self.call, self.units)
    }

    /// Takes the answer to a call of a generation that grants. The holding counts from when the call was
    /// sent. Returns whether the answer counted: not if a later call was sent, or if the answer comes after
    /// the holding's end.
    pub fn answer(&mut self, call: u64, units: u64, ttl_ns: u64, now_ns: u64) -> bool {
        let sent_ns = self.sent_ns.filter(|_| call == self.call);
        let end_ns = sent_ns.map(|sent_ns| sent_ns.saturating_add(ttl_ns)).filter(|end_ns| now_ns < *end_ns);
        let Some(end_ns) = end_ns else { return false };
        (self.sent_ns, self.end_ns) = (None, end_ns);
        self.units = self.units.max(units);
        true
    }
}
