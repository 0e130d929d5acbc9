use std::{fmt::Write as _, iter, time::Duration};

use super::{
    Plan, Scenario,
    clocks::{at_their_worst, wrong_ms},
    crashes::LEFTOVERS,
    ms, pair,
};
use crate::{
    demand::{Demand, Herd, Kind},
    random::Random,
    schedule::{Command, Fault, Leftover, Place, Schedule},
};

/// Swarm testing (Groce et al., ISSTA 2012): a run with all faults at once rarely gets far. A run with few
/// kinds of faults gets far with those.
pub(super) const SWARM: Scenario = Scenario {
    name: "swarm",
    story: "Every seed draws its own regions, limits, demand, latencies and clocks, and its own few kinds of faults, each as \
            often as it pleases: nothing that is promised may break.",
    plan: |random| plan(random, false),
};

/// The plan of a seed where walls keep the promise and windows are neither short nor long: for stories that a
/// seed found.
pub(super) fn calm_walls(seed: u64) -> Plan {
    plan(&mut Random::of(seed, SWARM.name), true)
}

fn plan(random: &mut Random, has_calm_walls: bool) -> Plan {
    let regions = random.pick(&[2, 3, 3, 3, 4, 5]);
    let clocks = match has_calm_walls {
        true => random.pick(&[Clocks::Good, Clocks::Good, Clocks::Skewed, Clocks::Poor]),
        false => random.pick(&[Clocks::Good, Clocks::Skewed, Clocks::Poor, Clocks::Worst, Clocks::Wrong]),
    };
    // The server assumes that most walls are right, which needs at least three regions.
    let clocks = if clocks == Clocks::Wrong && regions < 3 { Clocks::Worst } else { clocks };
    let latest_ms = random.pick(&[3, 20, 40, 80, 150]);
    let (limits, mut demand) = limits(random, regions, clocks, has_calm_walls);
    let schedule = schedule(random, regions, clocks);
    lease(random, &mut demand, &schedule);
    let clock = if clocks == Clocks::Poor { "{ error: 200ms, drift: 1e-3 }" } else { "" };
    let latency_ms = (latest_ms / 3, latest_ms);
    let last = schedule.faults().last().map_or(Duration::ZERO, |(at, _)| *at);
    let duration = ms(END_MS).max(last + ms(REST_MS));
    Plan { regions, limits, clock, latency_ms, demand, schedule, duration, ..Plan::default() }
}

/// When faults begin, when all are over, and when the run ends at the earliest, in milliseconds.
const FROM_MS: u64 = 4_000;
const UNTIL_MS: u64 = 19_000;
const END_MS: u64 = 32_000;
/// The least time that is left of the run after the last order.
const REST_MS: u64 = 3_000;

/// How wrong clocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clocks {
    /// Not at all.
    Good,
    /// As far as the promise allows.
    Skewed,
    /// As far as the promise allows, and the promise is weak.
    Poor,
    /// Walls keep the promise. But oscillators run fast or slow, counters jump, and threads are preempted in
    /// the middle of a clock reading.
    Worst,
    /// One region's wall is wrong by up to a day, again and again.
    Wrong,
}

impl Clocks {
    /// How far a wall may be set, in milliseconds, and how far an oscillator may be off, in parts per
    /// million. Together they stay within the promise.
    const fn bounds(self) -> (u64, u64) {
        match self {
            Self::Good | Self::Worst | Self::Wrong => (0, 0),
            Self::Skewed => (6, 100),
            Self::Poor => (160, 1_000),
        }
    }
}

/// In a third of the runs callers lease, except where budgets change: leased units may be spent after the
/// budget was lowered.
fn lease(random: &mut Random, demand: &mut Demand, schedule: &Schedule) {
    let is_budget = |(_, fault): &(Duration, Fault)| matches!(fault, Fault::Order(_, Command::Budget { .. }));
    let longest = ms(random.pick(&[300, 2_000, 6_000, 20_000]));
    if random.chance(333_333) && !schedule.faults().iter().any(is_budget) {
        for (_, kind) in &mut demand.kinds {
            (kind.lease, kind.cost_max) = (Some(longest), kind.cost_max * 5);
        }
    }
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinds {
    Cut,
    OneWay,
    Split,
    Flap,
    Hold,
    Slow,
    Lose,
    Crash,
    CrashAtWrite,
    Stop,
    Sleep,
    Fill,
    Budget,
    Weight,
}

/// Each kind, and the percentage of runs that have it.
const KINDS: [(Kinds, u32); 14] = [
    (Kinds::Cut, 45),
    (Kinds::OneWay, 30),
    (Kinds::Split, 35),
    (Kinds::Flap, 20),
    (Kinds::Hold, 25),
    (Kinds::Slow, 20),
    (Kinds::Lose, 30),
    (Kinds::Crash, 40),
    (Kinds::CrashAtWrite, 30),
    (Kinds::Stop, 20),
    (Kinds::Sleep, 25),
    (Kinds::Fill, 15),
    (Kinds::Budget, 40),
    (Kinds::Weight, 30),
];

/// The limits, and who asks for them.
fn limits(random: &mut Random, regions: usize, clocks: Clocks, has_calm_walls: bool) -> (String, Demand) {
    let per_second = random.pick(&[5, 20, 20, 40]);
    let asked = u64::from(per_second) * regions as u64;
    let (mut text, mut kinds) = (String::new(), Vec::new());
    // Writing to a string cannot fail.
    let rate = random.between(1, 2 + asked * 2);
    let burst = random.between(1, 1 + rate * 3);
    let _ = write!(text, "  - name: api\n    domain: sim\n    when: {{ route: [/api, /both] }}\n");
    let _ = match random.below(6) {
        0 => writeln!(text, "    leaky_bucket: {{ rate: {rate}/s, queue: {burst} }}"),
        1 => writeln!(text, "    token_bucket: {{ rate: {}/m, burst: {burst} }}", rate * 60 + 7),
        _ => writeln!(text, "    token_bucket: {{ rate: {rate}/s, burst: {burst} }}"),
    };
    kinds.push((random.between(1, 5) as u32, Kind::of("route", "/api", random.between(1, 4))));
    if random.chance(700_000) {
        let short_s = if clocks == Clocks::Poor { 4 } else { 1 };
        let window_s = match has_calm_walls {
            true => random.pick(&[4, 5, 10, 20]),
            false => random.pick(&[short_s, 2 * short_s, 5, 10, 20, 3_600]),
        };
        let limit = random.between(1, 1 + asked * window_s.min(30));
        let _ = write!(text, "  - name: exports\n    domain: sim\n    when: {{ route: [/export, /both] }}\n");
        let kind = match has_calm_walls {
            true => random.pick(&["fixed_window", "fixed_window", "sliding_window"]),
            false => random.pick(&["fixed_window", "fixed_window", "sliding_window", "quota"]),
        };
        let _ = match kind {
            "quota" => writeln!(text, "    quota: {{ limit: {limit}, per: day }}"),
            // A loan of such a window settles when the window is over.
            "sliding_window" if window_s == 3_600 => {
                writeln!(text, "    fixed_window: {{ limit: {limit}, window: 1h }}")
            }
            kind => writeln!(text, "    {kind}: {{ limit: {limit}, window: {window_s}s }}"),
        };
        kinds.push((random.between(1, 5) as u32, Kind::of("route", "/export", random.between(1, 6))));
        if random.chance(500_000) {
            kinds.push((random.between(1, 5) as u32, Kind::of("route", "/both", 3)));
        }
    }
    if random.chance(600_000) {
        let (rate, users) = (random.between(1, 10), random.pick(&[1, 5, 50, 5_000]));
        let burst = random.between(1, 30);
        let _ = write!(text, "  - name: per-user\n    domain: sim\n    by: [user]\n");
        let _ = writeln!(text, "    token_bucket: {{ rate: {rate}/s, burst: {burst} }}");
        let hot = random.pick(&[0, 0, 50, 90]);
        let route = random.pick(&["/home", "/api"]);
        let kind = Kind { spread: Some(("user", users)), hot, ..Kind::of("route", route, 2) };
        kinds.push((random.between(1, 5) as u32, kind));
    }
    let mut demand = Demand { per_second, ..Demand::of(kinds) };
    if random.chance(400_000) {
        demand.percent = (0..regions).map(|_| random.pick(&[20, 50, 100, 150])).collect();
    }
    if random.chance(300_000) {
        let every = ms(random.pick(&[4_000, 5_000, 10_000]));
        demand.herd = Some(Herd { every, questions: random.between(5, 80) as u32 });
    }
    (text, demand)
}

fn schedule(random: &mut Random, regions: usize, clocks: Clocks) -> Schedule {
    let mut schedule = Schedule::default();
    set_clocks(&mut schedule, random, regions, clocks);
    for (kind, of_hundred) in KINDS {
        if random.chance(of_hundred * 10_000) {
            for _ in 0..random.pick(&[1, 1, 2, 3, 6]) {
                break_one(&mut schedule, random, regions, kind);
            }
        }
    }
    schedule.at(ms(UNTIL_MS), Fault::Heal);
    // A region that gets another identity after this is the only such region of its run: an operator does one
    // thing at a time.
    if random.chance(350_000) {
        change_member(&mut schedule, random, regions);
    }
    schedule
}

fn set_clocks(schedule: &mut Schedule, random: &mut Random, regions: usize, clocks: Clocks) {
    match clocks {
        Clocks::Good => return,
        Clocks::Worst => {
            return (0..regions).for_each(|place| at_their_worst(schedule, random, place, UNTIL_MS));
        }
        Clocks::Wrong => {
            let place = random.index(regions);
            let mut at_ms = random.between(FROM_MS, UNTIL_MS);
            while at_ms < UNTIL_MS {
                let (by_ms, back_ms) = (wrong_ms(random), at_ms + random.between(500, 7_000));
                schedule.at(ms(at_ms), Fault::Wall(place, by_ms)).at(ms(back_ms), Fault::Wall(place, -by_ms));
                at_ms = back_ms + random.between(300, 4_000);
            }
            return;
        }
        Clocks::Skewed | Clocks::Poor => {}
    }
    let (wall_ms, ppm) = clocks.bounds();
    for place in 0..regions {
        let drift = random.between(0, 2 * ppm) as i64 - ppm as i64;
        // Half of the allowed error from the beginning, and as much again later.
        let [first, then] = [0; 2].map(|_| random.between(0, wall_ms) as i64 - wall_ms as i64 / 2);
        let at_ms = random.between(FROM_MS, UNTIL_MS);
        schedule.at(ms(0), Fault::Drift(place, drift)).at(ms(0), Fault::Wall(place, first));
        schedule.at(ms(at_ms), Fault::Wall(place, then - first));
    }
}

fn break_one(schedule: &mut Schedule, random: &mut Random, regions: usize, kind: Kinds) {
    let (a, b) = pair(random, regions);
    let from_ms = random.between(FROM_MS, UNTIL_MS - 1_000);
    let longest_ms = random.pick(&[300, 2_000, 5_000, 12_000]);
    let until_ms = (from_ms + random.between(100, longest_ms)).min(UNTIL_MS);
    let (from, until) = (ms(from_ms), ms(until_ms));
    match kind {
        Kinds::Cut => schedule.during(from, until, Fault::Cut(a, b), Fault::Mend(a, b)),
        Kinds::OneWay => schedule.during(from, until, Fault::CutOneWay(a, b), Fault::Mend(a, b)),
        Kinds::Split => {
            let mut parts = [const { Vec::<Place>::new() }; 3];
            let several = random.between(2, 3) as usize;
            (0..regions).for_each(|place| parts[random.index(several)].push(place));
            schedule.split(from, until, &[&parts[0], &parts[1], &parts[2]])
        }
        Kinds::Flap => {
            let mut at_ms = from_ms;
            while at_ms < until_ms {
                let back_ms = at_ms + random.between(20, 1_500);
                schedule.during(ms(at_ms), ms(back_ms), Fault::Cut(a, b), Fault::Mend(a, b));
                at_ms = back_ms + random.between(20, 1_000);
            }
            schedule
        }
        Kinds::Hold => schedule.during(from, until, Fault::Hold(a, b), Fault::Release(a, b)),
        Kinds::Slow => {
            let slow = Fault::Slow(a, b, random.between(100, 900));
            schedule.during(from, until, slow, Fault::Slow(a, b, 20))
        }
        Kinds::Lose => {
            let lose = Fault::Lose(a, b, random.between(1, 60) as u32);
            schedule.during(from, until, lose, Fault::Lose(a, b, 0))
        }
        Kinds::Crash => {
            let crash = Fault::Crash(a, random.pick(&LEFTOVERS));
            schedule.during(from, until, crash, Fault::Start(a))
        }
        Kinds::CrashAtWrite => {
            let crash = Fault::CrashAtWrite(a, random.below(40));
            schedule.during(from, until, crash, Fault::Start(a))
        }
        Kinds::Stop => schedule.during(from, until, Fault::Stop(a), Fault::Start(a)),
        Kinds::Sleep => schedule.during(from, until, Fault::Sleep(a), Fault::Wake(a)),
        Kinds::Fill => schedule.during(from, until, Fault::FillDisk(a), Fault::ClearDisk(a)),
        Kinds::Budget => {
            let (name, value) = match random.below(3) {
                0 => ("burst", random.between(1, 200).to_string()),
                _ => ("rate", format!("{}/s", random.between(1, 200))),
            };
            schedule.at(from, Fault::Order(0, Command::budget("api", name, &value)))
        }
        Kinds::Weight => {
            let weight = Command::Weight(a, random.between(1, 9) as u32);
            schedule.at(from, Fault::Order(0, weight))
        }
    };
}

/// One region loses its disk, is evicted, or leaves. After everything has healed it gets a share again.
fn change_member(schedule: &mut Schedule, random: &mut Random, regions: usize) {
    let of = 1 + random.index(regions - 1);
    let at_ms = random.between(FROM_MS, UNTIL_MS - 6_000);
    let back_ms = random.between(at_ms + 500, UNTIL_MS);
    let leaves = random.chance(300_000);
    if leaves {
        // The region comes back as a new member. Before, it has time to say that it leaves; if it could not,
        // an operator evicts it.
        schedule.at(ms(at_ms), Fault::Order(0, Command::Remove(of)));
        let at = ms(UNTIL_MS + 1_500);
        schedule
            .at(at, Fault::Crash(of, Leftover::Lost))
            .at(at, Fault::LoseDisk(of))
            .at(at, Fault::Order(0, Command::Evict(of)))
            .at(at + ms(100), Fault::Start(of));
    } else {
        let at = ms(at_ms);
        schedule.at(at, Fault::Crash(of, Leftover::Lost)).at(at, Fault::LoseDisk(of));
        if random.chance(500_000) {
            let word_ms = random.between(at_ms, back_ms);
            schedule.at(ms(word_ms), Fault::Order(0, Command::Evict(of)));
        }
        schedule.at(ms(back_ms), Fault::Start(of));
    }
    // A refused region tries again. A region that crashed right after its link was slow is unreachable for
    // long. Its peer takes the old connection for alive for three times the acknowledgement timeout (RFC 9000
    // section 10.1).
    let last_ms = if leaves { 14_000 } else { 6_000 };
    for after_ms in iter::once(random.between(0, 2_000)).chain((4_000..=last_ms).step_by(2_000)) {
        let at = ms(UNTIL_MS + after_ms);
        schedule.at(at, Fault::Order(0, Command::Recover(of)));
        schedule.at(at, Fault::Order(0, Command::Add(of, random.between(1, 4) as u32)));
    }
}
