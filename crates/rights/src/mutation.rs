//! Mutations: rules that tests may break, one at a time, to see that the checks notice.
//!
//! Without the feature `mutations`, [`mutated`] is `false` and costs nothing.

#[cfg(all(feature = "mutations", not(debug_assertions)))]
compile_error!("the feature `mutations` is for tests: a build without debug assertions refuses it");

/// A broken rule. Each variant's comment says what the code does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Mutation {
    /// The giver takes a loan back without allowing for clocks that drift.
    NoDriftMargin,
    /// A lower share is acknowledged while the cell owes more.
    ConformIndebted,
    /// The giver renews without moving its own ends.
    RenewWithoutExtending,
    /// A renewal does not list the frozen loans.
    RenewWithoutExcept,
    /// A restarted giver renews loans of its earlier process.
    RenewLoansOfEarlierProcess,
    /// A holder counts a renewal from its arrival.
    RenewExtendsFromReceipt,
    /// A renewal revives loans that ended unseen.
    LapseForgotten,
    /// A holder forgets that a loan was frozen when a renewal stops listing it.
    FreezeForgotten,
    /// A freeze undoes earlier renewals of the loan.
    FreezeKeepsOldEnd,
    /// A refusal is forgotten if it comes while no more loans can be frozen.
    RefusalForgotten,
    /// A holder takes a heartbeat of its earlier process for its own.
    BeatsWithoutBoot,
    /// A holder counts a loan from the arrival of its grant.
    DateFromReceipt,
    /// A grant is accepted after its end.
    AcceptEnded,
    /// A duplicate of a grant is accepted.
    AcceptTwice,
    /// A loan arrives with its whole capacity unspent.
    AcceptFull,
    /// The giver keeps the tokens that travel.
    GiverKeepsTokens,
    /// A giver sends more tokens than it has.
    LendTokensNotThere,
    /// A sliding window's capacity is lent although it is used.
    LendUsedCapacity,
    /// Borrowed parts are lent on.
    LendBorrowed,
    /// The last part of a rate is lent.
    LendLastRate,
    /// A loan gets the number of an earlier one.
    NumbersReused,
    /// A sliding window's capacity is used again while the holder's charges count.
    ReclaimWithoutLinger,
    /// A loan comes back without debt at the giver's end.
    OweNothingOnReclaim,
    /// A holder's end sheds more debt than the giver will owe.
    ShedMoreThanOwed,
    /// A return says that nothing is owed.
    GiveBackFull,
    /// A sliding window's capacity is given back although it is used.
    GiveBackUsedCapacity,
    /// A returned loan is still held.
    GiveBackAndKeep,
    /// A duplicate of a grant revives a returned loan.
    GiveBackForgets,
    /// A duplicate of a grant revives a forfeited loan.
    ForfeitForgets,
    /// A restart forgets lent loans.
    RestartForgetsLoans,
    /// A restart takes lent loans back at once.
    RestartWaitsForNothing,
    /// Units given away in a window may still be used.
    GivenNotCounted,
    /// Used units of a window are given.
    GiveUsedUnits,
    /// A transfer is added each time it arrives.
    ReceiveAdds,
    /// A node with a restored, older disk goes on.
    RestoredDiskUnseen,
    /// More units are refunded than were spent.
    RefundUnspent,
    /// Shares follow plain largest remainder, and fall when the total grows.
    LargestRemainder,
    /// A share is raised before anybody acknowledged.
    RaiseBeforeAck,
    /// A node waits only for the incarnations that an allocation lowers.
    AskLoweredOnly,
    /// In an allocation that fences an incarnation, a node does not wait for the others.
    SkipSurvivorAck,
    /// An acknowledgement of a later allocation counts for the earlier ones.
    LaterAckCounts,
    /// A node that joins a region uses the total of a window stated before the window began.
    PoolRemembersAhead,
    /// A window used under an older share is used under a newer, larger share.
    RaiseIgnoresFrom,
    /// Units that an allocation moves stay in use by their old owner, in windows that begin afterwards too.
    SparesWhatFollows,
    /// Units that an allocation moves stay in use by their old owner, in windows of limits that others have
    /// not heard of.
    SparesUnheardOf,
    /// A node uses its units of the open window for later windows, until it makes new variants.
    OpenSharesLast,
    /// If cells have their own edges, shares of windows that begin later are used in open ones.
    LaterSharesEarly,
    /// A cell that leaves a shared cell keeps that cell's window, which may end at another time than its own.
    SharedWindowKept,
    /// A wall clock that nobody confirmed since the start dates durable records.
    BelievesAtStart,
    /// While peers contradict a node's wall, its uncertainty grows as if it reached no peer.
    DoubtGrows,
    /// A node keeps a wall that has moved along with its steady clock, whoever contradicts the wall.
    OutvotedGoesOn,
    /// One peer that contradicts a wall outvotes all peers that agree.
    OneOutvotes,
    /// A node uses a wall that was set, though no peer agrees.
    StepBelieved,
    /// A wall that the system set back keeps its largest time.
    WallKeepsLargest,
    /// The wall is dated by a steady reading from before the wall was read.
    WallDatedEarly,
    /// The counter is not compared with the system's clock.
    CounterTrusted,
    /// A wall that is set back reopens the windows that it left.
    WallReopensWindows,
    /// The time in an acknowledgement has no clock margin.
    NoClockMargin,
    /// Buckets and sliding windows do not wait for what is owed.
    NoWaitAfterAck,
    /// A wait goes on after a restart as if the steady clock had not restarted.
    RestartKeepsWaits,
    /// A node adopts any version, older ones too.
    AdoptOlderVersion,
    /// An acknowledgement leaves before it is on disk.
    AckBeforeDurable,
    /// A later incarnation has the earlier one's share.
    TrustUnnamedIncarnation,
    /// A node that begins with a later version uses its share at once.
    JoinAtOnce,
    /// Nobody waits for a member that leaves.
    ForgetLeavers,
    /// An allocation is forgotten as if removed limits had never existed.
    ForgetRemovedLimits,

    // Rules of the node.
    /// A grant leaves before the loan is on disk.
    GrantBeforeDurable,
    /// A loan is given back before the remaining debt is on disk.
    ReturnBeforeDurable,
    /// A loan that ended before the variant changed ends by the new variant.
    EndLoansByNewNumbers,
    /// The first frames of a process carry a heartbeat that it sends later.
    BeatBeforeSent,
    /// A transfer leaves before it is on disk.
    GiveBeforeDurable,
    /// A restart forgets units that were given away.
    RestartForgetsPledge,
    /// A crash forgets spending.
    CrashForgetsSpent,
    /// The rows of a clean stop stay on the disk while the next process spends.
    StoppedTwice,
    /// A cell is charged before its ended loans are gone.
    SettleLate,
    /// A new variant leaves a cell with loans unchanged.
    ReshareWithoutRenumber,
    /// A cell's debt is forgotten when its variant changes.
    RebuildForgetsDebt,
    /// A node goes on hearing an earlier process of a peer.
    TrustOldBoot,
    /// Near an edge only one window is charged.
    NoMargin,
    /// A node goes on though it knows that its disk is an old one.
    OldDiskTrusted,
    /// A node that the catalogue does not name has a share.
    OwnsNothingIgnored,
    /// A version is acknowledged while a cell has lent or owes more than its part.
    ConformAtOnce,
    /// A node keeps loans held from a closed incarnation.
    HoldOfClosed,
    /// The wait for spending under a larger variant is only as long as the present variant takes to drain.
    DrainAsOfNow,
    /// After a restart the node assumes that the steady clock went on.
    TrustAnchor,
    /// A state on disk covers a state with another rate.
    CoverByAnotherRate,
    /// After a crash, a window counts as spent only up to the present variant's limit.
    SpentAsOfNow,
    /// A clock that goes back reopens a window that was left.
    WindowReopens,
    /// Units of a removed limit are still given away.
    GiveOfRemoved,
    /// The disk keeps nothing of a cell that is not journalled, though the cell owes more than a crash
    /// presumes.
    OverdrawnUnwritten,
    /// A bucket's rate is lowered, and the cells' debts at that time are not written to disk.
    SlowedUnwritten,
    /// A bucket gets back the whole charge, even units that the rate has given back since.
    RefundInFull,
    /// A charge is given back each time somebody asks.
    RefundTwice,
    /// A charge that a crash forgot is given back.
    RefundForgotten,
    /// A charge is given back to the open window, whichever window was charged.
    RefundIntoOpenWindow,
    /// Refunded units are spent before the refund is on disk.
    RefundBeforeDurable,
    /// A refund ignores that the rate was higher before.
    RefundAfterSlowing,
    /// A charge is given back while other nodes answer by it.
    RefundWhileShared,
    /// A repeated request with one name is charged each time.
    RepeatChargesAgain,
    /// The least variant that a cell may have is taken for its known variant.
    GuessTakenForKnown,
    /// A lease is charged when it is taken, and its capacity comes back while it may be spent.
    LeaseNotSetApart,
    /// Spending that a crash forgot is forgotten again by the next crash, though the limit is journalled by
    /// then.
    ForgottenUnwritten,
    /// A pool grants units that it may have drained too soon.
    PoolGrantsUnsure,
    /// A part that comes back drains in the pool while it may still have drained at its holder.
    PoolDrainsEarly,
    /// An ended lease comes back to its pool unspent.
    PoolOwesNothing,
    /// A pool hears a call that comes after a later one.
    PoolHearsOlderCalls,
    /// A window's pool grants units to a call that comes after a later one.
    PoolGrantsOlderCalls,
    /// Units that others hold of a larger or a smaller pool count as so many units of this one.
    PoolCountsUnitsAlike,
    /// Units that an earlier process of a node held come back unspent.
    PoolTrustsTheDead,
    /// A pool grants before all nodes have told what they hold.
    PoolGrantsUntold,
    /// A generation grants when the first node has told what it holds.
    PoolAsksOneNode,
    /// If one node is excluded, all nodes that have told nothing are.
    PoolLeavesAllOut,
    /// Units that an excluded node may hold count as nothing.
    PoolBurnsNoAbsent,
    /// A pool that forgot begins full.
    PoolBeginsFull,
    /// A node with an earlier allocation among regions moves the pools back to it, and units that others hold
    /// are not counted in proportion.
    PoolHearsOldTerms,
    /// A generation that goes on trusts the pools' knowledge without a witness: a node that used it and knows
    /// of nothing later.
    PoolGoesOnUnwitnessed,
    /// A pool with far fewer units than before forgets the debt that ticks cannot count.
    PoolForgetsBeyond,
    /// A bucket's pool that was called before all nodes had told takes earlier spending as known.
    PoolForgetsFresh,
    /// An answer under a name counts in every generation.
    NameOutlivesGeneration,
    /// An answer is kept under a name without the claim.
    NameKeptUnclaimed,
    /// Spending is unknown only up to the first node's statement of what it holds.
    PoolFreshFromFirst,
    /// No window is forfeited, even if a node lost its record of what it had taken.
    PoolBurnsNothing,
    /// Units that an earlier process of a node took from a window are forgotten.
    PoolForgetsTheDead,
    /// A promoted replica is taken for the process before it.
    PoolKnowsNoProcess,
    /// A generation counts as a first though not all nodes are new.
    PoolNewToOne,
    /// Units that a sliding window's lease may have used count no more when the lease ends.
    PoolLingersNot,
    /// A node counts a lease from the arrival of the answer.
    BalanceDatesFromAnswer,
    /// A node takes up the answer to an earlier call.
    BalanceHearsOlderCalls,
    /// After a lease's end its kept part comes back, unspent, with the answer to a call that was under way.
    BalanceHearsAfterItsEnd,
    /// A node gives parts back after the call that says so.
    BalanceKeepsWhatItGave,
    /// A cell goes on with a lease that has ended.
    LeaseOutlivesItsEnd,
    /// A node does not tell in a new generation what it holds.
    LeaseUntold,
    /// A node says that it has told all while a call of the group is under way.
    LeaseAssertedEarly,
    /// A node uses a generation before the generation is on its disk.
    LeaseForgetsGeneration,
    /// An answer of a generation that does not grant renews a lease.
    LeaseRenewedUngranted,
    /// Pools that have forgotten grant while loans of an evicted node may be out.
    LeaseForgetsLoansOfGone,
    /// A node takes up a grant by a larger limit after the limit was lowered.
    LeaseTakesUpMore,
    /// A lease under an old variant is cut when the cell is next looked at, not when the cell gets its new
    /// variant.
    LeaseShrinksLate,
    /// Units of a window's pool that a stopping node gave back count as spent from the pool, and not from its
    /// own part.
    LeaseStopsBeforeReturns,
    /// A node calls for more of a window before the most that the call may bring is on disk.
    LeaseTakesUnwritten,
    /// A node takes from windows that begin later than leases last.
    LeaseTakesAnyTime,
    /// Others use a node's total of a window for which nobody makes new variants.
    LeaseSaysWhatIsOver,
    /// Units of windows that a node took and that the region no longer owns count as nothing after the pools
    /// were lost.
    LeaseForgetsWhoLeft,
    /// Nodes keep their whole leases when the pools become part of another allocation among regions.
    LeaseOutlivesTerms,
    /// Units that a node took from a window's pool and gave to another region may be used as well.
    LeaseGivesTwice,
    /// A node lends from a lease for longer than the lease lasts.
    LeaseLendsForLonger,
    /// Loans from a lease are renewed until the lease ends.
    LeaseRenewsToTheEnd,
    /// A node gives back to the pool units that it has lent from its lease.
    LeaseReturnsWhatIsLent,
    /// A node acknowledges a smaller lease while it has lent more.
    LeaseConformsWhileLent,
    /// If a node may lease less than it has lent, it does not ask the loans back.
    LeaseLendsBeyondLess,
    /// A process calls pools while loans are out that rest on leases of an earlier process.
    LeaseForgetsLoans,
    /// A node does not tell the withdrawals of its earlier processes from windows.
    LeaseForgetsWithdrawals,
    /// A node counts withdrawals of earlier processes as told in a generation in which nobody told them.
    LeaseWithdrawalsToldEarly,
    /// A node that has lost its disk takes any generation that grants for the latest.
    LeaseTrustsStrangers,
    /// A node hears of generations before all others count it.
    LeaseHearsUncounted,
    /// A node that has lost its disk says that it is new, whatever was granted before.
    LeaseNewTwice,
    /// The nodes' guard shares are in the pools, too.
    LeaseGuardTwice,
    /// A pool does not wait for as long as a node counts on what it holds.
    LeaseTakenBackEarly,
    /// A cell's owner answers a forward and does not charge it.
    ForwardUncharged,
    /// A forward is charged, and used, by another variant than the limit has where a request waits.
    ForwardOfAnotherVariant,
    /// One forwarded charge passes every request that waits for it.
    ForwardUsedTwice,
    /// A forwarded charge passes a request that came after the charge was made.
    ForwardUsedByAnybody,
}

/// Whether a rule is broken in this thread.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn mutated(_: Mutation) -> bool {
    false
}

#[cfg(feature = "mutations")]
mod switch {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        static CHOSEN: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Whether a rule is broken in this thread.
    #[inline]
    pub fn mutated(rule: Mutation) -> bool {
        CHOSEN.with(|chosen| chosen.get() == Some(rule))
    }

    /// Breaks one rule in this thread from now on, or none.
    pub fn break_rule(rule: Option<Mutation>) {
        CHOSEN.with(|chosen| chosen.set(rule));
    }
}

#[cfg(feature = "mutations")]
pub use switch::{break_rule, mutated};
