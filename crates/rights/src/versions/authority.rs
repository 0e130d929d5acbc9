//! The authority's next version, which follows from the one before.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ALLOCATIONS_MAX, Allocation, CLOCK_ERROR_NS_MAX, CellSecret, Fence, Member, Version, VersionId,
    VersionRefused, Versions,
};
use crate::{
    identity::{Incarnation, MemberId},
    mutation::{Mutation, mutated},
};

/// The changes that an authority wants; the rest of a version follows from the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The members of the next version.
    pub members: BTreeMap<MemberId, Member>,
    /// Fences that the operator asserts, of incarnations that are not members any more.
    pub fenced: Vec<Fence>,
    /// See [`Version::clock_error_ns`].
    pub clock_error_ns: u64,
    /// See [`Version::drift_ppm`].
    pub drift_ppm: u32,
    /// See [`Version::key`].
    pub key: CellSecret,
    /// See [`Version::limits`].
    pub limits: Vec<u8>,
    /// See [`Version::revoked`].
    pub revoked: BTreeSet<[u8; 32]>,
}

impl Versions {
    /// Makes the next version, as the authority. The version is in force once adopted, here too. The version
    /// must be on this node's disk before it leaves: no id is given twice.
    ///
    /// # Errors
    /// The reason for the refusal. Nothing changes in any case.
    pub fn propose(&self, draft: Draft, wall_ns: u64) -> Result<Version, VersionRefused> {
        self.make(draft, wall_ns, false)
    }

    /// Makes the next version with a new epoch, which makes this node the authority. An operator commands
    /// this to a member of the version that it has (rule 6), or to the authority itself if a second authority
    /// made versions of the same epoch.
    ///
    /// # Errors
    /// The reason for the refusal. Nothing changes in any case.
    pub fn take_over(&self, draft: Draft, wall_ns: u64) -> Result<Version, VersionRefused> {
        self.make(draft, wall_ns, true)
    }

    fn make(&self, draft: Draft, wall_ns: u64, takes_over: bool) -> Result<Version, VersionRefused> {
        let fences = draft.fenced.clone();
        let mut version = Version {
            version_id: VersionId::FIRST,
            allocation: VersionId::FIRST,
            authority: self.kept.me,
            members: draft.members,
            leaving: BTreeSet::new(),
            fenced: draft.fenced,
            clock_error_ns: draft.clock_error_ns,
            drift_ppm: draft.drift_ppm,
            key: draft.key,
            lasts: self.lasts(),
            limits: draft.limits,
            revoked: draft.revoked,
        };
        if let Some(held) = self.version() {
            self.follow(held, &mut version, takes_over)?;
        }
        // Allows for two clocks, each with the largest error.
        let latest = wall_ns.saturating_add(2 * version.clock_error_ns.min(CLOCK_ERROR_NS_MAX));
        if fences.iter().any(|fence| fence.wall_ns > latest) {
            return Err(VersionRefused::Impossible("a fence in the future: what it says must be so already"));
        }
        version.check()?;
        Allocation::of(&version)?;
        Ok(version)
    }

    /// Fills in the fields that follow from the version before.
    fn follow(&self, held: &Version, version: &mut Version, takes_over: bool) -> Result<(), VersionRefused> {
        let me = self.kept.me;
        if !self.owns(me) {
            return Err(VersionRefused::Impossible("an authority that is no member"));
        }
        if version.members.values().any(|member| self.closed(member.incarnation)) {
            return Err(VersionRefused::Impossible(
                "a member that is closed: it comes back as a later incarnation",
            ));
        }
        if version.key != held.key {
            return Err(VersionRefused::Impossible("another key: cells would be shared in another order"));
        }
        if held.authority != me && !takes_over {
            return Err(VersionRefused::Authority(held.version_id));
        }
        let next =
            (held.version_id.epoch.checked_add(u32::from(takes_over)), held.version_id.number.checked_add(1));
        let (Some(epoch), Some(number)) = next else {
            return Err(VersionRefused::Impossible("version ids have run out"));
        };
        version.version_id = VersionId { epoch, number };

        let shares = |version: &Version| -> Vec<(Incarnation, u32)> {
            version.members.values().map(|member| (member.incarnation, member.weight)).collect()
        };
        if !takes_over && version.fenced.is_empty() && shares(version) == shares(held) {
            version.allocation = held.allocation;
            version.leaving.clone_from(&held.leaving);
            version.fenced.clone_from(&held.fenced);
            return Ok(());
        }
        if self.kept.chain.len() >= ALLOCATIONS_MAX {
            return Err(VersionRefused::Busy);
        }
        version.allocation = version.version_id;
        version.leaving = self.leavers(held, version);
        Ok(())
    }

    /// The leavers of a new allocation: whoever had a share, is not fenced, and has not yet acknowledged that
    /// the share is gone. An incarnation leaves the members in no other way (rule 5).
    fn leavers(&self, held: &Version, version: &Version) -> BTreeSet<Incarnation> {
        if mutated(Mutation::ForgetLeavers) {
            return BTreeSet::new();
        }
        let leaving = held.leaving.iter().copied().filter(|incarnation| !self.has_left(*incarnation));
        let members = held.members.values().map(|member| member.incarnation);
        let dropped = members.filter(|incarnation| !version.names(incarnation));
        let gone: BTreeSet<Incarnation> = version.fenced().collect();
        leaving.chain(dropped).filter(|incarnation| !gone.contains(incarnation)).collect()
    }
}
