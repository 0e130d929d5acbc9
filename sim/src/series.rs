//! A run over time, for plots and tables. Sampling is optional and works from outside, so a watched run is
//! the same as an unwatched one.
//!
//! For each limit one cell is watched. If the limit has several cells, it is the cell that was asked the most
//! until the first sample with any question.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use acequia_limits::{Descriptor, Limit, RATE_PARTS};
use acequia_rights::MemberId;

use crate::{
    NAMES,
    bound::Bound,
    checks::Check,
    demand::Question,
    ns,
    run::{Counts, Record, run_with},
    scenarios::Plan,
    schedule::Place,
    trace::Trace,
    world::{Answer, World, WorldError},
};

/// Time between two samples.
pub const EVERY: Duration = Duration::from_millis(100);
/// Shares are given in thousandths.
pub const MILLI: u64 = 1_000;

/// A run over time. Sample `n` shows the state at the time [`EVERY`] `* n`.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// One cell for each limit that can be judged from outside, in the order of the config.
    pub cells: Vec<CellSeries>,
    /// Whether each region's process ran, for each region and sample.
    pub is_up: Vec<Vec<bool>>,
    /// Bytes that regions had sent each other, from the start until each sample.
    pub bytes: Vec<u64>,
    /// Every answer, in the order in which they came.
    pub answers: Vec<Answer>,
    /// How far from true time a wall may be, by the config of all regions.
    pub clock_error_ns: u64,
    /// When the run ended.
    pub ended: Duration,
}

/// One cell over time.
#[derive(Clone, Debug)]
pub struct CellSeries {
    /// The limit.
    pub limit: Limit,
    /// The cell's keys and values among the limit's cells. Empty if it is the only cell.
    pub by: Vec<(String, String)>,
    /// The bound of the limit at the end.
    pub bound: Bound,
    /// Units that the limit had allowed from the start until each sample.
    pub allowed: Vec<u64>,
    /// What each region might use, for each region and sample; `None` while it was down.
    pub shares: Vec<Vec<Option<Share>>>,
    /// Loans given, and returned or ended, as the lender counts them.
    pub loans: Vec<Loan>,
    /// What each region has lent to each other one, at the last sample.
    lent: BTreeMap<(Place, Place), u64>,
}

/// What a region might use of a cell, in thousandths: of units a second if the cell has a rate, and else of
/// units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The region's own part.
    pub own_milli: u64,
    /// The own part with borrowed and without lent units.
    pub effective_milli: u64,
}

/// A loan that came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The sample at which it was seen first.
    pub at: Duration,
    /// The lender.
    pub lender: Place,
    /// The borrower.
    pub borrower: Place,
    /// The amount, in the unit of [`Share`].
    pub milli: u64,
    /// Whether units went back to the lender.
    pub is_return: bool,
}

/// Runs a plan, and watches it. The run is the same as an unwatched one.
///
/// # Errors
/// The world cannot be made, or a host ended it.
pub fn run_watched(plan: Plan, seed: u64, trace: &Trace) -> Result<(Record, Series), WorldError> {
    let series = Arc::<Mutex<Series>>::default();
    let watch = Watch { series: Arc::clone(&series), trace: trace.clone(), until: plan.duration };
    let record = run_with(plan, seed, trace, vec![Box::new(watch)])?;
    let series = std::mem::take(&mut *series.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((record, series))
}

/// Watches as a check after every step, and finds nothing.
#[derive(Debug)]
struct Watch {
    series: Arc<Mutex<Series>>,
    trace: Trace,
    /// When callers stop asking.
    until: Duration,
}

impl Check for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        if world.elapsed() > self.until {
            return Ok(());
        }
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        if series.is_up.is_empty() {
            *series = Series::new(world);
        }
        series.observe(world, answers, self.trace.totals().packet_bytes);
        Ok(())
    }

    fn end(&mut self, _: &World) -> Result<(), String> {
        Ok(())
    }
}

impl Series {
    fn new(world: &World) -> Self {
        let regions = world.regions().len();
        let watched = world.limits().into_iter().filter_map(|limit| {
            Some(CellSeries {
                bound: Bound::of(&limit.spec)?,
                limit,
                by: Vec::new(),
                allowed: Vec::new(),
                shares: vec![Vec::new(); regions],
                loans: Vec::new(),
                lent: BTreeMap::new(),
            })
        });
        Self {
            cells: watched.collect(),
            is_up: vec![Vec::new(); regions],
            clock_error_ns: world.clock().error_ns,
            ..Self::default()
        }
    }

    /// Takes a sample, if one is due. `answers` came in the last step, and `bytes` were sent until its end.
    fn observe(&mut self, world: &World, answers: &[Answer], bytes: u64) {
        self.answers.extend_from_slice(answers);
        self.ended = world.elapsed();
        while self.at(self.bytes.len()) <= self.ended {
            self.bytes.push(bytes);
            for (region, is_up) in world.regions().iter().zip(&mut self.is_up) {
                is_up.push(region.process().is_some());
            }
            for cell in &mut self.cells {
                if !cell.limit.by.is_empty() && cell.by.is_empty() {
                    cell.by = most_asked(&cell.limit, &self.answers).unwrap_or_default();
                }
                cell.sample(world);
            }
        }
    }

    /// When a sample was taken.
    pub fn at(&self, sample: usize) -> Duration {
        EVERY * sample as u32
    }

    /// Units of a cell that a region's callers had been allowed until each sample.
    pub fn admitted(&self, cell: &CellSeries, place: Place) -> Vec<u64> {
        let mut admitted = vec![0; self.bytes.len()];
        for answer in self.answers.iter().filter(|answer| answer.place == place) {
            let sample = answer.answered.as_millis().div_ceil(EVERY.as_millis()) as usize;
            if let Some(units) = admitted.get_mut(sample) {
                *units += cell.passed(answer);
            }
        }
        running_sum(&mut admitted);
        admitted
    }

    /// The answers to a region's callers in each stretch of time, by the time of the question.
    pub fn answered(&self, place: Place, stretch: Duration) -> Vec<Counts> {
        let stretches = self.ended.as_micros().div_ceil(stretch.as_micros()) as usize;
        let mut counts = vec![Counts::default(); stretches];
        for answer in self.answers.iter().filter(|answer| answer.place == place) {
            let at = (answer.asked.as_micros() / stretch.as_micros()) as usize;
            if let Some(counts) = counts.get_mut(at) {
                counts.count(answer);
            }
        }
        counts
    }

    /// When a region's process did not run, as far as samples show.
    pub fn down(&self, place: Place) -> Vec<(Duration, Duration)> {
        let mut times: Vec<(Duration, Duration)> = Vec::new();
        for (sample, is_up) in self.is_up[place].iter().enumerate().skip(1) {
            let (before, at) = (self.at(sample - 1), self.at(sample));
            match times.last_mut() {
                Some((_, until)) if !is_up && *until == before => *until = at,
                _ if !is_up => times.push((before, at)),
                _ => {}
            }
        }
        times
    }
}

impl CellSeries {
    /// Units of this cell that passed with an answer.
    pub fn passed(&self, answer: &Answer) -> u64 {
        let charged =
            answer.reply.passed().unwrap_or(&[]).iter().find(|(name, _)| *name == self.limit.spec.name);
        charged.filter(|_| self.is_of(&answer.question)).map_or(0, |(_, units)| *units)
    }

    /// Whether a question asks for units of this cell.
    pub fn is_asked(&self, question: &Question) -> bool {
        cell_of(&self.limit, question).is_some_and(|by| by == self.by)
    }

    /// Whether a question that the limit applies to is counted in this cell.
    fn is_of(&self, question: &Question) -> bool {
        self.by.iter().all(|own| question.entries.contains(own))
    }

    fn sample(&mut self, world: &World) {
        let at = world.elapsed();
        let mut lent = BTreeMap::new();
        let mut bound: Option<Bound> = None;
        let entries: Vec<_> = self.by.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())).collect();
        let values = Descriptor::new(&entries, None);
        for (place, region) in world.regions().iter().enumerate() {
            let process = region.process();
            let seen = process.as_ref().and_then(|process| {
                let catalogue = process.node.catalogue();
                let is_it = |spec: &str| spec == self.limit.spec.name;
                let active = catalogue.limits.iter().find(|active| is_it(&active.limit.spec.name))?;
                let numbers = Bound::of(&active.limit.spec)?;
                bound = Some(bound.map_or(numbers, |bound| bound.or_more(numbers)));
                let cell = process.node.cell_named(active.limit.id, &values, process.clock.now())?;
                Some((cell.view, numbers))
            });
            let Some((view, numbers)) = seen else {
                self.shares[place].push(None);
                // Nobody can say what became of the loans of a region that is down: they stay as they were.
                lent.extend(self.lent.iter().filter(|((lender, _), _)| *lender == place));
                continue;
            };
            let milli = |part: acequia_limits::Part| match numbers {
                Bound::Bucket { rate, .. } => u64::from(part.rate) * rate * MILLI / u64::from(RATE_PARTS),
                Bound::Window { .. } => part.units * MILLI,
            };
            let share = Share {
                own_milli: milli(view.holding.standing),
                effective_milli: milli(view.holding.effective),
            };
            self.shares[place].push(Some(share));
            for loan in view.loans.iter().filter(|loan| loan.is_lent) {
                if let Some(borrower) = place_of(loan.peer.member) {
                    *lent.entry((place, borrower)).or_default() += milli(loan.part);
                }
            }
        }
        self.record_loans(at, lent);
        self.count_allowed(at, bound.unwrap_or(self.bound));
    }

    /// Records which loans came and went since the last sample.
    fn record_loans(&mut self, at: Duration, lent: BTreeMap<(Place, Place), u64>) {
        let pairs: Vec<_> = self.lent.keys().chain(lent.keys()).copied().collect();
        for pair in pairs.into_iter().collect::<std::collections::BTreeSet<_>>() {
            let of = |loans: &BTreeMap<_, u64>| loans.get(&pair).copied().unwrap_or(0);
            let (before, now, (lender, borrower)) = (of(&self.lent), of(&lent), pair);
            if before != now {
                let (milli, is_return) = (now.abs_diff(before), now < before);
                self.loans.push(Loan { at, lender, borrower, milli, is_return });
            }
        }
        self.lent = lent;
    }

    /// Adds what the numbers in force now allow to what was allowed before.
    fn count_allowed(&mut self, at: Duration, bound: Bound) {
        let (now_ns, before_ns) = (ns(at), ns(at.saturating_sub(EVERY)));
        let allowed = match (self.allowed.last(), self.bound, bound) {
            (None, ..) => bound.allows_until(now_ns),
            (Some(last), Bound::Bucket { burst: before, .. }, Bound::Bucket { burst, .. }) => {
                last + bound.allows_until(now_ns) - bound.allows_until(before_ns)
                    + burst.saturating_sub(before)
            }
            (Some(last), Bound::Window { limit: before, .. }, Bound::Window { limit, .. })
                if bound.window_at(now_ns) == bound.window_at(before_ns) =>
            {
                last + limit.saturating_sub(before)
            }
            (Some(last), ..) => last + bound.allows_until(now_ns) - bound.allows_until(before_ns),
        };
        self.allowed.push(allowed);
        self.bound = bound;
    }
}

/// The cell of a limit that the most units were asked of.
fn most_asked(limit: &Limit, answers: &[Answer]) -> Option<Vec<(String, String)>> {
    let mut asked: BTreeMap<Vec<(String, String)>, u64> = BTreeMap::new();
    for answer in answers {
        if let Some(by) = cell_of(limit, &answer.question) {
            *asked.entry(by).or_default() += answer.question.cost;
        }
    }
    let most = asked.iter().max_by_key(|(by, units)| (**units, std::cmp::Reverse(*by)))?;
    Some(most.0.clone())
}

/// The cell of a limit in which a question is counted, by keys and values; `None` if the limit does not
/// apply.
pub fn cell_of(limit: &Limit, question: &Question) -> Option<Vec<(String, String)>> {
    let applies = question.with(|descriptor| limit.when.iter().all(|condition| condition.holds(descriptor)));
    if !applies {
        return None;
    }
    let value = |key: &str| question.entries.iter().find(|(own, _)| own == key).cloned();
    limit.by.iter().map(|by| value(&by.key)).collect()
}

fn place_of(region: MemberId) -> Option<Place> {
    NAMES.iter().position(|name| MemberId::named(name) == region)
}

/// Replaces each count by the sum of all counts up to it.
pub(crate) fn running_sum(counts: &mut [u64]) {
    let mut sum = 0;
    for count in counts {
        sum += *count;
        *count = sum;
    }
}
