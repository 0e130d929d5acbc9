//! Records of named charges: a repeated request is charged once, and a charge can be given back.
//!
//! **A record is settled at most once, and a name is charged at most once while it is remembered.** A record
//! holds the answer as it was given and the cells that were charged. Records are in memory, with a bound, and
//! in the journal. If the caller chose the name, the record is on disk before the reply leaves. A record is
//! always on disk before the units that a settlement gives back can be spent (`settle`).
//!
//! Dropping a record, because it is old or there are too many, changes nothing: its units stay charged. The
//! charges of a node whose disk is lost stay charged, too.

mod give_back;
mod holds;
mod record;
mod recording;
mod renew;
mod settle;
mod shared;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use acequia_limits::{CellTag, LimitId, Now};
use acequia_rights::mutation::{Mutation, mutated};

pub use self::{
    holds::CellHolds,
    recording::{ChargeId, Recording, Remember, Reserve},
    renew::Renewed,
    settle::{Refunded, Settled},
    shared::{KeptAt, SharedAnswer},
};
pub(crate) use self::{
    holds::{HeldCells, KnownCosts},
    record::Record,
    shared::SharedRecord,
};
use crate::{CellRecord, Node, Row, journal::CHARGES, lock, settings::SETTINGS};

/// Locks over the records: requests with names rarely wait for each other.
const SHARDS: usize = 16;
/// The default time that a record is kept, in nanoseconds: longer than any caller retries.
pub const KEEP_NS: u64 = 600 * 1_000_000_000;
/// The default number of records: a few hundred bytes each.
pub const RECORDS: usize = 65_536;
/// The longest time that units are reserved, in nanoseconds.
pub const RESERVE_NS_MAX: u64 = 3_600 * 1_000_000_000;

/// How long records are kept, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Nanoseconds from the charge; for a reservation, from its end. With a longer time a caller may retry
    /// later, and more memory is used.
    pub keep_ns: u64,
    /// The most records, at least 16; as many unsettled reservations may exist beside them. Beyond the bound,
    /// the owner with the most records loses its oldest, which then can be neither repeated nor refunded.
    pub records: usize,
}

impl Default for Keep {
    fn default() -> Self {
        Self { keep_ns: KEEP_NS, records: RECORDS }
    }
}

/// The records of a node.
#[derive(Debug)]
pub(crate) struct Charges {
    keep: Keep,
    /// The bytes that records under one lock may take; open reservations may take as much again.
    bytes_max: usize,
    shards: Box<[Mutex<Records>]>,
    /// The shard whose old records are dropped next.
    turn: AtomicUsize,
    /// Settlements that wait until no other node answers by the charge.
    later: Mutex<VecDeque<(ChargeId, Option<u64>)>>,
    /// What requests cost lately, by cell, for limits that estimate.
    pub(crate) costs: Mutex<KnownCosts>,
}

/// The records under one lock.
#[derive(Debug, Default)]
pub(crate) struct Records {
    all: BTreeMap<u128, Record>,
    /// The bytes that the records take.
    bytes: usize,
    owners: BTreeMap<u32, Owned>,
    /// Reservations by the time they lapse: steady clock.
    lapses: BTreeSet<(u64, u128)>,
    /// Holds that a report may settle which names no charge, by the time they lapse.
    holds: BTreeSet<(HeldCells, u64, u128)>,
}

/// The records of one owner.
#[derive(Debug, Default)]
struct Owned {
    /// Records that may be dropped, by the time since which they rest, oldest first. Some entries are stale:
    /// the record is gone, or has changed since.
    by_age: VecDeque<(u64, u128)>,
    /// The number of records that may be dropped.
    kept: usize,
    /// The number of unsettled reservations. Reservations wait for their real cost and are not dropped:
    /// otherwise their units would never come back.
    reserved: usize,
}

/// A node's records of charges, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChargesView {
    /// The number of records.
    pub records: u64,
    /// How many of them are unsettled reservations.
    pub reserved: u64,
    /// Bytes that the records take.
    pub bytes: u64,
}

impl Charges {
    /// `memory_bytes`: the memory that records share with the cells.
    pub(crate) fn new(keep: Keep, memory_bytes: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let bytes_max = memory_bytes / SETTINGS.charges.memory_part / SHARDS;
        Self {
            keep,
            bytes_max,
            shards,
            turn: AtomicUsize::new(0),
            later: Mutex::default(),
            costs: Mutex::default(),
        }
    }

    /// The records that contain this name, locked. This lock comes before the lock of any shard of cells.
    pub(crate) fn lock(&self, id: ChargeId) -> MutexGuard<'_, Records> {
        // These are the low bits of a hash.
        lock(&self.shards[id.0 as usize % SHARDS])
    }

    /// How long records are kept, and how many.
    pub(crate) fn keep(&self) -> Keep {
        self.keep
    }

    /// The most records under this lock: fewer than [`Keep::records`] if they are large.
    pub(crate) fn records_max(&self, records: &Records) -> usize {
        let fit = self.bytes_max * records.all.len() / records.bytes.max(1);
        let max = self.keep.records / SHARDS;
        // The average size of a few records says little.
        if records.bytes > self.bytes_max { max.min(fit).max(1) } else { max.max(1) }
    }

    pub(crate) fn view(&self) -> ChargesView {
        let mut view = ChargesView::default();
        for records in &self.shards {
            let records = lock(records);
            view.records += records.all.len() as u64;
            view.reserved += records.lapses.len() as u64;
            view.bytes += records.bytes as u64;
        }
        view
    }
}

impl Records {
    /// A record that is still remembered.
    pub(crate) fn get(&self, id: ChargeId, keep: Keep, now: Now) -> Option<&Record> {
        self.all.get(&id.0).filter(|record| !record.is_over(keep, now))
    }

    /// Adds or replaces a record, and returns the row to write.
    pub(crate) fn put(&mut self, id: ChargeId, record: Record) -> Row {
        let row = row_of(id, &record);
        if let Some(old) = self.all.remove(&id.0) {
            self.leaves(id.0, &old);
        }
        self.enters(id.0, record);
        row
    }

    /// Adds a record and counts it for its owner.
    fn enters(&mut self, id: u128, record: Record) {
        self.bytes += record.bytes();
        let owned = self.owners.entry(record.memory.owner).or_default();
        match record.lapses_ns() {
            Some(until_ns) => {
                self.lapses.insert((until_ns, id));
                self.holds.extend(record.unnamed_hold().map(|cells| (cells, until_ns, id)));
                owned.reserved += 1;
            }
            None => {
                owned.by_age.push_back((record.rests_since_ns(), id));
                owned.kept += 1;
            }
        }
        self.all.insert(id, record);
    }

    /// Notes that a record is gone, or changes.
    fn leaves(&mut self, id: u128, record: &Record) {
        self.bytes -= record.bytes();
        if let (Some(cells), Some(until_ns)) = (record.unnamed_hold(), record.lapses_ns()) {
            self.holds.remove(&(cells, until_ns, id));
        }
        let Some(owned) = self.owners.get_mut(&record.memory.owner) else { return };
        match record.lapses_ns() {
            Some(until_ns) => {
                self.lapses.remove(&(until_ns, id));
                owned.reserved -= 1;
            }
            None => owned.kept -= 1,
        }
    }

    /// Whether the name belongs to a reservation that nobody settled, even if its time is over.
    pub(crate) fn is_left_open(&self, id: ChargeId) -> bool {
        self.all.get(&id.0).is_some_and(|record| record.lapses_ns().is_some())
    }

    /// Whether no more reservations of an owner can be remembered.
    pub(crate) fn is_full_of_reservations(&self, owner: u32, records_max: usize) -> bool {
        let own = self.owners.get(&owner).map_or(0, |owned| owned.reserved);
        own >= SETTINGS.charges.reserved_parts * records_max.saturating_sub(self.lapses.len())
    }

    /// Notes the batch in which a record goes to the disk.
    pub(crate) fn sent_in(&mut self, id: ChargeId, batch: u64) {
        if let Some(record) = self.all.get_mut(&id.0) {
            record.memory.batch = batch;
        }
    }

    /// Changes a record, and returns the row to write.
    fn change(&mut self, id: ChargeId, change: impl FnOnce(&mut Record)) -> Option<Row> {
        let mut record = self.all.remove(&id.0)?;
        let before = (record.lapses_ns(), record.rests_since_ns());
        let was = record.clone();
        change(&mut record);
        let row = row_of(id, &record);
        if (record.lapses_ns(), record.rests_since_ns()) == before {
            self.all.insert(id.0, record);
        } else {
            self.leaves(id.0, &was);
            self.enters(id.0, record);
        }
        Some(row)
    }

    /// Makes room once there are an eighth too many records, so that not every new one has to search for the
    /// largest owner.
    pub(crate) fn make_room(&mut self, records_max: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        if self.all.len() - self.lapses.len() > records_max + records_max / 8 {
            self.crowd_out(records_max, &mut rows);
        }
        rows
    }

    /// Drops records that are over or too many; returns the rows to delete.
    fn drop_old(&mut self, keep: Keep, records_max: usize, now: Now, rows: &mut Vec<Row>) {
        let mut owners = std::mem::take(&mut self.owners);
        for owned in owners.values_mut() {
            while let Some((since_ns, id)) = owned.by_age.front().copied() {
                match self.all.get(&id).filter(|record| record.rests_since(since_ns)) {
                    Some(record) if !record.is_over(keep, now) => break,
                    Some(_) => self.drop_oldest(owned, rows),
                    None => {
                        owned.by_age.pop_front();
                    }
                }
            }
        }
        owners.retain(|_, owned| owned.kept + owned.reserved > 0);
        self.owners = owners;
        if self.all.len() - self.lapses.len() > records_max {
            self.crowd_out(records_max, rows);
        }
    }

    /// Drops the oldest records of the owners with the most, down to `records_max` in all.
    fn crowd_out(&mut self, records_max: usize, rows: &mut Vec<Row>) {
        let mut owners = std::mem::take(&mut self.owners);
        let most = most_of_one(owners.values().map(|owned| owned.kept), records_max);
        for owned in owners.values_mut() {
            while owned.kept > most {
                self.drop_oldest(owned, rows);
            }
        }
        // If there are more owners than places, the records that have rested longest go.
        let too_many = (self.all.len() - self.lapses.len()).saturating_sub(records_max);
        if too_many > 0 {
            let have_some = owners.iter().filter(|(_, owned)| owned.kept > 0);
            let mut fronts: Vec<_> =
                have_some.filter_map(|(owner, owned)| Some((*owned.by_age.front()?, *owner))).collect();
            fronts.sort_unstable();
            for (_, owner) in fronts.into_iter().take(too_many) {
                if let Some(owned) = owners.get_mut(&owner) {
                    self.drop_oldest(owned, rows);
                }
            }
        }
        owners.retain(|_, owned| owned.kept + owned.reserved > 0);
        self.owners = owners;
    }

    /// Drops one owner's oldest record, if there is one.
    fn drop_oldest(&mut self, owned: &mut Owned, rows: &mut Vec<Row>) {
        while let Some((since_ns, id)) = owned.by_age.pop_front() {
            if self.all.get(&id).is_some_and(|record| record.rests_since(since_ns)) {
                let record = self.all.remove(&id);
                self.bytes -= record.map_or(0, |record| record.bytes());
                owned.kept -= 1;
                rows.push(Row { limit: CHARGES, tag: CellTag(id), state: None });
                return;
            }
        }
        debug_assert_eq!(owned.kept, 0, "whoever has records has them in his list");
        owned.kept = 0;
    }
}

/// How many records each owner may have, so that all together have at most `all_max`, but each at least one.
/// Owners with fewer are left alone (max-min fairness, Bertsekas and Gallager, Data Networks, section 6.5.2).
fn most_of_one(owned: impl Iterator<Item = usize>, all_max: usize) -> usize {
    let mut owned: Vec<usize> = owned.filter(|count| *count > 0).collect();
    owned.sort_unstable();
    let (mut left, mut owners) = (all_max, owned.len());
    for count in owned {
        let fair = left / owners;
        if count > fair {
            return fair.max(1);
        }
        left -= count;
        owners -= 1;
    }
    usize::MAX
}

impl Node {
    /// Reads the records from the journal: once, before anything is asked. Charges to cells that a crash
    /// forgot are forgotten in the records too: they count as spent, and are not given back.
    pub(crate) fn restore_charges(&self, now: Now, rows: impl IntoIterator<Item = Row>) {
        let (error_ns, catalogue) = (self.clock_error_ns(), self.catalogue());
        let mut found: Vec<(ChargeId, Record)> = Vec::new();
        for Row { tag, state, .. } in rows {
            if let Some(record) = state.and_then(|kept| Record::read(kept.record())) {
                found.push((ChargeId(tag.0), record.restored(error_ns, now)));
            }
        }
        // The disk has them in the order of their names.
        found.sort_by_key(|(id, record)| (record.made_ns(), id.0));
        for (id, mut record) in found {
            let is_durable = |limit| self.slot_of(limit).is_some_and(|slot| catalogue.is_durable(slot));
            let is_changed = self.forgets_charges() && record.forget(is_durable);
            self.lease_again(&record, now);
            // An unchanged row is on disk already.
            let row = self.charges.lock(id).put(id, record);
            if is_changed {
                self.push_charge(row);
            }
        }
    }

    /// Charges that a crash forgot are not given back.
    fn forgets_charges(&self) -> bool {
        self.setup.config.after_crash.is_some() && !mutated(Mutation::RefundForgotten)
    }

    /// Ends reservations that nobody settled in time, and forgets old records.
    pub(crate) fn tidy_charges(&self, now: Now) {
        let mut bytes = 0;
        for shard in &self.charges.shards {
            let mut records = lock(shard);
            bytes += records.bytes;
            while let Some((until_ns, id)) = records.lapses.first().copied() {
                if until_ns > now.steady_ns {
                    break;
                }
                self.lapse(&mut records, ChargeId(id), now);
                records.lapses.remove(&(until_ns, id));
            }
        }
        self.journal.count_beside(bytes);
        // One shard at a time: all owners of the shard are visited.
        let turn = self.charges.turn.fetch_add(1, Ordering::Relaxed);
        let mut records = lock(&self.charges.shards[turn % SHARDS]);
        let mut gone = Vec::new();
        let records_max = self.charges.records_max(&records);
        records.drop_old(self.charges.keep, records_max, now, &mut gone);
        for row in gone {
            self.push_charge(row);
        }
    }

    /// Whether there is a journal, and it can be written.
    pub(crate) fn has_disk(&self) -> bool {
        self.setup.config.durable && !self.is_journal_down()
    }

    /// Queues a record for the journal, if there is one; returns the batch, or 0.
    pub(crate) fn push_charge(&self, row: Row) -> u64 {
        if self.setup.config.durable { self.push_row(row) } else { 0 }
    }

    /// The node's records of charges, for metrics.
    pub fn charges(&self) -> ChargesView {
        self.charges.view()
    }

    /// Ends refunds of charges under limits whose rate is lower from now on: how much has come back since the
    /// charge, by the rates in between, is not known.
    pub(crate) fn strip_charges(&self, limits: &BTreeSet<LimitId>) {
        if limits.is_empty() {
            return;
        }
        for shard in &self.charges.shards {
            let mut records = lock(shard);
            let of = records.all.iter().filter(|(_, record)| record.has_charged_any(limits));
            let ids: Vec<u128> = of.map(|(id, _)| *id).collect();
            for id in ids {
                let row = records.change(ChargeId(id), |record| record.strip(limits));
                row.map(|row| self.push_charge(row));
            }
        }
    }
}

fn row_of(id: ChargeId, record: &Record) -> Row {
    Row { limit: CHARGES, tag: CellTag(id.0), state: Some(CellRecord::of_record(record.to_bytes())) }
}
