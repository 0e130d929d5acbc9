//! Every story finds nothing, with any seed.

use acequia_sim::{
    many::{Job, Outcome, run_all},
    scenarios::{self, Plan, Scenario, crash_at},
};

const SEEDS: u64 = 2;
const SWARM_SEEDS: u64 = 200;
const WRITES: u64 = 40;
/// Every machine has two cores.
const AT_A_TIME: usize = 2;

fn outcomes(jobs: impl Iterator<Item = Job> + Send) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    run_all(jobs, AT_A_TIME, &Vec::new, |outcome| outcomes.push(outcome));
    outcomes
}

fn expect_nothing(outcomes: &[Outcome]) {
    let found = outcomes.iter().filter(|outcome| !outcome.findings().is_empty());
    let found = found.map(|outcome| {
        let Job { scenario, seed, plan } = &outcome.job;
        let schedule = plan.as_ref().map(|plan| plan.schedule.to_string()).unwrap_or_default();
        format!("run {} --seed {seed}: {}\n{schedule}", scenario.name, outcome.findings().join("; "))
    });
    assert_eq!(found.collect::<Vec<_>>(), [""; 0]);
}

fn named(name: &str) -> Scenario {
    scenarios::named(name).expect("a scenario")
}

#[test]
fn every_story_finds_nothing_and_every_region_serves_in_it() {
    let stories = scenarios::ALL.into_iter().filter(|story| story.name != "swarm");
    let outcomes = outcomes(stories.flat_map(|story| (1..=SEEDS).map(move |seed| Job::new(story, seed))));
    expect_nothing(&outcomes);
    for outcome in &outcomes {
        let record = outcome.record.as_ref().expect("a record");
        let serves = record.regions.iter().all(|(_, counts)| counts.allowed > 40);
        assert!(serves, "{} {}: {:?}", outcome.job.scenario.name, outcome.job.seed, record.regions);
    }
}

#[test]
fn a_swarm_of_two_hundred_seeds_finds_nothing() {
    expect_nothing(&outcomes((1..=SWARM_SEEDS).map(|seed| Job::new(named("swarm"), seed))));
}

#[test]
fn the_power_may_go_at_any_durable_write() {
    let scenario = named("crash-at-write");
    let jobs = (0..WRITES).map(|write| {
        let plan =
            Plan { duration: std::time::Duration::from_secs(25), ..crash_at(write as usize % 3, write) };
        Job { scenario, seed: write, plan: Some(plan) }
    });
    expect_nothing(&outcomes(jobs));
}
