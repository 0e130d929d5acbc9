//! Windows that the wall clock left when it was set back.
//!
//! The wall clock only goes back if an operator or NTP sets it back by more than three seconds; smaller steps
//! are slewed. **A window that the wall clock was in is not open again.** Cells that were over by the later
//! reading may be forgotten, so nobody knows what was spent of such a window. Windows that the wall clock
//! only skipped were never open, and may open.
//!
//! The difference between wall clock and steady clock changes only in such steps. So one comparison per
//! reading detects a step.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
};

use acequia_limits::{
    Now,
    window::{FixedWindow, SET_BACK_NS},
};
use acequia_rights::mutation::{Mutation, mutated};
use smallvec::SmallVec;

use crate::lock;

/// The most spans of time that are kept apart. Beyond it, the two earliest count as one, with all time
/// between them.
const SPANS_MAX: usize = 8;
/// No reading has been noted yet.
const UNREAD: i64 = i64::MIN;

/// A span of wall time in which the node was, both ends included, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WallSpan {
    from_ns: u64,
    to_ns: u64,
}

/// The times at which a node's wall clock was.
#[derive(Debug)]
pub(crate) struct Left {
    /// The wall clock minus the steady clock, as of the last step.
    ahead_ns: AtomicI64,
    /// Whether the wall clock may be in a window that it left.
    may_be_closed: AtomicBool,
    /// When the wall clock was last set: steady clock.
    stepped_ns: AtomicU64,
    spans: Mutex<Spans>,
}

#[derive(Debug, Default)]
struct Spans {
    /// When the present span began.
    begun_ns: u64,
    /// Earlier spans, in order. An earlier span may touch the present one.
    past: SmallVec<[WallSpan; 2]>,
}

impl Spans {
    /// Adds an earlier span, and joins spans that touch.
    fn add(&mut self, span: WallSpan) {
        self.past.push(span);
        self.past.sort_unstable_by_key(|span| span.from_ns);
        let mut merged: SmallVec<[WallSpan; 2]> = SmallVec::new();
        let too_many = self.past.len() > SPANS_MAX;
        for span in self.past.drain(..) {
            let is_first = merged.len() == 1;
            match merged.last_mut() {
                Some(last) if span.from_ns <= last.to_ns || (too_many && is_first) => {
                    last.to_ns = last.to_ns.max(span.to_ns);
                }
                _ => merged.push(span),
            }
        }
        self.past = merged;
    }

    /// The latest time of the wall clock before it was set back; 0 if it never was.
    fn latest_ns(&self) -> u64 {
        self.past.last().map_or(0, |span| span.to_ns)
    }
}

impl Default for Left {
    fn default() -> Self {
        Self {
            ahead_ns: AtomicI64::new(UNREAD),
            may_be_closed: AtomicBool::new(false),
            stepped_ns: AtomicU64::new(0),
            spans: Mutex::default(),
        }
    }
}

impl Left {
    /// Whether the wall clock was set since it was last noted, or was never noted.
    #[inline]
    pub(crate) fn may_have_stepped(&self, now: Now) -> bool {
        let ahead_ns = now.wall_ns.wrapping_sub(now.steady_ns).cast_signed();
        ahead_ns.abs_diff(self.ahead_ns.load(Ordering::Acquire)) > SET_BACK_NS
    }

    /// Notes a reading of the wall clock that may be the first after it was set. If it was set back, cells
    /// that were dropped by the old time do not hold the clock any more.
    #[cold]
    pub(crate) fn note(&self, now: Now, forgotten_ns: &AtomicU64, journal_ns: &AtomicU64) {
        let ahead_ns = now.wall_ns.wrapping_sub(now.steady_ns).cast_signed();
        let mut spans = lock(&self.spans);
        let before_ns = self.ahead_ns.load(Ordering::Acquire);
        // A late thread may bring a reading from before the last step.
        if ahead_ns.abs_diff(before_ns) <= SET_BACK_NS
            || now.steady_ns <= self.stepped_ns.load(Ordering::Acquire)
        {
            return;
        }
        self.stepped_ns.store(now.steady_ns, Ordering::Release);
        if before_ns == UNREAD {
            spans.begun_ns = now.wall_ns;
            self.ahead_ns.store(ahead_ns, Ordering::Release);
            return;
        }
        let to_ns = now.steady_ns.saturating_add_signed(before_ns);
        let from_ns = spans.begun_ns.min(to_ns);
        spans.begun_ns = now.wall_ns;
        self.close(&mut spans, WallSpan { from_ns, to_ns });
        if now.wall_ns < to_ns {
            // An earlier process may have dropped what it had spent by its last row.
            let journal_ns = journal_ns.load(Ordering::Acquire);
            self.close(&mut spans, WallSpan { from_ns: journal_ns, to_ns: journal_ns });
            forgotten_ns.store(now.wall_ns, Ordering::Release);
        }
        // The closed spans are known before any thread uses the new wall clock without noticing the step.
        self.ahead_ns.store(ahead_ns, Ordering::Release);
    }

    /// Whether a reading is from before the wall clock was last set: by the steady clock.
    #[inline]
    pub(crate) fn is_old(&self, now: Now) -> bool {
        now.steady_ns < self.stepped_ns.load(Ordering::Acquire)
    }

    /// The latest time of the wall clock, if it was set back since; otherwise 0.
    pub(crate) fn latest_ns(&self) -> u64 {
        if self.any() { lock(&self.spans).latest_ns() } else { 0 }
    }

    /// Notes an earlier process whose wall clock was as late as `latest_ns`. Nobody knows in which windows it
    /// was, so all windows that have begun by now are closed.
    pub(crate) fn restart(&self, now: Now, latest_ns: u64) {
        let mut spans = lock(&self.spans);
        self.close(&mut spans, WallSpan { from_ns: 0, to_ns: now.wall_ns });
        self.close(&mut spans, WallSpan { from_ns: latest_ns, to_ns: latest_ns });
    }

    /// Closes a window in which an earlier process was, if the wall clock is far before it.
    pub(crate) fn visited(&self, from_ns: u64, to_ns: u64) {
        self.close(&mut lock(&self.spans), WallSpan { from_ns, to_ns });
    }

    /// Whether the wall clock was ever set back.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.may_be_closed.load(Ordering::Acquire)
    }

    /// Whether a charge at this time would be made in a closed window.
    #[inline]
    pub(crate) fn is_closed_at(&self, window: &FixedWindow, wall_ns: u64, salt: u32) -> bool {
        self.any() && {
            let ends = [window.first_end(wall_ns, salt), window.end_after(wall_ns + window.margin_ns, salt)];
            ends.iter().any(|end_ns| self.was_in(window, *end_ns, salt))
        }
    }

    /// Closes the windows of a span for good.
    fn close(&self, spans: &mut Spans, span: WallSpan) {
        if !mutated(Mutation::WallReopensWindows) {
            spans.add(span);
            self.may_be_closed.store(true, Ordering::Release);
        }
    }

    /// Whether the wall clock was in the window that ends at `end_ns`, before it was set back from beyond the
    /// window's end.
    #[inline]
    pub(crate) fn is_closed(&self, window: &FixedWindow, end_ns: u64, salt: u32) -> bool {
        self.any() && self.was_in(window, end_ns, salt)
    }

    #[cold]
    fn was_in(&self, window: &FixedWindow, end_ns: u64, salt: u32) -> bool {
        let spans = lock(&self.spans);
        let latest_ns = spans.latest_ns();
        if end_ns > latest_ns.saturating_add(window.margin_ns) {
            // The window was open when the wall clock went back, and is open again: cells know what was spent
            // of it.
            return false;
        }
        let begins_ns = window.begins(end_ns, salt).saturating_sub(window.margin_ns);
        let ends_ns = end_ns.saturating_add(window.margin_ns);
        spans.past.iter().any(|span| begins_ns <= span.to_ns && span.from_ns < ends_ns)
    }

    /// Forgets the spans once the wall clock is beyond all of them.
    pub(crate) fn pass(&self, now: Now) {
        if self.any() {
            let mut spans = lock(&self.spans);
            // The longest windows are years. A span that is over for them is over for all windows.
            if spans.past.iter().all(|span| span.to_ns.saturating_add(LONGEST_NS) < now.wall_ns) {
                spans.past.clear();
                self.may_be_closed.store(false, Ordering::Release);
            }
        }
    }
}

/// The longest window, with its margins.
const LONGEST_NS: u64 = 400 * 86_400 * 1_000_000_000;

#[cfg(test)]
mod tests {
    use acequia_limits::window::Edges;

    use super::*;

    const S: u64 = 1_000_000_000;
    const MINUTE: u64 = 60 * S;
    const HOUR: u64 = 3_600 * S;
    const T: u64 = 500_000 * HOUR;

    fn at(steady_s: u64, wall_ns: u64) -> Now {
        Now { steady_ns: T + steady_s * S, wall_ns }
    }

    fn note(left: &Left, now: Now) {
        left.note(now, &AtomicU64::new(0), &AtomicU64::new(0));
    }

    fn every(window_ns: u64) -> FixedWindow {
        FixedWindow::new(9, Edges::Every { window_ns, stagger: false })
    }

    fn is_closed(left: &Left, window_ns: u64, wall_ns: u64) -> bool {
        let window = every(window_ns);
        left.is_closed(&window, window.end_after(wall_ns, 0), 0)
    }

    #[test]
    fn a_wall_clock_set_ahead_closes_only_windows_before_the_step() {
        let left = Left::default();
        note(&left, at(0, T));
        note(&left, at(100, T + 100 * S));
        note(&left, at(101, T + HOUR));
        assert!(!is_closed(&left, MINUTE, T + HOUR));
        // A window that the wall clock was in before the step is closed.
        assert!(is_closed(&left, MINUTE, T + 30 * S));
    }

    #[test]
    fn left_windows_stay_closed_and_skipped_windows_stay_open() {
        let left = Left::default();
        note(&left, at(0, T));
        note(&left, at(90, T + HOUR + 90 * S));
        // Two minutes are spent an hour ahead; then the clock is set back.
        note(&left, at(210, T + 210 * S));
        for (closed, wall_ns) in [
            (true, T + 30 * S),
            (true, T + 90 * S),
            (false, T + 210 * S),
            (false, T + 59 * MINUTE),
            (true, T + HOUR + 90 * S),
            (true, T + HOUR + 150 * S),
            // This window was open when the wall clock went back.
            (false, T + HOUR + 210 * S),
        ] {
            assert_eq!(is_closed(&left, MINUTE, wall_ns), closed, "{} s", (wall_ns - T) / S);
        }
        assert!(
            is_closed(&left, HOUR, T + 210 * S),
            "the hour was left, and what was spent of it may be forgotten"
        );
        assert!(!is_closed(&left, HOUR, T + HOUR + 210 * S), "and this one was not");
    }

    #[test]
    fn a_thread_with_an_older_clock_reading_closes_no_window() {
        let left = Left::default();
        note(&left, at(0, T));
        note(&left, at(100, T + 100 * S - HOUR));
        for _ in 0..100 {
            note(&left, at(100, T + 100 * S));
            note(&left, at(101, T + 101 * S - HOUR));
        }
        assert!(lock(&left.spans).past.len() <= 2);
        assert!(!is_closed(&left, MINUTE, T + 200 * S - HOUR));
    }

    #[test]
    fn many_clock_steps_stay_within_bounds_and_open_no_window() {
        let left = Left::default();
        note(&left, at(0, T + 1_000 * HOUR));
        for step in 1..200 {
            note(&left, at(60 * step, T + (1_000 - step) * HOUR));
        }
        assert!(lock(&left.spans).past.len() <= SPANS_MAX);
        for step in 0..199 {
            assert!(is_closed(&left, MINUTE, T + (1_000 - step) * HOUR + S) || step == 0, "{step}");
        }
    }

    #[test]
    fn a_restart_closes_the_open_windows_and_no_others() {
        let left = Left::default();
        let now = at(0, T + 30 * S);
        note(&left, now);
        left.restart(now, T + 365 * 24 * HOUR + 90 * S);
        assert!(is_closed(&left, MINUTE, T + 30 * S) && is_closed(&left, HOUR, T + 30 * S));
        assert!(!is_closed(&left, MINUTE, T + 60 * S) && !is_closed(&left, HOUR, T + HOUR));
    }

    #[test]
    fn left_windows_are_forgotten_after_a_long_time() {
        let left = Left::default();
        note(&left, at(0, T));
        note(&left, at(60, T - HOUR));
        left.pass(at(120, T));
        assert!(is_closed(&left, MINUTE, T - 30 * S) || is_closed(&left, MINUTE, T));
        left.pass(at(500 * 86_400, T + LONGEST_NS + HOUR));
        assert!(!left.any());
    }
}
