//! Token and leaky buckets: the generic cell rate algorithm (ITU-T I.371, annex A), exact.
//!
//! A meter keeps one number, the *theoretical arrival time*: the time when everything spent will have come
//! back. Time is counted in ticks of `1/n` nanoseconds, where the rate in lowest terms is `n` units every
//! `p` nanoseconds. So one unit weighs exactly `p` ticks, and no rounding happens before an answer.
//!
//! **Bound.** Let `d(t) = max(0, tat − t)`. A charge of `c` is made only if `d + c·p ≤ capacity·p`,
//! so `d ≤ capacity·p` always; `d` falls by `n` each nanosecond and grows by `c·p` at a charge.
//! Hence the units charged in any `t` nanoseconds are at most `capacity + t·n/p`.
//!
//! **Overflow.** `n ≤ 2^53`, `p < 2^63`, `capacity ≤ 2^53` and time is below `2^63`. So the time in ticks
//! is below `2^116`, and so is the weight of a capacity or a cost. A debt that moves between pieces of a
//! limit may exceed the capacity. Such a debt stops growing at `TAT_MAX`, and `2^127 + 2^117` is still
//! below `2^128`.

use serde::{Deserialize, Serialize};

use crate::{
    DRIFT_PPM_MAX, Part, RATE_PARTS, UNITS_MAX,
    notation::Rate,
    verdict::{NEVER, Verdict},
};

/// The latest theoretical arrival time that a growing debt can reach. No clock gets near it.
const TAT_MAX: u128 = 1 << 127;

/// The weight of a unit, in ticks, is below this bound.
const P_BOUND: u64 = 1 << 63;

/// The larger term of a rounded rate is about this number. The rounding loses one part in about this many.
/// Capacities up to 2^20 units still weigh less than 2^64, where one short division is enough.
const ROUNDED: u64 = 1 << 44;

/// A rate, and how many units may be owed at once.
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

    /// The meter of a piece of this meter: `part.rate` [`RATE_PARTS`] of the rate and a capacity of
    /// `part.units`, which may be 0. The rate is slowed by the drift that a steady clock may gain on true
    /// time. The rate is exact if its terms fit, and rounded down otherwise. So **the rates of all pieces
    /// never sum to more than the whole rate**.
    ///
    /// A rate below one unit in 2^63 ns counts as one unit in 2^63 ns: such a meter gives back no whole
    /// unit while clocks last. More than [`RATE_PARTS`] parts count as all parts.
    pub fn local(&self, part: Part, drift_ppm: u32) -> Self {
        assert!(part.rate >= 1, "a meter needs a rate");
        assert!(drift_ppm <= DRIFT_PPM_MAX, "no clock drifts as much as {drift_ppm} ppm");
        let capacity = part.units.min(UNITS_MAX);
        const MILLION: u64 = 1_000_000;
        // Below 2^53 · 2^20 · 2^20, and below 2^63 · 2^20 · 2^21.
        let n = u128::from(self.n) * u128::from(part.rate.min(RATE_PARTS)) * u128::from(MILLION);
        let p = u128::from(self.p) * u128::from(RATE_PARTS) * u128::from(MILLION + u64::from(drift_ppm));
        let (n, p) = rounded_down(n, p);
        Self { n, p, capacity }
    }

    /// The meter of a fraction of this meter: `units` of the capacity, and the rate in proportion. The rate
    /// is exact if its terms fit, and rounded down otherwise. So **fractions that sum to no more than the
    /// capacity never sum to more than the rate**.
    ///
    /// A fraction of no units has a rate that gives nothing back while clocks last.
    pub fn fraction(&self, units: u64) -> Self {
        let capacity = units.min(self.capacity);
        let n = u128::from(self.n) * u128::from(capacity);
        let p = u128::from(self.p) * u128::from(self.capacity);
        let (n, p) = if n == 0 { (1, P_BOUND - 1) } else { rounded_down(n, p) };
        Self { n, p, capacity }
    }

    /// Whole units that come back in `ns` nanoseconds, at most [`UNITS_MAX`].
    pub fn units_at_most_in(&self, ns: u64) -> u64 {
        divide(self.tick(ns), self.p).min(UNITS_MAX)
    }

    /// Whether [`Meter::new`] or [`Meter::local`] can make this meter. Meters read from a disk are checked
    /// with this.
    pub fn is_sound(&self) -> bool {
        (1..=UNITS_MAX).contains(&self.n)
            && (1..P_BOUND).contains(&self.p)
            && (0..=UNITS_MAX).contains(&self.capacity)
    }

    /// The burst, or the length of the queue, in units.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The rate in lowest terms: units, and the nanoseconds in which they come back.
    pub const fn terms(&self) -> (u64, u64) {
        (self.n, self.p)
    }

    /// The rate: units a second, in thousandths, rounded down.
    pub fn rate_milli(&self) -> u64 {
        const MILLI_NS: u128 = 1_000 * 1_000_000_000;
        u64::try_from(u128::from(self.n) * MILLI_NS / u128::from(self.p)).unwrap_or(u64::MAX)
    }

    /// Whether both meters have the same rate.
    pub fn has_rate_of(&self, other: &Self) -> bool {
        (self.n, self.p) == (other.n, other.p)
    }

    /// Whether this meter's rate is below the other's.
    pub fn is_slower(&self, other: &Self) -> bool {
        // Below 2^116.
        u128::from(self.n) * u128::from(other.p) < u128::from(other.n) * u128::from(self.p)
    }

    /// The number of units that come back in `ns` nanoseconds, or `None` if that is not a whole number
    /// above 0.
    pub fn units_in(&self, ns: u64) -> Option<u64> {
        let ticks = self.tick(ns);
        let p = u128::from(self.p);
        (ticks >= p && ticks.is_multiple_of(p)).then(|| u64::try_from(ticks / p).ok()).flatten()
    }

    /// Nanoseconds until an empty bucket is full, rounded up.
    pub fn refill_ns(&self) -> u64 {
        self.ns_rounded_up(self.ticks(self.capacity))
    }

    /// Whether `cost` fits on top of the debt in `tat`, and how much is left.
    #[inline]
    pub fn probe(&self, tat: u128, steady_ns: u64, cost: u64) -> Verdict {
        let owed = tat.saturating_sub(self.tick(steady_ns));
        let capacity = self.ticks(self.capacity);
        // One more than any capacity: every larger cost is as impossible, and this one cannot overflow.
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
                // After a burst was lowered, more may be owed than the burst now holds.
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

    /// Nanoseconds until everything owed has come back. A leaky bucket then lets the next cost out.
    pub fn delay_ns(&self, tat: u128, steady_ns: u64) -> u64 {
        self.ns_rounded_up(tat.saturating_sub(self.tick(steady_ns)))
    }

    /// The theoretical arrival time after a charge that [`Meter::probe`] allowed.
    #[must_use]
    #[inline]
    pub fn charge(&self, tat: u128, steady_ns: u64, cost: u64) -> u128 {
        tat.max(self.tick(steady_ns)) + self.ticks(cost)
    }

    /// The theoretical arrival time when `units` more are owed, whether they fit or not.
    #[must_use]
    pub fn owe(&self, tat: u128, steady_ns: u64, units: u64) -> u128 {
        tat.max(self.tick(steady_ns)).saturating_add(self.ticks(units.min(UNITS_MAX))).min(TAT_MAX)
    }

    /// The theoretical arrival time when `units` fewer are owed, down to none.
    #[must_use]
    pub fn forgive(&self, tat: u128, steady_ns: u64, units: u64) -> u128 {
        tat.saturating_sub(self.ticks(units.min(UNITS_MAX))).max(tat.min(self.tick(steady_ns)))
    }

    /// The whole units that are owed, at most [`UNITS_MAX`].
    pub fn owed(&self, tat: u128, steady_ns: u64) -> u64 {
        divide(tat.saturating_sub(self.tick(steady_ns)), self.p).min(UNITS_MAX)
    }

    /// Units that are owed, rounded up, at most [`UNITS_MAX`].
    pub fn owed_at_most(&self, tat: u128, steady_ns: u64) -> u64 {
        let owed = tat.saturating_sub(self.tick(steady_ns));
        divide(owed, self.p).saturating_add(u64::from(remainder(owed, self.p) > 0)).min(UNITS_MAX)
    }

    /// Units that are owed beyond the capacity, rounded up, at most [`UNITS_MAX`].
    pub fn debt(&self, tat: u128, steady_ns: u64) -> u64 {
        let debt = tat.saturating_sub(self.tick(steady_ns)).saturating_sub(self.ticks(self.capacity));
        if debt == 0 {
            return 0;
        }
        divide(debt, self.p).saturating_add(u64::from(remainder(debt, self.p) > 0)).min(UNITS_MAX)
    }

    /// The rest of `units` after the rate has given units back for `ns` nanoseconds, rounded down.
    pub fn outlasting(&self, units: u64, ns: u64) -> u64 {
        divide(self.ticks(units.min(UNITS_MAX)).saturating_sub(self.tick(ns)), self.p)
    }

    /// The state of a bucket whose every unit was spent at `steady_ns`.
    pub fn spent_at(&self, steady_ns: u64) -> u128 {
        self.tick(steady_ns) + self.ticks(self.capacity)
    }

    /// Whether every unit has come back, so that the state equals the state of a cell never charged.
    pub fn is_idle(&self, tat: u128, steady_ns: u64) -> bool {
        tat <= self.tick(steady_ns)
    }

    /// Converts `tat`, a state under `old` at `steady_ns`, to the state under `self` that owes as many
    /// units, rounded up. The debt may exceed the capacity: a debt forgotten here could be spent again
    /// under a third meter.
    pub fn convert(&self, old: &Self, tat: u128, steady_ns: u64) -> u128 {
        let owed = tat.saturating_sub(old.tick(steady_ns));
        let units = to_u64(owed / u128::from(old.p));
        let part = remainder(owed, old.p);
        let fraction = (u128::from(part) * u128::from(self.p)).div_ceil(u128::from(old.p));
        (self.tick(steady_ns) + self.ticks(units) + fraction).min(TAT_MAX)
    }

    /// The earliest time at which this debt can have been made: the debt was then the whole capacity.
    pub fn spent_since_ns(&self, tat: u128) -> u64 {
        let paid_ns = u64::try_from(tat / u128::from(self.n)).unwrap_or(NEVER);
        paid_ns.saturating_sub(self.refill_ns())
    }

    /// The state with an unchanged debt on a steady clock that has gone back. The clock read `written_ns`
    /// when the state was written, and reads `steady_ns` now. If the clock has not gone back, the state
    /// itself.
    pub fn redated(&self, tat: u128, written_ns: u64, steady_ns: u64) -> u128 {
        let owed = tat.saturating_sub(self.tick(written_ns));
        if steady_ns >= written_ns { tat } else { self.tick(steady_ns).saturating_add(owed) }
    }

    /// The theoretical arrival time if every charge had been made `by_ns` later.
    pub fn delayed(&self, tat: u128, by_ns: u64) -> u128 {
        if tat == 0 { 0 } else { tat.saturating_add(self.tick(by_ns)).min(TAT_MAX) }
    }

    fn tick(&self, steady_ns: u64) -> u128 {
        u128::from(steady_ns) * u128::from(self.n)
    }

    fn ticks(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.p)
    }

    fn ns_rounded_up(&self, ticks: u128) -> u64 {
        // A 64-bit division serves all but extreme rates, and a 128-bit division costs more.
        match u64::try_from(ticks) {
            Ok(ticks) => ticks.div_ceil(self.n),
            Err(_) => u64::try_from(ticks.div_ceil(u128::from(self.n))).unwrap_or(NEVER),
        }
    }
}

/// The rate `n / p` in terms that a meter can keep: exact, or a little less.
fn rounded_down(n: u128, p: u128) -> (u64, u64) {
    let common = gcd(n, p);
    let (n, p) = (n / common, p / common);
    match (u64::try_from(n), u64::try_from(p)) {
        (Ok(n), Ok(p)) if n <= UNITS_MAX && p < P_BOUND => return (n, p),
        _ => {}
    }
    // 80 bits of the smaller term are enough. Then every number below stays under 2^80 · 2^45.
    let shift = (128 - n.min(p).leading_zeros()).saturating_sub(80);
    let (n, p) = (n >> shift, (p >> shift) + u128::from(shift > 0));
    if p >= n {
        let n_rounded = (u128::from(ROUNDED) / (p / n)).max(1);
        (to_u64(n_rounded), to_u64((n_rounded * p).div_ceil(n)).min(P_BOUND - 1))
    } else {
        let p_rounded = (u128::from(ROUNDED) / (n / p)).max(1);
        (to_u64(p_rounded * n / p).min(UNITS_MAX), to_u64(p_rounded))
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn to_u64(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// The quotient of ticks, which is known to fit: ticks are at most `capacity · p`.
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
    fn a_debt_above_all_possible_units_counts_as_all_units() {
        // A debt as large as these comes only from a disk: no charges add up to so much.
        for p in [1, 7, 1_000_000_007] {
            let m = meter(1, p, 1);
            // Just above what a count of 64 bits holds, and not a whole number of units.
            for tat in [u128::from(m.p) * (1 << 64) - 1, TAT_MAX - 1, TAT_MAX] {
                assert_eq!((m.owed(tat, 0), m.owed_at_most(tat, 0)), (UNITS_MAX, UNITS_MAX), "{p}: {tat}");
            }
        }
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
    fn extreme_rates_and_bursts_do_not_overflow() {
        let m = meter(UNITS_MAX - 1, crate::PERIOD_NS_MAX, UNITS_MAX);
        let now = (1 << 63) - 1;
        assert!(m.probe(0, now, UNITS_MAX).allowed);
        let tat = m.charge(0, now, UNITS_MAX);
        assert!(!m.probe(tat, now, 1).allowed);
        assert_eq!(m.probe(m.spent_at(now), now, 1).remaining, 0);
    }

    #[test]
    fn a_new_rate_or_burst_keeps_the_debt() {
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

    /// Whether `a / b` is at most `c / d`.
    fn at_most((a, b): (u128, u128), (c, d): (u128, u128)) -> bool {
        let (whole, other) = (a / b, c / d);
        // Continued fractions: compare the whole parts first, then the inverses of the remainders.
        match (whole == other, a % b, c % d) {
            (false, _, _) => whole < other,
            (true, 0, _) => true,
            (true, _, 0) => false,
            (true, left, right) => at_most((d, right), (b, left)),
        }
    }

    proptest::proptest! {
        #[test]
        fn a_part_of_a_rate_is_never_faster_and_hardly_slower_than_exact(
            (units, units_shift) in (1..=UNITS_MAX, 0_u32..53),
            (period_ns, period_shift) in (1..=crate::PERIOD_NS_MAX, 0_u32..55),
            (rate, rate_shift) in (1..=RATE_PARTS, 0_u32..20),
            drift_ppm in 0..=DRIFT_PPM_MAX,
            drift_shift in 0_u32..32,
            capacity in 0..=UNITS_MAX,
        ) {
            let whole = meter((units >> units_shift).max(1), (period_ns >> period_shift).max(1), 1);
            let part = Part { rate: (rate >> rate_shift).max(1), units: capacity };
            let drift_ppm = drift_ppm >> drift_shift;
            let piece = whole.local(part, drift_ppm);
            proptest::prop_assert!(piece.is_sound() && piece.capacity == capacity);
            let exact_n = u128::from(whole.n) * u128::from(part.rate) * 1_000_000;
            let exact_p = u128::from(whole.p) * u128::from(RATE_PARTS) * u128::from(1_000_000 + drift_ppm);
            let rounded = (u128::from(piece.n), u128::from(piece.p));
            if piece.p == P_BOUND - 1 {
                proptest::prop_assert!(piece.n == 1 && exact_p / exact_n >= u128::from(P_BOUND) - 2);
            } else {
                proptest::prop_assert!(at_most(rounded, (exact_n, exact_p)), "faster");
            }
            // Within one part in 2^40.
            let slower = (exact_n, exact_p + (exact_p >> 40) + 1);
            proptest::prop_assert!(at_most(slower, rounded), "much slower");
            proptest::prop_assert_eq!(whole.local(Part { rate: RATE_PARTS, units: 1 }, 0), whole);
        }
    }

    #[test]
    fn a_part_of_a_rate_that_can_be_represented_is_exact() {
        let whole = meter(10, S, 100);
        for (part, rate) in [(RATE_PARTS / 2, (5, S)), (RATE_PARTS / 16, (5, 8 * S)), (1, (10, S << 20))] {
            let piece = whole.local(Part { rate: part, units: 7 }, 0);
            assert_eq!(piece, meter(rate.0, rate.1, 7));
        }
        let slowed = whole.local(Part { rate: RATE_PARTS, units: 0 }, 200);
        assert_eq!((slowed.n, slowed.p), (1, S / 10 * 10_002 / 10_000));
    }

    #[test]
    fn parts_of_extreme_rates_do_not_overflow() {
        let now = (1 << 63) - 1;
        for whole in [meter(UNITS_MAX, 1, UNITS_MAX), meter(1, crate::PERIOD_NS_MAX, 1)] {
            for (rate, units) in [(1, UNITS_MAX), (RATE_PARTS, UNITS_MAX), (1, 0), (u32::MAX, u64::MAX)] {
                let piece = whole.local(Part { rate, units }, DRIFT_PPM_MAX);
                assert!(piece.is_sound());
                let tat = piece.owe(piece.spent_at(now), now, u64::MAX);
                assert!(!piece.probe(tat, now, u64::MAX).allowed);
                assert!(!piece.probe(u128::MAX >> 1, now, UNITS_MAX).allowed);
                assert_eq!(piece.forgive(piece.forgive(tat, now, u64::MAX), now, u64::MAX), piece.tick(now));
                let kept = whole.convert(&piece, tat, now);
                assert_eq!(whole.probe(kept, now, 1).remaining, 0);
                piece.convert(&whole, kept, now);
                piece.spent_since_ns(tat);
                piece.refill_ns();
                piece.units_in(now);
            }
        }
    }
}
