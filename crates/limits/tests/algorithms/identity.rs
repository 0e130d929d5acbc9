//! Changes that keep a limit, with all that was spent under it, and changes that make another limit.

use std::collections::BTreeMap;

use acequia_limits::{
    Charge, Limit, LimitId, Mode,
    calendar::Period,
    limit::{AddressSpec, BySpec, LimitSpec, ValueSpec},
};
use proptest::prelude::*;

use crate::{
    history::config,
    terms::{self, Terms},
};

const S: u64 = 1_000_000_000;

#[track_caller]
fn id(spec: &LimitSpec) -> LimitId {
    Limit::new(spec.clone()).expect("a limit").id
}

fn conditions(entries: &[(&str, &[&str])]) -> BTreeMap<String, ValueSpec> {
    let values = |values: &[&str]| ValueSpec::Texts(values.iter().map(|value| (*value).to_owned()).collect());
    entries.iter().map(|(key, any)| ((*key).to_owned(), values(any))).collect()
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn new_rates_and_sizes_keep_a_limits_id(
        (terms, numbers) in prop_oneof![
            (terms::token_bucket(), terms::token_bucket()),
            (terms::leaky_bucket(), terms::leaky_bucket()),
            (terms::fixed_window(), terms::fixed_window()),
            (terms::staggered_window(), terms::staggered_window()),
            (terms::calendar_quota(), terms::calendar_quota()),
            (terms::sliding_log(), terms::sliding_slots()),
            (terms::sliding_slots(), terms::sliding_slots()),
            (terms::rolling_quota(), terms::rolling_quota()),
            (terms::approximate(), terms::approximate()),
        ]
    ) {
        prop_assert_eq!(id(&terms.spec()), id(&terms.renumbered(&numbers).spec()));
    }

    /// Two limits at random are two limits, unless they differ only in their parameters.
    #[test]
    fn a_new_shape_makes_a_new_limit(one in any_terms(), other in any_terms()) {
        let same = shape(&one) == shape(&other);
        prop_assert_eq!(id(&one.spec()) == id(&other.spec()), same);
    }
}

fn any_terms() -> impl Strategy<Value = Terms> {
    prop_oneof![
        terms::token_bucket(),
        terms::leaky_bucket(),
        terms::fixed_window(),
        terms::staggered_window(),
        terms::calendar_quota(),
        terms::sliding_log(),
        terms::sliding_slots(),
        terms::rolling_quota(),
        terms::approximate(),
    ]
}

/// Terms without their parameters. A rolling quota is a sliding window under another name.
fn shape(terms: &Terms) -> Terms {
    match terms.clone() {
        Terms::Bucket { leaky, .. } => Terms::Bucket { leaky, units: 0, period_ns: 0, capacity: 0 },
        Terms::Fixed { window_ns, stagger, .. } => Terms::Fixed { limit: 0, window_ns, stagger },
        Terms::Calendar { period, zone, .. } => Terms::Calendar { limit: 0, period, zone },
        Terms::Sliding { window_ns, .. } => Terms::Sliding { limit: 0, window_ns, slots: None, quota: false },
        Terms::Approximate { window_ns, .. } => Terms::Approximate { limit: 0, window_ns },
    }
}

fn hourly() -> LimitSpec {
    Terms::Fixed { limit: 100, window_ns: 3_600 * S, stagger: false }.spec()
}

#[test]
fn fields_that_do_not_change_what_is_counted_keep_a_limits_id() {
    let big_co = BTreeMap::from_iter(conditions(&[
        ("api_key", &["big-co"]),
        ("limit", &["500"]),
        ("why", &["launch"]),
    ]));
    for same in [
        LimitSpec { mode: Mode::Shadow, ..hourly() },
        LimitSpec { mode: Mode::Off, ..hourly() },
        LimitSpec { charge: Charge::Each, ..hourly() },
        LimitSpec { cost: Some(5), ..hourly() },
        LimitSpec { unit: Some("tokens".to_owned()), ..hourly() },
        LimitSpec { unlimited: conditions(&[("api_key", &["internal-*"])]), ..hourly() },
        LimitSpec { overrides: vec![big_co], ..hourly() },
    ] {
        assert_eq!(id(&hourly()), id(&same), "{same:?}");
    }
}

#[test]
fn fields_that_change_what_is_counted_make_another_limit() {
    let by = |by: &[BySpec]| LimitSpec { by: by.to_vec(), ..hourly() };
    let key = |key: &str| BySpec::Key(key.to_owned());
    let address = |v4, v6| BySpec::Address(AddressSpec { ip: "api_key".to_owned(), v4, v6, trust: 1 });
    let when = |when: &[(&str, &[&str])]| LimitSpec { when: conditions(when), ..hourly() };
    let window = |window_ns, stagger| Terms::Fixed { limit: 100, window_ns, stagger }.spec();
    let sliding = |window_ns| Terms::Sliding { limit: 100, window_ns, slots: None, quota: false }.spec();
    let quota = |period, zone| Terms::Calendar { limit: 100, period, zone }.spec();
    all_differ(&[
        hourly(),
        LimitSpec { name: "per-tenant".to_owned(), ..hourly() },
        LimitSpec { domain: "bank".to_owned(), ..hourly() },
        LimitSpec { name: "key".to_owned(), domain: "shopper-".to_owned(), ..hourly() },
        by(&[]),
        by(&[key("tenant")]),
        by(&[key("api_key"), key("tenant")]),
        by(&[key("tenant"), key("api_key")]),
        by(&[address(32, 64)]),
        by(&[address(24, 64)]),
        by(&[address(32, 48)]),
        when(&[("route", &["/a"])]),
        when(&[("route", &["/a*"])]),
        when(&[("route", &["/a", "/b"])]),
        when(&[("route", &["!/a"])]),
        when(&[("route", &["/a"]), ("method", &["GET"])]),
        window(60 * S, false),
        window(3_600 * S, true),
        sliding(3_600 * S),
        sliding(60 * S),
        Terms::Approximate { limit: 100, window_ns: 3_600 * S }.spec(),
        Terms::Approximate { limit: 100, window_ns: 60 * S }.spec(),
        Terms::Bucket { leaky: false, units: 1, period_ns: S, capacity: 100 }.spec(),
        Terms::Bucket { leaky: true, units: 1, period_ns: S, capacity: 100 }.spec(),
        quota(Period::Day, "UTC"),
        quota(Period::Day, "Europe/Berlin"),
        quota(Period::Week, "UTC"),
        quota(Period::Month, "UTC"),
        quota(Period::Year, "UTC"),
    ]);
}

#[test]
fn a_quota_without_a_time_zone_uses_utc() {
    let named = Terms::Calendar { limit: 1, period: Period::Day, zone: "UTC" }.spec();
    let mut unnamed = named.clone();
    unnamed.quota.as_mut().expect("a quota").time_zone = None;
    assert_eq!(id(&named), id(&unnamed));
}

#[test]
fn a_value_that_moves_to_another_key_makes_another_limit() {
    all_differ(&[
        LimitSpec { when: conditions(&[("method", &["GET", "route", "x"])]), ..hourly() },
        LimitSpec { when: conditions(&[("method", &["GET"]), ("route", &["x"])]), ..hourly() },
    ]);
}

#[test]
fn an_escaped_exclamation_mark_is_not_an_exclusion() {
    all_differ(&[
        LimitSpec { when: conditions(&[("method", &[r"\!x"])]), ..hourly() },
        LimitSpec { when: conditions(&[("method", &["!x"])]), ..hourly() },
    ]);
}

#[test]
fn a_key_to_count_by_is_never_confused_with_a_condition() {
    let address = BySpec::Address(AddressSpec { ip: "when".to_owned(), v4: 32, v6: 64, trust: 1 });
    all_differ(&[
        LimitSpec { by: vec![address], ..hourly() },
        LimitSpec { by: vec![], when: conditions(&[("32/64", &["when"])]), ..hourly() },
    ]);
}

/// Every condition of up to four words from a small dictionary: as many ids as meanings.
#[test]
fn conditions_that_mean_different_things_are_different_limits() {
    const VALUES: [&str; 4] = ["a", "b", "!a", r"\!a"];
    let lists: Vec<Vec<&str>> = VALUES
        .iter()
        .map(|one| vec![*one])
        .chain(VALUES.iter().flat_map(|one| VALUES.iter().map(|two| vec![*one, *two])))
        .collect();
    let one_key = lists.iter().flat_map(|list| [vec![("a", list)], vec![("b", list)]]);
    let two_keys =
        lists.iter().flat_map(|first| lists.iter().map(move |second| vec![("a", first), ("b", second)]));
    let mut meanings: BTreeMap<LimitId, String> = BTreeMap::new();
    for when in one_key.chain(two_keys) {
        let when = when.iter().map(|(key, list)| (*key, list.as_slice())).collect::<Vec<_>>();
        let limit = Limit::new(LimitSpec { when: conditions(&when), ..hourly() }).expect("a limit");
        let meaning = format!("{:?}", limit.when);
        let first = meanings.entry(limit.id).or_insert_with(|| meaning.clone());
        assert_eq!(*first, meaning, "two conditions are one limit");
    }
}

#[track_caller]
fn all_differ(specs: &[LimitSpec]) {
    for (place, spec) in specs.iter().enumerate() {
        for other in &specs[..place] {
            assert_ne!(id(spec), id(other), "{spec:?} and {other:?} are one limit");
        }
    }
}
