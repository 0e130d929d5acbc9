//! Windows with fixed edges: a limit for every window, none carried over.
//!
//! A cell keeps the end of the window it last charged and the units charged in it. A later `now`
//! before that end is in the same window whatever the clock did in between, so **a window never
//! reopens**: a clock that steps back finds the window it left.

use crate::{
    calendar::Calendar,
    verdict::{NEVER, Verdict},
};

/// Where windows begin and end on the wall clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edges {
    /// Every `window_ns`, counted from the Unix epoch.
    Every {
        /// Length of a window in nanoseconds, above 0.
        window_ns: u64,
        /// Whether each cell has an offset of its own, so that not all of them reset at once.
        stagger: bool,
    },
    /// By the calendar of a time zone.
    Calendar(Calendar),
}

/// A limit for every window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// Units in a window.
    pub limit: u64,
    /// Where windows begin and end.
    pub edges: Edges,
}

/// What a cell keeps: the end of its window (wall clock, nanoseconds) and the units charged in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// End of the window, exclusive. 0 where nothing was ever charged.
    pub end_ns: u64,
    /// Units charged in the window.
    pub used: u64,
}

impl FixedWindow {
    /// Whether `cost` fits in the window that is open for this cell.
    pub fn probe(&self, usage: Usage, wall_ns: u64, cost: u64, salt: u32) -> Verdict {
        let Usage { end_ns, used } = self.open(usage, wall_ns, salt);
        let left = self.limit.saturating_sub(used);
        let reset_after_ns = end_ns - wall_ns;
        if cost <= left {
            Verdict { allowed: true, remaining: left - cost, retry_after_ns: 0, delay_ns: 0, reset_after_ns }
        } else {
            let retry_after_ns = if cost > self.limit { NEVER } else { reset_after_ns };
            Verdict { allowed: false, remaining: left, retry_after_ns, delay_ns: 0, reset_after_ns }
        }
    }

    /// The usage after a charge that [`FixedWindow::probe`] allowed.
    #[must_use]
    pub fn charge(&self, usage: Usage, wall_ns: u64, cost: u64, salt: u32) -> Usage {
        let Usage { end_ns, used } = self.open(usage, wall_ns, salt);
        // Cells with edges of their own may share a usage: it counts until the last of them ends.
        Usage { end_ns: end_ns.max(self.end_after(wall_ns, salt)), used: used + cost }
    }

    /// The usage of a cell that has spent all of the window that is open at `wall_ns`.
    pub fn spent_at(&self, wall_ns: u64, salt: u32) -> Usage {
        Usage { end_ns: self.end_after(wall_ns, salt), used: self.limit }
    }

    /// Whether the cell's window is over or untouched.
    pub fn is_idle(&self, usage: Usage, wall_ns: u64) -> bool {
        usage.used == 0 || wall_ns >= usage.end_ns
    }

    /// The end of the window that `wall_ns` is in: always later than `wall_ns`.
    pub fn end_after(&self, wall_ns: u64, salt: u32) -> u64 {
        match &self.edges {
            Edges::Every { window_ns, stagger } => {
                let offset = if *stagger { offset(*window_ns, salt) } else { 0 };
                // Counting from one window before the epoch keeps the difference positive.
                let since = wall_ns + window_ns - offset;
                wall_ns + (window_ns - since % window_ns)
            }
            Edges::Calendar(calendar) => calendar.end_after(wall_ns),
        }
    }

    fn open(&self, usage: Usage, wall_ns: u64, salt: u32) -> Usage {
        if wall_ns < usage.end_ns { usage } else { Usage { end_ns: self.end_after(wall_ns, salt), used: 0 } }
    }
}

/// An offset below the window, spread evenly over the cells by their salt.
fn offset(window_ns: u64, salt: u32) -> u64 {
    let scaled = (u128::from(window_ns) * u128::from(salt)) >> 32;
    u64::try_from(scaled).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn minutely(limit: u64, stagger: bool) -> FixedWindow {
        FixedWindow { limit, edges: Edges::Every { window_ns: 60 * S, stagger } }
    }

    #[test]
    fn a_window_gives_its_limit_and_the_next_one_again() {
        let w = minutely(3, false);
        let now = 600 * S + 15 * S;
        let mut usage = Usage::default();
        usage = w.charge(usage, now, 2, 0);
        let v = w.probe(usage, now, 2, 0);
        assert_eq!((v.allowed, v.remaining, v.retry_after_ns), (false, 1, 45 * S));
        assert!(!w.probe(usage, now + v.retry_after_ns - 1, 2, 0).allowed);
        assert!(w.probe(usage, now + v.retry_after_ns, 2, 0).allowed);
    }

    #[test]
    fn a_clock_that_steps_back_does_not_reopen_a_window() {
        let w = minutely(1, false);
        let usage = w.charge(Usage::default(), 600 * S, 1, 0);
        for back in [1, 59, 60, 61, 599] {
            assert!(!w.probe(usage, (600 - back) * S, 1, 0).allowed, "{back} s back");
        }
    }

    #[test]
    fn offsets_spread_the_edges() {
        let w = minutely(1, true);
        let ends: std::collections::BTreeSet<u64> =
            (0..60).map(|i| w.end_after(600 * S, i * (u32::MAX / 60))).collect();
        assert_eq!(ends.len(), 60);
        assert!(ends.iter().all(|end| (600 * S + 1..=660 * S).contains(end)));
    }

    #[test]
    fn the_edge_belongs_to_the_next_window() {
        let w = minutely(1, false);
        assert_eq!(w.end_after(60 * S - 1, 0), 60 * S);
        assert_eq!(w.end_after(60 * S, 0), 120 * S);
        assert_eq!(w.end_after(0, 0), 60 * S);
    }
}
