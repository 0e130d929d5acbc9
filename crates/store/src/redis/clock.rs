//! The time of a server's clock, and whether a node with another time may call the server.
//!
//! Nodes date what they take from a pool by their walls, so two nodes with different walls could have one
//! window twice. Nodes do not hear each other, but each hears the servers. *A server is called only while its
//! clock and the caller's wall are as close as two right clocks are*: within twice the clock error, plus the
//! uncertainty of the round trip. So if two callers are further apart than four clock errors, one of them is
//! not served.

use std::time::Instant;

use acequia_node::pool::ServerClock;

use crate::settings::SETTINGS;

/// How far our steady clock may drift since a server told the time, in parts per million. The time since then
/// is short.
const DRIFT_PPM: u64 = 1_000;

/// A reading of a server's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    /// Nanoseconds since 1970.
    wall_ns: u64,
    /// When the server read its clock: half of the round trip after the question.
    at: Instant,
    unsure_ns: u64,
}

/// A reading of a node's wall.
#[derive(Clone, Copy, Debug)]
pub struct WallRead {
    /// Nanoseconds since 1970, by the system's clock.
    pub wall_ns: u64,
    /// How far the node's own time is ahead of the system's, in nanoseconds.
    pub corrected_ns: i64,
    /// The wall was read after this, and before [`Self::until`].
    pub from: Instant,
    /// See [`Self::from`].
    pub until: Instant,
}

/// How a server's clock compares with the time of its callers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Compared {
    /// The clocks are not compared: callers hear of each other's clocks elsewhere.
    #[default]
    Never,
    /// The clocks were not compared yet.
    Unread,
    /// The clocks are as close as right ones are.
    Agrees,
    /// The clocks differ. Says why the server must not be called, and what to do.
    Differs(String),
}

impl ClockReading {
    /// A server's reading, from the times of the question and of the answer.
    pub(super) fn new(wall_ns: u64, asked: Instant, answered: Instant) -> Self {
        let half = answered.saturating_duration_since(asked) / 2;
        Self { wall_ns, at: asked + half, unsure_ns: nanos(half) }
    }

    /// How far the server's clock is ahead of a wall.
    pub(super) fn compared(&self, read: &WallRead) -> ServerClock {
        let half = read.until.saturating_duration_since(read.from) / 2;
        let at = read.from + half;
        let passed_ns = nanos(at.saturating_duration_since(self.at));
        let theirs_ns = i128::from(self.wall_ns) + i128::from(passed_ns);
        let drifted_ns = passed_ns.saturating_mul(DRIFT_PPM).div_ceil(1_000_000);
        let ahead_ns = theirs_ns - i128::from(read.wall_ns);
        ServerClock {
            ahead_ns: i64::try_from(ahead_ns).unwrap_or(if ahead_ns < 0 { i64::MIN } else { i64::MAX }),
            unsure_ns: self.unsure_ns.saturating_add(nanos(half)).saturating_add(drifted_ns),
        }
    }

    /// Whether the reading is certain enough to be used.
    pub(super) const fn is_sure(&self) -> bool {
        self.unsure_ns <= SETTINGS.servers.clock_unsure_ns_max
    }

    /// When the clock was read.
    pub(super) const fn at(&self) -> Instant {
        self.at
    }
}

impl Compared {
    /// The result of a comparison.
    pub(super) fn of(clock: ServerClock, read: &WallRead, error_ns: u64) -> Self {
        let ahead_ns = clock.ahead_ns.saturating_sub(read.corrected_ns);
        if (ServerClock { ahead_ns, ..clock }).agrees(error_ns) {
            return Self::Agrees;
        }
        let seconds = ahead_ns.unsigned_abs() as f64 / 1e9;
        let way = if ahead_ns < 0 { "behind" } else { "ahead of" };
        Self::Differs(format!(
            "its clock is {seconds:.3} s {way} this node's, and the two may differ by {} ms: set the one that is wrong, and let NTP \
             keep both",
            error_ns.saturating_mul(2) / 1_000_000
        ))
    }

    /// Why no call may go; `None` if calls may go.
    pub(super) fn objection(&self) -> Option<&str> {
        match self {
            Self::Never | Self::Agrees => None,
            Self::Unread => Some("its clock was not compared with this node's yet"),
            Self::Differs(why) => Some(why),
        }
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;
    const T: u64 = 1_800_000_000_000_000_000;

    fn compared(server_ns: u64, corrected_ns: i64) -> Compared {
        let asked = Instant::now();
        let told = ClockReading::new(server_ns, asked, asked + Duration::from_millis(2));
        let at = asked + Duration::from_millis(101);
        let read = WallRead { wall_ns: T, corrected_ns, from: at, until: at };
        Compared::of(told.compared(&read), &read, 10 * MS)
    }

    #[test]
    fn clocks_agree_if_they_differ_by_no_more_than_their_errors() {
        // A tenth of a second has passed since the reading. That adds an uncertainty of 0.1 ms for drift and
        // of 1 ms for the way.
        for (off_ms, agrees) in
            [(0, true), (21, true), (-21, true), (22, false), (-22, false), (3_600_000, false)]
        {
            let server_ns = (T - 100 * MS).saturating_add_signed(off_ms * MS as i64);
            assert_eq!(compared(server_ns, 0).objection().is_none(), agrees, "{off_ms} ms");
            assert_eq!(compared(server_ns, off_ms * MS as i64), Compared::Agrees, "what is gone by counts");
        }
    }

    #[test]
    fn a_clock_objection_says_which_clock_is_ahead() {
        let words = |compared: Compared| compared.objection().map(ToOwned::to_owned).unwrap_or_default();
        let ahead = words(compared(T - 100 * MS + 3_600_000 * MS, 0));
        assert!(ahead.contains("3600.000 s ahead of this node's") && ahead.contains("20 ms"), "{ahead}");
        let at_zero = words(compared(0, 0));
        assert!(at_zero.contains("s behind this node's"), "{at_zero}");
    }

    #[test]
    fn a_shard_is_not_called_before_its_clock_was_compared() {
        assert!(Compared::Unread.objection().is_some());
        assert!(Compared::default().objection().is_none(), "where that is asked of nobody");
    }
}
