//! A server's figures under a load, and how they are printed.

use std::{
    env,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use acequia_cli::load::{self, Bound, Load, Order, Payloads, Report, Work};

use crate::process::{Error, Server, cpu_s};

pub(crate) const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The address before a server reports its own.
pub(crate) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
pub(crate) const CONNECTIONS: usize = 8;
pub(crate) const IN_FLIGHT: usize = 32;
const WARM_UP: Duration = Duration::from_secs(1);
/// Keys in an order that no prefetcher guesses, equal in every run.
const SEED: u64 = 1;
/// If the client is busier than this, the measurement may be of the client.
const CLIENT_BUSY: f64 = 0.95;

/// One measurement of one server.
pub(crate) struct Run {
    pub(crate) report: Report,
    /// CPU time of the server for a million requests (on streams: decisions), in seconds.
    pub(crate) cpu_s_per_million: f64,
    /// Likewise, of what the server needs beside it.
    pub(crate) beside_cpu_s_per_million: f64,
}

/// Builds `acequia` with this benchmark's profile, in the benchmark's target folder.
pub(crate) fn build_server() -> Result<PathBuf, Error> {
    let target =
        Path::new(env!("CARGO_BIN_EXE_floor_mimalloc")).ancestors().nth(2).ok_or("no target folder")?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .args(["build", "--profile", "dist", "-p", "acequia-cli", "--bin", "acequia", "--target-dir"])
        .arg(target);
    if !build.current_dir(env!("CARGO_MANIFEST_DIR")).status()?.success() {
        return Err("acequia does not build; --floor-only measures the floor alone".into());
    }
    Ok(target.join("dist/acequia"))
}

/// `ShouldRateLimit` with these messages.
pub(crate) fn unary(payloads: Payloads) -> Load {
    let mut load = Load::unary(NOWHERE.into(), RATE_LIMIT, payloads, load::rate_limit_verdict);
    load.work = Work::Unary { in_flight: IN_FLIGHT, verdict: load::rate_limit_verdict };
    load
}

/// The load on this server, for so long.
pub(crate) fn bounded(load: &Load, server: &Server, measured: Duration) -> Load {
    Load {
        target: server.address.into(),
        connections: CONNECTIONS,
        order: Order::Random { seed: SEED },
        warm_up: WARM_UP,
        bound: Bound::For(measured),
        ..load.clone()
    }
}

/// Runs a load on a server, and measures it and what it needs beside it.
pub(crate) fn measure(load: &Load, server: &Server, beside: Option<&Server>) -> Result<Run, Error> {
    let beside_s = || beside.map_or(Ok(0.0), Server::cpu_s);
    let (began, client_s) = (Instant::now(), cpu_s(std::process::id())?);
    let before = [server.cpu_s()?, beside_s()?];
    let report = load::run(load)?;
    let used = [server.cpu_s()? - before[0], beside_s()? - before[1]];
    let client_busy = (cpu_s(std::process::id())? - client_s) / began.elapsed().as_secs_f64();
    if client_busy > CLIENT_BUSY {
        println!("CLIENT {:.0} % BUSY: the server may be faster than this", 100.0 * client_busy);
    }
    complain(&report);
    let decisions_each = (report.allowed + report.denied) as f64 / report.requests.max(1) as f64;
    let millions = report.requests_with_warm_up as f64 * decisions_each.max(1.0) / 1e6;
    let [cpu_s_per_million, beside_cpu_s_per_million] = used.map(|seconds| seconds / millions);
    Ok(Run { report, cpu_s_per_million, beside_cpu_s_per_million })
}

/// Figures with errors or denials are invalid.
pub(crate) fn complain(report: &Report) {
    if report.errors > 0 || report.denied > 0 {
        println!("NOT ALL ALLOWED:\n{report}");
    }
}

pub(crate) fn header() -> String {
    format!("{:>12}{:>10}{:>10}{:>10}", "requests/s", "p50 ms", "p99 ms", "cpu s/M")
}

pub(crate) fn row(run: &Run) -> String {
    medians(std::slice::from_ref(run))
}

pub(crate) fn medians(runs: &[Run]) -> String {
    let of = |value: &dyn Fn(&Run) -> f64| median(runs.iter().map(value).collect());
    let ms = |part| of(&|run| run.report.latency.quantile_ns(part) as f64 / 1e6);
    let (requests_per_s, cpu_s) = (of(&|run| run.report.requests_per_s), of(&|run| run.cpu_s_per_million));
    format!("{requests_per_s:>12.0}{:>10.2}{:>10.2}{cpu_s:>10.2}", ms(0.5), ms(0.99))
}

/// The median; of an even number of values, the upper one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
