//! Limits that are lowered while nodes hold units of larger pools or calls are under way, and limit files
//! that differ between nodes.

use acequia_limits::limit::LimitSpec;
use acequia_node::pool::{PoolCall, PoolRequest};

use super::{bucket, settled, sliding, window};
use crate::{
    pools::{Way, World},
    scene,
    scene::{MS, S},
};

#[test]
fn units_leased_under_a_larger_limit_return_when_it_is_lowered() {
    let numbers = [
        (window("l", 1_000, "10s"), window("l", 20, "10s")),
        (bucket("l", "100/s", 1_000), bucket("l", "100/s", 20)),
        (sliding("l", 1_000, "10s"), sliding("l", 20, "10s")),
    ];
    for (before, after) in numbers {
        let mut world = settled(3, before);
        let demand = |world: &mut World, seconds: u64| {
            for number in 0..seconds * 150 {
                world.ask((number % 3) as usize, "k", 1);
                world.pass(S / 150);
            }
        };
        demand(&mut world, 15);
        world.renumber(&[after]);
        // Windows and debts from the old variant have ended, and units held under it are back.
        demand(&mut world, 25);
        world.forget_counts();
        demand(&mut world, 60);
        assert!(world.admitted(0, "k") > 60, "something passes");
    }
}

#[test]
fn a_grant_under_way_while_a_limit_is_lowered_exceeds_no_lower_limit() {
    under_way();
}

pub(crate) fn under_way() {
    let numbers = [
        (window("l", 1_000, "1s"), window("l", 20, "1s")),
        (bucket("l", "1000/s", 1_000), bucket("l", "20/s", 20)),
        (sliding("l", 1_000, "1s"), sliding("l", 20, "1s")),
    ];
    for (before, after) in numbers {
        for moment in 0..6 {
            let mut world = settled(2, before.clone());
            world.is_prompt = true;
            world.nodes.iter_mut().for_each(|at| at.way.delay_ns = (7 * MS, 9 * MS));
            let demand = |world: &mut World, ms: u64| {
                for number in 0..ms / 2 {
                    world.ask((number % 2) as usize, "k", 1);
                    world.pass(2 * MS);
                }
            };
            demand(&mut world, 2_000 + moment * 53);
            // A call has just left that may bring units; for windows, those of a later window.
            let brings = |call: &PoolCall| match &call.question {
                PoolRequest::Take(name, take) => {
                    take.wanted > 0 && name.end_ns > call.wall_us * 1_000 + 1_050 * MS
                }
                PoolRequest::Exchange(_, exchange, _) => exchange.wanted.units > 0,
                PoolRequest::Slide(_, slide) => slide.wanted > 0,
                _ => false,
            };
            for _ in 0..5_000 {
                if world.is_under_way(brings) {
                    break;
                }
                demand(&mut world, 2);
            }
            world.renumber(std::slice::from_ref(&after));
            // Replies on their way arrive, and then no more. Each node continues with what it holds.
            world.pass(10 * MS);
            world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
            // Windows and debts from the old variant have ended.
            world.pass(1_100 * MS);
            world.forget_counts();
            demand(&mut world, 14_000);
        }
    }
}

#[test]
fn a_grant_lost_before_a_limit_was_lowered_exceeds_no_lower_limit() {
    lost_before();
}

/// Half of all replies are lost. The first reply after the limit was lowered reports the total that was
/// granted.
pub(crate) fn lost_before() {
    for moment in 0..40 {
        let mut world = settled(2, window("l", 1_000, "1s"));
        let demand = |world: &mut World, ms: u64| {
            for number in 0..ms / 2 {
                world.ask((number % 2) as usize, "k", 1);
                world.pass(2 * MS);
            }
        };
        world.nodes.iter_mut().for_each(|at| at.way = Way { delay_ns: (MS, 2 * MS), lost: 50 });
        demand(&mut world, 2_000 + moment * 53);
        world.renumber(&[window("l", 20, "1s")]);
        world.nodes.iter_mut().for_each(|at| at.way = Way::GOOD);
        // Windows and debts from the old variant have ended.
        world.pass(1_100 * MS);
        world.forget_counts();
        demand(&mut world, 14_000);
        assert!(world.admitted(0, "k") > 100, "{} passed", world.admitted(0, "k"));
    }
}

/// A node asks for units of the next window, and the grant is lost. Then no requests come for so long that
/// the node would drop a cell without units. The limit is lowered, and the window opens.
#[test]
fn a_cell_with_an_unanswered_withdrawal_is_kept_without_requests() {
    for again in [false, true] {
        let mut world = settled(2, window("l", 1_000, "60s"));
        let is_ahead = |call: &PoolCall| match &call.question {
            PoolRequest::Take(name, take) => take.wanted > 0 && name.end_ns > call.wall_us * 1_000 + 60 * S,
            _ => false,
        };
        let first = (0..400_000).find(|step| {
            if step % 2_000 == 0 {
                world.ask(0, "k", 1);
            }
            world.pass(MS / 10);
            world.is_under_way(is_ahead)
        });
        assert!(first.is_some(), "something is asked for ahead");
        // The call arrives. Its reply is lost.
        world.nodes[0].way = Way::CUT;
        world.pass(15 * S);
        let open_ns = (world.true_ns / (60 * S) + 1) * 60 * S;
        world.renumber(&[window("l", 40, "60s")]);
        world.pass(open_ns + 11 * S - world.true_ns);
        if again {
            world.renumber(&[window("l", 39, "60s")]);
        }
        world.nodes[0].way = Way::GOOD;
        world.forget_counts();
        for number in 0..2_000 {
            world.ask(number % 2, "k", 1);
            world.pass(5 * MS);
        }
        assert!(world.admitted(0, "k") >= 30, "{} passed", world.admitted(0, "k"));
    }
}

/// A sliding window's part that was cut and not used may be held again at once.
#[test]
fn unused_units_cut_from_a_sliding_window_can_be_leased_again_at_once() {
    for units in [400, 100] {
        cut_to(units);
    }
}

fn cut_to(units: u64) {
    let mut world = settled(2, sliding("l", 1_000, "20s"));
    // One node holds half of the limit, and uses little.
    for _ in 0..100 {
        world.ask(0, "k", 1);
        world.pass(50 * MS);
    }
    let held = world.holding(0, "k").effective.units;
    assert!((400..600).contains(&held), "{held} held");
    world.renumber(&[sliding("l", units, "20s")]);
    world.forget_counts();
    world.pass(S);
    for _ in 0..100 {
        world.ask_patiently(1, "k", 1);
        world.pass(10 * MS);
    }
    let all: u64 = [0, 1].map(|place| world.holding(place, "k").effective.units).iter().sum();
    assert!((units * 9 / 10..=units).contains(&all), "both hold {all} of {units}");
}

/// The limit before and after, for each algorithm, and how many units pass in ten seconds afterwards.
fn larger_and_smaller() -> [([LimitSpec; 2], u64); 4] {
    [
        ([sliding("l", 1_000, "1s"), sliding("l", 100, "1s")], 1_000),
        ([sliding("l", 1_000, "10s"), sliding("l", 100, "10s")], 100),
        ([bucket("l", "100/s", 1_000), bucket("l", "100/s", 100)], 1_000),
        ([window("l", 1_000, "1s"), window("l", 100, "1s")], 1_000),
    ]
}

#[test]
fn a_limit_may_be_lowered_on_one_node_after_the_other() {
    one_after_the_other();
}

/// Nodes that have heard of the lower limit keep a proportional part. Other nodes cannot withdraw what these
/// give back, because they would keep a part of that.
pub(crate) fn one_after_the_other() {
    let apart = |numbers: ([LimitSpec; 2], u64)| [(numbers.clone(), S / 2), (numbers, 5 * S)];
    for (([before, after], passes), apart_ns) in larger_and_smaller().into_iter().flat_map(apart) {
        let mut world = settled(4, before);
        saturate(&mut world, 10 * S);
        for place in 0..4 {
            lower(&mut world, place, &after);
            saturate(&mut world, apart_ns);
        }
        // All have heard. The lower limit holds once nothing from before counts any more.
        saturate(&mut world, 11 * S);
        world.specs = vec![after];
        world.forget_counts();
        saturate(&mut world, 30 * S);
        let passed = world.admitted(0, "k");
        assert!(passed > passes * 3 * 9 / 10, "{passed} passed");
    }
}

#[test]
fn a_limit_can_be_raised_on_some_nodes_and_put_back() {
    for ([large, small], _) in larger_and_smaller() {
        let mut world = settled(4, small.clone());
        saturate(&mut world, 10 * S);
        world.specs = vec![large.clone()];
        world.forget_counts();
        for place in [0, 2] {
            lower(&mut world, place, &large);
            saturate(&mut world, 10 * S);
        }
        for place in [2, 0] {
            lower(&mut world, place, &small);
            saturate(&mut world, S / 2);
        }
        saturate(&mut world, 11 * S);
        world.specs = vec![small];
        world.forget_counts();
        saturate(&mut world, 30 * S);
    }
}

#[test]
fn an_override_of_a_pooled_limit_ends_at_its_time() {
    ends_by_itself();
}

/// An override ends by itself at a window's edge. Nobody goes on with units taken under it, whether of that
/// window, of later windows or of a lease, and whether or not the store can be reached.
pub(crate) fn ends_by_itself() {
    let numbers =
        [window("l", 20, "10s"), window("l", 20, "1s"), sliding("l", 20, "1s"), bucket("l", "20/s", 20)];
    for (base, is_cut) in numbers.into_iter().flat_map(|base| [(base.clone(), false), (base, true)]) {
        let until_ns = scene::START.wall_ns + 90 * S;
        let units = if base.token_bucket.is_some() { "burst" } else { "limit" };
        let until = scene::instant(until_ns);
        let mut ends = base;
        ends.overrides =
            vec![scene::fields(&[("key", &["k"]), (units, &["1000"]), ("until", &[until.as_str()])])];
        if let Some(bucket) = &ends.token_bucket {
            let rate = bucket.rate.clone();
            ends.overrides[0].extend(scene::fields(&[("rate", &[rate.as_str()])]));
        }
        let mut world = settled(4, ends.clone());
        demand(&mut world, 30 * S - MS);
        assert!(world.admitted(0, "k") > 100, "{} passed under the override", world.admitted(0, "k"));
        if is_cut {
            world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
        }
        if ends.fixed_window.is_none() {
            // Use under the override has left the window, or is earned again.
            demand(&mut world, S + S / 10);
        } else {
            // The first request finds that the override has ended, and that another window is open.
            world.true_ns += 20 * MS;
        }
        world.forget_counts();
        demand(&mut world, 30 * S);
    }
}

/// Every node is asked for some units.
fn demand(world: &mut World, for_ns: u64) {
    let until_ns = world.true_ns + for_ns;
    while world.true_ns < until_ns {
        for place in 0..world.nodes.len() {
            world.ask(place, "k", 1);
        }
        world.pass((S / 15).min(until_ns - world.true_ns));
    }
}

/// One node reads a changed limit.
fn lower(world: &mut World, place: usize, spec: &LimitSpec) {
    scene::apply(&world.nodes[place].node, std::slice::from_ref(spec), world.now(place));
}

/// Every node is asked for more than the whole limit.
fn saturate(world: &mut World, for_ns: u64) {
    let until_ns = world.true_ns + for_ns;
    while world.true_ns < until_ns {
        for place in 0..world.nodes.len() {
            world.ask(place, "k", 1);
        }
        world.pass(S / 500);
    }
}

/// Limit files do not change on all nodes at once. While they disagree on a burst, no more is earned than the
/// one rate. This holds if nodes with the larger burst ask only as often as their guard shares give, and if
/// all ask for all.
#[test]
fn while_nodes_disagree_on_a_burst_they_earn_only_the_one_rate() {
    for (small, large, every) in [(3, 400, 350), (3, 40, 350), (12, 40, 350), (3, 400, 1), (12, 40, 1)] {
        let mut world = settled(4, bucket("b", "60/s", small));
        for place in 1..4 {
            scene::apply(&world.nodes[place].node, &[bucket("b", "60/s", large)], world.now(place));
        }
        world.pass(S);
        let mut passed = 0;
        for number in 0..30_000 {
            for place in 0..4 {
                let now = world.now(place);
                let asks = place == 0 || number % every == 0;
                passed += usize::from(asks && scene::passes(&mut world.nodes[place].asker, "k", 1, now));
            }
            world.pass(2 * MS);
        }
        // A minute's earnings and the initial burst, plus clock drift.
        let most = large as usize + 3_600 * 1_001 / 1_000 + 1;
        assert!(passed <= most, "{passed} of {most} of a burst of {small} or {large}");
    }
}

#[test]
fn a_node_cut_off_from_the_store_lowers_its_lease_with_the_limit() {
    let mut world = settled(3, sliding("l", 1_000, "10s"));
    for number in 0..1_500 {
        world.ask((number % 3) as usize, "k", 1);
        world.pass(10 * MS);
    }
    world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
    world.renumber(&[sliding("l", 20, "10s")]);
    // Admissions under the old limit have left the window.
    world.pass(11 * S);
    world.forget_counts();
    for number in 0..600 {
        world.ask((number % 3) as usize, "k", 1);
        world.pass(100 * MS);
    }
    assert!(world.admitted(0, "k") > 0, "something passes");
}
