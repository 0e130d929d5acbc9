//! How much of a cell a region is asked for: the mean since demand last changed.
//!
//! An average with one time constant is either late or noisy, and both cost. A late one leaves a region
//! without its part for that long; a noisy one moves parts to and fro for nothing. So the code looks for a
//! change, which is more or fewer events than chance explains, and begins a new mean after each change.
//! Between changes the mean gets as steady as the number of events allows.
//!
//! The mean steers who lends to whom, and nothing else: no promise depends on it.

use crate::settings::SETTINGS;

const S: u64 = 1_000_000_000;

/// The mean of what is asked for: units and requests a second, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    units_milli: u64,
    events_milli: u64,
    /// The time that the mean is taken over.
    age_ns: u64,
    /// When demand was last observed: steady clock.
    since_ns: u64,
    recent: RecentEvents,
}

/// The last few events, to be compared with the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RecentEvents {
    units: u64,
    events: u64,
    from_ns: u64,
}

impl Demand {
    /// Demand that begins now, with nothing asked for yet.
    pub(crate) fn since(now_ns: u64) -> Self {
        Self { since_ns: now_ns, recent: RecentEvents::from(now_ns), ..Self::default() }
    }

    /// Units a second, in thousandths.
    pub(crate) const fn units_milli(&self) -> u64 {
        self.units_milli
    }

    /// Units that a request asks for, in thousandths; 0 if there was none.
    pub(crate) fn cost_milli(&self) -> u64 {
        let cost = (u128::from(self.units_milli) * 1_000).checked_div(u128::from(self.events_milli));
        u64::try_from(cost.unwrap_or(0)).unwrap_or(u64::MAX)
    }

    /// Units a second, in thousandths, without one of the requests. The mean of few requests in a short time
    /// is far too high, since it begins with one. The result is at least 1 if there is any demand.
    pub(crate) fn sure_milli(&self) -> u64 {
        let one = u128::from(self.cost_milli()) * u128::from(S) / u128::from(self.age_ns.max(1));
        let one = u64::try_from(one).unwrap_or(u64::MAX);
        self.units_milli.saturating_sub(one).max(self.units_milli.min(1))
    }

    /// How long demand has been so, as of the last observation.
    pub(crate) const fn age_ns(&self) -> u64 {
        self.age_ns
    }

    /// Requests a second, in thousandths.
    pub(crate) const fn events_milli(&self) -> u64 {
        self.events_milli
    }

    /// Takes in what was asked for since the last call.
    pub(crate) fn observe(&mut self, units: u64, events: u64, now_ns: u64) {
        self.recent.units = self.recent.units.saturating_add(units);
        self.recent.events = self.recent.events.saturating_add(events);
        let dt = now_ns.saturating_sub(self.since_ns);
        if dt == 0 {
            return;
        }
        self.since_ns = now_ns;
        if self.events_milli == 0 && self.recent.events == 0 {
            self.age_ns = self.age_ns.saturating_add(dt).min(SETTINGS.demand.mean_ns_max);
            self.recent = RecentEvents::from(now_ns);
            return;
        }
        if self.events_milli == 0 {
            let span = (now_ns - self.recent.from_ns).max(SETTINGS.demand.first_ns);
            self.begin(self.recent.units, self.recent.events, span, now_ns);
            return;
        }
        let expected_all = expected(self.events_milli, now_ns - self.recent.from_ns);
        let got = self.recent.events;
        let chance = SETTINGS.demand.deviations * expected_all.isqrt() + SETTINGS.demand.deviations;
        if got.abs_diff(expected_all) > chance {
            // The events since the last call are the newest, if they are enough to go by.
            if events.max(expected(self.events_milli, dt)) >= SETTINGS.demand.events / 4 {
                self.begin(units, events, dt, now_ns);
            } else {
                self.begin(self.recent.units, got, now_ns - self.recent.from_ns, now_ns);
            }
            return;
        }
        let tau = (u128::from(SETTINGS.demand.events_mean) * 1_000 * u128::from(S)
            / u128::from(self.events_milli.max(1))) as u64;
        let tau = tau.clamp(SETTINGS.demand.mean_ns_min, SETTINGS.demand.mean_ns_max);
        self.age_ns = self.age_ns.saturating_add(dt).min(tau).max(dt);
        self.units_milli = blend(self.units_milli, per_second_milli(units, dt), dt, self.age_ns);
        self.events_milli = blend(self.events_milli, per_second_milli(events, dt), dt, self.age_ns);
        if got.max(expected_all) >= SETTINGS.demand.events {
            self.recent = RecentEvents::from(now_ns);
        }
    }

    /// Begins a new mean.
    fn begin(&mut self, units: u64, events: u64, dt: u64, now_ns: u64) {
        self.units_milli = per_second_milli(units, dt);
        self.events_milli = per_second_milli(events, dt);
        self.age_ns = dt;
        self.recent = RecentEvents::from(now_ns);
    }
}

impl RecentEvents {
    fn from(now_ns: u64) -> Self {
        Self { from_ns: now_ns, ..Self::default() }
    }
}

/// How many events are expected in `ns`.
fn expected(milli: u64, ns: u64) -> u64 {
    u64::try_from(u128::from(milli) * u128::from(ns) / (1_000 * u128::from(S))).unwrap_or(u64::MAX)
}

fn per_second_milli(count: u64, dt_ns: u64) -> u64 {
    let milli = u128::from(count) * 1_000 * u128::from(S) / u128::from(dt_ns.max(1));
    u64::try_from(milli).unwrap_or(u64::MAX)
}

/// Moves by `dt / age` of the way from `old` to `new`.
fn blend(old: u64, new: u64, dt: u64, age: u64) -> u64 {
    let (old, new) = (u128::from(old), u128::from(new));
    let (dt, age) = (u128::from(dt), u128::from(age.max(1)));
    u64::try_from((old * (age - dt.min(age)) + new * dt.min(age)) / age).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn demand_of_a_busy_cell_is_followed_within_tenths_of_a_second() {
        let mut demand = Demand::since(0);
        let mut now = 0;
        for _ in 0..100 {
            now += 10 * MS;
            demand.observe(100, 100, now);
        }
        assert!(demand.units_milli().abs_diff(10_000_000) < 200_000, "{demand:?}");
        for _ in 0..30 {
            now += 10 * MS;
            demand.observe(5, 5, now);
        }
        assert!(demand.units_milli() < 1_000_000, "{demand:?}");
    }

    #[test]
    fn demand_of_a_quiet_cell_is_measured_as_low() {
        let mut demand = Demand::since(0);
        let mut now = 0;
        for n in 0..1_000 {
            now += 10 * MS;
            demand.observe(u64::from(n % 20 == 0), u64::from(n % 20 == 0), now);
        }
        assert!(demand.units_milli().abs_diff(5_000) < 1_500, "{demand:?}");
    }

    /// With one request a minute, the first one proves nothing.
    #[test]
    fn demand_proven_by_few_requests_is_less_than_their_mean() {
        let mut demand = Demand::since(0);
        demand.observe(3, 1, 50 * MS);
        assert!(demand.units_milli() >= 60_000 && demand.sure_milli() == 1, "{demand:?}");
        for second in 1..=20 {
            demand.observe(u64::from(second == 10) * 3, u64::from(second == 10), second * S);
        }
        assert!((100..=200).contains(&demand.sure_milli()), "{demand:?}");
        for tick in 1..=200 {
            demand.observe(300, 100, 20 * S + tick * 20 * MS);
        }
        assert!(demand.sure_milli() > demand.units_milli() - demand.units_milli() / 100, "{demand:?}");
        assert_eq!(Demand::since(0).sure_milli(), 0);
    }

    #[test]
    fn random_arrivals_change_the_measured_demand_little() {
        // Eight and twenty-two by turns, as Poisson arrivals with a mean of fifteen might come.
        let mut demand = Demand::since(0);
        let mut now = 0;
        for n in 0..200 {
            now += 20 * MS;
            let events = if n % 2 == 0 { 8 } else { 22 };
            demand.observe(events, events, now);
            assert!(n < 50 || demand.units_milli().abs_diff(750_000) < 40_000, "{demand:?}");
        }
    }

    #[test]
    fn a_sudden_change_of_demand_is_seen_in_one_measurement() {
        let mut demand = Demand::since(0);
        for n in 1..=100 {
            demand.observe(15, 15, n * 20 * MS);
        }
        demand.observe(240, 240, 101 * 20 * MS);
        assert!(demand.units_milli() > 11_000_000, "{demand:?}");
        demand.observe(15, 15, 102 * 20 * MS);
        assert!(demand.units_milli() < 800_000, "{demand:?}");
    }

    #[test]
    fn demand_falls_when_requests_end() {
        let mut demand = Demand::since(0);
        for n in 1..=100 {
            demand.observe(1, 1, n * 125 * MS);
        }
        for n in 1..=30 {
            demand.observe(0, 0, 12_500 * MS + n * 250 * MS);
        }
        assert!(demand.units_milli() < 800, "{demand:?}");
    }

    #[test]
    fn the_age_of_a_demand_grows_until_the_demand_changes() {
        let mut demand = Demand::since(0);
        for n in 1..=30 {
            demand.observe(0, 0, n * 100 * MS);
        }
        assert_eq!(demand.age_ns(), 3_000 * MS);
        for n in 1..=100 {
            demand.observe(20, 10, 3_000 * MS + n * 20 * MS);
        }
        assert!(demand.age_ns() > 500 * MS && demand.cost_milli() == 2_000, "{demand:?}");
        demand.observe(800, 400, 5_020 * MS);
        assert_eq!(demand.age_ns(), 20 * MS);
    }

    #[test]
    fn extreme_demands_do_not_overflow() {
        let mut demand = Demand::since(0);
        demand.observe(u64::MAX, u64::MAX, 1);
        demand.observe(u64::MAX, u64::MAX, u64::MAX);
        demand.observe(0, 0, u64::MAX);
    }
}
