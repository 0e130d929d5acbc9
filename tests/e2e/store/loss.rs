//! Decisions of limits while their region's store is gone, by `on_store_loss`.

use std::slice;

use acequia_tests::{Node, eventually};

use super::{alone, config_of, listed, servers::Server, start_all, until_pools_grant};
use crate::{
    client::{Http, Reply, body, metric},
    operators::order,
    windows,
};

fn limits() -> String {
    let limit = |name: &str, by: &str| {
        let window = windows::long();
        format!(
            "- {{ name: {name}, domain: shop, by: [{by}], on_store_loss: {name}, fixed_window: {{ limit: 200, window: {window} }} }}\n"
        )
    };
    format!("limits:\n{}{}", limit("closed", "c"), limit("open", "o"))
}

/// A key of a limit.
#[derive(Clone, Copy)]
struct Cell {
    by: &'static str,
    key: &'static str,
}

fn authz(node: &Node, Cell { by, key }: Cell) -> Reply {
    Http::connect(node).get(&format!("/v1/authz?domain=shop&{by}={key}"))
}

/// The status of a check's answer, and the reason.
fn check(node: &Node, Cell { by, key }: Cell) -> (u16, String) {
    let reply = Http::connect(node).check(&body(&[(by, key)]));
    let answer: serde_json::Value = serde_json::from_str(&reply.body).expect("JSON");
    let reason = answer["reason"].as_str().expect("a reason");
    assert_eq!(answer["allowed"] == true, ["within-limit", "open"].contains(&reason), "{answer}");
    (reply.status, reason.to_owned())
}

/// Asks a node until it gives this reason. Returns how many units were charged on the way.
#[track_caller]
fn charged_until(node: &Node, cell: Cell, reason: &str) -> u64 {
    let mut charged = 0;
    eventually(reason, || {
        let (_, given) = check(node, cell);
        charged += u64::from(given == "within-limit");
        given == reason
    });
    charged
}

/// Waits until a node knows that no group of pools answers.
fn until_it_is_lost(node: &Node) {
    eventually("the store is lost", || order(node, &["store", "--json"]).1.contains("\"lost\":1024,"));
}

#[test]
fn without_its_store_a_closed_limit_is_unavailable_and_an_open_one_lets_all_pass() {
    let _alone = alone();
    let mut store = Server::start(&[]);
    let redis = format!("shards: {}", listed(slice::from_ref(&store)));
    let nodes = ["eu-1", "eu-2"];
    let nodes = start_all(nodes.map(|node| config_of(node, &nodes, &redis, &limits())));
    until_pools_grant(&nodes);
    let cell = |by, key| Cell { by, key };
    let (closed, open, unused) = (cell("c", "one"), cell("o", "one"), cell("c", "two"));
    let (mut of_closed, mut of_open, mut of_unused) = (0, 0, 0);
    for _ in 0..15 {
        for node in &nodes {
            of_closed += u64::from(check(node, closed).1 == "within-limit");
            of_open += u64::from(check(node, open).1 == "within-limit");
        }
    }
    assert!(of_closed > 0 && of_open > 0, "{of_closed} and {of_open}: there was something to lose");

    store.kill();
    for node in &nodes {
        until_it_is_lost(node);
        // The node spends what it holds. Afterwards nobody can decide, and a proxy is not told "too many".
        of_closed += charged_until(node, closed, "unavailable");
        let refused = authz(node, closed);
        assert_eq!((refused.status, refused.number("retry-after")), (503, 1));
        let forbidding = Http::connect(node).get("/v1/authz?domain=shop&c=one&deny_status=403");
        assert_eq!(forbidding.status, 503, "whatever status the proxy wants");
        assert_eq!(check(node, closed), (503, "unavailable".to_owned()));
        assert_eq!(authz(node, unused).status, 503, "the guard share is left alone");
        // The open limit lets everybody pass.
        of_open += charged_until(node, open, "open");
        let passed = (0..250).filter(|_| authz(node, open).status == 200).count();
        assert_eq!(passed, 250, "of a limit of 200");
        assert!(metric(node, "acequia_open_units_total", &[]) >= 250.0, "it is told how much is over");
    }

    // The store is back: both limits hold again, and earlier charges count.
    store.restart();
    until_pools_grant(&nodes);
    eventually("most of what nobody was given is there", || {
        of_unused += nodes.iter().filter(|node| check(node, unused).1 == "within-limit").count();
        of_unused >= 150
    });
    for node in &nodes {
        of_closed += charged_until(node, closed, "over-limit");
        of_open += charged_until(node, open, "over-limit");
        for cell in [closed, open] {
            eventually("it is too many again", || authz(node, cell).status == 429);
        }
    }
    of_unused += (0..300).filter(|number| check(&nodes[number % 2], unused).1 == "within-limit").count();
    assert!(of_unused <= 200, "{of_unused} of 200");
    assert!(of_closed <= 200, "{of_closed} of 200");
    assert!(of_open <= 200, "{of_open} of 200 were charged");
}
