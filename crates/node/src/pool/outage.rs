//! The groups in a store outage, for decisions: threads ask while others hold the lock on the leases. Also
//! counts what was decided meanwhile.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use acequia_limits::CellTag;

use super::{GROUPS, group_of};

const WORDS: usize = (GROUPS / 64) as usize;

/// A bit for each group. A decision by a stale bit is as good as one a moment earlier.
#[derive(Debug, Default)]
pub(crate) struct StoreOutages {
    groups: [AtomicU64; WORDS],
    /// How many bits are set.
    lost: AtomicU32,
    /// How often limits decided about cells in an outage: allowed, and denied.
    decided: [AtomicU64; 2],
}

impl StoreOutages {
    /// Whether any group is lost: the only check of a decision while none is.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.lost.load(Ordering::Relaxed) > 0
    }

    /// Whether nobody answers for the cell's pool.
    #[inline]
    pub(crate) fn is_lost(&self, tag: CellTag) -> bool {
        let group = group_of(tag);
        self.groups[usize::from(group / 64)].load(Ordering::Relaxed) >> (group % 64) & 1 == 1
    }

    pub(super) fn set(&self, group: u16, is_lost: bool) {
        let (word, bit) = (&self.groups[usize::from(group / 64)], 1 << (group % 64));
        let before = if is_lost {
            word.fetch_or(bit, Ordering::Relaxed)
        } else {
            word.fetch_and(!bit, Ordering::Relaxed)
        };
        match (before & bit > 0, is_lost) {
            (false, true) => self.lost.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.lost.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }

    /// Counts what a limit decided about a cell whose group is lost.
    pub(crate) fn count(&self, is_allowed: bool) {
        self.decided[usize::from(!is_allowed)].fetch_add(1, Ordering::Relaxed);
    }

    /// How often limits allowed and denied, since the start.
    pub(super) fn decided(&self) -> [u64; 2] {
        self.decided.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outage_of_one_group_affects_no_other_group() {
        let store_outages = StoreOutages::default();
        for group in [0, 63, 64, GROUPS - 1] {
            let cell = |group: u16| CellTag(u128::from(GROUPS) * 7 + u128::from(group));
            store_outages.set(group, true);
            store_outages.set(group, true);
            assert!(store_outages.any());
            let lost: Vec<u16> = (0..GROUPS).filter(|group| store_outages.is_lost(cell(*group))).collect();
            assert_eq!(lost, [group]);
            store_outages.set(group, false);
            store_outages.set(group, false);
            assert!(!store_outages.is_lost(cell(group)) && !store_outages.any());
        }
    }

    #[test]
    fn an_outage_lasts_until_the_last_group_is_back() {
        let store_outages = StoreOutages::default();
        (0..GROUPS).for_each(|group| store_outages.set(group, true));
        (1..GROUPS).for_each(|group| store_outages.set(group, false));
        assert!(store_outages.any());
        store_outages.set(0, false);
        assert!(!store_outages.any());
    }

    #[test]
    fn decisions_in_an_outage_are_counted_by_outcome() {
        let store_outages = StoreOutages::default();
        [true, false, true].into_iter().for_each(|is_allowed| store_outages.count(is_allowed));
        assert_eq!(store_outages.decided(), [2, 1]);
    }
}
