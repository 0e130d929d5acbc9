//! The `acequia` binary: the command line of the server and its clients.

use std::process::ExitCode;

use acequia_cli::{
    arguments::{Arguments, Command, ReplacedService},
    commands,
};
use acequia_server::{
    ratelimit::Environment,
    run::{self, Start},
};
use clap::Parser as _;

/// A request makes a handful of short-lived allocations, and mimalloc serves these fastest.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if is_started_as_ratelimit() {
        return serve_as_ratelimit();
    }
    let arguments = Arguments::parse();
    if std::env::args_os().any(|word| word == "--json") {
        commands::write_messages_as_json();
    }
    match arguments.command {
        Command::Demo(demo) => wait_for(demo.run()),
        Command::Serve { in_place_of: Some(ReplacedService::Ratelimit), .. } => serve_as_ratelimit(),
        Command::Serve { config, ratelimit_config, log_json, incarnation, until_stdin_ends, .. } => {
            if until_stdin_ends {
                std::thread::spawn(end_with_stdin);
            }
            let config = match ratelimit_config {
                None => Some(config.unwrap_or_else(|| "acequia.yaml".into())),
                Some(_) => config,
            };
            log(log_json, "info");
            serve(&Start { config, ratelimit_config, incarnation, ..Start::default() })
        }
        Command::Check(check) => wait_for(check.run()),
        Command::Explain(explain) => wait_for(explain.run()),
        Command::Refund(refund) => wait_for(refund.run()),
        Command::Commit(commit) => wait_for(commit.run()),
        Command::Renew(renew) => wait_for(renew.run()),
        Command::Report(report) => wait_for(report.run()),
        Command::Import(import) => import.run(),
        Command::Validate(validate) => wait_for(validate.run()),
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

/// Whether the binary bears the name of envoyproxy/ratelimit, as in an image that takes the place of that service's.
fn is_started_as_ratelimit() -> bool {
    let name = std::env::args_os().next().map(std::path::PathBuf::from);
    name.is_some_and(|path| path.file_name().is_some_and(|name| name == "ratelimit"))
}

/// Runs a node by the environment variables of envoyproxy/ratelimit.
fn serve_as_ratelimit() -> ExitCode {
    match Environment::read(
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    ) {
        Ok(Environment { start, log_level, log_json, notes }) => {
            log(log_json, log_level);
            for note in notes {
                tracing::warn!("{note}");
            }
            serve(&start)
        }
        Err(faults) => complain(&faults.join("\n")),
    }
}

fn serve(start: &Start) -> ExitCode {
    let ready = |addresses| say(&format!("listening {addresses}"));
    match run::run(start, ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => complain(&fault.to_string()),
    }
}

/// Reads standard input to its end, and then ends this process.
fn end_with_stdin() {
    // An error counts as the end as well.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    std::process::exit(0);
}

/// Starts logging to standard error. `RUST_LOG` chooses the level (`info,acequia_server=debug`); the default,
/// also for an unreadable value, is `least`.
fn log(json: bool, least: &str) {
    use std::io::IsTerminal as _;

    use tracing_subscriber::{
        Layer as _, filter::Targets, fmt, layer::SubscriberExt as _, registry, util::SubscriberInitExt as _,
    };
    let chosen = std::env::var("RUST_LOG").ok().and_then(|chosen| chosen.parse::<Targets>().ok());
    let least = least.parse().unwrap_or(tracing::Level::INFO);
    let filter = chosen.unwrap_or_else(|| Targets::new().with_default(least));
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let lines = if json { lines.json().boxed() } else { lines.boxed() };
    registry().with(lines).with(filter).init();
}

/// Prints a line. If standard output is closed, nobody wants to know.
fn say(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn complain(what: &str) -> ExitCode {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{what}");
    ExitCode::from(2)
}
