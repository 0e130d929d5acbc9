//! What must hold. A check looks at the world after every step, and once more at the end; what it finds is a bug.

mod apart;
mod never_over;
mod service;

use std::time::Duration;

pub use self::{
    apart::Apart,
    never_over::{Clocks, NeverOver},
    service::ServiceResumes,
};
use crate::world::{Answer, World};

/// Something that must hold.
pub trait Check {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Looks after a step. `answers` came in it.
    ///
    /// # Errors
    /// What does not hold, in words.
    fn look(&mut self, world: &World, answers: &[Answer]) -> Result<(), String>;

    /// Looks once more when the time is over.
    ///
    /// # Errors
    /// What does not hold, in words.
    fn end(&mut self, world: &World) -> Result<(), String>;

    /// What is worth a line in a summary.
    fn summary(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Nanoseconds since the start.
fn ns(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}
