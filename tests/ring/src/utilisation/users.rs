//! Many cells of a small limit. Each user is in one region, and asks for most of the limit.

use acequia_limits::limit::{LimitSpec, TokenBucketSpec};

use super::{
    demand::Dice,
    oracle::Oracle,
    spec,
    table::{Bar, Cost, Figure, Table},
    world::{S, START, Sent, World},
};

const REGIONS: usize = 3;
/// A user's limit, both a second and at once.
const RATE: u64 = 10;
/// A user's requests a second.
const ASKED: u64 = 8;
const MIB: f64 = 1_048_576.0;

/// The users and their demand.
#[derive(Clone, Copy, Debug)]
pub struct Users {
    /// Users that ask eight times a second.
    pub warm: usize,
    /// Users that ask once in ten seconds.
    pub cold: usize,
    /// Whether the warm users ask evenly, or in Poisson intervals.
    pub evenly: bool,
    /// Seconds after the warm-up.
    pub seconds: u64,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The part of the warm users' requests that was admitted.
    pub admitted: f64,
    /// The part of the users whose first request was allowed.
    pub first: f64,
    /// The cost.
    pub cost: Cost,
    /// Active cells at the end, over all regions.
    pub warm_cells: usize,
    /// Traffic from the start, with introductions.
    pub sent: Sent,
}

/// Runs the users' requests.
pub fn run(users: Users, memory_bytes: usize, seed: u64) -> Outcome {
    let Users { warm, cold, evenly, seconds } = users;
    let bucket = TokenBucketSpec { rate: format!("{RATE}/s"), burst: RATE };
    let limit = LimitSpec { token_bucket: Some(bucket), ..spec("user") };
    let mut world = World::new(REGIONS, &[limit], memory_bytes);
    if warm > 50_000 {
        world.skim();
    }
    let all = world.sent();
    let mut dice = Dice::new(seed);
    let mut oracles = vec![Oracle::bucket(RATE, RATE); warm];
    let mut asked_before = vec![false; warm];
    let (mut asked, mut admitted, mut first, mut over) = (0_u64, 0_u64, 0_u64, 0);
    // Users arrive over five seconds, and counting starts five seconds later.
    let from = START + 10 * S;
    let mut before = world.sent();
    let every = 1_000 / ASKED;
    let mut key = String::new();
    for ms in 0..10_000 + seconds * 1_000 {
        if world.now == from {
            before = world.sent();
        }
        world.begin_step();
        let come = warm.min((warm as u64 * (ms + 1)).div_ceil(5_000) as usize);
        let now: Vec<usize> = if evenly {
            (0..come).skip((ms % every) as usize).step_by(every as usize).collect()
        } else {
            let arrivals = dice.arrivals(come as f64 * ASKED as f64 / 1_000.0);
            (0..arrivals).map(|_| dice.below(come)).collect()
        };
        for user in now {
            name(&mut key, "u", user);
            let allowed = world.ask(user % REGIONS, &key);
            if allowed {
                over = over.max(oracles[user].admit(world.now));
            }
            if !std::mem::replace(&mut asked_before[user], true) {
                first += u64::from(allowed);
            }
            if world.now > from {
                asked += 1;
                admitted += u64::from(allowed);
            }
        }
        for user in (0..cold).skip((ms % 10_000) as usize).step_by(10_000) {
            name(&mut key, "c", user);
            assert!(world.ask(user % REGIONS, &key), "a cold user has units");
        }
        world.end_step();
    }
    let seen = asked_before.iter().filter(|asked| **asked).count().max(1);
    Outcome {
        admitted: admitted as f64 / asked.max(1) as f64,
        first: first as f64 / seen as f64,
        cost: Cost {
            sent: world.sent().since(&before),
            seconds: seconds as f64,
            shifts: 0,
            loans_max: world.loans_max(),
            over,
        },
        warm_cells: world.warm_cells(),
        sent: world.sent().since(&all),
    }
}

fn name(key: &mut String, kind: &str, user: usize) {
    use std::fmt::Write;
    key.clear();
    let _ = write!(key, "{kind}{user}");
}

/// Users, and their cost.
pub fn users(table: &mut Table, quick: bool, seed: u64) {
    let (warm, seconds) = if quick { (300, 5) } else { (10_000, 20) };
    for evenly in [false, true] {
        let users = Users { warm, cold: 0, evenly, seconds };
        let outcome = run(users, 1 << 30, seed);
        let how = if evenly { "evenly" } else { "Poisson" };
        let name = format!("{warm} users, 8/s of 10/s each, {how}");
        table.add(
            &name,
            Figure::new("admitted of asked", outcome.admitted, ""),
            Bar::AtLeast(0.95),
            Some(outcome.cost),
        );
        table.add(&name, Figure::new("first request allowed", outcome.first, ""), Bar::AtLeast(1.0), None);
        let cells = warm as f64 * seconds as f64;
        let sent = outcome.cost.sent;
        let entries: u64 = sent.entries.iter().sum();
        let per_cell = [
            ("frames a cell and s", sent.frames as f64 / cells, ""),
            ("entries a cell and s", entries as f64 / cells, ""),
            ("bytes a cell and s", sent.bytes as f64 / cells, "B"),
        ];
        for (what, value, unit) in per_cell {
            table.add(&name, Figure::new(what, value, unit), Bar::None, None);
        }
        if !evenly {
            let news = outcome.sent;
            let per_news = news.news_bytes as f64 / news.entries[0].max(1) as f64;
            let per_introduction = news.introduced_bytes as f64 / news.entries[1].max(1) as f64;
            table.add(&name, Figure::new("bytes a changed cell", per_news, "B"), Bar::AtMost(16.0), None);
            table.add(&name, Figure::new("bytes a first mention", per_introduction, "B"), Bar::None, None);
        }
    }
    let (warm, cold, seconds) = if quick { (100, 10_000, 5) } else { (1_000, 100_000, 20) };
    let alone = run(Users { warm, cold: 0, evenly: true, seconds }, 1 << 30, seed);
    let among = run(Users { warm, cold, evenly: true, seconds }, 1 << 30, seed);
    let name = format!("{warm} warm cells");
    table.add(
        &name,
        Figure::new("warm in all regions", alone.warm_cells as f64, ""),
        Bar::None,
        Some(alone.cost),
    );
    let name = format!("{warm} warm cells among {cold} cold");
    table.add(
        &name,
        Figure::new("warm in all regions", among.warm_cells as f64, ""),
        Bar::None,
        Some(among.cost),
    );
    let more = among.cost.sent.bytes as f64 / alone.cost.sent.bytes.max(1) as f64;
    table.add(&name, Figure::new("bytes, against without", more, ""), Bar::AtMost(1.02), None);
}

/// A large number of users. This is an option, because a million need much time and memory.
pub fn many(table: &mut Table, warm: usize, seed: u64) {
    let seconds = 5;
    let outcome = run(Users { warm, cold: 0, evenly: true, seconds }, 8 << 30, seed);
    let name = format!("{warm} users, 8/s of 10/s each, evenly");
    table.add(
        &name,
        Figure::new("admitted of asked", outcome.admitted, ""),
        Bar::AtLeast(0.95),
        Some(outcome.cost),
    );
    table.add(&name, Figure::new("first request allowed", outcome.first, ""), Bar::AtLeast(1.0), None);
    let (cells, sent) = (outcome.warm_cells.max(1) as f64, outcome.cost.sent);
    let cell_seconds = cells * seconds as f64;
    for (what, value, unit) in [
        ("warm in all regions", outcome.warm_cells as f64, ""),
        ("frames a cell and s", sent.frames as f64 / cell_seconds, ""),
        ("bytes a cell and s", sent.bytes as f64 / cell_seconds, "B"),
        ("resident memory", resident_bytes() / MIB, "MiB"),
        ("memory a cell", resident_bytes() / cells, "B"),
    ] {
        table.add(&name, Figure::new(what, value, unit), Bar::None, None);
    }
}

/// The largest resident memory of this process: all regions, callers and oracles.
fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0.0);
    kib * 1_024.0
}
