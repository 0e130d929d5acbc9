//! Three nodes share limits through a Redis Cluster under load, while the cluster breaks. The results are
//! counted from outside.

mod faults;
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of calls")]
#[path = "../redis/scene.rs"]
mod scene;
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of calls")]
#[path = "../redis/servers.rs"]
mod servers;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use acequia_limits::{HashKey, Limit, Now, Request, limit::LimitSpec};
use acequia_node::{
    Ask, Asker, Config, Keep, Node, Scheduled,
    pool::{GROUPS, Heard, LeaseCounts, RegionSetup},
};
use acequia_store::pools::{Process, RedisPools, share};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use crate::{
    scene::{PATIENCE, cluster},
    servers::Cluster,
};

/// Requests a second, of all callers together.
#[derive(Clone, Copy, Debug)]
struct Demand {
    a_second: u64,
}

/// More requests than there are units.
const MUCH: Demand = Demand { a_second: 1_000 };
/// A third of the units.
const LITTLE: Demand = Demand { a_second: 200 };
const KEYS: u64 = 5;
/// The bar for answers: 99 of 100 come within this time after the request was due.
const P99_MAX: Duration = Duration::from_millis(5);
/// How long a decision may wait for the store.
const DECISION_WAITS: Duration = Duration::from_millis(2);
/// One request in so many asks no node.
const NOBODY: u64 = 5;
/// How much longer nodes may take on a busy machine.
const NODES_TAKE: Duration = Duration::from_millis(2);
/// Longer than any window here: after this, no window is open from a time when nobody knew the pools.
const SETTLES: Duration = Duration::from_secs(4);

/// Two kinds of limits, each in a domain of its own: some have fewer units for each key than requests, one
/// has plenty.
const LIMITS: [&str; 4] = [
    r#"{"name":"window","domain":"window","by":["key"],"fixed_window":{"limit":80,"window":"2s"}}"#,
    r#"{"name":"bucket","domain":"bucket","by":["key"],"token_bucket":{"rate":"40/s","burst":60}}"#,
    r#"{"name":"sliding","domain":"sliding","by":["key"],"sliding_window":{"limit":80,"window":"2s"}}"#,
    r#"{"name":"hot","domain":"hot","by":["key"],"fixed_window":{"limit":200000,"window":"10s"}}"#,
];
const DOMAINS: [&str; 3] = ["window", "bucket", "sliding"];

/// The clocks of all nodes.
#[derive(Clone, Copy, Debug)]
struct Clock {
    begun: Instant,
    begun_wall: Duration,
}

impl Clock {
    fn now(&self) -> Now {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).expect("before the year 2500");
        let since = self.begun.elapsed();
        Now { steady_ns: ns(since) + 1_000_000_000, wall_ns: ns(self.begun_wall + since) }
    }
}

/// The clocks of one node.
#[derive(Clone, Debug)]
struct NodeClock {
    true_clock: Clock,
    /// How far the node's wall is ahead of true time, in nanoseconds.
    ahead_ns: Arc<AtomicI64>,
}

impl NodeClock {
    fn now(&self) -> Now {
        let now = self.true_clock.now();
        Now { wall_ns: now.wall_ns.saturating_add_signed(self.ahead_ns.load(Ordering::Relaxed)), ..now }
    }
}

/// Only one test runs its region at a time, since the tests measure how soon callers are answered.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The requests that passed, by domain and key, with the times of the decisions by the steady clock and the
/// wall.
type Passed = BTreeMap<(usize, u64), Vec<Now>>;

/// What a caller asks for.
#[derive(Clone, Copy)]
struct CallerKey {
    domain: usize,
    key: u64,
}

/// A node, the asker for its callers, and its clocks.
type Way = (Arc<Node>, Arc<Mutex<Asker>>, NodeClock);

struct Place {
    node: Arc<Node>,
    carrier: JoinHandle<()>,
    process_number: u32,
    clock: NodeClock,
    /// The generations that the node has heard of: its disk.
    heard: Arc<Mutex<Vec<Heard>>>,
}

/// The process of a node, with its disk.
struct Running {
    clock: NodeClock,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Process for Running {
    fn now(&self) -> Now {
        self.clock.now()
    }

    fn keep(&mut self, generations: &[Heard]) -> bool {
        *self.heard.lock().expect("no panic") = generations.to_vec();
        true
    }
}

struct Fleet {
    cluster: Cluster,
    clock: Clock,
    places: Vec<Place>,
    passed: Arc<Mutex<Passed>>,
    /// The nodes that callers ask.
    asked: Arc<Mutex<Vec<Way>>>,
}

/// The result of a request.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// A node was asked: the time, and whether the request was allowed.
    Somebody(Duration, bool),
    /// No node was asked: the request waited as long as a decision may wait for the store.
    Nobody(Duration),
}

/// The results of all callers.
#[derive(Debug, Default)]
struct Fared {
    /// The time of each request from when it was due, shortest first.
    took: Vec<Duration>,
    /// The times of requests that asked no node: they show how late the machine is.
    nobody_took: Vec<Duration>,
    denied: u64,
}

impl Fared {
    fn p99(&self) -> Duration {
        self.took[self.took.len() * 99 / 100]
    }

    /// Whether 99 of 100 answers were within the bar; or, on a late machine, little later than requests that
    /// asked no node.
    fn is_in_time(&self) -> bool {
        self.p99() <= P99_MAX.max(self.nobody_p99() + NODES_TAKE)
    }

    fn nobody_p99(&self) -> Duration {
        self.nobody_took[self.nobody_took.len() * 99 / 100]
    }
}

fn limits() -> Vec<Limit> {
    let spec = |text: &&str| serde_json::from_str::<LimitSpec>(text).expect("a spec");
    LIMITS.iter().map(spec).map(|spec| Limit::new(spec).expect("a sound limit")).collect()
}

impl Fleet {
    /// Starts a cluster, and nodes whose pools grant.
    async fn start(nodes: u16) -> Self {
        Self::start_on(Cluster::start(), nodes).await
    }

    async fn start_on(cluster: Cluster, nodes: u16) -> Self {
        let begun_wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let clock = Clock { begun: Instant::now(), begun_wall };
        let mut fleet =
            Self { cluster, clock, places: Vec::new(), passed: Arc::default(), asked: Arc::default() };
        for number in 1..=nodes {
            let place = fleet.node(number, nodes, 1, Arc::default());
            fleet.asked.lock().expect("no panic").push(asked(&place));
            fleet.places.push(place);
        }
        fleet.grants().await;
        sleep(SETTLES).await;
        fleet
    }

    fn node(&self, number: u16, nodes: u16, process_number: u32, heard: Arc<Mutex<Vec<Heard>>>) -> Place {
        let now = self.clock.now();
        let region = RegionSetup {
            node: number,
            process_number,
            nodes: (1..=nodes).collect::<BTreeSet<u16>>(),
            members: BTreeMap::new(),
            allocation: 0,
            guard_percent: 10,
            clock_error_ns: 10_000_000,
            drift_ppm: 1_000,
            begun_us: now.wall_ns / 1_000,
            knows_from_us: None,
            is_new: false,
            rows_hold: std::collections::BTreeSet::new(),
            generations: heard.lock().expect("no panic").clone(),
        };
        let config = Config {
            key: HashKey([7; 16]),
            memory_bytes: 64 << 20,
            durable: false,
            after_crash: (process_number > 1).then_some(now),
            home: None,
        };
        let node = Arc::new(Node::among(config, Keep::default(), region));
        if process_number > 1 {
            let kept = limits().into_iter().map(|limit| Scheduled { limit, until_ns: None });
            node.resume(kept.collect(), now).expect("the same limits");
            node.restore_all(now, |_| Vec::new());
        }
        node.apply(limits(), now, |_| Vec::new()).expect("limits");
        let redis = acequia_store::redis::Redis::open(cluster(&self.cluster)).expect("sound settings");
        let clock = NodeClock { true_clock: self.clock, ahead_ns: Arc::default() };
        let process = Running { clock: clock.clone(), heard: Arc::clone(&heard) };
        let carrier = tokio::spawn(share(Arc::clone(&node), RedisPools::new(redis, 0), process));
        Place { node, carrier, process_number, clock, heard }
    }

    /// A node loses its power, and comes back at once.
    fn crash(&mut self, at: usize) {
        self.places[at].carrier.abort();
        let nodes = u16::try_from(self.places.len()).expect("a few");
        let number = u16::try_from(at).expect("a few") + 1;
        let heard = Arc::clone(&self.places[at].heard);
        self.places[at] = self.node(number, nodes, self.places[at].process_number + 1, heard);
        self.asked.lock().expect("no panic")[at] = asked(&self.places[at]);
    }

    fn counts(&self) -> Vec<LeaseCounts> {
        self.places.iter().map(|place| place.node.lease_counts()).collect()
    }

    /// Waits until all pools grant.
    async fn grants(&self) {
        let begun = Instant::now();
        while self.counts().iter().any(|counts| counts.granting < u64::from(GROUPS)) {
            assert!(begun.elapsed() < PATIENCE, "pools do not grant: {:?}", self.counts());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends requests for this time, in an open loop, so that a slow node delays no later request. The
    /// requests go to the nodes in turn. The time of a request counts from when it was due. A thread of its
    /// own sends them, since it keeps time better than a runtime's timers.
    fn load(&self, demand: Demand, lasts: Duration) -> JoinHandle<Fared> {
        let (nodes, passed, runtime) = (Arc::clone(&self.asked), Arc::clone(&self.passed), Handle::current());
        let asked = tokio::task::spawn_blocking(move || load(&nodes, &passed, demand, lasts, &runtime));
        tokio::spawn(async move {
            let mut fared = Fared::default();
            for request in asked.await.expect("callers").join_all().await {
                match request {
                    Asked::Somebody(took, is_allowed) => {
                        fared.took.push(took);
                        fared.denied += u64::from(!is_allowed);
                    }
                    Asked::Nobody(took) => fared.nobody_took.push(took),
                }
            }
            fared.took.sort_unstable();
            fared.nobody_took.sort_unstable();
            fared
        })
    }

    /// Checks that no limit let more pass than it has.
    fn judge(&self) {
        for ((domain, key), passed) in self.passed.lock().expect("no panic").iter_mut() {
            passed.sort_by_key(|now| now.steady_ns);
            match *domain {
                0 => judge_window(passed, 80, 2_000_000_000),
                1 => judge_bucket(passed, 40, 60),
                _ => judge_sliding(passed, 80, 2_000_000_000),
            }
            .unwrap_or_else(|what| panic!("{} key {key}: {what}", DOMAINS[*domain]));
        }
    }

    fn passed_in(&self) -> usize {
        self.passed.lock().expect("no panic").values().map(Vec::len).sum()
    }
}

fn judge_window(passed: &[Now], limit: usize, window_ns: u64) -> Result<(), String> {
    let mut windows: BTreeMap<u64, usize> = BTreeMap::new();
    for now in passed {
        *windows.entry(now.wall_ns / window_ns).or_default() += 1;
    }
    match windows.into_iter().find(|(_, units)| *units > limit) {
        Some((window, units)) => Err(format!("{units} in window {window}")),
        None => Ok(()),
    }
}

fn judge_bucket(passed: &[Now], rate: u64, burst: u64) -> Result<(), String> {
    let unit = 1_000_000_000;
    let (mut owed, mut at_ns) = (0_u64, 0);
    for now in passed {
        owed = owed.saturating_sub((now.steady_ns - at_ns).saturating_mul(rate)) + unit;
        at_ns = now.steady_ns;
        if owed > burst * unit {
            return Err(format!("{} too many at {at_ns}", (owed - burst * unit).div_ceil(unit)));
        }
    }
    Ok(())
}

fn judge_sliding(passed: &[Now], limit: usize, window_ns: u64) -> Result<(), String> {
    for (place, now) in passed.iter().enumerate().skip(limit) {
        let before = &passed[place - limit];
        if now.steady_ns - before.steady_ns < window_ns {
            return Err(format!("{} within {} ns", limit + 1, now.steady_ns - before.steady_ns));
        }
    }
    Ok(())
}

fn asked(place: &Place) -> Way {
    (Arc::clone(&place.node), Arc::new(Mutex::new(place.node.asker())), place.clock.clone())
}

fn load(
    nodes: &Arc<Mutex<Vec<Way>>>,
    passed: &Arc<Mutex<Passed>>,
    demand: Demand,
    lasts: Duration,
    runtime: &Handle,
) -> JoinSet<Asked> {
    let (begun, mut asked) = (Instant::now(), JoinSet::new());
    for number in 0_u64.. {
        let due = begun + Duration::from_nanos(number * 1_000_000_000 / demand.a_second);
        if due >= begun + lasts {
            break;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if number % NOBODY == 0 {
            let nobody = async move {
                let until = Instant::now() + DECISION_WAITS;
                while Instant::now() < until {
                    wait_until(until).await;
                }
                Asked::Nobody(due.elapsed())
            };
            asked.spawn_on(nobody, runtime);
        }
        let (domain, key) = ((number / 3 % 3) as usize, number / 9 % KEYS);
        let (nodes, passed) = (Arc::clone(nodes), Arc::clone(passed));
        let request = async move {
            let (node, asker, clock) = {
                let nodes = nodes.lock().expect("no panic");
                nodes[number as usize % nodes.len()].clone()
            };
            let is_allowed = ask(&node, &asker, &clock, CallerKey { domain, key }, &passed).await;
            Asked::Somebody(due.elapsed(), is_allowed)
        };
        asked.spawn_on(request, runtime);
    }
    asked
}

/// Asks once, and waits as the answer says.
async fn ask(
    node: &Node,
    asker: &Mutex<Asker>,
    clock: &NodeClock,
    key: CallerKey,
    passed: &Mutex<Passed>,
) -> bool {
    let CallerKey { domain, key } = key;
    let text = key.to_string();
    let begun = Instant::now();
    loop {
        let news = node.news();
        let patience = {
            let request_key = [("key", text.as_str())];
            let request = Request::new(DOMAINS[domain], &request_key);
            // A request that passes is counted before another can be asked here.
            let mut asker = asker.lock().expect("no panic");
            let answer = asker.check(&request, clock.now(), Ask::CHECK);
            if answer.allowed {
                let now = clock.true_clock.now();
                passed.lock().expect("no panic").entry((domain, key)).or_default().push(now);
                return true;
            }
            Duration::from_nanos(node.patience_ns(answer, &node.catalogue(), 1_000_000_000, 0))
        };
        let until = begun + patience;
        loop {
            if Instant::now() >= until {
                return false;
            }
            if node.news() != news {
                break;
            }
            wait_until(until).await;
        }
    }
}

/// Waits until a time, or for a millisecond: no timer is finer.
async fn wait_until(until: Instant) {
    sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_millis(1))).await;
}

/// Runs a fate on a new region under load.
async fn survives_for(fate_lasts: Duration, name: &str, fate: impl AsyncFnOnce(&mut Fleet)) {
    let _alone = ALONE.lock().await;
    let fleet = Fleet::start(3).await;
    goes_on_for(fleet, fate_lasts, name, fate).await;
}

/// Runs a fate on an existing region under load.
async fn goes_on_for(mut fleet: Fleet, fate_lasts: Duration, name: &str, fate: impl AsyncFnOnce(&mut Fleet)) {
    let before = fleet.load(MUCH, Duration::from_secs(3)).await.expect("callers");
    let usual = fleet.passed_in();
    let load = fleet.load(MUCH, fate_lasts + Duration::from_secs(8));
    sleep(Duration::from_millis(500)).await;
    fate(&mut fleet).await;
    let during = load.await.expect("callers");
    fleet.grants().await;
    sleep(SETTLES).await;
    let from = fleet.passed_in();
    let after = fleet.load(MUCH, Duration::from_secs(3)).await.expect("callers");
    let again = fleet.passed_in() - from;
    eprintln!(
        "{name}: p99 before {:?}, during {:?}, after {:?}, of nobody {:?}; passed {usual} before and {again} after; {:?}",
        before.p99(),
        during.p99(),
        after.p99(),
        during.nobody_p99(),
        fleet.counts()
    );
    fleet.judge();
    assert!(during.is_in_time(), "{name}: {:?}, of nobody {:?}", during.p99(), during.nobody_p99());
    assert!(during.took.len() >= 7_000, "{name}: only {} were asked", during.took.len());
    assert!(again * 10 >= usual * 8, "{name}: {again} passed afterwards, and {usual} before");
}

async fn survives(name: &str, fate: impl AsyncFnOnce(&mut Fleet)) {
    survives_for(Duration::ZERO, name, fate).await;
}

/// This counts round trips and measures no time: the bench measures the gain in speed.
#[tokio::test(flavor = "multi_thread")]
async fn a_hot_cell_costs_a_round_trip_for_hundreds_of_decisions() {
    const MOST: u64 = 200_000 * 99 / 100;
    let _alone = ALONE.lock().await;
    let fleet = Fleet::start(1).await;
    let window = Duration::from_secs(10);
    let since = Duration::from_nanos(fleet.clock.now().wall_ns % 10_000_000_000);
    sleep(window - since + Duration::from_millis(50)).await;
    let (node, clock) = (Arc::clone(&fleet.places[0].node), fleet.clock);
    let before = node.lease_counts().calls;
    let asking = tokio::task::spawn_blocking(move || {
        let (mut asker, mut passed, begun) = (node.asker(), 0_u64, Instant::now());
        while passed < MOST && begun.elapsed() < window - Duration::from_millis(100) {
            let request_key = [("key", "one")];
            passed +=
                u64::from(asker.check(&Request::new("hot", &request_key), clock.now(), Ask::CHECK).allowed);
        }
        (passed, node.lease_counts().calls)
    });
    let (passed, after) = asking.await.expect("no panic");
    let calls = after - before;
    eprintln!("{passed} units of a window by {calls} calls");
    assert!(passed >= MOST, "{passed} of {MOST}");
    assert!(passed >= 200 * calls, "{passed} units by {calls} calls");
}
