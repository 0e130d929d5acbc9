//! Kuadrant's rate limit service, as a gateway calls it.

use std::{net::SocketAddr, slice};

use acequia_api::{
    envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
    kuadrant::service::ratelimit::v1::{
        CommitRequest, ReserveRequest, ReserveResponse, rate_limit_service_client::RateLimitServiceClient,
    },
};
use acequia_tests::{Node, cluster::Cluster, eventually};
use prost::Message as _;
use prost_types::Duration;
use serde_json::json;
use tonic::{Status, transport::Channel};

use crate::{
    client::{Http, RawReply, channel, channel_to, framed, raw_call},
    envoy,
    ratelimit::counted::{counts, replica},
    store::{config_of, listed, servers::Server, start_all, until_pools_grant},
    windows,
};

const SERVICE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService";

/// A budget of tokens a tenant; `fields` are more fields of the limit.
fn budget(limit: u64, fields: &str) -> String {
    let window = windows::long();
    format!(
        "limits: [{{ name: tokens, domain: shop, by: [tenant], {fields} \
         fixed_window: {{ limit: {limit}, window: {window} }} }}]"
    )
}

fn node(fields: &str) -> Node {
    Node::start(&budget(1_000, fields))
}

/// What is left for tenant t1, less what the tenant owes.
fn stand(node: &Node) -> i64 {
    let body = json!({ "domain": "shop", "descriptors": [{ "tenant": "t1" }] }).to_string();
    let answer = Http::connect(node).ask("POST", "/v1/peek", &[], &body).expect("an answer").json();
    let limit = &answer["limits"][0];
    limit["remaining"].as_i64().expect("units") - limit["owed"].as_i64().unwrap_or(0)
}

/// A gateway that asks about tenant t1.
struct Gateway(RateLimitServiceClient<Channel>);

impl Gateway {
    async fn new(node: &Node) -> Self {
        Self::at(node.grpc()).await
    }

    async fn at(address: SocketAddr) -> Self {
        Self(RateLimitServiceClient::new(channel_to(address).await))
    }

    /// `CheckRateLimit`.
    async fn looks(&mut self, hits: u32) -> Code {
        let request = RateLimitRequest { hits_addend: hits, ..envoy::request(&[&[("tenant", "t1")]]) };
        self.0.check_rate_limit(request).await.expect("an answer").into_inner().overall_code()
    }

    async fn reports(&mut self, hits: u32) {
        let request = RateLimitRequest { hits_addend: hits, ..envoy::request(&[&[("tenant", "t1")]]) };
        let answer = self.0.report(request).await.expect("an answer").into_inner();
        assert_eq!(answer.overall_code(), Code::Ok);
    }

    async fn asks_to_reserve(&mut self, request: ReserveRequest) -> Result<ReserveResponse, Status> {
        self.0.reserve(request).await.map(tonic::Response::into_inner)
    }

    /// The id of a reservation; `None` if it does not fit.
    async fn reserves(&mut self, amount: u64, ttl: Option<Duration>) -> Option<String> {
        let answer = self.asks_to_reserve(reservation(amount, ttl)).await.expect("an answer");
        assert_eq!(answer.code() == Code::Ok, !answer.reservation_id.is_empty(), "{answer:?}");
        assert!(matches!(answer.code(), Code::Ok | Code::OverLimit), "{answer:?}");
        (answer.code() == Code::Ok).then_some(answer.reservation_id)
    }

    /// Whether a reservation is settled by the real cost.
    async fn commits(&mut self, id: &str, amount: u64) -> bool {
        let answer = self.0.commit(commit(id, amount)).await;
        answer.expect("an answer").into_inner().reservation_released
    }
}

fn reservation(amount: u64, ttl: Option<Duration>) -> ReserveRequest {
    let RateLimitRequest { domain, descriptors, .. } = envoy::request(&[&[("tenant", "t1")]]);
    ReserveRequest { domain, descriptors, amount, ttl }
}

fn commit(id: &str, actual_amount: u64) -> CommitRequest {
    let RateLimitRequest { domain, descriptors, .. } = envoy::request(&[&[("tenant", "t1")]]);
    CommitRequest { domain, descriptors, reservation_id: id.to_owned(), actual_amount }
}

/// Asks again and again.
async fn at_last(mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000 {
        if is_so().await {
            return;
        }
    }
    panic!("still not so");
}

fn ms(ms: i32) -> Option<Duration> {
    Some(Duration { seconds: 0, nanos: ms * 1_000_000 })
}

#[tokio::test]
async fn a_check_says_whether_hits_would_fit_and_counts_nothing() {
    let node = node("");
    let mut gateway = Gateway::new(&node).await;
    for (hits, code) in
        [(0, Code::Ok), (1_000, Code::Ok), (1_001, Code::OverLimit), (u32::MAX, Code::OverLimit)]
    {
        assert_eq!((gateway.looks(hits).await, stand(&node)), (code, 1_000), "{hits}");
    }
    gateway.reports(999).await;
    assert_eq!((gateway.looks(0).await, gateway.looks(2).await), (Code::Ok, Code::OverLimit));
    gateway.reports(0).await;
    assert_eq!((gateway.looks(0).await, stand(&node)), (Code::OverLimit, 0), "0 hits are reported as one");
}

#[tokio::test]
async fn a_report_is_recorded_whether_it_fits_or_not() {
    let node = node("");
    let mut gateway = Gateway::new(&node).await;
    for left in [400, -200] {
        gateway.reports(600).await;
        assert_eq!(stand(&node), left);
    }
    assert_eq!((gateway.looks(0).await, gateway.reserves(1, None).await), (Code::OverLimit, None));
}

#[tokio::test]
async fn a_reservation_is_settled_once_with_its_real_cost() {
    for (actual, left) in [(0, 1_000), (250, 750), (600, 400), (1_700, -700)] {
        let node = node("");
        let mut gateway = Gateway::new(&node).await;
        let id = gateway.reserves(600, None).await.expect("it fits");
        assert_eq!((stand(&node), gateway.looks(401).await), (400, Code::OverLimit));
        for repeat in [actual, actual, 5] {
            assert!(gateway.commits(&id, repeat).await);
            assert_eq!(stand(&node), left, "{actual} {repeat}");
        }
    }
}

#[tokio::test]
async fn what_does_not_fit_is_not_reserved_and_owes_nothing() {
    for fields in ["", "charge: always,"] {
        let node = node(fields);
        let mut gateway = Gateway::new(&node).await;
        gateway.reserves(600, None).await.expect("it fits");
        for amount in [401, 1_001, u64::MAX] {
            assert_eq!((gateway.reserves(amount, None).await, stand(&node)), (None, 400), "{amount}");
        }
        gateway.reserves(400, None).await.expect("it fits");
        assert_eq!(gateway.looks(0).await, Code::OverLimit);
    }
}

#[tokio::test]
async fn reservations_at_one_time_never_pass_the_limit() {
    let node = node("");
    let gateway = Gateway::new(&node).await;
    let all = (0..50).map(|_| {
        let mut gateway = Gateway(gateway.0.clone());
        async move { gateway.reserves(90, None).await }
    });
    let ids: Vec<String> = futures::future::join_all(all).await.into_iter().flatten().collect();
    assert_eq!((ids.len(), stand(&node)), (11, 10));
}

#[tokio::test]
async fn a_reservation_lapses_and_a_late_cost_counts_in_full_once() {
    let node = node("");
    let mut gateway = Gateway::new(&node).await;
    let ids = [gateway.reserves(600, ms(200)).await, gateway.reserves(300, ms(200)).await];
    let [first, second] = ids.map(|id| id.expect("it fits"));
    assert_eq!(stand(&node), 100);
    eventually("nobody said what they cost", || stand(&node) == 1_000);
    assert!(!gateway.commits(&first, 0).await, "nothing is left to release");
    for actual in [700, 700, 5] {
        assert!(gateway.commits(&second, actual).await);
        assert_eq!(stand(&node), 300);
    }
}

#[tokio::test]
async fn a_cost_without_a_known_reservation_is_recorded() {
    let node = node("");
    let mut gateway = Gateway::new(&node).await;
    for left in [990, 980] {
        assert!(!gateway.commits("", 10).await);
        assert_eq!(stand(&node), left, "a cost without an id is a report, each time");
    }
    assert!(!gateway.commits("", 0).await);
    let mut left = 980;
    let (unknown, stranger) = (format!("eu/eu-1:{:032x}", 7), format!("us/us-9:{:032x}", 8));
    for id in ["7f9c24e8-3b12-4fef-91e0-1ce2a9b9b1f4", "näh", &unknown, &stranger] {
        assert!(!gateway.commits(id, 0).await, "{id}");
        left -= 100;
        for actual in [100, 100, 60] {
            assert!(!gateway.commits(id, actual).await, "{id}");
            assert_eq!(stand(&node), left, "{id}: once, whatever it says later");
        }
    }
    let long_names = format!("{}/{}:{:032x}", "r".repeat(64), "n".repeat(64), 9);
    assert!(!gateway.commits(&long_names, 1).await);
    assert_eq!(stand(&node), left - 1, "as long as an id of ours can be");
}

#[tokio::test]
async fn a_commit_settles_its_reservation_whatever_else_it_says() {
    let node = node("");
    let mut gateway = Gateway::new(&node).await;
    let id = gateway.reserves(600, None).await.expect("it fits");
    let mut other = CommitRequest { domain: "bank".to_owned(), ..commit(&id, 100) };
    other.descriptors[0].entries[0].value = "t2".to_owned();
    assert!(gateway.0.commit(other).await.expect("an answer").into_inner().reservation_released);
    assert_eq!(stand(&node), 900);
    let id = gateway.reserves(600, None).await.expect("it fits");
    let bare = CommitRequest { reservation_id: id, actual_amount: 50, ..CommitRequest::default() };
    assert!(gateway.0.commit(bare).await.expect("an answer").into_inner().reservation_released);
    assert_eq!(stand(&node), 850);
}

#[tokio::test]
async fn an_amount_of_0_looks_unless_a_limit_knows_what_to_expect() {
    let looked = ReserveResponse { code: Code::Ok.into(), reservation_id: String::new() };
    let denied = ReserveResponse { code: Code::OverLimit.into(), ..looked.clone() };
    let plain = node("");
    let mut gateway = Gateway::new(&plain).await;
    for answer in [&looked, &looked, &denied] {
        assert_eq!(gateway.asks_to_reserve(reservation(0, None)).await.as_ref().ok(), Some(answer));
        gateway.reports(500).await;
    }
    let expecting = node("charge: always, expect: { cost: 600, within: 5m },");
    let mut gateway = Gateway::new(&expecting).await;
    let id = gateway.reserves(0, None).await.expect("it fits");
    assert_eq!((stand(&expecting), gateway.reserves(0, None).await), (400, None));
    assert!(gateway.commits(&id, 100).await);
    assert_eq!(stand(&expecting), 900);
    // Beside another reservation, of an amount of its own.
    let id = gateway.reserves(50, None).await.expect("it fits");
    assert!(gateway.commits(&id, 30).await);
    assert_eq!(stand(&expecting), 870);
}

#[tokio::test]
async fn no_time_to_live_is_refused() {
    let node = node("");
    let mut gateway = Gateway::new(&node).await;
    let of = |seconds, nanos| Some(Duration { seconds, nanos });
    let odd = [of(0, 0), of(-1, 0), of(0, -1), of(i64::MIN, i32::MIN), of(3_600, 0), of(i64::MAX, i32::MAX)];
    for ttl in odd {
        gateway.reserves(1, ttl).await.expect("it fits");
    }
    assert_eq!(stand(&node), 994, "none lapses at once");
}

#[tokio::test]
async fn callers_may_do_what_they_are_allowed() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    let calls = ["CheckRateLimit", "Report", "Reserve", "Commit"];
    for (may, domain, passes) in [
        ("check", "shop", [true, false, false, false]),
        ("report", "shop", [false, true, false, false]),
        ("reserve", "shop", [false, false, true, false]),
        ("commit", "shop", [false; 4]),
        ("commit, report", "shop", [false, true, false, true]),
        ("check, report, reserve, commit", "bank", [false; 4]),
    ] {
        std::fs::write(&token, "a-token-of-more-than-sixteen").expect("a file");
        let node = Node::start_whole(&format!(
            "region: eu\nnode: eu-1\nlisten:\n  grpc: {{ address: \"127.0.0.1:0\", allow: [{{ token_file: {}, \
             domains: [{domain}], may: [{may}] }}] }}\n  http: \"127.0.0.1:0\"\n{}",
            token.display(),
            budget(1_000, "")
        ));
        let signed = |mut request: tonic::Request<()>| -> Result<tonic::Request<()>, Status> {
            let bearer = "Bearer a-token-of-more-than-sixteen".parse().expect("a header");
            request.metadata_mut().insert("authorization", bearer);
            Ok(request)
        };
        let mut client = RateLimitServiceClient::with_interceptor(channel(&node).await, signed);
        let request = envoy::request(&[&[("tenant", "t1")]]);
        let said = [
            client.check_rate_limit(request.clone()).await.map(drop),
            client.report(request).await.map(drop),
            client.reserve(reservation(1, None)).await.map(drop),
            client.commit(commit("", 1)).await.map(drop),
        ];
        for ((call, said), passes) in calls.into_iter().zip(said).zip(passes) {
            let code = said.err().map(|fault| fault.code());
            let expected = if passes { None } else { Some(tonic::Code::PermissionDenied) };
            assert_eq!(code, expected, "{call} by who may {may} in {domain}");
        }
    }
}

async fn raw(node: &Node, call: &str, message: &[u8]) -> RawReply {
    raw_call(node, &format!("{SERVICE}/{call}"), "application/grpc", framed(message)).await
}

#[tokio::test]
async fn a_request_that_is_no_request_is_refused_and_charges_nothing() {
    let node = node("");
    let of = |domain: &str, descriptors: &[&[(&str, &str)]]| {
        let RateLimitRequest { descriptors, .. } = envoy::request(descriptors);
        let domain = domain.to_owned();
        let envoys =
            RateLimitRequest { domain: domain.clone(), descriptors: descriptors.clone(), hits_addend: 1 };
        let reserve =
            ReserveRequest { domain: domain.clone(), descriptors: descriptors.clone(), amount: 1, ttl: None };
        let commit = CommitRequest { domain, descriptors, reservation_id: String::new(), actual_amount: 1 };
        [
            ("CheckRateLimit", envoys.encode_to_vec()),
            ("Report", envoys.encode_to_vec()),
            ("Reserve", reserve.encode_to_vec()),
            ("Commit", commit.encode_to_vec()),
        ]
    };
    let t1: &[(&str, &str)] = &[("tenant", "t1")];
    for (requests, words) in [
        (of("", &[t1]), "domain is empty"),
        (of("shop", &[]), "no descriptors"),
        (of("shop", &[&[]]), "no entries"),
        (of("shop", &[&[("", "t1")]]), "empty key"),
        (["CheckRateLimit", "Report", "Reserve", "Commit"].map(|call| (call, vec![0x0a, 9])), "malformed"),
    ] {
        for (call, message) in requests {
            let reply = raw(&node, call, &message).await;
            assert_eq!(reply.code, Some(tonic::Code::InvalidArgument), "{call} {words}: {reply:?}");
            assert!(reply.message.contains(words), "{call}: {reply:?}");
        }
    }
    for id in ["x".repeat(129), "a\nb".to_owned(), "\u{7f}".to_owned()] {
        let reply = raw(&node, "Commit", &commit(&id, 1).encode_to_vec()).await;
        assert_eq!(reply.code, Some(tonic::Code::InvalidArgument), "{reply:?}");
        assert!(reply.message.contains("1 to 128 bytes"), "{reply:?}");
    }
    assert_eq!(stand(&node), 1_000);
}

/// An error would let a request pass that its client made too large, or whose values are no text.
#[tokio::test]
async fn no_size_and_no_byte_of_a_client_makes_an_error_of_a_question() {
    let node = node("");
    let long = "x".repeat((64 << 10) + 1);
    let t1: &[(&str, &str)] = &[("tenant", "t1")];
    let too_large: [&[&[(&str, &str)]]; 3] = [&[&[("tenant", &long)]], &[t1; 65], &[&[("tenant", "t1"); 65]]];
    for descriptors in too_large {
        let envoys = envoy::request(descriptors).encode_to_vec();
        let reply = raw(&node, "CheckRateLimit", &envoys).await;
        let answer = RateLimitResponse::decode(&reply.body[5..]).expect("a response");
        assert_eq!((reply.code, answer.overall_code()), (Some(tonic::Code::Ok), Code::OverLimit));
        let RateLimitRequest { domain, descriptors, .. } = envoy::request(descriptors);
        let reserve = ReserveRequest { domain, descriptors, amount: 1, ttl: None }.encode_to_vec();
        let reply = raw(&node, "Reserve", &reserve).await;
        let answer = ReserveResponse::decode(&reply.body[5..]).expect("a response");
        assert_eq!((answer.code(), answer.reservation_id.as_str()), (Code::OverLimit, ""));
        assert_eq!(raw(&node, "Report", &envoys).await.code, Some(tonic::Code::InvalidArgument));
    }
    // Domain "shop", one descriptor, one entry with key "tenant" and the byte 0xff as value.
    let mut bytes = b"\x0a\x04shop\x12\x0d\x0a\x0b\x0a\x06tenant\x12\x01\xff".to_vec();
    assert_eq!(raw(&node, "CheckRateLimit", &bytes).await.code, Some(tonic::Code::Ok));
    assert_eq!(raw(&node, "Report", &bytes).await.code, Some(tonic::Code::Ok));
    bytes.extend([0x18, 5]);
    let reply = raw(&node, "Reserve", &bytes).await;
    let answer = ReserveResponse::decode(&reply.body[5..]).expect("a response");
    assert!(answer.code() == Code::Ok && !answer.reservation_id.is_empty(), "{answer:?}");
}

#[tokio::test]
async fn a_limit_on_requests_under_way_has_its_slot_back_with_the_commit() {
    let node = Node::start(
        "limits: [{ name: jobs, domain: shop, by: [tenant], concurrent: { limit: 1, ttl: 1m } }]",
    );
    let mut gateway = Gateway::new(&node).await;
    assert_eq!((gateway.looks(1).await, gateway.looks(1).await), (Code::Ok, Code::Ok));
    let id = gateway.reserves(1, None).await.expect("it fits");
    assert_eq!((gateway.looks(1).await, gateway.reserves(1, None).await), (Code::OverLimit, None));
    assert!(gateway.commits(&id, 700).await);
    assert_eq!(gateway.looks(1).await, Code::Ok);
}

#[tokio::test]
async fn reservations_are_settled_by_any_node_of_any_region() {
    let cluster = Cluster::start(&budget(3_000, ""));
    let nodes = &cluster.nodes;
    let mut gateways = Vec::new();
    for node in nodes {
        gateways.push(Gateway::new(node).await);
    }
    let id = gateways[0].reserves(600, None).await.expect("it fits");
    assert_eq!(stand(&nodes[0]), 400);
    for _ in 0..2 {
        assert!(gateways[1].commits(&id, 100).await);
    }
    eventually("the node that reserved is told", || stand(&nodes[0]) == 900);
    let id = gateways[0].reserves(600, ms(200)).await.expect("it fits");
    eventually("it lapses", || stand(&nodes[0]) == 900);
    assert!(gateways[2].commits(&id, 300).await);
    eventually("a late cost counts there", || stand(&nodes[0]) == 600);
}

#[tokio::test]
async fn reservations_are_settled_by_any_node_of_a_region_that_shares_a_store() {
    let server = Server::start(&[]);
    let redis = format!("shards: {}", listed(slice::from_ref(&server)));
    let names = ["eu-1", "eu-2"];
    let nodes = start_all(names.map(|node| config_of(node, &names, &redis, &budget(1_000, ""))));
    until_pools_grant(&nodes);
    let mut gateways = [Gateway::new(&nodes[0]).await, Gateway::new(&nodes[1]).await];
    let mut id = None;
    // A node's lease may come later than the answer.
    at_last(async || {
        id = gateways[0].reserves(100, None).await;
        id.is_some()
    })
    .await;
    assert!(gateways[1].commits(&id.expect("it fits"), 5_000).await);
    eventually("the node that reserved is told", || stand(&nodes[0]) < 0);
}

/// A busy machine may miss the deadline of a call to the Redis. Then hits pass here, and are not counted.
#[tokio::test]
async fn replicas_that_count_in_a_redis_look_and_record_and_set_nothing_apart() {
    let server = Server::start(&[]);
    let replica = replica(&server, &[("ACEQUIA_ON_REDIS_LOSS", "allow")]);
    counts(&replica);
    let mut gateway = Gateway::at(([127, 0, 0, 1], replica.grpc()).into()).await;
    for _ in 0..9 {
        assert_eq!(gateway.looks(0).await, Code::Ok, "five a year, and a look is none");
    }
    let looked = gateway.asks_to_reserve(reservation(0, None)).await.expect("an answer");
    assert_eq!((looked.code(), looked.reservation_id.as_str()), (Code::Ok, ""));
    let fault = gateway.asks_to_reserve(reservation(1, None)).await.expect_err("nothing is remembered");
    assert_eq!(fault.code(), tonic::Code::InvalidArgument, "{fault}");
    assert!(fault.message().contains("Report the cost"), "{fault}");
    at_last(async || {
        gateway.reports(6).await;
        gateway.looks(0).await == Code::OverLimit
    })
    .await;
    for (tenant, id) in [("t2", String::new()), ("t3", format!("eu/eu-1:{:032x}", 7))] {
        let look = envoy::request(&[&[("tenant", tenant)]]);
        let commit = CommitRequest { descriptors: look.descriptors.clone(), ..commit(&id, 6) };
        at_last(async || {
            let answer = gateway.0.commit(commit.clone()).await.expect("an answer").into_inner();
            assert!(!answer.reservation_released);
            let answer = gateway.0.check_rate_limit(look.clone()).await.expect("an answer").into_inner();
            answer.overall_code() == Code::OverLimit
        })
        .await;
    }
}
