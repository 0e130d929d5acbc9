//! What a limit allows, in units, computed by an observer that trusts no server.

use std::fmt;

use acequia_limits::{
    limit::LimitSpec,
    notation::{format_duration_ns, parse_duration_ns},
};

use crate::world::EPOCH_S;

const SECOND_NS: u64 = 1_000_000_000;

/// The numbers of a limit whose algorithm can be judged from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// At most `burst + rate * t` units are allowed in any time `t`.
    Bucket {
        /// Units a second.
        rate: u64,
        /// Units that are allowed at once.
        burst: u64,
    },
    /// At most `limit` units are allowed from edge to edge. Edges are counted from 1970.
    Window {
        /// Units in one window.
        limit: u64,
        /// The length of a window, in nanoseconds.
        length_ns: u64,
    },
}

impl Bound {
    /// The bound of a limit. `None` unless the limit is a bucket with a rate in `/s` or a window with common
    /// edges.
    pub fn of(spec: &LimitSpec) -> Option<Self> {
        if let Some(bucket) = &spec.token_bucket {
            let rate = bucket.rate.strip_suffix("/s")?.parse().ok()?;
            return Some(Self::Bucket { rate, burst: bucket.burst });
        }
        let window = spec.fixed_window.as_ref().filter(|window| !window.stagger)?;
        let length_ns = parse_duration_ns(&window.window).ok().filter(|length_ns| *length_ns > 0)?;
        Some(Self::Window { limit: window.limit, length_ns })
    }

    /// The larger numbers of two bounds of one kind. They count while a budget is being changed.
    pub fn or_more(self, other: Self) -> Self {
        match (self, other) {
            (Self::Bucket { rate, burst }, Self::Bucket { rate: other_rate, burst: other_burst }) => {
                Self::Bucket { rate: rate.max(other_rate), burst: burst.max(other_burst) }
            }
            (Self::Window { limit, length_ns }, Self::Window { limit: other, .. }) => {
                Self::Window { limit: limit.max(other), length_ns }
            }
            (one, _) => one,
        }
    }

    /// The number of the window that is open `at_ns` after the start; 0 for a bucket.
    pub fn window_at(&self, at_ns: u64) -> u64 {
        match self {
            Self::Bucket { .. } => 0,
            Self::Window { length_ns, .. } => (EPOCH_S * SECOND_NS + at_ns) / length_ns,
        }
    }

    /// Units that the bound allows from the start of a run until `at_ns`.
    pub fn allows_until(&self, at_ns: u64) -> u64 {
        match self {
            Self::Bucket { rate, burst } => burst + rate * at_ns / SECOND_NS,
            Self::Window { limit, .. } => limit * (self.window_at(at_ns) - self.window_at(0) + 1),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket { rate, burst } => write!(f, "{rate}/s and a burst of {burst}"),
            Self::Window { limit, length_ns } => {
                write!(f, "{limit} in {}", format_duration_ns(*length_ns))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_allows_its_burst_at_once_and_a_window_its_limit_again_at_each_edge() {
        let bucket = Bound::Bucket { rate: 40, burst: 60 };
        assert_eq!((bucket.allows_until(0), bucket.allows_until(10 * SECOND_NS)), (60, 460));
        let window = Bound::Window { limit: 300, length_ns: 10 * SECOND_NS };
        assert_eq!(window.allows_until(10 * SECOND_NS - 1), 300);
        assert_eq!(window.allows_until(10 * SECOND_NS), 600);
    }
}
