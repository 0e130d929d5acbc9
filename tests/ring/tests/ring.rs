//! Some million steps, all stories, and a test that a seed determines its history.

use acequia_ring::{
    history::{self, STEPS},
    stories,
};

/// The first seed of the suite's histories. `cargo run --bin ring` takes others.
const SEED: u64 = 42_000;
const STEPS_IN_ALL: u64 = 4_000_000;

#[test]
fn some_million_random_steps_break_no_rule() {
    let (mut steps, mut histories, mut admitted, mut passed_ns, mut hash) = (0, 0, 0, 0, 0_u64);
    while steps < STEPS_IN_ALL {
        let seed = SEED + histories;
        let ended = history::run(seed, STEPS);
        if let Some((finding, last)) = ended.found {
            panic!(
                "{}\nseed {seed}, step {}: {}: {}\nreplay: cargo run --profile ring -p acequia-ring --bin ring -- --only {seed}",
                last.join("\n"),
                ended.steps,
                finding.check,
                finding.what
            );
        }
        steps += ended.steps;
        histories += 1;
        admitted += ended.admitted;
        passed_ns += ended.passed_ns;
        hash = hash.rotate_left(7) ^ ended.hash;
    }
    eprintln!(
        "ring: {steps} steps in {histories} histories, {admitted} units admitted in {} s, nothing found, trace {hash:016x}",
        passed_ns / 1_000_000_000
    );
}

#[test]
fn a_seed_replays_the_same_history_of_the_ring() {
    for seed in SEED..SEED + 4 {
        let (first, again) = (history::run(seed, STEPS), history::run(seed, STEPS));
        assert_eq!((first.hash, first.admitted), (again.hash, again.admitted), "seed {seed}");
        assert_ne!(first.hash, history::run(seed + 1, STEPS).hash, "another seed is another history");
    }
}

#[test]
fn every_story_keeps_the_rules() {
    for (name, story) in stories::ALL {
        assert_eq!(story(), None, "{name}");
    }
}
