//! Where the region's store keeps a group's records, for decisions: threads ask while others hold the lock on
//! the leases.

use std::sync::Mutex;

use super::{GROUPS, StoreOutages};
use crate::{KeptAt, lock};

/// What decisions need of the region's store.
#[derive(Debug, Default)]
pub(crate) struct RegionStore {
    /// The store outages, by the cells whose pools are affected.
    pub(crate) outages: StoreOutages,
    /// The places in the store where names of charges are kept.
    pub(crate) places: NamePlaces,
}

/// What is known of each group, and this node's identity.
#[derive(Debug, Default)]
pub(crate) struct NamePlaces {
    groups: Box<[Mutex<Option<KeptAt>>]>,
    who: Mutex<Who>,
}

/// A node among those of its region, and what is promised of its clocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Who {
    pub(crate) node: u16,
    /// How far walls may be from true time, in nanoseconds.
    pub(crate) clock_error_ns: u64,
    /// How far steady clocks may drift, in parts per million.
    pub(crate) drift_ppm: u32,
}

impl NamePlaces {
    /// The places of a node that shares its limits with other nodes of its region.
    pub(super) fn of(who: Who) -> Self {
        Self { groups: (0..GROUPS).map(|_| Mutex::default()).collect(), who: Mutex::new(who) }
    }

    pub(crate) fn get(&self, group: u16) -> Option<KeptAt> {
        *lock(self.groups.get(usize::from(group))?)
    }

    pub(super) fn set(&self, group: u16, kept: Option<KeptAt>) {
        if let Some(place) = self.groups.get(usize::from(group)) {
            *lock(place) = kept;
        }
    }

    pub(crate) fn who(&self) -> Who {
        *lock(&self.who)
    }

    pub(super) fn set_who(&self, who: Who) {
        *lock(&self.who) = who;
    }
}
