//! Limits that change while they are in use. A change never creates units: whatever is applied, removed,
//! restored or overridden, a cell admits no more than its variant allowed at each time.

use std::{collections::BTreeMap, sync::Arc};

use crate::scene::{
    self, HOUR, MINUTE, MS, S, START,
    ledger::{Ledger, Promise, Terms},
};
use acequia_limits::{
    Mode, Now, Request,
    limit::{LimitSpec, NoWait, ValueSpec},
    path::StepSpec,
};
use acequia_node::{Ask, Asker, ChangeKind, Node, Outcome};
use proptest::{collection::vec, option, prelude::*, sample::select};

/// The numbers of a limit or an override.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Numbers {
    limit: u64,
    /// Units that a bucket earns in an hour.
    hourly: u64,
}

/// A version of the limits: a limit with overrides, or nothing.
#[derive(Clone, Debug, PartialEq)]
struct Version {
    numbers: Numbers,
    overrides: Vec<(&'static str, Numbers, Option<u64>)>,
    shadow: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Ask { key: &'static str, cost: u64 },
    Drain { key: &'static str },
    Wait(u64),
    Apply(Version),
    ApplyAgain,
    Remove,
    Sweep,
}

const KEYS: [&str; 3] = ["a", "ab", "c"];

fn numbers() -> impl Strategy<Value = Numbers> {
    (select(&[1, 4, 9, 70, 90][..]), select(&[20, 60, 3_600, 720_000][..]))
        .prop_map(|(limit, hourly)| Numbers { limit, hourly })
}

fn version() -> impl Strategy<Value = Version> {
    let whose = select(&["a", "a*", "ab", "*"][..]);
    let until = option::of(select(&[S, 3 * S, 20 * S, 90 * S, HOUR][..]));
    let overrides = vec((whose, numbers(), until), 0..3);
    (numbers(), overrides, prop::bool::weighted(0.1)).prop_map(|(numbers, mut overrides, shadow)| {
        // Several overrides that end have their own test.
        for (number, (_, _, until)) in overrides.iter_mut().enumerate() {
            *until = until.filter(|_| number == 0);
        }
        Version { numbers, overrides, shadow }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let key = || select(&KEYS[..]);
    prop_oneof![
        6 => (key(), 1..6u64).prop_map(|(key, cost)| Step::Ask { key, cost }),
        4 => key().prop_map(|key| Step::Drain { key }),
        4 => select(&[1, MS, S, S, 2 * S, 19 * S, MINUTE, 20 * MINUTE][..]).prop_map(Step::Wait),
        4 => version().prop_map(Step::Apply),
        1 => Just(Step::ApplyAgain),
        1 => Just(Step::Remove),
        1 => Just(Step::Sweep),
    ]
}

/// A limit without its numbers.
fn base() -> impl Strategy<Value = LimitSpec> {
    select(vec![
        scene::bucket("l", "1/s", 1),
        scene::leaky("l", "1/s", 1, NoWait::Allow),
        scene::window("l", 1, "1m"),
        scene::staggered("l", 1, "1m"),
        scene::quota("l", 1, "day"),
        // Small limits are kept in logs and large ones in slots.
        scene::sliding("l", 1, "1m"),
    ])
}

fn rate(hourly: u64) -> String {
    format!("{hourly}/h")
}

fn spec(base: &LimitSpec, version: &Version) -> LimitSpec {
    let mut spec = base.clone();
    let Numbers { limit, hourly } = version.numbers;
    let mut names = Vec::new();
    if let Some(bucket) = &mut spec.token_bucket {
        (bucket.rate, bucket.burst) = (rate(hourly), limit);
        names.extend(["burst", "rate"]);
    }
    if let Some(bucket) = &mut spec.leaky_bucket {
        (bucket.rate, bucket.queue) = (rate(hourly), limit);
        names.extend(["queue", "rate"]);
    }
    if let Some(window) = &mut spec.fixed_window {
        window.limit = limit;
        names.push("limit");
    }
    if let Some(quota) = &mut spec.quota {
        quota.limit = limit;
        names.push("limit");
    }
    if let Some(window) = &mut spec.sliding_window {
        window.limit = limit;
        names.push("limit");
    }
    spec.mode = if version.shadow { Mode::Shadow } else { Mode::Enforce };
    for (whose, numbers, until) in &version.overrides {
        let values = [numbers.limit.to_string(), rate(numbers.hourly)];
        let mut fields: BTreeMap<String, ValueSpec> = scene::fields(&[("key", &[whose])]);
        for (name, value) in names.iter().zip(values) {
            fields.insert((*name).to_owned(), ValueSpec::Texts(vec![value]));
        }
        if let Some(after) = until {
            fields.insert("until".to_owned(), ValueSpec::Texts(vec![scene::instant(START.wall_ns + after)]));
        }
        spec.overrides.push(fields);
    }
    spec
}

/// The numbers for a key.
fn terms(base: &LimitSpec, version: &Version, key: &str, wall_ns: u64) -> Terms {
    let fits = |whose: &str| whose.strip_suffix('*').map_or(key == whose, |stem| key.starts_with(stem));
    let overridden = version
        .overrides
        .iter()
        .find(|(whose, _, until)| fits(whose) && until.is_none_or(|after| wall_ns < START.wall_ns + after));
    let Numbers { limit, hourly } = overridden.map_or(version.numbers, |(_, numbers, _)| *numbers);
    let bucket = base.token_bucket.is_some() || base.leaky_bucket.is_some();
    Terms { limit, hourly: if bucket { hourly } else { 0 } }
}

/// A node whose limit changes, and what each key received.
struct Traffic {
    base: LimitSpec,
    node: Arc<Node>,
    askers: [Asker; 2],
    turn: usize,
    version: Version,
    ledgers: BTreeMap<&'static str, Ledger>,
    now: Now,
}

impl Traffic {
    fn new(base: LimitSpec, version: Version) -> Self {
        let node = scene::node(&[spec(&base, &version)], START);
        let askers = [node.asker(), node.asker()];
        Self { base, node, askers, turn: 0, version, ledgers: BTreeMap::new(), now: START }
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Ask { key, cost } => {
                self.ask(key, *cost);
            }
            Step::Drain { key } => while self.ask(key, 1) {},
            Step::Wait(ns) => self.wait(*ns),
            Step::Sweep => scene::sweep_all(&self.node, self.now),
            Step::Remove => scene::apply(&self.node, &[], self.now),
            Step::Apply(version) => {
                self.version = version.clone();
                self.renumber(self.now);
                scene::apply(&self.node, &[spec(&self.base, version)], self.now);
            }
            Step::ApplyAgain => scene::apply(&self.node, &[spec(&self.base, &self.version)], self.now),
        }
    }

    /// Whether the limit let the request pass. Requests without a limit are not counted.
    fn ask(&mut self, key: &'static str, cost: u64) -> bool {
        self.turn += 1;
        let mut request = Request::new("shop", &[("key", key)]);
        request.cost = cost;
        let answer = self.askers[self.turn % 2].check(&request, self.now, Ask::CHECK);
        let Some(limit) = answer.limits.first().filter(|limit| limit.outcome == Outcome::Allow) else {
            return false;
        };
        let ledger = self.ledgers.entry(key).or_insert_with(|| {
            let terms = terms(&self.base, &self.version, key, self.now.wall_ns);
            Ledger::new(Promise::of(&self.base, limit.tag), terms, self.now)
        });
        ledger.admit(key, cost, self.now);
        true
    }

    /// Overrides end at their time, even without requests.
    fn wait(&mut self, ns: u64) {
        let (before, later) = (self.now, self.now.later(ns));
        let ends = self.version.overrides.iter().filter_map(|(_, _, until)| *until);
        let mut ends: Vec<Now> = ends.map(|after| START.later(after)).collect();
        ends.sort_unstable();
        for end in ends.into_iter().filter(|end| *end > before && *end <= later) {
            self.renumber(end);
        }
        self.now = later;
    }

    fn renumber(&mut self, now: Now) {
        for (key, ledger) in &mut self.ledgers {
            ledger.renumber(terms(&self.base, &self.version, key, now.wall_ns), now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_limit_changes_mints_a_unit(
        base in base(),
        version in version(),
        steps in vec(step(), 1..60),
    ) {
        let mut traffic = Traffic::new(base, version);
        steps.iter().for_each(|step| traffic.act(step));
    }
}

#[test]
fn the_same_limits_applied_again_change_nothing() {
    for spec in [scene::bucket("l", "1/h", 9), scene::window("l", 9, "1h"), scene::sliding("l", 9, "1h")] {
        let node = scene::node(std::slice::from_ref(&spec), START);
        let mut asker = node.asker();
        assert_eq!(scene::drain(&mut asker, "k", START), 9);
        let changes = node.apply(scene::limits(std::slice::from_ref(&spec)), START, |_| Vec::new());
        assert_eq!(changes, Ok(Vec::new()));
        assert_eq!(scene::drain(&mut asker, "k", START), 0);
        scene::apply(&node, &[], START);
        scene::apply(&node, &[spec], START);
        assert_eq!(scene::drain(&mut asker, "k", START), 0);
    }
}

#[test]
fn raising_a_limit_adds_exactly_the_difference() {
    for with in [
        |units| scene::bucket("l", "1/h", units),
        |units| scene::window("l", units, "1h"),
        |units| scene::sliding("l", units, "1h"),
    ] {
        let node = scene::node(&[with(40)], START);
        let mut asker = node.asker();
        assert_eq!(scene::drain(&mut asker, "k", START), 40);
        scene::apply(&node, &[with(100)], START);
        assert_eq!(scene::drain(&mut asker, "k", START), 60);
        scene::apply(&node, &[with(50)], START);
        assert_eq!(scene::drain(&mut asker, "k", START), 0);
    }
}

#[test]
fn lowering_a_burst_and_raising_it_again_mints_no_unit() {
    let node = scene::node(&[scene::bucket("b", "1/s", 100)], START);
    let mut asker = node.asker();
    assert_eq!(scene::drain(&mut asker, "k", START), 100);
    scene::apply(&node, &[scene::bucket("b", "1/s", 10)], START);
    assert!(!scene::passes(&mut asker, "k", 1, START));
    scene::apply(&node, &[scene::bucket("b", "1/s", 100)], START);
    assert_eq!(scene::drain(&mut asker, "k", START), 0);
}

#[test]
fn a_lower_rate_holds_for_cells_without_later_requests() {
    let node = scene::node(&[scene::bucket("b", "100/s", 100)], START);
    let mut asker = node.asker();
    assert_eq!(scene::drain(&mut asker, "k", START), 100);
    scene::apply(&node, &[scene::bucket("b", "1/h", 100)], START);
    // Under the old rate the cell would be idle after a second. Under the new rate it owes a hundred hours.
    let now = START.later(2 * S);
    scene::sweep_all(&node, now);
    assert_eq!(scene::drain(&mut asker, "k", now), 0);
}

fn override_of(key: &str, burst: u64, rate: &str, until: Option<Now>) -> BTreeMap<String, ValueSpec> {
    let mut fields = scene::fields(&[("key", &[key]), ("burst", &[&burst.to_string()]), ("rate", &[rate])]);
    if let Some(until) = until {
        fields.extend(scene::fields(&[("until", &[&scene::instant(until.wall_ns)])]));
    }
    fields
}

fn with_overrides(overrides: &[BTreeMap<String, ValueSpec>]) -> LimitSpec {
    LimitSpec { overrides: overrides.to_vec(), ..scene::bucket("b", "10/h", 10) }
}

#[test]
fn overrides_in_another_order_mint_no_unit() {
    let narrow = override_of("big", 100, "1/s", None);
    let wide = override_of("b*", 100, "2/s", None);
    let node = scene::node(&[with_overrides(&[narrow.clone(), wide.clone()])], START);
    let mut asker = node.asker();
    // Both overrides have been in force for an hour.
    let now = START.later(HOUR);
    assert_eq!(scene::drain(&mut asker, "big", now), 100);
    scene::apply(&node, &[with_overrides(&[wide.clone(), narrow])], now);
    assert_eq!(scene::drain(&mut asker, "big", now), 0);
    scene::apply(&node, &[with_overrides(&[wide])], now);
    assert_eq!(scene::drain(&mut asker, "big", now), 0);
}

#[test]
fn an_override_that_matches_more_keys_keeps_the_debt_of_earlier_ones() {
    let node = scene::node(&[with_overrides(&[override_of("big", 100, "1/s", None)])], START);
    let mut asker = node.asker();
    assert_eq!(scene::drain(&mut asker, "big", START), 100);
    scene::apply(&node, &[with_overrides(&[override_of("b*", 100, "1/s", None)])], START);
    assert_eq!(scene::drain(&mut asker, "big", START), 0);
}

/// A key comes twice, and an override fits one of its values. Such requests have a separate cell under the
/// base variant.
#[test]
fn a_request_with_two_values_of_a_key_keeps_its_debt_in_its_own_cell() {
    let big = || override_of("big", 100, "1/s", None);
    let node = scene::node(&[with_overrides(&[big()])], START);
    let mut asker = node.asker();
    let drain = |asker: &mut Asker, now| {
        let request = Request::new("shop", &[("key", "big"), ("key", "other")]);
        (0..200).filter(|_| asker.check(&request, now, Ask::CHECK).allowed).count()
    };
    assert_eq!(drain(&mut asker, START), 10, "the limit's own burst");
    assert_eq!(scene::drain(&mut asker, "big", START), 100, "as if nothing else had been asked for");
    // The base numbers change. The debt is carried over, and not through the override's variant.
    let slower = LimitSpec { overrides: vec![big()], ..scene::bucket("b", "5/h", 10) };
    scene::apply(&node, &[slower], START.later(MS));
    assert_eq!(drain(&mut asker, START.later(MS)), 0);
    assert_eq!(drain(&mut asker, START.later(HOUR + MS)), 5);
    // Without the override, the requests count under the first value.
    scene::apply(&node, &[with_overrides(&[])], START.later(HOUR + 2 * MS));
    assert_eq!(drain(&mut asker, START.later(HOUR + 2 * MS)), 10);
    assert_eq!(scene::drain(&mut asker, "big", START.later(HOUR + 2 * MS)), 0, "they share a cell");
}

#[test]
fn an_override_that_ended_by_one_threads_clock_has_ended_for_all() {
    let until = START.later(S);
    let node = scene::node(&[with_overrides(&[override_of("big", 100, "1/h", Some(until))])], START);
    let (mut ahead, mut behind) = (node.asker(), node.asker());
    let budget =
        |asker: &mut Asker, now: Now| scene::ask_as(asker, "big", 1, now, Ask::CHECK).limits[0].budget;
    assert_eq!(budget(&mut behind, START.later(S - MS)), 100);
    assert_eq!(budget(&mut ahead, until), 10);
    assert_eq!(budget(&mut behind, START.later(S - MS)), 10, "it is over");
    assert_eq!(budget(&mut ahead, until.later(1)), 10);
}

fn with_path(name: &str, limit: u64, value: Option<&str>) -> LimitSpec {
    let step =
        StepSpec { key: "key".into(), value: value.map(str::to_owned), shared: false, in_metrics: false };
    LimitSpec { by: Vec::new(), path: vec![step], ..scene::window(name, limit, "1h") }
}

#[test]
fn a_path_that_becomes_more_specific_counts_beside_the_old_one() {
    let node = scene::node(&[with_path("w", 10, None)], START);
    let mut asker = node.asker();
    assert_eq!(scene::drain(&mut asker, "k", START), 10);
    scene::apply(&node, &[with_path("w", 10, Some("k"))], START.later(S));
    assert_eq!(scene::drain(&mut asker, "k", START.later(S)), 0, "the old limit has none left");
    assert_eq!(scene::drain(&mut asker, "k", START.later(HOUR + S)), 10);
}

#[test]
fn a_path_that_is_gone_hides_no_other_one() {
    let node = scene::node(&[with_path("special", 5, Some("k")), with_path("rest", 10, None)], START);
    let mut asker = node.asker();
    assert_eq!(scene::drain(&mut asker, "k", START), 5);
    scene::apply(
        &node,
        &[with_path("special", 5, Some("other")), with_path("rest", 10, None)],
        START.later(S),
    );
    assert_eq!(scene::drain(&mut asker, "k", START.later(S)), 0, "the old limit counts beside the rest");
    assert_eq!(scene::drain(&mut asker, "k", START.later(HOUR + S)), 10, "the rest alone");
    assert_eq!(scene::drain(&mut asker, "other", START.later(HOUR + S)), 5);
}

#[test]
fn an_ended_override_that_is_removed_mints_no_unit() {
    let until = START.later(S);
    let node = scene::node(&[with_overrides(&[override_of("big", 100, "100/s", Some(until))])], START);
    let mut asker = node.asker();
    assert_eq!(scene::drain(&mut asker, "big", START.later(S - 1)), 100);
    let now = START.later(3 * S);
    scene::apply(&node, &[with_overrides(&[])], now);
    assert_eq!(scene::drain(&mut asker, "big", now), 0);
}

#[test]
fn overrides_that_end_in_turn_each_apply_for_their_time() {
    let (first, second) = (START.later(S), START.later(HOUR));
    let node = scene::node(
        &[LimitSpec {
            overrides: vec![
                override_of("big", 100, "10/h", Some(first)),
                override_of("big", 100, "1/h", Some(second)),
            ],
            ..scene::bucket("b", "100/s", 100)
        }],
        START,
    );
    let mut asker = node.asker();
    assert_eq!(scene::drain(&mut asker, "big", START), 100);
    // For an hour one unit was earned; then the limit's own rate began.
    let admitted = scene::drain(&mut asker, "big", second);
    assert!(admitted <= 2, "admitted {admitted}");
}

#[test]
fn a_wall_clock_that_steps_past_an_overrides_end_mints_no_unit() {
    let until = START.later(2 * HOUR);
    let node = scene::node(
        &[LimitSpec {
            overrides: vec![override_of("big", 100, "1/s", Some(until))],
            ..scene::bucket("b", "1/s", 50)
        }],
        START,
    );
    let mut asker = node.asker();
    let mut now = START.later(HOUR);
    assert_eq!(scene::drain(&mut asker, "big", now), 100);
    for wall_ns in [START.wall_ns + 4 * HOUR, START.wall_ns + HOUR, START.wall_ns + 3 * HOUR] {
        now = Now { wall_ns, ..now };
        assert_eq!(scene::drain(&mut asker, "big", now), 0, "{} h", (wall_ns - START.wall_ns) / HOUR);
    }
}

#[test]
fn a_swept_window_is_not_reopened_by_a_clock_that_steps_back() {
    let node = scene::node(&[scene::window("w", 10, "1m")], START);
    let mut asker = node.asker();
    assert_eq!(scene::drain(&mut asker, "k", START.later(30 * S)), 10);
    let swept = START.later(MINUTE + S);
    scene::sweep_all(&node, swept);
    // The wall clock continues from where it was. The units that pass now belong to the next window, and pass
    // only once.
    let back = Now { wall_ns: START.wall_ns + 59 * S, ..swept.later(S) };
    let early = scene::drain(&mut asker, "k", back);
    assert_eq!(early + scene::drain(&mut asker, "k", START.later(MINUTE + 59 * S)), 10);
}

/// When the new limit begins, by the reported change.
fn succeed(node: &Node, spec: &LimitSpec, now: Now) -> Now {
    let changes = node.apply(scene::limits(std::slice::from_ref(spec)), now, |_| Vec::new()).expect("limits");
    match changes.as_slice() {
        [change] => match change.kind {
            ChangeKind::Succeeds { at_ns } => now.later(at_ns - now.wall_ns),
            kind => panic!("{kind:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_window_length_applies_when_the_old_window_has_ended() {
    let (hourly, tenth) = (scene::window("w", 10, "1h"), scene::window("w", 10, "6m"));
    let node = scene::node(std::slice::from_ref(&hourly), START);
    let mut asker = node.asker();
    let now = START.later(20 * MINUTE);
    assert_eq!(scene::drain(&mut asker, "k", now), 10);
    assert_eq!(succeed(&node, &tenth, now), START.later(HOUR));
    assert_eq!(scene::drain(&mut asker, "k", START.later(HOUR - 1)), 0);
    assert_eq!(scene::drain(&mut asker, "k", START.later(HOUR)), 10);
    // After a change back, the hour that contains the six minutes is not given again.
    let at = succeed(&node, &hourly, START.later(HOUR));
    assert_eq!(at, START.later(HOUR + 6 * MINUTE));
    assert_eq!(scene::drain(&mut asker, "k", at.later(0)), 10);
}

#[test]
fn removed_shapes_of_a_limit_hold_beside_a_new_one_until_their_end() {
    let by_key = scene::window("w", 100, "1h");
    let by_all = LimitSpec { by: vec![], ..scene::window("w", 10, "1h") };
    let other = LimitSpec { when: scene::fields(&[("key", &["*"])]), ..by_all.clone() };
    let node = scene::node(std::slice::from_ref(&by_key), START);
    let mut asker = node.asker();
    succeed(&node, &by_all, START);
    assert_eq!(scene::drain(&mut asker, "k", START), 10);
    scene::apply(&node, &[], START.later(S));
    succeed(&node, &other, START.later(2 * S));
    assert_eq!(scene::drain(&mut asker, "j", START.later(HOUR - 1)), 0, "by_all has given what it had");
    assert_eq!(scene::drain(&mut asker, "j", START.later(HOUR)), 10);
}

#[test]
fn a_new_shape_of_a_limit_counts_at_once() {
    let by_key = scene::window("w", 10, "1h");
    let by_all = LimitSpec { by: vec![], ..scene::window("w", 15, "1h") };
    let node = scene::node(std::slice::from_ref(&by_key), START);
    let mut asker = node.asker();
    assert_eq!(scene::drain(&mut asker, "a", START), 10);
    succeed(&node, &by_all, START);
    assert_eq!(scene::drain(&mut asker, "a", START), 0, "what was spent is spent");
    assert_eq!(scene::drain(&mut asker, "b", START), 10);
    assert_eq!(scene::drain(&mut asker, "c", START), 5, "the new one counts from its first moment");
}

#[test]
fn a_limit_change_undone_before_its_turn_has_no_effect() {
    let (hourly, by_all) = (scene::window("w", 10, "1h"), scene::window("w", 10, "1h"));
    let by_all = LimitSpec { by: vec![], ..by_all };
    let node = scene::node(std::slice::from_ref(&hourly), START);
    let mut asker = node.asker();
    assert_eq!(scene::drain(&mut asker, "k", START), 10);
    succeed(&node, &by_all, START);
    scene::apply(&node, &[LimitSpec { cost: Some(2), ..by_all }], START.later(S));
    scene::apply(&node, &[hourly], START.later(2 * S));
    for now in [START.later(3 * S), START.later(HOUR - 1)] {
        assert_eq!(scene::drain(&mut asker, "k", now), 0);
    }
    assert_eq!(scene::drain(&mut asker, "k", START.later(HOUR)), 10);
}

#[test]
fn a_bucket_replaced_by_another_shape_is_not_spent_twice_at_the_turn() {
    for other in [scene::sliding("b", 60, "1m"), LimitSpec { cost: Some(1), ..scene::window("b", 60, "1h") }]
    {
        let node = scene::node(&[scene::bucket("b", "60/m", 60)], START);
        let mut asker = node.asker();
        let turn = succeed(&node, &other, START);
        let before = Now { steady_ns: turn.steady_ns - 1, wall_ns: turn.wall_ns - 1 };
        let admitted = scene::drain(&mut asker, "k", before) + scene::drain(&mut asker, "k", turn);
        assert!(admitted <= 61, "admitted {admitted} in a nanosecond");
    }
}

#[test]
fn a_limit_is_replaced_only_when_its_overrides_have_refilled() {
    let slow = override_of("big", 100, "100/h", None);
    let spec = LimitSpec { overrides: vec![slow], ..scene::bucket("b", "10/s", 10) };
    let node = scene::node(std::slice::from_ref(&spec), START);
    let mut asker = node.asker();
    assert_eq!(scene::drain(&mut asker, "big", START), 100);
    let turn = succeed(&node, &LimitSpec { when: scene::fields(&[("key", &["*"])]), ..spec }, START);
    let back = 100 * (turn.steady_ns - START.steady_ns) / HOUR;
    let admitted = scene::drain(&mut asker, "big", turn);
    assert!(admitted <= back, "admitted {admitted} where {back} had come back");
}
