//! A node from its config to its end: open the journal, take over what was in force, listen,
//! answer, reload, drain.

use std::{
    net::{SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use acequia_limits::{HashKey, Limit, LimitId, limit::LimitSpec};
use acequia_node::{
    CatalogueFault, Change, ChangeKind, Config as NodeConfig, Node, ResumeFault, Row, SHARDS, Scheduled,
};
use acequia_rights::Writer as Identity;
use acequia_store::{Journal, Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
};
use tracing::{debug, error, info, warn};

use crate::{
    charges::Names,
    clock::{Clock, SystemClock},
    config::{Config, ConfigError, Listen, Live, WebhookConfig},
    grpc, http,
    regions::{
        self, Audit, INCARNATION, Joining, OrderFault, Place, Regions, RegionsError,
        admin::{self, AdminError},
    },
    warnings,
    webhooks::{Prepared, Webhooks, WebhooksError},
    worker::Shared,
    writer::Writer,
};

/// The journal's named values.
const KEY: &str = "hash_key";
pub(crate) const SCHEDULE: &str = "schedule";
const STOPPED: &str = "stopped";

/// How often a shard is swept: all of them in about five seconds.
const SWEEP: Duration = Duration::from_millis(20);
/// How often the config file is looked at for changes.
const WATCH: Duration = Duration::from_secs(1);
/// Accepted connections that wait for their worker.
const HANDOVER_MAX: usize = 1_024;

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file cannot be read.
    #[error("cannot read {path}: {cause}. Name a config with --config, or write one: see the README")]
    File {
        /// As it was named.
        path: String,
        /// What the system says.
        cause: std::io::Error,
    },
    /// The config is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The limits contradict each other.
    #[error(transparent)]
    Catalogue(#[from] CatalogueFault),
    /// The journal cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A value in the journal is not one of ours.
    #[error("the journal's {what} cannot be read: {cause}. Start with a new `data` folder")]
    Value {
        /// Which value.
        what: &'static str,
        /// What is wrong with it.
        cause: String,
    },
    /// A port cannot be had.
    #[error(
        "cannot listen on {address}: {cause}. Stop what listens there, or choose another port in `listen`"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        cause: std::io::Error,
    },
    /// Other regions count on this node's shares being all that it spends.
    #[error(
        "the journal in `data` is that of a node among regions, and the config has no `regions`: alone the node would \
         have every limit in full, and the other regions have theirs. Put `regions` back; or, once this region was \
         removed or evicted (`acequia regions remove`, `evict`), begin with an empty `data` folder"
    )]
    NotAlone,
    /// The journal is not this node's.
    #[error(transparent)]
    Resume(#[from] ResumeFault),
    /// The node cannot take its place among the regions.
    #[error(transparent)]
    Regions(#[from] RegionsError),
    /// The admin listener cannot start.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The webhooks cannot be set up.
    #[error(transparent)]
    Webhooks(#[from] WebhooksError),
    /// What the file changes cannot be put in force.
    #[error("{0}")]
    Order(#[from] OrderFault),
    /// The system refuses something else.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Where a node listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Envoy's RLS and acequia.v1.
    pub grpc: SocketAddr,
    /// Check, metrics and health.
    pub http: SocketAddr,
    /// Operators.
    pub admin: Option<SocketAddr>,
    /// Other regions (UDP).
    pub mesh: Option<SocketAddr>,
}

impl std::fmt::Display for Addresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "grpc={} http={}", self.grpc, self.http)?;
        for (name, address) in [("admin", self.admin), ("mesh", self.mesh)] {
            if let Some(address) = address {
                write!(f, " {name}={address}")?;
            }
        }
        Ok(())
    }
}

/// A node that answers.
#[derive(Debug)]
pub struct Service {
    config: Config,
    shared: Arc<Shared>,
    store: Option<Arc<dyn Store>>,
    key: HashKey,
    /// Who it is among the regions; nobody where it stands alone.
    me: Option<Identity>,
    /// When the certificates were written that are in use.
    certificates: Option<SystemTime>,
}

/// A limit of the schedule, as the journal keeps it.
#[derive(Serialize, Deserialize)]
struct KeptLimit {
    spec: LimitSpec,
    from_ns: Option<u64>,
    until_ns: Option<u64>,
}

impl Service {
    /// Opens the journal that the config names, and puts the config in force.
    ///
    /// # Errors
    /// Whatever keeps the node from answering.
    pub fn start(config: Config) -> Result<Self, StartError> {
        let store: Option<Arc<dyn Store>> = match &config.data {
            Some(folder) => Some(Arc::new(Journal::open(folder)?)),
            None => None,
        };
        Self::start_with(config, store, Arc::new(SystemClock::start()))
    }

    /// The same with a store and clocks of the caller's.
    ///
    /// # Errors
    /// Whatever keeps the node from answering.
    pub fn start_with(
        config: Config,
        store: Option<Arc<dyn Store>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let now = clock.now();
        let store_ref = store.as_deref();
        let schedule = store_ref.map(read_schedule).transpose()?.flatten();
        let stopped = store_ref.map(|store| store.value(STOPPED)).transpose()?.flatten().is_some();
        let key = hash_key(store_ref)?;
        // A config with regions and without `data` is refused.
        let home = match store_ref {
            Some(store) if config.regions.is_some() => Some(regions::identity(&config, store, now)?),
            Some(store) if store.value(INCARNATION)?.is_some() => return Err(StartError::NotAlone),
            _ => None,
        };
        let served = schedule.is_some() || home.is_some_and(|(_, was_here)| was_here);
        let empty_handed = (served && !stopped).then_some(now);
        let node_config = NodeConfig {
            key,
            memory_bytes: config.memory_bytes,
            durable: store.is_some(),
            empty_handed,
            home: home.map(|(home, _)| home),
        };
        let node = Arc::new(Node::keeping(node_config, config.charges));
        let mut reading = Reading::default();
        match store_ref {
            Some(store) if home.is_some() => {
                // The limits that it had alone are none of the catalogue's, which may tag cells with another key than this
                // node's. Where it has the same limit and the same key, what was spent is read when it is adopted.
                let is_new = home.is_some_and(|(_, was_here)| !was_here);
                let schedule = schedule.filter(|_| !is_new).unwrap_or_default();
                node.resume_home(schedule, now, |id| reading.rows(store, id))?;
                if empty_handed.is_some() {
                    info!("the node did not stop cleanly: what was reserved and not used counts as spent");
                }
            }
            Some(store) => {
                if let Some(schedule) = schedule {
                    node.resume(schedule, now)?;
                    node.restore_all(now, |id| reading.rows(store, id));
                }
                if empty_handed.is_some() {
                    info!("the node did not stop cleanly: what was reserved and not used counts as spent");
                }
            }
            None => warn!(
                "no `data` in the config: nothing survives a restart, and a restart may admit a window twice"
            ),
        }
        let writer = store.clone().map(|store| Arc::new(Writer::new(Arc::clone(&node), store)));
        let names = Names::new(&config.region, &config.node, &key, random()?);
        let shared = Arc::new(Shared::new(node, writer, clock, (key, names)));
        if home.is_none() {
            let changes = shared.node.apply(config.live.limits.clone(), now, |id| {
                store_ref.map_or_else(Vec::new, |store| reading.rows(store, id))
            })?;
            debug!(changes = changes.len(), "limits in force");
        }
        shared.apply(&config.live);
        reading.done()?;
        if let Some((webhooks, hooks)) = prepare_webhooks(&shared, &config.live.webhooks)? {
            webhooks.replace(hooks);
        }
        let me = home.map(|(home, _)| home.writer);
        Ok(Self { config, shared, store, key, me, certificates: None })
    }

    /// From here on a crash is a crash: what a clean stop left behind is taken, with the rows that the node has queued
    /// while it read them, and what is in force is written down. Nothing may be asked before.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn begin(&self) -> Result<(), StartError> {
        let Some(writer) = &self.shared.writer else { return Ok(()) };
        let schedule = schedule_bytes(&self.shared.node.schedule())?;
        let incarnation = self.me.map(|me| me.incarnation.to_be_bytes());
        let mut values = vec![(SCHEDULE, Some(&schedule[..])), (STOPPED, None)];
        values.extend(incarnation.as_ref().map(|bytes| (INCARNATION, Some(&bytes[..]))));
        writer.write(&[], &values)?;
        Ok(())
    }

    /// What the workers share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Puts another config in force, as far as that needs no restart.
    ///
    /// # Errors
    /// The limits contradict each other, or the journal cannot be read or written; then the old
    /// ones stay.
    pub fn reload(&mut self, new: Config) -> Result<(), StartError> {
        for name in self.config.needs_restart(&new) {
            warn!(setting = name, "changed in the file, and needs a restart to take effect");
        }
        // What can be wrong with them is known before anything counts.
        let shared = Arc::clone(&self.shared);
        let webhooks = prepare_webhooks(&shared, &new.live.webhooks)?;
        if let Some(regions) = self.shared.regions.get() {
            // The catalogue rules: on the authority what changed in the file is an order, elsewhere it is compared.
            regions.take_file(&new.live.limits)?;
            self.shared.apply(&new.live);
            if let Some((webhooks, hooks)) = webhooks {
                webhooks.replace(hooks);
            }
            self.config.live = new.live;
            return Ok(());
        }
        for change in self.put_in_force(&new.live)? {
            match change.kind {
                ChangeKind::Added => info!(limit = change.limit, "limit added"),
                ChangeKind::Removed => info!(limit = change.limit, "limit removed"),
                ChangeKind::Renumbered => info!(limit = change.limit, "limit changed, its cells kept"),
                ChangeKind::Succeeds { at_ns } => {
                    let now_ns = self.shared.clock.now().wall_ns;
                    let in_seconds = at_ns.saturating_sub(now_ns).div_ceil(1_000_000_000);
                    info!(limit = change.limit, in_seconds, "limit replaced: the old one holds until then");
                }
            }
        }
        if let Some((webhooks, hooks)) = webhooks {
            webhooks.replace(hooks);
        }
        self.config.live = new.live;
        Ok(())
    }

    fn put_in_force(&self, live: &Live) -> Result<Vec<Change>, StartError> {
        let now = self.shared.clock.now();
        let node = &self.shared.node;
        let mut reading = Reading::default();
        let store = self.store.as_deref();
        if let Some(writer) = &self.shared.writer {
            // A crash must find what is about to be served, so it is written down beforehand too.
            let mut both = node.schedule();
            let known = |limit: &Limit| both.iter().any(|s| s.limit.id == limit.id);
            let new = live.limits.iter().filter(|limit| !known(limit)).cloned();
            let new: Vec<Scheduled> =
                new.map(|limit| Scheduled { limit, from_ns: None, until_ns: None }).collect();
            if !new.is_empty() {
                both.extend(new);
                writer.write(&[], &[(SCHEDULE, Some(&schedule_bytes(&both)?))])?;
            }
        }
        let changes = node.apply(live.limits.clone(), now, |id| {
            store.map_or_else(Vec::new, |store| reading.rows(store, id))
        })?;
        let written = reading.done().and_then(|()| match &self.shared.writer {
            Some(writer) => {
                let schedule = schedule_bytes(&node.schedule())?;
                Ok(writer.write(&[], &[(SCHEDULE, Some(&schedule))])?)
            }
            None => Ok(()),
        });
        if let Err(fault) = written {
            // What a restart would not know of must not be in force. The old limits were, so they can be.
            node.apply(self.config.live.limits.clone(), now, |_| Vec::new())?;
            return Err(fault);
        }
        self.shared.apply(live);
        Ok(changes)
    }

    /// Makes ready for this node's place among the regions, if it has one: nobody hears of it before [`Service::share`].
    fn prepare(&mut self) -> Result<Option<Joining>, StartError> {
        let (Some(address), Some(settings)) = (self.config.listen.mesh, self.config.regions.clone()) else {
            return Ok(None);
        };
        let (Some(me), Some(store), Some(writer)) = (self.me, self.store.clone(), self.shared.writer.clone())
        else {
            return Ok(None);
        };
        let socket = UdpSocket::bind(address).map_err(|cause| StartError::Listen { address, cause })?;
        let folder = self.config.data.clone().unwrap_or_default();
        let audit = Audit::open(&folder).map_err(RegionsError::Audit)?;
        // Looked at before they are read: those that come in between are read again.
        self.certificates = self.certificates_written();
        let place = Place {
            config: &self.config,
            settings,
            me,
            node: Arc::clone(&self.shared.node),
            clock: Arc::clone(&self.shared.clock),
            store,
            writer,
            key: self.key.0,
            audit,
            socket,
        };
        Ok(Some(Regions::prepare(place)?))
    }

    /// Takes this node's place among the regions: from now on it shares its limits with them.
    fn share(&self, joining: Joining) -> Result<Sharing, StartError> {
        let regions = Arc::clone(joining.regions());
        let (part, parting) = watch::channel(false);
        let thread = joining.start(parting)?;
        if let Err(fault) = regions.take_file(&self.config.live.limits) {
            error!(
                %fault,
                "what changed in the file is not in force, and the catalogue stays: mend what is said, and start again \
                 or send SIGHUP"
            );
        }
        // Once: a service takes its place once.
        let _ = self.shared.regions.set(regions);
        Ok(Sharing { part, thread })
    }

    /// Uses the certificates in the `tls` folder, where they have changed.
    fn renew_certificates(&mut self) {
        let Some(regions) = self.shared.regions.get() else { return };
        let written = self.certificates_written();
        if written.is_none() || written == self.certificates {
            return;
        }
        match regions.reload_certificates(&self.config) {
            Ok(()) => info!("certificates read again: new connections use them"),
            Err(fault) => error!(%fault, "certificates not read again: the old ones stay"),
        }
        self.certificates = written;
    }

    /// When the newest of them was.
    fn certificates_written(&self) -> Option<SystemTime> {
        let folder = self.config.tls.as_ref()?;
        let node = &self.config.node;
        let files = ["ca.pem".to_owned(), format!("{node}.pem"), format!("{node}.key")];
        let written = |file| std::fs::metadata(folder.join(file)).and_then(|found| found.modified()).ok();
        files.into_iter().filter_map(written).max()
    }

    /// Writes what a clean stop leaves behind. Nothing can be asked after it: who still asks waits
    /// until the process ends.
    pub fn close(&self) {
        let Some(writer) = &self.shared.writer else { return };
        self.shared.stop_asking();
        let now = self.shared.clock.now();
        for shard in 0..SHARDS {
            self.shared.node.sweep(shard, now);
        }
        if let Err(fault) = writer.close(now, &[(STOPPED, Some(b"cleanly"))]) {
            error!(%fault, "stopped without writing the journal: the next start is as after a crash");
        }
    }
}

/// The thread that shares limits with other regions.
struct Sharing {
    part: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

/// All that a node needs to run and may not get.
struct Opened {
    signals: Signals,
    grpc: TcpListener,
    http: TcpListener,
    operators: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    joining: Option<Joining>,
    workers: Workers,
    addresses: Addresses,
    stop: watch::Sender<bool>,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// Runs a node until it is told to stop. `ready` is called with its addresses when all are listened to.
///
/// # Errors
/// Whatever keeps the node from starting.
pub fn run(path: &Path, ready: impl FnOnce(Addresses)) -> Result<(), StartError> {
    let (text, config) = read(path)?;
    info!(%config, "starting");
    let mut service = Service::start(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // A start that fails leaves the journal as the last stop left it.
    let mut opened = Opened::open(&mut service, &runtime)?;
    service.begin()?;
    let sharing = opened.joining.take().map(|joining| service.share(joining)).transpose()?;
    runtime.block_on(serve(service, opened, sharing, path.to_owned(), text, ready));
    Ok(())
}

impl Opened {
    /// Outside of the runtime, since what regions need has one of its own.
    fn open(service: &mut Service, runtime: &Runtime) -> Result<Self, StartError> {
        let Listen { grpc, http, admin, .. } = service.config.listen;
        let (signals, grpc, http, admin) = runtime.block_on(async {
            let signals = Signals::hear()?;
            let (grpc, http) = (listen(grpc).await?, listen(http).await?);
            let admin = match admin {
                Some(address) => Some(listen(address).await?),
                None => None,
            };
            Ok::<_, StartError>((signals, grpc, http, admin))
        })?;
        let joining = service.prepare()?;
        let regions = joining.as_ref().map(|joining| Arc::clone(joining.regions()));
        let addresses = Addresses {
            grpc: grpc.local_addr()?,
            http: http.local_addr()?,
            admin: admin.as_ref().map(TcpListener::local_addr).transpose()?,
            mesh: regions.as_ref().map(|regions| regions.mesh_address()),
        };
        let (stop, stopping) = watch::channel(false);
        let operators = match admin {
            Some(listener) => {
                let (shared, stopping) = (Arc::clone(&service.shared), stopping.clone());
                let served = admin::serve(listener, &service.config, shared, regions, stopping)?;
                Some(Box::pin(served) as _)
            }
            None => None,
        };
        let count = service
            .config
            .workers
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get));
        let workers = Workers::start(count, &service.shared, &stopping)?;
        Ok(Self { signals, grpc, http, operators, joining, workers, addresses, stop })
    }
}

impl Signals {
    fn hear() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

async fn serve(
    mut service: Service,
    opened: Opened,
    sharing: Option<Sharing>,
    path: PathBuf,
    mut text: String,
    ready: impl FnOnce(Addresses),
) {
    let Opened { mut signals, grpc, http, operators, workers, addresses, stop, .. } = opened;
    let operators = operators.map(tokio::spawn);
    let (connections, stopping) = (service.config.connections_max, stop.subscribe());
    let accepting = [
        tokio::spawn(accept(grpc, Port::Grpc, workers.hands.clone(), connections, stopping.clone())),
        tokio::spawn(accept(http, Port::Http, workers.hands.clone(), connections, stopping)),
    ];
    let writing = service.shared.writer.clone().map(|writer| std::thread::spawn(move || writer.run()));
    ready(addresses);
    info!(%addresses, workers = workers.threads.len(), "listening");

    let mut sweep = tokio::time::interval(SWEEP);
    let mut watch = tokio::time::interval(WATCH);
    let mut shard = 0;
    loop {
        let reload = tokio::select! {
            biased;
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.hangup.recv() => true,
            _ = watch.tick() => {
                warnings::tell(&service.shared);
                false
            }
            _ = sweep.tick() => {
                service.shared.node.sweep(shard, service.shared.clock.now());
                shard += 1;
                continue;
            }
        };
        look_again(&mut service, &path, &mut text, reload).await;
        service.renew_certificates();
    }

    info!(for_at_most = ?service.config.drain, "draining");
    let drained_by = Instant::now() + service.config.drain;
    service.shared.drain();
    if let Some(webhooks) = service.shared.webhooks.get() {
        webhooks.drain();
    }
    for task in accepting {
        task.abort();
    }
    // Receivers are told; one that has gone has nothing left to drain.
    let _ = stop.send(true);
    workers.join(service.config.drain).await;
    if let Some(operators) = operators {
        operators.abort();
    }
    if let Some(Sharing { part, thread }) = sharing {
        // Shared with the others until nobody asks any more.
        let _ = part.send(true);
        // A panic of it was printed when it happened.
        let _ = thread.join();
    }
    if let (Some(writer), Some(thread)) = (&service.shared.writer, writing) {
        writer.stop();
        // A panic of the writer was printed when it happened.
        let _ = thread.join();
    }
    service.close();
    // After the journal: who is impatient may kill the process now.
    warnings::tell(&service.shared);
    if let Some(webhooks) = service.shared.webhooks.get() {
        webhooks.finish(drained_by).await;
    }
    info!("stopped");
}

/// What webhooks need to be put in force; nothing where there are none and never were.
fn prepare_webhooks<'a>(
    shared: &'a Shared,
    hooks: &[WebhookConfig],
) -> Result<Option<(&'a Webhooks, Prepared)>, WebhooksError> {
    let prepared = Prepared::read(hooks)?;
    if shared.webhooks.get().is_none() && !hooks.is_empty() {
        // Once: nobody else sets it.
        let _ = shared.webhooks.set(Webhooks::start()?);
    }
    Ok(shared.webhooks.get().map(|webhooks| (webhooks, prepared)))
}

/// Reads the config again if it changed, or if an operator asked. One that cannot be put in force
/// changes nothing.
async fn look_again(service: &mut Service, path: &Path, text: &mut String, asked: bool) {
    let found = match tokio::fs::read_to_string(path).await {
        Ok(found) if asked || found != *text => found,
        Ok(_) => return,
        Err(cause) if asked => {
            service.shared.reloads.refused.fetch_add(1, Ordering::Relaxed);
            return error!(%cause, path = %path.display(), "config not read again: the old one stays");
        }
        // An editor may be replacing the file just now.
        Err(_) => return,
    };
    let parsed = Config::parse(&path.display().to_string(), &found);
    *text = found;
    let done = parsed.map_err(StartError::from).and_then(|config| service.reload(config));
    let reloads = &service.shared.reloads;
    match done {
        Ok(()) => {
            reloads.applied.fetch_add(1, Ordering::Relaxed);
            info!("config read again");
        }
        Err(fault) => {
            reloads.refused.fetch_add(1, Ordering::Relaxed);
            error!(%fault, "config refused: the old one stays");
        }
    }
}

fn read(path: &Path) -> Result<(String, Config), StartError> {
    let name = path.display().to_string();
    let text =
        std::fs::read_to_string(path).map_err(|cause| StartError::File { path: name.clone(), cause })?;
    let config = Config::parse(&name, &text)?;
    Ok((text, config))
}

async fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|cause| StartError::Listen { address, cause })
}

/// Which service a connection came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Grpc,
    Http,
}

/// A connection on its way to a worker, and its right to be open.
type Hand = (Port, std::net::TcpStream, OwnedSemaphorePermit);

/// One thread and one runtime for each core: a runtime of its own batches what it writes, where
/// tokio's shared one flushes after nearly every response.
struct Workers {
    hands: Vec<mpsc::Sender<Hand>>,
    open: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    fn start(
        count: usize,
        shared: &Arc<Shared>,
        stopping: &watch::Receiver<bool>,
    ) -> Result<Self, StartError> {
        let mut workers = Self { hands: Vec::new(), open: Arc::default(), threads: Vec::new() };
        for number in 0..count {
            let (hand, hands) = mpsc::channel(HANDOVER_MAX);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (shared, open) = (Arc::clone(shared), Arc::clone(&workers.open));
            let stopping = stopping.clone();
            let thread = std::thread::Builder::new().name(format!("worker-{number}"));
            workers.threads.push(thread.spawn(move || {
                runtime.block_on(work(shared, hands, open, stopping));
            })?);
            workers.hands.push(hand);
        }
        Ok(workers)
    }

    /// Waits until every connection has ended, or for `drain`.
    async fn join(self, drain: Duration) {
        drop(self.hands);
        let (ended, end) = tokio::sync::oneshot::channel();
        let threads = self.threads;
        // Not the runtime's: it would wait for the threads for as long as they take.
        std::thread::spawn(move || {
            for thread in threads {
                // A panic of a worker was printed when it happened.
                let _ = thread.join();
            }
            // Nobody listens once the time is over.
            let _ = ended.send(());
        });
        if tokio::time::timeout(drain, end).await.is_err() {
            let open = self.open.load(Ordering::Relaxed);
            warn!(open, "connections did not end in time and are cut");
        }
    }
}

/// A peer that says nothing for 25 s, asked three times, is gone.
fn keep_alive() -> socket2::TcpKeepalive {
    let (quiet, between) = (Duration::from_secs(10), Duration::from_secs(5));
    socket2::TcpKeepalive::new().with_time(quiet).with_interval(between).with_retries(3)
}

async fn work(
    shared: Arc<Shared>,
    mut hands: mpsc::Receiver<Hand>,
    open: Arc<AtomicUsize>,
    stopping: watch::Receiver<bool>,
) {
    let worker = shared.worker();
    let router = http::router(Arc::clone(&worker));
    let (routes, reporter) = match grpc::routes() {
        Ok(services) => services,
        Err(fault) => return error!(%fault, "the reflection service cannot be built"),
    };
    tokio::spawn(grpc::report_health(reporter, stopping.clone()));
    let mut connections = tokio::task::JoinSet::new();
    while let Some((port, stream, permit)) = hands.recv().await {
        while connections.try_join_next().is_some() {}
        let Ok(stream) = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) else {
            continue;
        };
        // Without the first, small answers wait for the peer's acknowledgement; the second notices a
        // peer that is gone without a request having to pay for it.
        let _ = stream.set_nodelay(true);
        let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&keep_alive());
        let (stopping, open) = (stopping.clone(), Arc::clone(&open));
        open.fetch_add(1, Ordering::Relaxed);
        let (worker, router, routes) = (Arc::clone(&worker), router.clone(), routes.clone());
        connections.spawn(async move {
            match port {
                Port::Grpc => grpc::serve(stream, worker, routes, stopping).await,
                Port::Http => http::serve(stream, router, stopping).await,
            }
            open.fetch_sub(1, Ordering::Relaxed);
            drop(permit);
        });
    }
    while connections.join_next().await.is_some() {}
}

/// Hands connections to the workers in turn, as many as may be open at a time.
async fn accept(
    listener: TcpListener,
    port: Port,
    hands: Vec<mpsc::Sender<Hand>>,
    connections_max: usize,
    stopping: watch::Receiver<bool>,
) {
    let open = Arc::new(Semaphore::new(connections_max));
    let mut turn = 0;
    while !*stopping.borrow() {
        let Ok(permit) = Arc::clone(&open).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(stream) = stream.into_std() else { continue };
                let hand = &hands[turn % hands.len()];
                turn += 1;
                if hand.send((port, stream, permit)).await.is_err() {
                    return;
                }
            }
            Err(fault) => {
                // Out of descriptors, most likely: those that are open will end.
                warn!(%fault, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The reading of what the journal has of limits, and the first time that it failed.
#[derive(Default)]
struct Reading {
    fault: Option<StoreError>,
}

impl Reading {
    fn rows(&mut self, store: &dyn Store, id: LimitId) -> Vec<Row> {
        store.rows(id).unwrap_or_else(|fault| {
            self.fault.get_or_insert(fault);
            Vec::new()
        })
    }

    /// Whether all could be read: a node that began with less would give back what was spent.
    fn done(self) -> Result<(), StartError> {
        self.fault.map_or(Ok(()), |fault| Err(fault.into()))
    }
}

fn hash_key(store: Option<&dyn Store>) -> Result<HashKey, StartError> {
    let Some(store) = store else { return Ok(HashKey(random()?)) };
    if let Some(bytes) = store.value(KEY)? {
        let cause = || format!("{} bytes, not 16", bytes.len());
        let key =
            <[u8; 16]>::try_from(&bytes[..]).map_err(|_| StartError::Value { what: KEY, cause: cause() })?;
        return Ok(HashKey(key));
    }
    let key = random()?;
    store.commit(&[], &[(KEY, Some(&key))])?;
    Ok(HashKey(key))
}

fn random() -> Result<[u8; 16], StartError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(bytes)
}

fn read_schedule(store: &dyn Store) -> Result<Option<Vec<Scheduled>>, StartError> {
    let fault = |cause: String| StartError::Value { what: SCHEDULE, cause };
    let Some(bytes) = store.value(SCHEDULE)? else { return Ok(None) };
    let kept: Vec<KeptLimit> = serde_json::from_slice(&bytes).map_err(|e| fault(e.to_string()))?;
    let mut schedule = Vec::new();
    for KeptLimit { spec, from_ns, until_ns } in kept {
        let name = spec.name.clone();
        let limit = Limit::new(spec).map_err(|faults| fault(format!("limit {name}: {}", faults[0])))?;
        schedule.push(Scheduled { limit, from_ns, until_ns });
    }
    Ok(Some(schedule))
}

pub(crate) fn schedule_bytes(schedule: &[Scheduled]) -> Result<Vec<u8>, StartError> {
    let kept: Vec<KeptLimit> = schedule
        .iter()
        .map(|s| KeptLimit { spec: s.limit.spec.clone(), from_ns: s.from_ns, until_ns: s.until_ns })
        .collect();
    serde_json::to_vec(&kept).map_err(|e| StartError::Value { what: SCHEDULE, cause: e.to_string() })
}
