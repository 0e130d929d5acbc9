//! By which shares a region enforces a limit, and for how long.

use std::sync::Arc;

use acequia_limits::{Algorithm, Limit, Now, RATE_PARTS};
use acequia_rights::{
    Region, Split,
    versions::{Kind, Until},
};

use crate::{asker::spent_for_ns, local::Guard};

/// How a region shares its limits: the splits of which the least counts, and until when.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) region: Region,
    pub(crate) terms: Vec<Term>,
    /// How the nodes of the region share limits, where they do; there are no terms then.
    pub(crate) guard: Option<Guard>,
    pub(crate) drift_ppm: u32,
    pub(crate) margin_ns: u64,
    /// Windows that ended by this time were left under an earlier margin: wall clock, nanoseconds.
    pub(crate) left_ns: u64,
    /// The least rate of any region in any of the terms: what was spent under an earlier share drains no slower.
    pub(crate) least_rate: u32,
}

/// One distribution of shares, and how long it counts.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    /// None: this region has nothing in it.
    pub(crate) split: Option<Arc<Split>>,
    pub(crate) until: Until,
}

impl Terms {
    /// Nothing is owned.
    pub(crate) const fn none(region: Region) -> Self {
        Self {
            region,
            terms: Vec::new(),
            guard: None,
            drift_ppm: 0,
            margin_ns: 0,
            left_ns: 0,
            least_rate: RATE_PARTS,
        }
    }

    /// Whether a distribution still counts for a limit.
    pub(super) fn counts(&self, term: &Term, limit: &Limit, drains_ns: u64, now: Now) -> bool {
        let algorithm = &limit.algorithm;
        let (Until::Superseded { windows_wall_ns, .. }, Algorithm::FixedWindow(window)) =
            (term.until, algorithm)
        else {
            return term.until.applies(self.kind_of(limit, drains_ns, now), self.drift_ppm);
        };
        // Until the first window that starts then or later is open. Cells with edges of their own may be in one
        // that began before, for one window.
        let edge = if algorithm.has_common_edges() {
            window.end_after(windows_wall_ns.saturating_sub(1), 0)
        } else {
            windows_wall_ns.saturating_add(algorithm.horizon_ns())
        };
        now.wall_ns < edge.saturating_add(window.margin_ns.max(self.margin_ns))
    }

    /// What shares of a limit without fixed windows are wanted for. `drains_ns`: how long what was spent under earlier
    /// numbers may count.
    fn kind_of(&self, limit: &Limit, drains_ns: u64, now: Now) -> Kind {
        let horizon_ns = limit.horizon_ns().max(limit.algorithm.lingers_ns()).max(drains_ns);
        if limit.algorithm.has_rate() {
            let slowest =
                u128::from(horizon_ns) * u128::from(RATE_PARTS) / u128::from(self.least_rate.max(1));
            let horizon_ns = u64::try_from(slowest).unwrap_or(u64::MAX);
            Kind::Bucket { steady_ns: now.steady_ns, horizon_ns }
        } else {
            Kind::Sliding { steady_ns: now.steady_ns, horizon_ns: spent_for_ns(horizon_ns) }
        }
    }
}
