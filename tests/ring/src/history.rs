//! A history: a seed and its mix, run until a finding or the end.

use crate::{
    budget::{Budget, LimitKey, MS, Measured, Own, S, Shape, slowest},
    heal,
    mix::{Mix, Step},
    oracle::Finding,
    place::State,
    random::Random,
    trace::Event,
    world::World,
};

/// Steps of one history.
pub const STEPS: u64 = 12_000;
/// How many steps lie between two sums over all cells' parts.
const WEIGH_EVERY: u64 = 48;

/// The result of a history.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Steps done.
    pub steps: u64,
    /// The hash of all events.
    pub hash: u64,
    /// Units admitted.
    pub admitted: u64,
    /// True time that passed.
    pub passed_ns: u64,
    /// The finding, and the last events.
    pub found: Option<(Finding, Vec<String>)>,
}

/// Runs the history of a seed, and heals the world at its end.
pub fn run(seed: u64, steps: u64) -> Ended {
    watched(seed, steps, |_| ())
}

/// Like [`run`], with a call of `look` after every step.
pub fn watched(seed: u64, steps: u64, mut look: impl FnMut(&World)) -> Ended {
    let mut random = Random::new(seed);
    let mix = Mix::draw(&mut random);
    let start = mix.plan.start;
    let mut world = World::new(mix.plan.clone(), random.next());
    world.crash_after_send = mix.crash_after_send;
    let mut history = History { world, mix, hot: (0, LimitKey { limit: 0, key: 0 }) };
    let mut done = 0;
    while done < steps && history.world.oracle.finding.is_none() {
        history.step(done);
        done += 1;
        look(&history.world);
    }
    let world = &mut history.world;
    if world.oracle.finding.is_none() && !history.mix.wild_walls {
        heal::heal(world);
    }
    Ended {
        steps: done,
        hash: world.trace.hash(),
        admitted: world.oracle.admitted,
        passed_ns: world.now - start,
        found: world.oracle.finding.clone().map(|finding| (finding, world.trace.last(120, start))),
    }
}

struct History {
    world: World,
    mix: Mix,
    /// Where most requests come: place, limit, key.
    hot: (usize, LimitKey),
}

impl History {
    fn step(&mut self, number: u64) {
        let step = self.mix.step(&mut self.world.random);
        self.usual(step);
        if number.is_multiple_of(WEIGH_EVERY) {
            self.weigh();
        }
        if number.is_multiple_of(512) {
            self.hot = (self.any_place(), self.any_key());
        }
    }

    fn weigh(&mut self) {
        for limit in 0..self.world.limits.len() {
            for key in 0..self.world.limits[limit].keys.len() {
                self.world.weigh(limit, key);
            }
        }
    }

    fn any_place(&mut self) -> usize {
        let places = self.world.places.len();
        self.world.random.index(places)
    }

    fn any_key(&mut self) -> LimitKey {
        let limit = self.world.random.index(self.world.limits.len());
        let key = self.world.random.index(self.world.limits[limit].keys.len());
        LimitKey { limit, key }
    }

    fn usual(&mut self, step: Step) {
        let world = &mut self.world;
        match step {
            Step::Ask => self.ask(),
            Step::Drain => {
                let (place, key) = (self.any_place(), self.any_key());
                self.world.drain(place, key);
            }
            Step::Deliver => {
                if !world.deliver() {
                    self.ask();
                }
            }
            Step::Tick => {
                let place = self.any_place();
                self.world.tick(place);
            }
            Step::Write => {
                let place = self.any_place();
                let world = &mut self.world;
                world.take(place);
                if world.write(place) {
                    world.send(place);
                }
            }
            Step::Pass => {
                let ns = world.random.below(self.mix.pace_ns * 2);
                world.pass(ns);
            }
            Step::PassTo => self.pass_to(),
            Step::PassLong => {
                let ns = world.random.pick(&[S, 2 * S, 7 * S, 20 * S, 100 * S, 3_000 * S, 20_000 * S]);
                let ns = world.random.below(ns);
                world.pass(ns);
            }
            Step::Charge | Step::Lease | Step::Settle | Step::Repeat => self.come_back(step),
            _ => self.fault(step),
        }
    }

    /// Steps of callers that come back.
    fn come_back(&mut self, step: Step) {
        let (place, key) = (self.any_place(), self.any_key());
        let world = &mut self.world;
        let units = world.oracle.in_force(key.limit, key.key).units;
        match step {
            Step::Settle => world.settle_any(),
            Step::Repeat => world.repeat_any(place),
            Step::Lease => {
                let cost = world.random.spread(1, units.max(2));
                let ttl_ns = world.any_ttl_ns();
                world.lease(place, key, cost, ttl_ns);
            }
            _ => {
                let cost =
                    if world.random.chance(500_000) { 1 } else { world.random.spread(1, units.max(2)) };
                match cost == 1 && world.limits[key.limit].holds {
                    true => world.hold(place, key),
                    false => world.charge(place, key, cost),
                };
            }
        }
    }

    fn ask(&mut self) {
        let (mut place, mut key) = (self.any_place(), self.any_key());
        if self.mix.hot && self.world.random.chance(700_000) {
            (place, key) = self.hot;
        }
        let (world, large) = (&mut self.world, self.mix.large_costs);
        let units = world.oracle.in_force(key.limit, key.key).units;
        let requests = 1 + world.random.below(3);
        for _ in 0..requests {
            let cost = match world.random.chance(large) {
                false => 1,
                true => match world.random.below(8) {
                    0..=3 => world.random.between(2, 5),
                    4..=5 => world.random.spread(1, units.max(2)),
                    6 => units / 2 + 1,
                    _ => units,
                },
            };
            world.ask(place, key, cost);
        }
    }

    /// Passes time to shortly before or after a change: a window's edge or, without fixed windows, the end of
    /// a loan made now.
    fn pass_to(&mut self) {
        let LimitKey { limit, key } = self.any_key();
        let world = &mut self.world;
        let near = world.random.pick(&[0, 1, MS, 9 * MS, 11 * MS, 60 * MS, 300 * MS]);
        let measured: &Measured = &world.limits[limit];
        let salt = measured.keys[key].cells[0].salt();
        let edge = match &measured.algorithm {
            acequia_limits::Algorithm::FixedWindow(window) => window.end_after(world.now, salt),
            _ => world.now + world.places[0].loan_ttl_ns,
        };
        let to = if world.random.chance(500_000) { edge.saturating_sub(near) } else { edge + near };
        // Steps to a far edge are rare: most of a history should not wait a month between two steps.
        let far = to.saturating_sub(world.now) > 100 * S;
        if to > world.now && (!far || world.random.chance(100_000)) {
            world.pass(to - world.now);
        }
    }

    fn fault(&mut self, step: Step) {
        let place = self.any_place();
        let other = self.any_place();
        let world = &mut self.world;
        match step {
            Step::Link => {
                let link = (place, other);
                let up = world.network.cut.contains(&link);
                world.network.cut.retain(|cut| *cut != link);
                if !up {
                    world.network.cut.push(link);
                }
                world.note(Event::Link(place, other, up));
            }
            Step::Isolate => {
                for other in 0..world.places.len() {
                    world.network.cut.push((place, other));
                    world.network.cut.push((other, place));
                }
                world.note(Event::Link(place, place, false));
            }
            Step::Mend => {
                world.network.cut.clear();
                world.note(Event::Link(0, 0, true));
            }
            Step::Crash => world.crash_anyhow(place),
            Step::Stop => world.stop(place),
            Step::Start => {
                if world.places[place].state == State::Down {
                    let cleanly = world.places[place].stopped;
                    world.start(place, cleanly);
                }
            }
            Step::LoseDisk => {
                if world.places[place].state == State::Up {
                    world.lose_disk(place);
                }
            }
            Step::Sleep => {
                let ms = world.random.spread(5, 20_000);
                world.places[place].asleep_until = world.now + ms * MS;
                world.note(Event::Sleep(place, ms));
            }
            Step::Wall => self.wall(place),
            Step::Drift => {
                let most = i64::from(self.mix.plan.drift_ppm);
                let ppm = world.random.pick(&[-most, -most, 0, most, most]) as i32;
                let now = world.now;
                world.places[place].clock.drift(now, ppm);
                world.note(Event::Drift(place, ppm));
            }
            Step::Stuck => {
                let ms = world.random.spread(5, 10_000);
                world.places[place].stuck_until = world.now + ms * MS;
                if let Some(node) = world.places[place].node()
                    && ms > 1_000
                {
                    node.journal_failed();
                }
                world.note(Event::Stuck(place, ms));
            }
            Step::Sweep => world.sweep(place),
            Step::Again => {
                if let Some(flying) = world.network.again(&mut world.random) {
                    world.hand(&flying);
                }
            }
            _ => self.order(step, place),
        }
    }

    fn wall(&mut self, place: usize) {
        let most = self.mix.plan.clock_error_ns as i64;
        let world = &mut self.world;
        let error = match self.mix.wild_walls {
            true => {
                let ns = world.random.spread(1, 8_000 * S) as i64;
                if world.random.chance(500_000) { ns } else { -ns }
            }
            false => world.random.pick(&[-most, most, 0, most / 2, -most / 3]),
        };
        world.places[place].clock.error_ns = error;
        world.note(Event::Wall(place, error / MS as i64));
    }

    /// Steps of the operator.
    fn order(&mut self, step: Step, place: usize) {
        let limit = self.any_key().limit;
        let world = &mut self.world;
        let draw = world.random.next();
        match step {
            Step::Budget => {
                let budget = other_numbers(&world.limits[limit], &mut world.random);
                world.command("budget", |operator| {
                    if operator.budgets[limit].is_some() {
                        operator.budgets[limit] = Some(budget);
                    }
                });
            }
            Step::Own => {
                let own = (!draw.is_multiple_of(4)).then(|| other_own(world, limit));
                world.command("own numbers", |operator| {
                    if operator.budgets[limit].is_some() {
                        operator.owns[limit] = own;
                    }
                });
            }
            Step::Remove => {
                let first = world.limits[limit].first;
                if world.operator.budgets[limit].is_some() {
                    world.command("remove", |operator| {
                        operator.budgets[limit] = None;
                        operator.removed[limit] = operator.members.clone();
                    });
                } else if world.operator.removed[limit] == world.operator.members {
                    // Regions that did not know the limit would not wait for earlier spending under the
                    // limit: see the crate's documentation.
                    world.command("add", |operator| operator.budgets[limit] = Some(first));
                }
            }
            Step::Weight => {
                world.command("weights", |operator| {
                    for (number, member) in (0..).zip(operator.members.values_mut()) {
                        member.weight = 1 + (draw >> (number * 4)) as u32 % 9;
                    }
                });
            }
            Step::Evict => {
                if world.places[place].state == State::Up
                    && draw.is_multiple_of(3)
                    && place != world.operator.authority
                {
                    world.crash_anyhow(place);
                }
                world.evict(place);
            }
            Step::Join => {
                let weight = 1 + (draw % 5) as u32;
                match world.places[place].state {
                    State::Up if world.is_stranger(place) => {
                        world.name(place, weight);
                    }
                    _ => {
                        world.join(place, weight);
                    }
                }
            }
            Step::Leave => {
                world.leave(place);
            }
            Step::TakeOver => {
                world.take_over(place);
            }
            Step::OldDisk => {
                if world.places[place].snapshot.is_some() && draw.is_multiple_of(4) {
                    world.restore_snapshot(place);
                } else {
                    let copy = world.places[place].disk.clone();
                    world.places[place].snapshot =
                        Some(crate::disk::Disk { rows: copy.rows, ..Default::default() });
                }
            }
            Step::Mistake if place != world.operator.authority && world.places[place].state == State::Up => {
                world.evict_by_mistake(place);
            }
            _ => {}
        }
    }
}

/// Other numbers for one key: smaller or larger, for a while or for good.
fn other_own(world: &mut World, limit: usize) -> Own {
    let World { random, limits, now, oracle, .. } = world;
    let measured = &limits[limit];
    let key = random.index(measured.keys.len());
    let lasts_ns = random.spread(1, 4_000) * S;
    // If a wall clock is far off, such numbers may end at any time.
    let ends = oracle.true_windows && random.chance(700_000);
    let until_ns = ends.then_some((*now + lasts_ns) / S * S);
    Own { key, budget: other_numbers(measured, random), until_ns }
}

/// The next numbers that an operator may order.
fn other_numbers(measured: &Measured, random: &mut Random) -> Budget {
    let Measured { shape, first: Budget { units, rate }, .. } = *measured;
    let units = match random.below(6) {
        0 => 1,
        1 => units.div_ceil(2),
        2 => units.div_ceil(10),
        3 => units * 2,
        _ => units,
    };
    let units = units.max(measured.least());
    let rate = random.pick(&[rate, rate.div_ceil(2), rate * 2, rate.div_ceil(10)]).max(slowest(units));
    // A log has a fixed capacity.
    let units = if matches!(shape, Shape::Sliding(_, _, None)) { units.min(60) } else { units };
    Budget { units, rate }
}
