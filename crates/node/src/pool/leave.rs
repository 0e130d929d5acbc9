//! How a node that stops leaves the pools: it gives back what was not spent, so that other nodes need not
//! wait for it.
//!
//! A node that stops takes nothing more. Units that it cannot give back, because nobody answers or they are
//! lent, end by themselves or count as spent.

use std::collections::BTreeSet;

use acequia_limits::{Algorithm, Now, Part};

use super::{
    Leases,
    cell::{RateWant, WindowWant},
    rebalance::Scene,
};
use crate::{
    Node,
    cell::account::{Account, CellContext, Withdrawn},
    lock,
    regions::CellKey,
};

impl Leases {
    /// Nothing more is taken from now on, and all leases go back.
    fn leave(&mut self, now_ns: u64) {
        let keys: BTreeSet<CellKey> = self.cells.keys().copied().collect();
        for key in &keys {
            self.rebalance_at(*key, now_ns);
        }
        self.leaving = Some(keys);
    }

    /// Notes that a rebalanced cell has nothing more to give back, or cannot give back.
    pub(super) fn left(&mut self, key: &CellKey) {
        if let Some(leaving) = &mut self.leaving {
            leaving.remove(key);
        }
    }
}

impl Scene<'_> {
    /// What a node that stops gives back of a part with an end: all of `held` but what it has lent and, of a
    /// sliding window, what was used.
    pub(super) fn leaves_part(
        &self,
        flow: Option<RateWant>,
        (account, words, context): (&Account, &[u64], &CellContext<'_>),
        held: Part,
        now: Now,
    ) -> Option<RateWant> {
        if !self.is_leaving {
            return flow;
        }
        let kept = account.kept_of_pool(words, context, now);
        let is_more = held.rate > kept.rate || held.units > kept.units;
        is_more.then_some(RateWant { keeps: kept, ..RateWant::default() })
    }

    /// What a node that stops gives back of windows: `available` units of the open one, and all units of
    /// later windows of which it cannot have charged anything yet.
    pub(super) fn leaves_windows(
        &self,
        (account, context): (&Account, &CellContext<'_>),
        available: u64,
        now: Now,
    ) -> Option<(Withdrawn, WindowWant)> {
        let Algorithm::FixedWindow(window) = context.global else { return None };
        let open_ns = account.window();
        let margin_ns = self.clock_error_ns.saturating_mul(4);
        let returns = |withdrawn: &Withdrawn| {
            if withdrawn.end_ns == open_ns {
                return withdrawn.units().min(available);
            }
            let is_later =
                window.begins(withdrawn.end_ns, context.salt) > now.wall_ns.saturating_add(margin_ns);
            if is_later { withdrawn.units() } else { 0 }
        };
        let back = account.withdrawn().iter().copied().map(|withdrawn| (withdrawn, returns(&withdrawn)));
        let (withdrawn, returns) = back.into_iter().find(|(_, returns)| *returns > 0)?;
        Some((withdrawn, WindowWant { returns, ..WindowWant::default() }))
    }
}

impl Node {
    /// Stops taking of pools, and begins to give leases back. No more requests come.
    pub fn leave_pools(&self, now: Now) {
        if let Some(leases) = &self.leases {
            lock(leases).leave(now.steady_ns);
        }
    }

    /// Makes no more calls: what is left of cells is written down now, and a later call would give units back
    /// twice.
    pub(crate) fn call_no_more(&self) {
        let Some(leases) = &self.leases else { return };
        let mut leases = lock(leases);
        leases.out.clear();
        leases.begins_ns = u64::MAX;
    }

    /// Whether all that could be given back is, since [`Node::leave_pools`].
    pub fn has_left_pools(&self) -> bool {
        let Some(leases) = &self.leases else { return true };
        lock(leases).leaving.as_ref().is_none_or(BTreeSet::is_empty)
    }
}
