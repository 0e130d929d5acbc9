//! Names of charges that all nodes of a region know, where they share a store.
//!
//! A check under an id that this node does not remember asks the store first: another node may have answered it. Who claims it first
//! charges, and keeps its answer there before it replies. Where the store does not answer in time, the node decides alone, and
//! remembers alone: then the same id is charged once at each node that is asked.
//!
//! What others may answer by is given back after the name was ended in the store ([`acequia_rights::pool::name`]). A settlement of a
//! charge that another node made is told to that one by a letter in the store, where no mesh carries it there.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use acequia_limits::Now;
use acequia_node::{ChargeId, KeptAt, Node, Settled, leases::GROUPS};
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

/// How long a decision waits for the store to say what it knows of a name, and for another node that has claimed it: that one waits no longer
/// for the store either, and mostly began before. It may wait for other regions, or the store be so far away that no second look is in time:
/// then this node decides alone.
pub(crate) const WAIT: Duration = Duration::from_millis(3);
/// How long after another node's claim its answer is looked for again: no timer is finer.
const LOOK: Duration = Duration::from_millis(1);
/// A settlement is no decision: it waits longer.
const PATIENT: Duration = Duration::from_millis(200);
/// A claim without an answer is over after so long: whoever made it is gone. In microseconds.
const CLAIM_US: u64 = 5_000_000;
/// How long a name is known to be ended, and a letter waits, in microseconds: as long as charges are remembered where nothing else is said.
const KEEP_US: u64 = acequia_node::KEEP_NS / 1_000;
/// How often letters are collected.
const COLLECT: Duration = Duration::from_millis(250);
/// Calls about names at once: half of what may be under way to one shard.
const CALLS_MAX: usize = 128;
/// Settlements that are tried again.
const OWED_MAX: usize = 4_096;

/// The way to the names that the nodes of a region share.
#[derive(Debug)]
pub(crate) struct SharedNames {
    carrier: PoolClient,
    /// This node's process.
    me: Taker,
    calls: AtomicU64,
    /// Calls about names that may be under way: leases need the store as well.
    room: Semaphore,
    pub(crate) counts: Counts,
}

/// What became of names, since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Claimed here.
    pub(crate) claimed: AtomicU64,
    /// Answered by what another node had answered.
    pub(crate) repeated: AtomicU64,
    /// Not looked for, or not in time: decided alone.
    pub(crate) alone: AtomicU64,
}

/// What the store says of a name.
#[derive(Debug)]
pub(crate) enum Named {
    /// Nobody had it: this node charges.
    Claimed(Claim),
    /// This was answered.
    Kept(Vec<u8>),
    /// What was charged was given back.
    Ended,
    /// Nobody answered in time: it may be claimed or not.
    Unsure(Claim),
    /// The store is lost, or was not asked; or another node has claimed it, and did not say in time what came of it.
    Alone,
}

/// What became of a call about a name.
#[derive(Debug)]
enum Acted {
    Done(NameState),
    /// It may have been done or not.
    Unsure,
    /// It was not made, or did nothing.
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
    pub(crate) fn new(carrier: PoolClient, node: u16, boot: u32) -> Self {
        let me = Taker { node, boot, call: 0 };
        let room = Semaphore::new(CALLS_MAX);
        Self { carrier, me, calls: AtomicU64::new(0), room, counts: Counts::default() }
    }

    /// Looks for a name, and claims it if nobody has it. It takes no longer than is `allowed`.
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
                // Another node decides just now.
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

    /// Keeps the answer to what was charged under a claim, or gives the claim up where nothing was.
    async fn keep(&self, node: &Node, clock: &dyn Clock, claim: Claim) {
        let now = node.corrected(clock.now());
        let Claim { id, by, at } = claim;
        let what = match node.share_answer(id, at.generation, now) {
            Some(shared) => (What::Keep(shared.bytes), shared.drops_us.saturating_sub(now.wall_ns / 1_000)),
            None => (What::Leave, 0),
        };
        self.act((id, by), &at, what, (now, PATIENT)).await;
    }

    /// From now on no node answers by a name; says whether that is certain. `kept` in which generation one may have.
    async fn end(&self, node: &Node, id: ChargeId, kept: Generation, now: Now) -> bool {
        let Some(at) = node.kept_at(id) else { return false };
        // Nodes may still go by the one before.
        if at.generation != kept && !at.grants {
            return false;
        }
        let by = Taker { call: self.calls.fetch_add(1, Ordering::Relaxed) + 1, ..self.me };
        let standing = self.act((id, by), &at, (What::End, KEEP_US), (now, PATIENT)).await;
        matches!(standing, Acted::Done(NameState::Ended))
    }

    /// Does something to a name; for so long it may take.
    async fn act(
        &self,
        (id, by): (ChargeId, Taker),
        kept: &KeptAt,
        (what, for_us): (What, u64),
        (now, longest): (Now, Duration),
    ) -> Acted {
        let cell = format!("name:{}", id.to_text());
        let Some(at) = at(kept, &cell, now) else { return Acted::Not };
        // Who gives a charge back waits for nobody else.
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

    /// Leaves a letter for another node; says whether it is there.
    pub(crate) async fn post(&self, node: &Node, to: u16, letter: Letter, now: Now) -> bool {
        let Some(kept) = node.kept_in(to % GROUPS) else { return false };
        let cell = letters_of(to);
        let Some(at) = at(&kept, &cell, node.corrected(now)) else { return false };
        let drops_us = at.wall_us.saturating_add(KEEP_US);
        let posted = timeout(PATIENT, self.carrier.post(at, letter, drops_us)).await;
        matches!(posted, Ok(Ok(Answer::Done(true))))
    }

    /// The letters that wait for this node, but for those about charges that it had letters of.
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

/// By the clock as the node goes by it. The store has its time, however long anybody waits: one that is slow for a decision is not lost.
fn at<'a>(kept: &KeptAt, cell: &'a str, now: Now) -> Option<At<'a>> {
    let KeptAt { group, terms, generation, .. } = *kept;
    let (group, wall_us) = (Group::new(group)?, now.wall_ns / 1_000);
    Some(At { group, terms, cell, generation, wall_us, deadline: PATIENT })
}

/// A claim under which something is decided. What comes of it is kept, even if the caller goes away meanwhile.
pub(crate) struct Deciding<'a> {
    shared: &'a Arc<Shared>,
    claim: Option<Claim>,
}

impl<'a> Deciding<'a> {
    pub(crate) fn new(shared: &'a Arc<Shared>, claim: Claim) -> Self {
        Self { shared, claim: Some(claim) }
    }

    /// It is decided. Waits no longer than that until the answer is kept: whoever asks the same meanwhile finds the claim, and waits.
    pub(crate) async fn keep(mut self, longest: Duration) {
        if let Some(kept) = self.keep_apart() {
            let _late = timeout(longest, kept).await;
        }
    }

    fn keep_apart(&mut self) -> Option<JoinHandle<()>> {
        let (claim, shared) = (self.claim.take()?, Arc::clone(self.shared));
        // Where there is none, the process ends.
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

/// Settles a charge of this node's; nothing where other nodes may go on answering by it, since the store does not say otherwise.
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

/// Settles what nobody waits for: what came over the mesh, and by letters. Until `stopping`.
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
