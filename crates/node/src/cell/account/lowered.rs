//! How a cell reduces what it holds of its region's pool when the pool is lowered.
//!
//! When a node adopts a smaller variant, it keeps the same fraction of the smaller pool, rounded down. All
//! nodes together then keep no more than there is: each holds a part of one pool, whatever total each node
//! goes by ([`acequia_rights::pool`]). The rest is cut at once, in the step that brings the cell to its new
//! variant. A lent part is cut when it is back. The next call tells the pool which of the cut units were
//! unspent.
//!
//! A window that began before keeps everything: it counts by the largest variant that was in force in it. For
//! a window that begins with the new variant or later, a pool may have granted more by the old variant, in an
//! answer that is still under way. The units of such an answer go back, until an answer to a call under the
//! new variant comes (`CellLease` in `pool/cell.rs`).

use acequia_limits::{
    Algorithm, Now, Part,
    window::{FixedWindow, Usage},
};
use acequia_rights::mutation::{Mutation, mutated};

use super::{Account, CellContext};

/// The pool by which a cell last computed its hold.
#[derive(Debug, Default)]
pub(super) struct Lowered {
    /// The whole pool when the hold was taken or last lowered. For windows, the pool of those that had not
    /// begun.
    under: Part,
    /// When the pool of windows with edges was lowered, if it ever was: wall clock.
    since_ns: Option<u64>,
    /// Whether the last call to the pool was made under another variant.
    is_told_of_other: bool,
    /// Unspent units among those that were cut since the last call, because the pool was lowered.
    pub(super) cut_unspent: u64,
}

impl Lowered {
    pub(super) const NONE: Self =
        Self { under: Part { rate: 0, units: 0 }, since_ns: None, is_told_of_other: false, cut_unspent: 0 };
}

impl Account {
    /// Adopts the present pool. If the pool is smaller than when the hold was taken, keeps the same fraction.
    /// The variant changed at `since_ns`, by the wall clock. Under the old variant, `free` units of the hold
    /// were unspent.
    pub(crate) fn keep_part(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        since_ns: u64,
        free: Option<u64>,
        now: Now,
    ) {
        let Some(windows) = &mut self.windows else { return };
        let pool = pool_of(context);
        let under = std::mem::replace(&mut windows.lowered.under, pool);
        // If the pool is lowered several times before the next call to it, the first time counts.
        let unseen_ns = windows.lowered.since_ns.filter(|_| windows.lowered.is_told_of_other);
        windows.lowered.is_told_of_other |= pool != under;
        if !is_lowered(pool, under) {
            return;
        }
        if let Algorithm::FixedWindow(window) = context.global {
            windows.lowered.since_ns = Some(unseen_ns.map_or(since_ns, |unseen_ns| unseen_ns.min(since_ns)));
            return self.keep_part_of_later(window, state, context, pool.units, under.units);
        }
        let (held, most) = (self.pooled(), self.windows().most.unwrap_or(self.pooled()));
        let rate = share_of(held.rate.min(most.rate).into(), pool.rate.into(), under.rate.into());
        let units = share_of(held.units.min(most.units), pool.units, under.units);
        let free = free.unwrap_or_else(|| self.free_of_pool(state, context, now));
        // The result is no more than the old rate, so it fits 32 bits.
        self.bound_pool(state, context, Part { rate: rate as u32, units }, free, now);
    }

    /// Does the same for windows that count by the new variant: `units` are in their pools now, and `under`
    /// were before.
    fn keep_part_of_later(
        &mut self,
        window: &FixedWindow,
        state: &[u64],
        context: &CellContext<'_>,
        units: u64,
        under: u64,
    ) {
        for withdrawn in self.withdrawn().to_vec() {
            if self.is_later(window, withdrawn.end_ns, context.salt) {
                let held = withdrawn.units();
                // Within the clock margin at its beginning, a window may have been charged already.
                let keeps = share_of(held, units, under).max(charged(state, context, withdrawn.end_ns));
                self.return_to_pool(context, withdrawn.end_ns, held.saturating_sub(keeps), held);
            }
        }
    }

    /// Notes that the hold is within the present pool.
    pub(crate) fn goes_by_pool(&mut self, context: &CellContext<'_>) {
        if let Some(windows) = &mut self.windows {
            windows.lowered.under = pool_of(context);
        }
    }

    /// Whether the pool has changed since this was last asked: the last call then was made under the old
    /// pool.
    pub(crate) fn take_told_of_other(&mut self) -> bool {
        self.windows.as_mut().is_some_and(|windows| std::mem::take(&mut windows.lowered.is_told_of_other))
    }

    /// Whether the window that ends at `end_ns` counts by the new variant, although the pool was larger
    /// before. A window that was open at the change does not.
    pub(crate) fn is_later(&self, window: &FixedWindow, end_ns: u64, salt: u32) -> bool {
        let begins_with = |since_ns: u64| window.begins(end_ns, salt) >= since_ns;
        end_ns > self.window()
            || self.windows().lowered.since_ns.is_some_and(begins_with) && shrinks_with_pool()
    }
}

/// A hold shrinks with its pool.
fn is_lowered(pool: Part, under: Part) -> bool {
    (pool.units < under.units || pool.rate < under.rate) && !mutated(Mutation::LeaseOutlivesAllocation)
}

/// A hold shrinks in the step that brings the cell to its new variant, not at the next call to the pool.
pub(crate) fn shrinks_with_pool() -> bool {
    !mutated(Mutation::LeaseShrinksLate)
}

/// The whole pool; for windows, the pool of those that have not begun.
fn pool_of(context: &CellContext<'_>) -> Part {
    let pool = match context.global {
        Algorithm::FixedWindow(_) => context.local.pool_of(context.global, context.salt, u64::MAX),
        _ => context.local.pool(context.global, context.salt),
    };
    pool.unwrap_or_default()
}

/// Units charged in the window that ends at `end_ns`: the open window, or the next.
pub(crate) fn charged(state: &[u64], context: &CellContext<'_>, end_ns: u64) -> u64 {
    let Algorithm::FixedWindow(window) = context.global else { return 0 };
    let charged = Usage::of(state);
    match end_ns {
        _ if end_ns == charged.end_ns => charged.used,
        _ if end_ns == window.end_after(charged.end_ns, context.salt) => charged.ahead,
        _ => 0,
    }
}

/// Scales `part` of `old` to the same fraction of `new`, rounded down.
fn share_of(part: u64, new: u64, old: u64) -> u64 {
    if new >= old {
        return part;
    }
    // The result is no more than `part`.
    (u128::from(part) * u128::from(new) / u128::from(old)) as u64
}
