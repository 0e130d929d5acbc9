//! Rates and sliding windows under a moving hot spot.

use acequia_limits::limit::{LeakyBucketSpec, LimitSpec, SlidingWindowSpec, TokenBucketSpec};

use super::{
    demand::{Dice, HotSpot, hot_after},
    oracle::Oracle,
    spec,
    table::{Bar, Cost, Figure, Table},
    world::{MEAN_ROUND_S, MS, S, START, World},
};

/// Demand as a multiple of the limit, and the hot region's part of it.
const DEMAND: f64 = 1.5;
const HOT: f64 = 0.8;
const REGIONS: usize = 5;

/// A limit, and what it allows in all.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The limit as catalogues carry it.
    pub spec: LimitSpec,
    /// The limit as the oracle counts it.
    pub oracle: Oracle,
    /// Units a second.
    pub per_s: f64,
}

impl Flow {
    /// A token bucket whose burst is a fifth of a second's rate.
    pub fn bucket(rate: u64) -> Self {
        let burst = rate / 5;
        let bucket = TokenBucketSpec { rate: format!("{rate}/s"), burst };
        Self {
            spec: LimitSpec { token_bucket: Some(bucket), ..spec("flow") },
            oracle: Oracle::bucket(rate, burst),
            per_s: rate as f64,
        }
    }

    /// A leaky bucket with such a queue.
    pub fn leaky(rate: u64) -> Self {
        let queue = rate / 5;
        let bucket = LeakyBucketSpec { rate: format!("{rate}/s"), queue, no_wait: Default::default() };
        Self {
            spec: LimitSpec { leaky_bucket: Some(bucket), ..spec("flow") },
            oracle: Oracle::bucket(rate, queue),
            per_s: rate as f64,
        }
    }

    /// A sliding window.
    pub fn sliding(limit: u64, seconds: u64, slots: Option<u32>) -> Self {
        let window = SlidingWindowSpec { limit, window: format!("{seconds}s"), slots, approximate: false };
        Self {
            spec: LimitSpec { sliding_window: Some(window), ..spec("flow") },
            oracle: Oracle::sliding(limit, seconds * S),
            per_s: limit as f64 / seconds as f64,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Admitted units, relative to what the limit allows in this time.
    pub used: f64,
    /// Admitted units, relative to what static shares would admit.
    pub fixed: f64,
    /// Seconds from a shift until the total is back at 95 % of the limit, averaged over the shifts.
    pub back_s: f64,
    /// The cost.
    pub cost: Cost,
    /// Units admitted in each millisecond after a shift, over all shifts.
    pub curve: Vec<u64>,
}

/// Runs some shifts to warm up, then counts `shifts` shifts.
pub fn run(flow: &Flow, shift_ns: u64, shifts: u64, seed: u64) -> Outcome {
    let warm_up = (10 * S).div_ceil(shift_ns);
    let mut world = World::new(REGIONS, std::slice::from_ref(&flow.spec), 64 << 20);
    let mut dice = Dice::new(seed);
    let mut oracle = flow.oracle.clone();
    let demand = HotSpot { per_s: flow.per_s * DEMAND, hot: HOT, regions: REGIONS };
    let (mut admitted, mut over) = (0, 0);
    let mut curve = vec![0; (shift_ns / MS) as usize];
    let mut before = world.sent();
    for shift in 0..warm_up + shifts {
        if shift == warm_up {
            before = world.sent();
        }
        let hot = hot_after(shift, REGIONS);
        for at in &mut curve {
            world.begin_step();
            for region in 0..REGIONS {
                for _ in 0..demand.arrivals(&mut dice, hot, region) {
                    if world.ask(region, "k") {
                        over = over.max(oracle.admit(world.now));
                        if shift >= warm_up {
                            admitted += 1;
                            *at += 1;
                        }
                    }
                }
            }
            world.end_step();
        }
    }
    let seconds = (shifts * shift_ns) as f64 / S as f64;
    let fixed: f64 = (0..REGIONS)
        .map(|region| demand.per_s_in(0, region).min(flow.per_s / REGIONS as f64) / flow.per_s)
        .sum();
    Outcome {
        used: admitted as f64 / (flow.per_s * seconds),
        fixed,
        back_s: back_s(&curve, flow.per_s * shifts as f64),
        cost: Cost { sent: world.sent().since(&before), seconds, shifts, loans_max: world.loans_max(), over },
        curve,
    }
}

/// The first time at which both the tenth of a second before and the half second after are at 95 % of the
/// limit. A single burst of saved tokens does not count.
fn back_s(curve: &[u64], per_s: f64) -> f64 {
    let enough = |part: &[u64]| part.iter().sum::<u64>() as f64 >= per_s * 0.95 * part.len() as f64 / 1_000.0;
    let back = (100..curve.len())
        .find(|at| enough(&curve[at - 100..*at]) && enough(&curve[*at..(at + 500).min(curve.len())]));
    back.unwrap_or(curve.len()) as f64 / 1_000.0
}

/// Token buckets with a moving hot spot.
pub fn buckets(table: &mut Table, quick: bool, seed: u64) {
    let bars = [
        (10_000, 20, Bar::AtLeast(0.97)),
        (10_000, 2, Bar::AtLeast(0.90)),
        (1_000, 20, Bar::AtLeast(0.93)),
        (1_000, 2, Bar::None),
        (100, 20, Bar::AtLeast(0.85)),
        (100, 2, Bar::None),
    ];
    for (rate, shift_s, bar) in bars {
        let shifts = match (quick, shift_s) {
            (true, 20) => 2,
            (true, _) => 5,
            (false, 20) => 10,
            (false, _) => 50,
        };
        let outcome = run(&Flow::bucket(rate), shift_s * S, shifts, seed);
        let name = format!("bucket {rate}/s, hot spot moves every {shift_s} s");
        table.add(&name, Figure::new("used of the limit", outcome.used, ""), bar, Some(outcome.cost));
        if rate == 10_000 {
            let bar = Bar::AtMost(4.0 * MEAN_ROUND_S + 0.1);
            let bar = if shift_s == 20 { bar } else { Bar::None };
            table.add(&name, Figure::new("back to 95 % after", outcome.back_s, "s"), bar, None);
        }
    }
}

/// Sliding windows and leaky buckets.
pub fn windows(table: &mut Table, quick: bool, seed: u64) {
    let all = [
        ("leaky 10 000/s", Flow::leaky(10_000), Bar::AtLeast(0.97)),
        ("leaky 1 000/s", Flow::leaky(1_000), Bar::AtLeast(0.93)),
        ("sliding 1 000 in 10 s", Flow::sliding(1_000, 10, None), Bar::None),
        ("sliding 100 in 1 s", Flow::sliding(100, 1, None), Bar::None),
        ("sliding 1 000 in 10 s, 20 slots", Flow::sliding(1_000, 10, Some(20)), Bar::None),
    ];
    for (name, flow, bar) in all {
        let outcome = run(&flow, 20 * S, if quick { 2 } else { 10 }, seed);
        let name = format!("{name}, moves every 20 s");
        table.add(&name, Figure::new("used of the limit", outcome.used, ""), bar, Some(outcome.cost));
        table.add(&name, Figure::new("static shares would", outcome.fixed, ""), Bar::None, None);
    }
}

/// Limits with few units a region: a user alone in one region gets what the limit allows.
pub fn small(table: &mut Table, quick: bool, seed: u64) {
    for (rate, burst) in [(3, 3), (5, 5), (10, 10)] {
        let mut flow = Flow::bucket(rate);
        flow.oracle = Oracle::bucket(rate, burst);
        flow.spec.token_bucket = Some(TokenBucketSpec { rate: format!("{rate}/s"), burst });
        let (used, cost) = alone(&flow, quick, seed);
        let name = format!("bucket {rate}/s, burst {burst}, five regions, one user");
        table.add(&name, Figure::new("of one region's limit", used, ""), Bar::AtLeast(0.95), Some(cost));
    }
    for (limit, seconds) in [(3, 10), (5, 10)] {
        let (used, cost) = alone(&Flow::sliding(limit, seconds, None), quick, seed);
        let name = format!("sliding {limit} in {seconds} s, five regions, one user");
        table.add(&name, Figure::new("of one region's limit", used, ""), Bar::AtLeast(0.95), Some(cost));
    }
}

/// One user in one region asks for 1.5 times the limit. Returns what is admitted, relative to a limit without
/// regions.
fn alone(flow: &Flow, quick: bool, seed: u64) -> (f64, Cost) {
    let (warm_up, seconds) = (10, if quick { 20 } else { 200 });
    let mut world = World::new(REGIONS, std::slice::from_ref(&flow.spec), 64 << 20);
    let mut dice = Dice::new(seed);
    let mut oracle = flow.oracle.clone();
    let mut ideal = flow.oracle.clone();
    let (mut admitted, mut over, mut at_best) = (0, 0, 0);
    let mut before = world.sent();
    while world.now < START + (warm_up + seconds) * S {
        if world.now == START + warm_up * S {
            before = world.sent();
        }
        world.begin_step();
        for _ in 0..dice.arrivals(flow.per_s * DEMAND / 1_000.0) {
            if ideal.left(world.now) > 0 {
                let _ = ideal.admit(world.now);
                at_best += u64::from(world.now > START + warm_up * S);
            }
            if world.ask(2, "k") {
                over = over.max(oracle.admit(world.now));
                admitted += u64::from(world.now > START + warm_up * S);
            }
        }
        world.end_step();
    }
    let cost = Cost {
        sent: world.sent().since(&before),
        seconds: seconds as f64,
        shifts: 0,
        loans_max: world.loans_max(),
        over,
    };
    (admitted as f64 / f64::from(at_best as u32), cost)
}
