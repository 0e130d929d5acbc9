//! Limits in headers, in the dialects that clients know.
//!
//! - `draft-11`: draft-ietf-httpapi-ratelimit-headers-11 (May 2026), structured fields (RFC 9651):
//!   every enforced limit, with `r` what is left here and `t` the seconds until more is. `qu` is the limit's
//!   `unit`.
//! - `triple`: `RateLimit-Limit`, `-Remaining`, `-Reset`, as drafts up to 06 had them.
//! - `x-ratelimit`, `x-ratelimit-epoch`: these three under older names; `Reset` is seconds to go, or the
//!   time of day as seconds since the epoch.
//!
//! All but `draft-11` tell of one limit: the one that decided ([`Answer::decisive`]).
//!
//! `Retry-After` (RFC 9110, section 10.2.3) goes with every denial that a wait can mend.

use acequia_limits::{Limit, Now, time::seconds_rounded_up, verdict::NEVER};
use acequia_node::{Answer, Catalogue, LimitAnswer, Outcome};

use crate::{config::Dialect, respond::name};

/// A header of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// In lower case.
    pub name: &'static str,
    /// Visible ASCII.
    pub value: String,
}

/// `Retry-After` and the limits in each dialect.
pub fn headers(dialects: &[Dialect], answer: &Answer, catalogue: &Catalogue, now: Now) -> Vec<Header> {
    let mut headers = Vec::new();
    if !answer.allowed && answer.retry_after_ns != NEVER {
        let value = seconds_rounded_up(answer.retry_after_ns).to_string();
        headers.push(Header { name: "retry-after", value });
    }
    let Some(decisive) = answer.decisive.map(|number| &answer.limits[number]) else { return headers };
    for dialect in dialects {
        match dialect {
            Dialect::Draft11 => headers.extend(draft_11(answer, catalogue, now)),
            Dialect::Triple => headers.extend(triple(
                ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
                decisive,
                wait_s(decisive),
            )),
            Dialect::XRatelimit => headers.extend(triple(X_RATELIMIT, decisive, wait_s(decisive))),
            Dialect::XRatelimitEpoch => {
                let reset = seconds_rounded_up(now.wall_ns.saturating_add(wait_ns(decisive)));
                headers.extend(triple(X_RATELIMIT, decisive, reset));
            }
        }
    }
    headers
}

const X_RATELIMIT: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

fn triple(names: [&'static str; 3], limit: &LimitAnswer, reset: u64) -> [Header; 3] {
    let values = [limit.budget, limit.verdict.remaining, reset];
    std::array::from_fn(|i| Header { name: names[i], value: values[i].to_string() })
}

fn draft_11(answer: &Answer, catalogue: &Catalogue, now: Now) -> [Header; 2] {
    let enforced = answer.limits.iter().filter(|limit| {
        let mode = catalogue.limits[limit.limit as usize].limit.spec.mode;
        mode.denies() && limit.outcome != Outcome::Unlimited
    });
    let (mut policies, mut limits) = (Vec::new(), Vec::new());
    for limit in enforced {
        // Names have no quotes and no backslashes, so they are structured strings as they stand.
        let name = name(limit, catalogue);
        let active = &catalogue.limits[limit.limit as usize].limit;
        let window = match active.is_concurrent() {
            true => String::new(),
            false => {
                let period_ns = active.algorithm.open_period_ns(now.wall_ns);
                format!(";w={}", seconds_rounded_up(period_ns).max(1))
            }
        };
        // Units are tokens of structured fields, so they have no quotes and no backslashes either.
        let unit = quota_unit(active).map(|unit| format!(";qu=\"{unit}\"")).unwrap_or_default();
        policies.push(format!("\"{name}\";q={}{unit}{window}", limit.budget));
        limits.push(format!("\"{name}\";r={};t={}", limit.verdict.remaining, wait_s(limit)));
    }
    [
        Header { name: "ratelimit-policy", value: policies.join(", ") },
        Header { name: "ratelimit", value: limits.join(", ") },
    ]
}

/// The quota unit in the words of the draft, which registers `requests`, `content-bytes` and
/// `concurrent-requests`; `None` for its default, `requests`.
fn quota_unit(limit: &Limit) -> Option<&str> {
    match limit.unit() {
        Some("requests") | None => limit.is_concurrent().then_some("concurrent-requests"),
        unit => unit,
    }
}

/// Seconds until a denied request may come again. For an allowed one, and if no wait helps: until everything is back.
fn wait_s(limit: &LimitAnswer) -> u64 {
    seconds_rounded_up(wait_ns(limit))
}

fn wait_ns(limit: &LimitAnswer) -> u64 {
    let verdict = &limit.verdict;
    let retry = !verdict.allowed && verdict.retry_after_ns != NEVER;
    if retry { verdict.retry_after_ns } else { verdict.reset_after_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limits_unit_is_the_drafts_quota_unit() {
        let bucket = r#""token_bucket": {"rate": "1/s", "burst": 3}"#;
        let slots = r#""concurrent": {"limit": 3, "ttl": "10s"}"#;
        for (counts, unit, written) in [
            (bucket, None, None),
            (bucket, Some("requests"), None),
            (bucket, Some("content-bytes"), Some("content-bytes")),
            (bucket, Some("usd-micro"), Some("usd-micro")),
            (slots, None, Some("concurrent-requests")),
            (slots, Some("requests"), Some("concurrent-requests")),
            (slots, Some("gpus"), Some("gpus")),
        ] {
            let unit = unit.map(|unit| format!(r#""unit": "{unit}", "#)).unwrap_or_default();
            let spec = format!(r#"{{"name": "l", "domain": "shop", {unit}{counts}}}"#);
            let limit = Limit::new(serde_json::from_str(&spec).expect("a spec")).expect("a limit");
            assert_eq!(quota_unit(&limit), written, "{spec}");
        }
    }
}
