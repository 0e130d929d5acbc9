//! The pool of one window with edges. Nodes take units for good; unspent units may come back while the window
//! lasts.
//!
//! **Theorem 6.** `Σ used <= total` in every window.
//!
//! *Proof.* A node uses at most `taken − returned` as the node knows them, and returns only what it has not
//! used. `taken` grows in the pool before it grows at the node, `returned` grows at the node before it grows
//! in the pool, and both only grow. So a node may use at most `taken − returned` in the pool. The pool grants
//! no more than the total has left, so `Σ (taken − returned) + spent <= total`; a lowered total grants
//! nothing until this is true again. After a pool has forgotten, nothing is granted before every node has
//! said its own numbers, which cover at least what it may use. A window is forfeited if it began before some
//! node knows what its earlier processes took ([`super::group`]). ∎
//!
//! Before a window begins, what others have taken counts in proportion to their totals ([`super`]). If these
//! differ, the total is the largest that any node uses.
//!
//! **Nodes that came later.** A node that joins a region while a window is open does not know the region's
//! total for the window. It takes from the total stated by a node that was in the window ([`Total`]). So no
//! more is taken than one of the nodes with a share of the window could have taken and given away.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CallContext, Generation, NODES_MAX, POOL_MAX, PoolRefused, Taker, in_proportion};
use crate::mutation::{Mutation, mutated};

/// A node may take one part in so many of what is left at once, divided by the number of nodes that take,
/// unless it needs more. So little is stranded when a node stops asking, at about
/// `10 · nodes · ln(total / 10 / nodes)` calls for a window.
pub const PART: u64 = 10;

/// The units that one node has taken and returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct NodeWithdrawals {
    process_number: u32,
    taken: u64,
    returned: u64,
}

impl NodeWithdrawals {
    /// All that a process took and did not return counts as spent when the process is gone.
    fn spent_when_gone(&self) -> u64 {
        if mutated(Mutation::PoolForgetsTheDead) { 0 } else { self.taken - self.returned }
    }
}

/// The record of one window's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    since: Generation,
    /// Units that processes took that are gone.
    spent: u64,
    nodes: BTreeMap<u16, NodeWithdrawals>,
    /// The pool's units, as last stated while the window was open.
    said: u64,
    /// The total that each node's units are a part of, as the node said last, and the number of that call.
    /// The last two fields: records written without them lack only their ends.
    totals: BTreeMap<u16, (u64, u64)>,
}

/// Units that the region has put into the pool of a window: at most [`POOL_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// The window has not begun, by the caller's wall: the total may be lower when it does.
    Ahead(u64),
    /// The caller is in the window.
    Open(u64),
    /// The caller has joined since the window began, and uses the total last stated by a node that was in the
    /// window. That node may know of a lower total by now. So the total is at most these units, the whole
    /// limit as the caller knows it.
    AsSaid(u64),
}

impl Total {
    /// A node that joined later uses only a total that was stated while the window was open.
    fn is_for_newcomers(self) -> bool {
        match self {
            Self::Ahead(_) => mutated(Mutation::PoolRemembersAhead),
            Self::Open(_) => true,
            Self::AsSaid(_) => false,
        }
    }
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// Who calls. A call that comes after a later one is heard, since its numbers only grow. But it is
    /// granted nothing: the total may have been larger when the call was made.
    pub taker: Taker,
    /// Units taken from this window, in all, as far as this process knows. The units of earlier processes are
    /// included if it knows all of them.
    pub taken: u64,
    /// Units of `taken` that have been given back, in all.
    pub returned: u64,
    /// Further units that the node would like.
    pub wanted: u64,
    /// The least useful grant: if fewer units are free, nothing is granted. At most `wanted`.
    pub needed: u64,
    /// Units of the window that stay for others.
    pub reserved: u64,
    /// The total of this window's pool.
    pub total: Total,
    /// When the window begins: wall clock, in microseconds.
    pub begins_us: u64,
    /// When nobody asks for the window any more, by any wall: its record may be forgotten then. After the
    /// window is over for everybody.
    pub drops_us: u64,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// Units that the process has taken, in all.
    pub taken: u64,
    /// Units that nobody has.
    pub left: u64,
}

impl Window {
    /// Records what a node says, and grants what there is.
    ///
    /// # Errors
    /// The pool refused the call, which did nothing.
    pub fn take(&mut self, take: &Take, context: &CallContext) -> Result<Took, PoolRefused> {
        let Taker { node, process_number, call } = take.taker;
        if context.wall_us >= take.drops_us {
            return Err(PoolRefused::Late);
        }
        if self.since != context.since {
            *self = Self { since: context.since, ..Self::default() };
        }
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        if process_number < known.process_number {
            return Err(PoolRefused::Stale);
        }
        if known.process_number == 0 {
            self.make_room()?;
        }
        let last_call = match self.totals.get(&node) {
            Some((_, call)) if process_number == known.process_number => *call,
            _ => 0,
        };
        let is_newest = comes_last(call, last_call);
        let mut record = self.note(take, known);
        let total = self.note_total(take, is_newest);
        let left = match is_forfeited(take, context) {
            true => 0,
            false => total.saturating_sub(self.counted(take.total, total)),
        };
        let granted = match is_newest && context.may_grant() {
            true => self.grant(take, &record, left),
            false => 0,
        };
        record.taken += granted;
        self.nodes.insert(node, record);
        Ok(Took { taken: record.taken, left: left - granted })
    }

    /// Makes room for the record of another node.
    fn make_room(&mut self) -> Result<(), PoolRefused> {
        if self.nodes.len() >= NODES_MAX {
            // A late call of a dropped node would record old holdings again, which nobody may spend: that is
            // safe.
            self.nodes.retain(|_, node| node.taken > node.returned);
        }
        if self.nodes.len() >= NODES_MAX { Err(PoolRefused::TooManyNodes) } else { Ok(()) }
    }

    /// Records what a node says that it took and returned.
    fn note(&mut self, take: &Take, known: NodeWithdrawals) -> NodeWithdrawals {
        let Taker { node, process_number, .. } = take.taker;
        let mut record = NodeWithdrawals { process_number, ..known };
        // A process that knows what earlier processes took goes on with their numbers.
        if process_number > known.process_number && take.taken < known.taken {
            self.spent = (self.spent + known.spent_when_gone()).min(POOL_MAX);
            record = NodeWithdrawals { process_number, taken: 0, returned: 0 };
        }
        record.taken = record.taken.max(take.taken.min(POOL_MAX));
        record.returned = record.returned.max(take.returned.min(record.taken));
        self.nodes.insert(node, record);
        record
    }

    /// The total that a call counts by, which the newest call of a node states.
    fn note_total(&mut self, take: &Take, is_newest: bool) -> u64 {
        let total = match take.total {
            Total::Ahead(units) | Total::Open(units) => units.min(POOL_MAX),
            Total::AsSaid(most) => self.said.min(most),
        };
        if is_newest {
            self.totals.insert(take.taker.node, (total, take.taker.call));
        }
        if is_newest && take.total.is_for_newcomers() {
            self.said = total;
        }
        self.totals.retain(|node, _| self.nodes.contains_key(node));
        total
    }

    /// Units to grant, if `left` are left: those wanted, but no more than a part of the rest unless more are
    /// needed. Earlier grants that the node has not heard of count.
    fn grant(&self, take: &Take, record: &NodeWithdrawals, left: u64) -> u64 {
        let free = left.saturating_sub(take.reserved);
        let unheard = record.taken.saturating_sub(take.taken);
        let wanted = take.wanted.saturating_sub(unheard);
        let needed = take.needed.saturating_sub(unheard);
        if needed > free {
            return 0;
        }
        let part = left / (PART * self.nodes.len() as u64);
        wanted.min(needed.max(part)).min(free)
    }

    /// Units that others and the caller have, as they count for this total: in proportion before the window
    /// begins, and as units in the open window.
    fn counted(&self, how: Total, total: u64) -> u64 {
        match how {
            Total::Ahead(_) => self.out_of(total),
            Total::Open(_) | Total::AsSaid(_) => self.out(),
        }
    }

    /// Units that are taken and did not come back.
    pub fn out(&self) -> u64 {
        let held = self.nodes.values().map(|node| node.taken - node.returned);
        held.fold(self.spent, u64::saturating_add).min(POOL_MAX)
    }

    /// Units that are taken and did not come back, in proportion to a pool of `total`.
    fn out_of(&self, total: u64) -> u64 {
        let of = |node| self.totals.get(node).map_or(total, |(total, _)| *total);
        let held = self.nodes.iter();
        let held = held.map(|(node, taken)| in_proportion(taken.taken - taken.returned, total, of(node)));
        held.fold(self.spent, u64::saturating_add).min(POOL_MAX)
    }
}

/// A call that comes after a later one is granted nothing: the total may have been larger when it was made.
fn comes_last(call: u64, last: u64) -> bool {
    call > last || mutated(Mutation::PoolGrantsOlderCalls)
}

/// A window is forfeited if it began before some node knows what its earlier processes took.
fn is_forfeited(take: &Take, context: &CallContext) -> bool {
    take.begins_us < context.forfeited_before_us && !mutated(Mutation::PoolBurnsNothing)
}

/// The units that a node has of one window's pool, as the node itself knows. Never more than the pool records
/// for the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowBalance {
    taken: u64,
    returned: u64,
    used: u64,
}

impl WindowBalance {
    /// The balance that earlier processes leave after a crash: nobody knows how much they had not used, so
    /// all is spent.
    pub const fn after_a_crash(taken: u64, returned: u64) -> Self {
        Self { taken, returned, used: taken.saturating_sub(returned) }
    }

    /// Units that the node may spend.
    pub const fn left(&self) -> u64 {
        self.taken - self.returned - self.used
    }

    /// Units that the node has taken, in all. If this must outlast the process, it is on the disk before a
    /// call that says so.
    pub const fn taken(&self) -> u64 {
        self.taken
    }

    /// Units that the node has given back, in all.
    pub const fn returned(&self) -> u64 {
        self.returned
    }

    /// Spends units, if so many are left. Returns whether they were.
    pub const fn spend(&mut self, units: u64) -> bool {
        let is_there = units <= self.left();
        if is_there {
            self.used += units;
        }
        is_there
    }

    /// Takes spent units of this window back. Returns how many: never more than were spent.
    pub fn refund(&mut self, units: u64) -> u64 {
        let back = units.min(self.used);
        self.used -= back;
        back
    }

    /// Prepares a call: gives units back to the pool, at most those left.
    pub fn give_back(&mut self, units: u64) {
        self.returned += units.min(self.left());
    }

    /// Takes an answer of the known generation: `taken` never falls, so late and repeated answers do no harm.
    pub fn took(&mut self, taken: u64) {
        self.taken = self.taken.max(taken);
    }
}
