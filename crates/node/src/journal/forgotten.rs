//! What a crash forgot, and what is presumed of it.
//!
//! **A cell of which a crash forgot the state owes at least as much as it could have owed at the crash.** A
//! window counts as spent then. A bucket owes the largest debt that any of its variants allowed, which has
//! drained since by the variants in between ([`Catalogue::forgotten`]).

use acequia_limits::{
    Algorithm, Now, UNITS_MAX,
    algorithm::State,
    sliding::{SlidingLog, SlidingSlots},
    window::FixedWindow,
};
use acequia_rights::mutation::{Mutation, mutated};

use crate::{
    Catalogue, Node,
    catalogue::{Registry, VariantKey},
    cell::record::presumed_spent_at,
};

/// The state of an unjournalled bucket's cell that may have been charged after its row was written. `Ok` has
/// the row's state, if it owes more than is presumed of every such cell; otherwise `Err` has the presumed
/// state.
pub(crate) fn more_than_forgotten(
    registry: &Registry,
    key: VariantKey,
    state: State,
    now: Now,
) -> Result<State, State> {
    let (most, presumed) = registry.forgotten(key);
    let is_more = !most.covers(&presumed, state.as_slice(), now) && !most.is_idle(state.as_slice(), now);
    if is_more { Ok(state) } else { Err(State::Inline(presumed)) }
}

/// A cell whose state a crash may have forgotten, as one of its limit's variants counts it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaybeForgotten<'a> {
    pub(crate) catalogue: &'a Catalogue,
    pub(crate) key: VariantKey,
    /// How the cell is counted by that variant, or by a share of it.
    pub(crate) algorithm: &'a Algorithm,
    /// The salt of the cell's tag: it staggers the cell's windows.
    pub(crate) salt: u32,
    pub(crate) now: Now,
}

impl MaybeForgotten<'_> {
    /// The debt of a bucket's cell of which nothing is known, if a crash forgot it and it is not idle by now.
    fn debt(&self) -> Option<State> {
        let (most, state) = self.catalogue.forgotten(self.key)?;
        let is_idle = state == [0, 0] || most.is_idle(&state, self.now);
        (!is_idle).then(|| self.algorithm.convert(most, &state, self.now))
    }
}

impl Node {
    /// When the node began after a crash, if it did.
    pub(crate) fn after_crash(&self) -> Option<Now> {
        Some(self.clock.corrected_start(self.setup.config.after_crash?))
    }

    /// The state of a cell that was never charged since the start.
    pub(crate) fn initial(&self, cell: &MaybeForgotten<'_>) -> State {
        let MaybeForgotten { catalogue, key, algorithm, salt, now } = *cell;
        if algorithm.has_rate() {
            return cell.debt().unwrap_or(algorithm.fresh());
        }
        match self.spent_before_start(catalogue, key.slot, algorithm, now) {
            Some(then) => self.spent(algorithm, then, Some(salt)),
            None => algorithm.fresh(),
        }
    }

    /// The state of a cell that was served until `then`, and of which nothing else is known. With no salt,
    /// the cell is one that any cells share. Among regions the cell may have had more than now: transfers
    /// that will be repeated, or the share of an earlier version. So nothing at all is left of a window.
    pub(crate) fn spent(&self, algorithm: &Algorithm, then: Now, salt: Option<u32>) -> State {
        let all = self.of_any_size(algorithm);
        let algorithm = all.as_ref().unwrap_or(algorithm);
        match salt {
            Some(salt) => algorithm.spent_at(then, salt),
            None => algorithm.spent_by_any_at(then),
        }
    }

    /// The algorithm with the largest size that its window may have had before this process.
    fn of_any_size(&self, algorithm: &Algorithm) -> Option<Algorithm> {
        match algorithm {
            _ if !self.may_have_been_larger() => None,
            Algorithm::FixedWindow(window) => Some(Algorithm::FixedWindow(FixedWindow {
                limit: UNITS_MAX,
                next_limit: UNITS_MAX,
                later: None,
                ..window.clone()
            })),
            Algorithm::SlidingLog(log) => {
                Some(Algorithm::SlidingLog(SlidingLog { limit: UNITS_MAX, ..*log }))
            }
            Algorithm::SlidingSlots(slots) => {
                Some(Algorithm::SlidingSlots(SlidingSlots { limit: UNITS_MAX, ..*slots }))
            }
            _ => None,
        }
    }

    /// Among regions, an earlier process may have had more of a window than this one has. Units that it took
    /// from a pool count as spent in the pool.
    fn may_have_been_larger(&self) -> bool {
        self.leases.is_none() && self.sharing.is_some() && !mutated(Mutation::SpentAsOfNow)
    }

    /// Ensures that a new variant does not give back what a restart forgot: all of it counts as spent, as in
    /// an absent cell. Later charges come on top of it, so nothing is left.
    pub(crate) fn not_less_than_forgotten(&self, cell: &MaybeForgotten<'_>, state: State) -> State {
        let MaybeForgotten { catalogue, key, algorithm, salt, now } = *cell;
        let of_any_size = self.of_any_size(algorithm);
        let all = of_any_size.as_ref().unwrap_or(algorithm);
        if algorithm.has_rate() {
            return if cell.debt().is_some() { all.used_up(state.as_slice(), now, now, salt) } else { state };
        }
        let Some(then) = self.spent_before_start(catalogue, key.slot, algorithm, now) else { return state };
        match algorithm {
            // Nothing is left to be spent in a window that is over.
            Algorithm::FixedWindow(_) => {
                let spent = self.spent(algorithm, then, Some(salt));
                // A debt of this process stays.
                let plain = algorithm.clone().carrying(false);
                let covers = plain.covers(spent.as_slice(), state.as_slice(), now);
                if covers { algorithm.join(spent.as_slice(), state.as_slice(), now) } else { state }
            }
            _ => all.used_up(state.as_slice(), then, now, salt),
        }
    }

    /// Whether an absent cell is presumed to owe something because a crash forgot its debt.
    pub(crate) fn is_forgotten(&self, cell: &MaybeForgotten<'_>) -> bool {
        let MaybeForgotten { catalogue, key, algorithm, now, .. } = *cell;
        match algorithm.has_rate() {
            true => cell.debt().is_some(),
            false => self.spent_before_start(catalogue, key.slot, algorithm, now).is_some(),
        }
    }

    /// The time at which a cell is presumed to have been spent, if a restart forgot its state. Buckets do not
    /// use this: their debt at that time drains by the variants since ([`Catalogue::forgotten`]).
    pub(crate) fn spent_before_start(
        &self,
        catalogue: &Catalogue,
        slot: u32,
        algorithm: &Algorithm,
        now: Now,
    ) -> Option<Now> {
        let then = presumed_spent_at(self.after_crash())?;
        let is_recent = now.steady_ns < then.steady_ns.saturating_add(algorithm.horizon_ns())
            || now.wall_ns < then.wall_ns.saturating_add(algorithm.horizon_ns());
        // Among regions, a version may have been adopted and served that the disk never had.
        let is_forgotten =
            catalogue.was_served_before(slot) || (self.is_shared() && !catalogue.is_durable(slot));
        (is_recent && is_forgotten).then_some(then)
    }
}
