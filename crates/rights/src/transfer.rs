//! Rights inside one fixed window: each region starts with its standing share of the window, and gives units away for
//! good. **The sum of what regions may use never exceeds the window's limit.**
//!
//! `given` and `received` are cumulative, one number a peer and direction, written by the giver and grow-only. So any
//! loss, repetition or order of messages is safe: a late value is a lower bound.
//!
//! **Theorem 5.** If every give is on disk before it is told, `Σ limit <= L` and `Σ used <= L`. *Proof.* Let `g(i, j)` be
//! what i wrote, and `v(i, j) <= g(i, j)` what j has of it. `Σ (standing + received − given) = L + Σ v − Σ g <= L`. A
//! region uses at most its limit when it uses, and gives at most what it has not used, so `used <= limit` is kept by
//! every step: use and give check it, a receipt raises the limit. ∎ (A budget that is lowered inside a window leaves
//! `used` where it is: the window's limit is the largest that was in force in it.)
//!
//! Units that a node took of its region's pool of the window (`pool::window`) are a part of what stands, here: they are spent for the
//! pool, and given away or used once.
//!
//! A peer that lies may give what it does not have. So of each giver no more is believed than what stands for its region and what
//! went there from here; an honest one gives no more ([`Transfers::may_give`]). Then whatever one peer of `n` says, where each region
//! has one node and all know the cell's numbers, the others admit at most `L + (n − 2) · standing(peer)` in a window: each of them that
//! standing share once more, beside their own.
//!
//! A peer that has received more than is known here to have been given proves that this disk was restored from an older
//! one: the node owns nothing until it begins anew ([`Refusal::RestoredDisk`]). The proof is not complete: it needs every
//! peer's echo before anything is spent, and two disks restored at once may agree.
//!
//! A window is known by its end and never opens again; what is left of it is burned.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use acequia_limits::UNITS_MAX;

use crate::{
    MemberId,
    loan::Refusal,
    mutation::{Mutation, mutated},
};

/// Regions that a cell may exchange rights with.
pub const REGIONS_MAX: usize = 64;

/// One window's transfers, as one region's writer knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfers {
    /// The window, by its end on the wall clock.
    pub end_ns: u64,
    given: SmallVec<[(MemberId, u64); 2]>,
    received: SmallVec<[(MemberId, u64); 2]>,
}

impl Transfers {
    /// Of no window: nothing moved.
    pub const fn none() -> Self {
        Self { end_ns: 0, given: SmallVec::new_const(), received: SmallVec::new_const() }
    }

    /// The window that ends then, with nothing given or received.
    pub fn new(end_ns: u64) -> Self {
        Self { end_ns, ..Self::default() }
    }

    /// What was given to each region, cumulative, by region.
    pub fn given(&self) -> &[(MemberId, u64)] {
        &self.given
    }

    /// What was given to all of them.
    pub fn given_total(&self) -> u64 {
        sum(&self.given)
    }

    /// What was received from each region, cumulative, by region.
    pub fn received(&self) -> &[(MemberId, u64)] {
        &self.received
    }

    /// Whether nothing moved.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty() && self.received.is_empty()
    }

    /// The same with nothing received: it may all have been spent.
    #[must_use]
    pub fn without_received(&self) -> Self {
        Self { received: SmallVec::new(), ..self.clone() }
    }

    /// What the region may use in this window, of a standing share of so many units.
    pub fn limit(&self, standing_units: u64) -> u64 {
        let given = if mutated(Mutation::GivenNotCounted) { 0 } else { sum(&self.given) };
        standing_units.saturating_add(sum(&self.received)).saturating_sub(given)
    }

    /// Gives units that are not used. Returns what was given to that region in all: on disk before it is told.
    pub fn give(&mut self, to: MemberId, units: u64, available: u64) -> Result<u64, Refusal> {
        if units == 0 {
            return Err(Refusal::Empty);
        }
        if units > available && !mutated(Mutation::GiveUsedUnits) {
            return Err(Refusal::NotAvailable { asked: units, available });
        }
        let cumulative = of(&self.given, to).saturating_add(units);
        grow(&mut self.given, to, cumulative)?;
        Ok(cumulative)
    }

    /// What this region may give another one, of which `stands` is what stands for the giver: that, and what came from there. So
    /// much the other one takes, and no more ([`Transfers::receive`]).
    pub fn may_give(&self, to: MemberId, stands: u64) -> u64 {
        stands.saturating_add(of(&self.received, to)).saturating_sub(of(&self.given, to))
    }

    /// Takes what a region says it has given in all, of which `stands` is what stands for the giver. More than that and what went
    /// there before it cannot give: a peer that says so lies, or has an older disk. Returns what is new.
    pub fn receive(&mut self, from: MemberId, cumulative: u64, stands: u64) -> Result<u64, Refusal> {
        let known = of(&self.received, from);
        let most = stands.saturating_add(of(&self.given, from));
        if cumulative > most && most <= known {
            return Err(Refusal::TooMuch { said: cumulative, most });
        }
        // What both believe may differ for a while: what is beyond is told again, and counts when it may.
        let cumulative = cumulative.min(most);
        if mutated(Mutation::ReceiveAdds) {
            grow(&mut self.received, from, known.saturating_add(cumulative))?;
            return Ok(cumulative);
        }
        if cumulative <= known {
            return Err(Refusal::Stale);
        }
        grow(&mut self.received, from, cumulative)?;
        Ok(cumulative - known)
    }

    /// A peer says how much it has received from here.
    pub fn own_echo(&self, to: MemberId, cumulative: u64) -> Result<(), Refusal> {
        let given = of(&self.given, to);
        if cumulative > given && !mutated(Mutation::RestoredDiskUnseen) {
            return Err(Refusal::RestoredDisk { to, received: cumulative, given });
        }
        Ok(())
    }
}

/// What one writer has used of a cell: it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    spent: u64,
    refunded: u64,
}

impl Row {
    /// A row that was told or read, if it can be one.
    pub const fn new(spent: u64, refunded: u64) -> Result<Self, Refusal> {
        if refunded > spent { Err(Refusal::Malformed) } else { Ok(Self { spent, refunded }) }
    }

    /// Units spent, ever.
    pub const fn spent(&self) -> u64 {
        self.spent
    }

    /// Of those, units refunded.
    pub fn refunded(&self) -> u64 {
        self.refunded
    }

    /// What counts against the limit.
    pub const fn used(&self) -> u64 {
        self.spent - self.refunded
    }

    /// Spends what the limit still has.
    pub fn spend(&mut self, units: u64, limit: u64) -> Result<(), Refusal> {
        let available = limit.saturating_sub(self.used()).min(u64::MAX - self.spent);
        if units > available {
            return Err(Refusal::NotAvailable { asked: units, available });
        }
        self.spent += units;
        Ok(())
    }

    /// Gives units back that were spent.
    pub fn refund(&mut self, units: u64) -> Result<(), Refusal> {
        if units > self.used() && !mutated(Mutation::RefundUnspent) {
            return Err(Refusal::NotAvailable { asked: units, available: self.used() });
        }
        self.refunded += units;
        Ok(())
    }

    /// Takes a row of the same writer, older or newer.
    pub fn join(&mut self, other: &Self) {
        self.spent = self.spent.max(other.spent);
        self.refunded = self.refunded.max(other.refunded);
    }
}

fn of(entries: &[(MemberId, u64)], region: MemberId) -> u64 {
    entries.binary_search_by_key(&region, |(region, _)| *region).map_or(0, |place| entries[place].1)
}

/// Saturating: a sum that does not fit is refused where it would arise.
fn sum(entries: &[(MemberId, u64)]) -> u64 {
    entries.iter().fold(0, |sum: u64, (_, units)| sum.saturating_add(*units))
}

/// Raises one entry, if the sum stays in range.
fn grow(entries: &mut SmallVec<[(MemberId, u64); 2]>, region: MemberId, units: u64) -> Result<(), Refusal> {
    let known = of(entries, region);
    if sum(entries).saturating_sub(known).saturating_add(units) > UNITS_MAX {
        return Err(Refusal::Malformed);
    }
    match entries.binary_search_by_key(&region, |(region, _)| *region) {
        Ok(place) => entries[place].1 = units,
        Err(_) if entries.len() >= REGIONS_MAX => return Err(Refusal::TooManyRegions),
        Err(place) => entries.insert(place, (region, units)),
    }
    Ok(())
}
