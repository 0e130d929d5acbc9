//! Finds the limits that a descriptor may match, without asking each limit.
//!
//! Every limit of a domain is filed in one place: under a needed value, under a needed prefix of a value,
//! under a needed key, or, if the limit needs nothing, under "always". A descriptor visits only the places to
//! which its own entries lead. So a thousand limits on a thousand routes cost one search, and only limits
//! that the entries cannot tell apart are tried one by one. Limits with paths are in a tree ([`PathTree`]).

use std::collections::BTreeMap;

use acequia_limits::{
    Descriptor, Limit, Mode, descriptor::CallersLimit, pattern::Pattern, selector::Condition,
};

use smallvec::SmallVec;

use super::{Active, byte_map::ByteMap, paths::PathTree};

/// The limits of a domain, by what they need. The numbers are indexes into the catalogue.
#[derive(Debug, Default)]
pub(crate) struct Index {
    always: Vec<u32>,
    keys: ByteMap<ByKey>,
    /// Limits whose number callers name.
    from_callers: Vec<u32>,
    /// `None` if no limit has a path.
    paths: Option<Box<PathTree>>,
    /// The paths of limits that another shape has replaced. They count beside the others, and hide none of them.
    former: Option<Box<PathTree>>,
}

/// The limits that need a key.
#[derive(Debug, Default)]
struct ByKey {
    /// Limits that match any value.
    any: Vec<u32>,
    /// Limits that need this value.
    literals: ByteMap<Vec<u32>>,
    /// Limits that need this prefix: by length, so that each length costs one search.
    prefixes: BTreeMap<usize, ByteMap<Vec<u32>>>,
}

impl ByKey {
    /// Visits each limit that needs this value.
    #[inline]
    fn visit(&self, value: &[u8], mut visit: impl FnMut(u32)) {
        if let Some(found) = self.literals.get(value) {
            found.iter().copied().for_each(&mut visit);
        }
        for (length, prefixes) in &self.prefixes {
            let Some(prefix) = value.get(..*length) else { break };
            if let Some(found) = prefixes.get(prefix) {
                found.iter().copied().for_each(&mut visit);
            }
        }
    }

    /// Visits each limit that needs this value of a repeated key, and needs none of the key's values in
    /// `before`.
    #[cold]
    fn visit_further<'v>(
        &self,
        value: &[u8],
        before: impl Iterator<Item = &'v [u8]> + Clone,
        visit: &mut impl FnMut(u32),
    ) {
        self.visit(value, |limit| {
            let mut is_visited = false;
            for value in before.clone() {
                self.visit(value, |visited| is_visited |= visited == limit);
            }
            if !is_visited {
                visit(limit);
            }
        });
    }
}

/// The place where a limit is filed.
enum Filing<'a> {
    Always,
    Key(&'a str),
    Values(&'a Condition),
}

impl Index {
    /// Files the limits of one domain. Limits that are off are never found. `is_former`: whether another shape has
    /// replaced a limit.
    pub(crate) fn new<'a>(
        all: impl Iterator<Item = (u32, &'a Limit)> + Clone,
        is_former: impl Fn(u32) -> bool,
    ) -> Self {
        let is_on = |limit: &Limit| limit.spec.mode != Mode::Off;
        let (mut paths, mut former): (Option<Box<PathTree>>, Option<Box<PathTree>>) = (None, None);
        for (number, limit) in all.clone().filter(|(_, limit)| limit.path.is_some()) {
            let tree = if is_former(number) { &mut former } else { &mut paths };
            tree.get_or_insert_default().add(limit, is_on(limit).then_some(number));
        }
        let named = all.clone().filter(|(_, limit)| limit.spec.from_callers && is_on(limit));
        let from_callers = named.map(|(number, _)| number).collect();
        let limits =
            all.filter(|(_, limit)| limit.path.is_none() && !limit.spec.from_callers && is_on(limit));
        let mut needed: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, limit) in limits.clone() {
            for key in keys(limit) {
                *needed.entry(key).or_default() += 1;
            }
        }
        let mut always = Vec::new();
        let mut keys = ByteMap::<ByKey>::default();
        for (number, limit) in limits {
            match place(limit, &needed) {
                Filing::Always => always.push(number),
                Filing::Key(key) => keys.get_or_default(key.as_bytes()).any.push(number),
                Filing::Values(condition) => {
                    let by_key = keys.get_or_default(condition.key.as_bytes());
                    if condition.any.iter().all(|pattern| matches!(pattern, Pattern::Literal(_))) {
                        for pattern in &condition.any {
                            file(&mut by_key.literals, pattern.prefix(), number);
                        }
                    } else {
                        for prefix in shortest_prefixes(condition) {
                            file(by_key.prefixes.entry(prefix.len()).or_default(), prefix, number);
                        }
                    }
                }
            }
        }
        Self { always, keys, from_callers, paths, former }
    }

    /// The limits in force for what a caller names. If there are any for such windows, they apply in the place of all
    /// others. More than one applies while a limit of another shape has replaced its predecessor.
    #[cold]
    pub(crate) fn named(&self, named: CallersLimit, limits: &[Active], wall_ns: u64) -> SmallVec<[u32; 2]> {
        let applies = |number: &&u32| {
            let active = &limits[**number as usize];
            active.is_in_force(wall_ns) && active.limit.is_named(named)
        };
        self.from_callers.iter().filter(applies).copied().collect()
    }

    /// Visits each limit that the descriptor may match, once, unless a caller names one ([`Index::named`]).
    #[inline]
    pub(crate) fn candidates(&self, descriptor: &Descriptor<'_>, mut visit: impl FnMut(u32)) {
        self.always.iter().copied().for_each(&mut visit);
        for tree in [&self.paths, &self.former].into_iter().flatten() {
            tree.find(descriptor.entries).iter().copied().for_each(&mut visit);
        }
        for (place, (key, value)) in descriptor.entries.iter().enumerate() {
            let Some(by_key) = self.keys.get(key) else { continue };
            let earlier = &descriptor.entries[..place];
            if earlier.iter().any(|(earlier, _)| earlier == key) {
                let before = earlier.iter().filter(|(earlier, _)| earlier == key).map(|(_, value)| *value);
                by_key.visit_further(value, before, &mut visit);
            } else {
                by_key.any.iter().copied().for_each(&mut visit);
                by_key.visit(value, &mut visit);
            }
        }
    }
}

fn file(values: &mut ByteMap<Vec<u32>>, value: &str, number: u32) {
    let numbers = values.get_or_default(value.as_bytes());
    if numbers.last() != Some(&number) {
        numbers.push(number);
    }
}

/// The keys that a descriptor must have for a limit to match.
fn keys(limit: &Limit) -> impl Iterator<Item = &str> {
    let present = limit.when.iter().filter(|condition| !condition.is_absent);
    present.map(|c| c.key.as_str()).chain(limit.by.iter().map(|by| by.key.as_str()))
}

/// The condition with the fewest values tells limits apart best; otherwise, the key that the fewest limits
/// need.
fn place<'a>(limit: &'a Limit, needed: &BTreeMap<&str, usize>) -> Filing<'a> {
    // A condition on an address cannot be used, since an address may be written in many ways.
    let telling = |condition: &&Condition| {
        condition.hop().is_none()
            && !condition.any.is_empty()
            && condition.any.iter().all(|pattern| !pattern.prefix().is_empty())
    };
    if let Some(condition) = limit.when.iter().filter(telling).min_by_key(|condition| condition.any.len()) {
        return Filing::Values(condition);
    }
    match keys(limit).min_by_key(|key| needed.get(key).copied().unwrap_or(0)) {
        Some(key) => Filing::Key(key),
        None => Filing::Always,
    }
}

/// The prefixes of a condition, without those that begin with another one, so that a value finds the limit
/// once.
fn shortest_prefixes(condition: &Condition) -> Vec<&str> {
    let mut prefixes: Vec<&str> = condition.any.iter().map(Pattern::prefix).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    let mut kept: Vec<&str> = Vec::new();
    for prefix in prefixes {
        // The prefixes are sorted: a shorter one that begins this prefix was kept just before it.
        if !kept.last().is_some_and(|shorter| prefix.starts_with(shorter)) {
            kept.push(prefix);
        }
    }
    kept
}
