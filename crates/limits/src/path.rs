//! A descriptor as a path: all its entries, in order.
//!
//! Configs of [envoyproxy/ratelimit](https://github.com/envoyproxy/ratelimit) are trees of descriptors. A request's
//! descriptor walks down the tree, an entry a level, and the limit at the end of the walk applies. At each level an
//! equal value goes before a pattern, and a pattern before a key without a value. Whoever holds the limits of a domain
//! must choose among them; a [`Path`] alone says only whether a descriptor fits.

use serde::{Deserialize, Serialize};

use crate::{Descriptor, pattern::Pattern, selector::By};

/// An entry of `path`: `{ key, value, shared, in_metrics }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepSpec {
    /// The entry's key.
    pub key: String,
    /// The entry's value, in which `*` stands for any bytes. Every value fits if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Whether all values that fit `value` share one cell. Without it, each value has its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Whether metrics show each value that fits, as of literal ones. Without it, or if `shared`, they show `value`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_metrics: bool,
}

/// A path's name in envoyproxy/ratelimit's metrics.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatNames {
    /// The first step's name.
    pub first: String,
    /// The names of all others, joined by dots; empty if there are none.
    pub further: String,
}

impl StatNames {
    fn of(mut names: impl Iterator<Item = String>) -> Self {
        let first = names.next().unwrap_or_default();
        let further: Vec<String> = names.collect();
        Self { first, further: further.join(".") }
    }
}

/// The entries that a descriptor must have: these, and no others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<Step>);

/// One entry of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The entry's key.
    pub key: String,
    /// The pattern of its value. `None` if every value fits.
    pub value: Option<Pattern>,
    /// Whether all values that fit the pattern share one cell.
    pub is_shared: bool,
    /// Whether metrics show each value that fits.
    pub is_in_metrics: bool,
}

impl Step {
    /// Whether an entry fits.
    pub fn fits(&self, key: &[u8], value: &[u8]) -> bool {
        self.key.as_bytes() == key && self.value.as_ref().is_none_or(|pattern| pattern.matches(value))
    }

    /// Whether each value has a cell of its own.
    fn is_counted(&self) -> bool {
        match &self.value {
            None => true,
            Some(Pattern::Glob(_)) => !self.is_shared,
            Some(Pattern::Literal(_)) => false,
        }
    }

    /// The pattern whose values share one cell, as text.
    pub fn shared_value(&self) -> Option<String> {
        self.value.as_ref().filter(|_| self.is_shared).map(ToString::to_string)
    }

    /// The step's name in that service's metrics: `key_value`, or `key`.
    pub fn stat_name(&self) -> String {
        match &self.value {
            Some(pattern) => format!("{}_{pattern}", self.key),
            None => self.key.clone(),
        }
    }

    /// Like [`Step::stat_name`], for an entry's value that metrics show. Bytes that are no UTF-8 become U+FFFD.
    fn stat_name_of(&self, value: &[u8]) -> String {
        if self.is_in_metrics && !value.is_empty() {
            return format!("{}_{}", self.key, String::from_utf8_lossy(value));
        }
        self.stat_name()
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.value {
            Some(pattern) => write!(f, "{}={pattern}", self.key),
            None => f.write_str(&self.key),
        }
    }
}

impl Path {
    /// A path, as a config writes it.
    pub fn new(steps: &[StepSpec]) -> Self {
        let steps = steps.iter().map(|StepSpec { key, value, shared, in_metrics }| Step {
            key: key.clone(),
            value: value.as_deref().map(Pattern::new),
            is_shared: *shared,
            is_in_metrics: *in_metrics && !*shared,
        });
        Self(steps.collect())
    }

    /// The steps, in order; at least one.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Whether metrics show values of any step.
    pub fn is_in_metrics(&self) -> bool {
        self.0.iter().any(|step| step.is_in_metrics)
    }

    /// The path's name in that service's metrics: the first step's, and those of all others, joined by dots.
    pub fn stat_names(&self) -> StatNames {
        StatNames::of(self.0.iter().map(Step::stat_name))
    }

    /// Like [`Path::stat_names`], for the values of a descriptor that fits.
    pub fn stat_names_of(&self, descriptor: &Descriptor<'_>) -> StatNames {
        StatNames::of(
            self.0.iter().zip(descriptor.entries).map(|(step, (_, value))| step.stat_name_of(value)),
        )
    }

    /// Whether a descriptor has these entries, in this order, and no others.
    pub fn fits(&self, descriptor: &Descriptor<'_>) -> bool {
        self.0.len() == descriptor.entries.len() && self.misfit(descriptor).is_none()
    }

    /// The first step that the entry in its place does not fit, and its place from 0.
    pub fn misfit(&self, descriptor: &Descriptor<'_>) -> Option<(usize, &Step)> {
        let entries = descriptor.entries;
        let has =
            |place: usize, step: &Step| entries.get(place).is_some_and(|(key, value)| step.fits(key, value));
        self.0.iter().enumerate().find(|(place, step)| !has(*place, step))
    }

    /// The entries that the limit counts by: each value without a pattern, or with one that is not shared.
    pub(crate) fn by(&self) -> Vec<By> {
        let counted = self.0.iter().enumerate().filter(|(_, step)| step.is_counted());
        counted.map(|(place, step)| By { key: step.key.clone(), prefix: None, place: Some(place) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(key: &str, value: Option<&str>, shared: bool) -> StepSpec {
        StepSpec { key: key.to_owned(), value: value.map(str::to_owned), shared, in_metrics: true }
    }

    #[test]
    fn a_path_fits_all_entries_of_a_descriptor_in_order() {
        let path = Path::new(&[
            step("tenant", Some("gold"), false),
            step("route", Some("/api/*"), false),
            step("ip", None, false),
        ]);
        for (entries, fits) in [
            (&[("tenant", "gold"), ("route", "/api/x"), ("ip", "")][..], true),
            (&[("tenant", "gold"), ("route", "/api/x")], false),
            (&[("tenant", "gold"), ("route", "/api/x"), ("ip", "1"), ("ip", "1")], false),
            (&[("tenant", "iron"), ("route", "/api/x"), ("ip", "1")], false),
            (&[("tenant", "gold"), ("route", "/web"), ("ip", "1")], false),
            (&[("route", "/api/x"), ("tenant", "gold"), ("ip", "1")], false),
        ] {
            let entries: Vec<(&[u8], &[u8])> =
                entries.iter().map(|(k, v)| (k.as_bytes(), v.as_bytes())).collect();
            assert_eq!(path.fits(&Descriptor::new(&entries, None)), fits, "{entries:?}");
        }
    }

    #[test]
    fn a_path_counts_by_the_values_that_its_limit_leaves_open() {
        let path = Path::new(&[
            step("a", Some("1"), false),
            step("b", None, false),
            step("b", Some("x*"), false),
            step("c", Some("y*"), true),
        ]);
        let counted: Vec<(String, Option<usize>)> =
            path.by().into_iter().map(|by| (by.key, by.place)).collect();
        assert_eq!(counted, [("b".to_owned(), Some(1)), ("b".to_owned(), Some(2))]);
    }

    #[test]
    fn metrics_show_values_of_steps_that_say_so() {
        let mut steps = [
            step("a", Some("1"), false),
            step("b", None, false),
            step("b", Some("x*"), false),
            step("c", Some("y*"), true),
        ];
        let name = |steps: &[StepSpec], entries: &[(&[u8], &[u8])]| {
            let path = Path::new(steps);
            let StatNames { first, further } = path.stat_names_of(&Descriptor::new(entries, None));
            (path.is_in_metrics(), format!("{first} {further}"))
        };
        let entries: [(&[u8], &[u8]); 4] = [(b"a", b"1"), (b"b", b"2"), (b"b", b"x\xff"), (b"c", b"y1")];
        assert_eq!(name(&steps, &entries), (true, "a_1 b_2.b_x\u{fffd}.c_y*".to_owned()));
        steps.iter_mut().for_each(|step| step.in_metrics = false);
        assert_eq!(name(&steps, &entries), (false, "a_1 b.b_x*.c_y*".to_owned()));
        assert_eq!(name(&[step("b", None, false)], &[(b"b", b"")]), (true, "b ".to_owned()));
    }
}
