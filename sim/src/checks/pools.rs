//! After healing, every node has heard that all pools of its region grant.

use acequia_node::pool::GROUPS;

use super::Check;
use crate::{
    scenarios::Plan,
    schedule::Place,
    world::{Answer, World},
};

/// Checks pools when all is quiet.
#[derive(Debug)]
pub struct PoolsGrant {
    calls: u64,
    /// Nodes that do not run at the end.
    gone: Vec<Place>,
}

impl PoolsGrant {
    /// A check for a run of a plan.
    pub fn new(plan: &Plan) -> Self {
        Self { calls: 0, gone: plan.gone.clone() }
    }
}

impl Check for PoolsGrant {
    fn name(&self) -> &'static str {
        "pools grant"
    }

    fn observe(&mut self, world: &World, _: &[Answer]) -> Result<(), String> {
        self.calls = world.store_calls();
        Ok(())
    }

    fn rest(&mut self, world: &World) -> Result<(), String> {
        let all = world.regions().iter().enumerate();
        for (_, region) in all.filter(|(place, _)| !self.gone.contains(place)) {
            let name = region.name();
            let process = region.process().ok_or_else(|| format!("{name} does not run"))?;
            let counts = process.node.lease_counts();
            if counts.granting < u64::from(GROUPS) || counts.lost > 0 {
                let (granting, lost) = (counts.granting, counts.lost);
                return Err(format!("to {name} {granting} groups of {GROUPS} grant, and {lost} are lost"));
            }
        }
        Ok(())
    }

    fn summary(&self) -> Vec<String> {
        vec![format!("{} calls of the store", self.calls)]
    }
}
