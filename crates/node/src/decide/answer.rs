//! The node's answer, and how it follows from the answers of the limits.

use acequia_limits::{CellTag, Mode, Reason, Verdict};
use smallvec::SmallVec;

use super::HITS_INLINE;
use crate::{
    Catalogue, ChargeId,
    forwards::{RemoteCharge, Source},
    settings::SETTINGS,
};

/// The node's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the request may pass.
    pub allowed: bool,
    /// Why.
    pub reason: Reason,
    /// The limit that decided, as an index into `limits`: of the limits that denied, the one with the longest
    /// wait; if none denied, the one with the least left.
    pub decisive: Option<usize>,
    /// Nanoseconds until the request would fit if nothing else is charged; 0 if allowed,
    /// [`acequia_limits::verdict::NEVER`] if no wait helps.
    pub retry_after_ns: u64,
    /// Nanoseconds that an allowed request must wait before going on.
    pub delay_ns: u64,
    /// Every limit that matched, by cell.
    pub limits: SmallVec<[LimitAnswer; HITS_INLINE]>,
    /// The descriptors that no limit counted or exempted, as a set of bits.
    pub unmatched: u64,
    /// The batch that must be on disk before this answer leaves; 0 for none.
    pub after_batch: u64,
    /// How the charge is remembered, if at all.
    pub charge: Option<Charged>,
    /// Remote charges for the request, until it is known whether the request passes by them.
    pub(super) remote_charges: Vec<RemoteCharge>,
}

/// A charge that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The charge's name.
    pub id: ChargeId,
    /// The number of the other node of the region that charged; `None` if this node did.
    pub by: Option<u16>,
    /// Whether the charge was made before, and nothing is charged now.
    pub is_repeat: bool,
    /// Whether the units may be spent without asking again until the reservation lapses.
    pub is_lease: bool,
    /// The cost that was reserved; 0 if none was.
    pub reserved: u64,
    /// Nanoseconds until the reservation lapses; 0 if the charge is not a reservation, or has ended.
    pub lapses_in_ns: u64,
}

/// Another request was made under the same name before, or the charge under the name was given back since.
/// Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdReused;

/// One limit's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitAnswer {
    /// The limit, as an index into [`Catalogue::limits`].
    pub limit: u32,
    /// The limit's cell.
    pub tag: CellTag,
    /// The algorithm's verdict on the cost. `remaining` is after the request: the cost is subtracted only if
    /// charged. The verdict denies if the outcome allows because of a store outage ([`Reason::Open`]).
    pub verdict: Verdict,
    /// What the verdict means for the request.
    pub outcome: Outcome,
    /// Why.
    pub reason: Reason,
    /// The descriptors that hit this cell, as a set of bits.
    pub descriptors: u64,
    /// Units asked for, over all those descriptors.
    pub units: u64,
    /// Costs that are known last.
    pub late: LateCost,
    /// The budget of this cell, from its override if there is one.
    pub budget: u64,
    /// How long the units that were missing may still come from other regions, in nanoseconds; 0 for not at
    /// all.
    pub expected_wait_ns: u64,
    /// Whether the cell was charged.
    pub is_charged: bool,
    /// The node of the region that may have the missing units, if the charge may be forwarded
    /// ([`crate::Node::forward_charge`]).
    pub(crate) forwarded_to: Option<Source>,
    /// Whether the charge was forwarded, and is made at that node.
    pub is_forwarded: bool,
    /// The class of consumers, as an index into [`acequia_limits::Limit::classes`], if the limit has classes.
    pub class: Option<u8>,
    /// The variant of the limit that this cell has.
    pub(crate) variant: u16,
}

/// Costs that are known last: what was spent before it was asked for, and what is expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LateCost {
    /// If the units of the request are a hold, the cost that is expected, in units of a request's cost; otherwise 0.
    pub expected: u64,
    /// Units that the cell owes after the request; 0 while any are left.
    pub owed: u64,
    /// Units of the request that the cell does not record: it would owe too much
    /// ([`acequia_limits::Limit::debt_max`]).
    pub unrecorded: u64,
}

/// What a limit's verdict means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The request may pass.
    Allow,
    /// The request may not pass.
    Deny,
    /// The limit would deny the request, but only watches.
    ShadowDeny,
    /// The request is exempt.
    Unlimited,
}

impl Answer {
    /// Turns a peek into a denial: there is no room to remember the charge.
    pub(super) fn deny_for_now(&mut self, reason: Reason) {
        self.allowed = false;
        self.reason = reason;
        self.decisive = None;
        self.retry_after_ns = SETTINGS.decide.journal_retry_ns;
        self.delay_ns = 0;
    }

    /// Turns the answer into a denial, because its charge did not reach the disk in time. The charge stands,
    /// since nobody knows whether it is on disk.
    pub fn deny_unwritten(&mut self, catalogue: &Catalogue) {
        let is_lease = self.charge.is_some_and(|charge| charge.is_lease);
        for limit in &mut self.limits {
            let active = &catalogue.limits[limit.limit as usize];
            let is_kept = active.durable || is_lease;
            if is_kept && limit.outcome == Outcome::Allow && active.limit.spec.mode.denies() {
                limit.outcome = Outcome::Deny;
                limit.reason = Reason::Journal;
                limit.verdict = denied(limit.verdict, 0, SETTINGS.decide.journal_retry_ns);
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

/// Whether the request would pass but for one limit. The candidate for that limit is then charged as it would
/// be in its place.
#[cold]
pub(super) fn denied_only_by(answer: &Answer, live: u32) -> bool {
    answer.limits.iter().all(|limit| limit.outcome != Outcome::Deny || limit.limit == live)
}

/// As [`decide`], if exactly one limit has answered.
#[inline]
pub(super) fn decide_one(answer: &mut Answer, catalogue: &Catalogue) {
    let limit = &answer.limits[0];
    let enforced = || catalogue.limits[limit.limit as usize].limit.spec.mode.denies();
    answer.allowed = limit.outcome != Outcome::Deny;
    answer.decisive = (!answer.allowed || (limit.outcome == Outcome::Allow && enforced())).then_some(0);
    answer.reason = if answer.allowed { Reason::WithinLimit } else { limit.reason };
    answer.retry_after_ns = if answer.allowed { 0 } else { limit.verdict.retry_after_ns };
    answer.delay_ns = if answer.allowed && enforced() { limit.verdict.delay_ns } else { 0 };
}

/// Computes the answer from the limits' answers.
pub(super) fn decide(answer: &mut Answer, catalogue: &Catalogue) {
    let mut denied: Option<usize> = None;
    // The limit of mode `any` that denies for the shortest time.
    let mut any: Option<usize> = None;
    let mut least: Option<usize> = None;
    let (mut exempt, mut delay_ns) = (true, 0);
    let limits = &answer.limits;
    for (number, limit) in limits.iter().enumerate() {
        let LimitAnswer { verdict, outcome, .. } = limit;
        let enforced = || catalogue.limits[limit.limit as usize].limit.spec.mode.denies();
        let longer = |than: usize| verdict.retry_after_ns > limits[than].verdict.retry_after_ns;
        let less = |than: usize| verdict.remaining < limits[than].verdict.remaining;
        exempt &= *outcome == Outcome::Unlimited;
        if verdict.delay_ns > delay_ns && enforced() {
            delay_ns = verdict.delay_ns;
        }
        if *outcome == Outcome::Deny {
            if is_any(limit, catalogue) {
                // The first that allows lets the request pass.
                let is_shorter = |than: usize| verdict.retry_after_ns < limits[than].verdict.retry_after_ns;
                any = if any.is_none_or(is_shorter) { Some(number) } else { any };
            } else if denied.is_none_or(longer) {
                denied = Some(number);
            }
        }
        if *outcome == Outcome::Allow && least.is_none_or(less) && enforced() {
            least = Some(number);
        }
    }
    if let Some(number) = any.filter(|_| !limits.iter().any(|limit| passes_for_any(limit, catalogue))) {
        let is_longer =
            |than: usize| limits[number].verdict.retry_after_ns > limits[than].verdict.retry_after_ns;
        denied = denied.filter(|than| !is_longer(*than)).or(Some(number));
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

/// Whether one limit like this one is enough to pass ([`Mode::Any`]).
fn is_any(limit: &LimitAnswer, catalogue: &Catalogue) -> bool {
    catalogue.limits[limit.limit as usize].limit.spec.mode == Mode::Any
}

/// Whether the request passes by a limit of which one is enough.
fn passes_for_any(limit: &LimitAnswer, catalogue: &Catalogue) -> bool {
    limit.outcome == Outcome::Allow && is_any(limit, catalogue)
}

/// Whether the reason is a lack of units, which may come from other regions.
pub(super) const fn is_short(reason: Reason) -> bool {
    matches!(reason, Reason::OverLimit | Reason::ClassReserve)
}

/// Turns an allowing verdict into a denial for a reason other than the limit itself.
pub(super) fn denied(verdict: Verdict, units: u64, retry_after_ns: u64) -> Verdict {
    Verdict { allowed: false, remaining: verdict.remaining + units, retry_after_ns, delay_ns: 0, ..verdict }
}
