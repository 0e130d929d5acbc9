//! The results of a run.

use std::{fmt, ops::AddAssign, time::Duration};

use serde::{Serialize, Serializer};

use super::{Decisions, Histogram, pace::Plan};

/// The measured part of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Requests (on streams: messages) that were answered with a verdict.
    pub requests: u64,
    /// Decisions to let pass: at most one for a unary request, any number for a message on a stream.
    pub allowed: u64,
    /// Decisions not to let pass.
    pub denied: u64,
    /// Requests that were answered with an error, or not at all.
    pub errors: u64,
    /// The errors by kind.
    pub faults: Faults,
    /// The length of the measured part. In JSON it is `elapsed_s`, in seconds.
    #[serde(rename = "elapsed_s", serialize_with = "seconds")]
    pub elapsed: Duration,
    /// `requests` over `elapsed`.
    pub requests_per_s: f64,
    /// `allowed` and `denied` over `elapsed`.
    pub decisions_per_s: f64,
    /// Latency of the `requests`: from the write, or at a fixed pace from the due time, to the whole answer.
    pub latency: Histogram,
    /// All requests that got an answer or an error, including the warm-up: the work of the server.
    pub requests_with_warm_up: u64,
    /// Connections that were replaced because the server asked for it or stream ids ran out.
    pub reconnects: u64,
}

/// Errors, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// Answers without a message: gRPC errors.
    pub no_message: u64,
    /// Streams that the server reset.
    pub reset: u64,
    /// Requests on a closing connection that the server did not process.
    pub refused: u64,
    /// Answers that could not be read, or that had no verdict.
    pub malformed: u64,
}

impl Faults {
    fn total(self) -> u64 {
        self.no_message + self.reset + self.refused + self.malformed
    }
}

/// The kinds of [`Faults`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    NoMessage,
    Reset,
    Refused,
    Malformed,
}

/// The results of one connection so far.
#[derive(Debug, Default)]
pub(super) struct Score {
    requests: u64,
    decisions: Decisions,
    faults: Faults,
    latency: Histogram,
    last_answer_ns: u64,
    /// Answers and errors, including the warm-up.
    pub(super) total: u64,
    pub(super) reconnects: u64,
}

impl Score {
    /// Counts an answer, if the plan counts it.
    pub(super) fn answer(&mut self, plan: &Plan, start_ns: u64, now_ns: u64, decisions: Decisions) {
        self.total += 1;
        if plan.counts(start_ns, now_ns) {
            self.requests += 1;
            self.decisions.allowed += decisions.allowed;
            self.decisions.denied += decisions.denied;
            self.latency.record(now_ns.saturating_sub(start_ns));
            self.last_answer_ns = now_ns;
        }
    }

    /// Counts an error, if the plan counts it.
    pub(super) fn fault(&mut self, plan: &Plan, start_ns: u64, now_ns: u64, fault: Fault) {
        self.total += 1;
        if plan.counts(start_ns, now_ns) {
            match fault {
                Fault::NoMessage => self.faults.no_message += 1,
                Fault::Reset => self.faults.reset += 1,
                Fault::Refused => self.faults.refused += 1,
                Fault::Malformed => self.faults.malformed += 1,
            }
            self.last_answer_ns = now_ns;
        }
    }

    /// The report of all connections together.
    pub(super) fn report(&self, plan: &Plan) -> Report {
        let elapsed = plan.measured(self.last_answer_ns);
        let per_s = |count: u64| if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() };
        let Decisions { allowed, denied } = self.decisions;
        Report {
            requests: self.requests,
            allowed,
            denied,
            errors: self.faults.total(),
            faults: self.faults,
            elapsed,
            requests_per_s: per_s(self.requests),
            decisions_per_s: per_s(allowed + denied),
            latency: self.latency.clone(),
            requests_with_warm_up: self.total,
            reconnects: self.reconnects,
        }
    }
}

impl AddAssign<&Self> for Score {
    fn add_assign(&mut self, other: &Self) {
        self.requests += other.requests;
        self.decisions.allowed += other.decisions.allowed;
        self.decisions.denied += other.decisions.denied;
        self.faults.no_message += other.faults.no_message;
        self.faults.reset += other.faults.reset;
        self.faults.refused += other.faults.refused;
        self.faults.malformed += other.faults.malformed;
        self.latency.merge(&other.latency);
        self.last_answer_ns = self.last_answer_ns.max(other.last_answer_ns);
        self.total += other.total;
        self.reconnects += other.reconnects;
    }
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elapsed_s = self.elapsed.as_secs_f64();
        writeln!(f, "{:>12.0} requests/s  ({} in {elapsed_s:.3} s)", self.requests_per_s, self.requests)?;
        let decisions = self.allowed + self.denied;
        if decisions != self.requests {
            writeln!(f, "{:>12.0} decisions/s", self.decisions_per_s)?;
        }
        let percent = |count: u64| 100.0 * count as f64 / decisions.max(1) as f64;
        writeln!(f, "{:>12} allowed  ({:.2} %)", self.allowed, percent(self.allowed))?;
        writeln!(f, "{:>12} denied  ({:.2} %)", self.denied, percent(self.denied))?;
        write!(f, "{:>12} errors", self.errors)?;
        let Faults { no_message, reset, refused, malformed } = self.faults;
        let kinds = [
            (no_message, "gRPC errors"),
            (reset, "streams reset"),
            (refused, "refused by a closing connection"),
            (malformed, "malformed"),
        ];
        for (index, (count, kind)) in kinds.iter().filter(|(count, _)| *count > 0).enumerate() {
            write!(f, "{}{count} {kind}", if index == 0 { ": " } else { ", " })?;
        }
        if self.reconnects > 0 {
            write!(f, "\n{:>12} connections made anew", self.reconnects)?;
        }
        write!(f, "\n     latency  {}", self.latency)
    }
}
