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
mod call;
mod cell;
mod excluded;
mod group;
mod held;
mod leave;
mod outage;
mod pending;
mod places;
mod rebalance;
mod region_nodes;
mod view;
mod watch;
mod withdrawals;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, atomic::Ordering},
};

use acequia_limits::{CellTag, LimitId, Now};
use acequia_rights::{
    MemberId,
    mutation::{Mutation, mutated},
    pool::{
        AGREEMENT, Generation, Refused, Taker,
        group::{Assertion, GroupStatus},
        slack_us,
    },
};
use smallvec::SmallVec;

use self::{
    cell::CellLease,
    group::GroupView,
    held::HeldByLimit,
    pending::{About, Pending},
    places::Who,
    rebalance::{Scene, rebalance_cell},
    region_nodes::RegionNodes,
    watch::Watch,
    withdrawals::{Record, Withdrawals},
};

use crate::{
    Catalogue, Config, Keep, KeptAt, Node, Row,
    catalogue::{Allocations, local::Guard},
    cell::locked_cell::LockedCell,
    journal::HeapCell,
    lock,
    regions::{Bounds, CellKey, Reading, Timekeeper},
};

pub use self::{
    call::{Call, GROUPS, PoolName, PoolReply, PoolRequest},
    excluded::{ABSENT_NS_MAX, NotLeftOut},
    group::Heard,
    view::PoolView,
};
pub(crate) use outage::StoreOutages;
pub(crate) use places::Places;

/// How long a lease lasts after the call that last renewed it: through a minute in which the pool cannot be
/// reached. What a dead node held stays unused for so long.
pub const LEASE_NS: u64 = 75_000_000_000;
/// A grant must be taken up within this time after its call was sent. A bucket's pool adds the time to its
/// slack, since it may count units as drained that much too soon.
pub const LATE_NS: u64 = 20_000_000;
/// A call without an answer is given up after this long.
pub const CALL_NS: u64 = 200_000_000;
/// An answer counts no more this long after the call.
const LOST_NS: u64 = 5 * CALL_NS;
/// How long a decision waits for a pool. Timers are up to a millisecond late, and the whole wait must be at
/// most three milliseconds.
pub(crate) const WAIT_NS: u64 = 2_000_000;
/// The most cells with leases: further cells stay with the guard share.
const CELLS_MAX: usize = 1 << 20;
/// From this many leases on, cells without requests give back early: each takes a kilobyte and is rebalanced
/// now and then.
const LASTING_MAX: usize = 1 << 14;
/// The most rebalances in one tick.
const REBALANCES_MAX: usize = 4_096;
/// A cell that could not be rebalanced is tried again after this long.
const LATER_NS: u64 = 10_000_000;
/// The least time between two rebalances of a cell that calls for them: far less than a decision waits. It is
/// longer while the cell's pool cannot be asked anyway.
const APART_NS: u64 = 500_000;
const APART_IN_VAIN_NS: u64 = 2_000_000;
/// The most groups to ask for the first time in one tick.
const FIRST_MAX: usize = 128;
/// The most cells to drop when a group is asked for its state.
const SWEEP_MAX: u32 = 64;
/// The most calls under way, with those that wait to be made.
const CALLS_MAX: usize = 1_024;

/// A node's place among the nodes of its region. `nodes`, `guard_percent`, the promise about clocks and the
/// key of [`Config`] are the same on every node. The caller sees to that: in the store it keeps nodes apart
/// that differ in one of them, and starts no node before the others have confirmed that they agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Siblings {
    /// This node's number, among `nodes`.
    pub node: u16,
    /// The process number: counts up durably with each process of the node. At least 1.
    pub process_number: u32,
    /// All nodes of the region, by number: 1 to [`acequia_rights::pool::NODES_MAX`] of them, alike on every
    /// node. If there are `members`, alike on each that has started since the last was named.
    pub nodes: BTreeSet<u16>,
    /// The member id of each of these nodes among all regions, if limits are shared by a catalogue. A
    /// member's part is divided into a guard share and a part of the pool. A node counts while the catalogue
    /// has it. Empty if the region has every limit to itself.
    pub members: BTreeMap<u16, MemberId>,
    /// The allocation of the pools at first: 0, which is no allocation among regions, or [`AGREEMENT`].
    pub allocation: u64,
    /// How much of each limit the nodes together keep out of the pools, in percent: at most 100. Alike on
    /// every node. Units are whole. If the region has every limit to itself, at least one unit of 4 or more
    /// is kept unless the percentage is 0.
    pub guard_percent: u8,
    /// How far walls may be from true time, in nanoseconds.
    pub clock_error_ns: u64,
    /// How far steady clocks may drift, in parts per million.
    pub drift_ppm: u32,
    /// When this process began, by its wall clock, in microseconds: it does not know what earlier processes
    /// took of windows. 0 if no earlier process took any.
    pub begun_us: u64,
    /// When the disk began to know what all processes took of windows, by its wall clock, in microseconds.
    /// This is the start of the first process on an empty disk, or 0 if the region was new then. `None` if
    /// withdrawals are not written down ([`Node::take_rows`]). It counts after [`Node::restore_withdrawals`].
    pub knows_from_us: Option<u64>,
    /// Whether the node's disk was empty. If so on all nodes, a region that has never granted anything grants
    /// all from the beginning.
    pub is_new: bool,
    /// Limits whose journalled cells can be trusted after a crash ([`crate::Config::after_crash`] says
    /// when), because the last process stopped cleanly and knew them ([`Node::known_limits`]). Cells of other
    /// limits may be older than the crash.
    pub rows_hold: BTreeSet<LimitId>,
    /// For each group the last generation that earlier processes heard of, from [`Node::unkept_generations`];
    /// empty for none.
    pub generations: Vec<Heard>,
}

/// What the clock of a pool's server reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerClock {
    /// How far it is ahead of this node's wall, by the system's clock: nanoseconds.
    pub ahead_ns: i64,
    /// How wrong that may be: nanoseconds.
    pub unsure_ns: u64,
}

impl ServerClock {
    /// Whether it agrees with the wall, if both clocks are at most `error_ns` from true time.
    pub const fn agrees(&self, error_ns: u64) -> bool {
        self.ahead_ns.unsigned_abs() <= error_ns.saturating_mul(2).saturating_add(self.unsure_ns)
    }
}

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
    home: Siblings,
    /// The allocation among regions that the pools are part of: 0 for none.
    allocation: u64,
    /// How many versions of the catalogue were adopted.
    adopted: u64,
    /// No call leaves before this batch is on the disk, with the version of the catalogue that calls go by.
    after_batch: u64,
    /// The promise about clocks: of [`Siblings`] or of the catalogue, whichever is worse.
    clock_error_ns: u64,
    drift_ppm: u32,
    /// By number.
    groups: Vec<GroupView>,
    /// Whether a generation was heard of that is not written down yet.
    is_unkept: bool,
    /// Groups that need something before they grant.
    unsettled: BTreeSet<u16>,
    /// Which groups are asked for their state.
    watch: Watch,
    /// Groups for which nobody answered the last call, and that do not count as lost yet.
    silent: BTreeSet<u16>,
    /// Groups in a store outage.
    lost: BTreeSet<u16>,
    /// Nodes that are excluded, and until when: steady clock.
    left_out: BTreeMap<u16, u64>,
    /// The wall that this node goes by, if it hears of no clocks but the servers'.
    time: Timekeeper,
    /// From when on withdrawals of windows are known: wall clock, in microseconds.
    knows_from_us: u64,
    /// The nodes that count, if the catalogue names them.
    mates: RegionNodes,
    /// Whether all other nodes count this one. Before that it hears of no generation: others may begin one
    /// that does not wait for this node.
    is_counted: bool,
    /// Whether others must first count this node; if not, it counts from the first tick on.
    is_joining: bool,
    /// Withdrawals of earlier processes under limits that are not in force.
    unknown: BTreeMap<(LimitId, CellTag), Withdrawals>,
    /// Whether a call waits for the disk.
    wants_disk: bool,
    cells: BTreeMap<CellKey, CellLease>,
    /// What all cells held at their last rebalance.
    held: HeldByLimit,
    /// Cells that may have something to give back; `None` unless the node stops.
    leaving: Option<BTreeSet<CellKey>>,
    /// Cells whose pool had nothing for them: other regions may have.
    dry: BTreeSet<CellKey>,
    rebalances: BTreeSet<(u64, CellKey)>,
    out: VecDeque<Call>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    /// No pool is called before this time: steady clock. Until then loans of an earlier process may be out,
    /// which rest on its leases.
    begins_ns: u64,
    /// Until this time loans of a departed node may be out: steady clock.
    loans_end_ns: u64,
    /// When a pool last answered, and when one last did not: steady clock.
    answered_ns: u64,
    missed_ns: u64,
    counts: LeaseCounts,
}

impl Leases {
    pub(crate) fn new(home: Siblings) -> Self {
        let heard = home.generations.iter().copied().chain(std::iter::repeat(Heard::default()));
        let groups = heard.take(usize::from(GROUPS)).map(GroupView::since).collect();
        Self {
            time: Timekeeper::default(),
            knows_from_us: home.begun_us,
            mates: RegionNodes::new(home.members.clone()),
            is_counted: false,
            is_joining: !home.members.is_empty()
                && home.allocation != AGREEMENT
                && home.generations.iter().all(|heard| heard.generation.number == 0),
            left_out: BTreeMap::new(),
            unknown: BTreeMap::new(),
            wants_disk: false,
            allocation: home.allocation,
            adopted: 0,
            after_batch: 0,
            clock_error_ns: home.clock_error_ns,
            drift_ppm: home.drift_ppm,
            home,
            groups,
            is_unkept: false,
            unsettled: (0..GROUPS).collect(),
            watch: Watch::default(),
            silent: BTreeSet::new(),
            lost: BTreeSet::new(),
            cells: BTreeMap::new(),
            held: HeldByLimit::default(),
            leaving: None,
            dry: BTreeSet::new(),
            rebalances: BTreeSet::new(),
            out: VecDeque::new(),
            pending: BTreeMap::new(),
            next: 0,
            begins_ns: 0,
            loans_end_ns: 0,
            answered_ns: 0,
            missed_ns: 0,
            counts: LeaseCounts::default(),
        }
    }

    /// Shows to decisions where a group keeps its records, if its generation may be used.
    fn show(&self, node: &Node, group: u16) {
        let known = &self.groups[usize::from(group)];
        let (generation, grants) = (known.generation(), known.grants());
        let kept =
            known.is_heard().then_some(KeptAt { group, allocation: self.allocation, generation, grants });
        node.places.set(group, kept);
    }

    /// Shows the records of all groups, and this node's identity.
    fn show_all(&self, node: &Node) {
        (0..GROUPS).for_each(|group| self.show(node, group));
        node.places.set_who(self.who());
    }

    const fn who(&self) -> Who {
        Who { node: self.home.node, clock_error_ns: self.clock_error_ns, drift_ppm: self.drift_ppm }
    }

    fn tick(&mut self, node: &Node, now: Now, calls: Vec<CellKey>) {
        for key in calls {
            self.wake(key, now.steady_ns);
        }
        self.give_up(node, now);
        if !self.is_joining {
            self.is_counted_now(now);
        }
        if now.steady_ns < self.begins_ns || !self.may_hear() || !node.is_wall_believed() {
            return;
        }
        self.keep_silent(node, now);
        self.keep_groups(now);
        let catalogue = node.catalogue();
        for _ in 0..REBALANCES_MAX {
            let due = self.rebalances.first().copied().filter(|(due_ns, _)| *due_ns <= now.steady_ns);
            let Some((due_ns, key)) = due else { break };
            self.rebalances.remove(&(due_ns, key));
            self.rebalance(node, &catalogue, key, now);
        }
    }

    /// Whether others wait for this node before any generation grants.
    fn may_hear(&self) -> bool {
        self.is_counted || mutated(Mutation::LeaseHearsUncounted)
    }

    /// A cell calls: it is rebalanced now, or soon if that was done just before.
    pub(crate) fn wake(&mut self, key: CellKey, now_ns: u64) {
        if let Some(lease) = self.cells.get(&key) {
            let apart_ns = if lease.is_quiet(now_ns) { APART_IN_VAIN_NS } else { APART_NS };
            let due_ns = (lease.rebalanced_ns + apart_ns).clamp(now_ns, lease.due_ns.max(now_ns));
            return self.rebalance_at(key, due_ns);
        }
        if self.cells.len() >= CELLS_MAX {
            return;
        }
        self.cells.insert(key, CellLease::new(now_ns));
        self.rebalances.insert((now_ns, key));
    }

    /// Calls no pool before this time: steady clock.
    pub(crate) fn begin_after(&mut self, at_ns: u64) {
        if !mutated(Mutation::LeaseForgetsLoans) {
            self.begins_ns = self.begins_ns.max(at_ns);
        }
    }

    /// The cells whose pool had nothing for them, since the last call of this function.
    pub(crate) fn take_dry(&mut self) -> Vec<CellKey> {
        std::mem::take(&mut self.dry).into_iter().collect()
    }

    fn rebalance_at(&mut self, key: CellKey, due_ns: u64) {
        if let Some(lease) = self.cells.get_mut(&key) {
            self.rebalances.remove(&(lease.due_ns, key));
            lease.due_ns = due_ns;
            self.rebalances.insert((due_ns, key));
        }
    }

    /// Gives up calls that were lost on the way. The carrier reports every other call.
    fn give_up(&mut self, node: &Node, now: Now) {
        let lost_ns = now.steady_ns.saturating_sub(LOST_NS);
        while let Some(id) =
            self.pending.first_key_value().filter(|(_, p)| p.sent_ns < lost_ns).map(|(id, _)| *id)
        {
            self.answer(node, id, &PoolReply::Nothing, now);
        }
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
            knows_from_us: self.knows_from_us.max(self.mates.gone_us()),
            is_new: self.home.is_new && group.is_new(),
            before: group.before(),
            wall_us: now.wall_ns / 1_000,
            slack_us: slack_us(self.clock_error_ns, 0),
        }
    }

    /// Rebalances a cell: what was asked of it, what it holds, and what to ask its pool.
    fn rebalance(&mut self, node: &Node, catalogue: &Catalogue, key: CellKey, now: Now) {
        let number = group_of(key.1);
        let Some(mut lease) = self.cells.remove(&key) else { return };
        let taker = self.taker();
        let group = &self.groups[usize::from(number)];
        let is_full = self.pending.len() >= CALLS_MAX;
        let may_call = group.is_heard() && lease.pending.is_none() && !is_full;
        let generation = may_call.then(|| group.generation());
        let (known, since) = (group.generation(), group.remembers_since());
        let (home, is_lost) = (&self.home, self.lost.contains(&number));
        let is_quiet = group.is_quiet(now.steady_ns);
        let (clock_error_ns, drift_ppm) = (self.clock_error_ns, self.drift_ppm);
        let scene = catalogue.id(key.0).map(|limit| Scene {
            home,
            clock_error_ns,
            drift_ppm,
            taker,
            limit,
            key,
            owner: node.forwards.owner(key.1, catalogue.active_of(key.0), now),
            generation,
            known,
            since,
            is_lost,
            is_quiet,
            lasts: self.cells.len() < LASTING_MAX,
            is_leaving: self.leaving.is_some(),
        });
        if !self.unknown.is_empty()
            && let Some(scene) = &scene
            && let Some(withdrawals) = self.unknown.remove(&(scene.limit, key.1))
        {
            lease.withdrawals = withdrawals;
        }
        lease.wants_word = false;
        let locked_cell = LockedCell { node, catalogue, key, now, which: None };
        let held = lease.held;
        let looked = scene.and_then(|scene| {
            locked_cell
                .at(true, |context, cell| rebalance_cell(&scene, &mut lease, (context, cell), node, now))
        });
        self.held.change(key.0, (held, lease.held));
        let ask = match looked {
            Some((true, ask)) => ask,
            Some((false, _)) => {
                self.left(&key);
                return self.groups[usize::from(number)].forget(key);
            }
            // There is no room for the cell now, or its variant is just changing: it may hold units.
            None => {
                lease.withdrawals.forget(self.over_ns(now));
                if lease.is_out_of_room(now) && !node.has_cell(key) {
                    self.know_nothing_of(node, catalogue, key, lease);
                    self.left(&key);
                    return self.groups[usize::from(number)].forget(key);
                }
                lease.due_ns = now.steady_ns + LATER_NS;
                self.rebalances.insert((lease.due_ns, key));
                self.cells.insert(key, lease);
                return;
            }
        };
        let group = &mut self.groups[usize::from(number)];
        group.cells.insert(key);
        if ask.is_none() && (generation.is_some() || mutated(Mutation::LeaseAssertedEarly)) {
            // The pool was told all that the cell holds.
            group.told(key);
        }
        if let (Some((about, question)), Some(generation)) = (ask, generation) {
            lease.calls(self.call((number, generation), about, question, now));
        }
        // A lost store answers nothing.
        let is_heard = lease.unheard.is_none() || is_lost;
        if lease.pending.is_none() && is_heard && !is_full {
            self.left(&key);
        }
        let has_none = lease.is_dry(now) || (is_lost && lease.is_missed());
        if has_none && !self.home.members.is_empty() && self.dry.len() < REBALANCES_MAX {
            self.dry.insert(key);
        }
        if lease.wants_word && self.groups[usize::from(number)].may_be_watched() {
            self.call_group((number, known), PoolRequest::Sweep(SWEEP_MAX), now);
        }
        self.wants_disk |= lease.waits_for_disk;
        lease.due_ns = now.steady_ns + lease.rebalance_after_ns();
        self.rebalances.insert((lease.due_ns, key));
        self.cells.insert(key, lease);
    }

    /// Restores the withdrawals of earlier processes. Returns whether all rows can be read.
    fn restore(&mut self, node: &Node, rows: Vec<Row>, now: Now) -> bool {
        let (mut knows_all, mut reads_all) = (true, true);
        for row in rows {
            let Some(Record { limit, tag, windows }) = Record::read(&row) else {
                reads_all = false;
                node.push_row(Row { state: None, ..row });
                continue;
            };
            let mut withdrawals = Withdrawals::of(windows);
            withdrawals.forget(self.over_ns(now));
            if !withdrawals.has_before() {
                node.push_row(withdrawals::removed(limit, tag));
                continue;
            }
            let Some(slot) = node.slot_of(limit).filter(|_| node.knows(limit)) else {
                // No pool of it can be told before the limit is in force again.
                knows_all = false;
                self.unknown.insert((limit, tag), withdrawals);
                continue;
            };
            let key = (slot, tag);
            self.groups[usize::from(group_of(tag))].cells.insert(key);
            self.cells.insert(key, CellLease::after(withdrawals, now.steady_ns));
            self.rebalances.insert((now.steady_ns, key));
        }
        if let Some(knows_from_us) = self.home.knows_from_us.filter(|_| knows_all && reads_all) {
            self.knows_from_us = knows_from_us;
        }
        reads_all
    }

    /// Gives up a cell for which there is no room: this process holds nothing of it. As for a limit that is
    /// not in force, no pool is told what earlier processes took of its windows. So a generation that does
    /// not know the withdrawals counts all windows that began before this process as spent, and waits for
    /// nobody because of them.
    fn know_nothing_of(&mut self, node: &Node, catalogue: &Catalogue, key: CellKey, lease: CellLease) {
        let (limit, withdrawals) = (catalogue.id(key.0), lease.withdrawals);
        if withdrawals.has_before() {
            self.knows_from_us = self.home.begun_us;
            self.unknown.extend(limit.map(|limit| ((limit, key.1), withdrawals)));
        } else if let Some(limit) = limit.filter(|_| withdrawals.has_row()) {
            node.push_row(withdrawals::removed(limit, key.1));
        }
    }

    /// Windows that ended by this time are over by every wall.
    fn over_ns(&self, now: Now) -> u64 {
        now.wall_ns.saturating_sub(self.clock_error_ns.saturating_mul(4))
    }

    fn taker(&mut self) -> Taker {
        self.next += 1;
        Taker { node: self.home.node, process_number: self.home.process_number, call: self.next }
    }

    /// Puts a call in line. Returns its number, or `None` if there is no room.
    fn call(
        &mut self,
        (group, generation): (u16, Generation),
        about: About,
        question: PoolRequest,
        now: Now,
    ) -> Option<u64> {
        if self.pending.len().max(self.out.len()) >= CALLS_MAX + usize::from(GROUPS) {
            return None;
        }
        self.next += 1;
        let id = self.next;
        let (terms, adopted) = (self.allocation, self.adopted);
        self.counts.assertions += u64::from(matches!(question, PoolRequest::Assert(..)));
        self.pending.insert(id, Pending { adopted, group, generation, sent_ns: now.steady_ns, about });
        self.out.push_back(Call {
            id,
            allocation: terms,
            group,
            generation,
            wall_us: now.wall_ns / 1_000,
            question,
        });
        self.counts.calls += 1;
        Some(id)
    }

    /// Takes the answer to a call.
    fn answer(&mut self, node: &Node, id: u64, said: &PoolReply, now: Now) {
        let Some(pending) = self.pending.remove(&id) else { return };
        self.note_silence(node, &pending, *said != PoolReply::Nothing, now);
        // The catalogue has changed since the call: its grant is not taken up, and its report of the group
        // does not count.
        let is_bound = pending.adopted == self.adopted;
        let said =
            if is_bound || *said == PoolReply::Nothing { said } else { &PoolReply::Refused(Refused::Stale) };
        match said {
            PoolReply::Nothing => {
                (self.missed_ns, self.counts.missed) = (now.steady_ns, self.counts.missed + 1);
            }
            PoolReply::Refused(_) => self.counts.refused += 1,
            _ => self.answered_ns = now.steady_ns,
        }
        if let PoolReply::Known(known) | PoolReply::Unknown(known) = said {
            self.hear(pending.group, known, id, now);
            self.show(node, pending.group);
        }
        let Some((key, end_ns, wanted)) = pending.about.cell() else {
            let group = &mut self.groups[usize::from(pending.group)];
            match said {
                PoolReply::Nothing => group.miss(id, now.steady_ns),
                PoolReply::Known(_) | PoolReply::Unknown(_) => {}
                PoolReply::Swept(dropped) => {
                    group.is_same(id);
                    self.watch.hears_swept(pending.group, *dropped);
                }
                _ => group.is_same(id),
            }
            return;
        };
        let Some(mut lease) = self.cells.remove(&key) else { return };
        lease.pending = None;
        let is_current = self.groups[usize::from(pending.group)].generation() == pending.generation;
        let came = match said {
            // No answer of an earlier generation is taken up.
            PoolReply::Took(_) | PoolReply::Exchanged(_) | PoolReply::Slid(_) if is_current => {
                lease.tell(end_ns, pending.generation);
                self.take_up(node, &mut lease, &pending, said, now)
            }
            _ => None,
        };
        // A part that is not renewed is not told more often than one that is.
        if is_current && matches!(said, PoolReply::Took(_) | PoolReply::Exchanged(_) | PoolReply::Slid(_)) {
            lease.renewed_ns = pending.sent_ns;
        }
        match came {
            Some(units) => lease.came(units, wanted, now.steady_ns),
            None => lease.missed(now.steady_ns),
        }
        lease.unheard = (*said == PoolReply::Nothing && self.leaving.is_some()).then_some(end_ns);
        self.cells.insert(key, lease);
        if came.is_some_and(|units| units > 0) {
            node.remote_supply.tell();
            node.forwards.call();
        }
        self.wake(key, now.steady_ns);
    }

    /// Takes up what a pool granted. Returns the units that came, if the answer counts.
    fn take_up(
        &self,
        node: &Node,
        lease: &mut CellLease,
        pending: &Pending,
        said: &PoolReply,
        now: Now,
    ) -> Option<u64> {
        let (key, end_ns, _) = pending.about.cell()?;
        let group = &self.groups[usize::from(pending.group)];
        let since = group.remembers_since();
        // While a generation does not grant, the one before it may go on granting to nodes that have not
        // heard of it, and takes leases back at their ends. A grant of more proves that the generation
        // grants.
        let is_renewed =
            |is_more: bool| is_more || group.grants() || mutated(Mutation::LeaseRenewedUngranted);
        let number = if let About::Part { number, .. } = pending.about { number } else { 0 };
        let catalogue = node.catalogue();
        let locked_cell = LockedCell { node, catalogue: &catalogue, key, now, which: None };
        let came = locked_cell.at(false, |context, cell| {
            let HeapCell { account: Some(account), words, .. } = cell else { return None };
            account.settle(words, context, now, &*node.sessions());
            account.keep_part(words, context, (now.wall_ns, None), now);
            let pool = context.local.pool_of(context.global, context.salt, u64::MAX).unwrap_or_default();
            lease.follow(account, context, pool);
            // The limit was lowered while the call was under way.
            let is_of_more = pending.about.is_of_more(context) && !mutated(Mutation::LeaseTakesUpMore);
            let units = match said {
                // Near its end other nodes may have left the window, and tell nobody any more what they took
                // of it.
                PoolReply::Took(_) if end_ns.saturating_sub(now.wall_ns) <= self.clock_error_ns * 2 => None,
                PoolReply::Took(took) => {
                    lease.hears_left(end_ns, took.left);
                    let before = lease.withdrawals.before(end_ns, since);
                    let came = account.took(context, end_ns, took.taken.saturating_sub(before));
                    // Units that were taken of a window that was open at the change stay.
                    if lease.is_answered(end_ns) {
                        // The units were granted by what the region, or the limit, had before.
                        account.return_to_pool(context, end_ns, came, came);
                        lease.untell(end_ns);
                        Some(0)
                    } else {
                        Some(came)
                    }
                }
                PoolReply::Exchanged(_) | PoolReply::Slid(_) if is_of_more => None,
                PoolReply::Exchanged(answer) => {
                    (lease.left, lease.fair) = (Some(answer.left), Some(answer.fair));
                    let (held, part) = (account.pooled(), answer.part);
                    is_renewed(part.rate > held.rate || part.units > held.units)
                        .then(|| {
                            account.exchanged(words, context, (number, answer), (LEASE_NS, LATE_NS), now)
                        })
                        .flatten()
                }
                PoolReply::Slid(answer) => {
                    lease.left = Some(answer.left);
                    is_renewed(answer.units > account.pooled().units)
                        .then(|| account.slid(words, context, (number, answer.units), LEASE_NS, now))
                        .flatten()
                }
                _ => None,
            };
            account.goes_by_pool(context);
            if units.is_some_and(|units| units > 0) {
                account.hope_anew();
            }
            cell.forget_held_if_renumbered();
            units
        });
        came.flatten()
    }

    /// Takes a report of a group's state.
    fn hear(&mut self, number: u16, known: &GroupStatus, id: u64, now: Now) {
        let group = &mut self.groups[usize::from(number)];
        let is_other = group.hear(known, id, now.steady_ns);
        if !group.grants() {
            self.unsettled.insert(number);
        }
        if is_other {
            self.counts.generations += 1;
            self.watch.doubt_all();
        }
        self.is_unkept |= !group.is_kept();
        for key in group.untold.clone() {
            self.rebalance_at(key, now.steady_ns);
        }
    }

    /// The generations that were heard of, if they must be written down.
    fn unkept_generations(&mut self) -> Option<Vec<Heard>> {
        let is_unkept = std::mem::take(&mut self.is_unkept);
        is_unkept.then(|| self.groups.iter().map(GroupView::to_keep).collect())
    }

    /// Notes that these generations are on the disk. Cells that waited for that are told now.
    fn generations_kept(&mut self, node: &Node, kept: &[Heard], now: Now) {
        let mut untold = Vec::new();
        for (group, heard) in self.groups.iter_mut().zip(kept) {
            if !group.is_kept() && group.keep(*heard) {
                untold.extend(group.untold.iter().copied());
            }
        }
        self.is_unkept = self.groups.iter().any(|group| !group.is_kept());
        for key in untold {
            self.rebalance_at(key, now.steady_ns);
        }
        self.show_all(node);
    }

    /// Whether pools answer: if not, no decision waits for them.
    const fn is_answered(&self) -> bool {
        self.answered_ns >= self.missed_ns
    }

    fn counts(&self) -> LeaseCounts {
        LeaseCounts {
            cells: self.cells.len() as u64,
            granting: self.groups.iter().filter(|group| group.grants()).count() as u64,
            lost: self.lost.len() as u64,
            ..self.counts
        }
    }
}

/// The group of a cell.
pub(crate) fn group_of(tag: CellTag) -> u16 {
    // Less than `GROUPS`.
    (tag.0 % u128::from(GROUPS)) as u16
}

impl Node {
    /// A node that shares its limits with other nodes of its region, and with other regions if `config` has a
    /// home. In that case `siblings` names the members of the region among all regions' nodes, this one
    /// included.
    ///
    /// # Panics
    /// If `siblings` names no nodes, or more than there may be.
    pub fn among(config: Config, keep: Keep, siblings: Siblings) -> Self {
        let mut node = Self::keeping(config, keep);
        match config.home {
            Some(_) => {
                node.guard =
                    Some(Guard::of_parts(siblings.members.values().copied(), siblings.guard_percent));
            }
            None => {
                let guard = Guard::new(siblings.node, &siblings.nodes, siblings.guard_percent);
                let (drift_ppm, margin_ns) = (siblings.drift_ppm, siblings.clock_error_ns);
                let allocations = Allocations {
                    guard: Some(guard),
                    drift_ppm,
                    margin_ns,
                    ..Allocations::none(MemberId(0))
                };
                lock(&node.registry).set_terms(allocations);
            }
        }
        node.rows_hold.clone_from(&siblings.rows_hold);
        let leases = Leases::new(siblings);
        node.places = Places::of(leases.who());
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
        self.remote_supply.see_pools(leases.is_answered() && leases.may_hear(), now.steady_ns);
    }

    /// Compares the system's wall with the clocks of the pools' servers that told the time lately. If a node
    /// hears of no other clocks, a wall that was set while the node runs counts once most of these clocks
    /// agree with it. Until then the steady clock carries the last wall on. A server whose clock agrees with
    /// neither is ignored. Among regions, whose nodes hear each other's clocks, this function does nothing.
    pub fn compare_wall(&self, raw: Now, servers: &[ServerClock]) {
        let Some(leases) = self.leases.as_ref().filter(|_| self.sharing.is_none()) else { return };
        let mut leases = lock(leases);
        let bounds = Bounds {
            error_ns: leases.clock_error_ns,
            drift_ppm: leases.drift_ppm,
            has_peers: true,
            is_alone: servers.is_empty(),
            journal_ns: self.journal_wall_ns.load(Ordering::Acquire),
        };
        let (steady_ns, wall_ns) = (raw.steady_ns, raw.wall_ns);
        let is_witness = |clock: &Reading| leases.time.is_witness(steady_ns, wall_ns, &bounds, clock);
        let readings: SmallVec<[Reading; 8]> =
            servers.iter().map(Reading::of_server).filter(is_witness).collect();
        leases.time.observe(raw.steady_ns, raw.wall_ns, &bounds, &readings);
        self.set_wall(&leases.time, leases.clock_error_ns, leases.drift_ppm);
    }

    /// When [`Node::tick_leases`] should be called next, unless [`Node::calls`] before: steady clock; `None`
    /// if there are no leases.
    pub fn leases_due_ns(&self) -> Option<u64> {
        let leases = lock(self.leases.as_ref()?);
        let calls = leases.may_hear() && self.is_wall_believed();
        leases.rebalances.first().filter(|_| calls).map(|(due_ns, _)| *due_ns)
    }

    /// The next call to make of a pool.
    pub fn poll_call(&self) -> Option<Call> {
        let mut leases = lock(self.leases.as_ref()?);
        if self.progress().committed < leases.after_batch {
            return None;
        }
        // A call that waited for the disk until it was given up is dropped.
        while let Some(call) = leases.out.pop_front() {
            if leases.pending.contains_key(&call.id) {
                return Some(call);
            }
        }
        None
    }

    /// Takes the rows that are kept under [`TAKINGS`](crate::journal::TAKINGS): the withdrawals of earlier
    /// processes. To be called once, when the limits are in force, and before any call is made. Returns
    /// whether all rows can be read. If not, neither this process nor later ones know what those rows said of
    /// open windows: [`Siblings::knows_from_us`] is `begun_us` from then on, and must be on the disk before
    /// any row is.
    pub fn restore_withdrawals(&self, rows: Vec<Row>, now: Now) -> bool {
        let Some(leases) = &self.leases else { return true };
        let rows = if mutated(Mutation::LeaseForgetsWithdrawals) { Vec::new() } else { rows };
        lock(leases).restore(self, rows, self.not_before(now))
    }

    /// Whether a call has begun to wait for rows of [`Node::take_rows`] to be on the disk.
    pub fn leases_want_disk(&self) -> bool {
        self.leases.as_ref().is_some_and(|leases| std::mem::take(&mut lock(leases).wants_disk))
    }

    /// Takes the answer to a call.
    pub fn answer_call(&self, id: u64, said: &PoolReply, now: Now) {
        if let Some(leases) = &self.leases {
            lock(leases).answer(self, id, said, self.not_before(now));
        }
    }

    /// The last generation of each group that this node has heard of, if one changed: for
    /// [`Siblings::generations`] of later processes. Nothing is taken of those groups before
    /// [`Node::generations_kept`].
    pub fn unkept_generations(&self) -> Option<Vec<Heard>> {
        lock(self.leases.as_ref()?).unkept_generations()
    }

    /// The last generation of each group that this node has heard of.
    pub fn generations(&self) -> Vec<Heard> {
        let Some(leases) = &self.leases else { return Vec::new() };
        lock(leases).groups.iter().map(GroupView::to_keep).collect()
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
        self.leases.as_ref().map_or_else(BTreeMap::new, |leases| lock(leases).held.units())
    }

    /// Counts of calls to pools since the start.
    pub fn lease_counts(&self) -> LeaseCounts {
        let Some(leases) = &self.leases else { return LeaseCounts::default() };
        let [guard_allowed, guard_denied] = self.store_outages.decided();
        let open_units = self.catalogue().open_units();
        LeaseCounts { open_units, guard_allowed, guard_denied, ..lock(leases).counts() }
    }
}
