//! How a region shares its limits with others: what it receives, what it decides and what it sends.
//!
//! **Nothing in here can over-admit.** The account of a cell (`account.rs`) bounds what the cell may spend,
//! by the rules of `acequia-rights`. This module only calls those rules, at times and in amounts of its own
//! choice, and carries their messages. It knows peers, frames and demand. It knows no socket and no clock:
//! [`Node::handle`] takes a frame that came, [`Node::tick`] lets time pass, and [`Node::poll`] gives the next
//! frame to send.

mod cell;
mod cells;
mod demand;
mod exchange;
mod forward;
mod lending;
mod membership;
mod names;
mod outbox;
mod peer;
pub(crate) mod policy;
mod process;
mod rebalance;
mod receive;
mod resync;
pub(crate) mod seal;
mod seen;
mod shares;
mod slots;
mod target;
mod timekeeper;
mod usage;
pub mod wire;

use std::collections::BTreeMap;

use acequia_limits::{Now, Reason};
use acequia_rights::{Incarnation, MemberId, Session, VersionId, Versions};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use self::{
    cells::ActiveCells,
    exchange::VersionExchange,
    lending::Lending,
    membership::AckWait,
    outbox::Topic,
    peer::Peer,
    process::OwnProcess,
    shares::{Doubt, NodeShares},
    usage::ChargeTotals,
    wire::{FrameEntry, FrameHeader, Garbled},
};
use crate::{Node, settings::SETTINGS};

pub(crate) use crate::cell::CellKey;
pub use crate::settings::LOAN_TTL_NS;
pub(crate) use cell::rebalance_after_ns;
pub(crate) use demand::Demand;
pub use membership::{AdoptFault, Membership, Ownership, limits_from_bytes, limits_to_bytes};
pub(crate) use policy::units_in;
pub use seal::{Seal, SealFault, Seals, SignerRole};
pub use timekeeper::Wall;
pub(crate) use timekeeper::{Carried, ClockReading, Timekeeper, WallBounds};

/// The slot of a limit that is unknown here.
const NO_SLOT: u32 = 0;

/// A node's place among the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// The node's incarnation.
    pub incarnation: Incarnation,
    /// How long the node's loans last: a few heartbeats. So an isolated region soon falls back on its own
    /// part, and what it lent soon comes back.
    pub loan_ttl_ns: u64,
}

/// Why a frame was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// This node shares nothing.
    #[error("this node has no regions")]
    Alone,
    /// The frame cannot be read.
    #[error(transparent)]
    Garbled(#[from] Garbled),
    /// The frame names another sender than its connection proves.
    #[error("a frame of {said:?} from region {region:?}")]
    Impostor {
        /// The member that the connection's certificate names.
        region: MemberId,
        /// The sender that the frame names.
        said: Incarnation,
    },
    /// The sender was evicted, or a newer incarnation took its place.
    #[error("{0:?} is closed: it must join again with a new incarnation")]
    Closed(Incarnation),
    /// The catalogue does not name the sender. It names another incarnation, which was heard just now.
    #[error("{0:?} is not in the catalogue, and another writer of its region is, and was heard just now")]
    Unnamed(Incarnation),
    /// The frame comes from an earlier process or incarnation of the sender.
    #[error("a frame of an earlier process of {0:?}")]
    Late(Incarnation),
}

/// Counts of frames, entries and loans since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames that came, the refused ones included.
    pub frames_in: u64,
    /// Frames that were refused whole.
    pub frames_refused: u64,
    /// Entries that were refused: a rule forbade them, or they came too late.
    pub entries_refused: u64,
    /// Versions and acknowledgements that were refused because no valid seal proved their makers.
    pub seals_refused: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Entries sent.
    pub entries_out: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Loans given.
    pub lent: u64,
    /// Loans taken up.
    pub borrowed: u64,
    /// Transfers of rights in windows that this node made.
    pub given: u64,
    /// Peers' digests that differed from what this node knows: the peer sends the difference again.
    pub resyncs: u64,
    /// The most loans that one cell had at once, lent and held together.
    pub loans_max: u64,
}

/// A node's dealings with other regions.
#[derive(Debug)]
pub(crate) struct Sharing {
    process: OwnProcess,
    versions: Versions,
    exchange: VersionExchange,
    shares: NodeShares,
    ack_wait: AckWait,
    time: Timekeeper,
    doubt: Doubt,
    peers: BTreeMap<MemberId, Peer>,
    /// The members that could be lent to and asked at the last tick.
    partners: SmallVec<[MemberId; 8]>,
    cells: ActiveCells,
    /// The variant of each cell, as reported by peers that have the same version.
    variants: BTreeMap<CellKey, u16>,
    lending: Lending,
    usage: ChargeTotals,
    traffic: Traffic,
}

/// Facts that a node remembers about itself across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeMemory {
    /// The process number: how often the node was started.
    pub(crate) process_number: u32,
    /// Loan numbers up to this one are reserved.
    pub(crate) loans: u64,
}

impl NodeMemory {
    /// The memory of the next process; `None` if the numbers are higher than any node can count.
    pub(crate) fn next_start(self) -> Option<Self> {
        let process_number = self.process_number.checked_add(1)?;
        (self.loans < u64::MAX / 2).then_some(Self { process_number, ..self })
    }
}

impl Sharing {
    pub(crate) fn new(home: Home, versions: Versions, memory: NodeMemory, born_in: u64) -> Self {
        let stored = versions.version().map_or_else(VersionId::default, |version| version.version_id);
        Self {
            process: OwnProcess::new(home, memory.process_number, born_in),
            versions,
            exchange: VersionExchange::new(stored),
            shares: NodeShares::default(),
            ack_wait: AckWait::default(),
            time: Timekeeper::default(),
            doubt: Doubt::default(),
            peers: BTreeMap::new(),
            partners: SmallVec::new(),
            cells: ActiveCells::default(),
            variants: BTreeMap::new(),
            lending: Lending::new(memory.loans),
            usage: ChargeTotals::default(),
            traffic: Traffic::default(),
        }
    }

    fn me(&self) -> Incarnation {
        self.process.home.incarnation
    }

    /// Why this node owns nothing, if it does not.
    pub(crate) fn owns_nothing(&self) -> Option<Reason> {
        if self.process.restored_disk {
            Some(Reason::RestoredDisk)
        } else if !self.versions.owns(self.me()) {
            Some(Reason::NoCatalogue)
        } else {
            None
        }
    }

    // Time.

    /// Lets time pass: rebalances cells that are due or that called, and queues what there is to send.
    pub(crate) fn tick(&mut self, node: &Node, raw: Now, calls: Vec<CellKey>) {
        self.note_stored(node, raw);
        let now = self.keep_wall(node, raw);
        if !node.is_out_of_variants() {
            self.process.heartbeats.make(now.steady_ns);
            self.keep_shares(node, now);
        }
        if node.is_out_of_variants() {
            return;
        }
        let catalogue = node.catalogue();
        for peer in self.peers.values_mut() {
            peer.outbox.expire(now.steady_ns.saturating_sub(peer.patience_ns()));
        }
        if !self.time.is_believed() {
            // The wall dates nearly everything that could move, so calls only wake their cells.
            calls.into_iter().for_each(|key| self.cells.wake_for_call(key, now.steady_ns));
            return;
        }
        self.freeze_backed(node, &catalogue, now);
        self.renew(node, now);
        self.note_partners(node, now);
        for key in calls {
            self.cells.wake_for_call(key, now.steady_ns);
        }
        for _ in 0..SETTINGS.sharing.rebalances_max {
            let Some(slot) = self.cells.next(now.steady_ns) else { break };
            self.rebalance(node, &catalogue, slot, now);
        }
        self.keep_forwards(node, now);
        self.acknowledge(node, now);
        self.resync(node, &catalogue, now);
        self.count_usage(node, &catalogue, now);
    }

    /// Compares the clocks, and leaves windows behind. Returns the time by the wall that the node goes by.
    fn keep_wall(&mut self, node: &Node, raw: Now) -> Now {
        // Windows are left behind by the wall that requests used until now.
        if self.time.is_believed() {
            node.leave_behind(node.not_before(raw));
        }
        self.keep_time(node, raw);
        self.keep_doubt(raw);
        node.set_wall(&self.time, self.clock_error_ns(), self.drift_ppm());
        if self.time.is_believed() && !node.is_wall_believed() {
            node.believe_wall(self.time.correction_ns(), raw);
            self.shares.forget_left();
        }
        let now = node.not_before(raw);
        if self.time.is_believed() {
            node.leave_behind(now);
        }
        now
    }

    /// Notes how far away the reachable members are, and how many members there are.
    fn note_partners(&mut self, node: &Node, now: Now) {
        let regions = self.versions.version().map_or(0, |version| version.members.len());
        let partners = || self.peers.values().filter(|peer| self.is_partner(peer, now));
        let round_ns = partners().map(Peer::round_ns).max();
        let partners: SmallVec<[MemberId; 8]> = partners().map(|peer| peer.incarnation.member).collect();
        let met = partners.iter().any(|region| !self.partners.contains(region));
        self.partners = partners;
        node.remote_supply.see(regions, round_ns, met.then_some(now.steady_ns));
    }

    fn keep_time(&mut self, node: &Node, now: Now) {
        let (error_ns, drift_ppm) = match self.versions.version() {
            Some(version) => (version.clock_error_ns, version.drift_ppm),
            None => node.expected_of_clocks(),
        };
        let offered = self.exchange.offered.as_ref().map(|offered| &offered.version);
        let version = self.versions.version().or(offered);
        let has_peers = version.map_or(!self.peers.is_empty(), |version| version.members.len() > 1);
        let journal_ns = node.clock.journal_wall_ns();
        let is_urgent = !self.time.is_believed();
        let mut reached = 0;
        for peer in
            self.peers.values_mut().filter(|peer| peer.is_reached(now.steady_ns, SETTINGS.sharing.reach_ns))
        {
            reached += 1;
            if peer.is_to_be_pinged(now.steady_ns, is_urgent) {
                peer.outbox.tell(Topic::Ping, FrameEntry::Ping, 0);
            }
        }
        let bounds =
            timekeeper::WallBounds { error_ns, drift_ppm, has_peers, is_alone: reached == 0, journal_ns };
        let reached =
            self.peers.values().filter(|peer| peer.is_reached(now.steady_ns, SETTINGS.sharing.reach_ns));
        let is_sure = |reading: &timekeeper::ClockReading| {
            is_urgent || reading.unsure_ns <= SETTINGS.clocks.unsure_ns_max
        };
        let readings: SmallVec<[timekeeper::ClockReading; 8]> =
            reached.filter_map(|peer| peer.reading(now, drift_ppm)).filter(is_sure).collect();
        self.time.observe(now.steady_ns, now.wall_ns, &bounds, &readings);
    }

    // Frames to send.

    /// Notes a new connection to a member.
    pub(crate) fn reconnected(&mut self, region: MemberId, now: Now) {
        if let Some(peer) = self.peers.get_mut(&region) {
            peer.reconnect(now.steady_ns);
        }
    }

    /// The next frame for a peer that `may_send` allows.
    pub(crate) fn poll(
        &mut self,
        node: &Node,
        now: Now,
        may_send: impl Fn(MemberId) -> bool,
    ) -> Option<(MemberId, Vec<u8>)> {
        let committed = node.progress().committed;
        if committed < self.process.born_in {
            return None;
        }
        self.process.heartbeats.make_before_frame(now.steady_ns);
        let is_over = |at_ns| now.steady_ns >= at_ns;
        if node.forwards.is_due() || node.forwards.answer_ns().is_some_and(is_over) {
            self.serve_forwards(node, node.not_before(now));
        }
        let is_due = |peer: &Peer| peer.is_frame_due(committed, now.steady_ns);
        let mut allowed = self.peers.iter().filter(|(region, _)| may_send(**region));
        let region = allowed.find(|(_, peer)| is_due(peer)).map(|(region, _)| *region)?;
        Some((region, self.next_frame(node, region, committed, now)?))
    }

    /// The next frame for a peer.
    fn next_frame(&mut self, node: &Node, region: MemberId, committed: u64, now: Now) -> Option<Vec<u8>> {
        let catalogue = node.catalogue();
        let (incarnation, heartbeat) = (self.me(), self.process.heartbeats.newest);
        let peer = self.peers.get_mut(&region)?;
        let header = FrameHeader {
            incarnation,
            process_number: heartbeat.process_number,
            number: peer.outbox.number(),
            received: peer.received,
            heartbeat: heartbeat.number,
            wall_ns: now.wall_ns,
            corrected_ns: self.time.correction_ns(),
            is_believed: self.time.is_believed(),
            loan_max: node.sessions().get(&peer.incarnation).map_or(0, Session::accepted_max),
            version_id: self.exchange.stored,
        };
        let cells = &self.cells;
        let name = |key: CellKey| {
            let variant = cells.get(key).and_then(|active_cell| active_cell.variant.told());
            catalogue.id(key.slot).map(|limit| (limit, variant))
        };
        let forward = |number| node.forwards.send(number, now.steady_ns);
        let bytes = peer.outbox.fill(&header, committed, now.steady_ns, name, forward);
        peer.note_sent(now.steady_ns);
        self.traffic.frames_out += 1;
        self.traffic.bytes_out += bytes.len() as u64;
        Some(bytes)
    }

    /// Counts of what was received, refused and sent.
    pub(crate) fn traffic(&self) -> Traffic {
        let entries_out = self.peers.values().map(|peer| peer.outbox.entries).sum();
        Traffic { entries_out, ..self.traffic }
    }
}
