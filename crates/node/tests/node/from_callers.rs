//! Limits whose number callers name ([`CallersLimit`]): one cell for each number and each descriptor, and standing
//! shares of that number among regions.

use std::collections::BTreeMap;

use acequia_limits::{
    Charge, Reason, Request,
    descriptor::CallersLimit,
    limit::{LimitSpec, UNITS_MAX_OF_CALLERS},
};
use acequia_node::{Ask, Asker, CellCount};

use crate::{
    pools,
    regions::{MS, World, incarnation},
    scene::{self, MINUTE, S, START},
};

/// The limit for numbers that callers name, up to `most` for each window.
pub(crate) fn named(most: u64, window: &str) -> LimitSpec {
    LimitSpec { by: Vec::new(), from_callers: true, ..scene::window("named", most, window) }
}

/// A request for which a caller names `units` for each `period_s` seconds.
fn request<'a>(entries: &[(&'a str, &'a str)], units: u32, period_s: u32, cost: u64) -> Request<'a> {
    let mut request = Request { cost, ..Request::new("shop", entries) };
    let period_s = period_s.try_into().expect("a period");
    request.spans[0].limit = Some(CallersLimit { units, period_s });
    request
}

/// How many of 100 requests pass.
fn passed(asker: &mut Asker, entries: &[(&str, &str)], units: u32, now: acequia_limits::Now) -> usize {
    (0..100).filter(|_| asker.check(&request(entries, units, 60, 1), now, Ask::CHECK).allowed).count()
}

#[test]
fn each_number_counts_for_itself_and_the_limits_own_number_bounds_it() {
    let ordinary = LimitSpec { by: Vec::new(), ..scene::window("ordinary", 40, "1m") };
    let node = scene::node(&[named(50, "1m"), ordinary], START);
    let mut asker = node.asker();
    let key = [("key", "k")];
    assert_eq!(passed(&mut asker, &key, 7, START), 7);
    assert_eq!(passed(&mut asker, &key, 8, START), 8, "another number has another cell");
    assert_eq!(passed(&mut asker, &[("key", "other")], 7, START), 7, "another value");
    assert_eq!(passed(&mut asker, &[("key", "k"), ("more", "")], 7, START), 7, "another entry");
    assert_eq!(passed(&mut asker, &key, 90, START), 50, "callers name no more than the limit");
    assert_eq!(passed(&mut asker, &key, 0, START), 0);
    assert_eq!(passed(&mut asker, &key, 7, START.later(MINUTE)), 7, "the next window");

    // There is no limit of such windows, so the ordinary one counts. It counts nothing of the others.
    let other = (0..100).filter(|_| {
        let request = request(&key, 7, 61, 1);
        asker.check(&request, START, Ask::CHECK).allowed
    });
    assert_eq!(other.count(), 40);
    let ordinary = Request::new("shop", &key);
    assert!(!asker.check(&ordinary, START, Ask::CHECK).allowed, "it is used up");
}

#[test]
fn answers_are_about_the_named_number() {
    for charge in [Charge::Together, Charge::Always] {
        let node = scene::node(&[LimitSpec { charge, ..named(UNITS_MAX_OF_CALLERS, "1m") }], START);
        let mut asker = node.asker();
        let mut ask = |cost, ask| {
            let request = request(&[("key", "k")], 10, 60, cost);
            let answer = asker.check(&request, START, ask);
            let limit = &answer.limits[0];
            assert_eq!(limit.budget, 10);
            (answer.allowed, limit.verdict.remaining, limit.reason)
        };
        assert_eq!(ask(11, Ask::PEEK), (false, 10, Reason::CostTooHigh));
        assert_eq!(ask(6, Ask::CHECK), (true, 4, Reason::WithinLimit));
        assert_eq!(ask(4, Ask::PEEK), (true, 4, Reason::WithinLimit));
        let left = if charge == Charge::Always { 0 } else { 4 };
        assert_eq!(ask(5, Ask::CHECK), (false, left, Reason::OverLimit));
        assert_eq!(ask(4, Ask::CHECK).0, left == 4);
        let mut over = || ask(1, Ask::CHECK);
        assert_eq!(over(), (false, 0, Reason::OverLimit));
        let retry_ns = asker.last().0.retry_after_ns;
        assert!(retry_ns > 0 && retry_ns <= MINUTE, "{retry_ns}");
    }
}

/// The windows of a limit become longer. The old limit counts until its window is over, and then the ordinary one does.
#[test]
fn a_limit_that_was_replaced_hides_no_other_one() {
    let ordinary = LimitSpec { by: Vec::new(), ..scene::window("ordinary", 40, "1m") };
    let node = scene::node(&[named(50, "1m"), ordinary.clone()], START);
    let mut asker = node.asker();
    let key = [("key", "k")];
    assert_eq!(passed(&mut asker, &key, 7, START), 7);
    scene::apply(&node, &[named(50, "2m"), ordinary], START.later(S));
    assert_eq!(passed(&mut asker, &key, 7, START.later(S)), 0, "the open window is used up");
    assert_eq!(passed(&mut asker, &key, 7, START.later(MINUTE)), 40, "no limit has such windows any more");
    assert_eq!(passed(&mut asker, &key, 7, START.later(MINUTE)), 0);
    let longer = (0..100).filter(|_| {
        let request = request(&key, 7, 120, 1);
        asker.check(&request, START.later(MINUTE), Ask::CHECK).allowed
    });
    assert_eq!(longer.count(), 7);
}

/// A flood of denied hits is recorded up to the largest debt, as of other limits.
#[test]
fn a_flood_of_denied_hits_is_recorded_up_to_the_largest_debt() {
    let node =
        scene::node(&[LimitSpec { charge: Charge::Always, ..named(UNITS_MAX_OF_CALLERS, "1m") }], START);
    let mut asker = node.asker();
    let recorded: usize = (0..1_000)
        .filter(|_| {
            let answer = asker.check(&request(&[("key", "k")], 10, 60, 1), START, Ask::CHECK);
            answer.limits[0].is_charged
        })
        .count();
    assert_eq!(recorded, 10 + 100);
    let answer = asker.check(&request(&[("key", "k")], 10, 60, 1), START, Ask::PEEK);
    assert_eq!(answer.limits[0].late.owed, 100);
}

/// Whoever counts elsewhere gets the named number, and one name for a cell whatever else the node has.
#[test]
fn whoever_counts_elsewhere_is_told_the_named_number() {
    let others = LimitSpec { by: Vec::new(), ..scene::window("ordinary", 40, "1m") };
    let nodes = [scene::node(&[named(50, "1m")], START), scene::node(&[others, named(60, "1m")], START)];
    let tags = nodes.map(|node| {
        let mut asker = node.asker();
        let counted = asker.counted(&request(&[("key", "k")], 10, 60, 3), START, Ask::CHECK);
        let [cell] = counted.cells[..] else { panic!("{counted:?}") };
        assert_eq!((cell.budget, cell.units), (10, 3));
        for (count, allowed, left) in [(10, true, 0), (11, false, 0), (4, true, 6)] {
            let answer = asker.answer_counted(&counted, &[CellCount::Known(count)], START);
            let limit = &answer.limits[0];
            assert_eq!((answer.allowed, limit.verdict.remaining, limit.budget), (allowed, left, 10));
        }
        cell.tag
    });
    assert_eq!(tags[0], tags[1]);
}

const NUMBERS: [u32; 5] = [1, 2, 3, 10, 101];
/// The units of all numbers in two windows.
const TWICE: [u64; NUMBERS.len()] = [2, 4, 6, 20, 202];
const WINDOW: u64 = 10 * S;

/// What was admitted of each number, by the window.
#[derive(Default)]
struct Admitted(BTreeMap<(u64, u32), u32>);

impl Admitted {
    /// Asks every region for everything, each millisecond, for so long.
    fn run(&mut self, world: &mut World, ms: u64) {
        for _ in 0..ms {
            world.run(MS, |_, _| 0);
            for region in 0..world.places.len() {
                for units in NUMBERS {
                    let passed = world.ask_for_all(region, &request(&[("key", "k")], units, 10, 1));
                    *self.0.entry((world.now / WINDOW, units)).or_default() += u32::from(passed);
                }
            }
        }
        for ((window, units), admitted) in &self.0 {
            assert!(admitted <= units, "{admitted} of {units} in window {window}");
        }
    }
}

/// Links are cut, weights change within a window, and a region crashes.
#[test]
fn regions_have_standing_shares_of_every_number_and_never_more() {
    let specs = [named(UNITS_MAX_OF_CALLERS, "10s")];
    let mut world = World::new(3, &specs, 20 * MS);
    let mut admitted = Admitted::default();
    admitted.run(&mut world, 22_000);
    let first = world.now / WINDOW;
    for units in NUMBERS {
        assert_eq!(admitted.0[&(first - 1, units)], units, "all of {units} is used where all ask");
    }
    let members = |weights: [u32; 3]| [0, 1, 2].map(|region| (incarnation(region), weights[region]));
    world.change(0, &specs, &members([1, 5, 1]), &[], 0);
    admitted.run(&mut world, 13_000);
    world.cut = vec![(0, 1), (1, 0)];
    world.change(0, &specs, &members([5, 1, 1]), &[], 0);
    admitted.run(&mut world, 14_500);
    world.cut.clear();
    world.change(0, &specs, &members([1, 1, 6]), &[], 0);
    admitted.run(&mut world, 33_000);
    let last = world.now / WINDOW - 1;
    for units in NUMBERS {
        assert_eq!(admitted.0[&(last, units)], units, "nothing is lost for good");
    }
    let active: usize = world.memberships().iter().flatten().map(|member| member.active_cells).sum();
    assert_eq!(active, 0, "no cell is shared actively");
    let now = world.now_of(0);
    let mut asker = world.places[0].node.asker();
    let answer = asker.check(&request(&[("key", "k")], 10, 10, 1), now, Ask::CHECK);
    let until_ns = WINDOW - now.wall_ns % WINDOW;
    assert!(
        !answer.allowed && answer.retry_after_ns.abs_diff(until_ns) < S,
        "nothing comes before: {answer:?}"
    );
    world.restart(1, None, incarnation(1));
    admitted.run(&mut world, 12_000);
}

/// Asks every node for every number for so long; counts what passes.
fn ask_nodes(world: &mut pools::World, seconds: u64) -> [u64; NUMBERS.len()] {
    let mut passed = [0; NUMBERS.len()];
    for _ in 0..seconds * 50 {
        for (units, passed) in NUMBERS.into_iter().zip(&mut passed) {
            *passed += world.ask_for_named(units, 10);
        }
        world.pass(20 * MS);
    }
    passed
}

/// Callers name numbers at nodes of a region, which have no pools of them, and need no store.
#[test]
fn nodes_that_share_a_store_divide_every_number_among_them() {
    divided_in_one_region();
}

fn divided_in_one_region() {
    let mut world = pools::World::of_new(3, &[named(UNITS_MAX_OF_CALLERS, "10s")], 10);
    world.pass(15 * S);
    let calls = world.calls;
    assert_eq!(ask_nodes(&mut world, 10), TWICE, "all of two windows");
    assert_eq!(world.calls, calls, "nothing is in a pool");
    for at in &mut world.nodes {
        at.way = pools::Way::CUT;
    }
    world.crash(0);
    ask_nodes(&mut world, 17);
    world.stop(1, pools::Stop::CALM);
    ask_nodes(&mut world, 17);
    world.lose_disk(2);
    ask_nodes(&mut world, 17);
    let (named, none) = (world.specs.clone(), [scene::window("other", 1, "10s")]);
    ask_nodes(&mut world, 12);
    world.renumber(&none);
    world.pass(S);
    world.renumber(&named);
    ask_nodes(&mut world, 12);
    assert_eq!(ask_nodes(&mut world, 20), TWICE, "nothing is lost for good");
}

/// Each node of each region has its part of every number, whatever becomes of weights, links and processes.
#[test]
fn nodes_of_several_regions_divide_every_number_among_them() {
    divided_among_regions();
}

fn divided_among_regions() {
    let mut world = pools::World::among_regions(&[2, 1, 2], &[named(UNITS_MAX_OF_CALLERS, "10s")], 10, 1);
    let all = |weights: [u32; 5]| weights.into_iter().enumerate().collect::<Vec<_>>();
    world.pass(S);
    assert!(world.order(&all([1; 5])));
    world.pass(20 * S);
    for weights in [[1, 5, 1, 1, 1], [5, 1, 1, 1, 1], [1, 1, 1, 1, 9]] {
        ask_nodes(&mut world, 13);
        assert!(world.order(&all(weights)));
        ask_nodes(&mut world, 3);
        world.crash(1);
    }
    assert!(world.order(&[(0, 1), (1, 1), (2, 1), (3, 1)]));
    ask_nodes(&mut world, 17);
    // What a crash forgot is over.
    world.pass(300 * S);
    assert_eq!(ask_nodes(&mut world, 10), TWICE, "nothing is lost for good");
}

/// A journal reserves units ahead of use. What a crash loses of them is a small part of the named number.
#[test]
fn a_crash_forgets_no_charge_and_little_else() {
    let specs = [named(UNITS_MAX_OF_CALLERS, "1h")];
    let mut world = World::new(1, &specs, MS);
    let ask = |world: &mut World| world.ask_for_all(0, &request(&[("key", "k")], 1_000, 3_600, 1));
    let before = (0..500)
        .filter(|_| {
            world.run(MS, |_, _| 0);
            ask(&mut world)
        })
        .count();
    world.run(10 * MS, |_, _| 0);
    world.restart(0, None, incarnation(0));
    world.run(100 * MS, |_, _| 0);
    let after = (0..1_000).filter(|_| ask(&mut world)).count();
    assert_eq!(before, 500);
    assert!((480..=500).contains(&after), "{after}");
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::{Mutation, break_rule};
    std::panic::set_hook(Box::new(|_| ()));
    break_rule(Some(Mutation::CallersShareWhole));
    let found = [divided_in_one_region, divided_among_regions].map(std::panic::catch_unwind);
    break_rule(None);
    drop(std::panic::take_hook());
    assert!(found.iter().all(Result::is_err), "a rule can be left out unnoticed");
}
