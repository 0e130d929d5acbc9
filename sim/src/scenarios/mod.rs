//! Stories of what breaks, a file for each kind: what they are, their limits, what is asked, what happens when.

mod calm;
mod clocks;
mod crashes;
mod disks;
mod drills;
mod leases;
mod links;
mod load;
mod orders;
mod split_brain;
mod store;
mod storm;
mod swarm;
mod window_roll;

use std::time::Duration;

pub use self::crashes::crash_at;
use crate::{
    demand::Demand,
    random::Random,
    schedule::{Place, Schedule},
};

/// A story that can be run with any seed.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// By which it is run.
    pub name: &'static str,
    /// In a sentence.
    pub story: &'static str,
    /// What happens with a seed.
    pub plan: fn(&mut Random) -> Plan,
}

/// What happens in one run. [`Plan::default`] is the plan of a calm world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many regions.
    pub regions: usize,
    /// The limits, as a config has them.
    pub limits: String,
    /// What is promised of the clocks, as a config has it; the default where empty.
    pub clock: &'static str,
    /// How long packets take between regions, in milliseconds, at least and at most.
    pub latency_ms: (u64, u64),
    /// What is asked.
    pub demand: Demand,
    /// What of each limit nodes keep out of the pools, in percent, where all of them are nodes of one region that share a store;
    /// nothing where they are regions.
    pub guard_percent: Option<u8>,
    /// How many regions these nodes are of, in their order, each with a store of its own: several share the limits by a catalogue.
    /// Faults of a store are of the first region's.
    pub stores: usize,
    /// What breaks.
    pub schedule: Schedule,
    /// How long it lasts: all faults are over some ten seconds before.
    pub duration: Duration,
    /// Of what an oracle admits of a limit, so many percent are admitted at least, while all regions hear each other; while
    /// they do not, as much as their rights allow ([`UsedAsPromised`](crate::checks::UsedAsPromised)). Nothing where nothing is
    /// promised.
    pub used_min_percent: Option<u64>,
    /// Whether most walls are as right as is promised throughout: then windows of true time hold, whatever the others do.
    pub most_walls_are_right: bool,
    /// Whether every region admits something of every kind of question in the last seconds.
    pub admits_at_last: bool,
    /// Regions whose admissions are in no sum, since an operator gave a word that is not true; the story says why.
    pub apart: Vec<Place>,
    /// Regions that run at the end, and must own nothing.
    pub barred: Vec<Place>,
    /// Regions that do not run at the end.
    pub gone: Vec<Place>,
}

/// All of them.
pub const ALL: [Scenario; 47] = [
    calm::CALM,
    split_brain::SPLIT_BRAIN,
    split_brain::SPLIT_IN_THREE,
    links::ONE_WAY_CUT,
    links::FLAPPING_LINK,
    links::SLOW_LINK,
    links::LOSSY_LINK,
    crashes::ROLLING_RESTART,
    crashes::STOP_AFTER_CRASH,
    crashes::CRASH_AUTHORITY,
    crashes::AUTHORITY_MOVES,
    crashes::CRASH_AT_WRITE,
    disks::LOST_DISK,
    disks::FIRST_WRITES,
    disks::FULL_DISK,
    disks::OLD_DISK,
    clocks::CLOCK_SKEW,
    clocks::CLOCK_JUMP,
    clocks::WILD_CLOCK,
    clocks::FAST_CLOCK,
    clocks::OUTVOTED,
    clocks::WRONG_AT_BOOT,
    clocks::WRONG_WHILE_CUT,
    orders::BUDGET_IN_A_SPLIT,
    orders::WEIGHTS_IN_A_ROLLOUT,
    orders::JOIN_AND_LEAVE,
    orders::LEAVER_DIES,
    orders::CRASH_IN_AN_ORDER,
    orders::EVICT_DEAD,
    orders::EVICT_ALIVE,
    window_roll::WINDOW_ROLL,
    load::HERD,
    load::KEY_FLOOD,
    load::COOLING,
    load::STALLED_PEER,
    load::CROWDED_WAKE,
    load::FLOORS,
    leases::LEASES,
    store::STORE_GONE,
    store::STORE_SLOW,
    store::STORE_FORGETS,
    store::STORE_FAILS_OVER,
    store::NODE_GONE,
    store::STORE_STORM,
    store::TWO_STORES,
    storm::STORM,
    swarm::SWARM,
];

/// In which servers that break a rule are found out: no stories of their own, but they run like any other.
pub const DRILLS: [Scenario; 4] = [drills::CRASHES, drills::LINKS, drills::TOKENS, drills::ORDERS];

/// The one with a name.
pub fn named(name: &str) -> Option<Scenario> {
    ALL.into_iter().chain(DRILLS).find(|scenario| scenario.name == name)
}

impl Scenario {
    /// What happens with a seed.
    pub fn plan_of(&self, seed: u64) -> Plan {
        (self.plan)(&mut Random::of(seed, self.name))
    }
}

/// Two different regions out of so many.
fn pair(random: &mut Random, regions: usize) -> (Place, Place) {
    let a = random.index(regions);
    (a, (a + 1 + random.index(regions - 1)) % regions)
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
