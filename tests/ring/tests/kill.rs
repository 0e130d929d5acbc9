//! With the feature `mutations`: rules are left out, and a check notices. `--bin kill` runs all rules with
//! more histories.
#![cfg(feature = "mutations")]

use acequia_ring::kill::{PATIENT, RULES, kill};

#[test]
fn a_rule_that_is_left_out_is_missed() {
    let mut stories = 0;
    for (name, rule) in RULES.iter().filter(|(name, _)| !PATIENT.contains(name)) {
        let killed = kill(*rule, 100);
        let killed = killed.unwrap_or_else(|| panic!("nobody misses {name}"));
        stories += usize::from(killed.histories == 0);
    }
    eprintln!("ring: {} rules missed, {stories} of them by stories", RULES.len() - PATIENT.len());
}
