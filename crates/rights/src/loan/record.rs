//! Loans as their givers and holders keep them, and what a step with a loan changes.

use acequia_limits::Part;
use serde::{Deserialize, Serialize};

use super::{Grant, LoanKind};
use crate::{
    Incarnation,
    mutation::{Mutation, mutated},
    session::Heartbeat,
};

/// A loan, as its giver keeps it: on disk before the grant leaves, and until the loan is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentLoan {
    /// Unique among all loans of this node.
    pub number: u64,
    /// The holder.
    pub to: Incarnation,
    /// The lent part.
    pub part: Part,
    /// The tokens, as granted.
    pub tokens: u64,
    /// The ttl, as granted.
    pub ttl_ns: u64,
    /// The ttl, stretched by the drift bound.
    pub wait_ns: u64,
    /// The kind, with `lingers_ns` stretched by the drift bound.
    pub kind: LoanKind,
    /// The echoed heartbeat, as granted.
    pub echo: Heartbeat,
    /// The loan's end unless it is renewed, on this process's clock, so never stored. A loan read from a disk
    /// has no end until [`restart`](super::Book::restart) gives it one.
    #[serde(skip, default = "never_ns")]
    pub end_ns: u64,
    /// Whether the session's renewals include the loan.
    #[serde(skip)]
    pub renewing: bool,
    /// Whether the holder said that it does not hold the loan: see [`refused`](super::Book::refused).
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

    /// The end of a loan to a peer of which nothing is known: a renewed loan is never over.
    pub const fn end_without_session(&self) -> u64 {
        if self.renewing { u64::MAX } else { self.end_ns.saturating_add(self.kind.lingers_ns()) }
    }

    /// A refused loan is frozen as soon as there is room: it would never come back if it were renewed.
    pub(super) fn awaits_freezing(&self) -> bool {
        self.refused && self.renewing && !mutated(Mutation::RefusalForgotten)
    }

    /// A loan outlives the giver's process: the holder goes on counting on the loan.
    pub(super) fn outlives_process(&self) -> bool {
        !mutated(Mutation::RestartForgetsLoans)
    }

    /// A restarted giver waits as long as if the holder's heartbeat had come just now.
    pub(super) fn end_after_restart(&self, now_ns: u64) -> u64 {
        if mutated(Mutation::RestartWaitsForNothing) { now_ns } else { now_ns.saturating_add(self.wait_ns) }
    }

    /// Everything is owed of a loan that ends at its giver: the holder may have spent all of it.
    pub(super) fn ends_here(&self) -> CellChange {
        let owed = if mutated(Mutation::OweNothingOnReclaim) { 0 } else { self.part.units };
        CellChange::gain(self.part, self.kind.debt_of(owed))
    }
}

/// A loan, as its holder keeps it: in memory only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLoan {
    /// Unique among all loans of the giver.
    pub number: u64,
    /// The giver.
    pub from: Incarnation,
    /// The held part.
    pub part: Part,
    /// How long the loan lasts after a heartbeat that a renewal echoes.
    pub ttl_ns: u64,
    /// The kind of cell that the loan is a part of.
    pub kind: LoanKind,
    /// The loan's end unless it is renewed, on this process's clock.
    pub end_ns: u64,
}

impl HeldLoan {
    pub(super) fn is(&self, from: Incarnation, number: u64) -> bool {
        self.from == from && self.number == number
    }

    /// The cell sheds no more debt at a holder's end than the giver will owe.
    pub(super) fn ends_here(&self) -> CellChange {
        let units = if mutated(Mutation::ShedMoreThanOwed) { 2 * self.part.units } else { self.part.units };
        CellChange::lose(self.part, self.kind.debt_of(units))
    }
}

/// A loan that was given back: a duplicate of its grant must not revive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Returned {
    pub(super) number: u64,
    pub(super) from: Incarnation,
    /// The granted end: from then on a duplicate is refused by its age.
    pub(super) end_ns: u64,
}

/// The effect of a step on a cell. Apply the debt to the state as it is at the step's instant, then the new
/// capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the cell's debt must follow its loans"]
pub struct CellChange {
    /// Change of the capacity, in parts of the rate.
    pub rate: i64,
    /// Change of the capacity, in units.
    pub units: i64,
    /// Units that the cell's debt grows by.
    pub owe: u64,
    /// Units that the cell's debt falls by, to no less than 0.
    pub shed: u64,
}

impl CellChange {
    pub(crate) fn gain(part: Part, owe: u64) -> Self {
        Self { rate: i64::from(part.rate), units: part.units.cast_signed(), owe, shed: 0 }
    }

    pub(crate) fn lose(part: Part, shed: u64) -> Self {
        Self { rate: -i64::from(part.rate), units: -part.units.cast_signed(), owe: 0, shed }
    }
}

/// A loan that came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The loan's own end, at or before now.
    pub at_ns: u64,
    /// The loan's number.
    pub number: u64,
    /// The other side of the loan.
    pub peer: Incarnation,
    /// Whether the loan was lent and comes back, or was held and leaves.
    pub comes_back: bool,
    /// The effect on the cell.
    pub change: CellChange,
}
