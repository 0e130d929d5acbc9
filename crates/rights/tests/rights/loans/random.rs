//! Chance: a seed always means the same history.

use acequia_rights::splitmix;

#[derive(Clone, Debug)]
pub(crate) struct Random(splitmix::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(splitmix::Random::from_state(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d))
    }

    /// A number below `bound`, which must be above 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        self.0.index(length)
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        self.0.pick(of)
    }

    /// True with this probability in ten thousandths.
    pub(crate) fn chance(&mut self, per_ten_thousand: u64) -> bool {
        self.below(10_000) < per_ten_thousand
    }
}
