//! Which version of the catalogue a node works by. **Whatever versions the nodes have heard of, the shares that
//! they use of one cell never sum to more than the largest budget among them**: true, or a bug.
//!
//! The crate's words: a *version* is everything that the authority decides, under a [`Mark`] that only grows. A
//! *term* is a distribution of shares: which writers, which weights. Most versions change budgets only and keep
//! the term; a version whose members, weights, leavers, fences or epoch differ begins a new one, and its mark is
//! the term's name. A node's *chain* is the terms that it adopted, oldest first.
//!
//! # Rules
//! 1. A node adopts a version only if its mark is above that of the version it has, and appends its term, if that
//!    is new, to its chain. A node that begins with any version but the very first begins with the empty term,
//!    in which nobody has anything.
//! 2. A share is the least of those in the terms of the chain that still apply. A writer has a share in a term only
//!    if the term names it, incarnation and all. Budgets are those of the adopted version, at once. Where an older term
//!    applies to a window, a term does not that *spares* it ([`Spared`]): the window began before the node adopted the
//!    term, that with the very version which begins it; and it is no longer than that version says that anything lasts. So
//!    what a new distribution moves is used by who had it until open windows end, and not by nobody.
//! 3. A writer acknowledges a term once everything it does conforms to it, and only what is on its disk. With it goes
//!    a wall time: the latest that its clock showed, and 2ε. No window that starts later was used before, by itself or
//!    by anybody who was fenced before. It is later than all that the writer's terms spare.
//! 4. A term is *agreed* to a node's knowledge when **every** member and every leaver of it acknowledged **that very
//!    term**; its older terms are then *superseded*. They go on applying to windows that start before the latest
//!    of the acknowledgements' times, and to everything else for one horizon (stretched by the drift) from when the
//!    node learned it, or from its restart. A node forgets a term only when that is over for *every* limit that was in
//!    force under it, even one that a later version removed: it may come back, and what others spent under it counts
//!    still. So every term remembers on disk how long that may last ([`Lasts`]).
//! 5. The authority drops a writer from the members only into the leavers, whence it goes once it acknowledged a term
//!    that does not name it, or into the fenced, of which an operator asserts that they do nothing any more.
//! 6. A new authority is a member of the version it has, begins a new epoch and with it a new term. A node that
//!    adopted a version of an epoch refuses lower epochs for ever.
//!
//! # Theorem
//! Take a cell, an instant (for a window: the window; for sliding windows and debts: the horizon up to the instant),
//! and of every writer the largest share that it used then. Their sum is at most the largest budget that any of
//! them used.
//!
//! *Proof.* Call a node's oldest term that applies its front, and let F be the newest front of any node with a share.
//! If F is the very first term, every node with a share has it in its chain and it applies there (a node that began
//! later began with the empty term, and that is its front until something newer is agreed). Otherwise F was agreed,
//! by rule 4 every member and leaver acknowledged F itself, and by rule 3 had it in its chain on its disk before
//! anything that is counted here: for windows, those that start at or after the acknowledged time; for the rest,
//! since a horizon before F could be anybody's front. F still applies at each of them, since no front is newer, and spares
//! nothing that is counted here (see below). By
//! rule 2 each uses at most its share in F of its own budget. A writer that F does not know either left, and by
//! rule 5 acknowledged a term older than F without itself, which is in its chain, so it uses nothing; or is fenced,
//! and ended before F was made, so before F's authority acknowledged it: its clock was at most ε ahead, the
//! authority's at most ε behind, so by rule 3 the window starts after anything that it used, and the horizon began
//! after it ended; or it is named only by versions of
//! an authority that the one of F never heard of. That is possible only if F's epoch is later (rule 6), its authority
//! was a member before, and had to acknowledge what named the unknown writer before that could be its front; but it
//! did not, so the unknown writer still has the empty term, and uses nothing. So all that is used are shares in F,
//! of different budgets. Shares never fall when the budget grows ([`Split::units`]), so their sum is at most the sum
//! of the shares in F of the largest budget, which is that budget. ∎
//!
//! *A term that spares a window is nobody's front for it.* Let a node `a` have adopted T, which begins with version v, by v
//! itself, when its clock showed `s`, and let window W have begun before `s`. T is the front only where older terms are
//! superseded or forgotten: the very first term spares nothing, having none before it, and whoever joined or had too many has
//! the empty one before T. Where a newer term supersedes them it supersedes T as well, from the same time on; where T does,
//! it is for windows that start after what `a` acknowledged T with, which by rule 3 is later than `s`. They are forgotten
//! when that and the longest of what lasts are over. Whoever adopts T has P, the term before it, as the last of its chain
//! until then, which is never forgotten, or has none of it; with T it adopts, for P too, at least what v says that anything lasts,
//! whichever version of T it is, since within a term an authority only adds to that. So W, which is no longer, is over
//! by every clock. If `a` is not asked to acknowledge a newer front, it has left, and uses nothing since, or is fenced; of
//! both that term's authority had heard when it acknowledged, so it is for windows that start after all that `a` used. ∎
//!
//! # Why not less
//! Asking only the regions that a term lowers, or counting an acknowledgement of a later term for an earlier one, looks
//! sufficient and is not: versions may be skipped. Of three versions, let the second move ten units from Z to X and
//! the third the same ten from X to B. B, having skipped the second, sees that only Z is lowered, has Z's word and
//! takes ten; X, having Z's word too and never having heard of the third, took the same ten. `tests/versions.rs`
//! finds such histories.
//!
//! What this file does not know: limits (bytes here), how messages travel, when to evict, and what conforming takes.

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

/// The most terms in a chain. An authority with so many refuses to make another; a node that hears of more takes the
/// oldest together as the empty term (see [`Versions::adopt`]).
pub const TERMS_MAX: usize = 64;
/// The most leavers, and the most fences, in a version.
pub const GONE_MAX: usize = 64;
/// The most bytes of limits in a version: it travels in one message.
pub const LIMITS_BYTES_MAX: usize = 1 << 20;
/// The most certificates that are revoked at a time.
pub const REVOKED_MAX: usize = 1_024;
/// The most bytes in a region's name: it is a metric label.
pub const NAME_BYTES_MAX: usize = 128;
/// The most writers of which a node remembers that they are closed: one for each eviction there ever was.
pub const CLOSED_MAX: usize = 4_096;
/// How far above the version that it has a node adopts another: so many epochs, and so many numbers. Both count up one by one; a mark
/// that is further away is nobody's, and would leave little room for those that follow.
pub const EPOCHS_AHEAD_MAX: u32 = 1 << 16;
/// See [`EPOCHS_AHEAD_MAX`].
pub const NUMBERS_AHEAD_MAX: u64 = 1 << 32;
/// How far ahead of a node's wall an acknowledgement may say that windows begin which nobody used before: clocks are not further off.
pub const ACK_AHEAD_NS_MAX: u64 = 2 * 86_400 * 1_000_000_000;
/// The largest clock error, a minute: a larger one is a broken clock.
pub const CLOCK_ERROR_NS_MAX: u64 = 60 * 1_000_000_000;
/// The largest drift, a tenth.
pub const DRIFT_PPM_MAX: u32 = 100_000;

/// Which version. Grows with every version, across authorities by the epoch.
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

/// A region that has a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its weight among the others.
    pub weight: u32,
    /// Who speaks for it.
    pub incarnation: Incarnation,
    /// `region/node`, for people, and to know which members are nodes of one region. May be empty: of a region with one node.
    pub name: String,
}

impl Member {
    /// The region that its name tells, if it tells one.
    fn region_name(&self) -> Option<&str> {
        self.name.split_once('/').map(|(region, _)| region)
    }
}

/// An operator's word that a writer does nothing any more: its process is gone, its traffic cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fence {
    /// Which writer.
    pub incarnation: Incarnation,
    /// Since when at the latest, by the operator's clock: for the record. Before the version was made in any case, and
    /// that is what counts: the authority's own acknowledgement comes later.
    pub wall_ns: u64,
}

/// The secret that cells' tags and salts are made with. It never changes: with another, a cell's units would
/// begin at another region, and two nodes could both have the first.
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
    /// Which one.
    pub version_id: VersionId,
    /// The version with which its distribution began: its own mark, or an earlier one of the epoch.
    pub allocation: VersionId,
    /// Whose word it is.
    pub authority: Incarnation,
    /// Who has a share.
    pub members: BTreeMap<MemberId, Member>,
    /// Who had one, is alive, and has not yet been heard to have given it up.
    pub leaving: BTreeSet<Incarnation>,
    /// Who had one before this term, and does nothing any more.
    pub fenced: Vec<Fence>,
    /// No clock is further than this from true time: ε.
    pub clock_error_ns: u64,
    /// No clock runs faster or slower than true time by more than this: D.
    pub drift_ppm: u32,
    /// Of the cells. The same in all versions.
    pub key: CellKey,
    /// How long what was spent before it may count, of any limit that the authority knew meanwhile: a region that joins
    /// has not heard of those that were removed, and they may come back.
    pub lasts: Lasts,
    /// The limits, as the node reads them.
    pub limits: Vec<u8>,
    /// Certificates that nobody believes any more, by the SHA-256 of each in DER.
    pub revoked: BTreeSet<[u8; 32]>,
}

/// What an authority wants changed; the rest of a version follows from the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Who is to have a share.
    pub members: BTreeMap<MemberId, Member>,
    /// Fences that the operator asserts, of writers that are no member any more.
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

/// A writer's word that it conforms to a version. A register that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ack {
    /// The version: to its budgets.
    pub version_id: VersionId,
    /// The version's term: to its shares.
    pub term: VersionId,
    /// No window that starts then or later was used before the term was in the writer's chain.
    pub from_wall_ns: u64,
    /// Whose version, should two call themselves the authority of one epoch.
    pub authority: Incarnation,
}

/// What became of a version that was adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// It is the one that the node has.
    Known,
    /// It is new.
    New {
        /// Whether shares are distributed anew, so that the node must conform and acknowledge.
        redistributes: bool,
        /// Writers whose rows are refused from now on: what was held from them is dropped before acknowledging.
        closed: Vec<Incarnation>,
    },
}

/// A version that was not adopted or not made. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Normal where messages are late.
    #[error("version {0:?} is not above {1:?}, which this node has")]
    Older(VersionId, VersionId),
    /// No version of this cluster is so far away.
    #[error(
        "version {0:?} is further above {1:?}, which this node has, than any authority gets: revoke the certificate that signed it"
    )]
    Far(VersionId, VersionId),
    /// Two authorities, or one that was restored from a backup.
    #[error(
        "there are two versions {0:?}: is there a second authority? Evict one and take over with a new epoch"
    )]
    Conflict(VersionId),
    /// Another authority without a new epoch.
    #[error("version {0:?} is of another authority, which must begin a new epoch")]
    Authority(VersionId),
    /// It contradicts itself or what is known.
    #[error("impossible version: {0}")]
    Impossible(&'static str),
    /// The weights are impossible.
    #[error(transparent)]
    Split(#[from] SplitFault),
    /// Too many changes of the distribution are under way.
    #[error("{TERMS_MAX} distributions are still in use: see who is pending, and wait or evict")]
    Busy,
}

/// What became of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// It says more than was known.
    New,
    /// Nothing new.
    Known,
    /// The writer is none that the adopted version asks, or its clock is days ahead. It will say so again.
    Unasked,
}

/// What a share is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A fixed window or a calendar period.
    Window {
        /// When it starts, by the wall.
        start_wall_ns: u64,
        /// For how long at most what is spent in it counts: as in [`Lasts::windows_ns`].
        lasts_ns: u64,
    },
    /// A sliding window.
    Sliding {
        /// Now.
        steady_ns: u64,
        /// How long what was spent counts, by a true clock.
        horizon_ns: u64,
    },
    /// A bucket.
    Bucket {
        /// Now.
        steady_ns: u64,
        /// How long the slowest part drains, by a true clock: see [`Split::slowest`].
        horizon_ns: u64,
    },
}

/// How long a term limits shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Until {
    /// Until a later one is agreed: nobody knows when.
    Agreed,
    /// A later one is agreed.
    Superseded {
        /// It goes on for windows that start before this.
        windows_wall_ns: u64,
        /// For all else it goes on for a stretched horizon after this, on this process's steady clock.
        steady_ns: u64,
    },
}

impl Until {
    /// Whether a term still applies. `drift_ppm` stretches the horizon.
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

/// Windows to which a term does not apply where an older one does: rule 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spared {
    /// They began before this: when the node adopted the term, by the wall.
    pub before_wall_ns: u64,
    /// They are of limits that last no longer: what whoever adopts the term knows of, at least.
    pub lasts_ns: u64,
}

impl Spared {
    /// Whether it is one of them.
    #[inline]
    pub fn spares(self, kind: Kind) -> bool {
        let Kind::Window { start_wall_ns, lasts_ns } = kind else { return false };
        let is_known = lasts_ns <= self.lasts_ns || mutated(Mutation::SparesUnheardOf);
        is_known && (start_wall_ns < self.before_wall_ns || mutated(Mutation::SparesWhatFollows))
    }
}

/// A time by one clock in which every other clock has seen `ns` pass: (1 + D)/(1 − D) of it, rounded up.
pub fn stretched(ns: u64, drift_ppm: u32) -> u64 {
    let (million, drift) = (1_000_000_u128, u128::from(drift_ppm.min(DRIFT_PPM_MAX)));
    let stretched = (u128::from(ns) * (million + drift)).div_ceil(million - drift);
    u64::try_from(stretched).unwrap_or(u64::MAX)
}

/// How long what is spent under some limits may count: the longest of any of them, by a true clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lasts {
    /// Of windows, sliding ones too, in nanoseconds.
    pub windows_ns: u64,
    /// Of buckets, in nanoseconds: how long one of the whole limit's rate drains. A region's part may take longer.
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

    /// The longest of all, where no region drains slower than `least_rate` parts of the whole.
    fn longest_ns(self, least_rate: u32) -> u64 {
        let parts = u64::from(RATE_PARTS.div_ceil(least_rate.max(1)));
        self.windows_ns.max(self.drains_ns.saturating_mul(parts))
    }
}

/// A distribution of shares in a node's chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// The version that it began with. That of the empty term is below every version's.
    pub version_id: VersionId,
    /// Nothing in the empty term.
    pub split: Option<Split>,
    /// How long it applies.
    pub until: Until,
    /// How long what was spent under it may count, of any limit that was in force meanwhile.
    pub lasts: Lasts,
    authority: Option<Incarnation>,
    incarnations: BTreeMap<MemberId, Incarnation>,
    leaving: BTreeSet<Incarnation>,
    fenced: Vec<Fence>,
    /// Who acknowledged this very term, and from when.
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

    /// Whether a writer has a share in it.
    #[inline]
    pub fn names(&self, incarnation: Incarnation) -> bool {
        let named = self.incarnations.get(&incarnation.member);
        named == Some(&incarnation) || (mutated(Mutation::TrustUnnamedIncarnation) && named.is_some())
    }

    /// A writer's part of a cell in it.
    #[inline]
    pub fn part(&self, incarnation: Incarnation, total: u64, salt: u32, has_rate: bool) -> Part {
        match &self.split {
            Some(split) if self.names(incarnation) => split.part(incarnation.member, total, salt, has_rate),
            _ => Part::default(),
        }
    }

    /// Who must acknowledge it: its members and leavers.
    fn asked(&self) -> impl Iterator<Item = Incarnation> + '_ {
        self.incarnations.values().chain(&self.leaving).copied()
    }

    fn asks(&self, incarnation: Incarnation) -> bool {
        self.incarnations.get(&incarnation.member) == Some(&incarnation)
            || self.leaving.contains(&incarnation)
    }

    /// What a term may not change while it keeps its name.
    fn same_distribution(&self, other: &Self) -> bool {
        (self.authority, &self.split, &self.incarnations, &self.leaving, &self.fenced)
            == (other.authority, &other.split, &other.incarnations, &other.leaving, &other.fenced)
    }
}

/// Why a writer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It never acknowledged anything.
    Silent,
    /// It acknowledged an earlier version, so it lends or uses more, or has not heard of this one.
    At(VersionId),
    /// It acknowledged a version that this node has not heard of.
    Ahead(VersionId),
}

/// How far the adopted version has come, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The version that this node adopted.
    pub requested: VersionId,
    /// Everybody conforms to the budgets of the versions up to this.
    pub effective: VersionId,
    /// The distribution that this node adopted.
    pub term_requested: VersionId,
    /// The distribution that shares are raised to.
    pub term_effective: VersionId,
    /// Who has not acknowledged the adopted version, and how far it is.
    pub pending: Vec<(Incarnation, Waiting)>,
    /// Who leaves and has not yet said that it gave its share up, while it was no member any more.
    pub leavers: BTreeSet<Incarnation>,
    /// Shares that were superseded still limit windows that begin before this, by the wall: the latest date at which anybody said that
    /// it may go by them. 0 where there are none.
    pub older_until_ns: u64,
}

/// What must be on disk: all of it, before an acknowledgement counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionsRecord {
    me: Incarnation,
    register: Option<LWWReg<Version, VersionId>>,
    /// Oldest first.
    chain: Vec<Allocation>,
    acks: BTreeMap<Incarnation, Ack>,
    /// By region and node: this and earlier incarnations.
    closed: BTreeMap<(MemberId, u16), u32>,
    /// The latest own acknowledgement.
    own: Option<Ack>,
    /// What the terms of the chain spare, by their names. The last field: disks written without it lack its end only.
    spared: BTreeMap<VersionId, Spared>,
}

impl VersionsRecord {
    /// What disks lack that were written before terms spared anything: `postcard` of none.
    pub const NONE_SPARED: [u8; 1] = [0];
}

/// One node's view of the catalogue's versions.
#[derive(Clone, Debug)]
pub struct Versions {
    kept: VersionsRecord,
    /// Counts the changes to what is kept.
    revision: u64,
    /// The own acknowledgement of `kept` was made with this revision.
    own_revision: u64,
    /// The own acknowledgement that is on disk.
    own_stored: Option<Ack>,
}

impl Versions {
    /// The view of a node that never had a catalogue. It owns nothing.
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

    /// The view of a node that was started again. Waits start anew: the steady clock is another one, and how long
    /// the process was away is not known.
    pub fn restore(mut kept: VersionsRecord, now: Now) -> Self {
        for allocation in &mut kept.chain {
            if let Until::Superseded { steady_ns, .. } = &mut allocation.until
                && !mutated(Mutation::RestartKeepsWaits)
            {
                *steady_ns = now.steady_ns;
            }
        }
        let mut versions = Self { kept, revision: 0, own_revision: 0, own_stored: None };
        // What is kept was written before the acknowledgement in it counted.
        versions.stored(0, now);
        versions
    }

    /// What must be on disk.
    pub fn kept(&self) -> &VersionsRecord {
        &self.kept
    }

    /// Grows whenever [`Versions::kept`] changes.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// What was kept at a revision is on disk: the acknowledgement in it may leave, and counts here too.
    pub fn stored(&mut self, revision: u64, now: Now) {
        if revision >= self.own_revision
            && let Some(own) = self.kept.own
            && self.own_stored != Some(own)
        {
            self.own_stored = Some(own);
            self.join(self.kept.me, own, now);
        }
    }

    /// Who this node is.
    pub fn me(&self) -> Incarnation {
        self.kept.me
    }

    /// The adopted version.
    pub fn version(&self) -> Option<&Version> {
        self.kept.register.as_ref().map(|register| &register.val)
    }

    /// Adopts a version, if it is above the one that this node has. Versions in between may be missing.
    ///
    /// Should the chain be full, its oldest terms become the empty term together: nobody has anything in that, so
    /// it is at most what they were, and shares are what they must be again once the newest is agreed.
    ///
    /// # Errors
    /// Why not. Nothing changed.
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
        // Later versions of the term may say that more lasts, when others have forgotten older terms already.
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

    /// The writers that a version closes: whom the node knew and it does not name.
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

    /// Whether an acknowledgement of another writer counts for anything: a distribution that still matters asks for it.
    pub fn asks(&self, incarnation: Incarnation) -> bool {
        incarnation != self.kept.me && self.kept.chain.iter().any(|allocation| allocation.asks(incarnation))
    }

    /// Hears a writer's acknowledgement, from itself or by way of others.
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
        // An earlier acknowledgement that arrives late is worth something too.
        let credited = self.credit(incarnation, ack) | self.credit(incarnation, more);
        if !new && !credited {
            return Learned::Known;
        }
        self.supersede(now);
        self.revision += 1;
        Learned::New
    }

    /// Counts an acknowledgement for the very term that it names.
    fn credit(&mut self, incarnation: Incarnation, ack: Ack) -> bool {
        let mut credited = false;
        for allocation in &mut self.kept.chain {
            let names_it = allocation.version_id == ack.term && allocation.authority == Some(ack.authority);
            let counts = names_it || (mutated(Mutation::LaterAckCounts) && allocation.version_id <= ack.term);
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

    /// Supersedes what is older than the newest term that is agreed.
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

    /// The version that this node should acknowledge, once it conforms: it lends nothing beyond its new shares, has
    /// dropped what it held from closed writers, and uses [`Versions::share`].
    pub fn ack_due(&self) -> Option<VersionId> {
        let version = self.version()?;
        let asked = self.kept.chain.last().is_some_and(|allocation| allocation.asks(self.kept.me));
        let said = self.kept.own.is_some_and(|own| {
            (own.version_id, own.term, own.authority)
                == (version.version_id, version.allocation, version.authority)
        });
        (asked && !said).then_some(version.version_id)
    }

    /// This node conforms to the version `mark`. `wall_ns` is the latest that its wall clock ever showed to it, before
    /// restarts too if it knows. The acknowledgement is [`Versions::own_ack`] once this is stored. Says whether `mark`
    /// was due.
    pub fn conform(&mut self, version_id: VersionId, wall_ns: u64) -> bool {
        if self.ack_due() != Some(version_id) {
            return false;
        }
        let Some(version) = self.version() else { return false };
        // The clock may have been ahead before a restart, and be behind now; and so may that of a fenced writer, which
        // may have used what starts up to ε after it ended.
        let margin = if mutated(Mutation::NoClockMargin) { 0 } else { 2 * version.clock_error_ns };
        // What terms spare is used by older ones, though the clock was further ahead when they were adopted than it may be.
        let spared_ns = self.kept.spared.values().map(|spared| spared.before_wall_ns).max().unwrap_or(0);
        let latest = wall_ns.max(spared_ns).saturating_add(margin + 1);
        let (term, authority) = (version.allocation, version.authority);
        let from_wall_ns = match self.kept.own {
            // The same term: what was promised holds.
            Some(own) if own.term == term && own.authority == authority => own.from_wall_ns,
            Some(own) => own.from_wall_ns.max(latest),
            None => latest,
        };
        self.kept.own = Some(Ack { version_id, term, from_wall_ns, authority });
        self.revision += 1;
        self.own_revision = self.revision;
        true
    }

    /// What this node tells everybody: its latest acknowledgement that is on disk.
    pub fn own_ack(&self) -> Option<Ack> {
        if mutated(Mutation::AckBeforeDurable) { self.kept.own } else { self.own_stored }
    }

    /// The acknowledgements that are known, to be passed on.
    pub fn acks(&self) -> impl Iterator<Item = (Incarnation, Ack)> + '_ {
        self.kept.acks.iter().map(|(&incarnation, &ack)| (incarnation, ack))
    }

    /// The terms that may still apply, oldest first. A share is the least over those whose [`Until::applies`], but for what they
    /// spare where an older one applies ([`Versions::spared`]).
    pub fn allocations(&self) -> &[Allocation] {
        &self.kept.chain
    }

    /// The windows to which a term does not apply where an older one does.
    pub fn spared(&self, allocation: &Allocation) -> Spared {
        self.kept.spared.get(&allocation.version_id).copied().unwrap_or_default()
    }

    /// A writer's part of a cell: the least in every term that applies, rate and units each.
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

    /// The most that one node can give away of a cell of so many units, whatever it says: what stands for its region in any of the
    /// distributions that still matter. A region with several nodes has what they have together, since each may take of its pools;
    /// its nodes are those whose names begin alike, up to a `/`.
    pub fn stands_for_region_of(&self, region: MemberId, total: u64, salt: u32, has_rate: bool) -> Part {
        self.of_region(region, (total, salt, has_rate), u64::max)
    }

    /// The least that stands for a region in any of those distributions: as much as any other node believes of it.
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

    /// Whether the adopted version names this writer. One that it does not name owns nothing.
    pub fn owns(&self, incarnation: Incarnation) -> bool {
        let named = self.kept.chain.last().is_some_and(|allocation| allocation.names(incarnation));
        named && (!self.closed(incarnation) || mutated(Mutation::TrustUnnamedIncarnation))
    }

    /// Whether this writer once had a share and never will again: its rows are refused.
    pub fn closed(&self, incarnation: Incarnation) -> bool {
        let highest = self.kept.closed.get(&(incarnation.member, incarnation.node));
        highest.is_some_and(|&highest| incarnation.number <= highest)
    }

    /// What is spent from now on may count for so long: every term in the chain remembers it. To be called with the limits
    /// of each version that is adopted, before that is kept.
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

    /// Forgets terms that apply to nothing any more: neither to limits that there are now, whose `lasts` this is, nor to
    /// those that there were when shares of the term were used.
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
            // Only writers that are still asked are worth remembering.
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

    /// Whether everybody who may have something of what is shared knows that this node may: all have acknowledged a distribution that
    /// names it, or there was none before.
    pub fn is_counted(&self) -> bool {
        let names = |at: usize| self.kept.chain[at].names(self.kept.me);
        (0..self.kept.chain.len()).any(|at| names(at) && (at == 0 || self.is_agreed(at)))
    }

    /// How far the adopted version has come. Nothing where there is none.
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

    /// Whether a writer has acknowledged a term that does not name it.
    fn has_left(&self, incarnation: Incarnation) -> bool {
        self.kept
            .chain
            .iter()
            .any(|allocation| !allocation.names(incarnation) && allocation.acked.contains_key(&incarnation))
    }

    /// The next version, made by this node as the authority. It is in force once adopted, here too, and must be on this
    /// node's disk before it leaves: a mark is never given twice.
    ///
    /// # Errors
    /// Why not. Nothing changes in any case.
    pub fn propose(&self, draft: Draft, wall_ns: u64) -> Result<Version, Refused> {
        self.make(draft, wall_ns, false)
    }

    /// The same with a new epoch, by which this node becomes the authority: an operator's command to a member of the
    /// version that it has (see rule 6). Also to the authority itself, should a second one have made versions of the
    /// same epoch.
    ///
    /// # Errors
    /// Why not. Nothing changes in any case.
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
        // Two clocks, each wrong by as much as it may be.
        let latest = wall_ns.saturating_add(2 * version.clock_error_ns.min(CLOCK_ERROR_NS_MAX));
        if fences.iter().any(|fence| fence.wall_ns > latest) {
            return Err(Refused::Impossible("a fence in the future: what it says must be so already"));
        }
        possible(&version)?;
        Allocation::of(&version)?;
        Ok(version)
    }

    /// Fills in what follows from the version before.
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
        let (Some(epoch), Some(number)) = next else { return Err(Refused::Impossible("marks have run out")) };
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
        (version.version_id < VersionId::FIRST || version.version_id.epoch == 0, "a mark below the first"),
        (
            version.allocation > version.version_id || version.allocation.epoch != version.version_id.epoch,
            "a term that is not of its epoch",
        ),
        (!named(&version.authority), "an authority that is no member"),
        (
            version.members.iter().any(|(region, m)| m.incarnation.member != *region),
            "a member that writes for another region",
        ),
        (version.members.values().any(|m| m.name.len() > NAME_BYTES_MAX), "a region's name is too long"),
        (version.leaving.iter().any(named) || fenced.iter().any(named), "a writer that is a member and gone"),
        (
            version.leaving.iter().any(|incarnation| fenced.contains(incarnation)),
            "a writer that is fenced and leaving",
        ),
        (fenced.len() != version.fenced.len(), "a writer that is fenced twice"),
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
