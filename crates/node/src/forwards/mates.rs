//! Which nodes of a region draw of each other, and which of them speaks for a cell.

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

/// The nodes of a region. What a decision asks is asked without a lock: who speaks for a cell is no matter of safety, so it does not matter
/// either if it is asked while that changes.
#[derive(Debug)]
pub(super) struct LiveMates {
    own: AtomicU16,
    /// Those that are heard and near enough, this one too.
    live: Box<[AtomicU16]>,
    count: AtomicUsize,
    /// Whether any others are heard: those have to do with each cell themselves.
    has_far: AtomicBool,
    /// One speaks for the cells of limits that give fewer units than so many; 0 where there are no mates.
    few: AtomicU64,
    /// Of whom an answer has come in time since the start.
    near: Mutex<BTreeMap<MemberId, Silent>>,
}

/// Whether a node's answers come too late, or not at all.
#[derive(Clone, Copy, Debug, Default)]
struct Silent {
    /// Draws in a row that were not answered, or too late for whoever waited.
    times: u32,
    /// How often in a row nothing was drawn of it for that.
    left: u32,
    is_left: bool,
    /// Until when it is left at least, and when a draw was last of no use: steady clock.
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

/// The place of a node in a cell's rendezvous: the highest speaks for it.
fn rank(tag: CellTag, region: MemberId) -> (u64, MemberId) {
    let tag = journal_tag(tag).0;
    (mixed(tag as u64 ^ mixed((tag >> 64) as u64 ^ u64::from(region.0))), region)
}

impl LiveMates {
    /// Which nodes of the region are heard, this one among them, and how many members the catalogue has.
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

    /// Whether a limit has so few units that one node of the region speaks for a cell of it: not where there are no mates.
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

    /// Whether any other node of the region is heard, and near enough.
    #[inline]
    pub(super) fn are_any(&self) -> bool {
        self.few.load(Ordering::Relaxed) > 0
    }

    pub(super) fn has_far(&self) -> bool {
        self.has_far.load(Ordering::Relaxed)
    }

    /// Who speaks for a cell: by rendezvous hash, so that of cells of one that is heard no more each of the others has its part. Nothing
    /// where that is this node.
    pub(super) fn owner(&self, tag: CellTag) -> Option<MemberId> {
        let own = self.own.load(Ordering::Relaxed);
        self.live().max_by_key(|region| rank(tag, *region)).filter(|region| region.0 != own)
    }

    /// Whom to ask for so many units of a cell next: of those that are neither this node nor among `tried` for as many, the first in the order
    /// by which the next would speak for it; the speaker first.
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

    /// Whether a node has answered no draws lately, or too late, or none yet.
    pub(super) fn is_far(&self, region: MemberId) -> bool {
        lock(&self.near).get(&region).is_none_or(|silent| silent.is_left)
    }

    /// What was drawn of a node passed a request: it is near enough.
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

    /// A node did not answer a draw in time.
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
