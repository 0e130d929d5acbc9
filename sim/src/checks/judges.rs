//! Decides whether one cell admitted more than is in force. A judge uses only the times of questions and
//! answers.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use acequia_limits::oracle::BucketOracle;
use acequia_server::config::ClockConfig;

use super::budgets::Numbers;
use crate::{
    ns,
    schedule::{Place, Schedule},
    world::EPOCH_S,
};

const SECOND_NS: u64 = 1_000_000_000;
/// Windows whose admissions are remembered. Clocks that are further off are not judged by labels.
const LABELS_MAX: usize = 16;

/// Counts one cell's admissions.
#[derive(Clone, Debug)]
pub(crate) enum Judge {
    Bucket {
        bucket: BucketOracle,
        parts: u64,
        rate: u64,
    },
    Window(Windows),
    Sliding(Trailing),
    /// Slots are free again at times that only [`SlotsHeld`](super::SlotsHeld) knows.
    Slots,
}

/// Units that were admitted at some time between two instants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) asked_ns: u64,
    pub(crate) answered_ns: u64,
    pub(crate) units: u64,
}

/// How far clocks may be from true time beyond the promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// An admission nearer than this to the edge of a window may be in either window.
    pub error_ns: u64,
    /// Buckets may fill faster by this many parts per million.
    pub drift_ppm: u64,
}

impl Clocks {
    /// The errors of a schedule that may break the promise; 0 where the schedule keeps it.
    pub fn beyond(promise: &ClockConfig, schedule: &Schedule, duration: Duration) -> Self {
        let drift_ppm = schedule.drift_ppm_max();
        let drifted_ns = ns(duration) * drift_ppm / 1_000_000;
        let wall_ns = schedule.wall_ms_max() * 1_000_000 + drifted_ns;
        Self {
            error_ns: if wall_ns > promise.error_ns { wall_ns } else { 0 },
            drift_ppm: if drift_ppm > u64::from(promise.drift_ppm) { drift_ppm } else { 0 },
        }
    }
}

impl Judge {
    pub(crate) fn new(in_force: Numbers) -> Self {
        match in_force {
            Numbers::Bucket { period_ns, burst, .. } => {
                // Counts units in parts, so that a whole number of parts comes each second.
                let parts = period_ns / gcd(period_ns, SECOND_NS);
                let rate = in_force.parts_a_second(parts);
                Self::Bucket { bucket: BucketOracle::new(rate, burst * parts), parts, rate }
            }
            Numbers::Window { window_ns, .. } => {
                Self::Window(Windows { window_ns, admitted: BTreeMap::new() })
            }
            Numbers::Slots { .. } => Self::Slots,
            Numbers::Sliding { window_ns, .. } => Self::Sliding(Trailing {
                window_ns,
                admitted: VecDeque::new(),
                changes: VecDeque::from([(0, in_force)]),
            }),
        }
    }

    /// From `now_ns` on, other numbers are in force.
    pub(crate) fn change(&mut self, now_ns: u64, in_force: Numbers) {
        match (self, in_force) {
            (Self::Bucket { bucket, parts, rate }, Numbers::Bucket { burst, .. }) => {
                let new_rate = in_force.parts_a_second(*parts);
                bucket.set(now_ns, new_rate, burst * *parts);
                *rate = new_rate.max(*rate);
            }
            (Self::Sliding(trailing), Numbers::Sliding { .. }) => {
                trailing.changes.push_back((now_ns, in_force))
            }
            _ => {}
        }
    }

    /// Counts an admission, in the order of the answers, and returns how many units are too many. `most(t)`
    /// is the largest amount that was in force for the limit since `t`.
    pub(crate) fn admit(&mut self, admitted: Admitted, clocks: Clocks, most: impl Fn(u64) -> u64) -> u64 {
        let Admitted { asked_ns, answered_ns, units } = admitted;
        match self {
            Self::Bucket { bucket, parts, rate } => {
                bucket.admit(asked_ns, answered_ns, units * *parts);
                let drifted = u128::from(*rate) * u128::from(answered_ns) * u128::from(clocks.drift_ppm);
                let drifted = drifted.div_ceil(u128::from(SECOND_NS) * 1_000_000) as u64;
                bucket.units_over().saturating_sub(drifted).div_ceil(*parts)
            }
            Self::Window(windows) => windows.admit(admitted, clocks.error_ns, most),
            Self::Sliding(trailing) => trailing.admit(admitted, clocks),
            Self::Slots => 0,
        }
    }
}

impl Numbers {
    fn parts_a_second(self, parts: u64) -> u64 {
        let Self::Bucket { units, period_ns, .. } = self else { return 0 };
        let a_second = u128::from(units) * u128::from(parts) * u128::from(SECOND_NS);
        a_second.div_ceil(u128::from(period_ns)) as u64
    }
}

/// Counts windows of true time.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    window_ns: u64,
    admitted: BTreeMap<u64, u64>,
}

impl Windows {
    fn admit(&mut self, admitted: Admitted, error_ns: u64, most: impl Fn(u64) -> u64) -> u64 {
        let epoch_ns = EPOCH_S * SECOND_NS;
        let first = (epoch_ns + admitted.asked_ns).saturating_sub(error_ns) / self.window_ns;
        let last = (epoch_ns + admitted.answered_ns + error_ns) / self.window_ns;
        if first != last {
            return 0;
        }
        let since_ns = (first * self.window_ns).saturating_sub(epoch_ns);
        self.count(first, admitted.units).saturating_sub(most(since_ns))
    }

    fn count(&mut self, label: u64, units: u64) -> u64 {
        let sum = self.admitted.entry(label).or_default();
        *sum += units;
        let sum = *sum;
        while self.admitted.len() > LABELS_MAX {
            self.admitted.pop_first();
        }
        sum
    }
}

/// Counts windows by the nodes' own labels, whatever their clocks say.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    /// For each region, the end of its open window, and when that window was first seen open.
    open: BTreeMap<Place, (u64, u64)>,
    admitted: BTreeMap<u64, u64>,
}

impl Labels {
    /// Counts an admission of a region whose open window ended at `end_ns` when the answer came. Returns what
    /// all regions admitted in that window.
    pub(crate) fn admit(&mut self, place: Place, end_ns: u64, admitted: Admitted) -> u64 {
        let open = self.open.entry(place).or_insert((end_ns, admitted.answered_ns));
        if open.0 != end_ns {
            *open = (end_ns, admitted.answered_ns);
        }
        if admitted.asked_ns < open.1 {
            return 0;
        }
        let sum = self.admitted.entry(end_ns).or_default();
        *sum += admitted.units;
        let sum = *sum;
        while self.admitted.len() > LABELS_MAX {
            self.admitted.pop_first();
        }
        sum
    }
}

/// Checks every stretch of a window's length.
#[derive(Clone, Debug)]
pub(crate) struct Trailing {
    window_ns: u64,
    admitted: VecDeque<Admitted>,
    changes: VecDeque<(u64, Numbers)>,
}

impl Trailing {
    fn admit(&mut self, admitted: Admitted, clocks: Clocks) -> u64 {
        let now_ns = admitted.answered_ns;
        let length_ns = self.window_ns - self.window_ns.min(self.window_ns * clocks.drift_ppm / 1_000_000);
        let from_ns = (now_ns + 1).saturating_sub(length_ns);
        while self.admitted.pop_front_if(|early| early.answered_ns < from_ns).is_some() {}
        self.admitted.push_back(admitted);
        while self.changes.get(1).is_some_and(|(at_ns, _)| *at_ns <= from_ns) {
            self.changes.pop_front();
        }
        // The beginning of the stretch, and every change within it.
        let begins = self.changes.iter().map(|(at_ns, _)| (*at_ns).max(from_ns));
        begins
            .enumerate()
            .map(|(place, from_ns)| {
                let within = self.admitted.iter().filter(|admitted| admitted.asked_ns >= from_ns);
                let sum: u64 = within.map(|admitted| admitted.units).sum();
                let most = self.changes.iter().skip(place).map(|(_, numbers)| numbers.capacity()).max();
                sum.saturating_sub(most.unwrap_or(u64::MAX))
            })
            .max()
            .unwrap_or(0)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = SECOND_NS;

    fn at(second: u64, units: u64) -> Admitted {
        Admitted { asked_ns: second * S, answered_ns: second * S + S / 10, units }
    }

    #[test]
    fn a_bucket_by_the_minute_is_judged_by_the_minute() {
        let numbers = Numbers::Bucket { units: 6, period_ns: 60 * S, burst: 2 };
        let mut judge = Judge::new(numbers);
        let mut admit = |second, units| judge.admit(at(second, units), Clocks::default(), |_| 0);
        assert_eq!(admit(1, 2), 0);
        assert_eq!(admit(12, 1), 0);
        assert_eq!(admit(13, 1), 1, "a unit comes back every ten seconds");
    }

    #[test]
    fn a_stretch_counts_from_a_lowering_and_not_what_may_be_outside_of_it() {
        let sliding = |limit| Numbers::Sliding { limit, window_ns: 10 * S };
        let mut judge = Judge::new(sliding(5));
        assert_eq!(judge.admit(at(1, 5), Clocks::default(), |_| 0), 0);
        judge.change(5 * S, sliding(2));
        assert_eq!(judge.admit(at(6, 2), Clocks::default(), |_| 0), 2, "seven in ten seconds");
        assert_eq!(judge.admit(at(12, 0), Clocks::default(), |_| 0), 0);
        assert_eq!(judge.admit(at(13, 1), Clocks::default(), |_| 0), 1, "three since the lowering");
    }

    #[test]
    fn a_window_that_is_seen_twice_counts_once() {
        let mut labels = Labels::default();
        assert_eq!(labels.admit(0, 10 * S, at(1, 9)), 0, "it may have opened meanwhile");
        assert_eq!(labels.admit(0, 10 * S, at(2, 3)), 3);
        assert_eq!(labels.admit(0, 20 * S, at(11, 3)), 0);
        assert_eq!(labels.admit(0, 10 * S, at(12, 3)), 0);
        assert_eq!(labels.admit(0, 10 * S, at(13, 3)), 6, "the clock went back");
    }
}
