//! How one limit decides, and the state that it keeps in a cell.

use crate::{
    DRIFT_PPM_MAX, Now, Part,
    meter::Meter,
    sliding::{APPROXIMATE_UNITS_MAX, SlidingApproximate, SlidingLog, SlidingSlots},
    time::CLOCK_END,
    verdict::{NEVER, Verdict},
    window::{Edges, FixedWindow, Later, Usage},
};

/// A state that fits in the cell itself.
pub type Inline = [u64; 2];

/// An algorithm and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// A bucket that refills at a rate, up to a burst.
    TokenBucket(Meter),
    /// A bucket that lets units out at a constant rate. More units wait in a queue.
    LeakyBucket(Meter),
    /// A limit for every window with fixed edges. Calendar quotas use this variant, too.
    FixedWindow(FixedWindow),
    /// A limit for every stretch of a window's length, exact.
    SlidingLog(SlidingLog),
    /// A limit for every stretch of a window's length, counted in slots and never exceeded.
    SlidingSlots(SlidingSlots),
    /// The weighted pair of counters, which is not a bound.
    SlidingApproximate(SlidingApproximate),
}

/// A cell's state. An empty slice, or all zeros, is a cell that was never charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Two words, in the cell.
    Inline(Inline),
    /// As many words as the algorithm needs, beside the cell.
    Heap(Vec<u64>),
}

impl State {
    /// The state, wherever it is kept.
    pub fn as_slice(&self) -> &[u64] {
        match self {
            Self::Inline(state) => state,
            Self::Heap(state) => state,
        }
    }
}

impl Algorithm {
    /// The state of a cell that was never charged.
    pub fn fresh(&self) -> State {
        if self.is_inline() { State::Inline([0, 0]) } else { State::Heap(Vec::new()) }
    }

    /// Whether the state fits in the cell itself.
    pub const fn is_inline(&self) -> bool {
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::SlidingApproximate(_) => true,
            // The units charged ahead take a third word, and those owed a fourth.
            Self::FixedWindow(window) => window.words() == 2,
            Self::SlidingLog(_) | Self::SlidingSlots(_) => false,
        }
    }

    /// Whether `cost` fits, without a charge. `salt` is the cell's own number, which staggers windows.
    #[inline]
    pub fn probe(&self, state: &[u64], now: Now, cost: u64, salt: u32) -> Verdict {
        match self {
            Self::TokenBucket(meter) => meter.probe(tat(state), now.steady_ns, cost),
            Self::LeakyBucket(meter) => {
                let verdict = meter.probe(tat(state), now.steady_ns, cost);
                let wait = if verdict.allowed { meter.delay_ns(tat(state), now.steady_ns) } else { 0 };
                Verdict { delay_ns: wait, ..verdict }
            }
            Self::FixedWindow(window) => window.probe(Usage::of(state), now.wall_ns, cost, salt),
            Self::SlidingLog(log) => log.probe(state, now.steady_ns, cost),
            Self::SlidingSlots(slots) => slots.probe(state, now.steady_ns, cost),
            Self::SlidingApproximate(pair) => pair.probe(inline(state), now.steady_ns, cost),
        }
    }

    /// Charges a cost that [`Algorithm::probe`] allowed at the same `now`. The state is inline.
    #[inline]
    pub fn charge_inline(&self, state: &mut Inline, now: Now, cost: u64, salt: u32) {
        if cost == 0 {
            return;
        }
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => {
                *state = split(meter.charge(tat(state), now.steady_ns, cost));
            }
            Self::FixedWindow(window) => {
                assert!(window.words() == 2, "kept on the heap");
                let Usage { end_ns, used, .. } = window.charge(Usage::of(state), now.wall_ns, cost, salt);
                *state = [end_ns, used];
            }
            Self::SlidingApproximate(pair) => *state = pair.charge(*state, now.steady_ns, cost),
            Self::SlidingLog(_) | Self::SlidingSlots(_) => unreachable!("kept on the heap"),
        }
    }

    /// Charges a cost that [`Algorithm::probe`] allowed at the same `now`. The state is on the heap.
    pub fn charge_heap(&self, state: &mut Vec<u64>, now: Now, cost: u64, salt: u32) {
        if cost == 0 {
            return;
        }
        match self {
            Self::SlidingLog(log) => log.charge(state, now.steady_ns, cost),
            Self::SlidingSlots(slots) => slots.charge(state, now.steady_ns, cost),
            Self::FixedWindow(window) if !self.is_inline() => {
                let usage = window.charge(Usage::of(state), now.wall_ns, cost, salt);
                rewrite(state, &usage.to_state()[..window.words()]);
            }
            Self::TokenBucket(_)
            | Self::LeakyBucket(_)
            | Self::FixedWindow(_)
            | Self::SlidingApproximate(_) => {
                if let Ok(state) = <&mut Inline>::try_from(state.as_mut_slice()) {
                    return self.charge_inline(state, now, cost, salt);
                }
                let mut kept = inline(state);
                self.charge_inline(&mut kept, now, cost, salt);
                rewrite(state, &kept);
            }
        }
    }

    /// This limit's algorithm as one region enforces it with a piece of the limit. **If the pieces sum to
    /// no more than the limit, all of them together admit no more than the limit**. This holds for steady
    /// clocks that gain at most `drift_ppm` on true time, and wall clocks that are at most `margin_ns` off.
    /// Meters are slowed and sliding windows stretched by the drift. Windows with edges share a margin
    /// around each edge ([`FixedWindow`]). The variant stays: a small piece of a log is a log, and a piece
    /// of slots is slots. A piece of no units denies every cost above 0.
    ///
    /// A piece of a bucket has at least one part of its rate.
    #[must_use]
    pub fn local(&self, part: Part, drift_ppm: u32, margin_ns: u64) -> Self {
        assert!(drift_ppm <= DRIFT_PPM_MAX, "no clock drifts as much as {drift_ppm} ppm");
        let limit = part.units;
        match self {
            Self::TokenBucket(meter) => Self::TokenBucket(meter.local(part, drift_ppm)),
            Self::LeakyBucket(meter) => Self::LeakyBucket(meter.local(part, drift_ppm)),
            Self::FixedWindow(window) => Self::FixedWindow(window.local(limit, margin_ns)),
            Self::SlidingLog(log) => {
                Self::SlidingLog(SlidingLog { limit, window_ns: stretched_ns(log.window_ns, drift_ppm) })
            }
            Self::SlidingSlots(slots) => {
                let window_ns = stretched_ns(slots.window_ns, drift_ppm);
                Self::SlidingSlots(SlidingSlots { limit, window_ns, slots: slots.slots })
            }
            Self::SlidingApproximate(pair) => Self::SlidingApproximate(SlidingApproximate {
                limit: limit.min(APPROXIMATE_UNITS_MAX),
                window_ns: stretched_ns(pair.window_ns, drift_ppm),
            }),
        }
    }

    /// A fraction of this limit, on the same clock: `units` of its units, and for a bucket the rate in
    /// proportion. **Fractions whose units sum to no more than the limit's admit no more than the limit
    /// together.**
    #[must_use]
    pub fn fraction(&self, units: u64) -> Self {
        match self {
            Self::TokenBucket(meter) => Self::TokenBucket(meter.fraction(units)),
            Self::LeakyBucket(meter) => Self::LeakyBucket(meter.fraction(units)),
            _ => self.local(Part { rate: 0, units }, 0, 0),
        }
    }

    /// This algorithm with [`FixedWindow::left_ns`]: windows with edges that ended by `left_ns` never
    /// reopen.
    #[must_use]
    pub fn after(self, left_ns: u64) -> Self {
        match self {
            Self::FixedWindow(window) => Self::FixedWindow(window.after(left_ns)),
            other => other,
        }
    }

    /// This algorithm with [`FixedWindow::until_ns`]: windows with edges that begin at `until_ns` or later
    /// give nothing.
    #[must_use]
    pub fn until(self, until_ns: u64) -> Self {
        match self {
            Self::FixedWindow(window) => Self::FixedWindow(window.until(until_ns)),
            other => other,
        }
    }

    /// This algorithm with [`FixedWindow::later`]: windows with edges that end after the given times have
    /// other limits.
    #[must_use]
    pub fn later(self, later: &[Later]) -> Self {
        match self {
            Self::FixedWindow(window) => Self::FixedWindow(window.later(later)),
            other => other,
        }
    }

    /// Whether the algorithm gives units back at a rate. A piece then has a part of the rate.
    pub const fn has_rate(&self) -> bool {
        matches!(self, Self::TokenBucket(_) | Self::LeakyBucket(_))
    }

    /// Whether a state means the same under both algorithms. Their units may differ.
    pub fn means_as(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::TokenBucket(own) | Self::LeakyBucket(own),
                Self::TokenBucket(other) | Self::LeakyBucket(other),
            ) => own.has_rate_of(other),
            (Self::FixedWindow(own), Self::FixedWindow(other)) => {
                (own.margin_ns, own.left_ns, own.carries, &own.edges)
                    == (other.margin_ns, other.left_ns, other.carries, &other.edges)
            }
            (Self::SlidingLog(own), Self::SlidingLog(other)) => own.window_ns == other.window_ns,
            (Self::SlidingSlots(own), Self::SlidingSlots(other)) => {
                (own.window_ns, own.slots) == (other.window_ns, other.slots)
            }
            (Self::SlidingApproximate(own), Self::SlidingApproximate(other)) => {
                own.window_ns == other.window_ns
            }
            _ => false,
        }
    }

    /// Whether this bucket gives units back more slowly than the other. False for all other algorithms.
    pub fn is_slower(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::TokenBucket(own) | Self::LeakyBucket(own),
                Self::TokenBucket(other) | Self::LeakyBucket(other),
            ) => own.is_slower(other),
            _ => false,
        }
    }

    /// Nanoseconds for which spent units still count after their piece was taken away. Nobody else may
    /// spend the piece until then. This is 0 for a bucket, whose debt moves with the piece, and for a
    /// window with edges, whose piece belongs to that window only.
    pub fn lingers_ns(&self) -> u64 {
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::FixedWindow(_) => 0,
            Self::SlidingLog(_) | Self::SlidingSlots(_) | Self::SlidingApproximate(_) => self.horizon_ns(),
        }
    }

    /// Units that a bucket owes, rounded up. 0 for algorithms without a rate.
    pub fn owed(&self, state: &[u64], now: Now) -> u64 {
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => {
                meter.owed_at_most(tat(state), now.steady_ns)
            }
            _ => 0,
        }
    }

    /// Units that could be charged now. 0 if more is owed than the limit holds.
    pub fn available(&self, state: &[u64], now: Now, salt: u32) -> u64 {
        self.probe(state, now, 0, salt).remaining
    }

    /// Grows a bucket's debt by `units`, whether they fit or not: a piece arrived with its debt. Other
    /// algorithms do nothing, because their pieces arrive unused.
    pub fn owe(&self, state: &mut Vec<u64>, now: Now, units: u64) {
        if self.has_rate() {
            let mut kept = inline(state);
            self.owe_inline(&mut kept, now, units);
            rewrite(state, &kept);
        }
    }

    /// As [`Algorithm::owe`], for a state kept inline.
    pub fn owe_inline(&self, state: &mut Inline, now: Now, units: u64) {
        if let Self::TokenBucket(meter) | Self::LeakyBucket(meter) = self {
            *state = split(meter.owe(tat(state), now.steady_ns, units));
        }
    }

    /// Shrinks a bucket's debt by `units`, down to none: the debt left with a piece. Other algorithms do
    /// nothing.
    pub fn forgive(&self, state: &mut Vec<u64>, now: Now, units: u64) {
        if self.has_rate() {
            let mut kept = inline(state);
            self.forgive_inline(&mut kept, now, units);
            rewrite(state, &kept);
        }
    }

    /// As [`Algorithm::forgive`], for a state kept inline.
    pub fn forgive_inline(&self, state: &mut Inline, now: Now, units: u64) {
        if let Self::TokenBucket(meter) | Self::LeakyBucket(meter) = self {
            *state = split(meter.forgive(tat(state), now.steady_ns, units));
        }
    }

    /// Gives back `units` of a charge that was made at `charged` and not used. Returns the number of units
    /// that really came back. A window gets them while it is open, and a sliding window while it contains
    /// the charge. A bucket gets what the rate of the whole limit, `global`, has not given back since the
    /// charge. If a bucket that has long refilled got the full cost back, it could be spent twice at once.
    /// If the charge may no longer count, nothing comes back.
    pub fn refund(
        &self,
        state: &mut Vec<u64>,
        charged: Now,
        units: u64,
        now: Now,
        global: &Self,
        salt: u32,
    ) -> u64 {
        match self {
            Self::SlidingLog(log) => log.refund(state, charged.steady_ns, units, now.steady_ns),
            Self::SlidingSlots(slots) => slots.refund(state, charged.steady_ns, units, now.steady_ns),
            Self::FixedWindow(window) if !self.is_inline() => {
                let usage = Usage::of(state);
                let (usage, back) = window.refund(usage, charged.wall_ns, units, now.wall_ns, salt);
                if back > 0 {
                    rewrite(state, &usage.to_state()[..window.words()]);
                }
                back
            }
            Self::TokenBucket(_)
            | Self::LeakyBucket(_)
            | Self::FixedWindow(_)
            | Self::SlidingApproximate(_) => {
                let mut kept = inline(state);
                let back = self.refund_inline(&mut kept, charged, units, now, global, salt);
                if back > 0 {
                    rewrite(state, &kept);
                }
                back
            }
        }
    }

    /// As [`Algorithm::refund`], for a state kept inline.
    pub fn refund_inline(
        &self,
        state: &mut Inline,
        charged: Now,
        units: u64,
        now: Now,
        global: &Self,
        salt: u32,
    ) -> u64 {
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => {
                let (Self::TokenBucket(whole) | Self::LeakyBucket(whole)) = global else { return 0 };
                // A clock that is behind the charge cannot tell how much has come back since.
                let Some(elapsed_ns) = now.steady_ns.checked_sub(charged.steady_ns) else { return 0 };
                let owed = meter.owed(tat(state), now.steady_ns);
                let back = whole.outlasting(units, elapsed_ns).min(owed);
                self.forgive_inline(state, now, back);
                back
            }
            Self::FixedWindow(window) => {
                assert!(window.words() == 2, "kept on the heap");
                let usage = Usage::of(state);
                let (Usage { end_ns, used, .. }, back) =
                    window.refund(usage, charged.wall_ns, units, now.wall_ns, salt);
                if back > 0 {
                    *state = [end_ns, used];
                }
                back
            }
            Self::SlidingApproximate(pair) => {
                let (after, back) = pair.refund(*state, charged.steady_ns, units, now.steady_ns);
                *state = after;
                back
            }
            Self::SlidingLog(_) | Self::SlidingSlots(_) => unreachable!("kept on the heap"),
        }
    }

    /// Whether the state equals an absent cell, so that it may be forgotten.
    pub fn is_idle(&self, state: &[u64], now: Now) -> bool {
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => meter.is_idle(tat(state), now.steady_ns),
            Self::FixedWindow(window) => window.is_idle(Usage::of(state), now.wall_ns),
            Self::SlidingLog(log) => log.is_idle(state, now.steady_ns),
            Self::SlidingSlots(slots) => slots.is_idle(state, now.steady_ns),
            Self::SlidingApproximate(pair) => pair.is_idle(inline(state), now.steady_ns),
        }
    }

    /// The state of a cell that had spent everything at `then`. A restart assumes this state for cells that
    /// it knows nothing about.
    pub fn spent_at(&self, then: Now, salt: u32) -> State {
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => {
                State::Inline(split(meter.spent_at(then.steady_ns)))
            }
            Self::FixedWindow(window) => self.state_of(window.spent_at(then.wall_ns, salt)),
            Self::SlidingApproximate(pair) => State::Inline(pair.charge([0, 0], then.steady_ns, pair.limit)),
            Self::SlidingLog(log) => State::Heap(vec![then.steady_ns, log.limit]),
            Self::SlidingSlots(slots) => {
                let mut state = Vec::new();
                slots.charge(&mut state, then.steady_ns, slots.limit);
                State::Heap(state)
            }
        }
    }

    /// As [`Algorithm::spent_at`], for a state that several cells share. The cells may have their own
    /// edges.
    pub fn spent_by_any_at(&self, then: Now) -> State {
        match self {
            Self::FixedWindow(window) => self.state_of(window.spent_by_any_at(then.wall_ns)),
            _ => self.spent_at(then, 0),
        }
    }

    /// The state after a charge of everything that `state` leaves. No cell can owe more, given `state` and
    /// any unknown charges up to `then`. Sliding windows are charged at `then`, other algorithms now.
    pub fn used_up(&self, state: &[u64], then: Now, now: Now, salt: u32) -> State {
        let left = self.available(state, now, salt);
        match self {
            Self::SlidingLog(_) | Self::SlidingSlots(_) => {
                let mut charges = self.charges(state, now);
                charges.push((then.min(now).steady_ns, left));
                charges.sort_unstable();
                let mut spent = Vec::new();
                for (steady_ns, units) in charges {
                    self.charge_heap(&mut spent, Now { steady_ns, ..now }, units, salt);
                }
                State::Heap(spent)
            }
            Self::FixedWindow(_) if !self.is_inline() => {
                let mut spent = state.to_vec();
                self.charge_heap(&mut spent, now, left, salt);
                State::Heap(spent)
            }
            _ => {
                let mut spent = inline(state);
                self.charge_inline(&mut spent, now, left, salt);
                State::Inline(spent)
            }
        }
    }

    /// Nanoseconds after which a cell that is charged no more is surely idle. `u64::MAX` for a piece of a
    /// bucket so slow that clocks end sooner.
    pub fn horizon_ns(&self) -> u64 {
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => meter.refill_ns(),
            Self::FixedWindow(window) => window.horizon_ns(),
            Self::SlidingLog(log) => log.window_ns,
            Self::SlidingSlots(slots) => (u64::from(slots.slots) + 1) * slots.slot_ns(),
            Self::SlidingApproximate(pair) => 2 * pair.window_ns,
        }
    }

    /// The wall clock time, in nanoseconds, when a limit that replaces this one may begin. No unit spent
    /// under this limit can be spent again after that.
    pub fn succession_at(&self, now: Now) -> u64 {
        match self {
            Self::FixedWindow(window @ FixedWindow { edges: Edges::Calendar(_), .. })
            | Self::FixedWindow(window @ FixedWindow { edges: Edges::Every { stagger: false, .. }, .. }) => {
                window.over_at(now.wall_ns)
            }
            _ => now.wall_ns.saturating_add(self.horizon_ns()),
        }
    }

    /// Whether windows begin at edges that all cells share, so that a successor can wait for an edge.
    pub const fn has_common_edges(&self) -> bool {
        match self {
            Self::FixedWindow(window) => !matches!(window.edges, Edges::Every { stagger: true, .. }),
            _ => false,
        }
    }

    /// The largest number of words in a state.
    pub const fn state_words_max(&self) -> usize {
        match self {
            // The limit is at most LOG_UNITS_MAX, and the slots are at most SLOTS_MAX.
            Self::SlidingLog(log) => 2 * log.limit as usize,
            Self::SlidingSlots(slots) => slots.slots as usize + 2,
            Self::FixedWindow(window) => window.words(),
            _ => 2,
        }
    }

    /// The largest cost that can ever pass: the number that the operator wrote.
    pub const fn budget(&self) -> u64 {
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => meter.capacity(),
            Self::FixedWindow(window) => window.limit,
            Self::SlidingLog(log) => log.limit,
            Self::SlidingSlots(slots) => slots.limit,
            Self::SlidingApproximate(pair) => pair.limit,
        }
    }

    /// Converts `state`, a state under `old`, to the state under this algorithm that owes as much at
    /// `then`. A change of the limit's parameters mints nothing. Both algorithms belong to one limit, so
    /// they are of one kind.
    pub fn convert(&self, old: &Self, state: &[u64], then: Now) -> State {
        match (self, old) {
            (
                Self::TokenBucket(new) | Self::LeakyBucket(new),
                Self::TokenBucket(old) | Self::LeakyBucket(old),
            ) => State::Inline(split(new.convert(old, tat(state), then.steady_ns))),
            (Self::FixedWindow(window), Self::FixedWindow(old)) => {
                self.state_of(window.adopt(old.margin_ns, state, then.wall_ns))
            }
            (Self::SlidingApproximate(pair), Self::SlidingApproximate(old)) => {
                State::Inline(pair.adopt(old, inline(state), then.steady_ns))
            }
            (Self::FixedWindow(_), _) | (Self::SlidingApproximate(_), _) => State::Inline(inline(state)),
            _ => {
                let mut converted = Vec::new();
                for (at_ns, units) in old.charges(state, then) {
                    let at = Now { steady_ns: at_ns, ..then };
                    self.charge_heap(&mut converted, at, units, 0);
                }
                State::Heap(converted)
            }
        }
    }

    /// Converts `state`, a state under the piece `old`, to the state under this piece of the same limit.
    /// Spent units stay spent, even if they exceed this piece.
    pub fn resize(&self, old: &Self, state: &[u64], now: Now) -> State {
        match (self, old) {
            (Self::SlidingSlots(new), Self::SlidingSlots(old))
                if (new.window_ns, new.slots) == (old.window_ns, old.slots) =>
            {
                State::Heap(state.to_vec())
            }
            (Self::SlidingLog(new), Self::SlidingLog(old)) if new.window_ns == old.window_ns => {
                State::Heap(state.to_vec())
            }
            _ => self.convert(old, state, now),
        }
    }

    /// As [`Algorithm::convert`], if the parameters changed at an unknown time between the state's first
    /// charge and `now`. The larger debt counts.
    pub fn convert_sometime(&self, old: &Self, state: &[u64], now: Now) -> State {
        let late = self.convert(old, state, now);
        let (Self::TokenBucket(meter) | Self::LeakyBucket(meter)) = old else { return late };
        let since = Now { steady_ns: meter.spent_since_ns(tat(state)), ..now };
        let early = self.convert(old, state, since.min(now));
        if self.covers(early.as_slice(), late.as_slice(), now) { early } else { late }
    }

    /// The state if every charge had been made `by_ns` later on the steady clock. A steady clock that is
    /// anchored anew may be ahead of the clock that wrote the state. Windows with edges do not use the
    /// steady clock.
    pub fn delayed(&self, state: &[u64], by_ns: u64) -> State {
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => {
                State::Inline(split(meter.delayed(tat(state), by_ns)))
            }
            Self::SlidingLog(_) => {
                let later = |(place, word): (usize, &u64)| {
                    if place % 2 == 0 { word.saturating_add(by_ns) } else { *word }
                };
                State::Heap(state.iter().enumerate().map(later).collect())
            }
            Self::SlidingSlots(slots) => State::Heap(slots.delayed(state, by_ns)),
            Self::FixedWindow(_) => self.state_of(Usage::of(state)),
            Self::SlidingApproximate(pair) => {
                let [number, counts] = inline(state);
                State::Inline([number + by_ns.div_ceil(pair.window_ns), counts])
            }
        }
    }

    /// As [`Algorithm::delayed`], for a state whose age is unknown. No charge is dated later than now. A
    /// bucket owes no more than if everything had been spent now, unless it owed more anyway.
    pub fn later_than_said(&self, state: &[u64], by_ns: u64, now: Now) -> State {
        let later = self.delayed(state, by_ns);
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => {
                let most = meter.spent_at(now.steady_ns).max(tat(state));
                State::Inline(split(tat(later.as_slice()).min(most)))
            }
            _ => self.redated(later.as_slice(), CLOCK_END, now),
        }
    }

    /// The state on clocks that may have been set back since the steady clock read `written_ns` and the
    /// state was written. The cell owes what it owed then, and no more. On clocks that were not set back,
    /// nothing is forgotten unless it is idle by now. The time that has really passed is
    /// [`Algorithm::delayed`]'s concern.
    pub fn redated(&self, state: &[u64], written_ns: u64, now: Now) -> State {
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => {
                State::Inline(split(meter.redated(tat(state), written_ns, now.steady_ns)))
            }
            Self::SlidingLog(log) => {
                let mut redated = Vec::new();
                for charge in state.chunks_exact(2) {
                    log.charge(&mut redated, charge[0].min(now.steady_ns), charge[1]);
                }
                State::Heap(redated)
            }
            Self::SlidingApproximate(pair) => {
                let [number, counts] = inline(state);
                State::Inline([number.min(now.steady_ns / pair.window_ns), counts])
            }
            Self::SlidingSlots(_) if now.steady_ns >= written_ns => State::Heap(state.to_vec()),
            Self::SlidingSlots(slots) => {
                let mut redated = Vec::new();
                for (at_ns, units) in self.charges(state, now) {
                    slots.charge(&mut redated, at_ns.min(now.steady_ns), units);
                }
                State::Heap(redated)
            }
            Self::FixedWindow(_) => self.convert(self, state, now),
        }
    }

    /// The state of a window after the wall clock was set back: units in a later window count in the open
    /// one ([`FixedWindow::after_set_back`]). `None` if nothing changes. Without a salt, the state is one
    /// that any cells share.
    pub fn after_set_back(&self, state: &[u64], now: Now, salt: Option<u32>) -> Option<State> {
        let Self::FixedWindow(window) = self else { return None };
        let usage = Usage::of(state);
        let counted = window.after_set_back(usage, now.wall_ns, salt.unwrap_or(0));
        if counted == usage {
            return None;
        }
        let end_ns = match salt {
            Some(_) => counted.end_ns,
            None => window.spent_by_any_at(now.wall_ns).end_ns,
        };
        Some(self.state_of(Usage { end_ns, ..counted }))
    }

    /// Whether `state`, read from a disk, can be a state of this algorithm: no time is beyond every clock,
    /// and the counts can be added up.
    pub fn is_sound(&self, state: &[u64]) -> bool {
        match self {
            Self::TokenBucket(meter) | Self::LeakyBucket(meter) => {
                meter.is_sound() && inline(state)[0] <= CLOCK_END
            }
            Self::FixedWindow(_) => state.iter().all(|word| *word < CLOCK_END),
            Self::SlidingLog(log) => log.is_sound(state),
            Self::SlidingSlots(slots) => slots.is_sound(state),
            Self::SlidingApproximate(pair) => pair.is_sound(inline(state)),
        }
    }

    /// Whether `reserved`, which is on disk, owes at least what `state` owes, now and later. A restart that
    /// reads `reserved` then gives nothing back.
    pub fn covers(&self, reserved: &[u64], state: &[u64], now: Now) -> bool {
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) => tat(reserved) >= tat(state),
            Self::FixedWindow(window) => {
                let (reserved, actual) = (Usage::of(reserved), Usage::of(state));
                reserved.end_ns == actual.end_ns
                    && reserved.used >= actual.used
                    && reserved.ahead >= actual.ahead
                    && (reserved.owed >= actual.owed || !window.carries)
            }
            Self::SlidingApproximate(_) => {
                let ([at, counts], [number, used]) = (inline(reserved), inline(state));
                at == number
                    && counts >> 32 >= used >> 32
                    && counts & u64::from(u32::MAX) >= used & u64::from(u32::MAX)
            }
            Self::SlidingLog(_) => reserved == state,
            Self::SlidingSlots(slots) => slots.live(state, now.steady_ns).all(|(slot, units)| {
                slots.live(reserved, now.steady_ns).any(|(at, held)| at == slot && held >= units)
            }),
        }
    }

    /// A state that this cell shared with others, as a state of the cell's own. The result holds all that
    /// the cell may have charged. The cells may have their own edges.
    pub fn apart(&self, shared: State, now: Now, salt: u32) -> State {
        match self {
            Self::FixedWindow(window) => {
                self.state_of(window.apart(Usage::of(shared.as_slice()), now.wall_ns, salt))
            }
            _ => shared,
        }
    }

    /// A state that owes no less than either of two, now or later. One cell that stands for two cells owes
    /// this.
    pub fn join(&self, a: &[u64], b: &[u64], now: Now) -> State {
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) => State::Inline(split(tat(a).max(tat(b)))),
            Self::FixedWindow(window) => {
                let (a, b) = (Usage::of(a), Usage::of(b));
                // A window that is over owes nothing, but the joined usage would say that it is open.
                self.state_of(match (window.is_idle(a, now.wall_ns), window.is_idle(b, now.wall_ns)) {
                    (true, _) => b,
                    (_, true) => a,
                    _ => a.join(b),
                })
            }
            Self::SlidingApproximate(pair) => State::Inline(pair.join(inline(a), inline(b))),
            Self::SlidingLog(_) | Self::SlidingSlots(_) => {
                let mut state = Vec::new();
                for (steady_ns, units) in joined(&self.charges(a, now), &self.charges(b, now)) {
                    self.charge_heap(&mut state, Now { steady_ns, ..now }, units, 0);
                }
                State::Heap(state)
            }
        }
    }

    /// The most units to reserve on disk ahead of use. A restart wastes at most this much of a cell.
    pub fn chunk_max(&self) -> u64 {
        /// A crash wastes at most one part of this many, 1.6 % of a limit, however many units are asked
        /// for.
        const PARTS: u64 = 64;
        match self {
            // A log on disk must equal the log in memory. A reservation would leave the window before the
            // charges that it stands for.
            Self::SlidingLog(_) => 0,
            _ => self.budget() / PARTS,
        }
    }

    /// The algorithm's name in a config.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "token_bucket",
            Self::LeakyBucket(_) => "leaky_bucket",
            Self::FixedWindow(FixedWindow { edges: Edges::Calendar(_), .. }) => "quota",
            Self::FixedWindow(_) => "fixed_window",
            Self::SlidingLog(_) | Self::SlidingSlots(_) | Self::SlidingApproximate(_) => "sliding_window",
        }
    }

    /// Nanoseconds over which the budget holds: the window, or the time in which a bucket refills. For
    /// calendar windows, the longest.
    pub fn period_ns(&self) -> u64 {
        match self {
            Self::FixedWindow(FixedWindow { edges: Edges::Calendar(calendar), .. }) => {
                use crate::calendar::Period;
                let days = match calendar.period {
                    Period::Day => 1,
                    Period::Week => 7,
                    Period::Month => 31,
                    Period::Year => 366,
                };
                days * 86_400 * 1_000_000_000
            }
            Self::SlidingSlots(slots) => slots.window_ns,
            Self::SlidingApproximate(pair) => pair.window_ns,
            _ => self.horizon_ns(),
        }
    }

    /// Nanoseconds over which the budget holds now, by a wall clock. If windows differ in length, the open
    /// one counts.
    pub fn open_period_ns(&self, wall_ns: u64) -> u64 {
        match self {
            Self::FixedWindow(FixedWindow { edges: Edges::Calendar(calendar), .. }) => {
                calendar.length_ns(wall_ns)
            }
            _ => self.period_ns(),
        }
    }

    /// A window's state.
    pub(crate) fn state_of(&self, usage: Usage) -> State {
        let words = match self {
            Self::FixedWindow(window) => window.words(),
            _ => 2,
        };
        match words {
            2 => State::Inline([usage.end_ns, usage.used]),
            _ => State::Heap(usage.to_state()[..words].to_vec()),
        }
    }

    /// The charges that a sliding state still holds: steady time and units, oldest first. Each has the
    /// latest time at which it can have happened. The time is `now` at most, unless the state is dated
    /// later.
    fn charges(&self, state: &[u64], now: Now) -> Vec<(u64, u64)> {
        match self {
            Self::SlidingLog(_) => state.chunks_exact(2).map(|charge| (charge[0], charge[1])).collect(),
            Self::SlidingSlots(slots) => {
                let latest_ns = |slot: u64| {
                    let begins_ns = slot * slots.slot_ns();
                    (begins_ns + slots.slot_ns() - 1).min(now.steady_ns.max(begins_ns))
                };
                slots.live(state, now.steady_ns).map(|(slot, units)| (latest_ns(slot), units)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Whether a wait of `ns` nanoseconds never ends.
pub const fn is_never(ns: u64) -> bool {
    ns == NEVER
}

/// Joins two histories of charges, oldest first. At any time, as many units of the result are still to
/// leave the window as of the history that has more.
fn joined(a: &[(u64, u64)], b: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let each = |charges: &[(u64, u64)], is_first: bool| -> Vec<(u64, u64, bool)> {
        charges.iter().map(|(at, units)| (*at, *units, is_first)).collect()
    };
    let mut all = [each(a, true), each(b, false)].concat();
    all.sort_unstable_by(|a, b| b.cmp(a));
    let (mut since, mut counted) = ((0, 0), 0);
    let mut charges = Vec::new();
    for (at, units, is_first) in all {
        let sum = if is_first { &mut since.0 } else { &mut since.1 };
        *sum += units;
        let most = since.0.max(since.1);
        if most > counted {
            charges.push((at, most - counted));
            counted = most;
        }
    }
    charges.reverse();
    charges
}

pub(crate) fn inline(state: &[u64]) -> Inline {
    match state {
        [a, b, ..] => [*a, *b],
        _ => [0, 0],
    }
}

pub(crate) fn tat(state: &[u64]) -> u128 {
    let [high, low] = inline(state);
    u128::from(high) << 64 | u128::from(low)
}

fn split(tat: u128) -> Inline {
    // The upper and the lower half of the 128-bit number.
    [(tat >> 64) as u64, tat as u64]
}

fn rewrite(state: &mut Vec<u64>, with: &[u64]) {
    state.clear();
    state.extend_from_slice(with);
}

/// The longest time that a clock gaining `drift_ppm` on true time shows after `ns` true nanoseconds.
fn stretched_ns(ns: u64, drift_ppm: u32) -> u64 {
    const MILLION: u128 = 1_000_000;
    let stretched = (u128::from(ns) * (MILLION + u128::from(drift_ppm))).div_ceil(MILLION);
    u64::try_from(stretched).unwrap_or(NEVER)
}
