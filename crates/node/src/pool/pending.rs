//! Calls to pools without an answer: what each is about, and by which variant it was made.

use std::collections::{BTreeMap, VecDeque};

use acequia_limits::{Now, Part};
use acequia_rights::{
    mutation::{Mutation, mutated},
    pool::{Generation, Taker},
};

use super::{GROUPS, LOST_NS, LeaseCounts, PoolCall, PoolReply, PoolRequest, RegionSetup};
use crate::{cell::account::CellContext, regions::CellKey, settings::SETTINGS};

/// A call without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCall {
    /// How many versions of the catalogue had been adopted when the call was made.
    pub(super) adopted: u64,
    pub(super) group: u16,
    pub(super) generation: Generation,
    pub(super) sent_ns: u64,
    pub(super) about: About,
}

/// What a call is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum About {
    Group,
    Cell(CellCall),
}

/// A call about a cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellCall {
    pub(super) key: CellKey,
    /// Whether it asks for more.
    pub(super) wants_more: bool,
    pub(super) subject: Subject,
}

/// What of a cell's pool a call is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject {
    /// A part with an end: the number of the lease balance's call, and what the pool had by this node's
    /// variant.
    Part { number: u64, pool: Part },
    /// A window, by its end.
    Window { end_ns: u64 },
}

impl Subject {
    /// The window, by its end; 0 if there are no edges.
    pub(super) const fn end_ns(self) -> u64 {
        match self {
            Self::Part { .. } => 0,
            Self::Window { end_ns } => end_ns,
        }
    }

    /// Whether the call was about a part with an end, when the pool had more than now. Each cell knows this
    /// about windows itself.
    pub(super) fn is_of_more(self, context: &CellContext<'_>) -> bool {
        let Self::Part { pool, .. } = self else { return false };
        let now = context.local.pool_of(context.global, context.salt, 0).unwrap_or_default();
        is_of_more(now.units < pool.units || now.rate < pool.rate)
    }
}

/// What was granted when the pool had more is not taken up.
pub(super) fn is_of_more(pool_had_more: bool) -> bool {
    pool_had_more && !mutated(Mutation::LeaseTakesUpMore)
}

/// A call that is to be made.
#[derive(Clone, Debug)]
pub(super) struct NewCall {
    pub(super) about: About,
    pub(super) request: PoolRequest,
}

/// Calls that wait to be made, or for an answer.
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    waiting: VecDeque<PoolCall>,
    pending: BTreeMap<u64, PendingCall>,
    last_id: u64,
    /// No pool is called before this time: steady clock. Until then loans of an earlier process may be out,
    /// which rest on its leases.
    begins_ns: u64,
    /// When a pool last answered, and when one last did not: steady clock.
    answered_ns: u64,
    missed_ns: u64,
    /// Whether a call has begun to wait for the disk.
    pub(super) wants_disk: bool,
    pub(super) counts: LeaseCounts,
}

impl PendingCalls {
    /// No pool is called before this time: steady clock.
    pub(super) fn begin_after(&mut self, at_ns: u64) {
        self.begins_ns = self.begins_ns.max(at_ns);
    }

    pub(super) const fn have_begun(&self, now: Now) -> bool {
        now.steady_ns >= self.begins_ns
    }

    /// Makes no more calls, nor those that wait.
    pub(super) fn end(&mut self) {
        self.waiting.clear();
        self.begins_ns = u64::MAX;
    }

    const fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The caller of a call, with a number of its own.
    pub(super) const fn taker(&mut self, home: &RegionSetup) -> Taker {
        Taker { node: home.node, process_number: home.process_number, call: self.next_id() }
    }

    /// Whether so many calls have no answer that cells make no more.
    pub(super) fn are_full(&self) -> bool {
        self.pending.len() >= SETTINGS.pool.calls_max
    }

    /// Puts a call in line. Returns its number, or `None` if there is no room.
    pub(super) fn put_in_line(
        &mut self,
        allocation: u64,
        request: PoolRequest,
        call: PendingCall,
        now: Now,
    ) -> Option<u64> {
        if self.pending.len().max(self.waiting.len()) >= SETTINGS.pool.calls_max + usize::from(GROUPS) {
            return None;
        }
        let id = self.next_id();
        self.counts.assertions += u64::from(matches!(request, PoolRequest::Assert(..)));
        self.waiting.push_back(PoolCall {
            id,
            allocation,
            group: call.group,
            generation: call.generation,
            wall_us: now.wall_ns / 1_000,
            question: request,
        });
        self.pending.insert(id, call);
        self.counts.calls += 1;
        Some(id)
    }

    /// The next call to make. A call that waited for the disk until it was given up is dropped.
    pub(super) fn next(&mut self) -> Option<PoolCall> {
        while let Some(call) = self.waiting.pop_front() {
            if self.pending.contains_key(&call.id) {
                return Some(call);
            }
        }
        None
    }

    /// The oldest call, if it was lost on the way. The carrier reports every other call.
    pub(super) fn first_lost(&self, now: Now) -> Option<u64> {
        let lost_ns = now.steady_ns.saturating_sub(LOST_NS);
        self.pending.first_key_value().filter(|(_, call)| call.sent_ns < lost_ns).map(|(id, _)| *id)
    }

    /// A call has an answer, or is given up.
    pub(super) fn end_call(&mut self, id: u64) -> Option<PendingCall> {
        self.pending.remove(&id)
    }

    /// Counts an answer, as it is taken.
    pub(super) const fn count(&mut self, reply: &PoolReply, now: Now) {
        match reply {
            PoolReply::Nothing => {
                self.missed_ns = now.steady_ns;
                self.counts.missed += 1;
            }
            PoolReply::Refused(_) => self.counts.refused += 1,
            _ => self.answered_ns = now.steady_ns,
        }
    }

    /// Whether pools answer: if not, no decision waits for them.
    pub(super) const fn are_answered(&self) -> bool {
        self.answered_ns >= self.missed_ns
    }
}
