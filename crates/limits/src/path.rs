//! A descriptor as a path: all its entries, in order.
//!
//! Configs of [envoyproxy/ratelimit](https://github.com/envoyproxy/ratelimit) are trees of descriptors. A request's
//! descriptor walks down the tree, an entry a level, and the limit at the end of the walk applies. At each level an
//! equal value goes before a pattern, and a pattern before a key without a value. Whoever holds the limits of a domain
//! must choose among them; a [`Path`] alone says only whether a descriptor fits.

use serde::{Deserialize, Serialize};

use crate::{Descriptor, pattern::Pattern, selector::By};

/// An entry of `path`: `{ key, value, shared }`.
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
        let steps = steps.iter().map(|StepSpec { key, value, shared }| Step {
            key: key.clone(),
            value: value.as_deref().map(Pattern::new),
            is_shared: *shared,
        });
        Self(steps.collect())
    }

    /// The steps, in order; at least one.
    pub fn steps(&self) -> &[Step] {
        &self.0
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
        StepSpec { key: key.to_owned(), value: value.map(str::to_owned), shared }
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
}
