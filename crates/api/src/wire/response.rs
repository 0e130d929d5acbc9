use std::time::Duration;

use bytes::BufMut;
use prost_types::Struct;

use crate::acequia::v1::{Outcome, Reason};
use crate::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;

/// Writes an `envoy.service.ratelimit.v3.RateLimitResponse`, field after field.
///
/// The message is complete after every call. The usual order is statuses, headers, the body, the metadata.
/// Another order is valid, too.
#[derive(Debug)]
pub struct RateLimitResponseWriter<'b, B> {
    out: &'b mut B,
}

impl<'b, B: BufMut> RateLimitResponseWriter<'b, B> {
    /// Appends a response to `out`.
    pub fn new(out: &'b mut B, overall_code: Code) -> Self {
        put_uint(out, 1, overall_code as u64);
        Self { out }
    }

    /// Goes on with a response that `out` ends with.
    pub const fn go_on(out: &'b mut B) -> Self {
        Self { out }
    }

    /// Appends the status of the next descriptor. Each descriptor of the request has one, in the request's
    /// order.
    pub fn status(&mut self, status: &StatusOut<'_>) {
        put_message(self.out, 2, status);
    }

    /// Appends one header to `response_headers_to_add`.
    pub fn response_header(&mut self, header: &HeaderOut<'_>) {
        put_message(self.out, 3, header);
    }

    /// Appends the body for a denied request. At most once.
    pub fn raw_body(&mut self, body: &[u8]) {
        put_bytes(self.out, 5, body);
    }

    /// Appends metadata for later filters and the access log of Envoy. At most once, and each key at most
    /// once.
    pub fn dynamic_metadata(&mut self, fields: &[MetadataOut<'_>]) {
        put_message(self.out, 6, fields);
    }

    /// Appends further metadata, whose keys are others. Readers merge both (protobuf's encoding, "Last One Wins").
    pub fn further_metadata(&mut self, fields: &Struct) {
        prost::encoding::message::encode(6, fields, self.out);
    }
}

/// Appends an `acequia.v1.CheckResponse` to `out`.
pub fn write_check_response(out: &mut impl BufMut, check: &CheckOut<'_>) {
    check.write(out);
}

/// Appends one more result of an `acequia.v1.CheckBatchResult` to `out`. Each check has one result, in the
/// order of the batch.
pub fn write_check_result(out: &mut impl BufMut, check: &CheckOut<'_>) {
    put_message(out, 1, check);
}

/// Envoy's `RateLimitResponse.DescriptorStatus`: the result for one descriptor.
#[derive(Debug, Clone, Copy)]
pub struct StatusOut<'a> {
    /// The verdict on this descriptor.
    pub code: Code,
    /// The limit that decided, if there is one.
    pub current_limit: Option<CurrentLimitOut<'a>>,
    /// The units left of the limit; `u32::MAX` if there are more.
    pub limit_remaining: u32,
    /// The time until the whole limit is back. More than ten thousand years are written as ten thousand
    /// years.
    pub duration_until_reset: Option<Duration>,
}

/// Envoy's `RateLimitResponse.RateLimit`.
#[derive(Debug, Clone, Copy)]
pub struct CurrentLimitOut<'a> {
    /// The limit's name.
    pub name: &'a str,
    /// The number of requests in a unit of time.
    pub requests_per_unit: u32,
    /// The unit of time.
    pub unit: Unit,
    /// How many units of time the window lasts, if that is not 1 or unknown. Newer than the messages of this crate:
    /// readers of old skip it.
    pub unit_multiplier: Option<u32>,
}

/// A header for Envoy to add.
#[derive(Debug, Clone, Copy)]
pub struct HeaderOut<'a> {
    /// The header's name, in lower case.
    pub key: &'a str,
    /// The header's value.
    pub value: &'a str,
}

/// One field of the dynamic metadata.
#[derive(Debug, Clone, Copy)]
pub struct MetadataOut<'a> {
    /// The field's name.
    pub key: &'a str,
    /// The field's value.
    pub value: MetadataValue<'a>,
}

/// The kinds of `google.protobuf.Value` that are used here.
#[derive(Debug, Clone, Copy)]
pub enum MetadataValue<'a> {
    /// Text.
    String(&'a str),
    /// A finite number: JSON has no other numbers.
    Number(f64),
}

/// An `acequia.v1.CheckResponse`. The fields mean what they mean there.
#[derive(Debug, Clone, Copy)]
pub struct CheckOut<'a> {
    /// Whether the request may pass.
    pub allowed: bool,
    /// The name of the limit that decided; empty if no limit matched.
    pub limit: &'a str,
    /// The units that may still be spent here under that limit.
    pub remaining: Option<u64>,
    /// When to come back, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// How long to wait before going on, in milliseconds.
    pub delay_ms: u64,
    /// The reason of the decision.
    pub reason: Reason,
    /// The result of each limit.
    pub limits: &'a [LimitOut<'a>],
    /// The record of the charge, if there is one.
    pub charge: Option<ChargeOut<'a>>,
}

/// The fields `charge_id`, `is_repeat` and `charged` of an `acequia.v1.CheckResponse`.
#[derive(Debug, Clone, Copy)]
pub struct ChargeOut<'a> {
    /// The id with which the charge can be settled.
    pub charge_id: &'a str,
    /// Whether this is a repeat, and nothing more was charged.
    pub is_repeat: bool,
    /// The reserved units; 0 for a charge that is not a reservation.
    pub charged: u64,
    /// Milliseconds until the reservation lapses.
    pub lapses_in_ms: u64,
}

/// An `acequia.v1.LimitResult`. The fields mean what they mean there.
#[derive(Debug, Clone, Copy)]
pub struct LimitOut<'a> {
    /// The limit's name.
    pub name: &'a str,
    /// The limit's budget, in units.
    pub budget: u64,
    /// The units that may still be spent here.
    pub remaining: u64,
    /// When to come back, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until everything is back if nothing more is spent.
    pub reset_after_ms: u64,
    /// How long to wait before going on, in milliseconds.
    pub delay_ms: u64,
    /// The limit's verdict.
    pub outcome: Outcome,
    /// The reason of the verdict.
    pub reason: Reason,
    /// The descriptors, by index, that hit this cell.
    pub descriptors: &'a [u32],
    /// The sum of those descriptors' costs.
    pub cost: u64,
    /// The algorithm's name in a config.
    pub algorithm: &'a str,
    /// The class of consumers; empty if the limit has no classes.
    pub class: &'a str,
    /// Units that passed though this node did not have them.
    pub open_units: u64,
    /// Units that were spent beyond what the cell had.
    pub owed: u64,
    /// The name of what the limit counts; empty if the config names none.
    pub unit: &'a str,
}

/// The longest `google.protobuf.Duration`, about ten thousand years.
const DURATION_SECONDS_MAX: u64 = 315_576_000_000;

/// A message that knows its length before it is written: the length of a nested message comes first.
trait Body {
    fn wire_len(&self) -> usize;
    fn write(&self, out: &mut impl BufMut);
}

impl Body for StatusOut<'_> {
    fn wire_len(&self) -> usize {
        uint_len(self.code as u64)
            + self.current_limit.as_ref().map_or(0, message_len)
            + uint_len(self.limit_remaining.into())
            + self.duration_until_reset.as_ref().map_or(0, message_len)
    }

    fn write(&self, out: &mut impl BufMut) {
        put_uint(out, 1, self.code as u64);
        if let Some(limit) = &self.current_limit {
            put_message(out, 2, limit);
        }
        put_uint(out, 3, self.limit_remaining.into());
        if let Some(duration) = &self.duration_until_reset {
            put_message(out, 4, duration);
        }
    }
}

impl Body for CurrentLimitOut<'_> {
    fn wire_len(&self) -> usize {
        uint_len(self.requests_per_unit.into())
            + uint_len(self.unit as u64)
            + bytes_len(self.name.as_bytes())
            + self.unit_multiplier.map_or(0, |multiplier| delimited_len(uint_len(multiplier.into())))
    }

    fn write(&self, out: &mut impl BufMut) {
        put_uint(out, 1, self.requests_per_unit.into());
        put_uint(out, 2, self.unit as u64);
        put_bytes(out, 3, self.name.as_bytes());
        // A `google.protobuf.UInt32Value`.
        if let Some(multiplier) = self.unit_multiplier {
            put_delimiter(out, 4, uint_len(multiplier.into()));
            put_uint(out, 1, multiplier.into());
        }
    }
}

/// A `google.protobuf.Duration`.
impl Body for Duration {
    fn wire_len(&self) -> usize {
        let duration = (*self).min(Self::from_secs(DURATION_SECONDS_MAX));
        uint_len(duration.as_secs()) + uint_len(duration.subsec_nanos().into())
    }

    fn write(&self, out: &mut impl BufMut) {
        let duration = (*self).min(Self::from_secs(DURATION_SECONDS_MAX));
        put_uint(out, 1, duration.as_secs());
        put_uint(out, 2, duration.subsec_nanos().into());
    }
}

impl Body for HeaderOut<'_> {
    fn wire_len(&self) -> usize {
        bytes_len(self.key.as_bytes()) + bytes_len(self.value.as_bytes())
    }

    fn write(&self, out: &mut impl BufMut) {
        put_bytes(out, 1, self.key.as_bytes());
        put_bytes(out, 2, self.value.as_bytes());
    }
}

/// A `google.protobuf.Struct`: a map. On the wire, a map is a repeated message of key and value.
impl Body for [MetadataOut<'_>] {
    fn wire_len(&self) -> usize {
        self.iter().map(message_len).sum()
    }

    fn write(&self, out: &mut impl BufMut) {
        for field in self {
            put_message(out, 1, field);
        }
    }
}

impl Body for MetadataOut<'_> {
    fn wire_len(&self) -> usize {
        bytes_len(self.key.as_bytes()) + message_len(&self.value)
    }

    fn write(&self, out: &mut impl BufMut) {
        put_bytes(out, 1, self.key.as_bytes());
        put_message(out, 2, &self.value);
    }
}

/// A `google.protobuf.Value`: a `oneof`, so even a default value is written.
impl Body for MetadataValue<'_> {
    fn wire_len(&self) -> usize {
        match self {
            Self::String(text) => delimited_len(text.len()),
            Self::Number(_) => 1 + size_of::<f64>(),
        }
    }

    fn write(&self, out: &mut impl BufMut) {
        match self {
            Self::String(text) => {
                put_delimiter(out, 3, text.len());
                out.put_slice(text.as_bytes());
            }
            Self::Number(number) => {
                out.put_u8(key(2, FIXED64));
                out.put_f64_le(*number);
            }
        }
    }
}

impl Body for CheckOut<'_> {
    fn wire_len(&self) -> usize {
        uint_len(self.allowed.into())
            + bytes_len(self.limit.as_bytes())
            + self.remaining.map_or(0, optional_uint_len)
            + self.retry_after_ms.map_or(0, optional_uint_len)
            + uint_len(self.delay_ms)
            + uint_len(self.reason as u64)
            + self.limits.iter().map(message_len).sum::<usize>()
            + self.charge.map_or(0, |charge| {
                bytes_len(charge.charge_id.as_bytes())
                    + uint_len(charge.is_repeat.into())
                    + uint_len(charge.charged)
                    + uint_len(charge.lapses_in_ms)
            })
    }

    fn write(&self, out: &mut impl BufMut) {
        put_uint(out, 1, self.allowed.into());
        put_bytes(out, 2, self.limit.as_bytes());
        put_optional_uint(out, 3, self.remaining);
        put_optional_uint(out, 4, self.retry_after_ms);
        put_uint(out, 5, self.delay_ms);
        if let Some(charge) = &self.charge {
            put_bytes(out, 6, charge.charge_id.as_bytes());
        }
        put_uint(out, 7, self.reason as u64);
        for limit in self.limits {
            put_message(out, 8, limit);
        }
        if let Some(charge) = &self.charge {
            put_uint(out, 9, charge.is_repeat.into());
            put_uint(out, 10, charge.charged);
            put_uint(out, 11, charge.lapses_in_ms);
        }
    }
}

impl Body for LimitOut<'_> {
    fn wire_len(&self) -> usize {
        bytes_len(self.name.as_bytes())
            + uint_len(self.budget)
            + uint_len(self.remaining)
            + self.retry_after_ms.map_or(0, optional_uint_len)
            + uint_len(self.reset_after_ms)
            + uint_len(self.delay_ms)
            + uint_len(self.outcome as u64)
            + uint_len(self.reason as u64)
            + if self.descriptors.is_empty() { 0 } else { delimited_len(packed_len(self.descriptors)) }
            + uint_len(self.cost)
            + bytes_len(self.algorithm.as_bytes())
            + bytes_len(self.class.as_bytes())
            + uint_len(self.open_units)
            + uint_len(self.owed)
            + bytes_len(self.unit.as_bytes())
    }

    fn write(&self, out: &mut impl BufMut) {
        put_bytes(out, 1, self.name.as_bytes());
        put_uint(out, 2, self.budget);
        put_uint(out, 3, self.remaining);
        put_optional_uint(out, 4, self.retry_after_ms);
        put_uint(out, 5, self.reset_after_ms);
        put_uint(out, 6, self.delay_ms);
        put_uint(out, 7, self.outcome as u64);
        put_uint(out, 8, self.reason as u64);
        put_packed(out, 9, self.descriptors);
        put_uint(out, 10, self.cost);
        put_bytes(out, 11, self.algorithm.as_bytes());
        put_bytes(out, 12, self.class.as_bytes());
        put_uint(out, 13, self.open_units);
        put_uint(out, 14, self.owed);
        put_bytes(out, 15, self.unit.as_bytes());
    }
}

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const LEN: u8 = 2;

/// Every field here has a number below 16, so its key is one byte.
#[inline]
const fn key(field: u8, wire_type: u8) -> u8 {
    assert!(field < 16);
    field << 3 | wire_type
}

fn put_message(out: &mut impl BufMut, field: u8, body: &(impl Body + ?Sized)) {
    put_delimiter(out, field, body.wire_len());
    body.write(out);
}

fn message_len(body: &(impl Body + ?Sized)) -> usize {
    delimited_len(body.wire_len())
}

/// Writes text or bytes, unless they are empty.
fn put_bytes(out: &mut impl BufMut, field: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_delimiter(out, field, bytes.len());
        out.put_slice(bytes);
    }
}

fn bytes_len(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { delimited_len(bytes.len()) }
}

/// Writes an integer, an enum or a bool, unless it is 0.
fn put_uint(out: &mut impl BufMut, field: u8, value: u64) {
    if value != 0 {
        put_varint(out, key(field, VARINT), value);
    }
}

fn uint_len(value: u64) -> usize {
    if value == 0 { 0 } else { optional_uint_len(value) }
}

/// Writes an integer with presence, even a 0.
fn put_optional_uint(out: &mut impl BufMut, field: u8, value: Option<u64>) {
    if let Some(value) = value {
        put_varint(out, key(field, VARINT), value);
    }
}

fn optional_uint_len(value: u64) -> usize {
    1 + varint_len(value)
}

fn put_packed(out: &mut impl BufMut, field: u8, values: &[u32]) {
    if values.is_empty() {
        return;
    }
    put_delimiter(out, field, packed_len(values));
    for &value in values {
        prost::encoding::encode_varint(value.into(), out);
    }
}

fn packed_len(values: &[u32]) -> usize {
    values.iter().map(|&value| varint_len(value.into())).sum()
}

fn put_delimiter(out: &mut impl BufMut, field: u8, len: usize) {
    put_varint(out, key(field, LEN), len as u64);
}

fn delimited_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

/// Writes a key and the integer after it in one piece, so that the buffer makes room once.
#[inline]
fn put_varint(out: &mut impl BufMut, key: u8, mut value: u64) {
    if value < 0x80 {
        return out.put_slice(&[key, value as u8]);
    }
    let mut bytes = [key; 11];
    let mut end = 1;
    while value >= 0x80 {
        bytes[end] = value as u8 | 0x80;
        value >>= 7;
        end += 1;
    }
    bytes[end] = value as u8;
    out.put_slice(&bytes[..=end]);
}

#[inline]
fn varint_len(value: u64) -> usize {
    prost::encoding::encoded_len_varint(value)
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use prop::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use prost::Message;
    use prost_types::value::Kind;
    use prost_types::{Struct, Value};

    use super::*;
    use crate::acequia::v1::{CheckBatchResult, CheckResponse, LimitResult};
    use crate::envoy::config::core::v3::HeaderValue;
    use crate::envoy::service::ratelimit::v3::RateLimitResponse;
    use crate::envoy::service::ratelimit::v3::rate_limit_response::{DescriptorStatus, RateLimit};

    /// Our bytes equal those of prost, and so mean the same.
    fn check<M: Message + Default + Debug + PartialEq>(
        bytes: &[u8],
        expected: &M,
    ) -> Result<(), TestCaseError> {
        prop_assert_eq!(&M::decode(bytes).expect("our bytes are a message"), expected);
        prop_assert_eq!(bytes, expected.encode_to_vec());
        Ok(())
    }

    #[test]
    fn a_default_response_is_empty() {
        let mut bytes = Vec::new();
        write_check_response(&mut bytes, &borrow_check(&CheckResponse::default(), &[]));
        assert!(bytes.is_empty());

        RateLimitResponseWriter::new(&mut bytes, Code::Unknown);
        assert!(bytes.is_empty());
    }

    #[test]
    fn zero_remaining_is_written_unlike_an_unknown_number() {
        let expected =
            CheckResponse { remaining: Some(0), retry_after_ms: Some(0), ..CheckResponse::default() };
        let mut bytes = Vec::new();
        write_check_response(&mut bytes, &borrow_check(&expected, &[]));
        assert_eq!(CheckResponse::decode(&*bytes), Ok(expected));
    }

    #[test]
    fn a_duration_too_long_for_protobuf_is_written_as_the_longest() {
        let status = StatusOut {
            code: Code::OverLimit,
            current_limit: None,
            limit_remaining: 0,
            duration_until_reset: Some(Duration::MAX),
        };
        let mut bytes = Vec::new();
        RateLimitResponseWriter::new(&mut bytes, Code::OverLimit).status(&status);

        let response = RateLimitResponse::decode(&*bytes).expect("a message");
        let longest = prost_types::Duration { seconds: 315_576_000_000, nanos: 0 };
        assert_eq!(response.statuses[0].duration_until_reset, Some(longest));
    }

    /// The messages here lack the field, so bytes are compared.
    #[test]
    fn a_window_of_several_units_is_written_after_the_unit() {
        let current = |unit_multiplier| {
            let limit =
                CurrentLimitOut { name: "", requests_per_unit: 5, unit: Unit::Second, unit_multiplier };
            let status = StatusOut {
                code: Code::Ok,
                current_limit: Some(limit),
                limit_remaining: 0,
                duration_until_reset: None,
            };
            let mut bytes = Vec::new();
            RateLimitResponseWriter::new(&mut bytes, Code::Ok).status(&status);
            bytes
        };
        let without = [0x08, 1, 0x12, 8, 0x08, 1, 0x12, 4, 0x08, 5, 0x10, 1];
        assert_eq!(current(None), without);
        assert_eq!(
            current(Some(30)),
            [0x08, 1, 0x12, 12, 0x08, 1, 0x12, 8, 0x08, 5, 0x10, 1, 0x22, 2, 0x08, 30]
        );
    }

    #[test]
    fn further_metadata_stand_beside_earlier_ones() {
        let mut bytes = Vec::new();
        let own = MetadataOut { key: "reason", value: MetadataValue::String("over-limit") };
        RateLimitResponseWriter::new(&mut bytes, Code::OverLimit).dynamic_metadata(&[own]);
        let value = |flag| Value { kind: Some(Kind::BoolValue(flag)) };
        let further = Struct { fields: [("further".to_owned(), value(true))].into() };
        RateLimitResponseWriter::go_on(&mut bytes).further_metadata(&further);

        let fields =
            RateLimitResponse::decode(&*bytes).expect("a message").dynamic_metadata.expect("metadata").fields;
        let reason = Value { kind: Some(Kind::StringValue("over-limit".to_owned())) };
        assert_eq!(fields, [("further".to_owned(), value(true)), ("reason".to_owned(), reason)].into());
    }

    proptest! {
        #[test]
        fn rate_limit_responses_are_written_as_prost_writes_them(expected in rate_limit_response()) {
            let mut bytes = bytes::BytesMut::new();
            let mut writer = RateLimitResponseWriter::new(&mut bytes, expected.overall_code());
            for status in &expected.statuses {
                writer.status(&borrow_status(status));
            }
            for header in &expected.response_headers_to_add {
                writer.response_header(&HeaderOut { key: &header.key, value: &header.value });
            }
            writer.raw_body(&expected.raw_body);
            if let Some(metadata) = &expected.dynamic_metadata {
                writer.dynamic_metadata(&metadata.fields.iter().map(borrow_metadata).collect::<Vec<_>>());
            }
            check(&bytes, &expected)?;
        }

        #[test]
        fn check_responses_are_written_as_prost_writes_them(expected in check_response()) {
            let limits: Vec<_> = expected.limits.iter().map(borrow_limit).collect();
            let mut bytes = bytes::BytesMut::new();
            write_check_response(&mut bytes, &borrow_check(&expected, &limits));
            check(&bytes, &expected)?;
        }

        #[test]
        fn batch_results_are_written_as_prost_writes_them(results in vec(check_response(), 0..4)) {
            let mut bytes = bytes::BytesMut::new();
            for result in &results {
                let limits: Vec<_> = result.limits.iter().map(borrow_limit).collect();
                write_check_result(&mut bytes, &borrow_check(result, &limits));
            }
            check(&bytes, &CheckBatchResult { results })?;
        }
    }

    fn borrow_status(status: &DescriptorStatus) -> StatusOut<'_> {
        StatusOut {
            code: status.code(),
            current_limit: status.current_limit.as_ref().map(|limit| CurrentLimitOut {
                name: &limit.name,
                requests_per_unit: limit.requests_per_unit,
                unit: limit.unit(),
                unit_multiplier: None,
            }),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status
                .duration_until_reset
                .map(|duration| Duration::new(duration.seconds as u64, duration.nanos as u32)),
        }
    }

    fn borrow_metadata<'a>((key, value): (&'a String, &'a Value)) -> MetadataOut<'a> {
        let value = match &value.kind {
            Some(Kind::StringValue(text)) => MetadataValue::String(text),
            Some(Kind::NumberValue(number)) => MetadataValue::Number(*number),
            kind => unreachable!("not generated: {kind:?}"),
        };
        MetadataOut { key, value }
    }

    fn borrow_check<'a>(check: &'a CheckResponse, limits: &'a [LimitOut<'a>]) -> CheckOut<'a> {
        CheckOut {
            allowed: check.allowed,
            limit: &check.limit,
            remaining: check.remaining,
            retry_after_ms: check.retry_after_ms,
            delay_ms: check.delay_ms,
            reason: check.reason(),
            limits,
            charge: Some(ChargeOut {
                charge_id: &check.charge_id,
                is_repeat: check.is_repeat,
                charged: check.charged,
                lapses_in_ms: check.lapses_in_ms,
            }),
        }
    }

    fn borrow_limit(limit: &LimitResult) -> LimitOut<'_> {
        LimitOut {
            name: &limit.name,
            budget: limit.budget,
            remaining: limit.remaining,
            retry_after_ms: limit.retry_after_ms,
            reset_after_ms: limit.reset_after_ms,
            delay_ms: limit.delay_ms,
            outcome: limit.outcome(),
            reason: limit.reason(),
            descriptors: &limit.descriptors,
            cost: limit.cost,
            algorithm: &limit.algorithm,
            class: &limit.class,
            open_units: limit.open_units,
            owed: limit.owed,
            unit: &limit.unit,
        }
    }

    prop_compose! {
        fn rate_limit_response()(
            overall_code in 0..=2,
            statuses in vec(status(), 0..4),
            response_headers_to_add in vec(header(), 0..3),
            raw_body in vec(any::<u8>(), 0..200),
            dynamic_metadata in option::of(metadata()),
        ) -> RateLimitResponse {
            RateLimitResponse {
                overall_code,
                statuses,
                response_headers_to_add,
                raw_body,
                dynamic_metadata,
                ..RateLimitResponse::default()
            }
        }
    }

    prop_compose! {
        fn status()(
            code in 0..=2,
            current_limit in option::of((text(), any::<u32>(), 0..=7)),
            limit_remaining: u32,
            duration in option::of((0..=DURATION_SECONDS_MAX as i64 - 1, 0..1_000_000_000)),
        ) -> DescriptorStatus {
            DescriptorStatus {
                code,
                current_limit: current_limit
                    .map(|(name, requests_per_unit, unit)| RateLimit { name, requests_per_unit, unit }),
                limit_remaining,
                duration_until_reset: duration.map(|(seconds, nanos)| prost_types::Duration { seconds, nanos }),
                quota: None,
            }
        }
    }

    prop_compose! {
        fn header()(key in text(), value in text()) -> HeaderValue {
            HeaderValue { key, value, ..HeaderValue::default() }
        }
    }

    fn metadata() -> impl Strategy<Value = Struct> {
        let kind = prop_oneof![
            text().prop_map(Kind::StringValue),
            (prop::num::f64::NORMAL | prop::num::f64::ZERO).prop_map(Kind::NumberValue),
        ];
        let value = kind.prop_map(|kind| Value { kind: Some(kind) });
        prop::collection::btree_map(text(), value, 0..4).prop_map(|fields| Struct { fields })
    }

    prop_compose! {
        fn check_response()(
            allowed: bool,
            limit in text(),
            remaining in option::of(integer()),
            retry_after_ms in option::of(integer()),
            delay_ms in integer(),
            reason in 0..=14,
            limits in vec(limit_result(), 0..4),
            (charge_id, is_repeat, charged, lapses_in_ms) in (text(), any::<bool>(), integer(), integer()),
        ) -> CheckResponse {
            CheckResponse {
                allowed,
                limit,
                remaining,
                retry_after_ms,
                delay_ms,
                reason,
                limits,
                charge_id,
                is_repeat,
                charged,
                lapses_in_ms,
            }
        }
    }

    prop_compose! {
        fn limit_result()(
            (name, algorithm, class, unit) in (text(), text(), text(), text()),
            (budget, remaining, cost) in (integer(), integer(), integer()),
            (open_units, owed) in (integer(), integer()),
            retry_after_ms in option::of(integer()),
            (reset_after_ms, delay_ms) in (integer(), integer()),
            outcome in 0..=4,
            reason in 0..=14,
            descriptors in vec(any::<u32>(), 0..40),
        ) -> LimitResult {
            LimitResult {
                name,
                budget,
                remaining,
                retry_after_ms,
                reset_after_ms,
                delay_ms,
                outcome,
                reason,
                descriptors,
                cost,
                algorithm,
                class,
                open_units,
                owed,
                unit,
            }
        }
    }

    /// Texts that are sometimes so long that their length takes two bytes.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![8 => "\\PC{0,12}", 1 => "[a-z]{120,140}"]
    }

    /// Integers of every length on the wire.
    fn integer() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0..64u32).prop_map(|(value, shift)| value >> shift)
    }
}
