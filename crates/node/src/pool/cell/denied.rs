//! Denied requests of a cell that may still wait, and what its pool is asked for them.

use acequia_limits::Now;

use crate::{cell::account::Offered, settings::SETTINGS};

/// Denied requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Denied {
    /// What they cost together.
    units: u32,
    /// What the largest of them costs.
    pub(super) largest: u64,
    /// When the first was denied: steady clock.
    since_ns: u64,
}

/// What a rebalance finds missing, and what a call then asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Missing {
    pub(super) denied: Denied,
    /// Units that must come for one denied request to pass.
    pub(super) least: u64,
    /// Units to ask for.
    pub(super) needed: u64,
    pub(super) purpose: Purpose,
}

/// Why a call asks for units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Purpose {
    /// They are needed, or the pool gives as many as are wanted.
    #[default]
    Need,
    /// Units of the open window are wanted only ahead of need, and the pool has few.
    Ahead,
    /// Units are wanted of a window that has not begun.
    Later,
}

impl Denied {
    /// Adds these requests, denied before the last rebalance, to those denied since. Their units count only
    /// while a request may still wait for them.
    pub(super) fn beside(self, offered: Offered, now: Now) -> Offered {
        let units = if self.still_waits(now) { self.units } else { 0 };
        Offered {
            missed: offered.missed.saturating_add(units),
            denied: offered.denied.max(self.largest),
            ..offered
        }
    }

    /// All denied requests, of which `self` were denied before the last rebalance.
    pub(super) fn with(self, all: Offered, now: Now) -> Self {
        let since_ns = if self.still_waits(now) { self.since_ns } else { now.steady_ns };
        Self { units: all.missed, largest: all.denied, since_ns }
    }

    const fn still_waits(self, now: Now) -> bool {
        self.units > 0 && now.steady_ns < self.since_ns + SETTINGS.lease.waits_ns
    }

    /// These requests, and others that were denied later.
    pub(super) fn and(self, later: Self) -> Self {
        let since_ns = if later.units > 0 { later.since_ns.min(self.since_ns) } else { self.since_ns };
        Self {
            units: later.units.saturating_add(self.units),
            largest: later.largest.max(self.largest),
            since_ns,
        }
    }
}

impl Missing {
    /// Whether a pool that has this left has less than all requests need, and enough for one.
    pub(super) fn is_enough_for_one(&self, left: Option<u64>) -> bool {
        self.least > 0 && left.is_some_and(|left| (self.least..self.needed).contains(&left))
    }
}
