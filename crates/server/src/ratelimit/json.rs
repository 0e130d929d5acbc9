//! `POST /json` and `GET /rlconfig`, as envoyproxy/ratelimit answers them.
//!
//! A body is a `RateLimitRequest` in the JSON of protobuf, in which a number may be text. The answer goes the way of a
//! gRPC call, so both decide alike.

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
use prost_types::{Struct, value::Kind};
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
    hits_addend: Number<U32_MAX>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonDescriptor {
    #[serde(default)]
    entries: Vec<JsonEntry>,
    #[serde(default, alias = "hits_addend", rename = "hitsAddend")]
    hits_addend: Option<Number<{ u64::MAX }>>,
    #[serde(default, alias = "is_negative_hits", rename = "isNegativeHits")]
    is_negative_hits: bool,
    limit: Option<JsonLimit>,
}

/// A limit of the request's own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonLimit {
    #[serde(default, alias = "requests_per_unit", rename = "requestsPerUnit")]
    requests_per_unit: Number<U32_MAX>,
    #[serde(default)]
    unit: Unit,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

const U32_MAX: u64 = u32::MAX as u64;

/// A whole number up to `MAX`. It may be text, and null stands for 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Number<const MAX: u64>(u64);

impl Number<U32_MAX> {
    fn u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

impl<'de, const MAX: u64> Deserialize<'de> for Number<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<const MAX: u64>;
        impl<const MAX: u64> de::Visitor<'_> for Visitor<MAX> {
            type Value = Number<MAX>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "a whole number up to {MAX}")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                if number <= MAX {
                    Ok(Number(number))
                } else {
                    Err(E::invalid_value(de::Unexpected::Unsigned(number), &self))
                }
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
                // Larger floats are not exact.
                let is_whole = number.fract() == 0.0 && (0.0..=U32_MAX as f64).contains(&number);
                if is_whole {
                    self.visit_u64(number as u64)
                } else {
                    Err(E::invalid_value(de::Unexpected::Float(number), &self))
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                text.parse().map_err(E::custom).and_then(|number| self.visit_u64(number))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Number(0))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A unit of time, by its name or its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unit(i32);

impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Unit;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("SECOND, MINUTE, HOUR, DAY, MONTH, YEAR or its number")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Unit, E> {
                i32::try_from(number).map(Unit).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Unit, E> {
                let unit = RateLimitUnit::from_str_name(name);
                unit.map(|unit| Unit(unit.into()))
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Unit, E> {
                Ok(Unit(0))
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
            hits_addend: descriptor.hits_addend.map(|Number(hits)| hits),
            is_negative_hits: descriptor.is_negative_hits,
            limit: descriptor.limit.map(|JsonLimit { requests_per_unit, unit }| {
                let requests_per_unit = requests_per_unit.u32();
                rate_limit_descriptor::RateLimitOverride { requests_per_unit, unit: unit.0 }
            }),
        });
        RateLimitRequest {
            domain: self.domain,
            descriptors: descriptors.collect(),
            hits_addend: self.hits_addend.u32(),
        }
    }
}

/// An answer in JSON: fields that are 0 are left out.
pub(crate) fn answer_json(answer: &RateLimitResponse) -> Value {
    let statuses: Vec<Value> = answer.statuses.iter().map(status_json).collect();
    let mut fields = Map::new();
    fields.insert("overallCode".to_owned(), code(answer.overall_code()).into());
    fields.insert("statuses".to_owned(), statuses.into());
    let headers = answer.response_headers_to_add.iter();
    let headers: Vec<Value> =
        headers.map(|header| json!({ "key": header.key, "value": header.value })).collect();
    if !headers.is_empty() {
        fields.insert("responseHeadersToAdd".to_owned(), headers.into());
    }
    if let Some(metadata) = &answer.dynamic_metadata {
        fields.insert("dynamicMetadata".to_owned(), struct_json(metadata));
    }
    fields.into()
}

fn struct_json(of: &Struct) -> Value {
    of.fields.iter().map(|(key, value)| (key.clone(), value_json(value))).collect()
}

fn value_json(value: &prost_types::Value) -> Value {
    match &value.kind {
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(value_json).collect(),
        Some(Kind::StructValue(of)) => struct_json(of),
        Some(Kind::NullValue(_)) | None => Value::Null,
    }
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
    for limit in shown.filter(|limit| limit.path.is_some()) {
        if limit.spec.mode != Mode::Off {
            let is = |mode| limit.spec.mode == mode;
            let (budget, unit) = match limit.unlimited.is_empty() {
                true => (limit.algorithm.budget(), unit_of(limit)),
                false => (0, "UNKNOWN"),
            };
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
    use acequia_api::envoy::config::core::v3::HeaderValue;

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
        for text in [
            r#"{"domian":"d"}"#,
            r#"{"hitsAddend":-1}"#,
            r#"{"hitsAddend":1.5}"#,
            r#"{"hitsAddend":"x"}"#,
            r#"{"hitsAddend":4294967296}"#,
            r#"{"descriptors":[{"limit":{"unit":"FOO"}}]}"#,
            "7",
        ] {
            serde_json::from_str::<JsonRequest>(text).expect_err(text);
        }
    }

    #[test]
    fn a_limit_of_a_request_may_be_written_in_several_ways() {
        for text in [r#"{"requestsPerUnit":3,"unit":"MINUTE"}"#, r#"{"requests_per_unit":"3","unit":2}"#] {
            let text =
                format!(r#"{{"descriptors":[{{"hitsAddend":null,"limit":{text}}}],"hitsAddend":2.0}}"#);
            let read: JsonRequest = serde_json::from_str(&text).expect("a request");
            let message = read.message();
            let limit = message.descriptors[0].limit.expect("a limit");
            assert_eq!((limit.requests_per_unit, limit.unit()), (3, RateLimitUnit::Minute));
            assert_eq!((message.descriptors[0].hits_addend, message.hits_addend), (None, 2));
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
        let text = prost_types::Value { kind: Some(Kind::StringValue("r".to_owned())) };
        let answer = RateLimitResponse {
            response_headers_to_add: vec![HeaderValue {
                key: "k".to_owned(),
                value: "v".to_owned(),
                ..HeaderValue::default()
            }],
            dynamic_metadata: Some(Struct { fields: [("reason".to_owned(), text)].into() }),
            ..RateLimitResponse::default()
        };
        let json = answer_json(&answer);
        assert_eq!(json["responseHeadersToAdd"], json!([{ "key": "k", "value": "v" }]));
        assert_eq!(json["dynamicMetadata"], json!({ "reason": "r" }));
    }
}
