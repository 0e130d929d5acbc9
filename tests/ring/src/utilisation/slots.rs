//! Requests under way at one time. Callers take slots, renew those that they need for long, and release them.

use std::collections::BTreeMap;

use acequia_limits::limit::{ConcurrentSpec, LimitSpec};

use super::{
    demand::Dice,
    spec,
    table::{Bar, Cost, Figure, Table},
    world::{MS, S, START, World},
};

/// Requests that are wanted at one time, as a multiple of the limit.
const DEMAND: f64 = 1.5;
const REGIONS: usize = 3;
/// How long a denied caller waits before it asks again.
const AGAIN_NS: u64 = 200 * MS;

/// A limit, and its callers.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// The slots.
    pub limit: u64,
    /// The time to live of a slot, in seconds.
    pub ttl_s: u64,
    /// The shortest and the longest request, in milliseconds.
    pub lasts_ms: (u64, u64),
    /// The parts of the requests that the regions want, from the hottest region on. They sum to 1.
    pub parts: [f64; REGIONS],
    /// How often the hottest region becomes another, in seconds.
    pub shift_s: u64,
    /// Whether denied callers ask until they have a slot. Otherwise they go away.
    pub asks_again: bool,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The part of the slots that was taken, as a mean over time.
    pub used: f64,
    /// The part that would be taken of a limit without regions.
    pub at_best: f64,
    /// The part of the slots that each region had, from the hottest region on.
    pub parts: [f64; REGIONS],
    /// The cost.
    pub cost: Cost,
}

/// A taken slot.
#[derive(Clone, Copy, Debug)]
struct Held {
    region: usize,
    /// When the request is over, and when the slot lapses.
    ends: u64,
    lapses: u64,
}

/// The taken slots, and the callers that wait.
#[derive(Debug, Default)]
struct Callers {
    held: BTreeMap<u128, Held>,
    /// Callers that ask again: when, where, and how long their requests last.
    waiting: Vec<(u64, usize, u64)>,
    named: u128,
}

impl Callers {
    /// A caller asks for a slot. Returns whether there was one.
    fn ask(&mut self, world: &mut World, region: usize, lasts: u64) -> bool {
        self.named += 1;
        let Some(lapses) = world.take(region, "k", self.named) else { return false };
        self.held.insert(self.named, Held { region, ends: world.now + lasts, lapses });
        true
    }

    /// Releases slots whose requests are over, and renews others halfway to their end.
    fn tend(&mut self, world: &World, ttl: u64) {
        let now = world.now;
        let over: Vec<u128> = self
            .held
            .iter()
            .filter(|(_, held)| held.ends <= now || held.lapses <= now)
            .map(|(name, _)| *name)
            .collect();
        for name in over {
            if let Some(held) = self.held.remove(&name) {
                world.release(held.region, name);
            }
        }
        for (name, held) in &mut self.held {
            if held.lapses - now <= ttl / 2 {
                held.lapses = world.renew(held.region, *name).unwrap_or(held.lapses);
            }
        }
    }

    /// Those that waited long enough.
    fn ready(&mut self, now: u64) -> Vec<(usize, u64)> {
        let ready = self.waiting.extract_if(.., |(at, ..)| *at <= now);
        ready.map(|(_, region, lasts)| (region, lasts)).collect()
    }
}

/// Runs requests for some time after a warm-up.
pub fn run(slots: &Slots, seconds: u64, seed: u64) -> Outcome {
    const WARM_UP_S: u64 = 20;
    let Slots { limit, ttl_s, lasts_ms, parts, shift_s, asks_again } = *slots;
    let limited = ConcurrentSpec { limit, ttl: format!("{ttl_s}s") };
    let mut world =
        World::new(REGIONS, &[LimitSpec { concurrent: Some(limited), ..spec("slots") }], 64 << 20);
    let (mut dice, mut callers) = (Dice::new(seed), Callers::default());
    let mean_ms = (lasts_ms.0 + lasts_ms.1) as f64 / 2.0;
    let per_ms = DEMAND * limit as f64 / mean_ms;
    // When each request ends, without regions.
    let mut ideal: BTreeMap<(u64, u128), ()> = BTreeMap::new();
    let (mut taken, mut at_best, mut by_place, mut over) = (0_u64, 0_u64, [0_u64; REGIONS], 0);
    let mut before = world.sent();
    while world.now < START + (WARM_UP_S + seconds) * S {
        if world.now == START + WARM_UP_S * S {
            before = world.sent();
        }
        let hot = ((world.now - START) / (shift_s * S)) as usize % REGIONS;
        world.begin_step();
        callers.tend(&world, ttl_s * S);
        ideal = ideal.split_off(&(world.now + 1, 0));
        let mut asking = callers.ready(world.now);
        for (place, part) in parts.iter().enumerate() {
            for _ in 0..dice.arrivals(per_ms * part) {
                let lasts = (lasts_ms.0 + dice.below((lasts_ms.1 - lasts_ms.0 + 1) as usize) as u64) * MS;
                asking.push(((hot + place) % REGIONS, lasts));
                if (ideal.len() as u64) < limit {
                    ideal.insert((world.now + lasts, callers.named + asking.len() as u128), ());
                }
            }
        }
        for (region, lasts) in asking {
            // Nobody waits for ever: as many wait as are wanted beyond the limit.
            if !callers.ask(&mut world, region, lasts)
                && asks_again
                && (callers.waiting.len() as f64) < (DEMAND - 1.0) * limit as f64
            {
                callers.waiting.push((world.now + AGAIN_NS, region, lasts));
            }
        }
        over = over.max((callers.held.len() as u64).saturating_sub(limit));
        world.end_step();
        if world.now > START + WARM_UP_S * S {
            taken += callers.held.len() as u64;
            at_best += ideal.len() as u64;
            for held in callers.held.values() {
                by_place[(held.region + REGIONS - hot) % REGIONS] += 1;
            }
        }
    }
    let whole = (limit * seconds * S / MS) as f64;
    Outcome {
        used: taken as f64 / whole,
        at_best: at_best as f64 / whole,
        parts: by_place.map(|taken| taken as f64 / whole),
        cost: Cost {
            sent: world.sent().since(&before),
            seconds: seconds as f64,
            shifts: seconds / shift_s,
            loans_max: world.loans_max(),
            over,
        },
    }
}

/// A limit and its callers, with the part of its slots that must be taken.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The name.
    pub name: String,
    /// The limit, and its callers.
    pub slots: Slots,
    /// The least part.
    pub least: f64,
}

/// All scenarios. Regions of few slots cannot use all: by chance, a region has sometimes more callers than slots, and
/// sometimes fewer. Slots do not follow chance that is over before they arrive.
pub fn all() -> Vec<Scenario> {
    let parts = [4.0 / 6.0, 1.0 / 6.0, 1.0 / 6.0];
    let usual =
        Slots { limit: 100, ttl_s: 5, lasts_ms: (500, 5_000), parts, shift_s: 1_000, asks_again: false };
    let short = Slots { lasts_ms: (50, 150), ttl_s: 600, ..usual };
    let kinds = [
        ("a hot region", usual, 0.95),
        ("even regions", Slots { parts: [1.0 / 3.0; REGIONS], ..usual }, 0.95),
        ("two regions, 4 to 1", Slots { parts: [0.8, 0.2, 0.0], ..usual }, 0.95),
        ("two regions, 9 to 1", Slots { parts: [0.9, 0.1, 0.0], ..usual }, 0.95),
        ("longer than ttl", Slots { lasts_ms: (4_000, 20_000), ..usual }, 0.95),
        ("0.1 s of 600 s, a hot region", short, 0.92),
        ("0.1 s of 600 s, two regions, 4 to 1", Slots { parts: [0.8, 0.2, 0.0], ..short }, 0.94),
        ("hot region moves every 20 s", Slots { shift_s: 20, ..usual }, 0.90),
    ];
    let mut all = Vec::new();
    for (asks_again, asks) in [(false, "give up"), (true, "ask again")] {
        for limit in [100, 300] {
            for (name, slots, least) in kinds {
                let slots = Slots { limit, asks_again, ..slots };
                all.push(Scenario { name: format!("{limit} slots, {asks}, {name}"), slots, least });
            }
        }
    }
    all
}

/// Slots under demand that is even, hot, short or long.
pub fn slots(table: &mut Table, quick: bool, seed: u64) {
    for Scenario { name, slots, least } in all() {
        let outcome = run(&slots, if quick { 60 } else { 300 }, seed);
        let figure = Figure::new("of the slots are taken", outcome.used, "");
        table.add(&name, figure, Bar::AtLeast(least), Some(outcome.cost));
        table.add(&name, Figure::new("without regions", outcome.at_best, ""), Bar::None, None);
    }
}
