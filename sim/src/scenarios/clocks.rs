use super::{Plan, Scenario, calm::USED_MIN_PERCENT, ms, seconds};
use crate::schedule::{Fault, Schedule};

/// What is promised of clocks in these stories, so that the window of ten seconds may still be shared.
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

/// Windows of true time are outside the promise when a clock is wrong by more than is promised; rates are not.
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
