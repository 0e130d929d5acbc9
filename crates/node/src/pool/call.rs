//! Requests of a node to its region's pools, and the replies.

use acequia_limits::{CellTag, LimitId};
use acequia_rights::pool::{
    Generation, PoolRefused, bucket,
    group::{Assertion, Begin, Excluded, GroupStatus},
    sliding, window,
};

/// The number of groups of cells: the pools of a group lie in one place, and are lost together.
pub const GROUPS: u16 = 1_024;

/// The group of a cell.
pub(crate) fn group_of(tag: CellTag) -> u16 {
    // Less than `GROUPS`.
    (tag.0 % u128::from(GROUPS)) as u16
}

/// A call to a pool's server. The carrier makes it once and reports the reply ([`crate::Node::answer_call`]),
/// or [`PoolReply::Nothing`] when [`super::CALL_NS`] are over without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCall {
    /// The number by which the reply is matched.
    pub id: u64,
    /// The group that the call is about: below [`GROUPS`].
    pub group: u16,
    /// The allocation that this node has adopted: a call changes nothing in a pool that is part of a later
    /// one. 0 if the region has every limit to itself.
    pub allocation: u64,
    /// The generation of the group that this node knows.
    pub generation: Generation,
    /// This node's wall clock, in microseconds since the epoch.
    pub wall_us: u64,
    /// The request.
    pub question: PoolRequest,
}

/// A request to the pools of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolRequest {
    /// Begins a generation of the group above those that this node has heard of, unless somebody has.
    Begin(Begin),
    /// Says that this node has told all that it holds of the group, and which nodes are excluded.
    Assert(Assertion, Option<Excluded>),
    /// Drops up to this many cells of the group whose records say no more than an absent record would.
    Sweep(u32),
    /// Takes units of a window.
    Take(PoolName, window::Take),
    /// Exchanges a lease on a bucket.
    Exchange(PoolName, bucket::Exchange, bucket::BucketParams),
    /// Exchanges a lease on a sliding window.
    Slide(PoolName, sliding::Slide),
}

/// The name of a pool, unique among pools of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolName {
    /// The limit.
    pub limit: LimitId,
    /// Its cell.
    pub tag: CellTag,
    /// The window, by its end: wall clock, nanoseconds; 0 for limits without edges.
    pub end_ns: u64,
}

/// Hexadecimal digits and colons.
impl std::fmt::Display for PoolName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}:{:x}", self.limit.0, self.tag.0)?;
        if self.end_ns > 0 { write!(f, ":{:x}", self.end_ns) } else { Ok(()) }
    }
}

/// A reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolReply {
    /// The state of the group, to [`PoolRequest::Begin`] and [`PoolRequest::Assert`].
    Known(GroupStatus),
    /// To [`PoolRequest::Take`].
    Took(window::Took),
    /// To [`PoolRequest::Exchange`].
    Exchanged(bucket::Exchanged),
    /// To [`PoolRequest::Slide`].
    Slid(sliding::Slid),
    /// To [`PoolRequest::Sweep`]: how many cells were dropped.
    Swept(u64),
    /// The request was refused, and changed nothing.
    Refused(PoolRefused),
    /// The group is of another generation, and nothing changed.
    Unknown(GroupStatus),
    /// No reply: the request may have taken effect or not.
    Nothing,
}
