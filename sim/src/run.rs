//! One scenario with one seed, from its start to its record.

use std::time::{Duration, Instant};

use crate::{
    NAMES,
    checks::{Apart, Check, Clocks, NeverOver, ServiceResumes},
    scenarios::{Plan, Scenario},
    trace::Trace,
    world::{Answer, Said, Setup, World, WorldError},
};

/// What a run leaves.
#[derive(Clone, Debug)]
pub struct Record {
    /// What happened in it.
    pub plan: Plan,
    /// Each region's name and counts.
    pub regions: Vec<(&'static str, Counts)>,
    /// What must not be and was; the promise is that there is none.
    pub findings: Vec<String>,
    /// What checks have to say besides.
    pub notes: Vec<String>,
    /// All that happened as one number.
    pub hash: u64,
    /// Events, packets between regions and their bytes.
    pub counts: (u64, u64, u64),
    /// How long it took on this machine.
    pub took: Duration,
}

/// What the callers of a region were told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// It may pass.
    pub allowed: u64,
    /// It may not.
    pub denied: u64,
    /// Nothing.
    pub silent: u64,
}

/// Runs a scenario, and stops at the first finding.
///
/// # Errors
/// The world cannot be made, or a host ended it.
pub fn run(scenario: &Scenario, seed: u64, trace: &Trace) -> Result<Record, WorldError> {
    run_plan(scenario.plan_of(seed), seed, trace)
}

/// The same of a plan.
///
/// # Errors
/// The world cannot be made, or a host ended it.
pub fn run_plan(plan: Plan, seed: u64, trace: &Trace) -> Result<Record, WorldError> {
    run_with(plan, seed, trace, Vec::new())
}

/// The same with more checks.
///
/// # Errors
/// The world cannot be made, or a host ended it.
pub fn run_with(
    plan: Plan,
    seed: u64,
    trace: &Trace,
    more: Vec<Box<dyn Check>>,
) -> Result<Record, WorldError> {
    let begun = Instant::now();
    let setup = Setup {
        seed,
        regions: plan.regions,
        limits: plan.limits.clone(),
        clock: plan.clock.to_owned(),
        latency_ms: plan.latency_ms,
        demand: plan.demand.clone(),
    };
    let mut world = World::new(&setup, trace.clone())?;
    let clocks = Clocks { error_ns: world.clock().error_ns, drift_ppm: plan.schedule.drift_ppm_max() };
    let never_over = NeverOver::new(&world.limits(), clocks, plan.regions);
    let mut checks: Vec<Box<dyn Check>> = vec![
        Box::new(Apart::new(never_over.map_err(WorldError::Setup)?, &plan.apart)),
        Box::new(ServiceResumes::new(&plan)),
    ];
    checks.extend(more);
    let mut regions: Vec<_> = NAMES[..plan.regions].iter().map(|name| (*name, Counts::default())).collect();
    let mut faults = plan.schedule.faults().iter().peekable();
    while world.elapsed() < plan.duration && trace.findings().is_empty() {
        while let Some((_, fault)) = faults.next_if(|(when, _)| *when <= world.elapsed()) {
            world.apply(fault);
        }
        world.step()?;
        let answers = world.take_answers();
        answers.iter().for_each(|answer| regions[answer.place].1.count(answer));
        for check in &mut checks {
            if let Err(what) = check.look(&world, &answers) {
                trace.finding(format!("{}: {what}, at {:?}", check.name(), world.elapsed()));
            }
        }
    }
    if trace.findings().is_empty() {
        for check in &mut checks {
            if let Err(what) = check.end(&world) {
                trace.finding(format!("{}: {what}, at the end", check.name()));
            }
        }
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

impl Counts {
    fn count(&mut self, answer: &Answer) {
        match answer.said {
            Said::Allowed(_) => self.allowed += 1,
            Said::Denied(_) => self.denied += 1,
            Said::Nothing(_) => self.silent += 1,
        }
    }
}
