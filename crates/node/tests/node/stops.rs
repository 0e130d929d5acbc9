//! Nodes of one region that are stopped and restart. Only what they could not give back is lost.

use crate::pools::{Stop, Way, World};
use crate::scene::{self, MS, S, bucket, sliding, slots, window};
use acequia_limits::{Request, limit::LimitSpec};
use acequia_node::{Ask, MEMORY_BYTES_MIN};

/// Sum of all guard shares, in percent.
const GUARD: u8 = 40;

/// One of two nodes' guard share of a limit of 1000.
const SHARE: u64 = 200;

fn algorithms() -> [LimitSpec; 4] {
    [
        window("l", 1_000, "1000s"),
        bucket("l", "1/h", 1_000),
        sliding("l", 1_000, "1000s"),
        slots("l", 1_000, "1000s", 8),
    ]
}

/// A node that has only its guard share. What is left at a stop is left after the restart, and no more.
#[test]
fn a_guard_share_is_the_same_before_and_after_a_clean_stop() {
    for spec in algorithms() {
        let mut world = World::of_new(2, std::slice::from_ref(&spec), GUARD);
        world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
        for part in 1..=4 {
            let before = world.admitted(0, "k");
            for _ in 0..SHARE / 4 {
                assert!(world.ask(0, "k", 1), "{spec:?}: after {before}");
            }
            assert_eq!(world.admitted(0, "k"), part * SHARE / 4, "{spec:?}");
            world.stop(0, Stop::CALM);
            world.pass(2 * S);
        }
        // Slots reserve a little more than was asked for. The bucket has earned less than a unit.
        assert!(!world.ask(0, "k", 1), "{spec:?}: {}", world.admitted(0, "k"));
        // A crash forgets, and so does the stop after it. Cells that were not asked for count as spent, too.
        world.crash(0);
        world.stop(0, Stop::CALM);
        assert!(!world.ask(0, "k", 1) && !world.ask(0, "another", 1), "{spec:?}");
    }
}

/// Two nodes use a limit, and are stopped one after the other when half is used. Returns what passed in all.
fn restarted_one_by_one(spec: &LimitSpec, way: Way) -> u64 {
    let mut world = World::of_new(2, std::slice::from_ref(spec), GUARD);
    world.pass(S);
    let passes = |world: &mut World, units: u64| {
        for number in 0..units {
            world.ask_patiently((number % 2) as usize, "k", 1);
            world.pass(MS);
        }
    };
    passes(&mut world, 400);
    for place in [0, 1] {
        world.nodes[place].way = way;
        world.stop(place, Stop::CALM);
        world.nodes[place].way = Way::GOOD;
        passes(&mut world, 100);
    }
    world.pass(2 * S);
    passes(&mut world, 2_000);
    world.admitted(0, "k")
}

#[test]
fn nodes_that_are_stopped_one_by_one_lose_few_units() {
    for spec in [window("l", 1_000, "1000s"), bucket("l", "1/h", 1_000)] {
        let all = restarted_one_by_one(&spec, Way::GOOD);
        assert_eq!(all, 1_000, "{spec:?}");
    }
    // A sliding window's used pool units stay with the stopped node until they expire, and count as used
    // there.
    let all = restarted_one_by_one(&sliding("l", 1_000, "1000s"), Way::GOOD);
    assert!(all >= 900, "{all}");
}

/// The store is out of reach when the nodes stop. The window loses what they held of the pool, and no more.
#[test]
fn nodes_stopped_without_the_store_lose_only_units_they_held() {
    let all = restarted_one_by_one(&window("l", 1_000, "1000s"), Way::CUT);
    assert!((700..=1_000).contains(&all), "{all}");
}

/// One node spends its guard share beside its pool units, gives back what it can while it is stopped, and
/// restarts.
fn spent_beside_the_pool(seed: u64) {
    let mut world = World::of_new(2, &[window("l", 100, "1000s")], GUARD);
    world.pass(S);
    for round in 0..6 {
        for _ in 0..world.below(30) {
            world.ask_patiently(0, "k", 1);
            let pause = world.below(100 * MS);
            world.pass(pause);
        }
        world.stop(0, Stop { gives_ns: (seed + round) % 3 * 100 * MS, pause_ns: 0 });
    }
    for number in 0..200 {
        world.ask_patiently(number % 2, "k", 1);
        world.pass(10 * MS);
    }
}

#[test]
fn units_returned_at_a_stop_are_not_spent_again_by_the_node() {
    (1..=20).for_each(spent_beside_the_pool);
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::{Mutation, break_rule};
    for rule in [Mutation::LeaseStopsBeforeReturns, Mutation::StoppedTwice] {
        break_rule(Some(rule));
        let seeds = 1..=40;
        let found = seeds.into_iter().find(|seed| {
            let story = || match rule {
                Mutation::StoppedTwice => stopped_and_crashed(),
                _ => spent_beside_the_pool(*seed),
            };
            std::panic::catch_unwind(story).is_err()
        });
        break_rule(None);
        let seed = found.unwrap_or_else(|| panic!("{rule:?} can be left out unnoticed"));
        println!("{:<24} {seed}", format!("{rule:?}"));
    }
}

/// A clean stop's rows are valid once. If a process starts from the rows, spends and crashes, its successor
/// must have nothing.
fn stopped_and_crashed() {
    let mut world = World::of_new(2, &[window("l", 1_000, "1000s")], GUARD);
    world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
    (0..SHARE / 2).for_each(|_| assert!(world.ask(0, "k", 1)));
    world.stop(0, Stop::AT_ONCE);
    while world.ask(0, "k", 1) {}
    world.crash(0);
    world.stop(0, Stop::AT_ONCE);
    while world.ask(0, "k", 1) {}
    assert!(world.admitted(0, "k") <= SHARE, "{}", world.admitted(0, "k"));
}

#[test]
fn rows_of_a_clean_stop_count_for_one_start_only() {
    stopped_and_crashed();
}

/// One node has spent its guard share and crashes. Then it is stopped and restarted while limits change.
fn crashed_and_stopped(change: impl Fn(&mut World)) {
    for spec in algorithms() {
        let mut world = World::of_new(2, std::slice::from_ref(&spec), GUARD);
        world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
        while world.ask(0, "k", 1) {}
        assert!(world.admitted(0, "k") >= SHARE * 4 / 5, "{spec:?}");
        world.crash(0);
        change(&mut world);
        let before = world.admitted(0, "k");
        for _ in 0..3 * SHARE {
            world.ask(0, "k", 1);
        }
        let all = world.admitted(0, "k");
        assert!(all <= before, "{spec:?}: {all}, and {before} was all");
    }
}

#[test]
fn a_guard_share_forgotten_by_a_crash_stays_spent_after_clean_stops() {
    crashed_and_stopped(|world| world.stop(0, Stop::CALM));
    // Two stops; then also limits that are lowered and raised between them.
    crashed_and_stopped(|world| {
        world.stop(0, Stop::CALM);
        world.stop(0, Stop::CALM);
    });
    crashed_and_stopped(|world| {
        let specs = world.specs.clone();
        let half = |spec: &LimitSpec| {
            let mut spec = spec.clone();
            spec.fixed_window.iter_mut().for_each(|window| window.limit /= 2);
            spec.sliding_window.iter_mut().for_each(|window| window.limit /= 2);
            spec.token_bucket.iter_mut().for_each(|bucket| bucket.burst /= 2);
            spec
        };
        world.renumber(&specs.iter().map(half).collect::<Vec<_>>());
        world.ask(0, "k", 1);
        world.stop(0, Stop::CALM);
        world.renumber(&specs);
    });
    // The rows of a removed limit are older than the crash.
    crashed_and_stopped(|world| {
        let specs = world.specs.clone();
        world.stop(0, Stop::CALM);
        world.renumber(&[]);
        world.pass(S);
        world.crash(0);
        world.stop(0, Stop::CALM);
        world.renumber(&specs);
    });
    // The limit is not in force when the node stops.
    crashed_and_stopped(|world| {
        let specs = world.specs.clone();
        world.renumber(&[]);
        world.pass(S);
        world.stop(0, Stop::CALM);
        world.renumber(&specs);
    });
}

/// Between a crash and a stop the node was not asked for a key. Its guard share denies the key, but the pool
/// grants units.
#[test]
fn a_node_stopped_after_a_crash_gets_units_of_the_pool() {
    let mut world = World::of_new(2, &[window("l", 1_000, "1000s")], GUARD);
    world.pass(S);
    world.crash(0);
    world.stop(0, Stop::CALM);
    world.pass(S);
    (0..400).for_each(|_| {
        world.ask_patiently(0, "k", 1);
        world.pass(5 * MS);
    });
    assert!(world.admitted(0, "k") >= 350, "{}", world.admitted(0, "k"));
}

/// A node restarts with less memory than its cells need. An earlier process recorded window withdrawals on
/// its disk. Mates and the group's other cells do not wait for reports on cells without room.
#[test]
fn a_node_without_room_for_cells_with_withdrawals_blocks_no_mate() {
    let by = |name: &str, spec| LimitSpec { when: scene::fields(&[("key", &[&format!("{name}*")])]), ..spec };
    let specs = [by("k", window("w", 1_000, "1000s")), by("f", bucket("b", "1000/s", 1_000))];
    let mut world = World::kept(2, &specs, GUARD, 1);
    // Windows that nobody knew of are over.
    world.pass(1_010 * S);
    let mut passed = 0;
    for _ in 0..4 * SHARE {
        passed += u64::from(world.ask(0, "k", 1));
        world.pass(MS);
    }
    assert!(passed > 2 * SHARE, "{passed}: some is of the pool");
    world.memory_bytes = MEMORY_BYTES_MIN;
    world.crash(0);
    world.nodes[0].is_hung = true;
    world.pass(2 * S);
    scene::flood(&world.nodes[0].node, "f", world.now(0));
    world.nodes[0].is_hung = false;
    for _ in 0..40 {
        world.pass(500 * MS);
        scene::flood(&world.nodes[0].node, "f", world.now(0));
    }
    world.expect_granting("though there is no room for one cell");
    // Withdrawals by the first process stay spent, also in a new generation, which needs the report again.
    world.server.restart(None);
    for _ in 0..20 {
        world.pass(500 * MS);
        scene::flood(&world.nodes[0].node, "f", world.now(0));
    }
    world.expect_granting("anew");
    while world.ask(1, "k", 1) {
        world.pass(50 * MS);
    }
}

/// A node dies under load. The others obtain all of a window except the dead node's guard share and its
/// unspent pool units.
#[test]
fn a_node_that_dies_costs_only_the_units_that_it_held() {
    for (nodes, a_second) in [(2, 4), (3, 30), (5, 30)] {
        let mut world = World::of_new(nodes, &[window("w", 1_000, "1000s")], 10);
        world.pass(S);
        for number in 0..10 * a_second {
            world.ask_patiently(number as usize % nodes, "k", 1);
            world.pass(S / a_second);
        }
        let now = world.now(0);
        let at = &mut world.nodes[0];
        let answer = at.asker.check(&Request::new("shop", &[("key", "k")]), now, Ask::PEEK);
        let had = answer.limits[0].verdict.remaining;
        (at.is_hung, at.way) = (true, Way::CUT);
        for number in 0..3_000 {
            world.ask_patiently(1 + number % (nodes - 1), "k", 1);
            world.pass(20 * MS);
        }
        let passed = world.admitted(0, "k");
        println!("{nodes} nodes, {a_second}/s: {passed} of 1000 pass, and the dead one had {had}");
        assert!(passed + had >= 1_000, "{nodes} nodes: {passed} passed, and {had} were the dead one's");
        assert!(had <= 100 / nodes as u64 + 80 * a_second / nodes as u64 + 40, "{nodes} nodes: {had}");
    }
}
