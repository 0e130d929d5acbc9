//! Draws: a request that waits at one node of a region is charged at another one, which holds what the region has of its cell.
//!
//! Of a cell of few units every node of a region would have a piece that is of no use to it, or would be found by nobody else. So one
//! node of the region, its *speaker*, has to do with other regions and with the region's pool for such a cell, and the others, its
//! *mates*, ask it for single units over the mesh. The speaker charges its own cell, as for a request of its own, and says so; then
//! the request that waits passes, and is charged nowhere else.
//!
//! **Whatever passes was charged once, before it passed and after it came.** So it counts as if it had passed at the speaker when that
//! charged it, within the time that it took, and what the speaker's cell promises is kept. It rests on this:
//!
//! - The speaker charges before it answers ([`crate::sharing`]), once for each time that it hears a draw: of one that comes twice it
//!   charges more than passes.
//! - It charges by the numbers that the limit has where the request waits, and has no others: while catalogues or files differ, it
//!   refuses. When the limit has other numbers there by the time that it comes, it passes nobody.
//! - A draw has a number that its process used once, and no process of the node before it. What comes of a number is heard once, from
//!   whom it was asked, in a frame that was meant for this process; it then is a *credit*, which one request takes (`Draws::take`).
//! - A request takes a credit only if it has waited since before that was asked for: it was there when the speaker charged. One that
//!   came later was not ([`crate::Drawing::Since`]).
//! - A credit lasts [`DRAW_NS`] from when it was asked for, by this node's steady clock. So a request passes no later than that after it
//!   was charged.
//!
//! Where a cell's store is lost, or its pool has nothing of a window, what is left of it in the region is at its nodes, the speaker or
//! not: whoever has nothing then asks one of the others after the other, the speaker first ([`Source`]).
//!
//! Frames that are lost, late or repeated, a node that dies or begins anew, a request that waits no more: they waste units, which are
//! charged and pass nobody. Which node is a cell's speaker is no matter of safety: each charges what it has. One that has nothing, and
//! can come by nothing, says so: then its mates have to do with the cell themselves for a while (`Draws::is_alone`).

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
    sharing::{CellKey, wire::Whole},
};
use marks::Marks;
use mates::LiveMates;

/// What is drawn passes a request within so long after it was asked for, or nobody.
pub const DRAW_NS: u64 = 50_000_000;
/// The longest that one draw is waited for: what comes at the last moment is still to pass somebody. Whoever waits for longer draws again.
const ASK_NS: u64 = 40_000_000;
/// How long a request waits for what is drawn, unless its limit says how long it waits: the speaker may have to ask the region's pool
/// first, and all three are near. Timers are up to a millisecond late, and nobody shall wait for much longer than three.
pub const DRAW_WAIT_NS: u64 = 2_500_000;
/// The speaker charges no later than so long before whoever drew gives up: the answer takes time, too.
const BACK_NS: u64 = 750_000;
/// A cell has few units where the whole limit gives fewer than so many a member of the catalogue, at once and in each second. Up to here
/// draws are worth a message and a wait for nearly each request at a mate (the tables in tests/bench/README.md).
const FEW: u64 = 16;
/// Draws that this node has asked for and that may still be answered; of one cell; and credits that nobody has taken, of all cells.
const ASKED_MAX: usize = 1_024;
const ASKED_OF_CELL_MAX: usize = 16;
/// Draws of others that wait here for units; of one mate, and of one cell.
const HELD_MAX: usize = 512;
const HELD_OF_PEER_MAX: usize = 128;
const HELD_OF_CELL_MAX: usize = 32;
/// Of a cell whose speaker had nothing no more is drawn for so long, and twice as long each time in a row, up to the other.
const VAIN_NS: u64 = 4_000_000;
const VAIN_NS_MAX: u64 = 32_000_000;
/// A node of which none of so many draws in a row was of use is too far away, or stuck: for so long nothing is drawn of it but nothing, and
/// no more until that is answered in time. Then one of no use is enough, and it is left for twice as long each time in a row, up to the
/// other.
const SILENT_MAX: u32 = 4;
const FAR_NS: u64 = 1_000_000_000;
const FAR_NS_MAX: u64 = 32_000_000_000;
/// Each node of the region is asked for nothing so often: whether an answer can be here in time is to be known to both ends, and it shall
/// cost no units to find out.
const NOTHING_NS: u64 = 1_000_000_000;
/// A cell that mates drew of so long ago is one that they draw of: its speaker holds of the pool what all of them ask for.
pub(crate) const DRAWN_NS: u64 = 75_000_000_000;
pub(crate) const DRAWN_NS_MAX: u64 = 600_000_000_000;
/// Draws that one process may ask for: each begins after those of all before it.
const NUMBERS: u64 = 1 << 40;
/// The cell that nothing is asked for of.
const NO_CELL: CellKey = (u32::MAX, CellTag(0));
/// Cells that are remembered because their speaker had nothing, and of those that have none.
const VAIN_MAX: usize = 16_384;
/// Of a cell whose speaker says that it cannot come by units, or that had none for so long, this node has to do with other regions
/// and the pool itself for so long, as if there were no draws. Then it asks again.
const MISSED_NS: u64 = 2_000_000_000;
const ALONE_NS: u64 = 2_000_000_000;
/// One that then has had nothing for so long is left again.
const AGAIN_NS: u64 = 250_000_000;
/// Of nodes that are asked one after the other, one that has not so many units is not asked for as many again for so long.
const TRIED_NS: u64 = 250_000_000;
/// Where nobody asked for so long it is not known that there was nothing meanwhile.
const UNASKED_NS: u64 = 500_000_000;
/// How often cells whose speaker had nothing are looked through.
const SWEEP_NS: u64 = 250_000_000;

/// A request that waits for what is drawn for it ([`Node::draw`]).
#[derive(Debug)]
pub struct Forward {
    numbers: SmallVec<[u64; 1]>,
    since_ns: u64,
}

impl Forward {
    /// Since when the request waits: steady clock, for [`crate::Drawing::Since`].
    pub const fn since_ns(&self) -> u64 {
        self.since_ns
    }
}

/// What became of draws, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardCounts {
    /// Draws that this node asked for: those that were sent.
    pub asked: u64,
    /// Draws of others that were charged here.
    pub charged: u64,
    /// Draws that passed a request here.
    pub used: u64,
    /// Draws that were charged elsewhere and passed nobody here.
    pub wasted: u64,
}

/// A draw that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    pub(crate) number: u64,
    pub(crate) to: MemberId,
    pub(crate) limit: LimitId,
    pub(crate) tag: CellTag,
    pub(crate) whole: Whole,
    pub(crate) units: u64,
    /// Whether the request was drawn for before.
    pub(crate) is_again: bool,
}

/// A draw of a mate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingForward {
    /// Whose, and of which of its processes.
    pub(crate) from: Incarnation,
    pub(crate) boot: u32,
    pub(crate) number: u64,
    pub(crate) key: CellKey,
    pub(crate) whole: Whole,
    pub(crate) units: u64,
    /// It is of no use when it is charged later: steady clock.
    pub(crate) until_ns: u64,
    /// Whether it was counted as demand.
    pub(crate) is_told: bool,
}

/// What this node draws, and what is drawn of it.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    mates: LiveMates,
    /// Whether nothing may be charged any more: the node stops, and what each cell owes is written down.
    is_closed: AtomicBool,
    /// Whether there is something to send, or units may have come for those that wait here.
    is_due: AtomicBool,
    /// When the first of those that wait here is to be answered, whatever it is by then: steady clock; 0 where none waits.
    answer_ns: AtomicU64,
    /// Marks of the cells that this node has to do with itself, and of some others: most checks need not look for theirs.
    alone_marks: Marks,
    /// Marks of the cells of which none of the others has a unit, and of some others: most denials need not look for theirs.
    tried_marks: Marks,
    /// Locked after any shard.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    asked: BTreeMap<u64, SentForward>,
    /// How many of them are of each cell.
    asked_of: BTreeMap<CellKey, usize>,
    remote_charges: BTreeMap<(CellKey, u64), RemoteCharge>,
    vain: BTreeMap<CellKey, Vain>,
    /// Which nodes had too little of a cell.
    tried: BTreeMap<CellKey, Tried>,
    /// Cells that this node has to do with itself, though another is their speaker; until when: steady clock.
    alone: BTreeMap<CellKey, u64>,
    /// When those that are over were last forgotten: steady clock.
    swept_ns: u64,
    /// When the others were last asked for nothing: steady clock.
    nothing_ns: u64,
    out: Vec<Asking>,
    held: VecDeque<PendingForward>,
    counts: ForwardCounts,
}

#[derive(Clone, Copy, Debug)]
struct SentForward {
    key: CellKey,
    to: MemberId,
    /// Whether it is asked for what it has itself, and not as the cell's speaker.
    is_mate: bool,
    whole: Whole,
    units: u64,
    at_ns: u64,
    /// It is of no use when it is charged later: steady clock.
    until_ns: u64,
    is_sent: bool,
}

/// Units that another node has charged, for a request that had waited before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteCharge {
    key: CellKey,
    from: MemberId,
    is_mate: bool,
    number: u64,
    whole: Whole,
    units: u64,
    asked_ns: u64,
    /// Whether it came when whoever it was asked for waited no more.
    is_late: bool,
}

/// A cell of which nothing was to be had.
#[derive(Clone, Copy, Debug)]
struct Vain {
    times: u32,
    until_ns: u64,
    /// Since when there was none: steady clock.
    since_ns: u64,
}

/// The nodes of the region that had too little of a cell, with the fewest units that they had not.
#[derive(Clone, Debug)]
struct Tried {
    nodes: SmallVec<[(MemberId, u64); 2]>,
    until_ns: u64,
}

impl Forwards {
    /// Begins with numbers that no earlier process of this node has used; how often it was started.
    pub(crate) fn begin(&self, boot: u32) {
        lock(&self.state).next = u64::from(boot).wrapping_mul(NUMBERS);
    }

    /// Which nodes of the region are heard, this one among them, and how many members the catalogue has. Those that are too far away to
    /// draw of each other have to do with other regions and the pool each for itself.
    pub(crate) fn see(&self, own: MemberId, heard: &[MemberId], members: usize, now: Now) {
        self.ask_for_nothing(own, heard, now);
        self.mates.see(own, heard, members);
    }

    /// Who speaks for a cell in this region, where it is of a limit of few units that may be drawn.
    pub(crate) fn owner(&self, tag: CellTag, active: Option<&Active>, now: Now) -> Owner {
        let Some(active) = active.filter(|active| self.are_drawn(active)) else { return Owner::Each };
        match self.mates.owner(tag) {
            None if self.mates.has_far() => Owner::Each,
            None => Owner::Own,
            Some(_) if self.is_alone((active.slot, journal_tag(tag)), now) => Owner::Each,
            Some(speaker) => Owner::Mate(speaker),
        }
    }

    /// Whether this node is a cell's speaker, though others may be too far away for it to speak for all.
    pub(crate) fn is_owner(&self, tag: CellTag, active: Option<&Active>) -> bool {
        active.is_some_and(|active| self.are_drawn(active)) && self.mates.owner(tag).is_none()
    }

    /// The node of the region to ask next for units of a cell, where this node has to do with that itself and finds none in the pool.
    pub(crate) fn mate(&self, tag: CellTag, active: &Active, units: u64, now: Now) -> Option<MemberId> {
        if self.are_drawn(active) {
            self.next_mate((active.slot, journal_tag(tag)), units, now)
        } else {
            None
        }
    }

    /// The same of a cell of a limit that may be drawn: not one that had too little a moment ago.
    pub(crate) fn next_mate(&self, key: CellKey, units: u64, now: Now) -> Option<MemberId> {
        if self.tried_marks.may_have(key) {
            return None;
        }
        let state = lock(&self.state);
        let tried = state.tried.get(&key).filter(|tried| now.steady_ns < tried.until_ns);
        self.mates.next(key.1, units, tried.map_or(&[], |tried| &tried.nodes))
    }

    /// Whether anything of a cell is drawn at this moment.
    pub(crate) fn is_asking(&self, key: CellKey) -> bool {
        lock(&self.state).asked_of.contains_key(&key)
    }

    /// A node has not so many units of a cell. Of one for which there is no room to remember that, no node is asked for as long.
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
    fn are_drawn(&self, active: &Active) -> bool {
        self.mates.are_few(&active.limit.algorithm) && may_be_drawn(active)
    }

    /// Whether this node has to do with a cell itself, since its speaker had nothing.
    fn is_alone(&self, key: CellKey, now: Now) -> bool {
        self.alone_marks.may_have(key)
            && lock(&self.state).alone.get(&key).is_some_and(|until_ns| now.steady_ns < *until_ns)
    }

    /// Whether any other node of the region is heard, and near enough.
    #[inline]
    pub(crate) fn has_mates(&self) -> bool {
        self.mates.are_any()
    }

    /// Nothing is charged from now on.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Whether that was said. Who asks holds the lock of the cell that it would charge: whoever writes it down takes that later.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether anything is to be sent, or tried again.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }

    /// When the first of those that wait here is to be answered, whatever it is by then: steady clock.
    pub(crate) fn answer_ns(&self) -> Option<u64> {
        Some(self.answer_ns.load(Ordering::Acquire)).filter(|at_ns| *at_ns > 0)
    }

    /// Units came: those that wait here are to be tried again.
    pub(crate) fn call(&self) {
        if self.has_mates() {
            self.is_due.store(true, Ordering::Release);
        }
    }

    /// Since when whoever comes now may hope for a cell's speaker: it had nothing since then, by the steady clock. Nothing while it had none
    /// a moment ago.
    pub(crate) fn hopes_since(&self, key: CellKey, now: Now) -> Option<u64> {
        match lock(&self.state).vain.get(&key) {
            Some(vain) if now.steady_ns < vain.until_ns => None,
            Some(vain) if vain.was_asked(now) => Some(vain.since_ns),
            _ => Some(now.steady_ns),
        }
    }

    /// Takes units that were drawn for a request that waits since `since_ns`, and charged by the numbers that its limit has now. They are
    /// used when it passes ([`Self::pass`]).
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
                && (remote_charge.whole == whole || mutated(Mutation::DrawOfOtherNumbers))
                && (remote_charge.asked_ns >= since_ns || mutated(Mutation::DrawUsedByAnybody))
                && now.steady_ns < remote_charge.asked_ns + DRAW_NS
        };
        let of_cell = state.remote_charges.range((key, 0)..=(key, u64::MAX));
        let (name, remote_charge) = of_cell
            .map(|(name, remote_charge)| (*name, *remote_charge))
            .find(|(_, remote_charge)| fits(remote_charge))?;
        if !mutated(Mutation::DrawUsedTwice) {
            state.remote_charges.remove(&name);
        }
        Some(remote_charge)
    }

    /// A request passes by what it has taken: so its cell's speaker is of use, and near enough.
    pub(crate) fn pass(&self, remote_charge: RemoteCharge) {
        let mut state = lock(&self.state);
        state.counts.used += 1;
        if !remote_charge.is_mate {
            state.vain.remove(&remote_charge.key);
        }
        drop(state);
        self.mates.note_use(remote_charge.from);
    }

    /// A request does not pass after all: what it has taken is there for it when it asks again.
    pub(crate) fn put_back(&self, remote_charge: RemoteCharge) {
        let mut state = lock(&self.state);
        state.remote_charges.insert((remote_charge.key, remote_charge.number), remote_charge);
    }

    /// What is to be sent.
    pub(crate) fn take_out(&self) -> Vec<Asking> {
        self.is_due.store(false, Ordering::Release);
        std::mem::take(&mut lock(&self.state).out)
    }

    /// A draw is about to be sent: within how many microseconds it is of use to whoever waits. Nothing where nobody does any more.
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

    /// What waits here for units; whoever takes it gives back what goes on waiting.
    pub(crate) fn take_held(&self) -> VecDeque<PendingForward> {
        std::mem::take(&mut lock(&self.state).held)
    }

    pub(crate) fn put_held(&self, held: VecDeque<PendingForward>) {
        let mut state = lock(&self.state);
        state.held = held;
        self.answer_ns.store(state.answer_ns(), Ordering::Release);
    }

    /// A mate draws. Says whether there is room for it to wait.
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

    /// What is asked for by a number: of which cell, how many units, and whether of the cell's speaker.
    pub(crate) fn asked(&self, number: u64) -> Option<(CellKey, u64, bool)> {
        let asked = lock(&self.state).asked.get(&number).copied()?;
        (asked.key != NO_CELL).then_some((asked.key, asked.units, !asked.is_mate))
    }

    /// What was drawn came, or nothing did, or none ever will: of a number that `from` was asked for by this process. Says whether that
    /// was waited for.
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
            // Units would have been of use. Of those that came it is known when they are used.
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

    /// Lets time pass: what was asked for and did not come is given up, and what came and nobody took is wasted. If that came late it is as if
    /// nothing had: a speaker whose answers come when nobody waits any more would be charged for nobody, time and again. What came in time
    /// was for somebody who hung up, or passed by other units. Says whether those that wait should hear of it; the least number that is
    /// still waited for; and the cells of which a node that is not asked as their speaker does not answer.
    pub(crate) fn expire(&self, now: Now) -> (bool, u64, SmallVec<[CellKey; 4]>) {
        let mut state = lock(&self.state);
        let mut silent = SmallVec::new();
        let is_over = |at_ns: u64| now.steady_ns >= at_ns + DRAW_NS;
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
            // What did not leave says nothing of whoever it was for.
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

    /// Asks the other nodes of the region for nothing, from time to time.
    fn ask_for_nothing(&self, own: MemberId, heard: &[MemberId], now: Now) {
        let mut state = lock(&self.state);
        if now.steady_ns < state.nothing_ns + NOTHING_NS {
            return;
        }
        state.nothing_ns = now.steady_ns;
        let (at_ns, until_ns) = (now.steady_ns, now.steady_ns + DRAW_WAIT_NS - BACK_NS);
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

    /// It is waited for no more.
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

    /// Whether a cell's speaker may be asked: not while it had nothing a moment ago.
    fn may_ask(&self, key: CellKey, now: Now) -> bool {
        let is_vain = self.vain.get(&key).is_some_and(|vain| now.steady_ns < vain.until_ns);
        !is_vain && self.has_room(key)
    }

    /// A cell's speaker had nothing. Of draws that were under way together, one counts.
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

    /// A node has not so many units of a cell. Nothing where there is no room to remember that.
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

    /// A cell's speaker is of no use for now.
    fn leave_alone(&mut self, key: CellKey, now: Now, marks: &Marks) {
        self.vain.remove(&key);
        if self.alone.len() < VAIN_MAX {
            self.alone.insert(key, now.steady_ns + ALONE_NS);
            marks.set(key);
        }
    }
}

impl Vain {
    /// Whether it was asked again soon after it had nothing.
    const fn was_asked(&self, now: Now) -> bool {
        now.steady_ns < self.until_ns + UNASKED_NS
    }
}

/// Who speaks for a cell among the nodes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Each for itself.
    Each,
    /// This node for all.
    Own,
    /// That one for all.
    Mate(MemberId),
}

/// Of whom a request may draw what it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Of the cell's speaker, who says so to others.
    Owner(MemberId),
    /// Of another node of the region, who has what it keeps: this node has to do with the cell itself, and finds nothing in its pool, or none.
    Mate(MemberId),
}

/// Whether units of a limit may be drawn: what it says of a request must not need more than its numbers, and what is charged must not wait
/// for a disk. Nor where cells have other numbers than others: whoever is asked could not tell which this one has.
pub(crate) fn may_be_drawn(active: &Active) -> bool {
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
    /// Whether what a request was denied for want of may be at other nodes of the region: whoever waits draws for it.
    pub fn may_draw(&self, answer: &Answer) -> bool {
        !answer.allowed && answer.limits.iter().any(|limit| is_lacked(&limit) && limit.drawn_of.is_some())
    }

    /// Draws what a request was denied for want of, where that may be at other nodes of the region: for one that was asked with
    /// [`crate::Drawing`], and waits for `patience_ns` at most, from `since_ns` on (steady clock: when it was first asked); `is_again`: it was
    /// drawn for before. Nothing where there is nothing to draw, nor while it lacks anything else: units would be charged for nobody. When
    /// [`Node::news`] changes it is asked again, with [`crate::Drawing::Since`]. Frames are to be sent then ([`Node::poll`]).
    pub fn draw(
        &self,
        answer: &Answer,
        catalogue: &Catalogue,
        patience_ns: u64,
        (since_ns, is_again): (u64, bool),
        now: Now,
    ) -> Option<Forward> {
        if patience_ns <= BACK_NS || !self.may_draw(answer) {
            return None;
        }
        let now = self.not_before(now);
        let (at_ns, until_ns) = (now.steady_ns, now.steady_ns + patience_ns.min(ASK_NS) - BACK_NS);
        let key_of =
            |limit: &LimitAnswer| (catalogue.limits[limit.limit as usize].slot, journal_tag(limit.tag));
        let mut state = lock(&self.forwards.state);
        let may_ask = |limit: &LimitAnswer| match limit.drawn_of {
            None => false,
            Some(Source::Owner(_)) => state.may_ask(key_of(limit), now),
            Some(Source::Mate(_)) => state.has_room(key_of(limit)),
        };
        if !answer.limits.iter().filter(is_lacked).all(may_ask) {
            return None;
        }
        // What there was none of lately is drawn first, and the rest when that has come.
        let is_doubtful = |limit: &&LimitAnswer| state.vain.contains_key(&key_of(limit));
        let lacked = || answer.limits.iter().filter(is_lacked);
        let doubtful: SmallVec<[&LimitAnswer; 2]> = lacked().filter(is_doubtful).collect();
        let drawn = if doubtful.is_empty() { lacked().collect() } else { doubtful };
        let mut numbers = SmallVec::new();
        for limit in drawn {
            let (to, is_mate) = match limit.drawn_of {
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
            // Whoever asks a mate has told its need itself.
            let is_again = is_again || is_mate;
            state.out.push(Asking { number, to, limit, tag, whole, units, is_again });
            numbers.push(number);
        }
        drop(state);
        self.forwards.is_due.store(true, Ordering::Release);
        Some(Forward { numbers, since_ns })
    }

    /// Whether nothing has come yet of what was drawn for a request.
    pub fn is_drawing(&self, draw: &Forward) -> bool {
        let state = lock(&self.forwards.state);
        draw.numbers.iter().all(|number| state.asked.contains_key(number))
    }

    /// Whether none of what was drawn is under way any more: a request that goes on waiting may draw again.
    pub fn is_drawn_out(&self, draw: &Forward) -> bool {
        let state = lock(&self.forwards.state);
        !draw.numbers.iter().any(|number| state.asked.contains_key(number))
    }

    /// The request waits no more. What is not sent yet is not drawn; what is may be for another one that waits.
    pub fn undraw(&self, draw: &Forward) {
        let mut state = lock(&self.forwards.state);
        for number in &draw.numbers {
            if state.asked.get(number).is_some_and(|asked| !asked.is_sent) {
                state.forget_asked(*number);
                state.out.retain(|asking| asking.number != *number);
            }
        }
    }

    /// When a mate is to be answered that nothing has come for: steady clock.
    pub fn draws_due_ns(&self) -> Option<u64> {
        self.forwards.answer_ns()
    }

    /// Whether there are frames to be sent at once, and not when time has passed.
    pub fn has_draws(&self) -> bool {
        self.forwards.is_due()
    }

    /// What became of draws.
    pub fn draw_counts(&self) -> ForwardCounts {
        self.forwards.counts()
    }
}

fn is_lacked(limit: &&LimitAnswer) -> bool {
    limit.outcome == Outcome::Deny
}
