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
//! cell is *active*: half of the part is used, something was denied, or another region asked for it. An
//! active cell gets an `account`: its effective part, with loans and transfers, by the rules of
//! `acequia-rights`. A request settles what ended in the meantime, and the account decides. A request never
//! waits for another region: it notes the demand and calls for a rebalance. [`Node::tick`] then visits the
//! cells that called (`locked_cell`: one cell under its lock), decides who should have what (`regions`), and
//! queues frames. [`Node::handle`] takes incoming frames. [`Node::poll`] returns the frames that may leave,
//! each once the facts it reports are on disk. A region without a share denies, and says why.

mod catalogue;
mod cell;
mod charges;
mod clock;
mod decide;
mod forwards;
pub mod journal;
mod left;
pub mod pool;
mod region;
pub mod regions;
mod settings;
mod views;
mod wait;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use acequia_limits::{CellTag, HashKey, Limit, LimitId, Now};
use acequia_rights::Versions;

use crate::settings::SETTINGS;
pub use crate::{
    catalogue::{Active, Catalogue, CatalogueFault, Change, ChangeKind, LIMITS_MAX, Scheduled, VARIANTS_MAX},
    cell::record::CellRecord,
    charges::{
        CellHolds, ChargeId, ChargesView, KEEP_NS, Keep, KeptAt, RECORDS, RESERVE_NS_MAX, Recording,
        Refunded, Remember, Renewed, Reserve, Settled, SharedAnswer,
    },
    decide::{
        Answer, Ask, Asker, CellCount, Charged, CountedCell, CountedRequest, DESCRIPTORS_MAX, Forwarding,
        IdReused, LateCost, LimitAnswer, Outcome, Overdraft, Warning,
    },
    forwards::{FORWARD_NS, FORWARD_WAIT_NS, ForwardCounts, ForwardedRequest, Waiter},
    journal::{CHARGES, Row, WALL, WITHDRAWALS},
    region::ResumeFault,
    regions::{Home, Membership},
    views::difference,
    views::{
        explain::Unmatched,
        inspect::{CellView, Holding, LimitView, LoanView, NamedCell, Overview, PeerView, ReportView},
    },
};
use crate::{
    catalogue::{Allocations, InForce, Registry, Unwritten, local::GuardShare},
    cell::{
        account::Account,
        overflow::SharedCells,
        record::{Pledge, is_forgotten_debt_kept, is_overdraft_kept},
        shard::{Cells, HeapCells, Shard},
        table::Cell,
    },
    charges::Charges,
    clock::ClockBounds,
    forwards::Forwards,
    journal::{FORGOTTEN, Journal, JournalProgress},
    pool::{Leases, RegionStore},
    region::{RebalanceCalls, RegionFacts},
    regions::{NodeMemory, Sharing},
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
    setup: Setup,
    shards: Box<[Shard]>,
    limits: InForce,
    /// The cells that new cells share when memory is full. Locked after any shard.
    overflow: SharedCells,
    journal: Journal,
    clock: ClockBounds,
    /// The node's dealings with other regions. Locked before everything else.
    sharing: Option<Mutex<Sharing>>,
    standing: RegionFacts,
    /// What calls for a rebalance between regions.
    calls: RebalanceCalls,
    /// The units that other regions, or the region's pools, may have.
    remote_supply: RemoteSupply,
    /// Charges forwarded to other nodes of the region, and by them.
    forwards: Forwards,
    /// The node's dealings with the region's pools. Locked before everything else.
    leases: Option<Mutex<Leases>>,
    store: RegionStore,
    /// The records of named charges. Locked before any shard.
    charges: Charges,
    /// Warnings of soft limits. Locked after any shard.
    warnings: Mutex<Warnings>,
}

/// What a node was told when it was built.
#[derive(Debug)]
struct Setup {
    config: Config,
    /// Limits whose journalled cells can be trusted after a crash: [`pool::RegionSetup::rows_hold`].
    rows_hold: BTreeSet<LimitId>,
    /// How the nodes of this region share its part, if the region has several.
    guard: Option<GuardShare>,
}

/// Warnings of soft limits, and how many were dropped for lack of room.
#[derive(Debug, Default)]
struct Warnings {
    waiting: VecDeque<Warning>,
    dropped: u64,
}

/// What a node holds, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
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
        let memory = NodeMemory { process_number: 1, ..NodeMemory::default() };
        let sharing = config.home.map(|home| Sharing::new(home, Versions::new(home.incarnation), memory, 0));
        let registry = Registry::new(&config.key, config.durable, allocations, config.after_crash);
        Self {
            setup: Setup { config, rows_hold: BTreeSet::new(), guard: None },
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            limits: InForce::new(registry),
            overflow: SharedCells::default(),
            journal: Journal::default(),
            clock: ClockBounds::new(config.home.is_none()),
            sharing: sharing.map(Mutex::new),
            standing: RegionFacts::new(memory, config.home.is_some()),
            calls: RebalanceCalls::default(),
            remote_supply: RemoteSupply::default(),
            forwards: Forwards::default(),
            leases: None,
            store: RegionStore::default(),
            charges: Charges::new(keep, config.memory_bytes),
            warnings: Mutex::default(),
        }
    }

    /// Takes over the limits that were in force before a restart. Then [`Node::apply`] applies the file,
    /// which may have changed since.
    ///
    /// # Errors
    /// There are more limits than a node can have.
    pub fn resume(&self, schedule: Vec<Scheduled>, now: Now) -> Result<(), CatalogueFault> {
        let mut registry = lock(&self.limits.registry);
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
        self.journal.delete_taken(taken);
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
        let mut registry = lock(&self.limits.registry);
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

    /// The limits and when each is in force: [`Node::resume`] needs them after a restart.
    pub fn schedule(&self) -> Vec<Scheduled> {
        lock(&self.limits.registry).schedule()
    }

    /// The limits in force.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.limits.catalogue()
    }

    /// An asker for one thread.
    pub fn asker(self: &Arc<Self>) -> Asker {
        Asker::new(Arc::clone(self))
    }

    /// Takes the rows that wait for the disk, as one batch; `None` if none wait. The caller writes them in
    /// this order, then calls [`Node::committed`].
    pub fn take_rows(&self) -> Option<(u64, Vec<Row>)> {
        self.journal.take_rows()
    }

    /// Adds a row to the open batch; returns the batch.
    fn push_row(&self, row: Row) -> u64 {
        self.journal.push(row)
    }

    /// Notes that every batch up to this one is on disk, and stays there.
    pub fn committed(&self, batch: u64) {
        self.journal.committed(batch);
    }

    /// Notes that the journal cannot be written for now: only what is held on disk may be spent.
    pub fn journal_failed(&self) {
        self.journal.failed();
    }

    /// Whether the last write to the journal failed.
    pub fn is_journal_down(&self) -> bool {
        self.journal.is_down()
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
        self.clock.left.pass(now);
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
            rows.push(journal::wall_row(now.wall_ns.max(self.clock.left.latest_ns())));
        }
        self.journal.append(rows);
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
        if warnings.waiting.len() < SETTINGS.decide.warnings_max {
            warnings.waiting.push_back(warning);
        } else {
            warnings.dropped += 1;
        }
    }

    /// How far wall clocks may be off, by the regions' catalogue; 0 if the node stands alone.
    fn clock_error_ns(&self) -> u64 {
        lock(&self.limits.registry).clock_error_ns().unwrap_or(0)
    }

    /// The memory and number of cells, for metrics.
    pub fn usage(&self) -> MemoryUsage {
        let mut usage = MemoryUsage {
            overflowing: self.overflow.lock().len() as u64,
            bytes_beside: self.journal.beside_bytes() as u64,
            ..MemoryUsage::default()
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
        forgotten.retain(|_| is_forgotten_debt_kept());
        if kept.is_empty() && overdrawn.is_empty() && forgotten.is_empty() {
            return;
        }
        let catalogue = &*self.catalogue();
        for slot in &forgotten {
            if let (Some(limit), Some((most, state))) =
                (catalogue.id(*slot), catalogue.most_forgotten(*slot, now))
            {
                self.push_row(Row { limit, tag: FORGOTTEN, state: Some(CellRecord::new(most, &state, now)) });
            }
        }
        let mut slots = kept;
        slots.extend(overdrawn.iter().filter(|_| is_overdraft_kept()));
        slots.sort_unstable();
        slots.dedup();
        let write = CellWrite { catalogue, overdrawn: &overdrawn, now };
        for (at, shard) in self.shards.iter().enumerate() {
            let mut cells = shard.lock();
            for place in cells.table.places_of(&slots) {
                self.write_cell(write, &mut cells, at, place);
            }
        }
        self.write_shared(write, &slots);
    }

    /// Queues a cell of a shard for the journal, unless a crash presumes at least as much debt: see
    /// [`Node::write_cells`].
    fn write_cell(&self, write: CellWrite<'_>, cells: &mut Cells, shard: usize, place: usize) {
        let CellWrite { catalogue, now, .. } = write;
        let tag = whole_tag(shard, cells.table.at(place));
        change_variant_of_bucket(catalogue, cells, place, tag.salt(), now);
        let cell = *cells.table.at(place);
        let Some(local) = catalogue.local(cell.slot(), cell.variant()) else { return };
        let Some(limit) = catalogue.id(cell.slot()) else { return };
        let algorithm = local.at(tag.salt());
        if algorithm.has_rate() {
            let account = cells.account_of(&cell).map(|account| &account.algorithm);
            let owed = account.unwrap_or(algorithm).owed(cells.state(&cell), now);
            if owed <= write.presumed(cell.slot(), tag.salt()) {
                return;
            }
        }
        if cell.heap_place().is_none() {
            cells.move_to_heap(place);
        }
        let Some(heap) = cells.table.at(place).heap_place() else { return };
        cells.with_heap_cell(heap, |heap_cell| {
            let account = heap_cell.account.as_deref();
            let pledge = account.map_or_else(Pledge::default, Account::pledge);
            let algorithm = account.map_or(algorithm, |account| &account.algorithm);
            let kept = Some(CellRecord::new(algorithm, &heap_cell.state, now).with_pledge(pledge));
            let batch = self.push_row(Row { limit, tag, state: kept });
            // The disk does not have the reserve ahead of use any more.
            heap_cell.forget_held();
            heap_cell.ask_as_is(batch);
        });
    }

    fn progress(&self) -> JournalProgress {
        self.journal.progress()
    }

    fn shard_bytes_max(&self) -> usize {
        let memory = self.setup.config.memory_bytes.max(MEMORY_BYTES_MIN);
        // A slow disk must not take all memory from new cells.
        let beside = self.journal.beside_bytes().min(memory / 2);
        (memory - beside) / SHARDS
    }
}

/// Whether a cell's state means the same as an absent cell. Cells under variants that this snapshot does not
/// know yet are kept.
fn is_idle(catalogue: &Catalogue, cell: &Cell, tag: CellTag, heap: &HeapCells<'_>, now: Now) -> bool {
    catalogue.is_idle(cell.slot(), cell.variant(), tag.salt(), heap.state(cell), now)
}

/// What is needed to write cells because variants changed.
#[derive(Clone, Copy, Debug)]
struct CellWrite<'a> {
    catalogue: &'a Catalogue,
    /// The slots of unjournalled buckets, sorted.
    overdrawn: &'a [u32],
    now: Now,
}

impl CellWrite<'_> {
    /// The debt that a crash presumes of a bucket's cell: nothing, if the limit is kept in the journal.
    fn presumed(&self, slot: u32, salt: u32) -> u64 {
        if self.overdrawn.binary_search(&slot).is_ok() { self.catalogue.least_units(slot, salt) } else { 0 }
    }
}

/// Brings a bucket without loans to its limit's new variant when the variant begins, so that its row is
/// written under that variant. A cell that owes nothing stays as it is.
fn change_variant_of_bucket(catalogue: &Catalogue, cells: &mut Cells, place: usize, salt: u32, now: Now) {
    let (slot, variant) = (cells.table.at(place).slot(), cells.table.at(place).variant());
    let heir = catalogue.heir(slot, cells.table.at(place), salt, now);
    let Some((heir, is_guess)) = heir.filter(|(heir, _)| *heir != variant) else { return };
    let (Some(old), Some(new)) = (catalogue.local(slot, variant), catalogue.local(slot, heir)) else {
        return;
    };
    let (old, new) = (old.at(salt), new.at(salt));
    let state = cells.state(cells.table.at(place));
    if !old.has_rate() || cells.account(place).is_some() || old.is_idle(state, now) {
        return;
    }
    let resized = new.resize(old, state, now);
    cells.rewrite(place, heir, resized);
    if is_guess {
        cells.table.at_mut(place).guess();
    }
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
