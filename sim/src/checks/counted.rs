//! Never over by the nodes' own counts: all charges that regions report, answered or not, are within each
//! limit. Only limits with one cell are checked, since a node counts charges by limit.
//!
//! Units that a cell did not have when they were reported as spent are within no limit: nodes count them as
//! overdrawn. So what is admitted and recorded is at most the limit and what is overdrawn.

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
    charged: BTreeMap<Incarnation, Charges>,
}

/// The charges of one incarnation.
#[derive(Clone, Copy, Debug, Default)]
struct Charges {
    units: u64,
    /// When the charges were last seen to grow, and the time before.
    grown_ns: u64,
    before_ns: u64,
    /// Units that the running process has overdrawn.
    overdrawn: u64,
    /// Overdrawn units that were not seen among the charges yet: nodes count charges later.
    uncharged: u64,
    /// Whether the last charges had overdrawn units among them.
    was_overdrawn: bool,
}

impl Charges {
    /// Notes what the running process has overdrawn since its start.
    fn note_overdrawn(&mut self, units: u64, is_new: bool) {
        let before = if is_new { 0 } else { self.overdrawn };
        (self.overdrawn, self.uncharged) = (units, self.uncharged + units.saturating_sub(before));
    }

    /// Notes the charges in all, and returns what was charged within the limit since the last time. A new process's
    /// first charges were made by an earlier process since the last count.
    fn grow(&mut self, charged: u64, is_new: bool, now_ns: u64) -> Option<Admitted> {
        let units = charged.saturating_sub(self.units);
        if units == 0 && !is_new {
            return None;
        }
        let overdrawn = self.uncharged.min(units);
        // Some of these units may be overdrawn by charges that are not counted yet. Then charges of this time
        // count in the next growth.
        let is_overdrawn = overdrawn > 0;
        let asked_ns = if is_overdrawn || self.was_overdrawn { self.before_ns } else { self.grown_ns };
        self.uncharged = if is_new { 0 } else { self.uncharged - overdrawn };
        self.was_overdrawn = is_overdrawn;
        (self.units, self.before_ns, self.grown_ns) = (charged.max(self.units), self.grown_ns, now_ns);
        (units > overdrawn).then_some(Admitted { asked_ns, answered_ns: now_ns, units: units - overdrawn })
    }
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
            // Slots and holds come back, and are charged again.
            let stays_charged = limit.spec.concurrent.is_none() && limit.expect.is_none();
            (is_one_cell && stays_charged).then(|| Watched {
                limit: limit.clone(),
                judge,
                changes: 1,
                charged: BTreeMap::new(),
            })
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
        // What a process has overdrawn ends with it, so this is read in every step.
        let is_due = self.steps.is_due(EVERY_MS);
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
            let catalogue = process.node.catalogue();
            for watched in &mut self.limits {
                let charges = watched.charged.entry(incarnation).or_default();
                if let Some(active) = catalogue.limits.iter().find(|it| it.limit.id == watched.limit.id) {
                    charges.note_overdrawn(active.overdrawn_units(), is_new);
                }
                if !is_due && !is_new {
                    continue;
                }
                let charged = process.node.charged_by(incarnation, watched.limit.id);
                let Some(admitted) = charges.grow(charged, is_new, now_ns) else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The units within the limit, and since when they may have been charged.
    fn grow(charges: &mut Charges, charged: u64, now_ns: u64) -> Option<(u64, u64)> {
        charges.grow(charged, false, now_ns).map(|admitted| (admitted.units, admitted.asked_ns))
    }

    #[test]
    fn units_that_reports_overdrew_are_within_no_limit() {
        let mut charges = Charges::default();
        assert_eq!(grow(&mut charges, 10, 100), Some((10, 0)));
        charges.note_overdrawn(30, false);
        assert_eq!(grow(&mut charges, 10, 150), None, "the charges are counted later");
        assert_eq!(grow(&mut charges, 45, 200), Some((5, 0)), "the rest of the report fitted");
        assert_eq!(grow(&mut charges, 50, 300), Some((5, 100)), "some of it may be older");
        assert_eq!(grow(&mut charges, 55, 400), Some((5, 300)));
    }

    #[test]
    fn a_new_process_counts_what_it_overdraws_from_zero() {
        let mut charges = Charges::default();
        charges.note_overdrawn(30, false);
        charges.note_overdrawn(0, true);
        // The disk has a part of what the earlier process charged.
        assert_eq!(charges.grow(20, true, 100).map(|admitted| admitted.units), None);
        charges.note_overdrawn(7, false);
        assert_eq!(grow(&mut charges, 30, 200), Some((3, 0)));
    }
}
