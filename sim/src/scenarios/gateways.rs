use super::{Plan, Scenario, seconds, streams};
use crate::demand::{Demand, Kind, Stays};

pub(super) const GATEWAYS: Scenario = Scenario {
    name: "gateways",
    story: "Requests go on for a while and have slots, which gateways renew and release; some gateways die with slots held, while \
            regions are cut off, crash, stop and sleep: never more go on at one time than there are slots.",
    plan: |random| {
        let going_on = |value, cost_max, longest_s| Kind {
            stays: Some(Stays { longest: seconds(longest_s), renewals_max: 2 }),
            ..Kind::of("route", value, cost_max)
        };
        let user = Kind { spread: Some(("user", 4)), ..going_on("/home", 1, 3) };
        let kinds = [
            (3, going_on("/chat", 1, 3)),
            (3, going_on("/build", 3, 6)),
            (1, user),
            (2, Kind::of("route", "/api", 3)),
        ];
        Plan {
            limits: LIMITS.to_owned(),
            demand: Demand::of(kinds),
            schedule: streams::faults(random),
            duration: seconds(34),
            ..Plan::default()
        }
    },
};

const LIMITS: &str = "
  - name: chats
    domain: sim
    when: { route: /chat }
    concurrent: { limit: 24, ttl: 2s }
  - name: builds
    domain: sim
    when: { route: /build }
    concurrent: { limit: 100, ttl: 4s }
  - name: per-user
    domain: sim
    by: [user]
    concurrent: { limit: 6, ttl: 3s }
  - name: api
    domain: sim
    when: { route: /api }
    token_bucket: { rate: 40/s, burst: 60 }
";
