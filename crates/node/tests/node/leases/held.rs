//! What operators see of the units that nodes hold of pools.

use acequia_limits::limit::LimitSpec;
use acequia_node::pool::GROUPS;

use super::{GUARD, settled};
use crate::{
    pools::{Way, World},
    scene::{MS, S, bucket, sliding, window},
};

#[test]
fn an_operator_sees_the_units_that_a_node_leases_from_the_pool() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 1_000), sliding("s", 1_000, "10s")] {
        let name = spec.name.clone();
        let mut world = settled(2, spec);
        for _ in 0..600 {
            world.ask(0, "k", 1);
            world.pass(5 * MS);
        }
        let holding = world.holding(0, "k");
        // A guard share is 50 units.
        assert_eq!(holding.standing.units, 50, "{name}");
        assert!(holding.effective.units > holding.standing.units, "{name}: {holding:?}");
        assert!(holding.left <= holding.effective.units, "{name}: {holding:?}");
    }
}

/// Two nodes of a new region. The first holds what it was asked for and a little more. Also returns a
/// function for what the limit holds there.
fn holding(spec: LimitSpec) -> (World, impl Fn(&World) -> u64) {
    let mut world = World::of_new(2, &[spec], GUARD);
    world.pass(6 * S);
    for _ in 0..600 {
        world.ask(0, "k", 1);
        world.pass(5 * MS);
    }
    // By then frequent requests have led to a rebalance, and the grant has arrived.
    world.pass(100 * MS);
    let slot = world.nodes[0].node.catalogue().limits[0].slot();
    (world, move |world| world.nodes[0].node.units_held().get(&slot).copied().unwrap_or(0))
}

#[test]
fn units_held_of_a_limit_are_the_sum_of_its_cells_leases() {
    for spec in [window("w", 1_000, "1h"), bucket("b", "100/s", 1_000), sliding("s", 1_000, "10m")] {
        let name = spec.name.clone();
        let (mut world, held) = holding(spec);
        assert!(world.nodes[1].node.units_held().is_empty(), "{name}: nobody asked the other");
        let expected = |world: &World| {
            let of_cell = world.holding(0, "k");
            match name.as_str() {
                // Charges use the pool's units before the guard share.
                "w" => of_cell.left.saturating_sub(of_cell.standing.units),
                _ => of_cell.effective.units - of_cell.standing.units,
            }
        };
        let before = held(&world);
        assert!(before > 0, "{name}");
        assert_eq!(before, expected(&world), "{name}");
        world.nodes[0].node.leave_pools(world.now(0));
        world.pass(200 * MS);
        assert!(held(&world) < before, "{name}: it gave back what was not spent");
        assert_eq!(held(&world), expected(&world), "{name}");
        // A sliding window's spent units are held until they leave the window.
        assert_eq!(world.nodes[0].node.units_held().is_empty(), name != "s", "{name}");
    }
}

#[test]
fn leases_that_have_ended_are_not_counted_as_held() {
    for (spec, ends) in [
        (window("w", 1_000, "1m"), 200 * S),
        (bucket("b", "100/s", 1_000), 80 * S),
        (sliding("s", 1_000, "10m"), 80 * S),
    ] {
        let name = spec.name.clone();
        let (mut world, held) = holding(spec);
        world.nodes[0].way = Way::CUT;
        assert!(held(&world) > 0, "{name}");
        world.pass(ends);
        assert_eq!(held(&world), 0, "{name}");
    }
}

#[test]
fn each_report_of_held_units_to_a_group_is_counted() {
    let mut world = settled(2, window("w", 100, "10s"));
    let assertions = |world: &World| world.nodes[0].node.lease_counts().assertions;
    let settled = assertions(&world);
    assert!(settled >= u64::from(GROUPS), "{settled}: of each group once");
    world.pass(60 * S);
    assert_eq!(assertions(&world), settled, "nothing has changed");
    world.server.restart(None);
    world.pass(20 * S);
    let again = assertions(&world) - settled;
    assert!(again >= u64::from(GROUPS), "{again}: the server forgot, and is told again");
    world.expect_granting("told");
}
