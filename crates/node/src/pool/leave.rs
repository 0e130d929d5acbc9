//! How a node that stops leaves the pools: it gives back what was not spent, so that other nodes need not
//! wait for it.
//!
//! A node that stops takes nothing more. Units that it cannot give back, because nobody answers or they are
//! lent, end by themselves or count as spent.

use acequia_limits::{Now, Part, window::FixedWindow};

use super::{
    cell::{RateWant, WindowWant},
    rebalance::{Rebalance, WindowAsk},
};
use crate::{Node, cell::account::Withdrawn, lock};

impl Rebalance<'_> {
    /// What a node that stops gives back of a part with an end: all of `held` but what it has lent and, of a
    /// sliding window, what was used.
    pub(super) fn leaves_part(&self, held: Part) -> Option<RateWant> {
        let kept = self.account.kept_of_pool(self.state, self.context, self.now);
        let is_more = held.rate > kept.rate || held.units > kept.units;
        is_more.then_some(RateWant::keeping(kept))
    }

    /// What a node that stops gives back of windows: `available` units of the open one, and all units of
    /// later windows of which it cannot have charged anything yet.
    pub(super) fn leaves_windows(&self, window: &FixedWindow, available: u64) -> Option<WindowAsk> {
        let open_ns = self.account.window();
        let later_ns = self.now.wall_ns.saturating_add(self.pool.clocks.margin_ns());
        let returns = |withdrawn: &Withdrawn| {
            if withdrawn.end_ns == open_ns {
                return withdrawn.units().min(available);
            }
            let is_later = window.begins(withdrawn.end_ns, self.context.salt) > later_ns;
            if is_later { withdrawn.units() } else { 0 }
        };
        self.account.withdrawn().iter().find_map(|withdrawn| {
            let want = WindowWant { returns: returns(withdrawn), ..WindowWant::default() };
            (want.returns > 0).then_some(WindowAsk { end_ns: withdrawn.end_ns, want })
        })
    }
}

impl Node {
    /// Stops taking of pools, and begins to give leases back. No more requests come.
    pub fn leave_pools(&self, now: Now) {
        if let Some(leases) = &self.leases {
            lock(leases).cells.leave(now.steady_ns);
        }
    }

    /// Makes no more calls: what is left of cells is written down now, and a later call would give units back
    /// twice.
    pub(crate) fn call_no_more(&self) {
        let Some(leases) = &self.leases else { return };
        lock(leases).calls.end();
    }

    /// Whether all that could be given back is, since [`Node::leave_pools`].
    pub fn has_left_pools(&self) -> bool {
        let Some(leases) = &self.leases else { return true };
        lock(leases).cells.have_left()
    }
}
