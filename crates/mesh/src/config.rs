//! The configuration of a mesh: names, peers, secrets and times.

use std::time::Duration;

use crate::{Credentials, Identity};

/// The configuration of a mesh.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name, which its certificate carries.
    pub identity: Identity,
    /// The certificate that this node shows, and the authorities that it trusts.
    pub credentials: Credentials,
    /// The other nodes, at most 256. No other node is accepted.
    pub peers: Vec<PeerConfig>,
    /// A secret of this node that stays unchanged over restarts. With it, a restarted node can tell a peer
    /// at once that the peer's connection is gone. If the secret changes, the peer finds out only after
    /// [`Timing::idle`].
    pub reset_key: [u8; 32],
    /// For simulations: makes quinn's own choices, the connection IDs and the jitter equal in every run.
    /// `None` everywhere else: anybody who knows the seed could end connections.
    pub rng_seed: Option<[u8; 32]>,
    /// Timeouts and intervals.
    pub timing: Timing,
}

/// The configuration of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// The peer's name.
    pub identity: Identity,
    /// The peer's address, `host:port`, looked up at each dial. Not used if the peer dials this node.
    pub address: String,
}

/// Timeouts and intervals. The default is for regions some 10 to 300 ms apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The interval at which a quiet connection shows that it is alive. The interval must be well below
    /// `idle`, so that several signs may get lost before the connection does.
    pub keep_alive: Duration,
    /// The longest silence before the connection counts as lost. Larger: a cut is noticed later. A longer
    /// cut is also followed by a longer silence if the connection lives through it, since repetitions
    /// become rarer. Smaller: a busy machine or a few lost packets end connections. The silence is never
    /// less than three times the wait for an acknowledgement (RFC 9000 section 10.1). On a link with round
    /// trips of two seconds, that is some ten seconds, for as long as those round trips are remembered.
    pub idle: Duration,
    /// The pause between attempts in the first minute without a connection; a quarter more or less, by
    /// chance. An attempt is a packet of 1.2 kB, repeated a few times. The pause adds to the time until a
    /// mended link is used again.
    pub dial: Duration,
    /// The pause between attempts after the first minute. These attempts cost some 10 kB/s for a peer that
    /// is gone.
    pub dial_later: Duration,
    /// The longest time for an attempt, and for the hello after it. The time should be longer than four
    /// round trips. With the pauses above it determines how many attempts are pending (16 at most).
    pub attempt: Duration,
    /// The longest time for a whole frame to arrive. The time should be longer than
    /// [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX) takes on the slowest link.
    pub frame: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_millis(300),
            idle: Duration::from_secs(2),
            dial: Duration::from_millis(100),
            dial_later: Duration::from_millis(250),
            attempt: Duration::from_millis(1500),
            frame: Duration::from_secs(10),
        }
    }
}

impl Timing {
    /// The pause between attempts, `down_for` after the connection was lost.
    pub(crate) fn pause(&self, down_for: Duration) -> Duration {
        match down_for.as_secs() {
            0..60 => self.dial,
            _ => self.dial_later,
        }
    }
}
