//! Requests that wait at nodes and are forwarded. Each that passes late is matched to another node's charge,
//! made while the request waited.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::{Algorithm, CellTag, LimitId};
use acequia_node::{
    Ask, FORWARD_NS, ForwardedRequest, Forwarding, Waiter,
    regions::wire::{FrameEntry, Whole, read},
};

use super::{
    World,
    asking::{ChargedCell, named},
};
use crate::scene::MS;

/// How often a waiting request that may be forwarded is tried again.
pub(super) const FORWARD_AGAIN_NS: u64 = 10 * MS;

/// A request that waits at a node.
pub(super) struct Waiting {
    pub(super) place: usize,
    pub(super) process_number: u32,
    pub(super) key: String,
    pub(super) cost: u64,
    /// When the request came, in true time and on the node's steady clock.
    pub(super) came_ns: u64,
    pub(super) since_ns: u64,
    pub(super) until_ns: u64,
    /// When the request is tried again even if nothing happens.
    pub(super) again_ns: u64,
    /// The node's news counter when the request was last tried.
    pub(super) news: u64,
    pub(super) forwarded: Option<ForwardedRequest>,
}

/// A cell, as frames name it.
pub(super) type CellName = (LimitId, CellTag);
/// A forward: the sending node, its process number, the receiving node, and the forward's number.
pub(super) type ForwardName = (usize, u32, usize, u64);
/// A node, its process number, and a cell: the requests that may use a charge.
pub(super) type Forwarder = (usize, u32, CellName);

/// Units that were charged for another node.
#[derive(Clone, Copy)]
pub(super) struct Charged {
    /// True time.
    pub(super) at_ns: u64,
    pub(super) units: u64,
    /// The whole limit by which the units were charged.
    pub(super) whole: Whole,
}

/// Charges that nodes made for others, according to their frames.
#[derive(Default)]
pub(super) struct Charges {
    /// The limit, key and budget of a cell that received a forward.
    pub(super) cells: BTreeMap<CellName, (usize, String, u64)>,
    pub(super) forwarded: BTreeMap<ForwardName, (CellName, Whole)>,
    /// The process that used a forward number at a node.
    pub(super) numbers: BTreeMap<(usize, u64), u32>,
    pub(super) answered: BTreeSet<ForwardName>,
    /// Whole limits at each node before its last frame or rebalance.
    pub(super) gave: BTreeMap<(usize, LimitId), Whole>,
    /// Charges that no request has used yet.
    pub(super) unused: BTreeMap<Forwarder, Vec<Charged>>,
}

impl World {
    /// Makes the node forward a request that it just denied and that goes on waiting.
    pub(super) fn forward(&mut self, waiting: &mut Waiting) {
        let now = self.now(waiting.place);
        let at = &self.nodes[waiting.place];
        if waiting.forwarded.as_ref().is_some_and(|request| !at.node.is_answered(request)) {
            return;
        }
        let (answer, catalogue) = at.asker.last();
        let waiter = Waiter {
            since_ns: waiting.since_ns,
            patience_ns: waiting.until_ns.saturating_sub(self.true_ns),
            is_again: waiting.forwarded.is_some(),
        };
        if let Some(request) = at.node.forward_charge(answer, catalogue, waiter, now) {
            waiting.forwarded = Some(request);
            for limit in &answer.limits {
                let cell = (catalogue.limits[limit.limit as usize].limit.id, named(limit));
                self.charges.cells.insert(cell, (limit.limit as usize, waiting.key.clone(), limit.budget));
            }
        }
    }

    /// Records the forwards that a frame within a region requests, and those it reports as charged. Charged
    /// units count as admitted.
    pub(super) fn note_forwards(&mut self, from: usize, to: usize, frame: &[u8]) {
        let frame = read(frame).expect("a frame of ours");
        for entry in frame.entries {
            match entry {
                FrameEntry::Forward { limit, tag, whole, number, .. } => {
                    let name = (from, frame.header.process_number, to, number);
                    let first = *self.charges.numbers.entry((from, number)).or_insert(name.1);
                    assert_eq!(
                        first, name.1,
                        "two processes of node {from} forwarded by the number {number}"
                    );
                    self.charges.forwarded.insert(name, ((limit, tag), whole));
                }
                FrameEntry::ForwardReply { number, units: Some(units @ 1..) } => {
                    let process_number = frame.header.received.process_number;
                    let name = (to, process_number, from, number);
                    if !self.charges.answered.insert(name) {
                        continue;
                    }
                    let (cell, whole) = self.charges.forwarded[&name];
                    let (limit, key, budget) = self.charges.cells[&cell].clone();
                    let gave = self.charges.gave.get(&(from, cell.0)).copied();
                    let gives = [self.gives(from, cell.0), gave];
                    assert!(
                        gives.contains(&Some(whole)),
                        "node {from} charged by {whole:?}, and has {gives:?}"
                    );
                    let charged = Charged { at_ns: self.true_ns, units, whole };
                    self.charges.unused.entry((to, process_number, cell)).or_default().push(charged);
                    let of = ChargedCell { limit, key: &key, budget, tag: cell.1 };
                    self.admit(of, units, &format!("{from} for {to}"));
                }
                _ => {}
            }
        }
    }

    /// Records a node's whole limits before an event that may change them, since the node may have charged by
    /// the old ones.
    pub(super) fn note_wholes(&mut self, place: usize) {
        let limits: Vec<_> = self.nodes[place].node.catalogue().limits.iter().map(|of| of.limit.id).collect();
        for limit in limits {
            match self.gives(place, limit) {
                Some(whole) => self.charges.gave.insert((place, limit), whole),
                None => self.charges.gave.remove(&(place, limit)),
            };
        }
    }

    /// A limit's whole as a node knows it, if all its cells have one variant.
    pub(super) fn gives(&self, place: usize, limit: LimitId) -> Option<Whole> {
        let catalogue = self.nodes[place].node.catalogue();
        let of = &catalogue.limits.iter().find(|active| active.limit.id == limit)?.limit;
        let rate = match &of.algorithm {
            Algorithm::TokenBucket(meter) => Some(meter.terms()),
            _ => None,
        };
        of.overrides.is_empty().then(|| Whole { units: of.algorithm.budget(), rate })
    }

    /// A request passes on another node's charge. The charge must be made after the request came, by the
    /// current limits and for this process, and must be unused.
    #[track_caller]
    pub(super) fn use_charge(&mut self, place: usize, cell: CellName, units: u64, came_ns: u64) {
        let whole = self.gives(place, cell.0);
        let unused = self.charges.unused.entry((place, self.nodes[place].process_number, cell)).or_default();
        let its = unused.iter().position(|charged| {
            charged.at_ns >= came_ns && charged.units == units && Some(charged.whole) == whole
        });
        let its = its.unwrap_or_else(|| {
            panic!("node {place} passed {units} of a request that came at {came_ns}, and nobody charged that since")
        });
        let Charged { at_ns, .. } = unused.remove(its);
        let most_ns = FORWARD_NS + FORWARD_NS / 100;
        assert!(self.true_ns - at_ns <= most_ns, "it was charged {} ns ago", self.true_ns - at_ns);
    }

    /// Tries waiting requests again when units arrived or their time is over.
    pub(super) fn wake_waiting(&mut self) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            let at = &self.nodes[waiting.place];
            let news = at.node.news();
            if at.process_number != waiting.process_number {
                continue;
            }
            // Servers do the same.
            let is_forwarding =
                waiting.forwarded.as_ref().is_some_and(|request| at.node.is_forwarding(request));
            let is_news = news != waiting.news && !is_forwarding;
            let at_ns = waiting.until_ns.min(waiting.again_ns);
            if !is_news && self.true_ns < at_ns {
                self.waiting.push(waiting);
                continue;
            }
            waiting.again_ns = self.true_ns + FORWARD_AGAIN_NS;
            let Waiting { place, cost, came_ns, .. } = waiting;
            waiting.news = news;
            let forwarding = waiting
                .forwarded
                .as_ref()
                .map_or(Forwarding::May, |request| Forwarding::Since(request.since_ns()));
            let ask = Ask::CHECK.again().forwarding(forwarding);
            let is_allowed = self.ask_since(place, &waiting.key, cost, ask, came_ns).0;
            self.passed_late += u64::from(is_allowed);
            if is_allowed || self.true_ns >= waiting.until_ns {
                self.note_decided(place, came_ns, is_allowed);
            }
            if !is_allowed && self.true_ns < waiting.until_ns {
                self.forward(&mut waiting);
                self.waiting.push(waiting);
            } else if let Some(request) = waiting.forwarded {
                self.nodes[place].node.cancel_forward(&request);
            }
        }
    }
}
