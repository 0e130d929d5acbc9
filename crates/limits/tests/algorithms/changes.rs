//! New parameters for a limit in use: nothing is minted, and spent units stay spent.

use acequia_limits::algorithm::State;
use proptest::{prelude::*, test_runner::TestCaseResult};

use crate::{
    Charge, Reference,
    history::{self, Cost, History, Walk},
    terms::{self, Terms},
};

/// Walks half of a history under the old parameters, and then gives the cell the new ones. The reference
/// goes on from the charges made so far.
fn renumber(history: &History, numbers: &Terms) -> (Walk, Walk) {
    let half = History { steps: history.steps[..history.steps.len() / 2].to_vec(), ..history.clone() };
    let old = Walk::through(&half);
    let terms = history.terms.renumbered(numbers);
    let mut new = Walk::new(&History { terms: terms.clone(), ..half });
    new.now = old.now;
    new.state = new.algorithm.convert(&old.algorithm, old.state.as_slice(), old.now);
    new.reference = Reference { terms, ..old.reference.clone() };
    (old, new)
}

/// Goes on under the new parameters for the rest of the history.
fn go_on(mut new: Walk, history: &History, check: impl Fn(&Walk, u64) -> TestCaseResult) -> TestCaseResult {
    for step in &history.steps[history.steps.len() / 2..] {
        let cost = new.arrive(step);
        for cost in [cost, 1, new.units(Cost::Left(0)), new.units(Cost::Left(1))] {
            check(&new, cost)?;
        }
        new.ask(cost);
    }
    Ok(())
}

fn check_exact(walk: &Walk, cost: u64) -> TestCaseResult {
    prop_assert_eq!(walk.probe(cost), walk.reference.verdict(walk.now, cost), "cost {}", cost);
    Ok(())
}

/// A window keeps its used units and its end.
fn check_window(history: &History, numbers: &Terms) -> TestCaseResult {
    let (old, new) = renumber(history, numbers);
    let used = u64::try_from(old.reference.counted(old.now)).expect("below the limit");
    prop_assert_eq!(new.probe(0).remaining, new.algorithm.budget().saturating_sub(used));
    prop_assert_eq!(new.probe(0).reset_after_ns, old.probe(0).reset_after_ns);
    go_on(new, history, check_exact)
}

/// A bucket owes as many units as before: all of them, even more than the new bucket could have spent.
fn check_bucket(history: &History, numbers: &Terms) -> TestCaseResult {
    let (old, new) = renumber(history, numbers);
    let Terms::Bucket { period_ns: old_period, .. } = old.reference.terms else { panic!("a bucket") };
    let Terms::Bucket { units, period_ns, capacity, .. } = new.reference.terms else { panic!("a bucket") };
    let debt = old.reference.debt(old.now);
    let owed = u64::try_from(debt.div_ceil(u128::from(old_period))).expect("at most the burst");
    prop_assert_eq!(new.probe(0).remaining, capacity.saturating_sub(owed));
    // The debt goes on sinking at the new rate, and is never smaller than the exact debt.
    let (now, from) = (new.now, new.now.steady_ns);
    for wait in
        [0, 1, 1_000, period_ns / units, period_ns, new.probe(0).reset_after_ns, new.algorithm.period_ns()]
    {
        // If the new rate takes centuries to pay the debt, only some of that time is checked.
        let now = now.later(wait.min(acequia_limits::PERIOD_NS_MAX));
        let back = u128::from(units) * u128::from(now.steady_ns - from) / u128::from(period_ns);
        let least = (debt / u128::from(old_period)).saturating_sub(back + 1).min(u128::from(capacity));
        let remaining = new.algorithm.probe(new.state.as_slice(), now, 0, new.salt).remaining;
        prop_assert!(u128::from(capacity - remaining) >= least, "minted after {} ns", wait);
    }
    let reset_after_ns = new.probe(0).reset_after_ns;
    if reset_after_ns <= acequia_limits::PERIOD_NS_MAX {
        prop_assert!(new.algorithm.is_idle(new.state.as_slice(), new.now.later(reset_after_ns)));
    }
    // Unchanged parameters change nothing.
    let same = old.algorithm.convert(&old.algorithm, old.state.as_slice(), old.now);
    for wait in [0, 1, period_ns] {
        let now = old.now.later(wait);
        for cost in [0, 1, old.algorithm.budget()] {
            prop_assert_eq!(
                old.algorithm.probe(same.as_slice(), now, cost, old.salt),
                old.algorithm.probe(old.state.as_slice(), now, cost, old.salt)
            );
        }
    }
    Ok(())
}

/// Logs and slots convert to each other. The result allows nothing that an exact log of every charge would
/// not, and holds nothing for longer than its horizon.
fn check_sliding(history: &History, numbers: &Terms) -> TestCaseResult {
    let (old, new) = renumber(history, numbers);
    let horizon = new.now.later(new.algorithm.horizon_ns());
    prop_assert!(new.algorithm.is_idle(new.state.as_slice(), horizon));
    if old.reference.terms.slots() == new.reference.terms.slots() {
        return go_on(new, history, check_exact);
    }
    let then = old.now.steady_ns;
    let old_slot_ns = |window_ns: u64| old.reference.terms.slots().map(|m| window_ns.div_ceil(u64::from(m)));
    go_on(new, history, |walk, cost| {
        let Terms::Sliding { limit, window_ns, .. } = walk.reference.terms else { panic!("sliding") };
        let recent = |charge: &&Charge| walk.now.steady_ns - charge.at.steady_ns < window_ns;
        let used: u128 = walk.reference.charges.iter().filter(recent).map(|c| u128::from(c.units)).sum();
        let fits = cost == 0 || used + u128::from(cost) <= u128::from(limit);
        prop_assert!(fits || !walk.probe(cost).allowed, "{} on top of {}", cost, used);
        // Units in a slot count as charged in the slot's last nanosecond, no later.
        let mut late = walk.reference.clone();
        for charge in late.charges.iter_mut().filter(|charge| charge.at.steady_ns <= then) {
            if let Some(slot_ns) = old_slot_ns(window_ns) {
                let last_ns = (charge.at.steady_ns / slot_ns + 1) * slot_ns - 1;
                charge.at.steady_ns = last_ns.min(then);
            }
        }
        prop_assert!(walk.probe(cost).allowed || !late.fits(walk.now, cost), "{} is held back", cost);
        Ok(())
    })
}

macro_rules! renumbered {
    ($($name:ident: $terms:expr, $check:ident;)*) => {
        proptest! {
            #![proptest_config(history::config(96))]
            $(
                #[test]
                fn $name(history in history::history($terms), numbers in $terms) {
                    $check(&history, &numbers)?;
                }
            )*
        }
    };
}

renumbered! {
    a_token_bucket_keeps_its_debt: terms::token_bucket(), check_bucket;
    a_leaky_bucket_keeps_its_queue: terms::leaky_bucket(), check_bucket;
    a_fixed_window_keeps_its_used_units: terms::fixed_window(), check_window;
    a_staggered_window_keeps_its_used_units: terms::staggered_window(), check_window;
    a_calendar_quota_keeps_its_used_units: terms::calendar_quota(), check_window;
    an_approximate_window_keeps_both_counters: terms::approximate(), check_counters;
    a_sliding_window_keeps_its_charges: sliding(), check_sliding;
    a_rolling_quota_keeps_its_charges: terms::rolling_quota(), check_sliding;
}

fn sliding() -> impl Strategy<Value = Terms> {
    prop_oneof![terms::sliding_log(), terms::sliding_slots()]
}

fn check_counters(history: &History, numbers: &Terms) -> TestCaseResult {
    let (old, new) = renumber(history, numbers);
    prop_assert_eq!(&new.state, &old.state);
    go_on(new, history, check_exact)
}

#[test]
fn a_lowered_sliding_window_tells_when_its_surplus_is_gone() {
    const S: u64 = 1_000_000_000;
    let now = acequia_limits::Now::at(1_800_000_000 * S);
    let numbers = |limit, slots| Terms::Sliding { limit, window_ns: 10 * S, slots, quota: false }.algorithm();
    let (log, slots) = (numbers(50, None), numbers(50, Some(5)));
    let mut state = Vec::new();
    log.charge_heap(&mut state, now, 30, 0);
    log.charge_heap(&mut state, now.later(4 * S), 20, 0);
    let now = now.later(5 * S);
    // 50 units were spent and 20 are allowed: all of the first charge must go, and some of the second.
    for (new, first_ns) in [(numbers(20, None), 9 * S), (numbers(20, Some(10)), 10 * S)] {
        let State::Heap(state) = new.convert(&log, &state, now) else { panic!("kept on the heap") };
        let verdict = new.probe(&state, now, 1, 0);
        assert_eq!((verdict.allowed, verdict.remaining, verdict.retry_after_ns), (false, 0, first_ns));
    }
    // There and back again through slots of two seconds: a charge may seem that much younger.
    let State::Heap(coarse) = slots.convert(&log, &state, now) else { panic!("kept on the heap") };
    let State::Heap(back) = log.convert(&slots, &coarse, now) else { panic!("kept on the heap") };
    assert_eq!(log.probe(&back, now, 1, 0).retry_after_ns, 7 * S - 1);
}
