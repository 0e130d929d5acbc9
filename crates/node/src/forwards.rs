//! Forwards: a request that waits at one node is charged at another node of the region, the *owner* of its
//! cell.
//!
//! If every node of a region held a piece of a cell of few units, no piece would be of use to it, or found by
//! the others. So one node of the region, the *owner* of such a cell, deals with other regions and with the
//! region's pool for the cell. The owner's *mates*, the other nodes of the region, ask it for single units
//! over the mesh. The owner charges its own cell, as for a request of its own, and answers. Then the waiting
//! request passes, and is charged nowhere else.
//!
//! **A request that passes by a forward was charged once, after it came and before it passed**: it counts as
//! if it had passed at the owner when the owner charged it. So the promise of the owner's cell is kept. The
//! reasons:
//!
//! - The owner charges before it answers ([`crate::regions`]), once each time it receives a forward. If a
//!   forward is delivered twice, the owner charges more than passes, never less.
//! - The owner charges only if its limit has the same variant as at the mate. While catalogues or files
//!   differ, it refuses. If the mate's limit has changed by the time the answer comes, nobody passes.
//! - A forward has a number that no process of the node has used before. An answer counts once: from the node
//!   that was asked, in a frame that was meant for this process. The answer then is a *remote charge*, which
//!   one request takes (`Forwards::take`).
//! - A request takes a remote charge only if the request began to wait before the forward was asked for, and
//!   so was there when the owner charged ([`crate::Forwarding::Since`]).
//! - A remote charge lasts [`DRAW_NS`] from when it was asked for, by this node's steady clock. So a request
//!   passes no later than that after its charge.
//!
//! When a cell's store is in an outage, or its pool has nothing of a window, the region's remaining units are
//! spread over its nodes. A node that has none then asks the others one after another, the owner first
//! ([`Source`]).
//!
//! Lost, late or repeated frames, a node that dies or restarts, and a request that stops waiting only waste
//! units: those are charged and nobody passes. Safety does not depend on which node is the owner, since every
//! node charges what it has. An owner that has nothing and can get nothing says so. Then its mates deal with
//! the cell themselves for a while (`Forwards::is_alone`).

mod marks;
mod mates;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use acequia_limits::{Algorithm, CellTag, LimitId, Mode, Now, limit::OnStoreLoss};
use acequia_rights::{
    Incarnation, MemberId,
    mutation::{Mutation, mutated},
};
use smallvec::SmallVec;

use crate::{
    Active, Answer, Catalogue, LimitAnswer, Node, Outcome, journal_tag, lock,
    regions::{CellKey, wire::Whole},
};
use marks::Marks;
use mates::LiveMates;

/// A remote charge must pass a request within this time after the forward was asked for; later it passes
/// nobody.
pub const FORWARD_NS: u64 = 50_000_000;
/// The longest wait for one forward: an answer that comes at the last moment must still pass a request. A
/// request that waits longer forwards again.
const ASK_NS: u64 = 40_000_000;
/// How long a request waits for its forward, unless its limit sets a wait. The owner may have to ask the
/// region's pool first, and all three are near each other. Timers are up to a millisecond late, and the whole
/// wait should not be much longer than three milliseconds.
pub const FORWARD_WAIT_NS: u64 = 2_500_000;
/// The owner stops charging this long before the mate gives up, since the answer takes time, too.
const BACK_NS: u64 = 750_000;
/// A limit has few units if its budget and its units a second are both below this number times the number of
/// the catalogue's members. Up to here a forward is worth a message and a wait for nearly every request at a
/// mate (see the tables in tests/bench/README.md).
const FEW: u64 = 16;
/// Bounds: unanswered forwards plus unused remote charges of all cells; and unanswered forwards of one cell.
const ASKED_MAX: usize = 1_024;
const ASKED_OF_CELL_MAX: usize = 16;
/// Bounds on forwards of mates that wait here for units: in all, of one mate, and of one cell.
const HELD_MAX: usize = 512;
const HELD_OF_PEER_MAX: usize = 128;
const HELD_OF_CELL_MAX: usize = 32;
/// After a cell's owner had nothing, no more is forwarded for `VAIN_NS`. The time doubles with each miss in a
/// row, up to `VAIN_NS_MAX`.
const VAIN_NS: u64 = 4_000_000;
const VAIN_NS_MAX: u64 = 32_000_000;
/// After `SILENT_MAX` useless forwards in a row, a node counts as *far*: for `FAR_NS` it only gets probes for
/// zero units, and after that until one probe is answered in time. Then a single useless forward makes the
/// node far again, for twice as long each time in a row, up to `FAR_NS_MAX`.
const SILENT_MAX: u32 = 4;
const FAR_NS: u64 = 1_000_000_000;
const FAR_NS_MAX: u64 = 32_000_000_000;
/// How often every other node of the region is probed with a forward of zero units. The probe tells both ends
/// whether an answer can come in time, and costs no units.
const NOTHING_NS: u64 = 1_000_000_000;
/// A cell counts as forwarded for this long after a mate's last forward: its owner then holds enough of the
/// pool for all mates. Limits without a rate add twice their period, up to `DRAWN_NS_MAX`.
pub(crate) const FORWARDED_NS: u64 = 75_000_000_000;
pub(crate) const FORWARDED_NS_MAX: u64 = 600_000_000_000;
/// How many forward numbers one process has: its numbers begin after those of every earlier process.
const NUMBERS: u64 = 1 << 40;
/// The key of a probe, which is about no cell.
const NO_CELL: CellKey = (u32::MAX, CellTag(0));
/// The most cells to remember whose owner had nothing; the same bound holds for the cells that this node
/// deals with alone, and for those with nodes that had too little.
const VAIN_MAX: usize = 16_384;
/// When a cell's owner says that it cannot get units, or has had none for `MISSED_NS`, this node deals with
/// other regions and the pool itself for `ALONE_NS`, as if there were no forwards. Then it asks the owner
/// again.
const MISSED_NS: u64 = 2_000_000_000;
const ALONE_NS: u64 = 2_000_000_000;
/// If the owner then has nothing for this long, this node deals with the cell alone again.
const AGAIN_NS: u64 = 250_000_000;
/// A node that had too few units of a cell is not asked for as many again for this long.
const TRIED_NS: u64 = 250_000_000;
/// If the owner was not asked for this long, it may have had units meanwhile.
const UNASKED_NS: u64 = 500_000_000;
/// How often the records of cells whose owner had nothing are swept.
const SWEEP_NS: u64 = 250_000_000;

/// A waiting request and its forwards ([`Node::forward_charge`]).
#[derive(Debug)]
pub struct Forward {
    numbers: SmallVec<[u64; 1]>,
    since_ns: u64,
}

impl Forward {
    /// When the request began to wait: steady clock, for [`crate::Forwarding::Since`].
    pub const fn since_ns(&self) -> u64 {
        self.since_ns
    }
}

/// Counts of forwards since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardCounts {
    /// Forwards that this node sent, without probes.
    pub asked: u64,
    /// Forwards of mates that were charged here.
    pub charged: u64,
    /// Forwards that passed a request here.
    pub used: u64,
    /// Forwards that were charged at another node and passed nobody here.
    pub wasted: u64,
}

/// A forward to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    pub(crate) number: u64,
    pub(crate) to: MemberId,
    pub(crate) limit: LimitId,
    pub(crate) tag: CellTag,
    pub(crate) whole: Whole,
    pub(crate) units: u64,
    /// Whether the demand is known already: the request was forwarded before, or this node has told its need
    /// itself.
    pub(crate) is_again: bool,
}

/// A forward of a mate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingForward {
    /// The mate that asks, and the process number of that mate.
    pub(crate) from: Incarnation,
    pub(crate) process_number: u32,
    pub(crate) number: u64,
    pub(crate) key: CellKey,
    pub(crate) whole: Whole,
    pub(crate) units: u64,
    /// The last moment at which a charge is of use: steady clock.
    pub(crate) until_ns: u64,
    /// Whether the request was counted as demand.
    pub(crate) is_told: bool,
}

/// This node's forwards to other nodes, and the forwards of mates that wait here.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    mates: LiveMates,
    /// Whether charging has ended: the node stops, and the debt of each cell is written down.
    is_closed: AtomicBool,
    /// Whether a frame must be sent, or units may have come for the forwards that wait here.
    is_due: AtomicBool,
    /// When the first of the forwards that wait here must be answered: steady clock; 0 if none waits.
    answer_ns: AtomicU64,
    /// A filter for the keys of `alone`: most checks need not lock the state. It may hold other cells, too.
    alone_marks: Marks,
    /// A filter for cells of which no other node has a unit: most denials need not lock the state. It may
    /// hold other cells, too.
    tried_marks: Marks,
    /// Locked after any shard.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    asked: BTreeMap<u64, SentForward>,
    /// How many of `asked` are of each cell.
    asked_of: BTreeMap<CellKey, usize>,
    remote_charges: BTreeMap<(CellKey, u64), RemoteCharge>,
    vain: BTreeMap<CellKey, Vain>,
    /// The nodes that had too little of a cell.
    tried: BTreeMap<CellKey, Tried>,
    /// Cells that this node deals with itself, though another node is the owner; until when: steady clock.
    alone: BTreeMap<CellKey, u64>,
    /// When expired records were last swept: steady clock.
    swept_ns: u64,
    /// When the other nodes were last probed: steady clock.
    nothing_ns: u64,
    out: Vec<Asking>,
    held: VecDeque<PendingForward>,
    counts: ForwardCounts,
}

#[derive(Clone, Copy, Debug)]
struct SentForward {
    key: CellKey,
    to: MemberId,
    /// Whether the node is asked for what it keeps itself, and not as the cell's owner.
    is_mate: bool,
    whole: Whole,
    units: u64,
    at_ns: u64,
    /// The last moment at which a charge is of use: steady clock.
    until_ns: u64,
    is_sent: bool,
}

/// Units that another node has charged, for a request that waited before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteCharge {
    key: CellKey,
    from: MemberId,
    is_mate: bool,
    number: u64,
    whole: Whole,
    units: u64,
    asked_ns: u64,
    /// Whether the answer came after the request that asked had stopped waiting.
    is_late: bool,
}

/// A cell whose owner had nothing.
#[derive(Clone, Copy, Debug)]
struct Vain {
    times: u32,
    until_ns: u64,
    /// When the owner was first known to have none: steady clock.
    since_ns: u64,
}

/// The nodes of the region that had too little of a cell, each with the fewest units that it could not give.
#[derive(Clone, Debug)]
struct Tried {
    nodes: SmallVec<[(MemberId, u64); 2]>,
    until_ns: u64,
}

impl Forwards {
    /// Starts the numbers above those of all earlier processes of this node.
    pub(crate) fn begin(&self, process_number: u32) {
        lock(&self.state).next = u64::from(process_number).wrapping_mul(NUMBERS);
    }

    /// Notes the nodes of the region that are heard, with this one, and how many members the catalogue has. A
    /// node too far away for forwards deals with other regions and the pool itself.
    pub(crate) fn see(&self, own: MemberId, heard: &[MemberId], members: usize, now: Now) {
        self.ask_for_nothing(own, heard, now);
        self.mates.see(own, heard, members);
    }

    /// The owner of a cell in this region, if the cell's limit has few units and allows forwards.
    pub(crate) fn owner(&self, tag: CellTag, active: Option<&Active>, now: Now) -> Owner {
        let Some(active) = active.filter(|active| self.are_forwarded(active)) else { return Owner::Each };
        match self.mates.owner(tag) {
            None if self.mates.has_far() => Owner::Each,
            None => Owner::Own,
            Some(_) if self.is_alone((active.slot, journal_tag(tag)), now) => Owner::Each,
            Some(speaker) => Owner::Mate(speaker),
        }
    }

    /// Whether this node is a cell's owner, even if some nodes are too far away for it to act for all of
    /// them.
    pub(crate) fn is_owner(&self, tag: CellTag, active: Option<&Active>) -> bool {
        active.is_some_and(|active| self.are_forwarded(active)) && self.mates.owner(tag).is_none()
    }

    /// The node of the region to ask next for units of a cell, if this node deals with the cell itself and
    /// finds none in the pool.
    pub(crate) fn mate(&self, tag: CellTag, active: &Active, units: u64, now: Now) -> Option<MemberId> {
        if self.are_forwarded(active) {
            self.next_mate((active.slot, journal_tag(tag)), units, now)
        } else {
            None
        }
    }

    /// The node to ask next for units of a cell whose limit allows forwards. Nodes that had too little a
    /// moment ago are not asked.
    pub(crate) fn next_mate(&self, key: CellKey, units: u64, now: Now) -> Option<MemberId> {
        if self.tried_marks.may_have(key) {
            return None;
        }
        let state = lock(&self.state);
        let tried = state.tried.get(&key).filter(|tried| now.steady_ns < tried.until_ns);
        self.mates.next(key.1, units, tried.map_or(&[], |tried| &tried.nodes))
    }

    /// Whether a forward of a cell is under way.
    pub(crate) fn is_asking(&self, key: CellKey) -> bool {
        lock(&self.state).asked_of.contains_key(&key)
    }

    /// Notes that a node has fewer than these units of a cell. If there is no room to remember the node, no
    /// node is asked for as long.
    fn note_tried(&self, state: &mut State, (key, units): (CellKey, u64), node: MemberId, now: Now) {
        let is_none = match state.note_tried((key, units), node, now) {
            Some(tried) => self.mates.next(key.1, 1, &tried.nodes).is_none(),
            None => true,
        };
        if is_none {
            self.tried_marks.set(key);
        }
    }

    #[inline]
    fn are_forwarded(&self, active: &Active) -> bool {
        self.mates.are_few(&active.limit.algorithm) && may_be_forwarded(active)
    }

    /// Whether this node deals with a cell itself, because the owner had nothing.
    fn is_alone(&self, key: CellKey, now: Now) -> bool {
        self.alone_marks.may_have(key)
            && lock(&self.state).alone.get(&key).is_some_and(|until_ns| now.steady_ns < *until_ns)
    }

    /// Whether another node of the region is heard and near enough.
    #[inline]
    pub(crate) fn has_mates(&self) -> bool {
        self.mates.are_any()
    }

    /// Ends charging for forwards.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Whether charging has ended. The caller holds the lock of the cell that it would charge, and the cell
    /// is written down under that lock later.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether something must be sent or tried again.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }

    /// When the first of the forwards that wait here must be answered: steady clock.
    pub(crate) fn answer_ns(&self) -> Option<u64> {
        Some(self.answer_ns.load(Ordering::Acquire)).filter(|at_ns| *at_ns > 0)
    }

    /// Units came: the forwards that wait here are tried again.
    pub(crate) fn call(&self) {
        if self.has_mates() {
            self.is_due.store(true, Ordering::Release);
        }
    }

    /// The time (steady clock) since which a cell's owner is known to be empty: a request that comes now may
    /// expect units for a while from then. The result is `now` if that is not known, and `None` within the
    /// back-off.
    pub(crate) fn hopes_since(&self, key: CellKey, now: Now) -> Option<u64> {
        match lock(&self.state).vain.get(&key) {
            Some(vain) if now.steady_ns < vain.until_ns => None,
            Some(vain) if vain.was_asked(now) => Some(vain.since_ns),
            _ => Some(now.steady_ns),
        }
    }

    /// Takes a remote charge for a request that waits since `since_ns`, if it was charged by the variant that
    /// the limit has now. It counts as used when the request passes ([`Self::pass`]).
    pub(crate) fn take(
        &self,
        key: CellKey,
        (whole, units): (Whole, u64),
        since_ns: u64,
        now: Now,
    ) -> Option<RemoteCharge> {
        let mut state = lock(&self.state);
        let fits = |remote_charge: &RemoteCharge| {
            remote_charge.units == units
                && (remote_charge.whole == whole || mutated(Mutation::ForwardOfAnotherVariant))
                && (remote_charge.asked_ns >= since_ns || mutated(Mutation::ForwardUsedByAnybody))
                && now.steady_ns < remote_charge.asked_ns + FORWARD_NS
        };
        let of_cell = state.remote_charges.range((key, 0)..=(key, u64::MAX));
        let (name, remote_charge) = of_cell
            .map(|(name, remote_charge)| (*name, *remote_charge))
            .find(|(_, remote_charge)| fits(remote_charge))?;
        if !mutated(Mutation::ForwardUsedTwice) {
            state.remote_charges.remove(&name);
        }
        Some(remote_charge)
    }

    /// A request passes by its remote charge. So the node that charged is of use, and near enough.
    pub(crate) fn pass(&self, remote_charge: RemoteCharge) {
        let mut state = lock(&self.state);
        state.counts.used += 1;
        if !remote_charge.is_mate {
            state.vain.remove(&remote_charge.key);
        }
        drop(state);
        self.mates.note_use(remote_charge.from);
    }

    /// A request does not pass after all: its remote charge is kept for when it asks again.
    pub(crate) fn put_back(&self, remote_charge: RemoteCharge) {
        let mut state = lock(&self.state);
        state.remote_charges.insert((remote_charge.key, remote_charge.number), remote_charge);
    }

    /// The forwards to be sent.
    pub(crate) fn take_out(&self) -> Vec<Asking> {
        self.is_due.store(false, Ordering::Release);
        std::mem::take(&mut lock(&self.state).out)
    }

    /// Marks a forward as sent; gives within how many microseconds a charge is of use. `None` if nobody waits
    /// for the forward.
    pub(crate) fn send(&self, number: u64, now_ns: u64) -> Option<u32> {
        let mut state = lock(&self.state);
        let asked = state.asked.get_mut(&number)?;
        let left_us = asked.until_ns.saturating_sub(now_ns) / 1_000;
        if left_us == 0 {
            state.forget_asked(number);
            return None;
        }
        asked.is_sent = true;
        let units = asked.units;
        state.counts.asked += u64::from(units > 0);
        Some(u32::try_from(left_us).unwrap_or(u32::MAX))
    }

    /// Takes the forwards that wait here for units; the caller puts back those that go on waiting.
    pub(crate) fn take_held(&self) -> VecDeque<PendingForward> {
        std::mem::take(&mut lock(&self.state).held)
    }

    pub(crate) fn put_held(&self, held: VecDeque<PendingForward>) {
        let mut state = lock(&self.state);
        state.held = held;
        self.answer_ns.store(state.answer_ns(), Ordering::Release);
    }

    /// Holds a mate's forward until units come. Returns whether there is room.
    pub(crate) fn hold(&self, held: PendingForward) -> bool {
        let mut state = lock(&self.state);
        let of_peer = state.held.iter().filter(|other| other.from == held.from).count();
        let of_cell = state.held.iter().filter(|other| other.key == held.key).count();
        let has_room =
            state.held.len() < HELD_MAX && of_peer < HELD_OF_PEER_MAX && of_cell < HELD_OF_CELL_MAX;
        if has_room {
            state.held.push_back(held);
            self.answer_ns.store(state.answer_ns(), Ordering::Release);
        }
        has_room
    }

    pub(crate) fn count_charged(&self) {
        lock(&self.state).counts.charged += 1;
    }

    /// The cell and units of an unanswered forward, and whether the cell's owner was asked. `None` for a
    /// probe.
    pub(crate) fn asked(&self, number: u64) -> Option<(CellKey, u64, bool)> {
        let asked = lock(&self.state).asked.get(&number).copied()?;
        (asked.key != NO_CELL).then_some((asked.key, asked.units, !asked.is_mate))
    }

    /// Takes `from`'s answer to a forward of this process: its units, 0 for none now, or `None` for none
    /// ever. Returns whether the answer was waited for.
    pub(crate) fn came(&self, from: MemberId, number: u64, units: Option<u64>, now: Now) -> bool {
        let mut state = lock(&self.state);
        let answers = |asked: &&SentForward| {
            asked.is_sent && asked.to == from && units.is_none_or(|units| units == 0 || units == asked.units)
        };
        let Some(SentForward { key, is_mate, whole, units: wanted, at_ns, until_ns, .. }) =
            state.asked.get(&number).filter(answers).copied()
        else {
            state.counts.wasted += u64::from(units.is_some_and(|units| units > 0));
            return false;
        };
        state.forget_asked(number);
        let is_late = now.steady_ns >= until_ns + BACK_NS;
        if units.is_none_or(|units| units == 0) && !is_late {
            // The node could have answered with units in time. If units came, `pass` or `expire` tells
            // whether they were of use.
            self.mates.note_near(from, now);
        } else if key == NO_CELL {
            self.mates.note_silent(from, now);
        }
        match units {
            _ if key == NO_CELL => {}
            None | Some(0) if is_mate => self.note_tried(&mut state, (key, wanted), from, now),
            None => {
                self.note_tried(&mut state, (key, wanted), from, now);
                state.leave_alone(key, now, &self.alone_marks);
            }
            Some(0) => state.miss(key, now, &self.alone_marks),
            Some(units) => {
                let remote_charge =
                    RemoteCharge { key, from, is_mate, number, whole, units, asked_ns: at_ns, is_late };
                state.remote_charges.insert((key, number), remote_charge);
            }
        }
        true
    }

    /// Gives up forwards without an answer, and counts unused remote charges as wasted. If the answer of a
    /// remote charge came late, that counts like no answer: an owner whose answers are always late would be
    /// charged for nobody, again and again. If the answer came in time, the request had hung up or passed by
    /// other units.
    ///
    /// Returns whether waiting requests should hear of it; the least number that is still waited for; and the
    /// cells of unanswered forwards to nodes that were not asked as the owner.
    pub(crate) fn expire(&self, now: Now) -> (bool, u64, SmallVec<[CellKey; 4]>) {
        let mut state = lock(&self.state);
        let mut silent = SmallVec::new();
        let is_over = |at_ns: u64| now.steady_ns >= at_ns + FORWARD_NS;
        let late: SmallVec<[u64; 4]> =
            state.asked.iter().filter(|(_, asked)| is_over(asked.at_ns)).map(|(number, _)| *number).collect();
        for number in &late {
            let Some(SentForward { key, to, is_mate, units, is_sent, .. }) = state.forget_asked(*number)
            else {
                continue;
            };
            if is_mate {
                self.note_tried(&mut state, (key, units), to, now);
                silent.push(key);
            } else if key != NO_CELL {
                state.miss(key, now, &self.alone_marks);
            }
            // A forward that was never sent says nothing about the node.
            if is_sent {
                self.mates.note_silent(to, now);
            }
        }
        let unused: SmallVec<[RemoteCharge; 4]> = state
            .remote_charges
            .extract_if(.., |_, remote_charge| is_over(remote_charge.asked_ns))
            .map(|(_, remote_charge)| remote_charge)
            .collect();
        state.counts.wasted += unused.len() as u64;
        for RemoteCharge { key, from, is_mate, units, .. } in
            unused.iter().filter(|remote_charge| remote_charge.is_late)
        {
            if *is_mate {
                self.note_tried(&mut state, (*key, *units), *from, now);
            } else {
                state.miss(*key, now, &self.alone_marks);
            }
            self.mates.note_silent(*from, now);
        }
        if now.steady_ns >= state.swept_ns + SWEEP_NS {
            state.swept_ns = now.steady_ns;
            state.tried.retain(|_, tried| now.steady_ns < tried.until_ns);
            let is_none =
                |(key, tried): &(&CellKey, &Tried)| self.mates.next(key.1, 1, &tried.nodes).is_none();
            self.tried_marks.set_all(state.tried.iter().filter(is_none).map(|(key, _)| key));
            state.vain.retain(|_, vain| now.steady_ns < vain.until_ns + ALONE_NS + MISSED_NS);
            let before = state.alone.len();
            state.alone.retain(|_, until_ns| now.steady_ns < *until_ns);
            if state.alone.len() < before {
                self.alone_marks.set_all(state.alone.keys());
            }
        }
        silent.dedup();
        (!late.is_empty(), state.asked.keys().next().copied().unwrap_or(state.next + 1), silent)
    }

    /// Probes the other nodes of the region with forwards of zero units, once each `NOTHING_NS`.
    fn ask_for_nothing(&self, own: MemberId, heard: &[MemberId], now: Now) {
        let mut state = lock(&self.state);
        if now.steady_ns < state.nothing_ns + NOTHING_NS {
            return;
        }
        state.nothing_ns = now.steady_ns;
        let (at_ns, until_ns) = (now.steady_ns, now.steady_ns + FORWARD_WAIT_NS - BACK_NS);
        let (whole, units) = (Whole { units: 0, rate: None }, 0);
        for to in heard.iter().copied().filter(|region| *region != own) {
            state.next += 1;
            let number = state.next;
            state.note_asked(
                number,
                SentForward {
                    key: NO_CELL,
                    to,
                    is_mate: false,
                    whole,
                    units,
                    at_ns,
                    until_ns,
                    is_sent: false,
                },
            );
            let (limit, tag) = (LimitId(0), NO_CELL.1);
            state.out.push(Asking { number, to, limit, tag, whole, units, is_again: false });
        }
        drop(state);
        self.is_due.store(true, Ordering::Release);
    }

    pub(crate) fn counts(&self) -> ForwardCounts {
        lock(&self.state).counts
    }
}

impl State {
    fn answer_ns(&self) -> u64 {
        self.held.iter().map(|held| held.until_ns).min().unwrap_or(0)
    }

    fn has_room(&self, key: CellKey) -> bool {
        let of_cell = self.asked_of.get(&key).copied().unwrap_or(0);
        self.asked.len() + self.remote_charges.len() < ASKED_MAX && of_cell < ASKED_OF_CELL_MAX
    }

    fn note_asked(&mut self, number: u64, asked: SentForward) {
        *self.asked_of.entry(asked.key).or_default() += 1;
        self.asked.insert(number, asked);
    }

    /// Removes a forward that is not waited for any more.
    fn forget_asked(&mut self, number: u64) -> Option<SentForward> {
        let asked = self.asked.remove(&number)?;
        if let Entry::Occupied(mut of_cell) = self.asked_of.entry(asked.key) {
            *of_cell.get_mut() -= 1;
            if *of_cell.get() == 0 {
                of_cell.remove();
            }
        }
        Some(asked)
    }

    /// Whether a cell's owner may be asked: not within the back-off after it had nothing.
    fn may_ask(&self, key: CellKey, now: Now) -> bool {
        let is_vain = self.vain.get(&key).is_some_and(|vain| now.steady_ns < vain.until_ns);
        !is_vain && self.has_room(key)
    }

    /// Notes that a cell's owner had nothing. If several forwards miss together, one counts.
    fn miss(&mut self, key: CellKey, now: Now, marks: &Marks) {
        let before = self.vain.get(&key).copied();
        if before.is_some_and(|vain| now.steady_ns < vain.until_ns) {
            return;
        }
        let since_ns = before.filter(|vain| vain.was_asked(now)).map_or(now.steady_ns, |vain| vain.since_ns);
        if now.steady_ns >= since_ns + MISSED_NS {
            self.leave_alone(key, now, marks);
            let since_ns = now.steady_ns + ALONE_NS + AGAIN_NS - MISSED_NS;
            self.vain.insert(key, Vain { times: 0, until_ns: now.steady_ns + ALONE_NS, since_ns });
        } else if before.is_some() || self.vain.len() < VAIN_MAX {
            let in_a_row = before.filter(|vain| now.steady_ns < vain.until_ns + VAIN_NS_MAX);
            let times = in_a_row.map_or(0, |vain| vain.times);
            let until_ns = now.steady_ns + (VAIN_NS << times.min(8)).min(VAIN_NS_MAX);
            self.vain.insert(key, Vain { times: times + 1, until_ns, since_ns });
        }
    }

    /// Notes that a node has fewer than these units of a cell. `None` if there is no room to remember the
    /// node.
    fn note_tried(&mut self, (key, units): (CellKey, u64), node: MemberId, now: Now) -> Option<&Tried> {
        let has_room = self.tried.len() < VAIN_MAX;
        let tried = match self.tried.entry(key) {
            Entry::Occupied(tried) => tried.into_mut(),
            Entry::Vacant(_) if !has_room => return None,
            Entry::Vacant(place) => place.insert(Tried { nodes: SmallVec::new(), until_ns: 0 }),
        };
        if now.steady_ns >= tried.until_ns {
            *tried = Tried { nodes: SmallVec::new(), until_ns: now.steady_ns + TRIED_NS };
        }
        match tried.nodes.iter_mut().find(|(tried, _)| *tried == node) {
            Some((_, least)) => *least = units.min(*least),
            None => tried.nodes.push((node, units)),
        }
        Some(tried)
    }

    /// Notes that a cell's owner is of no use for now.
    fn leave_alone(&mut self, key: CellKey, now: Now, marks: &Marks) {
        self.vain.remove(&key);
        if self.alone.len() < VAIN_MAX {
            self.alone.insert(key, now.steady_ns + ALONE_NS);
            marks.set(key);
        }
    }
}

impl Vain {
    /// Whether the owner was asked again soon after it had nothing.
    const fn was_asked(&self, now: Now) -> bool {
        now.steady_ns < self.until_ns + UNASKED_NS
    }
}

/// The owner of a cell among the nodes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Every node deals with the cell itself.
    Each,
    /// This node, for all nodes.
    Own,
    /// Another node, for all nodes.
    Mate(MemberId),
}

/// The node from which a request may get what it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The cell's owner, which tells other nodes and regions of the need.
    Owner(MemberId),
    /// Another node of the region, for what that node keeps. This node deals with the cell itself, and finds
    /// nothing in the pool or has no pool.
    Mate(MemberId),
}

/// Whether requests under a limit may be forwarded. The decision must need no more than the limit's variant,
/// the charge must not wait for a disk, and the limit's wait must be long enough for an answer. All cells
/// must have the same variant, since the node that is asked cannot tell the variant of a cell.
pub(crate) fn may_be_forwarded(active: &Active) -> bool {
    let limit = &active.limit;
    limit.spec.mode == Mode::Enforce
        && limit.spec.on_store_loss == OnStoreLoss::Guard
        && limit.classes.is_none()
        && active.other_numbers.is_empty()
        && limit.soft.is_none()
        && limit.sharing.wait_ns.is_none_or(|wait_ns| wait_ns >= BACK_NS * 2)
        && !active.durable
        && active.live.is_none()
        && !matches!(limit.algorithm, Algorithm::LeakyBucket(_))
}

impl Node {
    /// Whether other nodes of the region may have what a denied request lacks. A caller that can wait then
    /// forwards the request ([`Node::forward_charge`]).
    pub fn may_forward(&self, answer: &Answer) -> bool {
        !answer.allowed && answer.limits.iter().any(|limit| is_lacked(&limit) && limit.forwarded_to.is_some())
    }

    /// Forwards a denied request to the nodes of the region that may have what it lacks. The request was
    /// asked with [`crate::Forwarding`], and waits `patience_ns` at most. `since_ns` is when it was first
    /// asked (steady clock), and `is_again` says that it was forwarded before.
    ///
    /// `None` if there is nothing to forward, or while the request lacks something else, too: units would be
    /// charged for nobody. The request is asked again, with [`crate::Forwarding::Since`], when [`Node::news`]
    /// changes. Frames must be sent after this call ([`Node::poll`]).
    pub fn forward_charge(
        &self,
        answer: &Answer,
        catalogue: &Catalogue,
        patience_ns: u64,
        (since_ns, is_again): (u64, bool),
        now: Now,
    ) -> Option<Forward> {
        if patience_ns <= BACK_NS || !self.may_forward(answer) {
            return None;
        }
        let now = self.not_before(now);
        let (at_ns, until_ns) = (now.steady_ns, now.steady_ns + patience_ns.min(ASK_NS) - BACK_NS);
        let key_of =
            |limit: &LimitAnswer| (catalogue.limits[limit.limit as usize].slot, journal_tag(limit.tag));
        let mut state = lock(&self.forwards.state);
        let may_ask = |limit: &LimitAnswer| match limit.forwarded_to {
            None => false,
            Some(Source::Owner(_)) => state.may_ask(key_of(limit), now),
            Some(Source::Mate(_)) => state.has_room(key_of(limit)),
        };
        if !answer.limits.iter().filter(is_lacked).all(may_ask) {
            return None;
        }
        // Cells whose owner had nothing lately are forwarded first, and the rest when those have come.
        let is_doubtful = |limit: &&LimitAnswer| state.vain.contains_key(&key_of(limit));
        let lacked = || answer.limits.iter().filter(is_lacked);
        let doubtful: SmallVec<[&LimitAnswer; 2]> = lacked().filter(is_doubtful).collect();
        let drawn = if doubtful.is_empty() { lacked().collect() } else { doubtful };
        let mut numbers = SmallVec::new();
        for limit in drawn {
            let (to, is_mate) = match limit.forwarded_to {
                None => continue,
                Some(Source::Owner(to)) => (to, false),
                Some(Source::Mate(to)) => (to, true),
            };
            state.next += 1;
            let (number, units, key) = (state.next, limit.units, key_of(limit));
            let active = &catalogue.limits[limit.limit as usize].limit;
            let whole = Whole::of(&active.algorithm);
            let asked = SentForward { key, to, is_mate, whole, units, at_ns, until_ns, is_sent: false };
            state.note_asked(number, asked);
            let (limit, tag) = (active.id, key.1);
            // A node that asks a mate has told its need itself.
            let is_again = is_again || is_mate;
            state.out.push(Asking { number, to, limit, tag, whole, units, is_again });
            numbers.push(number);
        }
        drop(state);
        self.forwards.is_due.store(true, Ordering::Release);
        Some(Forward { numbers, since_ns })
    }

    /// Whether no forward of a request was answered yet.
    pub fn is_forwarding(&self, draw: &Forward) -> bool {
        let state = lock(&self.forwards.state);
        draw.numbers.iter().all(|number| state.asked.contains_key(number))
    }

    /// Whether all forwards of a request are over: a request that goes on waiting may forward again.
    pub fn is_answered(&self, draw: &Forward) -> bool {
        let state = lock(&self.forwards.state);
        !draw.numbers.iter().any(|number| state.asked.contains_key(number))
    }

    /// The request stops waiting. Its unsent forwards are dropped; its sent ones may serve another request
    /// that waits.
    pub fn cancel_forward(&self, draw: &Forward) {
        let mut state = lock(&self.forwards.state);
        for number in &draw.numbers {
            if state.asked.get(number).is_some_and(|asked| !asked.is_sent) {
                state.forget_asked(*number);
                state.out.retain(|asking| asking.number != *number);
            }
        }
    }

    /// When a waiting forward of a mate must be answered, with units or without: steady clock.
    pub fn forwards_due_ns(&self) -> Option<u64> {
        self.forwards.answer_ns()
    }

    /// Whether frames must be sent at once.
    pub fn has_forwards(&self) -> bool {
        self.forwards.is_due()
    }

    /// Counts of forwards since the start.
    pub fn forward_counts(&self) -> ForwardCounts {
        self.forwards.counts()
    }
}

fn is_lacked(limit: &&LimitAnswer) -> bool {
    limit.outcome == Outcome::Deny
}
