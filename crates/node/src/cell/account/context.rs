//! The variant that a cell's account uses, and what the variant gives the cell in a window.

use acequia_limits::{Algorithm, Part};
use acequia_rights::mutation::{Mutation, mutated};

use crate::catalogue::local::Local;

/// The context of a cell's account: the limit's variant for the cell, whole and local.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellContext<'a> {
    /// The whole limit's algorithm.
    pub(crate) global: &'a Algorithm,
    /// The algorithm as this region enforces it.
    pub(crate) local: &'a Local,
    /// The cell's own salt.
    pub(crate) salt: u32,
    /// Which of the limit's variants this is, if known: see [`crate::Catalogue`].
    pub(crate) which: Option<u16>,
    /// Whether the limit is in the catalogue now. Nothing of a removed limit is given away: its removal may
    /// already be acknowledged.
    pub(crate) in_force: bool,
}

impl CellContext<'_> {
    /// Whether a window that ends at `end_ns` is one of the cell's own. If cells have edges of their own, the
    /// state on disk may count in a window of a cell that shared it, or in one by other clocks.
    pub(crate) fn is_own(&self, end_ns: u64) -> bool {
        match self.local.at(self.salt) {
            Algorithm::FixedWindow(window) => {
                window.is_edge(end_ns, self.salt) || mutated(Mutation::SharedWindowKept)
            }
            _ => true,
        }
    }

    /// The cell's standing share in the window that ends at `end_ns`; the least of all windows if that window
    /// is not the cell's own.
    pub(crate) fn standing(&self, end_ns: u64) -> Part {
        self.local.part_of(self.salt, if self.is_own(end_ns) { end_ns } else { 0 })
    }
}
