//! Which wall clock reading to trust.
//!
//! Windows have edges that all regions must agree on, to within the clock error of the catalogue. A
//! wall clock may be stepped, by an operator or by a hypervisor; steady clocks only drift. So the
//! wall is believed while it moves as the steady clock does, and while most peers that can be
//! reached read the same to within the error and half the way there and back. Otherwise the clock is
//! *suspect*, and the node goes by *holdover*: the last reading that was believed, carried on by the
//! steady clock. Holdover is off by no more than the drift, so the band around edges in which both
//! windows are charged grows with it, and no window opens early.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use smallvec::SmallVec;

/// How often a clock is compared with itself and with the peers', at most.
const COMPARE_NS: u64 = 100_000_000;

/// What a peer's clock read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Its wall less ours, in nanoseconds, when its frame came, half the way there and back allowed for.
    pub(crate) ahead_ns: i64,
    /// How wrong that may be: half the time there and back.
    pub(crate) unsure_ns: u64,
}

/// The wall clock, and whether it can be believed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timekeeper {
    /// The last reading that was believed: (steady, wall).
    good: Option<(u64, u64)>,
    suspect: bool,
    /// What is added to the wall clock, while it is not believed.
    correction_ns: i64,
    /// How far the reading may be off beyond the error of a clock that is believed.
    unsure_ns: u64,
    /// When they were last compared: the steady clock, and the wall as it was believed to be.
    compared: Option<(u64, u64)>,
}

impl Timekeeper {
    /// Whether the wall clock is not believed.
    pub(crate) const fn is_suspect(&self) -> bool {
        self.suspect
    }

    /// What is added to a reading of the wall clock.
    pub(crate) const fn correction_ns(&self) -> i64 {
        self.correction_ns
    }

    /// When the clocks were last compared: the steady one, and the wall as it was believed to be.
    pub(crate) const fn compared(&self) -> Option<(u64, u64)> {
        self.compared
    }

    /// How far a corrected reading may be off, beyond the error of a clock that is believed.
    pub(crate) const fn unsure_ns(&self) -> u64 {
        self.unsure_ns
    }

    /// Looks at a raw reading, and at those of the peers. `error_ns` and `drift_ppm` are the bounds of the
    /// catalogue.
    pub(crate) fn observe(
        &mut self,
        steady_ns: u64,
        wall_ns: u64,
        error_ns: u64,
        drift_ppm: u32,
        peers: &[Reading],
    ) {
        let Some((good_steady, good_wall)) = self.good else {
            (self.good, self.compared) = (Some((steady_ns, wall_ns)), Some((steady_ns, wall_ns)));
            return;
        };
        let passed = steady_ns.saturating_sub(good_steady);
        if passed < COMPARE_NS {
            return;
        }
        let wandered_ns = drifted(passed, drift_ppm);
        let step_ns = signed(wall_ns) - signed(good_wall.saturating_add(passed));
        let is_step = step_ns.unsigned_abs() > error_ns.saturating_mul(2).saturating_add(wandered_ns);
        let raw = Vote::of(peers, 0, error_ns);
        let is_believed = if is_step { raw == Vote::For } else { !matches!(raw, Vote::Against { .. }) };
        if is_believed {
            let good = Some((steady_ns, wall_ns));
            *self = Self { good, compared: good, ..Self::default() };
            return;
        }
        self.suspect = true;
        self.correction_ns = if is_step { -step_ns } else { 0 };
        self.compared = Some((steady_ns, wall_ns.saturating_add_signed(self.correction_ns)));
        self.unsure_ns = match Vote::of(peers, self.correction_ns, error_ns) {
            Vote::Against { by_ns } => wandered_ns.saturating_add(by_ns),
            Vote::For | Vote::None => wandered_ns,
        };
    }
}

/// What the wall reads if nobody has set it since it was last compared with the steady clock.
///
/// A clock may be set between two looks at it, and be set back: requests that came in between must not be counted in
/// windows that nobody heard of. Read by every request, written by the thread that ticks: one that reads while it is
/// written takes the clock as it reads.
#[derive(Debug)]
pub(crate) struct Carried {
    /// What the wall is ahead of the steady clock, modulo 2^64.
    ahead_ns: AtomicU64,
    /// How far two readings of one clock may be apart for its error alone: 2ε. All there is until the rest is written.
    apart_ns: AtomicU64,
    /// Odd while the rest is written.
    writes: AtomicU64,
    /// When both were looked at.
    steady_ns: AtomicU64,
    drift_ppm: AtomicU32,
}

impl Default for Carried {
    fn default() -> Self {
        Self {
            ahead_ns: AtomicU64::new(0),
            apart_ns: AtomicU64::new(u64::MAX),
            writes: AtomicU64::new(0),
            steady_ns: AtomicU64::new(0),
            drift_ppm: AtomicU32::new(0),
        }
    }
}

impl Carried {
    pub(crate) fn set(&self, (steady_ns, wall_ns): (u64, u64), error_ns: u64, drift_ppm: u32) {
        self.writes.fetch_add(1, Ordering::AcqRel);
        self.steady_ns.store(steady_ns, Ordering::Release);
        self.ahead_ns.store(wall_ns.wrapping_sub(steady_ns), Ordering::Release);
        self.drift_ppm.store(drift_ppm, Ordering::Release);
        self.apart_ns.store(error_ns.saturating_mul(2), Ordering::Release);
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// The wall as it reads, unless it moved against the steady clock by more than both of them may be wrong: then as
    /// it would read had it moved along.
    #[inline]
    pub(crate) fn unless_set(&self, steady_ns: u64, read_ns: u64) -> u64 {
        let carried_ns = steady_ns.wrapping_add(self.ahead_ns.load(Ordering::Acquire));
        if read_ns.abs_diff(carried_ns) <= self.apart_ns.load(Ordering::Acquire) {
            return read_ns;
        }
        self.unless_drifted(steady_ns, read_ns)
    }

    #[cold]
    fn unless_drifted(&self, steady_ns: u64, read_ns: u64) -> u64 {
        let writes = self.writes.load(Ordering::Acquire);
        let carried_ns = steady_ns.wrapping_add(self.ahead_ns.load(Ordering::Acquire));
        let passed_ns = steady_ns.saturating_sub(self.steady_ns.load(Ordering::Acquire));
        let wandered_ns = drifted(passed_ns, self.drift_ppm.load(Ordering::Acquire));
        let most_ns = self.apart_ns.load(Ordering::Acquire).saturating_add(wandered_ns);
        let is_whole = writes & 1 == 0 && writes == self.writes.load(Ordering::Acquire);
        if is_whole && read_ns.abs_diff(carried_ns) > most_ns { carried_ns } else { read_ns }
    }
}

/// What most peers say of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vote {
    /// There is no peer to ask.
    None,
    For,
    /// It is off by about so much.
    Against {
        by_ns: u64,
    },
}

impl Vote {
    fn of(peers: &[Reading], correction_ns: i64, error_ns: u64) -> Self {
        let mut off: SmallVec<[u64; 8]> = SmallVec::new();
        let mut odd = 0;
        for peer in peers {
            let by_ns = peer.ahead_ns.saturating_sub(correction_ns).unsigned_abs();
            let most_ns = error_ns.saturating_mul(2).saturating_add(peer.unsure_ns);
            odd += usize::from(by_ns > most_ns);
            off.push(by_ns.saturating_add(peer.unsure_ns));
        }
        off.sort_unstable();
        match off.get(off.len() / 2) {
            None => Self::None,
            Some(by_ns) if odd * 2 > off.len() => Self::Against { by_ns: *by_ns },
            Some(_) => Self::For,
        }
    }
}

/// How far true time may be from what a steady clock counted. One that ran slow counted less than passed, so its error
/// is a larger part of what it shows.
pub(crate) fn drifted(ns: u64, drift_ppm: u32) -> u64 {
    let slow = 1_000_000_u128.saturating_sub(u128::from(drift_ppm)).max(1);
    u64::try_from((u128::from(ns) * u128::from(drift_ppm)).div_ceil(slow)).unwrap_or(u64::MAX)
}

/// Clocks stay below 2^63.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    fn peer(ahead_ms: i64) -> Reading {
        Reading { ahead_ns: ahead_ms * MS as i64, unsure_ns: 40 * MS }
    }

    #[test]
    fn a_step_is_noticed_and_bridged_until_the_clock_is_right_again() {
        let mut keeper = Timekeeper::default();
        for s in 0..5 {
            keeper.observe(s * S, 100 * S + s * S, 10 * MS, 1_000, &[]);
        }
        assert!(!keeper.is_suspect());
        // An hour ahead, all at once.
        keeper.observe(5 * S, 3_705 * S, 10 * MS, 1_000, &[]);
        assert!(keeper.is_suspect());
        assert_eq!(keeper.correction_ns(), -(3_600 * S as i64));
        keeper.observe(14 * S, 3_714 * S, 10 * MS, 1_000, &[]);
        assert_eq!(keeper.correction_ns(), -(3_600 * S as i64));
        let wandered = 10 * MS..11 * MS;
        assert!(wandered.contains(&keeper.unsure_ns()), "{}", keeper.unsure_ns());
        keeper.observe(15 * S, 115 * S, 10 * MS, 1_000, &[]);
        assert!(!keeper.is_suspect());
        assert_eq!((keeper.correction_ns(), keeper.compared()), (0, Some((15 * S, 115 * S))));
    }

    #[test]
    fn a_clock_that_is_set_counts_from_the_next_look_on() {
        let carried = Carried::default();
        assert_eq!(carried.unless_set(5 * S, 3_600 * S), 3_600 * S, "nobody has looked yet");
        carried.set((S, 101 * S), 10 * MS, 1_000);
        assert_eq!(carried.unless_set(2 * S, 102 * S + 20 * MS), 102 * S + 20 * MS, "as wrong as it may be");
        assert_eq!(carried.unless_set(2 * S, 102 * S + 22 * MS), 102 * S, "more than it may be");
        assert_eq!(carried.unless_set(2 * S, 3_702 * S), 102 * S);
        // After an hour the steady clock may be wrong by more than three seconds.
        assert_eq!(carried.unless_set(3_601 * S, 3_704 * S), 3_704 * S);
    }

    #[test]
    fn a_slow_steady_clock_is_no_step_of_the_wall() {
        let mut keeper = Timekeeper::default();
        keeper.observe(0, 0, 0, 20_000, &[]);
        // After a long sleep: an hour passed, of which the steady clock missed two in a hundred.
        keeper.observe(3_528 * S, 3_600 * S, 0, 20_000, &[]);
        assert!(!keeper.is_suspect());
    }

    #[test]
    fn most_peers_know_better() {
        let mut keeper = Timekeeper::default();
        keeper.observe(0, 100 * S, 10 * MS, 1_000, &[]);
        keeper.observe(S, 101 * S, 10 * MS, 1_000, &[peer(5_000), peer(5_003)]);
        assert!(keeper.is_suspect(), "two of two differ");
        assert!(keeper.unsure_ns() > 5 * S, "edges within the difference are charged twice");
        keeper.observe(2 * S, 102 * S, 10 * MS, 1_000, &[peer(5_000), peer(3)]);
        assert!(!keeper.is_suspect(), "one of two differs");
        // A step that the peers confirm was a correction.
        keeper.observe(3 * S, 108 * S, 10 * MS, 1_000, &[peer(1), peer(-2)]);
        assert!(!keeper.is_suspect());
    }
}
