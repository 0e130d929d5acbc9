//! What a node asks of its region's pools, and what it hears.

use acequia_limits::{CellTag, LimitId};
use acequia_rights::pool::{
    Generation, Refused, bucket,
    group::{Absent, Assertion, Begin, GroupStatus},
    sliding, window,
};

/// Groups that cells are divided into: the pools of a group lie in one place, and are lost together.
pub const GROUPS: u16 = 1_024;

/// A call of a pool's server. Whoever carries it makes it once, tells what it heard ([`crate::Node::answer_call`]), and that it heard
/// nothing ([`Said::Nothing`]) when [`super::CALL_NS`] are over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// By which the answer is known.
    pub id: u64,
    /// The group that is asked of: below [`GROUPS`].
    pub group: u16,
    /// The distribution among regions that this node has adopted: a pool that is part of a later one is none to it. 0 where the region has
    /// every limit to itself.
    pub terms: u64,
    /// The generation of the group that this node knows.
    pub generation: Generation,
    /// This node's wall clock, in microseconds since the epoch.
    pub wall_us: u64,
    /// What is asked.
    pub question: PoolRequest,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolRequest {
    /// Begins a generation of the group above what this node has heard of, unless somebody has.
    Begin(Begin),
    /// Says that this node has told all that it holds of the group, and who is left out.
    Assert(Assertion, Option<Absent>),
    /// Drops cells of the group that say no more than absent ones, so many at most.
    Sweep(u32),
    /// Takes units of a window.
    Take(PoolName, window::Take),
    /// Exchanges what is held of a bucket.
    Exchange(PoolName, bucket::Exchange, bucket::BucketParams),
    /// Exchanges what is held of a sliding window.
    Slide(PoolName, sliding::Exchange),
}

/// A pool, by a name that is its own among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolName {
    /// The limit.
    pub limit: LimitId,
    /// Its cell.
    pub tag: CellTag,
    /// The window, by its end: wall clock, nanoseconds; 0 where it has no edges.
    pub end_ns: u64,
}

/// In letters and digits.
impl std::fmt::Display for PoolName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}:{:x}", self.limit.0, self.tag.0)?;
        if self.end_ns > 0 { write!(f, ":{:x}", self.end_ns) } else { Ok(()) }
    }
}

/// What was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolReply {
    /// How the group is, to [`Question::Begin`] and [`Question::Assert`].
    Known(GroupStatus),
    /// To [`Question::Take`].
    Took(window::Took),
    /// To [`Question::Exchange`].
    Exchanged(bucket::Exchanged),
    /// To [`Question::Slide`].
    Slid(sliding::Exchanged),
    /// To [`Question::Sweep`]: how many were dropped.
    Swept(u64),
    /// It was refused, and changed nothing.
    Refused(Refused),
    /// The group is of another generation, and nothing changed.
    Unknown(GroupStatus),
    /// Nothing: it may have been done or not.
    Nothing,
}
