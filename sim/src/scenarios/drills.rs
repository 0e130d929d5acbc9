//! Short drills: histories in which a server that breaks a rule is found out soon. They promise no
//! utilisation.

use super::{Plan, Scenario, crashes::LEFTOVERS, ms, pair};
use crate::{
    demand::{Demand, Herd, Kind},
    random::Random,
    schedule::{Command, Fault, Leftover, Place, Schedule},
};

/// Crashes while rights move.
pub(super) const CRASHES: Scenario = Scenario {
    name: "drill-crashes",
    story: "One region asks for most, so that the others lend and give; all of them lose their power again and again, most \
            often at a durable write.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let mut at_ms = random.between(3_000, 4_500);
        while at_ms < 13_000 {
            let place = random.index(REGIONS);
            let down_ms = random.pick(&[50, 200, 200, 1_000]);
            match random.below(5) {
                0 => schedule.at(ms(at_ms), Fault::Stop(place)),
                1 => schedule.at(ms(at_ms), Fault::Crash(place, random.pick(&LEFTOVERS))),
                _ => {
                    let torn = Fault::Crash(place, Leftover::Lost);
                    schedule
                        .at(ms(at_ms), Fault::CrashAtWrite(place, random.below(4)))
                        .at(ms(at_ms + 300), torn)
                }
            };
            schedule.at(ms(at_ms + 300 + down_ms), Fault::Start(place));
            at_ms += random.between(300, 1_500);
        }
        plan(random, schedule, 16_000)
    },
};

/// Links that hold packets for about as long as a loan lasts.
pub(super) const LINKS: Scenario = Scenario {
    name: "drill-links",
    story: "One region asks for most, so that the others lend and give; links hold back what they carry, for up to some \
            seconds longer than a loan lasts, and machines run as fast or as slow as is promised at most.",
    plan: |random| {
        let mut schedule = Schedule::default();
        for place in 0..REGIONS {
            let ppm = random.pick(&[-990, 0, 990]);
            schedule.at(ms(0), Fault::Drift(place, ppm));
        }
        for _ in 0..random.between(2, 5) {
            let ((a, b), at_ms) = (pair(random, REGIONS), random.between(3_000, 12_000));
            let until_ms = at_ms + random.between(500, 11_000);
            match random.below(4) {
                0 => schedule.during(ms(at_ms), ms(until_ms), Fault::Cut(a, b), Fault::Mend(a, b)),
                1 => schedule.during(ms(at_ms), ms(until_ms), Fault::CutOneWay(a, b), Fault::Mend(a, b)),
                2 => {
                    schedule.during(ms(at_ms), ms(until_ms), Fault::Slow(a, b, 1_500), Fault::Slow(a, b, 30))
                }
                _ => schedule.during(ms(at_ms), ms(until_ms), Fault::Hold(a, b), Fault::Release(a, b)),
            };
        }
        plan(random, schedule, 26_000)
    },
};

/// Orders that not every region hears.
pub(super) const ORDERS: Scenario = Scenario {
    name: "drill-orders",
    story: "Weights and budgets go up and down while rights move, and while a region cannot be told or has no power.",
    plan: |random| {
        let mut schedule = Schedule::default();
        for _ in 0..random.between(3, 6) {
            let at_ms = random.between(3_000, 12_000);
            schedule.at(ms(at_ms), Fault::Order(0, order(random)));
            let (a, b) = pair(random, REGIONS);
            let (from, until) = (ms(at_ms - random.below(600)), ms(at_ms + random.between(100, 4_000)));
            match random.below(3) {
                0 => schedule.during(from, until, Fault::Cut(a, b), Fault::Mend(a, b)),
                1 => schedule.during(from, until, Fault::CrashAtWrite(a, random.below(6)), Fault::Start(a)),
                _ => schedule.during(from, until, Fault::Hold(a, b), Fault::Release(a, b)),
            };
        }
        plan(random, schedule, 16_000)
    },
};

/// Tokens that move, and then are all asked for.
pub(super) const TOKENS: Scenario = Scenario {
    name: "drill-tokens",
    story: "One region asks for most of a bucket that fills slowly, so that the others lend it their tokens; again and again all \
            ask at once for more than there is anywhere.",
    plan: |random| {
        let mut schedule = Schedule::default();
        for _ in 0..random.between(1, 3) {
            let ((a, b), at_ms) = (pair(random, REGIONS), random.between(3_000, 12_000));
            let until_ms = at_ms + random.between(500, 6_000);
            schedule.during(ms(at_ms), ms(until_ms), Fault::Hold(a, b), Fault::Release(a, b));
        }
        schedule.at(ms(18_000), Fault::Heal);
        let mut percent = vec![100, 5, 5];
        let turned = random.index(REGIONS);
        percent.rotate_left(turned);
        let herd = Some(Herd { every: ms(random.between(4_000, 9_000)), questions: 60 });
        let kinds = [(1, Kind::of("route", "/api", 3))];
        let demand = Demand { per_second: 20, percent, herd, ..Demand::of(kinds) };
        let limits = "
  - name: api
    domain: sim
    when: { route: /api }
    token_bucket: { rate: 12/s, burst: 150 }
"
        .to_owned();
        Plan { limits, demand, schedule, latency_ms: (5, 20), duration: ms(25_000), ..Plan::default() }
    },
};

const REGIONS: usize = 3;

fn order(random: &mut Random) -> Command {
    let of: Place = random.index(REGIONS);
    let units = random.pick(&[6, 20, 60, 150]);
    match random.below(5) {
        0 => Command::budget("api", "rate", &format!("{units}/s")),
        1 => Command::budget("api", "burst", &units.to_string()),
        2 => Command::budget("exports", "limit", &(2 * units).to_string()),
        _ => Command::Weight(of, random.pick(&[1, 4, 20])),
    }
}

fn plan(random: &mut Random, mut schedule: Schedule, until_ms: u64) -> Plan {
    schedule.at(ms(until_ms), Fault::Heal);
    let mut percent = vec![150, 20, 60];
    let turned = random.index(REGIONS);
    percent.rotate_left(turned);
    let demand = Demand::of([
        (4, Kind::of("route", "/api", 3)),
        (3, Kind::of("route", "/export", 4)),
        (3, Kind::of("route", "/job", 3)),
    ]);
    let demand = Demand { per_second: 30, percent, ..demand };
    let limits = LIMITS.to_owned();
    Plan { limits, demand, schedule, latency_ms: (5, 20), duration: ms(until_ms + 7_000), ..Plan::default() }
}

const LIMITS: &str = "
  - name: api
    domain: sim
    when: { route: /api }
    token_bucket: { rate: 40/s, burst: 60 }
  - name: exports
    domain: sim
    when: { route: /export }
    fixed_window: { limit: 120, window: 4s }
  - name: jobs
    domain: sim
    when: { route: /job }
    sliding_window: { limit: 60, window: 2s }
";
