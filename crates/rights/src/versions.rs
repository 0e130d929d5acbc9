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

mod acks;
mod allocation;
mod authority;
mod before;
mod progress;
mod share;
mod version;

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::{Now, RATE_PARTS};
use crdts::LWWReg;
use serde::{Deserialize, Serialize};

pub use self::{
    acks::{ACK_AHEAD_NS_MAX, Ack, Learned},
    allocation::{Allocation, Lasts, ShareKind, Spared, Until, stretched},
    authority::Draft,
    before::KeptBefore,
    progress::{Progress, WaitReason},
    version::{
        CLOCK_ERROR_NS_MAX, CellSecret, DRIFT_PPM_MAX, Fence, GONE_MAX, LIMITS_BYTES_MAX, Member,
        NAME_BYTES_MAX, REVOKED_MAX, Version, VersionId,
    },
};
use crate::{
    identity::{Incarnation, MemberId},
    mutation::{Mutation, mutated},
    standing::{Split, SplitFault},
};

/// The most allocations in a chain. An authority with so many refuses to make another; a node that hears of
/// more replaces its chain by the empty allocation (see [`Versions::adopt`]).
pub const ALLOCATIONS_MAX: usize = 64;
/// The most closed incarnations that a node remembers: one for each eviction there ever was.
pub const CLOSED_MAX: usize = 4_096;
/// The most epochs by which an adopted version may be above the node's own. Epochs and numbers count up one
/// by one. An id that is further away comes from no authority, and would leave little room for the ids that
/// follow.
pub const EPOCHS_AHEAD_MAX: u32 = 1 << 16;
/// The most version numbers by which an adopted version may be above the node's own: see
/// [`EPOCHS_AHEAD_MAX`].
pub const NUMBERS_AHEAD_MAX: u64 = 1 << 32;

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
pub enum VersionRefused {
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
    #[error("{ALLOCATIONS_MAX} distributions are still in use: see who is pending, and wait or evict")]
    Busy,
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
            if let Until::Superseded { steady_ns, .. } = &mut allocation.until {
                *steady_ns = wait_from_restart(*steady_ns, now);
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
    pub fn adopt(&mut self, version: Version, now: Now) -> Result<Adopted, VersionRefused> {
        version.check()?;
        self.check_near(version.version_id)?;
        let allocation = Allocation::of(&version)?;
        if let Some(held) = self.version() {
            if version == *held {
                return Ok(Adopted::Known);
            }
            if version.version_id == held.version_id {
                return Err(VersionRefused::Conflict(version.version_id));
            }
            check_later(&version, held)?;
            if version.key != held.key {
                return Err(VersionRefused::Impossible(
                    "another key: cells would be shared in another order",
                ));
            }
        }
        let known = self.kept.chain.iter().find(|known| known.version_id == allocation.version_id);
        if known.is_some_and(|known| !known.same_distribution(&allocation)) {
            return Err(VersionRefused::Impossible("a distribution that changed without a new name"));
        }
        let redistributes = known.is_none();
        let closed = self.closed_by(&version);
        if self.kept.closed.len() + closed.len() > CLOSED_MAX {
            return Err(VersionRefused::Impossible("more writers than can be remembered are gone"));
        }

        if redistributes {
            self.append(allocation, &version, now);
        }
        for incarnation in &closed {
            let highest = self.kept.closed.entry((incarnation.member, incarnation.node)).or_default();
            *highest = incarnation.number.max(*highest);
        }
        self.counts_for(version.lasts);
        let marker = version.version_id;
        self.kept.register = Some(LWWReg { val: version, marker });
        for (incarnation, ack) in self.kept.acks.clone() {
            self.credit(incarnation, ack);
        }
        self.supersede(now);
        self.revision += 1;
        Ok(Adopted::New { redistributes, closed })
    }

    /// Refuses an id that is further above this node's own than any authority gets.
    fn check_near(&self, version_id: VersionId) -> Result<(), VersionRefused> {
        let held = self.version().map_or_else(VersionId::default, |held| held.version_id);
        let is_far = version_id.epoch.saturating_sub(held.epoch) > EPOCHS_AHEAD_MAX
            || version_id.number.saturating_sub(held.number) > NUMBERS_AHEAD_MAX;
        if is_far { Err(VersionRefused::Far(version_id, held)) } else { Ok(()) }
    }

    /// Appends an allocation to the chain, which spares the windows that are open.
    fn append(&mut self, allocation: Allocation, version: &Version, now: Now) {
        let lasts = self.lasts();
        let chain = &mut self.kept.chain;
        if begins_with_empty(chain, version.version_id) {
            chain.push(Allocation::empty(lasts));
        }
        if chain.len() >= ALLOCATIONS_MAX {
            chain.clear();
            chain.push(Allocation::empty(lasts));
        }
        // A later version of the allocation may name longer times, when others have forgotten older
        // allocations already.
        if version.version_id == version.allocation && !chain.is_empty() {
            let spared = Spared { before_wall_ns: now.wall_ns, lasts_ns: version.lasts.windows_ns };
            self.kept.spared.insert(allocation.version_id, spared);
        }
        self.kept.chain.push(allocation);
        self.forget_spared();
    }

    /// Forgets the spared windows of allocations that the chain has no more.
    fn forget_spared(&mut self) {
        let chain = &self.kept.chain;
        let has =
            |version_id: &VersionId| chain.iter().any(|allocation| allocation.version_id == *version_id);
        self.kept.spared.retain(|version_id, _| has(version_id));
    }

    /// How long spending under any allocation of the chain may count.
    fn lasts(&self) -> Lasts {
        self.kept.chain.iter().map(|allocation| allocation.lasts).fold(Lasts::default(), Lasts::max)
    }

    /// The incarnations that a version closes: those that this node knew and the version does not name.
    fn closed_by(&self, version: &Version) -> Vec<Incarnation> {
        let held = self.version();
        let known = held.into_iter().flat_map(|held| {
            held.members.values().map(|member| member.incarnation).chain(held.leaving.iter().copied())
        });
        let earlier = version.members.values().filter_map(|member| {
            let number = member.incarnation.number.checked_sub(1)?;
            Some(Incarnation { number, ..member.incarnation })
        });
        let gone = version.leaving.iter().copied().chain(version.fenced());
        let all: BTreeSet<Incarnation> = known.chain(earlier).chain(gone).collect();
        let is_new = |incarnation: &Incarnation| !version.names(incarnation) && !self.closed(*incarnation);
        all.into_iter().filter(is_new).collect()
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

    /// Spending from now on may count for `lasts`: every allocation in the chain records this. The caller
    /// calls this with the limits of each adopted version, before it writes the record.
    pub fn counts_for(&mut self, lasts: Lasts) {
        for allocation in &mut self.kept.chain {
            let longer = longest_ever(allocation.lasts, lasts);
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
            self.forget_spared();
            self.revision += 1;
        }
    }

    /// Whether all who may hold something of a shared cell know that this node may too. They know once all
    /// have acknowledged an allocation that names this node, or if no allocation came before it.
    pub fn is_counted(&self) -> bool {
        let names = |at: usize| self.kept.chain[at].names(self.kept.me);
        (0..self.kept.chain.len()).any(|at| names(at) && (at == 0 || self.is_agreed(at)))
    }
}

/// Waits start anew with a process: its steady clock is another one, and nobody knows how long the process
/// before was away (rule 4).
fn wait_from_restart(since_ns: u64, now: Now) -> u64 {
    if mutated(Mutation::RestartKeepsWaits) { since_ns } else { now.steady_ns }
}

/// A node adopts only later versions: of its authority or of a later epoch, and of no earlier allocation
/// (rule 1).
fn check_later(version: &Version, held: &Version) -> Result<(), VersionRefused> {
    if mutated(Mutation::AdoptOlderVersion) {
        return Ok(());
    }
    if version.version_id < held.version_id {
        return Err(VersionRefused::Older(version.version_id, held.version_id));
    }
    if version.authority != held.authority && version.version_id.epoch == held.version_id.epoch {
        return Err(VersionRefused::Authority(version.version_id));
    }
    if version.allocation < held.allocation {
        return Err(VersionRefused::Impossible("a later version of an earlier distribution"));
    }
    Ok(())
}

/// A node that begins with any version but the very first begins with the empty allocation (rule 1).
fn begins_with_empty(chain: &[Allocation], version_id: VersionId) -> bool {
    chain.is_empty() && version_id != VersionId::FIRST && !mutated(Mutation::JoinAtOnce)
}

/// An allocation records the longest time of any limit in force under it, also of limits that later versions
/// removed (rule 4).
fn longest_ever(recorded: Lasts, present: Lasts) -> Lasts {
    if mutated(Mutation::ForgetRemovedLimits) { recorded } else { recorded.max(present) }
}
