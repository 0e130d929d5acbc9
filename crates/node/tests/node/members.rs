//! Regions of several nodes: regions share through the catalogue, and the nodes of a region share through
//! pools.

mod loans;

use crate::pools::{Way, World};
use crate::scene::{self, MS, S, bucket, sliding, window};
use acequia_limits::limit::LimitSpec;
use acequia_node::pool::GROUPS;
use loans::{
    given_once, lent_and_asked, lent_and_cut, lent_and_less_by_time, lent_and_ordered, lent_at_the_end,
    lent_by_one, lent_by_one_and_ordered, lent_by_one_that_crashes, lent_by_one_that_is_gone,
};

/// Sum of all guard shares, in percent.
const GUARD: u8 = 10;

/// Two regions of two nodes each, with shares by these weights.
fn shared(spec: LimitSpec, weights: [u32; 4]) -> World {
    shared_by(1, spec, weights)
}

/// Like [`shared`], with a seed.
fn shared_by(seed: u64, spec: LimitSpec, weights: [u32; 4]) -> World {
    let mut world = World::among_regions(&[2, 2], &[spec], GUARD, seed);
    world.pass(S);
    assert!(world.order(&all(weights)));
    world.pass(6 * S);
    world.expect_granting("at first");
    world
}

/// Cuts these nodes off from all frames.
fn cut(world: &mut World, places: &[usize]) {
    world.regions.as_mut().expect("regions").cut = places.iter().copied().collect();
}

fn all(weights: [u32; 4]) -> Vec<(usize, u32)> {
    weights.into_iter().enumerate().collect()
}

/// Asks for twice the limit, evenly at some nodes. Returns what passes at each node a second.
fn passes(world: &mut World, places: &[usize], seconds: u64) -> Vec<u64> {
    passes_in_all(world, places, seconds).iter().map(|passed| passed / seconds).collect()
}

fn passes_in_all(world: &mut World, places: &[usize], seconds: u64) -> Vec<u64> {
    let mut passed = vec![0; world.nodes.len()];
    for number in 0..seconds * 200 {
        let place = places[(number % places.len() as u64) as usize];
        passed[place] += u64::from(world.ask(place, "k", 1));
        world.pass(5 * MS);
    }
    passed
}

#[test]
fn a_node_without_a_catalogue_owns_nothing() {
    let mut world = World::among_regions(&[2, 2], &[bucket("b", "100/s", 100)], GUARD, 1);
    world.pass(5 * S);
    assert!((0..4).all(|place| !world.ask(place, "k", 1)));
}

#[test]
fn one_busy_node_gets_nearly_all_units_of_all_regions() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 1_000), sliding("s", 1_000, "10s")] {
        let name = spec.name.clone();
        let mut world = shared(spec, [3, 3, 1, 1]);
        passes(&mut world, &[0], 20);
        let a_second = passes(&mut world, &[0], 40);
        // Its region's part and the other region's, whose nodes nobody asks.
        assert!(a_second[0] >= 90, "{name}: {a_second:?}");
        passes(&mut world, &[0, 1, 2, 3], 20);
        let a_second = passes(&mut world, &[0, 1, 2, 3], 40);
        let all: u64 = a_second.iter().sum();
        assert!(all >= 94 && a_second.iter().all(|each| *each >= 10), "{name}: {a_second:?}");
    }
}

#[test]
fn new_weights_change_what_each_region_may_spend() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 200), sliding("s", 1_000, "10s")] {
        let name = spec.name.clone();
        let mut world = shared(spec, [3, 3, 1, 1]);
        passes(&mut world, &[0, 2], 20);
        assert!(world.order(&all([1, 1, 3, 3])));
        passes(&mut world, &[0, 2], 60);
        world.expect_granting("with other weights");
        passes(&mut world, &[0, 2], 60);
        // All want more than there is, so each region gets its own part.
        let a_second = passes(&mut world, &[0, 1, 2, 3], 100);
        let of_regions = [a_second[0] + a_second[1], a_second[2] + a_second[3]];
        // Windows divide by demand, rates by share.
        let least = if name == "w" { [45, 45] } else { [20, 65] };
        assert!(of_regions[0] >= least[0] && of_regions[1] >= least[1], "{name}: {a_second:?}");
    }
}

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
fn joined_when_all_was_spent() {
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

/// A limit is removed, its region's share is lowered, and a node joins; then the limit returns. Reports about
/// its pool meanwhile used the old allocation.
fn said_of_a_limit_that_was_gone() {
    let mut world = World::among_regions(&[2, 2], &[window("w", 1_000, "60s")], GUARD, 1);
    world.nodes[1].way = Way::CUT;
    world.pass(S);
    assert!(world.order(&[(0, 9), (2, 1), (3, 1)]));
    world.pass(6 * S);
    // Demand is below the share, so the node also withdraws from the next window.
    for _ in 0..40 * 12 {
        world.ask(0, "k", 1);
        world.pass(S / 12);
    }
    let specs = std::mem::take(&mut world.specs);
    assert!(world.order(&[(0, 9), (2, 1), (3, 1)]));
    world.pass(S);
    assert!(world.order(&[(0, 1), (2, 9), (3, 9)]));
    world.pass(15 * S);
    // Now the next window is open.
    world.nodes[1].way = Way::GOOD;
    assert!(world.order(&[(0, 1), (1, 1), (2, 9), (3, 9)]));
    world.pass(10 * S);
    // Node 0 reports no more.
    world.nodes[0].way = Way::CUT;
    world.specs = specs;
    assert!(world.order(&[(0, 1), (1, 1), (2, 9), (3, 9)]));
    world.pass(2 * S);
    // Nobody hears about use elsewhere.
    cut(&mut world, &[0, 1, 2, 3]);
    passes(&mut world, &[1, 2, 3], 20);
}

#[test]
fn reports_about_a_removed_limits_pool_do_not_count_when_it_returns() {
    said_of_a_limit_that_was_gone();
}

/// Possible spending by an earlier process counts once, however often the limit is lowered and raised.
#[test]
fn units_leased_after_a_restart_survive_changes_of_the_limit() {
    let mut world = shared(window("w", 2_000, "1000s"), [1; 4]);
    passes(&mut world, &[0], 1);
    world.crash(0);
    world.pass(10 * S);
    let before = world.admitted(0, "k");
    passes(&mut world, &[0], 1);
    for units in [1_000, 2_000].repeat(10) {
        world.specs = vec![window("w", units, "1000s")];
        assert!(world.order(&all([1; 4])));
        world.pass(S);
        world.ask(0, "k", 1);
        world.pass(S);
    }
    // No region gives another anything.
    cut(&mut world, &[2, 3]);
    passes(&mut world, &[0, 1], 20);
    let all = world.admitted(0, "k");
    assert!((800..=1_000).contains(&all), "{before} before, {all} in all");
}

/// A joining node reaches a replaced server, and joins while its mate uses the successor.
fn joined_at_a_server_that_was_replaced() {
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
fn left_and_forgotten() {
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

#[test]
fn while_nodes_have_not_heard_of_lower_shares_no_limit_is_exceeded() {
    unheard();
    unheard_and_asked();
    granted_and_unheard();
    hung_when_a_window_ends();
}

/// A node holds all of its region's pool. The region's share is lowered; the other node does not hear of this
/// for a while, and asks for more.
fn unheard() {
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
fn unheard_and_asked() {
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
fn granted_and_unheard() {
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
fn hung_when_a_window_ends() {
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

/// A random history of one limit. The seed determines which orders and faults happen, how often, and when.
/// All that passes is counted by true time, and one unit too many is a panic. At the end everything heals,
/// and pools must grant again.
fn history(seed: u64) {
    let spec = [
        // Long windows are open when shares change. Some staggered windows began before the change, some
        // after.
        [
            window("w", 40, "2s"),
            window("w", 40, "5s"),
            scene::staggered("w", 40, "5s"),
            scene::staggered("w", 40, "10s"),
        ][(seed / 8 % 4) as usize]
            .clone(),
        bucket("b", "20/s", 40),
        sliding("s", 40, "2s"),
        scene::leaky("l", "20/s", 40, acequia_limits::limit::NoWait::Deny),
    ];
    let nodes: &[usize] = [&[2, 2][..], &[2, 1], &[3, 2], &[1, 2, 2]][(seed / 4 % 4) as usize];
    let spec = &spec[(seed % 4) as usize..=(seed % 4) as usize];
    let mut world = World::among_regions(nodes, spec, [10, 30][(seed / 16 % 2) as usize], seed);
    let count = world.nodes.len();
    let weights = |world: &mut World| -> Vec<(usize, u32)> {
        (0..count).map(|place| (place, 1 + world.below(4) as u32)).collect()
    };
    world.pass(S);
    assert!(world.order(&(0..count).map(|place| (place, 1)).collect::<Vec<_>>()));
    // Average number of steps between two events.
    let mut often = || [30, 100, 300, u64::MAX][world.below(4) as usize];
    let (orders, forgets, crashes, ways, cuts) = (often(), often(), often(), often(), often());
    let stops = often().saturating_mul(2);
    // The node with the most demand, for a while.
    let mut hot = 0;
    for _ in 0..1_500 {
        let place = world.below(count as u64) as usize;
        if world.below(60) == 0 {
            hot = place;
        }
        for _ in 0..world.below(3) * world.below(12) {
            // Waiting requests are forwarded.
            if (seed / 2).is_multiple_of(2) {
                world.ask_or_wait(hot, "k", 1)
            } else {
                world.ask(hot, "k", 1)
            };
        }
        if world.below(orders) == 0 {
            let mut weights = weights(&mut world);
            // Nodes leave, and may join again later.
            weights.retain(|(place, _)| *place == 0 || world.below(6) > 0);
            // The limit may go too.
            world.is_gone = world.below(4) == 0;
            world.order(&weights);
        }
        if world.below(forgets) == 0 {
            match world.regions.as_mut().expect("regions") {
                regions if regions.of[place] > 0 => {
                    let region = regions.of[place];
                    regions.servers[region - 1].restart(None);
                }
                _ => world.server.restart(None),
            }
        }
        if world.below(crashes) == 0 {
            world.crash(place);
        }
        if world.below(stops) == 0 {
            world.stop_at_random(place);
        }
        if world.below(ways) == 0 {
            let ways = [Way::GOOD, Way::CUT, Way { delay_ns: (MS, 150 * MS), lost: 10 }];
            world.nodes[place].way = ways[world.below(3) as usize];
        }
        if world.below(cuts) == 0 {
            let cut = &mut world.regions.as_mut().expect("regions").cut;
            if !cut.remove(&place) {
                cut.insert(place);
            }
        }
        world.ask_around();
    }
    heal(world, seed);
}

/// Repairs everything. Pools must grant again, and all nodes must have acknowledged the last order.
fn heal(mut world: World, seed: u64) {
    world.mend();
    // Pools wait for a leaving node, and it waits until what a crash forgot has expired.
    let leaves = |world: &World| {
        let membership = world.nodes[0].node.membership(world.now(0)).expect("regions");
        membership.progress.is_some_and(|progress| !progress.leavers.is_empty())
    };
    for _ in 0..20 {
        if leaves(&world) {
            world.pass(10 * S);
        }
    }
    world.pass(5 * S);
    world.expect_granting(&format!("seed {seed}"));
    // An allocation is acknowledged only when what a crash forgot has expired, which takes longest at the
    // slowest rate.
    world.pass(200 * S);
    let version = world.nodes[0].node.version().expect("a version");
    // Former members need not hear of later versions.
    for (place, at) in world.nodes.iter().enumerate().filter(|(place, _)| world.is_member(*place)) {
        assert_eq!(at.node.version().as_ref(), Some(&version), "seed {seed}, node {place}");
        let membership = at.node.membership(world.now(place)).expect("regions");
        let progress = membership.progress.expect("a version");
        assert!(progress.pending.is_empty(), "seed {seed}, node {place}: {progress:?}");
    }
}

#[test]
fn under_random_orders_and_faults_no_limit_is_exceeded() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(8);
    let from = std::env::var("FROM").ok().and_then(|from| from.parse().ok()).unwrap_or(1);
    (from..=seeds).for_each(history);
}

/// A lender's store is gone while shares change. It conforms once its loans are back, without asking the
/// store.
#[test]
fn a_lender_whose_store_is_gone_conforms_when_its_loans_are_back() {
    let mut world = lent_by_one();
    cut(&mut world, &[]);
    passes(&mut world, &[1], 1);
    world.nodes[2].way = Way::CUT;
    assert!(world.order(&all([10, 10, 90, 91])));
    passes(&mut world, &[1], 8);
    let membership = world.nodes[0].node.membership(world.now(0)).expect("regions");
    let progress = membership.progress.expect("a version");
    assert!(progress.pending.is_empty(), "{progress:?}");
}

/// A process gave away part of what it held of a window. Its successor must not withdraw the same units
/// again, unused.
#[test]
fn units_that_an_earlier_process_gave_away_are_not_withdrawn_again() {
    let mut world = shared(window("w", 1_000, "100s"), [1, 1, 3, 3]);
    world.pass(93 * S);
    // One region uses its own part and some of the other's. Then a node that gave units restarts, and is
    // asked for the rest of its region's part.
    let ask = |world: &mut World, place: usize, times: u64| {
        let passes = |_: &u64| {
            let passed = world.ask(place, "k", 1);
            world.pass(50 * MS);
            passed
        };
        (0..times).filter(passes).count()
    };
    let used = ask(&mut world, 0, 320);
    assert!(used >= 310, "{used}");
    world.crash(2);
    let rest = ask(&mut world, 2, 600);
    // Spent: guard shares, and units that node 3 withdrew and did not give away.
    assert!(rest >= 180, "{used} and {rest}");
}

/// Lenders lose power, and restart while their loans are out. The pool's server may also forget what they
/// held.
fn lent_and_crashed() {
    let specs = [bucket("b", "100/s", 20), sliding("s", 1_000, "10s"), window("w", 1_000, "10s")];
    for (spec, is_forgotten) in specs.iter().cloned().flat_map(|spec| [(spec.clone(), false), (spec, true)]) {
        let mut world = lent_and_asked(spec);
        for crashed in [&[2][..], &[3], &[2, 3], &[3, 0]] {
            // The borrower hears nothing of this.
            cut(&mut world, &[0]);
            crashed.iter().for_each(|place| world.crash(*place));
            if is_forgotten {
                world.regions.as_mut().expect("regions").servers[0].restart(None);
            }
            passes(&mut world, &[0, 5 - crashed[0]], 10);
            cut(&mut world, &[]);
            passes(&mut world, &[0], 24);
        }
    }
}

/// Calls wait until the version they refer to is on disk, and at most the allowed number waits. Then pools
/// grant again.
#[test]
fn calls_wait_for_a_disk_that_is_full() {
    let mut world = shared(bucket("b", "100/s", 200), [1; 4]);
    passes(&mut world, &[1], 10);
    world.nodes[1].is_disk_full = true;
    assert!(world.order(&all([1, 2, 1, 1])));
    passes(&mut world, &[1], 1);
    let before = world.nodes[1].node.lease_counts().calls;
    passes(&mut world, &[1], 100);
    assert!(world.nodes[1].node.poll_call().is_none(), "the version is not on the disk");
    let waiting = world.nodes[1].node.lease_counts().calls - before;
    assert!(waiting < 4 * u64::from(GROUPS), "{waiting}");
    world.nodes[1].is_disk_full = false;
    world.pass(10 * S);
    world.expect_granting("when the version is on the disk");
    let a_second = passes(&mut world, &[1], 20);
    assert!(a_second[1] >= 90, "{a_second:?}");
}

/// A node restarts in an open window. Its guard shares count as spent, even for keys without requests; the
/// pools' units stay available.
#[test]
fn a_restarted_node_gets_units_of_open_windows_from_the_pool() {
    let mut world = shared(window("w", 1_000, "1000s"), [1; 4]);
    world.crash(0);
    world.pass(10 * S);
    let passed = (0..500).filter(|_| {
        let passed = world.ask(0, "k", 1);
        world.pass(5 * MS);
        passed
    });
    assert!(passed.count() > 400);
}

#[test]
fn pooled_units_given_or_lent_to_a_region_count_once() {
    given_once();
}

/// A region of one node receives what another region's pools have, and the other way round.
#[test]
fn a_region_of_one_node_gets_units_of_another_regions_pool() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 200), sliding("s", 1_000, "10s")] {
        let name = spec.name.clone();
        let mut world = World::among_regions(&[2, 1], &[spec], GUARD, 1);
        world.pass(S);
        assert!(world.order(&[(0, 1), (1, 1), (2, 2)]));
        world.pass(6 * S);
        for place in [2, 0] {
            passes(&mut world, &[place], 40);
            let a_second = passes(&mut world, &[place], 20);
            assert!(a_second[place] >= 90, "{name}: {a_second:?}");
        }
    }
}

/// Two regions share 40 units in 60 s, and each node keeps four. Their stores have been out of reach for a
/// minute.
fn without_stores() -> World {
    let mut world = World::among_regions(&[2, 2], &[window("w", 40, "60s")], 20, 1);
    world.pass(S);
    assert!(world.order(&all([1; 4])));
    world.pass(6 * S);
    world.expect_granting("at first");
    world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
    world.pass(60 * S);
    world
}

/// Each node keeps a unit of a small limit if there are enough; else some keep none. Without the stores, a
/// node that has units gives them where requests come.
#[test]
fn without_stores_guard_units_go_to_the_node_with_requests() {
    let mut world = without_stores();
    let passed = (0..2_000).filter(|_| {
        let passed = world.ask(1, "k", 1);
        world.pass(5 * MS);
        passed
    });
    // Four of each node's ten units: everything that is not in the pools.
    assert_eq!(passed.count(), 16);
}

/// One denial suffices, although no pool can be called to report that it is empty.
#[test]
fn without_its_store_a_region_asks_others_after_one_denial() {
    let mut world = without_stores();
    let passed: Vec<bool> = (0..5).map(|_| world.ask(1, "k", 1)).collect();
    assert_eq!(passed, [true, true, true, true, false]);
    world.pass(2 * S);
    assert!(world.ask(1, "k", 1));
}

#[test]
fn a_loan_of_pooled_units_ends_before_the_lenders_lease() {
    lent_and_cut();
    lent_at_the_end();
    lent_and_less_by_time();
}

#[test]
fn no_limit_is_exceeded_if_shares_change_and_lenders_crash() {
    lent_and_ordered();
    lent_by_one_and_ordered();
    lent_by_one_that_crashes();
    lent_by_one_that_is_gone();
    lent_and_crashed();
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::{Mutation, break_rule};
    let stories: [(Mutation, fn()); 16] = [
        (Mutation::LeaseHearsUncounted, joined_at_a_server_that_was_replaced),
        (Mutation::LeaseTakesUpMore, granted_and_unheard),
        (Mutation::OpenSharesLast, hung_when_a_window_ends),
        (Mutation::LaterSharesEarly, joined_when_all_was_spent),
        (Mutation::LeaseForgetsWhoLeft, left_and_forgotten),
        (Mutation::LeaseSaysWhatIsOver, said_of_a_limit_that_was_gone),
        (Mutation::LeaseOutlivesAllocation, unheard),
        (Mutation::PoolHearsOldAllocation, unheard_and_asked),
        (Mutation::LeaseGivesTwice, given_once),
        (Mutation::LeaseReturnsWhatIsLent, lent_by_one_and_ordered),
        (Mutation::LeaseConformsWhileLent, lent_and_ordered),
        (Mutation::LeaseLendsBeyondLowered, lent_and_less_by_time),
        (Mutation::LeaseRenewsToTheEnd, lent_and_cut),
        (Mutation::LeaseLendsForLonger, lent_at_the_end),
        (Mutation::LeaseForgetsLoans, lent_by_one_that_crashes),
        (Mutation::LeaseForgetsLoansOfGone, lent_by_one_that_is_gone),
    ];
    std::panic::set_hook(Box::new(|_| ()));
    let found = stories.map(|(rule, story)| {
        break_rule(Some(rule));
        let found = std::panic::catch_unwind(story);
        break_rule(None);
        let what = found.err().and_then(|what| what.downcast::<String>().ok());
        (rule, what)
    });
    drop(std::panic::take_hook());
    for (rule, what) in &found {
        println!("{:24} {}", format!("{rule:?}"), what.as_deref().map_or("survives", String::as_str));
    }
    assert!(found.iter().all(|(_, what)| what.is_some()), "a rule can be left out unnoticed");
}
