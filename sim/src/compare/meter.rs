//! What is left of one cell, computed by an observer that is told of every unit.

use crate::bound::Bound;

const SECOND_NS: u64 = 1_000_000_000;
/// Units are counted in billionths: a rate is then in units a nanosecond.
const NANO: i128 = 1_000_000_000;

/// The state of a cell, or of one of several equal parts of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    bound: Bound,
    /// Which part this is, and of how many.
    part: (u64, u64),
    /// For a bucket, the units missing until it is full. For a window, the units used.
    used: i128,
    /// For a bucket, the time at which `used` was computed.
    at_ns: u64,
    /// For a window, its number.
    window: u64,
}

impl Meter {
    /// A whole cell, unused.
    pub(super) fn new(bound: Bound) -> Self {
        Self::part(bound, 0, 1)
    }

    /// One of `of` equal parts of a cell, unused.
    pub(super) fn part(bound: Bound, place: u64, of: u64) -> Self {
        Self { bound, part: (place, of), used: 0, at_ns: 0, window: bound.window_at(0) }
    }

    /// Units that can be used now.
    pub(super) fn room(&mut self, now_ns: u64) -> u64 {
        self.pass(now_ns);
        u64::try_from((self.size() - self.used).div_euclid(NANO)).unwrap_or(0)
    }

    /// Uses units, even if there are not enough.
    pub(super) fn take(&mut self, now_ns: u64, units: u64) {
        self.pass(now_ns);
        self.used += i128::from(units) * NANO;
    }

    /// Takes in units that others used in that window. For a bucket, what is left does not fall below zero.
    pub(super) fn learn(&mut self, now_ns: u64, window: u64, units: u64) {
        self.pass(now_ns);
        if window == self.window {
            self.take(now_ns, units);
        }
        if let Bound::Bucket { .. } = self.bound {
            self.used = self.used.min(self.size());
        }
    }

    fn size(&self) -> i128 {
        let (place, of) = self.part;
        match self.bound {
            Bound::Bucket { burst, .. } => i128::from(burst) * NANO / i128::from(of),
            // The first parts get the units that cannot be divided.
            Bound::Window { limit, .. } => i128::from(limit / of + u64::from(place < limit % of)) * NANO,
        }
    }

    fn pass(&mut self, now_ns: u64) {
        match self.bound {
            Bound::Bucket { rate, .. } => {
                let filled = i128::from(rate) * i128::from(now_ns.saturating_sub(self.at_ns));
                self.used =
                    (self.used - filled * NANO / i128::from(SECOND_NS) / i128::from(self.part.1)).max(0);
                self.at_ns = now_ns.max(self.at_ns);
            }
            Bound::Window { .. } => {
                let window = self.bound.window_at(now_ns);
                if window > self.window {
                    (self.window, self.used) = (window, 0);
                }
            }
        }
    }
}

/// Whether every cell has room for its units. Hits are places of meters, with units.
pub(super) fn have_room(meters: &mut [Meter], hits: &[(usize, u64)], now_ns: u64) -> bool {
    hits.iter().all(|(cell, units)| meters[*cell].room(now_ns) >= *units)
}

/// Uses the units of all hits, even if there are not enough.
pub(super) fn take_all(meters: &mut [Meter], hits: &[(usize, u64)], now_ns: u64) {
    hits.iter().for_each(|(cell, units)| meters[*cell].take(now_ns, *units));
}

/// Uses the units of all hits if there is room for all of them, and returns whether there is.
pub(super) fn admit(meters: &mut [Meter], hits: &[(usize, u64)], now_ns: u64) -> bool {
    let is_allowed = have_room(meters, hits, now_ns);
    if is_allowed {
        take_all(meters, hits, now_ns);
    }
    is_allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_up_to_its_burst_and_a_part_of_it_by_its_part() {
        let bound = Bound::Bucket { rate: 40, burst: 60 };
        let mut whole = Meter::new(bound);
        whole.take(0, 60);
        assert_eq!((whole.room(0), whole.room(SECOND_NS), whole.room(10 * SECOND_NS)), (0, 40, 60));
        let mut part = Meter::part(bound, 0, 4);
        part.take(0, 15);
        assert_eq!((part.room(0), part.room(SECOND_NS), part.room(10 * SECOND_NS)), (0, 10, 15));
    }

    #[test]
    fn parts_of_a_window_are_the_window() {
        let bound = Bound::Window { limit: 11, length_ns: SECOND_NS };
        let rooms: u64 = (0..3).map(|place| Meter::part(bound, place, 3).room(0)).sum();
        assert_eq!(rooms, 11);
        let mut meter = Meter::new(bound);
        meter.take(0, 20);
        meter.learn(SECOND_NS, bound.window_at(0), 5);
        assert_eq!(meter.room(SECOND_NS), 11, "what was used in a window that is over is forgotten");
    }

    #[test]
    fn what_is_learnt_empties_a_bucket_and_owes_nothing() {
        let mut meter = Meter::new(Bound::Bucket { rate: 10, burst: 20 });
        meter.learn(0, 0, 500);
        assert_eq!((meter.room(0), meter.room(SECOND_NS)), (0, 10));
    }
}
