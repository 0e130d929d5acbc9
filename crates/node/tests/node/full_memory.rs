//! Nodes that share a limit. One node has no room for more cells for a while, so new cells of a limit share
//! one cell there.

use crate::pools::{Stop, World};
use crate::scene::{self, MS, S, staggered};
use acequia_node::MEMORY_BYTES_MIN;

/// Restarts a node with the minimum memory, so that cells share one as soon as a shard is full: see
/// [`crowd`].
fn with_little_memory(world: &mut World, place: usize) {
    world.memory_bytes = MEMORY_BYTES_MIN;
    world.stop(place, Stop::CALM);
    world.pass(5 * S);
}

/// Asks the node for one unit of many keys until one shard is full and a cell is shared. Other shards still
/// have room. Returns whether a cell became shared: where nothing is granted there is no cell.
fn crowd(world: &World, place: usize) -> bool {
    let node = &world.nodes[place].node;
    let mut asker = node.asker();
    let mut is_shared = |number| {
        scene::passes(&mut asker, &format!("f-{}-{number}", world.true_ns), 1, world.now(place));
        node.usage().overflowing > 0
    };
    (0..4_000_u64).any(&mut is_shared)
}

/// Asks for keys with staggered windows at each node until they are denied, several times.
fn drain(world: &mut World, keys: &[String], places: std::ops::Range<usize>) {
    for _ in 0..6 {
        for key in keys {
            for place in places.clone() {
                while world.ask(place, key, 1) {}
            }
        }
        world.pass(S);
    }
}

fn keys(name: &str) -> Vec<String> {
    (0..30).map(|number| format!("{name}{number}")).collect()
}

/// A shared cell's window ends at another time than the window of a cell that used it. The latter must follow
/// its own windows, and use their pools.
fn pooled_by_its_own_window() {
    for late_s in [0, 20, 35, 50] {
        let mut world = World::new(2, &[staggered("w", 100, "60s")], 10, 1);
        world.pass(130 * S);
        with_little_memory(&mut world, 0);
        world.pass(late_s * S);
        assert!(crowd(&world, 0), "the memory is never full");
        drain(&mut world, &keys("k"), 0..2);
        world.pass(30 * S);
        drain(&mut world, &keys("k"), 0..2);
    }
}

/// When shares change, the cell's own windows keep their allocation, whatever the shared cell has.
fn shared_by_its_own_window() {
    for late_s in (10..50).step_by(2) {
        let mut world = World::among_regions(&[1, 1], &[staggered("w", 100, "60s")], 90, 1);
        world.pass(S);
        assert!(world.order(&[(0, 1), (1, 9)]));
        world.pass(6 * S);
        with_little_memory(&mut world, 0);
        world.pass(100 * S);
        // Nobody lacks units, so none move on demand.
        keys("k").iter().for_each(|key| assert!(world.ask(1, key, 80)));
        assert!(world.order(&[(0, 9), (1, 1)]));
        world.pass((3 + late_s) * S);
        assert!(crowd(&world, 0), "the memory is never full");
        drain(&mut world, &keys("k"), 0..2);
        world.pass(30 * S);
        drain(&mut world, &keys("k"), 0..2);
    }
}

#[test]
fn a_cell_that_leaves_a_shared_cell_has_windows_of_its_own() {
    pooled_by_its_own_window();
    shared_by_its_own_window();
}

/// A random history of nodes with little memory. The seed determines new keys, crowds, orders and crashes.
/// All that passes for a key anywhere is counted by true time, and one unit too many is a panic.
fn history(seed: u64) {
    let window = ["3s", "10s"][(seed / 2 % 2) as usize];
    let nodes: &[usize] = [&[2][..], &[2, 1], &[1, 2], &[1, 1, 1]][(seed / 4 % 4) as usize];
    let spec = match seed % 12 {
        3 => scene::window("w", 40, window),
        7 => scene::bucket("b", "8/s", 40),
        11 => scene::sliding("s", 40, window),
        _ => staggered("w", 40, window),
    };
    let mut world = World::among_regions(nodes, &[spec], [10, 60][(seed % 2) as usize], seed);
    let count = world.nodes.len();
    world.pass(S);
    assert!(world.order(&(0..count).map(|place| (place, 1)).collect::<Vec<_>>()));
    world.pass(6 * S);
    (0..count).for_each(|place| with_little_memory(&mut world, place));
    let mut often = || [20, 60, u64::MAX][world.below(3) as usize];
    let (orders, crashes, cuts) = (often(), often(), often());
    for number in 0..300 {
        let place = world.below(count as u64) as usize;
        if world.below(30) == 0 {
            crowd(&world, place);
        }
        for _ in 0..world.below(40) {
            let key = format!("k{}", number / 12 * 2 + world.below(4));
            let cost = 1 + world.below(3);
            world.ask(place, &key, cost);
        }
        if world.below(orders) == 0 {
            let weights: Vec<_> = (0..count).map(|place| (place, 1 + world.below(9) as u32)).collect();
            world.order(&weights);
        }
        if world.below(crashes) == 0 {
            world.crash(place);
        }
        if world.below(cuts) == 0 {
            let cut = &mut world.regions.as_mut().expect("regions").cut;
            if !cut.remove(&place) {
                cut.insert(place);
            }
        }
        let pause_ns = world.below(200 * MS);
        world.pass(pause_ns);
    }
}

#[test]
fn nodes_with_full_memory_never_exceed_a_limit_in_random_histories() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(10);
    let from = std::env::var("FROM").ok().and_then(|from| from.parse().ok()).unwrap_or(1);
    (from..=seeds).for_each(history);
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_of_nodes_with_full_memory_is_needed() {
    use acequia_rights::mutation::{Mutation, break_rule};
    std::panic::set_hook(Box::new(|_| ()));
    let random = || (1..=10).for_each(history);
    let stories: [fn(); 3] = [pooled_by_its_own_window, shared_by_its_own_window, random];
    break_rule(Some(Mutation::SharedWindowKept));
    let found = stories.map(|story| std::panic::catch_unwind(story).is_err());
    break_rule(None);
    drop(std::panic::take_hook());
    assert_eq!(found, [true; 3], "it can be left out unnoticed");
}
