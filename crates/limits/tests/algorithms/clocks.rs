//! The wall clock is set, back and forth, while the steady clock only advances.

use std::collections::BTreeMap;

use proptest::{prelude::*, test_runner::TestCaseResult};

use crate::{
    history::{Cost, History, Walk, for_every_algorithm},
    terms::Terms,
};

for_every_algorithm!(no_window_reopens, 48, super::check_windows);

/// Units charged in windows with one end never exceed the limit, however the clock was set between the
/// charges.
fn check_windows(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    let mut charged: BTreeMap<u64, u128> = BTreeMap::new();
    for step in &history.steps {
        let cost = walk.arrive(step);
        walk.set_clock(step);
        for cost in [cost, walk.units(Cost::Left(0))] {
            let verdict = walk.probe(cost);
            prop_assert_eq!(verdict, walk.reference.verdict(walk.now, cost), "cost {}", cost);
            if walk.ask(cost).allowed && matches!(history.terms, Terms::Fixed { .. } | Terms::Calendar { .. })
            {
                let units = charged.entry(walk.now.wall_ns + verdict.reset_after_ns).or_default();
                *units += u128::from(cost);
                prop_assert!(*units <= u128::from(history.terms.budget()));
            }
        }
    }
    Ok(())
}

for_every_algorithm!(only_windows_with_edges_depend_on_the_wall_clock, 64, super::check_steadiness);

fn check_steadiness(history: &History) -> TestCaseResult {
    if matches!(history.terms, Terms::Fixed { .. } | Terms::Calendar { .. }) {
        return check_wall(history);
    }
    let (mut set, mut unset) = (Walk::new(history), Walk::new(history));
    for step in &history.steps {
        let cost = unset.arrive(step);
        set.arrive(step);
        set.set_clock(step);
        prop_assert_eq!(set.ask(cost), unset.ask(cost));
        prop_assert_eq!(&set.state, &unset.state);
        prop_assert_eq!(
            set.algorithm.is_idle(set.state.as_slice(), set.now),
            unset.algorithm.is_idle(unset.state.as_slice(), unset.now)
        );
    }
    Ok(())
}

/// The other way round: windows with edges ignore the steady clock.
fn check_wall(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    for step in &history.steps {
        let cost = walk.arrive(step);
        walk.set_clock(step);
        let elsewhere = acequia_limits::Now { steady_ns: 0, ..walk.now };
        prop_assert_eq!(
            walk.algorithm.probe(walk.state.as_slice(), elsewhere, cost, walk.salt),
            walk.probe(cost)
        );
        walk.ask(cost);
    }
    Ok(())
}
