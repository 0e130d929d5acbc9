//! Decides which wall clock reading a node goes by.
//!
//! Windows have edges that all regions must agree on, to within the clock error of the catalogue. A wall
//! clock, in short a *wall*, may be wrong at the start, be set by an operator or step with a hypervisor.
//! Steady clocks only drift. So a node looks at two witnesses: its steady clock, and the walls of the peers
//! that it reaches, as their systems read them.
//!
//! | a node's wall | the node goes by its wall |
//! | --- | --- |
//! | at the start | when a peer's wall agrees; or, if no peer is reached for a while, when it is no earlier than the journal |
//! | moves as the steady clock does | unless most walls, its own included, contradict it |
//! | is being slewed | when it has come to rest; until then the steady clock carries the last reading on |
//! | was set | when at least half of the peers' walls agree with it; until then the steady clock carries the last reading on |
//! | is contradicted by most | no: it goes by the wall of *most peers*, and by its own again when that agrees |
//!
//! The rule assumes that most walls are right. It compares what every peer's system reads, not what the peer
//! goes by. So when the walls are right again, nobody goes by what others once went by.
//!
//! If nodes share a store and hear of no peers, the clocks of the store's servers stand for the peers' walls
//! ([`Node::compare_wall`](crate::Node::compare_wall)).
//!
//! Until a node has once gone by its wall, the wall dates nothing durable: see [`Timekeeper::is_believed`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use acequia_limits::Now;
use acequia_rights::mutation::{Mutation, mutated};
use smallvec::SmallVec;

use crate::{pool::ServerClock, settings::SETTINGS};

/// A reading of a peer's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockReading {
    /// How far its system's wall is ahead of ours, in nanoseconds, with half of the round trip allowed for.
    pub(crate) ahead_ns: i64,
    /// How far the wall that the peer goes by is ahead of its system's wall, in nanoseconds.
    pub(crate) corrected_ns: i64,
    /// Whether somebody has agreed with that wall since the peer's start.
    pub(crate) is_believed: bool,
    /// How wrong the reading may be: half of the round trip, and the drift since.
    pub(crate) unsure_ns: u64,
}

/// The bounds by which walls are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallBounds {
    /// The clock error of the catalogue: ε.
    pub(crate) error_ns: u64,
    /// How far steady clocks may drift, in parts per million.
    pub(crate) drift_ppm: u32,
    /// Whether there are nodes that could contradict this one.
    pub(crate) has_peers: bool,
    /// Whether no such node is reached.
    pub(crate) is_alone: bool,
    /// The latest date in the journal: wall clock, nanoseconds.
    pub(crate) journal_ns: u64,
}

/// The wall that a node goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wall {
    /// Its own, with which nobody has agreed since the start: the wall dates nothing durable.
    #[default]
    Unconfirmed,
    /// Its own.
    Own,
    /// The wall of most peers, which contradict its own.
    Peers,
    /// The last wall that it went by, carried on by the steady clock: its own was set or moves, or walls
    /// contradict each other.
    Carried,
}

impl Wall {
    /// The name in JSON, metrics and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unconfirmed => "unconfirmed",
            Self::Own => "own",
            Self::Peers => "peers",
            Self::Carried => "carried",
        }
    }
}

/// The wall that a node goes by, and how sure of it the node is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timekeeper {
    wall: Wall,
    /// The last reading that the node went by and that was confirmed.
    good: Option<Now>,
    /// The correction that is added to the wall.
    correction_ns: i64,
    /// How far the reading may be off beyond the error of a believed clock.
    unsure_ns: u64,
    /// The last comparison: the steady clock, and the wall that the node went by.
    compared: Option<Now>,
    /// The clocks' readings then: the steady one, and the system's wall.
    read: Option<Now>,
    /// When the clocks were first compared: steady clock.
    begun_ns: Option<u64>,
}

impl Timekeeper {
    /// The wall that this node goes by.
    pub(crate) const fn wall(&self) -> Wall {
        self.wall
    }

    /// Whether that wall is not the node's own.
    pub(crate) const fn is_suspect(&self) -> bool {
        matches!(self.wall, Wall::Peers | Wall::Carried)
    }

    /// Whether the wall that the node goes by was confirmed once since the start, and so may date durable
    /// things.
    pub(crate) fn is_believed(&self) -> bool {
        self.good.is_some() || mutated(Mutation::BelievesAtStart)
    }

    /// The correction that is added to a reading of the wall clock.
    pub(crate) const fn correction_ns(&self) -> i64 {
        self.correction_ns
    }

    /// The last comparison: the steady clock, and the wall that the node went by. `None` until a wall is
    /// confirmed.
    pub(crate) const fn compared(&self) -> Option<Now> {
        self.compared
    }

    /// How far a corrected reading may be off beyond the error of a believed clock.
    pub(crate) const fn unsure_ns(&self) -> u64 {
        self.unsure_ns
    }

    /// Whether a clock that belongs to no node may be heard. It must agree with the wall as it reads, or as
    /// it would read had nobody set it. A clock that agrees with neither is wrong itself, and leads nobody.
    pub(crate) fn is_witness(
        &self,
        steady_ns: u64,
        wall_ns: u64,
        bounds: &WallBounds,
        clock: &ClockReading,
    ) -> bool {
        let carried_ns = self.carried_ns(steady_ns, wall_ns);
        clock.agrees(0, bounds) || carried_ns.is_some_and(|carried_ns| clock.agrees(carried_ns, bounds))
    }

    /// Takes a reading of the system's wall, and those of the peers that are reached.
    pub(crate) fn observe(
        &mut self,
        steady_ns: u64,
        wall_ns: u64,
        bounds: &WallBounds,
        peers: &[ClockReading],
    ) {
        let begun_ns = *self.begun_ns.get_or_insert(steady_ns);
        // A peer that knows its own system's wall to be wrong is no witness.
        let trusted: SmallVec<[ClockReading; 8]> =
            peers.iter().filter(|peer| peer.trusts_its_own(bounds)).copied().collect();
        let peers = &trusted[..];
        let due_ns =
            self.compared.map_or(0, |before| before.steady_ns.saturating_add(SETTINGS.clocks.compare_ns));
        if steady_ns < due_ns {
            return;
        }
        let is_moving = self.is_moving(steady_ns, wall_ns, bounds);
        if bounds.has_peers && is_moving && self.carry(steady_ns, wall_ns, bounds, peers) {
            return;
        }
        let step_ns = self.stepped_ns(steady_ns, wall_ns, bounds);
        let has_waited = steady_ns.saturating_sub(begun_ns) >= SETTINGS.clocks.alone_ns;
        // The own wall is a witness if it has moved along with the steady clock since it was confirmed. A
        // wall that began just now is none until it has waited: two nodes that just began and disagree wait
        // for a third.
        let own = usize::from((self.good.is_some() || has_waited) && has_moved_along(step_ns));
        if let [other] = peers
            && (self.good.is_none() && own == 0)
            && !other.agrees(0, bounds)
            && !other.is_believed
        {
            return;
        }
        let against = peers.iter().filter(|peer| !peer.agrees(0, bounds)).count();
        if is_outvoted(against, peers.len() + own) {
            let consensus = self.consensus(steady_ns, wall_ns, bounds, peers);
            if let Some((correction_ns, unsure_ns)) = consensus.filter(|_| goes_by_consensus()) {
                self.go_by(Wall::Peers, steady_ns, wall_ns, correction_ns);
                self.unsure_ns = unsure_ns;
                self.good = self.compared;
                return;
            }
        } else if (own == 1 && self.good.is_some())
            || !peers.is_empty()
            || !bounds.has_peers
            || self.agrees_alone(wall_ns, has_waited, bounds)
        {
            self.go_by(Wall::Own, steady_ns, wall_ns, 0);
            // If as many contradict as agree, the wall that the others go by may be right.
            let is_tie = against > 0 && 2 * against >= peers.len() + own;
            let differing = peers.iter().filter(|peer| is_tie && !peer.agrees_as_gone_by(bounds));
            self.unsure_ns = differing.map(ClockReading::differs_by_ns).max().unwrap_or(0);
            // While nobody is reached, the wall may wander off by a little at a time.
            if !peers.is_empty() || !bounds.has_peers || self.good.is_none() {
                self.good = self.compared;
            } else if let Some(good) = self.good {
                let passed_ns = steady_ns.saturating_sub(good.steady_ns);
                let off_ns = wall_ns.abs_diff(good.wall_ns.saturating_add(passed_ns));
                self.unsure_ns = if off_ns > bounds.error_ns { off_ns } else { 0 };
            }
            return;
        }
        // No wall has a majority.
        let Some(good) = self.good else { return };
        self.go_by(Wall::Carried, steady_ns, wall_ns, step_ns.map_or(0, |step_ns| -step_ns));
        let wandered_ns = drifted(steady_ns.saturating_sub(good.steady_ns), bounds.drift_ppm);
        let mut off_ns: SmallVec<[u64; 8]> = peers.iter().map(ClockReading::differs_by_ns).collect();
        off_ns.sort_unstable();
        // If the wall was set, the step is known. If peers contradict it and each other, it may be as wrong
        // as they say.
        let off_ns = off_ns.get(off_ns.len() / 2).filter(|_| step_ns.is_none());
        self.unsure_ns = wandered_ns.saturating_add(off_ns.copied().unwrap_or(0));
    }

    /// Whether the system's wall moves faster or slower than the steady clock: it was set just now, or is
    /// being slewed.
    fn is_moving(&mut self, steady_ns: u64, wall_ns: u64, bounds: &WallBounds) -> bool {
        let Some(before) = self.read.replace(Now { steady_ns, wall_ns }) else { return false };
        let passed_ns = steady_ns.saturating_sub(before.steady_ns);
        let moved_ns = signed(wall_ns) - signed(before.wall_ns.saturating_add(passed_ns));
        moved_ns.unsigned_abs()
            > SETTINGS.clocks.still_ns.saturating_add(drifted(passed_ns, bounds.drift_ppm))
    }

    /// Carries the last wall on by the steady clock, unless most peers contradict that. Returns whether it
    /// does.
    fn carry(&mut self, steady_ns: u64, wall_ns: u64, bounds: &WallBounds, peers: &[ClockReading]) -> bool {
        let Some(correction_ns) = self.carried_ns(steady_ns, wall_ns) else { return false };
        let Some(good) = self.good else { return false };
        let against = peers.iter().filter(|peer| !peer.agrees(correction_ns, bounds)).count();
        if !may_carry_on(against, peers.len()) {
            return false;
        }
        let is_led = self.wall == Wall::Peers;
        self.go_by(if is_led { Wall::Peers } else { Wall::Carried }, steady_ns, wall_ns, correction_ns);
        let wandered_ns = drifted(steady_ns.saturating_sub(good.steady_ns), bounds.drift_ppm);
        self.unsure_ns = if is_led { self.unsure_ns.max(wandered_ns) } else { wandered_ns };
        true
    }

    /// How far the last wall, carried on by the steady clock, is ahead of the system's wall.
    fn carried_ns(&self, steady_ns: u64, wall_ns: u64) -> Option<i64> {
        let before = self.compared?;
        let passed_ns = steady_ns.saturating_sub(before.steady_ns);
        Some(signed(before.wall_ns.saturating_add(passed_ns)) - signed(wall_ns))
    }

    /// By how much the wall was set since it was confirmed; `None` if the clocks' errors explain the
    /// difference.
    fn stepped_ns(&self, steady_ns: u64, wall_ns: u64, bounds: &WallBounds) -> Option<i64> {
        let good = self.good?;
        let passed_ns = steady_ns.saturating_sub(good.steady_ns);
        let step_ns = signed(wall_ns) - signed(good.wall_ns.saturating_add(passed_ns));
        let most_ns = bounds.error_ns.saturating_mul(2).saturating_add(drifted(passed_ns, bounds.drift_ppm));
        (step_ns.unsigned_abs() > most_ns).then_some(step_ns)
    }

    /// Whether a node that reaches nobody may go by its wall, which nobody has confirmed yet.
    fn agrees_alone(&self, wall_ns: u64, has_waited: bool, bounds: &WallBounds) -> bool {
        let is_alone = !bounds.has_peers || (bounds.is_alone && has_waited);
        let journal_ns = bounds.journal_ns.saturating_sub(bounds.error_ns.saturating_mul(2));
        // A wall that was set since it was confirmed contradicts the steady clock, which knows better than
        // the journal.
        self.good.is_none() && is_alone && (wall_ns >= journal_ns || !bounds.has_peers)
    }

    fn go_by(&mut self, wall: Wall, steady_ns: u64, wall_ns: u64, correction_ns: i64) {
        (self.wall, self.correction_ns) = (wall, correction_ns);
        self.compared = Some(Now { steady_ns, wall_ns: wall_ns.saturating_add_signed(correction_ns) });
    }

    /// How far the wall of most peers is ahead of ours, and how sure that is. It is the surest reading with
    /// which most peers agree, or the wall that the node goes by already, as long as most agree with that.
    fn consensus(
        &self,
        steady_ns: u64,
        wall_ns: u64,
        bounds: &WallBounds,
        peers: &[ClockReading],
    ) -> Option<(i64, u64)> {
        let is_backed = |correction_ns| is_backed(correction_ns, bounds, peers);
        let found = surest_first(peers).into_iter().find(|peer| is_backed(peer.ahead_ns))?;
        // The present correction stays, so that it does not move with every frame.
        if let Some(carried_ns) = self.carried_ns(steady_ns, wall_ns)
            && is_backed(carried_ns)
            && found.agrees(carried_ns, bounds)
        {
            let off_ns = found.ahead_ns.abs_diff(carried_ns);
            return Some((carried_ns, off_ns.saturating_add(found.unsure_ns)));
        }
        Some((found.ahead_ns, found.unsure_ns))
    }
}

impl ClockReading {
    /// The reading of a server that has no other clock to go by, and with which nobody has agreed.
    pub(crate) const fn of_server(clock: &ServerClock) -> Self {
        Self { ahead_ns: clock.ahead_ns, corrected_ns: 0, is_believed: false, unsure_ns: clock.unsure_ns }
    }

    /// Whether our wall, so corrected, and the peer's are as close as two right ones are.
    fn agrees(&self, correction_ns: i64, bounds: &WallBounds) -> bool {
        let by_ns = self.ahead_ns.saturating_sub(correction_ns).unsigned_abs();
        by_ns <= bounds.error_ns.saturating_mul(2).saturating_add(self.unsure_ns)
    }

    /// Whether the peer goes by what its system reads.
    fn trusts_its_own(&self, bounds: &WallBounds) -> bool {
        let most_ns = bounds.error_ns.saturating_mul(2).saturating_add(self.unsure_ns);
        self.corrected_ns.unsigned_abs() <= most_ns || mutated(Mutation::OneOutvotes)
    }

    fn agrees_as_gone_by(&self, bounds: &WallBounds) -> bool {
        Self { ahead_ns: self.ahead_ns.saturating_add(self.corrected_ns), ..*self }.agrees(0, bounds)
    }

    /// How far the wall that the peer goes by may be from ours.
    fn differs_by_ns(&self) -> u64 {
        self.ahead_ns.saturating_add(self.corrected_ns).unsigned_abs().saturating_add(self.unsure_ns)
    }
}

/// A wall that was set is no witness until somebody agrees with it.
fn has_moved_along(step_ns: Option<i64>) -> bool {
    step_ns.is_none() || mutated(Mutation::StepBelieved)
}

/// While the wall moves, the steady clock carries the last reading on, unless most peers contradict that.
fn may_carry_on(against: usize, peers: usize) -> bool {
    2 * against <= peers && !mutated(Mutation::StepBelieved)
}

/// A node goes by its wall until most witnesses, its own wall included if it is one, contradict it.
fn is_outvoted(against: usize, witnesses: usize) -> bool {
    (2 * against > witnesses && !mutated(Mutation::OutvotedGoesOn))
        || (against > 0 && mutated(Mutation::OneOutvotes))
}

/// A node that is outvoted goes by the wall of most peers, so that its doubt does not grow.
fn goes_by_consensus() -> bool {
    !mutated(Mutation::DoubtGrows)
}

/// A wall that is not the own one counts only if most peers agree with it.
fn is_backed(correction_ns: i64, bounds: &WallBounds, peers: &[ClockReading]) -> bool {
    let agree = peers.iter().filter(|peer| peer.agrees(correction_ns, bounds)).count();
    2 * agree > peers.len() || mutated(Mutation::OneOutvotes)
}

/// The surest reading counts first, not the one that differs most.
fn surest_first(peers: &[ClockReading]) -> SmallVec<[&ClockReading; 8]> {
    let mut all: SmallVec<[&ClockReading; 8]> = peers.iter().collect();
    all.sort_by_key(|peer| (peer.unsure_ns, peer.ahead_ns));
    if mutated(Mutation::OneOutvotes) {
        all.sort_by_key(|peer| std::cmp::Reverse(peer.ahead_ns.unsigned_abs()));
    }
    all
}

/// The wall's reading as it would be if nobody had set it since it was last compared with the steady clock.
///
/// A clock may be set between two comparisons, and be set back: requests in between must not be counted in
/// windows that nobody heard of. Every request reads this, and the thread that ticks writes it. A request
/// that reads during a write takes the clock as it reads.
#[derive(Debug)]
pub(crate) struct Carried {
    /// How far the wall is ahead of the steady clock, modulo 2^64.
    ahead_ns: AtomicU64,
    /// How far two readings of one clock may be apart by its error alone: 2ε. `u64::MAX` until the first
    /// write.
    apart_ns: AtomicU64,
    /// Odd during a write.
    writes: AtomicU64,
    /// The steady clock at the last comparison.
    steady_ns: AtomicU64,
    drift_ppm: AtomicU32,
}

impl Default for Carried {
    fn default() -> Self {
        Self {
            ahead_ns: AtomicU64::new(0),
            apart_ns: AtomicU64::new(u64::MAX),
            writes: AtomicU64::new(0),
            steady_ns: AtomicU64::new(0),
            drift_ppm: AtomicU32::new(0),
        }
    }
}

impl Carried {
    pub(crate) fn set(&self, at: Now, error_ns: u64, drift_ppm: u32) {
        let Now { steady_ns, wall_ns } = at;
        self.writes.fetch_add(1, Ordering::AcqRel);
        self.steady_ns.store(steady_ns, Ordering::Release);
        self.ahead_ns.store(wall_ns.wrapping_sub(steady_ns), Ordering::Release);
        self.drift_ppm.store(drift_ppm, Ordering::Release);
        self.apart_ns.store(error_ns.saturating_mul(2), Ordering::Release);
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// The wall as it reads, unless it moved against the steady clock by more than both of them may be wrong.
    /// Then the wall as it would read had it moved along.
    #[inline]
    pub(crate) fn unless_set(&self, steady_ns: u64, read_ns: u64) -> u64 {
        let carried_ns = steady_ns.wrapping_add(self.ahead_ns.load(Ordering::Acquire));
        if read_ns.abs_diff(carried_ns) <= self.apart_ns.load(Ordering::Acquire) {
            return read_ns;
        }
        self.unless_drifted(steady_ns, read_ns)
    }

    #[cold]
    fn unless_drifted(&self, steady_ns: u64, read_ns: u64) -> u64 {
        let writes = self.writes.load(Ordering::Acquire);
        let carried_ns = steady_ns.wrapping_add(self.ahead_ns.load(Ordering::Acquire));
        let passed_ns = steady_ns.saturating_sub(self.steady_ns.load(Ordering::Acquire));
        let wandered_ns = drifted(passed_ns, self.drift_ppm.load(Ordering::Acquire));
        let most_ns = self.apart_ns.load(Ordering::Acquire).saturating_add(wandered_ns);
        let is_whole = writes & 1 == 0 && writes == self.writes.load(Ordering::Acquire);
        if is_whole && read_ns.abs_diff(carried_ns) > most_ns { carried_ns } else { read_ns }
    }
}

/// How far true time may be from what a steady clock counted. A clock that ran slow counted less than passed,
/// so its error is a larger part of what it shows.
pub(crate) fn drifted(ns: u64, drift_ppm: u32) -> u64 {
    let slow = 1_000_000_u128.saturating_sub(u128::from(drift_ppm)).max(1);
    u64::try_from((u128::from(ns) * u128::from(drift_ppm)).div_ceil(slow)).unwrap_or(u64::MAX)
}

/// The value as a signed number: clocks stay below 2^63.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;
    const HOUR: u64 = 3_600 * S;
    /// When these stories begin: wall clock.
    const T: u64 = 1_800_000_000 * S;

    fn peer(ahead_ms: i64) -> ClockReading {
        ClockReading {
            ahead_ns: ahead_ms * MS as i64,
            corrected_ns: 0,
            is_believed: true,
            unsure_ns: 40 * MS,
        }
    }

    const fn bounds() -> WallBounds {
        WallBounds { error_ns: 10 * MS, drift_ppm: 1_000, has_peers: true, is_alone: true, journal_ns: 0 }
    }

    /// A node whose wall was confirmed, and is right.
    fn confirmed() -> Timekeeper {
        let mut keeper = Timekeeper::default();
        keeper.observe(0, T, &bounds(), &[peer(3)]);
        assert_eq!((keeper.wall(), keeper.is_believed()), (Wall::Own, true));
        keeper
    }

    #[test]
    fn at_the_start_a_wall_clock_is_trusted_once_a_peer_agrees() {
        let mut keeper = Timekeeper::default();
        keeper.observe(0, T, &bounds(), &[]);
        keeper.observe(S, T + S, &bounds(), &[]);
        assert_eq!((keeper.wall(), keeper.is_believed()), (Wall::Unconfirmed, false));
        keeper.observe(2 * S, T + 2 * S, &bounds(), &[peer(-3)]);
        assert_eq!((keeper.wall(), keeper.is_believed()), (Wall::Own, true));
    }

    #[test]
    fn a_node_that_starts_with_a_wrong_wall_clock_uses_the_peers_time() {
        for ahead_ns in [HOUR as i64, -(24 * HOUR as i64)] {
            let mut keeper = Timekeeper::default();
            let others = peer(-(ahead_ns / MS as i64));
            keeper.observe(0, T.saturating_add_signed(ahead_ns), &bounds(), &[others]);
            assert_eq!((keeper.wall(), keeper.correction_ns()), (Wall::Peers, -ahead_ns));
            assert!(keeper.is_believed() && keeper.unsure_ns() <= 40 * MS);
        }
    }

    #[test]
    fn two_starting_nodes_with_different_clocks_wait_for_a_third() {
        let other = ClockReading { is_believed: false, ..peer(5_000) };
        let mut keeper = Timekeeper::default();
        keeper.observe(0, T, &bounds(), &[other]);
        assert_eq!(keeper.wall(), Wall::Unconfirmed);
        keeper.observe(S, T + S, &bounds(), &[other, ClockReading { is_believed: false, ..peer(3) }]);
        assert_eq!((keeper.wall(), keeper.correction_ns()), (Wall::Own, 0));
        // If there is no third one, each goes by its own wall, and doubts it.
        let mut keeper = Timekeeper::default();
        keeper.observe(0, T, &bounds(), &[other]);
        keeper.observe(6 * S, T + 6 * S, &bounds(), &[other]);
        assert_eq!(keeper.wall(), Wall::Own);
        assert!(keeper.unsure_ns() > 5 * S);
    }

    #[test]
    fn a_node_alone_trusts_a_clock_not_behind_its_journal() {
        for (journal_ns, is_believed) in [(0, true), (T - HOUR, true), (T + HOUR, false)] {
            let mut keeper = Timekeeper::default();
            let bounds = WallBounds { journal_ns, ..bounds() };
            keeper.observe(0, T, &bounds, &[]);
            assert!(!keeper.is_believed(), "somebody may be reached yet");
            keeper.observe(6 * S, T + 6 * S, &bounds, &[]);
            assert_eq!(keeper.is_believed(), is_believed, "{journal_ns}");
        }
        // A node that has no peers waits for nobody.
        let mut keeper = Timekeeper::default();
        keeper.observe(0, T, &WallBounds { has_peers: false, journal_ns: T + HOUR, ..bounds() }, &[]);
        assert!(keeper.is_believed());
    }

    #[test]
    fn a_step_of_the_wall_clock_is_bridged_until_the_clock_is_right() {
        let mut keeper = confirmed();
        // An hour ahead, all at once, and nobody is reached.
        keeper.observe(5 * S, T + 5 * S + HOUR, &bounds(), &[]);
        assert_eq!((keeper.wall(), keeper.correction_ns()), (Wall::Carried, -(HOUR as i64)));
        keeper.observe(10 * S, T + 10 * S + HOUR, &bounds(), &[]);
        assert_eq!(keeper.correction_ns(), -(HOUR as i64));
        let wandered = 10 * MS..11 * MS;
        assert!(wandered.contains(&keeper.unsure_ns()), "{}", keeper.unsure_ns());
        keeper.observe(15 * S, T + 15 * S, &bounds(), &[]);
        assert_eq!((keeper.wall(), keeper.correction_ns()), (Wall::Carried, 0), "it may be on its way");
        keeper.observe(16 * S, T + 16 * S, &bounds(), &[]);
        assert_eq!((keeper.wall(), keeper.correction_ns()), (Wall::Own, 0));
        assert_eq!(keeper.compared(), Some(Now { steady_ns: 16 * S, wall_ns: T + 16 * S }));
    }

    #[test]
    fn a_step_of_the_wall_clock_that_peers_confirm_is_followed() {
        let mut keeper = confirmed();
        keeper.observe(S, T + 6 * S, &bounds(), &[peer(1), peer(-2)]);
        assert_eq!((keeper.wall(), keeper.correction_ns()), (Wall::Own, 0));
    }

    #[test]
    fn a_slewed_wall_clock_is_followed_when_it_has_come_to_rest() {
        // Half a second back, by a tenth of the time that passes: each step is within the bounds of a right
        // wall.
        for peers in [vec![], vec![peer(0), peer(0)]] {
            let mut keeper = confirmed();
            for tenth in 1..=100 {
                let passed_ns = tenth * S / 10;
                let behind_ns = (passed_ns / 10).min(S / 2);
                let ahead = |peer: &ClockReading| ClockReading {
                    ahead_ns: peer.ahead_ns + behind_ns.cast_signed(),
                    ..*peer
                };
                let peers: Vec<ClockReading> = peers.iter().map(ahead).collect();
                keeper.observe(passed_ns, T + passed_ns - behind_ns, &bounds(), &peers);
                let gone_by = (T + passed_ns - behind_ns).saturating_add_signed(keeper.correction_ns());
                assert!(
                    gone_by.abs_diff(T + passed_ns) <= 11 * MS,
                    "{} ms after {tenth}",
                    gone_by.abs_diff(T + passed_ns) / MS
                );
            }
        }
    }

    #[test]
    fn a_node_that_most_peers_contradict_uses_their_time() {
        let mut keeper = confirmed();
        for s in 1..100_000 {
            keeper.observe(s * S, T + s * S, &bounds(), &[peer(5_000), peer(5_003)]);
            assert_eq!(keeper.wall(), Wall::Peers, "two of three differ");
            assert!(keeper.unsure_ns() < 100 * MS, "{} after {s} s", keeper.unsure_ns());
        }
        let corrected_ms = keeper.correction_ns() / MS as i64;
        assert!((5_000..=5_003).contains(&corrected_ms), "{corrected_ms}");
        // The peers are mended, one after the other.
        let now = |s: u64| (100_000 + s) * S;
        keeper.observe(now(1), T + now(1), &bounds(), &[peer(5_000), peer(3)]);
        assert_eq!((keeper.wall(), keeper.correction_ns()), (Wall::Own, 0), "one of two agrees");
    }

    #[test]
    fn one_peer_alone_does_not_overrule_a_wall_clock() {
        let mut keeper = confirmed();
        keeper.observe(S, T + S, &bounds(), &[peer(5_000)]);
        assert_eq!(keeper.wall(), Wall::Own);
        assert!(keeper.unsure_ns() > 5 * S, "edges within the difference are charged twice");
        // The other node knows that its wall is wrong, and goes by this one's.
        let corrected = ClockReading { corrected_ns: -5_000 * MS as i64, ..peer(5_000) };
        keeper.observe(2 * S, T + 2 * S, &bounds(), &[corrected]);
        assert_eq!((keeper.wall(), keeper.unsure_ns()), (Wall::Own, 0));
        // Such a peer leads no node that begins.
        let mut keeper = Timekeeper::default();
        keeper.observe(0, T, &bounds(), &[corrected]);
        assert_eq!(keeper.wall(), Wall::Unconfirmed);
    }

    #[test]
    fn peers_that_contradict_each_other_correct_no_clock() {
        let mut keeper = confirmed();
        keeper.observe(S, T + S, &bounds(), &[peer(5_000), peer(-90_000), peer(700_000)]);
        assert_eq!((keeper.wall(), keeper.correction_ns()), (Wall::Carried, 0));
        let mut keeper = Timekeeper::default();
        keeper.observe(S, T + S, &bounds(), &[peer(5_000), peer(-90_000)]);
        assert_eq!((keeper.wall(), keeper.is_believed()), (Wall::Unconfirmed, false));
    }

    #[test]
    fn a_clock_set_between_comparisons_is_not_followed_until_the_next() {
        let carried = Carried::default();
        assert_eq!(carried.unless_set(5 * S, 3_600 * S), 3_600 * S, "nobody has looked yet");
        carried.set(Now { steady_ns: S, wall_ns: 101 * S }, 10 * MS, 1_000);
        assert_eq!(carried.unless_set(2 * S, 102 * S + 20 * MS), 102 * S + 20 * MS, "as wrong as it may be");
        assert_eq!(carried.unless_set(2 * S, 102 * S + 22 * MS), 102 * S, "more than it may be");
        assert_eq!(carried.unless_set(2 * S, 3_702 * S), 102 * S);
        // After an hour the steady clock may be wrong by more than three seconds.
        assert_eq!(carried.unless_set(3_601 * S, 3_704 * S), 3_704 * S);
    }

    #[test]
    fn a_slow_steady_clock_is_not_taken_for_a_step_of_the_wall_clock() {
        let bounds =
            WallBounds { error_ns: 0, drift_ppm: 20_000, has_peers: false, is_alone: true, journal_ns: 0 };
        let mut keeper = Timekeeper::default();
        keeper.observe(0, T, &bounds, &[]);
        // After a long sleep: an hour passed, of which the steady clock missed two in a hundred.
        keeper.observe(3_528 * S, T + 3_600 * S, &bounds, &[]);
        assert!(!keeper.is_suspect());
    }
}
