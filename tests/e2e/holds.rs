//! Holds: units set apart for streams whose cost is known last, over every protocol and through the real Envoy.

use std::{fs, thread};

use acequia_api::{
    acequia::v1::{CommitRequest, RefundRequest, Settled},
    envoy::service::ratelimit::v3::rate_limit_response::Code,
};
use acequia_tests::{Node, cluster::Cluster, eventually, exit_and_text};
use serde_json::{Value, json};

use crate::{
    client::{Http, metric},
    envoy,
    grpc::{limiter, question},
    reports::{Gateway, config},
    store::servers::free_port,
    windows,
};

/// A budget of tokens a tenant; each stream is expected to cost 600.
fn budget(limit: u64) -> String {
    let window = windows::long();
    format!(
        "limits: [{{ name: tokens, domain: shop, by: [tenant], charge: always, expect: {{ cost: 600, within: 5m }}, \
         fixed_window: {{ limit: {limit}, window: {window} }} }}]"
    )
}

fn post(node: &Node, path: &str, body: &Value) -> Value {
    Http::connect(node).ask("POST", path, &[], &body.to_string()).expect("an answer").json()
}

/// Begins a stream of tenant t1.
fn begin(node: &Node) -> Value {
    post(node, "/v1/check", &json!({ "domain": "shop", "descriptors": [{ "tenant": "t1" }], "cost": 0 }))
}

/// What is left for a tenant, less what the tenant owes.
fn stand(node: &Node, tenant: &str) -> i64 {
    let body = json!({ "domain": "shop", "descriptors": [{ "tenant": tenant }] });
    let limit = &post(node, "/v1/peek", &body)["limits"][0];
    limit["remaining"].as_i64().expect("units") - limit["owed"].as_i64().unwrap_or(0)
}

fn holds(node: &Node, outcome: &str) -> f64 {
    metric(node, "acequia_holds_total", &[("limit", "shop/tokens"), ("outcome", outcome)])
}

#[test]
fn http_holds_what_a_stream_is_expected_to_cost_until_it_is_settled() {
    let node = Node::start(&budget(1_000));
    let first = begin(&node);
    assert!(first["allowed"] == true && first["remaining"] == 400, "{first}");
    assert!(first["lapses_in_ms"].as_u64().is_some_and(|ms| ms > 290_000), "{first}");
    let denied = begin(&node);
    assert!(denied["allowed"] == false && denied["charge_id"] == Value::Null, "{denied}");
    let settled = post(&node, "/v1/commit", &json!({ "charge_id": first["charge_id"], "cost": 100 }));
    assert_eq!(settled["settled"], "done", "{settled}");
    assert_eq!(stand(&node, "t1"), 900);
    let second = begin(&node);
    post(&node, "/v1/commit", &json!({ "charge_id": second["charge_id"], "cost": 950 }));
    assert_eq!(stand(&node, "t1"), -50, "what a stream cost beyond its hold is owed");
    assert!((holds(&node, "reported") - 2.0).abs() < 0.5 && holds(&node, "lapsed") < 0.5);
}

#[test]
fn the_command_line_takes_holds_and_shows_them_and_looks_where_nothing_is_expected() {
    let window = windows::long();
    let node = Node::start(&format!(
        "limits:\n\
         - {{ name: tokens, domain: shop, by: [tenant], charge: always, expect: {{ cost: 600, within: 5m }}, \
         fixed_window: {{ limit: 1000, window: {window} }} }}\n\
         - {{ name: jobs, domain: jobs, by: [tenant], fixed_window: {{ limit: 1, window: {window} }} }}\n"
    ));
    let address = node.grpc().to_string();
    let run = |command: &str, more: &[&str]| {
        let words = [&[command, "--address", &address, "--deadline", "10s"], more].concat();
        exit_and_text(&words)
    };
    let (code, text) = run("check", &["--domain", "shop", "--cost", "0", "tenant=t1"]);
    let id = text.lines().find_map(|line| line.trim().strip_prefix("charge_id ")).expect("a hold");
    assert!(code == Some(0) && text.starts_with("allowed  400 left in tokens"), "{text}");
    let (code, text) = run("explain", &["--domain", "shop", "--cost", "0", "tenant=t1"]);
    assert!(code == Some(0) && text.contains("tokens: 600 held by this node"), "{text}");
    let peek = post(&node, "/v1/peek", &json!({ "domain": "shop", "descriptors": [{ "tenant": "t1" }] }));
    assert_eq!(peek["held"], json!([{ "limit": "tokens", "units": 600 }]), "{peek}");
    assert_eq!(run("check", &["--domain", "shop", "--cost", "0", "tenant=t1"]).0, Some(1));
    assert_eq!(run("commit", &[id, "100"]).0, Some(0));
    assert_eq!(stand(&node, "t1"), 900);
    // A limit that expects nothing is only looked at.
    let look = || run("check", &["--domain", "jobs", "--cost", "0", "tenant=t1"]);
    assert!(look().0 == Some(0) && look().0 == Some(0), "{}", look().1);
    assert_eq!(run("check", &["--domain", "jobs", "tenant=t1"]).0, Some(0));
    let (code, text) = look();
    assert!(code == Some(1) && text.starts_with("denied   by jobs: 0 left"), "{text}");
    let (code, text) = run("check", &["--domain", "jobs", "--cost", "0", "--id", "job-1", "tenant=t1"]);
    assert!(code == Some(2) && text.contains("a cost of 0 charges nothing"), "{text}");
}

#[tokio::test]
async fn grpc_commits_and_refunds_holds() {
    let node = Node::start(&budget(1_200));
    let mut limiter = limiter(&node).await;
    let mut check = question(&[("tenant", "t1")]);
    check.cost = Some(0);
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(limiter.check(check.clone()).await.expect("an answer").into_inner().charge_id);
    }
    assert!(!limiter.check(check.clone()).await.expect("an answer").into_inner().allowed);
    let refund = RefundRequest { charge_id: ids[0].clone() };
    let settled = limiter.refund(refund).await.expect("an answer").into_inner();
    assert_eq!((settled.settled(), stand(&node, "t1")), (Settled::Done, 600));
    for (cost, said) in [(u64::MAX, Settled::Done), (5, Settled::Before)] {
        let commit = CommitRequest { charge_id: ids[1].clone(), cost };
        assert_eq!(limiter.commit(commit).await.expect("an answer").into_inner().settled(), said);
        assert_eq!(stand(&node, "t1"), -12_000, "a cell owes at most ten times its limit");
    }
}

#[tokio::test]
async fn a_report_without_an_id_settles_the_hold_of_its_cell() {
    let node = Node::start(&budget(2_000));
    let ask = async |tenant: &str, hits: u64| {
        let mut request = envoy::request(&[&[("tenant", tenant)]]);
        request.descriptors[0].hits_addend = Some(hits);
        envoy::ask(&node, request).await.overall_code()
    };
    for _ in 0..3 {
        assert_eq!(ask("t1", 0).await, Code::Ok);
    }
    assert_eq!((ask("t1", 0).await, stand(&node, "t1")), (Code::OverLimit, 200));
    ask("t2", 50).await;
    assert_eq!((stand(&node, "t1"), stand(&node, "t2")), (200, 1_950));
    ask("t1", 100).await;
    assert_eq!(stand(&node, "t1"), 700);
    ask("t1", 700).await;
    assert_eq!((ask("t1", 600).await, stand(&node, "t1")), (Code::Ok, 600));
    ask("t1", 10).await;
    assert_eq!(stand(&node, "t1"), 590, "nothing was held any more");
}

/// Envoy that looks with 0 hits before a stream, and reports `hits` for the charge when the stream is done.
fn gateway(node: &Node, hits: u64) -> Gateway {
    let port = free_port();
    let report = "- actions: [{ request_headers: { header_name: x-tenant, descriptor_key: tenant } }]\n                      hits_addend: { number: 600 }";
    let by_id = format!(
        "- hits_addend: {{ number: {hits} }}\n                      actions: [{{ metadata: {{ descriptor_key: acequia.charge, source: DYNAMIC, \
         metadata_key: {{ key: envoy.filters.http.ratelimit, path: [{{ key: charge }}] }} }} }}]"
    );
    let with_ids = config(port, node).replace(report, &by_id);
    assert!(with_ids.contains("acequia.charge"), "{with_ids}");
    Gateway::run(port, &with_ids)
}

/// Asks for so many streams at once. Returns how many passed.
fn at_once(gateways: &[Gateway], streams: usize) -> u64 {
    thread::scope(|scope| {
        let all: Vec<_> = (0..streams)
            .map(|number| scope.spawn(move || gateways[number % gateways.len()].passes("t1")))
            .collect();
        all.into_iter().map(|one| u64::from(one.join().expect("an answer"))).sum()
    })
}

#[test]
fn streams_that_cost_what_was_expected_never_pass_the_limit_through_envoy() {
    for (hits, passes) in [(600, 1), (300, 2)] {
        let node = Node::start(&budget(1_000));
        let envoy = [gateway(&node, hits)];
        let mut passed = at_once(&envoy, 100);
        assert!((1..=passes).contains(&passed), "{passed} passed");
        // One after the other: each begins when the one before is settled.
        for _ in 0..100 {
            eventually("what was held is settled", || {
                let settled = holds(&node, "reported");
                (settled - passed as f64).abs() < 0.5
            });
            passed += u64::from(envoy[0].passes("t1"));
        }
        assert_eq!(passed, passes, "streams that cost {hits} each");
        assert_eq!(stand(&node, "t1"), 1_000 - (passes * hits).cast_signed());
    }
}

#[test]
fn three_regions_admit_no_more_streams_than_the_limit_while_one_is_cut_off() {
    let cluster = Cluster::start(&budget(6_000));
    let envoys: Vec<Gateway> = cluster.nodes.iter().map(|node| gateway(node, 600)).collect();
    let mut passed = at_once(&envoys, 30);
    assert!(passed >= 3, "each region has a third: {passed}");
    cluster.isolate(2, true);
    passed += at_once(&envoys, 30);
    cluster.isolate(2, false);
    // A third of the limit holds three streams; the tenth needs what is left of every third.
    eventually("what each region has left is too little for a stream", || {
        passed += at_once(&envoys, 3);
        passed >= 9
    });
    for _ in 0..30 {
        passed += at_once(&envoys, 3);
    }
    assert!(passed <= 10, "{passed} streams of 600 passed a limit of 6000");
    // Units on their way from one region to another are nobody's for a moment.
    eventually("the regions' parts say what was spent", || {
        let spent: i64 = cluster.nodes.iter().map(|node| 2_000 - stand(node, "t1")).sum();
        spent == 600 * passed.cast_signed()
    });
    eventually("all that passed is settled", || {
        let reported: f64 = cluster.nodes.iter().map(|node| holds(node, "reported")).sum();
        (reported - passed as f64).abs() < 0.5
    });
}

#[test]
fn contradictions_about_holds_are_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    let good = budget(1_000);
    for (from, to, words) in [
        ("cost: 600", "cost: 1001", "1 to 1000"),
        ("cost: 600", "cost: 0", "1 to 1000"),
        ("cost: 600", "cost: { auto: { quantile: 2, cap: 600 } }", "quantile"),
        ("cost: 600", "cost: { auto: { quantile: 0.9 } }", "cap"),
        ("cost: 600", "cost: many", "many"),
        ("within: 5m", "within: 2h", "1h"),
        ("charge: always,", "", "charge: always"),
    ] {
        assert!(good.contains(from));
        fs::write(&path, format!("region: eu\nnode: eu-1\n{}", good.replace(from, to))).expect("a file");
        let (code, text) = exit_and_text(&["validate", path.to_str().expect("a path")]);
        assert!(code == Some(2) && text.contains(words), "{to}: {code:?} {text}");
    }
    let auto = good.replace("cost: 600", "cost: { auto: { quantile: 0.9, floor: 10, cap: 1k } }");
    fs::write(&path, format!("region: eu\nnode: eu-1\n{auto}")).expect("a file");
    assert_eq!(exit_and_text(&["validate", path.to_str().expect("a path")]).0, Some(0));
}
