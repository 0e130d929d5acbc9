//! Steady time: the counter, held to the system's `CLOCK_BOOTTIME`.
//!
//! The counter is only ever read up to a millisecond after the last look at the system's clock. So an error
//! of the counter (its rate, a step, a stop while the machine slept) costs a few microseconds, and no error
//! lasts.

use acequia_rights::mutation::{Mutation, mutated};

use super::{latch::Line, raw::RawClocks};
use crate::settings::SETTINGS;

/// How the processor's counter is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counter {
    /// The counter's rate is not known yet: for a millisecond or so from the start.
    #[default]
    Calibrating,
    /// The counter is read, and held to the system's clock.
    Used,
    /// The counter stepped, stood still or changed its rate, and this process does not use it any more. The
    /// system's clock is read instead, which takes longer.
    Unstable,
}

/// A reading of the counter between two of the system's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    counter: u64,
    pub(super) boot_ns: (u64, u64),
}

impl Sight {
    fn width_ns(&self) -> u64 {
        self.boot_ns.1.saturating_sub(self.boot_ns.0)
    }

    fn middle_ns(&self) -> u64 {
        self.boot_ns.0 + self.width_ns() / 2
    }
}

#[derive(Debug, Default)]
pub(super) struct Steady {
    counter: Counter,
    /// Nanoseconds of a count, in parts of 2^32.
    scale: u64,
    /// The rate is measured from the first of these. The second replaces the first when it is old enough.
    reference: Option<Sight>,
    candidate: Option<Sight>,
    last: Option<Sight>,
}

impl Steady {
    pub(super) const fn counter(&self) -> Counter {
        self.counter
    }

    /// Looks at the counter and the system's clock.
    pub(super) fn sight(&self, raw: &impl RawClocks) -> Sight {
        let one = || {
            let before_ns = raw.boot_ns();
            let counter = raw.counter();
            Sight { counter, boot_ns: (before_ns, raw.boot_ns()) }
        };
        let mut best = one();
        for _ in 1..SETTINGS.clock.tries {
            if best.width_ns() <= SETTINGS.clock.narrow_ns {
                break;
            }
            let next = one();
            if next.width_ns() < best.width_ns() {
                best = next;
            }
        }
        best
    }

    /// The line that readers of the counter use from now on. `anchor_ns` turns the system's time into steady
    /// time.
    pub(super) fn line(&mut self, sight: &Sight, anchor_ns: u64) -> Line {
        let is_narrow = sight.width_ns() <= SETTINGS.clock.narrow_ns;
        if is_narrow && self.counter != Counter::Unstable {
            self.learn(sight);
        }
        let counts = match self.counter {
            Counter::Used if mutated(Mutation::CounterTrusted) => u64::MAX,
            Counter::Used if is_narrow => {
                ((u128::from(SETTINGS.clock.alone_ns) << 32) / u128::from(self.scale)) as u64
            }
            _ => 0,
        };
        Line {
            from: sight.counter,
            steady_ns: sight.boot_ns.0.wrapping_add(anchor_ns),
            scale: self.scale,
            counts,
            ..Line::default()
        }
    }

    fn learn(&mut self, sight: &Sight) {
        if let Some(last) = self.last.replace(*sight)
            && !self.is_even(&last, sight)
            && !mutated(Mutation::CounterTrusted)
        {
            self.counter = Counter::Unstable;
            return;
        }
        let candidate = *self.candidate.get_or_insert(*sight);
        if sight.boot_ns.0.saturating_sub(candidate.boot_ns.1) >= SETTINGS.clock.baseline_ns {
            self.reference = self.candidate.replace(*sight);
        }
        let reference = *self.reference.get_or_insert(*sight);
        let passed_ns = sight.middle_ns().saturating_sub(reference.middle_ns());
        let counts = sight.counter.wrapping_sub(reference.counter);
        if passed_ns < SETTINGS.clock.alone_ns / 2 || counts == 0 {
            return;
        }
        let unsure_ns = sight.width_ns() + reference.width_ns();
        if self.counter == Counter::Used || unsure_ns.saturating_mul(SETTINGS.clock.rate_parts) <= passed_ns {
            let scale = (u128::from(passed_ns) << 32) / u128::from(counts);
            self.scale = u64::try_from(scale).unwrap_or(u64::MAX).max(1);
            self.counter = Counter::Used;
        }
    }

    /// Whether the counter went on at its earlier rate, as far as can be told.
    fn is_even(&self, last: &Sight, sight: &Sight) -> bool {
        if self.counter != Counter::Used {
            // The counter's rate is not known yet, except that it has one.
            return sight.counter > last.counter || sight.boot_ns.0 <= last.boot_ns.1;
        }
        let counts = sight.counter.wrapping_sub(last.counter);
        let counted_ns = (u128::from(counts) * u128::from(self.scale)) >> 32;
        let passed_ns = sight.middle_ns().saturating_sub(last.middle_ns());
        let most_ns = SETTINGS.clock.counter_step_ns
            + passed_ns / SETTINGS.clock.rate_change_parts
            + sight.width_ns()
            + last.width_ns();
        counted_ns.abs_diff(u128::from(passed_ns)) <= u128::from(most_ns)
    }
}
