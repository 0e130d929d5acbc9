//! The promised part of what could be admitted is admitted. The check notices regions that do not share.

use std::time::Duration;

use acequia_sim::{
    many::{Job, run_all},
    run::run_to_end,
    scenarios::{Plan, named},
    schedule::{Fault, Schedule},
    trace::Trace,
};

const SEEDS: u64 = 4;
const AT_A_TIME: usize = 2;

#[test]
fn limits_are_used_as_promised_with_every_seed_and_a_run_says_how_much() {
    for name in ["calm", "split-brain", "split-in-three"] {
        let scenario = named(name).expect("a scenario");
        let mut lines = Vec::new();
        run_all((1..=SEEDS).map(|seed| Job::new(scenario, seed)), AT_A_TIME, &Vec::new, |outcome| {
            assert_eq!(outcome.findings(), [""; 0], "{name} --seed {}", outcome.job.seed);
            let record = outcome.record.as_ref().expect("a record");
            let figures = record.notes.iter().filter(|note| note.contains("that an oracle admits"));
            lines.extend(figures.map(|note| format!("{name} --seed {}: {note}", outcome.job.seed)));
        });
        assert!(lines.len() >= SEEDS as usize, "{lines:?}");
        lines.sort();
        eprintln!("{}", lines.join("\n"));
    }
}

/// All packets are lost, but the check sees no cut. So these are regions that never lend.
#[test]
fn regions_that_never_lend_are_missed() {
    let mut schedule = Schedule::default();
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        schedule.at(Duration::from_secs(2), Fault::Lose(a, b, 100));
    }
    let scenario = named("split-brain").expect("a scenario");
    for seed in 1..=2 {
        let plan = Plan { schedule: schedule.clone(), ..scenario.plan_of(seed) };
        let record = run_to_end(plan, seed, &Trace::default(), Vec::new()).expect("a world");
        let finding = record.findings.iter().find(|finding| finding.starts_with("used as promised"));
        let finding = finding.unwrap_or_else(|| panic!("{:?}", record.findings));
        assert!(finding.contains("limit api") && finding.contains("limit exports"), "{finding}");
        eprintln!("{finding}");
    }
}
