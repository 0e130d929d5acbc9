//! Nodes that crash. A charge is on disk before its answer leaves: over all processes of a node, the sum of
//! what passed never exceeds a limit. Charges whose answers never left are lost.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::scene::{
    self, HOUR, Journal, MINUTE, S, START,
    ledger::{Ledger, Promise, Terms},
};
use acequia_limits::{
    CellTag, Descriptor, Now, Reason, Request,
    limit::{LimitSpec, NoWait},
};
use acequia_node::{Ask, Asker, Config, MEMORY_BYTES_MIN, Node, Row};
use proptest::{collection::vec, prelude::*, sample::select};

#[derive(Clone, Debug)]
enum Step {
    Ask {
        key: usize,
        cost: u64,
    },
    Drain {
        key: usize,
    },
    Wait(u64),
    /// The writer takes the queued rows.
    Take,
    /// A batch reaches the disk. The node learns of this in a later step, or never.
    Write,
    Tell,
    Fail,
    Sweep,
    Crash {
        down_ns: u64,
        clock: i64,
    },
    Stop {
        down_ns: u64,
        clock: i64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let clock = || {
        select(
            &[0, 0, 0, S as i64, 15 * S as i64, HOUR as i64, -(S as i64), -(40 * S as i64), -(HOUR as i64)][..],
        )
    };
    let down = || select(&[0, S, 10 * S, 2 * MINUTE][..]);
    prop_oneof![
        20 => (0..3usize, prop_oneof![1..5u64, 5..60u64]).prop_map(|(key, cost)| Step::Ask { key, cost }),
        3 => (0..3usize).prop_map(|key| Step::Drain { key }),
        4 => select(&[1, S, 5 * S, 21 * S, MINUTE, 20 * MINUTE][..]).prop_map(Step::Wait),
        6 => Just(Step::Take),
        6 => Just(Step::Write),
        6 => Just(Step::Tell),
        1 => Just(Step::Fail),
        2 => Just(Step::Sweep),
        3 => (down(), clock()).prop_map(|(down_ns, clock)| Step::Crash { down_ns, clock }),
        1 => (down(), clock()).prop_map(|(down_ns, clock)| Step::Stop { down_ns, clock }),
    ]
}

/// A clock that is set back may open a window again that was forgotten at its end. A history therefore
/// contains either clocks that are set back or swept cells. The combination has its own tests.
fn tame(step: &Step, back: bool) -> Option<Step> {
    match step {
        Step::Sweep | Step::Stop { .. } if back => None,
        Step::Crash { down_ns, clock } if !back => {
            Some(Step::Crash { down_ns: *down_ns, clock: (*clock).max(0) })
        }
        Step::Stop { down_ns, clock } => Some(Step::Stop { down_ns: *down_ns, clock: (*clock).max(0) }),
        step => Some(step.clone()),
    }
}

/// Limits that take a minute or more to refill, with the units earned in an hour.
fn long() -> impl Strategy<Value = (LimitSpec, Terms)> {
    let with = |spec, limit, hourly| (spec, Terms { limit, hourly });
    select(vec![
        with(scene::bucket("long", "60/h", 200), 200, 60),
        with(scene::leaky("long", "90/h", 70, NoWait::Allow), 70, 90),
        with(scene::window("long", 100, "1m"), 100, 0),
        with(scene::window("long", 200, "1h"), 200, 0),
        with(scene::staggered("long", 90, "1m"), 90, 0),
        with(scene::quota("long", 300, "day"), 300, 0),
        with(scene::sliding("long", 50, "1m"), 50, 0),
        with(scene::slots("long", 200, "1m", 6), 200, 0),
        with(scene::sliding("long", 300, "2m"), 300, 0),
    ])
}

/// Limits that a restart assumes to be spent.
fn short() -> impl Strategy<Value = (LimitSpec, Terms)> {
    let with = |spec, limit, hourly| (spec, Terms { limit, hourly });
    select(vec![
        with(scene::bucket("short", "1/s", 40), 40, 3_600),
        with(scene::leaky("short", "2/s", 50, NoWait::Allow), 50, 7_200),
        with(scene::window("short", 60, "10s"), 60, 0),
        with(scene::staggered("short", 60, "10s"), 60, 0),
        with(scene::sliding("short", 60, "10s"), 60, 0),
        with(scene::slots("short", 60, "10s", 3), 60, 0),
    ])
}

/// Events in order of time.
enum Event {
    Admitted {
        limit: usize,
        key: usize,
        cell: CellTag,
        units: u64,
        at: Now,
        after_batch: u64,
        life: usize,
    },
    /// A crash. Cells that were not journalled count as spent at the start after the crash.
    Crashed {
        now: Now,
    },
}

/// A node, its disk, and the answers it gave.
struct Lives {
    limits: Vec<(LimitSpec, Terms)>,
    node: Arc<Node>,
    asker: Asker,
    disk: Journal,
    taken: VecDeque<(u64, Vec<Row>)>,
    /// The number of restarts.
    life: usize,
    /// The last batch of each process that reached the disk.
    written: Vec<u64>,
    /// The last batch that each process knew to be on disk. Answers that waited for later batches never left.
    told: Vec<u64>,
    now: Now,
    /// Like `now`, but on a clock that nobody sets. At least this much time has passed.
    ledger_ns: u64,
    /// When the node last started after a crash.
    crashed_ns: u64,
    events: Vec<Event>,
}

impl Lives {
    fn new(limits: Vec<(LimitSpec, Terms)>) -> Self {
        let specs: Vec<LimitSpec> = limits.iter().map(|(spec, _)| spec.clone()).collect();
        let config = Config {
            key: scene::KEY,
            memory_bytes: scene::ROOMY,
            durable: true,
            after_crash: None,
            home: None,
        };
        let node = scene::node_of(config, &specs, START);
        let asker = node.asker();
        Self {
            limits,
            node,
            asker,
            disk: Journal::default(),
            taken: VecDeque::new(),
            life: 0,
            written: vec![0],
            told: vec![0],
            now: START,
            ledger_ns: START.steady_ns,
            crashed_ns: 0,
            events: Vec::new(),
        }
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Ask { key, cost } => {
                self.ask(*key, *cost);
            }
            Step::Drain { key } => while self.ask(*key, 4) {},
            Step::Wait(ns) => {
                self.now = self.now.later(*ns);
                self.ledger_ns += ns;
            }
            Step::Take => self.taken.extend(self.node.take_rows()),
            Step::Write => self.write(),
            Step::Tell => self.tell(),
            Step::Fail => self.node.journal_failed(),
            Step::Sweep => scene::sweep_all(&self.node, self.now),
            Step::Crash { down_ns, clock } => self.restart(*down_ns, *clock, false),
            Step::Stop { down_ns, clock } => {
                // A stop this soon after a crash has its own test.
                self.act(&Step::Wait((self.crashed_ns + MINUTE).saturating_sub(self.ledger_ns)));
                self.taken.extend(self.node.take_rows());
                while !self.taken.is_empty() {
                    self.write();
                }
                self.tell();
                stop(&self.node, &mut self.disk, self.now);
                self.restart(*down_ns, *clock, true);
            }
        }
    }

    fn write(&mut self) {
        if let Some((batch, rows)) = self.taken.pop_front() {
            self.disk.write(rows);
            self.written[self.life] = batch;
        }
    }

    fn tell(&mut self) {
        let written = self.written[self.life];
        self.node.committed(written);
        self.told[self.life] = written;
    }

    fn ask(&mut self, key: usize, cost: u64) -> bool {
        let name = format!("key-{key}");
        let mut request = Request::new("shop", &[("key", &name)]);
        request.cost = cost;
        let at = Now { steady_ns: self.ledger_ns, ..self.now };
        let answer = self.asker.check(&request, self.now, Ask::CHECK);
        if answer.allowed {
            self.events.extend(answer.limits.iter().map(|limit| Event::Admitted {
                limit: limit.limit as usize,
                key,
                cell: limit.tag,
                units: cost,
                at,
                after_batch: answer.after_batch,
                life: self.life,
            }));
        }
        answer.allowed
    }

    /// Starts another process on the same disk; `clock` is how far the clock was set meanwhile.
    fn restart(&mut self, down_ns: u64, clock: i64, clean: bool) {
        let before = self.now;
        self.now = Now::at(before.wall_ns.saturating_add(down_ns).saturating_add_signed(clock));
        self.ledger_ns += down_ns.max(self.now.steady_ns.saturating_sub(before.steady_ns));
        if !clean {
            self.crashed_ns = self.ledger_ns;
            self.events.push(Event::Crashed { now: Now { steady_ns: self.ledger_ns, ..self.now } });
        }
        let specs: Vec<LimitSpec> = self.limits.iter().map(|(spec, _)| spec.clone()).collect();
        let node = restarted(&self.node, &mut self.disk, &specs, self.now, clean);
        self.asker = node.asker();
        self.node = node;
        self.taken.clear();
        self.life += 1;
        self.written.push(0);
        self.told.push(0);
    }

    /// Checks the events of all processes with one ledger for each cell.
    fn audit(self) {
        let mut ledgers: BTreeMap<(usize, usize), Ledger> = BTreeMap::new();
        let mut crashed: Option<Now> = None;
        for event in self.events {
            match event {
                Event::Crashed { now } => {
                    crashed = Some(now);
                    for ((limit, _), ledger) in &mut ledgers {
                        ledger.set_back(now);
                        if self.limits[*limit].0.name == "short" {
                            ledger.forget(now);
                        }
                    }
                }
                Event::Admitted { limit, key, cell, units, at, after_batch, life } => {
                    if after_batch > self.written[life] {
                        continue;
                    }
                    // An answer that never left lets nothing pass, but may have opened a window.
                    let units = if after_batch > self.told[life] { 0 } else { units };
                    let (spec, terms) = &self.limits[limit];
                    let ledger = ledgers.entry((limit, key)).or_insert_with(|| {
                        let mut ledger = Ledger::new(Promise::of(spec, cell), *terms, START);
                        if let Some(now) = crashed.filter(|_| spec.name == "short") {
                            ledger.forget(now);
                        }
                        ledger
                    });
                    ledger.admit(&format!("key-{key} in {}", spec.name), units, at);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_crash_gives_spent_units_back(
        long in long(),
        short in short(),
        both in any::<bool>(),
        back in any::<bool>(),
        steps in vec(step(), 1..150),
    ) {
        let mut lives = Lives::new(if both { vec![long, short] } else { vec![long] });
        steps.iter().filter_map(|step| tame(step, back)).for_each(|step| lives.act(&step));
        lives.audit();
    }

    #[test]
    fn a_limit_too_short_for_the_journal_is_empty_after_a_crash(
        short in short(),
        steps in vec(step(), 1..100),
    ) {
        let mut lives = Lives::new(vec![short]);
        steps.iter().filter_map(|step| tame(step, false)).for_each(|step| lives.act(&step));
        lives.audit();
    }

    #[test]
    fn a_crash_wastes_one_chunk_and_a_clean_stop_no_unit(
        (spec, terms) in prop_oneof![long(), short()],
        costs in vec(1..30u64, 1..12),
        crash in any::<bool>(),
    ) {
        let crash = crash && spec.name == "long";
        let mut lives = Lives::new(vec![(spec.clone(), terms)]);
        let mut spent = 0;
        for cost in costs {
            spent += if lives.ask(0, cost) { cost } else { 0 };
            for step in [Step::Take, Step::Write, Step::Tell] {
                lives.act(&step);
            }
        }
        lives.act(&if crash { Step::Crash { down_ns: 0, clock: 0 } } else { Step::Stop { down_ns: 0, clock: 0 } });
        let left = (0..).find(|_| !lives.ask(0, 1)).expect("an end");
        let chunk = if crash { scene::limits(&[spec])[0].algorithm.chunk_max() } else { 0 };
        prop_assert!(spent + left <= terms.limit, "{} and {} of {}", spent, left, terms.limit);
        prop_assert!(spent + left + chunk >= terms.limit, "{} and {} of {}", spent, left, terms.limit);
    }
}

/// A node with a journal.
fn durable(specs: &[LimitSpec]) -> (Arc<Node>, Journal) {
    (scene::small_node(specs, true, START), Journal::default())
}

/// The next process after its start, with what it queued while it read the disk.
fn restarted(node: &Node, disk: &mut Journal, specs: &[LimitSpec], now: Now, clean: bool) -> Arc<Node> {
    let next = Arc::new(Node::new(Config {
        key: scene::KEY,
        memory_bytes: MEMORY_BYTES_MIN,
        durable: true,
        after_crash: (!clean).then_some(now),
        home: None,
    }));
    next.resume(node.schedule(), now).expect("a schedule that fits");
    next.restore_all(now, |id| disk.rows(id));
    next.apply(scene::limits(specs), now, |id| disk.rows(id)).expect("limits that fit");
    disk.flush(&next);
    next
}

/// Stops a node cleanly.
fn stop(node: &Node, disk: &mut Journal, now: Now) {
    scene::sweep_all(node, now);
    disk.flush(node);
    let mut rows = Vec::new();
    node.close(now, |row| rows.push(row));
    disk.write(rows);
}

#[test]
fn while_the_disk_fails_only_units_reserved_on_it_are_spent() {
    // The node reserves as much as was charged in the last second: one unit.
    let (node, mut disk) = durable(&[scene::bucket("b", "640/h", 640)]);
    let mut asker = node.asker();
    assert!(scene::passes(&mut asker, "k", 1, START));
    node.journal_failed();
    let answer = scene::ask(&mut asker, "k", 1, START);
    assert_eq!((answer.allowed, answer.reason), (false, Reason::Journal), "nothing is on disk yet");
    disk.flush(&node);
    node.journal_failed();
    assert_eq!(scene::drain(&mut asker, "k", START), 1);
    assert_eq!(scene::ask(&mut asker, "k", 1, START).reason, Reason::Journal);
    assert_eq!(scene::ask(&mut asker, "new", 1, START).reason, Reason::Journal);
    assert_eq!(scene::ask(&mut asker, "k", 641, START).reason, Reason::CostTooHigh);
    disk.flush(&node);
    assert!(!node.is_journal_down());
    assert_eq!(scene::drain(&mut asker, "k", START), 638);
    let next = restarted(&node, &mut disk, &[scene::bucket("b", "640/h", 640)], START, false);
    assert!(scene::drain(&mut next.asker(), "k", START) <= 640 - 2, "two answers have left");
}

#[test]
fn a_clean_stop_soon_after_a_crash_remembers_what_the_crash_forgot() {
    let specs = [scene::window("short", 10, "30s")];
    let (node, mut disk) = durable(&specs);
    assert_eq!(scene::drain(&mut node.asker(), "k", START), 10);
    let second = restarted(&node, &mut disk, &specs, START.later(S), false);
    stop(&second, &mut disk, START.later(2 * S));
    let third = restarted(&second, &mut disk, &specs, START.later(3 * S), true);
    // An operator sees this before any request comes.
    let limit = third.schedule()[0].limit.id;
    let values = Descriptor::new(&[(b"key", b"k")], None);
    let holding = third.holding_named(limit, &values, START.later(3 * S));
    assert_eq!(holding.expect("a cell").left, 0);
    assert_eq!(scene::drain(&mut third.asker(), "k", START.later(3 * S)), 0);
}

#[test]
fn swept_cells_do_not_come_back_from_the_disk() {
    let specs = [scene::window("w", 64, "1m")];
    let (node, mut disk) = durable(&specs);
    let mut asker = node.asker();
    for key in 0..50 {
        scene::drain(&mut asker, &format!("key-{key}"), START);
    }
    disk.flush(&node);
    assert_eq!(disk.len(), 50);
    scene::sweep_all(&node, START.later(MINUTE));
    // One cell is charged again before its row is deleted. The later row counts.
    assert_eq!(scene::drain(&mut asker, "key-7", START.later(MINUTE)), 64);
    disk.flush(&node);
    assert_eq!(disk.len(), 1);
    let next = restarted(&node, &mut disk, &specs, START.later(MINUTE), false);
    assert_eq!(next.usage().cells, 1);
    assert_eq!(scene::drain(&mut next.asker(), "key-7", START.later(MINUTE)), 0);
}

#[test]
fn rows_of_cells_under_a_changed_limit_are_deleted_with_the_cells() {
    let (node, mut disk) = durable(&[scene::window("w", 64, "1m")]);
    let mut asker = node.asker();
    for key in 0..50 {
        scene::passes(&mut asker, &format!("key-{key}"), 60, START);
    }
    disk.flush(&node);
    scene::apply(&node, &[scene::window("w", 32, "1m")], START);
    for key in 0..50 {
        assert!(!scene::passes(&mut asker, &format!("key-{key}"), 1, START));
    }
    scene::sweep_all(&node, START.later(MINUTE));
    disk.flush(&node);
    assert_eq!((node.usage().cells, disk.len()), (0, 0));
}

#[test]
fn a_removed_limit_that_comes_back_after_a_restart_finds_its_cells() {
    for (spec, limit) in [(scene::window("w", 64, "1h"), 64), (scene::window("short", 64, "20s"), 64)] {
        let (node, mut disk) = durable(std::slice::from_ref(&spec));
        assert_eq!(scene::drain(&mut node.asker(), "k", START), limit);
        disk.flush(&node);
        scene::apply(&node, &[], START);
        disk.flush(&node);
        let next = restarted(&node, &mut disk, &[], START, false);
        next.apply(scene::limits(std::slice::from_ref(&spec)), START, |id| disk.rows(id)).expect("limits");
        assert_eq!(scene::drain(&mut next.asker(), "k", START), 0, "{}", spec.name);
    }
}

#[test]
fn a_lower_rate_holds_for_cells_on_disk() {
    let (fast, slow) = ([scene::bucket("b", "100/m", 100)], [scene::bucket("b", "100/d", 100)]);
    for clean in [false, true] {
        let (node, mut disk) = durable(&fast);
        let mut asker = node.asker();
        assert_eq!(scene::drain(&mut asker, "k", START), 100);
        disk.flush(&node);
        scene::apply(&node, &slow, START);
        if clean {
            stop(&node, &mut disk, START);
        }
        // At the old rate everything would be earned back after a minute.
        let now = START.later(2 * MINUTE);
        let next = restarted(&node, &mut disk, &slow, now, clean);
        assert_eq!(scene::drain(&mut next.asker(), "k", now), 0, "stopped in good order: {clean}");
    }
}

#[test]
fn spending_stays_after_a_crash_if_a_limit_became_long_enough_to_journal() {
    let (node, mut disk) = durable(&[scene::bucket("b", "10/s", 10)]);
    assert_eq!(scene::drain(&mut node.asker(), "k", START), 10);
    let long = [scene::bucket("b", "10/h", 10)];
    scene::apply(&node, &long, START);
    disk.flush(&node);
    let next = restarted(&node, &mut disk, &long, START, false);
    assert_eq!(scene::drain(&mut next.asker(), "k", START), 0);
}

#[test]
fn old_rows_give_nothing_back_if_a_limit_became_too_short_to_journal() {
    let (node, mut disk) = durable(&[scene::bucket("b", "10/h", 10)]);
    let mut asker = node.asker();
    assert!(scene::passes(&mut asker, "k", 1, START));
    disk.flush(&node);
    let short = [scene::bucket("b", "10/30s", 10)];
    scene::apply(&node, &short, START);
    assert_eq!(scene::drain(&mut asker, "k", START), 9);
    disk.flush(&node);
    let next = restarted(&node, &mut disk, &short, START, false);
    assert_eq!(scene::drain(&mut next.asker(), "k", START), 0);
}

#[test]
fn a_clock_that_was_set_back_closes_a_limit_only_for_its_own_length() {
    for spec in [
        scene::bucket("l", "600/h", 10),
        scene::sliding("l", 10, "1m"),
        scene::slots("l", 10, "1m", 4),
        scene::approximate("l", 10, "1m"),
    ] {
        let specs = [spec];
        let (node, mut disk) = durable(&specs);
        let later = START.later(24 * HOUR);
        assert_eq!(scene::drain(&mut node.asker(), "k", later), 10);
        disk.flush(&node);
        let next = restarted(&node, &mut disk, &specs, START, false);
        let mut asker = next.asker();
        assert_eq!(scene::drain(&mut asker, "k", START), 0);
        assert_eq!(scene::drain(&mut asker, "k", START.later(2 * MINUTE)), 10, "{:?}", specs[0]);
    }
}

#[test]
fn a_window_without_a_row_is_not_reopened_by_a_clock_that_was_set_back() {
    let specs = [scene::window("w", 64, "1m")];
    let (node, mut disk) = durable(&specs);
    assert_eq!(scene::drain(&mut node.asker(), "k", START.later(30 * S)), 64);
    disk.flush(&node);
    scene::sweep_all(&node, START.later(MINUTE + S));
    disk.flush(&node);
    let back = START.later(50 * S);
    // The wall clock continues from where it was. The units that pass now belong to the next window, and pass
    // only once.
    let next = restarted(&node, &mut disk, &specs, back, false);
    let early = scene::drain(&mut next.asker(), "k", back);
    assert_eq!(early + scene::drain(&mut next.asker(), "k", START.later(MINUTE + 59 * S)), 64);
}

/// A key that spends `units` through the shared cell of new keys.
fn spend_shared(node: &Arc<Node>, name: &str, units: u64, now: Now) -> String {
    let mut asker = node.asker();
    let mut shares = |key: &String| {
        let cells = node.usage().cells;
        scene::passes(&mut asker, key, units, now) && node.usage().cells == cells
    };
    (0..2_000).map(|key| format!("{name}-{key}")).find(|key| shares(key)).expect("a key without a cell")
}

/// Fills the memory, and flushes the journal.
fn fill(node: &Arc<Node>, disk: &mut Journal, now: Now) {
    scene::flood(node, "flood", now);
    disk.flush(node);
}

#[test]
fn the_shared_cell_survives_a_restart_under_its_last_variant() {
    let (node, mut disk) = durable(&[scene::window("w", 64, "1h")]);
    fill(&node, &mut disk, START);
    let raised = [scene::window("w", 200, "1h")];
    scene::apply(&node, &raised, START);
    let key = spend_shared(&node, "key", 100, START);
    disk.flush(&node);
    // The disk has a row of the shared cell under the old variant, and a later row under the new one.
    let next = restarted(&node, &mut disk, &raised, START, false);
    let more = scene::drain(&mut next.asker(), &key, START);
    assert!(100 + more <= 200, "100 and then {more}");
}

#[test]
fn the_shared_cell_of_an_override_survives_a_restart() {
    let spec = LimitSpec {
        overrides: vec![scene::fields(&[("key", &["big-*"]), ("limit", &["128"])])],
        ..scene::window("w", 64, "1h")
    };
    let (node, mut disk) = durable(std::slice::from_ref(&spec));
    fill(&node, &mut disk, START);
    let key = spend_shared(&node, "big", 100, START);
    disk.flush(&node);
    let next = restarted(&node, &mut disk, std::slice::from_ref(&spec), START, false);
    let more = scene::drain(&mut next.asker(), &key, START);
    assert!(100 + more <= 128, "100 and then {more}");
}

#[test]
fn the_shared_cell_of_a_limit_that_returns_with_another_variant_is_found() {
    let (node, mut disk) = durable(&[scene::bucket("b", "64/d", 64)]);
    fill(&node, &mut disk, START);
    scene::apply(&node, &[scene::bucket("b", "64/d", 128)], START);
    let key = spend_shared(&node, "key", 60, START);
    scene::apply(&node, &[], START);
    disk.flush(&node);
    let next = restarted(&node, &mut disk, &[], START, false);
    let other = scene::limits(&[scene::bucket("b", "64/d", 100)]);
    next.apply(other, START, |id| disk.rows(id)).expect("limits");
    let more = scene::drain(&mut next.asker(), &key, START);
    assert!(60 + more <= 128, "60 and then {more}");
}

#[test]
fn debt_above_a_lowered_burst_is_owed_whole_after_a_restart() {
    let with = |burst| [scene::bucket("b", "60/h", burst)];
    for clean in [true, false] {
        let (node, mut disk) = durable(&with(100));
        let mut asker = node.asker();
        assert!(scene::ask(&mut asker, "k", 100, START).allowed);
        node.apply(scene::limits(&with(10)), START, |id| disk.rows(id)).expect("limits that fit");
        // The smaller burst denies every charge, so only a probe of the cell converts its state.
        assert!(!scene::ask(&mut asker, "k", 1, START).allowed);
        disk.flush(&node);
        if clean {
            stop(&node, &mut disk, START);
        }
        let later = START.later(S);
        let node = restarted(&node, &mut disk, &with(10), later, clean);
        let mut asker = node.asker();
        assert!(!scene::ask(&mut asker, "k", 1, later).allowed);
        node.apply(scene::limits(&with(100)), later, |id| disk.rows(id)).expect("limits that fit");
        assert!(
            !scene::ask(&mut asker, "k", 1, later).allowed,
            "ninety units would be minted (clean: {clean})"
        );
    }
}

#[test]
fn rows_of_a_clean_stop_are_used_by_one_start_only() {
    let specs = [scene::window("short", 10, "30s")];
    let (node, mut disk) = durable(&specs);
    assert!(scene::passes(&mut node.asker(), "k", 1, START));
    stop(&node, &mut disk, START);
    assert_eq!(disk.len(), 1);
    let second = restarted(&node, &mut disk, &specs, START.later(S), true);
    assert_eq!(disk.len(), 0, "what it spends is not written");
    assert_eq!(scene::drain(&mut second.asker(), "k", START.later(S)), 9);
    let third = restarted(&second, &mut disk, &specs, START.later(2 * S), false);
    stop(&third, &mut disk, START.later(2 * S));
    let fourth = restarted(&third, &mut disk, &specs, START.later(3 * S), true);
    assert_eq!(scene::drain(&mut fourth.asker(), "k", START.later(3 * S)), 0);
}

#[test]
fn a_start_that_failed_has_changed_nothing_on_the_disk() {
    let specs = [scene::window("short", 10, "30s")];
    let (node, mut disk) = durable(&specs);
    assert_eq!(scene::drain(&mut node.asker(), "k", START), 10);
    stop(&node, &mut disk, START);
    let config = Config {
        key: scene::KEY,
        memory_bytes: MEMORY_BYTES_MIN,
        durable: true,
        after_crash: None,
        home: None,
    };
    let failed = Node::new(config);
    failed.resume(node.schedule(), START).expect("a schedule that fits");
    failed.restore_all(START, |id| disk.rows(id));
    let next = restarted(&node, &mut disk, &specs, START, true);
    assert_eq!(scene::drain(&mut next.asker(), "k", START), 0);
}

#[test]
fn a_debt_above_the_burst_survives_a_clean_stop_and_two_crashes() {
    let (large, small) = ([scene::bucket("b", "600/m", 300)], [scene::bucket("b", "10/m", 3)]);
    let (mut node, mut disk) = durable(&large);
    assert_eq!(scene::drain(&mut node.asker(), "k", START), 300);
    scene::apply(&node, &small, START);
    disk.flush(&node);
    stop(&node, &mut disk, START);
    // The small limit refills within a minute, so it is not journalled, and a crash presumes only three units
    // spent.
    for (seconds, clean) in [(1, true), (2, false), (3, false)] {
        node = restarted(&node, &mut disk, &small, START.later(seconds * S), clean);
    }
    let later = START.later(120 * S);
    node.apply(scene::limits(&large), later, |id| disk.rows(id)).expect("limits that fit");
    let back = scene::drain(&mut node.asker(), "k", later);
    assert!(back <= 20, "twenty units come back in two minutes, and not {back}");
}

/// A spent limit is removed, and returns in another shape while the node is down. It still waits for its
/// window.
#[test]
fn a_limit_that_returns_in_another_shape_after_a_restart_stays_spent() {
    let (node, mut disk) = durable(&[scene::window("w", 5, "1h")]);
    assert_eq!(scene::drain(&mut node.asker(), "k", START), 5);
    scene::apply(&node, &[], START.later(S));
    stop(&node, &mut disk, START.later(S));
    let next = restarted(&node, &mut disk, &[scene::window("w", 5, "2h")], START.later(2 * S), true);
    assert_eq!(scene::drain(&mut next.asker(), "k", START.later(3 * S)), 0, "until the window ends");
}
