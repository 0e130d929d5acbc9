use super::{Plan, Scenario, seconds};
use crate::{
    demand::{Demand, Kind},
    schedule::Schedule,
};

pub(super) const CALM: Scenario = Scenario {
    name: "calm",
    story: "Nothing breaks: three regions share a bucket, a window and buckets for each user, and more is asked for than \
            there is.",
    plan: |_| Plan { used_min_percent: Some(USED_MIN_PERCENT), ..Plan::default() },
};

/// Where every region is asked for more than its share, nothing has to move. So only the headroom of the
/// oracle's amount is missing: a hundredth, by which wants are rounded up before they are shared. Two
/// hundredths are for chance.
pub(super) const USED_MIN_PERCENT: u64 = 97;

/// The plan that every story starts from.
impl Default for Plan {
    fn default() -> Self {
        Self {
            regions: 3,
            limits: LIMITS.to_owned(),
            clock: "",
            latency_ms: (15, 40),
            demand: Demand::of([
                (5, Kind::of("route", "/api", 3)),
                (3, Kind::of("route", "/export", 4)),
                (2, Kind { spread: Some(("user", 8)), ..Kind::of("route", "/home", 2) }),
            ]),
            guard_percent: None,
            stores: 1,
            schedule: Schedule::default(),
            duration: seconds(30),
            most_walls_are_right: false,
            admits_at_last: false,
            apart: Vec::new(),
            used_min_percent: None,
            barred: Vec::new(),
            gone: Vec::new(),
        }
    }
}

const LIMITS: &str = "
  - name: api
    domain: sim
    when: { route: /api }
    token_bucket: { rate: 40/s, burst: 60 }
  - name: exports
    domain: sim
    when: { route: /export }
    fixed_window: { limit: 300, window: 10s }
  - name: per-user
    domain: sim
    by: [user]
    token_bucket: { rate: 2/s, burst: 6 }
";
