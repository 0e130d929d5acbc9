//! Service resumes: when faults are over, every node that runs has its shares, and callers are answered.

use std::time::Duration;

use super::Check;
use crate::world::{Answer, Said, World};

/// How long before the end callers must be answered.
const LAST: Duration = Duration::from_secs(3);

/// Looks at the end.
#[derive(Debug)]
pub struct ServiceResumes {
    duration: Duration,
    /// Of the last seconds: how many each region answered, and did not.
    answered: Vec<(u64, u64)>,
}

impl ServiceResumes {
    /// For a run of that length, in which all faults are over some seconds before the end.
    pub fn new(duration: Duration, regions: usize) -> Self {
        Self { duration, answered: vec![(0, 0); regions] }
    }
}

impl Check for ServiceResumes {
    fn name(&self) -> &'static str {
        "service resumes"
    }

    fn look(&mut self, _: &World, answers: &[Answer]) -> Result<(), String> {
        for answer in answers.iter().filter(|answer| answer.asked + LAST >= self.duration) {
            let (answered, silent) = &mut self.answered[answer.place];
            match answer.said {
                Said::Nothing(_) => *silent += 1,
                _ => *answered += 1,
            }
        }
        Ok(())
    }

    fn end(&mut self, world: &World) -> Result<(), String> {
        for (region, (answered, silent)) in world.regions().iter().zip(&self.answered) {
            let name = region.name();
            let process = region.process().ok_or_else(|| format!("{name} does not run"))?;
            process.ready().map_err(|why| format!("{name} is not ready: {why}"))?;
            if *silent > 0 || *answered == 0 {
                return Err(format!("{name} answered {answered} questions at last, and {silent} not"));
            }
        }
        let marks = world.regions().iter().filter_map(|region| Some(region.process()?.node.marks().0));
        let marks: std::collections::BTreeSet<_> = marks.collect();
        if marks.len() > 1 { Err(format!("regions go by different versions: {marks:?}")) } else { Ok(()) }
    }
}
