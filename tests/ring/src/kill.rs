//! Which rules the ring guards: each is left out in turn, and must be missed.

use acequia_rights::mutation::{Mutation, break_rule};

use crate::{
    history::{self, STEPS},
    stories,
};

/// How a broken rule was noticed.
#[derive(Clone, Debug)]
pub struct Killed {
    /// The check.
    pub by: String,
    /// Histories that it took; 0 where a story noticed.
    pub histories: u64,
    /// What the check saw.
    pub what: String,
}

macro_rules! rules {
    ($($rule:ident),* $(,)?) => { &[$((stringify!($rule), Mutation::$rule)),*] };
}

/// Rules that the ring must miss: of the node, and of `acequia-rights` as the node uses them.
///
/// Some rules of `acequia-rights` are guarded twice in a node, and so are missed by the tests of that crate alone:
/// acknowledgements leave when they are stored (`AckBeforeDurable`), tokens that are not there are not offered
/// (`LendTokensNotThere`), nobody believes that another lends more than it has (`LendBorrowed`), the wait of a term that applies
/// to windows is the catalogue's (`RaiseIgnoresFrom`), and steady clocks are anchored to the wall (`RestartKeepsWaits`). Others
/// need a meeting of versions that is too rare here (`LaterAckCounts`, `LargestRemainder`).
pub const RULES: &[(&str, Mutation)] = rules![
    // Of the node.
    GrantBeforeDurable,
    GiveBeforeDurable,
    EndLoansByNewNumbers,
    BeatBeforeSent,
    ReturnBeforeDurable,
    RestartForgetsPledge,
    CrashForgetsSpent,
    StoppedTwice,
    SettleLate,
    ReshareWithoutRenumber,
    RebuildForgetsDebt,
    TrustOldBoot,
    NoMargin,
    OldDiskTrusted,
    OwnsNothingIgnored,
    ConformAtOnce,
    HoldOfClosed,
    DrainAsOfNow,
    TrustAnchor,
    CoverByAnotherRate,
    WindowReopens,
    OverdrawnUnwritten,
    SlowedUnwritten,
    ForgottenUnwritten,
    RefundInFull,
    RefundTwice,
    RefundForgotten,
    RefundIntoOpenWindow,
    RefundBeforeDurable,
    RefundAfterSlowing,
    RepeatChargesAgain,
    GuessTakenForKnown,
    LeaseNotSetApart,
    // Of the rights.
    NoDriftMargin,
    RenewWithoutExtending,
    RenewWithoutExcept,
    RenewExtendsFromReceipt,
    LapseForgotten,
    RefusalForgotten,
    BeatsWithoutBoot,
    DateFromReceipt,
    AcceptEnded,
    AcceptTwice,
    AcceptFull,
    GiverKeepsTokens,
    LendUsedCapacity,
    ReclaimWithoutLinger,
    OweNothingOnReclaim,
    ShedMoreThanOwed,
    GiveBackUsedCapacity,
    GiveBackAndKeep,
    RestartForgetsLoans,
    RestartWaitsForNothing,
    GivenNotCounted,
    ReceiveAdds,
    RaiseBeforeAck,
    AskLoweredOnly,
    SkipSurvivorAck,
    NoWaitAfterAck,
    TrustUnnamedIncarnation,
    JoinAtOnce,
    ForgetLeavers,
    ForgetRemovedLimits,
];

/// Rules that take more than a few histories to be missed.
pub const PATIENT: &[&str] = &[
    "CoverByAnotherRate",
    "ReturnBeforeDurable",
    "BeatBeforeSent",
    "NoDriftMargin",
    "LapseForgotten",
    "BeatsWithoutBoot",
    "JoinAtOnce",
];

/// Runs without a rule until something is found that is not found with it.
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

/// What is found without a rule, and not with it.
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
