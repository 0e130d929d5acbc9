//! Rules that tests may break, one at a time, to see that the checks notice.
//!
//! Without the feature `mutations`, [`mutated`] is `false` and costs nothing.

#[cfg(all(feature = "mutations", not(debug_assertions)))]
compile_error!("the feature `mutations` is for tests: a build without debug assertions refuses it");

/// One rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Mutation {
    /// The giver takes a loan back without allowing for clocks that drift.
    NoDriftMargin,
    /// A lower share is acknowledged while more is owed.
    ConformIndebted,
    /// The giver renews without moving its own ends.
    RenewWithoutExtending,
    /// A renewal does not list the frozen loans.
    RenewWithoutExcept,
    /// A renewal is for loans that a restarted giver does not renew.
    RenewLoansOfEarlierProcess,
    /// A holder counts a renewal from when it came.
    RenewExtendsFromReceipt,
    /// A renewal revives loans that ended while nobody looked.
    LapseForgotten,
    /// A holder forgets that a loan was frozen when it is listed no more.
    FreezeForgotten,
    /// A freeze takes back what was renewed before.
    FreezeKeepsOldEnd,
    /// A refusal that comes while no more can be frozen is forgotten.
    RefusalForgotten,
    /// A holder takes a beat of its earlier process for its own.
    BeatsWithoutBoot,
    /// A holder counts a loan from when the grant came.
    DateFromReceipt,
    /// A grant is accepted after its end.
    AcceptEnded,
    /// A duplicate of a grant is accepted.
    AcceptTwice,
    /// A loan arrives with its whole capacity unspent.
    AcceptFull,
    /// The giver keeps the tokens that travel.
    GiverKeepsTokens,
    /// More tokens travel than the giver has.
    LendTokensNotThere,
    /// A window's capacity is lent although it is used.
    LendUsedCapacity,
    /// What is borrowed is lent on.
    LendBorrowed,
    /// The last part of a rate is lent.
    LendLastRate,
    /// A loan has the number of an earlier one.
    NumbersReused,
    /// A window's capacity is used again while the holder's charges count.
    ReclaimWithoutLinger,
    /// A loan comes back unspent.
    OweNothingOnReclaim,
    /// A holder's end sheds more than the giver will owe.
    ShedMoreThanOwed,
    /// A return says that nothing is owed.
    GiveBackFull,
    /// A window's capacity is given back although it is used.
    GiveBackUsedCapacity,
    /// What is given back is still held.
    GiveBackAndKeep,
    /// A duplicate of a grant revives what was given back.
    GiveBackForgets,
    /// A duplicate of a grant revives what was forfeited.
    ForfeitForgets,
    /// A restart forgets what was lent.
    RestartForgetsLoans,
    /// A restart takes back what was lent.
    RestartWaitsForNothing,
    /// What was given in a window may be used.
    GivenNotCounted,
    /// Used units of a window are given.
    GiveUsedUnits,
    /// A transfer is added each time it comes.
    ReceiveAdds,
    /// An older disk goes on.
    RestoredDiskUnseen,
    /// More is refunded than was spent.
    RefundUnspent,
    /// Shares by plain largest remainder, which fall when the total grows.
    LargestRemainder,
    /// A share is raised before anybody acknowledged.
    RaiseBeforeAck,
    /// Only the writers that a term lowers are waited for.
    AskLoweredOnly,
    /// In a term that fences a writer, the others are not waited for.
    SkipSurvivorAck,
    /// An acknowledgement of a later term counts for the earlier ones.
    LaterAckCounts,
    /// What a region was to have of a window before that began counts for who comes later.
    PoolRemembersAhead,
    /// A window that was used under an older share is used under a newer, larger one.
    RaiseIgnoresFrom,
    /// What a distribution moves goes on being used by who had it, in windows that begin afterwards too.
    SparesWhatFollows,
    /// So it does in windows of limits that others have not heard of.
    SparesUnheardOf,
    /// What a node has of the window that is open it has of later ones, until it makes numbers anew.
    OpenSharesLast,
    /// Where cells have edges of their own, shares of windows that begin later are used in open ones.
    LaterSharesEarly,
    /// A cell that shared another with others goes by that one's window, which may end at another time than its own.
    SharedWindowKept,
    /// A wall that nobody confirmed since the start dates what is durable.
    BelievesAtStart,
    /// While a node's wall is contradicted its doubt grows as if it reached nobody.
    DoubtGrows,
    /// A wall that has moved along goes on being gone by, whoever contradicts it.
    OutvotedGoesOn,
    /// One peer that contradicts a wall outvotes all that agree.
    OneOutvotes,
    /// A wall that was set is gone by though nobody agrees.
    StepBelieved,
    /// A wall that the system set back stays where it was.
    WallKeepsLargest,
    /// The wall is dated by a reading of before it was read.
    WallDatedEarly,
    /// The counter is not compared with the system's clock.
    CounterTrusted,
    /// A wall that is set back finds the windows again that it left.
    WallReopensWindows,
    /// The time of an acknowledgement trusts the clock.
    NoClockMargin,
    /// Buckets and sliding windows do not wait for what is owed.
    NoWaitAfterAck,
    /// A wait goes on after a restart as if the steady clock were the same.
    RestartKeepsWaits,
    /// Any version is adopted.
    AdoptOlderVersion,
    /// An acknowledgement leaves before it is on disk.
    AckBeforeDurable,
    /// A later incarnation has what the earlier had.
    TrustUnnamedIncarnation,
    /// A node that begins with a later version uses its share at once.
    JoinAtOnce,
    /// A region that leaves is not waited for.
    ForgetLeavers,
    /// A term is forgotten as if limits that were removed had never been.
    ForgetRemovedLimits,

    // Of the node.
    /// A grant leaves before the loan is on disk.
    GrantBeforeDurable,
    /// A loan is given back before the debt that stays is on disk.
    ReturnBeforeDurable,
    /// A loan that ended before the numbers changed ends by the new ones.
    EndLoansByNewNumbers,
    /// The first frames of a process carry a beat that it sends later.
    BeatBeforeSent,
    /// Rights of a window are told before they are given on disk.
    GiveBeforeDurable,
    /// What is given away is not kept.
    RestartForgetsPledge,
    /// What was spent before a crash is forgotten.
    CrashForgetsSpent,
    /// What a clean stop left stays on the disk while the next process spends.
    StoppedTwice,
    /// A cell is charged before the loans that ended are gone.
    SettleLate,
    /// New numbers leave a cell with loans as it is.
    ReshareWithoutRenumber,
    /// What a cell owes is forgotten when its numbers change.
    RebuildForgetsDebt,
    /// An earlier process of a peer goes on being heard.
    TrustOldBoot,
    /// Near an edge only one window is charged.
    NoMargin,
    /// A node that knows that its disk is an old one goes on.
    OldDiskTrusted,
    /// A node that the catalogue does not name has a share.
    OwnsNothingIgnored,
    /// A version is acknowledged while more is lent or owed than there is.
    ConformAtOnce,
    /// What was held of a writer that is closed is held on.
    HoldOfClosed,
    /// What was spent under larger numbers is waited for as long as the present ones take to drain.
    DrainAsOfNow,
    /// After a restart the steady clock is taken to go on where the last one was.
    TrustAnchor,
    /// A state on disk covers one that counts in another rate.
    CoverByAnotherRate,
    /// After a crash, a window is spent only as far as the present numbers go.
    SpentAsOfNow,
    /// A clock that goes back finds a window that was left as if it had never been open.
    WindowReopens,
    /// What was removed is given away still.
    GiveOfRemoved,
    /// Of what is not journalled the disk keeps nothing, though more is owed than a crash presumes.
    OverdrawnUnwritten,
    /// A bucket's rate is lowered, and the disk is not told what cells owe by then.
    SlowedUnwritten,
    /// A bucket gets back all that a charge cost, whatever has come back since.
    RefundInFull,
    /// A charge is given back as often as somebody says so.
    RefundTwice,
    /// What a crash forgot is given back.
    RefundForgotten,
    /// A charge is given back to the window that is open, whichever was charged.
    RefundIntoOpenWindow,
    /// What comes back is spent before the disk knows that it came back.
    RefundBeforeDurable,
    /// A charge gives back as much as if the rate had always been as low as it is.
    RefundAfterSlowing,
    /// A charge is given back while other nodes answer by it.
    RefundWhileShared,
    /// The same question under the same name is charged each time.
    RepeatChargesAgain,
    /// The least numbers that a cell may have are taken for those that it has.
    GuessTakenForKnown,
    /// A lease is charged when it is taken, and its capacity comes back while it may be spent.
    LeaseNotSetApart,
    /// What a crash forgot is forgotten with the next crash, though the limit is journalled by then.
    ForgottenUnwritten,
    /// A pool grants what it may have drained too soon.
    PoolGrantsUnsure,
    /// What comes back to a pool drains there from when it may still have drained at its holder.
    PoolDrainsEarly,
    /// A lease that ended comes back to its pool unspent.
    PoolOwesNothing,
    /// A call that comes after a later one counts.
    PoolHearsOlderCalls,
    /// A call of a window that comes after a later one is granted what it asks for.
    PoolGrantsOlderCalls,
    /// What others hold of a larger or a smaller pool counts as so many units of this one.
    PoolCountsUnitsAlike,
    /// What an earlier process of a node held comes back unspent.
    PoolTrustsTheDead,
    /// A pool grants before all nodes have told what they hold.
    PoolGrantsUntold,
    /// A generation grants when the first node has told what it holds.
    PoolAsksOneNode,
    /// Where one node is left out, all are that have told nothing.
    PoolLeavesAllOut,
    /// What a node may hold that is left out counts as nothing.
    PoolBurnsNoAbsent,
    /// A pool that forgot begins full.
    PoolBeginsFull,
    /// Whoever goes by an earlier distribution among regions than a group's pools are part of makes them part of that again, and what others
    /// hold counts in units of his.
    PoolHearsOldTerms,
    /// A generation that goes on trusts what the pools know though nobody has used them who knows of nothing later.
    PoolGoesOnUnwitnessed,
    /// Of what is owed to a pool that has far fewer units than it had, what ticks cannot count is forgotten.
    PoolForgetsBeyond,
    /// A bucket's pool that was called before all nodes had told counts what was spent until then as known.
    PoolForgetsFresh,
    /// What was answered under a name counts in every generation.
    NameOutlivesGeneration,
    /// An answer is kept under a name whoever has it.
    NameKeptUnclaimed,
    /// What was spent is unknown up to when the first node told what it holds.
    PoolFreshFromFirst,
    /// Windows count in whose time a node lost what it had taken.
    PoolBurnsNothing,
    /// What an earlier process of a node took from a window is forgotten.
    PoolForgetsTheDead,
    /// A promoted replica is taken for the process before it.
    PoolKnowsNoProcess,
    /// A generation counts as a first though not all nodes are new.
    PoolNewToOne,
    /// What a sliding window's lease may have used counts no more when it ends.
    PoolLingersNot,
    /// A node counts a lease from when the answer came.
    PurseDatesFromAnswer,
    /// A node takes what an answer to an earlier call says.
    PurseHearsOlderCalls,
    /// What a lease kept comes back after its end, unspent, with the answer to a call that was under way.
    PurseHearsAfterItsEnd,
    /// A node gives parts back after the call that says so.
    PurseKeepsWhatItGave,
    /// A cell goes on with what it held of a pool when that has ended.
    LeaseOutlivesItsEnd,
    /// A node does not tell in a new generation what it holds.
    LeaseUntold,
    /// A node says that it has told all while a call of the group is under way.
    LeaseAssertedEarly,
    /// A node uses a generation before it is written down that it heard of it.
    LeaseForgetsGeneration,
    /// A lease is renewed by an answer of a generation that does not grant.
    LeaseRenewedUngranted,
    /// Pools that have forgotten grant while loans may be out of a node that was evicted.
    LeaseForgetsLoansOfGone,
    /// What a pool granted by a larger limit is taken up when the limit has been lowered.
    LeaseTakesUpMore,
    /// What is held of a pool under numbers that are over is cut when the cell is looked at next, not when it gets its new ones.
    LeaseShrinksLate,
    /// What a node that stops gave back of a window's pool counts as spent of that, and not of its own part.
    LeaseStopsBeforeReturns,
    /// A node calls for more of a window before it is written down how much that may bring.
    LeaseTakesUnwritten,
    /// A node takes of windows that begin later than leases last.
    LeaseTakesAnyTime,
    /// Others go by what a node says of a window whose numbers nobody makes anew.
    LeaseSaysWhatIsOver,
    /// What a node took of windows that is none of the region's any more counts as nothing after the pools were lost.
    LeaseForgetsWhoLeft,
    /// Nodes go on with all that they hold of the pools that there are when those become part of another distribution among regions.
    LeaseOutlivesTerms,
    /// What a node took of a window's pool and gave to another region it may use as well.
    LeaseGivesTwice,
    /// What a node holds of a pool it lends for longer than it has it.
    LeaseLendsForLonger,
    /// Loans of what a node holds of a pool are renewed until that ends.
    LeaseRenewsToTheEnd,
    /// What a node holds of a pool and has lent it gives back to the pool as well.
    LeaseReturnsWhatIsLent,
    /// A node acknowledges that it holds less of pools while it has lent more.
    LeaseConformsWhileLent,
    /// Where less may be held of a pool than is lent of it, that is not asked back.
    LeaseLendsBeyondLess,
    /// A process calls pools while loans of an earlier one are out that rest on what that one held of them.
    LeaseForgetsLoans,
    /// A node does not tell what earlier processes of it took of windows.
    LeaseForgetsTakings,
    /// A node counts what earlier processes took as told in a generation in which nobody told it.
    LeaseTakingsToldEarly,
    /// A node that has lost its disk takes any generation that grants for the last.
    LeaseTrustsStrangers,
    /// A node hears of generations before all others count it.
    LeaseHearsUncounted,
    /// A node that has lost its disk says that it is new, whatever was granted before.
    LeaseNewTwice,
    /// What the nodes keep out of the pools is in the pools, too.
    LeaseGuardTwice,
    /// A pool does not wait for as long as a node counts on what it holds.
    LeaseTakenBackEarly,
    /// A cell's speaker answers a draw and does not charge it.
    DrawUncharged,
    /// A draw is charged, and used, by other numbers than the limit has where a request waits.
    DrawOfOtherNumbers,
    /// What was drawn passes every request that waits for it.
    DrawUsedTwice,
    /// What was drawn passes a request that came after it was charged.
    DrawUsedByAnybody,
}

/// Whether a rule is left out in this thread.
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

    /// Whether a rule is left out in this thread.
    #[inline]
    pub fn mutated(rule: Mutation) -> bool {
        CHOSEN.with(|chosen| chosen.get() == Some(rule))
    }

    /// Leaves one rule out in this thread from now on, or none.
    pub fn break_rule(rule: Option<Mutation>) {
        CHOSEN.with(|chosen| chosen.set(rule));
    }
}

#[cfg(feature = "mutations")]
pub use switch::{break_rule, mutated};
