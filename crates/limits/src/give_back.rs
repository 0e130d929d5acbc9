//! Units that come back without the name of their charge: the caller says only how many.
//!
//! **A cell gives back at most what it counts as spent now.** So what a cell admits, less what it gave back, is
//! at most its limit, whatever callers say. Nobody knows when the units were charged, so as little as
//! possible becomes free. A sliding window gives up its oldest charges. A window near its edge keeps what counts in
//! the next window too.

use crate::{Algorithm, Now, algorithm::Inline, window::Usage};

impl Algorithm {
    /// Gives `units` back to a cell whose state is on the heap. Returns the number of units that really came
    /// back.
    ///
    /// A bucket gives back at most what it owes, and a fixed window at most what was charged in the open window.
    /// A sliding window gives back at most what is in it. An approximate one gives back nothing: it does not know
    /// how much of its last window still counts.
    pub fn give_back(&self, state: &mut Vec<u64>, units: u64, now: Now, salt: u32) -> u64 {
        match self {
            Self::SlidingLog(log) => log.give_back(state, units, now.steady_ns),
            Self::SlidingSlots(slots) => slots.give_back(state, units, now.steady_ns),
            Self::FixedWindow(window) if !self.is_inline() => {
                let (usage, back) = window.give_back(Usage::of(state), units, now.wall_ns, salt);
                state.clear();
                state.extend(&usage.to_state()[..window.words()]);
                back
            }
            Self::TokenBucket(_)
            | Self::LeakyBucket(_)
            | Self::FixedWindow(_)
            | Self::SlidingApproximate(_) => {
                let mut kept = crate::algorithm::inline(state);
                let back = self.give_back_inline(&mut kept, units, now, salt);
                state.clear();
                state.extend(kept);
                back
            }
        }
    }

    /// As [`Algorithm::give_back`], for a state kept inline.
    pub fn give_back_inline(&self, state: &mut Inline, units: u64, now: Now, salt: u32) -> u64 {
        match self {
            // A charge that was made now has lost nothing to the rate: the debt alone bounds what comes back.
            Self::TokenBucket(_) | Self::LeakyBucket(_) => {
                self.refund_inline(state, now, units, now, self, salt)
            }
            Self::FixedWindow(window) => {
                assert!(window.words() == 2, "kept on the heap");
                let (Usage { end_ns, used, .. }, back) =
                    window.give_back(Usage::of(state), units, now.wall_ns, salt);
                *state = [end_ns, used];
                back
            }
            Self::SlidingApproximate(_) => 0,
            Self::SlidingLog(_) | Self::SlidingSlots(_) => unreachable!("kept on the heap"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Rate,
        meter::Meter,
        sliding::{SlidingApproximate, SlidingLog, SlidingSlots},
        window::{Edges, FixedWindow},
    };

    const S: u64 = 1_000_000_000;
    const SALT: u32 = 7;

    fn at(seconds: u64) -> Now {
        Now { steady_ns: (1_000 + seconds) * S, wall_ns: 2_000_000_020 * S + seconds * S }
    }

    fn window(margin_ns: u64) -> Algorithm {
        let window = FixedWindow::new(60, Edges::Every { window_ns: 60 * S, stagger: false });
        Algorithm::FixedWindow(FixedWindow { margin_ns, ..window })
    }

    fn all() -> [Algorithm; 6] {
        let meter = Meter::new(Rate::new(1, S).expect("a rate"), 60);
        [
            Algorithm::TokenBucket(meter),
            Algorithm::LeakyBucket(meter),
            window(0),
            window(S),
            Algorithm::SlidingLog(SlidingLog { limit: 60, window_ns: 60 * S }),
            Algorithm::SlidingSlots(SlidingSlots { limit: 60, window_ns: 60 * S, slots: 6 }),
        ]
    }

    fn charged(algorithm: &Algorithm, state: &mut Vec<u64>, cost: u64, now: Now) {
        assert!(algorithm.probe(state, now, cost, SALT).allowed, "{algorithm:?}");
        algorithm.charge_heap(state, now, cost, SALT);
    }

    #[test]
    fn what_comes_back_can_be_spent_again_and_no_more() {
        for algorithm in all() {
            let mut state = algorithm.fresh().as_slice().to_vec();
            assert_eq!(
                algorithm.give_back(&mut state, 5, at(0), SALT),
                0,
                "{algorithm:?}: nothing was spent"
            );
            charged(&algorithm, &mut state, 30, at(0));
            charged(&algorithm, &mut state, 10, at(0));
            assert_eq!(algorithm.give_back(&mut state, 35, at(0), SALT), 35, "{algorithm:?}");
            assert_eq!(algorithm.available(&state, at(0), SALT), 55, "{algorithm:?}");
            assert_eq!(algorithm.give_back(&mut state, u64::MAX, at(0), SALT), 5, "{algorithm:?}");
            assert_eq!(algorithm.available(&state, at(0), SALT), 60, "{algorithm:?}");
            assert!(algorithm.is_sound(&state), "{algorithm:?}");
        }
    }

    #[test]
    fn a_bucket_gives_back_what_it_owes_and_a_window_what_is_open() {
        for algorithm in all() {
            let mut state = algorithm.fresh().as_slice().to_vec();
            charged(&algorithm, &mut state, 40, at(0));
            // A window of slots forgets a slot late.
            let later = at(75);
            assert_eq!(algorithm.give_back(&mut state, 40, later, SALT), 0, "{algorithm:?}");
            assert_eq!(algorithm.available(&state, later, SALT), 60, "{algorithm:?}");
        }
        let [bucket, ..] = all();
        let mut state = bucket.fresh().as_slice().to_vec();
        charged(&bucket, &mut state, 40, at(0));
        assert_eq!(bucket.give_back(&mut state, 40, at(30), SALT), 10, "the rate has returned 30");
    }

    #[test]
    fn a_debt_comes_back_first() {
        for algorithm in all() {
            let mut state = algorithm.fresh().as_slice().to_vec();
            algorithm.charge_heap(&mut state, at(0), 100, SALT);
            assert_eq!(algorithm.give_back(&mut state, 30, at(0), SALT), 30, "{algorithm:?}");
            assert_eq!(algorithm.debt(&state, at(0), SALT), 10, "{algorithm:?}");
        }
    }

    #[test]
    fn a_sliding_window_gives_up_its_oldest_charges() {
        for algorithm in &all()[4..] {
            let mut state = algorithm.fresh().as_slice().to_vec();
            charged(algorithm, &mut state, 20, at(0));
            charged(algorithm, &mut state, 20, at(30));
            assert_eq!(algorithm.give_back(&mut state, 25, at(30), SALT), 25, "{algorithm:?}");
            assert_eq!(algorithm.available(&state, at(30), SALT), 45, "{algorithm:?}");
            assert_eq!(algorithm.available(&state, at(75), SALT), 45, "the newer charge stays");
            assert_eq!(algorithm.available(&state, at(101), SALT), 60, "{algorithm:?}");
        }
    }

    #[test]
    fn what_counts_in_the_next_window_too_does_not_come_back() {
        let window = window(S);
        let mut state = window.fresh().as_slice().to_vec();
        let edge_ns = (0..).map(|n| at(n).wall_ns).find(|wall| wall.is_multiple_of(60 * S)).expect("an edge");
        let near = Now { wall_ns: edge_ns - S / 2, ..at(30) };
        charged(&window, &mut state, 20, at(0));
        charged(&window, &mut state, 10, near);
        assert_eq!(window.give_back(&mut state, 30, near, SALT), 20);
        let after = Now { wall_ns: edge_ns + 2 * S, ..at(33) };
        assert_eq!(window.available(&state, after, SALT), 50, "the next window counts 10");
    }

    #[test]
    fn an_approximate_window_gives_nothing_back() {
        let pair = Algorithm::SlidingApproximate(SlidingApproximate { limit: 60, window_ns: 60 * S });
        let mut state = pair.fresh().as_slice().to_vec();
        charged(&pair, &mut state, 20, at(0));
        assert_eq!(pair.give_back(&mut state, 20, at(0), SALT), 0);
        assert_eq!(pair.available(&state, at(0), SALT), 40);
    }
}
