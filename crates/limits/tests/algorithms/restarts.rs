//! States that may be forgotten, and states that must be assumed if nothing is known: no restart gives
//! anything back.

use acequia_limits::{
    Algorithm, Now,
    algorithm::{State, is_never},
};
use proptest::{prelude::*, test_runner::TestCaseResult};

use crate::{
    history::{self, Cost, History, Pause, Step, Walk, charge, for_every_algorithm},
    terms,
};

for_every_algorithm!(a_cell_without_debt_is_idle_and_may_be_forgotten, 96, super::check_idle);

fn check_idle(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    for step in &history.steps {
        let cost = walk.arrive(step);
        let idle = walk.algorithm.is_idle(walk.state.as_slice(), walk.now);
        prop_assert_eq!(idle, walk.reference.owes_nothing(walk.now), "at {:?}", walk.now);
        if idle {
            for later in instants(&walk.algorithm, walk.state.as_slice(), &[], walk.now, walk.salt) {
                let (state, now, salt) = (walk.state.as_slice(), walk.now.later(later), walk.salt);
                prop_assert!(walk.algorithm.is_idle(state, now));
                let fresh = walk.algorithm.fresh();
                for cost in [cost, 0, 1, walk.algorithm.budget()] {
                    prop_assert_eq!(
                        walk.algorithm.probe(state, now, cost, salt),
                        walk.algorithm.probe(fresh.as_slice(), now, cost, salt)
                    );
                }
            }
        }
        walk.ask(cost);
        let horizon = walk.now.later(walk.algorithm.horizon_ns());
        prop_assert!(walk.algorithm.is_idle(walk.state.as_slice(), horizon), "idle after the horizon");
    }
    Ok(())
}

for_every_algorithm!(a_joined_cell_owes_at_least_as_much_as_either_cell, 96, super::check_join);

fn check_join(history: &History) -> TestCaseResult {
    let (mut one, mut other) = (Walk::new(history), Walk::new(history));
    for (number, step) in history.steps.iter().enumerate() {
        let cost = one.arrive(step);
        other.now = one.now;
        if number % 3 == 0 {
            one.ask(cost)
        } else {
            other.ask(cost)
        };
        let (algorithm, salt) = (&one.algorithm, one.salt);
        let (a, b) = (one.state.as_slice(), other.state.as_slice());
        let both = algorithm.join(a, b, one.now);
        prop_assert!(algorithm.is_sound(both.as_slice()));
        let left = |state: &[u64], now: Now| algorithm.available(state, now, salt);
        for later in instants(algorithm, a, b, one.now, salt).into_iter().chain([0]) {
            let now = one.now.later(later);
            prop_assert!(left(both.as_slice(), now) <= left(a, now).min(left(b, now)), "{:?} later", later);
            let twice = algorithm.join(a, a, one.now);
            prop_assert_eq!(left(twice.as_slice(), now), left(a, now));
        }
    }
    Ok(())
}

for_every_algorithm!(a_replacing_limit_begins_when_all_units_are_back, 64, super::check_succession);

fn check_succession(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    for step in &history.steps {
        let cost = walk.arrive(step);
        walk.ask(cost);
        let at = walk.algorithm.succession_at(walk.now);
        prop_assert!(at > walk.now.wall_ns);
        prop_assert!(
            walk.algorithm.is_idle(walk.state.as_slice(), walk.now.later(at - walk.now.wall_ns)),
            "something is still spent when the successor begins"
        );
    }
    Ok(())
}

for_every_algorithm!(an_unknown_cell_counts_as_spent, 96, super::check_spent);

fn check_spent(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    for step in &history.steps {
        let cost = walk.arrive(step);
        walk.ask(cost);
        let (algorithm, then, salt) = (&walk.algorithm, walk.now, walk.salt);
        let spent = algorithm.spent_at(then, salt);
        for cost in [cost.max(1), 1, u64::MAX] {
            prop_assert!(!algorithm.probe(spent.as_slice(), then, cost, salt).allowed);
        }
        prop_assert_eq!(algorithm.probe(spent.as_slice(), then, 0, salt).remaining, 0);
        check_owes_at_least(algorithm, spent.as_slice(), walk.state.as_slice(), then, salt)?;
    }
    Ok(())
}

for_every_algorithm!(a_crash_gives_no_covered_unit_back, 64, super::check_cover);

/// A cell is charged, a chunk is reserved ahead of it on disk, and the cell goes on from memory. While the
/// reservation is said to cover the cell, a crash must not give a unit back.
fn check_cover(history: &History) -> TestCaseResult {
    let (before, after) = history.steps.split_at(history.steps.len() / 2);
    let mut walk = Walk::through(&History { steps: before.to_vec(), ..history.clone() });
    for (part, step) in [5, 16, 200, 1_000].into_iter().cycle().zip(after) {
        let cost = walk.arrive(step);
        walk.ask(cost.clamp(1, walk.algorithm.budget().max(1)));
        let charged = walk.state.clone();
        let reserved = reserve(&walk, Cost::Part(part));
        // The chunk itself must cover the cell as soon as anything was charged at this instant.
        if charged != walk.algorithm.fresh()
            && walk.reference.charges.last().is_some_and(|c| c.at == walk.now)
        {
            prop_assert!(walk.algorithm.covers(reserved.as_slice(), walk.state.as_slice(), walk.now));
        }
        check_covered(&walk, &reserved)?;
        for (place, pause) in
            [Pause::Ns(0), Pause::Ns(1), Pause::Part(3), Pause::Part(40)].into_iter().enumerate()
        {
            let cost = if place % 2 == 0 { Cost::Part(1) } else { Cost::Units(1) };
            let cost = walk.arrive(&Step { pause, cost, clock_set: None });
            walk.ask(cost);
            check_covered(&walk, &reserved)?;
        }
    }
    Ok(())
}

/// The cell's state and a chunk more, as far as units are left to reserve.
fn reserve(walk: &Walk, chunk: Cost) -> State {
    let mut reserved = walk.state.clone();
    let units = match walk.algorithm {
        // A log on disk is the log in memory.
        Algorithm::SlidingLog(_) => walk.algorithm.chunk_max(),
        _ => walk.units(chunk).max(walk.algorithm.chunk_max()),
    };
    charge(&walk.algorithm, &mut reserved, walk.now, units.min(walk.probe(0).remaining), walk.salt);
    reserved
}

fn check_covered(walk: &Walk, reserved: &State) -> TestCaseResult {
    if walk.algorithm.covers(reserved.as_slice(), walk.state.as_slice(), walk.now) {
        check_owes_at_least(
            &walk.algorithm,
            reserved.as_slice(),
            walk.state.as_slice(),
            walk.now,
            walk.salt,
        )?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(history::config(128))]

    /// Two cells of one limit are charged at the same instants, but with different costs. Cover is never
    /// claimed wrongly, whichever cell is on disk.
    #[test]
    fn a_reserved_state_covers_only_its_own_history(
        history in history::history(prop_oneof![
            terms::token_bucket(),
            terms::fixed_window(),
            terms::sliding_slots(),
            terms::sliding_log(),
            terms::approximate(),
        ]),
        who in prop::collection::vec(1_u8..4, 24),
    ) {
        let (mut ours, mut theirs) = (Walk::new(&history), Walk::new(&history));
        for (step, who) in history.steps.iter().zip(who) {
            let cost = ours.arrive(step);
            theirs.now = ours.now;
            if who & 1 > 0 {
                ours.ask(cost);
            }
            if who & 2 > 0 {
                theirs.ask(cost);
            }
            check_covered(&ours, &theirs.state)?;
            check_covered(&theirs, &ours.state)?;
        }
    }
}

/// Checks that the `strict` state allows nothing that the `lax` state does not, at `now` and later.
fn check_owes_at_least(
    algorithm: &Algorithm,
    strict: &[u64],
    lax: &[u64],
    now: Now,
    salt: u32,
) -> TestCaseResult {
    for later in instants(algorithm, strict, lax, now, salt) {
        let at = now.later(later);
        let strict_left = algorithm.probe(strict, at, 0, salt).remaining;
        let lax_left = algorithm.probe(lax, at, 0, salt).remaining;
        prop_assert!(strict_left <= lax_left, "{} given back after {} ns", strict_left - lax_left, later);
        for cost in [1, strict_left] {
            prop_assert!(
                !algorithm.probe(strict, at, cost, salt).allowed
                    || algorithm.probe(lax, at, cost, salt).allowed
            );
        }
    }
    Ok(())
}

/// Waits after which two states may begin to differ: the waits that the states name, the instants around
/// those, and some others.
fn instants(algorithm: &Algorithm, strict: &[u64], lax: &[u64], now: Now, salt: u32) -> Vec<u64> {
    let budget = algorithm.budget();
    let period = algorithm.period_ns();
    let mut instants = vec![0, 1, period / 3, period / 2, period - 1, period, period + 1, 2 * period];
    for state in [strict, lax] {
        for cost in [0, 1, budget / 7, budget / 2, budget] {
            let verdict = algorithm.probe(state, now, cost, salt);
            for ns in [verdict.retry_after_ns, verdict.reset_after_ns] {
                if !is_never(ns) {
                    instants.extend([ns.saturating_sub(1), ns, ns + 1]);
                }
            }
        }
    }
    instants.sort_unstable();
    instants.dedup();
    instants
}
