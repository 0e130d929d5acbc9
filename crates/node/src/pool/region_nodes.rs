//! The nodes that a generation waits for if regions share their limits: the catalogue says who a region's
//! nodes are.
//!
//! A config names the nodes of the region, and is changed on one node after another. So a name counts while
//! the catalogue has it: as a member, or as one that leaves and is not yet known to have given up what it
//! had. A node that joins takes nothing of pools before all existing nodes have acknowledged an allocation
//! that names it. From then on they all wait for it. A node that is removed from a config counts until the
//! catalogue drops it.
//!
//! Nobody tells any more what a dropped node took of windows that were open then, or of later ones before
//! they open. So to the nodes that saw it go, not all is known of those windows.

use std::collections::{BTreeMap, BTreeSet};

use acequia_rights::{
    MemberId,
    mutation::{Mutation, mutated},
};
use serde::{Deserialize, Serialize};

/// The nodes of a region.
#[derive(Clone, Debug, Default)]
pub(super) struct RegionNodes {
    /// The nodes of the config, as members among all regions; none if the region stands alone.
    named: BTreeMap<u16, MemberId>,
    /// The record that is on the disk, or on its way there.
    kept: RegionNodesRecord,
    /// Whether the catalogue has said which nodes count.
    is_bound: bool,
    is_unwritten: bool,
}

/// The record on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct RegionNodesRecord {
    /// The nodes that counted last.
    nodes: BTreeMap<u16, MemberId>,
    /// Nodes may have gone that took of windows that begin before this: wall clock, in microseconds.
    gone_us: u64,
}

impl RegionNodesRecord {
    /// Nobody tells any more what the nodes that went took of windows that begin before this.
    fn note_gone(&mut self, over_us: u64) {
        if !mutated(Mutation::LeaseForgetsWhoLeft) {
            self.gone_us = self.gone_us.max(over_us);
        }
    }
}

impl RegionNodes {
    pub(super) fn new(named: BTreeMap<u16, MemberId>) -> Self {
        Self { named, ..Self::default() }
    }

    /// The nodes of the config, and those that counted last.
    pub(super) fn all(&self) -> BTreeMap<u16, MemberId> {
        self.kept.nodes.iter().chain(&self.named).map(|(node, region)| (*node, *region)).collect()
    }

    /// The nodes that a generation waits for.
    pub(super) fn counted(&self) -> BTreeSet<u16> {
        if self.is_bound {
            self.kept.nodes.keys().copied().collect()
        } else {
            self.all().into_keys().collect()
        }
    }

    /// Not all is known of windows that began before this: wall clock, in microseconds.
    pub(super) const fn gone_us(&self) -> u64 {
        self.kept.gone_us
    }

    /// Follows the catalogue's members. Nodes that it does not have any more may have taken of windows that
    /// begin before `over_us`. Returns whether there are such nodes.
    pub(super) fn follow(&mut self, members: &BTreeSet<MemberId>, over_us: u64) -> bool {
        let mut nodes = self.all();
        nodes.retain(|_, region| members.contains(region));
        let mut kept = RegionNodesRecord { nodes, gone_us: self.kept.gone_us };
        // Another member may have the node's number by now.
        let is_gone = self.kept.nodes.iter().any(|(node, region)| kept.nodes.get(node) != Some(region));
        if is_gone {
            kept.note_gone(over_us);
        }
        self.is_unwritten |= kept != self.kept;
        (self.kept, self.is_bound) = (kept, true);
        is_gone
    }

    /// Restores the record of an earlier process. Returns whether it can be read. Nodes that have gone by the
    /// record went before now. So they took only of windows that begin before `over_us`, even if a wall was
    /// far ahead then.
    pub(super) fn restore(&mut self, bytes: &[u8], over_us: u64) -> bool {
        let kept = postcard::from_bytes::<RegionNodesRecord>(bytes);
        if let Ok(kept) = kept {
            self.kept = RegionNodesRecord { gone_us: kept.gone_us.min(over_us), ..kept };
            return true;
        }
        false
    }

    /// The record that must be written down, after the catalogue's version that it follows from.
    pub(super) fn unwritten(&mut self) -> Option<Vec<u8>> {
        let is_unwritten = std::mem::take(&mut self.is_unwritten);
        is_unwritten.then(|| postcard::to_allocvec(&self.kept).expect("numbers can be written"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(all: &[u16]) -> BTreeSet<MemberId> {
        all.iter().map(|number| MemberId(*number)).collect()
    }

    fn named(all: &[u16]) -> BTreeMap<u16, MemberId> {
        all.iter().map(|number| (*number, MemberId(number + 100))).collect()
    }

    fn counted(mates: &RegionNodes) -> Vec<u16> {
        mates.counted().into_iter().collect()
    }

    #[test]
    fn a_configured_node_counts_while_the_catalogue_has_it() {
        let mut mates = RegionNodes::new(named(&[1, 2, 3]));
        assert_eq!(counted(&mates), [1, 2, 3], "nobody has said anything");
        mates.follow(&regions(&[101, 102, 201]), 7);
        assert_eq!((counted(&mates), mates.gone_us()), (vec![1, 2], 0), "it was never there");
        mates.follow(&regions(&[101, 102, 103]), 8);
        assert_eq!((counted(&mates), mates.gone_us()), (vec![1, 2, 3], 0));
        mates.follow(&regions(&[101, 103]), 9);
        assert_eq!((counted(&mates), mates.gone_us()), (vec![1, 3], 9), "it took of windows");
    }

    #[test]
    fn a_node_removed_from_the_config_counts_until_the_catalogue_drops_it() {
        let mut before = RegionNodes::new(named(&[1, 2, 3]));
        before.follow(&regions(&[101, 102, 103]), 7);
        let disk = before.unwritten().expect("it is new");
        assert_eq!(before.unwritten(), None, "once");
        let mut mates = RegionNodes::new(named(&[1, 2]));
        assert!(mates.restore(&disk, 100));
        assert_eq!(counted(&mates), [1, 2, 3]);
        mates.follow(&regions(&[101, 102, 103]), 8);
        assert_eq!((counted(&mates), mates.unwritten()), (vec![1, 2, 3], None));
        mates.follow(&regions(&[101, 102]), 9);
        assert_eq!((counted(&mates), mates.gone_us()), (vec![1, 2], 9));
        let disk = mates.unwritten().expect("another");
        let mut mates = RegionNodes::new(named(&[1, 2]));
        assert!(mates.restore(&disk, 100) && !mates.restore(&[255], 100));
        mates.follow(&regions(&[101, 102]), 10);
        assert_eq!((counted(&mates), mates.gone_us()), (vec![1, 2], 9));
        assert!(mates.restore(&disk, 5));
        assert_eq!(mates.gone_us(), 5, "no wall reads so much");
    }

    #[test]
    fn a_node_that_reuses_a_number_is_another_member() {
        let mut before = RegionNodes::new(named(&[1, 2]));
        before.follow(&regions(&[101, 102]), 7);
        let disk = before.unwritten().expect("it is new");
        let mut mates = RegionNodes::new(BTreeMap::from([(1, MemberId(101)), (2, MemberId(202))]));
        assert!(mates.restore(&disk, 100));
        assert!(mates.follow(&regions(&[101, 202]), 9));
        assert_eq!((counted(&mates), mates.gone_us()), (vec![1, 2], 9));
    }
}
