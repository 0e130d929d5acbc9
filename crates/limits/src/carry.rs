//! Debts that outlast their window: `carry: true` on a limit with windows that have fixed edges.
//!
//! **What a cell owes when its window ends counts as spent in the next window**, and so on until it is paid. A
//! debt above the limit of one window takes several. Units that fitted are never carried, even if the limit
//! or the piece of a region became smaller since: a cell remembers which of its units did not fit
//! ([`Usage::owed`]). So a window that a crash forgot is no debt.
//!
//! A window that is over has paid as many units as its limit. What came to a piece from other regions pays too.
//! Nothing of a window that is over comes back.
//!
//! **Near an edge** a charge counts in both windows. If `a` of the units charged ahead were really spent in the
//! next window, that window begins with `max(a, used - limit)`. The largest `a` counts.

use crate::{
    Algorithm, Now,
    algorithm::State,
    verdict::{NEVER, Verdict},
    window::{Edges, FixedWindow, Usage},
};

/// The most windows of a calendar that are counted one by one, more than a year of days. A cell that was left
/// alone for longer has paid no more than so many windows.
const WINDOWS_MAX: u32 = 400;

/// The units that windows pay.
#[derive(Clone, Copy, Debug)]
struct Pays {
    /// The window of a usage.
    first: u64,
    /// Each window after it.
    each: u64,
}

impl FixedWindow {
    /// The usage of the open window, in which a debt of `ended` may be left. The window of `ended` is over. If
    /// an heir replaced this limit meanwhile, later windows pay by the smaller of both.
    #[cold]
    pub(crate) fn carried(&self, ended: Usage, wall_ns: u64, salt: u32, heir: Option<&Self>) -> Usage {
        let over_ns = self.over_ns(wall_ns);
        let end_ns = self.end_after(over_ns, salt);
        let last = self.paid_until(ended, over_ns, heir);
        match last.end_ns > over_ns {
            true => Usage { end_ns: last.end_ns.max(end_ns), ..last },
            false => Usage { end_ns, used: last.owed, ..last },
        }
    }

    /// Whether a usage whose window is over leaves anything in the open window.
    #[cold]
    pub(crate) fn is_carried(&self, ended: Usage, wall_ns: u64) -> bool {
        self.carries && self.paid_until(ended, self.over_ns(wall_ns), None).owed > 0
    }

    /// The verdict of an open window that owes.
    #[cold]
    pub(crate) fn probe_owing(&self, open: Usage, wall_ns: u64, cost: u64) -> Verdict {
        let each = self.pays(open.end_ns, None).each;
        let after_ns = |cost: u64| match self.fits_at(open, cost) {
            NEVER => NEVER,
            at_ns => at_ns.saturating_sub(wall_ns),
        };
        let retry_after_ns = match cost {
            0 => 0,
            _ if cost > self.most() => NEVER,
            _ => after_ns(cost.min(each)),
        };
        let reset_after_ns = after_ns(each);
        Verdict { allowed: cost == 0, remaining: 0, retry_after_ns, delay_ns: 0, reset_after_ns }
    }

    /// Units of `charged` that did not fit, given that `open` is the usage before the charge.
    pub(crate) fn owed(&self, open: Usage, charged: Usage, wall_ns: u64, salt: u32) -> u64 {
        let debt = |usage: Usage| self.debt_of(usage, wall_ns, salt);
        open.owed.saturating_add(debt(charged).saturating_sub(debt(open)))
    }

    /// Windows that ended by this time on the wall clock are over.
    fn over_ns(&self, wall_ns: u64) -> u64 {
        match self.margin_ns {
            0 => wall_ns,
            margin_ns => wall_ns.saturating_sub(margin_ns).max(self.left_ns),
        }
    }

    /// What the window that ends at `end_ns` and later ones pay.
    fn pays(&self, end_ns: u64, heir: Option<&Self>) -> Pays {
        let least = |window: &Self| {
            let later = window.later.iter().flat_map(|later| later.iter().map(|later| later.limit));
            later.fold(window.next_limit, u64::min)
        };
        let first = match &self.later {
            None => self.limit,
            Some(later) => self.limit_by(later, end_ns),
        };
        Pays { first, each: heir.map_or(u64::MAX, least).min(least(self)) }
    }

    /// The usage of the window that follows a window which paid `pays`.
    fn next_of(&self, ended: Usage, pays: u64) -> Usage {
        let owed = ended.owed.min(ended.used.saturating_sub(pays));
        Usage { end_ns: self.next_end(ended.end_ns), used: ended.ahead.max(owed), ahead: 0, owed }
    }

    /// The usage of the first window that is not over, or of an earlier one that leaves no debt.
    fn paid_until(&self, ended: Usage, over_ns: u64, heir: Option<&Self>) -> Usage {
        let Pays { first, each } = self.pays(ended.end_ns, heir);
        let mut usage = self.next_of(ended, first);
        for _ in 0..WINDOWS_MAX {
            if usage.end_ns > over_ns || usage.owed == 0 {
                break;
            }
            usage = self.next_of(usage, each);
            if let Edges::Every { window_ns, .. } = self.edges {
                // Nothing was charged in the windows since.
                let length_ns = self.length_ns(window_ns);
                let windows = over_ns.saturating_sub(usage.end_ns) / length_ns;
                let owed = usage.owed.saturating_sub(windows.saturating_mul(each));
                usage = Usage { end_ns: usage.end_ns + windows * length_ns, used: owed, ahead: 0, owed };
            }
        }
        usage
    }

    /// The wall clock time when `cost` fits, if nothing else is charged to `open`; [`NEVER`] if windows pay
    /// nothing.
    fn fits_at(&self, open: Usage, cost: u64) -> u64 {
        let Pays { first, each } = self.pays(open.end_ns, None);
        if each == 0 {
            return NEVER;
        }
        let mut begins_ns = open.end_ns;
        let mut usage = self.next_of(open, first);
        for _ in 0..WINDOWS_MAX {
            let missing = usage.used.saturating_sub(each - cost);
            if missing == 0 {
                break;
            }
            if let Edges::Every { window_ns, .. } = self.edges
                && usage.used == usage.owed
            {
                let windows = missing.div_ceil(each);
                begins_ns = begins_ns.saturating_add(windows.saturating_mul(self.length_ns(window_ns)));
                break;
            }
            begins_ns = usage.end_ns;
            usage = self.next_of(usage, each);
        }
        begins_ns.saturating_add(self.margin_ns)
    }
}

impl Algorithm {
    /// This algorithm, carrying its debts into later windows or not. Without fixed windows nothing changes.
    #[must_use]
    pub fn carrying(self, carries: bool) -> Self {
        match self {
            Self::FixedWindow(window) => Self::FixedWindow(FixedWindow { carries, ..window }),
            other => other,
        }
    }

    /// Whether a debt outlasts the window in which it was made.
    pub const fn carries(&self) -> bool {
        matches!(self, Self::FixedWindow(FixedWindow { carries: true, .. }))
    }

    /// Units of a cell that carries its debts which did not fit when they were charged. The cell owes no more of
    /// them than [`Algorithm::debt`].
    pub fn overdrawn(&self, state: &[u64]) -> u64 {
        if self.carries() { Usage::of(state).owed } else { 0 }
    }

    /// The state in the window that is open now, if a debt was carried into it and `heir` replaces this
    /// algorithm. Windows that are over have paid by this algorithm, or by the heir if that gives less.
    pub fn carried(&self, state: &[u64], now: Now, salt: u32, heir: &Self) -> Option<State> {
        let (Self::FixedWindow(window), Self::FixedWindow(heir)) = (self, heir) else { return None };
        let usage = Usage::of(state);
        let is_carried = window.carries && usage.owed > 0 && !window.is_open(usage.end_ns, now.wall_ns);
        is_carried.then(|| self.state_of(window.carried(usage, now.wall_ns, salt, Some(heir))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calendar::{Calendar, Period};

    const S: u64 = 1_000_000_000;
    const DAY_S: u64 = 86_400;

    fn at(seconds: u64) -> Now {
        Now::at((20_000 * DAY_S + seconds) * S)
    }

    fn window(limit: u64, edges: Edges, margin_ns: u64) -> Algorithm {
        Algorithm::FixedWindow(FixedWindow { margin_ns, carries: true, ..FixedWindow::new(limit, edges) })
    }

    /// 100 units a minute.
    fn minutely(margin_ns: u64) -> Algorithm {
        window(100, Edges::Every { window_ns: 60 * S, stagger: false }, margin_ns)
    }

    fn charged(algorithm: &Algorithm, state: &[u64], now: Now, cost: u64) -> Vec<u64> {
        let mut state = state.to_vec();
        algorithm.charge_heap(&mut state, now, cost, 0);
        state
    }

    #[test]
    fn a_debt_is_paid_by_one_window_after_another() {
        let daily = Edges::Calendar(Calendar::new(Period::Day, "UTC").expect("a zone"));
        let all = [
            (minutely(0), 60, 0),
            (minutely(5 * S), 60, 5),
            (window(100, daily, 0), DAY_S, 0),
            (window(100, Edges::Every { window_ns: DAY_S * S, stagger: false }, 0), DAY_S, 0),
        ];
        for (algorithm, window_s, margin_s) in all {
            let state = charged(&algorithm, &[], at(20), 350);
            let verdict = algorithm.probe(&state, at(20), 60, 0);
            assert_eq!(algorithm.debt(&state, at(20), 0), 250);
            // 350 units: three windows are spent, and the fourth has half of its units left.
            let fourth_s = 3 * window_s + margin_s;
            assert_eq!(verdict.retry_after_ns, (4 * window_s + margin_s - 20) * S, "{algorithm:?}");
            assert_eq!(algorithm.probe(&state, at(20), 50, 0).retry_after_ns, (fourth_s - 20) * S);
            assert_eq!(verdict.reset_after_ns, (4 * window_s + margin_s - 20) * S);
            for (second, left, owed) in [
                (window_s + margin_s, 0, 150),
                (2 * window_s + margin_s, 0, 50),
                (fourth_s - 1, 0, 50),
                (fourth_s, 50, 0),
            ] {
                let stands =
                    (algorithm.available(&state, at(second), 0), algorithm.debt(&state, at(second), 0));
                assert_eq!(stands, (left, owed), "{second} s {algorithm:?}");
                assert!(!algorithm.is_idle(&state, at(second)), "{second} s {algorithm:?}");
            }
            assert!(algorithm.is_idle(&state, at(4 * window_s + margin_s)), "{algorithm:?}");
            // Charges on the way make no difference.
            let looked = charged(&algorithm, &state, at(fourth_s), 50);
            assert_eq!(algorithm.available(&looked, at(fourth_s), 0), 0);
            assert_eq!(algorithm.available(&looked, at(4 * window_s + margin_s), 0), 100);
        }
    }

    #[test]
    fn what_fitted_is_not_carried_though_the_limit_became_smaller() {
        let (large, small) = (minutely(0), window(10, Edges::Every { window_ns: 60 * S, stagger: false }, 0));
        let state = charged(&large, &[], at(0), 100);
        assert_eq!(small.debt(&state, at(1), 0), 90, "the window that is open owes it");
        assert_eq!(small.available(&state, at(60), 0), 10);
        assert!(small.is_idle(&state, at(60)));
        // What is presumed after a crash is no debt either.
        let State::Heap(spent) = large.spent_at(at(0), 0) else { panic!("kept on the heap") };
        assert_eq!((small.debt(&spent, at(1), 0), small.available(&spent, at(60), 0)), (90, 10));
    }

    #[test]
    fn units_that_came_to_a_window_pay_its_debt() {
        let Algorithm::FixedWindow(piece) = minutely(0) else { unreachable!("a window") };
        let (standing, grown) = (minutely(0), Algorithm::FixedWindow(FixedWindow { limit: 220, ..piece }));
        let state = charged(&standing, &[], at(0), 350);
        let paid = grown.carried(&state, at(60), 0, &standing).expect("a debt");
        assert_eq!(standing.debt(paid.as_slice(), at(60), 0), 30, "220 of 350 are paid, and 100 now");
        let paid = grown.carried(&state, at(125), 0, &standing).expect("a debt");
        assert_eq!(standing.available(paid.as_slice(), at(125), 0), 70);
        // The smaller of two limits pays for windows in which either may have been in force.
        let less = window(10, Edges::Every { window_ns: 60 * S, stagger: false }, 0);
        let paid = grown.carried(&state, at(125), 0, &less).expect("a debt");
        assert_eq!(standing.debt(paid.as_slice(), at(125), 0), 20, "220 and 10 are paid, and 100 now");
        assert_eq!(grown.carried(&state, at(59), 0, &standing), None, "the window is open");
        assert_eq!(grown.clone().carrying(false).carried(&state, at(60), 0, &standing), None);
    }

    #[test]
    fn a_report_near_an_edge_is_paid_by_the_window_in_which_it_may_have_been_made() {
        let algorithm = minutely(5 * S);
        let state = charged(&algorithm, &[], at(58), 150);
        assert_eq!(algorithm.debt(&state, at(58), 0), 50);
        assert_eq!(algorithm.debt(&state, at(66), 0), 50, "it may have been made after the edge");
        assert_eq!(algorithm.available(&state, at(126), 0), 50);
        assert_eq!(algorithm.probe(&state, at(58), 60, 0).retry_after_ns, (185 - 58) * S);
    }

    #[test]
    fn an_endless_debt_is_counted_at_once() {
        let daily = Edges::Calendar(Calendar::new(Period::Day, "UTC").expect("a zone"));
        let second = Edges::Every { window_ns: S, stagger: false };
        for (edges, limit) in [(daily, 1), (second.clone(), 1), (second, 0)] {
            let algorithm = window(limit, edges, 0);
            let state = charged(&algorithm, &[], at(0), 1 << 51);
            let later = at(2_000 * DAY_S);
            assert!(algorithm.debt(&state, later, 0) > 1 << 50, "{algorithm:?}");
            let verdict = algorithm.probe(&state, later, limit.max(1), 0);
            assert!(!verdict.allowed && verdict.retry_after_ns > 300 * DAY_S * S, "{verdict:?}");
        }
    }

    #[test]
    fn a_limit_without_carry_forgets_what_was_owed_under_it() {
        let carries = minutely(0);
        let state = charged(&carries, &[], at(0), 350);
        let plain = carries.clone().carrying(false);
        let State::Inline(kept) = plain.convert(&carries, &state, at(1)) else { panic!("two words") };
        assert_eq!((plain.debt(&kept, at(1), 0), plain.available(&kept, at(60), 0)), (250, 100));
        let again = carries.convert(&plain, &kept, at(1));
        assert_eq!(
            carries.available(again.as_slice(), at(60), 0),
            100,
            "what was owed before is not carried"
        );
        assert!(!carries.means_as(&plain));
    }
}
