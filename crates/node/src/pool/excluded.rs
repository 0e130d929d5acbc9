//! Excluded nodes of the region: nodes that are gone, by an operator's word. After a store has forgotten
//! something, its pools grant without waiting for such a node to tell what it holds.
//!
//! A node that is gone for good would otherwise keep every pool from granting after the next fail-over, since
//! its leases are not known. That would last until the node is back, or is no longer one of the region's
//! nodes.
//!
//! With the word, what the node may hold counts as spent
//! ([`PoolGroup::assert_without`](acequia_rights::pool::PoolGroup::assert_without)). Nothing is granted
//! before its leases are over, and nothing more of windows that begin before that. The word is true if no
//! process of the node calls another server of the pools than the other nodes do: such a process may run, and
//! spend what it holds. So the word has an end, and is forgotten with the process that it was given to.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::Now;
use acequia_rights::pool::group::Excluded;

use super::{LEASE_NS, Leases};
use crate::{Node, lock};

/// The longest time that a node is excluded: a day, in nanoseconds.
pub const EXCLUDED_NS_MAX: u64 = 24 * 3_600 * 1_000_000_000;

/// Why a node is not excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExcluded {
    /// This node shares its limits with no other.
    #[error("this node shares its limits with no other node of its region: there is nobody to exclude")]
    Alone,
    /// The node is this one.
    #[error("this is that node, and it runs: give the word to another node of the region")]
    Itself,
    /// The node is none of the region's.
    #[error("no node of that name is among `nodes` of the store: see the config")]
    Unknown,
    /// The time is too long.
    #[error(
        "a node is excluded for a day at most: take it out of `nodes` on every node if it does not come back"
    )]
    TooLong,
}

impl Leases {
    /// Excludes another node for this long; a time of 0 ends that.
    fn exclude(&mut self, node: u16, for_ns: u64, now: Now) -> Result<(), NotExcluded> {
        if node == self.home.node {
            return Err(NotExcluded::Itself);
        }
        if !self.home.nodes.contains(&node) && !self.nodes().contains(&node) {
            return Err(NotExcluded::Unknown);
        }
        if for_ns > EXCLUDED_NS_MAX {
            return Err(NotExcluded::TooLong);
        }
        self.excluded.remove(&node);
        if for_ns > 0 {
            self.excluded.insert(node, now.steady_ns.saturating_add(for_ns));
            self.groups.ask_unsettled_now(now.steady_ns);
        }
        Ok(())
    }

    /// The nodes that are excluded now, if any.
    pub(super) fn excluded_now(&mut self, now: Now) -> Option<Excluded> {
        self.excluded.retain(|_, until_ns| *until_ns > now.steady_ns);
        let nodes: BTreeSet<u16> = self.excluded.keys().copied().collect();
        let keep_us = self.adopted.clocks.keep_us(LEASE_NS);
        (!nodes.is_empty()).then_some(Excluded { nodes, keep_us })
    }
}

impl Node {
    /// Excludes another node of the region for `for_ns`, up to [`EXCLUDED_NS_MAX`], by an operator's word; 0
    /// ends that. An excluded node has told nothing, and is not waited for. The word is that no process of
    /// the node calls another server of the pools than this node does.
    ///
    /// # Errors
    /// There is no such node to exclude.
    pub fn exclude(&self, node: u16, for_ns: u64, now: Now) -> Result<(), NotExcluded> {
        let leases = self.leases.as_ref().ok_or(NotExcluded::Alone)?;
        lock(leases).exclude(node, for_ns, self.not_before(now))
    }

    /// The nodes that are excluded now, and for how long yet, in nanoseconds.
    pub fn excluded(&self, now: Now) -> BTreeMap<u16, u64> {
        let Some(leases) = &self.leases else { return BTreeMap::new() };
        let (leases, now) = (lock(leases), self.not_before(now));
        let left =
            leases.excluded.iter().map(|(node, until_ns)| (*node, until_ns.saturating_sub(now.steady_ns)));
        left.filter(|(_, left_ns)| *left_ns > 0).collect()
    }
}
