//! The requests of all APIs, read without copies. The result equals that of the generated types, except for
//! the differences that `acequia_api::wire` lists.
#![no_main]

use acequia_fuzz::{
    acequia::v1::{self, CheckBatch, CheckRequest},
    envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::RateLimitRequest,
    },
    kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest},
    memory, seeds,
    wire::{
        MAX_CHECKS, Malformed, WireRecord, WireRequest, read_check_batch, read_check_request,
        read_commit_request, read_rate_limit_request, read_reserve_request,
    },
};
use libfuzzer_sys::fuzz_target;
use prost::{DecodeError, Message};

fuzz_target!(init: seeds::write(seeds), |bytes: &[u8]| {
    let mut envoy = WireRequest::default();
    let (read, peak) = memory::peak_of(|| read_rate_limit_request(bytes, &mut envoy));
    assert!(peak <= 4_096 + 256 * bytes.len(), "{peak} bytes for {}", bytes.len());
    agree(read, &envoy, RateLimitRequest::decode(bytes), contents_of_envoy);

    // The request was used before, which must not matter.
    let read = read_check_request(bytes, &mut envoy);
    agree(read, &envoy, CheckRequest::decode(bytes), contents_of_check);

    let (read, reserve) = (read_reserve_request(bytes, &mut envoy), ReserveRequest::decode(bytes));
    if let (Ok(ttl), Ok(reserve)) = (&read, &reserve) {
        assert_eq!(ttl.map(|ttl| (ttl.seconds, ttl.nanos)), reserve.ttl.map(|ttl| (ttl.seconds, ttl.nanos)));
    }
    agree(read.map(drop), &envoy, reserve, contents_of_reserve);
    let read = read_commit_request(bytes, &mut envoy);
    agree(read, &envoy, CommitRequest::decode(bytes), contents_of_commit);

    let checks = read_check_batch(bytes);
    assert!(checks.clone().count() <= MAX_CHECKS + 1);
    if let (Ok(checks), Ok(batch)) = (checks.collect::<Result<Vec<_>, _>>(), CheckBatch::decode(bytes)) {
        assert_eq!(checks.len(), batch.checks.len());
        for (check, prost) in checks.into_iter().zip(batch.checks) {
            let mut ours = WireRequest::default();
            agree(read_check_request(check, &mut ours), &ours, Ok(prost), contents_of_check);
        }
    }
});

/// The contents on which both must agree: the domain, each descriptor's entries and cost, the cost, and the
/// rest.
type Descriptor = (Vec<(Vec<u8>, Vec<u8>)>, Option<u64>, bool, Option<(u32, i32)>);
type Record = (Vec<u8>, bool, Option<(u64, i32, bool)>);
type Contents = (Vec<u8>, Vec<Descriptor>, Option<u64>, bool, Record);

fn agree<M>(
    read: Result<(), Malformed>,
    ours: &WireRequest<'_>,
    prost: Result<M, DecodeError>,
    contents: impl FnOnce(M) -> Contents,
) {
    match (read, prost) {
        (Ok(()), Ok(prost)) => assert_eq!(contents_of(ours), contents(prost)),
        // Our reader does not check that text is UTF-8.
        (Ok(()), Err(error)) => assert!(error.to_string().contains("UTF-8"), "only prost fails: {error}"),
        (Err(error), Ok(_)) => assert!(
            matches!(
                error,
                Malformed::Group { .. }
                    | Malformed::TooManyDescriptors { .. }
                    | Malformed::TooManyEntries { .. }
            ),
            "only ours fails: {error}"
        ),
        (Err(_), Err(_)) => {}
    }
}

fn contents_of(request: &WireRequest<'_>) -> Contents {
    let entries = |(key, value): &(&[u8], &[u8])| (key.to_vec(), value.to_vec());
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let limit = descriptor.limit_override.map(|limit| (limit.requests_per_unit, limit.unit));
        let of = request.entries_of(descriptor).iter().map(entries).collect();
        (of, descriptor.cost, descriptor.is_negative_hits, limit)
    });
    let WireRecord { id, refundable, reserve } = request.record;
    let reserve = reserve.map(|reserve| (reserve.ttl_ms, reserve.on_lapse, reserve.at_most));
    let record = (id.to_vec(), refundable, reserve);
    (request.domain.to_vec(), descriptors.collect(), request.cost, request.detail, record)
}

fn contents_of_envoy(request: RateLimitRequest) -> Contents {
    let descriptor = |descriptor: RateLimitDescriptor| -> Descriptor {
        let entry = |entry: Entry| (entry.key.into_bytes(), entry.value.into_bytes());
        let limit = descriptor.limit.map(|limit: RateLimitOverride| (limit.requests_per_unit, limit.unit));
        let entries = descriptor.entries.into_iter().map(entry).collect();
        (entries, descriptor.hits_addend, descriptor.is_negative_hits, limit)
    };
    let cost = Some(u64::from(request.hits_addend)).filter(|cost| *cost != 0);
    let descriptors = request.descriptors.into_iter().map(descriptor).collect();
    (request.domain.into_bytes(), descriptors, cost, false, Record::default())
}

fn contents_of_reserve(request: ReserveRequest) -> Contents {
    let ReserveRequest { domain, descriptors, amount, .. } = request;
    let (domain, descriptors, _, detail, record) =
        contents_of_envoy(RateLimitRequest { domain, descriptors, hits_addend: 0 });
    (domain, descriptors, Some(amount), detail, record)
}

fn contents_of_commit(request: CommitRequest) -> Contents {
    let CommitRequest { domain, descriptors, reservation_id, actual_amount } = request;
    let (domain, descriptors, _, detail, _) =
        contents_of_envoy(RateLimitRequest { domain, descriptors, hits_addend: 0 });
    (domain, descriptors, Some(actual_amount), detail, (reservation_id.into_bytes(), false, None))
}

fn contents_of_check(request: CheckRequest) -> Contents {
    let descriptor = |descriptor: v1::Descriptor| -> Descriptor {
        let entries =
            descriptor.entries.into_iter().map(|entry| (entry.key.into_bytes(), entry.value.into_bytes()));
        (entries.collect(), descriptor.cost, false, None)
    };
    let descriptors = request.descriptors.into_iter().map(descriptor).collect();
    let reserve = request.reserve.map(|reserve| (reserve.ttl_ms, reserve.on_lapse, reserve.at_most));
    let record = (request.id.into_bytes(), request.refundable, reserve);
    (request.domain.into_bytes(), descriptors, request.cost, request.detail, record)
}

fn seeds() -> Vec<Vec<u8>> {
    let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
    let envoy = RateLimitDescriptor {
        entries: vec![entry("api_key", "k1"), entry("route", "/search")],
        limit: Some(RateLimitOverride { requests_per_unit: 42, unit: 1 }),
        hits_addend: Some(2),
        is_negative_hits: true,
    };
    let rls =
        RateLimitRequest { domain: "shop".into(), descriptors: vec![envoy.clone(), envoy], hits_addend: 3 };
    let ours = v1::Descriptor {
        entries: vec![v1::Entry { key: "api_key".into(), value: "k1".into() }],
        cost: Some(5),
    };
    let check = CheckRequest {
        domain: "shop".into(),
        descriptors: vec![ours.clone(), ours],
        cost: Some(2),
        detail: true,
        id: "once".into(),
        refundable: true,
        reserve: Some(v1::Reserve { ttl_ms: 30_000, on_lapse: 2, at_most: true }),
    };
    let batch = CheckBatch { checks: vec![check.clone(), CheckRequest::default(), check.clone()] };
    let RateLimitRequest { domain, descriptors, .. } = rls.clone();
    let ttl = Some(prost_types::Duration { seconds: 30, nanos: 5 });
    let reserve =
        ReserveRequest { domain: domain.clone(), descriptors: descriptors.clone(), amount: 600, ttl };
    let commit =
        CommitRequest { domain, descriptors, reservation_id: "eu/eu-1:7".into(), actual_amount: 250 };
    let all = [rls.encode_to_vec(), check.encode_to_vec(), batch.encode_to_vec()];
    [&all[..], &[reserve.encode_to_vec(), commit.encode_to_vec()]].concat()
}
