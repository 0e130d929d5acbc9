//! Pools under random histories. An outside judge checks what all nodes admit, by true time.

mod idempotency;
mod stories;
mod totals;
mod windows;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::loans::random::Random;
use acequia_limits::{Part, RATE_PARTS, Rate, meter::Meter};
use acequia_rights::pool::{
    Bucket, BucketBalance, CallContext, Generation, PoolGroup, Sliding, Taker, Window, bucket,
    group::{Assertion, Begin, GroupStatus, ServerIdentity},
    keep_us, slack_us, sliding, window,
};

const MS: u64 = 1_000;
const ERROR_NS: u64 = 5_000_000;
const TTL_NS: u64 = 1_500_000_000;
const LATE_NS: u64 = 8_000_000;
const WINDOW_US: u64 = 700 * MS;
const NODES: u16 = 3;

/// The state of one server.
#[derive(Clone, Debug, Default)]
struct Server {
    group: PoolGroup,
    bucket: Bucket,
    windows: BTreeMap<u64, Window>,
    sliding: Sliding,
}

/// A call on its way, or its answer.
#[derive(Clone, Debug)]
enum Message {
    Bucket(bucket::Exchange),
    Sliding(sliding::Slide),
    Window(u64, window::Take),
    Begin {
        heard: u64,
        goes_on: bool,
    },
    Assert,
    GotBucket(u64, bucket::Exchanged),
    GotSliding(u64, u64),
    GotWindow(u64, u64),
    /// The state of the group.
    Known(GroupStatus),
    /// The reply to a node's complete report. It also says whether all other nodes have reported.
    Told(GroupStatus),
}

#[derive(Clone, Debug)]
struct Sent {
    at_us: u64,
    /// The caller's wall clock when it sent the message.
    wall_us: u64,
    node: u16,
    process_number: u32,
    run: u64,
    generation: Generation,
    message: Message,
}

#[derive(Clone, Debug, Default)]
struct Node {
    process_number: u32,
    wall_off_us: i64,
    generation: Generation,
    begun: u64,
    /// Whether the node has confirmed its complete report in this generation, and which pools have answered.
    told: bool,
    heard: BTreeSet<u64>,
    /// Whether the generation grants, and the last generation that the node had heard of before it.
    grants: bool,
    before: Generation,
    balance: BucketBalance,
    /// The node's debt, in parts of a unit at the whole rate: see `World::weight`.
    debt: u128,
    drained_us: u64,
    sliding: sliding::SlidingBalance,
    /// Charges by this process in the sliding window: time and units.
    log: VecDeque<(u64, u64)>,
    /// Balances of each window, including those of earlier processes.
    windows: BTreeMap<u64, window::WindowBalance>,
    knows_from_us: u64,
    /// Whether this process, or an earlier one with its disk, had heard of a generation that granted.
    is_proven: bool,
    /// Whether the generation is a first one.
    is_first: bool,
    /// An unproven node refuses generations up to this number, and makes no calls before this time.
    floor: u64,
    calm_us: u64,
}

impl Node {
    /// A node with an empty disk.
    fn begin(process_number: u32, wall_off_us: i64, now_us: u64) -> Self {
        let (wall_us, apart_us) = (now_us.saturating_add_signed(wall_off_us), 2 * ERROR_NS / 1_000);
        Self {
            process_number,
            wall_off_us,
            drained_us: now_us,
            knows_from_us: wall_us,
            floor: wall_us + apart_us,
            calm_us: now_us + apart_us,
            ..Self::default()
        }
    }
}

struct World {
    random: Random,
    now_us: u64,
    server: Server,
    run: u64,
    copies: Vec<Server>,
    /// Processes that nobody reaches. They may return in their old state.
    hung: Vec<(u64, Server)>,
    /// The number of processes so far.
    runs: u64,
    nodes: Vec<Node>,
    wire: Vec<Sent>,
    meter: Meter,
    params: bucket::BucketParams,
    total: u64,
    /// All that was admitted: the bucket's debt by true time, and the charges in the windows and the sliding
    /// window.
    debt: u128,
    drained_us: u64,
    spent: BTreeMap<u64, u64>,
    log: VecDeque<(u64, u64)>,
    admitted: [u64; 3],
    /// The number of window calls.
    takes: u64,
    /// A violation, if one was found.
    fault: Option<String>,
    /// The only kind of request, if there is just one, and the kinds of mishaps.
    focus: Option<u64>,
    mishaps: u64,
    /// The longest time until the next event, in microseconds.
    slowly: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let units = 1 + random.below(40);
        let rate =
            Rate::parse(["10/s", "40/s", "200/s", "7/m", "999/s"][random.below(5) as usize]).expect("a rate");
        let meter = Meter::new(rate, units);
        let part = Part { rate: RATE_PARTS, units };
        let params = bucket::BucketParams::of(&meter, part, slack_us(ERROR_NS, LATE_NS)).expect("parameters");
        let off =
            |random: &mut Random| random.below(2 * ERROR_NS / 1_000 + 1) as i64 - (ERROR_NS / 1_000) as i64;
        let now_us = 1_700_000_000_000_000;
        let nodes = (0..NODES).map(|_| Node::begin(1, off(&mut random), now_us)).collect();
        let total = 1 + random.below(60);
        let focus = Some(random.below(5)).filter(|kind| *kind < 3);
        let mishaps = random.below(16);
        let slowly = [3 * MS, 20 * MS, 100 * MS][random.below(3) as usize];
        Self {
            random,
            now_us,
            server: Server::default(),
            run: 1,
            copies: Vec::new(),
            hung: Vec::new(),
            runs: 1,
            nodes,
            wire: Vec::new(),
            meter,
            params,
            total,
            debt: 0,
            drained_us: now_us,
            spent: BTreeMap::new(),
            log: VecDeque::new(),
            admitted: [0; 3],
            takes: 0,
            fault: None,
            focus,
            mishaps,
            slowly,
        }
    }

    fn wall_us(&self, node: u16) -> u64 {
        self.now_us.saturating_add_signed(self.nodes[node as usize].wall_off_us)
    }

    /// The weight of a unit, if one part of the rate gives `n` in a nanosecond.
    fn weight(&self) -> u128 {
        u128::from(self.meter.terms().1) * u128::from(RATE_PARTS)
    }

    fn given(&self, rate: u32, us: u64) -> u128 {
        u128::from(self.meter.terms().0) * u128::from(rate) * u128::from(us) * 1_000
    }

    fn step(&mut self) {
        let patience = [0, 0, 0, 200, 500, MS, 3 * MS, self.slowly][self.random.below(8) as usize];
        self.now_us += self.random.below(patience + 1);
        (0..NODES).for_each(|node| self.settle(node));
        let node = self.random.below(u64::from(NODES)) as u16;
        match self.random.below(1_000) {
            0..350 => self.admit_some(node),
            350..500 => self.call(node),
            500..980 => (0..=self.random.below(8)).for_each(|_| self.deliver()),
            980..983 => self.wire.clear(),
            983..986 if self.mishaps & 1 > 0 => self.crash(node),
            986 => self.copies.push(self.server.clone()),
            987 if self.mishaps & 2 > 0 => self.forget(),
            988..990 => {
                let most = (ERROR_NS / 1_000) as i64;
                self.nodes[node as usize].wall_off_us = self.random.below(2 * most as u64 + 1) as i64 - most;
            }
            990..992 if self.mishaps & 4 > 0 => {
                self.forget();
                self.crash(node);
            }
            992 if self.mishaps & 8 > 0 => self.hang(),
            993..995 => self.now_us += self.random.below(WINDOW_US),
            _ => {}
        }
    }

    /// Spends everything there is, or a little.
    fn admit_some(&mut self, node: u16) {
        let (kind, cost) = (self.focus.unwrap_or(self.random.below(3)), 1 + self.random.below(4));
        let times = if self.random.below(2) == 0 { 100 } else { self.random.below(4) };
        for _ in 0..times {
            if !self.admit(node, kind, cost) && !self.admit(node, kind, 1) {
                break;
            }
        }
    }

    /// Drains a node's bucket and ends its leases.
    fn settle(&mut self, at: u16) {
        let now_us = self.now_us;
        let given = |world: &Self, node: &Node, until_us: u64| {
            world.given(node.balance.part().rate, until_us.saturating_sub(node.drained_us))
        };
        let mut node = std::mem::take(&mut self.nodes[at as usize]);
        let end_us = node.balance.end_ns() / 1_000;
        if node.balance.part() != Part::default() && end_us <= now_us {
            node.debt = node.debt.saturating_sub(given(self, &node, end_us));
            let change = node.balance.settle(now_us * 1_000).expect("over");
            node.debt = node.debt.saturating_sub(u128::from(change.shed) * self.weight());
        } else {
            node.debt = node.debt.saturating_sub(given(self, &node, now_us));
        }
        node.drained_us = now_us;
        node.log.retain(|(when, _)| when + WINDOW_US > now_us);
        self.nodes[at as usize] = node;
    }

    fn level(&self, node: &Node) -> u64 {
        let capacity = u128::from(node.balance.part().units) * self.weight();
        u64::try_from(capacity.saturating_sub(node.debt) / self.weight()).expect("few units")
    }

    fn unused(&self, node: &Node) -> u64 {
        node.sliding.units(self.now_us * 1_000).saturating_sub(node.log.iter().map(|(_, units)| units).sum())
    }

    /// The start of the window in which a node's wall clock is.
    fn window(&self, node: u16) -> u64 {
        self.wall_us(node) / WINDOW_US * WINDOW_US
    }

    /// Whether the request passes.
    fn admit(&mut self, at: u16, kind: u64, cost: u64) -> bool {
        let begins_us = self.window(at);
        let node = &self.nodes[at as usize];
        let before = self.admitted;
        match kind {
            0 if cost <= self.level(node) => {
                self.nodes[at as usize].debt += u128::from(cost) * self.weight();
                let given = self.given(RATE_PARTS, self.now_us - self.drained_us);
                self.debt = self.debt.saturating_sub(given) + u128::from(cost) * self.weight();
                self.drained_us = self.now_us;
                self.admitted[0] += cost;
                let most = u128::from(self.params.part.units) * self.weight();
                if self.debt > most {
                    self.fault = Some(format!(
                        "the bucket is over by {} units",
                        (self.debt - most).div_ceil(self.weight())
                    ));
                }
            }
            1 if cost <= self.unused(node) => {
                let when = (self.now_us, cost);
                self.nodes[at as usize].log.push_back(when);
                self.log.push_back(when);
                self.log.retain(|(when, _)| when + WINDOW_US > self.now_us);
                self.admitted[1] += cost;
                let used: u64 = self.log.iter().map(|(_, units)| units).sum();
                if used > self.total {
                    self.fault = Some(format!("{used} of {} units in a sliding window", self.total));
                }
            }
            2 if self.nodes[at as usize].windows.entry(begins_us).or_default().spend(cost) => {
                let spent = self.spent.entry(begins_us).or_default();
                *spent += cost;
                self.admitted[2] += cost;
                if *spent > self.total {
                    self.fault = Some(format!("{spent} of {} units in a window", self.total));
                }
            }
            _ => {}
        }
        before != self.admitted
    }

    fn send(&mut self, node: u16, message: Message) {
        let most_us = if self.random.below(20) == 0 { 400 * MS } else { MS };
        let at_us = self.now_us + self.random.below(most_us);
        let Node { process_number, generation, .. } = self.nodes[node as usize];
        let sent = Sent {
            at_us,
            wall_us: self.wall_us(node),
            node,
            process_number,
            run: self.run,
            generation,
            message,
        };
        let copies = [1, 1, 1, 1, 1, 1, 2, 0][self.random.below(8) as usize];
        for late in 0..copies {
            self.wire.push(Sent { at_us: at_us + late * self.random.below(500 * MS), ..sent.clone() });
        }
    }

    fn call(&mut self, at: u16) {
        let asks = self.focus.unwrap_or(self.random.below(3)) + self.random.below(4) / 3 * 2;
        let told = self.nodes[at as usize].told;
        let generation = self.nodes[at as usize].generation;
        if generation.number == 0 {
            let Node { floor, calm_us, .. } = self.nodes[at as usize];
            return if self.now_us >= calm_us {
                self.send(at, Message::Begin { heard: floor, goes_on: true });
            };
        }
        if told && !self.nodes[at as usize].grants {
            self.send(at, Message::Assert);
            if !self.nodes[at as usize].is_proven {
                // An unproven node withdraws nothing that it could not remember.
                return;
            }
        }
        if !told {
            // The node reports all that it holds. When every pool has answered, it confirms that the report
            // is complete.
            let node = &self.nodes[at as usize];
            let windows: Vec<u64> =
                node.windows.keys().copied().filter(|begins_us| !node.heard.contains(begins_us)).collect();
            let (bucket, sliding) = (node.heard.contains(&0), node.heard.contains(&1));
            if windows.is_empty() && bucket && sliding {
                return self.send(at, Message::Assert);
            }
            if !bucket {
                self.bucket_call(at, Part::default());
            }
            if !sliding {
                self.sliding_call(at, 0);
            }
            return windows.into_iter().for_each(|begins_us| self.window_call(at, begins_us, 0));
        }
        let some = 1 + self.random.below(self.total.max(self.params.part.units));
        match asks {
            0 => {
                let rate =
                    self.random.below(u64::from(RATE_PARTS)) as u32 * u32::from(self.random.below(2) == 0);
                self.bucket_call(at, Part { rate, units: some });
            }
            1 => self.sliding_call(at, some),
            2 => self.window_call(at, self.window(at), some),
            _ => {
                // Some of the unused units are returned.
                let begins_us = self.window(at);
                if let Some(balance) = self.nodes[at as usize].windows.get_mut(&begins_us) {
                    balance.give_back(self.random.below(balance.left() + 1));
                }
                self.window_call(at, begins_us, 0);
            }
        }
    }

    fn taker(&self, at: u16, call: u64) -> Taker {
        Taker { node: at + 1, process_number: self.nodes[at as usize].process_number, call }
    }

    fn bucket_call(&mut self, at: u16, wanted: Part) {
        let mut node = self.nodes[at as usize].clone();
        let part = node.balance.part();
        let keeps = if wanted.units % 3 == 1 {
            Part {
                rate: self.random.below(u64::from(part.rate) + 1) as u32,
                units: self.random.below(part.units + 1),
            }
        } else {
            part
        };
        let tokens = self.random.below(self.level(&node).min(part.units - keeps.units) + 1);
        let (call, change) = node.balance.ask(keeps, tokens, self.now_us * 1_000);
        node.debt = node.debt.saturating_sub(u128::from(change.shed) * self.weight());
        self.nodes[at as usize] = node;
        let (taker, keep_us) = (self.taker(at, call), keep_us(TTL_NS, 0, ERROR_NS));
        let needed = self.random.below(wanted.units + 1) * self.random.below(2);
        let reserved = 0;
        self.send(
            at,
            Message::Bucket(bucket::Exchange { taker, keeps, tokens, wanted, needed, reserved, keep_us }),
        );
    }

    fn sliding_call(&mut self, at: u16, wanted: u64) {
        let node = &self.nodes[at as usize];
        let unused = self.random.below(self.unused(node) + 1);
        let (call, keeps) = self.nodes[at as usize].sliding.ask(unused, self.now_us * 1_000);
        let exchange = sliding::Slide {
            taker: self.taker(at, call),
            keeps,
            unused,
            wanted,
            needed: self.random.below(wanted + 1) * self.random.below(2),
            reserved: 0,
            keep_us: keep_us(TTL_NS, 0, ERROR_NS),
            lingers_us: WINDOW_US + slack_us(ERROR_NS, LATE_NS),
            total: self.total,
            slack_us: slack_us(ERROR_NS, LATE_NS),
        };
        self.send(at, Message::Sliding(exchange));
    }

    fn window_call(&mut self, at: u16, begins_us: u64, wanted: u64) {
        let balance = self.nodes[at as usize].windows.get(&begins_us).copied().unwrap_or_default();
        self.takes += 1;
        let take = window::Take {
            taker: self.taker(at, self.takes),
            taken: balance.taken(),
            returned: balance.returned(),
            wanted,
            needed: self.random.below(wanted + 1) * self.random.below(2),
            reserved: 0,
            // Some nodes go by what others reported.
            total: match self.random.below(4) {
                0 => window::Total::AsSaid(u64::MAX),
                1 => window::Total::Ahead(self.total),
                _ => window::Total::Open(self.total),
            },
            begins_us,
            drops_us: begins_us + 60 * WINDOW_US,
        };
        self.send(at, Message::Window(begins_us, take));
    }

    fn deliver(&mut self) {
        let due: Vec<usize> =
            (0..self.wire.len()).filter(|place| self.wire[*place].at_us <= self.now_us).collect();
        if due.is_empty() {
            return;
        }
        let sent = self.wire.remove(due[self.random.below(due.len() as u64) as usize]);
        match sent.message {
            Message::GotBucket(..)
            | Message::GotSliding(..)
            | Message::GotWindow(..)
            | Message::Known(_)
            | Message::Told(_) => self.hear(sent),
            // A replaced process answers nobody.
            _ if sent.run == self.run => self.answer(sent),
            _ => {}
        }
    }

    fn answer(&mut self, sent: Sent) {
        let identity = ServerIdentity { run: self.run.to_string(), config_fingerprint: 0, allocation: 0 };
        let wall_us = sent.wall_us;
        let context = self.server.group.context(&identity, sent.generation, wall_us);
        let known = |server: &Server| Message::Known(server.group.known(&identity));
        let answer = match (&sent.message, context) {
            (Message::Begin { heard, goes_on }, _) => {
                let node = &mut self.nodes[sent.node as usize];
                node.begun += 1;
                let by = Taker { node: sent.node + 1, process_number: sent.process_number, call: node.begun };
                self.server.group.begin(&identity, &Begin { heard: *heard, by, goes_on: *goes_on });
                known(&self.server)
            }
            (_, None) => known(&self.server),
            (Message::Assert, Some(_)) => {
                let assertion = Assertion {
                    node: sent.node + 1,
                    generation: sent.generation,
                    nodes: (1..=NODES).collect::<BTreeSet<u16>>(),
                    knows_from_us: self.nodes[sent.node as usize].knows_from_us,
                    is_new: !self.nodes[sent.node as usize].is_proven
                        && self.nodes[sent.node as usize].is_first,
                    before: self.nodes[sent.node as usize].before,
                    wall_us,
                    slack_us: slack_us(ERROR_NS, LATE_NS),
                };
                let known = self.server.group.assert(&identity, &assertion);
                Message::Told(known)
            }
            (Message::Bucket(exchange), Some(context)) => {
                match self.server.bucket.exchange(exchange, &self.params, &context) {
                    Ok(exchanged) => Message::GotBucket(exchange.taker.call, exchanged),
                    Err(_) => return,
                }
            }
            (Message::Sliding(exchange), Some(context)) => {
                match self.server.sliding.exchange(exchange, &context) {
                    Ok(exchanged) => Message::GotSliding(exchange.taker.call, exchanged.units),
                    Err(_) => return,
                }
            }
            (Message::Window(begins_us, take), Some(context)) => {
                let window = self.server.windows.entry(*begins_us).or_default();
                match window.take(take, &context) {
                    Ok(took) => Message::GotWindow(*begins_us, took.taken),
                    Err(_) => return,
                }
            }
            _ => unreachable!("answers are heard"),
        };
        let process_number = self.nodes[sent.node as usize].process_number;
        if process_number == sent.process_number {
            let back = Sent { at_us: self.now_us + self.random.below(MS), message: answer, ..sent };
            self.wire.push(back);
        }
    }

    fn hear(&mut self, sent: Sent) {
        let now_us = self.now_us;
        let weight = self.weight();
        let node = &mut self.nodes[sent.node as usize];
        if node.process_number != sent.process_number {
            return;
        }
        match sent.message {
            Message::Known(GroupStatus { generation, grants, is_first, .. }) => {
                let is_answer = sent.generation == node.generation;
                let (known, is_stranger) = (node.generation, !node.is_proven);
                let may_be_old = generation.number > 0 && (grants || generation.number <= node.floor);
                let floor = if is_stranger { node.floor } else { 0 };
                if is_stranger && generation != known && may_be_old {
                    // The node cannot know whether this is the last generation.
                    let heard = floor.max(generation.number + 1);
                    self.send(sent.node, Message::Begin { heard, goes_on: true });
                } else if generation.number > known.number {
                    node.is_first = is_first && !grants;
                    node.before = if is_stranger { Generation::default() } else { known };
                    (node.generation, node.told, node.grants) = (generation, false, false);
                    node.heard.clear();
                } else if generation != known && is_answer {
                    // The server knows no generation, or another one than the last. Some node must begin one.
                    let heard = floor.max(known.number + u64::from(generation.number == known.number));
                    self.send(sent.node, Message::Begin { heard, goes_on: is_stranger });
                }
            }
            // Nothing is taken from an earlier generation.
            _ if sent.generation != node.generation => {}
            Message::Told(known) => {
                (node.told, node.grants) = (true, known.grants);
                node.is_first &= known.is_first;
                if known.grants && !node.is_proven {
                    node.is_proven = true;
                    if node.is_first {
                        node.knows_from_us = 0;
                    }
                }
            }
            Message::GotBucket(call, exchanged) => {
                node.heard.insert(0);
                if !node.grants {
                    return;
                }
                if let Some(change) = node.balance.answer(call, &exchanged, TTL_NS, LATE_NS, now_us * 1_000) {
                    node.debt += u128::from(change.owe) * weight;
                }
            }
            Message::GotSliding(call, units) => {
                node.heard.insert(1);
                if node.grants {
                    node.sliding.answer(call, units, TTL_NS, now_us * 1_000);
                }
            }
            Message::GotWindow(begins_us, taken) => {
                node.heard.insert(begins_us);
                node.windows.entry(begins_us).or_default().took(taken);
            }
            _ => unreachable!("calls are answered"),
        }
    }

    /// A node's process ends, and another one begins. Its window withdrawals are on its disk half of the
    /// time.
    fn crash(&mut self, at: u16) {
        // At least one node always keeps its disk, because nobody could report what all have forgotten.
        let mut others = (0..NODES).filter(|other| *other != at);
        let is_last = others.all(|other| !self.nodes[other as usize].is_proven);
        let keeps = self.random.below(2) == 0 || is_last;
        let old = self.nodes[at as usize].clone();
        let mut new = Node::begin(old.process_number + 1, old.wall_off_us, self.now_us);
        if keeps && old.is_proven {
            // The node counts its withdrawals as spent, as far as it knows them.
            let spent = |balance: &window::WindowBalance| {
                window::WindowBalance::after_a_crash(balance.taken(), balance.returned())
            };
            new.windows =
                old.windows.iter().map(|(begins_us, balance)| (*begins_us, spent(balance))).collect();
            (new.generation, new.is_proven, new.knows_from_us) = (old.generation, true, old.knows_from_us);
        }
        self.nodes[at as usize] = new;
    }

    /// Nobody reaches the server's process any more, or an unreachable process returns.
    fn hang(&mut self) {
        let count = self.hung.len() as u64;
        let hung = (self.run, self.server.clone());
        if count > 0 && self.random.below(2) == 0 {
            (self.run, self.server) = self.hung.swap_remove(self.random.below(count) as usize);
        } else {
            self.forget();
        }
        self.hung.push(hung);
    }

    /// The server's process ends. The next one starts with the current state, an older one, or nothing.
    fn forget(&mut self) {
        self.runs += 1;
        self.run = self.runs;
        let count = self.copies.len() as u64;
        self.server = match self.random.below(count + 2) {
            0 => Server::default(),
            n if n <= count => self.copies[n as usize - 1].clone(),
            _ => self.server.clone(),
        };
    }
}

/// What a call counts by in a generation that grants, and of which nothing is unknown.
fn granting(generation: Generation, wall_us: u64) -> CallContext {
    CallContext {
        wall_us,
        generation,
        since: generation,
        grants: true,
        unknown_until_us: 0,
        forfeited_before_us: 0,
    }
}

/// Units of each kind that a history admits.
fn history(seed: u64) -> Result<[u64; 3], String> {
    let mut world = World::new(seed);
    for step in 0..1_500 {
        world.step();
        if let Some(fault) = world.fault {
            return Err(format!("seed {seed}, step {step}: {fault}"));
        }
    }
    Ok(world.admitted)
}

#[test]
fn no_random_history_takes_more_from_a_pool_than_it_has() {
    let histories = std::env::var("HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let mut admitted = [0; 3];
    for seed in 0..histories {
        match history(seed) {
            Ok(units) => (0..3).for_each(|kind| admitted[kind] += units[kind]),
            Err(fault) => panic!("{fault}"),
        }
    }
    let [bucket, sliding, windows] = admitted;
    println!(
        "{histories} histories admit {bucket} of buckets, {sliding} of sliding windows, {windows} of windows"
    );
    assert!(admitted.iter().all(|units| *units > 15 * histories), "{admitted:?}");
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::{Check, Mutation, break_rule};
    type Story = (Mutation, fn() -> u64, u64);
    let stories: [Story; 12] = [
        (Mutation::PoolGrantsOlderCalls, stories::a_call_of_more_comes_late, 0),
        (Mutation::PoolCountsUnitsAlike, totals::counted_in_parts, 0),
        (Mutation::PoolGoesOnUnwitnessed, stories::two_without_disks, 0),
        (Mutation::PoolForgetsBeyond, stories::owed_of_fewer_and_of_more, 0),
        (Mutation::BalanceHearsAfterItsEnd, stories::an_answer_after_the_end, 0),
        (Mutation::BalanceDatesFromAnswer, stories::the_end_of_a_lease, 1_000),
        (Mutation::PoolGrantsUnsure, stories::two_walls_at_one_instant, stories::UNITS),
        (Mutation::PoolDrainsEarly, stories::a_part_that_comes_and_goes, stories::MOST),
        (Mutation::PoolHearsOldAllocation, stories::calls_under_an_earlier_allocation, 0),
        (Mutation::PoolRemembersAhead, stories::who_comes_later_takes_before_anybody_is_in_the_window, 0),
        (Mutation::PoolForgetsUnknown, stories::called_before_all_had_told, 0),
        (Mutation::PoolKnowsFromFirst, stories::called_when_all_had_told, 0),
    ];
    let mut missed = Vec::new();
    println!("{:<26}{:>9}", "rule left out", "histories");
    for (rule, story, most) in stories {
        break_rule(Some(rule));
        let units = story();
        break_rule(None);
        match units > most {
            true => println!("{:<26}{:>9}  {units} of {most} units", format!("{rule:?}"), "a story"),
            false => missed.push(rule),
        }
    }
    let of_names = [Mutation::NameOutlivesGeneration, Mutation::NameKeptUnclaimed];
    let in_histories = |rule: &Mutation| !stories.iter().any(|(told, ..)| told == rule);
    for rule in Mutation::table(Check::Pools).filter(in_histories) {
        break_rule(Some(rule));
        let told = |seed| match of_names.contains(&rule) {
            true => idempotency::history(seed, true).err(),
            false => history(seed).err(),
        };
        let caught = (0..10_000).find_map(|seed| Some((seed + 1, told(seed)?)));
        break_rule(None);
        match caught {
            Some((histories, fault)) => println!("{:<26}{histories:>9}  {fault}", format!("{rule:?}")),
            None => missed.push(rule),
        }
    }
    assert!(missed.is_empty(), "nobody noticed: {missed:?}");
}
