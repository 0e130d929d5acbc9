//! Acequia beside the fastest server that decides nothing.
//!
//! `cargo bench -p acequia-tests --bench rls` measures Envoy's `ShouldRateLimit`. For each pair it starts the
//! floor server and `acequia serve` in turn on core 0, and sends requests from core 1. Absolute figures
//! depend on the machine, so only the median of the pairs' ratios counts. While others use the machine, the
//! ratio of the servers' CPU times ("by cpu") is steadier. See `USAGE` for the rest.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

#[allow(dead_code, reason = "shared with the comparison of services")]
mod measure;
mod payloads;
#[allow(dead_code, reason = "shared with the comparison of services")]
mod process;

use std::{env, fs, path::PathBuf, process::ExitCode, time::Duration};

use acequia_cli::load::{self, Bound, Load, Work};

use self::{
    measure::{CONNECTIONS, IN_FLIGHT, NOWHERE, Run, build_server, complain, header, median, medians, row},
    process::{Cores, Error, Program, Server},
};

const USAGE: &str = "\
usage: cargo bench -p acequia-tests --bench rls -- [FLAGS]
  --stream            measure CheckStream with 1, 10 and 100 checks a message (there is no floor for it)
  --instructions      count instructions a request under valgrind, for the floor and for acequia
  --pairs N           interleaved pairs (runs with --stream), 7 if absent
  --seconds N         measured seconds of a run, 3 if absent
  --server PATH       the acequia binary; built with the profile dist if absent
  --floor-only        measure the floor servers of every kind and allocator instead
  --floor KIND        tonic, hyper or batched (the fastest) if absent, on mimalloc";

const CHECK_STREAM: &str = "/acequia.v1.Limiter/CheckStream";

const KEYS: [usize; 2] = [1, 100_000];
/// Checks in a stream message, and messages in flight on the stream.
const BATCHES: [(usize, usize); 3] = [(1, 32), (10, 16), (100, 8)];
/// Requests of the shorter and the longer run under valgrind. The difference of the two excludes the start,
/// the connections and the filling of caches.
const COUNTED: [u64; 2] = [5_000, 25_000];
/// Like `COUNTED`, in stream messages, each of which takes up to a hundred times as long.
const COUNTED_MESSAGES: [u64; 2] = [500, 2_500];

struct Flags {
    stream: bool,
    instructions: bool,
    floor_only: bool,
    pairs: usize,
    measured: Duration,
    server: Option<PathBuf>,
    floor: String,
}

impl Flags {
    fn parse() -> Result<Self, Error> {
        let mut flags = Self {
            stream: false,
            instructions: false,
            floor_only: false,
            pairs: 7,
            measured: Duration::from_secs(3),
            server: None,
            floor: "batched".to_owned(),
        };
        let mut arguments = env::args().skip(1);
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().ok_or(USAGE);
            match flag.as_str() {
                "--bench" => {} // from cargo
                "--stream" => flags.stream = true,
                "--instructions" => flags.instructions = true,
                "--floor-only" => flags.floor_only = true,
                "--pairs" => flags.pairs = value()?.parse()?,
                "--seconds" => flags.measured = Duration::from_secs(value()?.parse()?),
                "--server" => flags.server = Some(value()?.into()),
                "--floor" => flags.floor = value()?,
                _ => return Err(USAGE.into()),
            }
        }
        if flags.pairs == 0 || flags.measured.is_zero() {
            return Err(USAGE.into());
        }
        Ok(flags)
    }
}

fn main() -> ExitCode {
    match bench() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn bench() -> Result<(), Error> {
    let flags = Flags::parse()?;
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("acequia.yaml");
    fs::write(&config, payloads::CONFIG)?;
    // Build before this process is pinned to a core: the compiler may use every core.
    let ours = match (&flags.server, flags.floor_only) {
        (_, true) => PathBuf::new(),
        (Some(path), _) => path.clone(),
        (None, _) => build_server()?,
    };
    let bench = Bench { cores: Cores::split(), ours, config, folder: folder.path().to_owned(), flags };
    match &bench.flags {
        Flags { floor_only: true, .. } => bench.floors(),
        Flags { instructions: true, .. } => bench.instructions(),
        Flags { stream: true, .. } => bench.streams(),
        _ => bench.pairs(),
    }
}

struct Bench {
    cores: Cores,
    flags: Flags,
    ours: PathBuf,
    config: PathBuf,
    folder: PathBuf,
}

impl Bench {
    /// Prints the comparison.
    fn pairs(&self) -> Result<(), Error> {
        for keys in KEYS {
            println!("\nShouldRateLimit, keys: {keys}, {CONNECTIONS} connections × {IN_FLIGHT} in flight");
            println!("{:6}{:>42}{:>42}", "", "floor", "acequia");
            println!("{:6}{1}{1}{2:>8}{3:>8}", "pair", header(), "ratio", "by cpu");
            let load = self.unary(keys);
            let (mut ratios, mut ratios_by_cpu) = (Vec::new(), Vec::new());
            let (mut floors, mut ours) = (Vec::new(), Vec::new());
            for pair in 1..=self.flags.pairs {
                // The order alternates, so that a machine that slows down favours neither side.
                let (floor, our) = if pair % 2 == 1 {
                    let floor = self.measure(&self.floor(), &load)?;
                    (floor, self.measure(&self.ours(), &load)?)
                } else {
                    let our = self.measure(&self.ours(), &load)?;
                    (self.measure(&self.floor(), &load)?, our)
                };
                let ratio = our.report.requests_per_s / floor.report.requests_per_s;
                let by_cpu = floor.cpu_s_per_million / our.cpu_s_per_million;
                println!("{pair:<6}{}{}{ratio:>8.3}{by_cpu:>8.3}", row(&floor), row(&our));
                ratios.push(ratio);
                ratios_by_cpu.push(by_cpu);
                floors.push(floor);
                ours.push(our);
            }
            let (ratio, by_cpu) = (median(ratios), median(ratios_by_cpu));
            println!("median{}{}{ratio:>8.3}{by_cpu:>8.3}", medians(&floors), medians(&ours));
        }
        Ok(())
    }

    /// Measures our streams.
    fn streams(&self) -> Result<(), Error> {
        for keys in KEYS {
            for (checks, in_flight) in BATCHES {
                println!(
                    "\nCheckStream, {checks} checks a message, keys: {keys}, {CONNECTIONS} connections × 1 stream \
                     × {in_flight} in flight"
                );
                println!("run   {}{:>14}", header(), "decisions/s");
                let load = self.stream(keys, checks, in_flight);
                let mut runs = Vec::new();
                for run in 1..=self.flags.pairs {
                    let measured = self.measure(&self.ours(), &load)?;
                    println!("{run:<6}{}{:>14.0}", row(&measured), measured.report.decisions_per_s);
                    runs.push(measured);
                }
                let decisions = median(runs.iter().map(|run| run.report.decisions_per_s).collect());
                println!("median{}{decisions:>14.0}", medians(&runs));
            }
        }
        Ok(())
    }

    /// Compares all floor servers.
    fn floors(&self) -> Result<(), Error> {
        let system = env!("CARGO_BIN_EXE_floor_system");
        let mimalloc = env!("CARGO_BIN_EXE_floor_mimalloc");
        let load = self.unary(1);
        println!("{:6}{:20}{}", "round", "server", header());
        for round in 1..=self.flags.pairs {
            for (allocator, program) in [("system", system), ("mimalloc", mimalloc)] {
                for kind in ["tonic", "hyper", "batched"] {
                    let run = self.measure(&Program::new(program, ["--kind", kind]), &load)?;
                    println!("{round:<6}{:20}{}", format!("{kind} {allocator}"), row(&run));
                }
            }
        }
        Ok(())
    }

    /// Counts instructions a request, without the machine's noise.
    fn instructions(&self) -> Result<(), Error> {
        println!(
            "instructions a request: the difference of {COUNTED:?} requests, {COUNTED_MESSAGES:?} messages"
        );
        for keys in KEYS {
            let floor = self.count(&self.floor(), &self.unary(keys), COUNTED)?;
            let ours = self.count(&self.ours(), &self.unary(keys), COUNTED)?;
            let ratio = floor / ours;
            println!("keys {keys:>7}: floor {floor:>8.0}  acequia {ours:>8.0}  floor / acequia {ratio:.3}");
        }
        if self.flags.stream {
            for (checks, in_flight) in BATCHES {
                let load = self.stream(KEYS[1], checks, in_flight);
                let a_message = self.count(&self.ours(), &load, COUNTED_MESSAGES)?;
                let a_check = a_message / checks as f64;
                println!("{checks:>3} checks a message: {a_check:>8.0} a check, {a_message:>8.0} a message");
            }
        }
        Ok(())
    }

    fn measure(&self, program: &Program, load: &Load) -> Result<Run, Error> {
        let server = self.cores.start(program)?;
        let run = measure::measure(&self.at(&server, load), &server, None)?;
        server.stop()?;
        Ok(run)
    }

    /// A server's instructions a request, from a shorter and a longer run.
    fn count(&self, program: &Program, load: &Load, counted: [u64; 2]) -> Result<f64, Error> {
        let mut totals = [0.0; 2];
        for (total, requests) in totals.iter_mut().zip(counted) {
            let output = self.folder.join("callgrind.out");
            let server = self.cores.start(&program.under_callgrind(&output))?;
            let load = Load {
                warm_up: Duration::ZERO,
                bound: Bound::Requests(requests),
                stall_timeout: Duration::from_secs(60),
                ..self.at(&server, load)
            };
            complain(&load::run(&load)?);
            server.stop()?;
            let profile = fs::read_to_string(&output)?;
            let summary = profile
                .lines()
                .find_map(|line| line.strip_prefix("totals: ").or_else(|| line.strip_prefix("summary: ")));
            *total = summary.ok_or("callgrind wrote no totals")?.trim().parse()?;
        }
        Ok((totals[1] - totals[0]) / (counted[1] - counted[0]) as f64)
    }

    fn floor(&self) -> Program {
        Program::new(env!("CARGO_BIN_EXE_floor_mimalloc"), ["--kind", &self.flags.floor])
    }

    fn ours(&self) -> Program {
        Program::new(&self.ours, ["serve".as_ref(), "--config".as_ref(), self.config.as_os_str()])
    }

    fn unary(&self, keys: usize) -> Load {
        measure::unary(payloads::rate_limit_requests(keys))
    }

    fn stream(&self, keys: usize, checks: usize, in_flight: usize) -> Load {
        let payloads = payloads::check_batches(keys, checks);
        let mut load = Load::stream(NOWHERE.into(), CHECK_STREAM, payloads, load::check_batch_decisions);
        load.work = Work::Stream { streams: 1, in_flight, decisions: load::check_batch_decisions };
        load
    }

    /// The load on this server, with the bounds of this benchmark.
    fn at(&self, server: &Server, load: &Load) -> Load {
        measure::bounded(load, server, self.flags.measured)
    }
}
