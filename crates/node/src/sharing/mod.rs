//! How a region shares its limits with others: what it hears, what it decides, what it says.
//!
//! **Nothing in here can over-admit.** What a cell may spend is kept by its account (`account.rs`)
//! by the rules of `acequia-rights`; this module only calls them, at times and in amounts that it
//! likes, and carries what they say. It knows peers, frames and demand; it knows no socket and no
//! clock: [`Node::handle`] takes a frame that came, [`Node::tick`] lets time pass, [`Node::poll`]
//! gives the next frame to send.

mod cell;
mod demand;
mod membership;
mod names;
mod outbox;
mod peer;
pub(crate) mod policy;
mod resync;
mod seen;
mod slots;
mod target;
mod timekeeper;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use acequia_limits::{LimitId, Now, Part, Reason};
use acequia_rights::{
    Beats, Offer, Refusal, Region, Session, Version, Versions, Writer,
    broken::{Broken, broken},
    loan::LOANS_PER_PEER_MAX,
    session::Beat,
    versions::Learned,
};
use crdts::{
    CmRDT, Dot, PNCounter,
    pncounter::{Dir, Op},
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use self::{
    cell::{Asked, Piece, Resource, Told, View, Warm, look_after, time_left_ns},
    outbox::Topic,
    peer::Peer,
    policy::{Borrowed, Flow, Plan, Seat, Stake, Stock, plan, units_in},
    slots::Slots,
    wire::{Entry, Frame, Garbled, Header, Rough, ShortId},
};
use crate::{
    Catalogue, Node,
    account::{Account, Ground},
    journal::HeapCell,
    preference::Preference,
    visit::Visit,
};

pub use membership::{AdoptFault, Membership, Standing, limits_from_bytes, limits_to_bytes};
pub(crate) use outbox::CellKey;
pub(crate) use timekeeper::{Carried, Timekeeper};

/// How long a loan lasts after the heartbeat that it is dated from, unless a config says otherwise.
pub const LOAN_TTL_NS: u64 = 3_000_000_000;
/// Heartbeats are at most this far apart.
const PULSE_NS: u64 = 400_000_000;
/// A peer that was not heard for so long is not asked, and not lent to.
const REACH_NS: u64 = 1_500_000_000;
/// What was not confirmed for twice the way there and back, and so much more, is sent again.
const RESEND_NS: u64 = 250_000_000;
/// A cell that nobody asked for, in any region that said so, for so long gives everything back.
const IDLE_NS: u64 = 10_000_000_000;
/// Whoever does not ask again for more than a region can hold wants it no more.
const SHORT_NS: u64 = 3_000_000_000;
/// News of a cell that nobody waits for.
const REFRESH_NS: u64 = 4_000_000_000;
/// Asking again for rights, at first; twice as long each time it brought nothing.
const ASK_NS: u64 = 250_000_000;
const ASK_NS_MAX: u64 = 4_000_000_000;
/// Peers that are asked at once.
const ASKED_MAX: usize = 3;
/// The most cells that are shared actively: past it, cells stay with their own part.
const WARM_MAX: usize = 4 << 20;
/// Looks in one tick.
const LOOKS_MAX: usize = 16_384;
/// Numbers of loans that are reserved on disk at once: so many are skipped by a restart.
const NUMBERS_AHEAD: u64 = 4_096;
/// The slot of no limit.
const NO_SLOT: u16 = 0;
/// Looks at one cell that calls are at least so far apart.
const CALLS_NS: u64 = 5_000_000;
/// That nobody has anything to spare is believed for so long, if no look says otherwise.
const HOPELESS_NS: u64 = 1_000_000_000;
/// How often usage is counted up and told.
const USAGE_NS: u64 = 1_000_000_000;

/// A node's place among the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Who it is.
    pub writer: Writer,
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
        region: Region,
        /// Who it says to be from.
        said: Writer,
    },
    /// Its writer was evicted, or began anew.
    #[error("{0:?} is closed: it must join again with a new incarnation")]
    Closed(Writer),
    /// A writer that the catalogue does not name, while the one that it does name is there.
    #[error("{0:?} is not in the catalogue, and another writer of its region is, and was heard just now")]
    Unnamed(Writer),
    /// An earlier process of the sender.
    #[error("a frame of an earlier process of {0:?}")]
    Late(Writer),
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
    beat: Beat,
    beat_ns: u64,
    versions: Versions,
    /// The splits of the terms, one for each as long as it counts.
    splits: BTreeMap<acequia_rights::Mark, std::sync::Arc<acequia_rights::Split>>,
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
    /// Revisions of the versions that wait for the disk: (batch, revision).
    storing: Vec<(u64, u64)>,
    /// A version that a peer told, not yet adopted.
    offered: Option<Version>,
    peers: BTreeMap<Region, Peer>,
    /// Cells that are shared actively. One is out of its slot only while it is looked at.
    cells: Slots<Option<Box<Warm>>>,
    /// Which override's numbers a cell has, as peers said that go by the same version.
    told: BTreeMap<CellKey, u16>,
    /// What a look has to say, once what it changed is on disk.
    tells: Vec<(Region, Topic, Entry)>,
    /// When to look at each cell, by its slot.
    looks: BTreeSet<(u64, u32)>,
    /// Cells to look at with the next tick: each once, since it remembers.
    called: VecDeque<CellKey>,
    loans: Numbers,
    time: Timekeeper,
    /// What the shares were last made with: the revision of the versions, the clock's margin, and whether the
    /// disk is an old one.
    shared: Option<(u64, u64, bool)>,
    reshare_ns: u64,
    /// The disk is an old one: nothing is owned until the node begins anew.
    restored_disk: bool,
    usage: BTreeMap<LimitId, PNCounter<Writer>>,
    usage_ns: u64,
    /// The rows of those counters: what each writer said that it charged, in all. This node's own are on the disk.
    charged: BTreeMap<(Writer, LimitId), u64>,
    /// The batch that this node's own rows were last written in.
    charged_in: u64,
    traffic: Traffic,
    /// Nothing leaves before this batch is on disk: this process's number is in it.
    born_in: u64,
}

/// Numbers of loans: reserved on disk in chunks, given once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Numbers {
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

impl Sharing {
    pub(crate) fn new(home: Home, versions: Versions, memory: Memory, born_in: u64) -> Self {
        let beats = Beats::new(memory.boot, home.loan_ttl_ns.saturating_mul(4));
        Self {
            home,
            beat: Beat { boot: memory.boot, number: 0 },
            beats,
            beat_ns: 0,
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
            offered: None,
            peers: BTreeMap::new(),
            cells: Slots::default(),
            told: BTreeMap::new(),
            tells: Vec::new(),
            looks: BTreeSet::new(),
            called: VecDeque::new(),
            loans: Numbers { next: memory.loans, reserved: memory.loans },
            time: Timekeeper::default(),
            shared: None,
            reshare_ns: 0,
            restored_disk: false,
            usage: BTreeMap::new(),
            usage_ns: 0,
            charged: BTreeMap::new(),
            charged_in: 0,
            traffic: Traffic::default(),
            born_in,
        }
    }

    fn me(&self) -> Writer {
        self.home.writer
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
        node.leave_behind(node.not_before(raw));
        self.keep_time(raw);
        self.keep_doubt(raw);
        let (error_ns, drift_ppm) =
            self.versions.version().map_or((0, 0), |version| (version.clock_error_ns, version.drift_ppm));
        node.set_wall(&self.time, error_ns, drift_ppm);
        let now = node.not_before(raw);
        node.leave_behind(now);
        self.beat(now);
        self.keep_shares(node, now);
        let catalogue = node.catalogue();
        for peer in self.peers.values_mut() {
            let patience = peer.round_ns().saturating_mul(2).saturating_add(RESEND_NS);
            peer.outbox.expire(now.steady_ns.saturating_sub(patience));
        }
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
                self.look(node, &catalogue, slot, now);
            }
        }
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
        self.storing.retain(|(batch, revision)| {
            if *batch <= committed {
                newest = newest.max(Some(*revision));
            }
            *batch > committed
        });
        if let Some(revision) = newest {
            self.versions.stored(revision, now);
            if let Some(ack) = self.versions.own_ack() {
                self.tell_ack(self.me(), ack);
            }
        }
    }

    fn beat(&mut self, now: Now) {
        /// Frames sent within so short a time carry one beat: dated from the first, which is safe.
        const FRESH_NS: u64 = 20_000_000;
        if self.beat_ns == 0 || now.steady_ns >= self.beat_ns + FRESH_NS {
            self.beat = self.beats.next(now.steady_ns);
            self.beat_ns = now.steady_ns;
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
            if late || self.versions.closed(peer.writer) {
                continue;
            }
            if let Some(session) = sessions.get_mut(&peer.writer)
                && let Some(renew) = session.renew(now.steady_ns)
            {
                peer.renewed_ns = now.steady_ns;
                peer.outbox.tell(Topic::Renew, Entry::Renew(renew), 0);
            }
        }
    }

    /// How far away the others are that can be reached, and how many regions there are.
    fn look_elsewhere(&self, node: &Node, now: Now) {
        let regions = self.versions.version().map_or(0, |version| version.members.len());
        let reached = self.peers.values().filter(|peer| self.is_partner(peer, now));
        node.elsewhere.see(regions, reached.map(Peer::round_ns).max());
    }

    /// Looks at a cell with the next tick. Nothing where as many cells are warm as may be.
    fn wake(&mut self, key: CellKey, now_ns: u64) -> Option<&mut Warm> {
        let slot = match self.cells.slot(key) {
            None if self.cells.len() >= WARM_MAX => return None,
            None => self.cells.slot_or_insert(key, || Some(Box::new(Warm::new(now_ns)))),
            Some(slot) => slot,
        };
        let warm = self.cells.at_mut(slot)?.as_deref_mut()?;
        if !std::mem::replace(&mut warm.is_called, true) {
            self.called.push_back(key);
        }
        Some(warm)
    }

    /// A cell calls for a look: at once, unless the last one was a moment ago. A cell that denies
    /// calls with every denial.
    fn wake_for_call(&mut self, key: CellKey, now_ns: u64) {
        let slot = self.cells.slot(key);
        let warm = slot.and_then(|slot| Some((slot, self.cells.at_mut(slot)?.as_deref_mut()?)));
        match warm {
            Some((slot, warm)) if now_ns < warm.looked_ns + CALLS_NS => {
                let due_ns = warm.looked_ns + CALLS_NS;
                if due_ns < warm.due_ns {
                    self.looks.remove(&(warm.due_ns, slot));
                    warm.due_ns = due_ns;
                    self.looks.insert((due_ns, slot));
                }
            }
            _ => {
                self.wake(key, now_ns);
            }
        }
    }

    fn keep_time(&mut self, now: Now) {
        let Some(version) = self.versions.version() else { return };
        let reached = self.peers.values().filter(|peer| peer.is_reached(now.steady_ns, REACH_NS));
        let (error_ns, drift_ppm) = (version.clock_error_ns, version.drift_ppm);
        let readings: SmallVec<[timekeeper::Reading; 8]> =
            reached.filter_map(|peer| peer.reading(now, drift_ppm)).collect();
        self.time.observe(now.steady_ns, now.wall_ns, error_ns, drift_ppm, &readings);
    }

    // Cells.

    /// One look at a cell: what was asked of it, what the others said, and what to do about it.
    fn look(&mut self, node: &Node, catalogue: &Catalogue, slot: u32, now: Now) {
        let Some(key) = self.cells.key(slot) else { return };
        let Some(mut warm) = self.cells.at_mut(slot).and_then(Option::take) else { return };
        self.looks.remove(&(warm.due_ns, slot));
        warm.is_called = false;
        warm.looked_ns = now.steady_ns;
        let owned = self.owns_nothing().is_none();
        let visit = Visit { node, catalogue, key, now, which: self.told.get(&key).copied() };
        let none = Preference::default();
        let preference = catalogue.preference(key.0).unwrap_or(&none);
        let again = visit
            .at(owned, |ground, cell| self.look_at(&mut warm, (node, preference), key, ground, cell, now));
        self.tells.clear();
        if let Some((true, after_ns)) = again.flatten()
            && let Some(place) = self.cells.at_mut(slot)
        {
            warm.due_ns = now.steady_ns + after_ns;
            self.looks.insert((warm.due_ns, slot));
            *place = Some(warm);
        } else {
            self.cells.remove(key);
            for peer in self.peers.values_mut() {
                peer.outbox.names.forget(key);
            }
        }
    }

    /// Gives whether the cell stays warm, and when to look again.
    fn look_at(
        &mut self,
        warm: &mut Warm,
        (node, preference): (&Node, &Preference),
        key: CellKey,
        ground: &Ground<'_>,
        cell: &mut HeapCell,
        now: Now,
    ) -> Option<(bool, u64)> {
        let offered = {
            let HeapCell { account, words, .. } = cell;
            let account = account.as_deref_mut()?;
            account.settle(words, ground, now, &*node.sessions());
            let mut sessions = node.sessions_mut();
            for (from, number) in account.tell_ended(&mut sessions) {
                let entry = Entry::Refused { id: ShortId::default(), number };
                self.tells.push((from.region, Topic::Refused(key, number), entry));
            }
            account.freeze_refused(&mut sessions);
            account.look()
        };
        warm.which = ground.which;
        // An override that ended leaves less without a new version.
        if cell.account.as_deref().is_some_and(|account| account.book().is_over_lent(account.standing())) {
            self.over_lent.insert(key);
        }
        // What no cell could ever give is not asked for.
        let most = offered.events.saturating_mul(ground.global.budget());
        warm.demand.observe(offered.units.min(most), offered.events, now.steady_ns);
        if offered.events > 0 {
            warm.busy_ns = now.steady_ns;
        }
        let resource = Resource::of(ground.global);
        let scarce = match resource {
            Resource::Rights => {
                self.look_at_stock(warm, (node, preference), key, ground, cell, offered.denied, now)
            }
            _ => {
                let of = (node, preference);
                self.look_at_flow(warm, of, key, ground, cell, &resource, offered.denied, now)
            }
        };
        let unwritten = cell.account.as_deref_mut()?.take_unwritten();
        let batch = if unwritten { node.write_account(key, cell, now) } else { 0 };
        for (region, topic, entry) in self.tells.drain(..) {
            if let Some(peer) = self.peers.get_mut(&region) {
                let early = match topic {
                    Topic::Grant(..) => broken(Broken::GrantBeforeDurable),
                    Topic::Give(..) => broken(Broken::GiveBeforeDurable),
                    _ => false,
                };
                peer.outbox.tell(topic, entry, if early { 0 } else { batch });
            }
        }
        self.tell_news(warm, key, ground, cell, &resource, scarce, now);
        let account = cell.account.as_deref_mut()?;
        let idle = now.steady_ns.saturating_sub(warm.busy_ns) > IDLE_NS;
        if idle && account.is_empty(now) {
            cell.forget_held_if_renumbered();
            cell.account = None;
            return Some((false, 0));
        }
        Some((true, look_after(warm.demand.events_milli(), scarce)))
    }

    /// A rate, or a sliding window: lends and gives back.
    #[expect(clippy::too_many_arguments, reason = "one look has one caller")]
    fn look_at_flow(
        &mut self,
        warm: &mut Warm,
        (node, preference): (&Node, &Preference),
        key: CellKey,
        ground: &Ground<'_>,
        cell: &mut HeapCell,
        resource: &Resource,
        denied: u64,
        now: Now,
    ) -> bool {
        let HeapCell { account: Some(account), words, .. } = cell else { return false };
        let left = account.algorithm.available(words, now, ground.salt);
        let effective = account.effective();
        if denied > effective.units && denied <= ground.global.budget() {
            if warm.short == 0 {
                warm.short_since_ns = now.steady_ns;
            }
            warm.short = denied;
            warm.short_ns = now.steady_ns;
        } else if denied > 0
            || effective.units >= warm.short
            || now.steady_ns.saturating_sub(warm.short_ns) > SHORT_NS
        {
            warm.short = 0;
        }
        let own = Seat {
            region: self.me().region,
            want: resource.want(warm.demand.units_milli()),
            holds: resource.weigh(effective),
            standing: resource.weigh(account.standing()),
            short: warm.short,
            weight: u32::try_from(resource.weigh(account.standing())).unwrap_or(1),
            class: preference.class(self.me().region),
            floor: preference.floor(resource.weigh(account.standing())),
        };
        let mut others: SmallVec<[Seat; 8]> = SmallVec::new();
        for peer in self.peers.values().filter(|peer| self.is_partner(peer, now)) {
            let standing = self.standing_of(peer.writer, ground, now);
            let mut seat = warm.seat(peer.writer.region, standing, resource, now.steady_ns, peer.round_ns());
            seat.class = preference.class(seat.region);
            seat.floor = preference.floor(seat.standing);
            others.push(seat);
        }
        let held: SmallVec<[Borrowed; 8]> = account
            .book()
            .held()
            .iter()
            .map(|held| Borrowed { from: held.from.region, number: held.number, part: held.part })
            .collect();
        let flow = Flow {
            own,
            others: &others,
            spare: account.spare(),
            floor: floor_of(preference, account.standing()),
            held: &held,
            units_total: ground.global.budget(),
            asked: warm.demand.units_milli() / 1_000,
            is_rate: matches!(resource, Resource::Rate { .. }),
            left,
        };
        let mut plan = plan(&flow);
        if !ground.in_force {
            plan.lend.clear();
            plan.give_back = held.iter().map(|loan| (loan.from, loan.number)).collect();
        }
        if now.steady_ns.saturating_sub(warm.busy_ns) > IDLE_NS {
            plan.give_back = held.iter().map(|loan| (loan.from, loan.number)).collect();
        }
        let scarce = plan.is_scarce;
        // Units that were asked for come soon or not at all.
        let round_ns = self.peers.values().map(Peer::round_ns).max().unwrap_or(0);
        let is_late = now.steady_ns.saturating_sub(warm.short_since_ns) > round_ns.saturating_mul(2);
        let is_hopeless = if warm.short > 0 { is_late } else { plan.is_hopeless };
        self.weigh_hope(account, node, is_hopeless, now);
        self.carry_out(plan, warm, node, key, ground, cell, resource, now);
        scarce
    }

    /// Whoever waits for units of a cell shall know at once if none can come.
    fn weigh_hope(&self, account: &mut Account, node: &Node, is_hopeless: bool, now: Now) {
        let was_hopeless = !account.may_get_more(now);
        account.set_hopeless_until(if is_hopeless { now.steady_ns + HOPELESS_NS } else { 0 });
        if is_hopeless && !was_hopeless {
            node.elsewhere.tell();
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one look has one caller")]
    fn carry_out(
        &mut self,
        plan: Plan,
        warm: &mut Warm,
        node: &Node,
        key: CellKey,
        ground: &Ground<'_>,
        cell: &mut HeapCell,
        resource: &Resource,
        now: Now,
    ) {
        let HeapCell { account: Some(account), words, .. } = cell else { return };
        let durable = node.catalogue().is_durable(key.0);
        let mut sessions = node.sessions_mut();
        for (region, number) in plan.give_back {
            let Some(from) =
                account.book().held().iter().find(|held| held.number == number && held.from.region == region)
            else {
                continue;
            };
            let from = from.from;
            let Some(session) = sessions.get_mut(&from) else { continue };
            if let Ok(back) = account.give_back(words, ground, (from, number), session, (durable, now)) {
                let entry = Entry::Return { id: ShortId::default(), back };
                self.tells.push((region, Topic::Return(key, number), entry));
            }
        }
        if node.is_journal_down() || self.restored_disk {
            return;
        }
        for (region, part) in plan.lend {
            let Some(peer) = self.peers.get(&region) else { continue };
            let to = peer.writer;
            if self.versions.closed(to) {
                continue;
            }
            let with_peer = account.book().lent().iter().filter(|lent| lent.to == to).count();
            if with_peer >= LOANS_PER_PEER_MAX {
                continue;
            }
            let Some(session) = sessions.get_mut(&to) else { continue };
            let tokens = part.units.min(account.algorithm.available(words, now, ground.salt));
            let number = self.loans.take(node);
            let offer = Offer { number, to, part, tokens, ttl_ns: self.home.loan_ttl_ns };
            if let Ok(grant) = account.lend(words, ground, &offer, session, now) {
                self.traffic.lent += 1;
                let loans = (account.book().lent().len() + account.book().held().len()) as u64;
                self.traffic.loans_max = self.traffic.loans_max.max(loans);
                warm.pieces.push(Piece { to: region, weight: resource.weigh(part), at_ns: now.steady_ns });
                let entry = Entry::Grant { id: ShortId::default(), grant };
                self.tells.push((region, Topic::Grant(key, number), entry));
            }
        }
    }

    /// A window's rights: asks for them, and gives.
    #[expect(clippy::too_many_arguments, reason = "one look has one caller")]
    fn look_at_stock(
        &mut self,
        warm: &mut Warm,
        (node, preference): (&Node, &Preference),
        key: CellKey,
        ground: &Ground<'_>,
        cell: &mut HeapCell,
        denied: u64,
        now: Now,
    ) -> bool {
        let (left, end_ns) = {
            let Some(account) = cell.account.as_deref() else { return false };
            (account.available(&cell.words, cell.reserved(), now, ground.salt), account.window())
        };
        let Some(account) = cell.account.as_deref_mut() else { return false };
        warm.enter(end_ns);
        let reached = || self.peers.values().filter(|peer| peer.is_reached(now.steady_ns, REACH_NS));
        let time_left_ns = time_left_ns(end_ns, now);
        let window_ns = u128::from(ground.global.period_ns().max(1));
        // As a window goes by, what is kept of it for requests that may still come becomes less.
        let place = |region: Region, standing_units: u64, stake: Stake| {
            let floor = u128::from(preference.floor(standing_units)) * u128::from(time_left_ns) / window_ns;
            let floor = u64::try_from(floor).unwrap_or(u64::MAX).min(standing_units);
            Stake { class: preference.class(region), floor, ..stake }
        };
        let others = reached().map(|peer| {
            let standing = self.standing_of(peer.writer, ground, now).units;
            let region = peer.writer.region;
            let stake = warm.stake(region, standing, now.steady_ns, peer.round_ns());
            (region, place(region, standing, stake))
        });
        let own = Stake { left, demand_milli: warm.demand.units_milli(), ..Stake::default() };
        let mut stock = Stock {
            own: place(self.me().region, account.standing().units, own),
            others: others.collect(),
            time_left_ns,
            round_ns: reached().map(Peer::round_ns).max().unwrap_or(0),
            denied: if denied <= ground.global.budget() { denied } else { 0 },
        };
        let received = account.open().received().iter().map(|(_, units)| units).sum();
        if received != warm.received {
            (warm.received, warm.asked_in_vain) = (received, 0);
        }
        if std::mem::take(&mut warm.regive) {
            if !account.open().given().is_empty() {
                account.write_again();
            }
            for (region, cumulative) in account.open().given() {
                let entry = Entry::Give { id: ShortId::default(), end_ns, cumulative: *cumulative };
                self.tells.push((*region, Topic::Give(key, end_ns), entry));
            }
        }
        let asked = std::mem::take(&mut warm.asked);
        let may_give = !node.is_journal_down() && self.owns_nothing().is_none() && ground.in_force;
        for Asked { by, units, .. } in asked.into_iter().filter(|asked| asked.end_ns == end_ns && may_give) {
            let give = stock.give(by, units);
            if give > 0
                && let Ok(cumulative) = account.give(ground, by, give, stock.own.left)
            {
                stock.own.left -= give;
                stock.others.iter_mut().filter(|(r, _)| *r == by).for_each(|(_, stake)| stake.left += give);
                self.traffic.given += 1;
                let entry = Entry::Give { id: ShortId::default(), end_ns, cumulative };
                self.tells.push((by, Topic::Give(key, end_ns), entry));
            }
            // So that the asker knows whom not to ask again.
            warm.told = None;
        }
        account.set_low_water(stock.low_water());
        self.weigh_hope(account, node, stock.is_hopeless(), now);
        let short = stock.own.left < stock.low_water() || stock.denied > stock.own.left;
        if !short {
            warm.asked_in_vain = 0;
        } else if now.steady_ns >= warm.quiet_until_ns && self.owns_nothing().is_none() && ground.in_force {
            let asks = stock.ask(ASKED_MAX);
            for (region, units) in &asks {
                if let Some(peer) = self.peers.get_mut(region) {
                    let entry = Entry::Ask { id: ShortId::default(), end_ns, units: *units };
                    peer.outbox.tell(Topic::Ask(key, end_ns), entry, 0);
                }
            }
            if !asks.is_empty() {
                // Not before the answers can be here.
                let wait = ASK_NS.max(stock.round_ns + stock.round_ns / 4) << warm.asked_in_vain.min(6);
                warm.asked_in_vain += 1;
                warm.quiet_until_ns = now.steady_ns + wait.min(ASK_NS_MAX);
            }
        }
        short
    }

    /// Tells the others how a cell is doing, where that is news.
    #[expect(clippy::too_many_arguments, reason = "one look has one caller")]
    fn tell_news(
        &mut self,
        warm: &mut Warm,
        key: CellKey,
        ground: &Ground<'_>,
        cell: &HeapCell,
        resource: &Resource,
        scarce: bool,
        now: Now,
    ) {
        let Some(account) = cell.account.as_deref() else { return };
        let left = account.algorithm.available(&cell.words, now, ground.salt);
        let demand = warm.demand.units_milli();
        let holds = resource.weigh(account.effective());
        let due = match warm.told {
            None => true,
            Some(told) => {
                let age = now.steady_ns.saturating_sub(told.at_ns);
                let differs =
                    |old: Rough, new: u64, part: u64| old.get().abs_diff(new) > new.max(old.get()) / part;
                // The others count on it that what was left is used as it was asked for.
                let by_now = |told: Told, age: u64| {
                    Rough::new(told.left.get().saturating_sub(units_in(told.demand.get(), age)))
                };
                let changed = differs(told.demand, demand, if scarce { 8 } else { 3 })
                    || differs(told.holds, holds, 32)
                    || (*resource == Resource::Rights && differs(by_now(told, age), left, 8));
                (changed && age >= 15_000_000) || (scarce && age >= REFRESH_NS / 4) || age >= REFRESH_NS
            }
        };
        if !due {
            return;
        }
        let told = Told {
            demand: Rough::new(demand),
            holds: Rough::new(holds),
            left: Rough::new(left),
            at_ns: now.steady_ns,
        };
        warm.told = Some(told);
        for peer in self.peers.values_mut().filter(|peer| peer.is_reached(now.steady_ns, REACH_NS)) {
            let id = ShortId::default();
            let entry = Entry::News { id, demand: told.demand, holds: told.holds, left: told.left };
            peer.outbox.tell(Topic::News(key), entry, 0);
            if warm.short > 0 {
                peer.outbox.tell(Topic::Short(key), Entry::Short { id, units: warm.short }, 0);
            }
        }
    }

    /// Whether a peer can be lent to and asked now: it was heard, and the catalogue names it.
    fn is_partner(&self, peer: &Peer, now: Now) -> bool {
        peer.is_reached(now.steady_ns, REACH_NS) && self.versions.owns(peer.writer)
    }

    /// The standing part that another writer has of a cell, as far as is known here.
    fn standing_of(&self, writer: Writer, ground: &Ground<'_>, now: Now) -> acequia_limits::Part {
        let kind = membership::kind_of(ground.global, now);
        self.versions.share(writer, ground.global.budget(), ground.salt, kind)
    }

    // What comes.

    /// Takes a frame that came from a region.
    pub(crate) fn handle(
        &mut self,
        node: &Node,
        from: Region,
        bytes: &[u8],
        raw: Now,
    ) -> Result<(), FrameFault> {
        self.traffic.frames_in += 1;
        let taken = self.take(node, from, bytes, (raw, node.not_before(raw)));
        self.traffic.frames_refused += u64::from(taken.is_err());
        taken
    }

    /// Clocks are compared as they are, and windows go by the corrected one.
    fn take(
        &mut self,
        node: &Node,
        from: Region,
        bytes: &[u8],
        (raw, now): (Now, Now),
    ) -> Result<(), FrameFault> {
        let Frame { header, entries } = wire::read(bytes)?;
        if header.writer.region != from || from == self.me().region {
            return Err(FrameFault::Impostor { region: from, said: header.writer });
        }
        if self.versions.closed(header.writer) && !self.is_leaving(header.writer) {
            return Err(FrameFault::Closed(header.writer));
        }
        let drift_ppm = self.versions.version().map_or(0, |version| version.drift_ppm);
        let named = |writer: Writer| self.versions.version().is_some_and(|version| names(version, writer));
        let peer = self.peers.entry(from).or_insert_with(|| Peer::new(header.writer));
        if (header.writer, header.boot) < (peer.writer, peer.boot) && !broken(Broken::TrustOldBoot) {
            return Err(FrameFault::Late(header.writer));
        }
        // Who the catalogue names is not displaced by a writer that it does not know: that one is told the
        // catalogue when it is named.
        if header.writer != peer.writer
            && named(peer.writer)
            && !named(header.writer)
            && peer.is_reached(raw.steady_ns, REACH_NS)
        {
            return Err(FrameFault::Unnamed(header.writer));
        }
        let began_anew = (header.writer, header.boot) != (peer.writer, peer.boot);
        if began_anew {
            peer.begin_anew(header.writer, header.boot);
        }
        {
            let mut sessions = node.sessions_mut();
            if began_anew {
                // Of writers of a region that own nothing, one is enough.
                let own = &self.versions;
                let of_region = |writer: &Writer| writer.region == from && *writer != header.writer;
                sessions.retain(|writer, _| !of_region(writer) || own.closed(*writer) || own.owns(*writer));
            }
            let session = sessions.entry(header.writer).or_insert_with(|| Session::new(drift_ppm));
            session.set_drift_ppm(drift_ppm);
            session.hear(Beat { boot: header.boot, number: header.beat }, now.steady_ns);
        }
        // A peer that saw a later process of this node, or loans that it never gave: an old disk.
        let (own, boot) = (self.home.writer.incarnation, self.beats.boot());
        let ahead = header.seen.boot > boot || header.loan_max > self.loans.reserved;
        // Or frames that this process never sent: another one had its number.
        let twice = header.seen.boot == boot && header.seen.highest > peer.outbox.last_number();
        let is_old = (ahead || twice) && header.seen.incarnation == own && header.seen.boot > 0;
        if is_old && !broken(Broken::OldDiskTrusted) {
            self.restored_disk = true;
        }
        let adopted = header.mark > peer.mark;
        if adopted || began_anew || !peer.is_reached(raw.steady_ns, REACH_NS) {
            peer.resync.begin();
        }
        peer.hear(&header, (own, boot), raw);
        if adopted {
            // What it was told of a version before it had it, it could not count.
            self.tell_all_acks(from);
        }
        if began_anew {
            for warm in self.cells.values_mut().flatten() {
                warm.told = None;
                // Its frames are counted anew.
                warm.views.retain(|view| view.of != from);
            }
            self.tell_all_acks(from);
        }
        self.compare_marks(&header, from);
        let same_catalogue = header.mark == self.mark();
        let Some(peer) = self.peers.get_mut(&from) else { return Ok(()) };
        // An entry about a cell that nobody introduced would be lost if the frame were confirmed.
        let mut strangers: SmallVec<[ShortId; 4]> = SmallVec::new();
        let mut unnamed: SmallVec<[ShortId; 4]> = SmallVec::new();
        let mut is_lost = false;
        let mut keys: Vec<Option<CellKey>> = Vec::with_capacity(entries.len());
        for entry in &entries {
            let mut key = None;
            match entry {
                Entry::Introduce { id, limit, tag, which } => {
                    // A limit that was never in force here has no slot: entries about its cells are refused.
                    let slot = node.slot_of(*limit);
                    let tag = crate::journal_tag(*tag);
                    peer.outbox.names.introduce(*id, (slot.unwrap_or(NO_SLOT), tag));
                    if let Some(slot) = slot
                        && *which > 0
                        && same_catalogue
                        && self.told.len() < WARM_MAX
                    {
                        self.told.insert((slot, tag), *which);
                    }
                }
                other => {
                    if let Some(id) = other.cell() {
                        // A number of an earlier process of this node may be another cell's by now.
                        let is_mine = (header.seen.incarnation, header.seen.boot) == (own, boot);
                        key = peer.outbox.names.cell(id).filter(|_| id.0 & 1 == 0 || is_mine);
                        if key.is_none() {
                            // What is only news is told again, and can be lost; rights cannot.
                            let is_news =
                                matches!(other, Entry::News { .. } | Entry::Short { .. } | Entry::Ask { .. });
                            is_lost |= !is_news;
                            strangers.push(id);
                        }
                    }
                }
            }
            if key.is_some_and(|key| key.0 == NO_SLOT)
                && let Some(id) = entry.cell()
            {
                // It shall be introduced again: the limit may be known by then.
                unnamed.push(id);
            }
            keys.push(key.filter(|key| key.0 != NO_SLOT));
        }
        for id in strangers.into_iter().chain(unnamed) {
            peer.outbox.tell(Topic::Unknown(id), Entry::Unknown { id }, 0);
        }
        if is_lost {
            // A limit that this node has not heard of, or a number it forgot: the frame comes again. But what mends
            // that counts at once, or two such frames could wait for each other for ever.
            for entry in entries {
                if matches!(entry, Entry::Version(_) | Entry::Acked { .. } | Entry::Unknown { .. }) {
                    let _known = self.take_entry(node, &header, None, entry, now);
                }
            }
            return Ok(());
        }
        if !peer.seen.note(header.number) {
            return Ok(());
        }
        peer.owes_reply |= !entries.is_empty();
        for (entry, key) in entries.into_iter().zip(keys) {
            if self.take_entry(node, &header, key, entry, now).is_err() {
                self.traffic.entries_refused += 1;
            }
        }
        Ok(())
    }

    fn take_entry(
        &mut self,
        node: &Node,
        header: &Header,
        key: Option<CellKey>,
        entry: Entry,
        now: Now,
    ) -> Result<(), Refusal> {
        let region = header.writer.region;
        // One that leaves is still heard: it must learn of it and say so. What it lends or gives is refused.
        let goes_on = matches!(
            entry,
            Entry::Introduce { .. }
                | Entry::Unknown { .. }
                | Entry::Acked { .. }
                | Entry::Version(_)
                | Entry::Return { .. }
        );
        if self.versions.closed(header.writer) && !goes_on {
            return Err(Refusal::Stale);
        }
        match (entry, key) {
            (Entry::Introduce { .. }, _) => Ok(()),
            (Entry::Unknown { id }, _) => {
                if let Some(peer) = self.peers.get_mut(&region) {
                    peer.outbox.names.unknown(id);
                }
                Ok(())
            }
            (Entry::News { demand, holds, left, .. }, Some(key)) => {
                let Some(warm) = self.wake(key, now.steady_ns) else { return Ok(()) };
                let view = warm.view_mut(region);
                if header.number < view.frame {
                    return Err(Refusal::Stale);
                }
                let more = demand > view.demand;
                let at_ns = now.steady_ns;
                let short = if view.short_frame == header.number { view.short } else { 0 };
                *view = View { demand, holds, left, short, at_ns, frame: header.number, ..*view };
                if more {
                    warm.busy_ns = now.steady_ns;
                }
                Ok(())
            }
            (Entry::Short { units, .. }, Some(key)) => {
                if let Some(warm) = self.wake(key, now.steady_ns) {
                    let view = warm.view_mut(region);
                    if header.number >= view.frame.max(view.short_frame) {
                        (view.short, view.short_frame) = (units, header.number);
                    }
                    warm.busy_ns = now.steady_ns;
                }
                Ok(())
            }
            (Entry::Ask { end_ns, units, .. }, Some(key)) => {
                self.wake(key, now.steady_ns);
                if let Some(Some(warm)) = self.cells.get_mut(key)
                    && warm.asked.len() < self.peers.len()
                {
                    warm.asked.retain(|asked| asked.by != region);
                    warm.asked.push(Asked { by: region, end_ns, units });
                }
                Ok(())
            }
            (Entry::Refused { number, .. }, Some(key)) => {
                self.end_loan(node, header.writer, key, number, now);
                Ok(())
            }
            (Entry::Renew(renew), _) => {
                let mut sessions = node.sessions_mut();
                let session = sessions.get_mut(&header.writer).ok_or(Refusal::Unheard)?;
                session.take_renew(&renew, &self.beats, now.steady_ns)
            }
            (Entry::Version(version), _) => {
                let newer = self.offered.as_ref().is_none_or(|offered| offered.mark < version.mark);
                if newer {
                    self.offered = Some(*version);
                }
                Ok(())
            }
            (Entry::Acked { writer, ack }, _) => {
                // A peer tells its own word, and passes on what it heard: a word cannot be forged without a
                // certificate of some region, and a region that lies about others is outside the model.
                if self.versions.learn_ack(writer, ack, now) == Learned::New {
                    self.pass_on_ack(writer, header.writer);
                }
                Ok(())
            }
            (Entry::Usage { limit, writer, spent, refunded }, _) => {
                if writer != header.writer || refunded > spent || node.slot_of(limit).is_none() {
                    return Err(Refusal::Malformed);
                }
                let counter = self.usage.entry(limit).or_default();
                for (total, dir) in [(spent, Dir::Pos), (refunded, Dir::Neg)] {
                    counter.apply(Op { dot: Dot::new(writer, total), dir });
                }
                let charged = self.charged.entry((writer, limit)).or_default();
                *charged = spent.max(*charged);
                Ok(())
            }
            (Entry::Digest(digest), _) => {
                if let Some(peer) = self.peers.get_mut(&region) {
                    peer.resync.compare(*digest);
                }
                Ok(())
            }
            (Entry::Differs(buckets), _) => {
                if let Some(peer) = self.peers.get_mut(&region) {
                    peer.resync.tell_again(buckets);
                }
                self.tell_usage_again(region, buckets);
                Ok(())
            }
            (entry, Some(key)) => self.take_right(node, header, key, entry, now),
            (_, None) => Err(Refusal::Unknown(0)),
        }
    }

    /// An entry that moves rights.
    fn take_right(
        &mut self,
        node: &Node,
        header: &Header,
        key: CellKey,
        entry: Entry,
        now: Now,
    ) -> Result<(), Refusal> {
        let from = header.writer;
        let owned = self.owns_nothing().is_none();
        let catalogue = node.catalogue();
        let visit = Visit { node, catalogue: &catalogue, key, now, which: self.told.get(&key).copied() };
        let beats = &self.beats;
        let granted = if let Entry::Grant { grant, .. } = &entry { Some(grant.number) } else { None };
        let result = visit.at(owned, |ground, cell| {
            let HeapCell { account: Some(account), words, .. } = &mut *cell else {
                return Err(Refusal::Unknown(0));
            };
            account.settle(words, ground, now, &*node.sessions());
            let mut sessions = node.sessions_mut();
            let session = sessions.get_mut(&from).ok_or(Refusal::Unheard)?;
            let mut back = None;
            match entry {
                Entry::Grant { grant, .. } => {
                    if !owned || !ground.in_force {
                        return Err(Refusal::Unheard);
                    }
                    account.accept(words, ground, (from, &grant), (beats, session), now)
                }
                Entry::Return { back, .. } => account.take_return(words, ground, (from, &back), session, now),
                Entry::Recall { number, .. } => {
                    let durable = catalogue.is_durable(key.0);
                    back = Some(account.give_back(words, ground, (from, number), session, (durable, now))?);
                    Ok(())
                }
                Entry::Give { end_ns, cumulative, .. } => {
                    if !owned || ground.local.owns_nothing() {
                        return Err(Refusal::Unheard);
                    }
                    let forgotten = node.spent_before_start(&catalogue, key.0, &account.algorithm, now);
                    let received = account.receive(ground, from.region, (end_ns, cumulative), forgotten);
                    if let Some(peer) = self.peers.get_mut(&from.region) {
                        // All that ever came, not what was told now: a giver whose disk is an old one learns so.
                        let cumulative = account.received(from.region, end_ns).max(cumulative);
                        let entry = Entry::Got { id: ShortId::default(), end_ns, cumulative };
                        peer.outbox.tell(Topic::Got(key, end_ns), entry, 0);
                    }
                    received.map(|_| ())
                }
                Entry::Got { end_ns, cumulative, .. } => {
                    if end_ns == account.window() {
                        account.open().own_echo(from.region, cumulative)
                    } else {
                        Ok(())
                    }
                }
                _ => Err(Refusal::Malformed),
            }?;
            let unwritten = account.take_unwritten();
            drop(sessions);
            let batch = if unwritten { node.write_account(key, cell, now) } else { 0 };
            if let Some(back) = back {
                returned(self.peers.get_mut(&from.region), key, back, batch);
            }
            Ok(())
        });
        let result = result.unwrap_or(Err(Refusal::Unknown(0)));
        if let Some(number) = granted
            && result.is_err_and(|refusal| refusal != Refusal::Duplicate(number))
            && let Some(peer) = self.peers.get_mut(&from.region)
        {
            let entry = Entry::Refused { id: ShortId::default(), number };
            peer.outbox.tell(Topic::Refused(key, number), entry, 0);
        }
        match &result {
            Ok(()) => {
                self.traffic.borrowed += u64::from(granted.is_some());
                self.wake(key, now.steady_ns);
                node.elsewhere.tell();
            }
            Err(Refusal::RestoredDisk { .. }) => self.restored_disk = true,
            Err(_) => {}
        }
        result
    }

    /// A holder did not take a loan up: it is not renewed, so that it comes back by itself.
    fn end_loan(&mut self, node: &Node, to: Writer, key: CellKey, number: u64, now: Now) {
        let catalogue = node.catalogue();
        Visit { node, catalogue: &catalogue, key, now, which: None }.at(false, |_, cell| {
            let HeapCell { account: Some(account), .. } = cell else { return };
            let is_its = account.book().lent().iter().any(|lent| lent.number == number && lent.to == to);
            if is_its && let Some(session) = node.sessions_mut().get_mut(&to) {
                // Where as many are frozen as can be told, a later look does it.
                let _ = account.refused(number, session);
            }
        });
    }

    // What goes.

    /// There is a new connection: what was under way on the one before is lost.
    pub(crate) fn reconnected(&mut self, region: Region, now: Now) {
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
        may_send: impl Fn(Region) -> bool,
    ) -> Option<(Region, Vec<u8>)> {
        let committed = node.progress().committed;
        if committed < self.born_in {
            return None;
        }
        // A frame may leave before the first tick: its beat is dated no later than now.
        if self.beat_ns == 0 && !broken(Broken::BeatBeforeSent) {
            self.beat(now);
        }
        let regions: SmallVec<[Region; 8]> = self.peers.keys().copied().filter(|r| may_send(*r)).collect();
        let catalogue = node.catalogue();
        for region in regions {
            let (me, beat, mark) = (self.me(), self.beat, self.mark());
            let Some(peer) = self.peers.get_mut(&region) else { continue };
            let quiet = now.steady_ns.saturating_sub(peer.said_ns);
            let pulse = peer.said_ns == 0 || quiet >= PULSE_NS;
            if !(pulse || peer.owes_reply && quiet >= peer::REPLY_NS || peer.outbox.is_ready(committed)) {
                continue;
            }
            let loan_max = node.sessions().get(&peer.writer).map_or(0, Session::accepted_max);
            let header = Header {
                writer: me,
                boot: beat.boot,
                number: peer.outbox.number(),
                seen: peer.seen,
                beat: beat.number,
                wall_ns: corrected(now.wall_ns, self.time.correction_ns()),
                loan_max,
                mark,
            };
            let cells = &self.cells;
            let bytes = peer.outbox.fill(&header, committed, now.steady_ns, |key| {
                let which = cells.get(key).and_then(Option::as_ref).map_or(0, |warm| warm.which);
                catalogue.id(key.0).map(|limit| (limit, which))
            });
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

    /// Counts what was charged here since the last time, and tells the others once it is on the disk: a process that goes
    /// on with less than it told would not be heard.
    fn count_usage(&mut self, node: &Node, catalogue: &Catalogue) {
        let me = self.me();
        let mut changed = Vec::new();
        for (slot, spent) in node.take_spent() {
            let Some(limit) = catalogue.id(slot) else { continue };
            let counter = self.usage.entry(limit).or_default();
            let op = counter.inc_many(me, spent);
            self.charged.insert((me, limit), op.dot.counter);
            counter.apply(op);
            changed.push(limit);
        }
        if changed.is_empty() {
            return;
        }
        let own: Vec<(LimitId, u64)> = self.charged_by(me).collect();
        let Ok(bytes) = postcard::to_allocvec(&own) else { return };
        self.charged_in = node.write_record(crate::journal::USAGE, bytes);
        for limit in changed {
            self.tell_usage(limit, None);
        }
    }

    /// Tells one region, or all, what this node charged under a limit.
    fn tell_usage(&mut self, limit: LimitId, to: Option<Region>) {
        let (writer, after_batch) = (self.me(), self.charged_in);
        let Some(spent) = self.charged.get(&(writer, limit)).copied() else { return };
        for (_, peer) in self.peers.iter_mut().filter(|(region, _)| to.is_none_or(|to| to == **region)) {
            let entry = Entry::Usage { limit, writer, spent, refunded: 0 };
            peer.outbox.tell(Topic::Usage(limit, writer), entry, after_batch);
        }
    }

    pub(crate) fn charged(&self, writer: Writer, limit: LimitId) -> u64 {
        self.charged.get(&(writer, limit)).copied().unwrap_or(0)
    }

    /// What a writer said that it charged, by limit.
    fn charged_by(&self, writer: Writer) -> impl Iterator<Item = (LimitId, u64)> + '_ {
        let all = (writer, LimitId(0))..=(writer, LimitId(u128::MAX));
        self.charged.range(all).map(|((_, limit), units)| (*limit, *units))
    }

    /// What this node had charged, as its disk has it.
    pub(crate) fn take_up_usage(&mut self, charged: Vec<(LimitId, u64)>) {
        let me = self.me();
        for (limit, units) in charged {
            let counter = self.usage.entry(limit).or_default();
            counter.apply(Op { dot: Dot::new(me, units), dir: Dir::Pos });
            self.charged.insert((me, limit), units);
        }
    }
}

/// Whether a version knows a writer.
fn names(version: &Version, writer: Writer) -> bool {
    version.members.get(&writer.region).is_some_and(|member| member.writer == writer)
}

fn returned(peer: Option<&mut Peer>, key: CellKey, back: acequia_rights::Return, after_batch: u64) {
    if let Some(peer) = peer {
        let entry = Entry::Return { id: ShortId::default(), back };
        peer.outbox.tell(Topic::Return(key, back.number), entry, after_batch);
    }
}

/// What of a standing part is not lent.
fn floor_of(preference: &Preference, standing: Part) -> Part {
    // No more than the standing part, so that it fits.
    let rate = preference.floor(u64::from(standing.rate)) as u32;
    Part { rate, units: preference.floor(standing.units) }
}

fn corrected(wall_ns: u64, correction_ns: i64) -> u64 {
    wall_ns.saturating_add_signed(correction_ns)
}

impl Numbers {
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
