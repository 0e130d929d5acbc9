//! How a region shares its limits with others: what it receives, what it decides and what it sends.
//!
//! **Nothing in here can over-admit.** The account of a cell (`account.rs`) bounds what the cell may spend,
//! by the rules of `acequia-rights`. This module only calls those rules, at times and in amounts of its own
//! choice, and carries their messages. It knows peers, frames and demand. It knows no socket and no clock:
//! [`Node::handle`] takes a frame that came, [`Node::tick`] lets time pass, and [`Node::poll`] gives the next
//! frame to send.

mod cell;
mod demand;
mod forward;
mod membership;
mod names;
mod outbox;
mod peer;
pub(crate) mod policy;
mod rebalance;
mod receive;
mod resync;
pub(crate) mod seal;
mod seen;
mod slots;
mod target;
mod timekeeper;
mod usage;
pub mod wire;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::atomic::Ordering,
};

use acequia_limits::{LimitId, Now, Reason};
use acequia_rights::{
    Incarnation, MemberId, SentHeartbeats, Session, Version, VersionId, Versions,
    mutation::{Mutation, mutated},
    session::Heartbeat,
};
use crdts::PNCounter;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use self::{
    cell::ActiveCell,
    outbox::Topic,
    peer::Peer,
    slots::Slots,
    wire::{Entry, Garbled, Header},
};
use crate::{Catalogue, Node, cell::locked_cell::LockedCell, journal::HeapCell};

pub(crate) use crate::cell::CellKey;
pub(crate) use cell::rebalance_after_ns;
pub(crate) use demand::Demand;
pub use membership::{AdoptFault, Membership, Ownership, limits_from_bytes, limits_to_bytes};
pub(crate) use policy::units_in;
pub use seal::{Role, Seal, SealFault, Seals};
pub use timekeeper::Wall;
pub(crate) use timekeeper::{Bounds, Carried, Reading, Timekeeper};

/// How long a loan lasts after the heartbeat that it is dated from, unless a config says otherwise.
pub const LOAN_TTL_NS: u64 = 3_000_000_000;
/// Heartbeats are at most this far apart.
const PULSE_NS: u64 = 400_000_000;
/// A peer that was not heard for this long is not asked, and gets no loans.
const REACH_NS: u64 = 1_500_000_000;
/// The most active cells: beyond them, cells keep to their own part.
const WARM_MAX: usize = 4 << 20;
/// The most rebalances in one tick.
const REBALANCES_MAX: usize = 16_384;
/// Loan numbers that are reserved on disk at once: a restart skips up to this many.
const NUMBERS_AHEAD: u64 = 4_096;
/// The slot of a limit that is unknown here.
const NO_SLOT: u32 = 0;
/// The least time between two rebalances of a cell that calls.
const CALLS_NS: u64 = 5_000_000;
/// A reading of a peer's clock that may be off by more than this is ignored, since its frame may have waited
/// for long. While the node's own wall is not believed, every reading counts.
const UNSURE_NS_MAX: u64 = 500_000_000;
/// How often usage is counted and sent.
const USAGE_NS: u64 = 1_000_000_000;

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
    home: Home,
    beats: SentHeartbeats,
    heartbeat: Heartbeat,
    beat_ns: u64,
    versions: Versions,
    /// The split of each allocation, kept for as long as the allocation counts.
    splits: BTreeMap<acequia_rights::VersionId, std::sync::Arc<acequia_rights::Split>>,
    /// Cells that have lent more than their own part now covers.
    over_lent: BTreeSet<CellKey>,
    /// How far the wall clock may be off beyond the catalogue's clock error, and until when this doubt stays
    /// at least: steady clock.
    doubt_ns: u64,
    doubt_until_ns: u64,
    /// The latest time that the wall clock ever showed.
    wall_high_ns: u64,
    /// Windows that ended by this time were left for good, whatever the margin becomes: wall clock,
    /// nanoseconds.
    left_ns: u64,
    /// Ticks since a version was adopted.
    ticks_since_adopted: u32,
    /// Before this time nothing is acknowledged, since a crash forgot what was spent: steady clock.
    forgotten_until_ns: u64,
    /// Revisions of the versions that wait for the disk.
    storing: Vec<Storing>,
    /// The newest revision that this process has queued for the disk.
    kept: Option<u64>,
    /// The newest version that is on the disk: frames name no later one.
    stored: VersionId,
    /// A version that a peer sent and that this node has not adopted yet.
    offered: Option<(Version, seal::Proof)>,
    /// The seals of versions and acknowledgements that are passed on.
    seals: seal::SealStore,
    peers: BTreeMap<MemberId, Peer>,
    /// The members that could be lent to and asked at the last tick.
    partners: SmallVec<[MemberId; 8]>,
    /// The active cells. A slot holds `None` only while its cell is rebalanced.
    cells: Slots<Option<Box<ActiveCell>>>,
    /// The variant of each cell, as reported by peers that have the same version.
    told: BTreeMap<CellKey, u16>,
    /// Whether the present rebalance wants the region's pool to be asked.
    wants_pool: bool,
    /// Whether the present rebalance has something to report to the pool, once.
    says: bool,
    /// Cells whose loans rest on what is held of the region's pool, since more is lent than stands. The value
    /// says until when such loans may be renewed: steady clock.
    backed: BTreeMap<CellKey, u64>,
    /// Entries of the present rebalance, to be sent once its changes are on disk.
    tells: Vec<(MemberId, Topic, Entry)>,
    /// When to rebalance each cell (steady clock), and the cell's slot.
    rebalances: BTreeSet<(u64, u32)>,
    /// Cells to rebalance at the next tick, each once: `ActiveCell::is_called` remembers it.
    called: VecDeque<CellKey>,
    loans: LoanNumbers,
    time: Timekeeper,
    /// The inputs of the present shares: the revision of the versions, the clock's margin, and whether the
    /// disk is an old one.
    shared: Option<(u64, u64, bool)>,
    reshare_ns: u64,
    /// Whether the disk is an old one: then the node owns nothing until it begins anew.
    restored_disk: bool,
    /// The latest incarnation of this node that a peer has heard, if it is later than this one.
    later: Option<u32>,
    usage: BTreeMap<LimitId, PNCounter<Incarnation>>,
    usage_ns: u64,
    /// The rows of those counters: each incarnation's total of charged units. This node's own rows are on the
    /// disk.
    charged: BTreeMap<(Incarnation, LimitId), u64>,
    /// How much of its charges this node has given back in total: on the disk, too.
    returned: BTreeMap<LimitId, u64>,
    /// The batch in which this node's own rows were last written.
    charged_in: u64,
    traffic: Traffic,
    /// Nothing leaves before this batch is on disk: the process number is in it.
    born_in: u64,
}

/// Loan numbers: reserved on disk in chunks, each used once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LoanNumbers {
    next: u64,
    reserved: u64,
}

/// Facts that a node remembers about itself across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// The process number: how often the node was started.
    pub(crate) process_number: u32,
    /// Loan numbers up to this one are reserved.
    pub(crate) loans: u64,
}

impl Memory {
    /// The memory of the next process; `None` if the numbers are higher than any node can count.
    pub(crate) fn next_start(self) -> Option<Self> {
        let process_number = self.process_number.checked_add(1)?;
        (self.loans < u64::MAX / 2).then_some(Self { process_number, ..self })
    }
}

/// A revision of the versions that waits for the disk.
#[derive(Clone, Copy, Debug)]
struct Storing {
    batch: u64,
    revision: u64,
    version_id: VersionId,
}

impl Sharing {
    pub(crate) fn new(home: Home, versions: Versions, memory: Memory, born_in: u64) -> Self {
        let beats = SentHeartbeats::new(memory.process_number, home.loan_ttl_ns.saturating_mul(4));
        Self {
            home,
            heartbeat: Heartbeat { process_number: memory.process_number, number: 0 },
            beats,
            beat_ns: 0,
            stored: versions.version().map_or_else(VersionId::default, |version| version.version_id),
            versions,
            splits: BTreeMap::new(),
            over_lent: BTreeSet::new(),
            doubt_ns: 0,
            doubt_until_ns: 0,
            wall_high_ns: 0,
            left_ns: 0,
            ticks_since_adopted: 0,
            forgotten_until_ns: 0,
            storing: Vec::new(),
            kept: None,
            offered: None,
            seals: seal::SealStore::default(),
            peers: BTreeMap::new(),
            partners: SmallVec::new(),
            cells: Slots::default(),
            told: BTreeMap::new(),
            wants_pool: false,
            says: false,
            backed: BTreeMap::new(),
            tells: Vec::new(),
            rebalances: BTreeSet::new(),
            called: VecDeque::new(),
            loans: LoanNumbers { next: memory.loans, reserved: memory.loans },
            time: Timekeeper::default(),
            shared: None,
            reshare_ns: 0,
            restored_disk: false,
            later: None,
            usage: BTreeMap::new(),
            usage_ns: 0,
            charged: BTreeMap::new(),
            returned: BTreeMap::new(),
            charged_in: 0,
            traffic: Traffic::default(),
            born_in,
        }
    }

    fn me(&self) -> Incarnation {
        self.home.incarnation
    }

    /// Why this node owns nothing, if it does not.
    pub(crate) fn owns_nothing(&self) -> Option<Reason> {
        if self.restored_disk {
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
        self.stored(node, raw);
        // Windows are left behind by the wall that requests used until now.
        if self.time.is_believed() {
            node.leave_behind(node.not_before(raw));
        }
        self.keep_time(node, raw);
        self.keep_doubt(raw);
        let (error_ns, drift_ppm) =
            self.versions.version().map_or((0, 0), |version| (version.clock_error_ns, version.drift_ppm));
        node.set_wall(&self.time, error_ns, drift_ppm);
        if self.time.is_believed() && !node.is_wall_believed() {
            node.believe_wall(self.time.correction_ns(), raw);
            // The wall that left windows before was not believed, so they do not count as left.
            (self.left_ns, self.shared) = (0, None);
        }
        let now = node.not_before(raw);
        if self.time.is_believed() {
            node.leave_behind(now);
        }
        if !node.is_out_of_numbers() {
            self.beat(now);
            self.keep_shares(node, now);
        }
        if node.is_out_of_numbers() {
            return;
        }
        let catalogue = node.catalogue();
        for peer in self.peers.values_mut() {
            peer.outbox.expire(now.steady_ns.saturating_sub(peer.patience_ns()));
        }
        if !self.time.is_believed() {
            // The wall dates nearly everything that could move, so calls only wake their cells.
            calls.into_iter().for_each(|key| self.wake_for_call(key, now.steady_ns));
            return;
        }
        self.freeze_backed(node, &catalogue, now);
        self.renew(node, now);
        self.look_elsewhere(node, now);
        for key in calls {
            self.wake_for_call(key, now.steady_ns);
        }
        for _ in 0..REBALANCES_MAX {
            let called = self.called.pop_front().map(|key| self.cells.slot(key));
            let due = || self.rebalances.first().filter(|(due_ns, _)| *due_ns <= now.steady_ns);
            let Some(slot) = called.or_else(|| due().map(|(_, slot)| Some(*slot))) else { break };
            if let Some(slot) = slot {
                self.rebalance(node, &catalogue, slot, now);
            }
        }
        self.keep_forwards(node, now);
        self.acknowledge(node, now);
        self.resync(node, &catalogue, now);
        if now.steady_ns >= self.usage_ns {
            self.usage_ns = now.steady_ns + USAGE_NS;
            self.count_usage(node, &catalogue);
        }
    }

    /// Notes which versions are on disk by now.
    fn stored(&mut self, node: &Node, now: Now) {
        let committed = node.progress().committed;
        let mut newest = None;
        let stored = &mut self.stored;
        self.storing.retain(|storing| {
            if storing.batch <= committed {
                newest = newest.max(Some(storing.revision));
                *stored = storing.version_id.max(*stored);
            }
            storing.batch > committed
        });
        if let Some(revision) = newest {
            self.versions.stored(revision, now);
            self.tell_own_ack();
        }
    }

    fn beat(&mut self, now: Now) {
        /// Frames sent within this time carry one heartbeat, dated from the first frame, which is safe.
        const FRESH_NS: u64 = 20_000_000;
        if self.beat_ns == 0 || now.steady_ns >= self.beat_ns + FRESH_NS {
            self.heartbeat = self.beats.next(now.steady_ns);
            self.beat_ns = now.steady_ns;
        }
    }

    /// Stops renewing loans that rest on a hold on the region's pool, if that hold ends soon: the loans end
    /// before it does. This comes before each renewal: while a peer cannot be told of so many loans, nothing
    /// is renewed for it.
    fn freeze_backed(&mut self, node: &Node, catalogue: &Catalogue, now: Now) {
        if mutated(Mutation::LeaseRenewsToTheEnd) {
            return;
        }
        let due = self.backed.iter().filter(|(_, until_ns)| **until_ns <= now.steady_ns);
        let due: SmallVec<[CellKey; 4]> = due.map(|(key, _)| *key).collect();
        for key in due {
            let until_ns = LockedCell { node, catalogue, key, now, which: None }.at(false, |_, cell| {
                let HeapCell { account: Some(account), .. } = cell else { return None };
                let until_ns = account.renews_until_ns()?;
                if until_ns <= now.steady_ns {
                    account.freeze_all(&mut node.sessions_mut());
                }
                account.renews_until_ns()
            });
            match until_ns.flatten() {
                Some(until_ns) => self.backed.insert(key, until_ns),
                None => self.backed.remove(&key),
            };
        }
    }

    /// Renews the loans to every peer whose heartbeat was heard since the last time, a few times a second.
    fn renew(&mut self, node: &Node, now: Now) {
        if self.restored_disk {
            return;
        }
        let mut sessions = node.sessions_mut();
        for peer in self.peers.values_mut() {
            let late =
                now.steady_ns < peer.renewed_ns + PULSE_NS || !peer.is_reached(now.steady_ns, REACH_NS);
            if late || self.versions.closed(peer.incarnation) {
                continue;
            }
            if let Some(session) = sessions.get_mut(&peer.incarnation)
                && let Some(renew) = session.renew(now.steady_ns)
            {
                peer.renewed_ns = now.steady_ns;
                peer.outbox.tell(Topic::Renew, Entry::Renew(renew), 0);
            }
        }
    }

    /// Notes how far away the reachable members are, and how many members there are.
    fn look_elsewhere(&mut self, node: &Node, now: Now) {
        let regions = self.versions.version().map_or(0, |version| version.members.len());
        let partners = || self.peers.values().filter(|peer| self.is_partner(peer, now));
        let round_ns = partners().map(Peer::round_ns).max();
        let partners: SmallVec<[MemberId; 8]> = partners().map(|peer| peer.incarnation.member).collect();
        let met = partners.iter().any(|region| !self.partners.contains(region));
        self.partners = partners;
        node.remote_supply.see(regions, round_ns, met.then_some(now.steady_ns));
    }

    /// Makes a cell active and has the next tick rebalance it. `None` if too many cells are active.
    fn wake(&mut self, key: CellKey, now_ns: u64) -> Option<&mut ActiveCell> {
        let slot = match self.cells.slot(key) {
            None if self.cells.len() >= WARM_MAX => return None,
            None => self.cells.slot_or_insert(key, || Some(Box::new(ActiveCell::new(now_ns)))),
            Some(slot) => slot,
        };
        let active_cell = self.cells.at_mut(slot)?.as_deref_mut()?;
        if !std::mem::replace(&mut active_cell.is_called, true) {
            self.called.push_back(key);
        }
        Some(active_cell)
    }

    /// Rebalances a cell that called: at the next tick, unless the last rebalance was a moment ago. A cell
    /// that denies calls with every denial.
    fn wake_for_call(&mut self, key: CellKey, now_ns: u64) {
        let slot = self.cells.slot(key);
        let active_cell = slot.and_then(|slot| Some((slot, self.cells.at_mut(slot)?.as_deref_mut()?)));
        match active_cell {
            Some((slot, active_cell)) if now_ns < active_cell.rebalanced_ns + CALLS_NS => {
                let due_ns = active_cell.rebalanced_ns + CALLS_NS;
                if due_ns < active_cell.due_ns {
                    self.rebalances.remove(&(active_cell.due_ns, slot));
                    active_cell.due_ns = due_ns;
                    self.rebalances.insert((due_ns, slot));
                }
            }
            _ => {
                self.wake(key, now_ns);
            }
        }
    }

    fn keep_time(&mut self, node: &Node, now: Now) {
        let (error_ns, drift_ppm) = match self.versions.version() {
            Some(version) => (version.clock_error_ns, version.drift_ppm),
            None => node.expected_of_clocks(),
        };
        let offered = self.offered.as_ref().map(|(version, _)| version);
        let version = self.versions.version().or(offered);
        let has_peers = version.map_or(!self.peers.is_empty(), |version| version.members.len() > 1);
        let journal_ns = node.journal_wall_ns.load(Ordering::Acquire);
        let is_urgent = !self.time.is_believed();
        let mut reached = 0;
        for peer in self.peers.values_mut().filter(|peer| peer.is_reached(now.steady_ns, REACH_NS)) {
            reached += 1;
            if peer.is_to_be_pinged(now.steady_ns, is_urgent) {
                peer.outbox.tell(Topic::Ping, Entry::Ping, 0);
            }
        }
        let bounds =
            timekeeper::Bounds { error_ns, drift_ppm, has_peers, is_alone: reached == 0, journal_ns };
        let reached = self.peers.values().filter(|peer| peer.is_reached(now.steady_ns, REACH_NS));
        let is_sure = |reading: &timekeeper::Reading| is_urgent || reading.unsure_ns <= UNSURE_NS_MAX;
        let readings: SmallVec<[timekeeper::Reading; 8]> =
            reached.filter_map(|peer| peer.reading(now, drift_ppm)).filter(is_sure).collect();
        self.time.observe(now.steady_ns, now.wall_ns, &bounds, &readings);
    }

    // Frames to send.

    /// Notes a new connection: frames that were under way on the old one are lost.
    pub(crate) fn reconnected(&mut self, region: MemberId, now: Now) {
        if let Some(peer) = self.peers.get_mut(&region) {
            peer.outbox.expire(now.steady_ns.saturating_add(1));
            // A frame leaves at once, so that the peer knows.
            peer.owes_reply = true;
            peer.said_ns = 0;
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
        if committed < self.born_in {
            return None;
        }
        // A frame may leave before the first tick: its heartbeat is dated no later than now.
        if self.beat_ns == 0 && !mutated(Mutation::BeatBeforeSent) {
            self.beat(now);
        }
        let is_over = |at_ns| now.steady_ns >= at_ns;
        if node.forwards.is_due() || node.forwards.answer_ns().is_some_and(is_over) {
            self.serve_forwards(node, node.not_before(now));
        }
        let regions: SmallVec<[MemberId; 8]> = self.peers.keys().copied().filter(|r| may_send(*r)).collect();
        let catalogue = node.catalogue();
        for region in regions {
            let (me, heartbeat, version_id) = (self.me(), self.heartbeat, self.stored);
            let Some(peer) = self.peers.get_mut(&region) else { continue };
            let quiet = now.steady_ns.saturating_sub(peer.said_ns);
            let pulse = peer.said_ns == 0 || quiet >= PULSE_NS;
            if !(pulse || peer.owes_reply && quiet >= peer::REPLY_NS || peer.outbox.is_ready(committed)) {
                continue;
            }
            let loan_max = node.sessions().get(&peer.incarnation).map_or(0, Session::accepted_max);
            let header = Header {
                incarnation: me,
                process_number: heartbeat.process_number,
                number: peer.outbox.number(),
                received: peer.received,
                heartbeat: heartbeat.number,
                wall_ns: now.wall_ns,
                corrected_ns: self.time.correction_ns(),
                is_believed: self.time.is_believed(),
                loan_max,
                version_id,
            };
            let cells = &self.cells;
            let name = |key: CellKey| {
                let which =
                    cells.get(key).and_then(Option::as_ref).and_then(|active_cell| active_cell.which());
                catalogue.id(key.0).map(|limit| (limit, which))
            };
            let draw = |number| node.forwards.send(number, now.steady_ns);
            let bytes = peer.outbox.fill(&header, committed, now.steady_ns, name, draw);
            peer.said_ns = now.steady_ns;
            peer.owes_reply = false;
            self.traffic.frames_out += 1;
            self.traffic.bytes_out += bytes.len() as u64;
            return Some((region, bytes));
        }
        None
    }

    /// Counts of what was received, refused and sent.
    pub(crate) fn traffic(&self) -> Traffic {
        let entries_out = self.peers.values().map(|peer| peer.outbox.entries).sum();
        Traffic { entries_out, ..self.traffic }
    }
}

impl LoanNumbers {
    /// The next number, reserved on disk in the open batch or before.
    fn take(&mut self, node: &Node) -> u64 {
        self.next += 1;
        if self.next > self.reserved {
            self.reserved = self.next + NUMBERS_AHEAD;
            node.remember(|memory| memory.loans = self.reserved);
        }
        self.next
    }
}
