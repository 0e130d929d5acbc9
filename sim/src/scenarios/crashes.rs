use super::{Plan, Scenario, ms, seconds};
use crate::schedule::{Command, Fault, Leftover, Place, Schedule};

/// What may become of unsynced data on a disk.
pub(super) const LEFTOVERS: [Leftover; 3] = [Leftover::Lost, Leftover::Written, Leftover::Torn];

pub(super) const ROLLING_RESTART: Scenario = Scenario {
    name: "rolling-restart",
    story: "Every region is stopped as it should be and started again, one after the other: what each had is there when it \
            is back, and nothing besides.",
    plan: |random| {
        let mut schedule = Schedule::default();
        for place in 0..3 {
            let at = seconds(5 + 5 * place as u64);
            let down = ms(random.between(300, 3_000));
            schedule.during(at, at + down, Fault::Stop(place), Fault::Start(place));
        }
        Plan { schedule, duration: seconds(30), ..Plan::default() }
    },
};

pub(super) const STOP_AFTER_CRASH: Scenario = Scenario {
    name: "stop-after-crash",
    story: "A region loses its power, is back, and is stopped as it should be and started again before what the crash forgot \
            is over: it still counts as spent.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let (place, at) = (random.index(3), seconds(random.between(5, 8)));
        let [back, stop, again] =
            [(50, 800), (100, 1_500), (600, 1_500)].map(|(least, most)| ms(random.between(least, most)));
        schedule.at(at, Fault::Crash(place, random.pick(&LEFTOVERS))).at(at + back, Fault::Start(place));
        schedule.at(at + back + stop, Fault::Stop(place)).at(at + back + stop + again, Fault::Start(place));
        Plan { schedule, duration: seconds(26), ..Plan::default() }
    },
};

pub(super) const CRASH_AUTHORITY: Scenario = Scenario {
    name: "crash-authority",
    story: "The authority loses its power twice, the second time with an order just given: the others go on without it, \
            and it speaks with one tongue when it is back.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let budget = Command::budget("api", "rate", "30/s");
        let (first, second) = (seconds(random.between(5, 7)), seconds(random.between(13, 15)));
        schedule.at(first, Fault::Crash(0, random.pick(&LEFTOVERS)));
        schedule.at(first + seconds(4), Fault::Start(0));
        schedule.at(second, Fault::Order(0, budget));
        schedule.at(second + ms(random.between(0, 60)), Fault::Crash(0, random.pick(&LEFTOVERS)));
        schedule.at(second + seconds(3), Fault::Start(0));
        Plan { schedule, duration: seconds(32), ..Plan::default() }
    },
};

pub(super) const AUTHORITY_MOVES: Scenario = Scenario {
    name: "authority-moves",
    story: "The authority is gone with its disk: an operator makes another region the authority, which evicts the old one, \
            and lets it in again when it is back on an empty disk.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let at = seconds(random.between(5, 7));
        schedule.at(at, Fault::Crash(0, Leftover::Lost)).at(at, Fault::LoseDisk(0));
        schedule.at(at + seconds(2), Fault::Order(1, Command::TakeOver));
        schedule.at(at + seconds(4), Fault::Order(1, Command::Evict(0)));
        schedule.at(at + seconds(6), Fault::Start(0));
        for after in [9, 12, 15] {
            schedule.at(at + seconds(after), Fault::Order(1, Command::Add(0, 1)));
        }
        Plan { schedule, duration: seconds(36), ..Plan::default() }
    },
};

pub(super) const CRASH_AT_WRITE: Scenario = Scenario {
    name: "crash-at-write",
    story: "A region loses its power at its n-th durable write, which is torn: whatever it had told anybody is on its disk \
            when it is back.",
    plan: |random| {
        let place = random.index(3);
        crash_at(place, random.below(120))
    },
};

/// A region loses power at its `write`-th durable write after the fifth second, and again soon after it is
/// back.
pub fn crash_at(place: Place, write: u64) -> Plan {
    let mut schedule = Schedule::default();
    schedule.at(seconds(5), Fault::CrashAtWrite(place, write));
    for at in [8, 11, 14, 17] {
        schedule.at(seconds(at), Fault::Start(place));
    }
    schedule.at(seconds(12), Fault::CrashAtWrite(place, write % 7));
    schedule.at(seconds(19), Fault::Heal);
    Plan { schedule, duration: seconds(29), ..Plan::default() }
}
