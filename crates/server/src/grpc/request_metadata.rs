//! Metadata of an answer that repeat the request, as envoyproxy/ratelimit gives them with `RESPONSE_DYNAMIC_METADATA`.
//!
//! Filters and access logs of Envoy see by them what was asked, and which quotas are used up. They stand beside the
//! metadata of our own, whose keys are others.

use acequia_api::{
    envoy::r#type::v3::RateLimitUnit,
    wire::{LimitOverride, WireDescriptor, WireRequest, read_rate_limit_request},
};
use acequia_limits::Mode;
use acequia_node::{Answer, Catalogue, LimitAnswer, Outcome};
use prost_types::{ListValue, Struct, Value, value::Kind};

use super::envoy::Seen;
use crate::shared::Settings;

/// What repeats a request; `None` if its domain does not want that.
#[cold]
pub(super) fn request_metadata(
    message: &[u8],
    seen: Seen,
    answer: &Answer,
    catalogue: &Catalogue,
    settings: &Settings,
) -> Option<Struct> {
    let mut wire = WireRequest::default();
    read_rate_limit_request(message, &mut wire).ok()?;
    if !settings.domain(wire.domain).request_metadata {
        return None;
    }
    let is_quota = |limit: &&LimitAnswer| catalogue.limits[limit.limit as usize].limit.spec.mode == Mode::Any;
    let quotas = || answer.limits.iter().filter(is_quota);
    let asked = (0..seen.descriptors).filter(|descriptor| !seen.is_settled(*descriptor));
    let used_up = asked.enumerate().filter(|(asked, _)| {
        quotas().any(|quota| quota.descriptors >> asked & 1 == 1 && quota.outcome == Outcome::Deny)
    });
    let used_up: Vec<Value> = used_up.map(|(_, descriptor)| number(descriptor as u64)).collect();
    let descriptors = wire.descriptors.iter().map(|descriptor| descriptor_value(&wire, descriptor));
    let mut fields = vec![
        ("domain", text(wire.domain)),
        ("descriptors", list(descriptors.collect())),
        ("quotaModeEnabled", Kind::BoolValue(quotas().next().is_some()).into()),
    ];
    fields.extend(wire.cost.map(|hits| ("hitsAddend", number(hits))));
    fields.extend((!used_up.is_empty()).then(|| ("quotaModeViolations", list(used_up))));
    Some(of(fields))
}

fn descriptor_value(wire: &WireRequest<'_>, descriptor: &WireDescriptor) -> Value {
    let entries = wire.entries_of(descriptor).iter().map(|(key, value)| text(&[*key, *value].join(&b'=')));
    let mut fields = vec![("entries", list(entries.collect()))];
    // As protobuf writes a message in one line.
    fields.extend(descriptor.limit_override.map(|LimitOverride { requests_per_unit, unit, .. }| {
        let unit = RateLimitUnit::try_from(unit).unwrap_or_default().as_str_name();
        let limit = format!("requests_per_unit:{requests_per_unit} unit:{unit}");
        ("limit", text(limit.as_bytes()))
    }));
    fields.extend(descriptor.cost.map(|hits| ("hitsAddend", number(hits))));
    Kind::StructValue(of(fields)).into()
}

fn of(fields: Vec<(&str, Value)>) -> Struct {
    Struct { fields: fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect() }
}

/// A value may have any bytes, and Envoy refuses an answer whose text is not UTF-8.
fn text(bytes: &[u8]) -> Value {
    Kind::StringValue(String::from_utf8_lossy(bytes).into_owned()).into()
}

fn number(number: u64) -> Value {
    Kind::NumberValue(number as f64).into()
}

fn list(values: Vec<Value>) -> Value {
    Kind::ListValue(ListValue { values }).into()
}
