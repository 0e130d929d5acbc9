//! Conservation: what all regions together may use of a cell is never more than the limit in force. Loans,
//! transfers, lost messages and changed budgets do not alter this. A region that is down keeps what it had:
//! nobody else may use it.

use std::collections::BTreeMap;

use acequia_limits::{Limit, Part, RATE_PARTS};
use acequia_node::Holding;
use acequia_rights::MemberId;

use super::{
    Check, FaultsRead, Steps,
    budgets::{Budgets, Numbers},
    never_over::cell_name,
    watch_cell,
};
use crate::{
    demand::Question,
    ns,
    scenarios::Plan,
    schedule::{Fault, Place},
    world::{Answer, Region, World},
};

/// Steps between two weighings. Each costs a microsecond for each region and cell, and a loan travels for
/// longer than this.
const EVERY_MS: u64 = 5;
/// Cells of one limit that are weighed; each weighing takes the next of them.
const CELLS_MAX: usize = 64;

/// Sums the regions' parts of each cell.
#[derive(Debug)]
pub struct Conserved {
    limits: Vec<Watched>,
    budgets: Budgets,
    /// Regions that are not weighed: those of the plan, and those that went on with an old disk. A region on
    /// an old disk does not know what it lent since the copy was made, until it hears from the others that it
    /// must begin a new incarnation.
    apart: Vec<Place>,
    /// Whether all are nodes of one region, with leases from pools.
    has_pools: bool,
    read: FaultsRead,
    steps: Steps,
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
    /// What each region had when it was last seen.
    seen: Vec<Holding>,
}

impl Conserved {
    /// A check of these limits.
    ///
    /// # Errors
    /// A limit cannot be judged.
    pub fn new(limits: &[Limit], plan: &Plan) -> Result<Self, String> {
        let watched = |limit: &Limit| Watched { limit: limit.clone(), cells: Vec::new(), next: 0 };
        let (budgets, limits) = (Budgets::new(limits, plan.regions)?, limits.iter().map(watched).collect());
        let (apart, has_pools) = (plan.apart.clone(), plan.guard_percent.is_some());
        Ok(Self { limits, budgets, apart, has_pools, read: FaultsRead::default(), steps: Steps::default() })
    }

    /// Forgets what was seen of a machine whose disk was replaced: with another disk the machine is another
    /// member.
    fn forget_disks(&mut self, world: &World) {
        for done in self.read.next(world) {
            let (Fault::LoseDisk(at) | Fault::RestoreDisk(at)) = done.fault else { continue };
            if let Fault::RestoreDisk(at) = done.fault {
                self.apart.push(at);
            }
            let cells = self.limits.iter_mut().flat_map(|watched| &mut watched.cells);
            cells.for_each(|(_, weighed)| weighed.seen[at] = Holding::default());
        }
    }
}

impl Watched {
    fn meet(&mut self, question: &Question, regions: usize) {
        watch_cell(&mut self.cells, CELLS_MAX, cell_name(&self.limit, question), || Weighed {
            asked: question.clone(),
            seen: vec![Holding::default(); regions],
        });
    }

    /// Weighs the next cell.
    fn weigh(
        &mut self,
        world: &World,
        budgets: &Budgets,
        apart: &[Place],
        has_pools: bool,
    ) -> Result<(), String> {
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
            // A sleeping process reports the state in which it fell asleep.
            let awake = region.process().filter(|_| !region.is_asleep());
            let holding = awake.map(|process| {
                let now = process.clock.now();
                let holding =
                    weighed.asked.with(|values| process.node.holding_named(self.limit.id, values, now));
                holding.unwrap_or_default()
            });
            let is_there = holding.is_some();
            let mut holding = holding.unwrap_or_else(|| without_held(weighed.seen[place]));
            if !is_there && has_pools {
                // Only the pool knows what the node had given back since the last weighing.
                holding.effective = holding.standing;
            }
            weighed.seen[place] = holding;
            rate += u64::from(holding.effective.rate);
            if let Numbers::Window { .. } = in_force {
                // Nobody knows which window a region that is down would open.
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
        let now_ns = ns(world.elapsed());
        let bound = match in_force {
            // A window that opened under a larger budget keeps that budget.
            Numbers::Window { window_ns, .. } => {
                budgets.most_since(name, now_ns.saturating_sub(2 * window_ns))
            }
            _ => budgets.most_since(name, now_ns),
        };
        let (most, bound) =
            (windows.into_values().fold(units, u64::max), bound.map_or(u64::MAX, Numbers::capacity));
        let unseen = if most > bound || rate > u64::from(RATE_PARTS) {
            lent_unseen(world, &self.limit, weighed)
        } else {
            Part::default()
        };
        let (most, rate) = (most - unseen.units, rate - u64::from(unseen.rate));
        if most > bound || rate > u64::from(RATE_PARTS) {
            let all: Vec<_> =
                world.regions().iter().zip(&weighed.seen).map(|(region, has)| (region.name(), has)).collect();
            return Err(format!(
                "limit {name}, cell [{cell}]: parts of {most} units of {bound}, and {rate} of {RATE_PARTS} of the rate: {all:?}"
            ));
        }
        Ok(())
    }
}

/// What regions that are down may have lent between the last weighing and their end: loans that others hold from
/// them, as far as these units were counted as theirs.
fn lent_unseen(world: &World, limit: &Limit, weighed: &Weighed) -> Part {
    let mut unseen = Part::default();
    let is_down = |region: &Region| region.process().is_none() || region.is_asleep();
    for (down, has) in world.regions().iter().zip(&weighed.seen).filter(|(region, _)| is_down(region)) {
        let of = MemberId::named(down.name());
        let mut held = Part::default();
        for process in world.regions().iter().filter(|region| !is_down(region)).filter_map(Region::process) {
            let now = process.clock.now();
            let cell = weighed.asked.with(|values| process.node.cell_named(limit.id, values, now));
            let loans = cell.map_or_else(Vec::new, |cell| cell.view.loans);
            for loan in loans.iter().filter(|loan| !loan.is_lent && loan.peer.member == of) {
                held.rate += loan.part.rate;
                held.units += loan.part.units;
            }
        }
        // Nothing of a window is counted for a region that is down.
        let units = if has.window_ns > 0 { 0 } else { has.effective.units };
        unseen.rate += held.rate.min(has.effective.rate);
        unseen.units += held.units.min(units);
    }
    unseen
}

/// What a region that is down has left: its borrowed part ends.
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

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        self.budgets.follow(world);
        self.forget_disks(world);
        for answer in answers {
            let Some(limits) = answer.reply.charged() else { continue };
            for (name, _) in limits {
                let watched = self.limits.iter_mut().find(|watched| watched.limit.spec.name == *name);
                watched.into_iter().for_each(|watched| watched.meet(&answer.question, world.regions().len()));
            }
        }
        if !self.steps.is_due(EVERY_MS) {
            return Ok(());
        }
        let Self { limits, budgets, apart, has_pools, .. } = self;
        limits.iter_mut().try_for_each(|watched| watched.weigh(world, budgets, apart, *has_pools))
    }
}
