//! What a cell holds of its region's pool ([`acequia_rights::pool`]), and how the hold changes what the cell
//! has.
//!
//! For a bucket or a sliding window, the hold is a part with an end. For a window with edges, the hold is
//! units, counted from the window's beginning by totals that only grow. A cell lowers its hold before it
//! sends a call, and raises its hold by the answer.

use acequia_limits::{Algorithm, Now, Part};
use acequia_rights::{
    CellChange,
    mutation::{Mutation, mutated},
    pool::{bucket, sliding},
};

use super::{Account, CellContext};

/// A hold on a pool that has an end.
#[derive(Debug)]
pub(super) enum HeldLease {
    Bucket(bucket::BucketBalance),
    Sliding(sliding::SlidingBalance),
}

/// The total withdrawn from the pool of one window, and the total returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Withdrawn {
    /// The window's end on the wall clock.
    pub(crate) end_ns: u64,
    pub(crate) withdrawn: u64,
    pub(crate) returned: u64,
}

impl Withdrawn {
    /// The units that may be spent.
    pub(crate) const fn units(&self) -> u64 {
        self.withdrawn - self.returned
    }
}

/// The contents of a call to a pool that is about to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseStatement {
    /// The lease balance's number of the call.
    pub(crate) number: u64,
    /// The part of the pool that the cell keeps.
    pub(crate) part: Part,
    /// How many of the units that the cell gives back were not spent.
    pub(crate) unspent: u64,
}

/// How long the answer to a call counts, from when the call was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTimes {
    /// How long the hold lasts.
    pub(crate) ttl_ns: u64,
    /// After this long, nothing more is taken up.
    pub(crate) late_ns: u64,
}

impl HeldLease {
    pub(super) const fn part(&self) -> Part {
        match self {
            Self::Bucket(balance) => balance.part(),
            // The callers handle its end.
            Self::Sliding(balance) => Part { rate: 0, units: balance.units(0) },
        }
    }

    /// When the hold ends: steady clock.
    fn end_ns(&self) -> u64 {
        match self {
            Self::Bucket(balance) => balance.end_ns(),
            Self::Sliding(balance) => balance.end_ns(),
        }
    }
}

impl Account {
    /// What the cell holds of its pool, for a bucket or a sliding window.
    pub(crate) fn pooled(&self) -> Part {
        self.windows().lease.as_ref().map_or_else(Part::default, HeldLease::part)
    }

    /// When the hold on the pool ends, unless it is renewed: steady clock.
    pub(crate) fn pooled_until_ns(&self) -> u64 {
        match &self.windows().lease {
            Some(lease) if lease.part() != Part::default() => lease.end_ns(),
            _ => u64::MAX,
        }
    }

    /// What was withdrawn from the pools of windows that may be open, or follow.
    pub(crate) fn withdrawn(&self) -> &[Withdrawn] {
        &self.windows().withdrawn
    }

    /// What was withdrawn from the pool of one window.
    pub(crate) fn withdrawn_of(&self, end_ns: u64) -> Withdrawn {
        let known = self.withdrawn().iter().find(|withdrawn| withdrawn.end_ns == end_ns);
        known.copied().unwrap_or(Withdrawn { end_ns, ..Withdrawn::default() })
    }

    /// How much of the pool this node could take to give away, as far as it knows; `None` if it has not
    /// asked.
    pub(crate) fn within_reach(&self) -> Option<Part> {
        self.windows().within_reach
    }

    pub(crate) fn set_within_reach(&mut self, part: Part) {
        self.windows_mut().within_reach = Some(part);
    }

    /// Sets how much is to be taken from the pool to give away.
    pub(crate) fn want_for_others(&mut self, part: Part) {
        if part != Part::default() || self.windows.is_some() {
            self.windows_mut().for_others = part;
        }
    }

    /// How much is to be taken from the pool to give away. For a window, the amount is additional and is
    /// returned once; otherwise the amount is a total.
    pub(crate) fn take_for_others(&mut self) -> Part {
        let is_once = matches!(self.algorithm, Algorithm::FixedWindow(_));
        let Some(windows) = &mut self.windows else { return Part::default() };
        if is_once { std::mem::take(&mut windows.for_others) } else { windows.for_others }
    }

    /// A hold ends at its end, even if the pool does not answer.
    fn is_lease_over(&self, now: Now) -> bool {
        self.pooled_until_ns() <= now.steady_ns && !mutated(Mutation::LeaseOutlivesItsEnd)
    }

    /// Ends a hold that is over, at its instant.
    pub(super) fn end_lease(&mut self, state: &mut Vec<u64>, context: &CellContext<'_>, now: Now) -> bool {
        if !self.is_lease_over(now) {
            return false;
        }
        let at = Now { steady_ns: self.pooled_until_ns(), ..now };
        let change = match &mut self.windows_mut().lease {
            Some(HeldLease::Bucket(balance)) => balance.settle(now.steady_ns),
            Some(HeldLease::Sliding(balance)) => {
                balance.end();
                Some(CellChange::default())
            }
            None => None,
        };
        self.windows_mut().lowered.cut_unspent = 0;
        let is_over = change.map(|change| self.apply(state, context, change, at)).is_some();
        self.note_cut();
        is_over
    }

    /// Prepares a call: keeps at most `keeps`, and gives the rest back. Returns `None` if the algorithm has
    /// windows with edges.
    pub(crate) fn ask_pool(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        keeps: Part,
        now: Now,
    ) -> Option<LeaseStatement> {
        let keeps = self.not_lent_twice(keeps);
        let available = self.unused(state, context, now);
        let own_units = self.standing.units;
        let cut_unspent = std::mem::take(&mut self.windows_mut().lowered.cut_unspent);
        let lease = &mut self.windows_mut().lease;
        let lease = match context.global {
            Algorithm::FixedWindow(_) => return None,
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => {
                lease.get_or_insert_with(|| HeldLease::Bucket(bucket::BucketBalance::default()))
            }
            Algorithm::SlidingLog(_) | Algorithm::SlidingSlots(_) | Algorithm::SlidingApproximate(_) => {
                lease.get_or_insert_with(|| HeldLease::Sliding(sliding::SlidingBalance::default()))
            }
        };
        let held = lease.part();
        let back = held.units.saturating_sub(keeps.units).min(match lease {
            HeldLease::Bucket(_) => u64::MAX,
            // Units used in the last window cannot be given back.
            HeldLease::Sliding(_) => available,
        });
        // The own part's tokens stay: nobody may be offered tokens that the disk counts as spent.
        let unspent = match lease {
            HeldLease::Bucket(_) => back.min(available.saturating_sub(own_units)),
            HeldLease::Sliding(_) => back,
        };
        let keeps = Part { rate: keeps.rate.min(held.rate), units: held.units - back };
        let (number, change) = match lease {
            HeldLease::Bucket(balance) => balance.ask(keeps, unspent, now.steady_ns),
            HeldLease::Sliding(balance) => (balance.ask(back, now.steady_ns).0, CellChange::default()),
        };
        if keeps != held {
            self.apply(state, context, change, now);
        }
        self.note_cut();
        Some(LeaseStatement { number, part: keeps, unspent: unspent.saturating_add(cut_unspent) })
    }

    /// Raises `keeps` to the part of the pool that is lent, which must be held until it is back.
    fn not_lent_twice(&self, keeps: Part) -> Part {
        let lent = self.lent_of_pool();
        if mutated(Mutation::LeaseReturnsWhatIsLent) {
            return keeps;
        }
        Part { rate: keeps.rate.max(lent.rate), units: keeps.units.max(lent.units) }
    }

    /// Bounds the hold on the pool by `most`. Any excess is cut, a lent part as soon as it is back, and
    /// nothing is lent meanwhile. `free` units of the hold were unspent.
    pub(super) fn bound_pool(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        most: Part,
        free: u64,
        now: Now,
    ) {
        if mutated(Mutation::LeaseLendsBeyondLowered) {
            return;
        }
        self.set_most(most);
        self.note_cut();
        self.cut_to_most(state, context, free, now);
    }

    /// Bounds the hold: the cell does not conform while it holds more because it has lent that.
    fn set_most(&mut self, most: Part) {
        if !mutated(Mutation::LeaseConformsWhileLent) {
            self.windows_mut().most = Some(most);
        }
    }

    /// Unspent units of the hold on the pool, which could be given back.
    pub(crate) fn free_of_pool(&self, state: &[u64], context: &CellContext<'_>, now: Now) -> u64 {
        let free = self.unused(state, context, now);
        // The own part's tokens stay.
        if self.algorithm.has_rate() { free.saturating_sub(self.standing.units) } else { free }
    }

    /// The part of the hold that may be used or lent: any excess over the bound counts only where it is
    /// already lent.
    pub(super) fn usable_pool(&self) -> Part {
        let held = self.pooled();
        match self.windows().most {
            None => held,
            Some(most) => {
                let keeps = self.not_lent_twice(most);
                Part { rate: held.rate.min(keeps.rate), units: held.units.min(keeps.units) }
            }
        }
    }

    /// Cuts any excess over the bound on the hold, as far as the excess is not lent.
    pub(super) fn cut_what_is_back(&mut self, state: &mut Vec<u64>, context: &CellContext<'_>, now: Now) {
        if self.windows().most.is_some() {
            self.cut_to_most(state, context, self.free_of_pool(state, context, now), now);
        }
    }

    fn cut_to_most(&mut self, state: &mut Vec<u64>, context: &CellContext<'_>, free: u64, now: Now) {
        let Some(most) = self.windows().most else { return };
        if self.usable_pool() == self.pooled() {
            return self.note_cut();
        }
        self.cut_to(state, context, most, Some(free), now);
    }

    /// The part of the hold that cannot be given back now: what is lent, and, for a sliding window, what was
    /// used.
    pub(crate) fn kept_of_pool(&self, state: &[u64], context: &CellContext<'_>, now: Now) -> Part {
        let lent = self.lent_of_pool();
        if context.global.has_rate() {
            return lent;
        }
        let held = self.pooled().units;
        let used = held.saturating_sub(self.unused(state, context, now));
        Part { units: lent.units.max(used), ..lent }
    }

    /// Units that could be charged now. For a sliding window, also units beyond the limit as this node knows
    /// it, which are not used here and may go back.
    fn unused(&self, state: &[u64], context: &CellContext<'_>, now: Now) -> u64 {
        let available = self.unleased(state, now, context.salt);
        if available == 0 || self.algorithm.has_rate() {
            return available;
        }
        available + self.effective().units.saturating_sub(self.algorithm.budget())
    }

    /// The most that may be held of the pool, if more is held.
    pub(crate) fn most_of_pool(&self) -> Option<Part> {
        self.windows().most
    }

    /// Drops the bound once the hold does not exceed it.
    fn note_cut(&mut self) {
        let pooled = self.pooled();
        if let Some(windows) = &mut self.windows {
            windows.most = windows.most.filter(|most| pooled.rate > most.rate || pooled.units > most.units);
        }
    }

    /// Keeps at most `most` of a bucket's or a sliding window's pool, and tells nobody: nothing is given
    /// back. A lent part is kept until it is back. The answer to an earlier call is not taken up.
    pub(crate) fn cut_pool(&mut self, state: &mut Vec<u64>, context: &CellContext<'_>, most: Part, now: Now) {
        self.cut_to(state, context, most, None, now);
    }

    /// Cuts the hold. If `free` is given, the next call reports how many of the cut units were unspent.
    fn cut_to(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        most: Part,
        free: Option<u64>,
        now: Now,
    ) {
        let held = self.pooled();
        let keeps = Part { rate: held.rate.min(most.rate), units: held.units.min(most.units) };
        if keeps != held {
            self.set_most(most);
        }
        let keeps = self.not_lent_twice(keeps);
        let keeps = Part { rate: held.rate.min(keeps.rate), units: held.units.min(keeps.units) };
        let back = held.units - keeps.units;
        let unspent = back.min(free.unwrap_or(0));
        let windows = self.windows_mut();
        let change = match &mut windows.lease {
            Some(HeldLease::Bucket(balance)) => balance.ask(keeps, unspent, now.steady_ns).1,
            Some(HeldLease::Sliding(balance)) => {
                balance.ask(back, now.steady_ns);
                CellChange::default()
            }
            None => return,
        };
        windows.lowered.cut_unspent =
            if free.is_some() { windows.lowered.cut_unspent.saturating_add(unspent) } else { 0 };
        self.apply(state, context, change, now);
        self.note_cut();
    }

    /// Applies the answer to a bucket's call. Returns what came; `None` if the answer does not count.
    pub(crate) fn exchanged(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        number: u64,
        answer: &bucket::Exchanged,
        times: LeaseTimes,
        now: Now,
    ) -> Option<u64> {
        let before = self.pooled();
        let Some(HeldLease::Bucket(balance)) = &mut self.windows_mut().lease else { return None };
        let change = balance.answer(number, answer, times.ttl_ns, times.late_ns, now.steady_ns)?;
        let units = balance.part().units.saturating_sub(before.units);
        let gained = units.saturating_sub(change.owe);
        if self.pooled() != before {
            self.apply(state, context, change, now);
        }
        self.due_ns = self.due_ns.min(self.pooled_until_ns());
        Some(gained)
    }

    /// Applies the answer to a sliding window's call. Returns the units that came; `None` if the answer does
    /// not count.
    pub(crate) fn slid(
        &mut self,
        state: &mut Vec<u64>,
        context: &CellContext<'_>,
        number: u64,
        units: u64,
        ttl_ns: u64,
        now: Now,
    ) -> Option<u64> {
        let before = self.pooled();
        let Some(HeldLease::Sliding(balance)) = &mut self.windows_mut().lease else { return None };
        if !balance.answer(number, units, ttl_ns, now.steady_ns) {
            return None;
        }
        let gained = self.pooled().units.saturating_sub(before.units);
        if gained > 0 {
            self.apply(state, context, CellChange::default(), now);
        }
        self.due_ns = self.due_ns.min(self.pooled_until_ns());
        Some(gained)
    }

    /// Applies the answer to a window's call: `withdrawn` is the total. Returns the units that came.
    pub(crate) fn withdrew(&mut self, context: &CellContext<'_>, end_ns: u64, withdrawn: u64) -> u64 {
        if end_ns < self.window() {
            return 0;
        }
        let known = self.withdrawn_of(end_ns);
        self.set_withdrawn(Withdrawn { withdrawn: withdrawn.max(known.withdrawn), ..known });
        self.rebuild(context);
        withdrawn.saturating_sub(known.withdrawn)
    }

    /// Prepares a call: gives back units of a window, at most `available` of them. Returns how many.
    pub(crate) fn return_to_pool(
        &mut self,
        context: &CellContext<'_>,
        end_ns: u64,
        units: u64,
        available: u64,
    ) -> u64 {
        let known = self.withdrawn_of(end_ns);
        let units = units.min(known.units()).min(available);
        if units > 0 {
            self.set_withdrawn(Withdrawn { returned: known.returned + units, ..known });
            self.rebuild(context);
        }
        units
    }

    fn set_withdrawn(&mut self, withdrawn: Withdrawn) {
        let all = &mut self.windows_mut().withdrawn;
        all.retain(|known| known.end_ns != withdrawn.end_ns);
        all.push(withdrawn);
    }
}
