//! Compares standing shares with a reference that walks the sequence unit by unit, and checks their promises.

use acequia_limits::{RATE_PARTS, UNITS_MAX};
use acequia_rights::{
    MemberId, Split,
    standing::{DISTINCT_MAX, REGIONS_MAX, SUM_MAX, SplitFault, WEIGHT_MAX},
};
use proptest::prelude::*;

fn split(weights: &[u32]) -> Split {
    Split::new(&numbered(weights)).expect("possible weights")
}

fn numbered(weights: &[u32]) -> Vec<(MemberId, u32)> {
    // Member numbers with gaps, as in catalogues.
    weights.iter().enumerate().map(|(at, &weight)| (MemberId(at as u16 * 3 + 1), weight)).collect()
}

fn shares(split: &Split, total: u64, salt: u32) -> Vec<u64> {
    split.regions().map(|region| split.units(region, total, salt)).collect()
}

/// Tijdeman's rule in fractions, computed from scratch: the owner of unit 0, 1, 2, … of the period.
fn period(weights: &[u32]) -> Vec<usize> {
    let sum: u32 = weights.iter().sum();
    let slack = if weights.len() < 2 { 0.0 } else { 1.0 / (2.0 * weights.len() as f64 - 2.0) };
    let part = |row: usize| f64::from(weights[row]) / f64::from(sum);
    let mut taken = vec![0.0; weights.len()];
    let mut who = Vec::new();
    for step in 1..=sum {
        let owed = |row: usize| f64::from(step) * part(row) - taken[row];
        let deadline = |row: usize| (1.0 - slack - owed(row)) / part(row);
        let ready = (0..weights.len()).filter(|&row| owed(row) > slack - 1e-9);
        let next =
            ready.reduce(|a, b| if deadline(b) < deadline(a) - 1e-9 { b } else { a }).expect("somebody");
        taken[next] += 1.0;
        who.push(next);
    }
    who
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn weights() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        prop::collection::vec(1..=15_u32, 1..=REGIONS_MAX),
        prop::collection::vec(1..=100_u32, 1..=9),
        (1..=700_u32, prop::collection::vec(1..=3_u32, 0..=40)).prop_map(|(large, mut small)| {
            small.push(large);
            small
        }),
    ]
}

fn total() -> impl Strategy<Value = u64> {
    prop_oneof![0..=200_u64, 0..=5_000_u64, Just(UNITS_MAX), 0..=UNITS_MAX]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shares_sum_to_the_total(weights in weights(), total in total(), salt: u32) {
        let split = split(&weights);
        prop_assert_eq!(shares(&split, total, salt).iter().sum::<u64>(), total);
    }

    #[test]
    fn no_share_falls_when_the_total_grows(weights in weights(), total in total(), more in 1..=900_u64, salt: u32) {
        let split = split(&weights);
        let (less, more) = (shares(&split, total, salt), shares(&split, total + more, salt));
        prop_assert!(less.iter().zip(&more).all(|(less, more)| less <= more));
    }

    #[test]
    fn each_added_unit_goes_to_exactly_one_region(weights in weights(), salt: u32) {
        let split = split(&weights);
        let mut before = shares(&split, 0, salt);
        for total in 1..1_200 {
            let now = shares(&split, total, salt);
            let raised = now.iter().zip(&before).map(|(now, before)| now.checked_sub(*before).expect("no less"));
            prop_assert_eq!(raised.sum::<u64>(), 1);
            before = now;
        }
    }

    #[test]
    fn every_region_has_a_unit_if_there_are_enough(weights in weights(), more in 0..=900_u64, salt: u32) {
        let split = split(&weights);
        let count = weights.len() as u64;
        prop_assert!(shares(&split, count + more, salt).iter().all(|&units| units >= 1));
        for few in 0..count {
            prop_assert!(shares(&split, few, salt).iter().all(|&units| units <= 1));
        }
    }

    #[test]
    fn shares_are_proportional(weights in weights(), total in total(), salt: u32) {
        let split = split(&weights);
        let (count, sum) = (weights.len() as u64, weights.iter().map(|&w| u64::from(w)).sum::<u64>());
        prop_assume!(total >= count);
        for (units, &weight) in shares(&split, total, salt).iter().zip(&weights) {
            // |units − (1 + (total − R)·w/S)| < 2, times S.
            let off = i128::from(units - 1) * i128::from(sum) - i128::from(total - count) * i128::from(weight);
            prop_assert!(off.abs() < 2 * i128::from(sum), "{off} of {sum}");
            // Within R + 2 of the plain proportion.
            let off = i128::from(*units) * i128::from(sum) - i128::from(total) * i128::from(weight);
            prop_assert!(off.abs() < (i128::from(count) + 2) * i128::from(sum));
        }
    }

    #[test]
    fn rates_never_exceed_the_whole(weights in weights()) {
        let split = split(&weights);
        let rates: Vec<u32> = split.regions().map(|region| split.rate(region)).collect();
        let sum: u32 = rates.iter().sum();
        prop_assert!(sum <= RATE_PARTS && sum > RATE_PARTS - weights.len() as u32);
        prop_assert!(rates.iter().all(|&rate| rate >= RATE_PARTS / SUM_MAX));
        let whole: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        for (region, weight) in numbered(&weights) {
            prop_assert_eq!(split.weight(region), weight);
            let exact = u64::from(weight) * u64::from(RATE_PARTS) / whole;
            prop_assert_eq!(u64::from(split.rate(region)), exact);
        }
    }

    #[test]
    fn a_share_takes_only_few_values_over_all_salts(weights in weights(), total in total(), salts in prop::collection::vec(any::<u32>(), 20)) {
        let split = split(&weights);
        for region in split.regions() {
            let distinct = split.distinct(region, total);
            prop_assert!(!distinct.is_empty() && distinct.len() <= DISTINCT_MAX);
            prop_assert!(distinct.windows(2).all(|pair| pair[0] + 1 == pair[1]));
            for &salt in &salts {
                prop_assert!(distinct.contains(&split.units(region, total, salt)));
            }
        }
    }

    /// Compares the tables with the sequence: one rotation and one start explain every share.
    #[test]
    fn shares_agree_with_the_reference_sequence(weights in prop::collection::vec(1..=12_u32, 1..=7), salt: u32) {
        let split = split(&weights);
        let divisor = weights.iter().copied().fold(0, gcd);
        let who = period(&weights.iter().map(|weight| weight / divisor).collect::<Vec<_>>());
        let count = weights.len();
        let explained = (0..count).any(|turn| {
            (0..who.len()).any(|start| {
                let mut counted = vec![0_u64; count];
                (0..3 * who.len() + count).all(|unit| {
                    let same = shares(&split, unit as u64, salt) == counted;
                    let owner = match unit.checked_sub(count) {
                        None => (turn + unit) % count,
                        Some(step) => who[(start + step) % who.len()],
                    };
                    counted[owner] += 1;
                    same
                })
            })
        });
        prop_assert!(explained);
    }
}

/// Within a period nobody is a unit away from the proportion. The other bounds follow from this bound.
#[test]
fn the_sequence_is_always_within_a_unit_of_the_proportion() {
    let one_large = [50].into_iter().chain([1; 50]).collect();
    for weights in [vec![1; 64], one_large, vec![937, 3, 59, 1], vec![5, 3, 2]] {
        let sum: u32 = weights.iter().sum();
        let mut taken = vec![0_u32; weights.len()];
        for (step, who) in period(&weights).into_iter().enumerate() {
            taken[who] += 1;
            for (&taken, &weight) in taken.iter().zip(&weights) {
                let off = i64::from(taken) * i64::from(sum) - (step as i64 + 1) * i64::from(weight);
                assert!(off.abs() < i64::from(sum));
            }
        }
        let split = split(&weights);
        for region in split.regions() {
            assert!((0..2_000).all(|total| split.distinct(region, total).len() <= DISTINCT_MAX));
        }
    }
}

/// Webster's sequence gives a large region its first units in a row. If the sequence starts elsewhere, shares
/// are not proportional.
#[test]
fn websters_sequence_is_far_from_the_proportion() {
    let weights: Vec<u32> = [50].into_iter().chain([1; 50]).collect();
    let mut taken = vec![0_u32; weights.len()];
    let mut furthest = 0.0_f64;
    for step in 1..=100 {
        let quotient = |row: usize| f64::from(weights[row]) / f64::from(2 * taken[row] + 1);
        let next = (0..weights.len()).reduce(|a, b| if quotient(b) > quotient(a) { b } else { a });
        taken[next.expect("somebody")] += 1;
        furthest = furthest.max((f64::from(taken[0]) - f64::from(step) * 0.5).abs());
    }
    assert!(furthest > 12.0, "{furthest}");
}

/// The Alabama paradox of 1880, in small: with one more unit, the smallest region has one less.
#[test]
fn largest_remainder_has_the_alabama_paradox_and_the_sequence_has_not() {
    let weights = [6, 6, 2];
    let sum: u64 = 14;
    let largest_remainder = |total: u64| {
        let mut units: Vec<u64> = weights.iter().map(|&weight| total * u64::from(weight) / sum).collect();
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by_key(|&row| std::cmp::Reverse(total * u64::from(weights[row]) % sum));
        let left = total - units.iter().sum::<u64>();
        for &row in &order[..left as usize] {
            units[row] += 1;
        }
        units
    };
    assert_eq!((largest_remainder(10)[2], largest_remainder(11)[2]), (2, 1));
    let split = split(&weights);
    for salt in 0..1_000 {
        for total in 0..50 {
            let (less, more) = (shares(&split, total, salt), shares(&split, total + 1, salt));
            assert!(less.iter().zip(&more).all(|(less, more)| less <= more));
        }
    }
}

#[test]
fn salts_give_each_region_its_fair_mean() {
    let weights = [5, 3, 2, 1];
    let split = split(&weights);
    let cells = 100_000;
    for total in [1, 2, 3, 4, 6, 9, 20] {
        let mut sums = [0_u64; 4];
        for salt in 0..cells {
            for (sum, units) in sums.iter_mut().zip(shares(&split, total, salt)) {
                *sum += units;
            }
        }
        for (&sum, weight) in sums.iter().zip(weights) {
            let following = total.saturating_sub(4) as f64 * f64::from(weight) / 11.0;
            let expected = total.min(4) as f64 / 4.0 + following;
            let mean = sum as f64 / f64::from(cells);
            assert!((mean - expected).abs() < 0.01, "total {total}: {mean} instead of {expected}");
        }
    }
}

#[test]
fn impossible_weights_are_refused_with_a_suggestion() {
    assert_eq!(Split::new(&[]), Err(SplitFault::Regions(0)));
    assert_eq!(Split::new(&numbered(&[1; 65])), Err(SplitFault::Regions(65)));
    assert_eq!(Split::new(&[(MemberId(4), 1), (MemberId(4), 1)]), Err(SplitFault::Twice(4)));
    for weight in [0, WEIGHT_MAX + 1] {
        assert_eq!(Split::new(&[(MemberId(4), weight)]), Err(SplitFault::Weight { region: 4, weight }));
    }
    let fault = Split::new(&numbered(&[3_333, 3_333, 3_334])).expect_err("too fine");
    let said = fault.to_string();
    let SplitFault::TooFine { sum: 10_000, suggestion } = fault else { panic!("{fault:?}") };
    let mended: Vec<u32> = suggestion.split(", ").map(|weight| weight.parse().expect("a weight")).collect();
    assert!(said.contains(&suggestion));
    split(&mended);
    split(&[10_000; 64]);
    split(&[10_000]);
}

#[test]
fn a_member_outside_the_split_has_no_share() {
    let split = split(&[1, 2]);
    let stranger = MemberId(99);
    assert_eq!((split.units(stranger, 1_000, 7), split.rate(stranger), split.weight(stranger)), (0, 0, 0));
    assert_eq!(split.distinct(stranger, 1_000).as_slice(), [0]);
}

#[test]
fn no_part_refills_more_slowly_than_the_slowest_part() {
    let split = split(&[600, 1, 1]);
    let slowest = split.slowest(100);
    for region in split.regions() {
        for salt in 0..500 {
            let part = split.part(region, 100, salt, true);
            assert!(part.units * u64::from(slowest.rate) <= slowest.units * u64::from(part.rate));
        }
    }
    // One of a hundred units at a six-hundredth of the rate takes six times as long as the whole.
    assert!(slowest.units * u64::from(RATE_PARTS) > 6 * 100 * u64::from(slowest.rate));
}

/// A split is sent and stored as its weights.
#[test]
fn a_split_can_be_rebuilt_from_its_weights() {
    let split = split(&[30, 20, 10]);
    let weights: Vec<(MemberId, u32)> = split.clone().into();
    assert_eq!(weights, numbered(&[30, 20, 10]));
    assert_eq!(Split::try_from(weights), Ok(split));
}
