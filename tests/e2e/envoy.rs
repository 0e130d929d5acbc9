//! Envoy's `ShouldRateLimit`, as a proxy calls it.

use std::time::Duration;

use acequia_api::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
        rate_limit_service_client::RateLimitServiceClient,
    },
    r#type::v3::RateLimitUnit,
};
use acequia_tests::Node;

use crate::{client::channel, windows};

/// A request in the domain `shop`.
pub(crate) fn request(descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: descriptors.iter().map(|entries| descriptor(entries)).collect(),
        hits_addend: 0,
    }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

pub(crate) async fn ask(node: &Node, request: RateLimitRequest) -> RateLimitResponse {
    let mut client = RateLimitServiceClient::new(channel(node).await);
    client.should_rate_limit(request).await.expect("an answer").into_inner()
}

/// Asks about one descriptor.
async fn one(node: &Node, entries: &[(&str, &str)]) -> DescriptorStatus {
    let response = ask(node, request(&[entries])).await;
    assert_eq!(response.statuses.len(), 1);
    assert_eq!(response.overall_code, response.statuses[0].code);
    response.statuses.into_iter().next().expect("a status")
}

fn duration(status: &DescriptorStatus) -> Duration {
    let duration = status.duration_until_reset.expect("a duration");
    Duration::try_from(duration).expect("a duration above 0")
}

#[tokio::test]
async fn every_descriptor_has_a_status_in_its_place() {
    let node = Node::start(&format!(
        "limits:\n\
         - {{ name: per-key, domain: shop, by: [api_key], fixed_window: {{ limit: 2, window: {window} }} }}\n\
         - {{ name: per-route, domain: shop, by: [route], fixed_window: {{ limit: 9, window: {window} }} }}\n\
         - {{ name: free, domain: shop, by: [tenant], unlimited: {{ tenant: internal }}, fixed_window: {{ limit: 0, window: {window} }} }}\n",
        window = windows::long()
    ));
    let all = request(&[
        &[("route", "/r")],
        &[("nothing", "matches")],
        &[("api_key", "k")],
        &[("tenant", "internal")],
    ]);
    for left in [1, 0] {
        let response = ask(&node, all.clone()).await;
        assert_eq!(response.overall_code(), Code::Ok);
        let [route, unmatched, key, exempt] = &response.statuses[..] else { panic!("{response:?}") };
        assert_eq!((route.code(), route.limit_remaining), (Code::Ok, 7 + left));
        assert_eq!((key.code(), key.limit_remaining), (Code::Ok, left));
        assert_eq!((unmatched.code(), &unmatched.current_limit), (Code::Ok, &None));
        assert_eq!((exempt.code(), exempt.limit_remaining), (Code::Ok, u32::MAX));
        assert_eq!((&exempt.current_limit, &exempt.duration_until_reset), (&None, &None));
    }

    let response = ask(&node, all).await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    let codes: Vec<Code> = response.statuses.iter().map(DescriptorStatus::code).collect();
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit, Code::Ok]);
    let key = &response.statuses[2];
    assert_eq!(key.limit_remaining, 0);
    assert_eq!(key.current_limit.as_ref().map(|limit| limit.name.as_str()), Some("per-key"));
    assert!(duration(key) > Duration::from_secs(60));
    assert_eq!(one(&node, &[("route", "/r")]).await.limit_remaining, 6, "the denied request charged nothing");
}

#[tokio::test]
async fn hits_are_added_and_a_request_of_none_shows_what_is_left() {
    let node = Node::start(&format!(
        "limits: [{{ name: per-key, domain: shop, by: [api_key], fixed_window: {{ limit: 10, window: {} }} }}]",
        windows::long()
    ));
    let key = [("api_key", "k")];
    let hits = |request_level: u32, own: Option<u64>| RateLimitRequest {
        descriptors: vec![RateLimitDescriptor { hits_addend: own, ..descriptor(&key) }],
        hits_addend: request_level,
        ..request(&[])
    };
    let left = async |request| ask(&node, request).await.statuses[0].limit_remaining;

    assert_eq!(left(hits(0, None)).await, 9, "0 means 1");
    assert_eq!(left(hits(3, None)).await, 6);
    assert_eq!(left(hits(3, Some(1))).await, 5, "a descriptor's own number wins");
    for _ in 0..3 {
        // A request without hits shows whether one more would pass, and what is left.
        assert_eq!(left(hits(3, Some(0))).await, 5);
    }
    let given_back =
        RateLimitDescriptor { is_negative_hits: true, ..hits(0, Some(4)).descriptors[0].clone() };
    left(RateLimitRequest { descriptors: vec![given_back], ..request(&[]) }).await;
    assert_eq!(
        left(hits(0, Some(5))).await,
        0,
        "nothing was charged by requests of none, nothing given back"
    );

    let shown = ask(&node, hits(0, Some(0))).await;
    assert_eq!(shown.overall_code(), Code::OverLimit);
    let beyond = ask(&node, hits(u32::MAX, None)).await;
    assert_eq!(beyond.overall_code(), Code::OverLimit);
}

#[tokio::test]
async fn a_limit_is_reported_in_envoys_units() {
    let zone = windows::zone();
    let node = Node::start(&format!(
        "limits:\n\
         - {{ name: rate, domain: shop, by: [rate], token_bucket: {{ rate: 60/s, burst: 120 }} }}\n\
         - {{ name: slow, domain: shop, by: [slow], token_bucket: {{ rate: 5/m, burst: 120 }} }}\n\
         - {{ name: hour, domain: shop, by: [hour], fixed_window: {{ limit: 7, window: 1h }} }}\n\
         - {{ name: day, domain: shop, by: [day], quota: {{ limit: 70, per: day, time_zone: {zone} }} }}\n\
         - {{ name: month, domain: shop, by: [month], quota: {{ limit: 700, per: month }} }}\n\
         - {{ name: odd, domain: shop, by: [odd], sliding_window: {{ limit: 9, window: 10s }} }}\n\
         - {{ name: vast, domain: shop, by: [vast], fixed_window: {{ limit: 9000M, window: 1m }} }}\n"
    ));
    let reported = async |name: &str| {
        let status = one(&node, &[(name, "x")]).await;
        let limit = status.current_limit.clone().expect("a limit");
        assert_eq!((limit.name.as_str(), status.code()), (name, Code::Ok));
        let until_reset = duration(&status);
        (limit.requests_per_unit, limit.unit(), status.limit_remaining, until_reset)
    };
    let hour = Duration::from_secs(3_600);

    let (units, unit, left, reset) = reported("rate").await;
    assert_eq!((units, unit, left), (60, Unit::Second, 119));
    assert!(reset > Duration::ZERO && reset <= Duration::from_secs(1), "{reset:?}");
    let (units, unit, left, reset) = reported("slow").await;
    assert_eq!((units, unit, left), (5, Unit::Minute, 119));
    assert!(reset > Duration::ZERO && reset <= Duration::from_secs(12), "{reset:?}");
    let (units, unit, _, reset) = reported("hour").await;
    assert_eq!((units, unit), (7, Unit::Hour));
    assert!(reset <= hour);
    let (units, unit, left, reset) = reported("day").await;
    assert_eq!((units, unit, left), (70, Unit::Day, 69));
    assert!(reset > 9 * hour && reset <= 24 * hour, "{reset:?}");
    let (units, unit, _, reset) = reported("month").await;
    assert_eq!((units, unit), (700, Unit::Month));
    assert!(reset <= 31 * 24 * hour);
    let (units, unit, left, reset) = reported("odd").await;
    assert_eq!((units, unit, left), (9, Unit::Second, 8), "ten seconds, by `unit_multiplier`");
    assert!(reset <= Duration::from_secs(10));
    let (units, unit, left, _) = reported("vast").await;
    assert_eq!(
        (units, unit, left),
        (u32::MAX, Unit::Minute, u32::MAX),
        "what does not fit is the most that does"
    );
}

#[tokio::test]
async fn who_cannot_wait_is_denied_unless_the_limit_says_otherwise() {
    let node = Node::start(
        "limits:\n\
         - { name: strict, domain: shop, by: [strict], leaky_bucket: { rate: 1/m, queue: 5 } }\n\
         - { name: lenient, domain: shop, by: [lenient], leaky_bucket: { rate: 1/m, queue: 2, no_wait: allow } }\n",
    );
    assert_eq!(one(&node, &[("strict", "s")]).await.code(), Code::Ok);
    for _ in 0..2 {
        let denied = one(&node, &[("strict", "s")]).await;
        assert_eq!(denied.code(), Code::OverLimit);
        let wait = duration(&denied);
        assert!(wait > Duration::from_secs(40) && wait <= Duration::from_secs(60), "{wait:?}");
        assert_eq!(denied.limit_remaining, 4, "a denial takes no place in the queue");
    }
    for code in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(one(&node, &[("lenient", "l")]).await.code(), code);
    }
}

#[tokio::test]
async fn a_caller_cannot_bring_its_own_limit() {
    let node =
        Node::start("limits: [{ name: b, domain: shop, by: [k], token_bucket: { rate: 1/h, burst: 2 } }]");
    let generous = RateLimitOverride { requests_per_unit: 1_000_000, unit: RateLimitUnit::Second.into() };
    let mut asked = request(&[&[("k", "v")]]);
    asked.descriptors[0].limit = Some(generous);
    for code in [Code::Ok, Code::Ok, Code::OverLimit] {
        let response = ask(&node, asked.clone()).await;
        assert_eq!(response.overall_code(), code);
        let limit = response.statuses[0].current_limit.as_ref().expect("a limit");
        assert_eq!((limit.requests_per_unit, limit.unit()), (1, Unit::Hour));
    }
    // And no limit where the config has none.
    asked.descriptors[0].entries[0].key = "other".to_owned();
    let response = ask(&node, asked).await;
    assert_eq!((response.overall_code(), &response.statuses[0].current_limit), (Code::Ok, &None));
}

#[tokio::test]
async fn headers_go_out_with_denials_or_as_the_config_says() {
    let limits = format!(
        "limits: [{{ name: w, domain: shop, fixed_window: {{ limit: 1, window: {} }} }}]",
        windows::long()
    );
    let plain = Node::start(&limits);
    let quiet = Node::start(&format!("headers: {{ envoy: [] }}\n{limits}"));
    let telling = Node::start(&format!("headers: {{ envoy: [x-ratelimit, draft-11] }}\n{limits}"));
    for allowed in [true, false] {
        let response = ask(&quiet, request(&[&[("k", "v")]])).await;
        assert_eq!(response.response_headers_to_add, []);
        let response = ask(&plain, request(&[&[("k", "v")]])).await;
        let names: Vec<&str> =
            response.response_headers_to_add.iter().map(|header| header.key.as_str()).collect();
        let by_default = ["retry-after", "ratelimit-policy", "ratelimit"];
        assert_eq!(names, if allowed { &[][..] } else { &by_default[..] });
        let response = ask(&telling, request(&[&[("k", "v")]])).await;
        assert_eq!(response.overall_code() == Code::Ok, allowed);
        let headers = &response.response_headers_to_add;
        let names: Vec<&str> = headers.iter().map(|header| header.key.as_str()).collect();
        let expected = [
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "ratelimit-policy",
            "ratelimit",
        ];
        if allowed {
            assert_eq!(names, expected);
        } else {
            assert_eq!(names[0], "retry-after");
            assert_eq!(names[1..], expected);
        }
        let values: Vec<&str> = headers.iter().map(|header| header.value.as_str()).collect();
        assert!(values.contains(&"1") && values.iter().all(|value| !value.is_empty()), "{values:?}");
        assert_eq!(response.request_headers_to_add, []);
    }
}

#[tokio::test]
async fn a_denial_says_which_limit_and_why() {
    let node = Node::start(
        "limits:\n\
         - { name: tight, domain: shop, by: [k], token_bucket: { rate: 1/h, burst: 1 } }\n\
         - { name: roomy, domain: shop, by: [k], token_bucket: { rate: 1/h, burst: 9 } }\n",
    );
    let allowed = ask(&node, request(&[&[("k", "v")]])).await;
    assert_eq!((allowed.overall_code(), allowed.dynamic_metadata), (Code::Ok, None));
    let denied = ask(&node, request(&[&[("k", "v")]])).await;
    assert_eq!(denied.overall_code(), Code::OverLimit);
    let metadata = denied.dynamic_metadata.expect("metadata");
    let text = |key: &str| match metadata.fields.get(key).and_then(|value| value.kind.as_ref()) {
        Some(prost_types::value::Kind::StringValue(text)) => text.clone(),
        other => panic!("{key} is {other:?}"),
    };
    assert_eq!((text("limit").as_str(), text("reason").as_str()), ("tight", "over-limit"));
    assert_eq!(metadata.fields.len(), 2);
}

#[tokio::test]
async fn a_limit_that_only_watches_is_not_reported() {
    let node = Node::start(
        "limits: [{ name: watched, domain: shop, by: [k], mode: shadow, token_bucket: { rate: 1/h, burst: 1 } }]",
    );
    for _ in 0..3 {
        let status = one(&node, &[("k", "v")]).await;
        assert_eq!((status.code(), status.current_limit), (Code::Ok, None));
    }
}
