use super::{Plan, Scenario, calm, seconds};
use crate::{demand::Demand, schedule::Schedule};

/// A quarter of the limit has to move to the region with the most demand, and only some questions a second
/// steer the move. At so low a rate the theory's model admits 85 % where demand is as uneven; two hundredths
/// are for chance. Without lending the result would be some 70 %.
const USED_MIN_PERCENT: u64 = 83;

pub(super) const SPLIT_BRAIN: Scenario = Scenario {
    name: "split-brain",
    story: "One region out of three hears nothing of the other two for a while: each part goes on with its own share, \
            and both together never admit more than the limit.",
    plan: |random| {
        let alone = random.index(3);
        let others: Vec<usize> = (0..3).filter(|place| *place != alone).collect();
        let (from, long) = (seconds(random.between(6, 12)), seconds(random.between(6, 14)));
        let mut schedule = Schedule::default();
        schedule.split(from, from + long, &[&[alone], &others]);
        let plan = Plan::default();
        // One region has the most demand, so there are loans when the cut comes.
        let mut percent = vec![40; 3];
        percent[random.index(3)] = 220;
        let demand = Demand { percent, ..plan.demand };
        Plan { schedule, demand, used_min_percent: Some(USED_MIN_PERCENT), duration: seconds(36), ..plan }
    },
};

pub(super) const SPLIT_IN_THREE: Scenario = Scenario {
    name: "split-in-three",
    story: "Five regions fall into three parts, which find each other again one after the other: every part has its own \
            share, and a unit that is lent across a cut comes back after it.",
    plan: |random| {
        let first = random.index(5);
        let [a, b, c, d, e] = std::array::from_fn(|after| (first + after) % 5);
        let (from, long) = (seconds(random.between(5, 9)), seconds(random.between(5, 9)));
        let mut schedule = Schedule::default();
        schedule.split(from, from + long, &[&[a, b], &[c, d]]);
        schedule.split(from, from + long + seconds(4), &[&[a, b, c, d], &[e]]);
        Plan {
            regions: 5,
            schedule,
            used_min_percent: Some(calm::USED_MIN_PERCENT),
            duration: seconds(34),
            ..Plan::default()
        }
    },
};
