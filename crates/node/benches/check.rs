//! A check in process, descriptor strings in and verdict out, beside the `governor` crate's keyed
//! check on the same strings; and what a thousand limits cost.
//!
//! `cargo bench -p acequia-node --bench check` prints medians of interleaved rounds.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    hint::black_box,
    net::Ipv4Addr,
    num::NonZeroU32,
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use acequia_limits::{
    HashKey, Limit, Now, Request,
    limit::{AddressSpec, BySpec, LimitSpec, TokenBucketSpec, ValueSpec},
};
use acequia_node::{Ask, Asker, Config, Node};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

const CELLS: usize = 1_000_000;
const CHECKS: usize = 2_000_000;
const ROUNDS: usize = 7;

fn main() {
    let keys: Arc<Vec<String>> = Arc::new((0..CELLS).map(|i| format!("customer-{i:08}")).collect());
    let uniform = Arc::new(draws(|state| (next(state) % CELLS as u64) as u32));
    let zipf_table = zipf_table();
    let zipf = Arc::new(draws(|state| zipf(&zipf_table, state)));
    let hot = Arc::new(vec![7_u32; CHECKS]);

    let before = resident_bytes();
    let ours = node(vec![limit("per-key", "api_key", None)]);
    warm_ours(&ours, &keys);
    let ours_bytes = resident_bytes() - before;
    let before = resident_bytes();
    let theirs = Arc::new(governor());
    warm_theirs(&theirs, &keys);
    let theirs_bytes = resident_bytes() - before;
    println!("memory at {CELLS} cells, bytes a cell beyond the caller's strings (resident):");
    println!("  acequia  {:>6.1}   governor {:>6.1}", per_cell(ours_bytes), per_cell(theirs_bytes));
    println!("  acequia's own account: {:.1}\n", per_cell(ours.usage().bytes as usize));

    println!("ns a check and thread, median of {ROUNDS} interleaved rounds:");
    println!("{:<26}{:>10}{:>10}{:>8}{:>12}", "cells drawn", "acequia", "governor", "ratio", "2 threads");
    for (name, draws) in [("1 000 000 uniform", &uniform), ("1 000 000 Zipf 1.0", &zipf), ("1 hot", &hot)] {
        let mut rounds: Vec<[f64; 4]> = (0..ROUNDS)
            .map(|_| {
                [
                    run_ours(&ours, &keys, draws, 1),
                    run_theirs(&theirs, &keys, draws, 1),
                    run_ours(&ours, &keys, draws, 2),
                    run_theirs(&theirs, &keys, draws, 2),
                ]
            })
            .collect();
        let ratio = median(rounds.iter().map(|r| r[0] / r[1]).collect());
        let speedup = median(rounds.iter().map(|r| 2.0 * r[0] / r[2]).collect());
        let theirs_speedup = median(rounds.iter().map(|r| 2.0 * r[1] / r[3]).collect());
        rounds.sort_by(|a, b| a[0].total_cmp(&b[0]));
        println!(
            "{name:<26}{:>10.0}{:>10.0}{ratio:>8.2}{:>12}",
            median(rounds.iter().map(|r| r[0]).collect()),
            median(rounds.iter().map(|r| r[1]).collect()),
            format!("{speedup:.2} × (governor {theirs_speedup:.2} ×)"),
        );
    }

    println!("\nns a check with more limits in the domain, one of which matches:");
    for (name, limits) in many_limits() {
        let node = node(limits);
        let rounds = (0..ROUNDS).map(|_| run_routes(&node)).collect();
        println!("  {name:<40}{:>8.0}", median(rounds));
    }
    addresses();
}

/// A check of an address, by the number of exempt networks: ten thousand cost at most 1.2 times as much as
/// none.
fn addresses() {
    const NETWORKS: u32 = 10_000;
    let by = |networks: u32| {
        let network = |number| format!("{}/24", Ipv4Addr::from_bits((1 + number * 1_600) << 8));
        let by = BySpec::Address(AddressSpec { ip: "ip".to_owned(), v4: 32, v6: 64, trust: 1 });
        let mut spec = LimitSpec { by: vec![by], ..limit("per-address", "ip", None).spec };
        if networks > 0 {
            spec.unlimited.insert("ip".to_owned(), ValueSpec::Texts((0..networks).map(network).collect()));
        }
        node(vec![Limit::new(spec).unwrap()])
    };
    let texts: Vec<String> = (0..1_000_u32)
        .map(|number| Ipv4Addr::from_bits(number.wrapping_mul(2_654_435_761)).to_string())
        .collect();
    let run = |node: &Arc<Node>| {
        let mut asker = node.asker();
        let clock = Clock::new();
        let begun = Instant::now();
        for number in 0..CHECKS / 4 {
            let request = Request::new("bench", &[("ip", texts[number % texts.len()].as_str())]);
            black_box(asker.check(black_box(&request), clock.now(), Ask::CHECK));
        }
        begun.elapsed().as_nanos() as f64 / (CHECKS / 4) as f64
    };
    let [none, all] = [0, NETWORKS].map(by);
    let rounds: Vec<[f64; 2]> = (0..ROUNDS).map(|_| [run(&none), run(&all)]).collect();
    let [without, with] = [0, 1].map(|side| median(rounds.iter().map(|round| round[side]).collect()));
    let ratio = median(rounds.iter().map(|round| round[1] / round[0]).collect());
    println!("\nns a check of one of a thousand addresses:");
    println!(
        "  no network exempt {without:.0}, {NETWORKS} networks exempt {with:.0}, ratio {ratio:.2} (at most 1.2)"
    );
}

/// One limit, and a thousand of each kind that the index tells apart in its own way.
fn many_limits() -> Vec<(&'static str, Vec<Limit>)> {
    let routes = |pattern: fn(usize) -> String, count: usize| -> Vec<Limit> {
        (0..count).map(|i| limit(&format!("l{i}"), "api_key", Some(pattern(i)))).collect()
    };
    let keys = (0..1_000).map(|i| {
        let key = if i == 500 { "api_key".to_owned() } else { format!("key{i}") };
        limit(&format!("l{i}"), &key, None)
    });
    vec![
        ("1 limit", routes(|_| "/route/500".into(), 1)),
        ("1000 limits, by value", routes(|i| format!("/route/{i}"), 1_000)),
        ("1000 limits, by prefix", routes(|i| format!("/route/{i:03}*"), 1_000)),
        ("1000 limits, by key", keys.collect()),
    ]
}

fn run_routes(node: &Arc<Node>) -> f64 {
    let mut asker = node.asker();
    let clock = Clock::new();
    let request = Request::new("bench", &[("route", "/route/500"), ("api_key", "customer-1")]);
    let begun = Instant::now();
    for _ in 0..CHECKS / 4 {
        let answer = asker.check(black_box(&request), clock.now(), Ask::CHECK);
        assert_eq!(answer.limits.len(), 1);
    }
    begun.elapsed().as_nanos() as f64 / (CHECKS / 4) as f64
}

/// A budget that is never spent and a rate at which no cell is ever idle: what is measured is
/// finding a cell and charging it.
fn limit(name: &str, by: &str, route: Option<String>) -> Limit {
    let when = route.map(|route| ("route".to_owned(), ValueSpec::Texts(vec![route])));
    Limit::new(LimitSpec {
        name: name.to_owned(),
        domain: "bench".to_owned(),
        when: BTreeMap::from_iter(when),
        by: vec![BySpec::Key(by.to_owned())],
        token_bucket: Some(TokenBucketSpec { rate: "10/s".to_owned(), burst: 300_000_000 }),
        ..LimitSpec::default()
    })
    .unwrap()
}

fn node(limits: Vec<Limit>) -> Arc<Node> {
    let key = HashKey(*b"a bench, no more");
    let node =
        Node::new(Config { key, memory_bytes: 1 << 30, durable: false, after_crash: None, home: None });
    node.apply(limits, Clock::new().now(), |_| Vec::new()).unwrap();
    Arc::new(node)
}

fn governor() -> DefaultKeyedRateLimiter<String> {
    let (rate, burst) = (NonZeroU32::new(10).unwrap(), NonZeroU32::new(300_000_000).unwrap());
    RateLimiter::keyed(Quota::per_second(rate).allow_burst(burst))
}

/// The clock of a server, which is also governor's: one reading of the processor's counter a check.
#[derive(Clone)]
struct Clock {
    counter: quanta::Clock,
    begun: u64,
}

impl Clock {
    fn new() -> Self {
        let counter = quanta::Clock::new();
        Self { begun: counter.raw(), counter }
    }

    fn now(&self) -> Now {
        const BEGUN_NS: u64 = 1_800_000_000_000_000_000;
        Now::at(BEGUN_NS + self.counter.delta_as_nanos(self.begun, self.counter.raw()))
    }
}

fn check_ours(asker: &mut Asker, key: &str, now: Now) -> bool {
    asker.check(&Request::new("bench", &[("api_key", key)]), now, Ask::CHECK).allowed
}

/// Each cell owes enough not to be idle before the end.
fn warm_ours(node: &Arc<Node>, keys: &[String]) {
    let (mut asker, clock) = (node.asker(), Clock::new());
    for key in keys {
        let request = Request { cost: 100_000, ..Request::new("bench", &[("api_key", key)]) };
        assert!(asker.check(&request, clock.now(), Ask::CHECK).allowed);
    }
}

fn warm_theirs(governor: &DefaultKeyedRateLimiter<String>, keys: &[String]) {
    for key in keys {
        assert!(governor.check_key(key).is_ok());
    }
}

fn run_ours(node: &Arc<Node>, keys: &Arc<Vec<String>>, draws: &Arc<Vec<u32>>, threads: usize) -> f64 {
    run(threads, |thread| {
        let (mut asker, clock) = (node.asker(), Clock::new());
        let (keys, draws) = (Arc::clone(keys), Arc::clone(draws));
        move || {
            for draw in rotated(&draws, thread) {
                black_box(check_ours(&mut asker, &keys[*draw as usize], clock.now()));
            }
        }
    })
}

fn run_theirs(
    governor: &Arc<DefaultKeyedRateLimiter<String>>,
    keys: &Arc<Vec<String>>,
    draws: &Arc<Vec<u32>>,
    threads: usize,
) -> f64 {
    run(threads, |thread| {
        let governor = Arc::clone(governor);
        let (keys, draws) = (Arc::clone(keys), Arc::clone(draws));
        move || {
            for draw in rotated(&draws, thread) {
                black_box(governor.check_key(&keys[*draw as usize]).is_ok());
            }
        }
    })
}

/// Every thread gets the same draws, but each begins at another place.
fn rotated(draws: &[u32], thread: usize) -> impl Iterator<Item = &u32> {
    let (front, back) = draws.split_at(thread * draws.len() / 3);
    back.iter().chain(front)
}

/// Nanoseconds a check as one thread sees them.
fn run<F: FnOnce() + Send + 'static>(threads: usize, work: impl Fn(usize) -> F) -> f64 {
    let barrier = Arc::new(Barrier::new(threads));
    let running: Vec<_> = (0..threads)
        .map(|thread| {
            let (work, barrier) = (work(thread), Arc::clone(&barrier));
            std::thread::spawn(move || -> Duration {
                barrier.wait();
                let begun = Instant::now();
                work();
                begun.elapsed()
            })
        })
        .collect();
    let total: Duration = running.into_iter().map(|thread| thread.join().unwrap()).sum();
    total.as_nanos() as f64 / (threads * CHECKS) as f64
}

fn draws(draw: impl Fn(&mut u64) -> u32) -> Vec<u32> {
    let mut state = 0x9E37_79B9_7F4A_7C15;
    (0..CHECKS).map(|_| draw(&mut state)).collect()
}

/// xorshift64*: enough to draw cells.
fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 1
}

fn zipf_table() -> Vec<f64> {
    let mut sum = 0.0;
    (1..=CELLS)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect()
}

fn zipf(table: &[f64], state: &mut u64) -> u32 {
    let total = table[table.len() - 1];
    let at = (next(state) >> 10) as f64 / (1_u64 << 53) as f64 * total;
    // Ranks are scattered over the keys, so that hot ones are not neighbours.
    let rank = table.partition_point(|sum| *sum < at).min(CELLS - 1);
    ((rank * 514_229) % CELLS) as u32
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn per_cell(bytes: usize) -> f64 {
    bytes as f64 / CELLS as f64
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
