//! Each region has a fixed, equal part of every limit, and sends no messages.
//!
//! People do this by hand when they divide a limit by the number of regions or instances in a config: nginx's
//! `limit_req`, Envoy's local rate limit filter, Kong's `local` policy. This way never admits too much. But
//! what one region does not use nobody uses, and a cost that is larger than a part is never admitted
//! anywhere.

use super::{
    meter::{Meter, admit},
    model::{Asked, Case, Policy, Wire},
};

/// A meter for each region and cell.
#[derive(Debug)]
pub(super) struct Shares(Vec<Vec<Meter>>);

impl Shares {
    pub(super) fn new(case: &Case) -> Self {
        let of = case.regions as u64;
        let part = |place| case.cells.iter().map(|bound| Meter::part(*bound, place, of)).collect();
        Self((0..of).map(part).collect())
    }
}

impl Policy for Shares {
    fn name(&self) -> &'static str {
        "static shares"
    }

    fn ask(&mut self, id: usize, asked: &Asked, wire: &mut Wire) {
        let is_allowed = admit(&mut self.0[asked.place], &asked.hits, wire.now_ns);
        wire.answer(id, is_allowed);
    }
}
