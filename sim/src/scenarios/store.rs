//! Nodes of one region that share a store, and faults of that store.

use std::time::Duration;

use super::{Plan, Scenario, crashes::LEFTOVERS, ms, seconds};
use crate::{
    demand::{Demand, Kind},
    random::Random,
    schedule::{Command, Fault, Place, Schedule, StoreFault},
};

const NODES: usize = 3;
/// The time that is left of a run when all faults are over.
const REST: Duration = seconds(12);
/// When faults begin, and when all are over, in milliseconds.
const FROM_MS: u64 = 6_000;
const UNTIL_MS: u64 = 24_000;

pub(super) const STORE_GONE: Scenario = Scenario {
    name: "store-gone",
    story: "Three nodes of one region lose the store that they share, for a long while or again and again: they spend what \
            they hold and what they keep for it, and no answer is late.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let shape = random.below(3);
        if shape < 2 {
            // Leases from the pools end after a minute and a quarter.
            let long = if shape == 0 { ms(random.between(70_000, 85_000)) } else { Duration::ZERO };
            let at = ms(random.between(FROM_MS, FROM_MS + 4_000));
            let until = ms(UNTIL_MS) + long;
            schedule.during(at, until, store(StoreFault::Gone), store(StoreFault::Back));
        } else {
            let mut at_ms = FROM_MS;
            while at_ms < UNTIL_MS {
                let back_ms = at_ms + random.between(20, 3_000);
                schedule.during(ms(at_ms), ms(back_ms), store(StoreFault::Gone), store(StoreFault::Back));
                at_ms = back_ms + random.between(20, 2_000);
            }
        }
        plan(schedule)
    },
};

pub(super) const STORE_SLOW: Scenario = Scenario {
    name: "store-slow",
    story: "The store of three nodes takes up to a quarter of a second, and some of its answers are lost: what was taken and not heard \
            of is nobody's, and callers wait for three milliseconds at most.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let slow = StoreFault::Slow(random.between(1, 120));
        schedule.at(ms(random.between(FROM_MS, 10_000)), store(slow));
        schedule
            .at(ms(random.between(FROM_MS, 14_000)), store(StoreFault::Lossy(random.between(5, 60) as u32)));
        schedule.at(ms(UNTIL_MS), store(StoreFault::Back));
        plan(schedule)
    },
};

pub(super) const STORE_FORGETS: Scenario = Scenario {
    name: "store-forgets",
    story: "The store of three nodes begins again with nothing: nothing is granted before every node has told what it holds, and then \
            no more than is left.",
    plan: |random| {
        let mut schedule = Schedule::default();
        for _ in 0..random.between(1, 3) {
            schedule.at(ms(random.between(FROM_MS, UNTIL_MS)), store(StoreFault::Forgets));
        }
        plan(schedule)
    },
};

pub(super) const STORE_FAILS_OVER: Scenario = Scenario {
    name: "store-fails-over",
    story: "A replica takes the store's place that has not heard of what was taken last, and one node goes on with the old one for a while: \
            what nodes hold is told again, and nobody has it twice.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let mut at_ms = random.between(FROM_MS, 9_000);
        while at_ms < UNTIL_MS - 2_000 {
            let over_ms = at_ms + random.between(1, 3_000);
            let stranded = random.chance(500_000).then(|| random.index(NODES));
            let over = store(StoreFault::FailsOver(stranded));
            schedule.at(ms(at_ms), store(StoreFault::Copied)).at(ms(over_ms), over);
            schedule.at(ms(over_ms + random.between(100, 6_000)), store(StoreFault::Back));
            at_ms = over_ms + random.between(1_000, 8_000);
        }
        plan(schedule)
    },
};

pub(super) const NODE_GONE: Scenario = Scenario {
    name: "node-gone",
    story: "One of three nodes of one region is gone for good, and then the store forgets: nobody can tell what the third one held, and \
            nothing is granted until an operator says that it is gone; from then on that counts as spent.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let of: Place = random.index(NODES);
        let told = (of + 1 + random.index(NODES - 1)) % NODES;
        let gone_ms = random.between(FROM_MS, 12_000);
        let forgets_ms = gone_ms + random.between(1, 3_000);
        let word_ms = random.between(gone_ms + 1, forgets_ms + 4_000);
        schedule.at(ms(gone_ms), Fault::Crash(of, random.pick(&LEFTOVERS)));
        schedule.at(ms(forgets_ms), store(StoreFault::Forgets));
        schedule.at(ms(word_ms), Fault::Exclude(told, of, 60));
        Plan { gone: vec![of], ..without_heal(schedule) }
    },
};

pub(super) const STORE_STORM: Scenario = Scenario {
    name: "store-storm",
    story: "Everything at once among three nodes of one region: the store is gone, slow, forgets and fails over, nodes crash, stop, sleep and \
            lose their disks, clocks are as wrong as is promised.",
    plan: |random| {
        let mut schedule = Schedule::default();
        for place in 0..NODES {
            let [first, then] = [0; 2].map(|_| random.between(0, 6) as i64 - 3);
            let drift = random.between(0, 200) as i64 - 100;
            schedule.at(ms(0), Fault::Wall(place, first)).at(ms(0), Fault::Drift(place, drift));
            schedule.at(ms(random.between(FROM_MS, UNTIL_MS)), Fault::Wall(place, then - first));
        }
        for _ in 0..random.between(3, 9) {
            break_one(&mut schedule, random);
        }
        plan(schedule)
    },
};

fn break_one(schedule: &mut Schedule, random: &mut Random) {
    let at_ms = random.between(FROM_MS, UNTIL_MS - 1_000);
    let (at, until) = (ms(at_ms), ms((at_ms + random.between(50, 6_000)).min(UNTIL_MS)));
    let of: Place = random.index(NODES);
    let back = || store(StoreFault::Back);
    match random.below(10) {
        0 => schedule.during(at, until, store(StoreFault::Gone), back()),
        1 => schedule.during(at, until, store(StoreFault::Slow(random.between(1, 150))), back()),
        2 => schedule.during(at, until, store(StoreFault::Lossy(random.between(1, 70) as u32)), back()),
        3 => schedule.at(at, store(StoreFault::Forgets)),
        4 => schedule.at(at, store(StoreFault::Copied)).at(until, store(StoreFault::FailsOver(None))),
        5 => {
            let over = at + ms(random.between(1, 1_000));
            schedule.at(at, store(StoreFault::Copied)).at(over, store(StoreFault::FailsOver(Some(of))));
            schedule.at(until, back())
        }
        6 => schedule.during(at, until, Fault::Crash(of, random.pick(&LEFTOVERS)), Fault::Start(of)),
        7 => schedule.during(at, until, Fault::Stop(of), Fault::Start(of)),
        8 => schedule.during(at, until, Fault::Sleep(of), Fault::Wake(of)),
        _ => {
            let crash = Fault::Crash(of, random.pick(&LEFTOVERS));
            schedule.at(at, crash).at(at, Fault::LoseDisk(of)).at(until, Fault::Start(of))
        }
    };
}

pub(super) const TWO_STORES: Scenario = Scenario {
    name: "two-stores",
    story: "Two regions of two nodes each share their limits by a catalogue, and each region through a store of its own: weights are ordered \
            anew, links between all four are cut, the first region's store breaks, nodes crash, and nobody admits more than there is.",
    plan: |random| {
        let mut schedule = Schedule::default();
        const PLACES: usize = 4;
        for _ in 0..random.between(2, 6) {
            let at = ms(random.between(FROM_MS, UNTIL_MS));
            let weight = Command::Weight(random.index(PLACES), random.between(1, 5) as u32);
            schedule.at(at, Fault::Order(0, weight));
        }
        for _ in 0..random.between(1, 5) {
            let at_ms = random.between(FROM_MS, UNTIL_MS - 2_000);
            let (at, until) = (ms(at_ms), ms(at_ms + random.between(200, 8_000)).min(ms(UNTIL_MS)));
            let of = random.index(PLACES);
            let other = (of + 1 + random.index(PLACES - 1)) % PLACES;
            match random.below(6) {
                0 => schedule.during(at, until, store(StoreFault::Gone), store(StoreFault::Back)),
                1 => schedule.at(at, store(StoreFault::Forgets)),
                2 => schedule.during(at, until, Fault::Crash(of, random.pick(&LEFTOVERS)), Fault::Start(of)),
                3 => schedule.during(at, until, Fault::Stop(of), Fault::Start(of)),
                4 => schedule.during(at, until, Fault::Cut(of, other), Fault::Mend(of, other)),
                _ => schedule.during(at, until, Fault::Sleep(of), Fault::Wake(of)),
            };
        }
        Plan { regions: PLACES, stores: 2, ..plan(schedule) }
    },
};

fn store(fault: StoreFault) -> Fault {
    Fault::Store(fault)
}

fn plan(mut schedule: Schedule) -> Plan {
    schedule.at(last_of(&schedule), Fault::Heal);
    without_heal(schedule)
}

fn last_of(schedule: &Schedule) -> Duration {
    schedule.faults().last().map_or(Duration::ZERO, |(at, _)| *at).max(ms(UNTIL_MS))
}

/// No node that is down begins again.
fn without_heal(schedule: Schedule) -> Plan {
    let last = last_of(&schedule);
    let demand = Demand::of([
        (4, Kind::of("route", "/api", 3)),
        (2, Kind::of("route", "/export", 4)),
        (2, Kind::of("route", "/report", 3)),
        (2, Kind { spread: Some(("user", 8)), ..Kind::of("route", "/home", 2) }),
    ]);
    Plan {
        regions: NODES,
        guard_percent: Some(GUARD_PERCENT),
        limits: LIMITS.to_owned(),
        demand,
        schedule,
        duration: last + REST,
        ..Plan::default()
    }
}

const GUARD_PERCENT: u8 = 20;

const LIMITS: &str = "
  - name: api
    domain: sim
    when: { route: /api }
    token_bucket: { rate: 40/s, burst: 90 }
  - name: exports
    domain: sim
    when: { route: /export }
    fixed_window: { limit: 300, window: 10s }
  - name: reports
    domain: sim
    when: { route: /report }
    sliding_window: { limit: 200, window: 10s }
  - name: per-user
    domain: sim
    by: [user]
    token_bucket: { rate: 2/s, burst: 6 }
";
