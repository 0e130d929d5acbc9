//! Each node of a region has its own row among the regions: the cost and the use of this.

use std::collections::{BTreeMap, VecDeque};

use crate::pools::{Way, World};
use crate::scene::{MS, S, bucket, sliding, window};
use acequia_limits::limit::LimitSpec;

/// A third of a table's rows, or all rows if `ACEQUIA_ALL_ROWS` is set, as by `tests/soak rows`.
fn some_of<T>(rows: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let every = if std::env::var_os("ACEQUIA_ALL_ROWS").is_some() { 1 } else { 3 };
    rows.into_iter().step_by(every)
}

/// Three regions of `nodes` nodes each, which share a limit evenly.
fn three(nodes: usize, spec: LimitSpec) -> World {
    three_by(1, nodes, spec)
}

/// Like [`three`], with a seed.
fn three_by(seed: u64, nodes: usize, spec: LimitSpec) -> World {
    regions_by(seed, &[nodes; 3], spec)
}

/// Regions with these numbers of nodes.
fn regions_by(seed: u64, nodes: &[usize], spec: LimitSpec) -> World {
    let mut world = World::among_regions(nodes, &[spec], 10, seed);
    world.pass(S);
    assert!(world.order(&(0..world.nodes.len()).map(|place| (place, 1)).collect::<Vec<_>>()));
    world.pass(6 * S);
    world.expect_granting("at first");
    world
}

/// Traffic between regions in a second, and how many of a thousand requests passed.
#[derive(Clone, Copy)]
struct Cost {
    frames: u64,
    bytes: u64,
    passed: u64,
}

/// Two cells of 200 a second at the given request rate. Nine of ten requests come in one region at a time, 20
/// s each, evenly at its nodes. The mean of a few worlds, because results under overload differ by several
/// percent.
fn moving(nodes: u64, a_second: u64) -> Cost {
    const WORLDS: u64 = 3;
    let all: Vec<Cost> = (1..=WORLDS).map(|seed| moving_by(seed, nodes, a_second)).collect();
    let mean = |of: fn(&Cost) -> u64| all.iter().map(of).sum::<u64>() / WORLDS;
    Cost {
        frames: mean(|cost| cost.frames),
        bytes: mean(|cost| cost.bytes),
        passed: mean(|cost| cost.passed),
    }
}

/// The result of [`moving`] for one seed.
fn moving_by(seed: u64, nodes: u64, a_second: u64) -> Cost {
    const SECONDS: u64 = 60;
    let mut world = three_by(seed, nodes as usize, bucket("b", "200/s", 200));
    world.is_prompt = true;
    world.regions.as_mut().expect("regions").crossed = (0, 0);
    let mut passed = 0;
    for number in 0..SECONDS * a_second {
        let hot = number / (20 * a_second);
        let region = if world.below(10) == 0 { world.below(3) } else { hot };
        let place = region * nodes + world.below(nodes);
        let key = format!("b{}", world.below(2));
        passed += u64::from(world.ask_and_wait(place as usize, &key, 1));
        world.pass(S / a_second);
    }
    let (frames, bytes) = world.regions.as_ref().expect("regions").crossed;
    let asked = SECONDS * a_second;
    Cost { frames: frames / SECONDS, bytes: bytes / SECONDS, passed: 1_000 * passed / asked }
}

/// The demand on four cells.
#[derive(Clone, Copy)]
struct Demand {
    /// Units of each cell, a second.
    units: u64,
    /// How much of all units is asked for.
    load_percent: u64,
    /// Nine of ten requests come in one region at a time, 20 s each. Otherwise all regions have equal load.
    is_moving: bool,
}

/// Asks for four cells. Nodes of a region have equal load. Returns how many of a thousand requests passed, and
/// frames a second between regions.
fn few(seed: u64, nodes: u64, demand: Demand) -> (u64, u64) {
    let Demand { units, load_percent, is_moving } = demand;
    const CELLS: u64 = 4;
    const SECONDS: u64 = 60;
    let mut world = three_by(seed, nodes as usize, bucket("b", &format!("{units}/s"), units));
    world.is_prompt = true;
    world.pass(30 * S);
    world.regions.as_mut().expect("regions").crossed = (0, 0);
    let a_second = units * CELLS * load_percent / 100;
    let mut passed = 0;
    for number in 0..SECONDS * a_second {
        let hot = number / (20 * a_second);
        let region = if !is_moving || world.below(10) == 0 { world.below(3) } else { hot };
        let place = region * nodes + world.below(nodes);
        let key = format!("b{}", world.below(CELLS));
        passed += u64::from(world.ask_or_wait(place as usize, &key, 1));
        let pause_ns = world.below(2 * S / a_second);
        world.pass(pause_ns);
    }
    world.pass(S);
    let asked = SECONDS * a_second;
    let frames = world.regions.as_ref().expect("regions").crossed.0 / SECONDS;
    (1_000 * (passed + world.passed_late) / asked, frames)
}

/// With forwards between nodes, a region of several nodes passes nearly what a region of one node does.
#[test]
fn more_nodes_in_a_region_pass_nearly_as_much_of_a_small_limit() {
    println!(
        "three regions share four cells, of which all or half is asked for, nine tenths in one region after the other or alike in all"
    );
    println!("units/s  asked %  where    passed of 1000, and frames/s, with 1, 2 and 4 nodes a region");
    let loads = [(50, true, 40), (50, false, 30), (100, true, 90), (100, false, 80)];
    let rows = [20, 60].into_iter().flat_map(|units| loads.map(|load| (units, load)));
    for (units, (load_percent, is_moving, less)) in some_of(rows) {
        let all = [1, 2, 4].map(|nodes| {
            let [a, b] = [1, 2].map(|seed| few(seed, nodes, Demand { units, load_percent, is_moving }));
            (u64::midpoint(a.0, b.0), u64::midpoint(a.1, b.1))
        });
        let place = if is_moving { "moving" } else { "alike" };
        println!("{units:<8} {load_percent:<8} {place:<8} {all:?}");
        let [(one, _), rest @ ..] = all;
        assert!(rest.iter().all(|(passed, _)| passed + less >= one), "{units}/s: {all:?}");
    }
}

/// Units in a time.
#[derive(Clone, Copy)]
struct Pace {
    units: u64,
    per_ns: u64,
}

/// A region's caller for one cell, who never asks for more than half of the region's share.
#[derive(Default)]
struct Half {
    /// Wall clock times of recent requests.
    asked_ns: VecDeque<u64>,
}

impl Half {
    /// Whether one more unit keeps within `half`: in the window that began at `began_ns`, or else in any
    /// interval of a window's length.
    fn may_ask(&mut self, half: Pace, began_ns: Option<u64>, now_ns: u64) -> bool {
        let since_ns = began_ns.unwrap_or_else(|| now_ns.saturating_sub(half.per_ns));
        while self.asked_ns.front().is_some_and(|asked_ns| *asked_ns < since_ns) {
            self.asked_ns.pop_front();
        }
        let may = (self.asked_ns.len() as u64) < half.units;
        if may {
            self.asked_ns.push_back(now_ns);
        }
        may
    }
}

/// The demand on sixteen cells.
struct Load {
    /// Numbers of regions, and of nodes in each region.
    regions: u64,
    nodes: u64,
    /// Demand in percent of the limit. If `is_below_half`, callers stop at half of a region's share.
    percent: u64,
    is_below_half: bool,
}

impl Load {
    /// The demand on three regions of two nodes.
    const fn of_three(percent: u64, is_below_half: bool) -> Self {
        Self { regions: 3, nodes: 2, percent, is_below_half }
    }

    /// Passed and sent requests, evenly at all nodes: first with the stores, then in a minute without them.
    fn without_stores(&self, seed: u64, spec: &LimitSpec, pace: Pace) -> [(u64, u64); 2] {
        let Pace { units, per_ns } = pace;
        const CELLS: u64 = 16;
        let mut world = regions_by(seed, &vec![self.nodes as usize; self.regions as usize], spec.clone());
        world.is_prompt = true;
        let mut callers: BTreeMap<(u64, u64), Half> = BTreeMap::new();
        let mut passed = |seconds: u64| {
            let (until_ns, late) = (world.true_ns + seconds * S, world.passed_late);
            let (mut asked, mut passed, mut number) = (0, 0, 0);
            while world.true_ns < until_ns {
                let (place, cell) = (world.below(self.regions * self.nodes), number % CELLS);
                number += 1;
                let wall_ns = world.now(0).wall_ns;
                let began_ns = spec.fixed_window.is_some().then(|| wall_ns - wall_ns % per_ns);
                let caller = callers.entry((place / self.nodes, cell)).or_default();
                let half = Pace { units: units / 2 / self.regions, per_ns };
                if !self.is_below_half || caller.may_ask(half, began_ns, wall_ns) {
                    passed += u64::from(world.ask_or_wait(place as usize, &format!("k{cell}"), 1));
                    asked += 1;
                }
                let pause_ns = world.below(2 * per_ns * 100 / (units * self.percent * CELLS));
                world.pass(pause_ns);
            }
            world.nodes.iter_mut().for_each(|at| at.way = Way::CUT);
            (passed + world.passed_late - late, asked)
        };
        [passed(120), passed(60)]
    }

    /// How many of a thousand requests passed, over the given number of worlds.
    fn thousandths(&self, worlds: u64, spec: &LimitSpec, pace: Pace) -> [u64; 2] {
        let counts: Vec<_> = (1..=worlds).map(|seed| self.without_stores(seed, spec, pace)).collect();
        [0, 1].map(|at| {
            let sum = |of: fn((u64, u64)) -> u64| counts.iter().map(|all| of(all[at])).sum::<u64>();
            1_000 * sum(|(passed, _)| passed) / sum(|(_, asked)| asked).max(1)
        })
    }
}

/// Callers that ask for less than half of their region's share are denied less than one in a hundred, and
/// less than two in a minute without any store, however few units there are. If random demand is below half
/// of the limit, few requests are denied.
#[test]
fn at_low_demand_few_requests_of_small_limits_are_denied_without_stores() {
    println!(
        "sixteen cells, at two nodes of each of three regions: what passed of 1000, with the stores, and in a minute without"
    );
    println!("units                 30 % are asked for    45 %           below half of each share");
    for (spec, units, per_ns, of_some, of_half) in some_of([
        (bucket("b", "6/s", 6), 6, S, [970, 950], [920, 880]),
        (bucket("b", "20/s", 20), 20, S, [990, 990], [990, 990]),
        (bucket("b", "100/s", 100), 100, S, [990, 990], [990, 990]),
        (window("w", 6, "60s"), 6, 60 * S, [950, 930], [880, 950]),
        (window("w", 20, "60s"), 20, 60 * S, [970, 960], [970, 920]),
        (window("w", 60, "10s"), 60, 10 * S, [980, 990], [980, 990]),
        (window("w", 20, "1s"), 20, S, [990, 990], [990, 980]),
        (sliding("s", 20, "60s"), 20, 60 * S, [970, 910], [970, 860]),
        (sliding("s", 60, "10s"), 60, 10 * S, [980, 970], [980, 970]),
        (window("w", 180, "60s"), 180, 60 * S, [990, 990], [990, 980]),
        (sliding("s", 180, "60s"), 180, 60 * S, [980, 960], [980, 960]),
    ]) {
        // Small limits need more worlds to measure one in a hundred.
        let worlds = if units >= 100 {
            1
        } else if per_ns >= 60 * S {
            24
        } else {
            2
        };
        let all = [30, 45, 90].map(|percent| {
            Load::of_three(percent, percent == 90).thousandths(worlds, &spec, Pace { units, per_ns })
        });
        let name = format!("{} {units} in {} s", spec.name, per_ns / S);
        let [some, half, below] = all;
        println!("{name:<21} {:<21} {:<14} {below:?}", format!("{some:?}"), format!("{half:?}"));
        let is_least = |passed: [u64; 2], least: [u64; 2]| (0..2).all(|at| passed[at] >= least[at]);
        assert!(is_least(some, of_some) && is_least(half, of_half), "{name}: {all:?}");
        assert!(is_least(below, [990, 980]), "{name}: {all:?}");
    }
}

/// So does a region that has all of a limit, with two units a node or more: it denies few requests.
#[test]
fn at_low_demand_a_single_region_denies_few_requests_without_its_store() {
    println!(
        "sixteen cells of a region alone, below half of what it has: what passed of 1000, with the store, and in a minute without"
    );
    println!("units                 with 2 and 4 nodes");
    for (spec, units, per_ns, least) in some_of([
        (bucket("b", "2/s", 2), 2, S, [990, 990]),
        (bucket("b", "6/s", 6), 6, S, [990, 990]),
        (bucket("b", "20/s", 20), 20, S, [990, 990]),
        // With fewer than two units a node, some are not found in time.
        (window("w", 2, "60s"), 2, 60 * S, [990, 960]),
        (sliding("s", 2, "60s"), 2, 60 * S, [990, 940]),
        (window("w", 6, "60s"), 6, 60 * S, [990, 970]),
        (window("w", 20, "60s"), 20, 60 * S, [990, 990]),
        (window("w", 60, "60s"), 60, 60 * S, [990, 990]),
        (window("w", 200, "60s"), 200, 60 * S, [990, 990]),
        (window("w", 20, "1s"), 20, S, [990, 990]),
        (window("w", 60, "10s"), 60, 10 * S, [990, 990]),
        // These have fewer than two units a node, too, if there are four nodes.
        (sliding("s", 6, "60s"), 6, 60 * S, [990, 980]),
        (sliding("s", 20, "60s"), 20, 60 * S, [990, 990]),
        (sliding("s", 60, "60s"), 60, 60 * S, [990, 990]),
        (sliding("s", 60, "10s"), 60, 10 * S, [990, 990]),
    ]) {
        let worlds = if per_ns >= 60 * S { 200_u64.div_ceil(units).min(4) } else { 1 };
        let all = [2, 4].map(|nodes| {
            let load = Load { regions: 1, nodes, percent: 90, is_below_half: true };
            load.thousandths(worlds, &spec, Pace { units, per_ns })
        });
        let name = format!("{} {units} in {} s", spec.name, per_ns / S);
        println!("{name:<21} {all:?}");
        let is_least = |(passed, least): (&[u64; 2], u64)| passed.iter().all(|passed| *passed >= least);
        assert!(all.iter().zip(least).all(is_least), "{name}: {all:?}");
    }
}

/// For 50 s, one node of three regions is asked for 110 % of the units of forty cells. Returns how many of a
/// thousand units passed.
fn at_one(nodes: u64, spec: &LimitSpec, units: u64) -> u64 {
    const CELLS: u64 = 40;
    const SECONDS: u64 = 50;
    let mut world = three(nodes as usize, spec.clone());
    world.is_prompt = true;
    // Begin with a new window.
    let left_ns = 60 * S - world.now(0).wall_ns % (60 * S);
    world.pass(left_ns + S);
    let asked = CELLS * units * 11 / 10;
    let mut passed = 0;
    for number in 0..asked {
        passed += u64::from(world.ask_or_wait(0, &format!("k{}", number % CELLS), 1));
        world.pass(SECONDS * S / asked);
    }
    world.pass(S);
    1_000 * (passed + world.passed_late) / (CELLS * units)
}

/// A node that is asked finds what all nodes of all regions have, by the end of the window or after a minute.
#[test]
fn one_busy_node_obtains_units_of_all_nodes_of_all_regions() {
    println!("three regions share forty cells; all is asked for at one node");
    println!("units        passed of 1000, with 1, 2 and 4 nodes a region");
    for (spec, units, [least, of_four]) in some_of([
        (window("w", 12, "60s"), 12, [990, 990]),
        (window("w", 30, "60s"), 30, [980, 960]),
        (window("w", 120, "60s"), 120, [980, 960]),
        (sliding("s", 12, "60s"), 12, [780, 780]),
        (sliding("s", 30, "60s"), 30, [900, 890]),
        (sliding("s", 120, "60s"), 120, [960, 950]),
        (bucket("b", "12/m", 2), 12, [500, 500]),
        (bucket("b", "30/m", 5), 30, [710, 710]),
        (bucket("b", "120/m", 20), 120, [810, 810]),
    ]) {
        let passed = [1, 2, 4].map(|nodes| at_one(nodes, &spec, units));
        let name = format!("{} {units} a minute", spec.name);
        println!("{name:<16} {passed:?}");
        let [one, two, four] = passed;
        assert!(one.min(two) >= least && four >= of_four, "{name}: {passed:?}");
    }
}

/// A row has one writer, so each change is sent once, by the row's own node. More nodes mean more rows, and
/// more links between them.
#[test]
fn traffic_between_regions_stays_bounded_with_four_nodes_in_each() {
    println!(
        "three regions share two cells of 200/s; most is asked for in one region after the other, for 20 s each"
    );
    println!("requests/s   nodes a region   frames/s   bytes/s   passed of 1000");
    for (a_second, least) in [(200, 960), (400, 920)] {
        let all = [1, 2, 4].map(|nodes| (nodes, moving(nodes, a_second)));
        for (nodes, Cost { frames, bytes, passed }) in all {
            println!("{a_second:<12} {nodes:<16} {frames:<10} {bytes:<9} {passed}");
            assert!(passed >= least, "{nodes} nodes a region: {passed}");
        }
        let [(_, one), _, (_, four)] = all;
        // There are sixteen times as many links between regions, and transfers between nodes are in smaller
        // pieces.
        assert!(four.bytes <= one.bytes * 64, "{} and {}", one.bytes, four.bytes);
    }
}

/// A region needs no new representative when a node dies: its other nodes are heard, ask and receive as before.
#[test]
fn a_region_borrows_while_one_of_its_nodes_is_dead() {
    let mut world = three(2, window("w", 600, "1000s"));
    world.nodes[0].is_hung = true;
    // The other node is asked at once for more than the region has.
    let mut passed = 0;
    for _ in 0..1_000 {
        passed += u64::from(world.ask(1, "k", 1));
        world.pass(5 * MS);
    }
    // A third of the units is the region's, minus the dead node's guard share. Others give what passes beyond
    // that.
    assert!(passed > 200 + 100, "{passed} of 600, and 200 are the region's");
}
