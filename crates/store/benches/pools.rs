//! Compares decisions by leases with one call for each decision, through the same client and in one run. A
//! hot window has 200 000 units in a six-node Redis Cluster on this machine. Also measures how long one call
//! takes. `cargo bench -p acequia-store --bench pools`
//!
//! Needs redis-server and redis-cli.
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

#[allow(dead_code, unreachable_pub, reason = "shared with the tests")]
#[path = "../tests/redis/servers.rs"]
mod servers;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use acequia_rights::pool::{
    Generation, Taker,
    group::{Assertion, Begin},
    window::{Take, Total, WindowBalance},
};
use acequia_store::{
    pools::{At, CallAnswer, Pools, RedisPools},
    redis::{Address, BreakerState, Function, Group, Redis, RedisServers, Settings},
};

const TOTAL: u64 = 200_000;
const DEADLINE: Duration = Duration::from_millis(500);
/// Decisions in flight at one time, where each decision is a call.
const CALLERS: u64 = 64;
const ROUNDS: u32 = 5;
/// Calls of each caller whose duration is measured.
const TIMED: u32 = 5_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(compare());
}

async fn compare() {
    let cluster = servers::Cluster::start();
    let seeds =
        cluster.nodes.iter().take(2).map(|node| node.address().parse::<Address>().expect("an address"));
    let redis =
        Redis::open(Settings::new(RedisServers::Cluster { seeds: seeds.collect() })).expect("sound settings");
    let pools = RedisPools::new(redis, 0);
    let group = Group::new(17).expect("a group");
    let generation = begun(&pools, group).await;

    let (mut by_lease, mut by_call, mut a_trip) = (Vec::new(), Vec::new(), 0);
    for round in 0..ROUNDS {
        let at = |kind: &str| format!("{kind}{round}");
        let (rate, calls) = lease(&pools, group, generation, &at("lease")).await;
        a_trip = TOTAL / calls;
        by_lease.push(rate);
        by_call.push(one_by_one(&pools, group, generation, &at("call")).await);
    }
    let (lease, call) = (median(by_lease), median(by_call));
    println!("a hot window of {TOTAL}, {ROUNDS} rounds, the median:");
    println!("  by leases             {lease:>12.0} decisions/s, {a_trip} decisions a round trip");
    println!("  one call a decision   {call:>12.0} decisions/s, {CALLERS} under way");
    println!("  ratio                 {:>12.1}", lease / call);
    for callers in [1, 16] {
        let took = round_trips(&pools, group, callers).await;
        let at = |percent: usize| took[took.len() * percent / 100];
        println!("{callers:>3} under way: a call takes p50 {:?}, p99 {:?}", at(50), at(99));
    }
}

/// The durations of calls that do nothing, in order.
async fn round_trips(pools: &RedisPools, group: Group, callers: usize) -> Vec<Duration> {
    let callers = (0..callers).map(|_| {
        let redis = pools.redis().clone();
        tokio::spawn(async move {
            let mut took = Vec::new();
            for _ in 0..TIMED {
                let begun = Instant::now();
                redis.call(group, Function::Identity, &["a key"], &[], DEADLINE).await.expect("an answer");
                took.push(begun.elapsed());
            }
            took
        })
    });
    let mut took = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        took.extend(caller.await.expect("a caller"));
    }
    took.sort_unstable();
    took
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn wall_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_micros()).expect("before the year 500 000")
}

/// Begins a generation, as the only node, once the shard answers steadily.
async fn begun(pools: &RedisPools, group: Group) -> Generation {
    let by = Taker { node: 1, process_number: 1, call: 1 };
    let generation = Generation::default();
    let at = At { group, allocation: 0, cell: "", generation, wall_us: wall_us(), deadline: DEADLINE };
    let generation = loop {
        let known = pools.begin(&at, &Begin { heard: 0, by, goes_on: false }).await;
        let is_steady = pools.redis().shard(group).is_some_and(|shard| shard.breaker == BreakerState::Closed);
        match known {
            Ok(known) if is_steady => break known.generation,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let nodes = BTreeSet::from([1]);
    let assertion = Assertion {
        node: 1,
        generation,
        nodes,
        knows_from_us: 0,
        is_new: false,
        before: Generation::default(),
        wall_us: wall_us(),
        slack_us: 0,
    };
    assert!(pools.assert(&at, &assertion, None).await.expect("an answer").grants);
    generation
}

fn take(balance: &WindowBalance, wanted: u64, needed: u64) -> Take {
    Take {
        taker: Taker { node: 1, process_number: 1, call: 1 },
        taken: balance.taken(),
        returned: 0,
        wanted,
        needed,
        reserved: 0,
        total: Total::Open(TOTAL),
        begins_us: 1,
        drops_us: u64::MAX >> 12,
    }
}

/// One node spends the window, and asks for more when half of its last grant is left. Returns decisions a
/// second, and calls.
async fn lease(pools: &RedisPools, group: Group, generation: Generation, cell: &str) -> (f64, u64) {
    let begun = Instant::now();
    let (balance, calls) = (Arc::new(Mutex::new(WindowBalance::default())), Arc::new(AtomicU64::new(0)));
    let (mut chunk, mut spent) = (0, 0);
    let mut asking: Option<tokio::task::JoinHandle<u64>> = None;
    while spent < TOTAL {
        let left = balance.lock().expect("no panic").left();
        if asking.is_none() && left <= chunk / 2 {
            let ask = take(&balance.lock().expect("no panic"), TOTAL, u64::from(left == 0));
            let (pools, cell, calls) = (pools.clone(), cell.to_owned(), Arc::clone(&calls));
            asking = Some(tokio::spawn(async move {
                calls.fetch_add(1, Ordering::Relaxed);
                let at = At {
                    group,
                    allocation: 0,
                    cell: &cell,
                    generation,
                    wall_us: wall_us(),
                    deadline: DEADLINE,
                };
                match pools.take(&at, &ask).await {
                    Ok(CallAnswer::Done(took)) => took.taken,
                    other => panic!("{other:?}"),
                }
            }));
        }
        if let Some(asked) = asking.take_if(|asked| left == 0 || asked.is_finished()) {
            let taken = asked.await.expect("an answer");
            let mut balance = balance.lock().expect("no panic");
            chunk = taken - balance.taken();
            balance.took(taken);
        }
        // This is a decision as a caller would see it.
        spent += u64::from(std::hint::black_box(balance.lock().expect("no panic").spend(1)));
    }
    (TOTAL as f64 / begun.elapsed().as_secs_f64(), calls.load(Ordering::Relaxed))
}

/// Each decision is one call. Each caller has a cell of its own, since otherwise calls of one node would
/// overtake each other. Returns decisions a second.
async fn one_by_one(pools: &RedisPools, group: Group, generation: Generation, cell: &str) -> f64 {
    // A tenth of the window is enough to measure the speed.
    let each = TOTAL / 10 / CALLERS;
    let begun = Instant::now();
    let callers = (0..CALLERS).map(|caller| {
        let (pools, cell) = (pools.clone(), format!("{cell}:{caller}"));
        tokio::spawn(async move {
            let mut balance = WindowBalance::default();
            for _ in 0..each {
                let at = At {
                    group,
                    allocation: 0,
                    cell: &cell,
                    generation,
                    wall_us: wall_us(),
                    deadline: DEADLINE,
                };
                match pools.take(&at, &take(&balance, 1, 1)).await {
                    Ok(CallAnswer::Done(took)) => balance.took(took.taken),
                    other => panic!("{other:?}"),
                }
                assert!(balance.spend(1));
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for caller in callers {
        caller.await.expect("a caller");
    }
    (each * CALLERS) as f64 / begun.elapsed().as_secs_f64()
}
