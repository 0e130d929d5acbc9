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
        AbsentSpec, AddressSpec, BySpec, Charge, ConcurrentSpec, Descriptors, FixedWindowSpec,
        LeakyBucketSpec, LimitSpec, Mode, NetworksSpec, NoWait, OnStoreLoss, QuotaSpec, SharingSpec,
        SlidingWindowSpec, ThrottleSpec, TokenBucketSpec, ValueSpec, parse_instant_ns,
    },
};
use crate::{
    Algorithm, Descriptor, UNITS_MAX,
    classes::{Classes, Role},
    descriptor::CallersLimit,
    expect::Expect,
    meter::Meter,
    path::{Path, StepSpec},
    selector::{By, Condition, Prefix},
    sliding::{SlidingApproximate, SlidingLog, SlidingSlots},
    window::{Edges, FixedWindow},
};

/// The most bytes in a limit's name. It is a metric label and a header value.
pub const NAME_BYTES_MAX: usize = 128;
/// The most bytes in a domain, which is a metric label, too. Envoy Gateway makes domains of the names of a namespace, a
/// gateway and a listener: in Kubernetes up to 63, 253 and 253 bytes.
pub const DOMAIN_BYTES_MAX: usize = 600;
/// The most bytes in the name of what a limit counts. It is a metric label and a header value, too.
pub const UNIT_BYTES_MAX: usize = 32;
/// The most entries that a limit may count by, and the most keys in its `when`.
pub const KEYS_MAX: usize = 16;
/// The most units that callers may name ([`LimitSpec::from_callers`]).
pub const UNITS_MAX_OF_CALLERS: u64 = u32::MAX as u64;
/// The most patterns in one list, so that a check has a bound.
pub const PATTERNS_MAX: usize = 1_024;
/// The most addresses and networks in one list. Every lookup searches the list, and each entry takes 16 to
/// 64 bytes.
pub const NETWORKS_MAX: usize = 16_384;
/// The most overrides in one limit. Overrides are tried in order.
pub const OVERRIDES_MAX: usize = 1_024;
/// The longest time that a request waits for units of other regions.
pub const WAIT_NS_MAX: u64 = 1_000_000_000;
/// The most regions in a limit's priority list.
pub const PRIORITIES_MAX: usize = 64;
/// The shortest window, 10 ms. In shorter windows the clock's own steps show.
pub const WINDOW_NS_MIN: u64 = 10_000_000;
/// The shortest time to live of a slot: 1 s. Callers need time to renew.
pub const TTL_NS_MIN: u64 = 1_000_000_000;
/// The longest time to live of a slot: 1 h. A holder that needs more renews.
pub const TTL_NS_MAX: u64 = 3_600 * 1_000_000_000;
/// A cell may owe this many times its budget, unless the limit says how much.
pub const DEBT_PARTS: u64 = 10;
/// The most warning levels of one limit.
pub const WARNINGS_MAX: usize = 8;
/// Cells that need at least this long to become idle survive a crash.
pub const DURABLE_FROM_NS: u64 = 60 * 1_000_000_000;

/// How regions share a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSharing {
    /// How long a denied request may wait for units of other regions, in nanoseconds: 0 to [`WAIT_NS_MAX`].
    /// `None` if the number of units decides.
    pub wait_ns: Option<u64>,
    /// The part of its own share that each region keeps though others need it: 0 to 100 %.
    pub floor_percent: u8,
    /// The regions that are served first, in this order.
    pub priority: Vec<String>,
}

/// Warnings and throttling before a limit is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Soft {
    /// The levels that are reported, in percent of the limit, ascending.
    pub warn_at: Vec<u8>,
    /// How the limit slows requests down.
    pub throttle: Option<Throttle>,
}

/// How a limit slows requests down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// The level, in percent of the limit, at which throttling begins.
    pub from_percent: u8,
    /// The rate of a throttled cell, over all regions.
    pub meter: Meter,
}

/// The limit that a cell belongs to: a hash of the limit's domain, its name and its *shape*. The shape is
/// what the limit matches, counts by and measures time with. A limit with other parameters, modes or
/// overrides is the same limit; a limit with another shape is another limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LimitId(pub u128);

/// A limit that can be enforced.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The id that this limit's cells are tagged with.
    pub id: LimitId,
    /// The limit as the operator wrote it.
    pub spec: LimitSpec,
    /// The conditions of the limit. All must hold.
    pub when: Vec<Condition>,
    /// All entries of the descriptors that the limit applies to. `None` for most limits, which have conditions.
    pub path: Option<Path>,
    /// The entries that the limit counts by.
    pub by: Vec<By>,
    /// The weight of one unit of a request's cost.
    pub cost: u64,
    /// What is set apart for requests of cost 0. `None` for most limits.
    pub expect: Option<Expect>,
    /// How regions share the limit.
    pub sharing: LimitSharing,
    /// Classes of consumers.
    pub classes: Option<Classes>,
    /// Warnings and throttling before the limit is reached. `None` for most limits.
    pub soft: Option<Soft>,
    /// Conditions that exempt a request, if any of them holds.
    pub unlimited: Vec<Condition>,
    /// The algorithm of cells without an override.
    pub algorithm: Algorithm,
    /// Other algorithms for some cells. The first override that fits counts.
    pub overrides: Vec<Override>,
}

/// One variant: an algorithm that some cells of a limit have.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitVariant<'a> {
    /// The variant's algorithm.
    pub algorithm: Cow<'a, Algorithm>,
    /// The conditions of the variant's cells. All must hold. Empty for the limit's own variant.
    pub whose: &'a [Condition],
    /// As [`Override::until_ns`].
    pub until_ns: Option<u64>,
    /// The role of the variant's cells, if classes have cells of their own.
    pub role: Option<Role>,
}

/// Another algorithm for some cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// The conditions of the override. All must hold.
    pub when: Vec<Condition>,
    /// The algorithm of cells that fit.
    pub algorithm: Algorithm,
    /// The override counts before this time: wall clock, nanoseconds since the epoch.
    pub until_ns: Option<u64>,
    /// The operator's reason for the override.
    pub why: Option<String>,
    /// The override's author.
    pub author: Option<String>,
    /// Extra units that an operator granted, until the override ends.
    pub granted: Option<u64>,
}

impl Override {
    /// Whether the override has ended for good.
    pub fn is_over(&self, wall_ns: u64) -> bool {
        self.until_ns.is_some_and(|until| wall_ns >= until)
    }
}

impl Limit {
    /// Reads a limit from the operator's text.
    ///
    /// # Errors
    /// Every fault in the text.
    pub fn new(spec: LimitSpec) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        faults.name("name", &spec.name);
        faults.name("domain", &spec.domain);
        faults.unit(spec.unit.as_deref());
        let when = faults.conditions("when", &spec.when, &spec.by);
        let unlimited = faults.conditions("unlimited", &spec.unlimited, &spec.by);
        let path = faults.path(&spec);
        let by = path.as_ref().map_or_else(|| faults.by(&spec.by), Path::by);
        faults.mode(&spec);
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
        faults.debt(&spec);
        faults.carry(&spec, algorithm.as_ref());
        faults.of_concurrent(&spec);
        let most = algorithm.as_ref().map_or(UNITS_MAX, |algorithm| algorithm.budget() / cost.max(1));
        let expect = spec.expect.as_ref().and_then(|expect| faults.expect(&spec, expect, most));
        let sharing = spec.sharing.as_ref().map_or_else(LimitSharing::default, |spec| faults.sharing(spec));
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
                Ok(Self {
                    id,
                    spec,
                    when,
                    path,
                    by,
                    cost,
                    expect,
                    sharing,
                    classes,
                    soft,
                    unlimited,
                    algorithm,
                    overrides,
                })
            }
            _ => Err(faults.0),
        }
    }

    /// Every variant that cells may have: the limit's own, then one for each override. If classes have
    /// cells of their own, each of these becomes one variant a role, in the order of [`Classes::roles`].
    pub fn variants(&self) -> Vec<LimitVariant<'_>> {
        let own = LimitVariant {
            algorithm: Cow::Borrowed(&self.algorithm),
            whose: &[],
            until_ns: None,
            role: None,
        };
        let others = self.overrides.iter().map(|o| LimitVariant {
            algorithm: Cow::Borrowed(&o.algorithm),
            whose: &o.when,
            until_ns: o.until_ns,
            role: None,
        });
        let whole = std::iter::once(own).chain(others);
        let Some(classes) = self.separate() else { return whole.collect() };
        let mut variants = Vec::new();
        for whole in whole {
            for role in &classes.roles {
                let algorithm = Cow::Owned(classes.piece(*role, &whole.algorithm));
                variants.push(LimitVariant { algorithm, role: Some(*role), ..whole.clone() });
            }
        }
        variants
    }

    /// The number of variants for each override.
    pub fn variants_each(&self) -> usize {
        self.separate().map_or(1, |classes| classes.roles.len())
    }

    /// The classes, if they have cells of their own.
    pub fn separate(&self) -> Option<&Classes> {
        self.classes.as_ref().filter(|classes| classes.is_separate())
    }

    /// Whether the limit applies to a descriptor that has the keys of `by`.
    #[inline]
    pub fn is_about(&self, descriptor: &Descriptor<'_>) -> bool {
        self.when.iter().all(|condition| condition.holds(descriptor))
            && (!self.spec.exact || self.stranger(descriptor).is_none())
            && self.path.as_ref().is_none_or(|path| path.fits(descriptor))
    }

    /// Whether this is the limit for what a caller names: its windows are as long.
    #[inline]
    pub fn is_named(&self, named: CallersLimit) -> bool {
        self.spec.from_callers
            && self.algorithm.period_ns() == u64::from(named.period_s.get()) * 1_000_000_000
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

    /// The name of what the limit counts; `None` if the operator gave none.
    pub fn unit(&self) -> Option<&str> {
        self.spec.unit.as_deref()
    }

    /// The units that a request of `cost` weighs under this limit. The product saturates: a weight above
    /// every limit is denied.
    pub fn units(&self, cost: u64) -> u64 {
        cost.saturating_mul(self.cost)
    }

    /// The most units that a cell with a budget of `budget` may owe: 0 to [`UNITS_MAX`].
    pub fn debt_max(&self, budget: u64) -> u64 {
        self.spec.debt.unwrap_or_else(|| budget.saturating_mul(DEBT_PARTS)).min(UNITS_MAX)
    }

    /// Whether the limit counts requests that are under way.
    pub const fn is_concurrent(&self) -> bool {
        self.spec.concurrent.is_some()
    }

    /// The name of the limit's kind in a config, such as `token_bucket`.
    pub const fn kind(&self) -> &'static str {
        if self.is_concurrent() { "concurrent" } else { self.algorithm.name() }
    }

    /// The variant for a descriptor at a wall clock time, in nanoseconds.
    #[inline]
    pub fn variant_for(&self, descriptor: &Descriptor<'_>, wall_ns: u64) -> VariantChoice {
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

    /// Whether cells must survive a crash: they take long to become idle, or owe for long.
    pub fn is_durable(&self) -> bool {
        self.horizon_ns() >= DURABLE_FROM_NS || self.algorithm.carries()
    }

    /// Nanoseconds after which every cell that is charged no more is surely idle.
    pub fn horizon_ns(&self) -> u64 {
        let whole = self.overrides.iter().map(|o| &o.algorithm).chain([&self.algorithm]);
        let whole_ns = whole.map(Algorithm::horizon_ns).fold(0, u64::max);
        let Some(_) = self.separate() else { return whole_ns };
        // A piece's rate may be rounded down, which makes the piece slower.
        let variants = self.variants();
        variants.iter().map(|variant| variant.algorithm.horizon_ns()).fold(whole_ns, u64::max)
    }

    /// The answer for callers that cannot wait, when there would be a delay.
    pub fn no_wait(&self) -> NoWait {
        self.spec.leaky_bucket.as_ref().map_or(NoWait::Allow, |spec| spec.no_wait)
    }
}

/// The variant of a limit that a descriptor counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariantChoice {
    /// The limit's own variant.
    Own,
    /// An override's variant, by its index in `overrides`: the first that fits.
    Override(usize),
    /// The limit's own variant, in a second cell ([`crate::cell::Tagger::apart`]). The cell serves a
    /// descriptor in which a key occurs twice, if an override fits the key's first value but not every
    /// value. The first value's own cell has the override's variant.
    OwnApart,
}

impl VariantChoice {
    /// The index into `overrides`, or `None` for the limit's own variant.
    pub const fn index(self) -> Option<usize> {
        match self {
            Self::Override(index) => Some(index),
            Self::Own | Self::OwnApart => None,
        }
    }

    /// Whether the cell is a second cell, which the values of `by` alone do not name.
    pub const fn is_apart(self) -> bool {
        matches!(self, Self::OwnApart)
    }
}

impl LimitId {
    fn new(spec: &LimitSpec, by: &[By], when: &[Condition], algorithm: &Algorithm) -> Self {
        let mut hasher = SipHasher13::new();
        // The length of every text and every list comes first, so that no two shapes look alike.
        fn text(hasher: &mut SipHasher13, text: &str) {
            hasher.write(&(text.len() as u64).to_le_bytes());
            hasher.write(text.as_bytes());
        }
        fn length(hasher: &mut SipHasher13, length: usize) {
            hasher.write(&(length as u64).to_le_bytes());
        }
        let shape = match spec.concurrent {
            Some(_) => format!("concurrent {}", algorithm.period_ns()),
            None => shape(algorithm),
        };
        for part in [&spec.domain, &spec.name, &shape] {
            text(&mut hasher, part);
        }
        // Units that move between classes could be spent twice, so the sizes are part of the id: see
        // `classes`.
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
        if spec.from_callers {
            text(&mut hasher, "from callers");
        }
        if !spec.path.is_empty() {
            text(&mut hasher, "path");
            length(&mut hasher, spec.path.len());
            for StepSpec { key, value, shared, in_metrics: _ } in &spec.path {
                text(&mut hasher, key);
                length(&mut hasher, usize::from(value.is_some()));
                text(&mut hasher, value.as_deref().unwrap_or_default());
                length(&mut hasher, usize::from(*shared));
            }
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

/// The part of an algorithm that makes another limit when it changes: everything but the parameters.
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
    fn an_override_applies_to_matching_cells_until_its_end() {
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
        assert_eq!(limit.variant_for(&big, until - 1), VariantChoice::Override(0));
        assert_eq!(limit.variant_for(&big, until), VariantChoice::Own);
        let variant_of = |values: &[&str]| {
            let entries: Vec<(&[u8], &[u8])> =
                values.iter().map(|value| (&b"api_key"[..], value.as_bytes())).collect();
            limit.variant_for(&Descriptor::new(&entries, None), 0)
        };
        assert_eq!(variant_of(&["x"]), VariantChoice::Own);
        // A client may choose one of the values.
        assert_eq!(variant_of(&["x", "big-co"]), VariantChoice::Own);
        assert_eq!(variant_of(&["big-co", "x"]), VariantChoice::OwnApart);
        assert_eq!(variant_of(&["big-co", "big-one"]), VariantChoice::Override(0));
        assert_eq!(
            limit.overrides[0].algorithm,
            Algorithm::TokenBucket(Meter::new(Rate::parse("600/s").expect("a rate"), 120))
        );
    }

    #[test]
    fn a_new_rate_keeps_a_limits_id_and_a_new_key_changes_it() {
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
