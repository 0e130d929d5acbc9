//! Scripted adversaries: what random search seldom hits, told step by step.

use acequia_rights::Mark;

use crate::{
    budget::{Budget, MS, Measured, S, Shape},
    heal::{heal, quiet},
    network::Weather,
    oracle::Finding,
    place::TTL_NS,
    world::{Plan, START, World},
};

/// A story: what it found, if it did.
pub type Story = fn() -> Option<Finding>;

/// All stories, by name.
pub const ALL: &[(&str, Story)] = &[
    ("a loan is spent after its end", a_holder_sleeps_past_the_end_of_a_loan),
    ("a grant comes again after its return", a_grant_comes_again_after_its_return),
    ("a crash between a loan's row and its grant", a_crash_between_row_and_grant),
    ("a crash after rights were given", a_crash_after_rights_were_given),
    ("an old disk", an_old_disk_knows_itself),
    ("an eviction that a survivor has not heard of", an_eviction_that_a_survivor_has_not_heard_of),
    ("a window's edge", a_window_edge_with_clocks_apart),
    ("a lowering while lent out", a_lowering_while_lent_out),
    ("a limit that comes back", a_limit_that_comes_back),
    ("a version that was skipped", a_version_that_was_skipped),
    ("frames of an earlier boot", frames_of_an_earlier_boot),
    ("a lost disk that nobody named", a_lost_disk_that_nobody_named),
    ("an eviction of a giver", an_eviction_of_a_giver),
    ("a lowering after an eviction", a_lowering_after_an_eviction),
    ("a steady clock that is anchored anew", a_steady_clock_that_is_anchored_anew),
    ("slots on a clock that is anchored anew", slots_on_a_clock_that_is_anchored_anew),
    ("rights that came before a crash", rights_that_came_before_a_crash),
    ("a clock that goes back over an edge", a_clock_that_goes_back_over_an_edge),
    ("two who take over at once", two_who_take_over_at_once),
    ("a loan that the disk does not know", a_loan_that_the_disk_does_not_know),
    ("a return with more than came", a_return_with_more_than_came),
    ("a loan that ended before new numbers", a_loan_that_ended_before_new_numbers),
    ("a frame before the first tick", a_frame_before_the_first_tick),
    ("a limit that comes back after a restart", a_limit_that_comes_back_after_a_restart),
    ("a lowering before a restart", a_lowering_before_a_restart),
    ("a slower rate after an eviction", a_slower_rate_after_an_eviction),
    ("a clock that cannot tell windows apart", a_clock_that_cannot_tell_windows_apart),
    ("more refusals than can be told", more_refusals_than_can_be_told),
    ("two clean stops and a crash between them", two_clean_stops_and_a_crash_between_them),
    ("a clean stop before a crash", a_clean_stop_before_a_crash),
    ("an authority that is lost with its last word", an_authority_that_is_lost_with_its_last_word),
    ("an authority that is lost with what it was told", an_authority_that_is_lost_with_what_it_was_told),
    ("a debt beyond what is presumed", a_debt_beyond_what_is_presumed),
    ("a bucket that is away at a crash", a_bucket_that_is_away_at_a_crash),
    ("a loan that ends where nothing is journalled", a_loan_that_ends_where_nothing_is_journalled),
    ("a crash after a crash", a_crash_after_a_crash),
    ("a rate that was lower for a while", a_rate_that_was_lower_for_a_while),
    ("a crash while a limit is away", a_crash_while_a_limit_is_away),
    ("a clean stop soon after a crash", a_clean_stop_soon_after_a_crash),
    ("a word that a third passes on", a_word_that_a_third_passes_on),
    ("rights that a crash forgot are told again", rights_that_a_crash_forgot_are_told_again),
    ("a clock that is set between two looks", a_clock_that_is_set_between_two_looks),
    (
        "a limit that comes back while a disk cannot be read",
        a_limit_that_comes_back_while_a_disk_cannot_be_read,
    ),
];

/// Three equal regions with one limit.
fn plan(shape: Shape, units: u64, rate: u64) -> Plan {
    let limits = vec![Measured::new(0, shape, Budget { units, rate }, 1)];
    Plan {
        members: 3,
        places: 3,
        limits,
        weights: vec![1, 1, 1],
        clock_error_ns: 10 * MS,
        drift_ppm: 1_000,
        loan_ttl_ns: TTL_NS,
        true_windows: true,
        weather: Weather { way_ns: (5 * MS, 20 * MS), ..Weather::default() },
        start: START + 100 * S,
    }
}

/// The same, two seconds later.
fn three(shape: Shape, units: u64, rate: u64) -> World {
    let mut world = World::new(plan(shape, units, rate), 1);
    quiet(&mut world, 2 * S);
    world
}

const TOKEN: Shape = Shape::Token("s", S);
const CELL: (usize, usize) = (0, 0);

/// One region asks for much for some time, so that the others lend it what they have.
fn lend_to(world: &mut World, place: usize, ns: u64) {
    for _ in 0..ns / (20 * MS) {
        for _ in 0..4 {
            world.ask(place, CELL, 1);
        }
        quiet(world, 20 * MS);
    }
}

fn drain_all(world: &mut World) {
    for place in 0..world.places.len() {
        world.drain(place, CELL);
        // Only what is on a disk was answered.
        world.flush(place);
    }
    world.weigh(0, 0);
}

fn found(world: World) -> Option<Finding> {
    world.oracle.finding
}

/// The giver takes its part back; the holder sleeps all the while, wakes, and spends.
fn a_holder_sleeps_past_the_end_of_a_loan() -> Option<Finding> {
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
fn a_grant_comes_again_after_its_return() -> Option<Finding> {
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

/// Loans and rights leave, and the giver's machine stops before anything more is on its disk.
fn a_crash_between_row_and_grant() -> Option<Finding> {
    stop_a_giver(three(TOKEN, 300, 100))
}

/// As before, with the rights of a window.
fn a_crash_after_rights_were_given() -> Option<Finding> {
    stop_a_giver(three(Shape::Window("1m", false), 300, 1))
}

fn stop_a_giver(mut world: World) -> Option<Finding> {
    for round in 0..6 {
        let giver = 1 + round % 2;
        // Nothing of the giver's reaches its disk while it is asked for what it has.
        for _ in 0..120 {
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
        quiet(&mut world, 100 * MS);
        drain_all(&mut world);
        // What was lent comes back, and the next window begins.
        world.pass(60 * S - world.now % (60 * S));
        quiet(&mut world, 14 * S);
    }
    found(world)
}

/// A disk is replaced by an older one after others have heard of what came later: the node must see it.
fn an_old_disk_knows_itself() -> Option<Finding> {
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
    if standing != Some(acequia_node::sharing::Standing::RestoredDisk) {
        world.oracle.find("old-disk", format!("region 1 goes on as {standing:?}"));
    }
    found(world)
}

/// The victim had lent to a survivor that cannot be reached; it spends what it holds, while the authority shares the
/// victim's part anew.
fn an_eviction_that_a_survivor_has_not_heard_of() -> Option<Finding> {
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

/// Clocks are as far apart as they may be, and all is taken on both sides of an edge.
fn a_window_edge_with_clocks_apart() -> Option<Finding> {
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

/// A budget is lowered while most of it is lent: nobody is told that it is effective before it is back.
fn a_lowering_while_lent_out() -> Option<Finding> {
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

/// A limit is removed, and comes back before what was spent under it is over; a process crashes in between.
fn a_limit_that_comes_back() -> Option<Finding> {
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

/// Weights move from one to the next, and a region hears of the last version only.
fn a_version_that_was_skipped() -> Option<Finding> {
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

/// A process begins anew, and what its predecessor said and heard keeps arriving.
fn frames_of_an_earlier_boot() -> Option<Finding> {
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

/// A disk is lost. What comes back owns nothing until the authority names it, and until all agree.
fn a_lost_disk_that_nobody_named() -> Option<Finding> {
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
    if world.places[1].floor == Mark::default() {
        world.oracle.find("settle", "region 1 was never named".to_owned());
    }
    found(world)
}

/// The victim had lent; the survivor that holds it must drop it, though it has some seconds left.
fn an_eviction_of_a_giver() -> Option<Finding> {
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

/// What the victim owed drains at its own part of the rate: nobody else has that part before it is over, however
/// small and however slow the budget was meanwhile. (History 501232.)
fn a_lowering_after_an_eviction() -> Option<Finding> {
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

/// A process whose steady clock was slow stops; the next one's is right, and what is on the disk is no older for it.
fn a_steady_clock_that_is_anchored_anew() -> Option<Finding> {
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

/// A steady clock is behind by more than a window's length when its process stops. The next one's is right, and the slots
/// that were charged a moment ago are no older for it. (History 10015156.)
fn slots_on_a_clock_that_is_anchored_anew() -> Option<Finding> {
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

/// A region spends rights that others gave it, and crashes. They are told again, and spent already. (History 309.)
fn rights_that_came_before_a_crash() -> Option<Finding> {
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

/// A region gives rights away and goes on to the next window. Its clock goes back, by no more than it may be wrong:
/// what it gave is not there again under the old name.
fn a_clock_that_goes_back_over_an_edge() -> Option<Finding> {
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

/// Two places take over in one epoch, neither knowing of the other. Nothing more is admitted for it, and a third
/// epoch puts it right.
fn two_who_take_over_at_once() -> Option<Finding> {
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

/// A region's disk has heard of what it spent at the rate of a loan. The loan ends, and all the rest is spent at the
/// region's own rate: the disk must hear of that, too.
fn a_loan_that_the_disk_does_not_know() -> Option<Finding> {
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

/// A region has spent its part and borrows; it gives the loan back with the tokens that its own part has since, and
/// crashes before the disk hears of the debt that stays. (History 9002153.)
fn a_return_with_more_than_came() -> Option<Finding> {
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
fn a_loan_that_ended_before_new_numbers() -> Option<Finding> {
    let mut world = three(TOKEN, 30, 3);
    lend_to(&mut world, 1, 3 * S);
    drain_all(&mut world);
    world.pass(5 * S);
    world.command("budget", |operator| operator.budgets[0] = Some(Budget { units: 30, rate: 60 }));
    drain_all(&mut world);
    found(world)
}

/// A process sends before its first tick. A beat that it counts from a later time would date loans too late.
/// (History 7007576.)
fn a_frame_before_the_first_tick() -> Option<Finding> {
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
    // Region 1 says that it is there, and looks at the time more than a second later.
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

/// A region is evicted that has used a window, and the window's limit is removed. A process starts anew, which knows
/// nothing of that limit; it comes back, and what the region used counts as long as the window is open.
/// (Histories 10008676 and 20015954.)
fn a_limit_that_comes_back_after_a_restart() -> Option<Finding> {
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

/// As [`a_lowering_after_an_eviction`], and whoever is to have the victim's part starts anew in between.
fn a_lowering_before_a_restart() -> Option<Finding> {
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

/// What the victim owed drains at its own part of the rate, which is a tenth of what it was when it spent: the term it
/// spent under is kept for as long as the most units there were take at the slowest rate.
fn a_slower_rate_after_an_eviction() -> Option<Finding> {
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

/// A region has rights of a window that others gave it. Long after, late frames and a slow clock make it doubt its wall
/// so much that the window may still be open: nothing of it may be used, whatever it has. (History 10000724.)
fn a_clock_that_cannot_tell_windows_apart() -> Option<Finding> {
    let mut world = three(Shape::Window("10s", false), 300, 1);
    // Slower than it may be: how long an answer took is less certain than it believes.
    world.places[0].clock.drift(world.now, -3_000);
    world.pass(10 * S - world.now % (10 * S));
    lend_to(&mut world, 0, 2 * S);
    // Both answer what region 0 says, and the answers take very long.
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

/// A region joins, has no share yet, and is so far away that all that others lend comes too late. It refuses more loans
/// at once than may be frozen: all of them come back. (History 10015991.)
fn more_refusals_than_can_be_told() -> Option<Finding> {
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

/// A clean stop leaves what was spent of a short window; the next process spends another, and crashes. The third stops
/// cleanly, without a word of that cell: what is on the disk is older than the crash. (History 58011116.)
fn two_clean_stops_and_a_crash_between_them() -> Option<Finding> {
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
    world.stop(1);
    world.start(1, true);
    drain_all(&mut world);
    found(world)
}

/// A bucket that is not journalled owes more than it may by now. Every process stops cleanly, and the next ones crash: what
/// the stop left of that debt is all that says so.
fn a_clean_stop_before_a_crash() -> Option<Finding> {
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

/// The authority has told its last version to one region, which has not adopted it yet, when its disk is lost. Another
/// takes over in the same epoch. (History 20035769.)
fn an_authority_that_is_lost_with_its_last_word() -> Option<Finding> {
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

/// A region is to leave, and nobody but the authority has heard of it when its disk is lost. Who takes over is not the
/// region that is to leave. (History 20037148.)
fn an_authority_that_is_lost_with_what_it_was_told() -> Option<Finding> {
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
    // That it goes by a version is heard, and not which.
    world.pass(20 * MS);
    while world.deliver() {}
    world.lose_disk(0);
    heal(&mut world);
    found(world)
}

/// Every process crashes, and what had left for its disk is there.
fn crash_all(world: &mut World) {
    for place in 0..world.places.len() {
        world.flush(place);
        world.crash(place, 9, 0);
        world.start(place, false);
    }
    quiet(world, S);
}

fn put(world: &mut World, units: u64, rate: u64) {
    world.command("budget", |operator| operator.budgets[0] = Some(Budget { units, rate }));
    quiet(world, S);
}

/// All is spent, and the budget becomes a small one that refills too soon to be journalled. Every process crashes: what
/// is owed is more than a bucket that is taken to be empty owes. (History 10023432.)
fn a_debt_beyond_what_is_presumed() -> Option<Finding> {
    // Journalled before, and not.
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

/// All of a bucket that is not journalled is spent, and the limit is removed. It comes back small after a crash, and grows.
fn a_bucket_that_is_away_at_a_crash() -> Option<Finding> {
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

/// A small bucket owes more than it may. A loan goes and comes back, and with it goes what the disk knew of the debt.
/// (History 10030878.)
fn a_loan_that_ends_where_nothing_is_journalled() -> Option<Finding> {
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

/// A crash forgets what was spent. From then on the limit is journalled, and a second crash must not take the disk for
/// complete. (History 10030878.)
fn a_crash_after_a_crash() -> Option<Finding> {
    let mut world = three(Shape::Token("m", 60 * S), 300, 600);
    drain_all(&mut world);
    crash_all(&mut world);
    put(&mut world, 300, 200);
    crash_all(&mut world);
    drain_all(&mut world);
    found(world)
}

/// All is spent. For a while the rate is low, and nobody asks; then it is as it was, and every process crashes: the disk
/// must know how little came back meanwhile.
fn a_rate_that_was_lower_for_a_while() -> Option<Finding> {
    // Cells that have an account still, and cells that have none any more.
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

/// Shares move, and a limit is removed. A process that begins without it must not take older shares to be over before
/// what was spent by them is. (History 20037024.)
fn a_crash_while_a_limit_is_away() -> Option<Finding> {
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

/// All is spent, and a process crashes: what it forgot counts as spent. It stops cleanly before anybody has asked it, and
/// the next one must not take that for less than the part of this cell, or than what others gave to it.
/// (Histories 200002482 and 100004218.)
fn a_clean_stop_soon_after_a_crash() -> Option<Finding> {
    // Of a staggered window each cell has edges of its own: those of no other say when it is over.
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

/// Two regions never reach each other, and a third reaches both: it passes on what each says of a version, or they would
/// wait for each other for ever. (Histories 100033006 and 200025499.)
fn a_word_that_a_third_passes_on() -> Option<Finding> {
    let mut world = three(TOKEN, 300, 100);
    world.network.cut.extend([(1, 2), (2, 1)]);
    world.command("weights", |operator| {
        operator
            .members
            .values_mut()
            .for_each(|member| member.weight = 1 + u32::from(member.writer.region.0));
    });
    quiet(&mut world, 5 * S);
    let wanted = world.places[0].mark;
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

/// A limit is removed, and comes back while one region cannot read what it spent: it must not take that for nothing, and
/// goes on as soon as it can.
fn a_limit_that_comes_back_while_a_disk_cannot_be_read() -> Option<Finding> {
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
    let wanted = world.places[0].mark;
    if world.places[1].node().and_then(|node| node.version()).is_none_or(|version| version.mark != wanted) {
        world.oracle.find("settle", format!("region 1 has not adopted {wanted:?}"));
    }
    found(world)
}

/// A clock is set ahead and back before its node has looked at it again, and requests come in between. What they use is
/// of no window that nobody heard of.
fn a_clock_that_is_set_between_two_looks() -> Option<Finding> {
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

/// A region was given rights, says so, and crashes before they are on its disk. It has them again soon after it is back:
/// the giver hears that it knows less than it was told.
fn rights_that_a_crash_forgot_are_told_again() -> Option<Finding> {
    let mut world = three(Shape::Window("1h", false), 300, 1);
    // All links are up, and nothing of region 0 reaches its disk while it is asked for more than its part.
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
    let (id, tag) = (world.limits[0].id, world.limits[0].keys[0].1);
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
