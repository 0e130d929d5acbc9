//! Compares the real server with other ways of limiting, under the same demand and faults.
//!
//! The real server runs first. Its callers' questions, and the times when its regions were down, are then
//! played to reference policies in a small [model](play) with the same latencies and cuts. The model flatters
//! the policies: it has no disk writes, clock differences, handshakes or acknowledgements, and nothing is
//! lost in a crash. Operators' orders are excluded, since the policies have no orders to compare.

mod central;
mod gossip;
mod judge;
mod meter;
mod model;
mod periodic;
mod shares;
mod table;

pub use self::{
    judge::{Figures, judge},
    model::{Asked, Case, Decision, Downtime, Played, Policy, Verdict, Wire, play},
    table::{Form, overall, table},
};
use crate::{
    report::Rival,
    run::Record,
    scenarios::{Plan, Scenario},
    schedule::{Command, Fault, Schedule},
    series::{EVERY, Series, run_watched, running_sum},
    trace::Trace,
    world::WorldError,
};

/// The real server's name in tables.
pub const REAL: &str = "acequia";

/// The figures of each way of limiting in one scenario; the real server comes first.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The scenario.
    pub scenario: &'static str,
    /// Names and figures.
    pub rows: Vec<(&'static str, Figures)>,
}

/// All reference policies.
pub fn policies(case: &Case) -> Vec<Box<dyn Policy>> {
    vec![
        Box::new(gossip::Gossip::new(case)),
        Box::new(periodic::Periodic::new(case)),
        Box::new(shares::Shares::new(case)),
        Box::new(central::Central::new(case, true)),
        Box::new(central::Central::new(case, false)),
    ]
}

/// Whether the other policies can be asked the same questions. They know no leases, no
/// reports, no requests under way, and no store that nodes of one region share.
fn is_comparable(plan: &Plan) -> bool {
    plan.guard_percent.is_none() && plan.demand.longest_use().is_zero()
}

/// Runs a scenario, and plays it with every policy. `None` if the scenario has no limit that can be judged
/// from outside, or if the other policies cannot be asked the same questions.
///
/// # Errors
/// The world cannot be made, or a host ended it.
pub fn compare(scenario: &Scenario, seed: u64) -> Result<Option<Comparison>, WorldError> {
    let mut plan = scenario.plan_of(seed);
    if !is_comparable(&plan) {
        return Ok(None);
    }
    plan.schedule = without_orders(&plan.schedule);
    let (record, series) = run_watched(plan, seed, &Trace::default())?;
    let (case, real) = Case::of(&record, &series, seed);
    if case.cells.is_empty() {
        return Ok(None);
    }
    let mut rows = vec![(REAL, judge(&case, &real))];
    for mut policy in policies(&case) {
        rows.push((policy.name(), judge(&case, &play(&case, &mut *policy))));
    }
    Ok(Some(Comparison { scenario: scenario.name, rows }))
}

/// What gossip would have admitted of the cell that a report shows; `None` if the cell's limit was changed
/// during the run.
pub fn gossip_in(record: &Record, series: &Series, seed: u64) -> Option<Rival> {
    if without_orders(&record.plan.schedule) != record.plan.schedule || !is_comparable(&record.plan) {
        return None;
    }
    let (case, _) = Case::of(record, series, seed);
    let main = crate::report::main_cell(series)?;
    let mut answers: Vec<_> = series.answers.iter().collect();
    answers.sort_by_key(|answer| (answer.asked, answer.place));
    let played = play(&case, &mut gossip::Gossip::new(&case));
    let mut admitted = vec![0; series.bytes.len()];
    for (answer, decision) in answers.iter().zip(&played.decisions) {
        let sample = decision.at_ns.div_ceil(EVERY.as_nanos() as u64) as usize;
        if let Some(units) = admitted.get_mut(sample)
            && decision.verdict == Verdict::Allowed
            && main.is_asked(&answer.question)
        {
            *units += answer.question.cost * main.limit.cost;
        }
    }
    running_sum(&mut admitted);
    Some(Rival {
        short: "gossip",
        key: "the same questions to a limiter that gossips its counts",
        words: "what a limiter would have admitted whose regions tell each other their counts ten times a second, and \
                decide by what they have heard: the same questions, the same cuts.",
        admitted,
    })
}

/// Removes orders from a schedule, but keeps recovery: without it a region that lost its disk would never
/// come back.
fn without_orders(schedule: &Schedule) -> Schedule {
    let mut rest = Schedule::default();
    for (at, fault) in schedule.faults() {
        if !matches!(fault, Fault::Order(_, command) if !matches!(command, Command::Recover(_))) {
            rest.at(*at, fault.clone());
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{bound::Bound, schedule::Place};

    const SECOND_NS: u64 = 1_000_000_000;

    /// Four regions share a window of 200 units in 10 s. For 30 s, some of them ask for 40 units a second
    /// each.
    fn case(askers: &[Place], schedule: &Schedule) -> Case {
        let every_ns = SECOND_NS / 40;
        let asked = (0..30 * 40).flat_map(|number| {
            let place = move |(order, place): (usize, &Place)| Asked {
                at_ns: number * every_ns + order as u64 * 1_000_000,
                place: *place,
                hits: vec![(0, 1)],
            };
            askers.iter().enumerate().map(place)
        });
        Case {
            regions: 4,
            cells: vec![Bound::Window { limit: 200, length_ns: 10 * SECOND_NS }],
            asked: asked.collect(),
            faults: schedule.faults().to_vec(),
            latency_ms: (20, 20),
            seed: 1,
            ..Case::default()
        }
    }

    /// A split from one edge of a window to the next.
    fn split(parts: &[&[Place]]) -> Schedule {
        let mut schedule = Schedule::default();
        schedule.split(Duration::from_secs(10), Duration::from_secs(20), parts);
        schedule
    }

    fn figures(case: &Case, name: &str) -> Figures {
        let mut policy = policies(case).into_iter().find(|policy| policy.name() == name).unwrap();
        judge(case, &play(case, &mut *policy))
    }

    #[test]
    fn gossip_admits_the_limit_once_for_each_side_of_a_split() {
        let all = [0, 1, 2, 3];
        let whole = figures(&case(&all, &Schedule::default()), "gossip").over_percent;
        assert!((0.0..20.0).contains(&whole), "what races admit: {whole}");
        for (parts, expected) in
            [(&[&all[..2], &all[2..]][..], 100.0), (&[&[0][..], &[1], &[2], &[3]][..], 300.0)]
        {
            let over = figures(&case(&all, &split(parts)), "gossip").over_percent;
            assert!((over - expected).abs() < 20.0, "{} sides: {over}", parts.len());
        }
    }

    #[test]
    fn a_periodic_sync_admits_what_regions_have_not_yet_exchanged() {
        let all = case(&[0, 1, 2, 3], &Schedule::default());
        let (periodic, gossip) = (figures(&all, "periodic sync"), figures(&all, "gossip"));
        assert!(periodic.over_percent > gossip.over_percent, "{periodic:?}");
        assert!(periodic.bytes < gossip.bytes / 5.0, "{periodic:?}");
    }

    #[test]
    fn static_shares_never_admit_too_much_and_waste_what_is_not_asked_where_it_is() {
        let even = figures(&case(&[0, 1, 2, 3], &split(&[&[0, 1], &[2, 3]])), "static shares");
        assert_eq!((even.over_units, even.used_percent, even.bytes), (0, 100.0, 0.0));
        let one = figures(&case(&[0], &Schedule::default()), "static shares");
        assert_eq!((one.over_units, one.used_percent), (0, 25.0));
        assert!(one.false_denials_percent > 30.0, "{one:?}");
    }

    #[test]
    fn a_central_counter_is_exact_and_waits_until_it_is_cut_off() {
        let calm = case(&[0, 1, 2, 3], &Schedule::default());
        let cut = case(&[1, 2, 3], &split(&[&[0], &[1, 2, 3]]));
        let exact = figures(&calm, "central, fail-closed");
        assert_eq!((exact.over_units, exact.used_percent), (0, 100.0));
        assert_eq!(exact.wait_ms, (42.0, 42.0));
        let closed = figures(&cut, "central, fail-closed");
        assert_eq!(closed.over_units, 0);
        assert!(closed.false_denials_percent > 10.0 && closed.used_percent < 70.0, "{closed:?}");
        let open = figures(&cut, "central, fail-open");
        assert!(open.over_percent > 400.0 && open.wait_ms.1 > 250.0, "{open:?}");
    }

    #[test]
    fn a_region_that_is_down_answers_nobody_and_an_oracle_does_not_count_on_it() {
        let down = vec![Downtime { place: 0, from: Duration::from_secs(10), until: Duration::from_secs(20) }];
        let case = Case { down, ..case(&[0], &Schedule::default()) };
        let figures = figures(&case, "gossip");
        assert!((figures.silent_percent - 33.3).abs() < 0.5, "{figures:?}");
        assert_eq!(figures.used_percent, 100.0);
    }

    #[test]
    fn an_admission_counts_only_where_its_question_and_its_answer_are() {
        let asked = |at_ns| Asked { at_ns, place: 0, hits: vec![(0, 6)] };
        let answered = |at_ns| Decision { at_ns, verdict: Verdict::Allowed };
        let cells = vec![Bound::Bucket { rate: 1, burst: 10 }];
        let case = Case { regions: 1, cells, asked: vec![asked(0), asked(SECOND_NS)], ..Case::default() };
        let over = |decisions| judge(&case, &Played { decisions, bytes: 0 }).over_units;
        assert_eq!(
            over(vec![answered(SECOND_NS), answered(SECOND_NS + 1)]),
            0,
            "11 in a second, and 12 in two"
        );
        assert_eq!(over(vec![answered(1), answered(SECOND_NS + 1)]), 0);
        let together = Case { asked: vec![asked(0), asked(0)], ..case.clone() };
        let decisions = vec![answered(1), answered(1)];
        assert_eq!(judge(&together, &Played { decisions, bytes: 0 }).over_units, 1);
    }
}
