//! What a denied request may wait for: units that other regions may have, and that this one has asked them for.
//!
//! No decision waits: an answer is there at once, by what this region holds. But a limit may let whoever asked wait a little
//! and ask once more when units came. Of a limit with fewer units than there are regions, that is the rule: most regions
//! hold none of such a cell until somebody asks there, and a first request would be denied for nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use acequia_limits::limit::WAIT_NS_MAX;

use crate::{Answer, Catalogue, Node, Outcome};

/// What both ends take to look, beside the way there and back.
const LOOKS_NS: u64 = 30_000_000;

/// What is known of the other regions, for whoever waits.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    /// How many regions share the limits.
    regions: AtomicU64,
    /// The longest time there and back to a region that can be reached; 0 where none can.
    round_ns: AtomicU64,
    /// How often units came, or were seen not to come.
    news: AtomicU64,
}

impl Elsewhere {
    pub(crate) fn see(&self, regions: usize, round_ns: Option<u64>) {
        self.regions.store(regions as u64, Ordering::Relaxed);
        self.round_ns.store(round_ns.map_or(0, |ns| ns.max(1)), Ordering::Relaxed);
    }

    /// Units came, or it is known that none will: whoever waits shall ask again.
    pub(crate) fn tell(&self) {
        self.news.fetch_add(1, Ordering::Release);
    }
}

impl Node {
    /// How long whoever asked may wait before a denial counts, in nanoseconds, asking again ([`crate::Ask::again`]) whenever
    /// [`Node::news`] changes: 0 for not at all, at most [`WAIT_NS_MAX`]. Not at all unless every limit that denies lets it,
    /// and other regions can be reached that may have units to spare.
    pub fn patience_ns(&self, answer: &Answer, catalogue: &Catalogue) -> u64 {
        let round_ns = self.elsewhere.round_ns.load(Ordering::Relaxed);
        if answer.allowed || round_ns == 0 {
            return 0;
        }
        let regions = self.elsewhere.regions.load(Ordering::Relaxed);
        let denied = answer.limits.iter().filter(|limit| limit.outcome == Outcome::Deny);
        let patience = denied.map(|limit| {
            let wait_ns = catalogue.limits[limit.limit as usize].limit.sharing.wait_ns;
            match wait_ns {
                _ if !limit.may_come => 0,
                Some(wait_ns) => wait_ns,
                // One round trip, as long as it may well take.
                None if limit.budget < regions => round_ns + round_ns / 4 + LOOKS_NS,
                None => 0,
            }
        });
        patience.min().unwrap_or(0).min(WAIT_NS_MAX)
    }

    /// Changes when units came from other regions, or when it is known that none will: time to ask again.
    pub fn news(&self) -> u64 {
        self.elsewhere.news.load(Ordering::Acquire)
    }
}
