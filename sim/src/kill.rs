//! Servers that break one rule each. The checks must find every one of them, and must find nothing in a
//! server that keeps all rules.

use acequia_rights::mutation::{Check, Mutation, break_rule};

use crate::{run::run_to_end, scenarios, trace::Trace};

/// A rule whose removal the simulator must notice.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The name of the rule in [`Mutation`].
    pub name: &'static str,
    /// The mutation that removes the rule.
    pub mutation: Mutation,
    /// The scenarios in which the rule matters.
    pub scenarios: &'static [&'static str],
    /// Whether a few seeds are enough to notice.
    pub is_quick: bool,
}

/// How a mutated server was found out.
#[derive(Clone, Debug)]
pub struct Killed {
    /// The number of seeds tried, over all scenarios of the rule.
    pub seeds: u64,
    /// The scenario of the finding.
    pub scenario: &'static str,
    /// The seed of the finding.
    pub seed: u64,
    /// The finding.
    pub finding: String,
}

impl Killed {
    /// The name of the check that found it.
    pub fn check(&self) -> &str {
        self.finding.split_once(':').map_or("", |(check, _)| check)
    }
}

macro_rules! rules {
    ($($rule:ident in $scenarios:expr, $quick:expr;)*) => {
        &[$(Rule {
            name: stringify!($rule),
            mutation: Mutation::$rule,
            scenarios: &$scenarios,
            is_quick: $quick,
        }),*]
    };
}

const CRASHES: &str = "drill-crashes";
const LINKS: &str = "drill-links";
const TOKENS: &str = "drill-tokens";
const ORDERS: &str = "drill-orders";
const GONE: &str = "store-gone";
const STORM: &str = "store-storm";
const FAILS_OVER: &str = "store-fails-over";
const HOLDS: &str = "holds";

/// The rules whose removal was noticed when all rules that seemed to matter were tried. With four seeds of
/// each scenario, these of the 51 tried rules were noticed. `GrantBeforeDurable` and `LendUsedCapacity`
/// needed more seeds. The others were tried no further, except two about tokens, which have a drill.
/// Rules about refunds were tried if holds need them. `tests/ring` has a table with more rules.
pub const RULES: &[Rule] = rules![
    // What must be on the disk first, and what a restart must not forget.
    GiveBeforeDurable in [CRASHES], true;
    RestartForgetsPledge in [CRASHES], true;
    RestartForgetsLoans in [CRASHES], true;
    RestartWaitsForNothing in [CRASHES], true;
    CrashForgetsSpent in [CRASHES], true;
    GrantBeforeDurable in [CRASHES], false;
    // How loans end.
    RenewWithoutExtending in [LINKS], true;
    RenewWithoutExcept in [ORDERS], false;
    RenewExtendsFromReceipt in [LINKS], true;
    DateFromReceipt in [LINKS], true;
    AcceptTwice in [LINKS], true;
    // What loans and transfers carry.
    GiverKeepsTokens in [TOKENS], true;
    AcceptFull in [TOKENS], true;
    GiveBackFull in [TOKENS], true;
    LendUsedCapacity in [LINKS], false;
    ReclaimWithoutLinger in [LINKS], true;
    GiveBackAndKeep in [LINKS], true;
    GivenNotCounted in [LINKS], true;
    ReceiveAdds in [LINKS], true;
    // Versions.
    RaiseBeforeAck in [ORDERS], true;
    ConformAtOnce in [ORDERS], true;
    ReshareWithoutNewVariant in [ORDERS], true;
    RebuildForgetsDebt in [ORDERS], true;
    // Members.
    TrustUnnamedIncarnation in ["lost-disk"], true;
    OwnsNothingIgnored in ["lost-disk"], true;
    OldDiskTrusted in ["old-disk"], true;
    SkipSurvivorAck in ["evict-dead"], true;
    // What callers lease.
    LeaseNotSetApart in ["leases"], true;
    // What is held for requests until their cost is known, and comes back.
    HoldOfNothing in [HOLDS], true;
    HoldNeverLapses in [HOLDS], true;
    RefundTwice in [HOLDS], true;
    RefundIntoOpenWindow in [HOLDS], true;
    // What nodes hold of the store that their region shares.
    PoolGrantsUntold in [STORM, FAILS_OVER], true;
    PoolAsksOneNode in [STORM, FAILS_OVER], true;
    PoolKnowsNoProcess in [STORM, FAILS_OVER], true;
    LeaseOutlivesItsEnd in [GONE], true;
    LeaseUntold in [STORM, FAILS_OVER], true;
    LeaseGuardTwice in [STORM, FAILS_OVER], true;
    LeaseTakenBackEarly in [STORM, FAILS_OVER], true;
    LeaseAssertedEarly in [STORM, FAILS_OVER], true;
    // Windows.
    NoMargin in ["clock-skew"], true;
    // Clocks.
    WallKeepsLargest in ["fast-clock"], true;
    WallDatedEarly in ["fast-clock"], true;
    CounterTrusted in ["fast-clock"], true;
    OutvotedGoesOn in ["wrong-at-boot"], true;
    BelievesAtStart in ["wrong-at-boot"], true;
    OneOutvotes in ["wrong-at-boot"], true;
    StepBelieved in ["wrong-while-cut"], true;
    DoubtGrows in ["outvoted"], true;
];

/// The table has the rows that the list of mutations gives to the simulator, and no others.
const _: () = {
    let (mut place, mut rows) = (0, 0);
    while place < Mutation::ALL.len() {
        rows += Mutation::ALL[place].is_noticed_by(Check::Sim) as usize;
        place += 1;
    }
    assert!(rows == RULES.len());
    while rows > 0 {
        rows -= 1;
        assert!(RULES[rows].mutation.is_noticed_by(Check::Sim));
    }
};

/// Runs without a rule, with `seeds` seeds of each of its scenarios, until a run finds something that a run
/// with the rule does not.
pub fn kill(rule: &Rule, seeds: u64) -> Option<Killed> {
    let mut tried = 0;
    for seed in 1..=seeds {
        for scenario in rule.scenarios {
            tried += 1;
            let Some(finding) = without(Some(rule.mutation), scenario, seed) else { continue };
            if without(None, scenario, seed).is_none() {
                return Some(Killed { seeds: tried, scenario, seed, finding });
            }
        }
    }
    None
}

/// The finding of a run without the rule of a mutation, or with all rules.
fn without(mutation: Option<Mutation>, scenario: &str, seed: u64) -> Option<String> {
    let scenario = scenarios::named(scenario)?;
    let run = || run_to_end(scenario.plan_of(seed), seed, &Trace::default(), Vec::new());
    break_rule(mutation);
    let record = std::panic::catch_unwind(run);
    break_rule(None);
    match record {
        Ok(Ok(record)) => record.findings.into_iter().next(),
        Ok(Err(fault)) => Some(format!("world: {fault}")),
        Err(_) => Some("panic: of a check".to_owned()),
    }
}
