//! What operators see and do in trouble: more units for one cell, numbers that end, hot cells and denied
//! callers.

use acequia_tests::{
    Node, acequia,
    cluster::{Cluster, EU},
    eventually, exit_and_text,
};
use serde_json::{Value, json};

use crate::{
    client::{body, check, check_cost},
    windows,
};

const US: usize = 2;

/// Runs an operator's command at a node's admin service. Returns its exit code and output.
pub(crate) fn order(node: &Node, words: &[&str]) -> (Option<i32>, String) {
    let address = node.admin().to_string();
    exit_and_text(&[words, &["--address", &address]].concat())
}

/// Runs a command that must succeed.
#[track_caller]
fn done(node: &Node, words: &[&str]) -> String {
    let (code, text) = order(node, words);
    assert_eq!(code, Some(0), "{words:?}: {text}");
    text
}

/// Runs a command that must be refused.
#[track_caller]
fn refused(node: &Node, words: &[&str], why: &str) {
    let (code, text) = order(node, words);
    assert_eq!(code, Some(2), "{words:?}: {text}");
    assert!(text.contains(why), "{words:?}: {text}");
}

/// Units that a cell has left in its region, without a charge.
pub(crate) fn explained(node: &Node, words: &[&str]) -> Value {
    let address = node.grpc().to_string();
    let mut all = vec!["explain", "--json", "--deadline", "20s", "--address", &address, "--domain", "shop"];
    all.extend(words);
    serde_json::from_slice(&acequia(&all).stdout).expect("JSON")
}

/// How many of these consecutive requests are allowed.
fn allowed(node: &Node, entries: &[(&str, &str)], requests: usize) -> usize {
    (0..requests).filter(|_| check(node, entries)["allowed"] == true).count()
}

/// Asks until `units` requests were allowed in all, while units arrive.
#[track_caller]
fn until_allowed(node: &Node, entries: &[(&str, &str)], units: usize) {
    let mut so_far = 0;
    eventually("what was granted can be spent", || {
        so_far += allowed(node, entries, 1);
        so_far == units
    });
}

fn limits() -> String {
    format!(
        "limits:\n\
         - {{ name: credits, domain: shop, by: [tenant], quota: {{ limit: 30, per: day, time_zone: {} }} }}\n\
         - {{ name: exports, domain: shop, when: {{ route: /export }}, fixed_window: {{ limit: 3, window: {} }} }}\n\
         - name: per-key\n  domain: shop\n  by: [api_key]\n  token_bucket: {{ rate: 1/h, burst: 12 }}\n",
        windows::zone(),
        windows::long(),
    )
}

#[test]
fn one_cell_gets_more_everywhere_until_its_window_ends_and_the_log_says_who_and_why() {
    let cluster = Cluster::start(&limits());
    let (eu, us) = (&cluster.nodes[EU], &cluster.nodes[US]);
    let big = [("tenant", "big-co")];
    // Everything is spent in one region, which borrows what the others have.
    until_allowed(us, &big, 30);
    assert_eq!(allowed(us, &big, 20), 0);

    let grant = ["grant", "shop/credits[tenant=big-co]", "12", "--author", "ana", "--reason", "ticket 4711"];
    let mut dry = grant.to_vec();
    dry.push("--dry-run");
    let text = done(eu, &dry);
    assert!(text.contains("tenant=big-co has limit 42 (12 granted) until"), "{text}");
    assert_eq!(allowed(us, &big, 5), 0, "a dry run gives nothing");
    let mut wait = grant.to_vec();
    wait.push("--wait");
    let text = done(eu, &wait);
    assert!(text.contains("is effective everywhere"), "{text}");
    until_allowed(us, &big, 12);
    assert_eq!(allowed(us, &big, 40) + allowed(eu, &big, 40), 0, "not one more, anywhere");
    let small = check_cost(eu, &[("tenant", "small")], 31);
    assert_eq!(small["reason"], "cost-too-high", "only that cell has more: {small}");

    let seen = explained(us, &["tenant=big-co"]);
    let cell = &seen["overrides"][0];
    assert_eq!((&cell["granted"], &cell["author"]), (&json!(12), &json!("ana")), "{seen}");
    assert!(cell["until"].is_string() && cell["why"] == "ticket 4711", "{seen}");
    let shown = done(eu, &["budget", "show", "shop/credits"]);
    let row = shown.lines().find(|line| line.starts_with("tenant=big-co")).expect("a row");
    assert!(row.contains("limit 42") && row.contains("ticket 4711") && row.ends_with("ana"), "{row}");
    assert!(!shown.contains("the catalogue counts"), "a grant is no difference to the file: {shown}");

    // A reset grants the used units again, without those that an earlier grant added.
    let text = done(eu, &["reset", "shop/credits[tenant=big-co]", "--author", "ana", "--yes"]);
    let known = text.lines().find(|line| line.contains("is known to have used")).expect("a line");
    assert!(known.contains("of 30") && known.contains("12 were granted") && known.contains("us "), "{known}");
    let audit = done(eu, &["audit", "--newest", "2"]);
    assert!(
        audit.contains("grant shop/credits[tenant=big-co] 12") && audit.contains("why: ticket 4711"),
        "{audit}"
    );
    assert!(
        audit.contains("reset shop/credits[tenant=big-co]") && audit.contains("ana from 127.0.0.1:"),
        "{audit}"
    );
}

#[test]
fn a_reset_gives_back_what_is_known_to_be_used_and_nothing_beyond() {
    let cluster = Cluster::start(&limits());
    let eu = &cluster.nodes[EU];
    let key = [("api_key", "k1")];
    let before = allowed(eu, &key, 40);
    assert!((4..=12).contains(&before), "{before}");
    let text = done(eu, &["reset", "shop/per-key[api_key=k1]", "--wait", "--yes"]);
    assert!(text.contains("is known to have used") && text.contains("of 12 (eu "), "{text}");
    eventually("it may spend again", || check(eu, &key)["allowed"] == true);
    let more = allowed(eu, &key, 40);
    assert!(before + more < 24, "{before} and then {more}, and one: more than it ever used was granted");

    // A limit without `by` has one cell.
    let export = [("route", "/export")];
    until_allowed(eu, &export, 3);
    done(eu, &["grant", "shop/exports", "2", "--wait", "--yes"]);
    until_allowed(eu, &export, 2);
    assert_eq!(allowed(eu, &export, 10), 0);
}

#[test]
fn orders_about_cells_that_make_no_sense_say_what_would() {
    let cluster = Cluster::start(&limits());
    let (eu, us) = (&cluster.nodes[EU], &cluster.nodes[US]);
    let cell = "shop/credits[tenant=big-co]";
    refused(us, &["grant", cell, "5"], "only the authority, eu/eu-1");
    refused(us, &["reset", cell], "only the authority, eu/eu-1");
    refused(eu, &["grant", cell, "0"], "1..");
    refused(eu, &["grant", cell, "18446744073709551615"], "more than can be counted");
    refused(eu, &["grant", cell, "9007199254740992"], "at most");
    refused(eu, &["grant", cell, "5", "--for", "1h"], "leave out --for");
    refused(eu, &["grant", "shop/credits", "5"], "shop/credits[tenant=...]");
    refused(eu, &["grant", "shop/credits[nobody=x]", "5"], "shop/credits[tenant=...]");
    refused(eu, &["grant", "shop/credits[tenant=big-*]", "5"], "many cells");
    refused(eu, &["grant", "shop/exports[tenant=x]", "5"], "without brackets");
    refused(eu, &["grant", "shop/nothing[tenant=x]", "5"], "no limit shop/nothing");
    refused(eu, &["reset", "shop/credits[tenant=never-seen]"], "nothing to reset");
    refused(eu, &["budget", "set", cell, "limit=5", "--until", "2020-01-01"], "is past");
    refused(eu, &["budget", "set", "shop/credits", "limit=5", "--for", "1h"], "have no end");
    refused(eu, &["budget", "set", "shop/credits[nobody=x]", "limit=5", "--for", "1h"], "nobody");
    let listed = done(eu, &["budget", "list", "--json"]);
    assert!(!listed.contains("overrides\":["), "nothing has changed: {listed}");
}

#[test]
fn a_temporary_override_ends_by_itself_and_is_forgotten_with_the_next_order() {
    let cluster = Cluster::start(&limits());
    let eu = &cluster.nodes[EU];
    let set =
        ["budget", "set", "shop/credits[tenant=a]", "limit=300", "--for", "2s", "--author", "ana", "--wait"];
    done(eu, &set);
    let cost = |cost| check_cost(eu, &[("tenant", "a")], cost)["reason"].clone();
    eventually("it has its old numbers again", || cost(31) == "cost-too-high");
    let overrides = || {
        let listed: Value =
            serde_json::from_str(&done(eu, &["budget", "show", "shop/credits", "--json"])).expect("JSON");
        listed["limit"]["overrides"].clone()
    };
    assert_eq!(overrides()[0]["author"], json!(["ana"]));
    done(eu, &["budget", "set", "shop/credits[tenant=b]", "limit=40", "--reason", "more", "--wait"]);
    let left = overrides();
    let left = left.as_array().expect("a list");
    assert!(left.len() == 1 && left[0]["tenant"] == json!(["b"]), "{left:?}");
}

#[test]
fn an_override_in_a_file_may_have_an_end_and_an_author() {
    let yaml = |until: &str| {
        format!(
            "limits:\n- name: credits\n  domain: shop\n  by: [tenant]\n  quota: {{ limit: 3, per: day, time_zone: {} }}\n  \
             overrides: [{{ tenant: a, limit: 5, until: {until}, why: launch, author: ana }}]\n",
            windows::zone()
        )
    };
    let node = Node::start(&yaml("2500-01-01"));
    assert_eq!(allowed(&node, &[("tenant", "a")], 10), 5);
    assert_eq!(allowed(&node, &[("tenant", "b")], 10), 3);
    // An override that ended does not prevent a start later on.
    let late = Node::start(&yaml("2020-01-01"));
    assert_eq!(allowed(&late, &[("tenant", "a")], 10), 3);
    let said = acequia(&["validate", late.config().to_str().expect("text")]);
    let text = String::from_utf8(said.stdout).expect("text");
    assert_eq!(said.status.code(), Some(0), "{text}");
    assert!(text.contains("note: 1 of the overrides of shop/credits have ended"), "{text}");
    assert_eq!(body(&[]), r#"{"descriptors":[{}],"domain":"shop"}"#);
}

/// A node that stands alone and has an admin service.
pub(crate) fn alone(limits: &str) -> Node {
    Node::start_whole(&config_alone(limits))
}

fn config_alone(limits: &str) -> String {
    let listen = r#"{ grpc: "127.0.0.1:0", http: "127.0.0.1:0", admin: "127.0.0.1:0" }"#;
    format!("region: eu\nnode: eu-1\nlisten: {listen}\nworkers: 2\n{limits}")
}

#[test]
fn who_is_denied_most_is_named_to_operators_and_nowhere_else() {
    let node = alone(&format!(
        "limits: [{{ name: per-key, domain: shop, by: [api_key], fixed_window: {{ limit: 1, window: {} }} }}]\n",
        windows::long()
    ));
    // One caller does not stop, among many others that were denied once each.
    for number in 0..200 {
        let other = format!("other-{number}");
        allowed(&node, &[("api_key", &other)], 2);
        allowed(&node, &[("api_key", "greedy, 100%")], 2);
    }
    let seen: Value =
        serde_json::from_str(&done(&node, &["top", "--limit", "shop/per-key", "--json"])).expect("JSON");
    let worst = &seen["cells"]["offenders"][0];
    assert_eq!(worst["key"], "api_key=greedy%2C 100%25", "{seen}");
    let (count, error) =
        (worst["count"].as_u64().expect("a count"), worst["error"].as_u64().expect("an error"));
    assert!(count >= 399 && count - error <= 399, "it was denied 399 times: {worst}");
    let hottest = &seen["cells"]["hottest"][0];
    assert!(hottest["count"].as_u64().is_some_and(|count| count % 64 == 0), "{seen}");

    let text = done(&node, &["top", "--limit", "shop/per-key"]);
    assert!(
        text.contains("shop/per-key, denied most") && text.contains("api_key=greedy%2C 100%25"),
        "{text}"
    );
    refused(&node, &["top", "--limit", "shop/nothing", "--json"], "no node has a limit shop/nothing");
    let metrics = crate::client::Http::connect(&node).get("/metrics").body;
    assert!(metrics.contains("acequia_hottest_cell_remaining"), "{metrics}");
    for hidden in [metrics, node.stderr()] {
        assert!(!hidden.contains("greedy"), "{hidden}");
    }
}

#[test]
fn a_node_that_stands_alone_takes_orders_and_keeps_them_until_the_file_changes() {
    let three = format!(
        "data: DATA\nlimits:\n- {{ name: credits, domain: shop, by: [tenant], quota: {{ limit: 3, per: day, time_zone: {zone} }} }}\n\
             - {{ name: other, domain: shop, by: [user], fixed_window: {{ limit: 7, window: {window} }} }}\n",
        zone = windows::zone(),
        window = windows::long(),
    );
    let four = three.replace("limit: 3,", "limit: 4,");
    let mut node = alone(&three);
    let tenant = [("tenant", "a")];
    assert_eq!(allowed(&node, &tenant, 5), 3);
    refused(&node, &["grant", "shop/credits[tenant=a]", "0"], "1..");
    refused(&node, &["reset", "shop/credits[tenant=b]"], "nothing to reset");
    refused(&node, &["regions", "add", "mars"], "this node stands alone");
    refused(&node, &["budget", "set", "shop/credits", "limit=0x10"], "1200, 50k or 2M");

    let text = done(&node, &["reset", "shop/credits[tenant=a]", "--author", "ana", "--reason", "a: loop"]);
    assert!(text.contains("is known to have used 3 of 3 (this node 3)"), "{text}");
    assert_eq!(allowed(&node, &tenant, 5), 3, "as many again");
    done(&node, &["grant", "shop/credits[tenant=a]", "1"]);
    assert_eq!(allowed(&node, &tenant, 5), 1);
    done(&node, &["budget", "set", "shop/other", "limit=2"]);
    assert_eq!(allowed(&node, &[("user", "u")], 5), 2);

    // All orders survive a restart, are in the audit log, and are shown beside the file. A grant is no
    // difference.
    node.terminate();
    node.start_again();
    assert_eq!(allowed(&node, &tenant, 5), 0);
    assert_eq!(allowed(&node, &[("user", "v")], 5), 2);
    node.until_it_says("what operators ordered counts, and not the file");
    let audit = done(&node, &["audit"]);
    assert!(audit.contains("ana from 127.0.0.1") && audit.contains("a: loop"), "{audit}");
    assert!(audit.contains("budget set shop/other limit=2"), "{audit}");
    let listed = done(&node, &["budget", "list"]);
    assert!(listed.contains("What was ordered counts") && listed.contains("shop/other: "), "{listed}");
    let differences = || crate::client::metric(&node, "acequia_config_differences", &[]);
    assert_eq!(differences(), 1.0);

    // First another limit of the file changes, and the order stays. Then the ordered limit changes in the
    // file, and the file counts.
    node.write_whole_config(&config_alone(&four));
    node.hup();
    eventually("four a day", || check(&node, &[("tenant", "b")])["limits"][0]["budget"] == 4);
    assert_eq!(allowed(&node, &[("user", "w")], 5), 2);
    assert_eq!(differences(), 1.0);
    node.write_whole_config(&config_alone(&four.replace("limit: 7,", "limit: 5,")));
    node.hup();
    eventually("the file counts", || differences() == 0.0);
    assert_eq!(allowed(&node, &[("user", "x")], 9), 5);

    // An order that the file has replaced does not return, whatever the file says later.
    node.terminate();
    node.write_whole_config(&config_alone(&four));
    node.start_again();
    assert_eq!(allowed(&node, &[("user", "y")], 9), 7);
}

#[test]
fn a_grant_is_for_one_address_and_not_for_a_network() {
    let node = alone(
        "limits: [{ name: per-ip, domain: shop, by: [{ ip: ip, v6: 128 }], token_bucket: { rate: 1/h, burst: 2 } }]\n",
    );
    refused(&node, &["grant", "shop/per-ip[ip=10.0.0.0/8]", "5", "--yes"], "is no address");
    done(&node, &["grant", "shop/per-ip[ip=10.0.0.1]", "5", "--yes"]);
    assert_eq!(allowed(&node, &[("ip", "[::ffff:10.0.0.1]:80")], 9), 7);
    assert_eq!(allowed(&node, &[("ip", "10.0.0.2")], 9), 2);
}

#[test]
fn a_candidate_is_compared_with_the_limit_that_it_may_replace() {
    let limits = |candidate: u64, live: &str| {
        let window = windows::long();
        format!(
            "limits:\n\
             - {{ name: live, domain: shop, by: [user], fixed_window: {{ limit: 10, window: {window} }} }}\n\
             - name: other\n  domain: shop\n  when: {{ route: /other }}\n  fixed_window: {{ limit: 0, window: 1h }}\n\
             - name: stricter\n  domain: shop\n  by: [user]\n  mode: shadow\n  candidate_for: {live}\n  \
             fixed_window: {{ limit: {candidate}, window: {window} }}\n\
             - name: looser\n  domain: shop\n  by: [user]\n  mode: shadow\n  candidate_for: {live}\n  \
             fixed_window: {{ limit: 12, window: {window} }}\n"
        )
    };
    let node = alone(&limits(4, "live"));
    assert_eq!(allowed(&node, &[("user", "ann")], 20), 10);
    assert_eq!(allowed(&node, &[("user", "bob")], 5), 5);
    // Requests that another limit denies count in no comparison.
    assert_eq!(allowed(&node, &[("user", "cleo"), ("route", "/other")], 20), 0);

    let report = |name: &str| -> Value {
        serde_json::from_str(&done(&node, &["candidate", &format!("shop/{name}"), "--json"])).expect("JSON")
    };
    let counts = |name: &str| {
        let report = report(name);
        ["both_allow", "only_candidate_denies", "only_live_denies", "both_deny"]
            .map(|what| report[what].clone())
    };
    // Ann: 4, 6, 0, 10. Bob: 4, 1. Cleo: 20, but no limit was charged for her.
    assert_eq!(counts("stricter"), [28, 7, 0, 10].map(|count| json!(count)));
    // The candidate is charged as if it replaced the live limit: ann has exactly 12 of its units.
    assert_eq!(counts("looser"), [35, 0, 2, 8].map(|count| json!(count)));
    let denied = report("stricter")["denied"].clone();
    assert_eq!((&denied[0]["key"], &denied[0]["count"]), (&json!("user=ann"), &json!(6)));
    assert_eq!((&denied[1]["key"], &denied[1]["count"]), (&json!("user=bob"), &json!(1)));
    let text = done(&node, &["candidate", "shop/stricter"]);
    assert!(text.contains("45 requests hit both here since") && text.contains("user=ann"), "{text}");

    let verdicts = |verdict| {
        let labels = [("candidate", "shop/looser"), ("live", "shop/live"), ("verdict", verdict)];
        crate::client::metric(&node, "acequia_candidate_verdicts_total", &labels)
    };
    assert_eq!(
        (verdicts("both_allow"), verdicts("only_live_denies"), verdicts("both_deny")),
        (35.0, 2.0, 8.0)
    );
    let seen = explained(&node, &["user=bob"]);
    assert_eq!(
        seen["candidates"][0],
        json!({"candidate": "stricter", "live": "live", "candidate_denies": true, "live_denies": false}),
        "{seen}"
    );
    refused(&node, &["candidate", "shop/live"], "is no candidate");
    refused(&node, &["candidate", "shop/nothing"], "no limit shop/nothing");

    // With other numbers the comparison starts again. Without a live limit there is no comparison.
    node.write_whole_config(
        &std::fs::read_to_string(node.config()).expect("a config").replace("limit: 4", "limit: 5"),
    );
    eventually("it has other numbers", || {
        report("stricter")["candidate_budget"].to_string().contains(" 5 in")
    });
    assert_eq!(allowed(&node, &[("user", "dan")], 6), 6);
    assert_eq!(counts("stricter"), [5, 1, 0, 0].map(|count| json!(count)));
    let elsewhere = node.data().with_extension("yaml");
    std::fs::write(&elsewhere, format!("region: eu\nnode: eu-1\n{}", limits(4, "gone"))).expect("a config");
    let said = acequia(&["validate", elsewhere.to_str().expect("text")]);
    let text = String::from_utf8(said.stderr).expect("text");
    assert!(said.status.code() == Some(2) && text.contains("there is no limit shop/gone"), "{text}");
}

/// A benchmark uses its own domain, so it takes no units from others.
#[test]
fn a_benchmark_charges_no_limit_of_others() {
    let node = Node::start(&format!(
        "limits: [{{ name: all, domain: shop, fixed_window: {{ limit: 5, window: {} }} }}]",
        windows::long()
    ));
    let address = node.grpc().to_string();
    let ran = acequia(&["bench", "--address", &address, "--seconds", "1", "--keys", "10", "--mode", "check"]);
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(allowed(&node, &[("key", "1")], 9), 5);
}
