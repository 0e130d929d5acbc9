//! What a cell admitted, compared with its limit by plain addition.

use std::collections::BTreeMap;

use acequia_limits::{CellTag, Now, limit::LimitSpec, notation::parse_duration_ns, window::SET_BACK_NS};

use super::{HOUR, S, START};

/// The kind of promise that a limit makes for each cell, without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// At most the limit between consecutive edges of the wall clock. Edges are counted from an offset.
    Window { window_ns: u64, offset_ns: u64 },
    /// At most the limit in any interval of this length, on the steady clock.
    Trailing { window_ns: u64 },
    /// At most `burst + rate · t` in any interval `t`, on the steady clock.
    Bucket,
}

impl Promise {
    /// A limit's promise for one of its cells. Days are UTC days.
    pub(crate) fn of(spec: &LimitSpec, cell: CellTag) -> Self {
        let ns = |text: &str| parse_duration_ns(text).expect("a duration");
        if let Some(window) = &spec.fixed_window {
            let window_ns = ns(&window.window);
            let offset = (u128::from(window_ns) * u128::from(cell.salt())) >> 32;
            let offset_ns = if window.stagger { u64::try_from(offset).expect("below the window") } else { 0 };
            Self::Window { window_ns, offset_ns }
        } else if let Some(sliding) = &spec.sliding_window {
            Self::Trailing { window_ns: ns(&sliding.window) }
        } else if spec.quota.as_ref().is_some_and(|quota| quota.per == "day") {
            Self::Window { window_ns: 24 * HOUR, offset_ns: 0 }
        } else {
            assert!(
                spec.token_bucket.is_some() || spec.leaky_bucket.is_some(),
                "a limit that the ledger knows"
            );
            Self::Bucket
        }
    }
}

/// The limit's numbers at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Units in a window, or a bucket's burst.
    pub(crate) limit: u64,
    /// Units that a bucket earns in an hour.
    pub(crate) hourly: u64,
}

/// Parts of a unit. An hourly rate is a whole number of parts a nanosecond.
const PARTS: i128 = HOUR as i128;

/// One cell's admissions, checked against the numbers in force at each time. In a window, the limit bounds
/// what the window has admitted in all. In every interval that ends now, the bound of a bucket is the largest
/// burst in force during the interval plus all that the rates in force earned.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    promise: Promise,
    terms: Terms,
    /// Units by window number, or by time for sliding windows.
    admitted: BTreeMap<u64, u64>,
    /// All admitted units, minus all that could have been earned by `at_ns`, in parts.
    balance: i128,
    at_ns: u64,
    /// The lowest balance at which an interval began, by the largest burst since then.
    stretches: BTreeMap<u64, i128>,
    pub(crate) total: u64,
}

impl Ledger {
    pub(crate) fn new(promise: Promise, terms: Terms, now: Now) -> Self {
        let (admitted, stretches) = (BTreeMap::new(), BTreeMap::new());
        Self { promise, terms, admitted, balance: 0, at_ns: now.steady_ns, stretches, total: 0 }
    }

    /// Changes the numbers from now on.
    pub(crate) fn renumber(&mut self, terms: Terms, now: Now) {
        self.pass(now);
        self.terms = terms;
        let below = self.stretches.range(..terms.limit).map(|(_, balance)| *balance).min();
        self.stretches.retain(|burst, _| *burst >= terms.limit);
        if let Some(balance) = below {
            let lowest = self.stretches.entry(terms.limit).or_insert(balance);
            *lowest = balance.min(*lowest);
        }
    }

    /// Units that may be admitted now.
    pub(crate) fn room(&mut self, now: Now) -> u64 {
        let limit = self.terms.limit;
        match self.promise {
            Promise::Window { .. } => {
                limit.saturating_sub(self.admitted.get(&self.window(now)).copied().unwrap_or(0))
            }
            Promise::Trailing { window_ns } => {
                let since = (now.steady_ns + 1).saturating_sub(window_ns);
                limit.saturating_sub(self.admitted.range(since..).map(|(_, units)| units).sum())
            }
            Promise::Bucket => {
                self.pass(now);
                let room = |(burst, began): (u64, i128)| i128::from(burst) * PARTS - (self.balance - began);
                let stretches = self.stretches.iter().map(|(burst, began)| room((*burst, *began)));
                let least = stretches.chain([room((limit, self.balance))]).min().unwrap_or(0);
                u64::try_from(least.max(0) / PARTS).expect("at most the limit")
            }
        }
    }

    /// Records admitted units. Panics if there was no room for them.
    #[track_caller]
    pub(crate) fn admit(&mut self, whose: &str, units: u64, now: Now) {
        let room = self.room(now);
        assert!(
            units <= room,
            "{whose}: admitted {units} where {room} were left ({:?}, {:?}, {} s after the start)",
            self.promise,
            self.terms,
            (now.wall_ns as f64 - START.wall_ns as f64) / S as f64,
        );
        self.total += units;
        match self.promise {
            Promise::Window { .. } => *self.admitted.entry(self.window(now)).or_default() += units,
            Promise::Trailing { .. } => *self.admitted.entry(now.steady_ns).or_default() += units,
            Promise::Bucket => {
                let lowest = self.stretches.entry(self.terms.limit).or_insert(self.balance);
                *lowest = self.balance.min(*lowest);
                self.balance += i128::from(units) * PARTS;
            }
        }
    }

    /// The node forgot the cell, and assumes that all was spent at this time.
    pub(crate) fn forget(&mut self, then: Now) {
        let limit = self.terms.limit;
        match self.promise {
            Promise::Window { .. } => {
                // After a clock is set back, windows open again that nobody remembers.
                self.admitted.clear();
                self.admitted.insert(self.window(then), limit);
            }
            Promise::Trailing { .. } => *self.admitted.entry(then.steady_ns).or_default() += limit,
            Promise::Bucket => {
                self.pass(then);
                self.stretches.insert(limit, self.balance - i128::from(limit) * PARTS);
            }
        }
    }

    /// A process starts with a clock set back by more than a window. Units counted in a far-future window
    /// were really spent now.
    pub(crate) fn set_back(&mut self, now: Now) {
        let Promise::Window { window_ns, offset_ns } = self.promise else { return };
        let open = (now.wall_ns + window_ns - offset_ns) / window_ns;
        let Some((last, units)) = self.admitted.last_key_value().map(|(last, units)| (*last, *units)) else {
            return;
        };
        let begins_ns = last * window_ns + offset_ns - window_ns;
        if last > open + 1 && begins_ns > now.wall_ns + SET_BACK_NS {
            self.admitted.clear();
            self.admitted.insert(open, units);
        }
    }

    /// The window's number. After a clock is set back the last window stays current: no window opens twice.
    fn window(&self, now: Now) -> u64 {
        let Promise::Window { window_ns, offset_ns } = self.promise else { return 0 };
        let last = self.admitted.last_key_value().map_or(0, |(window, _)| *window);
        last.max((now.wall_ns + window_ns - offset_ns) / window_ns)
    }

    fn pass(&mut self, now: Now) {
        let passed = now.steady_ns.saturating_sub(self.at_ns);
        self.balance -= i128::from(passed) * i128::from(self.terms.hourly);
        self.at_ns = self.at_ns.max(now.steady_ns);
    }
}
