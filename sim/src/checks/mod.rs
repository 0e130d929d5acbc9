//! What must hold. A check looks at the world after every step, and once more at the end; what it finds is a bug.

mod answers;
mod apart;
mod budgets;
mod conserved;
mod counted;
mod judges;
mod never_over;
mod one_word;
mod owner;
mod rows;
mod service;
mod settles;

use std::time::Duration;

use acequia_limits::Limit;

pub use self::{
    answers::AnswersCome,
    apart::Apart,
    conserved::Conserved,
    counted::NeverChargedOver,
    judges::Clocks,
    never_over::NeverOver,
    one_word::OneWord,
    owner::OnlyOwnersAdmit,
    rows::RowsGrow,
    service::ServiceResumes,
    settles::{AllSettles, NobodyWaits},
};
use crate::{
    scenarios::Plan,
    world::{Answer, World},
};

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
    fn end(&mut self, _: &World) -> Result<(), String> {
        Ok(())
    }

    /// Looks when nobody has asked anything for a while, again and again for [`REST_MAX`].
    ///
    /// # Errors
    /// What does not hold, in words.
    fn rest(&mut self, _: &World) -> Result<(), String> {
        Ok(())
    }

    /// What is worth a line in a summary.
    fn summary(&self) -> Vec<String> {
        Vec::new()
    }
}

/// How long it may take at the end, when nobody asks anything any more, until all has come to rest: longer than a loan lasts and
/// than rows take to be compared, and than a bucket takes to drain whose rate was lent and has come back.
pub const REST_MAX: Duration = Duration::from_secs(600);

/// All of them, for a run of a plan.
///
/// # Errors
/// A limit that cannot be judged.
pub fn all(limits: &[Limit], clocks: Clocks, plan: &Plan) -> Result<Vec<Box<dyn Check>>, String> {
    let regions = plan.regions;
    Ok(vec![
        Box::new(Apart::new(NeverOver::new(limits, clocks, regions, &plan.apart)?, &plan.apart)),
        Box::new(NeverChargedOver::new(limits, clocks, plan)?),
        Box::new(Conserved::new(limits, plan)?),
        Box::new(RowsGrow::new(limits, regions)),
        Box::new(OnlyOwnersAdmit::new(limits, regions)?),
        Box::new(OneWord::default()),
        Box::new(AnswersCome::default()),
        Box::new(ServiceResumes::new(plan)),
        Box::new(AllSettles::new(limits, plan)),
    ])
}

/// Nanoseconds since the start.
fn ns(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}
