//! One group of cells, as this node knows it: which generation its pools are of, and whether they grant.
//!
//! A node that has heard of a generation uses no earlier one, nor another of the same number, and no process after it does: so it uses
//! none before that is written down. It tells what it holds of every pool of the group, and when each has answered, that it has
//! told all ([`acequia_rights::pool::group`]). One that has heard of none, since its disk is new, has one begun.

use std::collections::BTreeSet;

use acequia_rights::{
    broken::{Broken, broken},
    pool::{Generation, group::Known},
};

use crate::sharing::CellKey;

/// A group that does not answer is asked again after so long, and twice as long each time, up to the second.
const RETRY_NS: u64 = 20_000_000;
const RETRY_NS_MAX: u64 = 500_000_000;
/// Whether the others have told all is asked again after so long, and twice as long each time; where nothing is held of the group, up
/// to the longest.
const ASK_NS: u64 = 5_000_000;
const ASK_NS_MAX: u64 = 500_000_000;
const ASK_NS_LONGEST: u64 = 4_000_000_000;
/// A group that somebody else begins again and again is begun at once so often, and then after so long, and twice as long each time.
const BEGUN_AT_ONCE: u32 = 3;
const BEGIN_NS: u64 = 10_000_000;
const BEGIN_NS_MAX: u64 = 500_000_000;
/// Calls for so long, none of which was answered, and the store counts as lost: at least two that were given up one after the other
/// ([`super::CALL_NS`]). One that is only slow, or moves to another server in less, is bridged by what is held.
const LOST_AFTER_NS: u64 = 500_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nobody has said which generation it is.
    #[default]
    Unheard,
    /// What is held is being told.
    Telling,
    /// It grants.
    Grants,
}

/// What a group needs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// That a generation be begun, above this number.
    Begin(u64),
    /// To hear that all was told.
    Assert(Generation),
}

#[derive(Debug, Default)]
pub(super) struct Group {
    /// The last that was heard of: no earlier one counts.
    generation: Generation,
    /// Of which it is written down that it was heard of.
    kept: Generation,
    /// A generation that is begun gets a number above this one.
    above: u64,
    stage: Stage,
    /// Cells that must be told in this generation.
    pub(super) untold: BTreeSet<CellKey>,
    /// Cells of the group that are leased of.
    pub(super) cells: BTreeSet<CellKey>,
    /// The call of the group itself that is under way.
    under_way: Option<u64>,
    retry_ns: u64,
    failed: u32,
    /// How often it was asked whether all have told.
    asked: u32,
    /// Whether the generation is the first that there was, and had not granted when it was heard of.
    is_first: bool,
    /// How often it had to be begun since it last granted.
    begun: u32,
    /// When anybody last answered for it: steady clock.
    spoke_ns: u64,
    /// When the first call was made since then that nobody answered: steady clock.
    silent_since_ns: Option<u64>,
}

impl Group {
    /// Of which earlier processes have heard.
    pub(super) fn since(generation: Generation) -> Self {
        Self { generation, kept: generation, above: generation.number, ..Self::default() }
    }

    pub(super) const fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether its pools can be called.
    pub(super) fn is_heard(&self) -> bool {
        self.stage != Stage::Unheard && self.may_be_used()
    }

    /// Whether it is written down which generation was heard of.
    pub(super) fn is_kept(&self) -> bool {
        self.kept == self.generation
    }

    /// Whether the generation may be used: no process after this one uses an earlier one.
    fn may_be_used(&self) -> bool {
        self.is_kept() || broken(Broken::LeaseForgetsGeneration)
    }

    /// It was written down that this generation was heard of. Says whether it was the last that was.
    pub(super) fn keep(&mut self, generation: Generation) -> bool {
        self.kept = generation;
        self.is_kept()
    }

    pub(super) fn grants(&self) -> bool {
        self.stage == Stage::Grants
    }

    /// Whether it shall be asked how it is.
    pub(super) fn may_be_watched(&self) -> bool {
        self.under_way.is_none() && self.stage == Stage::Grants
    }

    /// Whether its generation is the first that there was, and had not granted when it was heard of.
    pub(super) fn is_first(&self) -> bool {
        self.is_first || broken(Broken::LeaseNewTwice)
    }

    /// What it needs, if it is time, and nothing is under way.
    pub(super) fn need(&self, now_ns: u64) -> Option<Need> {
        if self.under_way.is_some() || now_ns < self.retry_ns {
            return None;
        }
        match self.stage {
            Stage::Unheard => Some(Need::Begin(self.above)),
            Stage::Telling if self.untold.is_empty() && self.may_be_used() => {
                Some(Need::Assert(self.generation))
            }
            Stage::Telling | Stage::Grants => None,
        }
    }

    /// It is asked again at once whether all have told.
    pub(super) fn ask_now(&mut self, now_ns: u64) {
        if self.stage == Stage::Telling {
            (self.retry_ns, self.asked) = (self.retry_ns.min(now_ns), 0);
        }
    }

    /// Its pools are part of another distribution from now on. What was called before does not count.
    pub(super) fn begin_anew(&mut self, now_ns: u64) {
        self.above = self.above.max(self.generation.number);
        (self.stage, self.under_way, self.is_first, self.retry_ns) = (Stage::Unheard, None, false, now_ns);
    }

    pub(super) fn calls(&mut self, id: u64) {
        self.under_way = Some(id);
    }

    /// Somebody said how it is. Says whether that is another generation than was known. Then all cells must be told.
    pub(super) fn hear(&mut self, known: &Known, id: u64, now_ns: u64) -> bool {
        self.answered(id);
        let Known { generation, grants } = *known;
        // Whoever has heard of nothing cannot know whether that is the last: the others have to say so of a new one.
        let is_stranger = grants && self.generation == Generation::default();
        if is_stranger && !broken(Broken::LeaseTrustsStrangers) {
            self.above = self.above.max(generation.number.saturating_add(1));
            self.stage = Stage::Unheard;
            self.retry_ns = now_ns;
            return false;
        }
        if generation.number == 0
            || (generation.number <= self.generation.number && generation != self.generation)
        {
            // A place that forgot, or was rolled back; or two had forgotten, and one number was given twice.
            let is_twice = generation.number == self.generation.number;
            self.above = self.above.max(generation.number.saturating_add(u64::from(is_twice)));
            self.stage = Stage::Unheard;
            // Nodes that go by other terms begin others: until they go by the same, that shall not fill the store.
            let wait_ns =
                if self.begun < BEGUN_AT_ONCE { 0 } else { BEGIN_NS << (self.begun - BEGUN_AT_ONCE).min(8) };
            self.begun = self.begun.saturating_add(1);
            self.retry_ns = now_ns + wait_ns.min(BEGIN_NS_MAX);
            return false;
        }
        self.failed = 0;
        self.above = self.above.max(generation.number);
        let is_other = self.generation != generation;
        if is_other || self.stage == Stage::Unheard {
            self.is_first = generation.number == 1 && !grants;
            self.generation = generation;
            self.stage = Stage::Telling;
            self.untold = self.cells.clone();
            (self.retry_ns, self.asked) = (now_ns, 0);
        } else if self.stage == Stage::Telling {
            let most_ns = if self.cells.is_empty() { ASK_NS_LONGEST } else { ASK_NS_MAX };
            self.retry_ns = now_ns + (ASK_NS << self.asked.min(10)).min(most_ns);
            self.asked = self.asked.saturating_add(1);
        }
        // Whether all was told here does not matter to a generation that has granted since: it did when it was begun.
        if grants && self.untold.is_empty() && self.may_be_used() {
            (self.stage, self.begun) = (Stage::Grants, 0);
        }
        is_other
    }

    /// It is as it was known to be.
    pub(super) fn is_same(&mut self, id: u64) {
        self.answered(id);
    }

    /// Somebody answered, whatever it was: a pool that has nothing left is not lost.
    pub(super) fn speaks(&mut self, now_ns: u64) {
        (self.spoke_ns, self.silent_since_ns, self.failed) = (now_ns, None, 0);
    }

    /// Nobody answered a call that was made then. Gives whether nobody has since: it is asked again soon.
    pub(super) fn is_silent(&mut self, sent_ns: u64, now_ns: u64) -> bool {
        if self.silent_since_ns.is_none() && sent_ns >= self.spoke_ns {
            self.silent_since_ns = Some(sent_ns);
            self.retry_ns = self.retry_ns.min(now_ns);
        }
        self.silent_since_ns.is_some()
    }

    /// Whether nobody has answered for so long that the store counts as lost.
    pub(super) fn is_lost(&self, now_ns: u64) -> bool {
        self.silent_since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= LOST_AFTER_NS)
    }

    /// Whether one that nobody answers for is asked again now. Of one that nobody has heard of there is nothing to ask yet.
    pub(super) fn may_be_asked_again(&self, now_ns: u64) -> bool {
        self.under_way.is_none() && self.is_heard() && now_ns >= self.retry_ns
    }

    /// Nobody answered.
    pub(super) fn miss(&mut self, id: u64, now_ns: u64) {
        self.answered(id);
        let wait_ns = (RETRY_NS << self.failed.min(8)).min(RETRY_NS_MAX);
        self.failed = self.failed.saturating_add(1);
        self.retry_ns = now_ns + wait_ns;
    }

    fn answered(&mut self, id: u64) {
        if self.under_way == Some(id) {
            self.under_way = None;
        }
    }

    /// All that is held of a cell was told in this generation.
    pub(super) fn told(&mut self, key: CellKey) {
        self.untold.remove(&key);
    }

    /// A cell holds nothing any more.
    pub(super) fn forget(&mut self, key: CellKey) {
        self.untold.remove(&key);
        self.cells.remove(&key);
    }
}
