//! How regions lend, renew, freeze and return loans, and what a crash leaves of them.

use acequia_limits::Part;
use acequia_rights::{
    Book, HeldLoan, LentLoan, Offer, SentHeartbeats, Session,
    mutation::{Mutation, mutated},
};

use super::{Careless, DRIFT_PPM, MS, Message, Peers, REGIONS, TTLS_NS, UNIT, World, incarnation};

impl World {
    pub(super) fn heartbeat(&mut self, i: usize) {
        let a = &mut self.actors[i];
        let heartbeat = a.heartbeats.next(a.clock_ns);
        for to in (0..REGIONS).filter(|to| *to != i) {
            self.send(i, to, Message::Heartbeat(heartbeat));
        }
    }

    pub(super) fn lend(&mut self, i: usize) {
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
        if mutated(Mutation::NumbersReused) {
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

    pub(super) fn renew(&mut self, i: usize) {
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

    pub(super) fn freeze(&mut self, i: usize) {
        if self.is_asleep(i) || self.actors[i].book.lent().is_empty() {
            return;
        }
        let place = self.random.index(self.actors[i].book.lent().len());
        let a = &mut self.actors[i];
        let LentLoan { number, to, .. } = a.book.lent()[place];
        a.book.freeze(number, &mut a.peers.0[usize::from(to.member.0)]).expect("few are frozen");
    }

    pub(super) fn give_back(&mut self, i: usize) {
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

    pub(super) fn forfeit(&mut self, i: usize) {
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

    pub(super) fn crash(&mut self, i: usize) {
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
}
