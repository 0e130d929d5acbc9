//! What a region may spend, and what it spends: its share, its cell's level, and debts on the way.

use acequia_limits::{Part, RATE_PARTS};
use acequia_rights::CellChange;

use super::{Actor, Careless, REGIONS, UNIT, WINDOW_NS, World};

impl World {
    pub(super) fn standing(&self, i: usize) -> Part {
        self.standing_under(i, self.actors[i].version)
    }

    pub(super) fn standing_under(&self, i: usize, version: usize) -> Part {
        let version = &self.versions[version];
        // Monotone in the total, and independent of the mix of versions.
        let share = (version.units + (REGIONS - 1 - i) as u64) / REGIONS as u64;
        Part {
            rate: if self.sliding { 0 } else { RATE_PARTS / REGIONS as u32 },
            units: share + version.raised[i] - version.lowered[i],
        }
    }

    pub(super) fn capacity(&self, i: usize) -> i64 {
        self.actors[i].book.effective(self.standing(i)).units as i64 * UNIT
    }

    /// What a region could admit, in fine units. A negative level is a debt beyond its capacity.
    pub(super) fn level(&self, i: usize) -> i64 {
        let a = &self.actors[i];
        if self.sliding {
            self.capacity(i) - a.log.iter().map(|(_, units)| *units as i64).sum::<i64>() * UNIT
        } else {
            self.capacity(i) - a.debt
        }
    }

    pub(super) fn available(&self, i: usize) -> u64 {
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

    pub(super) fn apply(&mut self, i: usize, change: CellChange) {
        if self.sliding {
            assert_eq!((change.owe, change.shed), (0, 0), "no debt moves with a window");
            return;
        }
        let a = &mut self.actors[i];
        a.debt += change.owe as i64 * UNIT;
        a.debt -= a.debt.min(change.shed as i64 * UNIT);
    }

    /// A loan's debt is in flight from now on. The amount is what is right, whatever the tested code returns.
    pub(super) fn flies(&mut self, giver: usize, number: u64, units: u64) {
        let known = self.flying.iter_mut().find(|(by, loan, _)| (*by, *loan) == (giver, number));
        match known {
            Some((_, _, flying)) => *flying += units as i64,
            None => self.flying.push((giver, number, units as i64)),
        }
        self.ledger += i128::from(units) * i128::from(UNIT);
    }

    /// All of a loan's debt in flight has landed.
    pub(super) fn lands(&mut self, giver: usize, number: u64) {
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
    pub(super) fn settle(&mut self, i: usize) {
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

    pub(super) fn admit(&mut self, i: usize, tenths: u64) {
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
}
