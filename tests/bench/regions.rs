//! Three regions of real processes, 80 ms apart: use of a limit, recovery after a cut, traffic between
//! regions, and the cost of sharing for a caller.
//!
//! `cargo bench -p acequia-tests --bench regions [-- used|gossip|throughput]`. Exits with 1 if a bar was
//! missed. Figures depend on the machine: quote those from an idle one.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use acequia_tests::{
    Node, acequia,
    cluster::{Asked, Callers, Cluster, EU, REGIONS, ROUND},
};

/// The shared rate.
const RATE: u64 = 1_000;
/// The demand in all regions, 1.5 times the rate. Eight tenths of the demand are in one region.
const DEMAND: u64 = 1_500;
/// How often the hot spot moves.
const SHIFT: Duration = Duration::from_secs(20);
/// The step in which use is measured after a cut.
const STEP: Duration = Duration::from_millis(50);
/// Runs of each side in a comparison.
const PAIRS: usize = 9;

fn main() -> ExitCode {
    let only: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |word: &str| only.is_empty() || only.iter().any(|only| only == word);
    let mut missed = Vec::new();
    if wanted("used") {
        used(&mut missed);
    }
    if wanted("gossip") {
        gossip();
    }
    if wanted("throughput") {
        throughput(&mut missed);
    }
    for line in &missed {
        println!("missed: {line}");
    }
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn bar(missed: &mut Vec<String>, what: &str, value: f64, is_met: bool, bar: &str) {
    println!("{what:<56}{value:>10.3}   {bar}");
    if !is_met {
        missed.push(format!("{what}: {value:.3}, {bar}"));
    }
}

fn bucket(rate: u64) -> String {
    format!(
        "limits:\n- {{ name: rate, domain: shop, when: {{ kind: rate }}, token_bucket: {{ rate: {rate}/s, burst: {} }} }}\n",
        rate / 10
    )
}

/// Sets which region is hot.
fn heat(questions: &[AtomicU64; 3], hot: usize) {
    for (region, rate) in questions.iter().enumerate() {
        let demand = if region == hot { DEMAND * 8 / 10 } else { DEMAND / 10 };
        rate.store(demand, Ordering::Relaxed);
    }
}

fn used(missed: &mut Vec<String>) {
    println!(
        "\na rate of {RATE}/s, demand {DEMAND}/s, hot spot moves every {SHIFT:?}, {ROUND:?} there and back"
    );
    let cluster = Cluster::start(&bucket(RATE));
    let callers = cluster.callers(vec![Asked { kind: "rate", rates: [0, 0, 0].map(AtomicU64::new) }]);
    let rates = |callers: &Callers, hot| heat(&callers.questions[0].rates, hot);
    rates(&callers, EU);
    // Wait until loans have settled and the hot spot has moved once.
    thread::sleep(Duration::from_secs(5));
    let from = callers.begun.elapsed();
    for hot in [2, 0, EU] {
        rates(&callers, hot);
        thread::sleep(SHIFT);
    }
    let to = callers.begun.elapsed();
    let share =
        |from, to| callers.allowed_so_far(0, from, to) as f64 / (RATE as f64 * (to - from).as_secs_f64());
    let connected = share(from, to);
    bar(missed, "used while connected", connected, connected >= 0.97, "at least 0.97");

    cluster.isolate(EU, true);
    // Loans across the cut end, and return.
    thread::sleep(Duration::from_secs(6));
    let from = callers.begun.elapsed();
    thread::sleep(Duration::from_secs(10));
    let to = callers.begun.elapsed();
    let third = RATE as f64 / 3.0;
    let could = third.min(DEMAND as f64 * 0.8) + (2.0 * third).min(DEMAND as f64 * 0.2);
    let lost = (could / RATE as f64 - share(from, to)).max(0.0);
    bar(missed, "below what both sides of a cut can use", lost, lost <= 0.05, "at most 0.05");

    let mended = callers.begun.elapsed();
    cluster.isolate(EU, false);
    let limit = ROUND * 4 + Duration::from_millis(100);
    thread::sleep(Duration::from_secs(10));
    // The first of four steps in a row with an average use of 95 percent.
    let mut back = mended;
    while back < mended + Duration::from_secs(9) && share(back, back + STEP * 4) < 0.95 {
        back += STEP;
    }
    let seconds = (back - mended).as_secs_f64();
    bar(missed, "seconds until 0.95 is used after mending", seconds, back - mended <= limit, "at most 0.420");
    let seen = callers.end();
    let over = seen.over_rate(0, RATE as f64, RATE as f64 / 10.0);
    bar(missed, "units beyond the limit, over any interval", over.max(0.0), over <= 0.0, "none");
}

/// A counter from a node's metrics.
fn counted(node: &Node, name: &str) -> f64 {
    let text = acequia_tests::get(node.http(), "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
}

fn gossip() {
    println!("\nwhat a region says to two others, by cells that are shared actively");
    println!("{:>10}{:>14}{:>14}{:>14}{:>14}", "cells", "bytes/s", "bytes/cell/s", "frames/s", "CPU, cores");
    for cells in [0_u64, 1_000, 100_000] {
        // A region's own part is one unit. A second request in a short time needs more units, so the cell is
        // shared.
        let cluster = Cluster::start(
            "limits:\n- { name: user, domain: shop, by: [user], token_bucket: { rate: 20/m, burst: 3 } }\n",
        );
        let stop = AtomicU64::new(0);
        let node = &cluster.nodes[EU];
        thread::scope(|scope| {
            if cells > 0 {
                let (address, stop) = (node.grpc(), &stop);
                scope.spawn(move || keep_warm(&address.to_string(), cells, stop));
            }
            let warm = || counted(node, "acequia_warm_cells");
            let patience = Instant::now() + Duration::from_secs(60);
            while warm() < cells as f64 * 0.99 && Instant::now() < patience {
                thread::sleep(STEP);
            }
            // Wait until every cell is introduced and all demands are sent.
            thread::sleep(Duration::from_secs(6));
            let look = || {
                let bytes = counted(node, "acequia_mesh_bytes_total{way=\"out\"}");
                (bytes, counted(node, "acequia_mesh_frames_total{way=\"out\"}"), node.cpu_s())
            };
            let (before, begun, at) = (look(), Instant::now(), warm());
            thread::sleep(Duration::from_secs(10));
            let (after, seconds) = (look(), begun.elapsed().as_secs_f64());
            let per_s = |before: f64, after: f64| (after - before) / seconds;
            let bytes = per_s(before.0, after.0);
            let each = if at > 0.0 { bytes / at } else { 0.0 };
            println!(
                "{at:>10.0}{bytes:>14.0}{each:>14.2}{:>14.1}{:>14.3}",
                per_s(before.1, after.1),
                per_s(before.2, after.2)
            );
            stop.store(1, Ordering::Relaxed);
        });
    }
}

/// Sends a request for each user every five seconds, with the measuring client.
fn keep_warm(address: &str, cells: u64, stop: &AtomicU64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let options = acequia_client::Options { deadline: Duration::from_secs(5) };
        let client = acequia_client::Client::connect(address, options).expect("an address");
        let mut stream = client.check_stream().await.expect("a stream");
        let mut turns = tokio::time::interval(Duration::from_millis(50));
        let mut next = 0;
        while stop.load(Ordering::Relaxed) == 0 {
            turns.tick().await;
            let mut left = cells.div_ceil(100);
            while left > 0 {
                let count = left.min(100);
                let users = (next..next + count).map(|user| format!("u{}", user % cells));
                let batch =
                    users.map(|user| acequia_client::Question::new("shop", [("user", user.as_str())]));
                if stream.send(batch.collect::<Vec<_>>()).is_err() {
                    return;
                }
                (next, left) = (next + count, left - count);
                if stream.in_flight() > 32 && stream.next().await.is_none_or(|answers| answers.is_err()) {
                    return;
                }
            }
            while stream.in_flight() > 0 {
                if stream.next().await.is_none_or(|answers| answers.is_err()) {
                    return;
                }
            }
        }
    });
}

fn throughput(missed: &mut Vec<String>) {
    println!("\nShouldRateLimit, 100 000 keys: one region alone, and one of three whose share is as large");
    let limit = |regions: usize| {
        let (rate, burst) = (1_000 * regions, 2_000 * regions);
        format!(
            "limits:\n- {{ name: per-key, domain: shop, by: [api_key], token_bucket: {{ rate: {rate}/s, burst: {burst} }} }}\n"
        )
    };
    // Both nodes have the same numbers for each request, and so as many cells. They differ only in having
    // regions.
    let cluster = Cluster::start(&limit(REGIONS.len()));
    let alone = Node::start(&format!("data: DATA\n{}", limit(1)));
    // Requests a second, and nanoseconds of the node's CPU time for each. The caller runs on the same
    // machine.
    let run = |node: &Node| {
        let (address, before) = (node.grpc().to_string(), node.cpu_s());
        let output = acequia(&["bench", "--address", &address, "--seconds", "3", "--json"]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
        let figure = |name: &str| json[name].as_f64().expect("a figure");
        let per_s = figure("requests_per_s");
        [per_s, (node.cpu_s() - before) * 1e9 / (per_s * 3.0)]
    };
    println!(
        "{:>12}{:>12}{:>8}{:>16}{:>12}{:>8}",
        "one, req/s", "three", "ratio", "one, CPU ns/req", "three", "ratio"
    );
    let mut ratios: [Vec<f64>; 2] = Default::default();
    for pair in 0..PAIRS {
        let (one, three) = if pair % 2 == 0 {
            let one = run(&alone);
            (one, run(&cluster.nodes[EU]))
        } else {
            let three = run(&cluster.nodes[EU]);
            (run(&alone), three)
        };
        let of = |at: usize| three[at] / one[at];
        println!(
            "{:>12.0}{:>12.0}{:>8.3}{:>16.0}{:>12.0}{:>8.3}",
            one[0],
            three[0],
            of(0),
            one[1],
            three[1],
            of(1)
        );
        (0..2).for_each(|at| ratios[at].push(of(at)));
    }
    let [median, cpu] = ratios.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[PAIRS / 2]
    });
    bar(missed, "median of the ratios", median, median >= 0.95, "at least 0.95");
    println!("{:<56}{cpu:>10.3}", "median of the ratios of processor time");
}
