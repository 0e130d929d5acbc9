//! The limit over all regions at once, to check whether it was ever exceeded.

use std::collections::VecDeque;

use super::world::S;

/// What a limit allows, whichever region admits.
#[derive(Clone, Debug)]
pub enum Oracle {
    /// At most `burst + rate · t` in any interval t.
    Bucket {
        /// Units a second.
        rate: u64,
        /// Units.
        burst: u64,
        /// The debt in billionths of a unit, and its time.
        debt: (u128, u64),
    },
    /// At most `limit` units in each window.
    Window {
        /// Units.
        limit: u64,
        /// Nanoseconds.
        window_ns: u64,
        /// The window's number, and the units admitted in it.
        open: (u64, u64),
    },
    /// At most `limit` units in any interval of a window's length.
    Sliding {
        /// Units.
        limit: u64,
        /// Nanoseconds.
        window_ns: u64,
        /// Times of the admitted units.
        log: VecDeque<u64>,
    },
}

impl Oracle {
    /// The oracle of a bucket.
    pub const fn bucket(rate: u64, burst: u64) -> Self {
        Self::Bucket { rate, burst, debt: (0, 0) }
    }

    /// The oracle of a fixed window.
    pub const fn window(limit: u64, window_ns: u64) -> Self {
        Self::Window { limit, window_ns, open: (0, 0) }
    }

    /// The oracle of a sliding window.
    pub const fn sliding(limit: u64, window_ns: u64) -> Self {
        Self::Sliding { limit, window_ns, log: VecDeque::new() }
    }

    /// Counts an admitted unit. Returns the excess over the limit.
    pub fn admit(&mut self, now: u64) -> u64 {
        match self {
            Self::Bucket { rate, burst, debt: (debt, at) } => {
                *debt = debt.saturating_sub(u128::from(*rate) * u128::from(now - *at));
                *at = now;
                *debt += u128::from(S);
                let over = debt.saturating_sub(u128::from(*burst) * u128::from(S));
                over.div_ceil(u128::from(S)) as u64
            }
            Self::Window { limit, window_ns, open: (window, admitted) } => {
                if now / *window_ns != *window {
                    (*window, *admitted) = (now / *window_ns, 0);
                }
                *admitted += 1;
                admitted.saturating_sub(*limit)
            }
            Self::Sliding { limit, window_ns, log } => {
                while log.front().is_some_and(|at| *at + *window_ns <= now) {
                    log.pop_front();
                }
                log.push_back(now);
                (log.len() as u64).saturating_sub(*limit)
            }
        }
    }

    /// The most units that a request could still get.
    pub fn left(&self, now: u64) -> u64 {
        match self {
            Self::Bucket { rate, burst, debt: (debt, at) } => {
                let debt = debt.saturating_sub(u128::from(*rate) * u128::from(now - at));
                (u128::from(*burst) * u128::from(S)).saturating_sub(debt) as u64 / S
            }
            Self::Window { limit, window_ns, open } => {
                if now / window_ns == open.0 {
                    limit.saturating_sub(open.1)
                } else {
                    *limit
                }
            }
            Self::Sliding { limit, window_ns, log } => {
                let counted = log.iter().filter(|at| **at + window_ns > now).count() as u64;
                limit.saturating_sub(counted)
            }
        }
    }
}
