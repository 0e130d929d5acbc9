//! Makes what is sent from an answer. All protocols share this.

use acequia_api::{
    acequia::v1 as api,
    wire::{ChargeOut, CheckOut, LimitOut},
};
use acequia_limits::{Reason, time::ms_rounded_up, verdict::NEVER};
use acequia_node::{Answer, Catalogue, LimitAnswer, Outcome};
use axum::http::StatusCode;
use smallvec::SmallVec;

use crate::charges::Names;

/// A wait in milliseconds, rounded up; `None` if there is none, or if no wait helps.
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
    // An earlier answer may name a class that is gone.
    classes.all.get(usize::from(limit.class?)).map(|class| class.name.as_str())
}

/// Makes the message of our own API, and hands it to `write`.
pub(crate) fn with_check_out<R>(
    answer: &Answer,
    catalogue: &Catalogue,
    detail: bool,
    names: &Names,
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
        algorithm: active.kind(),
        class: class(limit, catalogue).unwrap_or(""),
        open_units: catalogue.limits[limit.limit as usize].open_units(),
        owed: limit.late.owed,
        unit: active.unit().unwrap_or(""),
    }
}

/// The HTTP status of a verdict. A denial has the status that the caller wants, except when nobody can
/// decide. "Too many" would be false then, and callers and proxies would blame the client and alarm nobody.
pub(crate) fn status(answer: &Answer, denied: StatusCode) -> StatusCode {
    match (answer.allowed, answer.reason) {
        (true, _) => StatusCode::OK,
        (false, Reason::Unavailable) => StatusCode::SERVICE_UNAVAILABLE,
        (false, _) => denied,
    }
}

/// The places of the bits that are set.
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
        Reason::Clock => api::Reason::Clock,
        Reason::NoCatalogue => api::Reason::NoCatalogue,
        Reason::RestoredDisk => api::Reason::RestoredDisk,
        Reason::ClassReserve => api::Reason::ClassReserve,
        Reason::Throttled => api::Reason::Throttled,
        Reason::Unavailable => api::Reason::Unavailable,
        Reason::Open => api::Reason::Open,
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

#[cfg(test)]
pub(crate) mod lost {
    //! The answer of a node in an outage of its region's store.

    use std::sync::Arc;

    use acequia_limits::{
        HashKey, Limit, Now, Request,
        limit::{LimitSpec, OnStoreLoss},
    };
    use acequia_node::{
        Answer, Ask, Catalogue, Config, Keep, Node,
        pool::{PoolReply, RegionSetup},
    };

    pub(crate) const NOW: Now = Now::at(1_800_000_000_000_000_000);

    /// The answer to one request of the limit `per-key`.
    pub(crate) fn answer(on_store_loss: OnStoreLoss) -> (Answer, Arc<Catalogue>) {
        let spec = r#"{"name": "per-key", "domain": "shop", "token_bucket": {"rate": "1/s", "burst": 3}}"#;
        let spec = LimitSpec { on_store_loss, ..serde_json::from_str(spec).expect("a limit") };
        let region = RegionSetup {
            node: 1,
            process_number: 1,
            nodes: [1, 2].into(),
            members: std::collections::BTreeMap::new(),
            allocation: 0,
            guard_percent: 10,
            clock_error_ns: 10_000_000,
            drift_ppm: 1_000,
            begun_us: NOW.wall_ns / 1_000,
            knows_from_us: None,
            is_new: false,
            rows_hold: std::collections::BTreeSet::new(),
            generations: Vec::new(),
        };
        let key = HashKey([7; 16]);
        let config = Config { key, memory_bytes: 1 << 20, durable: false, after_crash: None, home: None };
        let node = Arc::new(Node::among(config, Keep::default(), region));
        node.apply(vec![Limit::new(spec).expect("a limit")], NOW, |_| Vec::new()).expect("a catalogue");
        // Nothing answers for a second.
        let at = |ms: u64| Now {
            steady_ns: NOW.steady_ns + ms * 1_000_000,
            wall_ns: NOW.wall_ns + ms * 1_000_000,
        };
        for ms in (0..1_000).step_by(10) {
            node.tick_leases(at(ms));
            while let Some(call) = node.poll_call() {
                node.answer_call(call.id, &PoolReply::Nothing, at(ms));
            }
        }
        let mut asker = node.asker();
        let answer = asker.check(&Request::new("shop", &[]), at(1_000), Ask::CHECK).clone();
        (answer, Arc::clone(asker.catalogue()))
    }
}

#[cfg(test)]
mod tests {
    use acequia_limits::{HashKey, limit::OnStoreLoss};

    use super::{
        lost::{NOW, answer},
        *,
    };
    use crate::headers::{Header, headers};

    #[test]
    fn a_denial_for_a_lost_store_has_status_503() {
        for denied in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::FORBIDDEN] {
            let of = |on_store_loss| status(&answer(on_store_loss).0, denied);
            assert_eq!(of(OnStoreLoss::Guard), denied);
            assert_eq!(of(OnStoreLoss::Closed), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(of(OnStoreLoss::Open), StatusCode::OK);
        }
        let (answer, catalogue) = answer(OnStoreLoss::Closed);
        assert_eq!(
            headers(&[], &answer, &catalogue, NOW),
            [Header { name: "retry-after", value: "1".to_owned() }]
        );
    }

    #[test]
    fn an_answer_tells_the_units_that_passed_without_the_store() {
        for (on_store_loss, allowed, why, units) in [
            (OnStoreLoss::Guard, false, api::Reason::OverLimit, 0),
            (OnStoreLoss::Closed, false, api::Reason::Unavailable, 0),
            (OnStoreLoss::Open, true, api::Reason::Open, 1),
        ] {
            let (answer, catalogue) = answer(on_store_loss);
            let names = Names::new("eu", "eu-1", &HashKey([7; 16]), [0; 16]);
            with_check_out(&answer, &catalogue, true, &names, |out| {
                assert_eq!((out.allowed, out.reason, out.limits[0].open_units), (allowed, why, units));
            });
        }
    }
}
