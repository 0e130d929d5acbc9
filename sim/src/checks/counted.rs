//! Never over by the nodes' own counts: all charges that regions report, answered or not, are within each
//! limit. Only limits with one cell are checked, since a node counts charges by limit.

use std::collections::BTreeMap;

use acequia_limits::Limit;
use acequia_rights::Incarnation;

use super::{
    Check, Steps,
    budgets::{Budgets, Numbers},
    judges::{Admitted, Clocks, Judge},
};
use crate::{
    ns,
    scenarios::Plan,
    schedule::Place,
    world::{Answer, World},
};

const EVERY_MS: u64 = 5;

/// Counts what nodes charged.
#[derive(Debug)]
pub struct NeverChargedOver {
    clocks: Clocks,
    budgets: Budgets,
    limits: Vec<Watched>,
    regions: Vec<CurrentProcess>,
    apart: Vec<Place>,
    steps: Steps,
}

#[derive(Debug)]
struct Watched {
    limit: Limit,
    judge: Judge,
    changes: usize,
    /// For each incarnation, its charges in all, and when they were last seen to grow.
    charged: BTreeMap<Incarnation, (u64, u64)>,
}

/// A region's process.
#[derive(Clone, Copy, Debug, Default)]
struct CurrentProcess {
    processes: u64,
    incarnation: Option<Incarnation>,
}

impl NeverChargedOver {
    /// A check of these limits.
    ///
    /// # Errors
    /// A limit cannot be judged.
    pub fn new(limits: &[Limit], clocks: Clocks, plan: &Plan) -> Result<Self, String> {
        let budgets = Budgets::new(limits, plan.regions)?;
        let watched = |limit: &Limit| {
            let judge = Judge::new(budgets.now(&limit.spec.name)?);
            let is_one_cell = limit.by.is_empty() && limit.classes.is_none();
            is_one_cell.then(|| Watched { limit: limit.clone(), judge, changes: 1, charged: BTreeMap::new() })
        };
        let limits = limits.iter().filter_map(watched).collect();
        let (regions, apart) = (vec![CurrentProcess::default(); plan.regions], plan.apart.clone());
        Ok(Self { clocks, budgets, limits, regions, apart, steps: Steps::default() })
    }
}

impl Check for NeverChargedOver {
    fn name(&self) -> &'static str {
        "never charged over"
    }

    fn observe(&mut self, world: &World, _: &[Answer]) -> Result<(), String> {
        if self.budgets.follow(world) {
            for watched in &mut self.limits {
                for (at_ns, in_force) in self.budgets.changes(&watched.limit.spec.name, watched.changes) {
                    watched.changes += 1;
                    watched.judge.change(*at_ns, *in_force);
                }
            }
        }
        if !self.steps.is_due(EVERY_MS) {
            return Ok(());
        }
        let now_ns = ns(world.elapsed());
        for (place, region) in world.regions().iter().enumerate() {
            let Some(process) = region.process() else { continue };
            let current = &mut self.regions[place];
            let is_new = current.processes != region.processes();
            if is_new {
                let incarnation =
                    process.node.membership(process.clock.now()).map(|membership| membership.incarnation);
                *current = CurrentProcess { processes: region.processes(), incarnation };
            }
            let Some(incarnation) = current.incarnation.filter(|_| !self.apart.contains(&place)) else {
                continue;
            };
            for watched in &mut self.limits {
                let charged = process.node.charged_by(incarnation, watched.limit.id);
                let (before, grown_ns) = watched.charged.entry(incarnation).or_insert((0, 0));
                // A new process's first charges were made by an earlier process since the last count.
                let (units, asked_ns) = (charged.saturating_sub(*before), *grown_ns);
                if units > 0 || is_new {
                    (*before, *grown_ns) = (charged.max(*before), now_ns);
                }
                if units == 0 {
                    continue;
                }
                let admitted = Admitted { asked_ns, answered_ns: now_ns, units };
                let name = &watched.limit.spec.name;
                let most =
                    |since_ns| self.budgets.most_since(name, since_ns).map_or(u64::MAX, Numbers::capacity);
                let over = watched.judge.admit(admitted, self.clocks, most);
                if over > 0 {
                    return Err(format!("limit {name}: regions charged {over} units more than is in force"));
                }
            }
        }
        Ok(())
    }
}
