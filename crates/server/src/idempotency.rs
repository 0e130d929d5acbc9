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
    pools::{Answer, At, PoolClient},
    redis::{Group, Missed},
};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{clock::Clock, worker::Shared};

/// How long a decision waits for the store's answer about a name, and for another node that has claimed the
/// name. The other node waits no longer for the store either, and mostly began before. It may wait for other
/// regions, or the store may be too far away for a second look: then this node decides alone.
pub(crate) const WAIT: Duration = Duration::from_millis(3);
/// How long after another node's claim this node looks for the answer again: no timer is finer.
const LOOK: Duration = Duration::from_millis(1);
/// How long a settlement waits for the store: longer than a decision.
const PATIENT: Duration = Duration::from_millis(200);
/// How long a claim lasts without an answer, in microseconds. After that, the node that claimed the name is
/// gone.
const CLAIM_US: u64 = 5_000_000;
/// How long the store knows that a name is ended, and how long a letter waits, in microseconds. This is the
/// default time for which charges are remembered.
const KEEP_US: u64 = acequia_node::KEEP_NS / 1_000;
/// How often letters are collected.
const COLLECT: Duration = Duration::from_millis(250);
/// Calls about names at one time: half of the calls that may be in flight to one shard.
const CALLS_MAX: usize = 128;
/// The most settlements that are tried again.
const OWED_MAX: usize = 4_096;

/// The way to the names that the nodes of a region share.
#[derive(Debug)]
pub(crate) struct SharedNames {
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

/// A claim of this node's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    id: ChargeId,
    by: Taker,
    at: KeptAt,
}

impl SharedNames {
    pub(crate) fn new(carrier: PoolClient, node: u16, process_number: u32) -> Self {
        let me = Taker { node, process_number, call: 0 };
        let room = Semaphore::new(CALLS_MAX);
        Self { carrier, me, calls: AtomicU64::new(0), room, counts: Counts::default() }
    }

    /// Looks for a name, and claims it if no node has it. Takes no longer than `allowed`.
    pub(crate) async fn claim(
        &self,
        node: &Node,
        clock: &dyn Clock,
        id: ChargeId,
        allowed: Duration,
    ) -> Named {
        let begun = Instant::now();
        let longest = allowed.min(WAIT);
        let by = Taker { call: self.calls.fetch_add(1, Ordering::Relaxed) + 1, ..self.me };
        let named = loop {
            let Some(at) = node.kept_at(id) else { break Named::Alone };
            let (left, now) = (longest.saturating_sub(begun.elapsed()), node.corrected(clock.now()));
            let called = Instant::now();
            let acted = self.act((id, by), &at, (What::Claim, CLAIM_US), (now, left)).await;
            let claim = Claim { id, by, at };
            match acted {
                Acted::Done(NameState::Claimed(holder)) if holder == by => break Named::Claimed(claim),
                // Another node is deciding now.
                Acted::Done(NameState::Claimed(_)) if begun.elapsed() + LOOK < longest => {
                    sleep(LOOK.saturating_sub(called.elapsed())).await;
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
    async fn keep(&self, node: &Node, clock: &dyn Clock, claim: Claim) {
        let now = node.corrected(clock.now());
        let Claim { id, by, at } = claim;
        let what = match node.share_answer(id, at.generation, now) {
            Some(shared) => (What::Keep(shared.bytes), shared.drops_us.saturating_sub(now.wall_ns / 1_000)),
            None => (What::Leave, 0),
        };
        self.act((id, by), &at, what, (now, PATIENT)).await;
    }

    /// Ends a name, so that no node answers by it from now on; says whether that is certain. `kept`: the
    /// generation in which a node may have kept an answer.
    async fn end(&self, node: &Node, id: ChargeId, kept: Generation, now: Now) -> bool {
        let Some(at) = node.kept_at(id) else { return false };
        // Other nodes may still use the generation before.
        if at.generation != kept && !at.grants {
            return false;
        }
        let by = Taker { call: self.calls.fetch_add(1, Ordering::Relaxed) + 1, ..self.me };
        let standing = self.act((id, by), &at, (What::End, KEEP_US), (now, PATIENT)).await;
        matches!(standing, Acted::Done(NameState::Ended))
    }

    /// Does something to a name, within `longest`.
    async fn act(
        &self,
        (id, by): (ChargeId, Taker),
        kept: &KeptAt,
        (what, for_us): (What, u64),
        (now, longest): (Now, Duration),
    ) -> Acted {
        let cell = format!("name:{}", id.to_text());
        let Some(at) = at(kept, &cell, now) else { return Acted::Not };
        // A call that gives a charge back waits for no other.
        let room = if what == What::End { None } else { self.room.try_acquire().ok() };
        if longest.is_zero() || (room.is_none() && what != What::End) {
            return Acted::Not;
        }
        let act = Act { by, what, drops_us: at.wall_us.saturating_add(for_us) };
        match timeout(longest, self.carrier.name(at, &act)).await {
            Ok(Ok(Answer::Done(standing))) => Acted::Done(standing),
            Ok(Ok(_) | Err(Missed::NotSent(_) | Missed::Refused(_))) => Acted::Not,
            Ok(Err(Missed::Unknown(_))) | Err(_) => Acted::Unsure,
        }
    }

    /// Leaves a letter for another node; says whether the letter is in the store.
    pub(crate) async fn post(&self, node: &Node, to: u16, letter: Letter, now: Now) -> bool {
        let Some(kept) = node.kept_in(to % GROUPS) else { return false };
        let cell = letters_of(to);
        let Some(at) = at(&kept, &cell, node.corrected(now)) else { return false };
        let drops_us = at.wall_us.saturating_add(KEEP_US);
        let posted = timeout(PATIENT, self.carrier.post(at, letter, drops_us)).await;
        matches!(posted, Ok(Ok(Answer::Done(true))))
    }

    /// The letters that wait for this node, except about charges of which it already has letters.
    async fn collect(&self, node: &Node, had: &[u128], now: Now) -> Option<Vec<Letter>> {
        let kept = node.kept_in(self.me.node % GROUPS)?;
        let cell = letters_of(self.me.node);
        let at = at(&kept, &cell, node.corrected(now))?;
        match timeout(PATIENT, self.carrier.collect(at, had)).await {
            Ok(Ok(Answer::Done(letters))) => Some(letters),
            _ => None,
        }
    }
}

fn letters_of(node: u16) -> String {
    format!("letters:{node}")
}

/// The target of a call, dated by the node's corrected clock. The deadline is the store's own, however short
/// a caller waits: a store too slow for one decision is not down.
fn at<'a>(kept: &KeptAt, cell: &'a str, now: Now) -> Option<At<'a>> {
    let KeptAt { group, allocation: terms, generation, .. } = *kept;
    let (group, wall_us) = (Group::new(group)?, now.wall_ns / 1_000);
    Some(At { group, allocation: terms, cell, generation, wall_us, deadline: PATIENT })
}

/// A claim while its request is decided. The outcome is kept even if the caller goes away meanwhile.
pub(crate) struct Deciding<'a> {
    shared: &'a Arc<Shared>,
    claim: Option<Claim>,
}

impl<'a> Deciding<'a> {
    pub(crate) fn new(shared: &'a Arc<Shared>, claim: Claim) -> Self {
        Self { shared, claim: Some(claim) }
    }

    /// The request is decided: waits for at most `longest` until the answer is kept. A node that asks the
    /// same meanwhile finds the claim, and waits.
    pub(crate) async fn keep(mut self, longest: Duration) {
        if let Some(kept) = self.keep_apart() {
            let _late = timeout(longest, kept).await;
        }
    }

    fn keep_apart(&mut self) -> Option<JoinHandle<()>> {
        let (claim, shared) = (self.claim.take()?, Arc::clone(self.shared));
        // Without a runtime the process is ending.
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn(async move {
            if let Some(siblings) = shared.siblings.get() {
                siblings.names.keep(&shared.node, &*shared.clock, claim).await;
            }
        }))
    }
}

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        self.keep_apart();
    }
}

/// Settles a charge of this node. `None` if the store has not confirmed that the name is ended: other nodes
/// may still answer by it.
pub(crate) async fn settle(shared: &Shared, id: ChargeId, cost: Option<u64>) -> Option<Settled> {
    loop {
        let now = shared.clock.now();
        let kept = match shared.node.settle(id, cost, now) {
            Settled::Shared { generation } => generation,
            settled => return Some(settled),
        };
        let now = shared.node.corrected(now);
        if !shared.siblings.get()?.names.end(&shared.node, id, kept, now).await {
            return None;
        }
        shared.node.ended(id, kept);
    }
}

/// Settles what came over the mesh and by letters, for which no caller waits. Runs until `stopping`.
pub(crate) async fn deliver(shared: Arc<Shared>, mut stopping: watch::Receiver<bool>) {
    let work = async {
        let mut owed: VecDeque<(Instant, ChargeId, Option<u64>)> = VecDeque::new();
        let mut had: Vec<u128> = Vec::new();
        loop {
            sleep(COLLECT).await;
            let begun = Instant::now();
            let Some(siblings) = shared.siblings.get() else { continue };
            let mut all: Vec<(ChargeId, Option<u64>)> = shared.node.take_settlements().into();
            let letters = siblings.names.collect(&shared.node, &had, shared.clock.now()).await;
            if let Some(letters) = letters {
                had = letters.iter().map(|letter| letter.id).collect();
                all.extend(letters.iter().map(|letter| (ChargeId(letter.id), letter.cost)));
            }
            owed.extend(all.into_iter().map(|(id, cost)| (begun, id, cost)));
            owed.truncate(OWED_MAX);
            for (since, id, cost) in std::mem::take(&mut owed) {
                if settle(&shared, id, cost).await.is_none()
                    && since.elapsed() < Duration::from_micros(KEEP_US)
                {
                    owed.push_back((since, id, cost));
                }
            }
        }
    };
    tokio::select! {
        biased;
        _ = stopping.wait_for(|stopping| *stopping) => {}
        () = work => {}
    }
}
