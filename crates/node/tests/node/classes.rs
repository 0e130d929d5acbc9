//! Classes of consumers under one limit, on one node and shared by regions.

use crate::regions;
use crate::scene::{HOUR, MS, S, START, apply, bucket, node, quota, sliding, window};
use acequia_limits::{
    Limit, Now, Reason, Request,
    classes::ClassesSpec,
    limit::{BySpec, Descriptors, LimitSpec},
};
use acequia_node::{Ask, Asker};
use proptest::prelude::*;

/// Three classes: gold uses everything, silver leaves 24 %, and free leaves 62 %.
fn shared(spec: LimitSpec) -> LimitSpec {
    classes(spec, r#"{"entry": "plan", "shared": {"gold": "0%", "silver": "24%", "free": "62%"}}"#)
}

fn classes(spec: LimitSpec, json: &str) -> LimitSpec {
    let classes: ClassesSpec = serde_json::from_str(json).expect("classes");
    LimitSpec { classes: Some(classes), by: vec![BySpec::Key("service".into())], ..spec }
}

fn ask(asker: &mut Asker, plan: &str, cost: u64, now: Now) -> (bool, Reason, u64) {
    let mut request = Request::new("shop", &[("service", "s"), ("plan", plan)]);
    request.cost = cost;
    let answer = asker.check(&request, now, Ask::CHECK);
    assert_eq!(answer.limits.len(), 1, "one cell speaks");
    (answer.allowed, answer.reason, answer.limits[0].verdict.remaining)
}

fn drain(asker: &mut Asker, plan: &str, now: Now) -> u64 {
    (0..).find(|_| !ask(asker, plan, 1, now).0).expect("an end")
}

#[test]
fn a_class_leaves_units_below_its_threshold_to_others() {
    for spec in [
        bucket("l", "10/s", 100),
        window("l", 100, "1h"),
        quota("l", 100, "day"),
        sliding("l", 100, "1h"),
        sliding("l", 50, "1h"),
    ] {
        let half = spec.sliding_window.as_ref().is_some_and(|spec| spec.limit == 50);
        let [free, silver, gold] = if half { [19, 19, 12] } else { [38, 38, 24] };
        let node = node(&[shared(spec.clone())], START);
        let mut asker = node.asker();
        assert_eq!(drain(&mut asker, "free", START), free, "{spec:?}");
        assert_eq!(ask(&mut asker, "free", 1, START), (false, Reason::ClassReserve, 0));
        // A request with an unknown class or none belongs to the last class.
        assert_eq!(ask(&mut asker, "platinum", 1, START), (false, Reason::ClassReserve, 0));
        let nameless = Request::new("shop", &[("service", "s")]);
        assert!(!asker.check(&nameless, START, Ask::CHECK).allowed);
        assert_eq!(drain(&mut asker, "silver", START), silver, "{spec:?}");
        assert_eq!(ask(&mut asker, "silver", 1, START), (false, Reason::ClassReserve, 0));
        assert_eq!(drain(&mut asker, "gold", START), gold, "{spec:?}");
        assert_eq!(ask(&mut asker, "gold", 1, START), (false, Reason::OverLimit, 0));
    }
}

#[test]
fn a_denied_class_gets_the_exact_time_to_retry_and_units_left() {
    let node = node(&[shared(bucket("l", "10/s", 100))], START);
    let mut asker = node.asker();
    assert_eq!(ask(&mut asker, "gold", 30, START), (true, Reason::WithinLimit, 70));
    assert_eq!(ask(&mut asker, "free", 3, START), (true, Reason::WithinLimit, 5));
    assert_eq!(ask(&mut asker, "silver", 7, START), (true, Reason::WithinLimit, 60 - 24));
    // 60 are left. The level must be 62 after the charge of one unit, so three must be earned.
    let request = Request::new("shop", &[("service", "s"), ("plan", "free")]);
    let answer = asker.check(&request, START, Ask::CHECK);
    assert_eq!((answer.allowed, answer.retry_after_ns), (false, 300 * MS));
    assert!(!asker.check(&request, START.later(300 * MS - 1), Ask::PEEK).allowed);
    assert!(asker.check(&request, START.later(300 * MS), Ask::CHECK).allowed);
    // More than the class may ever have at once.
    assert_eq!(ask(&mut asker, "free", 39, START.later(HOUR)).1, Reason::CostTooHigh);
    assert!(ask(&mut asker, "free", 38, START.later(HOUR)).0);
}

#[test]
fn separate_classes_do_not_feel_each_other() {
    let spec = classes(
        bucket("l", "100/s", 2_000),
        r#"{"entry": "plan", "separate": {"gold": 1200, "silver": 600, "free": 200}}"#,
    );
    let node = node(&[spec], START);
    let mut asker = node.asker();
    for (plan, own) in [("gold", 1_200), ("silver", 600), ("free", 200)] {
        assert_eq!(drain(&mut asker, plan, START), own, "{plan}");
    }
    // Each class has a part of the rate in proportion to its size.
    let later = START.later(S);
    for (plan, own) in [("gold", 60), ("silver", 30), ("free", 10)] {
        assert_eq!(drain(&mut asker, plan, later), own, "{plan}");
    }
    assert_eq!(drain(&mut asker, "unknown", later.later(S)), 10, "the smallest class");
}

#[test]
fn a_class_spends_its_own_units_then_the_remainder_above_its_threshold() {
    let spec = classes(
        window("l", 1_000, "1h"),
        r#"{"entry": "plan", "separate": {"gold": 300, "free": 100},
            "shared": {"gold": "0%", "silver": "24%", "free": "60%"}}"#,
    );
    let node = node(&[spec], START);
    let mut asker = node.asker();
    // The remainder is 600: free leaves 360 of it, and silver leaves 144.
    assert_eq!(drain(&mut asker, "free", START), 100 + 240);
    assert_eq!(ask(&mut asker, "free", 1, START), (false, Reason::OverLimit, 0));
    assert_eq!(drain(&mut asker, "silver", START), 216);
    assert_eq!(ask(&mut asker, "silver", 1, START).1, Reason::ClassReserve);
    assert_eq!(drain(&mut asker, "gold", START), 300 + 144);
    assert_eq!(drain(&mut asker, "gold", START.later(HOUR)), 900, "a new window");
}

#[test]
fn a_request_is_charged_to_its_class_or_the_remainder_never_split() {
    let spec = classes(
        window("l", 100, "1h"),
        r#"{"entry": "plan", "separate": {"gold": 10, "free": 10}, "shared": {"gold": "0%", "free": "50%"}}"#,
    );
    let node = node(&[spec], START);
    let mut asker = node.asker();
    assert!(ask(&mut asker, "gold", 7, START).0);
    // Three of gold's own units are left. These five come from the remainder as a whole.
    assert!(ask(&mut asker, "gold", 5, START).0);
    assert_eq!(ask(&mut asker, "gold", 3, START), (true, Reason::WithinLimit, 0));
    // Two classes in one request: what both lack is taken together from the remainder, under the threshold of
    // the last class.
    let mut request = Request::new("shop", &[("service", "s"), ("plan", "gold")]);
    request.push([(&b"service"[..], &b"s"[..]), (&b"plan"[..], &b"free"[..])], None);
    request.cost = 11;
    assert!(asker.check(&request, START, Ask::CHECK).allowed);
    let left = |asker: &mut Asker, plan| {
        let request = Request::new("shop", &[("service", "s"), ("plan", plan)]);
        asker.check(&request, START, Ask::PEEK).limits[0].verdict.remaining
    };
    assert_eq!(left(&mut asker, "gold"), 80 - 5 - 22);
    assert_eq!(left(&mut asker, "free"), 10);
}

#[test]
fn under_max_descriptors_the_remainder_is_charged_only_the_largest_cost() {
    let json = r#"{"entry": "plan", "separate": {"gold": 10, "free": 10},
        "shared": {"gold": "0%", "free": "0%", "none": "0%"}}"#;
    let spec = LimitSpec { descriptors: Descriptors::Max, ..classes(window("l", 100, "1h"), json) };
    let node = node(&[spec], START);
    let mut asker = node.asker();
    let mut ask = |costs: [(&str, u64); 3]| {
        let mut request = Request::new("shop", &[]);
        for (plan, cost) in costs {
            request.push([(&b"service"[..], &b"s"[..]), (&b"plan"[..], plan.as_bytes())], Some(cost));
        }
        let answer = asker.check(&request, START, Ask::CHECK);
        (answer.allowed, answer.limits.iter().map(|limit| limit.verdict.remaining).collect::<Vec<_>>())
    };
    // Two own cells have too little, and one class has no own cell: only the largest of the three costs is
    // charged to the remainder. A probe charges nothing.
    assert_eq!(ask([("gold", 11), ("free", 20), ("none", 15)]), (true, vec![80 - 20]));
    assert_eq!(ask([("gold", 11), ("free", 0), ("none", 15)]), (true, vec![10, 60 - 15]));
    // Each own cell has enough.
    assert_eq!(ask([("gold", 4), ("free", 10), ("none", 45)]), (true, vec![6, 0, 0]));
    // Nothing is left. The class without an own cell receives the denial.
    let (allowed, left) = ask([("gold", 7), ("free", 1), ("none", 1)]);
    assert!(!allowed);
    assert_eq!(left, vec![6, 0, 0]);
}

#[test]
fn new_class_sizes_make_a_new_limit_and_new_thresholds_do_not() {
    let separate =
        |sizes| classes(window("l", 100, "1h"), &format!(r#"{{"entry": "plan", "separate": {sizes}}}"#));
    let before = separate(r#"{"gold": 70, "free": 30}"#);
    let after = separate(r#"{"gold": 30, "free": 70}"#);
    let id = |spec: &LimitSpec| Limit::new(spec.clone()).expect("a limit").id;
    assert_ne!(id(&before), id(&after));
    let node = node(&[before], START);
    let mut asker = node.asker();
    assert_eq!(drain(&mut asker, "gold", START), 70);
    // Free does not get what gold has spent: the old sizes apply beside the new ones until the window ends.
    apply(&node, &[after], START.later(S));
    let mut of_both = |now: Now| {
        let request = Request::new("shop", &[("service", "s"), ("plan", "free")]);
        (0..).find(|_| !asker.check(&request, now, Ask::CHECK).allowed).expect("an end")
    };
    assert_eq!(of_both(START.later(2 * S)), 30);
    assert_eq!(of_both(START.later(HOUR)), 70);

    let kept = shared(bucket("l", "1/s", 100));
    let mut lower = kept.clone();
    lower.classes.as_mut().expect("classes").shared.insert("free".into(), "30%".into());
    assert_eq!(id(&kept), id(&lower));
}

#[test]
fn an_override_changes_the_remainder_and_keeps_class_sizes() {
    let mut spec = classes(
        window("l", 100, "1h"),
        r#"{"entry": "plan", "separate": {"gold": 50, "free": 20}, "shared": {"gold": "0%", "free": "0%"}}"#,
    );
    spec.overrides = serde_json::from_str(r#"[{"service": "s", "limit": 300}]"#).expect("an override");
    let node = node(&[spec], START);
    let mut asker = node.asker();
    assert_eq!(drain(&mut asker, "free", START), 20 + 230);
    assert_eq!(drain(&mut asker, "gold", START), 50);
}

#[test]
fn regions_keep_class_reserves_and_lend_units_of_separate_classes() {
    // Shared classes: the hot region has all free traffic, and the reserve applies to what it borrows, too.
    let spec = classes(
        regions::window("l", 3_000, "1h"),
        r#"{"entry": "plan", "shared": {"gold": "0%", "free": "50%"}}"#,
    );
    let spec = LimitSpec { by: vec![BySpec::Key("key".into())], ..spec };
    let mut world = regions::World::new(3, &[spec], 40 * regions::MS);
    world.run(2 * regions::S, |_, _| 0);
    let mut free = 0;
    for _ in 0..8_000 {
        world.run(regions::MS, |_, _| 0);
        free += u64::from(world.ask_entries(0, &[("key", "k"), ("plan", "free")]));
    }
    assert!((1_300..=1_500).contains(&free), "half of what all three have, at most: {free}");
    let mut gold = 0;
    for _ in 0..8_000 {
        world.run(regions::MS, |_, _| 0);
        gold += u64::from(world.ask_entries(0, &[("key", "k"), ("plan", "gold")]));
    }
    assert!(free + gold <= 3_000, "{free} and {gold}");
    assert!(free + gold >= 2_900, "what free left, gold has: {free} and {gold}");

    // Separate classes: each class is its own cell.
    let spec = classes(
        regions::bucket("l", "900/s", 300),
        r#"{"entry": "plan", "separate": {"gold": 200, "free": 100}}"#,
    );
    let spec = LimitSpec { by: vec![BySpec::Key("key".into())], ..spec };
    let mut world = regions::World::new(3, &[spec], 40 * regions::MS);
    world.run(2 * regions::S, |_, _| 0);
    let (mut free, mut gold) = (0, 0);
    for _ in 0..10_000 {
        world.run(regions::MS, |_, _| 0);
        free += u64::from(world.ask_entries(0, &[("key", "k"), ("plan", "free")]));
        gold += u64::from(world.ask_entries(1, &[("key", "k"), ("plan", "gold")]));
    }
    assert!(free <= 300 * 10 + 100 && gold <= 600 * 10 + 200, "{free} {gold}");
    assert!(free >= 2_700 && gold >= 5_400, "each hot region has all that its class has: {free} {gold}");
}

/// A minimal bucket, in billionths of a unit.
#[derive(Clone, Copy)]
struct Bucket {
    level: u128,
    cap: u64,
    rate: u64,
}

impl Bucket {
    fn new(cap: u64, rate: u64) -> Self {
        Self { level: u128::from(cap) * 1_000_000_000, cap, rate }
    }

    fn pass(&mut self, ns: u64) {
        let most = u128::from(self.cap) * 1_000_000_000;
        self.level = (self.level + u128::from(self.rate) * u128::from(ns)).min(most);
    }

    fn take(&mut self, cost: u64, leaves: u64) -> bool {
        let fits = self.level >= u128::from(cost + leaves) * 1_000_000_000;
        if fits {
            self.level -= u128::from(cost) * 1_000_000_000;
        }
        fits
    }
}

proptest! {
    #[test]
    fn classes_decide_as_a_model_of_plain_buckets_does(
        steps in prop::collection::vec((0..3_usize, 1..30_u64, 0..400_u64), 1..200),
        way in 0..3_u8,
    ) {
        let json = [
            r#"{"entry": "plan", "shared": {"gold": "0%", "silver": "24%", "free": "62%"}}"#,
            r#"{"entry": "plan", "separate": {"gold": 60, "silver": 30, "free": 10}}"#,
            r#"{"entry": "plan", "separate": {"gold": 30, "silver": 10, "free": 10},
                "shared": {"gold": "0%", "silver": "24%", "free": "62%"}}"#,
        ][usize::from(way)];
        let node = node(&[classes(bucket("l", "100/s", 100), json)], START);
        let mut asker = node.asker();
        let own: [u64; 3] = [[0, 0, 0], [60, 30, 10], [30, 10, 10]][usize::from(way)];
        let beside: u64 = 100 - own.iter().sum::<u64>();
        let mut own: Vec<Bucket> = own.iter().map(|size| Bucket::new(*size, *size)).collect();
        let mut all = Bucket::new(beside, beside);
        let leaves = [0, beside * 24 / 100, beside * 62 / 100];
        let mut now = START;
        let (mut admitted, begun) = (0, now);
        for (class, cost, ms) in steps {
            now = now.later(ms * MS);
            own.iter_mut().chain([&mut all]).for_each(|bucket| bucket.pass(ms * MS));
            let fits = own[class].take(cost, 0) || (beside > 0 && all.take(cost, leaves[class]));
            let (allowed, ..) = ask(&mut asker, ["gold", "silver", "free"][class], cost, now);
            prop_assert_eq!(allowed, fits, "{} of {} after {} ms", cost, class, ms);
            admitted += if allowed { cost } else { 0 };
            prop_assert!(admitted <= 100 + (now.steady_ns - begun.steady_ns) / (10 * MS));
        }
    }
}
