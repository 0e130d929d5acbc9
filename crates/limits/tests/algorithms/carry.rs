//! Debts that outlast their window, compared with a reference that pays window by window.

use acequia_limits::{
    Algorithm, Now,
    calendar::{Calendar, Period},
    window::{Edges, FixedWindow},
};
use proptest::prelude::*;

const S: u64 = 1_000_000_000;
const DAY_NS: u64 = 86_400 * S;
const START_NS: u64 = 20_000 * DAY_NS;

/// One window after another: what is spent beyond the limit is spent in the next.
#[derive(Clone, Copy, Debug)]
struct Reference {
    limit: u64,
    length_ns: u64,
    window: u64,
    spent: u64,
}

impl Reference {
    fn at(&mut self, now: Now) {
        for _ in self.window..now.wall_ns / self.length_ns {
            (self.window, self.spent) = (self.window + 1, self.spent.saturating_sub(self.limit));
        }
    }

    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.spent)
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Ask(u64),
    Report(u64),
    GiveBack(u64),
}

#[derive(Clone, Debug)]
struct History {
    daily: bool,
    limit: u64,
    debt_max: u64,
    steps: Vec<(u64, Act)>,
}

impl History {
    fn length_ns(&self) -> u64 {
        if self.daily { DAY_NS } else { 60 * S }
    }

    fn algorithm(&self, margin_ns: u64) -> Algorithm {
        let edges = match self.daily {
            true => Edges::Calendar(Calendar::new(Period::Day, "UTC").expect("a zone")),
            false => Edges::Every { window_ns: 60 * S, stagger: false },
        };
        Algorithm::FixedWindow(FixedWindow { margin_ns, ..FixedWindow::new(self.limit, edges) })
            .carrying(true)
    }

    fn reference(&self) -> Reference {
        let length_ns = self.length_ns();
        Reference { limit: self.limit, length_ns, window: START_NS / length_ns, spent: 0 }
    }

    /// The times of the steps, and what happens then. A pause is given in 64ths of a window.
    fn each(&self) -> impl Iterator<Item = (Now, Act)> {
        let mut wall_ns = START_NS;
        self.steps.iter().map(move |(pause, act)| {
            wall_ns += pause * self.length_ns() / 64;
            (Now::at(wall_ns), *act)
        })
    }
}

fn histories() -> impl Strategy<Value = History> {
    let act = prop_oneof![
        3 => (0..30_u64).prop_map(Act::Ask),
        2 => (1..120_u64).prop_map(Act::Report),
        1 => (1..60_u64).prop_map(Act::GiveBack),
    ];
    let pause = prop_oneof![4 => 0..20_u64, 2 => 20..200_u64, 1 => 200..1_000_u64];
    let steps = prop::collection::vec((pause, act), 1..60);
    (any::<bool>(), 0..40_u64, 0..300_u64, steps).prop_map(|(daily, limit, debt_max, steps)| History {
        daily,
        limit,
        debt_max,
        steps,
    })
}

proptest! {
    #[test]
    fn windows_pay_a_debt_one_after_another(history in histories()) {
        let (algorithm, mut reference, mut state) = (history.algorithm(0), history.reference(), Vec::new());
        for (now, act) in history.each() {
            reference.at(now);
            prop_assert_eq!(algorithm.available(&state, now, 0), reference.left());
            prop_assert_eq!(algorithm.debt(&state, now, 0), reference.spent.saturating_sub(reference.limit));
            prop_assert_eq!(algorithm.is_idle(&state, now), reference.spent == 0);
            prop_assert!(algorithm.is_sound(&state) && state.len() <= algorithm.state_words_max());
            match act {
                Act::Ask(cost) => {
                    let verdict = algorithm.probe(&state, now, cost, 0);
                    prop_assert_eq!(verdict.allowed, cost <= reference.left());
                    if verdict.allowed {
                        algorithm.charge_heap(&mut state, now, cost, 0);
                        reference.spent += cost;
                    } else if cost <= history.limit {
                        // The cost fits then, and not before.
                        let fits = |after_ns: u64| {
                            let (now, mut reference) = (now.later(after_ns), reference);
                            reference.at(now);
                            (cost <= reference.left(), algorithm.probe(&state, now, cost, 0).allowed)
                        };
                        prop_assert_eq!(fits(verdict.retry_after_ns), (true, true));
                        prop_assert_eq!(fits(verdict.retry_after_ns - 1), (false, false));
                    }
                }
                Act::Report(cost) => {
                    let spent = algorithm.spend(&state, now, cost, 0, history.debt_max);
                    algorithm.charge_heap(&mut state, now, spent.recorded, 0);
                    reference.spent += spent.recorded;
                    prop_assert!(algorithm.debt(&state, now, 0) <= history.debt_max);
                }
                Act::GiveBack(units) => {
                    let back = algorithm.give_back(&mut state, units, now, 0);
                    prop_assert_eq!(back, units.min(reference.spent));
                    reference.spent -= back;
                }
            }
        }
    }

    /// What a limit that carries lets pass, it would let pass if it did not carry, too. A margin around the
    /// edges only adds to a debt.
    #[test]
    fn carrying_and_margins_only_make_a_limit_stricter(history in histories(), margin_s in 1..25_u64) {
        let margin_ns = margin_s * history.length_ns() / 60;
        let (strict, mut reference) = (history.algorithm(margin_ns), history.reference());
        let plain = strict.clone().carrying(false);
        let (mut state, mut others) = (Vec::new(), Vec::new());
        for (now, act) in history.each() {
            reference.at(now);
            prop_assert!(strict.available(&state, now, 0) <= plain.available(&others, now, 0));
            prop_assert!(strict.available(&state, now, 0) <= reference.left());
            let cost = match act {
                Act::Ask(cost) if !strict.probe(&state, now, cost, 0).allowed => 0,
                Act::Ask(cost) => cost,
                Act::Report(cost) => strict.spend(&state, now, cost, 0, history.debt_max).recorded,
                Act::GiveBack(_) => 0,
            };
            strict.charge_heap(&mut state, now, cost, 0);
            plain.charge_heap(&mut others, now, cost, 0);
            reference.spent += cost;
        }
        // Whatever was owed is paid in the end.
        let windows = 400.min(2 + reference.spent.div_ceil(history.limit.max(1)));
        let paid = Now::at(START_NS + history.steps.iter().map(|(pause, _)| pause).sum::<u64>()
            * (history.length_ns() / 64) + (windows + 600) * history.length_ns());
        prop_assert!(history.limit == 0 || strict.is_idle(&state, paid));
    }
}
