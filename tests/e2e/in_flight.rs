//! Requests in flight over three regions of real processes, while callers, nodes and links fail. What is in
//! flight is counted from outside. `tests/soak slots` runs this for ten minutes.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use acequia_client::{Client, Options, Question, Renewed};
use acequia_rights::splitmix::Random;
use acequia_tests::{
    Node,
    cluster::{Address, Cluster, REGIONS, Weather, calm},
    eventually,
};
use serde_json::json;

use crate::{client::Http, clocks::lasts};

const LIMIT: usize = 24;
const TTL: Duration = Duration::from_secs(5);
/// Callers of a region, and requests that each wants in flight: together half as many again as may be.
const CALLERS: usize = 4;
const WANTED: usize = 3;
/// The longest request: callers renew its slot.
const LONGEST_MS: u64 = 9_000;
/// A caller does one thing after the other, so often.
const TURN: Duration = Duration::from_millis(10);
/// A loan to a node that died ends after so long. What the loan was used for may go on for a ttl from then: only then
/// its lender uses the slots again.
const LOAN_ENDS: Duration = Duration::from_millis(3_500);
/// Time for everything after a slot's end that is not its time to live: a round trip, a rebalance, a look.
const SLACK: Duration = Duration::from_secs(2);
/// How long faults go on before all slots must be free.
const ROUND: Duration = Duration::from_secs(12);

/// What callers and the test know of each other.
#[derive(Debug, Default)]
struct Shared {
    counts: Mutex<Counts>,
    /// Whether callers release everything, and take nothing.
    is_hushed: AtomicBool,
    is_over: AtomicBool,
}

/// The requests in flight, as their callers count them. A request of a killed caller counts until its slot
/// lapses.
#[derive(Debug, Default)]
struct Counts {
    /// Until when each slot may be used, by the slot's name.
    until: BTreeMap<String, Instant>,
    most: usize,
    begun: u64,
    renewed: u64,
    killed: u64,
    /// The first time that more were in flight than there are slots.
    fault: Option<String>,
}

impl Shared {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// A request begins, or its slot was renewed. Returns whether the slot may still be used.
    fn may_use(&mut self, name: &str, until: Instant) -> bool {
        let now = Instant::now();
        self.until.retain(|_, until| *until > now);
        if until <= now {
            return false;
        }
        self.until.insert(name.to_owned(), until);
        self.most = self.most.max(self.until.len());
        if self.until.len() > LIMIT && self.fault.is_none() {
            self.fault = Some(format!("{} of {LIMIT} are in flight, with {name}", self.until.len()));
        }
        true
    }
}

/// A request in flight.
#[derive(Debug)]
struct InFlight {
    name: String,
    /// When the slot was asked for, or renewed, and until when it may be used.
    from: Instant,
    until: Instant,
    ends: Instant,
}

/// A caller at one region's node.
struct Caller {
    node: Address,
    shared: Arc<Shared>,
    random: Random,
    client: Option<(SocketAddr, Client)>,
    in_flight: Vec<InFlight>,
}

/// The end of a slot that lapses after so many milliseconds, counted from before it was asked for. Clocks may
/// differ by a thousandth.
fn end_of(asked: Instant, lapses_in_ms: u64) -> Instant {
    asked + Duration::from_millis(lapses_in_ms - lapses_in_ms / 1_000)
}

impl Caller {
    async fn run(mut self) {
        while !self.shared.is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(TURN).await;
            let address = *self.node.lock().unwrap_or_else(PoisonError::into_inner);
            if self.client.as_ref().map(|(to, _)| *to) != address {
                let options = Options { deadline: Duration::from_millis(300) };
                let connect = |to: SocketAddr| {
                    Client::connect(&to.to_string(), options).ok().map(|client| (to, client))
                };
                self.client = address.and_then(connect);
            }
            let is_hushed = self.shared.is_hushed.load(Ordering::Relaxed);
            // Who is killed releases nothing. Another caller comes in its place.
            if !is_hushed && self.random.below(400) == 0 {
                self.shared.counts().killed += 1;
                self.in_flight.clear();
            }
            self.tend(is_hushed).await;
            if !is_hushed && self.in_flight.len() < WANTED {
                self.take().await;
            }
        }
    }

    /// Releases what is over, and renews slots halfway to their end.
    async fn tend(&mut self, is_hushed: bool) {
        let now = Instant::now();
        self.in_flight.retain(|request| request.until > now);
        let all = std::mem::take(&mut self.in_flight);
        for mut request in all {
            let now = Instant::now();
            if is_hushed || request.ends <= now {
                self.shared.counts().until.remove(&request.name);
                if let Some((_, client)) = &self.client {
                    // A slot that no node was told about lapses.
                    let _ = client.refund(&request.name).await;
                }
                continue;
            }
            if request.from + (request.until - request.from) / 2 <= now
                && let Some((_, client)) = &self.client
                && let Ok(answer) = client.renew(&request.name).await
                && answer.renewed() == Renewed::Done
                && Instant::now() < request.until
            {
                (request.from, request.until) = (now, end_of(now, answer.lapses_in_ms));
                let mut counts = self.shared.counts();
                counts.renewed += 1;
                counts.may_use(&request.name, request.until);
            }
            self.in_flight.push(request);
        }
    }

    async fn take(&mut self) {
        let Some((_, client)) = &self.client else { return };
        let asked = Instant::now();
        let Ok(answer) = client.check(Question::new("shop", [("customer", "c1")])).await else { return };
        let until = end_of(asked, answer.lapses_in_ms);
        if answer.allowed && self.shared.counts().may_use(&answer.charge_id, until) {
            self.shared.counts().begun += 1;
            let ends = asked + Duration::from_millis(100 + self.random.below(LONGEST_MS));
            self.in_flight.push(InFlight { name: answer.charge_id, from: asked, until, ends });
        }
    }
}

/// Three regions, and their callers.
struct Scene {
    cluster: Cluster,
    shared: Arc<Shared>,
    callers: Vec<tokio::task::JoinHandle<()>>,
    /// When a process last began.
    started: Instant,
}

impl Scene {
    fn start() -> Self {
        let limits = format!(
            "limits: [{{ name: c, domain: shop, by: [customer], concurrent: {{ limit: {LIMIT}, ttl: {}s }} }}]\n",
            TTL.as_secs()
        );
        let (cluster, shared) = (Cluster::start(&limits), Arc::<Shared>::default());
        let mut callers = Vec::new();
        for (region, node) in cluster.nodes.iter().enumerate() {
            for number in 0..CALLERS {
                let caller = Caller {
                    node: node.grpc_now(),
                    shared: Arc::clone(&shared),
                    random: Random::of((region * CALLERS + number) as u64, "caller"),
                    client: None,
                    in_flight: Vec::new(),
                };
                callers.push(cluster.runtime().spawn(caller.run()));
            }
        }
        Self { cluster, shared, callers, started: Instant::now() }
    }

    /// One fault, for a while.
    fn break_something(&mut self, random: &mut Random) {
        let region = random.below(REGIONS.len() as u64) as usize;
        let other = (region + 1) % REGIONS.len();
        let for_a_while = Duration::from_millis(100 + random.below(2_500));
        match random.below(4) {
            0 => {
                self.cluster.isolate(region, true);
                thread::sleep(for_a_while);
                self.cluster.isolate(region, false);
            }
            1 => {
                self.cluster.set(region, other, Weather { loss: 0.3, duplicate: 0.1, ..calm() });
                thread::sleep(for_a_while);
                self.cluster.set(region, other, calm());
            }
            kind => {
                self.cluster.nodes[region].kill();
                // Half of them come back at once.
                thread::sleep(if kind == 2 { for_a_while } else { Duration::ZERO });
                self.cluster.nodes[region].start_again();
                self.started = Instant::now();
            }
        }
    }

    /// Everybody releases. Returns how long some slot was missing after that, or after the last start of a
    /// node.
    fn all_are_free_again(&self) -> Duration {
        self.shared.is_hushed.store(true, Ordering::Relaxed);
        let hushed = Instant::now();
        eventually("all slots are free", || {
            self.cluster.nodes.iter().map(free).sum::<Option<usize>>() == Some(LIMIT)
        });
        let missing = Instant::now() - hushed.max(self.started);
        self.shared.is_hushed.store(false, Ordering::Relaxed);
        missing
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.callers.iter().for_each(|caller| caller.abort());
    }
}

/// The slots that are free in a region. `None` while the region is not ready.
fn free(node: &Node) -> Option<usize> {
    let body = json!({ "domain": "shop", "descriptors": [{ "customer": "c1" }] }).to_string();
    let answer = Http::connect(node).ask("POST", "/v1/peek", &[], &body).ok()?;
    usize::try_from(answer.json()["limits"][0]["remaining"].as_u64()?).ok()
}

#[test]
fn no_more_are_in_flight_than_the_limit_has_slots_and_all_slots_come_back_in_time() {
    let (mut scene, mut random) = (Scene::start(), Random::of(7, "in flight"));
    let (begun, lasts) = (Instant::now(), lasts().unwrap_or(Duration::from_secs(20)));
    while begun.elapsed() < lasts {
        let round = Instant::now();
        while round.elapsed() < ROUND.min(lasts) {
            thread::sleep(Duration::from_millis(200 + random.below(1_500)));
            scene.break_something(&mut random);
        }
        let missing = scene.all_are_free_again();
        let counts = scene.shared.counts();
        println!(
            "{} requests began, {} renewals, {} callers were killed, at most {} of {LIMIT} in flight; all free after {missing:.1?}",
            counts.begun, counts.renewed, counts.killed, counts.most
        );
        assert_eq!(counts.fault, None);
        assert!(missing <= TTL + LOAN_ENDS + SLACK, "some slot was missing for {missing:?}");
    }
    let counts = scene.shared.counts();
    assert!(counts.most > LIMIT * 3 / 4 && counts.renewed > 10 && counts.killed > 2, "{counts:?}");
}
