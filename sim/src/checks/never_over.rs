//! Never over: what all callers of all regions were allowed is within each limit, over every interval and in
//! every window. This holds for every possible time of admission between a question and its answer. It would
//! still hold if callers asked now for all that regions have left and spent all leases. A
//! reported cost counts with the units that the limit had left: they took what might have been allowed.

use std::collections::BTreeMap;

use acequia_limits::Limit;

use super::{
    Check, FaultsRead, Steps,
    budgets::{Budgets, Numbers},
    judges::{Admitted, Clocks, Judge, Labels},
};
use crate::{
    demand::Question,
    ns,
    schedule::{Fault, Place},
    world::{Answer, Region, Reply, World},
};

/// Counts what callers were allowed.
#[derive(Debug)]
pub struct NeverOver {
    clocks: Clocks,
    budgets: Budgets,
    limits: BTreeMap<String, Watched>,
    apart: Vec<Place>,
    read: FaultsRead,
    /// The time of the last step.
    observed_ns: u64,
    steps: Steps,
}

/// Steps between two checks of what would happen if callers asked for all that is left.
const DRAINED_EVERY_MS: u64 = 20;

/// One limit, with its cells by name.
#[derive(Debug)]
struct Watched {
    limit: Limit,
    cells: BTreeMap<String, Cell>,
    /// The number of changes of its numbers that its cells have taken in.
    changes: usize,
    admitted: u64,
    /// Units of leases that callers may still spend, by cell.
    leased: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Cell {
    asked: Question,
    judge: Judge,
    labels: Labels,
}

impl NeverOver {
    /// A check of these limits.
    ///
    /// # Errors
    /// A limit cannot be judged.
    pub fn new(limits: &[Limit], clocks: Clocks, regions: usize, apart: &[Place]) -> Result<Self, String> {
        let watched = |limit: &Limit| {
            let (cells, leased) = (BTreeMap::new(), BTreeMap::new());
            let watched = Watched { limit: limit.clone(), cells, changes: 1, admitted: 0, leased };
            (limit.spec.name.clone(), watched)
        };
        let budgets = Budgets::new(limits, regions)?;
        // What is held comes back, and is held again: see `HoldsKept`.
        let limits = limits.iter().filter(|limit| limit.expect.is_none()).map(watched).collect();
        let (read, steps) = (FaultsRead::default(), Steps::default());
        Ok(Self { clocks, budgets, limits, apart: apart.to_vec(), read, observed_ns: 0, steps })
    }

    /// Counts the leased units that callers hold.
    fn lease(&mut self, answer: &Answer) {
        let (limits, is_spent) = match &answer.reply {
            Reply::Leased(limits) => (limits, false),
            Reply::Spent(limits) => (limits, true),
            _ => return,
        };
        for (name, units) in limits {
            let Some(watched) = self.limits.get_mut(name) else { continue };
            let key = cell_name(&watched.limit, &answer.question);
            let leased = watched.leased.entry(key).or_default();
            *leased = if is_spent { leased.saturating_sub(*units) } else { *leased + units };
        }
    }

    fn admit(&mut self, world: &World, answer: &Answer, name: &str, units: u64) -> Result<(), String> {
        let (Some(watched), Some(in_force)) = (self.limits.get_mut(name), self.budgets.now(name)) else {
            return Ok(());
        };
        let key = cell_name(&watched.limit, &answer.question);
        let cell = watched.cells.entry(key.clone());
        let cell = cell.or_insert_with(|| Cell {
            asked: answer.question.clone(),
            judge: Judge::new(in_force),
            labels: Labels::default(),
        });
        watched.admitted += units;
        let admitted = Admitted { asked_ns: ns(answer.asked), answered_ns: ns(answer.answered), units };
        let most = |since_ns| self.budgets.most_since(name, since_ns).map_or(u64::MAX, Numbers::capacity);
        let mut over = cell.judge.admit(admitted, self.clocks, most);
        if let Numbers::Window { window_ns, .. } = in_force
            && let Some(end_ns) = window_of(world, answer, &watched.limit)
        {
            let sum = cell.labels.admit(answer.place, end_ns, admitted);
            over = over.max(sum.saturating_sub(most(admitted.asked_ns.saturating_sub(2 * window_ns))));
        }
        if over > 0 {
            Err(format!("limit {name}: {over} units over {in_force} in the cell [{key}]"))
        } else {
            Ok(())
        }
    }

    /// Judges what would happen if callers asked for all that is left of a cell and spent all its leases. Each
    /// round takes the next cell.
    fn drain(&self, world: &World, watched: &Watched, round: usize) -> Result<(), String> {
        let Watched { limit, cells, leased, .. } = watched;
        let cell = cells.iter().nth(round % cells.len().max(1));
        let (Some((key, cell)), Some(in_force)) = (cell, self.budgets.now(&limit.spec.name)) else {
            return Ok(());
        };
        if let Numbers::Window { .. } = in_force {
            return Ok(());
        }
        let has_left = |(place, region): (Place, &Region)| {
            let process = region.process().filter(|_| !self.apart.contains(&place) && !region.is_asleep())?;
            let (now, limit) = (process.clock.now(), limit.id);
            // What is left is unknown until an ended loan is settled, which happens before anything is
            // charged.
            let is_due = cell.asked.with(|values| process.node.is_due(limit, values, now));
            let holding = cell.asked.with(|values| process.node.holding_named(limit, values, now));
            holding.filter(|_| !is_due).map(|holding| holding.left)
        };
        let left: Vec<u64> = world.regions().iter().enumerate().filter_map(has_left).collect();
        let leased = leased.get(key).copied().unwrap_or(0);
        let (now_ns, units) = (ns(world.elapsed()), left.iter().sum::<u64>() + leased);
        let admitted = Admitted { asked_ns: now_ns, answered_ns: now_ns, units };
        let over = cell.judge.clone().admit(admitted, self.clocks, |_| u64::MAX);
        if over > 0 {
            let name = &limit.spec.name;
            return Err(format!(
                "limit {name}: {left:?} units are left of {in_force} in the cell [{key}] and {leased} leased, {over} too many"
            ));
        }
        Ok(())
    }
}

/// The end of the open window of the node that gave the answer.
fn window_of(world: &World, answer: &Answer, limit: &Limit) -> Option<u64> {
    let process = world.regions()[answer.place].process()?;
    let holding =
        answer.question.with(|values| process.node.holding_named(limit.id, values, process.clock.now()))?;
    Some(holding.window_ns).filter(|end_ns| *end_ns > 0)
}

impl Check for NeverOver {
    fn name(&self) -> &'static str {
        "never over"
    }

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        for done in self.read.next(world) {
            // A node on an old disk does not know what it lent, until it hears of it.
            if let Fault::RestoreDisk(at) = done.fault {
                self.apart.push(at);
            }
        }
        if self.budgets.follow(world) {
            for (name, watched) in &mut self.limits {
                for (at_ns, in_force) in self.budgets.changes(name, watched.changes) {
                    watched.changes += 1;
                    watched.cells.values_mut().for_each(|cell| cell.judge.change(*at_ns, *in_force));
                }
            }
        }
        for answer in answers {
            for (name, units) in answer.reply.passed().unwrap_or(&[]) {
                self.admit(world, answer, name, *units)?;
            }
            self.lease(answer);
        }
        self.observed_ns = ns(world.elapsed());
        if !self.steps.is_due(DRAINED_EVERY_MS) {
            return Ok(());
        }
        let round = (self.steps.0 / DRAINED_EVERY_MS) as usize;
        self.limits.values().try_for_each(|watched| self.drain(world, watched, round))
    }

    fn summary(&self) -> Vec<String> {
        let line = |(name, watched): (&String, &Watched)| {
            let (in_force, passed_ns) = (self.budgets.now(name)?, u128::from(self.observed_ns));
            let times = |window_ns: u64| passed_ns / u128::from(window_ns) + 1;
            let allows = match in_force {
                Numbers::Bucket { units, period_ns, burst } => {
                    u128::from(units) * passed_ns / u128::from(period_ns) + u128::from(burst)
                }
                Numbers::Slots { .. } => return None,
                Numbers::Window { limit, window_ns } | Numbers::Sliding { limit, window_ns } => {
                    u128::from(limit) * times(window_ns)
                }
            };
            let (cells, admitted) = (watched.cells.len().max(1), watched.admitted);
            let part = admitted as f64 * 100.0 / (allows * cells as u128) as f64;
            Some(format!(
                "{name}: {admitted} units admitted in {cells} cells of {in_force}: {part:.0} % of what they allow"
            ))
        };
        self.limits.iter().filter_map(line).collect()
    }
}

/// A cell's name among the cells of its limit.
pub(super) fn cell_name(limit: &Limit, question: &Question) -> String {
    let is_by = |key: &String| limit.by.iter().any(|by| by.key == *key);
    let of = question.entries.iter().filter(|(key, _)| is_by(key));
    of.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}
