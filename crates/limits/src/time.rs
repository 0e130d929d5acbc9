//! The two clocks of a decision.

/// The end of time, in nanoseconds: every clock shows less than this.
pub const CLOCK_END: u64 = 1 << 63;

/// The time on both clocks, in nanoseconds since the Unix epoch.
///
/// *Steady* time never goes back while a process lives, and counts while the machine sleeps. Buckets refill
/// and sliding windows slide by steady time. The steady clock is anchored to the wall once, at start, so
/// that state kept on disk means the same after a restart. *Wall* time may be stepped by an operator or by
/// NTP. Only windows with edges that people see (`:00`, midnight) use wall time.
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

    /// The instant `ns` later, on both clocks.
    #[must_use]
    pub const fn later(self, ns: u64) -> Self {
        Self { steady_ns: self.steady_ns + ns, wall_ns: self.wall_ns + ns }
    }
}

/// Nanoseconds as milliseconds, rounded up: a caller must never wait too short a time.
pub const fn ms_rounded_up(ns: u64) -> u64 {
    ns.div_ceil(1_000_000)
}

/// Nanoseconds as seconds, rounded up.
pub const fn seconds_rounded_up(ns: u64) -> u64 {
    ns.div_ceil(1_000_000_000)
}
