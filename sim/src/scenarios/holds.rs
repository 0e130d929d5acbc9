use super::{Plan, Scenario, seconds, streams};
use crate::demand::{Demand, Kind, Streams};

pub(super) const HOLDS: Scenario = Scenario {
    name: "holds",
    story: "Requests begin with cost 0, and units are held for them; gateways report the real cost in time, late, twice or \
            never, with an id or without, while regions are cut off, crash, stop and sleep: what requests cost up to their holds \
            never passes a limit, and the holds of dead gateways lapse.",
    plan: |random| {
        let streaming = |value, cost_max, longest_s, dying| Kind {
            streams: Some(Streams { cost_max, longest: seconds(longest_s), has_id: true, dying }),
            ..Kind::of("route", value, 1)
        };
        let by_user = |kind| Kind { spread: Some(("user", 4)), ..kind };
        let without_id = Streams { cost_max: 20, longest: seconds(1), has_id: false, dying: 15 };
        let kinds = [
            (3, streaming("/chat", 20, 3, 20)),
            (1, by_user(streaming("/chat", 20, 3, 20))),
            (1, by_user(streaming("/home", 15, 4, 20))),
            (3, streaming("/ask", 45, 3, 20)),
            (1, streaming("/call", 20, 3, 15)),
            (2, Kind { streams: Some(without_id), ..Kind::of("route", "/call", 1) }),
            (2, streaming("/night", 20, 1, 100)),
        ];
        Plan {
            limits: LIMITS.to_owned(),
            // Every hold, report and lapse changes what a cell has left, and so is news for others.
            demand: Demand { per_second: 14, ..Demand::of(kinds) },
            schedule: streams::faults(random),
            duration: seconds(34),
            ..Plan::default()
        }
    },
};

/// Requests of `/ask` cost more than is held for some of them, and requests of the other routes never do. All
/// gateways of `/night` die, and its window outlasts the run.
const LIMITS: &str = "
  - name: chats
    domain: sim
    when: { route: /chat }
    fixed_window: { limit: 600, window: 5s }
    charge: always
    expect: { cost: 20, within: 2s }
  - name: asks
    domain: sim
    when: { route: /ask }
    sliding_window: { limit: 500, window: 5s }
    charge: always
    expect: { cost: { auto: { quantile: 0.8, cap: 40 } }, within: 2s }
  - name: calls
    domain: sim
    when: { route: /call }
    fixed_window: { limit: 500, window: 5s }
    charge: always
    expect: { cost: 20, within: 2s }
  - name: nights
    domain: sim
    when: { route: /night }
    fixed_window: { limit: 200, window: 1h }
    charge: always
    expect: { cost: 20, within: 2s }
  - name: per-user
    domain: sim
    by: [user]
    token_bucket: { rate: 20/s, burst: 60 }
    charge: always
    expect: { cost: 15, within: 3s }
";
