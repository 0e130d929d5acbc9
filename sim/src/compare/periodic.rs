//! Each region counts by itself, and every second exchanges counts with a store in the first region.
//!
//! Gateways do this under names like asynchronous or batched synchronisation: Kong's `sync_rate` above 0 with
//! a Redis store, Limitador's `redis_cached` storage, Gubernator's `GLOBAL` behaviour with the owner of a key
//! as the store. No question waits for the store, and admissions between two exchanges are known nowhere
//! else. Without the store, each region goes on with what it knew.

use super::{
    gossip::Gossip,
    model::{Asked, Case, Policy, Wire},
};
use crate::schedule::Place;

/// Time between two exchanges.
const EVERY_NS: u64 = 1_000_000_000;
/// How recent a change must be to be exchanged: since shortly before the exchange before the last one.
const RECENT_NS: u64 = 2 * EVERY_NS + EVERY_NS / 2;
/// The region of the store.
const STORE: Place = 0;

/// The store sees all counts of the first region.
#[derive(Debug)]
pub(super) struct Periodic(Gossip);

impl Periodic {
    pub(super) fn new(case: &Case) -> Self {
        Self(Gossip::new(case))
    }
}

impl Policy for Periodic {
    fn name(&self) -> &'static str {
        "periodic sync"
    }

    fn wake_interval_ns(&self) -> Option<u64> {
        Some(EVERY_NS)
    }

    fn ask(&mut self, id: usize, asked: &Asked, wire: &mut Wire) {
        self.0.ask(id, asked, wire);
    }

    fn wake(&mut self, at: Place, wire: &mut Wire) {
        if at != STORE {
            wire.send(at, STORE, self.0.regions[at].words(wire.now_ns, RECENT_NS));
        }
    }

    fn receive(&mut self, from: Place, to: Place, words: &[u64], wire: &mut Wire) {
        self.0.regions[to].merge(words, wire);
        if to == STORE {
            wire.send(STORE, from, self.0.regions[STORE].words(wire.now_ns, RECENT_NS));
        }
    }
}
