//! Reads a limit that an operator wrote, and gathers every fault in it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    AddressSpec, BySpec, Charge, ConcurrentSpec, DOMAIN_BYTES_MAX, FixedWindowSpec, KEYS_MAX,
    LeakyBucketSpec, LimitSharing, LimitSpec, Mode, NAME_BYTES_MAX, NETWORKS_MAX, NetworksSpec, OnStoreLoss,
    Override, PATTERNS_MAX, PRIORITIES_MAX, QuotaSpec, SharingSpec, SlidingWindowSpec, Soft, TTL_NS_MAX,
    TTL_NS_MIN, Throttle, ThrottleSpec, TokenBucketSpec, UNIT_BYTES_MAX, UNITS_MAX_OF_CALLERS, ValueSpec,
    WAIT_NS_MAX, WARNINGS_MAX, WINDOW_NS_MIN, parse_instant_ns,
};
use crate::{
    Algorithm, PERIOD_NS_MAX, UNITS_MAX,
    calendar::{Calendar, Period},
    classes::{Classes, percent},
    expect::{CostSpec, Expect, ExpectSpec, ExpectedCost},
    meter::Meter,
    notation::{Rate, format_duration_ns, parse_duration_ns, parse_units},
    path::{Path, StepSpec},
    selector::{By, Condition, Prefix},
    sliding::{
        APPROXIMATE_UNITS_MAX, CONCURRENT_SLOTS, LOG_UNITS_MAX, SLOTS_DEFAULT, SLOTS_MAX, SlidingApproximate,
        SlidingLog, SlidingSlots,
    },
    window::{Edges, FixedWindow},
};

/// The queue of a throttle holds as many requests as the throttle lets pass in this time.
const THROTTLE_QUEUE_NS: u64 = 1_000_000_000;

/// Something in a limit that cannot be enforced, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{what}")]
pub struct Fault {
    /// The field at fault, such as `burst`.
    pub field: String,
    /// The fault, and a way to fix it.
    pub what: String,
}

/// Gathers every fault of a limit, so that an operator can fix them all at once.
#[derive(Default)]
pub(super) struct Faults(pub(super) Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, field: &str, what: String) {
        self.0.push(Fault { field: field.to_owned(), what });
    }

    fn take<T>(&mut self, field: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|what| self.add(field, what)).ok()
    }

    pub(super) fn name(&mut self, field: &str, text: &str) {
        let fits = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '[' | ']');
        let most = if field == "domain" { DOMAIN_BYTES_MAX } else { NAME_BYTES_MAX };
        if text.is_empty() || text.len() > most || !text.chars().all(fits) {
            self.add(
                field,
                format!(
                    "a {field} is 1 to {most} letters, digits and signs, without spaces, quotes and brackets: {text:?}"
                ),
            );
        } else if field == "name" && text.contains('/') {
            self.add(field, format!("a name has no slash, which ends the domain in shop/{text}"));
        }
    }

    /// A unit is a token of structured fields (RFC 9651, section 3.3.4), so that a header needs no escapes.
    pub(super) fn unit(&mut self, unit: Option<&str>) {
        let Some(unit) = unit else { return };
        let is_first = |b: u8| b.is_ascii_alphabetic() || b == b'*';
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&b);
        let is_token = unit.bytes().next().is_some_and(is_first) && unit.bytes().all(fits);
        if !is_token || unit.len() > UNIT_BYTES_MAX {
            self.add(
                "unit",
                format!(
                    "a unit is a word of 1 to {UNIT_BYTES_MAX} letters, digits and signs that begins with a letter, such as tokens \
                     or usd-micro: {unit:?}"
                ),
            );
        }
    }

    pub(super) fn sharing(&mut self, spec: &SharingSpec) -> LimitSharing {
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
        LimitSharing { wait_ns, floor_percent, priority: spec.priority.clone() }
    }

    /// The most units that a cell of `algorithm` may owe.
    pub(super) fn debt(&mut self, spec: &LimitSpec) {
        if spec.debt.is_some_and(|debt| debt > UNITS_MAX) {
            self.add("debt", format!("a debt is 0 to {UNITS_MAX} units: lower it"));
        }
        if spec.charge == Charge::Always && spec.on_store_loss == OnStoreLoss::Open {
            self.add(
                "charge",
                "`always` records what passes, and `on_store_loss: open` lets it pass unrecorded: leave one out"
                    .to_owned(),
            );
        }
    }

    /// What is set apart for requests of cost 0: at most `most`, in units of a request's cost.
    pub(super) fn expect(&mut self, spec: &LimitSpec, expect: &ExpectSpec, most: u64) -> Option<Expect> {
        if spec.concurrent.is_some() {
            self.add("expect", "a request takes its slots at once: leave `expect` out".to_owned());
        } else if spec.charge != Charge::Always {
            self.add(
                "expect",
                "the real cost may be above the hold, and must be recorded: add `charge: always`".to_owned(),
            );
        }
        if spec.classes.is_some() {
            self.add(
                "expect",
                "the real cost does not say which class it belongs to: leave `expect` or `classes` out"
                    .to_owned(),
            );
        }
        let cost = match expect.cost {
            CostSpec::Fixed(cost) => ExpectedCost::Fixed(cost),
            CostSpec::Auto { auto } => {
                if !(auto.quantile > 0.0 && auto.quantile <= 1.0) {
                    self.add("expect", "a quantile is above 0 and at most 1, such as 0.9".to_owned());
                }
                if auto.floor == 0 || auto.floor > auto.cap {
                    self.add("expect", "a floor is at least 1, and at most the cap".to_owned());
                }
                ExpectedCost::Auto(auto)
            }
        };
        if cost.most() == 0 || cost.most() > most {
            self.add("expect", format!("a hold is 1 to {most}, which is all that a cell has: change it"));
        }
        let within_ns = self.take("expect", parse_duration_ns(&expect.within))?;
        if !(TTL_NS_MIN..=TTL_NS_MAX).contains(&within_ns) {
            let (least, longest) = (format_duration_ns(TTL_NS_MIN), format_duration_ns(TTL_NS_MAX));
            let within = &expect.within;
            self.add("expect", format!("a report comes within {least} to {longest}, not {within}"));
        }
        Some(Expect { cost, within_ns })
    }

    /// Whether debts can be carried from one window to the next.
    pub(super) fn carry(&mut self, spec: &LimitSpec, algorithm: Option<&Algorithm>) {
        if spec.concurrent.is_some() || !spec.carry {
            return;
        }
        if let Some(algorithm) = algorithm.filter(|algorithm| !algorithm.carries()) {
            let name = algorithm.name();
            self.add("carry", format!("a {name} forgets no debt, but pays it off: leave `carry` out"));
        }
    }

    pub(super) fn classes(
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

    pub(super) fn soft(&mut self, spec: &LimitSpec, algorithm: &Algorithm) -> Option<Soft> {
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
        // The requests of one second wait in the queue; more are denied.
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

    pub(super) fn conditions(
        &mut self,
        field: &str,
        spec: &BTreeMap<String, ValueSpec>,
        by: &[BySpec],
    ) -> Vec<Condition> {
        if spec.len() > KEYS_MAX {
            self.add(field, format!("more than {KEYS_MAX} keys in one `{field}`"));
        }
        let mut conditions = Vec::new();
        for (key, values) in spec {
            if key.is_empty() {
                self.add(field, format!("an empty key in `{field}`"));
            }
            let counted = by.iter().find(|by| by.key() == key);
            let (patterns, trust) = match (values, counted) {
                (ValueSpec::Absent(_), Some(_)) => {
                    let what = format!("`{field}` wants no {key}, and `by` counts by {key}: leave one out");
                    self.add(field, what);
                    continue;
                }
                (ValueSpec::Absent(_), None) => {
                    conditions.push(Condition::absent(key));
                    continue;
                }
                (ValueSpec::Texts(texts), Some(BySpec::Address(address))) => (texts, Some(address.trust)),
                (ValueSpec::Texts(texts), _) => (texts, None),
                (ValueSpec::Addresses(NetworksSpec { ip, trust }), _) => (ip, Some(*trust)),
            };
            let most = if trust.is_some() { NETWORKS_MAX } else { PATTERNS_MAX };
            if patterns.is_empty() || patterns.len() > most {
                self.add(field, format!("`{field}` {key} needs 1 to {most} values; \"*\" is any value"));
                continue;
            }
            let condition = Condition::new(key, patterns.iter().map(String::as_str));
            let Some(trust) = trust else {
                conditions.push(condition);
                continue;
            };
            let condition = condition.of_addresses(trust);
            if condition.others() > PATTERNS_MAX {
                self.add(
                    field,
                    format!("`{field}` {key} has more than {PATTERNS_MAX} values that are no addresses"),
                );
            }
            if trust == 0 {
                self.add(field, "`trust` counts proxies: at least 1, the one that asks here".to_owned());
            }
            if let (ValueSpec::Addresses(_), Some(what)) = (values, condition.misfit()) {
                self.add(field, format!("`{field}` {key}: {what}"));
            }
            conditions.push(condition);
        }
        conditions
    }

    pub(super) fn by(&mut self, spec: &[BySpec]) -> Vec<By> {
        let mut by = Vec::new();
        let mut seen = BTreeSet::new();
        if spec.len() > KEYS_MAX {
            self.add("by", format!("more than {KEYS_MAX} entries in one `by`"));
        }
        for entry in spec {
            let (key, prefix) = match entry {
                BySpec::Key(key) => (key, None),
                BySpec::Address(AddressSpec { ip, v4, v6, trust }) => {
                    if *trust == 0 {
                        self.add(
                            "by",
                            "`trust` counts proxies: at least 1, the one that asks here".to_owned(),
                        );
                    }
                    if *v4 > 32 || *v6 > 128 {
                        self.add(
                            "by",
                            format!("an IPv4 address has 32 bits and an IPv6 address 128, not {v4} and {v6}"),
                        );
                    }
                    (ip, Some(Prefix { v4: (*v4).min(32), v6: (*v6).min(128), hop: *trust }))
                }
            };
            if key.is_empty() {
                self.add("by", "an empty key in `by`".to_owned());
            }
            if !seen.insert(key.clone()) {
                self.add("by", format!("`by` names {key} twice"));
            }
            by.push(By { key: key.clone(), prefix, place: None });
        }
        by
    }

    /// The path of the descriptors that the limit applies to.
    pub(super) fn path(&mut self, spec: &LimitSpec) -> Option<Path> {
        if spec.path.is_empty() {
            return None;
        }
        if !spec.by.is_empty() || !spec.when.is_empty() || spec.exact {
            self.add(
                "path",
                "a path says all about a descriptor: leave out `when`, `by` and `exact`".to_owned(),
            );
        }
        if spec.path.len() > KEYS_MAX {
            self.add("path", format!("more than {KEYS_MAX} entries in one `path`"));
        }
        for StepSpec { key, value, shared, in_metrics: _ } in &spec.path {
            if key.is_empty() {
                self.add("path", "an empty key in `path`".to_owned());
            }
            if *shared && !value.as_ref().is_some_and(|value| value.contains('*')) {
                self.add("path", format!("{key} is `shared`, but its value has no `*`: leave `shared` out"));
            }
        }
        Some(Path::new(&spec.path))
    }

    /// Whether the limit's verdicts can be weighed as `mode` says, and what it says of other limits is sound.
    pub(super) fn mode(&mut self, spec: &LimitSpec) {
        if spec.mode == Mode::Any && spec.concurrent.is_some() {
            self.add(
                "mode",
                "a request takes its slots at once, from every limit: write mode: enforce".to_owned(),
            );
        } else if spec.mode == Mode::Any && spec.charge == Charge::Together {
            self.add(
                "mode",
                "a request may pass though this limit denies it: add `charge: each` or `charge: always`"
                    .to_owned(),
            );
        }
        if spec.alias.as_ref().is_some_and(|alias| alias.is_empty() || spec.replaces.contains(alias)) {
            self.add("alias", "an alias is not empty, and a limit does not replace itself".to_owned());
        }
        if spec.replaces.iter().any(String::is_empty) || spec.replaces.len() > KEYS_MAX {
            self.add("replaces", format!("`replaces` names 1 to {KEYS_MAX} aliases of other limits"));
        }
        self.callers(spec);
    }

    /// Whether a limit whose number callers name has nothing that depends on one number, or on certain entries.
    fn callers(&mut self, spec: &LimitSpec) {
        let plain = LimitSpec {
            name: spec.name.clone(),
            domain: spec.domain.clone(),
            from_callers: true,
            fixed_window: spec.fixed_window.clone(),
            mode: spec.mode,
            charge: spec.charge,
            cost: spec.cost,
            unit: spec.unit.clone(),
            ..LimitSpec::default()
        };
        let staggers = spec.fixed_window.as_ref().is_none_or(|window| window.stagger);
        if spec.from_callers && (*spec != plain || staggers) {
            let what = "callers name the number of a `fixed_window` without `stagger`, for whole descriptors: keep \
                        `mode`, `charge`, `cost` and `unit`, and leave all else out";
            self.add("from_callers", what.to_owned());
        }
        if spec.from_callers
            && spec.fixed_window.as_ref().is_some_and(|window| window.limit > UNITS_MAX_OF_CALLERS)
        {
            self.add("from_callers", format!("callers name at most {UNITS_MAX_OF_CALLERS}: lower `limit`"));
        }
    }

    pub(super) fn algorithm(&mut self, spec: &LimitSpec) -> Option<Algorithm> {
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
        if let Some(s) = &spec.concurrent {
            found.push(("concurrent", self.concurrent(s)));
        }
        match found.len() {
            0 => {
                self.add(
                    "name",
                    "no algorithm: add one of token_bucket, leaky_bucket, fixed_window, sliding_window, quota, concurrent"
                        .to_owned(),
                );
                None
            }
            1 => found.pop().and_then(|(_, algorithm)| algorithm).map(|it| it.carrying(spec.carry)),
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

    /// Slots are units of a sliding window as long as their time to live.
    fn concurrent(&mut self, spec: &ConcurrentSpec) -> Option<Algorithm> {
        let ttl_ns = self.take("ttl", parse_duration_ns(&spec.ttl))?;
        if !(TTL_NS_MIN..=TTL_NS_MAX).contains(&ttl_ns) {
            let (least, most) = (format_duration_ns(TTL_NS_MIN), format_duration_ns(TTL_NS_MAX));
            let ttl = &spec.ttl;
            self.add("ttl", format!("a slot lives for {least} to {most} unless it is renewed, not {ttl}"));
            return None;
        }
        self.limit(spec.limit)?;
        let slots = (spec.limit > LOG_UNITS_MAX).then_some(CONCURRENT_SLOTS);
        Some(sliding(spec.limit, ttl_ns, slots))
    }

    /// What makes no sense for requests under way.
    pub(super) fn of_concurrent(&mut self, spec: &LimitSpec) {
        if spec.concurrent.is_none() {
            return;
        }
        if spec.charge != Charge::Together {
            self.add(
                "charge",
                "a denied request is not under way, so it takes no slot: leave `charge` out".to_owned(),
            );
        }
        if spec.debt.is_some() {
            self.add("debt", "no report takes a slot, so a cell owes none: leave `debt` out".to_owned());
        }
        if spec.carry {
            self.add("carry", "no report takes a slot, so no debt is carried: leave `carry` out".to_owned());
        }
        if spec.throttle.is_some() {
            self.add(
                "throttle",
                "a throttle slows what is spent over time, not what is under way: leave it out".to_owned(),
            );
        }
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

    pub(super) fn override_of(
        &mut self,
        spec: &LimitSpec,
        fields: &BTreeMap<String, ValueSpec>,
    ) -> Option<Override> {
        let mut numbers = spec.clone();
        let mut when = BTreeMap::new();
        let (mut until_ns, mut why, mut changed) = (None, None, false);
        let (mut author, mut granted) = (None, None);
        let counted = spec.counts_by();
        let counts_by = |name: &str| counted.iter().any(|by| by.key() == name);
        let before = self.0.len();
        for (key, values) in fields {
            let [text] = values.texts() else {
                when.insert(key.clone(), values.clone());
                continue;
            };
            match (key.as_str(), numbers.number(key)) {
                ("until", _) => until_ns = self.take("until", parse_instant_ns(text)),
                ("why", _) => why = Some(text.clone()),
                ("author", _) if !counts_by("author") => author = Some(text.clone()),
                ("granted", _) if !counts_by("granted") => {
                    granted =
                        self.take("granted", parse_units(text).map_err(|what| format!("granted: {what}")));
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
            let by = counted.iter().find(|by| by.key() == key);
            match by {
                _ if is_twice(spec, key) => {
                    self.add(key, format!("`path` has {key} twice, so no override can name it"));
                }
                None => self.add(
                    key,
                    format!(
                        "an override names {key}, which is neither a number of this limit ({}) nor one of its `by`",
                        spec.number_names().join(", ")
                    ),
                ),
                // A cell has one variant, so an override may not tell two values of one cell apart.
                Some(BySpec::Address(AddressSpec { v4, v6, .. })) if (*v4, *v6) != (32, 128) => self.add(
                    key,
                    format!("an override for {key} needs whole addresses: count by v4: 32 and v6: 128"),
                ),
                Some(_) => {}
            }
        }
        if when.is_empty() && !counted.is_empty() {
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
        let when = self.conditions("overrides", &when, &counted);
        let algorithm = if self.0.len() == before { self.algorithm(&numbers) } else { None };
        Some(Override { when, algorithm: algorithm?, until_ns, why, author, granted })
    }
}

/// An exact log for a small limit. Slots for a larger limit, or if the config asks for slots.
fn sliding(limit: u64, window_ns: u64, slots: Option<u32>) -> Algorithm {
    match slots {
        None if limit <= LOG_UNITS_MAX => Algorithm::SlidingLog(SlidingLog { limit, window_ns }),
        slots => {
            Algorithm::SlidingSlots(SlidingSlots { limit, window_ns, slots: slots.unwrap_or(SLOTS_DEFAULT) })
        }
    }
}

/// Whether a path has a key in two places. An override selects cells by the first of them, which may not be in the
/// cell's name.
fn is_twice(spec: &LimitSpec, key: &str) -> bool {
    spec.path.iter().filter(|step| step.key == *key).count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Descriptor,
        expect::AutoSpec,
        limit::{
            Limit, Mode, NoWait,
            examples::{bucket, override_with},
        },
    };

    #[track_caller]
    fn refused(spec: LimitSpec, field: &str, word: &str) {
        let faults = Limit::new(spec).expect_err("a fault");
        assert!(
            faults.iter().any(|fault| fault.field == field && fault.what.contains(word)),
            "no fault in {field} that says {word}: {faults:?}"
        );
    }

    #[test]
    fn a_unit_is_a_token_that_needs_no_escape_in_a_header() {
        let of = |unit: &str| LimitSpec { unit: Some(unit.into()), ..bucket("1/s", 1) };
        let longest = "x".repeat(UNIT_BYTES_MAX);
        for unit in
            ["tokens", "requests", "usd-micro", "content-bytes", "*", "a:b/c", "GB!#$%&'*+-.^_`|~9", &longest]
        {
            assert_eq!(Limit::new(of(unit)).expect(unit).unit(), Some(unit));
        }
        let long = "x".repeat(UNIT_BYTES_MAX + 1);
        for unit in [
            "",
            " ",
            "two words",
            "9s",
            "-a",
            "a\"",
            "a\\",
            "a,b",
            "a;b",
            "a=b",
            "a[b",
            "a@b",
            "µs",
            "a\r\nb",
            &long,
        ] {
            refused(of(unit), "unit", "such as tokens");
        }
        assert_eq!(Limit::new(bucket("1/s", 1)).expect("a limit").unit(), None);
    }

    #[test]
    fn impossible_values_of_a_limit_are_refused() {
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
    fn a_hold_fits_its_limit_and_is_reported_to() {
        let holds = |cost: CostSpec, within: &str| LimitSpec {
            charge: Charge::Always,
            expect: Some(ExpectSpec { cost, within: within.into() }),
            ..bucket("60/s", 120)
        };
        let auto = |quantile, floor, cap| CostSpec::Auto { auto: AutoSpec { quantile, floor, cap } };
        let limit = Limit::new(holds(CostSpec::Fixed(120), "5m")).expect("a limit");
        let expect = limit.expect.expect("holds");
        assert_eq!((expect.cost.most(), expect.within_ns), (120, 300_000_000_000));
        assert!(Limit::new(holds(auto(0.9, 1, 120), "1s")).is_ok());
        for (cost, what) in [
            (CostSpec::Fixed(0), "1 to 120"),
            (CostSpec::Fixed(121), "1 to 120"),
            (auto(0.9, 1, 121), "1 to 120"),
            (auto(0.0, 1, 100), "quantile"),
            (auto(1.1, 1, 100), "quantile"),
            (auto(f64::NAN, 1, 100), "quantile"),
            (auto(0.5, 0, 100), "floor"),
            (auto(0.5, 101, 100), "floor"),
        ] {
            refused(holds(cost, "5m"), "expect", what);
        }
        for within in ["0s", "999ms", "2h", "365d"] {
            refused(holds(CostSpec::Fixed(5), within), "expect", "");
        }
        let once = holds(CostSpec::Fixed(5), "5m");
        refused(LimitSpec { charge: Charge::Each, ..once.clone() }, "expect", "charge: always");
        refused(LimitSpec { cost: Some(30), ..holds(CostSpec::Fixed(5), "5m") }, "expect", "1 to 4");
    }

    #[test]
    fn a_limit_on_requests_under_way_has_slots_that_live_for_a_second_to_an_hour() {
        let concurrent = |limit, ttl: &str| LimitSpec {
            token_bucket: None,
            concurrent: Some(ConcurrentSpec { limit, ttl: ttl.into() }),
            ..bucket("1/s", 1)
        };
        let ids = [3, 1_000].map(|limit| Limit::new(concurrent(limit, "10m")).expect("a limit").id);
        assert_eq!(ids[0], ids[1], "more slots are the same limit");
        let limit = Limit::new(concurrent(1_000, "10m")).expect("a limit");
        assert!(limit.is_concurrent() && limit.kind() == "concurrent");
        assert_eq!(limit.spec.numbers(), "1000 at one time, each for 10m");
        let window = LimitSpec {
            token_bucket: None,
            sliding_window: Some(SlidingWindowSpec {
                limit: 1_000,
                window: "10m".into(),
                slots: None,
                approximate: false,
            }),
            ..bucket("1/s", 1)
        };
        assert_ne!(limit.id, Limit::new(window).expect("a limit").id);
        for ttl in ["999ms", "61m", "365d"] {
            refused(concurrent(3, ttl), "ttl", "1s to 1h");
        }
        refused(concurrent(3, "soon"), "ttl", "duration");
        refused(concurrent(u64::MAX, "10s"), "limit", "at most");
        refused(LimitSpec { charge: Charge::Always, ..concurrent(3, "10s") }, "charge", "takes no slot");
        refused(LimitSpec { debt: Some(1), ..concurrent(3, "10s") }, "debt", "owes none");
        refused(LimitSpec { carry: true, ..concurrent(3, "10s") }, "carry", "takes a slot");
    }

    #[test]
    fn a_path_stands_alone_and_shares_only_patterns() {
        let with = |steps: &[(&str, Option<&str>, bool)]| LimitSpec {
            by: Vec::new(),
            path: steps
                .iter()
                .map(|(key, value, shared)| StepSpec {
                    key: (*key).to_owned(),
                    value: value.map(str::to_owned),
                    shared: *shared,
                    in_metrics: false,
                })
                .collect(),
            ..bucket("1/s", 1)
        };
        let path = with(&[("route", Some("/api/*"), true), ("ip", None, false)]);
        let limit = Limit::new(path.clone()).expect("a limit");
        assert_eq!(limit.by.iter().map(|by| by.key.as_str()).collect::<Vec<_>>(), ["ip"]);
        let ids = [
            path.clone(),
            with(&[("route", Some("/api/*"), false), ("ip", None, false)]),
            with(&[("route", Some("/api/"), false), ("ip", None, false)]),
            with(&[("ip", None, false), ("route", Some("/api/*"), true)]),
            with(&[("route", None, false), ("ip", None, false)]),
            with(&[("route", Some(""), false), ("ip", None, false)]),
        ];
        let ids: BTreeSet<_> = ids.into_iter().map(|spec| Limit::new(spec).expect("a limit").id).collect();
        assert_eq!(ids.len(), 6, "each path has cells of its own");
        refused(LimitSpec { by: vec![BySpec::Key("ip".into())], ..path.clone() }, "path", "leave out");
        refused(LimitSpec { exact: true, ..path.clone() }, "path", "leave out");
        refused(with(&[("", None, false)]), "path", "empty key");
        refused(with(&[("k", Some("v"), true)]), "path", "no `*`");
        refused(with(&[("k", None, true)]), "path", "no `*`");
        refused(with(&[("k", None, false); 17]), "path", "more than 16");
        let over = |key: &str| {
            let fields = [(key, "x"), ("burst", "9")]
                .map(|(k, v)| (k.to_owned(), ValueSpec::Texts(vec![v.to_owned()])));
            vec![fields.into_iter().collect::<BTreeMap<_, _>>()]
        };
        assert!(Limit::new(LimitSpec { overrides: over("ip"), ..path.clone() }).is_ok());
        refused(LimitSpec { overrides: over("route"), ..path }, "route", "neither");
        let twice = with(&[("ip", None, false), ("ip", Some("x*"), true)]);
        refused(LimitSpec { overrides: over("ip"), ..twice }, "ip", "twice");
    }

    #[test]
    fn a_limit_whose_number_callers_name_has_a_window_and_little_else() {
        let window = FixedWindowSpec { limit: 9, window: "1m".to_owned(), stagger: false };
        let staggered = FixedWindowSpec { stagger: true, ..window.clone() };
        let callers = LimitSpec {
            name: "a".to_owned(),
            domain: "d".to_owned(),
            from_callers: true,
            fixed_window: Some(window),
            ..LimitSpec::default()
        };
        let other = LimitSpec { from_callers: false, ..callers.clone() };
        let ids = [callers.clone(), other].map(|spec| Limit::new(spec).expect("a limit").id);
        assert_ne!(ids[0], ids[1], "its cells mean something else");
        for spec in [
            LimitSpec { by: vec![BySpec::Key("k".to_owned())], ..callers.clone() },
            LimitSpec { carry: true, ..callers.clone() },
            LimitSpec { fixed_window: Some(staggered), ..callers.clone() },
            LimitSpec { warn_at: vec![80], ..callers.clone() },
            LimitSpec { from_callers: true, ..bucket("1/s", 1) },
        ] {
            refused(spec, "from_callers", "fixed_window");
        }
    }

    #[test]
    fn a_limit_that_may_be_passed_over_records_what_passes() {
        let any = |charge| LimitSpec { mode: Mode::Any, charge, ..bucket("1/s", 1) };
        assert!(Limit::new(any(Charge::Each)).is_ok() && Limit::new(any(Charge::Always)).is_ok());
        refused(any(Charge::Together), "mode", "charge: each");
        let replaces = |alias: &str, replaces: &[&str]| LimitSpec {
            alias: Some(alias.to_owned()),
            replaces: replaces.iter().map(|name| (*name).to_owned()).collect(),
            ..bucket("1/s", 1)
        };
        assert!(Limit::new(replaces("a", &["b"])).is_ok());
        refused(replaces("a", &["a"]), "alias", "itself");
        refused(replaces("", &["a"]), "alias", "not empty");
        refused(replaces("a", &[""]), "replaces", "aliases");
    }

    #[test]
    fn only_windows_with_fixed_edges_carry_debts() {
        let carries = |spec| LimitSpec { carry: true, token_bucket: None, ..spec };
        let quota = |per: &str| {
            let quota = QuotaSpec { limit: 9, per: per.into(), time_zone: None };
            carries(LimitSpec { quota: Some(quota), ..bucket("1/s", 1) })
        };
        let window = FixedWindowSpec { limit: 9, window: "1s".into(), stagger: false };
        let window = carries(LimitSpec { fixed_window: Some(window), ..bucket("1/s", 1) });
        for spec in [window.clone(), quota("month")] {
            let limit = Limit::new(spec.clone()).expect("a limit");
            assert!(limit.algorithm.carries() && limit.is_durable());
            let plain = Limit::new(LimitSpec { carry: false, ..spec }).expect("a limit");
            assert_eq!((plain.id, plain.algorithm.carries()), (limit.id, false), "one limit");
        }
        refused(LimitSpec { carry: true, ..bucket("1/s", 1) }, "carry", "token_bucket forgets no debt");
        refused(quota("30d"), "carry", "sliding_window forgets no debt");
        let leaky = LeakyBucketSpec { rate: "1/s".into(), queue: 9, no_wait: NoWait::Allow };
        let leaky = LimitSpec { leaky_bucket: Some(leaky), ..bucket("1/s", 1) };
        refused(carries(leaky), "carry", "leaky_bucket forgets no debt");
        for approximate in [false, true] {
            let sliding = SlidingWindowSpec { limit: 9, window: "1s".into(), slots: None, approximate };
            let sliding = carries(LimitSpec { sliding_window: Some(sliding), ..bucket("1/s", 1) });
            refused(sliding, "carry", "sliding_window forgets no debt");
        }
    }

    #[test]
    fn the_sharing_settings_of_a_limit_are_read_and_checked() {
        let sharing = |wait: Option<&str>, floor: Option<&str>, priority: &[&str]| LimitSpec {
            sharing: Some(SharingSpec {
                wait: wait.map(Into::into),
                floor: floor.map(Into::into),
                priority: priority.iter().copied().map(Into::into).collect(),
            }),
            ..bucket("1/s", 1)
        };
        let read = |spec| Limit::new(spec).expect("a limit").sharing;
        assert_eq!(read(sharing(None, None, &[])), LimitSharing::default());
        assert_eq!(read(sharing(Some("0s"), None, &[])).wait_ns, Some(0));
        let priority = vec!["eu".to_owned(), "us".to_owned()];
        assert_eq!(
            read(sharing(Some("50ms"), Some("20%"), &["eu", "us"])),
            LimitSharing { wait_ns: Some(50_000_000), floor_percent: 20, priority }
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
    fn a_candidate_must_be_in_shadow_mode_and_name_another_limit() {
        let candidate =
            |name: &str, mode| LimitSpec { candidate_for: Some(name.into()), mode, ..bucket("1/s", 1) };
        assert!(Limit::new(candidate("live", Mode::Shadow)).is_ok());
        assert!(Limit::new(candidate("live", Mode::Off)).is_ok());
        refused(candidate("live", Mode::Enforce), "candidate_for", "mode: shadow");
        refused(candidate("per-key", Mode::Shadow), "candidate_for", "itself");
    }

    #[test]
    fn contradictory_fields_of_a_limit_are_refused() {
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

    #[test]
    fn an_override_may_name_its_author_and_the_grant() {
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

        // If the limit counts by `author`, the entry selects cells and names no author.
        let by = vec![BySpec::Key("author".into())];
        let limit = Limit::new(LimitSpec { by, ..override_with(&[("author", "ana"), ("burst", "9")]) });
        let made = &limit.expect("a limit").overrides[0];
        assert_eq!((made.author.as_deref(), made.when.len()), (None, 1));
    }

    #[test]
    fn a_limit_with_one_cell_may_have_an_override_with_an_end() {
        let one = |fields: &[(&str, &str)]| LimitSpec { by: vec![], ..override_with(fields) };
        let limit = Limit::new(one(&[("burst", "9"), ("until", "2027-01-01")])).expect("a limit");
        let any = Descriptor::new(&[], None);
        let indexes = [0, u64::MAX].map(|wall_ns| limit.variant_for(&any, wall_ns).index());
        assert_eq!(indexes, [Some(0), None]);
        refused(one(&[("burst", "9")]), "overrides", "needs an `until`");
    }

    #[test]
    fn an_override_without_a_key_or_a_change_is_refused() {
        refused(override_with(&[("api_key", "x")]), "overrides", "changes nothing");
        refused(override_with(&[("rate", "1/s")]), "overrides", "whose");
        refused(override_with(&[("api_key", "x"), ("brust", "5")]), "brust", "neither");
        refused(override_with(&[("api_key", "x"), ("burst", "many")]), "burst", "whole number");
        refused(override_with(&[("api_key", "x"), ("burst", "0")]), "burst", "1 to");
        refused(override_with(&[("api_key", "x"), ("burst", "5"), ("until", "soon")]), "until", "2027");
    }
}
