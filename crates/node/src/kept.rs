//! A cell's state as it is kept on disk: with the numbers it was written under, so that it means
//! the same to a node whose config says something else.

use acequia_limits::{
    Algorithm, Now,
    algorithm::State,
    meter::Meter,
    sliding::{SlidingApproximate, SlidingLog, SlidingSlots},
};
use serde::{Deserialize, Serialize};

/// A state and the numbers that give it its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    numbers: Numbers,
    words: Vec<u64>,
}

/// As much of an algorithm as its state needs to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Numbers {
    Meter(Meter),
    /// A window's state is its end and what was used: it needs no numbers.
    Window,
    Log(SlidingLog),
    Slots(SlidingSlots),
    Approximate(SlidingApproximate),
}

impl Kept {
    /// The state of a cell of `algorithm`.
    pub fn new(algorithm: &Algorithm, words: &[u64]) -> Self {
        let numbers = match algorithm {
            Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => Numbers::Meter(*meter),
            Algorithm::FixedWindow(_) => Numbers::Window,
            Algorithm::SlidingLog(log) => Numbers::Log(*log),
            Algorithm::SlidingSlots(slots) => Numbers::Slots(*slots),
            Algorithm::SlidingApproximate(pair) => Numbers::Approximate(*pair),
        };
        Self { numbers, words: words.to_vec() }
    }

    /// A time, kept as the end of an unused window.
    pub(crate) fn of_wall(wall_ns: u64) -> Self {
        Self { numbers: Numbers::Window, words: vec![wall_ns, 0] }
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
            (Numbers::Window, Algorithm::FixedWindow(_)) => Some(like.clone()),
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

    /// The state itself, no more owed than `algorithm`, which is [`Kept::algorithm`], can owe now.
    pub(crate) fn state(&self, algorithm: &Algorithm, now: Now) -> State {
        algorithm.capped(&self.words, now)
    }
}
