//! Stories of faults, a file for each kind. A story has limits, demand and a schedule of faults.

mod calm;
mod clocks;
mod crashes;
mod disks;
mod drills;
mod gateways;
mod holds;
mod leases;
mod links;
mod load;
mod orders;
mod split_brain;
mod store;
mod storm;
mod streams;
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
    /// The name that runs it.
    pub name: &'static str,
    /// The story in a sentence.
    pub story: &'static str,
    /// The plan for a seed.
    pub plan: fn(&mut Random) -> Plan,
}

/// One run: regions, limits, demand and faults. [`Plan::default`] is the plan of a calm world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of regions.
    pub regions: usize,
    /// The limits, in the config's syntax.
    pub limits: String,
    /// The promise about clocks, in the config's syntax; the default if empty.
    pub clock: &'static str,
    /// How long packets take between regions, in milliseconds: the least and the most.
    pub latency_ms: (u64, u64),
    /// What callers ask.
    pub demand: Demand,
    /// Where all are nodes of one region that share a store: the part of each limit that nodes keep out of
    /// the pools as guards, in percent. `None` where they are regions.
    pub guard_percent: Option<u8>,
    /// How many regions these nodes belong to, in their order. Each region has its own store, and several
    /// share the limits by a catalogue. Store faults hit the first region's store.
    pub stores: usize,
    /// The faults.
    pub schedule: Schedule,
    /// How long the run lasts. All faults are over about ten seconds before its end.
    pub duration: Duration,
    /// The least percentage of an oracle's admissions that is promised while all regions hear each other. In
    /// a split, the promise is what their rights allow ([`UsedAsPromised`](crate::checks::UsedAsPromised)).
    /// `None` if nothing is promised.
    pub used_min_percent: Option<u64>,
    /// Whether most walls keep the promise throughout. Then windows of true time hold, whatever the other
    /// walls do.
    pub most_walls_are_right: bool,
    /// Whether every region admits something of every kind of question in the last seconds.
    pub admits_at_last: bool,
    /// Regions whose admissions are in no sum, since an operator gave a false word; the story says why.
    pub apart: Vec<Place>,
    /// Regions that run at the end, and must own nothing.
    pub barred: Vec<Place>,
    /// Regions that do not run at the end.
    pub gone: Vec<Place>,
}

/// All scenarios.
pub const ALL: [Scenario; 50] = [
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
    streams::STREAMS,
    holds::HOLDS,
    gateways::GATEWAYS,
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

/// Scenarios that soon find a server that breaks a rule. They are not stories, but they run like any other
/// scenario.
pub const DRILLS: [Scenario; 4] = [drills::CRASHES, drills::LINKS, drills::TOKENS, drills::ORDERS];

/// The scenario with this name, or the drill.
pub fn named(name: &str) -> Option<Scenario> {
    ALL.into_iter().chain(DRILLS).find(|scenario| scenario.name == name)
}

impl Scenario {
    /// The plan for a seed.
    pub fn plan_of(&self, seed: u64) -> Plan {
        (self.plan)(&mut Random::of(seed, self.name))
    }
}

/// Two different regions out of `regions`.
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
