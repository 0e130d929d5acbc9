//! All groups of cells, as this node knows them.

use std::collections::BTreeSet;

use acequia_rights::pool::group::GroupStatus;

use super::{
    GROUPS,
    group::{GroupView, Heard},
    watch::Watch,
};
use crate::regions::CellKey;

/// The groups, and which of them need something.
#[derive(Debug)]
pub(super) struct Groups {
    /// By number.
    views: Vec<GroupView>,
    /// Whether a generation was heard of that is not written down yet.
    is_unkept: bool,
    /// Groups that need something before they grant.
    pub(super) unsettled: BTreeSet<u16>,
    /// Which groups are asked for their state.
    pub(super) watch: Watch,
    /// Groups for which nobody answered the last call, and that do not count as lost yet.
    pub(super) silent: BTreeSet<u16>,
    /// Groups in a store outage.
    pub(super) lost: BTreeSet<u16>,
}

/// Whether the store of a group answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreState {
    Answers,
    /// It has been silent for so long that it may be lost. It is asked for a word before anything is given
    /// back.
    Quiet,
    /// It is in an outage: what is given back reaches nobody.
    Lost,
}

impl Groups {
    /// The groups, if earlier processes have heard of these generations; none if of none.
    pub(super) fn since(generations: &[Heard]) -> Self {
        let heard = generations.iter().copied().chain(std::iter::repeat(Heard::default()));
        Self {
            views: heard.take(usize::from(GROUPS)).map(GroupView::since).collect(),
            is_unkept: false,
            unsettled: (0..GROUPS).collect(),
            watch: Watch::default(),
            silent: BTreeSet::new(),
            lost: BTreeSet::new(),
        }
    }

    pub(super) fn of(&self, number: u16) -> &GroupView {
        &self.views[usize::from(number)]
    }

    pub(super) fn of_mut(&mut self, number: u16) -> &mut GroupView {
        &mut self.views[usize::from(number)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &GroupView> {
        self.views.iter()
    }

    pub(super) fn is_lost(&self, number: u16) -> bool {
        self.lost.contains(&number)
    }

    pub(super) fn store_state(&self, number: u16, now_ns: u64) -> StoreState {
        if self.is_lost(number) {
            StoreState::Lost
        } else if self.of(number).is_quiet(now_ns) {
            StoreState::Quiet
        } else {
            StoreState::Answers
        }
    }

    /// All others count this process from now on ([`GroupView::counts_from`]).
    pub(super) fn count_from(&mut self, most_us: u64, calm_ns: u64) {
        self.views.iter_mut().for_each(|group| group.counts_from(most_us, calm_ns));
    }

    /// The pools are part of another allocation from now on.
    pub(super) fn begin_anew(&mut self, now_ns: u64) {
        for (number, group) in (0..).zip(&mut self.views) {
            group.begin_anew(now_ns);
            self.unsettled.insert(number);
        }
    }

    /// Groups that do not grant are asked again at once whether all nodes have told.
    pub(super) fn ask_unsettled_now(&mut self, now_ns: u64) {
        for number in &self.unsettled {
            self.views[usize::from(*number)].ask_now(now_ns);
        }
    }

    /// Takes a report of a group's state. Returns whether it is of another generation.
    pub(super) fn hear(&mut self, number: u16, known: &GroupStatus, id: u64, now_ns: u64) -> bool {
        let group = &mut self.views[usize::from(number)];
        let is_other = group.hear(known, id, now_ns);
        if !group.grants() {
            self.unsettled.insert(number);
        }
        self.is_unkept |= !group.is_kept();
        if is_other {
            self.watch.doubt_all();
        }
        is_other
    }

    /// What must be written down of each group.
    pub(super) fn to_keep(&self) -> Vec<Heard> {
        self.views.iter().map(GroupView::to_keep).collect()
    }

    /// The generations that were heard of, if they must be written down.
    pub(super) fn unkept(&mut self) -> Option<Vec<Heard>> {
        std::mem::take(&mut self.is_unkept).then(|| self.to_keep())
    }

    /// Notes that these generations are on the disk. Returns the cells that waited for that.
    pub(super) fn keep(&mut self, kept: &[Heard]) -> Vec<CellKey> {
        let mut untold = Vec::new();
        for (group, heard) in self.views.iter_mut().zip(kept) {
            if !group.is_kept() && group.keep(*heard) {
                untold.extend(group.untold.iter().copied());
            }
        }
        self.is_unkept = self.views.iter().any(|group| !group.is_kept());
        untold
    }
}
