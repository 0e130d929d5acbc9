//! Windows with fixed edges: a limit for every window, none carried over.
//!
//! A cell keeps the end of the window it last charged and the units charged in it. A later `now`
//! before that end is in the same window whatever the clock did in between, so **a window never
//! reopens**: a clock that steps back finds the window it left.
//!
//! **Clocks that differ.** Where several regions charge pieces of one limit, each by a clock that is
//! at most `margin` off, a unit that one of them charges to a window may really be spent in the window
//! beside it. So, within a margin of an edge, a charge needs room in both windows that meet there, and
//! is charged to both. Then whatever is spent in a window of true time is charged to it: from `S` to
//! `E`, clocks show at least `S − margin` and less than `E + margin`, and at all those times charges
//! count in the window from `S` to `E`. A cell with a margin keeps one word more, what is charged
//! *ahead* in the window that begins where its own ends, and leaves a window one margin after its end.
//!
//! **A margin that grows** would have windows open again that were left: true time was surely past their end by then, so
//! it still is, however little is known of it now. Hence what was *left* stays so under every margin that follows.

use std::sync::Arc;

use crate::{
    MARGIN_NS_MAX,
    calendar::Calendar,
    verdict::{NEVER, Verdict},
};

/// A wall is set back at once only by more than this, in nanoseconds. Less is slewed, so that it never goes back.
pub const SET_BACK_NS: u64 = 3_000_000_000;

/// No window is longer: a year, and some weeks for zones that change. In nanoseconds.
const LONGEST_NS: u64 = 400 * 86_400 * 1_000_000_000;

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
    /// Units in the window that is open.
    pub limit: u64,
    /// Units in the window that follows it: the same, unless a region has other rights there.
    pub next_limit: u64,
    /// Where windows begin and end.
    pub edges: Edges,
    /// How far wall clocks may be off, in nanoseconds: at most [`MARGIN_NS_MAX`]. 0 where one clock
    /// tells all there is. Windows shorter than two margins cannot be told apart, so as many of them
    /// as fill two share one limit.
    pub margin_ns: u64,
    /// Windows that ended by this wall clock time, in nanoseconds, were left for good, under an earlier margin perhaps: true
    /// time is past it. 0 where that is not known of any.
    pub left_ns: u64,
    /// Windows that begin at this wall clock time, in nanoseconds, or later give nothing by these numbers: others are made in
    /// time. An edge; `u64::MAX` where that is not known of any.
    pub until_ns: u64,
    /// Where cells have edges of their own and not all windows the same limit: what those have that end after some times. Ascending, of which
    /// the last counts that a window ends after.
    pub later: Option<Arc<[Later]>>,
}

/// What windows have that end after a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Later {
    /// Wall clock, nanoseconds.
    pub after_ns: u64,
    /// Units in each of them.
    pub limit: u64,
}

/// What a cell keeps: the end of its window (wall clock, nanoseconds) and the units charged in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// End of the window, exclusive. 0 where nothing was ever charged.
    pub end_ns: u64,
    /// Units charged in the window.
    pub used: u64,
    /// Units charged in the window that begins at `end_ns`. 0 without a margin.
    pub ahead: u64,
}

impl Usage {
    /// The usage in a state's words.
    #[inline]
    pub fn of(words: &[u64]) -> Self {
        match *words {
            [end_ns, used, ahead, ..] => Self { end_ns, used, ahead },
            [end_ns, used] => Self { end_ns, used, ahead: 0 },
            _ => Self::default(),
        }
    }

    /// What owes no less than either, of two cells whose windows may end at different times.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        let (used, ahead) = (self.used.max(other.used), self.ahead.max(other.ahead));
        let end_ns = self.end_ns.max(other.end_ns);
        if self.end_ns == other.end_ns {
            return Self { end_ns, used, ahead };
        }
        // What one has in a window the other may have in the next.
        let most = used.max(ahead);
        Self { end_ns, used: most, ahead: most }
    }

    /// The words of a state with a margin.
    pub const fn words(self) -> [u64; 3] {
        [self.end_ns, self.used, self.ahead]
    }
}

impl FixedWindow {
    /// A limit for every window, by one clock.
    pub const fn new(limit: u64, edges: Edges) -> Self {
        Self { limit, next_limit: limit, edges, margin_ns: 0, left_ns: 0, until_ns: u64::MAX, later: None }
    }

    /// A piece of this limit, enforced by one of several clocks that are all at most `margin_ns` off.
    #[must_use]
    pub fn local(&self, units: u64, margin_ns: u64) -> Self {
        assert!(margin_ns <= MARGIN_NS_MAX, "no clock is as far off as {margin_ns} ns");
        Self { margin_ns, ..Self::new(units, self.edges.clone()) }
    }

    /// The same, where windows that ended by `left_ns` are never open again.
    #[must_use]
    pub fn after(self, left_ns: u64) -> Self {
        Self { left_ns, ..self }
    }

    /// The same, where windows that begin at the edge `until_ns` or later give nothing.
    #[must_use]
    pub fn until(self, until_ns: u64) -> Self {
        Self { until_ns, ..self }
    }

    /// The same, where windows that end after some times have other limits.
    #[must_use]
    pub fn later(self, later: &[Later]) -> Self {
        Self { later: (!later.is_empty()).then(|| later.into()), ..self }
    }

    /// Whether `cost` fits in the window that is open for this cell, and within a margin of its end in
    /// the next one, too.
    #[inline]
    pub fn probe(&self, usage: Usage, wall_ns: u64, cost: u64, salt: u32) -> Verdict {
        if self.margin_ns > 0 {
            return self.probe_both(usage, wall_ns, cost, salt);
        }
        self.probe_one((usage.end_ns, usage.used), wall_ns, cost, salt)
    }

    fn probe_one(&self, usage: (u64, u64), wall_ns: u64, cost: u64, salt: u32) -> Verdict {
        let (end_ns, used) = self.open_one(usage, wall_ns, salt);
        let limit = self.limits(end_ns, wall_ns, salt).0;
        let left = if end_ns <= self.until_ns { limit.saturating_sub(used) } else { 0 };
        let reset_after_ns = end_ns - wall_ns;
        if cost <= left {
            Verdict { allowed: true, remaining: left - cost, retry_after_ns: 0, delay_ns: 0, reset_after_ns }
        } else {
            let retry_after_ns = if cost > self.most() { NEVER } else { reset_after_ns };
            Verdict { allowed: false, remaining: left, retry_after_ns, delay_ns: 0, reset_after_ns }
        }
    }

    #[inline(never)]
    fn probe_both(&self, usage: Usage, wall_ns: u64, cost: u64, salt: u32) -> Verdict {
        let open = self.open_both(usage, wall_ns, salt);
        let both = self.is_both(open.end_ns, wall_ns, salt);
        let left = self.left(open, both, (wall_ns, salt));
        let allowed = cost <= left;
        let ahead = open.ahead + if allowed && both { cost } else { 0 };
        // When the open window is left, and the next one.
        let over_ns = open.end_ns + self.margin_ns - wall_ns;
        let next_over_ns = || self.next_end(open.end_ns) + self.margin_ns - wall_ns;
        let retry_after_ns = if allowed {
            0
        } else if cost > self.most() {
            NEVER
        } else if open.ahead.saturating_add(cost) <= self.limits(open.end_ns, wall_ns, salt).1 {
            over_ns
        } else {
            next_over_ns()
        };
        Verdict {
            allowed,
            remaining: if allowed { left - cost } else { left },
            retry_after_ns,
            delay_ns: 0,
            reset_after_ns: if ahead > 0 { next_over_ns() } else { over_ns },
        }
    }

    /// The usage after a charge that [`FixedWindow::probe`] allowed.
    #[must_use]
    #[inline]
    pub fn charge(&self, usage: Usage, wall_ns: u64, cost: u64, salt: u32) -> Usage {
        if self.margin_ns > 0 {
            return self.charge_both(usage, wall_ns, cost, salt);
        }
        let (end_ns, used) = self.open_one((usage.end_ns, usage.used), wall_ns, salt);
        // Cells with edges of their own may share a usage: it counts until the last of them ends.
        Usage { end_ns: end_ns.max(self.end_after(wall_ns, salt)), used: used + cost, ahead: 0 }
    }

    #[inline(never)]
    fn charge_both(&self, usage: Usage, wall_ns: u64, cost: u64, salt: u32) -> Usage {
        let Usage { end_ns, used, ahead } = self.open_both(usage, wall_ns, salt);
        let both = self.is_both(end_ns, wall_ns, salt);
        Usage { end_ns, used: used + cost, ahead: ahead + if both { cost } else { 0 } }
    }

    /// The usage after `units` that were charged at `charged_ns` came back, and how many of them did:
    /// none where the window that they were charged in is no longer open.
    pub fn refund(&self, usage: Usage, charged_ns: u64, units: u64, wall_ns: u64, salt: u32) -> (Usage, u64) {
        let mut open = self.open(usage, wall_ns, salt);
        let end_ns = self.first_end(charged_ns, salt);
        let both = self.margin_ns > 0 && self.is_ahead(end_ns, charged_ns);
        // A cell never goes back to an earlier window: one that is in this window now, or in the one
        // before, was not in a later one then. What it charged after its clock stepped back stays spent,
        // unless it was near the edge: then the later window counted it in any case.
        let was_ahead = both && open.end_ns == self.next_end(end_ns);
        if open.end_ns != end_ns && !was_ahead {
            return (usage, 0);
        }
        let back = units.min(open.used);
        open.used -= back;
        if both && !was_ahead {
            open.ahead = open.ahead.saturating_sub(back);
        }
        (open, back)
    }

    /// The usage of a cell that has spent all of the windows that are open at `wall_ns`.
    pub fn spent_at(&self, wall_ns: u64, salt: u32) -> Usage {
        let end_ns = self.first_end(wall_ns, salt);
        let both = self.margin_ns > 0 && self.is_ahead(end_ns, wall_ns);
        let (limit, next_limit) = self.limits(end_ns, wall_ns, salt);
        Usage { end_ns, used: limit, ahead: if both { next_limit } else { 0 } }
    }

    /// The usage, shared by cells with edges of their own, of which each has spent all of its windows that are open at
    /// `wall_ns`: it counts until the last of those ends.
    pub fn spent_by_any_at(&self, wall_ns: u64) -> Usage {
        match self.edges {
            Edges::Every { window_ns, stagger: true } => {
                let latest_ns = wall_ns + self.margin_ns;
                Usage { end_ns: latest_ns + self.length_ns(window_ns), used: self.most(), ahead: 0 }
            }
            _ => self.spent_at(wall_ns, 0),
        }
    }

    /// Whether the cell's windows are over or untouched.
    pub fn is_idle(&self, usage: Usage, wall_ns: u64) -> bool {
        let over = |end_ns: u64| !self.is_open(end_ns, wall_ns);
        (usage.used == 0 || over(usage.end_ns)) && (usage.ahead == 0 || over(self.next_end(usage.end_ns)))
    }

    /// The end of the older window that a charge at `wall_ns` would be counted in. Rights in windows
    /// are named by it.
    pub fn older_end(&self, words: &[u64], wall_ns: u64, salt: u32) -> u64 {
        self.open(Usage::of(words), wall_ns, salt).end_ns
    }

    /// Whether a cell's windows end at this time, rather than another's.
    pub fn is_edge(&self, end_ns: u64, salt: u32) -> bool {
        end_ns > 0 && self.end_after(end_ns - 1, salt) == end_ns
    }

    /// What a cell with edges of its own may have charged to a usage that it shared with others, as a usage of its own windows.
    ///
    /// What it charged in a window that ends no later than the shared one is in `used`, since every charge has that end no earlier than the
    /// windows that it counts in, but for the next one, which is in `ahead`. So is what it charged in a window that ends later.
    #[must_use]
    pub fn apart(&self, shared: Usage, wall_ns: u64, salt: u32) -> Usage {
        let Edges::Every { window_ns, stagger: true } = self.edges else { return shared };
        if self.is_idle(shared, wall_ns) {
            return Usage::default();
        }
        let Usage { end_ns, used, ahead } = shared;
        let first_ns = self.end_after(wall_ns.saturating_sub(self.margin_ns).max(self.left_ns), salt);
        // The last of its own that ends no later.
        let last_ns = self.end_after(end_ns, salt).saturating_sub(self.length_ns(window_ns));
        if last_ns < first_ns {
            return Usage { end_ns: first_ns, used: ahead, ahead: 0 };
        }
        // A clock that was stepped back finds the window that it left.
        Usage { end_ns: last_ns, used, ahead }
    }

    /// The usage as it is at `wall_ns`: of the older window that a charge would be counted in.
    pub fn open(&self, usage: Usage, wall_ns: u64, salt: u32) -> Usage {
        if self.margin_ns > 0 {
            return self.open_both(usage, wall_ns, salt);
        }
        let (end_ns, used) = self.open_one((usage.end_ns, usage.used), wall_ns, salt);
        Usage { end_ns, used, ahead: 0 }
    }

    fn open_one(&self, (end_ns, used): (u64, u64), wall_ns: u64, salt: u32) -> (u64, u64) {
        if wall_ns < end_ns { (end_ns, used) } else { (self.end_after(wall_ns, salt), 0) }
    }

    /// Cells with edges of their own may share a usage: so a window ends no earlier than its cell's,
    /// and what is ahead counts for as long as any window that began before may last.
    fn open_both(&self, usage: Usage, wall_ns: u64, salt: u32) -> Usage {
        let is_open = self.is_open(usage.end_ns, wall_ns);
        if is_open && !self.is_staggered() {
            return usage;
        }
        let end_ns = self.end_after(wall_ns.saturating_sub(self.margin_ns).max(self.left_ns), salt);
        if is_open {
            return Usage { end_ns: usage.end_ns.max(end_ns), ..usage };
        }
        if usage.ahead > 0 {
            let next_end_ns = self.next_end(usage.end_ns);
            if self.is_open(next_end_ns, wall_ns) {
                return Usage { end_ns: next_end_ns.max(end_ns), used: usage.ahead, ahead: 0 };
            }
        }
        Usage { end_ns, ..Usage::default() }
    }

    /// The usage that `words`, written under another margin, are under this one, as of `wall_ns`. Near
    /// an edge, what was not charged ahead under a smaller margin counts as if it had been; without a
    /// margin, what was charged ahead counts in one long window, as there is no word to keep it in.
    pub(crate) fn adopt(&self, margin_ns: u64, words: &[u64], wall_ns: u64) -> Usage {
        let usage = Usage::of(words);
        let margin_ns = if words.len() < 3 { 0 } else { margin_ns };
        let is_near = self.is_ahead(usage.end_ns, wall_ns) && wall_ns < usage.end_ns + self.margin_ns;
        if self.margin_ns > margin_ns && is_near {
            return Usage { ahead: usage.ahead.max(usage.used), ..usage };
        }
        if self.margin_ns == 0 && usage.ahead > 0 {
            let used = if wall_ns < usage.end_ns { usage.used.max(usage.ahead) } else { usage.ahead };
            return Usage { end_ns: self.next_end(usage.end_ns), used, ahead: 0 };
        }
        usage
    }

    /// When nothing that was charged by `wall_ns` counts any more, for cells without edges of their own.
    pub(crate) fn over_at(&self, wall_ns: u64) -> u64 {
        let end_ns = self.first_end(wall_ns, 0);
        let both = self.margin_ns > 0 && self.is_ahead(end_ns, wall_ns);
        self.margin_ns + if both { self.next_end(end_ns) } else { end_ns }
    }

    /// Nanoseconds after which a cell that is no longer charged is surely idle.
    pub(crate) fn horizon_ns(&self) -> u64 {
        let longest_ns = match self.edges {
            Edges::Every { window_ns, .. } => self.length_ns(window_ns),
            // The longest year, and a day for zones that change sides of the date line.
            Edges::Calendar(_) => 367 * 86_400 * 1_000_000_000,
        };
        longest_ns + 2 * self.margin_ns
    }

    /// The end of the window that `wall_ns` is in: always later than `wall_ns`.
    pub fn end_after(&self, wall_ns: u64, salt: u32) -> u64 {
        match &self.edges {
            Edges::Every { window_ns, stagger } => {
                let offset = if *stagger { offset(*window_ns, salt) } else { 0 };
                let length_ns = self.length_ns(*window_ns);
                // Counting from one window before the epoch keeps the difference positive.
                let since = wall_ns + length_ns - offset;
                wall_ns + (length_ns - since % length_ns)
            }
            Edges::Calendar(calendar) => calendar.end_after(wall_ns),
        }
    }

    /// When the window begins that ends then.
    pub fn begins(&self, end_ns: u64, salt: u32) -> u64 {
        match &self.edges {
            Edges::Every { window_ns, .. } => end_ns.saturating_sub(self.length_ns(*window_ns)),
            Edges::Calendar(_) => {
                // The first time of which that is the end.
                let (mut before, mut within) = (end_ns.saturating_sub(LONGEST_NS), end_ns.saturating_sub(1));
                while within - before > 1 {
                    let middle = before + (within - before) / 2;
                    if self.end_after(middle, salt) == end_ns { within = middle } else { before = middle }
                }
                within
            }
        }
    }

    /// The usage, where it was written by a wall that was further ahead than a window is long, and has been set back since:
    /// what was spent in a window that has not begun was really spent now, or before. It counts in the window that is open.
    ///
    /// The window that follows the open one keeps what was spent in it, and gives it now: were the wall wrong now, and right
    /// before, that window of true time would be open.
    #[must_use]
    pub fn after_set_back(&self, usage: Usage, wall_ns: u64, salt: u32) -> Usage {
        let soon_ns = wall_ns.saturating_add(SET_BACK_NS).saturating_add(self.margin_ns);
        if usage.end_ns <= soon_ns {
            return usage;
        }
        let end_ns = self.first_end(wall_ns, salt);
        if self.begins(usage.end_ns, salt) <= soon_ns.max(end_ns) {
            return usage;
        }
        let used = usage.used.max(usage.ahead);
        let both = self.margin_ns > 0 && self.is_ahead(end_ns, wall_ns);
        Usage { end_ns, used, ahead: if both { used } else { 0 } }
    }

    /// Whether a clock with a margin that shows `wall_ns` may be in a window that ends at `end_ns`.
    const fn is_open(&self, end_ns: u64, wall_ns: u64) -> bool {
        wall_ns < end_ns + self.margin_ns && end_ns > self.left_ns
    }

    /// The end of the older window that a clock that shows `wall_ns` may be in, whatever is known of other times.
    pub fn first_end(&self, wall_ns: u64, salt: u32) -> u64 {
        self.end_after(wall_ns.saturating_sub(self.margin_ns), salt)
    }

    /// The end of the window that begins at the end of another.
    fn next_end(&self, end_ns: u64) -> u64 {
        match &self.edges {
            Edges::Every { window_ns, .. } => end_ns + self.length_ns(*window_ns),
            Edges::Calendar(calendar) => calendar.end_after(end_ns),
        }
    }

    /// Whether a charge at `wall_ns` may really be made in a window that goes on after `end_ns`, the end
    /// of the one that is open. Where cells with edges of their own share a usage, that may be one that
    /// began before.
    fn is_both(&self, end_ns: u64, wall_ns: u64, salt: u32) -> bool {
        if self.is_staggered() {
            self.end_after(wall_ns + self.margin_ns, salt) > end_ns
        } else {
            self.is_ahead(end_ns, wall_ns)
        }
    }

    /// Whether a charge at `wall_ns` may really be made in the window that begins at `end_ns`.
    const fn is_ahead(&self, end_ns: u64, wall_ns: u64) -> bool {
        wall_ns + self.margin_ns >= end_ns
    }

    const fn is_staggered(&self) -> bool {
        matches!(self.edges, Edges::Every { stagger: true, .. })
    }

    /// What the window that ends then gives, and the one that follows it. By a clock that is behind the one that charged last that is not the
    /// one that is open, and may not be the cell's own where others have charged it: then the least of both counts.
    #[inline]
    fn limits(&self, end_ns: u64, wall_ns: u64, salt: u32) -> (u64, u64) {
        match &self.later {
            None => (self.limit, self.next_limit),
            Some(later) => self.limits_by(later, end_ns, wall_ns, salt),
        }
    }

    #[cold]
    fn limits_by(&self, later: &[Later], end_ns: u64, wall_ns: u64, salt: u32) -> (u64, u64) {
        let own_ns = self.end_after(wall_ns.saturating_sub(self.margin_ns).max(self.left_ns), salt);
        let of = |end_ns: u64| {
            let last = later.iter().rev().find(|later| end_ns > later.after_ns);
            last.map_or(self.limit, |later| later.limit)
        };
        let [open, next] = [[end_ns, own_ns], [end_ns, own_ns].map(|end_ns| self.next_end(end_ns))]
            .map(|[counted, own]| of(counted).min(of(own)));
        (open, next)
    }

    /// The most that a window gives that is open, or follows one that is.
    fn most(&self) -> u64 {
        match &self.later {
            None => self.next_limit,
            Some(later) => later.iter().map(|later| later.limit).fold(self.limit, u64::max),
        }
    }

    fn left(&self, open: Usage, both: bool, (wall_ns, salt): (u64, u32)) -> u64 {
        if open.end_ns > self.until_ns || (both && open.end_ns == self.until_ns) {
            return 0;
        }
        let (limit, next_limit) = self.limits(open.end_ns, wall_ns, salt);
        let left = limit.saturating_sub(open.used);
        if both { left.min(next_limit.saturating_sub(open.ahead)) } else { left }
    }

    /// As many windows as share one limit.
    fn length_ns(&self, window_ns: u64) -> u64 {
        if 2 * self.margin_ns <= window_ns { window_ns } else { self.joined_ns(window_ns) }
    }

    #[cold]
    fn joined_ns(&self, window_ns: u64) -> u64 {
        window_ns * (2 * self.margin_ns).div_ceil(window_ns)
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
        FixedWindow::new(limit, Edges::Every { window_ns: 60 * S, stagger })
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
    fn later_windows_have_limits_of_their_own() {
        let later = |after_s: u64, limit| Later { after_ns: after_s * S, limit };
        for margin_ns in [0, 5 * S] {
            let w = FixedWindow { margin_ns, ..minutely(5, true) }.later(&[later(660, 2), later(720, 9)]);
            let left = |usage, at_s: u64| w.probe(usage, at_s * S, 0, 0).remaining;
            let lefts = [615, 666, 726, 786, 846].map(|at_s| left(Usage::default(), at_s));
            assert_eq!(lefts, [5, 2, 9, 9, 9]);
            let spent = [615, 666, 726].map(|at_s| w.spent_at(at_s * S, 0).used);
            assert_eq!(spent, [5, 2, 9]);
            assert_eq!(w.spent_by_any_at(615 * S).used, 9);
            // What cells share may count in a window that ends later than one's own.
            let shared = Usage { end_ns: 780 * S, used: 1, ahead: 0 };
            assert_eq!([615, 666, 726].map(|at_s| left(shared, at_s)), [4, 1, 8]);
            // A clock that is behind does not bring back what the window before gives.
            let charged = Usage { end_ns: 720 * S, used: 2, ahead: 0 };
            assert_eq!(left(charged, 655), 0);
        }
        // Near an edge there must be room in both.
        let w = FixedWindow { margin_ns: 5 * S, ..minutely(5, true) }.later(&[later(660, 2)]);
        let usage = Usage { end_ns: 660 * S, used: 1, ahead: 1 };
        assert_eq!(w.probe(usage, 654 * S, 0, 0).remaining, 4);
        assert_eq!(w.probe(usage, 656 * S, 0, 0).remaining, 1);
        let spent = w.spent_at(656 * S, 0);
        assert_eq!((spent.used, spent.ahead), (5, 2));
        let denied = w.probe(usage, 656 * S, 2, 0);
        assert_eq!((denied.allowed, denied.retry_after_ns), (false, 69 * S), "when the next one is over");
        assert_eq!(w.probe(usage, 656 * S, 6, 0).retry_after_ns, NEVER);
    }

    #[test]
    fn what_any_cell_may_have_spent_covers_every_cell() {
        for margin_ns in [0, 5 * S] {
            let w = FixedWindow { margin_ns, ..minutely(3, true) };
            let then = 615 * S;
            let all = w.spent_by_any_at(then);
            for salt in (0..1 << 16).map(|salt: u32| salt.wrapping_mul(0x9E37_79B9)) {
                let own = w.spent_at(then, salt);
                let over_ns = own.end_ns + margin_ns;
                assert!(!w.probe(all, over_ns - 1, 1, salt).allowed, "{salt}: open until {over_ns}");
            }
            assert!(w.is_idle(all, then + 60 * S + 2 * margin_ns), "no longer than it must");
        }
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
    fn windows_that_begin_later_give_nothing_by_these_numbers() {
        for margin_ns in [0, 5 * S] {
            let w = FixedWindow { margin_ns, ..minutely(3, false) }.until(660 * S);
            let mut usage = w.charge(Usage::default(), 645 * S, 1, 0);
            assert_eq!(w.probe(usage, 650 * S, 0, 0).remaining, 2, "the one that is open");
            assert_eq!(
                w.probe(usage, 657 * S, 1, 0).allowed,
                margin_ns == 0,
                "it may be made in the next one"
            );
            assert_eq!(w.probe(usage, 666 * S, 0, 0).remaining, 0);
            assert_eq!(w.probe(Usage::default(), 700 * S, 0, 0).remaining, 0);
            // Other numbers go on with what was charged.
            let anew = FixedWindow { margin_ns, ..minutely(4, false) };
            assert_eq!(anew.probe(usage, 650 * S, 0, 0).remaining, 3);
            usage = anew.charge(usage, 666 * S, 1, 0);
            assert_eq!(anew.probe(usage, 667 * S, 0, 0).remaining, 3);
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
