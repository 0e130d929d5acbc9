//! A seed fixes the history: two processes that run it make the same trace, although the machine's own
//! randomness differs.

use std::process::Command;

/// A process's report of its run, without the elapsed time.
fn trace_of(scenario: &str, seed: u64) -> String {
    let run = Command::new(env!("CARGO_BIN_EXE_acequia-sim"))
        .args(["run", scenario, "--seed", &seed.to_string()])
        .output()
        .expect("a process");
    let said = String::from_utf8(run.stdout).expect("text");
    let trace = said.lines().find_map(|line| line.split_once("; trace ")).map(|(_, hash)| hash.to_owned());
    trace.unwrap_or_else(|| panic!("{scenario} {seed} told no trace: {said}"))
}

#[test]
fn the_same_seed_gives_the_same_history_in_another_process() {
    for (scenario, seeds) in [
        ("calm", 1..2),
        ("split-brain", 1..4),
        ("storm", 1..4),
        ("store-storm", 1..3),
        ("streams", 1..3),
        ("holds", 1..3),
    ] {
        let mut seen = std::collections::BTreeSet::new();
        for seed in seeds.clone() {
            let [one, other] = [trace_of(scenario, seed), trace_of(scenario, seed)];
            assert_eq!(one, other, "{scenario} --seed {seed}");
            seen.insert(one);
        }
        assert_eq!(seen.len() as u64, seeds.end - seeds.start, "{scenario}: another seed is another history");
    }
}
