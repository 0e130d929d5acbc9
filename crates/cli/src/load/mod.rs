//! A load generator, with which `acequia bench` drives a node.
//!
//! It speaks gRPC over hand-made HTTP/2 frames, so that one core can saturate a server on another core.
//! Request headers are built once, and only the stream id changes. The header blocks of answers are skipped
//! unread. So the generator knows that an answer came without a message (a gRPC error), but not which error.
//!
//! Every counted request is in the report exactly once: with the verdict of its answer, or as an error.
//!
//! `link` and the two kinds of work, `unary` and `streaming`, decide without acting; `driver` owns the
//! sockets.

mod answers;
mod driver;
mod frames;
mod histogram;
mod link;
mod messages;
mod order;
mod pace;
mod report;
mod streaming;
#[cfg(test)]
mod tests;
mod unary;

use std::{fmt, io, sync::Arc, time::Duration};

use acequia_client::Target;

pub use self::{
    answers::{check_batch_decisions, check_verdict, rate_limit_verdict},
    histogram::Histogram,
    messages::Payloads,
    report::{Faults, Report},
};

use crate::settings::SETTINGS;

/// More connections would be a mistake: one client machine has not enough ports for them.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Requests in flight on a connection, streams of a connection, or messages in flight on a stream.
pub const IN_FLIGHT_MAX: usize = 65_536;

/// One run: the server, the requests, the pace and the length.
#[derive(Clone, Debug)]
pub struct Load {
    /// The server's gRPC address and its credentials.
    pub target: Target,
    /// The gRPC method, such as `/acequia.v1.Limiter/Check`.
    pub path: String,
    /// Further request headers, such as `authorization`; names in lower case.
    pub metadata: Vec<(String, String)>,
    /// The request messages.
    pub payloads: Arc<Payloads>,
    /// How the next message is chosen.
    pub order: Order,
    /// TCP connections, 1 to [`CONNECTIONS_MAX`].
    pub connections: usize,
    /// The work of each connection.
    pub work: Work,
    /// When the next request starts.
    pub pace: Pace,
    /// How long load runs uncounted before the measured part, to fill caches, branch predictors and TCP
    /// windows.
    pub warm_up: Duration,
    /// The length of the measured part.
    pub bound: Bound,
    /// How long a connection may take to be established, including the server's first SETTINGS.
    pub connect_timeout: Duration,
    /// How long a connection that waits for answers may go without one before the run fails.
    pub stall_timeout: Duration,
}

/// The work of one connection.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// A request is a stream of its own.
    Unary {
        /// Requests in flight on each connection, 1 to [`IN_FLIGHT_MAX`]; fewer if the server allows fewer.
        in_flight: usize,
        /// Judges the message of an answer.
        verdict: fn(&[u8]) -> Verdict,
    },
    /// A request is a message on a long-lived bidirectional stream. The n-th message that comes back answers
    /// the n-th message that was sent.
    Stream {
        /// Streams on each connection, 1 to [`IN_FLIGHT_MAX`]; fewer if the server allows fewer.
        streams: usize,
        /// Messages in flight on each stream, 1 to [`IN_FLIGHT_MAX`].
        in_flight: usize,
        /// Counts the decisions in the message of an answer; `None` if it is malformed.
        decisions: fn(&[u8]) -> Option<Decisions>,
    },
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request may pass.
    Allowed,
    /// The request may not pass.
    Denied,
    /// The answer is malformed, or has no verdict.
    Error,
}

/// The decisions in one message of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// Checks that may pass.
    pub allowed: u64,
    /// Checks that may not pass.
    pub denied: u64,
}

/// How the next message is chosen. Each connection has its own place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after the other; connections start spread over the list.
    RoundRobin,
    /// Uniformly at random. The seed fixes the sequence of each connection, and each has another sequence.
    Random {
        /// Any number.
        seed: u64,
    },
}

/// When the next request starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// A request starts as soon as an earlier one is answered. Latency counts from the write.
    Closed,
    /// Requests start on a fixed schedule. Latency counts from the scheduled time, so a server (or a client)
    /// that falls behind cannot hide it. The client polls its sockets without sleeping, since timers are too
    /// coarse.
    Fixed {
        /// Requests a second of all connections together; above 0, at most a billion.
        requests_per_s: f64,
    },
}

/// How long the measured part of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// This long. At a closed pace, the answers that arrive in this time count. At a fixed pace, the requests
    /// that are due in this time count, and the run waits for their answers.
    For(Duration),
    /// Exactly this many requests, started after the warm-up; the run waits for their answers.
    Requests(u64),
}

impl Load {
    /// Unary requests: 8 connections × 32 in flight, one second of warm-up, three measured.
    pub fn unary(target: Target, path: &str, payloads: Payloads, verdict: fn(&[u8]) -> Verdict) -> Self {
        Self {
            target,
            path: path.to_owned(),
            metadata: Vec::new(),
            payloads: Arc::new(payloads),
            order: Order::RoundRobin,
            connections: 8,
            work: Work::Unary { in_flight: 32, verdict },
            pace: Pace::Closed,
            warm_up: Duration::from_secs(1),
            bound: Bound::For(Duration::from_secs(3)),
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(10),
        }
    }

    /// Messages on streams: 8 connections × 1 stream × 32 in flight, one second of warm-up, three measured.
    pub fn stream(
        target: Target,
        path: &str,
        payloads: Payloads,
        decisions: fn(&[u8]) -> Option<Decisions>,
    ) -> Self {
        let work = Work::Stream { streams: 1, in_flight: 32, decisions };
        Self { work, ..Self::unary(target, path, payloads, |_| Verdict::Error) }
    }

    /// Refuses a load that could not work.
    fn validate(&self) -> Result<(), LoadError> {
        let within = |what: &str, value: usize, max: usize| match value {
            0 => Err(LoadError::Invalid(format!("{what} must be at least 1"))),
            _ if value > max => Err(LoadError::Invalid(format!("{what} must be at most {max}"))),
            _ => Ok(()),
        };
        within("connections", self.connections, CONNECTIONS_MAX)?;
        match self.work {
            Work::Unary { in_flight, .. } => within("requests in flight", in_flight, IN_FLIGHT_MAX)?,
            Work::Stream { streams, in_flight, .. } => {
                within("streams", streams, IN_FLIGHT_MAX)?;
                within("messages in flight", in_flight, IN_FLIGHT_MAX)?;
            }
        }
        if self.payloads.is_empty() {
            return Err(LoadError::Invalid("there is no message to send".to_owned()));
        }
        if self.payloads.longest() > SETTINGS.load.message_bytes_max {
            return Err(LoadError::Invalid(format!(
                "a message is above {} bytes",
                SETTINGS.load.message_bytes_max
            )));
        }
        if let Pace::Fixed { requests_per_s } = self.pace
            && !(requests_per_s > 0.0 && requests_per_s <= 1e9)
        {
            return Err(LoadError::Invalid(format!("{requests_per_s} requests a second is not a pace")));
        }
        if frames::header_block(&self.target, &self.path, &self.metadata).len() > frames::FRAME_BYTES_MAX {
            return Err(LoadError::Invalid("the request headers are too long".to_owned()));
        }
        Ok(())
    }
}

/// Runs a load on this thread and waits for its end.
///
/// # Errors
/// The load is invalid, or the server cannot be reached, breaks the protocol, closes a connection or stops
/// answering. Answers that are errors are counted, and are no error here.
pub fn run(load: &Load) -> Result<Report, LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|source| {
        LoadError::Io { address: load.target.to_string(), doing: "starting the runtime", source }
    })?;
    runtime.block_on(drive(load))
}

/// Runs a load on the runtime of the caller.
///
/// # Errors
/// The errors of [`run`].
pub async fn drive(load: &Load) -> Result<Report, LoadError> {
    load.validate()?;
    driver::drive(Arc::new(load.clone()), frames::FIRST_STREAM).await
}

/// Why a run has no report. The server may have decided any number of requests.
#[derive(Debug)]
pub enum LoadError {
    /// The load asks for something impossible.
    Invalid(String),
    /// No connection within the timeout.
    ConnectTimeout {
        /// The server's address.
        address: String,
        /// The timeout.
        after: Duration,
    },
    /// The system refused an operation.
    Io {
        /// The server's address.
        address: String,
        /// The operation, such as "connecting".
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The server broke HTTP/2, or does not speak it.
    Protocol {
        /// The server's address.
        address: String,
        /// What the server did.
        what: String,
    },
    /// The server closed the connection without a GOAWAY, with a GOAWAY that names an error, or repeatedly.
    Closed {
        /// The server's address.
        address: String,
        /// The server's reason.
        why: String,
    },
    /// No answer came for too long.
    Stalled {
        /// The server's address.
        address: String,
        /// The timeout.
        after: Duration,
        /// Requests without an answer on that connection.
        unanswered: usize,
        /// What the connection waits for.
        waits_for: &'static str,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(what) => write!(f, "{what}"),
            Self::ConnectTimeout { address, after } => write!(
                f,
                "no HTTP/2 connection to {address} within {after:?}: check the address, that the port serves \
                 gRPC (over TLS only if it was asked over TLS), and that no firewall drops packets"
            ),
            Self::Io { address, doing, source } => write!(f, "{doing} {address}: {source}"),
            Self::Protocol { address, what } => {
                write!(
                    f,
                    "{address} does not speak HTTP/2 as it should: {what}; check that the port serves gRPC"
                )
            }
            Self::Closed { address, why } => write!(f, "{address} closed the connection: {why}"),
            Self::Stalled { address, after, unanswered, waits_for } => write!(
                f,
                "{address} sent no answer for {after:?} with {unanswered} requests unanswered, waiting for \
                 {waits_for}: check that the server still runs, is not stopped, and answers a single request"
            ),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
