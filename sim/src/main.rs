//! The `acequia-sim` binary.

use std::{
    fmt::Write as _,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use acequia_sim::{
    run::{Record, run},
    scenarios::{self, Scenario},
    trace::Trace,
};
use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The real server in a simulated world that a seed breaks.
#[derive(Debug, Parser)]
#[command(name = "acequia-sim", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a scenario with a seed. Exits 1 if something is found.
    Run {
        /// Its name: see `list`.
        scenario: String,
        /// Decides everything.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Write every event and every packet to this file.
        #[arg(long)]
        trace: Option<PathBuf>,
    },
    /// The scenarios.
    List,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run { scenario, seed, trace } => match scenarios::named(&scenario) {
            Some(scenario) => run_one(&scenario, seed, trace.as_deref()),
            None => complain(&format!("no scenario {scenario}: see `acequia-sim list`")),
        },
        Command::List => {
            for Scenario { name, story, .. } in scenarios::ALL {
                say(&format!("{name:<14} {story}"));
            }
            ExitCode::SUCCESS
        }
    }
}

fn run_one(scenario: &Scenario, seed: u64, file: Option<&Path>) -> ExitCode {
    let trace = if file.is_some() { Trace::whole() } else { Trace::default() };
    let record = match run(scenario, seed, &trace) {
        Ok(record) => record,
        Err(fault) => return complain(&fault.to_string()),
    };
    if let Some(file) = file
        && let Err(fault) = trace.write(file)
    {
        return complain(&format!("cannot write {}: {fault}", file.display()));
    }
    say(&summary(scenario, seed, &record));
    if record.findings.is_empty() {
        return ExitCode::SUCCESS;
    }
    for (host, lines) in trace.last() {
        say(&format!("\nthe last of {host}:"));
        lines.iter().for_each(|line| say(&format!("{:10.3} s  {}", line.at.as_secs_f64(), line.what)));
    }
    ExitCode::FAILURE
}

fn summary(scenario: &Scenario, seed: u64, record: &Record) -> String {
    let Record { plan, regions, findings, notes, hash, counts: (events, packets, bytes), took } = record;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{} --seed {seed}: {}", scenario.name, scenario.story);
    let _ = write!(text, "{}", plan.schedule);
    for (name, counts) in regions {
        let (allowed, denied, silent) = (counts.allowed, counts.denied, counts.silent);
        let _ = writeln!(text, "{name:>8}  {allowed} allowed, {denied} denied, {silent} not answered");
    }
    for note in notes {
        let _ = writeln!(text, "{note}");
    }
    let _ = writeln!(
        text,
        "{:.0} s of {} regions in {:.2} s; {events} events, {packets} packets, {} kB; trace {hash:016x}",
        plan.duration.as_secs_f64(),
        plan.regions,
        took.as_secs_f64(),
        bytes / 1_000,
    );
    if findings.is_empty() {
        text.push_str("nothing found");
    }
    for finding in findings {
        let _ = writeln!(text, "FOUND {finding}");
    }
    if !findings.is_empty() {
        let name = scenario.name;
        let _ = write!(text, "again: cargo run --release -p acequia-sim -- run {name} --seed {seed}");
    }
    text
}

/// Standard output may be closed; then nobody wants to know.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn complain(what: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{what}");
    ExitCode::from(2)
}
