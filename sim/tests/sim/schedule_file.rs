//! The README shows how a schedule is written. Its sample is read and run.

use std::collections::BTreeSet;

use acequia_sim::{
    file::ScheduleFile,
    run::run_plan,
    scenarios::named,
    schedule::{Command, Fault, Leftover, StoreFault},
    trace::Trace,
};
use serde::de::DeserializeOwned;

const PAGE: &str = include_str!("../../README.md");

/// The file that the README shows.
fn sample() -> ScheduleFile {
    let (_, after) = PAGE.split_once("```json\n").expect("a sample");
    let (text, _) = after.split_once("```").expect("its end");
    ScheduleFile::read(text).expect("a schedule")
}

#[test]
fn the_schedule_that_the_page_shows_runs_and_does_what_it_says() {
    let stored = sample();
    assert_eq!(ScheduleFile::read(&stored.to_text()), Ok(stored.clone()), "it is written as it is read");
    let scenario = named(&stored.scenario).expect("a scenario");
    let plan = stored.plan_of(&scenario).expect("places that there are");
    let record = run_plan(plan, stored.seed, &Trace::default()).expect("a world");
    assert_eq!(record.findings, [""; 0]);
    let [eu, us, ap] = &record.regions[..] else { panic!("three regions") };
    assert!(eu.1.silent > 0 && us.1.silent == 0 && ap.1.silent == 0, "eu was down: {:?}", record.regions);
    let trace = Trace::default();
    let usual = run_plan(scenario.plan_of(stored.seed), stored.seed, &trace).expect("a world");
    assert_ne!(record.hash, usual.hash, "the schedule replaces the scenario's");
}

/// The names that a type may have in a file.
fn names<T: DeserializeOwned>() -> BTreeSet<String> {
    let why = serde_json::from_str::<T>("\"no such name\"").map(drop).expect_err("no name").to_string();
    let names: BTreeSet<String> = why.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    assert!(!names.is_empty(), "{why}");
    names
}

#[test]
fn the_page_lists_every_fault_and_each_is_read_as_it_stands_there() {
    let section = PAGE.split("## A schedule in a file").nth(1).expect("a section");
    let section = section.split("\n## ").next().expect("its text");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let mut faults = sample().schedule.faults().iter().map(|(_, fault)| fault.clone()).collect::<Vec<_>>();
    for row in rows {
        for written in row.split(" | ").next().unwrap_or("").split('`').skip(1).step_by(2) {
            let fault = serde_json::from_str(written);
            faults.push(fault.unwrap_or_else(|why| panic!("{written}: {why}")));
        }
    }
    let written: Vec<String> =
        faults.iter().map(|fault| serde_json::to_string(fault).expect("JSON")).collect();
    let expected = [names::<Fault>(), names::<Command>(), names::<StoreFault>(), names::<Leftover>()];
    for name in expected.iter().flatten() {
        let quoted = format!("\"{name}\"");
        assert!(written.iter().any(|fault| fault.contains(&quoted)), "the page does not show {name}");
    }
    assert!(expected[0].len() > 20 && expected[1].len() > 5, "{expected:?}");
}
