//! How this crate behaves where no rule says it: its times, bounds and preferences, in one place.
//!
//! Assertions at the end state how the numbers relate. Names, formats and tables stand beside the code that
//! needs them, and so does the drift that the comparison of clocks allows for. What an operator may set is in
//! [`crate::redis::Settings`], with its ranges and defaults.

use std::time::Duration;

use acequia_node::pool::LATE_NS;

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;

/// The settings that every process runs with.
pub(crate) const SETTINGS: Settings = Settings {
    journal: JournalSettings { cache_bytes: 16 << 20, rewritten_bytes: 1 << 20 },
    carry: CarrySettings {
        look: Duration::from_millis(1),
        tick: Duration::from_millis(10),
        keep_again: Duration::from_millis(250),
    },
    calls: CallSettings {
        in_flight_max: 256,
        place_wait_max: Duration::from_millis(10),
        writes_max: 256,
        unanswered_bytes_max: 4 << 20,
    },
    servers: ServerSettings { silent_pings_max: 3, doubt_pings_max: 4, clock_unsure_ns_max: 50 * MS },
    layout: LayoutSettings {
        look_gap: Duration::from_millis(50),
        look_gap_max: Duration::from_millis(500),
        calm_asked: 2,
        asked_max: 7,
    },
    breaker: BreakerSettings {
        missed_max: 10,
        missed_for: Duration::from_millis(20),
        answered_min: 8,
        pause: Duration::from_millis(200),
        gap: Duration::from_millis(100),
    },
};

/// What a process takes from [`SETTINGS`].
pub(crate) struct Settings {
    pub(crate) journal: JournalSettings,
    pub(crate) carry: CarrySettings,
    pub(crate) calls: CallSettings,
    pub(crate) servers: ServerSettings,
    pub(crate) layout: LayoutSettings,
    pub(crate) breaker: BreakerSettings,
}

/// The file of rows.
pub(crate) struct JournalSettings {
    /// The default memory for parts of the file, in bytes. With more memory, a large journal is written with
    /// fewer reads.
    pub(crate) cache_bytes: usize,
    /// How many bytes are written again at a time after a failed sync. More bytes take more memory meanwhile;
    /// fewer bytes take more writes.
    pub(crate) rewritten_bytes: usize,
}

/// Carrying a node's calls to its pools.
pub(crate) struct CarrySettings {
    /// The shortest time between two looks at cells that call for one. A decision waits for a pool a few times
    /// as long. A longer time delays decisions; a shorter one costs looks.
    pub(crate) look: Duration,
    /// The longest time between two ticks of a node, and about the time between two comparisons of clocks. A
    /// longer time delays what is due; a shorter one costs ticks of an idle node.
    pub(crate) tick: Duration,
    /// The pause until a failed write of generations is tried again. A longer pause delays the node after the
    /// disk is mended; a shorter one burdens a failing disk.
    pub(crate) keep_again: Duration,
}

/// Calls of functions, and the connections that carry them.
pub(crate) struct CallSettings {
    /// The most calls in flight to one shard. One core of Redis executes about 50 000 functions a second, so
    /// each of these calls is answered within some 5 ms. More calls wait longer in the server; fewer leave it
    /// idle.
    pub(crate) in_flight_max: usize,
    /// The longest time that further calls wait for a place, in order: a node that asks all groups at once
    /// must not lose later calls. A call also waits for at most half of its deadline. Below [`LATE_NS`], or a
    /// bucket's grant would come too late to be of use.
    pub(crate) place_wait_max: Duration,
    /// The most requests that wait to be written on one connection: at least `in_flight_max`, so that no call
    /// waits for a place there. More would never be used.
    pub(crate) writes_max: usize,
    /// The most bytes that a server may send without answering anything: some ten times the description of a
    /// thousand shards. Beyond this the connection ends, since the other side could make us hold any amount.
    pub(crate) unanswered_bytes_max: usize,
}

/// When a server counts as hung, and which of its readings count.
pub(crate) struct ServerSettings {
    /// Unanswered pings in a row after which a server counts as hung. A larger number finds a successor later;
    /// a smaller one gives up servers that were only slow.
    pub(crate) silent_pings_max: u32,
    /// A connection that was not tried for this many periods of pings is not used for calls. A server that does
    /// not answer is given up earlier, so this only matters after our own process was held up.
    pub(crate) doubt_pings_max: u32,
    /// A reading of a server's clock with a larger uncertainty, in nanoseconds, is discarded: its round trip
    /// took twice as long. A larger bound compares clocks less sharply; with a smaller one, a server over a slow
    /// link is never compared and so never called.
    pub(crate) clock_unsure_ns_max: u64,
}

/// Finding out which server has which groups.
pub(crate) struct LayoutSettings {
    /// The shortest time between two looks. A call that is refused asks for a look, and there may be many such
    /// calls. The time doubles until all is calm.
    pub(crate) look_gap: Duration,
    /// The longest time between looks while a shard is down: a successor is found within it. Looks of many
    /// nodes must not burden the servers that have to agree on the successor.
    pub(crate) look_gap_max: Duration,
    /// How many shards are asked when all is calm. The second one may correct old news of the first.
    pub(crate) calm_asked: usize,
    /// How many servers are asked at one time otherwise. A majority of seven outvotes those with old news, and
    /// one that hangs costs one of seven answers.
    pub(crate) asked_max: usize,
}

/// When a shard gets no calls, and how calls come back to it.
pub(crate) struct BreakerSettings {
    /// Unanswered calls in a row that open the breaker. Several calls may be in flight when a server stops for
    /// some milliseconds, so a lower number would open it for nothing. A higher number would keep callers
    /// waiting for a dead server.
    pub(crate) missed_max: u32,
    /// The time from the first to the last of them. All calls in flight are missed together when a machine stands
    /// still for a moment. Larger: callers wait longer for a dead server.
    pub(crate) missed_for: Duration,
    /// Answers in a row that close the breaker again. Each of them halves `gap`.
    pub(crate) answered_min: u32,
    /// The longest time that an open breaker stops all calls; the shortest is half of it.
    pub(crate) pause: Duration,
    /// The time between the first calls after a pause. Each answer halves it, so that the last gap is under
    /// half a millisecond. A healthy shard is fully used a quarter of a second after the first call.
    pub(crate) gap: Duration,
}

// How the settings relate.
const _: () = {
    let Settings { carry, calls, servers, layout, breaker, .. } = SETTINGS;
    // The next tick lies between a look and a tick from the last one.
    assert!(carry.look.as_nanos() <= carry.tick.as_nanos());
    // Waiting for a place leaves a bucket's grant of use.
    assert!(calls.place_wait_max.as_nanos() < LATE_NS as u128);
    // A call in flight never waits to be written.
    assert!(calls.in_flight_max <= calls.writes_max);
    // A ping may take three quarters of a period, and the next one begins a period after an answer. So a server
    // that stops answering pings is given up before its connection is doubted. Counted in quarters of a period.
    assert!(3 + 4 + 3 * servers.silent_pings_max <= 4 * servers.doubt_pings_max);
    // Calm shards are compared with each other. In doubt, more servers are asked.
    assert!(1 < layout.calm_asked && layout.calm_asked < layout.asked_max);
    assert!(layout.look_gap.as_nanos() < layout.look_gap_max.as_nanos());
    // The gap is divided by two to the power of the answers so far.
    assert!(0 < breaker.answered_min && breaker.answered_min <= u32::BITS);
    // All gaps together take less than twice the first one: a quarter of a second.
    assert!(2 * breaker.gap.as_nanos() <= 250 * MS as u128);
};
