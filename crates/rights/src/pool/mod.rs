//! What the nodes of one region share: a *pool* for each cell, from which they take leases. **What nodes hold of a pool, or have
//! spent of it, is at most what the region put into it, whatever messages, nodes or the pool's server do.**
//!
//! The region's part of a cell is cut in two beforehand: each node's own guard share, which it spends when nothing else is left,
//! and the pool. A pool is kept where all nodes of the region reach it, by a server that decides nothing: it does, for each call
//! and at once, what [`window`], [`bucket`] and [`sliding`] say. So they are written in integers below 2^53, which is what the
//! scripts in `lua/` can count, and with the caller's clock. Beside its pools a group keeps [`name`]s of charges, which go by its generation
//! and by no other of these rules, and [`letters`] between nodes.
//!
//! # The three rules
//! 1. **One record a node.** A pool knows of each node what it holds, and which process of it ([`Taker::boot`]) said so last. A call
//!    of an earlier process does nothing; one of a later process finds all that the earlier held taken back as spent.
//! 2. **Calls say everything.** A call says what the node holds (*keeps*), and asks for more. The pool takes back what the node does
//!    not keep, and adds what it grants, in one step. A node lowers what it holds *before* it calls, and raises it when the answer
//!    comes: so at every instant it holds at most what the pool has down for it, whether calls or answers are lost, late or repeated. A
//!    call that comes after a later one of the same process does nothing ([`Taker::call`]); of a window it is granted nothing. Nothing has
//!    to be tried again to be right: the next call tells the truth.
//! 3. **A pool that may have forgotten forgets all**, and grants nothing until every node has said again what it holds ([`group`]).
//!    Of a bucket and of a sliding window all the rest counts as spent at that instant.
//!
//! # Numbers that differ
//! A limit is changed on one node after the other, and each says what the pool has by its own numbers. So what the others hold counts *in
//! proportion*: a unit of ten is a tenth, and ten units of a hundred. While it grants, the parts that nodes hold, each of its own
//! total, are one pool at most: `Σ units / total <= 1`. Nobody can be told that there is less before he reads it; then he keeps as large a part
//! of the smaller pool, rounded down, and as soon as all have read it they hold no more than that together. Were units counted alike,
//! those that still go by more would take what the first gives back, and keep their part of that: `1 + 1/2 + 1/3 + ...` times the total.
//! And where there is more, who has read it may have some of it before the others have. Of a window that is open units count as units: they may be used, and
//! are a part of nothing.
//!
//! # Clocks
//! The server's clock counts for nothing. A caller says what its wall reads when it sends a call, which is within ε of true time; a pool's
//! time is the latest that it was told, so it never goes back, and is at most ε ahead of true time. It is behind by ε and by how long
//! the call was under way: δ at most, where that matters, since a node takes up nothing that is granted later than that. Between two
//! calls as much as 2ε + δ more than true time may seem to have passed, which is the *slack*: each file says where it is paid.
//!
//! A lease is dated by its holder from when it sent the call, on its steady clock, and by the pool from when the call came, by the
//! caller's wall; the pool takes it back after the stretched time and the slack ([`keep_us`]), which is later for certain.

pub mod bucket;
pub mod group;
pub mod letters;
pub mod name;
pub mod sliding;
pub mod window;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::{
    bucket::{Bucket, BucketBalance},
    group::PoolGroup,
    letters::{Letter, Letters},
    name::Name,
    sliding::Sliding,
    window::Window,
};
use crate::{
    mutation::{Mutation, mutated},
    session::stretch,
};

/// Nodes that a pool keeps records of.
pub const NODES_MAX: usize = 64;

/// The most that a pool counts to: what a script can add up twice without losing a unit.
pub const POOL_MAX: u64 = 1 << 51;

/// The latest time that a pool counts to, in microseconds: in the year 2112.
pub const TIME_MAX: u64 = 1 << 52;

/// What a call says in place of the distribution among regions that a pool is part of, where it is about none: nodes that go by the same find
/// each other by groups of their own, of which nothing is ever taken.
pub const AGREEMENT: u64 = u64::MAX;

/// Who calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taker {
    /// A node of the region, by number.
    pub node: u16,
    /// Which process of it: counts up, durably. At least 1.
    pub boot: u32,
    /// Which call of the process: counts up, at least for each pool, and for each group. At least 1, below 2^53.
    pub call: u64,
}

/// One generation of a group: see [`group`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation {
    /// Above that of every generation that whoever began it had heard of. 0 for none. Not unique: a server that forgot may have
    /// one begun again.
    pub number: u64,
    /// The call that began it, which there is once.
    pub by: Taker,
}

/// What a call may count on: see [`group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallContext {
    /// The caller's wall clock when it sent the call, in microseconds since the epoch.
    pub wall_us: u64,
    /// Which generation of the group this is.
    pub generation: Generation,
    /// The generation in which the group's pools began to remember: what a pool knows of an earlier one is forgotten.
    pub since: Generation,
    /// Whether anything may be granted.
    pub grants: bool,
    /// Of what was spent before this wall clock nothing is known.
    pub fresh_us: u64,
    /// Of windows that began before this wall clock nothing may be granted.
    pub burned_us: u64,
}

/// Why a pool did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// A later process of the node, or a later call of the process, was heard already.
    #[error("a later call of this node came first: nothing was changed")]
    Stale,
    /// The caller's wall is behind what the pool was told before.
    #[error(
        "the call's time is behind the pool's: it was under way too long, or a node's clock is wrong. If that goes on, begin a generation"
    )]
    Late,
    /// As many nodes as are kept.
    #[error("more than {NODES_MAX} nodes take from this pool: remove nodes that are gone from the config")]
    TooManyNodes,
}

/// How long a pool waits for a lease that its holder counts on for `ttl_ns` after it sent the call, in microseconds: longer for
/// certain, where steady clocks drift by `drift_ppm` at most and walls are at most `clock_error_ns` off.
pub fn keep_us(ttl_ns: u64, drift_ppm: u32, clock_error_ns: u64) -> u64 {
    stretch(ttl_ns, drift_ppm).div_ceil(1_000).saturating_add(slack_us(clock_error_ns, 0)).min(TIME_MAX)
}

/// How much more than true time may seem to have passed between two calls, in microseconds, where walls are at most
/// `clock_error_ns` off, and nobody takes up what an answer grants that comes more than `late_ns` after the call was sent.
pub const fn slack_us(clock_error_ns: u64, late_ns: u64) -> u64 {
    clock_error_ns.saturating_mul(2).saturating_add(late_ns).div_ceil(1_000)
}

/// Whether a lease ended so long ago that every call before the last one of its node would be late: then its record need not tell which that was.
const fn is_past(end_us: u64, at_us: u64, context: &CallContext, slack_us: u64) -> bool {
    at_us > end_us.saturating_add(slack_us) && at_us > context.fresh_us
}

/// What units are of a pool that has `total`, which are held of one that has `of`: as large a part, rounded up.
fn in_proportion(units: u64, total: u64, of: u64) -> u64 {
    let counts_alike = mutated(Mutation::PoolCountsUnitsAlike) || mutated(Mutation::PoolHearsOldTerms);
    if units == 0 || total == of || counts_alike {
        return units;
    }
    let product = u128::from(units) * u128::from(total);
    // Of nothing there are no parts.
    let part = if of == 0 { u128::from(POOL_MAX) } else { product.div_ceil(u128::from(of)) };
    part.min(u128::from(POOL_MAX)) as u64
}

/// A pool's time at a call: the caller's wall, never back.
///
/// A wall that is behind it by more than the slack is one of a call that was under way too long to be of use, or contradicts one that was
/// told before: one of them is wrong by more than is promised. Unless the pool is ahead because it waits until then to grant anything.
fn time_at(at_us: u64, context: &CallContext, slack_us: u64) -> Result<u64, Refused> {
    let is_late = at_us > context.wall_us.saturating_add(slack_us) && at_us > context.fresh_us;
    if is_late { Err(Refused::Late) } else { Ok(at_us.max(context.wall_us)) }
}
