//! Leases: units that whoever asked may spend later, without asking.
//!
//! **A lease takes its capacity with it.** Of a window with edges its units are charged at once: they are of that window, and the lease
//! ends with it. Of a bucket or a sliding window they could be spent at the lease's end, when as many have come back to the cell; so they
//! are set apart until then, and count from when the lease ends. In between the cell has so much less.
//!
//! Whoever holds a lease cannot be told that the limit was lowered meanwhile: what was leased before may be spent until the lease ends.
//!
//! Of what regions lend each other nothing is leased: a loan may end first. And a lease of a bucket lives no longer than it takes the
//! whole limit to come back, which is what a region waits for whose share grows by another's: what was leased before counts as if it had
//! been spent at once. Of a sliding window it would not be, as what is spent at a lease's end counts for a window more; there a lease
//! lives for an eighth of the window at most, and that region waits for so much longer ([`spent_for_ns`]).

use acequia_limits::{Algorithm, Mode, Now, algorithm::State};
use acequia_rights::mutation::{Mutation, mutated};

use super::{
    Answer, Check,
    hit::{CellSource, Hit},
};
use crate::{
    Catalogue,
    shard::{Cells, NewCell},
};

/// Of a sliding window, a lease lives for one part in so many.
const SLIDING_PART: u64 = 8;

/// Nanoseconds after which a lease of what an answer charged must have ended: as long as its limits let it.
pub(super) fn longest_ns(answer: &Answer, catalogue: &Catalogue, margin_ns: u64, now: Now) -> u64 {
    let charged = answer.limits.iter().filter(|limit| limit.is_charged);
    let longest = charged.filter_map(|limit| {
        let of = &catalogue.limits[limit.limit as usize].limit;
        (of.spec.mode == Mode::Enforce).then(|| match &of.algorithm {
            // Until the window surely ends that was charged, by any clock: near an edge both were.
            Algorithm::FixedWindow(window) => {
                let end_ns = window.end_after(now.wall_ns.saturating_add(margin_ns), limit.tag.salt());
                let ends_in_ns = end_ns.saturating_sub(now.wall_ns.saturating_add(margin_ns));
                ends_in_ns.min(limit.verdict.reset_after_ns.saturating_sub(2 * margin_ns))
            }
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => of.algorithm.horizon_ns(),
            _ => of.algorithm.horizon_ns() / SLIDING_PART,
        })
    });
    longest.min().unwrap_or(u64::MAX)
}

/// How long what a sliding window of such a length admits may count, in nanoseconds: that which is leased is spent later.
pub(crate) const fn spent_for_ns(horizon_ns: u64) -> u64 {
    horizon_ns.saturating_add(horizon_ns / SLIDING_PART)
}

/// Whether units of such a cell are set apart for a lease, rather than charged.
pub(crate) fn is_set_apart(algorithm: &Algorithm) -> bool {
    !matches!(algorithm, Algorithm::FixedWindow(_)) && !mutated(Mutation::LeaseNotSetApart)
}

impl Check<'_, '_> {
    /// Whether what is charged of such a cell is set apart.
    #[inline]
    pub(super) fn is_leased(&self, algorithm: &Algorithm) -> bool {
        self.ask.holds && is_set_apart(algorithm)
    }

    /// Sets the hit's units apart.
    #[cold]
    pub(super) fn lease(&self, hit: &Hit, state: Option<State>, cells: &mut Cells) {
        let place = match hit.place {
            CellSource::At(place) => place,
            CellSource::Absent => {
                let (active, algorithm) = (self.limit(hit), self.algorithm(hit));
                let state = state.unwrap_or_else(|| algorithm.fresh());
                let new = NewCell::new(state, algorithm, active.durable);
                cells.insert(hit.tag, active.slot, hit.numbers, new)
            }
            CellSource::Shared => unreachable!("denied before"),
        };
        cells.lease(place, |leased| leased.saturating_add(hit.units));
    }
}
