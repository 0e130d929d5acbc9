//! Swarm testing (Groce et al., ISSTA 2012): every history draws which faults it has, and how many. A history
//! with all faults at once rarely gets anywhere. A history with few faults explores far what those can do.

use crate::{
    budget::{MS, Measured, S},
    network::Weather,
    random::Random,
    world::{Plan, START},
};

/// Kinds of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Some requests at one place.
    Ask,
    /// Everything that a place has of a cell is taken.
    Drain,
    /// Frames arrive.
    Deliver,
    /// A node's tick.
    Tick,
    /// Rows reach a disk.
    Write,
    /// Time passes.
    Pass,
    /// Time passes until shortly before or after a change.
    PassTo,
    /// Much time passes.
    PassLong,
    /// A link is cut or repaired.
    Link,
    /// A region is cut off in both directions.
    Isolate,
    /// All links are repaired.
    Mend,
    /// A process ends.
    Crash,
    /// A process stops cleanly.
    Stop,
    /// A process starts.
    Start,
    /// A disk is lost.
    LoseDisk,
    /// A process sleeps.
    Sleep,
    /// A wall clock jumps.
    Wall,
    /// A steady clock changes its rate.
    Drift,
    /// A disk stops writing.
    Stuck,
    /// Idle cells are forgotten.
    Sweep,
    /// An old frame is delivered again.
    Again,
    /// Budgets change.
    Budget,
    /// A limit is removed, or returns.
    Remove,
    /// Weights change.
    Weight,
    /// A region is evicted.
    Evict,
    /// A region joins.
    Join,
    /// A region leaves.
    Leave,
    /// The authority moves.
    TakeOver,
    /// A disk is copied, or replaced by an old copy.
    OldDisk,
    /// A live region is evicted.
    Mistake,
    /// A request whose caller may come back.
    Charge,
    /// A caller comes back.
    Settle,
    /// A caller takes a lease.
    Lease,
    /// A caller repeats a request under the same name.
    Repeat,
    /// An operator gives a key its own numbers, or removes them.
    Own,
}

/// The mix of a history.
#[derive(Clone, Debug)]
pub struct Mix {
    /// The initial state.
    pub plan: Plan,
    /// The kinds of steps, with cumulated weights.
    steps: Vec<(u64, Step)>,
    /// The longest time that passes in a usual step.
    pub pace_ns: u64,
    /// How many of a million sends are followed by a crash.
    pub crash_after_send: u32,
    /// Wall clocks are set beyond the catalogue's error bound.
    pub wild_walls: bool,
    /// Requests with a cost above one, of a million.
    pub large_costs: u32,
    /// Whether places and cells have unequal demand.
    pub hot: bool,
}

impl Mix {
    /// A random mix.
    pub fn draw(random: &mut Random) -> Self {
        let members = random.pick(&[2, 3, 3, 3, 3, 3, 4, 5]);
        let places = (members + usize::from(random.chance(250_000))).min(5);
        let kinds = random.between(1, 3) as usize;
        let limits = (0..kinds).map(|place| Measured::draw(place, members as u64, random)).collect();
        let equal = random.chance(500_000);
        let weights = (0..places).map(|_| if equal { 1 } else { random.between(1, 9) as u32 }).collect();
        let wild_walls = random.chance(120_000);
        let clock_error_ns = random.pick(&[0, 1, 10, 50, 200]) * MS;
        let longest = random.pick(&[5, 40, 120, 400]) * MS;
        let some = |random: &mut Random, of: u32, most: u32| {
            if random.chance(of) { random.between(1, u64::from(most)) as u32 } else { 0 }
        };
        let weather = Weather {
            loss: some(random, 400_000, 300_000),
            twice: some(random, 300_000, 300_000),
            kept: some(random, 300_000, 50_000),
            way_ns: (longest / 10, longest),
        };
        let plan = Plan {
            members,
            places,
            limits,
            weights,
            clock_error_ns,
            drift_ppm: random.pick(&[0, 100, 1_000, 20_000]),
            loan_ttl_ns: random.pick(&[S, 3 * S, 3 * S, 5 * S]),
            true_windows: !wild_walls,
            weather,
            start: START + random.below(3 * 3_600 * S),
        };
        let mut mix = Self {
            plan,
            steps: Vec::new(),
            pace_ns: random.pick(&[2, 10, 10, 40]) * MS,
            crash_after_send: some(random, 200_000, 2_000),
            wild_walls,
            large_costs: random.pick(&[0, 50_000, 300_000]),
            hot: random.chance(600_000),
        };
        if wild_walls {
            mix.crash_after_send = 0;
        }
        mix.weigh(random);
        mix
    }

    /// Weights: the usual steps always, each fault in some histories.
    fn weigh(&mut self, random: &mut Random) {
        let usual = [
            (Step::Ask, 300),
            (Step::Deliver, 300),
            (Step::Tick, 180),
            (Step::Write, 150),
            (Step::Pass, 150),
        ];
        for (step, weight) in usual {
            self.add(step, 100 * weight);
        }
        // The most occurrences in 100 000 steps, and the number of such histories in a million.
        let faults = [
            (Step::Drain, 6_000, 800_000),
            (Step::PassTo, 1_500, 700_000),
            (Step::PassLong, 100, 400_000),
            (Step::Link, 200, 400_000),
            (Step::Isolate, 100, 400_000),
            (Step::Mend, 200, 900_000),
            (Step::Crash, 120, 450_000),
            (Step::Stop, 50, 250_000),
            (Step::Start, 2_000, 1_000_000),
            (Step::LoseDisk, 15, 150_000),
            (Step::Sleep, 150, 400_000),
            (Step::Wall, 300, 500_000),
            (Step::Drift, 200, 500_000),
            (Step::Stuck, 100, 250_000),
            (Step::Sweep, 300, 500_000),
            (Step::Again, 400, 400_000),
            (Step::Budget, 200, 500_000),
            (Step::Remove, 60, 250_000),
            (Step::Weight, 60, 350_000),
            (Step::Evict, 60, 200_000),
            (Step::Join, 100, 300_000),
            (Step::Leave, 20, 150_000),
            (Step::TakeOver, 20, 200_000),
            (Step::OldDisk, 10, 40_000),
            (Step::Mistake, 10, 30_000),
            (Step::Charge, 8_000, 350_000),
            (Step::Settle, 6_000, 900_000),
            (Step::Lease, 2_000, 300_000),
            (Step::Repeat, 3_000, 500_000),
            (Step::Own, 200, 400_000),
        ];
        // If a process starts with a wall beyond its bounds, times in its rows mean nothing.
        let starts = [Step::Crash, Step::Stop, Step::LoseDisk, Step::Evict, Step::OldDisk];
        for (step, most, of) in faults {
            if random.chance(of) && !(self.wild_walls && starts.contains(&step)) {
                let weight = random.spread(1, most);
                self.add(step, weight);
            }
        }
    }

    fn add(&mut self, step: Step, weight: u64) {
        let before = self.steps.last().map_or(0, |(sum, _)| *sum);
        self.steps.push((before + weight, step));
    }

    /// The next step.
    pub fn step(&self, random: &mut Random) -> Step {
        let total = self.steps.last().map_or(1, |(sum, _)| *sum);
        let at = random.below(total);
        self.steps.iter().find(|(sum, _)| at < *sum).map_or(Step::Pass, |(_, step)| *step)
    }
}
