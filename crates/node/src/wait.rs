//! How long a denied request may wait: for units that other regions were asked for, for units in the pool of
//! its own region, or for units at another node of the region ([`crate::forwards`]).
//!
//! No decision waits: an answer is there at once, by what this region holds. But a limit may let the caller
//! wait a little and ask again when units came. A limit with fewer units than there are regions needs that:
//! most regions hold none of such a cell until somebody asks there, and a first request would be denied for
//! nothing.
//!
//! No node knows who has units to spare: what the others said is old, and a transfer is not announced before
//! it is on the giver's disk. So units may be expected for about two round trips after one of three events:
//! units were first missed in a cell, units came, or a region could be reached again. After that nobody waits
//! while requests go on to be denied: a spent limit makes nobody wait for long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use acequia_limits::{CellTag, Charge, limit::WAIT_NS_MAX};

use crate::{
    Answer, Catalogue, Node, Outcome, cell::account::ExpectedWait, forwards::FORWARD_WAIT_NS,
    settings::SETTINGS,
};

/// What is known about units elsewhere, for requests that wait.
#[derive(Debug, Default)]
pub(crate) struct RemoteSupply {
    /// How many regions share the limits.
    regions: AtomicU64,
    /// The longest round trip to a region that can be reached; 0 if none can.
    round_ns: AtomicU64,
    /// When a region, or the pools, could last be reached that could not before: steady clock.
    met_ns: AtomicU64,
    /// How often units came.
    news: AtomicU64,
    /// Whether the region's pools answer, and so may have units.
    do_pools_answer: AtomicBool,
}

impl RemoteSupply {
    /// Notes whether the region's pools answer.
    pub(crate) fn see_pools(&self, do_answer: bool, now_ns: u64) {
        let did = self.do_pools_answer.swap(do_answer, Ordering::Relaxed);
        if do_answer && !did {
            self.met_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Whether the region's pools answer.
    pub(crate) fn do_pools_answer(&self) -> bool {
        self.do_pools_answer.load(Ordering::Relaxed)
    }

    pub(crate) fn see(&self, regions: usize, round_ns: Option<u64>, met_ns: Option<u64>) {
        self.regions.store(regions as u64, Ordering::Relaxed);
        self.round_ns.store(round_ns.map_or(0, |ns| ns.max(1)), Ordering::Relaxed);
        if let Some(met_ns) = met_ns {
            self.met_ns.store(met_ns, Ordering::Relaxed);
        }
    }

    /// How long units from elsewhere may be expected.
    pub(crate) fn expected_wait(&self) -> ExpectedWait {
        let of_regions_ns = match self.round_ns.load(Ordering::Relaxed) {
            0 => 0,
            round_ns => round_ns.saturating_mul(2).saturating_add(SETTINGS.decide.rebalance_ns),
        };
        let of_pools_ns = if self.do_pools_answer() { SETTINGS.pool.wait_ns } else { 0 };
        let lasts_ns = of_regions_ns.max(of_pools_ns);
        ExpectedWait { lasts_ns, met_ns: self.met_ns.load(Ordering::Relaxed) }
    }

    /// Units came: requests that wait ask again.
    pub(crate) fn tell(&self) {
        self.news.fetch_add(1, Ordering::Release);
    }
}

impl Node {
    /// How long the caller may wait before a denial counts, in nanoseconds: 0 for not at all, at most
    /// [`WAIT_NS_MAX`]. It asks again ([`crate::Ask::again`]) whenever [`Node::news`] changes. `waited_ns` is
    /// the part of the wait for the region's store that is over.
    ///
    /// The wait is 0 unless every limit that denies allows a wait, and units may still come for each. It is
    /// 0, too, if any limit was charged in spite of the denial, or if the caller gives up after `longest_ns`,
    /// before an answer of the others can be here.
    pub fn patience_ns(
        &self,
        answer: &Answer,
        catalogue: &Catalogue,
        longest_ns: u64,
        waited_ns: u64,
    ) -> u64 {
        let do_pools_answer = self.remote_supply.do_pools_answer();
        let to_regions_ns = self.remote_supply.round_ns.load(Ordering::Relaxed);
        // A pool is near, and so are other nodes of the region.
        let is_near = do_pools_answer || answer.limits.iter().any(|limit| limit.forwarded_to.is_some());
        let round_ns = if is_near { 1 } else { to_regions_ns };
        if answer.allowed || round_ns == 0 || longest_ns < round_ns {
            return 0;
        }
        let regions = self.remote_supply.regions.load(Ordering::Relaxed);
        let mut patience_ns = longest_ns.min(WAIT_NS_MAX);
        for limit in &answer.limits {
            let of = &catalogue.limits[limit.limit as usize].limit;
            if limit.outcome == Outcome::Deny {
                let wait_ns = match of.sharing.wait_ns {
                    Some(wait_ns) => wait_ns,
                    // One round trip, with room for a slow one.
                    None if limit.budget < regions && to_regions_ns > 0 => {
                        to_regions_ns + to_regions_ns / 4 + SETTINGS.decide.rebalance_ns
                    }
                    None if limit.forwarded_to.is_some() => FORWARD_WAIT_NS.saturating_sub(waited_ns),
                    None if do_pools_answer => SETTINGS.pool.wait_ns.saturating_sub(waited_ns),
                    None => 0,
                };
                patience_ns = patience_ns.min(wait_ns).min(limit.expected_wait_ns);
            } else if limit.is_forwarded {
                // Another node has charged it already.
            } else if of.spec.charge == Charge::Each || limit.is_charged {
                return 0;
            }
        }
        patience_ns
    }

    /// Whether a cell's pool may answer: not while its store is in an outage.
    pub(crate) fn has_pool(&self, tag: CellTag) -> bool {
        self.remote_supply.do_pools_answer() && !self.store.outages.is_lost(tag)
    }

    /// Changes when units came from a pool, a region or another node: time to ask again.
    pub fn news(&self) -> u64 {
        self.remote_supply.news.load(Ordering::Acquire)
    }
}
