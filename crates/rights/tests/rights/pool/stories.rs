//! One pool, by hand.

use std::collections::BTreeSet;

use acequia_limits::{Part, RATE_PARTS, Rate, meter::Meter};
use acequia_rights::pool::{
    Bucket, BucketBalance, CallContext, Generation, PoolGroup, PoolRefused, Taker, Window,
    bucket::{BucketParams, Exchange, Exchanged},
    group::{Assertion, Begin, Excluded, GroupStatus, ServerIdentity},
    slack_us, window,
};

use super::granting;

pub(super) const UNITS: u64 = 10;
const MS: u64 = 1_000;
const START_US: u64 = 1_700_000_000_000_000;
const ERROR_US: u64 = 5 * MS;
const ALL: Part = Part { rate: RATE_PARTS, units: UNITS };
const NOTHING: Part = Part { rate: 0, units: 0 };
const KEEPS_NOTHING: Kept = Kept { part: NOTHING, tokens: 0 };

/// What a node keeps of a pool, by its call.
#[derive(Clone, Copy)]
struct Kept {
    part: Part,
    /// Units of a part that the call gives back without debt.
    tokens: u64,
}

/// What a generation of a pool may do.
#[derive(Clone, Copy)]
struct Granting {
    grants: bool,
    /// The generation knows nothing of spending before this time.
    unknown_until_us: u64,
}

/// A pool of 1000/s and a burst of 10 that has been idle for long. The callers' wall clocks are up to 5 ms
/// off.
struct Pool {
    bucket: Bucket,
    params: BucketParams,
    calls: u64,
}

impl Pool {
    fn new() -> Self {
        Self::of(UNITS)
    }

    fn of(units: u64) -> Self {
        let meter = Meter::new(Rate::parse("1000/s").expect("a rate"), units);
        let part = Part { rate: RATE_PARTS, units };
        let params = BucketParams::of(&meter, part, slack_us(ERROR_US * 1_000, 0)).expect("parameters");
        Self { bucket: Bucket::default(), params, calls: 0 }
    }

    fn call(&mut self, node: u16, wall_us: u64, kept: Kept, wanted: Part) -> Result<Exchanged, PoolRefused> {
        self.call_in(
            node,
            wall_us,
            kept,
            wanted,
            Granting { grants: true, unknown_until_us: START_US - 100_000 * MS },
        )
    }

    /// A call in a generation.
    fn call_in(
        &mut self,
        node: u16,
        wall_us: u64,
        kept: Kept,
        wanted: Part,
        granting: Granting,
    ) -> Result<Exchanged, PoolRefused> {
        self.calls += 1;
        let taker = Taker { node, process_number: 1, call: self.calls };
        let Kept { part: keeps, tokens } = kept;
        let exchange = Exchange { taker, keeps, tokens, wanted, needed: 0, reserved: 0, keep_us: 1_000 * MS };
        let generation = Generation { number: 1, by: Taker { node: 1, process_number: 1, call: 1 } };
        let wall_us = START_US + wall_us;
        let context = CallContext {
            wall_us,
            generation,
            since: generation,
            grants: granting.grants,
            unknown_until_us: granting.unknown_until_us,
            forfeited_before_us: 0,
        };
        self.bucket.exchange(&exchange, &self.params, &context)
    }
}

const fn above(heard: u64, by: Taker) -> Begin {
    Begin { heard, by, goes_on: false }
}

/// Units that two nodes receive at one instant. One has a late wall clock, the other an early one.
pub(super) fn two_walls_at_one_instant() -> u64 {
    let mut pool = Pool::new();
    let units = Part { rate: 0, units: UNITS };
    let first = pool.call(1, 100 * MS - ERROR_US, KEEPS_NOTHING, units).expect("an answer");
    let tokens = first.part.units - first.owed;
    // The first node returns the units as debt, which drains in the pool from then on.
    pool.call(1, 100 * MS - ERROR_US, KEEPS_NOTHING, NOTHING).expect("an answer");
    let second = pool.call(2, 100 * MS + ERROR_US, KEEPS_NOTHING, units).expect("an answer");
    tokens + second.part.units - second.owed
}

/// A hundred nodes come and go, each with its own name. Each withdraws from a pool, and returns everything.
#[test]
fn nodes_that_are_gone_make_room_for_new_ones_in_a_pool() {
    let mut pool = Pool::new();
    let unit = Part { rate: 0, units: 1 };
    for node in 1..=100 {
        let now = u64::from(node) * 100 * MS;
        pool.call(node, now, KEEPS_NOTHING, unit).expect("room");
        pool.call(node, now, Kept { part: NOTHING, tokens: 1 }, NOTHING).expect("room");
    }
    // A node stays known while calls from before its last one might still count.
    let mut pool = Pool::new();
    for node in 1..=64 {
        pool.call(node, 0, KEEPS_NOTHING, NOTHING).expect("room");
    }
    let slack = 2 * ERROR_US;
    // Each node's grant lasts for a second.
    for (after_us, is_room) in
        [(1_000 * MS, false), (1_000 * MS + slack, false), (1_000 * MS + 2 * slack, true)]
    {
        pool.call(1, after_us, KEEPS_NOTHING, NOTHING).expect("it is known");
        let came = pool.call(99, after_us, KEEPS_NOTHING, unit);
        assert_eq!(came.is_ok(), is_room, "{after_us} us later");
        assert!(is_room || came == Err(PoolRefused::TooManyNodes));
    }
}

#[test]
fn two_nodes_with_different_clocks_earn_nothing_extra() {
    assert_eq!(two_walls_at_one_instant(), UNITS);
}

const ROUNDS: u64 = 50;
const MANY: u64 = 2_000;
/// The most that may be admitted in these rounds of 10 ms each, at 1000/s after a burst.
pub(super) const MOST: u64 = MANY + ROUNDS * 10;

/// Units that are admitted, all at once at the beginning and again at the end. In between a node repeatedly
/// holds everything for 10 ms. It returns everything when its wall clock is late, and takes it again when its
/// clock is early.
pub(super) fn a_part_that_comes_and_goes() -> u64 {
    let mut pool = Pool::of(MANY);
    let all = Part { rate: RATE_PARTS, units: MANY };
    let mut now = 100 * MS;
    let first = pool.call(1, now, KEEPS_NOTHING, all).expect("an answer");
    let admitted = first.part.units - first.owed;
    pool.call(1, now, KEEPS_NOTHING, NOTHING).expect("an answer");
    for _ in 0..ROUNDS {
        let held = pool.call(1, now + ERROR_US, KEEPS_NOTHING, all).expect("an answer");
        // A unit drains in each millisecond at the holder.
        now += 10 * MS;
        let debt = held.owed.saturating_sub(10 * u64::from(held.part.rate) / u64::from(RATE_PARTS));
        pool.call(1, now - ERROR_US, Kept { part: NOTHING, tokens: held.part.units - debt }, NOTHING)
            .expect("an answer");
    }
    let last = pool.call(1, now + ERROR_US, KEEPS_NOTHING, all).expect("an answer");
    admitted + last.part.units - last.owed
}

#[test]
fn a_part_that_moves_between_clocks_drains_only_once() {
    let admitted = a_part_that_comes_and_goes();
    assert!(admitted <= MOST, "{admitted} of {MOST}");
}

#[test]
fn one_node_may_lease_everything_that_others_do_not_want() {
    let mut pool = Pool::new();
    let all = pool.call(1, 0, KEEPS_NOTHING, ALL).expect("an answer");
    assert_eq!((all.part, all.owed, all.fair), (ALL, 0, RATE_PARTS));
    // Another node asks for as much. Each may have half, once the first returns it.
    let none = pool.call(2, MS, KEEPS_NOTHING, ALL).expect("an answer");
    assert_eq!((none.part, none.fair), (NOTHING, RATE_PARTS / 2));
    let half = Part { rate: RATE_PARTS / 2, units: UNITS / 2 };
    let kept = pool.call(1, 2 * MS, Kept { part: half, tokens: UNITS / 2 }, NOTHING).expect("an answer");
    assert_eq!(kept.part, half);
    let other = pool.call(2, 100 * MS, KEEPS_NOTHING, ALL).expect("an answer");
    assert_eq!(other.part.units, UNITS / 2);
}

#[test]
fn the_units_of_an_ended_lease_are_owed_whole() {
    let mut pool = Pool::new();
    pool.call(1, 0, KEEPS_NOTHING, ALL).expect("an answer");
    let at_its_end = pool.call(2, 1_000 * MS, KEEPS_NOTHING, ALL).expect("an answer");
    assert_eq!(at_its_end.owed, at_its_end.part.units, "nothing of it is left");
    let mut pool = Pool::new();
    pool.call(1, 0, KEEPS_NOTHING, ALL).expect("an answer");
    let later = pool.call(2, 1_100 * MS, KEEPS_NOTHING, ALL).expect("an answer");
    assert_eq!((later.part, later.owed), (ALL, 0));
}

#[test]
fn a_call_that_arrives_after_a_later_one_has_no_effect() {
    let mut pool = Pool::new();
    pool.call(1, 0, KEEPS_NOTHING, ALL).expect("an answer");
    pool.calls -= 1;
    assert_eq!(pool.call(1, 0, KEEPS_NOTHING, NOTHING), Err(PoolRefused::Stale));
    assert_eq!(pool.call(2, 0, KEEPS_NOTHING, ALL).expect("an answer").part.units, 0);
}

#[test]
fn a_call_that_was_long_under_way_has_no_effect() {
    let mut pool = Pool::new();
    pool.call(1, 100 * MS, KEEPS_NOTHING, NOTHING).expect("an answer");
    assert_eq!(pool.call(2, 0, KEEPS_NOTHING, ALL), Err(PoolRefused::Late));
}

/// When a one-second lease ends whose answer took 300 ms, in milliseconds after the call was sent.
pub(super) fn the_end_of_a_lease() -> u64 {
    let (ttl_ns, late_ns) = (1_000_000_000, 10_000_000);
    let mut balance = BucketBalance::default();
    let (call, _) = balance.ask(NOTHING, 0, 5_000_000);
    let answer = Exchanged { part: ALL, owed: 0, left: 0, fair: 0 };
    let _ = balance.answer(call, &answer, ttl_ns, late_ns, 6_000_000).expect("in time");
    let (call, _) = balance.ask(ALL, 0, 500_000_000);
    let _ = balance.answer(call, &answer, ttl_ns, late_ns, 800_000_000).expect("what is kept goes on");
    (balance.end_ns() - 500_000_000) / 1_000_000
}

/// A lease ends with all units owed, while a call that kept it is on its way. Returns the node's units
/// without debt.
pub(super) fn an_answer_after_the_end() -> u64 {
    let (ttl_ns, late_ns) = (1_000_000_000, 10_000_000);
    let mut balance = BucketBalance::default();
    let (call, _) = balance.ask(NOTHING, 0, 0);
    let answer = Exchanged { part: ALL, owed: 0, left: 0, fair: 0 };
    let _ = balance.answer(call, &answer, ttl_ns, late_ns, 1_000_000).expect("in time");
    let (call, _) = balance.ask(ALL, 0, 999_000_000);
    let ended = balance.settle(1_000_000_000).expect("it is over");
    assert_eq!(ended.shed, ALL.units);
    let gained = balance.answer(call, &answer, ttl_ns, late_ns, 1_002_000_000);
    gained.map_or(0, |gained| balance.part().units - gained.owe)
}

#[test]
fn an_ended_lease_is_not_revived_by_a_late_answer() {
    assert_eq!(an_answer_after_the_end(), 0);
}

#[test]
fn a_lease_is_timed_from_when_its_call_was_sent() {
    assert_eq!(the_end_of_a_lease(), 1_000);
}

#[test]
fn bucket_params_give_no_more_than_the_limit() {
    for (rate, units) in [
        ("1/s", 1),
        ("7/m", 100_000),
        ("999/s", 12),
        ("1000000/s", 5_000_000),
        ("1/30d", 1_000),
        ("3000000000/s", 9),
    ] {
        let meter = Meter::new(Rate::parse(rate).expect("a rate"), units);
        let params = BucketParams::of(&meter, Part { rate: RATE_PARTS, units }, 0).expect("parameters");
        let (n, p) = meter.terms();
        // Ticks a second, in units.
        let given = u128::from(params.gives) * u128::from(RATE_PARTS) * 1_000_000_000 * u128::from(p);
        let exact =
            u128::from(params.weight) * u128::from(params.step_us) * 1_000 * u128::from(n) * 1_000_000_000;
        assert!(given <= exact, "{rate}: {params:?}");
        // And not much less.
        assert!(given + given / 1_000 >= exact, "{rate}: {params:?}");
        assert!(u128::from(params.weight) * u128::from(units) <= 1 << 50, "{rate}: {params:?}");
    }
}

/// A node calls in vain a moment before another node's last missing report. Its wall clock is ahead of the
/// other's. Returns the units that the node then receives.
pub(super) fn called_before_all_had_told() -> u64 {
    let mut pool = Pool::new();
    pool.call_in(1, 2 * MS, KEEPS_NOTHING, ALL, Granting { grants: false, unknown_until_us: 0 })
        .expect("an answer");
    let first = pool
        .call_in(1, 3 * MS, KEEPS_NOTHING, ALL, Granting { grants: true, unknown_until_us: START_US + MS })
        .expect("an answer");
    first.part.units - first.owed
}

/// Units that a node receives when the second of two nodes reports, some time after the first.
pub(super) fn called_when_all_had_told() -> u64 {
    let (mut group, server) =
        (PoolGroup::default(), ServerIdentity { run: "1".to_owned(), config_fingerprint: 0, allocation: 0 });
    let by = Taker { node: 1, process_number: 1, call: 1 };
    let generation = group.begin(&server, &above(0, by)).generation;
    let last_us = START_US + 100 * MS;
    for (node, wall_us) in [(1, START_US), (2, last_us)] {
        let nodes = BTreeSet::from([1, 2]);
        let (knows_from_us, is_new, slack_us) = (0, false, 2 * ERROR_US);
        let told = Assertion {
            node,
            generation,
            nodes,
            knows_from_us,
            is_new,
            before: Generation::default(),
            wall_us,
            slack_us,
        };
        group.assert(&server, &told);
    }
    let context = group.context(&server, generation, last_us).expect("the same generation");
    let mut pool = Pool::new();
    let granting = Granting { grants: context.grants, unknown_until_us: context.unknown_until_us };
    let first = pool.call_in(1, 100 * MS, KEEPS_NOTHING, ALL, granting).expect("an answer");
    first.part.units - first.owed
}

/// How often a call under an earlier allocation changes the state of a later one.
pub(super) fn calls_under_an_earlier_allocation() -> u64 {
    let by = |call| Taker { node: 1, process_number: 1, call };
    let server = |allocation| ServerIdentity { run: "1".to_owned(), config_fingerprint: 0, allocation };
    let mut group = PoolGroup::default();
    let known = group.begin(&server(1), &above(0, by(1)));
    // The group's pools go on under the next allocation, and only under this one.
    assert_eq!(group.begin(&server(2), &above(1, by(2))), known);
    assert_eq!(group.known(&server(1)).generation.number, 0);
    let nothing = group.begin(&server(1), &above(1, by(3))).generation.number == 0;
    let nothing_above = group.begin(&server(1), &above(9, by(4))).generation.number == 0;
    // Another server has heard of no allocation.
    let elsewhere = ServerIdentity { run: "2".to_owned(), ..server(1) };
    [
        nothing,
        nothing_above,
        group.known(&server(2)) == known,
        group.begin(&elsewhere, &above(9, by(5))).generation.number > 0,
    ]
    .into_iter()
    .map(|is_so| u64::from(!is_so))
    .sum()
}

#[test]
fn a_call_under_an_earlier_allocation_changes_no_later_state() {
    assert_eq!(calls_under_an_earlier_allocation(), 0);
}

#[test]
fn reports_and_grants_stay_valid_under_a_later_allocation() {
    let server =
        |run: &str, allocation| ServerIdentity { run: run.to_owned(), config_fingerprint: 0, allocation };
    let by = |call| Taker { node: 1, process_number: 1, call };
    let told = |group: &PoolGroup, node, allocation| {
        let generation = group.known(&server("1", allocation)).generation;
        let (nodes, wall_us) = (BTreeSet::from([1, 2]), START_US);
        let (before, knows_from_us) = (Generation::default(), START_US);
        Assertion { node, generation, nodes, knows_from_us, is_new: false, before, wall_us, slack_us: 0 }
    };
    let mut group = PoolGroup::default();
    group.begin(&server("1", 0), &above(0, by(1)));
    let first = told(&group, 1, 0);
    group.assert(&server("1", 0), &first);
    // A node's report counts under the next allocation, too, and a granting generation goes on granting.
    group.begin(&server("1", 5), &above(1, by(2)));
    assert!(!group.known(&server("1", 5)).grants);
    let second = told(&group, 2, 5);
    assert!(group.assert(&server("1", 5), &second).grants);
    let before = group.context(&server("1", 5), second.generation, START_US);
    assert!(group.begin(&server("1", 6), &above(1, by(3))).grants);
    assert_eq!(group.context(&server("1", 6), second.generation, START_US), before);
    assert_eq!(group.context(&server("1", 5), second.generation, START_US), None);
    // Pools stop if a server may have forgotten, or knew less than the caller has heard of.
    assert!(!group.clone().begin(&server("2", 7), &above(1, by(4))).grants);
    assert!(!group.begin(&server("1", 7), &above(2, by(4))).grants);
}

#[test]
fn units_spent_before_the_last_report_are_owed_despite_earlier_calls() {
    assert_eq!(called_before_all_had_told(), 0);
    assert_eq!(called_when_all_had_told(), 0);
}

/// A fully owed pool has far fewer units for a moment. Returns the units without debt that it has afterwards.
pub(super) fn owed_of_fewer_and_of_more() -> u64 {
    let meter = Meter::new(Rate::parse("1000/d").expect("a rate"), 1_000);
    let params = |units| {
        let part = Part { rate: RATE_PARTS / 1_000 * units as u32, units };
        BucketParams::of(&meter, part, slack_us(ERROR_US * 1_000, 0)).expect("parameters")
    };
    let all = |units| Part { rate: 0, units };
    let mut pool = Pool::of(810);
    let calls = [(810, KEEPS_NOTHING, all(810)), (810, KEEPS_NOTHING, NOTHING), (1, KEEPS_NOTHING, all(1))];
    for (number, (units, keeps, wanted)) in (1..).zip(calls) {
        pool.params = params(units);
        pool.call(1, number * MS, keeps, wanted).expect("an answer");
    }
    pool.params = params(810);
    let got = pool.call(1, 10 * MS, KEEPS_NOTHING, all(810)).expect("an answer");
    got.part.units - got.owed
}

#[test]
fn debt_stays_owed_after_the_limit_was_lower_for_a_moment() {
    assert_eq!(owed_of_fewer_and_of_more(), 0);
}

#[test]
fn debt_under_a_higher_limit_is_owed_when_the_limit_is_raised_again() {
    let mut pool = Pool::of(MANY);
    let all = Part { rate: RATE_PARTS, units: MANY };
    let many = pool.params;
    let meter = Meter::new(Rate::parse("1000/s").expect("a rate"), UNITS);
    pool.params = BucketParams::of(&meter, ALL, slack_us(ERROR_US * 1_000, 0)).expect("parameters");
    let granting = Granting { grants: true, unknown_until_us: START_US };
    let few = pool.call_in(1, MS, KEEPS_NOTHING, NOTHING, granting).expect("an answer");
    assert_eq!(few.left, 0);
    pool.params = many;
    let more = pool.call_in(1, 20 * MS, KEEPS_NOTHING, all, granting).expect("an answer");
    // 20 ms earn 20 units.
    assert!(more.part.units - more.owed <= 20, "{more:?}");
}

/// Two nodes withdraw units; then the second loses its disk and begins a generation at the server. The first
/// reports the generation it had heard of before. Returns the group's status, and the units that the second
/// receives from the window and from a bucket.
fn goes_on_with(before: Option<Generation>) -> (GroupStatus, u64, u64) {
    let server = ServerIdentity { run: "1".to_owned(), config_fingerprint: 0, allocation: 0 };
    let by = |node, call| Taker { node, process_number: 1, call };
    let mut group = PoolGroup::default();
    let first = group.begin(&server, &above(0, by(1, 1)));
    let told = |node, generation, before: Generation, wall_us| {
        let nodes = BTreeSet::from([1, 2]);
        let (knows_from_us, is_new) =
            (wall_us, before == Generation::default() && generation == first.generation);
        Assertion { node, generation, nodes, knows_from_us, is_new, before, wall_us, slack_us: 0 }
    };
    for node in [1, 2] {
        group.assert(&server, &told(node, first.generation, Generation::default(), START_US));
    }
    let (mut pool, mut window) = (Pool::new(), Window::default());
    let take = |node, process_number, wanted| window::Take {
        taker: Taker { node, process_number, call: 1 },
        taken: 0,
        returned: 0,
        wanted,
        needed: 1,
        reserved: 0,
        total: window::Total::Open(2 * UNITS),
        begins_us: START_US,
        drops_us: START_US + 60_000 * MS,
    };
    let context = group.context(&server, first.generation, START_US + MS).expect("it grants");
    let took = window.take(&take(1, 1, UNITS), &context).expect("an answer");
    assert!(took.taken > 0);

    let begin = Begin { heard: first.generation.number + 1, by: by(2, 1), goes_on: true };
    let second = group.begin(&server, &begin).generation;
    let wall_us = START_US + 2 * MS;
    let before = before.unwrap_or(first.generation);
    assert!(!group.assert(&server, &told(1, second, before, wall_us)).grants);
    assert!(!group.assert(&server, &told(2, second, Generation::default(), wall_us)).grants);
    let known = group.assert(&server, &told(1, second, before, wall_us));
    if known.generation.number == 0 {
        return (known, 0, 0);
    }
    let context = group.context(&server, second, START_US + 3 * MS).expect("it grants");
    let exchange = Exchange {
        taker: by(2, 1),
        keeps: NOTHING,
        tokens: 0,
        wanted: ALL,
        needed: 0,
        reserved: 0,
        keep_us: 1_000 * MS,
    };
    let got = pool.bucket.exchange(&exchange, &pool.params, &context).expect("an answer");
    let took = window.take(&take(2, 7, 1), &context).expect("an answer");
    (known, took.taken, got.part.units - got.owed)
}

#[test]
fn a_pool_keeps_its_units_if_another_node_confirms_its_state() {
    let (known, of_window, of_bucket) = goes_on_with(None);
    assert!(known.grants && known.generation.number == 3 && known.since.number == 1, "{known:?}");
    assert_eq!(of_window, 1);
    assert_eq!(of_bucket, UNITS);
    // A node that has heard of another generation since, or of none, cannot confirm.
    let other = Generation { number: 2, by: Taker { node: 2, process_number: 1, call: 9 } };
    for before in [Generation::default(), other] {
        let (known, of_window, of_bucket) = goes_on_with(Some(before));
        assert!(!known.grants && known.since.number == 0, "{known:?}");
        assert_eq!((of_window, of_bucket), (0, 0), "{before:?}");
    }
}

#[test]
fn a_node_that_reported_and_is_gone_does_not_block_a_generation() {
    let server = ServerIdentity { run: "1".to_owned(), config_fingerprint: 0, allocation: 0 };
    let by = |node, call| Taker { node, process_number: 1, call };
    let mut group = PoolGroup::default();
    let told = |node, generation, before| {
        let nodes = BTreeSet::from([1, 2]);
        let (knows_from_us, wall_us) = (START_US, START_US);
        Assertion { node, generation, nodes, knows_from_us, is_new: false, before, wall_us, slack_us: 0 }
    };
    let first = group.begin(&server, &above(0, by(1, 1))).generation;
    for node in [1, 2] {
        group.assert(&server, &told(node, first, Generation::default()));
    }
    let second = group.begin(&server, &Begin { heard: 2, by: by(2, 1), goes_on: true }).generation;
    group.assert(&server, &told(1, second, first));
    let stranger = told(2, second, Generation::default());
    assert!(!group.assert(&server, &stranger).grants);
    // The first node is gone before it repeats its report.
    assert_eq!(group.assert(&server, &stranger).generation, second);
    let gone = Excluded { nodes: BTreeSet::from([1]), keep_us: MS };
    assert_eq!(group.assert_without(&server, &stranger, &gone).generation.number, 0);
    let third = group.begin(&server, &above(second.number, by(2, 2))).generation;
    assert!(group.assert_without(&server, &told(2, third, second), &gone).grants);
}

/// Two nodes, or only the second, report whether they are new. Returns until when windows are forfeited, and
/// whether the generation is a first.
fn burned_where(is_new: [bool; 2], excluded: &[u16]) -> (u64, bool) {
    let server = ServerIdentity { run: "1".to_owned(), config_fingerprint: 0, allocation: 0 };
    let by = |node, call| Taker { node, process_number: 1, call };
    let mut group = PoolGroup::default();
    group.begin(&server, &Begin { heard: 7, by: by(1, 1), goes_on: true });
    // The second node accepts no generation that began before the node did.
    let known = group.begin(&server, &Begin { heard: 9, by: by(2, 1), goes_on: true });
    assert!(known.is_first && known.since == known.generation, "{known:?}");
    let excluded = Excluded { nodes: excluded.iter().copied().collect(), keep_us: 0 };
    for (node, is_new) in [1, 2].into_iter().zip(is_new).filter(|(node, _)| !excluded.nodes.contains(node)) {
        let (generation, nodes, before) = (known.generation, BTreeSet::from([1, 2]), Generation::default());
        // The second node has lost its earlier withdrawals.
        let knows_from_us = if node == 1 { 0 } else { START_US };
        let wall_us = START_US;
        let assertion =
            Assertion { node, generation, nodes, knows_from_us, is_new, before, wall_us, slack_us: 0 };
        group.assert_without(&server, &assertion, &excluded);
    }
    let known = group.known(&server);
    let context = group.context(&server, known.generation, START_US).expect("it is known");
    assert!(known.grants);
    (context.forfeited_before_us, known.is_first)
}

#[test]
fn a_region_is_new_only_if_all_its_nodes_are_new() {
    assert_eq!(burned_where([true, true], &[]), (0, true));
    // Nobody knows whether some went to another server before the first generation granted here.
    assert_eq!(burned_where([false, true], &[]), (START_US, false));
    assert_eq!(burned_where([true, true], &[1]), (START_US, false));
}

/// All of an open window was taken elsewhere. Two nodes without disks find a server that hung meanwhile.
/// Returns the units they receive.
pub(super) fn two_without_disks() -> u64 {
    let server = ServerIdentity { run: "1".to_owned(), config_fingerprint: 0, allocation: 0 };
    let by = |node, call| Taker { node, process_number: 2, call };
    let mut group = PoolGroup::default();
    let mut all_tell = |begin: &Begin, is_new, wall_us| {
        let generation = group.begin(&server, begin).generation;
        for node in [1, 2, 1] {
            let (nodes, before) = (BTreeSet::from([1, 2]), Generation::default());
            let knows_from_us = wall_us;
            group.assert(
                &server,
                &Assertion { node, generation, nodes, knows_from_us, is_new, before, wall_us, slack_us: 0 },
            );
        }
        (generation, group.context(&server, generation, wall_us))
    };
    let (first, _) = all_tell(&above(0, by(1, 1)), true, START_US);
    let begin = Begin { heard: first.number + 1, by: by(2, 1), goes_on: true };
    let (_, context) = all_tell(&begin, false, START_US + 10 * MS);
    let Some(context) = context else { return 0 };
    let take = window::Take {
        taker: by(2, 2),
        taken: 0,
        returned: 0,
        wanted: UNITS,
        needed: 1,
        reserved: 0,
        total: window::Total::Open(UNITS),
        begins_us: START_US + MS,
        drops_us: START_US + 60_000 * MS,
    };
    Window::default().take(&take, &context).expect("an answer").taken
}

/// Calls for one window in turn: the caller and its statement about the pool. Returns what each call takes.
fn taken_of_one_window(calls: &[(u16, window::Total)]) -> Vec<u64> {
    let server = ServerIdentity { run: "1".to_owned(), config_fingerprint: 0, allocation: 0 };
    let mut group = PoolGroup::default();
    let by = |node, call| Taker { node, process_number: 1, call };
    let begin = Begin { heard: 0, by: by(1, 1), goes_on: false };
    let generation = group.begin(&server, &begin).generation;
    let (nodes, before) = (BTreeSet::from([1]), Generation::default());
    let (wall_us, is_new) = (START_US, true);
    let told =
        Assertion { node: 1, generation, nodes, knows_from_us: 0, is_new, before, wall_us, slack_us: 0 };
    assert!(group.assert(&server, &told).grants);
    let context = group.context(&server, generation, START_US).expect("it grants");
    let mut window = Window::default();
    let take = |(number, (node, total)): (usize, &(u16, window::Total))| {
        let take = window::Take {
            taker: by(*node, 2 + number as u64),
            taken: 0,
            returned: 0,
            wanted: UNITS,
            needed: 1,
            reserved: 0,
            total: *total,
            begins_us: START_US,
            drops_us: START_US + 60_000 * MS,
        };
        window.take(&take, &context).expect("an answer").taken
    };
    calls.iter().enumerate().map(take).collect()
}

/// A node's number for a window that has not begun may be more than the window will have.
pub(super) fn who_comes_later_takes_before_anybody_is_in_the_window() -> u64 {
    taken_of_one_window(&[(1, window::Total::Ahead(UNITS)), (2, window::Total::AsSaid(UNITS))])[1]
}

#[test]
fn a_later_caller_takes_by_the_latest_total_stated_in_the_window() {
    use window::Total::{AsSaid, Open};
    assert_eq!(who_comes_later_takes_before_anybody_is_in_the_window(), 0);
    let as_said = AsSaid(UNITS);
    let taken =
        taken_of_one_window(&[(2, as_said), (1, Open(UNITS)), (2, as_said), (1, Open(0)), (3, as_said)]);
    assert!(taken[2] > 0 && taken[1] + taken[2] <= UNITS, "{taken:?}");
    assert_eq!((taken[0], taken[4]), (0, 0), "nothing was said, and nothing is there any more");
}

/// A window call was made when the limit was larger, and arrives after a later call under the smaller limit.
/// Returns what the node then has.
pub(super) fn a_call_of_more_comes_late() -> u64 {
    let context =
        granting(Generation { number: 1, by: Taker { node: 1, process_number: 1, call: 1 } }, START_US);
    let mut window = Window::default();
    let mut take = |call, wanted, total| {
        let take = window::Take {
            taker: Taker { node: 1, process_number: 1, call },
            taken: 0,
            returned: 0,
            wanted,
            needed: 0,
            reserved: 0,
            total: window::Total::Ahead(total),
            begins_us: START_US + 1_000 * MS,
            drops_us: START_US + 60_000 * MS,
        };
        window.take(&take, &context).expect("an answer").taken
    };
    assert_eq!(take(2, 0, UNITS), 0);
    take(1, 100 * UNITS, 100 * UNITS);
    take(3, 0, UNITS)
}

#[test]
fn a_window_call_that_arrives_after_a_later_one_gets_nothing() {
    assert_eq!(a_call_of_more_comes_late(), 0);
}

#[test]
fn nodes_without_disks_get_nothing_from_a_server_that_hung() {
    assert_eq!(two_without_disks(), 0);
}
