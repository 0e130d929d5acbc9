//! Compares decisions of a real node that leases from pools with one script call for each decision. Both go
//! through the same client to a six-node Redis Cluster on this machine, in one run. There is one hot cell of
//! 200 000 units a window, and there are 100 000 cells with Zipf demand. `cargo bench -p acequia-store
//! --bench nodes`
//!
//! Ends with 1 if a bar is missed. Needs redis-server and redis-cli.
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

#[allow(dead_code, unreachable_pub, reason = "shared with the tests")]
#[path = "../tests/redis/servers.rs"]
mod servers;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use acequia_limits::{CellTag, HashKey, Limit, LimitId, Now, Request, limit::LimitSpec};
use acequia_node::{
    Ask, Config, Keep, Node,
    pool::{GROUPS, Heard, PoolName, RegionSetup},
};
use acequia_rights::pool::{
    Taker,
    window::{Take, Total},
};
use acequia_store::{
    pools::{At, CallAnswer, Pools, Process, RedisPools, share},
    redis::{Address, Group, Redis, RedisServers, Settings},
};

const TOTAL: u64 = 200_000;
const ROUNDS: u64 = 5;
/// Calls in flight at one time, where each decision is a call.
const CALLERS: u64 = 64;
/// Decisions by calls in one round.
const CALLS: u64 = 20_000;
const CELLS: usize = 100_000;
/// Decisions over many cells in one round.
const SPREAD: usize = 1_000_000;
const EXPONENT: f64 = 1.1;
/// The bars: decisions of a hot cell for each round trip; and the ratio of decisions by leases to decisions
/// by calls, for a hot cell and for many cells.
const TRIP_MIN: f64 = 200.0;
const HOT_MIN: f64 = 20.0;
const MANY_MIN: f64 = 5.0;
const DEADLINE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
struct Clock(Instant, Duration);

impl Clock {
    fn now(&self) -> Now {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).expect("before the year 2500");
        let since = self.0.elapsed();
        Now { steady_ns: ns(since) + 1_000_000_000, wall_ns: ns(self.1 + since) }
    }
}

/// The process of one node, with no disk.
impl Process for Clock {
    fn now(&self) -> Now {
        Self::now(self)
    }

    fn keep(&mut self, _: &[Heard]) -> bool {
        true
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let cluster = servers::Cluster::start();
    let seeds =
        cluster.nodes.iter().take(2).map(|node| node.address().parse::<Address>().expect("an address"));
    let settings = Settings::new(RedisServers::Cluster { seeds: seeds.collect() });
    let clock = Clock(Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970"));
    let node = node(clock);
    let pools = {
        let _entered = runtime.enter();
        let pools = RedisPools::new(Redis::open(settings).expect("sound settings"), 0);
        runtime.spawn(share(Arc::clone(&node), pools.clone(), clock));
        pools
    };
    while node.lease_counts().granting < u64::from(GROUPS) {
        std::thread::sleep(Duration::from_millis(5));
    }

    let (mut hot, mut trips, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (rate, trip) = hot_cell(&node, clock, round);
        hot.push(rate);
        trips.push(trip);
        calls.push(runtime.block_on(by_calls(&node, &pools, clock, |caller, _| round * CALLERS + caller)));
    }
    println!("one hot cell, 99 % of {TOTAL} units a window, {ROUNDS} rounds, the median:");
    let hot_ratio = tell(median(hot), median(calls));
    let hot_trip = median(trips);
    println!("  decisions a round trip {hot_trip:>11.0}");

    let zipf = Zipf::new(CELLS, EXPONENT);
    let (mut spread, mut trips, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (rate, trip) = many_cells(&node, clock, &zipf, round);
        spread.push(rate);
        trips.push(trip);
        let draw = |caller: u64, number: u64| {
            (1 << 32) + zipf.draw((round << 40) ^ (caller << 20) ^ number) as u64 * CALLERS + caller
        };
        calls.push(runtime.block_on(by_calls(&node, &pools, clock, draw)));
    }
    println!("{CELLS} cells, Zipf {EXPONENT}, {ROUNDS} rounds of {SPREAD} decisions, the median:");
    let many_ratio = tell(median(spread), median(calls));
    println!("  decisions a round trip {:>11.0}", median(trips));

    let mut is_missed = false;
    for (what, is, min) in [
        ("decisions a round trip, one hot cell", hot_trip, TRIP_MIN),
        ("ratio, one hot cell", hot_ratio, HOT_MIN),
        ("ratio, many cells", many_ratio, MANY_MIN),
    ] {
        is_missed |= is < min;
        println!("{what:<38}{is:>11.1}   >= {min}{}", if is < min { "   MISSED" } else { "" });
    }
    if is_missed {
        std::process::exit(1);
    }
}

fn tell(by_lease: f64, by_call: f64) -> f64 {
    println!("  by leases              {by_lease:>11.0} decisions/s");
    println!("  one call a decision    {by_call:>11.0} decisions/s, {CALLERS} under way");
    println!("  ratio                  {:>11.1}", by_lease / by_call);
    by_lease / by_call
}

/// The only node of a new region.
fn node(clock: Clock) -> Arc<Node> {
    let region = RegionSetup {
        node: 1,
        process_number: 1,
        nodes: BTreeSet::from([1]),
        members: BTreeMap::new(),
        allocation: 0,
        guard_percent: 10,
        clock_error_ns: 10_000_000,
        drift_ppm: 1_000,
        begun_us: 0,
        knows_from_us: None,
        is_new: true,
        rows_hold: std::collections::BTreeSet::new(),
        generations: Vec::new(),
    };
    let config = Config {
        key: HashKey([7; 16]),
        memory_bytes: 256 << 20,
        durable: false,
        after_crash: None,
        home: None,
    };
    let node = Arc::new(Node::among(config, Keep::default(), region));
    let spec = |name: &str, limit: u64| {
        let text = format!(
            r#"{{"name":"{name}","domain":"{name}","by":["key"],"fixed_window":{{"limit":{limit},"window":"1h"}}}}"#
        );
        Limit::new(serde_json::from_str::<LimitSpec>(&text).expect("a spec")).expect("a sound limit")
    };
    // Among the many cells, all but the hottest always pass, and many need no pool.
    node.apply(vec![spec("hot", TOTAL), spec("many", TOTAL)], clock.now(), |_| Vec::new()).expect("limits");
    node
}

/// Spends a window as fast as possible. Returns the allowed decisions a second, and how many of them there
/// were for each call.
fn hot_cell(node: &Arc<Node>, clock: Clock, round: u64) -> (f64, f64) {
    let (mut asker, key) = (node.asker(), format!("hot{round}"));
    let (begun, before) = (Instant::now(), node.lease_counts().calls);
    let mut passed = 0;
    // The last units are divided among nodes one by one.
    while passed < TOTAL * 99 / 100 && begun.elapsed() < Duration::from_secs(10) {
        passed += u64::from(ask(&mut asker, "hot", &key, clock));
    }
    let calls = node.lease_counts().calls - before;
    (passed as f64 / begun.elapsed().as_secs_f64(), passed as f64 / calls.max(1) as f64)
}

/// As `hot_cell`, over many cells.
fn many_cells(node: &Arc<Node>, clock: Clock, zipf: &Zipf, round: u64) -> (f64, f64) {
    let keys: Vec<String> = (0..CELLS).map(|cell| format!("{round}:{cell}")).collect();
    let drawn: Vec<usize> = (0..SPREAD).map(|number| zipf.draw((round << 32) ^ number as u64)).collect();
    let mut asker = node.asker();
    let (begun, before) = (Instant::now(), node.lease_counts().calls);
    let passed = drawn.iter().filter(|cell| ask(&mut asker, "many", &keys[**cell], clock)).count();
    let calls = node.lease_counts().calls - before;
    (passed as f64 / begun.elapsed().as_secs_f64(), passed as f64 / calls.max(1) as f64)
}

fn ask(asker: &mut acequia_node::Asker, domain: &str, key: &str, clock: Clock) -> bool {
    let entries = [("key", key)];
    let request = Request::new(domain, &entries);
    asker.check(&request, clock.now(), Ask::CHECK).allowed
}

/// Each decision is a call that takes one unit. Each caller has a cell of its own, since otherwise calls of
/// one node would overtake each other.
async fn by_calls(node: &Arc<Node>, pools: &RedisPools, clock: Clock, cell: impl Fn(u64, u64) -> u64) -> f64 {
    let each = CALLS / CALLERS;
    let generations = Arc::new(node.generations());
    let plans: Vec<Vec<u64>> =
        (0..CALLERS).map(|caller| (0..each).map(|number| cell(caller, number)).collect()).collect();
    let begun = Instant::now();
    let callers = plans.into_iter().map(|cells| {
        let (pools, generations) = (pools.clone(), Arc::clone(&generations));
        tokio::spawn(async move {
            for (call, cell) in (1..).zip(cells) {
                let number = (cell % u64::from(GROUPS)) as u16;
                let tag = CellTag(u128::from(cell));
                let name = PoolName { limit: LimitId(1), tag, end_ns: 1 }.to_string();
                let at = At {
                    group: Group::new(number).expect("a group"),
                    allocation: 0,
                    cell: &name,
                    generation: generations[usize::from(number)].generation,
                    wall_us: clock.now().wall_ns / 1_000,
                    deadline: DEADLINE,
                };
                let take = Take {
                    taker: Taker { node: 2, process_number: 1, call },
                    taken: 0,
                    returned: 0,
                    wanted: 1,
                    needed: 1,
                    reserved: 0,
                    total: Total::Open(TOTAL),
                    begins_us: 1,
                    drops_us: u64::MAX >> 12,
                };
                match pools.take(&at, &take).await {
                    Ok(CallAnswer::Done(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("a caller");
    }
    (each * CALLERS) as f64 / begun.elapsed().as_secs_f64()
}

/// Numbers below a bound. The n-th comes in proportion to 1/n^s.
#[derive(Debug)]
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(count: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=count).map(|n| {
            sum += (n as f64).powf(-exponent);
            sum
        });
        Self(sums.collect())
    }

    /// The number that a seed stands for.
    fn draw(&self, seed: u64) -> usize {
        let mut x = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let part = (x >> 11) as f64 / (1_u64 << 53) as f64;
        let at = part * self.0.last().expect("at least one");
        self.0.partition_point(|sum| *sum < at).min(self.0.len() - 1)
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
