//! A node among others of its region: what they go by, where their pools are, and the task that carries calls there.
//!
//! What each node keeps for itself is its own because all of them keep alike. So a node that has never heard its siblings say
//! the same as its own config owns nothing: it waits, before it listens, until the pools of all groups grant, which they do when
//! every node has said so ([`acequia_rights::pool::group`]). From then on it needs nobody for its guard share. Who changes what
//! nodes go by makes them other nodes: all of them wait for each other again, and what earlier ones held counts as spent. Who they are
//! is part of that where the region stands alone; among regions the catalogue says it, and only a node that was never there waits until
//! all others have heard of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use acequia_api::acequia::v1 as api;
use acequia_limits::{HashKey, Now};
use acequia_node::{
    Answer, Catalogue, Config as NodeConfig, Keep, LimitAnswer, Node, Outcome,
    leases::{GROUPS, Heard, NotLeftOut, Siblings as Place},
};
use acequia_rights::{
    MemberId, node_named,
    pool::{AGREEMENT, Generation, Taker},
};
use acequia_store::{
    Store, StoreError,
    pools::{PoolClient, Pools, Process, RedisPools},
    redis::{BreakerState, Group, Redis, Settings, SettingsError, ShardState, ShardView, WallRead},
};
use ring::digest;
use tokio::{
    runtime::Runtime,
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    chance::Chance,
    clock::Clock,
    config::{Config, StoreConfig},
    idempotency::SharedNames,
    patience::Waiting,
    process_number::Boot,
    regions::{holding, rate_milli},
    writer::Writer,
};

/// The journal's named values: which process of the node this is, since when it knows what was taken of windows, what its siblings
/// were last heard to go by, and which generations were heard of.
const BOOT: &str = "boot";
const KNOWS_FROM: &str = "takings-from";
pub(crate) const TERMS: &str = "siblings";
const GENERATIONS: &str = "generations";

/// No nodes go by this.
const NO_TERMS: u64 = 0;

/// How often it is looked whether all nodes have said the same, and how often that they have not is told.
const LOOK: Duration = Duration::from_millis(20);
const TELL: Duration = Duration::from_secs(10);
/// For so long a node that begins waits for a server of the store to tell the time, and for the others when one has.
const ALONE: Duration = Duration::from_secs(5);
const ALL_TELL: Duration = Duration::from_secs(1);
/// For so long a node that stops gives back what it holds, at most, and looks so often whether it has.
const LEAVE: Duration = Duration::from_secs(1);
const LEAVE_LOOK: Duration = Duration::from_millis(1);
/// Memory of a node that answers nobody.
const MEMORY_BYTES: usize = acequia_node::MEMORY_BYTES_MIN;
/// A secret for the cells' names is at least so long, and at most.
const KEY_BYTES_MIN: usize = 16;
const KEY_BYTES_MAX: usize = 1 << 16;

/// Why a node cannot take its place among those of its region.
#[derive(Debug, thiserror::Error)]
pub enum SiblingsError {
    /// The secret of the cells' names cannot be used.
    #[error(
        "cannot use {path}, `key_file` of the store: {cause}. Put {KEY_BYTES_MIN} random bytes or more into it, the same on every node"
    )]
    KeyFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The settings of Redis are out of their ranges.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A value in the journal is not one of ours.
    #[error("the journal's {0} cannot be read: begin with an empty `data` folder")]
    Value(&'static str),
    /// The journal is another node's.
    #[error(
        "the journal in `data` is that of a node that stood alone or among regions, and had every limit, or its region's share, to \
         itself: begin with an empty `data` folder. What it spent of windows that are open is not known then: if that matters, wait \
         until they end"
    )]
    NotShared,
    /// The system refuses something else.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// What a node must know before it can begin.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) place: Place,
    /// After so long it may take that.
    wait: Duration,
    /// What the cells are named by.
    pub(crate) key: HashKey,
    /// Stands for all that must be alike on every node while it shares what pools have.
    pub(crate) terms: u64,
    /// The same, and who they are, which a node that was never there must have heard from all others.
    all_terms: u64,
    /// Whether siblings were heard to go by the same, and whether by something else.
    is_agreed: bool,
    was_other: bool,
    /// Whether nothing was ever spent by any of them.
    pub(crate) is_new: bool,
    nodes: BTreeSet<String>,
    redis: Settings,
    /// Generations of the groups by which nodes agree that are among regions.
    agreement: Vec<Heard>,
}

/// The way to the pools of a region.
#[derive(Clone, Debug)]
pub struct PoolEndpoint {
    carrier: PoolClient,
    /// To where nodes among regions say what they go by.
    agreement: PoolClient,
    /// Where they are; nowhere that can be looked at where they are no Redis's.
    redis: Option<Redis>,
}

impl PoolEndpoint {
    /// To pools that the caller brought.
    pub fn to<P: Pools + Clone + 'static>(pools: P) -> Self {
        let carrier = PoolClient::to(pools);
        Self { agreement: carrier.clone(), carrier, redis: None }
    }

    /// How the store's shards are; none where it is none of ours to look at.
    fn shards(&self) -> Vec<ShardView> {
        self.redis.as_ref().map_or_else(Vec::new, Redis::shards)
    }
}

/// A node's place among the nodes of its region.
#[derive(Debug)]
pub struct Siblings {
    way: PoolEndpoint,
    /// Who they are.
    pub(crate) nodes: BTreeSet<String>,
    /// What they charged under names.
    pub(crate) names: SharedNames,
}

impl Siblings {
    /// How the store's shards are.
    pub(crate) fn shards(&self) -> Vec<ShardView> {
        self.way.shards()
    }

    /// How the store is, as a node sees it.
    pub(crate) fn status(&self, node: &Node, now: Now) -> api::StoreStatus {
        let (counts, left_out) = (node.lease_counts(), node.left_out(now));
        let left_out = self.nodes.iter().filter_map(|name| {
            let left_ns = left_out.get(&node_named(name))?;
            Some(api::LeftOut { node: name.clone(), left_ms: left_ns.div_ceil(1_000_000) })
        });
        let number = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        api::StoreStatus {
            nodes: self.nodes.iter().cloned().collect(),
            groups: GROUPS.into(),
            granting: number(counts.granting),
            lost: number(counts.lost),
            left_out: left_out.collect(),
        }
    }

    /// The number of a node of the region, by its name.
    pub(crate) fn number(&self, name: &str) -> Option<u16> {
        self.nodes.contains(name).then(|| node_named(name))
    }

    /// Leaves a node out, by its name ([`Node::leave_out`]).
    pub(crate) fn leave_out(&self, node: &Node, name: &str, for_ns: u64, now: Now) -> Result<(), NotLeftOut> {
        node.leave_out(self.number(name).ok_or(NotLeftOut::Unknown)?, for_ns, now)
    }

    /// What this node has of the cells that a request hits, and where their pools are.
    pub(crate) fn pools(
        &self,
        node: &Node,
        answer: &Answer,
        catalogue: &Catalogue,
        now: Now,
    ) -> Vec<api::Pool> {
        let pool = |(place, limit): (usize, &LimitAnswer)| {
            let (cell, view) = (node.cell(limit, catalogue, now)?, node.pool_view(limit, catalogue, now)?);
            let rate = rate_milli(&cell.algorithm);
            let shard = Group::new(view.group).and_then(|group| self.way.redis.as_ref()?.shard(group));
            let ends_ms = |ns: u64| ns.saturating_sub(now.steady_ns).div_ceil(1_000_000);
            let of_shard = |value: fn(&ShardView) -> String| shard.as_ref().map_or_else(String::new, value);
            Some(api::Pool {
                limit: u32::try_from(place).unwrap_or(u32::MAX),
                guard: holding(cell.holding.standing, rate),
                leased: holding(view.leased, rate),
                leased_ends_ms: view.leased_until_ns.map(ends_ms),
                left: cell.holding.left,
                pool: holding(view.pool, rate),
                pool_left: view.left,
                group: view.group.into(),
                generation: view.generation,
                grants: view.grants,
                lost: view.is_lost,
                shard: of_shard(|shard| shard.name.clone()),
                address: of_shard(|shard| shard.address.to_string()),
                state: of_shard(state_words),
                breaker: of_shard(|shard| breaker_word(shard.breaker).to_owned()),
                round_trip_us: shard.as_ref().map_or(0, |shard| shard.round_trip_us),
            })
        };
        let hits = answer.limits.iter().enumerate();
        hits.filter(|(_, limit)| limit.outcome != Outcome::Unlimited).filter_map(pool).collect()
    }
}

/// Waits until a server's clock agrees with the wall, and not fewer do than do not, of all that tell the time within a second: what a node
/// writes down as it begins, and what it tells its siblings, is dated by that. One that has reached no server begins all the same, and
/// calls none before it agrees.
pub(crate) async fn confirm_wall(redis: &Redis, clock: &dyn Clock, error_ns: u64) {
    let (begun, mut told, mut is_alone) = (Instant::now(), None::<Instant>, true);
    loop {
        let from = Instant::now().into_std();
        let wall_ns = clock.now().wall_ns;
        let read = WallRead { wall_ns, corrected_ns: 0, from, until: Instant::now().into_std() };
        let clocks = redis.clocks(&read);
        is_alone &= clocks.is_empty();
        let agreeing = clocks.iter().filter(|clock| clock.agrees(error_ns)).count();
        let are_all = clocks.len() >= redis.shards().len() || begun.elapsed() > ALL_TELL;
        let is_confirmed = are_all && agreeing > 0 && 2 * agreeing >= clocks.len();
        if is_confirmed || is_alone && begun.elapsed() > ALONE {
            return;
        }
        let off = clocks.iter().find(|clock| !clock.agrees(error_ns));
        if let Some(off) = off.filter(|_| told.is_none_or(|told| told.elapsed() > TELL)) {
            told = Some(Instant::now());
            warn!(
                store_ahead_s = off.ahead_ns as f64 / 1e9,
                may_differ_ms = 2 * error_ns / 1_000_000,
                "the wall clocks of the store and of this node differ: it waits, since nobody knows which is wrong. Set that one, \
                 and let NTP keep both"
            );
        }
        sleep(LOOK).await;
    }
}

impl Home {
    /// Reads who this node is. It is that when its start is counted ([`Home::begin`]).
    ///
    /// # Errors
    /// The journal, or the file of the secret.
    pub(crate) fn read(
        config: &Config,
        settings: &StoreConfig,
        store: &dyn Store,
        chance: &Chance,
        now: Now,
    ) -> Result<Self, SiblingsError> {
        let key = cells_key(&config.region, settings.key_file.as_deref())?;
        let members = config.regions.as_ref().map_or_else(BTreeMap::new, |all| all.mates(&config.region));
        let all_terms = terms_of(settings, Some(&members), &key);
        // Who there is the catalogue says, where there is one.
        let terms = if members.is_empty() { all_terms } else { terms_of(settings, None, &key) };
        let known = value(store, TERMS)?;
        let before = value(store, BOOT)?.map(u32::from_be_bytes);
        let clocks = (settings.clock.error_ns, settings.clock.drift_ppm);
        let Boot { number: boot, wait } =
            Boot::after(before, now.wall_ns, clocks).ok_or(SiblingsError::Value(BOOT))?;
        let now_us = now.wall_ns / 1_000;
        // A process in between that said nothing of it, of an older version, has not written down what it took.
        let said = value(store, KNOWS_FROM)?.map(of_boot).filter(|(boot, _)| Some(*boot) == before);
        let knows_from_us = said.map_or(now_us, |(_, from_us)| from_us);
        let generations = match store.value(GENERATIONS)? {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|_| SiblingsError::Value(GENERATIONS))?,
            None => Vec::new(),
        };
        let place = Place {
            node: node_named(&config.node),
            boot,
            nodes: settings.numbers(),
            members,
            terms: 0,
            guard_percent: settings.guard_percent,
            clock_error_ns: settings.clock.error_ns,
            drift_ppm: settings.clock.drift_ppm,
            begun_us: now_us,
            knows_from_us: Some(knows_from_us),
            is_new: known.is_none() && generations.is_empty(),
            rows_hold: BTreeSet::new(),
            generations,
        };
        let mut redis = settings.redis.clone();
        redis.seed = u64::from_be_bytes(chance.draw("redis")?);
        redis.clock_error = compared(config, settings);
        let is_agreed = known.map(u64::from_be_bytes) == Some(terms);
        let was_other = known.is_some() && !is_agreed;
        let nodes = settings.nodes.clone();
        // Whoever was here before has heard of some: no new one is the first.
        let by = Taker { node: place.node, boot, call: 1 };
        let agreement = if place.is_new { 0 } else { usize::from(GROUPS) };
        let generation = Generation { number: 1, by };
        let agreement = vec![Heard { generation, ..Heard::default() }; agreement];
        Ok(Self {
            place,
            wait,
            key,
            terms,
            all_terms,
            is_agreed,
            was_other,
            is_new: false,
            nodes,
            redis,
            agreement,
        })
    }

    /// Counts the node's start, before anybody hears of it, when its number's time has come.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub(crate) async fn begin(&self, store: &dyn Store) -> Result<(), StoreError> {
        sleep(self.wait).await;
        begin(store, self.place.boot, self.place.knows_from_us.unwrap_or(self.place.begun_us))
    }

    /// What was taken of windows that are open now is not known, to later processes neither.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub(crate) fn doubt_takings(&self, store: &dyn Store) -> Result<(), StoreError> {
        warn!(
            "what this node took of windows cannot be read in its journal: after the next loss of the store, nothing more of \
             those that are open now is given"
        );
        begin(store, self.place.boot, self.place.begun_us)
    }

    /// The way to the pools that the config names, for the runtime that this is called in.
    ///
    /// # Errors
    /// The settings are out of their ranges.
    pub(crate) fn way(&self) -> Result<PoolEndpoint, SiblingsError> {
        let redis = Redis::open(self.redis.clone())?;
        let carrier = PoolClient::to(RedisPools::new(redis.clone(), self.terms));
        let agreement = PoolClient::to(RedisPools::new(redis.clone(), self.all_terms));
        Ok(PoolEndpoint { carrier, agreement, redis: Some(redis) })
    }

    /// The nodes of the region, by number.
    pub(crate) fn names(&self) -> impl Iterator<Item = (u16, &str)> {
        self.nodes.iter().map(|name| (node_named(name), name.as_str()))
    }

    /// Whether siblings were heard to go by the same as this node.
    pub(crate) const fn is_agreed(&self) -> bool {
        self.is_agreed
    }

    /// Waits until all nodes say the same as this one. What is there then is of another process of the node, which owns nothing of
    /// what was open until `clock` says that it is now.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub(crate) async fn agree(
        self,
        store: &Arc<dyn Store>,
        clock: &Arc<dyn Clock>,
        way: &PoolEndpoint,
    ) -> Result<Self, SiblingsError> {
        if self.was_other {
            // What it went by before does not hold any more, whatever becomes of this.
            store.commit(&[], &[(TERMS, Some(&NO_TERMS.to_be_bytes()))])?;
        }
        let node = self.agreeing();
        let carrier = if self.is_among_regions() {
            tokio::spawn(way.agreement.carry(Arc::clone(&node), Agreeing(Arc::clone(clock))))
        } else {
            let process = Disk { store: Arc::clone(store), clock: Arc::clone(clock) };
            tokio::spawn(way.carrier.carry(Arc::clone(&node), process))
        };
        let nodes = self.place.nodes.len();
        info!(nodes, "waiting until every node of the region goes by the same");
        let mut told = Instant::now();
        while node.lease_counts().granting < u64::from(GROUPS) {
            sleep(LOOK).await;
            if told.elapsed() > TELL {
                told = Instant::now();
                let granting = node.lease_counts().granting;
                let words = |shard: &ShardView| format!("{}: {}", shard.name, state_words(shard));
                let shards: Vec<String> = way.shards().iter().map(words).collect();
                warn!(
                    granting,
                    of = GROUPS,
                    shards = shards.join("; "),
                    "this node owns nothing until every node of the region runs with the same `redis`, `nodes`, `guard`, \
                     `key_file` and `clock`, and reaches the store"
                );
            }
        }
        carrier.abort();
        // It writes nothing after it has ended.
        let _aborted = carrier.await;
        // That may have taken long, and the wall may have been set.
        if let Some(redis) = way.redis.as_ref().filter(|_| self.redis.clock_error.is_some()) {
            confirm_wall(redis, &**clock, self.place.clock_error_ns).await;
        }
        let boot = self.place.boot.checked_add(1).ok_or(SiblingsError::Value(BOOT))?;
        let heard = node.generations();
        let (generations, agreement) = match self.is_among_regions() {
            true => (self.place.generations.clone(), heard),
            false => (heard, self.agreement),
        };
        // Where nothing was ever taken, there is no earlier process that took anything. What earlier ones took by other terms cannot be
        // told to anybody.
        let is_new = self.place.is_new && node.is_first_of_all();
        let begun_us = if is_new { 0 } else { clock.now().wall_ns / 1_000 };
        begin(&**store, boot, begun_us)?;
        info!(is_new, "every node of the region goes by the same");
        let knows_from_us = Some(begun_us);
        let place = Place { boot, generations, begun_us, knows_from_us, is_new: false, ..self.place };
        Ok(Self { place, is_new, agreement, ..self })
    }

    /// Whether its region shares its limits with others: then pools are part of what the catalogue says, and nodes agree apart from them.
    fn is_among_regions(&self) -> bool {
        !self.place.members.is_empty()
    }

    /// A node without limits that says what this one goes by, and hears whether the others do.
    fn agreeing(&self) -> Arc<Node> {
        let config = NodeConfig {
            key: self.key,
            memory_bytes: MEMORY_BYTES,
            durable: false,
            empty_handed: None,
            home: None,
        };
        let mut place = self.place.clone();
        if self.is_among_regions() {
            place.terms = AGREEMENT;
            place.generations.clone_from(&self.agreement);
        }
        Arc::new(Node::among(config, Keep::default(), place))
    }

    /// Takes the way to the pools. What this gives carries the node's calls until `stopping`.
    pub(crate) fn take(
        self,
        way: PoolEndpoint,
        (node, writer): (Arc<Node>, Arc<Writer>),
        clock: Arc<dyn Clock>,
        waiting: Arc<Waiting>,
        mut stopping: watch::Receiver<bool>,
    ) -> (Siblings, impl Future<Output = ()> + Send + use<>) {
        let names = SharedNames::new(way.carrier.clone(), self.place.node, self.place.boot);
        // One that begins beside it must find it.
        let agreeing = self
            .is_among_regions()
            .then(|| way.agreement.carry(self.agreeing(), Agreeing(Arc::clone(&clock))));
        let process = Running { node: Arc::clone(&node), writer, clock: Arc::clone(&clock), waiting };
        let carrying = way.carrier.carry(Arc::clone(&node), process);
        let carrying = async move {
            match agreeing {
                Some(agreeing) => drop(tokio::join!(carrying, agreeing)),
                None => carrying.await,
            }
        };
        let carried = async move {
            let mut carrying = pin!(carrying);
            tokio::select! {
                biased;
                // Whoever would tell is gone: that is as good.
                _ = stopping.wait_for(|stopping| *stopping) => {}
                () = &mut carrying => {}
            }
            // Nobody asks any more.
            node.leave_pools(clock.now());
            let left = async {
                while !node.has_left_pools() {
                    sleep(LEAVE_LOOK).await;
                }
            };
            tokio::select! {
                () = carrying => {}
                left = timeout(LEAVE, left) => {
                    if left.is_err() {
                        warn!("the store has not taken back all that this node held: it counts as held, or spent, until it ends");
                    }
                }
            }
        };
        (Siblings { way, nodes: self.nodes, names }, carried)
    }
}

/// How far the servers' clocks may be from true time, where this node hears of no others to compare its own with.
fn compared(config: &Config, settings: &StoreConfig) -> Option<Duration> {
    config.regions.is_none().then(|| Duration::from_nanos(settings.clock.error_ns))
}

/// The way to the servers of the store, to compare clocks with them; nothing where others' are heard.
///
/// # Errors
/// The settings are out of their ranges.
pub(crate) fn clocks_of(config: &Config, settings: &StoreConfig) -> Result<Option<Redis>, SiblingsError> {
    let Some(error) = compared(config, settings) else { return Ok(None) };
    let redis = Settings { clock_error: Some(error), ..settings.redis.clone() };
    Ok(Some(Redis::open(redis)?))
}

/// A runtime for the calls of pools.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// A process that takes nothing of any pool, and so need not remember what it has heard.
struct Agreeing(Arc<dyn Clock>);

impl Process for Agreeing {
    fn now(&self) -> Now {
        self.0.now()
    }

    fn keep(&mut self, _: &[Heard]) -> bool {
        true
    }
}

/// A process that has a store and nothing else.
struct Disk {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

impl Process for Disk {
    fn now(&self) -> Now {
        self.clock.now()
    }

    fn keep(&mut self, generations: &[Heard]) -> bool {
        let values = bytes_of(generations);
        warned(self.store.commit(&[], &[(GENERATIONS, Some(&values))]))
    }
}

/// A process that answers callers.
struct Running {
    node: Arc<Node>,
    writer: Arc<Writer>,
    clock: Arc<dyn Clock>,
    waiting: Arc<Waiting>,
}

impl Process for Running {
    fn now(&self) -> Now {
        self.clock.now()
    }

    fn keep(&mut self, generations: &[Heard]) -> bool {
        let values = bytes_of(generations);
        warned(self.writer.write(&[], &[(GENERATIONS, Some(&values))]))
    }

    fn write(&mut self) {
        self.writer.want();
    }

    fn heard(&mut self) {
        self.waiting.tell(self.node.news());
        // What came may be for another node of the region.
        if self.node.has_draws() {
            self.waiting.call();
        }
    }
}

fn warned(written: Result<(), StoreError>) -> bool {
    if let Err(fault) = &written {
        warn!(%fault, "nothing is taken of the store's pools before it is written which generation they are of");
    }
    written.is_ok()
}

fn bytes_of(generations: &[Heard]) -> Vec<u8> {
    serde_json::to_vec(generations).expect("numbers can be written")
}

/// How a shard is, in words.
fn state_words(shard: &ShardView) -> String {
    match &shard.state {
        ShardState::Connecting => "not connected yet".to_owned(),
        ShardState::Open => "open".to_owned(),
        ShardState::Hung => "hangs".to_owned(),
        ShardState::Unsafe { why } | ShardState::Lost { why } => why.clone(),
    }
}

const fn breaker_word(breaker: BreakerState) -> &'static str {
    match breaker {
        BreakerState::Closed => "closed",
        BreakerState::HalfOpen => "half-open",
        BreakerState::Open => "open",
    }
}

/// A process begins, and knows since when it is written down what was taken of windows.
fn begin(store: &dyn Store, boot: u32, knows_from_us: u64) -> Result<(), StoreError> {
    let knows_from = [&boot.to_be_bytes()[..], &knows_from_us.to_be_bytes()].concat();
    store.commit(&[], &[(BOOT, Some(&boot.to_be_bytes())), (KNOWS_FROM, Some(&knows_from))])
}

/// Which process said so, and what it said.
fn of_boot(bytes: [u8; 12]) -> (u32, u64) {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let (boot, from_us) = bytes.split_at(4);
    // Four bytes.
    (number(boot) as u32, number(from_us))
}

fn value<const N: usize>(store: &dyn Store, name: &'static str) -> Result<Option<[u8; N]>, SiblingsError> {
    let bytes = store.value(name)?;
    let read = bytes.map(|bytes| <[u8; N]>::try_from(&bytes[..]).map_err(|_| SiblingsError::Value(name)));
    read.transpose()
}

/// What the cells of a region are named by, on every node of it.
fn cells_key(region: &str, file: Option<&Path>) -> Result<HashKey, SiblingsError> {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"acequia cells of ");
    context.update(&(region.len() as u64).to_be_bytes());
    context.update(region.as_bytes());
    if let Some(path) = file {
        let fault = |cause: String| SiblingsError::KeyFile { path: path.display().to_string(), cause };
        let bytes = fs::read(path).map_err(|cause| fault(cause.to_string()))?;
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&bytes.len()) {
            return Err(fault(format!("it has {} bytes", bytes.len())));
        }
        context.update(&bytes);
    }
    let digest = context.finish();
    Ok(HashKey(digest.as_ref()[..16].try_into().expect("a digest has 32 bytes")))
}

/// A number for all that must be alike on every node, and for who they are where that must be.
fn terms_of(config: &StoreConfig, members: Option<&BTreeMap<u16, MemberId>>, key: &HashKey) -> u64 {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"acequia siblings 5");
    context.update(&key.0);
    context.update(&[config.guard_percent]);
    context.update(&config.clock.error_ns.to_be_bytes());
    context.update(&config.clock.drift_ppm.to_be_bytes());
    if let Some(members) = members {
        for node in config.numbers() {
            context.update(&node.to_be_bytes());
        }
        for member in members.values() {
            context.update(b"member");
            context.update(&member.0.to_be_bytes());
        }
    }
    let digest = context.finish();
    u64::from_be_bytes(digest.as_ref()[..8].try_into().expect("a digest has 32 bytes")).max(NO_TERMS + 1)
}
