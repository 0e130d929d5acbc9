//! Calls of pools that are not answered: what each was about, and by which numbers it was made.

use acequia_limits::Part;
use acequia_rights::pool::Generation;

use crate::{account::CellContext, sharing::CellKey};

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
    /// A cell's window, by its end.
    Window {
        key: CellKey,
        end_ns: u64,
        wanted: bool,
    },
}

impl About {
    /// The cell, and its window.
    pub(super) const fn cell(&self) -> Option<(CellKey, u64, bool)> {
        match *self {
            Self::Group => None,
            Self::Part { key, wanted, .. } => Some((key, 0, wanted)),
            Self::Window { key, end_ns, wanted } => Some((key, end_ns, wanted)),
        }
    }

    /// Whether a part with an end was asked for by numbers that gave the pool more than there is now. Of windows each cell knows itself.
    pub(super) fn is_of_more(&self, context: &CellContext<'_>) -> bool {
        let Self::Part { pool, .. } = *self else { return false };
        let now = context.local.pool_of(context.global, context.salt, 0).unwrap_or_default();
        now.units < pool.units || now.rate < pool.rate
    }
}
