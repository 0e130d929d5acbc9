//! A worker's counts: plain numbers under the worker's own lock, added up on request.

use acequia_api::acequia::v1::Settled;
use acequia_limits::Request;
use acequia_node::{Answer, Catalogue, Outcome, Refunded};

use crate::{
    hints::{self, Hints},
    histogram::Histogram,
    hits::{self, HitTally, HitsByValue},
    settings::SETTINGS,
    unmatched,
};

/// Upper bounds of the buckets for the time that a decision takes, in seconds.
pub(crate) const DECISION_SECONDS: [f64; 12] =
    [2.5e-7, 5e-7, 1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 1e-4, 5e-4, 1e-3, 1e-2, 1e-1];

/// Everything that one worker has counted since it started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// By the limit's slot.
    pub(crate) limits: Vec<LimitTally>,
    /// Hits by the values that metrics show.
    pub(crate) hits: HitsByValue,
    /// Waits that denied requests were told.
    pub(crate) hints: Hints,
    pub(crate) decision: Histogram<12>,
    /// Requests allowed and denied.
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Requests that were refused as malformed.
    pub(crate) bad_requests: u64,
    /// Requests that waited for units from elsewhere: those that passed then, and those that did not.
    pub(crate) waited: [u64; 2],
    /// Requests that were denied at once, because too many waited.
    pub(crate) crowded: u64,
    /// Descriptors that no limit counted.
    pub(crate) unmatched: u64,
    /// Requests that no limit matched.
    pub(crate) unmatched_requests: unmatched::Counts,
    /// Requests whose name was answered before.
    pub(crate) repeats: u64,
    /// Outcomes of settlements, in the order of [`SETTLED`].
    pub(crate) settled: [u64; 5],
    /// What proxies said of charges that changed nothing, in the order of [`Ignored::ALL`].
    pub(crate) ignored: [u64; 3],
    seen: u64,
}

/// What all workers count by name, as callers choose it.
#[derive(Debug)]
pub(crate) struct Labels {
    /// The pairs of limit and reason whose waits are counted.
    hinted: hints::Pairs,
    /// The names of limits with the values of requests.
    stat_names: hits::Names,
}

impl Labels {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self { hinted: hints::pairs(), stat_names: hits::names() }
    }
}

/// Why something that a proxy said of a charge changed nothing. The proxy is told nothing: a client may have
/// chosen the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ignored {
    /// The text is no id of a charge.
    Malformed,
    /// The node that made the charge could not be told.
    Untold,
    /// Hits came back without an id, and nothing takes such hits.
    Nameless,
}

impl Ignored {
    /// Every reason.
    pub(crate) const ALL: [Self; 3] = [Self::Malformed, Self::Untold, Self::Nameless];

    /// The reason in metrics.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Untold => "untold",
            Self::Nameless => "nameless",
        }
    }
}

/// Outcomes of the requests that a limit matched.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitTally {
    /// Counts by [`outcome_place`].
    pub(crate) outcomes: [u64; 4],
    /// Units of the requests that it allowed.
    pub(crate) units: u64,
    /// Units that were given back.
    pub(crate) refunded: u64,
    /// Counts as envoyproxy/ratelimit has them, if the limit has a path.
    pub(crate) hits: HitTally,
}

/// The words for outcomes in metrics, in the order of [`outcome_place`].
pub(crate) const OUTCOMES: [&str; 4] = ["allow", "deny", "shadow_deny", "unlimited"];

/// The outcomes of a settlement, in the order of their counts.
pub(crate) const SETTLED: [Settled; 5] =
    [Settled::Done, Settled::Before, Settled::Lapsed, Settled::Unknown, Settled::Forwarded];

const fn outcome_place(outcome: Outcome) -> usize {
    match outcome {
        Outcome::Allow => 0,
        Outcome::Deny => 1,
        Outcome::ShadowDeny => 2,
        Outcome::Unlimited => 3,
    }
}

impl Tally {
    /// Whether the next decision is timed.
    #[inline]
    pub(crate) fn is_sampled(&self) -> bool {
        self.seen.is_multiple_of(SETTINGS.counts.sample)
    }

    /// Counts an answer. `labels` are what all workers count by name.
    #[inline]
    pub(crate) fn record(
        &mut self,
        answer: &Answer,
        catalogue: &Catalogue,
        request: &Request<'_>,
        labels: &Labels,
    ) {
        self.seen += 1;
        if answer.allowed {
            self.allowed += 1;
        } else {
            self.denied += 1;
            self.hints.count(answer, catalogue, &labels.hinted);
        }
        self.unmatched += u64::from(answer.unmatched.count_ones());
        for limit in &answer.limits {
            let active = &catalogue.limits[limit.limit as usize];
            let slot = active.slot() as usize;
            if self.limits.len() <= slot {
                self.limits.resize_with(slot + 1, LimitTally::default);
            }
            let tally = &mut self.limits[slot];
            tally.outcomes[outcome_place(limit.outcome)] += 1;
            if answer.allowed && limit.outcome == Outcome::Allow {
                tally.units += limit.units;
            }
            if let Some(path) = active.limit.path.as_ref().filter(|_| limit.outcome != Outcome::Unlimited) {
                let by_value =
                    self.hits.of(&labels.stat_names, active.slot(), path, limit.descriptors, request);
                by_value.unwrap_or(&mut tally.hits).record(limit);
            }
        }
    }

    /// Counts a settlement, and the units that came back by it.
    pub(crate) fn settle(&mut self, word: Settled, refunded: &[Refunded]) {
        if let Some(place) = SETTLED.iter().position(|settled| *settled == word) {
            self.settled[place] += 1;
        }
        self.refund(refunded);
    }

    /// Counts units that came back.
    pub(crate) fn refund(&mut self, refunded: &[Refunded]) {
        for Refunded { slot, units, .. } in refunded {
            let slot = *slot as usize;
            if self.limits.len() <= slot {
                self.limits.resize_with(slot + 1, LimitTally::default);
            }
            self.limits[slot].refunded += units;
        }
    }

    /// Adds what another worker has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        if self.limits.len() < other.limits.len() {
            self.limits.resize_with(other.limits.len(), LimitTally::default);
        }
        for (ours, theirs) in self.limits.iter_mut().zip(&other.limits) {
            for (ours, theirs) in ours.outcomes.iter_mut().zip(theirs.outcomes) {
                *ours += theirs;
            }
            ours.units += theirs.units;
            ours.refunded += theirs.refunded;
            ours.hits.add(&theirs.hits);
        }
        self.hits.add(&other.hits);
        self.hints.add(&other.hints);
        self.decision.add(&other.decision);
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.bad_requests += other.bad_requests;
        self.unmatched += other.unmatched;
        self.unmatched_requests.add(&other.unmatched_requests);
        self.waited.iter_mut().zip(other.waited).for_each(|(ours, theirs)| *ours += theirs);
        self.crowded += other.crowded;
        self.repeats += other.repeats;
        self.settled.iter_mut().zip(other.settled).for_each(|(ours, theirs)| *ours += theirs);
        self.ignored.iter_mut().zip(other.ignored).for_each(|(ours, theirs)| *ours += theirs);
    }
}
