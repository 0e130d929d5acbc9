//! A node with the minimum memory and far more keys than fit. New cells of a limit then share one cell: keys
//! may get less than their limit, but never more.

use std::{collections::BTreeMap, sync::Arc};

use crate::scene::{
    self, HOUR, MINUTE, MS, S, START,
    ledger::{Ledger, Promise, Terms},
};
use acequia_limits::{
    Now, Reason, Request,
    limit::{LimitSpec, NoWait},
};
use acequia_node::{Ask, Asker, ChargeId, Config, MEMORY_BYTES_MIN, Node, Recording, Remember, SHARDS};
use proptest::{collection::vec, prelude::*, sample::select};

#[derive(Clone, Debug)]
enum Step {
    Ask { key: usize, cost: u64 },
    Wait(u64),
    Flood(usize),
    Sweep,
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..24usize, 1..4u64).prop_map(|(key, cost)| Step::Ask { key, cost }),
        4 => select(&[1, MS, S, 11 * S, 31 * S, MINUTE, 40 * MINUTE][..]).prop_map(Step::Wait),
        2 => (1..400usize).prop_map(Step::Flood),
        1 => Just(Step::Sweep),
        1 => Just(Step::Flush),
    ]
}

/// A limit of six units, and the units earned in an hour.
fn six() -> impl Strategy<Value = (LimitSpec, u64)> {
    select(vec![
        (scene::bucket("b", "60/h", 6), 60),
        (scene::bucket("b", "1/s", 6), 3_600),
        (scene::leaky("l", "90/h", 6, NoWait::Allow), 90),
        (scene::window("w", 6, "1h"), 0),
        (scene::window("w", 6, "30s"), 0),
        (scene::staggered("w", 6, "1m"), 0),
        (scene::staggered("w", 6, "1m"), 0),
        (scene::sliding("s", 6, "1m"), 0),
        (scene::slots("s", 6, "1m", 4), 0),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_flood_of_keys_gives_no_key_more_than_its_limit(
        (spec, hourly) in six(),
        durable in any::<bool>(),
        before in vec(step(), 0..20),
        after in vec(step(), 1..200),
    ) {
        let node = scene::small_node(std::slice::from_ref(&spec), durable, START);
        let mut crowd = Crowd::new(&node, spec, Terms { limit: 6, hourly });
        before.iter().for_each(|step| crowd.act(step));
        crowd.fill();
        after.iter().for_each(|step| crowd.act(step));
        // After a while all spent units are available again, whichever key spent them.
        crowd.now = crowd.now.later(2 * HOUR);
        scene::sweep_all(&node, crowd.now);
        prop_assert_eq!((node.usage().overflowing, node.usage().cells), (0, 0));
        for key in 0..24 {
            prop_assert_eq!(scene::drain(&mut crowd.asker, &format!("key-{key}"), crowd.now), 6);
        }
    }
}

/// A few watched keys among many.
struct Crowd {
    node: Arc<Node>,
    asker: Asker,
    journal: scene::Journal,
    ledgers: BTreeMap<usize, Ledger>,
    spec: LimitSpec,
    terms: Terms,
    now: Now,
    strangers: usize,
}

impl Crowd {
    fn new(node: &Arc<Node>, spec: LimitSpec, terms: Terms) -> Self {
        let (asker, journal) = (node.asker(), scene::Journal::default());
        let ledgers = BTreeMap::new();
        Self { node: Arc::clone(node), asker, journal, ledgers, spec, terms, now: START, strangers: 0 }
    }

    fn fill(&mut self) {
        scene::flood(&self.node, "filling", self.now);
        self.journal.flush(&self.node);
        self.check_memory();
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Wait(ns) => self.now = self.now.later(*ns),
            Step::Sweep => scene::sweep_all(&self.node, self.now),
            Step::Flush => self.journal.flush(&self.node),
            Step::Flood(count) => {
                for stranger in self.strangers..self.strangers + count {
                    scene::passes(&mut self.asker, &format!("stranger-{stranger}"), 1, self.now);
                }
                self.strangers += count;
                self.check_memory();
            }
            Step::Ask { key, cost } => self.ask(*key, *cost),
        }
    }

    fn ask(&mut self, key: usize, cost: u64) {
        let whose = format!("key-{key}");
        let answer = scene::ask(&mut self.asker, &whose, cost, self.now);
        if answer.allowed {
            let promise = Promise::of(&self.spec, answer.limits[0].tag);
            let ledger = self.ledgers.entry(key).or_insert_with(|| Ledger::new(promise, self.terms, START));
            ledger.admit(&whose, cost, self.now);
        }
    }

    /// Usage may exceed the minimum by rounding: a shard that is not yet full may add a cell, and a
    /// journalled state is kept up to three times. Logs that grow have their own test.
    fn check_memory(&self) {
        let rounding = SHARDS * 200 + MEMORY_BYTES_MIN / 8;
        let usage = self.node.usage();
        assert!(usage.bytes as usize <= MEMORY_BYTES_MIN + rounding, "{usage:?}");
    }
}

#[test]
fn hundreds_of_thousands_of_keys_stay_within_the_memory_bound() {
    let node = scene::small_node(&[scene::bucket("b", "1/m", 10)], false, START);
    let mut asker = node.asker();
    for key in 0..100 {
        assert_eq!(scene::drain(&mut asker, &format!("early-{key}"), START), 10);
    }
    let mut admitted = 0;
    for key in 0..200_000 {
        admitted += u64::from(scene::passes(&mut asker, &format!("late-{key}"), 1, START));
    }
    let usage = node.usage();
    assert!(usage.bytes as usize <= MEMORY_BYTES_MIN, "{usage:?}");
    assert_eq!(usage.overflowing, 1);
    // One unit for each key with a cell, and ten for all other keys together.
    assert_eq!(admitted + 100, usage.cells + 10);
    for key in 0..100 {
        assert!(!scene::passes(&mut asker, &format!("early-{key}"), 1, START), "what is spent stays spent");
    }
    scene::sweep_all(&node, START);
    let answer = scene::ask(&mut asker, "another", 1, START);
    assert_eq!((answer.allowed, answer.reason), (false, Reason::Overflow));
}

#[test]
fn idle_cells_make_room_before_any_cell_is_shared() {
    let node = scene::small_node(&[scene::bucket("b", "1/m", 10)], false, START);
    let mut asker = node.asker();
    scene::drain(&mut asker, "busy", START);
    for day in 0..10 {
        // Each key spends one unit, and its cell is idle again a minute later.
        let now = START.later(day * 61 * S);
        for key in 0..10_000 {
            assert!(scene::passes(&mut asker, &format!("{day}-{key}"), 1, now));
        }
    }
    let usage = node.usage();
    assert_eq!(usage.overflowing, 0, "{usage:?}");
    assert!(usage.evicted > 50_000, "{usage:?}");
    assert_eq!(scene::drain(&mut asker, "busy", START.later(9 * 61 * S)), 9, "one a minute, and no more");
}

#[test]
fn charges_with_ids_leave_other_domains_room_for_cells() {
    let other = LimitSpec { domain: "bank".into(), ..scene::bucket("other", "1/m", 10) };
    let node = scene::small_node(&[scene::bucket("flooded", "1/m", 10), other], false, START);
    let mut asker = node.asker();
    scene::flood(&node, "flood", START);
    assert_eq!(node.usage().overflowing, 1);
    let known = Request::new("shop", &[("key", "flood-0")]);
    for id in 0..100 {
        let recording = Recording {
            id: ChargeId(id),
            fingerprint: id,
            is_repeatable: true,
            reserve: None,
            owner: 0,
            remember: Remember::Always,
        };
        asker.check_recorded(&known, START, Ask::CHECK, &recording).expect("a name");
    }
    // The tables had their largest size, and must shrink.
    scene::sweep_all(&node, START);
    assert!(node.usage().bytes_beside > 0);
    for key in 0..100 {
        let answer = asker.check(&Request::new("bank", &[("key", &format!("key-{key}"))]), START, Ask::CHECK);
        assert_eq!((answer.allowed, answer.reason), (true, Reason::WithinLimit), "{key}");
    }
    let usage = node.usage();
    assert!((usage.bytes + usage.bytes_beside) as usize <= MEMORY_BYTES_MIN, "{usage:?}");
}

#[test]
fn units_spent_through_a_shared_cell_are_not_spent_again_alone() {
    let node = scene::small_node(&[scene::bucket("b", "1/m", 10)], false, START);
    scene::flood(&node, "flood", START);
    // The flood has spent the shared cell. The cell is refilled, and other keys spend from it.
    let refilled = START.later(10 * MINUTE);
    let mut asker = node.asker();
    for key in 0..30_000 {
        scene::passes(&mut asker, &format!("again-{key}"), 5, refilled.later(key % 7));
    }
    let later = refilled.later(10 * MINUTE);
    let (victim, spent) = (0..500)
        .map(|key| format!("victim-{key}"))
        .map(|key| (key.clone(), scene::drain(&mut asker, &key, later)))
        .find(|(_, spent)| *spent < 10)
        .expect("a key that found no room");
    // In a minute the shared cell earns one unit. Room appears, and the key's own cell owes the rest.
    let later = later.later(MINUTE);
    scene::sweep_all(&node, later);
    let again = scene::drain(&mut asker, &victim, later);
    assert!(spent > 5 && spent + again <= 11, "{spent} and then {again}");
}

#[test]
fn new_keys_in_one_request_start_with_the_shared_cells_debt() {
    let node = scene::small_node(&[scene::window("w", 10, "1h")], false, START);
    scene::flood(&node, "flood", START);
    scene::apply(&node, &[scene::window("w", 12, "1h")], START);
    // Any of these keys may have spent ten units through the shared cell, so each has two left.
    let keys: Vec<String> = (0..40).map(|key| format!("crowded-{key}")).collect();
    let mut request = Request::new("shop", &[("key", &keys[0])]);
    for key in &keys[1..] {
        request.push([(&b"key"[..], key.as_bytes())], None);
    }
    let mut asker = node.asker();
    let given = u64::from(asker.check(&request, START, Ask::CHECK).allowed);
    for key in &keys {
        assert!(given + scene::drain(&mut asker, key, START) <= 2, "{key}");
    }
}

#[test]
fn staggered_windows_in_a_shared_cell_end_with_the_last_of_them() {
    let node = scene::small_node(&[scene::staggered("w", 10, "1m")], false, START);
    scene::flood(&node, "flood", START);
    let mut asker = node.asker();
    let shared = |key: &String| {
        let answer = scene::ask(&mut asker, key, 1, START);
        (answer.reason == Reason::Overflow).then(|| (answer.limits[0].tag, answer.limits[0].verdict))
    };
    let keys: Vec<String> = (0..40).map(|key| format!("key-{key}")).collect();
    let crowded: Vec<_> = keys.iter().map(shared).collect();
    scene::apply(&node, &[scene::staggered("w", 100, "1m")], START);
    for (key, found) in keys.iter().zip(crowded).filter_map(|(key, found)| Some((key, found?))).take(3) {
        let (tag, verdict) = found;
        let promise = Promise::of(&scene::staggered("w", 100, "1m"), tag);
        let mut ledger = Ledger::new(promise, Terms { limit: 100, hourly: 0 }, START);
        // The times are just before the shared cell's window ends, and just after. The key's own window goes
        // on.
        let edge = START.later(verdict.reset_after_ns);
        for now in [START.later(verdict.reset_after_ns - 1), edge, edge.later(MINUTE - 1), edge.later(MINUTE)]
        {
            let admitted = scene::drain(&mut node.asker(), key, now);
            ledger.admit(key, admitted, now);
        }
    }
}

/// A thread reads its clock. Another thread with a later clock then forgets idle cells. The first thread's
/// request must count at the later time.
#[test]
fn a_cell_dropped_by_a_later_clock_charges_an_older_clock_at_that_time() {
    for spec in [
        scene::sliding("s", 10, "1m"),
        scene::slots("s", 10, "1m", 4),
        scene::approximate("s", 10, "1m"),
        scene::window("w", 10, "1m"),
    ] {
        let name = spec.name.clone();
        let node = scene::small_node(&[spec], false, START);
        let mut asker = node.asker();
        assert_eq!(scene::drain(&mut asker, "k", START), 10);
        let idle = START.later(2 * MINUTE);
        scene::sweep_all(&node, idle);
        assert_eq!(node.usage().cells, 0, "{name}");
        let before = START.later(MINUTE - 1);
        assert_eq!(scene::drain(&mut asker, "k", before), 10, "{name}");
        let again = before.later(MINUTE);
        assert_eq!(scene::drain(&mut asker, "k", again), 0, "{name}: as of the later clock");
    }
}

fn with_override(base: LimitSpec, limit: &str, until: Option<Now>) -> LimitSpec {
    let units = if base.token_bucket.is_some() { "burst" } else { "limit" };
    let mut fields = scene::fields(&[("key", &["big-*"]), (units, &[limit])]);
    if let Some(until) = until {
        fields.extend(scene::fields(&[("until", &[&scene::instant(until.wall_ns)])]));
    }
    LimitSpec { overrides: vec![fields], ..base }
}

/// Requests for a hundred keys without an override. Most of the keys find no room.
fn ask_for_others(node: &Arc<Node>) {
    for other in 0..100 {
        scene::passes(&mut node.asker(), &format!("other-{other}"), 1, START);
    }
}

/// A key without room that received a wanted number of units through the shared cell of new keys.
fn shared_by(node: &Arc<Node>, name: &str, now: Now, is_wanted: impl Fn(u64) -> bool) -> String {
    let mut asker = node.asker();
    // Before its first charge a shared cell does not report that it is shared. The key's shard must therefore
    // have no room.
    let mut full = |key: &String| {
        let cells = node.usage().cells;
        let given = scene::drain(&mut asker, key, now);
        (node.usage().cells == cells && is_wanted(given)).then(|| key.clone())
    };
    (0..2_000).map(|key| format!("{name}-{key}")).find_map(|key| full(&key)).expect("a key without a cell")
}

/// A key with an override that has spent `wanted` through the shared cell of new keys.
fn spend_shared(node: &Arc<Node>, wanted: u64, now: Now) -> String {
    spend_shared_by(node, "big", wanted, now)
}

fn spend_shared_by(node: &Arc<Node>, name: &str, wanted: u64, now: Now) -> String {
    shared_by(node, name, now, |given| given == wanted)
}

#[test]
fn an_override_that_ends_keeps_the_debt_of_its_shared_cell() {
    let plain = scene::window("w", 10, "1h");
    let until = START.later(MINUTE);
    let node = scene::small_node(&[with_override(plain.clone(), "20", Some(until))], false, START);
    scene::flood(&node, "big-flood", START);
    scene::apply(&node, &[with_override(plain, "40", Some(until))], START);
    let key = spend_shared(&node, 20, START);
    assert_eq!(scene::drain(&mut node.asker(), &key, until), 0);
}

#[test]
fn an_override_that_is_removed_keeps_the_debt_of_its_shared_cell() {
    let with = |limit| with_override(scene::window("w", limit, "1h"), "20", None);
    let node = scene::small_node(&[with(10)], false, START);
    scene::apply(&node, &[with(11)], START);
    // Two cells are shared: one by the override's keys, and a fresher one by all other keys.
    scene::flood(&node, "flood", START);
    let key = spend_shared(&node, 20, START);
    scene::apply(&node, &[scene::window("w", 40, "1h")], START);
    let more = scene::drain(&mut node.asker(), &key, START);
    assert!(20 + more <= 40, "20 and then {more}");
}

#[test]
fn an_override_that_is_added_keeps_the_shared_debt_of_its_keys() {
    let plain = scene::window("w", 10, "1h");
    let node = scene::small_node(&[plain], false, START);
    scene::flood(&node, "flood", START);
    scene::apply(&node, &[scene::window("w", 30, "1h")], START);
    let key = spend_shared(&node, 20, START);
    scene::apply(&node, &[with_override(scene::window("w", 30, "1h"), "31", None)], START);
    let more = scene::drain(&mut node.asker(), &key, START);
    assert!(20 + more <= 31, "20 and then {more}");
}

#[test]
fn of_several_shared_cells_the_one_that_owes_most_counts() {
    let with = |limit, big| with_override(scene::window("w", limit, "1h"), big, None);
    let node = scene::small_node(&[with(2, "3")], false, START);
    scene::flood(&node, "flood", START);
    scene::apply(&node, &[with(202, "52")], START);
    let plain = spend_shared_by(&node, "plain", 200, START);
    spend_shared(&node, 50, START);
    scene::apply(&node, &[with(203, "52")], START);
    let more = scene::drain(&mut node.asker(), &plain, START);
    assert!(200 + more <= 203, "200 and then {more}");
}

#[test]
fn an_added_override_keeps_shared_debt_even_if_other_keys_ask_first() {
    let plain = || scene::window("w", 30, "1h");
    let node = scene::small_node(&[scene::window("w", 10, "1h")], false, START);
    scene::flood(&node, "flood", START);
    scene::apply(&node, &[plain()], START);
    let key = spend_shared(&node, 20, START);
    scene::apply(&node, &[with_override(plain(), "31", None)], START);
    ask_for_others(&node);
    let more = scene::drain(&mut node.asker(), &key, START);
    assert!(20 + more <= 31, "20 and then {more}");
}

#[test]
fn an_ended_override_keeps_shared_debt_even_if_other_keys_share_a_cell() {
    let until = START.later(MINUTE);
    let with = |limit| with_override(scene::window("w", limit, "1h"), "20", Some(until));
    let node = scene::small_node(&[with(10)], false, START);
    scene::flood(&node, "flood", START);
    scene::apply(&node, &[with(29)], START);
    let key = spend_shared(&node, 10, START);
    // The other keys share their own cell, which owes one unit more.
    ask_for_others(&node);
    let more = scene::drain(&mut node.asker(), &key, until);
    assert!(20 + more <= 29, "20 and then {more}");
}

/// One thread may have read its clock just before an override ended, while another thread or a reload has
/// found the override ended.
#[test]
fn a_clock_read_before_an_override_ended_gives_its_keys_nothing_more() {
    let (until, before) = (START.later(MINUTE), START.later(MINUTE - 1));
    let with = |limit| with_override(scene::window("w", limit, "1h"), "20", Some(until));
    let full = || {
        let node = scene::small_node(&[with(10)], false, START);
        scene::flood(&node, "flood", START);
        scene::apply(&node, &[with(29)], START);
        node
    };
    // A reload ends the override.
    let node = full();
    let key = spend_shared(&node, 10, START);
    scene::apply(&node, &[with(29), scene::window("v", 5_000, "1h")], until);
    let more = scene::drain(&mut node.asker(), &key, before) + scene::drain(&mut node.asker(), &key, until);
    assert!(20 + more <= 29, "20 and then {more}");
    // Another thread finds the override ended, before anybody has spent under it.
    let node = full();
    let key = shared_by(&node, "big", until, |given| given > 0);
    let spent = 19;
    let more = scene::drain(&mut node.asker(), &key, before);
    assert!(spent + more <= 29, "{spent} and then {more}");
}

#[test]
fn a_forgotten_shared_window_is_not_reopened_by_an_older_clock() {
    // Only shared cells are forgotten.
    let node = scene::small_node(&[scene::window("d", 100_000, "1000h")], true, START);
    let (mut journal, edge) = (scene::Journal::default(), START.later(HOUR - START.wall_ns % HOUR));
    scene::flood(&node, "flood", edge.later(1));
    scene::apply(&node, &[scene::window("w", 100_000, "1h")], edge.later(1));
    journal.flush(&node);
    let (end, before) = (edge.later(HOUR), edge.later(HOUR - 1));
    let key = shared_by(&node, "key", before, |given| given > 1);
    scene::sweep_all(&node, end);
    let mut asker = node.asker();
    let answer = scene::ask(&mut asker, &key, 100_000, before);
    assert!(!answer.allowed || answer.limits[0].verdict.reset_after_ns > MINUTE, "{answer:?}");
    journal.flush(&node);
    assert!(!journal.rows(acequia_node::WALL).is_empty(), "nor by the next process");
}

/// Variants are numbered anew by each process, and so are the disk's names of shared cells.
#[test]
fn the_debt_of_a_shared_cell_survives_two_crashes() {
    let bucket = |burst| scene::bucket("b", "1/h", burst);
    let spec = || {
        let fields = scene::fields(&[("key", &["big-*"]), ("rate", &["6000/m"])]);
        LimitSpec { overrides: vec![fields], ..bucket(9_000) }
    };
    let node = scene::small_node(&[bucket(8_999)], true, START);
    let mut disk = scene::Journal::default();
    scene::apply(&node, &[spec()], START);
    scene::flood(&node, "flood", START);
    // There is one shared cell, and the rest of it is spent.
    let key = "plain".to_owned();
    assert!(scene::drain(&mut node.asker(), &key, START) > 1_000);
    disk.flush(&node);
    let mut node = node;
    for seconds in [1, 3_000, 3_001] {
        let now = START.later(seconds * S);
        let config = Config {
            key: scene::KEY,
            memory_bytes: MEMORY_BYTES_MIN,
            durable: true,
            after_crash: Some(now),
            home: None,
        };
        let next = Arc::new(Node::new(config));
        next.resume(node.schedule(), now).expect("a schedule that fits");
        next.restore_all(now, |id| disk.rows(id));
        next.apply(scene::limits(&[spec()]), now, |id| disk.rows(id)).expect("limits that fit");
        disk.flush(&next);
        // At the override's rate everything is earned back after a while, and swept.
        scene::sweep_all(&next, START.later((seconds + 2_000) * S));
        scene::passes(&mut next.asker(), "big-1", 1, now);
        disk.flush(&next);
        node = next;
    }
    let more = scene::drain(&mut node.asker(), &key, START.later(3_001 * S));
    assert!(more <= 1, "one an hour, and not {more}");
}

#[derive(Clone, Debug)]
enum Turn {
    Ask { key: usize, cost: u64 },
    Wait(u64),
    Reload { own: u64, big: Option<(u64, bool)> },
}

fn turn() -> impl Strategy<Value = Turn> {
    let big = prop::option::of((1..30_u64, any::<bool>()));
    prop_oneof![
        12 => (0..2_usize, 1..4_u64).prop_map(|(key, cost)| Turn::Ask { key, cost }),
        1 => select(&[MS, S, 11 * S][..]).prop_map(Turn::Wait),
        2 => (1..30_u64, big).prop_map(|(own, big)| Turn::Reload { own, big }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// While nothing is earned, a key receives at most the largest number that any of its variants allowed.
    #[test]
    fn keys_without_room_never_get_more_than_their_largest_variant(
        kind in 0..4_usize,
        durable in any::<bool>(),
        turns in vec(turn(), 1..80),
    ) {
        let spec = |units: u64| match kind {
            0 => scene::window("w", units, "1000h"),
            1 => scene::staggered("w", units, "1000h"),
            2 => scene::bucket("b", "120/h", units),
            _ => scene::slots("s", units, "1000h", 4),
        };
        let mut now = START;
        // The flood is never denied before all room is gone, and its charges have expired when the other keys
        // come.
        let node = scene::small_node(&[spec(1_000_000)], durable, now);
        scene::flood(&node, "flood", now);
        let (mut asker, mut journal) = (node.asker(), scene::Journal::default());
        let left = scene::ask_as(&mut asker, "plain-1", 1, now, Ask::PEEK).limits[0].verdict.remaining;
        let spec = |units: u64| spec(1_000_000 - left + units);
        // What each key may have and has received. The first key may have an override.
        let (mut most, mut given) = ([0_u64; 2], [0_u64; 2]);
        let mut numbers = (left, None);
        for turn in &turns {
            match turn {
                Turn::Wait(ns) => now = now.later(*ns),
                Turn::Reload { own, big } => {
                    numbers = (*own, big.map(|(limit, ends)| (limit, ends.then(|| now.later(5 * S)))));
                    let base = spec(*own);
                    let spec = match numbers.1 {
                        Some((limit, until)) => with_override(base, &(1_000_000 - left + limit).to_string(), until),
                        None => base,
                    };
                    scene::apply(&node, &[spec], now);
                }
                Turn::Ask { key, cost } => {
                    let is_big = *key == 0;
                    let lasts = |until: Option<Now>| until.is_none_or(|until| now.wall_ns < until.wall_ns);
                    let units = match numbers.1 {
                        Some((limit, until)) if is_big && lasts(until) => limit,
                        _ => numbers.0,
                    };
                    most[*key] = most[*key].max(units);
                    let name = format!("{}-{key}", if is_big { "big" } else { "plain" });
                    if scene::passes(&mut asker, &name, *cost, now) {
                        given[*key] += cost;
                    }
                    let back = if kind == 2 { 1 + (now.wall_ns - START.wall_ns) / (30 * S) } else { 0 };
                    prop_assert!(given[*key] <= most[*key] + back, "{}: {:?} of {:?}", name, given, most);
                }
            }
            journal.flush(&node);
        }
    }
}

/// Each key spent six units, and the node crashed. It restarts with a limit of three or six units, and then
/// has six.
#[test]
fn a_shared_cell_gives_back_no_units_that_a_crash_forgot() {
    let bucket = |units| scene::bucket("b", "60/h", units);
    let window = |units| scene::staggered("w", units, "1m");
    let log = |units| scene::sliding("s", units, "1m");
    let slots = |units| scene::slots("s", units, "1m", 4);
    let specs: [&dyn Fn(u64) -> LimitSpec; 4] = [&bucket, &window, &log, &slots];
    for spec in specs {
        for units in [3, 6] {
            let config = Config {
                key: scene::KEY,
                memory_bytes: MEMORY_BYTES_MIN,
                durable: false,
                after_crash: Some(START),
                home: None,
            };
            let crashed = scene::small_node(&[spec(6)], false, START);
            let node = Arc::new(Node::new(config));
            node.resume(crashed.schedule(), START).expect("a schedule that fits");
            scene::apply(&node, &[spec(units)], START);
            // By now each bucket has earned some units, and the windows of some keys have ended.
            let now = START.later(if spec(units).token_bucket.is_some() { 5 * MINUTE } else { 40 * S });
            if spec(units).sliding_window.is_none() {
                scene::flood(&node, "flood", now);
                assert!(node.usage().overflowing > 0, "{:?}", spec(units));
            }
            scene::apply(&node, &[spec(6)], now);
            let mut asker = node.asker();
            let hourly = if spec(units).token_bucket.is_some() { 60 } else { 0 };
            for key in 0..400 {
                let key = format!("key-{key}");
                let peek = scene::ask_as(&mut asker, &key, 1, now, Ask::PEEK);
                let promise = Promise::of(&spec(6), peek.limits[0].tag);
                let mut ledger = Ledger::new(promise, Terms { limit: 6, hourly }, START);
                ledger.admit(&key, 6, START);
                let passed = scene::drain(&mut asker, &key, now);
                ledger.admit(&key, passed, now);
            }
        }
    }
}

#[test]
fn growing_sliding_logs_stay_within_the_memory_bound() {
    let node = scene::small_node(&[scene::sliding("s", 64, "1m")], false, START);
    let mut asker = node.asker();
    for round in 0..64 {
        for key in 0..3_000 {
            scene::passes(&mut asker, &format!("key-{key}"), 1, START.later(round * MS));
        }
    }
    let usage = node.usage();
    assert!(usage.bytes as usize <= MEMORY_BYTES_MIN + SHARDS * 1_200, "{usage:?}");
}

#[test]
fn memory_of_dropped_cells_is_not_counted_any_more() {
    let node = scene::small_node(&[scene::window("w", 6_400, "1m")], true, START);
    let (mut asker, mut journal) = (node.asker(), scene::Journal::default());
    let mut now = START;
    for _ in 0..50 {
        now = now.later(MINUTE);
        for key in 0..500 {
            // A chunk is reserved, and half of it spent. The next chunk is on its way to the disk...
            let key = format!("key-{key}");
            scene::passes(&mut asker, &key, 1, now);
            journal.flush(&node);
            scene::passes(&mut asker, &key, 60, now);
            journal.flush(&node);
            // ...and arrives, just when the disk fails for a moment.
            node.journal_failed();
            scene::passes(&mut asker, &key, 1, now);
            node.committed(0);
        }
        let next = now.later(MINUTE);
        scene::sweep_all(&node, next);
        journal.flush(&node);
        assert_eq!((node.usage().cells, journal.len()), (0, 0));
    }
    // Only the tables' slots and a few hundred cells remain.
    assert!(node.usage().bytes < 256 * 700, "{:?}", node.usage());
}
