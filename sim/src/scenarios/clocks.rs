use super::{Plan, Scenario, calm::USED_MIN_PERCENT, crashes::LEFTOVERS, ms, seconds};
use crate::{
    demand::{Demand, Kind},
    random::Random,
    schedule::{Fault, Place, Schedule},
};

/// The promise about clocks in these stories; with it the window of ten seconds may still be shared.
const ERROR_400_MS: &str = "{ error: 400ms, drift: 1e-3 }";

pub(super) const CLOCK_SKEW: Scenario = Scenario {
    name: "clock-skew",
    story: "No two regions agree what time it is, and their clocks run at different rates, both as far as is promised: \
            windows and buckets hold by true time.",
    plan: |random| {
        let mut schedule = Schedule::default();
        for place in 0..3 {
            let by_ms = random.between(0, 700) as i64 - 350;
            let ppm = random.between(0, 1_800) as i64 - 900;
            schedule.at(seconds(0), Fault::Wall(place, by_ms)).at(seconds(0), Fault::Drift(place, ppm));
        }
        Plan { schedule, clock: ERROR_400_MS, duration: seconds(34), ..Plan::default() }
    },
};

pub(super) const CLOCK_JUMP: Scenario = Scenario {
    name: "clock-jump",
    story: "A region's clock is set across the edge of a window, by as much as is promised at most: the window that it \
            sees early or late is still one window for all.",
    plan: |random| {
        let mut schedule = Schedule::default();
        for edge_ms in [10_000, 20_000] {
            let (place, by_ms) = (random.index(3), random.between(1, 190) as i64);
            let at_ms = random.between(edge_ms - 200, edge_ms + 200);
            let by_ms = if random.chance(700_000) { by_ms } else { -by_ms };
            schedule.at(ms(at_ms), Fault::Wall(place, by_ms));
        }
        Plan { schedule, clock: ERROR_400_MS, duration: seconds(34), ..Plan::default() }
    },
};

/// A wrong clock beyond the promise breaks the promise for windows of true time, but not for rates.
pub(super) const WILD_CLOCK: Scenario = Scenario {
    name: "wild-clock",
    story: "A region's wall clock jumps by up to an hour: windows mean nothing then, but no bucket fills faster for it, \
            since buckets go by clocks that nobody sets.",
    plan: |random| {
        let mut schedule = Schedule::default();
        for at in [6, 11, 16] {
            let by_ms = random.between(0, 7_200_000) as i64 - 3_600_000;
            schedule.at(seconds(at), Fault::Wall(random.index(3), by_ms));
        }
        let plan = Plan::default();
        let windows = plan.limits.find("  - name: exports").zip(plan.limits.find("  - name: per-user"));
        let mut limits = plan.limits.clone();
        windows.into_iter().for_each(|(from, until)| limits.replace_range(from..until, ""));
        Plan { schedule, limits, used_min_percent: Some(USED_MIN_PERCENT), duration: seconds(30), ..plan }
    },
};

/// A plan whose callers ask for more than any of its limits allows.
fn of_short_windows(schedule: Schedule) -> Plan {
    let kinds = [
        (5, Kind::of("route", "/export", 4)),
        (3, Kind::of("route", "/job", 3)),
        (2, Kind::of("route", "/api", 3)),
    ];
    let demand = Demand { per_second: 60, ..Demand::of(kinds) };
    let limits = SHORT_WINDOWS.to_owned();
    Plan {
        limits,
        demand,
        schedule,
        latency_ms: (3, 12),
        most_walls_are_right: true,
        admits_at_last: true,
        ..Plan::default()
    }
}

const SHORT_WINDOWS: &str = "
  - name: exports
    domain: sim
    when: { route: /export }
    fixed_window: { limit: 90, window: 1s }
  - name: jobs
    domain: sim
    when: { route: /job }
    sliding_window: { limit: 60, window: 2s }
  - name: api
    domain: sim
    when: { route: /api }
    token_bucket: { rate: 30/s, burst: 30 }
";

/// A time a little after the edge of a second, so that a wall that is ahead is in another window for long.
fn odd_ms(random: &mut Random, from_ms: u64, until_ms: u64) -> u64 {
    random.between(from_ms / 1_000, until_ms / 1_000) * 1_000 + random.between(300, 900)
}

pub(super) const FAST_CLOCK: Scenario = Scenario {
    name: "fast-clock",
    story: "Every wall is as right as is promised, and every machine makes the most of it: oscillators run fast or slow while the \
            wall is held right, counters jump, walls are corrected forth and back, and threads are preempted in the middle of \
            a look at the clocks. No window of a second gives more than its limit, with one region, two or three.",
    plan: |random| {
        let mut schedule = Schedule::default();
        // Peers and the steady clock contradict a wrong wall. A single region has no peers.
        let regions = random.pick(&[1, 2, 3, 3]);
        (0..regions).for_each(|place| at_their_worst(&mut schedule, random, place, 40_000));
        Plan { regions, duration: seconds(44), ..of_short_windows(schedule) }
    },
};

/// The wall keeps the promise, and until `until_ms` the machine does all else that it may do.
pub(super) fn at_their_worst(schedule: &mut Schedule, random: &mut Random, place: Place, until_ms: u64) {
    let ppm = random.pick(&[-950, -400, 400, 950, 950]);
    schedule.at(ms(0), Fault::Drift(place, ppm)).at(ms(0), Fault::Smear(place, -ppm));
    let mut at_ms = random.between(3_000, 5_000);
    let mut off_ms = 0;
    while at_ms < until_ms {
        match random.below(4) {
            0 => schedule.at(ms(at_ms), Fault::Counter(place, random.pick(&[-90_000, -3, 2, 700, 60_000]))),
            1 => {
                let to_ms = random.between(0, 8) as i64 - 4;
                let by_ms = to_ms - std::mem::replace(&mut off_ms, to_ms);
                schedule.at(ms(at_ms), Fault::Wall(place, by_ms))
            }
            _ => {
                let until = ms(at_ms + random.pick(&[1, 10, 50, 400]));
                schedule.during(ms(at_ms), until, Fault::Sleep(place), Fault::Wake(place))
            }
        };
        at_ms += random.between(500, 3_000);
    }
}

pub(super) const OUTVOTED: Scenario = Scenario {
    name: "outvoted",
    story: "Two of three walls are set ahead, by as much, and stay so for long: the third one, which is right, goes by theirs, as is said \
            of it. It serves all the while, and is whole when they are mended.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let right = random.index(3);
        let ahead_ms = random.between(2_500, 8_000) as i64;
        for place in (0..3).filter(|place| *place != right) {
            schedule.at(ms(6_000), Fault::Wall(place, ahead_ms));
        }
        if random.chance(500_000) {
            let at = ms(random.between(20_000, 26_000));
            for place in (0..3).filter(|place| *place != right) {
                schedule.at(at, Fault::Wall(place, -ahead_ms));
            }
        }
        Plan {
            clock: DRIFTING,
            duration: seconds(44),
            most_walls_are_right: false,
            ..of_short_windows(schedule)
        }
    },
};

/// With these clocks an unconfirmed wall is doubted after seconds; better clocks would take minutes.
const DRIFTING: &str = "{ error: 10ms, drift: 0.01 }";

/// How far a wall is wrong, in milliseconds.
pub(super) fn wrong_ms(random: &mut Random) -> i64 {
    let by_ms = random.pick(&[60, 300, 700, 2_500, 4_000, 61_000, 3_600_000, 86_400_000]);
    if random.chance(700_000) { by_ms } else { -by_ms }
}

pub(super) const WRONG_AT_BOOT: Scenario = Scenario {
    name: "wrong-at-boot",
    story: "One of three machines boots with a wall that is wrong, by a tenth of a second to a day, is mended while it runs or by a restart, \
            and boots so again: it goes by the others', no window gives more than its limit, and nobody is starved.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let (place, by_ms) = (random.index(3), wrong_ms(random));
        let from_start = random.chance(300_000);
        let at_ms = if from_start { 0 } else { odd_ms(random, 4_000, 9_000) };
        if from_start {
            schedule.at(ms(0), Fault::Wall(place, by_ms));
        } else {
            restart(&mut schedule, random, place, at_ms, by_ms);
        }
        let mended_ms = odd_ms(random, 16_000, 22_000);
        if random.chance(500_000) {
            schedule.at(ms(mended_ms), Fault::Wall(place, -by_ms));
        } else {
            restart(&mut schedule, random, place, mended_ms, -by_ms);
        }
        Plan { duration: seconds(50), ..of_short_windows(schedule) }
    },
};

fn restart(schedule: &mut Schedule, random: &mut Random, place: Place, at_ms: u64, by_ms: i64) {
    let ends = if random.chance(500_000) {
        Fault::Stop(place)
    } else {
        Fault::Crash(place, random.pick(&LEFTOVERS))
    };
    schedule
        .at(ms(at_ms), ends)
        .at(ms(at_ms + 300), Fault::Wall(place, by_ms))
        .at(ms(at_ms + 400), Fault::Start(place));
}

pub(super) const WRONG_WHILE_CUT: Scenario = Scenario {
    name: "wrong-while-cut",
    story: "The wall of one of three regions is set while it reaches nobody, or while all others are reached, again and again: it goes on by \
            its steady clock, and no window gives more than its limit.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let place = random.index(3);
        let (cut, until) = (ms(random.between(4_000, 9_000)), ms(random.between(18_000, 24_000)));
        for other in (0..3).filter(|other| *other != place) {
            schedule.during(cut, until, Fault::Cut(place, other), Fault::Mend(place, other));
        }
        let mut at_ms = odd_ms(random, 6_000, 10_000);
        while at_ms < 26_000 {
            let by_ms = wrong_ms(random);
            let back_ms = at_ms + random.between(500, 7_000);
            schedule.at(ms(at_ms), Fault::Wall(place, by_ms)).at(ms(back_ms), Fault::Wall(place, -by_ms));
            at_ms = back_ms + random.between(300, 4_000);
        }
        Plan { duration: seconds(56), ..of_short_windows(schedule) }
    },
};
