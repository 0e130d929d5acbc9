//! Of which groups the store is lost, for whoever decides: threads ask while others hold the leases' lock.

use std::sync::atomic::{AtomicU64, Ordering};

use acequia_limits::CellTag;

use super::{GROUPS, group_of};

const WORDS: usize = (GROUPS / 64) as usize;

/// A bit for each group. Whoever reads an old one decides as a moment before, which is as good.
#[derive(Debug, Default)]
pub(crate) struct Losses([AtomicU64; WORDS]);

impl Losses {
    /// Whether nobody answers for the cell's pool.
    #[inline]
    pub(crate) fn is_lost(&self, tag: CellTag) -> bool {
        let group = group_of(tag);
        self.0[usize::from(group / 64)].load(Ordering::Relaxed) >> (group % 64) & 1 == 1
    }

    pub(super) fn set(&self, group: u16, is_lost: bool) {
        let (word, bit) = (&self.0[usize::from(group / 64)], 1 << (group % 64));
        if is_lost {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_is_lost_and_found_by_itself() {
        let losses = Losses::default();
        for group in [0, 63, 64, GROUPS - 1] {
            let cell = |group: u16| CellTag(u128::from(GROUPS) * 7 + u128::from(group));
            losses.set(group, true);
            let lost: Vec<u16> = (0..GROUPS).filter(|group| losses.is_lost(cell(*group))).collect();
            assert_eq!(lost, [group]);
            losses.set(group, false);
            assert!(!losses.is_lost(cell(group)));
        }
    }
}
