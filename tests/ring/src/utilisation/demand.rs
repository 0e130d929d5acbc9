//! Demand: Poisson arrivals from a seed, most of them in one region.

use acequia_rights::splitmix::Random;

/// Numbers that a seed determines.
#[derive(Clone, Debug)]
pub struct Dice(Random);

impl Dice {
    /// From a seed.
    pub const fn new(seed: u64) -> Self {
        Self(Random::from_state(seed))
    }

    /// A number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        self.0.fraction()
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    /// The number of arrivals if `mean` are expected (Knuth's method, in steps for a large mean).
    pub fn arrivals(&mut self, mean: f64) -> u64 {
        let mut count = 0;
        let mut rest = mean;
        while rest > 0.0 {
            let step = rest.min(20.0);
            rest -= step;
            let limit = (-step).exp();
            let mut product = self.unit();
            while product > limit {
                count += 1;
                product *= self.unit();
            }
        }
        count
    }
}

/// Demand that is mostly in one region, which changes.
#[derive(Clone, Copy, Debug)]
pub struct HotSpot {
    /// Requests a second in all.
    pub per_s: f64,
    /// The hot region's part of the requests.
    pub hot: f64,
    /// The number of regions.
    pub regions: usize,
}

impl HotSpot {
    /// Requests in each millisecond, by region.
    pub fn arrivals(&self, dice: &mut Dice, hot: usize, region: usize) -> u64 {
        dice.arrivals(self.per_s_in(hot, region) / 1_000.0)
    }

    /// Requests a second in a region.
    pub fn per_s_in(&self, hot: usize, region: usize) -> f64 {
        let part = if region == hot { self.hot } else { (1.0 - self.hot) / (self.regions - 1) as f64 };
        self.per_s * part
    }
}

/// The hot region after a number of shifts. The spot visits all regions, alternately near and far.
pub const fn hot_after(shifts: u64, regions: usize) -> usize {
    // With five regions, steps of two visit every region, and pairs of all distances.
    ((shifts * 2) % regions as u64) as usize
}
