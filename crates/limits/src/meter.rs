//! Token and leaky buckets: the generic cell rate algorithm (ITU-T I.371, annex A), exact.
//!
//! A meter keeps one number: the *theoretical arrival time*, when everything spent will have come
//! back. Time is counted in `1/n` nanoseconds, where the rate in lowest terms is `n` units every
//! `p` nanoseconds; so one unit weighs exactly `p`, and no rounding happens before an answer.
//!
//! **Bound.** Let `d(t) = max(0, tat − t)`. A charge of `c` is made only if `d + c·p ≤ capacity·p`,
//! so `d ≤ capacity·p` always; `d` falls by `n` each nanosecond and grows by `c·p` at a charge.
//! Hence the units charged in any `t` nanoseconds are at most `capacity + t·n/p`.

use serde::{Deserialize, Serialize};

use crate::{
    PERIOD_NS_MAX, UNITS_MAX,
    notation::Rate,
    verdict::{NEVER, Verdict},
};

/// A rate and how much of it may be owed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    /// Ticks of `1/n` nanosecond in a nanosecond: the rate's units in lowest terms.
    n: u64,
    /// Ticks that one unit weighs: the rate's period in nanoseconds, in lowest terms.
    p: u64,
    capacity: u64,
}

impl Meter {
    /// `capacity` is the burst of a token bucket or the queue of a leaky one: 1 to [`UNITS_MAX`].
    pub fn new(rate: Rate, capacity: u64) -> Self {
        assert!((1..=UNITS_MAX).contains(&capacity), "a meter's capacity is 1 to UNITS_MAX");
        let (n, p) = rate.lowest_terms();
        Self { n, p, capacity }
    }

    /// Whether the numbers are ones that [`Meter::new`] makes: for meters read from a disk.
    pub fn is_sound(&self) -> bool {
        let period = 1..=PERIOD_NS_MAX;
        (1..=UNITS_MAX).contains(&self.n)
            && period.contains(&self.p)
            && (1..=UNITS_MAX).contains(&self.capacity)
    }

    /// The burst, or the length of the queue, in units.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Units that come back in so many nanoseconds, if they are a whole number.
    pub fn units_in(&self, ns: u64) -> Option<u64> {
        let ticks = self.tick(ns);
        let p = u128::from(self.p);
        (ticks >= p && ticks.is_multiple_of(p)).then(|| u64::try_from(ticks / p).ok()).flatten()
    }

    /// Nanoseconds in which an empty bucket fills, rounded up.
    pub fn refill_ns(&self) -> u64 {
        self.ns_rounded_up(self.ticks(self.capacity))
    }

    /// Whether `cost` fits after `tat`, and what is left.
    #[inline]
    pub fn probe(&self, tat: u128, steady_ns: u64, cost: u64) -> Verdict {
        let owed = tat.saturating_sub(self.tick(steady_ns));
        let capacity = self.ticks(self.capacity);
        // One more than any capacity: a larger cost is as impossible, and cannot overflow.
        let after = owed + self.ticks(cost.min(UNITS_MAX + 1));
        if after <= capacity {
            Verdict {
                allowed: true,
                remaining: divide(capacity - after, self.p),
                retry_after_ns: 0,
                delay_ns: 0,
                reset_after_ns: self.ns_rounded_up(after),
            }
        } else {
            Verdict {
                allowed: false,
                // A lowered burst may leave more owed than it now holds.
                remaining: divide(capacity.saturating_sub(owed), self.p),
                retry_after_ns: if cost > self.capacity {
                    NEVER
                } else {
                    self.ns_rounded_up(after - capacity)
                },
                delay_ns: 0,
                reset_after_ns: self.ns_rounded_up(owed),
            }
        }
    }

    /// Nanoseconds until everything owed has come back: when a leaky bucket lets the next cost out.
    pub fn delay_ns(&self, tat: u128, steady_ns: u64) -> u64 {
        self.ns_rounded_up(tat.saturating_sub(self.tick(steady_ns)))
    }

    /// The theoretical arrival time after a charge that [`Meter::probe`] allowed.
    #[must_use]
    #[inline]
    pub fn charge(&self, tat: u128, steady_ns: u64, cost: u64) -> u128 {
        tat.max(self.tick(steady_ns)) + self.ticks(cost)
    }

    /// The state of a bucket whose every unit was spent at `steady_ns`.
    pub fn spent_at(&self, steady_ns: u64) -> u128 {
        self.tick(steady_ns) + self.ticks(self.capacity)
    }

    /// Whether everything has come back, so that the state says no more than an absent one.
    pub fn is_idle(&self, tat: u128, steady_ns: u64) -> bool {
        tat <= self.tick(steady_ns)
    }

    /// The same debt in units under `self` as `tat` was under `old` at `steady_ns`, rounded up. It
    /// may be more than the capacity: what is forgotten here could be spent again under a third meter.
    pub fn convert(&self, old: &Self, tat: u128, steady_ns: u64) -> u128 {
        let owed = tat.saturating_sub(old.tick(steady_ns));
        let units = divide(owed, old.p);
        let part = remainder(owed, old.p);
        let fraction = (u128::from(part) * u128::from(self.p)).div_ceil(u128::from(old.p));
        self.tick(steady_ns) + self.ticks(units) + fraction
    }

    /// The earliest time at which so much can have been owed: when the whole capacity was.
    pub fn spent_since_ns(&self, tat: u128) -> u64 {
        let paid_ns = u64::try_from(tat / u128::from(self.n)).unwrap_or(NEVER);
        paid_ns.saturating_sub(self.refill_ns())
    }

    /// At most what a bucket can owe whose every unit was spent at `steady_ns`.
    pub fn capped(&self, tat: u128, steady_ns: u64) -> u128 {
        tat.min(self.spent_at(steady_ns))
    }

    fn tick(&self, steady_ns: u64) -> u128 {
        u128::from(steady_ns) * u128::from(self.n)
    }

    fn ticks(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.p)
    }

    fn ns_rounded_up(&self, ticks: u128) -> u64 {
        // One branch instead of a 128-bit division for all but extreme rates.
        match u64::try_from(ticks) {
            Ok(ticks) => ticks.div_ceil(self.n),
            Err(_) => u64::try_from(ticks.div_ceil(u128::from(self.n))).unwrap_or(NEVER),
        }
    }
}

/// A quotient of ticks that is known to fit: ticks are at most `capacity · p`.
fn divide(ticks: u128, p: u64) -> u64 {
    match u64::try_from(ticks) {
        Ok(ticks) => ticks / p,
        Err(_) => u64::try_from(ticks / u128::from(p)).unwrap_or(UNITS_MAX),
    }
}

fn remainder(ticks: u128, p: u64) -> u64 {
    u64::try_from(ticks % u128::from(p)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn meter(units: u64, period_ns: u64, capacity: u64) -> Meter {
        Meter::new(Rate::new(units, period_ns).expect("a rate"), capacity)
    }

    #[test]
    fn a_full_bucket_gives_its_burst_and_then_its_rate() {
        let m = meter(3, S, 2);
        let now = 1_000 * S;
        let mut tat = 0;
        for left in [1, 0] {
            let v = m.probe(tat, now, 1);
            assert_eq!((v.allowed, v.remaining), (true, left));
            tat = m.charge(tat, now, 1);
        }
        let v = m.probe(tat, now, 1);
        // A third of a second is not a whole number of nanoseconds: rounded up, and exact.
        assert_eq!((v.allowed, v.retry_after_ns), (false, 333_333_334));
        assert!(!m.probe(tat, now + 333_333_333, 1).allowed);
        assert!(m.probe(tat, now + 333_333_334, 1).allowed);
    }

    #[test]
    fn a_cost_above_the_burst_never_fits() {
        let m = meter(1, S, 5);
        for cost in [6, UNITS_MAX, u64::MAX] {
            let v = m.probe(0, S, cost);
            assert_eq!((v.allowed, v.retry_after_ns, v.remaining), (false, NEVER, 5));
        }
    }

    #[test]
    fn the_extremes_do_not_overflow() {
        let m = meter(UNITS_MAX - 1, crate::PERIOD_NS_MAX, UNITS_MAX);
        let now = (1 << 63) - 1;
        assert!(m.probe(0, now, UNITS_MAX).allowed);
        let tat = m.charge(0, now, UNITS_MAX);
        assert!(!m.probe(tat, now, 1).allowed);
        assert_eq!(m.probe(m.spent_at(now), now, 1).remaining, 0);
    }

    #[test]
    fn new_numbers_keep_the_debt() {
        let (slow, fast) = (meter(1, S, 100), meter(1_000, S, 100));
        let now = 50 * S;
        let tat = slow.charge(0, now, 100);
        let kept = fast.convert(&slow, tat, now);
        assert_eq!(fast.probe(kept, now, 1).remaining, 0);
        let back = slow.convert(&fast, kept, now);
        assert_eq!(back, tat);
        // A smaller burst owes what does not fit, too.
        let small = meter(1, S, 10);
        assert_eq!(slow.convert(&small, small.convert(&slow, tat, now), now), tat);
    }
}
