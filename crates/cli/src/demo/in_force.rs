//! The numbers of the limits that are in force, as the nodes report them.
//!
//! Anybody may change a limit, even from another terminal. So only the nodes' reports are trusted.

use std::{collections::VecDeque, time::Duration};

use acequia_api::acequia::v1::{NodeStatus, VersionId};

use super::{
    ledger::KINDS,
    plan::{BUDGET, DOMAIN, EXPORTS, LIMITS, USER_BURST, USER_RATE},
};
use crate::settings::SETTINGS;

/// The numbers of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Units a second, rounded up; 0 for a window.
    pub rate: u64,
    /// The burst, or the units of a window.
    pub units: u64,
}

/// The numbers of all limits, by [`Subject::kind`](super::ledger::Subject::kind).
pub type AllNumbers = [Numbers; KINDS];

/// The numbers in the nodes' configs.
pub const AT_START: AllNumbers = [
    Numbers { rate: BUDGET, units: BUDGET },
    Numbers { rate: USER_RATE, units: USER_BURST },
    Numbers { rate: 0, units: EXPORTS.units },
];

/// The larger of both, number by number.
pub fn larger(one: AllNumbers, other: AllNumbers) -> AllNumbers {
    std::array::from_fn(|kind| Numbers {
        rate: one[kind].rate.max(other[kind].rate),
        units: one[kind].units.max(other[kind].units),
    })
}

/// The numbers that a node may go by.
#[derive(Clone, Debug)]
pub struct InForce {
    /// Oldest first, and never empty. Each version has other numbers than the one before.
    versions: VecDeque<Version>,
    /// The newest version of the catalogue that a node reported.
    newest: (u32, u64),
}

/// A set of numbers, and where it came from.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// The first version of the catalogue that has them.
    id: (u32, u64),
    numbers: AllNumbers,
    /// The largest numbers of any cell: operators may give a user, or a tenant, more than the limit.
    most: AllNumbers,
    /// When a node first reported them.
    since: Duration,
}

impl Default for InForce {
    fn default() -> Self {
        let first = Version { id: (0, 0), numbers: AT_START, most: AT_START, since: Duration::ZERO };
        Self { versions: VecDeque::from([first]), newest: (0, 0) }
    }
}

impl InForce {
    /// The latest numbers.
    pub fn newest(&self) -> AllNumbers {
        self.versions.back().map_or(AT_START, |version| version.numbers)
    }

    /// The largest numbers that a node may still go by. The promise counts by these.
    pub fn highest(&self) -> AllNumbers {
        self.versions.iter().map(|version| version.most).reduce(larger).unwrap_or(AT_START)
    }

    /// The smallest rate of the budget that a node may still go by: the reliable rate.
    pub fn lowest_rate(&self) -> u64 {
        self.versions.iter().map(|version| version.numbers[0].rate).min().unwrap_or(BUDGET)
    }

    /// Whether a node has reported this version of the catalogue, or a later one.
    pub fn has_reached(&self, id: VersionId) -> bool {
        self.newest >= (id.epoch, id.number)
    }

    /// Takes in the numbers that a node goes by. Returns the numbers before, if these are new.
    pub fn report(&mut self, at: Duration, status: &NodeStatus) -> Option<AllNumbers> {
        let id = status.catalogue.as_ref()?.requested?;
        let id = (id.epoch, id.number);
        if id < self.newest {
            return None;
        }
        self.newest = id;
        let before = self.newest();
        let (mut numbers, mut most) = (before, before);
        for limit in status.limits.iter().filter(|limit| limit.domain == DOMAIN) {
            if let Some(kind) = LIMITS.iter().position(|name| *name == limit.name) {
                let of = |rate_milli: u64, units| Numbers { rate: rate_milli.div_ceil(1_000), units };
                numbers[kind] = of(limit.rate_milli, limit.units);
                most[kind] = of(limit.most_rate_milli, limit.most_units);
            }
        }
        most = larger(most, numbers);
        // An override ends a little later on a node whose clock is behind. It counts until there is another
        // version.
        let is_known = |last: &Version| last.numbers == numbers && larger(last.most, most) == last.most;
        if self.versions.back().is_some_and(|last| is_known(last) && (last.id == id || last.most == most)) {
            return None;
        }
        self.versions.push_back(Version { id, numbers, most, since: at });
        if self.versions.len() > SETTINGS.stage.versions_max
            && let Some(oldest) = self.versions.pop_front()
            && let Some(next) = self.versions.front_mut()
        {
            next.numbers = larger(next.numbers, oldest.numbers);
            next.most = larger(next.most, oldest.most);
        }
        Some(before)
    }

    /// Forgets numbers that no node goes by any more, by the authority's report. Returns how long the newest
    /// took.
    pub fn acknowledge(&mut self, at: Duration, status: &NodeStatus) -> Option<Duration> {
        let catalogue = status.catalogue.as_ref().filter(|catalogue| catalogue.is_authority)?;
        let effective = catalogue.effective.map(|id| (id.epoch, id.number))?;
        let before = self.versions.len();
        while self.versions.get(1).is_some_and(|next| next.id <= effective) {
            self.versions.pop_front();
        }
        let is_news = self.versions.len() == 1 && before > 1;
        let newest = self.versions.back().filter(|_| is_news)?;
        Some(at.saturating_sub(newest.since))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::state::tests::status, *};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The authority's report at a version of the catalogue, with this budget, while all regions conform to
    /// another version.
    fn report(number: u64, budget: Numbers, effective: u64) -> NodeStatus {
        let mut status = status(0, [333, 0, 0]);
        (status.limits[0].rate_milli, status.limits[0].units) = (budget.rate * 1_000, budget.units);
        let catalogue = status.catalogue.as_mut().expect("one");
        catalogue.requested = Some(VersionId { epoch: 1, number });
        catalogue.effective = Some(VersionId { epoch: 1, number: effective });
        status
    }

    fn budget(rate: u64, units: u64) -> Numbers {
        Numbers { rate, units }
    }

    #[test]
    fn the_larger_budget_counts_until_all_acknowledge_the_smaller() {
        let mut in_force = InForce::default();
        let lowered = report(5, budget(900, 500), 4);
        assert_eq!(in_force.report(at(1), &lowered), Some(AT_START));
        assert_eq!(in_force.acknowledge(at(1), &lowered), None);
        assert_eq!((in_force.highest()[0], in_force.lowest_rate()), (budget(1_000, 1_000), 900));
        let acknowledged = report(5, budget(900, 500), 5);
        assert_eq!(in_force.report(at(3), &acknowledged), None);
        assert_eq!(in_force.acknowledge(at(3), &acknowledged), Some(at(2)));
        assert_eq!(in_force.highest()[0], budget(900, 500));
    }

    #[test]
    fn a_rate_that_rises_while_the_burst_falls_counts_with_the_old_burst() {
        let mut in_force = InForce::default();
        in_force.report(at(1), &report(5, budget(2_000, 100), 4));
        assert_eq!(in_force.highest()[0], budget(2_000, 1_000));
    }

    #[test]
    fn a_granted_cell_is_judged_by_its_grant_until_the_next_version() {
        let mut in_force = InForce::default();
        let mut granted = report(5, budget(1_000, 1_000), 5);
        (granted.limits[0].most_rate_milli, granted.limits[0].most_units) = (1_500_000, 1_200);
        assert_eq!(in_force.report(at(1), &granted), Some(AT_START));
        in_force.acknowledge(at(1), &granted);
        let expected = (budget(1_500, 1_200), budget(1_000, 1_000));
        assert_eq!((in_force.highest()[0], in_force.newest()[0]), expected);
        // On a node whose clock is behind, the override has not ended.
        assert_eq!(in_force.report(at(2), &report(5, budget(1_000, 1_000), 5)), None);
        assert_eq!(in_force.highest()[0], budget(1_500, 1_200));
        let withdrawn = report(6, budget(1_000, 1_000), 6);
        assert_eq!(in_force.report(at(3), &withdrawn), Some(AT_START));
        in_force.acknowledge(at(3), &withdrawn);
        assert_eq!(in_force.highest()[0], budget(1_000, 1_000));
    }

    #[test]
    fn a_report_of_an_older_version_changes_nothing() {
        let mut in_force = InForce::default();
        in_force.report(at(1), &report(5, budget(2_000, 2_000), 4));
        assert_eq!(in_force.report(at(1), &report(4, budget(1_000, 1_000), 4)), None);
        assert_eq!(in_force.newest()[0], budget(2_000, 2_000));
    }

    #[test]
    fn many_versions_stay_within_bounds_and_forget_no_budget() {
        let mut in_force = InForce::default();
        in_force.report(at(0), &report(5, budget(7_000, 1), 4));
        for number in 6..500 {
            in_force.report(at(1), &report(number, budget(number, 1), 4));
        }
        assert_eq!(in_force.versions.len(), SETTINGS.stage.versions_max);
        assert_eq!(in_force.highest()[0], budget(7_000, 1_000));
    }
}
