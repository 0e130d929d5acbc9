//! A region that owns nothing admits nothing, neither from a share of its own nor from what it would hold of
//! others.

use super::{Check, budgets::Budgets};
use crate::world::{Answer, World};
use acequia_limits::{Limit, Part};
use acequia_node::Holding;
use std::time::Duration;

/// Checks the admissions of regions that no version names.
#[derive(Debug)]
pub struct OnlyOwnersAdmit {
    limits: Vec<Limit>,
    budgets: Budgets,
    /// For each region, since when it has had no share by its own version; `None` while it has one.
    nothing_since: Vec<Option<Duration>>,
}

impl OnlyOwnersAdmit {
    /// A check of these limits.
    ///
    /// # Errors
    /// A limit cannot be judged.
    pub fn new(limits: &[Limit], regions: usize) -> Result<Self, String> {
        let budgets = Budgets::new(limits, regions)?;
        Ok(Self { limits: limits.to_vec(), budgets, nothing_since: vec![Some(Duration::ZERO); regions] })
    }
}

impl Check for OnlyOwnersAdmit {
    fn name(&self) -> &'static str {
        "only owners admit"
    }

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        self.budgets.follow(world);
        for (place, since) in self.nothing_since.iter_mut().enumerate() {
            *since = match since {
                _ if self.budgets.is_named(place) => None,
                Some(since) => Some(*since),
                None => Some(world.elapsed()),
            };
        }
        for answer in answers {
            let Some(charged) = answer.reply.charged() else { continue };
            let region = &world.regions()[answer.place];
            let (Some(since), Some(process)) = (self.nothing_since[answer.place], region.process()) else {
                continue;
            };
            if answer.asked < since {
                continue;
            }
            for (name, units) in charged {
                let Some(limit) = self.limits.iter().find(|limit| limit.spec.name == *name) else { continue };
                let now = process.clock.now();
                let holding =
                    answer.question.with(|values| process.node.holding_named(limit.id, values, now));
                // A leaving region may use what it still holds of others, and its transfers in the current
                // window.
                let is_others = |holding: Holding| {
                    let given = holding.standing == Part::default() && holding.effective.units > 0;
                    holding.held != Part::default() || given
                };
                if !holding.is_some_and(is_others) {
                    return Err(format!(
                        "{} has no share, and admitted {units} units of {name}",
                        region.name()
                    ));
                }
            }
        }
        Ok(())
    }
}
