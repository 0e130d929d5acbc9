//! Fixed windows, with rights that move to where requests come.

use acequia_limits::limit::{FixedWindowSpec, LimitSpec};

use super::{
    demand::{Dice, HotSpot, hot_after},
    oracle::Oracle,
    spec,
    table::{Bar, Cost, Figure, Table},
    world::{S, World},
};

const REGIONS: usize = 5;
const WINDOW_S: u64 = 60;

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Admitted units, relative to the limit.
    pub used: f64,
    /// Admitted units, relative to a limit without regions.
    pub of_best: f64,
    /// Requests denied while any region had units left, relative to the limit.
    pub denied_falsely: f64,
    /// The cost. Each window counts as a shift.
    pub cost: Cost,
}

/// A quota of `limit` a minute.
pub fn quota(limit: u64) -> LimitSpec {
    let window = FixedWindowSpec { limit, window: format!("{WINDOW_S}s"), stagger: false };
    LimitSpec { fixed_window: Some(window), ..spec("quota") }
}

/// Runs `windows` windows. The hot spot moves with each, or in the middle of each.
pub fn run(limit: u64, demand: HotSpot, windows: u64, shift_s: u64, seed: u64) -> Outcome {
    let mut world = World::new(REGIONS, &[quota(limit)], 64 << 20);
    let mut dice = Dice::new(seed);
    let mut oracle = Oracle::window(limit, WINDOW_S * S);
    let (mut admitted, mut falsely, mut over) = (0_u64, 0_u64, 0);
    let (mut ideal, mut at_best) = (oracle.clone(), 0_u64);
    let before = world.sent();
    for ms in 0..windows * WINDOW_S * 1_000 {
        let hot = hot_after(ms / (shift_s * 1_000), REGIONS);
        world.begin_step();
        for region in 0..REGIONS {
            for _ in 0..demand.arrivals(&mut dice, hot, region) {
                if ideal.left(world.now) > 0 {
                    let _ = ideal.admit(world.now);
                    at_best += 1;
                }
                if world.ask(region, "k") {
                    over = over.max(oracle.admit(world.now));
                    admitted += 1;
                } else {
                    falsely += u64::from(oracle.left(world.now) > 0);
                }
            }
        }
        world.end_step();
    }
    let all = (limit * windows) as f64;
    Outcome {
        used: admitted as f64 / all,
        of_best: admitted as f64 / at_best.max(1) as f64,
        denied_falsely: falsely as f64 / all,
        cost: Cost {
            sent: world.sent().since(&before),
            seconds: (windows * WINDOW_S) as f64,
            shifts: windows * WINDOW_S / shift_s,
            loans_max: 0,
            over,
        },
    }
}

/// Quotas of all sizes.
pub fn quotas(table: &mut Table, quick: bool, seed: u64) {
    let used = Bar::AtLeast(0.995);
    let falsely = Bar::AtMost(0.02);
    let all = [
        (100_000, 60, used, falsely),
        (10_000, 60, used, falsely),
        (1_000, 60, used, Bar::None),
        (100, 60, Bar::None, Bar::None),
        (100_000, 20, used, Bar::None),
    ];
    for (limit, shift_s, used, falsely) in all {
        let windows = if quick { 1 } else { (1_000_000 / limit).clamp(4, 10) };
        let demand = HotSpot { per_s: limit as f64 * 1.3 / WINDOW_S as f64, hot: 0.8, regions: REGIONS };
        let outcome = run(limit, demand, windows, shift_s, seed);
        let name = format!("quota {limit} a minute, moves every {shift_s} s");
        table.add(&name, Figure::new("used of the limit", outcome.used, ""), used, Some(outcome.cost));
        table.add(&name, Figure::new("denied falsely", outcome.denied_falsely, ""), falsely, None);
        let gifts = outcome.cost.sent.given as f64 / windows as f64;
        table.add(&name, Figure::new("gifts a window", gifts, ""), Bar::None, None);
    }
    // A user alone, with a limit that leaves a region one unit or none.
    for limit in [3, 5] {
        let demand = HotSpot { per_s: limit as f64 * 1.3 / WINDOW_S as f64, hot: 1.0, regions: REGIONS };
        let outcome = run(limit, demand, if quick { 2 } else { 10 }, 600, seed);
        let name = format!("quota {limit} a minute, one user");
        let figure = Figure::new("of one region's limit", outcome.of_best, "");
        // If there are fewer units than regions, a region without a unit denies while it asks for one.
        let bar = if limit < REGIONS as u64 { Bar::None } else { Bar::AtLeast(0.95) };
        table.add(&name, figure, bar, Some(outcome.cost));
        table.add(&name, Figure::new("denied falsely", outcome.denied_falsely, ""), Bar::None, None);
    }
}
