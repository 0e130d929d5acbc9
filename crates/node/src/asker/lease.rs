//! Leases: units that whoever asked may spend later, without asking.
//!
//! **A lease takes its capacity with it.** Of a window with edges its units are charged at once: they are of that window, and the lease
//! ends with it. Of a bucket or a sliding window they could be spent at the lease's end, when as many have come back to the cell; so they
//! are set apart until then, and count from when the lease ends. In between the cell has so much less.
//!
//! Of what regions lend each other nothing is leased: a loan may end first. And a lease lives no longer than it takes the whole
//! limit to come back, which is what a region waits for whose share grows by another's.

use acequia_limits::{Algorithm, Mode, algorithm::State};
use acequia_rights::broken::{Broken, broken};

use super::{Answer, Check, Hit, Place};
use crate::{
    Catalogue,
    shard::{Cells, NewCell},
};

/// Nanoseconds after which a lease of what an answer charged must have ended: as long as its limits let it.
pub(super) fn longest_ns(answer: &Answer, catalogue: &Catalogue, margin_ns: u64) -> u64 {
    let charged = answer.limits.iter().filter(|limit| limit.is_charged);
    let longest = charged.filter_map(|limit| {
        let of = &catalogue.limits[limit.limit as usize].limit;
        (of.spec.mode == Mode::Enforce).then(|| match of.algorithm {
            // Until the window surely ends, by any clock.
            Algorithm::FixedWindow(_) => limit.verdict.reset_after_ns.saturating_sub(2 * margin_ns),
            _ => of.algorithm.horizon_ns(),
        })
    });
    longest.min().unwrap_or(u64::MAX)
}

/// Whether units of such a cell are set apart for a lease, rather than charged.
pub(crate) fn is_set_apart(algorithm: &Algorithm) -> bool {
    !matches!(algorithm, Algorithm::FixedWindow(_)) && !broken(Broken::LeaseNotSetApart)
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
            Place::At(place) => place,
            Place::Absent => {
                let (active, algorithm) = (self.limit(hit), self.algorithm(hit));
                let state = state.unwrap_or_else(|| algorithm.fresh());
                let new = NewCell::new(state, algorithm, active.durable);
                cells.insert(hit.tag, active.slot, hit.numbers, new)
            }
            Place::Shared => unreachable!("denied before"),
        };
        cells.lease(place, |leased| leased.saturating_add(hit.units));
    }
}
