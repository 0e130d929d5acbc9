//! A forward at each node that has it, and from when to when.
//!
//! | type | who holds it | from | to |
//! | --- | --- | --- | --- |
//! | [`ForwardedRequest`] | the caller's driver, at the node that asks | the request is forwarded | its wait ends |
//! | [`OutgoingForward`] | the node that asks | the request is forwarded | a frame is queued |
//! | [`AwaitedForward`] | the node that asks | the request is forwarded | an answer, or [`FORWARD_NS`](super::FORWARD_NS) |
//! | [`ReceivedForward`] | the node that charges | the frame comes | the answer is queued |
//! | [`RemoteCharge`](super::RemoteCharge) | the node that asks | an answer with units | a request passes, or [`FORWARD_NS`](super::FORWARD_NS) |

use acequia_limits::{CellTag, LimitId};
use acequia_rights::{Incarnation, MemberId};
use smallvec::SmallVec;

use super::Source;
use crate::{cell::CellKey, regions::wire::Whole};

/// A denied request that waits, for [`crate::Node::forward_charge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// When the request was first asked: steady clock.
    pub since_ns: u64,
    /// How long the request goes on waiting at most, in nanoseconds.
    pub patience_ns: u64,
    /// Whether the request was forwarded before.
    pub is_again: bool,
}

/// A waiting request and the numbers of its forwards. [`crate::Node::forward_charge`] makes it, and the caller
/// keeps it until the request passes or stops waiting ([`crate::Node::cancel_forward`]).
#[derive(Debug)]
pub struct ForwardedRequest {
    pub(super) numbers: SmallVec<[u64; 1]>,
    pub(super) since_ns: u64,
}

impl ForwardedRequest {
    /// When the request began to wait: steady clock, for [`crate::Forwarding::Since`].
    pub const fn since_ns(&self) -> u64 {
        self.since_ns
    }
}

/// A forward that no frame has yet, at the node that asks. It is made with its [`AwaitedForward`], and ends
/// when it is queued for the peer, or when its request stops waiting before that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingForward {
    pub(crate) number: u64,
    pub(crate) to: MemberId,
    pub(crate) limit: LimitId,
    pub(crate) tag: CellTag,
    pub(crate) whole: Whole,
    pub(crate) units: u64,
    /// Whether the demand is known already: the request was forwarded before, or this node has told its need
    /// itself.
    pub(crate) is_again: bool,
}

/// A forward whose answer the node that asks waits for. A waiting request or a probe of a mate makes it. It
/// ends with the answer, after [`FORWARD_NS`](super::FORWARD_NS), or when its request stops waiting before it
/// is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct AwaitedForward {
    pub(super) key: CellKey,
    pub(super) to: MemberId,
    /// As what the node is asked for units; `None` if this is a probe.
    pub(super) source: Option<Source>,
    pub(super) whole: Whole,
    pub(super) units: u64,
    /// When it was made: steady clock.
    pub(super) at_ns: u64,
    /// The last moment at which a charge is of use: steady clock.
    pub(super) until_ns: u64,
    /// Whether a frame with it has left.
    pub(super) is_sent: bool,
}

/// A mate's forward at the node that is asked to charge. The mate's frame makes it, and it ends with this
/// node's answer. Until then it waits for units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedForward {
    /// The mate that asks, and the process number of that mate.
    pub(crate) from: Incarnation,
    pub(crate) process_number: u32,
    pub(crate) number: u64,
    pub(crate) key: CellKey,
    pub(crate) whole: Whole,
    pub(crate) units: u64,
    /// The last moment at which a charge is of use: steady clock.
    pub(crate) until_ns: u64,
    /// Whether the request was counted as demand.
    pub(crate) is_told: bool,
}
