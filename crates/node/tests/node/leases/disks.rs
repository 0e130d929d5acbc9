//! Nodes that lose their disks.

use super::GUARD;
use crate::{
    pools::{Way, World},
    scene::{MS, S, bucket, window},
};

#[test]
fn spent_units_stay_spent_if_a_node_loses_its_disk_and_the_store_its_state() {
    lost();
}

/// Everything is spent. Then one node loses its disk, and the server its state.
pub(super) fn lost() {
    let mut world = World::of_new(2, &[window("w", 100, "1h"), bucket("b", "1/h", 100)], GUARD);
    world.pass(6 * S);
    for number in 0..300 {
        world.ask_patiently(number % 2, ["w", "b"][number / 2 % 2], 1);
    }
    world.lose_disk(0);
    world.server.restart(None);
    world.pass(30 * S);
    for number in 0..300 {
        world.ask_patiently(number % 2, ["w", "b"][number / 2 % 2], 1);
    }
}

/// Two nodes lose their disks and come back one after the other. Each makes the server begin a generation
/// that continues the pool's state, but cannot confirm that nothing was forgotten. The first node can,
/// because it has heard of both. It may restart in between, with its disk. Returns how many of 900 units
/// pass.
fn two_come_back(apart_ns: u64, begins_again: bool) -> u64 {
    let mut world = World::of_new(3, &[window("w", 900, "1h")], GUARD);
    world.pass(6 * S);
    for _ in 0..100 {
        world.ask_patiently(0, "k", 1);
    }
    world.nodes[2].way = Way::CUT;
    world.lose_disk(1);
    world.pass(apart_ns);
    if begins_again {
        world.crash(0);
        world.pass(apart_ns);
    }
    world.lose_disk(2);
    world.nodes[2].way = Way::GOOD;
    world.pass(20 * S);
    world.expect_granting("when both are back");
    for number in 0..1_800 {
        world.ask_patiently(number % 3, "k", 1);
    }
    world.admitted(0, "k")
}

#[test]
fn two_nodes_that_lose_their_disks_cost_pools_only_their_guard_shares() {
    for apart_ns in [0, 5 * MS, 100 * MS, 10 * S] {
        // Except for the guard shares of the two: nobody knows whether they were used.
        let passed = two_come_back(apart_ns, false);
        assert!((820..=900).contains(&passed), "{apart_ns} ns: {passed} of 900");
    }
}

#[test]
fn a_restarted_node_still_confirms_the_pool_when_mates_lose_disks() {
    for apart_ns in [5 * MS, 100 * MS, 10 * S] {
        // Except for its guard share, and what its last two calls might have brought.
        let passed = two_come_back(apart_ns, true);
        assert!((650..=900).contains(&passed), "{apart_ns} ns: {passed} of 900");
    }
}

#[test]
fn a_node_that_lost_its_disk_gets_nothing_again_from_the_first_server() {
    for is_left_behind in [true, false] {
        begun_elsewhere(is_left_behind);
    }
}

/// A region's first node begins its groups and reports them. Then another server takes over, and the old one
/// lives on. Everything is spent. The second node loses its disk and reaches the old server, either alone or
/// together with the first node.
fn begun_elsewhere(is_left_behind: bool) {
    let mut world = World::of_new(2, &[window("w", 100, "1h")], GUARD);
    world.nodes[1].way = Way::CUT;
    world.pass(6 * S);
    let first = world.server.clone();
    world.server.restart(None);
    world.nodes[1].way = Way::GOOD;
    world.pass(12 * S);
    world.expect_granting("where another server is");
    for number in 0..300 {
        world.ask_patiently(number % 2, "w", 1);
    }
    assert!(world.admitted(0, "w") >= 95);
    match is_left_behind {
        true => world.old = Some(first),
        false => world.server = first,
    }
    world.lose_disk(1);
    world.nodes[1].is_left_behind = is_left_behind;
    for number in 0..300 {
        world.ask_patiently(number % 2, "w", 1);
        world.pass(200 * MS);
    }
}

#[test]
fn spent_units_stay_spent_if_a_node_without_a_disk_starts_an_empty_store() {
    lost_where_all_was_begun();
}

/// Everything is spent when one node loses its disk and an empty server takes over.
pub(super) fn lost_where_all_was_begun() {
    let mut world = World::of_new(3, &[window("w", 300, "1h")], GUARD);
    world.pass(6 * S);
    for number in 0..900 {
        world.ask_patiently(number % 3, "w", 1);
    }
    // The third node begins the groups on the empty server.
    world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
    world.lose_disk(2);
    world.server.restart(None);
    world.nodes[2].way = Way::GOOD;
    world.pass(6 * S);
    world.nodes.iter_mut().for_each(|at| at.way = Way::GOOD);
    world.pass(30 * S);
    for number in 0..900 {
        world.ask_patiently(number % 3, "w", 1);
    }
}

#[test]
fn pools_grant_again_after_all_disks_are_lost() {
    for forgets in [false, true] {
        let mut world = World::of_new(3, &[window("w", 300, "10s")], GUARD);
        world.pass(6 * S);
        for place in [0, 1, 2] {
            world.ask_patiently(place, "w", 1);
        }
        (0..3).for_each(|place| world.lose_disk(place));
        if forgets {
            world.server.restart(None);
        }
        world.pass(30 * S);
        world.expect_granting("when all are back");
    }
}

/// The row that a call for units waits for is written first. The node must remember the request's shortage
/// meanwhile. With few units nothing is withdrawn in advance, so a call that does not state a shortage brings
/// nothing.
#[test]
fn the_first_request_of_a_window_passes_once_its_row_is_on_disk() {
    let mut world = World::kept(3, &[window("w", 8, "10s")], GUARD, 1);
    world.is_prompt = true;
    (0..3).for_each(|place| while world.ask(place, "k", 1) {});
    world.pass(62 * S);
    let mut denied = 0;
    for number in 0..9 {
        let key = format!("cold{number}");
        if world.ask(number % 3, &key, 1) {
            // The cell's guard unit is at this node.
            continue;
        }
        denied += 1;
        world.pass(20 * MS);
        assert!(world.ask(number % 3, &key, 1), "what was missed has come");
    }
    assert!(denied > 3, "{denied}");
}
