//! What becomes of what a cell holds of its region's pool when the pool has less.
//!
//! As soon as a node goes by smaller numbers it keeps as large a part of the smaller pool, rounded down: together all keep no more than
//! there is, since what nodes hold are parts of one pool, whatever total each goes by ([`acequia_rights::pool`]). The rest is cut at
//! once, in the step that brings the cell to its new numbers, and the pool hears of it with the next call.
//!
//! Of a window that began before, everything stays: it counts by the largest numbers that were in force in it. Of one that begins with the
//! new numbers or after them a pool may have granted more by the old ones, and not been heard: the first that it says of such a window
//! is taken for that, and goes back.

use acequia_limits::{
    Algorithm, Now, Part,
    window::{FixedWindow, Usage},
};
use acequia_rights::broken::{Broken, broken};

use super::{AHEAD_NS, Account, Ground};

/// Longer than any window.
const LONGEST_NS: u64 = 400 * 86_400 * 1_000_000_000;

/// When there was less of a pool, last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Less {
    /// Since when that is so, and when the cell was brought to it: wall clock.
    pub(crate) since_ns: u64,
    pub(crate) at_ns: u64,
    /// The same of one before, if what was taken then may be heard of yet.
    pub(crate) unsure_from_ns: u64,
}

impl Account {
    /// Goes by what the pool has now. Where that is less than when what is held of it was taken, keeps as large a part of that. The numbers
    /// changed at `since_ns`, by the wall clock. Says whether there is less.
    pub(crate) fn keep_part(
        &mut self,
        words: &mut Vec<u64>,
        ground: &Ground<'_>,
        since_ns: u64,
        now: Now,
    ) -> bool {
        let Some(windows) = &mut self.windows else { return false };
        let pool = pool_of(ground);
        let under = std::mem::replace(&mut windows.under, pool);
        if pool.units >= under.units && pool.rate >= under.rate {
            return false;
        }
        windows.is_less_untold = true;
        let Algorithm::FixedWindow(window) = ground.global else {
            let held = self.windows().most.unwrap_or(self.pooled());
            let rate = share_of(held.rate.into(), pool.rate.into(), under.rate.into());
            let units = share_of(held.units, pool.units, under.units);
            if !broken(Broken::LeaseLendsBeyondLess) {
                // No more than it was.
                self.bound_pool(words, ground, Part { rate: rate as u32, units }, now);
            }
            return true;
        };
        let is_near = |less: &Less| less.at_ns.saturating_add(2 * AHEAD_NS) > now.wall_ns;
        let before = windows.less.filter(is_near).map_or(since_ns, |less| less.unsure_from_ns);
        windows.less = Some(Less { since_ns, at_ns: now.wall_ns, unsure_from_ns: before.min(since_ns) });
        for taken in self.taken().to_vec() {
            if !self.is_later(window, taken.end_ns, ground.salt) {
                continue;
            }
            let held = taken.units();
            // In the margin of its beginning a window may have been charged already.
            let keeps = share_of(held, pool.units, under.units).max(charged(words, ground, taken.end_ns));
            self.return_to_pool(ground, taken.end_ns, held.saturating_sub(keeps), held);
        }
        true
    }

    /// What is held is as much as may be of what the pool has now.
    pub(crate) fn goes_by_pool(&mut self, ground: &Ground<'_>) {
        if let Some(windows) = &mut self.windows {
            windows.under = pool_of(ground);
        }
    }

    /// When there was less, where windows have edges and that is so.
    pub(crate) fn less(&self) -> Option<Less> {
        self.windows().less
    }

    /// Whether there is less than when this was last asked: nothing that the pool was told, or has said, holds of later windows.
    pub(crate) fn take_less(&mut self) -> bool {
        self.windows.as_mut().is_some_and(|windows| std::mem::take(&mut windows.is_less_untold))
    }

    /// Whether of a window, by its end, there is what the numbers of today say: not of the one that was open when there was more.
    pub(crate) fn is_later(&self, window: &FixedWindow, end_ns: u64, salt: u32) -> bool {
        let begins_with = |less: Less| begins_ns(window, end_ns, salt) >= less.since_ns;
        end_ns > self.window() || self.less().is_some_and(begins_with) && !broken(Broken::LeaseShrinksLate)
    }
}

/// What the pool has; of windows those that have not begun.
fn pool_of(ground: &Ground<'_>) -> Part {
    let pool = match ground.global {
        Algorithm::FixedWindow(_) => ground.local.pool_of(ground.global, ground.salt, u64::MAX),
        _ => ground.local.pool(ground.global, ground.salt),
    };
    pool.unwrap_or_default()
}

/// Units of a window that were charged, by its end: of the open one, and of the next.
pub(crate) fn charged(words: &[u64], ground: &Ground<'_>, end_ns: u64) -> u64 {
    let Algorithm::FixedWindow(window) = ground.global else { return 0 };
    let charged = Usage::of(words);
    match end_ns {
        _ if end_ns == charged.end_ns => charged.used,
        _ if end_ns == window.end_after(charged.end_ns, ground.salt) => charged.ahead,
        _ => 0,
    }
}

/// When the window began that ends then: the first time of which that is the end.
pub(crate) fn begins_ns(window: &FixedWindow, end_ns: u64, salt: u32) -> u64 {
    let (mut before, mut within) = (end_ns.saturating_sub(LONGEST_NS), end_ns.saturating_sub(1));
    while within - before > 1 {
        let middle = before + (within - before) / 2;
        if window.end_after(middle, salt) == end_ns { within = middle } else { before = middle }
    }
    within
}

/// So much of what was a part of `old`, of `new`: rounded down.
fn share_of(part: u64, new: u64, old: u64) -> u64 {
    if new >= old {
        return part;
    }
    // No more than the part.
    (u128::from(part) * u128::from(new) / u128::from(old)) as u64
}
