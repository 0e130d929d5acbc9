//! A question whose charge is remembered ([`crate::charges`]).

use acequia_limits::{Mode, Now, Reason, Request};
use acequia_rights::mutation::{Mutation, mutated};

use super::{Answer, Ask, Asker, Charged, Forwarding, IdReused, Outcome, lease::longest_ns};
use crate::{
    Recording,
    charges::{ChargeId, Record, read_shared},
};

/// Of what is left, one part in so many is reserved at a time where less than was asked for will do: what one caller holds in
/// advance others do not have.
const SPARED: u64 = 10;

impl Asker {
    /// May it pass, and what it is charged is remembered: the same question under the same name gets the same answer, and is
    /// charged once.
    ///
    /// # Errors
    /// Another question was asked under that name, or what was charged under it was given back since: to say once more that it passed
    /// would let it pass uncharged. Nothing is charged.
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
        // What is charged elsewhere could not be given back here.
        let ask = ask.forwarding(Forwarding::Never);
        // Held until the charge is remembered: whoever asks the same meanwhile finds it.
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
        // Of nodes that share a store none writes records: what a client had leased would be given again after a restart.
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
        // What is remembered was charged then.
        let now = self.went_by;
        // What a denial was charged is no part of an answer that is to be repeated.
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
            // Without a disk a reply does not wait for it, but a lease does: it must not leave.
            let is_kept = is_lease || (recording.is_repeatable && has_disk);
            let row = records.put(recording.id, record);
            // What nobody waits for does not pile up while the disk fails: without its row a charge is only not given back after a restart.
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

    /// The answer that another node of the region gave to the same question, as it is kept for others
    /// ([`crate::Node::share_answer`]): nothing is charged. Nothing where it is none that can be read.
    ///
    /// # Errors
    /// It was another question.
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

    /// As every check, apart from those that nobody remembers: they are to stay in one piece.
    #[inline(never)]
    fn check_seldom(&mut self, request: &Request<'_>, now: Now, ask: Ask) -> &Answer {
        self.check_at(request, now, ask)
    }

    /// Asks for as much of a request's cost as can be spared, at least 1; gives how much that was.
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
        // Others were quicker.
        self.check_seldom(&least, now, ask);
        1
    }
}

impl ChargeId {
    /// As text: 32 hexadecimal digits.
    pub fn to_text(self) -> String {
        format!("{:032x}", self.0)
    }

    /// From text; nothing where it is none.
    pub fn from_text(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| is_hex).map(Self)
    }
}
