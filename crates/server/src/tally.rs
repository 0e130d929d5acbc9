//! A worker's counts: plain numbers under the worker's own lock, added up on request.

use acequia_api::acequia::v1::Settled;
use acequia_node::{Answer, Catalogue, LimitAnswer, Outcome, Refunded};

use crate::{
    hints::{Hints, Pairs},
    histogram::Histogram,
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
    fn record(&mut self, limit: &LimitAnswer) {
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

    fn add(&mut self, other: &Self) {
        let Self { total, over, near, within, shadow } = other;
        self.total += total;
        self.over += over;
        self.near += near;
        self.within += within;
        self.shadow += shadow;
    }
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

    /// Counts an answer. `pairs` are the pairs that all workers count by name.
    #[inline]
    pub(crate) fn record(&mut self, answer: &Answer, catalogue: &Catalogue, pairs: &Pairs) {
        self.seen += 1;
        if answer.allowed {
            self.allowed += 1;
        } else {
            self.denied += 1;
            self.hints.count(answer, catalogue, pairs);
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
            if active.limit.path.is_some() && limit.outcome != Outcome::Unlimited {
                tally.hits.record(limit);
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
