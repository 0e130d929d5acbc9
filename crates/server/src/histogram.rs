//! Values counted by size.

/// Counts by bucket. The last bucket is for values above every bound.
#[derive(Clone, Debug)]
pub(crate) struct Histogram<const N: usize> {
    pub(crate) buckets: [u64; N],
    pub(crate) above: u64,
    pub(crate) sum: f64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { buckets: [0; N], above: 0, sum: 0.0 }
    }
}

impl<const N: usize> Histogram<N> {
    pub(crate) fn record(&mut self, bounds: &[f64; N], value: f64) {
        self.sum += value;
        match bounds.iter().position(|bound| value <= *bound) {
            Some(bucket) => self.buckets[bucket] += 1,
            None => self.above += 1,
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (ours, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *ours += theirs;
        }
        self.above += other.above;
        self.sum += other.sum;
    }
}
