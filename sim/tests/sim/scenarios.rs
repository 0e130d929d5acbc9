//! Scenarios that must find nothing, and a world that tests can break and inspect.

use std::time::Duration;

use acequia_sim::{
    checks::{Check as _, Clocks, FloorsKept, HoldsKept, NeverOver, NobodyWaits, SlotsHeld},
    random::Random,
    run::{Record, run, run_plan, run_with},
    scenarios::{Plan, named},
    schedule::{Command, Fault, Leftover, Schedule},
    trace::Trace,
    world::{Reply, Setup, World},
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
fn when_orders_are_over_nobody_waits_for_anybody() {
    for (name, seed) in [
        ("join-and-leave", 1),
        ("leaver-dies", 2),
        ("evict-dead", 1),
        ("weights-in-a-rollout", 1),
        ("budget-in-a-split", 1),
    ] {
        let plan = named(name).expect("a scenario").plan_of(seed);
        let waits: Box<dyn acequia_sim::checks::Check> = Box::new(NobodyWaits::new(&plan));
        let record = run_with(plan, seed, &Trace::default(), vec![waits]).expect("a world");
        assert_eq!(record.findings, [""; 0], "{name} --seed {seed}");
    }
}

/// A calm run with these faults, each at a second.
fn with(faults: &[(u64, Fault)]) -> (Record, Trace) {
    let mut schedule = Schedule::default();
    for (at, fault) in faults {
        schedule.at(Duration::from_secs(*at), fault.clone());
    }
    let trace = Trace::default();
    let plan = Plan { schedule, ..(named("calm").expect("a scenario").plan)(&mut Random::new(1)) };
    (run_plan(plan, 1, &trace).expect("a world"), trace)
}

/// Whether one of the last events at a host says `what`.
fn tells(trace: &Trace, host: &str, what: &str) -> bool {
    let last = trace.last();
    last.iter().any(|(name, lines)| name == host && lines.iter().any(|line| line.what.contains(what)))
}

#[test]
fn a_disk_that_is_lost_takes_the_share_with_it_until_an_operator_gives_it_back() {
    let lost = [(8, Fault::Crash(1, Leftover::Lost)), (9, Fault::LoseDisk(1)), (10, Fault::Start(1))];
    let (record, _) = with(&lost);
    assert!(
        record.findings.iter().any(|finding| finding.contains("us is not ready")),
        "{:?}",
        record.findings
    );
    let recovered = [&lost[..], &[(13, Fault::Order(0, Command::Recover(1)))]].concat();
    let (record, trace) = with(&recovered);
    assert_eq!(record.findings, [""; 0]);
    assert!(tells(&trace, "eu", "ordered: "));
}

#[test]
fn a_node_on_an_old_disk_owns_nothing() {
    let (record, trace) = with(&[
        (5, Fault::CopyDisk(2)),
        // Others hear of processes that are not in the copy.
        (6, Fault::Crash(2, Leftover::Lost)),
        (7, Fault::Start(2)),
        (9, Fault::Crash(2, Leftover::Lost)),
        (10, Fault::Start(2)),
        (12, Fault::Crash(2, Leftover::Lost)),
        (13, Fault::RestoreDisk(2)),
        (14, Fault::Start(2)),
    ]);
    assert!(
        record.findings.iter().any(|finding| finding.contains("ap is not ready")),
        "{:?}",
        record.findings
    );
    assert!(tells(&trace, "ap", "process 3"));
}

#[test]
fn a_clean_stop_a_full_disk_held_packets_and_orders_pass_without_a_finding() {
    let budget = |rate: &str| {
        let numbers = vec![("rate".to_owned(), rate.to_owned())];
        Fault::Order(0, Command::Budget { limit: "api".to_owned(), numbers })
    };
    let (record, trace) = with(&[
        (4, Fault::Stop(1)),
        (6, Fault::Start(1)),
        (7, Fault::FillDisk(2)),
        (9, Fault::ClearDisk(2)),
        (10, Fault::Hold(0, 1)),
        (11, budget("80/s")),
        (12, Fault::Release(0, 1)),
        (14, Fault::Slow(0, 2, 150)),
        (15, Fault::Order(0, Command::Weight(1, 3))),
        (16, Fault::CrashAtWrite(1, 3)),
        (17, budget("20/s")),
        (20, Fault::Heal),
    ]);
    assert_eq!(record.findings, [""; 0]);
    assert!(tells(&trace, "us", "stopped") && tells(&trace, "us", "lost its power"));
    assert!(tells(&trace, "eu", r#"{"burst":60,"rate":"20/s"}"#));
}

/// A calm world for tests to break.
fn calm() -> World {
    let plan = (named("calm").expect("a scenario").plan)(&mut Random::new(1));
    World::new(&Setup::of(&plan, 1), Trace::default()).expect("a world")
}

#[test]
fn the_judge_of_limits_finds_admissions_that_count_twice() {
    let mut world = calm();
    let clocks = Clocks { error_ns: 10_000_000, drift_ppm: 0 };
    let judge = || NeverOver::new(&world.limits(), clocks, 3, &[]).expect("limits that it can judge");
    let (mut honest, mut doubting, mut found) = (judge(), judge(), false);
    for _ in 0..10_000 {
        world.step().expect("a step");
        let answers = world.take_answers();
        assert_eq!(honest.observe(&world, &answers), Ok(()));
        found |= doubting.observe(&world, &[&answers[..], &answers[..]].concat()).is_err();
    }
    assert!(found);
}

#[test]
fn a_node_that_lost_its_power_is_silent_and_answers_again_from_its_disk() {
    let mut world = calm();
    let pass = |world: &mut World, ms: u64| {
        (0..ms).for_each(|_| world.step().expect("a step"));
        let answers = world.take_answers();
        let of_eu = answers.into_iter().filter(|answer| answer.place == 0);
        of_eu.filter(|answer| !matches!(answer.reply, Reply::Nothing(_))).count()
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

#[test]
fn a_donor_that_keeps_less_than_its_floor_is_found() {
    let plan = named("floors").expect("a scenario").plan_of(1);
    let higher = Plan { limits: plan.limits.replace("30%", "80%"), ..plan.clone() };
    // The limits of a config with a higher floor, applied to regions with the lower one.
    let limits = World::new(&Setup::of(&higher, 1), Trace::default()).expect("a world").limits();
    let stricter: Box<dyn acequia_sim::checks::Check> = Box::new(FloorsKept::new(&limits, &plan));
    let record = run_with(plan, 1, &Trace::default(), vec![stricter]).expect("a world");
    let found = |limit: &str| {
        let what = format!("floors kept: limit {limit}");
        record.findings.iter().any(|finding| finding.starts_with(&what))
    };
    assert!(found("api") || found("exports"), "{:?}", record.findings);
    assert_eq!(record.findings.len(), 1, "{:?}", record.findings);
}

#[test]
fn more_requests_under_way_than_there_are_slots_are_found() {
    let plan = named("gateways").expect("a scenario").plan_of(1);
    let fewer = Plan { limits: plan.limits.replace("limit: 24", "limit: 12"), ..plan.clone() };
    // The limits of a config with fewer slots, applied to regions with more.
    let limits = World::new(&Setup::of(&fewer, 1), Trace::default()).expect("a world").limits();
    let stricter: Box<dyn acequia_sim::checks::Check> = Box::new(SlotsHeld::new(&limits));
    let record = run_with(plan, 1, &Trace::default(), vec![stricter]).expect("a world");
    let found = |finding: &String| finding.starts_with("slots held: limit chats");
    assert!(record.findings.iter().any(found), "{:?}", record.findings);
}

#[test]
fn costs_up_to_their_holds_that_pass_a_limit_are_found() {
    let plan = named("holds").expect("a scenario").plan_of(1);
    let parts = [
        ("chats", "limit: 600"),
        ("asks", "limit: 500, window: 5s }\n    charge: always\n    expect: { cost: { auto"),
        ("per-user", "rate: 20/s, burst: 60"),
    ];
    for (name, numbers) in parts {
        let half = numbers
            .replace("600", "300")
            .replace("limit: 500", "limit: 250")
            .replace("20/s, burst: 60", "10/s, burst: 30");
        let smaller = Plan { limits: plan.limits.replace(numbers, &half), ..plan.clone() };
        // The limits of a config with fewer units, applied to regions with more.
        let limits = World::new(&Setup::of(&smaller, 1), Trace::default()).expect("a world").limits();
        let stricter: Box<dyn acequia_sim::checks::Check> =
            Box::new(HoldsKept::new(&limits, &plan).expect("limits that it can judge"));
        let record = run_with(plan.clone(), 1, &Trace::default(), vec![stricter]).expect("a world");
        let found = |finding: &String| finding.starts_with(&format!("holds kept: limit {name}"));
        assert!(record.findings.iter().any(found), "{name}: {:?}", record.findings);
    }
}
