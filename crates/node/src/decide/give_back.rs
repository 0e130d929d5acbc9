//! Requests that give units back without the name of a charge.

use std::sync::Arc;

use acequia_limits::{Now, Request};

use super::{Ask, Asker, RequestCheck, hit::Hit};
use crate::{Refunded, cell::CellKey};

impl Asker {
    /// Gives back the costs of a request's descriptors, on every limit that matches. Returns what came back.
    ///
    /// A cell takes back at most what this node charged, in the open window or, for a bucket, of what is owed.
    /// Limits on requests under way take back nothing: whoever has no name of a charge may have no slot either.
    /// Limits with classes take back nothing, because nobody knows which class was charged; and limits with holds,
    /// because the units may be those of a hold.
    pub fn give_back(&mut self, request: &Request<'_>, now: Now) -> Vec<Refunded> {
        let node = Arc::clone(&self.node);
        if !node.may_decide() {
            return Vec::new();
        }
        let now = node.not_before(now);
        self.load_catalogue();
        let catalogue = &self.catalogue;
        let check = RequestCheck { node: &node, catalogue, request, now, ask: Ask::PEEK, may_decide: true };
        check.gather(request, &mut self.hits);
        let of_hit = |hit: &Hit| {
            let active = &catalogue.limits[hit.limit as usize];
            let limit = &active.limit;
            let takes = !limit.is_concurrent() && limit.classes.is_none() && limit.expect.is_none();
            let key = CellKey { slot: active.slot, tag: hit.tag };
            if takes && hit.charges() && !hit.exempt { node.give_back_to(key, hit.units, now) } else { None }
        };
        self.hits.iter().filter_map(of_hit).collect()
    }
}
