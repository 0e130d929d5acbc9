//! A region: a machine whose disk and clocks outlive its process, and the process, which is the real server.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use acequia_mesh::Mesh;
use acequia_server::{
    MeshSurroundings, Service, Surroundings, chance::Chance, config::Config, region::PoolEndpoint,
    regions::Audit, shared::Shared,
};
use acequia_store::{Journal, Store};
use quinn::TokioRuntime;
use redb::StorageBackend;
use tokio_util::sync::CancellationToken;

use super::{
    clock::{Machine, elapsed},
    disk::Disk,
    nap::Nap,
    pools::StoreLink,
    tcp::Port,
    udp::Socket,
    weather::Weather,
};
use crate::{random::Random, trace::Trace};

/// The ports of a node.
pub(crate) const MESH_PORT: u16 = 7000;
pub(crate) const GRPC_PORT: u16 = 7001;
pub(crate) const HTTP_PORT: u16 = 7002;
/// How long a durable write takes, in microseconds.
const DISK_US: (u64, u64) = (500, 3_000);

/// One region.
#[derive(Clone, Debug)]
pub struct Region {
    pub(crate) name: &'static str,
    pub(crate) disk: Disk,
    pub(crate) machine: Machine,
    pub(crate) nap: Nap,
    pub(crate) weather: Weather,
    /// Its connection to the store that it shares with others, if it does.
    pub(crate) store_link: Option<StoreLink>,
    config: Arc<str>,
    seed: u64,
    trace: Trace,
    /// The number of processes so far.
    begun: Arc<AtomicU64>,
    process: Arc<Mutex<Option<Process>>>,
}

/// The running process.
#[derive(Debug)]
struct Process {
    shared: Weak<Shared>,
    stop: CancellationToken,
}

impl Region {
    pub(crate) fn new(name: &'static str, config: String, seed: u64, trace: Trace) -> Self {
        Self {
            name,
            disk: Disk::new(),
            machine: Machine::new(Random::of(seed, &format!("{name} machine"))),
            nap: Nap::default(),
            weather: Weather::new(Random::of(seed, &format!("{name} weather"))),
            store_link: None,
            config: config.into(),
            seed,
            trace,
            begun: Arc::default(),
            process: Arc::default(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The process, if it runs and has begun to serve. Do not keep it beyond the current step.
    pub fn process(&self) -> Option<Arc<Shared>> {
        self.current().as_ref()?.shared.upgrade()
    }

    /// Whether its process sleeps. A sleeping process reports the state in which it fell asleep.
    pub fn is_asleep(&self) -> bool {
        self.nap.is_on()
    }

    /// The number of processes that have begun.
    pub fn processes(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// The number of durable writes of its disk.
    /// [`Fault::CrashAtWrite`](crate::schedule::Fault::CrashAtWrite) crashes at one of them.
    pub fn durable_writes(&self) -> u64 {
        self.disk.durable_writes()
    }

    /// Asks the process to stop in an orderly way; a sleeping process wakes for it.
    pub(crate) fn stop(&self) {
        self.wake();
        if let Some(process) = &*self.current() {
            process.stop.cancel();
        }
    }

    /// The process sleeps from now on.
    pub(crate) fn sleep(&self) {
        if self.process().is_some() {
            self.machine.sleep();
            self.nap.begin();
        }
    }

    /// Wakes the process, if it sleeps.
    pub(crate) fn wake(&self) {
        self.machine.wake();
        self.nap.end();
    }

    /// Drops the process from view.
    pub(crate) fn forget(&self) {
        self.wake();
        *self.current() = None;
    }

    /// Runs a process from start to end, for turmoil.
    pub(crate) async fn run(self) -> turmoil::Result {
        let ended = match self.serve().await {
            Ok(()) => "stopped".to_owned(),
            Err(fault) => format!("cannot run: {fault}"),
        };
        self.trace.tell(self.name, elapsed(Duration::ZERO), ended);
        self.forget();
        Ok(())
    }

    async fn serve(&self) -> Result<(), Box<dyn std::error::Error>> {
        let begun = self.begun.fetch_add(1, Ordering::Relaxed);
        let mut random = Random::of(self.seed, &format!("{} {begun}", self.name));
        self.trace.tell(self.name, elapsed(Duration::ZERO), format!("begins, process {begun}"));

        let disk = self.disk.handle();
        let bytes = disk.clone();
        let journal = Journal::open_on(move || Ok(Box::new(bytes.clone()) as Box<dyn StorageBackend>))?;
        let store: Arc<dyn Store> = Arc::new(journal);
        let config = Config::parse(self.name, &self.config).map_err(|faults| faults.to_string())?;
        let (grpc, http) = (self.port(GRPC_PORT).await?, self.port(HTTP_PORT).await?);
        let (trace, name, weather) = (self.trace.clone(), self.name, self.weather.clone());
        let socket = Socket::bind(MESH_PORT, self.nap.clone(), move |to: SocketAddr, bytes: &[u8]| {
            trace.packet(name, elapsed(Duration::ZERO), to, bytes);
            !weather.loses(to)
        });
        let socket = socket.await?;

        let clock = Arc::new(self.machine.start()?);
        let chance = Chance::Seeded(random.bytes());
        let service = match &self.store_link {
            Some(link) => {
                Service::start_among(config, Some(store), clock, chance, PoolEndpoint::to(link.clone()))
                    .await?
            }
            None => Service::start_with(config, Some(store), clock, chance)?,
        };
        let stop = CancellationToken::new();
        *self.current() = Some(Process { shared: Arc::downgrade(service.shared()), stop: stop.clone() });
        let mesh = MeshSurroundings {
            audit: Audit::open_on(Box::new(disk))?,
            connect: Box::new(move |config| Mesh::start_with(config, socket, Arc::new(TokioRuntime))),
        };
        let disk_latency = Box::new(move || {
            let (least, most) = DISK_US;
            Duration::from_micros(random.between(least, most))
        });
        service.serve_in(Surroundings { grpc, http, mesh, disk_latency }, stop).await?;
        Ok(())
    }

    async fn port(&self, port: u16) -> std::io::Result<Port> {
        Port::bind(port, self.nap.clone()).await
    }

    fn current(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
