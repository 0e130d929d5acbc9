//! The authority's versions, and how regions adopt and acknowledge them.

use super::{BURST, Careless, Message, Moving, REGIONS, UNIT, Version, WINDOW_NS, World};

impl World {
    fn issue(&mut self, version: Version) {
        self.versions.push(version);
        self.seen.versions += 1;
        self.refresh();
    }

    pub(super) fn change_budget(&mut self) {
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
    pub(super) fn shift(&mut self) {
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

    pub(super) fn adopt(&mut self, i: usize, version: usize) {
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
    pub(super) fn refresh(&mut self) {
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
}
