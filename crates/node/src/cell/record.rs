//! A cell's state as kept on disk, with the variant it was written under. So the state keeps its meaning at a
//! node with a different config.

use acequia_limits::{
    Algorithm, MARGIN_NS_MAX, Now, RATE_PARTS, UNITS_MAX,
    algorithm::State,
    meter::Meter,
    sliding::{SlidingApproximate, SlidingLog, SlidingSlots},
    time::CLOCK_END,
    window::FixedWindow,
};
use acequia_rights::{
    loan::LentLoan,
    mutation::{Mutation, mutated},
    transfer::Transfers,
};
use serde::{Deserialize, Serialize};

/// A state and the variant that gives it its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellRecord {
    algorithm: RecordedAlgorithm,
    state: Vec<u64>,
    /// The steady clock when the record was written.
    written_ns: u64,
    /// The wall clock at that time: a steady clock is anchored to the wall clock at every start.
    written_wall_ns: u64,
    /// The part that other regions may spend.
    pledge: Pledge,
    /// For rows that are not cells: what the node remembers of itself.
    record: Vec<u8>,
}

/// Loans and transfers to other regions: they must not be spent here again after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pledge {
    /// Loans that are out.
    pub(crate) lent: Vec<LentLoan>,
    /// Transfers given away inside windows.
    pub(crate) transfers: Vec<Transfers>,
}

impl Pledge {
    /// Whether nothing is given away.
    pub(crate) fn is_empty(&self) -> bool {
        self.lent.is_empty() && self.transfers.is_empty()
    }

    /// Whether a node can have given so much, in windows that exist.
    fn is_sound(&self) -> bool {
        let is_part = |lent: &LentLoan| lent.part.units <= UNITS_MAX && lent.part.rate <= RATE_PARTS;
        self.lent.iter().all(is_part) && self.transfers.iter().all(|window| window.end_ns < CLOCK_END)
    }
}

/// The part of an algorithm that is needed to read its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum RecordedAlgorithm {
    Meter(Meter),
    /// A window's state is its end and the units used; the margin tells what was charged ahead.
    Window(u64),
    Log(SlidingLog),
    Slots(SlidingSlots),
    Approximate(SlidingApproximate),
}

impl CellRecord {
    /// The record of a cell's state under `algorithm`.
    pub fn new(algorithm: &Algorithm, state: &[u64], now: Now) -> Self {
        let algorithm = match algorithm {
            Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => RecordedAlgorithm::Meter(*meter),
            Algorithm::FixedWindow(window) => RecordedAlgorithm::Window(window.margin_ns),
            Algorithm::SlidingLog(log) => RecordedAlgorithm::Log(*log),
            Algorithm::SlidingSlots(slots) => RecordedAlgorithm::Slots(*slots),
            Algorithm::SlidingApproximate(pair) => RecordedAlgorithm::Approximate(*pair),
        };
        let (pledge, record) = (Pledge::default(), Vec::new());
        let Now { steady_ns: written_ns, wall_ns: written_wall_ns } = now;
        Self { algorithm, state: state.to_vec(), written_ns, written_wall_ns, pledge, record }
    }

    /// Adds the loans and transfers that were given away.
    #[must_use]
    pub(crate) fn with_pledge(self, pledge: Pledge) -> Self {
        Self { pledge, ..self }
    }

    /// Whether other regions may spend some of the cell. Such a row must stay, whatever becomes of the cell.
    pub fn is_pledged(&self) -> bool {
        !self.pledge.is_empty() || !self.record.is_empty()
    }

    /// The loans and transfers that were given away.
    pub(crate) fn pledge(&self) -> &Pledge {
        &self.pledge
    }

    /// A record of something that the node remembers of itself.
    pub(crate) fn of_record(record: Vec<u8>) -> Self {
        Self {
            algorithm: RecordedAlgorithm::Window(0),
            state: Vec::new(),
            written_ns: 0,
            written_wall_ns: 0,
            pledge: Pledge::default(),
            record,
        }
    }

    /// The contents of [`CellRecord::of_record`].
    pub(crate) fn record(&self) -> &[u8] {
        &self.record
    }

    /// The wall clock when the record was written.
    pub(crate) const fn written_wall_ns(&self) -> u64 {
        self.written_wall_ns
    }

    /// A time, kept as the end of an unused window.
    pub(crate) fn of_wall(wall_ns: u64) -> Self {
        Self { state: vec![wall_ns, 0], ..Self::of_record(Vec::new()) }
    }

    /// The time in [`CellRecord::of_wall`], if a clock can have shown it.
    pub(crate) fn wall_ns(&self) -> Option<u64> {
        self.state.first().copied().filter(|wall_ns| *wall_ns < CLOCK_END)
    }

    /// The variant that the record was written under, as an algorithm of the same limit as `like`. `None` if
    /// the two do not match or the variant is impossible: then no node of ours wrote the file.
    pub(crate) fn algorithm(&self, like: &Algorithm) -> Option<Algorithm> {
        let sliding = matches!(like, Algorithm::SlidingLog(_) | Algorithm::SlidingSlots(_));
        let algorithm = match (self.algorithm, like) {
            (RecordedAlgorithm::Meter(meter), Algorithm::TokenBucket(_)) => Algorithm::TokenBucket(meter),
            (RecordedAlgorithm::Meter(meter), Algorithm::LeakyBucket(_)) => Algorithm::LeakyBucket(meter),
            (RecordedAlgorithm::Window(margin_ns), Algorithm::FixedWindow(window))
                if margin_ns <= MARGIN_NS_MAX =>
            {
                Algorithm::FixedWindow(FixedWindow { margin_ns, ..window.clone() })
            }
            (RecordedAlgorithm::Log(log), _) if sliding => Algorithm::SlidingLog(log),
            (RecordedAlgorithm::Slots(slots), _) if sliding => Algorithm::SlidingSlots(slots),
            (RecordedAlgorithm::Approximate(pair), Algorithm::SlidingApproximate(_)) => {
                Algorithm::SlidingApproximate(pair)
            }
            _ => return None,
        };
        let is_sound =
            self.written_ns < CLOCK_END && self.pledge.is_sound() && algorithm.is_sound(&self.state);
        is_sound.then_some(algorithm)
    }

    /// The state under `algorithm`, which comes from [`CellRecord::algorithm`]. If the clock was set back, no
    /// more is owed than when the record was written.
    ///
    /// Among regions, wall clocks are at most `error_ns` off. So only as much time counts as passed as the
    /// wall clocks prove. The old steady clock drifted from the wall clock as long as its process lived, and
    /// today's was anchored to the wall clock anew: their difference proves less.
    pub(crate) fn state(&self, algorithm: &Algorithm, error_ns: Option<u64>, now: Now) -> State {
        let state = algorithm.redated(&self.state, self.written_ns, now);
        let Some(error_ns) = error_ns.filter(|_| is_anchor_doubted()) else { return state };
        let surely_ns = now.wall_ns.saturating_sub(self.written_wall_ns).saturating_sub(2 * error_ns);
        let by_clock_ns = now.steady_ns.saturating_sub(self.written_ns);
        let ahead_ns = by_clock_ns.saturating_sub(surely_ns);
        if ahead_ns == 0 { state } else { algorithm.delayed(state.as_slice(), ahead_ns) }
    }
}

/// When cells that a crash forgot count as spent: at the crash.
pub(crate) fn presumed_spent_at(crashed: Option<Now>) -> Option<Now> {
    crashed.filter(|_| !mutated(Mutation::CrashForgetsSpent))
}

/// The debt of cells that a crash forgot is written, so that the next process presumes it, too.
pub(crate) fn is_forgotten_debt_kept() -> bool {
    !mutated(Mutation::ForgottenUnwritten)
}

/// A bucket's debt beyond what a crash presumes is written, though the bucket is not journalled.
pub(crate) fn is_overdraft_kept() -> bool {
    !mutated(Mutation::OverdrawnUnwritten)
}

/// Whether the disk may say of an unjournalled cell that it owes more than a crash presumes. For all
/// algorithms but buckets, a crash presumes the most that a cell may owe.
pub(crate) fn may_be_overdrawn(algorithm: &Algorithm) -> bool {
    algorithm.has_rate() && is_overdraft_kept()
}

/// A bucket's debt is written again with a variant under which it drains otherwise: the disk has the debt
/// under the variant before, which may drain more quickly, or not at all.
pub(crate) fn is_debt_rewritten() -> bool {
    !mutated(Mutation::SlowedUnwritten)
}

/// Among regions, a steady clock proves nothing about the time from before its start.
fn is_anchor_doubted() -> bool {
    !mutated(Mutation::TrustAnchor)
}

#[cfg(test)]
mod tests {
    use acequia_limits::{Rate, window::Edges};

    use super::*;

    #[test]
    fn a_restored_cell_keeps_its_age_if_the_steady_clock_is_anchored_anew() {
        const S: u64 = 1_000_000_000;
        let (limit, window_ns) = (9, 90 * S);
        let bucket = Algorithm::LeakyBucket(Meter::new(Rate::parse("6/m").expect("a rate"), limit));
        let slots = Algorithm::SlidingSlots(SlidingSlots { limit, window_ns, slots: 5 });
        let log = Algorithm::SlidingLog(SlidingLog { limit, window_ns });
        for algorithm in [bucket, slots, log] {
            // The steady clock was behind by an hour; two seconds pass.
            let (written, error_ns) = (Now { steady_ns: 100_000 * S, wall_ns: 103_600 * S }, 10_000_000);
            let mut charged = Vec::new();
            algorithm.charge_heap(&mut charged, written, limit, 0);
            let kept = CellRecord::new(&algorithm, &charged, written);
            let now = Now::at(103_602 * S);
            let state = kept.state(&algorithm, Some(error_ns), now);
            assert_eq!(algorithm.available(state.as_slice(), now, 0), 0, "{algorithm:?}");
            assert!(algorithm.is_idle(state.as_slice(), now.later(120 * S)), "{algorithm:?}");
        }
    }

    #[test]
    fn a_row_that_no_node_can_have_written_is_refused() {
        let window_ns = 3_600 * 1_000_000_000;
        let window = Algorithm::FixedWindow(FixedWindow::new(9, Edges::Every { window_ns, stagger: false }));
        let log = Algorithm::SlidingLog(SlidingLog { limit: 9, window_ns });
        let bucket = Algorithm::TokenBucket(Meter::new(Rate::parse("1/s").expect("a rate"), 9));
        for (algorithm, sound, impossible) in [
            (&window, [window_ns, 3], [u64::MAX, 3]),
            (&window, [window_ns, 3], [window_ns, u64::MAX]),
            (&log, [window_ns, 3], [u64::MAX, 3]),
            (&bucket, [1 << 40, 3], [u64::MAX, 3]),
        ] {
            let read =
                |state: &[u64], ns| CellRecord::new(algorithm, state, Now::at(ns)).algorithm(algorithm);
            assert_eq!(read(&sound, window_ns).as_ref(), Some(algorithm));
            assert_eq!(read(&impossible, window_ns), None, "{impossible:?}");
            assert_eq!(read(&sound, u64::MAX), None, "written at the end of time");
        }
        let pledge = |end_ns| Pledge { transfers: vec![Transfers::new(end_ns)], ..Pledge::default() };
        let given =
            |end_ns| CellRecord::new(&window, &[window_ns, 3], Now::at(1)).with_pledge(pledge(end_ns));
        assert_eq!(given(window_ns).algorithm(&window).as_ref(), Some(&window));
        assert_eq!(given(u64::MAX).algorithm(&window), None, "rights in a window that never ends");
        assert_eq!(CellRecord::of_wall(7).wall_ns(), Some(7));
        assert_eq!(CellRecord::of_wall(u64::MAX).wall_ns(), None);
    }
}
