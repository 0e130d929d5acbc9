//! Calls of pools that are not answered: what each was about, and by which numbers it was made.

use acequia_limits::{Algorithm, Part};
use acequia_rights::pool::Generation;

use crate::{
    account::{Account, Ground},
    sharing::CellKey,
};

/// What was asked, and is not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// How many versions of the catalogue had been adopted.
    pub(super) adopted: u64,
    pub(super) group: u16,
    pub(super) generation: Generation,
    pub(super) sent_ns: u64,
    pub(super) about: About,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum About {
    Group,
    /// What a cell holds with an end, by the number of its purse's call, and whether it wanted more; and what its pool had by this
    /// node's numbers.
    Part {
        key: CellKey,
        number: u64,
        wanted: bool,
        pool: Part,
    },
    /// A cell's window, by its end; and what the pools of windows had that had not begun.
    Window {
        key: CellKey,
        end_ns: u64,
        wanted: bool,
        later_units: u64,
    },
}

impl About {
    /// The cell, and its window.
    pub(super) const fn cell(&self) -> Option<(CellKey, u64, bool)> {
        match *self {
            Self::Group => None,
            Self::Part { key, wanted, .. } => Some((key, 0, wanted)),
            Self::Window { key, end_ns, wanted, .. } => Some((key, end_ns, wanted)),
        }
    }

    /// Whether it was asked by numbers that gave the pool more than there is now. A window that was open then has what it had.
    pub(super) fn is_of_more(&self, account: &Account, ground: &Ground<'_>) -> bool {
        let pool_of = |end_ns| ground.local.pool_of(ground.global, ground.salt, end_ns).unwrap_or_default();
        match *self {
            Self::Group => false,
            Self::Part { pool, .. } => {
                let now = pool_of(0);
                now.units < pool.units || now.rate < pool.rate
            }
            Self::Window { end_ns, later_units, .. } => {
                let is_later = |window| account.is_later(window, end_ns, ground.salt);
                pool_of(u64::MAX).units < later_units
                    && matches!(ground.global, Algorithm::FixedWindow(window) if is_later(window))
            }
        }
    }
}
