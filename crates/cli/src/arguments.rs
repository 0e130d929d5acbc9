//! The arguments of `acequia`.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::{commands, demo::Demo};

/// A rate limiter and quota service.
#[derive(Debug, Parser)]
#[command(name = "acequia", version)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A service whose place a node can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReplacedService {
    /// envoyproxy/ratelimit, the Go service.
    Ratelimit,
}

/// A command with its arguments.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run three regions on this machine that share one budget, with traffic and a live view.
    Demo(Demo),
    /// Run a node.
    Serve {
        /// The config file. By default `acequia.yaml`, or none if there is a `--ratelimit-config`.
        #[arg(long)]
        config: Option<PathBuf>,
        /// A folder of configs of envoyproxy/ratelimit, whose limits this node then counts too.
        #[arg(long, value_name = "DIR")]
        ratelimit_config: Option<PathBuf>,
        /// Take the place of another service: read its environment variables, and listen on its ports. A binary
        /// named `ratelimit` does so by itself.
        #[arg(long = "as", value_name = "SERVICE", value_enum, conflicts_with_all = ["config", "ratelimit_config"])]
        in_place_of: Option<ReplacedService>,
        /// Write logs as JSON.
        #[arg(long)]
        log_json: bool,
        /// Begin as this incarnation if the `data` folder is empty. A node needs this after it lost its disk
        /// if its clock had been ahead. The node asks for it when it is needed, with the number.
        #[arg(long, value_name = "N", env = "ACEQUIA_INCARNATION", value_parser = clap::value_parser!(u32).range(1..))]
        incarnation: Option<u32>,
        /// End at once when standard input ends, because the process that started this one is gone.
        #[arg(long, hide = true)]
        until_stdin_ends: bool,
    },
    /// Ask a node whether a request may pass. Exits 0 if it may, 1 if not, 2 if nobody could say.
    Check(commands::Check),
    /// Ask what `check` asks, charging nothing: every limit that matches, and why others do not.
    Explain(commands::Explain),
    /// Give back what a check charged.
    Refund(commands::Refund),
    /// End a reservation with its real cost.
    Commit(commands::Commit),
    /// Renew the slots of a request that is still under way.
    Renew(commands::Renew),
    /// Record a cost that was spent already, whatever is left.
    Report(commands::Report),
    /// Print the limits of another rate limiter's config as ours, and what differs.
    Import(commands::Import),
    /// Check a config file: every fault with its line.
    Validate(commands::Validate),
    /// The global budgets: list them, look at one, change one.
    Budget(commands::Budget),
    /// Give one cell more units until its window ends.
    Grant(commands::Grant),
    /// Give one cell as many more units as it is known to have used.
    Reset(commands::Reset),
    /// Compare a candidate with the limit that it may replace.
    Candidate(commands::Candidate),
    /// The regions: their state as a node sees it; add or remove one.
    Regions(commands::Regions),
    /// Show which node makes the versions of the catalogue, or make another node the authority.
    Authority(commands::Authority),
    /// The store that the nodes of a region share; exclude a node that is gone.
    Store(commands::Store),
    /// Who changed what in the catalogue, and when.
    Audit(commands::Audit),
    /// Make certificates for nodes that share limits, with an authority of their own.
    Certs(commands::Certs),
    /// Compare the clocks that a node would have on this machine with the system's clocks.
    Clock(commands::ClockCheck),
    /// Load a running node, and print throughput and latency.
    Bench(commands::Bench),
    /// Show the regions of a cluster, live.
    Top(commands::Top),
}
