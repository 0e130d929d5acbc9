//! Soft limits: warnings and throttling before a limit is reached.

use crate::regions;
use std::sync::Arc;

use crate::scene::{self, HOUR, MS, S, START, ask, bucket, drain, node, passes, quota, sliding, window};
use acequia_limits::{
    Limit, Now, Reason, Request,
    limit::{LimitSpec, ThrottleSpec},
};
use acequia_node::{Ask, ChargeId, Node, Recording, Remember, Warning};

fn warned(spec: LimitSpec, warn_at: &[u8]) -> LimitSpec {
    LimitSpec { warn_at: warn_at.to_vec(), ..spec }
}

fn throttled(spec: LimitSpec, from: u8, rate: &str) -> LimitSpec {
    LimitSpec { throttle: Some(ThrottleSpec { from, rate: rate.into() }), ..spec }
}

fn told(node: &Node) -> Vec<(u8, u64)> {
    node.take_warnings().0.iter().map(|warning| (warning.percent, warning.used)).collect()
}

#[test]
fn each_threshold_warns_once_a_window() {
    for spec in
        [window("w", 10, "1h"), quota("w", 10, "day"), sliding("w", 10, "1h"), bucket("w", "10/h", 10)]
    {
        let is_quota = spec.quota.is_some();
        let spec = LimitSpec { unit: Some("tokens".into()), ..warned(spec, &[50, 80, 100]) };
        let node = node(&[spec], START);
        let mut asker = node.asker();
        for (key, n) in [("a", 5), ("b", 4)] {
            (0..n).for_each(|_| assert!(passes(&mut asker, key, 1, START)));
        }
        let (warnings, dropped) = node.take_warnings();
        assert_eq!((warnings.len(), dropped), (1, 0));
        let Warning { domain, name, percent, used, budget, unit, by, .. } = &warnings[0];
        assert_eq!(unit.as_deref(), Some("tokens"));
        assert_eq!((domain.as_str(), name.as_str(), *percent, *used, *budget), ("shop", "w", 50, 5, 10));
        assert_eq!(by, &[("key".to_owned(), "a".to_owned())]);
        // One charge reaches two thresholds. A denial reports nothing.
        assert!(passes(&mut asker, "a", 5, START));
        assert!(!passes(&mut asker, "a", 1, START));
        assert_eq!(told(&node), [(80, 10), (100, 10)]);
        // A new window, the next one or a later one.
        let later = START.later(if is_quota { 24 * HOUR } else { HOUR });
        assert!(passes(&mut asker, "a", 5, later));
        assert_eq!(told(&node), [(50, 5)]);
    }
}

#[test]
fn a_threshold_reached_again_after_a_refund_does_not_warn_again() {
    let node = node(&[warned(window("w", 10, "1h"), &[50])], START);
    let mut asker = node.asker();
    let recording = Recording {
        id: ChargeId(1),
        fingerprint: 1,
        is_repeatable: false,
        reserve: None,
        owner: 0,
        remember: Remember::Always,
    };
    let mut request = Request::new("shop", &[("key", "a")]);
    request.cost = 6;
    asker.check_recorded(&request, START, Ask::CHECK, &recording).expect("a new name");
    node.settle(ChargeId(1), None, START);
    assert!(passes(&mut asker, "a", 7, START));
    let (warnings, _) = node.take_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[test]
fn a_warnings_id_depends_on_its_threshold_cell_and_window() {
    let ids = |now: Now, key: &str| -> Vec<String> {
        let node = node(&[warned(window("w", 10, "1h"), &[50, 80])], START);
        passes(&mut node.asker(), key, 9, now);
        node.take_warnings().0.into_iter().map(|warning| warning.id).collect()
    };
    let first = ids(START, "a");
    assert_eq!((first.len(), &first), (2, &ids(START.later(S), "a")));
    for other in [ids(START, "b"), ids(START.later(HOUR), "a")] {
        assert!(other.iter().all(|id| !first.contains(id)), "{first:?} {other:?}");
    }
}

#[test]
fn a_threshold_reached_before_a_crash_does_not_warn_again() {
    let spec = warned(window("w", 10, "1h"), &[50, 80]);
    let config = |crashed| acequia_node::Config {
        key: scene::KEY,
        memory_bytes: scene::ROOMY,
        durable: true,
        after_crash: crashed,
        home: None,
    };
    let first = scene::node_of(config(None), std::slice::from_ref(&spec), START);
    passes(&mut first.asker(), "a", 6, START);
    assert_eq!(told(&first), [(50, 6)]);
    let mut journal = scene::Journal::default();
    journal.flush(&first);
    let second = Arc::new(Node::new(config(Some(START.later(S)))));
    second.resume(first.schedule(), START.later(S)).expect("a limit");
    second.restore_all(START.later(S), |limit| journal.rows(limit));
    assert!(passes(&mut second.asker(), "a", 1, START.later(S)));
    assert_eq!(told(&second), []);
    assert!(passes(&mut second.asker(), "a", 1, START.later(S)));
    assert_eq!(told(&second), [(80, 8)]);
}

#[test]
fn a_throttle_delays_requests_before_the_window_is_spent() {
    let node = node(&[throttled(window("w", 100, "1h"), 90, "5/s")], START);
    let mut asker = node.asker();
    assert!(passes(&mut asker, "k", 90, START));
    // Five requests wait their turn, a fifth of a second each. Further ones are denied.
    for turn in 0..5 {
        let answer = ask(&mut asker, "k", 1, START);
        assert_eq!((answer.allowed, answer.delay_ns), (true, turn * 200 * MS));
    }
    let denied = ask(&mut asker, "k", 1, START);
    assert_eq!((denied.allowed, denied.reason, denied.retry_after_ns), (false, Reason::Throttled, 200 * MS));
    assert_eq!(denied.limits[0].verdict.remaining, 5, "it is not used up");
    // Callers that cannot wait are denied while there is a delay.
    let request = Request::new("shop", &[("key", "k")]);
    let now = START.later(600 * MS);
    let answer = asker.check(&request, now, Ask::CHECK_NOW).clone();
    assert_eq!((answer.allowed, answer.retry_after_ns), (false, 400 * MS));
    assert!(asker.check(&request, START.later(S), Ask::CHECK_NOW).allowed);
    // The window is used up, and the next one goes at full speed.
    let later = START.later(100 * S);
    assert_eq!(drain(&mut asker, "k", later), 4);
    assert_eq!(ask(&mut asker, "k", 1, later).reason, Reason::OverLimit);
    assert_eq!(drain(&mut asker, "other", later), 95, "ninety, and those that may wait");
    assert!(passes(&mut asker, "k", 90, START.later(HOUR)));
}

#[test]
fn regions_warn_by_the_use_of_the_whole_limit() {
    let spec = warned(regions::window("w", 3_000, "1h"), &[80]);
    let mut world = regions::World::new(3, &[spec], 40 * regions::MS);
    world.run(2 * regions::S, |_, _| 0);
    // Two regions use 1 150 units each in small steps: all of their own shares, and 77 % of the limit.
    let mut used = 0;
    while used < 2_300 {
        world.run(4 * regions::MS, |_, _| 0);
        used += u64::from(world.ask(0, "k")) + u64::from(world.ask(1, "k"));
    }
    let all = |world: &regions::World| -> Vec<Warning> {
        world.places.iter().flat_map(|place| place.node.take_warnings().0).collect()
    };
    assert_eq!(all(&world), [], "not yet");
    while used < 2_700 {
        world.run(4 * regions::MS, |_, _| 0);
        used += u64::from(world.ask(0, "k")) + u64::from(world.ask(1, "k"));
    }
    let warnings = all(&world);
    assert!((1..=2).contains(&warnings.len()), "{warnings:?}");
    assert!(warnings.iter().all(|warning| warning.id == warnings[0].id && warning.budget == 3_000));
    assert!(warnings.iter().all(|warning| (2_400..=2_700).contains(&warning.used)), "{warnings:?}");
}

#[test]
fn warnings_for_a_flood_of_spent_cells_are_bounded() {
    let node = node(&[warned(window("w", 1, "1h"), &[100])], START);
    let mut asker = node.asker();
    let mut all = 0;
    for key in 0..40_000 {
        assert!(passes(&mut asker, &format!("k{key}"), 1, START));
        if key % 1_000 == 0 {
            all += told(&node).len();
        }
    }
    all += told(&node).len();
    assert_eq!(all, 40_000, "each is told of, remembered or not");
    for key in 0..6_000 {
        passes(&mut asker, &format!("more{key}"), 1, START);
    }
    let (warnings, dropped) = node.take_warnings();
    assert_eq!((warnings.len(), dropped), (4_096, 6_000 - 4_096));
}

#[test]
fn impossible_soft_limits_are_refused() {
    let refused = |spec: LimitSpec, field: &str, word: &str| {
        let faults = Limit::new(spec).expect_err("a fault");
        let found = faults.iter().any(|fault| fault.field == field && fault.what.contains(word));
        assert!(found, "no fault in {field} that says {word}: {faults:?}");
    };
    let plain = || window("w", 10, "1h");
    refused(warned(plain(), &[0]), "warn_at", "1 to 100");
    refused(warned(plain(), &[101]), "warn_at", "1 to 100");
    refused(warned(plain(), &[80, 80]), "warn_at", "rise");
    refused(warned(plain(), &[1, 2, 3, 4, 5, 6, 7, 8, 9]), "warn_at", "more than 8");
    refused(throttled(plain(), 0, "5/s"), "throttle", "1 to 99");
    refused(throttled(plain(), 100, "5/s"), "throttle", "1 to 99");
    refused(throttled(plain(), 90, "slow"), "throttle", "60/s");
    refused(throttled(bucket("b", "1/s", 5), 90, "5/s"), "throttle", "by itself");
}
