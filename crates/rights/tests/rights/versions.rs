//! The version protocol under a seeded adversary. An authority changes shares and budgets; regions join,
//! leave, are fenced, lose disks and hand over. Messages are lost, repeated and reordered, and regions are
//! cut off. Processes crash between any two writes, and clocks are wrong within the catalogue's bounds.
//!
//! After every step each running node uses its whole share of a few cells. The checks are the theorem of
//! `versions.rs`. In every window and every horizon, use is at most the largest budget that any node went by.
//! Once the faults stop, all nodes reach the newest allocation and use all of it.

mod rules;
mod world;

use world::{Caught, World};

/// One history from a seed: faults, then healing.
fn history(seed: u64) -> Result<World, Caught> {
    let mut world = World::new(seed);
    for _ in 0..500 {
        world.step()?;
    }
    world.heal()?;
    Ok(world)
}

fn histories(otherwise: u64) -> u64 {
    std::env::var("HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn shares_never_exceed_the_budget_in_random_histories_that_heal() {
    let histories = histories(400);
    let mut seen = world::Seen::default();
    for seed in 0..histories {
        match history(seed) {
            Ok(world) => seen.add(&world.seen),
            Err(caught) => panic!("seed {seed}: {caught}"),
        }
    }
    println!("{histories} histories: {seen:?}");
    assert!(seen.all_happened(), "an adversary that leaves something out: {seen:?}");
}

#[test]
fn a_seed_replays_the_same_history_of_versions() {
    let trace = |seed| history(seed).map(|world| world.trace).map_err(|caught| caught.to_string());
    assert_eq!(trace(11), trace(11));
    assert_ne!(trace(11), trace(12));
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::{Check, Mutation, break_rule};
    let most = histories(20_000);
    let mut missed = Vec::new();
    println!("{:<26}{:>9}", "rule left out", "histories");
    for rule in Mutation::table(Check::Versions) {
        break_rule(Some(rule));
        // A violated promise counts, not only a failed recovery.
        let mut caught = (0..most).filter_map(|seed| Some((seed + 1, history(seed).err()?)));
        let caught = caught.find(|(_, caught)| caught.is_unsafe());
        break_rule(None);
        match caught {
            Some((histories, caught)) => println!("{:<26}{histories:>9}  {caught}", format!("{rule:?}")),
            None => missed.push(rule),
        }
    }
    assert!(missed.is_empty(), "not caught in {most} histories: {missed:?}");
}
