//! Regions, callers, links, disks and clocks in one thread, and the faults that can be applied to them.
//!
//! Each region is a turmoil host that runs the real server. Each has a caller, another host, that asks it
//! over gRPC. In some worlds the hosts are nodes of one region instead, which share a store; they have the
//! same names. [`World::step`] lets time pass. Between two steps, [`World::apply`] applies faults, and
//! everything can be inspected.

mod caller;
mod clock;
mod config;
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
use acequia_rights::{VersionId, node_named};
use acequia_server::{
    config::{ClockConfig, Config},
    regions::{Order, Ordered},
};

pub use self::{
    caller::{Answer, DOMAIN, Reply, Settlement},
    clock::EPOCH_S,
    region::Region,
};
use self::{
    caller::{Answers, Caller},
    config::Nodes,
    disk::{Copy, Mood, Unsynced},
    pools::{Server, StoreLink},
    region::{GRPC_PORT, MESH_PORT},
};
use crate::{
    NAMES,
    demand::Demand,
    random::Random,
    scenarios::Plan,
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

impl Setup {
    /// The settings of the world of a plan.
    pub fn of(plan: &Plan, seed: u64) -> Self {
        Self {
            seed,
            regions: plan.regions,
            limits: plan.limits.clone(),
            clock: plan.clock.to_owned(),
            latency_ms: plan.latency_ms,
            demand: plan.demand.clone(),
            guard_percent: plan.guard_percent,
            stores: plan.stores,
        }
    }
}

/// A fault that was applied.
#[derive(Clone, Debug)]
pub struct Done {
    /// True time since the start.
    pub at: Duration,
    /// The fault.
    pub fault: Fault,
    /// For an order that was carried out: what it changed.
    pub made: Option<Made>,
}

/// The versions of the catalogue around an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The version before the order.
    pub before: VersionId,
    /// The version that the order made.
    pub after: VersionId,
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
        record_panics();
        let names = setup.names()?;
        let unmade = |fault: &dyn std::fmt::Display| WorldError::Setup(fault.to_string());
        let folder = tempfile::tempdir().map_err(|fault| unmade(&fault))?;
        let identities: Vec<_> = (0..names.len()).map(|place| setup.identity_of(place)).collect();
        keys::write(folder.path(), &identities).map_err(|fault| unmade(&fault))?;

        let sim = network(setup);
        let addresses: Vec<_> = names.iter().map(|name| sim.lookup(*name)).collect();
        let peers: Vec<_> = addresses.iter().map(|ip| SocketAddr::new(*ip, MESH_PORT)).collect();
        let nodes = Nodes { names, peers: &peers, keys: folder.path() };
        let configs: Vec<_> = (0..names.len()).map(|place| setup.config_of(place, &nodes)).collect();
        let mut world = Self {
            sim,
            regions: Vec::new(),
            configs: Vec::new(),
            limits: Vec::new(),
            clock: ClockConfig::default(),
            callers: Vec::new(),
            answers: Answers::default(),
            copies: BTreeMap::new(),
            stopping: BTreeMap::new(),
            stores: stores(setup),
            done: Vec::new(),
            is_hushed: Arc::default(),
            random: Random::of(setup.seed, "faults"),
            trace,
            _keys: folder,
        };
        for (place, config) in configs.into_iter().enumerate() {
            world.add_region(place, config, setup)?;
        }
        let nodes: Vec<_> = addresses.iter().map(|ip| SocketAddr::new(*ip, GRPC_PORT)).collect();
        for place in 0..nodes.len() {
            world.add_caller(place, &nodes, setup);
        }
        Ok(world)
    }

    /// Adds the host of a region, or of a node of a region with a store.
    fn add_region(&mut self, place: Place, config: String, setup: &Setup) -> Result<(), WorldError> {
        let name = NAMES[place];
        let parsed = Config::parse(name, &config);
        let parsed = parsed.map_err(|faults| WorldError::Setup(format!("{faults}\n{config}")))?;
        let of_nodes = parsed.store.as_ref().map_or_else(ClockConfig::default, |store| store.clock);
        self.clock = parsed.regions.as_ref().map_or(of_nodes, |regions| regions.clock);
        self.limits.clone_from(&parsed.live.limits);
        self.configs.push(parsed);
        let mut region = Region::new(name, config, setup.seed, self.trace.clone());
        let server = self.stores.get(setup.store_of(place)).cloned();
        region.store_link = server.map(|server| StoreLink { place, server, nap: region.nap.clone() });
        let running = region.clone();
        self.sim.host(name, move || running.clone().run());
        self.regions.push(region);
        Ok(())
    }

    /// Adds the host that asks a node.
    fn add_caller(&mut self, place: Place, nodes: &[SocketAddr], setup: &Setup) {
        let host = format!("{}-caller", NAMES[place]);
        let caller = Caller {
            place,
            name: host.clone(),
            nodes: nodes.to_vec(),
            demand: setup.demand.clone(),
            seed: setup.seed,
            answers: self.answers.clone(),
            is_hushed: Arc::clone(&self.is_hushed),
            trace: self.trace.clone(),
        };
        self.sim.host(host.as_str(), move || caller.clone().call());
        self.sim.set_link_latency(host.as_str(), NAMES[place], NEAR);
        self.callers.push(host);
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
            Fault::Exclude(at, of, seconds) => self.exclude(*at, *of, *seconds),
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
    fn exclude(&mut self, at: Place, of: Place, seconds: u64) {
        let what = if self.sim.is_host_running(NAMES[of]) {
            format!("not ordered: {} is not gone", NAMES[of])
        } else {
            let outcome = self.regions[at].process().map(|process| {
                let for_ns = seconds.saturating_mul(1_000_000_000);
                process.node.exclude(node_named(NAMES[of]), for_ns, process.clock.now())
            });
            match outcome {
                Some(Ok(())) => format!("{} is excluded", NAMES[of]),
                Some(Err(fault)) => format!("refused: {fault}"),
                None => "nobody there to take an order".to_owned(),
            }
        };
        self.trace.tell(NAMES[at], self.elapsed(), what);
    }

    /// Carries out an order. Returns what it changed, if it was not refused.
    fn order(&mut self, at: Place, command: &Command) -> Option<Made> {
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
        let outcome = done.as_ref().and_then(|done| done.as_ref().ok());
        let made = outcome.map(|outcome| Made { before: outcome.before, after: outcome.after });
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

/// A network whose packets take as long as the setup says.
fn network(setup: &Setup) -> turmoil::Sim<'static> {
    let (least, most) = setup.latency_ms;
    turmoil::Builder::new()
        .simulation_duration(Duration::MAX)
        .tick_duration(STEP)
        .epoch(std::time::UNIX_EPOCH + Duration::from_secs(EPOCH_S))
        .rng_seed(Random::of(setup.seed, "network").next())
        .min_message_latency(Duration::from_millis(least))
        .max_message_latency(Duration::from_millis(most))
        .udp_capacity(QUEUE)
        .tcp_capacity(QUEUE)
        .build()
}

/// The stores that nodes share: one for each of their regions.
fn stores(setup: &Setup) -> Vec<Server> {
    let count = setup.guard_percent.map_or(0, |_| setup.stores.max(1));
    let names =
        (0..count).map(|store| if store == 0 { "store".to_owned() } else { format!("store {store}") });
    names.map(|name| Server::new(Random::of(setup.seed, &name))).collect()
}

thread_local! {
    /// Panics of this thread since the last step: a runtime keeps the panics of its tasks to itself.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Adds the panics of this thread to [`PANICS`].
fn record_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with_borrow_mut(|panics| panics.push(info.to_string()));
            before(info);
        }));
    });
}
