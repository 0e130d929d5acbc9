use super::{Plan, Scenario, crashes::LEFTOVERS, ms, pair, seconds};
use crate::{
    demand::{Demand, Kind},
    random::Random,
    schedule::{Fault, Schedule},
};

pub(super) const LEASES: Scenario = Scenario {
    name: "leases",
    story: "Callers lease units, spend some at once and the rest at the last moment, while regions are cut off, crash and come \
            back, and clocks are as wrong as is promised: what is leased is nobody else's, also after a restart.",
    plan: |random| {
        let leasing = |key, value, cost_max, longest_s| Kind {
            lease: Some(seconds(longest_s)),
            ..Kind::of(key, value, cost_max)
        };
        let user = Kind { spread: Some(("user", 4)), ..leasing("route", "/home", 6, 3) };
        let kinds = [
            (3, leasing("route", "/api", 30, 4)),
            (2, Kind::of("route", "/api", 3)),
            (2, leasing("route", "/export", 60, 12)),
            (1, Kind::of("route", "/export", 4)),
            (2, leasing("route", "/report", 40, 12)),
            (1, Kind::of("route", "/report", 4)),
            (1, user),
        ];
        let demand = Demand::of(kinds);
        Plan {
            limits: LIMITS.to_owned(),
            demand,
            schedule: faults(random),
            duration: seconds(34),
            ..Plan::default()
        }
    },
};

const LIMITS: &str = "
  - name: api
    domain: sim
    when: { route: /api }
    token_bucket: { rate: 40/s, burst: 90 }
  - name: exports
    domain: sim
    when: { route: /export }
    fixed_window: { limit: 400, window: 10s }
  - name: reports
    domain: sim
    when: { route: /report }
    sliding_window: { limit: 200, window: 10s }
  - name: per-user
    domain: sim
    by: [user]
    token_bucket: { rate: 3/s, burst: 12 }
";

/// Some faults that take a region's leases to their limits, between the fifth second and the twentieth.
fn faults(random: &mut Random) -> Schedule {
    let mut schedule = Schedule::default();
    for place in 0..3 {
        // Half of what the promise of clocks allows at first, and as much again later.
        let [first, then] = [0; 2].map(|_| random.between(0, 6) as i64 - 3);
        schedule
            .at(ms(0), Fault::Wall(place, first))
            .at(ms(0), Fault::Drift(place, random.between(0, 200) as i64 - 100));
        schedule.at(ms(random.between(5_000, 20_000)), Fault::Wall(place, then - first));
    }
    for _ in 0..random.between(2, 5) {
        let (a, b) = pair(random, 3);
        let at_ms = random.between(5_000, 19_000);
        let (at, until) = (ms(at_ms), ms((at_ms + random.between(100, 5_000)).min(20_000)));
        match random.below(5) {
            0 => schedule.during(at, until, Fault::Cut(a, b), Fault::Mend(a, b)),
            1 => schedule.split(at, until, &[&[a], &[b]]),
            2 => schedule.during(at, until, Fault::Crash(a, random.pick(&LEFTOVERS)), Fault::Start(a)),
            3 => schedule.during(at, until, Fault::Stop(a), Fault::Start(a)),
            _ => schedule.during(at, until, Fault::Sleep(a), Fault::Wake(a)),
        };
    }
    schedule.at(seconds(20), Fault::Heal);
    schedule
}
