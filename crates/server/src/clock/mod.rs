#![doc = include_str!("README.md")]

mod latch;
mod raw;
mod steady;
mod wall;

use std::{
    fmt,
    sync::{
        Mutex, PoisonError, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
};

use acequia_limits::Now;
use tracing::{info, warn};

use self::{
    latch::{Latch, Line},
    steady::Steady,
    wall::WallClock,
};
pub use self::{
    raw::{RawClocks, System, WALL_NS_MAX, WALL_NS_MIN},
    steady::Counter,
};

/// Both clocks of a node.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The time now. Steady time never goes back from one call to the next, on any thread.
    fn now(&self) -> Now;

    /// Reads the system's own clocks. Call this every 20 ms or so: nothing else notices a counter that stands
    /// still.
    fn look(&self) -> Now;

    /// The state of the clocks, for metrics and logs.
    fn health(&self) -> Health;
}

/// The state of a process's clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether steady time is read from the processor's counter.
    pub counter: Counter,
    /// How far the node's wall is ahead of the system's, in nanoseconds: above 0 while the wall is slewed.
    pub ahead_ns: u64,
    /// How often the node began to slew a wall that was ahead.
    pub slews: u64,
    /// How often the system's wall was set back so far that the node's went back with it.
    pub steps_back: u64,
    /// By how much the last of these set the wall back, in nanoseconds.
    pub stepped_back_ns: u64,
    /// Impossible readings of the system's wall: the node's wall went on without them.
    pub impossible: u64,
}

impl Health {
    /// Logs what changed since `before` and concerns an operator.
    pub(crate) fn tell_since(&self, before: &Self) {
        if self.counter == Counter::Unstable && before.counter != Counter::Unstable {
            info!(
                "the processor's counter is not steady: the system's clock is read instead, which takes longer"
            );
        }
        let ms = |ns: u64| ns / 1_000_000;
        if self.slews > before.slews {
            warn!(
                ahead_ms = ms(self.ahead_ns),
                "the system's wall clock was set back: this node slews until both agree. Was it meant? See what keeps the time"
            );
        }
        if self.steps_back > before.steps_back {
            warn!(
                by_ms = ms(self.stepped_back_ns),
                "the system's wall clock was set back by more than 3 s: windows that were left stay closed (reason `clock`) \
                 until it passes their ends"
            );
        }
        if self.impossible > 0 && before.impossible == 0 {
            warn!(
                "the system's wall clock reads a time that cannot be: this node goes on without it. Set the clock"
            );
        }
    }
}

/// Why a clock cannot be used from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the system's clock reads {seconds} s after 1970, which is {}: set the clock, and start again (with systemd: After=time-sync.target)",
    if *seconds < WALL_NS_MIN / 1_000_000_000 { "before this program was written" } else { "after the year 2200" }
)]
pub struct ClockFault {
    /// The reading, in seconds since 1970.
    pub seconds: u64,
}

/// A pair of clocks, made of the three raw clocks.
#[derive(Debug)]
pub struct DisciplinedClock<R> {
    raw: R,
    /// Steady time minus the system's `CLOCK_BOOTTIME`, modulo 2^64: chosen at the start, and never changed.
    anchor_ns: u64,
    line: Latch,
    latest: Latest,
    look: Mutex<Look>,
    health: Mutex<Health>,
}

/// The state that a look at the raw clocks leaves for the next look.
#[derive(Debug)]
struct Look {
    steady: Steady,
    wall: WallClock,
    told: Health,
}

/// The latest readings that any thread was given. They have a cache line of their own: nothing beside them is
/// read more often than they are written.
#[derive(Debug)]
#[repr(align(128))]
struct Latest {
    steady_ns: AtomicU64,
    /// The walls, by the lowest bit of the number of times that the wall was set back.
    wall_ns: [AtomicU64; 2],
}

/// The clocks of this machine.
pub type SystemClock = DisciplinedClock<System>;

impl SystemClock {
    /// The clocks of this machine, from now on.
    ///
    /// # Errors
    /// The wall is not set: a machine without a clock of its own begins in 1970.
    pub fn start() -> Result<Self, ClockFault> {
        Self::new(System::default())
    }
}

impl<R: RawClocks> DisciplinedClock<R> {
    /// Clocks that begin now, with steady time at the wall's reading.
    ///
    /// # Errors
    /// The wall is not set.
    pub fn new(raw: R) -> Result<Self, ClockFault> {
        // The wall is read first, so that it is dated no earlier than it was read.
        let wall_ns = raw.wall_ns();
        let boot_ns = raw.boot_ns();
        if !(WALL_NS_MIN..=WALL_NS_MAX).contains(&wall_ns) {
            return Err(ClockFault { seconds: wall_ns / 1_000_000_000 });
        }
        let anchor_ns = wall_ns.wrapping_sub(boot_ns);
        let wall = WallClock::starting_at(anchor_ns.cast_signed(), boot_ns);
        let line =
            Latch::new(Line { offset_ns: wall.offset_ns() - anchor_ns.cast_signed(), ..Line::default() });
        let latest = Latest {
            steady_ns: AtomicU64::new(wall_ns),
            wall_ns: [AtomicU64::new(wall_ns), AtomicU64::new(0)],
        };
        let look = Mutex::new(Look { steady: Steady::default(), wall, told: Health::default() });
        Ok(Self { raw, anchor_ns, line, latest, look, health: Mutex::default() })
    }

    /// Looks at the raw clocks, and publishes the result for other readers. Returns steady time, and the line
    /// for the wall.
    #[cold]
    fn take_look(&self) -> (u64, Line) {
        let mut look = match self.look.try_lock() {
            Ok(look) => look,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread looks now: the system's own clock serves for this reading.
            Err(TryLockError::WouldBlock) => {
                return (self.raw.boot_ns().wrapping_add(self.anchor_ns), self.line.read());
            }
        };
        let sight = look.steady.sight(&self.raw);
        let wall_ns = self.raw.wall_ns();
        let boot_ns = self.raw.boot_ns();
        let generation = look.wall.generation();
        look.wall.observe(wall_ns, sight.boot_ns.1, boot_ns);
        let anchor_ns = self.anchor_ns;
        let line = Line {
            offset_ns: look.wall.offset_ns() - anchor_ns.cast_signed(),
            generation: look.wall.generation(),
            ..look.steady.line(&sight, anchor_ns)
        };
        if line.generation != generation {
            // This comes before any reader uses the new generation. It overwrites what a late reader of an
            // earlier generation may have left here.
            let from_ns = boot_ns.wrapping_add_signed(look.wall.offset_ns());
            self.latest.of_wall(line.generation).store(from_ns, Ordering::Release);
        }
        self.line.write(&line);
        let health = Health { counter: look.steady.counter(), ..look.wall.health() };
        if look.told != health {
            look.told = health;
            *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
        }
        (boot_ns.wrapping_add(anchor_ns), line)
    }
}

impl Latest {
    fn of_wall(&self, generation: u64) -> &AtomicU64 {
        &self.wall_ns[(generation & 1) as usize]
    }

    /// A reading; or the reading that another thread was given, if that is later.
    #[inline]
    fn with(&self, steady_ns: u64, line: &Line) -> Now {
        let max = |latest: &AtomicU64, ns: u64| latest.fetch_max(ns, Ordering::AcqRel).max(ns);
        let wall_ns = steady_ns.wrapping_add_signed(line.offset_ns);
        Now {
            steady_ns: max(&self.steady_ns, steady_ns),
            wall_ns: max(self.of_wall(line.generation), wall_ns),
        }
    }
}

impl<R: RawClocks> Clock for DisciplinedClock<R> {
    #[inline]
    fn now(&self) -> Now {
        let line = self.line.read();
        // The counter is read after the line, so that it is no earlier than the line's beginning.
        let counter = self.raw.counter();
        let (read_ns, line) = match line.at(counter) {
            Some(steady_ns) => (steady_ns, line),
            None => self.take_look(),
        };
        self.latest.with(read_ns, &line)
    }

    fn look(&self) -> Now {
        let (read_ns, line) = self.take_look();
        self.latest.with(read_ns, &line)
    }

    fn health(&self) -> Health {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
