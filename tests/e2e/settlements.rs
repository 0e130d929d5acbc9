//! Named charges on the command line.

use acequia_tests::{Node, exit_and_text};
use serde_json::{Value, json};

use crate::windows;

fn node() -> Node {
    Node::start(&format!(
        "limits:\n\
         - {{ name: jobs, domain: shop, by: [tenant], fixed_window: {{ limit: 100, window: {} }} }}\n",
        windows::long()
    ))
}

/// Runs a command against a node. Returns its exit code and output.
fn run(node: &Node, words: &[&str]) -> (Option<i32>, String) {
    let address = node.grpc().to_string();
    let more = ["--deadline", "20s", "--address", &address];
    exit_and_text(&[words, &more].concat())
}

/// Runs a command with `--json`.
fn answer(node: &Node, words: &[&str], code: i32) -> Value {
    let (exit, text) = run(node, &[words, &["--json"]].concat());
    assert_eq!(exit, Some(code), "{words:?}: {text}");
    serde_json::from_str(&text).expect("JSON")
}

fn check(node: &Node, cost: &str, more: &[&str]) -> Value {
    let words = ["check", "--domain", "shop", "tenant=t1", "--cost", cost];
    answer(node, &[&words[..], more].concat(), 0)
}

#[test]
fn a_charge_is_refunded_once_and_a_charge_that_nobody_made_is_unknown() {
    let node = node();
    let charged = check(&node, "40", &["--refundable"]);
    assert_eq!(charged["remaining"], 60, "{charged}");
    let id = charged["charge_id"].as_str().expect("a name");
    assert_eq!(run(&node, &["refund", id]), (Some(0), "refunded   40 to jobs\n".to_owned()));
    assert_eq!(answer(&node, &["refund", id], 0), json!({ "settled": "before", "refunded": [] }));
    assert_eq!(check(&node, "1", &[])["remaining"], 99, "all of it came back, once");
    let (from, _) = id.rsplit_once(':').expect("a node and a number");
    let stranger = format!("{from}:{:032x}", 1);
    let (code, text) = run(&node, &["refund", &stranger]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("unknown    there is no record"), "{text}");
    let (code, text) = run(&node, &["refund", "nonsense"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("is no charge_id"), "{text}");
}

#[test]
fn a_reservation_ends_with_its_real_cost() {
    let node = node();
    let words =
        ["check", "--domain", "shop", "tenant=t1", "--cost", "60", "--reserve", "10m", "--id", "job-7"];
    let (code, text) = run(&node, &words);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("reserved 60, lapses in") && text.contains("given back"), "{text}");
    let again = answer(&node, &words, 0);
    assert_eq!((&again["is_repeat"], &again["charged"]), (&json!(true), &json!(60)), "{again}");
    let id = again["charge_id"].as_str().expect("a name");
    assert_eq!(run(&node, &["commit", id, "25"]), (Some(0), "committed  25; back: 35 to jobs\n".to_owned()));
    assert_eq!(answer(&node, &["commit", id, "25"], 0)["settled"], "before");
    assert_eq!(check(&node, "1", &[])["remaining"], 74);
}
