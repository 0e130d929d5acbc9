//! The `acequia-sim` binary.

use std::{
    fmt::Write as _,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use acequia_sim::{
    compare::{self, Form},
    file::ScheduleFile,
    many::{Job, Outcome, run_all},
    minimise::{kind_of, minimise},
    progress::Progress,
    report::{self, Shown},
    run::{Record, run_plan},
    scenarios::{self, Plan, Scenario},
    schedule::Schedule,
    series::run_watched,
    trace::{Line, Trace},
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
    /// Run a scenario with a seed, or with many. Exits 1 if something is found.
    Run {
        /// The name of a scenario, as `list` shows it; `all` runs every one.
        #[arg(required_unless_present_any = ["schedule", "all"])]
        scenario: Option<String>,
        /// Run every scenario.
        #[arg(long, conflicts_with = "schedule")]
        all: bool,
        /// The seed, which decides everything.
        #[arg(long, default_value_t = 1, conflicts_with_all = ["seeds", "schedule"])]
        seed: u64,
        /// Run this many seeds, and print only findings.
        #[arg(long)]
        seeds: Option<u64>,
        /// The first of the seeds.
        #[arg(long, default_value_t = 1, requires = "seeds")]
        from: u64,
        /// Run this many at a time; by default as many as there are cores.
        #[arg(long)]
        jobs: Option<usize>,
        /// Take the faults, the scenario and the seed from this file, which `minimise --out` wrote.
        #[arg(long, conflicts_with_all = ["seeds", "scenario"])]
        schedule: Option<PathBuf>,
        /// Write every event and every packet to this file.
        #[arg(long, conflicts_with = "seeds")]
        trace: Option<PathBuf>,
        /// Write a page that shows the run to this file.
        #[arg(long, conflicts_with_all = ["seeds", "all"])]
        report: Option<PathBuf>,
    },
    /// Compare the real server with other ways of limiting, under the same demand and faults.
    Compare {
        /// Names of scenarios; by default all.
        scenarios: Vec<String>,
        /// The seed, which decides everything.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Write tables for a README.
        #[arg(long)]
        markdown: bool,
    },
    /// Remove from a failing run's schedule all faults that the failure does not need.
    Minimise {
        /// The scenario.
        #[arg(required_unless_present = "schedule")]
        scenario: Option<String>,
        /// The seed that fails.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Start with this file's schedule, scenario and seed.
        #[arg(long, conflicts_with_all = ["scenario", "seed"])]
        schedule: Option<PathBuf>,
        /// Run it at most this often.
        #[arg(long, default_value_t = 300)]
        tries: usize,
        /// Write the smaller schedule to this file, for `run --schedule`.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Remove one rule of the server after the other: each must be noticed. Only in a build with the feature
    /// `mutations`.
    Kill {
        /// Only rules that take a few seconds, with a few seeds.
        #[arg(long)]
        quick: bool,
        /// The number of seeds of each scenario of a rule.
        #[arg(long)]
        seeds: Option<u64>,
        /// Only this rule.
        rule: Option<String>,
    },
    /// List the scenarios, and the subject of each.
    List,
}

/// Columns of a list on a terminal that does not tell its width.
const COLUMNS: usize = 100;
/// Events of each host that are shown.
const LINES_MAX: usize = 12;
/// Failing runs that are shown in full.
const SHOWN_MAX: usize = 5;

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run { schedule: Some(file), trace, report, .. } => run_file(&file, &Files { trace, report }),
        Command::Run { scenario, all, seed, seeds, from, jobs, trace, report, .. } => {
            let name = scenario.filter(|_| !all).unwrap_or_else(|| "all".to_owned());
            match (name.as_str(), seeds) {
                ("all", seeds) => Ok(run_many(&scenarios::ALL, from.max(seed), seeds.unwrap_or(1), jobs)),
                (name, Some(seeds)) => named(name).map(|one| run_many(&[one], from, seeds, jobs)),
                (name, None) => {
                    let again = format!("run {name} --seed {seed}");
                    let files = Files { trace, report };
                    named(name).and_then(|one| run_one(&one, one.plan_of(seed), seed, &files, &again))
                }
            }
        }
        Command::Minimise { scenario, seed, schedule, tries, out } => {
            let stored = match schedule {
                Some(file) => read(&file),
                None => named(&scenario.unwrap_or_default()).map(|scenario| {
                    let (scenario, schedule) = (scenario.name.to_owned(), scenario.plan_of(seed).schedule);
                    ScheduleFile { scenario, seed, schedule }
                }),
            };
            stored.and_then(|stored| minimise_one(&stored, tries, out.as_deref()))
        }
        Command::Compare { scenarios, seed, markdown } => {
            compare_all(&scenarios, seed, if markdown { Form::Markdown } else { Form::Plain })
        }
        Command::Kill { quick, seeds, rule } => kill_all(quick, seeds, rule.as_deref()),
        Command::List => {
            scenarios::ALL.iter().for_each(|scenario| say(&listed(scenario)));
            Ok(ExitCode::SUCCESS)
        }
    };
    done.unwrap_or_else(|fault| {
        let _ = writeln!(std::io::stderr(), "{fault}");
        ExitCode::from(2)
    })
}

#[cfg(not(feature = "mutations"))]
fn kill_all(_: bool, _: Option<u64>, _: Option<&str>) -> Result<ExitCode, String> {
    let again = "cargo run --profile suite -p acequia-sim --features mutations -- kill";
    Err(format!("no rule can be left out of this build: {again}"))
}

#[cfg(feature = "mutations")]
fn kill_all(quick: bool, seeds: Option<u64>, only: Option<&str>) -> Result<ExitCode, String> {
    use acequia_sim::kill::{Killed, RULES, kill};

    std::panic::set_hook(Box::new(|_| ()));
    let chosen =
        RULES.iter().filter(|rule| only.is_none_or(|only| only == rule.name) && (rule.is_quick || !quick));
    let rules: Vec<_> = chosen.collect();
    let seeds = seeds.unwrap_or(if quick { 40 } else { 100 });
    let (next, table) = (std::sync::atomic::AtomicUsize::new(0), std::sync::Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            // A rule is removed in one thread only, and a simulation runs in one thread.
            scope.spawn(|| {
                while let Some(rule) = rules.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    let killed = kill(rule, seeds);
                    let line = match &killed {
                        Some(killed) => {
                            let Killed { seeds, scenario, seed, finding } = killed;
                            let at = format!("{scenario} --seed {seed}");
                            let what: String = finding.chars().take(COLUMNS).collect();
                            let check = killed.check();
                            format!("{:<26} {seeds:>5}  {check:<19} {at:<24}  {what}", rule.name)
                        }
                        None => format!("{:<26} {seeds:>5}  SURVIVES", rule.name),
                    };
                    say(&line);
                    table.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(killed.is_some());
                }
            });
        }
    });
    let table = table.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let survivors = table.iter().filter(|killed| !**killed).count();
    say(&format!("{} rules, {survivors} survive", table.len()));
    Ok(if survivors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn named(name: &str) -> Result<Scenario, String> {
    scenarios::named(name).ok_or_else(|| format!("no scenario {name}: see `acequia-sim list`"))
}

/// The files that a run is to write.
struct Files {
    trace: Option<PathBuf>,
    report: Option<PathBuf>,
}

fn run_one(
    scenario: &Scenario,
    plan: Plan,
    seed: u64,
    files: &Files,
    again: &str,
) -> Result<ExitCode, String> {
    let trace = if files.trace.is_some() { Trace::whole() } else { Trace::default() };
    let unwritten = |file: &Path, fault: String| format!("cannot write {}: {fault}", file.display());
    let record = if let Some(file) = &files.report {
        let (record, series) = run_watched(plan, seed, &trace).map_err(|fault| fault.to_string())?;
        let rival = compare::gossip_in(&record, &series, seed);
        let (shown_record, series) = (&record, &series);
        let page = report::page(Shown {
            scenario,
            seed,
            again,
            record: shown_record,
            series,
            rival: rival.as_ref(),
        });
        let page =
            page.ok_or_else(|| unwritten(file, "no limit of this scenario can be shown".to_owned()))?;
        std::fs::write(file, page).map_err(|fault| unwritten(file, fault.to_string()))?;
        record
    } else {
        run_plan(plan, seed, &trace).map_err(|fault| fault.to_string())?
    };
    if let Some(file) = &files.trace {
        trace.write(file).map_err(|fault| unwritten(file, fault.to_string()))?;
    }
    say(&summary(scenario, seed, &record, again));
    if record.findings.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    say(&last_of(&trace.last()));
    Ok(ExitCode::FAILURE)
}

fn run_file(file: &Path, files: &Files) -> Result<ExitCode, String> {
    let stored = read(file)?;
    let (scenario, seed) = (named(&stored.scenario)?, stored.seed);
    let plan = stored.plan_of(&scenario)?;
    run_one(&scenario, plan, seed, files, &format!("run --schedule {}", file.display()))
}

fn compare_all(names: &[String], seed: u64, form: Form) -> Result<ExitCode, String> {
    names.iter().try_for_each(|name| named(name).map(drop))?;
    let is_wanted = |scenario: &&Scenario| names.is_empty() || names.iter().any(|name| name == scenario.name);
    let mut comparisons = Vec::new();
    for scenario in scenarios::ALL.iter().filter(is_wanted) {
        let comparison = compare::compare(scenario, seed).map_err(|fault| fault.to_string())?;
        if let Some(comparison) = comparison {
            say(&compare::table(&comparison, form));
            comparisons.push(comparison);
        }
    }
    if comparisons.len() > 1 {
        say(&compare::overall(&comparisons, form));
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> Result<ScheduleFile, String> {
    let unread = |fault: String| format!("cannot read {}: {fault}", file.display());
    let text = std::fs::read_to_string(file).map_err(|fault| unread(fault.to_string()))?;
    ScheduleFile::read(&text).map_err(unread)
}

fn run_many(scenarios: &[Scenario], from: u64, seeds: u64, jobs: Option<usize>) -> ExitCode {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let at_a_time = jobs.unwrap_or_else(cores);
    let total = seeds * scenarios.len() as u64;
    let runs = scenarios.iter().flat_map(|one| (from..from + seeds).map(|seed| Job::new(*one, seed)));
    let (mut progress, begun) = (Progress::new(total), std::time::Instant::now());
    let (mut found, mut cpu_s) = (Vec::new(), 0.0);
    run_all(runs, at_a_time, &Vec::new, |outcome| {
        let fails = !outcome.findings().is_empty();
        progress.step(fails);
        cpu_s += outcome.took().as_secs_f64();
        if fails {
            if found.len() < SHOWN_MAX {
                progress.clear();
                say(&failure(&outcome));
            }
            found.push((outcome.job.scenario.name, outcome.job.seed, outcome.findings().join("; ")));
        }
    });
    progress.clear();
    let took_s = begun.elapsed().as_secs_f64();
    let names = if let [one] = scenarios { one.name } else { "all scenarios" };
    say(&format!(
        "{total} runs of {names}, seeds {from} to {}, {at_a_time} at a time, in {took_s:.0} s; {:.2} s each",
        from + seeds - 1,
        cpu_s / total as f64
    ));
    if found.is_empty() {
        say("nothing found");
        return ExitCode::SUCCESS;
    }
    found.sort();
    say(&format!("{} runs FOUND something:", found.len()));
    found.iter().for_each(|(name, seed, what)| say(&format!("  run {name} --seed {seed}    {what}")));
    ExitCode::FAILURE
}

fn minimise_one(stored: &ScheduleFile, tries: usize, out: Option<&Path>) -> Result<ExitCode, String> {
    let ScheduleFile { seed, schedule, .. } = stored;
    let scenario = named(&stored.scenario)?;
    stored.plan_of(&scenario)?;
    let run = |schedule: &Schedule| {
        let plan = Plan { schedule: schedule.clone(), ..scenario.plan_of(*seed) };
        Job { scenario, seed: *seed, plan: Some(plan) }.run(&Vec::new)
    };
    let first = run(schedule);
    let finding = first.findings().first().ok_or("nothing is found, so there is nothing to keep")?;
    say(&format!("to be kept: {finding}"));
    let mut tried = 0;
    let small = minimise(schedule, tries, |schedule| {
        let outcome = run(schedule);
        let fails = outcome.findings().iter().any(|found| kind_of(found) == kind_of(finding));
        tried += 1;
        if fails {
            say(&format!("{:4} faults after {tried} runs", schedule.faults().len()));
        }
        fails
    });
    let (before, after) = (schedule.faults().len(), small.faults().len());
    say(&format!("\n{after} of {before} faults are enough:\n{small}"));
    let last = run(&small);
    say(&format!("{}\n{}", last.findings().join("\n"), last_of(&last.last)));
    if let Some(out) = out {
        let text = ScheduleFile { schedule: small, ..stored.clone() }.to_text();
        std::fs::write(out, text).map_err(|fault| format!("cannot write {}: {fault}", out.display()))?;
        say(&replay(&format!("run --schedule {}", out.display())));
    }
    Ok(ExitCode::FAILURE)
}

/// A failing run: the line that replays it, its faults, and the last events.
fn failure(outcome: &Outcome) -> String {
    let Job { scenario, seed, .. } = &outcome.job;
    let (last, again) = (last_of(&outcome.last), format!("run {} --seed {seed}", scenario.name));
    match &outcome.record {
        Ok(record) => format!("{}\n{last}", summary(scenario, *seed, record, &again)),
        Err(fault) => format!("{again}\nFOUND {fault}\n{}\n{last}", replay(&again)),
    }
}

fn last_of(hosts: &[(String, Vec<Line>)]) -> String {
    let mut text = String::new();
    for (host, lines) in hosts {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\nthe last of {host}:");
        for line in &lines[lines.len().saturating_sub(LINES_MAX)..] {
            let _ = writeln!(text, "{:10.3} s  {}", line.at.as_secs_f64(), line.what);
        }
    }
    text
}

/// The command line that runs something again.
fn replay(what: &str) -> String {
    format!("again: cargo run --release -p acequia-sim -- {what}")
}

/// A scenario's name and its story, wrapped.
fn listed(scenario: &Scenario) -> String {
    let indent = scenarios::ALL.iter().map(|one| one.name.len()).max().unwrap_or(0) + 2;
    let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(COLUMNS);
    let mut text = format!("{:indent$}", scenario.name);
    let mut column = indent;
    for word in scenario.story.split_whitespace() {
        if column > indent && column + word.chars().count() > width.max(indent + 20) {
            let _ = write!(text, "\n{:indent$}", "");
            column = indent;
        }
        let space = if column > indent { " " } else { "" };
        let _ = write!(text, "{space}{word}");
        column += space.len() + word.chars().count();
    }
    text
}

fn summary(scenario: &Scenario, seed: u64, record: &Record, again: &str) -> String {
    let Record { plan, regions, findings, notes, hash, totals, took } = record;
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
        "{:.0} s of {} regions in {:.2} s; {} events, {} packets, {} kB; trace {hash:016x}",
        plan.duration.as_secs_f64(),
        plan.regions,
        took.as_secs_f64(),
        totals.events,
        totals.packets,
        totals.packet_bytes / 1_000,
    );
    if findings.is_empty() {
        text.push_str("nothing found");
    }
    for finding in findings {
        let _ = writeln!(text, "FOUND {finding}");
    }
    if !findings.is_empty() {
        text.push_str(&replay(again));
    }
    text
}

/// Prints a line. If standard output is closed, nobody wants to know.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
