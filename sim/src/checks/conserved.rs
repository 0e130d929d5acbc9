//! Conservation: what all regions may use of a cell, together, is never more than what is in force, whatever was lent, given,
//! lost, raised or lowered. A region that is down still has what it had, where that was seen shortly before: nobody else may use it.

use std::collections::BTreeMap;

use acequia_limits::{Limit, RATE_PARTS};
use acequia_node::Holding;

use super::{
    Check,
    budgets::{Budgets, Numbers},
    never_over::cell_of,
    ns,
};
use crate::{
    demand::Question,
    scenarios::Plan,
    schedule::{Fault, Place},
    world::{Answer, Said, World},
};

/// A look costs a microsecond for each region and cell. What is lent travels for longer than this.
const EVERY_MS: u64 = 5;
/// Of one that is down, what was seen so long before its end is what it had then.
const FRESH_NS: u64 = 2 * EVERY_MS * 1_000_000;
/// Cells of one limit that are weighed, one of them each time.
const CELLS_MAX: usize = 64;

/// Weighs the parts of cells.
#[derive(Debug)]
pub struct Conserved {
    limits: Vec<Watched>,
    budgets: Budgets,
    /// Regions that are not weighed: those of the plan, and those that went on with an old disk. What such a one lent since, it does
    /// not know, until it hears of the others that it is another one now.
    apart: Vec<Place>,
    /// Faults that were read.
    read: usize,
    looks: u64,
    /// When each region's process last ran, in nanoseconds.
    ran_ns: Vec<u64>,
}

#[derive(Debug)]
struct Watched {
    limit: Limit,
    cells: Vec<(String, Weighed)>,
    next: usize,
}

#[derive(Debug)]
struct Weighed {
    asked: Question,
    /// What each region had when it was last seen, and when that was, in nanoseconds.
    seen: Vec<(u64, Holding)>,
}

impl Conserved {
    /// For these limits.
    ///
    /// # Errors
    /// A limit that it cannot judge.
    pub fn new(limits: &[Limit], plan: &Plan) -> Result<Self, String> {
        let watched = |limit: &Limit| Watched { limit: limit.clone(), cells: Vec::new(), next: 0 };
        let (budgets, limits) = (Budgets::new(limits, plan.regions)?, limits.iter().map(watched).collect());
        let ran_ns = vec![0; plan.regions];
        Ok(Self { limits, budgets, apart: plan.apart.clone(), read: 0, looks: 0, ran_ns })
    }

    /// A machine whose disk is another one now is another region.
    fn forget_disks(&mut self, world: &World) {
        for done in &world.done()[self.read..] {
            self.read += 1;
            let (Fault::LoseDisk(at) | Fault::RestoreDisk(at)) = done.fault else { continue };
            if let Fault::RestoreDisk(at) = done.fault {
                self.apart.push(at);
            }
            let cells = self.limits.iter_mut().flat_map(|watched| &mut watched.cells);
            cells.for_each(|(_, weighed)| weighed.seen[at] = Default::default());
        }
    }
}

impl Watched {
    fn meet(&mut self, question: &Question, regions: usize) {
        let name = cell_of(&self.limit, question);
        if self.cells.len() < CELLS_MAX && self.cells.iter().all(|(known, _)| *known != name) {
            let seen = vec![Default::default(); regions];
            self.cells.push((name, Weighed { asked: question.clone(), seen }));
        }
    }

    /// Weighs the next cell.
    fn weigh(
        &mut self,
        world: &World,
        budgets: &Budgets,
        apart: &[Place],
        ran_ns: &[u64],
    ) -> Result<(), String> {
        let now_ns = ns(world.elapsed());
        let name = &self.limit.spec.name;
        let Some(in_force) = budgets.now(name) else { return Ok(()) };
        if self.cells.is_empty() {
            return Ok(());
        }
        self.next = (self.next + 1) % self.cells.len();
        let (cell, weighed) = &mut self.cells[self.next];
        let (mut rate, mut units) = (0, 0);
        let mut windows: BTreeMap<u64, u64> = BTreeMap::new();
        for (place, region) in world.regions().iter().enumerate() {
            if budgets.is_gone(place) || apart.contains(&place) {
                continue;
            }
            // What a process that sleeps says of itself is what was when it fell asleep.
            let awake = region.process().filter(|_| !region.is_asleep());
            let holding = awake.map(|process| {
                let now = process.clock.now();
                let holding =
                    weighed.asked.with(|values| process.node.holding_named(self.limit.id, values, now));
                holding.unwrap_or_default()
            });
            let is_there = holding.is_some();
            let (seen_ns, seen) = weighed.seen[place];
            let holding = match holding {
                Some(holding) => holding,
                // What it lent after it was last seen, others have.
                None if ran_ns[place] > seen_ns + FRESH_NS => Holding::default(),
                None => without_held(seen),
            };
            weighed.seen[place] = (if is_there { now_ns } else { seen_ns }, holding);
            rate += u64::from(holding.effective.rate);
            if let Numbers::Window { .. } = in_force {
                // Of one that is down nobody knows which window it would open.
                if is_there && holding.window_ns > 0 {
                    *windows.entry(holding.window_ns).or_default() += holding.effective.units;
                    if holding.next_window_ns > 0 {
                        *windows.entry(holding.next_window_ns).or_default() += holding.next_units;
                    }
                }
            } else {
                units += holding.effective.units;
            }
        }
        let bound = match in_force {
            // One that opened under a larger budget keeps it.
            Numbers::Window { window_ns, .. } => {
                budgets.most_since(name, now_ns.saturating_sub(2 * window_ns))
            }
            _ => budgets.most_since(name, now_ns),
        };
        let (most, bound) =
            (windows.into_values().fold(units, u64::max), bound.map_or(u64::MAX, Numbers::capacity));
        if most > bound || rate > u64::from(RATE_PARTS) {
            let all = world.regions().iter().zip(&weighed.seen);
            let all: Vec<_> = all.map(|(region, (_, has))| (region.name(), has)).collect();
            return Err(format!(
                "limit {name}, cell [{cell}]: parts of {most} units of {bound}, and {rate} of {RATE_PARTS} of the rate: {all:?}"
            ));
        }
        Ok(())
    }
}

/// What a region that is down has left: what it borrowed ends.
fn without_held(mut holding: Holding) -> Holding {
    holding.effective.rate = holding.effective.rate.saturating_sub(holding.held.rate);
    holding.effective.units = holding.effective.units.saturating_sub(holding.held.units);
    holding.held = Default::default();
    holding
}

impl Check for Conserved {
    fn name(&self) -> &'static str {
        "conserved"
    }

    fn look(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        self.budgets.follow(world);
        self.forget_disks(world);
        for answer in answers {
            let Said::Allowed(limits) = &answer.said else { continue };
            for (name, _) in limits {
                let watched = self.limits.iter_mut().find(|watched| watched.limit.spec.name == *name);
                watched.into_iter().for_each(|watched| watched.meet(&answer.question, world.regions().len()));
            }
        }
        self.looks += 1;
        if !self.looks.is_multiple_of(EVERY_MS) {
            return Ok(());
        }
        let Self { limits, budgets, apart, ran_ns, .. } = self;
        for (region, ran_ns) in world.regions().iter().zip(ran_ns.iter_mut()) {
            if region.process().is_some() && !region.is_asleep() {
                *ran_ns = ns(world.elapsed());
            }
        }
        limits.iter_mut().try_for_each(|watched| watched.weigh(world, budgets, apart, ran_ns))
    }
}
