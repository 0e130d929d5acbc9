//! The units of a cell that each member has by formula. **For every salt, the shares of all members sum to
//! the total, and no share falls when the total grows**: true, or a bug. So members that use different totals
//! (some have heard of a new budget, some have not) together never have more than the largest of those
//! totals.
//!
//! Plain largest remainder lacks the second half (the Alabama paradox). A share is instead a member's part of
//! a fixed *sequence*: unit number n of a cell belongs to one member, whatever the total. The first units go
//! one to each member, in an order that the salt rotates. The others follow a periodic sequence of the
//! weights, started at a point that the salt chooses, so that no member is always first.
//!
//! The sequence is Tijdeman's (*The chairman assignment problem*, Discrete Mathematics 32, 1980): after any
//! number of steps a member is less than one unit away from its proportion, which is the best that is
//! possible. (The Webster or Sainte-Laguë sequence is house-monotone as well. But with one large and many
//! small weights its first quarter goes to the large one alone: started at an arbitrary point, shares would
//! be off by a quarter of a period.)
//!
//! Take R members, a total of at least R, and a member with weight w of a sum S. Then
//! `|units − (1 + (total − R)·w/S)| < 2`, so the member is within R + 2 units of its proportion. Over all
//! salts its units take at most [`DISTINCT_MAX`] different values. Averaged over salts the middle is exact.

use std::collections::BTreeMap;

use acequia_limits::{Part, RATE_PARTS};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{
    identity::MemberId,
    mutation::{Mutation, mutated},
    splitmix::mixed,
};

/// The most members that share a limit: acknowledgements come from all of them.
pub const REGIONS_MAX: usize = 64;
/// The largest weight that a config may have.
pub const WEIGHT_MAX: u32 = 10_000;
/// The largest sum of weights without their common divisor. So a table has at most 64 · 1001 small entries:
/// 128 KiB, and a few hundred bytes for weights that people write. And the least rate is still a thousand
/// parts.
pub const SUM_MAX: u32 = 1_000;
/// The most values that a member's units take over all salts: those less than 2 away from one number.
pub const DISTINCT_MAX: usize = 4;

/// Weights that cannot be used, and how to mend them. Nothing was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitFault {
    /// There are no members, or too many.
    #[error("{0} regions: a limit is shared by 1 to {REGIONS_MAX}")]
    Regions(usize),
    /// A member is there more than once.
    #[error("region {0} is there twice: give each region one weight")]
    Twice(u16),
    /// A weight is out of its range.
    #[error("region {region} has weight {weight}: a weight is 1 to {WEIGHT_MAX}")]
    Weight {
        /// The member.
        region: u16,
        /// The weight.
        weight: u32,
    },
    /// The proportions are too fine for the tables.
    #[error(
        "the weights sum to {sum} after their common divisor is taken out, more than {SUM_MAX}: \
         round them, for example to {suggestion}"
    )]
    TooFine {
        /// The sum.
        sum: u64,
        /// Weights with nearly the same proportions, in the order of the members' numbers.
        suggestion: String,
    },
}

/// The proportions in which members share cells. Made once for each allocation, used for every cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(MemberId, u32)>", into = "Vec<(MemberId, u32)>")]
pub struct Split {
    /// By number. Weights have no common divisor.
    regions: Vec<(MemberId, u32)>,
    sum: u32,
    /// Row by row, a member's units among the first 0 to `sum` units of the sequence.
    before: Vec<u16>,
    /// The weights as they were written, for operators and to be kept.
    written: Vec<u32>,
}

impl Split {
    /// Proportions by weight.
    ///
    /// # Errors
    /// The fault in the weights, and a way to mend it.
    pub fn new(weights: &[(MemberId, u32)]) -> Result<Self, SplitFault> {
        if weights.is_empty() || weights.len() > REGIONS_MAX {
            return Err(SplitFault::Regions(weights.len()));
        }
        let mut by_region = BTreeMap::new();
        for &(region, weight) in weights {
            if weight == 0 || weight > WEIGHT_MAX {
                return Err(SplitFault::Weight { region: region.0, weight });
            }
            if by_region.insert(region, weight).is_some() {
                return Err(SplitFault::Twice(region.0));
            }
        }
        let written: Vec<u32> = by_region.values().copied().collect();
        let divisor = written.iter().copied().fold(0, gcd);
        let reduced: Vec<u32> = written.iter().map(|weight| weight / divisor).collect();
        let sum: u64 = reduced.iter().map(|&weight| u64::from(weight)).sum();
        let sum = match u32::try_from(sum) {
            Ok(fits) if fits <= SUM_MAX => fits,
            _ => return Err(SplitFault::TooFine { sum, suggestion: rounded(&reduced, sum) }),
        };
        let before = sequence(&reduced, sum);
        Ok(Self { regions: by_region.keys().copied().zip(reduced).collect(), sum, before, written })
    }

    /// The number of a cell's `total` units that a member has. 0 for a member that has no part.
    #[inline]
    pub fn units(&self, region: MemberId, total: u64, salt: u32) -> u64 {
        let Some(row) = self.row(region) else { return 0 };
        if !is_house_monotone() {
            return self.largest_remainder(row, total);
        }
        let (turn, start) = self.places(salt);
        let count = self.regions.len() as u64;
        if total < count {
            let place = (row as u64 + count - turn) % count;
            return u64::from(place < total);
        }
        1 + self.following(row, total - count, start)
    }

    /// A member's part of a limit's rate, in [`RATE_PARTS`], rounded down: at least a thousandth. All
    /// members' parts together are never more than the whole. 0 for a member that has no part.
    #[inline]
    pub fn rate(&self, region: MemberId) -> u32 {
        let Some(row) = self.row(region) else { return 0 };
        // No more than RATE_PARTS, so that it fits.
        (u64::from(self.regions[row].1) * u64::from(RATE_PARTS) / u64::from(self.sum)) as u32
    }

    /// A member's part of a cell: units, and rate where the algorithm has one.
    #[inline]
    pub fn part(&self, region: MemberId, total: u64, salt: u32, has_rate: bool) -> Part {
        Part { rate: if has_rate { self.rate(region) } else { 0 }, units: self.units(region, total, salt) }
    }

    /// Every value that [`Split::units`] takes over all salts, in order, without gaps and at most
    /// [`DISTINCT_MAX`]: callers make one algorithm for each. Walks the whole sequence once.
    pub fn distinct(&self, region: MemberId, total: u64) -> SmallVec<[u64; DISTINCT_MAX]> {
        let Some(row) = self.row(region) else { return SmallVec::from_slice(&[0]) };
        if !is_house_monotone() {
            return SmallVec::from_slice(&[self.largest_remainder(row, total)]);
        }
        let count = self.regions.len() as u64;
        if total < count {
            return if total == 0 { SmallVec::from_slice(&[0]) } else { SmallVec::from_slice(&[0, 1]) };
        }
        let shares = (0..u64::from(self.sum)).map(|start| 1 + self.following(row, total - count, start));
        // Moving the start by one takes one unit away and adds one, so no value between is left out.
        let (least, most) = shares.fold((u64::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
        (least..=most).collect()
    }

    /// The part, of all members and salts, that takes longest to drain. If a whole bucket of `total` units
    /// drains in T, this part drains in `T · units · RATE_PARTS / (rate · total)`. A member's debt when its
    /// share is lowered is gone after that time. A share of one unit drains much more slowly than the whole.
    pub fn slowest(&self, total: u64) -> Part {
        let parts = self.regions.iter().map(|&(region, _)| Part {
            rate: self.rate(region),
            units: self.distinct(region, total).last().copied().unwrap_or(0),
        });
        let slower = |a: &Part, b: &Part| {
            (u128::from(a.units) * u128::from(b.rate)).cmp(&(u128::from(b.units) * u128::from(a.rate)))
        };
        parts.max_by(slower).unwrap_or_default()
    }

    /// The least rate that any member has, in parts.
    pub fn least_rate(&self) -> u32 {
        self.regions.iter().map(|&(region, _)| self.rate(region)).min().unwrap_or(1)
    }

    /// A member's weight as it was written. 0 for a member that has no part.
    pub fn weight(&self, region: MemberId) -> u32 {
        self.row(region).map_or(0, |row| self.written[row])
    }

    /// The members that have a part, by number.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = MemberId> + '_ {
        self.regions.iter().map(|&(region, _)| region)
    }

    /// A binary search: half a dozen steps for 64 members.
    #[inline]
    fn row(&self, region: MemberId) -> Option<usize> {
        self.regions.binary_search_by_key(&region, |&(region, _)| region).ok()
    }

    /// A member's units among the `steps` steps of the sequence from `start` on.
    #[inline]
    fn following(&self, row: usize, steps: u64, start: u64) -> u64 {
        let sum = u64::from(self.sum);
        let row_at = row * (self.sum as usize + 1);
        let before = |place: u64| u64::from(self.before[row_at + place as usize]);
        let end = start + steps % sum;
        let around = if end <= sum {
            before(end) - before(start)
        } else {
            before(sum) - before(start) + before(end - sum)
        };
        steps / sum * u64::from(self.regions[row].1) + around
    }

    /// The member that has a cell's first unit, and the place in the sequence where the other units begin.
    #[inline]
    fn places(&self, salt: u32) -> (u64, u64) {
        // Mixed, so that salts that differ little begin far apart.
        let x = mixed(u64::from(salt));
        let turn = ((x >> 32) * self.regions.len() as u64) >> 32;
        let start = ((x & 0xFFFF_FFFF) * u64::from(self.sum)) >> 32;
        (turn, start)
    }

    /// A wrong [`Split::units`], for tests: see [`Mutation::LargestRemainder`].
    #[cold]
    fn largest_remainder(&self, row: usize, total: u64) -> u64 {
        let (total, sum) = (u128::from(total), u128::from(self.sum));
        let whole = |weight: u32| total * u128::from(weight) / sum;
        let rest = |weight: u32| total * u128::from(weight) % sum;
        let left = total - self.regions.iter().map(|&(_, weight)| whole(weight)).sum::<u128>();
        let mine = self.regions[row].1;
        let ahead = self.regions.iter().enumerate().filter(|&(other, &(_, weight))| {
            (rest(weight), std::cmp::Reverse(other)) > (rest(mine), std::cmp::Reverse(row))
        });
        let extra = u64::from((ahead.count() as u128) < left);
        whole(mine) as u64 + extra
    }
}

/// No share falls when the total grows.
#[inline]
fn is_house_monotone() -> bool {
    !mutated(Mutation::LargestRemainder)
}

impl TryFrom<Vec<(MemberId, u32)>> for Split {
    type Error = SplitFault;

    fn try_from(weights: Vec<(MemberId, u32)>) -> Result<Self, SplitFault> {
        Self::new(&weights)
    }
}

impl From<Split> for Vec<(MemberId, u32)> {
    fn from(split: Split) -> Self {
        split.regions().zip(split.written.iter().copied()).collect()
    }
}

/// For every member, its units among the first 0 to `sum` steps of Tijdeman's sequence. At each step, among
/// the members that would not be too far ahead, the next unit goes to the one that would soonest be too far
/// behind. Numbers are times `sum · (2R − 2)`, which makes them whole.
fn sequence(weights: &[u32], sum: u32) -> Vec<u16> {
    let width = sum as usize + 1;
    let mut before = vec![0_u16; weights.len() * width];
    let scale = (2 * weights.len() as i64 - 2).max(1);
    let slack = i64::from(sum);
    let mut owed = vec![0_i64; weights.len()];
    for step in 1..width {
        for (owed, &weight) in owed.iter_mut().zip(weights) {
            *owed += i64::from(weight) * scale;
        }
        let most = i64::from(sum) * scale - slack;
        // The deadline is (most − owed) / weight; fractions are compared crosswise.
        let next = (0..weights.len())
            .filter(|&row| weights.len() == 1 || owed[row] >= slack)
            .min_by(|&a, &b| {
                ((most - owed[a]) * i64::from(weights[b])).cmp(&((most - owed[b]) * i64::from(weights[a])))
            })
            // The units owed to all members sum to one unit, so somebody is owed 1/R or more.
            .unwrap_or(0);
        owed[next] -= i64::from(sum) * scale;
        for row in 0..weights.len() {
            before[row * width + step] = before[row * width + step - 1] + u16::from(row == next);
        }
    }
    before
}

const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Weights that sum to [`SUM_MAX`] at most, near these.
fn rounded(weights: &[u32], sum: u64) -> String {
    let budget = u64::from(SUM_MAX) - weights.len() as u64;
    let near = weights.iter().map(|&weight| (1 + u64::from(weight) * budget / sum).to_string());
    near.collect::<Vec<_>>().join(", ")
}
