//! Which nodes of a region forward to each other, and which of them owns a cell.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering},
    },
};

use acequia_limits::{Algorithm, CellTag, Now};
use acequia_rights::{MemberId, pool::NODES_MAX};
use smallvec::SmallVec;

use super::filter::mixed;
use crate::{journal_tag, lock, settings::SETTINGS};

/// The nodes of a region. Decisions read them without a lock. Safety does not depend on which node is the
/// owner, so a read during a change does no harm.
#[derive(Debug)]
pub(super) struct LiveMates {
    own: AtomicU16,
    /// The nodes that are heard and near enough, with this one.
    live: Box<[AtomicU16]>,
    count: AtomicUsize,
    /// Whether some heard nodes are too far away: each of those deals with every cell itself.
    has_far: AtomicBool,
    /// Below this budget, and this many units a second, a limit's cells have owners; 0 if there are no mates.
    few: AtomicU64,
    /// The nodes that have answered in time since the start.
    heard: Mutex<BTreeMap<MemberId, Distance>>,
}

/// How far away a node is, by its answers to forwards.
#[derive(Clone, Copy, Debug)]
struct Distance {
    reach: MateReach,
    /// How often in a row the node counted as far.
    far_times: u32,
    /// When a forward was last useless: steady clock.
    useless_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum MateReach {
    /// Answers come in time, but for so many forwards in a row that were useless: not answered, or too late
    /// for the request.
    Near { useless: u32 },
    /// Answers come too late, or not at all. After this time (steady clock) an answer in time makes the node
    /// near.
    Far { until_ns: u64 },
}

impl Default for Distance {
    fn default() -> Self {
        Self { reach: MateReach::Near { useless: 0 }, far_times: 0, useless_ns: 0 }
    }
}

impl Default for LiveMates {
    fn default() -> Self {
        Self {
            own: AtomicU16::new(0),
            live: (0..NODES_MAX).map(|_| AtomicU16::new(0)).collect(),
            count: AtomicUsize::new(0),
            has_far: AtomicBool::new(false),
            few: AtomicU64::new(0),
            heard: Mutex::default(),
        }
    }
}

/// A node's rank in a cell's rendezvous hash: the highest is the owner.
fn rank(tag: CellTag, region: MemberId) -> (u64, MemberId) {
    let tag = journal_tag(tag).0;
    (mixed(tag as u64 ^ mixed((tag >> 64) as u64 ^ u64::from(region.0))), region)
}

impl LiveMates {
    /// Notes the nodes of the region that are heard, with this one, and how many members the catalogue has.
    pub(super) fn see(&self, own: MemberId, heard: &[MemberId], members: usize) {
        let is_near = |region: &&MemberId| **region == own || !self.is_far(**region);
        let live: SmallVec<[MemberId; 8]> = heard.iter().filter(is_near).take(NODES_MAX).copied().collect();
        for (place, region) in self.live.iter().zip(&live) {
            place.store(region.0, Ordering::Relaxed);
        }
        self.own.store(own.0, Ordering::Relaxed);
        self.count.store(live.len(), Ordering::Relaxed);
        self.has_far.store(live.len() < heard.len(), Ordering::Relaxed);
        let few = if live.len() > 1 { SETTINGS.forward.few.saturating_mul(members as u64) } else { 0 };
        self.few.store(few, Ordering::Relaxed);
    }

    /// Whether a limit has so few units that its cells have owners: not if there are no mates.
    #[inline]
    pub(super) fn are_few(&self, global: &Algorithm) -> bool {
        let few = self.few.load(Ordering::Relaxed);
        if global.budget() >= few {
            return false;
        }
        let a_second = match global {
            Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => meter.rate_milli() / 1_000,
            other => {
                let units = u128::from(other.budget()) * 1_000_000_000 / u128::from(other.period_ns().max(1));
                u64::try_from(units).unwrap_or(u64::MAX)
            }
        };
        a_second < few
    }

    /// Whether another node of the region is heard and near enough.
    #[inline]
    pub(super) fn are_any(&self) -> bool {
        self.few.load(Ordering::Relaxed) > 0
    }

    pub(super) fn has_far(&self) -> bool {
        self.has_far.load(Ordering::Relaxed)
    }

    /// A cell's owner, by rendezvous hash: if a node is lost, its cells spread over all others. `None` if the
    /// owner is this node.
    pub(super) fn owner(&self, tag: CellTag) -> Option<MemberId> {
        let own = self.own.load(Ordering::Relaxed);
        self.live().max_by_key(|region| rank(tag, *region)).filter(|region| region.0 != own)
    }

    /// The next node to ask for units of a cell. This node is excluded, and so are the nodes that `tried`
    /// lists for as many units. The others follow in the order in which they would become the owner, so the
    /// owner comes first.
    pub(super) fn next(&self, tag: CellTag, units: u64, tried: &[(MemberId, u64)]) -> Option<MemberId> {
        let own = self.own.load(Ordering::Relaxed);
        let is_tried =
            |region: MemberId| tried.iter().any(|(node, least)| *node == region && units >= *least);
        let others = self.live().filter(|region| region.0 != own && !is_tried(*region));
        others.max_by_key(|region| rank(tag, *region))
    }

    fn live(&self) -> impl Iterator<Item = MemberId> {
        let places = self.live.iter().take(self.count.load(Ordering::Relaxed));
        places.map(|place| MemberId(place.load(Ordering::Relaxed)))
    }

    /// Whether a node is far: its last answers came late or not at all, or none has come yet.
    pub(super) fn is_far(&self, node: MemberId) -> bool {
        lock(&self.heard).get(&node).is_none_or(|distance| matches!(distance.reach, MateReach::Far { .. }))
    }

    /// A node's remote charge passed a request, so the node is near enough.
    pub(super) fn note_use(&self, of: MemberId) {
        lock(&self.heard).insert(of, Distance::default());
    }

    /// A node answered in time.
    pub(super) fn note_near(&self, from: MemberId, now: Now) {
        let mut heard = lock(&self.heard);
        let distance = heard.entry(from).or_default();
        match distance.reach {
            MateReach::Far { until_ns } if now.steady_ns < until_ns => {}
            _ if now.steady_ns >= distance.useless_ns + SETTINGS.forward.far_ns_max => {
                *distance = Distance::default()
            }
            _ => distance.reach = MateReach::Near { useless: 0 },
        }
    }

    /// A node did not answer a forward in time.
    pub(super) fn note_silent(&self, to: MemberId, now: Now) {
        let mut heard = lock(&self.heard);
        let Some(distance) = heard.get_mut(&to) else { return };
        distance.useless_ns = now.steady_ns;
        let MateReach::Near { useless } = &mut distance.reach else { return };
        *useless += 1;
        if *useless >= SETTINGS.forward.silent_max || distance.far_times > 0 {
            let until_ns = now.steady_ns
                + (SETTINGS.forward.far_ns << distance.far_times.min(8)).min(SETTINGS.forward.far_ns_max);
            distance.reach = MateReach::Far { until_ns };
            distance.far_times += 1;
        }
    }
}
