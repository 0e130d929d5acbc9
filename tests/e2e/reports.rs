//! Costs that are known last: reports, commits above a reservation, and Envoy when a stream is done.

use std::{
    fs,
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    thread,
};

use acequia_api::{
    acequia::v1::{CommitRequest, Reserve, Settled},
    envoy::service::ratelimit::v3::rate_limit_response::Code,
};
use acequia_tests::{Node, acequia, eventually, exit_and_text, get};
use serde_json::{Value, json};

use crate::{
    client::{Http, metric},
    envoy,
    grpc::{limiter, question},
    pages::ROOT,
    store::servers::free_port,
    windows,
};

/// A budget of 1000 tokens a tenant; `fields` are more fields of the limit.
fn budget(fields: &str) -> String {
    let window = windows::long();
    format!(
        "limits: [{{ name: tokens, domain: shop, by: [tenant], {fields} \
         fixed_window: {{ limit: 1000, window: {window} }} }}]"
    )
}

/// Posts a body about the tenant; `more` are further fields.
fn post(node: &Node, path: &str, tenant: &str, more: Value) -> (u16, Value) {
    let mut body = json!({ "domain": "shop", "descriptors": [{ "tenant": tenant }] });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let reply = Http::connect(node).ask("POST", path, &[], &body.to_string()).expect("an answer");
    (reply.status, serde_json::from_str(&reply.body).expect("JSON"))
}

fn report(node: &Node, tenant: &str, cost: u64) -> Value {
    let (status, answer) = post(node, "/v1/report", tenant, json!({ "cost": cost }));
    assert_eq!(status, 200, "{answer}");
    answer
}

/// What is left for a tenant, less what the tenant owes.
fn stand(node: &Node, tenant: &str) -> i64 {
    let (_, answer) = post(node, "/v1/peek", tenant, json!({}));
    let limit = &answer["limits"][0];
    limit["remaining"].as_i64().expect("units") - limit["owed"].as_i64().unwrap_or(0)
}

#[test]
fn a_report_beyond_what_is_left_is_owed_and_then_nothing_passes() {
    let node = Node::start(&budget(""));
    assert_eq!((report(&node, "t1", 600)["allowed"].as_bool(), stand(&node, "t1")), (Some(true), 400));
    let answer = report(&node, "t1", 600);
    assert_eq!((&answer["allowed"], &answer["limits"][0]["owed"]), (&json!(false), &json!(200)), "{answer}");
    let (status, denied) = post(&node, "/v1/check", "t1", json!({}));
    assert_eq!((status, &denied["allowed"], &denied["limits"][0]["owed"]), (200, &json!(false), &json!(200)));
    let overdrawn = metric(&node, "acequia_overdrawn_units_total", &[("limit", "shop/tokens")]);
    assert!((overdrawn - 200.0).abs() < 0.5, "{overdrawn}");
    assert_eq!(post(&node, "/v1/check", "t2", json!({})).1["remaining"], 999, "another tenant owes nothing");
    // A cost of 0 is what a stream reports that broke off.
    report(&node, "t1", 0);
    assert_eq!(stand(&node, "t1"), -200);
}

#[test]
fn a_report_with_an_id_is_recorded_once_beside_a_check_with_that_id() {
    let node = Node::start(&budget(""));
    let named = |cost: u64| json!({ "cost": cost, "id": "answer-17" });
    assert_eq!(post(&node, "/v1/check", "t1", named(1)).1["remaining"], 999);
    for repeat in [Value::Null, json!(true)] {
        let (status, answer) = post(&node, "/v1/report", "t1", named(1_200));
        assert_eq!((status, &answer["is_repeat"]), (200, &repeat), "{answer}");
        assert_eq!(stand(&node, "t1"), -201);
    }
    let (status, fault) = post(&node, "/v1/report", "t1", json!({ "reserve": { "ttl": "1m" } }));
    assert_eq!(status, 400, "{fault}");
}

#[test]
fn the_command_line_reports_and_says_what_is_owed() {
    let node = Node::start(&budget(""));
    let address = node.grpc().to_string();
    let run = |command: &str, more: &[&str]| {
        let mut words = vec![command, "--address", &address, "--domain", "shop", "--deadline", "10s"];
        words.extend_from_slice(more);
        let output = acequia(&words);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = run("report", &["--cost", "1200", "tenant=t1"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("recorded") && text.contains("owes 200"), "{text}");
    let (code, text) = run("report", &["--json", "--cost", "5", "tenant=t1"]);
    assert!(code == Some(0) && text.contains(r#""owed":205"#), "{text}");
    let (code, text) = run("check", &["tenant=t1"]);
    assert!(code == Some(1) && text.contains("owes 205"), "{text}");
}

#[tokio::test]
async fn a_commit_above_the_reservation_is_recorded_too() {
    let node = Node::start(&budget(""));
    let mut limiter = limiter(&node).await;
    let mut check = question(&[("tenant", "t1")]);
    check.cost = Some(600);
    check.reserve = Some(Reserve { ttl_ms: 60_000, ..Reserve::default() });
    let charge_id = limiter.check(check).await.expect("an answer").into_inner().charge_id;
    let commit = CommitRequest { charge_id, cost: 1_300 };
    let settled = limiter.commit(commit).await.expect("an answer").into_inner();
    assert_eq!(settled.settled(), Settled::Done);
    assert_eq!(stand(&node, "t1"), -300);
    let mut report = question(&[("tenant", "t1")]);
    report.cost = Some(7);
    let answer = limiter.report(report).await.expect("an answer").into_inner();
    assert_eq!((answer.allowed, answer.limits[0].owed), (false, 307));
}

#[tokio::test]
async fn a_limit_that_charges_always_records_what_envoy_reports_by_asking() {
    for (fields, left) in [("charge: always,", -200), ("", 400)] {
        let node = Node::start(&budget(fields));
        let ask = async |hits: u64| {
            let mut request = envoy::request(&[&[("tenant", "t1")]]);
            request.descriptors[0].hits_addend = Some(hits);
            envoy::ask(&node, request).await.overall_code()
        };
        assert_eq!((ask(0).await, ask(600).await), (Code::Ok, Code::Ok));
        assert_eq!((ask(0).await, ask(600).await), (Code::Ok, Code::OverLimit));
        assert_eq!(stand(&node, "t1"), left, "{fields}");
        assert_eq!(ask(0).await, if left < 0 { Code::OverLimit } else { Code::Ok }, "{fields}");
    }
}

#[test]
fn a_debt_that_is_carried_is_paid_by_the_next_windows() {
    let window_s = 3;
    let node = Node::start(&format!(
        "limits: [{{ name: tokens, domain: shop, by: [tenant], carry: true, \
         fixed_window: {{ limit: 1000, window: {window_s}s }} }}]"
    ));
    // The number of the window in which `ask` was answered, if no edge passed meanwhile.
    let within = |ask: &dyn Fn() -> i64| {
        let window = || windows::now_s() / window_s;
        let (before, answer, after) = (window(), ask(), window());
        (before == after).then_some((before, answer))
    };
    let owes = |n: u64| report(&node, &format!("t{n}"), 3_500)["limits"][0]["owed"].as_i64().unwrap_or(0);
    let reported = (0..).find_map(|n| Some((n, within(&|| owes(n))?)));
    let (n, (first, owed)) = reported.expect("a report within a window");
    assert_eq!(owed, 2_500);
    eventually("all is paid", || {
        let Some((window, left)) = within(&|| stand(&node, &format!("t{n}"))) else { return false };
        let spent = 3_500 - 1_000 * (window - first).cast_signed();
        assert_eq!(left, 1_000 - spent.max(0), "{} windows later", window - first);
        spent <= 0
    });
}

#[test]
fn contradictions_about_debt_are_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    for (fields, words) in [
        ("charge: always, on_store_loss: open,", "leave one out"),
        ("debt: 9007199254740993,", "lower it"),
        ("charge: sometimes,", "always"),
    ] {
        fs::write(&path, format!("region: eu\nnode: eu-1\n{}", budget(fields))).expect("a file");
        let (code, text) = exit_and_text(&["validate", path.to_str().expect("a path")]);
        assert!(code == Some(2) && text.contains(words), "{code:?} {text}");
    }
}

/// The real Envoy.
pub(crate) struct Gateway {
    envoy: Child,
    pub(crate) address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // A process that has ended is no fault here.
        let _ = self.envoy.kill();
        let _ = self.envoy.wait();
    }
}

impl Gateway {
    /// Envoy looks before a stream and reports 600 tokens when the stream is done.
    fn start(node: &Node) -> Self {
        let port = free_port();
        Self::run(port, &config(port, node))
    }

    /// Starts Envoy with a config, and waits until it answers on this port.
    pub(crate) fn run(port: u16, config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("envoy.yaml");
        fs::write(&path, config).expect("a file");
        let log = fs::File::create(folder.path().join("log")).expect("a file");
        let envoy = Command::new(format!("{ROOT}/target/tools/envoy/_bin/envoy"))
            .args(["--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id", "-c"])
            .arg(&path)
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("Envoy starts: tests/run installs it");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let gateway = Self { envoy, address, _folder: folder };
        // A request without a tenant is counted by no limit.
        eventually("Envoy answers", || get(address, "/").starts_with("HTTP/1.1 200"));
        gateway
    }

    pub(crate) fn passes(&self, tenant: &str) -> bool {
        let reply = Http::to(self.address).ask("GET", "/", &[("x-tenant", tenant)], "").expect("an answer");
        assert!(matches!(reply.status, 200 | 429), "{}", reply.status);
        reply.status == 200
    }
}

/// Streams go to the node's own HTTP port: Envoy asks about no direct response.
pub(crate) fn config(port: u16, node: &Node) -> String {
    let (node, app) = (node.grpc().port(), node.http().port());
    format!(
        r#"
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{ prefix: / }}
                route: {{ cluster: app, regex_rewrite: {{ pattern: {{ regex: ".*" }}, substitution: /healthz }} }}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - actions: [{{ request_headers: {{ header_name: x-tenant, descriptor_key: tenant }} }}]
                      hits_addend: {{ number: 0 }}
                    - actions: [{{ request_headers: {{ header_name: x-tenant, descriptor_key: tenant }} }}]
                      hits_addend: {{ number: 600 }}
                      apply_on_stream_done: true
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: shop
              timeout: 5s
              failure_mode_deny: true
              rate_limit_service: {{ transport_api_version: V3, grpc_service: {{ envoy_grpc: {{ cluster_name: acequia }} }} }}
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
  - name: acequia
    load_assignment:
      cluster_name: acequia
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {node} }} }} }} }}] }}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ http2_protocol_options: {{}} }}
  - name: app
    load_assignment:
      cluster_name: app
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {app} }} }} }} }}] }}]
"#
    )
}

#[test]
fn streams_that_envoy_reports_when_they_are_done_stop_at_the_limit() {
    let node = Node::start(&budget("charge: always, debt: 1000000,"));
    let envoy = Gateway::start(&node);
    // One after the other: each looks when the one before has been reported.
    for left in [400, -200] {
        assert!(envoy.passes("t1"));
        eventually("the stream is reported", || stand(&node, "t1") == left);
    }
    for _ in 0..98 {
        assert!(!envoy.passes("t1"), "the tenant owes");
    }
    // At once: what passes is under way before anything is reported, and all of it is recorded.
    let passed: i64 = thread::scope(|scope| {
        let all: Vec<_> = (0..100).map(|_| scope.spawn(|| envoy.passes("t2"))).collect();
        all.into_iter().map(|one| i64::from(one.join().expect("an answer"))).sum()
    });
    eventually("all streams are reported", || stand(&node, "t2") == 1_000 - 600 * 100);
    assert!(passed >= 2 && !envoy.passes("t2"), "{passed} passed");
}
