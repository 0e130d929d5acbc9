//! Numbers that look random and that a seed determines: SplitMix64 (Steele, Lea and Flood, 2014).
//!
//! Shares and digests mix bits. Jitter, test histories and simulations draw sequences. Secrets come from
//! elsewhere.

use std::time::Duration;

/// The distance between two states of a sequence.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes the bits: every bit of the result depends on every bit of the number.
#[inline]
pub const fn mixed(number: u64) -> u64 {
    let x = number.wrapping_add(STEP);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A sequence of numbers that a seed determines.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed, however small.
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(STEP) ^ 0xA5A5_5A5A_C3C3_3C3C)
    }

    /// The sequence that begins with this state.
    pub const fn from_state(state: u64) -> Self {
        Self(state)
    }

    /// A separate sequence for a purpose. One more number drawn for one purpose changes nothing for another.
    pub fn of(seed: u64, purpose: &str) -> Self {
        let mut fold = Self::new(seed);
        for byte in purpose.bytes() {
            fold.0 = fold.next() ^ u64::from(byte);
        }
        fold
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        let number = mixed(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// An index below `bound`.
    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// A number whose order of magnitude is drawn first, so that small numbers are as likely as large ones.
    pub fn spread(&mut self, least: u64, most: u64) -> u64 {
        let doublings = (most / least.max(1)).max(1).ilog2();
        let low = least.max(1) << self.below(u64::from(doublings) + 1);
        self.between(low.min(most), (low.saturating_mul(2)).min(most))
    }

    /// True with a probability of `per_million` millionths.
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// One of the elements.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// Puts a list in a random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let other = self.next() % (last as u64 + 1);
            list.swap(last, other as usize);
        }
    }

    /// A number in `0.0..1.0`.
    pub const fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A duration between half of this one and all of it.
    pub fn jittered(&mut self, duration: Duration) -> Duration {
        duration.mul_f64(0.5 + self.fraction() / 2.0)
    }

    /// 32 bytes.
    pub fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for eight in bytes.chunks_exact_mut(8) {
            eight.copy_from_slice(&self.next().to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference() {
        // The first numbers of the reference implementation, from state 1234567.
        let mut random = Random::from_state(1_234_567);
        let numbers = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(numbers.map(|_| random.next()), numbers);
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
    fn a_shuffled_list_has_the_same_items() {
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
