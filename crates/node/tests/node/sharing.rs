//! Regions that share a limit on a simulated network.

use crate::regions::{self, MS, S, World, incarnation, window};
use acequia_limits::{
    CellTag,
    limit::{LimitSpec, SharingSpec},
};
use acequia_rights::MemberId;

#[test]
fn a_hot_region_borrows_units_that_others_do_not_use() {
    let mut world = World::new(3, &[regions::bucket("b", "1000/s", 300)], 40 * MS);
    world.run(2 * S, |_, _| 0);
    assert!(world.all_settled(), "{:#?}", world.memberships());
    // All demand is in one region, at one and a half times the limit.
    let before = world.admitted();
    world.run(10 * S, |region, ms| if region == 0 { u64::from(ms % 2 == 0) * 3 } else { 0 });
    let used = world.admitted() - before;
    eprintln!("used {used} of {}; {:?}", 10 * 1_000 + 300, world.traffic());
    assert!(used <= 10 * 1_000 + 300, "{used}");
    assert!(used >= 9_300, "{used}");
}

#[test]
fn rights_of_a_window_move_to_the_region_with_demand() {
    let mut world = World::new(3, &[regions::window("w", 30_000, "1h")], 40 * MS);
    world.run(2 * S, |_, _| 0);
    let before = world.admitted();
    world.run(40 * S, |region, _| u64::from(region == 0));
    let used = world.admitted() - before;
    eprintln!("used {used}; {:?}", world.traffic());
    assert!(used <= 30_000, "{used}");
    assert!(used >= 29_900, "{used}");
}

#[test]
fn a_key_with_an_override_borrows_by_its_own_variant() {
    let mut spec = regions::bucket("b", "10/s", 3);
    spec.overrides =
        serde_json::from_str(r#"[{"key": "big", "rate": "1000/s", "burst": "300"}]"#).expect("overrides");
    let mut world = World::new(3, &[spec], 40 * MS);
    world.run(2 * S, |_, _| 0);
    // Check also before any request for the key.
    for (key, budget, own) in [("big", 300, 100), ("small", 3, 1)] {
        let cell = world.cell(0, key);
        assert_eq!((cell.algorithm.budget(), cell.holding.standing.units), (budget, own), "{key}");
        assert!(cell.loans.is_empty() && cell.reports.is_empty(), "{cell:?}");
    }
    let mut admitted = 0;
    for _ in 0..10_000 {
        world.run(MS, |_, _| 0);
        admitted += u64::from(world.ask(0, "big"));
    }
    assert!(admitted <= 10_300, "{admitted}");
    assert!(admitted >= 9_300, "the others lend by the override's numbers: {admitted}");
    let cell = world.cell(0, "big");
    let held: u64 =
        cell.loans.iter().filter(|loan| !loan.is_lent).map(|loan| u64::from(loan.part.rate)).sum();
    assert_eq!(held, u64::from(cell.holding.held.rate), "{cell:?}");
    assert!(held > 0 && cell.reports.len() == 2 && cell.demand_milli > 900_000, "{cell:?}");
    assert!(cell.loans.iter().all(|loan| loan.ends_ns > world.now), "{cell:?}");
}

#[test]
fn holdings_of_an_unknown_key_are_reported_by_the_smallest_variant() {
    // There are fewer units than regions. The cell decides which region has a unit.
    let mut spec = regions::window("w", 2, "1h");
    spec.overrides = serde_json::from_str(r#"[{"key": "small", "limit": "1"}]"#).expect("overrides");
    let id = regions::limit(spec.clone()).id;
    let mut world = World::new(3, &[spec], 40 * MS);
    world.run(2 * S, |_, _| 0);
    for n in 1..200_u128 {
        let tag = CellTag(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        let held = world.places.iter().enumerate().map(|(region, place)| {
            let holding = place.node.holding(id, tag, world.now_of(region));
            holding.expect("a limit in force").effective.units
        });
        assert_eq!(held.sum::<u64>(), 1, "{tag:?}");
    }
}

#[test]
fn an_override_of_few_units_does_not_reduce_other_keys() {
    let mut spec = regions::window("w", 30_000, "1h");
    spec.overrides = serde_json::from_str(r#"[{"key": "small", "limit": "1"}]"#).expect("overrides");
    let mut world = World::new(3, &[spec], 40 * MS);
    world.run(2 * S, |_, _| 0);
    // Two regions have no requests, so they cannot know by themselves that the key has the base variant.
    let before = world.admitted();
    world.run(40 * S, |region, _| u64::from(region == 0));
    let used = world.admitted() - before;
    assert!(used <= 30_000, "{used}");
    assert!(used >= 29_900, "the others give by the limit's own numbers: {used}");
}

#[test]
fn a_priority_region_is_served_first_and_floors_are_kept() {
    // In this world regions have the numbers 0, 1 and 2.
    let first =
        (0..).map(|n| format!("r{n}")).find(|name| MemberId::named(name) == MemberId(0)).expect("a name");
    let sharing =
        SharingSpec { floor: Some("20%".to_owned()), priority: vec![first], ..SharingSpec::default() };
    let shared = |spec: LimitSpec| LimitSpec { sharing: Some(sharing.clone()), ..spec };
    for spec in [regions::bucket("b", "900/s", 300), regions::window("w", 27_000, "1h")] {
        let is_rate = spec.token_bucket.is_some();
        let mut world = World::new(3, &[shared(spec)], 40 * MS);
        world.run(2 * S, |_, _| 0);
        // Each of two regions wants the whole limit. The third is silent and keeps a fifth of its share.
        let before: Vec<u64> = world.places.iter().map(|place| place.admitted).collect();
        world.run(20 * S, |region, _| u64::from(region < 2));
        let used: Vec<u64> =
            world.places.iter().zip(before).map(|(place, before)| place.admitted - before).collect();
        if is_rate {
            // Region 0 gets all except two floors. Region 1 has its floor of 60/s, and what it used before it
            // heard of the priority.
            assert!(used[0] >= 900 * 20 * 8 / 10, "{used:?}");
            assert!(used[1] >= 60 * 20 && used[1] <= 120 * 20, "{used:?}");
        } else {
            assert!(used[0] >= used[1] * 3 / 2, "it has what the silent one gives, and more: {used:?}");
        }
        let (kept, verdict) = world.peek(2, "k");
        assert!(verdict.allowed, "{kept:?}");
        let floor = if is_rate { 20 } else { 1_300 };
        assert!(kept.left >= floor, "a floor of {floor}: {kept:?}");
    }
}

#[test]
fn under_overload_each_region_keeps_about_its_own_part() {
    // Forty a second and sixty at once, for three regions that start one after the other.
    let mut world = World::new(3, &[regions::bucket("b", "40/s", 60)], 40 * MS);
    world.run(2 * S, |_, _| 0);
    let mut dice = 7_u64;
    let mut chance = |of: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33).is_multiple_of(of)
    };
    let before = world.admitted();
    // Random demand of twenty a second in each region.
    world.run(30 * S, |region, ms| u64::from(ms >= 1_500 * region as u64 && chance(50)));
    let used = world.admitted() - before;
    for region in 0..3 {
        let cell = world.cell(region, "k");
        let (own, now) = (cell.holding.standing, cell.holding.effective);
        assert!(now.units >= own.units * 3 / 4, "units in {region}: {cell:#?}");
        assert!(now.rate >= own.rate * 3 / 4, "rate in {region}: {cell:#?}");
        for other in 0..3 {
            let with = |is_lent| {
                cell.loans.iter().any(|loan| loan.is_lent == is_lent && loan.peer.member == MemberId(other))
            };
            assert!(!(with(true) && with(false)), "loans that meet, of {region} with {other}: {cell:#?}");
        }
    }
    assert!(used >= 1_180, "{used} of {}", 60 + 40 * 30);
}

#[test]
fn a_region_that_was_idle_for_a_moment_keeps_its_burst() {
    let mut world = World::new(3, &[regions::bucket("b", "40/s", 60)], 40 * MS);
    world.run(2 * S, |_, _| 0);
    world.run(S, |_, ms| u64::from(ms % 25 == 0));
    // One region is asked for far more than there is. The burst must last a second and a half.
    world.run(S, |region, _| u64::from(region == 0));
    for region in [1, 2] {
        let holding = world.cell(region, "k").holding;
        assert!(holding.effective.units >= 15, "{holding:?}");
    }
    world.run(4 * S, |region, _| u64::from(region == 0));
    for region in [1, 2] {
        let holding = world.cell(region, "k").holding;
        assert!(holding.effective.units <= 2, "who is idle for long lends it: {holding:?}");
    }
}

#[test]
fn repeated_entries_do_not_keep_a_recovered_link_slow() {
    let mut world = World::new(3, &[regions::bucket("b", "9/s", 10)], 40 * MS);
    world.run(2 * S, |_, _| 0);
    // Many keys at once, on links that can hardly carry their traffic.
    let keys: Vec<String> = (0..600).map(|n| format!("k{n}")).collect();
    world.bytes_per_s = Some(5_000);
    let mut asked = 0_usize;
    for _ in 0..20_000 {
        world.run(MS, |_, _| 0);
        for _ in 0..5 {
            asked += 7;
            // Most requests for a key come in one region, which borrows.
            let key = asked % keys.len();
            world.ask(if asked.is_multiple_of(4) { key % 2 } else { 2 }, &keys[key]);
        }
    }
    // Requests have ended, and the links have room for the rest of the traffic.
    world.bytes_per_s = Some(50_000);
    world.run(60 * S, |_, _| 0);
    let before = world.said();
    world.run(10 * S, |_, _| 0);
    let more = world.said() - before;
    for region in 0..3 {
        for key in &keys {
            let loans = world.cell(region, key).loans;
            assert!(loans.is_empty(), "{key} in {region}: {loans:?}");
        }
    }
    // Each lender renews its loans, whatever they are, with every heartbeat that it hears.
    assert!(more <= 3 * 2 * 10 * 1_000 / 400, "the same is said for ever: {more}");
}

#[test]
fn regions_send_nothing_about_idle_cells() {
    let limits = [regions::bucket("b", "9/s", 10), regions::window("w", 3_000, "1d")];
    let mut world = World::new(3, &limits, 40 * MS);
    world.run(2 * S, |_, _| 0);
    // Regions let the cells cool one after the other, each while another region has just been told.
    for region in [0, 1, 2, 0] {
        for key in 0..50 {
            (0..3).for_each(|_| assert!(world.ask(region, &format!("k{key}")), "{region} k{key}"));
        }
        world.run(7 * S, |_, _| 0);
    }
    // Ten seconds after the last request, plus time for the last messages.
    world.run(15 * S, |_, _| 0);
    let before = world.said();
    world.run(60 * S, |_, _| 0);
    // Each lender renews its loans, whatever they are, once a second.
    let more = world.said() - before;
    assert!(more <= 3 * 2 * 60, "of buckets that are forgotten, and of windows that are open: {more}");
    // A region that is asked again receives what the others have, although it has heard nothing of them for a
    // minute.
    let mut passed = 0;
    for ms in 0..40_000 {
        world.run(MS, |_, _| 0);
        passed += u64::from(ms % 13 == 0 && world.ask(1, "k7"));
    }
    assert!(passed > 350, "nine a second in one region: {passed}");
}

#[test]
fn rights_of_a_day_window_are_given_after_minutes_without_messages() {
    let mut world = World::new(3, &[regions::window("w", 3_000, "1d")], 40 * MS);
    world.run(2 * S, |_, _| 0);
    let passed = (0..900).filter(|_| world.ask(2, "k")).count();
    assert_eq!(passed, 900);
    world.run(300 * S, |_, _| 0);
    let before = world.said();
    world.run(60 * S, |_, _| 0);
    assert_eq!(world.said() - before, 0);
    let before = world.admitted();
    world.run(60 * S, |region, ms| u64::from(region == 0 && ms % 20 == 0));
    let passed = world.admitted() - before;
    assert!((2_050..=2_100).contains(&passed), "of 2100 that are left: {passed}");
}

#[test]
fn a_version_that_waits_for_a_cut_off_region_is_written_once() {
    let mut world = World::new(3, &[regions::bucket("b", "9/s", 10)], 40 * MS);
    world.run(2 * S, |_, _| 0);
    world.cut = vec![(0, 2), (2, 0), (1, 2), (2, 1)];
    let members = [(regions::incarnation(0), 2), (regions::incarnation(1), 1), (regions::incarnation(2), 1)];
    world.change(0, &[regions::bucket("b", "9/s", 10)], &members, &[], 0);
    world.run(5 * S, |_, _| 0);
    assert!(!world.all_settled(), "it waits");
    let wrote = |world: &World| world.places.iter().map(|place| place.batches).sum::<u64>();
    let before = wrote(&world);
    world.run(60 * S, |_, _| 0);
    assert_eq!(wrote(&world) - before, 0, "nothing has changed");
    world.cut.clear();
    world.run(10 * S, |_, _| 0);
    assert!(world.all_settled(), "{:#?}", world.memberships());
}

#[test]
fn requests_above_every_regions_share_still_pass_in_some_region() {
    // Each region has two units, and every request needs four.
    let mut world = World::new(3, &[regions::bucket("b", "6/s", 6)], 40 * MS);
    world.run(2 * S, |_, _| 0);
    let mut passed = [0_u64; 3];
    for n in 0..600_u64 {
        world.run(50 * MS, |_, _| 0);
        let region = (n % 3) as usize;
        passed[region] += u64::from(world.ask_for(region, "k", 4));
    }
    assert!(passed.iter().sum::<u64>() >= 10, "{passed:?}");
    // Costs of one and four. Units that are useful where they are stay there.
    let mut world = World::new(3, &[regions::bucket("b", "6/s", 6)], 40 * MS);
    world.run(2 * S, |_, _| 0);
    let mut used = [0_u64; 3];
    for n in 0..600_u64 {
        world.run(50 * MS, |_, _| 0);
        let (region, cost) = ((n % 3) as usize, if n % 7 == 0 { 4 } else { 1 });
        used[region] += if world.ask_for(region, "k", cost) { cost } else { 0 };
    }
    assert!(used.iter().all(|used| *used >= 50), "two a second for thirty seconds, each: {used:?}");
}

#[test]
fn a_catalogue_of_another_cluster_is_not_adopted() {
    let mut world = World::new(2, &[regions::bucket("b", "10/s", 3)], 40 * MS);
    world.run(2 * S, |_, _| 0);
    let version = world.places[0].node.version().expect("a version");
    let key = acequia_rights::versions::CellSecret([8; 16]);
    let version_id = acequia_rights::VersionId {
        epoch: version.version_id.epoch + 1,
        number: version.version_id.number + 1,
    };
    let other = acequia_rights::Version { key, version_id, allocation: version_id, ..version };
    let now = world.now_of(1);
    let fault = world.places[1].node.adopt(other, now, |_| Some(Vec::new())).expect_err("another key");
    assert!(fault.to_string().contains("another cluster"), "{fault}");
}

/// A limit changes its shape, and the old shape counts up to an edge beside the new one. A node starts with a
/// wall clock beyond that edge, and is then corrected. The old shape and its debts must hold from then until
/// the edge.
#[test]
fn an_old_shape_that_seemed_over_holds_when_the_clock_is_corrected() {
    let mut world = World::new(2, &[window("w", 300, "1h")], 20 * MS);
    world.run(2 * S, |_, _| 0);
    let to_edge_ns = 3_600 * S - world.now % (3_600 * S);
    world.change(0, &[window("w", 200, "2h")], &[(incarnation(0), 1), (incarnation(1), 1)], &[], 0);
    world.run(2 * S, |_, _| 5);
    let spent = world.places[0].admitted + world.places[1].admitted;
    assert_eq!(spent, 300);
    world.ahead[1] = to_edge_ns + 60 * S;
    world.restart(1, None, incarnation(1));
    world.run(5 * S, |_, _| 5);
    assert_eq!(world.places[0].admitted + world.places[1].admitted, 300);
    // From the edge on the new shape holds alone. It has counted what passed since it was heard of.
    world.run(to_edge_ns, |_, ms| u64::from(ms % 1_000 == 0));
    world.run(5 * S, |_, _| 5);
    let all = world.places[0].admitted + world.places[1].admitted;
    assert!((301..=300 + 200).contains(&all), "{all}");
}

/// One region obtains what all others have, and then another region is asked. What the second does not accept
/// from the first arrives through the regions that had the units.
#[test]
fn borrowed_rights_reach_a_third_region_through_their_givers() {
    let mut world = World::new(5, &[window("w", 5_000, "1d")], 20 * MS);
    world.run(2 * S, |_, _| 0);
    let passed = (0..900).filter(|_| world.ask(4, "k")).count();
    assert_eq!(passed, 900);
    world.run(300 * S, |_, _| 0);
    let borrowed = world.peek(4, "k").0.effective.units;
    assert!(borrowed > 2_500, "it borrowed of the others: {borrowed}");
    let before = world.admitted();
    world.run(60 * S, |region, ms| u64::from(region == 0 && ms % 10 == 0));
    let passed = world.admitted() - before;
    assert!((4_000..=4_100).contains(&passed), "of 4100 that are left: {passed}");
}
