//! What becomes of what a cell holds of its region's pool when the pool has less.
//!
//! As soon as a node goes by smaller numbers it keeps as large a part of the smaller pool, rounded down: together all keep no more than
//! there is, since what nodes hold are parts of one pool, whatever total each goes by ([`acequia_rights::pool`]). The rest is cut at
//! once, in the step that brings the cell to its new numbers, but for what is lent, and the pool hears with the next call what of it was
//! not used.
//!
//! Of a window that began before, everything stays: it counts by the largest numbers that were in force in it. Of one that begins with the
//! new numbers or after them a pool may have granted more by the old ones, and not been heard: what an answer brings goes back, until
//! it is one to a call of today (`Leased` in `leases/cell.rs`).

use acequia_limits::{
    Algorithm, Now, Part,
    window::{FixedWindow, Usage},
};
use acequia_rights::mutation::{Mutation, mutated};

use super::{Account, CellContext};

/// By what of its pool a cell goes.
#[derive(Debug, Default)]
pub(super) struct Lowered {
    /// What the pool had in all when what is held was taken, or lowered last; of windows, what those that had not begun had.
    under: Part,
    /// Since when there is less of it, of windows with edges, if ever there was more: wall clock.
    since_ns: Option<u64>,
    /// Whether what the pool was told is of other numbers.
    is_told_of_other: bool,
    /// Of what was cut since the last call, since there was less, units that were not spent.
    pub(super) cut_unspent: u64,
}

impl Lowered {
    pub(super) const NONE: Self =
        Self { under: Part { rate: 0, units: 0 }, since_ns: None, is_told_of_other: false, cut_unspent: 0 };
}

impl Account {
    /// Goes by what the pool has now. Where that is less than when what is held of it was taken, keeps as large a part of that. The numbers
    /// changed at `since_ns`, by the wall clock; by those of before so many units of what is held were `free`.
    pub(crate) fn keep_part(
        &mut self,
        words: &mut Vec<u64>,
        context: &CellContext<'_>,
        (since_ns, free): (u64, Option<u64>),
        now: Now,
    ) {
        let Some(windows) = &mut self.windows else { return };
        let pool = pool_of(context);
        let under = std::mem::replace(&mut windows.less.under, pool);
        // Until somebody has looked at what was asked for before, the first time counts at which there was less.
        let unseen_ns = windows.less.since_ns.filter(|_| windows.less.is_told_of_other);
        windows.less.is_told_of_other |= pool != under;
        if pool.units >= under.units && pool.rate >= under.rate || mutated(Mutation::LeaseOutlivesTerms) {
            return;
        }
        if let Algorithm::FixedWindow(window) = context.global {
            windows.less.since_ns = Some(unseen_ns.map_or(since_ns, |unseen_ns| unseen_ns.min(since_ns)));
            return self.keep_part_of_later((window, words), context, (pool.units, under.units));
        }
        let (held, most) = (self.pooled(), self.windows().most.unwrap_or(self.pooled()));
        let rate = share_of(held.rate.min(most.rate).into(), pool.rate.into(), under.rate.into());
        let units = share_of(held.units.min(most.units), pool.units, under.units);
        if !mutated(Mutation::LeaseLendsBeyondLess) {
            let free = free.unwrap_or_else(|| self.free_of_pool(words, context, now));
            // No more than it was.
            self.bound_pool(words, context, (Part { rate: rate as u32, units }, free), now);
        }
    }

    /// The same of windows that count by these numbers, of which the pools have so many units now, and had.
    fn keep_part_of_later(
        &mut self,
        (window, words): (&FixedWindow, &[u64]),
        context: &CellContext<'_>,
        (units, under): (u64, u64),
    ) {
        for withdrawn in self.withdrawn().to_vec() {
            if self.is_later(window, withdrawn.end_ns, context.salt) {
                let held = withdrawn.units();
                // In the margin of its beginning a window may have been charged already.
                let keeps = share_of(held, units, under).max(charged(words, context, withdrawn.end_ns));
                self.return_to_pool(context, withdrawn.end_ns, held.saturating_sub(keeps), held);
            }
        }
    }

    /// What is held is as much as may be of what the pool has now.
    pub(crate) fn goes_by_pool(&mut self, context: &CellContext<'_>) {
        if let Some(windows) = &mut self.windows {
            windows.less.under = pool_of(context);
        }
    }

    /// Whether the pool has something else than when this was last asked: what it was told is of before.
    pub(crate) fn take_told_of_other(&mut self) -> bool {
        self.windows.as_mut().is_some_and(|windows| std::mem::take(&mut windows.less.is_told_of_other))
    }

    /// Whether a window, by its end, counts by the numbers of today, though there was more: not if it was open then.
    pub(crate) fn is_later(&self, window: &FixedWindow, end_ns: u64, salt: u32) -> bool {
        let begins_with = |since_ns: u64| window.begins(end_ns, salt) >= since_ns;
        end_ns > self.window()
            || self.windows().less.since_ns.is_some_and(begins_with) && !mutated(Mutation::LeaseShrinksLate)
    }
}

/// What the pool has; of windows those that have not begun.
fn pool_of(context: &CellContext<'_>) -> Part {
    let pool = match context.global {
        Algorithm::FixedWindow(_) => context.local.pool_of(context.global, context.salt, u64::MAX),
        _ => context.local.pool(context.global, context.salt),
    };
    pool.unwrap_or_default()
}

/// Units of a window that were charged, by its end: of the open one, and of the next.
pub(crate) fn charged(words: &[u64], context: &CellContext<'_>, end_ns: u64) -> u64 {
    let Algorithm::FixedWindow(window) = context.global else { return 0 };
    let charged = Usage::of(words);
    match end_ns {
        _ if end_ns == charged.end_ns => charged.used,
        _ if end_ns == window.end_after(charged.end_ns, context.salt) => charged.ahead,
        _ => 0,
    }
}

/// So much of what was a part of `old`, of `new`: rounded down.
fn share_of(part: u64, new: u64, old: u64) -> u64 {
    if new >= old {
        return part;
    }
    // No more than the part.
    (u128::from(part) * u128::from(new) / u128::from(old)) as u64
}
