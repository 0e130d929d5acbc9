//! What other regions have to do with one cell: loans, transfers, and how much is asked for.
//!
//! A cell has an account from when it is *warm* (a region used half of its own part, or denied
//! something) or another region asked for it, until nothing is lent, borrowed or asked for any more.
//! All other cells are decided by the region's own numbers and never cost a message.
//!
//! The account keeps the cell's *effective* algorithm: the limit's, with the standing part, what is
//! held and what is lent. It changes only here, always with the debt that goes along
//! ([`acequia_rights::loan`]).

mod believed;
mod ground;
mod lease;
mod lowered;
mod offered;
mod stop;

use acequia_limits::{Algorithm, Now, Part, RATE_PARTS, UNITS_MAX, Verdict, algorithm::State, window::Usage};
use acequia_rights::{
    Beats, Book, Change, Expired, Grant, Incarnation, Kind, MemberId, Offer, Refusal, Return, Session,
    Sessions, Transfers,
    mutation::{Mutation, mutated},
    session::stretch,
};

use std::collections::BTreeMap;

use smallvec::SmallVec;

use self::believed::Believed;
pub(crate) use self::{
    ground::CellContext,
    lease::{LeaseStatement as KeptOfPool, Withdrawn},
    lowered::charged,
    offered::{Offered, Rebalancer},
};
use crate::{
    forwards::{DRAWN_NS, DRAWN_NS_MAX},
    record::Pledge,
};

/// Units that were not missed for so long are missed anew.
const MISSED_NS: u64 = 10 * 1_000_000_000;

/// What may be hoped for of other regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpectedWait {
    /// How long units may take that were asked for; 0 where nobody can be reached.
    pub(crate) lasts_ns: u64,
    /// When a region could last be reached that could not before: steady clock.
    pub(crate) met_ns: u64,
}

/// One cell's dealings with other regions.
#[derive(Debug)]
pub(crate) struct Account {
    /// The limit with what the cell has now.
    pub(crate) algorithm: Algorithm,
    standing: Part,
    book: Book,
    /// Rights that moved in windows, where there are windows; and what is held of pools, where there are pools.
    windows: Option<Box<Windows>>,
    /// Units that callers may spend until their leases end. Always of the own part: see `lease`.
    leased: u64,
    /// When a loan ends, if none is renewed: steady clock.
    due_ns: u64,
    /// When the open window is over, and when it was last looked which is open: wall clock.
    over_ns: u64,
    rolled_ns: u64,
    /// Whether the clock went back behind the open window: of the one that it shows now, nobody remembers what was
    /// given away, so nothing of it may be used.
    went_back: bool,
    /// What was asked for since the last look.
    offered: Offered,
    /// Less than this left is worth a look at once.
    low_water: u64,
    /// When units were first missed here, and last: steady clock, 0 for not at all.
    missed_since_ns: u64,
    missed_ns: u64,
    /// Whether a look is waiting.
    flagged: bool,
    /// Whether the disk must hear of a change in what is given away.
    unwritten: bool,
    /// Whether a bucket's numbers changed, and so what its words on the disk would mean under today's.
    renumbered: bool,
    /// What there is to know of loans apart from the book; nothing while there were none.
    loans: Option<Box<Loans>>,
    /// Who looks at it, by [`Looker`].
    lookers: [bool; 2],
}

/// What there is to know of loans that a disk need not know.
#[derive(Debug, Default)]
struct Loans {
    /// What those of each region brought.
    believed: Believed,
    /// Those that ended, for the sessions to forget.
    ended: Vec<Ended>,
}

/// Rights that moved in the window that is open, and in the one that follows; and what is held of the region's pool.
#[derive(Debug, Default)]
struct Windows {
    open: Transfers,
    next: Transfers,
    /// Units that the others were heard to have used of the cell, in the window that is open.
    elsewhere: u64,
    /// What was taken from the region's pools of the window that is open, and of the one that follows.
    withdrawn: SmallVec<[Withdrawn; 2]>,
    /// What is held of the region's pool, where no window has edges.
    lease: Option<lease::HeldLease>,
    /// What of the pool this node could take to give it away, as far as it knows; nothing where it has not asked.
    within_reach: Option<Part>,
    /// What is to be taken of the pool, to give it away.
    for_others: Part,
    /// What may be held of the pool at most, where more is until loans are back.
    most: Option<Part>,
    /// By what of the pool that goes.
    less: lowered::Lowered,
    /// Of a window, by its end, what earlier processes gave away: of what they had, which all counts as spent.
    given_before: (u64, u64),
    /// The most units that stood here since an earlier process: all of them count as spent by it.
    stood: u64,
    /// When all loans of earlier processes have ended, which may rest on what those held of pools: steady clock.
    restored_until_ns: u64,
    /// What was asked for that one look has seen and the other has not.
    unseen: [Offered; 2],
    /// When another node of the region last drew of it: steady clock, 0 for not at all.
    drawn_ns: u64,
}

impl Windows {
    /// What may be used in a window, of a standing part of so many units. What was taken of the pool counts as if it stood: it
    /// may be given away as well, and then is not used here.
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

/// What a cell without windows says of them.
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
    drawn_ns: 0,
};

/// A loan that ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    peer: Incarnation,
    number: u64,
    comes_back: bool,
}

impl Account {
    /// Nothing lent, nothing held.
    pub(crate) fn new(context: &CellContext<'_>) -> Self {
        Self::with_book(context, Book::default())
    }

    /// As it was left on the disk, at a restart: loans wait their whole time, and nothing is held.
    /// If what was spent is `forgotten`, so is what was received.
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

    /// At a node that shares its region's pools, whose cell was restored with these words: what earlier processes gave of a window they
    /// had, and all of that counts as spent, what stands here and the rest in the pool; after a clean stop what they spent of the own
    /// part is known, and what they gave counts in it ([`stop`]).
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

    /// When all loans have ended that earlier processes gave: steady clock.
    pub(crate) fn restored_until_ns(&self) -> u64 {
        self.windows().restored_until_ns
    }

    fn with_book(context: &CellContext<'_>, book: Book) -> Self {
        // Until it is looked which window is open.
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

    /// Bytes it takes, beside the cell.
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

    /// Whether time has changed what the cell has.
    #[inline]
    pub(crate) fn is_due(&self, now: Now) -> bool {
        let window = now.wall_ns >= self.over_ns || now.wall_ns < self.rolled_ns;
        (now.steady_ns >= self.due_ns || window) && !mutated(Mutation::SettleLate)
    }

    /// Notes what was asked for, and how much must be there for that to pass; says, once, whether it calls for a look.
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

    /// Another node of the region draws of it.
    pub(crate) fn note_drawn(&mut self, now: Now) {
        self.windows_mut().drawn_ns = now.steady_ns;
    }

    /// Whether others drew of it lately: what they need they do not take of the region's pool. Of a limit of long windows they use what they keep
    /// in each of them first.
    pub(crate) fn is_drawn(&self, now: Now) -> bool {
        let drawn_ns = self.windows().drawn_ns;
        let lasts_ns = match &self.algorithm {
            algorithm if algorithm.has_rate() => DRAWN_NS,
            algorithm => DRAWN_NS.saturating_add(2 * algorithm.period_ns()).min(DRAWN_NS_MAX),
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

    /// Whether so many units more may be leased: of the own part that is not lent, so that no loan ends before them.
    pub(crate) fn may_lease(&self, units: u64) -> bool {
        // Of a node that shares its region's pools callers lease nothing.
        units <= self.book.spare(self.standing).units.saturating_sub(self.leased)
    }

    /// Units that the others were heard to have used.
    pub(crate) fn elsewhere(&self) -> u64 {
        self.windows().elsewhere
    }

    /// The others were heard to have used so many units.
    pub(crate) fn hear_used(&mut self, units: u64) {
        if units != self.elsewhere() {
            self.windows_mut().elsewhere = units;
        }
    }

    /// Less than this left shall call for a look.
    pub(crate) const fn set_low_water(&mut self, units: u64) {
        self.low_water = units;
    }

    /// For how long units that are missed here may still come, in nanoseconds: they come soon after they were first missed,
    /// or after other regions could be reached again (`met_ns`, steady clock), or not at all.
    pub(crate) fn hope_ns(&self, expected_wait: &ExpectedWait, now: Now) -> u64 {
        let since_ns = self.missed_since_ns.max(expected_wait.met_ns);
        since_ns.saturating_add(expected_wait.lasts_ns).saturating_sub(now.steady_ns)
    }

    /// Units came: more may come, if more are missed.
    pub(crate) const fn hope_anew(&mut self) {
        self.missed_since_ns = 0;
    }

    /// Units are missed.
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

    /// The end of the window in which rights came before it opened; 0 where none did.
    pub(crate) fn next_window(&self) -> u64 {
        self.next().end_ns
    }

    /// The rights that moved in a window.
    pub(crate) fn transfers_of(&self, end_ns: u64) -> Option<&Transfers> {
        [self.open(), self.next()].into_iter().find(|transfers| transfers.end_ns == end_ns)
    }

    /// What may be used in a window, of a standing part of so many units; nothing where no rights moved in it.
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

    /// What is this node's, to use or to lend: its standing part, and what it holds of the pool.
    fn own(&self) -> Part {
        let pooled = self.usable_pool();
        Part {
            rate: self.standing.rate.saturating_add(pooled.rate).min(RATE_PARTS),
            units: self.standing.units.saturating_add(pooled.units).min(UNITS_MAX),
        }
    }

    /// What of the pool must be held for as long as what is lent is out.
    pub(crate) fn lent_of_pool(&self) -> Part {
        let lent = self.book.lent_total();
        // The last part of a rate is never lent.
        let last = u32::from(lent.rate > 0);
        Part {
            rate: lent.rate.saturating_add(last).saturating_sub(self.standing.rate),
            units: lent.units.saturating_sub(self.standing.units),
        }
    }

    /// Until when loans may be renewed that rest on what is held of the pool, so that all of them have ended before that does; nothing
    /// where none does: steady clock.
    pub(crate) fn renews_until_ns(&self) -> Option<u64> {
        if self.lent_of_pool() == Part::default() {
            return None;
        }
        let renewing = self.book.lent().iter().filter(|lent| lent.renewing);
        let longest_ns = renewing.map(|lent| lent.wait_ns).max();
        Some(longest_ns.map_or(u64::MAX, |longest_ns| self.pooled_until_ns().saturating_sub(longest_ns)))
    }

    /// Whether more is lent than there is to lend, or may be held for it: an override that ended leaves less without a new version.
    pub(crate) fn is_over_lent(&self) -> bool {
        self.windows().most.is_some() || self.book.is_over_lent(self.own())
    }

    /// What must survive a restart.
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

    /// The disk shall hear of it again: what is told once more must not leave before it is there.
    pub(crate) const fn write_again(&mut self) {
        self.unwritten = true;
    }

    /// Whether the disk must hear of a change in what is given away; says so once.
    pub(crate) const fn take_unwritten(&mut self) -> bool {
        std::mem::replace(&mut self.unwritten, false)
    }

    /// Whether a bucket's numbers changed since the last time this was asked.
    pub(crate) const fn take_renumbered(&mut self) -> bool {
        std::mem::replace(&mut self.renumbered, false)
    }

    /// Whether nothing moved between regions that still counts.
    pub(crate) fn is_at_home(&self, now: Now) -> bool {
        let nothing_given = self.open().is_empty() && self.next().is_empty();
        self.book.is_empty(now.steady_ns) && nothing_given && !self.unwritten
    }

    /// Whether the account says no more than none.
    pub(crate) fn is_empty(&self, now: Now) -> bool {
        self.is_at_home(now) && self.withdrawn().is_empty() && self.pooled() == Part::default()
    }

    /// Applies what time has changed: loans that ended, each at its instant, and windows that are over.
    /// Says which loans are gone, for the sessions to forget.
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

    /// Ends the loans that are over, each at its instant; one that comes back, not before `lent_from_ns`.
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

    /// Tells the sessions of loans that ended since the last time. Gives those that were held: their givers may not
    /// know, if a renewal was late, and would renew them for ever.
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

    /// The window that is open, by its end; 0 where there are none.
    pub(crate) fn window(&self) -> u64 {
        self.open().end_ns
    }

    /// Goes on to the window that is open now.
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
        // A clock that steps back does not bring a window back: what was given of this one would be forgotten.
        self.over_ns = end_ns.saturating_add(margin_ns);
        self.rolled_ns = now.wall_ns;
        self.standing = context.standing(self.window());
        self.rebuild(context);
        changed
    }

    /// Changes what the cell has, with the debt that goes along.
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

    /// Goes by the numbers that the limit has now. They began at some time before `now`, at the latest
    /// when `began` says: the larger debt of the two counts.
    ///
    /// Loans that ended before did so under the old numbers, `before`: by those the debt drained until then, and it must
    /// not be reckoned back by the new rate. The debt is as of `now` afterwards, so what comes back since counts from
    /// `now`, too.
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
        // The disk knows what was owed under other numbers, which may drain more quickly, or not at all.
        self.unwritten |= self.algorithm.has_rate() && !mutated(Mutation::SlowedUnwritten);
        self.over_ns = 0;
        self.end_loans(words, context, (if late_ends { 0 } else { now.steady_ns }, now), sessions);
        self.settle(words, context, now, sessions);
    }

    /// Units that stand here by new numbers beyond all that stood since an earlier process, which may have spent those: once each.
    pub(crate) fn stands_more(&mut self, before: u64, now: u64) -> u64 {
        let stood = self.windows().stood.max(before);
        self.windows_mut().stood = stood.max(now);
        now.saturating_sub(stood)
    }

    /// What a restart forgot is owed under new numbers too.
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

    /// What could be lent now, for so long at a time: of the own part, and of what is held of the pool if that lasts longer.
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

    /// Units that could be charged now. Of a window that is kept on disk, those that the disk does not
    /// count as spent already.
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

    /// Units that could be charged now, apart from those that are leased.
    pub(crate) fn unleased(&self, words: &[u64], now: Now, salt: u32) -> u64 {
        self.algorithm.available(words, now, salt).saturating_sub(self.leased)
    }

    /// Lends. The grant may leave when the account is on disk.
    pub(crate) fn lend(
        &mut self,
        words: &mut Vec<u64>,
        context: &CellContext<'_>,
        offer: &Offer,
        session: &mut Session,
        now: Now,
    ) -> Result<Grant, Refusal> {
        // What is leased may still be spent, so neither it nor its capacity can be lent.
        let available = self.unleased(words, now, context.salt);
        let spare = self.spare(stretch(offer.ttl_ns, session.drift_ppm()), now);
        if offer.part.units > spare.units || offer.part.rate > spare.rate {
            return Err(Refusal::NotSpare { asked: offer.part, spare });
        }
        let kind = self.kind();
        let lent = self.book.lend(self.own(), available, kind, offer, session, now.steady_ns);
        let (grant, change) = lent?;
        self.apply(words, context, change, now);
        // A shorter loan than any other may end first.
        let due_ns = self.book.lent().last().map_or(u64::MAX, |lent| session.reclaim_end(lent));
        self.due_ns = self.due_ns.min(due_ns);
        self.unwritten = true;
        Ok(grant)
    }

    /// Takes a loan up, unless all loans of its giver together are more than `stands`: what its region has.
    pub(crate) fn accept(
        &mut self,
        words: &mut Vec<u64>,
        context: &CellContext<'_>,
        (from, grant, stands): (Incarnation, &Grant, Part),
        (beats, session): (&Beats, &mut Session),
        now: Now,
    ) -> Result<(), Refusal> {
        let kind = self.kind();
        let held = self.book.held();
        // One that is told again is not another one.
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

    /// Gives a loan back before its time. More tokens may go than came: what the holder's own part gave back of its
    /// debt. Where the disk keeps the debt (`durable`), it must hear of that before the giver does, or a crash would
    /// have both.
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
            // What is beyond the limit, by what this node knows of it, is not used here, and may go back.
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

    /// Takes a loan back whose holder needs it no more.
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

    /// Stops renewing all loans that are out, as far as that can be told: where as many are frozen as can be, nothing is renewed. Gives
    /// those that were frozen now.
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

    /// A holder does not hold a loan that is out: it is renewed no more, as soon as that can be told.
    pub(crate) fn refused(&mut self, number: u64, session: &mut Session) -> Result<(), Refusal> {
        self.book.refused(number, session)
    }

    /// Stops renewing loans that were refused when that could not be told.
    pub(crate) fn freeze_refused(&mut self, sessions: &mut BTreeMap<Incarnation, Session>) {
        self.book.freeze_refused(sessions);
    }

    /// Drops what is held from a writer that may lend no more, or from all.
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

    /// Gives rights away in the window that is open; gives what was given in all.
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

    /// What a region gave in a window that is known here, in all.
    pub(crate) fn received(&self, from: MemberId, end_ns: u64) -> u64 {
        let known = [self.open(), self.next()].into_iter().filter(|transfers| transfers.end_ns == end_ns);
        let of = |transfers: &Transfers| {
            transfers.received().iter().find(|(region, _)| *region == from).map(|r| r.1)
        };
        known.filter_map(of).max().unwrap_or(0)
    }

    /// Takes rights that a region gave away in a window: the one that is open, or the next. So many units stand for the giver. A
    /// crash at `forgotten` forgot what was spent of those that came before.
    pub(crate) fn receive(
        &mut self,
        context: &CellContext<'_>,
        from: MemberId,
        (end_ns, cumulative): (u64, u64),
        stands: u64,
        forgotten: Option<Now>,
    ) -> Result<u64, Refusal> {
        if let (Some(then), Algorithm::FixedWindow(window)) = (forgotten, &self.algorithm) {
            // The last window that may have been open then.
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
