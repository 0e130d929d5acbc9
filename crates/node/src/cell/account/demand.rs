//! The demand on a cell between two rebalances, and who rebalances it.

use std::num::NonZeroU64;

use acequia_limits::{Now, Part, Verdict};

use super::Account;

use crate::settings::SETTINGS;

/// How long it is worth waiting for units from other regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpectedWait {
    /// How long requested units may take to come; 0 if no region can be reached.
    pub(crate) lasts_ns: u64,
    /// When a region last became reachable after it had been unreachable: steady clock.
    pub(crate) met_ns: u64,
}

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

/// The demand since the last rebalance, and when units were missed.
#[derive(Debug, Default)]
pub(super) struct AccountDemand {
    offered: Offered,
    /// If fewer units than this remain, a rebalance is worthwhile at once.
    low_water: u64,
    missed: Option<MissedTimes>,
}

/// When units were missed: steady clock.
#[derive(Clone, Copy, Debug)]
struct MissedTimes {
    since_ns: NonZeroU64,
    last_ns: u64,
}

impl AccountDemand {
    /// Notes that units are missed.
    fn miss(&mut self, now: Now) {
        let last_ns = now.steady_ns;
        let goes_on =
            |missed: &MissedTimes| last_ns.saturating_sub(missed.last_ns) <= SETTINGS.decide.missed_ns;
        let since_ns = self.missed.filter(goes_on).map(|missed| missed.since_ns);
        let since_ns = since_ns.or(NonZeroU64::new(last_ns));
        self.missed = since_ns.map(|since_ns| MissedTimes { since_ns, last_ns });
    }
}

impl Account {
    /// Notes a request's units, and the units that must be there for it to pass. Says, once, whether a
    /// rebalance is due.
    #[inline]
    pub(crate) fn offer(&mut self, units: u64, needed: u64, verdict: &Verdict, now: Now) -> bool {
        let AccountDemand { offered, low_water, .. } = &mut self.demand;
        offered.units = offered.units.saturating_add(units);
        let is_first = offered.events == 0;
        offered.smallest = if is_first { needed } else { offered.smallest.min(needed) };
        offered.largest = offered.largest.max(needed);
        offered.events = offered.events.saturating_add(1);
        if !verdict.allowed {
            let cost = u32::try_from(units).unwrap_or(u32::MAX);
            offered.missed = offered.missed.saturating_add(cost);
            offered.denied = offered.denied.max(needed);
        }
        let calls = !self.is_flagged && (!verdict.allowed || verdict.remaining < *low_water);
        self.is_flagged |= calls;
        if !verdict.allowed {
            self.demand.miss(now);
        }
        calls
    }

    /// Sets how few remaining units shall call for a rebalance.
    pub(crate) const fn set_low_water(&mut self, units: u64) {
        self.demand.low_water = units;
    }

    /// How long units that are missed here may still come, in nanoseconds. The units come soon after they
    /// were first missed, or soon after other regions became reachable again, or not at all.
    pub(crate) fn expected_wait_ns(&self, expected_wait: &ExpectedWait, now: Now) -> u64 {
        let missed_ns = self.demand.missed.map_or(0, |missed| missed.since_ns.get());
        let since_ns = missed_ns.max(expected_wait.met_ns);
        since_ns.saturating_add(expected_wait.lasts_ns).saturating_sub(now.steady_ns)
    }

    /// Units came, so more may come if more are missed.
    pub(crate) const fn expect_units_anew(&mut self) {
        self.demand.missed = None;
    }

    /// Whether there was any demand since the last rebalance.
    pub(crate) fn was_asked(&self) -> bool {
        let unseen = self.windows().unseen.iter().zip(self.rebalancers);
        self.demand.offered.events > 0
            || unseen.into_iter().any(|(unseen, rebalances)| rebalances && unseen.events > 0)
    }

    /// Notes that a rebalance is waiting.
    pub(crate) const fn flag(&mut self) {
        self.is_flagged = true;
    }

    /// Whether a rebalance must be called for because nobody rebalances the cell yet.
    pub(crate) fn calls_first(&mut self) -> bool {
        let calls = self.rebalancers == [false; 2] && !self.is_flagged;
        self.is_flagged |= calls;
        calls
    }

    /// Starts a rebalance: returns the demand since this rebalancer's last one.
    pub(crate) fn take_offered(&mut self, by: Rebalancer) -> Offered {
        self.is_flagged = false;
        self.rebalancers[by as usize] = true;
        let offered = std::mem::take(&mut self.demand.offered);
        if self.rebalancers[by.other() as usize] && offered.events > 0 {
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
        self.rebalancers[by as usize] = false;
        if let Some(windows) = &mut self.windows {
            windows.unseen[by as usize] = Offered::NONE;
            match by {
                Rebalancer::Pools => windows.within_reach = None,
                Rebalancer::Regions => windows.for_others = Part::default(),
            }
        }
        self.rebalancers == [false; 2]
    }
}
