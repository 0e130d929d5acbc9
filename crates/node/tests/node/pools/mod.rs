//! A simulated network of nodes, in one region or several, that share their limits through pools. The story
//! decides how links and servers behave.

mod forwards;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use acequia_limits::{
    CellTag, Descriptor, LimitId, Now,
    limit::{LimitSpec, ValueSpec},
};
use acequia_node::{
    Ask, Asker, Config, Forwarding, Holding, Home, Keep, LimitAnswer, Node, Row, WITHDRAWALS,
    pool::{CALL_NS, Call, GROUPS, Heard, PoolName, PoolReply, PoolRequest, RegionSetup},
    regions,
};
use acequia_rights::{
    Incarnation, MemberId,
    pool::{
        Bucket, PoolGroup, Sliding, Window,
        group::{GroupStatus, ServerIdentity},
    },
    versions::{CellKey, Draft, Fence, Member},
};

use forwards::{Charges, FORWARD_AGAIN_NS, Waiting};

use crate::scene::{
    self, KEY, MS, ROOMY, S, START,
    ledger::{Ledger, Promise, Terms},
};

/// The server of the pools. Its behaviour is that of the pool rules.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    run: u64,
    groups: BTreeMap<u16, PoolGroup>,
    windows: BTreeMap<PoolName, Window>,
    buckets: BTreeMap<PoolName, Bucket>,
    slidings: BTreeMap<PoolName, Sliding>,
}

impl Server {
    fn new() -> Self {
        Self {
            run: 1,
            groups: BTreeMap::new(),
            windows: BTreeMap::new(),
            buckets: BTreeMap::new(),
            slidings: BTreeMap::new(),
        }
    }

    /// Replaces the process by a new one, which starts from the given state or from nothing.
    pub(crate) fn restart(&mut self, from: Option<&Self>) {
        let run = self.run + 1;
        *self = from.cloned().unwrap_or_else(Self::new);
        self.run = run;
    }

    fn server(&self, allocation: u64) -> ServerIdentity {
        ServerIdentity { run: self.run.to_string(), config_fingerprint: 0, allocation }
    }

    fn serve(&mut self, call: &Call) -> PoolReply {
        let server = self.server(call.allocation);
        let group = self.groups.entry(call.group).or_default();
        match &call.question {
            PoolRequest::Begin(begin) => return PoolReply::Known(group.begin(&server, begin)),
            PoolRequest::Assert(assertion, None) => {
                return PoolReply::Known(group.assert(&server, assertion));
            }
            PoolRequest::Assert(assertion, Some(absent)) => {
                return PoolReply::Known(group.assert_without(&server, assertion, absent));
            }
            _ => {}
        }
        let Some(context) = group.context(&server, call.generation, call.wall_us) else {
            let known: GroupStatus = group.known(&server);
            return PoolReply::Unknown(known);
        };
        let said = match &call.question {
            PoolRequest::Take(name, take) => {
                self.windows.entry(*name).or_default().take(take, &context).map(PoolReply::Took)
            }
            PoolRequest::Exchange(name, exchange, params) => self
                .buckets
                .entry(*name)
                .or_default()
                .exchange(exchange, params, &context)
                .map(PoolReply::Exchanged),
            PoolRequest::Slide(name, slide) => {
                self.slidings.entry(*name).or_default().exchange(slide, &context).map(PoolReply::Slid)
            }
            PoolRequest::Sweep(_) => Ok(PoolReply::Swept(0)),
            PoolRequest::Begin(_) | PoolRequest::Assert(..) => unreachable!("answered"),
        };
        said.unwrap_or_else(PoolReply::Refused)
    }
}

/// The state of the link to the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Delay in one direction, least and most, in nanoseconds.
    pub(crate) delay_ns: (u64, u64),
    /// Percentage of calls and answers that are lost.
    pub(crate) lost: u64,
}

impl Way {
    pub(crate) const GOOD: Self = Self { delay_ns: (100_000, 200_000), lost: 0 };
    pub(crate) const CUT: Self = Self { delay_ns: (0, 1), lost: 100 };
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    /// When the request came, and when the node answered: true time.
    pub(crate) came_ns: u64,
    pub(crate) at_ns: u64,
    pub(crate) is_allowed: bool,
    /// Units left of the first limit, by the answer.
    pub(crate) remaining: u64,
}

/// One node.
pub(crate) struct Place1 {
    pub(crate) node: Arc<Node>,
    pub(crate) asker: Asker,
    process_number: u32,
    /// When it last started after a crash.
    crashed: Option<Now>,
    /// Contents of its disk: the generations it has heard of, its withdrawals from windows, and since when it
    /// has recorded withdrawals.
    pub(crate) generations: Vec<Heard>,
    rows: BTreeMap<(LimitId, CellTag), Row>,
    knows_from_us: u64,
    /// Writes to its disk fail.
    pub(crate) is_disk_full: bool,
    /// The node only answers requests: no ticks, calls or frames.
    pub(crate) is_hung: bool,
    /// The node reaches the replaced server, not the successor.
    pub(crate) is_left_behind: bool,
    /// Its wall clock minus true time.
    pub(crate) ahead_ns: i64,
    /// How much faster than true time its steady clock runs, in parts per million.
    pub(crate) drift_ppm: i64,
    pub(crate) way: Way,
    ticked_ns: u64,
}

enum Message {
    Call(u64, usize, u32, Call),
    Answer(u64, usize, u32, u64, PoolReply),
    /// From one node to another of any region.
    Frame(usize, usize, Vec<u8>),
}

/// Several regions, each with its own server. Their nodes share the limits by a catalogue.
pub(crate) struct Regions {
    /// The region of each node.
    pub(crate) of: Vec<usize>,
    /// Servers of all regions except the first.
    pub(crate) servers: Vec<Server>,
    /// Whether regions have stores. A region of a single node may have none.
    pub(crate) have_stores: bool,
    /// Frame delays, least and most: between regions, and within one region.
    pub(crate) delay_ns: (u64, u64),
    pub(crate) near_ns: (u64, u64),
    /// Nodes that neither send nor receive frames.
    pub(crate) cut: BTreeSet<usize>,
    /// Percentage of frames that arrive twice.
    pub(crate) repeated: u64,
    /// Number and bytes of the frames sent between regions.
    pub(crate) crossed: (u64, u64),
    /// Frames between regions that carry no entries.
    pub(crate) pulses: u64,
}

pub(crate) fn incarnation(place: usize) -> Incarnation {
    Incarnation { member: MemberId(place as u16 + 1), node: 0, number: 1 }
}

pub(crate) struct World {
    pub(crate) specs: Vec<LimitSpec>,
    /// Whether orders contain no limits.
    pub(crate) is_gone: bool,
    /// Retired limits that were in force recently.
    pub(crate) retired: Vec<LimitSpec>,
    pub(crate) nodes: Vec<Place1>,
    pub(crate) server: Server,
    /// A replaced server that is still running.
    pub(crate) old: Option<Server>,
    pub(crate) true_ns: u64,
    error_ns: u64,
    drift_ppm: u32,
    percent: u8,
    /// Memory for the cells of each node that starts.
    pub(crate) memory_bytes: usize,
    /// A node that starts has an empty disk.
    pub(crate) is_new: bool,
    /// Nodes record their withdrawals from windows on disk.
    is_kept: bool,
    messages: BTreeMap<(u64, u64), Message>,
    /// Unanswered calls, ordered by the time when the node gives them up.
    open: BTreeSet<(u64, usize, u32, u64)>,
    sent: u64,
    chance: u64,
    /// Ledgers by limit and key.
    ledgers: BTreeMap<(usize, String), Ledger>,
    waiting: Vec<Waiting>,
    charges: Charges,
    /// The most that any cell may give, for stories in which a limit has several variants.
    pub(crate) most: Option<Terms>,
    /// Requests that passed after a wait.
    pub(crate) passed_late: u64,
    /// Outcomes of the requests of `ask_or_wait`, in the order of their answers. `None` if no story reads
    /// them.
    pub(crate) decided: Option<Vec<Decided>>,
    /// Number of pool calls.
    pub(crate) calls: u64,
    /// Round trips to the store. Calls that a node makes at one moment share a round trip.
    pub(crate) round_trips: u64,
    pub(crate) refused: Vec<PoolReply>,
    pub(crate) regions: Option<Regions>,
    /// Grants from windows that have not begun are lost on the way.
    pub(crate) loses_ahead: bool,
    /// Nodes process cells exactly when due, rather than at the next hundredth of a second.
    pub(crate) is_prompt: bool,
}

impl World {
    pub(crate) fn new(nodes: usize, specs: &[LimitSpec], percent: u8, seed: u64) -> Self {
        Self::begun(nodes, specs, percent, seed, (false, false), None)
    }

    /// Several regions with the given numbers of nodes. No node has a share before [`World::order`].
    pub(crate) fn among_regions(nodes: &[usize], specs: &[LimitSpec], percent: u8, seed: u64) -> Self {
        let regions = Self::regions_of(nodes);
        Self::begun(nodes.iter().sum(), specs, percent, seed, (true, true), Some(regions))
    }

    /// Several regions of one node each, without stores.
    pub(crate) fn among_lone(count: usize, specs: &[LimitSpec], seed: u64) -> Self {
        let regions = Regions { have_stores: false, ..Self::regions_of(&vec![1; count]) };
        Self::begun(count, specs, 100, seed, (true, true), Some(regions))
    }

    fn regions_of(nodes: &[usize]) -> Regions {
        let of = (0..).zip(nodes).flat_map(|(region, nodes)| vec![region; *nodes]);
        Regions {
            of: of.collect(),
            servers: (1..nodes.len()).map(|_| Server::new()).collect(),
            have_stores: true,
            delay_ns: (MS, 20 * MS),
            near_ns: (MS / 4, MS),
            cut: BTreeSet::new(),
            repeated: 0,
            crossed: (0, 0),
            pulses: 0,
        }
    }

    /// Like [`World::new`], but nodes record their withdrawals from windows.
    pub(crate) fn kept(nodes: usize, specs: &[LimitSpec], percent: u8, seed: u64) -> Self {
        Self::begun(nodes, specs, percent, seed, (false, true), None)
    }

    /// A region in which nothing has ever been spent.
    pub(crate) fn of_new(nodes: usize, specs: &[LimitSpec], percent: u8) -> Self {
        Self::begun(nodes, specs, percent, 1, (true, true), None)
    }

    fn begun(
        nodes: usize,
        specs: &[LimitSpec],
        percent: u8,
        seed: u64,
        (is_new, is_kept): (bool, bool),
        regions: Option<Regions>,
    ) -> Self {
        let mut world = Self {
            specs: specs.to_vec(),
            is_gone: false,
            retired: Vec::new(),
            nodes: Vec::new(),
            server: Server::new(),
            old: None,
            true_ns: 0,
            error_ns: 10 * MS,
            drift_ppm: 1_000,
            percent,
            memory_bytes: ROOMY,
            is_new,
            is_kept,
            messages: BTreeMap::new(),
            open: BTreeSet::new(),
            sent: 0,
            chance: seed,
            ledgers: BTreeMap::new(),
            waiting: Vec::new(),
            charges: Charges::default(),
            most: None,
            passed_late: 0,
            decided: None,
            calls: 0,
            round_trips: 0,
            refused: Vec::new(),
            regions,
            loses_ahead: false,
            is_prompt: false,
        };
        for number in 1..=nodes as u16 {
            let (node, asker) = world.started(number, nodes, 1, (None, BTreeSet::new()));
            let way = Way::GOOD;
            world.nodes.push(Place1 {
                node,
                asker,
                process_number: 1,
                crashed: None,
                generations: Vec::new(),
                rows: BTreeMap::new(),
                knows_from_us: if is_new { 0 } else { START.wall_ns / 1_000 },
                is_disk_full: false,
                is_hung: false,
                is_left_behind: false,
                ahead_ns: 0,
                drift_ppm: 0,
                way,
                ticked_ns: 0,
            });
        }
        world
    }

    fn started(
        &self,
        number: u16,
        nodes: usize,
        process_number: u32,
        (crashed, rows_hold): (Option<Now>, BTreeSet<LimitId>),
    ) -> (Arc<Node>, Asker) {
        let place = usize::from(number) - 1;
        let is_mate = |other: &u16| {
            let of = self.regions.as_ref().map(|regions| &regions.of);
            of.is_none_or(|of| of[usize::from(*other) - 1] == of[place])
        };
        let all: BTreeSet<u16> = (1..=nodes as u16).filter(is_mate).collect();
        let now = if self.nodes.len() > place { self.now(place) } else { START };
        let region = RegionSetup {
            node: number,
            process_number,
            members: all
                .iter()
                .filter(|_| self.regions.is_some())
                .map(|mate| (*mate, MemberId(*mate)))
                .collect(),
            allocation: 0,
            nodes: all,
            guard_percent: self.percent,
            clock_error_ns: self.error_ns,
            drift_ppm: self.drift_ppm,
            begun_us: now.wall_ns / 1_000,
            knows_from_us: self.is_kept.then(|| self.knows_from_us(place, now)),
            is_new: self.is_new,
            rows_hold,
            generations: self.nodes.get(place).map_or_else(Vec::new, |at| at.generations.clone()),
        };
        let home = Home { incarnation: incarnation(place), loan_ttl_ns: regions::LOAN_TTL_NS };
        let home = self.regions.as_ref().map(|_| home);
        let config =
            Config { key: KEY, memory_bytes: self.memory_bytes, durable: false, after_crash: crashed, home };
        let node = Arc::new(match &self.regions {
            Some(regions) if !regions.have_stores => Node::new(config),
            _ => Node::among(config, Keep::default(), region),
        });
        if self.regions.is_some() {
            let disk = self.nodes.get(place).map(|at| &at.rows);
            let rows = |id| disk.map_or_else(Vec::new, |disk| rows_of(disk, id));
            node.resume_home(Vec::new(), now, rows).expect("its own disk");
            (0..nodes).for_each(|other| node.meet(incarnation(other)));
        } else if process_number > 1 {
            let until = |specs, until_ns| {
                let limits = scene::limits(specs).into_iter();
                limits.map(move |limit| acequia_node::Scheduled { limit, until_ns })
            };
            let retired = until(&self.retired, Some(now.wall_ns.saturating_sub(1)));
            let schedule = until(&self.specs, None).chain(retired).collect();
            node.resume(schedule, now).expect("the same limits");
            let disk = &self.nodes[place].rows;
            node.restore_all(now, |id| rows_of(disk, id));
        }
        if self.regions.is_none() {
            scene::apply(&node, &self.specs, now);
        }
        let rows = self.nodes.get(place).map_or_else(Vec::new, |at| rows_of(&at.rows, WITHDRAWALS));
        node.restore_withdrawals(rows, now);
        let asker = node.asker();
        (node, asker)
    }

    fn knows_from_us(&self, place: usize, now: Now) -> u64 {
        let began_us = if self.is_new { 0 } else { now.wall_ns / 1_000 };
        self.nodes.get(place).map_or(began_us, |at| at.knows_from_us)
    }

    /// A node loses power, and restarts with what is on its disk.
    pub(crate) fn crash(&mut self, place: usize) {
        self.nodes[place].crashed = Some(self.now(place));
        self.start(place, BTreeSet::new());
    }

    fn start(&mut self, place: usize, rows_hold: BTreeSet<LimitId>) {
        let process_number = self.nodes[place].process_number + 1;
        let crashed = (self.nodes[place].crashed, rows_hold);
        let (node, asker) = self.started(place as u16 + 1, self.nodes.len(), process_number, crashed);
        let at = &mut self.nodes[place];
        (at.node, at.asker, at.process_number, at.ticked_ns) = (node, asker, process_number, 0);
        // Write before any request comes.
        self.write(place);
    }

    /// Stops a node: it gives back what it holds for `gives_ns`, pauses for `pause_ns`, and restarts with
    /// what it has written.
    pub(crate) fn stop(&mut self, place: usize, (gives_ns, pause_ns): (u64, u64)) {
        let is_cut = self.regions.as_mut().is_some_and(|regions| !regions.cut.insert(place));
        // The node answers no more callers.
        self.waiting.retain(|waiting| waiting.place != place);
        self.nodes[place].node.leave_pools(self.now(place));
        self.pass(gives_ns);
        self.write(place);
        let (at, now) = (&self.nodes[place], self.now(place));
        let (node, is_disk_full) = (Arc::clone(&at.node), at.is_disk_full);
        let disk = &mut self.nodes[place].rows;
        if !is_disk_full {
            node.close(now, |row| drop(disk.insert((row.limit, row.tag), row)));
        }
        self.nodes[place].is_hung = true;
        self.pass(pause_ns);
        self.nodes[place].is_hung = false;
        if let Some(regions) = self.regions.as_mut().filter(|_| !is_cut) {
            regions.cut.remove(&place);
        }
        if is_disk_full {
            return self.crash(place);
        }
        self.start(place, node.known_limits().into_iter().collect());
    }

    /// Stops a node for random times. The process may end while it is still giving back.
    pub(crate) fn stop_at_random(&mut self, place: usize) {
        let (gives_ns, pause_ns) =
            (self.below(4) * self.below(300 * MS), self.below(2) * self.below(4_000 * MS));
        self.stop(place, (gives_ns, pause_ns));
    }

    /// A node loses power and its disk.
    pub(crate) fn lose_disk(&mut self, place: usize) {
        let now_us = self.now(place).wall_ns / 1_000;
        let at = &mut self.nodes[place];
        at.generations.clear();
        at.rows.clear();
        at.knows_from_us = now_us;
        self.is_new = true;
        self.crash(place);
        self.is_new = false;
    }

    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.chance = self.chance.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.chance;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % most.max(1)
    }

    pub(crate) fn now(&self, place: usize) -> Now {
        let at = &self.nodes[place];
        let drifted = i128::from(self.true_ns) * i128::from(at.drift_ppm) / 1_000_000;
        let steady = i128::from(START.steady_ns) + i128::from(self.true_ns) + drifted;
        let wall = START.wall_ns + self.true_ns;
        Now {
            steady_ns: u64::try_from(steady).expect("after the start"),
            wall_ns: wall.saturating_add_signed(at.ahead_ns),
        }
    }

    fn true_now(&self) -> Now {
        Now { steady_ns: START.steady_ns + self.true_ns, wall_ns: START.wall_ns + self.true_ns }
    }

    /// Requests units of a key under the limit whose name is the key's first letter. Returns whether the
    /// request passed, and counts what passed.
    pub(crate) fn ask(&mut self, place: usize, key: &str, cost: u64) -> bool {
        self.ask_as(place, key, cost, Ask::CHECK).0
    }

    /// Like `ask`, but if the node suggests a wait, the caller waits and asks again when units arrive.
    pub(crate) fn ask_and_wait(&mut self, place: usize, key: &str, cost: u64) -> bool {
        let node = Arc::clone(&self.nodes[place].node);
        let (is_allowed, patience_ns) = self.ask_as(place, key, cost, Ask::CHECK);
        let until_ns = self.true_ns + patience_ns;
        if is_allowed {
            return true;
        }
        while self.true_ns < until_ns {
            let news = node.news();
            while self.true_ns < until_ns && node.news() == news {
                self.pass((MS / 10).min(until_ns - self.true_ns));
            }
            if self.ask_as(place, key, cost, Ask::CHECK.again()).0 {
                return true;
            }
        }
        false
    }

    /// Like `ask_and_wait`, but time stands still: `passed_late` counts the requests that pass later.
    pub(crate) fn ask_or_wait(&mut self, place: usize, key: &str, cost: u64) -> bool {
        let (is_allowed, patience_ns) = self.ask_as(place, key, cost, Ask::CHECK.forwarding(Forwarding::May));
        if is_allowed || patience_ns == 0 {
            self.note_decided(place, self.true_ns, is_allowed);
        } else {
            let (came_ns, since_ns, at) = (self.true_ns, self.now(place).steady_ns, &self.nodes[place]);
            let (process_number, news, until_ns) = (at.process_number, at.node.news(), came_ns + patience_ns);
            let (key, forwarded) = (key.to_owned(), None);
            let again_ns = came_ns + FORWARD_AGAIN_NS;
            let mut waiting = Waiting {
                place,
                process_number,
                key,
                cost,
                came_ns,
                since_ns,
                until_ns,
                again_ns,
                news,
                forwarded,
            };
            self.forward(&mut waiting);
            self.waiting.push(waiting);
        }
        is_allowed
    }

    /// Records the outcome of the last request at a node.
    fn note_decided(&mut self, place: usize, came_ns: u64, is_allowed: bool) {
        let Some(decided) = &mut self.decided else { return };
        let remaining =
            self.nodes[place].asker.last().0.limits.first().map_or(0, |limit| limit.verdict.remaining);
        decided.push(Decided { came_ns, at_ns: self.true_ns, is_allowed, remaining });
    }

    /// Also returns how long the caller may wait.
    fn ask_as(&mut self, place: usize, key: &str, cost: u64, ask: Ask) -> (bool, u64) {
        self.ask_since(place, key, cost, (ask, self.true_ns))
    }

    /// Like `ask_as`, for a request that came at the given time.
    fn ask_since(&mut self, place: usize, key: &str, cost: u64, (ask, came_ns): (Ask, u64)) -> (bool, u64) {
        let now = self.now(place);
        let node = Arc::clone(&self.nodes[place].node);
        let answer = scene::ask_as(&mut self.nodes[place].asker, key, cost, now, ask);
        let patience_ns = node.patience_ns(answer, &node.catalogue(), S, 0);
        let (is_allowed, limits) = (answer.allowed, answer.limits.clone());
        for limit in limits.iter().filter(|_| is_allowed) {
            if limit.is_forwarded {
                let id = node.catalogue().limits[limit.limit as usize].limit.id;
                self.use_charge(place, (id, named(limit)), limit.units, came_ns);
            } else {
                self.admit(
                    (limit.limit as usize, key, limit.budget),
                    limit.tag,
                    limit.units,
                    &place.to_string(),
                );
            }
        }
        (is_allowed, patience_ns)
    }

    /// The number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Counts what a node charged.
    #[track_caller]
    fn admit(&mut self, (limit, key, budget): (usize, &str, u64), tag: CellTag, units: u64, node: &str) {
        let now = self.true_now();
        let spec = &self.specs[limit];
        let terms = self.most.unwrap_or(Terms { limit: budget, hourly: hourly_of(spec, key) });
        let ledger = self.ledgers.entry((limit, key.to_owned()));
        let ledger = ledger.or_insert_with(|| Ledger::new(Promise::of(spec, tag), terms, START));
        ledger.admit(&format!("{} {key} at node {node}", spec.name), units, now);
    }

    /// Asks again for up to 3 ms, like a caller that waits for pools only. Returns whether the request
    /// passed.
    pub(crate) fn ask_patiently(&mut self, place: usize, key: &str, cost: u64) -> bool {
        let until_ns = self.true_ns + 3 * MS;
        while !self.ask(place, key, cost) {
            if self.true_ns >= until_ns {
                return false;
            }
            self.pass(MS / 5);
        }
        true
    }

    /// Sends up to 23 requests for the key `k` to random nodes, most for one unit, and lets some time pass.
    pub(crate) fn ask_around(&mut self) {
        let nodes = self.nodes.len() as u64;
        for _ in 0..self.below(24) {
            let (place, cost) = (self.below(nodes) as usize, self.below(20) / 18 * self.below(20));
            if self.regions.is_some() && self.below(2) == 0 {
                self.ask_or_wait(place, "k", 1 + cost)
            } else {
                self.ask(place, "k", 1 + cost)
            };
        }
        let pause = [MS, 10 * MS, 100 * MS, 100 * MS][self.below(4) as usize];
        let pause = self.below(pause);
        self.pass(pause);
    }

    /// Repairs everything, and keeps some requests coming.
    pub(crate) fn mend(&mut self) {
        self.regions.iter_mut().for_each(|regions| regions.cut.clear());
        for at in &mut self.nodes {
            (at.way, at.is_disk_full, at.is_left_behind) = (Way::GOOD, false, false);
        }
        let nodes = self.nodes.len() as u64;
        for _ in 0..1_000 {
            let place = self.below(nodes) as usize;
            self.ask(place, "k", 1);
            self.pass(20 * MS);
        }
    }

    /// Whether the first node's catalogue, if it has one, contains the given node.
    pub(crate) fn is_member(&self, place: usize) -> bool {
        let version = self.nodes[0].node.version();
        version.is_none_or(|version| version.members.contains_key(&incarnation(place).member))
    }

    /// Asserts that every pool grants to every node that has a share.
    #[track_caller]
    pub(crate) fn expect_granting(&self, when: &str) {
        for (place, at) in self.nodes.iter().enumerate().filter(|(place, _)| self.is_member(*place)) {
            let counts = at.node.lease_counts();
            assert_eq!(counts.granting, u64::from(GROUPS), "{when}, node {place}: {counts:?}");
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, ns: u64) {
        let end_ns = self.true_ns + ns;
        loop {
            self.tick();
            self.wake_waiting();
            let message = self.messages.keys().next().map(|(at, _)| *at);
            let give_up = self.open.first().map(|(at, ..)| *at);
            let ticking = self.nodes.iter().filter(|at| !at.is_hung);
            let tick = ticking.map(|at| at.ticked_ns + 10 * MS).min();
            let waiting = self.waiting.iter().map(|waiting| waiting.until_ns).min();
            let rebalance = self.next_rebalance_ns();
            let next_ns =
                [message, give_up, tick, waiting, rebalance].into_iter().flatten().min().unwrap_or(end_ns);
            if next_ns > end_ns {
                break;
            }
            self.true_ns = self.true_ns.max(next_ns);
            self.deliver();
        }
        self.true_ns = end_ns;
        self.tick();
        self.wake_waiting();
    }

    /// When the next cell is due to be rebalanced, in prompt worlds.
    fn next_rebalance_ns(&self) -> Option<u64> {
        let prompt = (0..self.nodes.len()).filter(|place| self.is_prompt && !self.nodes[*place].is_hung);
        let due_ns = prompt.filter_map(|place| {
            let after_ns = self.nodes[place].node.leases_due_ns()?.saturating_sub(self.now(place).steady_ns);
            (after_ns > 0).then_some(self.true_ns + after_ns + after_ns / 1_000)
        });
        due_ns.min()
    }

    fn tick(&mut self) {
        for place in 0..self.nodes.len() {
            let at = &self.nodes[place];
            if at.is_hung {
                continue;
            }
            let now = self.now(place);
            let due_ns = if self.is_prompt { at.node.leases_due_ns() } else { None };
            let is_due = due_ns.is_some_and(|due_ns| due_ns <= now.steady_ns);
            if at.ticked_ns == 0 || self.true_ns >= at.ticked_ns + 10 * MS || at.node.calls() || is_due {
                if self.regions.is_some() {
                    self.note_wholes(place);
                    let at = &self.nodes[place];
                    let adopted = at.node.tick(now, |id| Some(rows_of(&at.rows, id)));
                    adopted.expect("a version that fits");
                }
                self.nodes[place].node.tick_leases(now);
                self.nodes[place].ticked_ns = self.true_ns.max(1);
                self.write(place);
                if let Some(generations) = self.nodes[place].node.unkept_generations() {
                    let at = &mut self.nodes[place];
                    if at.is_disk_full {
                        at.node.generations_kept(&[], now);
                    } else {
                        at.node.generations_kept(&generations, now);
                        at.generations = generations;
                    }
                }
            }
            while self.regions.is_some()
                && let Some((to, frame)) = self.nodes[place].node.poll(self.now(place))
            {
                self.send_frame(place, usize::from(to.0) - 1, frame);
            }
            let mut calls = false;
            while let Some(call) = self.nodes[place].node.poll_call() {
                self.round_trips += u64::from(!std::mem::replace(&mut calls, true));
                self.calls += u64::from(matches!(
                    call.question,
                    PoolRequest::Take(..) | PoolRequest::Exchange(..) | PoolRequest::Slide(..)
                ));
                let process_number = self.nodes[place].process_number;
                let until_ns = self.true_ns + CALL_NS;
                self.open.insert((until_ns, place, process_number, call.id));
                self.send(place, Message::Call(until_ns, place, process_number, call));
            }
        }
    }

    /// Writes a node's queued rows to its disk.
    fn write(&mut self, place: usize) {
        let at = &mut self.nodes[place];
        while !at.is_disk_full
            && let Some((batch, rows)) = at.node.take_rows()
        {
            for row in rows {
                match row.state {
                    Some(_) => drop(at.rows.insert((row.limit, row.tag), row)),
                    None => drop(at.rows.remove(&(row.limit, row.tag))),
                }
            }
            at.node.committed(batch);
        }
    }

    /// Number of rows on a node's disk.
    pub(crate) fn rows(&self, place: usize) -> usize {
        self.nodes[place].rows.len()
    }

    fn send(&mut self, place: usize, message: Message) {
        let Way { delay_ns: (least, most), lost } = self.nodes[place].way;
        if self.below(100) < lost {
            return;
        }
        let at_ns = self.true_ns + least + self.below(most - least);
        self.sent += 1;
        self.messages.insert((at_ns, self.sent), message);
    }

    fn send_frame(&mut self, from: usize, to: usize, frame: Vec<u8>) {
        let Some(regions) = &mut self.regions else { return };
        let is_near = regions.of[from] == regions.of[to];
        let (least, most) = if is_near { regions.near_ns } else { regions.delay_ns };
        if !is_near {
            regions.crossed.0 += 1;
            regions.crossed.1 += frame.len() as u64;
            if regions::wire::read(&frame).is_ok_and(|frame| frame.entries.is_empty()) {
                regions.pulses += 1;
            }
        } else {
            self.note_forwards(from, to, &frame);
        }
        let Some(regions) = &self.regions else { return };
        if !regions.cut.contains(&from) && !regions.cut.contains(&to) {
            let times = 1 + u64::from(regions.repeated > 0 && self.below(100) < self.repeated());
            for time in 0..times {
                let late_ns = if time > 0 { self.below(60 * MS) } else { 0 };
                let at_ns = self.true_ns + least + self.below(most - least) + late_ns;
                self.sent += 1;
                self.messages.insert((at_ns, self.sent), Message::Frame(from, to, frame.clone()));
            }
        }
    }

    fn repeated(&self) -> u64 {
        self.regions.as_ref().map_or(0, |regions| regions.repeated)
    }

    /// The server of a node's region.
    fn server_of(&mut self, place: usize) -> &mut Server {
        let Some(regions) = &mut self.regions else { return &mut self.server };
        match regions.of[place] {
            0 => &mut self.server,
            region => &mut regions.servers[region - 1],
        }
    }

    /// The first node orders shares of the current limits by these weights. Returns whether the order
    /// succeeded.
    pub(crate) fn order(&mut self, weights: &[(usize, u32)]) -> bool {
        self.order_without(weights, &[])
    }

    /// Like `order`, where the operator declares some nodes stopped for good.
    pub(crate) fn order_without(&mut self, weights: &[(usize, u32)], stopped: &[usize]) -> bool {
        let now = self.now(0);
        let of: Vec<usize> = self.regions.as_ref().map_or_else(Vec::new, |regions| regions.of.clone());
        let member = |(place, weight): &(usize, u32)| {
            let incarnation = incarnation(*place);
            let name = of.get(*place).map_or_else(String::new, |region| format!("r{region}/n{place}"));
            (incarnation.member, Member { weight: *weight, incarnation, name })
        };
        let specs: &[LimitSpec] = if self.is_gone { &[] } else { &self.specs };
        let draft = Draft {
            members: weights.iter().map(member).collect(),
            fenced: stopped
                .iter()
                .map(|place| Fence { incarnation: incarnation(*place), wall_ns: now.wall_ns })
                .collect(),
            clock_error_ns: self.error_ns,
            drift_ppm: self.drift_ppm,
            key: CellKey(KEY.0),
            limits: regions::limits_to_bytes(specs).expect("limits"),
            revoked: Default::default(),
        };
        let at = &self.nodes[0];
        let version = at.node.propose(draft, now.wall_ns);
        version.is_ok_and(|version| {
            at.node.adopt(version, now, |id| Some(rows_of(&at.rows, id))).expect("a version that fits");
            true
        })
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.messages.first_entry().filter(|entry| entry.key().0 <= self.true_ns) {
            match entry.remove() {
                Message::Call(until_ns, place, process_number, call) => {
                    let is_left_behind = self.nodes[place].is_left_behind;
                    let said = match &mut self.old {
                        Some(old) if is_left_behind => old.serve(&call),
                        _ => self.server_of(place).serve(&call),
                    };
                    if matches!(said, PoolReply::Refused(_)) {
                        self.refused.push(said);
                    }
                    let is_ahead = matches!(&call.question, PoolRequest::Take(_, take)
                        if take.begins_us * 1_000 > self.true_now().wall_ns);
                    if !(is_ahead && self.loses_ahead) {
                        self.send(place, Message::Answer(until_ns, place, process_number, call.id, said));
                    }
                }
                Message::Frame(from, to, frame) => {
                    self.note_wholes(to);
                    let now = self.now(to);
                    // The node refuses frames of an ended process.
                    let _ = self.nodes[to].node.handle(incarnation(from).member, &frame, now);
                }
                Message::Answer(until_ns, place, process_number, id, said) => {
                    if self.open.remove(&(until_ns, place, process_number, id))
                        && self.nodes[place].process_number == process_number
                    {
                        let now = self.now(place);
                        self.nodes[place].node.answer_call(id, &said, now);
                    }
                }
            }
        }
        while let Some((until_ns, place, process_number, id)) =
            self.open.first().copied().filter(|late| late.0 <= self.true_ns)
        {
            self.open.remove(&(until_ns, place, process_number, id));
            if self.nodes[place].process_number == process_number {
                let now = self.now(place);
                self.nodes[place].node.answer_call(id, &PoolReply::Nothing, now);
            }
        }
    }

    /// Changes the limits at every node at once.
    pub(crate) fn renumber(&mut self, specs: &[LimitSpec]) {
        self.specs = specs.to_vec();
        for place in 0..self.nodes.len() {
            scene::apply(&self.nodes[place].node, specs, self.now(place));
        }
    }

    /// Whether a call that satisfies the predicate is on its way to a server.
    pub(crate) fn is_under_way(&self, is_such: impl Fn(&Call) -> bool) -> bool {
        self.messages.values().any(|message| matches!(message, Message::Call(_, _, _, call) if is_such(call)))
    }

    /// Starts the ledgers again, under the current limits.
    pub(crate) fn forget_counts(&mut self) {
        self.ledgers.clear();
    }

    /// An operator's view of what a node holds for a key of the first limit.
    pub(crate) fn holding(&self, place: usize, key: &str) -> Holding {
        let (node, now) = (&self.nodes[place].node, self.now(place));
        let entries = [(&b"key"[..], key.as_bytes())];
        let values = Descriptor::new(&entries, None);
        let limit = node.catalogue().limits[0].limit.id;
        node.holding_named(limit, &values, now).expect("a cell")
    }

    /// Units of a limit and key that passed.
    pub(crate) fn admitted(&self, limit: usize, key: &str) -> u64 {
        self.ledgers.get(&(limit, key.to_owned())).map_or(0, |ledger| ledger.total)
    }
}

/// A cell's tag as frames carry it: the shard's bits and the low 96 bits.
fn named(limit: &LimitAnswer) -> CellTag {
    CellTag(limit.tag.0 & (0xFF << 120 | ((1 << 96) - 1)))
}

/// Units that a bucket earns in an hour, by the key's override if it has one.
fn hourly_of(spec: &LimitSpec, key: &str) -> u64 {
    let is_its =
        |fields: &&BTreeMap<String, ValueSpec>| fields.get("key").is_some_and(|keys| keys.texts() == [key]);
    let its = spec.overrides.iter().find(is_its).and_then(|fields| fields.get("rate")?.texts().first());
    let rate = spec.token_bucket.as_ref().map(|bucket| &bucket.rate);
    let rate = rate.or(spec.leaky_bucket.as_ref().map(|bucket| &bucket.rate));
    let Some(rate) = its.or(rate) else { return 0 };
    let (units, per) = rate.split_once('/').expect("a rate");
    let each = match per {
        "s" => 3_600,
        "m" => 60,
        "h" => 1,
        other => panic!("a rate a {other}"),
    };
    units.parse::<u64>().expect("units") * each
}

/// A disk's rows for a limit id.
fn rows_of(disk: &BTreeMap<(LimitId, CellTag), Row>, id: LimitId) -> Vec<Row> {
    disk.iter().filter(|((limit, _), _)| *limit == id).map(|(_, row)| row.clone()).collect()
}
