//! The catalogue's versions in this node: adopting, acknowledging and sending them, and making shares of
//! them.

use std::collections::BTreeMap;

use acequia_limits::{Algorithm, Limit, LimitId, Now, RATE_PARTS, limit::LimitSpec, window::Edges};
use acequia_rights::{
    Incarnation, MemberId, Split, Version, VersionId,
    mutation::{Mutation, mutated},
    versions::{Adopted, Draft, Lasts, Progress, ShareKind, VersionRefused},
};

use super::{
    CellKey, FrameEntry, Sharing, Topic, Wall, exchange::OfferedVersion, peer::Peer, seal::Proof,
    wire::ShortId,
};
use crate::{
    CatalogueFault, ChargeId, Node, Row, Scheduled,
    cell::{
        account::{Account, CellContext, LoanId},
        locked_cell::LockedCell,
    },
    decide::spent_for_ns,
    journal::HeapCell,
    lock,
    pool::{ClockPromise, Leases},
    region::ResumeFault,
    settings::SETTINGS,
};

/// Why a version was not adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptFault {
    /// This node shares nothing.
    #[error("this node has no regions")]
    Alone,
    /// The version contradicts itself, or other known facts.
    #[error(transparent)]
    Refused(#[from] VersionRefused),
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
    pub active_cells: usize,
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
pub(crate) fn kind_of(global: &Algorithm, now: Now) -> ShareKind {
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
            ShareKind::Window { start_wall_ns, lasts_ns: spent_for_ns(global.horizon_ns()) }
        }
        Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => {
            ShareKind::Bucket { steady_ns: now.steady_ns, horizon_ns: global.horizon_ns() }
        }
        _ => ShareKind::Sliding {
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
pub(super) fn lasts(node: &Node) -> Lasts {
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
pub(super) fn keep_mates(node: &Node) {
    if let Some(bytes) = node.leases.as_ref().and_then(|leases| lock(leases).unwritten_mates()) {
        node.write_record(crate::journal::MATES, bytes);
    }
}

/// What this node waits for before it acknowledges a version.
#[derive(Debug, Default)]
pub(super) struct AckWait {
    /// Before this time nothing is acknowledged, since a crash forgot what was spent: steady clock.
    forgotten_until_ns: u64,
    /// Ticks since a version was adopted.
    ticks_since_adopted: u32,
    /// The latest time that the wall clock ever showed.
    wall_high_ns: u64,
}

impl Sharing {
    /// How far wall clocks may be off, by the catalogue: nanoseconds.
    pub(super) fn clock_error_ns(&self) -> u64 {
        self.versions.version().map_or(0, |version| version.clock_error_ns)
    }

    /// How far steady clocks may drift, by the catalogue: parts per million.
    pub(super) fn drift_ppm(&self) -> u32 {
        self.versions.version().map_or(0, |version| version.drift_ppm)
    }

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

    /// The next version, if this node is the authority or becomes it by that version.
    pub(crate) fn propose(&self, draft: Draft, wall_ns: u64) -> Result<Version, VersionRefused> {
        self.versions.propose(draft, wall_ns)
    }

    /// The next version, which makes this node the authority.
    pub(crate) fn take_over(&self, draft: Draft, wall_ns: u64) -> Result<Version, VersionRefused> {
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
        let Some(OfferedVersion { version, proof }) = self.take_offered() else { return Ok(()) };
        let adopted = self.adopt(node, version.clone(), proof.clone(), now, rows);
        if let Err(AdoptFault::Journal { .. }) = adopted {
            self.exchange.offered = Some(OfferedVersion { version, proof });
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
        self.exchange.seals.keep_version(version_id, proof);
        self.sign(true);
        // The lock is held to the end, so that readers of the pools' cells see one catalogue throughout.
        let mut leases = node.leases.as_ref().map(lock);
        self.shares.due_ns = 0;
        self.ack_wait.ticks_since_adopted = 0;
        node.set_key(key);
        node.set_allocations(self.allocations(node));
        let applied = node.apply_limits(limits, now, |id| found.remove(&id).unwrap_or_default());
        let (_, taken) = applied.inspect_err(|_| node.stop_for_want_of_variants())?;
        let pledged = node.take_found();
        if let Some(leases) = &mut leases {
            let until_ns = loans_end_ns(node, &pledged, now);
            leases.begin_after(until_ns);
            self.ack_wait.forgotten_until_ns = self.ack_wait.forgotten_until_ns.max(until_ns);
        }
        for key in pledged {
            self.cells.wake(key, now.steady_ns);
        }
        self.versions.counts_for(lasts(node));
        self.shares.made_of = Some(self.share_inputs());
        self.settle_accounts(node, closed, now);
        if let Some(leases) = &mut leases {
            self.bind(node, leases, now);
        }
        drop(leases);
        self.keep(node);
        keep_mates(node);
        // Until the version is on the disk, a crash presumes nothing about the limits that it brings back.
        node.journal.delete_taken(taken);
        if let Some(leases) = &node.leases {
            lock(leases).call_after(self.exchange.batch());
        }
        self.tell_version();
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
        node.set_allocations(self.allocations(node));
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
            self.ack_wait.forgotten_until_ns =
                crashed.steady_ns.saturating_add(self.forgotten_ns(&limits, is_kept));
        }
        node.resume(schedule, now)?;
        node.restore_all(now, &mut rows);
        node.apply(limits, now, rows)?;
        let found = node.take_found();
        if let Some(leases) = &node.leases {
            // Nobody knows whether a new disk is the node's first.
            let is_new = self.versions.version().is_none();
            let unknown_ns =
                if is_new { now.steady_ns.saturating_add(2 * self.process.home.loan_ttl_ns) } else { 0 };
            let until_ns = loans_end_ns(node, &found, now).max(unknown_ns);
            lock(leases).begin_after(until_ns);
            // The pool counts what those loans rest on, and this node cannot see it any more.
            self.ack_wait.forgotten_until_ns = self.ack_wait.forgotten_until_ns.max(until_ns);
        }
        for key in found {
            self.cells.wake(key, now.steady_ns);
        }
        self.settle_accounts(node, &[], now);
        self.shares.made_of = Some(self.share_inputs());
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
        let drift_ppm = self.drift_ppm();
        let catalogue = node.catalogue();
        let clocks = ClockPromise { error_ns: self.margin_ns(), drift_ppm };
        leases.bind(node, &catalogue, newest, clocks, now);
        self.follow(leases, now);
        // The cell may now hold less of the pool than it has lent.
        for key in self.cells.keys() {
            let locked_cell = LockedCell { node, catalogue: &catalogue, key, now, which: None };
            let conforms = locked_cell.at(false, |_, cell| {
                let HeapCell { account: Some(account), state, .. } = cell else { return true };
                account.conforms(state, now)
            });
            if conforms == Some(false) {
                self.lending.over_lent.insert(key);
            }
        }
    }

    /// Tells the leases which members may have something of what is shared, by the version and by what was
    /// heard.
    pub(super) fn follow(&self, leases: &mut Leases, now: Now) {
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
    pub(crate) fn pass_settlement_on(&mut self, to: MemberId, id: ChargeId, cost: Option<u64>) -> bool {
        self.peers.get_mut(&to).is_some_and(|peer| peer.outbox.settle(id.0, cost))
    }

    /// Brings every account to the newest variant, drops what is held from closed incarnations, and notes the
    /// cells that have lent more than their own part.
    pub(super) fn settle_accounts(&mut self, node: &Node, closed: &[Incarnation], now: Now) {
        let catalogue = node.catalogue();
        let keys: Vec<CellKey> = self.cells.keys().collect();
        self.lending.over_lent.clear();
        self.variants.clear();
        for key in keys {
            let over = LockedCell { node, catalogue: &catalogue, key, now, which: None }.at(
                false,
                |context, cell| {
                    let HeapCell { account: Some(account), state, .. } = &mut *cell else { return false };
                    forfeit_from(closed, account, state, context, now);
                    let conforms = account.conforms(state, now);
                    if account.take_unwritten() {
                        node.write_account(key, cell, now);
                    }
                    !conforms
                },
            );
            if over == Some(true) {
                self.lending.over_lent.insert(key);
            }
            self.cells.wake(key, now.steady_ns);
        }
    }

    /// Acknowledges the newest version, once nothing is lent beyond the new shares.
    pub(crate) fn acknowledge(&mut self, node: &Node, now: Now) {
        if !self.time.is_believed() {
            return;
        }
        // Between two ticks the wall may have been set a little ahead and back, and a request may have gone
        // by it.
        let high_ns = now.wall_ns.max(node.wall_high_ns()).saturating_add(SETTINGS.clocks.glimpse_ns);
        self.ack_wait.wall_high_ns = self.ack_wait.wall_high_ns.max(high_ns);
        let catalogue = node.catalogue();
        let keys: Vec<CellKey> = self.lending.over_lent.iter().copied().collect();
        for key in keys {
            if !self.recall(node, &catalogue, key, now) {
                self.lending.over_lent.remove(&key);
            }
        }
        if now.steady_ns < self.ack_wait.forgotten_until_ns {
            return;
        }
        let Some(version_id) = self.versions.ack_due() else { return };
        // A tick may read its clock before the version is adopted, and then wait for a lock. Meanwhile a
        // request may go by a later clock, under older shares. From the second tick after that on, clocks are
        // surely read later.
        self.ack_wait.ticks_since_adopted += 1;
        if self.ack_wait.ticks_since_adopted <= 2 {
            return;
        }
        if self.lending.conforms() && self.versions.conform(version_id, self.ack_wait.wall_high_ns) {
            self.keep(node);
        }
    }

    /// Asks loans of a cell back until no more is out than there is to lend. Returns whether too much still
    /// is.
    fn recall(&mut self, node: &Node, catalogue: &crate::Catalogue, key: CellKey, now: Now) -> bool {
        let peers = &mut self.peers;
        let over = LockedCell { node, catalogue, key, now, which: None }.at(false, |context, cell| {
            let HeapCell { account: Some(account), state, .. } = cell else { return false };
            account.settle(state, context, now, &*node.sessions());
            for LoanId { peer: from, number } in account.tell_ended(&mut node.sessions_mut()) {
                if let Some(peer) = peers.get_mut(&from.member) {
                    let entry = FrameEntry::Refused { id: ShortId::default(), number };
                    peer.outbox.tell(Topic::Refused(key, number), entry, 0);
                }
            }
            if account.conforms(state, now) {
                return false;
            }
            ask_back(account, peers, key, node);
            true
        });
        over == Some(true)
    }

    /// How this node stands among the regions, for operators.
    pub(crate) fn membership(&self, now: Now) -> Membership {
        let reached =
            self.peers.iter().filter(|(_, peer)| peer.is_reached(now.steady_ns, SETTINGS.sharing.reach_ns));
        Membership {
            incarnation: self.me(),
            progress: self.versions.progress(),
            standing: if self.process.restored_disk {
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
            active_cells: self.cells.len(),
            later: self.process.later,
        }
    }
}

/// Nothing that a closed incarnation lent counts any more.
fn forfeit_from(
    closed: &[Incarnation],
    account: &mut Account,
    state: &mut Vec<u64>,
    context: &CellContext<'_>,
    now: Now,
) {
    if mutated(Mutation::HoldOfClosed) {
        return;
    }
    for incarnation in closed {
        account.forfeit(state, context, Some(*incarnation), now);
    }
}

/// Stops renewing what is lent of a cell, and asks for it before its time.
fn ask_back(account: &mut Account, peers: &mut BTreeMap<MemberId, Peer>, key: CellKey, node: &Node) {
    for LoanId { peer: to, number } in account.freeze_all(&mut node.sessions_mut()) {
        if let Some(peer) = peers.get_mut(&to.member) {
            let entry = FrameEntry::Recall { id: ShortId::default(), number };
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
