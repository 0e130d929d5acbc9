use super::{Plan, Scenario, crashes::LEFTOVERS, ms, seconds};
use crate::schedule::{Command, Fault, Leftover, Schedule};

pub(super) const LOST_DISK: Scenario = Scenario {
    name: "lost-disk",
    story: "A region loses its disk: on an empty one it owns nothing until an operator gives it back its share, and what it \
            had lent or held is nobody's twice.",
    plan: |random| {
        let (place, at) = (1 + random.index(2), seconds(random.between(5, 8)));
        let mut schedule = Schedule::default();
        schedule.at(at, Fault::Crash(place, Leftover::Lost)).at(at, Fault::LoseDisk(place));
        schedule.at(at + seconds(2), Fault::Start(place));
        for after in [5, 8, 11] {
            schedule.at(at + seconds(after), Fault::Order(0, Command::Recover(place)));
        }
        Plan { schedule, duration: seconds(34), ..Plan::default() }
    },
};

pub(super) const FIRST_WRITES: Scenario = Scenario {
    name: "first-writes",
    story: "A region loses its disk, and its power at one of the first writes on the empty one: half a journal is none, and it \
            begins once more.",
    plan: |random| {
        let (place, at) = (1 + random.index(2), seconds(random.between(5, 8)));
        let mut schedule = Schedule::default();
        schedule.at(at, Fault::Crash(place, Leftover::Lost)).at(at, Fault::LoseDisk(place));
        schedule.at(at + seconds(1), Fault::CrashAtWrite(place, random.below(12)));
        schedule.at(at + seconds(1), Fault::Start(place)).at(at + seconds(3), Fault::Start(place));
        for after in [5, 8, 11] {
            schedule.at(at + seconds(after), Fault::Order(0, Command::Recover(place)));
            schedule.at(at + seconds(after) + ms(500), Fault::Start(place));
        }
        Plan { schedule, duration: seconds(34), ..Plan::default() }
    },
};

pub(super) const FULL_DISK: Scenario = Scenario {
    name: "full-disk",
    story: "A region's disk takes no more writes for a while: it says nothing that it could not write down first.",
    plan: |random| {
        let place = random.index(3);
        let (from, long) = (seconds(random.between(5, 8)), seconds(random.between(2, 8)));
        let mut schedule = Schedule::default();
        schedule.during(from, from + long, Fault::FillDisk(place), Fault::ClearDisk(place));
        if random.chance(500_000) {
            schedule.at(from + long / 2, Fault::Crash(place, random.pick(&LEFTOVERS)));
            schedule.at(from + long + seconds(1), Fault::Start(place));
        }
        Plan { schedule, duration: seconds(30), ..Plan::default() }
    },
};

/// An old disk is outside the promise until the region hears a peer that remembers more. Here it hears every
/// peer, so everything is promised.
pub(super) const OLD_DISK: Scenario = Scenario {
    name: "old-disk",
    story: "A region's disk is replaced by an old copy: the others remember more of it than it does, so that it must notice \
            when it hears them, and owns nothing until it has an empty disk and an operator's word.",
    plan: |random| {
        let place = 1 + random.index(2);
        let mut schedule = Schedule::default();
        schedule.at(seconds(4), Fault::CopyDisk(place));
        // Others hear of a process that is not in the copy.
        schedule.at(seconds(5), Fault::Crash(place, Leftover::Lost)).at(seconds(6), Fault::Start(place));
        let at = seconds(random.between(9, 11));
        schedule.at(at, Fault::Crash(place, Leftover::Lost)).at(at, Fault::RestoreDisk(place));
        schedule.at(at + seconds(1), Fault::Start(place));
        if random.chance(500_000) {
            return Plan { schedule, barred: vec![place], duration: seconds(24), ..Plan::default() };
        }
        let at = seconds(15);
        schedule.at(at, Fault::Crash(place, Leftover::Lost)).at(at, Fault::LoseDisk(place));
        schedule.at(at + seconds(1), Fault::Start(place));
        for after in [4, 7] {
            schedule.at(at + seconds(after), Fault::Order(0, Command::Recover(place)));
        }
        Plan { schedule, duration: seconds(34), ..Plan::default() }
    },
};
