//! One node's decisions: which cells a request hits, and whether it may pass. **No cell admits more than its
//! limit, and a denied request has charged nothing** (except under limits with `charge: each`).
//!
//! The crate knows limits, cells and what must be on disk before a reply leaves. The crate does not know
//! gRPC, files, or what time it is: every call takes [`Now`]. [`Node::take_rows`] hands out the rows to
//! write, and [`Node::committed`] confirms them.
//!
//! The path of a request: [`Asker::check`] → `index` finds the limits that may match → each gives a tag →
//! `shard` and `table` find the cells. Then the limits' algorithms decide, and all cells are charged, or
//! none. `catalogue` has the rules for changes of limits, and [`journal`] for crashes.
//!
//! If regions share a limit, this region's own part decides a cell (`local`), without messages, until the
//! cell is *warm*: half of the part is used, something was denied, or another region asked for it. A warm
//! cell gets an `account`: its effective part, with loans and transfers, by the rules of `acequia-rights`. A
//! request settles what ended in the meantime, and the account decides. A request never waits for another
//! region: it notes the demand and calls for a rebalance. [`Node::tick`] then visits the cells that called
//! (`locked_cell`: one cell under its lock), decides who should have what (`regions`), and queues frames.
//! [`Node::handle`] takes incoming frames. [`Node::poll`] returns the frames that may leave, each once the
//! facts it reports are on disk. A region without a share denies, and says why.

mod catalogue;
mod cell;
mod charges;
mod close;
mod decide;
mod forwards;
pub mod journal;
mod left;
pub mod pool;
mod region;
pub mod regions;
mod views;
mod wait;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
};

use acequia_limits::{
    Algorithm, CellTag, HashKey, Limit, LimitId, Mode, Now,
    algorithm::State,
    window::{self, SET_BACK_NS},
};
use acequia_rights::{
    Incarnation, Session, Versions,
    mutation::{Mutation, mutated},
};

pub use crate::{
    catalogue::{Active, Catalogue, CatalogueFault, Change, ChangeKind, LIMITS_MAX, NUMBERS_MAX, Scheduled},
    cell::record::CellRecord,
    charges::{
        ChargeId, ChargesView, KEEP_NS, Keep, KeptAt, RECORDS, RESERVE_NS_MAX, Recording, Refunded, Reserve,
        Settled, SharedAnswer,
    },
    decide::{
        Answer, Ask, Asker, Charged, DESCRIPTORS_MAX, Forwarding, IdReused, LimitAnswer, Outcome, Warning,
    },
    forwards::{FORWARD_NS, FORWARD_WAIT_NS, Forward, ForwardCounts, Waiter},
    journal::{CHARGES, Row, TAKINGS, WALL},
    region::ResumeFault,
    regions::{Home, Membership},
    views::difference,
    views::{
        explain::Unmatched,
        inspect::{CellView, Holding, LimitView, LoanView, NamedCell, Overview, PeerView, WordView},
    },
};
use crate::{
    catalogue::{Allocations, Live, Registry, Unwritten, local::Guard},
    cell::{
        account::{Account, CellContext},
        overflow::Overflow,
        record::Pledge,
        shard::{Cells, HeapCells, NewCell, Shard},
        table::Cell,
    },
    charges::Charges,
    forwards::Forwards,
    journal::{FORGOTTEN, HeapCell, Progress, is_overflow},
    left::Left,
    pool::{Leases, Places, StoreOutages},
    regions::{Carried, CellKey, Memory, Sharing},
    wait::RemoteSupply,
};

/// Locks over the cells: enough that two threads rarely meet, few enough to stay in a core's cache.
pub const SHARDS: usize = 256;

/// The least memory for cells, in bytes: a few thousand cells.
pub const MEMORY_BYTES_MIN: usize = 1 << 20;

/// The setup of a node.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The secret with which cells are hashed. With a journal, it must be the same after every restart.
    pub key: HashKey,
    /// Memory for cells, charges and rows that wait for the disk, in bytes: at least [`MEMORY_BYTES_MIN`].
    /// Beyond it, new cells of a limit share one. A plain cell takes 43 to 64 bytes.
    pub memory_bytes: usize,
    /// Whether there is a journal, which keeps the cells that need a minute or more to be idle.
    pub durable: bool,
    /// The start of a node that takes over from one that crashed: cells that were not journalled count as
    /// wholly spent at this time. `None` for a node that never served, or that stopped cleanly and gets its
    /// cells back.
    pub after_crash: Option<Now>,
    /// The node's place among regions; `None` if it shares its limits with nobody.
    pub home: Option<Home>,
}

/// The cells and limits of one node. Threads share it; each asks through its own [`Asker`].
#[derive(Debug)]
pub struct Node {
    config: Config,
    /// Limits whose journalled cells can be trusted after a crash: [`pool::Siblings::rows_hold`].
    rows_hold: BTreeSet<LimitId>,
    shards: Box<[Shard]>,
    catalogue: Mutex<Arc<Catalogue>>,
    /// The catalogue's version, by which askers see that theirs is old.
    version: AtomicU64,
    registry: Mutex<Registry>,
    /// The cells that new cells share when memory is full. Locked after any shard.
    overflow: Mutex<Overflow>,
    overflowing: AtomicBool,
    /// Rows for the journal, in the order of the changes. Locked after any shard.
    rows: Mutex<Vec<Row>>,
    /// The latest wall clock at which a cell with a window was dropped: time does not go back behind it, or
    /// the window would open again.
    forgotten_wall_ns: AtomicU64,
    /// Windows that the wall clock left before it was set back.
    left: Left,
    /// Whether the wall clock may date durable or shared state.
    is_wall_believed: AtomicBool,
    /// Whether a limit has had too many variants to get the ones that it needs now: then nothing passes until
    /// a restart.
    is_out_of_numbers: AtomicBool,
    /// The clocks' bounds while there is no catalogue: how far wall clocks may be off, in nanoseconds, and
    /// how far steady clocks may drift, in parts per million.
    clock_error_ns: AtomicU64,
    drift_ppm: AtomicU32,
    /// The latest date in the journal at the start: wall clock.
    journal_wall_ns: AtomicU64,
    /// The wall clock at which an earlier process last dropped something, from the journal.
    kept_wall_ns: AtomicU64,
    /// How far the right wall clock was ahead of this node's at the start, if other clocks have contradicted
    /// it since.
    start_corrected_ns: AtomicI64,
    /// The latest steady clock at which a cell was dropped. Threads read the clock one after another, and act
    /// in a different order.
    forgotten_steady_ns: AtomicU64,
    open_batch: AtomicU64,
    /// Rows of the batch that is on its way to the disk.
    rows_in_hand: AtomicUsize,
    /// Bytes that charges and waiting rows take from the memory for cells, as last counted.
    beside_bytes: AtomicUsize,
    committed_batch: AtomicU64,
    journal_down: AtomicBool,
    /// The node's dealings with other regions. Locked before everything else.
    sharing: Option<Mutex<Sharing>>,
    /// Sessions, which date loans. Locked after any shard.
    sessions: RwLock<BTreeMap<Incarnation, Session>>,
    memory: Mutex<Memory>,
    /// Cells found on the disk that had something given away.
    found: Mutex<Vec<CellKey>>,
    /// Whether any cell calls for a rebalance.
    calls: AtomicBool,
    /// The task that waits for a call.
    caller: Mutex<Option<Waker>>,
    /// Why this region owns nothing: see `region`.
    owns_nothing: AtomicU8,
    /// The correction of the wall clock while it is not believed, in nanoseconds.
    correction_ns: AtomicI64,
    /// The reading of a wall clock that moves as the steady clock does; unset if nobody compares the two.
    carried: Carried,
    /// The units that other regions, or the region's pools, may have.
    remote_supply: RemoteSupply,
    /// Charges forwarded to other nodes of the region, and by them.
    forwards: Forwards,
    /// The node's dealings with the region's pools. Locked before everything else.
    leases: Option<Mutex<Leases>>,
    /// How the nodes of this region share its part, if the region has several.
    guard: Option<Guard>,
    /// The store outages, by the cells whose pools are affected.
    store_outages: StoreOutages,
    /// The places in the store where names of charges are kept.
    places: Places,
    /// The records of named charges. Locked before any shard.
    charges: Charges,
    /// Warnings of soft limits. Locked after any shard.
    warnings: Mutex<Warnings>,
}

/// Warnings of soft limits, and how many were dropped for lack of room.
#[derive(Debug, Default)]
struct Warnings {
    waiting: VecDeque<Warning>,
    dropped: u64,
}

/// The most warnings that wait to be taken: the caller takes them every second or so.
const WARNINGS_WAITING_MAX: usize = 4_096;

/// A limit whose cells are read from the journal.
#[derive(Clone, Copy, Debug)]
struct Restored<'a> {
    slot: u32,
    /// The limit's algorithm.
    like: &'a Algorithm,
    /// Whether the limit's cells are kept in the journal.
    durable: bool,
    /// When a crash forgot unjournalled cells, if it did.
    lost: Option<Now>,
    /// The variants that the limit's cells have now.
    all: &'a [Live],
    error_ns: Option<u64>,
    now: Now,
}

impl Restored<'_> {
    /// Whether a bucket's cell owes more than a crash presumes of an unjournalled cell.
    fn is_overdrawn(&self, algorithm: &Algorithm, words: &[u64], salt: u32) -> bool {
        let units = self.all.iter().map(|live| live.local.part(salt).units).min().unwrap_or(0);
        algorithm.owed(words, self.now) > units && !mutated(Mutation::OverdrawnUnwritten)
    }

    /// As [`Restored::is_overdrawn`], for a row of a cell that new cells shared, under the variant that the
    /// row was written under.
    fn is_overdrawn_shared(&self, kept: &CellRecord) -> bool {
        let algorithm = kept.algorithm(self.like).filter(Algorithm::has_rate);
        algorithm.is_some_and(|algorithm| {
            let state = kept.state(&algorithm, self.error_ns, self.now);
            self.is_overdrawn(&algorithm, state.words(), 0)
        })
    }
}

/// What a node holds, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Cells in memory.
    pub cells: u64,
    /// Bytes that the cells take.
    pub bytes: u64,
    /// Bytes that charges and waiting rows take, as last counted.
    pub bytes_beside: u64,
    /// Idle cells dropped since the start.
    pub evicted: u64,
    /// Variants of limits whose new cells share one cell now.
    pub overflowing: u64,
}

impl Node {
    /// A node without limits: everything is allowed until [`Node::apply`].
    pub fn new(config: Config) -> Self {
        Self::keeping(config, Keep::default())
    }

    /// As [`Node::new`], with bounds on the records of charges.
    pub fn keeping(config: Config, keep: Keep) -> Self {
        let allocations = config.home.map(|home| Allocations::none(home.incarnation.member));
        let memory = Memory { process_number: 1, ..Memory::default() };
        let sharing = config.home.map(|home| Sharing::new(home, Versions::new(home.incarnation), memory, 0));
        Self {
            rows_hold: BTreeSet::new(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            catalogue: Mutex::default(),
            version: AtomicU64::new(0),
            registry: Mutex::new(Registry::new(&config.key, config.durable, allocations, config.after_crash)),
            overflow: Mutex::default(),
            overflowing: AtomicBool::new(false),
            rows: Mutex::default(),
            forgotten_wall_ns: AtomicU64::new(0),
            left: Left::default(),
            is_wall_believed: AtomicBool::new(config.home.is_none()),
            is_out_of_numbers: AtomicBool::new(false),
            clock_error_ns: AtomicU64::new(10_000_000),
            drift_ppm: AtomicU32::new(1_000),
            journal_wall_ns: AtomicU64::new(0),
            kept_wall_ns: AtomicU64::new(0),
            start_corrected_ns: AtomicI64::new(0),
            forgotten_steady_ns: AtomicU64::new(0),
            open_batch: AtomicU64::new(1),
            rows_in_hand: AtomicUsize::new(0),
            beside_bytes: AtomicUsize::new(0),
            committed_batch: AtomicU64::new(0),
            journal_down: AtomicBool::new(false),
            sharing: sharing.map(Mutex::new),
            sessions: RwLock::default(),
            memory: Mutex::new(memory),
            found: Mutex::default(),
            calls: AtomicBool::new(false),
            caller: Mutex::default(),
            owns_nothing: AtomicU8::new(if config.home.is_some() { region::NO_CATALOGUE } else { 0 }),
            correction_ns: AtomicI64::new(0),
            carried: Carried::default(),
            remote_supply: RemoteSupply::default(),
            forwards: Forwards::default(),
            leases: None,
            guard: None,
            store_outages: StoreOutages::default(),
            places: Places::default(),
            charges: Charges::new(keep, config.memory_bytes),
            warnings: Mutex::default(),
            config,
        }
    }

    /// Takes over the limits that were in force before a restart. Then [`Node::apply`] applies the file,
    /// which may have changed since.
    ///
    /// # Errors
    /// There are more limits than a node can have.
    pub fn resume(&self, schedule: Vec<Scheduled>, now: Now) -> Result<(), CatalogueFault> {
        let mut registry = lock(&self.registry);
        registry.resume(schedule, self.is_wall_believed(), now)?;
        self.publish(&registry, now);
        Ok(())
    }

    /// Puts a set of limits in force. `rows` reads what the journal holds of a limit that this node does not
    /// know yet. So removing and adding a limit, or a restart, gives nothing back.
    ///
    /// # Errors
    /// The set contradicts itself, or exceeds what a node can count. Nothing has changed then.
    pub fn apply(
        &self,
        limits: Vec<Limit>,
        now: Now,
        rows: impl FnMut(LimitId) -> Vec<Row>,
    ) -> Result<Vec<Change>, CatalogueFault> {
        // Held so that a rebalance of the pools uses one catalogue throughout.
        let mut held = self.leases.as_ref().map(lock);
        let (changes, taken) = self.apply_limits(limits, now, rows)?;
        self.take_from_disk(taken);
        if let Some(leases) = &mut held {
            // No node goes on with more than its part of a lowered limit, whether or not the store can be
            // told.
            leases.shrink_all(self, &self.catalogue(), self.not_before(now));
        }
        Ok(changes)
    }

    /// As [`Node::apply`]; also returns the rows that must be deleted from the disk once the disk has the
    /// limits in force.
    fn apply_limits(
        &self,
        limits: Vec<Limit>,
        now: Now,
        mut rows: impl FnMut(LimitId) -> Vec<Row>,
    ) -> Result<(Vec<Change>, Vec<Row>), CatalogueFault> {
        let mut registry = lock(&self.registry);
        let unknown: Vec<LimitId> =
            limits.iter().map(|limit| limit.id).filter(|id| !registry.knows(*id)).collect();
        let changes = registry.apply(limits, now)?;
        let taken = self.restore(&mut registry, &unknown, now, false, &mut rows);
        self.publish(&registry, now);
        let unwritten = registry.take_unwritten();
        drop(registry);
        self.write_cells(unwritten, now);
        Ok((changes, taken))
    }

    /// Reads the cells of the limits in force from the journal: once, after [`Node::resume`]. Rows that only
    /// a clean stop leaves are taken. Nothing may be asked, and no row be written, before the journal says
    /// that the node runs.
    pub fn restore_all(&self, now: Now, mut rows: impl FnMut(LimitId) -> Vec<Row>) {
        let wall_ns = rows(journal::WALL).iter().filter_map(Row::wall_ns).max().unwrap_or(0);
        self.journal_wall_ns.fetch_max(wall_ns, Ordering::AcqRel);
        self.kept_wall_ns.store(wall_ns, Ordering::Release);
        if self.is_wall_believed() {
            self.go_on_from_kept(now);
        }
        let mut registry = lock(&self.registry);
        let ids: Vec<LimitId> = registry.active().iter().map(|active| active.limit.id).collect();
        let crashed = self.config.after_crash.is_some();
        let taken = self.restore(&mut registry, &ids, now, crashed, &mut rows);
        self.publish(&registry, now);
        drop(registry);
        self.take_from_disk(taken);
        self.restore_charges(now, rows(journal::CHARGES));
    }

    /// The limits and when each is in force: [`Node::resume`] needs them after a restart.
    pub fn schedule(&self) -> Vec<Scheduled> {
        lock(&self.registry).schedule()
    }

    /// The limits in force.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&lock(&self.catalogue))
    }

    /// An asker for one thread.
    pub fn asker(self: &Arc<Self>) -> Asker {
        Asker::new(Arc::clone(self))
    }

    /// Takes the rows that wait for the disk, as one batch; `None` if none wait. The caller writes them in
    /// this order, then calls [`Node::committed`].
    pub fn take_rows(&self) -> Option<(u64, Vec<Row>)> {
        let mut rows = lock(&self.rows);
        if rows.is_empty() {
            return None;
        }
        let batch = self.open_batch.fetch_add(1, Ordering::AcqRel);
        self.rows_in_hand.store(rows.len(), Ordering::Relaxed);
        Some((batch, std::mem::take(&mut *rows)))
    }

    /// Adds a row to the open batch; returns the batch.
    fn push_row(&self, row: Row) -> u64 {
        let mut rows = lock(&self.rows);
        rows.push(row);
        self.open_batch.load(Ordering::Acquire)
    }

    /// Deletes rows from the disk whose contents are true only once, as [`Node::restore`] returned them.
    fn take_from_disk(&self, taken: Vec<Row>) {
        if !mutated(Mutation::StoppedTwice) {
            lock(&self.rows).extend(taken);
        }
    }

    /// Notes that every batch up to this one is on disk, and stays there.
    pub fn committed(&self, batch: u64) {
        self.committed_batch.fetch_max(batch, Ordering::AcqRel);
        self.rows_in_hand.store(0, Ordering::Relaxed);
        self.journal_down.store(false, Ordering::Release);
    }

    /// Notes that the journal cannot be written for now: only what is held on disk may be spent.
    pub fn journal_failed(&self) {
        self.journal_down.store(true, Ordering::Release);
    }

    /// Whether the last write to the journal failed.
    pub fn is_journal_down(&self) -> bool {
        self.journal_down.load(Ordering::Acquire)
    }

    /// Drops the idle cells of one shard (`shard` modulo [`SHARDS`]), in memory and in the journal. Called
    /// round robin: each shard every few seconds.
    pub fn sweep(&self, shard: usize, now: Now) {
        // The check comes before the time is used: the time may be corrected once another clock agrees.
        if !self.is_wall_believed() {
            return;
        }
        let catalogue = self.catalogue();
        let at = shard % SHARDS;
        let now = self.not_before(now);
        self.tidy_charges(now);
        self.left.pass(now);
        let mut rows = Vec::new();
        let mut forgotten = false;
        let mut cells = self.shards[at].lock();
        cells.sweep(|cell, heap| {
            let gone = !heap.is_shared(cell) && is_idle(&catalogue, cell, whole_tag(at, cell), heap, now);
            forgotten |= gone;
            if gone && !heap.is_unwritten(cell) {
                rows.extend(catalogue.id(cell.slot()).map(|limit| Row {
                    limit,
                    tag: whole_tag(at, cell),
                    state: None,
                }));
            }
            gone
        });
        if forgotten {
            self.forget_at(now);
        }
        if !rows.is_empty() {
            rows.push(journal::wall_row(now.wall_ns.max(self.left.latest_ns())));
        }
        lock(&self.rows).append(&mut rows);
        drop(cells);
        if at == 0 {
            self.sweep_overflow(&catalogue, now);
        }
    }

    /// Takes the warnings of soft limits since the last call; also returns how many were ever dropped for
    /// lack of room.
    pub fn take_warnings(&self) -> (Vec<Warning>, u64) {
        let mut warnings = lock(&self.warnings);
        (warnings.waiting.drain(..).collect(), warnings.dropped)
    }

    fn warn(&self, warning: Warning) {
        let mut warnings = lock(&self.warnings);
        if warnings.waiting.len() < WARNINGS_WAITING_MAX {
            warnings.waiting.push_back(warning);
        } else {
            warnings.dropped += 1;
        }
    }

    /// How far wall clocks may be off, by the regions' catalogue; 0 if the node stands alone.
    fn clock_error_ns(&self) -> u64 {
        lock(&self.registry).clock_error_ns().unwrap_or(0)
    }

    /// The memory and number of cells, for metrics.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage {
            overflowing: lock(&self.overflow).len() as u64,
            bytes_beside: self.beside_bytes.load(Ordering::Relaxed) as u64,
            ..Usage::default()
        };
        for shard in &self.shards {
            let cells = shard.lock();
            usage.cells += cells.table.len() as u64;
            usage.bytes += cells.bytes() as u64;
            usage.evicted += cells.evicted;
        }
        usage
    }

    /// Queues the rows that new variants make necessary. The rows come before the version with the variants,
    /// so that a crash finds both.
    ///
    /// Cells that are journalled from now on are written even if they are not charged again. For an
    /// unjournalled bucket, a crash presumes that every cell owes all that the variant allows. So only cells
    /// that owe more, because an earlier variant allowed it, are written. No other cell can come to owe more:
    /// a charge leaves no more owed than the variant allows, and loans move as much debt as room.
    fn write_cells(&self, unwritten: Unwritten, now: Now) {
        let Unwritten { kept, mut overdrawn, mut forgotten, slowed } = unwritten;
        self.strip_charges(&slowed.into_iter().collect());
        overdrawn.sort_unstable();
        forgotten.retain(|_| !mutated(Mutation::ForgottenUnwritten));
        if kept.is_empty() && overdrawn.is_empty() && forgotten.is_empty() {
            return;
        }
        let catalogue = self.catalogue();
        for slot in &forgotten {
            if let (Some(limit), Some((most, words))) =
                (catalogue.id(*slot), catalogue.most_forgotten(*slot, now))
            {
                self.push_row(Row { limit, tag: FORGOTTEN, state: Some(CellRecord::new(most, &words, now)) });
            }
        }
        let mut slots = kept;
        slots.extend(overdrawn.iter().filter(|_| !mutated(Mutation::OverdrawnUnwritten)));
        slots.sort_unstable();
        slots.dedup();
        for (at, shard) in self.shards.iter().enumerate() {
            let mut cells = shard.lock();
            for place in cells.table.places_of(&slots) {
                self.write_cell(&catalogue, &mut cells, (at, place), &overdrawn, now);
            }
        }
        self.write_shared(&catalogue, &slots, &overdrawn, now);
    }

    /// Queues a cell of a shard for the journal, unless a crash presumes at least as much debt: see
    /// [`Node::write_cells`].
    fn write_cell(
        &self,
        catalogue: &Catalogue,
        cells: &mut Cells,
        (shard, place): (usize, usize),
        overdrawn: &[u32],
        now: Now,
    ) {
        let tag = whole_tag(shard, cells.table.at(place));
        renumber_bucket(catalogue, cells, (place, tag.salt()), now);
        let cell = *cells.table.at(place);
        let Some(local) = catalogue.local(cell.slot(), cell.numbers()) else { return };
        let Some(limit) = catalogue.id(cell.slot()) else { return };
        let algorithm = local.at(tag.salt());
        if algorithm.has_rate() {
            let account = cells.account_of(&cell).map(|account| &account.algorithm);
            let owed = account.unwrap_or(algorithm).owed(cells.words(&cell), now);
            if owed <= presumed(catalogue, overdrawn, cell.slot(), tag.salt()) {
                return;
            }
        }
        if cell.heap_place().is_none() {
            cells.move_to_heap(place);
        }
        let Some(heap) = cells.table.at(place).heap_place() else { return };
        cells.with_heap_cell(heap, |state| {
            let account = state.account.as_deref();
            let pledge = account.map_or_else(Pledge::default, Account::pledge);
            let algorithm = account.map_or(algorithm, |account| &account.algorithm);
            let kept = Some(CellRecord::new(algorithm, &state.words, now).with_pledge(pledge));
            let batch = self.push_row(Row { limit, tag, state: kept });
            // The disk does not have the reserve ahead of use any more.
            state.forget_held();
            state.ask_as_is(batch);
        });
    }

    /// The time as this node uses it: corrected by the other regions' clocks, and never before the time at
    /// which cells were dropped.
    pub fn corrected(&self, now: Now) -> Now {
        self.not_before(now)
    }

    /// The time as this node uses it: the wall clock is corrected, and never before the time at which cells
    /// were dropped, unless it was set back.
    ///
    /// A clock may be set between two comparisons of the clocks. Until the next comparison, the wall clock
    /// moves as the steady clock does. Otherwise requests would be counted in windows that nobody has heard
    /// of.
    fn not_before(&self, now: Now) -> Now {
        let correction_ns = self.correction_ns.load(Ordering::Acquire);
        let read_ns = now.wall_ns.saturating_add_signed(correction_ns);
        let wall_ns = self.carried.unless_set(now.steady_ns, read_ns);
        let read = Now { wall_ns, ..now };
        if self.left.may_have_stepped(read) && self.is_wall_believed() {
            self.left.note(read, &self.forgotten_wall_ns, &self.journal_wall_ns);
        }
        Now { wall_ns: wall_ns.max(self.forgotten_wall_ns.load(Ordering::Acquire)), ..now }
    }

    fn progress(&self) -> Progress {
        Progress {
            committed: self.committed_batch.load(Ordering::Acquire),
            open: self.open_batch.load(Ordering::Acquire),
        }
    }

    fn shard_bytes_max(&self) -> usize {
        let memory = self.config.memory_bytes.max(MEMORY_BYTES_MIN);
        // A slow disk must not take all memory from new cells.
        let beside = self.beside_bytes.load(Ordering::Relaxed).min(memory / 2);
        (memory - beside) / SHARDS
    }

    /// Puts journalled cells back in memory. The cells are real debts, so the memory bound does not stop
    /// them: a node that is given less memory than it had starts full.
    ///
    /// Returns the rows that must be deleted. A clean stop writes every cell of unjournalled limits, and such
    /// a row is true only once: this process spends without writing. After a crash such a row would be
    /// ignored. But the next clean stop would make it look valid, if that process had nothing of the cell.
    /// Two kinds of rows stay: what is given away, and a bucket's debt beyond all that a crash presumes.
    /// While a cell owes so much, nothing is spent of it, so its row stays true. The disk must have the
    /// limits in force first: of other limits, a crash presumes nothing.
    fn restore(
        &self,
        registry: &mut Registry,
        ids: &[LimitId],
        now: Now,
        crashed: bool,
        rows: &mut impl FnMut(LimitId) -> Vec<Row>,
    ) -> Vec<Row> {
        let mut taken = Vec::new();
        let error_ns = registry.clock_error_ns();
        let places: BTreeMap<LimitId, usize> =
            registry.active().iter().enumerate().map(|(place, active)| (active.limit.id, place)).collect();
        for id in ids {
            let Some(active) = places.get(id).map(|place| &registry.active()[*place]) else { continue };
            let (slot, like, durable) = (active.slot, active.limit.algorithm.clone(), active.durable);
            let all = registry.numbers_of(active);
            // Cells may have been charged after a row was written. So the limit starts as after a crash, even
            // if it only comes back now.
            let lost = match self.config.after_crash {
                Some(then) if !durable && (crashed || self.is_shared()) && !self.rows_hold.contains(id) => {
                    Some(then)
                }
                _ => None,
            };
            let (forgotten, rows): (Vec<Row>, Vec<Row>) =
                rows(*id).into_iter().partition(|row| row.tag == FORGOTTEN);
            for row in forgotten {
                self.restore_forgotten(registry, (slot, &like), row, (error_ns, now));
            }
            // Only a bucket may owe more than is presumed.
            let is_presumed = lost.is_some() && (!like.has_rate() || mutated(Mutation::OverdrawnUnwritten));
            let limit = Restored { slot, like: &like, durable, lost, all: &all, error_ns, now };
            let mut shared: Vec<(CellTag, CellRecord)> = Vec::new();
            // Whether the disk keeps the rows of shared cells.
            let mut is_shared_kept = durable;
            for Row { tag, state, .. } in rows {
                let Some(kept) = state else { continue };
                let is_pledged = kept.is_pledged();
                let is_overdrawn = if is_presumed && (is_overflow(tag) || kept.pledge().is_empty()) {
                    false
                } else if is_overflow(tag) {
                    is_shared_kept |= limit.is_overdrawn_shared(&kept);
                    shared.push((tag, kept));
                    continue;
                } else {
                    self.restore_cell(registry, &limit, (*id, tag), &kept)
                };
                if !durable && !is_pledged && !is_overdrawn {
                    taken.push(Row { limit: *id, tag, state: None });
                }
            }
            let all: Vec<(u16, Algorithm)> =
                all.iter().map(|live| (live.numbers, live.local.least().clone())).collect();
            let presumed = lost.map(|_| &*registry);
            self.restore_shared((*id, slot), &all, &shared, (presumed, is_shared_kept), (error_ns, now));
            if !is_shared_kept {
                taken.extend(shared.iter().map(|(tag, _)| Row { limit: *id, tag: *tag, state: None }));
            }
        }
        taken
    }

    /// Puts one cell back, unless the cell exists, or owes no more than is presumed of an absent cell. Says
    /// whether the cell owes more than the next crash would presume; then its present state is queued for the
    /// disk.
    fn restore_cell(
        &self,
        registry: &Registry,
        limit: &Restored<'_>,
        (id, tag): (LimitId, CellTag),
        kept: &CellRecord,
    ) -> bool {
        let Restored { slot, like, durable, lost, all, error_ns, now } = *limit;
        self.journal_wall_ns.fetch_max(kept.written_wall_ns(), Ordering::AcqRel);
        let Some(algorithm) = kept.algorithm(like) else { return false };
        let salt = tag.salt();
        let state = kept.state(&algorithm, error_ns, now);
        let state = self.after_set_back(&algorithm, state, Some(salt), now);
        // If a present variant is equal, the cell keeps it. Otherwise nobody knows when the variant changed,
        // or which variant the cell has now. Among regions, the least variant counts until the cell is next
        // hit, so that no more of it is lent than there is.
        let same = all.iter().find(|live| *live.local.at(salt) == algorithm);
        let (live, state) = match same {
            Some(live) => (live, state),
            None => {
                let least = all.iter().min_by_key(|live| live.order(salt)).filter(|_| self.is_shared());
                let live = least.unwrap_or(&all[0]);
                (live, live.local.at(salt).convert_sometime(&algorithm, state.words(), now))
            }
        };
        let state = match lost {
            None => state,
            Some(then) if !like.has_rate() => self.spent(live.local.at(salt), then, Some(salt)),
            Some(_) => match more_than_forgotten(registry, (slot, live.numbers), state, now) {
                Ok(more) => more,
                Err(_) if kept.pledge().is_empty() => return false,
                Err(presumed) => presumed,
            },
        };
        let is_overdrawn = !durable && limit.is_overdrawn(live.local.at(salt), state.words(), salt);
        let mut cells = self.shards[shard_of(tag)].lock();
        if cells.table.find(tag, slot).is_some() {
            return is_overdrawn;
        }
        while !cells.table.has_room(1) {
            cells.table.grow(usize::MAX);
        }
        let (numbers, cell) = if !kept.pledge().is_empty() {
            // The cell's override is known when the cell is next hit; until then it has the least variant.
            let least = all.iter().min_by_key(|live| live.order(salt)).unwrap_or(live);
            let context =
                CellContext { global: &least.global, local: &least.local, salt, which: None, in_force: true };
            let is_forgotten = lost.is_some();
            let mut account = Account::restored(&context, kept.pledge(), now, is_forgotten);
            let words = account.algorithm.resize(live.local.at(salt), state.words(), now);
            if self.leases.is_some() {
                account.count_given_before(words.words(), &context, is_forgotten);
            }
            let mut cell = HeapCell::restored(words.words().to_vec());
            cell.forget_held();
            cell.account = Some(Box::new(account));
            self.lent_before(slot, tag);
            (least.numbers, NewCell::Heap(cell))
        } else if durable {
            (live.numbers, NewCell::Heap(HeapCell::restored(state.words().to_vec())))
        } else if is_overdrawn {
            let state_now = Some(CellRecord::new(live.local.at(salt), state.words(), now));
            let mut cell = HeapCell::new(state.words().to_vec());
            cell.ask_as_is(self.push_row(Row { limit: id, tag, state: state_now }));
            (live.numbers, NewCell::Heap(cell))
        } else {
            (live.numbers, NewCell::new(state, live.local.at(salt), false))
        };
        let place = cells.insert(tag, slot, numbers, cell);
        if all.len() > 1 {
            cells.table.at_mut(place).guess();
        }
        is_overdrawn
    }

    /// Corrects a row that was written by a wall clock that has been set back since. A node whose clock
    /// others can contradict learns later whether the clock was set back or is wrong now.
    fn after_set_back(&self, algorithm: &Algorithm, state: State, salt: Option<u32>, now: Now) -> State {
        if !self.is_wall_believed() {
            return state;
        }
        let Some(counted) = algorithm.after_set_back(state.words(), now, salt) else { return state };
        if let Algorithm::FixedWindow(edges) = algorithm {
            // If the wall clock is wrong now, it will come to that window.
            let end_ns = window::Usage::of(state.words()).end_ns;
            self.left.visited(edges.begins(end_ns, salt.unwrap_or(0)), end_ns);
        }
        counted
    }

    /// Ensures that no window opens again that an earlier process has forgotten, according to the journal.
    fn go_on_from_kept(&self, now: Now) {
        let kept_ns = self.kept_wall_ns.load(Ordering::Acquire);
        if kept_ns > now.wall_ns.saturating_add(SET_BACK_NS) {
            // The earlier wall clock was ahead, and is right now; nobody knows in which windows it was.
            // Windows that are open now count as spent; later windows have not been open.
            self.left.restart(now, kept_ns);
        } else {
            self.forgotten_wall_ns.fetch_max(kept_ns, Ordering::AcqRel);
        }
    }

    /// Restores the debt of unknown cells: what an earlier process had forgotten is not known now either.
    fn restore_forgotten(
        &self,
        registry: &mut Registry,
        (slot, like): (u32, &Algorithm),
        row: Row,
        (error_ns, now): (Option<u64>, Now),
    ) {
        let Row { limit, tag, state } = row;
        let Some(kept) = state else { return };
        let Some(written) = kept.algorithm(like).filter(Algorithm::has_rate) else { return };
        let words = kept.state(&written, error_ns, now);
        if written.is_idle(words.words(), now) {
            self.push_row(Row { limit, tag, state: None });
        } else if !mutated(Mutation::ForgottenUnwritten) {
            registry.learn_forgotten(slot, &written, words.words(), now);
        }
    }
}

/// Whether a cell's state means the same as an absent cell. Cells under variants that this snapshot does not
/// know yet are kept.
fn is_idle(catalogue: &Catalogue, cell: &Cell, tag: CellTag, heap: &HeapCells<'_>, now: Now) -> bool {
    catalogue.is_idle(cell.slot(), cell.numbers(), tag.salt(), heap.words(cell), now)
}

/// Brings a bucket without loans to its limit's new variant when the variant begins, so that its row is
/// written under that variant. A cell that owes nothing stays as it is.
fn renumber_bucket(catalogue: &Catalogue, cells: &mut Cells, (place, salt): (usize, u32), now: Now) {
    let (slot, numbers) = (cells.table.at(place).slot(), cells.table.at(place).numbers());
    let heir = catalogue.heir(slot, cells.table.at(place), salt, now);
    let Some((heir, is_guess)) = heir.filter(|(heir, _)| *heir != numbers) else { return };
    let (Some(old), Some(new)) = (catalogue.local(slot, numbers), catalogue.local(slot, heir)) else {
        return;
    };
    let (old, new) = (old.at(salt), new.at(salt));
    let words = cells.words(cells.table.at(place));
    if !old.has_rate() || cells.account(place).is_some() || old.is_idle(words, now) {
        return;
    }
    let state = new.resize(old, words, now);
    cells.rewrite(place, heir, state);
    if is_guess {
        cells.table.at_mut(place).guess();
    }
}

/// The debt that a crash presumes of a bucket's cell: nothing, if the limit is kept in the journal.
fn presumed(catalogue: &Catalogue, overdrawn: &[u32], slot: u32, salt: u32) -> u64 {
    if overdrawn.binary_search(&slot).is_ok() { catalogue.least_units(slot, salt) } else { 0 }
}

/// The state of an unjournalled bucket's cell that may have been charged after its row was written. `Ok` has
/// the row's state, if it owes more than is presumed of every such cell; otherwise `Err` has the presumed
/// state.
fn more_than_forgotten(
    registry: &Registry,
    (slot, numbers): (u32, u16),
    state: State,
    now: Now,
) -> Result<State, State> {
    let (most, presumed) = registry.forgotten(slot, numbers);
    let is_more = !most.covers(&presumed, state.words(), now) && !most.is_idle(state.words(), now);
    if is_more { Ok(state) } else { Err(State::Inline(presumed)) }
}

/// The shard of a tag: its top bits, which the table does not store.
fn shard_of(tag: CellTag) -> usize {
    (tag.0 >> (128 - SHARDS.trailing_zeros())) as usize
}

/// A cell's tag, as far as it is known: the shard's bits and the low 96 bits.
fn whole_tag(shard: usize, cell: &Cell) -> CellTag {
    CellTag((shard as u128) << (128 - SHARDS.trailing_zeros()) | cell.tag_low())
}

/// A tag as the journal has it: as [`whole_tag`] restores it.
fn journal_tag(tag: CellTag) -> CellTag {
    const LOW: u128 = (1 << 96) - 1;
    CellTag((shard_of(tag) as u128) << (128 - SHARDS.trailing_zeros()) | tag.0 & LOW)
}

/// Takes a lock even if a thread panicked under it: no change under these locks is ever half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
