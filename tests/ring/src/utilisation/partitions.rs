//! A partition into two and three regions. Each side has its standing shares, and uses them.

use super::{
    demand::{Dice, HotSpot},
    flows::Flow,
    oracle::Oracle,
    quotas::quota,
    table::{Bar, Cost, Figure, Table},
    world::{S, START, World},
};

const REGIONS: usize = 5;
/// The minority.
const FEW: [usize; 2] = [0, 1];

/// Buckets and quotas, with the hot region on either side.
pub fn partitions(table: &mut Table, quick: bool, seed: u64) {
    for (side, hot) in [("minority", 0), ("majority", 3)] {
        for rate in [10_000, 1_000] {
            let demand = HotSpot { per_s: 1.5 * rate as f64, hot: 0.8, regions: REGIONS };
            let flow = Flow::bucket(rate);
            let seconds = if quick { 10 } else { 60 };
            let world = World::new(REGIONS, std::slice::from_ref(&flow.spec), 64 << 20);
            // Five seconds without a cut, and ten until loans have ended and both sides have settled.
            let phases = Phases { whole: 5, settling: 10, counted: seconds };
            let (used, cost) = run(world, flow.oracle, &demand, hot, phases, seed);
            let name = format!("bucket {rate}/s, cut 2+3, hot {side}");
            judge(table, name, used / (rate * seconds) as f64, rate as f64, &demand, hot, cost);
        }
        for limit in [100_000, 10_000] {
            let per_s = limit as f64 / 60.0;
            let demand = HotSpot { per_s: 1.3 * per_s, hot: 0.8, regions: REGIONS };
            let world = World::new(REGIONS, &[quota(limit)], 64 << 20);
            // The cut comes in the middle of a window. Counting starts with the next window.
            let minutes = if quick { 1 } else { 3 };
            let oracle = Oracle::window(limit, 60 * S);
            let phases = Phases { whole: 30, settling: 30, counted: 60 * minutes };
            let (used, cost) = run(world, oracle, &demand, hot, phases, seed);
            let name = format!("quota {limit} a minute, cut 2+3, hot {side}");
            judge(table, name, used / (limit * minutes) as f64, per_s, &demand, hot, cost);
        }
    }
}

/// Compares the use with what both sides could use.
fn judge(table: &mut Table, name: String, used: f64, per_s: f64, demand: &HotSpot, hot: usize, cost: Cost) {
    let side = |few: bool| {
        let regions = (0..REGIONS).filter(|region| FEW.contains(region) == few);
        let rights = regions.clone().count() as f64 * per_s / REGIONS as f64;
        regions.map(|region| demand.per_s_in(hot, region)).sum::<f64>().min(rights)
    };
    let best = (side(true) + side(false)) / per_s.min(demand.per_s);
    table.add(name.clone(), Figure::new("used of the limit", used, ""), Bar::None, Some(cost));
    table.add(name, Figure::new("less than the sides can", best - used, ""), Bar::AtMost(0.05), None);
}

/// The phases of a run, in seconds.
#[derive(Clone, Copy, Debug)]
struct Phases {
    /// Without a cut.
    whole: u64,
    /// With the cut, until both sides have settled.
    settling: u64,
    /// With the cut: what is admitted then counts.
    counted: u64,
}

/// Runs three phases. Returns what was admitted in the last one.
fn run(
    mut world: World,
    mut oracle: Oracle,
    demand: &HotSpot,
    hot: usize,
    phases: Phases,
    seed: u64,
) -> (f64, Cost) {
    let Phases { whole, settling, counted } = phases;
    let mut dice = Dice::new(seed);
    let (mut admitted, mut over) = (0_u64, 0);
    let mut before = world.sent();
    let from = START + (whole + settling) * S;
    while world.now < from + counted * S {
        if world.now == START + whole * S {
            let many = (0..REGIONS).filter(|region| !FEW.contains(region));
            world.cut = many.flat_map(|b| FEW.map(|a| (a.min(b), a.max(b)))).collect();
        }
        if world.now == from {
            before = world.sent();
        }
        world.begin_step();
        for region in 0..REGIONS {
            for _ in 0..demand.arrivals(&mut dice, hot, region) {
                if world.ask(region, "k") {
                    over = over.max(oracle.admit(world.now));
                    admitted += u64::from(world.now > from);
                }
            }
        }
        world.end_step();
    }
    let cost = Cost {
        sent: world.sent().since(&before),
        seconds: counted as f64,
        shifts: 0,
        loans_max: world.loans_max(),
        over,
    };
    (admitted as f64, cost)
}
