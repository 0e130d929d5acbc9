//! The tables of metrics on the pages, compared with `/metrics` of every kind of node: alone, among regions,
//! with a store.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use acequia_tests::Node;

use crate::{
    client::{Http, body, check, metric, metrics},
    ratelimit::place::Replacement,
    store::{alone, forwards, servers::Server},
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// The pages with a table of metrics. Each metric is in one of these tables.
const PAGES: [&str; 3] =
    ["deploy/metrics.md", "crates/server/METRICS.md", "crates/server/src/clock/README.md"];
/// Units that are no base units of OpenMetrics, and must not be a word of any name.
const WRONG_UNITS: [&str; 16] = [
    "hours",
    "kb",
    "kib",
    "mb",
    "mib",
    "micros",
    "microseconds",
    "milli",
    "millis",
    "milliseconds",
    "minutes",
    "ms",
    "nanoseconds",
    "ns",
    "percent",
    "us",
];

/// The labels of every metric that a table names.
type Tables = BTreeMap<String, BTreeSet<String>>;
/// The labels of the samples of every metric that any node shows.
type Shown = BTreeMap<String, BTreeSet<BTreeSet<String>>>;

fn tables() -> Tables {
    let mut all = Tables::new();
    for page in PAGES {
        let text = fs::read_to_string(Path::new(ROOT).join(page)).expect("a page");
        let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        // Every second piece is between backticks.
        let codes = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        for code in codes.filter(|code| code.starts_with("acequia_") || code.starts_with("process_")) {
            let (name, labels) =
                code.strip_suffix('}').and_then(|code| code.split_once('{')).unwrap_or((code, ""));
            let labels = labels.split(", ").filter(|label| !label.is_empty()).map(str::to_owned).collect();
            assert!(all.insert(name.to_owned(), labels).is_none(), "{name} is in two rows; {page} has one");
        }
    }
    all
}

/// The differences between the tables and the nodes.
fn differences(tables: &Tables, shown: &Shown) -> Vec<String> {
    let missing = shown.keys().filter(|name| !tables.contains_key(*name));
    let mut all: Vec<_> = missing.map(|name| format!("no table has {name}")).collect();
    for (name, labels) in tables {
        let Some(samples) = shown.get(name) else {
            all.push(format!("no node shows {name}"));
            continue;
        };
        let others = samples.iter().filter(|other| *other != labels);
        all.extend(others.map(|other| format!("{name} has {other:?}, and in its table {labels:?}")));
        if name.split('_').any(|word| WRONG_UNITS.contains(&word)) {
            all.push(format!("{name} is in no base unit"));
        }
    }
    all
}

/// A node with a journal, a webhook, a candidate, and a limit that is open without its store. The node has
/// allowed, denied and warned.
fn lone(folder: &Path) -> Node {
    let key = folder.join("webhook.key");
    fs::write(&key, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").expect("a file");
    let node = Node::start(&format!(
        "data: DATA\n\
         webhooks: [{{ url: \"http://127.0.0.1:9/\", secret_file: {} }}]\n\
         limits:\n\
         - {{ name: live, domain: shop, by: [key], on_store_loss: open, warn_at: [50], token_bucket: {{ rate: 1/h, burst: 2 }} }}\n\
         - {{ name: next, domain: shop, by: [key], mode: shadow, candidate_for: live, charge: always, expect: {{ cost: 1, within: 5m }}, token_bucket: {{ rate: 1/h, burst: 1 }} }}\n",
        key.display()
    ));
    for allowed in [true, true, false] {
        assert_eq!(check(&node, &[("key", "k")])["allowed"], allowed);
    }
    assert_eq!(check(&node, &[("kye", "k")])["reason"], "no-match");
    node
}

#[test]
fn the_tables_name_every_metric_that_a_node_shows_and_no_other() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let store = Server::start(&[]);
    let among_others = forwards::start(&store, folder.path());
    let lone = lone(folder.path());
    let mut shown = Shown::new();
    for node in among_others.iter().chain([&lone]) {
        for (name, labels) in metrics(node).families {
            shown.entry(name).or_default().extend(labels);
        }
    }

    // A replica that counts in a Redis has the names of another service, too.
    let url = format!("127.0.0.1:{}", store.port());
    let replica = Replacement::start(&[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &url)]);
    for (name, labels) in replica.metrics().families {
        if !name.starts_with("ratelimit_") {
            shown.entry(name).or_default().extend(labels);
        }
    }

    let differences = differences(&tables(), &shown);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_name_that_only_a_table_or_only_a_node_has_is_a_difference() {
    let set = |labels: &[&str]| labels.iter().map(|label| (*label).to_owned()).collect::<BTreeSet<_>>();
    let tables = ["acequia_ready", "acequia_gone", "acequia_wait_ms"].map(|name| (name.to_owned(), set(&[])));
    let tables: Tables =
        tables.into_iter().chain([("acequia_waits_total".to_owned(), set(&["why"]))]).collect();
    let shown = Shown::from([
        ("acequia_ready".to_owned(), [set(&[])].into()),
        ("acequia_wait_ms".to_owned(), BTreeSet::new()),
        ("acequia_waits_total".to_owned(), [set(&["outcome"])].into()),
        ("acequia_new".to_owned(), BTreeSet::new()),
    ]);
    assert_eq!(
        differences(&tables, &shown),
        [
            "no table has acequia_new",
            "no node shows acequia_gone",
            "acequia_wait_ms is in no base unit",
            "acequia_waits_total has {\"outcome\"}, and in its table {\"why\"}",
        ]
    );
}

#[test]
fn a_node_shows_its_version_and_its_process() {
    let node = Node::start("limits: []");
    assert_eq!(metric(&node, "acequia_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    let now_s = crate::windows::now_s() as f64;
    let started_s = metric(&node, "process_start_time_seconds", &[]);
    assert!((now_s - 600.0..=now_s + 2.0).contains(&started_s), "{started_s}, and now is {now_s}");
    for name in ["process_resident_memory_bytes", "process_virtual_memory_bytes", "process_threads"] {
        assert!(metric(&node, name, &[]) >= 1.0, "{name}");
    }
    let (open, most) = (metric(&node, "process_open_fds", &[]), metric(&node, "process_max_fds", &[]));
    assert!(3.0 <= open && open <= most, "{open} of {most}");
    // The node's work takes CPU time, which adds up.
    let before = metric(&node, "process_cpu_seconds_total", &[]);
    let mut http = Http::connect(&node);
    acequia_tests::eventually("the process has worked", || {
        http.check(&body(&[("key", "k")]));
        metric(&node, "process_cpu_seconds_total", &[]) > before
    });
}
