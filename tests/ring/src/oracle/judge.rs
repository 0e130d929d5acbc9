//! The reference model: one cell of one limit on one true clock, with all admissions anywhere.
//!
//! Each judge receives admissions in their true order and the budgets in force, and reports an excess. A
//! budget that is in force for some time bounds every interval that touches this time. A judge therefore
//! keeps one account for each time since which the budget was lower. Only a few of these accounts matter.
//!
//! A lease is promised when it is given, and admitted when it is spent. Its units count against the budgets
//! in force since the promise, and not against a later lower budget, because nobody can take the lease back.

use std::collections::{BTreeMap, VecDeque};

use acequia_limits::window::FixedWindow;

/// An excess over a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excess {
    /// The counted units.
    pub came: f64,
    /// The allowed units.
    pub bound: u64,
}

/// When units were promised or admitted, and when they were admitted or refunded.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The promise of a lease; the admission that a refund takes back.
    pub made_ns: u64,
    /// The admission or the refund. It is the time of the promise unless units were leased.
    pub at_ns: u64,
}

/// A refund of an admission.
#[derive(Clone, Copy, Debug)]
pub struct Refund {
    /// The admitted units.
    pub cost: u64,
    /// The refunded units.
    pub units: u64,
}

/// An account: since `at_ns` no budget was above `bound`.
#[derive(Clone, Copy, Debug)]
struct Since {
    at_ns: u64,
    bound: u64,
    /// A bucket's debt, without anything before `at_ns`.
    debt: f64,
}

/// The budget changes. Accounts with no higher bound are merged into one.
fn change(times: &mut Vec<Since>, bound: u64, at_ns: u64) {
    match times.last() {
        Some(last) if bound == last.bound => {}
        Some(last) if bound < last.bound => times.push(Since { at_ns, bound, debt: 0.0 }),
        _ => {
            let mut since = Since { at_ns, bound, debt: 0.0 };
            while let Some(last) = times.pop_if(|last| last.bound <= bound) {
                since = Since { bound, ..last };
            }
            times.push(since);
        }
    }
}

/// `burst + rate · t` over every interval: a token bucket or a leaky bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    times: Vec<Since>,
    rate: f64,
    /// Every rate so far: since when, and the units that had flowed by then.
    rates: Vec<(u64, f64, f64)>,
    at_ns: u64,
}

impl Bucket {
    /// A full bucket.
    pub fn new(units: u64, rate: f64, at_ns: u64) -> Self {
        Self {
            times: vec![Since { at_ns, bound: units, debt: 0.0 }],
            rate,
            rates: vec![(at_ns, 0.0, rate)],
            at_ns,
        }
    }

    /// Refunds units of an earlier cost, at most those that the rate has not returned since, on clocks that
    /// may be a little slow.
    pub fn give_back(&mut self, refund: Refund, times: Times) {
        let Times { made_ns, at_ns } = times;
        self.drain(at_ns);
        let since = (self.flowed(at_ns) - self.flowed(made_ns)) * 0.94;
        let back = (refund.cost as f64 - since).max(0.0).min(refund.units as f64);
        self.times.iter_mut().for_each(|time| time.debt = (time.debt - back).max(0.0));
    }

    /// Units that the rates in force have returned by a time.
    fn flowed(&self, at_ns: u64) -> f64 {
        let last = self.rates.iter().rev().find(|(since_ns, ..)| *since_ns <= at_ns);
        last.map_or(0.0, |(since_ns, flowed, rate)| flowed + (at_ns - since_ns) as f64 * rate)
    }

    /// Another budget is in force.
    pub fn change(&mut self, units: u64, rate: f64, at_ns: u64) {
        self.drain(at_ns);
        if rate != self.rate {
            self.rates.push((at_ns, self.flowed(at_ns), rate));
        }
        self.rate = rate;
        change(&mut self.times, units, at_ns);
    }

    /// Admits units. The two times differ only for a lease.
    pub fn admit(&mut self, cost: u64, times: Times) -> Option<Excess> {
        let Times { made_ns, at_ns } = times;
        self.drain(at_ns);
        let mut excess = None;
        let promised = |since: &&mut Since| made_ns == at_ns || since.at_ns <= made_ns;
        for since in self.times.iter_mut().filter(promised) {
            since.debt += cost as f64;
            if since.debt > since.bound as f64 + 1e-6 {
                excess = Some(Excess { came: since.debt, bound: since.bound });
            }
        }
        excess
    }

    fn drain(&mut self, at_ns: u64) {
        let drained = (at_ns - self.at_ns) as f64 * self.rate;
        self.at_ns = at_ns;
        for since in &mut self.times {
            since.debt = (since.debt - drained).max(0.0);
        }
        // An account with no larger debt than one with a lower bound is redundant.
        while self.times.len() > 1 && self.times[0].debt <= self.times[1].debt {
            self.times.remove(0);
        }
    }
}

/// A bound for every interval of a window's length.
#[derive(Clone, Debug)]
pub struct Trailing {
    times: Vec<Since>,
    window_ns: u64,
    /// Time, units, and time of the promise.
    admitted: VecDeque<(u64, u64, u64)>,
    sum: u64,
}

impl Trailing {
    /// Refunds units that were admitted at `made_ns`.
    pub fn give_back(&mut self, units: u64, made_ns: u64) {
        let mut left = units;
        // A lease may be spent at this time, too, and is excluded.
        for (at, admitted, made) in &mut self.admitted {
            if (*at, *made) == (made_ns, made_ns) {
                let units = left.min(*admitted);
                (*admitted, left) = (*admitted - units, left - units);
                self.sum -= units;
            }
        }
    }

    /// A window without admissions.
    pub fn new(units: u64, window_ns: u64, at_ns: u64) -> Self {
        let times = vec![Since { at_ns, bound: units, debt: 0.0 }];
        Self { times, window_ns, admitted: VecDeque::new(), sum: 0 }
    }

    /// Another budget is in force.
    pub fn change(&mut self, units: u64, at_ns: u64) {
        change(&mut self.times, units, at_ns);
    }

    /// Admits units. The two times differ only for a lease.
    pub fn admit(&mut self, cost: u64, times: Times) -> Option<Excess> {
        let Times { made_ns, at_ns } = times;
        while let Some((_, gone, _)) = self.admitted.pop_front_if(|(at, ..)| *at + self.window_ns <= at_ns) {
            self.sum -= gone;
        }
        match self.admitted.back_mut() {
            Some((at, units, made)) if *at == at_ns && *made == made_ns => *units += cost,
            _ => self.admitted.push_back((at_ns, cost, made_ns)),
        }
        self.sum += cost;
        while self.times.len() > 1 && self.times[1].at_ns + self.window_ns <= at_ns {
            self.times.remove(0);
        }
        let over = |(place, since): (usize, &Since)| {
            let came = match place {
                0 => self.sum,
                _ => self.promised(since.at_ns),
            };
            // The first account begins before all units that still count. Units that were promised before it
            // are excluded.
            let came = if came > since.bound { came.min(self.promised(since.at_ns)) } else { came };
            (came > since.bound).then_some(Excess { came: came as f64, bound: since.bound })
        };
        self.times.iter().enumerate().find_map(over)
    }

    /// Units that still count and were promised since a time.
    fn promised(&self, since_ns: u64) -> u64 {
        let since = self.admitted.iter().rev().take_while(|(at, ..)| *at >= since_ns);
        since.filter(|(at, _, made)| made == at || *made >= since_ns).map(|admitted| admitted.1).sum()
    }
}

/// A bound for every window of true time.
#[derive(Clone, Debug)]
pub struct Windows {
    units: u64,
    window: FixedWindow,
    salt: u32,
    end_ns: u64,
    bound: u64,
    sum: u64,
}

impl Windows {
    /// Refunds units of an admission, if their window is open.
    pub fn give_back(&mut self, units: u64, times: Times) {
        self.open(times.at_ns);
        if self.window.end_after(times.made_ns, self.salt) == self.end_ns {
            self.sum = self.sum.saturating_sub(units);
        }
    }

    /// A window without admissions.
    pub fn new(units: u64, window: FixedWindow, salt: u32, at_ns: u64) -> Self {
        let mut windows = Self { units, window, salt, end_ns: 0, bound: units, sum: 0 };
        windows.open(at_ns);
        windows
    }

    /// Another budget is in force.
    pub fn change(&mut self, units: u64, at_ns: u64) {
        self.open(at_ns);
        self.units = units;
        self.bound = self.bound.max(units);
    }

    /// Admits units.
    pub fn admit(&mut self, cost: u64, at_ns: u64) -> Option<Excess> {
        self.open(at_ns);
        self.sum += cost;
        (self.sum > self.bound).then_some(Excess { came: self.sum as f64, bound: self.bound })
    }

    fn open(&mut self, at_ns: u64) {
        if at_ns < self.end_ns {
            return;
        }
        self.bound = self.units;
        self.sum = 0;
        self.end_ns = self.window.end_after(at_ns, self.salt);
    }
}

/// A bound for every window's name, on whichever clock the window was named.
#[derive(Clone, Debug)]
pub struct Labels {
    units: u64,
    /// The length of a window.
    length_ns: u64,
    /// Earlier budgets, and until when they were in force. Rights may have moved under such a budget in a
    /// window without admissions before the next budget.
    before: VecDeque<(u64, u64)>,
    /// By the window's end: the counted units, and the largest budget since the window began.
    open: BTreeMap<u64, (u64, u64)>,
}

impl Labels {
    /// Refunds units of the window that ends at `end_ns`.
    pub fn give_back(&mut self, units: u64, end_ns: u64) {
        if let Some((came, _)) = self.open.get_mut(&end_ns) {
            *came = came.saturating_sub(units);
        }
    }

    /// No windows, so no admissions.
    pub fn new(units: u64, length_ns: u64) -> Self {
        Self { units, length_ns, before: VecDeque::new(), open: BTreeMap::new() }
    }

    /// Another budget is in force.
    pub fn change(&mut self, units: u64, at_ns: u64) {
        self.before.push_back((at_ns, self.units));
        if self.before.len() > 64 {
            self.before.pop_front();
        }
        self.units = units;
        for (_, bound) in self.open.values_mut() {
            *bound = units.max(*bound);
        }
    }

    /// Admits units in the window that ends at `end_ns`.
    pub fn admit(&mut self, cost: u64, end_ns: u64) -> Option<Excess> {
        let began_ns = end_ns.saturating_sub(self.length_ns);
        let earlier =
            self.before.iter().filter(|(until_ns, _)| *until_ns >= began_ns).map(|(_, units)| *units);
        let largest = earlier.fold(self.units, u64::max);
        let (came, bound) = self.open.entry(end_ns).or_insert((0, largest));
        *came += cost;
        let excess = (*came > *bound).then_some(Excess { came: *came as f64, bound: *bound });
        if self.open.len() > 256 {
            self.open.pop_first();
        }
        excess
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn times(made_ns: u64, at_ns: u64) -> Times {
        Times { made_ns, at_ns }
    }

    #[test]
    fn the_judge_counts_a_lowered_bucket_from_the_lowering_on() {
        let mut bucket = Bucket::new(10, 1e-9, 0);
        assert_eq!(bucket.admit(10, times(0, 0)), None);
        bucket.change(4, 1e-9, 0);
        assert_eq!(bucket.admit(1, times(S, S)), None);
        assert!(bucket.admit(4, times(S, S)).is_some(), "five after the lowering");
        let mut bucket = Bucket::new(10, 1e-9, 0);
        bucket.change(4, 1e-9, S);
        bucket.change(8, 1e-9, S);
        assert_eq!(bucket.admit(8, times(2 * S, 2 * S)), None);
        assert!(bucket.admit(1, times(2 * S, 2 * S)).is_some());
    }

    #[test]
    fn the_judge_allows_a_window_its_largest_budget_since_it_began() {
        let mut labels = Labels::new(4, 10 * S);
        labels.change(1, 15 * S);
        assert_eq!(labels.admit(4, 20 * S), None, "rights may have moved before the lowering");
        assert!(labels.admit(1, 20 * S).is_some());
        assert_eq!(labels.admit(1, 30 * S), None);
        assert!(labels.admit(1, 30 * S).is_some(), "the window began after it");
    }

    #[test]
    fn the_judge_excuses_units_leased_before_a_lowering() {
        let mut bucket = Bucket::new(10, 1e-9, 0);
        bucket.change(4, 1e-9, S);
        assert_eq!(bucket.admit(6, times(0, 2 * S)), None, "leased before");
        assert_eq!(bucket.admit(4, times(2 * S, 2 * S)), None);
        assert!(bucket.admit(1, times(2 * S, 2 * S)).is_some());
        let mut bucket = Bucket::new(10, 1e-9, 0);
        bucket.change(4, 1e-9, S);
        assert!(bucket.admit(5, times(S, 2 * S)).is_some(), "leased after");
        let mut trailing = Trailing::new(10, 8 * S, 0);
        trailing.change(4, S);
        assert_eq!(trailing.admit(6, times(0, 2 * S)), None);
        assert_eq!(trailing.admit(4, times(9 * S, 9 * S)), None);
        assert!(trailing.admit(1, times(9 * S, 9 * S)).is_some());
    }

    #[test]
    fn the_judge_takes_a_refund_from_its_own_charge() {
        let mut trailing = Trailing::new(10, 8 * S, 0);
        assert_eq!(trailing.admit(1, times(0, S)), None, "of a lease");
        assert_eq!(trailing.admit(3, times(S, S)), None);
        assert_eq!(trailing.admit(1, times(0, S)), None);
        assert_eq!(trailing.admit(4, times(S, S)), None);
        trailing.give_back(7, S);
        assert_eq!(trailing.admit(8, times(2 * S, 2 * S)), None);
        assert!(trailing.admit(1, times(2 * S, 2 * S)).is_some());
    }

    #[test]
    fn the_judge_counts_every_trailing_interval() {
        let mut trailing = Trailing::new(3, S, 0);
        assert_eq!(trailing.admit(3, times(10, 10)), None);
        assert!(trailing.admit(1, times(S + 9, S + 9)).is_some());
        let mut trailing = Trailing::new(3, S, 0);
        assert_eq!(trailing.admit(3, times(10, 10)), None);
        assert_eq!(trailing.admit(3, times(S + 10, S + 10)), None);
    }
}
