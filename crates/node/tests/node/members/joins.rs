//! Nodes that join a region or leave it.

use acequia_limits::limit::LimitSpec;
use acequia_node::pool::GROUPS;

use super::{GUARD, all, cut, passes, passes_in_all, shared};
use crate::{
    pools::{Way, World},
    scene::{self, S, bucket, window},
};

/// A region gains a node. The others wait for its report once it is a member, not before.
#[test]
fn pools_wait_for_a_joining_node_once_it_is_a_member() {
    let mut world = World::among_regions(&[2, 2], &[window("w", 20_000, "1000s")], GUARD, 1);
    world.nodes[1].way = Way::CUT;
    world.pass(S);
    assert!(world.order(&[(0, 1), (2, 1), (3, 1)]));
    passes(&mut world, &[0, 2, 3], 10);
    let granting = |world: &World| world.nodes[0].node.lease_counts().granting;
    world.server.restart(None);
    world.pass(10 * S);
    assert_eq!(granting(&world), u64::from(GROUPS), "without who is to join");
    // The order costs nothing of the open window.
    assert!(world.order(&all([1; 4])));
    world.pass(10 * S);
    let passed = passes(&mut world, &[0], 1)[0];
    assert!(passed > 50, "{passed}");
    world.server.restart(None);
    world.pass(10 * S);
    assert_eq!(granting(&world), 0, "it may have taken of pools");
    world.nodes[1].way = Way::GOOD;
    passes(&mut world, &[0, 1], 10);
    world.expect_granting("when it is there");
}

/// A region gains a node that has heard of nothing. What the region has in an open window, or has saved up,
/// stays available.
#[test]
fn a_node_that_joins_costs_the_pool_no_units() {
    for spec in [window("w", 2_000, "1000s"), bucket("b", "1/s", 2_000)] {
        let name = spec.name.clone();
        let mut world = World::among_regions(&[2, 2], &[spec], GUARD, 1);
        world.nodes[1].way = Way::CUT;
        world.pass(S);
        world.lose_disk(1);
        assert!(world.order(&[(0, 1), (2, 1), (3, 1)]));
        world.pass(10 * S);
        passes(&mut world, &[0], 1);
        world.pass(5 * S);
        let before = world.admitted(0, "k");
        assert!(before >= 190, "{name}: {before}");
        let generations = world.nodes[0].node.lease_counts().generations;
        world.nodes[1].way = Way::GOOD;
        assert!(world.order(&all([1; 4])));
        world.pass(20 * S);
        world.expect_granting("with one more");
        assert!(world.nodes[0].node.lease_counts().generations > generations, "{name}: it cannot know");
        // No other region can give anything. What passes comes from the third that one node had.
        cut(&mut world, &[2, 3]);
        passes(&mut world, &[0, 1], 20);
        let all = world.admitted(0, "k");
        assert!((620..=700).contains(&all), "{name}: {before} before, {all} in all");
    }
}

/// Three of four nodes in two regions share a limit of one cell. Its window stays open for a long time.
fn before_a_node_joins(spec: LimitSpec) -> World {
    let mut world = World::among_regions(&[2, 2], &[spec], GUARD, 1);
    world.nodes[1].way = Way::CUT;
    world.pass(S);
    assert!(world.order(&[(0, 1), (2, 1), (3, 1)]));
    world.pass(10 * S);
    // If the cell is staggered, its current window must stay open for long.
    world.ask(0, "k", 1);
    let left_ns = world.holding(0, "k").window_ns.saturating_sub(world.now(0).wall_ns);
    world.pass(if left_ns < 300 * S { left_ns + S } else { 0 });
    world
}

/// A node joins when all of a staggered window is spent. It gets only its own part of later windows.
pub(super) fn joined_when_all_was_spent() {
    let mut world = before_a_node_joins(scene::staggered("w", 2_000, "1000s"));
    passes_in_all(&mut world, &[0, 2, 3], 60);
    assert!(world.admitted(0, "k") >= 1_900);
    world.nodes[1].way = Way::GOOD;
    assert!(world.order(&all([1; 4])));
    world.pass(20 * S);
    passes_in_all(&mut world, &[1], 10);
    world.pass(1_000 * S);
    let before = world.admitted(0, "k");
    passes_in_all(&mut world, &[1], 10);
    assert!(world.admitted(0, "k") > before + 100, "its own, of the next one");
}

#[test]
fn a_node_that_joins_has_its_own_part_only_of_later_windows() {
    joined_when_all_was_spent();
}

/// A region gains a node and so a larger share. In the open window the other region keeps what it had; from
/// the next window it has its new share.
fn moves_with_a_node_that_joins(spec: LimitSpec) -> [[u64; 2]; 2] {
    let mut world = before_a_node_joins(spec);
    // No region gives another anything before the join,
    cut(&mut world, &[2, 3]);
    let before = passes_in_all(&mut world, &[0, 2, 3], 1);
    // nor afterwards, because nobody needs anything by then.
    world.pass(30 * S);
    cut(&mut world, &[]);
    world.nodes[1].way = Way::GOOD;
    assert!(world.order(&all([1; 4])));
    world.pass(20 * S);
    world.expect_granting("with one more");
    // No region gives another anything.
    cut(&mut world, &[2, 3]);
    let joined = passes_in_all(&mut world, &[1], 1)[1];
    assert!(joined > 50, "its region's pool has something for it: {joined}");
    let of_regions = |passed: &[u64]| [passed[0] + passed[1], passed[2] + passed[3]];
    let open = of_regions(&passes_in_all(&mut world, &[0, 1, 2, 3], 40));
    let before = of_regions(&before);
    let open = [open[0] + before[0] + joined, open[1] + before[1]];
    world.pass(1_000 * S);
    let next = of_regions(&passes_in_all(&mut world, &[0, 1, 2, 3], 40));
    [open, next]
}

#[test]
fn a_share_moved_by_a_join_stays_usable_until_its_window_ends() {
    for spec in [window("w", 2_000, "1000s"), scene::staggered("w", 2_000, "1000s")] {
        let [open, next] = moves_with_a_node_that_joins(spec);
        println!("{open:?} of the open window, {next:?} of the next");
        assert!(open[0] >= 640 && open[1] >= 1_310, "{open:?}");
        assert!(next.iter().all(|of_region| (960..=1_000).contains(of_region)), "{next:?}");
    }
}

/// A node joins and is asked. Nobody has needed the pool before, so nobody has called it.
#[test]
fn a_node_that_joins_gets_units_of_a_pool_without_earlier_calls() {
    let mut world = World::among_regions(&[2, 2], &[window("w", 2_000, "1000s")], GUARD, 1);
    world.nodes[1].way = Way::CUT;
    world.pass(S);
    assert!(world.order(&[(0, 1), (2, 1), (3, 1)]));
    world.pass(10 * S);
    world.nodes[1].way = Way::GOOD;
    assert!(world.order(&all([1; 4])));
    world.pass(20 * S);
    cut(&mut world, &[2, 3]);
    let calls = |world: &World| world.nodes[0].node.lease_counts().calls;
    let idle = calls(&world);
    world.pass(30 * S);
    let idle = calls(&world) - idle;
    let before = calls(&world);
    let joined = passes_in_all(&mut world, &[1], 2)[1];
    assert!(joined > 100, "{joined}");
    // The node says so once, however long requests come.
    passes_in_all(&mut world, &[1], 28);
    let said = (calls(&world) - before).saturating_sub(idle);
    assert!(said <= 20, "{said} calls more than of a node that nobody asks, {idle}");
}

/// Each node has one unit of a window, so pools are empty. With staggered cells, a node that joins has no
/// unit of its own in windows that began before. In windows that began since, others give it some of theirs.
#[test]
fn a_node_that_joins_gets_units_of_windows_that_began_later() {
    let mut world = World::among_regions(&[2, 2], &[scene::staggered("w", 4, "100s")], GUARD, 1);
    world.nodes[1].way = Way::CUT;
    world.pass(S);
    assert!(world.order(&[(0, 1), (2, 1), (3, 1)]));
    world.pass(10 * S);
    world.nodes[1].way = Way::GOOD;
    assert!(world.order(&all([1; 4])));
    world.pass(20 * S);
    world.expect_granting("with one more");
    let keys: Vec<String> = (0..12).map(|number| format!("k{number}")).collect();
    // Each key begins a window during one window length.
    let (mut passed, mut begun) = (0, 0);
    let mut ends_ns = vec![0; keys.len()];
    for second in 0..70 {
        for (key, end_ns) in keys.iter().zip(&mut ends_ns) {
            world.ask(1, key, 4);
            let now_ns = world.holding(1, key).window_ns;
            if std::mem::replace(end_ns, now_ns) != now_ns && second > 0 {
                begun += 1;
                world.pass(S);
                passed += (0..4).map(|_| u64::from(world.ask_and_wait(1, key, 1))).sum::<u64>();
            }
        }
        world.pass(S);
    }
    assert!(begun >= 4 && passed >= 2 * begun, "{passed} of {begun} windows of four");
}

/// The node that knew what its region has of a window leaves. A node that joined since goes on by what that
/// node reported.
#[test]
fn a_node_that_leaves_costs_its_mates_no_units() {
    let mut world = World::among_regions(&[2, 2], &[window("w", 2_000, "1000s")], GUARD, 1);
    world.nodes[3].way = Way::CUT;
    world.pass(S);
    assert!(world.order(&[(0, 1), (1, 1), (2, 1)]));
    world.pass(10 * S);
    passes(&mut world, &[2], 1);
    world.nodes[3].way = Way::GOOD;
    assert!(world.order(&all([1; 4])));
    world.pass(20 * S);
    assert!(world.order(&[(0, 1), (1, 1), (3, 1)]));
    world.pass(20 * S);
    cut(&mut world, &[0, 1]);
    let joined = passes_in_all(&mut world, &[3], 2)[3];
    assert!(joined > 100, "{joined}");
}

/// A joining node reaches a replaced server, and joins while its mate uses the successor.
pub(super) fn joined_at_a_server_that_was_replaced() {
    let mut world = World::among_regions(&[2, 2], &[window("w", 1_000, "10s")], GUARD, 1);
    world.pass(S);
    assert!(world.order(&[(0, 1), (2, 1), (3, 1)]));
    passes(&mut world, &[0], 20);
    let replaced = world.server.clone();
    world.server.restart(Some(&replaced));
    world.old = Some(replaced);
    world.nodes[1].is_left_behind = true;
    passes(&mut world, &[0], 20);
    assert!(world.order(&all([1; 4])));
    passes(&mut world, &[0], 20);
    // Nobody hears about use elsewhere.
    cut(&mut world, &[0, 1, 2, 3]);
    passes(&mut world, &[0, 1, 2, 3], 60);
    // The node gets its part when it reaches the right server.
    cut(&mut world, &[]);
    world.nodes[1].is_left_behind = false;
    passes(&mut world, &[0, 1], 20);
    world.expect_granting("in the end");
    let a_second = passes(&mut world, &[0, 1], 20);
    assert!(a_second[1] >= 20, "{a_second:?}");
}

#[test]
fn a_joining_node_gets_nothing_from_a_replaced_server() {
    joined_at_a_server_that_was_replaced();
}

/// A node withdraws from a window, uses the units, and leaves. The pools are then lost, and nobody waits for
/// it. Its units must not be granted again.
pub(super) fn left_and_forgotten() {
    let mut world = shared(window("w", 1_000, "1000s"), [1; 4]);
    let used = passes(&mut world, &[1], 2)[1] * 2;
    assert!(used >= 390, "{used}");
    assert!(world.order(&[(0, 1), (2, 1), (3, 1)]));
    world.pass(10 * S);
    world.nodes[1].way = Way::CUT;
    world.server.restart(None);
    world.pass(10 * S);
    assert_eq!(world.nodes[0].node.lease_counts().granting, u64::from(GROUPS));
    passes(&mut world, &[0, 2, 3], 20);
}

#[test]
fn units_withdrawn_by_a_node_that_left_are_not_granted_again() {
    left_and_forgotten();
}

/// A node that leaves gives up its share, and other regions receive it. Its region's other nodes can withdraw
/// the pool's units once it is no member.
#[test]
fn a_node_that_leaves_has_no_share() {
    let mut world = shared(bucket("b", "100/s", 200), [1; 4]);
    passes(&mut world, &[0, 1, 2, 3], 10);
    assert!(world.order(&[(0, 1), (2, 1), (3, 1)]));
    passes(&mut world, &[0, 2], 60);
    assert!(!world.ask(1, "k", 1), "it has no share");
    let a_second = passes(&mut world, &[2], 20);
    assert!((60..=100).contains(&a_second[2]), "{a_second:?}");
}
