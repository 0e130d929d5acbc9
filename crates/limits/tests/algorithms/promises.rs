//! The sum admitted never exceeds the limit: for all pairs of admissions and all requests.

use acequia_limits::Now;
use proptest::{prelude::*, test_runner::TestCaseResult};

use crate::{
    history::{Cost, History, Walk, for_every_algorithm},
    terms::Terms,
};

for_every_algorithm!(no_more_than_the_limit_is_admitted, 96, super::check_bound);

/// Takes every unit available, at the history's instants and at each time to come back that a denial gave.
fn check_bound(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    let mut admitted = Vec::new();
    for step in &history.steps {
        let cost = walk.arrive(step);
        for cost in [cost, walk.units(Cost::Left(0))] {
            if walk.ask(cost).allowed {
                admitted.push((walk.now, cost));
            }
        }
    }
    check_sums(&history.terms, history.salt, &admitted)
}

/// Checks that every stretch from one admission to another holds no more than its limit allows.
fn check_sums(terms: &Terms, salt: u32, admitted: &[(Now, u64)]) -> TestCaseResult {
    for (first, (from, _)) in admitted.iter().enumerate() {
        let mut sum = 0_u128;
        for (to, units) in &admitted[first..] {
            sum += u128::from(*units);
            let between_ns = to.steady_ns - from.steady_ns;
            match *terms {
                Terms::Bucket { units, period_ns, capacity, .. } => {
                    let back = u128::from(between_ns) * u128::from(units);
                    let most = u128::from(capacity) * u128::from(period_ns) + back;
                    prop_assert!(sum * u128::from(period_ns) <= most, "{} in {} ns", sum, between_ns);
                }
                Terms::Fixed { limit, .. } | Terms::Calendar { limit, .. } => {
                    if terms.end_after(from.wall_ns, salt) == terms.end_after(to.wall_ns, salt) {
                        prop_assert!(sum <= u128::from(limit), "{} in one window", sum);
                    }
                }
                Terms::Sliding { limit, window_ns, .. } if between_ns < window_ns => {
                    prop_assert!(sum <= u128::from(limit), "{} in {} ns", sum, between_ns);
                }
                Terms::Approximate { limit, window_ns } if between_ns < window_ns => {
                    prop_assert!(sum <= 2 * u128::from(limit), "{} in {} ns", sum, between_ns);
                }
                Terms::Sliding { .. } | Terms::Approximate { .. } => {}
            }
        }
    }
    Ok(())
}

#[test]
fn the_approximate_window_can_exceed_its_limit() {
    const S: u64 = 1_000_000_000;
    let pair = Terms::Approximate { limit: 100, window_ns: 10 * S }.algorithm();
    let exact = Terms::Sliding { limit: 100, window_ns: 10 * S, slots: Some(10), quota: false }.algorithm();
    // All of the older window was spent at its end. The pair assumes an even spread, and so admits ten more
    // units each second.
    let last_moment = Now::at(1_800_000_010 * S - 1);
    for (algorithm, over) in [(pair, 90), (exact, 0)] {
        let mut state = Vec::new();
        algorithm.charge_heap(&mut state, last_moment, 100, 0);
        let mut admitted = 0;
        for second in 1..10 {
            let now = last_moment.later(second * S + 1);
            if algorithm.probe(&state, now, 10, 0).allowed {
                algorithm.charge_heap(&mut state, now, 10, 0);
                admitted += 10;
            }
        }
        assert_eq!(admitted, over, "{}", algorithm.name());
    }
}
