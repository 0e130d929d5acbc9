//! Requests whose charge is remembered ([`crate::charges`]).

use acequia_limits::{Mode, Now, Reason, Request};
use acequia_rights::mutation::{Mutation, mutated};

use super::{Answer, Ask, Asker, Charged, Forwarding, IdReused, Outcome, lease::longest_ns};
use crate::{
    Recording,
    charges::{ChargeId, Record, read_shared},
};

/// If less than the requested cost will do, one part in this many of what is left is reserved at a time:
/// others cannot use what one caller holds in advance.
const SPARED: u64 = 10;

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
        let node = std::sync::Arc::clone(&self.node);
        self.may_decide = node.may_decide();
        let now = node.not_before(now);
        // A charge made by another node could not be given back here.
        let ask = ask.forwarding(Forwarding::Never);
        // Held until the charge is remembered: a repeated request meanwhile finds the record.
        let mut records = node.charges.lock(recording.id);
        let reserved = |record: &Record| recording.reserve.map_or(0, |_| record.cost());
        let known = records.get(recording.id, node.charges.keep(), now);
        if let Some(record) = known.filter(|_| !mutated(Mutation::RepeatChargesAgain)) {
            if !record.is_of(recording) || record.came_back() {
                return Err(IdReused);
            }
            self.load_catalogue();
            let charged = Charged {
                id: recording.id,
                by: None,
                is_repeat: true,
                is_lease: recording.reserve.is_some_and(|reserve| reserve.at_most),
                reserved: reserved(record),
                lapses_in_ns: record.lapses_in_ns(now),
            };
            record.answer(&mut self.answer, &self.catalogue, charged);
            let is_written = node.is_committed(record.batch) || !recording.is_repeatable;
            self.answer.after_batch = if is_written { 0 } else { record.batch };
            return Ok(&self.answer);
        }
        let is_lease = recording.reserve.is_some_and(|reserve| reserve.at_most);
        // The record is all that a restart knows of a lease.
        let has_disk = node.config.durable && !node.is_journal_down();
        let is_full = recording.reserve.is_some()
            && records.is_full_of_reservations(recording.owner, node.charges.records_max(&records));
        // Nodes that share a store write no records: after a restart, units leased to a client would be
        // leased again.
        let forgets = node.leases.is_some() || (node.config.durable && !has_disk);
        if is_full || (is_lease && forgets) {
            self.check_seldom(request, now, Ask { charge: false, ..ask });
            self.answer.deny_for_now(if is_full { Reason::Overflow } else { Reason::Journal });
            return Ok(&self.answer);
        }
        if records.is_left_open(recording.id) {
            node.lapse(&mut records, recording.id, now);
        }
        let mut cost = request.cost;
        if is_lease {
            cost = self.check_at_most(request, now, Ask { holds: true, ..ask });
        } else {
            self.check_seldom(request, now, ask);
        }
        // The remembered charge was made at this time.
        let now = self.went_by;
        // Charges of a denied request are not part of an answer that may be repeated.
        if self.answer.allowed && self.answer.limits.iter().any(|limit| limit.is_charged) {
            let mut recording = *recording;
            if let Some(reserve) = recording.reserve.as_mut().filter(|_| is_lease) {
                let longest_ns = longest_ns(&self.answer, &self.catalogue, node.clock_error_ns(), now);
                reserve.ttl_ns = reserve.ttl_ns.min(longest_ns);
            }
            let record = Record::new(&recording, (&self.answer, &self.catalogue), cost, now);
            let charged = Charged {
                id: recording.id,
                by: None,
                is_repeat: false,
                is_lease,
                reserved: reserved(&record),
                lapses_in_ns: record.lapses_in_ns(now),
            };
            // Without a disk, a reply does not wait for one. A lease does, and so does not leave.
            let is_kept = is_lease || (recording.is_repeatable && has_disk);
            let row = records.put(recording.id, record);
            // Rows that nobody waits for must not pile up while the disk fails: without its row, a charge
            // only cannot be given back after a restart.
            if has_disk {
                let batch = node.push_row(row);
                records.sent_in(recording.id, batch);
                if is_kept {
                    self.answer.after_batch = self.answer.after_batch.max(batch);
                }
            }
            let records_max = node.charges.records_max(&records);
            for row in records.make_room(records_max) {
                node.push_charge(row);
            }
            self.answer.charge = Some(charged);
        }
        Ok(&self.answer)
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
        let (node, lapses_wall_ns, record) = read_shared(kept)?;
        if !record.is_of(recording) {
            return Some(Err(IdReused));
        }
        self.may_decide = self.node.may_decide();
        let now = self.node.not_before(now);
        self.load_catalogue();
        let charged = Charged {
            id: recording.id,
            by: Some(node),
            is_repeat: true,
            is_lease: false,
            reserved: recording.reserve.map_or(0, |_| record.cost()),
            lapses_in_ns: lapses_wall_ns.saturating_sub(now.wall_ns),
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
            active.limit.spec.mode == Mode::Enforce && limit.outcome != Outcome::Unlimited
        });
        let spared = enforced.map(|limit| {
            let weight = self.catalogue.limits[limit.limit as usize].limit.cost.max(1);
            limit.verdict.remaining / weight / SPARED
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

impl ChargeId {
    /// The name as text: 32 hexadecimal digits.
    pub fn to_text(self) -> String {
        format!("{:032x}", self.0)
    }

    /// The name from text; `None` if the text is not a name.
    pub fn from_text(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| is_hex).map(Self)
    }
}
