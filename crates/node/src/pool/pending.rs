//! Calls to pools without an answer: what each is about, and by which variant it was made.

use acequia_limits::Part;
use acequia_rights::pool::Generation;

use crate::{cell::account::CellContext, regions::CellKey};

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// How many versions of the catalogue had been adopted when the call was made.
    pub(super) adopted: u64,
    pub(super) group: u16,
    pub(super) generation: Generation,
    pub(super) sent_ns: u64,
    pub(super) about: About,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum About {
    Group,
    /// A cell's part with an end: the number of its lease balance's call, whether it wanted more, and what
    /// the pool had by this node's variant.
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

    /// Whether the call was about a part with an end, when the pool had more than now. Each cell knows this
    /// about windows itself.
    pub(super) fn is_of_more(&self, context: &CellContext<'_>) -> bool {
        let Self::Part { pool, .. } = *self else { return false };
        let now = context.local.pool_of(context.global, context.salt, 0).unwrap_or_default();
        now.units < pool.units || now.rate < pool.rate
    }
}
