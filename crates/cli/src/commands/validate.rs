//! `acequia validate`: every fault of a config file with its line, and what the file would change on a
//! running node.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    path::PathBuf,
    process::ExitCode,
};

use acequia_api::acequia::v1::Budget;
use acequia_limits::{Limit, limit::LimitSpec};
use acequia_server::{
    clock::{Clock as _, SystemClock},
    config::{self, Config},
};
use clap::Args;
use serde::Serialize;

use super::{
    COULD_NOT_ASK, Output, SUCCESS, complain, json_line,
    operator::{Credentials, Fault},
};

/// Check a config file: every fault with its line.
///
/// With --address, also print what the file would change on a running node. Nothing changes.
#[derive(Args, Clone, Debug)]
pub struct Validate {
    /// The config file.
    file: PathBuf,

    /// The admin address (listen.admin) of a node to compare the file's limits with.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    credentials: Credentials,
}

/// The result for a file, as JSON.
#[derive(Debug, Serialize)]
struct ValidateJson<'a> {
    file: &'a str,
    is_sound: bool,
    faults: Vec<FaultJson<'a>>,
    notes: &'a [String],
}

#[derive(Debug, Serialize)]
struct FaultJson<'a> {
    /// The line, from 1; 0 if the fault concerns the whole file.
    line: u64,
    what: &'a str,
}

impl Validate {
    /// Reads the file, prints faults or notes, and returns the exit code.
    pub async fn run(self) -> ExitCode {
        let name = self.file.display().to_string();
        let text = match config::read_text(&self.file) {
            Ok(text) => text,
            Err(cause) => return complain(&format!("cannot read {name}: {cause}")),
        };
        let config = match Config::parse(&name, &text) {
            Ok(config) => config,
            Err(found) if self.json => {
                let faults =
                    found.faults.iter().map(|fault| FaultJson { line: fault.line, what: &fault.what });
                let faults = faults.collect();
                let json = ValidateJson { file: &name, is_sound: false, faults, notes: &[] };
                return Output::new().end(&json_line(&json), COULD_NOT_ASK);
            }
            Err(faults) => {
                // Each line begins with the place, as compilers write it: editors can jump there.
                let _ = writeln!(std::io::stderr(), "{faults}");
                return ExitCode::from(COULD_NOT_ASK);
            }
        };
        let mut notes = Vec::new();
        match SystemClock::start() {
            Ok(clock) => notes.extend(config.notes(clock.now().wall_ns)),
            Err(fault) => notes.push(format!("note: {fault}")),
        }
        match self.changes(&config.live.limits).await {
            Ok(changes) => notes.extend(changes),
            Err(fault) => return complain(&fault.to_string()),
        }
        let text = if self.json {
            json_line(&ValidateJson { file: &name, is_sound: true, faults: Vec::new(), notes: &notes })
        } else {
            let notes = notes.iter().map(|note| format!("{note}\n"));
            format!("{name} is sound: {config}\n{}", notes.collect::<String>())
        };
        Output::new().end(&text, SUCCESS)
    }

    /// What the file's limits would change on the node, a line each.
    async fn changes(&self, file: &[Limit]) -> Result<Vec<String>, Fault> {
        let Some(address) = &self.address else { return Ok(Vec::new()) };
        let listed = self.credentials.connect(address)?.list_budgets().await?;
        Ok(compared(file, &listed.budgets))
    }
}

fn compared(file: &[Limit], running: &[Budget]) -> Vec<String> {
    let read = |listed: &Budget| {
        let spec: LimitSpec = serde_json::from_str(&listed.limit_json).ok()?;
        Limit::new(spec).ok()
    };
    // A limit comes after the limits of the same name that it has replaced.
    let by_path: BTreeMap<String, Option<Limit>> =
        running.iter().map(|listed| (format!("{}/{}", listed.domain, listed.name), read(listed))).collect();
    let mut lines = Vec::new();
    for limit in file {
        let path = limit.path();
        match by_path.get(&path) {
            None => lines.push(format!("note: {path} is new there")),
            Some(None) => lines.push(format!("note: {path} is written there in a way that this version cannot compare")),
            Some(Some(running)) if running.id != limit.id => lines.push(format!(
                "warning: {path} matches, counts or measures otherwise than there: it would count at once, and the old one \
                 beside it until what was spent under that is over; both may deny"
            )),
            Some(Some(running)) if running.spec != limit.spec => {
                lines.push(format!("note: {path} has other numbers or fields there"));
            }
            Some(Some(_)) => {}
        }
    }
    let names: BTreeSet<String> = file.iter().map(Limit::path).collect();
    let gone = by_path.keys().filter(|path| !names.contains(*path));
    lines.extend(
        gone.map(|path| format!("warning: {path} counts there and is not in the file: it would be gone")),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, by: &str, burst: u64) -> String {
        format!(
            r#"{{"name": "{name}", "domain": "shop", "by": ["{by}"], "token_bucket": {{"rate": "1/s", "burst": {burst}}}}}"#
        )
    }

    #[test]
    fn a_changed_shape_is_warned_of_and_changed_values_are_noted() {
        let listed = |name: &str, by: &str, burst| Budget {
            domain: "shop".to_owned(),
            name: name.to_owned(),
            limit_json: spec(name, by, burst),
            budget: String::new(),
        };
        let running = [
            listed("same", "k", 1),
            listed("other", "k", 1),
            listed("number", "k", 1),
            listed("gone", "k", 1),
        ];
        let limit = |name: &str, by: &str, burst| {
            Limit::new(serde_json::from_str(&spec(name, by, burst)).expect("a spec")).expect("a limit")
        };
        let file =
            [limit("same", "k", 1), limit("other", "x", 1), limit("number", "k", 2), limit("new", "k", 1)];
        let lines = compared(&file, &running);
        let begins = [
            "warning: shop/other matches, counts",
            "note: shop/number has other",
            "note: shop/new is new",
            "warning: shop/gone counts there",
        ];
        assert_eq!(lines.len(), begins.len(), "{lines:?}");
        assert!(lines.iter().zip(begins).all(|(line, begin)| line.starts_with(begin)), "{lines:?}");
    }
}
