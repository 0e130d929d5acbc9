//! How far a version has come.

use std::collections::BTreeSet;

use super::{Until, VersionId, Versions};
use crate::identity::Incarnation;

/// Why a node waits for an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The incarnation never acknowledged anything.
    Silent,
    /// The incarnation acknowledged an earlier version: it lends or uses more than it may now, or has not
    /// heard of this version.
    At(VersionId),
    /// The incarnation acknowledged a version that this node has not heard of.
    Ahead(VersionId),
}

/// How far the adopted version has come, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The version that this node adopted.
    pub requested: VersionId,
    /// The version up to whose budgets every member and leaver conforms.
    pub effective: VersionId,
    /// The newest allocation that this node adopted.
    pub allocation_requested: VersionId,
    /// The newest agreed allocation, to which shares are raised.
    pub allocation_effective: VersionId,
    /// The incarnations that have not acknowledged the adopted version, and how far each is.
    pub pending: Vec<(Incarnation, WaitReason)>,
    /// Leavers that have not yet acknowledged an allocation that does not name them.
    pub leavers: BTreeSet<Incarnation>,
    /// Superseded shares still limit windows that begin before this wall time: the latest time at which any
    /// incarnation said that it may use them. 0 where no share is superseded.
    pub older_until_ns: u64,
}

impl Versions {
    /// How far the adopted version has come; `None` without a version.
    pub fn progress(&self) -> Option<Progress> {
        let version = self.version()?;
        let newest = self.kept.chain.last()?;
        let effective = newest.asked().map(|incarnation| {
            self.kept.acks.get(&incarnation).map_or(VersionId::default(), |ack| ack.version_id)
        });
        let pending = newest.asked().filter_map(|incarnation| {
            let waiting = match self.kept.acks.get(&incarnation) {
                None => WaitReason::Silent,
                Some(ack) if ack.version_id > version.version_id => WaitReason::Ahead(ack.version_id),
                Some(ack)
                    if ack.version_id < version.version_id || !newest.acked.contains_key(&incarnation) =>
                {
                    WaitReason::At(ack.version_id)
                }
                Some(_) => return None,
            };
            Some((incarnation, waiting))
        });
        let front = self.kept.chain.iter().find(|allocation| allocation.until == Until::Agreed);
        let older = self.kept.chain.iter().map(|allocation| match allocation.until {
            Until::Superseded { windows_wall_ns, .. } => windows_wall_ns,
            Until::Agreed => 0,
        });
        Some(Progress {
            older_until_ns: older.max().unwrap_or(0),
            requested: version.version_id,
            effective: effective.min().unwrap_or_default().min(version.version_id),
            allocation_requested: newest.version_id,
            allocation_effective: front.map_or(VersionId::default(), |allocation| allocation.version_id),
            pending: pending.collect(),
            leavers: version
                .leaving
                .iter()
                .copied()
                .filter(|incarnation| !self.has_left(*incarnation))
                .collect(),
        })
    }

    /// Whether an incarnation has acknowledged an allocation that does not name it.
    pub(super) fn has_left(&self, incarnation: Incarnation) -> bool {
        self.kept
            .chain
            .iter()
            .any(|allocation| !allocation.names(incarnation) && allocation.acked.contains_key(&incarnation))
    }
}
