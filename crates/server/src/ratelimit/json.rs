//! `POST /json` and `GET /rlconfig`, as envoyproxy/ratelimit answers them.
//!
//! A body is a `RateLimitRequest` in the JSON of protobuf, in which a 64-bit number may be text. The answer goes
//! the way of a gRPC call, so both decide alike.

use std::{fmt::Write as _, time::Duration};

use acequia_api::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus},
    },
    r#type::v3::RateLimitUnit,
};
use acequia_limits::{Limit, Mode};
use acequia_node::Catalogue;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, json};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JsonRequest {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<JsonDescriptor>,
    #[serde(default, alias = "hits_addend", rename = "hitsAddend")]
    hits_addend: Hits,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonDescriptor {
    #[serde(default)]
    entries: Vec<JsonEntry>,
    #[serde(default, alias = "hits_addend", rename = "hitsAddend")]
    hits_addend: Option<Hits>,
    #[serde(default, alias = "is_negative_hits", rename = "isNegativeHits")]
    is_negative_hits: bool,
    limit: Option<JsonLimit>,
}

/// A limit of the request's own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonLimit {
    #[serde(default, alias = "requests_per_unit", rename = "requestsPerUnit")]
    requests_per_unit: u32,
    #[serde(default)]
    unit: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

/// A number, or a number as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hits(u64);

impl<'de> Deserialize<'de> for Hits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Hits;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of hits")
            }

            fn visit_u64<E: de::Error>(self, hits: u64) -> Result<Hits, E> {
                Ok(Hits(hits))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Hits, E> {
                text.parse().map(Hits).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonRequest {
    /// The request as a message.
    pub(crate) fn message(self) -> RateLimitRequest {
        let descriptors = self.descriptors.into_iter().map(|descriptor| RateLimitDescriptor {
            entries: descriptor
                .entries
                .into_iter()
                .map(|JsonEntry { key, value }| rate_limit_descriptor::Entry { key, value })
                .collect(),
            hits_addend: descriptor.hits_addend.map(|Hits(hits)| hits),
            is_negative_hits: descriptor.is_negative_hits,
            limit: descriptor.limit.map(|JsonLimit { requests_per_unit, unit }| {
                let unit = RateLimitUnit::from_str_name(&unit).unwrap_or_default().into();
                rate_limit_descriptor::RateLimitOverride { requests_per_unit, unit }
            }),
        });
        RateLimitRequest {
            domain: self.domain,
            descriptors: descriptors.collect(),
            hits_addend: u32::try_from(self.hits_addend.0).unwrap_or(u32::MAX),
        }
    }
}

/// An answer in JSON: fields that are 0 are left out.
pub(crate) fn answer_json(answer: &RateLimitResponse) -> Value {
    let statuses: Vec<Value> = answer.statuses.iter().map(status_json).collect();
    json!({ "overallCode": code(answer.overall_code()), "statuses": statuses })
}

fn code(code: Code) -> &'static str {
    code.as_str_name()
}

fn status_json(status: &DescriptorStatus) -> Value {
    let mut fields = Map::new();
    fields.insert("code".to_owned(), code(status.code()).into());
    if let Some(limit) = &status.current_limit {
        let mut shown = Map::new();
        if !limit.name.is_empty() {
            shown.insert("name".to_owned(), limit.name.clone().into());
        }
        if limit.requests_per_unit > 0 {
            shown.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
        }
        shown.insert("unit".to_owned(), limit.unit().as_str_name().into());
        fields.insert("currentLimit".to_owned(), shown.into());
    }
    if status.limit_remaining > 0 {
        fields.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(until) = &status.duration_until_reset {
        let until = Duration::try_from(*until).unwrap_or_default();
        // Whoever waits for whole seconds comes back after the edge.
        fields.insert("durationUntilReset".to_owned(), format!("{}s", until.as_secs_f64().ceil()).into());
    }
    fields.into()
}

/// The limits with paths, a line each.
pub(crate) fn config_text(catalogue: &Catalogue) -> String {
    let mut text = String::new();
    let shown = catalogue.limits.iter().map(|active| &active.limit);
    for limit in shown.filter(|limit| limit.path.is_some() && limit.unlimited.is_empty()) {
        if limit.spec.mode != Mode::Off {
            let is = |mode| limit.spec.mode == mode;
            let (budget, unit) = (limit.algorithm.budget(), unit_of(limit));
            let (key, shadow, quota) = (stat_key(limit), is(Mode::Shadow), is(Mode::Any));
            let _ = writeln!(
                text,
                "{key}: unit={unit} requests_per_unit={budget}, shadow_mode: {shadow}, quota_mode: {quota}"
            );
        }
    }
    text
}

fn unit_of(limit: &Limit) -> &'static str {
    match limit.algorithm.period_ns() / 1_000_000_000 {
        1 => "SECOND",
        60 => "MINUTE",
        3_600 => "HOUR",
        86_400 => "DAY",
        604_800 => "WEEK",
        2_592_000 => "MONTH",
        31_536_000 => "YEAR",
        _ => "UNKNOWN",
    }
}

/// The name that the service has for a limit in its metrics and its config: `domain.key_value.key`.
pub(crate) fn stat_key(limit: &Limit) -> String {
    let mut key = limit.spec.domain.clone();
    for step in limit.path.iter().flat_map(acequia_limits::path::Path::steps) {
        key.push('.');
        key.push_str(&step.stat_name());
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_read_in_both_spellings_and_with_numbers_as_text() {
        for text in [
            r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"hitsAddend":"3"}],"hitsAddend":2}"#,
            r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"hits_addend":3}],"hits_addend":"2"}"#,
        ] {
            let read: JsonRequest = serde_json::from_str(text).expect("a request");
            let message = read.message();
            assert_eq!((message.domain.as_str(), message.hits_addend), ("d", 2));
            assert_eq!(message.descriptors[0].hits_addend, Some(3));
            assert_eq!(message.descriptors[0].entries[0].value, "v");
        }
        for text in [r#"{"domian":"d"}"#, r#"{"hitsAddend":-1}"#, r#"{"hitsAddend":"x"}"#, "7"] {
            serde_json::from_str::<JsonRequest>(text).expect_err(text);
        }
    }

    #[test]
    fn an_answer_leaves_out_what_is_0() {
        let answer = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }],
            ..RateLimitResponse::default()
        };
        let json = answer_json(&answer);
        assert_eq!(json, json!({ "overallCode": "OVER_LIMIT", "statuses": [{ "code": "OK" }] }));
    }
}
