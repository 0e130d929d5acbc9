//! Regions of several nodes each: nodes share by a catalogue what regions have, and through pools what their region has.

mod scene;
mod siblings;

use acequia_limits::limit::LimitSpec;
use acequia_node::leases::GROUPS;
use scene::{MS, S, bucket, sliding, window};
use siblings::{Way, World};

/// Guard shares together, in percent.
const GUARD: u8 = 10;

/// Two regions of two nodes each, which have shares of these weights.
fn shared(spec: LimitSpec, weights: [u32; 4]) -> World {
    let mut world = World::among_regions(&[2, 2], &[spec], GUARD, 1);
    world.pass(S);
    assert!(world.order(&all(weights)));
    world.pass(6 * S);
    world.expect_granting("at first");
    world
}

fn all(weights: [u32; 4]) -> Vec<(usize, u32)> {
    weights.into_iter().enumerate().collect()
}

/// Twice the limit is asked for, at some nodes alike: what passes at each, a second.
fn passes(world: &mut World, places: &[usize], seconds: u64) -> Vec<u64> {
    let mut passed = vec![0; world.nodes.len()];
    for number in 0..seconds * 200 {
        let place = places[(number % places.len() as u64) as usize];
        passed[place] += u64::from(world.ask(place, "k", 1));
        world.pass(5 * MS);
    }
    passed.iter().map(|passed| passed / seconds).collect()
}

#[test]
fn a_node_without_a_catalogue_owns_nothing() {
    let mut world = World::among_regions(&[2, 2], &[bucket("b", "100/s", 100)], GUARD, 1);
    world.pass(5 * S);
    assert!((0..4).all(|place| !world.ask(place, "k", 1)));
}

#[test]
fn one_node_gets_what_its_region_has() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 1_000), sliding("s", 1_000, "10s")] {
        let name = spec.name.clone();
        let mut world = shared(spec, [3, 3, 1, 1]);
        passes(&mut world, &[0], 20);
        let a_second = passes(&mut world, &[0], 20);
        // Three quarters, less the guard share of the other node: 37 units of 1000.
        assert!((69..=76).contains(&a_second[0]), "{name}: {a_second:?}");
        let a_second = passes(&mut world, &[0, 1, 2, 3], 40);
        let of_regions = [a_second[0] + a_second[1], a_second[2] + a_second[3]];
        assert!(of_regions[0] >= 45 && of_regions[1] >= 22, "{name}: {a_second:?}");
    }
}

#[test]
fn weights_move_pools() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 200), sliding("s", 1_000, "10s")] {
        let name = spec.name.clone();
        let mut world = shared(spec, [3, 3, 1, 1]);
        passes(&mut world, &[0, 2], 20);
        assert!(world.order(&all([1, 1, 3, 3])));
        passes(&mut world, &[0, 2], 60);
        world.expect_granting("with other weights");
        // A window more than there is time for may be open for a while.
        let a_second = passes(&mut world, &[2], 100);
        assert!((68..=83).contains(&a_second[2]), "{name}: {a_second:?}");
        let a_second = passes(&mut world, &[0], 100);
        assert!((22..=28).contains(&a_second[0]), "{name}: {a_second:?}");
    }
}

/// One that leaves gives its part up, and other regions have it. What its region's pools have is for the others of the region to take when it
/// is none of the region's nodes any more.
#[test]
fn a_node_that_leaves_has_no_share() {
    let mut world = shared(bucket("b", "100/s", 200), [1; 4]);
    passes(&mut world, &[0, 1, 2, 3], 10);
    assert!(world.order(&[(0, 1), (2, 1), (3, 1)]));
    passes(&mut world, &[0, 2], 60);
    assert!(!world.ask(1, "k", 1), "it has no share");
    let a_second = passes(&mut world, &[2], 20);
    assert!((60..=67).contains(&a_second[2]), "{a_second:?}");
}

#[test]
fn what_one_node_gives_up_no_other_takes_before_it_has_heard() {
    unheard();
}

/// A node holds all of its region's pool; then its region has less, and the other one does not hear of it for a while, and asks for
/// more.
fn unheard() {
    for spec in [bucket("b", "100/s", 100), sliding("s", 1_000, "10s"), window("w", 4_000, "40s")] {
        let mut world = shared(spec, [3, 3, 1, 1]);
        passes(&mut world, &[0], 20);
        world.regions.as_mut().expect("regions").cut.insert(1);
        assert!(world.order(&all([1, 1, 3, 3])));
        passes(&mut world, &[0, 1], 12);
        world.regions.as_mut().expect("regions").cut.clear();
        passes(&mut world, &[0, 1, 2, 3], 120);
        world.expect_granting("when all have heard");
    }
}

/// A node does not hear that shares have changed, and goes on calling: left out, it keeps nobody from their pools.
#[test]
fn who_has_not_heard_of_new_shares_can_be_left_out() {
    let mut world = shared(bucket("b", "100/s", 200), [1; 4]);
    passes(&mut world, &[0, 1, 2, 3], 10);
    world.regions.as_mut().expect("regions").cut.insert(1);
    assert!(world.order(&all([2, 1, 1, 1])));
    let (node, now) = (world.nodes[0].node.clone(), world.now(0));
    node.leave_out(2, 600 * S, now).expect("a node of the region");
    passes(&mut world, &[0, 1, 2, 3], 120);
    assert_eq!(node.lease_counts().granting, u64::from(GROUPS));
    let a_second = passes(&mut world, &[0], 20);
    // Two fifths and a fifth, at most as much as before: half, less what the other keeps.
    assert!((40..=48).contains(&a_second[0]), "{a_second:?}");
}

/// A random history of one limit: what is ordered, what breaks, how often, and when, is drawn from the seed. Whatever passes anywhere is
/// counted by true time, and a unit too many is a panic. Then everything heals, and pools must grant again.
fn history(seed: u64) {
    let spec = [
        window("w", 40, "2s"),
        bucket("b", "20/s", 40),
        sliding("s", 40, "2s"),
        scene::leaky("l", "20/s", 40, acequia_limits::limit::NoWait::Deny),
    ];
    let nodes: &[usize] = [&[2, 2][..], &[2, 1], &[3, 2], &[1, 2, 2]][(seed / 4 % 4) as usize];
    let spec = &spec[(seed % 4) as usize..=(seed % 4) as usize];
    let mut world = World::among_regions(nodes, spec, [10, 30][(seed / 16 % 2) as usize], seed);
    let count = world.nodes.len();
    let weights = |world: &mut World| -> Vec<(usize, u32)> {
        (0..count).map(|place| (place, 1 + world.below(4) as u32)).collect()
    };
    world.pass(S);
    assert!(world.order(&(0..count).map(|place| (place, 1)).collect::<Vec<_>>()));
    // One of so many steps.
    let mut often = || [30, 100, 300, u64::MAX][world.below(4) as usize];
    let (orders, forgets, crashes, ways, cuts) = (often(), often(), often(), often(), often());
    for _ in 0..1_500 {
        let place = world.below(count as u64) as usize;
        if world.below(orders) == 0 {
            let weights = weights(&mut world);
            world.order(&weights);
        }
        if world.below(forgets) == 0 {
            match world.regions.as_mut().expect("regions") {
                regions if regions.of[place] > 0 => {
                    let region = regions.of[place];
                    regions.servers[region - 1].restart(None);
                }
                _ => world.server.restart(None),
            }
        }
        if world.below(crashes) == 0 {
            world.crash(place);
        }
        if world.below(ways) == 0 {
            let ways = [Way::GOOD, Way::CUT, Way { delay_ns: (MS, 150 * MS), lost: 10 }];
            world.nodes[place].way = ways[world.below(3) as usize];
        }
        if world.below(cuts) == 0 {
            let cut = &mut world.regions.as_mut().expect("regions").cut;
            if !cut.remove(&place) {
                cut.insert(place);
            }
        }
        world.ask_around();
    }
    heal(world, seed);
}

/// Nothing is broken any more: pools must grant again, and all must have acknowledged the last order.
fn heal(mut world: World, seed: u64) {
    world.mend();
    world.expect_granting(&format!("seed {seed}"));
    // What a crash forgot is over before a distribution is acknowledged, at the slowest rate.
    world.pass(200 * S);
    let version = world.nodes[0].node.version();
    for (place, at) in world.nodes.iter().enumerate() {
        assert_eq!(at.node.version(), version, "seed {seed}, node {place}");
        let membership = at.node.membership(world.now(place)).expect("regions");
        let progress = membership.progress.expect("a version");
        assert!(progress.pending.is_empty(), "seed {seed}, node {place}: {progress:?}");
    }
}

#[test]
fn whatever_is_ordered_and_breaks_no_unit_too_many_passes() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(16);
    (1..=seeds).for_each(history);
}

#[cfg(feature = "broken")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::broken::{Broken, break_rule};
    std::panic::set_hook(Box::new(|_| ()));
    break_rule(Some(Broken::LeaseOutlivesTerms));
    let found = std::panic::catch_unwind(unheard);
    break_rule(None);
    drop(std::panic::take_hook());
    assert!(found.is_err(), "LeaseOutlivesTerms can be left out unnoticed");
    println!("LeaseOutlivesTerms       1");
}
