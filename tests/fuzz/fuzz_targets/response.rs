//! The responses of both APIs. Our bytes equal those of the generated types. Clients with the generated
//! types, and the load generator, which walks the fields, survive any bytes.
#![no_main]

use std::time::Duration;

use acequia_fuzz::{
    acequia::v1::{CheckBatchResult, CheckResponse, LimitResult, Outcome, Reason},
    envoy::service::ratelimit::v3::{
        RateLimitResponse,
        rate_limit_response::{Code, rate_limit::Unit},
    },
    memory, seeds,
    wire::{
        ChargeOut, CheckOut, CurrentLimitOut, HeaderOut, LimitOut, MetadataOut, MetadataValue,
        RateLimitResponseWriter, Reader, StatusOut, WireType, write_check_response, write_check_result,
    },
};

use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use prost::Message;

#[derive(Arbitrary, Debug)]
struct Limit<'a> {
    name: &'a str,
    numbers: [u64; 6],
    retry_after_ms: Option<u64>,
    outcome: u8,
    reason: u8,
    descriptors: Vec<u32>,
    algorithm: &'a str,
}

#[derive(Arbitrary, Debug)]
struct Check<'a> {
    allowed: bool,
    limit: &'a str,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    delay_ms: u64,
    reason: u8,
    limits: Vec<Limit<'a>>,
}

#[derive(Arbitrary, Debug)]
struct Status<'a> {
    code: bool,
    limit: Option<(&'a str, u32, u8)>,
    remaining: u32,
    reset: Option<(u64, u32)>,
}

#[derive(Arbitrary, Debug)]
struct Envoy<'a> {
    code: bool,
    statuses: Vec<Status<'a>>,
    headers: Vec<(&'a str, &'a str)>,
    body: Option<&'a [u8]>,
    metadata: Option<(&'a str, f64)>,
}

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Bytes(&'a [u8]),
    Check(Check<'a>),
    Envoy(Envoy<'a>),
}

fuzz_target!(init: seeds::write(|| seeds::random(8, 256)), |input: Input<'_>| match input {
    Input::Bytes(bytes) => {
        let (_, peak) = memory::peak_of(|| {
            let _ = CheckResponse::decode(bytes);
            let _ = CheckBatchResult::decode(bytes);
            let _ = RateLimitResponse::decode(bytes);
        });
        assert!(peak <= 65_536 + 512 * bytes.len(), "{peak} bytes for {}", bytes.len());
        walk(Reader::new(bytes), bytes.len(), 0);
    }
    Input::Check(check) => write_check(&check),
    Input::Envoy(envoy) => write_envoy(&envoy),
});

/// Walks through all fields, including those that may be messages.
fn walk(mut reader: Reader<'_>, end: usize, depth: usize) {
    let mut last = None;
    while let Ok(Some(field)) = reader.field() {
        assert!(
            field.offset < end && last.is_none_or(|last| field.offset > last),
            "a walk goes on, and ends"
        );
        last = Some(field.offset);
        if field.wire_type == WireType::Len && depth < 4 {
            let Ok(inner) = reader.message(field) else { return };
            walk(inner, end, depth + 1);
        } else if reader.skip(field).is_err() {
            return;
        }
    }
}

fn write_check(check: &Check<'_>) {
    let reason = |code: u8| Reason::try_from(i32::from(code)).unwrap_or(Reason::Unspecified);
    let outcome = |code: u8| Outcome::try_from(i32::from(code)).unwrap_or(Outcome::Unspecified);
    let limits: Vec<LimitOut<'_>> = check
        .limits
        .iter()
        .map(|limit| LimitOut {
            name: limit.name,
            budget: limit.numbers[0],
            remaining: limit.numbers[1],
            retry_after_ms: limit.retry_after_ms,
            reset_after_ms: limit.numbers[2],
            delay_ms: limit.numbers[3],
            outcome: outcome(limit.outcome),
            reason: reason(limit.reason),
            descriptors: &limit.descriptors,
            cost: limit.numbers[4],
            algorithm: limit.algorithm,
            class: limit.algorithm,
            open_units: limit.numbers[4],
            owed: limit.numbers[5],
            unit: limit.name,
        })
        .collect();
    let out = CheckOut {
        allowed: check.allowed,
        limit: check.limit,
        remaining: check.remaining,
        retry_after_ms: check.retry_after_ms,
        delay_ms: check.delay_ms,
        reason: reason(check.reason),
        limits: &limits,
        charge: Some(ChargeOut {
            charge_id: check.limit,
            is_repeat: check.allowed,
            charged: check.delay_ms,
            lapses_in_ms: check.delay_ms,
        }),
    };
    let mut bytes = Vec::new();
    write_check_response(&mut bytes, &out);
    let read = CheckResponse::decode(&bytes[..]).expect("a response");
    let limit = |limit: &LimitOut<'_>| LimitResult {
        name: limit.name.to_owned(),
        budget: limit.budget,
        remaining: limit.remaining,
        retry_after_ms: limit.retry_after_ms,
        reset_after_ms: limit.reset_after_ms,
        delay_ms: limit.delay_ms,
        outcome: limit.outcome.into(),
        reason: limit.reason.into(),
        descriptors: limit.descriptors.to_vec(),
        cost: limit.cost,
        algorithm: limit.algorithm.to_owned(),
        class: limit.class.to_owned(),
        open_units: limit.open_units,
        owed: limit.owed,
        unit: limit.unit.to_owned(),
    };
    let expected = CheckResponse {
        allowed: out.allowed,
        limit: out.limit.to_owned(),
        remaining: out.remaining,
        retry_after_ms: out.retry_after_ms,
        delay_ms: out.delay_ms,
        reason: out.reason.into(),
        limits: limits.iter().map(limit).collect(),
        charge_id: out.limit.to_owned(),
        is_repeat: out.allowed,
        charged: out.delay_ms,
        lapses_in_ms: out.delay_ms,
    };
    assert_eq!(read, expected);
    assert_eq!(bytes, expected.encode_to_vec());
    let mut twice = Vec::new();
    write_check_result(&mut twice, &out);
    write_check_result(&mut twice, &out);
    assert_eq!(twice, CheckBatchResult { results: vec![expected.clone(), expected] }.encode_to_vec());
    walk(Reader::new(&twice), twice.len(), 0);
}

fn write_envoy(envoy: &Envoy<'_>) {
    let code = |over| if over { Code::OverLimit } else { Code::Ok };
    let mut bytes = Vec::new();
    let mut writer = RateLimitResponseWriter::new(&mut bytes, code(envoy.code));
    for status in &envoy.statuses {
        writer.status(&StatusOut {
            code: code(status.code),
            current_limit: status.limit.map(|(name, requests_per_unit, unit)| CurrentLimitOut {
                name,
                requests_per_unit,
                unit: Unit::try_from(i32::from(unit)).unwrap_or(Unit::Unknown),
                // The messages do not have it yet.
                unit_multiplier: None,
            }),
            limit_remaining: status.remaining,
            duration_until_reset: status
                .reset
                .map(|(seconds, nanos)| Duration::new(seconds, nanos % 1_000_000_000)),
        });
    }
    for (key, value) in &envoy.headers {
        writer.response_header(&HeaderOut { key, value });
    }
    if let Some(body) = envoy.body {
        writer.raw_body(body);
    }
    if let Some((text, number)) = envoy.metadata {
        writer.dynamic_metadata(&[
            MetadataOut { key: "a", value: MetadataValue::String(text) },
            MetadataOut { key: "b", value: MetadataValue::Number(number) },
        ]);
    }
    walk(Reader::new(&bytes), bytes.len(), 0);
    let read = RateLimitResponse::decode(&bytes[..]).expect("a response");
    assert_eq!(read.statuses.len(), envoy.statuses.len());
    for (read, status) in read.statuses.iter().zip(&envoy.statuses) {
        assert_eq!(read.limit_remaining, status.remaining);
        let name = read.current_limit.as_ref().map(|limit| limit.name.as_str());
        assert_eq!(name, status.limit.map(|(name, ..)| name));
        assert_eq!(read.duration_until_reset.is_some(), status.reset.is_some());
    }
    assert_eq!(read.response_headers_to_add.len(), envoy.headers.len());
    assert_eq!(read.raw_body, envoy.body.unwrap_or_default());
    // A map has no order, and NaN does not equal itself.
    if envoy.metadata.is_none() {
        assert_eq!(read.encode_to_vec(), bytes);
    }
}
