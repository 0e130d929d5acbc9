//! How the client behaves where its caller does not say it: its times, bounds and preferences, in one place.
//!
//! The public constants of the crate are contracts with its callers, and so stand where they are used:
//! [`CONNECTION_AGE`](crate::CONNECTION_AGE), [`DELAY_MAX`](crate::DELAY_MAX) and the bounds on what is in
//! flight. Sizes that a format forces stand beside the format. The assertions at the end state how the settings
//! relate.

use std::time::Duration;

/// The settings that every client runs with.
pub(crate) const SETTINGS: Settings = Settings {
    connection: ConnectionSettings {
        connect_max: Duration::from_secs(1),
        replace_max: Duration::from_secs(5),
        retry_part: 10,
        keep_alive_interval: Duration::from_secs(10),
        keep_alive_answer: Duration::from_secs(5),
        token_look: Duration::from_secs(1),
        file_bytes_max: 1 << 20,
        moves_max: 4,
        move_again: Duration::from_millis(10),
    },
    answer: AnswerSettings { violations_max: 8 },
    settlement: SettlementSettings { tries: 3, pause: Duration::from_millis(50) },
    slot: SlotSettings { renew_part: 3 },
    lease: LeaseSettings {
        refresh_min: Duration::from_millis(10),
        ttl_max: Duration::from_secs(3_600),
        headroom_tenths: 5,
        refresh_parts: 16,
        low_part: 3,
        margin_part: 32,
        window_margin: Duration::from_millis(20),
        soon: Duration::from_millis(10),
        unanswered_pause: Duration::from_millis(100),
        unsure_pause: Duration::from_secs(1),
        denial_pause_max: Duration::from_secs(5),
        settlements_max: 16,
    },
};

/// All settings of a client.
pub(crate) struct Settings {
    pub(crate) connection: ConnectionSettings,
    pub(crate) answer: AnswerSettings,
    pub(crate) settlement: SettlementSettings,
    pub(crate) slot: SlotSettings,
    pub(crate) lease: LeaseSettings,
}

/// The connection to a node, and streams of checks on it.
pub(crate) struct ConnectionSettings {
    /// The longest time to make a connection. This time is longer than any round trip on this planet with one
    /// packet lost. A caller rarely waits so long, because the deadline is shorter.
    pub(crate) connect_max: Duration,
    /// The longest time to make a successor in the background. No call waits for it. Above `connect_max`.
    pub(crate) replace_max: Duration,
    /// After one part in this many of its age, a connection tries again if its successor could not be made. Larger:
    /// it tries again sooner.
    pub(crate) retry_part: u32,
    /// How long a connection may be quiet before the client asks whether the node is still there. The client asks
    /// even without calls. So the first call after a quiet hour does not find that a firewall has dropped the
    /// connection.
    pub(crate) keep_alive_interval: Duration,
    /// How long the node may take to answer before the connection is given up.
    pub(crate) keep_alive_answer: Duration,
    /// The interval between reads of the token's file. Larger: a new token is used later.
    pub(crate) token_look: Duration,
    /// The longest file of certificates, a key or a token, in bytes. A longer file is some other file.
    pub(crate) file_bytes_max: u64,
    /// The most connections in a row that nodes may end without an answer. The stream passes by nodes that
    /// stop, and gives up on a node that always ends it.
    pub(crate) moves_max: u32,
    /// The wait before another move, if the last move brought no answer.
    pub(crate) move_again: Duration,
}

/// How a denial is told.
pub(crate) struct AnswerSettings {
    /// The most limits that a status names. The details are a header, and many clients take only 8 KiB of it.
    pub(crate) violations_max: usize,
}

/// Refunds and commits.
pub(crate) struct SettlementSettings {
    /// How often a settlement is sent. Sending it again is safe, because a charge is settled once.
    pub(crate) tries: usize,
    /// The wait before a settlement is sent again. A lost connection is made again in this time.
    pub(crate) pause: Duration,
}

/// Slots of requests under way.
pub(crate) struct SlotSettings {
    /// Slots are renewed after one part in this many of their time. Larger: more renewals may fail before they are lost,
    /// and nodes have more to do.
    pub(crate) renew_part: u32,
}

/// Units that are charged in advance.
pub(crate) struct LeaseSettings {
    /// The shortest refresh that a caller may ask for. With a shorter one a lease would ask about as often as its
    /// caller.
    pub(crate) refresh_min: Duration,
    /// The longest ttl that a caller may ask for: the longest that a node allows for a reservation.
    pub(crate) ttl_max: Duration,
    /// Headroom above the demand, in tenths of it. Demand that grows by less than this finds enough units. Larger:
    /// more units are held that others cannot spend.
    pub(crate) headroom_tenths: u128,
    /// Demand is measured over at least one part in this many of a refresh. Larger: a single burst counts as steady
    /// demand sooner.
    pub(crate) refresh_parts: u32,
    /// A lease asks for more units when less than one part in this many of them is left. Smaller: it asks sooner.
    pub(crate) low_part: u64,
    /// Units expire here before they expire at the node, by one part in this many of the ttl. Clocks may drift apart,
    /// and the rest has to be given back in time. A node allows for a drift of a thousandth.
    pub(crate) margin_part: u32,
    /// How long before the end of a window its units expire here. Windows end by the wall clock, and wall
    /// clocks differ.
    pub(crate) window_margin: Duration,
    /// The retry time that a caller is told while units are on their way: somewhat more than a node in the same
    /// region takes to answer.
    pub(crate) soon: Duration,
    /// The pause after a call that no node answered.
    pub(crate) unanswered_pause: Duration,
    /// The pause after an answer that a lease cannot use, or after a denial without a time to come back.
    pub(crate) unsure_pause: Duration,
    /// The longest time that a denial is repeated before the node is asked again: a budget may have been raised
    /// meanwhile. At least `unsure_pause`.
    pub(crate) denial_pause_max: Duration,
    /// The most settlements in flight. Each belongs to units that were replaced a few deadlines ago at most. A
    /// settlement beyond this number is not made, and its units count as spent.
    pub(crate) settlements_max: usize,
}

/// Whether one time is shorter than another.
const fn is_below(shorter: Duration, longer: Duration) -> bool {
    shorter.as_nanos() < longer.as_nanos()
}

// How the settings relate.
const _: () = {
    let Settings { connection, answer, settlement, slot, lease } = SETTINGS;
    assert!(slot.renew_part > 1);
    assert!(is_below(connection.connect_max, connection.replace_max) && connection.retry_part > 1);
    assert!(connection.moves_max > 0 && answer.violations_max > 0 && settlement.tries > 0);
    // The bounds leave a ttl of two refreshes.
    assert!(2 * lease.refresh_min.as_nanos() <= lease.ttl_max.as_nanos());
    // Units live for some time, and expire here first even if the clocks drift apart by a thousandth.
    assert!(
        lease.margin_part > 1 && lease.margin_part < 1_000 && lease.low_part > 0 && lease.refresh_parts > 0
    );
    // A denial without a time is repeated no longer than any other.
    assert!(!is_below(lease.denial_pause_max, lease.unsure_pause));
    assert!(is_below(lease.unanswered_pause, lease.unsure_pause));
};
