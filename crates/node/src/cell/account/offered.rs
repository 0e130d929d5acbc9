//! The demand on a cell between two rebalances, and who rebalances it.

use acequia_limits::Part;

use super::Account;

/// Who rebalances a cell and sees the demand since the last time. A cell keeps its account as long as one
/// rebalancer uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rebalancer {
    /// Moves units between regions.
    Regions,
    /// Takes units from the region's pools.
    Pools,
}

/// The demand since the last rebalance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offered {
    pub(crate) units: u64,
    pub(crate) events: u32,
    /// The total cost of denied requests; and the largest, including what a class leaves to others.
    pub(crate) missed: u32,
    pub(crate) denied: u64,
    /// The largest cost of all requests, and the smallest.
    pub(crate) largest: u64,
    pub(crate) smallest: u64,
}

impl Rebalancer {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Regions => Self::Pools,
            Self::Pools => Self::Regions,
        }
    }
}

impl Offered {
    pub(super) const NONE: Self = Self { units: 0, events: 0, missed: 0, denied: 0, largest: 0, smallest: 0 };

    /// Adds the two demands.
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

impl Account {
    /// Whether there was any demand since the last rebalance.
    pub(crate) fn was_asked(&self) -> bool {
        let unseen = self.windows().unseen.iter().zip(self.lookers);
        self.offered.events > 0 || unseen.into_iter().any(|(unseen, looks)| looks && unseen.events > 0)
    }

    /// Notes that a rebalance is waiting.
    pub(crate) const fn flag(&mut self) {
        self.flagged = true;
    }

    /// Whether a rebalance must be called for because nobody rebalances the cell yet.
    pub(crate) fn calls_first(&mut self) -> bool {
        let calls = self.lookers == [false; 2] && !self.flagged;
        self.flagged |= calls;
        calls
    }

    /// Starts a rebalance: returns the demand since this rebalancer's last one.
    pub(crate) fn take_offered(&mut self, by: Rebalancer) -> Offered {
        self.flagged = false;
        self.lookers[by as usize] = true;
        let offered = std::mem::take(&mut self.offered);
        let looks = self.lookers[by.other() as usize];
        if looks && offered.events > 0 {
            let unseen = &mut self.windows_mut().unseen[by.other() as usize];
            *unseen = unseen.and(offered);
        } else if by == Rebalancer::Pools && offered.events > 0 {
            // If the pool is empty, other regions may be asked for the largest request that was denied. The
            // entry does not tell how often that amount is asked for.
            let (units, missed) = (offered.denied, u32::try_from(offered.denied).unwrap_or(u32::MAX));
            let one = Offered { units, events: 1, missed, ..offered };
            let unseen = if offered.denied > 0 { one } else { Offered::NONE };
            self.windows_mut().unseen[Rebalancer::Regions as usize] = unseen;
        }
        match &mut self.windows {
            Some(windows) => std::mem::take(&mut windows.unseen[by as usize]).and(offered),
            None => offered,
        }
    }

    /// Ends one rebalancer's use. Says whether no rebalancer is left: the account may be dropped then.
    pub(crate) fn leave_alone(&mut self, by: Rebalancer) -> bool {
        self.lookers[by as usize] = false;
        if let Some(windows) = &mut self.windows {
            windows.unseen[by as usize] = Offered::NONE;
            match by {
                Rebalancer::Pools => windows.within_reach = None,
                Rebalancer::Regions => windows.for_others = Part::default(),
            }
        }
        self.lookers == [false; 2]
    }
}
