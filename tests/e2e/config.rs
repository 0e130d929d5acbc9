//! The config file: checked before it takes effect, and read again while the node runs.

use std::time::{Duration, Instant};

use acequia_tests::{Node, acequia, eventually, head_lines, whole_config};
use serde_json::{Value, json};

use crate::{
    client::{Http, body, check, check_cost, metric},
    windows,
};

const FAULTY: &str = "\
memory: lots
limits:
- name: fast
  domain: shop
  token_bucket:
    rate: quick
    burst: 0
- name: fast
  domain: shop
  fixed_window: { limit: 1, window: 1h }
- { name: slow, domain: shop, cost: 9, fixed_window: { limit: 5, window: 1ms } }
- { name: twins, domain: shop, fixed_window: { limit: 5, window: 1m }, quota: { limit: 5, per: day } }
";
/// Line numbers of the faults in the test's text, and a word from each message.
const FAULTS: [(usize, &str); 5] = [(1, "64MiB"), (6, "60/s"), (7, "burst"), (11, "10ms"), (12, "keep one")];

#[test]
fn validate_names_every_fault_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    std::fs::write(&path, whole_config(FAULTY, folder.path())).expect("a file");
    let path = path.to_str().expect("text");

    let ran = acequia(&["validate", path]);
    assert_eq!(ran.status.code(), Some(2));
    assert_eq!(ran.stdout, b"");
    let said = String::from_utf8(ran.stderr).expect("text");
    for (line, word) in FAULTS {
        let begin = format!("{path}:{}: ", line + head_lines());
        let found = said.lines().any(|said| said.starts_with(&begin) && said.contains(word));
        assert!(found, "nothing at {begin} says {word}:\n{said}");
    }

    let served = acequia(&["serve", "--config", path]);
    assert_eq!(served.status.code(), Some(2), "a node does not start with it either");
    assert!(String::from_utf8_lossy(&served.stderr).contains(&said));
}

#[test]
fn programs_get_json_whatever_there_is_to_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    let path = path.to_str().expect("text");
    std::fs::write(path, whole_config(FAULTY, folder.path())).expect("a file");
    let ran = acequia(&["validate", path, "--json"]);
    assert_eq!(ran.status.code(), Some(2));
    let said: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!((&said["is_sound"], &said["file"]), (&json!(false), &json!(path)));
    let lines: Vec<_> =
        said["faults"].as_array().expect("a list").iter().map(|fault| &fault["line"]).collect();
    let expected: Vec<_> = FAULTS.iter().map(|(line, _)| json!(line + head_lines())).collect();
    assert_eq!(lines, expected.iter().collect::<Vec<_>>());

    std::fs::write(path, whole_config("limits: []", folder.path())).expect("a file");
    let ran = acequia(&["validate", path, "--json"]);
    let said: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!((ran.status.code(), &said["is_sound"], &said["faults"]), (Some(0), &json!(true), &json!([])));

    // Nobody listens at this address.
    for command in [
        &["check", "--json", "--address", "127.0.0.1:1", "--domain", "shop", "k=v"][..],
        &["budget", "list", "--json", "--address", "127.0.0.1:1"],
        &["validate", "/nowhere.yaml", "--json"],
    ] {
        let ran = acequia(command);
        assert_eq!((ran.status.code(), &ran.stdout[..]), (Some(2), &b""[..]), "{command:?}");
        let said: Value = serde_json::from_slice(&ran.stderr).expect("JSON");
        assert!(said["error"].as_str().is_some_and(|what| !what.is_empty()), "{command:?}: {said}");
    }
}

#[test]
fn validate_says_what_a_file_would_change_on_a_running_node() {
    let listen = r#"{ grpc: "127.0.0.1:0", http: "127.0.0.1:0", admin: "127.0.0.1:0" }"#;
    let yaml = |by: &str, burst: u64| {
        format!(
            "region: eu\nnode: eu-1\nlisten: {listen}\nlimits:\n- {{ name: per-key, domain: shop, by: [{by}], \
             token_bucket: {{ rate: 1/s, burst: {burst} }} }}\n"
        )
    };
    let node = Node::start_whole(&yaml("key", 9));
    let address = node.admin().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("new.yaml");
    let path = path.to_str().expect("text");
    for (by, burst, word) in [
        ("key", 9, None),
        ("key", 8, Some("note: shop/per-key has other numbers or fields there")),
        ("user", 9, Some("warning: shop/per-key matches, counts or measures otherwise")),
    ] {
        std::fs::write(path, yaml(by, burst)).expect("a file");
        let ran = acequia(&["validate", path, "--address", &address]);
        assert_eq!(ran.status.code(), Some(0));
        let said = String::from_utf8(ran.stdout).expect("text");
        assert!(said.contains("is sound"), "{said}");
        assert_eq!(said.contains("there"), word.is_some(), "{said}");
        assert!(word.is_none_or(|word| said.contains(word)), "{said}");
    }
    // The node and an explanation report the change.
    node.write_whole_config(&yaml("user", 9));
    node.until_it_says("the limit matches or counts otherwise now");
    let grpc = node.grpc().to_string();
    let ran = acequia(&["explain", "--address", &grpc, "--domain", "shop", "user=u", "key=k"]);
    let said = String::from_utf8(ran.stdout).expect("text");
    assert!(said.contains("warning") && said.contains("counts beside it for"), "{said}");
}

#[test]
fn validate_accepts_what_is_sound_and_says_what_is_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    let sound = "data: DATA\nlimits: [{ name: a, domain: shop, quota: { limit: 1, per: month } }]";
    std::fs::write(&path, whole_config(sound, folder.path())).expect("a file");
    let ran = acequia(&["validate", path.to_str().expect("text")]);
    assert_eq!(ran.status.code(), Some(0));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(said.contains("is sound") && said.contains("1 limits"), "{said}");
    assert!(!folder.path().join("journal.redb").exists(), "it only looks");

    for command in [&["validate", "/nowhere.yaml"][..], &["serve", "--config", "/nowhere.yaml"]] {
        let ran = acequia(command);
        assert_eq!(ran.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&ran.stderr).contains("/nowhere.yaml"), "{command:?}");
    }
    assert_eq!(acequia(&["surf"]).status.code(), Some(2), "not a command");
}

#[test]
fn the_configs_that_are_shipped_are_sound() {
    for name in ["acequia", "eu", "us", "ap", "region/eu-1", "region/eu-2", "regions/node"] {
        let sample = format!("{}/../deploy/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let ran = acequia(&["validate", &sample]);
        assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
    }
}

/// The config of a newcomer with three regions.
const REGIONS: &str = r#"# acequia.yaml
region: eu                          # this node's region
node: eu-1
listen:
  grpc: 127.0.0.1:8081              # Envoy's RLS and acequia.v1
  http: 127.0.0.1:8080              # check, metrics, health, dashboard
  admin: 127.0.0.1:8082             # budgets; loopback unless TLS and a token are set
  mesh: 127.0.0.1:7201              # QUIC, mutual TLS
data: ./data/eu-1                   # journal
tls: ./certs                        # ca.pem, eu-1.pem, eu-1.key
store: memory
regions:
  eu: { weight: 1, nodes: { eu-1: "127.0.0.1:7201" } }
  us: { weight: 1, nodes: { us-1: "127.0.0.1:7202" } }
  ap: { weight: 1, nodes: { ap-1: "127.0.0.1:7203" } }
authority: eu-1                     # the one node that mints and burns
clock: { error: 10ms, drift: 1e-3 } # how far walls may differ and monotonic clocks may drift
limits:
  - name: per-key
    domain: shop
    by: [api_key]                   # one cell per value
    token_bucket: { rate: 60/s, burst: 120 }
  - name: search
    domain: shop
    when: { route: /search }
    by: [api_key]
    sliding_window: { limit: 10, window: 1s }
  - name: exports
    domain: shop
    when: { route: /export }
    fixed_window: { limit: 100, window: 1h }
    mode: shadow                    # count and report, never deny
  - name: monthly-credits
    domain: shop
    by: [tenant]
    quota: { limit: 100000, per: month, time_zone: Europe/Berlin }
  - name: reports
    domain: shop
    when: { route: ["/report/*", "!/report/tiny"], method: POST }   # lists are "any of", * is a glob, ! excludes
    by: [tenant, { ip: remote_address, v4: 32, v6: 64 }]            # addresses are counted by prefix
    cost: 10
    leaky_bucket: { rate: 2/s, queue: 20 }
    unlimited: { tenant: [internal] }
    overrides:
      - { tenant: big-co, rate: 20/s, queue: 200, until: 2027-01-01, why: launch }
"#;

#[test]
fn a_config_of_three_regions_is_sound() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    std::fs::write(&path, REGIONS).expect("a file");
    let ran = acequia(&["validate", path.to_str().expect("text")]);
    assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
    let said = String::from_utf8_lossy(&ran.stdout);
    for words in ["node eu-1 in region eu, 5 limits", "shared by 3 regions (ap, eu, us), authority eu-1"] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn faults_between_regions_are_named_with_their_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    let faulty = REGIONS
        .replace("admin: 127.0.0.1:8082", "admin: 0.0.0.0:8082")
        .replace("data: ./data/eu-1", "# no data")
        .replace("127.0.0.1:7203", "127.0.0.1:7202")
        .replace("authority: eu-1", "authority: eu")
        .replace("window: 1s", "window: 199ms");
    std::fs::write(&path, faulty).expect("a file");
    let path = path.to_str().expect("text");
    for command in [&["validate", path][..], &["serve", "--config", path]] {
        let ran = acequia(command);
        assert_eq!(ran.status.code(), Some(2), "{command:?}");
        let said = String::from_utf8_lossy(&ran.stderr);
        let faults: Vec<&str> = said.lines().filter(|line| line.starts_with(path)).collect();
        let expected = [
            (7, "admin_token"),
            (12, "`data`"),
            (15, "the address of node us-1 in line 14"),
            (16, "ap-1, eu-1, us-1"),
            (27, "200ms or longer"),
        ];
        assert_eq!(faults.len(), expected.len(), "{said}");
        for (fault, (line, word)) in faults.iter().zip(expected) {
            let begin = format!("{path}:{line}: ");
            assert!(fault.starts_with(&begin) && fault.contains(word), "{begin}{word}:\n{said}");
        }
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    std::fs::write(
        &path,
        format!("region: eu\nnode: n\nlisten: {{ http: \"{address}\", grpc: \"127.0.0.1:0\" }}\n"),
    )
    .expect("a file");
    let ran = acequia(&["serve", "--config", path.to_str().expect("text")]);
    assert_eq!(ran.status.code(), Some(2));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains(&format!("cannot listen on {address}")), "{said}");
}

#[test]
fn a_changed_file_is_read_by_itself() {
    let node = Node::start(&one_window(10));
    assert_eq!(check(&node, &[("k", "v")])["remaining"], 9);
    node.write_config(&one_window(20));
    reloaded(&node, 1);
    assert_eq!(check(&node, &[("k", "v")])["remaining"], 18, "a new number, and the cell is kept");
    node.until_it_says("limit changed, its cells kept");
}

#[test]
fn an_answer_is_repeated_for_its_id_though_its_class_is_gone() {
    let window = windows::long();
    let yaml = |classes: &str| {
        format!(
            "limits: [{{ name: plans, domain: shop, by: [service], fixed_window: {{ limit: 100, window: {window} }}, \
             classes: {{ entry: plan, shared: {{ {classes} }} }} }}]"
        )
    };
    let node = Node::start(&yaml("gold: 0%, silver: 20%, free: 60%"));
    let asks = json!({ "domain": "shop", "descriptors": [{ "service": "s", "plan": "free" }], "id": "once" });
    let ask = || Http::connect(&node).check(&asks.to_string()).json();
    assert_eq!(ask()["limits"][0]["class"], "free");
    node.write_config(&yaml("gold: 0%, silver: 20%"));
    reloaded(&node, 1);
    let again = ask();
    assert_eq!((&again["is_repeat"], &again["limits"][0]["class"]), (&json!(true), &json!(null)), "{again}");
}

#[test]
fn a_signal_reads_the_file_at_once_changed_or_not() {
    let node = Node::start(&one_window(10));
    node.hup();
    eventually("the same text is read", || metric(&node, RELOADS, &[("outcome", "unchanged")]) == 1.0);
    node.until_it_says("the config was read, and changes nothing here");
    assert_eq!(metric(&node, RELOADS, &[("outcome", "applied")]), 0.0);
    node.write_config(&one_window(5));
    node.hup();
    eventually("the new limit counts", || {
        let limit = &check_cost(&node, &[("k", "v")], 6)["limits"][0];
        (&limit["budget"], &limit["reason"]) == (&json!(5), &json!("cost-too-high"))
    });
}

#[test]
fn a_faulty_file_changes_nothing_and_says_why() {
    let node = Node::start(&one_window(10));
    check(&node, &[("k", "v")]);
    node.write_config(FAULTY);
    node.hup();
    refused(&node, 1);
    node.until_it_says("config refused");
    let said = node.stderr();
    for (line, word) in FAULTS {
        let place = format!("acequia.yaml:{}: ", line + head_lines());
        assert!(said.contains(&place) && said.contains(word), "{place} {word}:\n{said}");
    }
    assert_eq!(check(&node, &[("k", "v")])["remaining"], 8, "the old limits count");
    assert_eq!(Http::connect(&node).get("/readyz").status, 200);

    let before = metric(&node, RELOADS, &[("outcome", "refused")]);
    std::fs::remove_file(node.config()).expect("a file");
    node.hup();
    refused(&node, before as u32 + 1);
    assert_eq!(check(&node, &[("k", "v")])["remaining"], 7);

    node.write_config(&one_window(12));
    node.hup();
    eventually("the mended file is read", || metric(&node, RELOADS, &[("outcome", "applied")]) >= 1.0);
    assert_eq!(check(&node, &[("k", "v")])["remaining"], 8);
}

#[test]
fn a_limit_that_comes_back_has_its_cells() {
    let with = one_window(10);
    let node = Node::start(&with);
    check_cost(&node, &[("k", "v")], 7);
    node.write_config("limits: []");
    reloaded(&node, 1);
    assert_eq!(check(&node, &[("k", "v")])["reason"], "no-match");
    node.write_config(&with);
    reloaded(&node, 2);
    assert_eq!(check(&node, &[("k", "v")])["remaining"], 2);
    node.until_it_says("limit removed");
    node.until_it_says("limit added");
}

#[test]
fn fewer_units_deny_at_once_and_none_are_minted_by_going_back() {
    let bucket = |rate: &str, burst: u64| {
        format!(
            "limits: [{{ name: b, domain: shop, by: [k], token_bucket: {{ rate: {rate}, burst: {burst} }} }}]"
        )
    };
    let node = Node::start(&bucket("1/h", 10));
    let key = &[("k", "v")];
    assert_eq!(check_cost(&node, key, 6)["remaining"], 4);
    for (number, rate, burst, left) in [(1, "1/h", 8, 2), (2, "1/h", 4, 0), (3, "2/h", 10, 4)] {
        node.write_config(&bucket(rate, burst));
        reloaded(&node, number);
        // A denied request converts the cell, so that the next change finds the same debt.
        let asked = check_cost(&node, key, burst);
        assert_eq!(
            (&asked["allowed"], &asked["remaining"]),
            (&json!(false), &json!(left)),
            "{rate}, {burst}"
        );
    }
    // Six units were spent, whatever the burst was in between. Four of ten are left.
    assert_eq!(check_cost(&node, key, 4)["allowed"], true);
    assert_eq!(check(&node, key)["allowed"], false);
}

/// The number of limits of one node, and of domains that they are spread over.
const MANY: usize = 100_000;
const DOMAINS: usize = 1_000;
/// The most limits of a config, by `validate`.
const MOST: usize = 131_071;

/// A number of small limits. The last one has `last` units.
fn many_limits(count: usize, last: u64) -> String {
    let window = windows::long();
    let limit = |n: usize| {
        let (domain, units) = (n * DOMAINS / count, if n + 1 == count { last } else { 10 });
        format!(
            "- {{ name: n{n}, domain: d{domain}, by: [k], fixed_window: {{ limit: {units}, window: {window} }} }}\n"
        )
    };
    format!("data: DATA\nlimits:\n{}", (0..count).map(limit).collect::<String>())
}

#[test]
fn a_hundred_thousand_limits_are_served_and_one_of_them_is_changed() {
    let mut node = Node::start(&many_limits(MANY, 10));
    let ends = [("d0", "n0", 0), ("d999", "n99999", 99)];
    let ask = |node: &Node, domain: &str| {
        let question = json!({ "domain": domain, "descriptors": [{ "k": "v" }] });
        Http::connect(node).check(&question.to_string()).json()["limits"].clone()
    };
    for (domain, name, place) in ends {
        let limits = ask(&node, domain);
        assert_eq!(limits.as_array().map(Vec::len), Some(MANY / DOMAINS), "{domain} has its own limits");
        assert_eq!((&limits[place]["name"], &limits[place]["remaining"]), (&json!(name), &json!(9)));
    }
    let metrics = Http::connect(&node).get("/metrics").body;
    let last = r#"acequia_decisions_total{limit="d999/n99999",decision="allow"} 1"#;
    assert!(metrics.lines().any(|line| line == last), "{} bytes without {last}", metrics.len());

    node.write_config(&many_limits(MANY, 20));
    node.until_it_says("config read again");
    node.until_it_says("limit changed, its cells kept");
    node.restart();
    for (domain, _, place) in ends {
        let units = if domain == "d999" { 20 } else { 10 };
        let limit = &ask(&node, domain)[place];
        assert_eq!((&limit["budget"], &limit["remaining"]), (&json!(units), &json!(units - 2)), "{limit}");
    }
}

#[test]
fn more_limits_than_a_node_can_count_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    let path_text = path.to_str().expect("text");
    let validate = |count| {
        std::fs::write(&path, whole_config(&many_limits(count, 10), folder.path())).expect("a file");
        acequia(&["validate", path_text])
    };
    let ran = validate(MOST);
    assert!(String::from_utf8_lossy(&ran.stdout).contains(&format!("{MOST} limits")), "{ran:?}");
    let refused = validate(MOST + 1);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    let begin = format!("{path_text}:{}: ", head_lines() + 2);
    assert!(said.starts_with(&begin) && said.contains(&format!("at most {MOST}")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn another_shape_waits_for_the_window_to_end() {
    const WINDOW: &str = "3s";
    let old = format!(
        "limits: [{{ name: w, domain: shop, by: [k], fixed_window: {{ limit: 2, window: {WINDOW} }} }}]"
    );
    let new = format!(
        "limits: [{{ name: w, domain: shop, by: [k], fixed_window: {{ limit: 5, window: {} }} }}]",
        windows::long()
    );
    let node = Node::start(&old);
    let key = &[("k", "v")];
    // Spend a window that still has some time to go.
    let (mut denied, mut asked) = (check(&node, key), Instant::now());
    eventually("a window is spent early", || {
        asked = Instant::now();
        denied = check(&node, key);
        denied["allowed"] == false && denied["retry_after_ms"].as_u64() > Some(1_500)
    });
    // The answer's own hint may be later at random, so read the limit's.
    let to_go = Duration::from_millis(denied["limits"][0]["retry_after_ms"].as_u64().expect("a wait"));

    node.write_config(&new);
    node.hup();
    reloaded(&node, 1);
    node.until_it_says("the limit matches or counts otherwise now");

    let mut answer = check(&node, key);
    eventually("the new limit counts", || {
        answer = check(&node, key);
        answer["allowed"] == true
    });
    let waited = asked.elapsed();
    assert!(waited + Duration::from_millis(1) >= to_go, "{to_go:?} to go, allowed after {waited:?}");
    assert_eq!((&answer["limits"][0]["budget"], &answer["remaining"]), (&json!(5), &json!(4)));
}

#[test]
fn modes_and_headers_change_while_it_runs() {
    let config = |mode: &str, dialect: &str| {
        format!(
            "headers: {{ http: [{dialect}] }}\n\
             limits: [{{ name: b, domain: shop, mode: {mode}, token_bucket: {{ rate: 1/h, burst: 1 }} }}]"
        )
    };
    let node = Node::start(&config("enforce", "triple"));
    let mut http = Http::connect(&node);
    let question = body(&[("k", "v")]);
    assert_eq!(http.check(&question).number("ratelimit-limit"), 1);
    assert_eq!(http.check(&question).json()["allowed"], false);

    node.write_config(&config("shadow", "x-ratelimit"));
    reloaded(&node, 1);
    let watched = http.check(&question);
    assert_eq!(watched.json()["limits"][0]["outcome"], "shadow-deny");
    assert_eq!(watched.header("ratelimit-limit"), None);

    node.write_config(&config("off", "x-ratelimit"));
    reloaded(&node, 2);
    assert_eq!(http.check(&question).json()["reason"], "no-match");

    node.write_config(&config("enforce", "x-ratelimit"));
    reloaded(&node, 3);
    let denied = http.check(&question);
    assert_eq!(denied.json()["allowed"], false, "its cell was kept");
    assert_eq!(denied.number("x-ratelimit-limit"), 1);
}

#[test]
fn a_change_that_needs_a_restart_is_named() {
    let node = Node::start("workers: 1\nlimits: []");
    node.write_config(&format!("workers: 2\nmemory: 64MiB\n{}", one_window(3)));
    reloaded(&node, 1);
    node.until_it_says("config read again");
    let said = node.stderr();
    for setting in ["workers", "memory"] {
        let warned = said.lines().any(|line| line.contains("needs a restart") && line.contains(setting));
        assert!(warned, "{setting}:\n{said}");
    }
    assert_eq!(check(&node, &[("k", "v")])["remaining"], 2, "the rest of the file counts");
}

#[test]
fn logs_are_plain_text_where_nobody_watches() {
    let node = Node::start("");
    node.until_it_says("listening");
    let said = node.stderr();
    assert!(!said.contains('\u{1b}'), "colours in a file: {said:?}");
}

#[test]
fn more_connections_than_the_config_allows_wait_for_their_turn() {
    let node = Node::start("connections: 2\nlimits: []");
    let mut first = Http::connect(&node);
    let mut second = Http::connect(&node);
    assert_eq!((first.get("/healthz").status, second.get("/healthz").status), (200, 200));
    let mut third = Http::connect(&node);
    third.send(b"GET /healthz HTTP/1.1\r\nhost: node\r\n\r\n").expect("it is connected");
    // The two open connections are served as before, and the third when one of them has ended.
    assert_eq!(first.get("/healthz").status, 200);
    drop(second);
    assert_eq!(third.reply(false).expect("an answer").status, 200);
}

const RELOADS: &str = "acequia_config_reloads_total";

#[track_caller]
fn reloaded(node: &Node, times: u32) {
    eventually("the config is read again", || {
        metric(node, RELOADS, &[("outcome", "applied")]) == f64::from(times)
    });
    assert_eq!(metric(node, RELOADS, &[("outcome", "refused")]), 0.0, "{}", node.stderr());
}

#[track_caller]
fn refused(node: &Node, times: u32) {
    eventually("the config is refused", || {
        // The node may notice a new file by itself just before the signal.
        metric(node, RELOADS, &[("outcome", "refused")]) >= f64::from(times)
    });
}

/// One limit with a window that does not end during a test. The window is equal in every config of a test;
/// otherwise it would be another limit.
fn one_window(limit: u64) -> String {
    thread_local! {
        static WINDOW: String = windows::long();
    }
    let window = WINDOW.with(String::clone);
    format!(
        "limits: [{{ name: w, domain: shop, by: [k], fixed_window: {{ limit: {limit}, window: {window} }} }}]"
    )
}
