//! Instructions that a check takes, counted by valgrind. The count is equal in every run, whatever else the
//! machine does.
//!
//! `cargo bench -p acequia-node --bench instructions` counts two runs of different lengths for each kind of
//! check. The difference of the two runs does not contain the start of the process. To compare two commits,
//! run the benchmark in both.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::{collections::BTreeMap, hint::black_box, net::Ipv4Addr, process::Command, sync::Arc};

use acequia_limits::{
    HashKey, Limit, Now, Request,
    limit::{LimitSpec, ValueSpec},
};
use acequia_node::{Ask, Asker, ChargeId, Config, Node, Recording, Remember};

/// Checks of the shorter and of the longer run.
const COUNTED: [u64; 2] = [2_000, 12_000];
const KINDS: [&str; 15] = [
    "one hot cell",
    "a thousand cells",
    "two limits",
    "denied",
    "a window",
    "an address",
    "10 000 networks",
    "a path",
    "10 000 paths",
    "refundable",
    "refunded",
    "a slot of few",
    "few, released",
    "a slot of many",
    "many, released",
];

const BUCKET: &str =
    r#"{"name":"b","domain":"shop","by":["key"],"token_bucket":{"rate":"10/s","burst":300000000}}"#;
const OTHER: &str =
    r#"{"name":"o","domain":"shop","by":["route"],"token_bucket":{"rate":"10/s","burst":300000000}}"#;
const FEW: &str = r#"{"name":"c","domain":"shop","by":["key"],"concurrent":{"limit":64,"ttl":"10m"}}"#;
const MANY: &str =
    r#"{"name":"c","domain":"shop","by":["key"],"concurrent":{"limit":300000000,"ttl":"10m"}}"#;
const EMPTY: &str = r#"{"name":"e","domain":"shop","by":["key"],"token_bucket":{"rate":"1/h","burst":1}}"#;
const WINDOW: &str =
    r#"{"name":"w","domain":"shop","by":["key"],"fixed_window":{"limit":300000000,"window":"1s"}}"#;

const ADDRESS: &str =
    r#"{"name":"a","domain":"shop","by":[{"ip":"ip"}],"token_bucket":{"rate":"10/s","burst":300000000}}"#;
const PATH: &str = r#"{"name":"p","domain":"shop","path":[{"key":"key"},{"key":"route","value":"/search"}],"charge":"always",
    "fixed_window":{"limit":300000000,"window":"1s"}}"#;
/// Paths of other routes.
const PATHS: u32 = 10_000;
/// How many times as many instructions a check takes with them, at most.
const PATHS_MAX: f64 = 1.2;
/// Networks that contain no address of the checks.
const NETWORKS: u32 = 10_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [kind, checks] = arguments.as_slice() {
        return run(kind, checks.parse().unwrap());
    }
    println!("{:<20}{:>16}", "instructions a check", "");
    let mut found = BTreeMap::new();
    for kind in KINDS {
        let [short, long] = COUNTED.map(|checks| count(kind, checks));
        let each = (long - short) as f64 / (COUNTED[1] - COUNTED[0]) as f64;
        println!("{kind:<20}{each:>16.1}");
        found.insert(kind, each);
    }
    let ratio = found["10 000 paths"] / found["a path"];
    println!("10 000 paths / a path: {ratio:.3}, at most {PATHS_MAX}");
    if ratio > PATHS_MAX {
        std::process::exit(1);
    }
}

/// The instructions of a process that does `checks` checks.
fn count(kind: &str, checks: u64) -> u64 {
    let own = std::env::current_exe().unwrap();
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(own);
    let output = valgrind.args([kind, &checks.to_string()]).output().expect("valgrind is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    let counted = said.lines().find_map(|line| line.split_once("Collected : "));
    counted.unwrap_or_else(|| panic!("{said}")).1.trim().parse().unwrap()
}

fn run(kind: &str, checks: u64) {
    let specs: &[&str] = match kind {
        "two limits" => &[BUCKET, OTHER],
        "denied" => &[EMPTY],
        "a window" => &[WINDOW],
        "an address" | "10 000 networks" => &[ADDRESS],
        "a path" | "10 000 paths" => &[PATH],
        "a slot of few" | "few, released" => &[FEW],
        "a slot of many" | "many, released" => &[MANY],
        _ => &[BUCKET],
    };
    let networks = if kind == "10 000 networks" { NETWORKS } else { 0 };
    let limits = specs.iter().map(|spec| {
        let mut spec: LimitSpec = serde_json::from_str(spec).unwrap();
        if networks > 0 {
            let network = |number| format!("{}/24", Ipv4Addr::from_bits((1 + number * 1_600) << 8));
            spec.unlimited.insert("ip".to_owned(), ValueSpec::Texts((0..networks).map(network).collect()));
        }
        Limit::new(spec).unwrap()
    });
    let paths = if kind == "10 000 paths" { PATHS } else { 0 };
    let others = (0..paths).map(|number| {
        let other =
            PATH.replace("/search", &format!("/r/{number}")).replace("\"p\"", &format!("\"p{number}\""));
        Limit::new(serde_json::from_str(&other).unwrap()).unwrap()
    });
    let limits = limits.chain(others);
    let key = HashKey(*b"a bench, no more");
    let config = Config { key, memory_bytes: 64 << 20, durable: false, after_crash: None, home: None };
    let node = Arc::new(Node::new(config));
    let mut now = Now::at(1_800_000_000_000_000_000);
    node.apply(limits.collect(), now, |_| Vec::new()).unwrap();
    let mut asker: Asker = node.asker();
    let keys: Vec<String> = (0..1_000).map(|number| format!("customer-{number:08}")).collect();
    let cells = if kind == "a thousand cells" || KINDS[9..].contains(&kind) { keys.len() } else { 1 };
    let remember = match kind {
        "refundable" | "refunded" => Some(Remember::Always),
        _ if KINDS[9..].contains(&kind) => Some(Remember::IfHeld),
        _ => None,
    };
    // The first check of a cell makes it.
    for number in 0..checks as usize + 2 * cells {
        now = now.later(100);
        let entries = [("key", keys[number % cells].as_str()), ("route", "/search"), ("ip", "203.0.113.7")];
        let entries = if specs == [ADDRESS] { &entries[..] } else { &entries[..2] };
        let request = Request::new("shop", entries);
        let Some(remember) = remember else {
            black_box(asker.check(black_box(&request), now, Ask::CHECK));
            continue;
        };
        // Names are hashes.
        let id = ChargeId((number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        let recording =
            Recording { id, fingerprint: 1, is_repeatable: false, reserve: None, owner: 1, remember };
        black_box(asker.check_recorded(black_box(&request), now, Ask::CHECK, &recording)).unwrap();
        if kind.ends_with("ed") {
            black_box(node.settle(id, None, now));
        }
    }
}
