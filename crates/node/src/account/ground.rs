//! The numbers that a cell's account is kept by, and what they give it in a window.

use acequia_limits::{Algorithm, Part};
use acequia_rights::mutation::{Mutation, mutated};

use crate::local::Local;

/// What a cell's account is kept by: the limit's numbers for its cell, whole and local.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellContext<'a> {
    /// The whole limit's algorithm.
    pub(crate) global: &'a Algorithm,
    /// As this region enforces it.
    pub(crate) local: &'a Local,
    /// The cell's own number.
    pub(crate) salt: u32,
    /// Which of the limit's sets of numbers these are, if that is known: see [`crate::Catalogue`].
    pub(crate) which: Option<u16>,
    /// Whether the limit is in the catalogue now. Of one that was removed nothing is given away: that it is gone may be
    /// acknowledged.
    pub(crate) in_force: bool,
}

impl CellContext<'_> {
    /// Whether a window, by its end, is one of the cell's. Where cells have edges of their own, what is on disk may be counted in one of a
    /// cell that it was shared with, or in one by other clocks.
    pub(crate) fn is_own(&self, end_ns: u64) -> bool {
        match self.local.at(self.salt) {
            Algorithm::FixedWindow(window) => {
                window.is_edge(end_ns, self.salt) || mutated(Mutation::SharedWindowKept)
            }
            _ => true,
        }
    }

    /// What stands for the cell in a window, by its end; the least of all windows where that is none of its own.
    pub(crate) fn standing(&self, end_ns: u64) -> Part {
        self.local.part_of(self.salt, if self.is_own(end_ns) { end_ns } else { 0 })
    }
}
