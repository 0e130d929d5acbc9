//! Charges by which other nodes of the region answer: a repeated request is charged once, whichever node gets
//! it.
//!
//! A node that charged under a name keeps its answer in the region's store, in a generation of the name's
//! group ([`acequia_rights::pool::name`]). The node gives nothing of that charge back before the name is
//! ended there. The caller that carries calls to the store does both; this file has what the caller needs.

use std::collections::VecDeque;

use acequia_limits::{CellTag, Now};
use acequia_rights::{
    pool::{Generation, name::ANSWER_BYTES_MAX},
    session::stretch,
};
use serde::{Deserialize, Serialize};

use super::{ChargeId, Settled, record::Record};
use crate::{Node, lock, pool::group_of, settings::SETTINGS};

/// Where something is kept in the region's store, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptAt {
    /// The group.
    pub group: u16,
    /// The allocation among regions that the group's pools are part of; 0 if there is none.
    pub allocation: u64,
    /// The group's generation.
    pub generation: Generation,
    /// Whether the generation grants: then no node uses an earlier one.
    pub grants: bool,
}

/// An answer as it is kept for other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedAnswer {
    /// The bytes that [`crate::Asker::repeat`] reads.
    pub bytes: Vec<u8>,
    /// Until when the answer stands, by any wall clock: microseconds since the epoch.
    pub drops_us: u64,
}

/// The version of the format: nodes that use another version charge anew.
const VERSION: u8 = 2;

/// The form in which an answer is kept.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SharedRecord {
    /// [`VERSION`].
    version: u8,
    /// The node that charged.
    pub(crate) node: u16,
    /// When the reservation lapses, by that node's wall clock, in nanoseconds; 0 if the charge is not a
    /// reservation.
    pub(crate) lapses_wall_ns: u64,
    pub(crate) record: Record,
}

impl SharedRecord {
    /// Reads an answer that another node keeps. `None` if the bytes are not a valid answer.
    pub(crate) fn read(kept: &[u8]) -> Option<Self> {
        if kept.first() != Some(&VERSION) {
            return None;
        }
        let (shared, rest) = postcard::take_from_bytes::<Self>(kept).ok()?;
        (rest.is_empty() && shared.record.is_sound()).then_some(shared)
    }
}

impl Node {
    /// Where the region's store keeps this name; `None` during a store outage, or if nothing is known of the
    /// group.
    pub fn kept_at(&self, id: ChargeId) -> Option<KeptAt> {
        self.kept_in(group_of(CellTag(id.0)))
    }

    /// Where the region's store keeps a group; `None` as for [`Node::kept_at`].
    pub fn kept_in(&self, group: u16) -> Option<KeptAt> {
        if self.store.outages.is_lost(CellTag(group.into())) {
            return None;
        }
        self.store.places.get(group)
    }

    /// Whether this node remembers a charge under the name.
    pub fn remembers(&self, id: ChargeId, now: Now) -> bool {
        self.charges.lock(id).get(id, self.charges.keep(), self.not_before(now)).is_some()
    }

    /// The answer to a charge just made under a name, for other nodes to answer by, in a generation. From now
    /// on nothing of the charge is given back before [`Node::ended`]. `None` if there is no such charge, or
    /// it does not stand for long enough.
    pub fn share_answer(&self, id: ChargeId, generation: Generation, now: Now) -> Option<SharedAnswer> {
        let now = self.not_before(now);
        let who = self.store.places.who();
        let mut records = self.charges.lock(id);
        let keep_ns = self.charges.keep().keep_ns;
        let record = records.all.get_mut(&id.0).filter(|record| record.is_open())?;
        // A name is shared in one generation at a time, and must be ended there.
        if record.memory.shared.is_some_and(|other| other != generation) {
            return None;
        }
        let (mut lapses_wall_ns, mut stands_ns) = (0, keep_ns);
        if let Some(at_ns) = record.lapses_ns() {
            let ttl_ns = at_ns.saturating_sub(now.steady_ns);
            lapses_wall_ns = now.wall_ns.saturating_add(ttl_ns);
            // By no wall clock may the answer stand longer than by this node's steady clock.
            let drifts_ns = stretch(ttl_ns, who.drift_ppm) - ttl_ns;
            stands_ns = ttl_ns.saturating_sub(drifts_ns.saturating_add(2 * who.clock_error_ns)).min(keep_ns);
        }
        let shared =
            SharedRecord { version: VERSION, node: who.node, lapses_wall_ns, record: record.clone() };
        let bytes = postcard::to_allocvec(&shared).unwrap_or_default();
        if stands_ns < 1_000 || bytes.len() > ANSWER_BYTES_MAX {
            return None;
        }
        record.memory.shared = Some(generation);
        Some(SharedAnswer { bytes, drops_us: now.wall_ns.saturating_add(stands_ns) / 1_000 })
    }

    /// No node answers any more by what was kept under this name in this generation: the charge may be given
    /// back.
    pub fn ended(&self, id: ChargeId, generation: Generation) {
        if let Some(record) = self.charges.lock(id).all.get_mut(&id.0) {
            record.memory.shared = record.memory.shared.filter(|shared| *shared != generation);
        }
    }

    /// Settles a charge now or, if other nodes may answer by it, later: nobody waits for the result.
    pub fn settle_sometime(&self, id: ChargeId, cost: Option<u64>, now: Now) -> Settled {
        let settled = self.settle(id, cost, now);
        if let Settled::Shared { .. } = settled {
            let mut later = lock(&self.charges.later);
            // Units that are not given back stay charged.
            if later.len() < SETTINGS.charges.settlements_max {
                later.push_back((id, cost));
            }
        }
        settled
    }

    /// Takes the settlements of charges by which other nodes answer, for the caller that ends names.
    pub fn take_settlements(&self) -> VecDeque<(ChargeId, Option<u64>)> {
        std::mem::take(&mut *lock(&self.charges.later))
    }
}
