//! What a clean stop leaves of a cell at a node that shares its region's pools: what the next process may
//! have of its own part.
//!
//! The hold on the pool ends with the process: the pool gets it back, or counts it as spent. So spent units
//! are counted against the hold first, and the own part owes only the rest. Take a window with standing share
//! `S`, units taken and not given back `T`, received `R`, given away `G` and spent `used`. Then `S + T + R -
//! G - used` are left. The next process begins with `T = 0` and counts `G` among what it has. This process
//! likewise counted what earlier processes gave, `B` ([`Account::count_given_before`]). So the next process
//! owes `used + G - B - T`, and at least 0. The disk keeps `R` only beside given units; if none were given,
//! `R` is lost, which is the safe side. Units that a call was about to give back count as given back when the
//! call was made, even if the call does not arrive.

use acequia_limits::{Algorithm, Now, Part, window::Usage};
use acequia_rights::{
    Sessions, Transfers,
    mutation::{Mutation, mutated},
};

use super::{Account, CellContext, Withdrawn};
use crate::cell::record::CellRecord;

impl Account {
    /// The record to keep of the cell. Afterwards nothing of the cell may be charged or told to a pool.
    pub(crate) fn stopped(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        now: Now,
        sessions: &impl Sessions,
    ) -> CellRecord {
        self.settle(state, context, now, sessions);
        let Algorithm::FixedWindow(window) = &self.algorithm else {
            self.cut_pool(state, context, Part::default(), now);
            return CellRecord::new(&self.algorithm, state, now).with_pledge(self.pledge());
        };
        let Usage { end_ns, used, ahead, owed } = Usage::of(state);
        let given = self.transfers_of(end_ns).map_or(0, Transfers::given_total);
        let before = self.windows().given_before.of(end_ns);
        let of_pool = units_of_pool(self.withdrawn_of(end_ns));
        let used = used.saturating_add(given).saturating_sub(before).saturating_sub(of_pool);
        let next_ns = window.end_after(end_ns, context.salt);
        let ahead = ahead.saturating_sub(units_of_pool(self.withdrawn_of(next_ns)));
        // With a single clock nothing is charged ahead.
        let left = Usage { end_ns, used, ahead, owed }.to_state();
        CellRecord::new(&self.algorithm, &left[..state.len().min(left.len())], now).with_pledge(self.pledge())
    }
}

/// The units that the hold on a pool brought: those that were given back are the pool's again.
fn units_of_pool(withdrawn: Withdrawn) -> u64 {
    if mutated(Mutation::LeaseStopsBeforeReturns) { withdrawn.withdrawn } else { withdrawn.units() }
}
