//! Loans, grants, returns and transfers.

use super::{CELL, TOKEN, drain_all, found, lend_to, plan, three};
use crate::{
    budget::{Budget, LimitKey, MS, Measured, S, Shape},
    heal::{heal, quiet},
    oracle::Finding,
    place::TTL_NS,
    world::{Plan, World},
};

/// The giver takes its part back. The holder sleeps meanwhile, wakes, and spends.
pub(super) fn a_holder_sleeps_past_the_end_of_a_loan() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 100);
    lend_to(&mut world, 0, 3 * S);
    for drift in [-1_000, 1_000] {
        world.places[0].clock.drift(world.now, -drift);
        world.places[1].clock.drift(world.now, drift);
        world.places[2].clock.drift(world.now, drift);
        for other in 1..3 {
            world.network.cut.extend([(0, other), (other, 0)]);
        }
        world.places[0].asleep_until = world.now + 4 * S;
        for _ in 0..300 {
            quiet(&mut world, 10 * MS);
            world.weigh(0, 0);
        }
        quiet(&mut world, 5 * S);
        drain_all(&mut world);
        world.network.cut.clear();
        lend_to(&mut world, 0, 3 * S);
    }
    found(world)
}

/// Every frame is delivered twice, the second time much later.
pub(super) fn a_grant_comes_again_after_its_return() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 100);
    world.network.weather.kept = 1_000_000;
    for round in 0..6 {
        lend_to(&mut world, round % 3, 2 * S);
        for _ in 0..200 {
            if let Some(flying) = world.network.again(&mut world.random) {
                world.hand(&flying);
            }
            world.weigh(0, 0);
        }
        drain_all(&mut world);
        quiet(&mut world, 200 * MS);
    }
    found(world)
}

/// A region has spent its part and borrows. It returns the loan with tokens that its own part has earned
/// since, and crashes before the remaining debt is on disk. (History 9002153.)
pub(super) fn a_return_with_more_than_came() -> Option<Finding> {
    let mut world = three(Shape::Token("m", 60 * S), 300, 200);
    for round in 0..12 {
        let holder = 1 + round % 2;
        // The others' units are spent, so they lend capacity without tokens.
        for place in 0..3 {
            if place != holder {
                world.drain(place, CELL);
                world.flush(place);
            }
        }
        lend_to(&mut world, holder, S);
        // Requests have ended. The disk is stuck when the loan is returned.
        for _ in 0..1_400 {
            world.pass(10 * MS);
            while world.deliver() {}
            for place in 0..3 {
                world.tick(place);
                if place != holder {
                    world.flush(place);
                    world.send(place);
                }
            }
        }
        world.take(holder);
        world.crash(holder, 0, 0);
        world.start(holder, false);
        quiet(&mut world, 100 * MS);
        drain_all(&mut world);
        quiet(&mut world, 60 * S);
    }
    found(world)
}

/// A loan ends before its cell is settled. The next settlement is under another version, with a faster rate.
/// (History 7012401.)
pub(super) fn a_loan_that_ended_before_a_new_variant() -> Option<Finding> {
    let mut world = three(TOKEN, 30, 3);
    lend_to(&mut world, 1, 3 * S);
    drain_all(&mut world);
    world.pass(5 * S);
    world.command("budget", |operator| operator.budgets[0] = Some(Budget { units: 30, rate: 60 }));
    drain_all(&mut world);
    found(world)
}

/// A region borrows from many cells, and no longer hears its givers, which still hear it and go on renewing.
/// A budget is lowered, so the givers freeze some loans. Then all loans end at the holder, which refuses them
/// until the givers confirm; but the list of frozen loans is full. The rest must be frozen when there is room
/// again, or they would be renewed for ever. (As in history 10015991.)
pub(super) fn more_refusals_than_can_be_told() -> Option<Finding> {
    // The bucket fills quickly, so silent regions lend at once.
    let budget = |units| Budget { units, rate: 100 };
    let keys = [40, 100];
    let limits = (0..2).map(|place| Measured::new(place, TOKEN, budget(60), keys[place])).collect();
    let mut world = World::new(Plan { limits, ..plan(TOKEN, 60, 100) }, 1);
    let ask_for = |world: &mut World, ns: u64| {
        for _ in 0..ns / (50 * MS) {
            for (limit, keys) in keys.into_iter().enumerate() {
                for request in 0..5 * keys {
                    world.ask(2, LimitKey { limit, key: request % keys }, 1);
                }
            }
            quiet(world, 50 * MS);
        }
    };
    quiet(&mut world, 2 * S);
    ask_for(&mut world, 3 * S);
    world.network.cut.extend([(0, 2), (1, 2)]);
    ask_for(&mut world, TTL_NS / 2);
    world.command("budget", |operator| operator.budgets[0] = Some(budget(6)));
    ask_for(&mut world, TTL_NS / 2);
    // The loans that were frozen first have not ended yet.
    world.network.cut.clear();
    heal(&mut world);
    found(world)
}
