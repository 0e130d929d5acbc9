//! One group of cells, as this node knows it: the generation of its pools, and whether they grant.
//!
//! A node that has heard of a generation uses no earlier one, and no other one of the same number. Neither
//! does any later process of the node: so a generation is used only when it is written down. The node tells
//! what it holds of every pool of the group. When each pool has answered, the node says that it has told all
//! ([`acequia_rights::pool::group`]).
//!
//! A node that begins with an empty disk cannot know what it had heard of: it is a *stranger*. It accepts no
//! generation that grants, but has one begun that goes on with what the pools know. Nor does it accept one
//! that does not grant if the number may have been given before all others counted the node. This ends when a
//! generation grants of which the node had heard before. From then on that generation is on its disk.

use std::collections::BTreeSet;

use acequia_rights::{
    mutation::{Mutation, mutated},
    pool::{Generation, group::GroupStatus},
};
use serde::{Deserialize, Serialize};

use crate::{regions::CellKey, settings::SETTINGS};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GroupStage {
    /// The generation is not known.
    #[default]
    Unheard,
    /// What is held is being told.
    Telling,
    /// The generation grants.
    Grants,
}

/// What a group needs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// A generation must be begun, above this number; whether it goes on with what the pools know.
    Begin { above: u64, goes_on: bool },
    /// The group must hear that this node has told all.
    Assert,
}

/// The record of a group, for later processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// The last generation that was heard of; number 0 for none.
    #[serde(flatten)]
    pub generation: Generation,
    /// The generation since which its pools remember.
    #[serde(default)]
    pub since: Generation,
    /// The last generation that was heard of before it, apart from those that went on in the same place and
    /// never granted. None if it grants.
    #[serde(default)]
    pub before: Generation,
}

/// What a node knows of a group.
#[derive(Debug, Default)]
pub(super) struct GroupView {
    /// The last generation that was heard of: no earlier one counts. And what is known of those before it.
    heard: Heard,
    /// The record that is written down.
    kept: Heard,
    /// Whether a generation has granted of which this process, or an earlier one with the same disk, had
    /// heard before.
    is_proven: bool,
    counted: CountedFrom,
    /// A generation that this node begins gets a number above this one.
    above: u64,
    stage: GroupStage,
    /// Whether no generation has granted before this one, and all nodes that have told in it are new. If it
    /// grants, all nodes of the region are.
    is_first: bool,
    /// Cells that must be told in this generation.
    pub(super) untold: BTreeSet<CellKey>,
    /// Cells of the group with leases.
    pub(super) cells: BTreeSet<CellKey>,
    calls: GroupCalls,
    contact: Contact,
}

/// For a stranger: since when all others count this process.
#[derive(Debug, Default)]
struct CountedFrom {
    /// Generations that began before that have numbers up to this one.
    most_us: u64,
    /// The stranger calls nobody before this time, by the steady clock.
    calm_ns: u64,
}

/// Calls about the group itself.
#[derive(Debug, Default)]
struct GroupCalls {
    /// The call that is under way.
    under_way: Option<u64>,
    /// No call is made before this time: steady clock.
    retry_ns: u64,
    /// How many calls in a row were not answered.
    failed: u32,
    /// How often the group was asked whether all nodes have told.
    asked: u32,
    /// How often the group had to be begun since it last granted.
    begun: u32,
}

/// When the group's store answered, and since when it does not. All times are of the steady clock.
#[derive(Debug, Default)]
struct Contact {
    /// When the group last answered.
    spoke_ns: u64,
    /// When the first call since then was made that nobody answered.
    silent_since_ns: Option<u64>,
}

impl GroupCalls {
    /// Whether a call may be made now.
    fn may_call(&self, now_ns: u64) -> bool {
        self.under_way.is_none() && now_ns >= self.retry_ns
    }

    fn answered(&mut self, id: u64) {
        if self.under_way == Some(id) {
            self.under_way = None;
        }
    }

    fn miss(&mut self, id: u64, now_ns: u64) {
        self.answered(id);
        let wait_ns = (SETTINGS.pool.retry_ns << self.failed.min(8)).min(SETTINGS.pool.retry_ns_max);
        self.failed = self.failed.saturating_add(1);
        self.retry_ns = now_ns + wait_ns;
    }

    /// The group is asked anew from this time on whether all nodes have told.
    const fn ask_anew(&mut self, from_ns: u64) {
        (self.retry_ns, self.asked) = (from_ns, 0);
    }

    /// The other nodes have not told yet: the group is asked again later, the less is held of it the later.
    fn ask_later(&mut self, holds_nothing: bool, now_ns: u64) {
        let most_ns = if holds_nothing { SETTINGS.pool.told_ns_longest } else { SETTINGS.pool.told_ns_max };
        self.retry_ns = now_ns + (SETTINGS.pool.told_ns << self.asked.min(10)).min(most_ns);
        self.asked = self.asked.saturating_add(1);
    }

    /// The group must be begun. Nodes with other allocations begin other generations. Until they agree, these
    /// must not fill the store.
    fn begin_later(&mut self, now_ns: u64) {
        let wait_ns = if self.begun < SETTINGS.pool.begun_at_once {
            0
        } else {
            SETTINGS.pool.begin_ns << (self.begun - SETTINGS.pool.begun_at_once).min(8)
        };
        self.begun = self.begun.saturating_add(1);
        self.retry_ns = now_ns + wait_ns.min(SETTINGS.pool.begin_ns_max);
    }
}

impl GroupView {
    /// A group of which earlier processes have heard this.
    pub(super) fn since(heard: Heard) -> Self {
        let number = heard.generation.number;
        Self { heard, kept: heard, is_proven: number > 0, above: number, ..Self::default() }
    }

    pub(super) const fn generation(&self) -> Generation {
        self.heard.generation
    }

    /// All others count this process from now on, while walls show at most `most_us`. A stranger calls nobody
    /// before `calm_ns`, by the steady clock, when all walls show at least `most_us`.
    pub(super) fn counts_from(&mut self, most_us: u64, calm_ns: u64) {
        self.counted.most_us = self.counted.most_us.max(most_us);
        self.counted.calm_ns = self.counted.calm_ns.max(calm_ns);
    }

    /// The generation since which the pools remember: none if that is not known.
    pub(super) const fn remembers_since(&self) -> Generation {
        self.heard.since
    }

    /// The last generation that was heard of before this one, apart from those that went on in the same place
    /// and, as far as is known, never granted. None once this one grants, and then becomes the last itself.
    pub(super) const fn before(&self) -> Generation {
        self.heard.before
    }

    /// Whether the pools know nothing from before this generation.
    pub(super) fn remembers_nothing(&self) -> bool {
        self.heard.since == self.heard.generation
    }

    /// Whether its pools can be called.
    pub(super) fn is_heard(&self) -> bool {
        self.stage != GroupStage::Unheard && self.may_be_used()
    }

    /// The record that must be on the disk.
    pub(super) fn to_keep(&self) -> Heard {
        if self.is_proven { self.heard } else { Heard::default() }
    }

    /// Whether that record is on the disk.
    pub(super) fn is_kept(&self) -> bool {
        self.kept == self.to_keep()
    }

    /// Whether the generation may be used: no later process of the node uses an earlier one.
    fn may_be_used(&self) -> bool {
        let is_kept = self.kept.generation == self.generation();
        self.is_proven && (is_kept || mutated(Mutation::LeaseForgetsGeneration))
    }

    /// Notes a record that was written down. Returns whether the generation may be used now, and could not
    /// before.
    pub(super) fn keep(&mut self, heard: Heard) -> bool {
        let might = self.may_be_used();
        self.kept = heard;
        self.may_be_used() && !might
    }

    pub(super) fn grants(&self) -> bool {
        self.stage == GroupStage::Grants
    }

    /// Whether the group's state may be asked for.
    pub(super) fn may_be_watched(&self) -> bool {
        self.calls.under_way.is_none() && self.stage == GroupStage::Grants
    }

    /// Whether the generation is a first: none has granted before it, and all nodes that have told in it are
    /// new. If it grants, all nodes of the region are.
    pub(super) const fn is_first(&self) -> bool {
        self.is_first
    }

    /// Whether this node began with an empty disk and, as far as it knows, has never taken anything of the
    /// group.
    pub(super) fn is_new(&self) -> bool {
        (self.is_first && !self.is_proven) || mutated(Mutation::LeaseNewTwice)
    }

    /// Whether nothing is known of the generations that this node had heard of.
    fn is_stranger(&self) -> bool {
        !self.is_proven && !mutated(Mutation::LeaseTrustsStrangers)
    }

    /// What the group needs, if it is time and no call is under way.
    pub(super) fn need(&self, now_ns: u64) -> Option<Need> {
        let is_calm = !self.is_stranger() || now_ns >= self.counted.calm_ns;
        if !self.calls.may_call(now_ns) || !is_calm {
            return None;
        }
        match self.stage {
            // A stranger cannot know whether the generation it finds is the last: the other nodes have to say
            // so of a new one.
            GroupStage::Unheard if self.is_stranger() => {
                Some(Need::Begin { above: self.above.max(self.counted.most_us), goes_on: true })
            }
            GroupStage::Unheard => Some(Need::Begin { above: self.above, goes_on: false }),
            GroupStage::Telling if self.untold.is_empty() && (self.may_be_used() || !self.is_proven) => {
                Some(Need::Assert)
            }
            GroupStage::Telling | GroupStage::Grants => None,
        }
    }

    /// The group is asked again at once whether all nodes have told.
    pub(super) fn ask_now(&mut self, now_ns: u64) {
        if self.stage == GroupStage::Telling {
            self.calls.ask_anew(self.calls.retry_ns.min(now_ns));
        }
    }

    /// The pools are part of another allocation from now on. Earlier calls do not count.
    pub(super) fn begin_anew(&mut self, now_ns: u64) {
        self.above = self.above.max(self.generation().number);
        (self.stage, self.is_first) = (GroupStage::Unheard, false);
        (self.calls.under_way, self.calls.retry_ns) = (None, now_ns);
    }

    /// A call about the group is under way.
    pub(super) const fn note_call(&mut self, id: u64) {
        self.calls.under_way = Some(id);
    }

    /// Takes a report of the group's state. Returns whether it is of another generation: then all cells must
    /// be told.
    pub(super) fn hear(&mut self, known: &GroupStatus, id: u64, now_ns: u64) -> bool {
        self.calls.answered(id);
        if self.may_be_of_earlier_process(known) {
            self.begin_above(known.generation.number.saturating_add(1));
            self.calls.retry_ns = now_ns;
            return false;
        }
        if self.is_outdated(known.generation) {
            let is_twice = known.generation.number == self.generation().number;
            self.begin_above(known.generation.number.saturating_add(u64::from(is_twice)));
            self.calls.begin_later(now_ns);
            return false;
        }
        self.calls.failed = 0;
        self.above = self.above.max(known.generation.number);
        let is_other = self.generation() != known.generation;
        if is_other || self.stage == GroupStage::Unheard {
            self.begin_telling(known, now_ns);
        } else if self.stage == GroupStage::Telling {
            self.calls.ask_later(self.cells.is_empty(), now_ns);
        }
        self.is_first &= known.is_first;
        if known.grants {
            self.note_grants(now_ns);
        }
        is_other
    }

    /// Whether this node is a stranger, and an earlier process of it may have told in this generation.
    fn may_be_of_earlier_process(&self, known: &GroupStatus) -> bool {
        let generation = known.generation;
        let may_be_old = known.grants || generation.number <= self.counted.most_us;
        self.is_stranger() && generation.number > 0 && generation != self.generation() && may_be_old
    }

    /// Whether a place forgot or was rolled back; or two places had forgotten, and one number was given
    /// twice.
    fn is_outdated(&self, generation: Generation) -> bool {
        let last = self.generation();
        generation.number == 0 || (generation.number <= last.number && generation != last)
    }

    /// Another generation must be begun, above this number.
    fn begin_above(&mut self, number: u64) {
        self.above = self.above.max(number);
        self.stage = GroupStage::Unheard;
    }

    /// All cells must be told in this generation.
    fn begin_telling(&mut self, known: &GroupStatus, now_ns: u64) {
        let GroupStatus { generation, grants, since, is_first } = *known;
        self.is_first = is_first && !grants;
        // If pools remember since the same one, this generation was begun in the place of the last, which
        // nobody used.
        let goes_on = since == self.heard.since && self.heard.before.number > 0;
        if generation != self.generation() && !goes_on {
            self.heard.before = self.to_keep().generation;
        }
        (self.heard.generation, self.heard.since) = (generation, since);
        self.stage = GroupStage::Telling;
        // If no generation was used, nothing is held.
        self.untold = if self.is_proven { self.cells.clone() } else { BTreeSet::new() };
        self.calls.ask_anew(now_ns);
    }

    /// The generation grants. If this node had not proven one, it had heard of this one before that: whether
    /// the node has told all mattered only when the generation was begun.
    fn note_grants(&mut self, now_ns: u64) {
        if !self.is_proven {
            self.is_proven = true;
            self.calls.ask_anew(now_ns);
        }
        self.heard.before = Generation::default();
        if self.untold.is_empty() && self.may_be_used() {
            (self.stage, self.calls.begun) = (GroupStage::Grants, 0);
        }
    }

    /// The group's state is as it was known to be.
    pub(super) fn is_same(&mut self, id: u64) {
        self.calls.answered(id);
    }

    /// The group answered, whatever the answer: a pool that has nothing left is not lost.
    pub(super) const fn speaks(&mut self, now_ns: u64) {
        self.contact = Contact { spoke_ns: now_ns, silent_since_ns: None };
        self.calls.failed = 0;
    }

    /// Nobody answered a call that was made at `sent_ns`. Returns whether the group has been silent since:
    /// then it is asked again soon.
    pub(super) fn is_silent(&mut self, sent_ns: u64, now_ns: u64) -> bool {
        if self.contact.silent_since_ns.is_none() && sent_ns >= self.contact.spoke_ns {
            self.contact.silent_since_ns = Some(sent_ns);
            self.calls.retry_ns = self.calls.retry_ns.min(now_ns);
        }
        self.contact.silent_since_ns.is_some()
    }

    /// Whether the group has not answered lately, and may be lost.
    pub(super) const fn is_quiet(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.contact.spoke_ns) > SETTINGS.pool.quiet_ns
    }

    /// Whether the group has been silent for so long that its store counts as lost.
    pub(super) fn is_lost(&self, now_ns: u64) -> bool {
        self.contact
            .silent_since_ns
            .is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= SETTINGS.pool.lost_after_ns)
    }

    /// Whether a silent group is asked again now. A group without a known generation cannot be asked.
    pub(super) fn may_be_asked_again(&self, now_ns: u64) -> bool {
        self.is_heard() && self.calls.may_call(now_ns)
    }

    /// A call about the group was not answered.
    pub(super) fn miss(&mut self, id: u64, now_ns: u64) {
        self.calls.miss(id, now_ns);
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

#[cfg(test)]
mod tests {
    use acequia_rights::pool::Taker;

    use super::*;

    const NOW_US: u64 = 1_000_000;

    fn known(number: u64, grants: bool) -> GroupStatus {
        let generation = Generation { number, by: Taker { node: 7, process_number: 1, call: number } };
        GroupStatus { generation, grants, since: generation, is_first: false }
    }

    const CALM_NS: u64 = 1_000;

    /// A group of a node that begins with an empty disk.
    fn stranger() -> GroupView {
        let mut group = GroupView::since(Heard::default());
        group.counts_from(NOW_US, CALM_NS);
        group.begin_anew(0);
        group
    }

    /// What the group needs after it has heard this.
    fn need(group: &mut GroupView, known: &GroupStatus) -> Option<Need> {
        group.hear(known, 0, 0);
        group.need(u64::MAX)
    }

    /// What a stranger needs.
    fn begins(above: u64) -> Option<Need> {
        Some(Need::Begin { above, goes_on: true })
    }

    #[test]
    fn a_node_with_a_new_disk_confirms_only_after_a_generation_granted() {
        let mut group = stranger();
        assert_eq!(group.need(CALM_NS - 1), None, "others may give what it would take for new");
        assert_eq!(group.need(CALM_NS), begins(NOW_US));
        assert_eq!(need(&mut group, &known(2, true)), begins(NOW_US));
        // Nor does it accept one that may have been begun before this node counted, in which an earlier
        // process may have told. That holds for a first generation, too.
        assert_eq!(need(&mut group, &known(1, false)), begins(NOW_US));
        assert_eq!(need(&mut group, &known(NOW_US, false)), begins(NOW_US + 1));
        assert!(!group.is_heard() && group.is_kept() && group.to_keep() == Heard::default());
        let last = known(NOW_US + 2, false);
        assert_eq!(need(&mut group, &last), Some(Need::Assert));
        assert_eq!((group.is_heard(), group.before().number), (false, 0));
        let last = GroupStatus { grants: true, ..last };
        assert_eq!(need(&mut group, &last), None, "it is not on the disk");
        assert!(!group.is_kept() && group.keep(group.to_keep()));
        assert_eq!(need(&mut group, &last), None);
        assert!(group.grants() && group.is_heard());
        // From then on later generations count.
        assert_eq!(
            need(&mut group, &known(5, true)),
            Some(Need::Begin { above: NOW_US + 2, goes_on: false })
        );
        group.hear(&known(NOW_US + 3, true), 0, 0);
        assert_eq!((group.generation().number, group.before().number), (NOW_US + 3, 0));
    }

    #[test]
    fn a_node_confirms_across_generations_that_never_granted() {
        let first = known(1, true);
        let on = |number, grants| GroupStatus { since: first.since, ..known(number, grants) };
        let mut group = GroupView::since(Heard { generation: first.generation, ..Heard::default() });
        need(&mut group, &first);
        // Two strangers begin one after the other.
        need(&mut group, &on(2, false));
        assert_eq!(group.before(), first.generation);
        need(&mut group, &on(3, false));
        assert_eq!(group.before(), first.generation, "the second has granted nothing");
        // A later process knows it, too.
        let mut group = GroupView::since(group.to_keep());
        need(&mut group, &on(3, false));
        assert_eq!(group.before(), first.generation);
        let mut later = GroupView::since(group.to_keep());
        need(&mut later, &on(4, false));
        assert_eq!(later.before(), first.generation);
        need(&mut group, &on(3, true));
        assert!(!group.is_kept());
        group = GroupView::since(group.to_keep());
        need(&mut group, &on(4, false));
        assert_eq!(group.before(), on(3, true).generation);
        // A generation that was begun elsewhere may have granted, whatever was heard.
        need(&mut group, &known(5, false));
        assert_eq!(group.before(), on(4, false).generation);
        need(&mut group, &on(6, false));
        assert_eq!(group.before(), known(5, false).generation);
    }

    #[test]
    fn a_node_is_new_until_a_generation_grants_that_is_not_a_first() {
        let first = |grants| GroupStatus { is_first: true, ..known(NOW_US + 1, grants) };
        let mut group = stranger();
        assert_eq!(need(&mut group, &first(false)), Some(Need::Assert));
        assert!(group.is_first() && group.is_new());
        // All are new.
        assert_eq!(need(&mut group, &first(true)), None);
        assert!(group.keep(group.to_keep()));
        assert_eq!(need(&mut group, &first(true)), None);
        assert!(group.grants() && group.is_first());
        // The group is not new any more once another first generation begins elsewhere.
        need(&mut group, &GroupStatus { is_first: true, ..known(NOW_US + 2, false) });
        assert!(!group.is_new());

        // Another node was not new.
        let mut group = stranger();
        need(&mut group, &first(false));
        need(&mut group, &known(NOW_US + 1, true));
        assert!(!group.is_first() && !group.is_new());
    }
}
