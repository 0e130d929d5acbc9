//! A cell's loans: to other regions, and from them.

use std::collections::BTreeMap;

use acequia_limits::{Algorithm, Now, Part};
use acequia_rights::{
    CellChange, Expired, Grant, Incarnation, LoanKind, Offer, Refusal, Return, SentHeartbeats, Session,
    Sessions,
    mutation::{Mutation, mutated},
    session::stretch,
};
use smallvec::SmallVec;

use super::{Account, CellContext, believed::Believed};

/// Facts about loans that need not be on the disk.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// How much each region's loans are believed to have brought.
    pub(super) believed: Believed,
    /// Loans that ended, for the sessions to forget.
    ended: Vec<EndedLoan>,
}

/// A loan between this node and a peer, by the giver's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoanId {
    pub(crate) peer: Incarnation,
    pub(crate) number: u64,
}

/// A loan that ended on time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EndedLoan {
    loan: LoanId,
    comes_back: bool,
}

/// A peer that grants a loan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Giver<'a> {
    pub(crate) from: Incarnation,
    /// The standing share of the giver's region.
    pub(crate) stands: Part,
    /// The heartbeats that were sent to the giver.
    pub(crate) heartbeats: &'a SentHeartbeats,
}

impl Account {
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

    /// Whether the cell keeps to its own part: if not, the newest version cannot be acknowledged yet.
    pub(crate) fn conforms(&self, state: &[u64], now: Now) -> bool {
        let nothing_moves = self.book.lent().is_empty() && self.book.held().is_empty();
        let owed = self.algorithm.owed(state, now).saturating_add(self.leased);
        let is_cut = self.windows().most.is_none();
        is_cut && (nothing_moves || self.book.conforms(self.own(), owed))
    }

    /// How much could be lent now for `wait_ns`: of the own part, and of the hold on the pool if that lasts
    /// longer.
    pub(crate) fn spare(&self, wait_ns: u64, now: Now) -> Part {
        let is_pool_lent = self.pool_outlasts(wait_ns, now) && self.windows().most.is_none();
        let spare = self.book.spare(if is_pool_lent { self.own() } else { self.standing });
        Part { units: spare.units.saturating_sub(self.leased), ..spare }
    }

    /// Whether a loan of `wait_ns` would end before the hold on the pool does.
    fn pool_outlasts(&self, wait_ns: u64, now: Now) -> bool {
        let lasts = self.pooled_until_ns() >= now.steady_ns.saturating_add(wait_ns);
        lasts || mutated(Mutation::LeaseLendsForLonger)
    }

    fn kind(&self) -> LoanKind {
        match &self.algorithm {
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => LoanKind::Bucket,
            other => LoanKind::Sliding { lingers_ns: other.lingers_ns() },
        }
    }

    /// Lends. The grant may leave once the account is on disk.
    pub(crate) fn lend(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        offer: &Offer,
        session: &mut Session,
        now: Now,
    ) -> Result<Grant, Refusal> {
        // Leased units may still be spent, so neither the units nor their capacity can be lent.
        let available = self.unleased(state, now, context.salt);
        let spare = self.spare(stretch(offer.ttl_ns, session.drift_ppm()), now);
        if offer.part.units > spare.units || offer.part.rate > spare.rate {
            return Err(Refusal::NotSpare { asked: offer.part, spare });
        }
        let kind = self.kind();
        let lent = self.book.lend(self.own(), available, kind, offer, session, now.steady_ns);
        let (grant, change) = lent?;
        self.apply(state, context, change, now);
        // This loan may end before all others.
        let due_ns = self.book.lent().last().map_or(u64::MAX, |lent| session.reclaim_end(lent));
        self.due_ns = self.due_ns.min(due_ns);
        self.unwritten = true;
        Ok(grant)
    }

    /// Takes up a loan, unless all loans of its giver together exceed the giver's standing share.
    pub(crate) fn accept(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        giver: Giver<'_>,
        grant: &Grant,
        session: &mut Session,
        now: Now,
    ) -> Result<(), Refusal> {
        let Giver { from, stands, heartbeats } = giver;
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
        let mut change = self.book.accept(from, grant, kind, heartbeats, session, now.steady_ns)?;
        let believed = &mut self.loans.get_or_insert_default().believed;
        let believed = believed.take(from.member, stands, grant.tokens, context.global, now.steady_ns);
        change.owe += grant.tokens - believed;
        self.apply(state, context, change, now);
        let due_ns = self.book.held().last().map_or(u64::MAX, |held| session.end_of(held));
        self.due_ns = self.due_ns.min(due_ns);
        Ok(())
    }

    /// Gives a loan back before its time. More tokens may go back than came: those with which the holder's
    /// own part repaid debt. `durable`: whether the disk keeps the debt.
    pub(crate) fn give_back(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        loan: LoanId,
        session: &mut Session,
        durable: bool,
        now: Now,
    ) -> Result<Return, Refusal> {
        let LoanId { peer: from, number } = loan;
        let mut available = self.algorithm.available(state, now, context.salt);
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
        self.apply(state, context, change, now);
        self.unwritten |= durable && self.returns_after_disk();
        Ok(back)
    }

    /// If the disk keeps the debt, it learns of returned tokens before their giver does; otherwise both would
    /// have the tokens after a crash.
    fn returns_after_disk(&self) -> bool {
        self.algorithm.has_rate() && !mutated(Mutation::ReturnBeforeDurable)
    }

    /// Takes back a loan that its holder no longer needs.
    pub(crate) fn take_return(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        from: Incarnation,
        back: &Return,
        session: &mut Session,
        now: Now,
    ) -> Result<(), Refusal> {
        let change = self.book.take_return(from, back, session)?;
        self.apply(state, context, change, now);
        self.unwritten = true;
        Ok(())
    }

    /// Ends the loans that are over, each at its instant. A loan that comes back ends no earlier than
    /// `lent_from_ns`.
    pub(super) fn end_loans(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        lent_from_ns: u64,
        now: Now,
        sessions: &impl Sessions,
    ) -> bool {
        let mut changed = false;
        while let Some(expired) = self.book.expire_one(now.steady_ns, sessions) {
            let Expired { at_ns, peer, number, comes_back, change } = expired;
            let from_ns = if comes_back { lent_from_ns } else { 0 };
            let at = Now { steady_ns: at_ns.max(from_ns).min(now.steady_ns), ..now };
            self.apply(state, context, change, at);
            self.unwritten |= comes_back;
            let ended = EndedLoan { loan: LoanId { peer, number }, comes_back };
            self.loans.get_or_insert_default().ended.push(ended);
            changed = true;
        }
        changed
    }

    /// Tells the sessions of loans that ended since the last call. Returns the loans that were held: if a
    /// renewal was late, their givers may not know, and would renew them for ever.
    pub(crate) fn tell_ended(
        &mut self,
        sessions: &mut BTreeMap<Incarnation, Session>,
    ) -> SmallVec<[LoanId; 1]> {
        let mut held = SmallVec::new();
        for EndedLoan { loan, comes_back } in self.loans.iter_mut().flat_map(|loans| loans.ended.drain(..)) {
            if !comes_back {
                held.push(loan);
            }
            let Some(session) = sessions.get_mut(&loan.peer) else { continue };
            if comes_back { session.came_back(loan.number) } else { session.let_go(loan.number) }
        }
        held
    }

    /// Stops renewing all loans that are out, as far as the sessions have room to tell their holders: once as
    /// many as possible are frozen, nothing is renewed. Returns the loans that were frozen now.
    pub(crate) fn freeze_all(
        &mut self,
        sessions: &mut BTreeMap<Incarnation, Session>,
    ) -> SmallVec<[LoanId; 4]> {
        let renewing = self.book.lent().iter().filter(|lent| lent.renewing);
        let mut frozen: SmallVec<[LoanId; 4]> =
            renewing.map(|lent| LoanId { peer: lent.to, number: lent.number }).collect();
        frozen.retain(|LoanId { peer, number }| {
            sessions.get_mut(peer).is_some_and(|session| self.book.freeze(*number, session).is_ok())
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
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        from: Option<Incarnation>,
        now: Now,
    ) {
        let change = self.book.forfeit(from, now.steady_ns);
        if change != CellChange::default() {
            self.apply(state, context, change, now);
        }
    }
}
