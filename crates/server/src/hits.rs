//! Hits of limits with paths, as envoyproxy/ratelimit counts them.

use std::collections::BTreeMap;

use acequia_limits::{
    Request,
    path::{Path, StatNames},
};
use acequia_node::{LimitAnswer, Outcome};

use crate::{labels::FirstLabels, settings::SETTINGS};

/// Hits of a limit with a path, as envoyproxy/ratelimit counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HitTally {
    /// All hits.
    pub(crate) total: u64,
    /// Hits that were beyond the limit.
    pub(crate) over: u64,
    /// Hits that were within the limit, but beyond [`NEAR_PERCENT`] of it.
    pub(crate) near: u64,
    /// Hits of requests that were within the limit.
    pub(crate) within: u64,
    /// Hits beyond a limit that only watches.
    pub(crate) shadow: u64,
}

/// A limit is near from this part of it on, in percent.
const NEAR_PERCENT: u64 = 80;

impl HitTally {
    /// The counts, in the order of their fields.
    pub(crate) const fn all(&self) -> [u64; 5] {
        [self.total, self.over, self.near, self.within, self.shadow]
    }

    #[cold]
    pub(crate) fn record(&mut self, limit: &LimitAnswer) {
        let hits = if limit.is_charged { limit.units } else { 0 };
        let (budget, left) = (limit.budget, limit.verdict.remaining);
        let is_over = matches!(limit.outcome, Outcome::Deny | Outcome::ShadowDeny);
        // What was left before a hit that did not fit is within the limit.
        let over = if is_over { hits.min(limit.late.owed.saturating_add(limit.late.unrecorded)) } else { 0 };
        let spent = budget.saturating_sub(left);
        let near_from = budget.saturating_mul(NEAR_PERCENT) / 100;
        let near = spent.saturating_sub(near_from).min(hits - over);
        self.total += hits;
        self.over += over;
        self.near += near;
        self.within += if is_over { 0 } else { hits };
        self.shadow += if limit.outcome == Outcome::ShadowDeny { over } else { 0 };
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let Self { total, over, near, within, shadow } = other;
        self.total += total;
        self.over += over;
        self.near += near;
        self.within += within;
        self.shadow += shadow;
    }
}

/// Hits of limits whose metrics show values, by the limit's slot and its name with these values.
#[derive(Clone, Debug, Default)]
pub(crate) struct HitsByValue(BTreeMap<(u32, StatNames), HitTally>);

/// The names that are counted, as callers choose them. Hits of all others count for the limit.
pub(crate) type Names = FirstLabels<(u32, StatNames)>;

/// No names yet.
pub(crate) const fn names() -> Names {
    FirstLabels::new(SETTINGS.counts.stat_names_max)
}

impl HitsByValue {
    /// The counts of a hit with its values; `None` if it counts for the limit alone. `descriptors` are those of the
    /// request that hit the cell, as a set of bits. If there are several, the first one counts.
    #[inline]
    pub(crate) fn of(
        &mut self,
        names: &Names,
        slot: u32,
        path: &Path,
        descriptors: u64,
        request: &Request<'_>,
    ) -> Option<&mut HitTally> {
        if !path.is_in_metrics() {
            return None;
        }
        let descriptor = request.descriptors().nth(descriptors.trailing_zeros() as usize)?;
        let bytes: usize = descriptor.entries.iter().map(|(_, value)| value.len()).sum();
        if bytes > SETTINGS.counts.stat_values_bytes_max {
            return None;
        }
        let name = (slot, path.stat_names_of(&descriptor));
        if !self.0.contains_key(&name) && !names.takes(&name) {
            return None;
        }
        Some(self.0.entry(name).or_default())
    }

    /// Adds what another worker has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        for (name, hits) in &other.0 {
            self.0.entry(name.clone()).or_default().add(hits);
        }
    }

    /// The counts of a limit by its names, by its slot.
    pub(crate) fn by_name(&self, slot: u32) -> impl Iterator<Item = (&StatNames, &HitTally)> {
        let first = StatNames { first: String::new(), further: String::new() };
        let from = self.0.range((slot, first)..);
        from.take_while(move |((of, _), _)| *of == slot).map(|((_, name), hits)| (name, hits))
    }
}

#[cfg(test)]
mod tests {
    use acequia_limits::path::StepSpec;

    use super::*;

    #[test]
    fn callers_add_a_bounded_number_of_short_names() {
        let step = |in_metrics| {
            let step = StepSpec { key: "user".to_owned(), value: None, shared: false, in_metrics };
            Path::new(&[step])
        };
        let (names, mut workers) = (names(), [HitsByValue::default(), HitsByValue::default()]);
        let mut count = |worker: usize, path: &Path, user: &str| {
            let request = Request::new("shop", &[("user", user)]);
            let hits = workers[worker].of(&names, 7, path, 1, &request);
            hits.map(|hits| hits.total += 1).is_some()
        };
        assert!(!count(0, &step(false), "a"), "metrics show no values");
        let path = step(true);
        let long = "x".repeat(SETTINGS.counts.stat_values_bytes_max);
        assert!(count(0, &path, &long) && !count(0, &path, &format!("{long}x")));
        for number in 1..SETTINGS.counts.stat_names_max {
            assert!(count(number % 2, &path, &number.to_string()));
        }
        assert!(!count(0, &path, "one more") && !count(1, &path, "one more"));
        assert!(count(1, &path, "2") && count(0, &path, "2"), "both workers count a name");
        let [mut all, second] = workers;
        all.add(&second);
        assert_eq!(all.by_name(7).count(), SETTINGS.counts.stat_names_max);
        assert_eq!((all.by_name(6).count(), all.by_name(8).count()), (0, 0));
        let user = |name: &str| all.by_name(7).find(|(of, _)| of.first == name).map(|(_, hits)| hits.total);
        assert_eq!((user("user_1"), user("user_2")), (Some(1), Some(3)));
    }
}
