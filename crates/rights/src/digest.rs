//! Digests: two nodes find out in a few bytes whether they know the same rows. **Nodes that know the same
//! rows have equal digests, in whatever order they learned them; where the digests of a bucket differ, so do
//! its rows.**
//!
//! A row only grows, and each is a maximum. So sending a row again is always safe, and sending all rows is
//! always enough. After a long absence that could be many rows, nearly all of them known. So each end adds
//! up, by buckets of rows, a hash of every row that concerns both. The ends compare the sums, and send again
//! only the rows of buckets that differ.
//!
//! *Proof.* A bucket is the sum, modulo 2^64, of a hash of each of its rows; sums do not depend on the order.
//! ∎
//!
//! The converse is only very likely: two different sets of rows have equal sums with a probability of about
//! 2^-64. Peers do not lie, so nobody looks for such sets. At worst, rows are not sent again before they next
//! grow.
//!
//! No digest contains loans. They end by themselves, on both sides, and a renewal says which loans go on
//! (`session`).

use serde::{Deserialize, Serialize};

use crate::splitmix::mixed;

/// The number of buckets of a digest.
pub const BUCKETS: usize = 16;

/// The hashes of some rows, summed by bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest([u64; BUCKETS]);

/// A set of a digest's buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buckets(u16);

impl Digest {
    /// Adds a row, by its id and its values. Each row at most once.
    pub fn add(&mut self, row: u128, says: [u64; 2]) {
        let hash = says.into_iter().fold(hash_of(row), |hash, word| mixed(hash ^ word));
        let bucket = &mut self.0[bucket_of(row)];
        *bucket = bucket.wrapping_add(hash);
    }

    /// The buckets in which two nodes know different rows.
    #[must_use]
    pub fn differing(&self, other: &Self) -> Buckets {
        let differs = |(at, (own, theirs)): (usize, (&u64, &u64))| u16::from(own != theirs) << at;
        Buckets(self.0.iter().zip(&other.0).enumerate().map(differs).fold(0, |all, one| all | one))
    }
}

impl Buckets {
    /// Whether a row is in one of them.
    #[must_use]
    pub fn have(self, row: u128) -> bool {
        self.0 >> bucket_of(row) & 1 == 1
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

fn bucket_of(row: u128) -> usize {
    (hash_of(row) >> 60) as usize
}

fn hash_of(row: u128) -> u64 {
    mixed(mixed(row as u64) ^ (row >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Rows = BTreeMap<u128, [u64; 2]>;

    fn digest<'a>(rows: impl Iterator<Item = (&'a u128, &'a [u64; 2])>) -> Digest {
        let mut digest = Digest::default();
        rows.for_each(|(row, says)| digest.add(*row, *says));
        digest
    }

    /// Small numbers, so that sets overlap and rows look alike.
    fn rows() -> impl Strategy<Value = Rows> {
        prop::collection::btree_map(0..40_u128, [0..4_u64, 0..4_u64], 0..40)
    }

    proptest! {
        #[test]
        fn digests_differ_in_buckets_whose_rows_differ((a, b) in (rows(), rows())) {
            let differing = digest(a.iter()).differing(&digest(b.iter().rev()));
            for row in 0..40_u128 {
                let same_bucket = |rows: &Rows| -> Rows {
                    rows.iter().filter(|(other, _)| bucket_of(**other) == bucket_of(row)).map(|(r, s)| (*r, *s)).collect()
                };
                prop_assert_eq!(differing.have(row), same_bucket(&a) != same_bucket(&b));
            }
            prop_assert_eq!(differing.is_empty(), a == b);
        }
    }

    #[test]
    fn rows_spread_over_the_buckets() {
        let mut full = [0; BUCKETS];
        (0..16_000_u128).for_each(|row| full[bucket_of(row << 64)] += 1);
        assert!(full.iter().all(|rows| (800..1_200).contains(rows)), "{full:?}");
    }
}
