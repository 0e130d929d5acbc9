//! Charges that other nodes of the region answer by: whichever of them is asked the same again, it is charged once.
//!
//! A node that charged under a name keeps its answer in the region's store, in a generation of the name's group
//! ([`acequia_rights::pool::name`]), and gives nothing of that charge back before the name is ended there. Whoever carries calls to
//! the store does both; here is what it needs to know.

use std::collections::VecDeque;

use acequia_limits::{CellTag, Now};
use acequia_rights::{
    pool::{Generation, name::ANSWER_BYTES_MAX},
    session::stretch,
};
use serde::{Deserialize, Serialize};

use super::{ChargeId, record::Record};
use crate::{Node, leases::group_of, lock};

/// Settlements that wait for whoever ends names.
const LATER_MAX: usize = 4_096;

/// Where something is kept in the region's store, as this node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptAt {
    /// The group.
    pub group: u16,
    /// The distribution among regions that the group's pools are part of; 0 where there is none.
    pub terms: u64,
    /// The group's generation.
    pub generation: Generation,
    /// Whether it grants: then no node uses an earlier one.
    pub grants: bool,
}

/// An answer as it is kept for other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedAnswer {
    /// As [`crate::Asker::repeat`] reads it.
    pub bytes: Vec<u8>,
    /// Until when it stands, by any wall: in microseconds since the epoch.
    pub drops_us: u64,
}

/// How it is written: nodes of another version charge anew.
const VERSION: u8 = 1;

/// What is kept.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    /// [`VERSION`].
    version: u8,
    /// The node that charged.
    node: u16,
    /// When the reservation lapses, by its wall clock, in nanoseconds; 0 where it is none.
    lapses_wall_ns: u64,
    record: Record,
}

impl Node {
    /// Where names of charges are kept in the region's store: nowhere while that is lost, or nothing is known of the group.
    pub fn kept_at(&self, id: ChargeId) -> Option<KeptAt> {
        self.kept_in(group_of(CellTag(id.0)))
    }

    /// The same of a group.
    pub fn kept_in(&self, group: u16) -> Option<KeptAt> {
        if self.store_outages.is_lost(CellTag(group.into())) {
            return None;
        }
        self.places.get(group)
    }

    /// Whether a charge is remembered here under a name.
    pub fn remembers(&self, id: ChargeId, now: Now) -> bool {
        self.charges.lock(id).get(id, self.charges.keep(), self.not_before(now)).is_some()
    }

    /// The answer to what was just charged under a name, for other nodes to answer by, in a generation. From now on nothing of the
    /// charge is given back before [`Node::ended`]. Nothing where there is no such charge, or it does not stand for long enough.
    pub fn share_answer(&self, id: ChargeId, generation: Generation, now: Now) -> Option<SharedAnswer> {
        let now = self.not_before(now);
        let who = self.places.who();
        let mut records = self.charges.lock(id);
        let keep_ns = self.charges.keep().keep_ns;
        let record = records.all.get_mut(&id.0).filter(|record| record.is_open())?;
        // In one generation at a time: it is ended there.
        if record.shared.is_some_and(|other| other != generation) {
            return None;
        }
        let (mut lapses_wall_ns, mut stands_ns) = (0, keep_ns);
        if let Some(at_ns) = record.lapses_ns() {
            let ttl_ns = at_ns.saturating_sub(now.steady_ns);
            lapses_wall_ns = now.wall_ns.saturating_add(ttl_ns);
            // By no wall does it stand longer than by this node's steady clock.
            let drifts_ns = stretch(ttl_ns, who.drift_ppm) - ttl_ns;
            stands_ns = ttl_ns.saturating_sub(drifts_ns.saturating_add(2 * who.clock_error_ns)).min(keep_ns);
        }
        let written = Written { version: VERSION, node: who.node, lapses_wall_ns, record: record.clone() };
        let bytes = postcard::to_allocvec(&written).unwrap_or_default();
        if stands_ns < 1_000 || bytes.len() > ANSWER_BYTES_MAX {
            return None;
        }
        record.shared = Some(generation);
        Some(SharedAnswer { bytes, drops_us: now.wall_ns.saturating_add(stands_ns) / 1_000 })
    }

    /// No node answers any more by what was kept under a name in a generation: what was charged may be given back.
    pub fn ended(&self, id: ChargeId, generation: Generation) {
        if let Some(record) = self.charges.lock(id).all.get_mut(&id.0) {
            record.shared = record.shared.filter(|shared| *shared != generation);
        }
    }

    /// Settles a charge, or keeps in mind that it is to be: where nobody waits for what becomes of it.
    pub(crate) fn settle_sometime(&self, id: ChargeId, cost: Option<u64>, now: Now) {
        if let super::Settled::Shared { .. } = self.settle(id, cost, now) {
            let mut later = lock(&self.charges.later);
            // What is not given back stays charged.
            if later.len() < LATER_MAX {
                later.push_back((id, cost));
            }
        }
    }

    /// Settlements of charges that other nodes answer by, for whoever ends names.
    pub fn take_settlements(&self) -> VecDeque<(ChargeId, Option<u64>)> {
        std::mem::take(&mut *lock(&self.charges.later))
    }
}

/// Reads what another node keeps: its number, when the reservation lapses by its wall clock (0 where it is none), and the charge. Nothing where
/// it is none that can be read.
pub(crate) fn read(kept: &[u8]) -> Option<(u16, u64, Record)> {
    if kept.first() != Some(&VERSION) {
        return None;
    }
    let (Written { node, lapses_wall_ns, record, .. }, rest) = postcard::take_from_bytes(kept).ok()?;
    (rest.is_empty() && record.is_sound()).then_some((node, lapses_wall_ns, record))
}
