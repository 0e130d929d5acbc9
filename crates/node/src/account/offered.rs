//! What a cell was asked for between two looks, and who looks.

/// Who looks at a cell now and then, and sees what was asked for meanwhile. A cell has its account for as long as one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looker {
    /// What moves between regions.
    Regions,
    /// What is taken of the region's pools.
    Pools,
}

/// What was asked for since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offered {
    pub(crate) units: u64,
    pub(crate) events: u32,
    /// Of what was denied, the costs of all; and the largest, with what a class leaves to others.
    pub(crate) missed: u32,
    pub(crate) denied: u64,
    /// The largest cost of all, and the smallest.
    pub(crate) largest: u64,
    pub(crate) smallest: u64,
}

impl Looker {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Regions => Self::Pools,
            Self::Pools => Self::Regions,
        }
    }
}

impl Offered {
    pub(super) const NONE: Self = Self { units: 0, events: 0, missed: 0, denied: 0, largest: 0, smallest: 0 };

    /// Both.
    pub(super) fn and(self, other: Self) -> Self {
        let smallest = match (self.events, other.events) {
            (0, _) => other.smallest,
            (_, 0) => self.smallest,
            _ => self.smallest.min(other.smallest),
        };
        Self {
            units: self.units.saturating_add(other.units),
            events: self.events.saturating_add(other.events),
            missed: self.missed.saturating_add(other.missed),
            denied: self.denied.max(other.denied),
            largest: self.largest.max(other.largest),
            smallest,
        }
    }
}
