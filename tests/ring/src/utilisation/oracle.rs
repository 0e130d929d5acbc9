//! The limit itself, over all regions at once: whether more was admitted than it allows, ever.

use std::collections::VecDeque;

use super::world::S;

/// What a limit allows, whoever admits.
#[derive(Clone, Debug)]
pub enum Oracle {
    /// At most `burst + rate · t` in any time t.
    Bucket {
        /// Units a second.
        rate: u64,
        /// Units.
        burst: u64,
        /// What is owed, in thousand-millionths of a unit, and when.
        debt: (u128, u64),
    },
    /// At most so many in each window.
    Window {
        /// Units.
        limit: u64,
        /// Nanoseconds.
        window_ns: u64,
        /// Which window, and what was admitted in it.
        open: (u64, u64),
    },
    /// At most so many in any time as long as a window.
    Sliding {
        /// Units.
        limit: u64,
        /// Nanoseconds.
        window_ns: u64,
        /// When units were admitted.
        log: VecDeque<u64>,
    },
}

impl Oracle {
    /// Of a bucket.
    pub const fn bucket(rate: u64, burst: u64) -> Self {
        Self::Bucket { rate, burst, debt: (0, 0) }
    }

    /// Of a fixed window.
    pub const fn window(limit: u64, window_ns: u64) -> Self {
        Self::Window { limit, window_ns, open: (0, 0) }
    }

    /// Of a sliding window.
    pub const fn sliding(limit: u64, window_ns: u64) -> Self {
        Self::Sliding { limit, window_ns, log: VecDeque::new() }
    }

    /// A unit was admitted: by how much that is over the limit.
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

    /// Units that a request could still have, at the most.
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
