//! Histories: the events of a cell, step by step.

use acequia_limits::{
    Algorithm, Now, PERIOD_NS_MAX, UNITS_MAX, Verdict,
    algorithm::{State, is_never},
};
use proptest::{prelude::*, test_runner::Config};

use crate::{Reference, dates, terms::Terms};

/// The most steps in a history.
const STEPS_MAX: usize = 24;
/// Clocks stay below this, so that the longest wait ends before 2^63.
const CLOCK_NS_MAX: u64 = (1 << 63) - 3 * PERIOD_NS_MAX;

/// The events of one cell.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) terms: Terms,
    pub(crate) salt: u32,
    pub(crate) start: Now,
    pub(crate) steps: Vec<Step>,
}

/// Time passes, and a request comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) pause: Pause,
    pub(crate) cost: Cost,
    /// The step of the wall clock, in thousandths of the period, if somebody sets it.
    pub(crate) clock_set: Option<i64>,
}

/// How much time passes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pause {
    Ns(u64),
    /// Thousandths of the limit's period.
    Part(u64),
    /// As long as the last denial asked for, and this much more or less.
    AsTold(i64),
}

/// How much is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Units(u64),
    /// Thousandths of the budget.
    Part(u64),
    /// The units left, and this much more or less.
    Left(i64),
    /// The budget and this much more.
    Budget(u64),
}

/// A cell and its reference, on the way through a history together.
pub(crate) struct Walk {
    pub(crate) algorithm: Algorithm,
    pub(crate) state: State,
    pub(crate) reference: Reference,
    pub(crate) now: Now,
    pub(crate) salt: u32,
    told_ns: u64,
}

impl Walk {
    pub(crate) fn new(history: &History) -> Self {
        let algorithm = history.terms.algorithm();
        Self {
            state: algorithm.fresh(),
            algorithm,
            reference: Reference::new(&history.terms, history.salt),
            now: history.start,
            salt: history.salt,
            told_ns: 0,
        }
    }

    /// The whole history, with clocks that are never set.
    pub(crate) fn through(history: &History) -> Self {
        let mut walk = Self::new(history);
        for step in &history.steps {
            let cost = walk.arrive(step);
            walk.ask(cost);
        }
        walk
    }

    /// Lets the step's time pass on both clocks, and returns the cost of its request.
    pub(crate) fn arrive(&mut self, step: &Step) -> u64 {
        let period = self.algorithm.period_ns();
        let ns = match step.pause {
            Pause::Ns(ns) => ns,
            Pause::Part(part) => part_of(period, part),
            Pause::AsTold(more) => self.told_ns.saturating_add_signed(more),
        };
        let room = (CLOCK_NS_MAX - self.now.steady_ns).min(self.wall_ns_max() - self.now.wall_ns);
        self.now = self.now.later(ns.min(room));
        self.units(step.cost)
    }

    /// Sets the wall clock as the step says. The steady clock does not see that.
    pub(crate) fn set_clock(&mut self, step: &Step) {
        let Some(part) = step.clock_set else { return };
        let by = i64::try_from(part_of(self.algorithm.period_ns(), part.unsigned_abs())).expect("in range");
        let wall_ns = self.now.wall_ns.saturating_add_signed(by * part.signum());
        let first = if self.has_dates() { dates::WALL_NS.start } else { 0 };
        self.now.wall_ns = wall_ns.clamp(first, self.wall_ns_max());
    }

    fn wall_ns_max(&self) -> u64 {
        if self.has_dates() { dates::WALL_NS.end } else { CLOCK_NS_MAX }
    }

    fn has_dates(&self) -> bool {
        matches!(self.reference.terms, Terms::Calendar { .. })
    }

    pub(crate) fn units(&self, cost: Cost) -> u64 {
        let budget = self.algorithm.budget();
        match cost {
            Cost::Units(units) => units,
            Cost::Part(part) => part_of(budget, part),
            Cost::Left(more) => self.probe(0).remaining.saturating_add_signed(more),
            Cost::Budget(more) => budget.saturating_add(more),
        }
    }

    pub(crate) fn probe(&self, cost: u64) -> Verdict {
        self.algorithm.probe(self.state.as_slice(), self.now, cost, self.salt)
    }

    /// Asks for a cost, and charges it to both if it is allowed.
    pub(crate) fn ask(&mut self, cost: u64) -> Verdict {
        let verdict = self.probe(cost);
        if verdict.allowed {
            charge(&self.algorithm, &mut self.state, self.now, cost, self.salt);
            self.reference.charge(self.now, cost);
        } else if !is_never(verdict.retry_after_ns) {
            self.told_ns = verdict.retry_after_ns;
        }
        verdict
    }
}

/// Charges a cost that was allowed. A cost of 0 only looks.
pub(crate) fn charge(algorithm: &Algorithm, state: &mut State, now: Now, cost: u64, salt: u32) {
    match state {
        _ if cost == 0 => {}
        State::Inline(state) => algorithm.charge_inline(state, now, cost, salt),
        State::Heap(state) => algorithm.charge_heap(state, now, cost, salt),
    }
}

fn part_of(whole: u64, thousandths: u64) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(thousandths) / 1_000).expect("in range")
}

pub(crate) fn history(terms: impl Strategy<Value = Terms>) -> impl Strategy<Value = History> {
    (terms, any::<u32>(), prop::collection::vec(step(), 1..STEPS_MAX))
        .prop_flat_map(|(terms, salt, steps)| {
            let wall = wall(&terms);
            (Just(terms), Just(salt), Just(steps), clock(), wall)
        })
        .prop_map(|(terms, salt, steps, steady_ns, wall_ns)| {
            let start = Now { steady_ns, wall_ns };
            History { terms, salt, start, steps }
        })
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let clock_set = prop_oneof![3 => Just(None), 1 => (-3_000_i64..3_000).prop_map(Some)];
    (pause(), cost(), clock_set).prop_map(|(pause, cost, clock_set)| Step { pause, cost, clock_set })
}

pub(crate) fn pause() -> impl Strategy<Value = Pause> {
    prop_oneof![
        2 => Just(Pause::Ns(0)),
        1 => (1_u64..4).prop_map(Pause::Ns),
        4 => (0_u64..300).prop_map(Pause::Part),
        2 => (300_u64..2_200).prop_map(Pause::Part),
        3 => (-1_i64..2).prop_map(Pause::AsTold),
    ]
}

pub(crate) fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        4 => (0_u64..4).prop_map(Cost::Units),
        4 => (0_u64..600).prop_map(Cost::Part),
        4 => (-1_i64..2).prop_map(Cost::Left),
        1 => (0_u64..2).prop_map(Cost::Budget),
        1 => prop::sample::select(vec![UNITS_MAX, UNITS_MAX + 1, u64::MAX]).prop_map(Cost::Units),
    ]
}

fn clock() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => 0_u64..10_000_000_000,
        6 => 1_700_000_000_000_000_000_u64..2_100_000_000_000_000_000,
        1 => Just(1 << 62),
    ]
}

fn wall(terms: &Terms) -> BoxedStrategy<u64> {
    /// Summer and winter time, a skipped and a doubled midnight, a skipped day, ends of years, a leap day.
    const TURNS: [&str; 11] = [
        "2026-03-29T01:00:00Z",
        "2026-10-25T01:00:00Z",
        "2026-11-01T05:00:00Z",
        "2026-04-05T03:00:00Z",
        "2026-09-06T04:00:00Z",
        "2024-10-06T04:00:00Z",
        "2006-10-29T02:31:00Z",
        "2011-12-30T10:00:00Z",
        "2026-12-31T23:00:00Z",
        "2028-02-29T00:00:00Z",
        "2027-01-01T00:00:00Z",
    ];
    const HOUR_NS: u64 = 3_600_000_000_000;
    if !matches!(terms, Terms::Calendar { .. }) {
        return clock().boxed();
    }
    let turn = (prop::sample::select(TURNS.to_vec()), 0..48 * HOUR_NS).prop_map(|(turn, before)| {
        let turn: jiff::Timestamp = turn.parse().expect("an instant");
        u64::try_from(turn.as_nanosecond()).expect("after 1970") - before
    });
    prop_oneof![turn, 946_684_800_000_000_000_u64..2_100_000_000_000_000_000].boxed()
}

/// A number of cases, unless the environment asks for more. No files are left behind.
pub(crate) fn config(cases: u32) -> Config {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config
}

/// One property for every algorithm, as a module of tests.
macro_rules! for_every_algorithm {
    ($property:ident, $cases:expr, $check:expr) => {
        mod $property {
            use proptest::prelude::*;

            #[allow(unused_imports)]
            use super::*;
            use crate::{history, terms};

            proptest! {
                #![proptest_config(history::config($cases))]

                #[test]
                fn token_bucket(history in history::history(terms::token_bucket())) { $check(&history)?; }
                #[test]
                fn leaky_bucket(history in history::history(terms::leaky_bucket())) { $check(&history)?; }
                #[test]
                fn fixed_window(history in history::history(terms::fixed_window())) { $check(&history)?; }
                #[test]
                fn staggered_window(history in history::history(terms::staggered_window())) {
                    $check(&history)?;
                }
                #[test]
                fn calendar_quota(history in history::history(terms::calendar_quota())) {
                    $check(&history)?;
                }
                #[test]
                fn sliding_log(history in history::history(terms::sliding_log())) { $check(&history)?; }
                #[test]
                fn sliding_slots(history in history::history(terms::sliding_slots())) { $check(&history)?; }
                #[test]
                fn rolling_quota(history in history::history(terms::rolling_quota())) { $check(&history)?; }
                #[test]
                fn approximate(history in history::history(terms::approximate())) { $check(&history)?; }
            }
        }
    };
}
pub(crate) use for_every_algorithm;
