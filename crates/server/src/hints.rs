//! How long denied requests were told to wait, by the limit that decided and the reason.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::verdict::{NEVER, Reason};
use acequia_node::{Answer, Catalogue};

use crate::{histogram::Histogram, labels::FirstLabels, settings::SETTINGS};

/// Upper bounds of the buckets, in seconds.
pub(crate) const HINT_SECONDS: [f64; 12] =
    [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3_600.0, 21_600.0, 86_400.0];

/// The key by which denials are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Decider {
    /// A limit, by its slot.
    Limit(u32),
    /// No limit decided: the node had no room for what it would have to remember.
    Node,
    /// Any limit beyond those that are counted by name.
    Other,
}

/// One worker's counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints(BTreeMap<(Decider, Reason), Histogram<12>>);

impl Hints {
    /// Counts a denial. `pairs` are the pairs that all workers count by name.
    pub(crate) fn count(&mut self, answer: &Answer, catalogue: &Catalogue, pairs: &Pairs) {
        if answer.retry_after_ns == NEVER {
            return;
        }
        let limit = answer.decisive.map(|place| answer.limits[place].limit);
        let slot = limit.map(|limit| catalogue.limits[limit as usize].slot());
        self.record(slot, answer.reason, answer.retry_after_ns as f64 / 1e9, pairs);
    }

    fn record(&mut self, slot: Option<u32>, reason: Reason, wait_s: f64, pairs: &Pairs) {
        let named = (slot.map_or(Decider::Node, Decider::Limit), reason);
        if let Some(waits) = self.0.get_mut(&named) {
            return waits.record(&HINT_SECONDS, wait_s);
        }
        let has_room = slot.is_none_or(|slot| pairs.takes(&(slot, reason)));
        let decider = if has_room { named.0 } else { Decider::Other };
        self.0.entry((decider, reason)).or_default().record(&HINT_SECONDS, wait_s);
    }

    /// Adds what another worker has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        for (pair, waits) in &other.0 {
            self.0.entry(*pair).or_default().add(waits);
        }
    }

    /// The histograms by the labels of limit and reason, without limits that have left the catalogue.
    pub(crate) fn by_label(&self, catalogue: &Catalogue) -> BTreeMap<(String, &'static str), Histogram<12>> {
        let slots: BTreeSet<u32> = self.0.keys().filter_map(|(decider, _)| decider.slot()).collect();
        let shown = catalogue.limits.iter().filter(|active| slots.contains(&active.slot()));
        let paths: BTreeMap<u32, String> = shown.map(|active| (active.slot(), active.limit.path())).collect();
        let mut all: BTreeMap<_, Histogram<12>> = BTreeMap::new();
        for ((decider, reason), waits) in &self.0 {
            // The other labels have no `/`, and every limit's path has one.
            let limit = match decider {
                Decider::Limit(slot) => paths.get(slot).cloned(),
                Decider::Node => Some("none".to_owned()),
                Decider::Other => Some("other".to_owned()),
            };
            let Some(limit) = limit else { continue };
            // A limit and its successor have one path.
            all.entry((limit, reason.as_str())).or_default().add(waits);
        }
        all
    }
}

impl Decider {
    const fn slot(self) -> Option<u32> {
        match self {
            Self::Limit(slot) => Some(slot),
            Self::Node | Self::Other => None,
        }
    }
}

/// The pairs that are counted by name: callers choose which limits they hit.
pub(crate) type Pairs = FirstLabels<(u32, Reason)>;

/// No pairs yet.
pub(crate) const fn pairs() -> Pairs {
    FirstLabels::new(SETTINGS.counts.hint_pairs_max)
}

#[cfg(test)]
mod tests {
    use acequia_limits::limit::OnStoreLoss;

    use super::*;
    use crate::respond::lost::answer;

    #[test]
    fn the_first_200_pairs_of_limit_and_reason_are_counted_by_name() {
        let (pairs, mut workers) = (pairs(), [Hints::default(), Hints::default()]);
        for worker in &mut workers {
            for slot in 1..=150 {
                worker.record(Some(slot), Reason::OverLimit, 2.0, &pairs);
                worker.record(Some(slot), Reason::Throttled, 2.0, &pairs);
            }
            worker.record(None, Reason::Overflow, 2.0, &pairs);
        }
        let [mut all, second] = workers;
        all.add(&second);
        let counted = |decider, reason| all.0.get(&(decider, reason)).map(|waits| waits.buckets[5]);
        let named = all.0.keys().filter(|(decider, _)| decider.slot().is_some()).count();
        assert_eq!(named, SETTINGS.counts.hint_pairs_max);
        assert_eq!(counted(Decider::Limit(100), Reason::Throttled), Some(2));
        assert_eq!(counted(Decider::Limit(101), Reason::OverLimit), None);
        assert_eq!(counted(Decider::Other, Reason::OverLimit), Some(2 * 50));
        assert_eq!(counted(Decider::Other, Reason::Throttled), Some(2 * 50));
        assert_eq!(counted(Decider::Node, Reason::Overflow), Some(2));
    }

    #[test]
    fn a_denial_is_counted_under_the_limit_that_decided_and_its_reason() {
        let (answer, catalogue) = answer(OnStoreLoss::Closed);
        let (mut hints, pairs) = (Hints::default(), pairs());
        hints.count(&answer, &catalogue, &pairs);
        let gone = catalogue.limits[0].slot() + 1;
        hints.record(Some(gone), Reason::OverLimit, 1.0, &pairs);
        let labels: Vec<_> = hints.by_label(&catalogue).into_keys().collect();
        assert_eq!(labels, [("shop/per-key".to_owned(), answer.reason.as_str())]);
    }
}
