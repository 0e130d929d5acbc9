//! The version of the catalogue that a node uses. **Whatever versions the nodes have heard of, the shares of
//! one cell that they use never sum to more than the largest budget among those versions**: true, or a bug.
//!
//! A *version* is everything that the authority decides, under a [`VersionId`] that only grows. An
//! *allocation* distributes shares: which incarnations, with which weights. Most versions change budgets only
//! and keep the allocation. A version with other members, weights, leavers, fences or epoch begins a new
//! allocation, named by the version's id. A node's *chain* is the list of allocations that it adopted, oldest
//! first. A *leaver* had a share and must still acknowledge that it gave the share up.
//!
//! # Rules
//! 1. A node adopts a version only if its id is above that of the node's version, and appends the version's
//!    allocation, if new, to its chain. A node that begins with any version but the very first begins with
//!    the empty allocation, in which nobody has a share.
//! 2. A share is the least of the shares in the allocations of the chain that still apply. An incarnation has
//!    a share in an allocation only if the allocation names this very incarnation. A node uses the budgets of
//!    the adopted version at once. An allocation may *spare* a window ([`Spared`]): it does not apply to the
//!    window while an older allocation does. It spares only windows that began before the node adopted it,
//!    and only if the node adopted it with the very version that begins it. A spared window is no longer than
//!    this version says that anything lasts. So the units that a new allocation moves stay with the old user
//!    until open windows end; otherwise nobody could use them.
//! 3. An incarnation acknowledges an allocation once everything it does conforms to it, and only what is on
//!    its disk. The acknowledgement carries a wall time: the latest that its clock showed, plus 2ε. No window
//!    that starts later was used before, by the incarnation or by anybody fenced before. This time is later
//!    than the start of every window that the incarnation's allocations spare.
//! 4. A node knows an allocation as *agreed* when **every** member and every leaver of the allocation
//!    acknowledged **that very allocation**; older allocations are then *superseded*. A superseded allocation
//!    still applies to windows that start before the latest time in the acknowledgements. It applies to
//!    everything else for one horizon (stretched by the drift) from when the node learned of the agreement,
//!    or from the node's restart. A node forgets an allocation only when both are over for *every* limit in
//!    force under it, even a limit that a later version removed. A removed limit may come back, and spending
//!    by others under it still counts. So every allocation records on disk how long spending may count
//!    ([`Lasts`]).
//! 5. The authority removes an incarnation from the members only by making it a leaver or by fencing it. A
//!    leaver is removed once it acknowledged an allocation that does not name it. A fence is an operator's
//!    word that the incarnation does nothing any more.
//! 6. A new authority is a member of the version that it has, and begins a new epoch with a new allocation. A
//!    node that adopted a version of an epoch refuses lower epochs for ever.
//!
//! # Theorem
//! Take a cell and an instant (for a window: the window; for sliding windows and debts: the horizon up to the
//! instant). Take for every incarnation the largest share that it used then. The sum of these shares is at
//! most the largest budget that any of the incarnations used.
//!
//! *Proof.* Call a node's oldest allocation that applies its *front*. Let F be the newest front of any node
//! with a share.
//!
//! If F is the very first allocation, every node with a share has F in its chain, and F applies there. (A
//! node that began later has the empty allocation as its front until something newer is agreed.) Otherwise F
//! was agreed. By rule 4 every member and leaver acknowledged F itself. By rule 3 each had F in its chain on
//! its disk before anything that is counted here. For windows, this means windows that start at or after the
//! acknowledged time; for the rest, the time since a horizon before F could be anybody's front. F still
//! applies at each of them, since no front is newer, and F spares nothing that is counted here (see below).
//! By rule 2 each uses at most its share in F of its own budget.
//!
//! An incarnation that F does not name falls under one of three cases. Either it left: by rule 5 it
//! acknowledged an allocation older than F that does not name it. Its chain has that allocation, so it uses
//! nothing. Or it is fenced: it ended before F was made, so before F's authority acknowledged F. Its clock
//! was at most ε ahead and the authority's at most ε behind, so by rule 3 the window starts after anything
//! that it used, and the horizon began after it ended. Or only versions of another authority name it, and F's
//! authority never heard of those. Then F's epoch is later (rule 6), and F's authority was a member before.
//! F's authority had to acknowledge the allocations that name the unknown incarnation before one of them
//! could be that incarnation's front, and did not. So the unknown incarnation still has the empty allocation,
//! and uses nothing.
//!
//! So all shares used are shares in F, of different budgets. Shares never fall when the budget grows
//! ([`Split::units`]). So their sum is at most the sum of the shares in F of the largest budget, which is
//! that budget. ∎
//!
//! *An allocation that spares a window is nobody's front for it.* Let a node `a` have adopted T by the
//! version v that begins T, when the clock of `a` showed `s`. Let window W have begun before `s`. T can be
//! the front for W only where older allocations are superseded or forgotten. The very first allocation has
//! none before it and spares nothing; a node that joined, or whose chain was full, has the empty allocation
//! before T.
//!
//! If a newer allocation supersedes them, it supersedes T as well, from the same time on. If T supersedes
//! them, it does so for windows that start after the time with which `a` acknowledged T; by rule 3 this time
//! is later than `s`. If they are forgotten, this time and the longest lasting time are over. A node that
//! adopts T until then has P, the allocation before T, as the last of its chain, which is never forgotten; or
//! it has nothing of P. With T the node adopts, for P too, at least v's word on how long anything lasts,
//! whichever version of T it adopts: within an allocation an authority only adds to that. So W, which is no
//! longer, is over by every clock.
//!
//! If nobody asks `a` to acknowledge a newer front, `a` has left and uses nothing since, or is fenced. The
//! authority of that front had heard of either when it acknowledged, so the front is for windows that start
//! after all that `a` used. ∎
//!
//! # Why not less
//! It looks sufficient to ask only the members that an allocation lowers, or to count an acknowledgement of a
//! later allocation for an earlier one. Neither is sufficient, because a node may skip versions. Take three
//! versions: the second moves ten units from Z to X, the third moves the same ten from X to B. B skipped the
//! second, sees that only Z is lowered, has Z's word and takes ten. X also has Z's word, never heard of the
//! third, and took the same ten. `tests/versions.rs` finds such histories.
//!
//! This file does not know limits (bytes here), how messages travel, when to evict, or what conforming takes.

mod before;

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::{Now, Part, RATE_PARTS};
use crdts::{CmRDT, LWWReg};
use serde::{Deserialize, Serialize};

pub use self::before::KeptBefore;
use crate::{
    identity::{Incarnation, MemberId},
    mutation::{Mutation, mutated},
    standing::{Split, SplitFault},
};

/// The most allocations in a chain. An authority with so many refuses to make another; a node that hears of
/// more replaces its chain by the empty allocation (see [`Versions::adopt`]).
pub const TERMS_MAX: usize = 64;
/// The most leavers, and the most fences, in a version.
pub const GONE_MAX: usize = 64;
/// The most bytes of limits in a version: it travels in one message.
pub const LIMITS_BYTES_MAX: usize = 1 << 20;
/// The most revoked certificates in a version.
pub const REVOKED_MAX: usize = 1_024;
/// The most bytes in a region's name: it is a metric label.
pub const NAME_BYTES_MAX: usize = 128;
/// The most closed incarnations that a node remembers: one for each eviction there ever was.
pub const CLOSED_MAX: usize = 4_096;
/// The most epochs by which an adopted version may be above the node's own. Epochs and numbers count up one
/// by one. An id that is further away comes from no authority, and would leave little room for the ids that
/// follow.
pub const EPOCHS_AHEAD_MAX: u32 = 1 << 16;
/// The most version numbers by which an adopted version may be above the node's own: see
/// [`EPOCHS_AHEAD_MAX`].
pub const NUMBERS_AHEAD_MAX: u64 = 1 << 32;
/// The most by which the time in an acknowledgement may be ahead of a node's wall clock, two days: no clock
/// is further off.
pub const ACK_AHEAD_NS_MAX: u64 = 2 * 86_400 * 1_000_000_000;
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
    fn region_name(&self) -> Option<&str> {
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
pub struct CellKey(pub [u8; 16]);

impl std::fmt::Debug for CellKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CellKey(secret)")
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
    pub key: CellKey,
    /// How long spending before this version may count, under any limit that the authority knew. A node that
    /// joins has not heard of removed limits, and such limits may come back.
    pub lasts: Lasts,
    /// The limits, as the node reads them.
    pub limits: Vec<u8>,
    /// Revoked certificates, by the SHA-256 of each in DER.
    pub revoked: BTreeSet<[u8; 32]>,
}

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
    pub key: CellKey,
    /// See [`Version::limits`].
    pub limits: Vec<u8>,
    /// See [`Version::revoked`].
    pub revoked: BTreeSet<[u8; 32]>,
}

/// An incarnation's word that it conforms to a version. A register that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ack {
    /// The version whose budgets the incarnation conforms to.
    pub version_id: VersionId,
    /// The version's allocation, whose shares the incarnation conforms to.
    pub allocation: VersionId,
    /// Wall time: no window that starts at this time or later was used before the allocation was in the
    /// incarnation's chain.
    pub from_wall_ns: u64,
    /// The authority that made the version, in case two nodes act as the authority of one epoch.
    pub authority: Incarnation,
}

/// The result of adopting a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// The node already has this version.
    Known,
    /// The version is new to the node.
    New {
        /// Whether the version begins an allocation, so that the node must conform and acknowledge.
        redistributes: bool,
        /// Incarnations whose rows are refused from now on: the node drops loans held from them before it
        /// acknowledges.
        closed: Vec<Incarnation>,
    },
}

/// A version that was not adopted or not made. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The version is not above the node's own: normal where messages are late.
    #[error("version {0:?} is not above {1:?}, which this node has")]
    Older(VersionId, VersionId),
    /// The version's id is further above the node's own than any authority gets.
    #[error(
        "version {0:?} is further above {1:?}, which this node has, than any authority gets: revoke the certificate that signed it"
    )]
    Far(VersionId, VersionId),
    /// Two versions have one id: there are two authorities, or one was restored from a backup.
    #[error(
        "there are two versions {0:?}: is there a second authority? Evict one and take over with a new epoch"
    )]
    Conflict(VersionId),
    /// Another authority made the version without a new epoch.
    #[error("version {0:?} is of another authority, which must begin a new epoch")]
    Authority(VersionId),
    /// The version contradicts itself or known facts.
    #[error("impossible version: {0}")]
    Impossible(&'static str),
    /// The weights are impossible.
    #[error(transparent)]
    Split(#[from] SplitFault),
    /// Too many allocations are still in use.
    #[error("{TERMS_MAX} distributions are still in use: see who is pending, and wait or evict")]
    Busy,
}

/// The result of hearing an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The acknowledgement says more than was known.
    New,
    /// Nothing new.
    Known,
    /// No allocation in the chain asks this incarnation, or its clock is days ahead. It will send the
    /// acknowledgement again.
    Unasked,
}

/// The algorithm and time that a share is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    pub fn applies(self, kind: Kind, drift_ppm: u32) -> bool {
        match (self, kind) {
            (Self::Agreed, _) => true,
            (Self::Superseded { windows_wall_ns, .. }, Kind::Window { start_wall_ns, .. }) => {
                !mutated(Mutation::RaiseIgnoresFrom) && start_wall_ns < windows_wall_ns
            }
            (
                Self::Superseded { steady_ns: since, .. },
                Kind::Sliding { steady_ns, horizon_ns } | Kind::Bucket { steady_ns, horizon_ns },
            ) => {
                !mutated(Mutation::NoWaitAfterAck)
                    && steady_ns < since.saturating_add(stretched(horizon_ns, drift_ppm))
            }
        }
    }
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
    pub fn spares(self, kind: Kind) -> bool {
        let Kind::Window { start_wall_ns, lasts_ns } = kind else { return false };
        let is_known = lasts_ns <= self.lasts_ns || mutated(Mutation::SparesUnheardOf);
        is_known && (start_wall_ns < self.before_wall_ns || mutated(Mutation::SparesWhatFollows))
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
    fn longest_ns(self, least_rate: u32) -> u64 {
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
    authority: Option<Incarnation>,
    incarnations: BTreeMap<MemberId, Incarnation>,
    leaving: BTreeSet<Incarnation>,
    fenced: Vec<Fence>,
    /// The incarnations that acknowledged this very allocation, each with the wall time in its
    /// acknowledgement.
    acked: BTreeMap<Incarnation, u64>,
}

impl Allocation {
    fn empty() -> Self {
        Self {
            version_id: VersionId::default(),
            split: None,
            until: Until::Agreed,
            lasts: Lasts::default(),
            authority: None,
            incarnations: BTreeMap::new(),
            leaving: BTreeSet::new(),
            fenced: Vec::new(),
            acked: BTreeMap::new(),
        }
    }

    fn of(version: &Version) -> Result<Self, SplitFault> {
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

    /// Whether an incarnation has a share in the allocation.
    #[inline]
    pub fn names(&self, incarnation: Incarnation) -> bool {
        let named = self.incarnations.get(&incarnation.member);
        named == Some(&incarnation) || (mutated(Mutation::TrustUnnamedIncarnation) && named.is_some())
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
    fn asked(&self) -> impl Iterator<Item = Incarnation> + '_ {
        self.incarnations.values().chain(&self.leaving).copied()
    }

    fn asks(&self, incarnation: Incarnation) -> bool {
        self.incarnations.get(&incarnation.member) == Some(&incarnation)
            || self.leaving.contains(&incarnation)
    }

    /// Whether two allocations agree in all that may not change under one id.
    fn same_distribution(&self, other: &Self) -> bool {
        (self.authority, &self.split, &self.incarnations, &self.leaving, &self.fenced)
            == (other.authority, &other.split, &other.incarnations, &other.leaving, &other.fenced)
    }
}

/// Why a node waits for an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
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
    pub term_requested: VersionId,
    /// The newest agreed allocation, to which shares are raised.
    pub term_effective: VersionId,
    /// The incarnations that have not acknowledged the adopted version, and how far each is.
    pub pending: Vec<(Incarnation, Waiting)>,
    /// Leavers that have not yet acknowledged an allocation that does not name them.
    pub leavers: BTreeSet<Incarnation>,
    /// Superseded shares still limit windows that begin before this wall time: the latest time at which any
    /// incarnation said that it may use them. 0 where no share is superseded.
    pub older_until_ns: u64,
}

/// The record of a [`Versions`] that must be on disk, all of it, before an acknowledgement counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionsRecord {
    me: Incarnation,
    register: Option<LWWReg<Version, VersionId>>,
    /// Oldest first.
    chain: Vec<Allocation>,
    acks: BTreeMap<Incarnation, Ack>,
    /// By member and node: this and all earlier incarnations are closed.
    closed: BTreeMap<(MemberId, u16), u32>,
    /// The latest own acknowledgement.
    own: Option<Ack>,
    /// The windows that each allocation of the chain spares. The last field: records written without it lack
    /// only their end.
    spared: BTreeMap<VersionId, Spared>,
}

impl VersionsRecord {
    /// The bytes that complete a record without spared windows: `postcard` of an empty map.
    pub const NONE_SPARED: [u8; 1] = [0];
}

/// One node's view of the catalogue's versions.
#[derive(Clone, Debug)]
pub struct Versions {
    kept: VersionsRecord,
    /// Counts the changes to the record.
    revision: u64,
    /// The revision at which the own acknowledgement in `kept` was made.
    own_revision: u64,
    /// The own acknowledgement that is on disk.
    own_stored: Option<Ack>,
}

impl Versions {
    /// The view of a node that never had a catalogue. The node owns nothing.
    pub fn new(me: Incarnation) -> Self {
        let kept = VersionsRecord {
            me,
            register: None,
            chain: Vec::new(),
            acks: BTreeMap::new(),
            closed: BTreeMap::new(),
            own: None,
            spared: BTreeMap::new(),
        };
        Self { kept, revision: 0, own_revision: 0, own_stored: None }
    }

    /// The view of a restarted node. Waits start anew: the steady clock is another one, and nobody knows how
    /// long the process was away.
    pub fn restore(mut kept: VersionsRecord, now: Now) -> Self {
        for allocation in &mut kept.chain {
            if let Until::Superseded { steady_ns, .. } = &mut allocation.until
                && !mutated(Mutation::RestartKeepsWaits)
            {
                *steady_ns = now.steady_ns;
            }
        }
        let mut versions = Self { kept, revision: 0, own_revision: 0, own_stored: None };
        // The record was written before its acknowledgement counted.
        versions.stored(0, now);
        versions
    }

    /// The record that must be on disk.
    pub fn kept(&self) -> &VersionsRecord {
        &self.kept
    }

    /// Grows whenever [`Versions::kept`] changes.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The record of a revision is on disk: its acknowledgement may leave, and counts here too.
    pub fn stored(&mut self, revision: u64, now: Now) {
        if revision >= self.own_revision
            && let Some(own) = self.kept.own
            && self.own_stored != Some(own)
        {
            self.own_stored = Some(own);
            self.join(self.kept.me, own, now);
        }
    }

    /// This node's incarnation.
    pub fn me(&self) -> Incarnation {
        self.kept.me
    }

    /// The adopted version.
    pub fn version(&self) -> Option<&Version> {
        self.kept.register.as_ref().map(|register| &register.val)
    }

    /// Adopts a version, if its id is above that of this node's version. Versions in between may be missing.
    ///
    /// If the chain is full, the empty allocation replaces all of it. Nobody has a share in the empty
    /// allocation, so no share is larger than before, and shares recover once the newest allocation is
    /// agreed.
    ///
    /// # Errors
    /// The reason for the refusal. Nothing changed.
    pub fn adopt(&mut self, version: Version, now: Now) -> Result<Adopted, Refused> {
        possible(&version)?;
        let held = self.version().map_or_else(VersionId::default, |held| held.version_id);
        let (epochs, numbers) = (EPOCHS_AHEAD_MAX, NUMBERS_AHEAD_MAX);
        if version.version_id.epoch.saturating_sub(held.epoch) > epochs
            || version.version_id.number.saturating_sub(held.number) > numbers
        {
            return Err(Refused::Far(version.version_id, held));
        }
        let allocation = Allocation::of(&version)?;
        if let Some(register) = &self.kept.register {
            let held = &register.val;
            let op = LWWReg { val: version.clone(), marker: version.version_id };
            register.validate_op(&op).map_err(|_| Refused::Conflict(version.version_id))?;
            if version.version_id == held.version_id {
                return Ok(Adopted::Known);
            }
            if !mutated(Mutation::AdoptOlderVersion) {
                if version.version_id < held.version_id {
                    return Err(Refused::Older(version.version_id, held.version_id));
                }
                if version.authority != held.authority && version.version_id.epoch == held.version_id.epoch {
                    return Err(Refused::Authority(version.version_id));
                }
                if version.allocation < held.allocation {
                    return Err(Refused::Impossible("a later version of an earlier distribution"));
                }
            }
            if version.key != held.key {
                return Err(Refused::Impossible("another key: cells would be shared in another order"));
            }
        }
        let known = self.kept.chain.iter().find(|known| known.version_id == allocation.version_id);
        if known.is_some_and(|known| !known.same_distribution(&allocation)) {
            return Err(Refused::Impossible("a distribution that changed without a new name"));
        }
        let redistributes = known.is_none();
        let closed = self.closed_by(&version);
        if self.kept.closed.len() + closed.len() > CLOSED_MAX {
            return Err(Refused::Impossible("more writers than can be remembered are gone"));
        }

        if redistributes {
            self.append(allocation, &version, now);
        }
        for incarnation in &closed {
            let highest = self.kept.closed.entry((incarnation.member, incarnation.node)).or_default();
            *highest = incarnation.number.max(*highest);
        }
        self.counts_for(version.lasts);
        let version_id = version.version_id;
        match &mut self.kept.register {
            Some(register) if !mutated(Mutation::AdoptOlderVersion) => register.update(version, version_id),
            register => *register = Some(LWWReg { val: version, marker: version_id }),
        }
        for (incarnation, ack) in self.kept.acks.clone() {
            self.credit(incarnation, ack);
        }
        self.supersede(now);
        self.revision += 1;
        Ok(Adopted::New { redistributes, closed })
    }

    fn append(&mut self, allocation: Allocation, version: &Version, now: Now) {
        let chain = &mut self.kept.chain;
        if chain.is_empty() && version.version_id != VersionId::FIRST && !mutated(Mutation::JoinAtOnce) {
            chain.push(Allocation::empty());
        }
        if chain.len() >= TERMS_MAX {
            let lasts = chain.iter().map(|allocation| allocation.lasts).fold(Lasts::default(), Lasts::max);
            chain.clear();
            chain.push(Allocation { lasts, ..Allocation::empty() });
        }
        // A later version of the allocation may name longer times, when others have forgotten older
        // allocations already.
        if version.version_id == version.allocation && !chain.is_empty() {
            let spared = Spared { before_wall_ns: now.wall_ns, lasts_ns: version.lasts.windows_ns };
            self.kept.spared.insert(allocation.version_id, spared);
        }
        self.kept.chain.push(allocation);
        let chain = &self.kept.chain;
        self.kept
            .spared
            .retain(|version_id, _| chain.iter().any(|allocation| allocation.version_id == *version_id));
    }

    /// The incarnations that a version closes: those that this node knew and the version does not name.
    fn closed_by(&self, version: &Version) -> Vec<Incarnation> {
        let held = self.version();
        let known = held.into_iter().flat_map(|held| {
            held.members.values().map(|m| m.incarnation).chain(held.leaving.iter().copied())
        });
        let earlier = version.members.values().filter_map(|member| {
            let incarnation = member.incarnation.number.checked_sub(1)?;
            Some(Incarnation { number: incarnation, ..member.incarnation })
        });
        let gone =
            version.leaving.iter().copied().chain(version.fenced.iter().map(|fence| fence.incarnation));
        let named = |incarnation: &Incarnation| {
            version.members.get(&incarnation.member).is_some_and(|m| m.incarnation == *incarnation)
        };
        let all: BTreeSet<Incarnation> = known.chain(earlier).chain(gone).collect();
        all.into_iter().filter(|incarnation| !named(incarnation) && !self.closed(*incarnation)).collect()
    }

    /// Whether an acknowledgement of another incarnation counts: an allocation in the chain asks for it.
    pub fn asks(&self, incarnation: Incarnation) -> bool {
        incarnation != self.kept.me && self.kept.chain.iter().any(|allocation| allocation.asks(incarnation))
    }

    /// Hears an incarnation's acknowledgement, from itself or by way of others.
    pub fn learn_ack(&mut self, incarnation: Incarnation, ack: Ack, now: Now) -> Learned {
        if !self.asks(incarnation) || ack.from_wall_ns.saturating_sub(now.wall_ns) > ACK_AHEAD_NS_MAX {
            return Learned::Unasked;
        }
        self.join(incarnation, ack, now)
    }

    fn join(&mut self, incarnation: Incarnation, ack: Ack, now: Now) -> Learned {
        let known = self.kept.acks.entry(incarnation).or_insert(ack);
        let more = Ack {
            from_wall_ns: ack.from_wall_ns.max(known.from_wall_ns),
            ..if ack.version_id > known.version_id { ack } else { *known }
        };
        let new = more != *known;
        *known = more;
        // An earlier acknowledgement that arrives late may still count for its own allocation.
        let credited = self.credit(incarnation, ack) | self.credit(incarnation, more);
        if !new && !credited {
            return Learned::Known;
        }
        self.supersede(now);
        self.revision += 1;
        Learned::New
    }

    /// Counts an acknowledgement for the very allocation that it names.
    fn credit(&mut self, incarnation: Incarnation, ack: Ack) -> bool {
        let mut credited = false;
        for allocation in &mut self.kept.chain {
            let names_it =
                allocation.version_id == ack.allocation && allocation.authority == Some(ack.authority);
            let counts =
                names_it || (mutated(Mutation::LaterAckCounts) && allocation.version_id <= ack.allocation);
            if counts && allocation.asks(incarnation) {
                let from = allocation.acked.entry(incarnation).or_insert_with(|| {
                    credited = true;
                    0
                });
                credited |= *from < ack.from_wall_ns;
                *from = ack.from_wall_ns.max(*from);
            }
        }
        credited
    }

    /// Supersedes all allocations older than the newest agreed one.
    fn supersede(&mut self, now: Now) {
        let Some(agreed) = (0..self.kept.chain.len()).rev().find(|&at| self.is_agreed(at)) else { return };
        let allocation = &self.kept.chain[agreed];
        let windows_wall_ns = allocation.acked.values().copied().max().unwrap_or(0);
        for allocation in &mut self.kept.chain[..agreed] {
            if allocation.until == Until::Agreed {
                allocation.until = Until::Superseded { windows_wall_ns, steady_ns: now.steady_ns };
            }
        }
    }

    fn is_agreed(&self, at: usize) -> bool {
        let allocation = &self.kept.chain[at];
        if allocation.split.is_none() {
            return false;
        }
        if mutated(Mutation::RaiseBeforeAck) {
            return true;
        }
        let before = at.checked_sub(1).and_then(|before| self.kept.chain.get(before));
        let is_lowered = |incarnation: Incarnation| {
            let weigh = |allocation: &Allocation| allocation.part(incarnation, 1 << 40, 0, true);
            before.is_none_or(|before| weigh(before).rate > weigh(allocation).rate)
        };
        let excused = |incarnation: Incarnation| {
            (mutated(Mutation::AskLoweredOnly) && !is_lowered(incarnation))
                || (mutated(Mutation::SkipSurvivorAck) && !allocation.fenced.is_empty())
        };
        allocation
            .asked()
            .all(|incarnation| allocation.acked.contains_key(&incarnation) || excused(incarnation))
    }

    /// The version that this node should acknowledge once it conforms: it lends nothing beyond its new
    /// shares, has dropped the loans that it held from closed incarnations, and uses [`Versions::share`].
    pub fn ack_due(&self) -> Option<VersionId> {
        let version = self.version()?;
        let asked = self.kept.chain.last().is_some_and(|allocation| allocation.asks(self.kept.me));
        let said = self.kept.own.is_some_and(|own| {
            (own.version_id, own.allocation, own.authority)
                == (version.version_id, version.allocation, version.authority)
        });
        (asked && !said).then_some(version.version_id)
    }

    /// Records that this node conforms to the version `version_id`, and returns whether that version was due.
    /// `wall_ns` is the latest time that its wall clock ever showed, before restarts too if the node knows.
    /// The acknowledgement becomes [`Versions::own_ack`] once the record is stored.
    pub fn conform(&mut self, version_id: VersionId, wall_ns: u64) -> bool {
        if self.ack_due() != Some(version_id) {
            return false;
        }
        let Some(version) = self.version() else { return false };
        // The clock may have been ahead before a restart, and be behind now. So may the clock of a fenced
        // incarnation, which may have used windows that start up to ε after it ended.
        let margin = if mutated(Mutation::NoClockMargin) { 0 } else { 2 * version.clock_error_ns };
        // Spared windows use older allocations, even if the clock was further ahead at the adoption than it
        // may be.
        let spared_ns = self.kept.spared.values().map(|spared| spared.before_wall_ns).max().unwrap_or(0);
        let latest = wall_ns.max(spared_ns).saturating_add(margin + 1);
        let (term, authority) = (version.allocation, version.authority);
        let from_wall_ns = match self.kept.own {
            // The allocation is unchanged, so the promised time holds.
            Some(own) if own.allocation == term && own.authority == authority => own.from_wall_ns,
            Some(own) => own.from_wall_ns.max(latest),
            None => latest,
        };
        self.kept.own = Some(Ack { version_id, allocation: term, from_wall_ns, authority });
        self.revision += 1;
        self.own_revision = self.revision;
        true
    }

    /// The acknowledgement that this node sends to everybody: its latest that is on disk.
    pub fn own_ack(&self) -> Option<Ack> {
        if mutated(Mutation::AckBeforeDurable) { self.kept.own } else { self.own_stored }
    }

    /// The known acknowledgements, to be passed on.
    pub fn acks(&self) -> impl Iterator<Item = (Incarnation, Ack)> + '_ {
        self.kept.acks.iter().map(|(&incarnation, &ack)| (incarnation, ack))
    }

    /// The allocations that may still apply, oldest first. A share is the least over those whose
    /// [`Until::applies`], except for windows that an allocation spares while an older one applies
    /// ([`Versions::spared`]).
    pub fn allocations(&self) -> &[Allocation] {
        &self.kept.chain
    }

    /// The windows to which an allocation does not apply while an older one does.
    pub fn spared(&self, allocation: &Allocation) -> Spared {
        self.kept.spared.get(&allocation.version_id).copied().unwrap_or_default()
    }

    /// An incarnation's part of a cell: the least over all allocations that apply, rate and units each.
    pub fn share(&self, incarnation: Incarnation, total: u64, salt: u32, kind: Kind) -> Part {
        if !self.owns(incarnation) {
            return Part::default();
        }
        let drift_ppm = self.version().map_or(0, |version| version.drift_ppm);
        let has_rate = matches!(kind, Kind::Bucket { .. });
        let mut is_oldest = true;
        let applying = self.kept.chain.iter().filter(|allocation| {
            let spares = !is_oldest && self.spared(allocation).spares(kind);
            let applies = !spares && allocation.until.applies(kind, drift_ppm);
            is_oldest &= !applies;
            applies
        });
        let parts = applying.map(|allocation| allocation.part(incarnation, total, salt, has_rate));
        let least = |a: Part, b: Part| Part { rate: a.rate.min(b.rate), units: a.units.min(b.units) };
        parts.reduce(least).unwrap_or_default()
    }

    /// The most that one node can give away of a cell of `total` units, whatever it says: the largest
    /// standing share of its region in any allocation of the chain. A region's share is the sum over its
    /// nodes, since each node may take from the region's pools. Nodes are of one region if their names begin
    /// alike, up to a `/`.
    pub fn stands_for_region_of(&self, region: MemberId, total: u64, salt: u32, has_rate: bool) -> Part {
        self.of_region(region, (total, salt, has_rate), u64::max)
    }

    /// The least standing share of a region in any allocation of the chain: any other node believes in at
    /// least so much.
    pub fn surely_stands_for_region_of(&self, region: MemberId, total: u64, salt: u32) -> u64 {
        self.of_region(region, (total, salt, false), u64::min).units
    }

    fn of_region(
        &self,
        region: MemberId,
        (total, salt, has_rate): (u64, u32, bool),
        pick: fn(u64, u64) -> u64,
    ) -> Part {
        let members = self.version().map(|version| &version.members);
        let named = members.and_then(|members| members.get(&region)?.region_name());
        let is_mate = |other: &MemberId, member: &Member| {
            *other == region || (named.is_some() && member.region_name() == named)
        };
        let of_region = members.into_iter().flatten().filter(|(other, member)| is_mate(other, member));
        let regions: Vec<MemberId> = of_region.map(|(other, _)| *other).collect();
        let splits = self.kept.chain.iter().filter_map(|allocation| allocation.split.as_ref());
        let parts = splits.map(|split| {
            let parts = regions.iter().map(|region| split.part(*region, total, salt, has_rate));
            parts.fold(Part::default(), |all, part| Part {
                rate: all.rate.saturating_add(part.rate),
                units: all.units.saturating_add(part.units),
            })
        });
        let picked = parts.reduce(|a, b| Part { rate: a.rate.max(b.rate), units: pick(a.units, b.units) });
        picked.unwrap_or_default()
    }

    /// Whether the adopted version names this incarnation. An incarnation that it does not name owns nothing.
    pub fn owns(&self, incarnation: Incarnation) -> bool {
        let named = self.kept.chain.last().is_some_and(|allocation| allocation.names(incarnation));
        named && (!self.closed(incarnation) || mutated(Mutation::TrustUnnamedIncarnation))
    }

    /// Whether this incarnation once had a share and never will again: its rows are refused.
    pub fn closed(&self, incarnation: Incarnation) -> bool {
        let highest = self.kept.closed.get(&(incarnation.member, incarnation.node));
        highest.is_some_and(|&highest| incarnation.number <= highest)
    }

    /// Spending from now on may count for `lasts`: every allocation in the chain records this. The caller
    /// calls this with the limits of each adopted version, before it writes the record.
    pub fn counts_for(&mut self, lasts: Lasts) {
        if mutated(Mutation::ForgetRemovedLimits) {
            return;
        }
        for allocation in &mut self.kept.chain {
            let longer = allocation.lasts.max(lasts);
            self.revision += u64::from(longer != allocation.lasts);
            allocation.lasts = longer;
        }
    }

    /// Forgets allocations that apply to nothing any more: neither to the present limits, whose times are
    /// `lasts`, nor to the limits in force while shares of the allocation were used.
    pub fn settle(&mut self, lasts: Lasts, now: Now) {
        let Some(version) = self.version() else { return };
        let (error, drift) = (version.clock_error_ns, version.drift_ppm);
        let splits = self.kept.chain.iter().filter_map(|allocation| allocation.split.as_ref());
        let least_rate = splits.map(Split::least_rate).min().unwrap_or(RATE_PARTS);
        let over = |allocation: &Allocation| match allocation.until {
            Until::Agreed => false,
            Until::Superseded { windows_wall_ns, steady_ns } => {
                let longest_ns = lasts.max(allocation.lasts).longest_ns(least_rate);
                now.wall_ns > windows_wall_ns.saturating_add(longest_ns).saturating_add(2 * error)
                    && now.steady_ns > steady_ns.saturating_add(stretched(longest_ns, drift))
            }
        };
        let before = self.kept.chain.len();
        self.kept.chain.retain(|allocation| !over(allocation));
        if self.kept.chain.len() != before {
            // Keep only the acknowledgements of incarnations that an allocation still asks.
            let chain = &self.kept.chain;
            self.kept
                .acks
                .retain(|&incarnation, _| chain.iter().any(|allocation| allocation.asks(incarnation)));
            self.kept
                .spared
                .retain(|version_id, _| chain.iter().any(|allocation| allocation.version_id == *version_id));
            self.revision += 1;
        }
    }

    /// Whether all who may hold something of a shared cell know that this node may too. They know once all
    /// have acknowledged an allocation that names this node, or if no allocation came before it.
    pub fn is_counted(&self) -> bool {
        let names = |at: usize| self.kept.chain[at].names(self.kept.me);
        (0..self.kept.chain.len()).any(|at| names(at) && (at == 0 || self.is_agreed(at)))
    }

    /// How far the adopted version has come; `None` without a version.
    pub fn progress(&self) -> Option<Progress> {
        let version = self.version()?;
        let newest = self.kept.chain.last()?;
        let effective = newest.asked().map(|incarnation| {
            self.kept.acks.get(&incarnation).map_or(VersionId::default(), |ack| ack.version_id)
        });
        let pending = newest.asked().filter_map(|incarnation| {
            let waiting = match self.kept.acks.get(&incarnation) {
                None => Waiting::Silent,
                Some(ack) if ack.version_id > version.version_id => Waiting::Ahead(ack.version_id),
                Some(ack)
                    if ack.version_id < version.version_id || !newest.acked.contains_key(&incarnation) =>
                {
                    Waiting::At(ack.version_id)
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
            term_requested: newest.version_id,
            term_effective: front.map_or(VersionId::default(), |allocation| allocation.version_id),
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
    fn has_left(&self, incarnation: Incarnation) -> bool {
        self.kept
            .chain
            .iter()
            .any(|allocation| !allocation.names(incarnation) && allocation.acked.contains_key(&incarnation))
    }

    /// Makes the next version, as the authority. The version is in force once adopted, here too. The version
    /// must be on this node's disk before it leaves: no id is given twice.
    ///
    /// # Errors
    /// The reason for the refusal. Nothing changes in any case.
    pub fn propose(&self, draft: Draft, wall_ns: u64) -> Result<Version, Refused> {
        self.make(draft, wall_ns, false)
    }

    /// Makes the next version with a new epoch, which makes this node the authority. An operator commands
    /// this to a member of the version that it has (rule 6), or to the authority itself if a second authority
    /// made versions of the same epoch.
    ///
    /// # Errors
    /// The reason for the refusal. Nothing changes in any case.
    pub fn take_over(&self, draft: Draft, wall_ns: u64) -> Result<Version, Refused> {
        self.make(draft, wall_ns, true)
    }

    fn make(&self, draft: Draft, wall_ns: u64, takes_over: bool) -> Result<Version, Refused> {
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
            lasts: self
                .kept
                .chain
                .iter()
                .map(|allocation| allocation.lasts)
                .fold(Lasts::default(), Lasts::max),
            limits: draft.limits,
            revoked: draft.revoked,
        };
        if let Some(held) = self.version() {
            self.follow(held, &mut version, takes_over)?;
        }
        // Allows for two clocks, each with the largest error.
        let latest = wall_ns.saturating_add(2 * version.clock_error_ns.min(CLOCK_ERROR_NS_MAX));
        if fences.iter().any(|fence| fence.wall_ns > latest) {
            return Err(Refused::Impossible("a fence in the future: what it says must be so already"));
        }
        possible(&version)?;
        Allocation::of(&version)?;
        Ok(version)
    }

    /// Fills in the fields that follow from the version before.
    fn follow(&self, held: &Version, version: &mut Version, takes_over: bool) -> Result<(), Refused> {
        let me = self.kept.me;
        if !self.owns(me) {
            return Err(Refused::Impossible("an authority that is no member"));
        }
        if version.members.values().any(|member| self.closed(member.incarnation)) {
            return Err(Refused::Impossible("a member that is closed: it comes back as a later incarnation"));
        }
        if version.key != held.key {
            return Err(Refused::Impossible("another key: cells would be shared in another order"));
        }
        if held.authority != me && !takes_over {
            return Err(Refused::Authority(held.version_id));
        }
        let next =
            (held.version_id.epoch.checked_add(u32::from(takes_over)), held.version_id.number.checked_add(1));
        let (Some(epoch), Some(number)) = next else {
            return Err(Refused::Impossible("version ids have run out"));
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
        if self.kept.chain.len() >= TERMS_MAX {
            return Err(Refused::Busy);
        }
        version.allocation = version.version_id;
        let is_fenced =
            |incarnation: &Incarnation| version.fenced.iter().any(|fence| fence.incarnation == *incarnation);
        let named = |incarnation: &Incarnation| {
            version.members.get(&incarnation.member).is_some_and(|m| m.incarnation == *incarnation)
        };
        let gone = held.leaving.iter().copied().filter(|incarnation| !self.has_left(*incarnation));
        let going =
            held.members.values().map(|member| member.incarnation).filter(|incarnation| !named(incarnation));
        let leaving: BTreeSet<Incarnation> =
            gone.chain(going).filter(|incarnation| !is_fenced(incarnation)).collect();
        if !mutated(Mutation::ForgetLeavers) {
            version.leaving = leaving;
        }
        Ok(())
    }
}

/// Whether a version makes sense by itself.
fn possible(version: &Version) -> Result<(), Refused> {
    let named = |incarnation: &Incarnation| {
        version.members.get(&incarnation.member).is_some_and(|m| m.incarnation == *incarnation)
    };
    let fenced: BTreeSet<Incarnation> = version.fenced.iter().map(|fence| fence.incarnation).collect();
    let faults = [
        (
            version.version_id < VersionId::FIRST || version.version_id.epoch == 0,
            "a version id below the first",
        ),
        (
            version.allocation > version.version_id || version.allocation.epoch != version.version_id.epoch,
            "an allocation that is not of its epoch",
        ),
        (!named(&version.authority), "an authority that is no member"),
        (
            version.members.iter().any(|(region, m)| m.incarnation.member != *region),
            "a member that writes for another region",
        ),
        (version.members.values().any(|m| m.name.len() > NAME_BYTES_MAX), "a region's name is too long"),
        (
            version.leaving.iter().any(named) || fenced.iter().any(named),
            "an incarnation that is a member and gone",
        ),
        (
            version.leaving.iter().any(|incarnation| fenced.contains(incarnation)),
            "an incarnation that is fenced and leaving",
        ),
        (fenced.len() != version.fenced.len(), "an incarnation that is fenced twice"),
        (version.leaving.len() > GONE_MAX || fenced.len() > GONE_MAX, "too many writers are gone"),
        (version.clock_error_ns > CLOCK_ERROR_NS_MAX, "a clock error of more than a minute"),
        (version.drift_ppm > DRIFT_PPM_MAX, "a drift of more than a tenth"),
        (version.limits.len() > LIMITS_BYTES_MAX, "the limits are too long"),
        (version.revoked.len() > REVOKED_MAX, "more certificates are revoked than can be remembered"),
    ];
    match faults.into_iter().find(|(fault, _)| *fault) {
        Some((_, what)) => Err(Refused::Impossible(what)),
        None => Ok(()),
    }
}
