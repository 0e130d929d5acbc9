//! Who writes a row.

use serde::{Deserialize, Serialize};

/// A region, by the number that the catalogue gave it. Numbers are never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Region(pub u16);

/// One writer of rows: a node of a region, and how often it has begun anew. A node that lost its disk, or was
/// evicted, comes back as a later incarnation, which owns nothing of what the earlier one had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Writer {
    /// Its region.
    pub region: Region,
    /// Its number in the region.
    pub node: u16,
    /// Counts up whenever the node begins with nothing. Never reused.
    pub incarnation: u32,
}
