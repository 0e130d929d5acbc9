//! A filter of cells that is asked without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{cell::CellKey, settings::SETTINGS};

/// Bits of the filter: few other cells share a bit while `SETTINGS.forward.cells_max` cells are remembered.
const FILTER_BITS: u64 = SETTINGS.forward.cells_max as u64 * 8;

/// A set of cells that may wrongly report others, too.
#[derive(Debug)]
pub(super) struct CellFilter(Box<[AtomicU64]>);

impl Default for CellFilter {
    fn default() -> Self {
        Self((0..FILTER_BITS / 64).map(|_| AtomicU64::new(0)).collect())
    }
}

impl CellFilter {
    fn place(&self, CellKey { slot, tag }: CellKey) -> (usize, u64) {
        let tag = tag.0 ^ u128::from(slot);
        let place = mixed(tag as u64 ^ mixed((tag >> 64) as u64)) % FILTER_BITS;
        ((place / 64) as usize, 1 << (place % 64))
    }

    pub(super) fn may_have(&self, key: CellKey) -> bool {
        let (word, bit) = self.place(key);
        self.0[word].load(Ordering::Relaxed) & bit > 0
    }

    pub(super) fn set(&self, key: CellKey) {
        let (word, bit) = self.place(key);
        self.0[word].fetch_or(bit, Ordering::Relaxed);
    }

    /// Replaces the set by these cells. Callers of [`Self::set`] hold the same lock.
    pub(super) fn set_all<'k>(&self, keys: impl Iterator<Item = &'k CellKey>) {
        let mut words = vec![0; self.0.len()];
        for key in keys {
            let (word, bit) = self.place(*key);
            words[word] |= bit;
        }
        for (place, word) in self.0.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }
}

/// A number that looks unlike those of its neighbours (splitmix64).
pub(super) const fn mixed(number: u64) -> u64 {
    let x = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
