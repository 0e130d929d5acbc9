//! Slots are held: at no instant more requests go on, in all regions together, than a limit on requests under way
//! has slots. The check knows only what callers know. A request counts from its answer until its release is asked
//! for, or until its holder takes the slots for lapsed: a holder that has died counts until then.
//!
//! When nobody asks any more, all slots are free again, whatever became of their holders and nodes.

use std::{collections::BTreeMap, time::Duration};

use acequia_limits::Limit;

use super::{Check, never_over::cell_name, watch_cell};
use crate::{
    demand::Question,
    world::{Answer, Reply, World},
};

/// Cells of one limit that must be free again in the end.
const CELLS_MAX: usize = 16;

/// Counts requests under way.
#[derive(Debug)]
pub struct SlotsHeld {
    limits: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    limit: Limit,
    /// The slots of each cell.
    slots: u64,
    /// The requests that go on, by the names of their slots.
    held: BTreeMap<String, Held>,
    cells: Vec<(String, Question)>,
    /// The most slots of a cell that were held at one time.
    most: u64,
    begun: u64,
    renewed: u64,
    lapsed: u64,
}

#[derive(Debug)]
struct Held {
    cell: String,
    slots: u64,
    until: Duration,
}

impl SlotsHeld {
    /// A check of those limits that count requests under way.
    pub fn new(limits: &[Limit]) -> Self {
        let watched = |limit: &Limit| {
            let slots = limit.spec.concurrent.as_ref()?.limit;
            let (held, cells, limit) = (BTreeMap::new(), Vec::new(), limit.clone());
            Some(Watched { limit, slots, held, cells, most: 0, begun: 0, renewed: 0, lapsed: 0 })
        };
        Self { limits: limits.iter().filter_map(watched).collect() }
    }
}

impl Watched {
    fn count(&mut self, answer: &Answer) -> Result<(), String> {
        let before = self.held.len();
        self.held.retain(|_, held| held.until > answer.answered);
        self.lapsed += (before - self.held.len()) as u64;
        match &answer.reply {
            Reply::Began { id, until, slots } => {
                let name = &self.limit.spec.name;
                let Some((_, slots)) = slots.iter().find(|(limit, _)| limit == name) else { return Ok(()) };
                self.begin(answer, id, Held { cell: String::new(), slots: *slots, until: *until })
            }
            Reply::Renewed { id, until } => {
                if let Some(held) = self.held.get_mut(id) {
                    self.renewed += 1;
                    held.until = *until;
                }
                Ok(())
            }
            Reply::Ended { id } => {
                self.held.remove(id);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, answer: &Answer, id: &str, held: Held) -> Result<(), String> {
        let cell = cell_name(&self.limit, &answer.question);
        watch_cell(&mut self.cells, CELLS_MAX, cell.clone(), || answer.question.clone());
        self.begun += 1;
        self.held.insert(id.to_owned(), Held { cell: cell.clone(), ..held });
        let taken = self.held.values().filter(|held| held.cell == cell).map(|held| held.slots).sum::<u64>();
        self.most = self.most.max(taken);
        if taken > self.slots {
            let (name, slots) = (&self.limit.spec.name, self.slots);
            return Err(format!(
                "limit {name}, cell [{cell}]: {taken} of {slots} slots are taken, with {id}"
            ));
        }
        Ok(())
    }

    /// Whether every slot of every cell is free.
    fn all_free(&self, world: &World) -> Result<(), String> {
        let name = &self.limit.spec.name;
        for (cell, question) in &self.cells {
            let left = world.regions().iter().filter_map(|region| {
                let process = region.process()?;
                let now = process.clock.now();
                Some(question.with(|values| process.node.holding_named(self.limit.id, values, now))?.left)
            });
            let left: Vec<u64> = left.collect();
            if left.iter().sum::<u64>() != self.slots {
                return Err(format!(
                    "limit {name}, cell [{cell}]: {left:?} of {} slots are free",
                    self.slots
                ));
            }
        }
        Ok(())
    }
}

impl Check for SlotsHeld {
    fn name(&self) -> &'static str {
        "slots held"
    }

    fn observe(&mut self, _: &World, answers: &[Answer]) -> Result<(), String> {
        // A request that ends at this instant counts no more.
        let mut answers: Vec<&Answer> = answers.iter().collect();
        answers.sort_by_key(|answer| (answer.answered, !matches!(answer.reply, Reply::Ended { .. })));
        self.limits
            .iter_mut()
            .try_for_each(|watched| answers.iter().try_for_each(|answer| watched.count(answer)))
    }

    fn rest(&mut self, world: &World) -> Result<(), String> {
        self.limits.iter().try_for_each(|watched| watched.all_free(world))
    }

    fn summary(&self) -> Vec<String> {
        let line = |watched: &Watched| {
            let Watched { limit, slots, most, begun, renewed, lapsed, .. } = watched;
            let name = &limit.spec.name;
            format!(
                "{name}: {begun} requests began, {renewed} renewals, {lapsed} lapsed, at most {most} of {slots} slots taken"
            )
        };
        self.limits.iter().map(line).collect()
    }
}
