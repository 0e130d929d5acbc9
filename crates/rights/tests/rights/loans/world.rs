//! Regions that share one cell, and an adversary. Follows `shared/model/loan_check.py`, with the real code.
//!
//! All numbers are exact integers. True time moves in tens of nanoseconds and clocks run at 9, 10 or 11
//! tenths, so a clock never rounds. Debt is counted in parts of a [`UNIT`]: one part of a rate of 1/s drains
//! one of these in a local nanosecond, slowed by the drift bound.
//!
//! As in a node, cells are settled only when something happens to them. Most histories run lazily and are
//! audited now and then. Some are audited after every step.
//!
//! The checks:
//! 1. *admits*: if everybody were asked for everything now, one true bucket (or the true last window) must
//!    cover it.
//! 2. *owned twice*: capacities add up to at most the largest budget in force, and rates to at most all
//!    parts.
//! 3. *debts vanish*: the debts of cells and in flight fall only by draining.
//!
//! (1) is the promise. (2) and (3) imply it, and notice a fault before slack hides it.

use std::collections::VecDeque;

use acequia_limits::{Part, RATE_PARTS};
use acequia_rights::{
    Book, Change, Grant, Heartbeat, HeldLoan, Incarnation, Kind, LentLoan, Offer, Renew, Return,
    SentHeartbeats, Session, Sessions, identity::MemberId as RegionId,
};

use super::random::Random;

const MS: u64 = 1_000_000;
const DRIFT_PPM: u32 = 100_000;
pub(super) const REGIONS: usize = 3;
const BURST: u64 = 60;
/// One unit: 10^9 ns · 1.1 for the drift bound · the parts of a rate.
const UNIT: i64 = 1_100_000_000 * RATE_PARTS as i64;
/// The length of the sliding window.
const WINDOW_NS: u64 = 500 * MS;
const TTLS_NS: [u64; 3] = [400 * MS, 1_000 * MS, 1_600 * MS];

/// Rules that the caller of this crate must keep. Each is left out in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Careless {
    /// Uses a clock that stops while the machine sleeps.
    ClockStopsInSuspend,
    /// Decides after a sleep by the state from before it.
    DecidesOnAStaleClock,
    /// Drains at its part of the rate, without a margin for a fast clock.
    NoRateMargin,
    /// Counts a sliding window at its nominal length, without a margin for a fast clock.
    WindowNotStretched,
    /// Restarts from a crash with a full bucket.
    RestartsFull,
    /// Restarts from a crash owing only its new share, before it has acknowledged the loss of a larger one.
    RestartsOwingItsNewShare,
    /// Grants before the loan is on disk.
    SendsBeforeWriting,
    /// Acknowledges a lower share while it lends more than that.
    AcksOverLent,
}

impl Careless {
    pub(super) const ALL: [Self; 8] = [
        Self::ClockStopsInSuspend,
        Self::DecidesOnAStaleClock,
        Self::NoRateMargin,
        Self::WindowNotStretched,
        Self::RestartsFull,
        Self::RestartsOwingItsNewShare,
        Self::SendsBeforeWriting,
        Self::AcksOverLent,
    ];
}

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

#[derive(Clone, Debug)]
enum Message {
    Heartbeat(Heartbeat),
    Grant(Grant),
    Renew(Renew),
    Return(Return),
    /// The catalogue, up to this version.
    Version(usize),
    Ack(usize),
}

/// One version of the catalogue.
#[derive(Clone, Copy, Debug)]
struct Version {
    units: u64,
    rate: u64,
    /// Units that each region's share loses for good, and units that it gains from others.
    lowered: [u64; REGIONS],
    raised: [u64; REGIONS],
}

/// Units that move between shares once the losing region has acknowledged.
#[derive(Clone, Copy, Debug)]
struct Moving {
    from: usize,
    to: usize,
    units: u64,
    /// The version that lowers the share.
    version: usize,
}

/// Sessions by the peer's region.
#[derive(Clone, Debug)]
struct Peers(Vec<Session>);

impl Sessions for Peers {
    fn reclaim_end(&self, lent: &LentLoan) -> u64 {
        self.0[usize::from(lent.to.member.0)].reclaim_end(lent)
    }
    fn end_of(&self, held: &HeldLoan) -> u64 {
        self.0[usize::from(held.from.member.0)].end_of(held)
    }
}

#[derive(Clone, Debug)]
struct Actor {
    // Durable, with the book's loans.
    version: usize,
    /// The last acknowledged version.
    acked: usize,
    number: u64,
    process_number: u32,
    book: Book,
    // Volatile.
    heartbeats: SentHeartbeats,
    peers: Peers,
    debt: i64,
    settled_ns: u64,
    /// Charges in the sliding window: time and units.
    log: VecDeque<(u64, u64)>,
    // The machine.
    clock_ns: u64,
    speed: u64,
    asleep_until_ns: u64,
    stale: Option<i64>,
}

/// Counts of what happened in a history.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub admitted: u64,
    pub loans: u64,
    pub accepted: u64,
    pub renewals: u64,
    pub returns: u64,
    pub ended: u64,
    pub reclaimed: u64,
    pub crashes: u64,
    pub versions: u64,
    pub shifts: u64,
}

pub(super) struct World {
    random: Random,
    careless: Option<Careless>,
    sliding: bool,
    eager: bool,
    now_ns: u64,
    ttl_ns: u64,
    mood: usize,
    actors: Vec<Actor>,
    net: Vec<(usize, usize, Message)>,
    cut: Vec<(usize, usize)>,
    // The authority.
    versions: Vec<Version>,
    acked: [usize; REGIONS],
    moving: Option<Moving>,
    // The checker's state.
    /// The largest budget in force.
    force: (u64, u64),
    /// Larger budgets that were in force within the last window, and until when.
    fallen: VecDeque<(u64, u64)>,
    /// What the true bucket would admit.
    oracle: i64,
    /// Charges in the true last window, and their sum.
    charged: VecDeque<(u64, u64)>,
    charged_units: u64,
    /// Units of debt in flight, by giver and loan.
    flying: Vec<(usize, u64, i64)>,
    /// The debts in flight plus what was drained, minus what was admitted.
    ledger: i128,
    /// The largest sum of debts and ledger so far.
    ledger_max: i128,
    pub seen: Seen,
}

fn incarnation(region: usize) -> Incarnation {
    Incarnation { member: RegionId(region as u16), node: 0, number: 1 }
}

impl World {
    pub(super) fn new(seed: u64, careless: Option<Careless>) -> Self {
        let mut random = Random::new(seed);
        let sliding = random.chance(3_000);
        let eager = random.chance(3_000);
        let rate = random.pick(&[90, 600]);
        let genesis = Version { units: BURST, rate, lowered: [0; REGIONS], raised: [0; REGIONS] };
        let actors = (0..REGIONS)
            .map(|_| {
                let clock_ns = 1_000 * MS + random.below(100_000 * MS);
                Actor {
                    version: 0,
                    acked: 0,
                    number: 0,
                    process_number: 1,
                    book: Book::default(),
                    heartbeats: SentHeartbeats::new(1, TTLS_NS[2]),
                    peers: Peers(vec![Session::new(DRIFT_PPM); REGIONS]),
                    debt: 0,
                    settled_ns: clock_ns,
                    log: VecDeque::new(),
                    clock_ns,
                    speed: random.pick(&[9, 10, 11, 11]),
                    asleep_until_ns: 0,
                    stale: None,
                }
            })
            .collect();
        Self {
            random,
            careless,
            sliding,
            eager,
            now_ns: 0,
            ttl_ns: TTLS_NS[1],
            mood: 0,
            actors,
            net: Vec::new(),
            cut: Vec::new(),
            versions: vec![genesis],
            acked: [0; REGIONS],
            moving: None,
            force: (BURST, rate),
            fallen: VecDeque::new(),
            oracle: BURST as i64 * UNIT,
            charged: VecDeque::new(),
            charged_units: 0,
            flying: Vec::new(),
            ledger: 0,
            ledger_max: 0,
            seen: Seen::default(),
        }
    }

    fn is_careless(&self, rule: Careless) -> bool {
        self.careless == Some(rule)
    }

    fn kind(&self) -> Kind {
        if self.sliding { Kind::Sliding { lingers_ns: WINDOW_NS } } else { Kind::Bucket }
    }

    fn is_asleep(&self, i: usize) -> bool {
        self.actors[i].asleep_until_ns > self.now_ns
    }

    // What a region may spend.

    fn standing(&self, i: usize) -> Part {
        self.standing_under(i, self.actors[i].version)
    }

    fn standing_under(&self, i: usize, version: usize) -> Part {
        let version = &self.versions[version];
        // Monotone in the total, and independent of the mix of versions.
        let share = (version.units + (REGIONS - 1 - i) as u64) / REGIONS as u64;
        Part {
            rate: if self.sliding { 0 } else { RATE_PARTS / REGIONS as u32 },
            units: share + version.raised[i] - version.lowered[i],
        }
    }

    fn capacity(&self, i: usize) -> i64 {
        self.actors[i].book.effective(self.standing(i)).units as i64 * UNIT
    }

    /// What a region could admit, in fine units. A negative level is a debt beyond its capacity.
    fn level(&self, i: usize) -> i64 {
        let a = &self.actors[i];
        if self.sliding {
            self.capacity(i) - a.log.iter().map(|(_, units)| *units as i64).sum::<i64>() * UNIT
        } else {
            self.capacity(i) - a.debt
        }
    }

    fn available(&self, i: usize) -> u64 {
        (self.level(i).max(0) / UNIT) as u64
    }

    fn drain(&mut self, i: usize, at_ns: u64) {
        let standing = self.standing(i);
        let no_margin = self.is_careless(Careless::NoRateMargin);
        let mut rate = self.versions[self.actors[i].version].rate as i64;
        let a = &mut self.actors[i];
        if at_ns <= a.settled_ns {
            return;
        }
        rate *= i64::from(a.book.effective(standing).rate);
        if no_margin {
            rate += rate / 10;
        }
        let drained = a.debt.min(rate.saturating_mul((at_ns - a.settled_ns) as i64));
        a.debt -= drained;
        a.settled_ns = at_ns;
        self.ledger += i128::from(drained);
    }

    fn apply(&mut self, i: usize, change: Change) {
        if self.sliding {
            assert_eq!((change.owe, change.shed), (0, 0), "no debt moves with a window");
            return;
        }
        let a = &mut self.actors[i];
        a.debt += change.owe as i64 * UNIT;
        a.debt -= a.debt.min(change.shed as i64 * UNIT);
    }

    /// A loan's debt is in flight from now on. The amount is what is right, whatever the tested code returns.
    fn flies(&mut self, giver: usize, number: u64, units: u64) {
        let known = self.flying.iter_mut().find(|(by, loan, _)| (*by, *loan) == (giver, number));
        match known {
            Some((_, _, flying)) => *flying += units as i64,
            None => self.flying.push((giver, number, units as i64)),
        }
        self.ledger += i128::from(units) * i128::from(UNIT);
    }

    /// All of a loan's debt in flight has landed.
    fn lands(&mut self, giver: usize, number: u64) {
        if let Some(place) = self.flying.iter().position(|(by, loan, _)| (*by, *loan) == (giver, number)) {
            let (_, _, units) = self.flying.swap_remove(place);
            self.ledger -= i128::from(units) * i128::from(UNIT);
        }
    }

    /// A loan is back. The giver owes all of it, so what its holder sheds later is not in flight.
    fn is_back(&mut self, giver: usize, number: u64, owed: u64) {
        self.lands(giver, number);
        let holds = |a: &Actor| {
            a.book.held().iter().any(|held| (usize::from(held.from.member.0), held.number) == (giver, number))
        };
        if self.actors.iter().any(holds) {
            self.flying.push((giver, number, -(owed as i64)));
            self.ledger -= i128::from(owed) * i128::from(UNIT);
        }
    }

    /// Settles a region's cell: every expired loan ends at its own instant.
    fn settle(&mut self, i: usize) {
        let now_ns = self.actors[i].clock_ns;
        loop {
            let due = {
                let a = &self.actors[i];
                a.book.next_expiry(&a.peers)
            };
            let Some(due_ns) = due.filter(|due_ns| *due_ns <= now_ns) else { break };
            self.drain(i, due_ns);
            let a = &mut self.actors[i];
            let expired = a.book.expire_one(now_ns, &a.peers).expect("one is due");
            assert_eq!(expired.at_ns, due_ns);
            let session = &mut a.peers.0[usize::from(expired.peer.member.0)];
            let units = expired.change.units.unsigned_abs();
            if expired.comes_back {
                session.came_back(expired.number);
                self.seen.reclaimed += 1;
                self.is_back(i, expired.number, units);
            } else {
                if now_ns.is_multiple_of(2) {
                    session.let_go(expired.number);
                }
                self.seen.ended += 1;
                self.flies(usize::from(expired.peer.member.0), expired.number, units);
            }
            self.apply(i, expired.change);
        }
        self.drain(i, now_ns);
        let local_ns = if self.is_careless(Careless::WindowNotStretched) {
            WINDOW_NS
        } else {
            // The count of nanoseconds that a fast clock shows for a window.
            WINDOW_NS / 10 * 11
        };
        let log = &mut self.actors[i].log;
        while log.front().is_some_and(|(at_ns, _)| at_ns + local_ns <= now_ns) {
            log.pop_front();
        }
    }

    fn admit(&mut self, i: usize, tenths: u64) {
        self.settle(i);
        let mut available = self.available(i);
        if let Some(stale) = self.actors[i].stale.take()
            && self.is_careless(Careless::DecidesOnAStaleClock)
        {
            available = available.max((stale.max(0) / UNIT) as u64);
        }
        self.charge(i, available * tenths / 10);
    }

    fn charge(&mut self, i: usize, cost: u64) {
        if cost == 0 {
            return;
        }
        self.seen.admitted += cost;
        let fine = cost as i64 * UNIT;
        if self.sliding {
            let now_ns = self.actors[i].clock_ns;
            self.actors[i].log.push_back((now_ns, cost));
            self.charged.push_back((self.now_ns, cost));
            self.charged_units += cost;
        } else {
            self.actors[i].debt += fine;
            self.ledger -= i128::from(fine);
            self.oracle -= fine;
        }
    }

    // Loans.

    fn send(&mut self, from: usize, to: usize, message: Message) {
        self.net.push((from, to, message));
    }

    fn heartbeat(&mut self, i: usize) {
        let a = &mut self.actors[i];
        let heartbeat = a.heartbeats.next(a.clock_ns);
        for to in (0..REGIONS).filter(|to| *to != i) {
            self.send(i, to, Message::Heartbeat(heartbeat));
        }
    }

    fn lend(&mut self, i: usize) {
        if self.is_asleep(i) || self.actors[i].book.lent().len() >= 8 {
            return;
        }
        let to = (i + 1 + self.random.index(REGIONS - 1)) % REGIONS;
        self.settle(i);
        let (standing, available, kind) = (self.standing(i), self.available(i), self.kind());
        let spare = self.actors[i].book.spare(standing);
        let part = Part {
            rate: (u64::from(spare.rate) * self.random.pick(&[0, 3, 5, 10]) / 10) as u32,
            units: (spare.units * self.random.pick(&[0, 3, 5, 10])).div_ceil(10),
        };
        // Sometimes more tokens than there are, which must be refused.
        let most = if self.random.chance(500) { part.units } else { part.units.min(available) };
        let tokens = self.random.pick(&[0, most / 2, most, most]);
        let before = self.actors[i].clone();
        let a = &mut self.actors[i];
        a.number += 1;
        if acequia_rights::mutation::mutated(acequia_rights::mutation::Mutation::NumbersReused) {
            a.number = 1 + a.number % 4;
        }
        let offer = Offer { number: a.number, to: incarnation(to), part, tokens, ttl_ns: self.ttl_ns };
        let session = &mut a.peers.0[to];
        let Ok((grant, change)) = a.book.lend(standing, available, kind, &offer, session, a.clock_ns) else {
            return;
        };
        if self.is_careless(Careless::SendsBeforeWriting) && self.random.chance(300) {
            self.actors[i] = before;
            self.send(i, to, Message::Grant(grant));
            return self.crash(i);
        }
        self.seen.loans += 1;
        self.apply(i, change);
        self.flies(i, offer.number, part.units - tokens);
        if self.random.chance(300) {
            // The loan is written, and never sent.
            return self.crash(i);
        }
        self.send(i, to, Message::Grant(grant));
    }

    fn renew(&mut self, i: usize) {
        if self.is_asleep(i) {
            return;
        }
        let to = (i + 1 + self.random.index(REGIONS - 1)) % REGIONS;
        let a = &mut self.actors[i];
        if let Some(renew) = a.peers.0[to].renew(a.clock_ns) {
            self.seen.renewals += 1;
            self.send(i, to, Message::Renew(renew));
        }
    }

    fn freeze(&mut self, i: usize) {
        if self.is_asleep(i) || self.actors[i].book.lent().is_empty() {
            return;
        }
        let place = self.random.index(self.actors[i].book.lent().len());
        let a = &mut self.actors[i];
        let LentLoan { number, to, .. } = a.book.lent()[place];
        a.book.freeze(number, &mut a.peers.0[usize::from(to.member.0)]).expect("few are frozen");
    }

    fn give_back(&mut self, i: usize) {
        self.settle(i);
        if self.actors[i].book.held().is_empty() {
            return;
        }
        let place = self.random.index(self.actors[i].book.held().len());
        let available = self.available(i);
        let a = &mut self.actors[i];
        let HeldLoan { number, from, part, .. } = a.book.held()[place];
        let Ok((back, change)) = a.book.give_back(number, from, available, a.clock_ns) else { return };
        let giver = usize::from(from.member.0);
        if self.random.chance(5_000) {
            self.actors[i].peers.0[giver].let_go(number);
        }
        self.seen.returns += 1;
        self.apply(i, change);
        self.flies(giver, number, part.units - back.tokens);
        self.send(i, giver, Message::Return(back));
    }

    fn forfeit(&mut self, i: usize) {
        self.settle(i);
        let now_ns = self.actors[i].clock_ns;
        let from =
            if self.random.chance(5_000) { None } else { Some(incarnation(self.random.index(REGIONS))) };
        let held: Vec<HeldLoan> = self.actors[i].book.held().to_vec();
        let change = self.actors[i].book.forfeit(from, now_ns);
        self.apply(i, change);
        for held in held.into_iter().filter(|held| from.is_none_or(|from| held.from == from)) {
            self.flies(usize::from(held.from.member.0), held.number, held.part.units);
        }
    }

    fn crash(&mut self, i: usize) {
        self.seen.crashes += 1;
        self.settle(i);
        let held: Vec<HeldLoan> = self.actors[i].book.held().to_vec();
        let clock_ns = 1_000 * MS + self.random.below(100_000 * MS);
        let a = &mut self.actors[i];
        a.process_number += 1;
        // A new process: old clock readings are void.
        a.clock_ns = clock_ns;
        a.settled_ns = clock_ns;
        a.heartbeats = SentHeartbeats::new(a.process_number, TTLS_NS[2]);
        a.peers = Peers(vec![Session::new(DRIFT_PPM); REGIONS]);
        a.stale = None;
        let disk: Vec<LentLoan> = a
            .book
            .lent()
            .iter()
            .map(|lent| LentLoan { end_ns: u64::MAX, renewing: false, ..*lent })
            .collect();
        a.book = Book::from_lent(disk);
        a.book.restart(clock_ns);
        // The largest debt it can have: all of its largest share since the last version that it acknowledged.
        let mut versions = self.actors[i].acked..=self.actors[i].version;
        if self.is_careless(Careless::RestartsOwingItsNewShare) {
            versions = self.actors[i].version..=self.actors[i].version;
        }
        let owes =
            versions.map(|version| self.actors[i].book.effective(self.standing_under(i, version)).units);
        let owes = owes.max().expect("a version");
        for held in held {
            self.flies(usize::from(held.from.member.0), held.number, held.part.units);
        }
        let full = self.is_careless(Careless::RestartsFull);
        let a = &mut self.actors[i];
        a.log.clear();
        if full {
            a.debt = 0;
        } else if self.sliding {
            a.log.push_back((clock_ns, owes));
        } else {
            a.debt = owes as i64 * UNIT;
        }
    }

    // The authority.

    fn issue(&mut self, version: Version) {
        self.versions.push(version);
        self.seen.versions += 1;
        self.refresh();
    }

    fn change_budget(&mut self) {
        let newest = *self.versions.last().expect("genesis");
        let rate = self.versions[0].rate;
        let units = newest.units + self.random.pick(&[0, 6, 15]);
        let faster = newest.rate + self.random.pick(&[0, rate / 10, rate / 4]);
        if self.random.chance(5_000) {
            if units <= BURST * 16 / 10 && faster <= rate * 2 {
                self.issue(Version { units, rate: faster, ..newest });
            }
        } else {
            let units = newest.units - self.random.pick(&[0, 6, 15]);
            let slower = newest.rate - self.random.pick(&[0, rate / 10, rate / 4]);
            if units >= BURST * 7 / 10 && slower >= rate / 2 {
                self.issue(Version { units, rate: slower, ..newest });
            }
        }
    }

    /// Moves a part of a share for good in two steps: the losing region acknowledges first.
    fn shift(&mut self) {
        let mut next = *self.versions.last().expect("genesis");
        match self.moving {
            None => {
                let from = self.random.index(REGIONS);
                let to = (from + 1 + self.random.index(REGIONS - 1)) % REGIONS;
                let units = self.random.pick(&[2, 5, 9]);
                let least = BURST * 7 / 10 / REGIONS as u64;
                if next.lowered[from] + units > next.raised[from] + least {
                    return;
                }
                next.lowered[from] += units;
                self.moving = Some(Moving { from, to, units, version: self.versions.len() });
                self.issue(next);
            }
            Some(moving) => {
                if self.acked[moving.from] < moving.version {
                    return;
                }
                next.raised[moving.to] += moving.units;
                self.moving = None;
                self.seen.shifts += 1;
                self.issue(next);
            }
        }
    }

    fn adopt(&mut self, i: usize, version: usize) {
        self.settle(i);
        if version > self.actors[i].version {
            self.actors[i].version = version;
            if self.is_careless(Careless::AcksOverLent) {
                self.actors[i].acked = version;
                self.send(i, i, Message::Ack(version));
            }
        }
        self.acknowledge(i);
    }

    /// A region acknowledges a version once its debts and loans fit its share.
    fn acknowledge(&mut self, i: usize) {
        let owed = (self.capacity(i) - self.level(i) + UNIT - 1) / UNIT;
        let version = self.actors[i].version;
        if self.actors[i].book.conforms(self.standing(i), owed as u64) {
            self.actors[i].acked = version;
            self.send(i, i, Message::Ack(version));
        }
    }

    /// Recomputes the largest numbers that some region may still go by.
    fn refresh(&mut self) {
        let oldest = self.acked.into_iter().min().expect("regions");
        let used = &self.versions[oldest..];
        let units = used.iter().map(|version| version.units).max().expect("the newest");
        let rate = used.iter().map(|version| version.rate).max().expect("the newest");
        if units > self.force.0 {
            self.oracle += (units - self.force.0) as i64 * UNIT;
        }
        if units < self.force.0 {
            self.oracle = self.oracle.min(units as i64 * UNIT);
            self.fallen.push_back((self.force.0, self.now_ns + WINDOW_NS));
        }
        self.force = (units, rate);
    }

    // The network.

    fn deliver(&mut self) {
        if self.net.is_empty() {
            return;
        }
        let newest = self.net.len() - 1;
        let place = if self.random.chance(7_000) { newest } else { self.random.index(newest + 1) };
        let (from, to, _) = self.net[place];
        if self.is_asleep(to) {
            return;
        }
        // In the other case the message arrives again later.
        let message =
            if self.random.chance(6_000) { self.net.remove(place).2 } else { self.net[place].2.clone() };
        if self.cut.contains(&(from, to)) || self.mood == 2 && self.random.chance(1_000) {
            return;
        }
        match message {
            Message::Ack(version) => {
                if version > self.acked[to] {
                    self.acked[to] = version;
                    self.refresh();
                }
            }
            Message::Version(version) => self.adopt(to, version),
            Message::Heartbeat(heartbeat) => {
                let a = &mut self.actors[to];
                a.peers.0[from].hear(heartbeat, a.clock_ns);
            }
            Message::Renew(renew) => {
                // Renewals settle no cell.
                let a = &mut self.actors[to];
                let _ = a.peers.0[from].take_renew(&renew, &a.heartbeats, a.clock_ns);
            }
            Message::Grant(grant) => {
                self.settle(to);
                let kind = self.kind();
                let a = &mut self.actors[to];
                let session = &mut a.peers.0[from];
                if let Ok(change) =
                    a.book.accept(incarnation(from), &grant, kind, &a.heartbeats, session, a.clock_ns)
                {
                    self.seen.accepted += 1;
                    self.apply(to, change);
                    self.lands(from, grant.number);
                }
            }
            Message::Return(back) => {
                self.settle(to);
                let a = &mut self.actors[to];
                if let Ok(change) = a.book.take_return(incarnation(from), &back, &mut a.peers.0[from]) {
                    self.apply(to, change);
                    self.lands(to, back.number);
                }
            }
        }
    }

    // The adversary.

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

    fn check_debts(&mut self) -> Result<(), String> {
        if self.sliding {
            return Ok(());
        }
        let debts: i64 = self.actors.iter().map(|a| a.debt).sum();
        let all = i128::from(debts) + self.ledger;
        if all < self.ledger_max {
            return Err(format!("debts vanish: {} units", (self.ledger_max - all) as f64 / UNIT as f64));
        }
        self.ledger_max = all;
        Ok(())
    }

    fn audit(&mut self) -> Result<(), String> {
        let (mut could, mut owned, mut parts) = (0, 0, 0);
        for i in 0..REGIONS {
            if !self.is_asleep(i) {
                self.settle(i);
                could += self.level(i).max(0);
                let effective = self.actors[i].book.effective(self.standing(i));
                owned += effective.units;
                parts += effective.rate;
            }
        }
        self.check_debts()?;
        let units = self.force.0;
        if owned > units {
            return Err(format!("owned twice: {owned} units of {units}"));
        }
        if parts > RATE_PARTS {
            return Err(format!("owned twice: {parts} parts of {RATE_PARTS}"));
        }
        if self.sliding {
            let limit = self.fallen.iter().map(|(units, _)| *units).max().unwrap_or(0).max(units);
            let used = self.charged_units + (could / UNIT) as u64;
            if used > limit {
                return Err(format!("admits: {used} of {limit} in a window"));
            }
        } else if could > self.oracle {
            return Err(format!("admits: {} units too many", (could - self.oracle) as f64 / UNIT as f64));
        }
        Ok(())
    }
}

/// Runs one history. A fault is returned with its seed and step.
pub(super) fn run(seed: u64, steps: u64, careless: Option<Careless>) -> Result<Seen, String> {
    let mut world = World::new(seed, careless);
    for step in 0..steps {
        world.step().map_err(|fault| format!("seed {seed} step {step}: {fault}"))?;
    }
    Ok(world.seen)
}

fn steps() -> u64 {
    std::env::var("ACEQUIA_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000_000)
}

#[test]
fn no_random_history_of_loans_exceeds_the_limit() {
    const EACH: u64 = 5_000;
    let (mut all, start) = (Seen::default(), std::time::Instant::now());
    let histories = steps() / EACH;
    for seed in 0..histories {
        let seen = run(seed, EACH, None).unwrap_or_else(|fault| panic!("{fault}"));
        all.admitted += seen.admitted;
        all.loans += seen.loans;
        all.accepted += seen.accepted;
        all.renewals += seen.renewals;
        all.returns += seen.returns;
        all.ended += seen.ended;
        all.reclaimed += seen.reclaimed;
        all.crashes += seen.crashes;
        all.versions += seen.versions;
        all.shifts += seen.shifts;
    }
    let per_s = (histories * EACH) as f64 / start.elapsed().as_secs_f64();
    println!("{histories} histories of {EACH} steps, {per_s:.0} steps/s: {all:?}");
    assert!(
        all.ended > histories && all.renewals > histories && all.shifts > histories / 2,
        "little happened: {all:?}"
    );
}

#[test]
fn a_seed_replays_the_same_history_of_loans() {
    let once = format!("{:?}", run(7, 5_000, None));
    assert_eq!(once, format!("{:?}", run(7, 5_000, None)));
}
