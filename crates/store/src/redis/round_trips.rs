//! Counts answers by their round-trip time, without a lock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Upper bounds of the buckets, in microseconds: from a network within a rack to a server that hardly
/// answers. Longer times are counted above the last bucket.
pub const ROUND_TRIP_BOUNDS_US: [u64; 10] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000];

/// Counts of answers by their round-trip time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// The counts of the buckets in [`ROUND_TRIP_BOUNDS_US`], not cumulative.
    pub buckets: [u64; ROUND_TRIP_BOUNDS_US.len()],
    /// Answers that took longer than the last bound.
    pub above: u64,
    /// The sum of all times, in microseconds.
    pub sum_us: u64,
}

/// The counters behind [`RoundTrips`].
#[derive(Debug, Default)]
pub(super) struct Counted {
    buckets: [AtomicU64; ROUND_TRIP_BOUNDS_US.len()],
    above: AtomicU64,
    sum_us: AtomicU64,
    last_us: AtomicU64,
}

impl Counted {
    pub(super) fn count(&self, round_trip: Duration) {
        let us = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
        let bucket = ROUND_TRIP_BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets.get(bucket).unwrap_or(&self.above).fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
        self.last_us.store(us, Ordering::Relaxed);
    }

    /// The time of the last answer, in microseconds; 0 if there was none.
    pub(super) fn last_us(&self) -> u64 {
        self.last_us.load(Ordering::Relaxed)
    }

    pub(super) fn seen(&self) -> RoundTrips {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RoundTrips {
            buckets: self.buckets.each_ref().map(load),
            above: load(&self.above),
            sum_us: load(&self.sum_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_how_long_they_took() {
        let counted = Counted::default();
        assert_eq!(counted.seen(), RoundTrips::default());
        for us in [0, 100, 101, 250, 99_999, 100_000, 100_001, 2_000_000] {
            counted.count(Duration::from_micros(us));
        }
        let expected = RoundTrips { buckets: [2, 2, 0, 0, 0, 0, 0, 0, 0, 2], above: 2, sum_us: 2_300_451 };
        assert_eq!((counted.seen(), counted.last_us()), (expected, 2_000_000));
    }

    #[test]
    fn the_round_trip_bounds_rise() {
        assert!(ROUND_TRIP_BOUNDS_US.is_sorted_by(|a, b| a < b));
    }
}
