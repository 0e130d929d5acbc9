//! A worker's knowledge of single cells: which are asked for most, and which are denied most. Their names are
//! shown to operators who ask for them, and nowhere else: never in logs, never in metrics.

use acequia_limits::{CellTag, Limit, Now, Request, limit::LimitSpec};
use acequia_node::{Answer, Catalogue, LimitAnswer, Outcome};

use crate::{
    settings::SETTINGS,
    sketch::{CellKeyText, Sketch},
};

/// The cells of every limit, by the limit's slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    limits: Vec<LimitCells>,
    /// When the counts are halved next: steady clock.
    cools_ns: u64,
}

/// The cells of one limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitCells {
    /// The cells that were hit, from one request in `counts.sample` of the settings.
    pub(crate) hottest: Sketch,
    /// The cells of every request that the limit denied, or would deny if it did not only watch.
    pub(crate) offenders: Sketch,
    /// If the limit is a candidate, how it compares with the limit that it may replace.
    pub(crate) candidate: Option<Box<Comparison>>,
}

/// The verdicts of a candidate and of the limit that it may replace, on the requests that hit both.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    /// The specs of both limits: a change of either begins a new comparison.
    between: (LimitSpec, LimitSpec),
    /// The version of the catalogue that was last compared with these specs.
    version: u64,
    /// When the comparison began: wall clock.
    pub(crate) since_wall_ns: u64,
    /// Counts, in the order of [`VERDICTS`].
    pub(crate) verdicts: [u64; 4],
    /// The candidate's cells that denied something which the live limit allowed, since the beginning.
    pub(crate) denied: Sketch,
}

/// The pairs of verdicts, in the order of [`Comparison::verdicts`]; also the words in metrics.
pub(crate) const VERDICTS: [&str; 4] =
    ["both_allow", "only_candidate_denies", "only_live_denies", "both_deny"];

impl Cells {
    /// Counts an answer. An allowed request is counted only if it is `sampled`.
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
            if sampled || is_denied(&limit) {
                self.count(limit, catalogue, request, sampled, now);
            }
        }
        if catalogue.has_candidates {
            self.compare(answer, catalogue, request, now);
        }
    }

    /// Counts the verdicts of candidates and their live limits on a request that hits both.
    #[cold]
    fn compare(&mut self, answer: &Answer, catalogue: &Catalogue, request: &Request<'_>, now: Now) {
        for BothSides { candidate, live, candidate_denies, live_denies } in both_sides(answer, catalogue) {
            let active = &catalogue.limits[candidate as usize];
            let between = [&active.limit, &catalogue.limits[live as usize].limit];
            let cells = self.of_slot(active.slot());
            let comparison = cells.comparison(between, catalogue.version(), now);
            comparison.verdicts[usize::from(candidate_denies) + 2 * usize::from(live_denies)] += 1;
            if candidate_denies && !live_denies {
                for limit in hits_of(answer, candidate).filter(is_denied) {
                    let name = |key: &mut CellKeyText| write_key(key, limit, &active.limit, request);
                    comparison.denied.count(limit.tag, limit.verdict.remaining, name);
                }
            }
        }
    }

    fn of_slot(&mut self, slot: u32) -> &mut LimitCells {
        let slot = slot as usize;
        if self.limits.len() <= slot {
            self.limits.resize_with(slot + 1, LimitCells::default);
        }
        &mut self.limits[slot]
    }

    fn count(
        &mut self,
        limit: &LimitAnswer,
        catalogue: &Catalogue,
        request: &Request<'_>,
        sampled: bool,
        now: Now,
    ) {
        self.cool(now);
        let active = &catalogue.limits[limit.limit as usize];
        let cells = self.of_slot(active.slot());
        let name = |key: &mut CellKeyText| write_key(key, limit, &active.limit, request);
        let remaining = limit.verdict.remaining;
        if sampled {
            cells.hottest.count(limit.tag, remaining, name);
        }
        if is_denied(&limit) {
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
        let half_life_ns = SETTINGS.counts.half_life_ns;
        // The first counts stay whole for a half-life.
        if self.limits.is_empty() {
            self.cools_ns = now.steady_ns.saturating_add(half_life_ns);
            return;
        }
        let times = (now.steady_ns - self.cools_ns) / half_life_ns + 1;
        self.cools_ns = now.steady_ns - (now.steady_ns - self.cools_ns) % half_life_ns + half_life_ns;
        for cells in &mut self.limits {
            cells.hottest.halve(u32::try_from(times).unwrap_or(u32::MAX));
            cells.offenders.halve(u32::try_from(times).unwrap_or(u32::MAX));
        }
    }

    /// The cells of one limit, by its slot, as of now.
    pub(crate) fn of(&mut self, slot: u32, now: Now) -> LimitCells {
        self.cool(now);
        self.limits.get(slot as usize).cloned().unwrap_or_default()
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

/// A hot cell, without its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hot {
    pub(crate) tag: CellTag,
    pub(crate) count: u64,
    pub(crate) remaining: u64,
}

/// The verdicts of a candidate and its live limit on a request that hits both. A limit denies the request if
/// one of its cells does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BothSides {
    /// The candidate's place in [`Catalogue::limits`].
    pub(crate) candidate: u32,
    /// The live limit's place there.
    pub(crate) live: u32,
    pub(crate) candidate_denies: bool,
    pub(crate) live_denies: bool,
}

/// Every candidate that a request hits together with its live limit, once.
pub(crate) fn both_sides<'a>(
    answer: &'a Answer,
    catalogue: &'a Catalogue,
) -> impl Iterator<Item = BothSides> + 'a {
    answer.limits.iter().enumerate().filter_map(|(place, first)| {
        let candidate = first.limit;
        let live = catalogue.limits[candidate as usize].live?;
        let is_first = answer.limits[..place].iter().all(|limit| limit.limit != candidate);
        hits_of(answer, live).next().filter(|_| is_first)?;
        let denies = |limit| hits_of(answer, limit).any(|hit| is_denied(&hit));
        Some(BothSides { candidate, live, candidate_denies: denies(candidate), live_denies: denies(live) })
    })
}

fn hits_of(answer: &Answer, limit: u32) -> impl Iterator<Item = &LimitAnswer> {
    answer.limits.iter().filter(move |hit| hit.limit == limit)
}

fn is_denied(hit: &&LimitAnswer) -> bool {
    matches!(hit.outcome, Outcome::Deny | Outcome::ShadowDeny)
}

fn write_key(key: &mut CellKeyText, hit: &LimitAnswer, limit: &Limit, request: &Request<'_>) {
    // Any descriptor that hits the cell will do: all of them have the same values for it.
    if let Some(descriptor) = request.descriptors().nth(hit.descriptors.trailing_zeros() as usize) {
        key.write(limit, &descriptor);
    }
}

impl LimitCells {
    /// The comparison of a candidate and its live limit.
    fn comparison(&mut self, [candidate, live]: [&Limit; 2], version: u64, now: Now) -> &mut Comparison {
        if let Some(known) = self.candidate.as_deref_mut()
            && known.version != version
        {
            known.version = version;
            if known.between.0 != candidate.spec || known.between.1 != live.spec {
                self.candidate = None;
            }
        }
        self.candidate.get_or_insert_with(|| {
            Box::new(Comparison {
                between: (candidate.spec.clone(), live.spec.clone()),
                version,
                since_wall_ns: now.wall_ns,
                verdicts: [0; 4],
                denied: Sketch::default(),
            })
        })
    }

    /// Adds the counts of another worker. If the two compare different specs, the newer comparison counts.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.hottest.merge(&other.hottest);
        self.offenders.merge(&other.offenders);
        match (&mut self.candidate, &other.candidate) {
            (Some(ours), Some(theirs)) if ours.between == theirs.between => {
                ours.since_wall_ns = ours.since_wall_ns.min(theirs.since_wall_ns);
                ours.verdicts.iter_mut().zip(theirs.verdicts).for_each(|(ours, theirs)| *ours += theirs);
                ours.denied.merge(&theirs.denied);
            }
            (Some(ours), Some(theirs)) if ours.since_wall_ns >= theirs.since_wall_ns => {}
            (ours, Some(theirs)) => *ours = Some(theirs.clone()),
            (_, None) => {}
        }
    }
}
