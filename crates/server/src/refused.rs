//! Callers that were turned away, because they are unknown or may not do what they asked for. They are
//! counted, and warned of at most once a second: a proxy may let requests pass when it is turned away, so an
//! operator must hear of it.

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
    /// The caller showed no known token or certificate.
    Unknown,
    /// The caller is known, and may not do what it asked for.
    Forbidden,
    /// The caller does not speak TLS, or its certificate is not from an authority of the port.
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
    /// Counts a known caller, and warns.
    pub(crate) fn count_known(&self, port: Port, fault: TurnedAway, rights: &CallRights) {
        let (from, who) = rights.as_ref().map_or((None, "nobody"), |known| known.from());
        self.count_as(port, fault.why(), (from, who), &fault);
    }

    /// Counts an unknown caller, and warns of the answer `what` that it got.
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
