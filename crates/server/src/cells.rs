//! What a worker knows of single cells: who asks most, and who is denied most. Their names are told to operators who ask for
//! them, and to nobody else: never to logs, never to metrics.

use acequia_limits::{CellTag, Now, Request};
use acequia_node::{Answer, Catalogue, LimitAnswer, Outcome};

use crate::sketch::{CellKeyText, Sketch};

/// What was counted longer ago than this counts half, and so on: who is shown is who is at it now.
pub(crate) const HALF_LIFE_NS: u64 = 60 * 1_000_000_000;

/// The cells of every limit, by the limit's slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    limits: Vec<LimitCells>,
    /// When counts are halved next: steady clock.
    cools_ns: u64,
}

/// The cells of one limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitCells {
    /// Of one request in [`crate::tally::SAMPLE`], those that it hit.
    pub(crate) hottest: Sketch,
    /// Of every request that the limit denied, or would deny if it did not only watch.
    pub(crate) offenders: Sketch,
}

impl Cells {
    /// Counts an answer. Of most that are allowed nothing is counted: those that are not `sampled`.
    #[inline]
    pub(crate) fn record(
        &mut self,
        answer: &Answer,
        catalogue: &Catalogue,
        request: &Request<'_>,
        sampled: bool,
        now: Now,
    ) {
        for limit in &answer.limits {
            let is_denied = matches!(limit.outcome, Outcome::Deny | Outcome::ShadowDeny);
            if sampled || is_denied {
                self.count(limit, catalogue, request, (sampled, is_denied), now);
            }
        }
    }

    fn count(
        &mut self,
        limit: &LimitAnswer,
        catalogue: &Catalogue,
        request: &Request<'_>,
        (sampled, is_denied): (bool, bool),
        now: Now,
    ) {
        self.cool(now);
        let active = &catalogue.limits[limit.limit as usize];
        let slot = usize::from(active.slot());
        if self.limits.len() <= slot {
            self.limits.resize_with(slot + 1, LimitCells::default);
        }
        let cells = &mut self.limits[slot];
        let name = |key: &mut CellKeyText| {
            // Any of those that hit the cell: it counts the same of each.
            let first = limit.descriptors.trailing_zeros() as usize;
            if let Some(descriptor) = request.descriptors().nth(first) {
                key.write(&active.limit, &descriptor);
            }
        };
        let remaining = limit.verdict.remaining;
        if sampled {
            cells.hottest.count(limit.tag, remaining, name);
        }
        if is_denied {
            cells.offenders.count(limit.tag, remaining, name);
        }
    }

    #[inline]
    fn cool(&mut self, now: Now) {
        if now.steady_ns >= self.cools_ns {
            self.halve(now);
        }
    }

    #[cold]
    fn halve(&mut self, now: Now) {
        let times = (now.steady_ns - self.cools_ns) / HALF_LIFE_NS + 1;
        self.cools_ns = now.steady_ns - (now.steady_ns - self.cools_ns) % HALF_LIFE_NS + HALF_LIFE_NS;
        for cells in &mut self.limits {
            cells.hottest.halve(u32::try_from(times).unwrap_or(u32::MAX));
            cells.offenders.halve(u32::try_from(times).unwrap_or(u32::MAX));
        }
    }

    /// The cells of one limit, by its slot, as they are now.
    pub(crate) fn of(&mut self, slot: u16, now: Now) -> LimitCells {
        self.cool(now);
        self.limits.get(usize::from(slot)).cloned().unwrap_or_default()
    }

    /// Adds what the hottest cells of every limit have left, by its slot.
    pub(crate) fn add_hottest(&mut self, all: &mut Vec<Hottest>, now: Now) {
        self.cool(now);
        if all.len() < self.limits.len() {
            all.resize_with(self.limits.len(), Hottest::default);
        }
        for (hottest, cells) in all.iter_mut().zip(&self.limits) {
            for (tag, cell) in cells.hottest.tagged() {
                match hottest.iter_mut().find(|hot| hot.tag == tag) {
                    Some(hot) => {
                        hot.count += cell.count;
                        hot.remaining = hot.remaining.min(cell.remaining);
                    }
                    None => hottest.push(Hot { tag, count: cell.count, remaining: cell.remaining }),
                }
            }
        }
    }
}

/// The cells that a limit is asked for most.
pub(crate) type Hottest = Vec<Hot>;

/// One of them, without its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hot {
    pub(crate) tag: CellTag,
    pub(crate) count: u64,
    pub(crate) remaining: u64,
}

impl LimitCells {
    /// Adds what another worker has counted.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.hottest.merge(&other.hottest);
        self.offenders.merge(&other.offenders);
    }
}
