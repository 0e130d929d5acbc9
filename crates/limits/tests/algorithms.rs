//! Compares every algorithm with a reference that is simple, slow and written from the documentation alone.
//! The reference keeps each charge ever made, and answers one question: does this cost fit now? It finds
//! every number of a verdict by a search for the first instant, or the most units, at which the answer
//! turns.

#[path = "algorithms/dates.rs"]
mod dates;
#[path = "algorithms/history.rs"]
mod history;
#[path = "algorithms/terms.rs"]
mod terms;

#[path = "algorithms/carry.rs"]
mod carry;
#[path = "algorithms/changes.rs"]
mod changes;
#[path = "algorithms/clocks.rs"]
mod clocks;
#[path = "algorithms/identity.rs"]
mod identity;
#[path = "algorithms/local.rs"]
mod local;
#[path = "algorithms/margin.rs"]
mod margin;
#[path = "algorithms/promises.rs"]
mod promises;
#[path = "algorithms/refund.rs"]
mod refund;
#[path = "algorithms/restarts.rs"]
mod restarts;
#[path = "algorithms/verdicts.rs"]
mod verdicts;

use acequia_limits::{
    Now, PERIOD_NS_MAX, UNITS_MAX, Verdict,
    sliding::{LOG_UNITS_MAX, SLOTS_DEFAULT},
    verdict::NEVER,
};
use terms::Terms;

/// No state lasts longer than this on a steady clock: two windows of the longest kind, and the rounding of
/// some slots.
const FORGOTTEN_NS: u64 = 2 * PERIOD_NS_MAX + 1_000_000;

/// A charge that was made.
#[derive(Clone, Copy, Debug)]
struct Charge {
    at: Now,
    units: u64,
    /// For windows with edges: the end of the window of the charge.
    end_ns: u64,
}

/// A cell as the documentation describes it.
#[derive(Clone, Debug)]
struct Reference {
    terms: Terms,
    salt: u32,
    charges: Vec<Charge>,
}

impl Reference {
    fn new(terms: &Terms, salt: u32) -> Self {
        Self { terms: terms.clone(), salt, charges: Vec::new() }
    }

    /// The required verdict on `cost`, field by field as [`Verdict`] defines it.
    fn verdict(&self, now: Now, cost: u64) -> Verdict {
        let allowed = self.fits(now, cost);
        let mut after = self.clone();
        if allowed {
            after.charge(now, cost);
        }
        Verdict {
            allowed,
            remaining: most(UNITS_MAX, |units| after.fits(now, units)).unwrap_or(0),
            retry_after_ns: least(self.forgotten_ns(now), |ns| self.fits(now.later(ns), cost))
                .unwrap_or(NEVER),
            delay_ns: match self.terms {
                Terms::Bucket { leaky: true, .. } if allowed => self.owes_nothing_after(now),
                _ => 0,
            },
            reset_after_ns: match self.terms {
                // A window ends at its end, even if nothing was spent in it.
                Terms::Fixed { .. } | Terms::Calendar { .. } => self.window_end(now) - now.wall_ns,
                _ => after.owes_nothing_after(now),
            },
        }
    }

    /// Keeps a charge. A cost of 0 only looks.
    fn charge(&mut self, now: Now, units: u64) {
        if units > 0 {
            self.charges.push(Charge { at: now, units, end_ns: self.window_end(now) });
        }
    }

    /// Whether `cost` may pass beside all the charges that still count. A cost of 0 always may, even if a
    /// new limit is below the charges under the old limit.
    fn fits(&self, now: Now, cost: u64) -> bool {
        if cost == 0 {
            return true;
        }
        let cost = u128::from(cost);
        match self.terms {
            Terms::Bucket { period_ns, capacity, .. } => {
                self.debt(now) + cost * u128::from(period_ns) <= u128::from(capacity) * u128::from(period_ns)
            }
            Terms::Fixed { limit, .. } | Terms::Calendar { limit, .. } | Terms::Sliding { limit, .. } => {
                self.counted(now) + cost <= u128::from(limit)
            }
            Terms::Approximate { limit, window_ns } => {
                let (older, current) = self.pair(now);
                let left_of_older = window_ns - now.steady_ns % window_ns;
                older * u128::from(left_of_older) + (current + cost) * u128::from(window_ns)
                    <= u128::from(limit) * u128::from(window_ns)
            }
        }
    }

    /// Whether the cell is as if it had never been charged.
    fn owes_nothing(&self, now: Now) -> bool {
        match self.terms {
            Terms::Bucket { .. } => self.debt(now) == 0,
            Terms::Fixed { .. } | Terms::Calendar { .. } | Terms::Sliding { .. } => self.counted(now) == 0,
            Terms::Approximate { .. } => self.pair(now) == (0, 0),
        }
    }

    fn owes_nothing_after(&self, now: Now) -> u64 {
        least(self.forgotten_ns(now), |ns| self.owes_nothing(now.later(ns))).expect("every debt ends")
    }

    /// A wait after which nothing counts any more. If the clock went back, its window comes first.
    fn forgotten_ns(&self, now: Now) -> u64 {
        FORGOTTEN_NS + self.window_end(now).saturating_sub(now.wall_ns)
    }

    /// A bucket's debt, in parts of which `period_ns` make a unit. The debt sinks by the rate's units each
    /// nanosecond, down to 0, and grows by each charge.
    fn debt(&self, now: Now) -> u128 {
        let Terms::Bucket { units, period_ns, .. } = self.terms else { panic!("not a bucket") };
        let sunk = |from: u64, to: u64| u128::from(units) * u128::from(to - from);
        let (mut debt, mut at) = (0_u128, 0);
        for charge in &self.charges {
            debt = debt.saturating_sub(sunk(at, charge.at.steady_ns));
            debt += u128::from(charge.units) * u128::from(period_ns);
            at = charge.at.steady_ns;
        }
        debt.saturating_sub(sunk(at, now.steady_ns))
    }

    /// Units in the window. A window with edges counts the charges with the end of this instant's window. A
    /// sliding window counts the charges younger than the window, or in a slot that the window touches.
    fn counted(&self, now: Now) -> u128 {
        let units = |counts: &dyn Fn(&Charge) -> bool| {
            self.charges.iter().filter(|charge| counts(charge)).map(|charge| u128::from(charge.units)).sum()
        };
        match self.terms {
            Terms::Sliding { window_ns, .. } => match self.terms.slots() {
                None => units(&|charge| now.steady_ns - charge.at.steady_ns < window_ns),
                Some(slots) => {
                    let slot_ns = window_ns.div_ceil(u64::from(slots));
                    let slot = |ns: u64| ns / slot_ns;
                    units(&|charge| slot(now.steady_ns) - slot(charge.at.steady_ns) <= u64::from(slots))
                }
            },
            _ => {
                let end_ns = self.window_end(now);
                units(&|charge| charge.end_ns == end_ns)
            }
        }
    }

    /// Units charged in the window before this one, and in this one.
    fn pair(&self, now: Now) -> (u128, u128) {
        let Terms::Approximate { window_ns, .. } = self.terms else { panic!("not approximate") };
        let this = now.steady_ns / window_ns;
        let units = |ago: u64| {
            self.charges
                .iter()
                .filter(|charge| charge.at.steady_ns / window_ns + ago == this)
                .map(|charge| u128::from(charge.units))
                .sum()
        };
        (units(1), units(0))
    }

    /// The end of the open window: the window that the clock shows, or a later one that was opened before
    /// the clock went back.
    fn window_end(&self, now: Now) -> u64 {
        let opened = self.charges.iter().map(|charge| charge.end_ns).max().unwrap_or(0);
        self.terms.end_after(now.wall_ns, self.salt).max(opened)
    }
}

impl Terms {
    /// The number of slots of a sliding window; `None` for an exact log.
    fn slots(&self) -> Option<u32> {
        match *self {
            Self::Sliding { limit, slots: None, .. } if limit <= LOG_UNITS_MAX => None,
            Self::Sliding { slots, .. } => Some(slots.unwrap_or(SLOTS_DEFAULT)),
            _ => None,
        }
    }

    /// The first edge after an instant; 0 for terms without edges.
    fn end_after(&self, wall_ns: u64, salt: u32) -> u64 {
        match *self {
            Self::Fixed { window_ns, stagger, .. } => {
                let window = i128::from(window_ns);
                let offset = if stagger { window * i128::from(salt) / (1 << 32) } else { 0 };
                let windows = (i128::from(wall_ns) - offset).div_euclid(window);
                u64::try_from(offset + (windows + 1) * window).expect("after 1970")
            }
            Self::Calendar { period, zone, .. } => dates::end_after(zone, period, wall_ns),
            Self::Bucket { .. } | Self::Sliding { .. } | Self::Approximate { .. } => 0,
        }
    }
}

/// The least number up to `bound` for which `holds` is true, if `holds` stays true once it is.
fn least(bound: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    if !holds(bound) {
        return None;
    }
    let (mut low, mut high) = (0, bound);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    Some(low)
}

/// The greatest number up to `bound` for which `holds` is true, if `holds` is true for all smaller ones.
fn most(bound: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    match least(bound, |number| !holds(number)) {
        None => Some(bound),
        Some(first_not) => first_not.checked_sub(1),
    }
}
