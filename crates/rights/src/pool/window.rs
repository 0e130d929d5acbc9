//! The pool of one window with edges: units are taken for good, and what was not spent may come back while the window lasts.
//!
//! **Theorem 6.** `Σ used <= total` in every window. *Proof.* A node uses at most `taken − returned` as it knows them, and returns only
//! what it has not used. `taken` grows in the pool before it does at the node, `returned` at the node before it does in the pool, and
//! both only grow; so what a node may use is at most `taken − returned` in the pool. The pool grants no more than the total has left,
//! so `Σ (taken − returned) + spent <= total`, and a total that is lowered grants nothing until that is so again. After the pool has
//! forgotten, nothing is granted before every node has said its own numbers, which are at least those that it may use; and a
//! window that began before somebody knows what an earlier process of his took is burned ([`super::group`]). ∎
//!
//! Before a window begins, what others have taken counts in proportion to their totals ([`super`]): where those differ, the total is the
//! largest that somebody goes by.
//!
//! **Who came later.** A node that joins a region while a window is open does not know what its region has of that: it takes
//! of what another node said that it could have taken itself, when it was in the window ([`Total`]). So no more is taken than one of
//! those who have a share of it could have, and given away.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CallContext, Generation, NODES_MAX, POOL_MAX, Refused, Taker, in_proportion};
use crate::mutation::{Mutation, mutated};

/// Of what is left, a node may take one part in so many at once, divided by the nodes that take, unless it needs more: so little is
/// stranded where one stops asking, at about `10 · nodes · ln(total / 10 / nodes)` calls for a whole window.
pub const PART: u64 = 10;

/// What one node has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct NodeWithdrawals {
    boot: u32,
    taken: u64,
    returned: u64,
}

/// What is known of one window's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    since: Generation,
    /// What processes took that are gone.
    spent: u64,
    nodes: BTreeMap<u16, NodeWithdrawals>,
    /// Units in the pool, as they were said last while it was open.
    said: u64,
    /// What each node's units are a part of, as it said last, and in which call. The last two fields: records of before they were kept lack
    /// their ends only.
    totals: BTreeMap<u16, (u64, u64)>,
}

/// Units that the region has put into the pool of a window: at most [`POOL_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// The window has not begun, by the caller's wall: there may be less when it does.
    Ahead(u64),
    /// The caller is in the window.
    Open(u64),
    /// The caller has joined since the window began, and goes by what was said last by one that was in it, which may know of less by
    /// now: by no more than so many units, the whole limit as the caller knows it.
    AsSaid(u64),
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// Who calls. A call that comes after a later one is heard, since its numbers only grow; but it is granted nothing: it may
    /// have been made when there was more.
    pub taker: Taker,
    /// Units that this process knows to have taken from this window, in all, with those that the processes before it took if it
    /// knows of all of them.
    pub taken: u64,
    /// Of those, units that it has given back, in all.
    pub returned: u64,
    /// Units more that it would like.
    pub wanted: u64,
    /// Of those, units without which the others are of no use now. At most `wanted`.
    pub needed: u64,
    /// Units of the window that stay for others.
    pub reserved: u64,
    /// Units in the pool of this window.
    pub total: Total,
    /// When the window begins: wall clock, in microseconds.
    pub begins_us: u64,
    /// When nobody asks for it any more, by any wall: it may be forgotten then. After the window is over for everybody.
    pub drops_us: u64,
}

/// What a call leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// Units that the process has taken, in all.
    pub taken: u64,
    /// Units that nobody has.
    pub left: u64,
}

impl Window {
    /// Takes what a node says, and grants what there is.
    ///
    /// # Errors
    /// The call does nothing.
    pub fn take(&mut self, take: &Take, context: &CallContext) -> Result<Took, Refused> {
        let Taker { node, boot, call } = take.taker;
        if context.wall_us >= take.drops_us {
            return Err(Refused::Late);
        }
        if self.since != context.since {
            *self = Self { since: context.since, ..Self::default() };
        }
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        if boot < known.boot {
            return Err(Refused::Stale);
        }
        if known.boot == 0 && self.nodes.len() >= NODES_MAX {
            // An older call of such a node has down for it what it had then, and that is nobody's to spend.
            self.nodes.retain(|_, taken| taken.taken > taken.returned);
            if self.nodes.len() >= NODES_MAX {
                return Err(Refused::TooManyNodes);
            }
        }
        let mut record = NodeWithdrawals { boot, ..known };
        // A process that knows what those before it took goes on with their numbers.
        if boot > known.boot && take.taken < known.taken {
            let gone = if mutated(Mutation::PoolForgetsTheDead) { 0 } else { known.taken - known.returned };
            self.spent = (self.spent + gone).min(POOL_MAX);
            record = NodeWithdrawals { boot, taken: 0, returned: 0 };
        }
        record.taken = record.taken.max(take.taken.min(POOL_MAX));
        record.returned = record.returned.max(take.returned.min(record.taken));
        self.nodes.insert(node, record);

        let last = self.totals.get(&node).filter(|_| boot == known.boot).map_or(0, |(_, call)| *call);
        let is_newest = call > last || mutated(Mutation::PoolGrantsOlderCalls);
        let is_burned = take.begins_us < context.burned_us && !mutated(Mutation::PoolBurnsNothing);
        let total = match take.total {
            Total::Ahead(units) if !mutated(Mutation::PoolRemembersAhead) => units.min(POOL_MAX),
            Total::Ahead(units) | Total::Open(units) => {
                let units = units.min(POOL_MAX);
                self.said = if is_newest { units } else { self.said };
                units
            }
            Total::AsSaid(most) => self.said.min(most),
        };
        if is_newest {
            self.totals.insert(node, (total, call));
        }
        self.totals.retain(|node, _| self.nodes.contains_key(node));
        let is_ahead = matches!(take.total, Total::Ahead(_));
        let left = match is_burned {
            true => 0,
            false => total.saturating_sub(if is_ahead { self.out_of(total) } else { self.out() }),
        };
        let free = left.saturating_sub(take.reserved);
        // What was granted before, and not heard of, counts.
        let ahead = record.taken.saturating_sub(take.taken);
        let wanted = take.wanted.saturating_sub(ahead);
        let needed = take.needed.saturating_sub(ahead);
        let mut granted = 0;
        let may_grant = is_newest && (context.grants || mutated(Mutation::PoolGrantsUntold));
        if may_grant && needed <= free {
            let part = left / (PART * self.nodes.len() as u64);
            granted = wanted.min(needed.max(part)).min(free);
        }
        record.taken += granted;
        self.nodes.insert(node, record);
        Ok(Took { taken: record.taken, left: left - granted })
    }

    /// Units that are taken and did not come back.
    pub fn out(&self) -> u64 {
        let held = self.nodes.values().map(|taken| taken.taken - taken.returned);
        held.fold(self.spent, u64::saturating_add).min(POOL_MAX)
    }

    /// The same, in proportion, of a pool that has so many.
    fn out_of(&self, total: u64) -> u64 {
        let of = |node| self.totals.get(node).map_or(total, |(total, _)| *total);
        let held = self.nodes.iter();
        let held = held.map(|(node, taken)| in_proportion(taken.taken - taken.returned, total, of(node)));
        held.fold(self.spent, u64::saturating_add).min(POOL_MAX)
    }
}

/// What a node has of one window's pool, as it knows itself. It stays on the safe side of what the pool has down for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowBalance {
    taken: u64,
    returned: u64,
    used: u64,
}

impl WindowBalance {
    /// What a process knows of those before it, which told nobody what of it they had not used: all is spent.
    pub const fn after_a_crash(taken: u64, returned: u64) -> Self {
        Self { taken, returned, used: taken.saturating_sub(returned) }
    }

    /// Units that it may spend.
    pub const fn left(&self) -> u64 {
        self.taken - self.returned - self.used
    }

    /// Units that it has taken, in all; on the disk before a call that says so, where it must outlast the process.
    pub const fn taken(&self) -> u64 {
        self.taken
    }

    /// Units that it has given back, in all.
    pub const fn returned(&self) -> u64 {
        self.returned
    }

    /// Spends, if there is so much.
    pub const fn spend(&mut self, units: u64) -> bool {
        let is_there = units <= self.left();
        if is_there {
            self.used += units;
        }
        is_there
    }

    /// Units that were spent of this window come back. Returns how many: never more than were spent.
    pub fn refund(&mut self, units: u64) -> u64 {
        let back = units.min(self.used);
        self.used -= back;
        back
    }

    /// Before a call: so many units, if they are there, go back to the pool.
    pub fn give_back(&mut self, units: u64) {
        self.returned += units.min(self.left());
    }

    /// An answer came, of the generation that is known: late, twice or not, it says no less than was granted.
    pub fn took(&mut self, taken: u64) {
        self.taken = self.taken.max(taken);
    }
}
