//! One cell: its place in a table, its state, and what other regions and the region's pool have to do with it.
//!
//! [`shard`] holds the cells of one lock within a bound of memory, [`table`] finds them by tag. A cell that only this node
//! charges is 32 bytes in its table. Others have an [`account`] on the heap: loans, transfers and a lease.

pub(crate) mod account;
pub(crate) mod locked_cell;
pub(crate) mod overflow;
mod pages;
pub(crate) mod record;
pub(crate) mod shard;
pub(crate) mod table;
