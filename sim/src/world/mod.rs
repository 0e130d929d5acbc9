//! Regions, callers, links, disks and clocks in one thread, and the faults that can be applied to them.
//!
//! Each region is a turmoil host that runs the real server. Each has a caller, another host, that asks it
//! over gRPC. In some worlds the hosts are nodes of one region instead, which share a store; they have the
//! same names. [`World::step`] lets time pass. Between two steps, [`World::apply`] applies faults, and
//! everything can be inspected.

mod caller;
mod clock;
mod disk;
mod keys;
mod nap;
mod pools;
mod region;
mod tcp;
mod udp;
mod weather;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use acequia_limits::Limit;
use acequia_mesh::Identity;
use acequia_rights::{VersionId, node_named};
use acequia_server::{
    config::{ClockConfig, Config},
    regions::{Order, Ordered},
};

pub use self::{
    caller::{Answer, DOMAIN, Said},
    clock::EPOCH_S,
    region::Region,
};
use self::{
    caller::{Answers, Caller},
    disk::{Copy, Mood, Unsynced},
    pools::{Server, WayThere},
    region::{GRPC_PORT, HTTP_PORT, MESH_PORT, identity},
};
use crate::{
    NAMES,
    demand::Demand,
    random::Random,
    schedule::{Command, Fault, Leftover, Place},
    trace::{Sent, Trace},
};

/// The length of each step: everything happens at multiples of it.
pub const STEP: Duration = Duration::from_millis(1);
/// Delay between a caller and its node.
const NEAR: Duration = Duration::from_millis(1);
/// Packets and segments that may wait for a host to take them.
const QUEUE: usize = 4_096;

/// The settings of a world.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Decides everything that the setup leaves open.
    pub seed: u64,
    /// The number of regions, which are the first ones of [`NAMES`]. The first is the authority.
    pub regions: usize,
    /// The limits, in the config's syntax: a list below `limits:`, in the domain [`DOMAIN`].
    pub limits: String,
    /// The promise about clocks, in the config's syntax, such as `{ error: 10ms }`; the default if empty.
    pub clock: String,
    /// How long packets take between regions, in milliseconds: the least and the most.
    pub latency_ms: (u64, u64),
    /// What every caller asks.
    pub demand: Demand,
    /// Where all are nodes of one region that share a store: the part of each limit that nodes keep out of
    /// the pools as guards, in percent. `None` where they are regions.
    pub guard_percent: Option<u8>,
    /// How many regions these nodes belong to, in their order. Each region has its own store, and several
    /// share the limits by a catalogue.
    pub stores: usize,
}

/// A fault that was applied.
#[derive(Clone, Debug)]
pub struct Done {
    /// True time since the start.
    pub at: Duration,
    /// The fault.
    pub fault: Fault,
    /// For an order that was carried out: the version before, and the version that it made.
    pub made: Option<(VersionId, VersionId)>,
}

/// Why there is no world, or why it has ended.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The world cannot be made.
    #[error("the world cannot be made: {0}")]
    Setup(String),
    /// A host ended the simulation.
    #[error("a host ended the simulation: {0}")]
    Host(String),
}

/// A simulated world.
pub struct World {
    sim: turmoil::Sim<'static>,
    regions: Vec<Region>,
    /// The configs of the regions.
    configs: Vec<Config>,
    limits: Vec<Limit>,
    clock: ClockConfig,
    callers: Vec<String>,
    answers: Answers,
    copies: BTreeMap<Place, Copy>,
    /// Nodes that are stopping, and whether each is to start again afterwards.
    stopping: BTreeMap<Place, bool>,
    /// The stores that nodes share, if they do: one a region.
    stores: Vec<Server>,
    done: Vec<Done>,
    is_hushed: Arc<AtomicBool>,
    random: Random,
    trace: Trace,
    /// The folder of the nodes' certificates.
    _keys: tempfile::TempDir,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("elapsed", &self.elapsed()).finish_non_exhaustive()
    }
}

impl World {
    /// A world in which nothing has happened.
    ///
    /// # Errors
    /// The setup makes no sense.
    pub fn new(setup: &Setup, trace: Trace) -> Result<Self, WorldError> {
        hear_panics();
        let names = NAMES.get(..setup.regions).filter(|names| !names.is_empty());
        let names =
            names.ok_or_else(|| WorldError::Setup(format!("1 to {} regions, please", NAMES.len())))?;
        if setup.stores > names.len().min(REGIONS_OF_NODES.len()) {
            return Err(WorldError::Setup(format!("1 to {} stores, please", REGIONS_OF_NODES.len())));
        }
        let unmade = |fault: &dyn std::fmt::Display| WorldError::Setup(fault.to_string());
        let folder = tempfile::tempdir().map_err(|fault| unmade(&fault))?;
        let identities: Vec<_> = (0..names.len())
            .map(|place| {
                setup
                    .region_of(place)
                    .map_or_else(|| identity(names[place]), |region| Identity::new(region, names[place]))
            })
            .collect();
        keys::write(folder.path(), &identities).map_err(|fault| unmade(&fault))?;

        let (least, most) = setup.latency_ms;
        let mut sim = turmoil::Builder::new()
            .simulation_duration(Duration::MAX)
            .tick_duration(STEP)
            .epoch(std::time::UNIX_EPOCH + Duration::from_secs(EPOCH_S))
            .rng_seed(Random::of(setup.seed, "network").next())
            .min_message_latency(Duration::from_millis(least))
            .max_message_latency(Duration::from_millis(most))
            .udp_capacity(QUEUE)
            .tcp_capacity(QUEUE)
            .build();
        let addresses: Vec<_> = names.iter().map(|name| sim.lookup(*name)).collect();
        let peers: Vec<_> = addresses.iter().map(|ip| SocketAddr::new(*ip, MESH_PORT)).collect();
        let (mut regions, mut configs) = (Vec::new(), Vec::new());
        let (mut limits, mut clock) = (Vec::new(), ClockConfig::default());
        let count = setup.guard_percent.map_or(0, |_| setup.stores.max(1));
        let names_of_stores =
            (0..count).map(|store| if store == 0 { "store".to_owned() } else { format!("store {store}") });
        let stores: Vec<Server> =
            names_of_stores.map(|name| Server::new(Random::of(setup.seed, &name))).collect();
        for (place, name) in names.iter().enumerate() {
            let config = match setup.guard_percent {
                Some(percent) => config_of_node(place, (names, &peers), setup, percent, folder.path()),
                None => config(name, &peers, setup, folder.path()),
            };
            let parsed = Config::parse(name, &config);
            let parsed = parsed.map_err(|faults| WorldError::Setup(format!("{faults}\n{config}")))?;
            let of_nodes = parsed.store.as_ref().map_or_else(ClockConfig::default, |store| store.clock);
            clock = parsed.regions.as_ref().map_or(of_nodes, |regions| regions.clock);
            limits.clone_from(&parsed.live.limits);
            configs.push(parsed);
            let mut region = Region::new(name, config, setup.seed, trace.clone());
            let server = stores.get(setup.store_of(place)).cloned();
            region.way = server.map(|server| WayThere { place, server, nap: region.nap.clone() });
            let running = region.clone();
            sim.host(*name, move || running.clone().run());
            regions.push(region);
        }
        let (answers, is_hushed) = (Answers::default(), Arc::new(AtomicBool::new(false)));
        let mut callers = Vec::new();
        for (place, name) in names.iter().enumerate() {
            let host = format!("{name}-caller");
            let caller = Caller {
                place,
                name: host.clone(),
                node: SocketAddr::new(addresses[place], GRPC_PORT),
                demand: setup.demand.clone(),
                seed: setup.seed,
                answers: answers.clone(),
                is_hushed: Arc::clone(&is_hushed),
                trace: trace.clone(),
            };
            sim.host(host.as_str(), move || caller.clone().call());
            sim.set_link_latency(host.as_str(), *name, NEAR);
            callers.push(host);
        }
        let random = Random::of(setup.seed, "faults");
        let (copies, stopping) = (BTreeMap::new(), BTreeMap::new());
        let (done, _keys) = (Vec::new(), folder);
        Ok(Self {
            sim,
            regions,
            configs,
            limits,
            clock,
            callers,
            answers,
            copies,
            stopping,
            stores,
            done,
            is_hushed,
            random,
            trace,
            _keys,
        })
    }

    /// True time since the start.
    pub fn elapsed(&self) -> Duration {
        self.sim.elapsed()
    }

    /// The regions, in the order of [`NAMES`].
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The limits in the configs of all regions.
    pub fn limits(&self) -> Vec<Limit> {
        self.limits.clone()
    }

    /// The promise about clocks in the configs of all regions.
    pub fn clock(&self) -> ClockConfig {
        self.clock
    }

    /// The answers that callers got since the last call, in order.
    pub fn take_answers(&self) -> Vec<Answer> {
        self.answers.take()
    }

    /// The faults that were applied, in order.
    pub fn done(&self) -> &[Done] {
        &self.done
    }

    /// The number of calls that nodes of one region made to their store.
    pub fn store_calls(&self) -> u64 {
        self.stores.iter().map(Server::calls).sum()
    }

    /// The packets that regions sent each other so far, and their bytes.
    pub fn traffic(&self) -> (u64, u64) {
        let (_, packets, bytes) = self.trace.counts();
        (packets, bytes)
    }

    /// The traffic from one region to another so far.
    pub fn sent(&self, from: Place, to: Place) -> Sent {
        self.trace.sent(NAMES[from], self.sim.lookup(NAMES[to]))
    }

    /// From now on callers ask no more questions.
    pub fn hush(&self) {
        self.is_hushed.store(true, Ordering::Relaxed);
    }

    /// Lets [`STEP`] of time pass for every host.
    ///
    /// # Errors
    /// A host ended the simulation.
    pub fn step(&mut self) -> Result<(), WorldError> {
        self.sim.step().map_err(|fault| WorldError::Host(fault.to_string()))?;
        for panic in PANICS.with_borrow_mut(std::mem::take) {
            self.trace.finding(format!("a panic: {panic}"));
        }
        let elapsed = self.elapsed();
        for place in 0..self.regions.len() {
            self.regions[place].machine.pass(elapsed);
            if self.regions[place].disk.is_cut() {
                self.crash(place, Unsynced::Torn);
            }
        }
        for (place, name) in NAMES.iter().enumerate() {
            let stops = self.stopping.contains_key(&place);
            if stops && !self.sim.is_host_running(*name) && self.stopping.remove(&place) == Some(true) {
                self.start(place);
            }
        }
        Ok(())
    }

    /// Applies a fault.
    pub fn apply(&mut self, fault: &Fault) {
        self.trace.tell("world", self.elapsed(), fault.to_string());
        let made = match fault {
            Fault::Order(at, command) => self.order(*at, command),
            _ => None,
        };
        self.done.push(Done { at: self.elapsed(), fault: fault.clone(), made });
        match fault {
            Fault::Cut(a, b) => self.sim.partition(NAMES[*a], NAMES[*b]),
            Fault::CutOneWay(a, b) => self.sim.partition_oneway(NAMES[*a], NAMES[*b]),
            Fault::Mend(a, b) => {
                self.sim.repair(NAMES[*a], NAMES[*b]);
                self.lose(*a, *b, 0);
            }
            Fault::Hold(a, b) => self.sim.hold(NAMES[*a], NAMES[*b]),
            Fault::Release(a, b) => self.sim.release(NAMES[*a], NAMES[*b]),
            Fault::Slow(a, b, ms) => {
                self.sim.set_link_latency(NAMES[*a], NAMES[*b], Duration::from_millis(*ms));
            }
            Fault::Lose(a, b, percent) => self.lose(*a, *b, *percent),
            Fault::Sleep(at) => self.regions[*at].sleep(),
            Fault::Wake(at) => self.regions[*at].wake(),
            Fault::Crash(at, leftover) => {
                let unsynced = match leftover {
                    Leftover::Lost => Unsynced::Lost,
                    Leftover::Written => Unsynced::Written,
                    Leftover::Torn => Unsynced::Torn,
                };
                self.crash(*at, unsynced);
            }
            Fault::Stop(at) => {
                if self.sim.is_host_running(NAMES[*at]) {
                    self.regions[*at].stop();
                    self.stopping.entry(*at).or_insert(false);
                }
            }
            Fault::Start(at) => self.start(*at),
            Fault::CrashAtWrite(at, after) => self.regions[*at].disk.set_mood(Mood::CutAfter(*after)),
            Fault::LoseDisk(at) => self.replace_disk(*at, None),
            Fault::CopyDisk(at) => drop(self.copies.insert(*at, self.regions[*at].disk.copy())),
            Fault::RestoreDisk(at) => {
                if let Some(copy) = self.copies.get(at).cloned() {
                    self.replace_disk(*at, Some(copy));
                }
            }
            Fault::FillDisk(at) => self.regions[*at].disk.set_mood(Mood::Full),
            Fault::ClearDisk(at) => self.regions[*at].disk.set_mood(Mood::Sound),
            Fault::Wall(at, ms) => self.regions[*at].machine.step(*ms),
            Fault::Drift(at, ppm) => self.regions[*at].machine.drift(*ppm),
            Fault::Smear(at, ppm) => self.regions[*at].machine.smear(*ppm),
            Fault::Counter(at, ms) => self.regions[*at].machine.jump(*ms),
            Fault::Order(..) => {}
            Fault::LeaveOut(at, of, seconds) => self.leave_out(*at, *of, *seconds),
            Fault::Store(fault) => {
                // The other regions keep their stores.
                if let Some(store) = self.stores.first() {
                    store.apply(*fault);
                }
            }
            Fault::Heal => self.heal(),
        }
    }

    fn lose(&self, a: Place, b: Place, percent: u32) {
        for (from, to) in [(a, b), (b, a)] {
            self.regions[from].weather.lose(self.sim.lookup(NAMES[to]), percent);
        }
    }

    fn crash(&mut self, at: Place, unsynced: Unsynced) {
        // The disk is cut first: a process that is dropped must not write to it.
        self.regions[at].disk.cut(unsynced, &mut self.random);
        self.regions[at].forget();
        self.stopping.remove(&at);
        self.trace.tell(NAMES[at], self.sim.elapsed(), "lost its power");
        // When turmoil drops a host, it notifies the callers; a machine without power does not.
        self.sim.partition(NAMES[at], self.callers[at].as_str());
        self.sim.crash(NAMES[at]);
        self.sim.repair(NAMES[at], self.callers[at].as_str());
    }

    fn start(&mut self, at: Place) {
        if !self.sim.is_host_running(NAMES[at]) {
            self.stopping.remove(&at);
            self.sim.bounce(NAMES[at]);
        } else if let Some(begins_again) = self.stopping.get_mut(&at) {
            *begins_again = true;
        }
    }

    fn replace_disk(&mut self, at: Place, copy: Option<Copy>) {
        if !self.sim.is_host_running(NAMES[at]) {
            self.regions[at].disk.replace(copy);
        }
    }

    fn heal(&mut self) {
        let names = &NAMES[..self.regions.len()];
        for (place, name) in names.iter().enumerate() {
            // Held packets have not been lost.
            names[..place].iter().for_each(|other| self.sim.release(*name, *other));
        }
        self.stores.iter().for_each(Server::mend);
        for at in 0..self.regions.len() {
            self.regions[at].disk.set_mood(Mood::Sound);
            self.regions[at].weather.clear();
            self.regions[at].wake();
            self.start(at);
        }
    }

    /// Excludes a node on an operator's word, which is given only if it is true.
    fn leave_out(&mut self, at: Place, of: Place, seconds: u64) {
        let what = if self.sim.is_host_running(NAMES[of]) {
            format!("not ordered: {} is not gone", NAMES[of])
        } else {
            let said = self.regions[at].process().map(|process| {
                let for_ns = seconds.saturating_mul(1_000_000_000);
                process.node.leave_out(node_named(NAMES[of]), for_ns, process.clock.now())
            });
            match said {
                Some(Ok(())) => format!("{} is left out", NAMES[of]),
                Some(Err(fault)) => format!("refused: {fault}"),
                None => "nobody there to take an order".to_owned(),
            }
        };
        self.trace.tell(NAMES[at], self.elapsed(), what);
    }

    /// Carries out an order. Returns the version before, and the version that the order made.
    fn order(&mut self, at: Place, command: &Command) -> Option<(VersionId, VersionId)> {
        let region = |at: &Place| NAMES[*at].to_owned();
        let order = match command {
            Command::Budget { limit, numbers } => Order::Budget {
                domain: DOMAIN.to_owned(),
                name: limit.clone(),
                key: BTreeMap::new(),
                numbers: numbers.iter().cloned().collect(),
                end: None,
            },
            Command::Weight(of, weight) => Order::Weight { region: region(of), weight: *weight },
            Command::Evict(of) | Command::EvictAlive(of) => {
                Order::Evict { region: region(of), is_fenced: true }
            }
            Command::Remove(of) => Order::Remove { region: region(of) },
            Command::Add(of, weight) => Order::Add { region: region(of), weight: *weight },
            Command::Recover(of) => Order::Recover { region: region(of) },
            Command::TakeOver => Order::TakeOver { is_fenced: true },
        };
        if let Err(why) = self.is_true(at, command) {
            self.trace.tell(NAMES[at], self.elapsed(), format!("not ordered: {why}"));
            return None;
        }
        let ordered = Ordered { author: "a scenario".to_owned(), ..Ordered::default() };
        let process = self.regions[at].process();
        let done = process
            .as_ref()
            .and_then(|process| process.regions())
            .map(|regions| regions.order(&order, &ordered).map_err(|fault| fault.to_string()));
        let made = done.as_ref().and_then(|done| done.as_ref().ok()).map(|made| (made.before, made.after));
        let what = match done {
            Some(Ok(outcome)) => format!("ordered: {}", outcome.changes.join(", ")),
            Some(Err(fault)) => format!("refused: {fault}"),
            None => "nobody there to take an order".to_owned(),
        };
        self.trace.tell(NAMES[at], self.elapsed(), what);
        made
    }
}

impl World {
    /// Checks that an operator's word is true: a region that he says is gone has neither a process nor a
    /// disk.
    fn is_true(&mut self, at: Place, command: &Command) -> Result<(), String> {
        let gone = match command {
            Command::Evict(of) => *of,
            Command::TakeOver => match self.authority_of(at) {
                Some(authority) if authority != at => authority,
                _ => return Err("there is no other authority".to_owned()),
            },
            _ => return Ok(()),
        };
        let name = NAMES[gone];
        if self.sim.is_host_running(name) || !self.regions[gone].disk.is_empty() {
            return Err(format!("{name} is not gone"));
        }
        Ok(())
    }

    /// The region that a node takes for the authority.
    fn authority_of(&self, at: Place) -> Option<Place> {
        let version = self.regions[at].process()?.node.version()?;
        let is_it = |config: &Config| config.numbers().0 == version.authority.member;
        self.configs.iter().position(is_it)
    }
}

fn config(name: &str, peers: &[SocketAddr], setup: &Setup, keys: &std::path::Path) -> String {
    let regions = NAMES.iter().zip(peers);
    let regions = regions.map(|(name, at)| format!("  {name}: {{ nodes: {{ {name}-1: \"{at}\" }} }}\n"));
    let regions: String = regions.collect();
    let clock = if setup.clock.is_empty() { String::new() } else { format!("clock: {}\n", setup.clock) };
    format!(
        "\
region: {name}
node: {name}-1
listen: {{ grpc: \"0.0.0.0:{GRPC_PORT}\", http: \"0.0.0.0:{HTTP_PORT}\", mesh: \"0.0.0.0:{MESH_PORT}\" }}
data: simulated
tls: {keys:?}
store: memory
memory: 16MiB
workers: 1
drain: 200ms
regions:
{regions}authority: {authority}-1
{clock}limits:
{limits}",
        authority = NAMES[0],
        limits = setup.limits,
    )
}

/// The names of regions that have several nodes.
const REGIONS_OF_NODES: [&str; 3] = ["west", "east", "south"];

impl Setup {
    /// The store of a node.
    fn store_of(&self, place: Place) -> usize {
        place * self.stores.max(1) / self.regions
    }

    /// The region of a node, if nodes belong to several regions with stores.
    fn region_of(&self, place: Place) -> Option<&'static str> {
        let is_among = self.guard_percent.is_some() && self.stores > 1;
        is_among.then(|| REGIONS_OF_NODES[self.store_of(place)])
    }
}

/// The config of a node that shares a store with others.
fn config_of_node(
    place: Place,
    (names, peers): (&[&str], &[SocketAddr]),
    setup: &Setup,
    guard_percent: u8,
    keys: &std::path::Path,
) -> String {
    let clock = if setup.clock.is_empty() { String::new() } else { format!("clock: {}\n", setup.clock) };
    let mates = || (0..names.len()).filter(|other| setup.store_of(*other) == setup.store_of(place));
    let region = setup.region_of(place);
    let (mesh, regions) = match region {
        None => (String::new(), String::new()),
        Some(_) => {
            let all = REGIONS_OF_NODES[..setup.stores].iter().map(|region| {
                let of_region = (0..names.len()).filter(|other| setup.region_of(*other) == Some(region));
                let nodes: Vec<String> =
                    of_region.map(|other| format!("{}: \"{}\"", names[other], peers[other])).collect();
                format!("  {region}: {{ weight: 1, nodes: {{ {} }} }}\n", nodes.join(", "))
            });
            let all: String = all.collect();
            (
                format!(", mesh: \"0.0.0.0:{MESH_PORT}\""),
                format!("tls: {keys:?}\nauthority: {}\nregions:\n{all}", names[0]),
            )
        }
    };
    format!(
        "\
region: {region}
node: {name}
listen: {{ grpc: \"0.0.0.0:{GRPC_PORT}\", http: \"0.0.0.0:{HTTP_PORT}\"{mesh} }}
data: simulated
store: {{ redis: {{ cluster: [\"192.0.2.1:6379\"] }}, nodes: [{nodes}], guard: {guard_percent}% }}
memory: 16MiB
workers: 1
drain: 200ms
{regions}{clock}limits:
{limits}",
        region = region.unwrap_or("here"),
        name = names[place],
        nodes = mates().map(|mate| names[mate]).collect::<Vec<_>>().join(", "),
        limits = setup.limits,
    )
}

thread_local! {
    /// Panics of this thread since the last step: a runtime keeps the panics of its tasks to itself.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn hear_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with_borrow_mut(|panics| panics.push(info.to_string()));
            before(info);
        }));
    });
}
