//! Charges that are refunded.

use super::{CELL, TOKEN, drain_all, found, three, versions::put};
use crate::{
    budget::{MS, S, Shape},
    heal::{confirm, quiet},
    oracle::Finding,
    world::World,
};

/// Each region charges what it has, under a name that is on its disk.
fn charge_all(mut world: World) -> World {
    for place in 0..3 {
        world.charge(place, CELL, 100);
        world.flush(place);
    }
    world
}

/// Each region refunds everything.
fn give_all_back(world: &mut World) {
    (0..3).for_each(|which| world.settle(which, None));
}

/// The charge has been earned back by the rate long ago, and was spent again.
pub(super) fn a_refund_to_a_bucket_that_has_refilled() -> Option<Finding> {
    let mut world = charge_all(three(TOKEN, 300, 100));
    quiet(&mut world, 20 * S);
    drain_all(&mut world);
    give_all_back(&mut world);
    drain_all(&mut world);
    found(world)
}

/// One charge is refunded several times.
pub(super) fn a_refund_that_is_said_twice() -> Option<Finding> {
    let mut world = charge_all(three(Shape::Window("1h", false), 300, 1));
    for _ in 0..3 {
        give_all_back(&mut world);
        drain_all(&mut world);
    }
    found(world)
}

/// A charge is refunded after its window has ended.
pub(super) fn a_refund_after_the_window() -> Option<Finding> {
    let mut world = charge_all(three(Shape::Window("1m", false), 300, 1));
    world.pass(61 * S - world.now % (60 * S));
    quiet(&mut world, 100 * MS);
    drain_all(&mut world);
    give_all_back(&mut world);
    drain_all(&mut world);
    found(world)
}

/// A refund is spent, and a crash comes before any of this is on disk. Then the charge is refunded again.
fn crash_after_a_refund(world: World) -> Option<Finding> {
    let mut world = charge_all(world);
    give_all_back(&mut world);
    for place in 0..3 {
        world.drain(place, CELL);
        world.crash(place, 0, 0);
    }
    (0..3).for_each(|place| world.start(place, false));
    // Create the cells.
    confirm(&mut world);
    for place in 0..3 {
        world.ask(place, CELL, 1);
    }
    give_all_back(&mut world);
    drain_all(&mut world);
    found(world)
}

/// The story for a bucket without a journal.
pub(super) fn a_crash_after_a_refund_to_a_bucket() -> Option<Finding> {
    crash_after_a_refund(three(TOKEN, 300, 100))
}

/// The story for a window with a journal.
pub(super) fn a_crash_after_a_refund_to_a_window() -> Option<Finding> {
    crash_after_a_refund(three(Shape::Window("1h", false), 300, 1))
}

/// The rate was higher for a while, so that everything was earned back, and is low again.
pub(super) fn a_refund_after_a_rate_was_higher() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 1);
    for place in 0..3 {
        world.charge(place, CELL, 100);
    }
    put(&mut world, 300, 300);
    quiet(&mut world, 5 * S);
    put(&mut world, 300, 1);
    quiet(&mut world, 2 * S);
    drain_all(&mut world);
    // A process that saw the higher rate knows of it.
    for place in 0..3 {
        world.stop(place);
        world.start(place, true);
    }
    quiet(&mut world, S);
    give_all_back(&mut world);
    drain_all(&mut world);
    found(world)
}

/// Every region has leases out. The rest is spent, time passes, and then the leases are spent.
pub(super) fn leases_that_are_spent_at_their_end() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 100);
    for _ in 0..8 {
        for place in 0..3 {
            world.lease(place, CELL, 50, 2 * S);
            world.flush(place);
        }
        quiet(&mut world, 1_900 * MS);
        drain_all(&mut world);
        // The leases end within this pause.
        quiet(&mut world, 300 * MS);
        drain_all(&mut world);
    }
    found(world)
}
