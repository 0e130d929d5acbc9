//! Counts of durations, from which any quantile can be computed.

use std::{fmt, time::Duration};

use hdrhistogram::Histogram as Counts;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::settings::SETTINGS;

/// Counts of durations in nanoseconds, up to an hour; longer ones count as an hour.
#[derive(Clone)]
pub struct Histogram(Counts<u64>);

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self(
            Counts::new_with_max(SETTINGS.load.longest_ns, SETTINGS.load.digits)
                .expect("bounds that HdrHistogram takes"),
        )
    }

    /// Counts one duration, in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds all counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// The number of counted durations.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The longest duration, to a thousandth; 0 if there is none.
    pub fn max_ns(&self) -> u64 {
        self.0.max()
    }

    /// The mean duration, to a thousandth; 0 if there is none.
    pub fn mean_ns(&self) -> u64 {
        self.0.mean() as u64
    }

    /// The duration, in nanoseconds, that `part` of all durations do not exceed. `part` is from 0 to 1. 0 if
    /// nothing was counted.
    pub fn quantile_ns(&self, part: f64) -> u64 {
        self.0.value_at_quantile(part)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

const QUANTILES: [(&str, f64); 4] = [("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99), ("p99_9_ns", 0.999)];

/// Serialises as `p50_ns`, `p90_ns`, `p99_ns`, `p99_9_ns`, `max_ns`, `mean_ns` and `count`.
impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Histogram", QUANTILES.len() + 3)?;
        for (name, part) in QUANTILES {
            fields.serialize_field(name, &self.quantile_ns(part))?;
        }
        fields.serialize_field("max_ns", &self.max_ns())?;
        fields.serialize_field("mean_ns", &self.mean_ns())?;
        fields.serialize_field("count", &self.count())?;
        fields.end()
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |part| Duration::from_nanos(self.quantile_ns(part));
        let max = Duration::from_nanos(self.max_ns());
        let (p50, p90, p99, p99_9) = (at(0.5), at(0.9), at(0.99), at(0.999));
        write!(f, "p50 {p50:.3?}  p90 {p90:.3?}  p99 {p99:.3?}  p99.9 {p99_9:.3?}  max {max:.3?}")
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Histogram({} counted, {self})", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_merged_histograms_are_within_a_thousandth() {
        let (mut low, mut high) = (Histogram::new(), Histogram::new());
        (1..=50_000u64).for_each(|us| low.record(us * 1000));
        (50_001..=100_000u64).for_each(|us| high.record(us * 1000));
        low.merge(&high);

        let told =
            [low.quantile_ns(0.5), low.quantile_ns(0.9), low.quantile_ns(0.999), low.max_ns(), low.mean_ns()];
        let exact = [50_000_000, 90_000_000, 99_900_000, 100_000_000, 50_000_500];
        for (told, exact) in told.into_iter().zip(exact) {
            assert!(told.abs_diff(exact) <= exact / 1000, "{told} for {exact}");
        }
        assert_eq!(low.count(), 100_000);
    }

    #[test]
    fn an_empty_histogram_and_a_huge_value_have_a_result() {
        let mut histogram = Histogram::new();
        assert_eq!((histogram.quantile_ns(0.99), histogram.max_ns(), histogram.mean_ns()), (0, 0, 0));

        histogram.record(u64::MAX);
        assert!(histogram.max_ns() >= SETTINGS.load.longest_ns);
    }
}
