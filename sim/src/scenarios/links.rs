use super::{Plan, Scenario, ms, pair, seconds};
use crate::schedule::{Fault, Schedule};

pub(super) const ONE_WAY_CUT: Scenario = Scenario {
    name: "one-way-cut",
    story: "A region hears another one, and is not heard by it: neither takes the other's silence for leave to spend what \
            is not its own.",
    plan: |random| {
        let (from, to) = pair(random, 3);
        let (at, long) = (seconds(random.between(5, 8)), seconds(random.between(4, 12)));
        let mut schedule = Schedule::default();
        schedule.during(at, at + long, Fault::CutOneWay(from, to), Fault::Mend(from, to));
        Plan { schedule, duration: seconds(32), ..Plan::default() }
    },
};

pub(super) const FLAPPING_LINK: Scenario = Scenario {
    name: "flapping-link",
    story: "A link goes and comes back many times, for some tenths of a second up to seconds: loans that are under way \
            when it goes are neither lost for good nor spent twice.",
    plan: |random| {
        let (a, b) = pair(random, 3);
        let (mut at_ms, mut schedule) = (5_000, Schedule::default());
        while at_ms < 20_000 {
            let down_ms = random.between(50, 2_500);
            schedule.during(ms(at_ms), ms(at_ms + down_ms), Fault::Cut(a, b), Fault::Mend(a, b));
            at_ms += down_ms + random.between(50, 1_500);
        }
        Plan { schedule, duration: seconds(34), ..Plan::default() }
    },
};

pub(super) const SLOW_LINK: Scenario = Scenario {
    name: "slow-link",
    story: "A link clogs: packets take half a second, then none arrives, then all that waited arrive at once: what is said \
            late is worth no more than when it was said.",
    plan: |random| {
        let (a, b) = pair(random, 3);
        let mut schedule = Schedule::default();
        let slow = Fault::Slow(a, b, random.between(200, 800));
        schedule.during(seconds(5), seconds(20), slow, Fault::Slow(a, b, 25));
        let (at, long_ms) = (seconds(random.between(7, 10)), random.between(500, 7_000));
        schedule.during(at, at + ms(long_ms), Fault::Hold(a, b), Fault::Release(a, b));
        Plan { schedule, duration: seconds(32), ..Plan::default() }
    },
};

pub(super) const LOSSY_LINK: Scenario = Scenario {
    name: "lossy-link",
    story: "Up to half of the packets between two regions are lost: what gets through is enough, and nothing counts twice \
            because it was sent twice.",
    plan: |random| {
        let (a, b) = pair(random, 3);
        let mut schedule = Schedule::default();
        let percent = random.between(5, 50) as u32;
        schedule.during(seconds(5), seconds(20), Fault::Lose(a, b, percent), Fault::Mend(a, b));
        Plan { schedule, duration: seconds(32), ..Plan::default() }
    },
};
