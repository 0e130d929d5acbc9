//! Rights inside one fixed window: each member starts with its standing share of the window, and gives units
//! away for good. **The units that members may use never sum to more than the window's limit.**
//!
//! `given` and `received` are cumulative, one number for each peer and direction. The giver writes them, and
//! they only grow. So any loss, repetition or order of messages is safe: a late value is a lower bound.
//!
//! **Theorem 5.** If every gift is on disk before it is sent, `Σ limit <= L` and `Σ used <= L`.
//!
//! *Proof.* Let `g(i, j)` be the number that i wrote, and `v(i, j) <= g(i, j)` the number that j has
//! received. So `Σ (standing + received − given) = L + Σ v − Σ g <= L`. A member uses at most its limit when
//! it uses, and gives at most what it has not used. So every step keeps `used <= limit`: use and give check
//! it, a receipt raises the limit. ∎
//!
//! A budget lowered inside a window leaves `used` where it is: the window's limit is the largest that was in
//! force in it.
//!
//! Units that a node took from its region's pool of the window (`pool::window`) are part of the standing
//! share here. For the pool these units are spent; the node uses each once, or gives it away.
//!
//! A peer that lies may give units that it does not have. So each giver is believed up to the standing share
//! of its region, plus the units that went to it from here; an honest giver gives no more
//! ([`Transfers::may_give`]). Suppose each region has one node, all nodes know the cell's numbers, and one
//! peer of `n` lies. Whatever it says, the others admit at most `L + (n − 2) · standing(peer)` in a window:
//! each of them that standing share once more, beside their own.
//!
//! A peer may have received more than this node knows it gave. This proves that the node's disk was restored
//! from an older one: the node owns nothing until it begins anew ([`Refusal::RestoredDisk`]). The proof is
//! not complete: it needs every peer's echo before anything is spent, and two disks restored at once may
//! agree.
//!
//! A window is named by its end and never opens again; unused units of a past window are
//! forfeited.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use acequia_limits::UNITS_MAX;

use crate::{
    MemberId,
    loan::Refusal,
    mutation::{Mutation, mutated},
};

/// The most peers that a cell may exchange rights with.
pub const REGIONS_MAX: usize = 64;

/// One window's transfers, as one incarnation knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfers {
    /// The window's end on the wall clock, which names the window.
    pub end_ns: u64,
    given: SmallVec<[(MemberId, u64); 2]>,
    received: SmallVec<[(MemberId, u64); 2]>,
}

impl Transfers {
    /// The transfers of no window: nothing moved.
    pub const fn none() -> Self {
        Self { end_ns: 0, given: SmallVec::new_const(), received: SmallVec::new_const() }
    }

    /// The transfers of the window that ends at `end_ns`, with nothing given or received.
    pub fn new(end_ns: u64) -> Self {
        Self { end_ns, ..Self::default() }
    }

    /// The units given to each peer, cumulative, by peer.
    pub fn given(&self) -> &[(MemberId, u64)] {
        &self.given
    }

    /// The units given to all peers.
    pub fn given_total(&self) -> u64 {
        sum(&self.given)
    }

    /// The units received from each peer, cumulative, by peer.
    pub fn received(&self) -> &[(MemberId, u64)] {
        &self.received
    }

    /// Whether nothing moved.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty() && self.received.is_empty()
    }

    /// A copy with nothing received: the received units may all have been spent.
    #[must_use]
    pub fn without_received(&self) -> Self {
        Self { received: SmallVec::new(), ..self.clone() }
    }

    /// The units that the member may use in this window, if its standing share is `standing_units`.
    pub fn limit(&self, standing_units: u64) -> u64 {
        standing_units.saturating_add(sum(&self.received)).saturating_sub(self.not_usable())
    }

    /// Units that were given away are not used any more.
    fn not_usable(&self) -> u64 {
        if mutated(Mutation::GivenNotCounted) { 0 } else { sum(&self.given) }
    }

    /// Gives unused units. Returns the units given to that peer in all. The gift must be on disk before it is
    /// sent.
    pub fn give(&mut self, to: MemberId, units: u64, available: u64) -> Result<u64, Refusal> {
        if units == 0 {
            return Err(Refusal::Empty);
        }
        if !are_unused(units, available) {
            return Err(Refusal::NotAvailable { asked: units, available });
        }
        let cumulative = of(&self.given, to).saturating_add(units);
        grow(&mut self.given, to, cumulative)?;
        Ok(cumulative)
    }

    /// The units that this member may give a peer. `stands` is the standing share of this member's region.
    /// The limit is `stands` plus the units received from that peer: the peer takes so much, and no more
    /// ([`Transfers::receive`]).
    pub fn may_give(&self, to: MemberId, stands: u64) -> u64 {
        stands.saturating_add(of(&self.received, to)).saturating_sub(of(&self.given, to))
    }

    /// Takes a peer's statement of the units that it has given in all. `stands` is the standing share of the
    /// peer's region. A peer cannot give more than that and the units that went there before; one that says
    /// so lies, or has an older disk. Returns the new units.
    pub fn receive(&mut self, from: MemberId, cumulative: u64, stands: u64) -> Result<u64, Refusal> {
        let known = of(&self.received, from);
        let most = stands.saturating_add(of(&self.given, from));
        if cumulative > most && most <= known {
            return Err(Refusal::TooMuch { said: cumulative, most });
        }
        // The two may differ for a while about `stands`. The peer repeats the excess, which counts when it
        // may.
        let received = received_in_all(known, cumulative.min(most));
        if received <= known {
            return Err(Refusal::Stale);
        }
        grow(&mut self.received, from, received)?;
        Ok(received - known)
    }

    /// Checks a peer's statement of the units that it has received from here.
    pub fn own_echo(&self, to: MemberId, cumulative: u64) -> Result<(), Refusal> {
        let given = of(&self.given, to);
        if proves_restored_disk(cumulative, given) {
            return Err(Refusal::RestoredDisk { to, received: cumulative, given });
        }
        Ok(())
    }
}

/// The units of a cell that one incarnation has used: they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    spent: u64,
    refunded: u64,
}

impl UsageRow {
    /// A row that was received or read, if the numbers are possible.
    pub const fn new(spent: u64, refunded: u64) -> Result<Self, Refusal> {
        if refunded > spent { Err(Refusal::Malformed) } else { Ok(Self { spent, refunded }) }
    }

    /// Units ever spent.
    pub const fn spent(&self) -> u64 {
        self.spent
    }

    /// Spent units that were refunded.
    pub fn refunded(&self) -> u64 {
        self.refunded
    }

    /// The units that count against the limit.
    pub const fn used(&self) -> u64 {
        self.spent - self.refunded
    }

    /// Spends units that the limit still has.
    pub fn spend(&mut self, units: u64, limit: u64) -> Result<(), Refusal> {
        let available = limit.saturating_sub(self.used()).min(u64::MAX - self.spent);
        if units > available {
            return Err(Refusal::NotAvailable { asked: units, available });
        }
        self.spent += units;
        Ok(())
    }

    /// Gives spent units back.
    pub fn refund(&mut self, units: u64) -> Result<(), Refusal> {
        if !self.were_spent(units) {
            return Err(Refusal::NotAvailable { asked: units, available: self.used() });
        }
        self.refunded += units;
        Ok(())
    }

    /// No more units are refunded than were spent.
    fn were_spent(&self, units: u64) -> bool {
        units <= self.used() || mutated(Mutation::RefundUnspent)
    }

    /// Joins an older or newer row of this incarnation: takes the larger numbers.
    pub fn join(&mut self, other: &Self) {
        self.spent = self.spent.max(other.spent);
        self.refunded = self.refunded.max(other.refunded);
    }
}

/// Only unused units of a window are given.
fn are_unused(units: u64, available: u64) -> bool {
    units <= available || mutated(Mutation::GiveUsedUnits)
}

/// A statement includes all that was given before, so a repeated one adds nothing.
fn received_in_all(known: u64, stated: u64) -> u64 {
    if mutated(Mutation::ReceiveAdds) { known.saturating_add(stated) } else { stated }
}

/// A peer that received more than this node knows it gave proves that this node's disk is an old one.
fn proves_restored_disk(received: u64, given: u64) -> bool {
    received > given && !mutated(Mutation::RestoredDiskUnseen)
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
