//! What becomes of pools when regions share limits anew.
//!
//! Where a region shares its limits with others, its pools are part of one distribution: what its nodes have in that, less what they
//! keep. When a node adopts another one it takes nothing more of what was granted under the earlier, and of what it holds it keeps no more
//! than an even part of what the pools have now, which is what it can keep whatever the others do. The pools go on with all that they
//! know: the first call makes them part of the newer distribution, and they grant nothing any more to who has not adopted that
//! ([`acequia_rights::pool::group`]). So a node conforms to a distribution as soon as it has adopted it; or, where it has lent more
//! than that, when loans are back: what it holds beyond its part nobody else has been given, since no share is raised before all
//! conform.
//!
//! Of a window that is open everything stays: windows go by the distributions under which they began.

use std::collections::BTreeSet;

use acequia_limits::{Algorithm, Now, Part};
use acequia_rights::{
    MemberId, VersionId,
    mutation::{Mutation, mutated},
    pool::keep_us,
};

use super::{LEASE_NS, Leases};
use crate::{
    Catalogue, Node,
    account::{Account, CellContext, Withdrawn, charged},
    journal::HeapCell,
    locked_cell::LockedCell,
    sharing::{CellKey, LOAN_TTL_NS},
};

/// Numbers of generations are microseconds, rounded up, and a few above what was heard of: that counts as so much.
const ROUNDED_NS: u64 = 10_000;

impl Leases {
    /// Limits are shared by a distribution from now on, of which `catalogue` has the numbers, and clocks are as good as is promised in it.
    pub(crate) fn bind(
        &mut self,
        node: &Node,
        catalogue: &Catalogue,
        (term, clock_error_ns, drift_ppm): (VersionId, u64, u32),
        now: Now,
    ) {
        // The worse of both counts: the region's nodes go by this node's file alike.
        self.clock_error_ns = self.home.clock_error_ns.max(clock_error_ns);
        self.drift_ppm = self.home.drift_ppm.max(drift_ppm);
        let terms = number_of(term);
        self.adopted += 1;
        if mutated(Mutation::LeaseOutlivesTerms) {
            return;
        }
        if self.terms == terms {
            node.places.set_who(self.who());
            return self.shrink_all(node, catalogue, now);
        }
        self.terms = terms;
        for (number, group) in (0..).zip(&mut self.groups) {
            group.begin_anew(now.steady_ns);
            self.unsettled.insert(number);
        }
        self.show_all(node);
        let keys: Vec<CellKey> = self.cells.keys().copied().collect();
        for key in keys {
            self.cut(node, catalogue, key, now);
            self.rebalance(key, now.steady_ns);
        }
    }

    /// No call leaves before this batch is on the disk.
    pub(crate) const fn call_after(&mut self, batch: u64) {
        self.after_batch = batch;
    }

    /// Of all regions' nodes these may have something of what is shared.
    pub(crate) fn follow(&mut self, members: &BTreeSet<MemberId>, now: Now) {
        if self.mates.follow(members, self.over_us(now)) {
            self.await_loans(now);
        }
    }

    /// Whoever has gone by now took of no window that begins later: wall clock, in microseconds.
    pub(super) fn over_us(&self, now: Now) -> u64 {
        let over_us = keep_us(LEASE_NS, self.drift_ppm, self.clock_error_ns);
        (now.wall_ns / 1_000).saturating_add(over_us)
    }

    /// A node of the region is gone, lately.
    pub(super) fn await_loans(&mut self, now: Now) {
        let loans_us = keep_us(LOAN_TTL_NS, self.drift_ppm, self.clock_error_ns);
        self.loans_end_ns = now.steady_ns.saturating_add(loans_us.saturating_mul(1_000));
    }

    /// Whether a node of the region has gone whose loans may be held elsewhere yet, by who has not heard of it. Pools know what they
    /// rest on; but those that have forgotten shall not grant that to anybody before.
    pub(super) fn awaits_loans(&self, now: Now) -> bool {
        now.steady_ns < self.loans_end_ns && !mutated(Mutation::LeaseForgetsLoansOfGone)
    }

    /// All others count this node from now on.
    pub(crate) fn is_counted_now(&mut self, now: Now) {
        if !self.is_counted {
            let apart_ns = self.clock_error_ns.saturating_mul(2);
            let drift_ns = apart_ns.saturating_mul(self.drift_ppm.into()).div_ceil(1_000_000);
            let calm_ns = now.steady_ns.saturating_add(apart_ns).saturating_add(drift_ns + ROUNDED_NS);
            let most_us = now.wall_ns.saturating_add(apart_ns).div_ceil(1_000);
            self.groups.iter_mut().for_each(|group| group.counts_from(most_us, calm_ns));
            self.is_counted = true;
        }
    }

    /// Where limits were lowered, keeps as much less of what was taken of their pools.
    pub(crate) fn shrink_all(&mut self, node: &Node, catalogue: &Catalogue, now: Now) {
        for (key, lease) in &mut self.cells {
            LockedCell { node, catalogue, key: *key, now, which: None }.at(false, |context, cell| {
                let HeapCell { account: Some(account), words, .. } = &mut *cell else { return };
                account.settle(words, context, now, &*node.sessions());
                account.keep_part(words, context, (now.wall_ns, None), now);
                // Others may go by what was said of it before.
                if context.local.spares() {
                    lease.untell(account.window());
                }
                cell.forget_held_if_renumbered();
            });
        }
        for key in self.cells.keys().copied().collect::<Vec<_>>() {
            self.rebalance(key, now.steady_ns);
        }
    }

    /// Keeps an even part of a pool, at most; nothing of one whose limit is not in force.
    fn cut(&mut self, node: &Node, catalogue: &Catalogue, key: CellKey, now: Now) {
        let nodes = self.most_nodes();
        let Some(lease) = self.cells.get_mut(&key) else { return };
        let cut = LockedCell { node, catalogue, key, now, which: None }.at(false, |context, cell| {
            if let Algorithm::FixedWindow(window) = context.global {
                // What an earlier version granted of windows ahead, and was not heard of, may be heard of yet.
                lease.distrust(|end_ns| window.begins(end_ns, context.salt) >= now.wall_ns);
            }
            // A limit that was removed may come back.
            let pool = context.local.pool(context.global, context.salt).filter(|_| context.in_force);
            let pool = pool.unwrap_or_default();
            let HeapCell { account: Some(account), words, .. } = &mut *cell else { return (pool, None) };
            account.settle(words, context, now, &*node.sessions());
            let even = Part { rate: (u64::from(pool.rate) / nodes) as u32, units: pool.units / nodes };
            match context.global {
                Algorithm::FixedWindow(_) => cut_windows((account, words), context, nodes, now),
                _ => account.cut_pool(words, context, even, now),
            }
            account.goes_by_pool(context);
            let most = account.most_of_pool();
            cell.forget_held_if_renumbered();
            let later =
                context.local.pool_of(context.global, context.salt, u64::MAX).filter(|_| context.in_force);
            (Part { units: later.unwrap_or_default().units, ..pool }, most)
        });
        let (pool, most) = cut.unwrap_or_default();
        lease.goes_by(pool, most);
    }
}

/// Of windows that have not begun, by this node's wall: no other region counts on what it has of one that has. In the margin of its
/// beginning one may have been charged already.
fn cut_windows((account, words): (&mut Account, &[u64]), context: &CellContext<'_>, nodes: u64, now: Now) {
    let Algorithm::FixedWindow(window) = context.global else { return };
    let pool =
        |end_ns| context.local.pool_of(context.global, context.salt, end_ns).filter(|_| context.in_force);
    for Withdrawn { end_ns, withdrawn: taken, returned } in account.withdrawn().to_vec() {
        let held = taken - returned;
        if window.begins(end_ns, context.salt) > now.wall_ns {
            let even = pool(end_ns).unwrap_or_default().units / nodes;
            let keeps = even.max(charged(words, context, end_ns));
            account.return_to_pool(context, end_ns, held.saturating_sub(keeps), held);
        }
    }
}

/// A number for a distribution: another one for each.
fn number_of(term: VersionId) -> u64 {
    // Versions are made one by one, by people.
    u64::from(term.epoch) << 40 | (term.number & ((1 << 40) - 1))
}
