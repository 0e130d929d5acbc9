//! A node among its mates (the other nodes of its region): the settings that they agree on, the way to their
//! pools, and the task that carries calls there.
//!
//! A node's guard share is its own only because all mates divide each limit alike. So a node owns nothing
//! until it has heard that every mate runs with the same settings. It waits for that before it listens: the
//! pools of all groups grant once every node has said so ([`acequia_rights::pool::group`]). From then on the
//! node needs nobody for its guard share. Nodes whose settings change count as other nodes: all of them wait
//! for each other again, and what the earlier ones held counts as spent. In a region that stands alone, the
//! list of nodes is one of these settings. Among regions the catalogue has that list, and only a new node
//! waits until all others have heard of it.

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
    pool::{GROUPS, Heard, NotExcluded, RegionSetup},
};
use acequia_rights::{
    MemberId, node_named,
    pool::{AGREEMENT, Generation, Taker},
};
use acequia_store::{
    Store, StoreError,
    pools::{PoolClient, Pools, Process, RedisPools},
    redis::{BreakerState, Group, Redis, Settings, SettingsError, ShardView, WallRead},
};
use ring::digest;
use tokio::{
    runtime::Runtime,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    chance::Chance,
    clock::Clock,
    config::{Config, StoreConfig},
    holdings::{holding, rate_milli},
    idempotency::SharedNames,
    patience::Waiting,
    process_number::ProcessNumber,
    settings::SETTINGS,
    writer::Writer,
};

/// The journal's named values: the process number, since when withdrawals from windows are recorded, the
/// settings that all mates last agreed on, and the generations that were heard of.
const PROCESS_NUMBER: &str = "boot";
const KNOWS_FROM: &str = "takings-from";
pub(crate) const AGREED: &str = "siblings";
const GENERATIONS: &str = "generations";

/// The fingerprint when no agreement is on the disk: no node's settings have it.
const NOT_AGREED: u64 = 0;

/// Memory of a node that answers nobody.
const MEMORY_BYTES: usize = acequia_node::MEMORY_BYTES_MIN;

/// Why a node cannot take its place among those of its region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The secret of the cells' names cannot be used.
    #[error(
        "cannot use {path}, `key_file` of the store: {cause}. Put {} random bytes or more into it, the same on every node",
        SETTINGS.secrets.key_bytes_min
    )]
    KeyFile {
        /// The file.
        path: String,
        /// The fault of the file.
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

/// The state that a node must know before it can begin.
#[derive(Debug)]
pub(crate) struct RegionHome {
    pub(crate) setup: RegionSetup,
    /// How long the node waits before it may use its process number.
    wait: Duration,
    /// The key that names the cells.
    pub(crate) key: HashKey,
    /// A hash of all settings that must be alike on every node while it shares a pool.
    pub(crate) fingerprint: u64,
    /// A hash of these settings and of the list of nodes. A new node must have heard this hash from all
    /// others.
    fingerprint_with_nodes: u64,
    /// Whether all mates were heard to have the same settings; and, below, whether earlier settings were
    /// others.
    is_agreed: bool,
    was_other: bool,
    /// Whether nothing was ever spent by any node of the region.
    pub(crate) is_new: bool,
    nodes: BTreeSet<String>,
    redis: Settings,
    /// Generations of the groups by which nodes agree, where they are among regions.
    agreement: Vec<Heard>,
}

/// The way to the pools of a region.
#[derive(Clone, Debug)]
pub struct PoolEndpoint {
    carrier: PoolClient,
    /// Where nodes among regions say which settings they have.
    agreement: PoolClient,
    /// Where the pools are; `None` if they are not in Redis, and so cannot be looked at.
    redis: Option<Redis>,
}

impl PoolEndpoint {
    /// The way to pools that the caller brought.
    pub fn to<P: Pools + Clone + 'static>(pools: P) -> Self {
        let carrier = PoolClient::to(pools);
        Self { agreement: carrier.clone(), carrier, redis: None }
    }

    /// The state of each shard of the store; none if the store is not Redis.
    fn shards(&self) -> Vec<ShardView> {
        self.redis.as_ref().map_or_else(Vec::new, Redis::shards)
    }
}

/// A node's own region, where its nodes share a store.
#[derive(Debug)]
pub struct OwnRegion {
    way: PoolEndpoint,
    /// The names of the nodes.
    pub(crate) nodes: BTreeSet<String>,
    /// The names under which the nodes charged.
    pub(crate) names: Arc<SharedNames>,
}

impl OwnRegion {
    /// How the store's shards are.
    pub(crate) fn shards(&self) -> Vec<ShardView> {
        self.way.shards()
    }

    /// The state of the store, as a node sees it.
    pub(crate) fn status(&self, node: &Node, now: Now) -> api::StoreStatus {
        let (counts, excluded) = (node.lease_counts(), node.excluded(now));
        let excluded = self.nodes.iter().filter_map(|name| {
            let left_ns = excluded.get(&node_named(name))?;
            Some(api::ExcludedNode { node: name.clone(), left_ms: left_ns.div_ceil(1_000_000) })
        });
        let number = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        api::StoreStatus {
            nodes: self.nodes.iter().cloned().collect(),
            groups: GROUPS.into(),
            granting: number(counts.granting),
            lost: number(counts.lost),
            excluded: excluded.collect(),
        }
    }

    /// The number of a node of the region, by its name.
    pub(crate) fn number(&self, name: &str) -> Option<u16> {
        self.nodes.contains(name).then(|| node_named(name))
    }

    /// Excludes a node, by its name ([`Node::exclude`]).
    pub(crate) fn exclude(&self, node: &Node, name: &str, for_ns: u64, now: Now) -> Result<(), NotExcluded> {
        node.exclude(self.number(name).ok_or(NotExcluded::Unknown)?, for_ns, now)
    }

    /// This node's holdings in the cells that a request hits, and the places of their pools.
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
                state: of_shard(|shard| shard.state.to_string()),
                breaker: of_shard(|shard| breaker_word(shard.breaker).to_owned()),
                round_trip_us: shard.as_ref().map_or(0, |shard| shard.round_trip_us),
            })
        };
        let hits = answer.limits.iter().enumerate();
        hits.filter(|(_, limit)| limit.outcome != Outcome::Unlimited).filter_map(pool).collect()
    }
}

/// Waits until the wall clock agrees with the clock of at least one server, and with at least half of those
/// that tell the time within a second. The node dates by this wall what it writes down at its start, and what
/// it tells its mates. A node that has reached no server begins all the same: it calls no server before the
/// two clocks agree.
pub(crate) async fn confirm_wall(redis: &Redis, clock: &dyn Clock, error_ns: u64) {
    let (begun, mut told, mut is_alone) = (Instant::now(), None::<Instant>, true);
    loop {
        let from = Instant::now().into_std();
        let wall_ns = clock.now().wall_ns;
        let read = WallRead { wall_ns, corrected_ns: 0, from, until: Instant::now().into_std() };
        let clocks = redis.clocks(&read);
        is_alone &= clocks.is_empty();
        let agreeing = clocks.iter().filter(|clock| clock.agrees(error_ns)).count();
        let are_all = clocks.len() >= redis.shards().len() || begun.elapsed() > SETTINGS.region.all_tell;
        let is_confirmed = are_all && agreeing > 0 && 2 * agreeing >= clocks.len();
        if is_confirmed || is_alone && begun.elapsed() > SETTINGS.region.alone {
            return;
        }
        let off = clocks.iter().find(|clock| !clock.agrees(error_ns));
        if let Some(off) = off.filter(|_| told.is_none_or(|told| told.elapsed() > SETTINGS.region.tell)) {
            told = Some(Instant::now());
            warn!(
                store_ahead_s = off.ahead_ns as f64 / 1e9,
                may_differ_ms = 2 * error_ns / 1_000_000,
                "the wall clocks of the store and of this node differ: it waits, since nobody knows which is wrong. Set that one, \
                 and let NTP keep both"
            );
        }
        sleep(SETTINGS.region.look).await;
    }
}

impl RegionHome {
    /// Reads who this node is. The identity counts once [`RegionHome::begin`] has written the start down.
    ///
    /// # Errors
    /// The journal or the file of the secret cannot be read.
    pub(crate) fn read(
        config: &Config,
        settings: &StoreConfig,
        store: &dyn Store,
        chance: &Chance,
        now: Now,
    ) -> Result<Self, RegionError> {
        let key = cells_key(&config.region, settings.key_file.as_deref())?;
        let members = config.regions.as_ref().map_or_else(BTreeMap::new, |all| all.mates(&config.region));
        let fingerprint_with_nodes = fingerprint_of(settings, Some(&members), &key);
        // Among regions the catalogue says which nodes there are.
        let fingerprint =
            if members.is_empty() { fingerprint_with_nodes } else { fingerprint_of(settings, None, &key) };
        let known = value(store, AGREED)?;
        let before = value(store, PROCESS_NUMBER)?.map(u32::from_be_bytes);
        let ProcessNumber { number: process_number, wait } =
            ProcessNumber::after(before, now.wall_ns, settings.clock)
                .ok_or(RegionError::Value(PROCESS_NUMBER))?;
        let now_us = now.wall_ns / 1_000;
        // The value counts only if the last process wrote it: a process of an older version did not record
        // its withdrawals.
        let said = value(store, KNOWS_FROM)?.map(of_begun).filter(|(number, _)| Some(*number) == before);
        let knows_from_us = said.map_or(now_us, |(_, from_us)| from_us);
        let generations = match store.value(GENERATIONS)? {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|_| RegionError::Value(GENERATIONS))?,
            None => Vec::new(),
        };
        let setup = RegionSetup {
            node: node_named(&config.node),
            process_number,
            nodes: settings.numbers(),
            members,
            allocation: 0,
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
        let is_agreed = known.map(u64::from_be_bytes) == Some(fingerprint);
        let was_other = known.is_some() && !is_agreed;
        let nodes = settings.nodes.clone();
        // A node that was here before has heard of some generation, so that a new one is never its first.
        let by = Taker { node: setup.node, process_number, call: 1 };
        let agreement = if setup.is_new { 0 } else { usize::from(GROUPS) };
        let generation = Generation { number: 1, by };
        let agreement = vec![Heard { generation, ..Heard::default() }; agreement];
        Ok(Self {
            setup,
            wait,
            key,
            fingerprint,
            fingerprint_with_nodes,
            is_agreed,
            was_other,
            is_new: false,
            nodes,
            redis,
            agreement,
        })
    }

    /// Writes down that the node starts, before anybody hears of it, once the time of its process number has
    /// come.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub(crate) async fn begin(&self, store: &dyn Store) -> Result<(), StoreError> {
        sleep(self.wait).await;
        begin(store, self.setup.process_number, self.setup.knows_from_us.unwrap_or(self.setup.begun_us))
    }

    /// Notes that withdrawals from windows that are open now are unknown, to this process and to later ones.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub(crate) fn doubt_withdrawals(&self, store: &dyn Store) -> Result<(), StoreError> {
        warn!(
            "what this node took of windows cannot be read in its journal: after the next loss of the store, nothing more of \
             those that are open now is given"
        );
        begin(store, self.setup.process_number, self.setup.begun_us)
    }

    /// The way to the pools that the config names, for the runtime of the caller.
    ///
    /// # Errors
    /// The settings are out of their ranges.
    pub(crate) fn way(&self) -> Result<PoolEndpoint, RegionError> {
        let redis = Redis::open(self.redis.clone())?;
        let carrier = PoolClient::to(RedisPools::new(redis.clone(), self.fingerprint));
        let agreement = PoolClient::to(RedisPools::new(redis.clone(), self.fingerprint_with_nodes));
        Ok(PoolEndpoint { carrier, agreement, redis: Some(redis) })
    }

    /// The nodes of the region, by number.
    pub(crate) fn names(&self) -> impl Iterator<Item = (u16, &str)> {
        self.nodes.iter().map(|name| (node_named(name), name.as_str()))
    }

    /// Whether all mates were heard to have the settings of this node.
    pub(crate) const fn is_agreed(&self) -> bool {
        self.is_agreed
    }

    /// Waits until all mates have said that they have the same settings. The result is the identity of
    /// another process of this node, which owns nothing of what was open until the time that `clock` shows at
    /// the end of the wait.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub(crate) async fn agree(
        self,
        store: &Arc<dyn Store>,
        clock: &Arc<dyn Clock>,
        way: &PoolEndpoint,
    ) -> Result<Self, RegionError> {
        if self.was_other {
            // The earlier settings do not hold any more, however this wait ends.
            store.commit(&[], &[(AGREED, Some(&NOT_AGREED.to_be_bytes()))])?;
        }
        let node = self.agreeing();
        let carrier = if self.is_among_regions() {
            tokio::spawn(way.agreement.carry(Arc::clone(&node), Agreeing(Arc::clone(clock))))
        } else {
            let process = Disk { store: Arc::clone(store), clock: Arc::clone(clock) };
            tokio::spawn(way.carrier.carry(Arc::clone(&node), process))
        };
        let nodes = self.setup.nodes.len();
        info!(nodes, "waiting until every node of the region goes by the same");
        let mut told = Instant::now();
        while node.lease_counts().granting < u64::from(GROUPS) {
            sleep(SETTINGS.region.look).await;
            if told.elapsed() > SETTINGS.region.tell {
                told = Instant::now();
                let granting = node.lease_counts().granting;
                let words = |shard: &ShardView| format!("{}: {}", shard.name, shard.state);
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
        // Once the task has ended, it writes nothing more.
        let _aborted = carrier.await;
        // The wait may have been long, and somebody may have set the wall.
        if let Some(redis) = way.redis.as_ref().filter(|_| self.redis.clock_error.is_some()) {
            confirm_wall(redis, &**clock, self.setup.clock_error_ns).await;
        }
        let process_number =
            self.setup.process_number.checked_add(1).ok_or(RegionError::Value(PROCESS_NUMBER))?;
        let heard = node.generations();
        let (generations, agreement) = match self.is_among_regions() {
            true => (self.setup.generations.clone(), heard),
            false => (heard, self.agreement),
        };
        // If nothing was ever withdrawn, no earlier process withdrew anything. Withdrawals under other
        // settings cannot be told to anybody.
        let is_new = self.setup.is_new && node.is_first_of_all();
        let begun_us = if is_new { 0 } else { clock.now().wall_ns / 1_000 };
        begin(&**store, process_number, begun_us)?;
        info!(is_new, "every node of the region goes by the same");
        let knows_from_us = Some(begun_us);
        let setup =
            RegionSetup { process_number, generations, begun_us, knows_from_us, is_new: false, ..self.setup };
        Ok(Self { setup, is_new, agreement, ..self })
    }

    /// Whether the region shares its limits with other regions. Then pools are part of the catalogue, and
    /// nodes agree by groups apart from those of the pools.
    fn is_among_regions(&self) -> bool {
        !self.setup.members.is_empty()
    }

    /// A node without limits that says which settings this one has, and hears whether the others have the
    /// same.
    fn agreeing(&self) -> Arc<Node> {
        let config = NodeConfig {
            key: self.key,
            memory_bytes: MEMORY_BYTES,
            durable: false,
            after_crash: None,
            home: None,
        };
        let mut setup = self.setup.clone();
        if self.is_among_regions() {
            setup.allocation = AGREEMENT;
            setup.generations.clone_from(&self.agreement);
        }
        Arc::new(Node::among(config, Keep::default(), setup))
    }

    /// Takes the way to the pools. The future that it returns carries the node's calls until `stopping`.
    pub(crate) fn take(
        self,
        way: PoolEndpoint,
        process: Running,
        stopping: CancellationToken,
    ) -> (OwnRegion, impl Future<Output = ()> + Send + use<>) {
        let (node, clock) = (Arc::clone(&process.node), Arc::clone(&process.clock));
        let me = Taker { node: self.setup.node, process_number: self.setup.process_number, call: 0 };
        let names = SharedNames::new(Arc::clone(&node), Arc::clone(&clock), way.carrier.clone(), me);
        // A mate that starts while this node runs must find its settings.
        let agreeing = self
            .is_among_regions()
            .then(|| way.agreement.carry(self.agreeing(), Agreeing(Arc::clone(&clock))));
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
                () = stopping.cancelled() => {}
                () = &mut carrying => {}
            }
            // By now no caller asks any more.
            node.leave_pools(clock.now());
            let left = async {
                while !node.has_left_pools() {
                    sleep(SETTINGS.region.leave_look).await;
                }
            };
            tokio::select! {
                biased;
                () = carrying => {}
                left = timeout(SETTINGS.region.leave, left) => {
                    if left.is_err() {
                        warn!("the store has not taken back all that this node held: it counts as held, or spent, until it ends");
                    }
                }
            }
        };
        (OwnRegion { way, nodes: self.nodes, names: Arc::new(names) }, carried)
    }
}

/// How far the servers' clocks may be from true time; `None` if the node compares its clock with other
/// regions instead.
fn compared(config: &Config, settings: &StoreConfig) -> Option<Duration> {
    config.regions.is_none().then(|| Duration::from_nanos(settings.clock.error_ns))
}

/// The way to the servers of the store, to compare clocks with them; `None` if the clocks of other regions
/// are heard.
///
/// # Errors
/// The settings are out of their ranges.
pub(crate) fn clocks_of(config: &Config, settings: &StoreConfig) -> Result<Option<Redis>, RegionError> {
    let Some(error) = compared(config, settings) else { return Ok(None) };
    let redis = Settings { clock_error: Some(error), ..settings.redis.clone() };
    Ok(Some(Redis::open(redis)?))
}

/// A runtime for the calls of pools.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// A process that withdraws nothing from any pool, and so need not remember what it has heard.
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
pub(crate) struct Running {
    pub(crate) node: Arc<Node>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Requests that wait for units of the pools.
    pub(crate) waiting: Arc<Waiting>,
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
        // The units that came may be for another node of the region.
        if self.node.has_forwards() {
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

const fn breaker_word(breaker: BreakerState) -> &'static str {
    match breaker {
        BreakerState::Closed => "closed",
        BreakerState::HalfOpen => "half-open",
        BreakerState::Open => "open",
    }
}

/// Writes down that a process begins, and since when withdrawals from windows are recorded.
fn begin(store: &dyn Store, process_number: u32, knows_from_us: u64) -> Result<(), StoreError> {
    let knows_from = [&process_number.to_be_bytes()[..], &knows_from_us.to_be_bytes()].concat();
    store.commit(
        &[],
        &[(PROCESS_NUMBER, Some(&process_number.to_be_bytes())), (KNOWS_FROM, Some(&knows_from))],
    )
}

/// The process number in a value of the journal, and the time that the process wrote.
fn of_begun(bytes: [u8; 12]) -> (u32, u64) {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let (process_number, from_us) = bytes.split_at(4);
    // The number has four bytes.
    (number(process_number) as u32, number(from_us))
}

fn value<const N: usize>(store: &dyn Store, name: &'static str) -> Result<Option<[u8; N]>, RegionError> {
    let bytes = store.value(name)?;
    let read = bytes.map(|bytes| <[u8; N]>::try_from(&bytes[..]).map_err(|_| RegionError::Value(name)));
    read.transpose()
}

/// The key that names the cells of a region, the same on every node of it.
fn cells_key(region: &str, file: Option<&Path>) -> Result<HashKey, RegionError> {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"acequia cells of ");
    context.update(&(region.len() as u64).to_be_bytes());
    context.update(region.as_bytes());
    if let Some(path) = file {
        let fault = |cause: String| RegionError::KeyFile { path: path.display().to_string(), cause };
        let bytes = fs::read(path).map_err(|cause| fault(cause.to_string()))?;
        if !(SETTINGS.secrets.key_bytes_min..=SETTINGS.secrets.key_bytes_max).contains(&bytes.len()) {
            return Err(fault(format!("it has {} bytes", bytes.len())));
        }
        context.update(&bytes);
    }
    let digest = context.finish();
    Ok(HashKey(digest.as_ref()[..16].try_into().expect("a digest has 32 bytes")))
}

/// A hash of all settings that must be alike on every node, and of the list of nodes where `members` are
/// given.
fn fingerprint_of(config: &StoreConfig, members: Option<&BTreeMap<u16, MemberId>>, key: &HashKey) -> u64 {
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
    u64::from_be_bytes(digest.as_ref()[..8].try_into().expect("a digest has 32 bytes")).max(NOT_AGREED + 1)
}
