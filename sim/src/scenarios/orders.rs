use super::{Plan, Scenario, ms, seconds};
use crate::schedule::{Command, Fault, Leftover, Place, Schedule};

pub(super) const BUDGET_IN_A_SPLIT: Scenario = Scenario {
    name: "budget-in-a-split",
    story: "A budget is raised and lowered while a region cannot be told: that one goes on by the numbers that it knows, \
            and the sum is within the larger ones until it has been told.",
    plan: |random| {
        let mut schedule = split(random.index(3));
        let (low, high) = (random.between(10, 35), random.between(45, 90));
        let mut rates = [low, high, random.between(10, 90)];
        if random.chance(500_000) {
            rates.swap(0, 1);
        }
        for (place, rate) in rates.iter().enumerate() {
            let at = seconds(7 + 5 * place as u64) + ms(random.between(0, 2_000));
            schedule.at(at, Fault::Order(0, Command::budget("api", "rate", &format!("{rate}/s"))));
        }
        let burst = random.between(20, 120).to_string();
        schedule.at(seconds(13), Fault::Order(0, Command::budget("api", "burst", &burst)));
        Plan { schedule, duration: seconds(34), ..Plan::default() }
    },
};

pub(super) const WEIGHTS_IN_A_ROLLOUT: Scenario = Scenario {
    name: "weights-in-a-rollout",
    story: "Weights change while the regions are restarted one after the other: a share that grows in one region has \
            shrunk in the others before.",
    plan: |random| {
        let mut schedule = Schedule::default();
        for place in [1, 2, 0] {
            let at = seconds(5 + 5 * place as u64);
            schedule.during(at, at + ms(random.between(500, 2_500)), Fault::Stop(place), Fault::Start(place));
        }
        for _ in 0..6 {
            let (of, weight) = (random.index(3), random.between(1, 9) as u32);
            schedule.at(ms(random.between(4_000, 20_000)), Fault::Order(0, Command::Weight(of, weight)));
        }
        Plan { schedule, duration: seconds(32), ..Plan::default() }
    },
};

pub(super) const JOIN_AND_LEAVE: Scenario = Scenario {
    name: "join-and-leave",
    story: "While one region is cut off, another one leaves, and comes back on an empty disk as a new one: nobody grows \
            before all who could spend have agreed to be smaller.",
    plan: |random| {
        let (alone, leaves) = if random.chance(500_000) { (1, 3) } else { (2, 1) };
        let mut schedule = Schedule::default();
        let others: Vec<Place> = (0..4).filter(|place| *place != alone).collect();
        schedule.split(seconds(5), seconds(20), &[&[alone], &others]);
        schedule.at(ms(random.between(5_000, 9_000)), Fault::Order(0, Command::Remove(leaves)));
        schedule.at(seconds(12), Fault::Stop(leaves)).at(seconds(13), Fault::LoseDisk(leaves));
        schedule.at(seconds(14), Fault::Start(leaves));
        for at in [16, 22, 25, 28] {
            schedule.at(seconds(at), Fault::Order(0, Command::Add(leaves, random.between(1, 3) as u32)));
        }
        Plan { regions: 4, schedule, duration: seconds(38), ..Plan::default() }
    },
};

pub(super) const CRASH_IN_AN_ORDER: Scenario = Scenario {
    name: "crash-in-an-order",
    story: "Budgets change one after the other, and a region that hears of them loses its power at the write that would keep one: \
            nobody hears that it has what it never kept.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let place = 1 + random.index(2);
        for round in 0..4 {
            let at = seconds(5 + 4 * round);
            schedule.at(at, Fault::CrashAtWrite(place, random.below(8)));
            for after in [0, 60, 120, 180] {
                let budget = Command::budget("api", "rate", &format!("{}/s", random.between(20, 60)));
                schedule.at(at + ms(after + random.between(0, 40)), Fault::Order(0, budget));
            }
            schedule.at(at + ms(random.between(200, 2_000)), Fault::Start(place));
            schedule.at(at + ms(2_500), Fault::Start(place));
        }
        schedule.at(seconds(21), Fault::Heal);
        Plan { schedule, duration: seconds(31), ..Plan::default() }
    },
};

pub(super) const EVICT_DEAD: Scenario = Scenario {
    name: "evict-dead",
    story: "A region is gone for good with its disk, and an operator evicts it: the others have its share then, and not \
            before.",
    plan: |random| {
        let (gone, at) = (1 + random.index(2), seconds(random.between(5, 8)));
        let mut schedule = Schedule::default();
        schedule.at(at, Fault::Crash(gone, Leftover::Lost)).at(at, Fault::LoseDisk(gone));
        schedule.at(at + seconds(random.between(1, 6)), Fault::Order(0, Command::Evict(gone)));
        Plan { schedule, gone: vec![gone], duration: seconds(28), ..Plan::default() }
    },
};

pub(super) const LEAVER_DIES: Scenario = Scenario {
    name: "leaver-dies",
    story: "A region that is asked to leave is gone with its disk before it could say that it does: an operator evicts it, \
            and may let it in again as a new one, and nobody waits for the old one.",
    plan: |random| {
        let of = 1 + random.index(2);
        let others: Vec<Place> = (0..3).filter(|place| *place != of).collect();
        let mut schedule = Schedule::default();
        schedule.split(seconds(5), seconds(9), &[&[of], &others]);
        schedule.at(ms(random.between(5_100, 6_900)), Fault::Order(0, Command::Remove(of)));
        schedule.at(seconds(7), Fault::Crash(of, Leftover::Lost)).at(seconds(7), Fault::LoseDisk(of));
        schedule.at(seconds(10), Fault::Order(0, Command::Evict(of)));
        if random.chance(500_000) {
            return Plan { schedule, gone: vec![of], duration: seconds(26), ..Plan::default() };
        }
        schedule.at(seconds(11), Fault::Start(of));
        for at in [13, 16] {
            schedule.at(seconds(at), Fault::Order(0, Command::Add(of, 1)));
        }
        Plan { schedule, duration: seconds(32), ..Plan::default() }
    },
};

/// The admissions of the evicted region are outside the promise, since the operator's word says that it
/// admits nothing. It does not hear of its eviction, and is within the limits on its own. The others are
/// within the limits without it.
pub(super) const EVICT_ALIVE: Scenario = Scenario {
    name: "evict-alive",
    story: "An operator evicts a region that is alive, and the others have its share, while it goes on with what it had: \
            they keep the limits among themselves, and it comes back on an empty disk.",
    plan: |random| {
        let of = 1 + random.index(2);
        let mut schedule = Schedule::default();
        if random.chance(500_000) {
            let others: Vec<Place> = (0..3).filter(|place| *place != of).collect();
            schedule.split(seconds(5), seconds(12), &[&[of], &others]);
        }
        schedule.at(seconds(8), Fault::Order(0, Command::EvictAlive(of)));
        let at = seconds(16);
        schedule.at(at, Fault::Crash(of, Leftover::Lost)).at(at, Fault::LoseDisk(of));
        schedule.at(at + seconds(1), Fault::Start(of));
        for after in [4, 7] {
            schedule.at(at + seconds(after), Fault::Order(0, Command::Add(of, 1)));
        }
        Plan { schedule, apart: vec![of], duration: seconds(34), ..Plan::default() }
    },
};

/// Cuts one region off from all others.
fn split(alone: Place) -> Schedule {
    let others: Vec<Place> = (0..3).filter(|place| *place != alone).collect();
    let mut schedule = Schedule::default();
    schedule.split(seconds(5), seconds(20), &[&[alone], &others]);
    schedule
}
