//! Stories about nodes that lend and transfer what they hold of their region's pool.

use acequia_limits::limit::LimitSpec;

use super::{all, cut, passes, shared, shared_by};
use crate::{
    pools::{Way, World},
    scene::{self, MS, S, bucket, sliding, window},
};

/// One node is asked for more than its region has, and receives what is in the other region's pool. Then the
/// other region is asked.
pub(crate) fn lent_and_asked(spec: LimitSpec) -> World {
    let mut world = shared(spec, [1, 1, 3, 3]);
    passes(&mut world, &[0], 20);
    let a_second = passes(&mut world, &[0], 20);
    assert!(a_second[0] >= 90, "{a_second:?}");
    world
}

/// Units of a pool that were given or lent belong to nobody else: neither to the giver nor to its mates.
pub(crate) fn given_once() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 50), sliding("s", 1_000, "10s")] {
        let mut world = lent_and_asked(spec);
        for _ in 0..4 {
            passes(&mut world, &[0], 3);
            passes(&mut world, &[0, 2], 10);
            passes(&mut world, &[0, 3], 10);
        }
        passes(&mut world, &[0, 1, 2, 3], 20);
    }
}

/// A lender loses its pool for longer than its lease lasts. Its loans end before the lease, although nobody
/// can recall them in the end.
pub(crate) fn lent_and_cut() {
    for after_s in 68..76 {
        let mut world = lent_and_asked(bucket("b", "100/s", 20));
        world.nodes[2].way = Way::CUT;
        passes(&mut world, &[0], 60);
        // The lender hears only from its pool.
        cut(&mut world, &[3]);
        passes(&mut world, &[0, 3], after_s - 60);
        cut(&mut world, &[2, 3]);
        passes(&mut world, &[0, 3], 10);
    }
}

/// A node holds a lease that it can no longer give back and that ends soon; then somebody wants to borrow
/// from it.
pub(crate) fn lent_at_the_end() {
    for number in 0..48 {
        let (seed, before_ms) = (1 + number / 12, number % 12 * 300);
        let mut world = shared_by(seed, bucket("b", "100/s", 10), [1; 4]);
        passes(&mut world, &[2], 20);
        world.nodes[2].way = Way::CUT;
        passes(&mut world, &[3], 10);
        world.pass(65 * S - before_ms * MS);
        passes(&mut world, &[0, 3], 10);
    }
}

/// Shares change while units withdrawn from pools are lent.
pub(crate) fn lent_and_ordered() {
    for spec in [bucket("b", "100/s", 200), sliding("s", 1_000, "10s")] {
        for weights in [[1, 1, 3, 3], [3, 3, 1, 1], [1, 1, 1, 3]] {
            let mut world = lent_and_asked(spec.clone());
            assert!(world.order(&all(weights)));
            passes(&mut world, &[0, 2, 3], 40);
            world.expect_granting("when all have heard");
        }
    }
}

/// One node has lent nearly all of its region's pool, because its mate hears from nobody.
pub(crate) fn lent_by_one() -> World {
    let mut world = shared(bucket("b", "100/s", 30), [1, 1, 9, 9]);
    cut(&mut world, &[3]);
    passes(&mut world, &[1], 40);
    world
}

/// The lender dies, and its region's server forgets everything. The operator declares the lender stopped for
/// good. The borrower does not hear this, and uses the loan until it ends.
pub(crate) fn lent_by_one_that_is_gone() {
    for (wait, crashes) in (0..5).flat_map(|wait| [(wait, false), (wait, true)]) {
        let mut world = lent_by_one();
        passes(&mut world, &[1], 1);
        world.pass(wait * 200 * MS);
        world.nodes[2].is_hung = true;
        world.regions.as_mut().expect("regions").servers[0].restart(None);
        cut(&mut world, &[1, 2]);
        assert!(world.order_without(&[(0, 1), (1, 1), (3, 9)], &[2]));
        if crashes {
            // The mate has heard that the lender is gone.
            world.pass(200 * MS);
            world.crash(3);
        }
        passes(&mut world, &[1, 3], 8);
        cut(&mut world, &[2]);
        passes(&mut world, &[1, 3], 20);
    }
}

/// Shares change, and the lender's mate asks for the rest, while the borrower hears of nothing.
pub(crate) fn lent_by_one_and_ordered() {
    for later in 0..8 {
        let mut world = lent_by_one();
        passes(&mut world, &[1], 1);
        world.pass(later * 130 * MS);
        cut(&mut world, &[1]);
        assert!(world.order(&all([10, 10, 90, 91])));
        passes(&mut world, &[0, 1, 1, 3, 3], 8);
    }
}

/// The lender loses power and restarts, and the pool's server forgets what it held.
pub(crate) fn lent_by_one_that_crashes() {
    let mut world = lent_by_one();
    cut(&mut world, &[1, 3]);
    world.crash(2);
    world.regions.as_mut().expect("regions").servers[0].restart(None);
    passes(&mut world, &[1, 3], 10);
}

/// An override ends while units withdrawn under it are lent. The loan is recalled, although there is no new
/// version.
pub(crate) fn lent_and_less_by_time() {
    let mut spec = sliding("s", 100, "10s");
    let until = "2027-01-15T08:01:00Z";
    spec.overrides = vec![scene::fields(&[("key", &["k"]), ("limit", &["1000"]), ("until", &[until])])];
    let mut world = lent_and_asked(spec);
    passes(&mut world, &[0], 12);
    // Use under the override has left the window, and loans have had time to end.
    passes(&mut world, &[0, 1], 14);
    world.forget_counts();
    passes(&mut world, &[0, 1], 30);
}

/// A lender's store is gone while shares change. It conforms once its loans are back, without asking the
/// store.
#[test]
fn a_lender_whose_store_is_gone_conforms_when_its_loans_are_back() {
    let mut world = lent_by_one();
    cut(&mut world, &[]);
    passes(&mut world, &[1], 1);
    world.nodes[2].way = Way::CUT;
    assert!(world.order(&all([10, 10, 90, 91])));
    passes(&mut world, &[1], 8);
    let membership = world.nodes[0].node.membership(world.now(0)).expect("regions");
    let progress = membership.progress.expect("a version");
    assert!(progress.pending.is_empty(), "{progress:?}");
}

/// A process gave away part of what it held of a window. Its successor must not withdraw the same units
/// again, unused.
#[test]
fn units_that_an_earlier_process_gave_away_are_not_withdrawn_again() {
    let mut world = shared(window("w", 1_000, "100s"), [1, 1, 3, 3]);
    world.pass(93 * S);
    // One region uses its own part and some of the other's. Then a node that gave units restarts, and is
    // asked for the rest of its region's part.
    let ask = |world: &mut World, place: usize, times: u64| {
        let passes = |_: &u64| {
            let passed = world.ask(place, "k", 1);
            world.pass(50 * MS);
            passed
        };
        (0..times).filter(passes).count()
    };
    let used = ask(&mut world, 0, 320);
    assert!(used >= 310, "{used}");
    world.crash(2);
    let rest = ask(&mut world, 2, 600);
    // Spent: guard shares, and units that node 3 withdrew and did not give away.
    assert!(rest >= 180, "{used} and {rest}");
}

/// Lenders lose power, and restart while their loans are out. The pool's server may also forget what they
/// held.
fn lent_and_crashed() {
    let specs = [bucket("b", "100/s", 20), sliding("s", 1_000, "10s"), window("w", 1_000, "10s")];
    for (spec, is_forgotten) in specs.iter().cloned().flat_map(|spec| [(spec.clone(), false), (spec, true)]) {
        let mut world = lent_and_asked(spec);
        for crashed in [&[2][..], &[3], &[2, 3], &[3, 0]] {
            // The borrower hears nothing of this.
            cut(&mut world, &[0]);
            crashed.iter().for_each(|place| world.crash(*place));
            if is_forgotten {
                world.regions.as_mut().expect("regions").servers[0].restart(None);
            }
            passes(&mut world, &[0, 5 - crashed[0]], 10);
            cut(&mut world, &[]);
            passes(&mut world, &[0], 24);
        }
    }
}

#[test]
fn pooled_units_given_or_lent_to_a_region_count_once() {
    given_once();
}

#[test]
fn a_loan_of_pooled_units_ends_before_the_lenders_lease() {
    lent_and_cut();
    lent_at_the_end();
    lent_and_less_by_time();
}

#[test]
fn no_limit_is_exceeded_if_shares_change_and_lenders_crash() {
    lent_and_ordered();
    lent_by_one_and_ordered();
    lent_by_one_that_crashes();
    lent_by_one_that_is_gone();
    lent_and_crashed();
}
