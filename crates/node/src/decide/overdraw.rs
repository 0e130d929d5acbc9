//! Records hits that do not fit: a cost that was spent, and the hits of limits that say `charge: always`.
//!
//! A request that may still wait records nothing: it is asked again ([`Overdraft::Later`]). What is recorded
//! only adds to what its own cell has spent, so it gives nobody a right ([`acequia_limits::debt`]).

use std::sync::atomic::Ordering;

use acequia_limits::{Charge, Reason, Verdict, algorithm::State, verdict::NEVER};

use super::{
    Overdraft, RequestCheck,
    answer::{Answer, LimitAnswer},
    classed::ProbedCell,
    hit::{CellSource, Hit},
};
use crate::cell::{overflow::Overflow, shard::Cells};

impl RequestCheck<'_, '_> {
    /// Whether a hit is recorded though its limit denies it. Never for a lease.
    #[inline]
    pub(super) fn is_overdrawn(&self, hit: &Hit, answer: &Answer, number: usize) -> bool {
        let is_always = || self.limit(hit).limit.spec.charge == Charge::Always;
        (self.ask.overdraft == Overdraft::Spent || is_always()) && self.records(hit, answer, number)
    }

    #[cold]
    fn records(&self, hit: &Hit, answer: &Answer, number: usize) -> bool {
        let limit = &answer.limits[number];
        // With `Later`, only a limit that watches records at once: the request does not wait.
        let is_asked = self.ask.overdraft != Overdraft::Later || answer.allowed;
        // What was spent of a window that the clock has left is not known.
        let is_known = !limit.verdict.allowed && limit.reason != Reason::Clock;
        // A denied request is not under way, so it holds nothing.
        let is_spent = self.ask.charge && hit.charges() && !hit.exempt && !self.ask.holds && !hit.is_hold();
        is_asked && is_known && is_spent
    }

    /// Records a hit that does not fit. Returns the batch that must be on disk first, or 0.
    #[cold]
    pub(super) fn overdraw(
        &self,
        hit: &Hit,
        initial: Option<State>,
        cells: &mut Cells,
        shared: Option<&mut Overflow>,
        limit: &mut LimitAnswer,
    ) -> u64 {
        let (active, salt) = (self.limit(hit), hit.tag.salt());
        let Some(ProbedCell { algorithm, state, .. }) = self.seen(hit, initial.as_ref(), cells) else {
            return 0;
        };
        let debt_max = match hit.place {
            // The debt of one key would deny all others.
            CellSource::Shared => 0,
            _ => active.limit.debt_max(limit.budget),
        };
        let mut spent = match hit.named_here() {
            None => algorithm.spend(state, self.now, hit.units, salt, debt_max),
            Some(here) => algorithm.spend_of(here, state, self.now, hit.units, salt, debt_max),
        };
        if active.durable && self.node.is_journal_down() {
            // Rows that nobody waits for must not pile up while the disk fails.
            spent.recorded = 0;
        }
        let mut after = state.to_vec();
        algorithm.charge_heap(&mut after, self.now, spent.recorded, salt);
        let least = if hit.units > hit.most_of(limit.budget) { 1 } else { hit.units };
        let verdict = algorithm.probe(&after, self.now, least, salt);
        let left = ProbedCell { algorithm, state: &after, leased: 0 };
        let verdict = hit.left_by_others(&left, least, verdict, self.now);
        limit.late.owed = hit.owed(algorithm, &after, self.now);
        limit.verdict = Verdict {
            remaining: verdict.remaining,
            reset_after_ns: verdict.reset_after_ns,
            retry_after_ns: match limit.expected_wait_ns {
                // What the hit leaves to others may never be there beside it.
                0 if verdict.retry_after_ns < NEVER => verdict.retry_after_ns,
                // Units may come from elsewhere before.
                _ => limit.verdict.retry_after_ns,
            },
            ..limit.verdict
        };
        limit.late.unrecorded = hit.units - spent.recorded;
        active.overdrawn.fetch_add(spent.overdrawn, Ordering::Relaxed);
        if spent.recorded == 0 {
            return 0;
        }
        limit.is_charged = true;
        let batch = self.charge(hit, spent.recorded, initial, 0, cells, shared);
        if let CellSource::At(place) = hit.place
            && let Some(account) = cells.account_mut(place)
        {
            account.note_overdrawn(spent.beyond(hit.units));
        }
        if let Some(soft) = &active.limit.soft {
            self.note_use(hit, soft, 0, cells);
        }
        batch
    }
}
