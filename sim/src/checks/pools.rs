//! After healing every node has heard that all pools of its region grant.

use acequia_node::leases::GROUPS;

use super::Check;
use crate::world::{Answer, World};

/// Looks when all is quiet.
#[derive(Debug, Default)]
pub struct PoolsGrant {
    calls: u64,
}

impl Check for PoolsGrant {
    fn name(&self) -> &'static str {
        "pools grant"
    }

    fn look(&mut self, world: &World, _: &[Answer]) -> Result<(), String> {
        self.calls = world.store_calls();
        Ok(())
    }

    fn rest(&mut self, world: &World) -> Result<(), String> {
        for region in world.regions() {
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
