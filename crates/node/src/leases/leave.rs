//! What a node does with what it holds of pools when it stops: it gives back what was not spent, so that others need not wait for it.
//!
//! Who stops takes nothing more. What it cannot give back, since nobody answers or it has lent it, ends by itself, or counts as spent.

use std::collections::BTreeSet;

use acequia_limits::{Algorithm, Now, Part};

use super::{
    Leases,
    cell::{RateWant, WindowWant},
    rebalance::Scene,
};
use crate::{
    Node,
    account::{Account, CellContext, Withdrawn},
    lock,
    sharing::CellKey,
};

impl Leases {
    /// Nothing more is taken from now on, and all goes back.
    fn leave(&mut self, now_ns: u64) {
        let keys: BTreeSet<CellKey> = self.cells.keys().copied().collect();
        for key in &keys {
            self.rebalance(*key, now_ns);
        }
        self.leaving = Some(keys);
    }

    /// A cell was looked at that has nothing more to give back, or cannot.
    pub(super) fn left(&mut self, key: &CellKey) {
        if let Some(leaving) = &mut self.leaving {
            leaving.remove(key);
        }
    }
}

impl Scene<'_> {
    /// What a node that stops gives back of a part with an end, of which it holds so much: all but what it has lent, and, of a sliding
    /// window, what was used.
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

    /// What a node that stops gives back of windows: of the one that is open what is `available`, and all of those of which it cannot have
    /// charged anything yet.
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
    /// Stops taking of pools, and begins to give back what is held of them. Nobody asks any more.
    pub fn leave_pools(&self, now: Now) {
        if let Some(leases) = &self.leases {
            lock(leases).leave(now.steady_ns);
        }
    }

    /// Makes no call any more: what is left of cells is written down now, and what a later call gave back would be given twice.
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
