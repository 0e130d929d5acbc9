//! Of which groups the store is lost, for whoever decides: threads ask while others hold the leases' lock. And what was decided meanwhile.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use acequia_limits::CellTag;

use super::{GROUPS, group_of};

const WORDS: usize = (GROUPS / 64) as usize;

/// A bit for each group. Whoever reads an old one decides as a moment before, which is as good.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    groups: [AtomicU64; WORDS],
    /// How many of them are set.
    lost: AtomicU32,
    /// What limits decided of cells whose group is lost: those that allowed, and those that denied.
    decided: [AtomicU64; 2],
}

impl Losses {
    /// Whether any group is lost: all that whoever decides looks at while none is.
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

    /// Counts what a limit decided of a cell whose group is lost.
    pub(crate) fn count(&self, is_allowed: bool) {
        self.decided[usize::from(!is_allowed)].fetch_add(1, Ordering::Relaxed);
    }

    /// How often it allowed and denied, since the start.
    pub(super) fn decided(&self) -> [u64; 2] {
        self.decided.each_ref().map(|count| count.load(Ordering::Relaxed))
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
            losses.set(group, true);
            assert!(losses.any());
            let lost: Vec<u16> = (0..GROUPS).filter(|group| losses.is_lost(cell(*group))).collect();
            assert_eq!(lost, [group]);
            losses.set(group, false);
            losses.set(group, false);
            assert!(!losses.is_lost(cell(group)) && !losses.any());
        }
    }

    #[test]
    fn some_are_lost_until_the_last_is_found() {
        let losses = Losses::default();
        (0..GROUPS).for_each(|group| losses.set(group, true));
        (1..GROUPS).for_each(|group| losses.set(group, false));
        assert!(losses.any());
        losses.set(0, false);
        assert!(!losses.any());
    }

    #[test]
    fn what_is_decided_is_counted_by_what_it_was() {
        let losses = Losses::default();
        [true, false, true].into_iter().for_each(|is_allowed| losses.count(is_allowed));
        assert_eq!(losses.decided(), [2, 1]);
    }
}
