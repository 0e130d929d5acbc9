//! Carries a node's calls to its pools.

use std::{fmt, future::poll_fn, pin::Pin, sync::Arc, time::Duration};

use acequia_limits::Now;
use acequia_node::{
    Node,
    pool::{CALL_NS, Heard, PoolCall, PoolName, PoolReply, PoolRequest},
};
use acequia_rights::pool::{Letter, name};
use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tracing::error;

use super::{At, CallAnswer, Pools};
use crate::{
    redis::{Group, Missed},
    settings::SETTINGS,
};

/// The process that makes a node's calls.
pub trait Process: Send {
    /// The node's clocks.
    fn now(&self) -> Now;

    /// Writes down which generations the node has heard of, for its later processes
    /// ([`Node::unkept_generations`]). Says whether they are on the disk.
    fn keep(&mut self, generations: &[Heard]) -> bool;

    /// Asks for a write: a call waits until rows of [`Node::take_rows`] are on the disk.
    fn write(&mut self) {}

    /// Says that the node has received an answer: units may have come ([`Node::news`]).
    fn heard(&mut self) {}
}

impl<P: Process + ?Sized> Process for Box<P> {
    fn now(&self) -> Now {
        (**self).now()
    }

    fn keep(&mut self, generations: &[Heard]) -> bool {
        (**self).keep(generations)
    }

    fn write(&mut self) {
        (**self).write();
    }

    fn heard(&mut self) {
        (**self).heard();
    }
}

/// A client of some pools, for callers that need not know the kind of the pools. It carries calls as
/// [`share`] does.
#[derive(Clone)]
pub struct PoolClient(Arc<dyn Carry>);

/// The calls that can be made of any kind of pools.
trait Carry: Send + Sync {
    fn share(&self, node: Arc<Node>, process: Box<dyn Process>) -> Carrying;

    fn name<'a>(&'a self, at: At<'a>, act: &'a name::Act) -> Answered<'a, name::NameState>;

    fn post<'a>(&'a self, at: At<'a>, letter: Letter, drops_us: u64) -> Answered<'a, bool>;

    fn collect<'a>(&'a self, at: At<'a>, had: &'a [u128]) -> Answered<'a, Vec<Letter>>;
}

type Carrying = Boxed<'static, ()>;
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
type Answered<'a, T> = Boxed<'a, Result<CallAnswer<T>, Missed>>;

impl<P: Pools + Clone + 'static> Carry for P {
    fn share(&self, node: Arc<Node>, process: Box<dyn Process>) -> Carrying {
        Box::pin(share(node, self.clone(), process))
    }

    fn name<'a>(&'a self, at: At<'a>, act: &'a name::Act) -> Answered<'a, name::NameState> {
        Box::pin(async move { Pools::name(self, &at, act).await })
    }

    fn post<'a>(&'a self, at: At<'a>, letter: Letter, drops_us: u64) -> Answered<'a, bool> {
        Box::pin(async move { Pools::post(self, &at, letter, drops_us).await })
    }

    fn collect<'a>(&'a self, at: At<'a>, had: &'a [u128]) -> Answered<'a, Vec<Letter>> {
        Box::pin(async move { Pools::collect(self, &at, had).await })
    }
}

impl fmt::Debug for PoolClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Carrier")
    }
}

impl PoolClient {
    /// A client of these pools.
    pub fn to<P: Pools + Clone + 'static>(pools: P) -> Self {
        Self(Arc::new(pools))
    }

    /// Carries a node's calls until the future is dropped.
    pub fn carry(&self, node: Arc<Node>, process: impl Process + 'static) -> Carrying {
        self.0.share(node, Box::new(process))
    }

    /// As [`Pools::name`].
    ///
    /// # Errors
    /// There is no answer: the call may have been executed or not.
    pub async fn name(&self, at: At<'_>, act: &name::Act) -> Result<CallAnswer<name::NameState>, Missed> {
        self.0.name(at, act).await
    }

    /// As [`Pools::post`].
    ///
    /// # Errors
    /// There is no answer: the letter may be there or not.
    pub async fn post(&self, at: At<'_>, letter: Letter, drops_us: u64) -> Result<CallAnswer<bool>, Missed> {
        self.0.post(at, letter, drops_us).await
    }

    /// As [`Pools::collect`].
    ///
    /// # Errors
    /// There is no answer: the letters are still there.
    pub async fn collect(&self, at: At<'_>, had: &[u128]) -> Result<CallAnswer<Vec<Letter>>, Missed> {
        self.0.collect(at, had).await
    }
}

/// Carries a node's calls until the future is dropped.
pub async fn share<P: Pools + Clone + 'static>(node: Arc<Node>, pools: P, mut process: impl Process) {
    let mut calls = JoinSet::new();
    let (mut rebalanced, mut keep_at) = (Instant::now(), Instant::now());
    loop {
        let now_ns = process.now().steady_ns;
        let due_in = node.leases_due_ns().map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(now_ns)));
        let due = due_in.map_or(rebalanced + SETTINGS.carry.tick, |due_in| Instant::now() + due_in);
        let next = due.clamp(rebalanced + SETTINGS.carry.look, rebalanced + SETTINGS.carry.tick);
        tokio::select! {
            biased;
            Some(answered) = calls.join_next() => {
                receive(&node, &mut process, answered);
                // Other answers that have come are taken, too, so that the generations of many groups are
                // written down at once.
                while let Some(answered) = calls.try_join_next() {
                    receive(&node, &mut process, answered);
                }
            }
            () = called(&node, rebalanced + SETTINGS.carry.look) => {}
            () = sleep_until(next) => {}
        }
        let is_due = |due_ns| due_ns <= process.now().steady_ns;
        if node.calls()
            || rebalanced.elapsed() >= SETTINGS.carry.tick
            || node.leases_due_ns().is_some_and(is_due)
        {
            rebalanced = Instant::now();
            pools.compare_clocks(&node, &|| process.now());
            node.tick_leases(process.now());
            if node.leases_want_disk() {
                process.write();
            }
        }
        if Instant::now() >= keep_at
            && let Some(generations) = node.unkept_generations()
        {
            let is_kept = process.keep(&generations);
            node.generations_kept(if is_kept { &generations } else { &[] }, process.now());
            keep_at = Instant::now() + if is_kept { Duration::ZERO } else { SETTINGS.carry.keep_again };
        }
        while let Some(call) = node.poll_call() {
            let pools = pools.clone();
            calls.spawn(async move { (call.id, carry(&pools, &call).await) });
        }
    }
}

/// Waits until a cell calls to be rebalanced, and at least until `not_before`.
async fn called(node: &Node, not_before: Instant) {
    poll_fn(|context| node.poll_calls(context)).await;
    sleep_until(not_before).await;
}

/// Takes the answer to a call.
fn receive(node: &Node, process: &mut impl Process, answered: Result<(u64, PoolReply), JoinError>) {
    match answered {
        Ok((id, said)) => {
            node.answer_call(id, &said, process.now());
            process.heard();
        }
        Err(fault) => error!(%fault, "a call of a pool ended without an answer"),
    }
}

/// Makes a call once, and returns its reply.
pub async fn carry(pools: &impl Pools, call: &PoolCall) -> PoolReply {
    let Some(group) = Group::new(call.group) else { return PoolReply::Nothing };
    let deadline = Duration::from_nanos(CALL_NS);
    let name = |name: &PoolName| name.to_string();
    let PoolCall { allocation, generation, wall_us, .. } = *call;
    let at = |cell| At { group, allocation, cell, generation, wall_us, deadline };
    let said = match &call.question {
        PoolRequest::Begin(begin) => pools.begin(&at(""), begin).await.map(PoolReply::Known),
        PoolRequest::Assert(assertion, excluded) => {
            pools.assert(&at(""), assertion, excluded.as_ref()).await.map(PoolReply::Known)
        }
        PoolRequest::Sweep(most) => read(pools.sweep(&at(""), *most).await, PoolReply::Swept),
        PoolRequest::Take(pool, take) => read(pools.take(&at(&name(pool)), take).await, PoolReply::Took),
        PoolRequest::Exchange(pool, exchange, params) => {
            read(pools.exchange(&at(&name(pool)), exchange, params).await, PoolReply::Exchanged)
        }
        PoolRequest::Slide(pool, slide) => {
            read(pools.exchange_sliding(&at(&name(pool)), slide).await, PoolReply::Slid)
        }
    };
    said.unwrap_or(PoolReply::Nothing)
}

fn read<T>(
    answer: Result<CallAnswer<T>, Missed>,
    done: impl FnOnce(T) -> PoolReply,
) -> Result<PoolReply, Missed> {
    Ok(match answer? {
        CallAnswer::Done(came) => done(came),
        CallAnswer::Refused(why) => PoolReply::Refused(why),
        CallAnswer::Unknown(known) => PoolReply::Unknown(known),
    })
}
