//! Recorded once: a process records a report once, however often its caller makes it under one name.

use std::collections::BTreeMap;

use super::Check;
use crate::{
    schedule::Place,
    world::{Answer, Reply, World},
};

/// Counts what processes say that they recorded.
#[derive(Debug, Default)]
pub struct RecordedOnce {
    /// For each report and place, the number of the process that recorded it.
    recorded: BTreeMap<(String, Place), u64>,
    repeats: u64,
}

impl Check for RecordedOnce {
    fn name(&self) -> &'static str {
        "recorded once"
    }

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        for answer in answers {
            let Reply::Recorded { id, is_repeat, fitted } = &answer.reply else { continue };
            self.repeats += u64::from(*is_repeat);
            if fitted.is_empty() {
                continue;
            }
            let region = &world.regions()[answer.place];
            let process = region.processes();
            if self.recorded.insert((id.clone(), answer.place), process) == Some(process) {
                return Err(format!("{} recorded {id} twice", region.name()));
            }
        }
        Ok(())
    }

    fn summary(&self) -> Vec<String> {
        let (reports, repeats) = (self.recorded.len(), self.repeats);
        if reports == 0 {
            return Vec::new();
        }
        vec![format!("{reports} reports were recorded, and {repeats} repetitions were not")]
    }
}
