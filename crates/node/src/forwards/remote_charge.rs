//! A remote charge: units that another node has charged for a request that waits here.

use acequia_limits::Now;
use acequia_rights::{
    MemberId,
    mutation::{Mutation, mutated},
};

use super::FORWARD_NS;
use crate::{cell::CellKey, regions::wire::Whole};

/// The node from which a request may get what it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The cell's owner, which tells other nodes and regions of the need.
    Owner(MemberId),
    /// Another node of the region, for what that node keeps. This node deals with the cell itself, and finds
    /// nothing in the pool or has no pool.
    Mate(MemberId),
}

impl Source {
    pub(super) const fn node(self) -> MemberId {
        match self {
            Self::Owner(node) | Self::Mate(node) => node,
        }
    }
}

/// What a waiting request lacks of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lack {
    pub(crate) key: CellKey,
    /// The variant that the limit has here.
    pub(crate) whole: Whole,
    pub(crate) units: u64,
    /// When the request began to wait: steady clock.
    pub(crate) since_ns: u64,
}

/// Units that another node has charged, for a request that waited before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteCharge {
    pub(super) key: CellKey,
    pub(super) from: Source,
    pub(super) number: u64,
    pub(super) whole: Whole,
    pub(super) units: u64,
    pub(super) asked_ns: u64,
    /// Whether the answer came after the request that asked had stopped waiting.
    pub(super) is_late: bool,
}

impl RemoteCharge {
    /// Whether the charge passes a request that lacks this: the request was there when the node charged, and
    /// the limit has the variant by which the node charged.
    pub(super) fn fits(&self, lack: &Lack, now: Now) -> bool {
        self.units == lack.units
            && is_same_variant(&self.whole, &lack.whole)
            && self.asked_ns >= lack.since_ns
            && now.steady_ns < self.asked_ns + FORWARD_NS
    }
}

/// A remote charge passes only a request whose limit has the variant by which the other node charged.
fn is_same_variant(charged: &Whole, wanted: &Whole) -> bool {
    charged == wanted || mutated(Mutation::ForwardOfAnotherVariant)
}
