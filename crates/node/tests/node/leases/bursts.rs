//! Bursts of requests, and pools that may not grant yet.

use super::settled;
use crate::{
    pools::Way,
    scene::{MS, S, bucket, sliding, window},
};

/// A burst of requests for a key without earlier requests comes at one node, like a page load.
#[test]
fn a_burst_of_first_requests_for_a_key_passes() {
    for (spec, nodes) in [
        (window("w", 60, "60s"), 3),
        (bucket("b", "1/s", 60), 3),
        (sliding("s", 60, "60s"), 3),
        (window("w", 30, "10s"), 10),
        (bucket("b", "10/s", 30), 10),
        (sliding("s", 30, "10s"), 10),
    ] {
        let name = spec.name.clone();
        let mut world = settled(nodes, spec);
        world.is_prompt = true;
        world.pass(2 * S);
        let mut passed = 0;
        for number in 0..10 {
            let late = world.passed_late;
            for _ in 0..8 {
                passed += u64::from(world.ask_or_wait(number % nodes, &format!("cold{number}"), 1));
            }
            world.pass(50 * MS);
            passed += world.passed_late - late;
        }
        assert!(passed >= 78, "{name} with {nodes}: {passed} of 80 passed");
    }
}

/// More requests come at once than there are units. At least about half of the units pass, whatever each
/// request costs.
#[test]
fn a_burst_above_the_limit_gets_at_least_about_half_the_units() {
    for (spec, cost, least) in [
        (window("w", 20, "60s"), 1, 9),
        (bucket("b", "1/s", 20), 1, 9),
        (sliding("s", 20, "60s"), 1, 9),
        (window("w", 20, "60s"), 4, 2),
        (sliding("s", 20, "60s"), 4, 2),
    ] {
        let name = spec.name.clone();
        let mut world = settled(3, spec);
        world.is_prompt = true;
        world.pass(2 * S);
        for number in 0..6 {
            let late = world.passed_late;
            let at_once =
                (0..30).filter(|_| world.ask_or_wait(number % 3, &format!("cold{number}"), cost)).count();
            world.pass(50 * MS);
            let passed = at_once as u64 + world.passed_late - late;
            assert!(passed >= least, "{name}: {passed} of {cost}");
        }
    }
}

/// A pool that may not grant yet has much left. Nodes must not ask such a pool again and again.
#[test]
fn a_pool_that_may_not_grant_yet_is_called_rarely() {
    for spec in [window("w", 200, "60s"), sliding("s", 200, "60s")] {
        let name = spec.name.clone();
        let mut world = settled(3, spec);
        world.is_prompt = true;
        // The pool grants when all nodes have reported what they hold. One node cannot.
        world.nodes[2].way = Way::CUT;
        world.server.restart(None);
        world.pass(3 * S);
        let calls = world.calls;
        for _ in 0..4_000 {
            world.ask(0, "k", 1);
            world.ask(0, "k", 1);
            world.pass(MS / 4);
        }
        println!("{name}: {} calls", world.calls - calls);
        assert!(world.calls - calls < 300, "{name}: {} calls in a second", world.calls - calls);
    }
}
