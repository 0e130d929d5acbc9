//! What a cell's lease is decided by: the state of the cell, and what was asked of it.

use acequia_limits::Part;

use crate::{cell::account::Offered, settings::SETTINGS};

/// The state of a cell, and what was asked of it since the last rebalance.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct LeaseInputs {
    pub(in super::super) offered: Offered,
    pub(in super::super) available: u64,
    pub(in super::super) standing: Part,
    /// What the pool has in all.
    pub(in super::super) pool: Part,
    /// The budget of the whole limit: no request can have more.
    pub(in super::super) budget: u64,
    /// What other regions are to be given.
    pub(in super::super) for_others: Part,
    /// What other regions have been lent.
    pub(in super::super) lent: Part,
    /// What of the pool cannot be given back now.
    pub(in super::super) kept: Part,
    /// How many nodes take of the pool.
    pub(in super::super) nodes: u64,
    /// Whether this node is the cell's owner, for all nodes of the region.
    pub(in super::super) is_owner: bool,
    /// Whether units may be held for long without requests.
    pub(in super::super) lasts: bool,
    /// Whether the limit is a sliding window, whose units come back bit by bit.
    pub(in super::super) slides: bool,
}

impl LeaseInputs {
    /// Whether other nodes need what this node holds and does not use, of a pool that gives `a_second_milli`
    /// thousandths of a unit a second.
    pub(super) const fn is_scarce(&self, a_second_milli: u64) -> bool {
        let few = SETTINGS.lease.scarce * self.nodes;
        self.nodes > 1 && self.pool.units < few && a_second_milli < few * 1_000
    }

    /// Whether no other node takes of the pool. Then nobody needs what this node holds of few units, unless
    /// it dies.
    pub(super) const fn is_alone(&self) -> bool {
        self.nodes == 1 && self.is_owner
    }

    /// Whether other regions want what this node has.
    pub(super) fn is_wanted_elsewhere(&self) -> bool {
        self.lent != Part::default() || self.for_others != Part::default()
    }

    /// What this node would like to hold of the pool, to have `own` beside what other regions have been lent
    /// and are to be given.
    pub(super) fn beside_others(&self, own: Part) -> Part {
        let all = |own: u64, lent: u64, for_others: u64, standing: u64| {
            own.saturating_add(lent).saturating_add(for_others).saturating_sub(standing)
        };
        let (lent, to, standing) = (self.lent, self.for_others, self.standing);
        let rate = all(own.rate.into(), lent.rate.into(), to.rate.into(), standing.rate.into());
        let rate = rate.min(self.pool.rate.into()) as u32;
        let units = all(own.units, lent.units, to.units, standing.units).min(self.pool.units);
        Part { rate: rate.max(self.kept.rate), units: units.max(self.kept.units) }
    }
}
