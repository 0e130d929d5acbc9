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

/// A cell: the catalogue's slot of its limit, and its tag.
pub(crate) type CellKey = (u32, CellTag);
