//! Classes of consumers under one limit: how much of the limit each class may spend.
//!
//! There are three ways (R. Seleznev, "Development of API rate limiting methods based on consumer classes",
//! 2025):
//!
//! - *shared*: one bucket with sections. A class spends only while more is left than its threshold, so the
//!   units below the threshold are kept for classes of a higher priority. A threshold is a part of what
//!   there is. If regions share the limit, the threshold is a part of a region's share, and so the reserve
//!   moves with the rights.
//! - *separate*: a bucket for each class. The sizes add up to no more than the limit. Each bucket has the
//!   limit's rate in proportion to its size, and is a cell that regions share like any other.
//! - both: a class spends from its own bucket first. If that bucket has too little, the class spends from
//!   the shared remainder, above its threshold. A request is charged to one of the two, never to both in
//!   part.
//!
//! **Pieces of a limit sum to no more than the limit**, so all classes together are admitted no more than
//! the limit allows. Units that move from one class to another could be spent twice, so other sizes make
//! another limit ([`crate::LimitId`]). Thresholds only decide who comes first, and may change at any time.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    Algorithm, Descriptor, RATE_PARTS,
    limit::{Fault, units},
};

/// The most classes in one limit.
pub const CLASSES_MAX: usize = 16;
/// The most bytes in a class's name. The name is a descriptor's value, and answers contain it.
pub const CLASS_BYTES_MAX: usize = 64;

/// `classes: { entry, shared, separate, others }`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassesSpec {
    /// The descriptor entry whose value names a request's class.
    pub entry: String,
    /// By class, the part of the bucket that the class leaves to others, such as `24%`: 0% to 99%. At least
    /// one class has 0%.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shared: BTreeMap<String, String>,
    /// By class, the units of its own bucket. The units add up to no more than the limit.
    #[serde(default, deserialize_with = "units_of_each", skip_serializing_if = "BTreeMap::is_empty")]
    pub separate: BTreeMap<String, u64>,
    /// The class of requests that name no class of this limit. The default is the class with the highest
    /// threshold, or the smallest class if all have only their own buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<String>,
}

fn units_of_each<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, u64>, D::Error> {
    #[derive(Deserialize)]
    struct Units(#[serde(deserialize_with = "units")] u64);
    let each = BTreeMap::<String, Units>::deserialize(deserializer)?;
    Ok(each.into_iter().map(|(class, Units(units))| (class, units)).collect())
}

/// The classes of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// The descriptor entry whose value names a request's class.
    pub entry: String,
    /// All classes, in the order of priority: the first may spend the most.
    pub all: Vec<Class>,
    /// The place in `all` of the class for requests that name no class of this limit.
    pub others: usize,
    /// The cells that classes may spend from. Empty if all classes share one cell.
    pub roles: Vec<Role>,
}

/// A class of consumers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The class's name, as the descriptor entry has it.
    pub name: String,
    /// The percentage of the shared bucket that the class leaves to others. `None` if it may not spend from
    /// that bucket.
    pub leaves_percent: Option<u8>,
    /// Units of the class's own bucket. 0 if it has none.
    pub own: u64,
}

/// The part of a limit that a cell holds, if classes have cells of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A class's own part. The number is the class's place in [`Classes::all`].
    Own(usize),
    /// The remainder of the limit beside the classes' own parts.
    Remainder,
}

impl Classes {
    /// Reads the classes of the limit `whole`.
    ///
    /// # Errors
    /// Every fault in the classes.
    pub fn new(spec: &ClassesSpec, whole: &Algorithm) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut fault = |what: String| faults.push(Fault { field: "classes".to_owned(), what });
        if spec.entry.is_empty() {
            fault(
                "an empty `entry`: name the descriptor entry that says a request's class, such as plan"
                    .to_owned(),
            );
        }
        let mut all: BTreeMap<&str, Class> = BTreeMap::new();
        let class = |name: &str| Class { name: name.to_owned(), leaves_percent: None, own: 0 };
        for (name, text) in &spec.shared {
            match percent(text) {
                Some(leaves) if leaves < 100 => {
                    all.entry(name).or_insert_with(|| class(name)).leaves_percent = Some(leaves);
                }
                _ => fault(format!("{name} leaves {text:?} to others: write 0% to 99%, such as \"24%\"")),
            }
        }
        for (name, own) in &spec.separate {
            all.entry(name).or_insert_with(|| class(name)).own = *own;
        }
        if spec.shared.is_empty() && spec.separate.is_empty() {
            fault(
                "no classes: write shared: { gold: 0%, free: 62% }, or separate: { gold: 1200, free: 200 }, or both"
                    .to_owned(),
            );
        }
        if all.len() > CLASSES_MAX {
            fault(format!("{} classes: at most {CLASSES_MAX} in one limit", all.len()));
        }
        for name in all.keys().filter(|name| name.is_empty() || name.len() > CLASS_BYTES_MAX) {
            fault(format!("a class's name has 1 to {CLASS_BYTES_MAX} bytes: {name:?}"));
        }
        if !spec.shared.is_empty() && !all.values().any(|class| class.leaves_percent == Some(0)) {
            fault(
                "no class draws the shared bucket to its end: give the highest 0%, or the rest is nobody's"
                    .to_owned(),
            );
        }
        let is_hybrid = !spec.shared.is_empty() && !spec.separate.is_empty();
        if is_hybrid && let Some(class) = all.values().find(|class| class.leaves_percent.is_none()) {
            let name = &class.name;
            fault(format!(
                "{name} is in `separate` and not in `shared`: say what it leaves there, such as {name}: 0%"
            ));
        }
        if let Some(others) = spec.others.as_ref().filter(|others| !all.contains_key(others.as_str())) {
            fault(format!("`others` names {others}, which is no class: name one of them"));
        }
        let mut all: Vec<Class> = all.into_values().collect();
        all.sort_by_key(|class| (class.leaves_percent, std::cmp::Reverse(class.own)));
        let others = match &spec.others {
            Some(others) => all.iter().position(|class| class.name == *others).unwrap_or(0),
            None => all.len().saturating_sub(1),
        };
        let mut classes = Self { entry: spec.entry.clone(), all, others, roles: Vec::new() };
        if !spec.separate.is_empty() {
            if let Some(what) = classes.misfit(whole) {
                fault(what);
            }
            if !is_hybrid && let Some(class) = classes.all.iter().find(|class| class.own == 0) {
                fault(format!("{} has 0 units and shares none: it could never pass", class.name));
            }
            classes.roles = (0..classes.all.len()).map(Role::Own).collect();
            classes.roles.extend(is_hybrid.then_some(Role::Remainder));
        }
        if faults.is_empty() { Ok(classes) } else { Err(faults) }
    }

    /// The reason why the classes' own buckets do not fit into a limit. `None` if they fit.
    pub fn misfit(&self, whole: &Algorithm) -> Option<String> {
        let cap = whole.budget();
        let sum = self.all.iter().fold(0_u64, |sum, class| sum.saturating_add(class.own));
        if sum > cap {
            return Some(format!(
                "the classes' own units add up to {sum}, and the limit has {cap}: lower them, or raise the limit"
            ));
        }
        let tiny = |class: &&Class| {
            class.own > 0 && u128::from(class.own) * u128::from(RATE_PARTS) < u128::from(cap)
        };
        self.all.iter().find(tiny).map(|class| {
            let (name, own) = (&class.name, class.own);
            format!(
                "{name} has {own} units of {cap}: a class's own part is at least a millionth of the limit"
            )
        })
    }

    /// A descriptor's class, as its place in [`Classes::all`].
    #[inline]
    pub fn of(&self, descriptor: &Descriptor<'_>) -> usize {
        let value = descriptor.value(self.entry.as_bytes());
        let named = value.and_then(|value| self.all.iter().position(|class| class.name.as_bytes() == value));
        named.unwrap_or(self.others)
    }

    /// Whether classes have cells of their own.
    pub fn is_separate(&self) -> bool {
        !self.roles.is_empty()
    }

    /// The place in [`Classes::roles`] of the remainder that all classes share, if there is one.
    pub fn remainder(&self) -> Option<usize> {
        self.roles.iter().position(|role| *role == Role::Remainder)
    }

    /// The name that tells the cells of a role apart.
    pub fn role_name(&self, role: Role) -> &str {
        match role {
            // No class has an empty name.
            Role::Remainder => "",
            Role::Own(class) => &self.all[class].name,
        }
    }

    /// A role's piece of the whole limit.
    #[must_use]
    pub fn piece(&self, role: Role, whole: &Algorithm) -> Algorithm {
        let cap = whole.budget();
        let owned: u64 = self.all.iter().map(|class| class.own).sum();
        let units = match role {
            Role::Own(class) => self.all[class].own,
            Role::Remainder => cap.saturating_sub(owned),
        };
        whole.fraction(units.min(cap))
    }
}

impl Class {
    /// The part of `units` that this class leaves to others.
    #[inline]
    pub fn leaves(&self, units: u64) -> u64 {
        let percent = u128::from(self.leaves_percent.unwrap_or(0));
        // The result is at most `units`.
        (u128::from(units) * percent / 100) as u64
    }
}

/// Reads a percentage such as `24%`, from 0 to 100.
pub(crate) fn percent(text: &str) -> Option<u8> {
    let number = text.trim().strip_suffix('%')?;
    number.parse().ok().filter(|percent| *percent <= 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rate, meter::Meter};

    fn read(json: &str, burst: u64) -> Result<Classes, Vec<Fault>> {
        let spec = serde_json::from_str(json).expect("classes as text");
        Classes::new(
            &spec,
            &Algorithm::TokenBucket(Meter::new(Rate::parse("1000/s").expect("a rate"), burst)),
        )
    }

    #[track_caller]
    fn refused(json: &str, word: &str) {
        let faults = read(json, 2_000).expect_err(json);
        assert!(faults.iter().any(|fault| fault.what.contains(word)), "no fault says {word}: {faults:?}");
    }

    #[test]
    fn impossible_classes_are_refused_with_a_suggestion() {
        for threshold in ["-5%", "100%", "24", "a quarter", "%", ""] {
            let json = format!(r#"{{"entry": "plan", "shared": {{"gold": "0%", "free": "{threshold}"}}}}"#);
            refused(&json, "0% to 99%");
        }
        refused(r#"{"entry": "plan", "separate": {"gold": 1500, "free": 600}}"#, "add up to 2100");
        refused(r#"{"entry": "plan", "separate": {"gold": 18446744073709551615, "free": 2}}"#, "add up to");
        refused(r#"{"entry": "plan", "separate": {"gold": 1500, "free": 0}}"#, "could never pass");
        refused(r#"{"entry": "plan"}"#, "no classes");
        refused(r#"{"entry": "", "shared": {"gold": "0%"}}"#, "empty `entry`");
        refused(r#"{"entry": "plan", "shared": {"gold": "10%", "free": "62%"}}"#, "nobody's");
        refused(r#"{"entry": "plan", "shared": {"gold": "0%"}, "separate": {"free": 9}}"#, "not in `shared`");
        refused(r#"{"entry": "plan", "shared": {"gold": "0%"}, "others": "free"}"#, "no class");
        refused(r#"{"entry": "plan", "shared": {"": "0%"}}"#, "1 to 64 bytes");
        let many: Vec<String> = (0..=CLASSES_MAX).map(|n| format!("\"c{n}\": \"0%\"")).collect();
        refused(&format!(r#"{{"entry": "plan", "shared": {{{}}}}}"#, many.join(",")), "at most 16");
        let faults = read(r#"{"entry": "plan", "separate": {"gold": 9007199254740000, "free": 1}}"#, 1 << 53);
        assert!(faults.expect_err("tiny")[0].what.contains("a millionth"));
        serde_json::from_str::<ClassesSpec>(r#"{"entry": "plan", "separate": {"gold": -1}}"#)
            .expect_err("negative");
        serde_json::from_str::<ClassesSpec>(r#"{"entry": "plan", "sharde": {}}"#)
            .expect_err("an unknown key");
    }

    #[test]
    fn class_parts_and_the_remainder_sum_to_the_limit() {
        let json = r#"{"entry": "plan", "separate": {"gold": 1000, "free": 333}, "shared": {"gold": "0%", "free": "62%"}}"#;
        let classes = read(json, 2_000).expect("sound");
        let whole = Algorithm::TokenBucket(Meter::new(Rate::parse("1000/s").expect("a rate"), 2_000));
        let pieces: Vec<Algorithm> = classes.roles.iter().map(|role| classes.piece(*role, &whole)).collect();
        let budgets: Vec<u64> = pieces.iter().map(Algorithm::budget).collect();
        assert_eq!(budgets, [1_000, 333, 667]);
        let rates = pieces.iter().map(|piece| match piece {
            Algorithm::TokenBucket(meter) => meter.rate_milli(),
            other => panic!("{other:?}"),
        });
        assert_eq!(rates.collect::<Vec<_>>(), [500_000, 166_500, 333_500]);
        assert_eq!(classes.all[classes.others].name, "free");
        assert_eq!(classes.all[1].leaves(667), 413);
    }
}
