//! Nodes of one region that share their limits through pools.

mod bursts;
mod disks;
mod excluded;
mod guard;
mod held;
mod histories;
mod lowered;
mod replaced;
mod shared;
mod withdrawals;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Wake, Waker},
};

use acequia_limits::{
    Request,
    classes::ClassesSpec,
    limit::{BySpec, LimitSpec},
};
use acequia_node::Ask;

use crate::{
    pools::{Way, World},
    scene::{MS, S, bucket, sliding, slots, window},
};

/// Sum of all guard shares, in percent.
const GUARD: u8 = 10;

/// A world of one limit whose pools grant.
fn settled(nodes: usize, spec: LimitSpec) -> World {
    let mut world = World::new(nodes, &[spec], GUARD, 1);
    // Each node has used half of its guard share or was denied, so all nodes know the key's group.
    for place in 0..nodes {
        while world.ask(place, "k", 1) {}
    }
    // Windows that opened before anybody knew of them are over, and buckets are full again.
    world.pass(60 * S);
    world
}

#[test]
fn requests_at_all_nodes_in_turn_get_nearly_the_whole_limit() {
    for spec in [window("w", 10, "10s"), bucket("b", "1/s", 10), sliding("s", 10, "10s")] {
        let name = spec.name.clone();
        let mut world = settled(3, spec);
        let before = world.admitted(0, "k");
        for number in 0..30 {
            world.ask_patiently(number % 3, "k", 1);
        }
        let passed = world.admitted(0, "k") - before;
        assert!((9..=10).contains(&passed), "{name}: {passed} of 10");
    }
}

/// Counts how often the task is woken.
#[derive(Default)]
struct Task(AtomicU32);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_task_that_waits_for_pool_calls_is_woken_once() {
    let mut world = settled(2, window("w", 1_000, "10s"));
    let task = Arc::new(Task::default());
    let waker = Waker::from(Arc::clone(&task));
    let poll = |world: &World| world.nodes[0].node.poll_calls(&Context::from_waker(&waker));
    assert!(poll(&world).is_pending());
    // Half of a guard share, plus one unit.
    while !world.nodes[0].node.calls() {
        assert!(world.ask(0, "k", 1));
    }
    world.ask(0, "k", 1);
    assert_eq!(task.0.load(Ordering::Relaxed), 1);
    assert!(poll(&world).is_ready());
    world.pass(S);
    assert!(poll(&world).is_pending());
}

/// When a node stops, others can use at once what it held, apart from its guard share. This is also true if
/// its first call is lost.
#[test]
fn a_node_that_stops_returns_its_leases_to_the_pool() {
    let specs = || [window("w", 1_000, "40s"), bucket("b", "100/s", 1_000), sliding("s", 1_000, "10s")];
    for (way, spec) in [Way::GOOD, Way::CUT].into_iter().flat_map(|way| specs().map(|spec| (way, spec))) {
        let name = spec.name.clone();
        let mut world = World::new(2, &[spec], GUARD, 1);
        // Windows that opened before anybody knew of them are over, and a new window begins.
        world.pass(80 * S);
        let mut asked = 0;
        // The node holds enough for more than a minute at this rate.
        for _ in 0..400 {
            asked += u64::from(world.ask(0, "k", 1));
            world.pass(25 * MS);
        }
        assert!(world.holding(0, "k").effective.units > 100, "{name}: {:?}", world.holding(0, "k"));
        let node = world.nodes[0].node.clone();
        world.nodes[0].way = way;
        node.leave_pools(world.now(0));
        world.pass(50 * MS);
        world.nodes[0].way = Way::GOOD;
        world.pass(350 * MS);
        assert!(node.has_left_pools(), "{name}");
        let kept = world.holding(0, "k");
        assert!(kept.left <= kept.standing.units, "{name}: nothing of the pool is kept: {kept:?}");
        let begun_ns = world.true_ns;
        let mut passed = 0;
        while world.true_ns < begun_ns + 10 * S {
            passed += u64::from(world.ask(1, "k", 1));
            world.pass(5 * MS);
        }
        let all = if name == "w" { asked + passed } else { passed };
        // In a sliding window, units that a lost call gave back count as used for one more window.
        let least = if name == "s" && way.lost > 0 { 840 } else { 940 };
        assert!(all >= least, "{name}: {asked} before, and {passed} of the rest");
    }
}

#[test]
fn one_busy_node_gets_the_units_that_other_nodes_do_not_use() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 1_000), sliding("s", 1_000, "10s")] {
        let name = spec.name.clone();
        let mut world = settled(2, spec);
        let before = world.admitted(0, "k");
        // 200 a second against a limit of 100 a second, for three windows.
        for _ in 0..6_000 {
            world.ask(0, "k", 1);
            world.pass(5 * MS);
        }
        let passed = world.admitted(0, "k") - before;
        // Everything except the other node's guard share.
        assert!(passed >= 2_820, "{name}: {passed} of 3000 and a burst");
    }
}

/// Splits a demand of twice the limit over nodes by these parts. Returns the percentage of the limit that was
/// used, and decisions a call.
fn utilisation(spec: LimitSpec, a_second: u64, parts: &[u64]) -> (f64, f64) {
    let mut world = settled(parts.len(), spec);
    let all: u64 = parts.iter().sum();
    let mut owed = vec![0; parts.len()];
    let mut run = |world: &mut World, ms: u64| {
        let before = (world.admitted(0, "k"), world.calls);
        for _ in 0..ms {
            for (place, part) in parts.iter().enumerate() {
                owed[place] += 2 * a_second * part;
                while owed[place] >= 1_000 * all {
                    owed[place] -= 1_000 * all;
                    world.ask(place, "k", 1);
                }
            }
            world.pass(MS);
        }
        (world.admitted(0, "k") - before.0, world.calls - before.1)
    };
    run(&mut world, 10_000);
    let (used, calls) = run(&mut world, 20_000);
    (used as f64 / (20 * a_second) as f64, used as f64 / calls as f64)
}

#[test]
fn ten_nodes_use_nearly_the_whole_limit() {
    let even = [1; 10];
    let skewed = [81, 1, 1, 1, 1, 1, 1, 1, 1, 1];
    for (parts, least) in [(even, 0.99), (skewed, 0.97)] {
        for (spec, a_second) in [
            (window("w", 200_000, "10s"), 20_000),
            (bucket("b", "20000/s", 20_000), 20_000),
            (slots("s", 10_000, "5s", 100), 2_000),
        ] {
            let name = spec.name.clone();
            let (used, a_call) = utilisation(spec, a_second, &parts);
            println!("{name} {parts:?}: {used:.4} used, {a_call:.0} decisions a call");
            assert!(used >= least, "{name} {parts:?}: {used:.4} used, {a_call:.0} decisions a call");
        }
    }
}

/// Classes of consumers use what nodes hold of a pool in the same way as a single bucket.
#[test]
fn class_reserves_hold_in_a_pool_that_nodes_share() {
    let classes = r#"{"entry": "plan", "shared": {"gold": "0%", "free": "60%"}}"#;
    let classes: ClassesSpec = serde_json::from_str(classes).expect("classes");
    for spec in [window("w", 1_000, "600s"), bucket("b", "60/h", 1_000), sliding("s", 1_000, "600s")] {
        let by = vec![BySpec::Key("service".into())];
        let name = spec.name.clone();
        let mut world = World::of_new(2, &[LimitSpec { classes: Some(classes.clone()), by, ..spec }], GUARD);
        world.pass(6 * S);
        let mut drain = |plan: &str| {
            let (mut passed, mut idle) = (0, 0);
            while idle < 400 {
                let place = idle % 2;
                let now = world.now(place);
                let request = Request::new("shop", &[("service", "s"), ("plan", plan)]);
                let allowed = world.nodes[place].asker.check(&request, now, Ask::CHECK).allowed;
                (passed, idle) = if allowed { (passed + 1, idle % 2) } else { (passed, idle + 1) };
                world.pass(5 * MS);
            }
            passed
        };
        let free = drain("free");
        let gold = drain("gold");
        // Each node may round up what a class leaves to others.
        assert!((395..=402).contains(&free), "{name}: {free} of 400");
        assert!((990..=1_000).contains(&(free + gold)), "{name}: {free} and {gold} of 1000");
    }
}

#[test]
fn a_new_region_can_spend_its_whole_limit_at_once() {
    for spec in [window("w", 100, "1h"), bucket("b", "1/h", 100), sliding("s", 100, "1h")] {
        let name = spec.name.clone();
        let mut world = World::of_new(2, &[spec], GUARD);
        world.pass(6 * S);
        for number in 0..400 {
            world.ask_patiently(number % 2, "k", 1);
            world.pass(5 * MS);
        }
        let passed = world.admitted(0, "k");
        assert!((95..=100).contains(&passed), "{name}: {passed} of 100");
    }
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::{Mutation, break_rule};
    let rules = [
        Mutation::LeaseOutlivesItsEnd,
        Mutation::LeaseUntold,
        Mutation::LeaseAssertedEarly,
        Mutation::LeaseForgetsGeneration,
        Mutation::LeaseTakesUnwritten,
        Mutation::LeaseForgetsWithdrawals,
        Mutation::LeaseTakesAnyTime,
        Mutation::LeaseWithdrawalsToldEarly,
        Mutation::LeaseTrustsStrangers,
        Mutation::LeaseNewTwice,
        Mutation::LeaseRenewedUngranted,
        Mutation::LeaseTakesUpMore,
        Mutation::LeaseShrinksLate,
        Mutation::LeaseGuardTwice,
        Mutation::LeaseTakenBackEarly,
        Mutation::PoolCountsUnitsAlike,
        Mutation::PoolTrustsTheDead,
        Mutation::PoolGrantsUntold,
        Mutation::PoolAsksOneNode,
        Mutation::PoolBeginsFull,
        Mutation::PoolBurnsNothing,
        Mutation::PoolNewToOne,
        Mutation::PoolExcludesAll,
        Mutation::PoolForfeitsNoExcluded,
        Mutation::RefundWhileShared,
    ];
    std::panic::set_hook(Box::new(|_| ()));
    let find = |rule: Mutation| {
        let told = match rule {
            Mutation::LeaseForgetsGeneration => |_| replaced::begun_again(true, World::crash),
            Mutation::LeaseTrustsStrangers => |_| replaced::begun_again(false, World::lose_disk),
            Mutation::LeaseNewTwice => |_| disks::lost(),
            Mutation::LeaseRenewedUngranted => |_| replaced::renewed_elsewhere(),
            Mutation::LeaseTakesUpMore => {
                |seed| [lowered::under_way, lowered::lost_before][seed as usize % 2]()
            }
            Mutation::LeaseShrinksLate => |_| lowered::ends_by_itself(),
            Mutation::PoolCountsUnitsAlike => |_| lowered::one_after_the_other(),
            Mutation::PoolNewToOne => |_| disks::lost_where_all_was_begun(),
            Mutation::LeaseTakesUnwritten => |_| withdrawals::unwritten(),
            Mutation::LeaseForgetsWithdrawals => |_| assert!(withdrawals::restarted() > 0),
            Mutation::LeaseWithdrawalsToldEarly => |_| withdrawals::untold(),
            Mutation::LeaseTakesAnyTime => |_| excluded::beforehand(300),
            Mutation::PoolBurnsNothing => |_| withdrawals::unknown(),
            Mutation::PoolExcludesAll => |_| excluded::stranded(),
            Mutation::RefundWhileShared => |_| shared::refunded(),
            Mutation::PoolForfeitsNoExcluded => histories::deserted,
            _ => histories::history,
        };
        (1..=150).find(|seed| {
            break_rule(Some(rule));
            let found = std::panic::catch_unwind(|| told(*seed)).is_err();
            break_rule(None);
            found
        })
    };
    // A mutation affects one thread only.
    let next = std::sync::Mutex::new(rules.into_iter());
    let work = || {
        let take = || next.lock().expect("no panic").next();
        std::iter::from_fn(take).map(|rule| (rule, find(rule))).collect::<Vec<_>>()
    };
    let mut found = std::thread::scope(|scope| {
        let others = scope.spawn(work);
        let mut found = work();
        found.extend(others.join().expect("no panic"));
        found
    });
    found.sort_by_key(|(rule, _)| rules.iter().position(|known| known == rule));
    let mut survive = Vec::new();
    for (rule, found) in found {
        match found {
            Some(seed) => println!("{:<24} {seed}", format!("{rule:?}")),
            None => survive.push(rule),
        }
    }
    let _ = std::panic::take_hook();
    assert_eq!(survive, [], "rules that can be left out unnoticed");
}
