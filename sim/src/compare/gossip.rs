//! Each region counts what it admits, sends its counts to all others ten times a second, and checks its
//! merged view.
//!
//! This is a counter that only grows: a G-counter, with one number for each region, merged by the larger one.
//! Limiters that replicate counts between peers have this design: Patrol's buckets, and rate limits over the
//! replicated counters of Redis Enterprise's Active-Active databases or of Riak. Most limiters that call
//! themselves eventually consistent have it too. The design is fast and uses everything. Its promise depends
//! on the network: in a split, each part spends the whole limit.

use std::collections::BTreeMap;

use super::{
    meter::{Meter, admit},
    model::{Asked, Case, Policy, Wire},
};
use crate::schedule::Place;

/// Time between two messages to a peer.
const EVERY_NS: u64 = 100_000_000;
/// How long a cell is sent after it changed. The next message makes up for a lost one.
const RECENT_NS: u64 = 1_000_000_000;

/// The views of all regions.
#[derive(Debug)]
pub(super) struct Gossip {
    pub(super) regions: Vec<View>,
}

/// The view of one region.
#[derive(Clone, Debug)]
pub(super) struct View {
    meters: Vec<Meter>,
    /// For each cell and window: the units that each region has admitted, and when they last changed.
    counts: BTreeMap<(usize, u64), (Vec<u64>, u64)>,
    windows: Vec<crate::bound::Bound>,
}

impl Gossip {
    pub(super) fn new(case: &Case) -> Self {
        let view = View {
            meters: case.cells.iter().map(|bound| Meter::new(*bound)).collect(),
            counts: BTreeMap::new(),
            windows: case.cells.clone(),
        };
        Self { regions: vec![view; case.regions] }
    }
}

impl View {
    /// Admits a question, and counts it, if this view has room for it.
    pub(super) fn admit(&mut self, asked: &Asked, wire: &Wire) -> bool {
        let is_allowed = admit(&mut self.meters, &asked.hits, wire.now_ns);
        for (cell, units) in asked.hits.iter().filter(|_| is_allowed) {
            let window = self.windows[*cell].window_at(wire.now_ns);
            let (counts, changed_ns) =
                self.counts.entry((*cell, window)).or_insert_with(|| (vec![0; wire.regions], 0));
            counts[asked.place] += *units;
            *changed_ns = wire.now_ns;
        }
        is_allowed
    }

    /// The changes of the last `recent_ns`. For each cell: its number, the window's number, and a count for
    /// each region.
    pub(super) fn words(&self, now_ns: u64, recent_ns: u64) -> Vec<u64> {
        let recent = self.counts.iter().filter(|(_, (_, changed_ns))| changed_ns + recent_ns > now_ns);
        recent
            .flat_map(|((cell, window), (counts, _))| [&[*cell as u64, *window], &counts[..]].concat())
            .collect()
    }

    /// Merges another region's counts.
    pub(super) fn merge(&mut self, words: &[u64], wire: &Wire) {
        for entry in words.chunks_exact(2 + wire.regions) {
            let (cell, window) = (entry[0] as usize, entry[1]);
            let (counts, changed_ns) =
                self.counts.entry((cell, window)).or_insert_with(|| (vec![0; wire.regions], 0));
            for (known, received) in counts.iter_mut().zip(&entry[2..]) {
                if received > known {
                    self.meters[cell].learn(wire.now_ns, window, received - *known);
                    (*known, *changed_ns) = (*received, wire.now_ns);
                }
            }
        }
    }
}

impl Policy for Gossip {
    fn name(&self) -> &'static str {
        "gossip"
    }

    fn wake_interval_ns(&self) -> Option<u64> {
        Some(EVERY_NS)
    }

    fn ask(&mut self, id: usize, asked: &Asked, wire: &mut Wire) {
        let is_allowed = self.regions[asked.place].admit(asked, wire);
        wire.answer(id, is_allowed);
    }

    fn wake(&mut self, at: Place, wire: &mut Wire) {
        let words = self.regions[at].words(wire.now_ns, RECENT_NS);
        for peer in (0..wire.regions).filter(|peer| *peer != at && !words.is_empty()) {
            wire.send(at, peer, words.clone());
        }
    }

    fn receive(&mut self, _: Place, to: Place, words: &[u64], wire: &mut Wire) {
        self.regions[to].merge(words, wire);
    }
}
