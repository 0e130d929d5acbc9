//! Letters: messages to a node of the region that its mates cannot reach otherwise, saying that one of its
//! charges is settled.
//!
//! A letter waits until its addressee says that it has the letter. A letter may be lost, with the pools of
//! its group or when it is old. Then the charge stays as it was, as the node that forwards a settlement is
//! told. A charge is settled once, however often the addressee is told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CallContext, Generation};

/// The most letters that wait for one node.
pub const LETTERS_MAX: usize = 256;

/// A settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Letter {
    /// The charge's id.
    pub id: u128,
    /// The charge's real cost, in units of the request: `None` where all is given back.
    pub cost: Option<u64>,
}

/// The letters for one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Letters {
    since: Generation,
    /// Real costs, by charge.
    waiting: BTreeMap<u128, Option<u64>>,
    drops_us: u64,
}

impl Letters {
    /// Leaves a letter, which nobody need keep after `drops_us`: wall clock, in microseconds. For each charge
    /// the first letter counts. Returns whether the letter is there.
    pub fn post(&mut self, letter: Letter, drops_us: u64, context: &CallContext) -> bool {
        self.begin(context);
        self.drop_old(context);
        if self.waiting.len() >= LETTERS_MAX && !self.waiting.contains_key(&letter.id) {
            return false;
        }
        self.waiting.entry(letter.id).or_insert(letter.cost);
        self.drops_us = self.drops_us.max(drops_us);
        true
    }

    /// The letters that wait, except those about the charges in `had`, whose letters the node has received.
    pub fn collect(&mut self, had: &[u128], context: &CallContext) -> Vec<Letter> {
        self.begin(context);
        // A call that only reads changes nothing, so nothing need be written.
        if !had.is_empty() {
            self.drop_old(context);
        }
        for id in had {
            self.waiting.remove(id);
        }
        let waiting = Some(&self.waiting).filter(|_| !self.is_old(context));
        waiting.into_iter().flatten().map(|(id, cost)| Letter { id: *id, cost: *cost }).collect()
    }

    /// When the letters may be forgotten: wall clock, in microseconds.
    pub const fn drops_us(&self) -> u64 {
        self.drops_us
    }

    fn begin(&mut self, context: &CallContext) {
        if self.since != context.since {
            *self = Self { since: context.since, ..Self::default() };
        }
    }

    const fn is_old(&self, context: &CallContext) -> bool {
        context.wall_us >= self.drops_us
    }

    fn drop_old(&mut self, context: &CallContext) {
        if self.is_old(context) {
            self.waiting.clear();
        }
    }
}
