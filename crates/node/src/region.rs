//! A node among regions: the calls for a driver, and the calls between the cells and the sharing.
//!
//! A driver hands every incoming frame to [`Node::handle`], and calls [`Node::tick`] every ten milliseconds
//! or so (at once while [`Node::calls`]). The driver sends the frames that [`Node::poll`] returns, until the
//! result is `None`. Rows are written as for any node: whatever depends on a row waits for it by itself.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    task::{Context, Poll, Waker},
};

use acequia_limits::{CellTag, HashKey, Limit, LimitId, Now, Reason};
use acequia_rights::{
    Incarnation, MemberId, Session, Version, Versions,
    versions::{self, Adopted, Draft, VersionRefused},
};

use crate::{
    CatalogueFault, CellRecord, ChargeId, Node, Row, Scheduled,
    catalogue::Allocations,
    cell::{record::may_be_overdrawn, shard::Cells},
    journal::{HeapCell, MATES, MEMORY, SEALS, USAGE, VERSIONS},
    journal_tag, lock,
    regions::{
        AdoptFault, CellKey, FrameFault, Membership, NodeMemory, Seal, SealFault, Seals, Sharing, Traffic,
    },
    settings::SETTINGS,
};

/// What cells need of the dealings with other regions, so that no decision waits for those.
#[derive(Debug)]
pub(crate) struct RegionFacts {
    /// Sessions, which date loans. Locked after any shard.
    sessions: RwLock<BTreeMap<Incarnation, Session>>,
    /// What the node remembers of itself.
    memory: Mutex<NodeMemory>,
    /// Why this region owns nothing: a code.
    owns_nothing: AtomicU8,
}

/// Codes for why a region owns nothing.
const NO_CATALOGUE: u8 = 1;
const RESTORED_DISK: u8 = 2;

impl RegionFacts {
    /// A node among regions owns nothing until it has a catalogue.
    pub(crate) fn new(memory: NodeMemory, is_among_regions: bool) -> Self {
        Self {
            sessions: RwLock::default(),
            memory: Mutex::new(memory),
            owns_nothing: AtomicU8::new(if is_among_regions { NO_CATALOGUE } else { 0 }),
        }
    }

    fn set_owns_nothing(&self, reason: Option<Reason>) {
        let code = match reason {
            None => 0,
            Some(Reason::RestoredDisk) => RESTORED_DISK,
            Some(_) => NO_CATALOGUE,
        };
        self.owns_nothing.store(code, Ordering::Release);
    }

    #[inline]
    fn owns_nothing(&self) -> Option<Reason> {
        match self.owns_nothing.load(Ordering::Acquire) {
            0 => None,
            RESTORED_DISK => Some(Reason::RestoredDisk),
            _ => Some(Reason::NoCatalogue),
        }
    }
}

/// What calls for a rebalance between regions.
#[derive(Debug, Default)]
pub(crate) struct RebalanceCalls {
    /// Whether any cell calls.
    any: AtomicBool,
    /// The task that waits for a call.
    waker: Mutex<Option<Waker>>,
    /// Cells found on the disk that had something given away.
    found: Mutex<Vec<CellKey>>,
}

impl RebalanceCalls {
    fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether any cell called since this was last asked.
    fn take_any(&self) -> bool {
        self.any.swap(false, Ordering::AcqRel)
    }

    fn set_waker(&self, waker: &Waker) {
        *lock(&self.waker) = Some(waker.clone());
    }

    /// Notes that a cell calls; wakes the task that waits.
    fn call(&self) {
        if !self.any.swap(true, Ordering::AcqRel)
            && let Some(waker) = lock(&self.waker).take()
        {
            waker.wake();
        }
    }

    /// Notes a cell with loans or transfers from before this start: the sharing must watch it.
    pub(crate) fn note_found(&self, key: CellKey) {
        lock(&self.found).push(key);
    }
}

/// Why a node could not continue from its journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeFault {
    /// The journal belongs to another node, or to an earlier incarnation.
    #[error(
        "the journal was written by {kept:?}, and this is {incarnation:?}: give it its own, or an empty `data` folder and a new incarnation"
    )]
    AnotherWriter {
        /// The incarnation that wrote the journal.
        kept: Incarnation,
        /// The incarnation that reads it.
        incarnation: Incarnation,
    },
    /// A record of the journal cannot be read.
    #[error(
        "the journal's {0} cannot be read: restore nothing, begin with an empty `data` folder and a new incarnation"
    )]
    Unreadable(&'static str),
    /// The limits in the journal cannot be read.
    #[error(transparent)]
    Catalogue(#[from] CatalogueFault),
}

/// Decodes the versions on a disk, as this program or an earlier one wrote them.
fn kept_of(mut bytes: Vec<u8>) -> Option<versions::VersionsRecord> {
    let before = |bytes: &[u8]| whole::<versions::KeptBefore>(bytes).map(versions::VersionsRecord::from);
    whole(&bytes).or_else(|| before(&bytes)).or_else(|| {
        bytes.extend(versions::VersionsRecord::NONE_SPARED);
        before(&bytes)
    })
}

/// Decodes a value, if the bytes are the value and nothing else.
fn whole<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let (read, left) = postcard::take_from_bytes(bytes).ok()?;
    left.is_empty().then_some(read)
}

impl Node {
    /// Continues from this node's last process: its catalogue, loans and windows. Called once, before
    /// anything else; on an empty journal the node begins with nothing. The first rows must be on disk before
    /// the first frame leaves, and [`Node::poll`] ensures that.
    ///
    /// # Errors
    /// The journal is not this node's. The region then owns nothing.
    pub fn resume_home(
        &self,
        schedule: Vec<Scheduled>,
        now: Now,
        mut rows: impl FnMut(LimitId) -> Vec<Row>,
    ) -> Result<(), ResumeFault> {
        let Some(home) = self.setup.config.home else { return Ok(()) };
        let read = |of: LimitId, rows: &mut dyn FnMut(LimitId) -> Vec<Row>| {
            rows(of).into_iter().find_map(|row| row.state).map(|kept| kept.record().to_vec())
        };
        let mut memory = NodeMemory::default();
        if let Some(bytes) = read(MEMORY, &mut rows) {
            memory = postcard::from_bytes(&bytes).map_err(|_| ResumeFault::Unreadable("memory"))?;
        }
        memory = memory.next_start().ok_or(ResumeFault::Unreadable("memory"))?;
        let versions = match read(VERSIONS, &mut rows) {
            None => Versions::new(home.incarnation),
            Some(bytes) => {
                let kept = kept_of(bytes).ok_or(ResumeFault::Unreadable("catalogue"))?;
                Versions::restore(kept, now)
            }
        };
        if versions.me() != home.incarnation {
            return Err(ResumeFault::AnotherWriter { kept: versions.me(), incarnation: home.incarnation });
        }
        let charged = match read(USAGE, &mut rows) {
            None => Vec::new(),
            Some(bytes) => postcard::from_bytes(&bytes).map_err(|_| ResumeFault::Unreadable("usage"))?,
        };
        if let Some(leases) = &self.leases
            && let Some(bytes) = read(MATES, &mut rows)
            && !lock(leases).restore_mates(&bytes, now)
        {
            return Err(ResumeFault::Unreadable("who the nodes of the region are"));
        }
        *lock(&self.standing.memory) = memory;
        self.forwards.begin(memory.process_number);
        let born_in = self.remember(|_| ());
        let mut sharing = self.lock_sharing().ok_or(ResumeFault::Unreadable("regions"))?;
        *sharing = Sharing::new(home, versions, memory, born_in);
        sharing.take_up_usage(charged);
        if let Some(bytes) = read(SEALS, &mut rows) {
            sharing.take_up_seals(&bytes);
        }
        sharing.resume(self, schedule, now, rows)
    }

    /// Adopts a version of the catalogue; on the authority, one that [`Node::propose`] made. `rows` reads the
    /// journal, for limits that the version brings back; it returns `None` if the journal cannot be read.
    ///
    /// # Errors
    /// Why the version was refused. Nothing has changed.
    pub fn adopt(
        &self,
        version: Version,
        now: Now,
        rows: impl FnMut(LimitId) -> Option<Vec<Row>>,
    ) -> Result<Adopted, AdoptFault> {
        let mut sharing = self.lock_sharing().ok_or(AdoptFault::Alone)?;
        sharing.adopt(self, version, None, self.not_before(now), rows)
    }

    /// From now on signs this node's statements with these seals, and refuses versions and acknowledgements
    /// of others that their seals did not sign. Called once, after [`Node::resume_home`].
    pub fn seal_with(&self, seals: Arc<dyn Seals>) {
        if let Some(mut sharing) = self.lock_sharing() {
            sharing.seal_with(self, seals);
        }
    }

    /// Signs this node's statements anew, with a new certificate: nodes that pass them on can prove them as
    /// long as the certificate holds.
    pub fn sign_again(&self) {
        if let Some(mut sharing) = self.lock_sharing() {
            sharing.sign_again(self);
        }
    }

    /// The seal of this node's version; `None` if nobody signs.
    pub fn version_seal(&self) -> Option<Seal> {
        self.lock_sharing()?.version_seal()
    }

    /// Takes the last refused version or acknowledgement that its claimed incarnation was not proven to have
    /// made; returns that incarnation and the fault. Each refusal is returned once.
    pub fn take_unproven(&self) -> Option<(Incarnation, SealFault)> {
        self.lock_sharing()?.take_unproven()
    }

    /// The next version of the catalogue, if this node may make it.
    ///
    /// # Errors
    /// Why this node may not make it.
    pub fn propose(&self, draft: Draft, wall_ns: u64) -> Result<Version, VersionRefused> {
        let sharing = self.lock_sharing().ok_or(VersionRefused::Impossible("this node has no regions"))?;
        sharing.propose(draft, wall_ns)
    }

    /// The next version, with a new epoch, by which this node becomes the authority: an operator's command.
    ///
    /// # Errors
    /// Why this node may not make it.
    pub fn take_over(&self, draft: Draft, wall_ns: u64) -> Result<Version, VersionRefused> {
        let sharing = self.lock_sharing().ok_or(VersionRefused::Impossible("this node has no regions"))?;
        sharing.take_over(draft, wall_ns)
    }

    /// The version of the catalogue that this node has.
    pub fn version(&self) -> Option<Version> {
        self.lock_sharing()?.version().cloned()
    }

    /// Takes a frame that came over the connection of a region.
    ///
    /// # Errors
    /// Why the frame was refused. Nothing has changed.
    pub fn handle(&self, from: MemberId, frame: &[u8], now: Now) -> Result<(), FrameFault> {
        let mut sharing = self.lock_sharing().ok_or(FrameFault::Alone)?;
        sharing.handle(self, from, frame, now)
    }

    /// Lets time pass. `rows` reads the journal, for limits that a new version brings back; while it returns
    /// `None`, that version waits.
    ///
    /// # Errors
    /// A peer sent a version that this node cannot adopt.
    pub fn tick(&self, now: Now, rows: impl FnMut(LimitId) -> Option<Vec<Row>>) -> Result<(), AdoptFault> {
        let Some(mut sharing) = self.lock_sharing() else { return Ok(()) };
        let adopted = sharing.adopt_offered(self, self.not_before(now), rows);
        // If nodes share their region's pools, cells first call for their pools.
        let calls = match &self.leases {
            None => self.take_calls(),
            Some(leases) => lock(leases).take_dry(),
        };
        sharing.tick(self, now, calls);
        adopted
    }

    /// Whether a cell calls for a rebalance: time for a [`Node::tick`].
    pub fn calls(&self) -> bool {
        self.calls.any()
    }

    /// Ready while a cell calls for a rebalance ([`Node::calls`]). One task may wait: the last that polled is
    /// woken.
    pub fn poll_calls(&self, context: &Context<'_>) -> Poll<()> {
        // A cell that calls after this line wakes the task; an earlier call is seen below.
        self.calls.set_waker(context.waker());
        if self.calls() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The next frame to send, and its region; `None` if nothing more may leave now.
    pub fn poll(&self, now: Now) -> Option<(MemberId, Vec<u8>)> {
        self.poll_to(now, |_| true)
    }

    /// As [`Node::poll`], for regions to which a frame can be sent now. For other regions, only the latest
    /// contents wait.
    pub fn poll_to(&self, now: Now, may_send: impl Fn(MemberId) -> bool) -> Option<(MemberId, Vec<u8>)> {
        self.lock_sharing()?.poll(self, now, may_send)
    }

    /// Notes a new connection to a region: frames that were under way on the old connection, and not
    /// confirmed, are sent again at once.
    pub fn reconnected(&self, region: MemberId, now: Now) {
        if let Some(mut sharing) = self.lock_sharing() {
            sharing.reconnected(region, now);
        }
    }

    /// Adds another region, to which frames are sent from now on.
    pub fn meet(&self, incarnation: Incarnation) {
        if let Some(mut sharing) = self.lock_sharing() {
            sharing.meet(incarnation);
        }
    }

    /// Asks the node of another region, once it is reached, to settle a charge that it made. Says whether
    /// there is such a region, and room to wait. A restart of this node forgets waiting settlements.
    pub fn pass_settlement_on(&self, to: MemberId, id: ChargeId, cost: Option<u64>) -> bool {
        self.lock_sharing().is_some_and(|mut sharing| sharing.pass_settlement_on(to, id, cost))
    }

    /// This node's standing among the regions.
    pub fn membership(&self, now: Now) -> Option<Membership> {
        Some(self.lock_sharing()?.membership(now))
    }

    /// Counts of what was sent and refused.
    pub fn traffic(&self) -> Traffic {
        self.lock_sharing().map_or_else(Traffic::default, |sharing| sharing.traffic())
    }

    /// Units that all regions reported as charged under a limit, minus those given back.
    pub fn usage_of(&self, limit: LimitId) -> u128 {
        self.lock_sharing().map_or(0, |sharing| sharing.usage_of(limit))
    }

    /// Units that one incarnation reported as charged under a limit.
    pub fn charged_by(&self, incarnation: Incarnation, limit: LimitId) -> u64 {
        self.lock_sharing().map_or(0, |sharing| sharing.charged(incarnation, limit))
    }

    pub(crate) fn lock_sharing(&self) -> Option<MutexGuard<'_, Sharing>> {
        self.sharing.as_ref().map(lock::<Sharing>)
    }

    // The calls for the sharing.

    pub(crate) fn sessions(&self) -> RwLockReadGuard<'_, BTreeMap<Incarnation, Session>> {
        self.standing.sessions.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sessions_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<Incarnation, Session>> {
        self.standing.sessions.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what the node remembers of itself; returns the batch with the change.
    pub(crate) fn remember(&self, change: impl FnOnce(&mut NodeMemory)) -> u64 {
        let mut memory = lock(&self.standing.memory);
        change(&mut memory);
        let bytes = postcard::to_allocvec(&*memory).unwrap_or_default();
        self.write_record(MEMORY, bytes)
    }

    /// Queues a record that is not a cell for the disk; returns its batch.
    pub(crate) fn write_record(&self, name: LimitId, bytes: Vec<u8>) -> u64 {
        self.push_row(Row { limit: name, tag: CellTag(0), state: Some(CellRecord::of_record(bytes)) })
    }

    /// Queues a cell with its loans and transfers for the disk; returns its batch.
    pub(crate) fn write_account(&self, CellKey { slot, tag }: CellKey, cell: &mut HeapCell, now: Now) -> u64 {
        cell.forget_held_if_variant_changed();
        let catalogue = self.catalogue();
        let (Some(limit), Some(account)) = (catalogue.id(slot), cell.account.take()) else { return 0 };
        let pledge = account.pledge();
        // For an unjournalled bucket, a crash presumes the largest debt that is allowed; only a larger debt
        // must be written.
        let is_overdrawn = may_be_overdrawn(&account.algorithm)
            && account.algorithm.owed(&cell.state, now) > account.effective().units;
        let kept = catalogue.is_durable(slot) || is_overdrawn;
        let tag = journal_tag(tag);
        let batch = if !kept && pledge.is_empty() && cell.is_unwritten() {
            // The disk has no row of the cell, and needs none.
            0
        } else if !kept && pledge.is_empty() {
            cell.forget_written();
            self.push_row(Row { limit, tag, state: None })
        } else {
            let state = cell.state_to_write(&account.algorithm, now);
            let record = Some(CellRecord::new(&account.algorithm, &state, now).with_pledge(pledge));
            let batch = self.push_row(Row { limit, tag, state: record });
            cell.ask(state, batch);
            batch
        };
        cell.account = Some(account);
        batch
    }

    pub(crate) fn could_apply(&self, limits: &[Limit]) -> Result<(), CatalogueFault> {
        lock(&self.limits.registry).refuse(limits)
    }

    /// Whether cells of this node can be tagged with a catalogue's key.
    pub(crate) fn takes_key(&self, key: versions::CellSecret) -> bool {
        lock(&self.limits.registry).takes_key(&HashKey(key.0))
    }

    /// Tags cells with a catalogue's key from now on.
    pub(crate) fn set_key(&self, key: versions::CellSecret) {
        lock(&self.limits.registry).set_key(&HashKey(key.0));
    }

    /// Adopts the shares of these allocations at the next change of limits.
    pub(crate) fn set_allocations(&self, allocations: Allocations) {
        lock(&self.limits.registry).set_allocations(allocations);
    }

    /// Adopts the shares of these allocations; says whether any limit's variants changed.
    ///
    /// # Errors
    /// A limit has had too many variants. With its old shares, the node would spend what others count on.
    pub(crate) fn reshare(&self, allocations: Allocations, now: Now) -> Result<bool, CatalogueFault> {
        // Held so that a rebalance of the pools uses one catalogue throughout.
        let _held = self.leases.as_ref().map(lock);
        let mut registry = lock(&self.limits.registry);
        let changed = registry.share(allocations, now)?;
        if changed {
            self.publish(&registry, now);
        }
        let unwritten = registry.take_unwritten();
        drop(registry);
        self.write_cells(unwritten, now);
        Ok(changed)
    }

    /// How long units spent under any variant of a limit so far may count.
    pub(crate) fn drains_ns(&self, limit: &Limit) -> u64 {
        lock(&self.limits.registry).drains_ns(limit)
    }

    /// Whether a limit was in force since the start, so that its spent units are known.
    pub(crate) fn knows(&self, limit: LimitId) -> bool {
        lock(&self.limits.registry).knows(limit)
    }

    pub(crate) fn slot_of(&self, limit: LimitId) -> Option<u32> {
        lock(&self.limits.registry).slot_of(limit)
    }

    /// Lets nothing pass until a restart, which numbers variants anew. To other nodes, this node looks as if
    /// it had crashed.
    pub(crate) fn stop_for_want_of_variants(&self) {
        self.limits.run_out_of_variants();
        self.forwards.close();
    }

    /// Whether [`Node::stop_for_want_of_variants`] was called.
    #[inline]
    pub(crate) fn is_out_of_variants(&self) -> bool {
        self.limits.is_out_of_variants()
    }

    /// Whether cells may be decided on: another clock agrees with the wall clock, and limits have the
    /// variants that they need.
    #[inline]
    pub(crate) fn may_decide(&self) -> bool {
        self.is_wall_believed() && !self.is_out_of_variants()
    }

    pub(crate) fn set_owns_nothing(&self, reason: Option<Reason>) {
        self.standing.set_owns_nothing(reason);
    }

    /// Whether there is a cell, with an account or without.
    pub(crate) fn has_cell(&self, CellKey { slot, tag }: CellKey) -> bool {
        self.shards[crate::shard_of(tag)].lock().table.find(tag, slot).is_some()
    }

    pub(crate) fn has_room_for_accounts(&self, cells: &mut Cells, now: Now) -> bool {
        let (catalogue, evicted) = (self.catalogue(), cells.evicted);
        let has_room = cells.make_room(1, self.shard_bytes_max(), false, now.steady_ns, |cell, heap| {
            let idle = || catalogue.is_idle(cell.slot(), cell.variant(), cell.salt(), heap.state(cell), now);
            heap.is_unwritten(cell) && !heap.is_shared(cell) && idle() && self.is_wall_believed()
        });
        if cells.evicted > evicted {
            self.leave_behind(now);
        }
        has_room && !self.overflow.any()
    }

    /// Takes the cells that had something given away before this start.
    pub(crate) fn take_found(&self) -> Vec<CellKey> {
        std::mem::take(&mut *lock(&self.calls.found))
    }

    /// Takes the cells that call for a rebalance.
    pub(crate) fn take_calls(&self) -> Vec<CellKey> {
        if !self.calls.take_any() {
            return Vec::new();
        }
        let mut calls = Vec::new();
        for shard in &self.shards {
            if shard.calls() {
                calls.append(&mut shard.lock().take_attention());
            }
        }
        calls
    }

    /// Takes the units charged and the units given back since the last call, by the slot of the limit.
    pub(crate) fn take_spent(&self) -> Vec<(u32, u64, u64)> {
        let mut all: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for shard in &self.shards {
            let mut cells = shard.lock();
            cells.take_spent().for_each(|(slot, units)| all.entry(slot).or_default().0 += units);
            cells.take_refunded().for_each(|(slot, units)| all.entry(slot).or_default().1 += units);
        }
        all.into_iter().map(|(slot, (spent, returned))| (slot, spent, returned)).collect()
    }

    // The calls for the cells.

    /// Why this region owns nothing, if so.
    #[inline]
    pub(crate) fn owns_nothing(&self) -> Option<Reason> {
        self.standing.owns_nothing()
    }

    /// Notes that a cell calls for a rebalance.
    pub(crate) fn call(&self, shard: usize) {
        self.shards[shard].call();
        self.calls.call();
    }

    /// The wait that a denial reports if nothing else is known.
    pub(crate) const fn ask_again_ns(&self) -> u64 {
        SETTINGS.decide.ask_again_ns
    }

    /// Whether others are told what is charged here and given back: otherwise nobody takes these sums.
    #[inline]
    pub(crate) const fn counts_usage(&self) -> bool {
        self.sharing.is_some()
    }

    /// Whether limits are shared with other regions, or with other nodes of this region.
    #[inline]
    pub const fn is_shared(&self) -> bool {
        self.sharing.is_some() || self.leases.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use acequia_limits::{Request, limit::LimitSpec};
    use serde_json::json;

    use crate::{Ask, Config, Home, regions::LOAN_TTL_NS};

    /// A clock that is doubted again and again changes the margin of windows, and so all variants.
    #[test]
    fn a_node_without_room_for_variants_of_new_shares_admits_nothing() {
        let incarnation = Incarnation { member: MemberId(0), node: 0, number: 1 };
        let home = Some(Home { incarnation, loan_ttl_ns: LOAN_TTL_NS });
        let key = HashKey([7; 16]);
        let node = Arc::new(Node::new(Config {
            key,
            memory_bytes: 1 << 20,
            durable: true,
            after_crash: None,
            home,
        }));
        let overrides: Vec<_> =
            (0..1_000).map(|n| json!({ "key": format!("k{n}"), "limit": 10 + n })).collect();
        let spec: LimitSpec = serde_json::from_value(json!({
            "name": "w", "domain": "shop", "by": ["key"], "fixed_window": { "limit": 5, "window": "1h" }, "overrides": overrides
        }))
        .expect("a limit");
        lock(&node.limits.registry)
            .apply(vec![Limit::new(spec).expect("a limit")], Now::at(1))
            .expect("in force");
        let shares = |margin_ns| Allocations { margin_ns, ..Allocations::none(incarnation.member) };
        let faults: Vec<bool> =
            (1..=9).map(|margin_ns| node.reshare(shares(margin_ns), Now::at(1)).is_err()).collect();
        assert_eq!(faults, [[false; 7].as_slice(), &[true; 2]].concat(), "8 times 1001 of 8192");
        node.clock.believe_wall();
        assert!(node.may_decide());
        node.stop_for_want_of_variants();
        let mut asker = node.asker();
        let answer = asker.check(&Request::new("shop", &[("key", "k0")]), Now::at(1), Ask::CHECK);
        assert_eq!((answer.allowed, answer.reason), (false, Reason::NoCatalogue));
        assert!(node.forwards.is_closed());
    }

    #[test]
    fn a_memory_row_that_no_node_can_have_written_is_refused() {
        let incarnation = Incarnation { member: MemberId(0), node: 0, number: 1 };
        let config = Config {
            key: HashKey([7; 16]),
            memory_bytes: 1 << 20,
            durable: true,
            after_crash: None,
            home: Some(Home { incarnation, loan_ttl_ns: LOAN_TTL_NS }),
        };
        let resumed = |process_number, loans| {
            let record = postcard::to_allocvec(&NodeMemory { process_number, loans }).expect("bytes");
            let row = Row { limit: MEMORY, tag: CellTag(0), state: Some(CellRecord::of_record(record)) };
            let rows = |limit| if limit == MEMORY { vec![row.clone()] } else { Vec::new() };
            Node::new(config).resume_home(Vec::new(), Now::at(1), rows)
        };
        assert_eq!(resumed(3, 4_096), Ok(()));
        assert_eq!(resumed(u32::MAX, 4_096), Err(ResumeFault::Unreadable("memory")));
        assert_eq!(resumed(3, u64::MAX), Err(ResumeFault::Unreadable("memory")));
    }

    /// Two older formats lack bytes at an end. Before allocations spared windows, the record lacked its last
    /// field. Before certificates could be revoked, the version lacked its last field.
    #[test]
    fn rows_in_older_formats_are_read() {
        let me = Incarnation { member: MemberId(3), node: 0, number: 2 };
        let bytes_of = |kept: &versions::VersionsRecord| postcard::to_allocvec(kept).expect("bytes");
        let mut versions = Versions::new(me);
        let unheard = bytes_of(versions.kept());
        assert_eq!(kept_of(unheard.clone()).as_ref(), Some(versions.kept()));
        let member = versions::Member { weight: 1, incarnation: me, name: "eu/eu-1".to_owned() };
        let draft = Draft {
            members: [(me.member, member)].into(),
            fenced: Vec::new(),
            clock_error_ns: 1,
            drift_ppm: 1,
            key: versions::CellSecret([7; 16]),
            limits: b"[]".to_vec(),
            revoked: std::collections::BTreeSet::new(),
        };
        let version = versions.propose(draft, 1).expect("a version");
        versions.adopt(version.clone(), Now::at(1)).expect("adopted");
        let kept = versions.kept();
        let bytes = bytes_of(kept);
        assert_eq!(kept_of(bytes.clone()).as_ref(), Some(kept));
        // This byte follows the version and says that nothing is revoked. The 1 says that there is a version.
        let place = postcard::to_allocvec(&(me, 1_u8, &version)).expect("bytes").len() - 1;
        assert_eq!(bytes[place], 0);
        let mut before = bytes;
        before.remove(place);
        assert_eq!(kept_of(before.clone()).as_ref(), Some(kept));
        assert_eq!(before.pop(), Some(0));
        assert_eq!(kept_of(before.clone()).as_ref(), Some(kept));
        before.pop();
        assert_eq!(kept_of(before), None);
    }
}
