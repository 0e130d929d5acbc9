//! Loans, grants, returns and what was given.

use super::{CELL, TOKEN, drain_all, found, lend_to, plan, three};
use crate::{
    budget::{Budget, MS, Measured, S, Shape},
    heal::{heal, quiet},
    oracle::Finding,
    place::TTL_NS,
    world::{Plan, World},
};

/// The giver takes its part back; the holder sleeps all the while, wakes, and spends.
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

/// Everything is delivered twice, the second time much later.
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

/// A region has spent its part and borrows; it gives the loan back with the tokens that its own part has since, and
/// crashes before the disk hears of the debt that stays. (History 9002153.)
pub(super) fn a_return_with_more_than_came() -> Option<Finding> {
    let mut world = three(Shape::Token("m", 60 * S), 300, 200);
    for round in 0..12 {
        let holder = 1 + round % 2;
        // What others have is spent, so that they lend capacity without tokens.
        for place in 0..3 {
            if place != holder {
                world.drain(place, CELL);
                world.flush(place);
            }
        }
        lend_to(&mut world, holder, S);
        // Nobody asks any more; the disk is stuck when the loan goes back.
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

/// A loan ends while nobody looks, and the next look is at another version, with a quicker rate. (History 7012401.)
pub(super) fn a_loan_that_ended_before_new_numbers() -> Option<Finding> {
    let mut world = three(TOKEN, 30, 3);
    lend_to(&mut world, 1, 3 * S);
    drain_all(&mut world);
    world.pass(5 * S);
    world.command("budget", |operator| operator.budgets[0] = Some(Budget { units: 30, rate: 60 }));
    drain_all(&mut world);
    found(world)
}

/// A region joins, has no share yet, and is so far away that all that others lend comes too late. It refuses more loans
/// at once than may be frozen: all of them come back. (History 10015991.)
pub(super) fn more_refusals_than_can_be_told() -> Option<Finding> {
    let limits =
        (0..3).map(|place| Measured::new(place, TOKEN, Budget { units: 300, rate: 100 }, 3)).collect();
    let four = Plan { places: 4, limits, weights: vec![1; 4], ..plan(TOKEN, 300, 100) };
    let mut world = World::new(four, 1);
    quiet(&mut world, 2 * S);
    // Who is down cannot agree that it has one.
    world.stop(2);
    world.join(3, 1);
    quiet(&mut world, S);
    world.network.weather.way_ns = (TTL_NS, TTL_NS + 200 * MS);
    for _ in 0..500 {
        for cell in 0..9 {
            world.ask(3, (cell / 3, cell % 3), 1);
        }
        quiet(&mut world, 20 * MS);
    }
    heal(&mut world);
    found(world)
}
