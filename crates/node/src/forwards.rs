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
//! - The node that is asked charges before it answers (`regions/forward.rs`). It ignores a frame that it has seen; only
//!   a restart in between lets it charge a forward twice. That is more than passes, never less.
//! - The owner charges only if its limit has the same variant as at the mate. While catalogues or files
//!   differ, it refuses. If the mate's limit has changed by the time the answer comes, nobody passes.
//! - A forward has a number that no process of this incarnation has used before. An answer counts once: from the node
//!   that was asked, in a frame that was meant for this process. The answer then is a *remote charge*, which
//!   one request takes (`Forwards::take`).
//! - A request takes a remote charge only if the request began to wait before the forward was asked for, and
//!   so was there when the owner charged ([`crate::Forwarding::Since`]).
//! - A remote charge lasts [`FORWARD_NS`] from when it was asked for, by this node's steady clock. So a request
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

mod filter;
mod mates;
mod remote_charge;
mod shortages;
mod stages;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use acequia_limits::{Algorithm, CellTag, LimitId, Now, limit::OnStoreLoss};
use acequia_rights::{
    MemberId,
    mutation::{Mutation, mutated},
};
use smallvec::SmallVec;

pub use self::stages::{ForwardedRequest, Waiter};
use self::{filter::CellFilter, mates::LiveMates, shortages::Shortages, stages::AwaitedForward};
pub(crate) use self::{
    remote_charge::{Lack, RemoteCharge, Source},
    stages::{OutgoingForward, ReceivedForward},
};
use crate::settings::SETTINGS;
pub use crate::settings::{FORWARD_NS, FORWARD_WAIT_NS};
use crate::{
    Active, Answer, Catalogue, LimitAnswer, Node, Outcome, cell::CellKey, journal_tag, lock,
    regions::wire::Whole,
};

/// How many forward numbers one process has: its numbers begin after those of every earlier process.
const NUMBERS: u64 = 1 << 40;
/// The key of a probe, which is about no cell.
const NO_CELL: CellKey = CellKey { slot: u32::MAX, tag: CellTag(0) };

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
    /// A filter for the cells that this node deals with alone: most checks need not lock the state. It may
    /// hold other cells, too.
    alone_marks: CellFilter,
    /// A filter for cells of which no other node has a unit: most denials need not lock the state. It may
    /// hold other cells, too.
    tried_marks: CellFilter,
    /// Locked after any shard.
    state: Mutex<ForwardState>,
}

#[derive(Debug, Default)]
struct ForwardState {
    /// The number of the last forward.
    next: u64,
    /// The forwards of this process that are not answered, by number.
    asked: BTreeMap<u64, AwaitedForward>,
    /// How many of `asked` are of each cell.
    asked_of: BTreeMap<CellKey, usize>,
    remote_charges: BTreeMap<(CellKey, u64), RemoteCharge>,
    shortages: Shortages,
    /// When the other nodes were last probed: steady clock.
    probed_ns: u64,
    out: Vec<OutgoingForward>,
    /// The forwards of mates that wait here.
    held: VecDeque<ReceivedForward>,
    counts: ForwardCounts,
}

impl Forwards {
    /// Starts the numbers above those of all earlier processes of this node.
    pub(crate) fn begin(&self, process_number: u32) {
        lock(&self.state).next = u64::from(process_number).wrapping_mul(NUMBERS);
    }

    /// Notes the nodes of the region that are heard, with this one, and how many members the catalogue has. A
    /// node too far away for forwards deals with other regions and the pool itself.
    pub(crate) fn see(&self, own: MemberId, heard: &[MemberId], members: usize, now: Now) {
        self.probe_mates(own, heard, now);
        self.mates.see(own, heard, members);
    }

    /// The owner of a cell in this region, if the cell's limit has few units and allows forwards.
    pub(crate) fn owner(&self, tag: CellTag, active: Option<&Active>, now: Now) -> Owner {
        let Some(active) = active.filter(|active| self.are_forwarded(active)) else { return Owner::Each };
        match self.mates.owner(tag) {
            None if self.mates.has_far() => Owner::Each,
            None => Owner::Own,
            Some(_) if self.is_alone(CellKey { slot: active.slot, tag: journal_tag(tag) }, now) => {
                Owner::Each
            }
            Some(owner) => Owner::Mate(owner),
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
            self.next_mate(CellKey { slot: active.slot, tag: journal_tag(tag) }, units, now)
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
        self.mates.next(key.tag, units, lock(&self.state).shortages.tried(key, now))
    }

    /// Whether a forward of a cell is under way.
    pub(crate) fn is_asking(&self, key: CellKey) -> bool {
        lock(&self.state).asked_of.contains_key(&key)
    }

    /// Notes that a node has fewer than these units of a cell. If there is no room to remember the node, no
    /// node is asked for as long.
    fn note_tried(&self, state: &mut ForwardState, key: CellKey, units: u64, node: MemberId, now: Now) {
        let is_none = match state.shortages.note_tried(key, units, node, now) {
            Some(tried) => self.have_all_tried(key, tried),
            None => true,
        };
        if is_none {
            self.tried_marks.set(key);
        }
    }

    /// Whether no node is left to ask for a cell but those that were tried.
    fn have_all_tried(&self, key: CellKey, tried: &[(MemberId, u64)]) -> bool {
        self.mates.next(key.tag, 1, tried).is_none()
    }

    #[inline]
    fn are_forwarded(&self, active: &Active) -> bool {
        self.mates.are_few(&active.limit.algorithm) && may_be_forwarded(active)
    }

    /// Whether this node deals with a cell itself, because the owner had nothing.
    fn is_alone(&self, key: CellKey, now: Now) -> bool {
        self.alone_marks.may_have(key) && lock(&self.state).shortages.is_alone(key, now)
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
    pub(crate) fn expects_since(&self, key: CellKey, now: Now) -> Option<u64> {
        lock(&self.state).shortages.owner_empty_since(key, now)
    }

    /// Takes a remote charge for a request that waits. It counts as used when the request passes
    /// ([`Self::pass`]).
    pub(crate) fn take(&self, lack: &Lack, now: Now) -> Option<RemoteCharge> {
        let mut state = lock(&self.state);
        let mut of_cell = state.remote_charges.range((lack.key, 0)..=(lack.key, u64::MAX));
        let remote_charge = *of_cell.find(|(_, remote_charge)| remote_charge.fits(lack, now))?.1;
        state.take_out(&remote_charge);
        Some(remote_charge)
    }

    /// A request passes by its remote charge. So the node that charged is of use, and near enough.
    pub(crate) fn pass(&self, remote_charge: RemoteCharge) {
        let mut state = lock(&self.state);
        state.counts.used += 1;
        if let Source::Owner(_) = remote_charge.from {
            state.shortages.owner_had_some(remote_charge.key);
        }
        drop(state);
        self.mates.note_use(remote_charge.from.node());
    }

    /// A request does not pass after all: its remote charge is kept for when it asks again.
    pub(crate) fn put_back(&self, remote_charge: RemoteCharge) {
        let mut state = lock(&self.state);
        state.remote_charges.insert((remote_charge.key, remote_charge.number), remote_charge);
    }

    /// The forwards to be sent.
    pub(crate) fn take_out(&self) -> Vec<OutgoingForward> {
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
    pub(crate) fn take_held(&self) -> VecDeque<ReceivedForward> {
        std::mem::take(&mut lock(&self.state).held)
    }

    pub(crate) fn put_held(&self, held: VecDeque<ReceivedForward>) {
        let mut state = lock(&self.state);
        state.held = held;
        self.answer_ns.store(state.answer_ns(), Ordering::Release);
    }

    /// Holds a mate's forward until units come. Returns whether there is room.
    pub(crate) fn hold(&self, held: ReceivedForward) -> bool {
        let mut state = lock(&self.state);
        let of_peer = state.held.iter().filter(|other| other.from == held.from).count();
        let of_cell = state.held.iter().filter(|other| other.key == held.key).count();
        let has_room = state.held.len() < SETTINGS.forward.held_max
            && of_peer < SETTINGS.forward.held_of_peer_max
            && of_cell < SETTINGS.forward.held_of_cell_max;
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
        asked.source.map(|source| (asked.key, asked.units, matches!(source, Source::Owner(_))))
    }

    /// Takes `from`'s answer to a forward of this process: its units, 0 for none now, or `None` for none
    /// ever. Returns whether the answer was waited for.
    pub(crate) fn came(&self, from: MemberId, number: u64, units: Option<u64>, now: Now) -> bool {
        let mut state = lock(&self.state);
        let answers = |asked: &&AwaitedForward| {
            asked.is_sent && asked.to == from && units.is_none_or(|units| units == 0 || units == asked.units)
        };
        let Some(AwaitedForward { key, source, whole, units: wanted, at_ns, until_ns, .. }) =
            state.asked.get(&number).filter(answers).copied()
        else {
            state.counts.wasted += u64::from(units.is_some_and(|units| units > 0));
            return false;
        };
        state.forget_asked(number);
        let is_late = now.steady_ns >= until_ns + SETTINGS.forward.back_ns;
        if units.is_none_or(|units| units == 0) && !is_late {
            // The node could have answered with units in time. If units came, `pass` or `expire` tells
            // whether they were of use.
            self.mates.note_near(from, now);
        } else if source.is_none() {
            self.mates.note_silent(from, now);
        }
        match (units, source) {
            (_, None) => {}
            (None | Some(0), Some(Source::Mate(_))) => self.note_tried(&mut state, key, wanted, from, now),
            (None, Some(Source::Owner(_))) => {
                self.note_tried(&mut state, key, wanted, from, now);
                state.shortages.leave_alone(key, now, &self.alone_marks);
            }
            (Some(0), Some(Source::Owner(_))) => {
                state.shortages.owner_had_none(key, now, &self.alone_marks);
            }
            (Some(units), Some(from)) => {
                let remote_charge =
                    RemoteCharge { key, from, number, whole, units, asked_ns: at_ns, is_late };
                state.remote_charges.insert((key, number), remote_charge);
            }
        }
        true
    }

    /// Gives up forwards without an answer, and counts unused remote charges as wasted.
    ///
    /// Returns whether waiting requests should hear of it; the least number that is still waited for; and the
    /// cells of unanswered forwards to nodes that were not asked as the owner.
    pub(crate) fn expire(&self, now: Now) -> (bool, u64, SmallVec<[CellKey; 4]>) {
        let mut state = lock(&self.state);
        let is_over = |at_ns: u64| now.steady_ns >= at_ns + FORWARD_NS;
        let late: SmallVec<[u64; 4]> =
            state.asked.iter().filter(|(_, asked)| is_over(asked.at_ns)).map(|(number, _)| *number).collect();
        let silent = self.give_up(&mut state, &late, now);
        self.drop_unused(&mut state, now);
        let are_all = |key, tried: &[_]| self.have_all_tried(key, tried);
        state.shortages.sweep(now, &self.alone_marks, &self.tried_marks, are_all);
        (!late.is_empty(), state.asked.keys().next().copied().unwrap_or(state.next + 1), silent)
    }

    /// Gives up forwards that were not answered. Returns the cells of those to nodes that were not asked as
    /// the owner.
    fn give_up(&self, state: &mut ForwardState, late: &[u64], now: Now) -> SmallVec<[CellKey; 4]> {
        let mut silent = SmallVec::new();
        for number in late {
            let Some(AwaitedForward { key, to, source, units, is_sent, .. }) = state.forget_asked(*number)
            else {
                continue;
            };
            match source {
                Some(Source::Mate(_)) => {
                    self.note_tried(state, key, units, to, now);
                    silent.push(key);
                }
                Some(Source::Owner(_)) => state.shortages.owner_had_none(key, now, &self.alone_marks),
                None => {}
            }
            // A forward that was never sent says nothing about the node.
            if is_sent {
                self.mates.note_silent(to, now);
            }
        }
        silent.dedup();
        silent
    }

    /// Drops remote charges that have passed nobody in time. If the answer of a remote charge came late, that
    /// counts like no answer: an owner whose answers are always late would be charged for nobody, again and
    /// again. If the answer came in time, the request had hung up or passed by other units.
    fn drop_unused(&self, state: &mut ForwardState, now: Now) {
        let unused: SmallVec<[RemoteCharge; 4]> = state
            .remote_charges
            .extract_if(.., |_, remote_charge| now.steady_ns >= remote_charge.asked_ns + FORWARD_NS)
            .map(|(_, remote_charge)| remote_charge)
            .collect();
        state.counts.wasted += unused.len() as u64;
        for RemoteCharge { key, from, units, .. } in unused.into_iter().filter(|unused| unused.is_late) {
            match from {
                Source::Mate(node) => self.note_tried(state, key, units, node, now),
                Source::Owner(_) => state.shortages.owner_had_none(key, now, &self.alone_marks),
            }
            self.mates.note_silent(from.node(), now);
        }
    }

    /// Probes the other nodes of the region with forwards of zero units, once each `SETTINGS.forward.probe_ns`.
    fn probe_mates(&self, own: MemberId, heard: &[MemberId], now: Now) {
        let mut state = lock(&self.state);
        if now.steady_ns < state.probed_ns + SETTINGS.forward.probe_ns {
            return;
        }
        state.probed_ns = now.steady_ns;
        for to in heard.iter().copied().filter(|region| *region != own) {
            let probe = AwaitedForward {
                key: NO_CELL,
                to,
                source: None,
                whole: Whole { units: 0, rate: None },
                units: 0,
                at_ns: now.steady_ns,
                until_ns: now.steady_ns + FORWARD_WAIT_NS - SETTINGS.forward.back_ns,
                is_sent: false,
            };
            state.ask(probe, LimitId(0), false);
        }
        drop(state);
        self.is_due.store(true, Ordering::Release);
    }

    pub(crate) fn counts(&self) -> ForwardCounts {
        lock(&self.state).counts
    }
}

impl ForwardState {
    fn answer_ns(&self) -> u64 {
        self.held.iter().map(|held| held.until_ns).min().unwrap_or(0)
    }

    fn has_room(&self, key: CellKey) -> bool {
        let of_cell = self.asked_of.get(&key).copied().unwrap_or(0);
        self.asked.len() + self.remote_charges.len() < SETTINGS.forward.asked_max
            && of_cell < SETTINGS.forward.asked_of_cell_max
    }

    /// Queues a forward of a cell under this limit; returns its number.
    fn ask(&mut self, forward: AwaitedForward, limit: LimitId, is_again: bool) -> u64 {
        self.next += 1;
        let AwaitedForward { key, to, whole, units, .. } = forward;
        self.out.push(OutgoingForward { number: self.next, to, limit, tag: key.tag, whole, units, is_again });
        self.note_asked(self.next, forward);
        self.next
    }

    fn note_asked(&mut self, number: u64, asked: AwaitedForward) {
        *self.asked_of.entry(asked.key).or_default() += 1;
        self.asked.insert(number, asked);
    }

    /// Removes a forward that is not waited for any more.
    fn forget_asked(&mut self, number: u64) -> Option<AwaitedForward> {
        let asked = self.asked.remove(&number)?;
        if let Entry::Occupied(mut of_cell) = self.asked_of.entry(asked.key) {
            *of_cell.get_mut() -= 1;
            if *of_cell.get() == 0 {
                of_cell.remove();
            }
        }
        Some(asked)
    }

    /// Takes a remote charge out: it passes one request.
    fn take_out(&mut self, remote_charge: &RemoteCharge) {
        if !mutated(Mutation::ForwardUsedTwice) {
            self.remote_charges.remove(&(remote_charge.key, remote_charge.number));
        }
    }

    /// Whether a limit's charge may be forwarded now.
    fn may_ask(&self, source: Source, key: CellKey, now: Now) -> bool {
        match source {
            Source::Owner(_) => self.shortages.may_ask_owner(key, now) && self.has_room(key),
            Source::Mate(_) => self.has_room(key),
        }
    }

    /// What a denied request lacks and is forwarded now. `None` if something that it lacks cannot be
    /// forwarded now.
    fn to_forward<'a>(
        &self,
        answer: &'a Answer,
        catalogue: &Catalogue,
        now: Now,
    ) -> Option<SmallVec<[&'a LimitAnswer; 2]>> {
        let lacked = || answer.limits.iter().filter(is_lacked);
        let may_ask = |limit: &LimitAnswer| {
            limit.forwarded_to.is_some_and(|source| self.may_ask(source, key_of(limit, catalogue), now))
        };
        if !lacked().all(may_ask) {
            return None;
        }
        // Cells whose owner had nothing lately are forwarded first, and the rest when those have come.
        let is_doubtful = |limit: &&LimitAnswer| self.shortages.is_owner_doubtful(key_of(limit, catalogue));
        let doubtful: SmallVec<_> = lacked().filter(is_doubtful).collect();
        Some(if doubtful.is_empty() { lacked().collect() } else { doubtful })
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

/// Whether requests under a limit may be forwarded. The decision must need no more than the limit's variant,
/// the charge must not wait for a disk, and the limit's wait must be long enough for an answer. The charge of a request
/// under way, and a hold, must be known here, to be given back. All cells must have the same variant, since the node that is asked cannot tell the variant of a cell.
pub(crate) fn may_be_forwarded(active: &Active) -> bool {
    let limit = &active.limit;
    limit.spec.mode.denies()
        && limit.spec.on_store_loss == OnStoreLoss::Guard
        && limit.classes.is_none()
        && !limit.spec.from_callers
        && active.other_variants.is_empty()
        && limit.soft.is_none()
        && limit.sharing.wait_ns.is_none_or(|wait_ns| wait_ns >= SETTINGS.forward.back_ns * 2)
        && !active.durable
        && !limit.is_concurrent()
        && limit.expect.is_none()
        && active.live.is_none()
        && !matches!(limit.algorithm, Algorithm::LeakyBucket(_))
}

impl Node {
    /// Whether other nodes of the region may have what a denied request lacks. A caller that can wait then
    /// forwards the request ([`Node::forward_charge`]).
    pub fn may_forward(&self, answer: &Answer) -> bool {
        !answer.allowed && answer.limits.iter().any(|limit| is_lacked(&limit) && limit.forwarded_to.is_some())
    }

    /// Forwards a denied request, asked with [`crate::Forwarding`], to the nodes of the region that may have
    /// what it lacks.
    ///
    /// `None` if there is nothing to forward, or while the request lacks something else, too: units would be
    /// charged for nobody. The request is asked again, with [`crate::Forwarding::Since`], when [`Node::news`]
    /// changes. Frames must be sent after this call ([`Node::poll`]).
    pub fn forward_charge(
        &self,
        answer: &Answer,
        catalogue: &Catalogue,
        waiter: Waiter,
        now: Now,
    ) -> Option<ForwardedRequest> {
        let Waiter { since_ns, patience_ns, is_again } = waiter;
        if patience_ns <= SETTINGS.forward.back_ns || !self.may_forward(answer) {
            return None;
        }
        let now = self.not_before(now);
        let mut state = lock(&self.forwards.state);
        let mut numbers = SmallVec::new();
        for limit in state.to_forward(answer, catalogue, now)? {
            let Some(source) = limit.forwarded_to else { continue };
            let active = &catalogue.limits[limit.limit as usize].limit;
            let forward = AwaitedForward {
                key: key_of(limit, catalogue),
                to: source.node(),
                source: Some(source),
                whole: Whole::of(&active.algorithm),
                units: limit.units,
                at_ns: now.steady_ns,
                until_ns: now.steady_ns + patience_ns.min(SETTINGS.forward.ask_ns) - SETTINGS.forward.back_ns,
                is_sent: false,
            };
            // A node that asks a mate has told its need itself.
            let is_again = is_again || matches!(source, Source::Mate(_));
            numbers.push(state.ask(forward, active.id, is_again));
        }
        drop(state);
        self.forwards.is_due.store(true, Ordering::Release);
        Some(ForwardedRequest { numbers, since_ns })
    }

    /// Whether no forward of a request was answered yet.
    pub fn is_forwarding(&self, request: &ForwardedRequest) -> bool {
        let state = lock(&self.forwards.state);
        request.numbers.iter().all(|number| state.asked.contains_key(number))
    }

    /// Whether all forwards of a request are over: a request that goes on waiting may forward again.
    pub fn is_answered(&self, request: &ForwardedRequest) -> bool {
        let state = lock(&self.forwards.state);
        !request.numbers.iter().any(|number| state.asked.contains_key(number))
    }

    /// The request stops waiting. Its unsent forwards are dropped; its sent ones may serve another request
    /// that waits.
    pub fn cancel_forward(&self, request: &ForwardedRequest) {
        let mut state = lock(&self.forwards.state);
        for number in &request.numbers {
            if state.asked.get(number).is_some_and(|asked| !asked.is_sent) {
                state.forget_asked(*number);
                state.out.retain(|outgoing| outgoing.number != *number);
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

fn key_of(limit: &LimitAnswer, catalogue: &Catalogue) -> CellKey {
    CellKey { slot: catalogue.limits[limit.limit as usize].slot, tag: journal_tag(limit.tag) }
}
