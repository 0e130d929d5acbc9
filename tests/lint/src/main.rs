//! Says what is wrong with pages, comments and structure; exits with 1 if anything is.

use std::{path::Path, process::ExitCode};

use acequia_lint::{comments, rules, structure};

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found = rules::faults(&root).and_then(|mut faults| {
        faults.extend(comments::faults(&root)?);
        faults.extend(structure::faults(&root)?);
        Ok(faults)
    });
    let faults = match found {
        Ok(faults) => faults,
        Err(cause) => vec![format!("cannot read a page or a file: {cause}")],
    };
    for fault in &faults {
        eprintln!("{fault}");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
