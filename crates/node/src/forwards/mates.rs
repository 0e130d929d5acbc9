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

use super::{FAR_NS, FAR_NS_MAX, FEW, SILENT_MAX, marks::mixed};
use crate::{journal_tag, lock};

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
    near: Mutex<BTreeMap<MemberId, Silent>>,
}

/// Whether a node's answers come too late, or not at all.
#[derive(Clone, Copy, Debug, Default)]
struct Silent {
    /// Useless forwards in a row: not answered, or too late for the request.
    times: u32,
    /// How often in a row the node counted as far.
    left: u32,
    is_left: bool,
    /// The end of the back-off, after which an answer in time makes the node near; and when a forward was
    /// last useless. Both: steady clock.
    until_ns: u64,
    noted_ns: u64,
}

impl Default for LiveMates {
    fn default() -> Self {
        Self {
            own: AtomicU16::new(0),
            live: (0..NODES_MAX).map(|_| AtomicU16::new(0)).collect(),
            count: AtomicUsize::new(0),
            has_far: AtomicBool::new(false),
            few: AtomicU64::new(0),
            near: Mutex::default(),
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
        let few = if live.len() > 1 { FEW.saturating_mul(members as u64) } else { 0 };
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
    pub(super) fn is_far(&self, region: MemberId) -> bool {
        lock(&self.near).get(&region).is_none_or(|silent| silent.is_left)
    }

    /// A node's remote charge passed a request, so the node is near enough.
    pub(super) fn note_use(&self, of: MemberId) {
        lock(&self.near).insert(of, Silent::default());
    }

    /// A node answered in time.
    pub(super) fn note_near(&self, from: MemberId, now: Now) {
        let mut near = lock(&self.near);
        let silent = near.entry(from).or_default();
        silent.is_left &= now.steady_ns < silent.until_ns;
        silent.times = 0;
        if !silent.is_left && now.steady_ns >= silent.noted_ns + FAR_NS_MAX {
            *silent = Silent::default();
        }
    }

    /// A node did not answer a forward in time.
    pub(super) fn note_silent(&self, to: MemberId, now: Now) {
        let mut near = lock(&self.near);
        let Some(silent) = near.get_mut(&to) else { return };
        silent.noted_ns = now.steady_ns;
        if silent.is_left {
            return;
        }
        silent.times += 1;
        if silent.times >= SILENT_MAX || silent.left > 0 {
            silent.until_ns = now.steady_ns + (FAR_NS << silent.left.min(8)).min(FAR_NS_MAX);
            (silent.times, silent.left, silent.is_left) = (0, silent.left + 1, true);
        }
    }
}
