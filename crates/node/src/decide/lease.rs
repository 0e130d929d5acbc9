//! Leases: units that the caller may spend later, without asking.
//!
//! **A lease takes its capacity with it.** In a window with edges, the units of a lease are charged at once:
//! they belong to that window, and the lease ends with the window. In a bucket or a sliding window, the units
//! could be spent at the lease's end, when as many have come back to the cell. So these units are set apart
//! until the lease ends, and count from then on. In between, the cell has so much less.
//!
//! The holder of a lease cannot be told that the limit was lowered: units leased before may be spent until
//! the lease ends.
//!
//! Loans of other regions are never leased: a loan may end before the lease. A lease of a bucket lives no
//! longer than the whole limit takes to refill. A region waits for this time before its share grows by
//! another's, so leased units count as if they had been spent at once. In a sliding window, units spent at a
//! lease's end count for one more window. So there a lease lives for at most an eighth of the window, and
//! that region waits for so much longer ([`spent_for_ns`]).

use acequia_limits::{Algorithm, Now, algorithm::State};
use acequia_rights::mutation::{Mutation, mutated};

use super::{
    Answer, RequestCheck,
    hit::{CellSource, Hit},
};
use crate::{
    Catalogue,
    cell::shard::{Cells, NewCell},
    settings::SETTINGS,
};

/// Nanoseconds after which a lease of the answer's charges must have ended: the shortest time over its
/// limits.
pub(super) fn longest_ns(answer: &Answer, catalogue: &Catalogue, margin_ns: u64, now: Now) -> u64 {
    let charged = answer.limits.iter().filter(|limit| limit.is_charged);
    let longest = charged.filter_map(|limit| {
        let of = &catalogue.limits[limit.limit as usize].limit;
        of.spec.mode.denies().then(|| match &of.algorithm {
            // The charged window must surely be open until then by every clock: near an edge both windows
            // were charged.
            Algorithm::FixedWindow(window) => {
                let end_ns = window.end_after(now.wall_ns.saturating_add(margin_ns), limit.tag.salt());
                let ends_in_ns = end_ns.saturating_sub(now.wall_ns.saturating_add(margin_ns));
                ends_in_ns.min(limit.verdict.reset_after_ns.saturating_sub(2 * margin_ns))
            }
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => of.algorithm.horizon_ns(),
            _ => of.algorithm.horizon_ns() / SETTINGS.decide.sliding_lease_part,
        })
    });
    longest.min().unwrap_or(u64::MAX)
}

/// How long units admitted by a sliding window of this length may count, in nanoseconds: leased units are
/// spent later.
pub(crate) const fn spent_for_ns(horizon_ns: u64) -> u64 {
    horizon_ns.saturating_add(horizon_ns / SETTINGS.decide.sliding_lease_part)
}

/// Whether a lease's units of such a cell are set apart, rather than charged.
pub(crate) fn is_set_apart(algorithm: &Algorithm) -> bool {
    !matches!(algorithm, Algorithm::FixedWindow(_)) && !mutated(Mutation::LeaseNotSetApart)
}

impl RequestCheck<'_, '_> {
    /// Whether the units charged to such a cell are set apart.
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
                cells.insert(hit.tag, active.slot, hit.variant, new)
            }
            CellSource::Shared => unreachable!("denied before"),
        };
        cells.lease(place, |leased| leased.saturating_add(hit.units));
    }
}
