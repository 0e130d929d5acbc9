//! Renews slots: a request that goes on for longer than its slots live says so.
//!
//! **A renewal is a release and an acquisition at one instant.** Under the lock of its cell, the charge moves
//! from the time to which it is dated to now. So every bound of refunds and of new charges holds for renewals:
//!
//! - *The holder's slot is always counted.* It is told to end before the charge leaves the window.
//! - *A loan that ended* is settled before the cell decides. Its lender uses the units again one window later
//!   (`Algorithm::lingers_ns`). Charges that rested on the loan are dated before its end: they have left by then.
//!   A charge that is renewed after the end must fit into what the cell has without the loan.
//! - *A hold on the region's pool that shrank or ended*, and a limit that was lowered, are as loans that ended.
//! - *Leases of clients*, whose units are set apart, never have slots (`Asker::cannot_take_slots`).
//! - *A crash*: the journal gets the cell, then the record, and only then the holder is told. In between, the disk has
//!   the charge for as long as the holder knows, or for longer.
//! - *A charge that is not where it should be*, because memory was full or a crash forgot it, cannot be moved. Its
//!   holder is denied, and ends in time.
//!
//! If one of a request's slots cannot be renewed, none is.

use acequia_limits::{CellTag, Now};
use acequia_rights::mutation::{Mutation, mutated};
use smallvec::SmallVec;

use super::{
    ChargeId,
    record::{LimitRecord, SlotTerm},
};
use crate::{
    Catalogue, Node,
    cell::{CellKey, locked_cell::LockedCell, shard::Cells},
    journal_tag, shard_of,
};

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The slots are taken anew.
    Done {
        /// Nanoseconds until they lapse.
        lapses_in_ns: u64,
        /// The batch that must be on disk before anybody is told; 0 for none.
        after_batch: u64,
    },
    /// The slots cannot be renewed now, because this node has fewer than are taken, or its journal cannot be
    /// written. They lapse as was said before. The holder may ask again until then.
    Denied {
        /// Nanoseconds until they lapse.
        lapses_in_ns: u64,
    },
    /// The slots are taken no longer: they were released, or have lapsed.
    Lapsed,
    /// There is no such record, or it has no slots.
    Unknown,
}

/// A slot to renew.
#[derive(Clone, Copy, Debug)]
struct TakenSlot {
    /// The limit's slot in the catalogue.
    limit: u32,
    tag: CellTag,
    units: u64,
}

impl TakenSlot {
    /// The slot of a charge in a limit with this slot in the catalogue.
    const fn of(limit: u32, charged: &LimitRecord) -> Self {
        Self { limit, tag: charged.tag, units: charged.units }
    }
}

/// A cell in which the charge has moved.
#[derive(Debug)]
struct Moved {
    place: usize,
    state: Vec<u64>,
}

/// Locked shards, by number.
type Shards<'a> = SmallVec<[LockedShard<'a>; 2]>;

struct LockedShard<'a> {
    number: usize,
    cells: std::sync::MutexGuard<'a, Cells>,
}

impl Node {
    /// Renews the slots that were taken under a name: they lapse as long after now as they would have lapsed
    /// after they were taken.
    pub fn renew(&self, id: ChargeId, now: Now) -> Renewed {
        // The check comes before the time is used, as for requests.
        let may_decide = self.may_decide();
        let now = self.not_before(now);
        let mut records = self.charges.lock(id);
        let Some(record) = records.get(id, self.charges.keep, now) else { return Renewed::Unknown };
        let Some(term) = record.slot_term() else {
            return if record.had_slots() { Renewed::Lapsed } else { Renewed::Unknown };
        };
        if term.until_ns <= now.steady_ns {
            self.lapse(&mut records, id, now);
            return Renewed::Lapsed;
        }
        if record.memory.said.is_some() {
            // They are released as soon as no other node answers by them.
            return Renewed::Lapsed;
        }
        let denied = Renewed::Denied { lapses_in_ns: term.until_ns - now.steady_ns };
        // Rows that nobody waits for must not pile up while the disk fails.
        let is_writable = !self.setup.config.durable || self.has_disk();
        let is_known = term.is_renewable() || mutated(Mutation::RenewForgotten);
        if !may_decide || !is_writable || !is_known {
            return denied;
        }
        let charged = record.charged().filter(|limit| limit.is_slot());
        let slots: Option<SmallVec<[TakenSlot; 2]>> =
            charged.map(|limit| Some(TakenSlot::of(self.slot_of(limit.id)?, limit))).collect();
        let Some(batch) = slots.and_then(|slots| self.move_slots(&slots, term, now)) else { return denied };
        let row = records.change(id, |record| record.renew(now));
        let after_batch = row.map_or(0, |row| self.push_charge(row));
        records.sent_in(id, after_batch);
        let after_batch = if is_told_before_disk() { 0 } else { after_batch.max(batch) };
        Renewed::Done { lapses_in_ns: term.ttl_ns, after_batch }
    }

    /// Moves all of these charges to now, or none. Returns the batch in which the cells go to the disk, or 0.
    fn move_slots(&self, slots: &[TakenSlot], term: SlotTerm, now: Now) -> Option<u64> {
        let mut numbers: SmallVec<[usize; 2]> = slots.iter().map(|slot| shard_of(slot.tag)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let shards = numbers.into_iter();
        let mut shards: Shards<'_> =
            shards.map(|number| LockedShard { number, cells: self.shards[number].lock() }).collect();
        // Loaded under the locks, so no older than the cells' variants.
        let catalogue = self.catalogue();
        let mut all: SmallVec<[Moved; 2]> = SmallVec::new();
        for slot in slots {
            all.push(self.moved(&catalogue, slot, term, cells_of(&mut shards, slot.tag), now)?);
        }
        let mut batch = 0;
        for (slot, moved) in slots.iter().zip(all) {
            let cells = cells_of(&mut shards, slot.tag);
            let Some(at) = cells.table.at(moved.place).heap_place() else { continue };
            cells.with_heap_cell(at, |cell| cell.state = moved.state);
            if catalogue.is_durable(slot.limit)
                && let Some(local) = catalogue.local(slot.limit, cells.table.at(moved.place).variant())
            {
                let algorithm = local.at(slot.tag.salt());
                let locked_cell = self.locked_cell(&catalogue, slot, now);
                batch = batch.max(self.write_settled(&locked_cell, cells, moved.place, algorithm));
            }
        }
        Some(batch)
    }

    /// The state of a slot's cell if the charge were made now; `None` if the charge does not fit.
    fn moved(
        &self,
        catalogue: &Catalogue,
        slot: &TakenSlot,
        term: SlotTerm,
        cells: &mut Cells,
        now: Now,
    ) -> Option<Moved> {
        let (tag, salt, units) = (slot.tag, slot.tag.salt(), slot.units);
        let place = cells.table.find(tag, slot.limit)?;
        let locked_cell = self.locked_cell(catalogue, slot, now);
        let context = locked_cell.renew(cells, place, None)?;
        let at = cells.table.at(place).heap_place()?;
        let mut calls = false;
        let moved = cells.with_heap_cell(at, |cell| {
            let (algorithm, state) = self.settled(cell, &context, now);
            let mut state = state.clone();
            let back = algorithm.refund(&mut state, term.since.now(), units, now, algorithm, salt);
            let verdict = algorithm.probe(&state, now, units, salt);
            let fits = verdict.allowed || mutated(Mutation::RenewBeyondPart);
            if back < units || !fits {
                // Other regions hear that units are missing here.
                let account = cell.account.as_mut().filter(|_| !verdict.allowed);
                calls = account.is_some_and(|account| account.offer(units, units, &verdict, now));
                return None;
            }
            algorithm.charge_heap(&mut state, now, units, salt);
            Some(Moved { place, state })
        });
        if calls {
            cells.attend(CellKey { slot: slot.limit, tag: journal_tag(tag) });
            self.call(shard_of(tag));
        }
        moved
    }

    fn locked_cell<'a>(&'a self, catalogue: &'a Catalogue, slot: &TakenSlot, now: Now) -> LockedCell<'a> {
        let key = CellKey { slot: slot.limit, tag: slot.tag };
        LockedCell { node: self, catalogue, key, now, which: None }
    }
}

fn is_told_before_disk() -> bool {
    mutated(Mutation::RenewBeforeDurable)
}

fn cells_of<'c>(shards: &'c mut Shards<'_>, tag: CellTag) -> &'c mut Cells {
    let number = shard_of(tag);
    let shard = shards.iter_mut().find(|shard| shard.number == number);
    let Some(shard) = shard else { unreachable!("locked for every slot") };
    &mut shard.cells
}
