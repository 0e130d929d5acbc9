//! The demonstration: three regions on this machine that share one budget, under traffic.
//!
//! The nodes are processes of this binary. They speak QUIC to each other, through relays that delay or cut
//! their packets. The callers, and not the nodes, judge whether the limits were passed
//! ([`acequia_limits::oracle`]).

mod classes;
pub mod in_force;
pub mod keys;
pub mod ledger;
pub mod lines;
pub mod links;
pub mod nodes;
pub mod plan;
pub mod scene;
pub mod script;
pub mod stage;
pub mod state;
pub mod story;
pub mod streams;
pub mod traffic;

use std::{
    io::{self, IsTerminal as _, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, value_parser};
use tokio::time::{Interval, MissedTickBehavior, interval};

use self::{
    keys::Order,
    ledger::BIN,
    lines::Outcome,
    script::{SECONDS, SECONDS_MAX, SECONDS_MIN, Script},
    stage::Stage,
};
use crate::screen::{Interrupts, Keyboard, Screen};

/// How many faults the script heals: the links, and a node.
const HEALINGS: usize = 2;

/// Run three regions on this machine that share one budget, under traffic.
///
/// On a terminal: a live view, with keys to cut links, kill regions and change the budget. Otherwise: a line
/// a second, with a split brain and a kill -9 in between, and a verdict. Exits with 0 if the budget was never
/// passed and everything healed, with 1 if not, with 2 if it could not start.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia demo
  acequia demo --seconds 60                               a line a second, for scripts
  acequia demo --classes                                  what classes of consumers do to each other
  acequia demo --classes --peak 60 --refill 400,400,200 --json | jq '.findings[]'
  acequia check --domain demo route=/api --address 127.0.0.1:8181    ask one of its regions")]
pub struct Demo {
    /// Print lines for this many seconds (16, which its script takes, to 86400), and break and heal things
    /// automatically.
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(SECONDS_MIN..=SECONDS_MAX))]
    seconds: Option<u64>,

    /// Print lines and run the script, for 40 seconds.
    #[arg(long)]
    script: bool,

    /// The first port of eu: HTTP here, gRPC on the next, admin on the one after; us is 100 above it, ap 200.
    #[arg(long, default_value_t = plan::BASE_PORT, value_name = "PORT",
          value_parser = value_parser!(u16).range(1..=i64::from(plan::BASE_PORT_MAX)))]
    base_port: u16,

    /// Study classes of consumers under one limit instead: shared, separate, or both. It runs in simulated
    /// time, at once.
    #[arg(long, conflicts_with_all = ["seconds", "script", "base_port"])]
    classes: bool,

    /// Print the study as one line of JSON.
    #[arg(long, requires = "classes")]
    json: bool,

    #[command(flatten)]
    study: classes::parameters::Parameters,
}

/// Why the demonstration failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A port is taken.
    #[error(
        "port {address} ({what} of {region}) cannot be had: {cause}. Stop what listens there, or choose other ports: acequia demo --base-port {other}"
    )]
    Port {
        /// The service that would listen there.
        what: &'static str,
        /// The region.
        region: &'static str,
        /// The address.
        address: SocketAddr,
        /// The system's error.
        cause: io::Error,
        /// Ports to try instead.
        other: u16,
    },
    /// The certificates cannot be made.
    #[error("{0}")]
    Certificates(String),
    /// An address is not valid.
    #[error("{0}")]
    Address(String),
    /// A node is not running.
    #[error("{node} does not run: {why}. Its log is {log}, and ends in:\n{end}")]
    Node {
        /// The node.
        node: String,
        /// The known reason.
        why: String,
        /// The path of its log.
        log: PathBuf,
        /// The end of its log.
        end: String,
    },
    /// The terminal cannot be drawn on.
    #[error("the terminal cannot be drawn on: {0}. Without one: acequia demo --script")]
    Terminal(#[source] io::Error),
    /// The system refused an operation.
    #[error("cannot go on: {0}")]
    System(#[source] io::Error),
    /// The study cannot be made.
    #[error("{0}")]
    Classes(String),
}

impl Demo {
    /// Runs the demonstration, and returns the exit code.
    pub async fn run(self) -> ExitCode {
        match self.play().await {
            Ok(Outcome::Kept) => ExitCode::SUCCESS,
            Ok(Outcome::Over | Outcome::NotHealed) => ExitCode::FAILURE,
            Err(fault) => {
                // Without a standard error, the exit code says enough.
                let _ = writeln!(io::stderr(), "acequia: {fault}");
                ExitCode::from(2)
            }
        }
    }

    async fn play(self) -> Result<Outcome, DemoError> {
        if self.classes {
            let text = if self.json { classes::json_line(&self.study) } else { classes::page(&self.study) };
            print(&text.map_err(|fault| DemoError::Classes(fault.to_string()))?);
            return Ok(Outcome::Kept);
        }
        let mut interrupts = Interrupts::open().map_err(DemoError::System)?;
        let mut stage = Stage::start(self.base_port)?;
        tokio::select! {
            biased;
            () = interrupts.next() => return Err(DemoError::System(io::ErrorKind::Interrupted.into())),
            ready = stage.ready() => ready?,
        }
        let must_heal = if self.script || self.seconds.is_some() || !io::stdout().is_terminal() {
            let seconds = self.seconds.unwrap_or(SECONDS);
            let script = Script::new(Duration::from_secs(seconds));
            let is_complete = print_lines(&mut stage, script, &mut interrupts).await?;
            if is_complete { HEALINGS } else { 0 }
        } else {
            show(&mut stage, &mut interrupts).await?;
            0
        };
        stage.end().await;
        let (text, outcome) = lines::verdict(&stage.state, &stage.ledger(), stage.elapsed(), must_heal);
        print(&format!("\n{text}"));
        if outcome != Outcome::Kept {
            print(&format!("configs, journals and logs are kept in {}\n", stage.keep().display()));
        }
        Ok(outcome)
    }
}

/// Prints a line a second until the script ends or a signal interrupts. Returns whether the script ended.
async fn print_lines(
    stage: &mut Stage,
    mut script: Script,
    interrupts: &mut Interrupts,
) -> Result<bool, DemoError> {
    print(&lines::heading(&stage.state));
    let mut bins = bins();
    let mut told = 0;
    let mut next_line = Duration::from_secs(1);
    // The region that the script kills.
    stage.state.chosen_region = script::VICTIM;
    loop {
        tokio::select! {
            biased;
            () = interrupts.next() => return Ok(false),
            _ = bins.tick() => stage.tick()?,
        }
        let elapsed = stage.elapsed();
        let mut text = String::new();
        if elapsed >= next_line {
            text.push_str(&lines::line(&stage.state, &stage.ledger(), elapsed));
            next_line += Duration::from_secs(1);
        }
        let mut is_over = false;
        while let Some(order) = script.next(elapsed) {
            is_over |= order == Order::Quit;
            stage.carry_out(order)?;
        }
        text.extend(stage.state.story.news(&mut told).map(lines::event));
        print(&text);
        if is_over {
            return Ok(true);
        }
    }
}

/// Shows the live view until the user quits.
async fn show(stage: &mut Stage, interrupts: &mut Interrupts) -> Result<(), DemoError> {
    let mut screen = Screen::open().map_err(DemoError::Terminal)?;
    let mut keyboard = Keyboard::open().map_err(DemoError::System)?;
    let mut bins = bins();
    let mut picture = scene::picture(&stage.state, &stage.ledger(), stage.elapsed());
    loop {
        tokio::select! {
            biased;
            () = interrupts.next() => return Ok(()),
            key = keyboard.next() => match key.map(|key| keys::order(key, stage.state.is_help_shown)) {
                None | Some(Some(Order::Quit)) => return Ok(()),
                Some(Some(order)) => stage.carry_out(order)?,
                Some(None) => {}
            },
            _ = bins.tick() => {
                stage.tick()?;
                if stage.state.heat_is_due(stage.elapsed()) {
                    stage.carry_out(Order::Heat)?;
                }
            }
        }
        if stage.state.is_paused {
            picture.is_paused = true;
            picture.help = scene::help(&stage.state);
        } else {
            picture = scene::picture(&stage.state, &stage.ledger(), stage.elapsed());
        }
        screen.show(&picture).map_err(DemoError::Terminal)?;
    }
}

fn bins() -> Interval {
    let mut bins = interval(BIN);
    // A late bin is longer, and the next one has the usual length.
    bins.set_missed_tick_behavior(MissedTickBehavior::Delay);
    bins
}

/// Prints text. If standard output is closed, nobody wants to know.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
