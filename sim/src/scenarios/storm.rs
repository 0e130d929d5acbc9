use super::{Plan, Scenario, crashes::LEFTOVERS, ms, pair, seconds};
use crate::{
    random::Random,
    schedule::{Command, Fault, Place, Schedule},
};

pub(super) const STORM: Scenario = Scenario {
    name: "storm",
    story: "Five regions, and everything at once for most of a minute: cuts of all kinds, crashes, clocks that \
            step and drift, orders in between.",
    plan: |random| Plan {
        regions: REGIONS,
        schedule: schedule(random),
        latency_ms: (10, 60),
        duration: seconds(60),
        ..Plan::default()
    },
};

const REGIONS: usize = 5;
/// When faults begin, and when all are over, in milliseconds.
const FROM_MS: u64 = 6_000;
const UNTIL_MS: u64 = 45_000;

fn schedule(random: &mut Random) -> Schedule {
    let mut schedule = Schedule::default();
    for _ in 0..random.between(10, 20) {
        let at_ms = random.between(FROM_MS, UNTIL_MS - 1_000);
        let until_ms = (at_ms + random.between(200, 12_000)).min(UNTIL_MS);
        break_one(&mut schedule, random, at_ms, until_ms);
    }
    schedule.at(ms(UNTIL_MS), Fault::Heal);
    schedule
}

/// Adds a fault from one time to another.
fn break_one(schedule: &mut Schedule, random: &mut Random, at_ms: u64, until_ms: u64) {
    let (a, b) = pair(random, REGIONS);
    let (at, until) = (ms(at_ms), ms(until_ms));
    match random.below(9) {
        0 | 1 => schedule.at(at, Fault::Cut(a, b)).at(until, Fault::Mend(a, b)),
        2 => schedule.at(at, Fault::CutOneWay(a, b)).at(until, Fault::Mend(a, b)),
        3 => {
            let others: Vec<Place> = (0..REGIONS).filter(|place| ![a, b].contains(place)).collect();
            schedule.split(at, until, &[&[a, b], &others])
        }
        4 | 5 => {
            let leftover = random.pick(&LEFTOVERS);
            schedule.at(at, Fault::Crash(a, leftover)).at(until, Fault::Start(a))
        }
        6 => schedule.at(at, Fault::CrashAtWrite(a, random.below(40))).at(until, Fault::Start(a)),
        7 => {
            // Both stay within the promise about clocks.
            let (step_ms, ppm) = (random.between(0, 4) as i64, random.between(0, 100) as i64);
            schedule.at(at, Fault::Wall(a, step_ms)).at(until, Fault::Wall(a, -step_ms));
            schedule.at(at, Fault::Drift(a, ppm)).at(until, Fault::Drift(a, 0))
        }
        _ => {
            let rate = random.between(20, 60);
            let budget = Command::budget("api", "rate", &format!("{rate}/s"));
            let weight = Command::Weight(a, random.between(1, 5) as u32);
            schedule.at(at, Fault::Order(0, budget)).at(until, Fault::Order(0, weight))
        }
    };
}
