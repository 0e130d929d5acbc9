//! A limit as an operator writes it ([`LimitSpec`]) and as it is enforced ([`Limit`]).

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::Hasher,
};

use serde::{Deserialize, Serialize, de};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::{
    Algorithm, Descriptor, PERIOD_NS_MAX, UNITS_MAX,
    calendar::{Calendar, Period},
    classes::{Classes, ClassesSpec, Role, percent},
    meter::Meter,
    notation::{Rate, format_duration_ns, parse_duration_ns},
    selector::{By, Condition, Prefix},
    sliding::{
        APPROXIMATE_UNITS_MAX, LOG_UNITS_MAX, SLOTS_DEFAULT, SLOTS_MAX, SlidingApproximate, SlidingLog,
        SlidingSlots,
    },
    window::{Edges, FixedWindow},
};

/// The most bytes in a limit's name or domain: they are metric labels and header values.
pub const NAME_BYTES_MAX: usize = 128;
/// The most entries that a limit may count by, and keys in its `when`.
pub const KEYS_MAX: usize = 16;
/// The most patterns in one list, so that a check has a bound.
pub const PATTERNS_MAX: usize = 1_024;
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
/// Requests that a throttle lets wait: as many as it lets pass in this time.
const THROTTLE_QUEUE_NS: u64 = 1_000_000_000;
/// Cells that need this long to be idle again survive a crash.
pub const DURABLE_FROM_NS: u64 = 60 * 1_000_000_000;

/// A limit as it stands in the config.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// Unique in its domain.
    pub name: String,
    /// The domain of the requests it is about.
    pub domain: String,
    /// Which descriptors it is about: all of these must hold.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub when: BTreeMap<String, OneOrMany>,
    /// One cell for each combination of these entries' values; one cell in all where empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<BySpec>,
    /// What each unit of a request's cost weighs in this limit; 1 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// Refills at a rate up to a burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_bucket: Option<TokenBucketSpec>,
    /// Lets units out at a constant rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaky_bucket: Option<LeakyBucketSpec>,
    /// So many units from one edge to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_window: Option<FixedWindowSpec>,
    /// So many units in every stretch of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<SlidingWindowSpec>,
    /// So many units a calendar period, or in every so many days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaSpec>,
    /// Enforce, watch, or neither.
    #[serde(default)]
    pub mode: Mode,
    /// The limit of the same domain that this one may replace: it watches, and is compared with that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate_for: Option<String>,
    /// What is charged when another limit denies the request.
    #[serde(default)]
    pub charge: Charge,
    /// How regions share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingSpec>,
    /// Classes of consumers, and what each may draw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<ClassesSpec>,
    /// Parts of the limit, in percent, at which to tell that so much is used: 1 to 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warn_at: Vec<u8>,
    /// Slower before it is shut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<ThrottleSpec>,
    /// Descriptors that this limit exempts: any of these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unlimited: BTreeMap<String, OneOrMany>,
    /// Other numbers for some cells; the first that fits counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<BTreeMap<String, OneOrMany>>,
}

/// `sharing: { wait, floor, priority }`: how regions share a limit. It says who is served first and what is kept, never what
/// may be spent in all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharingSpec {
    /// How long a denied request may wait for units that other regions have, such as `50ms`: at most [`WAIT_NS_MAX`],
    /// `0s` for not at all. Where absent, one round trip if the cell has fewer units than there are regions, and else
    /// not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// What of its own share each region keeps though others need it, such as `20%`; 0 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<String>,
    /// The regions that are served first where there is not enough, one after the other; all others come after them. At
    /// most [`PRIORITIES_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub priority: Vec<String>,
}

/// `throttle: { from, rate }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThrottleSpec {
    /// The part of the limit, in percent, from which on it slows down: 1 to 99.
    pub from: u8,
    /// How fast a cell goes from there on, such as `5/s`.
    pub rate: String,
}

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

/// `token_bucket: { rate, burst }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenBucketSpec {
    /// Such as `60/s`.
    pub rate: String,
    /// Units that a full bucket holds: 1 to [`UNITS_MAX`].
    pub burst: u64,
}

/// `leaky_bucket: { rate, queue }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeakyBucketSpec {
    /// Such as `2/s`.
    pub rate: String,
    /// Units that fit in the queue, the one that leaves next included: 1 to [`UNITS_MAX`].
    pub queue: u64,
    /// What callers that cannot wait are told when there would be a delay.
    #[serde(default)]
    pub no_wait: NoWait,
}

/// `fixed_window: { limit, window }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedWindowSpec {
    /// Units in a window; 0 denies everything.
    pub limit: u64,
    /// Such as `1h`. Edges are counted from the Unix epoch.
    pub window: String,
    /// Whether each cell has edges of its own, so that not all of them reset at once.
    #[serde(default)]
    pub stagger: bool,
}

/// `sliding_window: { limit, window }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlidingWindowSpec {
    /// Units in any window; 0 denies everything.
    pub limit: u64,
    /// Such as `1s`.
    pub window: String,
    /// Count in this many slots, whatever the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Count by the weighted pair of counters, which is not a bound.
    #[serde(default)]
    pub approximate: bool,
}

/// `quota: { limit, per, time_zone }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaSpec {
    /// Units in a period; 0 denies everything.
    pub limit: u64,
    /// `day`, `week`, `month`, `year`, or a duration such as `30d` for a period that rolls.
    pub per: String,
    /// Whose days they are, such as `Europe/Berlin`; UTC where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}

/// An entry of `by`: a key, or `{ ip: key, v4: bits, v6: bits }`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum BySpec {
    /// Values as they are.
    Key(String),
    /// Addresses, by prefix.
    Address(AddressSpec),
}

impl BySpec {
    /// The entry's key.
    pub fn key(&self) -> &str {
        match self {
            Self::Key(key) => key,
            Self::Address(address) => &address.ip,
        }
    }
}

/// `{ ip: remote_address, v4: 32, v6: 64 }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressSpec {
    /// The entry's key.
    pub ip: String,
    /// Bits of an IPv4 address that count; 32 where absent.
    #[serde(default = "all_v4")]
    pub v4: u8,
    /// Bits of an IPv6 address that count; 64, one subnet, where absent.
    #[serde(default = "subnet_v6")]
    pub v6: u8,
}

const fn all_v4() -> u8 {
    32
}

const fn subnet_v6() -> u8 {
    64
}

/// A scalar or a list of them, as text.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct OneOrMany(pub Vec<String>);

/// Whether a limit denies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// It counts and reports, and never denies.
    Shadow,
    /// It does nothing.
    Off,
}

/// What a limit charges when another limit denies the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Charge {
    /// Nothing: all limits or none.
    #[default]
    Together,
    /// What it would have charged alone.
    Each,
}

/// What a leaky bucket tells callers that cannot wait, when there would be a delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoWait {
    /// No.
    #[default]
    Deny,
    /// Yes, as if they had waited.
    Allow,
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

/// Something in a limit that cannot be enforced, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{what}")]
pub struct Fault {
    /// The field at fault, such as `burst`.
    pub field: String,
    /// What is wrong, and a way to mend it.
    pub what: String,
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
        let when = faults.conditions("when", &spec.when);
        let unlimited = faults.conditions("unlimited", &spec.unlimited);
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

    /// `domain/name`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.spec.domain, self.spec.name)
    }

    /// The units that a request of `cost` weighs here. Saturates: what is above every limit is denied.
    pub fn units(&self, cost: u64) -> u64 {
        cost.saturating_mul(self.cost)
    }

    /// The numbers for a descriptor: the index into `overrides`, or nothing for the limit's own.
    #[inline]
    pub fn override_for(&self, descriptor: &Descriptor<'_>, wall_ns: u64) -> Option<usize> {
        if self.overrides.is_empty() { None } else { self.first_override(descriptor, wall_ns) }
    }

    #[cold]
    fn first_override(&self, descriptor: &Descriptor<'_>, wall_ns: u64) -> Option<usize> {
        self.overrides
            .iter()
            .position(|o| !o.is_over(wall_ns) && o.when.iter().all(|c| self.holds_for_cell(c, descriptor)))
    }

    /// Whether an override's condition holds. An address counts as it is written canonically: a cell
    /// has one set of numbers, however its address was written.
    fn holds_for_cell(&self, condition: &Condition, descriptor: &Descriptor<'_>) -> bool {
        let address = self.by.iter().any(|by| by.key == condition.key && by.prefix.is_some());
        let text = |value: &[u8]| canonical_address(std::str::from_utf8(value).ok()?);
        match descriptor.value(condition.key.as_bytes()) {
            None => false,
            Some(value) if address => match text(value) {
                Some(text) => condition.accepts(text.as_bytes()),
                None => condition.accepts(value),
            },
            Some(value) => condition.accepts(value),
        }
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
            text(&mut hasher, &by.prefix.map_or_else(String::new, |p| format!("{}/{}", p.v4, p.v6)));
        }
        length(&mut hasher, when.len());
        for condition in when {
            text(&mut hasher, &condition.key);
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

/// Gathers every fault of a limit, so that an operator mends them in one go.
#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, field: &str, what: String) {
        self.0.push(Fault { field: field.to_owned(), what });
    }

    fn take<T>(&mut self, field: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|what| self.add(field, what)).ok()
    }

    fn name(&mut self, field: &str, text: &str) {
        let fits = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '[' | ']');
        if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.chars().all(fits) {
            self.add(
                field,
                format!(
                    "a {field} is 1 to {NAME_BYTES_MAX} letters, digits and signs, without spaces, quotes and brackets: {text:?}"
                ),
            );
        } else if field == "name" && text.contains('/') {
            self.add(field, format!("a name has no slash, which ends the domain in shop/{text}"));
        }
    }

    fn sharing(&mut self, spec: &SharingSpec) -> Sharing {
        let wait_ns = spec.wait.as_deref().and_then(|text| self.wait(text));
        let part = |text: &str| {
            percent(text)
                .ok_or_else(|| format!("{text:?} is no part of a share: write 0% to 100%, such as \"20%\""))
        };
        let floor_percent = spec.floor.as_deref().and_then(|text| self.take("floor", part(text)));
        if spec.priority.len() > PRIORITIES_MAX {
            self.add("priority", format!("more than {PRIORITIES_MAX} regions in one `priority`"));
        }
        let mut seen = BTreeSet::new();
        for region in &spec.priority {
            if !seen.insert(region) {
                self.add("priority", format!("region {region} is in `priority` twice"));
            }
        }
        let floor_percent = floor_percent.unwrap_or(0);
        Sharing { wait_ns, floor_percent, priority: spec.priority.clone() }
    }

    fn classes(
        &mut self,
        spec: &LimitSpec,
        whole: &Algorithm,
        overrides: &[Override],
        cost: u64,
    ) -> Option<Classes> {
        let classes = match Classes::new(spec.classes.as_ref()?, whole) {
            Ok(classes) => classes,
            Err(faults) => {
                self.0.extend(faults);
                return None;
            }
        };
        if classes.is_separate() {
            if let Some(what) = overrides.iter().find_map(|o| classes.misfit(&o.algorithm)) {
                self.add("overrides", format!("with the numbers of an override, {what}"));
            }
            let pieces = classes.roles.iter().map(|role| classes.piece(*role, whole).budget());
            let most = pieces.max().unwrap_or(0);
            if cost > most {
                self.add(
                    "cost",
                    format!("a cost of {cost} can never pass any class of at most {most} units: lower it"),
                );
            }
        }
        Some(classes)
    }

    fn soft(&mut self, spec: &LimitSpec, algorithm: &Algorithm) -> Option<Soft> {
        if spec.warn_at.is_empty() && spec.throttle.is_none() {
            return None;
        }
        if spec.warn_at.len() > WARNINGS_MAX {
            self.add(
                "warn_at",
                format!("more than {WARNINGS_MAX} warnings: keep those that somebody acts on"),
            );
        }
        if let Some(percent) = spec.warn_at.iter().find(|percent| !(1..=100).contains(*percent)) {
            self.add("warn_at", format!("a warning at {percent}: write 1 to 100, in percent of the limit"));
        }
        if spec.warn_at.windows(2).any(|pair| pair[0] >= pair[1]) {
            self.add("warn_at", "warnings rise, each once: write them as [80, 90, 100]".to_owned());
        }
        let throttle = spec.throttle.as_ref().and_then(|throttle| self.throttle(throttle, algorithm));
        Some(Soft { warn_at: spec.warn_at.clone(), throttle })
    }

    fn throttle(&mut self, spec: &ThrottleSpec, algorithm: &Algorithm) -> Option<Throttle> {
        if !(1..=99).contains(&spec.from) {
            let from = spec.from;
            self.add("throttle", format!("a throttle from {from}: write 1 to 99, in percent of the limit"));
        }
        if algorithm.has_rate() {
            self.add(
                "throttle",
                "a bucket slows down by itself: a throttle is for windows and quotas".to_owned(),
            );
        }
        let rate = self.take("throttle", Rate::parse(&spec.rate))?;
        // What comes in one second waits its turn; more is denied.
        let queue = Meter::new(rate, 1).units_at_most_in(THROTTLE_QUEUE_NS).max(1);
        Some(Throttle { from_percent: spec.from, meter: Meter::new(rate, queue) })
    }

    fn wait(&mut self, text: &str) -> Option<u64> {
        // A duration is above 0 everywhere else.
        if text.trim() == "0s" {
            return Some(0);
        }
        let wait_ns = self.take("wait", parse_duration_ns(text))?;
        if wait_ns > WAIT_NS_MAX {
            let most = format_duration_ns(WAIT_NS_MAX);
            self.add("wait", format!("a wait is at most {most}, since callers give up: {text:?}"));
        }
        Some(wait_ns)
    }

    fn conditions(&mut self, field: &str, spec: &BTreeMap<String, OneOrMany>) -> Vec<Condition> {
        if spec.len() > KEYS_MAX {
            self.add(field, format!("more than {KEYS_MAX} keys in one `{field}`"));
        }
        for (key, values) in spec {
            if key.is_empty() {
                self.add(field, format!("an empty key in `{field}`"));
            }
            if values.0.is_empty() || values.0.len() > PATTERNS_MAX {
                self.add(
                    field,
                    format!("`{field}` {key} needs 1 to {PATTERNS_MAX} values; \"*\" is any value"),
                );
            }
        }
        spec.iter().map(|(key, values)| Condition::new(key, values.0.iter().map(String::as_str))).collect()
    }

    fn by(&mut self, spec: &[BySpec]) -> Vec<By> {
        let mut by = Vec::new();
        let mut seen = BTreeSet::new();
        if spec.len() > KEYS_MAX {
            self.add("by", format!("more than {KEYS_MAX} entries in one `by`"));
        }
        for entry in spec {
            let (key, prefix) = match entry {
                BySpec::Key(key) => (key, None),
                BySpec::Address(AddressSpec { ip, v4, v6 }) => {
                    if *v4 > 32 || *v6 > 128 {
                        self.add(
                            "by",
                            format!("an IPv4 address has 32 bits and an IPv6 address 128, not {v4} and {v6}"),
                        );
                    }
                    (ip, Some(Prefix { v4: (*v4).min(32), v6: (*v6).min(128) }))
                }
            };
            if key.is_empty() {
                self.add("by", "an empty key in `by`".to_owned());
            }
            if !seen.insert(key.clone()) {
                self.add("by", format!("`by` names {key} twice"));
            }
            by.push(By { key: key.clone(), prefix });
        }
        by
    }

    fn algorithm(&mut self, spec: &LimitSpec) -> Option<Algorithm> {
        let mut found = Vec::new();
        if let Some(s) = &spec.token_bucket {
            found.push(("token_bucket", self.token_bucket(s)));
        }
        if let Some(s) = &spec.leaky_bucket {
            found.push(("leaky_bucket", self.leaky_bucket(s)));
        }
        if let Some(s) = &spec.fixed_window {
            found.push(("fixed_window", self.fixed_window(s)));
        }
        if let Some(s) = &spec.sliding_window {
            found.push(("sliding_window", self.sliding_window(s)));
        }
        if let Some(s) = &spec.quota {
            found.push(("quota", self.quota(s)));
        }
        match found.len() {
            0 => {
                self.add(
                    "name",
                    "no algorithm: add one of token_bucket, leaky_bucket, fixed_window, sliding_window, quota"
                        .to_owned(),
                );
                None
            }
            1 => found.pop().and_then(|(_, algorithm)| algorithm),
            _ => {
                let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
                self.add(
                    names[1],
                    format!(
                        "{} in one limit: keep one, and write a second limit for the other",
                        names.join(" and ")
                    ),
                );
                None
            }
        }
    }

    fn token_bucket(&mut self, spec: &TokenBucketSpec) -> Option<Algorithm> {
        self.meter(&spec.rate, "burst", spec.burst).map(Algorithm::TokenBucket)
    }

    fn leaky_bucket(&mut self, spec: &LeakyBucketSpec) -> Option<Algorithm> {
        self.meter(&spec.rate, "queue", spec.queue).map(Algorithm::LeakyBucket)
    }

    fn meter(&mut self, rate: &str, field: &str, capacity: u64) -> Option<Meter> {
        let rate = self.take("rate", Rate::parse(rate));
        if !(1..=UNITS_MAX).contains(&capacity) {
            self.add(field, format!("a {field} is 1 to {UNITS_MAX}, not {capacity}"));
            return None;
        }
        let meter = Meter::new(rate?, capacity);
        if meter.refill_ns() > PERIOD_NS_MAX {
            self.add(
                field,
                format!("a {field} of {capacity} takes more than 400d to come back at this rate: lower it, or write a quota"),
            );
            return None;
        }
        Some(meter)
    }

    fn fixed_window(&mut self, spec: &FixedWindowSpec) -> Option<Algorithm> {
        let window_ns = self.window(&spec.window)?;
        self.limit(spec.limit)?;
        let edges = Edges::Every { window_ns, stagger: spec.stagger };
        Some(Algorithm::FixedWindow(FixedWindow::new(spec.limit, edges)))
    }

    fn sliding_window(&mut self, spec: &SlidingWindowSpec) -> Option<Algorithm> {
        let window_ns = self.window(&spec.window)?;
        self.limit(spec.limit)?;
        let limit = spec.limit;
        match (spec.approximate, spec.slots) {
            (true, Some(_)) => {
                self.add(
                    "slots",
                    "an approximate window has no slots: leave out `slots` or `approximate`".to_owned(),
                );
                None
            }
            (true, None) if limit > APPROXIMATE_UNITS_MAX => {
                self.add(
                    "limit",
                    format!(
                        "an approximate window counts to {APPROXIMATE_UNITS_MAX}: leave out `approximate`"
                    ),
                );
                None
            }
            (true, None) => Some(Algorithm::SlidingApproximate(SlidingApproximate { limit, window_ns })),
            (false, Some(slots)) if !(1..=SLOTS_MAX).contains(&slots) => {
                self.add("slots", format!("a window has 1 to {SLOTS_MAX} slots, not {slots}"));
                None
            }
            (false, slots) => Some(sliding(limit, window_ns, slots)),
        }
    }

    fn quota(&mut self, spec: &QuotaSpec) -> Option<Algorithm> {
        self.limit(spec.limit)?;
        let limit = spec.limit;
        let period = match spec.per.as_str() {
            "day" => Period::Day,
            "week" => Period::Week,
            "month" => Period::Month,
            "year" => Period::Year,
            rolling => {
                let fault = || {
                    format!("{rolling:?} is no period: day, week, month, year, or a duration such as \"30d\"")
                };
                let window_ns = self.take("per", parse_duration_ns(rolling).map_err(|_| fault()))?;
                if window_ns < WINDOW_NS_MIN {
                    self.add("per", format!("{rolling} is below the shortest period, 10ms"));
                    return None;
                }
                if let Some(zone) = &spec.time_zone {
                    self.add(
                        "time_zone",
                        format!("a period of {rolling} rolls and has no midnight: leave out {zone}, or use a calendar period"),
                    );
                    return None;
                }
                return Some(sliding(limit, window_ns, None));
            }
        };
        let zone = spec.time_zone.as_deref().unwrap_or("UTC");
        let calendar = self.take("time_zone", Calendar::new(period, zone))?;
        Some(Algorithm::FixedWindow(FixedWindow::new(limit, Edges::Calendar(calendar))))
    }

    fn window(&mut self, text: &str) -> Option<u64> {
        let window_ns = self.take("window", parse_duration_ns(text))?;
        if window_ns < WINDOW_NS_MIN {
            self.add("window", format!("{text} is below the shortest window, 10ms: use a token_bucket"));
            return None;
        }
        Some(window_ns)
    }

    fn limit(&mut self, limit: u64) -> Option<()> {
        if limit > UNITS_MAX {
            self.add("limit", format!("a limit is at most {UNITS_MAX}, not {limit}"));
            return None;
        }
        Some(())
    }

    fn override_of(&mut self, spec: &LimitSpec, fields: &BTreeMap<String, OneOrMany>) -> Option<Override> {
        let mut numbers = spec.clone();
        let mut when = BTreeMap::new();
        let (mut until_ns, mut why, mut changed) = (None, None, false);
        let (mut author, mut granted) = (None, None);
        let counts_by = |name: &str| spec.by.iter().any(|by| by.key() == name);
        let before = self.0.len();
        for (key, values) in fields {
            let [text] = values.0.as_slice() else {
                when.insert(key.clone(), values.clone());
                continue;
            };
            match (key.as_str(), numbers.number(key)) {
                ("until", _) => until_ns = self.take("until", parse_instant_ns(text)),
                ("why", _) => why = Some(text.clone()),
                ("author", _) if !counts_by("author") => author = Some(text.clone()),
                ("granted", _) if !counts_by("granted") => {
                    let units = text.parse().map_err(|_| format!("granted is a whole number, not {text:?}"));
                    granted = self.take("granted", units);
                }
                (_, Some(number)) => {
                    changed = true;
                    if let Some(fault) = number.set(key, text) {
                        self.add(key, fault);
                    }
                }
                _ => {
                    when.insert(key.clone(), values.clone());
                }
            }
        }
        for key in when.keys() {
            let by = spec.by.iter().find(|by| by.key() == key);
            match by {
                None => self.add(
                    key,
                    format!(
                        "an override names {key}, which is neither a number of this limit ({}) nor one of its `by`",
                        spec.number_names().join(", ")
                    ),
                ),
                // A cell has one set of numbers, so an override may not tell two of its values apart.
                Some(BySpec::Address(AddressSpec { v4, v6, .. })) if (*v4, *v6) != (32, 128) => self.add(
                    key,
                    format!("an override for {key} needs whole addresses: count by v4: 32 and v6: 128"),
                ),
                Some(_) => {}
            }
        }
        if when.is_empty() && !spec.by.is_empty() {
            self.add(
                "overrides",
                "an override must say whose: name at least one entry of `by`, such as tenant: big-co"
                    .to_owned(),
            );
        } else if when.is_empty() && until_ns.is_none() {
            self.add(
                "overrides",
                "an override of a limit without `by`, which has one cell, needs an `until`: or change the limit's numbers"
                    .to_owned(),
            );
        }
        if !changed {
            self.add(
                "overrides",
                format!("an override changes nothing: set {}", spec.number_names().join(" or ")),
            );
        }
        for values in when.values_mut() {
            for text in &mut values.0 {
                let (not, address) = text.strip_prefix('!').map_or(("", text.as_str()), |rest| ("!", rest));
                if let Some(canonical) = canonical_address(address) {
                    *text = format!("{not}{canonical}");
                }
            }
        }
        let when = self.conditions("overrides", &when);
        let algorithm = if self.0.len() == before { self.algorithm(&numbers) } else { None };
        Some(Override { when, algorithm: algorithm?, until_ns, why, author, granted })
    }
}

/// An address in its one canonical form.
pub fn canonical_address(text: &str) -> Option<String> {
    text.parse::<std::net::IpAddr>().ok().map(|address| address.to_canonical().to_string())
}

/// The log where it is small, slots where it is not or where they are asked for.
fn sliding(limit: u64, window_ns: u64, slots: Option<u32>) -> Algorithm {
    match slots {
        None if limit <= LOG_UNITS_MAX => Algorithm::SlidingLog(SlidingLog { limit, window_ns }),
        slots => {
            Algorithm::SlidingSlots(SlidingSlots { limit, window_ns, slots: slots.unwrap_or(SLOTS_DEFAULT) })
        }
    }
}

/// A number in a limit that an override may replace.
enum Number<'a> {
    Rate(&'a mut String),
    Units(&'a mut u64),
}

impl Number<'_> {
    fn set(self, key: &str, text: &str) -> Option<String> {
        match self {
            Self::Rate(rate) => {
                text.clone_into(rate);
                None
            }
            Self::Units(units) => match text.replace('_', "").parse() {
                Ok(number) => {
                    *units = number;
                    None
                }
                Err(_) => Some(format!("{key} is a whole number, not {text:?}")),
            },
        }
    }
}

impl LimitSpec {
    /// Takes out the overrides that count no more at `wall_ns`: no cell has them any more.
    pub fn forget_ended(&mut self, wall_ns: u64) {
        let is_over = |fields: &BTreeMap<String, OneOrMany>| {
            let until = fields.get("until").and_then(|until| until.0.first());
            until.and_then(|until| parse_instant_ns(until).ok()).is_some_and(|until| wall_ns >= until)
        };
        self.overrides.retain(|fields| !is_over(fields));
    }

    /// The number of units that an override replaces, and a grant raises: `burst`, `queue` or `limit`.
    pub fn units_name(&self) -> Option<&'static str> {
        self.number_names().into_iter().find(|name| *name != "rate")
    }

    fn number(&mut self, key: &str) -> Option<Number<'_>> {
        match key {
            "rate" => match (&mut self.token_bucket, &mut self.leaky_bucket) {
                (Some(spec), _) => Some(Number::Rate(&mut spec.rate)),
                (None, Some(spec)) => Some(Number::Rate(&mut spec.rate)),
                _ => None,
            },
            "burst" => self.token_bucket.as_mut().map(|spec| Number::Units(&mut spec.burst)),
            "queue" => self.leaky_bucket.as_mut().map(|spec| Number::Units(&mut spec.queue)),
            "limit" => match (&mut self.fixed_window, &mut self.sliding_window, &mut self.quota) {
                (Some(spec), ..) => Some(Number::Units(&mut spec.limit)),
                (_, Some(spec), _) => Some(Number::Units(&mut spec.limit)),
                (.., Some(spec)) => Some(Number::Units(&mut spec.limit)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The numbers that an override may replace, by their names in a config.
    pub fn number_names(&self) -> Vec<&'static str> {
        let mut spec = self.clone();
        ["rate", "burst", "queue", "limit"].into_iter().filter(|name| spec.number(name).is_some()).collect()
    }

    /// The numbers in a few words, such as `60/s, burst 120`.
    pub fn numbers(&self) -> String {
        if let Some(s) = &self.token_bucket {
            format!("{}, burst {}", s.rate, s.burst)
        } else if let Some(s) = &self.leaky_bucket {
            format!("{}, queue {}", s.rate, s.queue)
        } else if let Some(s) = &self.fixed_window {
            format!("{} a {}", s.limit, s.window)
        } else if let Some(s) = &self.sliding_window {
            format!("{} in any {}", s.limit, s.window)
        } else if let Some(s) = &self.quota {
            match parse_duration_ns(&s.per) {
                Ok(ns) => format!("{} in any {}", s.limit, format_duration_ns(ns)),
                Err(_) => format!("{} a {}", s.limit, s.per),
            }
        } else {
            String::new()
        }
    }
}

/// A date (its midnight in UTC) or an RFC 3339 instant, in nanoseconds since the epoch.
///
/// # Errors
/// What would do.
pub fn parse_instant_ns(text: &str) -> Result<u64, String> {
    let instant = text.parse::<jiff::Timestamp>().ok().or_else(|| {
        let date = text.parse::<jiff::civil::Date>().ok()?;
        date.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    });
    instant
        .and_then(|instant| u64::try_from(instant.as_nanosecond()).ok())
        .ok_or_else(|| format!("{text:?} is no time: write 2027-01-01 or 2027-01-01T12:00:00Z"))
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value or a list of values")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![text.to_owned()]))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![number.to_string()]))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![number.to_string()]))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![number.to_string()]))
            }

            fn visit_bool<E: de::Error>(self, truth: bool) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![truth.to_string()]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<OneOrMany, A::Error> {
                let mut all = Vec::new();
                while let Some(item) = items.next_element::<Self::Value>()? {
                    all.extend(item.0);
                }
                Ok(OneOrMany(all))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for BySpec {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = BySpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an entry's key, or { ip: key, v4: bits, v6: bits }")
            }

            fn visit_str<E: de::Error>(self, key: &str) -> Result<BySpec, E> {
                Ok(BySpec::Key(key.to_owned()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<BySpec, A::Error> {
                AddressSpec::deserialize(de::value::MapAccessDeserializer::new(map)).map(BySpec::Address)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(rate: &str, burst: u64) -> LimitSpec {
        LimitSpec {
            name: "per-key".into(),
            domain: "shop".into(),
            when: BTreeMap::new(),
            by: vec![BySpec::Key("api_key".into())],
            cost: None,
            token_bucket: Some(TokenBucketSpec { rate: rate.into(), burst }),
            leaky_bucket: None,
            fixed_window: None,
            sliding_window: None,
            quota: None,
            mode: Mode::Enforce,
            candidate_for: None,
            charge: Charge::Together,
            sharing: None,
            classes: None,
            warn_at: Vec::new(),
            throttle: None,
            unlimited: BTreeMap::new(),
            overrides: Vec::new(),
        }
    }

    #[track_caller]
    fn refused(spec: LimitSpec, field: &str, word: &str) {
        let faults = Limit::new(spec).expect_err("a fault");
        assert!(
            faults.iter().any(|fault| fault.field == field && fault.what.contains(word)),
            "no fault in {field} that says {word}: {faults:?}"
        );
    }

    #[test]
    fn impossible_numbers_are_refused() {
        refused(bucket("60/s", 0), "burst", "1 to");
        refused(bucket("60/s", u64::MAX), "burst", "1 to");
        refused(bucket("fast", 1), "rate", "60/s");
        refused(bucket("1/d", 1_000), "burst", "400d");
        refused(LimitSpec { name: "a b".into(), ..bucket("1/s", 1) }, "name", "spaces");
        refused(LimitSpec { domain: String::new(), ..bucket("1/s", 1) }, "domain", "domain");
        refused(LimitSpec { cost: Some(0), ..bucket("1/s", 1) }, "cost", "mode: off");
        refused(LimitSpec { cost: Some(11), ..bucket("1/s", 10) }, "cost", "never pass");
        let quota = |per: &str, zone: Option<&str>| LimitSpec {
            token_bucket: None,
            quota: Some(QuotaSpec { limit: 1, per: per.into(), time_zone: zone.map(Into::into) }),
            ..bucket("1/s", 1)
        };
        refused(quota("fortnight", None), "per", "30d");
        refused(quota("30d", Some("UTC")), "time_zone", "rolls");
        refused(quota("day", Some("Mars/Olympus")), "time_zone", "IANA");
    }

    #[test]
    fn how_regions_share_is_read_and_checked() {
        let sharing = |wait: Option<&str>, floor: Option<&str>, priority: &[&str]| LimitSpec {
            sharing: Some(SharingSpec {
                wait: wait.map(Into::into),
                floor: floor.map(Into::into),
                priority: priority.iter().copied().map(Into::into).collect(),
            }),
            ..bucket("1/s", 1)
        };
        let read = |spec| Limit::new(spec).expect("a limit").sharing;
        assert_eq!(read(sharing(None, None, &[])), Sharing::default());
        assert_eq!(read(sharing(Some("0s"), None, &[])).wait_ns, Some(0));
        let priority = vec!["eu".to_owned(), "us".to_owned()];
        assert_eq!(
            read(sharing(Some("50ms"), Some("20%"), &["eu", "us"])),
            Sharing { wait_ns: Some(50_000_000), floor_percent: 20, priority }
        );
        refused(sharing(Some("2s"), None, &[]), "wait", "at most 1s");
        refused(sharing(Some("soon"), None, &[]), "wait", "duration");
        for floor in ["20", "101%", "-1%", "%", "a fifth"] {
            refused(sharing(None, Some(floor), &[]), "floor", "0% to 100%");
        }
        refused(sharing(None, None, &["eu", "eu"]), "priority", "twice");
        let many: Vec<String> = (0..=PRIORITIES_MAX).map(|n| format!("r{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        refused(sharing(None, None, &many), "priority", "more than 64");
    }

    #[test]
    fn candidates_watch_and_are_for_another_limit() {
        let candidate =
            |name: &str, mode| LimitSpec { candidate_for: Some(name.into()), mode, ..bucket("1/s", 1) };
        assert!(Limit::new(candidate("live", Mode::Shadow)).is_ok());
        assert!(Limit::new(candidate("live", Mode::Off)).is_ok());
        refused(candidate("live", Mode::Enforce), "candidate_for", "mode: shadow");
        refused(candidate("per-key", Mode::Shadow), "candidate_for", "itself");
    }

    #[test]
    fn contradictions_are_refused() {
        refused(LimitSpec { token_bucket: None, ..bucket("1/s", 1) }, "name", "no algorithm");
        let two = LimitSpec {
            fixed_window: Some(FixedWindowSpec { limit: 1, window: "1s".into(), stagger: false }),
            ..bucket("1/s", 1)
        };
        refused(two, "fixed_window", "keep one");
        let sliding = |spec| LimitSpec { token_bucket: None, sliding_window: Some(spec), ..bucket("1/s", 1) };
        let window = SlidingWindowSpec { limit: 9, window: "1s".into(), slots: Some(9), approximate: true };
        refused(sliding(window.clone()), "slots", "leave out");
        refused(
            sliding(SlidingWindowSpec { slots: Some(0), approximate: false, ..window.clone() }),
            "slots",
            "1 to",
        );
        refused(sliding(SlidingWindowSpec { window: "1ms".into(), ..window }), "window", "10ms");
        let twice = vec![BySpec::Key("k".into()), BySpec::Key("k".into())];
        refused(LimitSpec { by: twice, ..bucket("1/s", 1) }, "by", "twice");
    }

    fn override_with(fields: &[(&str, &str)]) -> LimitSpec {
        let fields = fields.iter().map(|(k, v)| ((*k).to_owned(), OneOrMany(vec![(*v).to_owned()])));
        LimitSpec { overrides: vec![fields.collect()], ..bucket("60/s", 120) }
    }

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
        let big = Descriptor { entries: &entries, cost: None };
        let until = limit.overrides[0].until_ns.expect("an end");
        assert_eq!(limit.override_for(&big, until - 1), Some(0));
        assert_eq!(limit.override_for(&big, until), None);
        let entries = [(&b"api_key"[..], &b"x"[..])];
        assert_eq!(limit.override_for(&Descriptor { entries: &entries, cost: None }, 0), None);
        assert_eq!(
            limit.overrides[0].algorithm,
            Algorithm::TokenBucket(Meter::new(Rate::parse("600/s").expect("a rate"), 120))
        );
    }

    #[test]
    fn an_override_says_who_made_it_and_what_was_granted() {
        let fields = [
            ("api_key", "x"),
            ("burst", "125"),
            ("granted", "5"),
            ("author", "ana"),
            ("until", "2027-01-01"),
        ];
        let limit = Limit::new(override_with(&fields)).expect("a limit");
        let made = &limit.overrides[0];
        assert_eq!((made.author.as_deref(), made.granted, made.when.len()), (Some("ana"), Some(5), 1));
        assert!(made.is_over(made.until_ns.expect("an end")) && !made.is_over(0));
        refused(
            override_with(&[("api_key", "x"), ("burst", "5"), ("granted", "-1")]),
            "granted",
            "whole number",
        );

        // Where it is what the limit counts by, it says whose.
        let by = vec![BySpec::Key("author".into())];
        let limit = Limit::new(LimitSpec { by, ..override_with(&[("author", "ana"), ("burst", "9")]) });
        let made = &limit.expect("a limit").overrides[0];
        assert_eq!((made.author.as_deref(), made.when.len()), (None, 1));
    }

    #[test]
    fn overrides_that_ended_are_forgotten() {
        let mut spec = override_with(&[("api_key", "x"), ("burst", "9"), ("until", "2027-01-01T00:00:01Z")]);
        let end_ns = parse_instant_ns("2027-01-01T00:00:01Z").expect("an instant");
        spec.forget_ended(end_ns - 1);
        assert_eq!(spec.overrides.len(), 1);
        spec.forget_ended(end_ns);
        assert!(spec.overrides.is_empty());
        let mut lasting = override_with(&[("api_key", "x"), ("burst", "9")]);
        lasting.forget_ended(u64::MAX);
        assert_eq!(lasting.overrides.len(), 1);
    }

    #[test]
    fn the_one_cell_of_a_limit_has_other_numbers_for_a_time() {
        let one = |fields: &[(&str, &str)]| LimitSpec { by: vec![], ..override_with(fields) };
        let limit = Limit::new(one(&[("burst", "9"), ("until", "2027-01-01")])).expect("a limit");
        let any = Descriptor { entries: &[], cost: None };
        assert_eq!((limit.override_for(&any, 0), limit.override_for(&any, u64::MAX)), (Some(0), None));
        refused(one(&[("burst", "9")]), "overrides", "needs an `until`");
    }

    #[test]
    fn overrides_that_say_nothing_are_refused() {
        refused(override_with(&[("api_key", "x")]), "overrides", "changes nothing");
        refused(override_with(&[("rate", "1/s")]), "overrides", "whose");
        refused(override_with(&[("api_key", "x"), ("brust", "5")]), "brust", "neither");
        refused(override_with(&[("api_key", "x"), ("burst", "many")]), "burst", "whole number");
        refused(override_with(&[("api_key", "x"), ("burst", "0")]), "burst", "1 to");
        refused(override_with(&[("api_key", "x"), ("burst", "5"), ("until", "soon")]), "until", "2027");
    }

    #[test]
    fn numbers_keep_a_limit_and_shapes_change_it() {
        let id = |spec| Limit::new(spec).expect("a limit").id;
        let base = id(bucket("60/s", 120));
        assert_eq!(base, id(bucket("1/s", 5)));
        assert_eq!(base, id(LimitSpec { mode: Mode::Shadow, ..bucket("60/s", 120) }));
        assert_ne!(base, id(LimitSpec { by: vec![], ..bucket("60/s", 120) }));
        assert_ne!(base, id(LimitSpec { name: "other".into(), ..bucket("60/s", 120) }));
        let when = BTreeMap::from([("route".to_owned(), OneOrMany(vec!["/a".into()]))]);
        assert_ne!(base, id(LimitSpec { when, ..bucket("60/s", 120) }));
    }
}
