//! The cost of sharing a limit among regions, for a decision: the same checks run against a node that is
//! alone and against a node of three regions, in interleaved rounds.
//!
//! `cargo bench -p acequia-node --bench regions` prints medians. The benchmark fails if a check with regions
//! takes more than a tenth longer.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::{collections::BTreeMap, hint::black_box, process::ExitCode, sync::Arc, time::Instant};

use acequia_limits::{HashKey, Limit, Now, Request, limit::LimitSpec};
use acequia_node::{Ask, Config, Home, Node, regions};
use acequia_rights::{
    Incarnation, MemberId,
    versions::{CellSecret, Draft, Member},
};

const CELLS: usize = 1_000_000;
const CHECKS: usize = 1_000_000;
const ROUNDS: usize = 15;
/// The longest time allowed with regions, as a multiple of the time without regions.
const BAR: f64 = 1.10;
const START: u64 = 1_800_000_000_000_000_000;

fn main() -> ExitCode {
    let keys: Vec<String> = (0..CELLS).map(|i| format!("customer-{i:08}")).collect();
    let (alone, shared) = (node(false), node(true));
    for node in [&alone, &shared] {
        let mut asker = node.asker();
        for key in &keys {
            // Each cell owes enough never to be idle, and little enough not to be active.
            let request = Request { cost: 1_000, ..Request::new("bench", &[("api_key", key)]) };
            assert!(asker.check(&request, Now::at(START), Ask::CHECK).allowed);
        }
        // One cell is active: more than half of this region's part is used.
        let request = Request { cost: 60_000_000, ..Request::new("bench", &[("api_key", "active")]) };
        assert!(asker.check(&request, Now::at(START), Ask::CHECK).allowed);
        node.tick(Now::at(START + 1), |_| Some(Vec::new())).unwrap();
    }
    assert_eq!(shared.membership(Now::at(START)).unwrap().active_cells, 1);
    println!("ns a check, median of {ROUNDS} interleaved rounds:");
    println!("{:<34}{:>8}{:>14}{:>8}", "cells drawn", "alone", "of 3 regions", "ratio");
    let all: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut met = true;
    for (name, keys) in [
        ("1 000 000 uniform", &all[..]),
        ("1 hot, cold to others", &["hot"]),
        ("1 hot and active", &["active"]),
    ] {
        let rounds: Vec<[f64; 2]> = (0..ROUNDS)
            .map(|round| {
                // The two nodes take turns at going first.
                if round % 2 == 0 {
                    let first = run(&alone, keys);
                    [first, run(&shared, keys)]
                } else {
                    let first = run(&shared, keys);
                    [run(&alone, keys), first]
                }
            })
            .collect();
        let ratio = median(rounds.iter().map(|r| r[1] / r[0]).collect());
        let of = |side: usize| median(rounds.iter().map(|r| r[side]).collect());
        println!("{name:<34}{:>8.0}{:>14.0}{ratio:>8.2}", of(0), of(1));
        met &= ratio <= BAR;
    }
    if met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(node: &Arc<Node>, keys: &[&str]) -> f64 {
    let mut asker = node.asker();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let begun = Instant::now();
    for check in 0..CHECKS {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let key = keys[(state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % keys.len()];
        let request = Request::new("bench", &[("api_key", key)]);
        let now = Now::at(START + 1_000 + check as u64);
        black_box(asker.check(black_box(&request), now, Ask::CHECK).allowed);
    }
    begun.elapsed().as_nanos() as f64 / CHECKS as f64
}

fn specs() -> Vec<LimitSpec> {
    let spec = r#"[{"name": "per-key", "domain": "bench", "by": ["api_key"],
        "token_bucket": {"rate": "10/s", "burst": 300000000}}]"#;
    serde_json::from_str(spec).unwrap()
}

fn node(shared: bool) -> Arc<Node> {
    let key = HashKey(*b"a bench, no more");
    let incarnation = |region| Incarnation { member: MemberId(region), node: 0, number: 1 };
    let home = shared.then_some(Home { incarnation: incarnation(0), loan_ttl_ns: regions::LOAN_TTL_NS });
    let node = Node::new(Config { key, memory_bytes: 1 << 30, durable: false, after_crash: None, home });
    let now = Now::at(START);
    if shared {
        node.resume_home(Vec::new(), now, |_| Vec::new()).unwrap();
        let member = |region| {
            (MemberId(region), Member { weight: 1, incarnation: incarnation(region), name: String::new() })
        };
        let draft = Draft {
            members: BTreeMap::from_iter((0..3).map(member)),
            fenced: Vec::new(),
            clock_error_ns: 10_000_000,
            drift_ppm: 1_000,
            key: CellSecret(*b"a bench, no more"),
            limits: regions::limits_to_bytes(&specs()).unwrap(),
            revoked: Default::default(),
        };
        let version = node.propose(draft, START).unwrap();
        node.adopt(version, now, |_| Some(Vec::new())).unwrap();
    } else {
        let limits: Vec<Limit> = specs().into_iter().map(|spec| Limit::new(spec).unwrap()).collect();
        node.apply(limits, now, |_| Vec::new()).unwrap();
    }
    Arc::new(node)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
