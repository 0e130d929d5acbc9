//! Rows are monotone and durable. While a region keeps its disk, its own row only grows, over all its
//! processes. What another region knows of this row only grows, and is never more than the disk has.

use std::collections::{BTreeMap, VecDeque};

use acequia_limits::{Limit, LimitId};
use acequia_rights::Incarnation;

use super::{Check, FaultsRead, Steps};
use crate::{
    schedule::{Fault, Place},
    world::{Answer, World},
};

/// Steps between two comparisons: no region hears of a row sooner.
const EVERY_MS: u64 = 3;
/// How long a node that hears others may go on with a disk that is older than the one it had.
const OLD_DISK_MS: u64 = 2_000;

/// Checks what every region has charged in all, and what the others know of it.
#[derive(Debug)]
pub struct RowsGrow {
    limits: Vec<LimitId>,
    regions: Vec<Own>,
    /// What every incarnation has on its disk.
    durable: BTreeMap<Incarnation, Vec<u64>>,
    /// What each region knew of each incarnation, by the process that knew it.
    known: BTreeMap<(Place, Incarnation), (u64, Vec<u64>)>,
    read: FaultsRead,
    steps: Steps,
}

/// A region's own rows.
#[derive(Clone, Debug, Default)]
struct Own {
    processes: u64,
    incarnation: Option<Incarnation>,
    /// The last total charges, by limit.
    charged: Vec<u64>,
    /// Total charges on their way to the disk, and their batch.
    waiting: VecDeque<(u64, Vec<u64>)>,
    /// Whether the disk was replaced by an older one. `heard_ms` is how long the process has heard others
    /// since.
    is_old: bool,
    heard_ms: u64,
}

impl RowsGrow {
    /// A check of these limits.
    pub fn new(limits: &[Limit], regions: usize) -> Self {
        Self {
            limits: limits.iter().map(|limit| limit.id).collect(),
            regions: vec![Own::default(); regions],
            durable: BTreeMap::new(),
            known: BTreeMap::new(),
            read: FaultsRead::default(),
            steps: Steps::default(),
        }
    }

    fn check_own_rows(&mut self, world: &World, place: Place) -> Result<(), String> {
        let region = &world.regions()[place];
        let Some(process) = region.process() else { return Ok(()) };
        let (node, own) = (&process.node, &mut self.regions[place]);
        if own.processes != region.processes() {
            let Some(membership) = node.membership(process.clock.now()) else { return Ok(()) };
            let is_old = own.is_old;
            *own = Own {
                processes: region.processes(),
                incarnation: Some(membership.incarnation),
                is_old,
                ..Own::default()
            };
        }
        let Some(incarnation) = own.incarnation else { return Ok(()) };
        let batch = node.charged_in();
        // All charges go into the same batch until the batch is taken.
        let charged: Vec<u64> =
            self.limits.iter().map(|limit| node.charged_by(incarnation, *limit)).collect();
        if charged != own.charged {
            let begins = own.charged.is_empty();
            // A process begins with what its disk has.
            let before = if begins { self.durable.get(&incarnation) } else { Some(&own.charged) };
            if !own.is_old
                && let Some((before, now)) = before.and_then(|before| is_less(&charged, before))
            {
                return Err(format!("{} had charged {before} units in all, and now {now}", region.name()));
            }
            if begins {
                // An older disk has less than the others were told.
                let durable = self.durable.entry(incarnation).or_default();
                if !own.is_old || durable.is_empty() {
                    durable.clone_from(&charged);
                }
            } else {
                own.waiting.push_back((batch, charged.clone()));
            }
            own.charged = charged;
        }
        while let Some((_, charged)) = own.waiting.pop_front_if(|(batch, _)| node.is_committed(*batch)) {
            let durable = self.durable.entry(incarnation).or_default();
            if is_less(&charged, durable).is_none() {
                *durable = charged;
            }
        }
        Ok(())
    }

    fn check_views(&mut self, world: &World, place: Place) -> Result<(), String> {
        let region = &world.regions()[place];
        let Some(process) = region.process() else { return Ok(()) };
        for (incarnation, durable) in &self.durable {
            let own = &self.regions[place];
            if own.incarnation == Some(*incarnation) {
                continue;
            }
            let known: Vec<u64> =
                self.limits.iter().map(|limit| process.node.charged_by(*incarnation, *limit)).collect();
            let name = region.name();
            if let Some((most, known)) = is_less(durable, &known).filter(|_| !self.is_old(*incarnation)) {
                return Err(format!(
                    "{name} knows of {most} units that {incarnation:?} charged, whose disk knows of {known}"
                ));
            }
            let (processes, before) = self.known.entry((place, *incarnation)).or_default();
            if *processes == region.processes()
                && let Some((before, now)) = is_less(&known, before)
            {
                return Err(format!(
                    "{name} knew of {before} units that {incarnation:?} charged, and now of {now}"
                ));
            }
            (*processes, *before) = (region.processes(), known);
        }
        Ok(())
    }

    fn is_old(&self, incarnation: Incarnation) -> bool {
        self.regions.iter().any(|own| own.is_old && own.incarnation == Some(incarnation))
    }

    /// A node with an older disk than before must be told so by the peers that it hears, and stop admitting.
    fn check_old_disk(&mut self, world: &World, place: Place, answers: &[Answer]) -> Result<(), String> {
        let region = &world.regions()[place];
        let Some(process) = region.process().filter(|_| self.regions[place].is_old) else { return Ok(()) };
        let Some(incarnation) = self.regions[place].incarnation else { return Ok(()) };
        let now = process.clock.now();
        // The check applies only if another region knows of more than the disk has. Otherwise nothing was
        // forgotten.
        let others = || world.regions().iter().filter(|other| other.name() != region.name());
        let own: Vec<u64> =
            self.limits.iter().map(|limit| process.node.charged_by(incarnation, *limit)).collect();
        let is_behind =
            self.durable.get(&incarnation).is_some_and(|durable| is_less(&own, durable).is_some());
        let is_told = others().filter_map(|other| other.process()).any(|other| {
            let knows: Vec<u64> =
                self.limits.iter().map(|limit| other.node.charged_by(incarnation, *limit)).collect();
            is_less(&own, &knows).is_some()
        });
        let hears = is_behind && is_told && process.node.peers(now).iter().any(|peer| peer.is_reached);
        let state = &mut self.regions[place];
        state.heard_ms = if hears { state.heard_ms + EVERY_MS } else { 0 };
        let allowed = answers.iter().any(|answer| answer.place == place && answer.reply.charged().is_some());
        if state.heard_ms > OLD_DISK_MS && allowed {
            return Err(format!("{} goes on with an older disk than it once had", region.name()));
        }
        Ok(())
    }
}

/// The first number that is smaller than before: the old and the new value.
fn is_less(now: &[u64], before: &[u64]) -> Option<(u64, u64)> {
    now.iter().zip(before).find(|(now, before)| now < before).map(|(now, before)| (*before, *now))
}

impl Check for RowsGrow {
    fn name(&self) -> &'static str {
        "rows grow"
    }

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        for done in self.read.next(world) {
            match done.fault {
                Fault::RestoreDisk(at) => self.regions[at].is_old = true,
                Fault::LoseDisk(at) => self.regions[at] = Own::default(),
                _ => {}
            }
        }
        (0..self.regions.len()).try_for_each(|place| self.check_own_rows(world, place))?;
        let is_due = self.steps.is_due(EVERY_MS);
        for place in 0..self.regions.len() {
            if self.regions[place].is_old && !is_due {
                continue;
            }
            self.check_old_disk(world, place, answers)?;
        }
        if !is_due {
            return Ok(());
        }
        (0..self.regions.len()).try_for_each(|place| self.check_views(world, place))
    }
}
