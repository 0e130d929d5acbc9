//! Versions of the catalogue: budgets, evictions, the authority, and limits that come and go.

use acequia_rights::VersionId;

use super::{TOKEN, disks::crash_all, drain_all, found, lend_to, plan, three};
use crate::{
    budget::{Budget, MS, Measured, Own, S, Shape},
    heal::{heal, quiet},
    oracle::Finding,
    world::{Plan, World},
};

/// The evicted region had lent to a survivor that is out of reach. The survivor spends what it holds, while
/// the authority redistributes the evicted region's share.
pub(super) fn an_eviction_that_a_survivor_has_not_heard_of() -> Option<Finding> {
    let mut world = three(Shape::Window("1h", false), 300, 1);
    lend_to(&mut world, 2, 2 * S);
    world.network.cut.extend([(0, 2), (2, 0)]);
    quiet(&mut world, S);
    world.crash(1, 9, 0);
    world.evict(1);
    quiet(&mut world, 10 * S);
    drain_all(&mut world);
    let hour = 3_600 * S;
    world.pass(hour - world.now % hour + S);
    quiet(&mut world, 2 * S);
    drain_all(&mut world);
    world.network.cut.clear();
    quiet(&mut world, 10 * S);
    drain_all(&mut world);
    found(world)
}

/// A budget is lowered while most of it is lent. The lowering must not be reported as effective before the
/// loans are back.
pub(super) fn a_lowering_while_lent_out() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 100);
    lend_to(&mut world, 0, 3 * S);
    for units in [30, 300, 3, 300] {
        world.network.cut.extend([(0, 1), (1, 0)]);
        world.command("budget", |operator| {
            operator.budgets[0] = Some(Budget { units, rate: units.div_ceil(3) })
        });
        for _ in 0..40 {
            quiet(&mut world, 50 * MS);
            drain_all(&mut world);
        }
        world.network.cut.clear();
        lend_to(&mut world, 0, 3 * S);
    }
    found(world)
}

/// A limit is removed, and returns before earlier spending under it has expired. A process crashes in
/// between.
pub(super) fn a_limit_that_comes_back() -> Option<Finding> {
    for shape in [
        Shape::Window("10s", false),
        Shape::Sliding("10s", 10 * S, None),
        Shape::Sliding("10s", 10 * S, Some(10)),
    ] {
        let mut world = three(shape, 30, 1);
        quiet(&mut world, S);
        drain_all(&mut world);
        world.command("remove", |operator| operator.budgets[0] = None);
        quiet(&mut world, S);
        world.crash(1, 9, 0);
        world.start(1, false);
        quiet(&mut world, 500 * MS);
        world.command("add", |operator| operator.budgets[0] = Some(Budget { units: 30, rate: 1 }));
        for _ in 0..10 {
            quiet(&mut world, 100 * MS);
            drain_all(&mut world);
        }
        if world.oracle.finding.is_some() {
            return found(world);
        }
    }
    None
}

/// Weights move from one region to the next, and a region hears only of the last version.
pub(super) fn a_version_that_was_skipped() -> Option<Finding> {
    let mut world = three(Shape::Window("1s", false), 300, 1);
    let weights = |world: &mut World, of: [u32; 3]| {
        world.command("weights", |operator| {
            for (member, weight) in operator.members.values_mut().zip(of) {
                member.weight = weight;
            }
        });
    };
    for of in [[1, 8, 1], [8, 1, 1], [1, 1, 8]] {
        world.network.cut.extend([(0, 2), (2, 0), (1, 2), (2, 1)]);
        weights(&mut world, of);
        for _ in 0..4 {
            quiet(&mut world, 500 * MS);
            drain_all(&mut world);
        }
        world.network.cut = vec![(1, 2), (2, 1)];
        weights(&mut world, [of[1], of[2], of[0]]);
        for _ in 0..4 {
            quiet(&mut world, 500 * MS);
            drain_all(&mut world);
        }
        world.network.cut.clear();
        quiet(&mut world, 3 * S);
        drain_all(&mut world);
    }
    found(world)
}

/// A disk is lost. The new incarnation owns nothing until the authority names it and all agree.
pub(super) fn a_lost_disk_that_nobody_named() -> Option<Finding> {
    let mut world = three(Shape::Window("1h", false), 300, 1);
    drain_all(&mut world);
    world.lose_disk(1);
    for _ in 0..5 {
        quiet(&mut world, S);
        drain_all(&mut world);
    }
    world.name(1, 1);
    for _ in 0..5 {
        quiet(&mut world, S);
        drain_all(&mut world);
    }
    if world.places[1].floor == VersionId::default() {
        world.oracle.find("settle", "region 1 was never named".to_owned());
    }
    found(world)
}

/// The evicted region had lent. The holder must drop the loan, although it has some seconds left.
pub(super) fn an_eviction_of_a_giver() -> Option<Finding> {
    let mut world = three(TOKEN, 30, 100);
    lend_to(&mut world, 2, 3 * S);
    world.crash(1, 9, 0);
    world.evict(1);
    for _ in 0..60 {
        quiet(&mut world, 50 * MS);
        drain_all(&mut world);
    }
    found(world)
}

/// The evicted region's debt drains at its own part of the rate. Nobody else may have this part before the
/// debt is drained, however small and slow the budget was meanwhile. (History 501232.)
pub(super) fn a_lowering_after_an_eviction() -> Option<Finding> {
    for numbers in [[(1, 30), (300, 30)], [(3, 3), (300, 300)]] {
        let mut world = three(TOKEN, 300, 30);
        drain_all(&mut world);
        world.crash(1, 9, 0);
        world.evict(1);
        quiet(&mut world, 200 * MS);
        for (units, rate) in numbers {
            world.command("budget", |operator| operator.budgets[0] = Some(Budget { units, rate }));
            for _ in 0..50 {
                quiet(&mut world, 100 * MS);
                drain_all(&mut world);
            }
        }
        if world.oracle.finding.is_some() {
            return found(world);
        }
    }
    None
}

/// Two places take over in one epoch without knowing of each other. This admits nothing extra, and a third
/// epoch resolves the conflict.
pub(super) fn two_who_take_over_at_once() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 100);
    for other in 1..3 {
        world.network.cut.extend([(0, other), (other, 0)]);
    }
    world.publish(0, true);
    world.publish(1, true);
    for _ in 0..10 {
        quiet(&mut world, 200 * MS);
        drain_all(&mut world);
    }
    world.network.cut.clear();
    quiet(&mut world, 3 * S);
    drain_all(&mut world);
    world.publish(1, true);
    heal(&mut world);
    found(world)
}

/// A region that has used a window is evicted, and the window's limit is removed. A process without knowledge
/// of the limit starts. The limit returns, and the evicted region's use counts while the window is open.
/// (Histories 10008676 and 20015954.)
pub(super) fn a_limit_that_comes_back_after_a_restart() -> Option<Finding> {
    let mut world = three(Shape::Window("1h", false), 300, 1);
    drain_all(&mut world);
    world.stop(2);
    world.evict(2);
    quiet(&mut world, 2 * S);
    world.command("remove", |operator| operator.budgets[0] = None);
    quiet(&mut world, 2 * S);
    world.stop(1);
    world.start(1, true);
    quiet(&mut world, 5 * S);
    world.command("add", |operator| operator.budgets[0] = Some(Budget { units: 300, rate: 1 }));
    for _ in 0..10 {
        quiet(&mut world, 100 * MS);
        drain_all(&mut world);
    }
    found(world)
}

/// Like [`a_lowering_after_an_eviction`]; the region that receives the evicted region's share restarts in
/// between.
pub(super) fn a_lowering_before_a_restart() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 30);
    drain_all(&mut world);
    world.crash(1, 9, 0);
    world.evict(1);
    quiet(&mut world, 200 * MS);
    for units in [1, 300] {
        world.command("budget", |operator| operator.budgets[0] = Some(Budget { units, rate: 30 }));
        quiet(&mut world, 500 * MS);
        for place in [0, 2] {
            world.stop(place);
            world.start(place, true);
        }
        for _ in 0..20 {
            quiet(&mut world, 100 * MS);
            drain_all(&mut world);
        }
    }
    found(world)
}

/// The evicted region's debt drains at its part of the rate, which is now a tenth of the former rate. Its old
/// allocation is kept for as long as the largest number of units needs at the slowest rate.
pub(super) fn a_slower_rate_after_an_eviction() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 30);
    drain_all(&mut world);
    world.crash(1, 9, 0);
    world.evict(1);
    quiet(&mut world, 200 * MS);
    for (units, seconds) in [(1, 40), (300, 2)] {
        world.command("budget", |operator| operator.budgets[0] = Some(Budget { units, rate: 3 }));
        for _ in 0..seconds {
            quiet(&mut world, S);
            drain_all(&mut world);
        }
    }
    found(world)
}

/// The authority sends its last version to one region, and loses its disk before that region adopts the
/// version. Another place takes over in the same epoch. (History 20035769.)
pub(super) fn an_authority_that_is_lost_with_its_last_word() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 100);
    world.network.cut.push((1, 0));
    world.take_over(1);
    world.flush(1);
    world.tick(1);
    world.lose_disk(1);
    world.take_over(0);
    quiet(&mut world, S);
    heal(&mut world);
    found(world)
}

/// A region is to leave, and only the authority has heard of this when its disk is lost. The leaving region
/// must not take over. (History 20037148.)
pub(super) fn an_authority_that_is_lost_with_what_it_was_told() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 100);
    world.network.cut.extend([(0, 1), (0, 2)]);
    world.leave(1);
    for round in 0..5 {
        world.pass(10 * MS);
        world.flush(0);
        if round == 4 {
            world.network.cut.clear();
        }
        world.tick(0);
    }
    // Others hear that region 0 goes by some version, but not which one.
    world.pass(20 * MS);
    while world.deliver() {}
    world.lose_disk(0);
    heal(&mut world);
    found(world)
}

pub(super) fn put(world: &mut World, units: u64, rate: u64) {
    world.command("budget", |operator| operator.budgets[0] = Some(Budget { units, rate }));
    quiet(world, S);
}

/// Everything is spent. For a while the rate is low, without requests; then it is restored, and every process
/// crashes. The disk must know how little was earned meanwhile.
pub(super) fn a_rate_that_was_lower_for_a_while() -> Option<Finding> {
    // Cells that still have an account, and cells without one.
    for idle_ns in [0, 15 * S] {
        let mut world = three(Shape::Token("m", 60 * S), 300, 200);
        drain_all(&mut world);
        quiet(&mut world, idle_ns);
        put(&mut world, 300, 10);
        world.pass(90 * S);
        put(&mut world, 300, 200);
        crash_all(&mut world);
        drain_all(&mut world);
        if world.oracle.finding.is_some() {
            return found(world);
        }
    }
    None
}

/// Two regions never reach each other, and a third reaches both. The third must pass on their
/// acknowledgements, or the two would wait for each other for ever. (Histories 100033006 and 200025499.)
pub(super) fn a_word_that_a_third_passes_on() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 100);
    world.network.cut.extend([(1, 2), (2, 1)]);
    world.command("weights", |operator| {
        operator
            .members
            .values_mut()
            .for_each(|member| member.weight = 1 + u32::from(member.incarnation.member.0));
    });
    quiet(&mut world, 5 * S);
    let wanted = world.places[0].version_id;
    for (number, place) in world.places.iter().enumerate() {
        let progress =
            place.node().and_then(|node| node.membership(place.now(world.now))).and_then(|m| m.progress);
        if progress.as_ref().is_none_or(|progress| progress.effective != wanted) {
            world.oracle.find("settle", format!("region {number} waits for {wanted:?}: {progress:?}"));
            break;
        }
    }
    found(world)
}

/// A cell has no more requests when another key gets its own variant. That variant is the smallest, so each
/// region guesses that the cell has it. Then it is raised, and the limit's own is lowered. The guess must
/// not bind the cell to the other key's variant: a region may lend all that it goes by. (Histories 2100000725
/// and 2100001490.)
pub(super) fn a_guess_at_a_cells_variant() -> Option<Finding> {
    let limits = vec![Measured::new(0, TOKEN, Budget { units: 300, rate: 100 }, 2)];
    let mut world = World::new(Plan { limits, ..plan(TOKEN, 300, 100) }, 1);
    quiet(&mut world, 2 * S);
    // Create the cell in all regions.
    lend_to(&mut world, 0, 2 * S);
    for (all, other) in [(300, 3), (3, 300)] {
        let numbers = |units| Budget { units, rate: 100 };
        world.command("own numbers", |operator| {
            operator.budgets[0] = Some(numbers(all));
            operator.owns[0] = Some(Own { key: 1, budget: numbers(other), until_ns: None });
        });
        for _ in 0..20 {
            quiet(&mut world, 50 * MS);
            world.weigh(0, 0);
        }
    }
    found(world)
}
