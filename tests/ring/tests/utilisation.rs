//! Some seconds of each scenario: limits are well used, and never exceeded.

use acequia_ring::utilisation::{
    demand::HotSpot,
    flows::{self, Flow},
    quotas,
    slots::{self, Scenario},
    users::{self, Users},
    world::S,
};

#[test]
fn a_rate_follows_a_hot_spot_that_moves_every_two_seconds() {
    let outcome = flows::run(&Flow::bucket(1_000), 2 * S, 4, 7);
    assert_eq!(outcome.cost.over, 0);
    assert!(outcome.used >= 0.90, "{}", outcome.used);
    assert!(outcome.back_s <= 0.75, "{}", outcome.back_s);
    assert!(outcome.cost.sent.frames as f64 / outcome.cost.seconds < 400.0, "{:?}", outcome.cost);
}

#[test]
fn a_quota_is_used_up_with_few_early_denials() {
    let demand = HotSpot { per_s: 10_000.0 * 1.3 / 60.0, hot: 0.8, regions: 5 };
    let outcome = quotas::run(10_000, demand, 1, 60, 7);
    assert_eq!(outcome.cost.over, 0);
    assert!(outcome.used >= 0.995, "{}", outcome.used);
    assert!(outcome.denied_falsely <= 0.02, "{}", outcome.denied_falsely);
}

#[test]
fn slots_are_taken_wherever_they_are_wanted_and_never_more_than_there_are() {
    for Scenario { name, slots, least } in slots::all() {
        let outcome = slots::run(&slots, 60, 7);
        assert_eq!(outcome.cost.over, 0, "{name}");
        assert!(outcome.used >= least, "{name}: {outcome:?}");
    }
}

#[test]
fn a_user_in_one_region_gets_nearly_the_limit_and_idle_users_cost_nothing() {
    let some = Users { warm: 100, cold: 0, evenly: true, seconds: 5 };
    let alone = users::run(some, 64 << 20, 7);
    assert_eq!(alone.cost.over, 0);
    assert!(alone.admitted >= 0.95 && alone.first >= 1.0, "{alone:?}");
    let among = users::run(Users { cold: 2_000, ..some }, 64 << 20, 7);
    assert_eq!(among.cost.sent.bytes, alone.cost.sent.bytes);
    assert_eq!(among.warm_cells, alone.warm_cells);
}

#[test]
fn the_same_seed_gives_the_same_utilisation() {
    let run = |seed| flows::run(&Flow::bucket(100), 2 * S, 2, seed);
    assert_eq!(run(3).curve, run(3).curve);
    assert_ne!(run(3).curve, run(4).curve);
}
