//! A server was replaced and lives on. Some nodes reach only the old server.

use super::{bucket, settled, sliding, window};
use crate::{
    pools::{Way, World},
    scene::{MS, S},
};

#[test]
fn a_restarted_node_gets_nothing_from_a_replaced_server() {
    begun_again(false, World::crash);
}

#[test]
fn a_node_with_a_full_disk_gets_nothing_from_a_replaced_server() {
    begun_again(true, World::crash);
}

#[test]
fn a_node_that_lost_its_disk_gets_nothing_from_a_replaced_server() {
    begun_again(false, World::lose_disk);
}

/// A server is replaced by its replica and lives on. A node that restarts reaches only the old server.
pub(crate) fn begun_again(is_disk_full: bool, ends: impl FnOnce(&mut World, usize)) {
    let mut world = settled(2, window("w", 100, "10s"));
    world.nodes[0].is_disk_full = is_disk_full;
    let replaced = world.server.clone();
    world.server.restart(Some(&replaced));
    world.old = Some(replaced);
    // Both hear of the new server, and it grants again.
    world.pass(30 * S);
    ends(&mut world, 0);
    world.nodes[0].is_left_behind = true;
    // Windows that were open when the node started are over.
    world.pass(20 * S);
    for _ in 0..400 {
        world.ask(0, "k", 1);
        world.ask(1, "k", 1);
        world.pass(20 * MS);
    }
    // The ledger counted all that passed. The node that reaches the new server is served.
    world.nodes[0].is_left_behind = false;
    world.nodes[0].is_disk_full = false;
    world.pass(30 * S);
    let before = world.admitted(0, "k");
    for number in 0..30 {
        world.ask_patiently(number % 2, "k", 1);
    }
    let passed = world.admitted(0, "k") - before;
    assert!((11..=30).contains(&passed), "{passed}: no more than guard shares");
}

/// One node reaches the replaced server, another the successor, and the third neither, so the successor
/// cannot grant. The first node uses the old server for longer than a lease lasts. The second node's lease
/// must end everywhere.
pub(crate) fn renewed_elsewhere() {
    for spec in [sliding("s", 100, "2s"), bucket("b", "50/s", 100)] {
        let mut world = settled(3, spec);
        // The second node has most of the pool.
        for _ in 0..2_000 {
            world.ask(1, "k", 1);
            world.pass(5 * MS);
        }
        let replaced = world.server.clone();
        world.server.restart(Some(&replaced));
        world.old = Some(replaced);
        world.nodes[0].is_left_behind = true;
        world.nodes[2].way = Way::CUT;
        for number in 0..20_000 {
            world.ask(1, "k", 1);
            if number % 2 == 0 {
                world.ask(0, "k", 1);
            }
            world.pass(5 * MS);
        }
        // Then all reach the successor, and it grants.
        (world.nodes[0].is_left_behind, world.nodes[2].way) = (false, Way::GOOD);
        for number in 0..4_000 {
            world.ask(number % 3, "k", 1);
            world.pass(5 * MS);
        }
        world.expect_granting("at the end");
    }
}

#[test]
fn a_generation_that_does_not_grant_renews_no_lease() {
    renewed_elsewhere();
}
