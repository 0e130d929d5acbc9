//! The time as a node uses it: which wall clock counts, and behind which times no clock goes back.
//!
//! **No thread uses a time before one at which cells were dropped**, unless the wall clock was set back
//! ([`crate::left`]). An earlier clock would take a dropped cell for a new one, or open its window again.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use acequia_limits::{
    Algorithm, Now,
    algorithm::State,
    window::{self, SET_BACK_NS},
};
use acequia_rights::{
    mutation::{Mutation, mutated},
    versions,
};

use crate::{
    Catalogue, Node,
    cell::{account::CellContext, shard::Cells},
    left::Left,
    lock,
    regions::{Carried, Timekeeper},
    whole_tag,
};

/// The bounds of a node's clocks.
#[derive(Debug)]
pub(crate) struct ClockBounds {
    /// Windows that the wall clock left before it was set back.
    pub(crate) left: Left,
    /// Whether the wall clock may date durable or shared state.
    is_wall_believed: AtomicBool,
    /// The correction of the wall clock while it is not believed, in nanoseconds.
    correction_ns: AtomicI64,
    /// The reading of a wall clock that moves as the steady clock does; unset if nobody compares the two.
    carried: Carried,
    /// The latest wall clock at which a cell with a window was dropped: time does not go back behind it, or
    /// the window would open again.
    forgotten_wall_ns: AtomicU64,
    /// The latest steady clock at which a cell was dropped. Threads read the clock one after another, and act
    /// in a different order.
    forgotten_steady_ns: AtomicU64,
    /// The latest date in the journal at the start: wall clock.
    journal_wall_ns: AtomicU64,
    /// The wall clock at which an earlier process last dropped something, from the journal.
    kept_wall_ns: AtomicU64,
    /// How far the right wall clock was ahead of this node's at the start, if other clocks have contradicted
    /// it since.
    start_corrected_ns: AtomicI64,
    /// How far wall clocks may be off while there is no catalogue, in nanoseconds.
    error_ns: AtomicU64,
    /// How far steady clocks may drift while there is no catalogue, in parts per million.
    drift_ppm: AtomicU32,
}

impl ClockBounds {
    /// A clock that is believed from the start if there is no other clock.
    pub(crate) fn new(is_wall_believed: bool) -> Self {
        Self {
            left: Left::default(),
            is_wall_believed: AtomicBool::new(is_wall_believed),
            correction_ns: AtomicI64::new(0),
            carried: Carried::default(),
            forgotten_wall_ns: AtomicU64::new(0),
            forgotten_steady_ns: AtomicU64::new(0),
            journal_wall_ns: AtomicU64::new(0),
            kept_wall_ns: AtomicU64::new(0),
            start_corrected_ns: AtomicI64::new(0),
            error_ns: AtomicU64::new(10_000_000),
            drift_ppm: AtomicU32::new(1_000),
        }
    }

    #[inline]
    pub(crate) fn is_wall_believed(&self) -> bool {
        self.is_wall_believed.load(Ordering::Acquire)
    }

    pub(crate) fn believe_wall(&self) {
        self.is_wall_believed.store(true, Ordering::Release);
    }

    /// As [`Node::not_before`].
    fn not_before(&self, now: Now) -> Now {
        let correction_ns = self.correction_ns.load(Ordering::Acquire);
        let read_ns = now.wall_ns.saturating_add_signed(correction_ns);
        let wall_ns = self.carried.unless_set(now.steady_ns, read_ns);
        let read = Now { wall_ns, ..now };
        if self.left.may_have_stepped(read) && self.is_wall_believed() {
            self.left.note(read, &self.forgotten_wall_ns, &self.journal_wall_ns);
        }
        Now { wall_ns: wall_ns.max(self.high_wall_ns()), ..now }
    }

    /// The wall time behind which this node does not go back.
    #[inline]
    fn high_wall_ns(&self) -> u64 {
        self.forgotten_wall_ns.load(Ordering::Acquire)
    }

    #[inline]
    fn high_steady_ns(&self) -> u64 {
        self.forgotten_steady_ns.load(Ordering::Acquire)
    }

    /// The latest date in the journal at the start: wall clock.
    pub(crate) fn journal_wall_ns(&self) -> u64 {
        self.journal_wall_ns.load(Ordering::Acquire)
    }

    /// Notes a date that the journal has.
    pub(crate) fn note_journal_wall(&self, wall_ns: u64) {
        self.journal_wall_ns.fetch_max(wall_ns, Ordering::AcqRel);
    }

    /// Notes the time in the journal at which an earlier process last dropped something.
    pub(crate) fn note_kept_wall(&self, wall_ns: u64) {
        self.note_journal_wall(wall_ns);
        self.kept_wall_ns.store(wall_ns, Ordering::Release);
    }

    /// Ensures that no window opens again that an earlier process has forgotten, according to the journal.
    pub(crate) fn go_on_from_kept(&self, now: Now) {
        let kept_ns = self.kept_wall_ns.load(Ordering::Acquire);
        if kept_ns > now.wall_ns.saturating_add(SET_BACK_NS) {
            // The earlier wall clock was ahead, and is right now; nobody knows in which windows it was.
            // Windows that are open now count as spent; later windows have not been open.
            self.left.restart(now, kept_ns);
        } else {
            self.forgotten_wall_ns.fetch_max(kept_ns, Ordering::AcqRel);
        }
    }

    /// Corrects a row that was written by a wall clock that has been set back since. A node whose clock
    /// others can contradict learns later whether the clock was set back or is wrong now.
    pub(crate) fn after_set_back(
        &self,
        algorithm: &Algorithm,
        state: State,
        salt: Option<u32>,
        now: Now,
    ) -> State {
        if !self.is_wall_believed() {
            return state;
        }
        let Some(counted) = algorithm.after_set_back(state.as_slice(), now, salt) else { return state };
        if let Algorithm::FixedWindow(edges) = algorithm {
            // If the wall clock is wrong now, it will come to that window.
            let end_ns = window::Usage::of(state.as_slice()).end_ns;
            self.left.visited(edges.begins(end_ns, salt.unwrap_or(0)), end_ns);
        }
        counted
    }

    /// A time from before the start, corrected by what other clocks have shown since.
    pub(crate) fn corrected_start(&self, start: Now) -> Now {
        let corrected_ns = self.start_corrected_ns.load(Ordering::Acquire);
        Now { wall_ns: start.wall_ns.saturating_add_signed(corrected_ns), ..start }
    }
}

impl Node {
    /// The time as this node uses it: corrected by the other regions' clocks, and never before the time at
    /// which cells were dropped.
    pub fn corrected(&self, now: Now) -> Now {
        self.not_before(now)
    }

    /// The time as this node uses it: the wall clock is corrected, and never before the time at which cells
    /// were dropped, unless it was set back.
    ///
    /// A clock may be set between two comparisons of the clocks. Until the next comparison, the wall clock
    /// moves as the steady clock does. Otherwise requests would be counted in windows that nobody has heard
    /// of.
    pub(crate) fn not_before(&self, now: Now) -> Now {
        self.clock.not_before(now)
    }

    /// Keeps the wall clock from going back behind this time while the process lives. So an earlier window,
    /// which was forgotten, is never used again.
    pub(crate) fn leave_behind(&self, now: Now) {
        if !mutated(Mutation::WindowReopens) {
            self.forget_at(now);
        }
    }

    /// Notes that idle cells are dropped at this time: a thread with an earlier clock must not take them for
    /// new ones.
    pub(crate) fn forget_at(&self, now: Now) {
        if !self.clock.left.is_old(now) {
            self.clock.forgotten_wall_ns.fetch_max(now.wall_ns, Ordering::AcqRel);
        }
        self.clock.forgotten_steady_ns.fetch_max(now.steady_ns, Ordering::AcqRel);
    }

    /// Whether a cell that is missing may exist by these clocks, and have been dropped by later ones.
    #[inline]
    pub(crate) fn is_behind(&self, now: Now) -> bool {
        now.wall_ns < self.wall_high_ns() || now.steady_ns < self.clock.high_steady_ns()
    }

    /// The time, but no earlier than the last time at which cells were dropped.
    pub(crate) fn not_behind(&self, now: Now) -> Now {
        Now {
            wall_ns: now.wall_ns.max(self.wall_high_ns()),
            steady_ns: now.steady_ns.max(self.clock.high_steady_ns()),
        }
    }

    pub(crate) fn wall_high_ns(&self) -> u64 {
        self.clock.high_wall_ns()
    }

    /// Sets the correction of the wall clock from now on, and its reading then.
    pub(crate) fn set_wall(&self, time: &Timekeeper, error_ns: u64, drift_ppm: u32) {
        self.clock.correction_ns.store(time.correction_ns(), Ordering::Release);
        if let Some(seen) = time.compared() {
            self.clock.carried.set(seen, error_ns, drift_ppm);
        }
    }

    /// Sets the clocks' bounds for the time without a catalogue, which has its own: how far wall clocks may
    /// be off, in nanoseconds, and how far steady clocks may drift, in parts per million.
    pub fn expect_of_clocks(&self, error_ns: u64, drift_ppm: u32) {
        self.clock.error_ns.store(error_ns.min(versions::CLOCK_ERROR_NS_MAX), Ordering::Release);
        self.clock.drift_ppm.store(drift_ppm.min(versions::DRIFT_PPM_MAX), Ordering::Release);
    }

    /// The bounds set by [`Node::expect_of_clocks`].
    pub(crate) fn expected_of_clocks(&self) -> (u64, u32) {
        (self.clock.error_ns.load(Ordering::Acquire), self.clock.drift_ppm.load(Ordering::Acquire))
    }

    /// Whether the wall clock may date durable or shared state: another clock agreed with it since the start,
    /// or there is no other clock.
    pub fn is_wall_believed(&self) -> bool {
        self.clock.is_wall_believed()
    }

    /// Whether the wall clock left a cell's window before it was set back.
    pub(crate) fn is_closed(&self, context: &CellContext<'_>, end_ns: u64) -> bool {
        match context.global {
            Algorithm::FixedWindow(window) => self.clock.left.is_closed(window, end_ns, context.salt),
            _ => false,
        }
    }

    /// Notes that another clock agrees with the corrected wall clock, for the first time since the start.
    /// State read from the journal was dated by the old wall clock, and by a steady clock that began with it.
    /// If these were ahead, less time has passed since the state was written.
    pub(crate) fn believe_wall(&self, corrected_ns: i64, raw: Now) {
        let now = Now { wall_ns: raw.wall_ns.saturating_add_signed(corrected_ns), ..raw };
        self.clock.forgotten_wall_ns.store(0, Ordering::Release);
        self.clock.go_on_from_kept(now);
        {
            let mut registry = lock(&self.limits.registry);
            registry.correct_start(corrected_ns, now);
            if corrected_ns != 0 {
                self.clock.start_corrected_ns.store(corrected_ns, Ordering::Release);
                self.publish(&registry, now);
            }
        }
        let correction =
            StartCorrection { node: self, catalogue: &self.catalogue(), by_ns: corrected_ns, now };
        for (at, shard) in self.shards.iter().enumerate() {
            correction.correct_cells(at, &mut shard.lock());
        }
        correction.correct_shared_cells();
        self.clock.believe_wall();
    }
}

/// The wall clock was wrong by `by_ns` when the node began: cells from the journal are dated anew.
struct StartCorrection<'a> {
    node: &'a Node,
    catalogue: &'a Catalogue,
    by_ns: i64,
    now: Now,
}

impl StartCorrection<'_> {
    /// Corrects the cells of one shard.
    fn correct_cells(&self, shard: usize, cells: &mut Cells) {
        for place in cells.table.places() {
            let cell = *cells.table.at(place);
            let salt = whole_tag(shard, &cell).salt();
            let Some(local) = self.catalogue.local(cell.slot(), cell.variant()) else { continue };
            let algorithm = cells.account(place).map_or(local.at(salt), |account| &account.algorithm);
            let state = cells.state(&cell);
            let dated = self.dated_anew(algorithm, state, Some(salt));
            let spent = self.spent_at_crash(cell.slot(), algorithm, salt);
            let spent = spent.map(|spent| {
                let state = dated.as_ref().map_or(state, State::as_slice);
                algorithm.join(spent.as_slice(), state, self.now)
            });
            if let Some(corrected) = spent.or(dated) {
                cells.rewrite(place, cell.variant(), corrected);
            }
        }
    }

    fn correct_shared_cells(&self) {
        for (key, cell) in self.node.overflow.lock().iter_mut() {
            if let Some(local) = self.catalogue.local(key.slot, key.variant)
                && let Some(state) = self.dated_anew(local.least(), &cell.state, None)
            {
                cell.rewrite(state.as_slice().to_vec());
            }
        }
    }

    /// The state by the right clocks, if it differs.
    fn dated_anew(&self, algorithm: &Algorithm, state: &[u64], salt: Option<u32>) -> Option<State> {
        let ahead_ns = self.by_ns.min(0).unsigned_abs();
        let later = (ahead_ns > 0).then(|| algorithm.later_than_said(state, ahead_ns, self.now));
        let state = later.as_ref().map_or(state, State::as_slice);
        algorithm.after_set_back(state, self.now, salt).or(later)
    }

    /// Units that a crash forgot were spent in the windows that were open then, by the right wall clock.
    fn spent_at_crash(&self, slot: u32, algorithm: &Algorithm, salt: u32) -> Option<State> {
        if self.by_ns == 0 || algorithm.has_rate() {
            return None;
        }
        let then = self.node.spent_before_start(self.catalogue, slot, algorithm, self.now)?;
        Some(self.node.spent(algorithm, then, Some(salt)))
    }
}
