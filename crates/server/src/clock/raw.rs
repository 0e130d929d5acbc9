//! The three clocks of a machine, as the system gives them. Tests and simulations replace only this file.

use std::fmt;

use rustix::time::{ClockId, clock_gettime};

/// A wall below this is not set: 1 November 2026, before the first version of this program.
pub const WALL_NS_MIN: u64 = 1_793_491_200 * 1_000_000_000;
/// A wall above this is broken: the year 2200. Sums with durations still fit in 63 bits.
pub const WALL_NS_MAX: u64 = 7_258_118_400 * 1_000_000_000;

/// The clocks of a machine. Each call is one reading; nothing is remembered between two.
pub trait RawClocks: fmt::Debug + Send + Sync {
    /// A counter that is quick to read. It should grow evenly; the caller notices if it does not.
    fn counter(&self) -> u64;

    /// Nanoseconds since the machine was started, time asleep included: `CLOCK_BOOTTIME`.
    fn boot_ns(&self) -> u64;

    /// Nanoseconds since 1970: `CLOCK_REALTIME`. 0 where that is before 1970.
    fn wall_ns(&self) -> u64;
}

/// The clocks of this machine.
#[derive(Clone, Debug, Default)]
pub struct System {
    /// Only the raw readings are used, not the times that the library makes of them.
    counter: quanta::Clock,
}

impl RawClocks for System {
    #[inline]
    fn counter(&self) -> u64 {
        self.counter.raw()
    }

    fn boot_ns(&self) -> u64 {
        read_ns(BOOT)
    }

    fn wall_ns(&self) -> u64 {
        read_ns(ClockId::Realtime)
    }
}

#[cfg(target_os = "linux")]
const BOOT: ClockId = ClockId::Boottime;
/// On other systems `CLOCK_MONOTONIC` counts time asleep, or there is nothing better.
#[cfg(not(target_os = "linux"))]
const BOOT: ClockId = ClockId::Monotonic;

fn read_ns(clock: ClockId) -> u64 {
    let read = clock_gettime(clock);
    let (seconds, nanos) = (u64::try_from(read.tv_sec), u64::try_from(read.tv_nsec));
    let whole = |seconds: u64| seconds.saturating_mul(1_000_000_000);
    seconds.map_or(0, whole).saturating_add(nanos.unwrap_or(0))
}
