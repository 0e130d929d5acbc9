//! One peer: which process of it is known, whether it can be reached, how far away it is.

use acequia_limits::Now;
use acequia_rights::{Mark, Writer};

use super::{
    outbox::Outbox,
    timekeeper::Reading,
    wire::{Header, Seen},
};

/// A frame is answered within this time, so that the sender learns how far away it is.
pub(crate) const REPLY_NS: u64 = 15_000_000;
/// Times there and back that are remembered: the shortest of them counts, since the others waited.
const ROUNDS: usize = 8;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) writer: Writer,
    pub(crate) boot: u32,
    pub(crate) seen: Seen,
    pub(crate) outbox: Outbox,
    /// When a frame last came, and when one last went: steady clock, 0 for never.
    pub(crate) heard_ns: u64,
    pub(crate) said_ns: u64,
    pub(crate) renewed_ns: u64,
    pub(crate) owes_reply: bool,
    /// The version of the catalogue that it has, and the last one that it was told.
    pub(crate) mark: Mark,
    pub(crate) told: Mark,
    rounds_ns: [u64; ROUNDS],
    rounds: usize,
    reading: Option<Reading>,
}

impl Peer {
    pub(crate) fn new(writer: Writer) -> Self {
        Self {
            writer,
            boot: 0,
            seen: Seen::default(),
            outbox: Outbox::default(),
            heard_ns: 0,
            said_ns: 0,
            renewed_ns: 0,
            owes_reply: false,
            mark: Mark::default(),
            told: Mark::default(),
            rounds_ns: [u64::MAX; ROUNDS],
            rounds: 0,
            reading: None,
        }
    }

    /// Another process, which knows nothing of what was said.
    pub(crate) fn begin_anew(&mut self, writer: Writer, boot: u32) {
        self.writer = writer;
        self.boot = boot;
        self.seen = Seen { boot, ..Seen::default() };
        self.told = Mark::default();
        self.outbox.restart();
    }

    /// A frame of it came. `boot` is this node's process.
    pub(crate) fn hear(&mut self, header: &Header, boot: u32, now: Now) {
        self.heard_ns = now.steady_ns;
        if self.mark != header.mark {
            self.outbox.introduce_again();
        }
        self.mark = header.mark;
        if header.seen.boot != boot {
            return;
        }
        if let Some(round_ns) = self.outbox.confirmed(&header.seen, now.steady_ns) {
            self.rounds_ns[self.rounds % ROUNDS] = round_ns;
            self.rounds += 1;
        }
        if self.rounds > 0 {
            let half_ns = self.round_ns() / 2;
            let theirs = i64::try_from(header.wall_ns.saturating_add(half_ns)).unwrap_or(i64::MAX);
            let ours = i64::try_from(now.wall_ns).unwrap_or(i64::MAX);
            self.reading = Some(Reading { ahead_ns: theirs.saturating_sub(ours), unsure_ns: half_ns });
        }
    }

    /// Nanoseconds there and back; a tenth of a second while it is not known.
    pub(crate) fn round_ns(&self) -> u64 {
        match self.rounds_ns.iter().copied().min() {
            Some(u64::MAX) | None => 100_000_000,
            Some(round_ns) => round_ns,
        }
    }

    /// Whether it was heard lately.
    pub(crate) fn is_reached(&self, now_ns: u64, reach_ns: u64) -> bool {
        self.heard_ns > 0 && now_ns.saturating_sub(self.heard_ns) < reach_ns
    }

    /// Its clock, as far as is known.
    pub(crate) const fn reading(&self) -> Option<Reading> {
        self.reading
    }
}
