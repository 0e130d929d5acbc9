//! Nodes that are gone. Pools wait for such a node until an operator excludes it, or until files no longer
//! name it.

use acequia_limits::limit::LimitSpec;
use acequia_node::pool::{EXCLUDED_NS_MAX, GROUPS, NotExcluded};

use super::{GUARD, settled};
use crate::{
    pools::{Way, World},
    scene::{S, bucket, sliding, window},
};

/// A node of three is gone when the server forgets, and nobody has excluded it yet. The node goes on spending
/// what it holds, like a node that is only cut off.
fn bereft(spec: LimitSpec) -> World {
    let mut world = settled(3, spec);
    for number in 0..3_000 {
        world.ask(number % 3, "k", 1);
        world.pass(S / 200);
    }
    world.nodes[2].way = Way::CUT;
    world.server.restart(None);
    world
}

/// Units that pass in this time, if each node is asked for more than there is.
fn passes_in(world: &mut World, seconds: u64) -> u64 {
    let before = world.admitted(0, "k");
    for number in 0..seconds * 600 {
        world.ask((number % 3) as usize, "k", 1);
        world.pass(S / 600);
    }
    world.admitted(0, "k") - before
}

#[test]
fn pools_wait_for_a_gone_node_until_an_operator_excludes_it() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 1_000), sliding("s", 1_000, "10s")] {
        let name = spec.name.clone();
        let mut world = bereft(spec);
        passes_in(&mut world, 90);
        let counts = world.nodes[0].node.lease_counts();
        assert!(counts.granting < u64::from(GROUPS), "{name}: {counts:?}");
        // The two nodes keep what they hold of a bucket. Each new window has only the guard shares.
        let alone = passes_in(&mut world, 20);
        assert!(alone <= 250 || name != "w", "{name}: {alone} units in 20 seconds");

        let third = 3;
        let node = &world.nodes[0].node;
        assert_eq!(node.exclude(1, S, world.now(0)), Err(NotExcluded::Itself));
        assert_eq!(node.exclude(9, S, world.now(0)), Err(NotExcluded::Unknown));
        assert_eq!(node.exclude(third, EXCLUDED_NS_MAX + 1, world.now(0)), Err(NotExcluded::TooLong));
        node.exclude(third, 600 * S, world.now(0)).expect("a node of the region");
        assert_eq!(node.excluded(world.now(0)).into_keys().collect::<Vec<_>>(), [third]);
        // Until the third node's leases end, pools grant nothing from buckets, and nothing more from windows
        // that had begun.
        passes_in(&mut world, 80);
        let counts = world.nodes[1].node.lease_counts();
        assert_eq!(counts.granting, u64::from(GROUPS), "{name}: {counts:?}");
        let together = passes_in(&mut world, 20);
        assert!(together >= 1_800, "{name}: {together} units of 2000 in 20 seconds");

        // The third node was only cut off, and returns. Then nobody is excluded, and the server forgets
        // again.
        world.nodes[2].way = Way::GOOD;
        world.nodes[0].node.exclude(third, 0, world.now(0)).expect("a node of the region");
        passes_in(&mut world, 20);
        world.server.restart(None);
        passes_in(&mut world, 20);
        let counts = world.nodes[2].node.lease_counts();
        assert_eq!(counts.granting, u64::from(GROUPS), "{name}: {counts:?}");
    }
}

#[test]
fn the_exclusion_of_a_node_ends_in_time() {
    let mut world = bereft(bucket("b", "100/s", 1_000));
    world.nodes[0].node.exclude(3, 20 * S, world.now(0)).expect("a node of the region");
    passes_in(&mut world, 25);
    assert!(world.nodes[0].node.excluded(world.now(0)).is_empty());
    assert_eq!(
        world.nodes[0].node.lease_counts().granting,
        u64::from(GROUPS),
        "it counted when it was given"
    );
    world.server.restart(None);
    passes_in(&mut world, 20);
    assert!(world.nodes[0].node.lease_counts().granting < u64::from(GROUPS), "it counts no more");
}

#[test]
fn pools_wait_for_a_node_that_is_not_excluded() {
    stranded();
}

/// A server is replaced and lives on. One of three nodes still reaches the old server, and another is cut off
/// and excluded.
pub(crate) fn stranded() {
    let mut world = settled(3, window("w", 1_000, "10s"));
    let replaced = world.server.clone();
    world.server.restart(Some(&replaced));
    world.old = Some(replaced);
    world.nodes[1].is_left_behind = true;
    world.nodes[2].way = Way::CUT;
    world.nodes[0].node.exclude(3, 600 * S, world.now(0)).expect("a node of the region");
    // One unit too many is a panic.
    passes_in(&mut world, 150);
    world.nodes[1].is_left_behind = false;
    passes_in(&mut world, 150);
    for place in 0..2 {
        let counts = world.nodes[place].node.lease_counts();
        assert_eq!(counts.granting, u64::from(GROUPS), "node {place}: {counts:?}");
    }
}

#[test]
fn an_excluded_node_may_spend_its_earlier_withdrawals() {
    for length_s in [2, 10, 60, 300] {
        beforehand(length_s);
    }
}

/// A node withdraws much, even from future windows. It is cut off and excluded, and goes on spending.
pub(crate) fn beforehand(length_s: u64) {
    let mut world = World::new(3, &[window("w", 1_000, &format!("{length_s}s"))], GUARD, 1);
    // Go to the beginning of a later window. The requests below last for a third of 300 s.
    let wall_ns = world.now(0).wall_ns;
    world.pass((wall_ns.next_multiple_of(300 * S) - wall_ns) + 300 * S);
    // A rate at which some of the open window is left.
    let a_second = (1_500 / length_s).min(60);
    for _ in 0..100 * a_second {
        world.ask(2, "k", 1);
        world.pass(S / a_second);
    }
    world.nodes[2].way = Way::CUT;
    world.pass(S / 2);
    world.server.restart(None);
    world.nodes[0].node.exclude(3, 600 * S, world.now(0)).expect("a node of the region");
    let ask_all = |world: &mut World, seconds: u64| {
        let before = world.admitted(0, "k");
        for _ in 0..seconds * 50 {
            for place in [2, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0] {
                world.ask(place, "k", 1);
            }
            world.pass(S / 50);
        }
        world.admitted(0, "k") - before
    };
    // One unit too many is a panic.
    ask_all(&mut world, 210);
    let passed = ask_all(&mut world, 300);
    assert!(passed >= 800 * 300 / length_s, "{length_s} s: {passed} passed");
}
