//! What nodes withdraw from pools: it outlives their restarts, and a store that forgot hears of it.

use acequia_node::pool::GROUPS;

use super::{GUARD, settled};
use crate::{
    pools::{Way, World},
    scene::{MS, S, bucket, sliding, window},
};

/// Two nodes of a new region. The first withdraws 45 of 100 units of an hour.
fn taken_by_the_first() -> World {
    let mut world = World::of_new(2, &[window("w", 100, "1h")], GUARD);
    world.pass(6 * S);
    for _ in 0..200 {
        if world.admitted(0, "w") < 45 {
            world.ask_patiently(0, "w", 1);
        }
        world.pass(20 * MS);
    }
    assert_eq!(world.admitted(0, "w"), 45);
    world
}

/// Both nodes ask for all that is left, and pools grant it.
fn use_up(world: &mut World) -> u64 {
    world.pass(30 * S);
    for number in 0..300 {
        world.ask_patiently(number % 2, "w", 1);
        world.pass(20 * MS);
    }
    world.admitted(0, "w")
}

#[test]
fn withdrawals_from_a_window_survive_two_restarts_and_a_lost_store() {
    // Lost: guard shares, what each process had ready, and what its next two calls might have brought.
    // Without rows only 48 would pass.
    let passed = restarted();
    assert!(passed >= 60, "{passed} of 100");
}

/// A node restarts twice. Then the server forgets its state. Returns what passed.
pub(super) fn restarted() -> u64 {
    let mut world = taken_by_the_first();
    for _ in 0..2 {
        world.crash(0);
        world.pass(10 * S);
        world.ask_patiently(0, "w", 1);
    }
    assert_eq!(world.rows(0), 1);
    world.server.restart(None);
    let passed = use_up(&mut world);
    // The window is over, so the row is deleted.
    world.pass(3_700 * S);
    assert_eq!(world.rows(0), 0);
    passed
}

#[test]
fn withdrawals_under_a_removed_limit_do_not_block_grants() {
    let mut world = taken_by_the_first();
    world.retired.clone_from(&world.specs);
    world.renumber(&[window("v", 100, "1h")]);
    world.crash(0);
    assert_eq!(world.rows(0), 1);
    world.server.restart(None);
    world.pass(30 * S);
    world.expect_granting("in the end");
}

#[test]
fn a_restart_with_a_healthy_store_loses_few_units() {
    let mut world = taken_by_the_first();
    world.crash(0);
    let passed = use_up(&mut world);
    assert!(passed >= 80, "{passed} of 100");
}

#[test]
fn a_node_with_a_full_disk_withdraws_nothing() {
    unwritten();
}

/// A node with a full disk is asked for much. It restarts after the server has forgotten its state.
pub(super) fn unwritten() {
    let mut world = World::of_new(2, &[window("w", 100, "1h")], GUARD);
    world.pass(6 * S);
    world.nodes[0].is_disk_full = true;
    for _ in 0..200 {
        world.ask_patiently(0, "w", 1);
        world.pass(20 * MS);
    }
    let passed = world.admitted(0, "w");
    world.nodes[0].is_disk_full = false;
    world.crash(0);
    world.server.restart(None);
    let all = use_up(&mut world);
    assert!(passed <= 10, "{passed}: no more than its guard share");
    assert!(all >= 80, "{all} of 100");
}

#[test]
fn unreported_withdrawals_are_reported_by_the_next_process() {
    untold();
}

/// A node hears that the server has forgotten, but cannot report its withdrawals. It wants more, and
/// restarts.
pub(super) fn untold() {
    let mut world = taken_by_the_first();
    world.server.restart(None);
    let before = world.nodes[0].generations.clone();
    // A call for more units is always under way.
    while world.nodes[0].generations == before {
        world.ask(0, "w", 6);
        world.pass(MS / 20);
    }
    world.nodes[0].way = Way::CUT;
    for _ in 0..50 {
        world.ask(0, "w", 30);
        world.pass(10 * MS);
    }
    world.crash(0);
    world.nodes[0].way = Way::GOOD;
    let all = use_up(&mut world);
    assert!(all >= 45, "{all}");
}

#[test]
fn units_of_unrecorded_withdrawals_are_not_granted_again() {
    unknown();
}

/// A node withdraws from a window and writes nothing down. It restarts after the server has forgotten its
/// state.
pub(super) fn unknown() {
    let mut world = settled(2, window("w", 100, "100s"));
    // Wait for a window that began after both nodes started.
    while !world.ask_patiently(0, "w", 11) {
        world.pass(S);
    }
    for _ in 0..200 {
        world.ask_patiently(0, "w", 1);
        world.pass(20 * MS);
    }
    let passed = world.admitted(0, "w");
    world.crash(0);
    world.server.restart(None);
    let all = use_up(&mut world);
    assert!(passed >= 80, "{passed} of 100");
    assert!(all <= 100, "{all} of 100");
}

#[test]
fn after_a_store_loss_nodes_report_leases_before_the_pool_grants() {
    for (spec, pause) in [(bucket("k", "100/s", 100), 17), (sliding("k", 100, "20s"), 18)] {
        let mut world = settled(2, spec);
        // One node has nearly all of the pool.
        for _ in 0..2_000 {
            world.ask(0, "k", 1);
            world.pass(10 * MS);
        }
        // The node hears that the server has forgotten, but cannot report what it holds.
        world.server.restart(None);
        let tag = world.nodes[0].asker.last().0.limits[0].tag;
        let group = (tag.0 % u128::from(GROUPS)) as usize;
        let before = world.nodes[0].generations[group];
        while world.nodes[0].generations[group] == before {
            world.pass(MS / 50);
        }
        world.nodes[0].way = Way::CUT;
        // Nobody asks for a long time, so the node would give back what it holds. Then its link works just
        // long enough for its report.
        world.pass(pause * S);
        world.nodes[0].way = Way::GOOD;
        for _ in 0..200 {
            if world.nodes[1].node.lease_counts().granting == u64::from(GROUPS) {
                break;
            }
            world.pass(3 * MS);
        }
        world.nodes[0].way = Way::CUT;
        for _ in 0..8_000 {
            world.ask(0, "k", 1);
            world.ask(1, "k", 1);
            world.pass(5 * MS);
        }
        world.nodes[0].way = Way::GOOD;
        world.pass(100 * S);
        assert!(world.ask_patiently(1, "k", 1), "pools grant again");
    }
}
