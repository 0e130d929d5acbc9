//! Regions whose stores are out of reach.

use super::all;
use crate::{
    pools::{Way, World},
    scene::{MS, S, window},
};

/// Two regions share 40 units in 60 s, and each node keeps four. Their stores have been out of reach for a
/// minute.
fn without_stores() -> World {
    let mut world = World::among_regions(&[2, 2], &[window("w", 40, "60s")], 20, 1);
    world.pass(S);
    assert!(world.order(&all([1; 4])));
    world.pass(6 * S);
    world.expect_granting("at first");
    world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
    world.pass(60 * S);
    world
}

/// Each node keeps a unit of a small limit if there are enough; else some keep none. Without the stores, a
/// node that has units gives them where requests come.
#[test]
fn without_stores_guard_units_go_to_the_node_with_requests() {
    let mut world = without_stores();
    let passed = (0..2_000).filter(|_| {
        let passed = world.ask(1, "k", 1);
        world.pass(5 * MS);
        passed
    });
    // Four of each node's ten units: everything that is not in the pools.
    assert_eq!(passed.count(), 16);
}

/// One denial suffices, although no pool can be called to report that it is empty.
#[test]
fn without_its_store_a_region_asks_others_after_one_denial() {
    let mut world = without_stores();
    let passed: Vec<bool> = (0..5).map(|_| world.ask(1, "k", 1)).collect();
    assert_eq!(passed, [true, true, true, true, false]);
    world.pass(2 * S);
    assert!(world.ask(1, "k", 1));
}
