//! Windows with fixed edges: each window has its own limit, and nothing is carried over but debts, if the
//! limit says so ([`crate::carry`]).
//!
//! A cell keeps the end of the window that it last charged, and the units charged in that window. Every
//! later `now` before that end is in the same window, whatever the clock did in between. So **a window
//! never reopens**: a clock that steps back finds the window that it left.
//!
//! **Clocks that differ.** Several regions may charge pieces of one limit, each by a clock that is at most
//! `margin` off. A unit that a region charges to a window may then really be spent in the window beside it.
//! So, within a margin of an edge, a charge needs room in both windows that meet there, and is charged to
//! both. Then every unit spent in a window of true time is charged to that window. Proof: from `S` to `E`,
//! clocks show at least `S − margin` and less than `E + margin`, and at all those times charges count in
//! the window from `S` to `E`. A cell with a margin keeps one more word: the units charged *ahead*, in the
//! window that begins where the cell's own window ends. The cell leaves a window one margin after its end.
//!
//! **A margin that grows** would reopen windows that were left. True time was surely past their end when
//! they were left, and still is. So a window that was *left* stays closed under every later margin.

use std::sync::Arc;

use crate::{
    MARGIN_NS_MAX,
    calendar::Calendar,
    verdict::{NEVER, Verdict},
};

/// A wall clock is set back at once only by more than this, in nanoseconds. A smaller error is slewed, so
/// that the clock never goes back.
pub const SET_BACK_NS: u64 = 3_000_000_000;

/// No window is longer than this, in nanoseconds: a year, and some weeks for zones that change.
const LONGEST_NS: u64 = 400 * 86_400 * 1_000_000_000;

/// The times at which windows begin and end on the wall clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edges {
    /// Every `window_ns`, counted from the Unix epoch.
    Every {
        /// Length of a window in nanoseconds, above 0.
        window_ns: u64,
        /// Whether each cell has its own offset, so that not all cells reset at once.
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
    /// Units in the window that follows the open one. The number differs from `limit` only if a region has
    /// other rights there.
    pub next_limit: u64,
    /// Where windows begin and end.
    pub edges: Edges,
    /// How far wall clocks may be off, in nanoseconds: at most [`MARGIN_NS_MAX`]. 0 if a single clock is
    /// read. Windows shorter than two margins cannot be told apart, so as many of them as fill two margins
    /// share one limit.
    pub margin_ns: u64,
    /// Windows that ended by this wall clock time, in nanoseconds, are closed for good, even if an earlier
    /// margin closed them: true time is past their end. 0 if no such window is known.
    pub left_ns: u64,
    /// Windows that begin at this wall clock time, in nanoseconds, or later give nothing under this limit:
    /// another limit replaces it in time. The time is an edge. `u64::MAX` if there is no such time.
    pub until_ns: u64,
    /// Limits by window end, for cells that have their own edges and windows whose limits differ. The times
    /// ascend. The last entry whose time is before a window's end counts for that window; `limit` counts if
    /// there is none.
    pub later: Option<Arc<Vec<Later>>>,
    /// Whether units that are owed when a window ends count as spent in the next ([`crate::carry`]).
    pub carries: bool,
}

/// The limit of windows that end after a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Later {
    /// The time, on the wall clock in nanoseconds.
    pub after_ns: u64,
    /// Units in each of those windows.
    pub limit: u64,
}

/// The state of a cell: the end of its window (wall clock, nanoseconds) and the units charged in the
/// window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// End of the window, exclusive. 0 if nothing was ever charged.
    pub end_ns: u64,
    /// Units charged in the window.
    pub used: u64,
    /// Units charged in the window that begins at `end_ns`. 0 without a margin.
    pub ahead: u64,
    /// Units charged in the window though they did not fit, and those carried into it. 0 if the limit carries
    /// no debts. What is owed now may be less.
    pub owed: u64,
}

impl Usage {
    /// The usage in a cell's state.
    #[inline]
    pub fn of(state: &[u64]) -> Self {
        match *state {
            [end_ns, used, ahead, owed, ..] => Self { end_ns, used, ahead, owed },
            [end_ns, used, ahead] => Self { end_ns, used, ahead, owed: 0 },
            [end_ns, used] => Self { end_ns, used, ahead: 0, owed: 0 },
            _ => Self::default(),
        }
    }

    /// A usage that owes no less than either of two cells, whose windows may end at different times.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        let (used, ahead) = (self.used.max(other.used), self.ahead.max(other.ahead));
        let (end_ns, owed) = (self.end_ns.max(other.end_ns), self.owed.max(other.owed));
        if self.end_ns == other.end_ns {
            return Self { end_ns, used, ahead, owed };
        }
        // A unit that one cell counts in a window may be in the other cell's next window.
        let most = used.max(ahead);
        Self { end_ns, used: most, ahead: most, owed }
    }

    /// The state of a cell that carries debts. Other cells keep its first words ([`FixedWindow::words`]).
    pub const fn to_state(self) -> [u64; 4] {
        [self.end_ns, self.used, self.ahead, self.owed]
    }
}

impl FixedWindow {
    /// A limit for every window, on one clock.
    pub const fn new(limit: u64, edges: Edges) -> Self {
        let (left_ns, until_ns) = (0, u64::MAX);
        Self { limit, next_limit: limit, edges, margin_ns: 0, left_ns, until_ns, later: None, carries: false }
    }

    /// The number of words in a state.
    pub const fn words(&self) -> usize {
        match (self.carries, self.margin_ns) {
            (true, _) => 4,
            (false, 0) => 2,
            (false, _) => 3,
        }
    }

    /// A piece of this limit, which one of several clocks enforces. All the clocks are at most `margin_ns`
    /// off.
    #[must_use]
    pub fn local(&self, units: u64, margin_ns: u64) -> Self {
        assert!(margin_ns <= MARGIN_NS_MAX, "no clock is as far off as {margin_ns} ns");
        Self { margin_ns, carries: self.carries, ..Self::new(units, self.edges.clone()) }
    }

    /// This limit with [`FixedWindow::left_ns`]: windows that ended by `left_ns` never reopen.
    #[must_use]
    pub fn after(self, left_ns: u64) -> Self {
        Self { left_ns, ..self }
    }

    /// This limit with [`FixedWindow::until_ns`]: windows that begin at the edge `until_ns` or later give
    /// nothing.
    #[must_use]
    pub fn until(self, until_ns: u64) -> Self {
        Self { until_ns, ..self }
    }

    /// This limit with [`FixedWindow::later`]: windows that end after the given times have other limits.
    #[must_use]
    pub fn later(self, later: &[Later]) -> Self {
        Self { later: (!later.is_empty()).then(|| Arc::new(later.to_vec())), ..self }
    }

    /// Whether `cost` fits in the window that is open for this cell. Within a margin of the window's end,
    /// `cost` must fit in the next window, too.
    #[inline]
    pub fn probe(&self, usage: Usage, wall_ns: u64, cost: u64, salt: u32) -> Verdict {
        if self.margin_ns > 0 {
            return self.probe_both(usage, wall_ns, cost, salt);
        }
        self.probe_one(usage, wall_ns, cost, salt)
    }

    fn probe_one(&self, usage: Usage, wall_ns: u64, cost: u64, salt: u32) -> Verdict {
        let open = self.open_one(usage, wall_ns, salt);
        let Usage { end_ns, used, owed, .. } = open;
        let limit = self.limits(end_ns, wall_ns, salt).0;
        let left = if end_ns <= self.until_ns { limit.saturating_sub(used) } else { 0 };
        if owed > 0 && used > limit {
            return self.probe_owing(open, wall_ns, cost);
        }
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
        let left = self.left(open, both, wall_ns, salt);
        if open.owed > 0 && self.debt_of(open, wall_ns, salt) > 0 {
            return self.probe_owing(open, wall_ns, cost);
        }
        let allowed = cost <= left;
        let ahead = open.ahead + if allowed && both { cost } else { 0 };
        // How long until the cell leaves the open window, and the next one.
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
        let open = self.open_one(usage, wall_ns, salt);
        let charged = Usage { used: open.used + cost, ..open };
        let owed = if self.carries { self.owed(open, charged, wall_ns, salt) } else { 0 };
        // Cells that have their own edges may share a usage, which counts until the last of their windows
        // ends.
        Usage { end_ns: open.end_ns.max(self.end_after(wall_ns, salt)), owed, ..charged }
    }

    #[inline(never)]
    fn charge_both(&self, usage: Usage, wall_ns: u64, cost: u64, salt: u32) -> Usage {
        let open = self.open_both(usage, wall_ns, salt);
        let both = self.is_both(open.end_ns, wall_ns, salt);
        let ahead = open.ahead + if both { cost } else { 0 };
        let charged = Usage { used: open.used + cost, ahead, ..open };
        let owed = if self.carries { self.owed(open, charged, wall_ns, salt) } else { 0 };
        Usage { owed, ..charged }
    }

    /// Units that the open window was charged beyond its limit. Within a margin of the window's end, the units
    /// of the next window count too, if they are more.
    pub fn debt(&self, usage: Usage, wall_ns: u64, salt: u32) -> u64 {
        self.debt_of(self.open(usage, wall_ns, salt), wall_ns, salt)
    }

    /// As [`FixedWindow::debt`], of a usage that is open.
    pub(crate) fn debt_of(&self, open: Usage, wall_ns: u64, salt: u32) -> u64 {
        let (limit, next_limit) = self.limits(open.end_ns, wall_ns, salt);
        let both = self.margin_ns > 0 && self.is_both(open.end_ns, wall_ns, salt);
        let ahead = if both { open.ahead.saturating_sub(next_limit) } else { 0 };
        open.used.saturating_sub(limit).max(ahead)
    }

    /// Takes back `units` that were charged at `charged_ns`. Returns the usage, and how many units came
    /// back: none if the window of that charge is no longer open.
    pub fn refund(&self, usage: Usage, charged_ns: u64, units: u64, wall_ns: u64, salt: u32) -> (Usage, u64) {
        let mut open = self.open(usage, wall_ns, salt);
        let end_ns = self.first_end(charged_ns, salt);
        let both = self.margin_ns > 0 && self.is_ahead(end_ns, charged_ns);
        // A cell never goes back to an earlier window. So a cell that is now in this window, or in the one
        // before, was in no later window at the charge. A charge made after the clock stepped back stays
        // spent, unless it was near the edge: the later window counted such a charge in any case.
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

    /// Takes back `units` of the open window, whenever they were charged in it, but none that count in the next
    /// window too. Returns the usage, and how many units came back.
    pub(crate) fn give_back(&self, usage: Usage, units: u64, wall_ns: u64, salt: u32) -> (Usage, u64) {
        let mut open = self.open(usage, wall_ns, salt);
        let back = units.min(open.used.saturating_sub(open.ahead));
        if back == 0 {
            return (usage, 0);
        }
        open.used -= back;
        (open, back)
    }

    /// The usage of a cell that has spent every window that is open at `wall_ns`.
    pub fn spent_at(&self, wall_ns: u64, salt: u32) -> Usage {
        let end_ns = self.first_end(wall_ns, salt);
        let both = self.margin_ns > 0 && self.is_ahead(end_ns, wall_ns);
        let (limit, next_limit) = self.limits(end_ns, wall_ns, salt);
        Usage { end_ns, used: limit, ahead: if both { next_limit } else { 0 }, owed: 0 }
    }

    /// The usage of cells that have their own edges and share it, if each has spent every window that is
    /// open for it at `wall_ns`. The usage counts until the last of those windows ends.
    pub fn spent_by_any_at(&self, wall_ns: u64) -> Usage {
        match self.edges {
            Edges::Every { window_ns, stagger: true } => {
                let latest_ns = wall_ns + self.margin_ns;
                let end_ns = latest_ns + self.length_ns(window_ns);
                Usage { end_ns, used: self.most(), ..Usage::default() }
            }
            _ => self.spent_at(wall_ns, 0),
        }
    }

    /// Whether the cell's windows are over or unused, and nothing is carried into the window that is open.
    pub fn is_idle(&self, usage: Usage, wall_ns: u64) -> bool {
        let over = |end_ns: u64| !self.is_open(end_ns, wall_ns);
        (usage.used == 0 || over(usage.end_ns))
            && (usage.ahead == 0 || over(self.next_end(usage.end_ns)))
            && (usage.owed == 0 || !over(usage.end_ns) || !self.is_carried(usage, wall_ns))
    }

    /// The end of the older window that counts a charge at `wall_ns`. Rights in windows are named by this
    /// end.
    pub fn older_end(&self, state: &[u64], wall_ns: u64, salt: u32) -> u64 {
        self.open(Usage::of(state), wall_ns, salt).end_ns
    }

    /// Whether `end_ns` is an end of this cell's windows, rather than of another cell's.
    pub fn is_edge(&self, end_ns: u64, salt: u32) -> bool {
        end_ns > 0 && self.end_after(end_ns - 1, salt) == end_ns
    }

    /// A usage that this cell shared with others, as a usage of the cell's own windows. The result holds
    /// all that the cell may have charged to the shared usage.
    ///
    /// Every charge moves the shared end to at least the end of the window that counts the charge, except
    /// for the next window, which `ahead` counts. So `used` holds what the cell charged in a window that
    /// ends no later than the shared end. `ahead` holds what the cell charged in a window that ends later.
    #[must_use]
    pub fn apart(&self, shared: Usage, wall_ns: u64, salt: u32) -> Usage {
        let Edges::Every { window_ns, stagger: true } = self.edges else { return shared };
        if self.is_idle(shared, wall_ns) {
            return Usage::default();
        }
        let Usage { end_ns, ahead, .. } = shared;
        let first_ns = self.end_after(wall_ns.saturating_sub(self.margin_ns).max(self.left_ns), salt);
        // The last window of this cell that ends no later than the shared usage.
        let last_ns = self.end_after(end_ns, salt).saturating_sub(self.length_ns(window_ns));
        if last_ns < first_ns {
            return Usage { end_ns: first_ns, used: ahead, ahead: 0, ..shared };
        }
        // A clock that was set back finds the window that it left.
        Usage { end_ns: last_ns, ..shared }
    }

    /// The usage at `wall_ns`, for the older of the windows that count a charge then.
    pub fn open(&self, usage: Usage, wall_ns: u64, salt: u32) -> Usage {
        if self.margin_ns > 0 {
            return self.open_both(usage, wall_ns, salt);
        }
        self.open_one(usage, wall_ns, salt)
    }

    /// The usage at `wall_ns` without a margin, where one window counts a charge.
    #[inline]
    fn open_one(&self, usage: Usage, wall_ns: u64, salt: u32) -> Usage {
        if wall_ns < usage.end_ns {
            return Usage { ahead: 0, ..usage };
        }
        if usage.owed > 0 && self.carries {
            return self.carried(usage, wall_ns, salt, None);
        }
        Usage { end_ns: self.end_after(wall_ns, salt), ..Usage::default() }
    }

    /// Cells that have their own edges may share a usage. So a window ends no earlier than this cell's own
    /// window, and units ahead count for as long as any window that began before can last.
    fn open_both(&self, usage: Usage, wall_ns: u64, salt: u32) -> Usage {
        let is_open = self.is_open(usage.end_ns, wall_ns);
        if is_open && !self.is_staggered() {
            return usage;
        }
        let end_ns = self.end_after(wall_ns.saturating_sub(self.margin_ns).max(self.left_ns), salt);
        if is_open {
            return Usage { end_ns: usage.end_ns.max(end_ns), ..usage };
        }
        if usage.owed > 0 && self.carries {
            return self.carried(usage, wall_ns, salt, None);
        }
        if usage.ahead > 0 {
            let next_end_ns = self.next_end(usage.end_ns);
            if self.is_open(next_end_ns, wall_ns) {
                return Usage { end_ns: next_end_ns.max(end_ns), used: usage.ahead, ..Usage::default() };
            }
        }
        Usage { end_ns, ..Usage::default() }
    }

    /// Converts `state`, a state under another margin, to a usage under this margin, at `wall_ns`. Near an
    /// edge, units that a smaller margin did not charge ahead count as charged ahead. Without a margin
    /// there is no word for units ahead, so they count in one long window.
    pub(crate) fn adopt(&self, margin_ns: u64, state: &[u64], wall_ns: u64) -> Usage {
        let mut usage = Usage::of(state);
        if !self.carries {
            usage.owed = 0;
        }
        let margin_ns = if state.len() < 3 { 0 } else { margin_ns };
        let is_near = self.is_ahead(usage.end_ns, wall_ns) && wall_ns < usage.end_ns + self.margin_ns;
        if self.margin_ns > margin_ns && is_near {
            return Usage { ahead: usage.ahead.max(usage.used), ..usage };
        }
        if self.margin_ns == 0 && usage.ahead > 0 {
            let used = if wall_ns < usage.end_ns { usage.used.max(usage.ahead) } else { usage.ahead };
            return Usage { end_ns: self.next_end(usage.end_ns), used, ahead: 0, ..usage };
        }
        usage
    }

    /// The wall clock time when nothing charged by `wall_ns` counts any more. For cells without their own
    /// edges.
    pub(crate) fn over_at(&self, wall_ns: u64) -> u64 {
        let end_ns = self.first_end(wall_ns, 0);
        let both = self.margin_ns > 0 && self.is_ahead(end_ns, wall_ns);
        self.margin_ns + if both { self.next_end(end_ns) } else { end_ns }
    }

    /// Nanoseconds after which a cell that is charged no more is surely idle.
    pub(crate) fn horizon_ns(&self) -> u64 {
        let longest_ns = match self.edges {
            Edges::Every { window_ns, .. } => self.length_ns(window_ns),
            // The longest year, and a day for zones that cross the date line.
            Edges::Calendar(_) => 367 * 86_400 * 1_000_000_000,
        };
        longest_ns + 2 * self.margin_ns
    }

    /// The end of the window that contains `wall_ns`: always later than `wall_ns`.
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

    /// The begin of the window that ends at `end_ns`.
    pub fn begins(&self, end_ns: u64, salt: u32) -> u64 {
        match &self.edges {
            Edges::Every { window_ns, .. } => end_ns.saturating_sub(self.length_ns(*window_ns)),
            Edges::Calendar(_) => {
                // The first time whose window ends at `end_ns`.
                let (mut before, mut within) = (end_ns.saturating_sub(LONGEST_NS), end_ns.saturating_sub(1));
                while within - before > 1 {
                    let middle = before + (within - before) / 2;
                    if self.end_after(middle, salt) == end_ns { within = middle } else { before = middle }
                }
                within
            }
        }
    }

    /// The usage after the wall clock was set back by more than a window's length. Units in a window that
    /// has not begun were really spent now or before, so they count in the open window.
    ///
    /// Units of the window after the open one stay there, and the open window gives units now. If the wall
    /// clock is wrong now and was right before, that later window is the one open in true time.
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
        Usage { end_ns, used, ahead: if both { used } else { 0 }, ..usage }
    }

    /// Whether a clock with this margin that shows `wall_ns` may be in a window that ends at `end_ns`.
    pub(crate) const fn is_open(&self, end_ns: u64, wall_ns: u64) -> bool {
        wall_ns < end_ns + self.margin_ns && end_ns > self.left_ns
    }

    /// The end of the older window that a clock showing `wall_ns` may be in. Windows that were left do not
    /// matter here.
    pub fn first_end(&self, wall_ns: u64, salt: u32) -> u64 {
        self.end_after(wall_ns.saturating_sub(self.margin_ns), salt)
    }

    /// The end of the window that begins at `end_ns`.
    pub(crate) fn next_end(&self, end_ns: u64) -> u64 {
        match &self.edges {
            Edges::Every { window_ns, .. } => end_ns + self.length_ns(*window_ns),
            Edges::Calendar(calendar) => calendar.end_after(end_ns),
        }
    }

    /// Whether a charge at `wall_ns` may really fall in a window that lasts beyond `end_ns`, the end of the
    /// open window. If cells with their own edges share a usage, such a window may have begun before
    /// `end_ns`.
    fn is_both(&self, end_ns: u64, wall_ns: u64, salt: u32) -> bool {
        if self.is_staggered() {
            self.end_after(wall_ns + self.margin_ns, salt) > end_ns
        } else {
            self.is_ahead(end_ns, wall_ns)
        }
    }

    /// Whether a charge at `wall_ns` may really fall in the window that begins at `end_ns`.
    const fn is_ahead(&self, end_ns: u64, wall_ns: u64) -> bool {
        wall_ns + self.margin_ns >= end_ns
    }

    const fn is_staggered(&self) -> bool {
        matches!(self.edges, Edges::Every { stagger: true, .. })
    }

    /// The limits of the window that ends at `end_ns` and of the next one. A clock behind the clock that
    /// charged last is in an earlier window, and other cells may have moved `end_ns` past this cell's own
    /// end. In both cases the smaller limit counts.
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
        let of = |end_ns: u64| self.limit_by(later, end_ns);
        let [open, next] = [[end_ns, own_ns], [end_ns, own_ns].map(|end_ns| self.next_end(end_ns))]
            .map(|[counted, own]| of(counted).min(of(own)));
        (open, next)
    }

    /// The limit of the window that ends at `end_ns`, by `later`.
    pub(crate) fn limit_by(&self, later: &[Later], end_ns: u64) -> u64 {
        let last = later.iter().rev().find(|later| end_ns > later.after_ns);
        last.map_or(self.limit, |later| later.limit)
    }

    /// The largest limit of any window that is open or follows an open one.
    pub(crate) fn most(&self) -> u64 {
        match &self.later {
            None => self.next_limit,
            Some(later) => later.iter().map(|later| later.limit).fold(self.limit, u64::max),
        }
    }

    /// Units that are left in the open window, and in the next one if both count.
    fn left(&self, open: Usage, both: bool, wall_ns: u64, salt: u32) -> u64 {
        if open.end_ns > self.until_ns || (both && open.end_ns == self.until_ns) {
            return 0;
        }
        let (limit, next_limit) = self.limits(open.end_ns, wall_ns, salt);
        let left = limit.saturating_sub(open.used);
        if both { left.min(next_limit.saturating_sub(open.ahead)) } else { left }
    }

    /// The length of a window, or of as many windows as share one limit.
    pub(crate) fn length_ns(&self, window_ns: u64) -> u64 {
        if 2 * self.margin_ns <= window_ns { window_ns } else { self.joined_ns(window_ns) }
    }

    #[cold]
    fn joined_ns(&self, window_ns: u64) -> u64 {
        window_ns * (2 * self.margin_ns).div_ceil(window_ns)
    }
}

/// An offset below the window's length. The cells' offsets spread evenly by salt.
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
    fn later_windows_may_have_their_own_limits() {
        let later = |after_s: u64, limit| Later { after_ns: after_s * S, limit };
        for margin_ns in [0, 5 * S] {
            let w = FixedWindow { margin_ns, ..minutely(5, true) }.later(&[later(660, 2), later(720, 9)]);
            let left = |usage, at_s: u64| w.probe(usage, at_s * S, 0, 0).remaining;
            let lefts = [615, 666, 726, 786, 846].map(|at_s| left(Usage::default(), at_s));
            assert_eq!(lefts, [5, 2, 9, 9, 9]);
            let spent = [615, 666, 726].map(|at_s| w.spent_at(at_s * S, 0).used);
            assert_eq!(spent, [5, 2, 9]);
            assert_eq!(w.spent_by_any_at(615 * S).used, 9);
            // A shared usage may count in a window that ends later than this cell's own.
            let shared = Usage { end_ns: 780 * S, used: 1, ..Usage::default() };
            assert_eq!([615, 666, 726].map(|at_s| left(shared, at_s)), [4, 1, 8]);
            // A clock that is behind does not bring back the limit of the window before.
            let charged = Usage { end_ns: 720 * S, used: 2, ..Usage::default() };
            assert_eq!(left(charged, 655), 0);
        }
        // Near an edge, a charge needs room in both windows.
        let w = FixedWindow { margin_ns: 5 * S, ..minutely(5, true) }.later(&[later(660, 2)]);
        let usage = Usage { end_ns: 660 * S, used: 1, ahead: 1, owed: 0 };
        assert_eq!(w.probe(usage, 654 * S, 0, 0).remaining, 4);
        assert_eq!(w.probe(usage, 656 * S, 0, 0).remaining, 1);
        let spent = w.spent_at(656 * S, 0);
        assert_eq!((spent.used, spent.ahead), (5, 2));
        let denied = w.probe(usage, 656 * S, 2, 0);
        assert_eq!((denied.allowed, denied.retry_after_ns), (false, 69 * S), "when the next one is over");
        assert_eq!(w.probe(usage, 656 * S, 6, 0).retry_after_ns, NEVER);
    }

    #[test]
    fn the_spent_state_for_any_cell_covers_every_cell() {
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
    fn a_window_limit_gives_nothing_in_windows_after_its_end() {
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
            // Another limit takes over what was charged.
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
    fn the_edge_of_a_window_belongs_to_the_next_one() {
        let w = minutely(1, false);
        assert_eq!(w.end_after(60 * S - 1, 0), 60 * S);
        assert_eq!(w.end_after(60 * S, 0), 120 * S);
        assert_eq!(w.end_after(0, 0), 60 * S);
    }
}
