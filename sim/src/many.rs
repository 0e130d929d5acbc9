//! Many runs at once, each in its own thread, since a thread's knowledge of one simulation must not reach
//! another.

use std::{
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use crate::{
    checks::Check,
    run::{Record, run_with},
    scenarios::{Plan, Scenario},
    trace::{Line, Trace},
};

/// The stack of a simulation's thread.
const STACK_BYTES: usize = 16 << 20;

/// A run to be done.
#[derive(Clone, Debug)]
pub struct Job {
    /// The scenario.
    pub scenario: Scenario,
    /// The seed.
    pub seed: u64,
    /// The plan; if `None`, the scenario's own plan.
    pub plan: Option<Plan>,
}

/// The outcome of a job.
#[derive(Debug)]
pub struct Outcome {
    /// The job.
    pub job: Job,
    /// The record of the run. An error says why there was no world, and counts as a finding.
    pub record: Result<Record, String>,
    /// The last events of every host.
    pub last: Vec<(String, Vec<Line>)>,
}

/// Additional checks, made anew for every run.
pub type ExtraChecks = dyn Fn() -> Vec<Box<dyn Check>> + Sync;

impl Job {
    /// A scenario with a seed.
    pub fn new(scenario: Scenario, seed: u64) -> Self {
        Self { scenario, seed, plan: None }
    }

    /// Runs the job in a thread of its own.
    pub fn run(self, extra_checks: &ExtraChecks) -> Outcome {
        let trace = Trace::default();
        let plan = self.plan.clone().unwrap_or_else(|| self.scenario.plan_of(self.seed));
        let done = thread::scope(|scope| {
            let simulation =
                || run_with(plan, self.seed, &trace, extra_checks()).map_err(|fault| fault.to_string());
            let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, simulation);
            match thread.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(done)) => done,
                Ok(Err(panic)) => Err(format!("a panic: {}", words_of(&*panic))),
                Err(fault) => Err(format!("no thread for a simulation: {fault}")),
            }
        });
        Outcome { job: self, record: done, last: trace.last() }
    }
}

impl Outcome {
    /// The findings; empty if all is well.
    pub fn findings(&self) -> &[String] {
        match &self.record {
            Ok(record) => &record.findings,
            Err(fault) => std::slice::from_ref(fault),
        }
    }

    /// How long the run took.
    pub fn took(&self) -> Duration {
        self.record.as_ref().map_or(Duration::ZERO, |record| record.took)
    }
}

/// Runs all jobs, a number of them at a time, and reports each outcome as it comes.
pub fn run_all(
    jobs: impl Iterator<Item = Job> + Send,
    at_a_time: usize,
    extra_checks: &ExtraChecks,
    mut tell: impl FnMut(Outcome),
) {
    let jobs = Mutex::new(jobs);
    let (send, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_a_time.max(1) {
            let (send, jobs) = (send.clone(), &jobs);
            scope.spawn(move || {
                let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(job) = next() {
                    if send.send(job.run(extra_checks)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        outcomes.into_iter().for_each(&mut tell);
    });
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let words = panic.downcast_ref::<&str>().copied();
    words.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without words")
}
