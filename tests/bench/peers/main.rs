//! Acequia beside other services, by the same load on the same cores.
//!
//! `cargo bench -p acequia-tests --bench peers -- --go PATH --limitador PATH --gubernator PATH` runs each service whose
//! binary is named. Servers and their Redis share core 0, and requests come from core 1. Ends with 1 if a bar is missed.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

mod fleet;
mod gubernator;
mod link;
#[allow(dead_code, reason = "shared with other benchmarks")]
#[path = "../measure.rs"]
mod measure;
mod over;
#[allow(dead_code, reason = "shared with other benchmarks")]
#[path = "../payloads.rs"]
mod payloads;
#[allow(dead_code, reason = "shared with other benchmarks")]
#[path = "../process.rs"]
mod process;

use std::{env, path::PathBuf, process::ExitCode, time::Duration};

use acequia_tests::cluster::Background;

use self::{
    fleet::{Kind, Setup, Wires},
    measure::{Run, median},
    process::{Cores, Error},
};

const USAGE: &str = "\
usage: cargo bench -p acequia-tests --bench peers -- [FLAGS]
  --go PATH           the binary of envoyproxy/ratelimit
  --limitador PATH    limitador-server
  --gubernator PATH   gubernator
  --server PATH       the acequia binary; built with the profile dist if absent
  --rounds N          rounds, 5 if absent
  --seconds N         measured seconds of a run, 3 if absent
  --only PART         throughput or over";

/// All kinds, in the order in which odd rounds run.
const FAST: [Kind; 8] = [
    Kind::Go,
    Kind::Limitador,
    Kind::Counting,
    Kind::Leasing,
    Kind::Gubernator,
    Kind::LimitadorInMemory,
    Kind::Alone,
    Kind::Imported,
];
/// The kinds whose servers share a limit.
const SHARING: [Kind; 7] = [
    Kind::Go,
    Kind::Limitador,
    Kind::Gubernator,
    Kind::GubernatorGlobal,
    Kind::Counting,
    Kind::Leasing,
    Kind::Regions,
];
const KEYS: usize = 100_000;
/// The limit that denies nothing.
const PLENTY: u64 = 1_000_000_000;
/// Where a Redis counts: requests a second and CPU a request, against envoyproxy/ratelimit.
const RATIO_MIN: f64 = 3.0;
const CPU_MAX: f64 = 1.0 / 3.0;
/// Requests a second by an imported config, against a config of our own.
const IMPORTED_MIN: f64 = 0.97;

struct Flags {
    setup: Setup,
    rounds: usize,
    measured: Duration,
    only: Option<String>,
}

impl Flags {
    fn parse() -> Result<Self, Error> {
        let (mut go, mut limitador, mut gubernator, mut server) = (None, None, None, None);
        let (mut rounds, mut measured, mut only) = (5, Duration::from_secs(3), None);
        let mut arguments = env::args().skip(1);
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().ok_or(USAGE);
            match flag.as_str() {
                "--bench" => {} // from cargo
                "--go" => go = Some(PathBuf::from(value()?)),
                "--limitador" => limitador = Some(value()?.into()),
                "--gubernator" => gubernator = Some(value()?.into()),
                "--server" => server = Some(PathBuf::from(value()?)),
                "--rounds" => rounds = value()?.parse()?,
                "--seconds" => measured = Duration::from_secs(value()?.parse()?),
                "--only" => only = Some(value()?),
                _ => return Err(USAGE.into()),
            }
        }
        if rounds == 0 || measured.is_zero() {
            return Err(USAGE.into());
        }
        // Build before this process is pinned to a core: the compiler may use every core.
        let acequia = server.map_or_else(measure::build_server, Ok)?;
        let cores = Cores::split();
        let setup = Setup { cores, acequia, go, limitador, gubernator, links: Background::start() };
        Ok(Self { setup, rounds, measured, only })
    }

    fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == part)
    }
}

/// What must hold. Bars that do not hold fail the command.
#[derive(Default)]
struct Bars {
    missed: Vec<String>,
}

impl Bars {
    fn hold(&mut self, what: &str, value: f64, is_met: bool, bar: &str) {
        let verdict = if is_met { "met" } else { "MISSED" };
        println!("{what:<66}{value:>8.3}   {bar}: {verdict}");
        if !is_met {
            self.missed.push(format!("{what}: {value:.3}, {bar}"));
        }
    }
}

fn main() -> ExitCode {
    match bench() {
        Ok(missed) if missed.is_empty() => ExitCode::SUCCESS,
        Ok(missed) => {
            missed.iter().for_each(|line| println!("missed: {line}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn bench() -> Result<Vec<String>, Error> {
    let flags = Flags::parse()?;
    let mut bars = Bars::default();
    for (kind, flag) in
        [(Kind::Go, "--go"), (Kind::Limitador, "--limitador"), (Kind::Gubernator, "--gubernator")]
    {
        if flags.setup.program(kind).is_none() {
            println!("not measured, for want of {flag}: {}", kind.name());
        }
    }
    if flags.wants("throughput") {
        throughput(&flags, &mut bars)?;
    }
    if flags.wants("over") {
        over(&flags, &mut bars)?;
    }
    Ok(bars.missed)
}

/// The runs of a kind, one a round.
struct Column {
    kind: Kind,
    runs: Vec<Run>,
}

impl Column {
    /// The median of the rounds' ratios to another kind.
    fn against(&self, other: &Self, value: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().zip(&other.runs).map(|(ours, theirs)| value(ours) / value(theirs)).collect())
    }
}

fn throughput(flags: &Flags, bars: &mut Bars) -> Result<(), Error> {
    println!(
        "\nkeys: {KEYS}, {} connections × {} in flight; cpu s/M: CPU seconds for a million requests",
        measure::CONNECTIONS,
        measure::IN_FLIGHT
    );
    println!("{:7}{:30}{}{:>14}", "round", "", measure::header(), "Redis cpu s/M");
    let measured = FAST.into_iter().filter(|kind| flags.setup.program(*kind).is_some());
    let mut columns: Vec<Column> = measured.map(|kind| Column { kind, runs: Vec::new() }).collect();
    for round in 1..=flags.rounds {
        // The order alternates, so that a machine that slows down favours nobody.
        columns.reverse();
        for column in &mut columns {
            let run = run(flags, column.kind)?;
            println!("{round:<7}{:30}{}", column.kind.name(), figures(std::slice::from_ref(&run)));
            column.runs.push(run);
        }
    }
    columns.sort_by_key(|column| FAST.iter().position(|kind| *kind == column.kind));
    for column in &columns {
        println!("{:7}{:30}{}", "median", column.kind.name(), figures(&column.runs));
    }

    let of = |kind| columns.iter().find(|column| column.kind == kind);
    let speed = |run: &Run| run.report.requests_per_s;
    let cpu = |run: &Run| run.cpu_s_per_million;
    let whole_cpu = |run: &Run| run.cpu_s_per_million + run.beside_cpu_s_per_million;
    println!();
    if let (Some(counting), Some(go)) = (of(Kind::Counting), of(Kind::Go)) {
        let ratio = counting.against(go, speed);
        bars.hold("Redis counts: requests/s, Acequia / Go", ratio, ratio >= RATIO_MIN, "at least 3");
        for (what, ratio) in [
            ("Redis counts: CPU a request, Acequia / Go", counting.against(go, cpu)),
            ("Redis counts: CPU a request with the Redis, Acequia / Go", counting.against(go, whole_cpu)),
        ] {
            bars.hold(what, ratio, ratio <= CPU_MAX, "at most a third");
        }
    }
    if let (Some(imported), Some(own)) = (of(Kind::Imported), of(Kind::Alone)) {
        let ratio = imported.against(own, speed);
        bars.hold("requests/s, imported config / own config", ratio, ratio >= IMPORTED_MIN, "at least 0.97");
    }
    Ok(())
}

fn run(flags: &Flags, kind: Kind) -> Result<Run, Error> {
    let load = match kind.is_gubernator() {
        true => gubernator::load(KEYS, PLENTY),
        false => measure::unary(payloads::rate_limit_requests(KEYS)),
    };
    let fleet = flags.setup.start(kind, 1, PLENTY, Wires::Direct)?;
    let server = &fleet.servers[0];
    let load = measure::bounded(&load, server, flags.measured);
    measure::measure(&load, server, fleet.redis.as_ref())
}

fn figures(runs: &[Run]) -> String {
    let beside = median(runs.iter().map(|run| run.beside_cpu_s_per_million).collect());
    let beside = if beside > 0.0 { format!("{beside:.2}") } else { "-".to_owned() };
    format!("{}{beside:>14}", measure::medians(runs))
}

fn over(flags: &Flags, bars: &mut Bars) -> Result<(), Error> {
    println!(
        "\nA limit of {}, asked for {} times in one window, at two and three servers in turn: what passes, in percent of the limit.\n\
         Cut: the servers do not reach each other, or the Redis. Of gubernator, each node then lists itself alone.\n\
         What is not decided within {:?} passes, as Envoy lets it by default; its part is in brackets.",
        over::LIMIT,
        over::TIMES,
        over::PATIENCE
    );
    println!("{:30}{:>16}{:>16}{:>16}{:>16}", "", "2 connected", "2 cut", "3 connected", "3 cut");
    let mut most = 0;
    for kind in SHARING.into_iter().filter(|kind| flags.setup.program(*kind).is_some()) {
        let mut row = format!("{:30}", kind.name());
        for (count, wires) in [(2, Wires::Linked), (2, Wires::Cut), (3, Wires::Linked), (3, Wires::Cut)] {
            let passed = over::measure(&flags.setup, kind, count, wires)?;
            let percent = |units: u64| 100.0 * units as f64 / over::LIMIT as f64;
            let undecided = match passed.undecided {
                0 => String::new(),
                undecided => format!(" ({:.0})", percent(undecided)),
            };
            row.push_str(&format!("{:>16}", format!("{:.1}{undecided}", percent(passed.all()))));
            if kind.is_acequia() {
                most = most.max(passed.all());
            }
        }
        println!("{row}");
    }
    let most = most as f64 / over::LIMIT as f64;
    bars.hold("the most of a limit that passed Acequia", most, most <= 1.0, "at most 1");
    Ok(())
}
