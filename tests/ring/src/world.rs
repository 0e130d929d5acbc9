//! Places, a network, and everything that can be done to them, one event at a time.

use acequia_limits::{Now, Request};
use acequia_node::{Ask, sharing::AdoptFault};
use acequia_rights::{Incarnation, MemberId, VersionId, versions::Refused};

use crate::{
    budget::Measured,
    callers::Caller,
    network::{Flying, Network, Weather},
    operator::Operator,
    oracle::Oracle,
    place::{Place, State, rows_of},
    random::Random,
    trace::{Event, Trace},
};

/// Where true time begins: 15 January 2027, 08:00 UTC, an edge of all windows up to an hour.
pub const START: u64 = 1_800_000_000 * crate::budget::S;

/// Regions that share limits.
#[derive(Debug)]
pub struct World {
    /// True time.
    pub now: u64,
    /// By region.
    pub places: Vec<Place>,
    /// Between them.
    pub network: Network,
    /// What is promised.
    pub oracle: Oracle,
    /// Who commands.
    pub operator: Operator,
    /// The limits.
    pub limits: Vec<Measured>,
    /// Chance.
    pub random: Random,
    /// What happened.
    pub trace: Trace,
    /// Of a million sends, so many are followed by a crash.
    pub crash_after_send: u32,
    /// Whether a node said that there are two authorities: operators read it in its log.
    pub two_authorities: bool,
    /// Whether all links are up, and no fault is to come.
    pub is_mended: bool,
    /// Those who may come back, in the order in which they came.
    pub(crate) callers: Vec<Caller>,
    /// Names that were given.
    pub(crate) names: u64,
    ghosts: Vec<Ghost>,
}

/// A writer that is gone, of which others may hold something until they go by a version that says so.
#[derive(Clone, Copy, Debug)]
struct Ghost {
    incarnation: Incarnation,
    floor: VersionId,
    gone: Option<VersionId>,
}

/// How a world begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Places that begin as members, and all places.
    pub members: usize,
    /// Places in all.
    pub places: usize,
    /// What is limited.
    pub limits: Vec<Measured>,
    /// Of the members.
    pub weights: Vec<u32>,
    /// ε.
    pub clock_error_ns: u64,
    /// D.
    pub drift_ppm: u32,
    /// How long loans last.
    pub loan_ttl_ns: u64,
    /// Whether windows of true time are promised.
    pub true_windows: bool,
    /// Of the network, at first.
    pub weather: Weather,
    /// True time at first.
    pub start: u64,
}

impl World {
    /// Members with a first version, and nothing said yet.
    pub fn new(plan: Plan, seed: u64) -> Self {
        let places: Vec<Place> =
            (0..plan.places).map(|region| Place::new(region, plan.loan_ttl_ns)).collect();
        let mut world = Self {
            now: plan.start,
            places,
            network: Network::new(plan.weather),
            oracle: Oracle::new(&plan),
            operator: Operator::new(&plan),
            limits: plan.limits,
            random: Random::new(seed),
            trace: Trace::default(),
            crash_after_send: 0,
            two_authorities: false,
            is_mended: false,
            callers: Vec::new(),
            names: 0,
            ghosts: Vec::new(),
        };
        for place in 0..plan.members {
            world.start(place, true);
        }
        world.publish(0, false);
        world
    }

    /// What the clocks of a place read.
    pub fn clock(&self, place: usize) -> Now {
        self.places[place].now(self.now)
    }

    // Processes.

    /// Starts a process.
    pub fn start(&mut self, place: usize, cleanly: bool) {
        self.note(Event::Start(place, cleanly));
        self.places[place].start(self.now, cleanly);
        self.meet(place);
        self.learn(place);
    }

    fn meet(&self, place: usize) {
        let Some(node) = self.places[place].node() else { return };
        for other in self.places.iter().filter(|other| other.state != State::Absent) {
            node.meet(other.incarnation);
        }
    }

    /// The process stops at once: so many batches of those that wait were written, and so many rows of the next.
    pub fn crash(&mut self, place: usize, whole: usize, torn: usize) {
        if self.places[place].state != State::Up {
            return;
        }
        self.note(Event::Crash(place, whole, torn));
        let at = &mut self.places[place];
        if let Some(process) = at.process.take()
            && let Some(batch) = process.node.take_rows()
        {
            at.disk.waiting.push_back(batch);
        }
        at.disk.crash(whole, torn);
        at.state = State::Down;
        self.oracle.forgot(place);
        self.unanswered(place);
    }

    /// As [`World::crash`], somewhere.
    pub fn crash_anyhow(&mut self, place: usize) {
        let waiting = self.places[place].disk.waiting.len();
        let whole = self.random.index(waiting + 2);
        let torn = self.random.index(6);
        self.crash(place, whole, torn);
    }

    /// The process stops as it should.
    pub fn stop(&mut self, place: usize) {
        if self.places[place].state != State::Up {
            return;
        }
        self.note(Event::Stop(place));
        // Answers that wait are given when the rows are there.
        self.oracle.committed(place, u64::MAX);
        self.answered(place, u64::MAX);
        self.places[place].stop(self.now);
    }

    /// The disk is gone, and the process with it; what comes is another incarnation, at once.
    pub fn lose_disk(&mut self, place: usize) {
        self.crash(place, 0, 0);
        self.note(Event::LoseDisk(place));
        self.bury(place);
        self.operator.lost(self.places[place].incarnation);
        self.places[place].begin_anew();
        self.start(place, true);
    }

    fn floor_of(&self, place: usize) -> Option<VersionId> {
        self.places[place].is_bound().then(|| self.places[place].floor)
    }

    /// The disk is an older one from now on.
    pub fn restore_snapshot(&mut self, place: usize) {
        self.crash(place, 0, 0);
        let Some(snapshot) = self.places[place].snapshot.clone() else { return };
        self.note(Event::OldDisk(place));
        self.oracle.void = true;
        let at = &mut self.places[place];
        at.disk = snapshot;
        at.restored = true;
        at.floor = VersionId::default();
        at.version_id = VersionId::default();
    }

    // The disk.

    /// Rows that wait are handed to the disk.
    pub fn take(&mut self, place: usize) {
        let at = &mut self.places[place];
        if let Some(process) = &at.process
            && let Some(batch) = process.node.take_rows()
        {
            at.disk.waiting.push_back(batch);
        }
    }

    /// The oldest batch is written; says whether there was one.
    pub fn write(&mut self, place: usize) -> bool {
        let now = self.now;
        let at = &mut self.places[place];
        if at.stuck_until > now || at.process.is_none() {
            return false;
        }
        let Some(batch) = at.disk.write() else { return false };
        if let Some(process) = &at.process {
            process.node.committed(batch);
        }
        self.note(Event::Write(place, batch));
        self.oracle.committed(place, batch);
        self.answered(place, batch);
        true
    }

    /// Everything that waits is written.
    pub fn flush(&mut self, place: usize) {
        self.take(place);
        while self.write(place) {}
    }

    // Time, frames.

    /// Time passes.
    pub fn pass(&mut self, ns: u64) {
        let to_ns = self.now + ns;
        while let Some(at_ns) = self.oracle.next_change(self.now).filter(|at_ns| *at_ns <= to_ns) {
            self.spend_leases(at_ns);
            self.now = at_ns;
            self.oracle.renew(at_ns);
        }
        self.spend_leases(to_ns);
        self.now = to_ns;
        self.trace.mix(ns);
    }

    /// A tick, and everything that may be sent after it.
    pub fn tick(&mut self, place: usize) {
        if !self.places[place].is_awake(self.now) {
            return;
        }
        let now = self.clock(place);
        self.note(Event::Tick(place));
        let at = &self.places[place];
        let Some(node) = at.node() else { return };
        if let Err(fault) = node.tick(now, rows_of(&at.disk)) {
            self.trace.mix(fault.to_string().len() as u64);
            self.two_authorities |=
                matches!(fault, AdoptFault::Refused(Refused::Authority(_) | Refused::Conflict(_)));
        }
        self.learn(place);
        self.send(place);
    }

    /// Everything that may leave.
    pub fn send(&mut self, place: usize) {
        let now = self.clock(place);
        while let Some(node) = self.places[place].node() {
            let Some((to, bytes)) = node.poll(now) else { break };
            self.trace.mix_bytes(&bytes);
            self.network.send(self.now, place, usize::from(to.0), bytes, &mut self.random);
            if self.random.chance(self.crash_after_send) {
                self.crash_anyhow(place);
            }
        }
    }

    /// The next frame that is due arrives; says whether there was one.
    pub fn deliver(&mut self) -> bool {
        let Some(flying) = self.network.arrive(self.now) else { return false };
        self.hand(&flying);
        true
    }

    /// A frame arrives.
    pub fn hand(&mut self, flying: &Flying) {
        if !self.places.get(flying.to).is_some_and(|place| place.is_awake(self.now)) {
            return;
        }
        let now = self.clock(flying.to);
        let Some(node) = self.places[flying.to].node() else { return };
        let taken = node.handle(MemberId(flying.from as u16), &flying.bytes, now);
        self.note(Event::Frame(flying.from, flying.to, taken.is_ok()));
    }

    /// Looks at which version a place goes by, and what is in force since.
    pub fn learn(&mut self, place: usize) {
        if !self.places[place].learn_version() {
            return;
        }
        let bound = (0..self.places.len()).filter_map(|place| self.floor_of(place)).min();
        let Some(bound) = bound else { return };
        self.ghosts.retain(|ghost| ghost.gone.is_none_or(|gone| bound < gone));
        let floor = self.ghosts.iter().map(|ghost| ghost.floor).fold(bound, VersionId::min);
        self.oracle.acked(floor, self.now);
    }

    /// An operator fenced writers with this version: once all go by it, nobody has anything of theirs.
    pub(crate) fn lay_ghosts(&mut self, fenced: &[Incarnation], version_id: VersionId) {
        for ghost in &mut self.ghosts {
            if fenced.contains(&ghost.incarnation) {
                ghost.gone.get_or_insert(version_id);
            }
        }
    }

    /// A place's writer is gone.
    pub(crate) fn bury(&mut self, place: usize) {
        if let Some(floor) = self.floor_of(place) {
            self.ghosts.push(Ghost { incarnation: self.places[place].incarnation, floor, gone: None });
            self.places[place].floor = VersionId::default();
        }
    }

    // Requests.

    /// A request; says whether it may pass, and what is left.
    pub fn ask(&mut self, place: usize, (limit, key): (usize, usize), cost: u64) -> (bool, u64) {
        if !self.places[place].is_awake(self.now) {
            return (false, 0);
        }
        let now = self.clock(place);
        let measured = &self.limits[limit];
        let asked = &measured.keys[key];
        let entries = measured.entries(asked.value, cost);
        let mut request = Request::new("shop", &entries);
        request.cost = cost;
        let at = &mut self.places[place];
        let owner = at.owner;
        let Some(process) = &mut at.process else { return (false, 0) };
        let answer = process.asker.check(&request, now, Ask::CHECK);
        let Some(only) = answer.limits.first() else { return (true, 0) };
        let (allowed, left, batch) = (answer.allowed, only.verdict.remaining, answer.after_batch);
        let tag = only.tag;
        debug_assert!(asked.cells.contains(&tag));
        let mut label_ns = 0;
        if allowed {
            if let acequia_limits::Algorithm::FixedWindow(_) = measured.algorithm {
                label_ns = process.node.holding(measured.id, tag, now).map_or(0, |holding| holding.window_ns);
            }
            let batch = if batch > 0 && process.node.is_committed(batch) { 0 } else { batch };
            self.oracle.admit((limit, key), (self.now, label_ns), cost, (place, batch));
            // One that leaves may still use what it holds of others.
            if !owner && !self.oracle.void {
                let holding = process.node.holding(measured.id, tag, now).unwrap_or_default();
                if holding.effective.units == 0 {
                    let name = measured.name;
                    let what = format!(
                        "region {place} has no part of limit {name}, and admitted {cost}: {holding:?}"
                    );
                    self.oracle.find("owns-nothing", what);
                }
            }
        }
        self.note(Event::Ask(place, limit, key, cost, allowed));
        (allowed, left)
    }

    /// Takes all that a region has of a cell; gives what that was.
    pub fn drain(&mut self, place: usize, cell: (usize, usize)) -> u64 {
        let (allowed, left) = self.ask(place, cell, 1);
        if !allowed {
            return 0;
        }
        if left > 0 && self.ask(place, cell, left).0 { left + 1 } else { 1 }
    }

    /// The parts of a cell that regions may use, together, against what is in force.
    pub fn weigh(&mut self, limit: usize, key: usize) {
        if self.oracle.void {
            return;
        }
        let measured = &self.limits[limit];
        // Of the rate of one cell, and of the units of all.
        let (mut rate, mut units) = (0_u64, 0_u64);
        // Windows: by their end.
        let mut windows: [(u64, u64); 16] = [(0, 0); 16];
        let mut add = |end_ns: u64, units: u64| {
            let slot = windows.iter_mut().find(|(end, _)| *end == end_ns || *end == 0);
            if let Some(slot) = slot {
                *slot = (end_ns, slot.1 + units);
            }
        };
        for cell in 0..measured.keys[key].cells.len() {
            let mut rate_of_cell = 0;
            for place in &self.places {
                let Some(holding) = measured.holding(place, (key, cell), self.now) else { continue };
                rate_of_cell += u64::from(holding.effective.rate);
                if holding.window_ns > 0 {
                    add(holding.window_ns, holding.effective.units);
                    if holding.next_window_ns > 0 {
                        add(holding.next_window_ns, holding.next_units);
                    }
                } else {
                    units += holding.effective.units;
                }
            }
            rate = rate.max(rate_of_cell);
        }
        let bound = self.oracle.in_force(limit, key).units;
        let most = windows.iter().map(|window| window.1).fold(units, u64::max);
        // A window that opened under a larger budget keeps it.
        let windows_may = windows[0].0 > 0 && self.oracle.changed_lately(limit, key, self.now);
        if (most > bound && !windows_may) || rate > u64::from(acequia_limits::RATE_PARTS) {
            let name = self.limits[limit].name;
            let what = format!("limit {name}: parts of {most} units of {bound}, and {rate} of the rate");
            self.oracle.find("parts", what);
        }
    }

    /// A node forgets the idle cells of the shards that this history's cells are in.
    pub fn sweep(&mut self, place: usize) {
        if !self.places[place].is_awake(self.now) {
            return;
        }
        let now = self.clock(place);
        self.note(Event::Sweep(place));
        let Some(node) = self.places[place].node() else { return };
        let keys = self.limits.iter().flat_map(|limit| &limit.keys);
        for tag in keys.flat_map(|key| &key.cells) {
            node.sweep((tag.0 >> 120) as usize, now);
        }
    }

    /// Whether a process is not who the operator's members name for its region.
    pub fn is_stranger(&self, place: usize) -> bool {
        let incarnation = self.places[place].incarnation;
        self.operator.members.get(&incarnation.member).is_none_or(|member| member.incarnation != incarnation)
    }

    /// Whether a process once had a share and has none now.
    pub fn has_left(&self, place: usize) -> bool {
        let place = &self.places[place];
        place.floor != VersionId::default() && !place.owner
    }

    /// Notes what happened.
    pub fn note(&mut self, event: Event) {
        self.trace.note(self.now, event);
    }
}
