//! Requests that take something which must come back: slots of requests under way, and holds.

use std::{num::NonZeroU64, sync::Arc};

use acequia_limits::{CellTag, Now, Reason, Request};

use super::{
    Ask, Asker, Overdraft, RequestCheck,
    hit::{Hit, HitPurpose},
    recorded::is_full,
};
use crate::{
    Active, Recording,
    catalogue::VariantKey,
    cell::CellKey,
    charges::{HeldCells, Record},
};

impl RequestCheck<'_, '_> {
    /// What a descriptor of this cost asks of a cell whose limit holds units, and what for.
    #[cold]
    pub(super) fn expected(
        &self,
        active: &Active,
        variant: VariantKey,
        tag: CellTag,
        cost: u64,
    ) -> (u64, HitPurpose) {
        let begins = self.ask.charge && !self.ask.holds && self.ask.overdraft != Overdraft::Spent;
        let expect = match (cost, &active.limit.expect) {
            // The cost was settled with the hold.
            (1.., _) if self.ask.is_settled => return (cost, HitPurpose::Settled),
            (1.., _) => return (cost, HitPurpose::Charge),
            (0, Some(expect)) if begins => expect,
            (0, _) => return (0, HitPurpose::Peek),
        };
        // An override may have made the cell smaller than a hold.
        let budget = self.catalogue.global(variant.slot, variant.variant).map_or(0, |whole| whole.budget());
        let most = (budget / active.limit.cost.max(1)).max(1);
        let expected = self.node.expected_cost(expect, CellKey { slot: variant.slot, tag }).min(most);
        match NonZeroU64::new(expected) {
            None => (0, HitPurpose::Peek),
            Some(cost) => (expected, HitPurpose::Hold { expected: cost }),
        }
    }
}

impl Asker {
    /// Whether the last answer took slots or holds, so that it must be remembered ([`Asker::remember_held`]).
    #[inline]
    pub fn holds_units(&self) -> bool {
        (self.catalogue.has_slots || self.catalogue.has_holds)
            && self.answer.limits.iter().any(|limit| {
                let active = &self.catalogue.limits[limit.limit as usize];
                limit.is_charged && (limit.late.expected > 0 || active.limit.is_concurrent())
            })
    }

    /// Whether any limit may hold units ([`Asker::settle_hold`]).
    #[inline]
    pub fn has_holds(&self) -> bool {
        self.catalogue.has_holds
    }

    /// Remembers the slots and holds that the last answer took, for a request of this cost, under a name that no
    /// caller knows yet. If there is no room to remember them, everything is given back and the request is
    /// denied: what nobody can release would be taken until it lapses.
    pub fn remember_held(&mut self, cost: u64, recording: &Recording) {
        if !self.holds_units() {
            return;
        }
        let node = Arc::clone(&self.node);
        let held = self.answer.limits.iter().filter(|limit| limit.is_charged && limit.late.expected > 0);
        let cells = HeldCells::of(held.map(|limit| limit.tag));
        let id = cells.map_or(recording.id, |cells| cells.name(recording.id));
        let recording = Recording { id, ..*recording };
        let mut records = node.charges.lock(id);
        if is_full(&node, &records, &recording) {
            self.undo_held(cost, &recording);
        } else {
            self.remember(&mut records, &recording, cost, node.has_disk());
        }
    }

    /// Gives back what the last answer took, and denies the request: there is no room to remember it.
    #[cold]
    pub(super) fn undo_held(&mut self, cost: u64, recording: &Recording) {
        let record = Record::new(recording, &self.answer, &self.catalogue, cost, self.went_by);
        self.node.undo(&record, self.went_by);
        self.answer.limits.iter_mut().for_each(|limit| limit.is_charged = false);
        self.answer.deny_for_now(Reason::Overflow);
    }

    /// Has the last answer wait until the hold that was settled for it is on disk.
    pub fn wait_for_settled(&mut self) {
        self.answer.after_batch = self.answer.after_batch.max(self.settled_batch);
    }

    /// Settles the hold that a report belongs to which names no charge: of the holds of the same cells, the one
    /// that lapses first. Says whether there was one: then the request is asked with [`Ask::is_settled`], and
    /// answered after [`Asker::wait_for_settled`].
    pub fn settle_hold(&mut self, request: &Request<'_>, now: Now) -> bool {
        let node = Arc::clone(&self.node);
        self.load_catalogue();
        if !self.catalogue.has_holds || !node.may_decide() {
            return false;
        }
        let now = node.not_before(now);
        let catalogue = &self.catalogue;
        let check = RequestCheck { node: &node, catalogue, request, now, ask: Ask::PEEK, may_decide: true };
        check.gather(request, &mut self.hits);
        let is_report = |hit: &&Hit| {
            let expects = catalogue.limits[hit.limit as usize].limit.expect.is_some();
            expects && hit.charges() && !hit.exempt
        };
        let reports = || self.hits.iter().filter(is_report);
        let Some(cells) = HeldCells::of(reports().map(|hit| hit.tag)) else { return false };
        let cost = |hit: &Hit| hit.units / catalogue.limits[hit.limit as usize].limit.cost.max(1);
        let most = reports().map(cost).max().unwrap_or(0);
        if let Some(after_batch) = node.settle_next_hold(cells, most, now) {
            self.settled_batch = after_batch;
            return true;
        }
        for hit in reports() {
            let active = &catalogue.limits[hit.limit as usize];
            let key = CellKey { slot: active.slot, tag: hit.tag };
            node.note_cost(active.limit.expect.as_ref(), key, cost(hit));
        }
        false
    }
}
