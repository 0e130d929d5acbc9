//! The shares of limits that this node goes by: what they are made of, and when they are made anew.

use std::{collections::BTreeMap, sync::Arc};

use acequia_limits::{Now, window::SET_BACK_NS};
use acequia_rights::{
    Split, VersionId,
    mutation::{Mutation, mutated},
    versions::Allocation,
};

use super::{
    Sharing,
    membership::{keep_mates, lasts},
};
use crate::{
    Node,
    catalogue::{Allocations, OwnAllocation},
    lock,
    settings::SETTINGS,
};

/// The shares that this node goes by.
#[derive(Debug, Default)]
pub(super) struct NodeShares {
    /// The split of each allocation, kept for as long as the allocation counts.
    splits: BTreeMap<VersionId, Arc<Split>>,
    /// What the present shares were made of, if they still count.
    pub(super) made_of: Option<ShareInputs>,
    /// While shares are being distributed anew, they are not made again before this time: steady clock.
    pub(super) due_ns: u64,
    /// Windows that ended by this time were left for good, whatever the margin becomes: wall clock,
    /// nanoseconds.
    left_ns: u64,
}

/// What shares are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShareInputs {
    /// The revision of the versions.
    revision: u64,
    /// The clock's margin.
    margin_ns: u64,
    /// Whether the disk is an old one.
    restored_disk: bool,
}

/// How far the wall clock may be off beyond the catalogue's clock error. This doubt grows in steps, and falls
/// at most once in `SETTINGS.clocks.doubt_ns`: every change makes new variants of every limit.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    ns: u64,
    /// Until when the doubt stays at least: steady clock.
    until_ns: u64,
}

impl NodeShares {
    /// Forgets what was made under a wall that was not believed: the windows that it left do not count as
    /// left.
    pub(super) fn forget_left(&mut self) {
        (self.left_ns, self.made_of) = (0, None);
    }
}

impl Doubt {
    /// Goes by how unsure the clock is now.
    fn follow(&mut self, unsure_ns: u64, error_ns: u64, now_ns: u64) {
        let doubt_ns = match unsure_ns {
            0 => 0,
            unsure_ns => unsure_ns.max(error_ns).clamp(1, 1 << 62).next_power_of_two(),
        };
        if doubt_ns > self.ns || now_ns >= self.until_ns {
            if doubt_ns != self.ns {
                self.until_ns = now_ns.saturating_add(SETTINGS.clocks.doubt_ns);
            }
            self.ns = doubt_ns;
        }
    }
}

impl Sharing {
    /// Notes which windows this node has left for good: those that ended before its wall, less the margin of
    /// the last shares. A process that begins knows of no window that it has left.
    fn leave(&mut self, node: &Node) {
        if let Some(ShareInputs { margin_ns, .. }) = self.shares.made_of {
            let left_ns = node.wall_high_ns().saturating_sub(margin_ns);
            // If the wall was set back, `Node::left` knows which windows it left.
            let was_set_back = left_ns.saturating_add(SET_BACK_NS) < self.shares.left_ns;
            self.shares.left_ns = if was_set_back { left_ns } else { self.shares.left_ns.max(left_ns) };
        }
    }

    /// How this region shares limits now. Cells go by the new margin afterwards, so the windows left under
    /// the last margin are noted first.
    pub(super) fn allocations(&mut self, node: &Node) -> Allocations {
        self.leave(node);
        let chain = self.versions.allocations();
        let splits = &mut self.shares.splits;
        splits.retain(|version_id, _| chain.iter().any(|allocation| allocation.version_id == *version_id));
        let me = self.process.home.incarnation;
        let owns = self.versions.owns(me) && !self.process.restored_disk;
        let counts = |allocation: &Allocation| counts_on(owns && allocation.names(me));
        let mut kept = |version_id: VersionId, split: &Split| {
            Arc::clone(splits.entry(version_id).or_insert_with(|| Arc::new(split.clone())))
        };
        let allocations = chain.iter().map(|allocation| OwnAllocation {
            split: allocation
                .split
                .as_ref()
                .filter(|_| counts(allocation))
                .map(|split| kept(allocation.version_id, split)),
            until: allocation.until,
            is_before: owns && !allocation.names(me),
            spared: self.versions.spared(allocation),
        });
        let allocations = allocations.collect();
        let rates = chain.iter().filter_map(|allocation| allocation.split.as_ref()).map(Split::least_rate);
        Allocations {
            region: me.member,
            allocations,
            guard: node.setup.guard.clone(),
            drift_ppm: self.drift_ppm(),
            margin_ns: self.margin_ns(),
            left_ns: self.shares.left_ns,
            least_rate: rates.min().unwrap_or(1),
        }
    }

    /// How far this node's wall may be from another's: windows keep this much time from their edges.
    pub(super) fn margin_ns(&self) -> u64 {
        if mutated(Mutation::NoMargin) {
            return 0;
        }
        self.clock_error_ns().saturating_add(self.doubt.ns).min(acequia_limits::MARGIN_NS_MAX)
    }

    /// Updates how far the wall clock may be off beyond the error of the catalogue.
    pub(super) fn keep_doubt(&mut self, now: Now) {
        let error_ns = self.clock_error_ns();
        self.doubt.follow(self.time.unsure_ns(), error_ns, now.steady_ns);
    }

    /// What shares would be made of now.
    pub(super) fn share_inputs(&self) -> ShareInputs {
        ShareInputs {
            revision: self.versions.revision(),
            margin_ns: self.margin_ns(),
            restored_disk: self.process.restored_disk,
        }
    }

    /// Makes shares anew if time, an acknowledgement or a doubtful clock has changed them.
    pub(super) fn keep_shares(&mut self, node: &Node, now: Now) {
        node.set_owns_nothing(self.owns_nothing());
        let is_due = self.versions.allocations().len() > 1 && now.steady_ns >= self.shares.due_ns;
        if self.shares.made_of == Some(self.share_inputs()) && !is_due {
            return;
        }
        self.shares.due_ns = now.steady_ns + SETTINGS.clocks.reshare_ns;
        if self.time.is_believed() {
            self.versions.settle(lasts(node), now);
        }
        let allocations = self.allocations(node);
        self.shares.made_of = Some(self.share_inputs());
        match node.reshare(allocations, now) {
            Ok(true) => self.settle_accounts(node, &[], now),
            Ok(false) => {}
            Err(_) => return node.stop_for_want_of_variants(),
        }
        if self.exchange.kept < Some(self.versions.revision()) {
            self.keep(node);
        }
        if let Some(leases) = &node.leases {
            self.follow(&mut lock(leases), now);
            keep_mates(node);
        }
    }
}

/// A node counts on its share of an allocation only if it owns its shares, and the allocation names it.
fn counts_on(is_owner: bool) -> bool {
    is_owner || mutated(Mutation::OwnsNothingIgnored)
}
