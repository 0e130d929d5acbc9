//! Donors keep their reserve: whatever others ask for, a region keeps the part of its own share that the
//! limit's `floor` says. In a window, it keeps that part in proportion to the time left.
//!
//! A floor is a preference, and no bound rests on it. A request that costs more than its region could ever
//! hold may still borrow the reserve, and a floor lags while weights change. So the check judges only where
//! neither happens.

use acequia_limits::{Algorithm, Limit, window::Edges};

use super::{Check, Steps, never_over::cell_name, watch_cell};
use crate::{
    demand::Question,
    scenarios::Plan,
    schedule::Fault,
    world::{Answer, World},
};

const EVERY_MS: u64 = 5;
/// Cells of one limit that are checked.
const CELLS_MAX: usize = 16;

/// Checks what regions keep of their own shares.
#[derive(Debug)]
pub struct FloorsKept {
    limits: Vec<Watched>,
    steps: Steps,
}

#[derive(Debug)]
struct Watched {
    limit: Limit,
    cells: Vec<(String, Question)>,
    /// The smallest part of its own share that any region had, in thousandths.
    least: u64,
}

impl FloorsKept {
    /// A check of those limits that have a floor.
    pub fn new(limits: &[Limit], plan: &Plan) -> Self {
        let is_steady = plan.schedule.faults().iter().all(|(_, fault)| !matches!(fault, Fault::Order(..)));
        let floored = limits.iter().filter(|limit| limit.sharing.floor_percent > 0 && is_steady);
        let watched = |limit: &Limit| Watched { limit: limit.clone(), cells: Vec::new(), least: 1_000 };
        Self { limits: floored.map(watched).collect(), steps: Steps::default() }
    }
}

impl Watched {
    fn judge(&mut self, world: &World) -> Result<(), String> {
        let percent = u64::from(self.limit.sharing.floor_percent);
        for region in world.regions().iter().filter(|region| !region.is_asleep()) {
            let Some(process) = region.process() else { continue };
            let now = process.clock.now();
            for (cell, question) in &self.cells {
                let holding = question.with(|values| process.node.holding_named(self.limit.id, values, now));
                let Some(holding) = holding else { continue };
                // What the region has left of its own share, that share, and how much it must keep.
                let (has, own, keeps) = match &self.limit.algorithm {
                    Algorithm::FixedWindow(window) => {
                        let left_ns = holding.window_ns.saturating_sub(now.wall_ns);
                        let Edges::Every { window_ns, .. } = window.edges else { continue };
                        if holding.window_ns == 0 {
                            continue;
                        }
                        let own = holding.standing.units;
                        let keeps = own * percent / 100;
                        let keeps = u128::from(keeps) * u128::from(left_ns) / u128::from(window_ns);
                        (holding.effective.units, own, keeps as u64)
                    }
                    _ => {
                        let own = u64::from(holding.standing.rate);
                        (own - own.min(holding.lent.rate.into()), own, own * percent / 100)
                    }
                };
                self.least = self.least.min((has * 1_000).checked_div(own).unwrap_or(1_000));
                if has < keeps {
                    let (name, limit) = (region.name(), &self.limit.spec.name);
                    return Err(format!(
                        "limit {limit}, cell [{cell}]: {name} has {has} of {own} of its own, and is to keep {keeps}"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Check for FloorsKept {
    fn name(&self) -> &'static str {
        "floors kept"
    }

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        for answer in answers {
            for (name, _) in answer.reply.charged().unwrap_or(&[]) {
                let Some(watched) = self.limits.iter_mut().find(|it| it.limit.spec.name == *name) else {
                    continue;
                };
                let cell = cell_name(&watched.limit, &answer.question);
                watch_cell(&mut watched.cells, CELLS_MAX, cell, || answer.question.clone());
            }
        }
        if !self.steps.is_due(EVERY_MS) {
            return Ok(());
        }
        self.limits.iter_mut().try_for_each(|watched| watched.judge(world))
    }

    fn summary(&self) -> Vec<String> {
        let line = |watched: &Watched| {
            let (name, floor) = (&watched.limit.spec.name, watched.limit.sharing.floor_percent);
            let least = watched.least as f64 / 10.0;
            format!("{name}: every region kept {least:.1} % of its own or more, of a floor of {floor} %")
        };
        self.limits.iter().map(line).collect()
    }
}
