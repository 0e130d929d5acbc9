//! The catalogue's versions in this node: adopting, acknowledging and sending them, and making shares of
//! them.

use std::{collections::BTreeMap, sync::Arc};

use acequia_limits::{
    Algorithm, Limit, LimitId, Now, RATE_PARTS,
    limit::LimitSpec,
    window::{Edges, SET_BACK_NS},
};
use acequia_rights::{
    Ack, Incarnation, MemberId, Split, Version, VersionId,
    mutation::{Mutation, mutated},
    versions::{Adopted, Draft, Kind, Lasts, Progress, Refused},
};

use super::{
    CellKey, Entry, Header, Seal, SealFault, Seals, Sharing, Storing, Topic, Wall,
    peer::Peer,
    seal::{Proof, SealStore},
    wire::ShortId,
};
use crate::{
    CatalogueFault, ChargeId, Node, Row, Scheduled,
    catalogue::{Allocations, OwnAllocation},
    cell::{account::Account, locked_cell::LockedCell},
    decide::spent_for_ns,
    journal::HeapCell,
    lock,
    pool::Leases,
    region::ResumeFault,
};

/// How often to check whether a wait is over, while shares are being distributed anew.
const RESHARE_NS: u64 = 100_000_000;

/// How long a doubt about the clock lasts at least.
const DOUBT_NS: u64 = 20_000_000_000;

/// How far the wall of requests since the last tick may be ahead of that tick's reading, beyond the clock's
/// error: the drift of a steady clock in between.
const GLIMPSE_NS: u64 = 1_000_000;

/// Why a version was not adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptFault {
    /// This node shares nothing.
    #[error("this node has no regions")]
    Alone,
    /// The version contradicts itself, or other known facts.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The version's limits cannot be read.
    #[error(
        "the limits of version {version_id:?} cannot be read: {why}. Is this node older than the authority?"
    )]
    Limits {
        /// Which version.
        version_id: VersionId,
        /// The reason, in words.
        why: String,
    },
    /// The version's limits contradict each other, or are too many.
    #[error(transparent)]
    Catalogue(#[from] CatalogueFault),
    /// Cells are already tagged with another key.
    #[error(
        "version {version_id:?} has another key for cells than this node: it is of another cluster. Start with an empty `data` folder to join that one"
    )]
    Key {
        /// Which version.
        version_id: VersionId,
    },
    /// The version brings a limit back, and the journal's rows of that limit cannot be read.
    #[error(
        "version {version_id:?} brings limits back, and the journal cannot be read: what was spent of them is not known. Mend the disk"
    )]
    Journal {
        /// Which version.
        version_id: VersionId,
    },
}

/// How a node stands among the regions, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// This node.
    pub incarnation: Incarnation,
    /// How far the newest version has come.
    pub progress: Option<Progress>,
    /// Whether this node owns its shares, or why it owns nothing.
    pub standing: Ownership,
    /// Whether the node goes by another wall than its own.
    pub clock_is_suspect: bool,
    /// The wall that this node goes by.
    pub wall: Wall,
    /// How far that wall is ahead of the node's own, in nanoseconds.
    pub corrected_ns: i64,
    /// How far that wall may be off beyond the clock error of the catalogue, in nanoseconds.
    pub unsure_ns: u64,
    /// Members that were heard lately, each with the round-trip time in nanoseconds.
    pub reached: Vec<(MemberId, u64)>,
    /// Cells that are shared actively.
    pub warm_cells: usize,
    /// A later incarnation of this node that others have heard, so that they refuse this one. The later one's
    /// clock was further ahead when it began.
    pub later: Option<u32>,
}

/// The shares that a node owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Its shares.
    Owner,
    /// Nothing: the node has no catalogue, or the catalogue does not name its incarnation.
    NoCatalogue,
    /// Nothing: the node's disk is older than the one that it wrote last.
    RestoredDisk,
}

/// The kind of share that a limit needs, with its times as of `now`.
pub(crate) fn kind_of(global: &Algorithm, now: Now) -> Kind {
    match global {
        Algorithm::FixedWindow(window) => {
            // Not after the window's true start, so that an older allocation counts for as long as it may
            // have to.
            let end_ns = window.end_after(now.wall_ns, 0);
            let start_wall_ns = match window.edges {
                Edges::Every { .. } => end_ns.saturating_sub(global.horizon_ns()),
                Edges::Calendar(_) => window.begins(end_ns, 0),
            };
            let start_wall_ns = start_wall_ns.min(now.wall_ns);
            Kind::Window { start_wall_ns, lasts_ns: spent_for_ns(global.horizon_ns()) }
        }
        Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => {
            Kind::Bucket { steady_ns: now.steady_ns, horizon_ns: global.horizon_ns() }
        }
        _ => Kind::Sliding {
            steady_ns: now.steady_ns,
            horizon_ns: spent_for_ns(global.horizon_ns().max(global.lingers_ns())),
        },
    }
}

/// A version's limits, as bytes.
///
/// # Errors
/// Why they cannot be written.
pub fn limits_to_bytes(specs: &[LimitSpec]) -> Result<Vec<u8>, String> {
    serde_json::to_vec(specs).map_err(|error| error.to_string())
}

/// A version's limits, from bytes.
///
/// # Errors
/// The fault that was found first.
pub fn limits_from_bytes(bytes: &[u8]) -> Result<Vec<Limit>, String> {
    let specs: Vec<LimitSpec> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let read = |mut spec: LimitSpec| {
        let name = spec.name.clone();
        spec.modernise();
        Limit::new(spec).map_err(|faults| match faults.first() {
            Some(fault) => format!("{name}: {fault}"),
            None => name,
        })
    };
    specs.into_iter().map(read).collect()
}

/// How long spent units may count, under the present limits and under those removed lately, which may come
/// back.
fn lasts(node: &Node) -> Lasts {
    let of = |limit: &Limit| {
        let horizon_ns = limit.horizon_ns().max(limit.algorithm.lingers_ns()).max(node.drains_ns(limit));
        match limit.algorithm.has_rate() {
            true => Lasts { drains_ns: horizon_ns, ..Lasts::default() },
            false => Lasts { windows_ns: spent_for_ns(horizon_ns), ..Lasts::default() },
        }
    };
    node.schedule().iter().map(|scheduled| of(&scheduled.limit)).fold(Lasts::default(), Lasts::max)
}

/// Queues the list of the region's nodes for the disk, by the version that is there or queued before.
fn keep_mates(node: &Node) {
    if let Some(bytes) = node.leases.as_ref().and_then(|leases| lock(leases).unwritten_mates()) {
        node.write_record(crate::journal::MATES, bytes);
    }
}

impl Sharing {
    pub(crate) fn version_id(&self) -> VersionId {
        self.versions.version().map_or_else(VersionId::default, |version| version.version_id)
    }

    /// Whether an incarnation is giving its share up, and was not yet heard to have done so.
    pub(crate) fn is_leaving(&self, incarnation: Incarnation) -> bool {
        self.versions.version().is_some_and(|version| version.leaving.contains(&incarnation))
    }

    /// The last version that this node has acknowledged.
    pub(crate) fn acked(&self) -> VersionId {
        self.versions.own_ack().map_or_else(VersionId::default, |ack| ack.version_id)
    }

    /// The version that a peer sent, if it is still newer than this node's.
    fn take_offered(&mut self) -> Option<(Version, Proof)> {
        let offered = self.offered.take()?;
        (offered.0.version_id > self.version_id()).then_some(offered)
    }

    /// The next version, if this node is the authority or becomes it by that version.
    pub(crate) fn propose(&self, draft: Draft, wall_ns: u64) -> Result<Version, Refused> {
        self.versions.propose(draft, wall_ns)
    }

    /// The next version, which makes this node the authority.
    pub(crate) fn take_over(&self, draft: Draft, wall_ns: u64) -> Result<Version, Refused> {
        self.versions.take_over(draft, wall_ns)
    }

    /// Adopts the version that a peer sent, if there is one. While the journal cannot be read, each tick
    /// tries again.
    pub(crate) fn adopt_offered(
        &mut self,
        node: &Node,
        now: Now,
        rows: impl FnMut(LimitId) -> Option<Vec<Row>>,
    ) -> Result<(), AdoptFault> {
        // The wall dates what a version begins with.
        if !self.time.is_believed() {
            return Ok(());
        }
        let Some((version, proof)) = self.take_offered() else { return Ok(()) };
        let adopted = self.adopt(node, version.clone(), proof.clone(), now, rows);
        if let Err(AdoptFault::Journal { .. }) = adopted {
            self.offered = Some((version, proof));
        }
        adopted.map(|_| ())
    }

    /// Adopts a version: its limits and shares are in force when this returns. `proof` is the seal that came
    /// with the version. This node seals a version that it made itself.
    pub(crate) fn adopt(
        &mut self,
        node: &Node,
        version: Version,
        proof: Proof,
        now: Now,
        mut rows: impl FnMut(LimitId) -> Option<Vec<Row>>,
    ) -> Result<Adopted, AdoptFault> {
        let version_id = version.version_id;
        let limits =
            limits_from_bytes(&version.limits).map_err(|why| AdoptFault::Limits { version_id, why })?;
        node.could_apply(&limits)?;
        let back = limits.iter().map(|limit| limit.id).filter(|id| !node.knows(*id));
        let found: Option<BTreeMap<LimitId, Vec<Row>>> = back.map(|id| Some((id, rows(id)?))).collect();
        let mut found = found.ok_or(AdoptFault::Journal { version_id })?;
        let key = version.key;
        if !node.takes_key(key) {
            return Err(AdoptFault::Key { version_id });
        }
        let adopted = self.versions.adopt(version, now)?;
        let Adopted::New { closed, .. } = &adopted else { return Ok(adopted) };
        self.seals.keep_version(version_id, proof);
        self.sign(true);
        // The lock is held to the end, so that readers of the pools' cells see one catalogue throughout.
        let mut leases = node.leases.as_ref().map(lock);
        self.reshare_ns = 0;
        self.ticks_since_adopted = 0;
        node.set_key(key);
        node.set_terms(self.allocations(node));
        let applied = node.apply_limits(limits, now, |id| found.remove(&id).unwrap_or_default());
        let (_, taken) = applied.inspect_err(|_| node.stop_for_want_of_numbers())?;
        let pledged = node.take_found();
        if let Some(leases) = &mut leases {
            let until_ns = loans_end_ns(node, &pledged, now);
            leases.begin_after(until_ns);
            self.forgotten_until_ns = self.forgotten_until_ns.max(until_ns);
        }
        for key in pledged {
            self.wake(key, now.steady_ns);
        }
        self.versions.counts_for(lasts(node));
        self.shared = Some(self.made_of());
        self.settle_accounts(node, closed, now);
        if let Some(leases) = &mut leases {
            self.bind(node, leases, now);
        }
        drop(leases);
        self.keep(node);
        keep_mates(node);
        // Until the version is on the disk, a crash presumes nothing about the limits that it brings back.
        node.take_from_disk(taken);
        let batch = self.storing.last().map_or(0, |storing| storing.batch);
        if let Some(leases) = &node.leases {
            lock(leases).call_after(batch);
        }
        self.tell_version(batch);
        for incarnation in closed {
            // The session of a closed incarnation stays: loans to the incarnation end by the session. If the
            // incarnation is alive, it still gets the version, and nothing else.
            for peer in self.peers.values_mut().filter(|peer| peer.incarnation == *incarnation) {
                peer.close();
            }
        }
        node.set_owns_nothing(self.owns_nothing());
        Ok(adopted)
    }

    /// Goes on where the last process stopped: its limits and shares are in force when this returns.
    pub(crate) fn resume(
        &mut self,
        node: &Node,
        mut schedule: Vec<Scheduled>,
        now: Now,
        mut rows: impl FnMut(LimitId) -> Vec<Row>,
    ) -> Result<(), ResumeFault> {
        if let Some(version) = self.versions.version() {
            node.set_key(version.key);
        }
        node.set_terms(self.allocations(node));
        node.set_owns_nothing(self.owns_nothing());
        let limits = match self.versions.version() {
            None => Vec::new(),
            Some(version) => {
                limits_from_bytes(&version.limits).map_err(|_| ResumeFault::Unreadable("limits"))?
            }
        };
        if schedule.is_empty() {
            let begun = |limit: &Limit| Scheduled { limit: limit.clone(), until_ns: None };
            schedule = limits.iter().map(begun).collect();
        }
        if let Some(crashed) = node.after_crash() {
            // Whatever was spent before the crash, perhaps under an earlier version, is over by then.
            let is_kept = node.leases.is_none();
            self.forgotten_until_ns = crashed.steady_ns.saturating_add(self.forgotten_ns(&limits, is_kept));
        }
        node.resume(schedule, now)?;
        node.restore_all(now, &mut rows);
        node.apply(limits, now, rows)?;
        let found = node.take_found();
        if let Some(leases) = &node.leases {
            // Nobody knows whether a new disk is the node's first.
            let is_new = self.versions.version().is_none();
            let unknown_ns = if is_new { now.steady_ns.saturating_add(2 * self.home.loan_ttl_ns) } else { 0 };
            let until_ns = loans_end_ns(node, &found, now).max(unknown_ns);
            lock(leases).begin_after(until_ns);
            // The pool counts what those loans rest on, and this node cannot see it any more.
            self.forgotten_until_ns = self.forgotten_until_ns.max(until_ns);
        }
        for key in found {
            self.wake(key, now.steady_ns);
        }
        self.settle_accounts(node, &[], now);
        self.shared = Some(self.made_of());
        if let Some(leases) = &node.leases {
            self.bind(node, &mut lock(leases), now);
            keep_mates(node);
        }
        Ok(())
    }

    /// Binds the pools of this region's nodes to the newest allocation.
    fn bind(&mut self, node: &Node, leases: &mut Leases, now: Now) {
        let newest = self
            .versions
            .allocations()
            .last()
            .map_or_else(VersionId::default, |allocation| allocation.version_id);
        let drift_ppm = self.versions.version().map_or(0, |version| version.drift_ppm);
        let catalogue = node.catalogue();
        leases.bind(node, &catalogue, (newest, self.margin_ns(), drift_ppm), now);
        self.follow(leases, now);
        // The cell may now hold less of the pool than it has lent.
        for key in self.cells.keys() {
            let locked_cell = LockedCell { node, catalogue: &catalogue, key, now, which: None };
            let conforms = locked_cell.at(false, |_, cell| {
                let HeapCell { account: Some(account), words, .. } = cell else { return true };
                account.conforms(words, now)
            });
            if conforms == Some(false) {
                self.over_lent.insert(key);
            }
        }
    }

    /// Tells the leases which members may have something of what is shared, by the version and by what was
    /// heard.
    fn follow(&self, leases: &mut Leases, now: Now) {
        let Some((version, progress)) = self.versions.version().zip(self.versions.progress()) else { return };
        let leavers = progress.leavers.iter().map(|incarnation| incarnation.member);
        leases.follow(&version.members.keys().copied().chain(leavers).collect(), now);
        if self.versions.is_counted() {
            leases.is_counted_now(now);
        }
    }

    /// How long spent units that a crash forgot may count, at the slowest rate that any region has. The crash
    /// forgot all limits that the journal does not keep. Unless `is_kept`, the journal keeps no cells, and
    /// all limits are forgotten but windows, of which no later one was used.
    fn forgotten_ns(&self, limits: &[Limit], is_kept: bool) -> u64 {
        let rates = self.versions.allocations().iter().filter_map(|allocation| allocation.split.as_ref());
        let least_rate = rates.map(Split::least_rate).min().unwrap_or(RATE_PARTS).max(1);
        let is_forgotten = |limit: &&Limit| {
            let is_window = matches!(limit.algorithm, Algorithm::FixedWindow(_));
            !limit.is_durable() || (!is_kept && !is_window)
        };
        let forgotten = limits.iter().filter(is_forgotten);
        let longest = forgotten.map(Limit::horizon_ns).max().unwrap_or(0);
        let slowest = u128::from(longest) * 2 * u128::from(RATE_PARTS) / u128::from(least_rate);
        u64::try_from(slowest).unwrap_or(u64::MAX)
    }

    /// The version that this node has.
    pub(crate) fn version(&self) -> Option<&Version> {
        self.versions.version()
    }

    /// Begins to talk to a member.
    pub(crate) fn meet(&mut self, incarnation: Incarnation) {
        if incarnation.member != self.me().member && !self.versions.closed(incarnation) {
            self.peers.entry(incarnation.member).or_insert_with(|| Peer::new(incarnation));
        }
    }

    /// Has a peer settle a charge that the peer made. Returns whether there was room to queue this.
    pub(crate) fn forward(&mut self, to: MemberId, id: ChargeId, cost: Option<u64>) -> bool {
        self.peers.get_mut(&to).is_some_and(|peer| peer.outbox.settle(id.0, cost))
    }

    /// Units charged under a limit, less those given back, over all regions.
    pub(crate) fn usage_of(&self, limit: LimitId) -> u128 {
        let counter = self.usage.get(&limit);
        counter.map_or(0, |counter| counter.read().to_string().parse().unwrap_or(0))
    }

    /// Brings every account to the newest variant, drops what is held from closed incarnations, and notes the
    /// cells that have lent more than their own part.
    fn settle_accounts(&mut self, node: &Node, closed: &[Incarnation], now: Now) {
        let catalogue = node.catalogue();
        let keys: Vec<CellKey> = self.cells.keys().collect();
        self.over_lent.clear();
        self.told.clear();
        for key in keys {
            let over = LockedCell { node, catalogue: &catalogue, key, now, which: None }.at(
                false,
                |context, cell| {
                    let HeapCell { account: Some(account), words, .. } = &mut *cell else { return false };
                    for incarnation in closed {
                        if !mutated(Mutation::HoldOfClosed) {
                            account.forfeit(words, context, Some(*incarnation), now);
                        }
                    }
                    let conforms = account.conforms(words, now);
                    if account.take_unwritten() {
                        node.write_account(key, cell, now);
                    }
                    !conforms
                },
            );
            if over == Some(true) {
                self.over_lent.insert(key);
            }
            self.wake(key, now.steady_ns);
        }
    }

    /// Queues the versions for the disk.
    pub(crate) fn keep(&mut self, node: &Node) {
        let revision = self.versions.revision();
        if let Ok(bytes) = postcard::to_allocvec(self.versions.kept()) {
            let batch = node.write_record(crate::journal::VERSIONS, bytes);
            self.storing.push(Storing { batch, revision, version_id: self.version_id() });
            self.kept = Some(revision);
            self.keep_seals(node);
        }
    }

    /// Notes which windows this node has left for good: those that ended before its wall, less the margin of
    /// the last shares. A process that begins knows of no window that it has left.
    fn leave(&mut self, node: &Node) {
        if let Some((_, margin_ns, _)) = self.shared {
            let left_ns = node.wall_high_ns().saturating_sub(margin_ns);
            // If the wall was set back, `Node::left` knows which windows it left.
            let was_set_back = left_ns.saturating_add(SET_BACK_NS) < self.left_ns;
            self.left_ns = if was_set_back { left_ns } else { self.left_ns.max(left_ns) };
        }
    }

    /// How this region shares limits now. Cells go by the new margin afterwards, so the windows left under
    /// the last margin are noted first.
    fn allocations(&mut self, node: &Node) -> Allocations {
        self.leave(node);
        let (margin_ns, me) = (self.margin_ns(), self.me());
        let drift_ppm = self.versions.version().map_or(0, |version| version.drift_ppm);
        let chain = self.versions.allocations();
        self.splits
            .retain(|version_id, _| chain.iter().any(|allocation| allocation.version_id == *version_id));
        let owns = self.versions.owns(me) && !self.restored_disk;
        let allocations = chain
            .iter()
            .map(|allocation| {
                let split = allocation
                    .split
                    .as_ref()
                    .filter(|_| (allocation.names(me) && owns) || mutated(Mutation::OwnsNothingIgnored))
                    .map(|split| {
                        let kept = self
                            .splits
                            .entry(allocation.version_id)
                            .or_insert_with(|| Arc::new(split.clone()));
                        Arc::clone(kept)
                    });
                OwnAllocation {
                    split,
                    until: allocation.until,
                    is_before: owns && !allocation.names(me),
                    spared: self.versions.spared(allocation),
                }
            })
            .collect();
        let least_rate =
            chain.iter().filter_map(|allocation| allocation.split.as_ref()).map(Split::least_rate).min();
        let (left_ns, least_rate) = (self.left_ns, least_rate.unwrap_or(1));
        let guard = node.guard.clone();
        Allocations { region: me.member, allocations, guard, drift_ppm, margin_ns, left_ns, least_rate }
    }

    fn margin_ns(&self) -> u64 {
        if mutated(Mutation::NoMargin) {
            return 0;
        }
        let error_ns = self.versions.version().map_or(0, |version| version.clock_error_ns);
        error_ns.saturating_add(self.doubt_ns).min(acequia_limits::MARGIN_NS_MAX)
    }

    /// Updates how far the wall clock may be off beyond the error of the catalogue. This doubt grows in
    /// steps, and falls at most once in [`DOUBT_NS`]: every change makes new variants of every limit.
    pub(crate) fn keep_doubt(&mut self, now: Now) {
        let error_ns = self.versions.version().map_or(0, |version| version.clock_error_ns);
        let doubt_ns = match self.time.unsure_ns() {
            0 => 0,
            unsure_ns => unsure_ns.max(error_ns).clamp(1, 1 << 62).next_power_of_two(),
        };
        if doubt_ns > self.doubt_ns || now.steady_ns >= self.doubt_until_ns {
            if doubt_ns != self.doubt_ns {
                self.doubt_until_ns = now.steady_ns.saturating_add(DOUBT_NS);
            }
            self.doubt_ns = doubt_ns;
        }
    }

    fn made_of(&self) -> (u64, u64, bool) {
        (self.versions.revision(), self.margin_ns(), self.restored_disk)
    }

    /// Makes shares anew if time, an acknowledgement or a doubtful clock has changed them.
    pub(crate) fn keep_shares(&mut self, node: &Node, now: Now) {
        node.set_owns_nothing(self.owns_nothing());
        let made_of = self.made_of();
        let due = self.versions.allocations().len() > 1 && now.steady_ns >= self.reshare_ns;
        if self.shared == Some(made_of) && !due {
            return;
        }
        self.reshare_ns = now.steady_ns + RESHARE_NS;
        if self.time.is_believed() {
            self.versions.settle(lasts(node), now);
        }
        let allocations = self.allocations(node);
        self.shared = Some(self.made_of());
        match node.reshare(allocations, now) {
            Ok(true) => self.settle_accounts(node, &[], now),
            Ok(false) => {}
            Err(_) => return node.stop_for_want_of_numbers(),
        }
        if self.kept < Some(self.versions.revision()) {
            self.keep(node);
        }
        if let Some(leases) = &node.leases {
            self.follow(&mut lock(leases), now);
            keep_mates(node);
        }
    }

    /// Acknowledges the newest version, once nothing is lent beyond the new shares.
    pub(crate) fn acknowledge(&mut self, node: &Node, now: Now) {
        if !self.time.is_believed() {
            return;
        }
        // Between two ticks the wall may have been set a little ahead and back, and a request may have gone
        // by it.
        let high_ns = now.wall_ns.max(node.wall_high_ns()).saturating_add(GLIMPSE_NS);
        self.wall_high_ns = self.wall_high_ns.max(high_ns);
        let catalogue = node.catalogue();
        let keys: Vec<CellKey> = self.over_lent.iter().copied().collect();
        for key in keys {
            if !self.recall(node, &catalogue, key, now) {
                self.over_lent.remove(&key);
            }
        }
        if now.steady_ns < self.forgotten_until_ns {
            return;
        }
        let Some(version_id) = self.versions.ack_due() else { return };
        // A tick may read its clock before the version is adopted, and then wait for a lock. Meanwhile a
        // request may go by a later clock, under older shares. From the second tick after that on, clocks are
        // surely read later.
        self.ticks_since_adopted += 1;
        if self.ticks_since_adopted <= 2 {
            return;
        }
        let conforms = self.over_lent.is_empty() || mutated(Mutation::ConformAtOnce);
        if conforms && self.versions.conform(version_id, self.wall_high_ns) {
            self.keep(node);
        }
    }

    /// Asks loans of a cell back until no more is out than there is to lend. Returns whether too much still
    /// is.
    fn recall(&mut self, node: &Node, catalogue: &crate::Catalogue, key: CellKey, now: Now) -> bool {
        let peers = &mut self.peers;
        let over = LockedCell { node, catalogue, key, now, which: None }.at(false, |context, cell| {
            let HeapCell { account: Some(account), words, .. } = cell else { return false };
            account.settle(words, context, now, &*node.sessions());
            for (from, number) in account.tell_ended(&mut node.sessions_mut()) {
                if let Some(peer) = peers.get_mut(&from.member) {
                    let entry = Entry::Refused { id: ShortId::default(), number };
                    peer.outbox.tell(Topic::Refused(key, number), entry, 0);
                }
            }
            if account.conforms(words, now) {
                return false;
            }
            ask_back(account, peers, key, node);
            true
        });
        over == Some(true)
    }

    /// Sends the version that this node has to a peer that is behind.
    pub(crate) fn compare_marks(&mut self, header: &Header, from: MemberId) {
        let own = self.version_id();
        let stored = self.storing.iter().map(|storing| storing.batch).max().unwrap_or(0);
        if header.version_id >= own {
            return;
        }
        let Some(version) = self.versions.version() else { return };
        let Some(proof) = self.seals.proof_of(own) else { return };
        if let Some(peer) = self.peers.get_mut(&from)
            && peer.told < own
        {
            peer.told = own;
            peer.outbox.tell(Topic::Version, Entry::Version(Box::new(version.clone()), proof), stored);
        }
    }

    fn tell_version(&mut self, batch: u64) {
        let Some(version) = self.versions.version() else { return };
        let version_id = version.version_id;
        self.peers.values_mut().for_each(|peer| peer.outbox.names.introduce_again());
        let Some(proof) = self.seals.proof_of(version_id) else { return };
        for peer in self.peers.values_mut().filter(|peer| peer.version_id < version_id) {
            peer.told = version_id;
            let entry = Entry::Version(Box::new(version.clone()), proof.clone());
            peer.outbox.tell(Topic::Version, entry, batch);
        }
    }

    /// Sends everybody what this node acknowledged, signed.
    pub(crate) fn tell_own_ack(&mut self) {
        let me = self.me();
        let Some((ack, version)) = self.versions.own_ack().zip(self.versions.version()) else { return };
        self.seals.sign_ack(me, ack, version.key);
        let Some((ack, seal)) = self.seals.ack_of(me, ack) else { return };
        for peer in self.peers.values_mut() {
            let entry = Entry::Acked { incarnation: me, ack, seal: seal.clone() };
            peer.outbox.tell(Topic::Acked(me), entry, 0);
        }
    }

    /// Signs from now on, and accepts no version or acknowledgement of others that they did not sign.
    pub(crate) fn seal_with(&mut self, node: &Node, seals: Arc<dyn Seals>) {
        self.seals.begin(seals);
        self.sign_again(node);
    }

    /// Restores the seals from the disk.
    pub(crate) fn take_up_seals(&mut self, bytes: &[u8]) {
        self.seals = SealStore::restore(bytes);
    }

    /// The seal of the version that this node has.
    pub(crate) fn version_seal(&self) -> Option<Seal> {
        self.seals.proof_of(self.version_id())?.map(|seal| *seal)
    }

    /// The last version or acknowledgement that was refused for its seal; returned once.
    pub(crate) fn take_unproven(&mut self) -> Option<(Incarnation, SealFault)> {
        self.seals.take_refused()
    }

    /// Signs this node's version and acknowledgement anew for everybody who passes them on: the node has
    /// another certificate, or this is a new process.
    pub(crate) fn sign_again(&mut self, node: &Node) {
        self.sign(false);
        let stored = self.storing.iter().map(|storing| storing.batch).max().unwrap_or(0);
        if let Some(version) = self.versions.version().filter(|version| version.authority == self.me())
            && let Some(proof) = self.seals.proof_of(version.version_id)
        {
            for peer in self.peers.values_mut() {
                let entry = Entry::Version(Box::new(version.clone()), proof.clone());
                peer.outbox.tell(Topic::Version, entry, stored);
            }
        }
        self.tell_own_ack();
        self.keep_seals(node);
    }

    /// Signs the version that this node has, if it made it. If the version `is_new`, the seals of
    /// incarnations from which it asks nothing are dropped.
    fn sign(&mut self, is_new: bool) {
        let Some(version) = self.versions.version() else { return };
        if version.authority == self.me() {
            self.seals.sign_version(version);
        }
        if is_new {
            let (versions, me) = (&self.versions, self.me());
            self.seals.retain(|incarnation| incarnation == me || versions.asks(incarnation));
        }
    }

    fn keep_seals(&self, node: &Node) {
        if let Some(bytes) = self.seals.to_bytes() {
            node.write_record(crate::journal::SEALS, bytes);
        }
    }

    /// Passes on an acknowledgement that `by` sent: a member that cannot reach the incarnation waits for it,
    /// too.
    pub(crate) fn pass_on_ack(&mut self, incarnation: Incarnation, by: Incarnation) {
        let Some((_, ack)) = self.versions.acks().find(|(of, _)| *of == incarnation) else { return };
        let Some((ack, seal)) = self.seals.ack_of(incarnation, ack) else { return };
        for peer in
            self.peers.values_mut().filter(|peer| peer.incarnation != incarnation && peer.incarnation != by)
        {
            let entry = Entry::Acked { incarnation, ack, seal: seal.clone() };
            peer.outbox.tell(Topic::Acked(incarnation), entry, 0);
        }
    }

    /// Sends a peer that began anew, or that adopted a version, every acknowledgement.
    pub(crate) fn tell_all_acks(&mut self, to: MemberId) {
        let own = self.versions.own_ack().map(|ack| (self.me(), ack));
        let all: Vec<(Incarnation, Ack)> = self.versions.acks().chain(own).collect();
        if let Some(peer) = self.peers.get_mut(&to) {
            for (incarnation, ack) in all {
                let Some((ack, seal)) = self.seals.ack_of(incarnation, ack) else { continue };
                peer.outbox.tell(Topic::Acked(incarnation), Entry::Acked { incarnation, ack, seal }, 0);
            }
        }
    }

    /// How this node stands among the regions, for operators.
    pub(crate) fn membership(&self, now: Now) -> Membership {
        let reached = self.peers.iter().filter(|(_, peer)| peer.is_reached(now.steady_ns, super::REACH_NS));
        Membership {
            incarnation: self.me(),
            progress: self.versions.progress(),
            standing: if self.restored_disk {
                Ownership::RestoredDisk
            } else if self.versions.owns(self.me()) {
                Ownership::Owner
            } else {
                Ownership::NoCatalogue
            },
            clock_is_suspect: self.time.is_suspect(),
            wall: self.time.wall(),
            corrected_ns: self.time.correction_ns(),
            unsure_ns: self.time.unsure_ns(),
            reached: reached.map(|(region, peer)| (*region, peer.round_ns())).collect(),
            warm_cells: self.cells.len(),
            later: self.later,
        }
    }
}

/// Stops renewing what is lent of a cell, and asks for it before its time.
fn ask_back(account: &mut Account, peers: &mut BTreeMap<MemberId, Peer>, key: CellKey, node: &Node) {
    for (number, to) in account.freeze_all(&mut node.sessions_mut()) {
        if let Some(peer) = peers.get_mut(&to.member) {
            let entry = Entry::Recall { id: ShortId::default(), number };
            peer.outbox.tell(Topic::Recall(key, number), entry, 0);
        }
    }
}

/// When the loans of these cells that earlier processes gave have all ended: steady clock. Such loans may
/// rest on what those processes held of the region's pools.
fn loans_end_ns(node: &Node, found: &[CellKey], now: Now) -> u64 {
    let catalogue = node.catalogue();
    let ends_ns = found.iter().map(|key| {
        let locked_cell = LockedCell { node, catalogue: &catalogue, key: *key, now, which: None };
        locked_cell.at(false, |_, cell| cell.account.as_deref().map_or(0, Account::restored_until_ns))
    });
    ends_ns.flatten().max().unwrap_or(0)
}
