use super::{Plan, Scenario, crashes::LEFTOVERS, ms, pair, seconds};
use crate::schedule::{Command, Fault, Schedule};

/// Kinds of faults during which a window ends.
const KINDS: u64 = 8;

pub(super) const WINDOW_ROLL: Scenario = Scenario {
    name: "window-roll",
    story: "At every edge of a window something is broken, each time something else: what was lent in the old window is \
            worth nothing in the new one, and everybody has a share of it at once.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let first = random.below(KINDS);
        for (edge_ms, kind) in [10_000, 20_000].into_iter().zip(first..) {
            let (a, b) = pair(random, 3);
            let from = ms(edge_ms - random.between(10, 3_000));
            let until = ms(edge_ms + random.between(10, 4_000));
            match kind % KINDS {
                0 => schedule.during(from, until, Fault::Cut(a, b), Fault::Mend(a, b)),
                1 => schedule.during(from, until, Fault::CutOneWay(a, b), Fault::Mend(a, b)),
                2 => schedule.during(from, until, Fault::Hold(a, b), Fault::Release(a, b)),
                3 => schedule.during(from, until, Fault::Crash(a, random.pick(&LEFTOVERS)), Fault::Start(a)),
                4 => schedule.during(from, until, Fault::Stop(a), Fault::Start(a)),
                5 => schedule.during(from, until, Fault::Sleep(a), Fault::Wake(a)),
                6 => schedule.during(from, until, Fault::FillDisk(a), Fault::ClearDisk(a)),
                _ => schedule.at(from, Fault::Order(0, Command::Weight(a, random.between(2, 9) as u32))),
            };
        }
        Plan { schedule, duration: seconds(36), ..Plan::default() }
    },
};
