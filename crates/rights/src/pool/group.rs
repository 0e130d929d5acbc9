//! Which server process keeps the pools of a group of cells, and since when nothing of them can have been forgotten.
//!
//! All pools of a group lie in one place, and are lost or rolled back together: when a server begins anew, when a replica is promoted that
//! had not heard the last of its primary, or when somebody deletes what is there. A group has one record, in the same place. It
//! names the place that it was made in ([`Place`]), which for a replica is another one, and its *generation*.
//!
//! - A call says which place answers it, and the generation that the caller knows. If the record does not say the same, or is
//!   absent, the call does nothing, and the caller *begins* a generation ([`Group::begin`]): from then on nothing is granted.
//!   Numbers of generations may come again, with a record that was rolled back; so each has the name of the call that began it.
//! - Every node says again what it holds of every pool of the group, by calls that ask for nothing, and then that it has done so
//!   ([`Group::assert`]). When all nodes have, the pools know again at least what is held, and grant: of buckets and sliding windows
//!   what was spent is unknown up to this instant ([`Ground::fresh_us`]), and counts as all.
//! - Of windows each node must know what it took from its beginning. Windows that began before any node knows what earlier processes of
//!   it took are *burned* ([`Ground::burned_us`]).
//! - Where nothing was ever taken, nothing needs to be burned: a node that has nothing on its disk, and has heard of none that granted,
//!   says that it is new ([`Assertion::is_new`]). Where nothing was kept when the first generation began, none has granted since, and *all*
//!   nodes say so, the next that grants is a first ([`Known::is_first`]): no node of the region has ever held anything of the group that
//!   it knows of; and of what nobody knows nobody can tell. When one of them is not new, what the others took before they began is not known.
//! - While a generation does not grant, no lease is renewed: an answer of it is no answer to what is held, which ends when it would have. The
//!   generation before it may go on elsewhere, for nodes that have not heard of this one, and takes back what is not renewed there.
//! - Nodes that do not answer may be left out, each by name, by whoever is sure that they call no other process of the server meanwhile
//!   ([`Group::assert_without`]). When all others have told, nothing is granted until all leases have ended that such a node may hold,
//!   and all windows are burned that begin before that: nodes take of no window that begins later than a lease lasts from then.
//! - Where regions share limits, pools are part of one distribution of shares ([`Place::terms`]). The first node that goes by a later one
//!   makes them part of that, with all that they know ([`Group::begin`]); from then on whoever has not heard of it takes nothing more of
//!   them, nor begins a generation.
//! - A node that has heard of nothing, as one that is new in its region or has lost its disk, takes nothing of a group that grants: it
//!   cannot know whether that is the last there was. It begins a generation that *goes on* with what the pools know
//!   ([`Begin::goes_on`]). When all have told what they hold, and then one of the nodes says that the last it had heard of before was the
//!   very generation that granted here ([`Assertion::before`]), nothing was forgotten, and nothing more counts as spent than did. When none
//!   of them can say so, what is known here counts for nothing, and another one begins.
//!
//! **Theorem 9.** In a generation that grants, every pool has down for every node at least what that may use. *Proof.* By the rules of the
//! pools this is kept by each call as long as the pool remembers. After it forgot, nothing is granted by it before every node has told
//! it what it holds, and from when a node did, the pool remembers that. A node that hears of a later generation holds on to what the pool has
//! down for it, no longer than that does, until the later one grants; and then that has it down. What another process of the server grants meanwhile, to nodes
//! that do not know of this generation, they tell before this one grants: a node that has heard of a generation uses no earlier one,
//! and says that it has told all only of what it held after that. A node that is left out calls nobody, by the word of whoever leaves it out,
//! before it has heard of this generation or a later one; the windows that it took of are burned, its leases are over. ∎
//!
//! **Going on.** Let a generation go on with `b`, which granted here, and let one of the region's nodes, `w`, say when all have told that `b`
//! was the last that it had heard of before this one, or before others here that went on with `b` and did not grant. *Then the pools have
//! down for every node what it may use, and all that was spent.* Proof. What they knew in `b` they know: nobody changed them since but by
//! telling. By Theorem 9 that is all, unless one that is later than `b` has granted elsewhere, and somebody used it. Whoever did has told
//! here since, and so has heard of this one, and uses no earlier one; so it had granted by then. It waited for `w`, which is one of the
//! nodes to whoever is: a node hears of none before it is one to all others, and one that has left comes back with another disk, on which
//! there is none. So `w` had told there, and heard of it, unless it was left out, and then it calls nobody here; or an earlier process of
//! it had, whose disk was lost. But one that begins with nothing on its disk says nothing of `b` before that has granted, told by all, when
//! it had heard of it; and it takes none that may have begun before it counted to all others. What earlier processes held of a node
//! that has lost its disk they had of `b`, likewise. ∎
//!
//! **What was begun before.** A node with nothing on its disk gives a generation that it begins at least its wall's time in microseconds, when it came to count
//! to all others, and twice by how much walls may be wrong, ε; it takes none of others that is not above that; and it calls none before so
//! much has passed. *Then it takes none that began before it counted.* Proof. Let `t` be when that was. What it refuses goes up to at least
//! `t + ε`. Let another one have begun at `u < t`, with a number that a node with nothing on its disk gave, which came to count at `s`: at most
//! `s + 3 ε`, and `u ≥ s + 2 ε`, so at most `u + ε < t + ε`. Others give numbers little above what they have heard of, and follow each
//! other more slowly than that counts up. ∎
//!
//! **What a distribution leaves of pools.** Let a region have `P` of a cell by one distribution and `Q < P` by the next, of which each of
//! its `n` nodes keeps at most `Q / n` of what it held when it adopts that, and nothing of what was granted before and is heard of later.
//! *When all have, they hold at most `Q` together.* Proof. If the pool has granted nothing under the next one, they hold `n · Q / n` at
//! most. Otherwise, when it last did, what it had down for all of them was at most `Q`, and that is at least what each held, whichever it
//! went by; those who had not adopted the next one could only hold less afterwards, since they were granted nothing any more. ∎

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{CallContext, Generation, Taker};
use crate::mutation::{Mutation, mutated};

/// Where a group is kept, as one of its callers sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerIdentity {
    /// The server's process, since it last became a primary: another one after every start, and after every promotion.
    pub run: String,
    /// What groups are kept where: another number when groups move.
    pub config_fingerprint: u64,
    /// The distribution among regions that the group's pools are part of, which counts up; 0 where there is none.
    pub terms: u64,
}

/// What is known of a group, where it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolGroup {
    generation: Generation,
    /// The generation in which its pools began to remember: this one, or the one that it goes on with, or that that went on with.
    since: Generation,
    /// The generation that granted last, where this one goes on with it and does not grant; none else.
    before: Generation,
    /// Nodes that cannot tell, when all have told, that nothing was forgotten since that one.
    unproven: BTreeSet<u16>,
    server: Option<ServerIdentity>,
    grants: bool,
    marks: Marks,
    /// Those that count when it grants, unless it goes on with all that was known.
    doubts: Marks,
    asserted: BTreeSet<u16>,
    /// Nothing was kept when the first one began, none of them has granted before this one, and all who have told in it are new.
    is_first: bool,
}

/// Up to when something may have been forgotten: wall clock, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Marks {
    fresh_us: u64,
    burned_us: u64,
}

impl Marks {
    fn raise(&mut self, to: Self) {
        self.fresh_us = self.fresh_us.max(to.fresh_us);
        self.burned_us = self.burned_us.max(to.burned_us);
    }
}

/// A generation that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The highest number of one that the caller has heard of, or refuses.
    pub heard: u64,
    /// The call that begins it.
    pub by: Taker,
    /// Whether it goes on with what the pools know, if they granted: where the caller has heard of nothing before but that.
    pub goes_on: bool,
}

/// What a node says when it has told all that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assertion {
    /// Which node.
    pub node: u16,
    /// The generation.
    pub generation: Generation,
    /// All nodes of the region.
    pub nodes: BTreeSet<u16>,
    /// Since when it knows what it took from windows, with all earlier processes of it: wall clock, in microseconds.
    pub knows_from_us: u64,
    /// Whether no process of it has held or spent anything, as far as it knows: it began with nothing on its disk, has heard of none that
    /// granted, and of this one that it is a first ([`Known::is_first`]). It counts where all nodes say so.
    pub is_new: bool,
    /// The last generation that it had heard of before this one; number 0 for none. It may leave out those that it has not heard to grant
    /// and whose pools remember since the same as this one's: they were begun in this place, and had one granted, this one would go on with it.
    pub before: Generation,
    /// Its wall clock, in microseconds, and by how much that may be wrong twice.
    pub wall_us: u64,
    /// See [`super::slack_us`].
    pub slack_us: u64,
}

/// Nodes that are left out, on the word of somebody who is sure that they call no other process of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// Which ones.
    pub nodes: BTreeSet<u16>,
    /// After so long, in microseconds, leases of theirs are over, and windows begin of which they took nothing.
    pub keep_us: u64,
}

/// How a generation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// Which one it is: number 0 for none.
    pub generation: Generation,
    /// Whether it grants.
    pub grants: bool,
    /// The generation in which its pools began to remember: of that and of later ones they know what was told.
    pub since: Generation,
    /// Whether none has granted before this one, from when nothing was kept, and all nodes that have told in it are new.
    pub is_first: bool,
}

impl PoolGroup {
    /// How it is, for whoever is answered by that place: nothing is known of a group that was kept elsewhere.
    pub fn known(&self, server: &ServerIdentity) -> GroupStatus {
        let is_here = self.server.as_ref() == Some(server) || mutated(Mutation::PoolKnowsNoProcess);
        match is_here {
            true => GroupStatus {
                generation: self.generation,
                grants: self.grants,
                since: self.since,
                is_first: self.is_first,
            },
            false => GroupStatus::default(),
        }
    }

    /// What a call may count on that knows of a generation; nothing if it is not this one.
    pub fn context(
        &self,
        server: &ServerIdentity,
        generation: Generation,
        wall_us: u64,
    ) -> Option<CallContext> {
        let GroupStatus { generation: known, grants, since, .. } = self.known(server);
        let Marks { fresh_us, burned_us } = self.marks;
        (known == generation && known.number > 0).then_some(CallContext {
            wall_us,
            generation,
            since,
            grants,
            fresh_us,
            burned_us,
        })
    }

    /// Begins a generation, with a number above all that the caller has heard of, unless somebody has begun such a one
    /// here already; then its pools go on, as part of the distribution among regions that the caller has adopted, if that is a later
    /// one. Whoever has adopted an earlier one changes nothing. Returns how it is.
    pub fn begin(&mut self, server: &ServerIdentity, begin: &Begin) -> GroupStatus {
        let kept = self
            .server
            .as_mut()
            .filter(|kept| (&kept.run, kept.config_fingerprint) == (&server.run, server.config_fingerprint));
        let is_late = match kept {
            Some(kept) if kept.terms > server.terms && !mutated(Mutation::PoolHearsOldTerms) => true,
            Some(kept) => {
                kept.terms = server.terms;
                false
            }
            None => false,
        };
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
            self.doubts = Marks::default();
            self.asserted.clear();
        }
        self.known(server)
    }

    /// A node has told what it holds. Returns how it is.
    pub fn assert(&mut self, server: &ServerIdentity, assertion: &Assertion) -> GroupStatus {
        let nobody = Absent { nodes: BTreeSet::new(), keep_us: 0 };
        self.assert_without(server, assertion, &nobody)
    }

    /// The same, while some of the others are left out. Returns how it is.
    pub fn assert_without(
        &mut self,
        server: &ServerIdentity,
        assertion: &Assertion,
        absent: &Absent,
    ) -> GroupStatus {
        let GroupStatus { generation, grants, .. } = self.known(server);
        if generation != assertion.generation || generation.number == 0 || grants {
            return self.known(server);
        }
        self.asserted.insert(assertion.node);
        self.is_first &= assertion.is_new || mutated(Mutation::PoolNewToOne);
        let knows_us = assertion.knows_from_us.saturating_add(assertion.slack_us);
        // Nothing is granted before, so it is known from the last of them on.
        let is_counted = self.asserted.len() == 1 || !mutated(Mutation::PoolFreshFromFirst);
        let fresh_us = if is_counted { assertion.wall_us } else { 0 };
        self.doubts.raise(Marks { fresh_us, burned_us: knows_us });
        let has_told = |node: &u16| self.asserted.contains(node);
        let all_told = assertion.nodes.iter().all(has_told) || mutated(Mutation::PoolAsksOneNode);
        let left_out = |node: &u16| absent.nodes.contains(node) || mutated(Mutation::PoolLeavesAllOut);
        let is_rest =
            !absent.nodes.is_empty() && assertion.nodes.iter().all(|node| has_told(node) || left_out(node));
        if all_told || is_rest {
            self.is_first &= all_told;
            self.all_told(assertion, &absent.nodes);
            if self.grants && !all_told && !mutated(Mutation::PoolBurnsNoAbsent) {
                let over_us = assertion.wall_us.saturating_add(absent.keep_us.max(assertion.slack_us));
                self.marks.raise(Marks { fresh_us: over_us, burned_us: over_us });
            }
        }
        self.known(server)
    }

    /// All have told, but for those that are left out, and this node says so. It grants, unless it goes on with what is known and this node cannot
    /// tell that nothing was forgotten. When none of them can, nothing is known here any more.
    fn all_told(&mut self, assertion: &Assertion, absent: &BTreeSet<u16>) {
        let Assertion { node, nodes, before, .. } = assertion;
        let is_witness = nodes.contains(node) && *before == self.before;
        if self.before.number == 0 {
            if !self.is_first {
                self.marks.raise(self.doubts);
            }
            self.grants = true;
        } else if is_witness || mutated(Mutation::PoolGoesOnUnwitnessed) {
            (self.grants, self.before) = (true, Generation::default());
        } else {
            self.unproven.insert(*node);
            // One that is left out does not say so any more.
            let mut told = nodes.intersection(&self.asserted).filter(|node| !absent.contains(node));
            if told.all(|node| self.unproven.contains(node)) {
                self.server = None;
            }
        }
    }
}
