//! Settles a charge: gives it back, all of it or what exceeds the real cost, or records what it lacks.
//!
//! Units go back once, into the cell and the window that were charged. A fixed window takes units back while
//! it is open, and a sliding window while the charge is in it. A bucket takes back only what the rate of the
//! whole limit has not restored since the charge. If the full cost came back, a bucket that has long refilled
//! could be spent twice at once. The rate is the fastest that the limit has had since; if that rate is not
//! known, nothing comes back.
//!
//! **On disk before it can be spent.** The settled record is queued for the disk before the cell is, and the
//! refund discards the state of the cell that the disk holds. So the next charge of a journalled cell waits
//! for both. For an unjournalled cell, a crash presumes that everything is spent, and a record from before
//! the crash gives nothing back to the cell.

use std::{borrow::Cow, sync::atomic::Ordering};

use acequia_limits::{Algorithm, CellTag, Now};
use acequia_rights::{
    mutation::{Mutation, mutated},
    pool::Generation,
};

use super::{
    ChargeId, Records,
    record::{LimitRecord, Record, RecordState},
};
use crate::{
    Catalogue, CellRecord, Node, Row,
    catalogue::VariantKey,
    cell::{
        CellKey,
        account::{Account, CellContext},
        locked_cell::LockedCell,
        record::Pledge,
        shard::{Cells, NewCell},
    },
    journal::{HeapCell, forgotten::MaybeForgotten},
    journal_tag, shard_of,
};

/// The result of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The charge is settled now.
    Done {
        /// The units that came back, by limit.
        refunded: Vec<Refunded>,
        /// The batch that must be on disk before anybody is told; 0 for none. After a crash that lost the
        /// batch, a reservation settled for less would lapse in full.
        after_batch: u64,
    },
    /// The charge was settled before; nothing has changed.
    Before {
        /// The batch that must be on disk before anybody is told, as in [`Settled::Done`]; 0 for none. The
        /// caller that settled the charge may not have been told so.
        after_batch: u64,
    },
    /// Other nodes may answer by the charge, in this generation of the region's store; nothing has changed.
    /// The charge is settled after its name was ended there ([`Node::ended`]).
    Shared {
        /// The name may be ended in this generation, or in a later one that grants.
        generation: Generation,
    },
    /// The reservation had lapsed; nothing has changed.
    Lapsed,
    /// There is no such record, or none any more; nothing has changed.
    Unknown,
}

/// The units that came back to one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refunded {
    /// The limit's name.
    pub name: String,
    /// The limit's slot, as [`crate::Active::slot`] has it.
    pub slot: u32,
    /// Units that can be spent again.
    pub units: u64,
}

impl Node {
    /// Settles a charge with its real `cost`, in the units of the request; 0 if there is none. What was charged
    /// beyond the cost comes back. What the cost is above the charge is recorded now, whatever is left
    /// ([`acequia_limits::debt`]).
    pub fn settle(&self, id: ChargeId, cost: Option<u64>, now: Now) -> Settled {
        let now = self.not_before(now);
        let mut records = self.charges.lock(id);
        self.settle_in(&mut records, id, cost, now)
    }

    pub(super) fn settle_in(
        &self,
        records: &mut Records,
        id: ChargeId,
        cost: Option<u64>,
        now: Now,
    ) -> Settled {
        let Some(record) = records.get(id, self.charges.keep, now) else { return Settled::Unknown };
        if record.lapses_ns().is_some_and(|until_ns| until_ns <= now.steady_ns) {
            let was_said = record.memory.said.is_some();
            self.lapse(records, id, now);
            if was_said {
                return Settled::Before { after_batch: 0 };
            }
        }
        let Some(record) = records.get(id, self.charges.keep, now) else { return Settled::Unknown };
        match record.state {
            RecordState::Settled if record.memory.is_taken => {
                return self.settle_instead(records, id, cost.unwrap_or(0), now);
            }
            RecordState::Settled if settles_once() => {
                let batch = record.batch();
                return Settled::Before { after_batch: if self.is_committed(batch) { 0 } else { batch } };
            }
            RecordState::Charged
            | RecordState::Reserved { .. }
            | RecordState::Slots(_)
            | RecordState::Settled => {}
            RecordState::Lapsed => return self.settle_late(records, id, cost.unwrap_or(0), now),
        }
        let charged = record.cost();
        let cost = cost.unwrap_or(0);
        let spent = Spent { cost, charged, held_cost: cost };
        if let Some(generation) = ends_first(record, spent) {
            // When a reservation lapses, no node answers by it any more: then the cost that was reported
            // first counts.
            if let Some(record) = records.all.get_mut(&id.0) {
                record.memory.said = record.memory.said.or(Some(spent.cost));
            }
            return Settled::Shared { generation };
        }
        let record = record.clone();
        let mut refunded = self.end_leases(&record, spent, now);
        self.end_holds(&record, Some(cost));
        self.overdraw(&record, spent, now);
        let after_batch = self.mark(records, id, RecordState::Settled, comes_back(&record, spent), now);
        refunded.extend(self.give_back(&record, spent, now));
        Settled::Done { refunded, after_batch }
    }

    /// Ends a reservation that nobody settled.
    pub(crate) fn lapse(&self, records: &mut Records, id: ChargeId, now: Now) {
        let Some(record) = records.all.get(&id.0).cloned() else { return };
        let charged = record.cost();
        if let Some(cost) = record.memory.said {
            let spent = Spent { cost, charged, held_cost: cost };
            self.end_leases(&record, spent, now);
            self.end_holds(&record, Some(cost));
            self.overdraw(&record, spent, now);
            self.mark(records, id, RecordState::Settled, comes_back(&record, spent), now);
            self.give_back(&record, spent, now);
            return;
        }
        self.end_leases(&record, Spent { cost: charged, charged, held_cost: 0 }, now);
        self.end_holds(&record, None);
        let held_cost = if mutated(Mutation::HoldNeverLapses) { u64::MAX } else { 0 };
        let spent = if record.keeps() { Spent::ALL } else { Spent { cost: 0, charged, held_cost } };
        let comes_back = !record.keeps() || record.slot_term().is_some();
        self.mark(records, id, RecordState::Lapsed, comes_back, now);
        if comes_back {
            self.give_back(&record, spent, now);
        }
    }

    /// Records the cost of a request whose holds have lapsed: all of it counts now, once. Other reservations stay as
    /// they are.
    fn settle_late(&self, records: &mut Records, id: ChargeId, cost: u64, now: Now) -> Settled {
        let found = records.all.get(&id.0).filter(|record| record.has_holds() && cost > 0).cloned();
        let Some(record) = found else { return Settled::Lapsed };
        self.overdraw_in_full(&record, cost, now);
        let after_batch = self.mark(records, id, RecordState::Settled, true, now);
        Settled::Done { refunded: Vec::new(), after_batch }
    }

    /// Settles another hold of the cells of a hold that a report without a name took, or records the cost in full if
    /// there is none.
    fn settle_instead(&self, records: &mut Records, id: ChargeId, cost: u64, now: Now) -> Settled {
        let Some(record) = records.all.get_mut(&id.0) else { return Settled::Unknown };
        record.memory.is_taken = false;
        let record = record.clone();
        if let Some(settled) = record.held_cells().and_then(|cells| self.take_hold(records, cells, cost, now))
        {
            return settled;
        }
        self.overdraw_in_full(&record, cost, now);
        Settled::Done { refunded: Vec::new(), after_batch: 0 }
    }

    /// Records a cost on the limits that a request held units of, whose holds are gone.
    fn overdraw_in_full(&self, record: &Record, cost: u64, now: Now) {
        for limit in record.spent_from().filter(|limit| limit.is_hold()) {
            let units = Spent { cost, charged: limit.expected, held_cost: cost }.scaled(limit.units);
            if let Some(slot) = self.slot_of(limit.id).filter(|_| units > 0) {
                self.overdraw_cell(slot, limit, units, now);
            }
        }
    }

    /// Gives everything back that a request was just charged: it cannot be remembered.
    pub(crate) fn undo(&self, record: &Record, now: Now) {
        for limit in record.charged().filter(|limit| !limit.is_leased) {
            self.give_back_to_limit(limit, ChargedAt::exactly(record.made()), limit.units, now);
        }
    }

    /// Counts the ends of holds; `cost` is the real cost, `None` if nobody reported it.
    fn end_holds(&self, record: &Record, cost: Option<u64>) {
        for limit in record.spent_from().filter(|limit| limit.is_hold()) {
            let (Some(slot), catalogue) = (self.slot_of(limit.id), self.catalogue()) else { continue };
            let Some(active) = catalogue.active_of(slot) else { continue };
            active.holds.count(cost.is_some());
            if let Some(cost) = cost.filter(|cost| *cost > 0) {
                self.note_cost(active.limit.expect.as_ref(), CellKey { slot, tag: limit.tag }, cost);
            }
        }
    }

    /// Records the end of a charge. Returns the batch in which the record goes to the disk, or 0.
    fn mark(
        &self,
        records: &mut Records,
        id: ChargeId,
        state: RecordState,
        came_back: bool,
        now: Now,
    ) -> u64 {
        let row = records.change(id, |record| record.end(state, came_back, now));
        let batch = row.map_or(0, |row| self.push_charge(row));
        records.sent_in(id, batch);
        batch
    }

    /// Gives back what was charged beyond the real cost, and all slots: the request is under way no longer,
    /// whatever it cost.
    fn give_back(&self, record: &Record, spent: Spent, now: Now) -> Vec<Refunded> {
        // The call locks the registry, so it comes before any cell is locked.
        let made = self.charged_at(record, now);
        let mut refunded = Vec::new();
        for limit in record.charged().filter(|limit| !limit.is_leased) {
            let (units, made) = match record.slot_term() {
                Some(term) if limit.is_slot() => (limit.units, ChargedAt::exactly(term.since.now())),
                _ => (limit.units.saturating_sub(spent.on(record, limit).of(limit.units)), made),
            };
            refunded.extend(self.give_back_to_limit(limit, made, units, now));
        }
        refunded
    }

    /// Gives units of one limit's charge back; returns what came back, if anything did.
    fn give_back_to_limit(
        &self,
        limit: &LimitRecord,
        made: ChargedAt,
        units: u64,
        now: Now,
    ) -> Option<Refunded> {
        let slot = self.slot_of(limit.id)?;
        let back = self.refund_cell(slot, limit, &made, units, now);
        (back > 0).then(|| refunded_of(&self.catalogue(), slot, back))
    }

    /// Records what the real cost is above the charge, on every limit that was charged.
    fn overdraw(&self, record: &Record, spent: Spent, now: Now) {
        // A request takes no more slots because it cost more.
        for limit in record.spent_from().filter(|limit| !limit.is_slot()) {
            let units = spent.on(record, limit).above(limit.units);
            if let Some(slot) = self.slot_of(limit.id).filter(|_| units > 0) {
                self.overdraw_cell(slot, limit, units, now);
            }
        }
    }

    fn overdraw_cell(&self, slot: u32, limit: &LimitRecord, units: u64, now: Now) {
        let (tag, salt) = (limit.tag, limit.tag.salt());
        let mut cells = self.shards[shard_of(tag)].lock();
        // Loaded under the lock, so no older than the cell's variant.
        let catalogue = self.catalogue();
        let Some(active) = catalogue.active_of(slot) else { return };
        if cells.table.find(tag, slot).is_none() && self.overflow.any() {
            // The charge is in the cell that new cells share; a cell of its own would begin with everything left.
            active.overdrawn.fetch_add(units, Ordering::Relaxed);
            return;
        }
        let Some(place) = self.place_of(&catalogue, slot, tag, &mut cells, now) else { return };
        let locked_cell =
            LockedCell { node: self, catalogue: &catalogue, key: CellKey { slot, tag }, now, which: None };
        let Some(context) = locked_cell.renew(&mut cells, place, None) else { return };
        let (algorithm, debt_max) = (context.local.at(salt), active.limit.debt_max(limit.budget));
        // What a caller named is the record's budget, and the cell has far more.
        let spend = |algorithm: &Algorithm, state: &[u64]| match active.limit.spec.from_callers {
            false => algorithm.spend(state, now, units, salt, debt_max),
            true => algorithm.spend_of(limit.budget, state, now, units, salt, debt_max),
        };
        let spent = match cells.table.at(place).heap_place() {
            None => {
                let state = &mut cells.table.at_mut(place).state;
                let spent = spend(algorithm, &state[..]);
                algorithm.charge_inline(state, now, spent.recorded, salt);
                spent
            }
            Some(at) => cells.with_heap_cell(at, |cell| {
                let (algorithm, state) = self.settled(cell, &context, now);
                let spent = spend(algorithm, state);
                algorithm.charge_heap(state, now, spent.recorded, salt);
                spent
            }),
        };
        active.overdrawn.fetch_add(spent.overdrawn, Ordering::Relaxed);
        if self.counts_usage() {
            cells.count_spent(slot, spent.recorded);
        }
        // Rows that nobody waits for must not pile up while the disk fails. The next charge writes the cell.
        if catalogue.is_durable(slot) && !self.is_journal_down() {
            self.write_settled(&locked_cell, &mut cells, place, algorithm);
        }
        drop(cells);
        let beyond = spent.beyond(units);
        if beyond > 0 && self.is_shared() && !active.limit.spec.from_callers {
            self.tell_overdrawn(&locked_cell, beyond);
        }
    }

    /// Has the others hear of a debt.
    fn tell_overdrawn(&self, locked_cell: &LockedCell<'_>, units: u64) {
        locked_cell.at(true, |_, cell| {
            if let Some(account) = cell.account.as_deref_mut() {
                account.note_overdrawn(units);
            }
        });
        let CellKey { slot, tag } = locked_cell.key;
        self.shards[shard_of(tag)].lock().attend(CellKey { slot, tag: journal_tag(tag) });
        self.call(shard_of(tag));
    }

    /// Ends a lease of units that were set apart. Units spent count from now on, the latest time at which
    /// they were spent. The disk gets the cell before it gets the settled record: in the other order, a crash
    /// in between would know of neither.
    fn end_leases(&self, record: &Record, spent: Spent, now: Now) -> Vec<Refunded> {
        let mut refunded = Vec::new();
        for limit in record.charged().filter(|limit| limit.is_leased) {
            let Some(slot) = self.slot_of(limit.id) else { continue };
            let (spent, salt) = (spent.of(limit.units), limit.tag.salt());
            let mut cells = self.shards[shard_of(limit.tag)].lock();
            // Loaded under the lock, so no older than the cell's variant.
            let catalogue = self.catalogue();
            let Some(place) = cells.table.find(limit.tag, slot) else { continue };
            cells.lease(place, |leased| leased.saturating_sub(limit.units));
            let locked_cell = LockedCell {
                node: self,
                catalogue: &catalogue,
                key: CellKey { slot, tag: limit.tag },
                now,
                which: None,
            };
            let Some(context) = locked_cell.renew(&mut cells, place, None) else { continue };
            let algorithm = context.local.at(salt);
            if let Some(at) = cells.table.at(place).heap_place().filter(|_| spent > 0) {
                cells.with_heap_cell(at, |cell| {
                    let (algorithm, state) = self.settled(cell, &context, now);
                    algorithm.charge_heap(state, now, spent, salt);
                });
                if self.counts_usage() {
                    cells.count_spent(slot, spent);
                }
                if catalogue.is_durable(slot) {
                    self.write_settled(&locked_cell, &mut cells, place, algorithm);
                }
            }
            if limit.units > spent {
                refunded.push(refunded_of(&catalogue, slot, limit.units - spent));
            }
        }
        refunded
    }

    /// Sets apart what the leases of an earlier process may still spend.
    pub(super) fn lease_again(&self, record: &Record, now: Now) {
        if record.lapses_ns().is_none() {
            return;
        }
        let catalogue = self.catalogue();
        for limit in record.charged().filter(|limit| limit.is_leased) {
            let Some(slot) = self.slot_of(limit.id) else { continue };
            let tag = limit.tag;
            let mut cells = self.shards[shard_of(tag)].lock();
            let Some(place) = self.place_of(&catalogue, slot, tag, &mut cells, now) else { continue };
            cells.lease(place, |leased| leased.saturating_add(limit.units));
        }
    }

    /// The place of a charge's cell, which is made if there is none. `None` if the limit is gone.
    fn place_of(
        &self,
        catalogue: &Catalogue,
        slot: u32,
        tag: CellTag,
        cells: &mut Cells,
        now: Now,
    ) -> Option<usize> {
        if let Some(place) = cells.table.find(tag, slot) {
            return Some(place);
        }
        let salt = tag.salt();
        let variant = catalogue.newest_variant(slot, salt)?;
        let algorithm = catalogue.local(slot, variant)?.at(salt);
        let key = VariantKey { slot, variant };
        let state = self.initial(&MaybeForgotten { catalogue, key, algorithm, salt, now });
        while !cells.table.has_room(1) {
            cells.table.grow(usize::MAX);
        }
        let place =
            cells.insert(tag, slot, variant, NewCell::new(state, algorithm, catalogue.is_durable(slot)));
        cells.table.at_mut(place).guess();
        Some(place)
    }

    /// When a charge was made, as far as known.
    fn charged_at(&self, record: &Record, now: Now) -> ChargedAt {
        let made = record.made();
        if !record.memory.is_restored {
            return ChargedAt::exactly(made);
        }
        let error_ns = self.clock_error_ns().saturating_mul(2);
        let by_steady = now.steady_ns.saturating_sub(made.steady_ns);
        let by_wall = now.wall_ns.saturating_sub(made.wall_ns);
        let ago_ns = by_steady.max(by_wall).saturating_add(error_ns);
        let steady_ns = made.steady_ns.min(now.steady_ns.saturating_sub(ago_ns));
        ChargedAt { exact: made, earliest: Now { steady_ns, ..made } }
    }

    fn refund_cell(&self, slot: u32, limit: &LimitRecord, made: &ChargedAt, units: u64, now: Now) -> u64 {
        let (tag, salt) = (limit.tag, limit.tag.salt());
        let mut cells = self.shards[shard_of(tag)].lock();
        // Loaded under the lock, so no older than the cell's variant.
        let catalogue = self.catalogue();
        // A cell that is gone owed nothing; and the cell that new cells share belongs to no single key.
        let Some(place) = cells.table.find(tag, slot) else { return 0 };
        let locked_cell =
            LockedCell { node: self, catalogue: &catalogue, key: CellKey { slot, tag }, now, which: None };
        let Some(context) = locked_cell.renew(&mut cells, place, None) else { return 0 };
        let Some(fastest) = catalogue.fastest(slot) else { return 0 };
        let whole = &*restoring(fastest);
        let algorithm = context.local.at(salt);
        let made = made.refunded_to(algorithm, now);
        let back = match cells.table.at(place).heap_place() {
            None => {
                let state = &mut cells.table.at_mut(place).state;
                algorithm.refund_inline(state, made, units, now, whole, salt)
            }
            Some(at) => cells.with_heap_cell(at, |cell| {
                let (algorithm, state) = self.settled(cell, &context, now);
                algorithm.refund(state, made, units, now, whole, salt)
            }),
        };
        if back > 0 {
            if self.counts_usage() {
                cells.count_refunded(slot, back);
            }
            if is_refund_written(&catalogue, slot) {
                self.write_settled(&locked_cell, &mut cells, place, algorithm);
            }
        }
        back
    }

    /// The algorithm that a cell uses now, and its state. Loans that ended before now are settled first.
    pub(super) fn settled<'c>(
        &self,
        cell: &'c mut HeapCell,
        context: &CellContext<'c>,
        now: Now,
    ) -> (&'c Algorithm, &'c mut Vec<u64>) {
        let HeapCell { account, state, .. } = cell;
        let Some(account) = account else { return (context.local.at(context.salt), state) };
        account.settle(state, context, now, &*self.sessions());
        (&account.algorithm, state)
    }

    /// Writes the cell anew: the disk counts as spent what has come back, or does not know what was spent.
    /// Returns the batch.
    pub(super) fn write_settled(
        &self,
        settled: &LockedCell<'_>,
        cells: &mut Cells,
        place: usize,
        algorithm: &Algorithm,
    ) -> u64 {
        let CellKey { slot, tag } = settled.key;
        let Some(id) = settled.catalogue.id(slot) else { return 0 };
        if cells.table.at(place).heap_place().is_none() {
            cells.move_to_heap(place);
        }
        let Some(at) = cells.table.at(place).heap_place() else { return 0 };
        cells.with_heap_cell(at, |cell| {
            let account = cell.account.as_deref();
            let pledge = account.map_or_else(Pledge::default, Account::pledge);
            let algorithm = account.map_or(algorithm, |account| &account.algorithm);
            let state = Some(CellRecord::new(algorithm, &cell.state, settled.now).with_pledge(pledge));
            let batch = self.push_row(Row { limit: id, tag: journal_tag(tag), state });
            cell.forget_held();
            cell.ask_as_is(batch);
            batch
        })
    }
}

/// How much of a charge was spent.
#[derive(Clone, Copy, Debug)]
struct Spent {
    /// The real cost, in the units of the request.
    cost: u64,
    /// The cost that was charged.
    charged: u64,
    /// The real cost, for holds: 0 if nobody reported it, and [`u64::MAX`] if all that was expected stays.
    held_cost: u64,
}

impl Spent {
    /// All that was charged or held.
    const ALL: Self = Self { cost: 1, charged: 1, held_cost: u64::MAX };

    /// What was spent of one limit's charge. What a request with holds was charged for beside them was known from
    /// the start: that stays.
    fn on(self, record: &Record, limit: &LimitRecord) -> Self {
        match (limit.is_hold(), record.has_holds()) {
            (true, _) => Self { cost: self.held_cost, charged: limit.expected, ..self },
            (false, true) => Self { cost: 1, charged: 1, ..self },
            (false, false) => self,
        }
    }

    /// Whether less was spent than charged.
    const fn leaves_some(self) -> bool {
        self.cost < self.charged
    }

    /// Scales `units` from the charged cost to the real cost, rounded up, so that no more comes back than was
    /// overcharged.
    fn of(self, units: u64) -> u64 {
        self.scaled(units).min(units)
    }

    /// Units of the real cost beyond the `units` that were charged.
    fn above(self, units: u64) -> u64 {
        self.scaled(units).saturating_sub(units)
    }

    fn scaled(self, units: u64) -> u64 {
        let spent = (u128::from(units) * u128::from(self.cost)).div_ceil(u128::from(self.charged.max(1)));
        u64::try_from(spent).unwrap_or(u64::MAX)
    }
}

/// When a charge was made.
#[derive(Clone, Copy, Debug)]
struct ChargedAt {
    /// The time in the record.
    exact: Now,
    /// For a charge of an earlier process, the earliest time by any of the clocks.
    earliest: Now,
}

impl ChargedAt {
    const fn exactly(made: Now) -> Self {
        Self { exact: made, earliest: made }
    }

    /// The time to which a cell's refund is dated. Units go back only into the window that was charged, and
    /// into a bucket only what the rate has not restored since the earliest time.
    fn refunded_to(&self, algorithm: &Algorithm, now: Now) -> Now {
        match mutated(Mutation::RefundIntoOpenWindow) {
            true => now,
            // A sliding window stores its charges by their exact time.
            false if !algorithm.has_rate() => self.exact,
            false => self.earliest,
        }
    }
}

/// A settled charge is not settled again.
fn settles_once() -> bool {
    !mutated(Mutation::RefundTwice)
}

/// The generation in which other nodes may answer by a charge: nothing is given back before its name was
/// ended there.
fn ends_first(record: &Record, spent: Spent) -> Option<Generation> {
    let generation = record.memory.shared?;
    (comes_back(record, spent) && !mutated(Mutation::RefundWhileShared)).then_some(generation)
}

/// Whether a settlement gives anything back: the record then does not stand for its answer any more.
fn comes_back(record: &Record, spent: Spent) -> bool {
    spent.leaves_some() || record.slot_term().is_some() || record.has_holds()
}

/// By this algorithm, the fastest of the whole limit, a bucket has restored units since the charge: those do
/// not come back twice.
fn restoring(fastest: &Algorithm) -> Cow<'_, Algorithm> {
    match mutated(Mutation::RefundInFull) {
        true => Cow::Owned(fastest.fraction(0)),
        false => Cow::Borrowed(fastest),
    }
}

/// A refund of a journalled cell is on disk before its units are spent.
fn is_refund_written(catalogue: &Catalogue, slot: u32) -> bool {
    catalogue.is_durable(slot) && !mutated(Mutation::RefundBeforeDurable)
}

pub(super) fn refunded_of(catalogue: &Catalogue, slot: u32, units: u64) -> Refunded {
    let active = catalogue.active_of(slot);
    let name = active.map_or_else(String::new, |active| active.limit.spec.name.clone());
    Refunded { name, slot, units }
}
