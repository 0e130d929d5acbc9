//! The loans of one cell: what its region lent of its own part, and what it holds of others'.
//!
//! A cell's *capacity* is its standing part, plus what it holds, minus what it has lent. A bucket's state is its *debt*
//! `d >= 0`, in units, which drains at the cell's part of the rate; its level is `capacity − d`, and nothing is admitted
//! below 0. Loans move capacity `β` and debt together:
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
//! To shed is to lower the debt, to no less than 0; to owe is to raise it. Call what was shed and is not owed yet *in
//! flight*: `β − x` for a loan or a return under way, and `β` for a loan that ended at its holder.
//!
//! **Theorem 3 (rates).** `admitted(s, t] <= B + r·(t − s)` for every interval.
//! *Proof.* Let `D = Σ min(d, capacity) + in flight`, and `C = Σ capacity + lent and not held`. Every row of the table
//! keeps C, which is B, and D <= C: a debt in flight is at most its β. No row lowers D: what a cell sheds is at most what
//! flies; where it sheds less (it owed less) D grows, which wastes. A lost message leaves D in flight until the giver's
//! end, where `β`, the most that flew, is owed. Only draining lowers D, at `Σ rate <= r`, since a part of the rate is
//! counted on by one cell at a time (session.rs, Theorem 1) and nothing drains in flight; every admission raises it by
//! its cost. So `admitted = ΔD + drained <= B + r·(t − s)`. ∎ With different versions of the budget at the two ends a
//! unit is still a unit, and a part of the rate drains at most that part of the largest rate in force.
//!
//! **Theorem 4 (sliding windows).** Capacity moves only where it is not used: `β <= available` to lend and to give back.
//! A holder's end leaves up to β used beyond its capacity, which leaves the window within one horizon, and so long the
//! giver waits (stretched: [`Kind::Sliding`]). Hence at every instant `Σ used in the last window <= Σ capacity + what
//! lingers <= L`.
//!
//! **Only what is one's own is lent**, never what is borrowed. So a loan rests on nothing that can end before it, and the
//! check is one comparison. The last part of a rate is never lent: a meter needs one. What is held of a region's pool ([`crate::pool`])
//! is one's own for as long as it lasts: who lends of it sees to it that loans end before.
//!
//! **A lowered standing part** keeps the debt, so a cell may owe more than its capacity, and have lent more than it has.
//! It is acknowledged when neither is so ([`Book::conforms`]). Until then nobody else may be raised, and a restart owes
//! the whole capacity of the largest standing part since the last that was acknowledged.
//!
//! This file knows no clock, no limit and no policy: what to ask, whom to lend to and when to give back is the caller's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use thiserror::Error;

use acequia_limits::{Part, RATE_PARTS, UNITS_MAX};

use crate::{
    Incarnation,
    mutation::{Mutation, mutated},
    session::{Beats, EXCEPTED_MAX, FROZEN_MAX, Heartbeat, Session, Sessions, stretch},
};

/// Loans that a cell may have lent, and as many that it may hold.
pub const LOANS_MAX: usize = 64;

/// Of those, with one peer.
pub const LOANS_PER_PEER_MAX: usize = 16;

/// Loans that a cell remembers to have given back. Beyond this it accepts nothing until the last of them would have
/// ended.
pub const RETURNED_MAX: usize = 16;

/// The longest ttl: a day. Longer loans would outlive every patience, and every process.
pub const TTL_NS_MAX: u64 = 86_400 * 1_000_000_000;

/// What a loan is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A token or leaky bucket: debt moves with the capacity.
    Bucket,
    /// A sliding window: only unused capacity moves.
    Sliding {
        /// For how long after the holder's end its charges may count: the limit's horizon.
        lingers_ns: u64,
    },
}

/// What a giver offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// From the node's durable counter: above every number that it gave before. 0 is no number.
    pub number: u64,
    /// To whom.
    pub to: Incarnation,
    /// How much.
    pub part: Part,
    /// Units of a bucket's level that go along: at most the part's units and the level. Of no meaning for windows.
    pub tokens: u64,
    /// How long after the holder's beat was sent it lasts.
    pub ttl_ns: u64,
}

/// A loan, as its giver tells the holder. Its bytes never change: a retry echoes the same beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Unique among all loans of the giver.
    pub number: u64,
    /// How much.
    pub part: Part,
    /// Of its units, those that are not owed.
    pub tokens: u64,
    /// How long after the echoed beat was sent it lasts, unless it is renewed.
    pub ttl_ns: u64,
    /// The holder's beat that dates it.
    pub echo: Heartbeat,
}

/// A loan that ended early, as its holder tells the giver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    /// Which.
    pub number: u64,
    /// Of its units, those that are not owed.
    pub tokens: u64,
}

/// A loan, as its giver keeps it: on disk before the grant leaves, and until it is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentLoan {
    /// Unique among all loans of this node.
    pub number: u64,
    /// Who holds it.
    pub to: Incarnation,
    /// How much.
    pub part: Part,
    /// As granted.
    pub tokens: u64,
    /// As granted.
    pub ttl_ns: u64,
    /// The ttl, stretched by the drift bound.
    pub wait_ns: u64,
    /// With `lingers_ns` stretched by the drift bound.
    pub kind: Kind,
    /// As granted.
    pub echo: Heartbeat,
    /// Its end unless it is renewed, on this process's clock, so never stored: a loan read from a disk has no end until
    /// [`Book::restart`] gives it one.
    #[serde(skip, default = "never_ns")]
    pub end_ns: u64,
    /// Whether the session's renewals are for it.
    #[serde(skip)]
    pub renewing: bool,
    /// Whether its holder said that it does not hold it: see [`Book::refused`].
    #[serde(skip)]
    pub refused: bool,
}

const fn never_ns() -> u64 {
    u64::MAX
}

impl LentLoan {
    /// The grant, to be sent again.
    pub const fn grant(&self) -> Grant {
        Grant {
            number: self.number,
            part: self.part,
            tokens: self.tokens,
            ttl_ns: self.ttl_ns,
            echo: self.echo,
        }
    }

    /// The end of a loan to a peer of which nothing is known: what was renewed is never over.
    pub const fn end_without_session(&self) -> u64 {
        match self.kind {
            _ if self.renewing => u64::MAX,
            Kind::Bucket => self.end_ns,
            Kind::Sliding { lingers_ns } => self.end_ns.saturating_add(lingers_ns),
        }
    }
}

/// A loan, as its holder keeps it: in memory only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLoan {
    /// Unique among all loans of the giver.
    pub number: u64,
    /// Who gave it.
    pub from: Incarnation,
    /// How much.
    pub part: Part,
    /// How long it lasts after a beat that a renewal echoes.
    pub ttl_ns: u64,
    /// What it is a part of.
    pub kind: Kind,
    /// Its end unless it is renewed, on this process's clock.
    pub end_ns: u64,
}

/// A loan that was given back: a duplicate of its grant must not revive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Returned {
    number: u64,
    from: Incarnation,
    /// The end it was granted: from then on a duplicate is refused by its age.
    end_ns: u64,
}

/// What a step does to a cell. Apply the debt to the state as it is at the step's instant, then the new capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the cell's debt must follow its loans"]
pub struct Change {
    /// Of the capacity, in parts of the rate.
    pub rate: i64,
    /// Of the capacity, in units.
    pub units: i64,
    /// Units that the cell's debt grows by.
    pub owe: u64,
    /// Units that the cell's debt falls by, to no less than 0.
    pub shed: u64,
}

impl Change {
    pub(crate) fn gain(part: Part, owe: u64) -> Self {
        Self { rate: i64::from(part.rate), units: part.units.cast_signed(), owe, shed: 0 }
    }

    pub(crate) fn lose(part: Part, shed: u64) -> Self {
        Self { rate: -i64::from(part.rate), units: -part.units.cast_signed(), owe: 0, shed }
    }
}

/// Why a step did not happen. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A part of nothing.
    #[error("an empty part")]
    Empty,
    /// Numbers that no honest peer sends.
    #[error("numbers out of range or out of order")]
    Malformed,
    /// Not a ttl.
    #[error("a ttl of {0} ns: it is 1 ns to {TTL_NS_MAX} ns, and to what the holder keeps its beats for")]
    Ttl(u64),
    /// A window has no rate to lend.
    #[error("a part of the rate of a limit without a rate")]
    Rate,
    /// More than the giver's own part that is not lent.
    #[error("{asked:?} of a spare {spare:?}")]
    NotSpare {
        /// What was offered.
        asked: Part,
        /// What could be.
        spare: Part,
    },
    /// More tokens, or more of a window, than there are.
    #[error("{asked} units where {available} are available")]
    NotAvailable {
        /// What was asked for.
        asked: u64,
        /// What there is.
        available: u64,
    },
    /// The peer has not been heard, or not for too long.
    #[error("no beat of the peer is recent enough")]
    Unheard,
    /// A number that was given before.
    #[error("loan number {0} is not above those before")]
    NumberUsed(u64),
    /// As many loans as are kept.
    #[error("as many loans as a cell may have: {LOANS_PER_PEER_MAX} a peer, {LOANS_MAX} in all")]
    TooManyLoans,
    /// As many frozen loans as are told.
    #[error("as many frozen loans as a peer is told of ({FROZEN_MAX}), or remembers ({EXCEPTED_MAX})")]
    TooManyFrozen,
    /// The beat is not one that this process sent and remembers.
    #[error("an echo of a beat that this process did not send, or long ago")]
    UnknownBeat,
    /// It has ended already.
    #[error("it ended before it came")]
    Ended,
    /// It is held already.
    #[error("loan {0} is held already")]
    Duplicate(u64),
    /// It was given back.
    #[error("loan {0} was given back")]
    GivenBack(u64),
    /// No such loan with that peer.
    #[error("no loan {0} with that peer")]
    Unknown(u64),
    /// More than the peer can have.
    #[error("{said} units of one that can have {most}")]
    TooMuch {
        /// Units that it says that it gave or lent, in all.
        said: u64,
        /// The most that it can have.
        most: u64,
    },
    /// An older message than one that came before.
    #[error("older than what came before")]
    Stale,
    /// A newer message that says less than an older one.
    #[error("newer than what came before, and says less: the peer's disk may have been restored")]
    Backwards,
    /// A peer remembers more than this node: the disk is an old one.
    #[error(
        "{to:?} has received {received} units of this window, where {given} were given: the disk was restored"
    )]
    RestoredDisk {
        /// Which peer.
        to: crate::MemberId,
        /// What it says to have received.
        received: u64,
        /// What is known here to have been given.
        given: u64,
    },
    /// As many regions as are kept.
    #[error("more regions than a catalogue has")]
    TooManyRegions,
}

/// The loans of one cell.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// Most cells are hot in one region: all others have lent it one piece.
    lent: SmallVec<[LentLoan; 1]>,
    /// As large as it is: a place for each region that may lend would be empty in most cells.
    held: Vec<HeldLoan>,
    returned: Vec<Returned>,
    /// Grants are refused until then: more loans were given back than are remembered.
    closed_until_ns: u64,
}

impl Book {
    /// A cell's loans as its node's disk has them. Follow with [`Book::restart`].
    pub fn from_lent(lent: impl IntoIterator<Item = LentLoan>) -> Self {
        Self { lent: lent.into_iter().collect(), ..Self::default() }
    }

    /// What is lent, in the order it was.
    pub fn lent(&self) -> &[LentLoan] {
        &self.lent
    }

    /// What is held, in the order it came.
    pub fn held(&self) -> &[HeldLoan] {
        &self.held
    }

    /// Whether the book says no more than an absent one: the cell may be forgotten.
    pub fn is_empty(&self, now_ns: u64) -> bool {
        self.lent.is_empty()
            && self.held.is_empty()
            && self.closed_until_ns <= now_ns
            && self.returned.iter().all(|returned| returned.end_ns <= now_ns)
    }

    /// Bytes it takes beside itself.
    pub fn heap_bytes(&self) -> usize {
        let lent = if self.lent.spilled() { self.lent.capacity() * size_of::<LentLoan>() } else { 0 };
        lent + self.held.capacity() * size_of::<HeldLoan>() + self.returned.capacity() * size_of::<Returned>()
    }

    /// What is lent, in all.
    pub fn lent_total(&self) -> Part {
        total(self.lent.iter().map(|lent| lent.part))
    }

    /// What is held, in all.
    pub fn held_total(&self) -> Part {
        total(self.held.iter().map(|held| held.part))
    }

    /// What the cell may use. Never less than a part of the rate, if it owns any: its meter needs one, and the last one
    /// is never lent.
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

    /// What the cell may still lend: of its own part, never what it holds, and never the last part of the rate.
    pub fn spare(&self, standing: Part) -> Part {
        let lent = self.lent_total();
        let mut own = standing;
        if mutated(Mutation::LendBorrowed) {
            let held = self.held_total();
            own = Part { rate: own.rate + held.rate, units: own.units + held.units };
        }
        let last = u32::from(!mutated(Mutation::LendLastRate));
        Part {
            rate: own.rate.saturating_sub(last).saturating_sub(lent.rate),
            units: own.units.saturating_sub(lent.units),
        }
    }

    /// Whether more is lent than the standing part has: then a version that lowered it is not acknowledged yet.
    pub fn is_over_lent(&self, standing: Part) -> bool {
        let lent = self.lent_total();
        lent.units > standing.units || lent.rate > standing.rate.saturating_sub(1)
    }

    /// Whether the cell keeps to its standing part, so that a version that lowered it may be acknowledged: no more is
    /// lent, and it owes (or, in a window, has used) no more than it may. To wait for one refill instead is not
    /// enough: a cell that has lent its rate pays back ever more slowly.
    pub fn conforms(&self, standing: Part, owed: u64) -> bool {
        let within = owed <= self.effective(standing).units || mutated(Mutation::ConformIndebted);
        within && !self.is_over_lent(standing)
    }

    /// Lends. The loan must be on disk before the grant leaves. `available` is what the cell could admit now.
    pub fn lend(
        &mut self,
        standing: Part,
        available: u64,
        kind: Kind,
        offer: &Offer,
        session: &mut Session,
        now_ns: u64,
    ) -> Result<(Grant, Change), Refusal> {
        let Offer { number, to, part, mut tokens, ttl_ns } = *offer;
        check_part(part, kind)?;
        check_ttl(ttl_ns)?;
        if let Kind::Sliding { .. } = kind {
            tokens = part.units;
        }
        let spare = self.spare(standing);
        if part.rate > spare.rate || part.units > spare.units {
            return Err(Refusal::NotSpare { asked: part, spare });
        }
        if tokens > part.units {
            return Err(Refusal::NotAvailable { asked: tokens, available: part.units });
        }
        let used_is_lent = match kind {
            Kind::Bucket => mutated(Mutation::LendTokensNotThere),
            Kind::Sliding { .. } => mutated(Mutation::LendUsedCapacity),
        };
        if tokens > available && !used_is_lent {
            return Err(Refusal::NotAvailable { asked: tokens, available });
        }
        if !session.is_next(number) && !mutated(Mutation::NumbersReused) {
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
            Kind::Bucket => Kind::Bucket,
            Kind::Sliding { lingers_ns } => {
                Kind::Sliding { lingers_ns: stretch(lingers_ns, session.drift_ppm()) }
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
        let shed = match kind {
            Kind::Bucket if mutated(Mutation::GiverKeepsTokens) => part.units,
            Kind::Bucket => part.units - tokens,
            Kind::Sliding { .. } => 0,
        };
        Ok((lent.grant(), Change::lose(part, shed)))
    }

    /// Accepts a grant, if it echoes a beat of this very process, is not over, and is neither held nor given back.
    pub fn accept(
        &mut self,
        from: Incarnation,
        grant: &Grant,
        kind: Kind,
        beats: &Beats,
        session: &mut Session,
        now_ns: u64,
    ) -> Result<Change, Refusal> {
        let Grant { number, part, tokens, ttl_ns, echo } = *grant;
        check_part(part, kind)?;
        check_ttl(ttl_ns)?;
        if ttl_ns > beats.keep_ns() {
            return Err(Refusal::Ttl(ttl_ns));
        }
        if tokens > part.units {
            return Err(Refusal::Malformed);
        }
        let sent_ns = beats.sent_at(echo).ok_or(Refusal::UnknownBeat)?;
        let dated_ns = if mutated(Mutation::DateFromReceipt) { now_ns } else { sent_ns };
        let end_ns = dated_ns.saturating_add(ttl_ns);
        if end_ns <= now_ns && !mutated(Mutation::AcceptEnded) {
            return Err(Refusal::Ended);
        }
        let known = |other: &HeldLoan| other.from == from && other.number == number;
        if self.held.iter().any(known) && !mutated(Mutation::AcceptTwice) {
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
        let owe = match kind {
            Kind::Bucket if mutated(Mutation::AcceptFull) => 0,
            Kind::Bucket => part.units - tokens,
            Kind::Sliding { .. } => 0,
        };
        Ok(Change::gain(part, owe))
    }

    /// Ends a held loan early: the holder stops first, then tells. `available` is what the cell could admit now.
    pub fn give_back(
        &mut self,
        number: u64,
        from: Incarnation,
        available: u64,
        now_ns: u64,
    ) -> Result<(Return, Change), Refusal> {
        let place = self
            .held
            .iter()
            .position(|held| held.from == from && held.number == number)
            .ok_or(Refusal::Unknown(number))?;
        let held = self.held[place];
        let units = held.part.units;
        let (tokens, shed) = match held.kind {
            Kind::Bucket if mutated(Mutation::GiveBackFull) => (units, 0),
            Kind::Bucket => {
                let tokens = units.min(available);
                (tokens, units - tokens)
            }
            Kind::Sliding { .. } if units > available && !mutated(Mutation::GiveBackUsedCapacity) => {
                return Err(Refusal::NotAvailable { asked: units, available });
            }
            Kind::Sliding { .. } => (units, 0),
        };
        if !mutated(Mutation::GiveBackAndKeep) {
            self.held.remove(place);
        }
        if !mutated(Mutation::GiveBackForgets) {
            self.remember(held, now_ns);
        }
        Ok((Return { number, tokens }, Change::lose(held.part, shed)))
    }

    /// Takes a loan back that its holder ended early, if it is still lent. The removal must be on disk before the
    /// capacity is lent again.
    pub fn take_return(
        &mut self,
        from: Incarnation,
        returned: &Return,
        session: &mut Session,
    ) -> Result<Change, Refusal> {
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
        let owe = match lent.kind {
            Kind::Bucket => lent.part.units - tokens,
            Kind::Sliding { .. } => 0,
        };
        Ok(Change::gain(lent.part, owe))
    }

    /// Stops renewing a lent loan, so that it ends by itself.
    pub fn freeze(&mut self, number: u64, session: &mut Session) -> Result<(), Refusal> {
        let lent = self.lent.iter_mut().find(|lent| lent.number == number).ok_or(Refusal::Unknown(number))?;
        if lent.renewing { session.freezes(lent) } else { Ok(()) }
    }

    /// The holder of a lent loan says that it does not hold it. It ends by itself once it is frozen: now, or with a later
    /// [`Book::freeze_refused`] where as many are frozen as can be told. Nobody would say so again, and a loan that is
    /// renewed and not held would never come back. Until then it is lent as before: a duplicate of its grant may still be
    /// accepted.
    pub fn refused(&mut self, number: u64, session: &mut Session) -> Result<(), Refusal> {
        let lent = self.lent.iter_mut().find(|lent| lent.number == number).ok_or(Refusal::Unknown(number))?;
        lent.refused = true;
        if lent.renewing { session.freezes(lent) } else { Ok(()) }
    }

    /// Freezes loans that were refused while there was no room to tell of them, as far as there is now.
    pub fn freeze_refused(&mut self, sessions: &mut BTreeMap<Incarnation, Session>) {
        if mutated(Mutation::RefusalForgotten) {
            return;
        }
        for lent in self.lent.iter_mut().filter(|lent| lent.refused && lent.renewing) {
            if let Some(session) = sessions.get_mut(&lent.to) {
                // A list that is still full has room later: its loans end, since nothing is renewed while it is full.
                let _ = session.freezes(lent);
            }
        }
    }

    /// When the next loan ends, if nothing is renewed until then. Ends only move later, so this may be kept and asked
    /// again when it is due.
    pub fn next_expiry(&self, sessions: &impl Sessions) -> Option<u64> {
        let held = self.held.iter().map(|held| sessions.end_of(held));
        let lent = self.lent.iter().map(|lent| sessions.reclaim_end(lent));
        held.chain(lent).min()
    }

    /// Ends the loan that is due the longest, if one is: a held one leaves, a lent one comes back with everything owed.
    /// Settle the cell at that instant, apply the change, and ask again. For a lent loan, the removal must be on disk
    /// before the capacity is lent again, and [`Session::came_back`] is told; for a held one, [`Session::let_go`].
    pub fn expire_one(&mut self, now_ns: u64, sessions: &impl Sessions) -> Option<Expired> {
        let held = self.held.iter().enumerate().map(|(i, held)| (sessions.end_of(held), false, i));
        let lent = self.lent.iter().enumerate().map(|(i, lent)| (sessions.reclaim_end(lent), true, i));
        let (at_ns, comes_back, place) = held.chain(lent).min().filter(|(at_ns, ..)| *at_ns <= now_ns)?;
        Some(if comes_back {
            let lent = self.lent.remove(place);
            let owe = match lent.kind {
                Kind::Bucket if mutated(Mutation::OweNothingOnReclaim) => 0,
                Kind::Bucket => lent.part.units,
                Kind::Sliding { .. } => 0,
            };
            let change = Change::gain(lent.part, owe);
            Expired { at_ns, number: lent.number, peer: lent.to, comes_back, change }
        } else {
            let held = self.held.remove(place);
            Expired { at_ns, number: held.number, peer: held.from, comes_back, change: leaves(&held) }
        })
    }

    /// After a restart: every loan that the disk has waits its whole ttl, stretched, from now, and is not renewed.
    /// Nothing is held. The caller lets the cell owe its whole capacity: [`Book::effective`] of the largest standing
    /// part since the last that was acknowledged.
    pub fn restart(&mut self, now_ns: u64) {
        self.held.clear();
        self.returned.clear();
        self.closed_until_ns = 0;
        for lent in &mut self.lent {
            lent.renewing = false;
            if mutated(Mutation::RestartWaitsForNothing) {
                lent.end_ns = now_ns;
            } else {
                lent.end_ns = now_ns.saturating_add(lent.wait_ns);
            }
        }
        if mutated(Mutation::RestartForgetsLoans) {
            self.lent.clear();
        }
    }

    /// Drops what is held, of one giver or of all, as if it had ended now: its giver is evicted, or the clock cannot be
    /// trusted. Duplicates of the grants are refused.
    pub fn forfeit(&mut self, from: Option<Incarnation>, now_ns: u64) -> Change {
        let mut change = Change::default();
        let (dropped, kept) = self.held.drain(..).partition(|held| from.is_none_or(|from| held.from == from));
        self.held = kept;
        let dropped: Vec<HeldLoan> = dropped;
        for held in dropped {
            let left = leaves(&held);
            change.rate += left.rate;
            change.units += left.units;
            change.shed += left.shed;
            if !mutated(Mutation::ForfeitForgets) {
                self.remember(held, now_ns);
            }
        }
        change
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

/// A loan that came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Its own end, at or before now.
    pub at_ns: u64,
    /// Which.
    pub number: u64,
    /// With whom.
    pub peer: Incarnation,
    /// Whether it was lent and comes back, or was held and leaves.
    pub comes_back: bool,
    /// What that does to the cell.
    pub change: Change,
}

/// What the end of a held loan does to a cell.
fn leaves(held: &HeldLoan) -> Change {
    let shed = match held.kind {
        Kind::Bucket if mutated(Mutation::ShedMoreThanOwed) => 2 * held.part.units,
        Kind::Bucket => held.part.units,
        Kind::Sliding { .. } => 0,
    };
    Change::lose(held.part, shed)
}

/// Saturating: a sum that does not fit is refused where it would arise.
fn total(parts: impl Iterator<Item = Part>) -> Part {
    parts.fold(Part::default(), |sum, part| Part {
        rate: sum.rate.saturating_add(part.rate),
        units: sum.units.saturating_add(part.units),
    })
}

const fn check_part(part: Part, kind: Kind) -> Result<(), Refusal> {
    match kind {
        _ if part.rate == 0 && part.units == 0 => Err(Refusal::Empty),
        _ if part.rate > RATE_PARTS || part.units > UNITS_MAX => Err(Refusal::Malformed),
        Kind::Sliding { .. } if part.rate > 0 => Err(Refusal::Rate),
        Kind::Sliding { .. } | Kind::Bucket => Ok(()),
    }
}

const fn check_ttl(ttl_ns: u64) -> Result<(), Refusal> {
    if ttl_ns == 0 || ttl_ns > TTL_NS_MAX { Err(Refusal::Ttl(ttl_ns)) } else { Ok(()) }
}
