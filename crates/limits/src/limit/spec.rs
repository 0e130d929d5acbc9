//! A limit as an operator writes it.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize, de};

use crate::{
    classes::ClassesSpec,
    expect::ExpectSpec,
    notation::{format_duration_ns, parse_duration_ns, parse_units},
    path::{Path, StepSpec},
};

/// A limit as the config writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// The limit's name, unique in its domain.
    pub name: String,
    /// The domain of the requests that the limit applies to.
    pub domain: String,
    /// Conditions on the descriptors that the limit applies to. All must hold.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub when: BTreeMap<String, ValueSpec>,
    /// Whether a descriptor may only have the keys of `when` and `by`, in any order.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exact: bool,
    /// The entries that the limit counts by: one cell for each combination of their values. One cell in all
    /// if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<BySpec>,
    /// Instead of `when` and `by`: all entries of the descriptors that the limit applies to, in order. If several
    /// paths of a domain fit a descriptor, the most specific one applies; see [`crate::path`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<StepSpec>,
    /// Instead of `when`, `by` and `path`: the limit applies to descriptors for which callers name a limit
    /// ([`CallersLimit`](crate::descriptor::CallersLimit)) with windows of this length. No other limit applies to them.
    /// Each combination of a named number and a descriptor's entries, in order, has a cell. A number above the limit's
    /// own counts as the limit's own.
    #[serde(default, skip_serializing_if = "is_false")]
    pub from_callers: bool,
    /// A name by which `replaces` refers to the limit. Several limits may have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// The aliases of limits that do not apply to a request which this limit applies to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<String>,
    /// The charge on a cell that two descriptors of a request match.
    #[serde(default, skip_serializing_if = "Descriptors::is_sum")]
    pub descriptors: Descriptors,
    /// The weight of each unit of a request's cost under this limit; 1 if absent.
    #[serde(default, deserialize_with = "some_units", skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// The name of what the limit counts, such as `tokens`, for people and programs that read answers: a token
    /// of RFC 9651 of at most [`UNIT_BYTES_MAX`](super::UNIT_BYTES_MAX). No decision depends on the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// A bucket that refills at a rate, up to a burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_bucket: Option<TokenBucketSpec>,
    /// A bucket that lets units out at a constant rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaky_bucket: Option<LeakyBucketSpec>,
    /// A number of units from one edge to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_window: Option<FixedWindowSpec>,
    /// A number of units in every stretch of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<SlidingWindowSpec>,
    /// A number of units in a calendar period, or in every stretch of some days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaSpec>,
    /// A number of requests under way at one time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<ConcurrentSpec>,
    /// Enforce, watch, or neither.
    #[serde(default)]
    pub mode: Mode,
    /// The limit of the same domain that this limit may replace. This limit only watches, and is compared
    /// with that limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate_for: Option<String>,
    /// The charge of a hit that this limit, or another one, denies.
    #[serde(default)]
    pub charge: Charge,
    /// The most units that a cell may owe, because they were spent before they were asked for: 0 to
    /// [`UNITS_MAX`](crate::UNITS_MAX). Ten times the limit, the burst or the queue if absent.
    #[serde(default, deserialize_with = "some_units", skip_serializing_if = "Option::is_none")]
    pub debt: Option<u64>,
    /// What a request of cost 0 is expected to cost: so much is set apart until its real cost is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<ExpectSpec>,
    /// Whether what a cell owes when its window ends reduces the next windows, until it is paid. Only for windows
    /// with fixed edges.
    #[serde(default, skip_serializing_if = "is_false")]
    pub carry: bool,
    /// How regions share the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingSpec>,
    /// The behaviour of a node that has nothing left while the store of its region's pools does not answer.
    /// No effect if the nodes share no store.
    #[serde(default, skip_serializing_if = "OnStoreLoss::is_guard")]
    pub on_store_loss: OnStoreLoss,
    /// Classes of consumers, and how much each may spend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<ClassesSpec>,
    /// Usage levels to report, in percent of the limit: 1 to 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warn_at: Vec<u8>,
    /// How the limit slows requests down before it denies them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<ThrottleSpec>,
    /// Descriptors that this limit exempts: those for which any of these conditions holds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unlimited: BTreeMap<String, ValueSpec>,
    /// Other parameters for some cells. The first override that fits counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<BTreeMap<String, ValueSpec>>,
}

/// `sharing: { wait, floor, priority }`: how regions share a limit. Sharing decides who is served first and
/// what is kept, never how much may be spent in all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharingSpec {
    /// How long a denied request may wait for units of other regions, such as `50ms`: at most
    /// [`WAIT_NS_MAX`](super::WAIT_NS_MAX), and `0s` for no wait. The default is one round trip if the cell
    /// has fewer units than there are regions, and no wait otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// The part of its own share that each region keeps though others need it, such as `20%`; 0 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<String>,
    /// The regions that are served first, in this order, if there is not enough. All others come after
    /// them. At most [`PRIORITIES_MAX`](super::PRIORITIES_MAX).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub priority: Vec<String>,
}

/// `throttle: { from, rate }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThrottleSpec {
    /// The level, in percent of the limit, at which throttling begins: 1 to 99.
    pub from: u8,
    /// The rate of a throttled cell, such as `5/s`.
    pub rate: String,
}

/// `token_bucket: { rate, burst }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenBucketSpec {
    /// The rate, such as `60/s`.
    pub rate: String,
    /// Units that a full bucket holds: 1 to [`UNITS_MAX`](crate::UNITS_MAX).
    #[serde(deserialize_with = "units")]
    pub burst: u64,
}

/// `leaky_bucket: { rate, queue }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeakyBucketSpec {
    /// The rate, such as `2/s`.
    pub rate: String,
    /// Units that fit in the queue, including the one that leaves next: 1 to
    /// [`UNITS_MAX`](crate::UNITS_MAX).
    #[serde(deserialize_with = "units")]
    pub queue: u64,
    /// The answer for callers that cannot wait, when there would be a delay.
    #[serde(default)]
    pub no_wait: NoWait,
}

/// `fixed_window: { limit, window }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedWindowSpec {
    /// Units in a window; 0 denies everything.
    #[serde(deserialize_with = "units")]
    pub limit: u64,
    /// The window's length, such as `1h`. Edges are counted from the Unix epoch.
    pub window: String,
    /// Whether each cell has its own edges, so that not all cells reset at once.
    #[serde(default)]
    pub stagger: bool,
}

/// `sliding_window: { limit, window }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlidingWindowSpec {
    /// Units in any window; 0 denies everything.
    #[serde(deserialize_with = "units")]
    pub limit: u64,
    /// The window's length, such as `1s`.
    pub window: String,
    /// The number of slots to count in, for any size of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Whether to count by the weighted pair of counters, which is not a bound.
    #[serde(default)]
    pub approximate: bool,
}

/// `quota: { limit, per, time_zone }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaSpec {
    /// Units in a period; 0 denies everything.
    #[serde(deserialize_with = "units")]
    pub limit: u64,
    /// `day`, `week`, `month`, `year`, or a duration such as `30d` for a rolling period.
    pub per: String,
    /// The time zone of the days, such as `Europe/Berlin`; UTC if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}

/// `concurrent: { limit, ttl }`: requests that are under way at one time. Each takes a slot when it begins, and
/// gives the slot back when it ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConcurrentSpec {
    /// Slots; 0 denies everything.
    #[serde(deserialize_with = "units")]
    pub limit: u64,
    /// How long a slot is taken at most, unless its holder renews it, such as `10m`:
    /// [`TTL_NS_MIN`](super::TTL_NS_MIN) to [`TTL_NS_MAX`](super::TTL_NS_MAX).
    pub ttl: String,
}

/// An entry of `by`: a key, or `{ ip: key, v4: bits, v6: bits, trust: N }`.
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
    /// Bits of an IPv4 address that count; 32 if absent.
    #[serde(default = "all_v4")]
    pub v4: u8,
    /// Bits of an IPv6 address that count; 64, one subnet, if absent.
    #[serde(default = "subnet_v6")]
    pub v6: u8,
    /// The number of trusted proxies that append to a list of addresses, 1 to 255; 1 if absent. The address
    /// that the first of these proxies wrote counts.
    #[serde(default = "one_hop", skip_serializing_if = "is_one_hop")]
    pub trust: u8,
}

const fn one_hop() -> u8 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_one_hop(trust: &u8) -> bool {
    *trust == 1
}

const fn all_v4() -> u8 {
    32
}

const fn subnet_v6() -> u8 {
    64
}

/// The required value of an entry: a value, a list of values, `{ ip: addresses, trust: N }`, or `{ absent:
/// true }`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ValueSpec {
    /// One of these texts.
    Texts(Vec<String>),
    /// An address in one of these networks.
    Addresses(NetworksSpec),
    /// No value: the descriptor does not have the key.
    Absent(AbsentSpec),
}

/// `{ ip: [10.0.0.0/8, "2001:db8::/32"], trust: 1 }`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NetworksSpec {
    /// Addresses and networks.
    pub ip: Vec<String>,
    /// As [`AddressSpec::trust`].
    #[serde(skip_serializing_if = "is_one_hop")]
    pub trust: u8,
}

/// `{ absent: true }`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AbsentSpec {
    /// Always true.
    pub absent: bool,
}

impl ValueSpec {
    /// The texts; empty for addresses and for an absent key.
    pub fn texts(&self) -> &[String] {
        match self {
            Self::Texts(texts) => texts,
            Self::Addresses(_) | Self::Absent(_) => &[],
        }
    }
}

impl fmt::Display for ValueSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Texts(texts) | Self::Addresses(NetworksSpec { ip: texts, .. }) => {
                f.write_str(&texts.join(" or "))
            }
            Self::Absent(_) => f.write_str("absent"),
        }
    }
}

/// The charge on a cell that two descriptors of one request match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Descriptors {
    /// The sum of both costs.
    #[default]
    Sum,
    /// The larger cost.
    Max,
}

impl Descriptors {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    const fn is_sum(&self) -> bool {
        matches!(self, Self::Sum)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// How much of a limit is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The limit counts, reports and denies.
    #[default]
    Enforce,
    /// The limit counts and reports, and never denies.
    Shadow,
    /// The limit does nothing.
    Off,
    /// The limit counts, reports, and denies a request only if each limit of this mode that applies to the
    /// request denies it: one of them is enough to pass.
    Any,
}

impl Mode {
    /// Whether the limit may deny requests.
    pub const fn denies(self) -> bool {
        matches!(self, Self::Enforce | Self::Any)
    }
}

/// The charge of a limit when the request is denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Charge {
    /// Nothing: either all limits are charged or none.
    #[default]
    Together,
    /// The full charge if it fits, as if the limit were alone.
    Each,
    /// The full charge, whether it fits or not: what does not fit is owed. For costs that are known only
    /// once they were spent.
    Always,
}

/// Who decides while the store that the nodes of a region share does not answer. A node first spends what
/// it holds of the pool, in every case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStoreLoss {
    /// The node spends its own guard share, and then denies.
    #[default]
    Guard,
    /// Nobody: the guard share is left alone. The caller is told that there is no answer, rather than that
    /// the request asks too much.
    Closed,
    /// The node spends its own guard share. Then everything passes, uncharged but counted, and the limit
    /// promises nothing.
    Open,
}

impl OnStoreLoss {
    /// The default is left out when limits are written, so that older nodes can read limits that do not use
    /// this field.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    const fn is_guard(&self) -> bool {
        matches!(self, Self::Guard)
    }
}

/// The answer of a leaky bucket for callers that cannot wait, when there would be a delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoWait {
    /// The request is denied.
    #[default]
    Deny,
    /// The request is allowed, as if the caller had waited.
    Allow,
}

impl LimitSpec {
    /// The entries that the limit counts by: `by`, or the keys of the values that its path leaves open.
    pub fn counts_by(&self) -> Cow<'_, [BySpec]> {
        if self.path.is_empty() {
            return Cow::Borrowed(&self.by);
        }
        Cow::Owned(Path::new(&self.path).by().into_iter().map(|by| BySpec::Key(by.key)).collect())
    }

    /// Removes the overrides that have ended at `wall_ns`. No cell has them any more.
    pub fn forget_ended(&mut self, wall_ns: u64) {
        let is_over = |fields: &BTreeMap<String, ValueSpec>| {
            let until = fields.get("until").and_then(|until| until.texts().first());
            until.and_then(|until| parse_instant_ns(until).ok()).is_some_and(|until| wall_ns >= until)
        };
        self.overrides.retain(|fields| !is_over(fields));
    }

    /// Rewrites numbers in the notation of earlier versions, in which `1_000/d` and `1_000` were numbers.
    /// Used for limits that were stored or came from other nodes, never for a config.
    pub fn modernise(&mut self) {
        let rates = [
            self.token_bucket.as_mut().map(|spec| &mut spec.rate),
            self.leaky_bucket.as_mut().map(|spec| &mut spec.rate),
            self.throttle.as_mut().map(|spec| &mut spec.rate),
        ];
        rates.into_iter().flatten().for_each(|rate| rate.retain(|c| c != '_'));
        let names = self.number_names();
        for fields in &mut self.overrides {
            for (_, value) in fields.iter_mut().filter(|(name, _)| names.contains(&name.as_str())) {
                if let ValueSpec::Texts(texts) = value
                    && let [text] = texts.as_mut_slice()
                {
                    text.retain(|c| c != '_');
                }
            }
        }
    }

    /// The name of the number of units, which an override replaces and a grant raises: `burst`, `queue` or
    /// `limit`.
    pub fn units_name(&self) -> Option<&'static str> {
        self.number_names().into_iter().find(|name| *name != "rate")
    }

    pub(super) fn number(&mut self, key: &str) -> Option<Number<'_>> {
        match key {
            "rate" => match (&mut self.token_bucket, &mut self.leaky_bucket) {
                (Some(spec), _) => Some(Number::Rate(&mut spec.rate)),
                (None, Some(spec)) => Some(Number::Rate(&mut spec.rate)),
                _ => None,
            },
            "burst" => self.token_bucket.as_mut().map(|spec| Number::Units(&mut spec.burst)),
            "queue" => self.leaky_bucket.as_mut().map(|spec| Number::Units(&mut spec.queue)),
            "limit" => {
                let limits = [
                    self.fixed_window.as_mut().map(|spec| &mut spec.limit),
                    self.sliding_window.as_mut().map(|spec| &mut spec.limit),
                    self.quota.as_mut().map(|spec| &mut spec.limit),
                    self.concurrent.as_mut().map(|spec| &mut spec.limit),
                ];
                limits.into_iter().flatten().next().map(Number::Units)
            }
            _ => None,
        }
    }

    /// The names, in a config, of the numbers that an override may replace.
    pub fn number_names(&self) -> Vec<&'static str> {
        let mut spec = self.clone();
        ["rate", "burst", "queue", "limit"].into_iter().filter(|name| spec.number(name).is_some()).collect()
    }

    /// The limit's numbers as a short text, such as `60/s, burst 120`.
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
        } else if let Some(s) = &self.concurrent {
            format!("{} at one time, each for {}", s.limit, s.ttl)
        } else {
            String::new()
        }
    }
}

/// A number in a limit that an override may replace.
pub(super) enum Number<'a> {
    Rate(&'a mut String),
    Units(&'a mut u64),
}

impl Number<'_> {
    pub(super) fn set(self, key: &str, text: &str) -> Option<String> {
        match self {
            Self::Rate(rate) => {
                text.clone_into(rate);
                None
            }
            Self::Units(units) => match parse_units(text) {
                Ok(number) => {
                    *units = number;
                    None
                }
                Err(fault) => Some(format!("{key}: {fault}")),
            },
        }
    }
}

/// A date (its midnight in UTC) or an RFC 3339 instant, in nanoseconds since the epoch.
///
/// # Errors
/// The text is neither. The fault says how to write it.
pub fn parse_instant_ns(text: &str) -> Result<u64, String> {
    let instant = text.parse::<jiff::Timestamp>().ok().or_else(|| {
        let date = text.parse::<jiff::civil::Date>().ok()?;
        date.to_zoned_datetime(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    });
    instant
        .and_then(|instant| u64::try_from(instant.as_nanosecond()).ok())
        .ok_or_else(|| format!("{text:?} is no time: write 2027-01-01 or 2027-01-01T12:00:00Z"))
}

/// Units as an operator writes them, or a number, which is how limits are sent to other regions.
pub(crate) fn units<'de, D: de::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number, such as 1200, 50k or 2M")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
            parse_units(text).map_err(E::custom)
        }

        fn visit_u64<E: de::Error>(self, units: u64) -> Result<u64, E> {
            Ok(units)
        }
    }
    deserializer.deserialize_any(Visitor)
}

fn some_units<'de, D: de::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Units(#[serde(deserialize_with = "units")] u64);
    Ok(Option::<Units>::deserialize(deserializer)?.map(|Units(units)| units))
}

impl<'de> Deserialize<'de> for ValueSpec {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The forms with fields.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            ip: Option<Texts>,
            trust: Option<u8>,
            absent: Option<bool>,
        }

        /// A text or a list of texts.
        struct Texts(Vec<String>);

        impl<'de> Deserialize<'de> for Texts {
            fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                match ValueSpec::deserialize(deserializer)? {
                    ValueSpec::Texts(texts) => Ok(Self(texts)),
                    _ => Err(de::Error::custom("`ip` is an address, a network or a list of them")),
                }
            }
        }

        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = ValueSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, a list of values, { ip: networks } or { absent: true }; quotes make any text a value")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ValueSpec, E> {
                Ok(ValueSpec::Texts(vec![text.to_owned()]))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<ValueSpec, E> {
                Ok(ValueSpec::Texts(vec![number.to_string()]))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<ValueSpec, E> {
                Ok(ValueSpec::Texts(vec![number.to_string()]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<ValueSpec, A::Error> {
                let mut all = Vec::new();
                while let Some(Texts(texts)) = items.next_element()? {
                    all.extend(texts);
                }
                Ok(ValueSpec::Texts(all))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ValueSpec, A::Error> {
                match Fields::deserialize(de::value::MapAccessDeserializer::new(map))? {
                    Fields { ip: Some(Texts(ip)), trust, absent: None } => {
                        Ok(ValueSpec::Addresses(NetworksSpec { ip, trust: trust.unwrap_or(1) }))
                    }
                    Fields { ip: None, trust: None, absent: Some(true) } => {
                        Ok(ValueSpec::Absent(AbsentSpec { absent: true }))
                    }
                    _ => Err(de::Error::custom(
                        "write { ip: networks }, { ip: networks, trust: N } or { absent: true }",
                    )),
                }
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
                f.write_str("an entry's key, or { ip: key, v4: bits, v6: bits, trust: N }")
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
    use crate::limit::examples::{bucket, override_with};

    #[test]
    fn ended_overrides_are_dropped() {
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
    fn numbers_in_an_older_notation_are_read_after_modernising() {
        let mut kept = override_with(&[("api_key", "a_b"), ("burst", "1_000"), ("rate", "2_000/s")]);
        if let Some(bucket) = &mut kept.token_bucket {
            bucket.rate = "1_0/s".to_owned();
        }
        assert!(crate::Limit::new(kept.clone()).is_err());
        kept.modernise();
        let limit = crate::Limit::new(kept).expect("a limit");
        assert_eq!(
            (limit.spec.numbers().as_str(), limit.overrides[0].algorithm.budget()),
            ("10/s, burst 120", 1_000)
        );
        assert!(limit.overrides[0].when[0].accepts(b"a_b"), "a value is text");
    }

    #[test]
    fn on_store_loss_is_written_only_if_it_is_not_guard() {
        let of = |on_store_loss| LimitSpec { on_store_loss, ..bucket("60/s", 120) };
        for (on_store_loss, written) in [
            (OnStoreLoss::Guard, None),
            (OnStoreLoss::Closed, Some(r#""on_store_loss":"closed""#)),
            (OnStoreLoss::Open, Some(r#""on_store_loss":"open""#)),
        ] {
            let json = serde_json::to_string(&of(on_store_loss)).expect("text");
            assert_eq!(json.contains("on_store_loss"), written.is_some(), "{json}");
            assert!(written.is_none_or(|written| json.contains(written)), "{json}");
            assert_eq!(serde_json::from_str::<LimitSpec>(&json).expect("a limit"), of(on_store_loss));
        }
        let guarded = serde_json::to_string(&of(OnStoreLoss::Open)).expect("text");
        let fault = serde_json::from_str::<LimitSpec>(&guarded.replace("\"open\"", "\"ajar\"")).unwrap_err();
        assert!(fault.to_string().contains("expected one of `guard`, `closed`, `open`"), "{fault}");
    }

    #[test]
    fn a_unit_is_left_out_when_absent_so_that_older_nodes_read_the_limit() {
        let of = |unit: Option<&str>| LimitSpec { unit: unit.map(str::to_owned), ..bucket("60/s", 120) };
        for (unit, is_written) in [(None, false), (Some("tokens"), true)] {
            let json = serde_json::to_string(&of(unit)).expect("text");
            assert_eq!(json.contains("unit"), is_written, "{json}");
            assert_eq!(serde_json::from_str::<LimitSpec>(&json).expect("a limit"), of(unit));
        }
    }

    #[test]
    fn on_store_loss_does_not_change_a_limits_id() {
        let of = |on_store_loss| {
            crate::Limit::new(LimitSpec { on_store_loss, ..bucket("60/s", 120) }).expect("a limit")
        };
        let (guard, open) = (of(OnStoreLoss::Guard), of(OnStoreLoss::Open));
        assert_eq!(guard.id, open.id, "a change of it keeps the cells");
        assert_ne!(guard, open, "it is a change");
    }
}
