//! Requests whose cells somebody else counts. The node only finds the cells, and says what the counts mean.
//!
//! Only windows with edges that all cells share can be counted so. A hit is counted whether it fits or not.

use std::sync::Arc;

use acequia_limits::{
    Algorithm, CellTag, HashKey, LimitId, Mode, Now, Reason, Request, Verdict, cell::Tagger,
};
use smallvec::SmallVec;

use super::{
    Ask, Asker, HITS_INLINE, Outcome, RequestCheck,
    answer::{Answer, LimitAnswer, decide},
    classed::tag_of_named,
    hit::Hit,
};
use crate::{Catalogue, settings::SETTINGS};

/// The key of the names of cells that somebody else counts: nodes that share nothing else have one name for a cell.
const COUNTED_KEY: HashKey = HashKey(*b"acequia, counted");

/// The cells of a request, and the limits that they belong to.
#[derive(Clone, Debug)]
pub struct CountedRequest {
    /// The cells, each once.
    pub cells: SmallVec<[CountedCell; HITS_INLINE]>,
    /// The limits to which the cells' indexes refer.
    pub catalogue: Arc<Catalogue>,
    unmatched: u64,
}

/// A cell of a request.
#[derive(Clone, Copy, Debug)]
pub struct CountedCell {
    /// The cell's name, the same on every node with the same limits and key.
    pub tag: CellTag,
    /// The units that are to be counted; 0 for a look, or if the request is exempt.
    pub units: u64,
    /// The units that the window has.
    pub budget: u64,
    /// The end of the open window: wall clock, nanoseconds.
    pub ends_ns: u64,
    /// Whether nobody has to be asked, because the limit exempts the request.
    pub is_exempt: bool,
    answer: LimitAnswer,
}

/// What is known of a cell's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellCount {
    /// So many units were counted in the open window, those of the request among them.
    Known(u64),
    /// Nobody can say, so the limit denies.
    Denied,
    /// Nobody can say, and the limit lets the request pass.
    Passed,
}

impl Asker {
    /// Finds the cells that a request hits, for whoever counts them.
    pub fn counted(&mut self, request: &Request<'_>, now: Now, ask: Ask) -> CountedRequest {
        self.load_catalogue();
        let check = RequestCheck {
            node: &self.node,
            catalogue: &self.catalogue,
            request,
            now,
            ask,
            may_decide: true,
        };
        let unmatched = check.gather(request, &mut self.hits);
        let cells = self.hits.iter().map(|hit| {
            let is_counted = ask.charge && hit.charges() && !hit.exempt;
            let ends_ns = match check.global(hit) {
                Algorithm::FixedWindow(window) => window.end_after(now.wall_ns, hit.tag.salt()),
                _ => now.wall_ns,
            };
            CountedCell {
                tag: check.counted_tag(hit),
                units: if is_counted { hit.units } else { 0 },
                budget: hit.number(check.global(hit).budget()),
                ends_ns,
                is_exempt: hit.exempt,
                answer: check.exempt(hit),
            }
        });
        CountedRequest { cells: cells.collect(), catalogue: Arc::clone(&self.catalogue), unmatched }
    }

    /// Answers a request by the counts of its cells, in their order.
    pub fn answer_counted(&mut self, of: &CountedRequest, counts: &[CellCount], now: Now) -> &Answer {
        self.answer = Answer { unmatched: of.unmatched, ..Answer::default() };
        for (cell, count) in of.cells.iter().zip(counts) {
            let mode = of.catalogue.limits[cell.answer.limit as usize].limit.spec.mode;
            self.answer.limits.push(cell.judge(*count, mode, now));
        }
        decide(&mut self.answer, &of.catalogue);
        self.catalogue = Arc::clone(&of.catalogue);
        &self.answer
    }
}

impl RequestCheck<'_, '_> {
    /// The name of a hit's cell. A path's cell is named by the entries that it counts by, and not by its limit: so
    /// counts go on when another entry of the config takes them over, as with envoyproxy/ratelimit.
    fn counted_tag(&self, hit: &Hit) -> CellTag {
        let limit = &self.limit(hit).limit;
        let descriptor = self.request.descriptors().nth(hit.descriptors.trailing_zeros() as usize);
        let Some(descriptor) = descriptor else { return hit.tag };
        if let Some(named) = descriptor.limit.filter(|_| limit.spec.from_callers) {
            // One name on every node: that of the limit stands for its domain and its windows.
            return tag_of_named(&Tagger::new(&COUNTED_KEY, limit.id), named, &descriptor);
        }
        let Some(path) = &limit.path else { return hit.tag };
        let patterns: SmallVec<[String; HITS_INLINE]> =
            path.steps().iter().map(|step| step.shared_value().unwrap_or_default()).collect();
        let mut values: SmallVec<[&[u8]; 16]> = SmallVec::new();
        let period = limit.algorithm.period_ns().to_le_bytes();
        values.extend([limit.spec.domain.as_bytes(), &period[..]]);
        for ((step, pattern), (key, value)) in path.steps().iter().zip(&patterns).zip(descriptor.entries) {
            values.push(key);
            values.push(if step.is_shared { pattern.as_bytes() } else { value });
        }
        Tagger::new(&COUNTED_KEY, LimitId(0)).all(values.into_iter())
    }
}

impl CountedCell {
    fn judge(&self, count: CellCount, mode: Mode, now: Now) -> LimitAnswer {
        if self.is_exempt {
            return self.answer;
        }
        let left_ns = self.ends_ns.saturating_sub(now.wall_ns);
        let (spent, fits) = match count {
            CellCount::Known(spent) if self.units == 0 => (spent, spent < self.budget),
            CellCount::Known(spent) => (spent, spent <= self.budget),
            CellCount::Denied | CellCount::Passed => (self.budget, false),
        };
        let is_known = matches!(count, CellCount::Known(_));
        let retry_after_ns = match (fits, is_known) {
            (true, _) => 0,
            (false, true) => left_ns,
            (false, false) => left_ns.min(SETTINGS.decide.lost_retry_ns),
        };
        let outcome = match (fits || count == CellCount::Passed, mode) {
            (true, _) => Outcome::Allow,
            (false, Mode::Shadow) => Outcome::ShadowDeny,
            (false, _) => Outcome::Deny,
        };
        let reason = match count {
            _ if fits => Reason::WithinLimit,
            CellCount::Known(_) => Reason::OverLimit,
            CellCount::Denied => Reason::Unavailable,
            CellCount::Passed => Reason::Open,
        };
        let mut answer = self.answer;
        answer.late.owed = spent.saturating_sub(self.budget);
        LimitAnswer {
            verdict: Verdict {
                allowed: fits,
                remaining: self.budget.saturating_sub(spent),
                retry_after_ns,
                delay_ns: 0,
                reset_after_ns: left_ns,
            },
            outcome,
            reason,
            is_charged: is_known && self.units > 0,
            ..answer
        }
    }
}
