//! Charges that a proxy settles when a stream is done, over Envoy's protocol: raw calls, and the real Envoy.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use acequia_api::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code},
};
use acequia_tests::{Node, cluster::Cluster, eventually};
use serde_json::{Value, json};

use crate::{
    client::{Http, metric},
    envoy,
    pages::ROOT,
    reports::Gateway,
    store::servers::free_port,
    windows,
};

/// A budget of 100 units a tenant. Descriptors with other keys are not counted.
fn budget(window: &str) -> String {
    format!(
        "limits: [{{ name: jobs, domain: shop, by: [tenant], exact: true, fixed_window: {{ limit: 100, window: {window} }} }}]"
    )
}

fn post(node: &Node, path: &str, body: &Value) -> Value {
    Http::connect(node).ask("POST", path, &[], &body.to_string()).expect("an answer").json()
}

/// Charges 40 units; returns the id of the charge.
fn charge(node: &Node) -> String {
    let body =
        json!({ "domain": "shop", "descriptors": [{ "tenant": "t1" }], "cost": 40, "refundable": true });
    let answer = post(node, "/v1/check", &body);
    answer["charge_id"].as_str().unwrap_or_else(|| panic!("no id in {answer}")).to_owned()
}

fn left(node: &Node) -> u64 {
    let peeked = post(node, "/v1/peek", &json!({ "domain": "shop", "descriptors": [{ "tenant": "t1" }] }));
    peeked["limits"][0]["remaining"].as_u64().unwrap_or_else(|| panic!("no limit in {peeked}"))
}

/// What a proxy says of a charge when a stream is done.
fn done(id: &str, hits: Option<u64>) -> RateLimitRequest {
    let mut request = envoy::request(&[&[("tenant", "t1"), ("acequia.charge", id)]]);
    request.descriptors[0].hits_addend = hits;
    request
}

/// The request, whose hits come back.
fn negative(mut request: RateLimitRequest) -> RateLimitRequest {
    request.descriptors[0].is_negative_hits = true;
    request
}

/// Asks, and checks that every descriptor passes.
async fn passes(node: &Node, request: RateLimitRequest) {
    let descriptors = request.descriptors.len();
    let response = envoy::ask(node, request).await;
    assert_eq!(response.overall_code(), Code::Ok, "{response:?}");
    assert_eq!(response.statuses.len(), descriptors);
    assert!(response.statuses.iter().all(|status| status.code() == Code::Ok), "{response:?}");
    assert_eq!(response.dynamic_metadata, None);
}

fn settled(node: &Node, outcome: &str) -> f64 {
    metric(node, "acequia_settled_total", &[("outcome", outcome)])
}

fn ignored(node: &Node, why: &str) -> f64 {
    metric(node, "acequia_settlements_ignored_total", &[("why", why)])
}

/// Makes the request of a done stream for a charge.
type Saying = fn(&str) -> RateLimitRequest;

#[tokio::test]
async fn a_done_stream_settles_its_charge_once() {
    let node = Node::start(&budget(&windows::long()));
    // Hits commit; none, or negative ones, release. What comes second changes nothing.
    let says: [(Saying, u64); 5] = [
        (|id| done(id, Some(25)), 25),
        (|id| RateLimitRequest { hits_addend: 25, ..done(id, None) }, 25),
        (|id| done(id, Some(0)), 0),
        (|id| negative(done(id, Some(25))), 0),
        (|id| done(id, None), 1),
    ];
    let mut stands = 100;
    for (says, spent) in says {
        let id = charge(&node);
        stands -= spent;
        for request in [says(&id), done(&id, Some(0))] {
            passes(&node, request).await;
            assert_eq!(left(&node), stands);
        }
    }
    // A real cost beyond the charge is owed, and a cell owes a bounded number of units.
    passes(&node, done(&charge(&node), Some(u64::MAX))).await;
    assert_eq!(left(&node), 0);
    assert!((settled(&node, "done") - 6.0).abs() < 0.5 && (settled(&node, "before") - 5.0).abs() < 0.5);
}

#[tokio::test]
async fn what_names_no_charge_changes_nothing_and_is_no_error() {
    let node = Node::start(&budget(&windows::long()));
    let id = charge(&node);
    let (from, number) = id.rsplit_once(':').expect("a node and a number");
    let malformed =
        ["", ":", "x", from, number, &format!("{id}0"), &id.replace(':', "\u{1}"), &"x".repeat(70_000)];
    for text in malformed {
        passes(&node, done(text, Some(25))).await;
        passes(&node, done(text, Some(0))).await;
    }
    assert!((ignored(&node, "malformed") - 16.0).abs() < 0.5);
    let forged = format!("{from}:{:032x}", 1);
    for text in [forged.as_str(), &id.replace("eu/", "mars/"), &format!(":{number}"), &format!("eu/{id}")] {
        passes(&node, done(text, Some(u64::MAX))).await;
        passes(&node, done(text, Some(0))).await;
    }
    assert!((settled(&node, "unknown") - 8.0).abs() < 0.5);
    assert_eq!(left(&node), 60);
    // As many ids as a request may have, among them one that counts, twice.
    let mut many = done(&forged, Some(0));
    many.descriptors = vec![many.descriptors[0].clone(); 62];
    many.descriptors.extend(vec![done(&id, Some(10)).descriptors[0].clone(); 2]);
    passes(&node, many).await;
    assert_eq!(left(&node), 90);
}

#[tokio::test]
async fn descriptors_beside_an_id_are_decided_in_their_places() {
    let node = Node::start(&budget(&windows::long()));
    let mut request = envoy::request(&[
        &[("tenant", "t1")],
        &[("acequia.charge", &charge(&node))],
        &[("nothing", "matches")],
        &[("tenant", "t2")],
    ]);
    request.descriptors[0].hits_addend = Some(7);
    request.descriptors[3].hits_addend = Some(101);
    let response = envoy::ask(&node, request.clone()).await;
    let codes: Vec<Code> = response.statuses.iter().map(|status| status.code()).collect();
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit]);
    assert_eq!(
        left(&node),
        99,
        "the charge was settled with one hit, and the denied request charged nothing"
    );
    request.descriptors.pop();
    let response = envoy::ask(&node, request).await;
    let left: Vec<u32> = response.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!((response.overall_code(), &left[..]), (Code::Ok, &[92, 0, 0][..]));
}

#[tokio::test]
async fn negative_hits_come_back_only_where_the_operator_says_so() {
    let back = |tenant: &str, hits: u64| {
        let mut request = envoy::request(&[&[("tenant", tenant)]]);
        request.descriptors[0].hits_addend = Some(hits);
        negative(request)
    };
    for (head, stands, counted) in [("", 60, 3.0), ("domains: { shop: { negative_hits: true } }\n", 100, 1.0)]
    {
        let node = Node::start(&format!("{head}{}", budget(&windows::long())));
        charge(&node);
        passes(&node, back("t1", 15)).await;
        assert_eq!(left(&node), if counted > 2.0 { 60 } else { 75 });
        // No more comes back than was charged, and nothing to a tenant without a charge.
        passes(&node, back("t1", u64::MAX)).await;
        passes(&node, back("t2", 5)).await;
        assert_eq!(left(&node), stands);
        assert!((ignored(&node, "nameless") - counted).abs() < 0.5, "{head}");
    }
}

#[test]
fn any_region_takes_a_done_stream_to_the_one_that_charged() {
    let cluster = Cluster::start(&budget(&windows::long()).replace("limit: 100", "limit: 300"));
    let (one, other) = (&cluster.nodes[0], &cluster.nodes[1]);
    let id = charge(one);
    assert_eq!(left(one), 60);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(passes(other, done(&id, Some(0))));
    eventually("the charge came back where it was made", || left(one) >= 100);
    runtime.block_on(passes(other, done(&id, Some(0))));
    assert!((settled(other, "forwarded") - 2.0).abs() < 0.5);
}

const LIMIT: usize = 10;

/// An application that answers when its gate is open, and counts the requests under way.
struct App {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// The gate, and who waits for it.
#[derive(Debug, Default)]
struct Shared {
    gate: Mutex<Gate>,
    opens: Condvar,
}

#[derive(Debug, Default)]
struct Gate {
    is_open: bool,
    under_way: usize,
    most: usize,
}

impl App {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (address, shared) = (listener.local_addr().expect("an address"), Arc::default());
        let app = Self { address, shared: Arc::clone(&shared) };
        // The threads end with the process.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                thread::spawn(move || answer_all(&stream, &shared));
            }
        });
        app
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        locked(&self.shared.gate)
    }

    fn open(&self, is_open: bool) {
        self.gate().is_open = is_open;
        self.shared.opens.notify_all();
    }
}

fn locked(gate: &Mutex<Gate>) -> MutexGuard<'_, Gate> {
    gate.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers the requests of one connection. Requests for `/` pass the gate.
fn answer_all(stream: &TcpStream, shared: &Shared) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    loop {
        let first = lines.next()?.ok()?;
        while !lines.next()?.ok()?.is_empty() {}
        if first.contains(" /work ") {
            let mut gate = locked(&shared.gate);
            gate.under_way += 1;
            gate.most = gate.most.max(gate.under_way);
            while !gate.is_open {
                gate = shared.opens.wait(gate).unwrap_or_else(PoisonError::into_inner);
            }
            gate.under_way -= 1;
        }
        let mut writer = stream;
        writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

/// Envoy with the config of `deploy/proxies`, between clients, a node and an application.
struct Scene {
    app: App,
    envoy: Gateway,
    node: Node,
}

impl Scene {
    fn start() -> Self {
        let node = Node::start(&format!(
            "limits: [{{ name: streams, domain: shop, by: [api_key], concurrent: {{ limit: {LIMIT}, ttl: 10m }} }}]"
        ));
        let (app, port) = (App::start(), free_port());
        let config =
            fs::read_to_string(format!("{ROOT}/deploy/proxies/envoy-streams.yaml")).expect("a config");
        let ports = [("10000", port), ("8081", node.grpc().port()), ("9000", app.address.port())];
        let config = ports.iter().fold(config, |config, (from, to)| config.replace(from, &to.to_string()));
        // A busy machine may be late, and must not let requests pass undecided.
        let config = config.replace("timeout: 0.2s", "timeout: 20s").replace("_deny: false", "_deny: true");
        Self { app, envoy: Gateway::run(port, &config), node }
    }

    fn status(&self) -> u16 {
        let reply = Http::to(self.envoy.address).ask("GET", "/work", &[("x-api-key", "k1")], "");
        reply.expect("an answer").status
    }

    /// Slots that are free.
    fn free(&self) -> u64 {
        let peeked =
            post(&self.node, "/v1/peek", &json!({ "domain": "shop", "descriptors": [{ "api_key": "k1" }] }));
        peeked["limits"][0]["remaining"].as_u64().unwrap_or_else(|| panic!("no limit in {peeked}"))
    }
}

#[test]
fn no_more_streams_than_the_limit_are_under_way_through_envoy() {
    let scene = Scene::start();
    for round in 1..=2 {
        scene.app.open(false);
        let denied = Mutex::new(0);
        let passed: usize = thread::scope(|scope| {
            let all: Vec<_> = (0..100)
                .map(|_| {
                    scope.spawn(|| {
                        let status = scene.status();
                        *denied.lock().expect("no panic") += usize::from(status == 429);
                        assert!(matches!(status, 200 | 429), "{status}");
                        usize::from(status == 200)
                    })
                })
                .collect();
            eventually("the others are denied", || *denied.lock().expect("no panic") == 100 - LIMIT);
            assert_eq!(scene.app.gate().under_way, LIMIT, "round {round}");
            // A denied stream has no slot to free.
            for _ in 0..20 {
                assert_eq!(scene.status(), 429);
            }
            assert!(settled(&scene.node, "done") < (LIMIT * (round - 1)) as f64 + 0.5);
            scene.app.open(true);
            all.into_iter().map(|one| one.join().expect("an answer")).sum()
        });
        assert_eq!(passed, LIMIT);
        eventually("the slots are free", || scene.free() == LIMIT as u64);
    }
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| (0..20).for_each(|_| assert!(matches!(scene.status(), 200 | 429))));
        }
    });
    eventually("the slots are free", || scene.free() == LIMIT as u64);
    let most = scene.app.gate().most;
    assert_eq!(most, LIMIT, "{most} were under way at one time");
    assert!(ignored(&scene.node, "nameless") < 0.5 && ignored(&scene.node, "malformed") < 0.5);
}

#[test]
fn a_client_that_goes_away_frees_its_slot() {
    let scene = Scene::start();
    let clients: Vec<TcpStream> = (0..LIMIT)
        .map(|_| {
            let mut stream = TcpStream::connect(scene.envoy.address).expect("a connection");
            stream.write_all(b"GET /work HTTP/1.1\r\nhost: x\r\nx-api-key: k1\r\n\r\n").expect("a request");
            stream
        })
        .collect();
    eventually("all are under way", || scene.app.gate().under_way == LIMIT);
    assert_eq!((scene.free(), scene.status()), (0, 429));
    drop(clients);
    eventually("the slots are free", || scene.free() == LIMIT as u64);
}

#[tokio::test]
async fn an_answer_that_takes_a_slot_says_the_id_of_its_charge() {
    let node = Node::start(
        "domains: { shop: { negative_hits: true } }\n\
         limits:\n\
         - { name: streams, domain: shop, by: [api_key], concurrent: { limit: 2, ttl: 10m } }\n\
         - { name: requests, domain: shop, by: [api_key], token_bucket: { rate: 1/h, burst: 9 } }\n",
    );
    let ask = async || envoy::ask(&node, envoy::request(&[&[("api_key", "k1")]])).await;
    let id = |metadata: Option<prost_types::Struct>| {
        let kind = metadata?.fields.remove("charge")?.kind?;
        let prost_types::value::Kind::StringValue(text) = kind else { panic!("{kind:?}") };
        Some(text)
    };
    let first = id(ask().await.dynamic_metadata).expect("an id");
    let second = id(ask().await.dynamic_metadata).expect("an id");
    assert!(first != second && first.starts_with("eu/eu-1:"), "{first} {second}");
    let denied = ask().await;
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(denied.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit), Some(2));
    assert_eq!(id(denied.dynamic_metadata), None, "a denied request has no slot");
    // Whoever has no id frees no slot.
    envoy::ask(&node, negative(envoy::request(&[&[("api_key", "k1")]]))).await;
    assert_eq!(ask().await.overall_code(), Code::OverLimit);
    let release = |id: &str| {
        let entry = Entry { key: "acequia.charge".to_owned(), value: id.to_owned() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        RateLimitRequest { descriptors: vec![descriptor], ..envoy::request(&[]) }
    };
    for _ in 0..3 {
        passes(&node, release(&first)).await;
    }
    assert_eq!(ask().await.overall_code(), Code::Ok, "one slot was free");
    assert_eq!(ask().await.overall_code(), Code::OverLimit, "and no other");
}
