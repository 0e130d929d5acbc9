//! What a cell's pool has left, as far as it has said, and when it may be asked for more.

use std::cmp::Ordering;

use acequia_limits::Now;

use crate::settings::SETTINGS;

/// What the last call for more brought: of the open window, or of a pool without edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Yield {
    /// Enough, or there was no such call.
    #[default]
    Enough,
    /// Little: the pool is asked for more from this time on.
    Little { ask_from_ns: u64 },
    /// Nothing, so many times in a row. The pool is asked again from this time on.
    Nothing { times: u32, ask_from_ns: u64 },
}

/// Units that the pool of a later window had left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LaterWindow {
    end_ns: u64,
    left: u64,
}

/// The pool, as the last answers describe it. All times are of the steady clock.
#[derive(Debug, Default)]
pub(super) struct Supply {
    /// The open window, by its end; 0 if there are no edges.
    open_ns: u64,
    /// Units that the pool had left when it last said so: for windows, of the open one.
    pub(super) left: Option<u64>,
    later: Option<LaterWindow>,
    /// The part of the rate for this node, if every node gets in proportion to what it would like.
    pub(super) fair: Option<u32>,
    last: Yield,
    /// Units that the last grant brought.
    pub(super) chunk: u64,
    /// When a call that was only ahead of need last brought nothing: for a while the pool gives units only
    /// for need.
    scant_since_ns: Option<u64>,
    /// No more is asked for of later windows before this time.
    later_from_ns: u64,
}

impl Supply {
    /// The open window, by its end.
    pub(super) const fn open_ns(&self) -> u64 {
        self.open_ns
    }

    /// A window has opened. An old report that nothing was left of it may be out of date.
    pub(super) fn opens(&mut self, end_ns: u64) {
        let left = self.later.filter(|later| later.end_ns == end_ns && later.left > 0);
        *self = Self {
            open_ns: end_ns,
            left: left.map(|later| later.left),
            last: Yield::Enough,
            chunk: 0,
            scant_since_ns: None,
            ..*self
        };
    }

    /// Notes how much the pool said it has left of a window, by the window's end. Windows that are over are
    /// ignored.
    pub(super) fn hears_left(&mut self, end_ns: u64, left: u64) {
        match end_ns.cmp(&self.open_ns) {
            Ordering::Less => {}
            Ordering::Greater => self.later = Some(LaterWindow { end_ns, left }),
            Ordering::Equal => self.left = Some(left),
        }
    }

    /// What the pool of a later window said it has left.
    pub(super) fn left_of_later(&self, end_ns: u64) -> Option<u64> {
        self.later.filter(|later| later.end_ns == end_ns).map(|later| later.left)
    }

    /// A call brought these units.
    pub(super) const fn gave(&mut self, units: u64, is_little: bool, now_ns: u64) {
        self.chunk = units;
        self.last = if is_little {
            Yield::Little { ask_from_ns: now_ns + SETTINGS.lease.little_ns }
        } else {
            Yield::Enough
        };
    }

    /// The pool gives more than what is needed.
    pub(super) const fn gives_ahead(&mut self) {
        self.scant_since_ns = None;
    }

    /// The little that is left is for requests that need it.
    pub(super) const fn gives_only_for_need(&mut self, now_ns: u64) {
        self.scant_since_ns = Some(now_ns);
    }

    /// The pool gave nothing.
    pub(super) fn gave_nothing(&mut self, now_ns: u64) {
        let times = self.times_in_vain();
        self.last = Yield::Nothing {
            times: times.saturating_add(1),
            ask_from_ns: now_ns + (SETTINGS.lease.vain_ns << times.min(8)).min(SETTINGS.lease.vain_ns_max),
        };
    }

    /// The pool of a later window gave these units. That says nothing about the open window.
    pub(super) const fn gave_of_later(&mut self, units: u64, now_ns: u64) {
        self.later_from_ns = now_ns + if units > 0 { 0 } else { SETTINGS.lease.later_ns };
    }

    /// How many calls in a row brought nothing.
    pub(super) const fn times_in_vain(&self) -> u32 {
        match self.last {
            Yield::Nothing { times, .. } => times,
            Yield::Enough | Yield::Little { .. } => 0,
        }
    }

    const fn ask_from_ns(&self) -> u64 {
        match self.last {
            Yield::Enough => 0,
            Yield::Little { ask_from_ns } | Yield::Nothing { ask_from_ns, .. } => ask_from_ns,
        }
    }

    /// Whether the pool may be asked for more.
    pub(super) const fn may_be_asked(&self, now_ns: u64) -> bool {
        now_ns >= self.ask_from_ns()
    }

    /// Whether the pool may be asked for units ahead of need.
    pub(super) fn may_be_asked_ahead(&self, now_ns: u64) -> bool {
        self.scant_since_ns.is_none_or(|since_ns| now_ns >= since_ns + SETTINGS.lease.scant_ns)
    }

    /// Whether the pool of a later window may be asked.
    pub(super) const fn may_be_asked_of_later(&self, now_ns: u64) -> bool {
        now_ns >= self.later_from_ns
    }

    /// Whether the pool is known to have nothing, or nothing beyond need.
    pub(super) fn is_dry(&self, now: Now) -> bool {
        let has_nothing =
            self.times_in_vain() > 0 && now.steady_ns < self.ask_from_ns() + SETTINGS.lease.dry_ns;
        has_nothing
            || self.scant_since_ns.is_some_and(|since_ns| now.steady_ns < since_ns + SETTINGS.lease.dry_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_has_nothing_is_asked_less_and_less_often() {
        let mut supply = Supply::default();
        assert!(supply.may_be_asked(0) && !supply.is_dry(Now::at(0)));
        supply.gave_nothing(0);
        assert!(
            !supply.may_be_asked(SETTINGS.lease.vain_ns - 1) && supply.may_be_asked(SETTINGS.lease.vain_ns)
        );
        supply.gave_nothing(0);
        assert!(
            !supply.may_be_asked(SETTINGS.lease.vain_ns) && supply.is_dry(Now::at(SETTINGS.lease.dry_ns))
        );
        (0..100).for_each(|_| supply.gave_nothing(0));
        assert!(supply.may_be_asked(SETTINGS.lease.vain_ns_max));
        supply.gave(7, false, 5);
        assert!(supply.may_be_asked(5) && !supply.is_dry(Now::at(5)));
    }
}
