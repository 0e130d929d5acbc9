//! Clocks that are wrong, set, or anchored again.

use super::{CELL, drain_all, found, lend_to, plan, three};
use crate::{
    budget::{Budget, MS, S, Shape},
    heal::quiet,
    oracle::Finding,
    world::World,
};

/// Clocks are as far apart as they may be, and everything is taken on both sides of an edge.
pub(super) fn a_window_edge_with_clocks_apart() -> Option<Finding> {
    let mut world = three(Shape::Window("1s", false), 300, 1);
    for round in 0..20_u64 {
        let error = if round % 2 == 0 { 10 * MS as i64 } else { -10 * MS as i64 };
        world.places[0].clock.error_ns = error;
        world.places[1].clock.error_ns = -error;
        let edge = world.now - world.now % S + S;
        world.pass(edge - world.now - 15 * MS);
        for _ in 0..30 {
            drain_all(&mut world);
            world.pass(MS);
        }
        quiet(&mut world, 300 * MS);
    }
    found(world)
}

/// A process with a slow steady clock stops. The next process has a right clock, and the rows on disk must
/// not count as older.
pub(super) fn a_steady_clock_that_is_anchored_anew() -> Option<Finding> {
    let mut world = three(Shape::Token("m", 60 * S), 6_000, 3_000);
    for place in 0..3 {
        world.places[place].clock.drift(world.now, -1_000);
    }
    world.pass(20_000 * S);
    quiet(&mut world, 2 * S);
    drain_all(&mut world);
    for place in 0..3 {
        world.flush(place);
        world.crash(place, 9, 0);
        world.start(place, false);
    }
    quiet(&mut world, S);
    drain_all(&mut world);
    found(world)
}

/// A steady clock lags by more than a window's length when its process stops. The next process has a right
/// clock, and freshly charged slots must not count as older. (History 10015156.)
pub(super) fn slots_on_a_clock_that_is_anchored_anew() -> Option<Finding> {
    let mut world = three(Shape::Sliding("90s", 90 * S, Some(5)), 30, 1);
    for place in 0..3 {
        world.places[place].clock.drift(world.now, -1_000);
    }
    world.pass(200_000 * S);
    quiet(&mut world, 2 * S);
    drain_all(&mut world);
    for place in 0..3 {
        world.flush(place);
        world.stop(place);
        world.start(place, true);
    }
    quiet(&mut world, S);
    drain_all(&mut world);
    found(world)
}

/// A region gives rights away and enters the next window. Its clock goes back within the error bound. The
/// rights must not return under the old window's name.
pub(super) fn a_clock_that_goes_back_over_an_edge() -> Option<Finding> {
    let mut world = three(Shape::Window("1m", false), 300, 1);
    for _ in 0..3 {
        world.pass(60 * S - world.now % (60 * S));
        world.places[1].clock.error_ns = 10 * MS as i64;
        quiet(&mut world, 15 * S);
        lend_to(&mut world, 0, 3 * S);
        world.pass(60 * S - world.now % (60 * S) + 2 * MS);
        quiet(&mut world, 10 * MS);
        world.tick(1);
        world.places[1].clock.error_ns = -10 * MS as i64;
        drain_all(&mut world);
        quiet(&mut world, S);
    }
    found(world)
}

/// A region has rights of a window from others. Much later, late frames and a slow clock make the region so
/// unsure of its wall that the window may still be open. The region must not use any of these rights.
/// (History 10000724.)
pub(super) fn a_clock_that_cannot_tell_windows_apart() -> Option<Finding> {
    let mut world = three(Shape::Window("10s", false), 300, 1);
    // The clock is slower than allowed, so the region underestimates how uncertain the time of an answer is.
    world.places[0].clock.drift(world.now, -3_000);
    world.pass(10 * S - world.now % (10 * S));
    lend_to(&mut world, 0, 2 * S);
    // Both others answer region 0's frame, and the answers take very long.
    world.pass(500 * MS);
    world.tick(0);
    world.pass(20 * MS);
    while world.deliver() {}
    world.pass(20 * MS);
    world.tick(1);
    world.tick(2);
    world.pass(2_000 * S);
    while world.deliver() {}
    world.tick(0);
    world.command("budget", |operator| operator.budgets[0] = Some(Budget { units: 3, rate: 1 }));
    for _ in 0..30 {
        quiet(&mut world, S);
        world.weigh(0, 0);
    }
    found(world)
}

/// A clock is set ahead and back before its node's next tick, and requests come in between. They must use no
/// window that other regions have not heard of.
pub(super) fn a_clock_that_is_set_between_two_looks() -> Option<Finding> {
    let mut plan = plan(Shape::Window("1m", false), 300, 1);
    plan.true_windows = false;
    let mut world = World::new(plan, 1);
    quiet(&mut world, 2 * S);
    world.places[2].clock.error_ns = 60 * S as i64;
    world.drain(2, CELL);
    world.flush(2);
    world.places[2].clock.error_ns = 0;
    quiet(&mut world, S);
    world.command("weights", |operator| {
        for (member, weight) in operator.members.values_mut().zip([8, 1, 1]) {
            member.weight = weight;
        }
    });
    quiet(&mut world, 5 * S);
    world.pass(60 * S - world.now % (60 * S));
    quiet(&mut world, S);
    drain_all(&mut world);
    found(world)
}
