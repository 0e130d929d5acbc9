//! From an answer to what goes out: shared by every protocol.

use acequia_api::{
    acequia::v1 as api,
    wire::{ChargeOut, CheckOut, LimitOut},
};
use acequia_limits::{Reason, time::ms_rounded_up, verdict::NEVER};
use acequia_node::{Answer, Catalogue, LimitAnswer, Outcome};
use smallvec::SmallVec;

use crate::charges::Names;

/// A wait in milliseconds, rounded up; nothing where there is none or no wait helps.
pub(crate) fn retry_after_ms(allowed: bool, retry_after_ns: u64) -> Option<u64> {
    (!allowed && retry_after_ns != NEVER).then(|| ms_rounded_up(retry_after_ns))
}

/// The name of a limit.
pub(crate) fn name<'c>(limit: &LimitAnswer, catalogue: &'c Catalogue) -> &'c str {
    &catalogue.limits[limit.limit as usize].limit.spec.name
}

/// The class of consumers that a request counts in, where the limit has classes.
pub(crate) fn class<'c>(limit: &LimitAnswer, catalogue: &'c Catalogue) -> Option<&'c str> {
    let classes = catalogue.limits[limit.limit as usize].limit.classes.as_ref()?;
    Some(&classes.all[usize::from(limit.class?)].name)
}

/// Makes the message of our own API, and hands it to `write`.
pub(crate) fn with_check_out<R>(
    answer: &Answer,
    catalogue: &Catalogue,
    (detail, names): (bool, &Names),
    write: impl FnOnce(&CheckOut<'_>) -> R,
) -> R {
    let charge_id = answer.charge.map(|charged| names.text(charged));
    let charge = answer.charge.zip(charge_id.as_deref()).map(|(charged, charge_id)| ChargeOut {
        charge_id,
        is_repeat: charged.is_repeat,
        charged: charged.reserved,
        lapses_in_ms: charged.lapses_in_ns / 1_000_000,
    });
    let decisive = answer.decisive.map(|number| &answer.limits[number]);
    let mut sets: SmallVec<[SmallVec<[u32; 4]>; 4]> = SmallVec::new();
    let mut limits: SmallVec<[LimitOut<'_>; 4]> = SmallVec::new();
    if detail || !answer.allowed {
        sets.extend(answer.limits.iter().map(|limit| members(limit.descriptors)));
        let outs = answer.limits.iter().zip(&sets);
        limits.extend(outs.map(|(limit, descriptors)| limit_out(limit, descriptors, catalogue)));
    }
    write(&CheckOut {
        allowed: answer.allowed,
        limit: decisive.map_or("", |limit| name(limit, catalogue)),
        remaining: decisive.map(|limit| limit.verdict.remaining),
        retry_after_ms: retry_after_ms(answer.allowed, answer.retry_after_ns),
        delay_ms: ms_rounded_up(answer.delay_ns),
        reason: reason(answer.reason),
        limits: &limits,
        charge,
    })
}

fn limit_out<'a>(limit: &LimitAnswer, descriptors: &'a [u32], catalogue: &'a Catalogue) -> LimitOut<'a> {
    let active = &catalogue.limits[limit.limit as usize].limit;
    LimitOut {
        name: &active.spec.name,
        budget: limit.budget,
        remaining: limit.verdict.remaining,
        retry_after_ms: retry_after_ms(limit.verdict.allowed, limit.verdict.retry_after_ns),
        reset_after_ms: ms_rounded_up(limit.verdict.reset_after_ns),
        delay_ms: ms_rounded_up(limit.verdict.delay_ns),
        outcome: outcome(limit.outcome),
        reason: reason(limit.reason),
        descriptors,
        cost: limit.units,
        algorithm: active.algorithm.name(),
        class: class(limit, catalogue).unwrap_or(""),
    }
}

/// The places of the bits in a set.
pub(crate) fn members(set: u64) -> SmallVec<[u32; 4]> {
    (0..u64::BITS).filter(|bit| set >> bit & 1 == 1).collect()
}

pub(crate) const fn reason(reason: Reason) -> api::Reason {
    match reason {
        Reason::WithinLimit => api::Reason::WithinLimit,
        Reason::NoMatch => api::Reason::NoMatch,
        Reason::Unlimited => api::Reason::Unlimited,
        Reason::OverLimit => api::Reason::OverLimit,
        Reason::CostTooHigh => api::Reason::CostTooHigh,
        Reason::Restarted => api::Reason::Restarted,
        Reason::Overflow => api::Reason::Overflow,
        Reason::Journal => api::Reason::Journal,
        Reason::NoCatalogue => api::Reason::NoCatalogue,
        Reason::RestoredDisk => api::Reason::RestoredDisk,
        Reason::ClassReserve => api::Reason::ClassReserve,
        Reason::Throttled => api::Reason::Throttled,
    }
}

pub(crate) const fn outcome(outcome: Outcome) -> api::Outcome {
    match outcome {
        Outcome::Allow => api::Outcome::Allow,
        Outcome::Deny => api::Outcome::Deny,
        Outcome::ShadowDeny => api::Outcome::ShadowDeny,
        Outcome::Unlimited => api::Outcome::Unlimited,
    }
}

/// The word for an outcome in JSON.
pub(crate) const fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow => "allow",
        Outcome::Deny => "deny",
        Outcome::ShadowDeny => "shadow-deny",
        Outcome::Unlimited => "unlimited",
    }
}
