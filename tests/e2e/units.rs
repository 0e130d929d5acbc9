//! What a limit counts: its `unit`, in answers, headers, metrics, and what operators see.

use acequia_tests::{Node, acequia, eventually};
use serde_json::{Value, json};

use crate::{
    client::{Http, body, metric, metrics},
    grpc::{limiter, question},
    operators::{alone, explained, order},
    windows,
};

const ENTRIES: [(&str, &str); 1] = [("tenant", "t1")];

/// Three limits that match one request. `unit` is a field of the first.
fn limits(unit: &str) -> String {
    format!(
        "limits:\n\
         - {{ name: model, domain: shop, by: [tenant], {unit} fixed_window: {{ limit: 1000, window: {window} }} }}\n\
         - {{ name: calls, domain: shop, by: [tenant], unit: requests, fixed_window: {{ limit: 9M, window: {window} }} }}\n\
         - {{ name: plain, domain: shop, by: [tenant], token_bucket: {{ rate: 1M/s, burst: 9M }} }}\n",
        window = windows::long()
    )
}

/// The units of all limits of an answer.
fn units(answer: &Value) -> Vec<Value> {
    answer["limits"].as_array().expect("limits").iter().map(|limit| limit["unit"].clone()).collect()
}

#[tokio::test]
async fn answers_headers_and_metrics_say_what_a_limit_counts() {
    let node = Node::start(&limits("unit: tokens,"));
    let named = vec![json!("tokens"), json!("requests"), Value::Null];

    let mut http = Http::connect(&node);
    let reply = http.check(&body(&ENTRIES));
    let policy = reply.header("ratelimit-policy").expect("a header");
    for part in [r#""model";q=1000;qu="tokens";w="#, r#""calls";q=9000000;w="#, r#""plain";q=9000000;w="#] {
        assert!(policy.contains(part), "no {part}: {policy}");
    }
    assert_eq!(units(&reply.json()), named);
    let peek = http.ask("POST", "/v1/peek", &[], &body(&ENTRIES)).expect("an answer");
    assert_eq!(units(&peek.json()), named);

    let mut asked = question(&ENTRIES);
    asked.detail = true;
    let answer = limiter(&node).await.check(asked).await.expect("an answer").into_inner();
    let told: Vec<&str> = answer.limits.iter().map(|limit| limit.unit.as_str()).collect();
    assert_eq!(told, ["tokens", "requests", ""]);

    assert_eq!(units(&explained(&node, &["tenant=t1"])["verdict"]), named);
    let address = node.grpc().to_string();
    let words = ["explain", "--deadline", "20s", "--address", &address, "--domain", "shop", "tenant=t1"];
    let text = String::from_utf8_lossy(&acequia(&words).stdout).into_owned();
    assert!(
        text.starts_with("allowed  998 tokens left in model\n") && text.contains("1000 tokens"),
        "{text}"
    );

    for (limit, kind, unit) in [
        ("shop/model", "fixed_window", "tokens"),
        ("shop/calls", "fixed_window", "requests"),
        ("shop/plain", "token_bucket", ""),
    ] {
        let labels = [("limit", limit), ("kind", kind), ("unit", unit)];
        assert!((metric(&node, "acequia_limit_info", &labels) - 1.0).abs() < f64::EPSILON, "{labels:?}");
    }
    let labels = &metrics(&node).families["acequia_decisions_total"];
    assert!(labels.iter().all(|labels| !labels.contains("unit")), "other series have no such label");
}

#[test]
fn operators_see_the_unit_and_their_orders_keep_it() {
    let node = alone(&limits("unit: usd-micro,"));
    let window = windows::long();
    let budget = |units: u64| format!("fixed_window {units} usd-micro in {window}");
    let top = || {
        let (code, text) = order(&node, &["top", "--json", "--limit", "shop/model"]);
        assert_eq!(code, Some(0), "{text}");
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let seen = top();
    assert_eq!((&seen["unit"], &seen["budget"]), (&json!("usd-micro"), &json!(budget(1_000))));
    assert_eq!(
        seen["limits"].as_array().expect("limits").iter().filter(|row| row["unit"].is_null()).count(),
        1
    );

    let set = ["budget", "set", "shop/model", "limit=2000", "--reason", "launch", "--yes"];
    let (code, text) = order(&node, &set);
    assert_eq!(code, Some(0), "{text}");
    let (_, text) = order(&node, &["budget", "show", "--json", "shop/model"]);
    let shown: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&shown["budget"], &shown["limit"]["unit"]), (&json!(budget(2_000)), &json!("usd-micro")));
    assert_eq!(units(&explained(&node, &["tenant=t1"])["verdict"])[0], "usd-micro");
}

#[test]
fn a_new_unit_keeps_what_was_used_and_a_wrong_one_is_refused() {
    let node = Node::start(&limits(""));
    let mut http = Http::connect(&node);
    assert_eq!(http.check(&body(&ENTRIES)).json()["limits"][0]["remaining"], 999);
    node.write_config(&limits("unit: tokens,"));
    node.hup();
    eventually("the unit is there", || {
        let peek = http.ask("POST", "/v1/peek", &[], &body(&ENTRIES)).expect("an answer").json();
        assert_eq!(peek["limits"][0]["remaining"], 999, "{peek}");
        peek["limits"][0]["unit"] == "tokens"
    });

    let wrong = tempfile::NamedTempFile::new().expect("a file");
    let text = std::fs::read_to_string(node.config()).expect("a config");
    std::fs::write(wrong.path(), text.replace("unit: tokens", "unit: two words")).expect("a config");
    let output = acequia(&["validate", wrong.path().to_str().expect("a path")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("a unit is a word of 1 to 32") && said.contains("two words"), "{said}");
}
