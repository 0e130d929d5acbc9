//! The adversary: it picks what happens next, and lets time pass.

use acequia_limits::RATE_PARTS;
use acequia_rights::Sessions as _;

use super::{Careless, MS, Message, REGIONS, TTLS_NS, UNIT, WINDOW_NS, World};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Deliver,
    Heartbeats,
    Lend,
    Renew,
    Freeze,
    GiveBack,
    Forfeit,
    Admit,
    AdmitEverywhere,
    Crash,
    ChangeBudget,
    Shift,
    Tell,
    Sleep,
    Drift,
    NewTtl,
    Pause,
    Cut,
    Heal,
    Settle,
}

use Event::{
    Admit, AdmitEverywhere, ChangeBudget, Crash, Cut, Deliver, Drift, Forfeit, Freeze, GiveBack, Heal,
    Heartbeats, Lend, NewTtl, Pause, Settle, Shift, Sleep, Tell,
};

/// Weights of events in four moods: loans spread; buckets fill; everything happens at once; all regions are
/// busy.
const MOODS: [&[(Event, u64)]; 4] = [
    &[
        (Deliver, 450),
        (Heartbeats, 120),
        (Lend, 190),
        (Freeze, 20),
        (Event::Renew, 150),
        (Tell, 30),
        (Heal, 30),
        (Settle, 30),
    ],
    &[
        (Deliver, 450),
        (Heartbeats, 120),
        (Event::Renew, 200),
        (Freeze, 30),
        (Tell, 50),
        (Heal, 30),
        (Settle, 30),
    ],
    &[
        (Deliver, 420),
        (Heartbeats, 60),
        (Lend, 100),
        (Event::Renew, 120),
        (Freeze, 40),
        (GiveBack, 120),
        (Forfeit, 10),
        (Admit, 40),
        (AdmitEverywhere, 40),
        (Crash, 20),
        (ChangeBudget, 20),
        (Shift, 15),
        (Tell, 40),
        (Sleep, 15),
        (Drift, 10),
        (NewTtl, 30),
        (Pause, 10),
        (Cut, 5),
        (Heal, 10),
        (Settle, 40),
    ],
    &[
        (Deliver, 300),
        (Heartbeats, 60),
        (Lend, 20),
        (Event::Renew, 80),
        (AdmitEverywhere, 200),
        (Shift, 20),
        (Tell, 60),
        (Pause, 10),
    ],
];
const TOTALS: [u64; 4] = [1_020, 910, 1_165, 750];

impl World {
    fn advance(&mut self) {
        let x = self.random.below(1_000);
        let storm = self.mood == 2;
        let dt_ns = if x < 80 {
            // About 20 ms.
            self.random.below(40 * MS) * (1 + self.random.below(2)) / 2
        } else if x < if storm { 110 } else { 85 } {
            // To just before or just after the end of some loan.
            let until_ns = self.some_end(3_000 * MS);
            match self.random.below(3) {
                0 => until_ns.saturating_sub(1_000),
                1 => until_ns + 1_000,
                _ => until_ns + 50 * MS,
            }
        } else if x < if storm { 115 } else { 100 } {
            self.random.pick(&[50 * MS, 100 * MS, 200 * MS, 1_200 * MS])
        } else {
            return;
        };
        self.pass(dt_ns);
    }

    /// True time until the end of some loan, if it is near.
    fn some_end(&mut self, within_ns: u64) -> u64 {
        let mut ends = Vec::new();
        for a in &self.actors {
            let lent = a.book.lent().iter().map(|lent| a.peers.reclaim_end(lent));
            let held = a.book.held().iter().map(|held| a.peers.end_of(held));
            for end_ns in lent.chain(held) {
                if end_ns > a.clock_ns && end_ns < a.clock_ns + within_ns {
                    ends.push((end_ns - a.clock_ns) * 10 / a.speed);
                }
            }
        }
        if ends.is_empty() { 0 } else { self.random.pick(&ends) }
    }

    fn pass(&mut self, dt_ns: u64) {
        let tens = dt_ns / 10;
        self.now_ns += tens * 10;
        let (units, rate) = self.force;
        let refill = (tens as i64).saturating_mul(11 * rate as i64 * i64::from(RATE_PARTS));
        self.oracle = self.oracle.saturating_add(refill).min(units as i64 * UNIT);
        let stops = self.is_careless(Careless::ClockStopsInSuspend);
        for i in 0..REGIONS {
            if !(stops && self.is_asleep(i)) {
                let a = &mut self.actors[i];
                a.clock_ns += tens * a.speed;
            }
        }
        while self.charged.front().is_some_and(|(at_ns, _)| at_ns + WINDOW_NS <= self.now_ns) {
            self.charged_units -= self.charged.pop_front().expect("one").1;
        }
        while self.fallen.front().is_some_and(|(_, until_ns)| *until_ns <= self.now_ns) {
            self.fallen.pop_front();
        }
    }

    /// Makes one step. Returns the fault that it caused, if any.
    pub(super) fn step(&mut self) -> Result<(), String> {
        self.advance();
        if self.random.chance(400) {
            self.mood = self.random.pick(&[0, 1, 1, 2, 2, 2, 3]);
        }
        let i = self.random.index(REGIONS);
        let awake = !self.is_asleep(i);
        let mut x = self.random.below(TOTALS[self.mood]);
        let mut event = Settle;
        for (candidate, weight) in MOODS[self.mood] {
            event = *candidate;
            if x < *weight {
                break;
            }
            x -= weight;
        }
        let mut audited = self.eager;
        match event {
            Deliver => {
                for _ in 0..=self.random.below(8) {
                    self.deliver();
                }
            }
            Heartbeats => (0..REGIONS)
                .filter(|i| !self.is_asleep(*i))
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|i| self.heartbeat(i)),
            Lend => self.lend(i),
            Event::Renew => self.renew(i),
            Freeze => self.freeze(i),
            ChangeBudget => self.change_budget(),
            Shift => self.shift(),
            Tell => {
                let newest = self.versions.len() - 1;
                let version = newest - self.random.index((newest + 1).min(2));
                for to in 0..REGIONS {
                    self.send(to, to, Message::Version(version));
                }
            }
            Pause => {
                // Everything is spent, and then no requests come for a while.
                for i in 0..REGIONS {
                    if !self.is_asleep(i) {
                        self.admit(i, 10);
                    }
                }
                let dt_ns = self.some_end(300 * MS) + self.random.pick(&[0, 20, 100, 200]) * MS;
                self.pass(dt_ns);
                audited = true;
            }
            NewTtl => self.ttl_ns = self.random.pick(&TTLS_NS),
            Drift => self.actors[i].speed = self.random.pick(&[9, 10, 11, 11]),
            Cut => self.cut.push((i, (i + 1 + self.random.index(REGIONS - 1)) % REGIONS)),
            Heal => self.cut.clear(),
            Crash => self.crash(i),
            Settle if awake => audited = true,
            GiveBack if awake => self.give_back(i),
            Forfeit if awake => self.forfeit(i),
            Admit if awake => {
                let tenths = self.random.pick(&[3, 10]);
                self.admit(i, tenths);
            }
            AdmitEverywhere => {
                let tenths = self.random.pick(&[10, 10, 7, 4]);
                for i in 0..REGIONS {
                    if !self.is_asleep(i) {
                        self.admit(i, tenths);
                    }
                }
                audited = true;
            }
            Sleep if awake => {
                self.settle(i);
                self.actors[i].stale = Some(self.level(i));
                self.actors[i].asleep_until_ns = self.now_ns + 200 * MS + self.random.below(1_800 * MS);
            }
            Settle | GiveBack | Forfeit | Admit | Sleep => {}
        }
        if self.net.len() > 60 {
            self.net.drain(..30);
        }
        if audited { self.audit() } else { self.check_debts() }
    }
}
