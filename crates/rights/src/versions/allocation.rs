//! Allocations: distributions of shares, and to what each applies.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::{Part, RATE_PARTS};
use serde::{Deserialize, Serialize};

use super::{DRIFT_PPM_MAX, Fence, Version, VersionId};
use crate::{
    identity::{Incarnation, MemberId},
    mutation::{Mutation, mutated},
    standing::{Split, SplitFault},
};

/// The algorithm and time that a share is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareKind {
    /// A fixed window or a calendar period.
    Window {
        /// When it starts, by the wall.
        start_wall_ns: u64,
        /// How long spending in the window counts at most: as in [`Lasts::windows_ns`].
        lasts_ns: u64,
    },
    /// A sliding window.
    Sliding {
        /// Now.
        steady_ns: u64,
        /// How long spending counts, by a true clock.
        horizon_ns: u64,
    },
    /// A bucket.
    Bucket {
        /// Now.
        steady_ns: u64,
        /// How long the slowest part takes to drain, by a true clock: see [`Split::slowest`].
        horizon_ns: u64,
    },
}

/// How long an allocation limits shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Until {
    /// Until a later allocation is agreed, at an unknown time.
    Agreed,
    /// A later allocation is agreed.
    Superseded {
        /// The allocation still applies to windows that start before this wall time.
        windows_wall_ns: u64,
        /// For all else the allocation applies for a stretched horizon after this time, on this process's
        /// steady clock.
        steady_ns: u64,
    },
}

impl Until {
    /// Whether the allocation still applies. `drift_ppm` stretches the horizon.
    #[inline]
    pub fn applies(self, kind: ShareKind, drift_ppm: u32) -> bool {
        match (self, kind) {
            (Self::Agreed, _) => true,
            (Self::Superseded { windows_wall_ns, .. }, ShareKind::Window { start_wall_ns, .. }) => {
                is_window_of_older_shares(start_wall_ns, windows_wall_ns)
            }
            (
                Self::Superseded { steady_ns: since_ns, .. },
                ShareKind::Sliding { steady_ns, horizon_ns } | ShareKind::Bucket { steady_ns, horizon_ns },
            ) => is_within_horizon(since_ns, stretched(horizon_ns, drift_ppm), steady_ns),
        }
    }
}

/// A window that starts before the latest time in the acknowledgements may have been used under older
/// shares, so they limit the window (rule 4).
#[inline]
fn is_window_of_older_shares(start_wall_ns: u64, windows_wall_ns: u64) -> bool {
    start_wall_ns < windows_wall_ns && !mutated(Mutation::RaiseIgnoresFrom)
}

/// Spending under older shares counts for one horizon after the agreement, so they apply that long (rule 4).
#[inline]
fn is_within_horizon(since_ns: u64, horizon_ns: u64, now_ns: u64) -> bool {
    now_ns < since_ns.saturating_add(horizon_ns) && !mutated(Mutation::NoWaitAfterAck)
}

/// Windows to which an allocation does not apply while an older one does: rule 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spared {
    /// Spared windows began before this wall time, at which the node adopted the allocation.
    pub before_wall_ns: u64,
    /// Spared windows are of limits that last no longer than this: every node that adopts the allocation
    /// knows at least so much.
    pub lasts_ns: u64,
}

impl Spared {
    /// Whether the allocation spares this kind of share.
    #[inline]
    pub fn spares(self, kind: ShareKind) -> bool {
        let ShareKind::Window { start_wall_ns, lasts_ns } = kind else { return false };
        self.is_heard_of(lasts_ns) && self.has_begun(start_wall_ns)
    }

    /// A spared window lasts no longer than the version says. Others may have forgotten the older allocation
    /// before a longer window ends.
    #[inline]
    fn is_heard_of(self, lasts_ns: u64) -> bool {
        lasts_ns <= self.lasts_ns || mutated(Mutation::SparesUnheardOf)
    }

    /// A spared window began before the node adopted the allocation.
    #[inline]
    fn has_begun(self, start_wall_ns: u64) -> bool {
        start_wall_ns < self.before_wall_ns || mutated(Mutation::SparesWhatFollows)
    }
}

/// A time on one clock in which every other clock has seen `ns` pass: (1 + D)/(1 − D) of `ns`, rounded up.
pub fn stretched(ns: u64, drift_ppm: u32) -> u64 {
    let (million, drift) = (1_000_000_u128, u128::from(drift_ppm.min(DRIFT_PPM_MAX)));
    let stretched = (u128::from(ns) * (million + drift)).div_ceil(million - drift);
    u64::try_from(stretched).unwrap_or(u64::MAX)
}

/// How long spending under some limits may count: the longest time of any of them, by a true clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lasts {
    /// For windows and sliding windows, in nanoseconds.
    pub windows_ns: u64,
    /// For buckets, in nanoseconds: how long a bucket with the limit's whole rate takes to drain. A member's
    /// part may take longer.
    pub drains_ns: u64,
}

impl Lasts {
    /// The longer of both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            windows_ns: self.windows_ns.max(other.windows_ns),
            drains_ns: self.drains_ns.max(other.drains_ns),
        }
    }

    /// The longest time of all, where no member drains slower than `least_rate` parts of the whole.
    pub(super) fn longest_ns(self, least_rate: u32) -> u64 {
        let parts = u64::from(RATE_PARTS.div_ceil(least_rate.max(1)));
        self.windows_ns.max(self.drains_ns.saturating_mul(parts))
    }
}

/// A distribution of shares, in a node's chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// The id of the version that began the allocation. The id of the empty allocation is below every
    /// version's.
    pub version_id: VersionId,
    /// The weights; `None` in the empty allocation.
    pub split: Option<Split>,
    /// How long the allocation applies.
    pub until: Until,
    /// How long spending under the allocation may count, for any limit in force meanwhile.
    pub lasts: Lasts,
    pub(super) authority: Option<Incarnation>,
    incarnations: BTreeMap<MemberId, Incarnation>,
    leaving: BTreeSet<Incarnation>,
    pub(super) fenced: Vec<Fence>,
    /// The incarnations that acknowledged this very allocation, each with the wall time in its
    /// acknowledgement.
    pub(super) acked: BTreeMap<Incarnation, u64>,
}

impl Allocation {
    /// The empty allocation, under which spending may count for `lasts`.
    pub(super) fn empty(lasts: Lasts) -> Self {
        Self {
            version_id: VersionId::default(),
            split: None,
            until: Until::Agreed,
            lasts,
            authority: None,
            incarnations: BTreeMap::new(),
            leaving: BTreeSet::new(),
            fenced: Vec::new(),
            acked: BTreeMap::new(),
        }
    }

    pub(super) fn of(version: &Version) -> Result<Self, SplitFault> {
        let weights: Vec<_> =
            version.members.iter().map(|(&region, member)| (region, member.weight)).collect();
        Ok(Self {
            version_id: version.allocation,
            split: Some(Split::new(&weights)?),
            until: Until::Agreed,
            lasts: Lasts::default(),
            authority: Some(version.authority),
            incarnations: version
                .members
                .iter()
                .map(|(&region, member)| (region, member.incarnation))
                .collect(),
            leaving: version.leaving.clone(),
            fenced: version.fenced.clone(),
            acked: BTreeMap::new(),
        })
    }

    /// Whether an incarnation has a share in the allocation. Only the very incarnation that the allocation
    /// names has one (rule 2).
    #[inline]
    pub fn names(&self, incarnation: Incarnation) -> bool {
        let named = self.incarnations.get(&incarnation.member);
        named.is_some_and(|named| *named == incarnation || mutated(Mutation::TrustUnnamedIncarnation))
    }

    /// An incarnation's part of a cell in the allocation.
    #[inline]
    pub fn part(&self, incarnation: Incarnation, total: u64, salt: u32, has_rate: bool) -> Part {
        match &self.split {
            Some(split) if self.names(incarnation) => split.part(incarnation.member, total, salt, has_rate),
            _ => Part::default(),
        }
    }

    /// The incarnations that must acknowledge the allocation: its members and leavers.
    pub(super) fn asked(&self) -> impl Iterator<Item = Incarnation> + '_ {
        self.incarnations.values().chain(&self.leaving).copied()
    }

    pub(super) fn asks(&self, incarnation: Incarnation) -> bool {
        self.incarnations.get(&incarnation.member) == Some(&incarnation)
            || self.leaving.contains(&incarnation)
    }

    /// Whether two allocations agree in all that may not change under one id.
    pub(super) fn same_distribution(&self, other: &Self) -> bool {
        (self.authority, &self.split, &self.incarnations, &self.leaving, &self.fenced)
            == (other.authority, &other.split, &other.incarnations, &other.leaving, &other.fenced)
    }
}
