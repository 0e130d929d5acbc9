//! How a region shares its limits with others: what it hears, what it decides, what it says.
//!
//! **Nothing in here can over-admit.** What a cell may spend is kept by its account (`account.rs`)
//! by the rules of `acequia-rights`; this module only calls them, at times and in amounts that it
//! likes, and carries what they say. It knows peers, frames and demand; it knows no socket and no
//! clock: [`Node::handle`] takes a frame that came, [`Node::tick`] lets time pass, [`Node::poll`]
//! gives the next frame to send.

mod cell;
mod demand;
mod draw;
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
    Beats, Incarnation, MemberId, Session, Version, VersionId, Versions,
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
use crate::{Catalogue, Node, journal::HeapCell, locked_cell::LockedCell};

pub(crate) use cell::look_after;
pub(crate) use demand::Demand;
pub use membership::{AdoptFault, Membership, Ownership, limits_from_bytes, limits_to_bytes};
pub(crate) use outbox::CellKey;
pub(crate) use policy::units_in;
pub use seal::{Role, Seal, SealFault, Seals};
pub use timekeeper::Wall;
pub(crate) use timekeeper::{Bounds, Carried, Reading, Timekeeper};

/// How long a loan lasts after the heartbeat that it is dated from, unless a config says otherwise.
pub const LOAN_TTL_NS: u64 = 3_000_000_000;
/// Heartbeats are at most this far apart.
const PULSE_NS: u64 = 400_000_000;
/// A peer that was not heard for so long is not asked, and not lent to.
const REACH_NS: u64 = 1_500_000_000;
/// The most cells that are shared actively: past it, cells stay with their own part.
const WARM_MAX: usize = 4 << 20;
/// Looks in one tick.
const LOOKS_MAX: usize = 16_384;
/// Numbers of loans that are reserved on disk at once: so many are skipped by a restart.
const NUMBERS_AHEAD: u64 = 4_096;
/// The slot of no limit.
const NO_SLOT: u32 = 0;
/// Looks at one cell that calls are at least so far apart.
const CALLS_NS: u64 = 5_000_000;
/// What is known of a peer's clock no better than this says nothing: a frame may have waited for long.
const UNSURE_NS_MAX: u64 = 500_000_000;
/// How often usage is counted up and told.
const USAGE_NS: u64 = 1_000_000_000;

/// A node's place among the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Who it is.
    pub incarnation: Incarnation,
    /// How long its loans last: a few heartbeats, so that an isolated region soon falls back on its own part
    /// and what it lent soon comes back.
    pub loan_ttl_ns: u64,
}

/// Why a frame was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// This node shares nothing.
    #[error("this node has no regions")]
    Alone,
    /// It cannot be read.
    #[error(transparent)]
    Garbled(#[from] Garbled),
    /// It says to be from a region that its connection is not.
    #[error("a frame of {said:?} from region {region:?}")]
    Impostor {
        /// Whose certificate it came with.
        region: MemberId,
        /// Who it says to be from.
        said: Incarnation,
    },
    /// Its writer was evicted, or began anew.
    #[error("{0:?} is closed: it must join again with a new incarnation")]
    Closed(Incarnation),
    /// A writer that the catalogue does not name, while the one that it does name is there.
    #[error("{0:?} is not in the catalogue, and another writer of its region is, and was heard just now")]
    Unnamed(Incarnation),
    /// An earlier process of the sender.
    #[error("a frame of an earlier process of {0:?}")]
    Late(Incarnation),
}

/// What was refused and sent, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames that were read.
    pub frames_in: u64,
    /// Frames that were refused whole.
    pub frames_refused: u64,
    /// Entries that were refused: a rule forbade them, or they came too late.
    pub entries_refused: u64,
    /// Versions and acknowledgements that were not proven to be their writers': refused, too.
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
    /// Rights given away in windows.
    pub given: u64,
    /// Digests of peers that this node knew otherwise: the difference is told again.
    pub resyncs: u64,
    /// The most loans that one cell had at once, lent and held.
    pub loans_max: u64,
}

/// A node's dealings with other regions.
#[derive(Debug)]
pub(crate) struct Sharing {
    home: Home,
    beats: Beats,
    heartbeat: Heartbeat,
    beat_ns: u64,
    versions: Versions,
    /// The splits of the terms, one for each as long as it counts.
    splits: BTreeMap<acequia_rights::VersionId, std::sync::Arc<acequia_rights::Split>>,
    /// Cells of which more is lent than the newest version leaves to this region.
    over_lent: BTreeSet<CellKey>,
    /// How far the wall clock may be off beyond the catalogue's error, and until when at least.
    doubt_ns: u64,
    doubt_until_ns: u64,
    /// The latest that the wall clock ever showed.
    wall_high_ns: u64,
    /// Windows that ended by this time were left, whatever the margin becomes: wall clock, nanoseconds.
    left_ns: u64,
    /// Ticks since a version was adopted.
    ticks_since_adopted: u32,
    /// Before this nothing is acknowledged: a crash forgot what was spent.
    forgotten_until_ns: u64,
    /// Revisions of the versions that wait for the disk.
    storing: Vec<Storing>,
    /// The newest of those that this process has put in line.
    kept: Option<u64>,
    /// The newest version that is there: what others may hear that this node has.
    stored: VersionId,
    /// A version that a peer told, not yet adopted.
    offered: Option<(Version, seal::Proof)>,
    /// Whose word it is that is passed on.
    seals: seal::SealStore,
    peers: BTreeMap<MemberId, Peer>,
    /// Those that could be lent to and asked with the last tick.
    partners: SmallVec<[MemberId; 8]>,
    /// Cells that are shared actively. One is out of its slot only while it is looked at.
    cells: Slots<Option<Box<ActiveCell>>>,
    /// Which override's numbers a cell has, as peers said that go by the same version.
    told: BTreeMap<CellKey, u16>,
    /// Whether a look wants the region's pool to be asked.
    wants_pool: bool,
    /// The same, where something is to be said to the pool once.
    says: bool,
    /// Cells of which more is lent than stands, and so what is held of the region's pool; until when, on the steady clock, that may be
    /// renewed.
    backed: BTreeMap<CellKey, u64>,
    /// What a look has to say, once what it changed is on disk.
    tells: Vec<(MemberId, Topic, Entry)>,
    /// When to look at each cell, by its slot.
    looks: BTreeSet<(u64, u32)>,
    /// Cells to look at with the next tick: each once, since it remembers.
    called: VecDeque<CellKey>,
    loans: LoanNumbers,
    time: Timekeeper,
    /// What the shares were last made with: the revision of the versions, the clock's margin, and whether the
    /// disk is an old one.
    shared: Option<(u64, u64, bool)>,
    reshare_ns: u64,
    /// The disk is an old one: nothing is owned until the node begins anew.
    restored_disk: bool,
    /// The latest incarnation of this node that anybody has heard, where that is later than this one.
    later: Option<u32>,
    usage: BTreeMap<LimitId, PNCounter<Incarnation>>,
    usage_ns: u64,
    /// The rows of those counters: what each writer said that it charged, in all. This node's own are on the disk.
    charged: BTreeMap<(Incarnation, LimitId), u64>,
    /// What this node has given back of that, in all: on the disk too.
    returned: BTreeMap<LimitId, u64>,
    /// The batch that this node's own rows were last written in.
    charged_in: u64,
    traffic: Traffic,
    /// Nothing leaves before this batch is on disk: this process's number is in it.
    born_in: u64,
}

/// Numbers of loans: reserved on disk in chunks, given once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LoanNumbers {
    next: u64,
    reserved: u64,
}

/// What a node remembers of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// How often it was started.
    pub(crate) boot: u32,
    /// Loans have numbers up to this.
    pub(crate) loans: u64,
}

impl Memory {
    /// As the next process has it; nothing where it cannot be this node's, which never counts so far.
    pub(crate) fn next_start(self) -> Option<Self> {
        let boot = self.boot.checked_add(1)?;
        (self.loans < u64::MAX / 2).then_some(Self { boot, ..self })
    }
}

/// What of the versions waits for the disk.
#[derive(Clone, Copy, Debug)]
struct Storing {
    batch: u64,
    revision: u64,
    version_id: VersionId,
}

impl Sharing {
    pub(crate) fn new(home: Home, versions: Versions, memory: Memory, born_in: u64) -> Self {
        let beats = Beats::new(memory.boot, home.loan_ttl_ns.saturating_mul(4));
        Self {
            home,
            heartbeat: Heartbeat { boot: memory.boot, number: 0 },
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
            looks: BTreeSet::new(),
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

    /// Why this region owns nothing, if it does.
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

    /// Lets time pass: looks at cells that are due or call, and puts in line what there is to say.
    pub(crate) fn tick(&mut self, node: &Node, raw: Now, calls: Vec<CellKey>) {
        self.stored(node, raw);
        // What requests went by until now.
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
            // Whatever the wall left before, it was not that.
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
            // Nothing moves that is dated by the wall, and hardly anything is not.
            calls.into_iter().for_each(|key| self.wake_for_call(key, now.steady_ns));
            return;
        }
        self.freeze_backed(node, &catalogue, now);
        self.renew(node, now);
        self.look_elsewhere(node, now);
        for key in calls {
            self.wake_for_call(key, now.steady_ns);
        }
        for _ in 0..LOOKS_MAX {
            let called = self.called.pop_front().map(|key| self.cells.slot(key));
            let due = || self.looks.first().filter(|(due_ns, _)| *due_ns <= now.steady_ns);
            let Some(slot) = called.or_else(|| due().map(|(_, slot)| Some(*slot))) else { break };
            if let Some(slot) = slot {
                self.rebalance(node, &catalogue, slot, now);
            }
        }
        self.keep_draws(node, now);
        self.acknowledge(node, now);
        self.resync(node, &catalogue, now);
        if now.steady_ns >= self.usage_ns {
            self.usage_ns = now.steady_ns + USAGE_NS;
            self.count_usage(node, &catalogue);
        }
    }

    /// What is on disk by now counts.
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
        /// Frames sent within so short a time carry one beat: dated from the first, which is safe.
        const FRESH_NS: u64 = 20_000_000;
        if self.beat_ns == 0 || now.steady_ns >= self.beat_ns + FRESH_NS {
            self.heartbeat = self.beats.next(now.steady_ns);
            self.beat_ns = now.steady_ns;
        }
    }

    /// Stops renewing loans that rest on what is held of the region's pool, where that ends soon: they end before it does. Before each
    /// renewal: while there is no room to tell of as many, nothing is renewed for that peer.
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

    /// Renews what is lent to every peer whose beat was heard since the last time, a few times a second.
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

    /// How far away the others are that can be reached, and how many regions there are.
    fn look_elsewhere(&mut self, node: &Node, now: Now) {
        let regions = self.versions.version().map_or(0, |version| version.members.len());
        let partners = || self.peers.values().filter(|peer| self.is_partner(peer, now));
        let round_ns = partners().map(Peer::round_ns).max();
        let partners: SmallVec<[MemberId; 8]> = partners().map(|peer| peer.incarnation.member).collect();
        let met = partners.iter().any(|region| !self.partners.contains(region));
        self.partners = partners;
        node.remote_supply.see(regions, round_ns, met.then_some(now.steady_ns));
    }

    /// Looks at a cell with the next tick. Nothing where as many cells are warm as may be.
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

    /// A cell calls for a look: at once, unless the last one was a moment ago. A cell that denies
    /// calls with every denial.
    fn wake_for_call(&mut self, key: CellKey, now_ns: u64) {
        let slot = self.cells.slot(key);
        let active_cell = slot.and_then(|slot| Some((slot, self.cells.at_mut(slot)?.as_deref_mut()?)));
        match active_cell {
            Some((slot, active_cell)) if now_ns < active_cell.looked_ns + CALLS_NS => {
                let due_ns = active_cell.looked_ns + CALLS_NS;
                if due_ns < active_cell.due_ns {
                    self.looks.remove(&(active_cell.due_ns, slot));
                    active_cell.due_ns = due_ns;
                    self.looks.insert((due_ns, slot));
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

    // What goes.

    /// There is a new connection: what was under way on the one before is lost.
    pub(crate) fn reconnected(&mut self, region: MemberId, now: Now) {
        if let Some(peer) = self.peers.get_mut(&region) {
            peer.outbox.expire(now.steady_ns.saturating_add(1));
            // It is heard at once, so that it knows.
            peer.owes_reply = true;
            peer.said_ns = 0;
        }
    }

    /// The next frame for some peer that one may be sent to.
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
        // A frame may leave before the first tick: its beat is dated no later than now.
        if self.beat_ns == 0 && !mutated(Mutation::BeatBeforeSent) {
            self.beat(now);
        }
        let is_over = |at_ns| now.steady_ns >= at_ns;
        if node.forwards.is_due() || node.forwards.answer_ns().is_some_and(is_over) {
            self.serve_draws(node, node.not_before(now));
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
                boot: heartbeat.boot,
                number: peer.outbox.number(),
                received: peer.received,
                beat: heartbeat.number,
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

    /// What was sent and refused.
    pub(crate) fn traffic(&self) -> Traffic {
        let entries_out = self.peers.values().map(|peer| peer.outbox.entries).sum();
        Traffic { entries_out, ..self.traffic }
    }
}

impl LoanNumbers {
    /// The next number, reserved on disk in the batch that is open, or before.
    fn take(&mut self, node: &Node) -> u64 {
        self.next += 1;
        if self.next > self.reserved {
            self.reserved = self.next + NUMBERS_AHEAD;
            node.remember(|memory| memory.loans = self.reserved);
        }
        self.next
    }
}
