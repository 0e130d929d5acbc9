//! What nodes spend while their region's store is silent: their guard shares.

use acequia_limits::limit::LimitSpec;

use super::{GUARD, settled};
use crate::{
    pools::{Way, World},
    scene::{MS, S, approximate, bucket, sliding, window},
};

#[test]
fn at_low_demand_few_requests_are_denied_while_the_store_is_gone() {
    let windows = [window("w", 6_000, "60s"), window("v", 300, "3s"), window("u", 1_000, "10s")];
    for spec in windows.into_iter().chain([bucket("b", "100/s", 200), sliding("s", 1_000, "10s")]) {
        let name = spec.name.clone();
        let mut world = settled(3, spec);
        let demand = |world: &mut World, seconds: u64| {
            let denied = (0..seconds * 45).filter(|number| {
                let place = (*number % 3) as usize;
                world.pass(S / 45);
                !world.ask(place, "k", 1)
            });
            denied.count()
        };
        demand(&mut world, 90);
        world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
        let denied = demand(&mut world, 60);
        assert!(denied <= 27, "{name}: {denied} of 2700");
        world.nodes.iter_mut().for_each(|at| at.way = Way::GOOD);
        let denied = demand(&mut world, 60);
        assert!(denied <= 27, "{name}: {denied} of 2700 after it came back");
    }
}

/// A world whose server never answers.
fn without_server(nodes: usize, specs: &[LimitSpec], percent: u8) -> World {
    let mut world = World::new(nodes, specs, percent, 1);
    world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
    world
}

#[test]
fn of_a_small_limit_one_node_keeps_a_guard_unit_chosen_by_cell() {
    for spec in [window("w", 10, "1h"), bucket("b", "1/h", 10), sliding("s", 10, "1h")] {
        let mut world = without_server(3, &[spec], GUARD);
        let mut of_nodes = [0; 3];
        for key in 0..300 {
            let passed = (0..30).filter_map(|number| {
                let place = number % 3;
                world.ask(place, &format!("k{key}"), 1).then_some(place)
            });
            let passed: Vec<usize> = passed.collect();
            let [place] = passed.as_slice() else { panic!("{passed:?} of 1 unit") };
            of_nodes[*place] += 1;
        }
        assert!(of_nodes.iter().all(|keys| (70..=130).contains(keys)), "{of_nodes:?}");
    }
}

#[test]
fn without_a_guard_share_nothing_passes_while_the_store_is_silent() {
    let specs = [window("w", 1_000, "10s"), bucket("b", "1000000/s", 1_000_000), sliding("s", 1_000, "10s")];
    for spec in specs {
        let mut world = without_server(2, &[spec], 0);
        for number in 0..1_000 {
            assert!(!world.ask(number % 2, "k", 1), "{number}");
            world.pass(100 * MS);
        }
    }
}

/// A guard share's spent units stay spent, whatever happens to the limit and the process.
#[test]
fn a_spent_guard_share_stays_spent_if_its_limit_is_lowered_and_raised() {
    // A node's guard share of one unit a second is a twentieth.
    let earned = 302_u64.div_ceil(20);
    type Spec = fn(u64) -> LimitSpec;
    let algorithms: [(Spec, u64); 5] = [
        (|limit| window("l", limit, "600s"), 0),
        (|limit| bucket("l", "1/s", limit), earned),
        (|limit| sliding("l", limit, "600s"), 0),
        // Few enough units for a log of each charge.
        (|limit| sliding("l", limit / 20, "600s"), 0),
        // The estimate has forgotten half of the spent units by then.
        (|limit| approximate("l", limit, "600s"), 25),
    ];
    for (of, earned) in algorithms {
        let mut world = without_server(2, &[of(1_000)], GUARD);
        while world.ask(0, "k", 1) {}
        let spent = world.admitted(0, "k");
        assert!(spent >= 2, "{spent} of {:?}", of(1_000));
        world.renumber(&[of(100)]);
        world.pass(S);
        world.crash(0);
        // Under the lower limit, everything that a bucket earns meanwhile is spent.
        for _ in 0..300 {
            world.pass(S);
            world.ask(0, "k", 1);
        }
        world.renumber(&[of(1_000)]);
        world.pass(S);
        while world.ask(0, "k", 1) {}
        let all = world.admitted(0, "k");
        assert!(all <= spent + earned, "{all} after {spent} and {earned} of {:?}", of(1_000));
    }
}
