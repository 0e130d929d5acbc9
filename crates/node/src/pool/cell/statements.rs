//! What a cell's pool was told and has confirmed of what this node holds, by the window's end: 0 if there are
//! no edges.

use acequia_rights::{
    mutation::{Mutation, mutated},
    pool::Generation,
};
use smallvec::SmallVec;

use super::super::pending::is_of_more;

/// The generation in which the pool of a window was last told what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ToldGeneration {
    end_ns: u64,
    generation: Generation,
}

/// A window of which something was asked for and nothing heard since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unanswered {
    end_ns: u64,
    /// Whether the pool had more when that was asked.
    is_of_more: bool,
}

/// What the pool knows of this node, and what this node does not know of the pool.
#[derive(Debug, Default)]
pub(in super::super) struct Statements {
    told: SmallVec<[ToldGeneration; 2]>,
    unanswered: SmallVec<[Unanswered; 2]>,
    /// The window of the last call, if this node stops and nobody answered.
    pub(in super::super) unheard: Option<u64>,
}

impl Statements {
    /// The pool of a generation knows what is held.
    pub(super) fn tell(&mut self, end_ns: u64, generation: Generation) {
        self.told.push(ToldGeneration { end_ns, generation });
    }

    /// The pool was told something else than what is held of a window.
    pub(in super::super) fn untell(&mut self, end_ns: u64) {
        self.told.retain(|told| told.end_ns != end_ns);
    }

    /// The pools of all windows were told something else than what is held.
    pub(super) fn untell_all(&mut self) {
        self.told.clear();
    }

    /// Forgets what was told of windows that ended before one that is open.
    pub(super) fn forget_told_before(&mut self, open_ns: u64) {
        self.told.retain(|told| told.end_ns >= open_ns);
    }

    /// Whether the pool of this generation knows what is held.
    pub(in super::super) fn was_told(&self, end_ns: u64, generation: Generation) -> bool {
        self.told.contains(&ToldGeneration { end_ns, generation }) || mutated(Mutation::LeaseUntold)
    }

    /// Marks unanswered calls of such windows as granted when the pool had more.
    pub(in super::super) fn distrust(&mut self, is_such: impl Fn(u64) -> bool) {
        for unanswered in &mut self.unanswered {
            unanswered.is_of_more |= is_of_more(is_such(unanswered.end_ns));
        }
    }

    /// Notes that more of a window is asked for.
    pub(in super::super) fn asks_of(&mut self, end_ns: u64) {
        if !self.is_unanswered(end_ns) {
            self.unanswered.push(Unanswered { end_ns, is_of_more: false });
        }
    }

    /// The pool has said what it granted of a window. Returns whether some of that may have been granted when
    /// the pool had more.
    pub(in super::super) fn is_answered(&mut self, end_ns: u64) -> bool {
        let is_of_more = self.may_be_of_more(end_ns);
        self.unanswered.retain(|unanswered| unanswered.end_ns != end_ns);
        is_of_more
    }

    /// Forgets unanswered calls of windows that ended by a time: they are over.
    pub(in super::super) fn forget_unanswered(&mut self, over_ns: u64) {
        self.unanswered.retain(|unanswered| unanswered.end_ns > over_ns);
    }

    /// Windows whose grants are not known yet.
    pub(in super::super) fn unanswered(&self) -> impl Iterator<Item = u64> {
        self.unanswered.iter().map(|unanswered| unanswered.end_ns)
    }

    fn is_unanswered(&self, end_ns: u64) -> bool {
        self.unanswered().any(|window| window == end_ns)
    }

    /// Whether the first answer about a window may tell of units that were granted when the pool had more.
    pub(in super::super) fn may_be_of_more(&self, end_ns: u64) -> bool {
        self.unanswered.contains(&Unanswered { end_ns, is_of_more: true })
    }
}
