//! The name of one charge, where all nodes of a region know it: the same question is charged once, whichever of them is asked.
//!
//! A node that is asked under a name of the caller's *claims* it first. Whoever claims it first charges, and then *keeps* the
//! answer there, which the others give to the same question without charging. Before any of the charge is given back the name is
//! *ended*: nobody passes by an answer whose charge was taken back.
//!
//! A name is forgotten with the generation of its group ([`super::group`]), with its time, and where there are too many others. That
//! makes none pass for nothing: the next one who asks is charged anew.
//!
//! **Theorem 10.** No question that is asked after a charge was given back passes by the answer to it. *Proof.* An answer is told to
//! whoever asks in the generation that it was kept in. The node that charged gives nothing back before the name was ended, in that
//! generation or in another one that grants. In the same one no answer is there from then on: one that is kept later changes nothing, as
//! its claim is gone. And when another generation grants, every node has heard of it, and asks in no earlier one. ∎

use serde::{Deserialize, Serialize};

use super::{CallContext, Generation, Taker};
use crate::mutation::{Mutation, mutated};

/// Names that a group keeps: past them those of the others go that would go first.
pub const NAMES_MAX: usize = 256;

/// The most bytes of an answer that is kept.
pub const ANSWER_BYTES_MAX: usize = 1 << 14;

/// What is known of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    generation: Generation,
    standing: NameState,
    drops_us: u64,
}

/// How a name is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameState {
    /// Nobody has it.
    #[default]
    Free,
    /// Whoever made this call charges under it, or has just done so.
    Claimed(Taker),
    /// This was answered.
    Kept(Vec<u8>),
    /// What was charged under it was given back, or soon is.
    Ended,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// Whose claim it is about.
    pub by: Taker,
    /// What is done.
    pub what: What,
    /// When nobody asks for it any more, by any wall: in microseconds since the epoch.
    pub drops_us: u64,
}

/// What a call does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Takes it, if nobody has it.
    Claim,
    /// Keeps an answer, if the claim is there: at most [`ANSWER_BYTES_MAX`].
    Keep(Vec<u8>),
    /// Gives the claim up.
    Leave,
    /// Ends it, whoever has it.
    End,
}

impl Name {
    /// Does what a call says, and tells how the name is then.
    pub fn act(&mut self, act: &Act, context: &CallContext) -> NameState {
        let is_forgotten =
            self.generation != context.generation && !mutated(Mutation::NameOutlivesGeneration);
        if is_forgotten || context.wall_us >= self.drops_us {
            *self = Self { generation: context.generation, ..Self::default() };
        }
        let is_own = self.standing == NameState::Claimed(act.by) || mutated(Mutation::NameKeptUnclaimed);
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

    /// When it may be forgotten: wall clock, in microseconds.
    pub const fn drops_us(&self) -> u64 {
        self.drops_us
    }
}
