//! The loans of one cell: the parts that its member lent of its own part, and the parts that it holds of
//! others'.
//!
//! A cell's *capacity* is its standing part, plus what it holds, minus what it has lent. A bucket's state is
//! its *debt* `d >= 0`, in units, which drains at the cell's part of the rate; its level is `capacity − d`,
//! and nothing is admitted below 0. Loans move capacity `β` and debt together:
//!
//! | step | capacity | debt |
//! | --- | --- | --- |
//! | giver lends `β` with `x` tokens, `x <= min(β, level)` | −β | sheds β − x |
//! | holder accepts | +β | owes β − x |
//! | holder's end | −β | sheds β |
//! | giver's end | +β | owes β |
//! | holder gives back with `x` tokens, `x <= min(β, level)` | −β | sheds β − x |
//! | giver takes the return | +β | owes β − x |
//!
//! To shed is to lower the debt, to no less than 0; to owe is to raise it. Debt that was shed and is not owed
//! yet is *in flight*: `β − x` for a loan or a return under way, and `β` for a loan that ended at its holder.
//!
//! **Theorem 3 (rates).** `admitted(s, t] <= B + r·(t − s)` for every interval.
//!
//! *Proof.* Let `D = Σ min(d, capacity) + in flight`, and `C = Σ capacity + lent and not held`. Every row of
//! the table keeps C, which is B, and D <= C: a debt in flight is at most its β. No row lowers D: a cell
//! sheds at most what is in flight. If it sheds less (it owed less), D grows, which wastes units. A lost
//! message leaves D in flight until the giver's end, where `β`, the most that was in flight, is owed.
//!
//! Only draining lowers D, at `Σ rate <= r`: one cell at a time counts on a part of the rate (session.rs,
//! Theorem 1), and nothing drains in flight. Every admission raises D by its cost. So
//! `admitted = ΔD + drained <= B + r·(t − s)`. ∎
//!
//! With different versions of the budget at the two ends a unit is still a unit, and a part of the rate
//! drains at most that part of the largest rate in force.
//!
//! **Theorem 4 (sliding windows).** Capacity moves only while it is not used: `β <= available` to lend and to
//! give back. A holder's end leaves up to β used beyond its capacity. This use leaves the window within one
//! horizon, and so long the giver waits (stretched: [`LoanKind::Sliding`]). Hence at every instant
//! `Σ used in the last window <= Σ capacity + what lingers <= L`.
//!
//! **A cell lends only its own part**, never what it borrowed. So a loan rests on nothing that can end before
//! it, and the check is one comparison. The last part of a rate is never lent: a meter needs one. A lease of
//! a region's pool ([`crate::pool`]) is the cell's own for as long as it lasts: a node that lends from a
//! lease ensures that the loans end first.
//!
//! **A lowered standing part** keeps the debt, so a cell may owe more than its capacity, and have lent more
//! than it has. The lowering is acknowledged when neither is so ([`Book::conforms`]). Until then nobody else
//! may be raised, and a restart owes the whole capacity of the largest standing part since the last
//! acknowledged one.
//!
//! This file knows no clock, no limit and no policy. The caller decides what to ask for, whom to lend to and
//! when to give back.

mod record;
mod refusal;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use acequia_limits::{Part, RATE_PARTS, UNITS_MAX};

use self::record::Returned;
pub use self::{
    record::{CellChange, Expired, HeldLoan, LentLoan},
    refusal::Refusal,
};
use crate::{
    Incarnation,
    mutation::{Mutation, mutated},
    session::{Heartbeat, SentHeartbeats, Session, Sessions, stretch},
};

/// The most loans that a cell may have lent, and the most that it may hold.
pub const LOANS_MAX: usize = 64;

/// The most loans that a cell may have lent to one peer, and the most that it may hold from one.
pub const LOANS_PER_PEER_MAX: usize = 16;

/// The most returned loans that a cell remembers. If more are returned, the cell accepts nothing until the
/// last of them would have ended.
pub const RETURNED_MAX: usize = 16;

/// The longest ttl: a day, so that a loan outlives neither patience nor processes by much.
pub const TTL_NS_MAX: u64 = 86_400 * 1_000_000_000;

/// The kind of cell that a loan is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoanKind {
    /// A token or leaky bucket: debt moves with the capacity.
    Bucket,
    /// A sliding window: only unused capacity moves.
    Sliding {
        /// How long after the holder's end its charges may count: the limit's horizon.
        lingers_ns: u64,
    },
}

impl LoanKind {
    /// The debt that moves with so many units of a part. Only unused capacity of a sliding window moves, so
    /// none does there.
    const fn debt_of(self, units: u64) -> u64 {
        match self {
            Self::Bucket => units,
            Self::Sliding { .. } => 0,
        }
    }

    /// How long the holder's charges may count after its end.
    pub(crate) const fn lingers_ns(self) -> u64 {
        match self {
            Self::Bucket => 0,
            Self::Sliding { lingers_ns } => lingers_ns,
        }
    }
}

/// A loan that a giver offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// From the node's durable counter: above every number that the node gave before. 0 is no number.
    pub number: u64,
    /// The holder.
    pub to: Incarnation,
    /// The offered part.
    pub part: Part,
    /// Units of a bucket's level that go with the part: at most the part's units and the level. Windows
    /// ignore the field.
    pub tokens: u64,
    /// How long the loan lasts after the holder's heartbeat was sent.
    pub ttl_ns: u64,
}

/// A loan, as its giver tells the holder. Its bytes never change: a retry echoes the same heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Unique among all loans of the giver.
    pub number: u64,
    /// The lent part.
    pub part: Part,
    /// Units of the part that are not owed.
    pub tokens: u64,
    /// How long the loan lasts after the echoed heartbeat was sent, unless it is renewed.
    pub ttl_ns: u64,
    /// The holder's heartbeat that dates the loan.
    pub echo: Heartbeat,
}

/// A loan that ended early, as its holder tells the giver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    /// The loan's number.
    pub number: u64,
    /// Units of the part that are not owed.
    pub tokens: u64,
}

/// The loans of one cell.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// One inline: most cells are hot in one region, to which all others have lent one piece.
    lent: SmallVec<[LentLoan; 1]>,
    /// Allocated to its exact size: a place for each peer that may lend would be empty in most cells.
    held: Vec<HeldLoan>,
    returned: Vec<Returned>,
    /// Grants are refused until this time: more loans were given back than are remembered.
    closed_until_ns: u64,
}

impl Book {
    /// The loans of a cell that its node's disk has. Follow with [`Book::restart`].
    pub fn from_lent(lent: impl IntoIterator<Item = LentLoan>) -> Self {
        Self { lent: lent.into_iter().collect(), ..Self::default() }
    }

    /// The lent loans, in the order of lending.
    pub fn lent(&self) -> &[LentLoan] {
        &self.lent
    }

    /// The held loans, in the order of arrival.
    pub fn held(&self) -> &[HeldLoan] {
        &self.held
    }

    /// Whether the book says no more than an absent one, so that the cell may be forgotten.
    pub fn is_empty(&self, now_ns: u64) -> bool {
        self.lent.is_empty()
            && self.held.is_empty()
            && self.closed_until_ns <= now_ns
            && self.returned.iter().all(|returned| returned.end_ns <= now_ns)
    }

    /// Bytes that the book takes on the heap.
    pub fn heap_bytes(&self) -> usize {
        let lent = if self.lent.spilled() { self.lent.capacity() * size_of::<LentLoan>() } else { 0 };
        lent + self.held.capacity() * size_of::<HeldLoan>() + self.returned.capacity() * size_of::<Returned>()
    }

    /// The sum of the lent parts.
    pub fn lent_total(&self) -> Part {
        total(self.lent.iter().map(|lent| lent.part))
    }

    /// The sum of the held parts.
    pub fn held_total(&self) -> Part {
        total(self.held.iter().map(|held| held.part))
    }

    /// The part that the cell may use: its capacity. At least one part of the rate if the cell owns any: its
    /// meter needs one, and the last one is never lent.
    pub fn effective(&self, standing: Part) -> Part {
        let (lent, held) = (self.lent_total(), self.held_total());
        let least = u32::from(standing.rate > 0);
        Part {
            rate: (standing.rate.saturating_add(held.rate))
                .saturating_sub(lent.rate)
                .clamp(least, RATE_PARTS),
            units: (standing.units.saturating_add(held.units)).saturating_sub(lent.units).min(UNITS_MAX),
        }
    }

    /// The part that the cell may still lend.
    pub fn spare(&self, standing: Part) -> Part {
        let (own, lent) = (self.own_part(standing), self.lent_total());
        Part {
            rate: own.rate.saturating_sub(kept_rate()).saturating_sub(lent.rate),
            units: own.units.saturating_sub(lent.units),
        }
    }

    /// A cell lends of its own part only, never what it holds.
    fn own_part(&self, standing: Part) -> Part {
        if !mutated(Mutation::LendBorrowed) {
            return standing;
        }
        let held = self.held_total();
        Part { rate: standing.rate + held.rate, units: standing.units + held.units }
    }

    /// Whether more is lent than the standing part has. A version that lowered the part is then not
    /// acknowledged yet.
    pub fn is_over_lent(&self, standing: Part) -> bool {
        let lent = self.lent_total();
        lent.units > standing.units || lent.rate > standing.rate.saturating_sub(1)
    }

    /// Whether the cell keeps to its standing part, so that a version that lowered it may be acknowledged.
    pub fn conforms(&self, standing: Part, owed: u64) -> bool {
        self.owes_no_more_than_it_may(standing, owed) && !self.is_over_lent(standing)
    }

    /// A cell that conforms owes (or, in a window, has used) no more than its capacity. Waiting for one refill
    /// instead is not enough: a cell that has lent its rate pays back ever more slowly.
    fn owes_no_more_than_it_may(&self, standing: Part, owed: u64) -> bool {
        owed <= self.effective(standing).units || mutated(Mutation::ConformIndebted)
    }

    /// Lends a part. The loan must be on disk before the grant leaves. `available` is what the cell could
    /// admit now.
    pub fn lend(
        &mut self,
        standing: Part,
        available: u64,
        kind: LoanKind,
        offer: &Offer,
        session: &mut Session,
        now_ns: u64,
    ) -> Result<(Grant, CellChange), Refusal> {
        let Offer { number, to, part, mut tokens, ttl_ns } = *offer;
        check_part(part, kind)?;
        check_ttl(ttl_ns)?;
        if let LoanKind::Sliding { .. } = kind {
            tokens = part.units;
        }
        let spare = self.spare(standing);
        if part.rate > spare.rate || part.units > spare.units {
            return Err(Refusal::NotSpare { asked: part, spare });
        }
        if tokens > part.units {
            return Err(Refusal::NotAvailable { asked: tokens, available: part.units });
        }
        if !are_there(tokens, available, kind) {
            return Err(Refusal::NotAvailable { asked: tokens, available });
        }
        if !session.is_next(number) {
            return Err(Refusal::NumberUsed(number));
        }
        let with_peer = self.lent.iter().filter(|lent| lent.to == to).count();
        if self.lent.len() >= LOANS_MAX || with_peer >= LOANS_PER_PEER_MAX {
            return Err(Refusal::TooManyLoans);
        }
        let (echo, heard_ns) = session.heard().ok_or(Refusal::Unheard)?;
        let wait_ns = stretch(ttl_ns, session.drift_ppm());
        let end_ns = heard_ns.saturating_add(wait_ns);
        if end_ns <= now_ns {
            return Err(Refusal::Unheard);
        }
        let kind = match kind {
            LoanKind::Bucket => LoanKind::Bucket,
            LoanKind::Sliding { lingers_ns } => {
                LoanKind::Sliding { lingers_ns: stretch(lingers_ns, session.drift_ppm()) }
            }
        };
        let lent = LentLoan {
            number,
            to,
            part,
            tokens,
            ttl_ns,
            wait_ns,
            kind,
            echo,
            end_ns,
            renewing: true,
            refused: false,
        };
        self.lent.push(lent);
        session.lends(number, wait_ns);
        Ok((lent.grant(), CellChange::lose(part, kind.debt_of(shed_by_lending(part, tokens)))))
    }

    /// Accepts a grant, if it echoes a heartbeat of this very process, is not over, and is neither held nor
    /// given back.
    pub fn accept(
        &mut self,
        from: Incarnation,
        grant: &Grant,
        kind: LoanKind,
        heartbeats: &SentHeartbeats,
        session: &mut Session,
        now_ns: u64,
    ) -> Result<CellChange, Refusal> {
        let Grant { number, part, tokens, ttl_ns, echo } = *grant;
        check_part(part, kind)?;
        check_ttl(ttl_ns)?;
        if ttl_ns > heartbeats.keep_ns() {
            return Err(Refusal::Ttl(ttl_ns));
        }
        if tokens > part.units {
            return Err(Refusal::Malformed);
        }
        let sent_ns = heartbeats.sent_at(echo).ok_or(Refusal::UnknownHeartbeat)?;
        let end_ns = counts_from(sent_ns, now_ns).saturating_add(ttl_ns);
        if is_over(end_ns, now_ns) {
            return Err(Refusal::Ended);
        }
        if self.is_duplicate(from, number) {
            return Err(Refusal::Duplicate(number));
        }
        let returned = |returned: &Returned| returned.from == from && returned.number == number;
        if self.returned.iter().any(returned) || now_ns < self.closed_until_ns {
            return Err(Refusal::GivenBack(number));
        }
        let held = self.held_total();
        if held.units.saturating_add(part.units) > UNITS_MAX
            || held.rate.saturating_add(part.rate) > RATE_PARTS
        {
            return Err(Refusal::Malformed);
        }
        let with_peer = self.held.iter().filter(|held| held.from == from).count();
        if self.held.len() >= LOANS_MAX || with_peer >= LOANS_PER_PEER_MAX {
            return Err(Refusal::TooManyLoans);
        }
        self.held.reserve_exact(1);
        self.held.push(HeldLoan { number, from, part, ttl_ns, kind, end_ns });
        session.accepts(number, ttl_ns);
        Ok(CellChange::gain(part, kind.debt_of(owed_by_accepting(part, tokens))))
    }

    /// A loan is held once, however often its grant comes.
    fn is_duplicate(&self, from: Incarnation, number: u64) -> bool {
        self.held.iter().any(|held| held.is(from, number)) && !mutated(Mutation::AcceptTwice)
    }

    /// Ends a held loan early: the holder stops first, then sends the return. `available` is what the cell
    /// could admit now.
    pub fn give_back(
        &mut self,
        number: u64,
        from: Incarnation,
        available: u64,
        now_ns: u64,
    ) -> Result<(Return, CellChange), Refusal> {
        let place =
            self.held.iter().position(|held| held.is(from, number)).ok_or(Refusal::Unknown(number))?;
        let held = self.held[place];
        let units = held.part.units;
        let tokens = match held.kind {
            LoanKind::Bucket => returned_tokens(units, available),
            LoanKind::Sliding { .. } if is_unused(units, available) => units,
            LoanKind::Sliding { .. } => return Err(Refusal::NotAvailable { asked: units, available }),
        };
        self.stop_holding(place);
        self.remember_returned(held, now_ns);
        Ok((Return { number, tokens }, CellChange::lose(held.part, held.kind.debt_of(units - tokens))))
    }

    /// The holder stops counting on a loan before it says that the loan ended.
    fn stop_holding(&mut self, place: usize) {
        if !mutated(Mutation::GiveBackAndKeep) {
            self.held.remove(place);
        }
    }

    /// A duplicate of a grant does not revive a returned loan.
    fn remember_returned(&mut self, held: HeldLoan, now_ns: u64) {
        if !mutated(Mutation::GiveBackForgets) {
            self.remember(held, now_ns);
        }
    }

    /// Takes back a loan that its holder ended early, if the loan is still lent. The removal must be on disk
    /// before the capacity is lent again.
    pub fn take_return(
        &mut self,
        from: Incarnation,
        returned: &Return,
        session: &mut Session,
    ) -> Result<CellChange, Refusal> {
        let Return { number, tokens } = *returned;
        let place = self
            .lent
            .iter()
            .position(|lent| lent.to == from && lent.number == number)
            .ok_or(Refusal::Unknown(number))?;
        let lent = self.lent[place];
        if tokens > lent.part.units {
            return Err(Refusal::Malformed);
        }
        self.lent.remove(place);
        session.came_back(number);
        Ok(CellChange::gain(lent.part, lent.kind.debt_of(lent.part.units - tokens)))
    }

    /// Stops renewing a lent loan, so that it ends by itself.
    pub fn freeze(&mut self, number: u64, session: &mut Session) -> Result<(), Refusal> {
        let lent = self.lent.iter_mut().find(|lent| lent.number == number).ok_or(Refusal::Unknown(number))?;
        if lent.renewing { session.freezes(lent) } else { Ok(()) }
    }

    /// Notes that the holder of a lent loan does not hold it. A loan that is renewed and not held would never
    /// come back, and the holder says so only once. So the loan is frozen, and ends by itself: now, or with a
    /// later [`Book::freeze_refused`] if as many loans are frozen as a peer can be told of. Until it ends it
    /// is lent as before: a duplicate of its grant may still be accepted.
    pub fn refused(&mut self, number: u64, session: &mut Session) -> Result<(), Refusal> {
        let lent = self.lent.iter_mut().find(|lent| lent.number == number).ok_or(Refusal::Unknown(number))?;
        lent.refused = true;
        if lent.renewing { session.freezes(lent) } else { Ok(()) }
    }

    /// Freezes refused loans that could not be frozen before for lack of room, as far as there is room now.
    pub fn freeze_refused(&mut self, sessions: &mut BTreeMap<Incarnation, Session>) {
        for lent in self.lent.iter_mut().filter(|lent| lent.awaits_freezing()) {
            if let Some(session) = sessions.get_mut(&lent.to) {
                // A full list has room later: its loans end, since nothing is renewed while it is full.
                let _ = session.freezes(lent);
            }
        }
    }

    /// The time when the next loan ends, if nothing is renewed until then. Ends only move later, so the
    /// caller may keep this and ask again when it is due.
    pub fn next_expiry(&self, sessions: &impl Sessions) -> Option<u64> {
        let held = self.held.iter().map(|held| sessions.end_of(held));
        let lent = self.lent.iter().map(|lent| sessions.reclaim_end(lent));
        held.chain(lent).min()
    }

    /// Ends the loan that is due the longest, if one is: a held loan leaves, a lent loan comes back with
    /// everything owed. Settle the cell at that instant, apply the change, and ask again. For a lent loan,
    /// the removal must be on disk before the capacity is lent again, and the caller tells
    /// [`Session::came_back`]; for a held loan, [`Session::let_go`].
    pub fn expire_one(&mut self, now_ns: u64, sessions: &impl Sessions) -> Option<Expired> {
        let held = self.held.iter().enumerate().map(|(i, held)| (sessions.end_of(held), false, i));
        let lent = self.lent.iter().enumerate().map(|(i, lent)| (sessions.reclaim_end(lent), true, i));
        let (at_ns, comes_back, place) = held.chain(lent).min().filter(|(at_ns, ..)| *at_ns <= now_ns)?;
        Some(if comes_back {
            let lent = self.lent.remove(place);
            Expired { at_ns, number: lent.number, peer: lent.to, comes_back, change: lent.ends_here() }
        } else {
            let held = self.held.remove(place);
            Expired { at_ns, number: held.number, peer: held.from, comes_back, change: held.ends_here() }
        })
    }

    /// Restarts the book: every loan on the disk waits its whole ttl, stretched, from now, and is not
    /// renewed. Nothing is held. The caller lets the cell owe its whole capacity: [`Book::effective`] of the
    /// largest standing part since the last acknowledged one.
    pub fn restart(&mut self, now_ns: u64) {
        self.held.clear();
        self.returned.clear();
        self.closed_until_ns = 0;
        self.lent.retain(|lent| lent.outlives_process());
        for lent in &mut self.lent {
            lent.renewing = false;
            lent.end_ns = lent.end_after_restart(now_ns);
        }
    }

    /// Drops the held loans of one giver or of all, as if they had ended now: the giver is evicted, or the
    /// clock cannot be trusted. Duplicates of the grants are refused.
    pub fn forfeit(&mut self, from: Option<Incarnation>, now_ns: u64) -> CellChange {
        let mut change = CellChange::default();
        let (dropped, kept) = self.held.drain(..).partition(|held| from.is_none_or(|from| held.from == from));
        self.held = kept;
        let dropped: Vec<HeldLoan> = dropped;
        for held in dropped {
            let left = held.ends_here();
            change.rate += left.rate;
            change.units += left.units;
            change.shed += left.shed;
            self.remember_forfeited(held, now_ns);
        }
        change
    }

    /// A duplicate of a grant does not revive a forfeited loan.
    fn remember_forfeited(&mut self, held: HeldLoan, now_ns: u64) {
        if !mutated(Mutation::ForfeitForgets) {
            self.remember(held, now_ns);
        }
    }

    fn remember(&mut self, held: HeldLoan, now_ns: u64) {
        self.returned.retain(|returned| returned.end_ns > now_ns);
        if held.end_ns <= now_ns {
            return;
        }
        if self.returned.len() < RETURNED_MAX {
            self.returned.reserve_exact(1);
            self.returned.push(Returned { number: held.number, from: held.from, end_ns: held.end_ns });
        } else {
            self.closed_until_ns = self.closed_until_ns.max(held.end_ns);
        }
    }
}

/// The last part of a rate is never lent: a meter needs one.
fn kept_rate() -> u32 {
    if mutated(Mutation::LendLastRate) { 0 } else { 1 }
}

/// Only what is there moves: tokens of a bucket, unused capacity of a sliding window.
fn are_there(tokens: u64, available: u64, kind: LoanKind) -> bool {
    tokens <= available
        || match kind {
            LoanKind::Bucket => mutated(Mutation::LendTokensNotThere),
            LoanKind::Sliding { .. } => mutated(Mutation::LendUsedCapacity),
        }
}

/// The giver sheds the debt that goes with a part, and keeps none of the tokens that go with it.
fn shed_by_lending(part: Part, tokens: u64) -> u64 {
    if mutated(Mutation::GiverKeepsTokens) { part.units } else { part.units - tokens }
}

/// The holder owes all of a part that does not come as tokens.
fn owed_by_accepting(part: Part, tokens: u64) -> u64 {
    if mutated(Mutation::AcceptFull) { 0 } else { part.units - tokens }
}

/// A loan counts from when its holder sent the heartbeat, not from when the grant came.
fn counts_from(sent_ns: u64, received_ns: u64) -> u64 {
    if mutated(Mutation::DateFromReceipt) { received_ns } else { sent_ns }
}

/// A grant is not accepted after its end.
fn is_over(end_ns: u64, now_ns: u64) -> bool {
    end_ns <= now_ns && !mutated(Mutation::AcceptEnded)
}

/// A bucket's holder returns no more tokens than it has: the giver will owe the rest.
fn returned_tokens(units: u64, available: u64) -> u64 {
    if mutated(Mutation::GiveBackFull) { units } else { units.min(available) }
}

/// Capacity of a sliding window is given back only while it is not used.
fn is_unused(units: u64, available: u64) -> bool {
    units <= available || mutated(Mutation::GiveBackUsedCapacity)
}

/// Saturating: a sum that does not fit is refused where it would arise.
fn total(parts: impl Iterator<Item = Part>) -> Part {
    parts.fold(Part::default(), |sum, part| Part {
        rate: sum.rate.saturating_add(part.rate),
        units: sum.units.saturating_add(part.units),
    })
}

const fn check_part(part: Part, kind: LoanKind) -> Result<(), Refusal> {
    match kind {
        _ if part.rate == 0 && part.units == 0 => Err(Refusal::Empty),
        _ if part.rate > RATE_PARTS || part.units > UNITS_MAX => Err(Refusal::Malformed),
        LoanKind::Sliding { .. } if part.rate > 0 => Err(Refusal::Rate),
        LoanKind::Sliding { .. } | LoanKind::Bucket => Ok(()),
    }
}

const fn check_ttl(ttl_ns: u64) -> Result<(), Refusal> {
    if ttl_ns == 0 || ttl_ns > TTL_NS_MAX { Err(Refusal::Ttl(ttl_ns)) } else { Ok(()) }
}
