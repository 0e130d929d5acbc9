//! What an operator can order, and what comes of it. Pure: reads specs, gives specs and words.

use std::collections::BTreeMap;

use acequia_limits::{
    Algorithm, Limit,
    limit::{BySpec, LimitSpec, OneOrMany},
    selector::Condition,
};
use acequia_node::difference::{Difference, differences};
use acequia_rights::{Mark, versions::Refused};

/// An order to change the catalogue.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Other numbers for a limit, or for one of its cells.
    Budget {
        /// The limit's domain.
        domain: String,
        /// Its name.
        name: String,
        /// The cell's keys and values; none for the limit's own numbers.
        key: BTreeMap<String, String>,
        /// By their names in a config.
        numbers: BTreeMap<String, String>,
    },
    /// What changed in the authority's file, by `domain/name`: a limit that it has now, or none.
    File(Vec<(String, Option<Box<LimitSpec>>)>),
    /// A share for a region.
    Add {
        /// Its name.
        region: String,
        /// Its weight among the others.
        weight: u32,
    },
    /// Another incarnation for a region whose node lost its disk.
    Recover {
        /// Its name.
        region: String,
    },
    /// The share of a region that is gone goes to the others.
    Evict {
        /// Its name.
        region: String,
        /// The operator's word that its node does nothing any more.
        is_fenced: bool,
    },
    /// A region that is alive leaves.
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
    /// This node becomes the authority.
    TakeOver {
        /// The operator's word that no other authority makes versions any more.
        is_fenced: bool,
    },
}

/// What came of an order, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The version before.
    pub before: Mark,
    /// The version after; the same where nothing was done.
    pub after: Mark,
    /// What changes, a line each.
    pub changes: Vec<String>,
    /// What can go wrong, a line each.
    pub warnings: Vec<String>,
}

/// Why an order was not carried out. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum OrderFault {
    /// Only the authority does it.
    #[error("only the authority, {0}, changes the catalogue: ask it (--address)")]
    NotAuthority(String),
    /// There is no catalogue yet.
    #[error("there is no catalogue yet: {0}")]
    NoCatalogue(String),
    /// What it names is not there.
    #[error("{0}")]
    NotFound(String),
    /// It makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Something must be done first.
    #[error("{0}")]
    NotYet(String),
    /// The rules of the catalogue forbid it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It cannot be put in force.
    #[error("the version cannot be put in force: {0}")]
    Adopt(String),
    /// It cannot be written down.
    #[error("the audit log cannot be written, so nothing is changed: {0}. Make room on the disk or mend it")]
    Audit(std::io::Error),
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pairs = |map: &BTreeMap<String, String>, between: &str| {
            map.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(between)
        };
        match self {
            Self::Budget { domain, name, key, numbers } if key.is_empty() => {
                write!(f, "budget set {domain}/{name} {}", pairs(numbers, " "))
            }
            Self::Budget { domain, name, key, numbers } => {
                write!(f, "budget set {domain}/{name}[{}] {}", pairs(key, ","), pairs(numbers, " "))
            }
            Self::File(limits) => write!(f, "{} limits changed in the file", limits.len()),
            Self::Add { region, weight } => write!(f, "regions add {region} --weight {weight}"),
            Self::Recover { region } => write!(f, "regions recover {region}"),
            Self::Evict { region, .. } => write!(f, "regions evict {region} --fenced"),
            Self::Remove { region } => write!(f, "regions remove {region}"),
            Self::Weight { region, weight } => write!(f, "regions weight {region} {weight}"),
            Self::TakeOver { is_fenced: true } => write!(f, "authority move --fenced"),
            Self::TakeOver { is_fenced: false } => write!(f, "authority move"),
        }
    }
}

/// A limit with other numbers; or what is wrong with them.
pub(super) fn with_numbers(
    spec: &LimitSpec,
    key: &BTreeMap<String, String>,
    numbers: &BTreeMap<String, String>,
) -> Result<LimitSpec, OrderFault> {
    if numbers.is_empty() {
        return Err(OrderFault::Invalid("no numbers: write some, such as rate=100/s burst=200".to_owned()));
    }
    let spec = if key.is_empty() { own_numbers(spec, numbers)? } else { override_of(spec, key, numbers) };
    Limit::new(spec.clone()).map_err(|faults| {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        OrderFault::Invalid(faults.join("; "))
    })?;
    Ok(spec)
}

fn own_numbers(spec: &LimitSpec, numbers: &BTreeMap<String, String>) -> Result<LimitSpec, OrderFault> {
    const ALGORITHMS: [&str; 5] = ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "quota"];
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
            let number: u64 =
                text.parse().map_err(|_| invalid(format!("{name}={text}: a whole number is wanted")))?;
            number.into()
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

/// The override of exactly these keys gets the numbers; a new one comes first, so that it counts.
fn override_of(
    spec: &LimitSpec,
    key: &BTreeMap<String, String>,
    numbers: &BTreeMap<String, String>,
) -> LimitSpec {
    let one = |text: &String| OneOrMany(vec![text.clone()]);
    let is_same = |fields: &BTreeMap<String, OneOrMany>| {
        let by = |name: &String| {
            spec.by.iter().any(|by| match by {
                BySpec::Key(key) => key == name,
                BySpec::Address(address) => address.ip == *name,
            })
        };
        let whose = fields.iter().filter(|(name, _)| by(name));
        whose.count() == key.len() && key.iter().all(|(name, value)| fields.get(name) == Some(&one(value)))
    };
    let mut spec = spec.clone();
    let set = |fields: &mut BTreeMap<String, OneOrMany>| {
        fields.extend(numbers.iter().map(|(name, text)| (name.clone(), one(text))));
    };
    match spec.overrides.iter().position(is_same) {
        Some(at) => set(&mut spec.overrides[at]),
        None => {
            let mut fields = key.iter().map(|(name, value)| (name.clone(), one(value))).collect();
            set(&mut fields);
            spec.overrides.insert(0, fields);
        }
    }
    spec
}

/// What another set of limits changes, and what of it needs a second thought.
pub(super) fn compare(before: &[LimitSpec], after: &[LimitSpec]) -> (Vec<String>, Vec<String>) {
    let mut changes = Vec::new();
    let none = || "none".to_owned();
    for difference in differences(after, before) {
        changes.push(match difference {
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
        let new = after.iter().find(|new| new.domain == old.domain && new.name == old.name);
        let path = format!("{}/{}", old.domain, old.name);
        let Some(new) = new else {
            warnings.push(format!("{path} is not enforced any more"));
            continue;
        };
        if new != old
            && let (Ok(old), Ok(new)) = (Limit::new(old.clone()), Limit::new(new.clone()))
        {
            warn_of(&path, &old, &new, &mut warnings);
        }
    }
    (changes, warnings)
}

fn warn_of(path: &str, old: &Limit, new: &Limit, warnings: &mut Vec<String>) {
    if old.id != new.id {
        warnings.push(format!(
            "{path} counts or measures differently: it becomes another limit, from the next window on"
        ));
    } else if is_lower(&old.algorithm, &new.algorithm) || lowers_some(old, new) {
        warnings.push(format!(
            "{path} is lowered: it holds in each region as soon as that has acknowledged the version; a region that \
             cannot be reached keeps its old share until it is reached or evicted"
        ));
    }
}

/// Whether cells with numbers of their own have less than before: an override is lower, or new and lower than the
/// limit's own numbers, or gone and was higher.
fn lowers_some(old: &Limit, new: &Limit) -> bool {
    let of = |limit: &Limit, whose: &[Condition]| {
        let found = limit.overrides.iter().find(|other| other.when == whose);
        found.map_or_else(|| limit.algorithm.clone(), |found| found.algorithm.clone())
    };
    let all = old.overrides.iter().chain(&new.overrides).map(|one| &one.when);
    let mut changed = all.map(|whose| (of(old, whose), of(new, whose)));
    changed.any(|(old, new)| is_lower(&old, &new))
}

fn is_lower(old: &Algorithm, new: &Algorithm) -> bool {
    new.budget() < old.budget() || rate_milli(new) < rate_milli(old)
}

/// Units a second, in thousandths; 0 where there is no rate.
pub(super) fn rate_milli(algorithm: &Algorithm) -> u64 {
    match algorithm {
        Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => meter.rate_milli(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn numbers_are_set_by_their_names() {
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
    fn whatever_is_lowered_is_warned_of() {
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
    fn a_key_has_one_override() {
        let numbers = map(&[("rate", "5/s"), ("burst", "7")]);
        let once = with_numbers(&bucket(), &map(&[("api_key", "k1")]), &numbers).expect("sound");
        let twice = with_numbers(&once, &map(&[("api_key", "k1")]), &map(&[("rate", "9/s")])).expect("sound");
        assert_eq!((once.overrides.len(), twice.overrides.len()), (2, 2));
        assert_eq!(twice.overrides[0].get("rate"), Some(&OneOrMany(vec!["9/s".to_owned()])));
        assert_eq!(twice.overrides[0].get("burst"), Some(&OneOrMany(vec!["7".to_owned()])));
        assert_eq!(twice.overrides[1], bucket().overrides[0]);
    }

    #[test]
    fn impossible_numbers_are_refused_with_what_would_do() {
        for (key, numbers, why) in [
            (map(&[]), map(&[]), "rate=100/s"),
            (map(&[]), map(&[("queue", "7")]), "it has burst, rate"),
            (map(&[]), map(&[("burst", "many")]), "a whole number"),
            (map(&[]), map(&[("rate", "fast")]), "rate"),
            (map(&[]), map(&[("burst", "0")]), "burst"),
            (map(&[("nobody", "k1")]), map(&[("rate", "1/s")]), "nobody"),
        ] {
            let fault = with_numbers(&bucket(), &key, &numbers).expect_err(why).to_string();
            assert!(fault.contains(why), "{fault}");
        }
    }
}
