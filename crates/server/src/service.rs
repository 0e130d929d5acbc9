//! A node from its config to its end, on a machine or in a simulation. It takes over what was in force, puts
//! the config in force, reloads, and leaves behind what a clean stop leaves.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    sync::Arc,
};

use acequia_limits::{HashKey, Limit, LimitId, Now};
use acequia_mesh::MeshError;
use acequia_node::{
    CatalogueFault, Change, ChangeKind, Config as NodeConfig, Node, ResumeFault, Row, SHARDS, Scheduled,
    WITHDRAWALS,
};
use acequia_rights::Incarnation as Identity;
use acequia_store::{Journal, Store, StoreError};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::{
    chance::Chance,
    charges::Names,
    clock::{Clock, ClockFault, SystemClock},
    config::{Address, Config, ConfigError, Live, StoreConfig, Watched, WebhookConfig},
    counting::CountingError,
    gate::{Gate, GateFault, warn_of_open_ports},
    idempotency,
    incarnation::INCARNATION,
    region::{self, PoolEndpoint, RegionError},
    regions::{
        self, Alone, AloneParts, Audit, Connected, Identified, Joining, OrderFault, Regions, RegionsError,
        RegionsParts,
    },
    schedule::{self, SCHEDULE, ValueFault},
    settings::SETTINGS,
    shared::Shared,
    sources::UnreadSource,
    webhooks::{Prepared, Webhooks, WebhooksError},
    writer::Writer,
};

/// The journal's named values.
const KEY: &str = "hash_key";
const STOPPED: &str = "stopped";
/// When a node with mates last began after a crash: steady clock and wall, in nanoseconds. After a clean
/// stop, whatever was not written down since then counts as spent.
const CRASHED: &str = "crashed";
/// The ids of the limits that a node with mates knew when it stopped cleanly. Rows of any other limit may be
/// older than a crash.
const KNEW: &str = "knew";

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file cannot be read.
    #[error(
        "cannot read {path}: {cause}. Name a config with --config, or write one: deploy/config.md has its fields"
    )]
    File {
        /// As it was named.
        path: String,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The config is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The Redis that counts hits cannot be used.
    #[error(transparent)]
    Counting(#[from] CountingError),
    /// The thread that asks the management server has ended.
    #[error("limits cannot be asked for by xDS: the thread for that has ended")]
    Xds,
    /// The system's clock is not set.
    #[error(transparent)]
    Clock(#[from] ClockFault),
    /// The limits contradict each other.
    #[error(transparent)]
    Catalogue(#[from] CatalogueFault),
    /// The journal cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A value in the journal is not one of ours.
    #[error(transparent)]
    Value(#[from] ValueFault),
    /// A port cannot be had.
    #[error(
        "cannot listen on {address}: {cause}. Stop what listens there, or choose another port in `listen`"
    )]
    Listen {
        /// Where.
        address: Address,
        /// The system's error.
        cause: std::io::Error,
    },
    /// Other regions count on this node's shares being all that it spends.
    #[error(
        "the journal in `data` is that of a node among regions, and the config has no `regions`: alone the node would \
         have every limit in full, and the other regions have theirs. Put `regions` back; or, once this region was \
         removed or evicted (`acequia regions remove`, `evict`), begin with an empty `data` folder"
    )]
    NotAlone,
    /// The mates count on this node spending no more than its guard shares without them.
    #[error(
        "the journal in `data` is that of a node that shares its limits with others of its region, and the config has no store: \
         alone the node would have every limit in full, and the others have theirs. Put `store` back; or, once no other node runs, \
         begin with an empty `data` folder"
    )]
    NotAmong,
    /// The node cannot take its place among those of its region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The journal is not this node's.
    #[error(transparent)]
    Resume(#[from] ResumeFault),
    /// The node cannot take its place among the regions.
    #[error(transparent)]
    Regions(#[from] RegionsError),
    /// A port's certificates or tokens cannot be used.
    #[error(transparent)]
    Gate(#[from] GateFault),
    /// The webhooks cannot be set up.
    #[error(transparent)]
    Webhooks(#[from] WebhooksError),
    /// The changes of the file cannot be put in force.
    #[error("{0}")]
    Order(#[from] OrderFault),
    /// The system refuses something else.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

impl From<UnreadSource> for StartError {
    fn from(UnreadSource { path, cause, .. }: UnreadSource) -> Self {
        Self::File { path, cause }
    }
}

impl From<MeshError> for StartError {
    fn from(fault: MeshError) -> Self {
        Self::Regions(fault.into())
    }
}

/// A node that answers.
#[derive(Debug)]
pub struct Service {
    pub(crate) config: Config,
    pub(crate) shared: Arc<Shared>,
    store: Option<Arc<dyn Store>>,
    chance: Chance,
    key: HashKey,
    /// Its identity among the regions; `None` if it stands alone.
    me: Option<Identity>,
    /// Its place among its mates, until the place is taken; and the way to their pools, if the caller brought
    /// one.
    home: Option<(region::RegionHome, Option<PoolEndpoint>)>,
    /// A hash of the settings that the nodes of the region share, if there are several.
    fingerprint: Option<u64>,
    /// When it began after a crash, if it has mates.
    crashed: Option<Now>,
    /// The certificates of the `tls` folder.
    certificates: Watched,
    /// The ways in, where they are open.
    pub(crate) gates: Vec<Arc<Gate>>,
    /// The config that was read last, less its limits.
    read: Config,
}

/// The result of reading the config again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// Something in it is new.
    Applied,
    /// Nothing is.
    Unchanged,
}

impl Service {
    /// Opens the journal that the config names, and puts the config in force.
    ///
    /// # Errors
    /// Whatever keeps the node from answering.
    pub fn start(config: Config) -> Result<Self, StartError> {
        let store: Option<Arc<dyn Store>> = match &config.data {
            Some(folder) => Some(Arc::new(Journal::open_within(folder, config.memory().journal)?)),
            None => None,
        };
        Self::start_with(config, store, Arc::new(SystemClock::start()?), Chance::System)
    }

    /// As [`Service::start`], with a store, clocks and chance of the caller's.
    ///
    /// # Errors
    /// Whatever keeps the node from answering.
    pub fn start_with(
        config: Config,
        store: Option<Arc<dyn Store>>,
        clock: Arc<dyn Clock>,
        chance: Chance,
    ) -> Result<Self, StartError> {
        let now = clock.now();
        let journal = store.as_deref();
        let last = LastProcess::read(journal)?;
        if let Some(settings) = config.store.clone() {
            return Self::agree_and_start(config, &settings, store, clock, chance);
        }
        refuse_the_journal_of_a_mate(journal)?;
        // Nodes that count in one Redis have one name for a cell, and nothing else in common.
        let key = match config.counting {
            Some(_) => COUNTED_KEY,
            None => hash_key(journal, &chance)?,
        };
        let member = member_of_regions(&config, journal, now)?;
        let after_crash = last.has_crashed(member.as_ref()).then_some(now);
        let node_config = NodeConfig {
            key,
            memory_bytes: config.memory().cells,
            durable: store.is_some(),
            after_crash,
            home: member.as_ref().map(|member| member.home),
        };
        let node = Arc::new(Node::keeping(node_config, config.charges));
        let mut rows = RowReader::default();
        match journal {
            Some(store) => {
                resume(&node, last.schedule, member.as_ref(), now, |id| rows.rows(store, id))?;
                if after_crash.is_some() {
                    info!("the node did not stop cleanly: what was reserved and not used counts as spent");
                }
            }
            None if config.counting.is_some() => {}
            None => warn!(
                "no `data` in the config: nothing survives a restart, and a restart may admit a window twice"
            ),
        }
        let writer = store.clone().map(|store| Arc::new(Writer::new(Arc::clone(&node), store)));
        let names = Names::new(&config.region, &config.node, &key, chance.draw("names")?);
        let shared = Arc::new(Shared::new(node, writer, clock, key, names));
        if member.is_none() {
            put_file_and_orders_in_force(&shared, &config, journal, now, &mut rows)?;
        }
        shared.apply(&config.live);
        rows.done()?;
        put_webhooks_in_force(&shared, &config.live.webhooks)?;
        let read = without_limits(&config);
        Ok(Self {
            config,
            shared,
            store,
            chance,
            key,
            me: member.map(|member| member.home.incarnation),
            home: None,
            fingerprint: None,
            crashed: None,
            certificates: Watched::default(),
            gates: Vec::new(),
            read,
        })
    }

    /// Starts a node whose config names a shared store. In a runtime that ends with the start, the node
    /// compares its wall with the store's and waits until all nodes have the same settings.
    fn agree_and_start(
        config: Config,
        settings: &StoreConfig,
        store: Option<Arc<dyn Store>>,
        clock: Arc<dyn Clock>,
        chance: Chance,
    ) -> Result<Self, StartError> {
        let runtime = region::runtime()?;
        runtime.block_on(async {
            if let Some(redis) = region::clocks_of(&config, settings)? {
                region::confirm_wall(&redis, &*clock, settings.clock.error_ns).await;
            }
            Ok::<_, RegionError>(())
        })?;
        let (mut home, store) = Self::home_among(&config, settings, store, &chance, &*clock)?;
        home = runtime.block_on(async {
            home.begin(&*store).await?;
            if home.is_agreed() {
                return Ok(home);
            }
            let way = home.way()?;
            home.agree(&store, &clock, &way).await
        })?;
        Self::among(config, home, store, clock, chance, None)
    }

    /// As [`Service::start_with`], for a config with a shared store, on pools that the caller brought in
    /// place of that store. Waits in the caller's runtime until all nodes have the same settings.
    ///
    /// # Errors
    /// Whatever keeps the node from answering.
    pub async fn start_among(
        config: Config,
        store: Option<Arc<dyn Store>>,
        clock: Arc<dyn Clock>,
        chance: Chance,
        way: PoolEndpoint,
    ) -> Result<Self, StartError> {
        let Some(settings) = config.store.clone() else {
            return Self::start_with(config, store, clock, chance);
        };
        let (mut home, store) = Self::home_among(&config, &settings, store, &chance, &*clock)?;
        home.begin(&*store).await?;
        if !home.is_agreed() {
            home = home.agree(&store, &clock, &way).await?;
        }
        Self::among(config, home, store, clock, chance, Some(way))
    }

    /// The state that a node with mates must know before it can begin.
    fn home_among(
        config: &Config,
        settings: &StoreConfig,
        store: Option<Arc<dyn Store>>,
        chance: &Chance,
        clock: &dyn Clock,
    ) -> Result<(region::RegionHome, Arc<dyn Store>), StartError> {
        // A config with a store that nodes share and without `data` is refused.
        let store = store.ok_or(RegionError::Value(SCHEDULE))?;
        let (was_served, was_shared) =
            (store.value(SCHEDULE)?.is_some(), store.value(region::AGREED)?.is_some());
        let was_member = store.value(INCARNATION)?.is_some();
        match (&config.regions, was_member) {
            (None, true) if was_shared => return Err(StartError::NotAlone),
            (Some(_), false) if was_served => return Err(RegionError::NotShared.into()),
            _ if (was_served || was_member) && !was_shared => return Err(RegionError::NotShared.into()),
            _ => {}
        }
        let home = region::RegionHome::read(config, settings, &*store, chance, clock.now())?;
        Ok((home, store))
    }

    /// Starts a node that shares its limits with mates, and with other regions if there are several. What a
    /// crashed process spent of its guard shares is unknown, so they count as spent for all that is open now.
    /// So do those of a process with other settings: its shares were others.
    fn among(
        config: Config,
        home: region::RegionHome,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        chance: Chance,
        way: Option<PoolEndpoint>,
    ) -> Result<Self, StartError> {
        let schedule = read_schedule(&*store)?;
        let now = clock.now();
        let fingerprint = home.fingerprint;
        let member = match &config.regions {
            Some(_) => Some(regions::identity(&config, &*store, now)?),
            None => None,
        };
        // Among regions the catalogue's key names the cells. It is the key of the node that makes the first
        // catalogue.
        let key = if member.is_some() { hash_key(Some(&*store), &chance)? } else { home.key };
        let is_new = member.as_ref().map_or(home.is_new, |member| !member.was_here);
        let went_by = store.value(region::AGREED)?;
        let is_same = went_by.is_some_and(|bytes| bytes[..] == fingerprint.to_be_bytes());
        let stopped = is_same && store.value(STOPPED)?.is_some();
        let last_crash = store.value(CRASHED)?;
        let crashed = if is_new {
            None
        } else {
            last_start_after_crash(last_crash.as_deref(), stopped, home.setup.clock_error_ns, now)?
        };
        let node_config = NodeConfig {
            key,
            memory_bytes: config.memory().cells,
            durable: false,
            after_crash: crashed,
            home: member.as_ref().map(|member| member.home),
        };
        let rows_hold = match store.value(KNEW)? {
            Some(bytes) if stopped => known(&bytes)?,
            _ => BTreeSet::new(),
        };
        let setup = acequia_node::pool::RegionSetup { rows_hold, ..home.setup.clone() };
        let node = Arc::new(Node::among(node_config, config.charges, setup));
        let mut rows = RowReader::default();
        let schedule = match &member {
            Some(_) => schedule,
            None if is_new => None,
            // The journal may have rows of a limit that is new in the file.
            None => Some(with_unknown(schedule.unwrap_or_default(), &config.live.limits)),
        };
        resume(&node, schedule, member.as_ref(), now, |id| rows.rows(&*store, id))?;
        let taken = store.rows(WITHDRAWALS)?;
        let writer = Some(Arc::new(Writer::new(Arc::clone(&node), Arc::clone(&store))));
        // Names use the region's key, which all nodes of the region share, whatever key names the cells.
        let names = Names::new(&config.region, &config.node, &home.key, chance.draw("names")?);
        let names = names.among(home.names());
        let shared = Arc::new(Shared::new(node, writer, clock, key, names));
        if member.is_none() {
            shared.node.apply(config.live.limits.clone(), now, |id| rows.rows(&*store, id))?;
        }
        rows.done()?;
        if !shared.node.restore_withdrawals(taken, now) {
            home.doubt_withdrawals(&*store)?;
        }
        shared.apply(&config.live);
        put_webhooks_in_force(&shared, &config.live.webhooks)?;
        let (home, fingerprint) = (Some((home, way)), Some(fingerprint));
        let crashed = crashed.filter(|_| !stopped);
        let read = without_limits(&config);
        Ok(Self {
            config,
            shared,
            store: Some(store),
            chance,
            key,
            me: member.map(|member| member.home.incarnation),
            home,
            fingerprint,
            crashed,
            certificates: Watched::default(),
            gates: Vec::new(),
            read,
        })
    }

    /// Opens the way to the pools that this node shares, if it does, in the caller's runtime. The future that
    /// it returns carries the node's calls until `stopping`.
    ///
    /// # Errors
    /// The settings of the store.
    pub(crate) fn share_store(
        &mut self,
        stopping: CancellationToken,
    ) -> Result<Option<impl Future<Output = ()> + Send + use<>>, StartError> {
        let (Some((home, way)), Some(writer)) = (self.home.take(), self.shared.writer.clone()) else {
            return Ok(None);
        };
        let way = match way {
            Some(way) => way,
            None => home.way()?,
        };
        let process = region::Running {
            node: Arc::clone(&self.shared.node),
            writer,
            clock: Arc::clone(&self.shared.clock),
            waiting: Arc::clone(&self.shared.waiting),
        };
        let (region, carried) = home.take(way, process, stopping.clone());
        let delivered = idempotency::deliver(Arc::clone(&region.names), stopping);
        // The call sets the value: a service takes its place once.
        let _ = self.shared.own_region.set(region);
        Ok(Some(async {
            let ((), ()) = tokio::join!(carried, delivered);
        }))
    }

    /// From here on a stop without [`Service::close`] counts as a crash. This removes the mark of the last
    /// clean stop, writes the rows that the node queued while it read, and writes down what is in force.
    /// Nothing may be asked before.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn begin(&self) -> Result<(), StartError> {
        let Some(writer) = &self.shared.writer else { return Ok(()) };
        let schedule = schedule::to_bytes(&self.shared.node.schedule())?;
        let incarnation = self.me.map(|me| me.number.to_be_bytes());
        let mut values = vec![(SCHEDULE, Some(&schedule[..])), (STOPPED, None)];
        values.extend(incarnation.as_ref().map(|bytes| (INCARNATION, Some(&bytes[..]))));
        let fingerprint = self.fingerprint.map(u64::to_be_bytes);
        values.extend(fingerprint.as_ref().map(|bytes| (region::AGREED, Some(&bytes[..]))));
        let crashed = self
            .crashed
            .map(|Now { steady_ns, wall_ns }| [steady_ns.to_be_bytes(), wall_ns.to_be_bytes()].concat());
        values.extend(crashed.as_ref().map(|bytes| (CRASHED, Some(&bytes[..]))));
        let ordered = self.shared.alone.get().map(Alone::value);
        values.extend(ordered.as_ref().map(|(name, bytes)| (*name, bytes.as_deref())));
        writer.write(&[], &values)?;
        Ok(())
    }

    /// The state that the workers share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Puts another config in force, as far as that needs no restart. Says whether anything in the config is
    /// new here. On a node among regions, changed limits are new only if the node makes the catalogue.
    ///
    /// # Errors
    /// The limits contradict each other, or the journal cannot be read or written; then the old
    /// ones stay.
    pub fn reload(&mut self, new: Config) -> Result<Reloaded, StartError> {
        for name in self.config.needs_restart(&new) {
            warn!(setting = name, "changed in the file, and needs a restart to take effect");
        }
        let rules = self.shared.regions.get().is_none_or(|regions| regions.makes_versions());
        let has_new_limits = rules && self.config.live.limits != new.live.limits;
        let read = without_limits(&new);
        let let_in = self.let_in(&new);
        // Faults of the hooks are found before anything is put in force.
        let shared = Arc::clone(&self.shared);
        let webhooks = prepare_webhooks(&shared, &new.live.webhooks)?;
        if let Some(regions) = self.shared.regions.get() {
            // The catalogue rules. On the authority a change of the file is an order; on other nodes the file
            // is only compared.
            regions.take_file(&new.live.limits)?;
            self.shared.apply(&new.live);
        } else {
            self.put_limits_in_force(&new.live)?;
        }
        if let Some((webhooks, hooks)) = webhooks {
            webhooks.replace(hooks);
        }
        self.config.live = new.live;
        let_in?;
        let is_new = has_new_limits || self.read != read;
        self.read = read;
        Ok(if is_new { Reloaded::Applied } else { Reloaded::Unchanged })
    }

    /// Lets in by each port the callers that a new config names, if the port itself is the same. This happens
    /// apart from all other changes: a caller that the config shuts out stays out, even if the rest is
    /// refused.
    fn let_in(&self, new: &Config) -> Result<(), GateFault> {
        let mut done = Ok(());
        for gate in &self.gates {
            if let Some(allow) = self.config.new_callers(new, gate.port) {
                done = done.and(gate.allow(allow));
            }
        }
        warn_of_open_ports(&self.gates);
        done
    }

    fn put_limits_in_force(&self, live: &Live) -> Result<(), StartError> {
        let changes = match self.shared.alone.get() {
            Some(alone) => alone.reload(&live.limits, |limits| self.put_in_force(limits))?,
            None => self.put_in_force(live.limits.clone())?,
        };
        self.shared.apply(live);
        let more = changes.len().saturating_sub(SETTINGS.reading.changes_told);
        if more > 0 {
            info!(more, "more limits changed than are named here");
        }
        for change in changes.into_iter().take(SETTINGS.reading.changes_told) {
            match change.kind {
                ChangeKind::Added => info!(limit = change.limit, "limit added"),
                ChangeKind::Removed => info!(limit = change.limit, "limit removed"),
                ChangeKind::Renumbered => info!(limit = change.limit, "limit changed, its cells kept"),
                ChangeKind::Succeeds { at_ns } => {
                    let now_ns = self.shared.clock.now().wall_ns;
                    let in_seconds = at_ns.saturating_sub(now_ns).div_ceil(1_000_000_000);
                    warn!(
                        limit = change.limit,
                        in_seconds,
                        "the limit matches or counts otherwise now: the old one counts beside it until then, and both may deny"
                    );
                }
            }
        }
        Ok(())
    }

    fn put_in_force(&self, limits: Vec<Limit>) -> Result<Vec<Change>, StartError> {
        let now = self.shared.clock.now();
        let node = &self.shared.node;
        let before = node.schedule();
        let mut reader = RowReader::default();
        let store = self.store.as_deref();
        if let Some(writer) = &self.shared.writer {
            // A crash must find what is about to be served, so that is written down beforehand.
            let mut both = before.clone();
            let new = unknown(&both, &limits);
            if !new.is_empty() {
                both.extend(new);
                writer.write(&[], &[(SCHEDULE, Some(&schedule::to_bytes(&both)?))])?;
            }
        }
        // The known limits are noted before anything is in force: the journal is not read again for these.
        let known: BTreeSet<LimitId> = node.known_limits().into_iter().collect();
        let unknown = limits.iter().map(|limit| limit.id).filter(|id| !known.contains(id));
        let mut rows: BTreeMap<LimitId, Vec<Row>> = match store {
            Some(store) => unknown.map(|id| (id, reader.rows(store, id))).collect(),
            None => BTreeMap::new(),
        };
        reader.done()?;
        let changes = node.apply(limits, now, |id| rows.remove(&id).unwrap_or_default())?;
        let written: Result<(), StartError> = match &self.shared.writer {
            Some(writer) => schedule::to_bytes(&node.schedule())
                .map_err(StartError::from)
                .and_then(|schedule| Ok(writer.write(&[], &[(SCHEDULE, Some(&schedule))])?)),
            None => Ok(()),
        };
        if let Err(fault) = written {
            // A limit that a restart would not know of must not be in force. The old limits were written
            // down, so they can be.
            let before = before.into_iter().filter(|old| old.until_ns.is_none());
            node.apply(before.map(|old| old.limit).collect(), now, |_| Vec::new())?;
            return Err(fault);
        }
        Ok(changes)
    }

    /// Prepares this node's place among the regions, if it has one: no other node hears of it before
    /// [`Joining::start`]. `connect` starts the mesh where the node is told to listen.
    pub(crate) fn prepare(
        &mut self,
        audit: impl FnOnce(&Path) -> std::io::Result<Audit>,
        connect: impl FnOnce(SocketAddr, acequia_mesh::Config) -> Result<Connected, StartError>,
    ) -> Result<Option<Joining>, StartError> {
        let (Some(address), Some(settings)) = (self.config.listen.mesh, self.config.regions.clone()) else {
            return Ok(None);
        };
        let (Some(me), Some(store), Some(writer)) = (self.me, self.store.clone(), self.shared.writer.clone())
        else {
            return Ok(None);
        };
        let folder = self.config.data.clone().unwrap_or_default();
        let audit = audit(&folder).map_err(RegionsError::Audit)?;
        // The files' stamps are taken before the files are read: a change in between is read again.
        self.have_certificates_changed();
        let place = RegionsParts {
            config: &self.config,
            settings,
            me,
            node: Arc::clone(&self.shared.node),
            clock: Arc::clone(&self.shared.clock),
            store,
            writer,
            key: self.key.0,
            chance: &self.chance,
            audit,
            waiting: Arc::clone(&self.shared.waiting),
        };
        Ok(Some(Regions::prepare(place, |config| connect(address, config))?))
    }

    /// Takes this node's place among the regions, once the task that shares its limits with them has begun.
    pub(crate) fn take_place(&self, regions: Arc<Regions>) {
        if let Err(fault) = regions.take_file(&self.config.live.limits) {
            error!(
                %fault,
                "what changed in the file is not in force, and the catalogue stays: mend what is said, and start again \
                 or send SIGHUP"
            );
        }
        // The call sets the value: a service takes its place once.
        let _ = self.shared.regions.set(regions);
    }

    /// Uses the certificates in the `tls` folder, where they have changed.
    pub(crate) fn renew_certificates(&mut self) {
        let Some(regions) = self.shared.regions.get() else { return };
        let regions = Arc::clone(regions);
        if !self.have_certificates_changed() {
            return;
        }
        match regions.reload_certificates(&self.config) {
            Ok(()) => info!("certificates read again: new connections use them"),
            Err(fault) => error!(%fault, "certificates not read again: the old ones stay"),
        }
    }

    fn have_certificates_changed(&mut self) -> bool {
        let Some(folder) = &self.config.tls else { return false };
        let node = &self.config.node;
        let files = ["ca.pem".to_owned(), format!("{node}.pem"), format!("{node}.key")];
        let files = files.map(|file| folder.join(file));
        self.certificates.have_changed(&files.each_ref().map(|path| path.as_path()))
    }

    /// Writes what a clean stop leaves behind. Nothing can be asked after that: a thread that still asks
    /// waits until the process ends.
    pub fn close(&self) {
        let Some(writer) = &self.shared.writer else { return };
        self.shared.workers.stop_asking();
        let now = self.shared.clock.now();
        for shard in 0..SHARDS {
            self.shared.node.sweep(shard, now);
        }
        let knew = self.shared.node.known_limits();
        let knew: Vec<u8> = knew.iter().flat_map(|id| id.0.to_be_bytes()).collect();
        let knew = self.fingerprint.is_some().then_some((KNEW, Some(&knew[..])));
        let values: Vec<_> = knew.into_iter().chain([(STOPPED, Some(&b"cleanly"[..]))]).collect();
        if let Err(fault) = writer.close(now, &values) {
            error!(%fault, "stopped without writing the journal: the next start is as after a crash");
        }
    }
}

/// What the last process left in the journal.
struct LastProcess {
    /// The limits that it enforced; `None` if the journal is new.
    schedule: Option<Vec<Scheduled>>,
    /// Whether it stopped cleanly.
    stopped: bool,
}

impl LastProcess {
    fn read(journal: Option<&dyn Store>) -> Result<Self, StartError> {
        let schedule = journal.map(read_schedule).transpose()?.flatten();
        let stopped = journal.map(|store| store.value(STOPPED)).transpose()?.flatten().is_some();
        Ok(Self { schedule, stopped })
    }

    /// Whether a process answered here, and ended otherwise than by a clean stop.
    fn has_crashed(&self, member: Option<&Identified>) -> bool {
        (self.schedule.is_some() || member.is_some_and(|member| member.was_here)) && !self.stopped
    }
}

/// Refuses the journal of a node that shared its limits with mates: their guard shares count on it.
fn refuse_the_journal_of_a_mate(journal: Option<&dyn Store>) -> Result<(), StartError> {
    let agreed = journal.map(|store| store.value(region::AGREED)).transpose()?.flatten();
    if agreed.is_some() { Err(StartError::NotAmong) } else { Ok(()) }
}

/// Who this node is among the regions; `None` if it stands alone.
fn member_of_regions(
    config: &Config,
    journal: Option<&dyn Store>,
    now: Now,
) -> Result<Option<Identified>, StartError> {
    // A config with regions and without `data` is refused.
    match journal {
        Some(store) if config.regions.is_some() => Ok(Some(regions::identity(config, store, now)?)),
        Some(store) if store.value(INCARNATION)?.is_some() => Err(StartError::NotAlone),
        _ => Ok(None),
    }
}

/// Takes over what the last process had in force, and the cells of these limits.
fn resume(
    node: &Node,
    schedule: Option<Vec<Scheduled>>,
    member: Option<&Identified>,
    now: Now,
    rows: impl FnMut(LimitId) -> Vec<Row>,
) -> Result<(), StartError> {
    match (member, schedule) {
        (Some(member), schedule) => {
            // The limits that the node had alone are not the catalogue's, which may tag cells with another
            // key. If the limit and the key are the same, the rows are read when the limit is adopted.
            let schedule = schedule.filter(|_| member.was_here).unwrap_or_default();
            node.resume_home(schedule, now, rows)?;
        }
        (None, Some(schedule)) => {
            node.resume(schedule, now)?;
            node.restore_all(now, rows);
        }
        (None, None) => {}
    }
    Ok(())
}

/// Puts the limits of the file in force, with the orders that the journal keeps.
fn put_file_and_orders_in_force(
    shared: &Shared,
    config: &Config,
    journal: Option<&dyn Store>,
    now: Now,
    rows: &mut RowReader,
) -> Result<(), StartError> {
    let parts = AloneParts {
        node: Arc::clone(&shared.node),
        writer: shared.writer.clone(),
        clock: Arc::clone(&shared.clock),
    };
    let (alone, limits) = Alone::read(parts, journal, config.data.clone(), &config.live.limits)?;
    let changes =
        shared.node.apply(limits, now, |id| journal.map_or_else(Vec::new, |store| rows.rows(store, id)))?;
    debug!(changes = changes.len(), "limits in force");
    alone.look();
    // The call sets the value: nobody else has the service yet.
    let _ = shared.alone.set(alone);
    Ok(())
}

/// Puts the hooks of a config in force, if there are any.
fn put_webhooks_in_force(shared: &Shared, hooks: &[WebhookConfig]) -> Result<(), WebhooksError> {
    if let Some((webhooks, hooks)) = prepare_webhooks(shared, hooks)? {
        webhooks.replace(hooks);
    }
    Ok(())
}

/// The last start after a crash of a node with mates: what was spent of guard shares before is unknown. `None`
/// if there was none, or all of that is over. It is this start if the last process did not stop cleanly;
/// otherwise the value [`CRASHED`] tells.
fn last_start_after_crash(
    last_crash: Option<&[u8]>,
    stopped: bool,
    clock_error_ns: u64,
    now: Now,
) -> Result<Option<Now>, StartError> {
    if !stopped {
        info!("the node did not stop cleanly: its guard shares of what is open count as spent");
        return Ok(Some(now));
    }
    last_crash.map(|bytes| crash(bytes, clock_error_ns, now)).transpose()
}

/// A schedule, followed by the limits that it does not have.
fn with_unknown(mut schedule: Vec<Scheduled>, limits: &[Limit]) -> Vec<Scheduled> {
    schedule.extend(unknown(&schedule, limits));
    schedule
}

/// The limits that a schedule does not have, as if they were in force for good.
fn unknown(schedule: &[Scheduled], limits: &[Limit]) -> Vec<Scheduled> {
    let known: BTreeSet<LimitId> = schedule.iter().map(|scheduled| scheduled.limit.id).collect();
    let new = limits.iter().filter(|limit| !known.contains(&limit.id)).cloned();
    new.map(|limit| Scheduled { limit, until_ns: None }).collect()
}

/// What webhooks need to be put in force; `None` if there are none and never were.
fn prepare_webhooks<'a>(
    shared: &'a Shared,
    hooks: &[WebhookConfig],
) -> Result<Option<(&'a Webhooks, Prepared)>, WebhooksError> {
    let prepared = Prepared::read(hooks)?;
    if shared.webhooks.get().is_none() && !hooks.is_empty() {
        // The call sets the value: nobody else does.
        let _ = shared.webhooks.set(Webhooks::start()?);
    }
    Ok(shared.webhooks.get().map(|webhooks| (webhooks, prepared)))
}

/// Reads the journal's rows of limits, and keeps the first fault.
#[derive(Default)]
struct RowReader {
    fault: Option<StoreError>,
}

impl RowReader {
    fn rows(&mut self, store: &dyn Store, id: LimitId) -> Vec<Row> {
        store.rows(id).unwrap_or_else(|fault| {
            self.fault.get_or_insert(fault);
            Vec::new()
        })
    }

    /// Whether all rows could be read: a node that began with fewer would give back what was spent.
    fn done(self) -> Result<(), StartError> {
        self.fault.map_or(Ok(()), |fault| Err(fault.into()))
    }
}

/// The last start after a crash, as [`CRASHED`] has it, in readings of today's clocks. It is dated no longer
/// ago than the walls prove, if they are wrong by at most `error_ns`.
fn crash(bytes: &[u8], error_ns: u64, now: Now) -> Result<Now, StartError> {
    let fault = || ValueFault { what: CRASHED, cause: format!("{} bytes, not 16", bytes.len()) };
    let (steady, wall) = bytes.split_first_chunk::<8>().ok_or_else(fault)?;
    let wall = <[u8; 8]>::try_from(wall).map_err(|_| fault())?;
    let (steady_ns, wall_ns) = (u64::from_be_bytes(*steady), u64::from_be_bytes(wall));
    // The catalogue may allow walls to be wrong by a little more than the file does.
    let error_ns = 2 * error_ns;
    let surely_ns = now.wall_ns.saturating_sub(wall_ns).saturating_sub(2 * error_ns);
    let ago_ns = now.steady_ns.saturating_sub(steady_ns).min(surely_ns);
    // If the wall was far ahead then, everything that begins until that time would count as spent.
    let wall_ns = wall_ns.min(now.wall_ns.saturating_add(2 * error_ns));
    Ok(Now { steady_ns: now.steady_ns - ago_ns, wall_ns })
}

/// Reads the ids in [`KNEW`].
fn known(bytes: &[u8]) -> Result<BTreeSet<LimitId>, StartError> {
    let (ids, rest) = bytes.as_chunks::<16>();
    let fault = || ValueFault { what: KNEW, cause: format!("{} bytes, not 16 each", bytes.len()) };
    if rest.is_empty() {
        Ok(ids.iter().map(|id| LimitId(u128::from_be_bytes(*id))).collect())
    } else {
        Err(fault().into())
    }
}

fn without_limits(config: &Config) -> Config {
    Config { live: Live { limits: Vec::new(), ..config.live.clone() }, ..config.clone() }
}

/// The key of cells' names where a Redis counts their hits.
const COUNTED_KEY: HashKey = HashKey(*b"acequia, counted");

fn hash_key(store: Option<&dyn Store>, chance: &Chance) -> Result<HashKey, StartError> {
    let Some(store) = store else { return Ok(HashKey(chance.draw(KEY)?)) };
    if let Some(bytes) = store.value(KEY)? {
        let cause = || format!("{} bytes, not 16", bytes.len());
        let key = <[u8; 16]>::try_from(&bytes[..]).map_err(|_| ValueFault { what: KEY, cause: cause() })?;
        return Ok(HashKey(key));
    }
    let key = chance.draw(KEY)?;
    store.commit(&[], &[(KEY, Some(&key))])?;
    Ok(HashKey(key))
}

/// The schedule of the last process; `None` if the journal is new.
fn read_schedule(store: &dyn Store) -> Result<Option<Vec<Scheduled>>, StartError> {
    let bytes = store.value(SCHEDULE)?;
    Ok(bytes.map(|bytes| schedule::from_bytes(&bytes)).transpose()?)
}
