use super::{Plan, Scenario, calm, seconds};
use crate::schedule::Schedule;

pub(super) const SPLIT_BRAIN: Scenario = Scenario {
    name: "split-brain",
    story: "One region out of three hears nothing of the other two for a while: each part goes on with its own share, \
            and both together never admit more than the limit.",
    plan: |random| {
        let alone = random.index(3);
        let others: Vec<usize> = (0..3).filter(|place| *place != alone).collect();
        let (from, long) = (seconds(random.between(8, 15)), seconds(random.between(10, 20)));
        let mut schedule = Schedule::default();
        schedule.split(from, from + long, &[&[alone], &others]);
        Plan { schedule, duration: seconds(50), ..(calm::CALM.plan)(random) }
    },
};
