//! One counter in the first region, asked for every question of every region. Variants differ in what they do
//! when the counter does not answer.
//!
//! This is a limiter on one Redis, DynamoDB or SQL store that serves more than one region. Examples are the
//! rate limit services of Envoy and Lyft, Kong's `redis` policy with `sync_rate` 0, and most libraries with a
//! Redis backend. Fail-open (`fault_tolerant: true`, `failure_mode_deny: false`: the usual default) allows a
//! request if the counter does not answer; fail-closed denies it. Without a fault the limiter is exact, and
//! every decision waits for a round trip.

use super::{
    meter::{Meter, admit},
    model::{Asked, Case, Policy, Wire},
};
use crate::schedule::Place;

/// The region of the counter.
const STORE: Place = 0;
/// How long a question waits for the counter.
const TIMEOUT_NS: u64 = 250_000_000;

/// The counter.
#[derive(Debug)]
pub(super) struct Central {
    meters: Vec<Meter>,
    /// Whether a request is allowed if the counter does not answer.
    is_open: bool,
}

impl Central {
    pub(super) fn new(case: &Case, is_open: bool) -> Self {
        Self { meters: case.cells.iter().map(|bound| Meter::new(*bound)).collect(), is_open }
    }
}

impl Policy for Central {
    fn name(&self) -> &'static str {
        if self.is_open { "central, fail-open" } else { "central, fail-closed" }
    }

    fn ask(&mut self, id: usize, asked: &Asked, wire: &mut Wire) {
        if asked.place == STORE {
            let is_allowed = admit(&mut self.meters, &asked.hits, wire.now_ns);
            wire.answer(id, is_allowed);
            return;
        }
        let hits = asked.hits.iter().flat_map(|(cell, units)| [*cell as u64, *units]);
        wire.send(asked.place, STORE, [id as u64].into_iter().chain(hits).collect());
        wire.remind(id, wire.now_ns + TIMEOUT_NS);
    }

    fn receive(&mut self, from: Place, to: Place, words: &[u64], wire: &mut Wire) {
        let [id, message @ ..] = words else { return };
        if to == STORE {
            let hits: Vec<_> = message.chunks_exact(2).map(|hit| (hit[0] as usize, hit[1])).collect();
            let is_allowed = admit(&mut self.meters, &hits, wire.now_ns);
            wire.send(STORE, from, vec![*id, u64::from(is_allowed)]);
        } else {
            wire.answer(*id as usize, message == [1]);
        }
    }

    fn late(&mut self, id: usize, wire: &mut Wire) {
        wire.answer(id, self.is_open);
    }
}
