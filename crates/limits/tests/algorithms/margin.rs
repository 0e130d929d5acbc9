//! Wall clocks that differ: near an edge, a charge counts on both sides of it.

use std::collections::BTreeMap;

use acequia_limits::{
    Algorithm, MARGIN_NS_MAX, Now, Part, Verdict,
    algorithm::State,
    verdict::NEVER,
    window::{Edges, FixedWindow, Usage},
};
use proptest::{prelude::*, test_runner::TestCaseResult};

use crate::{
    history::{self, Cost, History, Walk, charge},
    least,
    refund::refund,
    terms::{self, Terms},
};

const S: u64 = 1_000_000_000;

/// The charges in each window, by its end, and the older window of the last charge.
#[derive(Clone, Debug)]
struct Both {
    terms: Terms,
    limit: u64,
    next_limit: u64,
    margin_ns: u64,
    salt: u32,
    charged: BTreeMap<u64, u64>,
    opened: u64,
}

impl Both {
    /// The windows that count a charge at `wall_ns`: those within a margin of that time, except those that
    /// were left before.
    fn windows(&self, wall_ns: u64) -> Vec<u64> {
        let older = self.terms.end_after(wall_ns - self.margin_ns, self.salt).max(self.opened);
        let newer = self.terms.end_after(wall_ns + self.margin_ns, self.salt);
        if newer > older { vec![older, self.terms.end_after(older, self.salt)] } else { vec![older] }
    }

    fn left(&self, wall_ns: u64) -> u64 {
        let windows = self.windows(wall_ns);
        let limits = [self.limit, self.next_limit];
        let left = windows.iter().zip(limits).map(|(end, limit)| limit.saturating_sub(self.in_window(*end)));
        left.min().expect("one window at least")
    }

    fn in_window(&self, end_ns: u64) -> u64 {
        self.charged.get(&end_ns).copied().unwrap_or(0)
    }

    fn charge(&mut self, wall_ns: u64, units: u64) {
        if units == 0 {
            return;
        }
        let windows = self.windows(wall_ns);
        self.opened = windows[0];
        for end_ns in windows {
            *self.charged.entry(end_ns).or_default() += units;
        }
    }

    fn verdict(&self, wall_ns: u64, cost: u64) -> Verdict {
        let left = self.left(wall_ns);
        let allowed = cost <= left;
        let mut after = self.clone();
        if allowed {
            after.charge(wall_ns, cost);
        }
        let older = after.windows(wall_ns)[0];
        let next = self.terms.end_after(older, self.salt);
        let last = if after.in_window(next) > 0 { next } else { older };
        let over_ns = next + self.margin_ns - wall_ns;
        Verdict {
            allowed,
            remaining: after.left(wall_ns),
            retry_after_ns: least(over_ns, |ns| cost <= self.left(wall_ns + ns)).unwrap_or(NEVER),
            delay_ns: 0,
            reset_after_ns: last + self.margin_ns - wall_ns,
        }
    }
}

/// A history of windows with edges, and a margin that leaves room between two edges.
fn with_margin() -> impl Strategy<Value = (History, u64)> {
    (history::history(windows()), 1_u64..=500, 0_u64..3).prop_map(|(mut history, part, less)| {
        let margin_ns = match history.terms {
            Terms::Fixed { window_ns, .. } => (window_ns / 1_000 * part).min(MARGIN_NS_MAX) - less,
            _ => MARGIN_NS_MAX / 500 * part - less,
        };
        // The first margin of all time has no window before it.
        history.start.wall_ns = history.start.wall_ns.max(MARGIN_NS_MAX);
        (history, margin_ns)
    })
}

fn windows() -> impl Strategy<Value = Terms> {
    prop_oneof![terms::fixed_window(), terms::staggered_window(), terms::calendar_quota()]
}

fn local(terms: &Terms, units: u64, margin_ns: u64) -> Algorithm {
    terms.algorithm().local(Part { rate: 0, units }, 0, margin_ns)
}

/// A cell with a margin, and its reference.
fn walk(history: &History, margin_ns: u64) -> (Walk, Both) {
    let mut walk = Walk::new(history);
    let limit = history.terms.budget();
    walk.algorithm = local(&history.terms, limit, margin_ns);
    walk.state = walk.algorithm.fresh();
    let both = Both {
        terms: history.terms.clone(),
        limit,
        next_limit: limit,
        margin_ns,
        salt: history.salt,
        charged: BTreeMap::new(),
        opened: 0,
    };
    (walk, both)
}

/// As [`Walk::ask`], with this file's reference.
fn ask(walk: &mut Walk, both: &mut Both, cost: u64) -> bool {
    let allowed = walk.probe(cost).allowed;
    if allowed {
        charge(&walk.algorithm, &mut walk.state, walk.now, cost, walk.salt);
        both.charge(walk.now.wall_ns, cost);
    }
    allowed
}

/// Moves on, often to an instant near an edge.
fn arrive(walk: &mut Walk, both: &Both, step: &history::Step, place: usize) -> u64 {
    let cost = walk.arrive(step);
    if place.is_multiple_of(2) {
        let end_ns = both.terms.end_after(walk.now.wall_ns, walk.salt);
        let margin_ns = both.margin_ns;
        let near = [margin_ns, margin_ns + 1, 0, 1, margin_ns / 2];
        let before = near[place / 2 % near.len()];
        let to_ns = if place.is_multiple_of(4) { end_ns.saturating_sub(before) } else { end_ns + before };
        let room = (1 << 63) - 3 * acequia_limits::PERIOD_NS_MAX;
        if to_ns > walk.now.wall_ns && walk.now.steady_ns + (to_ns - walk.now.wall_ns) < room {
            walk.now = walk.now.later(to_ns - walk.now.wall_ns);
        }
    }
    cost
}

proptest! {
    #![proptest_config(history::config(256))]

    /// Every field of every verdict, however the clock is set.
    #[test]
    fn every_field_of_a_verdict_agrees_with_the_reference((history, margin_ns) in with_margin(), steady in any::<bool>()) {
        let (mut walk, mut both) = walk(&history, margin_ns);
        for (place, step) in history.steps.iter().enumerate() {
            let cost = arrive(&mut walk, &both, step, place);
            if !steady {
                walk.set_clock(step);
                walk.now.wall_ns = walk.now.wall_ns.max(MARGIN_NS_MAX);
            }
            for cost in [cost, 0, 1, walk.units(Cost::Left(0)), walk.units(Cost::Left(1))] {
                let expected = both.verdict(walk.now.wall_ns, cost);
                prop_assert_eq!(walk.probe(cost), expected, "cost {} at {:?}", cost, walk.now);
            }
            let Algorithm::FixedWindow(window) = &walk.algorithm else { panic!("a window") };
            let named = window.older_end(walk.state.as_slice(), walk.now.wall_ns, walk.salt);
            prop_assert_eq!(named, both.windows(walk.now.wall_ns)[0]);
            prop_assert_eq!(
                walk.algorithm.available(walk.state.as_slice(), walk.now, walk.salt),
                both.left(walk.now.wall_ns)
            );
            ask(&mut walk, &mut both, cost);
        }
    }

    /// Rights may differ from one window to the next.
    #[test]
    fn two_adjacent_windows_may_have_different_limits((history, margin_ns) in with_margin(), limits in prop::array::uniform2(0_u64..50)) {
        let (mut walk, mut both) = walk(&history, margin_ns);
        for (place, step) in history.steps.iter().enumerate() {
            arrive(&mut walk, &both, step, place);
            let turn = |at: u64| if at.is_multiple_of(2) { limits } else { [limits[1], limits[0]] };
            [both.limit, both.next_limit] = turn(place as u64);
            if let Algorithm::FixedWindow(window) = &mut walk.algorithm {
                [window.limit, window.next_limit] = turn(place as u64);
            }
            for cost in [0, 1, 7, both.limit, both.next_limit] {
                let (verdict, left) = (walk.probe(cost), both.left(walk.now.wall_ns));
                let rest = if cost <= left { left - cost } else { left };
                prop_assert_eq!((verdict.allowed, verdict.remaining), (cost <= left, rest));
            }
            ask(&mut walk, &mut both, 7);
        }
    }

    /// An idle cell may be forgotten. Every cell is idle after the horizon, and when a successor begins.
    #[test]
    fn an_idle_cell_may_be_forgotten((history, margin_ns) in with_margin()) {
        let (mut walk, mut both) = walk(&history, margin_ns);
        for (place, step) in history.steps.iter().enumerate() {
            let cost = arrive(&mut walk, &both, step, place);
            let state = walk.state.as_slice();
            if walk.algorithm.is_idle(state, walk.now) {
                for later in instants(&walk, margin_ns) {
                    for cost in [cost, 0, 1, both.limit] {
                        prop_assert_eq!(
                            walk.algorithm.probe(state, walk.now.later(later), cost, walk.salt),
                            walk.algorithm.probe(&[], walk.now.later(later), cost, walk.salt)
                        );
                    }
                }
            } else {
                let owed: u64 = both.windows(walk.now.wall_ns).iter().map(|end| both.in_window(*end)).sum();
                prop_assert!(owed > 0 || both.charged.keys().any(|end| *end > walk.now.wall_ns));
            }
            ask(&mut walk, &mut both, cost);
            let horizon = walk.now.later(walk.algorithm.horizon_ns());
            prop_assert!(walk.algorithm.is_idle(walk.state.as_slice(), horizon));
            let at = walk.algorithm.succession_at(walk.now);
            prop_assert!(walk.algorithm.is_idle(walk.state.as_slice(), walk.now.later(at - walk.now.wall_ns)));
        }
    }

    /// Nothing is given back by a restart that knows nothing, by a restart that reads a covering state, or
    /// by a new margin.
    #[test]
    fn no_restart_or_new_margin_gives_units_back((history, margin_ns) in with_margin(), part in 0_u64..600, smaller in 0_u64..1_000) {
        let (mut walk, mut both) = walk(&history, margin_ns);
        let mut reserved = walk.state.clone();
        for (place, step) in history.steps.iter().enumerate() {
            let cost = arrive(&mut walk, &both, step, place);
            let charged = ask(&mut walk, &mut both, cost.max(1));
            let spent = walk.algorithm.spent_at(walk.now, walk.salt);
            prop_assert!(!walk.algorithm.probe(spent.as_slice(), walk.now, 1, walk.salt).allowed);
            check_owes_at_least(&walk, &spent, margin_ns)?;
            if walk.algorithm.covers(reserved.as_slice(), walk.state.as_slice(), walk.now) {
                check_owes_at_least(&walk, &reserved, margin_ns)?;
            }
            if charged {
                reserved = walk.state.clone();
                let ahead = walk.units(Cost::Part(part)).min(walk.probe(0).remaining);
                charge(&walk.algorithm, &mut reserved, walk.now, ahead, walk.salt);
                prop_assert!(walk.algorithm.covers(reserved.as_slice(), walk.state.as_slice(), walk.now));
            }
            // A usage under a smaller margin counts for no less under this one.
            let small = local(&both.terms, both.limit, margin_ns * smaller / 1_000);
            let mut old = small.fresh();
            charge(&small, &mut old, walk.now, both.limit, walk.salt);
            let new = walk.algorithm.convert(&small, old.as_slice(), walk.now);
            prop_assert_eq!(walk.algorithm.probe(new.as_slice(), walk.now, 0, walk.salt).remaining, 0);
            prop_assert!(matches!(new, State::Heap(_)));
            let ends = |wall_ns: u64| both.terms.end_after(wall_ns, walk.salt);
            let (older, small_ns) = (ends(walk.now.wall_ns - margin_ns), margin_ns * smaller / 1_000);
            if ends(walk.now.wall_ns - small_ns) == older && ends(walk.now.wall_ns + margin_ns) > older {
                let left = Now { wall_ns: older + margin_ns, ..walk.now };
                prop_assert_eq!(walk.algorithm.available(new.as_slice(), left, walk.salt), 0);
            }
            let single = local(&both.terms, both.limit, 0);
            let back = single.convert(&walk.algorithm, walk.state.as_slice(), walk.now);
            prop_assert!(matches!(back, State::Inline(_)));
            prop_assert!(
                single.probe(back.as_slice(), walk.now, 0, walk.salt).remaining <= walk.probe(0).remaining
                    || both.terms.end_after(walk.now.wall_ns, walk.salt) > both.windows(walk.now.wall_ns)[0]
            );
        }
    }

    /// A refunded charge was never made, in either window.
    #[test]
    fn a_refund_is_in_both_windows((history, margin_ns) in with_margin()) {
        let (mut walk, mut both) = walk(&history, margin_ns);
        let mut charges: Vec<(Now, u64, Vec<u64>)> = Vec::new();
        for (place, step) in history.steps.iter().enumerate() {
            let cost = arrive(&mut walk, &both, step, place);
            let windows = both.windows(walk.now.wall_ns);
            if ask(&mut walk, &mut both, cost) && cost > 0 {
                charges.push((walk.now, cost, windows));
            }
            if place % 3 > 0 && !charges.is_empty() {
                let which = (place / 2) % charges.len();
                let (at, units, windows) = charges.swap_remove(charges.len() - 1 - which);
                let older = both.windows(walk.now.wall_ns)[0];
                let expected = if windows.contains(&older) { units } else { 0 };
                let algorithm = walk.algorithm.clone();
                let back = refund(&algorithm, &mut walk.state, at, units, walk.now, &algorithm, walk.salt);
                prop_assert_eq!(back, expected);
                for end_ns in windows.iter().filter(|_| back > 0) {
                    *both.charged.get_mut(end_ns).expect("charged") -= units;
                }
            }
            for cost in [0, 1, both.limit] {
                prop_assert_eq!(walk.probe(cost), both.verdict(walk.now.wall_ns, cost), "cost {}", cost);
            }
        }
    }
}

/// Waits around every edge nearby.
fn instants(walk: &Walk, margin_ns: u64) -> Vec<u64> {
    let reset_ns = walk.probe(0).reset_after_ns;
    let mut instants = vec![0, 1, reset_ns - 1, reset_ns, reset_ns + 1];
    for edge in [reset_ns.saturating_sub(margin_ns), reset_ns.saturating_sub(2 * margin_ns)] {
        instants.extend([edge.saturating_sub(1), edge, edge + 1]);
    }
    instants.extend([reset_ns + margin_ns, reset_ns + walk.algorithm.period_ns()]);
    instants
}

fn check_owes_at_least(walk: &Walk, strict: &State, margin_ns: u64) -> TestCaseResult {
    for later in instants(walk, margin_ns) {
        let left =
            |state: &State| walk.algorithm.available(state.as_slice(), walk.now.later(later), walk.salt);
        prop_assert!(left(strict) <= left(&walk.state), "given back after {} ns", later);
    }
    Ok(())
}

/// A step of one of several regions that share a window. The region's clock is off, and is set again and
/// again.
#[derive(Clone, Copy, Debug)]
struct Move {
    who: usize,
    /// The time that passes first, in thousandths of the window. With `to_edge`, up to that distance from
    /// the window's end instead.
    part: u64,
    to_edge: Option<i64>,
    /// How far off this clock is now, in thousandths of the margin.
    off: i64,
    cost: Cost,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = (0_usize..4, 0_u64..700, prop::option::of(-1_100_i64..1_100), off(), history::cost())
        .prop_map(|(who, part, to_edge, off, cost)| Move { who, part, to_edge, off, cost });
    prop::collection::vec(one, 1..60)
}

fn off() -> impl Strategy<Value = i64> {
    prop_oneof![Just(-1_000), Just(1_000), -1_000_i64..=1_000]
}

/// Charges all that four regions can get by their clocks. Returns the largest sum in any window of true
/// time.
fn most_in_a_window(
    terms: &Terms,
    start_ns: u64,
    error_ns: u64,
    margin_ns: u64,
    salt: u32,
    moves: &[Move],
) -> u128 {
    let limit = terms.budget();
    let pieces = [limit / 2, limit / 4, limit / 8, limit - limit / 2 - limit / 4 - limit / 8];
    let algorithms = pieces.map(|units| local(terms, units, margin_ns));
    let mut states = algorithms.each_ref().map(Algorithm::fresh);
    let mut in_window: BTreeMap<u64, u128> = BTreeMap::new();
    let mut true_ns = start_ns;
    for step in moves {
        let end_ns = terms.end_after(true_ns, salt);
        true_ns = match step.to_edge {
            Some(part) => true_ns.max(end_ns.saturating_add_signed(part * (error_ns as i64 / 1_000))),
            None => true_ns + (end_ns - true_ns) / 1_000 * step.part,
        };
        let off = step.off * (error_ns as i64 / 1_000);
        let now = Now::at(true_ns.saturating_add_signed(off));
        let (algorithm, state) = (&algorithms[step.who], &mut states[step.who]);
        let left = algorithm.available(state.as_slice(), now, salt);
        let cost = match step.cost {
            Cost::Units(units) => units.min(left),
            Cost::Part(part) => (u128::from(left) * u128::from(part) / 600) as u64,
            _ => left,
        };
        if algorithm.probe(state.as_slice(), now, cost, salt).allowed {
            charge(algorithm, state, now, cost, salt);
            *in_window.entry(terms.end_after(true_ns, salt)).or_default() += u128::from(cost);
        }
    }
    in_window.into_values().max().unwrap_or(0)
}

proptest! {
    #![proptest_config(history::config(512))]

    /// The promise for clocks that are off by as much as the margin, even if windows are shorter than their
    /// clocks can tell apart.
    #[test]
    fn no_window_of_true_time_holds_more_than_its_limit(
        terms in windows(),
        start_ns in 1_700_000_000 * S..1_900_000_000 * S,
        part in prop_oneof![4 => 1_u64..=500, 1 => 500_u64..5_000],
        salt in any::<u32>(),
        moves in moves(),
    ) {
        let margin_ns = match terms {
            Terms::Fixed { window_ns, .. } => (window_ns / 1_000 * part).min(MARGIN_NS_MAX),
            _ => MARGIN_NS_MAX / 5_000 * part,
        };
        let most = most_in_a_window(&terms, start_ns, margin_ns, margin_ns, salt, &moves);
        prop_assert!(most <= u128::from(terms.budget()), "{} in one window", most);
    }
}

/// A slow clock spends the last window, every clock this one, and a fast clock the next. All of it falls in
/// one window of true time.
#[test]
fn without_a_margin_clocks_that_differ_admit_more() {
    let terms = Terms::Fixed { limit: 100, window_ns: 60 * S, stagger: false };
    let start_ns = 30_000_000 * 60 * S;
    let step = |who, to_edge, off| Move { who, part: 0, to_edge, off, cost: Cost::Left(0) };
    // Region 0 has half: its clock is slow at the beginning and fast at the end.
    let moves = [
        step(0, None, -1_000),
        step(0, None, 1_000),
        step(1, None, 0),
        step(2, None, 0),
        step(3, None, 0),
        step(0, Some(-500), 1_000),
    ];
    assert_eq!(most_in_a_window(&terms, start_ns, S, 0, 0, &moves), 200);
    let held = most_in_a_window(&terms, start_ns, S, S, 0, &moves);
    assert_eq!(held, 100);
}

fn minutely(limit: u64) -> FixedWindow {
    FixedWindow {
        margin_ns: S,
        ..FixedWindow::new(limit, Edges::Every { window_ns: 60 * S, stagger: false })
    }
}

#[test]
fn near_an_edge_a_charge_counts_in_both_windows() {
    let algorithm = Algorithm::FixedWindow(minutely(10));
    let edge_ns = 600 * S;
    let mut state = Vec::new();
    algorithm.charge_heap(&mut state, Now::at(edge_ns - S - 1), 3, 0);
    assert_eq!(state, [edge_ns, 3, 0]);
    algorithm.charge_heap(&mut state, Now::at(edge_ns - S), 2, 0);
    assert_eq!(state, [edge_ns, 5, 2]);
    algorithm.charge_heap(&mut state, Now::at(edge_ns + S - 1), 4, 0);
    assert_eq!(state, [edge_ns, 9, 6]);
    let verdict = algorithm.probe(&state, Now::at(edge_ns + S - 1), 2, 0);
    assert_eq!((verdict.allowed, verdict.remaining, verdict.retry_after_ns), (false, 1, 1));
    // The window is left one margin after its end. Units charged ahead are in the next window.
    algorithm.charge_heap(&mut state, Now::at(edge_ns + S), 1, 0);
    assert_eq!(state, [edge_ns + 60 * S, 7, 0]);
    // A clock that goes back finds the later window.
    algorithm.charge_heap(&mut state, Now::at(edge_ns - S), 1, 0);
    assert_eq!(state, [edge_ns + 60 * S, 8, 0]);
    // A charge at the end counts in both windows. When both are over, nothing is carried on.
    algorithm.charge_heap(&mut state, Now::at(edge_ns + 60 * S), 1, 0);
    assert_eq!(state, [edge_ns + 60 * S, 9, 1]);
    algorithm.charge_heap(&mut state, Now::at(edge_ns + 121 * S), 1, 0);
    assert_eq!(state, [edge_ns + 180 * S, 1, 0]);
}

#[test]
fn a_larger_margin_does_not_reopen_a_left_window() {
    let edge_ns = 600 * S;
    let now = Now::at(edge_ns + 2 * S);
    let grown = FixedWindow { margin_ns: 10 * S, ..minutely(10) };
    let (open, left) = (grown.clone(), grown.after(edge_ns));
    // Ten units were charged in the window that is over, and three in the window that is open since.
    let state = [edge_ns, 10, 3];
    let (open, left) = (Algorithm::FixedWindow(open), Algorithm::FixedWindow(left));
    assert_eq!(open.probe(&state, now, 1, 0).remaining, 0, "it may be open, by the clock alone");
    assert_eq!(left.probe(&state, now, 1, 0).remaining, 6);
    let mut charged = state.to_vec();
    left.charge_heap(&mut charged, now, 7, 0);
    assert_eq!(charged, [edge_ns + 60 * S, 10, 0]);
    // An unknown cell is not in the window that was left, either.
    let mut unknown = Vec::new();
    left.charge_heap(&mut unknown, now, 1, 0);
    assert_eq!(unknown, [edge_ns + 60 * S, 1, 0]);
    assert!(left.is_idle(&[edge_ns, 10, 0], now) && !open.is_idle(&[edge_ns, 10, 0], now));
    // Units spent at an earlier time count in the windows that were open then.
    let spent = left.spent_at(Now::at(edge_ns - S), 0);
    assert_eq!(left.probe(spent.as_slice(), now, 1, 0).remaining, 0);
    let earlier = left.spent_at(Now::at(edge_ns - 20 * S), 0);
    assert_eq!(left.probe(earlier.as_slice(), now, 1, 0).remaining, 9);
    // The next edge is unchanged.
    let next = Now::at(edge_ns + 55 * S);
    assert_eq!(left.probe(&charged, next, 1, 0), open.probe(&charged, next, 1, 0));
}

#[test]
fn if_the_next_window_is_full_too_the_retry_time_is_its_end() {
    let algorithm = Algorithm::FixedWindow(minutely(10));
    let edge = Now::at(600 * S);
    let mut state = Vec::new();
    algorithm.charge_heap(&mut state, edge, 10, 0);
    let verdict = algorithm.probe(&state, edge, 1, 0);
    assert_eq!((verdict.retry_after_ns, verdict.reset_after_ns), (61 * S, 61 * S));
    assert_eq!(algorithm.probe(&state, edge, 11, 0).retry_after_ns, NEVER);
}

proptest! {
    #![proptest_config(history::config(256))]

    /// Cells that have their own edges may share a usage: no charge of any of them is forgotten early.
    #[test]
    fn cells_that_share_a_usage_forget_no_charge_early(
        margin_ns in prop_oneof![Just(S), Just(30 * S), 1..30 * S],
        steps in prop::collection::vec((0_u32..4, 0..40 * S, history::cost()), 1..60),
    ) {
        let edges = Edges::Every { window_ns: 60 * S, stagger: true };
        let window = FixedWindow { margin_ns, ..FixedWindow::new(10, edges) };
        let algorithm = Algorithm::FixedWindow(window.clone());
        let mut state = Vec::new();
        let mut charged: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        let mut now = Now::at(6_000 * S);
        for (quarter, pause, cost) in steps {
            now = now.later(pause);
            let salt = quarter << 30;
            let left = algorithm.available(&state, now, salt);
            let cost = if let Cost::Units(units) = cost { units.min(left) } else { left };
            algorithm.charge_heap(&mut state, now, cost, salt);
            let older = window.end_after(now.wall_ns - margin_ns, salt);
            let newer = window.end_after(now.wall_ns + margin_ns, salt);
            for end_ns in (older..=newer).step_by(60_000_000_000) {
                let units = charged.entry((salt, end_ns)).or_default();
                *units += cost;
                prop_assert!(*units <= 10, "{} in the window of {} to {}", units, salt, end_ns);
            }
        }
    }

    /// A cell that gets a usage of its own takes along all that it charged, in its own windows.
    #[test]
    fn a_cell_that_leaves_a_shared_usage_keeps_its_own_charges(
        margin_ns in prop_oneof![Just(0), Just(S), Just(30 * S), 1..30 * S],
        steps in prop::collection::vec((0_u32..4, 0..40 * S, 0_u64..4), 1..60),
    ) {
        let edges = Edges::Every { window_ns: 60 * S, stagger: true };
        let window = FixedWindow { margin_ns, ..FixedWindow::new(1_000, edges) };
        let mut charged: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        let (mut shared, mut now) = (Usage::default(), 6_000 * S);
        for (quarter, pause, cost) in steps {
            now += pause;
            if cost > 0 {
                let salt = quarter << 30;
                shared = window.charge(shared, now, cost, salt);
                let older = window.end_after(now - margin_ns, salt);
                let newer = window.end_after(now + margin_ns, salt);
                for end_ns in (older..=newer).step_by(60_000_000_000) {
                    *charged.entry((salt, end_ns)).or_default() += cost;
                }
            }
            for salt in (0..4).map(|quarter| quarter << 30) {
                let own = window.apart(shared, now, salt);
                prop_assert!(own.end_ns == 0 || window.is_edge(own.end_ns, salt));
                for ((_, end_ns), units) in charged.range((salt, 0)..=(salt, u64::MAX)) {
                    let counted = if *end_ns <= own.end_ns { own.used } else { own.ahead };
                    let is_left = *end_ns + margin_ns <= now;
                    prop_assert!(is_left || *units <= counted, "{} of {} in {:?} of {:?}", units, end_ns, own, shared);
                }
            }
        }
    }
}

/// A clock that was set back finds the window that it left, in a usage of its own, too.
#[test]
fn charges_kept_from_a_shared_usage_stay_if_a_clock_steps_back() {
    for margin_ns in [0, 5 * S] {
        let edges = Edges::Every { window_ns: 60 * S, stagger: true };
        let window = FixedWindow { margin_ns, ..FixedWindow::new(3, edges) };
        let shared = window.charge(Usage::default(), 6_030 * S, 3, 0);
        for back in [0, 1, 20, 31, 60, 100, 1_000] {
            let now = (6_030 - back) * S;
            assert!(!window.probe(window.apart(shared, now, 0), now, 1, 0).allowed, "{back} s back");
        }
    }
}
