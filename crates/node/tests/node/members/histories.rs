//! Random histories of regions of several nodes.

use acequia_limits::limit::UNITS_MAX_OF_CALLERS;

use crate::{
    from_callers::named,
    pools::{Way, World},
    scene::{self, MS, S, bucket, sliding, window},
};

/// A random history of one limit, and of numbers that callers name. The seed determines which orders and faults happen, how often, and when.
/// All that passes is counted by true time, and one unit too many is a panic. At the end everything heals,
/// and pools must grant again.
fn history(seed: u64) {
    let spec = [
        // Long windows are open when shares change. Some staggered windows began before the change, some
        // after.
        [
            window("w", 40, "2s"),
            window("w", 40, "5s"),
            scene::staggered("w", 40, "5s"),
            scene::staggered("w", 40, "10s"),
        ][(seed / 8 % 4) as usize]
            .clone(),
        bucket("b", "20/s", 40),
        sliding("s", 40, "2s"),
        scene::leaky("l", "20/s", 40, acequia_limits::limit::NoWait::Deny),
    ];
    let nodes: &[usize] = [&[2, 2][..], &[2, 1], &[3, 2], &[1, 2, 2]][(seed / 4 % 4) as usize];
    let [limit, ..] = &spec[(seed % 4) as usize..] else { panic!("four limits") };
    let spec = &[limit.clone(), named(UNITS_MAX_OF_CALLERS, "2s")];
    let mut world = World::among_regions(nodes, spec, [10, 30][(seed / 16 % 2) as usize], seed);
    let count = world.nodes.len();
    let weights = |world: &mut World| -> Vec<(usize, u32)> {
        (0..count).map(|place| (place, 1 + world.below(4) as u32)).collect()
    };
    world.pass(S);
    assert!(world.order(&(0..count).map(|place| (place, 1)).collect::<Vec<_>>()));
    // Average number of steps between two events.
    let mut often = || [30, 100, 300, u64::MAX][world.below(4) as usize];
    let (orders, forgets, crashes, ways, cuts) = (often(), often(), often(), often(), often());
    let stops = often().saturating_mul(2);
    // The node with the most demand, for a while.
    let mut hot = 0;
    for step in 0..1_500 {
        let place = world.below(count as u64) as usize;
        if world.below(60) == 0 {
            hot = place;
        }
        for _ in 0..world.below(3) * world.below(12) {
            // Waiting requests are forwarded.
            if (seed / 2).is_multiple_of(2) {
                world.ask_or_wait(hot, "k", 1)
            } else {
                world.ask(hot, "k", 1)
            };
        }
        if world.below(orders) == 0 {
            let mut weights = weights(&mut world);
            // Nodes leave, and may join again later.
            weights.retain(|(place, _)| *place == 0 || world.below(6) > 0);
            // The limit may go too.
            world.is_gone = world.below(4) == 0;
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
        if world.below(stops) == 0 {
            world.stop_at_random(place);
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
        world.ask_for_named([1, 3, 10, 41][step % 4], 2);
        world.ask_around();
    }
    heal(world, seed);
}

/// Repairs everything. Pools must grant again, and all nodes must have acknowledged the last order.
fn heal(mut world: World, seed: u64) {
    world.mend();
    // Pools wait for a leaving node, and it waits until what a crash forgot has expired.
    let leaves = |world: &World| {
        let membership = world.nodes[0].node.membership(world.now(0)).expect("regions");
        membership.progress.is_some_and(|progress| !progress.leavers.is_empty())
    };
    for _ in 0..20 {
        if leaves(&world) {
            world.pass(10 * S);
        }
    }
    world.pass(5 * S);
    world.expect_granting(&format!("seed {seed}"));
    // An allocation is acknowledged only when what a crash forgot has expired, which takes longest at the
    // slowest rate.
    world.pass(200 * S);
    let version = world.nodes[0].node.version().expect("a version");
    // Former members need not hear of later versions.
    for (place, at) in world.nodes.iter().enumerate().filter(|(place, _)| world.is_member(*place)) {
        assert_eq!(at.node.version().as_ref(), Some(&version), "seed {seed}, node {place}");
        let membership = at.node.membership(world.now(place)).expect("regions");
        let progress = membership.progress.expect("a version");
        assert!(progress.pending.is_empty(), "seed {seed}, node {place}: {progress:?}");
    }
}

#[test]
fn under_random_orders_and_faults_no_limit_is_exceeded() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(8);
    let from = std::env::var("FROM").ok().and_then(|from| from.parse().ok()).unwrap_or(1);
    (from..=seeds).for_each(history);
}
