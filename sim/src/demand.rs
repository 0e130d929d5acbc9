//! Who asks what, and when. The next question comes whether or not the last one was answered.

use std::time::Duration;

use acequia_limits::Descriptor;

use crate::{random::Random, schedule::Place};

/// A caller's question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Keys and values.
    pub entries: Vec<(String, String)>,
    /// The cost in units; for a lease, the most units wanted.
    pub cost: u64,
    /// How long units are to be leased; `None` if the request is to pass at once.
    pub lease: Option<Duration>,
    /// What the request really costs, if that is reported once it is known.
    pub report: Option<Report>,
    /// How long the request goes on, if limits count it while it does.
    pub stay: Option<Stay>,
    /// What becomes of the request, if units are held for it until its cost is known. It then asks with cost 0.
    pub stream: Option<Stream>,
}

/// A request whose cost is known when it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The real cost in units.
    pub cost: u64,
    /// How long after the answer the cost is known, and reported.
    pub lasts: Duration,
    /// The second time that the cost is reported, if there is one.
    pub again: Option<Again>,
    /// Whether reports name the charge. Those that name none are made once.
    pub has_id: bool,
    /// Whether its gateway dies, and so never reports.
    pub dies: bool,
}

/// What becomes of requests of a kind for which units are held. With an id, every third cost is reported twice.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    /// The highest real cost. The lowest is 0 with an id, and otherwise 1.
    pub cost_max: u64,
    /// The longest time between an answer and the report, and between a report and its repetition.
    pub longest: Duration,
    /// Whether reports name the charge.
    pub has_id: bool,
    /// The percentage of gateways that die.
    pub dying: u64,
}

impl Streams {
    fn stream(self, random: &mut Random) -> Stream {
        let Self { cost_max, longest, has_id, dying } = self;
        let mut some_time = || longest * random.between(0, 100) as u32 / 100;
        let (lasts, after) = (some_time(), some_time());
        let is_told_again = has_id && random.below(3) == 0;
        let again = is_told_again.then(|| Again { after, places_on: random.index(2) });
        let cost = random.between(u64::from(!has_id), cost_max);
        Stream { cost, lasts, again, has_id, dies: random.below(100) < dying }
    }
}

/// A request that goes on for a while, and has slots of limits on requests under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// How long it goes on, if its slots do not lapse before.
    pub lasts: Duration,
    /// How often its slots are renewed at most.
    pub renewals: u32,
    /// Whether its holder dies, and so never releases its slots.
    pub dies: bool,
}

/// How long requests of a kind go on. Every fourth holder dies.
#[derive(Clone, Copy, Debug)]
pub struct Stays {
    /// The longest.
    pub longest: Duration,
    /// How often slots are renewed at most.
    pub renewals_max: u32,
}

impl Stays {
    fn stay(self, random: &mut Random) -> Stay {
        Stay {
            lasts: self.longest * random.between(1, 100) as u32 / 100,
            renewals: random.between(0, self.renewals_max.into()) as u32,
            dies: random.below(4) == 0,
        }
    }
}

/// The real cost of a request, which its caller reports some time after it was allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The report's name among those of its caller.
    pub number: u64,
    /// The cost in units.
    pub cost: u64,
    /// How long after the answer it is reported.
    pub after: Duration,
    /// The second time that it is reported under its name, if there is one.
    pub again: Option<Again>,
}

/// A report that is made a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// How long after the first time.
    pub after: Duration,
    /// The node that is told: so many places after the one that was asked first.
    pub places_on: usize,
}

/// What callers report of a kind of questions. They forget every sixth report, and make every third twice.
#[derive(Clone, Copy, Debug)]
pub struct Reports {
    /// The highest cost that is reported; the lowest is 1.
    pub cost_max: u64,
    /// The longest time between an answer and its report, and between a report and its repetition.
    pub latest: Duration,
}

/// What every caller asks.
#[derive(Clone, Debug)]
pub struct Demand {
    /// Questions a second of one caller.
    pub per_second: u32,
    /// Kinds of questions, each with its relative frequency.
    pub kinds: Vec<(u32, Kind)>,
    /// For each region, the percentage of `per_second` that its caller asks; 100 where nothing is given.
    pub percent: Vec<u32>,
    /// Questions that all callers ask at the same time.
    pub herd: Option<Herd>,
}

/// Questions that all callers ask at the same time, again and again.
#[derive(Clone, Debug)]
pub struct Herd {
    /// The interval: they are asked at every multiple of it.
    pub every: Duration,
    /// The number of questions of each caller.
    pub questions: u32,
}

/// One kind of question.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Entries that all questions of the kind have.
    pub entries: Vec<(&'static str, &'static str)>,
    /// A key whose value is one of this many; `None` if there is no such entry.
    pub spread: Option<(&'static str, u64)>,
    /// The percentage of questions that have the first of these values, if the kind has such an entry.
    pub hot: u32,
    /// The highest cost; the lowest is 1.
    pub cost_max: u64,
    /// The longest life of a lease to ask for; `None` if no lease is asked for.
    pub lease: Option<Duration>,
    /// What is reported of allowed requests; `None` if they cost what they asked for.
    pub reports: Option<Reports>,
    /// How long requests go on; `None` if limits count no requests under way.
    pub stays: Option<Stays>,
    /// What becomes of requests whose cost is known last; `None` if requests say what they cost.
    pub streams: Option<Streams>,
}

impl Reports {
    fn report(&self, random: &mut Random) -> Option<Report> {
        let mut some_time = || self.latest * random.between(0, 100) as u32 / 100;
        let (after, again_after) = (some_time(), some_time());
        let again = (random.below(3) == 0)
            .then(|| Again { after: again_after, places_on: if random.below(2) == 0 { 0 } else { 1 } });
        let report = Report { number: random.next(), cost: random.between(1, self.cost_max), after, again };
        (random.below(6) > 0).then_some(report)
    }
}

impl Kind {
    /// Questions with one entry.
    pub fn of(key: &'static str, value: &'static str, cost_max: u64) -> Self {
        Self {
            entries: vec![(key, value)],
            spread: None,
            hot: 0,
            cost_max,
            lease: None,
            reports: None,
            stays: None,
            streams: None,
        }
    }

    fn question(&self, random: &mut Random) -> Question {
        let mut entries: Vec<(String, String)> =
            self.entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        if let Some((key, values)) = self.spread {
            let is_hot = random.chance(self.hot * 10_000);
            let value = if is_hot { 0 } else { random.below(values) };
            entries.push((key.to_owned(), value.to_string()));
        }
        let cost = random.between(1, self.cost_max);
        let lease = self.lease.map(|longest| longest * random.between(1, 100) as u32 / 100);
        let report = self.reports.and_then(|reports| reports.report(random));
        let stay = self.stays.map(|stays| stays.stay(random));
        let stream = self.streams.map(|streams| streams.stream(random));
        let cost = if stream.is_some() { 0 } else { cost };
        Question { entries, cost, lease, report, stay, stream }
    }
}

impl Demand {
    /// Each caller asks 20 times a second.
    pub fn of(kinds: impl Into<Vec<(u32, Kind)>>) -> Self {
        Self { per_second: 20, kinds: kinds.into(), percent: Vec::new(), herd: None }
    }

    /// The questions of a region's caller, one after the other, each with the time until it is asked.
    pub(crate) fn questions(
        &self,
        place: Place,
        mut random: Random,
    ) -> impl Iterator<Item = (Duration, Question)> + use<> {
        let demand = self.clone();
        let percent = u64::from(self.percent.get(place).copied().unwrap_or(100).max(1));
        let every_us = 100_000_000 / (u64::from(self.per_second.max(1)) * percent);
        let (mut now, mut herds, mut left) = (Duration::ZERO, 0, 0);
        std::iter::repeat_with(move || {
            let mut wait = Duration::ZERO;
            if left > 0 {
                left -= 1;
            } else {
                wait = Duration::from_micros(random.between(every_us / 2, every_us + every_us / 2));
                if let Some(herd) = demand.herd.as_ref().filter(|herd| herd.every * herds <= now + wait) {
                    wait = (herd.every * herds).saturating_sub(now);
                    (herds, left) = (herds + 1, herd.questions.saturating_sub(1));
                }
            }
            now += wait;
            (wait, demand.question(&mut random))
        })
    }

    /// How long these callers may be busy with what an answer gave them: zero if they only ask.
    pub fn longest_use(&self) -> Duration {
        let uses = self.kinds.iter().flat_map(|(_, kind)| {
            let reports = kind.reports.map(|reports| reports.latest * 2);
            let streams = kind.streams.map(|streams| streams.longest * 2);
            [kind.lease, reports, kind.stays.map(|stays| stays.longest), streams].into_iter().flatten()
        });
        uses.max().unwrap_or_default()
    }

    fn question(&self, random: &mut Random) -> Question {
        let total: u32 = self.kinds.iter().map(|(weight, _)| weight).sum();
        let mut drawn = random.below(u64::from(total.max(1)));
        let kind = self.kinds.iter().find(|(weight, _)| {
            let is_it = drawn < u64::from(*weight);
            drawn = drawn.saturating_sub(u64::from(*weight));
            is_it
        });
        let question = kind.map(|(_, kind)| kind.question(random));
        question.unwrap_or(Question {
            entries: Vec::new(),
            cost: 1,
            lease: None,
            report: None,
            stay: None,
            stream: None,
        })
    }
}

impl Question {
    /// Shows the question's entries as a node reads them.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&Descriptor<'_>) -> T) -> T {
        let entries: Vec<_> =
            self.entries.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())).collect();
        read(&Descriptor::new(&entries, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_herd_comes_at_once_and_a_caller_asks_as_often_as_said() {
        let every = Duration::from_secs(10);
        let herd = Some(Herd { every, questions: 50 });
        let demand = Demand { herd, percent: vec![100, 50], ..Demand::of([(1, Kind::of("a", "b", 1))]) };
        let asked = |place| {
            let mut now = Duration::ZERO;
            let waits = demand.questions(place, Random::new(1)).map(move |(wait, _)| {
                now += wait;
                now
            });
            waits.take_while(|at| *at < Duration::from_secs(15)).collect::<Vec<_>>()
        };
        let at_edge = |asked: &[Duration]| asked.iter().filter(|at| **at == every).count();
        let (full, half) = (asked(0), asked(1));
        assert!([&full, &half].iter().all(|asked| at_edge(asked) == 50));
        assert!((390..410).contains(&full.len()) && (245..255).contains(&half.len()), "{}", full.len());
    }
}
