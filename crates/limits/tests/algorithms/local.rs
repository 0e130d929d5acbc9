//! Pieces of a limit, each enforced by itself: together they admit no more than the whole.

use acequia_limits::{
    Algorithm, Now, PERIOD_NS_MAX, Part, RATE_PARTS, UNITS_MAX, algorithm::State, verdict::NEVER,
};
use proptest::{prelude::*, test_runner::TestCaseResult};

use crate::{
    Charge, Reference,
    history::{self, Cost, History, Walk, charge, for_every_algorithm},
    refund::refund,
    terms::{self, Terms},
};

const S: u64 = 1_000_000_000;
const MILLION: u64 = 1_000_000;

fn part(algorithm: &Algorithm, rate: u32, units: u64) -> Part {
    Part { rate: if algorithm.has_rate() { rate } else { 0 }, units }
}

for_every_algorithm!(the_largest_part_of_a_limit_is_the_whole_limit, 32, super::check_whole);

fn check_whole(history: &History) -> TestCaseResult {
    let whole = history.terms.algorithm();
    prop_assert_eq!(&whole.local(part(&whole, RATE_PARTS, whole.budget()), 0, 0), &whole);
    let few = whole.local(part(&whole, 1, 1), 0, 0);
    prop_assert_eq!((few.name(), few.budget()), (whole.name(), 1));
    prop_assert_eq!(std::mem::discriminant(&few), std::mem::discriminant(&whole));
    Ok(())
}

for_every_algorithm!(a_used_up_cell_has_no_units_left_and_keeps_its_debt, 48, super::check_used_up);

fn check_used_up(history: &History) -> TestCaseResult {
    let walk = Walk::through(history);
    let (algorithm, now, salt, state) = (&walk.algorithm, walk.now, walk.salt, walk.state.as_slice());
    for ago_ns in [0, 1, algorithm.period_ns() / 2] {
        let ago = Now {
            steady_ns: now.steady_ns.saturating_sub(ago_ns),
            wall_ns: now.wall_ns.saturating_sub(ago_ns),
        };
        let up = algorithm.used_up(state, ago, now, salt);
        prop_assert!(algorithm.is_sound(up.as_slice()));
        prop_assert_eq!(algorithm.available(up.as_slice(), now, salt), 0);
        // Each debt also lasts for as long as before.
        for later in [1, S, algorithm.period_ns() / 2, algorithm.period_ns()] {
            let now = now.later(later);
            prop_assert!(
                algorithm.available(up.as_slice(), now, salt) <= algorithm.available(state, now, salt)
            );
        }
    }
    Ok(())
}

for_every_algorithm!(a_part_without_units_denies_every_request, 48, super::check_nothing);

fn check_nothing(history: &History) -> TestCaseResult {
    let walk = Walk::through(history);
    let (whole, now, salt) = (&walk.algorithm, walk.now, walk.salt);
    let margin_ns = if history.salt.is_multiple_of(2) { 0 } else { 1_000 };
    let nothing = whole.local(part(whole, 1 + history.salt % 7, 0), history.salt % 1_000, margin_ns);
    let kept = nothing.convert(whole, walk.state.as_slice(), now);
    let resized = nothing.resize(whole, walk.state.as_slice(), now);
    let redated = nothing.redated(kept.as_slice(), now.steady_ns, now);
    for mut state in [nothing.fresh(), kept, resized, redated, nothing.spent_at(now, salt)] {
        for later in [0, 1, S, whole.period_ns()] {
            let now = now.later(later);
            for cost in [1, 2, UNITS_MAX, u64::MAX] {
                let verdict = nothing.probe(state.as_slice(), now, cost, salt);
                prop_assert!(!verdict.allowed);
                prop_assert_eq!((verdict.remaining, verdict.retry_after_ns), (0, NEVER));
            }
            prop_assert_eq!(nothing.available(state.as_slice(), now, salt), 0);
            nothing.probe(state.as_slice(), now, 0, salt);
            nothing.is_idle(state.as_slice(), now);
            nothing.succession_at(now);
        }
        refund(&nothing, &mut state, now, 3, now, whole, salt);
        // A millionth of a slow rate may take longer than clocks last.
        prop_assert!(nothing.covers(state.as_slice(), state.as_slice(), now));
    }
    prop_assert_eq!((nothing.chunk_max(), nothing.budget()), (0, 0));
    nothing.horizon_ns();
    Ok(())
}

for_every_algorithm!(a_part_allows_a_request_exactly_at_its_retry_time, 64, super::check_waits);

fn check_waits(history: &History) -> TestCaseResult {
    let mut walk = piece(history, 0);
    for step in &history.steps {
        let cost = walk.arrive(step);
        for cost in [cost, 1, walk.units(Cost::Budget(0))] {
            let at = |ns| walk.algorithm.probe(walk.state.as_slice(), walk.now.later(ns), cost, walk.salt);
            let told = at(0).retry_after_ns;
            if told == NEVER {
                // The cost may also fit only after clocks have ended.
                prop_assert!(cost > walk.algorithm.budget() || walk.algorithm.has_rate());
            } else if told > 0 && told < PERIOD_NS_MAX {
                prop_assert!(!at(told - 1).allowed && at(told).allowed);
            }
        }
        charge_all(&mut walk, cost);
    }
    Ok(())
}

/// A walk with a third of the limit, and clocks that may drift a little.
fn piece(history: &History, drift_ppm: u32) -> Walk {
    let mut walk = Walk::new(history);
    let units = walk.algorithm.budget().div_ceil(3);
    walk.algorithm = walk.algorithm.local(part(&walk.algorithm, RATE_PARTS / 3, units), drift_ppm, 0);
    walk.state = walk.algorithm.fresh();
    walk
}

fn charge_all(walk: &mut Walk, cost: u64) -> u64 {
    let allowed = walk.probe(cost).allowed;
    if allowed {
        charge(&walk.algorithm, &mut walk.state, walk.now, cost, walk.salt);
    }
    if allowed { cost } else { 0 }
}

for_every_algorithm!(spending_is_over_after_its_lingering_time, 64, super::check_lingering);

fn check_lingering(history: &History) -> TestCaseResult {
    let mut walk = piece(history, 500);
    for step in &history.steps {
        let cost = walk.arrive(step);
        charge_all(&mut walk, cost);
        let lingers_ns = walk.algorithm.lingers_ns();
        let edges = matches!(history.terms, Terms::Fixed { .. } | Terms::Calendar { .. });
        if walk.algorithm.has_rate() || edges {
            prop_assert_eq!(lingers_ns, 0);
        } else {
            let after = walk.now.later(lingers_ns);
            prop_assert!(walk.algorithm.is_idle(walk.state.as_slice(), after));
        }
    }
    Ok(())
}

for_every_algorithm!(a_resized_part_keeps_its_spent_units, 64, super::check_resize);

/// A piece shrinks to a few units and grows back, over and over: nothing is minted.
fn check_resize(history: &History) -> TestCaseResult {
    let mut walk = piece(history, 100);
    let large = walk.algorithm.clone();
    let whole = history.terms.algorithm();
    let small = whole.local(part(&whole, RATE_PARTS / 7, whole.budget() / 7), 100, 0);
    for step in &history.steps {
        let cost = walk.arrive(step);
        charge_all(&mut walk, cost);
        let left = |state: &State| large.available(state.as_slice(), walk.now, walk.salt);
        let shrunk = small.resize(&large, walk.state.as_slice(), walk.now);
        let used = large.budget() - left(&walk.state);
        if !matches!(history.terms, Terms::Approximate { .. }) {
            prop_assert_eq!(
                small.available(shrunk.as_slice(), walk.now, walk.salt),
                small.budget().saturating_sub(used)
            );
        }
        let back = large.resize(&small, shrunk.as_slice(), walk.now);
        prop_assert!(left(&back) <= left(&walk.state));
        if large.has_rate() {
            prop_assert!(left(&walk.state) - left(&back) <= 1, "a conversion rounds up");
        } else {
            prop_assert_eq!(&back, &walk.state);
        }
        walk.state = back;
    }
    Ok(())
}

for_every_algorithm!(a_debt_is_moved_as_in_a_ledger, 64, super::check_debt);

/// Units are owed and forgiven as in a ledger that never goes below 0. Other algorithms have no debt.
fn check_debt(history: &History) -> TestCaseResult {
    let mut walk = Walk::new(history);
    let mut debt = 0_u128;
    for (place, step) in history.steps.iter().enumerate() {
        let before = walk.now.steady_ns;
        let units = walk.arrive(step).min(UNITS_MAX);
        let mut state = walk.state.as_slice().to_vec();
        let kept = state.clone();
        if place % 2 == 0 {
            walk.algorithm.owe(&mut state, walk.now, units);
        } else {
            walk.algorithm.forgive(&mut state, walk.now, units);
        }
        let Terms::Bucket { units: rate, period_ns, capacity, .. } = history.terms else {
            prop_assert_eq!(state, kept);
            walk.ask(units);
            continue;
        };
        let ticks = u128::from(units) * u128::from(period_ns);
        debt = debt.saturating_sub(u128::from(rate) * u128::from(walk.now.steady_ns - before));
        debt = if place % 2 == 0 { debt + ticks } else { debt.saturating_sub(ticks) };
        let full = u128::from(capacity) * u128::from(period_ns);
        prop_assert_eq!(
            u128::from(walk.algorithm.available(&state, walk.now, 0)),
            full.saturating_sub(debt) / u128::from(period_ns)
        );
        prop_assert_eq!(walk.algorithm.is_idle(&state, walk.now), debt == 0);
        let mut inline = [kept[0], kept[1]];
        if place % 2 == 0 {
            walk.algorithm.owe_inline(&mut inline, walk.now, units);
        } else {
            walk.algorithm.forgive_inline(&mut inline, walk.now, units);
        }
        prop_assert_eq!(&inline[..], &state[..]);
        walk.state = State::Inline(inline);
    }
    Ok(())
}

#[test]
fn an_unbounded_debt_is_never_forgotten() {
    let whole = Terms::Bucket { leaky: false, units: 1, period_ns: PERIOD_NS_MAX, capacity: 1 }.algorithm();
    let piece = whole.local(Part { rate: 1, units: UNITS_MAX }, 999, 0);
    let now = Now::at((1 << 63) - 1 - PERIOD_NS_MAX);
    for algorithm in [&whole, &piece] {
        let mut state = Vec::new();
        for _ in 0..10_000 {
            algorithm.owe(&mut state, now, u64::MAX);
        }
        for later in [0, PERIOD_NS_MAX] {
            assert!(!algorithm.probe(&state, now.later(later), 0, 0).allowed);
            assert!(!algorithm.probe(&state, now.later(later), UNITS_MAX, 0).allowed);
            assert_eq!(algorithm.available(&state, now.later(later), 0), 0);
        }
        for other in [&whole, &piece] {
            let converted = other.convert(algorithm, &state, now);
            assert_eq!(other.available(converted.as_slice(), now, 0), 0);
        }
    }
}

/// A region's step: true time passes, and then the region asks.
#[derive(Clone, Copy, Debug)]
struct Move {
    who: usize,
    /// True time that passes first, in millionths of the limit's period.
    part: u64,
    cost: Cost,
}

/// Three regions whose steady clocks run faster or slower than time, by up to the drift.
#[derive(Clone, Debug)]
struct Regions {
    terms: Terms,
    /// The shares of the first two regions in the rate and in the units, in thousandths. The last region
    /// has the rest.
    shares: [u64; 2],
    drift_ppm: u32,
    /// How fast each clock is, in millionths.
    fast_ppm: [i64; 3],
    moves: Vec<Move>,
}

fn regions() -> impl Strategy<Value = Regions> {
    let terms = prop_oneof![
        2 => terms::token_bucket(),
        2 => terms::leaky_bucket(),
        1 => terms::sliding_log(),
        1 => terms::sliding_slots(),
        1 => terms::rolling_quota(),
    ];
    let one = (0_usize..3, prop_oneof![Just(0_u64), 0..400_000_u64, 994_000..1_002_000_u64], history::cost())
        .prop_map(|(who, part, cost)| Move { who, part, cost });
    let shares = prop::array::uniform2(0_u64..500);
    let fast = prop::array::uniform3(-1_000_i64..=1_000);
    (terms, shares, 0_u32..5_000, fast, prop::collection::vec(one, 1..40)).prop_map(
        |(terms, shares, drift_ppm, fast, moves)| Regions {
            terms,
            shares,
            drift_ppm,
            fast_ppm: fast.map(|fast| i64::from(drift_ppm) * fast / 1_000),
            moves,
        },
    )
}

proptest! {
    #![proptest_config(history::config(512))]

    /// The promise: over every stretch of true time, all regions together stay within the limit.
    #[test]
    fn parts_together_admit_no_more_than_the_whole_limit(regions in regions()) {
        let whole = regions.terms.algorithm();
        let split = |total: u64| {
            let [a, b] = regions.shares.map(|share| (u128::from(total) * u128::from(share) / 1_000) as u64);
            [a, b, total - a - b]
        };
        let (units, rates) = (split(whole.budget()), split(u64::from(RATE_PARTS) - 3));
        let pieces: Vec<Algorithm> = (0..3)
            .map(|who| whole.local(part(&whole, rates[who] as u32 + 1, units[who]), regions.drift_ppm, 0))
            .collect();
        let mut states: Vec<State> = pieces.iter().map(Algorithm::fresh).collect();
        let mut true_ns = 0;
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for step in &regions.moves {
            // Whole milliseconds, so that clocks that drift show whole nanoseconds.
            true_ns += whole.period_ns() / MILLION * step.part / MILLION * MILLION;
            let fast = i128::from(true_ns) * i128::from(regions.fast_ppm[step.who]) / i128::from(MILLION);
            let steady_ns = 100_000_000 * S + true_ns;
            let now = Now::at(u64::try_from(i128::from(steady_ns) + fast).expect("after 1970"));
            if now.steady_ns > 1 << 62 {
                break;
            }
            let (algorithm, state) = (&pieces[step.who], &mut states[step.who]);
            let left = algorithm.available(state.as_slice(), now, 0);
            let cost = match step.cost {
                Cost::Units(units) => units.min(left),
                Cost::Part(part) => (u128::from(left) * u128::from(part) / 600) as u64,
                _ => left,
            };
            charge(algorithm, state, now, cost, 0);
            admitted.push((true_ns, cost));
        }
        for (first, (from, _)) in admitted.iter().enumerate() {
            let mut sum = 0_u128;
            for (to, units) in &admitted[first..] {
                sum += u128::from(*units);
                match regions.terms {
                    Terms::Bucket { units, period_ns, capacity, .. } => {
                        let back = u128::from(to - from) * u128::from(units);
                        prop_assert!(
                            sum * u128::from(period_ns) <= u128::from(capacity) * u128::from(period_ns) + back
                        );
                    }
                    Terms::Sliding { limit, window_ns, .. } if to - from < window_ns => {
                        prop_assert!(sum <= u128::from(limit));
                    }
                    _ => {}
                }
            }
        }
    }

    /// A change between stretched and unstretched windows forgets nothing, in either direction.
    #[test]
    fn a_drift_allowance_set_later_mints_no_unit(
        history in history::history(prop_oneof![
            terms::sliding_log(), terms::sliding_slots(), terms::approximate(), terms::rolling_quota()
        ]),
        drift_ppm in 0_u32..5_000,
    ) {
        let old = Walk::through(&history);
        let units = old.algorithm.budget();
        let new = old.algorithm.local(Part { rate: 0, units }, drift_ppm, 0);
        let state = new.convert(&old.algorithm, old.state.as_slice(), old.now);
        for thousandths in [0, 1, 10, 100, 300, 600, 990, 999, 1_000, 1_500, 1_990] {
            let now = old.now.later(old.algorithm.period_ns() / 1_000 * thousandths);
            let most = match history.terms {
                // Slots may have held units for longer than needed.
                Terms::Sliding { window_ns, .. } => {
                    let recent = |charge: &&Charge| now.steady_ns - charge.at.steady_ns < window_ns;
                    units - old.reference.charges.iter().filter(recent).map(|c| c.units).sum::<u64>()
                }
                _ => old.algorithm.available(old.state.as_slice(), now, 0),
            };
            let left = new.available(state.as_slice(), now, 0);
            prop_assert!(left <= most, "minted after {} thousandths", thousandths);
        }
        prop_assert!(new.is_idle(state.as_slice(), old.now.later(2 * new.horizon_ns())));
    }
}

/// A fast clock would refill a bucket sooner than time does.
#[test]
fn without_the_drift_allowance_a_fast_clock_admits_too_much() {
    let terms = Terms::Bucket { leaky: false, units: 1_000_000, period_ns: S, capacity: 100 };
    let whole = terms.algorithm();
    // One true second, on a clock that gains 200 ppm.
    let (start, end) = (Now::at(S), Now::at(2 * S + 200_000));
    for (drift_ppm, over) in [(0, 200), (200, 0)] {
        let piece = whole.local(Part { rate: RATE_PARTS, units: 100 }, drift_ppm, 0);
        let mut state = Vec::new();
        let mut admitted = 0;
        let mut now = start;
        while now <= end {
            let left = piece.available(&state, now, 0);
            piece.charge_heap(&mut state, now, left, 0);
            admitted += left;
            now = now.later(10_000);
        }
        assert_eq!(admitted.saturating_sub(1_000_000 + 100), over, "drift {drift_ppm}");
    }
}

/// The reference of a whole limit also serves for a piece whose rate is an exact fraction.
#[test]
fn half_of_a_bucket_equals_a_bucket_of_half_the_size() {
    let whole = Terms::Bucket { leaky: false, units: 10, period_ns: S, capacity: 100 };
    let half = Terms::Bucket { leaky: false, units: 5, period_ns: S, capacity: 50 };
    let piece = whole.algorithm().local(Part { rate: RATE_PARTS / 2, units: 50 }, 0, 0);
    assert_eq!(piece, half.algorithm());
    let reference = Reference::new(&half, 0);
    let now = Now::at(S);
    assert_eq!(piece.probe(&[], now, 7, 0), reference.verdict(now, 7));
}

#[test]
fn a_rounded_third_of_a_rate_waits_a_little_longer() {
    let whole = Terms::Bucket { leaky: true, units: 3, period_ns: S, capacity: 9 }.algorithm();
    let piece = whole.local(Part { rate: RATE_PARTS / 3, units: 3 }, 0, 0);
    let mut state = Vec::new();
    piece.charge_heap(&mut state, Now::at(S), 3, 0);
    // One part in 2^20 is missing.
    assert_eq!(piece.probe(&state, Now::at(S), 1, 0).retry_after_ns, 1_000_000_954);
}
