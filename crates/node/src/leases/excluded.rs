//! Nodes of the region that are gone, on an operator's word: after a store has forgotten something, its pools grant without their having
//! told what they hold.
//!
//! A node that is gone for good would otherwise keep every pool from granting after the next fail-over, until it is back or no longer
//! among the region's nodes, since what it holds is not known. With the word, what it may hold counts as spent
//! ([`Group::assert_without`](acequia_rights::pool::Group::assert_without)): nothing is granted before its leases are over, and nothing
//! more of windows that begin before that. The word is true when no process of that node calls another server of the pools than the
//! others do: it may run, and spend what it holds. So it has an end, and is forgotten with the process that it was given to.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::Now;
use acequia_rights::pool::{group::Absent, keep_us};

use super::{LEASE_NS, Leases};
use crate::{Node, lock};

/// A word counts for a day at most, in nanoseconds.
pub const ABSENT_NS_MAX: u64 = 24 * 3_600 * 1_000_000_000;

/// Why nobody is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLeftOut {
    /// It shares its limits with nobody.
    #[error("this node shares its limits with no other node of its region: there is nobody to leave out")]
    Alone,
    /// It is the node itself.
    #[error("this is that node, and it runs: give the word to another node of the region")]
    Itself,
    /// It is none of the region's.
    #[error("no node of that name is among `nodes` of the store: see the config")]
    Unknown,
    /// For too long.
    #[error(
        "a node is left out for a day at most: take it out of `nodes` on every node if it does not come back"
    )]
    TooLong,
}

impl Leases {
    /// Another node is left out for so long; not any more where that is no time.
    fn leave_out(&mut self, node: u16, for_ns: u64, now: Now) -> Result<(), NotLeftOut> {
        if node == self.home.node {
            return Err(NotLeftOut::Itself);
        }
        if !self.home.nodes.contains(&node) && !self.nodes().contains(&node) {
            return Err(NotLeftOut::Unknown);
        }
        if for_ns > ABSENT_NS_MAX {
            return Err(NotLeftOut::TooLong);
        }
        self.left_out.remove(&node);
        if for_ns > 0 {
            self.left_out.insert(node, now.steady_ns.saturating_add(for_ns));
            for number in &self.unsettled {
                self.groups[usize::from(*number)].ask_now(now.steady_ns);
            }
        }
        Ok(())
    }

    /// Who is left out now, if anybody is.
    pub(super) fn absent(&mut self, now: Now) -> Option<Absent> {
        self.left_out.retain(|_, until_ns| *until_ns > now.steady_ns);
        let nodes: BTreeSet<u16> = self.left_out.keys().copied().collect();
        let keep_us = keep_us(LEASE_NS, self.drift_ppm, self.clock_error_ns);
        (!nodes.is_empty()).then_some(Absent { nodes, keep_us })
    }
}

impl Node {
    /// On the word of an operator another node of the region is left out for `for_ns`, up to [`ABSENT_NS_MAX`], or not any more where
    /// that is 0: it has told nothing, and is not waited for. The word is that no process of that node calls another server of the pools
    /// than this one does.
    ///
    /// # Errors
    /// There is no such node to leave out.
    pub fn leave_out(&self, node: u16, for_ns: u64, now: Now) -> Result<(), NotLeftOut> {
        let leases = self.leases.as_ref().ok_or(NotLeftOut::Alone)?;
        lock(leases).leave_out(node, for_ns, self.not_before(now))
    }

    /// Who is left out now, and for how long yet, in nanoseconds.
    pub fn left_out(&self, now: Now) -> BTreeMap<u16, u64> {
        let Some(leases) = &self.leases else { return BTreeMap::new() };
        let (leases, now) = (lock(leases), self.not_before(now));
        let left =
            leases.left_out.iter().map(|(node, until_ns)| (*node, until_ns.saturating_sub(now.steady_ns)));
        left.filter(|(_, left_ns)| *left_ns > 0).collect()
    }
}
