//! A small world for reference policies, with the real server's questions, latencies and cuts. Messages are
//! words, and there are no clocks, disks or other chance. A policy's knowledge survives every crash at no
//! cost.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    bound::Bound,
    ns,
    random::Random,
    run::Record,
    schedule::{Fault, Place},
    series::{Series, cell_of},
    world::{Answer, Reply},
};

/// Delay between a caller and its node, each way.
const NEAR_NS: u64 = 1_000_000;
/// How long a caller waits for a node that is down.
const PATIENCE_NS: u64 = 1_000_000_000;
/// How long after its loss a message is sent again.
const AGAIN_NS: u64 = 200_000_000;
/// The largest number of chance repetitions.
const AGAIN_MAX: u64 = 8;
/// Bytes of a message besides its words: a TLS record and a length.
const MESSAGE_BYTES: u64 = 30;
const WORD_BYTES: u64 = 8;

/// The questions and faults of one run of the real server.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// The number of regions.
    pub regions: usize,
    /// What each cell allows.
    pub cells: Vec<Bound>,
    /// Questions, in the order in which they were asked.
    pub asked: Vec<Asked>,
    /// The faults.
    pub faults: Vec<(Duration, Fault)>,
    /// How far walls may be from true time. An admission this near to an edge may belong to either window.
    pub clock_error_ns: u64,
    /// When regions are down.
    pub down: Vec<Downtime>,
    /// How long messages take between regions, in milliseconds: the least and the most.
    pub latency_ms: (u64, u64),
    /// The seed for latencies.
    pub seed: u64,
}

/// A time in which a region does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Downtime {
    /// The region.
    pub place: Place,
    /// When it begins.
    pub from: Duration,
    /// When it ends.
    pub until: Duration,
}

/// One question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// When it was asked, since the start.
    pub at_ns: u64,
    /// The region where it was asked.
    pub place: Place,
    /// Cells, by their places in [`Case::cells`], and the units of each.
    pub hits: Vec<(usize, u64)>,
}

/// The outcome of a question, and when it was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When the caller had its answer.
    pub at_ns: u64,
    /// The outcome.
    pub verdict: Verdict,
}

/// The answer to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request may pass.
    Allowed,
    /// The request may not pass.
    Denied,
    /// No answer.
    Silent,
}

/// The result of a policy in a case.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// The decision for each question.
    pub decisions: Vec<Decision>,
    /// Bytes that regions sent each other.
    pub bytes: u64,
}

/// A way of limiting, in all regions at once. A region knows of another region only what messages tell.
pub trait Policy {
    /// A short name.
    fn name(&self) -> &'static str;

    /// How often each region is woken; `None` for never.
    fn wake_interval_ns(&self) -> Option<u64> {
        None
    }

    /// A question has come to its region. The policy answers now, or later, by [`Wire::answer`].
    fn ask(&mut self, id: usize, asked: &Asked, wire: &mut Wire);

    /// A message has arrived.
    fn receive(&mut self, _from: Place, _to: Place, _words: &[u64], _wire: &mut Wire) {}

    /// A region is woken.
    fn wake(&mut self, _at: Place, _wire: &mut Wire) {}

    /// The time set with [`Wire::remind`] is over, and the question has no answer yet.
    fn late(&mut self, _id: usize, _wire: &mut Wire) {}
}

/// The actions that a policy may take.
#[derive(Debug)]
pub struct Wire {
    /// Time since the start.
    pub now_ns: u64,
    /// How many regions there are.
    pub regions: usize,
    played: Played,
    answered: Vec<bool>,
    sent: Vec<(Place, Place, Vec<u64>)>,
    reminders: Vec<(u64, usize)>,
}

impl Wire {
    /// Answers a question; the first answer counts.
    pub fn answer(&mut self, id: usize, is_allowed: bool) {
        let verdict = if is_allowed { Verdict::Allowed } else { Verdict::Denied };
        self.close(id, self.now_ns + NEAR_NS, verdict);
    }

    /// Sends a message.
    pub fn send(&mut self, from: Place, to: Place, words: Vec<u64>) {
        self.played.bytes += MESSAGE_BYTES + WORD_BYTES * words.len() as u64;
        self.sent.push((from, to, words));
    }

    /// Asks for a call of [`Policy::late`] if a question has no answer by then.
    pub fn remind(&mut self, id: usize, at_ns: u64) {
        self.reminders.push((at_ns, id));
    }

    fn close(&mut self, id: usize, at_ns: u64, verdict: Verdict) {
        if !std::mem::replace(&mut self.answered[id], true) {
            self.played.decisions[id] = Decision { at_ns, verdict };
        }
    }
}

enum Event {
    Fault(usize),
    Ask(usize),
    Arrive { route: Route, words: Vec<u64>, cuts: u64 },
    Wake(Place),
    Late(usize),
}

/// The two ends of a link.
#[derive(Clone, Copy, Debug)]
struct Route {
    from: Place,
    to: Place,
}

impl Route {
    /// Both ways between two regions.
    fn both(a: Place, b: Place) -> [Self; 2] {
        [Self { from: a, to: b }, Self { from: b, to: a }]
    }
}

/// A link between two regions, one way.
#[derive(Clone, Debug, Default)]
struct Link {
    is_cut: bool,
    /// How often the link was cut. A cut loses the messages that are under way.
    cuts: u64,
    is_held: bool,
    held: Vec<Vec<u64>>,
    slow_ms: Option<u64>,
    /// The percentage of messages that have to be sent again.
    loses: u32,
}

/// Plays a case with a policy.
pub fn play(case: &Case, policy: &mut dyn Policy) -> Played {
    let silent = |asked: &Asked| Decision { at_ns: asked.at_ns + PATIENCE_NS, verdict: Verdict::Silent };
    let wire = Wire {
        now_ns: 0,
        regions: case.regions,
        played: Played { decisions: case.asked.iter().map(silent).collect(), bytes: 0 },
        answered: vec![false; case.asked.len()],
        sent: Vec::new(),
        reminders: Vec::new(),
    };
    let mut model = Model {
        case,
        wire,
        links: vec![vec![Link::default(); case.regions]; case.regions],
        random: Random::of(case.seed, "model"),
        queue: BTreeMap::new(),
        events: 0,
    };
    model.run(policy);
    model.wire.played
}

struct Model<'a> {
    case: &'a Case,
    wire: Wire,
    links: Vec<Vec<Link>>,
    random: Random,
    /// Events by time, and then in the order in which they were added.
    queue: BTreeMap<(u64, u64), Event>,
    events: u64,
}

impl Model<'_> {
    fn run(&mut self, policy: &mut dyn Policy) {
        let case = self.case;
        for (number, (at, _)) in case.faults.iter().enumerate() {
            self.put(ns(*at), Event::Fault(number));
        }
        for (id, asked) in case.asked.iter().enumerate() {
            self.put(asked.at_ns + NEAR_NS, Event::Ask(id));
        }
        let end_ns = case.asked.last().map_or(0, |asked| asked.at_ns + PATIENCE_NS);
        if let Some(wake_interval_ns) = policy.wake_interval_ns() {
            // Regions are not all woken at once.
            (0..case.regions).for_each(|at| {
                self.put(wake_interval_ns * (at as u64 + 1) / case.regions as u64, Event::Wake(at));
            });
        }
        while let Some(((at_ns, _), event)) = self.queue.pop_first() {
            if at_ns > end_ns {
                break;
            }
            self.wire.now_ns = at_ns;
            match event {
                Event::Fault(number) => self.apply(&case.faults[number].1),
                Event::Ask(id) if !self.is_down(case.asked[id].place) => {
                    policy.ask(id, &case.asked[id], &mut self.wire);
                }
                Event::Arrive { route, words, cuts } => self.deliver(policy, route, words, cuts),
                Event::Wake(at) => {
                    if !self.is_down(at) {
                        policy.wake(at, &mut self.wire);
                    }
                    self.put(at_ns + policy.wake_interval_ns().unwrap_or(end_ns).max(1), Event::Wake(at));
                }
                Event::Late(id) if !self.wire.answered[id] => policy.late(id, &mut self.wire),
                Event::Ask(_) | Event::Late(_) => {}
            }
            self.take_orders();
        }
    }

    fn put(&mut self, at_ns: u64, event: Event) {
        self.events += 1;
        self.queue.insert((at_ns, self.events), event);
    }

    fn take_orders(&mut self) {
        for (from, to, words) in std::mem::take(&mut self.wire.sent) {
            let (least, most) = self.case.latency_ms;
            let drawn_ms = self.random.between(least, most);
            let route = Route { from, to };
            let link = &self.links[from][to];
            if !link.is_cut {
                let mut at_ns = self.wire.now_ns + link.slow_ms.unwrap_or(drawn_ms) * 1_000_000;
                let (cuts, loses) = (link.cuts, link.loses * 10_000);
                at_ns += AGAIN_NS * (0..AGAIN_MAX).take_while(|_| self.random.chance(loses)).count() as u64;
                self.put(at_ns, Event::Arrive { route, words, cuts });
            }
        }
        for (at_ns, id) in std::mem::take(&mut self.wire.reminders) {
            self.put(at_ns, Event::Late(id));
        }
    }

    fn link(&mut self, route: Route) -> &mut Link {
        &mut self.links[route.from][route.to]
    }

    fn deliver(&mut self, policy: &mut dyn Policy, route: Route, words: Vec<u64>, cuts: u64) {
        let link = self.link(route);
        if link.is_held {
            link.held.push(words);
        } else if link.cuts == cuts && !self.is_down(route.to) {
            policy.receive(route.from, route.to, &words, &mut self.wire);
        }
    }

    fn is_down(&self, place: Place) -> bool {
        self.case.is_down(place, self.wire.now_ns)
    }

    fn apply(&mut self, fault: &Fault) {
        match *fault {
            Fault::Cut(a, b) => Route::both(a, b).into_iter().for_each(|route| self.cut(route)),
            Fault::CutOneWay(from, to) => self.cut(Route { from, to }),
            Fault::Mend(a, b) => Route::both(a, b).into_iter().for_each(|route| self.mend(route)),
            Fault::Lose(a, b, percent) => {
                Route::both(a, b).into_iter().for_each(|route| self.link(route).loses = percent);
            }
            Fault::Hold(a, b) => {
                Route::both(a, b).into_iter().for_each(|route| self.link(route).is_held = true);
            }
            Fault::Release(a, b) => Route::both(a, b).into_iter().for_each(|route| self.release(route)),
            Fault::Slow(a, b, ms) => {
                Route::both(a, b).into_iter().for_each(|route| self.link(route).slow_ms = Some(ms));
            }
            Fault::Heal => {
                let regions = 0..self.case.regions;
                let all = regions.clone().flat_map(|from| regions.clone().map(move |to| Route { from, to }));
                for route in all {
                    self.mend(route);
                    self.release(route);
                }
            }
            // The case already says when regions are down, and policies have no disks or clocks of their own.
            _ => {}
        }
    }

    fn cut(&mut self, route: Route) {
        let link = self.link(route);
        link.is_cut = true;
        link.cuts += 1;
    }

    fn mend(&mut self, route: Route) {
        let link = self.link(route);
        (link.is_cut, link.loses) = (false, 0);
    }

    fn release(&mut self, route: Route) {
        let link = self.link(route);
        link.is_held = false;
        let (held, cuts) = (std::mem::take(&mut link.held), link.cuts);
        for words in held {
            self.put(self.wire.now_ns, Event::Arrive { route, words, cuts });
        }
    }
}

impl Case {
    /// The case of a run of the real server, and the result of that run.
    pub fn of(record: &Record, series: &Series, seed: u64) -> (Self, Played) {
        let plan = &record.plan;
        let mut answers: Vec<&Answer> = series.answers.iter().collect();
        answers.sort_by_key(|answer| (answer.asked, answer.place));
        let (mut cells, mut names) = (Vec::new(), BTreeMap::new());
        let mut asked = Vec::new();
        for answer in &answers {
            let hits = series.cells.iter().enumerate().filter_map(|(limit, series)| {
                let by = cell_of(&series.limit, &answer.question)?;
                let cell = *names.entry((limit, by)).or_insert_with(|| {
                    cells.push(series.bound);
                    cells.len() - 1
                });
                Some((cell, answer.question.cost * series.limit.cost))
            });
            asked.push(Asked { at_ns: ns(answer.asked), place: answer.place, hits: hits.collect() });
        }
        let down_at = |place| {
            let times = series.down(place).into_iter();
            times.map(move |(from, until)| Downtime { place, from, until })
        };
        let down = (0..plan.regions).flat_map(down_at);
        let case = Self {
            regions: plan.regions,
            cells,
            asked,
            faults: plan.schedule.faults().to_vec(),
            down: down.chain(asleep(plan.schedule.faults(), series.ended)).collect(),
            clock_error_ns: series.clock_error_ns,
            latency_ms: plan.latency_ms,
            seed,
        };
        let decision = |answer: &&Answer| Decision {
            at_ns: ns(answer.answered),
            verdict: match answer.reply {
                Reply::Denied(_) => Verdict::Denied,
                Reply::Nothing(_) => Verdict::Silent,
                _ => Verdict::Allowed,
            },
        };
        let played =
            Played { decisions: answers.iter().map(decision).collect(), bytes: record.totals.packet_bytes };
        (case, played)
    }

    /// Whether a region is down then.
    pub(super) fn is_down(&self, place: Place, at_ns: u64) -> bool {
        let times = self.down.iter().filter(|down| down.place == place);
        times.into_iter().any(|down| ns(down.from) <= at_ns && at_ns < ns(down.until))
    }
}

/// When processes sleep: a sleeping process answers nobody.
fn asleep(faults: &[(Duration, Fault)], ended: Duration) -> Vec<Downtime> {
    let mut times: Vec<Downtime> = Vec::new();
    for (at, fault) in faults {
        match fault {
            Fault::Sleep(place) => times.push(Downtime { place: *place, from: *at, until: ended }),
            Fault::Wake(_) | Fault::Heal => {
                let wakes = |place: Place| matches!(fault, Fault::Heal) || *fault == Fault::Wake(place);
                let open = times.iter_mut().filter(|down| down.until == ended && wakes(down.place));
                open.for_each(|down| down.until = *at);
            }
            _ => {}
        }
    }
    times
}
