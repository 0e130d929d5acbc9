//! Each node of a region speaks for itself among the regions: what that costs, and what it is good for.

mod scene;
mod siblings;

use acequia_limits::limit::LimitSpec;
use scene::{MS, S, bucket, window};
use siblings::World;

/// Three regions of so many nodes each, which share a limit evenly.
fn three(nodes: usize, spec: LimitSpec) -> World {
    let mut world = World::among_regions(&[nodes; 3], &[spec], 10, 1);
    world.pass(S);
    assert!(world.order(&(0..3 * nodes).map(|place| (place, 1)).collect::<Vec<_>>()));
    world.pass(6 * S);
    world.expect_granting("at first");
    world
}

/// What was told from region to region in a second, and what passed of a thousand requests.
#[derive(Clone, Copy)]
struct Cost {
    frames: u64,
    bytes: u64,
    passed: u64,
}

/// Two cells of 200 a second. So many requests a second: nine of ten in one region after the other, for 20 s each, at all of its nodes
/// alike.
fn moving(nodes: u64, a_second: u64) -> Cost {
    const SECONDS: u64 = 60;
    let mut world = three(nodes as usize, bucket("b", "200/s", 200));
    world.is_prompt = true;
    world.regions.as_mut().expect("regions").crossed = (0, 0);
    let mut passed = 0;
    for number in 0..SECONDS * a_second {
        let hot = number / (20 * a_second);
        let region = if world.below(10) == 0 { world.below(3) } else { hot };
        let place = region * nodes + world.below(nodes);
        let key = format!("b{}", world.below(2));
        passed += u64::from(world.ask_and_wait(place as usize, &key, 1));
        world.pass(S / a_second);
    }
    let (frames, bytes) = world.regions.as_ref().expect("regions").crossed;
    let asked = SECONDS * a_second;
    Cost { frames: frames / SECONDS, bytes: bytes / SECONDS, passed: 1_000 * passed / asked }
}

/// A row has one writer, so what is told is told once, by the node whose it is. More nodes make more rows, and links between them.
#[test]
fn what_rows_of_nodes_cost() {
    println!(
        "three regions share two cells of 200/s; most is asked for in one region after the other, for 20 s each"
    );
    println!("requests/s   nodes a region   frames/s   bytes/s   passed of 1000");
    for (a_second, least) in [(200, 960), (400, 920)] {
        let all = [1, 2, 4].map(|nodes| (nodes, moving(nodes, a_second)));
        for (nodes, Cost { frames, bytes, passed }) in all {
            println!("{a_second:<12} {nodes:<16} {frames:<10} {bytes:<9} {passed}");
            assert!(passed >= least, "{nodes} nodes a region: {passed}");
        }
        let [(_, one), _, (_, four)] = all;
        // Sixteen times as many links between regions, and what nodes have for each other is in smaller pieces.
        assert!(four.bytes <= one.bytes * 64, "{} and {}", one.bytes, four.bytes);
    }
}

/// Nobody has to be found who speaks for a region whose node has died: the others are heard, ask and are given as before.
#[test]
fn a_region_is_heard_while_one_of_its_nodes_is_dead() {
    let mut world = three(2, window("w", 600, "1000s"));
    world.nodes[0].is_hung = true;
    // What is asked for is more than the region has, at the other node, at once.
    let mut passed = 0;
    for _ in 0..1_000 {
        passed += u64::from(world.ask(1, "k", 1));
        world.pass(5 * MS);
    }
    // A third is its region's, of which the dead node has its guard share; what passes beyond is given by others.
    assert!(passed > 200 + 100, "{passed} of 600, and 200 are the region's");
}
