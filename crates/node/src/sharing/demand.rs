//! How much of a cell a region is asked for: an average that follows a change within a few dozen
//! events, and within a tenth of a second where there are many.
//!
//! It steers who lends to whom, and nothing else: no promise depends on it.

const S: u64 = 1_000_000_000;

/// Events after which the average has forgotten half of what was before.
const EVENTS: u64 = 24;
/// The shortest time constant: shorter ones follow the noise of busy cells.
const TAU_NS_MIN: u64 = 60_000_000;
/// The longest: a cell that is asked less often than this forgets its demand in about a minute.
const TAU_NS_MAX: u64 = 30 * S;
/// A first look at so short a time says little about a rate.
const FIRST_NS: u64 = 20_000_000;

/// An average of what is asked for: units and questions a second, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    units_milli: u64,
    events_milli: u64,
    /// The last look, steady clock; 0 before the first.
    since_ns: u64,
}

impl Demand {
    /// Nothing asked for yet, from now on.
    pub(crate) fn since(now_ns: u64) -> Self {
        Self { since_ns: now_ns, ..Self::default() }
    }

    /// Units a second, in thousandths.
    pub(crate) const fn units_milli(&self) -> u64 {
        self.units_milli
    }

    /// Questions a second, in thousandths.
    pub(crate) const fn events_milli(&self) -> u64 {
        self.events_milli
    }

    /// Takes in what was asked for since the last look.
    pub(crate) fn observe(&mut self, units: u64, events: u64, now_ns: u64) {
        let mut dt = now_ns.saturating_sub(self.since_ns);
        if dt == 0 {
            return;
        }
        self.since_ns = now_ns;
        let first = self.events_milli == 0;
        if first {
            dt = dt.max(FIRST_NS);
        }
        // A few events say nothing about how quick a change is.
        let is_telling = events >= EVENTS / 4;
        let (units, events) = (per_second_milli(units, dt), per_second_milli(events, dt));
        if first {
            (self.units_milli, self.events_milli) = (units, events);
            return;
        }
        // The time in which so many events come, at the quicker of the two rates.
        let quicker = if is_telling { events } else { 0 };
        let quickest = u128::from(quicker.max(self.events_milli)).max(1);
        let tau = (u128::from(EVENTS) * 1_000 * u128::from(S) / quickest) as u64;
        let tau = tau.clamp(TAU_NS_MIN, TAU_NS_MAX);
        self.units_milli = blend(self.units_milli, units, dt, tau);
        self.events_milli = blend(self.events_milli, events, dt, tau);
    }
}

fn per_second_milli(count: u64, dt_ns: u64) -> u64 {
    let milli = u128::from(count) * 1_000 * u128::from(S) / u128::from(dt_ns);
    u64::try_from(milli).unwrap_or(u64::MAX)
}

/// Moves by `dt / (dt + tau)` of the way: a first-order filter without exponentials.
fn blend(old: u64, new: u64, dt: u64, tau: u64) -> u64 {
    let (old, new, dt, tau) = (u128::from(old), u128::from(new), u128::from(dt), u128::from(tau));
    u64::try_from((old * tau + new * dt) / (tau + dt)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_busy_cell_is_followed_within_tenths_of_a_second() {
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
    fn a_quiet_cell_is_not_taken_for_a_busy_one() {
        let mut demand = Demand::since(0);
        let mut now = 0;
        for n in 0..1_000 {
            now += 10 * MS;
            demand.observe(u64::from(n % 20 == 0), u64::from(n % 20 == 0), now);
        }
        assert!(demand.units_milli().abs_diff(5_000) < 1_500, "{demand:?}");
    }

    #[test]
    fn the_extremes_do_not_overflow() {
        let mut demand = Demand::since(0);
        demand.observe(u64::MAX, u64::MAX, 1);
        demand.observe(u64::MAX, u64::MAX, u64::MAX);
        demand.observe(0, 0, u64::MAX);
    }
}
