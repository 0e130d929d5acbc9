//! Overrides of single cells: orders write them into a limit, with their end, reason and author. Pure: reads
//! specs, returns specs and words.
//!
//! Granted units come on top of the cell's other numbers, until the grant ends. So grants stand before all
//! other overrides, and a grant that ends earlier stands before a later one. Grants are written anew whenever
//! the numbers below them change.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use acequia_limits::{
    Algorithm, Descriptor, Limit,
    limit::{BySpec, LimitSpec, ValueSpec, parse_instant_ns},
    notation::{format_duration_ns, parse_units},
};
use jiff::Timestamp;

use super::{audit::clean, order::OrderFault};
use crate::settings::SETTINGS;

/// The fields of an override that are neither numbers nor a key.
const ABOUT: [&str; 4] = ["until", "why", "author", "granted"];

/// An override as it is written.
type Fields = BTreeMap<String, ValueSpec>;

/// The cells of an override: values of a limit's `by`.
pub(super) type Key = BTreeMap<String, String>;

/// An override's description.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct About<'a> {
    /// When it ends: wall clock.
    pub(super) until_ns: Option<u64>,
    /// The reason.
    pub(super) why: &'a str,
    /// The author.
    pub(super) author: &'a str,
}

/// Units on top of the cell's other numbers.
#[derive(Clone, Debug, PartialEq)]
struct Grant {
    units: u64,
    until_ns: u64,
    why: Option<ValueSpec>,
    author: Option<ValueSpec>,
}

/// Sets the numbers of the override with exactly this key. A new override stands before the others, so that
/// it counts.
pub(super) fn set(
    spec: &LimitSpec,
    key: &Key,
    numbers: &BTreeMap<String, String>,
    about: About<'_>,
) -> Result<LimitSpec, OrderFault> {
    let mut spec = spec.clone();
    let key = canonical(&spec, key);
    let at = spec.overrides.iter().position(|fields| is_of(&spec, fields, &key) && !is_grant(&spec, fields));
    let at = at.unwrap_or_else(|| {
        let fields = key.iter().map(|(name, value)| (name.clone(), one(value)));
        spec.overrides.insert(0, fields.collect());
        0
    });
    let said = said(&spec, about);
    let numbers = numbers.iter().map(|(name, text)| (name.clone(), one(text)));
    spec.overrides[at].extend(numbers.chain(said));
    Ok(spec)
}

/// Grants the one cell of this key so many units until a time.
pub(super) fn grant(
    spec: &LimitSpec,
    key: &Key,
    units: u64,
    until_ns: u64,
    about: About<'_>,
) -> Result<LimitSpec, OrderFault> {
    let key = exact(spec, key)?;
    if units == 0 {
        return Err(invalid("a grant of 0 changes nothing: write how many units more, 1 at least"));
    }
    let name = spec.units_name().ok_or_else(|| invalid("the limit has no units to grant"))?;
    let mut spec = spec.clone();
    let mut fields: Fields = key.iter().map(|(name, value)| (name.clone(), one(value))).collect();
    fields.extend(said(&spec, About { until_ns: Some(until_ns), ..about }));
    fields.insert("granted".to_owned(), one(&units.to_string()));
    // Any number will do: the sum is made when grants are written anew.
    fields.insert(name.to_owned(), one("1"));
    spec.overrides.insert(0, fields);
    regrant(&spec)
}

/// The limit with its grants written anew: before all other overrides, and on top of the numbers that their
/// cells have otherwise.
///
/// # Errors
/// The sum is more than can be counted, or the limit cannot be read.
pub(super) fn regrant(spec: &LimitSpec) -> Result<LimitSpec, OrderFault> {
    let mut bare = spec.clone();
    bare.overrides.retain(|fields| !is_grant(spec, fields));
    if bare.overrides.len() == spec.overrides.len() {
        return Ok(bare);
    }
    let limit = read(&bare)?;
    let mut granted: BTreeMap<Vec<(String, String)>, Vec<Grant>> = BTreeMap::new();
    for fields in spec.overrides.iter().filter(|fields| is_grant(spec, fields)) {
        granted.entry(key_of(spec, fields).into_iter().collect()).or_default().extend(grant_of(fields));
    }
    let mut all = Vec::new();
    for (key, grants) in granted {
        if key.len() != spec.counts_by().len() {
            return Err(invalid("a grant is for one cell, and names all that the limit counts by"));
        }
        all.extend(written(&limit, &key.into_iter().collect(), &grants)?);
    }
    all.append(&mut bare.overrides);
    bare.overrides = all;
    read(&bare).map(|_| bare)
}

/// The grants of one cell as overrides, in the order of their ends. If the numbers below change before the
/// grants end, there is one more override from then on.
fn written(limit: &Limit, key: &Key, grants: &[Grant]) -> Result<Vec<Fields>, OrderFault> {
    let spec = &limit.spec;
    let name = spec.units_name().ok_or_else(|| invalid("the limit has no units to grant"))?;
    let values: Vec<(&[u8], &[u8])> =
        key.iter().map(|(name, value)| (name.as_bytes(), unescaped(value).as_bytes())).collect();
    let cell = Descriptor::new(&values, None);
    let Some(last_ns) = grants.iter().map(|grant| grant.until_ns).max() else { return Ok(Vec::new()) };
    let others = limit.overrides.iter().filter_map(|o| o.until_ns).filter(|until_ns| *until_ns < last_ns);
    let ends: BTreeSet<u64> = others.chain(grants.iter().map(|grant| grant.until_ns)).collect();
    let mut all: Vec<Fields> = Vec::new();
    for end_ns in ends {
        let mut fields: Fields = key.iter().map(|(name, value)| (name.clone(), one(value))).collect();
        let (units, base) = match limit.variant_for(&cell, end_ns.saturating_sub(1)).index() {
            Some(place) => (limit.overrides[place].algorithm.budget(), Some(&spec.overrides[place])),
            None => (limit.algorithm.budget(), None),
        };
        for number in spec.number_names() {
            let found = base.and_then(|base| base.get(number));
            fields.extend(found.map(|text| (number.to_owned(), text.clone())));
        }
        let later = grants.iter().filter(|grant| grant.until_ns >= end_ns);
        let sum = later.map(|grant| grant.units).try_fold(units, u64::checked_add);
        let sum = sum.ok_or_else(|| invalid("that is more than can be counted: grant less"))?;
        let ending = || grants.iter().filter(|grant| grant.until_ns == end_ns);
        let own: u64 = ending().map(|grant| grant.units).fold(0, u64::saturating_add);
        fields.insert(name.to_owned(), one(&sum.to_string()));
        fields.insert("granted".to_owned(), one(&own.to_string()));
        fields.insert("until".to_owned(), one(&instant(end_ns)));
        // If several grants end together, the last reason and author count.
        let mut why = ending().filter_map(|grant| grant.why.clone());
        let mut author = ending().filter_map(|grant| grant.author.clone());
        fields.extend(why.next().map(|why| ("why".to_owned(), why)));
        fields.extend(author.next().map(|author| ("author".to_owned(), author)));
        // If the next override is equal and lasts longer, this one is not needed.
        if let Some(before) = all.last()
            && before.get("granted") == Some(&one("0"))
            && spec.number_names().iter().all(|number| before.get(*number) == fields.get(*number))
        {
            all.pop();
        }
        all.push(fields);
    }
    Ok(all)
}

/// Units that are granted to the one cell of an exact key.
pub(super) fn granted(spec: &LimitSpec, exact: &Key) -> u64 {
    let of = spec.overrides.iter().filter(|fields| is_grant(spec, fields) && is_of(spec, fields, exact));
    of.filter_map(grant_of).map(|grant| grant.units).fold(0, u64::saturating_add)
}

/// The grants of `from`, moved to another spec of the limit if it can have them.
pub(super) fn keep_grants(from: &LimitSpec, to: &LimitSpec) -> LimitSpec {
    let granted = from.overrides.iter().filter(|fields| is_grant(from, fields)).cloned();
    let mut kept = to.clone();
    kept.overrides.retain(|fields| !is_grant(to, fields));
    kept.overrides.splice(0..0, granted);
    regrant(&kept).unwrap_or_else(|_| to.clone())
}

/// The lasting part of a spec, which a file could say: without grants, and without overrides that have ended.
pub(super) fn lasting(spec: &LimitSpec, wall_ns: u64) -> LimitSpec {
    let mut lasting = spec.clone();
    lasting.forget_ended(wall_ns);
    lasting.overrides.retain(|fields| !is_grant(spec, fields));
    lasting
}

/// When units that are granted now end. For fixed windows: with the open window. For sliding windows: after
/// one window. For buckets: after the given time, or else the time in which a bucket refills.
pub(super) fn grant_ends_ns(
    algorithm: &Algorithm,
    window_ends_ns: u64,
    for_ns: Option<u64>,
    wall_ns: u64,
) -> Result<u64, OrderFault> {
    let after = |ns: u64| wall_ns.saturating_add(ns).div_ceil(1_000_000).saturating_mul(1_000_000);
    match (algorithm, for_ns) {
        (Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter), for_ns) => {
            Ok(after(for_ns.unwrap_or_else(|| meter.refill_ns())))
        }
        (_, Some(_)) => Err(invalid(
            "what is granted in a window ends with it: leave out --for, or raise the limit for longer with `acequia budget \
             set ... --for`",
        )),
        (Algorithm::FixedWindow(_), None) => Ok(window_ends_ns),
        (sliding, None) => Ok(after(sliding.period_ns())),
    }
}

/// The key of exactly one cell, as an override writes it; or its fault.
pub(super) fn exact(spec: &LimitSpec, key: &Key) -> Result<Key, OrderFault> {
    let path = format!("{}/{}", spec.domain, spec.name);
    let counted = spec.counts_by();
    let by: Vec<&str> = counted.iter().map(BySpec::key).collect();
    let pairs = by.iter().map(|name| format!("{name}=...")).collect::<Vec<_>>().join(",");
    let shape = match by.as_slice() {
        [] => format!("{path} counts in one cell: write it without brackets"),
        by => format!("{path} has a cell for each {}: write {path}[{pairs}]", by.join(" and ")),
    };
    if by.len() != key.len() || by.iter().any(|name| !key.contains_key(*name)) {
        return Err(OrderFault::Invalid(shape));
    }
    let mut exact = canonical(spec, key);
    for (name, value) in &mut exact {
        if value.contains('*') {
            return Err(invalid(&format!(
                "{name}={value} stands for many cells, because of the *: name one, or give them other numbers with `acequia \
                 budget set`"
            )));
        }
        if is_address(spec, name) && !value.is_empty() && value.parse::<IpAddr>().is_err() {
            return Err(invalid(&format!(
                "{name}={value} is no address: name one, or give a network other numbers with `acequia budget set`"
            )));
        }
        if value.chars().any(char::is_control) {
            return Err(invalid(&format!(
                "{name} has a control character, which no request may have: leave it out"
            )));
        }
        if value.starts_with(['!', '\\']) {
            value.insert(0, '\\');
        }
    }
    Ok(exact)
}

fn is_address(spec: &LimitSpec, name: &str) -> bool {
    spec.by.iter().any(|by| matches!(by, BySpec::Address(address) if address.ip == name))
}

/// The key with addresses in canonical form: a cell has one set of numbers, however its address is written.
fn canonical(spec: &LimitSpec, key: &Key) -> Key {
    let one = |(name, value): (&String, &String)| {
        let address = value.parse::<IpAddr>().ok().filter(|_| is_address(spec, name));
        (name.clone(), address.map_or_else(|| value.clone(), |address| address.to_canonical().to_string()))
    };
    key.iter().map(one).collect()
}

/// The value of one cell that an override's pattern stands for.
fn unescaped(pattern: &str) -> &str {
    pattern.strip_prefix('\\').unwrap_or(pattern)
}

/// The values of an exact key, as requests have them.
pub(super) fn values(exact: &Key) -> Vec<(&[u8], &[u8])> {
    exact.iter().map(|(name, value)| (name.as_bytes(), unescaped(value).as_bytes())).collect()
}

fn one(text: &str) -> ValueSpec {
    ValueSpec::Texts(vec![text.to_owned()])
}

fn counts_by(spec: &LimitSpec, name: &str) -> bool {
    spec.counts_by().iter().any(|by| by.key() == name)
}

fn is_grant(spec: &LimitSpec, fields: &Fields) -> bool {
    fields.contains_key("granted") && !counts_by(spec, "granted")
}

/// Whether an override has exactly this key.
fn is_of(spec: &LimitSpec, fields: &Fields, key: &Key) -> bool {
    let whose = fields.keys().filter(|name| counts_by(spec, name));
    whose.count() == key.len() && key.iter().all(|(name, value)| fields.get(name) == Some(&one(value)))
}

fn key_of(spec: &LimitSpec, fields: &Fields) -> Key {
    let of = fields.iter().filter(|(name, _)| counts_by(spec, name));
    of.filter_map(|(name, values)| Some((name.clone(), values.texts().first()?.clone()))).collect()
}

fn text_of<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    fields.get(name)?.texts().first().map(String::as_str)
}

/// The grant of an override; `None` for an override that only bridges a change of the numbers below a grant.
fn grant_of(fields: &Fields) -> Option<Grant> {
    let units = parse_units(text_of(fields, "granted")?).ok().filter(|units| *units > 0)?;
    let until_ns = parse_instant_ns(text_of(fields, "until")?).ok()?;
    Some(Grant { units, until_ns, why: fields.get("why").cloned(), author: fields.get("author").cloned() })
}

/// The description of an override, as fields.
fn said(spec: &LimitSpec, about: About<'_>) -> Vec<(String, ValueSpec)> {
    let until = about.until_ns.map(|until_ns| ("until".to_owned(), one(&instant(until_ns))));
    let words = |name: &str, text: &str| {
        let text = short(&clean(text));
        (!text.is_empty() && !counts_by(spec, name)).then(|| (name.to_owned(), one(&text)))
    };
    let words = [words("why", about.why), words("author", about.author)];
    until.into_iter().chain(words.into_iter().flatten()).collect()
}

fn short(text: &str) -> String {
    let text = text.trim();
    let end =
        (0..=SETTINGS.orders.about_bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or(0)].to_owned()
}

fn invalid(what: &str) -> OrderFault {
    OrderFault::Invalid(what.to_owned())
}

/// Makes a limit, or returns its fault.
pub(super) fn read(spec: &LimitSpec) -> Result<Limit, OrderFault> {
    Limit::new(spec.clone()).map_err(|faults| {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        OrderFault::Invalid(faults.join("; "))
    })
}

/// A time of day, RFC 3339 in UTC.
pub(super) fn instant(wall_ns: u64) -> String {
    Timestamp::from_nanosecond(i128::from(wall_ns)).map_or_else(|_| wall_ns.to_string(), |at| at.to_string())
}

/// A key as it is written in a limit's path: `[tenant=big-co]`; empty for an empty key.
pub(super) fn brackets(key: &Key) -> String {
    if key.is_empty() {
        return String::new();
    }
    let encoded = |text: &str| text.replace('%', "%25").replace(',', "%2C");
    let pairs = key.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
    format!("[{}]", pairs.collect::<Vec<_>>().join(","))
}

/// The changes between the overrides of two specs, a line each.
pub(super) fn changes(before: &LimitSpec, after: &LimitSpec) -> Vec<String> {
    let path = format!("{}/{}", after.domain, after.name);
    let gone = before.overrides.iter().filter(|fields| !after.overrides.contains(fields));
    let new = after.overrides.iter().filter(|fields| !before.overrides.contains(fields));
    let gone = gone.map(|fields| format!("{path}: no longer {}", words(before, fields)));
    let new = new.map(|fields| format!("{path}: {}", words(after, fields)));
    let mut all: Vec<String> = gone.chain(new).collect();
    if all.is_empty() && before.overrides != after.overrides {
        all.push(format!("{path}: its overrides have another order"));
    }
    all
}

/// An override in words: its cells, numbers, end and reason.
fn words(spec: &LimitSpec, fields: &Fields) -> String {
    let is_number = |name: &String| spec.number_names().contains(&name.as_str());
    let pairs = |wanted: &dyn Fn(&String) -> bool, between: &str| {
        let found = fields.iter().filter(|(name, _)| wanted(name));
        found.map(|(name, values)| format!("{name}{between}{values}")).collect::<Vec<_>>().join(", ")
    };
    let is_whose =
        |name: &String| !is_number(name) && (!ABOUT.contains(&name.as_str()) || counts_by(spec, name));
    let mut words = match pairs(&is_whose, "=") {
        whose if whose.is_empty() => "its cell".to_owned(),
        whose => whose,
    };
    words.push_str(&format!(" has {}", pairs(&is_number, " ")));
    if let Some(granted) =
        text_of(fields, "granted").filter(|granted| *granted != "0" && is_grant(spec, fields))
    {
        words.push_str(&format!(" ({granted} granted)"));
    }
    if let Some(until) = text_of(fields, "until") {
        words.push_str(&format!(" until {until}"));
    }
    for (name, before) in [("why", ": "), ("author", ", by ")] {
        if let Some(said) = text_of(fields, name).filter(|_| !counts_by(spec, name)) {
            words.push_str(&format!("{before}{said}"));
        }
    }
    words
}

/// Checks that the end lies ahead.
pub(super) fn check_end(until_ns: Option<u64>, wall_ns: u64) -> Result<(), OrderFault> {
    match until_ns {
        Some(until_ns) if until_ns <= wall_ns => Err(invalid(&format!(
            "{} is past, by {}: write a time that comes, or for how long with --for 2h",
            instant(until_ns),
            format_duration_ns((wall_ns - until_ns).max(1)),
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_NS: u64 = 86_400 * 1_000_000_000;

    fn quota() -> LimitSpec {
        serde_json::from_str(
            r#"{"name": "credits", "domain": "shop", "by": ["tenant"], "quota": {"limit": 100, "per": "day"},
                "overrides": [{"tenant": "big-*", "limit": "500"}]}"#,
        )
        .expect("a limit")
    }

    fn key(value: &str) -> Key {
        [("tenant".to_owned(), value.to_owned())].into()
    }

    fn ana() -> About<'static> {
        About { until_ns: None, why: "a launch", author: "ana" }
    }

    /// The units of a cell at a time.
    fn units(spec: &LimitSpec, tenant: &str, wall_ns: u64) -> u64 {
        let limit = read(spec).expect("a limit");
        let entries = [(&b"tenant"[..], tenant.as_bytes())];
        let found = limit.variant_for(&Descriptor::new(&entries, None), wall_ns).index();
        found.map_or_else(|| limit.algorithm.budget(), |place| limit.overrides[place].algorithm.budget())
    }

    #[test]
    fn a_grant_adds_to_a_cells_limit_until_it_ends() {
        let after = grant(&quota(), &key("big-co"), 50, DAY_NS, ana()).expect("sound");
        assert_eq!(units(&after, "big-co", DAY_NS - 1), 550);
        assert_eq!(
            (units(&after, "big-co", DAY_NS), units(&after, "big-op", 0), units(&after, "x", 0)),
            (500, 500, 100)
        );
        let after = grant(&after, &key("small"), 7, DAY_NS, ana()).expect("sound");
        assert_eq!((units(&after, "small", 0), units(&after, "big-co", 0)), (107, 550));
        assert_eq!(text_of(&after.overrides[0], "author"), Some("ana"));
    }

    #[test]
    fn grants_add_up_and_each_ends_at_its_time() {
        let once = grant(&quota(), &key("a"), 10, 2 * DAY_NS, ana()).expect("sound");
        let twice = grant(&once, &key("a"), 5, DAY_NS, ana()).expect("sound");
        let thrice = grant(&twice, &key("a"), 1, DAY_NS, ana()).expect("sound");
        let at = |wall_ns| units(&thrice, "a", wall_ns);
        assert_eq!((at(0), at(DAY_NS), at(2 * DAY_NS)), (116, 110, 100));
        assert_eq!(thrice.overrides.len(), 3, "one for each end, and the glob");
        assert_eq!((granted(&thrice, &key("a")), granted(&thrice, &key("b"))), (16, 0));
    }

    #[test]
    fn a_grant_adds_to_a_changed_limit() {
        let numbers = |limit: &str| [("limit".to_owned(), limit.to_owned())].into();
        let granted = grant(&quota(), &key("a"), 10, 2 * DAY_NS, ana()).expect("sound");
        let after = set(&granted, &key("a"), &numbers("200"), About { until_ns: Some(DAY_NS), ..ana() });
        let after = regrant(&after.expect("sound")).expect("sound");
        let at = |wall_ns| units(&after, "a", wall_ns);
        assert_eq!((at(0), at(DAY_NS), at(2 * DAY_NS)), (210, 110, 100));
        assert_eq!(regrant(&after).expect("sound"), after, "once is enough");

        let mut more = after.clone();
        more.quota.as_mut().expect("a quota").limit = 1_000;
        let more = regrant(&more).expect("sound");
        assert_eq!((units(&more, "a", 0), units(&more, "a", DAY_NS)), (210, 1_010));
    }

    #[test]
    fn grants_survive_an_edited_file_if_the_key_still_exists() {
        let granted = grant(&quota(), &key("a"), 10, DAY_NS, ana()).expect("sound");
        let mut file = quota();
        file.overrides.clear();
        file.quota.as_mut().expect("a quota").limit = 300;
        assert_eq!(units(&keep_grants(&granted, &file), "a", 0), 310);
        assert_eq!(lasting(&keep_grants(&granted, &file), 0), file);
        let by: LimitSpec = LimitSpec { by: vec![BySpec::Key("other".to_owned())], ..file };
        assert_eq!(keep_grants(&granted, &by), by);
    }

    #[test]
    fn a_grant_for_one_cell_is_escaped_to_match_only_that_cell() {
        for value in ["!x", "\\x", "\\!x", "plain", "", "ünïcode"] {
            let after = grant(&quota(), &key(value), 10, DAY_NS, ana()).expect(value);
            assert_eq!(units(&after, value, 0), 110, "{value}");
            assert_eq!((units(&after, "x", 0), units(&after, "other", 0)), (100, 100), "{value}");
        }
        for (bad, why) in [(key("a*"), "many cells"), (key("a\u{7}"), "control"), (Key::new(), "tenant=")] {
            let fault = grant(&quota(), &bad, 10, DAY_NS, ana()).expect_err(why).to_string();
            assert!(fault.contains(why), "{fault}");
        }
        let mut two = key("a");
        two.insert("nobody".to_owned(), "x".to_owned());
        assert!(exact(&quota(), &two).is_err());
        let one = LimitSpec { by: Vec::new(), overrides: Vec::new(), ..quota() };
        assert!(exact(&one, &key("a")).expect_err("no key").to_string().contains("without brackets"));
        let after = grant(&one, &Key::new(), 10, DAY_NS, ana()).expect("its one cell");
        assert_eq!((units(&after, "any", 0), units(&after, "any", DAY_NS)), (110, 100));
    }

    #[test]
    fn impossible_grants_are_refused() {
        for (units, why) in [(0, "1 at least"), (u64::MAX, "more than can be counted"), (1 << 60, "at most")]
        {
            let fault = grant(&quota(), &key("a"), units, DAY_NS, ana()).expect_err(why).to_string();
            assert!(fault.contains(why), "{fault}");
        }
        let ends = |window: &LimitSpec, for_ns| {
            grant_ends_ns(&read(window).expect("a limit").algorithm, 77, for_ns, 1)
        };
        assert_eq!(ends(&quota(), None).ok(), Some(77));
        assert!(ends(&quota(), Some(5)).expect_err("a window").to_string().contains("--for"));
        assert!(check_end(Some(5), 5).expect_err("past").to_string().contains("is past"));
        assert!(check_end(Some(6), 5).is_ok() && check_end(None, 5).is_ok());
    }

    #[test]
    fn each_change_of_an_override_is_reported_on_one_line() {
        let after = grant(&quota(), &key("big-co"), 50, DAY_NS, ana()).expect("sound");
        let line = "tenant=big-co has limit 550 (50 granted) until 1970-01-02T00:00:00Z: a launch, by ana";
        assert_eq!(changes(&quota(), &after), [format!("shop/credits: {line}")]);
        assert_eq!(changes(&after, &quota()), [format!("shop/credits: no longer {line}")]);
        let long = About { why: &"ä".repeat(SETTINGS.orders.about_bytes_max), ..ana() };
        let after = grant(&quota(), &key("a"), 50, DAY_NS, long).expect("sound");
        assert_eq!(text_of(&after.overrides[0], "why").map(str::len), Some(SETTINGS.orders.about_bytes_max));
    }
}
