//! What envoyproxy/ratelimit documents of its config, in the fewest lines: the oracle for imported limits.
//!
//! One difference is built in: a look of 0 hits at a limit with nothing left is over the limit here.

use std::{collections::BTreeMap, fmt::Write as _};

use acequia_api::envoy::service::ratelimit::v3::rate_limit_response::{Code, rate_limit::Unit};

use super::chance::Chance;

/// A descriptor of a config.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    key: &'static str,
    value: &'static str,
    share: bool,
    shadow: bool,
    quota: bool,
    policy: Option<Policy>,
    children: Vec<Self>,
}

#[derive(Clone, Copy, Debug)]
enum Policy {
    Unlimited { replaces: &'static str },
    Limit { requests: u32, unit: Unit, name: &'static str, replaces: &'static str },
}

/// A request's descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) entries: Vec<(&'static str, &'static str)>,
    pub(crate) hits: u64,
}

/// What is answered for a descriptor: a code, what is left, and the limit's name, requests and unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) remaining: u32,
    pub(crate) limit: Option<(String, u32, Unit)>,
}

/// The config of a domain, and its counters.
pub(crate) struct Reference {
    root: Vec<Entry>,
    counters: BTreeMap<String, u64>,
}

const KEYS: [&str; 3] = ["tenant", "path", "user"];
const VALUES: [&str; 9] = ["a", "ab", "abc", "b", "/x", "/x/1", "/x/2", "u1", ""];
const NAMES: [&str; 3] = ["one", "two", "three"];

/// What configs use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    patterns: &'static [&'static str],
    has_quotas: bool,
}

/// Everything that is documented.
pub(crate) const WHOLE: Dialect =
    Dialect { patterns: &["a*", "*b", "*", "/x/*", "*/*", "u*"], has_quotas: true };
/// What builds of January 2026 do as later ones: a pattern ends in its only `*`, and there is no `quota_mode`.
pub(crate) const EARLY: Dialect = Dialect { patterns: &["a*", "ab*", "*", "/x/*", "u*"], has_quotas: false };

impl Entry {
    /// A level of a config, with entries of its own.
    fn level(chance: &mut Chance, dialect: Dialect, depth: usize) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for _ in 0..chance.below(5) + 1 {
            let entry = Self::new(chance, dialect, depth);
            if !all.iter().any(|other| (other.key, other.value) == (entry.key, entry.value)) {
                all.push(entry);
            }
        }
        all
    }

    fn new(chance: &mut Chance, dialect: Dialect, depth: usize) -> Self {
        let value = match chance.below(10) {
            0..3 => "",
            3..7 => chance.of(&VALUES[..8]),
            _ => chance.of(dialect.patterns),
        };
        let replaces = if chance.below(10) == 0 { chance.of(&NAMES) } else { "" };
        let named = if chance.below(6) == 0 { chance.of(&NAMES) } else { "" };
        let policy = match chance.below(10) {
            0..2 => None,
            2 => Some(Policy::Unlimited { replaces }),
            _ => Some(Policy::Limit {
                requests: chance.below(40) as u32,
                unit: chance.of(&[Unit::Week, Unit::Month, Unit::Year]),
                name: if named == replaces { "" } else { named },
                replaces,
            }),
        };
        Self {
            key: chance.of(&KEYS),
            value,
            share: value.contains('*') && chance.below(2) == 0,
            shadow: false,
            quota: false,
            policy,
            children: if depth < 3 && chance.below(3) == 0 {
                Self::level(chance, dialect, depth + 1)
            } else {
                Vec::new()
            },
        }
        .with_modes(chance, dialect)
    }

    fn with_modes(self, chance: &mut Chance, dialect: Dialect) -> Self {
        let mode = chance.below(10);
        Self { shadow: mode == 0, quota: mode > 7 && dialect.has_quotas, ..self }
    }

    /// Whether an entry of a request has this value.
    fn is_literally(&self, key: &str, value: &str) -> bool {
        self.key == key && !self.value.is_empty() && !self.value.contains('*') && self.value == value
    }

    fn fits(&self, key: &str, value: &str) -> bool {
        self.key == key && self.value.contains('*') && is_like(self.value.as_bytes(), value.as_bytes())
    }

    fn write(&self, text: &mut String, indent: usize) {
        let Self { key, value, share, shadow, quota, policy, children } = self;
        let pad = " ".repeat(indent);
        let _ = writeln!(text, "{pad}- key: {key}");
        if !value.is_empty() {
            let _ = writeln!(text, "{pad}  value: '{value}'");
        }
        for (name, is_on) in [("share_threshold", share), ("shadow_mode", shadow), ("quota_mode", quota)] {
            if *is_on {
                let _ = writeln!(text, "{pad}  {name}: true");
            }
        }
        match policy {
            None => {}
            Some(Policy::Unlimited { replaces }) => {
                let _ = writeln!(text, "{pad}  rate_limit:\n{pad}    unlimited: true");
                write_replaced(text, replaces, indent);
            }
            Some(Policy::Limit { requests, unit, name, replaces }) => {
                let unit = unit.as_str_name();
                let _ = writeln!(
                    text,
                    "{pad}  rate_limit:\n{pad}    unit: {unit}\n{pad}    requests_per_unit: {requests}"
                );
                if !name.is_empty() {
                    let _ = writeln!(text, "{pad}    name: {name}");
                }
                write_replaced(text, replaces, indent);
            }
        }
        if !children.is_empty() {
            let _ = writeln!(text, "{pad}  descriptors:");
            children.iter().for_each(|child| child.write(text, indent + 2));
        }
    }
}

fn write_replaced(text: &mut String, replaces: &str, indent: usize) {
    if !replaces.is_empty() {
        let _ = writeln!(text, "{}    replaces: [{{ name: {replaces} }}]", " ".repeat(indent));
    }
}

/// Whether a value is like a pattern, in which `*` stands for any bytes.
fn is_like(pattern: &[u8], value: &[u8]) -> bool {
    match pattern.split_first() {
        None => value.is_empty(),
        Some((b'*', rest)) => (0..=value.len()).any(|skipped| is_like(rest, &value[skipped..])),
        Some((byte, rest)) => {
            value.split_first().is_some_and(|(first, value)| first == byte && is_like(rest, value))
        }
    }
}

/// What a descriptor of a request leads to: a limit's entry, and its counter.
struct Found<'a> {
    entry: &'a Entry,
    counter: String,
}

impl Reference {
    /// A config drawn by chance.
    pub(crate) fn new(chance: &mut Chance, dialect: Dialect) -> Self {
        Self { root: Entry::level(chance, dialect, 1), counters: BTreeMap::new() }
    }

    /// The config as a file of a domain.
    pub(crate) fn yaml(&self, domain: &str) -> String {
        let mut text = format!("domain: {domain}\ndescriptors:\n");
        self.root.iter().for_each(|entry| entry.write(&mut text, 2));
        text
    }

    /// A request drawn by chance. No two of its descriptors have one counter.
    pub(crate) fn request(&self, chance: &mut Chance) -> Vec<Asked> {
        let mut all: Vec<Asked> = Vec::new();
        let mut counters = Vec::new();
        for _ in 0..chance.below(3) + 1 {
            let entries = (0..chance.below(3) + 1).map(|_| (chance.of(&KEYS), chance.of(&VALUES))).collect();
            let hits = if chance.below(6) == 0 { chance.below(4) as u64 } else { 1 };
            let counter = self.find(&entries).map(|found| found.counter);
            if !counters.contains(&counter) {
                all.push(Asked { entries, hits });
                counters.push(counter);
            }
        }
        all
    }

    fn find(&self, entries: &Vec<(&str, &str)>) -> Option<Found<'_>> {
        let mut level = &self.root;
        let mut found = None;
        let mut counter = String::new();
        for (key, value) in entries {
            let by_value = || level.iter().find(|entry| entry.is_literally(key, value));
            let by_pattern = || level.iter().find(|entry| entry.fits(key, value));
            let by_key = || level.iter().find(|entry| entry.key == *key && entry.value.is_empty());
            let entry = by_value().or_else(by_pattern).or_else(by_key)?;
            let counted = if entry.share { entry.value } else { value };
            let _ = write!(counter, "{key}|{counted}|");
            level = &entry.children;
            found = Some(entry);
        }
        found.filter(|entry| entry.policy.is_some()).map(|entry| Found { entry, counter })
    }

    /// Whether a descriptor looks at a limit that has nothing left.
    pub(crate) fn looks_at_nothing(&self, asked: &Asked) -> bool {
        let Some(Found { entry, counter }) = self.find(&asked.entries) else { return false };
        let Some(Policy::Limit { requests, .. }) = entry.policy else { return false };
        asked.hits == 0 && self.counters.get(&counter).copied().unwrap_or_default() == u64::from(requests)
    }

    /// Gives hits back.
    pub(crate) fn give_back(&mut self, asked: &Asked) {
        let counter = self.find(&asked.entries).map(|found| found.counter);
        if let Some(spent) = counter.and_then(|counter| self.counters.get_mut(&counter)) {
            *spent = spent.saturating_sub(asked.hits);
        }
    }

    /// Counts a request: the code for all of it, and the status of each descriptor.
    pub(crate) fn ask(&mut self, request: &[Asked]) -> (Code, Vec<Status>) {
        let nothing = Status { code: Code::Ok, remaining: 0, limit: None };
        let mut counters = std::mem::take(&mut self.counters);
        let found: Vec<Option<Found<'_>>> = request.iter().map(|asked| self.find(&asked.entries)).collect();
        let replaced: Vec<&str> = found.iter().flatten().map(|found| found.entry.replaces()).collect();
        let (mut over, mut quotas, mut quotas_over) = (false, 0, 0);
        let mut statuses = Vec::new();
        for (asked, found) in request.iter().zip(&found) {
            let Some(Found { entry, counter }) = found else {
                statuses.push(nothing.clone());
                continue;
            };
            let Some(Policy::Limit { requests, unit, name, .. }) = entry.policy else {
                statuses.push(Status { remaining: u32::MAX, ..nothing.clone() });
                continue;
            };
            if !name.is_empty() && replaced.contains(&name) {
                statuses.push(nothing.clone());
                continue;
            }
            let spent = counters.entry(counter.clone()).or_default();
            *spent += asked.hits;
            let is_over = *spent > u64::from(requests) || (asked.hits == 0 && *spent == u64::from(requests));
            let code = if is_over && !entry.shadow { Code::OverLimit } else { Code::Ok };
            if entry.quota {
                quotas += 1;
                quotas_over += u32::from(code == Code::OverLimit);
            } else {
                over |= code == Code::OverLimit;
            }
            let remaining = u64::from(requests).saturating_sub(*spent) as u32;
            statuses.push(Status { code, remaining, limit: Some((name.to_owned(), requests, unit)) });
        }
        let is_over = over || (quotas > 0 && quotas == quotas_over);
        self.counters = counters;
        (if is_over { Code::OverLimit } else { Code::Ok }, statuses)
    }
}

impl Entry {
    fn replaces(&self) -> &'static str {
        match self.policy {
            Some(Policy::Unlimited { replaces } | Policy::Limit { replaces, .. }) => replaces,
            None => "",
        }
    }
}
