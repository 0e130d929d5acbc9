//! Holds are kept: what requests cost that began with cost 0, up to their holds, is within the limit. A request counts
//! in the window in which it began: with its hold until its cost is reported, and with its real cost from then on. A
//! request whose gateway has died counts until its hold lapses, at the earliest. The part of a cost beyond the hold,
//! and a cost that is reported late, are within no limit: they count on both sides, so on none here.
//!
//! The check knows only what gateways know, and takes the lower number where they cannot know. If reports name no
//! charge, requests may count for each other. A request of a window may then count in an earlier window, for one that
//! was open when the window began.
//!
//! A cost counts once. When all faults are over, the units of dead gateways are used again.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use acequia_limits::{
    Limit,
    expect::{Expect, ExpectedCost},
};

use super::{
    Check,
    budgets::{Budgets, Numbers},
    never_over::cell_name,
};
use crate::{
    ns,
    scenarios::Plan,
    series::cell_of,
    world::{Answer, EPOCH_S, Reply, Settlement, World},
};

/// How long regions may need after the last fault until all of a limit can be used.
const HEALS: Duration = Duration::from_secs(4);
const SECOND_NS: u64 = 1_000_000_000;

/// Counts what requests hold, and what they have cost.
#[derive(Debug)]
pub struct HoldsKept {
    limits: Vec<Watched>,
    /// The charges whose real cost a node said to count.
    counted: BTreeSet<String>,
    repeats: u64,
}

#[derive(Debug)]
struct Watched {
    limit: Limit,
    expect: Expect,
    numbers: Numbers,
    cells: BTreeMap<String, Vec<Stream>>,
    /// From when on the units of dead gateways are used again, if no window ends before the run does, and how many
    /// units are held at least from then on.
    reuse: Option<(Duration, u64)>,
    /// The units that were held since then.
    reused: u64,
}

/// A request whose cost is known last.
#[derive(Debug)]
struct Stream {
    id: String,
    asked: Duration,
    answered: Duration,
    /// When its hold lapses at the earliest.
    until: Duration,
    held: u64,
    has_id: bool,
    cost: Cost,
}

/// What is known of the cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cost {
    /// Nothing yet.
    Expected,
    /// The cost was reported, and may never count.
    Told(u64),
    /// The cost was reported in time, and counts since then.
    Counted(u64, Duration),
    /// Nobody knows whether the request was charged: its gateway got no answer.
    Unanswered,
}

impl Stream {
    /// The units that count at least of the request.
    fn units(&self, now: Duration) -> u64 {
        let is_open = now < self.until;
        match self.cost {
            Cost::Counted(cost, _) => cost.min(self.held),
            Cost::Told(cost) if is_open => cost.min(self.held),
            Cost::Expected if is_open => self.held,
            Cost::Told(_) | Cost::Expected | Cost::Unanswered => 0,
        }
    }

    /// Notes what a report, or the answer to it, says of the cost.
    fn learn(&mut self, answer: &Answer) {
        self.cost = match (&answer.reply, self.cost) {
            (Reply::Told { cost, .. }, Cost::Expected) => Cost::Told(*cost),
            (Reply::Settled { word, .. }, Cost::Told(cost))
                if *word != Settlement::Unsure && answer.answered < self.until =>
            {
                Cost::Counted(cost, answer.answered)
            }
            (_, known) => known,
        };
    }

    /// The units that may count for other requests from a time on: the hold, if it may be there then. A report that
    /// names no charge may come when its hold has lapsed, so the units count once more.
    fn for_others(&self, since: Duration, within: Duration) -> u64 {
        let is_over = matches!(self.cost, Cost::Counted(_, at) if at < since);
        let is_open = self.asked < since && !is_over;
        let is_late = !self.has_id && matches!(self.cost, Cost::Told(_));
        let is_recent = since < self.answered + 2 * within;
        if is_recent { self.held * (u64::from(is_open) + u64::from(is_late)) } else { 0 }
    }
}

impl HoldsKept {
    /// A check of those limits that hold units.
    ///
    /// # Errors
    /// A limit cannot be judged.
    pub fn new(limits: &[Limit], plan: &Plan) -> Result<Self, String> {
        let budgets = Budgets::new(limits, plan.regions)?;
        let last_fault = plan.schedule.faults().last().map_or(Duration::ZERO, |(at, _)| *at);
        let watched = |limit: &Limit| {
            let (expect, numbers) = (limit.expect?, budgets.now(&limit.spec.name)?);
            let reuse = match numbers {
                Numbers::Window { limit, window_ns } if window_ns > ns(plan.duration) => {
                    let from = last_fault + HEALS;
                    let times = plan.duration.saturating_sub(from).as_nanos() as u64 / expect.within_ns;
                    Some((from, limit * times / 4))
                }
                _ => None,
            };
            let (limit, cells) = (limit.clone(), BTreeMap::new());
            Some(Watched { limit, expect, numbers, cells, reuse, reused: 0 })
        };
        let limits = limits.iter().filter_map(watched).collect();
        Ok(Self { limits, counted: BTreeSet::new(), repeats: 0 })
    }

    fn count(&mut self, answer: &Answer) -> Result<(), String> {
        if let Reply::Settled { id, word } = &answer.reply {
            self.repeats += u64::from(*word == Settlement::Before);
            // A request that holds nothing has no name.
            let counts = *word == Settlement::Now && !id.is_empty();
            if counts && !self.counted.insert(id.clone()) {
                return Err(format!("the cost of {id} counts twice"));
            }
        }
        self.limits.iter_mut().try_for_each(|watched| watched.count(answer))
    }
}

impl Watched {
    fn within(&self) -> Duration {
        Duration::from_nanos(self.expect.within_ns)
    }

    fn count(&mut self, answer: &Answer) -> Result<(), String> {
        let Some(stream) = answer.question.stream else { return Ok(()) };
        let cell = cell_name(&self.limit, &answer.question);
        let begun = Stream {
            id: String::new(),
            asked: answer.asked,
            answered: answer.answered,
            until: answer.asked + self.within(),
            // What an operator expects is set apart for every request that passes, whatever the node says.
            held: self.expect.cost.most() * self.limit.cost.max(1),
            has_id: stream.has_id,
            cost: Cost::Expected,
        };
        match &answer.reply {
            Reply::Held { id, until, units } => {
                let own = units.iter().find(|(name, _)| *name == self.limit.spec.name);
                let Some((_, units)) = own else { return Ok(()) };
                let held = if self.is_estimated() { *units } else { begun.held };
                let until = if *until > answer.asked { *until } else { begun.until };
                self.begin(cell, Stream { id: id.clone(), until, held, ..begun })
            }
            // A report without an answer looks the same, and so adds to what is not judged.
            Reply::Nothing(_) if cell_of(&self.limit, &answer.question).is_some() => {
                self.cells.entry(cell).or_default().push(Stream { cost: Cost::Unanswered, ..begun });
                Ok(())
            }
            Reply::Told { id, .. } | Reply::Settled { id, .. } => {
                let mut known = self.cells.get_mut(&cell).into_iter().flatten().rev();
                known.find(|stream| stream.id == *id).into_iter().for_each(|stream| stream.learn(answer));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn is_estimated(&self) -> bool {
        matches!(self.expect.cost, ExpectedCost::Auto(_))
    }

    fn begin(&mut self, cell: String, stream: Stream) -> Result<(), String> {
        if self.reuse.is_some_and(|(from, _)| stream.asked >= from) {
            self.reused += stream.held;
        }
        let (id, now) = (stream.id.clone(), stream.answered);
        let window = self.window_of(&stream);
        let streams = self.cells.entry(cell.clone()).or_default();
        streams.push(stream);
        let over = match (self.numbers, window) {
            (Numbers::Window { limit, .. }, Some((begins, ends))) => {
                let is_within = |stream: &&Stream| stream.asked >= begins && stream.answered < ends;
                let spared = if streams.iter().all(|stream| stream.has_id) {
                    0
                } else {
                    let within = Duration::from_nanos(self.expect.within_ns);
                    streams.iter().map(|stream| stream.for_others(begins, within)).sum()
                };
                units_of(streams.iter().filter(is_within), now).saturating_sub(limit + spared)
            }
            (Numbers::Sliding { limit, window_ns }, _) => {
                let is_within = |stream: &&Stream| stream.asked + Duration::from_nanos(window_ns) > now;
                units_of(streams.iter().filter(is_within), now).saturating_sub(limit)
            }
            (Numbers::Bucket { units, period_ns, burst }, _) => {
                let since = |begins: Duration| {
                    let is_within = |stream: &&Stream| stream.asked >= begins;
                    let comes = u128::from(units) * (now - begins).as_nanos();
                    let allowed = burst + comes.div_ceil(u128::from(period_ns)) as u64;
                    units_of(streams.iter().filter(is_within), now).saturating_sub(allowed)
                };
                streams.iter().map(|stream| since(stream.asked)).max().unwrap_or(0)
            }
            (Numbers::Window { .. } | Numbers::Slots { .. }, _) => 0,
        };
        if over == 0 {
            return Ok(());
        }
        let (name, numbers) = (&self.limit.spec.name, self.numbers);
        Err(format!(
            "limit {name}, cell [{cell}]: {over} units are held or spent beyond {numbers}, with {id}"
        ))
    }

    /// The window in which a request surely began.
    fn window_of(&self, stream: &Stream) -> Option<(Duration, Duration)> {
        let Numbers::Window { window_ns, .. } = self.numbers else { return None };
        let epoch_ns = EPOCH_S * SECOND_NS;
        let number = |at: Duration| (epoch_ns + ns(at)) / window_ns;
        let begins = number(stream.asked);
        let at = |number: u64| Duration::from_nanos((number * window_ns).saturating_sub(epoch_ns));
        (begins == number(stream.answered)).then(|| (at(begins), at(begins + 1)))
    }
}

fn units_of<'s>(streams: impl Iterator<Item = &'s Stream>, now: Duration) -> u64 {
    streams.map(|stream| stream.units(now)).sum()
}

impl Check for HoldsKept {
    fn name(&self) -> &'static str {
        "holds kept"
    }

    fn observe(&mut self, _: &World, answers: &[Answer]) -> Result<(), String> {
        answers.iter().try_for_each(|answer| self.count(answer))
    }

    fn end(&mut self, _: &World) -> Result<(), String> {
        for Watched { limit, reuse, reused, .. } in &self.limits {
            if let Some((from, least)) = reuse.filter(|(_, least)| reused < least) {
                return Err(format!(
                    "limit {}: {reused} units were held since {from:?}, and {least} are free",
                    limit.spec.name
                ));
            }
        }
        Ok(())
    }

    fn rest(&mut self, world: &World) -> Result<(), String> {
        for region in world.regions().iter().filter(|_| !self.limits.is_empty()) {
            let held = region.process().map_or(0, |process| process.node.charges().reserved);
            if held > 0 {
                return Err(format!("{} remembers {held} holds", region.name()));
            }
        }
        Ok(())
    }

    fn summary(&self) -> Vec<String> {
        let line = |watched: &Watched| {
            let all: Vec<&Stream> = watched.cells.values().flatten().collect();
            let of = |is: fn(&Cost) -> bool| all.iter().filter(|stream| is(&stream.cost)).count();
            let began = of(|cost| *cost != Cost::Unanswered);
            let counted = of(|cost| matches!(cost, Cost::Counted(..)));
            let late = of(|cost| matches!(cost, Cost::Told(_)));
            format!(
                "{}: {began} requests began, {counted} costs were reported in time, {late} late or to nobody, {} units \
                 held since the faults",
                watched.limit.spec.name, watched.reused
            )
        };
        let lines = self.limits.iter().map(line);
        if self.limits.is_empty() {
            return Vec::new();
        }
        lines
            .chain([format!("{} costs count once, {} repetitions do not", self.counted.len(), self.repeats)])
            .collect()
    }
}
