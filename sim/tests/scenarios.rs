//! Scenarios that must find nothing, and a world that can be broken and looked at by hand.

use acequia_sim::{
    run::run,
    scenarios::named,
    schedule::{Fault, Leftover},
    trace::Trace,
    world::{Said, Setup, World},
};

#[test]
fn nothing_is_found_in_calm_and_in_a_split_brain() {
    for (name, seeds) in [("calm", 1..3), ("split-brain", 1..6)] {
        let scenario = named(name).expect("a scenario");
        for seed in seeds {
            let record = run(&scenario, seed, &Trace::default()).expect("a world");
            assert_eq!(record.findings, [""; 0], "{name} --seed {seed}");
            assert!(record.regions.iter().all(|(_, counts)| counts.allowed > 100), "{name} --seed {seed}");
        }
    }
}

#[test]
fn a_node_that_lost_its_power_is_silent_and_answers_again_from_its_disk() {
    let plan = (named("calm").expect("a scenario").plan)(&mut acequia_sim::random::Random::new(1));
    let setup = Setup {
        seed: 1,
        regions: 3,
        limits: plan.limits.to_owned(),
        clock: String::new(),
        latency_ms: plan.latency_ms,
        demand: plan.demand,
    };
    let mut world = World::new(&setup, Trace::default()).expect("a world");
    let pass = |world: &mut World, ms: u64| {
        (0..ms).for_each(|_| world.step().expect("a step"));
        let answers = world.take_answers();
        let of_eu = answers.into_iter().filter(|answer| answer.place == 0);
        of_eu.filter(|answer| !matches!(answer.said, Said::Nothing(_))).count()
    };
    assert!(pass(&mut world, 5_000) > 50);
    let writes = world.regions()[0].durable_writes();
    assert!(writes > 5, "{writes}");
    world.apply(&Fault::Crash(0, Leftover::Torn));
    pass(&mut world, 10);
    assert_eq!(pass(&mut world, 3_000), 0);
    assert!(world.regions()[0].process().is_none());
    world.apply(&Fault::Start(0));
    assert!(pass(&mut world, 5_000) > 40);
    let process = world.regions()[0].process().expect("a process");
    assert_eq!(process.ready(), Ok(()));
}
