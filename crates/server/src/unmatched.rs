//! Requests that no limit matches: whether they pass, how many each domain has, and a line in the log for an
//! operator who misspelt a name.

use std::collections::BTreeMap;

use acequia_limits::limit::DOMAIN_BYTES_MAX;
use serde::Deserialize;
use tokio::time::Instant;
use tracing::warn;

use crate::{labels::FirstLabels, settings::SETTINGS};

/// The label of all other domains.
const OTHER: &str = "other";

/// The verdict on a request that no limit matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoMatch {
    /// The request passes.
    #[default]
    Allow,
    /// The request is denied with the reason `no-match`.
    Deny,
}

/// The verdicts on such requests, by domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoMatches {
    /// For domains that no limit has.
    pub unknown_domain: NoMatch,
    /// For domains that are named here.
    pub domains: BTreeMap<String, NoMatch>,
}

impl NoMatches {
    /// The verdict on a request of a domain. `has_limits`: whether any limit has the domain.
    pub(crate) fn of(&self, domain: &[u8], has_limits: bool) -> NoMatch {
        let named = std::str::from_utf8(domain).ok().and_then(|domain| self.domains.get(domain));
        match named {
            Some(no_match) => *no_match,
            None if has_limits => NoMatch::Allow,
            None => self.unknown_domain,
        }
    }
}

/// One worker's counts of such requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    domains: BTreeMap<Vec<u8>, u64>,
    other: u64,
}

impl Counts {
    /// Counts a request. `names` are the domains that all workers count by name.
    pub(crate) fn count(&mut self, domain: &[u8], names: &Names) {
        match self.domains.get_mut(domain) {
            Some(count) => *count += 1,
            None if can_be_named(domain) && names.takes(domain) => {
                self.domains.insert(domain.to_vec(), 1);
            }
            None => self.other += 1,
        }
    }

    /// Adds what another worker has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        for (domain, count) in &other.domains {
            *self.domains.entry(domain.clone()).or_default() += count;
        }
        self.other += other.other;
    }

    /// The domain that had most requests since an earlier look, and how many; `None` if there were no
    /// requests.
    fn grown_most_since(&self, before: &Self) -> Option<(u64, String)> {
        let before = before.by_domain().collect::<BTreeMap<String, u64>>();
        let since = |(domain, count): (String, u64)| {
            (count.saturating_sub(before.get(&domain).copied().unwrap_or(0)), domain)
        };
        self.by_domain().map(since).max().filter(|(requests, _)| *requests > 0)
    }

    /// The counts by the shown name of each domain. No name comes twice.
    pub(crate) fn by_domain(&self) -> impl Iterator<Item = (String, u64)> {
        let named = self.domains.iter().map(|(domain, count)| (domain.escape_ascii().to_string(), *count));
        named.chain((self.other > 0).then(|| (OTHER.to_owned(), self.other)))
    }
}

/// The domains that are counted by name, as callers choose them.
pub(crate) type Names = FirstLabels<Vec<u8>>;

/// No domains yet.
pub(crate) const fn names() -> Names {
    FirstLabels::new(SETTINGS.counts.domains_max)
}

/// Whether a domain can be counted by name. No limit has a longer domain, and [`OTHER`] means all others.
fn can_be_named(domain: &[u8]) -> bool {
    domain.len() <= DOMAIN_BYTES_MAX && domain != OTHER.as_bytes()
}

/// The counts and the time of the last line in the log.
#[derive(Debug)]
pub(crate) struct ToldUnmatched {
    counts: Counts,
    next: Instant,
}

impl ToldUnmatched {
    /// Nothing was logged yet.
    pub(crate) fn new() -> Self {
        Self { counts: Counts::default(), next: Instant::now() }
    }

    /// Logs a line if there were such requests since the last line, at most once in `unmatched_told_every`. `count`
    /// says what all workers have counted.
    pub(crate) fn tell(&mut self, count: impl FnOnce() -> Counts) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        let counts = count();
        let Some((most, domain)) = counts.grown_most_since(&self.counts) else { return };
        self.next = now + SETTINGS.counts.unmatched_told_every;
        self.counts = counts;
        warn!(domain, requests = most, "no limit is about some requests: `acequia explain` says why");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hundred_domains_are_counted_by_name() {
        let (names, mut workers) = (super::names(), [Counts::default(), Counts::default()]);
        for worker in &mut workers {
            for number in 0..150 {
                worker.count(format!("d{number:03}").as_bytes(), &names);
            }
            worker.count(&[b'x'; 1_000], &names);
        }
        let [mut all, second] = workers;
        all.add(&second);
        let by_domain: Vec<_> = all.by_domain().collect();
        assert_eq!(by_domain.len(), SETTINGS.counts.domains_max + 1);
        assert!(
            by_domain[..SETTINGS.counts.domains_max]
                .iter()
                .all(|(domain, count)| domain.starts_with('d') && *count == 2)
        );
        assert_eq!(by_domain[SETTINGS.counts.domains_max], (OTHER.to_owned(), 102));
    }

    #[test]
    fn a_domain_named_other_is_counted_with_all_others() {
        let (names, mut counts) = (super::names(), Counts::default());
        counts.count(b"other", &names);
        let before = counts.clone();
        counts.count(b"shop", &names);
        counts.count(&[b'x'; 1_000], &names);
        counts.count(&[b'y'; 1_000], &names);
        assert_eq!(counts.by_domain().collect::<Vec<_>>(), [("shop".to_owned(), 1), ("other".to_owned(), 3)]);
        assert_eq!(counts.grown_most_since(&before), Some((2, "other".to_owned())));
        assert_eq!(counts.grown_most_since(&counts), None);
    }

    #[test]
    fn a_domains_own_no_match_setting_overrides_the_default() {
        let domains =
            BTreeMap::from([("shop".to_owned(), NoMatch::Deny), ("bank".to_owned(), NoMatch::Allow)]);
        let all = NoMatches { unknown_domain: NoMatch::Deny, domains };
        for (domain, has_limits, becomes) in [
            ("shop", true, NoMatch::Deny),
            ("shop", false, NoMatch::Deny),
            ("bank", false, NoMatch::Allow),
            ("shpo", false, NoMatch::Deny),
            ("other", true, NoMatch::Allow),
        ] {
            assert_eq!(all.of(domain.as_bytes(), has_limits), becomes, "{domain}");
        }
        assert_eq!(NoMatches::default().of(b"\xff", false), NoMatch::Allow);
    }
}
