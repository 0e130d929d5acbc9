//! Requests that may wait for units of other regions.

mod regions;

use acequia_limits::limit::{LimitSpec, SharingSpec};
use regions::{MS, S, World};

/// There and back, with what both ends take to look.
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
fn of_fewer_units_than_regions_the_first_request_passes_anywhere_after_a_round_trip() {
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
        assert!(waits.iter().all(|waited| *waited <= ROUND * 5 / 4 + 30 * MS), "{waits:?}");
    }
}

#[test]
fn nobody_waits_for_what_is_spent() {
    let mut world = world(regions::window("w", 1, "1h"));
    for region in 0..3 {
        // Whoever asks first has it; the others learn after one wait that it is gone.
        let passed: Vec<bool> = (0..6).map(|turn| world.ask_patiently((region + turn) % 3, "k").0).collect();
        assert_eq!(passed.iter().filter(|passed| **passed).count(), usize::from(region == 0), "{passed:?}");
    }
    for region in 0..3 {
        assert_eq!(world.ask_patiently(region, "k"), (false, 0), "region {region}");
    }
}

#[test]
fn nobody_waits_in_a_region_that_is_cut_off() {
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
    // Each region has ten units of thirty: the eleventh request waits where the limit lets it.
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
