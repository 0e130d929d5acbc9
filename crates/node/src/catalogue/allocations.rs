//! The allocations by which a region enforces a limit, and how long each of them counts.

use std::sync::Arc;

use acequia_limits::{Algorithm, Limit, Now, RATE_PARTS, window::Edges};
use acequia_rights::{
    MemberId, Split,
    versions::{ShareKind, Spared, Until},
};

use crate::{
    catalogue::local::{GuardShare, first_later},
    decide::spent_for_ns,
};

/// How a region shares its limits. The region uses the least share of all allocations that count.
#[derive(Clone, Debug)]
pub(crate) struct Allocations {
    pub(crate) region: MemberId,
    pub(crate) allocations: Vec<OwnAllocation>,
    /// How the nodes of the region share limits, if they do; `allocations` is empty then.
    pub(crate) guard: Option<GuardShare>,
    pub(crate) drift_ppm: u32,
    pub(crate) margin_ns: u64,
    /// Windows that ended by this time were left under an earlier margin: wall clock, nanoseconds.
    pub(crate) left_ns: u64,
    /// The least rate of any region in any allocation: what was spent under an earlier share drains no
    /// slower.
    pub(crate) least_rate: u32,
}

/// One allocation of shares, and how long it counts.
#[derive(Clone, Debug)]
pub(crate) struct OwnAllocation {
    /// `None` if this region has no share in the allocation.
    pub(crate) split: Option<Arc<Split>>,
    pub(crate) until: Until,
    /// Whether the allocation was made before this node joined. Such an allocation does not name the node, or
    /// stands for all allocations that the node has not heard of.
    pub(crate) is_before: bool,
    /// Windows to which the allocation does not apply if an older one does.
    pub(crate) spared: Spared,
}

/// The allocations that count for a limit.
#[derive(Clone, Debug)]
pub(super) struct Counting<'a> {
    /// The allocations for everything except windows that begin later, oldest first.
    pub(super) allocations: Vec<&'a OwnAllocation>,
    /// When the first window begins for which other allocations count: an edge, wall clock in nanoseconds.
    /// `u64::MAX` if there is none.
    pub(super) until_ns: u64,
    /// The allocations for pools. Each entry covers windows that end at or before its time and after the
    /// previous entry's; the last entry covers all later windows.
    pub(super) pools: Vec<(u64, Vec<&'a OwnAllocation>)>,
}

/// How long before the end of the spared windows an allocation counts for all windows. Variants are made anew
/// by then.
const BEFORE_NS: u64 = 1_000_000_000;

impl Allocations {
    /// A region that owns no share.
    pub(crate) const fn none(region: MemberId) -> Self {
        Self {
            region,
            allocations: Vec::new(),
            guard: None,
            drift_ppm: 0,
            margin_ns: 0,
            left_ns: 0,
            least_rate: RATE_PARTS,
        }
    }

    /// The allocations that count for a limit. `drains_ns`: see [`Allocations::kind_of`].
    ///
    /// If cells have edges of their own, some cells may be in windows that began before an allocation, and
    /// others in windows that began after. Each pool belongs to one window and uses the allocations that
    /// count for that window. A variant gives the units of the last few groups of windows separately. All
    /// windows before those groups use every allocation that counts for any of them.
    pub(super) fn counting(&self, limit: &Limit, drains_ns: u64, now: Now) -> Counting<'_> {
        let all: Vec<&OwnAllocation> = self
            .allocations
            .iter()
            .filter(|allocation| self.counts(allocation, limit, drains_ns, now))
            .collect();
        if let Some(window_ns) = self.staggers(limit) {
            let pools = pools_of(&all, limit, window_ns, now.wall_ns);
            let mut allocations: Vec<&OwnAllocation> = Vec::new();
            let first = first_later(pools.len());
            for allocation in pools.iter().take(first).flat_map(|(_, allocations)| allocations) {
                if !allocations.iter().any(|other| std::ptr::eq(*other, *allocation)) {
                    allocations.push(*allocation);
                }
            }
            return Counting { allocations, until_ns: u64::MAX, pools };
        }
        let mut until_ns = u64::MAX;
        let mut allocations = Vec::with_capacity(all.len());
        for allocation in &all {
            match self.spares_until(allocation, limit, now) {
                Some(edge_ns) if !allocations.is_empty() => until_ns = until_ns.min(edge_ns),
                _ => allocations.push(*allocation),
            }
        }
        let mut pools = vec![(until_ns, allocations.clone())];
        if until_ns < u64::MAX {
            pools.push((u64::MAX, all));
        }
        Counting { allocations, until_ns, pools }
    }

    /// The length of the windows, in nanoseconds, if each cell has edges of its own and the clocks can tell
    /// the windows apart; otherwise `None`.
    fn staggers(&self, limit: &Limit) -> Option<u64> {
        match &limit.algorithm {
            Algorithm::FixedWindow(window) => match window.edges {
                Edges::Every { window_ns, stagger: true } => {
                    (self.margin_ns.saturating_mul(2) < window_ns).then_some(window_ns)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The edge at which the open window ends, if the allocation spares that window.
    fn spares_until(&self, allocation: &OwnAllocation, limit: &Limit, now: Now) -> Option<u64> {
        let Algorithm::FixedWindow(window) = &limit.algorithm else { return None };
        let Spared { before_wall_ns, .. } = allocation.spared;
        // Cells with edges of their own are in many different windows.
        let edge_ns = limit
            .algorithm
            .has_common_edges()
            .then(|| window.end_after(before_wall_ns.saturating_sub(1), 0))?;
        let kind = window_kind(limit, before_wall_ns.saturating_sub(1));
        let is_soon = now.wall_ns.saturating_add(self.margin_ns).saturating_add(BEFORE_NS) >= edge_ns;
        (allocation.spared.spares(kind) && !is_soon).then_some(edge_ns)
    }

    /// Whether an allocation still counts for a limit.
    fn counts(&self, allocation: &OwnAllocation, limit: &Limit, drains_ns: u64, now: Now) -> bool {
        let algorithm = &limit.algorithm;
        let (Until::Superseded { windows_wall_ns, .. }, Algorithm::FixedWindow(window)) =
            (allocation.until, algorithm)
        else {
            return allocation.until.applies(self.kind_of(limit, drains_ns, now), self.drift_ppm);
        };
        // The allocation counts until the first window that starts at that time or later is open. Cells with
        // edges of their own may stay for one window in a window that began before.
        let edge = if algorithm.has_common_edges() {
            window.end_after(windows_wall_ns.saturating_sub(1), 0)
        } else {
            windows_wall_ns.saturating_add(algorithm.horizon_ns())
        };
        now.wall_ns < edge.saturating_add(window.margin_ns.max(self.margin_ns))
    }

    /// The kind of share that a limit without fixed windows wants. `drains_ns`: how long units spent under
    /// earlier variants may count.
    fn kind_of(&self, limit: &Limit, drains_ns: u64, now: Now) -> ShareKind {
        let horizon_ns = limit.horizon_ns().max(limit.algorithm.lingers_ns()).max(drains_ns);
        if limit.algorithm.has_rate() {
            let slowest =
                u128::from(horizon_ns) * u128::from(RATE_PARTS) / u128::from(self.least_rate.max(1));
            let horizon_ns = u64::try_from(slowest).unwrap_or(u64::MAX);
            ShareKind::Bucket { steady_ns: now.steady_ns, horizon_ns }
        } else {
            ShareKind::Sliding { steady_ns: now.steady_ns, horizon_ns: spent_for_ns(horizon_ns) }
        }
    }
}

/// The kind of share that a limit's window wants if the window begins then.
fn window_kind(limit: &Limit, start_wall_ns: u64) -> ShareKind {
    let lasts_ns = spent_for_ns(limit.horizon_ns().max(limit.algorithm.lingers_ns()));
    ShareKind::Window { start_wall_ns, lasts_ns }
}

/// The allocations that count for windows of that length, grouped by the latest end of the windows. An
/// allocation that applies counts, except where it spares windows while an older one applies (rule 2 of
/// [`acequia_rights::versions`]). Only windows that may not be over by every clock are included.
fn pools_of<'a>(
    all: &[&'a OwnAllocation],
    limit: &Limit,
    window_ns: u64,
    wall_ns: u64,
) -> Vec<(u64, Vec<&'a OwnAllocation>)> {
    // The last window that an allocation spares, or to which a superseded one applies, begins just before
    // this time.
    let before_ns = all.iter().flat_map(|allocation| {
        let until_ns = match allocation.until {
            Until::Superseded { windows_wall_ns, .. } => windows_wall_ns,
            Until::Agreed => 0,
        };
        [until_ns, allocation.spared.before_wall_ns]
    });
    let last_ns = before_ns.map(|before_ns| before_ns.saturating_sub(1).saturating_add(window_ns));
    let mut ends_ns: Vec<u64> =
        last_ns.filter(|end_ns| *end_ns > wall_ns.saturating_sub(window_ns)).collect();
    ends_ns.push(u64::MAX);
    ends_ns.sort_unstable();
    ends_ns.dedup();
    let mut pools: Vec<(u64, Vec<&OwnAllocation>)> = Vec::new();
    for end_ns in ends_ns {
        let kind = window_kind(limit, end_ns - window_ns);
        let mut allocations: Vec<&OwnAllocation> = Vec::new();
        for allocation in all {
            if allocation.until.applies(kind, 0)
                && (allocations.is_empty() || !allocation.spared.spares(kind))
            {
                allocations.push(*allocation);
            }
        }
        let is_same = |before: &[&OwnAllocation]| {
            before.len() == allocations.len()
                && before.iter().zip(&allocations).all(|(one, other)| std::ptr::eq(*one, *other))
        };
        match pools.last_mut() {
            Some((last_ns, before)) if is_same(before) => *last_ns = end_ns,
            _ => pools.push((end_ns, allocations)),
        }
    }
    pools
}
