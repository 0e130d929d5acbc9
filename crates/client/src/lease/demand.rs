//! Decides how many units a lease should hold.

use std::time::Duration;

use tokio::time::Instant;

use super::LeaseOptions;
use crate::settings::SETTINGS;

/// The recent demand, which predicts the demand until the next refresh.
#[derive(Debug)]
pub(super) struct RecentDemand {
    refresh: Duration,
    units_min: u64,
    units_max: u64,
    since: Instant,
    expected: u64,
}

impl RecentDemand {
    pub(super) fn new(options: &LeaseOptions, now: Instant) -> Self {
        let LeaseOptions { refresh, units_min, units_max, .. } = *options;
        Self { refresh, units_min, units_max, since: now, expected: 0 }
    }

    /// The number of units to ask for, if `wanted` units were wanted since the last call. When demand
    /// falls, the estimate falls by half at most in each refresh.
    pub(super) fn units(&mut self, wanted: u64, now: Instant) -> u64 {
        let passed =
            now.saturating_duration_since(self.since).max(self.refresh / SETTINGS.lease.refresh_parts);
        self.since = now;
        let in_refresh = u128::from(wanted) * self.refresh.as_nanos() / passed.as_nanos().max(1);
        let expected = in_refresh + in_refresh * SETTINGS.lease.headroom_tenths / 10;
        let halvings = u32::try_from(passed.as_nanos() / self.refresh.as_nanos().max(1)).unwrap_or(u32::MAX);
        let before = self.expected.checked_shr(halvings).unwrap_or(0);
        let expected = u64::try_from(expected).unwrap_or(u64::MAX).max(before);
        self.expected = expected.clamp(self.units_min, self.units_max);
        self.expected
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn demand(now: Instant) -> RecentDemand {
        let options = LeaseOptions {
            units_min: 10,
            units_max: 100_000,
            refresh: Duration::from_secs(1),
            ..LeaseOptions::default()
        };
        RecentDemand::new(&options, now)
    }

    #[test]
    fn a_steady_demand_is_requested_with_headroom() {
        let mut now = Instant::now();
        let mut demand = demand(now);
        for _ in 0..10 {
            now += Duration::from_millis(500);
            assert_eq!(demand.units(1_000, now), 3_000);
        }
    }

    #[test]
    fn a_first_burst_is_bounded_and_falling_demand_halves_each_time() {
        let mut now = Instant::now();
        let mut demand = demand(now);
        assert_eq!(demand.units(10, now), 10 * 16 * 3 / 2);
        let mut asked = Vec::new();
        for _ in 0..5 {
            now += Duration::from_secs(1);
            asked.push(demand.units(0, now));
        }
        assert_eq!(asked, [120, 60, 30, 15, 10]);
        demand.units(10_000, now);
        now += Duration::from_secs(3_600);
        assert_eq!(demand.units(1, now), 10, "what was an hour ago is nothing now");
    }

    proptest! {
        #[test]
        fn requested_units_stay_within_bounds_at_any_demand(
            steps in prop::collection::vec((any::<u64>(), any::<u32>()), 1..20),
        ) {
            let mut now = Instant::now();
            let mut demand = demand(now);
            for (wanted, wait) in steps {
                now += Duration::from_nanos(u64::from(wait));
                prop_assert!((10..=100_000).contains(&demand.units(wanted, now)));
            }
        }
    }
}
