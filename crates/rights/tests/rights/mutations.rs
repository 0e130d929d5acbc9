//! The list of mutations: every rule has a check that notices if it is broken.

use std::{fs, path::Path};

use acequia_rights::mutation::{Check, Mutation};

/// All sources in a folder and its folders.
fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let read = |path: &Path| match path.is_dir() {
        true => sources(path),
        false => fs::read_to_string(path).expect("a source"),
    };
    entries.map(|path| read(&path)).collect()
}

#[test]
fn every_mutation_has_a_check_that_notices() {
    let unnoticed: Vec<_> = Mutation::table(Check::Nothing).collect();
    assert_eq!(unnoticed, [Mutation::SpentAsOfNow, Mutation::GiveOfRemoved], "give the others a check");
}

#[test]
fn the_tests_of_nodes_break_the_rules_that_they_must_notice() {
    let tests = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../node/tests/node"));
    let breaks = |rule: &Mutation| {
        let name = format!("Mutation::{}", rule.name());
        let mut mentions = tests.split(&name).skip(1);
        mentions.any(|after| !after.starts_with(|next: char| next.is_alphanumeric()))
    };
    let broken: Vec<_> = Mutation::ALL.iter().copied().filter(breaks).collect();
    assert_eq!(broken, Mutation::table(Check::Node).collect::<Vec<_>>());
}
