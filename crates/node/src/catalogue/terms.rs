//! By which shares a region enforces a limit, and for how long.

use std::sync::Arc;

use acequia_limits::{Algorithm, Limit, Now, RATE_PARTS};
use acequia_rights::{
    Region, Split,
    versions::{Kind, Spared, Until},
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
    /// Whether it was made before this node joined: one that does not name it, or stands for all of which it has not heard.
    pub(crate) is_before: bool,
    /// Windows to which it does not apply where an older one does.
    pub(crate) spared: Spared,
}

/// The distributions that count for a limit.
#[derive(Clone, Debug)]
pub(super) struct Counting<'a> {
    /// For all but windows that begin later, oldest first.
    pub(super) terms: Vec<&'a Term>,
    /// For windows that begin at the edge `until_ns` or later.
    pub(super) later: Vec<&'a Term>,
    /// An edge, wall clock in nanoseconds; `u64::MAX` where both are the same.
    pub(super) until_ns: u64,
}

/// So long before the windows are over that a distribution spares, it counts for all: numbers are made anew by then.
const BEFORE_NS: u64 = 1_000_000_000;

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

    /// The distributions that count for a limit. `drains_ns`: see [`Terms::kind_of`].
    pub(super) fn counting(&self, limit: &Limit, drains_ns: u64, now: Now) -> Counting<'_> {
        let later: Vec<&Term> =
            self.terms.iter().filter(|term| self.counts(term, limit, drains_ns, now)).collect();
        let mut until_ns = u64::MAX;
        let mut terms = Vec::with_capacity(later.len());
        for term in &later {
            match self.spares_until(term, limit, now) {
                Some(edge_ns) if !terms.is_empty() => until_ns = until_ns.min(edge_ns),
                _ => terms.push(*term),
            }
        }
        Counting { terms, later, until_ns }
    }

    /// The edge at which the window ends that is open and that a distribution spares, if there is one.
    fn spares_until(&self, term: &Term, limit: &Limit, now: Now) -> Option<u64> {
        let Algorithm::FixedWindow(window) = &limit.algorithm else { return None };
        let Spared { before_wall_ns, .. } = term.spared;
        // Cells with edges of their own are in as many windows.
        let edge_ns = limit
            .algorithm
            .has_common_edges()
            .then(|| window.end_after(before_wall_ns.saturating_sub(1), 0))?;
        let kind = Kind::Window {
            start_wall_ns: before_wall_ns.saturating_sub(1),
            lasts_ns: spent_for_ns(limit.horizon_ns().max(limit.algorithm.lingers_ns())),
        };
        let is_soon = now.wall_ns.saturating_add(self.margin_ns).saturating_add(BEFORE_NS) >= edge_ns;
        (term.spared.spares(kind) && !is_soon).then_some(edge_ns)
    }

    /// Whether a distribution still counts for a limit.
    fn counts(&self, term: &Term, limit: &Limit, drains_ns: u64, now: Now) -> bool {
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
