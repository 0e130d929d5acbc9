//! What a cell holds of its region's pool ([`acequia_rights::pool`]): how it changes what the cell has.
//!
//! Of a bucket and of a sliding window it is a part with an end. Of a window with edges it is units, counted from the window's
//! beginning by numbers that only grow. What is held is lowered before a call says so, and raised by its answer.

use acequia_limits::{Algorithm, Now, Part};
use acequia_rights::{
    Change,
    broken::{Broken, broken},
    pool::{bucket, sliding},
};

use super::{Account, Ground};

/// A part with an end.
#[derive(Debug)]
pub(super) enum Lease {
    Bucket(bucket::Purse),
    Sliding(sliding::Purse),
}

/// What was taken from the pool of one window, and what of it went back, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The window, by its end on the wall clock.
    pub(crate) end_ns: u64,
    pub(crate) taken: u64,
    pub(crate) returned: u64,
}

impl Taken {
    /// What may be spent of it.
    pub(crate) const fn units(&self) -> u64 {
        self.taken - self.returned
    }
}

/// What a call is about to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The purse's number of the call.
    pub(crate) number: u64,
    /// What the cell keeps of the pool.
    pub(crate) part: Part,
    /// Of the units that it does not keep, those that were not spent.
    pub(crate) unspent: u64,
}

impl Lease {
    pub(super) const fn part(&self) -> Part {
        match self {
            Self::Bucket(purse) => purse.part(),
            // Its end is settled by whoever asks what the cell has.
            Self::Sliding(purse) => Part { rate: 0, units: purse.units(0) },
        }
    }

    /// When it ends: steady clock.
    fn end_ns(&self) -> u64 {
        match self {
            Self::Bucket(purse) => purse.end_ns(),
            Self::Sliding(purse) => purse.end_ns(),
        }
    }
}

impl Account {
    /// What the cell holds of its pool, of a bucket or a sliding window.
    pub(crate) fn pooled(&self) -> Part {
        self.windows().lease.as_ref().map_or_else(Part::default, Lease::part)
    }

    /// When that ends, unless it is renewed: steady clock.
    pub(crate) fn pooled_until_ns(&self) -> u64 {
        match &self.windows().lease {
            Some(lease) if lease.part() != Part::default() => lease.end_ns(),
            _ => u64::MAX,
        }
    }

    /// What was taken from the pools of windows that may be open, or follow.
    pub(crate) fn taken(&self) -> &[Taken] {
        &self.windows().taken
    }

    /// The same, of one window.
    pub(crate) fn taken_of(&self, end_ns: u64) -> Taken {
        let known = self.taken().iter().find(|taken| taken.end_ns == end_ns);
        known.copied().unwrap_or(Taken { end_ns, ..Taken::default() })
    }

    /// What of the pool this node could take to give it away, as far as it knows; nothing where it has not asked.
    pub(crate) fn within_reach(&self) -> Option<Part> {
        self.windows().within_reach
    }

    pub(crate) fn set_within_reach(&mut self, part: Part) {
        self.windows_mut().within_reach = Some(part);
    }

    /// So much is to be taken of the pool, to give it away.
    pub(crate) fn want_for_others(&mut self, part: Part) {
        if part != Part::default() || self.windows.is_some() {
            self.windows_mut().for_others = part;
        }
    }

    /// What is to be taken, to give it away. Of a window, where it is so much more, says so once; else it is so much in all.
    pub(crate) fn take_for_others(&mut self) -> Part {
        let is_once = matches!(self.algorithm, Algorithm::FixedWindow(_));
        let Some(windows) = &mut self.windows else { return Part::default() };
        if is_once { std::mem::take(&mut windows.for_others) } else { windows.for_others }
    }

    /// Ends what is over, at its instant.
    pub(super) fn end_lease(&mut self, words: &mut Vec<u64>, ground: &Ground<'_>, now: Now) -> bool {
        if self.pooled_until_ns() > now.steady_ns || broken(Broken::LeaseOutlivesItsEnd) {
            return false;
        }
        let at = Now { steady_ns: self.pooled_until_ns(), ..now };
        let change = match &mut self.windows_mut().lease {
            Some(Lease::Bucket(purse)) => purse.settle(now.steady_ns),
            Some(Lease::Sliding(purse)) => {
                purse.end();
                Some(Change::default())
            }
            None => None,
        };
        self.windows_mut().less.cut_unspent = 0;
        let is_over = change.map(|change| self.apply(words, ground, change, at)).is_some();
        self.note_cut();
        is_over
    }

    /// Before a call: keeps at most so much, and gives the rest back. Nothing where the algorithm has windows with edges.
    pub(crate) fn ask_pool(
        &mut self,
        words: &mut Vec<u64>,
        ground: &Ground<'_>,
        keeps: Part,
        now: Now,
    ) -> Option<Kept> {
        let keeps = self.not_lent_twice(keeps);
        let available = self.unused(words, ground, now);
        let own_units = self.standing.units;
        let cut_unspent = std::mem::take(&mut self.windows_mut().less.cut_unspent);
        let lease = &mut self.windows_mut().lease;
        let lease = match ground.global {
            Algorithm::FixedWindow(_) => return None,
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => {
                lease.get_or_insert_with(|| Lease::Bucket(bucket::Purse::default()))
            }
            Algorithm::SlidingLog(_) | Algorithm::SlidingSlots(_) | Algorithm::SlidingApproximate(_) => {
                lease.get_or_insert_with(|| Lease::Sliding(sliding::Purse::default()))
            }
        };
        let held = lease.part();
        let back = held.units.saturating_sub(keeps.units).min(match lease {
            Lease::Bucket(_) => u64::MAX,
            // What was used in the last window cannot be given back.
            Lease::Sliding(_) => available,
        });
        // The own part's tokens stay: of those that the disk knows to be spent nothing may be told to anybody.
        let unspent = match lease {
            Lease::Bucket(_) => back.min(available.saturating_sub(own_units)),
            Lease::Sliding(_) => back,
        };
        let keeps = Part { rate: keeps.rate.min(held.rate), units: held.units - back };
        let (number, change) = match lease {
            Lease::Bucket(purse) => purse.ask(keeps, unspent, now.steady_ns),
            Lease::Sliding(purse) => (purse.ask(back, now.steady_ns).0, Change::default()),
        };
        if keeps != held {
            self.apply(words, ground, change, now);
        }
        self.note_cut();
        Some(Kept { number, part: keeps, unspent: unspent.saturating_add(cut_unspent) })
    }

    /// What is lent of it is kept until it is back.
    fn not_lent_twice(&self, keeps: Part) -> Part {
        let lent = self.lent_of_pool();
        if broken(Broken::LeaseReturnsWhatIsLent) {
            return keeps;
        }
        Part { rate: keeps.rate.max(lent.rate), units: keeps.units.max(lent.units) }
    }

    /// No more may be held than so much: where more is, that is cut, what is lent as soon as it is back, and nothing is lent meanwhile. Of what is
    /// held so many units were `free`.
    pub(super) fn bound_pool(
        &mut self,
        words: &mut Vec<u64>,
        ground: &Ground<'_>,
        (most, free): (Part, u64),
        now: Now,
    ) {
        if !broken(Broken::LeaseConformsWhileLent) {
            self.windows_mut().most = Some(most);
        }
        self.note_cut();
        self.cut_to_most(words, ground, free, now);
    }

    /// Units of what is held of the pool that are not spent, and could be given back.
    pub(crate) fn free_of_pool(&self, words: &[u64], ground: &Ground<'_>, now: Now) -> u64 {
        let free = self.unused(words, ground, now);
        // The own part's tokens stay.
        if self.algorithm.has_rate() { free.saturating_sub(self.standing.units) } else { free }
    }

    /// What of it may be used or lent: what may not be held any more is not, but where it is lent already.
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

    /// Cuts what may not be held any more, as far as it is not lent.
    pub(super) fn cut_what_is_back(&mut self, words: &mut Vec<u64>, ground: &Ground<'_>, now: Now) {
        if self.windows().most.is_some() {
            self.cut_to_most(words, ground, self.free_of_pool(words, ground, now), now);
        }
    }

    fn cut_to_most(&mut self, words: &mut Vec<u64>, ground: &Ground<'_>, free: u64, now: Now) {
        let Some(most) = self.windows().most else { return };
        if self.usable_pool() == self.pooled() {
            return self.note_cut();
        }
        self.cut_to(words, ground, (most, Some(free)), now);
    }

    /// What cannot be given back now: what is lent, and of a sliding window what was used.
    pub(crate) fn kept_of_pool(&self, words: &[u64], ground: &Ground<'_>, now: Now) -> Part {
        let lent = self.lent_of_pool();
        if ground.global.has_rate() {
            return lent;
        }
        let held = self.pooled().units;
        let used = held.saturating_sub(self.unused(words, ground, now));
        Part { units: lent.units.max(used), ..lent }
    }

    /// What could be charged now; and of a sliding window what is beyond the limit, by what this node knows of it, which is not used here,
    /// and may go back.
    fn unused(&self, words: &[u64], ground: &Ground<'_>, now: Now) -> u64 {
        let available = self.unleased(words, now, ground.salt);
        if available == 0 || self.algorithm.has_rate() {
            return available;
        }
        available + self.effective().units.saturating_sub(self.algorithm.budget())
    }

    /// What may be held of the pool at most, where more is.
    pub(crate) fn most_of_pool(&self) -> Option<Part> {
        self.windows().most
    }

    /// Notes whether no more is held than may be.
    fn note_cut(&mut self) {
        let pooled = self.pooled();
        if let Some(windows) = &mut self.windows {
            windows.most = windows.most.filter(|most| pooled.rate > most.rate || pooled.units > most.units);
        }
    }

    /// Keeps at most so much of a bucket's or a sliding window's pool, and gives nothing back: nobody is told of it. What is lent is
    /// kept until it is back. What was asked for before is not taken up.
    pub(crate) fn cut_pool(&mut self, words: &mut Vec<u64>, ground: &Ground<'_>, most: Part, now: Now) {
        self.cut_to(words, ground, (most, None), now);
    }

    /// The same; what of it was free is told with the next call, if that is to be told.
    fn cut_to(
        &mut self,
        words: &mut Vec<u64>,
        ground: &Ground<'_>,
        (most, free): (Part, Option<u64>),
        now: Now,
    ) {
        let held = self.pooled();
        let keeps = Part { rate: held.rate.min(most.rate), units: held.units.min(most.units) };
        if keeps != held && !broken(Broken::LeaseConformsWhileLent) {
            self.windows_mut().most = Some(most);
        }
        let keeps = self.not_lent_twice(keeps);
        let keeps = Part { rate: held.rate.min(keeps.rate), units: held.units.min(keeps.units) };
        let back = held.units - keeps.units;
        let unspent = back.min(free.unwrap_or(0));
        let windows = self.windows_mut();
        let change = match &mut windows.lease {
            Some(Lease::Bucket(purse)) => purse.ask(keeps, unspent, now.steady_ns).1,
            Some(Lease::Sliding(purse)) => {
                purse.ask(back, now.steady_ns);
                Change::default()
            }
            None => return,
        };
        windows.less.cut_unspent =
            if free.is_some() { windows.less.cut_unspent.saturating_add(unspent) } else { 0 };
        self.apply(words, ground, change, now);
        self.note_cut();
    }

    /// The answer to a call of a bucket. Gives what came; nothing if it does not count.
    pub(crate) fn exchanged(
        &mut self,
        words: &mut Vec<u64>,
        ground: &Ground<'_>,
        (number, answer): (u64, &bucket::Exchanged),
        times: (u64, u64),
        now: Now,
    ) -> Option<u64> {
        let before = self.pooled();
        let Some(Lease::Bucket(purse)) = &mut self.windows_mut().lease else { return None };
        let change = purse.answer(number, answer, times, now.steady_ns)?;
        let units = purse.part().units.saturating_sub(before.units);
        let gained = units.saturating_sub(change.owe);
        if self.pooled() != before {
            self.apply(words, ground, change, now);
        }
        self.due_ns = self.due_ns.min(self.pooled_until_ns());
        Some(gained)
    }

    /// The answer to a call of a sliding window. Gives the units that came; nothing if it does not count.
    pub(crate) fn slid(
        &mut self,
        words: &mut Vec<u64>,
        ground: &Ground<'_>,
        (number, units): (u64, u64),
        ttl_ns: u64,
        now: Now,
    ) -> Option<u64> {
        let before = self.pooled();
        let Some(Lease::Sliding(purse)) = &mut self.windows_mut().lease else { return None };
        if !purse.answer(number, units, ttl_ns, now.steady_ns) {
            return None;
        }
        let gained = self.pooled().units.saturating_sub(before.units);
        if gained > 0 {
            self.apply(words, ground, Change::default(), now);
        }
        self.due_ns = self.due_ns.min(self.pooled_until_ns());
        Some(gained)
    }

    /// The answer to a call of a window: what was taken of it, in all. Gives the units that came.
    pub(crate) fn took(&mut self, ground: &Ground<'_>, end_ns: u64, taken: u64) -> u64 {
        if end_ns < self.window() {
            return 0;
        }
        let known = self.taken_of(end_ns);
        self.set_taken(Taken { taken: taken.max(known.taken), ..known });
        self.rebuild(ground);
        taken.saturating_sub(known.taken)
    }

    /// Before a call: gives units of a window back, of those that are `available`. Gives how many.
    pub(crate) fn return_to_pool(
        &mut self,
        ground: &Ground<'_>,
        end_ns: u64,
        units: u64,
        available: u64,
    ) -> u64 {
        let known = self.taken_of(end_ns);
        let units = units.min(known.units()).min(available);
        if units > 0 {
            self.set_taken(Taken { returned: known.returned + units, ..known });
            self.rebuild(ground);
        }
        units
    }

    fn set_taken(&mut self, taken: Taken) {
        let all = &mut self.windows_mut().taken;
        all.retain(|known| known.end_ns != taken.end_ns);
        all.push(taken);
    }
}
