//! Nodes of one region that share a store: their callers during a store outage.

use std::time::Duration;

use acequia_sim::{
    checks::Check,
    demand::{Demand, Kind},
    run::run_with,
    scenarios::{Plan, named},
    schedule::{Fault, Schedule, StoreFault},
    trace::Trace,
    world::{Answer, Reply, World},
};

const GONE: Duration = Duration::from_secs(25);
const BACK: Duration = Duration::from_secs(85);
/// Callers ask for less than half of these limits.
const LIMITS: &str = "
  - name: api
    domain: sim
    when: { route: /api }
    token_bucket: { rate: 64/s, burst: 128 }
  - name: exports
    domain: sim
    when: { route: /export }
    fixed_window: { limit: 700, window: 10s }
  - name: reports
    domain: sim
    when: { route: /report }
    sliding_window: { limit: 700, window: 10s }
";

/// During the outage, at most one in a hundred requests may be denied.
#[derive(Debug, Default)]
struct HardlyDenied {
    denied: u64,
    asked: u64,
}

impl Check for HardlyDenied {
    fn name(&self) -> &'static str {
        "hardly denied"
    }

    fn observe(&mut self, _: &World, answers: &[Answer]) -> Result<(), String> {
        for answer in answers.iter().filter(|answer| (GONE..BACK).contains(&answer.asked)) {
            self.asked += 1;
            self.denied += u64::from(!matches!(answer.reply, Reply::Allowed(_)));
        }
        Ok(())
    }

    fn end(&mut self, _: &World) -> Result<(), String> {
        let Self { denied, asked } = *self;
        if asked < 3_000 || denied * 100 > asked {
            Err(format!("{denied} of {asked} denied"))
        } else {
            Ok(())
        }
    }

    fn summary(&self) -> Vec<String> {
        vec![format!("{} of {} denied while the store was gone", self.denied, self.asked)]
    }
}

#[test]
fn who_asks_for_less_than_half_is_hardly_denied_while_the_store_is_gone_for_a_minute() {
    let kinds = [(1, Kind::of("route", "/api", 1)), (1, Kind::of("route", "/export", 1))];
    let kinds = kinds.into_iter().chain([(1, Kind::of("route", "/report", 1))]);
    let demand = Demand { per_second: 30, ..Demand::of(kinds.collect::<Vec<_>>()) };
    let mut schedule = Schedule::default();
    schedule.during(GONE, BACK, Fault::Store(StoreFault::Gone), Fault::Store(StoreFault::Back));
    for seed in 1..=2 {
        let plan = Plan {
            limits: LIMITS.to_owned(),
            demand: demand.clone(),
            schedule: schedule.clone(),
            duration: Duration::from_secs(100),
            guard_percent: Some(10),
            ..named("store-gone").expect("a scenario").plan_of(seed)
        };
        let record = run_with(plan, seed, &Trace::default(), vec![Box::new(HardlyDenied::default())]);
        let record = record.expect("a world");
        assert_eq!(record.findings, [""; 0], "seed {seed}");
        let notes = record.notes.iter().filter(|note| note.contains("while the store was gone"));
        eprintln!("seed {seed}: {}", notes.cloned().collect::<String>());
    }
}
