//! The part of cells that the nodes of one region share. Each cell has a *pool*, from which nodes take
//! leases. **The nodes together hold or have spent at most what the region put into the pool, whatever
//! messages, nodes or the pool's server do.**
//!
//! A region's part of a cell is cut in two beforehand: each node's own guard share, which the node spends
//! when nothing else is left, and the pool. A server that all nodes of the region reach keeps the pool. The
//! server decides nothing: for each call it does at once what [`window`], [`bucket`] and [`sliding`] say. So
//! their rules use integers below 2^53, the range that the scripts in `lua/` can count, and the caller's
//! clock. Beside its pools a group keeps [`name`]s of charges and [`letters`] between nodes. Names follow the
//! group's generation and no other of these rules.
//!
//! # The three rules
//! 1. **One record a node.** A pool records for each node what the node holds, and which process of the node
//!    ([`Taker::process_number`]) said so last. A call of an earlier process does nothing. A later process finds
//!    everything that the earlier one held taken back as spent.
//! 2. **Calls say everything.** A call says what the node *keeps* of its holding, and asks for more. In one
//!    step the pool takes back what the node does not keep, and adds what it grants. A node lowers its
//!    holding *before* it calls, and raises it when the answer comes. So at every instant the node holds at
//!    most what the pool records for it, even if calls or answers are lost, late or repeated. A call that
//!    comes after a later one of the same process ([`Taker::call`]) does nothing. (A window's pool records
//!    the numbers of such a call, and grants it nothing.) No call must be repeated: the next call tells the
//!    truth.
//! 3. **A pool that may have forgotten anything forgets everything**, and grants nothing until every node has
//!    said again what it holds ([`group`]). In a bucket and a sliding window, all the rest counts as spent at
//!    that instant.
//!
//! # Nodes with different variants of a limit
//! A limit changes on one node after the other, and each node states the pool's total by its own variant. So
//! what others hold counts *in proportion*: one unit of ten is a tenth, and so are ten units of a hundred.
//! While a pool grants, the parts that nodes hold, each of its own total, are at most one pool:
//! `Σ units / total <= 1`. A node learns of a lower total only when it reads the new variant. It then keeps
//! as large a part of the smaller pool, rounded down. As soon as all nodes have read the variant, together
//! they hold no more than the smaller pool.
//!
//! If units counted alike, nodes with the larger total would take what the first node gives back, and keep
//! their part of that: `1 + 1/2 + 1/3 + ...` times the total. If the total grows, a node that has read the
//! new variant may take some of the growth before the others have read it. In an open window units count as
//! units: they may be used, and are a part of nothing.
//!
//! # Clocks
//! The server's clock counts for nothing. A caller states its wall clock at the time of the call, which is
//! within ε of true time. A pool's time is the latest time that it was told. So the pool's time never goes
//! back, and is at most ε ahead of true time. The pool's time is behind by ε plus the time that the call was
//! under way. That time is δ at most where it matters, since a node takes up nothing that is granted later.
//! Between two calls up to 2ε + δ more than true time may seem to have passed. This is the *slack*: each file
//! says where it is paid.
//!
//! The holder dates a lease from when it sent the call, on its steady clock. The pool dates the lease from
//! when the call came, by the caller's wall. The pool takes the lease back after the stretched time and the
//! slack ([`keep_us`]), so certainly later than the holder stops.

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
    name::NameRecord,
    sliding::Sliding,
    window::Window,
};
use crate::{
    mutation::{Mutation, mutated},
    session::stretch,
};

/// The most nodes that a pool keeps records of.
pub const NODES_MAX: usize = 64;

/// The most units or ticks that a pool counts to: a script can add this up twice without losing a unit.
pub const POOL_MAX: u64 = 1 << 51;

/// The latest time that a pool counts to, in microseconds: in the year 2112.
pub const TIME_MAX: u64 = 1 << 52;

/// The value of [`group::ServerIdentity::allocation`] in calls about no allocation among regions. Nodes with the same
/// settings find each other by groups of their own with this value; nothing is ever taken from these groups.
pub const AGREEMENT: u64 = u64::MAX;

/// Who calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taker {
    /// A node of the region, by number.
    pub node: u16,
    /// The process number: counts up, durably. At least 1.
    pub process_number: u32,
    /// The number of the process's call: counts up, at least for each pool, and for each group. At least 1,
    /// below 2^53.
    pub call: u64,
}

impl Taker {
    /// A pool hears only calls that come after all that it heard of the node: from a later process, or a later
    /// call of the process.
    fn comes_after(&self, process_number: u32, call: u64) -> bool {
        (self.process_number, self.call) > (process_number, call) || mutated(Mutation::PoolHearsOlderCalls)
    }
}

/// One generation of a group: see [`group`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation {
    /// Above the number of every generation that the beginner had heard of. 0 for none. Not unique: a server
    /// that forgot may begin a generation with this number again.
    pub number: u64,
    /// The call that began the generation: unique.
    pub by: Taker,
}

/// The facts that a call may count on: see [`group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallContext {
    /// The caller's wall clock when it sent the call, in microseconds since the epoch.
    pub wall_us: u64,
    /// The group's generation.
    pub generation: Generation,
    /// The generation in which the group's pools began to remember: a pool forgets what it knows of an
    /// earlier one.
    pub since: Generation,
    /// Whether anything may be granted.
    pub grants: bool,
    /// Nothing is known of spending before this wall-clock time, in microseconds.
    pub unknown_until_us: u64,
    /// Nothing may be granted from windows that began before this wall-clock time, in microseconds.
    pub forfeited_before_us: u64,
}

impl CallContext {
    /// A pool grants nothing before all nodes have told what they hold.
    fn may_grant(&self) -> bool {
        self.grants || mutated(Mutation::PoolGrantsUntold)
    }
}

/// The reason why a pool did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PoolRefused {
    /// The pool has already heard a later process of the node, or a later call of the process.
    #[error("a later call of this node came first: nothing was changed")]
    Stale,
    /// The caller's wall is behind the pool's time.
    #[error(
        "the call's time is behind the pool's: it was under way too long, or a node's clock is wrong. If that goes on, begin a generation"
    )]
    Late,
    /// The pool has records of [`NODES_MAX`] other nodes.
    #[error("more than {NODES_MAX} nodes take from this pool: remove nodes that are gone from the config")]
    TooManyNodes,
}

/// How long a pool waits before it takes a lease back, in microseconds. The holder counts on the lease for
/// `ttl_ns` after it sent the call. The pool's time is certainly longer if steady clocks drift by at most
/// `drift_ppm` and walls are at most `clock_error_ns` off.
pub fn keep_us(ttl_ns: u64, drift_ppm: u32, clock_error_ns: u64) -> u64 {
    stretch(ttl_ns, drift_ppm).div_ceil(1_000).saturating_add(slack_us(clock_error_ns, 0)).min(TIME_MAX)
}

/// The slack in microseconds: by how much more than true time may seem to have passed between two calls.
/// Walls are at most `clock_error_ns` off. A node takes up no grant whose answer comes more than `late_ns`
/// after the node sent the call.
pub const fn slack_us(clock_error_ns: u64, late_ns: u64) -> u64 {
    clock_error_ns.saturating_mul(2).saturating_add(late_ns).div_ceil(1_000)
}

/// Whether a lease ended so long ago that any call before its node's last call would be late. Then the record
/// of the last call is not needed.
const fn is_past(end_us: u64, at_us: u64, context: &CallContext, slack_us: u64) -> bool {
    at_us > end_us.saturating_add(slack_us) && at_us > context.unknown_until_us
}

/// Units of a larger or a smaller pool count as a part of it.
fn count_in_proportion() -> bool {
    !(mutated(Mutation::PoolCountsUnitsAlike) || mutated(Mutation::PoolHearsOldAllocation))
}

/// Converts `units` of a pool of `of` units to a pool of `total` units: as large a part, rounded up.
fn in_proportion(units: u64, total: u64, of: u64) -> u64 {
    if units == 0 || total == of || !count_in_proportion() {
        return units;
    }
    let product = u128::from(units) * u128::from(total);
    // A pool of no units has no parts: its units count as the most.
    let part = if of == 0 { u128::from(POOL_MAX) } else { product.div_ceil(u128::from(of)) };
    part.min(u128::from(POOL_MAX)) as u64
}

/// A pool's time at a call: the latest of the pool's time and the caller's wall.
///
/// A wall that is behind by more than the slack is refused: the call was under way too long to be of use, or
/// one of two walls is wrong by more than is promised. A pool may also be ahead because it grants nothing
/// until then (`unknown_until_us`); then the wall is accepted.
fn time_at(at_us: u64, context: &CallContext, slack_us: u64) -> Result<u64, PoolRefused> {
    let is_late = at_us > context.wall_us.saturating_add(slack_us) && at_us > context.unknown_until_us;
    if is_late { Err(PoolRefused::Late) } else { Ok(at_us.max(context.wall_us)) }
}
