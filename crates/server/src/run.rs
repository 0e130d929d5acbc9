//! A node on this machine: its threads, its sockets, its signals, the file of its config.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use acequia_mesh::Mesh;
use acequia_store::private;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    config::{Address, Config, PortConfig},
    connections::Connections,
    counting::Counting,
    gate::{Gate, warn_of_open_ports},
    port::Port,
    ratelimit::{Difference, Offer, Xds, keep},
    region,
    regions::{Audit, Connected, Joining, admin},
    serve::{Hand, Rounds, accept, work},
    settings::SETTINGS,
    shared::Shared,
    socket::{Accepted, Socket},
    sources::{Sourced, Sources, UnreadSource},
};
pub use crate::{
    service::{Reloaded, Service, StartError},
    sources::Start,
};

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Envoy's RLS and acequia.v1.
    pub grpc: Address,
    /// Check, metrics and health.
    pub http: Address,
    /// Operators.
    pub admin: Option<Address>,
    /// Other regions (UDP).
    pub mesh: Option<SocketAddr>,
}

impl std::fmt::Display for Addresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "grpc={} http={}", self.grpc, self.http)?;
        if let Some(admin) = &self.admin {
            write!(f, " admin={admin}")?;
        }
        if let Some(mesh) = self.mesh {
            write!(f, " mesh={mesh}")?;
        }
        Ok(())
    }
}

/// The thread that shares limits with other regions, or with the other nodes of the region.
struct Sharing {
    part: CancellationToken,
    thread: JoinHandle<()>,
}

/// A socket for callers, and the gate that says who may come.
struct WayIn {
    socket: Socket,
    gate: Arc<Gate>,
}

/// The way in for operators, and who answers them.
struct Operators {
    way_in: WayIn,
    door: Arc<admin::Door>,
}

/// A place among regions that is ready to be taken, with a runtime of its own.
struct MeshPlace {
    joining: Joining,
    runtime: Runtime,
}

/// Where the config of a running node comes from.
struct Origins {
    sources: Sources,
    xds: Option<Xds>,
}

/// Everything that a node needs to run and may fail to get.
struct Opened {
    signals: Signals,
    grpc: WayIn,
    http: Vec<WayIn>,
    operators: Option<Operators>,
    mesh: Option<MeshPlace>,
    workers: Workers,
    addresses: Addresses,
    stop: CancellationToken,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// Runs a node until it is told to stop. `ready` is called with the node's addresses once it listens to all of
/// them.
///
/// # Errors
/// The fault that keeps the node from starting.
pub fn run(start: &Start, ready: impl FnOnce(Addresses)) -> Result<(), StartError> {
    let mut sources = Sources::open(start)?;
    let mut xds = start.xds.clone().map(Xds::start).transpose()?;
    if let Some(xds) = &mut xds {
        let has_limits = sources.has_kept_limits() && sources.config().is_ok();
        if !has_limits {
            sources.replace_offered(Vec::new());
        }
        if !has_limits && !start.xds.as_ref().is_some_and(|config| config.starts_without) {
            wait_for_limits(xds, &mut sources)?;
        }
    }
    let config = Config { incarnation: start.incarnation, ..sourced(&sources)? };
    info!(%config, "starting");
    warn_of_open_secrets(&config);
    let mut service = Service::start(config)?;
    service.shared.are_imported.store(sources.are_imported(), Ordering::Relaxed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some(counting) = service.config.counting.clone() {
        let counting = Counting::open(counting)?;
        runtime.block_on(counting.connected());
        // Nobody else sets it.
        let _ = service.shared.counting.set(counting);
    }
    // A start that fails leaves the journal as the last stop left it.
    let mut opened = Opened::open(&mut service, &runtime)?;
    service.begin()?;
    let among_regions = opened.mesh.take().map(|place| Sharing::start(&service, place)).transpose()?;
    let sharing = [among_regions, Sharing::of_store(&mut service)?];
    runtime.block_on(serve(service, opened, sharing, Origins { sources, xds }, ready));
    Ok(())
}

impl Sharing {
    /// Takes this node's place among the regions: from now on it shares its limits with them. This has a
    /// thread of its own, so that callers and peers do not wait for each other.
    fn start(service: &Service, place: MeshPlace) -> Result<Self, StartError> {
        let MeshPlace { joining, runtime } = place;
        let regions = Arc::clone(joining.regions());
        let part = CancellationToken::new();
        let shared = joining.start(part.clone());
        let thread = std::thread::Builder::new().name("regions".to_owned());
        let thread = thread.spawn(move || runtime.block_on(shared))?;
        service.take_place(regions);
        Ok(Self { part, thread })
    }

    /// Takes this node's place among the nodes of its region, if they share a store.
    fn of_store(service: &mut Service) -> Result<Option<Self>, StartError> {
        let runtime = region::runtime()?;
        let part = CancellationToken::new();
        let carried = {
            let _entered = runtime.enter();
            service.share_store(part.clone())?
        };
        let Some(carried) = carried else { return Ok(None) };
        let thread = std::thread::Builder::new().name("store".to_owned());
        let thread = thread.spawn(move || runtime.block_on(carried))?;
        Ok(Some(Self { part, thread }))
    }
}

impl Opened {
    /// Must not be called within the runtime, since the mesh has a runtime of its own.
    fn open(service: &mut Service, runtime: &Runtime) -> Result<Self, StartError> {
        let config = &service.config;
        let (signals, grpc, http, admin) = runtime.block_on(async {
            let signals = Signals::hear()?;
            let grpc = listen(Port::Grpc, config.listen.grpc.clone())?;
            let http = std::iter::once(&config.listen.http).chain(&config.listen.further_http);
            let http: Result<Vec<WayIn>, _> = http.map(|port| listen(Port::Http, port.clone())).collect();
            let http = http?;
            let admin = config.port(Port::Admin).map(|admin| listen(Port::Admin, admin)).transpose()?;
            Ok::<_, StartError>((signals, grpc, http, admin))
        })?;
        // This runtime must not be made within another one: it could not be dropped there.
        let mesh_runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let connect = |address, config| {
            let fault = |cause| StartError::Listen { address: Address::Tcp(address), cause };
            let socket = UdpSocket::bind(address).map_err(fault)?;
            let _entered = mesh_runtime.enter();
            let (mesh, events) = Mesh::start(config, socket)?;
            Ok(Connected { mesh, events })
        };
        let mesh = service.prepare(Audit::open, connect)?;
        let mesh = mesh.map(|joining| MeshPlace { joining, runtime: mesh_runtime });
        let addresses = Addresses {
            grpc: grpc.socket.address()?,
            http: http[0].socket.address()?,
            admin: admin.as_ref().map(|admin| admin.socket.address()).transpose()?,
            mesh: mesh.as_ref().map(|place| place.joining.regions().mesh_address()),
        };
        let stop = CancellationToken::new();
        let ways_in = std::iter::once(&grpc).chain(&http).chain(&admin);
        service.gates = ways_in.map(|way_in| Arc::clone(&way_in.gate)).collect();
        let operators =
            admin.map(|way_in| Operators { way_in, door: Arc::new(admin::Door::new(&service.shared)) });
        let workers = Workers::start(service.config.workers(), &service.shared, &stop)?;
        Ok(Self { signals, grpc, http, operators, mesh, workers, addresses, stop })
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
    sharing: [Option<Sharing>; 2],
    origins: Origins,
    ready: impl FnOnce(Addresses),
) {
    let Origins { mut sources, mut xds } = origins;
    let Opened { mut signals, grpc, http, operators, workers, addresses, stop, .. } = opened;
    let max_age = service.config.max_age;
    let accept = |WayIn { socket, gate }, hands, max| {
        let connections = Connections::new(gate, max, max_age, &service.shared.connections);
        tokio::spawn(accept(socket, hands, connections, stop.clone()))
    };
    let max = connections_max(&service.config);
    let for_callers = std::iter::once(grpc).chain(http);
    let mut accepting: Vec<_> =
        for_callers.map(|way_in| accept(way_in, workers.hands.clone(), max)).collect();
    let operators = operators.map(|Operators { way_in, door }| {
        let (hand, hands) = mpsc::channel(SETTINGS.sockets.handover_max);
        accepting.push(accept(way_in, vec![hand], SETTINGS.admin.connections_max));
        tokio::spawn(door.open(hands, stop.clone()))
    });
    let writing = service.shared.writer.clone().map(|writer| std::thread::spawn(move || writer.run()));
    warn_of_open_ports(&service.gates);
    ready(addresses.clone());
    info!(%addresses, workers = workers.threads.len(), "listening");

    let mut rounds = Rounds::begin();
    loop {
        let asked = tokio::select! {
            biased;
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.hangup.recv() => true,
            Some(offer) = offered(&mut xds) => {
                (service, sources) = take_offer(service, sources, offer).await;
                continue;
            }
            () = rounds.next(&service.shared) => false,
        };
        (service, sources) = look_again(service, sources, asked).await;
        service.renew_certificates();
        service.gates.iter().for_each(|gate| gate.look_again());
    }

    info!(for_at_most = ?service.config.drain, "draining");
    let drained_by = Instant::now() + service.config.drain;
    service.shared.drain();
    if let Some(webhooks) = service.shared.webhooks.get() {
        webhooks.drain();
    }
    stop.cancel();
    workers.join(service.config.drain).await;
    for task in accepting {
        task.abort();
    }
    if let Some(operators) = operators {
        operators.abort();
    }
    for Sharing { part, thread } in sharing.into_iter().flatten() {
        // The node shares its limits until no caller asks any more.
        part.cancel();
        // A panic of the thread was printed when it happened.
        let _ = thread.join();
    }
    if let (Some(writer), Some(thread)) = (&service.shared.writer, writing) {
        writer.stop();
        // A panic of the writer was printed when it happened.
        let _ = thread.join();
    }
    service.close();
    // This comes after the journal is written: an impatient operator may kill the process now.
    service.shared.tell_warnings();
    if let Some(webhooks) = service.shared.webhooks.get() {
        webhooks.finish(drained_by).await;
    }
    info!("stopped");
}

/// Reads the config again if it has changed, or if an operator asked. A config that cannot be put in force
/// changes nothing.
async fn look_again(mut service: Service, mut sources: Sources, asked: bool) -> (Service, Sources) {
    match sources.read_again(asked) {
        Ok(changed) if asked || changed => {}
        Ok(_) => return (service, sources),
        // An editor may be replacing the file now.
        Err(unread) if !asked && unread.may_pass => return (service, sources),
        Err(UnreadSource { path, cause, .. }) => {
            service.shared.reloads.refused.fetch_add(1, Ordering::Relaxed);
            error!(%cause, %path, "config not read again: the old one stays");
            return (service, sources);
        }
    }
    // The reload has a thread apart from the one that accepts connections, since many limits take seconds.
    let reloaded = tokio::task::spawn_blocking(move || {
        // A fault was told where it was found.
        let _ = reload(&mut service, &sources);
        (service, sources)
    });
    reloaded.await.unwrap_or_else(|fault| std::panic::resume_unwind(fault.into_panic()))
}

/// The next limits that come by xDS; never, if none do.
async fn offered(xds: &mut Option<Xds>) -> Option<Offer> {
    match xds {
        Some(xds) => xds.next().await,
        None => std::future::pending().await,
    }
}

/// Waits until the limits that come by xDS can be read.
fn wait_for_limits(xds: &mut Xds, sources: &mut Sources) -> Result<(), StartError> {
    info!("waiting for limits by xDS");
    while let Some(Offer { domains, bytes, said }) = xds.wait() {
        let before = sources.replace_offered(domains);
        let read = sourced(sources);
        let is_sound = read.is_ok();
        match &read {
            Ok(config) => keep_limits(config, &bytes),
            Err(_) => drop(sources.replace_offered(before)),
        }
        // Nobody listens if the stream has ended; the server offers the limits again.
        let _ = said.send(read.map(|_| ()).map_err(|fault| fault.to_string()));
        if is_sound {
            return Ok(());
        }
    }
    Err(StartError::Xds)
}

/// Keeps limits that came by xDS, if the node has a disk.
fn keep_limits(config: &Config, bytes: &[u8]) {
    if let Some(folder) = &config.data {
        keep(folder, bytes);
    }
}

/// Puts limits in force that came by xDS. If that cannot be done, the last good ones stay.
async fn take_offer(mut service: Service, mut sources: Sources, offer: Offer) -> (Service, Sources) {
    let taken = tokio::task::spawn_blocking(move || {
        let Offer { domains, bytes, said } = offer;
        let before = sources.replace_offered(domains);
        let done = reload(&mut service, &sources);
        match done {
            Ok(()) => keep_limits(&service.config, &bytes),
            Err(_) => drop(sources.replace_offered(before)),
        }
        // Nobody listens if the stream has ended; the server offers the limits again.
        let _ = said.send(done);
        (service, sources)
    });
    taken.await.unwrap_or_else(|fault| std::panic::resume_unwind(fault.into_panic()))
}

/// Puts the config in force that the sources make together.
fn reload(service: &mut Service, sources: &Sources) -> Result<(), String> {
    let done = sourced(sources).and_then(|config| service.reload(config));
    let reloads = &service.shared.reloads;
    match done {
        Ok(Reloaded::Applied) => {
            reloads.applied.fetch_add(1, Ordering::Relaxed);
            info!("config read again");
            Ok(())
        }
        Ok(Reloaded::Unchanged) => {
            reloads.unchanged.fetch_add(1, Ordering::Relaxed);
            info!("the config was read, and changes nothing here");
            Ok(())
        }
        Err(fault) => {
            reloads.refused.fetch_add(1, Ordering::Relaxed);
            error!(%fault, "config refused: the old one stays");
            Err(fault.to_string())
        }
    }
}

/// The config of some files. What has another effect here than with the service that the files were written for
/// is told.
fn sourced(sources: &Sources) -> Result<Config, StartError> {
    let Sourced { config, differences } = sources.config()?;
    for Difference { limit, what } in differences {
        warn!(%limit, "differs from envoyproxy/ratelimit: {what}");
    }
    Ok(config)
}

/// How many connections each of the two ports for callers may have: the config's number, or as many as file
/// descriptors allow. The process raises its limit of descriptors to the maximum.
fn connections_max(config: &Config) -> usize {
    let wanted = config.connections_max;
    let limits = getrlimit(Resource::Nofile);
    // If the system refuses, the limit stays as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
    let Some(found) = getrlimit(Resource::Nofile).current else { return wanted };
    let found = usize::try_from(found).unwrap_or(usize::MAX);
    let own = SETTINGS.sockets.descriptors_own
        + SETTINGS.sockets.descriptors_of_worker * config.workers()
        + SETTINGS.admin.connections_max;
    let max = wanted.min(found.saturating_sub(own) / 2).max(1);
    if max < wanted {
        let needed = 2 * wanted + own;
        warn!(
            descriptors = found,
            needed,
            max,
            "too few descriptors: each port takes fewer connections than the config says. Raise LimitNOFILE, or lower `connections`"
        );
    }
    max
}

/// Warns of files with secrets that every user of this machine may read.
fn warn_of_open_secrets(config: &Config) {
    for (field, path) in config.secret_files().into_iter().filter(|(_, path)| private::is_open_to_all(path)) {
        let path = path.display();
        warn!(%field, %path, "every user of this machine may read this secret: chmod 600, or 640 with a group of its own");
    }
}

/// Listens for the callers that the config lets in.
fn listen(port: Port, config: PortConfig) -> Result<WayIn, StartError> {
    let PortConfig { address, tls, allow } = config;
    let gate = Gate::new(port, &address, tls, allow)?;
    let socket = Socket::listen(&address).map_err(|cause| StartError::Listen { address, cause })?;
    Ok(WayIn { socket, gate })
}

/// One thread and one runtime for each core. A runtime of its own batches its writes, whereas tokio's shared
/// runtime flushes after nearly every response.
struct Workers {
    hands: Vec<mpsc::Sender<Hand<Accepted>>>,
    open: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    fn start(count: usize, shared: &Arc<Shared>, stopping: &CancellationToken) -> Result<Self, StartError> {
        let mut workers = Self { hands: Vec::new(), open: Arc::default(), threads: Vec::new() };
        for number in 0..count {
            let (hand, hands) = mpsc::channel(SETTINGS.sockets.handover_max);
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

    /// Waits until every connection has ended, for at most `drain`.
    async fn join(self, drain: Duration) {
        drop(self.hands);
        let (ended, end) = tokio::sync::oneshot::channel();
        let threads = self.threads;
        // The thread is not one of the runtime's: the runtime would wait for the workers without a bound.
        std::thread::spawn(move || {
            for thread in threads {
                // A panic of a worker was printed when it happened.
                let _ = thread.join();
            }
            // The receiver is gone once the time is over.
            let _ = ended.send(());
        });
        if tokio::time::timeout(drain, end).await.is_err() {
            let open = self.open.load(Ordering::Relaxed);
            warn!(open, "connections did not end in time and are cut");
        }
    }
}
