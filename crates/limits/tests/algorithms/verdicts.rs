//! Every field of every verdict, and its promise: the cost is allowed exactly when the verdict said.

use acequia_limits::{
    Algorithm, Now, UNITS_MAX, Verdict,
    algorithm::{State, is_never},
    calendar::Period,
    verdict::NEVER,
};
use proptest::{prelude::*, test_runner::TestCaseResult};

use crate::{
    history::{Cost, History, Walk, charge, for_every_algorithm},
    terms::Terms,
};

const S: u64 = 1_000_000_000;

for_every_algorithm!(verdicts_agree_with_the_reference, 48, super::check_verdicts);

fn check_verdicts(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    for step in &history.steps {
        let cost = walk.arrive(step);
        for cost in [cost, 0, 1] {
            let expected = walk.reference.verdict(walk.now, cost);
            prop_assert_eq!(walk.probe(cost), expected, "cost {} at {:?}", cost, walk.now);
        }
        walk.ask(cost);
    }
    Ok(())
}

for_every_algorithm!(a_request_is_allowed_exactly_at_its_retry_time, 96, super::check_waits);

fn check_waits(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    for step in &history.steps {
        let cost = walk.arrive(step);
        let now = walk.now;
        for cost in [cost, 1, walk.units(Cost::Budget(0)), walk.units(Cost::Part(500))] {
            let at = |now| walk.algorithm.probe(walk.state.as_slice(), now, cost, walk.salt);
            let told = at(now).retry_after_ns;
            if is_never(told) {
                prop_assert!(cost > walk.algorithm.budget());
                for later in [1, walk.algorithm.period_ns(), 2 * walk.algorithm.horizon_ns()] {
                    prop_assert_eq!(at(now.later(later)).retry_after_ns, NEVER);
                }
            } else if told > 0 {
                prop_assert!(!at(now.later(told - 1)).allowed, "{} fits before {}", cost, told);
                prop_assert_eq!(at(now.later(told - 1)).retry_after_ns, 1);
                prop_assert!(at(now.later(told)).allowed, "{} does not fit after {}", cost, told);
            } else {
                prop_assert!(at(now).allowed);
            }
        }
        walk.ask(cost);
    }
    Ok(())
}

for_every_algorithm!(a_zero_cost_changes_no_verdict, 48, super::check_looks);

/// A charge of 0 is allowed, so it may be made. It must change no verdict, now or later.
fn check_looks(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    let mut looked_at = walk.state.clone();
    for step in &history.steps {
        let cost = walk.arrive(step);
        for cost in [cost, 0, 1] {
            let verdict = walk.algorithm.probe(looked_at.as_slice(), walk.now, cost, walk.salt);
            prop_assert_eq!(verdict, walk.probe(cost), "cost {} at {:?}", cost, walk.now);
        }
        prop_assert_eq!(
            walk.algorithm.is_idle(looked_at.as_slice(), walk.now),
            walk.algorithm.is_idle(walk.state.as_slice(), walk.now)
        );
        if walk.ask(cost).allowed {
            charge(&walk.algorithm, &mut looked_at, walk.now, cost, walk.salt);
        }
        if walk.probe(0).allowed {
            match &mut looked_at {
                State::Inline(state) => walk.algorithm.charge_inline(state, walk.now, 0, walk.salt),
                State::Heap(state) => walk.algorithm.charge_heap(state, walk.now, 0, walk.salt),
            }
        }
    }
    Ok(())
}

for_every_algorithm!(a_state_means_the_same_inline_and_on_the_heap, 32, super::check_places);

/// An inline state may be kept on the heap instead, and an empty state is a fresh one.
fn check_places(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    let mut heap = Vec::new();
    for step in &history.steps {
        let cost = walk.arrive(step);
        prop_assert_eq!(walk.algorithm.probe(&heap, walk.now, cost, walk.salt), walk.probe(cost));
        if walk.ask(cost).allowed && cost > 0 {
            walk.algorithm.charge_heap(&mut heap, walk.now, cost, walk.salt);
            prop_assert_eq!(heap.as_slice(), walk.state.as_slice());
        }
        let zeros = vec![0; walk.state.as_slice().len()];
        let fresh = walk.algorithm.fresh();
        for state in [&zeros[..], &[]] {
            prop_assert_eq!(
                walk.algorithm.probe(state, walk.now, cost, walk.salt),
                walk.algorithm.probe(fresh.as_slice(), walk.now, cost, walk.salt)
            );
        }
    }
    Ok(())
}

#[test]
fn costs_above_the_largest_burst_never_pass() {
    for leaky in [false, true] {
        let algorithm = Terms::Bucket { leaky, units: 1, period_ns: 1, capacity: UNITS_MAX }.algorithm();
        let now = Now::at(1_800_000_000 * S);
        let fresh = algorithm.fresh();
        assert!(algorithm.probe(fresh.as_slice(), now, UNITS_MAX, 0).allowed);
        for cost in [UNITS_MAX + 1, u64::MAX] {
            let Verdict { allowed, retry_after_ns, .. } = algorithm.probe(fresh.as_slice(), now, cost, 0);
            assert_eq!((allowed, retry_after_ns), (false, NEVER), "a cost of {cost}");
        }
    }
}

#[test]
fn peeks_leave_no_trace_in_a_sliding_log() {
    let log = Terms::Sliding { limit: 2, window_ns: 10 * S, slots: None, quota: false }.algorithm();
    let start = Now::at(1_800_000_000 * S);
    let mut state = Vec::new();
    log.charge_heap(&mut state, start, 1, 0);
    for second in 1..=5 {
        log.charge_heap(&mut state, start.later(second * S), 0, 0);
    }
    assert_eq!(state.len(), 2, "one charge was made");
    assert_eq!(log.probe(&state, start.later(5 * S), 2, 0).reset_after_ns, 5 * S);
    assert!(log.is_idle(&state, start.later(10 * S)));
}

/// The window's last second belongs to the window, and the next second to the next window.
#[track_caller]
fn resets(algorithm: &Algorithm, at: &str, end: &str) {
    let ns = |text: &str| {
        let instant: jiff::Timestamp = text.parse().expect("an instant");
        u64::try_from(instant.as_nanosecond()).expect("after 1970")
    };
    let (at_ns, end_ns) = (ns(at), ns(end));
    let reset_after_ns = |wall_ns: u64| algorithm.probe(&[], Now::at(wall_ns), 1, 0).reset_after_ns;
    assert_eq!(reset_after_ns(at_ns), end_ns - at_ns, "from {at}");
    assert_eq!(reset_after_ns(end_ns - 1), 1, "just before {end}");
    assert!(reset_after_ns(end_ns) > 3_600 * S, "at {end}");
}

#[test]
fn quotas_reset_by_the_wall_clock() {
    // Days in the past: laws on days to come change.
    use Period::{Day, Month, Week, Year};
    let quota = |period, zone| Terms::Calendar { limit: 1, period, zone }.algorithm();
    resets(&quota(Day, "UTC"), "2026-07-01T12:00:00Z", "2026-07-02T00:00:00Z");
    // 23 hours and 25 hours.
    resets(&quota(Day, "Europe/Berlin"), "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z");
    resets(&quota(Day, "Europe/Berlin"), "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z");
    resets(&quota(Week, "America/New_York"), "2026-03-07T12:00:00Z", "2026-03-09T04:00:00Z");
    resets(&quota(Month, "Asia/Kathmandu"), "2024-02-10T00:00:00Z", "2024-02-29T18:15:00Z");
    resets(&quota(Month, "Australia/Lord_Howe"), "2026-10-03T00:00:00Z", "2026-10-31T13:00:00Z");
    resets(&quota(Year, "Pacific/Apia"), "2011-12-30T09:59:59Z", "2011-12-31T10:00:00Z");
    // There is no 30 December: the 29th ends where the 31st begins.
    resets(&quota(Day, "Pacific/Apia"), "2011-12-29T23:00:00Z", "2011-12-30T10:00:00Z");
    // 24:00 is 01:00.
    resets(&quota(Day, "America/Santiago"), "2025-09-06T12:00:00Z", "2025-09-07T04:00:00Z");
    // 01:00 is 00:00 again: the day began an hour ago.
    resets(&quota(Day, "America/Havana"), "2025-11-01T12:00:00Z", "2025-11-02T04:00:00Z");
    resets(&quota(Day, "America/Havana"), "2025-11-02T05:00:00Z", "2025-11-03T05:00:00Z");
    // 00:01 is 23:01 again: the new day has begun, and keeps its first minute.
    resets(&quota(Day, "America/St_Johns"), "2006-10-28T12:00:00Z", "2006-10-29T02:30:00Z");
    resets(&quota(Day, "America/St_Johns"), "2006-10-29T02:31:00Z", "2006-10-30T03:30:00Z");
}
