//! Requests whose charge is remembered ([`crate::charges`]).

use std::sync::Arc;

use acequia_limits::{Now, Reason, Request};
use acequia_rights::mutation::{Mutation, mutated};

use super::{Answer, Ask, Asker, Charged, Forwarding, IdReused, Outcome, Overdraft, lease::longest_ns};
use crate::{
    ChargeId, Keep, Node, Recording, Remember,
    charges::{Record, Records, SharedRecord},
    settings::SETTINGS,
};

impl Asker {
    /// Decides whether the request may pass, and remembers the charge: a repeated request under the same name
    /// gets the same answer, and is charged once.
    ///
    /// # Errors
    /// Another request was made under that name, or the charge under the name was given back since: a
    /// repeated answer would let the request pass uncharged. Nothing is charged.
    pub fn check_recorded(
        &mut self,
        request: &Request<'_>,
        now: Now,
        ask: Ask,
        recording: &Recording,
    ) -> Result<&Answer, IdReused> {
        if recording.remember == Remember::IfHeld {
            self.may_decide = self.node.may_decide();
            let now = self.node.not_before(now);
            self.check_seldom(request, now, ask);
            self.remember_held(request.cost, recording);
            return Ok(&self.answer);
        }
        let node = Arc::clone(&self.node);
        self.may_decide = node.may_decide();
        let now = node.not_before(now);
        // A charge made by another node could not be given back here.
        let ask = ask.forwarding(Forwarding::Never);
        // Held until the charge is remembered: a repeated request meanwhile finds the record.
        let mut records = node.charges.lock(recording.id);
        if let Some(record) = record_of_repeat(&records, recording.id, node.charges.keep(), now) {
            return self.answer_repeat(record, recording, now);
        }
        let has_disk = node.has_disk();
        if let Some(reason) = cannot_remember(&node, &records, recording, has_disk) {
            self.check_seldom(request, now, Ask { charge: false, ..ask });
            self.answer.deny_for_now(reason);
            return Ok(&self.answer);
        }
        if let Some(reason) = self.cannot_take_slots(&node, &records, request, now, recording) {
            self.answer.deny_for_now(reason);
            return Ok(&self.answer);
        }
        if records.is_left_open(recording.id) {
            node.lapse(&mut records, recording.id, now);
        }
        let mut cost = request.cost;
        if recording.is_lease() {
            cost = self.check_at_most(request, now, Ask { holds: true, ..ask });
        } else {
            self.check_seldom(request, now, ask);
        }
        // Charges of a denied request are not part of an answer that may be repeated, unless they were spent.
        let stands = self.answer.allowed || ask.overdraft == Overdraft::Spent;
        if stands && self.answer.limits.iter().any(|limit| limit.is_charged) {
            if self.holds_units() && is_full(&node, &records, recording) {
                self.undo_held(cost, recording);
            } else {
                self.remember(&mut records, recording, cost, has_disk);
            }
        }
        Ok(&self.answer)
    }

    /// Answers a repeated request by the record of its charge.
    fn answer_repeat(
        &mut self,
        record: &Record,
        recording: &Recording,
        now: Now,
    ) -> Result<&Answer, IdReused> {
        if !record.is_of(recording) || record.came_back() {
            return Err(IdReused);
        }
        self.load_catalogue();
        record.answer(&mut self.answer, &self.catalogue, record.charged_as(recording, true, now));
        let is_written = self.node.is_committed(record.batch()) || !recording.is_repeatable;
        self.answer.after_batch = if is_written { 0 } else { record.batch() };
        Ok(&self.answer)
    }

    /// Why the slots that a request would take cannot be remembered, or not as they must be; `None` if they
    /// can, or if the request takes none.
    fn cannot_take_slots(
        &mut self,
        node: &Node,
        records: &Records,
        request: &Request<'_>,
        now: Now,
        recording: &Recording,
    ) -> Option<Reason> {
        self.load_catalogue();
        let is_full = || is_full(node, records, recording);
        if !self.catalogue.takes_slots(request.domain) || !(recording.is_lease() || is_full()) {
            return None;
        }
        // The requests that a lease lets pass would be under way, and nobody would know of them.
        self.counts_under_way(request, now).then_some(Reason::Overflow)
    }

    /// Whether the request would take slots, if it passes.
    pub fn counts_under_way(&mut self, request: &Request<'_>, now: Now) -> bool {
        self.check_seldom(request, now, Ask::PEEK);
        let limits = self.answer.limits.iter().filter(|limit| limit.outcome != Outcome::Unlimited);
        limits.into_iter().any(|limit| self.catalogue.limits[limit.limit as usize].limit.is_concurrent())
    }

    /// Remembers the charge that was just made for a request of this cost. Without a disk, a reply does not
    /// wait for its record.
    pub(super) fn remember(
        &mut self,
        records: &mut Records,
        recording: &Recording,
        cost: u64,
        has_disk: bool,
    ) {
        let node = &self.node;
        // The charge was made at this time.
        let now = self.went_by;
        let is_lease = recording.is_lease();
        let mut recording = *recording;
        if let Some(reserve) = recording.reserve.as_mut().filter(|_| is_lease) {
            let longest_ns = longest_ns(&self.answer, &self.catalogue, node.clock_error_ns(), now);
            reserve.ttl_ns = reserve.ttl_ns.min(longest_ns);
        }
        let record = Record::new(&recording, &self.answer, &self.catalogue, cost, now);
        self.answer.charge = Some(record.charged_as(&recording, false, now));
        let row = records.put(recording.id, record);
        // Rows that nobody waits for must not pile up while the disk fails: without its row, a charge only
        // cannot be given back after a restart.
        if has_disk {
            let batch = node.push_row(row);
            records.sent_in(recording.id, batch);
            if is_lease || recording.is_repeatable {
                self.answer.after_batch = self.answer.after_batch.max(batch);
            }
        }
        let records_max = node.charges.records_max(records);
        for row in records.make_room(records_max) {
            node.push_charge(row);
        }
    }

    /// Gives the answer that another node of the region gave to the same request, as kept for others
    /// ([`crate::Node::share_answer`]). Nothing is charged. `None` if the bytes are not a valid answer.
    ///
    /// # Errors
    /// The answer belongs to another request.
    pub fn repeat(
        &mut self,
        recording: &Recording,
        kept: &[u8],
        now: Now,
    ) -> Option<Result<&Answer, IdReused>> {
        let SharedRecord { node, lapses_wall_ns, record, .. } = SharedRecord::read(kept)?;
        if !record.is_of(recording) {
            return Some(Err(IdReused));
        }
        self.may_decide = self.node.may_decide();
        let now = self.node.not_before(now);
        self.load_catalogue();
        let charged = Charged {
            by: Some(node),
            is_lease: false,
            lapses_in_ns: lapses_wall_ns.saturating_sub(now.wall_ns),
            ..record.charged_as(recording, true, now)
        };
        record.answer(&mut self.answer, &self.catalogue, charged);
        self.answer.after_batch = 0;
        Some(Ok(&self.answer))
    }

    /// As [`Asker::check`], but out of line, so that the path of ordinary checks stays in one piece.
    #[inline(never)]
    fn check_seldom(&mut self, request: &Request<'_>, now: Now, ask: Ask) -> &Answer {
        self.check_at(request, now, ask)
    }

    /// Asks for as much of a request's cost as can be spared, at least 1; returns how much that was.
    fn check_at_most(&mut self, request: &Request<'_>, now: Now, ask: Ask) -> u64 {
        let least = Request { cost: 1, ..request.clone() };
        self.check_seldom(&least, now, Ask { charge: false, ..ask });
        let enforced = self.answer.limits.iter().filter(|limit| {
            let active = &self.catalogue.limits[limit.limit as usize];
            active.limit.spec.mode.denies() && limit.outcome != Outcome::Unlimited
        });
        let spared = enforced.map(|limit| {
            let weight = self.catalogue.limits[limit.limit as usize].limit.cost.max(1);
            limit.verdict.remaining / weight / SETTINGS.decide.reserved_part
        });
        let cost = spared.min().unwrap_or(request.cost).clamp(1, request.cost.max(1));
        let most = Request { cost, ..request.clone() };
        if cost == 1 || self.check_seldom(&most, now, ask).allowed {
            if cost == 1 {
                self.check_seldom(&least, now, ask);
            }
            return cost;
        }
        // Other requests took the units first.
        self.check_seldom(&least, now, ask);
        1
    }
}

/// The record by which a repeated request is answered: the request is not charged again.
fn record_of_repeat(records: &Records, id: ChargeId, keep: Keep, now: Now) -> Option<&Record> {
    records.get(id, keep, now).filter(|_| !mutated(Mutation::RepeatChargesAgain))
}

/// Whether there is no room for one more reservation.
pub(super) fn is_full(node: &Node, records: &Records, recording: &Recording) -> bool {
    records.is_full_of_reservations(recording.owner, node.charges.records_max(records))
}

/// Why a charge cannot be remembered now as it must be; `None` if it can.
fn cannot_remember(node: &Node, records: &Records, recording: &Recording, has_disk: bool) -> Option<Reason> {
    if recording.reserve.is_some() && is_full(node, records, recording) {
        return Some(Reason::Overflow);
    }
    // The record is all that a restart knows of a lease. Nodes that share a store write no records: after a
    // restart, units leased to a client would be leased again.
    let forgets = node.leases.is_some() || (node.setup.config.durable && !has_disk);
    (recording.is_lease() && forgets).then_some(Reason::Journal)
}
