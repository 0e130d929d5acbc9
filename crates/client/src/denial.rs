//! Turns denials into HTTP responses and gRPC statuses.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header::RETRY_AFTER};
use tonic::{Code, Status, metadata::MetadataValue};
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt as _};

use crate::{CheckResponse, LimitResult, Outcome, Reason, settings::SETTINGS};

/// The metadata that tells a gRPC client when to retry (gRFC A6): milliseconds as text, or -1 for never.
const PUSHBACK: &str = "grpc-retry-pushback-ms";
/// The largest value that a client reads there.
const PUSHBACK_MS_MAX: u64 = i32::MAX as u64;

/// A denial as a gRPC status, for a handler that asks by itself: `RESOURCE_EXHAUSTED`. The status has
/// `google.rpc.RetryInfo` if waiting helps, and `google.rpc.QuotaFailure` with the limits that deny (eight
/// at most). The status also has the pushback that makes gRPC's own clients retry no sooner, or not at all
/// (gRFC A6). If nobody can decide (`on_store_loss: closed`), the status is `UNAVAILABLE`.
///
/// The status tells the caller the limits' names and budgets.
pub fn denied_status(answer: &CheckResponse) -> Status {
    let what = if answer.limit.is_empty() { "a limit".to_owned() } else { format!("limit {}", answer.limit) };
    let message = format!("{what}: {}", in_words(answer.reason()));
    let retry_after = answer.retry_after_ms.map(Duration::from_millis);
    if is_undecided(answer) {
        return with_details(Code::Unavailable, &message, retry_after, Vec::new());
    }
    exhausted(&message, retry_after, violations(answer))
}

/// Whether the denial says that nobody can decide, rather than that the request asks too much. A closed
/// limit answers so during a store outage.
pub(crate) fn is_undecided(answer: &CheckResponse) -> bool {
    answer.reason() == Reason::Unavailable
}

/// A guard's denial, in the form of [`denied_status`].
pub(crate) fn guarded_status(retry_after: Option<Duration>) -> Status {
    exhausted("the rate limiter does not answer, and too much is asked meanwhile", retry_after, Vec::new())
}

/// The status of an allowed request whose delay is longer than it may wait.
pub(crate) fn delayed_status(answer: &CheckResponse) -> Status {
    let message = format!("limit {}: too many are waiting", answer.limit);
    exhausted(&message, Some(Duration::from_millis(answer.delay_ms)), Vec::new())
}

/// The status of a request that nobody has decided.
pub(crate) fn unavailable_status() -> Status {
    Status::unavailable("the rate limiter does not answer")
}

fn exhausted(message: &str, retry_after: Option<Duration>, violations: Vec<QuotaViolation>) -> Status {
    with_details(Code::ResourceExhausted, message, retry_after, violations)
}

fn with_details(
    code: Code,
    message: &str,
    retry_after: Option<Duration>,
    violations: Vec<QuotaViolation>,
) -> Status {
    let mut details = ErrorDetails::new();
    if let Some(retry_after) = retry_after {
        details.set_retry_info(Some(retry_after));
    }
    if !violations.is_empty() {
        details.set_quota_failure(violations);
    }
    let mut status = Status::with_error_details(code, message, details);
    push_back(&mut status, retry_after);
    status
}

/// Tells a client when it may retry, or that it must not.
pub(crate) fn push_back(status: &mut Status, retry_after: Option<Duration>) {
    let pushback = match retry_after {
        Some(retry_after) => MetadataValue::from(whole_ms(retry_after).min(PUSHBACK_MS_MAX)),
        None => MetadataValue::from(-1),
    };
    status.metadata_mut().insert(PUSHBACK, pushback);
}

fn violations(answer: &CheckResponse) -> Vec<QuotaViolation> {
    let denying = answer
        .limits
        .iter()
        .filter(|limit| limit.outcome() == Outcome::Deny)
        .take(SETTINGS.answer.violations_max);
    let mut violations: Vec<_> = denying.map(violation).collect();
    if violations.is_empty() && !answer.limit.is_empty() {
        violations.push(QuotaViolation::new(&answer.limit, in_words(answer.reason())));
    }
    violations
}

fn violation(limit: &LimitResult) -> QuotaViolation {
    let mut violation = QuotaViolation::new(&limit.name, in_words(limit.reason()));
    violation.quota_id.clone_from(&limit.name);
    violation.quota_value = i64::try_from(limit.budget).unwrap_or(i64::MAX);
    violation
}

fn in_words(reason: Reason) -> &'static str {
    match reason {
        Reason::CostTooHigh => "the request weighs more than it can ever hold",
        Reason::ClassReserve => "what is left is kept for others",
        Reason::Throttled => "most of it is used, and it slows down",
        Reason::Restarted | Reason::Journal | Reason::Clock | Reason::NoCatalogue | Reason::RestoredDisk => {
            "nothing can be spent here for now"
        }
        Reason::Unavailable => "nobody can decide for now",
        _ => "too little is left",
    }
}

/// The response 429, with the time to come back, in whole seconds.
pub(crate) fn too_many<B: Default>(retry_after: Option<Duration>) -> Response<B> {
    come_back(StatusCode::TOO_MANY_REQUESTS, retry_after)
}

/// A denial as an HTTP response.
pub(crate) fn denied_response<B: Default>(answer: &CheckResponse) -> Response<B> {
    let code =
        if is_undecided(answer) { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::TOO_MANY_REQUESTS };
    come_back(code, answer.retry_after_ms.map(Duration::from_millis))
}

fn come_back<B: Default>(code: StatusCode, retry_after: Option<Duration>) -> Response<B> {
    let mut response = empty(code);
    if let Some(retry_after) = retry_after {
        let seconds = whole_ms(retry_after).div_ceil(1_000).max(1);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub(crate) fn empty<B: Default>(code: StatusCode) -> Response<B> {
    let mut response = Response::new(B::default());
    *response.status_mut() = code;
    response
}

/// Whole milliseconds, rounded up: a caller that comes back too early comes in vain.
pub(crate) fn whole_ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushback(status: &Status) -> &str {
        status.metadata().get(PUSHBACK).expect("pushback").to_str().expect("text")
    }

    #[test]
    fn a_denial_says_when_to_retry_and_which_limits_deny() {
        let limit = |name: &str, outcome: Outcome, budget| LimitResult {
            name: name.to_owned(),
            outcome: outcome.into(),
            reason: Reason::OverLimit.into(),
            budget,
            ..LimitResult::default()
        };
        let answer = CheckResponse {
            limit: "search".to_owned(),
            reason: Reason::OverLimit.into(),
            retry_after_ms: Some(1_500),
            limits: vec![
                limit("search", Outcome::Deny, 10),
                limit("per-key", Outcome::Allow, 60),
                limit("vast", Outcome::Deny, u64::MAX),
            ],
            ..CheckResponse::default()
        };
        let status = denied_status(&answer);
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "limit search: too little is left");
        assert_eq!(pushback(&status), "1500");
        let retry = status.get_details_retry_info().expect("RetryInfo");
        assert_eq!(retry.retry_delay, Some(Duration::from_millis(1_500)));
        let failure = status.get_details_quota_failure().expect("QuotaFailure");
        let named: Vec<_> =
            failure.violations.iter().map(|denied| (&*denied.quota_id, denied.quota_value)).collect();
        assert_eq!(named, [("search", 10), ("vast", i64::MAX)]);
    }

    #[test]
    fn a_denial_that_will_never_pass_forbids_retries() {
        let answer = CheckResponse {
            limit: "per-key".to_owned(),
            reason: Reason::CostTooHigh.into(),
            ..CheckResponse::default()
        };
        let status = denied_status(&answer);
        assert_eq!(pushback(&status), "-1");
        assert!(status.get_details_retry_info().is_none());
        let failure = status.get_details_quota_failure().expect("QuotaFailure");
        assert_eq!(failure.violations[0].subject, "per-key");
        // An answer that names no limit has no details.
        assert!(denied_status(&CheckResponse::default()).get_details_quota_failure().is_none());
    }

    #[test]
    fn a_denial_for_a_lost_store_is_unavailable_not_over_limit() {
        let answer = CheckResponse {
            limit: "per-key".to_owned(),
            reason: Reason::Unavailable.into(),
            retry_after_ms: Some(1_000),
            ..CheckResponse::default()
        };
        let status = denied_status(&answer);
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unavailable, "limit per-key: nobody can decide for now")
        );
        assert_eq!(pushback(&status), "1000");
        assert!(status.get_details_quota_failure().is_none());
        let response = denied_response::<()>(&answer);
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers().get(RETRY_AFTER).map(HeaderValue::as_bytes), Some(&b"1"[..]));
        let over = CheckResponse { reason: Reason::OverLimit.into(), ..answer };
        assert_eq!(denied_response::<()>(&over).status(), StatusCode::TOO_MANY_REQUESTS);
    }

    #[test]
    fn waits_and_violations_beyond_their_bounds_are_cut() {
        let limit = LimitResult { outcome: Outcome::Deny.into(), ..LimitResult::default() };
        let answer = CheckResponse {
            retry_after_ms: Some(u64::MAX),
            limits: vec![limit; 1_000],
            ..CheckResponse::default()
        };
        let status = denied_status(&answer);
        assert_eq!(pushback(&status), i32::MAX.to_string());
        assert_eq!(
            status.get_details_quota_failure().expect("QuotaFailure").violations.len(),
            SETTINGS.answer.violations_max
        );
    }

    #[test]
    fn retry_after_is_rounded_up_to_seconds() {
        for (wait, expected) in [
            (Some(Duration::ZERO), Some("1")),
            (Some(Duration::from_nanos(1)), Some("1")),
            (Some(Duration::from_millis(1_001)), Some("2")),
            (Some(Duration::MAX), Some("18446744073709552")),
            (None, None),
        ] {
            let response = too_many::<()>(wait);
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            let header = response.headers().get(RETRY_AFTER).map(|value| value.to_str().expect("text"));
            assert_eq!(header, expected, "{wait:?}");
        }
    }
}
