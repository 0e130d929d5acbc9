//! Groups: the server process that keeps the pools of a group of cells, and since when these pools can have
//! forgotten nothing.
//!
//! All pools of a group lie in one place, and are lost or rolled back together. This happens when a server
//! starts anew, when a replica is promoted that missed the primary's last writes, or when somebody deletes
//! the data. A group has one record, in the same place. The record names the server process that made it
//! ([`ServerIdentity`]; a replica has another identity) and the group's *generation*.
//!
//! - A call states the identity of the server that answers it, and the generation that the caller knows. If
//!   the record states others, or is absent, the call does nothing. The caller then *begins* a generation
//!   ([`PoolGroup::begin`]), which at first grants nothing. A rolled-back record may repeat a generation's
//!   number, so a generation also has the name of the call that began it.
//! - Every node says again what it holds of every pool of the group, by calls that ask for nothing. The node
//!   then says that it has done so ([`PoolGroup::assert`]). When all nodes have, the pools again know at
//!   least what is held, and grant. For buckets and sliding windows, spending up to this instant is unknown
//!   ([`CallContext::unknown_until_us`]), so everything that is not held counts as spent.
//! - For windows, each node must know what it took since the window began. A window that began before every
//!   node knows what its own earlier processes took is *forfeited*: nothing is granted from it
//!   ([`CallContext::forfeited_before_us`]).
//! - Where nothing was ever taken, no window need be forfeited. A node is new ([`Assertion::is_new`]) if it
//!   has nothing on its disk and has heard of no generation that granted. The next generation that grants is
//!   a *first* ([`GroupStatus::is_first`]) if nothing was kept when the first generation began, none has
//!   granted since, and *all* nodes say that they are new. Then, as far as any node knows, no node of the
//!   region has ever held anything of the group. If one node is not new, nobody knows what the others took
//!   before they began.
//! - While a generation does not grant, it renews no lease: its answers say nothing about held leases, which
//!   end when they would have ended. The generation before may go on in another place, for nodes that have
//!   not heard of this one; that place takes back the leases that are not renewed there.
//! - A caller may exclude nodes that do not answer, each by name, if it is sure that they call no other
//!   process of the server meanwhile ([`PoolGroup::assert_without`]). When all other nodes have told, nothing
//!   is granted until all leases have ended that an excluded node may hold. All windows that begin before
//!   that time are forfeited: nodes take nothing of a window that begins later than a lease lasts.
//! - Where regions share limits, a pool is part of one allocation of shares ([`ServerIdentity::allocation`]). The
//!   first node that uses a later allocation moves the pools to that allocation, with all that they know
//!   ([`PoolGroup::begin`]). From then on a node that has not heard of the later allocation takes nothing
//!   more of the pools, and begins no generation.
//! - A node that has heard of no generation (it is new in its region, or has lost its disk) takes nothing of
//!   a group that grants: it cannot know whether a later generation exists. It begins a generation that *goes
//!   on* with what the pools know ([`Begin::goes_on`]). Suppose all nodes have told what they hold, and one
//!   then says that the last generation it had heard of before is the very generation that granted here
//!   ([`Assertion::before`]). Then nothing was forgotten, and nothing more counts as spent. If no node can
//!   say so, what is known here counts for nothing, and another generation begins.
//!
//! **Theorem 9.** In a generation that grants, every pool records for every node at least what the node may
//! use.
//!
//! *Proof.* While a pool remembers, the rules of the pools keep this true at each call. After a pool forgot,
//! it grants nothing before every node has told it what the node holds, and it remembers this from then on. A
//! node that hears of a later generation keeps what the pool records for it, no longer than the lease lasts,
//! until the later generation grants; and then the later generation records it. Another process of the server
//! may meanwhile grant to nodes that do not know of this generation. These nodes tell what they got before
//! this generation grants. A node that has heard of a generation uses no earlier one, and says that it has
//! told all only for what it held after that. An excluded node calls nobody before it has heard of this
//! generation or a later one, by the word of the node that excludes it. The windows that the excluded node
//! took from are forfeited, and its leases are over. ∎
//!
//! **Going on.** Let a generation G go on with `b`, which granted here. When all nodes have told, let one of
//! the region's nodes, `w`, say that `b` was the last generation that it had heard of before G. (Generations
//! here that went on with `b` and did not grant are not counted.) *Then the pools record for every node what
//! it may use, and all spending.*
//!
//! *Proof.* The pools still know what they knew in `b`: since then they only changed by what nodes told. By
//! Theorem 9 this is everything, unless a generation L later than `b` has granted in another place, and some
//! node used L. That node has told here since, so it has heard of G and uses no earlier generation; hence L
//! had granted by then. L waited for `w`, since every node counts `w` as one of the region's. For a node
//! hears of no generation before all others count it. And a node that left comes back with another disk,
//! which names no generation. If `w` told in L, it had heard of L, contrary to its word. If `w` was excluded
//! from L, it calls nobody here. Otherwise an earlier process of `w` told in L, and its disk was lost. But a
//! process that begins with nothing on its disk names `b` only if `b` granted, told by all, after the process
//! had heard of `b`. Such a process accepts no generation that may have begun before it counted to all
//! others. Likewise, what earlier processes of a node that lost its disk held, they held of `b`. ∎
//!
//! **What was begun before.** Let walls be wrong by at most ε. Take a node with nothing on its disk. Let its
//! floor be its wall time in microseconds when it came to count to all others, plus 2ε. The node gives a
//! generation that it begins at least the floor as a number, accepts only generations of others with numbers
//! above the floor, and calls nobody before 2ε have passed. *Then the node accepts no generation that began
//! before the node counted.*
//!
//! *Proof.* Let `t` be the time when the node came to count. It refuses numbers up to at least `t + ε`. Let
//! another generation have begun at `u < t`, with a number from a node with nothing on its disk, which came
//! to count at `s`. The number is at most `s + 3 ε`, and `u ≥ s + 2 ε`, so the number is at most
//! `u + ε < t + ε`. Other nodes give numbers little above those that they have heard of, and generations
//! follow each other more slowly than microseconds count up. ∎
//!
//! **What an allocation leaves of pools.** Let a region have `P` of a cell by one allocation and `Q < P` by
//! the next. Each of its `n` nodes keeps at most `Q / n` of its holding when it adopts the next allocation,
//! and nothing that was granted before and is heard of later. *When all have adopted it, together they hold
//! at most `Q`.*
//!
//! *Proof.* If the pool has granted nothing under the next allocation, the nodes hold `n · Q / n` at most.
//! Otherwise, at its last grant the pool recorded at most `Q` for all nodes together, and at least what each
//! held, by either allocation. Nodes that had not adopted the next allocation were granted nothing
//! afterwards, so they could only hold less. ∎

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{CallContext, Generation, Taker};
use crate::mutation::{Mutation, mutated};

/// The place where a group is kept, as one of its callers sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerIdentity {
    /// The server's process since it last became a primary: another one after every start, and after every
    /// promotion.
    pub run: String,
    /// A fingerprint of the config that places groups: it changes when groups move.
    pub config_fingerprint: u64,
    /// The allocation among regions that the group's pools are part of, which counts up; 0 where there is
    /// none.
    pub allocation: u64,
}

impl ServerIdentity {
    /// Whether both are one process of the server under one config, whatever the allocations.
    fn is_process_of(&self, other: &Self) -> bool {
        (&self.run, self.config_fingerprint) == (&other.run, other.config_fingerprint)
    }

    /// Pools never go back to an earlier allocation among regions.
    fn has_moved_on_from(&self, caller: &Self) -> bool {
        self.is_process_of(caller)
            && self.allocation > caller.allocation
            && !mutated(Mutation::PoolHearsOldAllocation)
    }
}

/// The record of a group, where it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolGroup {
    generation: Generation,
    /// The generation in which the pools began to remember: this one, or the first of those that it goes on
    /// with.
    since: Generation,
    /// The generation that granted last, if this one goes on with it and does not grant yet; else none.
    before: Generation,
    /// Nodes that spoke when all had told, and cannot say that nothing was forgotten since `before`.
    unproven: BTreeSet<u16>,
    server: Option<ServerIdentity>,
    grants: bool,
    marks: ForgottenTimes,
    /// The marks that count when the generation grants, unless it goes on with all that was known.
    doubts: ForgottenTimes,
    asserted: BTreeSet<u16>,
    /// See [`GroupStatus::is_first`].
    is_first: bool,
}

/// The times up to which something may have been forgotten: wall clock, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ForgottenTimes {
    unknown_until_us: u64,
    forfeited_before_us: u64,
}

impl ForgottenTimes {
    fn raise(&mut self, to: Self) {
        self.unknown_until_us = self.unknown_until_us.max(to.unknown_until_us);
        self.forfeited_before_us = self.forfeited_before_us.max(to.forfeited_before_us);
    }
}

/// A generation that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The highest number of a generation that the caller has heard of, or refuses.
    pub heard: u64,
    /// The call that begins the generation.
    pub by: Taker,
    /// Whether the generation goes on with what the pools know, if they granted: the caller has heard of
    /// nothing else before.
    pub goes_on: bool,
}

/// A node's statement that it has told all that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assertion {
    /// The node.
    pub node: u16,
    /// The generation.
    pub generation: Generation,
    /// All nodes of the region.
    pub nodes: BTreeSet<u16>,
    /// The wall-clock time, in microseconds, since when the node knows what it and its earlier processes took
    /// from windows.
    pub knows_from_us: u64,
    /// Whether no process of the node has held or spent anything, as far as the node knows. It began with
    /// nothing on its disk, has heard of no generation that granted, and knows this one as a first
    /// ([`GroupStatus::is_first`]). This counts only if all nodes say so.
    pub is_new: bool,
    /// The last generation that the node had heard of before this one; number 0 for none. The node may skip
    /// generations that it has not heard to grant, if their pools remember since the same generation as this
    /// one's. They were begun in this place; had one of them granted, this generation would go on with it.
    pub before: Generation,
    /// The node's wall clock, in microseconds.
    pub wall_us: u64,
    /// By how much the wall clock may be wrong, twice: see [`super::slack_us`].
    pub slack_us: u64,
}

/// Excluded nodes: the caller is sure that they call no other process of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// The excluded nodes.
    pub nodes: BTreeSet<u16>,
    /// After so long, in microseconds, the excluded nodes' leases are over, and windows begin from which they
    /// took nothing.
    pub keep_us: u64,
}

/// The state of a group's generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// The generation: number 0 for none.
    pub generation: Generation,
    /// Whether the generation grants.
    pub grants: bool,
    /// The generation in which the pools began to remember: they know what was told in it and in later ones.
    pub since: Generation,
    /// Whether this is a first: nothing was kept when the first generation began, none has granted before
    /// this one, and all nodes that have told in it are new.
    pub is_first: bool,
}

impl PoolGroup {
    /// The group's state, for a caller that this server answers: nothing is known of a group that was kept
    /// elsewhere.
    pub fn known(&self, server: &ServerIdentity) -> GroupStatus {
        match self.is_kept_at(server) {
            true => GroupStatus {
                generation: self.generation,
                grants: self.grants,
                since: self.since,
                is_first: self.is_first,
            },
            false => GroupStatus::default(),
        }
    }

    /// A group is known only to the process that kept it: a replica that is promoted may lack what came last.
    fn is_kept_at(&self, server: &ServerIdentity) -> bool {
        self.server.as_ref() == Some(server) || mutated(Mutation::PoolKnowsNoProcess)
    }

    /// The context of a call that knows a generation; `None` if the group has another generation.
    pub fn context(
        &self,
        server: &ServerIdentity,
        generation: Generation,
        wall_us: u64,
    ) -> Option<CallContext> {
        let GroupStatus { generation: known, grants, since, .. } = self.known(server);
        let ForgottenTimes { unknown_until_us, forfeited_before_us } = self.marks;
        (known == generation && known.number > 0).then_some(CallContext {
            wall_us,
            generation,
            since,
            grants,
            unknown_until_us,
            forfeited_before_us,
        })
    }

    /// Begins a generation with a number above all that the caller has heard of, unless one with such a
    /// number has begun here already. The pools then move to the caller's allocation among regions, if that
    /// is later; a caller with an earlier allocation changes nothing. Returns the group's state.
    pub fn begin(&mut self, server: &ServerIdentity, begin: &Begin) -> GroupStatus {
        let is_late = self.server.as_ref().is_some_and(|kept| kept.has_moved_on_from(server));
        if let Some(kept) = self.server.as_mut().filter(|kept| kept.is_process_of(server) && !is_late) {
            kept.allocation = server.allocation;
        }
        let known = self.known(server);
        if !is_late && (known.generation.number == 0 || known.generation.number < begin.heard) {
            let before = match begin.goes_on && known.generation.number > 0 {
                true if known.grants => known.generation,
                true => self.before,
                false => Generation::default(),
            };
            let goes_on = begin.goes_on && known.generation.number > 0 && !known.grants;
            self.is_first = self.generation.number == 0 || (goes_on && self.is_first);
            let number = self.generation.number.max(begin.heard) + 1;
            self.generation = Generation { number, by: begin.by };
            if before.number == 0 {
                self.since = self.generation;
            }
            self.server = Some(server.clone());
            (self.before, self.grants) = (before, false);
            self.unproven.clear();
            self.doubts = ForgottenTimes::default();
            self.asserted.clear();
        }
        self.known(server)
    }

    /// Notes that a node has told what it holds. Returns the group's state.
    pub fn assert(&mut self, server: &ServerIdentity, assertion: &Assertion) -> GroupStatus {
        let nobody = Excluded { nodes: BTreeSet::new(), keep_us: 0 };
        self.assert_without(server, assertion, &nobody)
    }

    /// Notes that a node has told what it holds, while some other nodes are excluded. Returns the group's
    /// state.
    pub fn assert_without(
        &mut self,
        server: &ServerIdentity,
        assertion: &Assertion,
        excluded: &Excluded,
    ) -> GroupStatus {
        let GroupStatus { generation, grants, .. } = self.known(server);
        if generation != assertion.generation || generation.number == 0 || grants {
            return self.known(server);
        }
        self.asserted.insert(assertion.node);
        self.is_first &= is_new_to_all(assertion);
        let unknown_until_us = self.unknown_until_us(assertion);
        let knows_us = assertion.knows_from_us.saturating_add(assertion.slack_us);
        self.doubts.raise(ForgottenTimes { unknown_until_us, forfeited_before_us: knows_us });
        let all_told = self.have_all_told(assertion);
        if all_told || self.have_the_others_told(assertion, excluded) {
            self.is_first &= all_told;
            self.all_told(assertion, &excluded.nodes);
            if self.grants && !all_told {
                self.forfeit_of_excluded(assertion, excluded);
            }
        }
        self.known(server)
    }

    /// Nothing is granted before all have told, so spending is known from the last node's statement on.
    fn unknown_until_us(&self, assertion: &Assertion) -> u64 {
        let is_first = self.asserted.len() == 1;
        if is_first || !mutated(Mutation::PoolKnowsFromFirst) { assertion.wall_us } else { 0 }
    }

    /// A generation waits for every node of the region.
    fn have_all_told(&self, assertion: &Assertion) -> bool {
        assertion.nodes.is_subset(&self.asserted) || mutated(Mutation::PoolAsksOneNode)
    }

    /// A generation goes without the excluded nodes, and without no others.
    fn have_the_others_told(&self, assertion: &Assertion, excluded: &Excluded) -> bool {
        let is_excluded = |node: &u16| excluded.nodes.contains(node) || mutated(Mutation::PoolExcludesAll);
        let mut silent = assertion.nodes.difference(&self.asserted);
        !excluded.nodes.is_empty() && silent.all(is_excluded)
    }

    /// All that an excluded node may hold counts as spent until its leases are over. The windows that it may
    /// have taken from are forfeited.
    fn forfeit_of_excluded(&mut self, assertion: &Assertion, excluded: &Excluded) {
        if !mutated(Mutation::PoolForfeitsNoExcluded) {
            let over_us = assertion.wall_us.saturating_add(excluded.keep_us.max(assertion.slack_us));
            self.marks.raise(ForgottenTimes { unknown_until_us: over_us, forfeited_before_us: over_us });
        }
    }

    /// All but the excluded nodes have told, and this node says so. The generation grants, unless it goes on
    /// with what is known and this node cannot say that nothing was forgotten. When no node can say so, the
    /// record is dropped.
    fn all_told(&mut self, assertion: &Assertion, excluded: &BTreeSet<u16>) {
        let Assertion { node, nodes, .. } = assertion;
        if self.before.number == 0 {
            if !self.is_first {
                self.marks.raise(self.doubts);
            }
            self.grants = true;
        } else if self.is_witness(assertion) {
            (self.grants, self.before) = (true, Generation::default());
        } else {
            self.unproven.insert(*node);
            // An excluded node says nothing any more.
            let mut told = nodes.intersection(&self.asserted).filter(|node| !excluded.contains(node));
            if told.all(|node| self.unproven.contains(node)) {
                self.server = None;
            }
        }
    }
    /// Only a node of the region that used the generation before, and has heard of none between, can say that
    /// nothing was forgotten.
    fn is_witness(&self, assertion: &Assertion) -> bool {
        let used_it = assertion.nodes.contains(&assertion.node) && assertion.before == self.before;
        used_it || mutated(Mutation::PoolGoesOnUnwitnessed)
    }
}

/// A generation is a first only if all nodes are new.
fn is_new_to_all(assertion: &Assertion) -> bool {
    assertion.is_new || mutated(Mutation::PoolNewToOne)
}
