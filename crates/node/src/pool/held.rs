//! How many units this node holds of its region's pools, by limit. The sums are kept as cells are rebalanced,
//! so that a reader need not walk over the cells.

use std::collections::BTreeMap;

use acequia_limits::Algorithm;

use crate::cell::account::{Account, CellContext, charged};

/// By the limit's slot, without limits that hold nothing. The sum of many cells may exceed a `u64`.
#[derive(Debug, Default)]
pub(super) struct HeldByLimit(BTreeMap<u32, u128>);

impl HeldByLimit {
    /// A cell of a limit held `before` at its last rebalance, and holds `units` now.
    pub(super) fn change(&mut self, slot: u32, before: u64, units: u64) {
        if before == units {
            return;
        }
        let all = self.0.entry(slot).or_default();
        // The cell's earlier units were added when they were seen.
        *all = *all - u128::from(before) + u128::from(units);
        if *all == 0 {
            self.0.remove(&slot);
        }
    }

    pub(super) fn units(&self) -> BTreeMap<u32, u64> {
        self.0.iter().map(|(slot, units)| (*slot, u64::try_from(*units).unwrap_or(u64::MAX))).collect()
    }
}

/// Units of its pool that a cell holds. For windows, open or later: units that were taken, and neither given
/// back nor charged. For buckets and sliding windows: the leased part, in which charged units come back with
/// time.
pub(super) fn held_of(account: &Account, state: &[u64], context: &CellContext<'_>) -> u64 {
    if !matches!(context.global, Algorithm::FixedWindow(_)) {
        return account.pooled().units;
    }
    let open_ns = account.window();
    let lasting = account.withdrawn().iter().filter(|withdrawn| withdrawn.end_ns >= open_ns);
    let unspent =
        lasting.map(|withdrawn| withdrawn.units().saturating_sub(charged(state, context, withdrawn.end_ns)));
    unspent.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_held_of_a_limit_are_the_sum_over_its_cells() {
        let mut held = HeldByLimit::default();
        held.change(1, 0, 7);
        held.change(1, 0, 5);
        held.change(2, 0, u64::MAX);
        held.change(2, 0, u64::MAX);
        assert_eq!(held.units(), [(1, 12), (2, u64::MAX)].into());
        held.change(1, 7, 9);
        held.change(2, u64::MAX, 3);
        assert_eq!(held.units(), [(1, 14), (2, u64::MAX)].into());
        held.change(1, 9, 0);
        held.change(1, 5, 0);
        held.change(2, 3, 0);
        assert_eq!(held.units(), [(2, u64::MAX)].into());
        held.change(2, u64::MAX, 0);
        assert!(held.units().is_empty());
    }
}
