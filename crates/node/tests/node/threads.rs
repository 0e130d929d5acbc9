//! Threads that ask concurrently while limits change and idle cells are swept. The sums must hold for every
//! interleaving.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use crate::scene::{self, HOUR, MS, S, START};
use acequia_limits::{Reason, Request, limit::LimitSpec};
use acequia_node::{Ask, MEMORY_BYTES_MIN, Node};

const THREADS: usize = 4;
const CHECKS: u64 = 25_000;
/// Checks between two changes of the limits.
const PER_TURN: u64 = 2_000;
/// Hot keys, on which every thread spends half of its checks.
const HOT: usize = 5;
/// Cold keys: more than fit in memory at once.
const COLD: usize = 60_000;

/// State that the threads share.
struct Race {
    node: Arc<Node>,
    /// Nanoseconds since the start. Each check advances the clock.
    clock: AtomicU64,
    /// Checks that may be made before the next change of the limits. Neither side leaves the other behind.
    allowance: AtomicU64,
    made: AtomicU64,
    over: AtomicBool,
    hot: Vec<AtomicU64>,
    cold: Vec<AtomicU64>,
}

impl Race {
    fn new(specs: &[LimitSpec]) -> Self {
        Self::on(scene::small_node(specs, true, START))
    }

    fn on(node: Arc<Node>) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            node,
            clock: AtomicU64::new(0),
            allowance: AtomicU64::new(0),
            made: AtomicU64::new(0),
            over: AtomicBool::new(false),
            hot: zeros(HOT),
            cold: zeros(COLD),
        }
    }

    /// Asks as fast as possible. Each check advances the common clock by `ns`.
    fn ask(&self, thread: usize, ns: u64) {
        let mut asker = self.node.asker();
        let mut dice = thread as u64 + 1;
        for _ in 0..CHECKS {
            let turn = self.made.fetch_add(1, Ordering::AcqRel);
            while turn >= self.allowance.load(Ordering::Acquire) {
                thread::yield_now();
            }
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let drawn = (dice >> 33) as usize;
            let (counts, name) = match drawn % 2 {
                0 => (&self.hot[drawn / 2 % HOT], format!("hot-{}", drawn / 2 % HOT)),
                _ => (&self.cold[drawn / 2 % COLD], format!("cold-{}", drawn / 2 % COLD)),
            };
            let now = START.later(self.clock.fetch_add(ns, Ordering::AcqRel));
            let mut request = Request::new("shop", &[("key", &name)]);
            request.cost = 1 + (dice >> 60) % 2;
            // A request that matches no limit is allowed, and not counted.
            if asker.check(&request, now, Ask::CHECK).reason == Reason::WithinLimit {
                counts.fetch_add(request.cost, Ordering::AcqRel);
            }
        }
    }

    /// Reloads one set of limits after another, sweeps, and flushes the journal.
    fn disturb(&self, turns: &[Vec<LimitSpec>]) {
        let mut journal = scene::Journal::default();
        for sweep in (0..).take_while(|_| !self.over.load(Ordering::Acquire)) {
            let now = START.later(self.clock.load(Ordering::Acquire));
            // Half of a turn's checks race with the change of limits, the others with the sweeps.
            let allowance = self.allowance.load(Ordering::Acquire);
            if self.made.load(Ordering::Acquire) + PER_TURN / 2 >= allowance {
                let limits = scene::limits(&turns[(allowance / PER_TURN) as usize % turns.len()]);
                self.node.apply(limits, now, |id| journal.rows(id)).expect("a set of limits that fits");
                self.allowance.store(allowance + PER_TURN, Ordering::Release);
            }
            self.node.sweep(sweep, now);
            journal.flush(&self.node);
        }
    }

    fn run(self, ns: u64, turns: &[Vec<LimitSpec>]) -> Self {
        thread::scope(|scope| {
            let disturbing = scope.spawn(|| self.disturb(turns));
            let asking: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn({
                        let race = &self;
                        move || race.ask(thread, ns)
                    })
                })
                .collect();
            for thread in asking {
                thread.join().expect("no panic");
            }
            self.over.store(true, Ordering::Release);
            disturbing.join().expect("no panic");
        });
        self
    }

    /// The most that any key of each kind received.
    fn most(&self) -> (u64, u64) {
        let most = |counts: &[AtomicU64]| counts.iter().map(|n| n.load(Ordering::Acquire)).max().unwrap_or(0);
        (most(&self.hot), most(&self.cold))
    }
}

#[test]
fn windows_stay_within_their_limit_while_limits_change() {
    let with = |limit| vec![scene::window("w", limit, "1h")];
    let race = Race::new(&with(1_000)).run(MS, &[with(1_000), with(600), vec![], with(900)]);
    let (hot, cold) = race.most();
    assert!(hot <= 1_000 && cold <= 1_000, "{hot} and {cold} of 1000");
    assert!(hot >= 600, "{hot}");
}

#[test]
fn threads_charge_all_limits_of_a_request_or_none() {
    let all = || LimitSpec { by: vec![], ..scene::window("all", 4_000, "1h") };
    let each = || scene::sliding("each", 60, "1h");
    let turns =
        [vec![all(), each()], vec![each(), all()], vec![all(), each(), scene::window("w", 1_000, "1h")]];
    // Logs of sixty charges for every key need more than the minimum memory.
    let race = Race::on(scene::node(&turns[0], START)).run(MS, &turns);
    let total: u64 = race.hot.iter().chain(&race.cold).map(|n| n.load(Ordering::Acquire)).sum();
    let (hot, cold) = race.most();
    assert!(hot <= 60 && cold <= 60, "{hot} and {cold} of 60");
    assert!(total <= 4_000, "{total} of 4000");
    assert!(total > 3_000, "{total}");
}

#[test]
fn threads_together_get_at_most_a_buckets_burst_and_rate() {
    // No variant exceeds a burst of 500 and a rate of 10/s.
    let with = |rate: &str, burst| vec![scene::bucket("b", rate, burst)];
    let turns = [with("10/s", 500), with("1/s", 500), with("9/s", 500), with("10/s", 100), vec![]];
    let race = Race::new(&with("10/s", 500)).run(MS / 2, &turns);
    let lasted_ns = race.clock.load(Ordering::Acquire);
    let bound = 500 + 10 * lasted_ns / S;
    let (hot, cold) = race.most();
    assert!(hot <= bound && cold <= bound, "{hot} and {cold} of {bound} in {} s", lasted_ns / S);
    assert!(race.node.usage().bytes as usize <= MEMORY_BYTES_MIN * 5 / 4, "{:?}", race.node.usage());
    assert!(lasted_ns < HOUR);
}

#[test]
fn keys_in_a_shared_cell_stay_within_its_limit_while_it_changes() {
    let with = |limit| vec![scene::window("w", limit, "1h")];
    // The flood is never denied, so no room is left anywhere.
    let race = Race::new(&with(1_000_000));
    scene::flood(&race.node, "flood", START);
    let turns: Vec<Vec<LimitSpec>> = (0..50).map(|turn| with(20_000 - turn)).collect();
    let race = race.run(MS / 100, &turns);
    let total: u64 = race.hot.iter().chain(&race.cold).map(|n| n.load(Ordering::Acquire)).sum();
    assert!(total <= 20_000, "{total} of 20000");
    assert!(total > 5_000, "{total}");
}
