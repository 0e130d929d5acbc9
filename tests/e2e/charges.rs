//! Named charges, and classes of consumers, at real nodes.

use acequia_api::acequia::v1::{
    CheckBatch, CheckRequest, CommitRequest, Lapse, RefundRequest, Reserve, Settled,
};
use acequia_tests::{Node, cluster::Cluster, eventually};
use serde_json::{Value, json};
use tonic::Code;

use crate::{
    client::{Http, check, metric},
    grpc::{limiter, question},
    windows,
};

fn config() -> String {
    format!(
        "data: DATA\n\
         limits:\n\
         - {{ name: jobs, domain: shop, by: [tenant], fixed_window: {{ limit: 100, window: {} }} }}\n",
        windows::long()
    )
}

/// A check with a cost and more fields.
fn ask(node: &Node, cost: u64, more: Value) -> Value {
    let mut body = json!({ "domain": "shop", "descriptors": [{ "tenant": "t1" }], "cost": cost });
    let fields = body.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    Http::connect(node).check(&body.to_string()).json()
}

fn post(node: &Node, path: &str, body: Value) -> (u16, Value) {
    let reply = Http::connect(node).ask("POST", path, &[], &body.to_string()).expect("an answer");
    (reply.status, serde_json::from_str(&reply.body).expect("JSON"))
}

fn settle(node: &Node, path: &str, body: Value) -> Value {
    let (status, answer) = post(node, path, body);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn left(node: &Node) -> u64 {
    // A cost that can never pass shows what is left.
    ask(node, 1_000, json!({}))["remaining"].as_u64().expect("a number")
}

#[test]
fn the_same_id_is_charged_once_also_after_a_crash() {
    let mut node = Node::start(&config());
    let once = json!({ "id": "order-17" });
    let first = ask(&node, 30, once.clone());
    assert_eq!((&first["allowed"], &first["remaining"]), (&json!(true), &json!(70)));
    assert!(first["charge_id"].as_str().expect("an id").contains(':'), "{first}");
    let again = ask(&node, 30, once.clone());
    assert_eq!(again["is_repeat"], true);
    assert_eq!((&again["remaining"], &again["charge_id"]), (&json!(70), &first["charge_id"]));
    node.crash();
    assert_eq!(ask(&node, 30, once.clone())["is_repeat"], true, "{}", node.stderr());
    assert!((65..=70).contains(&left(&node)), "a crash wastes what was reserved ahead");
    // Another request needs another id. Without an id nothing is remembered.
    let body = json!({ "domain": "shop", "descriptors": [{ "tenant": "t2" }], "id": "order-17", "cost": 30 });
    let (status, refused) = post(&node, "/v1/check", body);
    assert_eq!(status, 400);
    assert!(refused["error"].as_str().expect("words").contains("needs another id"), "{refused}");
    assert_eq!(ask(&node, 1, json!({}))["charge_id"], Value::Null);
    eventually("the repeat is counted", || metric(&node, "acequia_repeats_total", &[]) == 1.0);
}

#[test]
fn a_charge_is_given_back_once_also_after_a_restart() {
    let mut node = Node::start(&config());
    let charged = ask(&node, 40, json!({ "refundable": true }));
    let id = charged["charge_id"].clone();
    node.restart();
    let refund = json!({ "charge_id": id });
    let done = settle(&node, "/v1/refund", refund.clone());
    assert_eq!(done, json!({ "settled": "done", "refunded": [{ "name": "jobs", "units": 40 }] }));
    assert_eq!(settle(&node, "/v1/refund", refund.clone())["settled"], "before");
    assert_eq!(left(&node), 100);
    node.crash();
    assert_eq!(settle(&node, "/v1/refund", refund)["settled"], "before");
    for (id, status) in [("nonsense", 400), ("alone/alone-9:00000000000000000000000000000001", 200)] {
        let (got, answer) = post(&node, "/v1/refund", json!({ "charge_id": id }));
        assert_eq!(got, status, "{answer}");
    }
    assert!(metric(&node, "acequia_refunded_units_total", &[]) <= 40.0);
}

#[test]
fn a_reservation_ends_with_its_real_cost_once() {
    let node = Node::start(&config());
    let reserved = ask(&node, 60, json!({ "reserve": { "ttl": "10m" } }));
    assert_eq!((&reserved["charged"], &reserved["remaining"]), (&json!(60), &json!(40)));
    let id = &reserved["charge_id"];
    let done = settle(&node, "/v1/commit", json!({ "charge_id": id, "cost": 25 }));
    assert_eq!(done["refunded"], json!([{ "name": "jobs", "units": 35 }]));
    assert_eq!(settle(&node, "/v1/refund", json!({ "charge_id": id }))["settled"], "before");
    assert_eq!(left(&node), 75);
    // A reservation that nobody ends lapses.
    let lapsing = ask(&node, 50, json!({ "reserve": { "ttl": "30ms" } }));
    assert_eq!(lapsing["allowed"], true);
    eventually("it lapses", || left(&node) == 75);
    let late = settle(&node, "/v1/commit", json!({ "charge_id": lapsing["charge_id"], "cost": 1 }));
    assert_eq!(late["settled"], "lapsed");
    for reserve in [
        json!({ "ttl": "2h" }),
        json!({ "ttl": "soon" }),
        json!({}),
        json!({ "ttl": "1s", "on_lapse": "burn" }),
    ] {
        let body = json!({ "domain": "shop", "descriptors": [{ "tenant": "t" }], "reserve": reserve });
        assert_eq!(post(&node, "/v1/check", body).0, 400);
    }
}

#[tokio::test]
async fn grpc_names_charges_and_settles_them() {
    let node = Node::start(&config());
    let mut limiter = limiter(&node).await;
    let check = CheckRequest {
        cost: Some(500),
        reserve: Some(Reserve { ttl_ms: 60_000, on_lapse: Lapse::Keep.into(), at_most: true }),
        ..question(&[("tenant", "t1")])
    };
    let lease = limiter.check(check.clone()).await.expect("an answer").into_inner();
    assert_eq!((lease.allowed, lease.charged), (true, 10), "a tenth of what is left");
    let commit = CommitRequest { charge_id: lease.charge_id.clone(), cost: 4 };
    let settled = limiter.commit(commit).await.expect("an answer").into_inner();
    assert_eq!((settled.settled(), settled.refunded[0].units), (Settled::Done, 6));
    let refund = RefundRequest { charge_id: lease.charge_id };
    assert_eq!(limiter.refund(refund).await.expect("an answer").into_inner().settled(), Settled::Before);
    let nonsense = limiter.refund(RefundRequest { charge_id: "x".into() }).await.expect_err("none");
    assert_eq!(nonsense.code(), Code::InvalidArgument);
    for bad in [
        CheckRequest { id: "x".repeat(129), ..question(&[("tenant", "t1")]) },
        CheckRequest { reserve: Some(Reserve::default()), ..question(&[("tenant", "t1")]) },
    ] {
        assert_eq!(limiter.check(bad).await.expect_err("refused").code(), Code::InvalidArgument);
    }
    // A stream decides many checks at once, and remembers none.
    let batch =
        CheckBatch { checks: vec![CheckRequest { id: "one".into(), ..question(&[("tenant", "t1")]) }] };
    let mut answers = limiter.check_stream(tokio_stream::iter([batch])).await.expect("a stream").into_inner();
    assert_eq!(answers.message().await.expect_err("refused").code(), Code::InvalidArgument);
}

#[test]
fn any_region_takes_a_refund_to_the_one_that_charged() {
    let cluster = Cluster::start(&format!(
        "limits:\n- {{ name: jobs, domain: shop, by: [tenant], fixed_window: {{ limit: 300, window: {} }} }}\n",
        windows::long()
    ));
    let (one, other) = (&cluster.nodes[0], &cluster.nodes[1]);
    let charged = ask(one, 60, json!({ "refundable": true }));
    assert_eq!((&charged["allowed"], &charged["remaining"]), (&json!(true), &json!(40)), "{charged}");
    let refund = json!({ "charge_id": charged["charge_id"] });
    assert_eq!(settle(other, "/v1/refund", refund.clone())["settled"], "forwarded");
    eventually("it came back where it was charged", || left(one) >= 100);
    assert_eq!(settle(one, "/v1/refund", refund)["settled"], "before");
    let stranger = json!({ "charge_id": "mars/mars-1:00000000000000000000000000000001" });
    assert_eq!(settle(one, "/v1/refund", stranger)["settled"], "unknown");
}

#[test]
fn classes_of_consumers_spend_as_the_config_says() {
    let node = Node::start(
        "limits:\n\
         - name: plans\n\
         \x20 domain: shop\n\
         \x20 by: [service]\n\
         \x20 token_bucket: { rate: 1/h, burst: 100 }\n\
         \x20 classes:\n\
         \x20   entry: plan\n\
         \x20   shared: { gold: 0%, silver: 24%, free: 62% }\n",
    );
    let drain = |plan: &str| {
        let entries = [("service", "s"), ("plan", plan)];
        let passed = (0..).find(|_| check(&node, &entries)["allowed"] == false).expect("an end");
        (passed, check(&node, &entries))
    };
    let (passed, denied) = drain("free");
    assert_eq!((passed, &denied["reason"]), (38, &json!("class-reserve")));
    assert_eq!(denied["limits"][0]["class"], "free");
    assert_eq!(drain("silver").0, 38);
    let (passed, denied) = drain("gold");
    assert_eq!((passed, &denied["reason"]), (24, &json!("over-limit")));
}
