//! Scripted adversaries: step by step, what random search seldom finds.

mod charges;
mod clocks;
mod disks;
mod loans;
mod versions;

use crate::{
    budget::{Budget, LimitKey, MS, Measured, S, Shape},
    heal::{confirm, quiet},
    network::Weather,
    oracle::Finding,
    place::TTL_NS,
    world::{Plan, START, World},
};

/// A story returns its finding, if any.
pub type Story = fn() -> Option<Finding>;

/// All stories, by name.
pub const ALL: &[(&str, Story)] = &[
    ("a loan is spent after its end", loans::a_holder_sleeps_past_the_end_of_a_loan),
    ("a grant comes again after its return", loans::a_grant_comes_again_after_its_return),
    ("a crash between a loan's row and its grant", disks::a_crash_between_row_and_grant),
    ("a crash after rights were given", disks::a_crash_after_rights_were_given),
    ("an old disk", disks::an_old_disk_knows_itself),
    ("an eviction that a survivor has not heard of", versions::an_eviction_that_a_survivor_has_not_heard_of),
    ("a window's edge", clocks::a_window_edge_with_clocks_apart),
    ("a lowering while lent out", versions::a_lowering_while_lent_out),
    ("a limit that comes back", versions::a_limit_that_comes_back),
    ("a version that was skipped", versions::a_version_that_was_skipped),
    ("frames of an earlier process", disks::frames_of_an_earlier_process),
    ("a lost disk that nobody named", versions::a_lost_disk_that_nobody_named),
    ("an eviction of a giver", versions::an_eviction_of_a_giver),
    ("a lowering after an eviction", versions::a_lowering_after_an_eviction),
    ("a steady clock that is anchored anew", clocks::a_steady_clock_that_is_anchored_anew),
    ("slots on a clock that is anchored anew", clocks::slots_on_a_clock_that_is_anchored_anew),
    ("rights that came before a crash", disks::rights_that_came_before_a_crash),
    ("a clock that goes back over an edge", clocks::a_clock_that_goes_back_over_an_edge),
    ("two who take over at once", versions::two_who_take_over_at_once),
    ("a loan that the disk does not know", disks::a_loan_that_the_disk_does_not_know),
    ("a return with more than came", loans::a_return_with_more_than_came),
    ("a loan that ended before a new variant", loans::a_loan_that_ended_before_a_new_variant),
    ("a frame before the first tick", disks::a_frame_before_the_first_tick),
    ("a limit that comes back after a restart", versions::a_limit_that_comes_back_after_a_restart),
    ("a lowering before a restart", versions::a_lowering_before_a_restart),
    ("a slower rate after an eviction", versions::a_slower_rate_after_an_eviction),
    ("a clock that cannot tell windows apart", clocks::a_clock_that_cannot_tell_windows_apart),
    ("more refusals than can be told", loans::more_refusals_than_can_be_told),
    ("two clean stops and a crash between them", disks::two_clean_stops_and_a_crash_between_them),
    ("a clean stop before a crash", disks::a_clean_stop_before_a_crash),
    ("an authority that is lost with its last word", versions::an_authority_that_is_lost_with_its_last_word),
    (
        "an authority that is lost with what it was told",
        versions::an_authority_that_is_lost_with_what_it_was_told,
    ),
    ("a debt beyond what is presumed", disks::a_debt_beyond_what_is_presumed),
    ("a bucket that is away at a crash", disks::a_bucket_that_is_away_at_a_crash),
    ("a loan that ends where nothing is journalled", disks::a_loan_that_ends_where_nothing_is_journalled),
    ("a crash after a crash", disks::a_crash_after_a_crash),
    ("a rate that was lower for a while", versions::a_rate_that_was_lower_for_a_while),
    ("a crash while a limit is away", disks::a_crash_while_a_limit_is_away),
    ("a clean stop soon after a crash", disks::a_clean_stop_soon_after_a_crash),
    ("a word that a third passes on", versions::a_word_that_a_third_passes_on),
    ("rights that a crash forgot are told again", disks::rights_that_a_crash_forgot_are_told_again),
    ("a clock that is set between two looks", clocks::a_clock_that_is_set_between_two_looks),
    (
        "a limit that comes back while a disk cannot be read",
        disks::a_limit_that_comes_back_while_a_disk_cannot_be_read,
    ),
    ("a refund to a bucket that has refilled", charges::a_refund_to_a_bucket_that_has_refilled),
    ("a refund that is said twice", charges::a_refund_that_is_said_twice),
    ("a refund after the window", charges::a_refund_after_the_window),
    ("a crash after a refund to a bucket", charges::a_crash_after_a_refund_to_a_bucket),
    ("a crash after a refund to a window", charges::a_crash_after_a_refund_to_a_window),
    ("a refund after a rate was higher", charges::a_refund_after_a_rate_was_higher),
    ("leases that are spent at their end", charges::leases_that_are_spent_at_their_end),
    ("a guess at a cell's variant", versions::a_guess_at_a_cells_variant),
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

/// The regions of [`plan`], after two seconds.
fn three(shape: Shape, units: u64, rate: u64) -> World {
    let mut world = World::new(plan(shape, units, rate), 1);
    quiet(&mut world, 2 * S);
    world
}

const TOKEN: Shape = Shape::Token("s", S);
const CELL: LimitKey = LimitKey { limit: 0, key: 0 };

/// One region asks for much for some time, so that the others lend what they have.
fn lend_to(world: &mut World, place: usize, ns: u64) {
    for _ in 0..ns / (20 * MS) {
        for _ in 0..4 {
            world.ask(place, CELL, 1);
        }
        quiet(world, 20 * MS);
    }
}

fn drain_all(world: &mut World) {
    // Processes that have just started let nothing pass before a peer confirms their wall clocks.
    confirm(world);
    for place in 0..world.places.len() {
        world.drain(place, CELL);
        // Answers leave only when their rows are on disk.
        world.flush(place);
    }
    world.weigh(0, 0);
}

fn found(world: World) -> Option<Finding> {
    world.oracle.finding
}
