//! A log-linear histogram of durations, after HdrHistogram.

use std::{fmt, time::Duration};

use serde::ser::{Serialize, SerializeStruct, Serializer};

/// Buckets in each power of two: a bucket is at most 1/64 wide, so a quantile is off by less than 0.8 %.
const SLICES_BITS: u32 = 6;
const SLICES: usize = 1 << SLICES_BITS;
const BUCKETS: usize = (64 - SLICES_BITS as usize + 1) * SLICES;

/// Counts of durations in nanoseconds, from 0 to `u64::MAX`, in buckets at most 1.6 % wide.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum_ns: u128,
    max_ns: u64,
}

impl Histogram {
    /// Empty.
    pub fn new() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), count: 0, sum_ns: 0, max_ns: 0 }
    }

    /// Counts one duration, in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all that another one counted.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest, exactly; 0 if there is none.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The mean, exactly; 0 if there is none.
    pub fn mean_ns(&self) -> u64 {
        (self.sum_ns / u128::from(self.count.max(1))) as u64
    }

    /// The duration below or at which this part of all durations lies, in nanoseconds; `part` is from 0 to
    /// 1. The answer is the middle of a bucket, or 0 if nothing was counted.
    pub fn quantile_ns(&self, part: f64) -> u64 {
        let rank = ((part * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                let (low, width) = bounds(index);
                return (low + width / 2).min(self.max_ns);
            }
        }
        0
    }
}

/// The bucket of a duration. The first 128 are one nanosecond wide.
fn bucket(ns: u64) -> usize {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(SLICES_BITS + 1);
    ((shift as usize) << SLICES_BITS) + (ns >> shift) as usize
}

/// The lowest duration in a bucket, and how many there are in it.
fn bounds(bucket: usize) -> (u64, u64) {
    let shift = (bucket >> SLICES_BITS).saturating_sub(1);
    (((bucket - (shift << SLICES_BITS)) as u64) << shift, 1 << shift)
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

const QUANTILES: [(&str, f64); 4] = [("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99), ("p99_9_ns", 0.999)];

/// As `p50_ns`, `p90_ns`, `p99_ns`, `p99_9_ns`, `max_ns`, `mean_ns` and `count`.
impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Histogram", QUANTILES.len() + 3)?;
        for (name, part) in QUANTILES {
            fields.serialize_field(name, &self.quantile_ns(part))?;
        }
        fields.serialize_field("max_ns", &self.max_ns)?;
        fields.serialize_field("mean_ns", &self.mean_ns())?;
        fields.serialize_field("count", &self.count)?;
        fields.end()
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |part| Duration::from_nanos(self.quantile_ns(part));
        let max = Duration::from_nanos(self.max_ns);
        let (p50, p90, p99, p99_9) = (at(0.5), at(0.9), at(0.99), at(0.999));
        write!(f, "p50 {p50:.3?}  p90 {p90:.3?}  p99 {p99:.3?}  p99.9 {p99_9:.3?}  max {max:.3?}")
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Histogram({} counted, {self})", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gap_up_to_the_last() {
        let mut next = 0u64;
        for index in 0..BUCKETS {
            let (low, width) = bounds(index);
            assert_eq!(low, next);
            assert_eq!((bucket(low), bucket(low + (width - 1))), (index, index));
            assert!(index < SLICES || width as f64 / low as f64 <= 1.0 / SLICES as f64);
            next = low.wrapping_add(width);
        }
        assert_eq!((next, bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn quantiles_are_within_their_resolution() {
        let (mut low, mut high) = (Histogram::new(), Histogram::new());
        (1..=50_000u64).for_each(|us| low.record(us * 1000));
        (50_001..=100_000u64).for_each(|us| high.record(us * 1000));
        low.merge(&high);

        for (part, exact) in [(0.5, 50_000_000.0), (0.9, 90_000_000.0), (0.999, 99_900_000.0)] {
            let off = low.quantile_ns(part) as f64 / exact - 1.0;
            assert!(off.abs() < 0.008, "{part} is off by {off}");
        }
        assert_eq!((low.max_ns(), low.mean_ns(), low.count()), (100_000_000, 50_000_500, 100_000));
        assert_eq!(Histogram::new().quantile_ns(0.99), 0);
    }
}
