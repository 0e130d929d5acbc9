//! Requests that may wait for units of other regions.

use crate::regions::{self, MS, S, World};
use acequia_limits::{
    Charge,
    limit::{LimitSpec, SharingSpec},
};

/// A round trip, including both ends' time until their next rebalance.
const ROUND: u64 = 80 * MS;

fn world(spec: LimitSpec) -> World {
    let mut world = World::new(3, &[spec], ROUND / 2);
    world.run(2 * S, |_, _| 0);
    world
}

fn waiting(spec: LimitSpec, wait: &str) -> LimitSpec {
    LimitSpec { sharing: Some(SharingSpec { wait: Some(wait.to_owned()), ..SharingSpec::default() }), ..spec }
}

#[test]
fn a_limit_below_the_region_count_passes_anywhere_after_a_round_trip() {
    for spec in
        [regions::window("w", 1, "1h"), regions::sliding("s", 2, "1h"), regions::bucket("b", "1/h", 1)]
    {
        let name = spec.name.clone();
        let mut world = world(spec);
        let mut waits = Vec::new();
        for key in 0..40 {
            let (allowed, waited) = world.ask_patiently(key % 3, &format!("k{key}"));
            assert!(allowed, "{name}: key {key} after {waited} ns");
            waits.push(waited);
        }
        let at_once = waits.iter().filter(|waited| **waited == 0).count();
        assert!((5..35).contains(&at_once), "some are at home, some are not: {waits:?}");
        assert!(waits.iter().all(|waited| *waited <= ROUND * 5 / 4 + 50 * MS), "{waits:?}");
    }
}

#[test]
fn requests_do_not_wait_for_a_limit_that_is_known_to_be_spent() {
    for spec in
        [regions::window("w", 1, "1h"), regions::sliding("s", 1, "1h"), regions::bucket("b", "1/h", 1)]
    {
        let name = spec.name.clone();
        let mut world = world(spec);
        assert!(world.ask_patiently(0, "k").0);
        // Requests wait until it is known that no unit comes. Afterwards none waits.
        for region in 0..3 {
            let waits: Vec<u64> = (0..30)
                .map(|_| {
                    let (allowed, waited) = world.ask_patiently(region, "k");
                    assert!(!allowed, "{name}: a second unit of one");
                    world.run(100 * MS, |_, _| 0);
                    waited
                })
                .collect();
            assert!(waits[10..].iter().all(|waited| *waited == 0), "{name} in {region}: {waits:?}");
        }
    }
}

#[test]
fn a_request_that_another_limit_charged_does_not_wait() {
    let each = LimitSpec { charge: Charge::Each, ..regions::window("each", 1_000, "1h") };
    let mut world = World::new(3, &[regions::window("w", 1, "1h"), each], ROUND / 2);
    world.run(2 * S, |_, _| 0);
    for key in 0..20 {
        let (_, waited) = world.ask_patiently(1, &format!("k{key}"));
        assert_eq!(waited, 0, "it would be charged again");
    }
}

#[test]
fn requests_do_not_wait_in_a_region_that_is_cut_off() {
    let mut world = world(regions::window("w", 1, "1h"));
    world.cut = vec![(2, 0), (2, 1), (0, 2), (1, 2)];
    world.run(5 * S, |_, _| 0);
    for key in 0..20 {
        let (_, waited) = world.ask_patiently(2, &format!("k{key}"));
        assert_eq!(waited, 0);
    }
}

#[test]
fn a_limit_says_how_long_its_requests_wait() {
    // Each region has ten of thirty units. The eleventh request waits if the limit allows waiting.
    let asked = |spec: LimitSpec| -> Vec<(bool, u64)> {
        let mut world = world(spec);
        (0..12).map(|_| world.ask_patiently(1, "k")).collect()
    };
    let thirty = || regions::window("w", 30, "1h");
    assert_eq!(asked(thirty())[10], (false, 0), "as a rule nobody waits");
    let answers = asked(waiting(thirty(), "200ms"));
    assert!(answers[10].0 && answers[10].1 > 0, "{answers:?}");
    let answers = asked(waiting(thirty(), "10ms"));
    assert!(!answers[10].0 && answers[10].1 == 10 * MS, "no longer than it may: {answers:?}");
    let mut world = world(waiting(regions::window("w", 1, "1h"), "0s"));
    assert!((0..20).all(|key| world.ask_patiently(1, &format!("k{key}")).1 == 0), "not at all");
}

#[test]
fn a_denial_says_to_retry_soon_only_if_units_may_come() {
    // Units that a crash forgot count as spent until the window ends, whatever other regions have.
    let mut world = world(regions::window("w", 30, "50s"));
    world.restart(1, None, regions::incarnation(1));
    world.run(S, |_, _| 0);
    let (_, verdict) = world.peek(1, "k");
    assert!(!verdict.allowed && verdict.retry_after_ns > 30 * S, "{verdict:?}");
    // The region's own part is spent, but other regions may send more.
    let mut world = self::world(regions::window("w", 30, "50s"));
    (0..10).for_each(|_| assert!(world.ask(1, "k")));
    assert!(!world.ask(1, "k"));
    let (_, verdict) = world.peek(1, "k");
    assert!(verdict.retry_after_ns <= 250 * MS, "{verdict:?}");
}
