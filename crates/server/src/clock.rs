//! Where a node reads the time. Tests and simulations bring their own.

use std::{
    fmt,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use acequia_limits::Now;

/// Both clocks of a node.
pub trait Clock: fmt::Debug + Send + Sync {
    /// What time it is. Steady time never goes back from one call to the next.
    fn now(&self) -> Now;
}

/// How long the difference between the clocks is believed, in nanoseconds: a step of the wall is
/// seen within a millisecond, and a decision reads one clock, not two.
const WALL_AGAIN_NS: u64 = 1_000_000;

/// The machine's clocks: steady time from the processor's own counter, anchored to the wall at
/// the start. A wall that is set back goes on from where it was, at the steady clock's pace, until
/// the node restarts: a window that was left, and forgotten, must not open again.
#[derive(Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    begun: u64,
    anchor_ns: u64,
    /// The largest seen of wall minus steady, in nanoseconds, and when to look again.
    offset_ns: AtomicI64,
    look_again_ns: AtomicU64,
}

impl SystemClock {
    /// Starts steady time at the wall's.
    pub fn start() -> Self {
        let counter = quanta::Clock::new();
        Self {
            begun: counter.raw(),
            counter,
            anchor_ns: wall_ns(),
            offset_ns: AtomicI64::new(0),
            look_again_ns: AtomicU64::new(0),
        }
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Now {
        let steady_ns = self.anchor_ns + self.counter.delta_as_nanos(self.begun, self.counter.raw());
        // Threads may race to look; what either finds is right.
        if steady_ns >= self.look_again_ns.load(Ordering::Relaxed) {
            self.look_again_ns.store(steady_ns + WALL_AGAIN_NS, Ordering::Relaxed);
            self.offset_ns.fetch_max(wall_ns().wrapping_sub(steady_ns) as i64, Ordering::Relaxed);
        }
        let wall_ns = steady_ns.saturating_add_signed(self.offset_ns.load(Ordering::Relaxed));
        Now { steady_ns, wall_ns }
    }
}

fn wall_ns() -> u64 {
    // A wall before 1970 or after 2262 is a broken one; 0 closes no window and opens none twice.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_time_moves_with_the_wall() {
        let clock = SystemClock::start();
        let (first, second) = (clock.now(), clock.now());
        assert!(second.steady_ns >= first.steady_ns);
        assert!(first.wall_ns.abs_diff(wall_ns()) < 1_000_000_000);
    }
}
