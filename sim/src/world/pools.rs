//! The store that the nodes of a region share: a server of pools. Nodes reach it without a network, in a
//! millisecond or so, unless a store fault is active.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use acequia_rights::pool::{
    Letter, bucket,
    group::{Assertion, Begin, Excluded, GroupStatus},
    name, sliding, window,
};
use acequia_store::{
    MemoryStore,
    pools::{At, CallAnswer, KeptPools, Pools},
    redis::Missed,
};
use tokio::time::{Instant, sleep};

use super::nap::Nap;
use crate::{
    random::Random,
    schedule::{Place, StoreFault},
};

/// The delay of one way, in microseconds: the least and the most.
const TRIP_US: (u64, u64) = (200, 900);

/// The current server, and the one that it replaced.
#[derive(Clone, Debug)]
pub(crate) struct Server(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    now: Run,
    /// The contents of a replica.
    copy: MemoryStore,
    /// The node that does not know of the fail-over, and the old server that it still reaches.
    stranded: Option<(Place, Run)>,
    is_gone: bool,
    slow: Duration,
    lossy: u32,
    runs: u64,
    calls: u64,
    random: Random,
}

/// One process of a server.
#[derive(Clone, Debug)]
struct Run {
    store: Arc<MemoryStore>,
    pools: Arc<KeptPools>,
}

impl Run {
    fn begin(store: MemoryStore, number: u64) -> Self {
        let store = Arc::new(store);
        let pools = KeptPools::new(Arc::clone(&store) as _, &format!("run {number}"));
        Self { store, pools: Arc::new(pools) }
    }
}

impl Server {
    pub(crate) fn new(random: Random) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            now: Run::begin(MemoryStore::default(), 0),
            copy: MemoryStore::default(),
            stranded: None,
            is_gone: false,
            slow: Duration::ZERO,
            lossy: 0,
            runs: 0,
            calls: 0,
            random,
        })))
    }

    /// Applies a store fault.
    pub(crate) fn apply(&self, fault: StoreFault) {
        let mut inner = self.inner();
        match fault {
            StoreFault::Gone => inner.is_gone = true,
            StoreFault::Slow(ms) => inner.slow = Duration::from_millis(ms),
            StoreFault::Lossy(percent) => inner.lossy = percent,
            StoreFault::Copied => inner.copy = inner.now.store.copy(),
            StoreFault::FailsOver(stranded) => {
                let before = inner.now.clone();
                let copy = inner.copy.copy();
                inner.replace(copy);
                inner.stranded = stranded.map(|place| (place, before));
            }
            StoreFault::Forgets => {
                inner.replace(MemoryStore::default());
                inner.copy = MemoryStore::default();
            }
            StoreFault::Back => inner.mend(),
        }
    }

    /// Ends all store faults. What was forgotten stays forgotten.
    pub(crate) fn mend(&self) {
        self.inner().mend();
    }

    /// The number of calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.inner().calls
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn replace(&mut self, store: MemoryStore) {
        self.runs += 1;
        self.now = Run::begin(store, self.runs);
    }

    fn mend(&mut self) {
        (self.is_gone, self.slow, self.lossy, self.stranded) = (false, Duration::ZERO, 0, None);
    }

    /// The delay of one way, and whether the message arrives.
    fn trip(&mut self) -> (Duration, bool) {
        let (least, most) = TRIP_US;
        let takes = Duration::from_micros(self.random.between(least, most)) + self.slow;
        (takes, !self.is_gone && !self.random.chance(self.lossy * 10_000))
    }

    fn run_for(&self, place: Place) -> Arc<KeptPools> {
        let stranded = self.stranded.as_ref().filter(|(at, _)| *at == place);
        Arc::clone(&stranded.map_or(&self.now, |(_, run)| run).pools)
    }
}

/// A node's connection to the server.
#[derive(Clone, Debug)]
pub(crate) struct StoreLink {
    pub(crate) place: Place,
    pub(crate) server: Server,
    pub(crate) nap: Nap,
}

impl StoreLink {
    /// Waits until a call arrives or is given up. Returns when it was sent, and who executes it.
    async fn reach(&self, deadline: Duration) -> Result<(Instant, Arc<KeptPools>), Missed> {
        let begun = Instant::now();
        self.awake().await;
        let (takes, arrives) = {
            let mut inner = self.server.inner();
            inner.calls += 1;
            inner.trip()
        };
        sleep(takes).await;
        let pools = {
            let inner = self.server.inner();
            (arrives && !inner.is_gone).then(|| inner.run_for(self.place))
        };
        match pools {
            Some(pools) => Ok((begun, pools)),
            None => self.give_up(begun, deadline).await,
        }
    }

    /// Waits until the answer comes back or is given up.
    async fn answered<T>(
        &self,
        begun: Instant,
        deadline: Duration,
        answer: Result<T, Missed>,
    ) -> Result<T, Missed> {
        let (takes, arrives) = self.server.inner().trip();
        sleep(takes).await;
        self.awake().await;
        if arrives && begun.elapsed() < deadline { answer } else { self.give_up(begun, deadline).await }
    }

    /// Makes a call, which `execute` executes at the server.
    async fn call<T>(
        &self,
        at: &At<'_>,
        execute: impl AsyncFnOnce(Arc<KeptPools>) -> Result<T, Missed>,
    ) -> Result<T, Missed> {
        let (begun, pools) = self.reach(at.deadline).await?;
        let answer = execute(pools).await;
        self.answered(begun, at.deadline, answer).await
    }

    async fn give_up<T>(&self, begun: Instant, deadline: Duration) -> Result<T, Missed> {
        sleep(deadline.saturating_sub(begun.elapsed())).await;
        self.awake().await;
        Err(Missed::Unknown("nobody answered".into()))
    }

    /// Waits while the process sleeps: it neither calls nor hears.
    async fn awake(&self) {
        poll_fn(|cx| self.nap.poll_awake(cx)).await;
    }
}

impl Pools for StoreLink {
    async fn begin(&self, at: &At<'_>, begin: &Begin) -> Result<GroupStatus, Missed> {
        self.call(at, async |pools| pools.begin(at, begin).await).await
    }

    async fn assert(
        &self,
        at: &At<'_>,
        assertion: &Assertion,
        excluded: Option<&Excluded>,
    ) -> Result<GroupStatus, Missed> {
        self.call(at, async |pools| pools.assert(at, assertion, excluded).await).await
    }

    async fn take(&self, at: &At<'_>, take: &window::Take) -> Result<CallAnswer<window::Took>, Missed> {
        self.call(at, async |pools| pools.take(at, take).await).await
    }

    async fn exchange(
        &self,
        at: &At<'_>,
        exchange: &bucket::Exchange,
        params: &bucket::BucketParams,
    ) -> Result<CallAnswer<bucket::Exchanged>, Missed> {
        self.call(at, async |pools| pools.exchange(at, exchange, params).await).await
    }

    async fn exchange_sliding(
        &self,
        at: &At<'_>,
        exchange: &sliding::Slide,
    ) -> Result<CallAnswer<sliding::Slid>, Missed> {
        self.call(at, async |pools| pools.exchange_sliding(at, exchange).await).await
    }

    async fn name(&self, at: &At<'_>, act: &name::Act) -> Result<CallAnswer<name::NameState>, Missed> {
        self.call(at, async |pools| pools.name(at, act).await).await
    }

    async fn post(&self, at: &At<'_>, letter: Letter, drops_us: u64) -> Result<CallAnswer<bool>, Missed> {
        self.call(at, async |pools| pools.post(at, letter, drops_us).await).await
    }

    async fn collect(&self, at: &At<'_>, had: &[u128]) -> Result<CallAnswer<Vec<Letter>>, Missed> {
        self.call(at, async |pools| pools.collect(at, had).await).await
    }

    async fn sweep(&self, at: &At<'_>, most: u32) -> Result<CallAnswer<u64>, Missed> {
        self.call(at, async |pools| pools.sweep(at, most).await).await
    }
}
