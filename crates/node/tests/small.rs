//! Limits of a few units, fewer than there are nodes: what passes at once, what passes when it is asked for again, and what passes
//! without the store.

mod scene;
mod siblings;

use acequia_limits::limit::LimitSpec;
use scene::{MS, S, bucket, window};
use siblings::{Way, World};

/// How many cells are asked for.
const KEYS: u64 = 200;

/// Of so many units for each cell, what passed at once, one request at a random node for each unit, and what passed in the second after
/// that at all nodes. In percent.
fn passed(world: &mut World, units: u64) -> (u64, u64) {
    world.is_prompt = true;
    let nodes = world.nodes.len() as u64;
    let mut at_once = 0;
    for key in 0..KEYS {
        for _ in 0..units {
            let place = world.below(nodes) as usize;
            at_once += u64::from(world.ask_patiently(place, &format!("k{key}"), 1));
        }
    }
    let mut later = at_once;
    for _ in 0..10 {
        for key in 0..KEYS {
            later +=
                (0..nodes).filter(|place| world.ask(*place as usize, &format!("k{key}"), 1)).count() as u64;
        }
        world.pass(100 * MS);
    }
    (100 * at_once / (KEYS * units), 100 * later / (KEYS * units))
}

/// A region that stands alone.
fn alone(spec: LimitSpec, percent: u8, has_store: bool) -> World {
    let mut world = World::of_new(4, &[spec], percent);
    if !has_store {
        world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
    }
    world.pass(S);
    world
}

/// A region of the catalogue, whose nodes hear each other, of so many regions alike.
fn among(regions: &[usize], spec: LimitSpec, percent: u8, has_store: bool) -> World {
    let mut world = World::among_regions(regions, &[spec], percent, 1);
    let count: usize = regions.iter().sum();
    world.pass(S);
    assert!(world.order(&(0..count).map(|place| (place, 1)).collect::<Vec<_>>()));
    world.pass(6 * S);
    world.expect_granting("at first");
    if !has_store {
        world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
        world.pass(60 * S);
    }
    world
}

/// Why of one or two units none is with a guard node: one that is, is not found by most who ask while the store is there. So
/// such a cell is exact, and without the store nothing of it passes. Of three units or more one is, and nobody is worse off.
#[test]
fn a_guard_unit_costs_the_answer_at_once_and_gives_one_without_the_store() {
    println!("of four nodes, in percent      with the store       without");
    println!("units  with the guard node    at once  in a second  in a second");
    let row = |units: u64, percent: u8| {
        let spec = || window("w", units, "1000s");
        let (at_once, later) = passed(&mut alone(spec(), percent, true), units);
        let (_, without) = passed(&mut alone(spec(), percent, false), units);
        let kept = (units * u64::from(percent) / 100).max(u64::from(percent > 0 && units >= 3));
        println!("{units:<6} {kept:<22} {at_once:<8} {later:<12} {without}");
        (kept, at_once, later, without)
    };
    for units in 1..=2 {
        // As nodes do it, of any guard below a half.
        assert_eq!(row(units, 10), (0, 100, 100, 0));
        // And if one unit were kept.
        let (kept, at_once, later, without) = row(units, 100_u64.div_ceil(units) as u8);
        assert_eq!((kept, later, without), (1, 100, 100 / units));
        assert!(at_once <= 80, "many do not find it: {at_once}");
    }
    for units in 3..=5 {
        let (kept, beside, later, without) = row(units, 0);
        assert_eq!((kept, later, without), (0, 100, 0));
        let (kept, at_once, later, without) = row(units, 10);
        assert_eq!((kept, later, without), (1, 100, 100 / units));
        // Who is asked more than once takes a unit ahead, which others do not find either.
        assert!(at_once + 5 >= beside, "{at_once} beside {beside}");
    }
}

/// Where shares are below a unit for each node, one node of the region is the cell's guard node, and the others have the unit
/// of it when they ask.
#[test]
fn one_node_guards_a_cell_of_which_no_node_has_enough() {
    for regions in [&[4][..], &[3, 3], &[2, 2, 2]] {
        for spec in [window("w", 24, "1000s"), bucket("b", "1/h", 24)] {
            let each = 24 / regions.len() as u64;
            let nodes: usize = regions.iter().sum();
            let mut world = among(regions, spec.clone(), 1, false);
            let mut found = vec![0; nodes];
            for key in 0..KEYS {
                for (place, found) in found.iter_mut().enumerate() {
                    *found += u64::from(world.ask(place, &format!("k{key}"), 1));
                }
            }
            // One for each region; of many cells every node has about as many.
            let all: u64 = found.iter().sum();
            let expected = if each / (nodes / regions.len()) as u64 >= 3 { nodes } else { regions.len() };
            assert_eq!(all, KEYS * expected as u64, "{regions:?} {spec:?}: {found:?}");
            let even = all / nodes as u64;
            assert!(found.iter().all(|found| found.abs_diff(even) <= even / 3), "{regions:?}: {found:?}");
        }
    }
    // Whoever is asked first has it after a moment.
    let mut world = among(&[3], window("w", 6, "1000s"), 10, false);
    let (_, later) = passed(&mut world, 1);
    assert_eq!(later, 100);
    // And with the store the rest is found at once, too.
    let mut world = among(&[3], window("w", 9, "1000s"), 10, true);
    let (at_once, later) = passed(&mut world, 9);
    println!(
        "of 9 units at 3 nodes that hear each other {at_once} % pass at once, {later} % within a second"
    );
    assert!(at_once >= 85 && later == 100, "{at_once} {later}");
}
