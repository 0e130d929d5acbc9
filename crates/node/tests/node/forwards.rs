//! Forwards: a request that waits at one node of a region is charged at another, the owner of its cell.

use std::ops::Range;

use crate::pools::{Way, World};
use crate::scene::{self, MS, S, bucket, fields, ledger::Terms, sliding, window};
use acequia_limits::limit::{LimitSpec, SharingSpec};
use acequia_node::ForwardCounts;

/// Two regions of two nodes each, and one of three.
fn shared(spec: LimitSpec, seed: u64) -> World {
    of_limits(&[spec], seed)
}

fn of_limits(specs: &[LimitSpec], seed: u64) -> World {
    of_limits_near(specs, seed, None)
}

/// Like `of_limits`, with the given frame delays within a region.
fn of_limits_near(specs: &[LimitSpec], seed: u64, near_ns: Option<Range<u64>>) -> World {
    let mut world = World::among_regions(&[2, 2, 3], specs, 10, seed);
    world.is_prompt = true;
    if let Some(near_ns) = near_ns {
        world.regions.as_mut().expect("regions").near_ns = (near_ns.start, near_ns.end);
    }
    world.pass(S);
    assert!(world.order(&(0..7).map(|place| (place, 1)).collect::<Vec<_>>()));
    world.pass(6 * S);
    world.expect_granting("at first");
    world
}

/// Sends requests for three keys to random nodes of `places`, at this rate. Callers wait where they may.
/// Returns the percentage that passed.
fn passes(world: &mut World, places: &[usize], a_second: u64, seconds: u64) -> u64 {
    let (mut passed, late) = (0, world.passed_late);
    for _ in 0..a_second * seconds {
        let place = places[world.below(places.len() as u64) as usize];
        let key = format!("k{}", world.below(3));
        passed += u64::from(world.ask_or_wait(place, &key, 1));
        let pause_ns = world.below(2 * S / a_second);
        world.pass(pause_ns);
    }
    world.pass(100 * MS);
    100 * (passed + world.passed_late - late) / (a_second * seconds)
}

/// A key for which this node has forwarded a request, because a mate is the owner.
fn key_forwarded_by(world: &mut World, place: usize) -> String {
    key_forwarded_after(world, place, 1)
}

/// Like `key_forwarded_by`, if `requests - 1` requests use up what the node keeps for itself.
fn key_forwarded_after(world: &mut World, place: usize, requests: u64) -> String {
    let asked = |world: &World| world.nodes[place].node.forward_counts().asked;
    for number in 0..64 {
        let (key, before) = (format!("x{number}"), asked(world));
        for _ in 0..requests {
            world.ask_or_wait(place, &key, 1);
        }
        world.pass(100 * MS);
        if asked(world) > before {
            world.pass(S);
            return key;
        }
    }
    panic!("node {place} is the owner of every cell")
}

fn counts(world: &World) -> ForwardCounts {
    let all = world.nodes.iter().map(|at| at.node.forward_counts());
    all.fold(ForwardCounts::default(), |sum, of| ForwardCounts {
        asked: sum.asked + of.asked,
        charged: sum.charged + of.charged,
        used: sum.used + of.used,
        wasted: sum.wasted + of.wasted,
    })
}

fn limits() -> [LimitSpec; 3] {
    [bucket("b", "20/s", 20), window("w", 40, "2s"), sliding("s", 40, "2s")]
}

/// Demand is a third of the limit. Nearly all of it passes at every node, and nearly all forwarded charges
/// are used.
#[test]
fn units_of_a_region_can_be_spent_at_each_of_its_nodes() {
    for spec in limits() {
        let name = spec.name.clone();
        let mut world = shared(spec, 1);
        let passed = passes(&mut world, &[0, 1, 2, 3, 4, 5, 6], 20, 20);
        let counts = counts(&world);
        println!("{name}: {passed} % passed, {counts:?}");
        assert!(passed >= 92, "{name}: {passed} % passed");
        // A node keeps half of its own part of a window, and holds some of the next window before it opens.
        let least = if name == "b" { 60 } else { 10 };
        assert!(
            counts.used > least && counts.charged - counts.used <= 2 + counts.charged / 20,
            "{name}: {counts:?}"
        );
    }
}

/// A node first uses its own units. Requests of a limit with many units are not forwarded.
#[test]
fn a_node_forwards_nothing_while_it_has_units_itself() {
    let mut world = shared(bucket("b", "2000/s", 2_000), 1);
    passes(&mut world, &[0, 1], 200, 2);
    assert_eq!(counts(&world), ForwardCounts::default());
}

/// An owner is gone. Soon another node takes over, and receives what other regions lend. The owner is asked
/// again when it is back.
#[test]
fn another_node_takes_over_from_an_owner_that_is_gone() {
    for gone in [4, 5, 6] {
        let mut world = shared(bucket("b", "20/s", 20), 1);
        let others: Vec<usize> = [4, 5, 6].into_iter().filter(|place| *place != gone).collect();
        passes(&mut world, &others, 10, 5);
        world.nodes[gone].is_hung = true;
        world.regions.as_mut().expect("regions").cut.insert(gone);
        passes(&mut world, &others, 10, 5);
        let without = passes(&mut world, &others, 10, 10);
        world.nodes[gone].is_hung = false;
        world.regions.as_mut().expect("regions").cut.clear();
        passes(&mut world, &others, 10, 5);
        let again = passes(&mut world, &others, 10, 10);
        println!("without node {gone} {without} % passed, and with it again {again} %");
        assert!(without >= 70 && again >= 90, "{without} and {again}");
    }
}

/// Without the store and the other regions, each node finds what its mates keep: half of the region's part
/// and no more. It makes no difference whether the node is the cell's owner.
#[test]
fn without_the_store_guard_units_can_be_spent_at_each_node() {
    for spec in [window("w", 42, "1000s"), sliding("s", 42, "1000s")] {
        let mut world = of_limits_near(std::slice::from_ref(&spec), 2, Some(MS / 20..MS / 5));
        world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
        world.regions.as_mut().expect("regions").cut.extend([0, 1, 2, 3]);
        world.pass(100 * S);
        for number in 0..12 {
            let (key, late) = (format!("k{number}"), world.passed_late);
            let asked = (0..12).map(|_| {
                let passed = world.ask_or_wait(4 + number % 3, &key, 1);
                world.pass(5 * MS);
                u64::from(passed)
            });
            let passed = asked.sum::<u64>() + world.passed_late - late;
            // Each of three nodes keeps three of its six units. A unit that is on its way may arrive later,
            // or count as used in a sliding window.
            assert!((8..=9).contains(&passed), "{} {key}: {passed}", spec.name);
        }
    }
}

/// A cell is spent and its store is gone. Mates are asked for it a few times a second, however often requests
/// come.
#[test]
fn without_the_store_an_empty_mate_is_asked_only_a_few_times_a_second() {
    let mut world = shared(window("w", 42, "1000s"), 1);
    world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
    world.regions.as_mut().expect("regions").cut.extend([0, 1, 2, 3]);
    world.pass(100 * S);
    passes(&mut world, &[4, 5, 6], 200, 1);
    let before = counts(&world).asked;
    passes(&mut world, &[4, 5, 6], 1_000, 2);
    let asked = counts(&world).asked - before;
    // Three keys, at three nodes, of two mates each, four times a second for two seconds; plus forwards to
    // owners that report units.
    assert!(asked <= 3 * 3 * 2 * 4 * 2 + 200, "{asked} forwards");
}

/// A silent owner keeps nobody waiting for long.
#[test]
fn requests_stop_waiting_for_a_silent_owner() {
    let mut world = shared(bucket("b", "20/s", 20), 1);
    passes(&mut world, &[0, 1], 60, 2);
    world.regions.as_mut().expect("regions").cut.extend([0, 1]);
    let before = counts(&world).asked;
    passes(&mut world, &[0, 1], 1_000, 1);
    let asked = counts(&world).asked - before;
    assert!(asked < 60, "{asked} forwards of a node that does not answer");
}

/// Frames within a region are so slow that callers are gone when a forwarded charge arrives. Nothing is
/// forwarded, and as much passes as without forwards.
#[test]
fn nothing_is_forwarded_to_mates_that_are_too_slow() {
    let places = [0, 1, 2, 3, 4, 5, 6];
    let mut all = [0; 2];
    for spec in limits() {
        let name = spec.name.clone();
        let of_other = match spec.token_bucket {
            Some(_) => [("rate", &["4/s"][..]), ("burst", &["18"][..])].to_vec(),
            None => [("limit", &["30"][..])].to_vec(),
        };
        // A limit whose override gives another key another variant is never forwarded.
        let unforwarded = with_override(spec.clone(), "k9", &of_other);
        for a_second in [20, 60, 400] {
            let [passed, without] = [&spec, &unforwarded].map(|spec| {
                let mut world = of_limits_near(std::slice::from_ref(spec), 1, Some(3 * MS..8 * MS));
                passes(&mut world, &places, a_second, 5);
                let passed = passes(&mut world, &places, a_second, 20);
                assert_eq!(counts(&world), ForwardCounts::default());
                passed
            });
            println!("{name}: of {a_second} a second {passed} % passed, {without} without forwards");
            assert!(passed + 8 >= without, "{name}: {passed} % passed, {without} without forwards");
            all = [all[0] + passed, all[1] + without];
        }
    }
    assert!(all[0] * 100 >= all[1] * 97, "{all:?}");
}

/// Mates become slow. Soon nothing is charged for callers that are gone.
#[test]
fn forwards_stop_soon_after_mates_become_slow() {
    let places = [0, 1, 2, 3, 4, 5, 6];
    for spec in limits() {
        let name = spec.name.clone();
        let mut world = shared(spec, 1);
        passes(&mut world, &places, 60, 5);
        world.regions.as_mut().expect("regions").near_ns = (3 * MS, 8 * MS);
        let before = counts(&world);
        passes(&mut world, &places, 60, 10);
        let wasted = counts(&world).wasted - before.wasted;
        let before = counts(&world);
        let passed = passes(&mut world, &places, 60, 20);
        println!("{name}: {passed} % passed, {wasted} wasted before");
        assert_eq!(counts(&world), before, "{name}");
        assert!(wasted <= 60 && passed >= 65, "{name}: {passed} % passed, {wasted} wasted");
    }
}

/// A node that stops has written its debts, and charges nothing for others any more.
#[test]
fn a_stopped_node_charges_nothing_for_its_mates() {
    let mut world = shared(bucket("b", "20/s", 20), 1);
    passes(&mut world, &[0, 1], 20, 5);
    let charged = |world: &World| world.nodes[0].node.forward_counts().charged;
    let before = charged(&world);
    assert!(before > 0, "of some cell it is the owner");
    world.nodes[0].node.close(world.now(0), |_| ());
    passes(&mut world, &[1], 20, 5);
    assert_eq!(charged(&world), before);
}

/// An owner without its store has nothing more to give, and reports this. Its mates use the pool themselves.
#[test]
fn an_owner_without_its_store_keeps_no_mate_from_the_pool() {
    for without in [4, 5, 6] {
        let mut world = shared(bucket("b", "20/s", 20), 1);
        let others: Vec<usize> = [4, 5, 6].into_iter().filter(|place| *place != without).collect();
        passes(&mut world, &others, 10, 5);
        world.nodes[without].way = Way::CUT;
        passes(&mut world, &others, 10, 80);
        let passed = passes(&mut world, &others, 10, 10);
        println!("while node {without} has no store {passed} % pass at the others");
        assert!(passed >= 75, "{passed} %");
    }
}

/// An owner that restarts has nothing to give either, and calls no pool for a while.
#[test]
fn an_owner_that_restarts_keeps_no_mate_from_the_pool() {
    for place in [4, 5, 6] {
        let mut world = shared(bucket("b", "20/s", 20), 1);
        let others: Vec<usize> = [4, 5, 6].into_iter().filter(|other| *other != place).collect();
        passes(&mut world, &others, 10, 5);
        world.crash(place);
        let passed = passes(&mut world, &others, 10, 6);
        println!("while node {place} begins again {passed} % pass at the others");
        assert!(passed >= 40, "{passed} %");
    }
}

/// An owner whose disk is full withdraws nothing from a window's pool either.
#[test]
fn an_owner_whose_disk_is_full_keeps_no_mate_from_the_pool() {
    for place in [4, 5, 6] {
        let mut world = shared(window("w", 40, "2s"), 1);
        let others: Vec<usize> = [4, 5, 6].into_iter().filter(|other| *other != place).collect();
        passes(&mut world, &others, 10, 5);
        world.nodes[place].is_disk_full = true;
        passes(&mut world, &others, 10, 5);
        let passed = passes(&mut world, &others, 10, 10);
        println!("while the disk of node {place} is full {passed} % pass at the others");
        assert!(passed >= 60, "{passed} %");
    }
}

/// If a limit has fewer units than there are members, the member that holds them may be far away. A request
/// that waits at a mate of the owner obtains them, too.
#[test]
fn a_waiting_request_obtains_units_of_far_regions_through_the_owner() {
    for spec in [bucket("b", "1/s", 5), sliding("s", 5, "2s")] {
        let name = spec.name.clone();
        let mut world = shared(spec, 1);
        world.regions.as_mut().expect("regions").delay_ns = (20 * MS, 40 * MS);
        let (mut passed, late) = (0, world.passed_late);
        for number in 0..60 {
            passed += u64::from(world.ask_or_wait(4 + number % 3, &format!("far{number}"), 1));
            world.pass(300 * MS);
        }
        passed += world.passed_late - late;
        let counts = counts(&world);
        println!("{name}: {passed} of 60 passed, {counts:?}");
        assert!(passed >= 50 && counts.used > 20, "{name}: {passed} of 60 passed, {counts:?}");
    }
}

/// Other regions are so far away that a forward ends before their units arrive. A waiting request is
/// forwarded again, and as much passes as without forwards.
#[test]
fn a_request_that_waits_long_is_forwarded_again() {
    let wait = SharingSpec { wait: Some("1s".into()), floor: None, priority: Vec::new() };
    for spec in [window("w", 14, "10s"), bucket("b", "1/s", 14), sliding("s", 14, "10s")] {
        let units = if spec.token_bucket.is_some() { "burst" } else { "limit" };
        let spec = LimitSpec { sharing: Some(wait.clone()), ..spec };
        let unforwarded = with_override(spec.clone(), "k9", &[(units, &["30"])]);
        let [forwarded, unforwarded] = [spec, unforwarded].map(|spec| {
            let mut world = shared(spec, 1);
            world.regions.as_mut().expect("regions").delay_ns = (30 * MS, 35 * MS);
            world.pass(25 * S);
            let late = world.passed_late;
            let mut passed = 0;
            for number in 0..40 {
                for _ in 0..9 {
                    passed += u64::from(world.ask_or_wait(4 + number % 3, &format!("far{number}"), 1));
                    while world.waiting() > 0 {
                        world.pass(MS);
                    }
                }
            }
            passed += world.passed_late - late;
            (passed, counts(&world).used)
        });
        println!("{forwarded:?} of 360 passed, {unforwarded:?} without forwards");
        assert!(
            forwarded.0 * 100 >= unforwarded.0 * 92
                && forwarded.0 >= 330
                && unforwarded.0 >= 230
                && forwarded.1 > 100,
            "{forwarded:?} of 360 passed, {unforwarded:?} without forwards"
        );
    }
}

/// More requests wait for one cell at once than may be forwarded.
#[test]
fn a_request_beyond_the_bound_of_forwards_waits_for_a_place() {
    let mut world = shared(bucket("b", "60/s", 60), 1);
    let key = key_forwarded_after(&mut world, 0, 3);
    // Afterwards the owner holds some units.
    (0..3).for_each(|_| {
        world.ask_or_wait(0, &key, 4);
        world.pass(50 * MS);
    });
    world.pass(S);
    let late = world.passed_late;
    let passed = (0..24).filter(|_| world.ask_or_wait(0, &key, 1)).count();
    assert_eq!(passed + world.waiting(), 24, "nobody is sent away");
    world.pass(5 * MS);
    println!("{passed} passed, and {} late", world.passed_late - late);
    assert!(world.passed_late - late >= 10, "{} passed", world.passed_late - late);
}

/// A waiting request for many units does not hold up requests for one unit.
#[test]
fn a_large_request_holds_up_no_small_ones() {
    let wait = SharingSpec { wait: Some("1s".into()), floor: None, priority: Vec::new() };
    let mut world = shared(LimitSpec { sharing: Some(wait), ..bucket("b", "100/s", 100) }, 1);
    let key = key_forwarded_after(&mut world, 0, 3);
    // The owner's units are spent. Then one comes back every 35 ms.
    while world.ask(1, &key, 1) {}
    assert!(!world.ask_or_wait(0, &key, 90));
    let late = world.passed_late;
    let passed = (0..5).filter(|_| world.ask_or_wait(0, &key, 1)).count() as u64;
    world.pass(38 * MS);
    let late = world.passed_late - late;
    assert!(late > 0, "of what comes back meanwhile they have their part");
    assert_eq!(world.waiting() as u64, 6 - passed - late, "the large one waits, and nobody was sent away");
}

/// If a request lacks units that cannot be had, its other limits are not forwarded: the charge would be
/// wasted.
#[test]
fn a_request_that_another_limit_denies_is_not_forwarded() {
    let specs = [bucket("b", "20/s", 20), bucket("spent", "1/h", 20)];
    let mut world = of_limits(&specs, 1);
    passes(&mut world, &[0, 1, 2, 3, 4, 5, 6], 60, 3);
    let before = counts(&world);
    passes(&mut world, &[0, 1], 60, 20);
    let after = counts(&world);
    println!("{before:?} {after:?}");
    assert!(after.wasted - before.wasted <= 20, "{before:?} {after:?}");
}

/// Requests that cannot be forwarded find the region's pool at every node: the owner holds nothing in advance
/// for keys without forwards.
#[test]
fn a_request_that_cannot_be_forwarded_finds_the_pool_at_every_node() {
    for spec in [bucket("b", "20/h", 20), sliding("s", 20, "60s")] {
        let name = spec.name.clone();
        let mut world = World::among_regions(&[3], &[spec], 10, 1);
        world.is_prompt = true;
        world.pass(S);
        assert!(world.order(&[(0, 1), (1, 1), (2, 1)]));
        world.pass(70 * S);
        for key in 0..6 {
            let key = format!("k{key}");
            let passed = (0..20).filter(|number| {
                let passes = world.ask_and_wait(number % 3, &key, 1);
                world.pass(50 * MS);
                passes
            });
            let passed = passed.count();
            assert!(passed >= 19, "{name}: {passed} of 20 passed");
        }
        assert_eq!(counts(&world), ForwardCounts::default());
    }
}

/// A cell that received one forward is forgotten like any other.
#[test]
fn a_cell_charged_by_a_forward_is_forgotten_like_any_other() {
    for spec in [bucket("b", "60/s", 60), window("w", 60, "1s"), sliding("s", 60, "1s")] {
        let mut world = shared(spec, 1);
        let cells = |world: &World| world.nodes.iter().map(|at| at.node.usage().cells).sum::<u64>();
        for number in 0..400 {
            // More than the node keeps for itself.
            for _ in 0..6 {
                world.ask_or_wait(0, &format!("once{number}"), 1);
            }
            world.pass(5 * MS);
        }
        assert!(counts(&world).charged > 40, "{:?}", counts(&world));
        world.pass(200 * S);
        for place in 0..7 {
            let now = world.now(place);
            scene::sweep_all(&world.nodes[place].node, now);
        }
        assert_eq!(cells(&world), 0);
    }
}

/// If a limit is spent, nobody waits as long as its `wait` would allow.
#[test]
fn a_request_for_units_that_cannot_come_stops_waiting_early() {
    let wait = SharingSpec { wait: Some("1s".into()), floor: None, priority: Vec::new() };
    let mut world = shared(LimitSpec { sharing: Some(wait), ..bucket("b", "1/s", 5) }, 1);
    let key = key_forwarded_by(&mut world, 0);
    for _ in 0..64 {
        world.ask(1, &key, 1);
        world.pass(20 * MS);
    }
    world.ask_or_wait(0, &key, 20);
    world.ask_or_wait(0, &key, 5);
    assert_eq!(world.waiting(), 1, "units within the limit may still come");
    world.pass(200 * MS);
    assert_eq!(world.waiting(), 0);
}

fn with_override(spec: LimitSpec, key: &str, numbers: &[(&str, &[&str])]) -> LimitSpec {
    LimitSpec { overrides: vec![fields(&[&[("key", &[key][..])], numbers].concat())], ..spec }
}

/// If keys have several variants, an owner cannot tell which one applies. Nothing is forwarded, and each node
/// decides for itself.
#[test]
fn nothing_is_forwarded_under_a_limit_with_several_variants() {
    let mut world =
        shared(with_override(bucket("b", "20/s", 20), "k1", &[("rate", &["2/s"]), ("burst", &["30"])]), 1);
    let passed = passes(&mut world, &[0, 1, 2, 3, 4, 5, 6], 20, 20);
    println!("{passed} % passed");
    assert_eq!(counts(&world), ForwardCounts::default());
    assert!(passed >= 50, "{passed} %");
}

/// One or both of two limits are forwarded. The request passes by both or not at all.
#[test]
fn one_request_can_be_forwarded_for_two_limits() {
    let mut world = of_limits(&[bucket("b", "20/s", 20), window("w", 40, "2s")], 1);
    let passed = passes(&mut world, &[0, 1, 2, 3, 4, 5, 6], 20, 20);
    let counts = counts(&world);
    println!("{passed} % passed, {counts:?}");
    assert!(passed >= 85 && counts.used > 100, "{passed} % passed, {counts:?}");
}

/// More requests wait at one node than their owner has units for. Each charge lets one of them pass.
fn more_wait_than_there_is() {
    let mut world = shared(bucket("b", "20/s", 20), 1);
    let key = key_forwarded_by(&mut world, 0);
    let mut was_some = false;
    for _ in 0..8 {
        let (late, before) = (world.passed_late, counts(&world));
        for _ in 0..16 {
            world.ask_or_wait(0, &key, 1);
        }
        world.pass(40 * MS);
        let (late, asked) = (world.passed_late - late, counts(&world).asked - before.asked);
        was_some |= 0 < late && late < asked;
    }
    assert!(was_some, "it was never enough for some and not for all");
}

/// A request gives up before its forwarded charge arrives. A request that comes afterwards has not waited,
/// and must not use the charge.
fn one_comes_when_another_has_given_up() {
    let mut world = shared(bucket("b", "20/s", 20), 1);
    let key = key_forwarded_by(&mut world, 0);
    world.regions.as_mut().expect("regions").near_ns = (3 * MS, 3 * MS + 1);
    let before = counts(&world);
    assert!(!world.ask_or_wait(0, &key, 1));
    world.pass(8 * MS);
    assert_eq!(counts(&world).charged, before.charged + 1, "it was charged");
    assert!(!world.ask_or_wait(0, &key, 1), "nothing was charged for it");
    world.pass(100 * MS);
    assert!(counts(&world).wasted > before.wasted);
}

/// Node 0, as the sender or as the owner, hears of a new variant while a forward is under way.
fn change_while_a_forward_is_under_way() {
    for asker in [0, 1] {
        let mut world = shared(bucket("b", "20/s", 20), 1);
        let key = key_forwarded_by(&mut world, asker);
        world.regions.as_mut().expect("regions").near_ns = (MS / 2, MS / 2 + 1);
        let before = counts(&world);
        let late = world.passed_late;
        assert!(!world.ask_or_wait(asker, &key, 1));
        // Node 0 as the sender: node 1 has charged, and the reply is on its way. Node 0 as the owner: the
        // forward is on its way.
        world.pass(if asker == 0 { MS + MS / 10 } else { MS / 4 });
        assert_eq!(counts(&world).charged - before.charged, u64::from(asker == 0));
        world.specs = vec![bucket("b", "22/s", 22)];
        assert!(world.order(&(0..7).map(|place| (place, 1)).collect::<Vec<_>>()));
        world.pass(100 * MS);
        // If nothing was charged, the request may pass by units of the new variant.
        assert!(
            asker == 1 || world.passed_late == late,
            "it passes by another variant than it was charged by"
        );
        assert_eq!(counts(&world).used, before.used, "it passes by another variant than it was charged by");
        assert_eq!(counts(&world).charged - before.charged, u64::from(asker == 0));
    }
}

#[test]
fn a_forward_is_charged_once_and_lets_one_waiting_request_pass() {
    more_wait_than_there_is();
    one_comes_when_another_has_given_up();
    change_while_a_forward_is_under_way();
}

/// All nodes are asked for more than there is.
fn asked_for_too_much() {
    for spec in limits() {
        let mut world = shared(spec, 1);
        passes(&mut world, &[0, 1, 2, 3, 4, 5, 6], 3_000, 2);
    }
}

/// Frames within a region are so slow that callers are gone when their forwarded charges arrive.
fn forwarded_too_late() {
    for spec in limits() {
        let mut world = shared(spec, 1);
        world.regions.as_mut().expect("regions").near_ns = (2 * MS, 5 * MS);
        passes(&mut world, &[0, 1, 2, 3, 4, 5, 6], 200, 10);
        let counts = counts(&world);
        assert!(counts.wasted > 0, "{counts:?}");
    }
}

/// The limit with another variant, or with an override.
fn renumbered(world: &mut World, spec: &LimitSpec) -> LimitSpec {
    let (is_less, has_override) = (world.below(2) == 0, world.below(3) == 0);
    let units = if is_less { 24 } else { 40 };
    let spec = match (spec.name.as_str(), is_less) {
        ("b", true) => bucket("b", "12/s", 16),
        ("b", false) => bucket("b", "20/s", 20),
        ("w", _) => window("w", units, "2s"),
        _ => sliding("s", units, "2s"),
    };
    match (has_override, spec.token_bucket.is_some()) {
        (false, _) => spec,
        (true, true) => with_override(spec, "k1", &[("rate", &["4/s"]), ("burst", &["18"])]),
        (true, false) => with_override(spec, "k1", &[("limit", &["30"])]),
    }
}

/// A random history. Frames within a region take any time and come twice, and clocks differ. Nodes lose
/// power, their links or their store. Shares and variants change.
fn history(seed: u64) {
    let specs = match seed % 5 {
        4 => vec![bucket("b", "20/s", 20), window("w", 40, "2s")],
        kind => vec![limits()[(kind % 3) as usize].clone()],
    };
    let mut world = of_limits(&specs, seed);
    if seed.is_multiple_of(2) && specs.len() == 1 {
        let hourly = if specs[0].token_bucket.is_some() { 20 * 3_600 } else { 0 };
        world.most = Some(Terms { limit: if hourly > 0 { 20 } else { 40 }, hourly });
    }
    for _ in 0..150 {
        let place = world.below(7) as usize;
        let near = [(MS / 4, MS), (MS / 4, MS), (MS, 8 * MS), (MS, 90 * MS)][world.below(4) as usize];
        let repeated = if world.below(3) == 0 { 30 } else { 0 };
        let regions = world.regions.as_mut().expect("regions");
        (regions.near_ns, regions.repeated) = (near, repeated);
        if !regions.cut.is_empty() {
            regions.cut.clear();
        } else if seed.is_multiple_of(4) {
            regions.cut.insert(place);
        }
        let weights: Vec<_> = (0..7).map(|place| (place, 1 + world.below(3) as u32)).collect();
        match world.below(24) {
            0 => world.crash(place),
            1 => world.stop_at_random(place),
            2 => world.nodes[place].way = Way::CUT,
            3 => world.nodes.iter_mut().for_each(|at| at.way = Way::GOOD),
            4 => drop(world.order(&weights)),
            5 => world.nodes[place].ahead_ns = world.below(19 * MS) as i64 - 9 * MS as i64,
            6..=8 if world.most.is_some() => {
                world.specs = vec![renumbered(&mut world, &specs[0])];
                world.order(&weights);
            }
            _ => {}
        }
        let first = world.below(7) as usize;
        let a_second = 20 + world.below(300);
        passes(&mut world, &[first, (first + 1) % 7, place], a_second, 1);
    }
}

#[test]
fn no_request_passes_by_a_forward_charged_before_or_after_its_wait() {
    asked_for_too_much();
    forwarded_too_late();
}

#[test]
fn under_random_faults_no_request_passes_without_a_charge_in_its_wait() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(5);
    (1..=seeds).for_each(history);
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::{Mutation, break_rule};
    let stories: [(Mutation, fn()); 4] = [
        (Mutation::ForwardUncharged, more_wait_than_there_is),
        (Mutation::ForwardUsedTwice, more_wait_than_there_is),
        (Mutation::ForwardUsedByAnybody, one_comes_when_another_has_given_up),
        (Mutation::ForwardOfAnotherVariant, change_while_a_forward_is_under_way),
    ];
    std::panic::set_hook(Box::new(|_| ()));
    let found = stories.map(|(rule, story)| {
        break_rule(Some(rule));
        let found = std::panic::catch_unwind(story);
        break_rule(None);
        (rule, found.err().and_then(|what| what.downcast::<String>().ok()))
    });
    drop(std::panic::take_hook());
    for (rule, what) in &found {
        println!("{:24} {}", format!("{rule:?}"), what.as_deref().map_or("survives", String::as_str));
    }
    assert!(found.iter().all(|(_, what)| what.is_some()), "a rule can be left out unnoticed");
}
