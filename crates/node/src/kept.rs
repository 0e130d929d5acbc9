//! A cell's state as it is kept on disk: with the numbers it was written under, so that it means
//! the same to a node whose config says something else.

use acequia_limits::{
    Algorithm, MARGIN_NS_MAX, Now,
    algorithm::State,
    meter::Meter,
    sliding::{SlidingApproximate, SlidingLog, SlidingSlots},
    window::FixedWindow,
};
use acequia_rights::{loan::Lent, transfer::Transfers};
use serde::{Deserialize, Serialize};

/// A state and the numbers that give it its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    numbers: Numbers,
    words: Vec<u64>,
    /// What the steady clock read when it was written.
    written_ns: u64,
    /// What of it other regions may spend.
    pledge: Pledge,
    /// For rows that are no cell's: what the node remembers of itself.
    record: Vec<u8>,
}

/// What was given to other regions: it must not be spent here again after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pledge {
    /// Loans that are out.
    pub(crate) lent: Vec<Lent>,
    /// Rights given away inside windows.
    pub(crate) transfers: Vec<Transfers>,
}

impl Pledge {
    /// Whether nothing is given away.
    pub(crate) fn is_empty(&self) -> bool {
        self.lent.is_empty() && self.transfers.is_empty()
    }
}

/// As much of an algorithm as its state needs to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Numbers {
    Meter(Meter),
    /// A window's state is its end and what was used; the margin says what was charged ahead.
    Window(u64),
    Log(SlidingLog),
    Slots(SlidingSlots),
    Approximate(SlidingApproximate),
}

impl Kept {
    /// The state of a cell of `algorithm`.
    pub fn new(algorithm: &Algorithm, words: &[u64], now: Now) -> Self {
        let numbers = match algorithm {
            Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => Numbers::Meter(*meter),
            Algorithm::FixedWindow(window) => Numbers::Window(window.margin_ns),
            Algorithm::SlidingLog(log) => Numbers::Log(*log),
            Algorithm::SlidingSlots(slots) => Numbers::Slots(*slots),
            Algorithm::SlidingApproximate(pair) => Numbers::Approximate(*pair),
        };
        let (pledge, record) = (Pledge::default(), Vec::new());
        Self { numbers, words: words.to_vec(), written_ns: now.steady_ns, pledge, record }
    }

    /// The same, with what was given away.
    #[must_use]
    pub(crate) fn with_pledge(self, pledge: Pledge) -> Self {
        Self { pledge, ..self }
    }

    /// What was given away.
    pub(crate) fn pledge(&self) -> &Pledge {
        &self.pledge
    }

    /// Something that the node remembers of itself.
    pub(crate) fn of_record(record: Vec<u8>) -> Self {
        Self {
            numbers: Numbers::Window(0),
            words: Vec::new(),
            written_ns: 0,
            pledge: Pledge::default(),
            record,
        }
    }

    /// What [`Kept::of_record`] keeps.
    pub(crate) fn record(&self) -> &[u8] {
        &self.record
    }

    /// A time, kept as the end of an unused window.
    pub(crate) fn of_wall(wall_ns: u64) -> Self {
        Self { words: vec![wall_ns, 0], ..Self::of_record(Vec::new()) }
    }

    /// The time that [`Kept::of_wall`] keeps.
    pub(crate) fn wall_ns(&self) -> Option<u64> {
        self.words.first().copied()
    }

    /// The numbers it was written under, as an algorithm of the same limit as `like`. Nothing where
    /// the two have nothing in common or the numbers are impossible: the file was not ours.
    pub(crate) fn algorithm(&self, like: &Algorithm) -> Option<Algorithm> {
        let sliding = matches!(like, Algorithm::SlidingLog(_) | Algorithm::SlidingSlots(_));
        match (self.numbers, like) {
            (Numbers::Meter(meter), Algorithm::TokenBucket(_)) if meter.is_sound() => {
                Some(Algorithm::TokenBucket(meter))
            }
            (Numbers::Meter(meter), Algorithm::LeakyBucket(_)) if meter.is_sound() => {
                Some(Algorithm::LeakyBucket(meter))
            }
            (Numbers::Window(margin_ns), Algorithm::FixedWindow(window)) if margin_ns <= MARGIN_NS_MAX => {
                Some(Algorithm::FixedWindow(FixedWindow { margin_ns, ..window.clone() }))
            }
            (Numbers::Log(log), _) if sliding && log.window_ns > 0 && self.words.len().is_multiple_of(2) => {
                Some(Algorithm::SlidingLog(log))
            }
            (Numbers::Slots(slots), _) if sliding && slots.is_sound(&self.words) => {
                Some(Algorithm::SlidingSlots(slots))
            }
            (Numbers::Approximate(pair), Algorithm::SlidingApproximate(_)) if pair.window_ns > 0 => {
                Some(Algorithm::SlidingApproximate(pair))
            }
            _ => None,
        }
    }

    /// The state itself, under `algorithm`, which is [`Kept::algorithm`]: on a clock that was set back, no
    /// more is owed than was when it was written.
    pub(crate) fn state(&self, algorithm: &Algorithm, now: Now) -> State {
        algorithm.redated(&self.words, self.written_ns, now)
    }
}
