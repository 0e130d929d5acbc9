//! Says what is wrong with the pages; exits with 1 if anything is.

use std::{path::Path, process::ExitCode};

use acequia_lint::rules;

fn main() -> ExitCode {
    let faults = match rules::faults(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")) {
        Ok(faults) => faults,
        Err(cause) => vec![format!("cannot read the pages: {cause}")],
    };
    for fault in &faults {
        eprintln!("{fault}");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
