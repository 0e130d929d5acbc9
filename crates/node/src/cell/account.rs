//! One cell's dealings with other regions: loans, transfers, and the demand since the last rebalance.
//!
//! A cell becomes *active*, and gets an account, when a region has used half of its own part or has denied
//! something. Another region that asks for the cell makes it active, too. The account lives until nothing is
//! lent, borrowed or asked for. All other cells are decided by the region's own variant and never cost a
//! message.
//!
//! The account keeps the cell's *effective* algorithm: the limit's algorithm with the standing share, plus
//! loans held, minus loans out. The effective algorithm changes only here, and the matching debt always moves
//! with it ([`acequia_rights::loan`]).

mod believed;
mod context;
mod demand;
mod lease;
mod loans;
mod lowered;
mod stop;
mod windows;

use acequia_limits::{Algorithm, Now, Part, RATE_PARTS, UNITS_MAX, algorithm::State};
use acequia_rights::{
    Book, CellChange, Sessions, Transfers,
    mutation::{Mutation, mutated},
};

pub(crate) use self::{
    context::CellContext,
    demand::{ExpectedWait, Offered, Rebalancer},
    lease::{LeaseStatement, LeaseTimes, Withdrawn},
    loans::{Giver, LoanId},
    lowered::{charged, shrinks_with_pool},
    windows::Gift,
};
use self::{
    demand::AccountDemand,
    loans::Loans,
    windows::{NO_WINDOWS, Rolled, Windows},
};
use crate::cell::record::{Pledge, is_debt_rewritten};

/// One cell's dealings with other regions.
#[derive(Debug)]
pub(crate) struct Account {
    /// The limit's algorithm with the part that the cell has now.
    pub(crate) algorithm: Algorithm,
    standing: Part,
    book: Book,
    /// Transfers of windows, if the limit has windows; and what is held of pools, if the region has pools.
    windows: Option<Box<Windows>>,
    /// Units that callers may spend until their leases end. Leased units always belong to the own part: see
    /// `lease`.
    leased: u64,
    debts: Debts,
    /// When the first loan ends, if none is renewed: steady clock.
    due_ns: u64,
    rolled: Rolled,
    /// Whether the clock went back to before the open window. Nobody remembers what was given away of the
    /// window that the clock shows now, so nothing of that window may be used.
    went_back: bool,
    demand: AccountDemand,
    /// Whether a rebalance is waiting.
    is_flagged: bool,
    /// Who rebalances the cell, indexed by [`Rebalancer`].
    rebalancers: [bool; 2],
    /// Whether the disk must learn of a change in what is given away.
    unwritten: bool,
    /// Whether a bucket's variant changed, so that its state on the disk would mean something else under the
    /// new variant.
    variant_changed: bool,
    /// Facts about loans that the book does not hold; `None` if there were no loans.
    loans: Option<Box<Loans>>,
}

/// Units that were spent before they were asked for ([`acequia_limits::debt`]).
#[derive(Clone, Copy, Debug, Default)]
struct Debts {
    /// Units recorded here though they did not fit, while the cell owes: what other regions hear of. A cell also
    /// owes when a loan ends that it has spent, and nobody keeps units back for that.
    overdrawn: u64,
    /// Units that are not admitted here, because other regions owe as many.
    kept: u64,
}

/// A change of a limit's variant, for one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VariantChange<'a> {
    /// The old variant, if it is known.
    pub(crate) before: Option<&'a CellContext<'a>>,
    pub(crate) context: &'a CellContext<'a>,
    /// The new variant began at some time before `now`, and no later than this.
    pub(crate) began: Now,
    pub(crate) now: Now,
}

impl Account {
    /// An account with nothing lent and nothing held.
    pub(crate) fn new(context: &CellContext<'_>) -> Self {
        Self::with_book(context, Book::default())
    }

    /// The account after a restart, from its record on the disk: loans out wait their whole time, and nothing
    /// is held. If what was spent is `forgotten`, so is what was received.
    pub(crate) fn restored(context: &CellContext<'_>, pledge: &Pledge, now: Now, forgotten: bool) -> Self {
        let mut book = Book::from_lent(pledge.lent.iter().copied());
        book.restart(now.steady_ns);
        let until_ns = book.lent().iter().map(|lent| lent.end_ns).max();
        let mut account = Self::with_book(context, book);
        if let Some(until_ns) = until_ns {
            account.windows_mut().restored_until_ns = until_ns;
        }
        for transfers in &pledge.transfers {
            let transfers = if forgotten { transfers.without_received() } else { transfers.clone() };
            let Windows { open, next, .. } = account.windows_mut();
            if open.end_ns == 0 || transfers.end_ns < open.end_ns {
                *next = std::mem::replace(open, transfers);
            } else {
                *next = transfers;
            }
        }
        account.standing = context.standing(account.window());
        account.rebuild(context);
        account.due_ns = 0;
        account.rolled.over_ns = 0;
        account
    }

    fn with_book(context: &CellContext<'_>, book: Book) -> Self {
        // The least of all windows, until the open window is determined.
        let standing = context.local.part_of(context.salt, 0);
        Self {
            algorithm: context.local.with(context.global, book.effective(standing)),
            standing,
            book,
            windows: None,
            leased: 0,
            debts: Debts::default(),
            due_ns: u64::MAX,
            rolled: Rolled::default(),
            went_back: false,
            demand: AccountDemand::default(),
            is_flagged: false,
            rebalancers: [false; 2],
            unwritten: false,
            variant_changed: false,
            loans: None,
        }
    }

    /// Bytes that the account takes, beside the cell.
    pub(crate) fn bytes(&self) -> usize {
        let windows = self.windows.as_ref().map_or(0, |_| size_of::<Windows>());
        let loans = self.loans.as_ref();
        let loans = loans.map_or(0, |loans| size_of::<Loans>() + loans.believed.heap_bytes());
        size_of::<Self>() + windows + self.book.heap_bytes() + loans
    }

    /// Whether the passing of time has changed what the cell has.
    #[inline]
    pub(crate) fn is_due(&self, now: Now) -> bool {
        (now.steady_ns >= self.due_ns || self.rolled.is_over(now)) && !mutated(Mutation::SettleLate)
    }

    /// Units that this cell may not spend now: callers spend them until their leases end, or other regions owe
    /// as many.
    #[inline]
    pub(crate) const fn kept_back(&self) -> u64 {
        self.leased.saturating_add(self.debts.kept)
    }

    /// Keeps units back, because other regions owe as many.
    pub(crate) fn keep_for_debts(&mut self, units: u64) {
        self.debts.kept = if mutated(Mutation::DebtOfOthersSpent) { 0 } else { units };
    }

    /// Units that are kept back because other regions owe as many: to be given to these regions.
    pub(crate) fn kept_for_debts(&self) -> u64 {
        if mutated(Mutation::KeptForDebtNotGiven) { 0 } else { self.debts.kept }
    }

    /// Whether units are kept back beyond the end of a window, since what other regions owe is carried.
    pub(crate) fn keeps_over_edges(&self) -> bool {
        self.algorithm.carries() && !mutated(Mutation::DebtOfOthersEndsAtEdge)
    }

    /// Whether the cell owed units that were spent before they were asked for, when that was last settled.
    pub(crate) const fn owes(&self) -> bool {
        self.debts.overdrawn > 0
    }

    /// Notes units that were recorded though they did not fit.
    pub(crate) const fn note_overdrawn(&mut self, units: u64) {
        self.debts.overdrawn = self.debts.overdrawn.saturating_add(units);
    }

    /// Units that the cell owes because they were spent before they were asked for.
    pub(crate) fn overdrawn(&self, state: &[u64], now: Now, salt: u32) -> u64 {
        // What is carried from one window to the next is known from the state, after a restart too.
        match self.debts.overdrawn.max(self.algorithm.overdrawn(state)) {
            0 => 0,
            overdrawn => overdrawn.min(self.algorithm.debt(state, now, salt)),
        }
    }

    /// Updates what the cell owes, which only becomes less until more is overdrawn.
    pub(crate) fn settle_overdrawn(&mut self, state: &[u64], now: Now, salt: u32) -> u64 {
        self.debts.overdrawn = self.overdrawn(state, now, salt);
        self.debts.overdrawn
    }

    pub(crate) const fn lease(&mut self, leased: u64) {
        self.leased = leased;
    }

    /// Whether `units` more may be leased: only of the own part that is not lent, so that no loan ends before
    /// the lease.
    pub(crate) fn may_lease(&self, units: u64) -> bool {
        // At a node that shares its region's pools, callers lease nothing.
        units <= self.book.spare(self.standing).units.saturating_sub(self.leased)
    }

    pub(crate) const fn standing(&self) -> Part {
        self.standing
    }

    pub(crate) const fn book(&self) -> &Book {
        &self.book
    }

    /// What the cell has now.
    pub(crate) fn effective(&self) -> Part {
        match &self.algorithm {
            Algorithm::FixedWindow(_) if self.went_back => Part::default(),
            Algorithm::FixedWindow(_) => {
                let windows = self.windows();
                let units = windows.limit(&windows.open, windows.open.end_ns, self.standing.units);
                Part { rate: 0, units: units.min(UNITS_MAX) }
            }
            _ => self.book.effective(self.own()),
        }
    }

    /// What this node may use or lend: its standing share, and what it holds of the pool.
    fn own(&self) -> Part {
        let pooled = self.usable_pool();
        Part {
            rate: self.standing.rate.saturating_add(pooled.rate).min(RATE_PARTS),
            units: self.standing.units.saturating_add(pooled.units).min(UNITS_MAX),
        }
    }

    /// The part of the account that must survive a restart.
    pub(crate) fn pledge(&self) -> Pledge {
        let given = |transfers: &&Transfers| !transfers.given().is_empty();
        if mutated(Mutation::RestartForgetsPledge) {
            return Pledge::default();
        }
        Pledge {
            lent: self.book.lent().to_vec(),
            transfers: [self.open(), self.next()].into_iter().filter(given).cloned().collect(),
        }
    }

    /// The disk shall get the account again: a repeated message must not leave before the account is on disk.
    pub(crate) const fn write_again(&mut self) {
        self.unwritten = true;
    }

    /// Whether the disk must learn of a change in what is given away; says so once.
    pub(crate) const fn take_unwritten(&mut self) -> bool {
        std::mem::replace(&mut self.unwritten, false)
    }

    /// Whether a bucket's variant changed since this was last asked.
    pub(crate) const fn take_variant_changed(&mut self) -> bool {
        std::mem::replace(&mut self.variant_changed, false)
    }

    /// Whether no movement between regions still counts.
    pub(crate) fn is_at_home(&self, now: Now) -> bool {
        let nothing_given = self.open().is_empty() && self.next().is_empty();
        self.book.is_empty(now.steady_ns) && nothing_given && !self.unwritten
    }

    /// Whether the account means the same as no account.
    pub(crate) fn is_empty(&self, now: Now) -> bool {
        self.is_at_home(now) && self.withdrawn().is_empty() && self.pooled() == Part::default()
    }

    /// Applies what time has changed: loans that ended, each at its instant, and windows that are over. Says
    /// whether anything changed.
    pub(crate) fn settle(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        now: Now,
        sessions: &impl Sessions,
    ) -> bool {
        let mut changed = self.end_loans(state, context, 0, now, sessions);
        changed |= self.end_lease(state, context, now);
        self.cut_what_is_back(state, context, now);
        self.due_ns = self.book.next_expiry(sessions).unwrap_or(u64::MAX).min(self.pooled_until_ns());
        if self.rolled.is_over(now) {
            changed |= self.roll(state, context, now);
        }
        changed
    }

    /// Changes what the cell has, and moves the debt with it.
    fn apply(&mut self, state: &mut Vec<u64>, context: &CellContext<'_>, change: CellChange, at: Now) {
        let old = std::mem::replace(&mut self.algorithm, context.global.clone());
        self.rebuild(context);
        self.variant_changed |= self.algorithm.has_rate() && self.algorithm != old;
        set(state, self.resized(&old, state, at));
        self.algorithm.owe(state, at, change.owe);
        self.algorithm.forgive(state, at, change.shed);
    }

    /// The state with another part: the debt stays.
    fn resized(&self, old: &Algorithm, state: &[u64], at: Now) -> State {
        match mutated(Mutation::RebuildForgetsDebt) {
            true => self.algorithm.fresh(),
            false => self.algorithm.resize(old, state, at),
        }
    }

    /// Brings the effective algorithm to what the cell has now.
    fn rebuild(&mut self, context: &CellContext<'_>) {
        let part = self.effective();
        self.algorithm = context.local.with(context.global, part);
        if let Algorithm::FixedWindow(window) = &mut self.algorithm {
            let windows = self.windows.as_deref().unwrap_or(&NO_WINDOWS);
            let end_ns = window.end_after(windows.open.end_ns, context.salt);
            let transfers = if windows.next.end_ns == end_ns { &windows.next } else { &NO_WINDOWS.next };
            let standing = context.standing(end_ns);
            window.next_limit = windows.limit(transfers, end_ns, standing.units);
        }
    }

    /// Adopts the limit's present variant. The larger of the two possible debts counts, as the variant may
    /// have begun any time before now.
    ///
    /// Afterwards the debt is as of now, so what comes back counts from now, too.
    pub(crate) fn change_variant(
        &mut self,
        state: &mut Vec<u64>,
        change: &VariantChange<'_>,
        sessions: &impl Sessions,
    ) {
        let VariantChange { before, context, began, now } = *change;
        let ends_before = ends_by_old_variant();
        if let Some(before) = before.filter(|_| ends_before) {
            self.end_loans(state, before, 0, began.min(now), sessions);
            self.end_lease(state, before, began.min(now));
        }
        let old = self.algorithm.clone();
        self.standing = context.standing(self.window());
        self.algorithm = context.global.clone();
        self.rebuild(context);
        if let Some(carried) = old.carried(state, now, context.salt, &self.algorithm) {
            set(state, carried);
        }
        let late = self.algorithm.resize(&old, state, now);
        let early = self.algorithm.resize(&old, state, began.min(now));
        let larger = if self.algorithm.covers(early.as_slice(), late.as_slice(), now) { early } else { late };
        set(state, larger);
        self.unwritten |= self.algorithm.has_rate() && is_debt_rewritten();
        self.rolled.over_ns = 0;
        self.end_loans(state, context, if ends_before { now.steady_ns } else { 0 }, now, sessions);
        self.settle(state, context, now, sessions);
    }

    /// Under a new variant, too, the cell owes what a restart forgot.
    pub(crate) fn owe_forgotten(&self, state: &mut Vec<u64>, owe: impl FnOnce(&Algorithm, State) -> State) {
        let owed = owe(&self.algorithm, State::Heap(state.clone()));
        set(state, owed);
    }

    /// Units that could be charged now. For a window that is kept on disk, only units that the disk does not
    /// yet count as spent.
    pub(crate) fn available<'r>(
        &self,
        state: &[u64],
        reserved: impl Iterator<Item = &'r [u64]>,
        now: Now,
        salt: u32,
    ) -> u64 {
        let free = self.algorithm.available(state, now, salt);
        let windows = matches!(self.algorithm, Algorithm::FixedWindow(_));
        reserved
            .filter(|_| windows)
            .map(|reserved| self.algorithm.available(reserved, now, salt))
            .fold(free, u64::min)
    }

    /// Units that could be charged now, without those that are leased.
    pub(crate) fn unleased(&self, state: &[u64], now: Now, salt: u32) -> u64 {
        self.algorithm.available(state, now, salt).saturating_sub(self.leased)
    }
}

/// Loans that ended before a variant began ended under the variant before: the debt drained by its rate until
/// then, and must not be computed back by the new rate.
fn ends_by_old_variant() -> bool {
    !mutated(Mutation::EndLoansByNewVariant)
}

/// Replaces a state by a new one.
fn set(state: &mut Vec<u64>, new: State) {
    match new {
        State::Heap(new) => *state = new,
        State::Inline(new) => {
            state.clear();
            state.extend(new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_takes_four_hundred_bytes() {
        assert!(size_of::<Account>() <= 400, "{} bytes", size_of::<Account>());
    }
}
