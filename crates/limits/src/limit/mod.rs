//! A limit as an operator writes it ([`LimitSpec`]) and as it is enforced ([`Limit`]).

#[cfg(test)]
mod examples;
mod faults;
mod spec;

use std::{borrow::Cow, hash::Hasher};

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};

use self::faults::Faults;
pub(crate) use self::spec::units;
pub use self::{
    faults::Fault,
    spec::{
        AbsentSpec, AddressSpec, BySpec, Charge, Descriptors, FixedWindowSpec, LeakyBucketSpec, LimitSpec,
        Mode, NetworksSpec, NoWait, OnStoreLoss, QuotaSpec, SharingSpec, SlidingWindowSpec, ThrottleSpec,
        TokenBucketSpec, ValueSpec, parse_instant_ns,
    },
};
use crate::{
    Algorithm, Descriptor, UNITS_MAX,
    classes::{Classes, Role},
    meter::Meter,
    selector::{By, Condition, Prefix},
    sliding::{SlidingApproximate, SlidingLog, SlidingSlots},
    window::{Edges, FixedWindow},
};

/// The most bytes in a limit's name or domain: they are metric labels and header values.
pub const NAME_BYTES_MAX: usize = 128;
/// The most entries that a limit may count by, and keys in its `when`.
pub const KEYS_MAX: usize = 16;
/// The most patterns in one list, so that a check has a bound.
pub const PATTERNS_MAX: usize = 1_024;
/// The most addresses and networks in one list: they are searched, and take 16 to 64 bytes each.
pub const NETWORKS_MAX: usize = 16_384;
/// The most overrides in one limit: they are tried in order.
pub const OVERRIDES_MAX: usize = 1_024;
/// The longest that a request waits for units of other regions.
pub const WAIT_NS_MAX: u64 = 1_000_000_000;
/// The most regions that one limit can serve one after the other.
pub const PRIORITIES_MAX: usize = 64;
/// The shortest window, 10 ms: below it the clock's own steps show.
pub const WINDOW_NS_MIN: u64 = 10_000_000;
/// The most parts of a limit at which it is told how much is used.
pub const WARNINGS_MAX: usize = 8;
/// Cells that need this long to be idle again survive a crash.
pub const DURABLE_FROM_NS: u64 = 60 * 1_000_000_000;

/// How regions share a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// How long a denied request may wait for units of other regions, in nanoseconds: 0 to [`WAIT_NS_MAX`]. Nothing where
    /// it is left to the number of units.
    pub wait_ns: Option<u64>,
    /// What of its own share each region keeps though others need it: 0 to 100 %.
    pub floor_percent: u8,
    /// The regions that are served first, one after the other.
    pub priority: Vec<String>,
}

/// What is told and slowed before a limit is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Soft {
    /// Parts of the limit, in percent, rising.
    pub warn_at: Vec<u8>,
    /// How it slows down.
    pub throttle: Option<Throttle>,
}

/// How a limit slows down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// The part of the limit, in percent, from which on it does.
    pub from_percent: u8,
    /// How fast a cell goes from there on, over all regions.
    pub meter: Meter,
}

/// Which limit a cell belongs to: a hash of its domain, its name and its *shape* (what it matches,
/// counts by and measures time with). New numbers, modes and overrides are the same limit; a new
/// shape is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LimitId(pub u128);

/// A limit that can be enforced.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Whose cells are this limit's.
    pub id: LimitId,
    /// Where it came from.
    pub spec: LimitSpec,
    /// All of these must hold.
    pub when: Vec<Condition>,
    /// What it counts by.
    pub by: Vec<By>,
    /// What one unit of a request's cost weighs.
    pub cost: u64,
    /// How regions share it.
    pub sharing: Sharing,
    /// Classes of consumers.
    pub classes: Option<Classes>,
    /// What is told and slowed before the limit is reached; nothing of it for most limits.
    pub soft: Option<Soft>,
    /// Any of these exempts.
    pub unlimited: Vec<Condition>,
    /// The numbers of cells without an override.
    pub algorithm: Algorithm,
    /// Other numbers for some cells; the first that fits counts.
    pub overrides: Vec<Override>,
}

/// One set of numbers that cells of a limit may have.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberSet<'a> {
    /// The numbers.
    pub algorithm: Cow<'a, Algorithm>,
    /// Whose: all of these must hold; none for the limit's own.
    pub whose: &'a [Condition],
    /// As [`Override::until_ns`].
    pub until_ns: Option<u64>,
    /// Which cells, where classes have their own.
    pub role: Option<Role>,
}

/// Other numbers for some cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// All of these must hold.
    pub when: Vec<Condition>,
    /// The numbers.
    pub algorithm: Algorithm,
    /// Wall clock, nanoseconds since the epoch: the override counts before it.
    pub until_ns: Option<u64>,
    /// Why it is there.
    pub why: Option<String>,
    /// Who says so.
    pub author: Option<String>,
    /// Units that an operator granted on top, until the override ends.
    pub granted: Option<u64>,
}

impl Override {
    /// Whether it counts no more, and never will again.
    pub fn is_over(&self, wall_ns: u64) -> bool {
        self.until_ns.is_some_and(|until| wall_ns >= until)
    }
}

impl Limit {
    /// Reads a limit.
    ///
    /// # Errors
    /// Every fault in it.
    pub fn new(spec: LimitSpec) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        faults.name("name", &spec.name);
        faults.name("domain", &spec.domain);
        let when = faults.conditions("when", &spec.when, &spec.by);
        let unlimited = faults.conditions("unlimited", &spec.unlimited, &spec.by);
        let by = faults.by(&spec.by);
        let algorithm = faults.algorithm(&spec);
        let cost = spec.cost.unwrap_or(1);
        if cost == 0 || cost > UNITS_MAX {
            faults.add("cost", format!("a cost is 1 to {UNITS_MAX}; use mode: off to count nothing"));
        }
        if let Some(algorithm) = &algorithm
            && cost > algorithm.budget()
            && algorithm.budget() > 0
        {
            let budget = algorithm.budget();
            faults.add(
                "cost",
                format!("a cost of {cost} can never pass a limit of {budget}: lower one or raise the other"),
            );
        }
        if let Some(live) = &spec.candidate_for {
            if spec.mode == Mode::Enforce {
                faults.add(
                    "candidate_for",
                    "a candidate only watches: write mode: shadow, or leave `candidate_for` out".to_owned(),
                );
            }
            if *live == spec.name {
                faults.add(
                    "candidate_for",
                    format!("{live} cannot be a candidate for itself: name the limit it may replace"),
                );
            }
        }
        let sharing = spec.sharing.as_ref().map_or_else(Sharing::default, |spec| faults.sharing(spec));
        let mut overrides = Vec::new();
        if spec.overrides.len() > OVERRIDES_MAX {
            faults.add("overrides", format!("more than {OVERRIDES_MAX} overrides: split the limit"));
        } else {
            for fields in &spec.overrides {
                overrides.extend(faults.override_of(&spec, fields));
            }
        }
        let (mut classes, mut soft) = (None, None);
        if let Some(algorithm) = &algorithm {
            classes = faults.classes(&spec, algorithm, &overrides, cost);
            soft = faults.soft(&spec, algorithm);
        }
        match (algorithm, faults.0.is_empty()) {
            (Some(algorithm), true) => {
                let id = LimitId::new(&spec, &by, &when, &algorithm);
                Ok(Self { id, spec, when, by, cost, sharing, classes, soft, unlimited, algorithm, overrides })
            }
            _ => Err(faults.0),
        }
    }

    /// Every set of numbers that cells may have: the limit's own, then one for each override. Where classes have cells of their own,
    /// each of those is one for each role, in the order of [`Classes::roles`].
    pub fn number_sets(&self) -> Vec<NumberSet<'_>> {
        let own =
            NumberSet { algorithm: Cow::Borrowed(&self.algorithm), whose: &[], until_ns: None, role: None };
        let others = self.overrides.iter().map(|o| NumberSet {
            algorithm: Cow::Borrowed(&o.algorithm),
            whose: &o.when,
            until_ns: o.until_ns,
            role: None,
        });
        let whole = std::iter::once(own).chain(others);
        let Some(classes) = self.separate() else { return whole.collect() };
        let mut sets = Vec::new();
        for whole in whole {
            for role in &classes.roles {
                let algorithm = Cow::Owned(classes.piece(*role, &whole.algorithm));
                sets.push(NumberSet { algorithm, role: Some(*role), ..whole.clone() });
            }
        }
        sets
    }

    /// How many sets of numbers there are for each override.
    pub fn sets_each(&self) -> usize {
        self.separate().map_or(1, |classes| classes.roles.len())
    }

    /// The classes, where they have cells of their own.
    pub fn separate(&self) -> Option<&Classes> {
        self.classes.as_ref().filter(|classes| classes.is_separate())
    }

    /// Whether it is about a descriptor, if that has the keys of `by`.
    #[inline]
    pub fn is_about(&self, descriptor: &Descriptor<'_>) -> bool {
        self.when.iter().all(|condition| condition.holds(descriptor))
            && (!self.spec.exact || self.stranger(descriptor).is_none())
    }

    /// The first key of a descriptor that neither `when` nor `by` names.
    #[cold]
    pub fn stranger<'d>(&self, descriptor: &Descriptor<'d>) -> Option<&'d [u8]> {
        let is_named = |key: &[u8]| {
            self.when.iter().any(|condition| condition.key.as_bytes() == key)
                || self.by.iter().any(|by| by.key.as_bytes() == key)
        };
        descriptor.entries.iter().map(|(key, _)| *key).find(|key| !is_named(key))
    }

    /// `domain/name`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.spec.domain, self.spec.name)
    }

    /// The units that a request of `cost` weighs here. Saturates: what is above every limit is denied.
    pub fn units(&self, cost: u64) -> u64 {
        cost.saturating_mul(self.cost)
    }

    /// The numbers for a descriptor at a time on the wall clock, in nanoseconds.
    #[inline]
    pub fn numbers_for(&self, descriptor: &Descriptor<'_>, wall_ns: u64) -> VariantChoice {
        if self.overrides.is_empty() { VariantChoice::Own } else { self.overridden(descriptor, wall_ns) }
    }

    #[cold]
    fn overridden(&self, descriptor: &Descriptor<'_>, wall_ns: u64) -> VariantChoice {
        let is_its =
            |o: &Override| !o.is_over(wall_ns) && o.when.iter().all(|c| c.holds_for_first(descriptor));
        let Some(index) = self.overrides.iter().position(is_its) else { return VariantChoice::Own };
        let fits = self.overrides[index].when.iter().all(|c| c.holds_for_all(descriptor));
        if fits { VariantChoice::Override(index) } else { VariantChoice::OwnApart }
    }

    /// Whether cells need so long to become idle that they must survive a crash.
    pub fn is_durable(&self) -> bool {
        self.horizon_ns() >= DURABLE_FROM_NS
    }

    /// Nanoseconds after which any cell that is no longer charged is surely idle.
    pub fn horizon_ns(&self) -> u64 {
        let whole = self.overrides.iter().map(|o| &o.algorithm).chain([&self.algorithm]);
        let whole_ns = whole.map(Algorithm::horizon_ns).fold(0, u64::max);
        let Some(_) = self.separate() else { return whole_ns };
        // A piece's rate may be rounded down.
        let pieces = self.number_sets();
        pieces.iter().map(|set| set.algorithm.horizon_ns()).fold(whole_ns, u64::max)
    }

    /// What callers that cannot wait are told when there would be a delay.
    pub fn no_wait(&self) -> NoWait {
        self.spec.leaky_bucket.as_ref().map_or(NoWait::Allow, |spec| spec.no_wait)
    }
}

/// By which of a limit's numbers a descriptor counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariantChoice {
    /// The limit's own.
    Own,
    /// Those of an override, by its index in `overrides`: the first that fits.
    Override(usize),
    /// The limit's own, in a cell apart ([`crate::cell::Tagger::apart`]). A key comes twice. An override fits its first value, and not every
    /// value; the cell of the first value has the override's numbers.
    OwnApart,
}

impl VariantChoice {
    /// The index into `overrides`, or nothing for the limit's own numbers.
    pub const fn index(self) -> Option<usize> {
        match self {
            Self::Override(index) => Some(index),
            Self::Own | Self::OwnApart => None,
        }
    }

    /// Whether the cell is not the one that the values of `by` name.
    pub const fn is_apart(self) -> bool {
        matches!(self, Self::OwnApart)
    }
}

impl LimitId {
    fn new(spec: &LimitSpec, by: &[By], when: &[Condition], algorithm: &Algorithm) -> Self {
        let mut hasher = SipHasher13::new();
        // Every text and every list has its length in front, so that no two shapes look alike.
        fn text(hasher: &mut SipHasher13, text: &str) {
            hasher.write(&(text.len() as u64).to_le_bytes());
            hasher.write(text.as_bytes());
        }
        fn length(hasher: &mut SipHasher13, length: usize) {
            hasher.write(&(length as u64).to_le_bytes());
        }
        for part in [&spec.domain, &spec.name, &shape(algorithm)] {
            text(&mut hasher, part);
        }
        // Sizes that move from class to class would be spent twice: see `classes`.
        if let Some(classes) = spec.classes.as_ref().filter(|classes| !classes.separate.is_empty()) {
            text(&mut hasher, "classes");
            text(&mut hasher, &classes.entry);
            length(&mut hasher, classes.separate.values().filter(|own| **own > 0).count());
            for (name, own) in classes.separate.iter().filter(|(_, own)| **own > 0) {
                text(&mut hasher, name);
                hasher.write(&own.to_le_bytes());
            }
            length(&mut hasher, usize::from(!classes.shared.is_empty()));
        }
        length(&mut hasher, by.len());
        for by in by {
            text(&mut hasher, &by.key);
            let prefix = by.prefix.map(|Prefix { v4, v6, hop }| match hop {
                1 => format!("{v4}/{v6}"),
                _ => format!("{v4}/{v6}/{hop}"),
            });
            text(&mut hasher, &prefix.unwrap_or_default());
        }
        if spec.exact {
            text(&mut hasher, "exact");
        }
        length(&mut hasher, when.len());
        for condition in when {
            text(&mut hasher, &condition.key);
            if let Some(ValueSpec::Addresses(NetworksSpec { trust, .. })) = spec.when.get(&condition.key) {
                text(&mut hasher, &format!("ip {trust}"));
            }
            for patterns in [&condition.any, &condition.none] {
                length(&mut hasher, patterns.len());
                for pattern in patterns {
                    text(&mut hasher, &pattern.to_string());
                }
            }
        }
        Self(hasher.finish128().as_u128())
    }
}

/// What of an algorithm makes it another limit when it changes: all but its numbers.
fn shape(algorithm: &Algorithm) -> String {
    match algorithm {
        Algorithm::TokenBucket(_) => "token_bucket".to_owned(),
        Algorithm::LeakyBucket(_) => "leaky_bucket".to_owned(),
        Algorithm::FixedWindow(FixedWindow { edges: Edges::Every { window_ns, stagger }, .. }) => {
            format!("fixed_window {window_ns} {stagger}")
        }
        Algorithm::FixedWindow(FixedWindow { edges: Edges::Calendar(calendar), .. }) => {
            format!("quota {} {}", calendar.period.as_str(), calendar.zone())
        }
        // The log and the slots are two ways to keep one promise.
        Algorithm::SlidingLog(SlidingLog { window_ns, .. })
        | Algorithm::SlidingSlots(SlidingSlots { window_ns, .. }) => format!("sliding_window {window_ns}"),
        Algorithm::SlidingApproximate(SlidingApproximate { window_ns, .. }) => {
            format!("sliding_window approximate {window_ns}")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{
        examples::{bucket, override_with},
        *,
    };
    use crate::Rate;

    #[test]
    fn overrides_replace_numbers_for_some_cells() {
        let limit = Limit::new(override_with(&[
            ("api_key", "big-*"),
            ("rate", "600/s"),
            ("until", "2027-01-01"),
            ("why", "launch"),
        ]))
        .expect("a limit");
        let entries = [(&b"api_key"[..], &b"big-co"[..])];
        let big = Descriptor::new(&entries, None);
        let until = limit.overrides[0].until_ns.expect("an end");
        assert_eq!(limit.numbers_for(&big, until - 1), VariantChoice::Override(0));
        assert_eq!(limit.numbers_for(&big, until), VariantChoice::Own);
        let numbers_of = |values: &[&str]| {
            let entries: Vec<(&[u8], &[u8])> =
                values.iter().map(|value| (&b"api_key"[..], value.as_bytes())).collect();
            limit.numbers_for(&Descriptor::new(&entries, None), 0)
        };
        assert_eq!(numbers_of(&["x"]), VariantChoice::Own);
        // A client may choose one of the values.
        assert_eq!(numbers_of(&["x", "big-co"]), VariantChoice::Own);
        assert_eq!(numbers_of(&["big-co", "x"]), VariantChoice::OwnApart);
        assert_eq!(numbers_of(&["big-co", "big-one"]), VariantChoice::Override(0));
        assert_eq!(
            limit.overrides[0].algorithm,
            Algorithm::TokenBucket(Meter::new(Rate::parse("600/s").expect("a rate"), 120))
        );
    }

    #[test]
    fn numbers_keep_a_limit_and_shapes_change_it() {
        let id = |spec| Limit::new(spec).expect("a limit").id;
        let base = id(bucket("60/s", 120));
        assert_eq!(base, id(bucket("1/s", 5)));
        assert_eq!(base, id(LimitSpec { mode: Mode::Shadow, ..bucket("60/s", 120) }));
        assert_ne!(base, id(LimitSpec { by: vec![], ..bucket("60/s", 120) }));
        assert_ne!(base, id(LimitSpec { name: "other".into(), ..bucket("60/s", 120) }));
        let when = BTreeMap::from([("route".to_owned(), ValueSpec::Texts(vec!["/a".into()]))]);
        assert_ne!(base, id(LimitSpec { when, ..bucket("60/s", 120) }));
    }
}
