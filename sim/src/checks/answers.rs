//! Every node that runs answers every question. A node never answers with an error because it cannot decide.
//! No answer is late because the node waits for another region or for the store.

use std::time::Duration;

use super::{Check, FaultsRead};
use crate::{
    schedule::Fault,
    world::{Answer, Reply, World},
};

/// How long a caller takes to reconnect after its node has started.
const CONNECTS: Duration = Duration::from_millis(2_500);

/// Finds questions that got no answer.
#[derive(Debug, Default)]
pub struct AnswersCome {
    /// When each region was last seen down, asleep, restarted or unable to write.
    out: Vec<Option<Duration>>,
    /// Whether each region's disk is full.
    is_stuck: Vec<bool>,
    /// The number of processes of each region at the last step.
    processes: Vec<u64>,
    read: FaultsRead,
    /// The longest time that an answer may take, where no node may wait for another region.
    within: Option<Duration>,
}

impl AnswersCome {
    /// A check that also requires each answer within `longest`.
    pub fn within(longest: Duration) -> Self {
        Self { within: Some(longest), ..Self::default() }
    }
}

impl Check for AnswersCome {
    fn name(&self) -> &'static str {
        "answers come"
    }

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        self.out.resize(world.regions().len(), Some(Duration::ZERO));
        self.is_stuck.resize(world.regions().len(), false);
        self.processes.resize(world.regions().len(), 0);
        for done in self.read.next(world) {
            match done.fault {
                Fault::FillDisk(at) => self.is_stuck[at] = true,
                Fault::ClearDisk(at) => self.is_stuck[at] = false,
                Fault::Heal => self.is_stuck.fill(false),
                _ => {}
            }
        }
        for (place, region) in world.regions().iter().enumerate() {
            let runs = region.process().is_some_and(|process| !process.is_draining());
            let is_another =
                std::mem::replace(&mut self.processes[place], region.processes()) != region.processes();
            if !runs || is_another || region.is_asleep() || self.is_stuck[place] {
                self.out[place] = Some(world.elapsed());
            }
        }
        for answer in answers {
            let (name, asked) = (world.regions()[answer.place].name(), answer.asked);
            if self.out[answer.place].is_some_and(|out| asked <= out + CONNECTS) {
                continue;
            }
            let took = answer.answered - asked;
            if let Reply::Nothing(why) = &answer.reply {
                return Err(format!("{name} runs, and did not answer what was asked at {asked:?}: {why}"));
            }
            if self.within.is_some_and(|longest| took > longest) {
                return Err(format!("{name} took {took:?} for what was asked at {asked:?}"));
            }
        }
        Ok(())
    }
}
