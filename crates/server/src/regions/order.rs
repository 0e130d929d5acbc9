//! The orders of operators, and their effects. Pure: reads specs, returns specs and words.

use std::collections::BTreeMap;

use acequia_limits::{
    Algorithm, Descriptor, Limit,
    limit::LimitSpec,
    notation::{format_duration_ns, parse_units},
    selector::Condition,
};
use acequia_node::difference::{Difference, differences};
use acequia_rights::{VersionId, versions::VersionRefused};

use super::overrides::{self, About, Key, brackets, instant};
use crate::{holdings::rate_milli, settings::SETTINGS};

/// An order to change the catalogue.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Other numbers for a limit, or for one of its cells.
    Budget {
        /// The limit's domain.
        domain: String,
        /// Its name.
        name: String,
        /// The cell's keys and values; empty for the limit's own numbers.
        key: BTreeMap<String, String>,
        /// The new numbers, by their names in a config.
        numbers: BTreeMap<String, String>,
        /// When the override ends.
        end: Option<End>,
    },
    /// Additional units for one cell, for a time.
    Grant {
        /// The limit's domain.
        domain: String,
        /// Its name.
        name: String,
        /// The cell's keys and values, all of them.
        key: BTreeMap<String, String>,
        /// How many units.
        units: u64,
        /// For a bucket, how long the grant lasts, in nanoseconds; if absent, the time in which the bucket
        /// refills.
        for_ns: Option<u64>,
    },
    /// As many additional units for one cell as it is known to have used.
    Reset {
        /// The limit's domain.
        domain: String,
        /// Its name.
        name: String,
        /// The cell's keys and values, all of them.
        key: BTreeMap<String, String>,
    },
    /// The changes of the authority's file, by `domain/name`: the limit as it is now, or `None`.
    File(Vec<(String, Option<Box<LimitSpec>>)>),
    /// A share for a region.
    Add {
        /// Its name.
        region: String,
        /// Its weight among the others.
        weight: u32,
    },
    /// Another incarnation for a region whose node has lost its disk.
    Recover {
        /// Its name.
        region: String,
    },
    /// The share of a region that is gone goes to the others.
    Evict {
        /// Its name.
        region: String,
        /// The operator's statement that the region's node does nothing any more.
        is_fenced: bool,
    },
    /// A region that is alive gives up its share.
    Remove {
        /// Its name.
        region: String,
    },
    /// Another weight.
    Weight {
        /// The region.
        region: String,
        /// Its weight among the others.
        weight: u32,
    },
    /// Revokes a certificate.
    Revoke {
        /// The certificate's SHA-256, or its first digits.
        certificate: String,
    },
    /// This node becomes the authority.
    TakeOver {
        /// The operator's statement that no other authority makes versions any more.
        is_fenced: bool,
    },
}

/// When an override ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At this time: wall clock, in nanoseconds.
    At(u64),
    /// So many nanoseconds from now.
    After(u64),
}

impl End {
    /// The end as a time of a wall clock. A duration ends at a whole millisecond, rounded up.
    fn at_ns(self, wall_ns: u64) -> u64 {
        match self {
            Self::At(at_ns) => at_ns,
            Self::After(ns) => wall_ns.saturating_add(ns).div_ceil(1_000_000).saturating_mul(1_000_000),
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::At(at_ns) => write!(f, "--until {}", instant(*at_ns)),
            Self::After(ns) => write!(f, "--for {}", format_duration_ns(*ns)),
        }
    }
}

/// The known use of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// The numbers of the cell, of all regions together.
    pub(super) algorithm: Algorithm,
    /// When the open window ends: wall clock; 0 if the cell has no window.
    pub(super) window_ends_ns: u64,
    /// Units that are used, at least.
    pub(super) units: u64,
    /// Where they were used, in words.
    pub(super) words: String,
}

/// Finds the known use of a cell; `None` if its limit is not in force.
pub(super) type Used<'a> = dyn Fn(&Limit, &Descriptor<'_>) -> Option<Use> + 'a;

/// The effects of an order, carried out or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderOutcome {
    /// The version before.
    pub before: VersionId,
    /// The version after; equal to the version before if nothing was done.
    pub after: VersionId,
    /// The changes, a line each.
    pub changes: Vec<String>,
    /// Warnings, a line each.
    pub warnings: Vec<String>,
}

/// Why an order was not carried out. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum OrderFault {
    /// Only the authority takes this order.
    #[error("only the authority, {0}, changes the catalogue: ask it (--address)")]
    NotAuthority(String),
    /// The other nodes would refuse the version.
    #[error(
        "the certificate of {0} lacks the URI acequia:authority, without which the other nodes take no version of the catalogue from it: make it anew with that (acequia certs DIR NODE=REGION --authority NODE), put it in place, and order again"
    )]
    NoRole(String),
    /// There is no catalogue yet.
    #[error("there is no catalogue yet: {0}")]
    NoCatalogue(String),
    /// The order names something that does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The order is invalid.
    #[error("{0}")]
    Invalid(String),
    /// Something else must be done first.
    #[error("{0}")]
    NotYet(String),
    /// The catalogue's rules forbid the version.
    #[error(transparent)]
    Refused(#[from] VersionRefused),
    /// The version cannot be put in force.
    #[error("the version cannot be put in force: {0}")]
    Adopt(String),
    /// The order cannot be written down.
    #[error("the audit log cannot be written, so nothing is changed: {0}. Make room on the disk or mend it")]
    Audit(std::io::Error),
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pairs = |map: &BTreeMap<String, String>, between: &str| {
            map.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(between)
        };
        match self {
            Self::Budget { domain, name, key, numbers, end } => {
                write!(f, "budget set {domain}/{name}{} {}", brackets(key), pairs(numbers, " "))?;
                end.map_or(Ok(()), |end| write!(f, " {end}"))
            }
            Self::Grant { domain, name, key, units, for_ns } => {
                write!(f, "grant {domain}/{name}{} {units}", brackets(key))?;
                for_ns.map_or(Ok(()), |ns| write!(f, " {}", End::After(ns)))
            }
            Self::Reset { domain, name, key } => write!(f, "reset {domain}/{name}{}", brackets(key)),
            Self::File(limits) => write!(f, "{} limits changed in the file", limits.len()),
            Self::Add { region, weight } => write!(f, "regions add {region} --weight {weight}"),
            Self::Recover { region } => write!(f, "regions recover {region}"),
            Self::Evict { region, .. } => write!(f, "regions evict {region} --fenced"),
            Self::Remove { region } => write!(f, "regions remove {region}"),
            Self::Weight { region, weight } => write!(f, "regions weight {region} {weight}"),
            Self::Revoke { certificate } => write!(f, "regions revoke {certificate}"),
            Self::TakeOver { is_fenced: true } => write!(f, "authority move --fenced"),
            Self::TakeOver { is_fenced: false } => write!(f, "authority move"),
        }
    }
}

/// A limit with other numbers for a key, or their faults. Grants stay.
pub(super) fn with_numbers(
    spec: &LimitSpec,
    key: &Key,
    numbers: &BTreeMap<String, String>,
    about: About<'_>,
) -> Result<LimitSpec, OrderFault> {
    if numbers.is_empty() {
        return Err(OrderFault::Invalid("no numbers: write some, such as rate=100/s burst=200".to_owned()));
    }
    let is_for_all = key.is_empty() && (about.until_ns.is_none() || !spec.counts_by().is_empty());
    if is_for_all && about.until_ns.is_some() {
        return Err(OrderFault::Invalid(format!(
            "a limit's own numbers have no end, since there are none before them to fall back on: name one of its cells, as in \
             {0}/{1}[{2}=...], or set them now, and back when it is time",
            spec.domain,
            spec.name,
            spec.counts_by().first().map_or("", |by| by.key()),
        )));
    }
    let spec =
        if is_for_all { own_numbers(spec, numbers)? } else { overrides::set(spec, key, numbers, about)? };
    overrides::read(&spec)?;
    overrides::regrant(&spec)
}

fn own_numbers(spec: &LimitSpec, numbers: &BTreeMap<String, String>) -> Result<LimitSpec, OrderFault> {
    const ALGORITHMS: [&str; 6] =
        ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "quota", "concurrent"];
    let invalid = |what: String| OrderFault::Invalid(what);
    let mut value = serde_json::to_value(spec).map_err(|fault| invalid(fault.to_string()))?;
    let found = ALGORITHMS.into_iter().find(|name| value.get(name).is_some_and(|v| v.is_object()));
    let fields = found.and_then(|name| value.get_mut(name)).and_then(|fields| fields.as_object_mut());
    let (Some(algorithm), Some(fields)) = (found, fields) else {
        return Err(invalid("the limit has no numbers".to_owned()));
    };
    for (name, text) in numbers {
        let Some(field) = fields.get_mut(name) else {
            let known: Vec<&str> = fields.keys().map(String::as_str).collect();
            return Err(invalid(format!("a {algorithm} has no {name}: it has {}", known.join(", "))));
        };
        *field = if field.is_number() {
            parse_units(text).map_err(|what| invalid(format!("{name}: {what}")))?.into()
        } else if field.is_boolean() {
            let truth: bool =
                text.parse().map_err(|_| invalid(format!("{name}={text}: true or false is wanted")))?;
            truth.into()
        } else {
            text.clone().into()
        };
    }
    serde_json::from_value(value).map_err(|fault| invalid(fault.to_string()))
}

/// The first lines about an order's changes in a limit, and its warnings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) changes: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// A limit after an order about its numbers, and the words about the order. Overrides that have ended are
/// dropped.
pub(super) fn ordered_limit(
    order: &Order,
    before: &LimitSpec,
    about: About<'_>,
    used: &Used<'_>,
    wall_ns: u64,
) -> Result<(LimitSpec, Said), OrderFault> {
    let mut spec = before.clone();
    spec.forget_ended(wall_ns);
    let mut said = Said::default();
    let (key, units, for_ns) = match order {
        Order::Budget { key, numbers, end, .. } => {
            let until_ns = end.map(|end| end.at_ns(wall_ns));
            overrides::check_end(until_ns, wall_ns)?;
            let spec = with_numbers(&spec, key, numbers, About { until_ns, ..about })?;
            return Ok((spec, said));
        }
        Order::Grant { key, units, for_ns, .. } => (key, Some(*units), *for_ns),
        Order::Reset { key, .. } => (key, None, None),
        _ => return Ok((spec, said)),
    };
    let exact = overrides::exact(&spec, key)?;
    let limit = overrides::read(&spec)?;
    let path = format!("{}{}", limit.path(), brackets(key));
    let Some(cell) = used(&limit, &Descriptor::new(&overrides::values(&exact), None)) else {
        return Err(OrderFault::NotYet(format!(
            "{} is not in force here yet: its change is coming, so ask again when its window has ended",
            limit.path()
        )));
    };
    let until_ns = overrides::grant_ends_ns(&cell.algorithm, cell.window_ends_ns, for_ns, wall_ns)?;
    let units = match units {
        Some(units) => units,
        None => {
            // Units that were granted for the same use are not granted again.
            let before = overrides::granted(&spec, &exact);
            let units = cell.units.saturating_sub(before);
            let budget = cell.algorithm.budget().saturating_sub(before);
            let granted = if before > 0 { format!(", {before} were granted") } else { String::new() };
            if units == 0 {
                return Err(OrderFault::NotFound(format!(
                    "{path} is known to have used {} of {budget} now ({}{granted}): there is nothing to reset. Is it written \
                     as callers send it? `acequia top` and `acequia explain` show cells",
                    cell.units, cell.words
                )));
            }
            said.changes.push(format!(
                "{path} is known to have used {} of {budget} ({}{granted}): {units} are granted until {}",
                cell.units,
                cell.words,
                instant(until_ns)
            ));
            units
        }
    };
    if until_ns.saturating_sub(wall_ns) < SETTINGS.orders.grant_ns_min {
        said.warnings
            .push(format!("it ends at {}: other regions may hear of it too late", instant(until_ns)));
    }
    Ok((overrides::grant(&spec, key, units, until_ns, about)?, said))
}

/// The changes from one set of limits to another, and the warnings about them.
pub(super) fn compare(before: &[LimitSpec], after: &[LimitSpec], wall_ns: u64) -> (Vec<String>, Vec<String>) {
    let mut changes = Vec::new();
    let (old_specs, new_specs) = (by_path(before), by_path(after));
    let none = || "none".to_owned();
    for difference in differences(after, before) {
        changes.push(match difference {
            Difference::Field { limit, field, .. } if field == "overrides" => {
                if let (Some(before), Some(after)) = (old_specs.get(&limit), new_specs.get(&limit)) {
                    changes.extend(overrides::changes(before, after));
                }
                continue;
            }
            Difference::OnlyInFile { limit } => format!("{limit}: new"),
            Difference::OnlyInCatalogue { limit } => format!("{limit}: removed"),
            Difference::Field { limit, field, file, catalogue } => {
                let (from, to) = (catalogue.unwrap_or_else(none), file.unwrap_or_else(none));
                format!("{limit}: {field} {from} -> {to}")
            }
        });
    }
    let mut warnings = Vec::new();
    for old in before {
        let path = format!("{}/{}", old.domain, old.name);
        let Some(new) = new_specs.get(&path).copied() else {
            warnings.push(format!("{path} is not enforced any more"));
            continue;
        };
        if new != old
            && let (Ok(old), Ok(new)) = (Limit::new(old.clone()), Limit::new(new.clone()))
        {
            warnings.extend(warning_of(&path, &old, &new, wall_ns));
        }
    }
    (changes, warnings)
}

/// Limits by `domain/name`.
fn by_path(specs: &[LimitSpec]) -> BTreeMap<String, &LimitSpec> {
    specs.iter().map(|spec| (format!("{}/{}", spec.domain, spec.name), spec)).collect()
}

/// The warning about a change of a limit, if the change calls for one.
fn warning_of(path: &str, old: &Limit, new: &Limit, wall_ns: u64) -> Option<String> {
    if old.id != new.id {
        return Some(format!(
            "{path} matches, counts or measures differently: it becomes another limit. It counts at once, and what it was \
             counts beside it until its window has ended"
        ));
    }
    let is_lowered = is_lower(&old.algorithm, &new.algorithm) || lowers_some(old, new, wall_ns);
    is_lowered.then(|| {
        format!(
            "{path} is lowered: it holds in each region as soon as that has acknowledged the version; a region that \
             cannot be reached keeps its old share until it is reached or evicted"
        )
    })
}

/// Whether an override leaves its cells less than before: a lower override, a new one below the limit's own
/// numbers, or a higher one that is gone.
fn lowers_some(old: &Limit, new: &Limit, wall_ns: u64) -> bool {
    let of = |limit: &Limit, whose: &[Condition]| {
        let found = limit.overrides.iter().find(|other| other.when == whose && !other.is_over(wall_ns));
        found.map_or_else(|| limit.algorithm.clone(), |found| found.algorithm.clone())
    };
    let all = old.overrides.iter().chain(&new.overrides).filter(|one| !one.is_over(wall_ns));
    let all = all.map(|one| &one.when);
    let mut changed = all.map(|whose| (of(old, whose), of(new, whose)));
    changed.any(|(old, new)| is_lower(&old, &new))
}

fn is_lower(old: &Algorithm, new: &Algorithm) -> bool {
    new.budget() < old.budget() || rate_milli(new) < rate_milli(old)
}

#[cfg(test)]
mod tests {
    use acequia_limits::limit::ValueSpec;

    use super::*;

    fn with_numbers(
        spec: &LimitSpec,
        key: &Key,
        numbers: &BTreeMap<String, String>,
    ) -> Result<LimitSpec, OrderFault> {
        super::with_numbers(spec, key, numbers, About::default())
    }

    fn compare(before: &[LimitSpec], after: &[LimitSpec]) -> (Vec<String>, Vec<String>) {
        super::compare(before, after, 0)
    }

    fn spec(json: &str) -> LimitSpec {
        serde_json::from_str(json).expect("a limit")
    }

    fn bucket() -> LimitSpec {
        spec(
            r#"{"name": "per-key", "domain": "shop", "by": ["api_key"],
                "token_bucket": {"rate": "60/s", "burst": 120},
                "overrides": [{"api_key": "k2", "rate": "1/s", "burst": 2}]}"#,
        )
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn an_order_sets_the_values_that_it_names() {
        let numbers = map(&[("rate", "100/s"), ("burst", "200")]);
        let after = with_numbers(&bucket(), &map(&[]), &numbers).expect("sound");
        let (changes, warnings) = compare(&[bucket()], std::slice::from_ref(&after));
        assert_eq!(
            changes,
            [r#"shop/per-key: token_bucket {"burst":120,"rate":"60/s"} -> {"burst":200,"rate":"100/s"}"#]
        );
        assert!(warnings.is_empty(), "{warnings:?}");
        let (_, warnings) = compare(&[after], &[bucket()]);
        assert!(warnings.len() == 1 && warnings[0].contains("is lowered"), "{warnings:?}");
    }

    #[test]
    fn an_order_that_lowers_anything_warns() {
        let low = map(&[("rate", "1/s"), ("burst", "1")]);
        let high = map(&[("rate", "99/s"), ("burst", "999")]);
        let key = map(&[("api_key", "k1")]);
        let set = |spec: &LimitSpec, numbers| with_numbers(spec, &key, numbers).expect("sound");
        let warned = |old: &LimitSpec, new: &LimitSpec| {
            let (_, warnings) = compare(std::slice::from_ref(old), std::slice::from_ref(new));
            warnings.iter().any(|warning| warning.contains("is lowered"))
        };
        let (lower, higher) = (set(&bucket(), &low), set(&bucket(), &high));
        assert!(warned(&bucket(), &lower) && warned(&higher, &lower) && warned(&higher, &bucket()));
        assert!(!warned(&bucket(), &higher) && !warned(&lower, &higher) && !warned(&lower, &bucket()));
    }

    #[test]
    fn an_order_for_a_key_changes_its_one_override() {
        let numbers = map(&[("rate", "5/s"), ("burst", "7")]);
        let once = with_numbers(&bucket(), &map(&[("api_key", "k1")]), &numbers).expect("sound");
        let twice = with_numbers(&once, &map(&[("api_key", "k1")]), &map(&[("rate", "9/s")])).expect("sound");
        assert_eq!((once.overrides.len(), twice.overrides.len()), (2, 2));
        assert_eq!(twice.overrides[0].get("rate"), Some(&ValueSpec::Texts(vec!["9/s".to_owned()])));
        assert_eq!(twice.overrides[0].get("burst"), Some(&ValueSpec::Texts(vec!["7".to_owned()])));
        assert_eq!(twice.overrides[1], bucket().overrides[0]);
    }

    fn order(text: &str, key: &Key) -> Order {
        let (domain, name, key) = ("shop".to_owned(), "per-key".to_owned(), key.clone());
        match text {
            "reset" => Order::Reset { domain, name, key },
            "past" => {
                let numbers = map(&[("rate", "9/s")]);
                Order::Budget { domain, name, key, numbers, end: Some(End::At(5)) }
            }
            units => Order::Grant { domain, name, key, units: units.parse().expect("units"), for_ns: None },
        }
    }

    #[test]
    fn a_reset_grants_the_units_known_to_be_used() {
        const NOW_NS: u64 = 1_000_000_000_000;
        const ABOUT: About<'_> = About { until_ns: None, why: "why", author: "ana" };
        let used = |units: u64| {
            move |limit: &Limit, _: &Descriptor<'_>| {
                let (algorithm, words) = (limit.algorithm.clone(), "eu 7".to_owned());
                Some(Use { algorithm, window_ends_ns: 0, units, words })
            }
        };
        let k1 = map(&[("api_key", "k1")]);
        let after = |text: &str, key: &Key, used: &Used<'_>| {
            ordered_limit(&order(text, key), &bucket(), ABOUT, used, NOW_NS)
        };
        let (spec, said) = after("reset", &k1, &used(7)).expect("sound");
        assert_eq!(spec.overrides[0].get("burst"), Some(&ValueSpec::Texts(vec!["127".to_owned()])));
        assert_eq!(
            said.changes,
            ["shop/per-key[api_key=k1] is known to have used 7 of 120 (eu 7): 7 are granted until \
              1970-01-01T00:16:42Z"]
        );
        assert_eq!(said.warnings, Vec::<String>::new(), "the bucket refills in two seconds");
        let again =
            |units: u64| ordered_limit(&order("reset", &k1), &spec, About::default(), &used(units), NOW_NS);
        let (spec, said) = again(9).expect("two more were used");
        assert_eq!(spec.overrides[0].get("burst"), Some(&ValueSpec::Texts(vec!["129".to_owned()])));
        assert!(said.changes[0].contains("7 were granted): 2 are granted"), "{:?}", said.changes);
        assert!(again(7).expect_err("done").to_string().contains("7 were granted"));
        for (text, key, used, why) in [
            ("reset", &k1, &used(0) as &Used<'_>, "nothing to reset"),
            ("reset", &map(&[]), &used(1), "[api_key=...]"),
            ("0", &k1, &used(1), "1 at least"),
            ("7", &k1, &|_, _| None, "not in force here yet"),
            ("18446744073709551615", &k1, &used(1), "more than can be counted"),
            ("9000000000000000", &k1, &used(1), "400d"),
            ("past", &k1, &used(1), "is past"),
        ] {
            let fault = after(text, key, used).expect_err(why).to_string();
            assert!(fault.contains(why), "{fault}");
        }
    }

    #[test]
    fn only_an_override_of_a_cell_may_have_an_end() {
        let about = About { until_ns: Some(9), ..About::default() };
        let numbers = map(&[("rate", "9/s")]);
        let fault = super::with_numbers(&bucket(), &map(&[]), &numbers, about).expect_err("no end");
        assert!(fault.to_string().contains("shop/per-key[api_key=...]"), "{fault}");
        let key = map(&[("api_key", "k2")]);
        let after = super::with_numbers(&bucket(), &key, &numbers, about).expect("sound");
        assert_eq!(after.overrides.len(), 1, "it was there before");
        assert!(after.overrides[0].contains_key("until"));
        let mut later = after.clone();
        later.forget_ended(9);
        assert!(later.overrides.is_empty());
        let (_, warnings) = super::compare(&[after], &[later], 9);
        assert!(warnings.is_empty(), "what ended is not lowered: {warnings:?}");
    }

    #[test]
    fn impossible_values_in_an_order_are_refused_with_a_suggestion() {
        for (key, numbers, why) in [
            (map(&[]), map(&[]), "rate=100/s"),
            (map(&[]), map(&[("queue", "7")]), "it has burst, rate"),
            (map(&[]), map(&[("burst", "many")]), "1200, 50k or 2M"),
            (map(&[]), map(&[("rate", "fast")]), "rate"),
            (map(&[]), map(&[("burst", "0")]), "burst"),
            (map(&[("nobody", "k1")]), map(&[("rate", "1/s")]), "nobody"),
        ] {
            let fault = with_numbers(&bucket(), &key, &numbers).expect_err(why).to_string();
            assert!(fault.contains(why), "{fault}");
        }
    }
}
