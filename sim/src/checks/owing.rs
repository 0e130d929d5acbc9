//! Who owes admits nothing: neither the region whose cell owes, nor any region while all regions together owe more of a
//! window than they have left, and all hear of that. And no region owes of a window what no report overdrew.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use acequia_limits::{Algorithm, Limit, Request};
use acequia_node::Ask;
use acequia_server::shared::Shared;

use super::{Check, FaultsRead, Steps, never_over::cell_name, watch_cell};
use crate::{
    demand::Question,
    scenarios::Plan,
    schedule::{Fault, Place},
    world::{Answer, DOMAIN, Reply, World},
};

/// Steps between two sums of what regions owe.
const EVERY_MS: u64 = 50;
/// Cells of one limit that are checked.
const CELLS_MAX: usize = 8;
/// How long regions may take to hear of a debt while nothing hinders them.
const HEARD: Duration = Duration::from_millis(1_500);

/// Judges admissions by what regions owe.
#[derive(Debug)]
pub struct OwingAdmitsNothing {
    limits: Vec<Watched>,
    /// Whether no order lowers a limit below what was spent of it, and no clock jumps to where less is left.
    is_steady: bool,
    /// When a fault was last applied, or a region was last seen that did not reach all others.
    hindered: Duration,
    /// The number of processes of each region at the last step.
    processes: Vec<u64>,
    read: FaultsRead,
    steps: Steps,
}

#[derive(Debug)]
struct Watched {
    limit: Limit,
    /// Cells of which something was reported, or admitted.
    cells: Vec<(String, Cell)>,
    /// For each region, the units that its process has overdrawn, and when more were last seen.
    overdrawn: BTreeMap<Place, (u64, Duration)>,
    overdrawn_in_all: u64,
    judged: u64,
}

#[derive(Debug)]
struct Cell {
    asked: Question,
    /// When the regions began to owe more than they have left, and the window in which they do.
    since: Option<(Duration, u64)>,
    /// How long that was, in all.
    owing: Duration,
}

/// What one region has of a cell.
#[derive(Clone, Copy, Debug)]
struct Account {
    left: u64,
    owed: u64,
    window_ns: u64,
}

impl OwingAdmitsNothing {
    /// A check of these limits.
    pub fn new(limits: &[Limit], plan: &Plan) -> Self {
        let watched = |limit: &Limit| Watched {
            limit: limit.clone(),
            cells: Vec::new(),
            overdrawn: BTreeMap::new(),
            overdrawn_in_all: 0,
            judged: 0,
        };
        Self {
            limits: limits.iter().map(watched).collect(),
            is_steady: plan
                .schedule
                .faults()
                .iter()
                .all(|(_, fault)| !matches!(fault, Fault::Order(..) | Fault::Wall(..) | Fault::Counter(..))),
            hindered: Duration::ZERO,
            processes: vec![0; plan.regions],
            read: FaultsRead::default(),
            steps: Steps::default(),
        }
    }

    /// Notes whether anything hinders regions from hearing each other.
    fn note_hindrances(&mut self, world: &World) {
        let mut is_hindered = !self.read.next(world).is_empty();
        for (place, region) in world.regions().iter().enumerate() {
            let processes = std::mem::replace(&mut self.processes[place], region.processes());
            is_hindered |= processes != region.processes() || region.is_asleep();
            is_hindered |= region.process().is_none_or(|process| {
                process.is_draining()
                    || process.node.peers(process.clock.now()).iter().any(|peer| !peer.is_reached)
            });
            if processes != region.processes() {
                self.limits.iter_mut().for_each(|watched| {
                    watched.overdrawn.remove(&place);
                });
            }
        }
        if is_hindered {
            self.hindered = world.elapsed();
        }
    }
}

impl Watched {
    fn note_overdrawn(&mut self, world: &World) {
        for (place, region) in world.regions().iter().enumerate() {
            let Some(process) = region.process() else { continue };
            let catalogue = process.node.catalogue();
            let active = catalogue.limits.iter().find(|active| active.limit.id == self.limit.id);
            let units = active.map_or(0, |active| active.overdrawn_units());
            let before = self.overdrawn.entry(place).or_default();
            if units > before.0 {
                self.overdrawn_in_all += units - before.0;
                *before = (units, world.elapsed());
            }
        }
    }

    /// Judges units that were admitted.
    fn judge(&mut self, world: &World, answer: &Answer, hindered: Duration) -> Result<(), String> {
        if self.overdrawn_in_all == 0 {
            return Ok(());
        }
        let (name, place) = (&self.limit.spec.name, answer.place);
        let key = cell_name(&self.limit, &answer.question);
        let Some((_, cell)) = self.cells.iter().find(|(known, _)| *known == key) else { return Ok(()) };
        let Some(process) = world.regions()[place].process() else { return Ok(()) };
        let Some(account) = account(&process, &self.limit, &answer.question) else { return Ok(()) };
        let is_owing = |(since, window_ns): (Duration, u64)| {
            answer.asked > since.max(hindered) + HEARD && account.window_ns == window_ns
        };
        if cell.since.is_some_and(is_owing) {
            let accounts: Vec<_> = accounts(world, &self.limit, &cell.asked).collect();
            return Err(format!(
                "limit {name}, cell [{key}]: {} admitted what was asked at {:?}, and all regions owe more than they have left \
                 since {:?}: {accounts:?}",
                world.regions()[place].name(),
                answer.asked,
                cell.since
            ));
        }
        // What is owed now, and was not overdrawn since the question, was owed throughout.
        let is_older =
            self.overdrawn.get(&place).is_some_and(|(units, at)| *units > 0 && *at <= answer.asked);
        if is_older {
            self.judged += 1;
            if account.owed > 0 {
                return Err(format!(
                    "limit {name}, cell [{key}]: {} owes {} units, and admitted what was asked at {:?}",
                    world.regions()[place].name(),
                    account.owed,
                    answer.asked
                ));
            }
        }
        Ok(())
    }

    /// Sums what regions owe and have left of each cell of a window.
    ///
    /// # Errors
    /// A region owes more of a window than was ever overdrawn.
    fn sum(&mut self, world: &World, is_steady: bool) -> Result<(), String> {
        // A bucket whose loans end may owe what was spent of them, until its rate gives that back.
        let is_window = matches!(self.limit.algorithm, Algorithm::FixedWindow(_));
        for (_, cell) in &mut self.cells {
            let (mut left, mut owed, mut window_ns) = (0, 0, None);
            let mut is_known = true;
            for account in accounts(world, &self.limit, &cell.asked) {
                let Some(account) = account else {
                    is_known = false;
                    continue;
                };
                (left, owed) = (left + account.left, owed + account.owed);
                if is_window && is_steady && account.owed > self.overdrawn_in_all {
                    let (name, units) = (&self.limit.spec.name, account.owed);
                    return Err(format!(
                        "limit {name}: {units} units are owed, and {} overdrawn",
                        self.overdrawn_in_all
                    ));
                }
                is_known &= *window_ns.get_or_insert(account.window_ns) == account.window_ns;
            }
            // Regions tell each other rounded numbers.
            let is_owing = is_window && is_known && owed > left + owed / 16 + world.regions().len() as u64;
            let window_ns = window_ns.filter(|_| is_owing);
            cell.since = match (window_ns, cell.since) {
                (Some(window_ns), Some((since, known_ns))) if window_ns == known_ns => {
                    cell.owing += Duration::from_millis(EVERY_MS);
                    Some((since, window_ns))
                }
                (Some(window_ns), _) => Some((world.elapsed(), window_ns)),
                (None, _) => None,
            };
        }
        Ok(())
    }
}

fn accounts(world: &World, limit: &Limit, question: &Question) -> impl Iterator<Item = Option<Account>> {
    world.regions().iter().map(|region| {
        let process = region.process().filter(|_| !region.is_asleep())?;
        account(&process, limit, question)
    })
}

/// What one region has of a cell, and owes.
fn account(process: &Arc<Shared>, limit: &Limit, question: &Question) -> Option<Account> {
    let now = process.clock.now();
    if question.with(|values| process.node.is_due(limit.id, values, now)) {
        return None;
    }
    let holding = question.with(|values| process.node.holding_named(limit.id, values, now))?;
    let entries: Vec<_> =
        question.entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let mut asker = process.node.asker();
    let answer = asker.check(&Request::new(DOMAIN, &entries), now, Ask::PEEK).clone();
    let catalogue = asker.catalogue();
    let of_limit =
        answer.limits.iter().find(|it| catalogue.limits[it.limit as usize].limit.id == limit.id)?;
    Some(Account { left: holding.left, owed: of_limit.late.owed, window_ns: holding.window_ns })
}

impl Check for OwingAdmitsNothing {
    fn name(&self) -> &'static str {
        "owing admits nothing"
    }

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        self.note_hindrances(world);
        self.limits.iter_mut().for_each(|watched| watched.note_overdrawn(world));
        for answer in answers {
            let (Reply::Allowed(limits)
            | Reply::Recorded { fitted: limits, .. }
            | Reply::Held { units: limits, .. }) = &answer.reply
            else {
                continue;
            };
            for (name, _) in limits {
                let watched = self.limits.iter_mut().find(|it| it.limit.spec.name == *name);
                let Some(watched) = watched else { continue };
                let key = cell_name(&watched.limit, &answer.question);
                watch_cell(&mut watched.cells, CELLS_MAX, key, || Cell {
                    asked: answer.question.clone(),
                    since: None,
                    owing: Duration::ZERO,
                });
                if let Reply::Allowed(_) | Reply::Held { .. } = answer.reply {
                    watched.judge(world, answer, self.hindered)?;
                }
            }
        }
        if self.steps.is_due(EVERY_MS) {
            return self.limits.iter_mut().try_for_each(|watched| watched.sum(world, self.is_steady));
        }
        Ok(())
    }

    fn summary(&self) -> Vec<String> {
        let line = |watched: &Watched| {
            let owing: Duration = watched.cells.iter().map(|(_, cell)| cell.owing).sum();
            format!(
                "{}: {} units overdrawn; {} admissions of regions that had overdrawn before; more owed than left for {owing:?}",
                watched.limit.spec.name, watched.overdrawn_in_all, watched.judged
            )
        };
        self.limits.iter().filter(|watched| watched.overdrawn_in_all > 0).map(line).collect()
    }
}
