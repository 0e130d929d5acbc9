//! Regions of several nodes: regions share through the catalogue, and the nodes of a region share through
//! pools.

mod histories;
mod joins;
mod loans;
mod lowered;
mod stores;

use acequia_limits::limit::LimitSpec;
use acequia_node::pool::GROUPS;

use crate::{
    pools::{Way, World},
    scene::{MS, S, bucket, sliding, window},
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

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::{Mutation, break_rule};
    let stories: [(Mutation, fn()); 16] = [
        (Mutation::LeaseHearsUncounted, joins::joined_at_a_server_that_was_replaced),
        (Mutation::LeaseTakesUpMore, lowered::granted_and_unheard),
        (Mutation::OpenSharesLast, lowered::hung_when_a_window_ends),
        (Mutation::LaterSharesEarly, joins::joined_when_all_was_spent),
        (Mutation::LeaseForgetsWhoLeft, joins::left_and_forgotten),
        (Mutation::LeaseSaysWhatIsOver, said_of_a_limit_that_was_gone),
        (Mutation::LeaseOutlivesAllocation, lowered::unheard),
        (Mutation::PoolHearsOldAllocation, lowered::unheard_and_asked),
        (Mutation::LeaseGivesTwice, loans::given_once),
        (Mutation::LeaseReturnsWhatIsLent, loans::lent_by_one_and_ordered),
        (Mutation::LeaseConformsWhileLent, loans::lent_and_ordered),
        (Mutation::LeaseLendsBeyondLowered, loans::lent_and_less_by_time),
        (Mutation::LeaseRenewsToTheEnd, loans::lent_and_cut),
        (Mutation::LeaseLendsForLonger, loans::lent_at_the_end),
        (Mutation::LeaseForgetsLoans, loans::lent_by_one_that_crashes),
        (Mutation::LeaseForgetsLoansOfGone, loans::lent_by_one_that_is_gone),
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
