//! Charges a hit: whether a charge is due, in which cell, and what must be on disk first.

use acequia_limits::{Algorithm, CellTag, Charge, algorithm::State};

use super::{
    Overdraft, RequestCheck,
    answer::{Answer, denied_only_by},
    hit::{Called, CellSource, Hit},
};
use crate::{
    Active, CellRecord, Row,
    catalogue::VariantKey,
    cell::{
        overflow::Overflow,
        record::Pledge,
        shard::{Cells, NewCell},
    },
    journal::{CellCharge, HeapCell, overflow_tag},
    journal_tag,
};

impl RequestCheck<'_, '_> {
    /// Whether a hit must be charged.
    #[inline]
    pub(super) fn is_due(&self, hit: &Hit, answer: &Answer, number: usize) -> bool {
        let limit = &answer.limits[number];
        self.ask.charge
            && hit.charges()
            && !hit.exempt
            && !limit.is_forwarded
            && limit.verdict.allowed
            && (answer.allowed || (!self.ask.holds && self.is_due_anyway(hit, answer)))
    }

    /// Whether a hit must be charged although the request is denied. Never for a lease: nothing would be
    /// known of it.
    #[inline(never)]
    fn is_due_anyway(&self, hit: &Hit, answer: &Answer) -> bool {
        let active = self.limit(hit);
        if active.limit.is_concurrent() || hit.is_hold() {
            // A denied request is not under way.
            return false;
        }
        let is_charged = match (active.limit.spec.charge, self.ask.overdraft) {
            (_, Overdraft::Spent) | (Charge::Each, _) => true,
            (Charge::Always, overdraft) => overdraft == Overdraft::Always,
            (Charge::Together, _) => false,
        };
        is_charged || active.live.is_some_and(|live| denied_only_by(answer, live))
    }

    /// Charges `units` of one hit; returns the batch that must be on disk first, or 0.
    pub(super) fn charge(
        &self,
        hit: &Hit,
        units: u64,
        initial: Option<State>,
        left: u64,
        cells: &mut Cells,
        shared: Option<&mut Overflow>,
    ) -> u64 {
        let (algorithm, salt, active) = (self.algorithm(hit), hit.tag.salt(), self.limit(hit));
        if self.is_leased(algorithm) {
            self.lease(hit, initial, cells);
            return 0;
        }
        if self.node.counts_usage() {
            cells.count_spent(active.slot, units);
        }
        let charged = CellCharge { units, left: hit.ahead(left), salt };
        let on_heap = |cell: &mut HeapCell, tag: CellTag| {
            cell.forget_held_if_variant_changed();
            let account = cell.account.take();
            let algorithm = account.as_ref().map_or(algorithm, |account| &account.algorithm);
            algorithm.charge_heap(&mut cell.state, self.now, units, salt);
            // A cell that the journal has must be written even if this thread does not know yet that the
            // limit is journalled.
            let kept = active.durable || (!cell.is_unwritten() && account.is_none());
            let pledge = || account.as_ref().map_or_else(Pledge::default, |account| account.pledge());
            let batch = if kept { self.settle(cell, active, algorithm, tag, charged, pledge) } else { 0 };
            cell.account = account;
            batch
        };
        match hit.place {
            CellSource::At(place) => match cells.table.at(place).heap_place() {
                // A bucket's state does not grow, and no charge of this cell waits for a disk.
                Some(at) if hit.account != Called::None && !active.durable && algorithm.has_rate() => {
                    let HeapCell { account: Some(account), state, .. } = cells.heap_mut(at) else {
                        unreachable!("a shared cell")
                    };
                    account.algorithm.charge_heap(state, self.now, units, salt);
                    0
                }
                Some(at) => cells.with_heap_cell(at, |cell| on_heap(cell, journal_tag(hit.tag))),
                None => {
                    let state = &mut cells.table.at_mut(place).state;
                    algorithm.charge_inline(state, self.now, units, salt);
                    0
                }
            },
            CellSource::Absent => {
                let mut new =
                    NewCell::new(initial.unwrap_or_else(|| algorithm.fresh()), algorithm, active.durable);
                let batch = match &mut new {
                    NewCell::Inline(state) => {
                        algorithm.charge_inline(state, self.now, units, salt);
                        0
                    }
                    NewCell::Heap(cell) => on_heap(cell, journal_tag(hit.tag)),
                };
                cells.insert(hit.tag, active.slot, hit.variant, new);
                batch
            }
            CellSource::Shared => {
                let Some(shared) = shared else { unreachable!("locked for every shared hit") };
                self.node.overflow.note_any();
                let key = VariantKey { slot: active.slot, variant: hit.variant };
                let cell = shared.entry(key).or_insert_with(|| {
                    let state = initial.unwrap_or_else(|| algorithm.fresh());
                    HeapCell::new(state.as_slice().to_vec())
                });
                on_heap(cell, overflow_tag(hit.variant))
            }
        }
    }

    fn settle(
        &self,
        cell: &mut HeapCell,
        active: &Active,
        algorithm: &Algorithm,
        tag: CellTag,
        charged: CellCharge,
        pledge: impl Fn() -> Pledge,
    ) -> u64 {
        let mut rows = None;
        let progress = self.node.progress();
        let wait = cell.settle(algorithm, self.now, charged, progress, |state| {
            let record = Some(CellRecord::new(algorithm, state, self.now).with_pledge(pledge()));
            rows = Some(Row { limit: active.limit.id, tag, state: record });
        });
        let wait = match rows {
            Some(row) => {
                let batch = self.node.push_row(row);
                cell.sent_in(batch);
                if wait > 0 { batch } else { 0 }
            }
            None => wait,
        };
        // A limit that only watches denies nobody, so nobody waits for its rows.
        if active.limit.spec.mode.denies() { wait } else { 0 }
    }
}
