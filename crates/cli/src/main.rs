//! The `acequia` binary: the command line of the server and its clients.

use std::process::ExitCode;

use acequia_cli::{
    arguments::{Arguments, Command},
    commands,
};
use acequia_server::run;
use clap::Parser as _;

/// A request makes a handful of short-lived allocations, and mimalloc serves these fastest.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if std::env::args_os().any(|word| word == "--json") {
        commands::write_messages_as_json();
    }
    match arguments.command {
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
        Command::Renew(renew) => wait_for(renew.run()),
        Command::Report(report) => wait_for(report.run()),
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
    // An error counts as the end as well.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    std::process::exit(0);
}

/// Starts logging to standard error. `RUST_LOG` chooses the level (`info,acequia_server=debug`); the default,
/// also for an unreadable value, is `info`.
fn log(json: bool) {
    use std::io::IsTerminal as _;

    use tracing_subscriber::{
        Layer as _, filter::Targets, fmt, layer::SubscriberExt as _, registry, util::SubscriberInitExt as _,
    };
    let chosen = std::env::var("RUST_LOG").ok().and_then(|chosen| chosen.parse::<Targets>().ok());
    let filter = chosen.unwrap_or_else(|| Targets::new().with_default(tracing::Level::INFO));
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
