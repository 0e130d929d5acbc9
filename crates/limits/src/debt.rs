//! Units that were spent before they were asked for: they are recorded whether they fit or not.
//!
//! The price of some work is known only when the work is done. A *report* of such a cost is recorded in full,
//! and what the cell did not have is *owed*. **A cell that owes admits nothing** until the debt is gone: the
//! rate has given it back, the window is over, or other regions have sent units. A limit that carries its debts
//! has the next windows pay them ([`crate::carry`]).
//!
//! Regions tell each other what they owe. Each region that hears of a debt keeps units back for it, by how much each
//! has left. So while more is owed than is left, no region that can be heard admits anything. A region that is cut
//! off goes on with what it owns.
//!
//! **Bound.** A report takes nothing from anybody else: it only adds to what its own cell has spent. So what
//! all regions admit is at most the limit, and the reports are at most what was reported beyond it. A cell
//! owes at most [`Limit::debt_max`](crate::Limit::debt_max), so one absurd report cannot shut a cell for ever.

use crate::{
    Algorithm, Now, UNITS_MAX,
    algorithm::{inline, tat},
    sliding::APPROXIMATE_UNITS_MAX,
    window::Usage,
};

/// A cell owes less: after a crash that forgot what was spent, [`UNITS_MAX`] units of a window count as spent.
const PRESUMED_MIN: u64 = UNITS_MAX / 2;

/// What a cell takes up of a cost that was spent, whether it fits or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Units that the cell records. They can be charged at the same `now`, though they may not fit.
    pub recorded: u64,
    /// Units that the cell did not have: of those recorded, and of those beyond the largest debt.
    pub overdrawn: u64,
}

impl Spent {
    /// Units that were recorded though they did not fit, of a cost of `cost`.
    pub fn beyond(&self, cost: u64) -> u64 {
        self.recorded.saturating_sub(cost.saturating_sub(self.overdrawn))
    }
}

impl Algorithm {
    /// Units that the cell owes: spent beyond what the limit allows now. 0 while anything is left.
    ///
    /// A cell whose spending a crash forgot has nothing left, but it owes nothing.
    pub fn debt(&self, state: &[u64], now: Now, salt: u32) -> u64 {
        let beyond = self.beyond(state, now, salt);
        if beyond < PRESUMED_MIN { beyond } else { 0 }
    }

    /// Units that were spent beyond what the limit allows now, or are presumed to be.
    fn beyond(&self, state: &[u64], now: Now, salt: u32) -> u64 {
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => meter.debt(tat(state), now.steady_ns),
            Self::FixedWindow(window) => window.debt(Usage::of(state), now.wall_ns, salt),
            Self::SlidingLog(log) => log.debt(state, now.steady_ns),
            Self::SlidingSlots(slots) => slots.debt(state, now.steady_ns),
            Self::SlidingApproximate(pair) => pair.debt(inline(state), now.steady_ns),
        }
    }

    /// How much of a cost that was spent the cell takes up: what it has left, and then as much as it may owe
    /// with `debt_max`.
    pub fn spend(&self, state: &[u64], now: Now, cost: u64, salt: u32, debt_max: u64) -> Spent {
        let debt_max = match self {
            // Two counters of 32 bits hold the limit and the debt.
            Self::SlidingApproximate(pair) => debt_max.min(APPROXIMATE_UNITS_MAX - pair.limit),
            _ => debt_max,
        };
        let left = self.available(state, now, salt);
        let room = debt_max.saturating_sub(self.beyond(state, now, salt));
        Spent { recorded: cost.min(left.saturating_add(room)), overdrawn: cost.saturating_sub(left) }
    }

    /// As [`Algorithm::spend`], for a cell that may only spend `part` of its budget.
    pub fn spend_of(&self, part: u64, state: &[u64], now: Now, cost: u64, salt: u32, debt_max: u64) -> Spent {
        let (left, owed) = self.left_of(part, state, now, salt);
        let room = debt_max.saturating_sub(owed);
        Spent { recorded: cost.min(left.saturating_add(room)), overdrawn: cost.saturating_sub(left) }
    }

    /// What a cell that may only spend `part` of its budget has left, and what it owes.
    pub fn left_of(&self, part: u64, state: &[u64], now: Now, salt: u32) -> (u64, u64) {
        let used = self.budget().saturating_sub(self.available(state, now, salt));
        (part.saturating_sub(used), used.saturating_sub(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Rate,
        meter::Meter,
        sliding::{LOG_CHARGES_MAX, SlidingApproximate, SlidingLog, SlidingSlots},
        window::{Edges, FixedWindow},
    };

    const S: u64 = 1_000_000_000;
    const SALT: u32 = 7;

    fn at(seconds: u64) -> Now {
        Now { steady_ns: (1_000 + seconds) * S, wall_ns: 2_000_000_000 * S + seconds * S }
    }

    fn all() -> [Algorithm; 6] {
        let meter = Meter::new(Rate::new(1, S).expect("a rate"), 60);
        let edges = Edges::Every { window_ns: 60 * S, stagger: false };
        [
            Algorithm::TokenBucket(meter),
            Algorithm::LeakyBucket(meter),
            Algorithm::FixedWindow(FixedWindow::new(60, edges)),
            Algorithm::SlidingLog(SlidingLog { limit: 60, window_ns: 60 * S }),
            Algorithm::SlidingSlots(SlidingSlots { limit: 60, window_ns: 60 * S, slots: 6 }),
            Algorithm::SlidingApproximate(SlidingApproximate { limit: 60, window_ns: 60 * S }),
        ]
    }

    fn spend(algorithm: &Algorithm, state: &mut Vec<u64>, now: Now, cost: u64, debt_max: u64) -> Spent {
        let spent = algorithm.spend(state, now, cost, SALT, debt_max);
        algorithm.charge_heap(state, now, spent.recorded, SALT);
        spent
    }

    #[test]
    fn a_report_beyond_what_is_left_is_owed_until_it_is_paid() {
        for algorithm in all() {
            let mut state = algorithm.fresh().as_slice().to_vec();
            assert_eq!(spend(&algorithm, &mut state, at(0), 50, 600), Spent { recorded: 50, overdrawn: 0 });
            assert_eq!(algorithm.debt(&state, at(0), SALT), 0);
            assert_eq!(spend(&algorithm, &mut state, at(0), 40, 600), Spent { recorded: 40, overdrawn: 30 });
            assert_eq!(algorithm.debt(&state, at(0), SALT), 30, "{algorithm:?}");
            let verdict = algorithm.probe(&state, at(0), 1, SALT);
            assert!(!verdict.allowed && verdict.remaining == 0, "{algorithm:?}");
            let back = Now {
                steady_ns: at(0).steady_ns + verdict.retry_after_ns,
                wall_ns: at(0).wall_ns + verdict.retry_after_ns,
            };
            assert_eq!(algorithm.debt(&state, back, SALT), 0, "{algorithm:?}");
            assert!(algorithm.probe(&state, back, 1, SALT).allowed, "{algorithm:?}");
        }
    }

    #[test]
    fn a_cell_owes_at_most_its_largest_debt() {
        for algorithm in all() {
            let mut state = algorithm.fresh().as_slice().to_vec();
            let spent = spend(&algorithm, &mut state, at(0), u64::MAX, 600);
            assert_eq!(spent, Spent { recorded: 660, overdrawn: u64::MAX - 60 }, "{algorithm:?}");
            assert_eq!(algorithm.debt(&state, at(0), SALT), 600, "{algorithm:?}");
            let spent = spend(&algorithm, &mut state, at(0), 5, 600);
            assert_eq!(spent, Spent { recorded: 0, overdrawn: 5 }, "{algorithm:?}");
        }
    }

    #[test]
    fn without_any_debt_a_report_takes_what_is_left() {
        for algorithm in all() {
            let mut state = algorithm.fresh().as_slice().to_vec();
            let spent = spend(&algorithm, &mut state, at(0), 100, 0);
            assert_eq!(spent, Spent { recorded: 60, overdrawn: 40 }, "{algorithm:?}");
            assert_eq!(algorithm.debt(&state, at(0), SALT), 0, "{algorithm:?}");
        }
    }

    /// Near an edge nobody knows in which window the work was done, so the report counts in both.
    #[test]
    fn a_report_counts_in_each_window_that_is_open_when_it_comes() {
        let edges = Edges::Every { window_ns: 60 * S, stagger: false };
        let window = FixedWindow { margin_ns: 5 * S, ..FixedWindow::new(60, edges) };
        let window = Algorithm::FixedWindow(window);
        let edge = (0..60).map(at).find(|now| now.wall_ns.is_multiple_of(60 * S)).expect("an edge");
        for (after_s, lefts) in [(54, (20, 60)), (57, (20, 20)), (62, (20, 20)), (66, (20, 20))] {
            let now = edge.later(after_s * S);
            let mut state = Vec::new();
            spend(&window, &mut state, now, 40, 600);
            let next = edge.later((after_s.max(60) + 6) * S);
            let lefts_now = (window.available(&state, now, SALT), window.available(&state, next, SALT));
            assert_eq!(lefts_now, lefts, "{after_s} s");
        }
    }

    #[test]
    fn a_log_of_many_small_reports_stays_small_and_forgets_none() {
        let log = Algorithm::SlidingLog(SlidingLog { limit: 60, window_ns: 60 * S });
        let mut state = Vec::new();
        for n in 0..10_000 {
            let now = Now { steady_ns: at(0).steady_ns + n, ..at(0) };
            spend(&log, &mut state, now, 1, 20_000);
        }
        assert!(state.len() / 2 <= LOG_CHARGES_MAX, "{} charges", state.len() / 2);
        assert_eq!(log.debt(&state, at(1), SALT), 9_940);
        assert!(log.is_sound(&state));
    }
}
