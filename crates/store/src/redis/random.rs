//! Numbers that look random and are the same for the same seed.

use std::time::Duration;

/// Sebastiano Vigna's SplitMix64. Good enough for jitter, useless for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0.0..1.0`.
    pub(crate) const fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A duration between half of this one and all of it.
    pub(crate) fn jittered(&mut self, duration: Duration) -> Duration {
        duration.mul_f64(0.5 + self.fraction() / 2.0)
    }

    /// Puts a list in a random order.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let other = self.next() % (last as u64 + 1);
            list.swap(last, other as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [random.next(), random.next(), random.next()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn jitter_takes_at_most_half() {
        let mut random = Random::new(3);
        let whole = Duration::from_millis(100);
        for _ in 0..1_000 {
            let jittered = random.jittered(whole);
            assert!(jittered >= whole / 2 && jittered <= whole, "{jittered:?}");
        }
    }

    #[test]
    fn a_shuffled_list_has_what_it_had() {
        let mut list: Vec<u32> = (0..100).collect();
        Random::new(4).shuffle(&mut list);
        assert!(!list.is_sorted());
        list.sort_unstable();
        assert!(list.into_iter().eq(0..100));
    }

    #[test]
    fn fractions_are_spread_evenly() {
        let mut random = Random::new(1);
        let mean = (0..10_000).map(|_| random.fraction()).sum::<f64>() / 10_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
    }
}
