//! The events of a run: the last ones as text for people, and all of them as one hash that equal runs share.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::{self, Write as _},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Events of each host that are held to be shown.
const LINES_MAX: usize = 40;

/// The bit in a QUIC packet's first byte that marks a handshake packet (RFC 9000 section 17.2).
const LONG_HEADER: u8 = 0x80;

/// The trace of a run, shared by all that add to it.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    hosts: Vec<(String, VecDeque<Line>)>,
    hash: Fnv,
    totals: Totals,
    /// Traffic by sender and destination.
    links: BTreeMap<(&'static str, IpAddr), Sent>,
    /// Every line, for comparing two runs; `None` if lines are not kept.
    whole: Option<String>,
    findings: Vec<String>,
}

/// The numbers of events and packets of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Events at hosts.
    pub events: u64,
    /// Packets between regions.
    pub packets: u64,
    /// Bytes of these packets.
    pub packet_bytes: u64,
}

/// The traffic from one host to another since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets of established connections.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Handshake packets.
    pub handshakes: u64,
}

impl Sent {
    /// What was sent since `before`.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
            handshakes: self.handshakes - before.handshakes,
        }
    }

    /// The sum of both.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            handshakes: self.handshakes + other.handshakes,
        }
    }

    /// The largest of the three numbers, each in percent of its bound.
    pub(crate) fn percent_of(self, bound: Self) -> u64 {
        let percent = |of: u64, bound: u64| (of * 100).div_ceil(bound.max(1));
        let numbers = [
            percent(self.packets, bound.packets),
            percent(self.bytes, bound.bytes),
            percent(self.handshakes, bound.handshakes),
        ];
        numbers.into_iter().max().unwrap_or(0)
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, bytes, handshakes } = self;
        write!(f, "{packets} packets, {bytes} bytes and {handshakes} handshakes")
    }
}

/// An event at a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When, since the start.
    pub at: Duration,
    /// A description of the event.
    pub what: String,
}

/// Fowler, Noll and Vo's hash (FNV-1a, 64 bits). It only has to differ between different traces.
#[derive(Clone, Copy, Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }
}

impl Fnv {
    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }
}

impl Trace {
    /// A trace that keeps every line.
    pub fn whole() -> Self {
        let trace = Self::default();
        trace.inner().whole = Some(String::new());
        trace
    }

    /// Adds an event at a host.
    pub fn tell(&self, host: &str, at: Duration, what: impl Into<String>) {
        let what = what.into();
        let mut inner = self.inner();
        inner.totals.events += 1;
        inner.note(host, at, &what);
        let place = inner.hosts.iter().position(|(name, _)| name == host).unwrap_or_else(|| {
            inner.hosts.push((host.to_owned(), VecDeque::new()));
            inner.hosts.len() - 1
        });
        let lines = &mut inner.hosts[place].1;
        if lines.len() == LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(Line { at, what });
    }

    /// Adds a packet that a host sent.
    pub fn packet(&self, from: &'static str, at: Duration, to: SocketAddr, packet: &[u8]) {
        let mut inner = self.inner();
        let bytes = packet.len();
        inner.totals.packets += 1;
        inner.totals.packet_bytes += bytes as u64;
        let sent = inner.links.entry((from, to.ip())).or_default();
        if packet.first().is_some_and(|first| first & LONG_HEADER != 0) {
            sent.handshakes += 1;
        } else {
            sent.packets += 1;
            sent.bytes += bytes as u64;
        }
        if inner.whole.is_some() {
            inner.note(from, at, &format!("{bytes} bytes to {to}"));
            return;
        }
        let hash = &mut inner.hash;
        hash.take(&at.as_nanos().to_le_bytes());
        hash.take(from.as_bytes());
        hash.take(&to.port().to_le_bytes());
        if let IpAddr::V4(ip) = to.ip() {
            hash.take(&ip.octets());
        }
        hash.take(&bytes.to_le_bytes());
    }

    /// The traffic from one host to another.
    pub fn sent(&self, from: &'static str, to: IpAddr) -> Sent {
        self.inner().links.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Adds a finding.
    pub fn finding(&self, what: String) {
        self.inner().findings.push(what);
    }

    /// All findings.
    pub fn findings(&self) -> Vec<String> {
        self.inner().findings.clone()
    }

    /// The hash of all events and packets.
    pub fn hash(&self) -> u64 {
        self.inner().hash.0
    }

    /// The numbers of events and packets so far.
    pub fn totals(&self) -> Totals {
        self.inner().totals
    }

    /// The last lines of every host, oldest first.
    pub fn last(&self) -> Vec<(String, Vec<Line>)> {
        let inner = self.inner();
        inner.hosts.iter().map(|(host, lines)| (host.clone(), lines.iter().cloned().collect())).collect()
    }

    /// Writes every line. Only for a trace that keeps them.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &std::path::Path) -> io::Result<()> {
        std::fs::write(path, self.inner().whole.as_deref().unwrap_or_default())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn note(&mut self, host: &str, at: Duration, what: &str) {
        self.hash.take(&at.as_nanos().to_le_bytes());
        self.hash.take(host.as_bytes());
        self.hash.take(what.as_bytes());
        if let Some(whole) = &mut self.whole {
            // Writing to a string cannot fail.
            let _ = writeln!(whole, "{:>10.3} {host:<12} {what}", at.as_secs_f64() * 1e3);
        }
    }
}
