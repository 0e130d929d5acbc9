use super::{Plan, Scenario, ms, seconds};
use crate::{
    demand::{Demand, Herd, Kind},
    schedule::{Fault, Schedule},
};

pub(super) const HERD: Scenario = Scenario {
    name: "herd",
    story: "All callers of all regions ask at once at the edge of a window, some of them while a link is cut: the new window \
            is spent in an instant, and once.",
    plan: |random| {
        let mut schedule = Schedule::default();
        let (from, long) = (ms(random.between(9_000, 10_500)), seconds(random.between(1, 6)));
        let a = random.index(3);
        schedule.during(from, from + long, Fault::Cut(a, (a + 1) % 3), Fault::Mend(a, (a + 1) % 3));
        let kinds = [(4, Kind::of("route", "/export", 4)), (1, Kind::of("route", "/api", 3))];
        let herd = Some(Herd { every: seconds(5), questions: random.between(50, 200) as u32 });
        Plan {
            schedule,
            demand: Demand { herd, ..Demand::of(kinds) },
            duration: seconds(28),
            ..Plan::default()
        }
    },
};

pub(super) const KEY_FLOOD: Scenario = Scenario {
    name: "key-flood",
    story: "Callers ask for a million different users, one of them often: memory stays bounded, and the one user's limit \
            holds all the while.",
    plan: |random| {
        let hot = random.between(2, 30) as u32;
        let users = Kind { spread: Some(("user", 1_000_000)), hot, ..Kind::of("route", "/home", 2) };
        let kinds = [(9, users), (1, Kind::of("route", "/api", 3))];
        let mut schedule = Schedule::default();
        let at = seconds(random.between(5, 9));
        schedule.during(at, at + seconds(4), Fault::Cut(0, 1), Fault::Mend(0, 1));
        let demand = Demand { per_second: 100, ..Demand::of(kinds) };
        Plan { schedule, demand, duration: seconds(22), ..Plan::default() }
    },
};

pub(super) const COOLING: Scenario = Scenario {
    name: "cooling",
    story: "Each of many users is asked for now and then, by one region after the other, until nobody is: what regions say of a \
            cell ends with the questions, though each of them saw the last one at another time.",
    plan: |random| {
        let users =
            Kind { spread: Some(("user", random.between(200, 600))), ..Kind::of("route", "/home", 2) };
        let demand = Demand { percent: vec![100, 50, 20], ..Demand::of([(1, users)]) };
        Plan { demand, duration: seconds(25), ..Plan::default() }
    },
};

pub(super) const STALLED_PEER: Scenario = Scenario {
    name: "stalled-peer",
    story: "A region's process sleeps for a while with its sockets open, as under a debugger or a busy hypervisor: nobody \
            waits for it, and when it wakes it knows that time has passed.",
    plan: |random| {
        let mut schedule = Schedule::default();
        for at in [5, 13] {
            let (place, at) = (random.index(3), seconds(at));
            let long = ms(random.between(200, 6_000));
            schedule.during(at, at + long, Fault::Sleep(place), Fault::Wake(place));
        }
        Plan { schedule, duration: seconds(32), ..Plan::default() }
    },
};

pub(super) const CROWDED_WAKE: Scenario = Scenario {
    name: "crowded-wake",
    story: "A region's process wakes in the middle of all the attempts that others made meanwhile to reach it, while what one of them \
            sends is lost for a moment more: whoever gives attempts up is not asked about them for ever. (As in swarm, seed 2409.)",
    plan: |_| {
        let mut plan = super::swarm::calm_walls(2_409);
        plan.demand.kinds.iter_mut().for_each(|(_, kind)| kind.lease = None);
        plan
    },
};

pub(super) const FLOORS: Scenario = Scenario {
    name: "floors",
    story: "Everybody asks in one region, and the limits have floors: the others lend what they do not need, and keep a part of what is \
            theirs for the first who asks there.",
    plan: |random| {
        let limits = "
  - name: api
    domain: sim
    when: { route: /api }
    token_bucket: { rate: 60/s, burst: 90 }
    sharing: { floor: 30% }
  - name: exports
    domain: sim
    when: { route: /export }
    fixed_window: { limit: 300, window: 10s }
    sharing: { floor: 30% }
";
        let kinds = [(3, Kind::of("route", "/api", 3)), (1, Kind::of("route", "/export", 3))];
        let mut percent = vec![15, 15, 15];
        percent[random.index(3)] = 250;
        let (mut schedule, at) = (Schedule::default(), seconds(random.between(8, 14)));
        let (a, b) = super::pair(random, 3);
        schedule.during(at, at + seconds(4), Fault::Cut(a, b), Fault::Mend(a, b));
        let demand = Demand { percent, ..Demand::of(kinds) };
        Plan { limits: limits.to_owned(), demand, schedule, duration: seconds(30), ..Plan::default() }
    },
};
