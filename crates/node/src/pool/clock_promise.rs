//! What is promised of the clocks of a region's nodes, and what follows for leases.

use acequia_limits::Now;
use acequia_rights::{
    mutation::{Mutation, mutated},
    pool::{keep_us, slack_us},
};

/// How good clocks are, by the config or by the catalogue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockPromise {
    /// How far walls may be from true time, in nanoseconds.
    pub(crate) error_ns: u64,
    /// How far steady clocks may drift, in parts per million.
    pub(crate) drift_ppm: u32,
}

impl ClockPromise {
    /// In each respect the worse of two promises.
    pub(super) fn or_worse(self, other: Self) -> Self {
        Self { error_ns: self.error_ns.max(other.error_ns), drift_ppm: self.drift_ppm.max(other.drift_ppm) }
    }

    /// How far two walls may be apart.
    pub(super) const fn apart_ns(self) -> u64 {
        self.error_ns.saturating_mul(2)
    }

    /// How far from a window's edge, by this node's wall, the window is open or over by every wall.
    pub(super) const fn margin_ns(self) -> u64 {
        self.error_ns.saturating_mul(4)
    }

    /// Windows that ended by this time are over by every wall.
    pub(super) const fn over_ns(self, now: Now) -> u64 {
        now.wall_ns.saturating_sub(self.margin_ns())
    }

    /// How long others wait for what a node counts on for `ns`, in microseconds.
    pub(super) fn keep_us(self, ns: u64) -> u64 {
        keep_us(ns, self.drift_ppm, self.error_ns)
    }

    /// How long a pool waits for what this node counts on for `ns`: until nobody counts on it any more.
    pub(super) fn pool_keeps_us(self, ns: u64) -> u64 {
        self.keep_us(if mutated(Mutation::LeaseTakenBackEarly) { ns / 8 } else { ns })
    }

    /// By how much more than true time may seem to have passed between two calls, in microseconds. A node
    /// takes up no grant that comes later than `late_ns` after its call.
    pub(super) const fn slack_us(self, late_ns: u64) -> u64 {
        slack_us(self.error_ns, late_ns)
    }
}
