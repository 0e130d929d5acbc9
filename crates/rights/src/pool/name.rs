//! The name of one charge, kept where all nodes of a region find it. A repeated request with one name is
//! charged once, whichever node is asked.
//!
//! A node that gets a request with a caller's name first *claims* the name. The first to claim it charges,
//! and then *keeps* the answer under the name. The other nodes give this answer to a repetition without
//! charging. Before any of the charge is given back the name is *ended*: no request passes by an answer whose
//! charge was taken back.
//!
//! A name is forgotten with the generation of its group ([`super::group`]), with its time, and when there are
//! too many others. This lets no request pass for nothing: the next request with the name is charged anew.
//!
//! **Theorem 10.** No request that comes after a charge was given back passes by the answer to that charge.
//! *Proof.* An answer is told only in the generation that it was kept in. The node that charged gives nothing
//! back before the name was ended, in that generation or in another one that grants. In that generation no
//! answer exists from then on: a later answer changes nothing, as its claim is gone. When another generation
//! grants, every node has heard of it, and asks in no earlier one. ∎

use serde::{Deserialize, Serialize};

use super::{CallContext, Generation, Taker};
use crate::mutation::{Mutation, mutated};

/// The most names that a group keeps. Beyond these, the other names that would expire first are dropped.
pub const NAMES_MAX: usize = 256;

/// The most bytes of a kept answer.
pub const ANSWER_BYTES_MAX: usize = 1 << 14;

/// The record of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRecord {
    generation: Generation,
    standing: NameState,
    drops_us: u64,
}

/// The state of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameState {
    /// Nobody has claimed the name.
    #[default]
    Free,
    /// The maker of this call charges under the name, or has just done so.
    Claimed(Taker),
    /// The answer that was given.
    Kept(Vec<u8>),
    /// The charge was given back, or soon is.
    Ended,
}

/// A call about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// The claim's call.
    pub by: Taker,
    /// The action.
    pub what: What,
    /// When nobody asks for the name any more, by any wall: in microseconds since the epoch.
    pub drops_us: u64,
}

/// The action of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Takes the name, if nobody has it.
    Claim,
    /// Keeps an answer, if the claim is there: at most [`ANSWER_BYTES_MAX`].
    Keep(Vec<u8>),
    /// Gives the claim up.
    Leave,
    /// Ends the name, whoever has claimed it.
    End,
}

impl NameRecord {
    /// Does what a call says, and returns the state of the name after that.
    pub fn act(&mut self, act: &Act, context: &CallContext) -> NameState {
        if self.is_forgotten(context) || context.wall_us >= self.drops_us {
            *self = Self { generation: context.generation, ..Self::default() };
        }
        let is_own = self.is_claimed_by(act.by);
        let next = match &act.what {
            What::Claim if self.standing == NameState::Free => NameState::Claimed(act.by),
            What::Keep(answer) if is_own && answer.len() <= ANSWER_BYTES_MAX => {
                NameState::Kept(answer.clone())
            }
            What::Leave if is_own => NameState::Free,
            What::End => NameState::Ended,
            _ => return self.standing.clone(),
        };
        (self.standing, self.drops_us) = (next, act.drops_us);
        self.standing.clone()
    }

    /// A name is forgotten with its generation.
    fn is_forgotten(&self, context: &CallContext) -> bool {
        self.generation != context.generation && !mutated(Mutation::NameOutlivesGeneration)
    }

    /// Only the node whose claim is there keeps an answer, or gives the claim up.
    fn is_claimed_by(&self, by: Taker) -> bool {
        self.standing == NameState::Claimed(by) || mutated(Mutation::NameKeptUnclaimed)
    }

    /// When the name may be forgotten: wall clock, in microseconds.
    pub const fn drops_us(&self) -> u64 {
        self.drops_us
    }
}
