//! `acequia.v1.Limiter`, health and reflection, with the clients that applications use.

use acequia_api::acequia::v1::{
    CheckBatch, CheckRequest, CheckResponse, Descriptor, Entry, Outcome, Reason,
    limiter_client::LimiterClient,
};
use acequia_tests::Node;
use futures::{StreamExt as _, stream};
use tonic::{Code, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::{
    client::{Http, body, channel, check},
    windows,
};

const ENVOY: &str = "envoy.service.ratelimit.v3.RateLimitService";
const KUADRANT: &str = "kuadrant.service.ratelimit.v1.RateLimitService";

pub(crate) async fn limiter(node: &Node) -> LimiterClient<Channel> {
    LimiterClient::new(channel(node).await)
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    Descriptor { entries: entries.iter().map(entry).collect(), cost: None }
}

pub(crate) fn question(entries: &[(&str, &str)]) -> CheckRequest {
    CheckRequest {
        domain: "shop".to_owned(),
        descriptors: vec![descriptor(entries)],
        ..CheckRequest::default()
    }
}

async fn ask(limiter: &mut LimiterClient<Channel>, request: CheckRequest) -> CheckResponse {
    limiter.check(request).await.expect("an answer").into_inner()
}

#[tokio::test]
async fn check_decides_and_lists_limits_when_asked_or_denied() {
    let node = Node::start(&format!(
        "limits: [{{ name: per-key, domain: shop, by: [api_key], fixed_window: {{ limit: 3, window: {} }} }}]",
        windows::long()
    ));
    let mut limiter = limiter(&node).await;
    let plain = question(&[("api_key", "k1")]);

    let allowed = ask(&mut limiter, plain.clone()).await;
    assert!(allowed.allowed);
    assert_eq!((allowed.limit.as_str(), allowed.remaining), ("per-key", Some(2)));
    assert_eq!((allowed.reason(), allowed.retry_after_ms), (Reason::WithinLimit, None));
    assert_eq!(allowed.limits, []);

    let detailed = ask(&mut limiter, CheckRequest { detail: true, ..plain.clone() }).await;
    let [limit] = &detailed.limits[..] else { panic!("{detailed:?}") };
    assert_eq!((limit.name.as_str(), limit.algorithm.as_str()), ("per-key", "fixed_window"));
    assert_eq!((limit.budget, limit.remaining, limit.cost), (3, 1, 1));
    assert_eq!((limit.outcome(), limit.retry_after_ms), (Outcome::Allow, None));
    assert_eq!(limit.descriptors, [0]);
    assert!(limit.reset_after_ms > 0);

    let denied = ask(&mut limiter, CheckRequest { cost: Some(2), ..plain.clone() }).await;
    assert!(!denied.allowed);
    assert_eq!((denied.reason(), denied.remaining), (Reason::OverLimit, Some(1)));
    let [limit] = &denied.limits[..] else { panic!("{denied:?}") };
    assert_eq!((limit.outcome(), limit.cost), (Outcome::Deny, 2));
    // Retries are spread, so not everybody is told to return at the edge.
    assert!(limit.retry_after_ms.is_some() && denied.retry_after_ms >= limit.retry_after_ms, "{denied:?}");

    let nothing = ask(&mut limiter, question(&[("route", "/")])).await;
    assert_eq!((nothing.allowed, nothing.reason()), (true, Reason::NoMatch));
    assert_eq!((nothing.limit.as_str(), nothing.remaining), ("", None));
}

#[tokio::test]
async fn a_descriptor_may_have_a_cost_of_its_own() {
    let node = Node::start(&format!(
        "limits:\n\
         - {{ name: a, domain: shop, by: [a], fixed_window: {{ limit: 10, window: {window} }} }}\n\
         - {{ name: b, domain: shop, by: [b], fixed_window: {{ limit: 10, window: {window} }} }}\n\
         - {{ name: tokens, domain: shop, by: [tokens], cost: 4, token_bucket: {{ rate: 1/h, burst: 10 }} }}\n",
        window = windows::long()
    ));
    let mut limiter = limiter(&node).await;
    let request = CheckRequest {
        domain: "shop".to_owned(),
        descriptors: vec![
            Descriptor { cost: Some(7), ..descriptor(&[("a", "x")]) },
            descriptor(&[("b", "x")]),
        ],
        cost: Some(2),
        detail: true,
        ..CheckRequest::default()
    };
    let answer = ask(&mut limiter, request).await;
    let left: Vec<_> = answer.limits.iter().map(|limit| (limit.name.as_str(), limit.remaining)).collect();
    assert_eq!(left, [("a", 3), ("b", 8)]);
    assert_eq!((answer.limit.as_str(), answer.remaining), ("a", Some(3)));

    // In this limit every unit of cost weighs four.
    assert_eq!(ask(&mut limiter, question(&[("tokens", "x")])).await.remaining, Some(6));
    let heavy = CheckRequest { cost: Some(2), ..question(&[("tokens", "x")]) };
    let denied = ask(&mut limiter, heavy).await;
    assert_eq!((denied.allowed, denied.remaining), (false, Some(6)));
}

#[tokio::test]
async fn a_stream_answers_every_message_in_order() {
    const MESSAGES: usize = 50;
    const CHECKS: usize = 100;
    let node = Node::start(&format!(
        "data: DATA\n\
         limits: [{{ name: all, domain: shop, by: [api_key], fixed_window: {{ limit: 4900, window: {} }} }}]",
        windows::long()
    ));
    let mut limiter = limiter(&node).await;
    // Every tenth check is of another kind, which its answer shows. An answer in the wrong place would be
    // noticed.
    let check = |number: usize| match number % 10 {
        0 => question(&[("route", "/")]),
        1 => CheckRequest { detail: true, ..question(&[("api_key", "k")]) },
        _ => question(&[("api_key", "k")]),
    };
    let batch = move |message: usize| CheckBatch {
        checks: (message * CHECKS..(message + 1) * CHECKS).map(check).collect(),
    };
    // All messages are sent, whether or not any answer has arrived.
    let sent = stream::iter((0..MESSAGES).map(batch));
    let answers = limiter.check_stream(sent).await.expect("a stream").into_inner();
    let answers: Vec<_> = answers.map(|answer| answer.expect("an answer").results).collect().await;

    assert_eq!(answers.len(), MESSAGES);
    let mut left = 4900;
    for (number, result) in answers.iter().flatten().enumerate() {
        if number % 10 == 0 {
            assert_eq!((result.reason(), result.remaining), (Reason::NoMatch, None), "check {number}");
            continue;
        }
        assert_eq!(result.allowed, left > 0, "check {number}");
        left -= u64::from(result.allowed);
        assert_eq!(result.remaining, Some(left), "check {number}");
        let detailed = number % 10 == 1 || !result.allowed;
        assert_eq!(result.limits.len(), usize::from(detailed), "check {number}");
    }
    assert_eq!(answers.iter().map(Vec::len).sum::<usize>(), MESSAGES * CHECKS);
}

#[tokio::test]
async fn a_stream_answers_while_it_is_open() {
    let node = Node::start("limits: [{ name: b, domain: shop, token_bucket: { rate: 1/h, burst: 9 } }]");
    let mut limiter = limiter(&node).await;
    let (send, receive) = tokio::sync::mpsc::channel(1);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(receive);
    let mut answers = limiter.check_stream(outgoing).await.expect("a stream").into_inner();
    for turn in 1..=5 {
        let batch = CheckBatch { checks: vec![question(&[("k", "v")])] };
        send.send(batch).await.expect("the stream is open");
        let answer = answers.message().await.expect("no fault").expect("an answer");
        assert_eq!(answer.results[0].remaining, Some(9 - turn));
        // Each message has one answer.
        assert_eq!(answer.results.len(), 1);
    }
    send.send(CheckBatch::default()).await.expect("the stream is open");
    let empty = answers.message().await.expect("no fault").expect("an answer");
    assert_eq!(empty.results, []);
    drop(send);
    assert!(answers.message().await.expect("no fault").is_none(), "it ends when the caller has ended it");
}

#[tokio::test]
async fn a_message_with_a_fault_ends_the_stream_and_charges_nothing() {
    let node = Node::start("limits: [{ name: b, domain: shop, token_bucket: { rate: 1/h, burst: 999 } }]");
    let mut limiter = limiter(&node).await;
    let good = || question(&[("k", "v")]);
    let free = || CheckRequest { cost: Some(0), ..good() };
    let batches = vec![
        CheckBatch { checks: vec![good(), good()] },
        CheckBatch { checks: vec![good(), free(), good()] },
        CheckBatch { checks: vec![good()] },
    ];
    let mut answers = limiter.check_stream(stream::iter(batches)).await.expect("a stream").into_inner();
    let first = answers.message().await.expect("no fault").expect("an answer");
    assert_eq!(first.results.len(), 2);
    let fault = answers.message().await.expect_err("a fault");
    assert_eq!(fault.code(), Code::InvalidArgument);
    assert!(fault.message().contains("cost of 0"), "{fault}");
    assert_eq!(ask(&mut limiter, good()).await.remaining, Some(996));

    let crowd = CheckBatch { checks: vec![good(); 1_001] };
    let mut answers = limiter.check_stream(stream::iter([crowd])).await.expect("a stream").into_inner();
    let fault = answers.message().await.expect_err("a fault");
    assert_eq!(fault.code(), Code::InvalidArgument);
    assert!(fault.message().contains("1000"), "{fault}");
    assert_eq!(ask(&mut limiter, good()).await.remaining, Some(995));
}

#[tokio::test]
async fn peek_charges_nothing_and_explains() {
    let node = Node::start(&format!(
        "limits:\n\
         - {{ name: per-key, domain: shop, by: [api_key], fixed_window: {{ limit: 2, window: {window} }} }}\n\
         - {{ name: search, domain: shop, when: {{ route: /search }}, by: [api_key], fixed_window: {{ limit: 5, window: {window} }} }}\n\
         - {{ name: per-tenant, domain: shop, by: [tenant], fixed_window: {{ limit: 5, window: {window} }} }}\n\
         - {{ name: resting, domain: shop, mode: off, fixed_window: {{ limit: 5, window: {window} }} }}\n\
         - {{ name: elsewhere, domain: bank, fixed_window: {{ limit: 5, window: {window} }} }}\n",
        window = windows::long()
    ));
    let mut limiter = limiter(&node).await;
    let request = question(&[("api_key", "k"), ("route", "/home")]);

    for _ in 0..3 {
        let peek = limiter.peek(request.clone()).await.expect("an answer").into_inner();
        let verdict = peek.verdict.expect("a verdict");
        // The request would pass. Nothing was charged, so everything is left.
        assert_eq!((verdict.allowed, verdict.remaining), (true, Some(2)));
        assert_eq!(verdict.limits.len(), 1);
        let why: Vec<_> = peek.unmatched.iter().map(|u| (u.name.as_str(), u.why.as_str())).collect();
        assert_eq!(
            why,
            [
                ("search", "route is /home, wanted route /search"),
                ("per-tenant", "no entry tenant"),
                ("resting", "mode is off"),
            ]
        );
    }
    assert_eq!(ask(&mut limiter, request.clone()).await.remaining, Some(1));
    assert_eq!(ask(&mut limiter, request.clone()).await.remaining, Some(0));
    let peek = limiter.peek(request).await.expect("an answer").into_inner();
    let verdict = peek.verdict.expect("a verdict");
    assert_eq!((verdict.allowed, verdict.reason()), (false, Reason::OverLimit));
    assert!(verdict.retry_after_ms.is_some());
}

#[tokio::test]
async fn every_protocol_asks_the_same_cells() {
    let node = Node::start(
        "workers: 4\nlimits: [{ name: b, domain: shop, by: [k], token_bucket: { rate: 1/h, burst: 9 } }]",
    );
    for turn in 0..3 {
        // New connections reach other workers.
        let mut limiter = limiter(&node).await;
        let answer = ask(&mut limiter, question(&[("k", "v")])).await;
        assert_eq!(answer.remaining, Some(8 - 3 * turn));
        assert_eq!(check(&node, &[("k", "v")])["remaining"], 7 - 3 * turn);
        let response = crate::envoy::ask(&node, crate::envoy::request(&[&[("k", "v")]])).await;
        assert_eq!(u64::from(response.statuses[0].limit_remaining), 6 - 3 * turn);
    }
}

#[tokio::test]
async fn a_crowd_gets_the_limit_and_not_one_more() {
    const LIMIT: usize = 1_000;
    const EACH: usize = 150;
    let node = Node::start(&format!(
        "workers: 4\n\
         data: DATA\n\
         limits:\n\
         - {{ name: all, domain: shop, fixed_window: {{ limit: {LIMIT}, window: {} }} }}\n\
         - {{ name: per-key, domain: shop, by: [k], token_bucket: {{ rate: 1/h, burst: {EACH} }} }}\n",
        windows::long()
    ));
    let address = node.http();
    let over_http = (0..4).map(|_| {
        tokio::task::spawn_blocking(move || {
            let (mut http, question) = (Http::to(address), body(&[("k", "http")]));
            (0..EACH).filter(|_| http.check(&question).json()["allowed"] == true).count()
        })
    });
    let over_http: Vec<_> = over_http.collect();
    let over_streams = futures::future::join_all((0..8).map(async |key: usize| {
        let mut limiter = limiter(&node).await;
        let batch = CheckBatch { checks: vec![question(&[("k", &key.to_string())]); 10] };
        let sent = stream::iter(vec![batch; EACH / 10 + 1]);
        let answers = limiter.check_stream(sent).await.expect("a stream").into_inner();
        let allowed = answers
            .map(|answer| answer.expect("an answer").results.iter().filter(|result| result.allowed).count());
        allowed.collect::<Vec<_>>().await.into_iter().sum::<usize>()
    }));
    let over_streams = over_streams.await;
    let over_http: Vec<usize> = futures::future::join_all(over_http)
        .await
        .into_iter()
        .map(|count| count.expect("no panic"))
        .collect();

    assert!(over_streams.iter().all(|allowed| *allowed <= EACH), "{over_streams:?}");
    assert!(over_http.iter().sum::<usize>() <= EACH, "{over_http:?}");
    let allowed = over_streams.iter().chain(&over_http).sum::<usize>();
    assert_eq!(allowed, LIMIT, "{over_streams:?} {over_http:?}");
}

#[tokio::test]
async fn exempt_watched_and_delayed_requests_say_so() {
    let node = Node::start(
        "limits:\n\
         - { name: plan, domain: shop, by: [tenant], token_bucket: { rate: 1/h, burst: 1 }, unlimited: { tenant: internal } }\n\
         - { name: watched, domain: shop, by: [watched], mode: shadow, token_bucket: { rate: 1/h, burst: 1 } }\n\
         - { name: queue, domain: shop, by: [queue], leaky_bucket: { rate: 1/m, queue: 2 } }\n",
    );
    let mut limiter = limiter(&node).await;
    let mut twice = async |entries: &[(&str, &str)]| {
        let request = CheckRequest { detail: true, ..question(entries) };
        ask(&mut limiter, request.clone()).await;
        ask(&mut limiter, request).await
    };
    let exempt = twice(&[("tenant", "internal")]).await;
    assert_eq!((exempt.allowed, exempt.reason()), (true, Reason::Unlimited));
    assert_eq!(exempt.limits[0].outcome(), Outcome::Unlimited);
    let watched = twice(&[("watched", "w")]).await;
    assert_eq!((watched.allowed, watched.limits[0].outcome()), (true, Outcome::ShadowDeny));
    let delayed = twice(&[("queue", "q")]).await;
    assert!(delayed.allowed && (40_000..=60_000).contains(&delayed.delay_ms), "{delayed:?}");
}

#[tokio::test]
async fn a_node_says_that_it_is_healthy() {
    let node = Node::start("");
    let mut health = HealthClient::new(channel(&node).await);
    for service in ["", "acequia.v1.Limiter", ENVOY, KUADRANT] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = health.check(request).await.expect("an answer").into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    let unknown = HealthCheckRequest { service: "nobody".to_owned() };
    assert_eq!(health.check(unknown).await.expect_err("unknown").code(), Code::NotFound);
}

#[tokio::test]
async fn reflection_lists_the_services_and_their_files() {
    let node = Node::start("");
    let mut reflection = ServerReflectionClient::new(channel(&node).await);
    let ask = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let requests = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("acequia.v1.Limiter".to_owned())),
        ask(MessageRequest::FileContainingSymbol("envoy.service.ratelimit.v3.RateLimitRequest".to_owned())),
        ask(MessageRequest::FileContainingSymbol(KUADRANT.to_owned())),
    ];
    let answers = reflection.server_reflection_info(stream::iter(requests)).await.expect("a stream");
    let answers: Vec<_> = answers
        .into_inner()
        .map(|a| a.expect("an answer").message_response.expect("a message"))
        .collect()
        .await;
    let [MessageResponse::ListServicesResponse(services), files @ ..] = &answers[..] else {
        panic!("{answers:?}")
    };
    let names: Vec<&str> = services.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["acequia.v1.Limiter", ENVOY, KUADRANT, "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    for file in files {
        let MessageResponse::FileDescriptorResponse(file) = file else { panic!("{file:?}") };
        assert!(!file.file_descriptor_proto.is_empty());
    }
}
