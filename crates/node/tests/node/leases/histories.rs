//! Random histories of one region's pools.

use acequia_limits::limit::{LimitSpec, UNITS_MAX_OF_CALLERS};

use crate::{
    from_callers::named,
    pools::{Way, World},
    scene::{self, MS, S, bucket, sliding, window},
};

/// A random history of one limit, and of numbers that callers name. The seed determines which faults happen, how often, and when. All that
/// passes is counted by true time, and one unit too many is a panic. At the end everything heals, and pools
/// must grant again.
pub(super) fn history(seed: u64) {
    let spec = [window("w", 40, "2s"), bucket("b", "20/s", 40), sliding("s", 40, "2s"), leaky()];
    let nodes = 2 + (seed / 4 % 3) as usize;
    let percent = [0, 10, 30][(seed / 12 % 3) as usize];
    let [limit, ..] = &spec[(seed % 4) as usize..] else { panic!("four limits") };
    let spec = &[limit.clone(), named(UNITS_MAX_OF_CALLERS, "2s")];
    let is_kept = seed / 4 % 2 == 1;
    let mut world = if is_kept {
        World::kept(nodes, spec, percent, seed)
    } else {
        World::new(nodes, spec, percent, seed)
    };
    // Average number of steps between two events.
    let mut often = || [30, 100, 1_000, u64::MAX][world.below(4) as usize];
    let (forgets, rolls_back, crashes, ways, clocks, alone) =
        (often(), often(), often(), often(), often(), often().saturating_mul(5));
    let disks = if is_kept { often() } else { u64::MAX };
    let (lost, replaced, stops) = (often(), often(), often().saturating_mul(2));
    let mut snapshot = world.server.clone();
    for step in 0..1_500 {
        let place = world.below(nodes as u64) as usize;
        if is_kept && world.below(disks) == 0 {
            world.nodes[place].is_disk_full = !world.nodes[place].is_disk_full;
        }
        if world.below(forgets) == 0 {
            world.server.restart(None);
        }
        if world.below(rolls_back) == 0 {
            let from = std::mem::replace(&mut snapshot, world.server.clone());
            world.server.restart(Some(&from));
        }
        if world.below(crashes) == 0 {
            world.crash(place);
        }
        if world.below(stops) == 0 {
            world.stop_at_random(place);
        }
        // The first node keeps its disk: if all disks and the server's state were lost, the region would
        // count as new.
        if world.below(lost) == 0 && place > 0 {
            world.lose_disk(place);
        }
        if world.below(replaced) == 0 {
            // The replaced server lives on, and some nodes reach only that server.
            let replaced = world.server.clone();
            world.server.restart(Some(&replaced));
            world.old = Some(replaced);
            world.nodes[place].is_left_behind = true;
        }
        if world.below(replaced) == 0 {
            world.nodes[place].is_left_behind = false;
        }
        if world.below(ways) == 0 {
            let all = [
                Way::GOOD,
                Way::CUT,
                Way { delay_ns: (MS, 400 * MS), lost: 10 },
                Way { delay_ns: (0, 20 * MS), lost: 50 },
            ];
            world.nodes[place].way = all[world.below(4) as usize];
        }
        if world.below(clocks) == 0 {
            world.nodes[place].ahead_ns = world.below(19 * MS) as i64 - 9 * MS as i64;
        }
        if world.below(alone) == 0 {
            // Longer than leases last.
            world.nodes[place].way = Way::CUT;
            for _ in 0..800 {
                let (place, pause) = (world.below(nodes as u64) as usize, world.below(300 * MS));
                world.ask(place, "k", 1);
                world.pass(pause);
            }
            world.nodes[place].way = Way::GOOD;
        }
        world.ask_for_named([1, 3, 10, 41][step % 4], 2);
        world.ask_around();
    }
    heal(world, seed);
}

/// Repairs everything. Pools must grant again.
fn heal(mut world: World, seed: u64) {
    world.mend();
    world.expect_granting(&format!("seed {seed}"));
}

/// A random history of one limit in which nodes are excluded now and then.
pub(super) fn deserted(seed: u64) {
    let spec =
        [window("w", 40, "2s"), bucket("b", "20/s", 40), sliding("s", 40, "2s"), window("w", 400, "90s")];
    let nodes = 3 + (seed / 4 % 2) as usize;
    let spec = &spec[(seed % 4) as usize..=(seed % 4) as usize];
    let mut world = World::kept(nodes, spec, 10, seed);
    for _ in 0..2 {
        for _ in 0..400 {
            let (place, pause) = (world.below(nodes as u64) as usize, world.below(60 * MS));
            world.ask(place, "k", 1);
            world.pass(pause);
        }
        let (gone, slow) = (world.below(nodes as u64) as usize, world.below(nodes as u64) as usize);
        world.nodes[slow].way = Way { delay_ns: (MS, 400 * MS), lost: 30 };
        without(&mut world, gone, nodes);
        world.nodes[slow].way = Way::GOOD;
    }
    heal(world, seed);
}

/// A node is cut off from the server for a while, spends what it holds, and is excluded by an order to one of
/// its mates. In half of the cases the server forgets meanwhile.
fn without(world: &mut World, gone: usize, nodes: usize) {
    let way = std::mem::replace(&mut world.nodes[gone].way, Way::CUT);
    // Messages on their way have arrived or are lost.
    world.pass(S);
    let told = (gone + 1) % nodes;
    let long = S + world.below(100 * S);
    let node = world.nodes[told].node.clone();
    node.exclude(gone as u16 + 1, long, world.now(told)).expect("a node of the region");
    let (until_ns, forgets) = (world.true_ns + long, world.below(2) == 0);
    if forgets {
        world.server.restart(None);
    }
    while world.true_ns < until_ns {
        for _ in 0..world.below(8) {
            let place = world.below(nodes as u64) as usize;
            world.ask(place, "k", 1);
        }
        let pause = world.below(200 * MS);
        world.pass(pause);
    }
    // The exclusion may last a little longer by the mate's own clock.
    node.exclude(gone as u16 + 1, 0, world.now(told)).expect("a node of the region");
    world.nodes[gone].way = way;
}

fn leaky() -> LimitSpec {
    scene::leaky("l", "20/s", 40, acequia_limits::limit::NoWait::Deny)
}

#[test]
fn under_random_faults_no_limit_is_exceeded_and_pools_recover() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(5);
    let from = std::env::var("FROM").ok().and_then(|from| from.parse().ok()).unwrap_or(1);
    for seed in from..=seeds {
        history(seed);
        deserted(seed);
    }
}
