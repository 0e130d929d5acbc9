//! Stories of what breaks, each in a file of its own: what it is, its limits, what is asked, what happens when.

mod calm;
mod split_brain;
mod storm;

use std::time::Duration;

use crate::{demand::Demand, random::Random, schedule::Schedule};

/// A story that can be run with any seed.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// By which it is run.
    pub name: &'static str,
    /// In a sentence.
    pub story: &'static str,
    /// What happens with a seed.
    pub plan: fn(&mut Random) -> Plan,
}

/// What happens in one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many regions.
    pub regions: usize,
    /// The limits, as a config has them.
    pub limits: &'static str,
    /// How long packets take between regions, in milliseconds, at least and at most.
    pub latency_ms: (u64, u64),
    /// What is asked.
    pub demand: Demand,
    /// What breaks.
    pub schedule: Schedule,
    /// How long it lasts: all faults are over some ten seconds before.
    pub duration: Duration,
}

/// All of them.
pub const ALL: [Scenario; 3] = [calm::CALM, split_brain::SPLIT_BRAIN, storm::STORM];

/// The one with a name.
pub fn named(name: &str) -> Option<Scenario> {
    ALL.into_iter().find(|scenario| scenario.name == name)
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
