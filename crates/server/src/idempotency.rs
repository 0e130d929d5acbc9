//! Names of charges that all nodes of a region know, where they share a store.
//!
//! If this node does not remember the id of a check, it asks the store first: another node may have answered
//! the id. The node that claims the id first charges, and keeps its answer in the store before it replies. If
//! the store does not answer in time, the node decides and remembers alone: then each node that is asked may
//! charge the same id once.
//!
//! A charge whose answer others may repeat is given back only after the store has ended the name
//! ([`acequia_rights::pool::name`]). Where no mesh carries a settlement to the node that made the charge, a
//! letter in the store does.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use acequia_limits::Now;
use acequia_node::{ChargeId, KeptAt, Node, Settled, pool::GROUPS};
use acequia_rights::pool::{
    Generation, Letter, Taker,
    name::{Act, NameState, What},
};
use acequia_store::{
    pools::{At, CallAnswer, PoolClient},
    redis::{Group, Missed},
};
use tokio::{
    runtime::Handle,
    sync::Semaphore,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{clock::Clock, settings::SETTINGS};

/// The way to the names that the nodes of a region share.
#[derive(Debug)]
pub(crate) struct SharedNames {
    node: Arc<Node>,
    clock: Arc<dyn Clock>,
    carrier: PoolClient,
    /// This node's process.
    me: Taker,
    calls: AtomicU64,
    /// Room for calls about names under way. It is bounded because leases need the store as well.
    room: Semaphore,
    pub(crate) counts: Counts,
}

/// Counts of names since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Names that this node claimed.
    pub(crate) claimed: AtomicU64,
    /// Names that another node had answered.
    pub(crate) repeated: AtomicU64,
    /// Names that were decided alone: the store was not asked, or did not answer in time.
    pub(crate) alone: AtomicU64,
}

/// The store's answer about a name.
#[derive(Debug)]
pub(crate) enum Named {
    /// No node had the name: this node charges.
    Claimed(Claim),
    /// A node answered the request, with this answer.
    Kept(Vec<u8>),
    /// The charge was given back.
    Ended,
    /// The store did not answer in time: the name may be claimed or not.
    Unsure(Claim),
    /// The store is down, or was not asked; or another node has claimed the name, and did not say the outcome
    /// in time.
    Alone,
}

/// The outcome of a call about a name.
#[derive(Debug)]
enum Acted {
    Done(NameState),
    /// The call may have been executed or not.
    Unsure,
    /// The call was not made, or did nothing.
    Not,
}

/// This node's claim of a name, or another call of its about one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    id: ChargeId,
    /// The call that claims.
    by: Taker,
    /// Where the store keeps the name.
    at: KeptAt,
}

impl SharedNames {
    /// The names of `node`'s region. `me` is this node's process.
    pub(crate) fn new(node: Arc<Node>, clock: Arc<dyn Clock>, carrier: PoolClient, me: Taker) -> Self {
        let room = Semaphore::new(SETTINGS.names.calls_max);
        Self { node, clock, carrier, me, calls: AtomicU64::new(0), room, counts: Counts::default() }
    }

    /// This node's process, as the maker of a new call.
    fn next_call(&self) -> Taker {
        Taker { call: self.calls.fetch_add(1, Ordering::Relaxed) + 1, ..self.me }
    }

    /// Looks for a name, and claims it if no node has it. Takes no longer than `allowed`.
    pub(crate) async fn claim(&self, id: ChargeId, allowed: Duration) -> Named {
        let begun = Instant::now();
        let longest = allowed.min(SETTINGS.names.wait);
        let by = self.next_call();
        let named = loop {
            let Some(at) = self.node.kept_at(id) else { break Named::Alone };
            let left = longest.saturating_sub(begun.elapsed());
            let now = self.node.corrected(self.clock.now());
            let called = Instant::now();
            let claim = Claim { id, by, at };
            let acted = self.act(claim, What::Claim, drops_us(now, SETTINGS.names.claim_us), now, left).await;
            match acted {
                Acted::Done(NameState::Claimed(holder)) if holder == by => break Named::Claimed(claim),
                // Another node is deciding now.
                Acted::Done(NameState::Claimed(_)) if begun.elapsed() + SETTINGS.names.look < longest => {
                    sleep(SETTINGS.names.look.saturating_sub(called.elapsed())).await;
                }
                Acted::Done(NameState::Claimed(_)) => break Named::Alone,
                Acted::Done(NameState::Kept(bytes)) => break Named::Kept(bytes),
                Acted::Done(NameState::Ended) => break Named::Ended,
                Acted::Unsure => break Named::Unsure(claim),
                Acted::Done(NameState::Free) | Acted::Not => break Named::Alone,
            }
        };
        let count = match &named {
            Named::Claimed(_) => &self.counts.claimed,
            Named::Kept(_) | Named::Ended => &self.counts.repeated,
            Named::Unsure(_) | Named::Alone => &self.counts.alone,
        };
        count.fetch_add(1, Ordering::Relaxed);
        named
    }

    /// Keeps the answer to a charge that was made under a claim; or gives the claim up if nothing was
    /// charged.
    async fn keep(&self, claim: Claim) {
        let now = self.node.corrected(self.clock.now());
        let at_once_us = drops_us(now, 0);
        let (what, drops_us) = match self.node.share_answer(claim.id, claim.at.generation, now) {
            Some(shared) => (What::Keep(shared.bytes), shared.drops_us.max(at_once_us)),
            None => (What::Leave, at_once_us),
        };
        self.act(claim, what, drops_us, now, SETTINGS.names.patient).await;
    }

    /// Ends a name, so that no node answers by it from now on; says whether that is certain. `kept`: the
    /// generation in which a node may have kept an answer.
    async fn end(&self, id: ChargeId, kept: Generation, now: Now) -> bool {
        let Some(at) = self.node.kept_at(id) else { return false };
        // Other nodes may still use the generation before.
        if at.generation != kept && !at.grants {
            return false;
        }
        let call = Claim { id, by: self.next_call(), at };
        let (drops_us, patient) = (drops_us(now, SETTINGS.names.keep_us), SETTINGS.names.patient);
        let standing = self.act(call, What::End, drops_us, now, patient).await;
        matches!(standing, Acted::Done(NameState::Ended))
    }

    /// Does something to a name, within `longest`. The store forgets the outcome at `drops_us`.
    async fn act(&self, call: Claim, what: What, drops_us: u64, now: Now, longest: Duration) -> Acted {
        let cell = format!("name:{}", call.id.to_text());
        let Some(at) = at(&call.at, &cell, now) else { return Acted::Not };
        // A call that gives a charge back waits for no other.
        let room = if what == What::End { None } else { self.room.try_acquire().ok() };
        if longest.is_zero() || (room.is_none() && what != What::End) {
            return Acted::Not;
        }
        let act = Act { by: call.by, what, drops_us };
        match timeout(longest, self.carrier.name(at, &act)).await {
            Ok(Ok(CallAnswer::Done(standing))) => Acted::Done(standing),
            Ok(Ok(_) | Err(Missed::NotSent(_) | Missed::Refused(_))) => Acted::Not,
            Ok(Err(Missed::Unknown(_))) | Err(_) => Acted::Unsure,
        }
    }

    /// Leaves a letter for another node; says whether the letter is in the store.
    pub(crate) async fn post(&self, to: u16, letter: Letter, now: Now) -> bool {
        let Some(kept) = self.node.kept_in(to % GROUPS) else { return false };
        let (cell, now) = (letters_of(to), self.node.corrected(now));
        let Some(at) = at(&kept, &cell, now) else { return false };
        let drops_us = drops_us(now, SETTINGS.names.keep_us);
        let posted = timeout(SETTINGS.names.patient, self.carrier.post(at, letter, drops_us)).await;
        matches!(posted, Ok(Ok(CallAnswer::Done(true))))
    }

    /// The letters that wait for this node, except about charges of which it already has letters.
    async fn collect(&self, had: &[u128]) -> Option<Vec<Letter>> {
        let now = self.clock.now();
        let kept = self.node.kept_in(self.me.node % GROUPS)?;
        let cell = letters_of(self.me.node);
        let at = at(&kept, &cell, self.node.corrected(now))?;
        match timeout(SETTINGS.names.patient, self.carrier.collect(at, had)).await {
            Ok(Ok(CallAnswer::Done(letters))) => Some(letters),
            _ => None,
        }
    }
}

fn letters_of(node: u16) -> String {
    format!("letters:{node}")
}

/// When the store forgets what is to last for so long from now on.
const fn drops_us(now: Now, for_us: u64) -> u64 {
    (now.wall_ns / 1_000).saturating_add(for_us)
}

/// The target of a call, dated by the node's corrected clock. The deadline is the store's own, however short
/// a caller waits: a store too slow for one decision is not down.
fn at<'a>(kept: &KeptAt, cell: &'a str, now: Now) -> Option<At<'a>> {
    let KeptAt { group, allocation, generation, .. } = *kept;
    let (group, wall_us) = (Group::new(group)?, now.wall_ns / 1_000);
    Some(At { group, allocation, cell, generation, wall_us, deadline: SETTINGS.names.patient })
}

/// A claim while its request is decided. The outcome is kept even if the caller goes away meanwhile.
pub(crate) struct Deciding<'a> {
    names: &'a Arc<SharedNames>,
    claim: Option<Claim>,
}

impl<'a> Deciding<'a> {
    pub(crate) fn new(names: &'a Arc<SharedNames>, claim: Claim) -> Self {
        Self { names, claim: Some(claim) }
    }

    /// The request is decided: waits for at most `longest` until the answer is kept. A node that asks the
    /// same meanwhile finds the claim, and waits.
    pub(crate) async fn keep(mut self, longest: Duration) {
        if let Some(kept) = self.keep_apart() {
            let _late = timeout(longest, kept).await;
        }
    }

    fn keep_apart(&mut self) -> Option<JoinHandle<()>> {
        let (claim, names) = (self.claim.take()?, Arc::clone(self.names));
        // Without a runtime the process is ending.
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn(async move { names.keep(claim).await }))
    }
}

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        self.keep_apart();
    }
}

/// Settles a charge of this node. `names` are there if the region has several nodes. `None` if the store has
/// not confirmed that the name is ended: other nodes may still answer by it.
pub(crate) async fn settle(
    node: &Node,
    clock: &dyn Clock,
    names: Option<&SharedNames>,
    id: ChargeId,
    cost: Option<u64>,
) -> Option<Settled> {
    loop {
        let now = clock.now();
        let kept = match node.settle(id, cost, now) {
            Settled::Shared { generation } => generation,
            settled => return Some(settled),
        };
        if !names?.end(id, kept, node.corrected(now)).await {
            return None;
        }
        node.ended(id, kept);
    }
}

/// A settlement that no caller waits for.
#[derive(Clone, Copy, Debug)]
struct Owed {
    /// When this node heard of the settlement.
    since: Instant,
    id: ChargeId,
    cost: Option<u64>,
}

/// Settles what came over the mesh and by letters, for which no caller waits. Runs until `stopping`.
pub(crate) async fn deliver(names: Arc<SharedNames>, stopping: CancellationToken) {
    let work = async {
        let mut owed: VecDeque<Owed> = VecDeque::new();
        let mut had: Vec<u128> = Vec::new();
        loop {
            sleep(SETTINGS.names.collect).await;
            let since = Instant::now();
            let told = names.node.take_settlements();
            owed.extend(told.into_iter().map(|(id, cost)| Owed { since, id, cost }));
            if let Some(letters) = names.collect(&had).await {
                had = letters.iter().map(|letter| letter.id).collect();
                let charge = |letter: &Letter| Owed { since, id: ChargeId(letter.id), cost: letter.cost };
                owed.extend(letters.iter().map(charge));
            }
            owed.truncate(SETTINGS.names.owed_max);
            for Owed { since, id, cost } in std::mem::take(&mut owed) {
                let settled = settle(&names.node, &*names.clock, Some(&names), id, cost).await;
                if settled.is_none() && since.elapsed() < Duration::from_micros(SETTINGS.names.keep_us) {
                    owed.push_back(Owed { since, id, cost });
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = stopping.cancelled() => {}
        () = work => {}
    }
}
