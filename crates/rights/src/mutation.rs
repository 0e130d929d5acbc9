//! Mutations: rules that tests may break, one at a time, to see that the checks notice.
//!
//! Without the feature `mutations`, [`mutated`] is `false` and costs nothing.

#[cfg(all(feature = "mutations", not(debug_assertions)))]
compile_error!("the feature `mutations` is for tests: a build without debug assertions refuses it");

/// A check that notices broken rules, one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Histories of loans, and a story: `rights/tests/rights/loans/kills.rs`.
    Loans,
    /// Histories of transfers, in the file of [`Check::Loans`].
    Transfers,
    /// Histories and stories of pools: `rights/tests/rights/pool.rs`.
    Pools,
    /// Histories of versions: `rights/tests/rights/versions.rs`.
    Versions,
    /// Stories of nodes: `node/tests/node`.
    Node,
    /// A hundred histories of a ring of nodes, and its stories: `tests/ring/src/kill.rs`.
    Ring,
    /// Many more histories of that ring.
    RingPatient,
    /// Scenarios of the simulator: `sim/src/kill.rs`.
    Sim,
    /// No check notices yet.
    Nothing,
}

/// Makes [`Mutation`] of one list. After its colon, a rule names the checks that must notice if it is broken.
/// The checks take their tables from here, or compare them with this list.
macro_rules! mutations {
    ($($(#[$doc:meta])* $rule:ident: $($check:ident)+;)*) => {
        /// A broken rule. Each variant's comment says what the code does wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Mutation {
            $($(#[$doc])* $rule,)*
        }

        impl Mutation {
            /// All mutations.
            pub const ALL: &[Self] = &[$(Self::$rule),*];

            /// The name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$rule => stringify!($rule),)*
                }
            }

            const fn noticed_by(self) -> &'static [Check] {
                match self {
                    $(Self::$rule => &[$(Check::$check),+],)*
                }
            }
        }
    };
}

impl Mutation {
    /// Whether a check must notice if the rule is broken.
    pub const fn is_noticed_by(self, check: Check) -> bool {
        let (checks, mut place) = (self.noticed_by(), 0);
        while place < checks.len() && checks[place] as u8 != check as u8 {
            place += 1;
        }
        place < checks.len()
    }

    /// The table of a check: all that it must notice.
    pub fn table(check: Check) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |rule| rule.is_noticed_by(check))
    }
}

mutations! {
    /// The giver takes a loan back without allowing for clocks that drift.
    NoDriftMargin: Loans RingPatient;
    /// A lower share is acknowledged while the cell owes more.
    ConformIndebted: Loans;
    /// The giver renews without moving its own ends.
    RenewWithoutExtending: Loans Ring Sim;
    /// A renewal does not list the frozen loans.
    RenewWithoutExcept: Loans Ring Sim;
    /// A restarted giver renews loans of its earlier process.
    RenewLoansOfEarlierProcess: Loans;
    /// A holder counts a renewal from its arrival.
    RenewExtendsFromReceipt: Loans Ring Sim;
    /// A renewal revives loans that ended unseen.
    LapseForgotten: Loans RingPatient;
    /// A holder forgets that a loan was frozen when a renewal stops listing it.
    FreezeForgotten: Loans;
    /// A freeze undoes earlier renewals of the loan.
    FreezeKeepsOldEnd: Loans;
    /// A refusal is forgotten if it comes while no more loans can be frozen.
    RefusalForgotten: Ring;
    /// A holder takes a heartbeat of its earlier process for its own.
    HeartbeatsOfAnyProcess: Loans RingPatient;
    /// A holder counts a loan from the arrival of its grant.
    DateFromReceipt: Loans Ring Sim;
    /// A grant is accepted after its end.
    AcceptEnded: Loans Ring;
    /// A duplicate of a grant is accepted.
    AcceptTwice: Loans Ring Sim;
    /// A loan arrives with its whole capacity unspent.
    AcceptFull: Loans Ring Sim;
    /// The giver keeps the tokens that travel.
    GiverKeepsTokens: Loans Ring Sim;
    /// A giver sends more tokens than it has.
    LendTokensNotThere: Loans;
    /// A sliding window's capacity is lent although it is used.
    LendUsedCapacity: Loans Ring Sim;
    /// Borrowed parts are lent on.
    LendBorrowed: Loans;
    /// The last part of a rate is lent.
    LendLastRate: Loans;
    /// A loan gets the number of an earlier one.
    NumbersReused: Loans;
    /// A sliding window's capacity is used again while the holder's charges count.
    ReclaimWithoutLinger: Loans Ring Sim;
    /// A loan comes back without debt at the giver's end.
    OweNothingOnReclaim: Loans Ring;
    /// A holder's end sheds more debt than the giver will owe.
    ShedMoreThanOwed: Loans Ring;
    /// A return says that nothing is owed.
    GiveBackFull: Loans Sim;
    /// A sliding window's capacity is given back although it is used.
    GiveBackUsedCapacity: Loans Ring;
    /// A returned loan is still held.
    GiveBackAndKeep: Loans Ring Sim;
    /// A duplicate of a grant revives a returned loan.
    GiveBackForgets: Loans;
    /// A duplicate of a grant revives a forfeited loan.
    ForfeitForgets: Loans;
    /// A restart forgets lent loans.
    RestartForgetsLoans: Loans Ring Sim;
    /// A restart takes lent loans back at once.
    RestartWaitsForNothing: Loans Ring Sim;
    /// Units given away in a window may still be used.
    GivenNotCounted: Transfers Ring Sim;
    /// Used units of a window are given.
    GiveUsedUnits: Transfers;
    /// A transfer is added each time it arrives.
    ReceiveAdds: Transfers Ring Sim;
    /// A node with a restored, older disk goes on.
    RestoredDiskUnseen: Transfers;
    /// More units are refunded than were spent.
    RefundUnspent: Transfers;
    /// Shares follow plain largest remainder, and fall when the total grows.
    LargestRemainder: Versions;
    /// A share is raised before anybody acknowledged.
    RaiseBeforeAck: Versions Ring Sim;
    /// A node waits only for the incarnations that an allocation lowers.
    AskLoweredOnly: Versions Ring;
    /// In an allocation that fences an incarnation, a node does not wait for the others.
    SkipSurvivorAck: Versions Ring Sim;
    /// An acknowledgement of a later allocation counts for the earlier ones.
    LaterAckCounts: Versions;
    /// A node that joins a region uses the total of a window stated before the window began.
    PoolRemembersAhead: Pools;
    /// A window used under an older share is used under a newer, larger share.
    RaiseIgnoresFrom: Versions;
    /// Units that an allocation moves stay in use by their old owner, in windows that begin afterwards too.
    SparesWhatFollows: Versions;
    /// Units that an allocation moves stay in use by their old owner, in windows of limits that others have
    /// not heard of.
    SparesUnheardOf: Versions;
    /// A node uses its units of the open window for later windows, until it makes new variants.
    OpenSharesLast: Node;
    /// If cells have their own edges, shares of windows that begin later are used in open ones.
    LaterSharesEarly: Node;
    /// A region has all of a number that a caller names.
    CallersShareWhole: Node;
    /// A cell that leaves a shared cell keeps that cell's window, which may end at another time than its own.
    SharedWindowKept: Node;
    /// A wall clock that nobody confirmed since the start dates durable records.
    BelievesAtStart: Sim;
    /// While peers contradict a node's wall, its uncertainty grows as if it reached no peer.
    DoubtGrows: Sim;
    /// A node keeps a wall that has moved along with its steady clock, whoever contradicts the wall.
    OutvotedGoesOn: Sim;
    /// One peer that contradicts a wall outvotes all peers that agree.
    OneOutvotes: Sim;
    /// A node uses a wall that was set, though no peer agrees.
    StepBelieved: Sim;
    /// A wall that the system set back keeps its largest time.
    WallKeepsLargest: Sim;
    /// The wall is dated by a steady reading from before the wall was read.
    WallDatedEarly: Sim;
    /// The counter is not compared with the system's clock.
    CounterTrusted: Sim;
    /// A wall that is set back reopens the windows that it left.
    WallReopensWindows: Node;
    /// The time in an acknowledgement has no clock margin.
    NoClockMargin: Versions;
    /// Buckets and sliding windows do not wait for what is owed.
    NoWaitAfterAck: Versions Ring;
    /// A wait goes on after a restart as if the steady clock had not restarted.
    RestartKeepsWaits: Versions;
    /// A node adopts any version, older ones too.
    AdoptOlderVersion: Versions;
    /// An acknowledgement leaves before it is on disk.
    AckBeforeDurable: Versions;
    /// A later incarnation has the earlier one's share.
    TrustUnnamedIncarnation: Versions Ring Sim;
    /// A node that begins with a later version uses its share at once.
    JoinAtOnce: Versions RingPatient;
    /// Nobody waits for a member that leaves.
    ForgetLeavers: Versions Ring;
    /// An allocation is forgotten as if removed limits had never existed.
    ForgetRemovedLimits: Ring;

    // Rules of the node.
    /// A grant leaves before the loan is on disk.
    GrantBeforeDurable: Ring Sim;
    /// A loan is given back before the remaining debt is on disk.
    ReturnBeforeDurable: RingPatient;
    /// A loan that ended before the variant changed ends by the new variant.
    EndLoansByNewVariant: Ring;
    /// The first frames of a process carry a heartbeat that it sends later.
    HeartbeatBeforeSent: RingPatient;
    /// A transfer leaves before it is on disk.
    GiveBeforeDurable: Ring Sim;
    /// A restart forgets units that were given away.
    RestartForgetsPledge: Ring Sim;
    /// A crash forgets spending.
    CrashForgetsSpent: Ring Sim;
    /// The rows of a clean stop stay on the disk while the next process spends.
    StoppedTwice: Node Ring;
    /// A cell is charged before its ended loans are gone.
    SettleLate: Ring;
    /// A new variant leaves a cell with loans unchanged.
    ReshareWithoutNewVariant: Ring Sim;
    /// A cell's debt is forgotten when its variant changes.
    RebuildForgetsDebt: Ring Sim;
    /// A node goes on hearing an earlier process of a peer.
    TrustOldProcess: Ring;
    /// Near an edge only one window is charged.
    NoMargin: Ring Sim;
    /// A node goes on though it knows that its disk is an old one.
    OldDiskTrusted: Ring Sim;
    /// A node that the catalogue does not name has a share.
    OwnsNothingIgnored: Ring Sim;
    /// A version is acknowledged while a cell has lent or owes more than its part.
    ConformAtOnce: Ring Sim;
    /// A node keeps loans held from a closed incarnation.
    HoldOfClosed: Ring;
    /// The wait for spending under a larger variant is only as long as the present variant takes to drain.
    DrainAsOfNow: Ring;
    /// After a restart the node assumes that the steady clock went on.
    TrustAnchor: Ring;
    /// A state on disk covers a state with another rate.
    CoverByAnotherRate: RingPatient;
    /// After a crash, a window counts as spent only up to the present variant's limit.
    SpentAsOfNow: Nothing;
    /// A clock that goes back reopens a window that was left.
    WindowReopens: Ring;
    /// Units of a removed limit are still given away.
    GiveOfRemoved: Nothing;
    /// The disk keeps nothing of a cell that is not journalled, though the cell owes more than a crash
    /// presumes.
    OverdrawnUnwritten: Ring;
    /// A bucket's rate is lowered, and the cells' debts at that time are not written to disk.
    SlowedUnwritten: Ring;
    /// A bucket gets back the whole charge, even units that the rate has given back since.
    RefundInFull: Ring;
    /// A charge is given back each time somebody asks.
    RefundTwice: Ring Sim;
    /// A charge that a crash forgot is given back.
    RefundForgotten: Ring;
    /// A charge is given back to the open window, whichever window was charged.
    RefundIntoOpenWindow: Ring Sim;
    /// Refunded units are spent before the refund is on disk.
    RefundBeforeDurable: Ring;
    /// A refund ignores that the rate was higher before.
    RefundAfterSlowing: Ring;
    /// A charge is given back while other nodes answer by it.
    RefundWhileShared: Node;
    /// Slots are renewed though their node has fewer than are taken.
    RenewBeyondPart: Node;
    /// Slots of which a crash forgot the charge are renewed.
    RenewForgotten: Node;
    /// A renewal is told before it is on disk.
    RenewBeforeDurable: Node;
    /// A request of cost 0 holds nothing.
    HoldOfNothing: Node Sim;
    /// The units of a hold that nobody reports stay charged.
    HoldNeverLapses: Node Sim;
    /// A report that names no charge settles a hold whose request has slots, too.
    UnnamedReportFreesSlots: Node;
    /// A debt ends with its window, though its limit carries debts.
    DebtEndsWithWindow: Node;
    /// A cell is dropped when its window is over, though it owes.
    OwingCellDropped: Node;
    /// A carried debt is paid by a cell's own part alone, not by what came from other regions.
    DebtPaidByOwnPart: Node;
    /// A region spends units that it should keep back for what others owe.
    DebtOfOthersSpent: Node;
    /// A region forgets at an edge what others owe, though the debt is carried.
    DebtOfOthersEndsAtEdge: Node;
    /// A region keeps units back for a debt, and does not give them to the region that owes.
    KeptForDebtNotGiven: Node;
    /// A region that owes falls silent when nobody asks for the cell any more.
    DebtUntoldWhenIdle: Node;
    /// A repeated request with one name is charged each time.
    RepeatChargesAgain: Ring;
    /// The least variant that a cell may have is taken for its known variant.
    GuessTakenForKnown: Ring;
    /// A lease is charged when it is taken, and its capacity comes back while it may be spent.
    LeaseNotSetApart: Ring Sim;
    /// Spending that a crash forgot is forgotten again by the next crash, though the limit is journalled by
    /// then.
    ForgottenUnwritten: Ring;
    /// A pool grants units that it may have drained too soon.
    PoolGrantsUnsure: Pools;
    /// A part that comes back drains in the pool while it may still have drained at its holder.
    PoolDrainsEarly: Pools;
    /// An ended lease comes back to its pool unspent.
    PoolOwesNothing: Pools;
    /// A pool hears a call that comes after a later one.
    PoolHearsOlderCalls: Pools;
    /// A window's pool grants units to a call that comes after a later one.
    PoolGrantsOlderCalls: Pools;
    /// Units that others hold of a larger or a smaller pool count as so many units of this one.
    PoolCountsUnitsAlike: Pools Node;
    /// Units that an earlier process of a node held come back unspent.
    PoolTrustsTheDead: Pools Node;
    /// A pool grants before all nodes have told what they hold.
    PoolGrantsUntold: Pools Node Sim;
    /// A generation grants when the first node has told what it holds.
    PoolAsksOneNode: Pools Node Sim;
    /// If one node is excluded, all nodes that have told nothing are.
    PoolExcludesAll: Node;
    /// Units that an excluded node may hold count as nothing.
    PoolForfeitsNoExcluded: Node;
    /// A pool that forgot begins full.
    PoolBeginsFull: Pools Node;
    /// A node with an earlier allocation among regions moves the pools back to it, and units that others hold
    /// are not counted in proportion.
    PoolHearsOldAllocation: Pools Node;
    /// A generation that goes on trusts the pools' knowledge without a witness: a node that used it and knows
    /// of nothing later.
    PoolGoesOnUnwitnessed: Pools;
    /// A pool with far fewer units than before forgets the debt that ticks cannot count.
    PoolForgetsBeyond: Pools;
    /// A bucket's pool that was called before all nodes had told takes earlier spending as known.
    PoolForgetsUnknown: Pools;
    /// An answer under a name counts in every generation.
    NameOutlivesGeneration: Pools;
    /// An answer is kept under a name without the claim.
    NameKeptUnclaimed: Pools;
    /// Spending is unknown only up to the first node's statement of what it holds.
    PoolKnowsFromFirst: Pools;
    /// No window is forfeited, even if a node lost its record of what it had taken.
    PoolBurnsNothing: Pools Node;
    /// Units that an earlier process of a node took from a window are forgotten.
    PoolForgetsTheDead: Pools;
    /// A promoted replica is taken for the process before it.
    PoolKnowsNoProcess: Pools Sim;
    /// A generation counts as a first though not all nodes are new.
    PoolNewToOne: Pools Node;
    /// Units that a sliding window's lease may have used count no more when the lease ends.
    PoolLingersNot: Pools;
    /// A node counts a lease from the arrival of the answer.
    BalanceDatesFromAnswer: Pools;
    /// A node takes up the answer to an earlier call.
    BalanceHearsOlderCalls: Pools;
    /// After a lease's end its kept part comes back, unspent, with the answer to a call that was under way.
    BalanceHearsAfterItsEnd: Pools;
    /// A node gives parts back after the call that says so.
    BalanceKeepsWhatItGave: Pools;
    /// A cell goes on with a lease that has ended.
    LeaseOutlivesItsEnd: Node Sim;
    /// A node does not tell in a new generation what it holds.
    LeaseUntold: Node Sim;
    /// A node says that it has told all while a call of the group is under way.
    LeaseAssertedEarly: Node Sim;
    /// A node uses a generation before the generation is on its disk.
    LeaseForgetsGeneration: Node;
    /// An answer of a generation that does not grant renews a lease.
    LeaseRenewedUngranted: Node;
    /// Pools that have forgotten grant while loans of an evicted node may be out.
    LeaseForgetsLoansOfGone: Node;
    /// A node takes up a grant by a larger limit after the limit was lowered.
    LeaseTakesUpMore: Node;
    /// A lease under an old variant is cut when the cell is next looked at, not when the cell gets its new
    /// variant.
    LeaseShrinksLate: Node;
    /// Units of a window's pool that a stopping node gave back count as spent from the pool, and not from its
    /// own part.
    LeaseStopsBeforeReturns: Node;
    /// A node calls for more of a window before the most that the call may bring is on disk.
    LeaseTakesUnwritten: Node;
    /// A node takes from windows that begin later than leases last.
    LeaseTakesAnyTime: Node;
    /// Others use a node's total of a window for which nobody makes new variants.
    LeaseSaysWhatIsOver: Node;
    /// Units of windows that a node took and that the region no longer owns count as nothing after the pools
    /// were lost.
    LeaseForgetsWhoLeft: Node;
    /// Nodes keep their whole leases when the pools become part of another allocation among regions.
    LeaseOutlivesAllocation: Node;
    /// Units that a node took from a window's pool and gave to another region may be used as well.
    LeaseGivesTwice: Node;
    /// A node lends from a lease for longer than the lease lasts.
    LeaseLendsForLonger: Node;
    /// Loans from a lease are renewed until the lease ends.
    LeaseRenewsToTheEnd: Node;
    /// A node gives back to the pool units that it has lent from its lease.
    LeaseReturnsWhatIsLent: Node;
    /// A node acknowledges a smaller lease while it has lent more.
    LeaseConformsWhileLent: Node;
    /// If a node may lease less than it has lent, it does not ask the loans back.
    LeaseLendsBeyondLowered: Node;
    /// A process calls pools while loans are out that rest on leases of an earlier process.
    LeaseForgetsLoans: Node;
    /// A node does not tell the withdrawals of its earlier processes from windows.
    LeaseForgetsWithdrawals: Node;
    /// A node counts withdrawals of earlier processes as told in a generation in which nobody told them.
    LeaseWithdrawalsToldEarly: Node;
    /// A node that has lost its disk takes any generation that grants for the latest.
    LeaseTrustsStrangers: Node;
    /// A node hears of generations before all others count it.
    LeaseHearsUncounted: Node;
    /// A node that has lost its disk says that it is new, whatever was granted before.
    LeaseNewTwice: Node;
    /// The nodes' guard shares are in the pools, too.
    LeaseGuardTwice: Node Sim;
    /// A pool does not wait for as long as a node counts on what it holds.
    LeaseTakenBackEarly: Node Sim;
    /// A cell's owner answers a forward and does not charge it.
    ForwardUncharged: Node;
    /// A forward is charged, and used, by another variant than the limit has where a request waits.
    ForwardOfAnotherVariant: Node;
    /// One forwarded charge passes every request that waits for it.
    ForwardUsedTwice: Node;
    /// A forwarded charge passes a request that came after the charge was made.
    ForwardUsedByAnybody: Node;
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
