//! Draws: a request that waits at one node of a region is charged at another one, the guard node of its cell.

mod scene;
mod siblings;

use acequia_limits::limit::LimitSpec;
use acequia_node::DrawCounts;
use scene::{MS, S, bucket, sliding, window};
use siblings::{Way, World};

/// Two regions of two nodes each, and one of three.
fn shared(spec: LimitSpec, seed: u64) -> World {
    let mut world = World::among_regions(&[2, 2, 3], &[spec], 10, seed);
    world.is_prompt = true;
    world.pass(S);
    assert!(world.order(&(0..7).map(|place| (place, 1)).collect::<Vec<_>>()));
    world.pass(6 * S);
    world.expect_granting("at first");
    world
}

/// So many requests a second for three keys, of callers that wait where they may, at all of some nodes: how many passed of a hundred.
fn passes(world: &mut World, places: &[usize], a_second: u64, seconds: u64) -> u64 {
    let (mut passed, late) = (0, world.passed_late);
    for _ in 0..a_second * seconds {
        let place = places[world.below(places.len() as u64) as usize];
        let key = format!("k{}", world.below(3));
        passed += u64::from(world.ask_or_wait(place, &key, 1));
        let pause_ns = world.below(2 * S / a_second);
        world.pass(pause_ns);
    }
    world.pass(100 * MS);
    100 * (passed + world.passed_late - late) / (a_second * seconds)
}

fn counts(world: &World) -> DrawCounts {
    let all = world.nodes.iter().map(|at| at.node.draw_counts());
    all.fold(DrawCounts::default(), |sum, of| DrawCounts {
        asked: sum.asked + of.asked,
        charged: sum.charged + of.charged,
        used: sum.used + of.used,
        wasted: sum.wasted + of.wasted,
    })
}

fn limits() -> [LimitSpec; 3] {
    [bucket("b", "20/s", 20), window("w", 40, "2s"), sliding("s", 40, "2s")]
}

/// Of a third of the limit all passes, at whichever node it is asked for, and what is drawn is used.
#[test]
fn what_a_region_has_is_found_at_each_of_its_nodes() {
    for spec in limits() {
        let name = spec.name.clone();
        let mut world = shared(spec, 1);
        let passed = passes(&mut world, &[0, 1, 2, 3, 4, 5, 6], 20, 20);
        let counts = counts(&world);
        println!("{name}: {passed} % passed, {counts:?}");
        assert!(passed >= 92, "{name}: {passed} % passed");
        assert!(counts.used > 60 && counts.used + counts.used / 20 >= counts.charged, "{name}: {counts:?}");
    }
}

/// What a node has by itself it uses first, and a limit of many units is no matter of draws.
#[test]
fn nobody_draws_what_is_at_hand() {
    let mut world = shared(bucket("b", "2000/s", 2_000), 1);
    passes(&mut world, &[0, 1], 200, 2);
    assert_eq!(counts(&world), DrawCounts::default());
}

/// A guard node is gone: soon the other one takes over, and has what other regions lend. When it is back it is asked again.
#[test]
fn another_node_takes_over_from_a_guard_node_that_is_gone() {
    for gone in [4, 5, 6] {
        let mut world = shared(bucket("b", "20/s", 20), 1);
        let others: Vec<usize> = [4, 5, 6].into_iter().filter(|place| *place != gone).collect();
        passes(&mut world, &others, 10, 5);
        world.nodes[gone].is_hung = true;
        world.regions.as_mut().expect("regions").cut.insert(gone);
        passes(&mut world, &others, 10, 5);
        let without = passes(&mut world, &others, 10, 10);
        world.nodes[gone].is_hung = false;
        world.regions.as_mut().expect("regions").cut.clear();
        passes(&mut world, &others, 10, 5);
        let again = passes(&mut world, &others, 10, 10);
        println!("without node {gone} {without} % passed, and with it again {again} %");
        assert!(without >= 70 && again >= 90, "{without} and {again}");
    }
}

/// A guard node that says nothing keeps nobody waiting for long.
#[test]
fn nobody_waits_long_for_a_node_that_is_silent() {
    let mut world = shared(bucket("b", "20/s", 20), 1);
    passes(&mut world, &[0, 1], 60, 2);
    world.regions.as_mut().expect("regions").cut.extend([0, 1]);
    let before = counts(&world).asked;
    passes(&mut world, &[0, 1], 1_000, 1);
    let asked = counts(&world).asked - before;
    assert!(asked < 60, "{asked} draws of a node that does not answer");
}

/// A node that stops has written down what its cells owe: it charges nothing for others any more.
#[test]
fn nothing_is_charged_after_a_stop() {
    let mut world = shared(bucket("b", "20/s", 20), 1);
    passes(&mut world, &[0, 1], 20, 5);
    let charged = |world: &World| world.nodes[0].node.draw_counts().charged;
    let before = charged(&world);
    assert!(before > 0, "of some cell it is the guard node");
    world.nodes[0].node.close(world.now(0), |_| ());
    passes(&mut world, &[1], 20, 5);
    assert_eq!(charged(&world), before);
}

/// More is asked for than there is, at all nodes.
fn asked_for_too_much() {
    for spec in limits() {
        let mut world = shared(spec, 1);
        passes(&mut world, &[0, 1, 2, 3, 4, 5, 6], 3_000, 2);
    }
}

/// The way between nodes of a region is so long that callers have gone when what was drawn for them comes.
fn drawn_too_late() {
    for spec in limits() {
        let mut world = shared(spec, 1);
        world.regions.as_mut().expect("regions").near_ns = (2 * MS, 5 * MS);
        passes(&mut world, &[0, 1, 2, 3, 4, 5, 6], 200, 10);
        let counts = counts(&world);
        assert!(counts.wasted > 0, "{counts:?}");
    }
}

/// Frames between nodes of a region take any time, nodes lose their power, are cut off, and pools are gone.
fn history(seed: u64) {
    let spec = limits()[(seed % 3) as usize].clone();
    let mut world = shared(spec, seed);
    for _ in 0..150 {
        let place = world.below(7) as usize;
        let near = [(MS / 4, MS), (MS / 4, MS), (MS, 8 * MS), (MS, 90 * MS)][world.below(4) as usize];
        let regions = world.regions.as_mut().expect("regions");
        regions.near_ns = near;
        if !regions.cut.is_empty() {
            regions.cut.clear();
        } else if seed.is_multiple_of(4) {
            regions.cut.insert(place);
        }
        match world.below(24) {
            0 => world.crash(place),
            1 => world.stop_at_random(place),
            2 => world.nodes[place].way = Way::CUT,
            3 => world.nodes.iter_mut().for_each(|at| at.way = Way::GOOD),
            4 => {
                let weights: Vec<_> = (0..7).map(|place| (place, 1 + world.below(3) as u32)).collect();
                world.order(&weights);
            }
            _ => {}
        }
        let first = world.below(7) as usize;
        let a_second = 20 + world.below(300);
        passes(&mut world, &[first, (first + 1) % 7, place], a_second, 1);
    }
}

#[test]
fn nothing_passes_that_was_not_charged_while_it_waited() {
    asked_for_too_much();
    drawn_too_late();
}

#[test]
fn whatever_breaks_nothing_passes_that_was_not_charged_while_it_waited() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(12);
    (1..=seeds).for_each(history);
}

#[cfg(feature = "broken")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::broken::{Broken, break_rule};
    let stories: [(Broken, fn()); 3] = [
        (Broken::DrawUncharged, asked_for_too_much),
        (Broken::DrawUsedTwice, asked_for_too_much),
        (Broken::DrawUsedByAnybody, drawn_too_late),
    ];
    std::panic::set_hook(Box::new(|_| ()));
    let found = stories.map(|(rule, story)| {
        break_rule(Some(rule));
        let found = std::panic::catch_unwind(story);
        break_rule(None);
        (rule, found.err().and_then(|what| what.downcast::<String>().ok()))
    });
    drop(std::panic::take_hook());
    for (rule, what) in &found {
        println!("{:24} {}", format!("{rule:?}"), what.as_deref().map_or("survives", String::as_str));
    }
    assert!(found.iter().all(|(_, what)| what.is_some()), "a rule can be left out unnoticed");
}
