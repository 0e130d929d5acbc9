//! A clean stop: it writes the exact state of every cell, and of which limits that state is complete.

use std::collections::BTreeMap;

use acequia_limits::{LimitId, Now, algorithm::State};

use crate::{
    Active, Catalogue, Node, Row,
    catalogue::{VariantKey, local::Local},
    cell::{account::CellContext, record::CellRecord, shard::Cells, table::Cell},
    journal::{FORGOTTEN, HeapCell},
    lock, whole_tag,
};

impl Node {
    /// Writes the exact state of every cell, journalled or not, on a clean stop. So nothing is lost, and
    /// units that were reserved and not used come back. Afterwards nothing may be charged, and no pool may be
    /// called.
    pub fn close(&self, now: Now, mut write: impl FnMut(Row)) {
        let (catalogue, now) = (self.catalogue(), self.not_before(now));
        self.call_no_more();
        self.forwards.close();
        self.close_cells(&catalogue, now, &mut write);
        for (limit, most, state) in catalogue.all_forgotten(now) {
            write(Row { limit, tag: FORGOTTEN, state: Some(CellRecord::new(most, &state, now)) });
        }
        self.close_shared_cells(&catalogue, now, &mut write);
    }

    fn close_cells(&self, catalogue: &Catalogue, now: Now, write: &mut impl FnMut(Row)) {
        for (at, shard) in self.shards.iter().enumerate() {
            let mut cells = shard.lock();
            let all: Vec<Cell> = cells.table.iter().copied().collect();
            for cell in all {
                let tag = whole_tag(at, &cell);
                let local = catalogue.local(cell.slot(), cell.variant());
                let (Some(limit), Some(local)) = (catalogue.id(cell.slot()), local) else { continue };
                let state = cells.state(&cell);
                let record = match cells.account_of(&cell) {
                    Some(_) if self.leases.is_some() => {
                        self.stopped(catalogue, &mut cells, &cell, tag.salt(), now)
                    }
                    Some(account) => {
                        Some(CellRecord::new(&account.algorithm, state, now).with_pledge(account.pledge()))
                    }
                    None => Some(CellRecord::new(local.at(tag.salt()), state, now)),
                };
                write(Row { limit, tag, state: record });
            }
        }
    }

    /// Writes the cells that new cells share. They owe, too, what a crash forgot of cells that are not known
    /// yet.
    fn close_shared_cells(&self, catalogue: &Catalogue, now: Now, write: &mut impl FnMut(Row)) {
        let mut write = |key: VariantKey, state: &[u64]| {
            if let Some(local) = catalogue.local(key.slot, key.variant) {
                key.row(catalogue, Some(CellRecord::new(local.least(), state, now))).map(&mut *write);
            }
        };
        let mut spent = self.spent_of_unknown_cells(catalogue);
        for (key, cell) in self.overflow.lock().iter() {
            let least = catalogue.local(key.slot, key.variant).map(Local::least);
            match spent.remove(key).zip(least) {
                None => write(*key, &cell.state),
                Some((spent, least)) => {
                    write(*key, least.join(&cell.state, spent.as_slice(), now).as_slice())
                }
            }
        }
        for (key, spent) in spent {
            write(key, spent.as_slice());
        }
    }

    /// What a crash forgot of cells that are not known yet, except for buckets: such cells count as spent at
    /// the crash, as new cells count what others spent in a shared cell. If nodes share pools, the next
    /// process is told the time of the crash instead.
    fn spent_of_unknown_cells(&self, catalogue: &Catalogue) -> BTreeMap<VariantKey, State> {
        let mut spent = BTreeMap::new();
        let Some(crashed) = self.after_crash().filter(|_| self.leases.is_none()) else { return spent };
        let is_forgotten = |active: &&Active| {
            !active.durable && catalogue.was_served_before(active.slot) && !active.limit.algorithm.has_rate()
        };
        for active in catalogue.limits.iter().filter(is_forgotten) {
            for variant in active.all_variants() {
                let Some(local) = catalogue.local(active.slot, variant) else { continue };
                let key = VariantKey { slot: active.slot, variant };
                spent.insert(key, self.spent(local.least(), crashed, None));
            }
        }
        spent
    }

    /// The record of a cell with an account after a clean stop, at a node that shares its region's pools.
    fn stopped(
        &self,
        catalogue: &Catalogue,
        cells: &mut Cells,
        cell: &Cell,
        salt: u32,
        now: Now,
    ) -> Option<CellRecord> {
        let (slot, variant) = (cell.slot(), cell.variant());
        let (global, local) = catalogue.global(slot, variant).zip(catalogue.local(slot, variant))?;
        let context = CellContext { global, local, salt, which: None, in_force: catalogue.is_active(slot) };
        let sessions = self.sessions();
        cells.with_heap_cell(cell.heap_place()?, |cell| {
            let HeapCell { account: Some(account), state, .. } = cell else { return None };
            Some(account.stopped(state, &context, now, &*sessions))
        })
    }

    /// The limits that were in force at any time since the start: [`Node::close`] writes their complete
    /// state.
    pub fn known_limits(&self) -> Vec<LimitId> {
        lock(&self.limits.registry).known().collect()
    }
}
