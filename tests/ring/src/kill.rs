//! Which rules the ring guards: each is left out in turn, and must be missed.

use acequia_rights::broken::{Broken, break_rule};

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
    ($($rule:ident),* $(,)?) => { &[$((stringify!($rule), Broken::$rule)),*] };
}

/// Rules that the ring must miss: of the node, and of `acequia-rights` as the node uses them.
pub const RULES: &[(&str, Broken)] = rules![
    // Of the node.
    GrantBeforeDurable,
    GiveBeforeDurable,
    RestartForgetsPledge,
    CrashForgetsSpent,
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
    SpentAsOfNow,
    WindowReopens,
    // Of the rights.
    NoDriftMargin,
    RenewWithoutExtending,
    RenewWithoutExcept,
    RenewExtendsFromReceipt,
    LapseForgotten,
    BeatsWithoutBoot,
    DateFromReceipt,
    AcceptEnded,
    AcceptTwice,
    AcceptFull,
    GiverKeepsTokens,
    LendTokensNotThere,
    LendUsedCapacity,
    LendBorrowed,
    ReclaimWithoutLinger,
    OweNothingOnReclaim,
    ShedMoreThanOwed,
    GiveBackUsedCapacity,
    GiveBackAndKeep,
    RestartForgetsLoans,
    RestartWaitsForNothing,
    GivenNotCounted,
    ReceiveAdds,
    LargestRemainder,
    RaiseBeforeAck,
    AskLoweredOnly,
    SkipSurvivorAck,
    LaterAckCounts,
    NoWaitAfterAck,
    RestartKeepsWaits,
    AckBeforeDurable,
    TrustUnnamedIncarnation,
    JoinAtOnce,
    ForgetLeavers,
];

/// Runs without a rule until something is found.
pub fn kill(rule: Broken, histories: u64) -> Option<Killed> {
    break_rule(Some(rule));
    let killed = noticed(histories);
    break_rule(None);
    killed
}

fn noticed(histories: u64) -> Option<Killed> {
    for (name, story) in stories::ALL {
        let by = format!("story {name}");
        match std::panic::catch_unwind(story) {
            Ok(None) => {}
            Ok(Some(finding)) => {
                return Some(Killed { by: finding.check.to_owned(), histories: 0, what: format!("{by}: {}", finding.what) });
            }
            Err(_) => return Some(Killed { by: "panic".to_owned(), histories: 0, what: by }),
        }
    }
    for history in 1..=histories {
        match std::panic::catch_unwind(|| history::run(history, STEPS)) {
            Ok(ended) => {
                if let Some((finding, _)) = ended.found {
                    let what = finding.what;
                    return Some(Killed { by: finding.check.to_owned(), histories: history, what });
                }
            }
            Err(_) => {
                return Some(Killed { by: "panic".to_owned(), histories: history, what: String::new() });
            }
        }
    }
    None
}
