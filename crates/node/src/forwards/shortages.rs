//! Cells of which other nodes of the region had too little a moment ago.

use std::collections::{BTreeMap, btree_map::Entry};

use acequia_limits::Now;
use acequia_rights::MemberId;
use smallvec::SmallVec;

use super::filter::CellFilter;
use crate::{cell::CellKey, settings::SETTINGS};

/// The cells of which other nodes had too little. The filters [`super::Forwards::alone_marks`] and
/// [`super::Forwards::tried_marks`] belong to it.
#[derive(Debug, Default)]
pub(super) struct Shortages {
    empty_owners: BTreeMap<CellKey, EmptyOwner>,
    /// The nodes that had too little of a cell.
    tried: BTreeMap<CellKey, Tried>,
    /// Cells that this node deals with itself, though another node is the owner; until when: steady clock.
    alone: BTreeMap<CellKey, u64>,
    /// When expired records were last swept: steady clock.
    swept_ns: u64,
}

/// A cell's owner that had nothing.
#[derive(Clone, Copy, Debug)]
struct EmptyOwner {
    /// How often in a row the owner had nothing.
    times: u32,
    /// The end of the back-off: steady clock.
    until_ns: u64,
    /// When the owner was first known to have none: steady clock.
    since_ns: u64,
}

/// The nodes of the region that had too little of a cell, each with the fewest units that it could not give.
#[derive(Clone, Debug)]
struct Tried {
    nodes: SmallVec<[(MemberId, u64); 2]>,
    until_ns: u64,
}

impl EmptyOwner {
    /// Whether the owner was asked again soon after it had nothing.
    const fn was_asked(&self, now: Now) -> bool {
        now.steady_ns < self.until_ns + SETTINGS.forward.unasked_ns
    }

    const fn backs_off(&self, now: Now) -> bool {
        now.steady_ns < self.until_ns
    }
}

impl Shortages {
    /// The time (steady clock) since which a cell's owner is known to be empty: `now` if that is not known,
    /// and `None` within the back-off.
    pub(super) fn owner_empty_since(&self, key: CellKey, now: Now) -> Option<u64> {
        match self.empty_owners.get(&key) {
            Some(owner) if owner.backs_off(now) => None,
            Some(owner) if owner.was_asked(now) => Some(owner.since_ns),
            _ => Some(now.steady_ns),
        }
    }

    /// Whether a cell's owner had nothing lately.
    pub(super) fn is_owner_doubtful(&self, key: CellKey) -> bool {
        self.empty_owners.contains_key(&key)
    }

    /// Whether a cell's owner may be asked: not within the back-off after it had nothing.
    pub(super) fn may_ask_owner(&self, key: CellKey, now: Now) -> bool {
        self.empty_owners.get(&key).is_none_or(|owner| !owner.backs_off(now))
    }

    /// Notes that a cell's owner had units.
    pub(super) fn owner_had_some(&mut self, key: CellKey) {
        self.empty_owners.remove(&key);
    }

    /// Notes that a cell's owner had nothing. If several forwards miss together, one counts.
    pub(super) fn owner_had_none(&mut self, key: CellKey, now: Now, alone_marks: &CellFilter) {
        let before = self.empty_owners.get(&key).copied();
        if before.is_some_and(|owner| owner.backs_off(now)) {
            return;
        }
        let asked_before = before.filter(|owner| owner.was_asked(now));
        let since_ns = asked_before.map_or(now.steady_ns, |owner| owner.since_ns);
        if now.steady_ns >= since_ns + SETTINGS.forward.missed_ns {
            self.leave_alone(key, now, alone_marks);
            let since_ns = now.steady_ns + SETTINGS.forward.alone_ns + SETTINGS.forward.again_ns
                - SETTINGS.forward.missed_ns;
            let until_ns = now.steady_ns + SETTINGS.forward.alone_ns;
            self.empty_owners.insert(key, EmptyOwner { times: 0, until_ns, since_ns });
        } else if before.is_some() || self.empty_owners.len() < SETTINGS.forward.cells_max {
            let in_a_row =
                before.filter(|owner| now.steady_ns < owner.until_ns + SETTINGS.forward.empty_ns_max);
            let times = in_a_row.map_or(0, |owner| owner.times);
            let until_ns = now.steady_ns
                + (SETTINGS.forward.empty_ns << times.min(8)).min(SETTINGS.forward.empty_ns_max);
            self.empty_owners.insert(key, EmptyOwner { times: times + 1, until_ns, since_ns });
        }
    }

    /// Notes that a cell's owner is of no use for now: this node deals with the cell itself.
    pub(super) fn leave_alone(&mut self, key: CellKey, now: Now, alone_marks: &CellFilter) {
        self.empty_owners.remove(&key);
        if self.alone.len() < SETTINGS.forward.cells_max {
            self.alone.insert(key, now.steady_ns + SETTINGS.forward.alone_ns);
            alone_marks.set(key);
        }
    }

    /// Whether this node deals with a cell itself, because the owner had nothing.
    pub(super) fn is_alone(&self, key: CellKey, now: Now) -> bool {
        self.alone.get(&key).is_some_and(|until_ns| now.steady_ns < *until_ns)
    }

    /// The nodes that had too little of a cell, each with the fewest units that it could not give.
    pub(super) fn tried(&self, key: CellKey, now: Now) -> &[(MemberId, u64)] {
        let tried = self.tried.get(&key).filter(|tried| now.steady_ns < tried.until_ns);
        tried.map_or(&[], |tried| &tried.nodes)
    }

    /// Notes that a node has fewer than these units of a cell; gives all nodes that had too little of it.
    /// `None` if there is no room to remember the node.
    pub(super) fn note_tried(
        &mut self,
        key: CellKey,
        units: u64,
        node: MemberId,
        now: Now,
    ) -> Option<&[(MemberId, u64)]> {
        let has_room = self.tried.len() < SETTINGS.forward.cells_max;
        let tried = match self.tried.entry(key) {
            Entry::Occupied(tried) => tried.into_mut(),
            Entry::Vacant(_) if !has_room => return None,
            Entry::Vacant(place) => place.insert(Tried { nodes: SmallVec::new(), until_ns: 0 }),
        };
        if now.steady_ns >= tried.until_ns {
            *tried = Tried { nodes: SmallVec::new(), until_ns: now.steady_ns + SETTINGS.forward.tried_ns };
        }
        match tried.nodes.iter_mut().find(|(tried, _)| *tried == node) {
            Some((_, least)) => *least = units.min(*least),
            None => tried.nodes.push((node, units)),
        }
        Some(&tried.nodes)
    }

    /// Drops expired records every `SETTINGS.forward.sweep_ns`, and fills the filters anew. `are_all` says whether no other
    /// node is left to ask.
    pub(super) fn sweep(
        &mut self,
        now: Now,
        alone_marks: &CellFilter,
        tried_marks: &CellFilter,
        are_all: impl Fn(CellKey, &[(MemberId, u64)]) -> bool,
    ) {
        if now.steady_ns < self.swept_ns + SETTINGS.forward.sweep_ns {
            return;
        }
        self.swept_ns = now.steady_ns;
        self.tried.retain(|_, tried| now.steady_ns < tried.until_ns);
        let is_none = |(key, tried): &(&CellKey, &Tried)| are_all(**key, &tried.nodes);
        tried_marks.set_all(self.tried.iter().filter(is_none).map(|(key, _)| key));
        self.empty_owners.retain(|_, owner| {
            now.steady_ns < owner.until_ns + SETTINGS.forward.alone_ns + SETTINGS.forward.missed_ns
        });
        let before = self.alone.len();
        self.alone.retain(|_, until_ns| now.steady_ns < *until_ns);
        if self.alone.len() < before {
            alone_marks.set_all(self.alone.keys());
        }
    }
}
