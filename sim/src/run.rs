//! One scenario with one seed, from its start to its record.

use std::time::{Duration, Instant};

use crate::{
    NAMES,
    checks::{self, Check, Clocks, REST_MAX},
    scenarios::{Plan, Scenario},
    trace::Trace,
    world::{Answer, Said, Setup, World, WorldError},
};

/// Steps between two checks of whether the world has come to rest.
const STEPS_A_LOOK: u32 = 1_000;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Record {
    /// The plan that was run.
    pub plan: Plan,
    /// Each region's name and counts.
    pub regions: Vec<(&'static str, Counts)>,
    /// Breaches of invariants. A correct server has none.
    pub findings: Vec<String>,
    /// Remarks of checks.
    pub notes: Vec<String>,
    /// A hash of all events and packets.
    pub hash: u64,
    /// The numbers of events, of packets between regions, and of their bytes.
    pub counts: (u64, u64, u64),
    /// How long the run took on this machine.
    pub took: Duration,
}

/// The answers to the callers of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that may pass.
    pub allowed: u64,
    /// Requests that may not pass.
    pub denied: u64,
    /// Questions without an answer.
    pub silent: u64,
}

/// Runs a scenario, and stops at the first finding.
///
/// # Errors
/// The world cannot be made, or a host ended it.
pub fn run(scenario: &Scenario, seed: u64, trace: &Trace) -> Result<Record, WorldError> {
    run_plan(scenario.plan_of(seed), seed, trace)
}

/// Runs a plan, and stops at the first finding.
///
/// # Errors
/// The world cannot be made, or a host ended it.
pub fn run_plan(plan: Plan, seed: u64, trace: &Trace) -> Result<Record, WorldError> {
    run_with(plan, seed, trace, Vec::new())
}

/// Runs a plan with additional checks.
///
/// # Errors
/// The world cannot be made, or a host ended it.
pub fn run_with(
    plan: Plan,
    seed: u64,
    trace: &Trace,
    more: Vec<Box<dyn Check>>,
) -> Result<Record, WorldError> {
    judge(plan, seed, trace, more, true)
}

/// Runs a plan with additional checks, and ends when the plan does, without waiting for rest.
///
/// # Errors
/// The world cannot be made, or a host ended it.
pub fn run_to_end(
    plan: Plan,
    seed: u64,
    trace: &Trace,
    more: Vec<Box<dyn Check>>,
) -> Result<Record, WorldError> {
    judge(plan, seed, trace, more, false)
}

fn judge(
    plan: Plan,
    seed: u64,
    trace: &Trace,
    more: Vec<Box<dyn Check>>,
    rests: bool,
) -> Result<Record, WorldError> {
    let begun = Instant::now();
    let setup = Setup {
        seed,
        regions: plan.regions,
        limits: plan.limits.clone(),
        clock: plan.clock.to_owned(),
        latency_ms: plan.latency_ms,
        demand: plan.demand.clone(),
        guard_percent: plan.guard_percent,
        stores: plan.stores,
    };
    let mut world = World::new(&setup, trace.clone())?;
    let clocks = match plan.most_walls_are_right {
        true => Clocks::default(),
        false => Clocks::beyond(&world.clock(), &plan.schedule, plan.duration),
    };
    let mut checks = checks::all(&world.limits(), clocks, &plan).map_err(WorldError::Setup)?;
    checks.extend(more);
    let mut regions: Vec<_> = NAMES[..plan.regions].iter().map(|name| (*name, Counts::default())).collect();
    let mut faults = plan.schedule.faults().iter().peekable();
    while world.elapsed() < plan.duration && trace.findings().is_empty() {
        while let Some((_, fault)) = faults.next_if(|(when, _)| *when <= world.elapsed()) {
            world.apply(fault);
        }
        world.step()?;
        let answers = look(&world, &mut checks, trace);
        answers.iter().for_each(|answer| regions[answer.place].1.count(answer));
    }
    if trace.findings().is_empty() {
        for check in &mut checks {
            if let Err(what) = check.end(&world) {
                trace.finding(format!("{}: {what}, at the end", check.name()));
            }
        }
    }
    if rests {
        rest(&mut world, &mut checks, trace)?;
    }
    Ok(Record {
        plan,
        regions,
        findings: trace.findings(),
        notes: checks.iter().flat_map(|check| check.summary()).collect(),
        hash: trace.hash(),
        counts: trace.counts(),
        took: begun.elapsed(),
    })
}

/// Silences the callers, and waits until the world has come to rest.
fn rest(world: &mut World, checks: &mut [Box<dyn Check>], trace: &Trace) -> Result<(), WorldError> {
    let until = world.elapsed() + REST_MAX;
    world.hush();
    while trace.findings().is_empty() {
        for _ in 0..STEPS_A_LOOK {
            world.step()?;
            look(world, checks, trace);
        }
        let mut restless = checks.iter_mut().map(|check| (check.name(), check.rest(world)));
        let Some((name, Err(what))) = restless.find(|(_, rest)| rest.is_err()) else { break };
        if world.elapsed() > until {
            trace.finding(format!("{name}: {what}, {REST_MAX:?} after the last question"));
        }
    }
    Ok(())
}

/// Lets the checks look, and returns the new answers.
fn look(world: &World, checks: &mut [Box<dyn Check>], trace: &Trace) -> Vec<Answer> {
    let answers = world.take_answers();
    for check in checks {
        if let Err(what) = check.look(world, &answers) {
            trace.finding(format!("{}: {what}, at {:?}", check.name(), world.elapsed()));
        }
    }
    answers
}

impl Counts {
    pub(crate) fn count(&mut self, answer: &Answer) {
        match answer.said {
            Said::Allowed(_) | Said::Leased(_) => self.allowed += 1,
            Said::Spent(_) => {}
            Said::Denied(_) => self.denied += 1,
            Said::Nothing(_) => self.silent += 1,
        }
    }
}
