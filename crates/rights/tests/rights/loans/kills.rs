//! Leaves out one rule at a time, of the crate or of its caller, until a check notices. If nobody notices,
//! either the rule is no rule or the checks are worthless.

use super::world::{Careless, run};

/// The number of histories until one fails, and the failure. `None` if all pass.
fn kill(histories: u64, check: impl Fn(u64) -> Result<(), String>) -> Option<(u64, String)> {
    (0..histories).find_map(|seed| {
        let fault = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(seed)))
            .unwrap_or_else(|_| Err("an assertion".to_owned()));
        fault.err().map(|fault| (seed + 1, fault))
    })
}

const STEPS: u64 = 10_000;

#[test]
fn callers_that_break_a_rule_are_caught() {
    let mut survivors = Vec::new();
    for careless in Careless::ALL {
        match kill(1_000, |seed| run(seed, STEPS, Some(careless)).map(|_| ())) {
            Some((histories, fault)) => println!("{careless:?} | {histories} | {fault}"),
            None => survivors.push(format!("{careless:?}")),
        }
    }
    assert!(survivors.is_empty(), "nobody noticed: {survivors:?}");
}

#[cfg(feature = "mutations")]
#[test]
fn every_broken_rule_of_loans_is_caught() {
    use acequia_rights::mutation::{Check, Mutation, break_rule};

    use super::{stories, windows};

    let mut survivors = Vec::new();
    let mut report = |rule: Mutation, killed: Option<(u64, String)>| match killed {
        Some((histories, fault)) => println!("{rule:?} | {histories} | {fault}"),
        None => survivors.push(rule),
    };
    for rule in Mutation::table(Check::Loans) {
        break_rule(Some(rule));
        let killed = match rule {
            Mutation::ConformIndebted => kill(1, |_| stories::a_cell_that_lent_its_rate_is_lowered()),
            _ => kill(2_000, |seed| run(seed, STEPS, None).map(|_| ())),
        };
        report(rule, killed);
    }
    for rule in Mutation::table(Check::Transfers) {
        break_rule(Some(rule));
        report(rule, kill(2_000, |seed| windows::run(seed, STEPS).map(|_| ())));
    }
    break_rule(None);
    assert!(survivors.is_empty(), "nobody noticed: {survivors:?}");
}
