//! How a mesh behaves where no rule says it: its times, bounds and preferences, in one place.
//!
//! Assertions at the end state how the numbers relate; those with the length of a frame stand in `frame.rs`.
//! Names, formats, codes and sizes of data structures stand beside the code that needs them. What a caller may set
//! is in [`Config`](crate::Config) and [`Timing`](crate::Timing).

use std::time::Duration;

/// Seconds of an hour.
const HOUR_S: i64 = 60 * 60;
/// Seconds of a day.
const DAY_S: i64 = 24 * HOUR_S;

/// The settings that every node runs with.
pub(crate) const SETTINGS: Settings = Settings {
    peers: PeerSettings {
        peers_max: 256,
        error_bytes_max: 512,
        told_every: Duration::from_secs(60),
        close_time_max: Duration::from_millis(500),
    },
    frames: FrameSettings {
        unacknowledged_max: 16,
        unacknowledged_bytes_max: 1 << 20,
        streams_in_max: 32,
        window_bytes: 8 << 20,
        held_bytes_max: 16 << 20,
        refused_max: 8,
        events_max: 32,
    },
    accept: AcceptSettings {
        handshakes_max: 64,
        handshakes_unproven_max: 16,
        asked_max: 2,
        proof_lifetime: Duration::from_secs(5),
        incoming_max: 128,
        incoming_bytes_max: 8 << 10,
    },
    dial: DialSettings {
        attempts_max: 16,
        addresses_max: 16,
        after_replaced: Duration::from_secs(1),
        first_round_trip: Duration::from_millis(100),
    },
    certs: CertSettings {
        node_valid_s: 365 * DAY_S,
        authority_valid_s: 3_650 * DAY_S,
        slow_clock_s: HOUR_S,
        file_bytes_max: 1 << 20,
    },
    seals: SealSettings { chain_max: 8, chain_bytes_max: 32 << 10, signature_bytes_max: 1 << 10 },
    relay: RelaySettings { queue_max: 4_096, flows_max: 64 },
};

/// What a node takes from [`SETTINGS`].
pub(crate) struct Settings {
    pub(crate) peers: PeerSettings,
    pub(crate) frames: FrameSettings,
    pub(crate) accept: AcceptSettings,
    pub(crate) dial: DialSettings,
    pub(crate) certs: CertSettings,
    pub(crate) seals: SealSettings,
    pub(crate) relay: RelaySettings,
}

/// What a node keeps and says of its peers.
pub(crate) struct PeerSettings {
    /// The most peers of one node. The memory that peers may take grows with the number.
    pub(crate) peers_max: usize,
    /// The most bytes of an error that are kept. The other side may have chosen the text.
    pub(crate) error_bytes_max: usize,
    /// Each kind of refusal of one peer is logged once in this time. The line in the log says so: a minute.
    pub(crate) told_every: Duration,
    /// How long [`Mesh::close`](crate::Mesh::close) waits for goodbyes to leave. A longer wait delays the stop
    /// of a node whose peers do not answer. A peer without a goodbye notices by itself.
    pub(crate) close_time_max: Duration,
}

/// Frames under way, and what a peer may make this node hold.
pub(crate) struct FrameSettings {
    /// The most frames in flight to one peer. [`NotSent::Full`](crate::NotSent::Full) names this number and the
    /// next one.
    pub(crate) unacknowledged_max: usize,
    /// The most bytes of those frames. A single frame may be longer if nothing else is in flight. More would
    /// only delay newer frames: after a cut, all unacknowledged bytes are repeated first.
    pub(crate) unacknowledged_bytes_max: usize,
    /// The most frames that a peer may have in flight to this node: twice as many as a node of this version
    /// sends. This many streams are read at once.
    pub(crate) streams_in_max: u32,
    /// The most bytes that a peer may send on one connection before any of them is read. At least a whole frame.
    pub(crate) window_bytes: u32,
    /// A further frame is refused if it makes one connection hold more bytes of frames than this. A node has 1
    /// MiB or one frame in flight, and no frame is begun while half of this is held.
    pub(crate) held_bytes_max: usize,
    /// The most frames that are refused on one connection before it is closed.
    pub(crate) refused_max: u32,
    /// The most events that wait to be taken. A frame among them may have
    /// [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX) bytes, though hardly any has. When the queue is full,
    /// nothing more is read from any peer.
    pub(crate) events_max: usize,
}

/// Letting in peers that dial this node.
pub(crate) struct AcceptSettings {
    /// The most handshakes at once. More take more memory and time of strangers' making; with fewer, strangers
    /// make peers wait sooner.
    pub(crate) handshakes_max: usize,
    /// From this many handshakes on, a newcomer must first prove that it receives packets at its address. A
    /// sender of made-up addresses then cannot take the places of others. Below `handshakes_max`.
    pub(crate) handshakes_unproven_max: usize,
    /// How often a newcomer is asked for that proof: a request may be lost, so more than once. But a dialler
    /// that has given up an attempt says so in a packet that looks like a first one. The dialler repeats that
    /// packet after every answer (RFC 9000 section 10.2.1). If the dialler were asked each time, both sides
    /// would talk at full link speed for as long as the dialler remembers.
    pub(crate) asked_max: u8,
    /// The longest time that a token proves an address. At least a round trip, or no proof arrives in time.
    pub(crate) proof_lifetime: Duration,
    /// The most first packets that wait for this crate to look at them.
    pub(crate) incoming_max: usize,
    /// The most bytes that may arrive for each of those first packets meanwhile. A dialler says nothing more
    /// before it is answered.
    pub(crate) incoming_bytes_max: u64,
}

/// Dialling a peer.
pub(crate) struct DialSettings {
    /// The most pending attempts of one peer. With fewer, attempts begin more rarely than
    /// [`Timing::dial`](crate::Timing::dial) says while none is answered.
    pub(crate) attempts_max: usize,
    /// The most addresses of a name that are tried in turn.
    pub(crate) addresses_max: usize,
    /// How long a peer that took a newer connection is left alone. Otherwise two nodes of one name would end
    /// each other's connections as fast as they can.
    pub(crate) after_replaced: Duration,
    /// The round trip that a new connection expects. A lost first packet is repeated after three times this.
    pub(crate) first_round_trip: Duration,
}

/// Certificates that are made and loaded here.
pub(crate) struct CertSettings {
    /// How long a node's certificate is valid, in seconds, if its authority is valid for so long.
    pub(crate) node_valid_s: i64,
    /// How long an authority is valid, in seconds. Above `node_valid_s`.
    pub(crate) authority_valid_s: i64,
    /// Certificates begin this far in the past, in seconds, so that a node whose clock is behind accepts them.
    pub(crate) slow_clock_s: i64,
    /// The most bytes read from a file: certificates are a few kilobytes.
    pub(crate) file_bytes_max: u64,
}

/// What may stand beside signed content. Longer proofs are refused unread.
pub(crate) struct SealSettings {
    /// The most certificates beside a signature.
    pub(crate) chain_max: usize,
    /// The most bytes of all those certificates.
    pub(crate) chain_bytes_max: usize,
    /// The most bytes of a signature.
    pub(crate) signature_bytes_max: usize,
}

/// A UDP link with weather.
pub(crate) struct RelaySettings {
    /// The most packets on their way in one direction. Further packets are lost, as in any router.
    pub(crate) queue_max: usize,
    /// The most addresses that a link answers to. For a further address, the one that was quiet the longest is
    /// forgotten.
    pub(crate) flows_max: usize,
}

// How the settings relate.
const _: () = {
    let Settings { frames, accept, dial, certs, .. } = SETTINGS;
    // A peer of this version never waits for permission to send.
    assert!(2 * frames.unacknowledged_max <= frames.streams_in_max as usize);
    assert!(frames.unacknowledged_bytes_max <= frames.window_bytes as usize);
    // A proof is asked for before places run out, and the count of requests stops at its highest number.
    assert!(accept.handshakes_unproven_max < accept.handshakes_max && accept.asked_max < u8::MAX);
    assert!(dial.first_round_trip.as_nanos() < accept.proof_lifetime.as_nanos());
    // A new authority outlives the certificates that it signs at once, and a new certificate is valid now.
    assert!(certs.node_valid_s < certs.authority_valid_s && 0 <= certs.slow_clock_s);
};
