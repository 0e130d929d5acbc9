//! Places, a network, and all that can happen to them, one event at a time.

use acequia_limits::{Now, Request};
use acequia_node::regions::AdoptFault;
use acequia_rights::{Incarnation, MemberId, VersionId, versions::VersionRefused};

use crate::{
    budget::{KeyCell, LimitKey, Measured},
    callers::{ASK, Caller},
    network::{Flying, Network, Weather},
    operator::Operator,
    oracle::{Admission, Oracle, Times},
    place::{Place, State, rows_of},
    random::Random,
    trace::{Event, Trace},
};

/// The start of true time: 15 January 2027, 08:00 UTC, an edge of all windows up to an hour.
pub const START: u64 = 1_800_000_000 * crate::budget::S;

/// Regions that share limits.
#[derive(Debug)]
pub struct World {
    /// True time.
    pub now: u64,
    /// The places, by region.
    pub places: Vec<Place>,
    /// The network between the places.
    pub network: Network,
    /// The promises.
    pub oracle: Oracle,
    /// The operator.
    pub operator: Operator,
    /// The limits.
    pub limits: Vec<Measured>,
    /// The source of chance.
    pub random: Random,
    /// The trace of events.
    pub trace: Trace,
    /// How many of a million sends are followed by a crash.
    pub crash_after_send: u32,
    /// Whether a node has reported two authorities. Operators read this in its log.
    pub two_authorities: bool,
    /// Whether all links work, and no fault will follow.
    pub is_mended: bool,
    /// The callers that may come back, in their order.
    pub(crate) callers: Vec<Caller>,
    /// The number of names given out.
    pub(crate) names: u64,
    ghosts: Vec<Ghost>,
}

/// An incarnation that is gone. Others may hold something of it until they go by a version that names its
/// end.
#[derive(Clone, Copy, Debug)]
struct Ghost {
    incarnation: Incarnation,
    floor: VersionId,
    gone: Option<VersionId>,
}

/// The initial state of a world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of places that start as members.
    pub members: usize,
    /// The number of all places.
    pub places: usize,
    /// The limits.
    pub limits: Vec<Measured>,
    /// The members' weights.
    pub weights: Vec<u32>,
    /// ε: the bound of wall clock errors.
    pub clock_error_ns: u64,
    /// D: the drift bound.
    pub drift_ppm: u32,
    /// The lifetime of loans.
    pub loan_ttl_ns: u64,
    /// Whether windows of true time are promised.
    pub true_windows: bool,
    /// The initial state of the network.
    pub weather: Weather,
    /// True time at the start.
    pub start: u64,
}

impl World {
    /// Members with a first version, before any frame is sent.
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

    /// The clock readings of a place.
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

    /// A process stops at once, after `whole` of the waiting batches and `torn` rows of the next were
    /// written.
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

    /// Like [`World::crash`], with a random number of written batches and rows.
    pub fn crash_anyhow(&mut self, place: usize) {
        let waiting = self.places[place].disk.waiting.len();
        let whole = self.random.index(waiting + 2);
        let torn = self.random.index(6);
        self.crash(place, whole, torn);
    }

    /// A process stops cleanly.
    pub fn stop(&mut self, place: usize) {
        if self.places[place].state != State::Up {
            return;
        }
        self.note(Event::Stop(place));
        // Waiting answers leave when their rows are written.
        self.oracle.committed(place, u64::MAX);
        self.answered(place, u64::MAX);
        self.places[place].stop(self.now);
    }

    /// The disk is lost with its process. Another incarnation starts at once.
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

    /// Replaces the disk by its older copy.
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

    /// Hands queued rows to the disk.
    pub fn take(&mut self, place: usize) {
        let at = &mut self.places[place];
        if let Some(process) = &at.process
            && let Some(batch) = process.node.take_rows()
        {
            at.disk.waiting.push_back(batch);
        }
    }

    /// Writes the oldest batch. Returns whether there was one.
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

    /// Writes everything that waits.
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

    /// A tick, and all frames that may leave after the tick.
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
            self.two_authorities |= matches!(
                fault,
                AdoptFault::Refused(VersionRefused::Authority(_) | VersionRefused::Conflict(_))
            );
        }
        self.learn(place);
        self.send(place);
    }

    /// Sends all frames that may leave.
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

    /// Delivers the next frame that is due. Returns whether there was one.
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

    /// Reads a place's version, and updates what is in force.
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

    /// An operator fenced incarnations with this version. Once all nodes go by it, nobody holds anything of
    /// those incarnations.
    pub(crate) fn lay_ghosts(&mut self, fenced: &[Incarnation], version_id: VersionId) {
        for ghost in &mut self.ghosts {
            if fenced.contains(&ghost.incarnation) {
                ghost.gone.get_or_insert(version_id);
            }
        }
    }

    /// A place's incarnation is gone.
    pub(crate) fn bury(&mut self, place: usize) {
        if let Some(floor) = self.floor_of(place) {
            self.ghosts.push(Ghost { incarnation: self.places[place].incarnation, floor, gone: None });
            self.places[place].floor = VersionId::default();
        }
    }

    // Requests.

    /// Sends a request. Returns whether it may pass, and what is left.
    pub fn ask(&mut self, place: usize, key: LimitKey, cost: u64) -> (bool, u64) {
        let limit = key.limit;
        if !self.places[place].is_awake(self.now) {
            return (false, 0);
        }
        let now = self.clock(place);
        let measured = &self.limits[limit];
        let asked = &measured.keys[key.key];
        let entries = measured.entries(asked.value, cost);
        let mut request = Request::new("shop", &entries);
        request.cost = cost;
        let at = &mut self.places[place];
        let owner = at.owner;
        let Some(process) = &mut at.process else { return (false, 0) };
        let answer = process.asker.check(&request, now, ASK);
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
            let times = Times { made_ns: self.now, at_ns: self.now };
            self.oracle.admit(key, Admission { times, cost, label_ns, place, batch });
            // A leaving region may still use what it holds from others.
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
        self.note(Event::Ask(place, limit, key.key, cost, allowed));
        (allowed, left)
    }

    /// Takes all that a region has of a cell. Returns the units.
    pub fn drain(&mut self, place: usize, key: LimitKey) -> u64 {
        let (allowed, left) = self.ask(place, key, 1);
        if !allowed {
            return 0;
        }
        if left > 0 && self.ask(place, key, left).0 { left + 1 } else { 1 }
    }

    /// Compares the sum of a cell's parts that regions may use with what is in force.
    pub fn weigh(&mut self, limit: usize, key: usize) {
        if self.oracle.void {
            return;
        }
        let measured = &self.limits[limit];
        // The rate of one cell, and the units of all cells.
        let (mut rate, mut units) = (0_u64, 0_u64);
        // Units in windows, by the windows' ends.
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
                let Some(holding) = measured.holding(place, KeyCell { key, cell }, self.now) else {
                    continue;
                };
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
        // A window that opened under a larger budget keeps that budget.
        let windows_may = windows[0].0 > 0 && self.oracle.changed_lately(limit, key, self.now);
        if (most > bound && !windows_may) || rate > u64::from(acequia_limits::RATE_PARTS) {
            let name = self.limits[limit].name;
            let what = format!("limit {name}: parts of {most} units of {bound}, and {rate} of the rate");
            self.oracle.find("parts", what);
        }
    }

    /// A node forgets idle cells in the shards of this history's cells.
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

    /// Whether a place's incarnation differs from the one that the operator's members name for its region.
    pub fn is_stranger(&self, place: usize) -> bool {
        let incarnation = self.places[place].incarnation;
        self.operator.members.get(&incarnation.member).is_none_or(|member| member.incarnation != incarnation)
    }

    /// Whether a process has lost its share.
    pub fn has_left(&self, place: usize) -> bool {
        let place = &self.places[place];
        place.floor != VersionId::default() && !place.owner
    }

    /// Records an event.
    pub fn note(&mut self, event: Event) {
        self.trace.note(self.now, event);
    }
}
