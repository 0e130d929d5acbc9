//! One node's brain: which cells a request hits, and whether it may pass. **No cell admits more
//! than its limit, and a denied request has charged nothing** (but limits that say `charge: each`).
//!
//! The crate knows limits, cells and what must be on disk before a reply leaves. It does not know
//! gRPC, files, or what time it is: every call takes [`Now`], and what has to be written is handed
//! out by [`Node::take_rows`] and confirmed by [`Node::committed`].
//!
//! The way of a request: [`Asker::check`] → `index` finds the limits that may match → each gives a
//! tag → `shard` and `table` find the cells → the limits' algorithms decide → all are charged, or
//! none. `catalogue` says what happens when limits change, [`journal`] what survives a crash.
//!
//! Where a limit is shared by regions, a cell is decided by this region's own part (`local`), and costs no
//! message, until it is *warm*: half of that is used, something was denied, or another region asked for it.
//! Then it gets an `account`: the effective part, with what is lent, held and given, by the rules of
//! `acequia-rights`; a request settles what ended meanwhile and is decided by that. It never waits for
//! another region: it notes what was asked for, and calls. [`Node::tick`] then looks at the cells that
//! called (`visit`: one cell under its lock), decides who should have what (`sharing`), and puts frames in
//! line; [`Node::handle`] takes those that come, and [`Node::poll`] gives those that may leave, each when
//! what it tells is on disk. A region without a share denies, and says why.

mod account;
mod catalogue;
mod charges;
mod close;
mod decide;
pub mod difference;
mod explain;
mod forwards;
mod index;
mod inspect;
pub mod journal;
pub mod leases;
mod left;
mod local;
mod locked_cell;
mod overflow;
mod pages;
mod preference;
mod record;
mod region;
mod shard;
pub mod sharing;
mod table;
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

use crate::{
    account::{Account, CellContext},
    catalogue::{Allocations, Live, Registry, Unwritten},
    charges::Charges,
    forwards::Forwards,
    journal::{FORGOTTEN, HeapCell, Progress, is_overflow},
    leases::{Leases, Places, StoreOutages},
    left::Left,
    local::Guard,
    overflow::Overflow,
    record::Pledge,
    shard::{Cells, HeapCells, NewCell, Shard},
    sharing::{Carried, CellKey, Memory, Sharing},
    table::Cell,
    wait::RemoteSupply,
};
pub use crate::{
    catalogue::{Active, Catalogue, CatalogueFault, Change, ChangeKind, LIMITS_MAX, NUMBERS_MAX, Scheduled},
    charges::{
        ChargeId, ChargesView, KEEP_NS, Keep, KeptAt, RECORDS, RESERVE_NS_MAX, Recording, Refunded, Reserve,
        Settled, SharedAnswer,
    },
    decide::{
        Answer, Ask, Asker, Charged, DESCRIPTORS_MAX, Forwarding, IdReused, LimitAnswer, Outcome, Warning,
    },
    explain::Unmatched,
    forwards::{DRAW_NS, DRAW_WAIT_NS, Forward, ForwardCounts},
    inspect::{CellView, Holding, LimitView, LoanView, NamedCell, Overview, PeerView, WordView},
    journal::{CHARGES, Row, TAKINGS, WALL},
    record::CellRecord,
    region::ResumeFault,
    sharing::{Home, Membership},
};

/// Locks over the cells: enough that two threads seldom meet, few enough to stay in a core's cache.
pub const SHARDS: usize = 256;

/// The least memory for cells, in bytes: a few thousand cells.
pub const MEMORY_BYTES_MIN: usize = 1 << 20;

/// How a node is set up.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The secret that cells are hashed with. With a journal, the same after every restart.
    pub key: HashKey,
    /// Memory for cells, charges and rows that wait for the disk, in bytes: at least [`MEMORY_BYTES_MIN`]. Past it, new
    /// cells of a limit share one. A plain cell takes 43 to 64 bytes.
    pub memory_bytes: usize,
    /// Whether there is a journal: cells that need a minute or more to be idle are kept in it.
    pub durable: bool,
    /// The start of a node that takes over from one that crashed: cells that were not journalled
    /// count as wholly spent at this time. Nothing for a node that never served, or that stopped
    /// cleanly and gets its cells back.
    pub empty_handed: Option<Now>,
    /// Its place among regions; nothing for a node that shares its limits with nobody.
    pub home: Option<Home>,
}

/// The cells and limits of one node. Shared by threads; each asks through an [`Asker`] of its own.
#[derive(Debug)]
pub struct Node {
    config: Config,
    /// Whose rows of cells are true though there was a crash before: [`leases::Siblings::rows_hold`].
    rows_hold: BTreeSet<LimitId>,
    shards: Box<[Shard]>,
    catalogue: Mutex<Arc<Catalogue>>,
    /// The catalogue's version, for askers to see that theirs is old.
    version: AtomicU64,
    registry: Mutex<Registry>,
    /// The cells that stand in for new ones when memory is full. Locked after any shard.
    overflow: Mutex<Overflow>,
    overflowing: AtomicBool,
    /// Rows for the journal, in the order of the changes. Locked after any shard.
    rows: Mutex<Vec<Row>>,
    /// The latest wall clock at which a cell with a window was forgotten: time does not go back
    /// behind it, or the window would open again.
    forgotten_wall_ns: AtomicU64,
    /// Windows that the wall left before it was set back.
    left: Left,
    /// Whether what is durable or shared may be dated by the wall.
    is_wall_believed: AtomicBool,
    /// Whether a limit has had too many numbers for those that it should have now: then nothing passes until a restart.
    is_out_of_numbers: AtomicBool,
    /// What clocks are held to while there is no catalogue: how far walls may be off, in nanoseconds, and how far steady clocks
    /// may drift, in parts per million.
    clock_error_ns: AtomicU64,
    drift_ppm: AtomicU32,
    /// The latest date in the journal at the start: wall clock.
    journal_wall_ns: AtomicU64,
    /// The wall at which an earlier process last forgot something, as the journal has it.
    kept_wall_ns: AtomicU64,
    /// What the right wall was ahead of the one at the start, as is known since somebody contradicted that.
    start_corrected_ns: AtomicI64,
    /// The same by the steady clock: threads read it one after the other, and act in another order.
    forgotten_steady_ns: AtomicU64,
    open_batch: AtomicU64,
    /// Rows of the batch that is on its way to the disk.
    rows_in_hand: AtomicUsize,
    /// Bytes that charges and waiting rows take of the memory for cells, as last counted.
    beside_bytes: AtomicUsize,
    committed_batch: AtomicU64,
    journal_down: AtomicBool,
    /// The dealings with other regions. Locked before everything else.
    sharing: Option<Mutex<Sharing>>,
    /// What dates loans. Locked after any shard.
    sessions: RwLock<BTreeMap<Incarnation, Session>>,
    memory: Mutex<Memory>,
    /// Cells found on the disk of which something is given away.
    found: Mutex<Vec<CellKey>>,
    /// Whether any cell calls for a look.
    calls: AtomicBool,
    /// Who waits for that.
    caller: Mutex<Option<Waker>>,
    /// Why this region owns nothing: see `region`.
    owns_nothing: AtomicU8,
    /// What is added to the wall clock while it is not believed, in nanoseconds.
    correction_ns: AtomicI64,
    /// What a wall that moves as the steady clock does reads. Nothing where nobody compares them.
    carried: Carried,
    /// What other regions, or the region's pools, may have.
    remote_supply: RemoteSupply,
    /// What is drawn of other nodes of the region, and by them.
    forwards: Forwards,
    /// The dealings with the region's pools. Locked before everything else.
    leases: Option<Mutex<Leases>>,
    /// How the nodes of this region share what each has among the nodes of several.
    guard: Option<Guard>,
    /// Of which cells' pools the store is lost.
    store_outages: StoreOutages,
    /// Where names of charges are kept.
    places: Places,
    /// What was charged under a name. Locked before any shard.
    charges: Charges,
    /// What soft limits have to tell. Locked after any shard.
    warnings: Mutex<Warnings>,
}

/// What soft limits have to tell, and how much there was no room for.
#[derive(Debug, Default)]
struct Warnings {
    waiting: VecDeque<Warning>,
    dropped: u64,
}

/// The most warnings that wait to be taken: whoever tells them looks every second or so.
const WARNINGS_WAITING_MAX: usize = 4_096;

/// A limit whose cells are read from the journal.
#[derive(Clone, Copy, Debug)]
struct Restored<'a> {
    slot: u32,
    /// Its algorithm.
    like: &'a Algorithm,
    /// Whether its cells are kept in the journal.
    durable: bool,
    /// When a crash forgot what was not.
    lost: Option<Now>,
    /// The numbers that its cells have now.
    all: &'a [Live],
    error_ns: Option<u64>,
    now: Now,
}

impl Restored<'_> {
    /// Whether a cell of a bucket owes more than a crash presumes, were it not journalled.
    fn is_overdrawn(&self, algorithm: &Algorithm, words: &[u64], salt: u32) -> bool {
        let units = self.all.iter().map(|live| live.local.part(salt).units).min().unwrap_or(0);
        algorithm.owed(words, self.now) > units && !mutated(Mutation::OverdrawnUnwritten)
    }

    /// The same of a row of a cell that new ones shared, under the numbers that it was written under.
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
    /// Bytes they take.
    pub bytes: u64,
    /// Bytes that charges and waiting rows take, as last counted.
    pub bytes_beside: u64,
    /// Idle cells forgotten since the start.
    pub evicted: u64,
    /// Limits whose new cells share one now.
    pub overflowing: u64,
}

impl Node {
    /// A node without limits: everything is allowed until [`Node::apply`].
    pub fn new(config: Config) -> Self {
        Self::keeping(config, Keep::default())
    }

    /// The same, that keeps records of charges as it is told.
    pub fn keeping(config: Config, keep: Keep) -> Self {
        let allocations = config.home.map(|home| Allocations::none(home.incarnation.member));
        let memory = Memory { boot: 1, ..Memory::default() };
        let sharing = config.home.map(|home| Sharing::new(home, Versions::new(home.incarnation), memory, 0));
        Self {
            rows_hold: BTreeSet::new(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            catalogue: Mutex::default(),
            version: AtomicU64::new(0),
            registry: Mutex::new(Registry::new(
                &config.key,
                config.durable,
                allocations,
                config.empty_handed,
            )),
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

    /// Takes over the limits that were in force before a restart; [`Node::apply`] then says what
    /// the file has changed since.
    ///
    /// # Errors
    /// More limits than a node can have.
    pub fn resume(&self, schedule: Vec<Scheduled>, now: Now) -> Result<(), CatalogueFault> {
        let mut registry = lock(&self.registry);
        registry.resume(schedule, self.is_wall_believed(), now)?;
        self.publish(&registry, now);
        Ok(())
    }

    /// Puts a set of limits in force. `rows` reads what the journal holds of a limit that this
    /// node does not know yet, so that removing and adding it, or a restart, gives nothing back.
    ///
    /// # Errors
    /// The set contradicts itself, or exceeds what a node can count; then nothing has changed.
    pub fn apply(
        &self,
        limits: Vec<Limit>,
        now: Now,
        rows: impl FnMut(LimitId) -> Vec<Row>,
    ) -> Result<Vec<Change>, CatalogueFault> {
        // Whoever looks at cells of pools goes by one catalogue all the while.
        let mut held = self.leases.as_ref().map(lock);
        let (changes, taken) = self.apply_limits(limits, now, rows)?;
        self.take_from_disk(taken);
        if let Some(leases) = &mut held {
            // Of what was lowered nobody goes on with more than its part, whether or not the store is there to hear of it.
            leases.shrink_all(self, &self.catalogue(), self.not_before(now));
        }
        Ok(changes)
    }

    /// As [`Node::apply`]; gives the rows too that must go from the disk, when it knows that the limits are in force.
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

    /// Reads the cells of the limits in force from the journal: once, after [`Node::resume`]. What only a clean stop leaves
    /// there is taken: nothing may be asked, and no row be written, before the journal says that the node runs.
    pub fn restore_all(&self, now: Now, mut rows: impl FnMut(LimitId) -> Vec<Row>) {
        let wall_ns = rows(journal::WALL).iter().filter_map(Row::wall_ns).max().unwrap_or(0);
        self.journal_wall_ns.fetch_max(wall_ns, Ordering::AcqRel);
        self.kept_wall_ns.store(wall_ns, Ordering::Release);
        if self.is_wall_believed() {
            self.go_on_from_kept(now);
        }
        let mut registry = lock(&self.registry);
        let ids: Vec<LimitId> = registry.active().iter().map(|active| active.limit.id).collect();
        let crashed = self.config.empty_handed.is_some();
        let taken = self.restore(&mut registry, &ids, now, crashed, &mut rows);
        self.publish(&registry, now);
        drop(registry);
        self.take_from_disk(taken);
        self.restore_charges(now, rows(journal::CHARGES));
    }

    /// The limits in force, and when: what [`Node::resume`] needs after a restart.
    pub fn schedule(&self) -> Vec<Scheduled> {
        lock(&self.registry).schedule()
    }

    /// The limits in force.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&lock(&self.catalogue))
    }

    /// A way to ask, for one thread.
    pub fn asker(self: &Arc<Self>) -> Asker {
        Asker::new(Arc::clone(self))
    }

    /// Takes the rows that wait for the disk, as one batch: write them in this order, then tell
    /// [`Node::committed`]. Gives nothing where none wait.
    pub fn take_rows(&self) -> Option<(u64, Vec<Row>)> {
        let mut rows = lock(&self.rows);
        if rows.is_empty() {
            return None;
        }
        let batch = self.open_batch.fetch_add(1, Ordering::AcqRel);
        self.rows_in_hand.store(rows.len(), Ordering::Relaxed);
        Some((batch, std::mem::take(&mut *rows)))
    }

    /// Adds a row to the open batch, and says which that is.
    fn push_row(&self, row: Row) -> u64 {
        let mut rows = lock(&self.rows);
        rows.push(row);
        self.open_batch.load(Ordering::Acquire)
    }

    /// Takes rows from the disk that say what is true only once, as [`Node::restore`] gave them.
    fn take_from_disk(&self, taken: Vec<Row>) {
        if !mutated(Mutation::StoppedTwice) {
            lock(&self.rows).extend(taken);
        }
    }

    /// Every batch up to this one is on disk, and stays there.
    pub fn committed(&self, batch: u64) {
        self.committed_batch.fetch_max(batch, Ordering::AcqRel);
        self.rows_in_hand.store(0, Ordering::Relaxed);
        self.journal_down.store(false, Ordering::Release);
    }

    /// The journal cannot be written for now: what is not yet held on disk cannot be spent.
    pub fn journal_failed(&self) {
        self.journal_down.store(true, Ordering::Release);
    }

    /// Whether the journal was last seen failing.
    pub fn is_journal_down(&self) -> bool {
        self.journal_down.load(Ordering::Acquire)
    }

    /// Forgets the idle cells of one shard (`shard` modulo [`SHARDS`]), in memory and in the
    /// journal. Called round robin: each shard every few seconds.
    pub fn sweep(&self, shard: usize, now: Now) {
        // Before the time is gone by: it may be corrected when somebody agrees.
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

    /// What soft limits have to tell since the last time this was asked, and how many warnings there was no room for, ever.
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

    /// How far walls may be off, as the catalogue of the regions says: 0 where a node stands alone.
    fn clock_error_ns(&self) -> u64 {
        lock(&self.registry).clock_error_ns().unwrap_or(0)
    }

    /// What the cells take.
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

    /// Queues for the journal what new numbers make it need: before the version that has them, so that a crash finds
    /// both.
    ///
    /// Cells that are kept there from now on are written, though they are not charged again. Of a bucket that is not kept
    /// there a crash presumes that every cell owes all that it may owe; so cells that owe more, because they once were
    /// allowed more, are written, and only they. No other cell can come to owe more: a charge leaves no more owed than
    /// there is, and loans move as much debt as room.
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

    /// Queues a cell of a shard for the journal, unless a crash presumes as much: see [`Node::write_cells`].
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
            // What was reserved beyond is not on the disk any more.
            state.forget_held();
            state.ask_as_is(batch);
        });
    }

    /// What clocks read as this node goes by them: with the correction that other regions told of, and never behind what was left.
    pub fn corrected(&self, now: Now) -> Now {
        self.not_before(now)
    }

    /// The time as this node goes by it: the wall corrected, and never behind what was left, unless it was set back.
    ///
    /// A clock may be set between two looks at it. Until the next one the wall goes on as the steady clock does, or
    /// requests would be counted in windows that nobody heard of.
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
        // A disk that is behind shall not take all places from new cells.
        let beside = self.beside_bytes.load(Ordering::Relaxed).min(memory / 2);
        (memory - beside) / SHARDS
    }

    /// Puts journalled cells back in memory. They are real debts, so the memory cap does not stop
    /// them: a node that is given less memory than it had starts full.
    ///
    /// Gives the rows that must go. Of limits that are not journalled a clean stop leaves every cell, and that is true
    /// once: this process spends, and writes nothing. Were such a row still there after a crash, it would be passed over,
    /// but the next clean stop would make it look like its own, if that has nothing of the cell. What stays is what is
    /// given away, and what a bucket owes beyond all that a crash presumes: while it owes so much, nothing is spent of it,
    /// so its row stays true. The limits must be known to be in force first: of one that is not, a crash presumes nothing.
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
            // Charged since a row was written, perhaps: the limit starts empty-handed instead, also where it comes back
            // only now.
            let lost = match self.config.empty_handed {
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
            // Only of a bucket more may be owed than is presumed.
            let is_presumed = lost.is_some() && (!like.has_rate() || mutated(Mutation::OverdrawnUnwritten));
            let limit = Restored { slot, like: &like, durable, lost, all: &all, error_ns, now };
            let mut shared: Vec<(CellTag, CellRecord)> = Vec::new();
            // Whether the disk goes on having those.
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

    /// Puts one cell back, unless it is there or no more is owed than is presumed of one that is not. Says whether it owes
    /// more than the next crash would presume; then that is in line for the disk as it is now.
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
        // Under numbers of today where they are the same. Else nobody knows when they changed, nor whose they are: among
        // regions the least count until the cell is next hit, so that no more of it is lent than there is.
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
            // Which override's numbers it had is known when it is next hit: the least, until then.
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

    /// What a row says, if it was written by a wall that has been set back since. Whether it was, or the wall is wrong now, a node that others
    /// can contradict learns later.
    fn after_set_back(&self, algorithm: &Algorithm, state: State, salt: Option<u32>, now: Now) -> State {
        if !self.is_wall_believed() {
            return state;
        }
        let Some(counted) = algorithm.after_set_back(state.words(), now, salt) else { return state };
        if let Algorithm::FixedWindow(edges) = algorithm {
            // Were the wall wrong now, it would come to that window.
            let end_ns = window::Usage::of(state.words()).end_ns;
            self.left.visited(edges.begins(end_ns, salt.unwrap_or(0)), end_ns);
        }
        counted
    }

    /// No window is open again that an earlier process has forgotten, by what the journal says of that.
    fn go_on_from_kept(&self, now: Now) {
        let kept_ns = self.kept_wall_ns.load(Ordering::Acquire);
        if kept_ns > now.wall_ns.saturating_add(SET_BACK_NS) {
            // By a wall that was ahead, and is right now: which windows it was in nobody knows. Of those that are open all
            // counts as spent, and later ones have not been.
            self.left.restart(now, kept_ns);
        } else {
            self.forgotten_wall_ns.fetch_max(kept_ns, Ordering::AcqRel);
        }
    }

    /// What an earlier process knew to be forgotten is not known now either.
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

/// Whether a cell says no more than an absent one. Cells written under numbers that this snapshot
/// does not know yet are kept.
fn is_idle(catalogue: &Catalogue, cell: &Cell, tag: CellTag, heap: &HeapCells<'_>, now: Now) -> bool {
    catalogue.is_idle(cell.slot(), cell.numbers(), tag.salt(), heap.words(cell), now)
}

/// Brings a bucket that lends and holds nothing to the numbers that its limit has now, when they begin: its row shall
/// say what they make of it. Where nothing is owed, nothing is to be carried over.
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

/// What a crash presumes that a cell of a bucket owes: nothing, where its limit is kept in the journal.
fn presumed(catalogue: &Catalogue, overdrawn: &[u32], slot: u32, salt: u32) -> u64 {
    if overdrawn.binary_search(&slot).is_ok() { catalogue.least_units(slot, salt) } else { 0 }
}

/// What a bucket's row says of a cell that was charged since, perhaps, and not journalled: the row's state if it owes more
/// than is presumed of every such cell, and else what is presumed.
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

/// The shard of a tag: its top bits, which the table does not keep.
fn shard_of(tag: CellTag) -> usize {
    (tag.0 >> (128 - SHARDS.trailing_zeros())) as usize
}

/// A cell's tag again, as far as it is known: the shard's bits and the low 96.
fn whole_tag(shard: usize, cell: &Cell) -> CellTag {
    CellTag((shard as u128) << (128 - SHARDS.trailing_zeros()) | cell.tag_low())
}

/// A tag as the journal knows it: as [`whole_tag`] gives it back.
fn journal_tag(tag: CellTag) -> CellTag {
    const LOW: u128 = (1 << 96) - 1;
    CellTag((shard_of(tag) as u128) << (128 - SHARDS.trailing_zeros()) | tag.0 & LOW)
}

/// Takes a lock whether or not a thread panicked under it: every change under these locks is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
