//! Callers that were turned away, since nobody knows them or they may not do what they asked for: counted, and warned of at most
//! once a second. A proxy may let requests pass when it is turned away, so an operator must hear of it.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tracing::warn;

use crate::{
    callers::{CallRights, TurnedAway},
    serve::Port,
};

/// The time between two warnings of a port for one reason.
const WARN_EVERY: Duration = Duration::from_secs(1);

/// Why a caller was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It showed no token or certificate that is known.
    Unknown,
    /// It is known, and may not do what it asked for.
    Forbidden,
    /// It does not speak TLS, or shows a certificate that is none of ours.
    Handshake,
}

impl Why {
    const ALL: [Self; 3] = [Self::Unknown, Self::Forbidden, Self::Handshake];

    const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Forbidden => "forbidden",
            Self::Handshake => "handshake",
        }
    }
}

/// How many were turned away since the start, by port and reason.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    counts: [[AtomicU64; Why::ALL.len()]; Port::ALL.len()],
    /// When each port last warned for each reason.
    warned: Mutex<[[Option<Instant>; Why::ALL.len()]; Port::ALL.len()]>,
}

impl Refused {
    /// Counts a caller that is known, and warns.
    pub(crate) fn count_known(&self, port: Port, fault: TurnedAway, rights: &CallRights) {
        let (from, who) = rights.as_ref().map_or((None, "nobody"), |known| known.from());
        self.count_as(port, fault.why(), (from, who), &fault);
    }

    /// Counts a caller that is not, and warns of `what` it was told.
    pub(crate) fn count(&self, port: Port, why: Why, from: Option<SocketAddr>, what: &dyn fmt::Display) {
        self.count_as(port, why, (from, "nobody"), what);
    }

    fn count_as(
        &self,
        port: Port,
        why: Why,
        (from, who): (Option<SocketAddr>, &str),
        what: &dyn fmt::Display,
    ) {
        let count = self.counts[port as usize][why as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let now = Instant::now();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &mut warned[port as usize][why as usize];
        if last.is_some_and(|last| now - last < WARN_EVERY) {
            return;
        }
        *last = Some(now);
        drop(warned);
        let from = from.map_or_else(String::new, |from| from.to_string());
        warn!(port = port.name(), why = why.word(), from, who, count, %what, "a caller was turned away");
    }

    /// By port and reason.
    pub(crate) fn counts(&self) -> Vec<([(&'static str, &'static str); 2], u64)> {
        let of = |port: Port, why: Why| {
            let count = self.counts[port as usize][why as usize].load(Ordering::Relaxed);
            ([("port", port.name()), ("why", why.word())], count)
        };
        Port::ALL.into_iter().flat_map(|port| Why::ALL.map(|why| of(port, why))).collect()
    }
}
