//! Refunds: a refunded charge is as if it had been smaller from the start, or nothing comes back.

use acequia_limits::{Algorithm, Now, algorithm::State};
use proptest::{prelude::*, test_runner::TestCaseResult};

use crate::{
    Charge, Reference,
    history::{Cost, History, Pause, Step, Walk, for_every_algorithm},
    terms::Terms,
};

const S: u64 = 1_000_000_000;

/// Gives units back, wherever the state is kept.
pub(crate) fn refund(
    algorithm: &Algorithm,
    state: &mut State,
    charged: Now,
    units: u64,
    now: Now,
    global: &Algorithm,
    salt: u32,
) -> u64 {
    match state {
        State::Inline(state) => algorithm.refund_inline(state, charged, units, now, global, salt),
        State::Heap(state) => algorithm.refund(state, charged, units, now, global, salt),
    }
}

impl Reference {
    /// How much of a charge may come back.
    fn refundable(&self, charge: &Charge, units: u64, now: Now) -> u64 {
        let elapsed_ns = now.steady_ns - charge.at.steady_ns;
        let counts = match self.terms {
            Terms::Bucket { units: rate, period_ns, .. } => {
                let left = u128::from(units) * u128::from(period_ns);
                let left = left.saturating_sub(u128::from(rate) * u128::from(elapsed_ns));
                return u64::try_from(left / u128::from(period_ns)).expect("at most all");
            }
            Terms::Fixed { .. } | Terms::Calendar { .. } => charge.end_ns == self.window_end(now),
            Terms::Sliding { window_ns, .. } => match self.terms.slots() {
                None => elapsed_ns < window_ns,
                Some(slots) => {
                    let slot_ns = window_ns.div_ceil(u64::from(slots));
                    now.steady_ns / slot_ns - charge.at.steady_ns / slot_ns <= u64::from(slots)
                }
            },
            Terms::Approximate { window_ns, .. } => {
                now.steady_ns / window_ns - charge.at.steady_ns / window_ns <= 1
            }
        };
        if counts { units } else { 0 }
    }
}

for_every_algorithm!(a_refunded_charge_was_never_made, 96, super::check_refunds);

fn check_refunds(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    for (place, step) in history.steps.iter().enumerate() {
        let cost = walk.arrive(step);
        for cost in [cost, 0, 1] {
            let expected = walk.reference.verdict(walk.now, cost);
            prop_assert_eq!(walk.probe(cost), expected, "cost {} at {:?}", cost, walk.now);
        }
        walk.ask(cost);
        // Some older charge comes back, wholly or in part, soon or late.
        let charges = walk.reference.charges.len();
        if place % 3 == 0 || charges == 0 {
            continue;
        }
        let which = charges - 1 - (place / 2) % charges;
        let charge = walk.reference.charges[which];
        let units = if place % 2 == 0 { charge.units } else { charge.units.div_ceil(2) };
        let expected = walk.reference.refundable(&charge, units, walk.now);
        let (algorithm, global, salt) = (walk.algorithm.clone(), walk.algorithm.clone(), walk.salt);
        let back = refund(&algorithm, &mut walk.state, charge.at, units, walk.now, &global, salt);
        prop_assert_eq!(back, expected, "{} of {:?} at {:?}", units, charge, walk.now);
        walk.reference.charges[which].units -= back;
    }
    Ok(())
}

for_every_algorithm!(a_refund_that_is_too_late_changes_nothing, 48, super::check_gone);

/// A refund that is too late, or of units that were never charged, leaves no trace.
fn check_gone(history: &History) -> TestCaseResult {
    let mut walk = Walk::through(history);
    let wait = Step { pause: Pause::Part(2_200), cost: Cost::Units(0), clock_set: None };
    let charges = walk.reference.charges.clone();
    for step in [wait, wait] {
        walk.arrive(&step);
    }
    let horizon_ns = walk.algorithm.horizon_ns();
    let global = walk.algorithm.clone();
    for charge in charges.iter().filter(|charge| walk.now.steady_ns - charge.at.steady_ns > horizon_ns) {
        let before = walk.state.clone();
        let back = refund(&global, &mut walk.state, charge.at, charge.units, walk.now, &global, walk.salt);
        prop_assert_eq!(back, 0);
        prop_assert_eq!(&walk.state, &before);
    }
    let mut fresh = walk.algorithm.fresh();
    let fresh_back = refund(&global, &mut fresh, walk.now, 5, walk.now, &global, walk.salt);
    prop_assert_eq!(fresh_back, 0);
    prop_assert!(walk.algorithm.is_idle(fresh.as_slice(), walk.now));
    Ok(())
}

/// A bucket is spent, refills and is spent again, and only then does the first charge come back. If all of
/// it were credited, twice the burst would be spent at one instant.
#[test]
fn a_full_refund_of_a_refilled_charge_would_be_spent_twice() {
    let bucket = Terms::Bucket { leaky: false, units: 10, period_ns: S, capacity: 100 }.algorithm();
    let spend = |state: &mut Vec<u64>, now: Now| {
        let left = bucket.available(state, now, 0);
        bucket.charge_heap(state, now, left, 0);
        left
    };
    let first = Now::at(1_800_000_000 * S);
    let later = first.later(10 * S);
    for (naive, at_once) in [(true, 200), (false, 100)] {
        let mut state = Vec::new();
        assert_eq!(spend(&mut state, first), 100);
        let mut spent = spend(&mut state, later);
        if naive {
            bucket.forgive(&mut state, later, 100);
        } else {
            assert_eq!(bucket.refund(&mut state, first, 100, later, &bucket, 0), 0);
        }
        spent += spend(&mut state, later);
        assert_eq!(spent, at_once, "naive: {naive}");
    }
    // Soon after the charge, a refund gives the units that the rate has not given back yet.
    let mut state = Vec::new();
    bucket.charge_heap(&mut state, first, 50, 0);
    assert_eq!(bucket.refund(&mut state, first, 50, first.later(S), &bucket, 0), 40);
    assert_eq!(bucket.available(&state, first.later(S), 0), 100);
}

/// The rate of the whole limit counts: a slow piece's charge may have moved on to faster pieces.
#[test]
fn a_part_of_a_bucket_refunds_as_much_as_the_whole_would() {
    let whole = Terms::Bucket { leaky: false, units: 10, period_ns: S, capacity: 100 }.algorithm();
    let piece = whole.local(acequia_limits::Part { rate: 1 << 18, units: 40 }, 0, 0);
    let start = Now::at(1_800_000_000 * S);
    let mut state = Vec::new();
    piece.charge_heap(&mut state, start, 40, 0);
    // 5 units have come back to the piece; 20 would have come back to the whole.
    assert_eq!(piece.refund(&mut state, start, 40, start.later(2 * S), &whole, 0), 20);
    assert_eq!(piece.available(&state, start.later(2 * S), 0), 25);
}
