//! One cell: its place in a table, its state, and its account.
//!
//! [`shard`] holds the cells of one lock within a bound of memory. [`table`] finds a cell by its tag. A cell that
//! only this node charges takes 32 bytes in its table. Other cells have an [`account`] on the heap, with their
//! loans, transfers and lease.

pub(crate) mod account;
pub(crate) mod locked_cell;
pub(crate) mod overflow;
mod pages;
pub(crate) mod record;
pub(crate) mod shard;
pub(crate) mod table;

use acequia_limits::CellTag;

/// A cell. Cells are in order of their limits' slots, then of their tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CellKey {
    /// The slot of the cell's limit in the catalogue.
    pub(crate) slot: u32,
    pub(crate) tag: CellTag,
}
