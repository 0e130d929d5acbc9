//! One scenario with one seed, from its start to its record.

use std::time::{Duration, Instant};

use crate::{
    NAMES,
    checks::{self, Check, Clocks, REST_MAX},
    scenarios::{Plan, Scenario},
    trace::{Totals, Trace},
    world::{Answer, Reply, Setup, World, WorldError},
};

/// Steps between two checks of whether the world has come to rest.
const STEPS_A_REST_CHECK: u32 = 1_000;

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
    /// The numbers of events and packets.
    pub totals: Totals,
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
    extra_checks: Vec<Box<dyn Check>>,
) -> Result<Record, WorldError> {
    judge(plan, seed, trace, extra_checks, End::AtRest)
}

/// Runs a plan with additional checks, and ends when the plan does, without waiting for rest.
///
/// # Errors
/// The world cannot be made, or a host ended it.
pub fn run_to_end(
    plan: Plan,
    seed: u64,
    trace: &Trace,
    extra_checks: Vec<Box<dyn Check>>,
) -> Result<Record, WorldError> {
    judge(plan, seed, trace, extra_checks, End::WithPlan)
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// When nobody asks any more and all checks say that the world has come to rest.
    AtRest,
    /// When the plan does.
    WithPlan,
}

fn judge(
    plan: Plan,
    seed: u64,
    trace: &Trace,
    extra_checks: Vec<Box<dyn Check>>,
    end: End,
) -> Result<Record, WorldError> {
    let begun = Instant::now();
    let mut world = World::new(&Setup::of(&plan, seed), trace.clone())?;
    let clocks = match plan.most_walls_are_right {
        true => Clocks::default(),
        false => Clocks::beyond(&world.clock(), &plan.schedule, plan.duration),
    };
    let mut checks = checks::all(&world.limits(), clocks, &plan).map_err(WorldError::Setup)?;
    checks.extend(extra_checks);
    let mut regions: Vec<_> = NAMES[..plan.regions].iter().map(|name| (*name, Counts::default())).collect();
    let mut faults = plan.schedule.faults().iter().peekable();
    while world.elapsed() < plan.duration && trace.findings().is_empty() {
        while let Some((_, fault)) = faults.next_if(|(when, _)| *when <= world.elapsed()) {
            world.apply(fault);
        }
        world.step()?;
        let answers = observe(&world, &mut checks, trace);
        answers.iter().for_each(|answer| regions[answer.place].1.count(answer));
    }
    if trace.findings().is_empty() {
        for check in &mut checks {
            if let Err(what) = check.end(&world) {
                trace.finding(format!("{}: {what}, at the end", check.name()));
            }
        }
    }
    if end == End::AtRest {
        wait_for_rest(&mut world, &mut checks, trace)?;
    }
    Ok(Record {
        plan,
        regions,
        findings: trace.findings(),
        notes: checks.iter().flat_map(|check| check.summary()).collect(),
        hash: trace.hash(),
        totals: trace.totals(),
        took: begun.elapsed(),
    })
}

/// Silences the callers, and waits until the world has come to rest.
fn wait_for_rest(world: &mut World, checks: &mut [Box<dyn Check>], trace: &Trace) -> Result<(), WorldError> {
    let until = world.elapsed() + REST_MAX;
    world.hush();
    while trace.findings().is_empty() {
        for _ in 0..STEPS_A_REST_CHECK {
            world.step()?;
            observe(world, checks, trace);
        }
        let mut restless = checks.iter_mut().map(|check| (check.name(), check.rest(world)));
        let Some((name, Err(what))) = restless.find(|(_, rest)| rest.is_err()) else { break };
        if world.elapsed() > until {
            trace.finding(format!("{name}: {what}, {REST_MAX:?} after the last question"));
        }
    }
    Ok(())
}

/// Shows the world to the checks, and returns the new answers.
fn observe(world: &World, checks: &mut [Box<dyn Check>], trace: &Trace) -> Vec<Answer> {
    let answers = world.take_answers();
    for check in checks {
        if let Err(what) = check.observe(world, &answers) {
            trace.finding(format!("{}: {what}, at {:?}", check.name(), world.elapsed()));
        }
    }
    answers
}

impl Counts {
    pub(crate) fn count(&mut self, answer: &Answer) {
        match answer.reply {
            Reply::Denied(_) => self.denied += 1,
            Reply::Nothing(_) => self.silent += 1,
            _ if answer.reply.is_of_check() => self.allowed += 1,
            _ => {}
        }
    }
}
