//! What a clean stop leaves of a cell at a node that shares its region's pools: what the next process may have of its own part.
//!
//! What is held of the pool ends with the process: the pool has it back, or counts it as spent. So what was spent is
//! counted against that first, and only the rest is owed by the own part. Of a window with `S` units that stand here, `T` taken
//! and not given back, `R` received, `G` given away and `used` spent, `S + T + R - G - used` are left. The next process begins
//! with `T = 0` and counts `G` among what it has, as was done with what processes before this one gave, `B`
//! ([`Account::count_given_before`]): so it owes `used + G - B - T`, and where that is less than nothing, nothing.
//! `R` is kept on the disk only beside what was given; where nothing was, it is lost, which is the safe side.
//! Units that a call was about to give back count as given back when the call was made, whether or not it arrives.

use acequia_limits::{Algorithm, Now, Part, window::Usage};
use acequia_rights::{
    Sessions, Transfers,
    mutation::{Mutation, mutated},
};

use super::{Account, CellContext};
use crate::record::CellRecord;

impl Account {
    /// What is to be kept of the cell, of which nothing may be charged or told to a pool any more.
    pub(crate) fn stopped(
        &mut self,
        words: &mut Vec<u64>,
        context: &CellContext<'_>,
        now: Now,
        sessions: &impl Sessions,
    ) -> CellRecord {
        self.settle(words, context, now, sessions);
        let Algorithm::FixedWindow(window) = &self.algorithm else {
            self.cut_pool(words, context, Part::default(), now);
            return CellRecord::new(&self.algorithm, words, now).with_pledge(self.pledge());
        };
        let Usage { end_ns, used, ahead } = Usage::of(words);
        let given = self.transfers_of(end_ns).map_or(0, Transfers::given_total);
        let (before_ns, before) = self.windows().given_before;
        let before = if before_ns == end_ns { before } else { 0 };
        let of_pool = |end_ns| {
            let withdrawn = self.taken_of(end_ns);
            if mutated(Mutation::LeaseStopsBeforeReturns) { withdrawn.withdrawn } else { withdrawn.units() }
        };
        let used = used.saturating_add(given).saturating_sub(before).saturating_sub(of_pool(end_ns));
        let ahead = ahead.saturating_sub(of_pool(window.end_after(end_ns, context.salt)));
        // By one clock alone nothing is charged ahead.
        let owed = Usage { end_ns, used, ahead }.words();
        CellRecord::new(&self.algorithm, &owed[..words.len().min(owed.len())], now).with_pledge(self.pledge())
    }
}
