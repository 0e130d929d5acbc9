//! Nodes of one region that share their limits through pools.

mod disks;
mod excluded;
mod lowered;
mod replaced;
mod shared;

use crate::pools::{Way, World};
use crate::scene::{self, MS, S, approximate, bucket, sliding, slots, window};
use acequia_limits::{
    Request,
    classes::ClassesSpec,
    limit::{BySpec, LimitSpec},
};
use acequia_node::{Ask, pool::GROUPS};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Wake, Waker},
};

/// Sum of all guard shares, in percent.
const GUARD: u8 = 10;

/// A world of one limit whose pools grant.
fn settled(nodes: usize, spec: LimitSpec) -> World {
    let mut world = World::new(nodes, &[spec], GUARD, 1);
    // Each node has used half of its guard share or was denied, so all nodes know the key's group.
    for place in 0..nodes {
        while world.ask(place, "k", 1) {}
    }
    // Windows that opened before anybody knew of them are over, and buckets are full again.
    world.pass(60 * S);
    world
}

#[test]
fn requests_at_all_nodes_in_turn_get_nearly_the_whole_limit() {
    for spec in [window("w", 10, "10s"), bucket("b", "1/s", 10), sliding("s", 10, "10s")] {
        let name = spec.name.clone();
        let mut world = settled(3, spec);
        let before = world.admitted(0, "k");
        for number in 0..30 {
            world.ask_patiently(number % 3, "k", 1);
        }
        let passed = world.admitted(0, "k") - before;
        assert!((9..=10).contains(&passed), "{name}: {passed} of 10");
    }
}

/// Counts how often the task is woken.
#[derive(Default)]
struct Task(AtomicU32);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_task_that_waits_for_pool_calls_is_woken_once() {
    let mut world = settled(2, window("w", 1_000, "10s"));
    let task = Arc::new(Task::default());
    let waker = Waker::from(Arc::clone(&task));
    let poll = |world: &World| world.nodes[0].node.poll_calls(&Context::from_waker(&waker));
    assert!(poll(&world).is_pending());
    // Half of a guard share, plus one unit.
    while !world.nodes[0].node.calls() {
        assert!(world.ask(0, "k", 1));
    }
    world.ask(0, "k", 1);
    assert_eq!(task.0.load(Ordering::Relaxed), 1);
    assert!(poll(&world).is_ready());
    world.pass(S);
    assert!(poll(&world).is_pending());
}

#[test]
fn an_operator_sees_the_units_that_a_node_leases_from_the_pool() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 1_000), sliding("s", 1_000, "10s")] {
        let name = spec.name.clone();
        let mut world = settled(2, spec);
        for _ in 0..600 {
            world.ask(0, "k", 1);
            world.pass(5 * MS);
        }
        let holding = world.holding(0, "k");
        // A guard share is 50 units.
        assert_eq!(holding.standing.units, 50, "{name}");
        assert!(holding.effective.units > holding.standing.units, "{name}: {holding:?}");
        assert!(holding.left <= holding.effective.units, "{name}: {holding:?}");
    }
}

/// Two nodes of a new region. The first holds what it was asked for and a little more. Also returns a
/// function for what the limit holds there.
fn holding(spec: LimitSpec) -> (World, impl Fn(&World) -> u64) {
    let mut world = World::of_new(2, &[spec], GUARD);
    world.pass(6 * S);
    for _ in 0..600 {
        world.ask(0, "k", 1);
        world.pass(5 * MS);
    }
    // By then frequent requests have led to a rebalance, and the grant has arrived.
    world.pass(100 * MS);
    let slot = world.nodes[0].node.catalogue().limits[0].slot();
    (world, move |world| world.nodes[0].node.units_held().get(&slot).copied().unwrap_or(0))
}

#[test]
fn units_held_of_a_limit_are_the_sum_of_its_cells_leases() {
    for spec in [window("w", 1_000, "1h"), bucket("b", "100/s", 1_000), sliding("s", 1_000, "10m")] {
        let name = spec.name.clone();
        let (mut world, held) = holding(spec);
        assert!(world.nodes[1].node.units_held().is_empty(), "{name}: nobody asked the other");
        let expected = |world: &World| {
            let of_cell = world.holding(0, "k");
            match name.as_str() {
                // Charges use the pool's units before the guard share.
                "w" => of_cell.left.saturating_sub(of_cell.standing.units),
                _ => of_cell.effective.units - of_cell.standing.units,
            }
        };
        let before = held(&world);
        assert!(before > 0, "{name}");
        assert_eq!(before, expected(&world), "{name}");
        world.nodes[0].node.leave_pools(world.now(0));
        world.pass(200 * MS);
        assert!(held(&world) < before, "{name}: it gave back what was not spent");
        assert_eq!(held(&world), expected(&world), "{name}");
        // A sliding window's spent units are held until they leave the window.
        assert_eq!(world.nodes[0].node.units_held().is_empty(), name != "s", "{name}");
    }
}

#[test]
fn leases_that_have_ended_are_not_counted_as_held() {
    for (spec, ends) in [
        (window("w", 1_000, "1m"), 200 * S),
        (bucket("b", "100/s", 1_000), 80 * S),
        (sliding("s", 1_000, "10m"), 80 * S),
    ] {
        let name = spec.name.clone();
        let (mut world, held) = holding(spec);
        world.nodes[0].way = Way::CUT;
        assert!(held(&world) > 0, "{name}");
        world.pass(ends);
        assert_eq!(held(&world), 0, "{name}");
    }
}

#[test]
fn each_report_of_held_units_to_a_group_is_counted() {
    let mut world = settled(2, window("w", 100, "10s"));
    let assertions = |world: &World| world.nodes[0].node.lease_counts().assertions;
    let settled = assertions(&world);
    assert!(settled >= u64::from(GROUPS), "{settled}: of each group once");
    world.pass(60 * S);
    assert_eq!(assertions(&world), settled, "nothing has changed");
    world.server.restart(None);
    world.pass(20 * S);
    let again = assertions(&world) - settled;
    assert!(again >= u64::from(GROUPS), "{again}: the server forgot, and is told again");
    world.expect_granting("told");
}

/// When a node stops, others can use at once what it held, apart from its guard share. This is also true if
/// its first call is lost.
#[test]
fn a_node_that_stops_returns_its_leases_to_the_pool() {
    let specs = || [window("w", 1_000, "40s"), bucket("b", "100/s", 1_000), sliding("s", 1_000, "10s")];
    for (way, spec) in [Way::GOOD, Way::CUT].into_iter().flat_map(|way| specs().map(|spec| (way, spec))) {
        let name = spec.name.clone();
        let mut world = World::new(2, &[spec], GUARD, 1);
        // Windows that opened before anybody knew of them are over, and a new window begins.
        world.pass(80 * S);
        let mut asked = 0;
        // The node holds enough for more than a minute at this rate.
        for _ in 0..400 {
            asked += u64::from(world.ask(0, "k", 1));
            world.pass(25 * MS);
        }
        assert!(world.holding(0, "k").effective.units > 100, "{name}: {:?}", world.holding(0, "k"));
        let node = world.nodes[0].node.clone();
        world.nodes[0].way = way;
        node.leave_pools(world.now(0));
        world.pass(50 * MS);
        world.nodes[0].way = Way::GOOD;
        world.pass(350 * MS);
        assert!(node.has_left_pools(), "{name}");
        let kept = world.holding(0, "k");
        assert!(kept.left <= kept.standing.units, "{name}: nothing of the pool is kept: {kept:?}");
        let begun_ns = world.true_ns;
        let mut passed = 0;
        while world.true_ns < begun_ns + 10 * S {
            passed += u64::from(world.ask(1, "k", 1));
            world.pass(5 * MS);
        }
        let all = if name == "w" { asked + passed } else { passed };
        // In a sliding window, units that a lost call gave back count as used for one more window.
        let least = if name == "s" && way.lost > 0 { 840 } else { 940 };
        assert!(all >= least, "{name}: {asked} before, and {passed} of the rest");
    }
}

#[test]
fn one_busy_node_gets_the_units_that_other_nodes_do_not_use() {
    for spec in [window("w", 1_000, "10s"), bucket("b", "100/s", 1_000), sliding("s", 1_000, "10s")] {
        let name = spec.name.clone();
        let mut world = settled(2, spec);
        let before = world.admitted(0, "k");
        // 200 a second against a limit of 100 a second, for three windows.
        for _ in 0..6_000 {
            world.ask(0, "k", 1);
            world.pass(5 * MS);
        }
        let passed = world.admitted(0, "k") - before;
        // Everything except the other node's guard share.
        assert!(passed >= 2_820, "{name}: {passed} of 3000 and a burst");
    }
}

#[test]
fn at_low_demand_few_requests_are_denied_while_the_store_is_gone() {
    let windows = [window("w", 6_000, "60s"), window("v", 300, "3s"), window("u", 1_000, "10s")];
    for spec in windows.into_iter().chain([bucket("b", "100/s", 200), sliding("s", 1_000, "10s")]) {
        let name = spec.name.clone();
        let mut world = settled(3, spec);
        let demand = |world: &mut World, seconds: u64| {
            let denied = (0..seconds * 45).filter(|number| {
                let place = (*number % 3) as usize;
                world.pass(S / 45);
                !world.ask(place, "k", 1)
            });
            denied.count()
        };
        demand(&mut world, 90);
        world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
        let denied = demand(&mut world, 60);
        assert!(denied <= 27, "{name}: {denied} of 2700");
        world.nodes.iter_mut().for_each(|at| at.way = Way::GOOD);
        let denied = demand(&mut world, 60);
        assert!(denied <= 27, "{name}: {denied} of 2700 after it came back");
    }
}

/// A world whose server never answers.
fn without_server(nodes: usize, specs: &[LimitSpec], percent: u8) -> World {
    let mut world = World::new(nodes, specs, percent, 1);
    world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
    world
}

#[test]
fn of_a_small_limit_one_node_keeps_a_guard_unit_chosen_by_cell() {
    for spec in [window("w", 10, "1h"), bucket("b", "1/h", 10), sliding("s", 10, "1h")] {
        let mut world = without_server(3, &[spec], GUARD);
        let mut of_nodes = [0; 3];
        for key in 0..300 {
            let passed = (0..30).filter_map(|number| {
                let place = number % 3;
                world.ask(place, &format!("k{key}"), 1).then_some(place)
            });
            let passed: Vec<usize> = passed.collect();
            let [place] = passed.as_slice() else { panic!("{passed:?} of 1 unit") };
            of_nodes[*place] += 1;
        }
        assert!(of_nodes.iter().all(|keys| (70..=130).contains(keys)), "{of_nodes:?}");
    }
}

#[test]
fn without_a_guard_share_nothing_passes_while_the_store_is_silent() {
    let specs = [window("w", 1_000, "10s"), bucket("b", "1000000/s", 1_000_000), sliding("s", 1_000, "10s")];
    for spec in specs {
        let mut world = without_server(2, &[spec], 0);
        for number in 0..1_000 {
            assert!(!world.ask(number % 2, "k", 1), "{number}");
            world.pass(100 * MS);
        }
    }
}

/// Splits a demand of twice the limit over nodes by these parts. Returns the percentage of the limit that was
/// used, and decisions a call.
fn utilisation(spec: LimitSpec, a_second: u64, parts: &[u64]) -> (f64, f64) {
    let mut world = settled(parts.len(), spec);
    let all: u64 = parts.iter().sum();
    let mut owed = vec![0; parts.len()];
    let mut run = |world: &mut World, ms: u64| {
        let before = (world.admitted(0, "k"), world.calls);
        for _ in 0..ms {
            for (place, part) in parts.iter().enumerate() {
                owed[place] += 2 * a_second * part;
                while owed[place] >= 1_000 * all {
                    owed[place] -= 1_000 * all;
                    world.ask(place, "k", 1);
                }
            }
            world.pass(MS);
        }
        (world.admitted(0, "k") - before.0, world.calls - before.1)
    };
    run(&mut world, 10_000);
    let (used, calls) = run(&mut world, 20_000);
    (used as f64 / (20 * a_second) as f64, used as f64 / calls as f64)
}

#[test]
fn ten_nodes_use_nearly_the_whole_limit() {
    let even = [1; 10];
    let skewed = [81, 1, 1, 1, 1, 1, 1, 1, 1, 1];
    for (parts, least) in [(even, 0.99), (skewed, 0.97)] {
        for (spec, a_second) in [
            (window("w", 200_000, "10s"), 20_000),
            (bucket("b", "20000/s", 20_000), 20_000),
            (slots("s", 10_000, "5s", 100), 2_000),
        ] {
            let name = spec.name.clone();
            let (used, a_call) = utilisation(spec, a_second, &parts);
            println!("{name} {parts:?}: {used:.4} used, {a_call:.0} decisions a call");
            assert!(used >= least, "{name} {parts:?}: {used:.4} used, {a_call:.0} decisions a call");
        }
    }
}

/// A guard share's spent units stay spent, whatever happens to the limit and the process.
#[test]
fn a_spent_guard_share_stays_spent_if_its_limit_is_lowered_and_raised() {
    // A node's guard share of one unit a second is a twentieth.
    let earned = 302_u64.div_ceil(20);
    type Spec = fn(u64) -> LimitSpec;
    let algorithms: [(Spec, u64); 5] = [
        (|limit| window("l", limit, "600s"), 0),
        (|limit| bucket("l", "1/s", limit), earned),
        (|limit| sliding("l", limit, "600s"), 0),
        // Few enough units for a log of each charge.
        (|limit| sliding("l", limit / 20, "600s"), 0),
        // The estimate has forgotten half of the spent units by then.
        (|limit| approximate("l", limit, "600s"), 25),
    ];
    for (of, earned) in algorithms {
        let mut world = without_server(2, &[of(1_000)], GUARD);
        while world.ask(0, "k", 1) {}
        let spent = world.admitted(0, "k");
        assert!(spent >= 2, "{spent} of {:?}", of(1_000));
        world.renumber(&[of(100)]);
        world.pass(S);
        world.crash(0);
        // Under the lower limit, everything that a bucket earns meanwhile is spent.
        for _ in 0..300 {
            world.pass(S);
            world.ask(0, "k", 1);
        }
        world.renumber(&[of(1_000)]);
        world.pass(S);
        while world.ask(0, "k", 1) {}
        let all = world.admitted(0, "k");
        assert!(all <= spent + earned, "{all} after {spent} and {earned} of {:?}", of(1_000));
    }
}

/// Classes of consumers use what nodes hold of a pool in the same way as a single bucket.
#[test]
fn class_reserves_hold_in_a_pool_that_nodes_share() {
    let classes = r#"{"entry": "plan", "shared": {"gold": "0%", "free": "60%"}}"#;
    let classes: ClassesSpec = serde_json::from_str(classes).expect("classes");
    for spec in [window("w", 1_000, "600s"), bucket("b", "60/h", 1_000), sliding("s", 1_000, "600s")] {
        let by = vec![BySpec::Key("service".into())];
        let name = spec.name.clone();
        let mut world = World::of_new(2, &[LimitSpec { classes: Some(classes.clone()), by, ..spec }], GUARD);
        world.pass(6 * S);
        let mut drain = |plan: &str| {
            let (mut passed, mut idle) = (0, 0);
            while idle < 400 {
                let place = idle % 2;
                let now = world.now(place);
                let request = Request::new("shop", &[("service", "s"), ("plan", plan)]);
                let allowed = world.nodes[place].asker.check(&request, now, Ask::CHECK).allowed;
                (passed, idle) = if allowed { (passed + 1, idle % 2) } else { (passed, idle + 1) };
                world.pass(5 * MS);
            }
            passed
        };
        let free = drain("free");
        let gold = drain("gold");
        // Each node may round up what a class leaves to others.
        assert!((395..=402).contains(&free), "{name}: {free} of 400");
        assert!((990..=1_000).contains(&(free + gold)), "{name}: {free} and {gold} of 1000");
    }
}

#[test]
fn a_new_region_can_spend_its_whole_limit_at_once() {
    for spec in [window("w", 100, "1h"), bucket("b", "1/h", 100), sliding("s", 100, "1h")] {
        let name = spec.name.clone();
        let mut world = World::of_new(2, &[spec], GUARD);
        world.pass(6 * S);
        for number in 0..400 {
            world.ask_patiently(number % 2, "k", 1);
            world.pass(5 * MS);
        }
        let passed = world.admitted(0, "k");
        assert!((95..=100).contains(&passed), "{name}: {passed} of 100");
    }
}

/// Two nodes of a new region. The first withdraws 45 of 100 units of an hour.
fn taken_by_the_first() -> World {
    let mut world = World::of_new(2, &[window("w", 100, "1h")], GUARD);
    world.pass(6 * S);
    for _ in 0..200 {
        if world.admitted(0, "w") < 45 {
            world.ask_patiently(0, "w", 1);
        }
        world.pass(20 * MS);
    }
    assert_eq!(world.admitted(0, "w"), 45);
    world
}

/// Both nodes ask for all that is left, and pools grant it.
fn use_up(world: &mut World) -> u64 {
    world.pass(30 * S);
    for number in 0..300 {
        world.ask_patiently(number % 2, "w", 1);
        world.pass(20 * MS);
    }
    world.admitted(0, "w")
}

#[test]
fn withdrawals_from_a_window_survive_two_restarts_and_a_lost_store() {
    // Lost: guard shares, what each process had ready, and what its next two calls might have brought.
    // Without rows only 48 would pass.
    let passed = restarted();
    assert!(passed >= 60, "{passed} of 100");
}

/// A node restarts twice. Then the server forgets its state. Returns what passed.
fn restarted() -> u64 {
    let mut world = taken_by_the_first();
    for _ in 0..2 {
        world.crash(0);
        world.pass(10 * S);
        world.ask_patiently(0, "w", 1);
    }
    assert_eq!(world.rows(0), 1);
    world.server.restart(None);
    let passed = use_up(&mut world);
    // The window is over, so the row is deleted.
    world.pass(3_700 * S);
    assert_eq!(world.rows(0), 0);
    passed
}

#[test]
fn withdrawals_under_a_removed_limit_do_not_block_grants() {
    let mut world = taken_by_the_first();
    world.retired.clone_from(&world.specs);
    world.renumber(&[window("v", 100, "1h")]);
    world.crash(0);
    assert_eq!(world.rows(0), 1);
    world.server.restart(None);
    world.pass(30 * S);
    world.expect_granting("in the end");
}

#[test]
fn a_restart_with_a_healthy_store_loses_few_units() {
    let mut world = taken_by_the_first();
    world.crash(0);
    let passed = use_up(&mut world);
    assert!(passed >= 80, "{passed} of 100");
}

#[test]
fn a_node_with_a_full_disk_withdraws_nothing() {
    unwritten();
}

/// A node with a full disk is asked for much. It restarts after the server has forgotten its state.
fn unwritten() {
    let mut world = World::of_new(2, &[window("w", 100, "1h")], GUARD);
    world.pass(6 * S);
    world.nodes[0].is_disk_full = true;
    for _ in 0..200 {
        world.ask_patiently(0, "w", 1);
        world.pass(20 * MS);
    }
    let passed = world.admitted(0, "w");
    world.nodes[0].is_disk_full = false;
    world.crash(0);
    world.server.restart(None);
    let all = use_up(&mut world);
    assert!(passed <= 10, "{passed}: no more than its guard share");
    assert!(all >= 80, "{all} of 100");
}

#[test]
fn unreported_withdrawals_are_reported_by_the_next_process() {
    untold();
}

/// A node hears that the server has forgotten, but cannot report its withdrawals. It wants more, and
/// restarts.
fn untold() {
    let mut world = taken_by_the_first();
    world.server.restart(None);
    let before = world.nodes[0].generations.clone();
    // A call for more units is always under way.
    while world.nodes[0].generations == before {
        world.ask(0, "w", 6);
        world.pass(MS / 20);
    }
    world.nodes[0].way = Way::CUT;
    for _ in 0..50 {
        world.ask(0, "w", 30);
        world.pass(10 * MS);
    }
    world.crash(0);
    world.nodes[0].way = Way::GOOD;
    let all = use_up(&mut world);
    assert!(all >= 45, "{all}");
}

#[test]
fn units_of_unrecorded_withdrawals_are_not_granted_again() {
    unknown();
}

/// A node withdraws from a window and writes nothing down. It restarts after the server has forgotten its
/// state.
fn unknown() {
    let mut world = settled(2, window("w", 100, "100s"));
    // Wait for a window that began after both nodes started.
    while !world.ask_patiently(0, "w", 11) {
        world.pass(S);
    }
    for _ in 0..200 {
        world.ask_patiently(0, "w", 1);
        world.pass(20 * MS);
    }
    let passed = world.admitted(0, "w");
    world.crash(0);
    world.server.restart(None);
    let all = use_up(&mut world);
    assert!(passed >= 80, "{passed} of 100");
    assert!(all <= 100, "{all} of 100");
}

#[test]
fn after_a_store_loss_nodes_report_leases_before_the_pool_grants() {
    for (spec, pause) in [(bucket("k", "100/s", 100), 17), (sliding("k", 100, "20s"), 18)] {
        let mut world = settled(2, spec);
        // One node has nearly all of the pool.
        for _ in 0..2_000 {
            world.ask(0, "k", 1);
            world.pass(10 * MS);
        }
        // The node hears that the server has forgotten, but cannot report what it holds.
        world.server.restart(None);
        let tag = world.nodes[0].asker.last().0.limits[0].tag;
        let group = (tag.0 % u128::from(GROUPS)) as usize;
        let before = world.nodes[0].generations[group];
        while world.nodes[0].generations[group] == before {
            world.pass(MS / 50);
        }
        world.nodes[0].way = Way::CUT;
        // Nobody asks for a long time, so the node would give back what it holds. Then its link works just
        // long enough for its report.
        world.pass(pause * S);
        world.nodes[0].way = Way::GOOD;
        for _ in 0..200 {
            if world.nodes[1].node.lease_counts().granting == u64::from(GROUPS) {
                break;
            }
            world.pass(3 * MS);
        }
        world.nodes[0].way = Way::CUT;
        for _ in 0..8_000 {
            world.ask(0, "k", 1);
            world.ask(1, "k", 1);
            world.pass(5 * MS);
        }
        world.nodes[0].way = Way::GOOD;
        world.pass(100 * S);
        assert!(world.ask_patiently(1, "k", 1), "pools grant again");
    }
}

/// A random history of one limit. The seed determines which faults happen, how often, and when. All that
/// passes is counted by true time, and one unit too many is a panic. At the end everything heals, and pools
/// must grant again.
fn history(seed: u64) {
    let spec = [window("w", 40, "2s"), bucket("b", "20/s", 40), sliding("s", 40, "2s"), leaky()];
    let nodes = 2 + (seed / 4 % 3) as usize;
    let percent = [0, 10, 30][(seed / 12 % 3) as usize];
    let spec = &spec[(seed % 4) as usize..=(seed % 4) as usize];
    let is_kept = seed / 4 % 2 == 1;
    let mut world = if is_kept {
        World::kept(nodes, spec, percent, seed)
    } else {
        World::new(nodes, spec, percent, seed)
    };
    // Average number of steps between two events.
    let mut often = || [30, 100, 1_000, u64::MAX][world.below(4) as usize];
    let (forgets, rolls_back, crashes, ways, clocks, alone) =
        (often(), often(), often(), often(), often(), often().saturating_mul(5));
    let disks = if is_kept { often() } else { u64::MAX };
    let (lost, replaced, stops) = (often(), often(), often().saturating_mul(2));
    let mut snapshot = world.server.clone();
    for _ in 0..1_500 {
        let place = world.below(nodes as u64) as usize;
        if is_kept && world.below(disks) == 0 {
            world.nodes[place].is_disk_full = !world.nodes[place].is_disk_full;
        }
        if world.below(forgets) == 0 {
            world.server.restart(None);
        }
        if world.below(rolls_back) == 0 {
            let from = std::mem::replace(&mut snapshot, world.server.clone());
            world.server.restart(Some(&from));
        }
        if world.below(crashes) == 0 {
            world.crash(place);
        }
        if world.below(stops) == 0 {
            world.stop_at_random(place);
        }
        // The first node keeps its disk: if all disks and the server's state were lost, the region would
        // count as new.
        if world.below(lost) == 0 && place > 0 {
            world.lose_disk(place);
        }
        if world.below(replaced) == 0 {
            // The replaced server lives on, and some nodes reach only that server.
            let replaced = world.server.clone();
            world.server.restart(Some(&replaced));
            world.old = Some(replaced);
            world.nodes[place].is_left_behind = true;
        }
        if world.below(replaced) == 0 {
            world.nodes[place].is_left_behind = false;
        }
        if world.below(ways) == 0 {
            let all = [
                Way::GOOD,
                Way::CUT,
                Way { delay_ns: (MS, 400 * MS), lost: 10 },
                Way { delay_ns: (0, 20 * MS), lost: 50 },
            ];
            world.nodes[place].way = all[world.below(4) as usize];
        }
        if world.below(clocks) == 0 {
            world.nodes[place].ahead_ns = world.below(19 * MS) as i64 - 9 * MS as i64;
        }
        if world.below(alone) == 0 {
            // Longer than leases last.
            world.nodes[place].way = Way::CUT;
            for _ in 0..800 {
                let (place, pause) = (world.below(nodes as u64) as usize, world.below(300 * MS));
                world.ask(place, "k", 1);
                world.pass(pause);
            }
            world.nodes[place].way = Way::GOOD;
        }
        world.ask_around();
    }
    heal(world, seed);
}

/// Repairs everything. Pools must grant again.
fn heal(mut world: World, seed: u64) {
    world.mend();
    world.expect_granting(&format!("seed {seed}"));
}

/// A random history of one limit in which nodes are excluded now and then.
fn deserted(seed: u64) {
    let spec =
        [window("w", 40, "2s"), bucket("b", "20/s", 40), sliding("s", 40, "2s"), window("w", 400, "90s")];
    let nodes = 3 + (seed / 4 % 2) as usize;
    let spec = &spec[(seed % 4) as usize..=(seed % 4) as usize];
    let mut world = World::kept(nodes, spec, 10, seed);
    for _ in 0..2 {
        for _ in 0..400 {
            let (place, pause) = (world.below(nodes as u64) as usize, world.below(60 * MS));
            world.ask(place, "k", 1);
            world.pass(pause);
        }
        let (gone, slow) = (world.below(nodes as u64) as usize, world.below(nodes as u64) as usize);
        world.nodes[slow].way = Way { delay_ns: (MS, 400 * MS), lost: 30 };
        without(&mut world, gone, nodes);
        world.nodes[slow].way = Way::GOOD;
    }
    heal(world, seed);
}

/// A node is cut off from the server for a while, spends what it holds, and is excluded by an order to one of
/// its mates. In half of the cases the server forgets meanwhile.
fn without(world: &mut World, gone: usize, nodes: usize) {
    let way = std::mem::replace(&mut world.nodes[gone].way, Way::CUT);
    // Messages on their way have arrived or are lost.
    world.pass(S);
    let told = (gone + 1) % nodes;
    let long = S + world.below(100 * S);
    let node = world.nodes[told].node.clone();
    node.exclude(gone as u16 + 1, long, world.now(told)).expect("a node of the region");
    let (until_ns, forgets) = (world.true_ns + long, world.below(2) == 0);
    if forgets {
        world.server.restart(None);
    }
    while world.true_ns < until_ns {
        for _ in 0..world.below(8) {
            let place = world.below(nodes as u64) as usize;
            world.ask(place, "k", 1);
        }
        let pause = world.below(200 * MS);
        world.pass(pause);
    }
    // The exclusion may last a little longer by the mate's own clock.
    node.exclude(gone as u16 + 1, 0, world.now(told)).expect("a node of the region");
    world.nodes[gone].way = way;
}

fn leaky() -> LimitSpec {
    scene::leaky("l", "20/s", 40, acequia_limits::limit::NoWait::Deny)
}

#[test]
fn under_random_faults_no_limit_is_exceeded_and_pools_recover() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(5);
    let from = std::env::var("FROM").ok().and_then(|from| from.parse().ok()).unwrap_or(1);
    for seed in from..=seeds {
        history(seed);
        deserted(seed);
    }
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::{Mutation, break_rule};
    let rules = [
        Mutation::LeaseOutlivesItsEnd,
        Mutation::LeaseUntold,
        Mutation::LeaseAssertedEarly,
        Mutation::LeaseForgetsGeneration,
        Mutation::LeaseTakesUnwritten,
        Mutation::LeaseForgetsWithdrawals,
        Mutation::LeaseTakesAnyTime,
        Mutation::LeaseWithdrawalsToldEarly,
        Mutation::LeaseTrustsStrangers,
        Mutation::LeaseNewTwice,
        Mutation::LeaseRenewedUngranted,
        Mutation::LeaseTakesUpMore,
        Mutation::LeaseShrinksLate,
        Mutation::LeaseGuardTwice,
        Mutation::LeaseTakenBackEarly,
        Mutation::PoolCountsUnitsAlike,
        Mutation::PoolTrustsTheDead,
        Mutation::PoolGrantsUntold,
        Mutation::PoolAsksOneNode,
        Mutation::PoolBeginsFull,
        Mutation::PoolBurnsNothing,
        Mutation::PoolNewToOne,
        Mutation::PoolExcludesAll,
        Mutation::PoolForfeitsNoExcluded,
        Mutation::RefundWhileShared,
    ];
    std::panic::set_hook(Box::new(|_| ()));
    let find = |rule: Mutation| {
        let told = match rule {
            Mutation::LeaseForgetsGeneration => |_| replaced::begun_again(true, World::crash),
            Mutation::LeaseTrustsStrangers => |_| replaced::begun_again(false, World::lose_disk),
            Mutation::LeaseNewTwice => |_| disks::lost(),
            Mutation::LeaseRenewedUngranted => |_| replaced::renewed_elsewhere(),
            Mutation::LeaseTakesUpMore => {
                |seed| [lowered::under_way, lowered::lost_before][seed as usize % 2]()
            }
            Mutation::LeaseShrinksLate => |_| lowered::ends_by_itself(),
            Mutation::PoolCountsUnitsAlike => |_| lowered::one_after_the_other(),
            Mutation::PoolNewToOne => |_| disks::lost_where_all_was_begun(),
            Mutation::LeaseTakesUnwritten => |_| unwritten(),
            Mutation::LeaseForgetsWithdrawals => |_| assert!(restarted() > 0),
            Mutation::LeaseWithdrawalsToldEarly => |_| untold(),
            Mutation::LeaseTakesAnyTime => |_| excluded::beforehand(300),
            Mutation::PoolBurnsNothing => |_| unknown(),
            Mutation::PoolExcludesAll => |_| excluded::stranded(),
            Mutation::RefundWhileShared => |_| shared::refunded(),
            Mutation::PoolForfeitsNoExcluded => deserted,
            _ => history,
        };
        (1..=150).find(|seed| {
            break_rule(Some(rule));
            let found = std::panic::catch_unwind(|| told(*seed)).is_err();
            break_rule(None);
            found
        })
    };
    // A mutation affects one thread only.
    let next = std::sync::Mutex::new(rules.into_iter());
    let work = || {
        let take = || next.lock().expect("no panic").next();
        std::iter::from_fn(take).map(|rule| (rule, find(rule))).collect::<Vec<_>>()
    };
    let mut found = std::thread::scope(|scope| {
        let others = scope.spawn(work);
        let mut found = work();
        found.extend(others.join().expect("no panic"));
        found
    });
    found.sort_by_key(|(rule, _)| rules.iter().position(|known| known == rule));
    let mut survive = Vec::new();
    for (rule, found) in found {
        match found {
            Some(seed) => println!("{:<24} {seed}", format!("{rule:?}")),
            None => survive.push(rule),
        }
    }
    let _ = std::panic::take_hook();
    assert_eq!(survive, [], "rules that can be left out unnoticed");
}

/// A burst of requests for a key without earlier requests comes at one node, like a page load.
#[test]
fn a_burst_of_first_requests_for_a_key_passes() {
    for (spec, nodes) in [
        (window("w", 60, "60s"), 3),
        (bucket("b", "1/s", 60), 3),
        (sliding("s", 60, "60s"), 3),
        (window("w", 30, "10s"), 10),
        (bucket("b", "10/s", 30), 10),
        (sliding("s", 30, "10s"), 10),
    ] {
        let name = spec.name.clone();
        let mut world = settled(nodes, spec);
        world.is_prompt = true;
        world.pass(2 * S);
        let mut passed = 0;
        for number in 0..10 {
            let late = world.passed_late;
            for _ in 0..8 {
                passed += u64::from(world.ask_or_wait(number % nodes, &format!("cold{number}"), 1));
            }
            world.pass(50 * MS);
            passed += world.passed_late - late;
        }
        assert!(passed >= 78, "{name} with {nodes}: {passed} of 80 passed");
    }
}

/// More requests come at once than there are units. At least about half of the units pass, whatever each
/// request costs.
#[test]
fn a_burst_above_the_limit_gets_at_least_about_half_the_units() {
    for (spec, cost, least) in [
        (window("w", 20, "60s"), 1, 9),
        (bucket("b", "1/s", 20), 1, 9),
        (sliding("s", 20, "60s"), 1, 9),
        (window("w", 20, "60s"), 4, 2),
        (sliding("s", 20, "60s"), 4, 2),
    ] {
        let name = spec.name.clone();
        let mut world = settled(3, spec);
        world.is_prompt = true;
        world.pass(2 * S);
        for number in 0..6 {
            let late = world.passed_late;
            let at_once =
                (0..30).filter(|_| world.ask_or_wait(number % 3, &format!("cold{number}"), cost)).count();
            world.pass(50 * MS);
            let passed = at_once as u64 + world.passed_late - late;
            assert!(passed >= least, "{name}: {passed} of {cost}");
        }
    }
}

/// A pool that may not grant yet has much left. Nodes must not ask such a pool again and again.
#[test]
fn a_pool_that_may_not_grant_yet_is_called_rarely() {
    for spec in [window("w", 200, "60s"), sliding("s", 200, "60s")] {
        let name = spec.name.clone();
        let mut world = settled(3, spec);
        world.is_prompt = true;
        // The pool grants when all nodes have reported what they hold. One node cannot.
        world.nodes[2].way = Way::CUT;
        world.server.restart(None);
        world.pass(3 * S);
        let calls = world.calls;
        for _ in 0..4_000 {
            world.ask(0, "k", 1);
            world.ask(0, "k", 1);
            world.pass(MS / 4);
        }
        println!("{name}: {} calls", world.calls - calls);
        assert!(world.calls - calls < 300, "{name}: {} calls in a second", world.calls - calls);
    }
}
