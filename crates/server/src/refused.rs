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
};

use tokio::time::Instant;
use tracing::warn;

use crate::{port::Port, settings::SETTINGS};

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

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TurnedAway {
    /// The caller is unknown.
    #[error(
        "this port knows its callers: show a certificate or a bearer token that the node's config allows"
    )]
    Unknown,
    /// The caller is known, and may not do this.
    #[error("this caller may not do this: see `may` in `allow` of the node's config")]
    Action,
    /// The caller is known, and may not ask about this domain.
    #[error("this caller may not ask for this domain: see `domains` in `allow` of the node's config")]
    Domain,
}

impl TurnedAway {
    /// The reason as logs and metrics count it.
    pub(crate) const fn why(self) -> Why {
        match self {
            Self::Unknown => Why::Unknown,
            Self::Action | Self::Domain => Why::Forbidden,
        }
    }
}

/// Where a call comes from, as far as that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub(crate) from: Option<SocketAddr>,
    /// The caller's name, or the file of its token.
    pub(crate) who: &'a str,
}

impl Origin<'_> {
    /// Nobody who is known.
    pub(crate) const fn unknown(from: Option<SocketAddr>) -> Self {
        Self { from, who: "nobody" }
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
    /// Counts a call that is turned away, and warns.
    pub(crate) fn turn_away(&self, port: Port, fault: TurnedAway, origin: Origin<'_>) {
        self.count(port, fault.why(), origin, &fault);
    }

    /// Counts a caller that is turned away, and warns of the answer `what` that it gets.
    pub(crate) fn count(&self, port: Port, why: Why, origin: Origin<'_>, what: &dyn fmt::Display) {
        let count = self.counts[port as usize][why as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let now = Instant::now();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &mut warned[port as usize][why as usize];
        if last.is_some_and(|last| now - last < SETTINGS.counts.refused_warn_every) {
            return;
        }
        *last = Some(now);
        drop(warned);
        let Origin { from, who } = origin;
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
