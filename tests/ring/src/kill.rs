//! The rules that the ring guards. Each is left out in turn, and a check must notice.

use acequia_rights::mutation::{Check, Mutation, break_rule};

use crate::{
    history::{self, STEPS},
    stories,
};

/// How a missing rule was noticed.
#[derive(Clone, Debug)]
pub struct Killed {
    /// The check.
    pub by: String,
    /// The number of histories needed; 0 if a story noticed.
    pub histories: u64,
    /// What the check saw.
    pub what: String,
}

/// Rules whose absence the ring must notice, with few histories or with many: the node's rules, and those of
/// `acequia-rights` as the node uses them.
///
/// A node guards some rules of `acequia-rights` twice, so only the tests of that crate notice if one of these
/// is missing:
/// - `AckBeforeDurable`: acknowledgements leave when they are stored.
/// - `LendTokensNotThere`: missing tokens are not offered.
/// - `LendBorrowed`: nobody believes that another region lends more than it has.
/// - `RaiseIgnoresFrom`: the catalogue defines how long an allocation for windows waits.
/// - `RestartKeepsWaits`: steady clocks are anchored to the wall clock.
///
/// Other rules need a combination of versions that is too rare here (`LaterAckCounts`, `LargestRemainder`).
pub fn rules() -> impl Iterator<Item = Mutation> {
    Mutation::table(Check::Ring).chain(Mutation::table(Check::RingPatient))
}

/// Runs stories and histories without a rule, until a finding that does not occur with the rule.
pub fn kill(rule: Mutation, histories: u64) -> Option<Killed> {
    for (name, story) in stories::ALL {
        if let Some((by, what)) = without(rule, || story().map(|finding| (finding.check, finding.what))) {
            return Some(Killed { by, histories: 0, what: format!("story {name}: {what}") });
        }
    }
    for history in 1..=histories {
        let run = || history::run(history, STEPS).found.map(|(finding, _)| (finding.check, finding.what));
        if let Some((by, what)) = without(rule, run) {
            return Some(Killed { by, histories: history, what });
        }
    }
    None
}

/// A finding that occurs without a rule, and not with it.
fn without(
    rule: Mutation,
    run: impl Fn() -> Option<(&'static str, String)> + std::panic::RefUnwindSafe,
) -> Option<(String, String)> {
    let found = |broken: Option<Mutation>| {
        break_rule(broken);
        let found = match std::panic::catch_unwind(&run) {
            Ok(found) => found.map(|(check, what)| (check.to_owned(), what)),
            Err(_) => Some(("panic".to_owned(), String::new())),
        };
        break_rule(None);
        found
    };
    found(Some(rule)).filter(|_| found(None).is_none())
}
