//! What a node is told of its region: the other nodes, and the clocks of the pools' servers.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::LimitId;
use acequia_rights::{MemberId, pool::AGREEMENT};

use super::{ClockPromise, Heard};

/// A node's place among the nodes of its region. `nodes`, `guard_percent`, the promise about clocks and the
/// key of [`crate::Config`] are the same on every node. The caller sees to that: in the store it keeps nodes apart
/// that differ in one of them, and starts no node before the others have confirmed that they agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSetup {
    /// This node's number, among `nodes`.
    pub node: u16,
    /// The process number: counts up durably with each process of the node. At least 1.
    pub process_number: u32,
    /// All nodes of the region, by number: 1 to [`acequia_rights::pool::NODES_MAX`] of them, alike on every
    /// node. If there are `members`, alike on each that has started since the last was named.
    pub nodes: BTreeSet<u16>,
    /// The member id of each of these nodes among all regions, if limits are shared by a catalogue. A
    /// member's part is divided into a guard share and a part of the pool. A node counts while the catalogue
    /// has it. Empty if the region has every limit to itself.
    pub members: BTreeMap<u16, MemberId>,
    /// The allocation of the pools at first: 0, which is no allocation among regions, or [`AGREEMENT`].
    pub allocation: u64,
    /// How much of each limit the nodes together keep out of the pools, in percent: at most 100. Alike on
    /// every node. Units are whole. If the region has every limit to itself, at least one unit of 4 or more
    /// is kept unless the percentage is 0.
    pub guard_percent: u8,
    /// How far walls may be from true time, in nanoseconds.
    pub clock_error_ns: u64,
    /// How far steady clocks may drift, in parts per million.
    pub drift_ppm: u32,
    /// When this process began, by its wall clock, in microseconds: it does not know what earlier processes
    /// took of windows. 0 if no earlier process took any.
    pub begun_us: u64,
    /// When the disk began to know what all processes took of windows, by its wall clock, in microseconds.
    /// This is the start of the first process on an empty disk, or 0 if the region was new then. `None` if
    /// withdrawals are not written down ([`crate::Node::take_rows`]). It counts after
    /// [`crate::Node::restore_withdrawals`].
    pub knows_from_us: Option<u64>,
    /// Whether the node's disk was empty. If so on all nodes, a region that has never granted anything grants
    /// all from the beginning.
    pub is_new: bool,
    /// Limits whose journalled cells can be trusted after a crash ([`crate::Config::after_crash`] says
    /// when), because the last process stopped cleanly and knew them ([`crate::Node::known_limits`]). Cells
    /// of other limits may be older than the crash.
    pub rows_hold: BTreeSet<LimitId>,
    /// For each group the last generation that earlier processes heard of, from
    /// [`crate::Node::unkept_generations`]; empty for none.
    pub generations: Vec<Heard>,
}

impl RegionSetup {
    /// What is promised of the clocks of the region's nodes.
    pub(super) const fn clocks(&self) -> ClockPromise {
        ClockPromise { error_ns: self.clock_error_ns, drift_ppm: self.drift_ppm }
    }

    /// Whether other nodes must first count this one: they had shared limits before it joined.
    pub(super) fn must_be_counted(&self) -> bool {
        !self.members.is_empty()
            && self.allocation != AGREEMENT
            && self.generations.iter().all(|heard| heard.generation.number == 0)
    }
}

/// What the clock of a pool's server reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerClock {
    /// How far it is ahead of this node's wall, by the system's clock: nanoseconds.
    pub ahead_ns: i64,
    /// How wrong that may be: nanoseconds.
    pub unsure_ns: u64,
}

impl ServerClock {
    /// Whether it agrees with the wall, if both clocks are at most `error_ns` from true time.
    pub const fn agrees(&self, error_ns: u64) -> bool {
        self.ahead_ns.unsigned_abs() <= error_ns.saturating_mul(2).saturating_add(self.unsure_ns)
    }
}
