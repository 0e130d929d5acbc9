//! Servers that break a rule, each in turn: the checks must find every one of them, and nothing in the server that keeps it.

use acequia_rights::broken::{Broken, break_rule};

use crate::{run::run_to_end, scenarios, trace::Trace};

/// A rule that the simulator must miss when it is left out.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// As it is called in [`Broken`].
    pub name: &'static str,
    /// Which one.
    pub broken: Broken,
    /// Where it matters.
    pub scenarios: &'static [&'static str],
    /// Whether a few seeds are enough.
    pub is_quick: bool,
}

/// How a broken server was found out.
#[derive(Clone, Debug)]
pub struct Killed {
    /// Seeds that it took, in all scenarios of the rule.
    pub seeds: u64,
    /// In which it was found.
    pub scenario: &'static str,
    /// The seed of that.
    pub seed: u64,
    /// What was found.
    pub finding: String,
}

impl Killed {
    /// The check that found it.
    pub fn check(&self) -> &str {
        self.finding.split_once(':').map_or("", |(check, _)| check)
    }
}

macro_rules! rules {
    ($($rule:ident in $scenarios:expr, $quick:expr;)*) => {
        &[$(Rule {
            name: stringify!($rule),
            broken: Broken::$rule,
            scenarios: &$scenarios,
            is_quick: $quick,
        }),*]
    };
}

const CRASHES: &str = "drill-crashes";
const LINKS: &str = "drill-links";
const ORDERS: &str = "drill-orders";

/// The rules.
pub const RULES: &[Rule] = rules![
    // What must be on the disk first, and what a restart must not forget.
    GrantBeforeDurable in [CRASHES], true;
    GiveBeforeDurable in [CRASHES], true;
    ReturnBeforeDurable in [CRASHES], true;
    RestartForgetsPledge in [CRASHES], true;
    RestartForgetsLoans in [CRASHES], true;
    RestartWaitsForNothing in [CRASHES], true;
    CrashForgetsSpent in [CRASHES], true;
    StoppedTwice in [CRASHES], true;
    TrustAnchor in [CRASHES], true;
    TrustOldBoot in [CRASHES], true;
    BeatsWithoutBoot in [CRASHES], true;
    OverdrawnUnwritten in [CRASHES], true;
    // How loans end.
    NoDriftMargin in [LINKS], true;
    RenewWithoutExtending in [LINKS], true;
    RenewWithoutExcept in [LINKS, ORDERS], true;
    RenewExtendsFromReceipt in [LINKS], true;
    DateFromReceipt in [LINKS], true;
    AcceptEnded in [LINKS], true;
    AcceptTwice in [LINKS], true;
    LapseForgotten in [LINKS], true;
    RefusalForgotten in [LINKS], true;
    SettleLate in [LINKS], true;
    // What loans and gifts carry.
    AcceptFull in [LINKS], true;
    GiverKeepsTokens in [LINKS], true;
    LendBorrowed in [LINKS], true;
    LendUsedCapacity in [LINKS], true;
    ReclaimWithoutLinger in [LINKS], true;
    OweNothingOnReclaim in [LINKS], true;
    ShedMoreThanOwed in [LINKS], true;
    GiveBackFull in [LINKS], true;
    GiveBackUsedCapacity in [LINKS], true;
    GiveBackAndKeep in [LINKS], true;
    GivenNotCounted in [LINKS], true;
    ReceiveAdds in [LINKS], true;
    // Versions.
    RaiseBeforeAck in [ORDERS], true;
    AskLoweredOnly in [ORDERS], true;
    NoWaitAfterAck in [ORDERS], true;
    ConformAtOnce in [ORDERS], true;
    DrainAsOfNow in [ORDERS], true;
    ReshareWithoutRenumber in [ORDERS], true;
    RebuildForgetsDebt in [ORDERS], true;
    EndLoansByNewNumbers in [ORDERS], true;
    // Members.
    TrustUnnamedIncarnation in ["lost-disk"], true;
    JoinAtOnce in ["join-and-leave", "lost-disk"], true;
    ForgetLeavers in ["join-and-leave"], true;
    OwnsNothingIgnored in ["lost-disk", "join-and-leave"], true;
    OldDiskTrusted in ["old-disk"], true;
    HoldOfClosed in ["evict-dead", "lost-disk"], true;
    SkipSurvivorAck in ["evict-dead", "lost-disk"], true;
    // Windows.
    NoMargin in ["clock-jump", "clock-skew"], true;
    WindowReopens in ["clock-jump"], true;
];

/// Runs without a rule, with so many seeds of each of its scenarios, until something is found that is not found with it.
pub fn kill(rule: &Rule, seeds: u64) -> Option<Killed> {
    let mut tried = 0;
    for seed in 1..=seeds {
        for scenario in rule.scenarios {
            tried += 1;
            let Some(finding) = without(Some(rule.broken), scenario, seed) else { continue };
            if without(None, scenario, seed).is_none() {
                return Some(Killed { seeds: tried, scenario, seed, finding });
            }
        }
    }
    None
}

/// What is found when a rule is left out.
fn without(rule: Option<Broken>, scenario: &str, seed: u64) -> Option<String> {
    let scenario = scenarios::named(scenario)?;
    let run = || run_to_end(scenario.plan_of(seed), seed, &Trace::default(), Vec::new());
    break_rule(rule);
    let record = std::panic::catch_unwind(run);
    break_rule(None);
    match record {
        Ok(Ok(record)) => record.findings.into_iter().next(),
        Ok(Err(fault)) => Some(format!("world: {fault}")),
        Err(_) => Some("panic: of a check".to_owned()),
    }
}
