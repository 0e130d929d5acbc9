//! A breach of a promise is found, reported, replayed and minimised.

use std::{process::Command, time::Duration};

use acequia_sim::{
    checks::Check,
    file::ScheduleFile,
    many::{Job, Outcome},
    minimise::{kind_of, minimise},
    scenarios::{self, Plan},
    schedule::{Fault, Leftover, Schedule},
    world::{Answer, World},
};

/// A promise that the server does not make: one of two regions always runs.
struct OneRuns;

impl Check for OneRuns {
    fn name(&self) -> &'static str {
        "one runs"
    }

    fn observe(&mut self, world: &World, _: &[Answer]) -> Result<(), String> {
        let runs = |place: usize| world.regions()[place].process().is_some();
        let begun = world.elapsed() > Duration::from_secs(2);
        if begun && !runs(1) && !runs(2) { Err("neither us nor ap does".to_owned()) } else { Ok(()) }
    }

    fn end(&mut self, _: &World) -> Result<(), String> {
        Ok(())
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A schedule of many faults. Somewhere in it, both regions are down at once.
fn much() -> Schedule {
    let mut schedule = Schedule::default();
    for n in 0..6 {
        let (a, b, from) = (n % 3, (n + 1) % 3, ms(2_500 + 900 * n as u64));
        schedule.during(from, from + ms(700), Fault::Cut(a, b), Fault::Mend(a, b));
    }
    schedule.during(ms(3_000), ms(5_000), Fault::Sleep(0), Fault::Wake(0));
    schedule.during(ms(4_000), ms(7_000), Fault::Crash(1, Leftover::Torn), Fault::Start(1));
    schedule.during(ms(5_500), ms(8_000), Fault::Stop(2), Fault::Start(2));
    schedule.at(ms(8_500), Fault::Heal);
    schedule
}

fn run(schedule: &Schedule, extra_checks: &acequia_sim::many::ExtraChecks) -> Outcome {
    let scenario = scenarios::named("calm").expect("a scenario");
    let plan = Plan { schedule: schedule.clone(), duration: ms(14_000), ..scenario.plan_of(7) };
    Job { scenario, seed: 7, plan: Some(plan) }.run(extra_checks)
}

#[test]
fn what_fails_is_found_and_fails_again_with_less() {
    let extra_checks = || vec![Box::new(OneRuns) as Box<dyn Check>];
    assert_eq!(run(&much(), &Vec::new).findings(), [""; 0]);
    let failed = run(&much(), &extra_checks);
    let finding = failed.findings().first().expect("a finding");
    assert!(finding.starts_with("one runs: neither us nor ap does, at"), "{finding}");
    assert!(failed.last.iter().any(|(host, lines)| host == "us" && !lines.is_empty()));

    let fails = |schedule: &Schedule| {
        run(schedule, &extra_checks).findings().iter().any(|f| kind_of(f) == kind_of(finding))
    };
    let small = minimise(&much(), 100, fails);
    let left: Vec<Fault> = small.faults().iter().map(|(_, fault)| fault.clone()).collect();
    for fault in [Fault::Crash(1, Leftover::Torn), Fault::Stop(2), Fault::Start(1), Fault::Start(2)] {
        assert!(left.contains(&fault), "{small}");
    }
    assert_eq!(left.len(), 5, "{small}");

    let stored = ScheduleFile { scenario: "calm".to_owned(), seed: 7, schedule: small };
    let read = ScheduleFile::read(&stored.to_text()).expect("a file");
    let [one, other] = [run(&read.schedule, &extra_checks), run(&stored.schedule, &extra_checks)];
    assert_eq!(one.findings(), other.findings());
    assert!(kind_of(&one.findings()[0]) == kind_of(finding));
}

#[test]
fn the_program_says_what_it_found_how_to_see_it_again_and_with_how_little() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, smaller) = (folder.path().join("lost.json"), folder.path().join("smaller.json"));
    let mut schedule = Schedule::default();
    schedule.during(ms(3_000), ms(4_000), Fault::Cut(0, 2), Fault::Mend(0, 2));
    schedule.at(ms(5_000), Fault::Crash(1, Leftover::Lost)).at(ms(5_000), Fault::LoseDisk(1));
    schedule.at(ms(6_000), Fault::Start(1));
    let stored = ScheduleFile { scenario: "calm".to_owned(), seed: 3, schedule };
    std::fs::write(&file, stored.to_text()).expect("a file");
    let acequia_sim = |arguments: &[&str]| {
        let done =
            Command::new(env!("CARGO_BIN_EXE_acequia-sim")).args(arguments).output().expect("a process");
        (done.status.code(), String::from_utf8(done.stdout).expect("text"))
    };
    let text = |path: &std::path::Path| path.display().to_string();

    let (code, said) = acequia_sim(&["run", "--schedule", &text(&file)]);
    assert_eq!(code, Some(1), "{said}");
    let again = format!("-- run --schedule {}", text(&file));
    for part in ["FOUND service resumes: us is not ready", &again, "lose the disk of us", "the last of us:"] {
        assert!(said.contains(part), "{part}: {said}");
    }

    let (code, said) = acequia_sim(&["minimise", "--schedule", &text(&file), "--out", &text(&smaller)]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("3 of 5 faults are enough"), "{said}");
    let (code, said) = acequia_sim(&["run", "--schedule", &text(&smaller)]);
    assert_eq!(code, Some(1), "{said}");

    let (code, said) = acequia_sim(&["run", "calm", "--seeds", "2", "--from", "5", "--jobs", "2"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("2 runs of calm, seeds 5 to 6") && said.ends_with("nothing found\n"), "{said}");
    assert_eq!(acequia_sim(&["run", "no-such"]).0, Some(2));
}
