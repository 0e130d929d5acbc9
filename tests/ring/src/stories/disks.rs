//! Crashes, clean stops, and disks that are lost, restored or unreadable.

use super::{CELL, TOKEN, drain_all, found, lend_to, plan, three, versions::put};
use crate::{
    budget::{Budget, MS, S, Shape},
    heal::{confirm, quiet},
    oracle::Finding,
    world::World,
};

/// Loans leave, and the giver's machine stops before anything more is on its disk.
pub(super) fn a_crash_between_row_and_grant() -> Option<Finding> {
    stop_a_giver(three(TOKEN, 300, 100))
}

/// Like [`a_crash_between_row_and_grant`], with the rights of a window.
pub(super) fn a_crash_after_rights_were_given() -> Option<Finding> {
    stop_a_giver(three(Shape::Window("1m", false), 300, 1))
}

fn stop_a_giver(mut world: World) -> Option<Finding> {
    for round in 0..6 {
        let giver = 1 + round % 2;
        // For a while only region 0 has requests. The others see that they have none, and lend at once
        // afterwards.
        for _ in 0..40 {
            world.ask(0, CELL, 1);
            quiet(&mut world, 100 * MS);
        }
        // Nothing reaches the giver's disk while it is asked for its units.
        for _ in 0..400 {
            for _ in 0..8 {
                world.ask(0, CELL, 1);
            }
            world.pass(10 * MS);
            while world.deliver() {}
            for place in 0..3 {
                world.tick(place);
                if place != giver {
                    world.flush(place);
                    world.send(place);
                }
            }
            world.weigh(0, 0);
        }
        world.take(giver);
        world.crash(giver, 0, 0);
        world.start(giver, false);
        world.weigh(0, 0);
        // The giver confirms its time with the third region, before the holder reports what it holds.
        world.network.cut.extend([(0, giver), (giver, 0)]);
        drain_all(&mut world);
        world.network.cut.clear();
        // Loans return, and the next window begins.
        world.pass(60 * S - world.now % (60 * S));
        quiet(&mut world, 14 * S);
    }
    found(world)
}

/// A disk is replaced by an older copy after others have heard of later changes. The node must notice.
pub(super) fn an_old_disk_knows_itself() -> Option<Finding> {
    let mut world = three(Shape::Window("1m", false), 300, 1);
    world.places[1].snapshot = Some(world.places[1].disk.clone());
    for _ in 0..3 {
        world.crash(1, 9, 0);
        world.start(1, false);
        lend_to(&mut world, 0, S);
    }
    world.restore_snapshot(1);
    world.start(1, false);
    quiet(&mut world, 5 * S);
    let now = world.places[1].now(world.now);
    let standing = world.places[1].node().and_then(|node| node.membership(now)).map(|m| m.standing);
    if standing != Some(acequia_node::regions::Ownership::RestoredDisk) {
        world.oracle.find("old-disk", format!("region 1 goes on as {standing:?}"));
    }
    found(world)
}

/// A process restarts, and frames to and from its predecessor keep arriving.
pub(super) fn frames_of_an_earlier_process() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 100);
    world.network.weather.kept = 500_000;
    for round in 0..8 {
        lend_to(&mut world, 0, S);
        let place = round % 3;
        world.crash(place, 9, 0);
        world.start(place, false);
        for _ in 0..100 {
            if let Some(flying) = world.network.again(&mut world.random) {
                world.hand(&flying);
            }
            quiet(&mut world, 10 * MS);
            world.weigh(0, 0);
        }
        drain_all(&mut world);
    }
    found(world)
}

/// A region spends rights that others gave it, and crashes. The gifts are reported again, and must count as
/// spent. (History 309.)
pub(super) fn rights_that_came_before_a_crash() -> Option<Finding> {
    let mut world = three(Shape::Window("10s", false), 300, 1);
    for _ in 0..3 {
        world.pass(10 * S - world.now % (10 * S));
        quiet(&mut world, 100 * MS);
        for _ in 0..120 {
            for _ in 0..6 {
                world.ask(0, CELL, 1);
            }
            quiet(&mut world, 20 * MS);
        }
        world.crash(0, 9, 0);
        world.start(0, false);
        quiet(&mut world, 500 * MS);
        drain_all(&mut world);
    }
    found(world)
}

/// A region's disk has recorded spending at the rate of a loan. The loan ends, and everything else is spent
/// at the region's own rate. The disk must record this, too.
pub(super) fn a_loan_that_the_disk_does_not_know() -> Option<Finding> {
    let mut world = three(Shape::Token("m", 60 * S), 300, 97);
    for place in [0, 2, 1] {
        lend_to(&mut world, place, 2 * S);
        for other in 0..3 {
            world.network.cut.extend([(place, other), (other, place)]);
        }
        quiet(&mut world, 6 * S);
        world.pass(400 * S);
        quiet(&mut world, S);
        drain_all(&mut world);
        world.crash(place, 9, 0);
        world.start(place, false);
        drain_all(&mut world);
        world.network.cut.clear();
        world.pass(400 * S);
        quiet(&mut world, 2 * S);
    }
    found(world)
}

/// A process sends before its first tick. A heartbeat with a later time would date loans too late. (History
/// 7007576.)
pub(super) fn a_frame_before_the_first_tick() -> Option<Finding> {
    let mut world = World::new(plan(TOKEN, 300, 100), 1);
    world.network.weather.way_ns = (MS, 2 * MS);
    let others = |world: &mut World| {
        world.pass(2 * MS);
        while world.deliver() {}
        for place in [0, 2] {
            world.tick(place);
            world.flush(place);
            world.send(place);
        }
    };
    // Region 1 sends its first frame, and ticks more than a second later.
    world.flush(1);
    world.send(1);
    for _ in 0..700 {
        others(&mut world);
    }
    world.tick(1);
    world.flush(1);
    world.send(1);
    for _ in 0..4 {
        for _ in 0..60 {
            world.ask(1, CELL, 2);
        }
        world.tick(1);
        world.flush(1);
        world.send(1);
        others(&mut world);
        others(&mut world);
    }
    for other in [0, 2] {
        world.network.cut.extend([(1, other), (other, 1)]);
    }
    for _ in 0..500 {
        quiet(&mut world, 10 * MS);
        world.weigh(0, 0);
    }
    found(world)
}

/// A clean stop records the use of a short window. The next process uses another window, and crashes. A third
/// process stops cleanly without using the cell, so the record on disk is older than the crash. (History
/// 58011116.)
pub(super) fn two_clean_stops_and_a_crash_between_them() -> Option<Finding> {
    let mut world = three(Shape::Window("10s", false), 300, 1);
    world.pass(10 * S - world.now % (10 * S) + S);
    drain_all(&mut world);
    world.stop(1);
    world.start(1, true);
    world.pass(10 * S);
    quiet(&mut world, 100 * MS);
    drain_all(&mut world);
    world.crash(1, 9, 0);
    world.start(1, false);
    confirm(&mut world);
    world.stop(1);
    world.start(1, true);
    drain_all(&mut world);
    found(world)
}

/// A bucket without a journal owes more than its present size. Every process stops cleanly, and the next ones
/// crash. Only the row of the clean stop knows the debt.
pub(super) fn a_clean_stop_before_a_crash() -> Option<Finding> {
    let mut world = three(Shape::Token("m", 60 * S), 300, 600);
    drain_all(&mut world);
    put(&mut world, 3, 10);
    for place in 0..3 {
        world.stop(place);
        world.start(place, true);
    }
    quiet(&mut world, S);
    crash_all(&mut world);
    world.pass(120 * S);
    put(&mut world, 300, 600);
    drain_all(&mut world);
    found(world)
}

/// Every process crashes after its disk has received all queued rows.
pub(super) fn crash_all(world: &mut World) {
    for place in 0..world.places.len() {
        world.flush(place);
        world.crash(place, 9, 0);
        world.start(place, false);
    }
    quiet(world, S);
}

/// Everything is spent, and the budget becomes a small one that refills too fast for a journal. Every process
/// crashes. The debt is larger than that of an empty small bucket. (History 10023432.)
pub(super) fn a_debt_beyond_what_is_presumed() -> Option<Finding> {
    // With a journal before, and without.
    for rate in [200, 600] {
        let mut world = three(Shape::Token("m", 60 * S), 300, rate);
        drain_all(&mut world);
        put(&mut world, 3, 10);
        crash_all(&mut world);
        world.pass(120 * S);
        put(&mut world, 300, rate);
        drain_all(&mut world);
        if world.oracle.finding.is_some() {
            return found(world);
        }
    }
    None
}

/// A bucket without a journal is spent, and its limit is removed. After a crash it returns with few units,
/// and grows.
pub(super) fn a_bucket_that_is_away_at_a_crash() -> Option<Finding> {
    let mut world = three(Shape::Token("m", 60 * S), 300, 600);
    drain_all(&mut world);
    world.command("remove", |operator| operator.budgets[0] = None);
    quiet(&mut world, S);
    crash_all(&mut world);
    put(&mut world, 3, 10);
    world.pass(60 * S);
    put(&mut world, 300, 600);
    drain_all(&mut world);
    found(world)
}

/// A small bucket owes more than its size. A loan comes and goes, and with it the row about the debt.
/// (History 10030878.)
pub(super) fn a_loan_that_ends_where_nothing_is_journalled() -> Option<Finding> {
    let mut world = three(Shape::Token("m", 60 * S), 300, 200);
    drain_all(&mut world);
    put(&mut world, 30, 60);
    lend_to(&mut world, 0, 2 * S);
    quiet(&mut world, 16 * S);
    crash_all(&mut world);
    world.pass(95 * S);
    put(&mut world, 300, 200);
    drain_all(&mut world);
    found(world)
}

/// A crash forgets spending. From then on the limit has a journal, and a second crash must not take the disk
/// for complete. (History 10030878.)
pub(super) fn a_crash_after_a_crash() -> Option<Finding> {
    let mut world = three(Shape::Token("m", 60 * S), 300, 600);
    drain_all(&mut world);
    crash_all(&mut world);
    put(&mut world, 300, 200);
    crash_all(&mut world);
    drain_all(&mut world);
    found(world)
}

/// Shares move, and a limit is removed. A process that starts without the limit must keep older shares until
/// the spending under them has expired. (History 20037024.)
pub(super) fn a_crash_while_a_limit_is_away() -> Option<Finding> {
    let mut world = three(Shape::Sliding("2m", 120 * S, None), 30, 1);
    drain_all(&mut world);
    world.command("weights", |operator| {
        for (member, weight) in operator.members.values_mut().zip([8, 1, 1]) {
            member.weight = weight;
        }
    });
    quiet(&mut world, 2 * S);
    world.command("remove", |operator| operator.budgets[0] = None);
    quiet(&mut world, S);
    crash_all(&mut world);
    quiet(&mut world, 2 * S);
    world.command("add", |operator| operator.budgets[0] = Some(Budget { units: 30, rate: 1 }));
    quiet(&mut world, 2 * S);
    drain_all(&mut world);
    found(world)
}

/// All is spent, and a process crashes: what it forgot counts as spent. Before any request it stops cleanly.
/// The next process must not assume less than this cell's part, or less than others' gifts to it. (Histories
/// 200002482 and 100004218.)
pub(super) fn a_clean_stop_soon_after_a_crash() -> Option<Finding> {
    // Each cell of a staggered window has its own edges, so no other cell's edges tell when the window is
    // over.
    let shapes =
        [Shape::Sliding("30s", 30 * S, None), Shape::Window("30s", false), Shape::Window("30s", true)];
    for (shape, wait) in shapes.into_iter().flat_map(|shape| (0..10).map(move |at| (shape, at * 3 * S))) {
        let mut world = three(shape, 301, 1);
        quiet(&mut world, wait);
        for place in 0..3 {
            world.drain(place, CELL);
            world.flush(place);
            world.crash(place, 9, 0);
            world.start(place, false);
            world.stop(place);
            world.pass(3 * S);
            world.start(place, true);
            quiet(&mut world, 200 * MS);
            drain_all(&mut world);
        }
        if world.oracle.finding.is_some() {
            return found(world);
        }
    }
    None
}

/// A limit is removed, and returns while one region cannot read its spending. The region must not take this
/// for zero, and must continue once it can read.
pub(super) fn a_limit_that_comes_back_while_a_disk_cannot_be_read() -> Option<Finding> {
    let mut world = three(Shape::Window("1h", true), 300, 1);
    drain_all(&mut world);
    world.command("remove", |operator| operator.budgets[0] = None);
    quiet(&mut world, S);
    world.stop(1);
    world.start(1, true);
    quiet(&mut world, S);
    world.places[1].disk.is_unreadable = true;
    world.command("add", |operator| operator.budgets[0] = Some(Budget { units: 300, rate: 1 }));
    quiet(&mut world, 2 * S);
    drain_all(&mut world);
    world.places[1].disk.is_unreadable = false;
    quiet(&mut world, 2 * S);
    drain_all(&mut world);
    let wanted = world.places[0].version_id;
    if world.places[1]
        .node()
        .and_then(|node| node.version())
        .is_none_or(|version| version.version_id != wanted)
    {
        world.oracle.find("settle", format!("region 1 has not adopted {wanted:?}"));
    }
    found(world)
}

/// A region receives rights, confirms them, and crashes before they are on disk. Soon after its restart it
/// has them again, because the giver hears that the region knows less than it was told.
pub(super) fn rights_that_a_crash_forgot_are_told_again() -> Option<Finding> {
    let mut world = three(Shape::Window("1h", false), 300, 1);
    // All links work, and nothing reaches region 0's disk while it is asked for more than its part.
    for _ in 0..60 {
        for _ in 0..4 {
            world.ask(0, CELL, 1);
        }
        world.pass(10 * MS);
        while world.deliver() {}
        for place in 0..3 {
            world.tick(place);
            if place > 0 {
                world.flush(place);
            }
            world.send(place);
        }
    }
    world.crash(0, 0, 0);
    world.start(0, false);
    quiet(&mut world, 2 * S);
    let (id, tag) = (world.limits[0].id, world.limits[0].keys[0].cells[0]);
    let of = |place: &crate::place::Place| {
        let holding = place.node().and_then(|node| node.holding(id, tag, place.now(world.now)));
        holding.map_or(0, |holding| holding.effective.units)
    };
    let all: Vec<u64> = world.places.iter().map(of).collect();
    if all.iter().sum::<u64>() != 300 || all[0] <= 100 {
        world.oracle.find("rights", format!("{all:?} of 300"));
    }
    found(world)
}
