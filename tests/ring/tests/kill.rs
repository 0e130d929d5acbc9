//! With the feature `mutations`: rules are left out, and a check notices. `--bin kill` runs all rules with
//! more histories.
#![cfg(feature = "mutations")]

use acequia_rights::mutation::{Check, Mutation};
use acequia_ring::kill::kill;

#[test]
fn every_broken_rule_of_the_ring_is_found() {
    let killed = Mutation::table(Check::Ring).map(|rule| {
        let killed = kill(rule, 100);
        killed.unwrap_or_else(|| panic!("nobody misses {}", rule.name())).histories
    });
    let histories: Vec<u64> = killed.collect();
    let stories = histories.iter().filter(|histories| **histories == 0).count();
    eprintln!("ring: {} rules missed, {stories} of them by stories", histories.len());
}
