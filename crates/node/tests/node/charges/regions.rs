//! Charges and leases of a region that shares its limits with others.

use std::sync::Arc;

use acequia_limits::Now;
use acequia_node::ChargeId;

use super::{ask, back, lease, left, named};
use crate::{
    regions,
    scene::{HOUR, MINUTE, passes},
};

#[test]
fn after_a_restart_a_regions_lease_is_reserved_only_once() {
    let mut world = regions::World::new(2, &[regions::bucket("b", "1/s", 100)], 40 * regions::MS);
    world.run(2 * regions::S, |_, _| 0);
    let before = left(&mut world.places[0].node.asker(), world.now_of(0));
    let now = world.now_of(0);
    let leased = lease(&mut world.places[0].node.asker(), 1, 50, HOUR, now).0;
    assert!(leased > 3);
    world.run(regions::S, |_, _| 0);
    world.restart(0, None, regions::incarnation(0));
    // Wait until the other region's wall clock agrees.
    world.run(300 * regions::MS, |_, _| 0);
    let now = world.now_of(0);
    let node = Arc::clone(&world.places[0].node);
    // Units that the crash forgot are earned back by the rate.
    let after = left(&mut node.asker(), now);
    assert_eq!(back(node.settle(ChargeId(1), Some(0), now)), leased);
    assert_eq!(left(&mut node.asker(), now) - after, leased.min(before - after));
    world.run(300 * regions::S, |_, _| 0);
    assert!(left(&mut node.asker(), world.now_of(0)) >= before, "nothing is set apart any more");
}

#[test]
fn a_share_grows_only_after_leases_cut_from_it_elsewhere_have_ended() {
    let spec = regions::sliding("w", 100, "1m");
    let mut world = regions::World::new(2, std::slice::from_ref(&spec), 40 * regions::MS);
    world.run(2 * regions::S, |_, _| 0);
    let node = Arc::clone(&world.places[0].node);
    let mut asker = node.asker();
    let now = world.now_of(0);
    let leases: Vec<(u128, u64)> = (1..=20).map(|id| (id, lease(&mut asker, id, 50, HOUR, now).0)).collect();
    let leased: u64 = leases.iter().map(|(_, units)| units).sum();
    assert!(leased > 40);
    let ttl_ns = MINUTE / 8;
    world.change(0, &[spec], &[(regions::incarnation(0), 1), (regions::incarnation(1), 9)], &[], 0);
    world.run(ttl_ns - 500 * regions::MS, |_, _| 0);
    // All of the leases are spent at the last moment.
    for (id, units) in leases {
        assert_eq!(back(node.settle(ChargeId(id), Some(units), world.now_of(0))), 0);
    }
    for _ in 0..58 {
        world.run(regions::S, |_, _| 0);
        let now = world.now_of(1);
        assert!(left(&mut world.places[1].node.asker(), now) + leased <= 100);
    }
    world.run(20 * regions::S, |_, _| 0);
    assert!(left(&mut world.places[1].node.asker(), world.now_of(1)) >= 85);
}

#[test]
fn a_region_lends_only_units_that_it_has_not_leased() {
    let mut world = regions::World::new(2, &[regions::bucket("b", "1/s", 200)], 40 * regions::MS);
    world.run(2 * regions::S, |_, _| 0);
    let node = Arc::clone(&world.places[0].node);
    let mut asker = node.asker();
    let now = world.now_of(0);
    assert!(passes(&mut asker, "k", 40, now));
    let leased: u64 = (1..=8).map(|id| lease(&mut asker, id, 90, HOUR, now).0).sum();
    assert!((20..=50).contains(&leased), "{leased}");
    world.run(100 * regions::S, |_, _| 0);
    world.run(3 * regions::S, |region, ms| u64::from(region == 1 && ms < 1_000));
    assert!(world.traffic()[0].lent > 0, "{:?}", world.traffic());
    assert!(world.places[1].admitted > 100, "{}", world.places[1].admitted);
    // Leased units may still be spent, so nobody else received them.
    assert!(world.admitted() + 40 + leased <= 200 + 110);
}

#[test]
fn a_lease_ends_with_its_window_even_if_the_next_window_is_charged_too() {
    let spec = regions::window("w", 1_000, "5m");
    let mut world = regions::World::new(2, std::slice::from_ref(&spec), 40 * regions::MS);
    let members = [(regions::incarnation(0), 1), (regions::incarnation(1), 1)];
    let specs = std::slice::from_ref(&spec);
    // The clocks are in doubt for a while, so both windows are charged long before the edge.
    world.change(0, specs, &members, &[], 60 * regions::S);
    let ends_in_ns = |now: Now| 300 * regions::S - now.wall_ns % (300 * regions::S);
    world.run(regions::S, |_, _| 0);
    let wait_ns = (ends_in_ns(world.now_of(0)) + 250 * regions::S) % (300 * regions::S);
    world.run(wait_ns, |_, _| 0);
    let node = Arc::clone(&world.places[0].node);
    let mut asker = node.asker();
    assert!(passes(&mut asker, "k", 5, world.now_of(0)));
    world.change(0, specs, &members, &[], regions::S);
    world.run(20 * regions::S, |_, _| 0);
    let now = world.now_of(0);
    let ends_in_ns = ends_in_ns(now);
    assert!((25 * regions::S..=30 * regions::S).contains(&ends_in_ns), "{ends_in_ns}");
    let (units, lasts_ns) = lease(&mut asker, 1, 50, HOUR, now);
    assert!(units > 0 && lasts_ns < ends_in_ns, "{lasts_ns} of {ends_in_ns}");
}

#[test]
fn a_region_refunds_into_the_units_that_it_holds() {
    let mut world = regions::World::new(3, &[regions::window("w", 3_000, "1h")], 40 * regions::MS);
    world.run(2 * regions::S, |_, _| 0);
    let node = Arc::clone(&world.places[0].node);
    let mut asker = node.asker();
    let now = world.now_of(0);
    assert_eq!(ask(&mut asker, &named(1), 900, now), (true, 100, false));
    world.run(regions::S, |_, _| 0);
    let before = left(&mut asker, world.now_of(0));
    assert_eq!(back(node.settle(ChargeId(1), None, world.now_of(0))), 900);
    assert_eq!(left(&mut asker, world.now_of(0)), before + 900);
    // All that the regions may have together, and not a unit more.
    let mut admitted = 0;
    for _ in 0..8_000 {
        world.run(regions::MS, |_, _| 0);
        admitted += u64::from(world.ask(0, "k"));
    }
    assert!((2_900..=3_000).contains(&admitted), "{admitted}");
}
