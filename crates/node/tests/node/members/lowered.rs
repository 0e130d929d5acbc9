//! Regions whose shares are lowered, while some nodes have not heard.

use acequia_node::pool::GROUPS;

use super::{all, cut, passes, shared};
use crate::{
    pools::{Way, World},
    scene::{MS, S, bucket, sliding, window},
};

#[test]
fn while_nodes_have_not_heard_of_lower_shares_no_limit_is_exceeded() {
    unheard();
    unheard_and_asked();
    granted_and_unheard();
    hung_when_a_window_ends();
}

/// A node holds all of its region's pool. The region's share is lowered; the other node does not hear of this
/// for a while, and asks for more.
pub(super) fn unheard() {
    for spec in [bucket("b", "100/s", 100), sliding("s", 1_000, "10s"), window("w", 4_000, "40s")] {
        let mut world = shared(spec, [3, 3, 1, 1]);
        passes(&mut world, &[0], 20);
        cut(&mut world, &[1]);
        assert!(world.order(&all([1, 1, 3, 3])));
        passes(&mut world, &[0, 1], 12);
        cut(&mut world, &[]);
        passes(&mut world, &[0, 1, 2, 3], 120);
        world.expect_granting("when all have heard");
    }
}

/// A region's share is lowered. One node withdraws all of it before the other node, which holds nothing, has
/// heard; then the first loses its pool. The other node asks for all it can get, and hears of the lower
/// share.
pub(super) fn unheard_and_asked() {
    let mut world = shared(bucket("b", "100/s", 40), [3, 3, 1, 1]);
    cut(&mut world, &[1]);
    assert!(world.order(&all([1, 1, 3, 3])));
    passes(&mut world, &[0], 12);
    world.nodes[0].way = Way::CUT;
    passes(&mut world, &[0, 1], 6);
    cut(&mut world, &[]);
    passes(&mut world, &[0, 1, 2, 3], 60);
}

/// A grant from the next window is lost on the way. Then the region's share is lowered, and all acknowledge.
/// Requests come everywhere when the window opens.
pub(super) fn granted_and_unheard() {
    let mut world = shared(window("w", 1_000, "60s"), [9, 9, 1, 1]);
    world.loses_ahead = true;
    for number in 0..1_000 {
        world.ask(number % 2, "k", 1);
        world.pass(40 * MS);
    }
    assert!(world.order(&all([1, 1, 9, 9])));
    world.pass(2 * S);
    world.loses_ahead = false;
    // Nobody hears about use elsewhere.
    cut(&mut world, &[0, 1]);
    passes(&mut world, &[0, 1, 2, 3], 60);
}

/// A region's share of later windows is lowered, not of the open one. Two of its nodes hang until the next
/// window is open. They decide by their old shares, and have withdrawn from that window what they could.
pub(super) fn hung_when_a_window_ends() {
    let mut world = World::among_regions(&[2, 2], &[window("w", 1_000, "20s")], 50, 1);
    world.pass(S);
    assert!(world.order(&all([9, 9, 1, 1])));
    world.pass(6 * S);
    // Demand is below the share, so the nodes also withdraw from later windows.
    for number in 0..26 * 30 {
        world.ask(number % 2, "k", 1);
        world.pass(S / 30);
    }
    assert!(world.order(&all([1, 1, 9, 9])));
    world.pass(2 * S);
    // Nobody hears about use elsewhere.
    cut(&mut world, &[0, 1]);
    world.nodes[..2].iter_mut().for_each(|at| at.is_hung = true);
    passes(&mut world, &[0, 1, 2, 3], 15);
    world.nodes[..2].iter_mut().for_each(|at| at.is_hung = false);
    passes(&mut world, &[0, 1, 2, 3], 8);
    cut(&mut world, &[]);
    passes(&mut world, &[0, 1, 2, 3], 60);
    world.expect_granting("at last");
}

/// A node does not hear that shares have changed, and goes on calling. It blocks nobody: the pools go on.
#[test]
fn pools_grant_while_a_node_has_not_heard_of_new_shares() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 200), sliding("s", 1_000, "10s")] {
        let name = spec.name.clone();
        let mut world = shared(spec, [1; 4]);
        passes(&mut world, &[0, 1, 2, 3], 20);
        cut(&mut world, &[1]);
        assert!(world.order(&all([2, 1, 1, 1])));
        let mut passed = 0;
        for second in 0..20 {
            passed += passes(&mut world, &[0, 2, 3], 1)[0];
            let granting = world.nodes[0].node.lease_counts().granting;
            assert_eq!(granting, u64::from(GROUPS), "{name}: after {second} s");
        }
        // Rates are slowed by the clocks' possible drift, a thousandth.
        assert!(passed * 1_000 >= 20 * 25 * 998, "{name}: {passed}");
        // The region's new share is three fifths, but counts as the old half until node 1 has heard. Node 1
        // keeps and holds some of it. The other region's part may come on top.
        let a_second = passes(&mut world, &[0], 80);
        assert!((40..=101).contains(&a_second[0]), "{name}: {a_second:?}");
        cut(&mut world, &[]);
        passes(&mut world, &[0, 1, 2, 3], 60);
        world.expect_granting("when all have heard");
    }
}
