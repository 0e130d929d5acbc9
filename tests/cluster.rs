//! Three regions of one real process each, links that can be cut, callers in every region, and a judge.
//!
//! The judge sees only what callers see: when they asked, when they were answered, and what was allowed. It
//! calls a limit exceeded only if no instant between question and answer could explain the answer.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, UdpSocket},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use acequia_client::{Client, Options, Question};
pub use acequia_mesh::relay::{Cut, Weather};
use acequia_mesh::{Identity, certs, relay::Link};
use tempfile::TempDir;
use tokio::{runtime::Handle, sync::Notify};

use crate::{Node, eventually, get};

/// The regions, and their nodes.
pub const REGIONS: [(&str, &str); 3] = [("ap", "ap-1"), ("eu", "eu-1"), ("us", "us-1")];
/// The region of the authority.
pub const EU: usize = 1;
/// The round trip between two regions.
pub const ROUND: Duration = Duration::from_millis(80);
/// How often a caller sends a batch of questions.
const EVERY: Duration = Duration::from_millis(10);

/// Three regions.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes, in the order of [`REGIONS`].
    pub nodes: Vec<Node>,
    links: BTreeMap<(usize, usize), Link>,
    background: Background,
    folder: TempDir,
    ports: Vec<u16>,
    limits: String,
}

impl Cluster {
    /// Starts all three regions, and waits until they have their shares.
    pub fn start(limits: &str) -> Self {
        let mut cluster = Self::prepare(limits);
        (0..REGIONS.len()).for_each(|region| cluster.start_region(region));
        (0..REGIONS.len()).for_each(|region| cluster.until_ready(region));
        cluster
    }

    /// Prepares certificates, ports and links, without starting a process.
    pub fn prepare(limits: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let identities: Vec<Identity> =
            REGIONS.iter().map(|(region, node)| Identity::new(*region, *node)).collect();
        certs::create(&folder.path().join("certs"), &identities, &["eu-1", "us-1"]).expect("certificates");
        let background = Background::start();
        // Bind the ports once, and release them just before the nodes bind them for good.
        let sockets: Vec<UdpSocket> =
            REGIONS.iter().map(|_| UdpSocket::bind("127.0.0.1:0").expect("a port")).collect();
        let addresses: Vec<SocketAddr> =
            sockets.iter().map(|socket| socket.local_addr().expect("an address")).collect();
        let mut links = BTreeMap::new();
        let entered = background.handle.enter();
        for from in 0..REGIONS.len() {
            for (to, address) in addresses.iter().enumerate().skip(from + 1) {
                let seed = (from * REGIONS.len() + to) as u64;
                let link = Link::start(*address, calm(), seed).expect("a link");
                links.insert((from, to), link);
            }
        }
        drop(entered);
        let ports = addresses.iter().map(SocketAddr::port).collect();
        Self { nodes: Vec::new(), links, background, folder, ports, limits: limits.to_owned() }
    }

    /// Starts the next region's process.
    pub fn start_region(&mut self, region: usize) {
        self.start_region_with(region, &[]);
    }

    /// Starts the next region's process with environment variables.
    pub fn start_region_with(&mut self, region: usize, environment: &[(&'static str, &'static str)]) {
        assert_eq!(self.nodes.len(), region, "regions start in their order");
        let node = Node::start_whole_with(&self.config(region), environment);
        self.nodes.push(node);
    }

    /// A region's config. `DATA` stands for its folder.
    pub fn config(&self, region: usize) -> String {
        let (name, node) = REGIONS[region];
        let mut yaml = format!(
            "region: {name}\nnode: {node}\n\
             listen: {{ grpc: \"127.0.0.1:0\", http: \"127.0.0.1:0\", admin: \"127.0.0.1:0\", mesh: \"127.0.0.1:{}\" }}\n\
             data: DATA\ntls: {}\nauthority: eu-1\nclock: {{ error: 2ms, drift: 2e-4 }}\nregions:\n",
            self.ports[region],
            self.certs().display(),
        );
        for (other, (name, node)) in REGIONS.iter().enumerate() {
            // The node with the smaller name dials, through the link. All other addresses are direct.
            let port = match self.links.get(&(region, other)) {
                Some(link) => link.address().port(),
                None => self.ports[other],
            };
            yaml.push_str(&format!("  {name}: {{ weight: 1, nodes: {{ {node}: \"127.0.0.1:{port}\" }} }}\n"));
        }
        yaml.push_str(&self.limits);
        yaml
    }

    /// The runtime of links and callers, on its own thread.
    pub fn runtime(&self) -> Handle {
        self.background.runtime()
    }

    /// The mesh address of a region's process.
    pub fn mesh_address(&self, region: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports[region]))
    }

    /// The folder of the certificates.
    pub fn certs(&self) -> PathBuf {
        self.folder.path().join("certs")
    }

    /// Waits until a region has its share.
    #[track_caller]
    pub fn until_ready(&self, region: usize) {
        let node = &self.nodes[region];
        eventually("the region is ready", || ready(node.http()));
    }

    /// Sets the state of a link.
    pub fn set(&self, a: usize, b: usize, weather: Weather) {
        self.links[&(a.min(b), a.max(b))].set(weather);
    }

    /// Cuts a region off from both others, or repairs the links.
    pub fn isolate(&self, region: usize, is_cut: bool) {
        for other in (0..REGIONS.len()).filter(|other| *other != region) {
            let cut = if is_cut { Cut::BOTH } else { Cut::default() };
            self.set(region, other, Weather { cut, ..calm() });
        }
    }

    /// Starts callers in every region.
    pub fn callers(&self, questions: Vec<Asked>) -> Callers {
        self.background.callers(&self.nodes, questions)
    }
}

/// A thread for links and callers.
#[derive(Debug)]
pub struct Background {
    handle: Handle,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread.
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (handle, stop) = (runtime.handle().clone(), Arc::new(Notify::new()));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || runtime.block_on(stopped.notified()));
        Self { handle, stop, thread: Some(thread) }
    }

    /// Its runtime.
    pub fn runtime(&self) -> Handle {
        self.handle.clone()
    }

    /// Starts callers at up to three nodes.
    pub fn callers(&self, nodes: &[Node], questions: Vec<Asked>) -> Callers {
        let (begun, begun_wall) = (Instant::now(), SystemTime::now());
        let questions = Arc::new(questions);
        let (answers, stop, tasks) = (Arc::default(), Arc::default(), Vec::new());
        let mut callers =
            Callers { begun, begun_wall, questions: Arc::clone(&questions), answers, stop, tasks };
        for (place, node) in nodes.iter().enumerate() {
            let (answers, stop) = (Arc::clone(&callers.answers), Arc::clone(&callers.stop));
            let (questions, node) = (Arc::clone(&questions), node.grpc_now());
            callers.tasks.push(self.handle.spawn(async move {
                call(place, &node, &questions, &answers, &stop, begun).await;
            }));
        }
        callers
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// The usual state of a link.
pub fn calm() -> Weather {
    Weather { delay: ROUND / 2, ..Weather::default() }
}

fn ready(http: SocketAddr) -> bool {
    get(http, "/readyz").starts_with("HTTP/1.1 200")
}

/// A kind of question, and how often each region asks it. The rates are shared, so that they can change while
/// callers run.
#[derive(Debug)]
pub struct Asked {
    /// The limit's name: the value of the entry `kind` that it matches.
    pub kind: &'static str,
    /// Questions a second, by region.
    pub rates: [AtomicU64; 3],
}

/// Answers that callers got.
#[derive(Debug)]
pub struct Callers {
    /// Time zero for all times of answers.
    pub begun: Instant,
    /// The machine's wall clock at `begun`.
    pub begun_wall: SystemTime,
    /// What the callers ask, and how often.
    pub questions: Arc<Vec<Asked>>,
    answers: Arc<Mutex<Vec<Answered>>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Callers {
    /// Ends the callers. Returns what they saw.
    pub fn end(self) -> Answers {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            eventually("a caller ends", || task.is_finished());
        }
        let answers = std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner));
        let begun_wall = self.begun_wall.duration_since(UNIX_EPOCH).expect("a wall clock");
        Answers { answers, begun_wall }
    }

    /// Units of all kinds that were allowed at one node between two times, so far.
    pub fn allowed_at(&self, place: usize, from: Duration, to: Duration) -> u64 {
        self.sum_so_far(from, to, |answered| answered.region == place)
    }

    /// Units of one kind that were allowed between two times, so far.
    pub fn allowed_so_far(&self, kind: usize, from: Duration, to: Duration) -> u64 {
        self.sum_so_far(from, to, |answered| answered.kind == kind)
    }

    fn sum_so_far(&self, from: Duration, to: Duration, counts: impl Fn(&Answered) -> bool) -> u64 {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let since = answers.iter().rev().take_while(|answered| answered.answered >= from);
        since
            .filter(|answered| answered.answered < to && counts(answered))
            .map(|answered| answered.allowed)
            .sum()
    }
}

/// What all callers saw.
#[derive(Debug)]
pub struct Answers {
    /// The answers, in no order.
    pub answers: Vec<Answered>,
    /// The machine's wall clock when the callers began, since 1970.
    pub begun_wall: Duration,
}

/// An answered batch of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// The region.
    pub region: usize,
    /// Index of the question's kind.
    pub kind: usize,
    /// When the batch was asked, since the callers began.
    pub asked: Duration,
    /// When the batch was answered, since the callers began.
    pub answered: Duration,
    /// The number of questions in the batch.
    pub count: u64,
    /// The number of allowed questions.
    pub allowed: u64,
}

/// The current address of a region's process, whose port changes at a restart.
pub type Address = Arc<Mutex<Option<SocketAddr>>>;

async fn call(
    region: usize,
    node: &Address,
    questions: &[Asked],
    answers: &Mutex<Vec<Answered>>,
    stop: &AtomicBool,
    begun: Instant,
) {
    let mut owed = vec![0.0; questions.len()];
    let mut turns = tokio::time::interval(EVERY);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut client: Option<(SocketAddr, Client)> = None;
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        turns.tick().await;
        let passed = last.elapsed().as_secs_f64();
        last = Instant::now();
        for (owed, asked) in owed.iter_mut().zip(questions) {
            // A caller that was held up does not send all missed questions at once.
            *owed = (*owed + asked.rates[region].load(Ordering::Relaxed) as f64 * passed).min(1_000.0);
        }
        let address = *node.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(address) = address else { continue };
        if client.as_ref().is_none_or(|(to, _)| *to != address) {
            let options = Options { deadline: Duration::from_secs(1) };
            client = Client::connect(&address.to_string(), options).ok().map(|client| (address, client));
        }
        let Some((_, open)) = &client else { continue };
        if !ask(region, open, questions, &mut owed, answers, begun).await {
            client = None;
        }
    }
}

/// Sends one turn's questions. Returns whether they were answered.
async fn ask(
    region: usize,
    client: &Client,
    questions: &[Asked],
    owed: &mut [f64],
    answers: &Mutex<Vec<Answered>>,
    begun: Instant,
) -> bool {
    let Ok(mut stream) = client.check_stream().await else { return false };
    let mut sent = Vec::new();
    for (kind, asked) in questions.iter().enumerate() {
        let count = owed[kind].floor();
        if count < 1.0 {
            continue;
        }
        owed[kind] -= count;
        let count = count as usize;
        let batch = (0..count).map(|_| Question::new("shop", [("kind", asked.kind)]));
        let at = begun.elapsed();
        if stream.send(batch).is_err() {
            return false;
        }
        sent.push((kind, at, count as u64));
    }
    for (kind, asked, count) in sent {
        let Some(Ok(batch)) = stream.next().await else { return false };
        let allowed = batch.iter().filter(|answer| answer.allowed).count() as u64;
        let answered = Answered { region, kind, asked, answered: begun.elapsed(), count, allowed };
        answers.lock().unwrap_or_else(PoisonError::into_inner).push(answered);
    }
    true
}

impl Answers {
    /// Units of one kind that were allowed between two times, by the times of the answers.
    pub fn allowed(&self, kind: usize, from: Duration, to: Duration) -> u64 {
        self.sum(from, to, |answered| answered.kind == kind)
    }

    /// Like `allowed`, in one region.
    pub fn allowed_in(&self, region: usize, kind: usize, from: Duration, to: Duration) -> u64 {
        self.sum(from, to, |answered| answered.region == region && answered.kind == kind)
    }

    fn sum(&self, from: Duration, to: Duration, counts: impl Fn(&Answered) -> bool) -> u64 {
        let within =
            self.answers.iter().filter(|answered| answered.answered >= from && answered.answered < to);
        within.filter(|answered| counts(answered)).map(|answered| answered.allowed).sum()
    }

    /// The most that was allowed in one window of the machine's clock, counting batches that were asked and
    /// answered inside it.
    pub fn most_in_a_window(&self, kind: usize, window: Duration) -> u64 {
        let number = |at: Duration| (self.begun_wall + at).as_nanos() / window.as_nanos();
        let mut windows = BTreeMap::<u128, u64>::new();
        for answered in self.answers.iter().filter(|a| a.kind == kind) {
            if number(answered.asked) == number(answered.answered) {
                *windows.entry(number(answered.asked)).or_default() += answered.allowed;
            }
        }
        windows.into_values().max().unwrap_or(0)
    }

    /// By how much a rate was exceeded over any interval; at most 0 if never. An answer may date from any
    /// instant since its question, so an interval counts batches that were asked and answered inside it.
    pub fn over_rate(&self, kind: usize, per_second: f64, burst: f64) -> f64 {
        const SLOT_S: f64 = 0.01;
        let allowed: Vec<&Answered> =
            self.answers.iter().filter(|a| a.kind == kind && a.allowed > 0).collect();
        let Some(last) = allowed.iter().map(|a| a.answered).max() else { return f64::MIN };
        let slots = (last.as_secs_f64() / SLOT_S) as usize + 2;
        let mut by_start: Vec<Vec<(usize, u64)>> = vec![Vec::new(); slots];
        for answered in allowed {
            let start = (answered.asked.as_secs_f64() / SLOT_S) as usize;
            let end = (answered.answered.as_secs_f64() / SLOT_S) as usize + 1;
            by_start[start].push((end, answered.allowed));
        }
        // From the last start backwards: `ends` counts, for each end, the batches that start no earlier.
        let mut ends = vec![0_u64; slots + 1];
        let mut worst = f64::MIN;
        for start in (0..slots).rev() {
            for (end, units) in by_start[start].drain(..) {
                ends[end] += units;
            }
            let mut inside = 0;
            for (end, units) in ends.iter().enumerate().skip(start) {
                inside += units;
                let seconds = (end - start) as f64 * SLOT_S;
                worst = worst.max(inside as f64 - burst - per_second * seconds);
            }
        }
        worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(asked_ms: u64, answered_ms: u64, allowed: u64) -> Answered {
        Answered {
            region: 0,
            kind: 0,
            asked: Duration::from_millis(asked_ms),
            answered: Duration::from_millis(answered_ms),
            count: allowed,
            allowed,
        }
    }

    #[test]
    fn the_judge_sees_one_unit_too_many_and_blames_no_delay() {
        // Ten at once, and one every hundred milliseconds.
        let mut answers = vec![answered(5, 6, 10)];
        answers.extend((1..=20).map(|n| answered(100 * n + 5, 100 * n + 6, 1)));
        let judged = Answers { answers: answers.clone(), begun_wall: Duration::from_millis(500) };
        assert!(judged.over_rate(0, 10.0, 10.0) <= 0.0);
        assert_eq!(judged.allowed(0, Duration::ZERO, Duration::from_secs(9)), 30);
        // The wall clock's windows begin half a second after the callers did.
        assert_eq!(judged.most_in_a_window(0, Duration::from_secs(1)), 14);
        answers.push(answered(1_045, 1_046, 1));
        assert!(Answers { answers: answers.clone(), ..judged }.over_rate(0, 10.0, 10.0) > 0.5);
        // A batch with the same answer time, asked long before, may have been allowed then.
        answers.pop();
        answers[0].allowed = 9;
        answers.push(answered(5, 1_046, 1));
        assert!(Answers { answers, ..judged }.over_rate(0, 10.0, 10.0) <= 0.0);
    }
}
