//! The two clocks of a decision.

/// A time, in nanoseconds, that no clock shows: they stay below it.
pub const CLOCK_END: u64 = 1 << 63;

/// What time it is, on both clocks, in nanoseconds since the Unix epoch.
///
/// *Steady* time never goes back while a process lives, and counts while the machine sleeps:
/// buckets refill and sliding windows slide by it. It is anchored to the wall once, at start, so
/// that state kept on disk means the same after a restart. *Wall* time may be stepped by an
/// operator or by NTP: only windows with edges that people see (`:00`, midnight) use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Nanoseconds on the steady clock. Below [`CLOCK_END`].
    pub steady_ns: u64,
    /// Nanoseconds on the wall clock. Below [`CLOCK_END`].
    pub wall_ns: u64,
}

impl Now {
    /// Both clocks show the same time.
    pub const fn at(ns: u64) -> Self {
        Self { steady_ns: ns, wall_ns: ns }
    }

    /// The same instant seen `ns` later, on both clocks.
    #[must_use]
    pub const fn later(self, ns: u64) -> Self {
        Self { steady_ns: self.steady_ns + ns, wall_ns: self.wall_ns + ns }
    }
}

/// Nanoseconds as milliseconds, rounded up: a wait must never be told too short.
pub const fn ms_rounded_up(ns: u64) -> u64 {
    ns.div_ceil(1_000_000)
}

/// Nanoseconds as seconds, rounded up.
pub const fn seconds_rounded_up(ns: u64) -> u64 {
    ns.div_ceil(1_000_000_000)
}
