//! How a node shares its region's limits with the other nodes of the region: what it takes from their pools,
//! and when.
//!
//! A node spends its guard share, which is its own whatever happens, and what it holds of a cell's pool,
//! which is never more than the pool has down for it ([`acequia_rights::pool`]). This module decides when to
//! call a pool and for how much, and takes up the answers. It knows no socket: [`Node::poll_call`] gives the
//! next call to make, [`Node::answer_call`] takes its answer, [`Node::tick_leases`] lets time pass.
//!
//! A cell is decided by the guard share alone, and costs no call, until half of that is used or a request is
//! denied. From then on the cell has an account, and is rebalanced as often as it is asked for. It takes what
//! it will need by its demand: a part with an end from the pool of a bucket or a sliding window, units from
//! that of a window. The lease is enough for a while, so that a pool that cannot be reached is not missed at
//! once. Unused units go back.
//!
//! When a pool has nothing for a cell, other regions may have ([`crate::regions`]). What those ask for is
//! taken of pools here, to be given or lent to them.
//!
//! When nobody answers for a group any more, its store is *lost*: a store outage. A limit says what then
//! decides ([`acequia_limits::limit::OnStoreLoss`]).

mod allocation;
mod answer;
mod call;
mod cell;
mod clock_promise;
mod earlier;
mod excluded;
mod group;
mod groups;
mod held;
mod leased_cells;
mod leave;
mod outage;
mod pending;
mod places;
mod rebalance;
mod region_nodes;
mod region_setup;
mod view;
mod watch;
mod withdrawals;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use acequia_limits::Now;
use acequia_rights::{
    MemberId,
    mutation::{Mutation, mutated},
    pool::group::Assertion,
};
use smallvec::SmallVec;

use self::{
    allocation::CallBasis,
    cell::CellLease,
    earlier::EarlierWithdrawals,
    group::GroupView,
    groups::{Groups, StoreState},
    leased_cells::LeasedCells,
    pending::{NewCall, PendingCall, PendingCalls},
    places::Who,
    rebalance::{PoolContext, Rebalanced, rebalance_cell},
    region_nodes::RegionNodes,
};

use crate::{
    Catalogue, Config, Keep, KeptAt, Node,
    catalogue::{Allocations, local::GuardShare},
    cell::locked_cell::LockedCell,
    lock,
    regions::{CellKey, ClockReading, Timekeeper, WallBounds},
    settings::SETTINGS,
};

pub use self::{
    call::{GROUPS, PoolCall, PoolName, PoolReply, PoolRequest},
    excluded::{EXCLUDED_NS_MAX, NotExcluded},
    group::Heard,
    region_setup::{RegionSetup, ServerClock},
    view::PoolView,
};
pub(crate) use call::group_of;
pub(crate) use clock_promise::ClockPromise;
pub(crate) use outage::StoreOutages;
pub(crate) use places::{NamePlaces, RegionStore};

pub use crate::settings::{CALL_NS, LATE_NS, LEASE_NS};

/// An answer counts no more this long after the call.
const LOST_NS: u64 = 5 * CALL_NS;

/// Counts of calls to pools since the start, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Calls that were made.
    pub calls: u64,
    /// Calls without an answer in time.
    pub missed: u64,
    /// Calls that a pool refused.
    pub refused: u64,
    /// Generations that were heard of.
    pub generations: u64,
    /// How often this node told a group that it has told all that it holds of the group's pools: in each
    /// generation that waits for that, and again until it grants.
    pub assertions: u64,
    /// Cells with leases now.
    pub cells: u64,
    /// Groups of cells whose pools grant, of [`GROUPS`].
    pub granting: u64,
    /// Groups of cells in a store outage: nobody has answered for half a second.
    pub lost: u64,
    /// Units beyond this node's own that passed under limits that stay open in a store outage.
    pub open_units: u64,
    /// How often limits with pools allowed by what this node held, while the store of the cell's group was
    /// lost. Units that passed beyond that are in `open_units` alone.
    pub guard_allowed: u64,
    /// How often such limits denied meanwhile.
    pub guard_denied: u64,
}

/// The state of a node's leases on the pools of its region.
#[derive(Debug)]
pub(crate) struct Leases {
    home: RegionSetup,
    adopted: CallBasis,
    groups: Groups,
    cells: LeasedCells,
    calls: PendingCalls,
    earlier: EarlierWithdrawals,
    /// The wall that this node goes by, if it hears of no clocks but the servers'.
    time: Timekeeper,
    /// The nodes that count, if the catalogue names them.
    mates: RegionNodes,
    admission: Admission,
    /// Nodes that are excluded, and until when: steady clock.
    excluded: BTreeMap<u16, u64>,
    /// Until this time loans of a departed node may be out: steady clock.
    loans_end_ns: u64,
}

/// Whether all other nodes count this one. Before that it hears of no generation: others may begin one that
/// does not wait for this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// Others must first count it.
    Awaited,
    /// They count it from the first tick on.
    Due,
    Counted,
}

impl Leases {
    pub(crate) fn new(home: RegionSetup) -> Self {
        Self {
            adopted: CallBasis::first(&home),
            groups: Groups::since(&home.generations),
            cells: LeasedCells::default(),
            calls: PendingCalls::default(),
            earlier: EarlierWithdrawals::unknown_before(home.begun_us),
            time: Timekeeper::default(),
            mates: RegionNodes::new(home.members.clone()),
            admission: if home.must_be_counted() { Admission::Awaited } else { Admission::Due },
            excluded: BTreeMap::new(),
            loans_end_ns: 0,
            home,
        }
    }

    /// Shows to decisions where a group keeps its records, if its generation may be used.
    fn show(&self, node: &Node, number: u16) {
        let group = self.groups.of(number);
        let kept = group.is_heard().then(|| KeptAt {
            group: number,
            allocation: self.adopted.allocation,
            generation: group.generation(),
            grants: group.grants(),
        });
        node.store.places.set(number, kept);
    }

    /// Shows the records of all groups, and this node's identity.
    fn show_all(&self, node: &Node) {
        (0..GROUPS).for_each(|group| self.show(node, group));
        node.store.places.set_who(self.who());
    }

    const fn who(&self) -> Who {
        let ClockPromise { error_ns, drift_ppm } = self.adopted.clocks;
        Who { node: self.home.node, clock_error_ns: error_ns, drift_ppm }
    }

    fn tick(&mut self, node: &Node, now: Now, calls: Vec<CellKey>) {
        for key in calls {
            self.cells.wake(key, now.steady_ns);
        }
        self.give_up(node, now);
        if self.admission == Admission::Due {
            self.is_counted_now(now);
        }
        if !self.calls.have_begun(now) || !self.may_hear() || !node.is_wall_believed() {
            return;
        }
        self.keep_silent(node, now);
        self.keep_groups(now);
        let catalogue = node.catalogue();
        for _ in 0..SETTINGS.pool.rebalances_max {
            let Some(key) = self.cells.pop_due(now) else { break };
            self.rebalance(node, &catalogue, key, now);
        }
    }

    /// Whether others wait for this node before any generation grants.
    fn may_hear(&self) -> bool {
        self.admission == Admission::Counted || mutated(Mutation::LeaseHearsUncounted)
    }

    /// A cell calls: it is rebalanced now, or soon if that was done just before.
    pub(crate) fn wake(&mut self, key: CellKey, now_ns: u64) {
        self.cells.wake(key, now_ns);
    }

    /// Calls no pool before this time, by the steady clock: loans of an earlier process end then.
    pub(crate) fn begin_after(&mut self, at_ns: u64) {
        if earlier_loans_count() {
            self.calls.begin_after(at_ns);
        }
    }

    /// The cells whose pool had nothing for them, since the last call of this function.
    pub(crate) fn take_dry(&mut self) -> Vec<CellKey> {
        self.cells.take_dry()
    }

    /// The nodes that a generation waits for.
    fn nodes(&self) -> BTreeSet<u16> {
        if self.home.members.is_empty() { self.home.nodes.clone() } else { self.mates.counted() }
    }

    /// How many nodes hold parts of a pool, at most.
    fn most_nodes(&self) -> u64 {
        self.mates.all().len().max(self.home.nodes.len()) as u64
    }

    /// Restores what an earlier process knew of the region's nodes.
    pub(crate) fn restore_mates(&mut self, bytes: &[u8], now: Now) -> bool {
        // A catalogue may promise worse clocks than this file, by at most a minute.
        let is_read = self.mates.restore(bytes, self.over_us(now).saturating_add(60_000_000));
        if self.mates.gone_us() > now.wall_ns / 1_000 {
            self.await_loans(now);
        }
        is_read
    }

    /// The record of the region's nodes that must be written down, after the catalogue's version that it
    /// follows from.
    pub(crate) fn unwritten_mates(&mut self) -> Option<Vec<u8>> {
        self.mates.unwritten()
    }

    fn assertion(&self, group: &GroupView, now: Now) -> Assertion {
        Assertion {
            node: self.home.node,
            generation: group.generation(),
            nodes: self.nodes(),
            knows_from_us: self.earlier.known_from_us.max(self.mates.gone_us()),
            is_new: self.home.is_new && group.is_new(),
            before: group.before(),
            wall_us: now.wall_ns / 1_000,
            slack_us: self.adopted.clocks.slack_us(0),
        }
    }

    /// Rebalances a cell: what was asked of it, what it holds, and what to ask its pool.
    fn rebalance(&mut self, node: &Node, catalogue: &Catalogue, key: CellKey, now: Now) {
        let Some(mut lease) = self.cells.take(key) else { return };
        let pool = self.pool_context(node, catalogue, key, &lease, now);
        if let Some(pool) = &pool
            && let Some(withdrawals) = self.earlier.take(pool.limit, key.tag)
        {
            lease.withdrawals = withdrawals;
        }
        lease.wants_word = false;
        let locked_cell = LockedCell { node, catalogue, key, now, which: None };
        let held = lease.held;
        let rebalanced = pool.and_then(|pool| {
            let rebalanced = locked_cell
                .at(true, |context, cell| rebalance_cell(&pool, &mut lease, context, cell, node, now))?;
            Some((pool, rebalanced))
        });
        self.cells.held.change(key.slot, held, lease.held);
        match rebalanced {
            Some((_, Rebalanced::Over)) => self.drop_cell(key),
            Some((pool, Rebalanced::GoesOn(call))) => self.go_on(lease, &pool, call, now),
            None => self.do_without_room(node, catalogue, key, lease, now),
        }
    }

    /// What a cell's rebalance goes by; `None` if the limit is not known any more.
    fn pool_context(
        &mut self,
        node: &Node,
        catalogue: &Catalogue,
        key: CellKey,
        lease: &CellLease,
        now: Now,
    ) -> Option<PoolContext> {
        let taker = self.calls.taker(&self.home);
        let number = group_of(key.tag);
        let group = self.groups.of(number);
        let may_call = group.is_heard() && !lease.is_calling() && !self.calls.are_full();
        let limit = catalogue.id(key.slot)?;
        Some(PoolContext {
            clocks: self.adopted.clocks,
            nodes: self.home.nodes.len() as u64,
            writes_withdrawals: self.home.knows_from_us.is_some(),
            taker,
            limit,
            key,
            owner: node.forwards.owner(key.tag, catalogue.active_of(key.slot), now),
            generation: may_call.then(|| group.generation()),
            heard: group.generation(),
            since: group.remembers_since(),
            store: self.groups.store_state(number, now.steady_ns),
            lasts: self.cells.len() < SETTINGS.pool.lasting_max,
            is_leaving: self.cells.are_leaving(),
        })
    }

    /// A cell holds nothing, and needs nothing of its pool.
    fn drop_cell(&mut self, key: CellKey) {
        self.cells.left(key);
        self.groups.of_mut(group_of(key.tag)).forget(key);
    }

    /// There is no room for the cell now, or its variant is just changing: it may hold units.
    fn do_without_room(
        &mut self,
        node: &Node,
        catalogue: &Catalogue,
        key: CellKey,
        mut lease: CellLease,
        now: Now,
    ) {
        lease.withdrawals.forget(self.adopted.clocks.over_ns(now));
        if lease.is_out_of_room(now) && !node.has_cell(key) {
            self.know_nothing_of(node, catalogue, key, lease);
            return self.drop_cell(key);
        }
        self.cells.put_back_for(key, lease, SETTINGS.pool.later_ns, now);
    }

    /// Makes the call that a cell's rebalance asks for, and notes what else the cell needs.
    fn go_on(&mut self, mut lease: CellLease, pool: &PoolContext, call: Option<NewCall>, now: Now) {
        let (key, number) = (pool.key, group_of(pool.key.tag));
        let group = self.groups.of_mut(number);
        group.cells.insert(key);
        if call.is_none() && is_told(pool) {
            group.told(key);
        }
        if let Some(call) = call
            && self.call(number, call, now).is_some()
        {
            lease.calls();
        }
        // A lost store answers nothing.
        let is_lost = pool.store == StoreState::Lost;
        let is_heard = lease.statements.unheard.is_none() || is_lost;
        if !lease.is_calling() && is_heard && !self.calls.are_full() {
            self.cells.left(key);
        }
        let has_none = lease.is_dry(now) || (is_lost && lease.is_missed());
        if has_none && !self.home.members.is_empty() {
            self.cells.note_dry(key);
        }
        if lease.wants_word && self.groups.of(number).may_be_watched() {
            self.ask_state(number, now);
        }
        self.calls.wants_disk |= lease.waits_for_disk;
        let after_ns = lease.rebalance_after_ns();
        self.cells.put_back_for(key, lease, after_ns, now);
    }

    /// Puts a call in line. Returns its number, or `None` if there is no room.
    fn call(&mut self, group: u16, call: NewCall, now: Now) -> Option<u64> {
        let NewCall { about, request } = call;
        let pending = PendingCall {
            adopted: self.adopted.versions,
            group,
            generation: self.groups.of(group).generation(),
            sent_ns: now.steady_ns,
            about,
        };
        self.calls.put_in_line(self.adopted.allocation, request, pending, now)
    }

    /// Notes that these generations are on the disk. Cells that waited for that are told now.
    fn generations_kept(&mut self, node: &Node, kept: &[Heard], now: Now) {
        for key in self.groups.keep(kept) {
            self.cells.rebalance_at(key, now.steady_ns);
        }
        self.show_all(node);
    }

    fn counts(&self) -> LeaseCounts {
        LeaseCounts {
            cells: self.cells.len() as u64,
            granting: self.groups.iter().filter(|group| group.grants()).count() as u64,
            lost: self.groups.lost.len() as u64,
            ..self.calls.counts
        }
    }
}

/// A node calls no pool before loans of its earlier process have ended: they rest on that process's leases.
fn earlier_loans_count() -> bool {
    !mutated(Mutation::LeaseForgetsLoans)
}

/// A pool that could be called, and need not be, was told all that the cell holds.
fn is_told(pool: &PoolContext) -> bool {
    pool.generation.is_some() || mutated(Mutation::LeaseAssertedEarly)
}

impl Node {
    /// A node that shares its limits with other nodes of its region, and with other regions if `config` has a
    /// home. In that case `region` names the members of the region among all regions' nodes, this one
    /// included.
    ///
    /// # Panics
    /// If `region` names no nodes, or more than there may be.
    pub fn among(config: Config, keep: Keep, region: RegionSetup) -> Self {
        let mut node = Self::keeping(config, keep);
        match config.home {
            Some(_) => {
                node.setup.guard =
                    Some(GuardShare::of_parts(region.members.values().copied(), region.guard_percent));
            }
            None => {
                let guard = GuardShare::new(region.node, &region.nodes, region.guard_percent);
                let (drift_ppm, margin_ns) = (region.drift_ppm, region.clock_error_ns);
                let allocations = Allocations {
                    guard: Some(guard),
                    drift_ppm,
                    margin_ns,
                    ..Allocations::none(MemberId(0))
                };
                lock(&node.limits.registry).set_allocations(allocations);
            }
        }
        node.setup.rows_hold.clone_from(&region.rows_hold);
        let leases = Leases::new(region);
        node.store.places = NamePlaces::of(leases.who());
        node.leases = Some(Mutex::new(leases));
        node
    }

    /// Lets time pass: rebalances cells that are due or call. Every ten milliseconds or so, and at once while
    /// [`Node::calls`].
    pub fn tick_leases(&self, now: Now) {
        let Some(leases) = &self.leases else { return };
        let mut leases = lock(leases);
        let now = self.not_before(now);
        self.leave_behind(now);
        let calls = self.take_calls();
        leases.tick(self, now, calls);
        self.remote_supply.see_pools(leases.calls.are_answered() && leases.may_hear(), now.steady_ns);
    }

    /// Compares the system's wall with the clocks of the pools' servers that told the time lately. If a node
    /// hears of no other clocks, a wall that was set while the node runs counts once most of these clocks
    /// agree with it. Until then the steady clock carries the last wall on. A server whose clock agrees with
    /// neither is ignored. Among regions, whose nodes hear each other's clocks, this function does nothing.
    pub fn compare_wall(&self, raw: Now, servers: &[ServerClock]) {
        let Some(leases) = self.leases.as_ref().filter(|_| self.sharing.is_none()) else { return };
        let mut leases = lock(leases);
        let bounds = WallBounds {
            error_ns: leases.adopted.clocks.error_ns,
            drift_ppm: leases.adopted.clocks.drift_ppm,
            has_peers: true,
            is_alone: servers.is_empty(),
            journal_ns: self.clock.journal_wall_ns(),
        };
        let (steady_ns, wall_ns) = (raw.steady_ns, raw.wall_ns);
        let is_witness = |clock: &ClockReading| leases.time.is_witness(steady_ns, wall_ns, &bounds, clock);
        let readings: SmallVec<[ClockReading; 8]> =
            servers.iter().map(ClockReading::of_server).filter(is_witness).collect();
        leases.time.observe(raw.steady_ns, raw.wall_ns, &bounds, &readings);
        self.set_wall(&leases.time, bounds.error_ns, bounds.drift_ppm);
    }

    /// When [`Node::tick_leases`] should be called next, unless [`Node::calls`] before: steady clock; `None`
    /// if there are no leases.
    pub fn leases_due_ns(&self) -> Option<u64> {
        let leases = lock(self.leases.as_ref()?);
        let calls = leases.may_hear() && self.is_wall_believed();
        leases.cells.next_due_ns().filter(|_| calls)
    }

    /// The next call to make of a pool.
    pub fn poll_call(&self) -> Option<PoolCall> {
        let mut leases = lock(self.leases.as_ref()?);
        let may_leave = self.progress().committed >= leases.adopted.after_batch;
        if may_leave { leases.calls.next() } else { None }
    }

    /// Whether a call has begun to wait for rows of [`Node::take_rows`] to be on the disk.
    pub fn leases_want_disk(&self) -> bool {
        self.leases.as_ref().is_some_and(|leases| std::mem::take(&mut lock(leases).calls.wants_disk))
    }

    /// Takes the answer to a call.
    pub fn answer_call(&self, id: u64, reply: &PoolReply, now: Now) {
        if let Some(leases) = &self.leases {
            lock(leases).answer(self, id, reply, self.not_before(now));
        }
    }

    /// The last generation of each group that this node has heard of, if one changed: for
    /// [`RegionSetup::generations`] of later processes. Nothing is taken of those groups before
    /// [`Node::generations_kept`].
    pub fn unkept_generations(&self) -> Option<Vec<Heard>> {
        lock(self.leases.as_ref()?).groups.unkept()
    }

    /// The last generation of each group that this node has heard of.
    pub fn generations(&self) -> Vec<Heard> {
        let Some(leases) = &self.leases else { return Vec::new() };
        lock(leases).groups.to_keep()
    }

    /// Whether every group's generation is the first: nothing was ever taken of any pool.
    pub fn is_first_of_all(&self) -> bool {
        self.leases.as_ref().is_some_and(|leases| lock(leases).groups.iter().all(GroupView::is_first))
    }

    /// Notes that these generations are on the disk. If they could not be written: none, and they are given
    /// again.
    pub fn generations_kept(&self, kept: &[Heard], now: Now) {
        if let Some(leases) = &self.leases {
            lock(leases).generations_kept(self, kept, self.not_before(now));
        }
    }

    /// Units that this node holds of its region's pools, and has neither spent nor given back, as of each
    /// cell's last rebalance. By [`Active::slot`](crate::Active::slot), without limits of which it holds
    /// none. For windows these are units that were taken and not charged. For buckets and sliding windows:
    /// the part that is held, in which charged units come back with time.
    pub fn units_held(&self) -> BTreeMap<u32, u64> {
        self.leases.as_ref().map_or_else(BTreeMap::new, |leases| lock(leases).cells.held.units())
    }

    /// Counts of calls to pools since the start.
    pub fn lease_counts(&self) -> LeaseCounts {
        let Some(leases) = &self.leases else { return LeaseCounts::default() };
        let [guard_allowed, guard_denied] = self.store.outages.decided();
        let open_units = self.catalogue().open_units();
        LeaseCounts { open_units, guard_allowed, guard_denied, ..lock(leases).counts() }
    }
}
