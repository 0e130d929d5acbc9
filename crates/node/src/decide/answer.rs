//! What the node answers, and how it is drawn from what each limit says.

use acequia_limits::{CellTag, Mode, Reason, Verdict};
use smallvec::SmallVec;

use super::HITS_INLINE;
use crate::{
    Catalogue, ChargeId,
    forwards::{RemoteCharge, Source},
};

/// Nanoseconds to wait while the journal cannot be written: it is tried again about as often.
pub(super) const JOURNAL_RETRY_NS: u64 = 1_000_000_000;

/// What the node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// May it pass?
    pub allowed: bool,
    /// Why.
    pub reason: Reason,
    /// The limit that decided, as a place in `limits`: the one that denied with the longest wait,
    /// or else the one with the least left.
    pub decisive: Option<usize>,
    /// Nanoseconds until the request would fit if nothing else is charged; 0 where allowed,
    /// [`acequia_limits::verdict::NEVER`] where no wait helps.
    pub retry_after_ns: u64,
    /// Nanoseconds that an allowed request shall wait before going on.
    pub delay_ns: u64,
    /// Every limit that matched, by cell.
    pub limits: SmallVec<[LimitAnswer; HITS_INLINE]>,
    /// The descriptors, as a set of bits, that no limit counted or exempted.
    pub unmatched: u64,
    /// The batch that must be on disk before this answer leaves; 0 for none.
    pub after_batch: u64,
    /// How the charge is remembered, if it is.
    pub charge: Option<Charged>,
    /// What was drawn for it, while it is not known whether it passes by that.
    pub(super) remote_charges: Vec<RemoteCharge>,
}

/// A charge that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// Its name.
    pub id: ChargeId,
    /// Which other node of the region charged it, by its number; nothing where this one did.
    pub by: Option<u16>,
    /// Whether it was charged before, and nothing was now.
    pub is_repeat: bool,
    /// Whether it may be spent without asking again until it lapses.
    pub is_lease: bool,
    /// The cost that was reserved; 0 where none was.
    pub reserved: u64,
    /// Nanoseconds until the reservation lapses; 0 where it is none, or has ended.
    pub lapses_in_ns: u64,
}

/// Another question was asked under the same name before, or what was charged under it was given back since: nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdReused;

/// What one limit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitAnswer {
    /// Which limit, in [`Catalogue::limits`].
    pub limit: u32,
    /// Which of its cells.
    pub tag: CellTag,
    /// What its algorithm says of the cost. `remaining` is after the request: less its cost only
    /// where that was charged. It denies where the outcome allows for want of a store ([`Reason::Open`]).
    pub verdict: Verdict,
    /// What that means for the request.
    pub outcome: Outcome,
    /// Why.
    pub reason: Reason,
    /// The descriptors that hit this cell, as a set of bits.
    pub descriptors: u64,
    /// Units asked for, over all those descriptors.
    pub units: u64,
    /// The budget of this cell: its override's where it has one.
    pub budget: u64,
    /// For how long units that it was denied for want of may still come from other regions, in nanoseconds; 0 for not at
    /// all.
    pub hope_ns: u64,
    /// Whether it was charged.
    pub is_charged: bool,
    /// The node of the region that may have what it lacks, if that may be drawn ([`crate::Node::draw`]).
    pub(crate) drawn_of: Option<Source>,
    /// Whether that was drawn, and is charged there.
    pub is_drawn: bool,
    /// The class of consumers, by its place in [`acequia_limits::Limit::classes`], where the limit has classes.
    pub class: Option<u8>,
    /// Which of the limit's numbers this cell has.
    pub(crate) numbers: u16,
}

/// What a limit's verdict means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It may pass.
    Allow,
    /// It may not.
    Deny,
    /// It might not, but the limit only watches.
    ShadowDeny,
    /// It is exempt.
    Unlimited,
}

impl Answer {
    /// Turns a look into a denial: there is no room for what would have to be remembered.
    pub(super) fn deny_for_now(&mut self, reason: Reason) {
        self.allowed = false;
        self.reason = reason;
        self.decisive = None;
        self.retry_after_ns = JOURNAL_RETRY_NS;
        self.delay_ns = 0;
    }

    /// Turns it into a denial, because what it charged did not reach the disk in time. The charge
    /// stands: whether it is on disk is not known.
    pub fn deny_unwritten(&mut self, catalogue: &Catalogue) {
        let is_lease = self.charge.is_some_and(|charge| charge.is_lease);
        for limit in &mut self.limits {
            let active = &catalogue.limits[limit.limit as usize];
            let is_kept = active.durable || is_lease;
            if is_kept && limit.outcome == Outcome::Allow && active.limit.spec.mode == Mode::Enforce {
                limit.outcome = Outcome::Deny;
                limit.reason = Reason::Journal;
                limit.verdict = denied(limit.verdict, 0, JOURNAL_RETRY_NS);
            }
        }
        self.charge = None;
        decide(self, catalogue);
    }
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            allowed: true,
            reason: Reason::NoMatch,
            decisive: None,
            retry_after_ns: 0,
            delay_ns: 0,
            limits: SmallVec::new(),
            unmatched: 0,
            after_batch: 0,
            charge: None,
            remote_charges: Vec::new(),
        }
    }
}

/// Whether a request would pass but for one limit. Its candidate is charged then, as it would be in its place.
#[cold]
pub(super) fn denied_only_by(answer: &Answer, live: u32) -> bool {
    answer.limits.iter().all(|limit| limit.outcome != Outcome::Deny || limit.limit == live)
}

/// As [`decide`], where one limit has spoken.
#[inline]
pub(super) fn decide_one(answer: &mut Answer, catalogue: &Catalogue) {
    let limit = &answer.limits[0];
    let enforced = || catalogue.limits[limit.limit as usize].limit.spec.mode == Mode::Enforce;
    answer.allowed = limit.outcome != Outcome::Deny;
    answer.decisive = (!answer.allowed || (limit.outcome == Outcome::Allow && enforced())).then_some(0);
    answer.reason = if answer.allowed { Reason::WithinLimit } else { limit.reason };
    answer.retry_after_ns = if answer.allowed { 0 } else { limit.verdict.retry_after_ns };
    answer.delay_ns = if answer.allowed && enforced() { limit.verdict.delay_ns } else { 0 };
}

/// Draws the verdict from what the limits say.
pub(super) fn decide(answer: &mut Answer, catalogue: &Catalogue) {
    let mut denied: Option<usize> = None;
    let mut least: Option<usize> = None;
    let (mut exempt, mut delay_ns) = (true, 0);
    let limits = &answer.limits;
    for (number, limit) in limits.iter().enumerate() {
        let LimitAnswer { verdict, outcome, .. } = limit;
        let enforced = || catalogue.limits[limit.limit as usize].limit.spec.mode == Mode::Enforce;
        let longer = |than: usize| verdict.retry_after_ns > limits[than].verdict.retry_after_ns;
        let less = |than: usize| verdict.remaining < limits[than].verdict.remaining;
        exempt &= *outcome == Outcome::Unlimited;
        if verdict.delay_ns > delay_ns && enforced() {
            delay_ns = verdict.delay_ns;
        }
        if *outcome == Outcome::Deny && denied.is_none_or(longer) {
            denied = Some(number);
        }
        if *outcome == Outcome::Allow && least.is_none_or(less) && enforced() {
            least = Some(number);
        }
    }
    answer.allowed = denied.is_none();
    answer.decisive = denied.or(least);
    answer.reason = match denied {
        Some(number) => limits[number].reason,
        None if limits.is_empty() => Reason::NoMatch,
        None if exempt => Reason::Unlimited,
        None => Reason::WithinLimit,
    };
    answer.retry_after_ns = denied.map_or(0, |number| limits[number].verdict.retry_after_ns);
    answer.delay_ns = if answer.allowed { delay_ns } else { 0 };
}

/// Whether what denies is want of units, which may come from other regions.
pub(super) const fn is_short(reason: Reason) -> bool {
    matches!(reason, Reason::OverLimit | Reason::ClassReserve)
}

/// What would be allowed, denied for another reason than the limit itself.
pub(super) fn denied(verdict: Verdict, units: u64, retry_after_ns: u64) -> Verdict {
    Verdict { allowed: false, remaining: verdict.remaining + units, retry_after_ns, delay_ns: 0, ..verdict }
}
