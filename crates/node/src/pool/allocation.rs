//! What becomes of pools when regions share limits by a new allocation.
//!
//! If a region shares its limits with others, its pools are part of one allocation: the parts of its nodes,
//! less what the nodes keep. A node that adopts another allocation takes up no more grants of the earlier
//! one. It keeps at most an even part of what each pool has now: every node may keep as much, whatever the
//! others do. The pools go on with all that they know. The first call makes them part of the newer
//! allocation, and from then on they grant nothing to a node that has not adopted it
//! ([`acequia_rights::pool::group`]).
//!
//! So a node conforms to an allocation as soon as it has adopted it, or, if it has lent more, when the loans
//! are back. What it holds beyond its part was given to nobody else, since no share is raised before all
//! conform.
//!
//! Leases on an open window stay: windows go by the allocations under which they began.

use std::collections::BTreeSet;

use acequia_limits::{Algorithm, Now, Part};
use acequia_rights::{
    MemberId, VersionId,
    mutation::{Mutation, mutated},
};

use super::{Admission, ClockPromise, LEASE_NS, Leases, RegionSetup};
use crate::{
    Catalogue, Node,
    cell::CellKey,
    cell::{
        account::{Account, CellContext, Withdrawn, charged},
        locked_cell::LockedCell,
    },
    journal::HeapCell,
    settings::LOAN_TTL_NS,
};

/// Numbers of generations are microseconds, rounded up, and a few above the last one heard of: allow this
/// much.
const ROUNDED_NS: u64 = 10_000;

/// What calls to pools go by: it changes with the catalogue.
#[derive(Debug)]
pub(super) struct CallBasis {
    /// The allocation among regions that the pools are part of: 0 for none.
    pub(super) allocation: u64,
    /// How many versions of the catalogue were adopted.
    pub(super) versions: u64,
    /// No call leaves before this batch is on the disk, with the version of the catalogue that calls go by.
    pub(super) after_batch: u64,
    /// The promise about clocks: of [`RegionSetup`] or of the catalogue, whichever is worse.
    pub(super) clocks: ClockPromise,
}

impl CallBasis {
    /// What calls go by at first.
    pub(super) const fn first(home: &RegionSetup) -> Self {
        Self { allocation: home.allocation, versions: 0, after_batch: 0, clocks: home.clocks() }
    }
}

impl Leases {
    /// Limits are shared by another allocation, or version of one, from now on. `catalogue` has its variants,
    /// and clocks are as good as it promises.
    pub(crate) fn bind(
        &mut self,
        node: &Node,
        catalogue: &Catalogue,
        version: VersionId,
        clocks: ClockPromise,
        now: Now,
    ) {
        // The worse of both counts, since all nodes of the region go by the same promise in their files.
        self.adopted.clocks = self.home.clocks().or_worse(clocks);
        self.adopted.versions += 1;
        if !leases_follow_allocations() {
            return;
        }
        let allocation = number_of(version);
        if self.adopted.allocation == allocation {
            node.store.places.set_who(self.who());
            return self.shrink_all(node, catalogue, now);
        }
        self.adopted.allocation = allocation;
        self.groups.begin_anew(now.steady_ns);
        self.show_all(node);
        for key in self.cells.keys() {
            self.cut(node, catalogue, key, now);
            self.cells.rebalance_at(key, now.steady_ns);
        }
    }

    /// No call leaves before this batch is on the disk.
    pub(crate) const fn call_after(&mut self, batch: u64) {
        self.adopted.after_batch = batch;
    }

    /// Follows which members among all regions' nodes may have parts of shared limits.
    pub(crate) fn follow(&mut self, members: &BTreeSet<MemberId>, now: Now) {
        if self.mates.follow(members, self.over_us(now)) {
            self.await_loans(now);
        }
    }

    /// A node that has gone by now took of no window that begins after this: wall clock, in microseconds.
    pub(super) fn over_us(&self, now: Now) -> u64 {
        (now.wall_ns / 1_000).saturating_add(self.adopted.clocks.keep_us(LEASE_NS))
    }

    /// Notes that a node of the region has left, and waits for its loans.
    pub(super) fn await_loans(&mut self, now: Now) {
        let loans_us = self.adopted.clocks.keep_us(LOAN_TTL_NS);
        self.loans_end_ns = now.steady_ns.saturating_add(loans_us.saturating_mul(1_000));
    }

    /// Whether loans of a departed node may still be held elsewhere, by nodes that have not heard of its
    /// departure. Pools know what the loans rest on. But a pool that has forgotten must not grant that to
    /// anybody until they are over.
    pub(super) fn awaits_loans(&self, now: Now) -> bool {
        now.steady_ns < self.loans_end_ns && !mutated(Mutation::LeaseForgetsLoansOfGone)
    }

    /// All others count this node from now on.
    pub(crate) fn is_counted_now(&mut self, now: Now) {
        if self.admission == Admission::Counted {
            return;
        }
        let ClockPromise { drift_ppm, .. } = self.adopted.clocks;
        let apart_ns = self.adopted.clocks.apart_ns();
        let drift_ns = apart_ns.saturating_mul(drift_ppm.into()).div_ceil(1_000_000);
        let calm_ns = now.steady_ns.saturating_add(apart_ns).saturating_add(drift_ns + ROUNDED_NS);
        let most_us = now.wall_ns.saturating_add(apart_ns).div_ceil(1_000);
        self.groups.count_from(most_us, calm_ns);
        self.admission = Admission::Counted;
    }

    /// After limits were lowered, gives back that much of what was taken of their pools.
    pub(crate) fn shrink_all(&mut self, node: &Node, catalogue: &Catalogue, now: Now) {
        for (key, lease) in self.cells.iter_mut() {
            LockedCell { node, catalogue, key, now, which: None }.at(false, |context, cell| {
                let HeapCell { account: Some(account), state, .. } = &mut *cell else { return };
                account.settle(state, context, now, &*node.sessions());
                account.keep_part(state, context, now.wall_ns, None, now);
                // Other nodes may still go by what was told before.
                if context.local.spares() {
                    lease.statements.untell(account.window());
                }
                cell.forget_held_if_variant_changed();
            });
        }
        for key in self.cells.keys() {
            self.cells.rebalance_at(key, now.steady_ns);
        }
    }

    /// Keeps at most an even part of a pool; nothing if the limit is not in force.
    fn cut(&mut self, node: &Node, catalogue: &Catalogue, key: CellKey, now: Now) {
        let nodes = self.most_nodes();
        let Some(lease) = self.cells.get_mut(key) else { return };
        let cut = LockedCell { node, catalogue, key, now, which: None }.at(false, |context, cell| {
            if let Algorithm::FixedWindow(window) = context.global {
                // A late answer may bring grants that an earlier version made for windows ahead.
                let is_ahead = |end_ns| window.begins(end_ns, context.salt) >= now.wall_ns;
                lease.statements.distrust(is_ahead);
            }
            // A limit that was removed may come back.
            let pool = context.local.pool(context.global, context.salt).filter(|_| context.in_force);
            let pool = pool.unwrap_or_default();
            let HeapCell { account: Some(account), state, .. } = &mut *cell else { return (pool, None) };
            account.settle(state, context, now, &*node.sessions());
            let even = Part { rate: (u64::from(pool.rate) / nodes) as u32, units: pool.units / nodes };
            match context.global {
                Algorithm::FixedWindow(_) => cut_windows(account, state, context, nodes, now),
                _ => account.cut_pool(state, context, even, now),
            }
            account.goes_by_pool(context);
            let most = account.most_of_pool();
            cell.forget_held_if_variant_changed();
            let later =
                context.local.pool_of(context.global, context.salt, u64::MAX).filter(|_| context.in_force);
            (Part { units: later.unwrap_or_default().units, ..pool }, most)
        });
        let (pool, most) = cut.unwrap_or_default();
        lease.goes_by(pool, most);
    }
}

/// Cuts the leases of windows that have not begun by this node's wall. Other regions count on nothing that
/// this one has of a window that has begun. Near its beginning a window may have been charged already.
fn cut_windows(account: &mut Account, state: &[u64], context: &CellContext<'_>, nodes: u64, now: Now) {
    let Algorithm::FixedWindow(window) = context.global else { return };
    let pool =
        |end_ns| context.local.pool_of(context.global, context.salt, end_ns).filter(|_| context.in_force);
    for Withdrawn { end_ns, withdrawn, returned } in account.withdrawn().to_vec() {
        let held = withdrawn - returned;
        if window.begins(end_ns, context.salt) > now.wall_ns {
            let even = pool(end_ns).unwrap_or_default().units / nodes;
            let keeps = even.max(charged(state, context, end_ns));
            account.return_to_pool(context, end_ns, held.saturating_sub(keeps), held);
        }
    }
}

/// Leases go by the allocation that the node has adopted.
fn leases_follow_allocations() -> bool {
    !mutated(Mutation::LeaseOutlivesAllocation)
}

/// The number of an allocation, different for each.
fn number_of(version: VersionId) -> u64 {
    // People make versions one by one.
    u64::from(version.epoch) << 40 | (version.number & ((1 << 40) - 1))
}
