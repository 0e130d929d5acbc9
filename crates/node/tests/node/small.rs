//! Limits with fewer units than there are nodes: what passes at once, what passes on a retry, and what passes
//! without the store.

use crate::pools::{Way, World};
use crate::scene::{MS, S, bucket, sliding, window};
use acequia_limits::limit::LimitSpec;

/// How many cells are asked for.
const KEYS: u64 = 200;

/// Each cell has `units`. Returns two percentages of them: what passed at once, with one request at a random
/// node for each unit, and what had passed after another second of requests at all nodes.
fn passed(world: &mut World, units: u64) -> (u64, u64) {
    world.is_prompt = true;
    let nodes = world.nodes.len() as u64;
    let mut at_once = 0;
    for key in 0..KEYS {
        for _ in 0..units {
            let place = world.below(nodes) as usize;
            at_once += u64::from(world.ask_and_wait(place, &format!("k{key}"), 1));
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

/// Why no guard node keeps a unit if there are few: while the store is reachable, most requests would not
/// find that unit. A cell with few units is therefore exact, and passes nothing without the store. With four
/// units or more, a guard node keeps one, and few requests are denied at first.
#[test]
fn a_guard_unit_of_a_tiny_limit_delays_answers_and_serves_store_outages() {
    println!("of four nodes, in percent      with the store       without");
    println!("units  with the guard node    at once  in a second  in a second");
    let row = |units: u64, percent: u8| {
        let spec = || window("w", units, "1000s");
        let (at_once, later) = passed(&mut alone(spec(), percent, true), units);
        let (_, without) = passed(&mut alone(spec(), percent, false), units);
        let kept = (units * u64::from(percent) / 100).max(u64::from(percent > 0 && units >= 4));
        println!("{units:<6} {kept:<22} {at_once:<8} {later:<12} {without}");
        (kept, at_once, later, without)
    };
    for units in 1..=2 {
        // The nodes' behaviour for any guard below a half.
        assert_eq!(row(units, 10), (0, 100, 100, 0));
        // The behaviour if one unit were kept.
        let (kept, at_once, later, without) = row(units, 100_u64.div_ceil(units) as u8);
        assert_eq!((kept, later, without), (1, 100, 100 / units));
        assert!(at_once <= 80, "many do not find it: {at_once}");
    }
    for units in 4..=6 {
        let (kept, beside, later, without) = row(units, 0);
        assert_eq!((kept, later, without), (0, 100, 0));
        let (kept, at_once, later, without) = row(units, 10);
        assert_eq!((kept, later, without), (1, 100, 100 / units));
        // Only requests that chance sends to the node with the last unit find this unit at once.
        assert!(beside == 100 && at_once >= 90, "{at_once} beside {beside}");
    }
}

/// Asks for this percentage of the units of ten cells, at random nodes for half a minute. Callers wait for
/// pools. Returns the part that passed of what could have, and calls a request.
fn used(spec: &LimitSpec, a_second: u64, load_percent: u64) -> (f64, f64) {
    const NODES: u64 = 10;
    const CELLS: u64 = 10;
    const SECONDS: u64 = 30;
    let mut world = World::new(NODES as usize, std::slice::from_ref(spec), 10, 1);
    world.is_prompt = true;
    world.pass(60 * S);
    let mean_ns = S * 100 / (a_second * CELLS * load_percent);
    let (mut asked, mut passed, calls, begun_ns) = (0, 0, world.calls, world.true_ns);
    while world.true_ns < begun_ns + SECONDS * S {
        let (place, cell) = (world.below(NODES) as usize, world.below(CELLS));
        asked += 1;
        passed += u64::from(world.ask_and_wait(place, &format!("l{cell}"), 1));
        let pause_ns = world.below(2 * mean_ns);
        world.pass(pause_ns);
    }
    let could = asked.min(a_second * CELLS * SECONDS);
    (passed as f64 / could as f64, (world.calls - calls) as f64 / asked as f64)
}

/// If a pool has few units a node, no node holds units it does not use. Requests at every node find what
/// there is.
#[test]
fn few_units_of_a_pool_can_be_spent_at_every_node() {
    println!(
        "ten cells at ten nodes, by how much of them is asked for: what passed of that, and calls a request"
    );
    println!("each cell has            25 %            50 %            100 %");
    for (name, spec, a_second, least) in [
        ("20 a second, 20 at once", bucket("l", "20/s", 20), 20, [0.98, 0.98, 0.95]),
        ("20 in any second", sliding("l", 20, "1s"), 20, [0.97, 0.95, 0.65]),
        ("20 in 10 seconds", window("l", 20, "10s"), 2, [0.97, 0.95, 0.85]),
    ] {
        let all = [25, 50, 100].map(|load| used(&spec, a_second, load));
        print!("{name:<25}");
        all.iter().for_each(|(part, calls)| print!("{part:.3} ({calls:.1})     "));
        println!();
        for ((part, _), least) in all.iter().zip(least) {
            assert!(*part >= least, "{name}: {part} is less than {least}");
        }
    }
}

/// A request needs two units at a node that holds one. The call returns this unit, and the reply brings both,
/// so the request passes on a retry.
#[test]
fn a_request_for_two_units_of_a_scarce_pool_passes_soon() {
    for cell in 0..4 {
        let mut world = World::new(10, &[bucket("l", "20/s", 20)], 10, 1);
        world.is_prompt = true;
        world.pass(60 * S);
        let key = format!("l{cell}");
        world.ask(0, &key, 2);
        world.pass(5 * MS);
        // Another request takes one of the units that arrived.
        world.ask(0, &key, 1);
        let calls = world.calls;
        let tries = (0..25).take_while(|_| {
            world.pass(20 * MS);
            !world.ask(0, &key, 2)
        });
        let tries = tries.count();
        assert!(tries <= 3 && world.calls <= calls + 8, "{tries} tries, {} calls", world.calls - calls);
    }
}
