//! A version of the catalogue, and what makes sense in one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Lasts, VersionRefused};
use crate::identity::{Incarnation, MemberId};

/// The most leavers, and the most fences, in a version.
pub const GONE_MAX: usize = 64;
/// The most bytes of limits in a version: it travels in one message.
pub const LIMITS_BYTES_MAX: usize = 1 << 20;
/// The most revoked certificates in a version.
pub const REVOKED_MAX: usize = 1_024;
/// The most bytes in a region's name: it is a metric label.
pub const NAME_BYTES_MAX: usize = 128;
/// The largest clock error, a minute: a larger one is a broken clock.
pub const CLOCK_ERROR_NS_MAX: u64 = 60 * 1_000_000_000;
/// The largest drift, a tenth.
pub const DRIFT_PPM_MAX: u32 = 100_000;

/// The id of a version. It grows with every version; when the authority moves, the epoch grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VersionId {
    /// Counts up when the authority moves.
    pub epoch: u32,
    /// Counts up with every version.
    pub number: u64,
}

impl VersionId {
    /// The very first version of a catalogue.
    pub const FIRST: Self = Self { epoch: 1, number: 1 };
}

/// A node that has a share, or a region that has only one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The member's weight among the others.
    pub weight: u32,
    /// The incarnation that has the share.
    pub incarnation: Incarnation,
    /// `region/node`, for people, and to know which members are nodes of one region. May be empty for a
    /// region with one node.
    pub name: String,
}

impl Member {
    /// The region in the name, if the name has one.
    pub(super) fn region_name(&self) -> Option<&str> {
        self.name.split_once('/').map(|(region, _)| region)
    }
}

/// An operator's word that an incarnation does nothing any more: its process is gone, its traffic cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fence {
    /// The fenced incarnation.
    pub incarnation: Incarnation,
    /// The time from which the incarnation surely does nothing, by the operator's clock; for the record only.
    /// The proof needs only that the incarnation ended before the version was made: the authority
    /// acknowledges after that.
    pub wall_ns: u64,
}

/// The secret that makes the tags and salts of cells. The key never changes: with another key a cell's units
/// would begin at another member, and two nodes could both have the first unit.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellSecret(pub [u8; 16]);

impl std::fmt::Debug for CellSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CellSecret(...)")
    }
}

/// Everything that the authority decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The version's id.
    pub version_id: VersionId,
    /// The id of the version that began this version's allocation: its own id, or an earlier one of the
    /// epoch.
    pub allocation: VersionId,
    /// The incarnation that made this version.
    pub authority: Incarnation,
    /// The members: who has a share.
    pub members: BTreeMap<MemberId, Member>,
    /// Leavers: incarnations that had a share, are alive, and have not yet been heard to have given it up.
    pub leaving: BTreeSet<Incarnation>,
    /// Incarnations that had a share before this allocation, and do nothing any more.
    pub fenced: Vec<Fence>,
    /// No clock is further than this from true time: ε.
    pub clock_error_ns: u64,
    /// No clock runs faster or slower than true time by more than this: D.
    pub drift_ppm: u32,
    /// The key of the cells' tags and salts, equal in all versions.
    pub key: CellSecret,
    /// How long spending before this version may count, under any limit that the authority knew. A node that
    /// joins has not heard of removed limits, and such limits may come back.
    pub lasts: Lasts,
    /// The limits, as the node reads them.
    pub limits: Vec<u8>,
    /// Revoked certificates, by the SHA-256 of each in DER.
    pub revoked: BTreeSet<[u8; 32]>,
}
impl Version {
    /// Whether an incarnation is a member.
    pub(super) fn names(&self, incarnation: &Incarnation) -> bool {
        self.members.get(&incarnation.member).is_some_and(|member| member.incarnation == *incarnation)
    }

    /// The incarnations that are fenced.
    pub(super) fn fenced(&self) -> impl Iterator<Item = Incarnation> + '_ {
        self.fenced.iter().map(|fence| fence.incarnation)
    }

    /// Whether the version makes sense by itself.
    pub(super) fn check(&self) -> Result<(), VersionRefused> {
        let named = |incarnation: &Incarnation| self.names(incarnation);
        let fenced: BTreeSet<Incarnation> = self.fenced().collect();
        let faults = [
            (
                self.version_id < VersionId::FIRST || self.version_id.epoch == 0,
                "a version id below the first",
            ),
            (
                self.allocation > self.version_id || self.allocation.epoch != self.version_id.epoch,
                "an allocation that is not of its epoch",
            ),
            (!named(&self.authority), "an authority that is no member"),
            (
                self.members.iter().any(|(id, member)| member.incarnation.member != *id),
                "a member that writes for another region",
            ),
            (
                self.members.values().any(|member| member.name.len() > NAME_BYTES_MAX),
                "a region's name is too long",
            ),
            (
                self.leaving.iter().any(named) || fenced.iter().any(named),
                "an incarnation that is a member and gone",
            ),
            (
                self.leaving.iter().any(|incarnation| fenced.contains(incarnation)),
                "an incarnation that is fenced and leaving",
            ),
            (fenced.len() != self.fenced.len(), "an incarnation that is fenced twice"),
            (self.leaving.len() > GONE_MAX || fenced.len() > GONE_MAX, "too many writers are gone"),
            (self.clock_error_ns > CLOCK_ERROR_NS_MAX, "a clock error of more than a minute"),
            (self.drift_ppm > DRIFT_PPM_MAX, "a drift of more than a tenth"),
            (self.limits.len() > LIMITS_BYTES_MAX, "the limits are too long"),
            (self.revoked.len() > REVOKED_MAX, "more certificates are revoked than can be remembered"),
        ];
        match faults.into_iter().find(|(is_so, _)| *is_so) {
            Some((_, fault)) => Err(VersionRefused::Impossible(fault)),
            None => Ok(()),
        }
    }
}
