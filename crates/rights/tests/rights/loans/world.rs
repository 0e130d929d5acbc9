//! Regions that share one cell, and an adversary. Follows `shared/model/loan_check.py`, with the real code.
//!
//! All numbers are exact integers. True time moves in tens of nanoseconds and clocks run at 9, 10 or 11
//! tenths, so a clock never rounds. Debt is counted in parts of a [`UNIT`]: one part of a rate of 1/s drains
//! one of these in a local nanosecond, slowed by the drift bound.
//!
//! As in a node, cells are settled only when something happens to them. Most histories run lazily and are
//! audited now and then. Some are audited after every step.
//!
//! The checks:
//! 1. *admits*: if everybody were asked for everything now, one true bucket (or the true last window) must
//!    cover it.
//! 2. *owned twice*: capacities add up to at most the largest budget in force, and rates to at most all
//!    parts.
//! 3. *debts vanish*: the debts of cells and in flight fall only by draining.
//!
//! (1) is the promise. (2) and (3) imply it, and notice a fault before slack hides it.

mod adversary;
mod audit;
mod authority;
mod lending;
mod network;
mod spending;

use std::collections::VecDeque;

use acequia_limits::RATE_PARTS;
use acequia_rights::{
    Book, HeldLoan, Incarnation, LentLoan, LoanKind, SentHeartbeats, Session, Sessions,
    identity::MemberId as RegionId,
};
use network::Message;

use super::random::Random;

const MS: u64 = 1_000_000;
const DRIFT_PPM: u32 = 100_000;
pub(super) const REGIONS: usize = 3;
const BURST: u64 = 60;
/// One unit: 10^9 ns · 1.1 for the drift bound · the parts of a rate.
const UNIT: i64 = 1_100_000_000 * RATE_PARTS as i64;
/// The length of the sliding window.
const WINDOW_NS: u64 = 500 * MS;
const TTLS_NS: [u64; 3] = [400 * MS, 1_000 * MS, 1_600 * MS];

/// Rules that the caller of this crate must keep. Each is left out in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Careless {
    /// Uses a clock that stops while the machine sleeps.
    ClockStopsInSuspend,
    /// Decides after a sleep by the state from before it.
    DecidesOnAStaleClock,
    /// Drains at its part of the rate, without a margin for a fast clock.
    NoRateMargin,
    /// Counts a sliding window at its nominal length, without a margin for a fast clock.
    WindowNotStretched,
    /// Restarts from a crash with a full bucket.
    RestartsFull,
    /// Restarts from a crash owing only its new share, before it has acknowledged the loss of a larger one.
    RestartsOwingItsNewShare,
    /// Grants before the loan is on disk.
    SendsBeforeWriting,
    /// Acknowledges a lower share while it lends more than that.
    AcksOverLent,
}

impl Careless {
    pub(super) const ALL: [Self; 8] = [
        Self::ClockStopsInSuspend,
        Self::DecidesOnAStaleClock,
        Self::NoRateMargin,
        Self::WindowNotStretched,
        Self::RestartsFull,
        Self::RestartsOwingItsNewShare,
        Self::SendsBeforeWriting,
        Self::AcksOverLent,
    ];
}

/// One version of the catalogue.
#[derive(Clone, Copy, Debug)]
struct Version {
    units: u64,
    rate: u64,
    /// Units that each region's share loses for good, and units that it gains from others.
    lowered: [u64; REGIONS],
    raised: [u64; REGIONS],
}

/// Units that move between shares once the losing region has acknowledged.
#[derive(Clone, Copy, Debug)]
struct Moving {
    from: usize,
    to: usize,
    units: u64,
    /// The version that lowers the share.
    version: usize,
}

/// Sessions by the peer's region.
#[derive(Clone, Debug)]
struct Peers(Vec<Session>);

impl Sessions for Peers {
    fn reclaim_end(&self, lent: &LentLoan) -> u64 {
        self.0[usize::from(lent.to.member.0)].reclaim_end(lent)
    }
    fn end_of(&self, held: &HeldLoan) -> u64 {
        self.0[usize::from(held.from.member.0)].end_of(held)
    }
}

#[derive(Clone, Debug)]
struct Actor {
    // Durable, with the book's loans.
    version: usize,
    /// The last acknowledged version.
    acked: usize,
    number: u64,
    process_number: u32,
    book: Book,
    // Volatile.
    heartbeats: SentHeartbeats,
    peers: Peers,
    debt: i64,
    settled_ns: u64,
    /// Charges in the sliding window: time and units.
    log: VecDeque<(u64, u64)>,
    // The machine.
    clock_ns: u64,
    speed: u64,
    asleep_until_ns: u64,
    stale: Option<i64>,
}

/// Counts of what happened in a history.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub admitted: u64,
    pub loans: u64,
    pub accepted: u64,
    pub renewals: u64,
    pub returns: u64,
    pub ended: u64,
    pub reclaimed: u64,
    pub crashes: u64,
    pub versions: u64,
    pub shifts: u64,
}

pub(super) struct World {
    random: Random,
    careless: Option<Careless>,
    sliding: bool,
    eager: bool,
    now_ns: u64,
    ttl_ns: u64,
    mood: usize,
    actors: Vec<Actor>,
    net: Vec<(usize, usize, Message)>,
    cut: Vec<(usize, usize)>,
    // The authority.
    versions: Vec<Version>,
    acked: [usize; REGIONS],
    moving: Option<Moving>,
    // The checker's state.
    /// The largest budget in force.
    force: (u64, u64),
    /// Larger budgets that were in force within the last window, and until when.
    fallen: VecDeque<(u64, u64)>,
    /// What the true bucket would admit.
    oracle: i64,
    /// Charges in the true last window, and their sum.
    charged: VecDeque<(u64, u64)>,
    charged_units: u64,
    /// Units of debt in flight, by giver and loan.
    flying: Vec<(usize, u64, i64)>,
    /// The debts in flight plus what was drained, minus what was admitted.
    ledger: i128,
    /// The largest sum of debts and ledger so far.
    ledger_max: i128,
    pub seen: Seen,
}

fn incarnation(region: usize) -> Incarnation {
    Incarnation { member: RegionId(region as u16), node: 0, number: 1 }
}

impl World {
    pub(super) fn new(seed: u64, careless: Option<Careless>) -> Self {
        let mut random = Random::new(seed);
        let sliding = random.chance(3_000);
        let eager = random.chance(3_000);
        let rate = random.pick(&[90, 600]);
        let genesis = Version { units: BURST, rate, lowered: [0; REGIONS], raised: [0; REGIONS] };
        let actors = (0..REGIONS)
            .map(|_| {
                let clock_ns = 1_000 * MS + random.below(100_000 * MS);
                Actor {
                    version: 0,
                    acked: 0,
                    number: 0,
                    process_number: 1,
                    book: Book::default(),
                    heartbeats: SentHeartbeats::new(1, TTLS_NS[2]),
                    peers: Peers(vec![Session::new(DRIFT_PPM); REGIONS]),
                    debt: 0,
                    settled_ns: clock_ns,
                    log: VecDeque::new(),
                    clock_ns,
                    speed: random.pick(&[9, 10, 11, 11]),
                    asleep_until_ns: 0,
                    stale: None,
                }
            })
            .collect();
        Self {
            random,
            careless,
            sliding,
            eager,
            now_ns: 0,
            ttl_ns: TTLS_NS[1],
            mood: 0,
            actors,
            net: Vec::new(),
            cut: Vec::new(),
            versions: vec![genesis],
            acked: [0; REGIONS],
            moving: None,
            force: (BURST, rate),
            fallen: VecDeque::new(),
            oracle: BURST as i64 * UNIT,
            charged: VecDeque::new(),
            charged_units: 0,
            flying: Vec::new(),
            ledger: 0,
            ledger_max: 0,
            seen: Seen::default(),
        }
    }

    fn is_careless(&self, rule: Careless) -> bool {
        self.careless == Some(rule)
    }

    fn kind(&self) -> LoanKind {
        if self.sliding { LoanKind::Sliding { lingers_ns: WINDOW_NS } } else { LoanKind::Bucket }
    }

    fn is_asleep(&self, i: usize) -> bool {
        self.actors[i].asleep_until_ns > self.now_ns
    }
}

/// Runs one history. A fault is returned with its seed and step.
pub(super) fn run(seed: u64, steps: u64, careless: Option<Careless>) -> Result<Seen, String> {
    let mut world = World::new(seed, careless);
    for step in 0..steps {
        world.step().map_err(|fault| format!("seed {seed} step {step}: {fault}"))?;
    }
    Ok(world.seen)
}

fn steps() -> u64 {
    std::env::var("ACEQUIA_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000_000)
}

#[test]
fn no_random_history_of_loans_exceeds_the_limit() {
    const EACH: u64 = 5_000;
    let (mut all, start) = (Seen::default(), std::time::Instant::now());
    let histories = steps() / EACH;
    for seed in 0..histories {
        let seen = run(seed, EACH, None).unwrap_or_else(|fault| panic!("{fault}"));
        all.admitted += seen.admitted;
        all.loans += seen.loans;
        all.accepted += seen.accepted;
        all.renewals += seen.renewals;
        all.returns += seen.returns;
        all.ended += seen.ended;
        all.reclaimed += seen.reclaimed;
        all.crashes += seen.crashes;
        all.versions += seen.versions;
        all.shifts += seen.shifts;
    }
    let per_s = (histories * EACH) as f64 / start.elapsed().as_secs_f64();
    println!("{histories} histories of {EACH} steps, {per_s:.0} steps/s: {all:?}");
    assert!(
        all.ended > histories && all.renewals > histories && all.shifts > histories / 2,
        "little happened: {all:?}"
    );
}

#[test]
fn a_seed_replays_the_same_history_of_loans() {
    let once = format!("{:?}", run(7, 5_000, None));
    assert_eq!(once, format!("{:?}", run(7, 5_000, None)));
}
