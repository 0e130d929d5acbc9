//! One cell's dealings with other regions: loans, transfers, and the demand since the last rebalance.
//!
//! A cell gets an account when it becomes *warm*, or when another region asks for it. A cell is warm when a
//! region has used half of its own part or has denied something. The account lives until nothing is lent,
//! borrowed or asked for. All other cells are decided by the region's own variant and never cost a message.
//!
//! The account keeps the cell's *effective* algorithm: the limit's algorithm with the standing share, plus
//! loans held, minus loans out. The effective algorithm changes only here, and the matching debt always moves
//! with it ([`acequia_rights::loan`]).

mod believed;
mod context;
mod lease;
mod lowered;
mod offered;
mod stop;

use acequia_limits::{Algorithm, Now, Part, RATE_PARTS, UNITS_MAX, Verdict, algorithm::State, window::Usage};
use acequia_rights::{
    Book, Change, Expired, Grant, Incarnation, Kind, MemberId, Offer, Refusal, Return, SentHeartbeats,
    Session, Sessions, Transfers,
    mutation::{Mutation, mutated},
    session::stretch,
};

use std::collections::BTreeMap;

use smallvec::SmallVec;

use self::believed::Believed;
pub(crate) use self::{
    context::CellContext,
    lease::{LeaseStatement as KeptOfPool, Withdrawn},
    lowered::charged,
    offered::{Offered, Rebalancer},
};
use crate::{
    cell::record::Pledge,
    forwards::{FORWARDED_NS, FORWARDED_NS_MAX},
};

/// After this long without missing units, the next missed units start a new period of waiting.
const MISSED_NS: u64 = 10 * 1_000_000_000;

/// How long it is worth waiting for units from other regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpectedWait {
    /// How long requested units may take to come; 0 if no region can be reached.
    pub(crate) lasts_ns: u64,
    /// When a region last became reachable after it had been unreachable: steady clock.
    pub(crate) met_ns: u64,
}

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
    /// When the first loan ends, if none is renewed: steady clock.
    due_ns: u64,
    /// When the open window is over, and when the open window was last determined: wall clock.
    over_ns: u64,
    rolled_ns: u64,
    /// Whether the clock went back to before the open window. Nobody remembers what was given away of the
    /// window that the clock shows now, so nothing of that window may be used.
    went_back: bool,
    /// The demand since the last rebalance.
    offered: Offered,
    /// If fewer units than this remain, a rebalance is worthwhile at once.
    low_water: u64,
    /// When units were first missed here, and when last: steady clock, 0 for never.
    missed_since_ns: u64,
    missed_ns: u64,
    /// Whether a rebalance is waiting.
    flagged: bool,
    /// Whether the disk must learn of a change in what is given away.
    unwritten: bool,
    /// Whether a bucket's variant changed, so that its state on the disk would mean something else under the
    /// new variant.
    renumbered: bool,
    /// Facts about loans that the book does not hold; `None` if there were no loans.
    loans: Option<Box<Loans>>,
    /// Who rebalances the cell, indexed by [`Rebalancer`].
    lookers: [bool; 2],
}

/// Facts about loans that need not be on the disk.
#[derive(Debug, Default)]
struct Loans {
    /// How much each region's loans are believed to have brought.
    believed: Believed,
    /// Loans that ended, for the sessions to forget.
    ended: Vec<Ended>,
}

/// Transfers of the open window and of the next one; and what is held of the region's pool.
#[derive(Debug, Default)]
struct Windows {
    open: Transfers,
    next: Transfers,
    /// Units that other regions reported as used of the cell in the open window.
    elsewhere: u64,
    /// What was withdrawn from the region's pools of the open window and of the next one.
    withdrawn: SmallVec<[Withdrawn; 2]>,
    /// What is held of the region's pool, if the limit has no windows with edges.
    lease: Option<lease::HeldLease>,
    /// How much of the pool this node could take to give away, as far as it knows; `None` if it has not
    /// asked.
    within_reach: Option<Part>,
    /// How much is to be taken from the pool to give away.
    for_others: Part,
    /// The most that may be held of the pool, if more is held until loans are back.
    most: Option<Part>,
    /// How the cell reduces what it holds when the pool is lowered.
    less: lowered::Lowered,
    /// A window's end, and what earlier processes gave away of that window. All that those processes had
    /// counts as spent.
    given_before: (u64, u64),
    /// The largest standing share here since an earlier process: all of those units count as spent by that
    /// process.
    stood: u64,
    /// When all loans of earlier processes have ended: steady clock. Such loans may rest on what the
    /// processes held of pools.
    restored_until_ns: u64,
    /// Demand that one rebalancer has seen and the other has not.
    unseen: [Offered; 2],
    /// When another node of the region last forwarded a charge here: steady clock, 0 for never.
    forwarded_ns: u64,
}

impl Windows {
    /// The units that may be used in a window, given the standing units. Units withdrawn from the pool count
    /// as if they stood: they too may be given away, and then are not used here.
    fn limit(&self, transfers: &Transfers, end_ns: u64, standing_units: u64) -> u64 {
        let withdrawn =
            self.withdrawn.iter().filter(|withdrawn| withdrawn.end_ns == end_ns).map(Withdrawn::units);
        if mutated(Mutation::LeaseGivesTwice) {
            return withdrawn.fold(transfers.limit(standing_units), u64::saturating_add);
        }
        let before = if end_ns == self.given_before.0 { self.given_before.1 } else { 0 };
        transfers.limit(withdrawn.fold(standing_units, u64::saturating_add).saturating_add(before))
    }
}

/// The windows of a cell that has none.
static NO_WINDOWS: Windows = Windows {
    open: Transfers::none(),
    next: Transfers::none(),
    elsewhere: 0,
    withdrawn: SmallVec::new_const(),
    lease: None,
    within_reach: None,
    for_others: Part { rate: 0, units: 0 },
    most: None,
    less: lowered::Lowered::NONE,
    given_before: (0, 0),
    stood: 0,
    restored_until_ns: 0,
    unseen: [Offered::NONE; 2],
    forwarded_ns: 0,
};

/// A loan that ended on time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    peer: Incarnation,
    number: u64,
    comes_back: bool,
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
        account.over_ns = 0;
        account
    }

    /// Counts what earlier processes gave away, at a node that shares its region's pools. `words` is the
    /// restored state. The whole window of those processes counts as spent: the standing share here, the rest
    /// in the pool. After a clean stop, what they spent of the own part is known, and includes what they gave
    /// ([`stop`]).
    pub(crate) fn count_given_before(
        &mut self,
        words: &[u64],
        context: &CellContext<'_>,
        is_forgotten: bool,
    ) {
        if !matches!(context.global, Algorithm::FixedWindow(_)) {
            return;
        }
        let (usage, open) = (Usage::of(words), self.open());
        let counts = usage.used >= self.standing.units || !is_forgotten;
        if usage.end_ns == open.end_ns && counts {
            let given = open.given_total();
            self.windows_mut().given_before = (usage.end_ns, given);
            self.rebuild(context);
        }
    }

    /// When all loans of earlier processes have ended: steady clock.
    pub(crate) fn restored_until_ns(&self) -> u64 {
        self.windows().restored_until_ns
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
            due_ns: u64::MAX,
            over_ns: 0,
            rolled_ns: 0,
            went_back: false,
            offered: Offered::default(),
            low_water: 0,
            missed_since_ns: 0,
            missed_ns: 0,
            flagged: false,
            unwritten: false,
            renumbered: false,
            loans: None,
            lookers: [false; 2],
        }
    }

    /// Bytes that the account takes, beside the cell.
    pub(crate) fn bytes(&self) -> usize {
        let windows = self.windows.as_ref().map_or(0, |_| size_of::<Windows>());
        let loans = self.loans.as_ref();
        let loans = loans.map_or(0, |loans| size_of::<Loans>() + loans.believed.heap_bytes());
        size_of::<Self>() + windows + self.book.heap_bytes() + loans
    }

    fn windows(&self) -> &Windows {
        self.windows.as_deref().unwrap_or(&NO_WINDOWS)
    }

    fn windows_mut(&mut self) -> &mut Windows {
        self.windows.get_or_insert_default()
    }

    /// Whether the passing of time has changed what the cell has.
    #[inline]
    pub(crate) fn is_due(&self, now: Now) -> bool {
        let window = now.wall_ns >= self.over_ns || now.wall_ns < self.rolled_ns;
        (now.steady_ns >= self.due_ns || window) && !mutated(Mutation::SettleLate)
    }

    /// Notes a request's units, and the units that must be there for it to pass. Says, once, whether a
    /// rebalance is due.
    #[inline]
    pub(crate) fn offer(&mut self, (units, needed): (u64, u64), verdict: &Verdict, now: Now) -> bool {
        self.offered.units = self.offered.units.saturating_add(units);
        let first = self.offered.events == 0;
        self.offered.smallest = if first { needed } else { self.offered.smallest.min(needed) };
        self.offered.largest = self.offered.largest.max(needed);
        self.offered.events = self.offered.events.saturating_add(1);
        if !verdict.allowed {
            let cost = u32::try_from(units).unwrap_or(u32::MAX);
            self.offered.missed = self.offered.missed.saturating_add(cost);
            self.offered.denied = self.offered.denied.max(needed);
            self.miss(now);
        }
        let calls = !self.flagged && (!verdict.allowed || verdict.remaining < self.low_water);
        self.flagged |= calls;
        calls
    }

    /// Notes that another node of the region forwarded a charge to this cell.
    pub(crate) fn note_forwarded(&mut self, now: Now) {
        self.windows_mut().forwarded_ns = now.steady_ns;
    }

    /// Whether other nodes forwarded charges here lately. Those nodes do not take the forwarded units from
    /// the region's pool. Under a limit with long windows, other nodes first use what they keep in each
    /// window.
    pub(crate) fn is_forwarded(&self, now: Now) -> bool {
        let drawn_ns = self.windows().forwarded_ns;
        let lasts_ns = match &self.algorithm {
            algorithm if algorithm.has_rate() => FORWARDED_NS,
            algorithm => FORWARDED_NS.saturating_add(2 * algorithm.period_ns()).min(FORWARDED_NS_MAX),
        };
        drawn_ns > 0 && now.steady_ns < drawn_ns + lasts_ns
    }

    /// Units that callers may spend until their leases end.
    #[inline]
    pub(crate) const fn leased(&self) -> u64 {
        self.leased
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

    /// Units that other regions reported as used.
    pub(crate) fn elsewhere(&self) -> u64 {
        self.windows().elsewhere
    }

    /// Other regions reported that they used `units`.
    pub(crate) fn hear_used(&mut self, units: u64) {
        if units != self.elsewhere() {
            self.windows_mut().elsewhere = units;
        }
    }

    /// Sets how few remaining units shall call for a rebalance.
    pub(crate) const fn set_low_water(&mut self, units: u64) {
        self.low_water = units;
    }

    /// How long units that are missed here may still come, in nanoseconds. The units come soon after they
    /// were first missed, or soon after other regions became reachable again (`met_ns`, steady clock), or not
    /// at all.
    pub(crate) fn hope_ns(&self, expected_wait: &ExpectedWait, now: Now) -> u64 {
        let since_ns = self.missed_since_ns.max(expected_wait.met_ns);
        since_ns.saturating_add(expected_wait.lasts_ns).saturating_sub(now.steady_ns)
    }

    /// Units came, so more may come if more are missed.
    pub(crate) const fn hope_anew(&mut self) {
        self.missed_since_ns = 0;
    }

    /// Notes that units are missed.
    fn miss(&mut self, now: Now) {
        if self.missed_since_ns == 0 || now.steady_ns.saturating_sub(self.missed_ns) > MISSED_NS {
            self.missed_since_ns = now.steady_ns;
        }
        self.missed_ns = now.steady_ns;
    }

    pub(crate) const fn standing(&self) -> Part {
        self.standing
    }

    pub(crate) const fn book(&self) -> &Book {
        &self.book
    }

    pub(crate) fn open(&self) -> &Transfers {
        &self.windows().open
    }

    fn next(&self) -> &Transfers {
        &self.windows().next
    }

    /// The end of the next window, if transfers for it came before it opened; 0 if none did.
    pub(crate) fn next_window(&self) -> u64 {
        self.next().end_ns
    }

    /// The transfers of a window.
    pub(crate) fn transfers_of(&self, end_ns: u64) -> Option<&Transfers> {
        [self.open(), self.next()].into_iter().find(|transfers| transfers.end_ns == end_ns)
    }

    /// The units that may be used in a window, given the standing units; `None` if the window has no
    /// transfers.
    pub(crate) fn limit_of(&self, end_ns: u64, standing_units: u64) -> Option<u64> {
        let transfers = self.transfers_of(end_ns)?;
        Some(self.windows().limit(transfers, end_ns, standing_units))
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

    /// How much of the pool must be held for as long as the loans are out.
    pub(crate) fn lent_of_pool(&self) -> Part {
        let lent = self.book.lent_total();
        // The last part of a rate is never lent.
        let last = u32::from(lent.rate > 0);
        Part {
            rate: lent.rate.saturating_add(last).saturating_sub(self.standing.rate),
            units: lent.units.saturating_sub(self.standing.units),
        }
    }

    /// Until when loans that rest on the pool may be renewed, so that all of them end before the hold on the
    /// pool does: steady clock. `None` if no loan rests on the pool.
    pub(crate) fn renews_until_ns(&self) -> Option<u64> {
        if self.lent_of_pool() == Part::default() {
            return None;
        }
        let renewing = self.book.lent().iter().filter(|lent| lent.renewing);
        let longest_ns = renewing.map(|lent| lent.wait_ns).max();
        Some(longest_ns.map_or(u64::MAX, |longest_ns| self.pooled_until_ns().saturating_sub(longest_ns)))
    }

    /// Whether more is lent than there is to lend or may be held for loans. An override that ends leaves
    /// less, without a new version.
    pub(crate) fn is_over_lent(&self) -> bool {
        self.windows().most.is_some() || self.book.is_over_lent(self.own())
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
    pub(crate) const fn take_renumbered(&mut self) -> bool {
        std::mem::replace(&mut self.renumbered, false)
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
        words: &mut Vec<u64>,
        context: &CellContext<'_>,
        now: Now,
        sessions: &impl Sessions,
    ) -> bool {
        let mut changed = self.end_loans(words, context, (0, now), sessions);
        changed |= self.end_lease(words, context, now);
        self.cut_what_is_back(words, context, now);
        self.due_ns = self.book.next_expiry(sessions).unwrap_or(u64::MAX).min(self.pooled_until_ns());
        if now.wall_ns >= self.over_ns || now.wall_ns < self.rolled_ns {
            changed |= self.roll(words, context, now);
        }
        changed
    }

    /// Ends the loans that are over, each at its instant. A loan that comes back ends no earlier than
    /// `lent_from_ns`.
    fn end_loans(
        &mut self,
        words: &mut Vec<u64>,
        context: &CellContext<'_>,
        (lent_from_ns, now): (u64, Now),
        sessions: &impl Sessions,
    ) -> bool {
        let mut changed = false;
        while let Some(expired) = self.book.expire_one(now.steady_ns, sessions) {
            let Expired { at_ns, peer, number, comes_back, change } = expired;
            let from_ns = if comes_back { lent_from_ns } else { 0 };
            let at = Now { steady_ns: at_ns.max(from_ns).min(now.steady_ns), ..now };
            self.apply(words, context, change, at);
            self.unwritten |= comes_back;
            self.loans.get_or_insert_default().ended.push(Ended { peer, number, comes_back });
            changed = true;
        }
        changed
    }

    /// Tells the sessions of loans that ended since the last call. Returns the loans that were held: if a
    /// renewal was late, their givers may not know, and would renew them for ever.
    pub(crate) fn tell_ended(
        &mut self,
        sessions: &mut BTreeMap<Incarnation, Session>,
    ) -> SmallVec<[(Incarnation, u64); 1]> {
        let mut held = SmallVec::new();
        for Ended { peer, number, comes_back } in
            self.loans.iter_mut().flat_map(|loans| loans.ended.drain(..))
        {
            if !comes_back {
                held.push((peer, number));
            }
            let Some(session) = sessions.get_mut(&peer) else { continue };
            if comes_back { session.came_back(number) } else { session.let_go(number) }
        }
        held
    }

    /// The end of the open window; 0 if there are no windows.
    pub(crate) fn window(&self) -> u64 {
        self.open().end_ns
    }

    /// Moves on to the window that is open now.
    fn roll(&mut self, words: &[u64], context: &CellContext<'_>, now: Now) -> bool {
        let Algorithm::FixedWindow(window) = &self.algorithm else {
            self.over_ns = u64::MAX;
            return false;
        };
        let end_ns = window.older_end(words, now.wall_ns, context.salt);
        let margin_ns = window.margin_ns;
        let changed = self.open().end_ns != end_ns && !(self.open().is_empty() && self.next().is_empty());
        self.went_back = end_ns < self.open().end_ns && !mutated(Mutation::WindowReopens);
        if self.open().end_ns != end_ns && !self.went_back {
            self.hope_anew();
            self.unwritten |= !self.open().given().is_empty();
            let Windows { open, next, elsewhere, withdrawn, .. } = self.windows_mut();
            *elsewhere = 0;
            withdrawn.retain(|withdrawn| withdrawn.end_ns >= end_ns);
            *open = if next.end_ns == end_ns { std::mem::take(next) } else { Transfers::new(end_ns) };
            if next.end_ns <= end_ns {
                *next = Transfers::default();
            }
        }
        // A clock that steps back does not reopen a window: what was given away of the present one would be
        // forgotten.
        self.over_ns = end_ns.saturating_add(margin_ns);
        self.rolled_ns = now.wall_ns;
        self.standing = context.standing(self.window());
        self.rebuild(context);
        changed
    }

    /// Changes what the cell has, and moves the debt with it.
    fn apply(&mut self, words: &mut Vec<u64>, context: &CellContext<'_>, change: Change, at: Now) {
        let old = std::mem::replace(&mut self.algorithm, context.global.clone());
        self.rebuild(context);
        self.renumbered |= self.algorithm.has_rate() && self.algorithm != old;
        match mutated(Mutation::RebuildForgetsDebt) {
            true => set(words, self.algorithm.fresh()),
            false => set(words, self.algorithm.resize(&old, words, at)),
        }
        self.algorithm.owe(words, at, change.owe);
        self.algorithm.forgive(words, at, change.shed);
    }

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

    /// Adopts the limit's present variant, `context`. The variant began at some time before `now`, and no
    /// later than `began`. The larger of the two possible debts counts.
    ///
    /// Loans that ended before did so under the old variant, `before`. The debt drained by the old rate until
    /// then, and must not be computed back by the new rate. Afterwards the debt is as of `now`, so what comes
    /// back counts from `now`, too.
    pub(crate) fn renumber(
        &mut self,
        words: &mut Vec<u64>,
        (before, context): (Option<&CellContext<'_>>, &CellContext<'_>),
        (began, now): (Now, Now),
        sessions: &impl Sessions,
    ) {
        let late_ends = mutated(Mutation::EndLoansByNewNumbers);
        if let Some(before) = before.filter(|_| !late_ends) {
            self.end_loans(words, before, (0, began.min(now)), sessions);
            self.end_lease(words, before, began.min(now));
        }
        let old = self.algorithm.clone();
        self.standing = context.standing(self.window());
        self.algorithm = context.global.clone();
        self.rebuild(context);
        let late = self.algorithm.resize(&old, words, now);
        let early = self.algorithm.resize(&old, words, began.min(now));
        let larger = if self.algorithm.covers(early.words(), late.words(), now) { early } else { late };
        set(words, larger);
        // The disk has the debt under another variant, which may drain more quickly, or not at all.
        self.unwritten |= self.algorithm.has_rate() && !mutated(Mutation::SlowedUnwritten);
        self.over_ns = 0;
        self.end_loans(words, context, (if late_ends { 0 } else { now.steady_ns }, now), sessions);
        self.settle(words, context, now, sessions);
    }

    /// Returns how far the new standing share exceeds all standing shares since an earlier process, which may
    /// have spent those. Each unit is returned once.
    pub(crate) fn stands_more(&mut self, before: u64, now: u64) -> u64 {
        let stood = self.windows().stood.max(before);
        self.windows_mut().stood = stood.max(now);
        now.saturating_sub(stood)
    }

    /// Under a new variant, too, the cell owes what a restart forgot.
    pub(crate) fn owe_forgotten(&self, words: &mut Vec<u64>, owe: impl FnOnce(&Algorithm, State) -> State) {
        let state = owe(&self.algorithm, State::Heap(words.clone()));
        set(words, state);
    }

    /// Whether the cell keeps to its own part: if not, the newest version cannot be acknowledged yet.
    pub(crate) fn conforms(&self, words: &[u64], now: Now) -> bool {
        let nothing_moves = self.book.lent().is_empty() && self.book.held().is_empty();
        let owed = self.algorithm.owed(words, now).saturating_add(self.leased);
        let is_cut = self.windows().most.is_none();
        is_cut && (nothing_moves || self.book.conforms(self.own(), owed))
    }

    /// How much could be lent now for `wait_ns`: of the own part, and of the hold on the pool if that lasts
    /// longer.
    pub(crate) fn spare(&self, wait_ns: u64, now: Now) -> Part {
        let lasts = self.pooled_until_ns() >= now.steady_ns.saturating_add(wait_ns);
        let is_held = lasts || mutated(Mutation::LeaseLendsForLonger);
        let spare = self.book.spare(if is_held && self.windows().most.is_none() {
            self.own()
        } else {
            self.standing
        });
        Part { units: spare.units.saturating_sub(self.leased), ..spare }
    }

    /// Units that could be charged now. For a window that is kept on disk, only units that the disk does not
    /// yet count as spent.
    pub(crate) fn available<'r>(
        &self,
        words: &[u64],
        reserved: impl Iterator<Item = &'r [u64]>,
        now: Now,
        salt: u32,
    ) -> u64 {
        let free = self.algorithm.available(words, now, salt);
        let windows = matches!(self.algorithm, Algorithm::FixedWindow(_));
        reserved
            .filter(|_| windows)
            .map(|reserved| self.algorithm.available(reserved, now, salt))
            .fold(free, u64::min)
    }

    fn kind(&self) -> Kind {
        match &self.algorithm {
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => Kind::Bucket,
            other => Kind::Sliding { lingers_ns: other.lingers_ns() },
        }
    }

    /// Units that could be charged now, without those that are leased.
    pub(crate) fn unleased(&self, words: &[u64], now: Now, salt: u32) -> u64 {
        self.algorithm.available(words, now, salt).saturating_sub(self.leased)
    }

    /// Lends. The grant may leave once the account is on disk.
    pub(crate) fn lend(
        &mut self,
        words: &mut Vec<u64>,
        context: &CellContext<'_>,
        offer: &Offer,
        session: &mut Session,
        now: Now,
    ) -> Result<Grant, Refusal> {
        // Leased units may still be spent, so neither the units nor their capacity can be lent.
        let available = self.unleased(words, now, context.salt);
        let spare = self.spare(stretch(offer.ttl_ns, session.drift_ppm()), now);
        if offer.part.units > spare.units || offer.part.rate > spare.rate {
            return Err(Refusal::NotSpare { asked: offer.part, spare });
        }
        let kind = self.kind();
        let lent = self.book.lend(self.own(), available, kind, offer, session, now.steady_ns);
        let (grant, change) = lent?;
        self.apply(words, context, change, now);
        // This loan may end before all others.
        let due_ns = self.book.lent().last().map_or(u64::MAX, |lent| session.reclaim_end(lent));
        self.due_ns = self.due_ns.min(due_ns);
        self.unwritten = true;
        Ok(grant)
    }

    /// Takes up a loan, unless all loans of its giver together exceed `stands`, the standing share of the
    /// giver's region.
    pub(crate) fn accept(
        &mut self,
        words: &mut Vec<u64>,
        context: &CellContext<'_>,
        (from, grant, stands): (Incarnation, &Grant, Part),
        (beats, session): (&SentHeartbeats, &mut Session),
        now: Now,
    ) -> Result<(), Refusal> {
        let kind = self.kind();
        let held = self.book.held();
        // A repeated grant is not another loan.
        let is_held = held.iter().any(|held| held.from == from && held.number == grant.number);
        let lent = held.iter().filter(|held| held.from.member == from.member).map(|held| held.part);
        let units = lent.clone().fold(grant.part.units, |all, part| all.saturating_add(part.units));
        let rate = lent.fold(grant.part.rate, |all, part| all.saturating_add(part.rate));
        if !is_held && (units > stands.units || rate > stands.rate) {
            return Err(Refusal::TooMuch { said: units, most: stands.units });
        }
        let mut change = self.book.accept(from, grant, kind, beats, session, now.steady_ns)?;
        let believed = self.loans.get_or_insert_default().believed.take(
            (from.member, stands),
            grant.tokens,
            context.global,
            now.steady_ns,
        );
        change.owe += grant.tokens - believed;
        self.apply(words, context, change, now);
        let due_ns = self.book.held().last().map_or(u64::MAX, |held| session.end_of(held));
        self.due_ns = self.due_ns.min(due_ns);
        Ok(())
    }

    /// Gives a loan back before its time. More tokens may go back than came: those with which the holder's
    /// own part repaid debt. If the disk keeps the debt (`durable`), the disk must learn of the change before
    /// the giver does; otherwise both would have the tokens after a crash.
    pub(crate) fn give_back(
        &mut self,
        words: &mut Vec<u64>,
        context: &CellContext<'_>,
        (from, number): (Incarnation, u64),
        session: &mut Session,
        (durable, now): (bool, Now),
    ) -> Result<Return, Refusal> {
        let mut available = self.algorithm.available(words, now, context.salt);
        if available > 0 && !self.algorithm.has_rate() {
            // Units beyond the limit, as this node knows the limit, are not used here and may go back.
            available += self.effective().units.saturating_sub(self.algorithm.budget());
        }
        let available = available.saturating_sub(self.leased);
        let (back, change) = self.book.give_back(number, from, available, now.steady_ns)?;
        if let Some(loans) = &mut self.loans {
            loans.believed.give_back(from.member, back.tokens, now.steady_ns);
        }
        session.let_go(number);
        self.apply(words, context, change, now);
        self.unwritten |= durable && self.algorithm.has_rate() && !mutated(Mutation::ReturnBeforeDurable);
        Ok(back)
    }

    /// Takes back a loan that its holder no longer needs.
    pub(crate) fn take_return(
        &mut self,
        words: &mut Vec<u64>,
        context: &CellContext<'_>,
        (from, back): (Incarnation, &Return),
        session: &mut Session,
        now: Now,
    ) -> Result<(), Refusal> {
        let change = self.book.take_return(from, back, session)?;
        self.apply(words, context, change, now);
        self.unwritten = true;
        Ok(())
    }

    /// Stops renewing all loans that are out, as far as the sessions have room to tell their holders: once as
    /// many as possible are frozen, nothing is renewed. Returns the loans that were frozen now.
    pub(crate) fn freeze_all(
        &mut self,
        sessions: &mut BTreeMap<Incarnation, Session>,
    ) -> SmallVec<[(u64, Incarnation); 4]> {
        let renewing = self.book.lent().iter().filter(|lent| lent.renewing);
        let mut frozen: SmallVec<[(u64, Incarnation); 4]> =
            renewing.map(|lent| (lent.number, lent.to)).collect();
        frozen.retain(|(number, to)| {
            sessions.get_mut(to).is_some_and(|session| self.book.freeze(*number, session).is_ok())
        });
        frozen
    }

    /// Notes that a holder does not hold a loan that is out. The loan is not renewed any more, as soon as the
    /// holder can be told.
    pub(crate) fn refused(&mut self, number: u64, session: &mut Session) -> Result<(), Refusal> {
        self.book.refused(number, session)
    }

    /// Stops renewing loans that were refused at a time when their holders could not be told.
    pub(crate) fn freeze_refused(&mut self, sessions: &mut BTreeMap<Incarnation, Session>) {
        self.book.freeze_refused(sessions);
    }

    /// Drops what is held from an incarnation that may lend no more, or from all if `from` is `None`.
    pub(crate) fn forfeit(
        &mut self,
        words: &mut Vec<u64>,
        context: &CellContext<'_>,
        from: Option<Incarnation>,
        now: Now,
    ) {
        let change = self.book.forfeit(from, now.steady_ns);
        if change != Change::default() {
            self.apply(words, context, change, now);
        }
    }

    /// Gives units of the open window away; returns the total given.
    pub(crate) fn give(
        &mut self,
        context: &CellContext<'_>,
        to: MemberId,
        units: u64,
        available: u64,
    ) -> Result<u64, Refusal> {
        let cumulative = self.windows_mut().open.give(to, units, available)?;
        self.rebuild(context);
        self.unwritten = true;
        Ok(cumulative)
    }

    /// The total that a region gave in a window that is known here.
    pub(crate) fn received(&self, from: MemberId, end_ns: u64) -> u64 {
        let known = [self.open(), self.next()].into_iter().filter(|transfers| transfers.end_ns == end_ns);
        let of = |transfers: &Transfers| {
            transfers.received().iter().find(|(region, _)| *region == from).map(|r| r.1)
        };
        known.filter_map(of).max().unwrap_or(0)
    }

    /// Takes units that a region gave away in the open window or the next. `stands` is the giver's standing
    /// share. A crash at `forgotten` forgot how many of the units received before were spent.
    pub(crate) fn receive(
        &mut self,
        context: &CellContext<'_>,
        from: MemberId,
        (end_ns, cumulative): (u64, u64),
        stands: u64,
        forgotten: Option<Now>,
    ) -> Result<u64, Refusal> {
        if let (Some(then), Algorithm::FixedWindow(window)) = (forgotten, &self.algorithm) {
            // The last window that may have been open at the crash.
            let latest_ns = then.wall_ns.saturating_add(2 * window.margin_ns);
            if end_ns <= window.first_end(latest_ns, context.salt) {
                return Err(Refusal::Stale);
            }
        }
        let opened_ns = self.open().end_ns;
        let gained = if end_ns == opened_ns {
            self.windows_mut().open.receive(from, cumulative, stands)?
        } else if end_ns > opened_ns && opened_ns > 0 {
            let next = &mut self.windows_mut().next;
            if next.end_ns != end_ns {
                if !next.given().is_empty() {
                    return Err(Refusal::Stale);
                }
                *next = Transfers::new(end_ns);
            }
            next.receive(from, cumulative, stands)?
        } else {
            return Err(Refusal::Stale);
        };
        self.rebuild(context);
        Ok(gained)
    }
}

/// Replaces the words by those of a state.
fn set(words: &mut Vec<u64>, state: State) {
    match state {
        State::Heap(new) => *words = new,
        State::Inline(new) => {
            words.clear();
            words.extend(new);
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
