//! Requests under way (`concurrent`): gRPC, streams, HTTP, the command line and the client.

use std::time::Duration;

use acequia_api::acequia::v1::{
    CheckBatch, CheckRequest, CommitRequest, RefundRequest, RenewRequest, Renewed, Reserve, Settled,
};
use acequia_client::{Acquired, Client, Options, Question};
use acequia_tests::{Node, acequia, eventually, exit_and_text};
use serde_json::{Value, json};
use tonic::Code;

use crate::{
    client::Http,
    grpc::{limiter, question},
};

/// A limit of as many slots a tenant, beside a budget that is not used up.
fn jobs(limit: u64, ttl: &str) -> String {
    format!(
        "limits: [{{ name: jobs, domain: shop, by: [tenant], concurrent: {{ limit: {limit}, ttl: {ttl} }} }}, \
         {{ name: tokens, domain: shop, by: [tenant], token_bucket: {{ rate: 1/h, burst: 1000 }} }}]"
    )
}

fn ask_as(tenant: &str) -> CheckRequest {
    question(&[("tenant", tenant)])
}

fn post(node: &Node, path: &str, body: &Value) -> (u16, Value) {
    let reply = Http::connect(node).ask("POST", path, &[], &body.to_string()).expect("an answer");
    (reply.status, serde_json::from_str(&reply.body).expect("JSON"))
}

fn check(node: &Node, tenant: &str) -> Value {
    let (status, answer) =
        post(node, "/v1/check", &json!({ "domain": "shop", "descriptors": [{ "tenant": tenant }] }));
    assert_eq!(status, 200, "{answer}");
    answer
}

#[tokio::test]
async fn a_plain_check_takes_a_slot_that_is_renewed_and_released() {
    let node = Node::start(&jobs(2, "1m"));
    let mut limiter = limiter(&node).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = limiter.check(ask_as("t1")).await.expect("an answer").into_inner();
        assert!(answer.allowed && !answer.charge_id.is_empty(), "{answer:?}");
        assert!((50_000..=60_000).contains(&answer.lapses_in_ms), "{answer:?}");
        assert_eq!(answer.charged, 0, "no cost was reserved");
        ids.push(answer.charge_id);
    }
    let denied = limiter.check(ask_as("t1")).await.expect("an answer").into_inner();
    assert!(!denied.allowed && denied.charge_id.is_empty(), "{denied:?}");
    assert_eq!((denied.limit.as_str(), denied.limits[0].algorithm.as_str()), ("jobs", "concurrent"));
    assert!(limiter.check(ask_as("t2")).await.expect("an answer").into_inner().allowed);
    let renew = RenewRequest { charge_id: ids[0].clone() };
    let renewed = limiter.renew(renew.clone()).await.expect("an answer").into_inner();
    assert_eq!(renewed.renewed(), Renewed::Done);
    assert!((59_000..=60_000).contains(&renewed.lapses_in_ms), "{renewed:?}");
    let refund = RefundRequest { charge_id: ids[0].clone() };
    for settled in [Settled::Done, Settled::Before] {
        assert_eq!(limiter.refund(refund.clone()).await.expect("an answer").into_inner().settled(), settled);
    }
    assert_eq!(limiter.renew(renew).await.expect("an answer").into_inner().renewed(), Renewed::Lapsed);
    // A commit of any cost frees the other one.
    let commit = CommitRequest { charge_id: ids[1].clone(), cost: 7 };
    assert_eq!(limiter.commit(commit).await.expect("an answer").into_inner().settled(), Settled::Done);
    let free = limiter.peek(ask_as("t1")).await.expect("an answer").into_inner().verdict.expect("a verdict");
    assert_eq!(free.limits[0].remaining, 2);
}

#[tokio::test]
async fn forged_and_foreign_ids_renew_nothing() {
    let node = Node::start(&jobs(2, "1m"));
    let mut limiter = limiter(&node).await;
    let renew = async |limiter: &mut acequia_api::acequia::v1::limiter_client::LimiterClient<_>, id: &str| {
        limiter.renew(RenewRequest { charge_id: id.to_owned() }).await
    };
    let taken = limiter.check(ask_as("t1")).await.expect("an answer").into_inner().charge_id;
    let (node_name, _) = taken.rsplit_once(':').expect("a node");
    let forged = format!("{node_name}:{:032x}", 5);
    let answer = renew(&mut limiter, &forged).await.expect("an answer").into_inner();
    assert_eq!(answer.renewed(), Renewed::Unknown);
    let foreign = taken.replace(node_name, "us/us-1");
    let answer = renew(&mut limiter, &foreign).await.expect("an answer").into_inner();
    assert_eq!((answer.renewed(), answer.lapses_in_ms), (Renewed::Elsewhere, 0));
    for malformed in ["", "x", &format!("{taken}0")] {
        let fault = renew(&mut limiter, malformed).await.expect_err("no id");
        assert_eq!(fault.code(), Code::InvalidArgument, "{malformed}");
    }
    let mut lease = ask_as("t1");
    lease.reserve = Some(Reserve { ttl_ms: 1_000, at_most: true, ..Reserve::default() });
    let fault = limiter.check(lease).await.expect_err("no lease");
    assert!(fault.code() == Code::InvalidArgument && fault.message().contains("under way"), "{fault:?}");
}

#[tokio::test]
async fn checks_of_a_stream_take_slots_too() {
    let node = Node::start(&jobs(3, "1m"));
    let mut limiter = limiter(&node).await;
    let batch = CheckBatch { checks: vec![ask_as("t1"); 4] };
    let mut answers = limiter.check_stream(tokio_stream::iter([batch])).await.expect("a stream").into_inner();
    let results = answers.message().await.expect("a message").expect("an answer").results;
    let taken: Vec<_> = results.iter().filter(|result| !result.charge_id.is_empty()).collect();
    assert_eq!((taken.len(), results[3].allowed), (3, false));
    let refund = RefundRequest { charge_id: taken[1].charge_id.clone() };
    assert_eq!(limiter.refund(refund).await.expect("an answer").into_inner().settled(), Settled::Done);
    assert!(limiter.check(ask_as("t1")).await.expect("an answer").into_inner().allowed);
}

#[test]
fn http_takes_renews_and_releases_slots() {
    let node = Node::start(&jobs(1, "1m"));
    let taken = check(&node, "t1");
    let id = taken["charge_id"].as_str().expect("an id");
    assert!(taken["lapses_in_ms"].as_u64().is_some_and(|ms| ms > 50_000), "{taken}");
    assert_eq!(taken["limits"][0]["algorithm"], "concurrent");
    assert_eq!(
        (&check(&node, "t1")["allowed"], &check(&node, "t1")["charge_id"]),
        (&json!(false), &Value::Null)
    );
    let (status, renewed) = post(&node, "/v1/renew", &json!({ "charge_id": id }));
    assert_eq!((status, &renewed["renewed"]), (200, &json!("done")), "{renewed}");
    assert!(renewed["lapses_in_ms"].as_u64().is_some_and(|ms| ms > 59_000), "{renewed}");
    let (status, _) = post(&node, "/v1/renew", &json!({ "charge_id": "nonsense" }));
    assert_eq!(status, 400);
    let (_, settled) = post(&node, "/v1/refund", &json!({ "charge_id": id }));
    assert_eq!(settled["settled"], "done");
    let (_, renewed) = post(&node, "/v1/renew", &json!({ "charge_id": id }));
    assert_eq!(renewed, json!({ "renewed": "lapsed", "lapses_in_ms": 0 }));
    // A reservation may lapse sooner than a slot.
    let reserve =
        json!({ "domain": "shop", "descriptors": [{ "tenant": "t1" }], "reserve": { "ttl": "1s" } });
    let (_, taken) = post(&node, "/v1/check", &reserve);
    assert!(taken["lapses_in_ms"].as_u64().is_some_and(|ms| ms <= 1_000), "{taken}");
    eventually("the slot of a holder that is gone is free", || check(&node, "t1")["allowed"] == true);
}

#[test]
fn the_command_line_takes_renews_and_releases_slots() {
    let node = Node::start(&jobs(1, "1m"));
    let address = node.grpc().to_string();
    let run = |command: &str, more: &[&str]| {
        let mut words = vec![command, "--address", &address, "--deadline", "10s"];
        words.extend_from_slice(more);
        let output = acequia(&words);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = run("check", &["--domain", "shop", "--json", "tenant=t1"]);
    let taken: Value = serde_json::from_str(&text).expect("JSON");
    let id = taken["charge_id"].as_str().expect("an id");
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(run("check", &["--domain", "shop", "tenant=t1"]).0, Some(1));
    let (code, text) = run("explain", &["--domain", "shop", "tenant=t1"]);
    assert!(code == Some(1) && text.contains("concurrent"), "{text}");
    let (code, text) = run("renew", &[id]);
    assert!(code == Some(0) && text.starts_with("renewed  lapses in "), "{text}");
    let (code, text) = run("renew", &["--json", id]);
    assert!(code == Some(0) && text.starts_with(r#"{"renewed":"done","lapses_in_ms":"#), "{text}");
    assert_eq!(run("commit", &[id, "0"]).0, Some(0));
    let (code, text) = run("renew", &[id]);
    assert!(code == Some(1) && text.starts_with("lapsed"), "{text}");
    assert_eq!(run("check", &["--domain", "shop", "tenant=t1"]).0, Some(0));
}

#[tokio::test]
async fn the_clients_slot_outlives_its_time_and_is_free_when_dropped() {
    let node = Node::start(&jobs(1, "1s"));
    let options = Options { deadline: Duration::from_secs(10) };
    let client = Client::connect(&node.grpc().to_string(), options).expect("an address");
    let acquire = async || match client.acquire(Question::new("shop", [("tenant", "t1")])).await {
        Ok(Acquired::Slot(slot)) => Some(slot),
        Ok(Acquired::Denied(_)) => None,
        Err(fault) => panic!("{fault}"),
    };
    let slot = acquire().await.expect("a slot");
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        assert!(acquire().await.is_none() || !slot.is_held(), "others have it only if it was lost");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(slot.is_held());
    drop(slot);
    let slot = loop {
        if let Some(slot) = acquire().await {
            break slot;
        }
    };
    assert!(slot.release().await);
    assert!(acquire().await.is_some(), "free at once");
}

#[test]
fn a_slot_that_lives_for_no_time_or_for_a_year_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    for (ttl, word) in [("0s", "duration"), ("500ms", "1s to 1h"), ("365d", "1s to 1h")] {
        std::fs::write(&path, format!("region: eu\nnode: eu-1\n{}", jobs(1, ttl))).expect("a file");
        let (code, text) = exit_and_text(&["validate", path.to_str().expect("a path")]);
        assert!(code == Some(2) && text.contains(word), "{code:?} {text}");
    }
}
