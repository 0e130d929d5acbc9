//! One peer: which of its processes is known, whether it can be reached, and how far away it is.

use acequia_limits::{Now, time::CLOCK_END};
use acequia_rights::{Incarnation, VersionId};

use super::{
    outbox::{Outbox, Rounds},
    resync::Resync,
    timekeeper::{ClockReading, drifted},
    wire::{FrameHeader, ReceivedFrames},
};

use crate::settings::SETTINGS;

/// How many round-trip times are remembered: the shortest of them counts, since the others include waits.
const ROUNDS: usize = 8;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) incarnation: Incarnation,
    pub(crate) process_number: u32,
    pub(crate) received: ReceivedFrames,
    pub(crate) outbox: Outbox,
    /// When a frame last came, if the peer's present incarnation was heard: steady clock.
    pub(crate) heard_ns: Option<u64>,
    /// When a frame was last sent on the present connection: steady clock.
    sent_ns: Option<u64>,
    /// When the loans to the peer were last renewed: steady clock.
    pub(crate) renewed_ns: u64,
    pub(crate) owes_reply: bool,
    /// The version of the catalogue that the peer has, and the last one that it was sent.
    pub(crate) version_id: VersionId,
    pub(crate) told: VersionId,
    /// The comparison with the peer after it was away.
    pub(crate) resync: Resync,
    rounds: FrameRoundTrips,
    clock: PeerClock,
}

/// How long frames to a peer and their confirmations took.
#[derive(Debug)]
struct FrameRoundTrips {
    last_ns: [u64; ROUNDS],
    count: usize,
    /// How long slow frames took lately: falls by an eighth with each frame that took less.
    slow_ns: u64,
}

/// What is known of a peer's clock.
#[derive(Debug, Default)]
struct PeerClock {
    sighting: Option<Sighting>,
    /// When the peer was last pinged: steady clock.
    pinged_ns: u64,
}

/// A reading of a peer's clock: `wall_ns` at our `steady_ns`, give or take `unsure_ns`.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    wall_ns: u64,
    corrected_ns: i64,
    is_believed: bool,
    unsure_ns: u64,
    steady_ns: u64,
}

impl Peer {
    pub(crate) fn new(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            process_number: 0,
            received: ReceivedFrames::default(),
            outbox: Outbox::default(),
            heard_ns: None,
            sent_ns: None,
            renewed_ns: 0,
            owes_reply: false,
            version_id: VersionId::default(),
            told: VersionId::default(),
            resync: Resync::default(),
            rounds: FrameRoundTrips { last_ns: [u64::MAX; ROUNDS], count: 0, slow_ns: 0 },
            clock: PeerClock::default(),
        }
    }

    /// Moves on to another process of the peer, which knows nothing of what was sent.
    pub(crate) fn begin_anew(&mut self, incarnation: Incarnation, process_number: u32) {
        if self.incarnation != incarnation {
            self.outbox.clear();
        }
        self.incarnation = incarnation;
        self.process_number = process_number;
        self.received =
            ReceivedFrames { incarnation: incarnation.number, process_number, ..ReceivedFrames::default() };
        self.told = VersionId::default();
        self.outbox.restart();
    }

    /// The peer's incarnation is closed: nothing that waits is for it any more.
    pub(crate) fn close(&mut self) {
        self.outbox.clear();
        self.heard_ns = None;
        self.told = VersionId::default();
    }

    /// Notes a new connection: frames that were under way on the old one are lost. A frame leaves at once, so
    /// that the peer knows.
    pub(crate) fn reconnect(&mut self, now_ns: u64) {
        self.outbox.expire(now_ns.saturating_add(1));
        self.owes_reply = true;
        self.sent_ns = None;
    }

    /// Whether a frame is due, given what is on disk: one leaves now and then in any case.
    pub(crate) fn is_frame_due(&self, committed: u64, now_ns: u64) -> bool {
        let Some(sent_ns) = self.sent_ns else { return true };
        let quiet_ns = now_ns.saturating_sub(sent_ns);
        quiet_ns >= SETTINGS.sharing.pulse_ns
            || self.owes_reply && quiet_ns >= SETTINGS.links.reply_ns
            || self.outbox.is_ready(committed)
    }

    /// Notes that a frame leaves.
    pub(crate) fn note_sent(&mut self, now_ns: u64) {
        self.sent_ns = Some(now_ns);
        self.owes_reply = false;
    }

    /// A frame of the peer came. `is_answer`: it confirms frames of this node's present process.
    pub(crate) fn hear(&mut self, header: &FrameHeader, is_answer: bool, now: Now) {
        self.heard_ns = Some(now.steady_ns);
        if self.version_id != header.version_id {
            // The peer may have other variants of the limit now, so it shall hear again which one a cell has.
            self.outbox.names.introduce_again();
        }
        self.version_id = header.version_id;
        if is_answer && let Some(rounds) = self.outbox.confirmed(&header.received, now.steady_ns) {
            self.rounds.note(rounds);
            self.clock.sight(header, rounds.newest_ns, now.steady_ns);
        }
    }

    /// How long a frame may go unconfirmed before it counts as lost. The slow frames decide: where many share
    /// a narrow link, the shortest round trip says how long a frame takes without the others.
    pub(crate) fn patience_ns(&self) -> u64 {
        let round_ns = self.rounds.slow_ns.max(self.round_ns());
        round_ns
            .saturating_mul(2)
            .saturating_add(SETTINGS.links.resend_ns)
            .min(SETTINGS.links.patience_ns_max)
    }

    /// The round-trip time in nanoseconds; a tenth of a second while it is unknown.
    pub(crate) fn round_ns(&self) -> u64 {
        self.measured_ns().unwrap_or(100_000_000)
    }

    /// The round-trip time in nanoseconds, if it is known.
    pub(crate) fn measured_ns(&self) -> Option<u64> {
        self.rounds.last_ns.iter().copied().min().filter(|round_ns| *round_ns < u64::MAX)
    }

    /// Whether the peer was heard lately.
    pub(crate) fn is_reached(&self, now_ns: u64, reach_ns: u64) -> bool {
        self.heard_ns.is_some_and(|heard_ns| now_ns.saturating_sub(heard_ns) < reach_ns)
    }

    /// Whether to ask the peer now what its clock reads. `is_urgent`: nobody has agreed with our clock yet.
    pub(crate) fn is_to_be_pinged(&mut self, now_ns: u64, is_urgent: bool) -> bool {
        self.clock.is_to_be_pinged(now_ns, is_urgent)
    }

    /// The peer's clock against ours, as far as is known.
    pub(crate) fn reading(&self, now: Now, drift_ppm: u32) -> Option<ClockReading> {
        self.clock.reading(now, drift_ppm)
    }
}

impl FrameRoundTrips {
    fn note(&mut self, rounds: Rounds) {
        let Rounds { newest_ns, longest_ns } = rounds;
        self.last_ns[self.count % ROUNDS] = newest_ns;
        self.count += 1;
        self.slow_ns = longest_ns.max(self.slow_ns - self.slow_ns / 8);
    }
}

impl PeerClock {
    /// Notes the clock's reading in a frame that was written after one of ours came. The frame came
    /// `round_ns` after ours was sent, and the peer's clock read this in between. However late the frame is,
    /// nothing more is assumed.
    fn sight(&mut self, header: &FrameHeader, round_ns: u64, steady_ns: u64) {
        let FrameHeader { wall_ns, corrected_ns, is_believed, .. } = *header;
        let unsure_ns = round_ns.div_ceil(2);
        let better = |old: &Sighting| {
            unsure_ns <= old.unsure_ns.saturating_mul(2)
                || steady_ns >= old.steady_ns.saturating_add(SETTINGS.clocks.sighting_ns)
        };
        if self.sighting.as_ref().is_none_or(better) {
            self.sighting = Some(Sighting {
                wall_ns: wall_ns.saturating_add(unsure_ns),
                corrected_ns,
                is_believed,
                unsure_ns,
                steady_ns,
            });
        } else if let Some(sighting) = &mut self.sighting {
            (sighting.corrected_ns, sighting.is_believed) = (corrected_ns, is_believed);
        }
    }

    /// See [`Peer::is_to_be_pinged`].
    fn is_to_be_pinged(&mut self, now_ns: u64, is_urgent: bool) -> bool {
        let (old_ns, again_ns) = if is_urgent {
            (SETTINGS.clocks.sighting_ns, SETTINGS.clocks.ping_soon_ns)
        } else {
            (SETTINGS.clocks.sighted_ns, SETTINGS.clocks.sighting_ns)
        };
        let is_old = |sighting: &Sighting| now_ns >= sighting.steady_ns.saturating_add(old_ns);
        let is_due =
            self.sighting.as_ref().is_none_or(is_old) && now_ns >= self.pinged_ns.saturating_add(again_ns);
        if is_due {
            self.pinged_ns = now_ns;
        }
        is_due
    }

    /// See [`Peer::reading`].
    fn reading(&self, now: Now, drift_ppm: u32) -> Option<ClockReading> {
        let Sighting { wall_ns, corrected_ns, is_believed, unsure_ns, steady_ns } = self.sighting?;
        // No real clock reads that much. The sums below must stay before the end of all clocks.
        if wall_ns >= CLOCK_END / 2 {
            return None;
        }
        let passed_ns = now.steady_ns.saturating_sub(steady_ns);
        let theirs = i64::try_from(wall_ns.saturating_add(passed_ns)).unwrap_or(i64::MAX);
        let ours = i64::try_from(now.wall_ns).unwrap_or(i64::MAX);
        // The round trip, too, was counted by a clock that drifts.
        let counted_ns = passed_ns.saturating_add(unsure_ns.saturating_mul(2));
        let unsure_ns = unsure_ns.saturating_add(drifted(counted_ns, drift_ppm));
        Some(ClockReading { ahead_ns: theirs.saturating_sub(ours), corrected_ns, is_believed, unsure_ns })
    }
}

#[cfg(test)]
mod tests {
    use acequia_rights::MemberId;

    use super::*;

    #[test]
    fn a_clock_reading_that_took_long_is_less_certain() {
        const S: u64 = 1_000_000_000;
        let mut peer = Peer::new(Incarnation { member: MemberId(1), node: 0, number: 1 });
        // Sent at 1000 s, heard at 3000 s by a clock that loses a thousandth: two more seconds passed. The
        // peer read its wall at the very end, and it is right.
        let now = Now::at(3_000 * S);
        let true_ns = now.wall_ns + 2 * S;
        let header = FrameHeader {
            incarnation: peer.incarnation,
            process_number: 1,
            number: 1,
            received: ReceivedFrames::default(),
            heartbeat: 1,
            wall_ns: true_ns,
            corrected_ns: 0,
            is_believed: true,
            loan_max: 0,
            version_id: VersionId::default(),
        };
        peer.clock.sight(&header, 2_000 * S, now.steady_ns);
        let ClockReading { ahead_ns, unsure_ns, .. } =
            peer.reading(Now { wall_ns: true_ns, ..now }, 1_000).expect("a reading");
        assert_eq!(ahead_ns, 1_000 * S as i64);
        assert!(unsure_ns >= 1_002 * S, "{unsure_ns}");
        let later = now.later(100 * S);
        let aged = peer.reading(later, 1_000).expect("a reading").unsure_ns;
        assert!(aged > unsure_ns, "{aged}");
    }
}
