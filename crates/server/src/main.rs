//! The `acequia` binary: the command line of the server and its clients.

use std::{path::PathBuf, process::ExitCode};

use acequia_server::{
    cli,
    clock::{Clock as _, SystemClock},
    config::Config,
    demo::Demo,
    run,
};
use clap::{Parser, Subcommand};

/// mimalloc: a request makes a handful of short-lived allocations, and this is what serves them fastest.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A rate limiter and quota service.
#[derive(Debug, Parser)]
#[command(name = "acequia", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run three regions on this machine that share one budget, with traffic and a live view.
    Demo(Demo),
    /// Run a node.
    Serve {
        /// The config file.
        #[arg(long, default_value = "acequia.yaml")]
        config: PathBuf,
        /// Write logs as JSON.
        #[arg(long)]
        log_json: bool,
        /// Begin as this incarnation, if the `data` folder is empty: for a node that lost its disk and whose clock was ahead
        /// before. It says so when it is needed, with the number.
        #[arg(long, value_name = "N", env = "ACEQUIA_INCARNATION", value_parser = clap::value_parser!(u32).range(1..))]
        incarnation: Option<u32>,
        /// End at once when standard input does: whoever started this process is gone.
        #[arg(long, hide = true)]
        until_stdin_ends: bool,
    },
    /// Ask a node whether a request may pass. Exits 0 if it may, 1 if not, 2 if nobody could say.
    Check(cli::Check),
    /// The same question, charging nothing: every limit that matches, and why others do not.
    Explain(cli::Explain),
    /// Give back what a check charged.
    Refund(cli::Refund),
    /// End a reservation with its real cost.
    Commit(cli::Commit),
    /// Check a config file: every fault with its line.
    Validate {
        /// The config file.
        file: PathBuf,
    },
    /// The global budgets: list them, look at one, change one.
    Budget(cli::Budget),
    /// Give one cell so many units more, until its window ends.
    Grant(cli::Grant),
    /// Give one cell as many units more as it is known to have used.
    Reset(cli::Reset),
    /// Compare a candidate with the limit that it may replace.
    Candidate(cli::Candidate),
    /// The regions: how they stand, as a node sees it; let one in, or out.
    Regions(cli::Regions),
    /// Which node makes the versions of the catalogue; hand that over.
    Authority(cli::Authority),
    /// The store that the nodes of a region share; leave a node out that is gone.
    Store(cli::Store),
    /// Who changed what in the catalogue, and when.
    Audit(cli::Audit),
    /// Make certificates for nodes that share limits, with an authority of their own.
    Certs(cli::Certs),
    /// Compare the clocks that a node would have on this machine with the system's.
    Clock(cli::ClockCheck),
    /// Load a running node, and print throughput and latency.
    Bench(cli::Bench),
    /// Show the regions of a cluster, live.
    Top(cli::Top),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Demo(demo) => wait_for(demo.run()),
        Command::Serve { config, log_json, incarnation, until_stdin_ends } => {
            if until_stdin_ends {
                std::thread::spawn(end_with_stdin);
            }
            serve(&config, incarnation, log_json)
        }
        Command::Check(check) => wait_for(check.run()),
        Command::Explain(explain) => wait_for(explain.run()),
        Command::Refund(refund) => wait_for(refund.run()),
        Command::Commit(commit) => wait_for(commit.run()),
        Command::Validate { file } => validate(&file),
        Command::Budget(budget) => wait_for(budget.run()),
        Command::Grant(grant) => wait_for(grant.run()),
        Command::Reset(reset) => wait_for(reset.run()),
        Command::Candidate(candidate) => wait_for(candidate.run()),
        Command::Regions(regions) => wait_for(regions.run()),
        Command::Authority(authority) => wait_for(authority.run()),
        Command::Store(store) => wait_for(store.run()),
        Command::Audit(audit) => wait_for(audit.run()),
        Command::Certs(certs) => certs.run(),
        Command::Clock(check) => check.run(),
        Command::Bench(bench) => wait_for(bench.run()),
        Command::Top(top) => wait_for(top.run()),
    }
}

/// Runs a client command on this thread.
fn wait_for(command: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(cause) => complain(&format!("cannot start: {cause}")),
    }
}

fn serve(path: &std::path::Path, incarnation: Option<u32>, log_json: bool) -> ExitCode {
    log(log_json);
    let ready = |addresses| say(&format!("listening {addresses}"));
    match run::run(path, incarnation, ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => complain(&fault.to_string()),
    }
}

/// Reads standard input to its end, and then ends this process.
fn end_with_stdin() {
    // A fault is an end as well.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    std::process::exit(0);
}

fn validate(path: &std::path::Path) -> ExitCode {
    let name = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(cause) => return complain(&format!("cannot read {name}: {cause}")),
    };
    match Config::parse(&name, &text) {
        Ok(config) => {
            say(&format!("{name} is sound: {config}"));
            match SystemClock::start() {
                Ok(clock) => config.notes(clock.now().wall_ns).iter().for_each(|note| say(note)),
                Err(fault) => say(&format!("note: {fault}")),
            }
            ExitCode::SUCCESS
        }
        Err(faults) => complain(&faults.to_string()),
    }
}

/// Logs go to standard error; `RUST_LOG` chooses what, `info` where it is not set.
fn log(json: bool) {
    use std::io::IsTerminal as _;

    use tracing_subscriber::{EnvFilter, fmt};
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    if json { builder.json().init() } else { builder.init() }
}

/// Standard output may be closed; then nobody wants to know.
fn say(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn complain(what: &str) -> ExitCode {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{what}");
    ExitCode::from(2)
}
