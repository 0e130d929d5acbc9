//! Holds: charges of requests whose cost is known only when they are done ([`acequia_limits::expect`]).
//!
//! **A hold is a reservation.** Its units are charged like any others, so every bound of charges holds for them, and
//! shares, loans and restarts see no difference. The report of the real cost settles it (`settle`); otherwise it
//! lapses and goes back. So what passes a limit is at most what requests cost beyond their holds.
//!
//! A report may name no charge, because the gateway cannot. It then takes the hold of its cells that lapses first.
//! With a fixed cost all holds of the same cells are equal. So what stays held is never less, and never for shorter,
//! than what is under way, whichever request the report was of. If that request's own report comes with its name, it
//! takes another hold, or counts in full.
//!
//! Without names, requests that are under way at one time may count with each other's costs. A request that ends soon
//! may settle the hold of an earlier one, in whose window its cost then counts. So what requests of a window cost may
//! pass the limit by what was held for earlier requests when the window began, and by no more.

use std::collections::{BTreeMap, VecDeque};

use acequia_limits::{
    CellTag, Now,
    expect::{Costs, Expect, ExpectedCost},
};
use acequia_rights::mutation::{Mutation, mutated};

use super::{ChargeId, Record, Records, SHARDS, Settled};
use crate::{Answer, Catalogue, LimitAnswer, Node, cell::CellKey, lock, settings::SETTINGS};

/// The cells that a request holds units of, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeldCells(u128);

impl HeldCells {
    /// The number of these cells, in any order; `None` if there are none.
    pub(crate) fn of(tags: impl Iterator<Item = CellTag>) -> Option<Self> {
        // Tags are hashes, and no request holds units of a cell twice.
        tags.map(|tag| tag.0).reduce(|all, tag| all ^ tag).map(Self)
    }

    /// A fresh name, changed so that its record is under the lock at which reports look for it.
    pub(crate) fn name(self, fresh: ChargeId) -> ChargeId {
        let shards = SHARDS as u128;
        ChargeId(fresh.0 / shards * shards + self.0 % shards)
    }
}

/// What a cell has set apart for requests under way whose cost is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellHolds {
    /// The limit, by its place among [`Answer::limits`].
    pub place: usize,
    /// Units in the cell's holds at this node. If too many reservations are open, only those that lapse first count.
    pub units: u64,
}

/// What requests cost lately, by cell.
#[derive(Debug, Default)]
pub(crate) struct KnownCosts {
    cells: BTreeMap<CellKey, Costs>,
    /// The cells in the order in which they came.
    order: VecDeque<CellKey>,
}

impl KnownCosts {
    fn note(&mut self, key: CellKey, cost: u64) {
        if let Some(costs) = self.cells.get_mut(&key) {
            return costs.note(cost);
        }
        if self.order.len() >= SETTINGS.charges.known_costs_max
            && let Some(oldest) = self.order.pop_front()
        {
            self.cells.remove(&oldest);
        }
        self.order.push_back(key);
        self.cells.entry(key).or_default().note(cost);
    }
}

impl Records {
    /// Reservations and holds that nobody settled, the first `most` of them that lapse.
    fn open(&self, most: usize) -> impl Iterator<Item = &Record> {
        self.lapses.iter().take(most).filter_map(|(_, id)| self.all.get(id))
    }

    /// The hold of these cells that lapses first.
    fn next_hold(&self, cells: HeldCells, now: Now) -> Option<ChargeId> {
        let from = (cells, now.steady_ns.saturating_add(1), 0);
        let (found, _, id) = self.holds.range(from..).next()?;
        (*found == cells).then_some(ChargeId(*id))
    }
}

impl Node {
    /// What the cells of an answer have set apart now, of each limit with `expect`.
    pub fn held(&self, answer: &Answer, catalogue: &Catalogue) -> Vec<CellHolds> {
        let expects = |limit: &LimitAnswer| catalogue.limits[limit.limit as usize].limit.expect.is_some();
        let cells = answer.limits.iter().enumerate().filter(|(_, limit)| expects(limit));
        let mut held: Vec<CellHolds> = cells.map(|(place, _)| CellHolds { place, units: 0 }).collect();
        if held.is_empty() {
            return held;
        }
        for shard in &self.charges.shards {
            let records = lock(shard);
            for limit in records.open(SETTINGS.charges.held_scan_max).flat_map(Record::charged) {
                let is_of = |cell: &&mut CellHolds| {
                    let LimitAnswer { limit: number, tag, .. } = answer.limits[cell.place];
                    limit.tag == tag && limit.id == catalogue.limits[number as usize].limit.id
                };
                if let Some(cell) = held.iter_mut().filter(|_| limit.is_hold()).find(is_of) {
                    cell.units = cell.units.saturating_add(limit.units);
                }
            }
        }
        held
    }

    /// What a request is expected to cost at a cell.
    pub(crate) fn expected_cost(&self, expect: &Expect, key: CellKey) -> u64 {
        if mutated(Mutation::HoldOfNothing) {
            return 0;
        }
        match expect.cost {
            ExpectedCost::Fixed(cost) => cost,
            auto @ ExpectedCost::Auto(_) => {
                let costs = lock(&self.charges.costs);
                costs.cells.get(&key).map_or_else(|| auto.of(&Costs::default()), |known| auto.of(known))
            }
        }
    }

    /// Notes what a request has cost at a cell, if its limit estimates costs.
    pub(crate) fn note_cost(&self, expect: Option<&Expect>, key: CellKey, cost: u64) {
        let Some(Expect { cost: ExpectedCost::Auto(_), .. }) = expect else { return };
        lock(&self.charges.costs).note(key, cost);
    }

    /// Settles the hold of these cells that lapses first with the real cost of some request. Returns the batch that
    /// must be on disk before anybody is told; `None` if there was no hold.
    pub(crate) fn settle_next_hold(&self, cells: HeldCells, cost: u64, now: Now) -> Option<u64> {
        let mut records = self.charges.lock(ChargeId(cells.0));
        match self.take_hold(&mut records, cells, cost, now)? {
            Settled::Done { after_batch, .. } => Some(after_batch),
            _ => None,
        }
    }

    /// Settles the hold of these cells that lapses first. Its own request may report by name later.
    pub(super) fn take_hold(
        &self,
        records: &mut Records,
        cells: HeldCells,
        cost: u64,
        now: Now,
    ) -> Option<Settled> {
        let id = records.next_hold(cells, now)?;
        let settled = self.settle_in(records, id, Some(cost), now);
        if let Some(record) = records.all.get_mut(&id.0) {
            record.memory.is_taken = true;
        }
        Some(settled)
    }
}
