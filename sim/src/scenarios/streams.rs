use super::{Plan, Scenario, crashes::LEFTOVERS, ms, pair, seconds};
use crate::{
    demand::{Demand, Kind, Reports},
    random::Random,
    schedule::{Fault, Schedule},
};

pub(super) const STREAMS: Scenario = Scenario {
    name: "streams",
    story: "Callers learn what a request costs when it is done, and report that late, twice or never, while regions are cut \
            off, crash, stop and sleep: what was not left is owed, and nothing passes where it is owed.",
    plan: |random| {
        let streaming = |value, cost_max, most, latest_s| Kind {
            reports: Some(Reports { cost_max: most, latest: seconds(latest_s) }),
            ..Kind::of("route", value, cost_max)
        };
        let user = Kind { spread: Some(("user", 4)), ..streaming("/home", 2, 8, 4) };
        let kinds = [
            (3, streaming("/api", 2, 16, 3)),
            (2, Kind::of("route", "/api", 3)),
            (2, streaming("/export", 2, 60, 5)),
            (2, Kind::of("route", "/export", 4)),
            (2, streaming("/report", 2, 40, 3)),
            (1, Kind::of("route", "/report", 4)),
            (1, user),
        ];
        Plan {
            limits: LIMITS.to_owned(),
            demand: Demand::of(kinds),
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
    token_bucket: { rate: 100/s, burst: 120 }
  - name: exports
    domain: sim
    when: { route: /export }
    fixed_window: { limit: 1200, window: 5s }
  - name: reports
    domain: sim
    when: { route: /report }
    sliding_window: { limit: 800, window: 5s }
  - name: per-user
    domain: sim
    by: [user]
    token_bucket: { rate: 5/s, burst: 12 }
";

/// Some faults while requests are under way, between the fifth second and the twentieth.
pub(super) fn faults(random: &mut Random) -> Schedule {
    let mut schedule = Schedule::default();
    for _ in 0..random.between(2, 6) {
        let (a, b) = pair(random, 3);
        let at_ms = random.between(5_000, 19_000);
        let (at, until) = (ms(at_ms), ms((at_ms + random.between(100, 5_000)).min(20_000)));
        match random.below(6) {
            0 => schedule.during(at, until, Fault::Cut(a, b), Fault::Mend(a, b)),
            1 => schedule.split(at, until, &[&[a], &[b]]),
            2 | 3 => schedule.during(at, until, Fault::Crash(a, random.pick(&LEFTOVERS)), Fault::Start(a)),
            4 => schedule.during(at, until, Fault::Stop(a), Fault::Start(a)),
            _ => schedule.during(at, until, Fault::Sleep(a), Fault::Wake(a)),
        };
    }
    schedule.at(seconds(20), Fault::Heal);
    schedule
}
