//! Messages are bounded: the traffic from one region to another in one second, and in ten, grows only with
//! the cells that were asked for lately. The number of packets has a cap that no cell raises. A link between
//! regions that nobody asks carries little more than heartbeats.
//!
//! Each bound is less than twice the worst traffic seen. The worst was measured in `run all`, `run storm`,
//! `key-flood`, `slow-link`, `lossy-link` and `swarm`, with several seeds each. Each run's summary prints its
//! worst.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
};

use acequia_limits::Limit;

use super::Check;
use crate::{
    NAMES,
    schedule::Place,
    series::cell_of,
    trace::Sent,
    world::{Answer, World},
};

/// Stretches, in seconds. The long one lasts as long as a cell stays active, so each advertisement is sent
/// once in it.
const STRETCHES: [usize; 2] = [1, 10];
/// A cell is active for this long after a question; then its region gives back what it holds.
const ACTIVE_S: usize = 10;
/// After this time there is no news of the cell: its loans have come back or ended, and that was confirmed.
const COLD_S: usize = ACTIVE_S + 6;
/// A question may be answered this late, so a second is judged this long after its end.
const LATE_S: usize = 2;

/// Idle seconds for which links are observed at the end.
const QUIET_S: usize = 3;

/// Packets of a link without active cells, in a stretch and in each second. Two or three times a second there
/// is a heartbeat and an answer to the peer's, each with an acknowledgement, and a keep-alive packet. Per
/// stretch the same comes once more, since a second may begin between two heartbeats, and so does the news of
/// a version that has settled.
const QUIET: Packets = Packets { once: 50, a_second: 30 };
/// Packets of a link with any active cell. A single scarce cell may cause packets at every change: the
/// change, its answer, and the change that follows. They are ten or twenty milliseconds apart where regions
/// are close.
const BUSY: Packets = Packets { once: 120, a_second: 120 };
/// Additional packets a second for each active cell.
const OF_A_CELL: u64 = 4;
/// The most packets in a second. Advertisements travel in frames, one frame in a turn of the driver, 200 a
/// second; every second packet is acknowledged.
const PACKETS_MAX: u64 = 300;
/// Handshake packets, in a stretch and in each second of it. Where nobody answers, a packet is sent every
/// tenth of a second, and repeated for a second and a half.
const HANDSHAKES: Packets = Packets { once: 200, a_second: 80 };
/// Bytes of a packet: QUIC's own, the head of a frame, and one or two facts, one of which may be a version of
/// the catalogue.
const PACKET_BYTES: u64 = 140;
/// Additional bytes a second for each active cell: an advertisement every four seconds, which names the cell
/// until the peer knows it.
const CELL_BYTES: u64 = 12;
/// A connection that begins anew repeats all advertisements: within a stretch, as many bytes as in this many
/// seconds.
const AGAIN_S: u64 = 4;

/// Signed bytes in a stretch: a version and each region's acknowledgement, each with its signer's
/// certificate. They count twice, since a connection may begin anew. A few versions may be ordered in one
/// stretch, and a peer without a share, which confirms nothing, gets them four times a second.
const SIGNED_BYTES: u64 = 5 << 10;
const SIGNED_BYTES_A_SECOND: u64 = 3 << 10;

/// The number of packets that may be sent in a stretch.
#[derive(Clone, Copy, Debug)]
struct Packets {
    once: u64,
    a_second: u64,
}

impl Packets {
    const fn within(self, seconds: usize) -> u64 {
        self.once + self.a_second * seconds as u64
    }
}

/// What may be sent in `seconds`, with `active` active cells; `None` if there has been no active cell for long.
fn bound(seconds: usize, active: Option<usize>) -> Sent {
    let handshakes = HANDSHAKES.within(seconds);
    let signed = SIGNED_BYTES + SIGNED_BYTES_A_SECOND * seconds as u64;
    let Some(active) = active else {
        let packets = QUIET.within(seconds);
        return Sent { packets, bytes: packets * PACKET_BYTES + signed, handshakes };
    };
    let active = active as u64;
    let a_second = (BUSY.a_second + OF_A_CELL * active).min(PACKETS_MAX);
    let packets = Packets { a_second, ..BUSY }.within(seconds);
    let again = CELL_BYTES * active * (seconds as u64 + AGAIN_S);
    Sent { packets, bytes: packets * PACKET_BYTES + again + signed, handshakes }
}

/// Counts what regions send each other.
#[derive(Debug)]
pub struct MessagesBounded {
    limits: Vec<Limit>,
    /// Whether idle links are judged by the bound for idle links.
    until_idle: bool,
    links: Vec<(Place, Place)>,
    /// What every link had carried until the end of the last second.
    before: Vec<Sent>,
    /// The seconds that are still remembered.
    seconds: VecDeque<Second>,
    /// The number of the oldest remembered second, counted from the start.
    first: usize,
    /// How many seconds in a row, up to the last judged one, were idle.
    cold: usize,
    worst: [Worst; STRETCHES.len()],
}

/// One second of traffic and demand.
#[derive(Clone, Debug, Default)]
struct Second {
    /// The cells that were asked for: the limit's place, and keys and values.
    asked: BTreeSet<(usize, Vec<(String, String)>)>,
    /// How many cells were active; `None` if there had been none for long. Set when the second is judged.
    active: Option<usize>,
    /// What each link carried.
    sent: Vec<Sent>,
}

/// The stretch of one length in which a link came closest to its bound.
#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    percent: u64,
    link: (Place, Place),
    /// The second after the stretch.
    until: usize,
    sent: Sent,
    active: Option<usize>,
}

impl MessagesBounded {
    /// A check of these limits.
    pub fn new(limits: &[Limit], regions: usize) -> Self {
        let others = |from| (0..regions).filter(move |to| *to != from).map(move |to| (from, to));
        let links: Vec<_> = (0..regions).flat_map(others).collect();
        Self {
            limits: limits.to_vec(),
            until_idle: false,
            before: vec![Sent::default(); links.len()],
            links,
            seconds: VecDeque::new(),
            first: 0,
            cold: 0,
            worst: Default::default(),
        }
    }

    /// A check that waits at the end until all links are idle, and then judges idle links too.
    #[must_use]
    pub fn until_idle(self) -> Self {
        Self { until_idle: true, ..self }
    }

    fn ask(&mut self, answer: &Answer) {
        let second = answer.asked.as_secs() as usize;
        let cells = self.limits.iter().enumerate();
        let cells = cells.filter_map(|(place, limit)| Some((place, cell_of(limit, &answer.question)?)));
        let cells: Vec<_> = cells.collect();
        if let Some(second) = self.second(second) {
            second.asked.extend(cells);
        }
    }

    fn second(&mut self, second: usize) -> Option<&mut Second> {
        let place = second.checked_sub(self.first)?;
        if self.seconds.len() <= place {
            self.seconds.resize(place + 1, Second::default());
        }
        self.seconds.get_mut(place)
    }

    /// Takes in what each link had carried until the end of `second`.
    fn count(&mut self, second: usize, sent: Vec<Sent>) -> Result<(), String> {
        let before = std::mem::replace(&mut self.before, sent);
        let during = self.before.iter().zip(before).map(|(after, before)| after.since(before)).collect();
        if let Some(second) = self.second(second) {
            second.sent = during;
        }
        match second.checked_sub(LATE_S) {
            Some(second) => self.judge(second),
            None => Ok(()),
        }
    }

    /// Judges the stretches that end with a second.
    fn judge(&mut self, second: usize) -> Result<(), String> {
        let last = second - self.first;
        let lately = |of: usize| self.seconds.range(last.saturating_sub(of)..=last);
        let active = lately(ACTIVE_S).flat_map(|second| &second.asked).collect::<BTreeSet<_>>().len();
        let is_cold = second >= COLD_S && lately(COLD_S).all(|second| second.asked.is_empty());
        self.seconds[last].active = (!is_cold || !self.until_idle).then_some(active);
        self.cold = if is_cold { self.cold + 1 } else { 0 };
        for (worst, seconds) in self.worst.iter_mut().zip(STRETCHES) {
            let Some(from) = (last + 1).checked_sub(seconds) else { continue };
            let stretch = || self.seconds.range(from..=last);
            let active = stretch().map(|second| second.active).max().flatten();
            let bound = bound(seconds, active);
            for (place, link) in self.links.iter().enumerate() {
                let sent = stretch().fold(Sent::default(), |sum, second| sum.and(second.sent[place]));
                let percent = sent.percent_of(bound);
                if percent > worst.percent {
                    *worst = Worst { percent, link: *link, until: second + 1, sent, active };
                }
            }
        }
        while self.seconds.len() > COLD_S + LATE_S {
            self.seconds.pop_front();
            self.first += 1;
        }
        match self.worst.iter().zip(STRETCHES).find(|(worst, _)| worst.percent > 100) {
            Some((worst, seconds)) => {
                Err(format!("{worst} in {seconds} s, more than {}", bound(seconds, worst.active)))
            }
            None => Ok(()),
        }
    }
}

impl Check for MessagesBounded {
    fn name(&self) -> &'static str {
        "messages bounded"
    }

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        answers.iter().for_each(|answer| self.ask(answer));
        let now = world.elapsed();
        if now.subsec_nanos() > 0 || now.is_zero() {
            return Ok(());
        }
        let sent = self.links.iter().map(|(from, to)| world.sent(*from, *to)).collect();
        self.count(now.as_secs() as usize - 1, sent)
    }

    /// Waits until links are idle and have been judged as such.
    fn rest(&mut self, _: &World) -> Result<(), String> {
        if self.cold >= QUIET_S || !self.until_idle {
            Ok(())
        } else {
            Err("some cells may still be spoken of".to_owned())
        }
    }

    fn summary(&self) -> Vec<String> {
        let line = |(worst, seconds): (&Worst, usize)| {
            let bound = bound(seconds, worst.active);
            format!("messages: at most {} % of their bound in {seconds} s: {worst} of {bound}", worst.percent)
        };
        self.worst.iter().zip(STRETCHES).map(line).collect()
    }
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = self.link;
        write!(f, "{} from {} to {} until {} s", self.sent, NAMES[from], NAMES[to], self.until)?;
        match self.active {
            Some(active) => write!(f, " with {active} active cells"),
            None => f.write_str(" with nothing to say"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A check of two regions with `asked` active cells and this traffic in each second.
    fn after(seconds: usize, asked: usize, sent: impl Fn(usize) -> Sent) -> Result<(), String> {
        let mut check = MessagesBounded::new(&[], 2).until_idle();
        let mut sum = Sent::default();
        (0..seconds).try_for_each(|second| {
            let cells = (0..asked).map(|cell| (0, vec![("user".to_owned(), cell.to_string())]));
            check.second(second).expect("a second").asked.extend(cells);
            sum = sum.and(sent(second));
            check.count(second, vec![sum, Sent::default()])
        })
    }

    fn sent(packets: u64, packet_bytes: u64) -> Sent {
        Sent { packets, bytes: packets * packet_bytes, handshakes: 0 }
    }

    #[test]
    fn heartbeats_are_no_finding_and_frames_at_every_tick_are() {
        assert_eq!(after(40, 0, |_| sent(20, 70)), Ok(()));
        let found = after(40, 0, |_| sent(100, 70)).expect_err("a finding");
        assert!(found.contains("from eu to us until 17 s with nothing to say in 1 s"), "{found}");
    }

    #[test]
    fn ten_active_cells_that_are_advertised_at_every_tick_are_found() {
        assert_eq!(after(40, 10, |_| sent(100, 75)), Ok(()));
        // Each peer sends a frame of all cells every ten milliseconds, and acknowledgements of the other's
        // frames.
        let found = after(40, 10, |_| sent(150, 340)).expect_err("a finding");
        assert!(found.contains("with 10 active cells in 1 s"), "{found}");
        let seldom = |second| if second % 3 == 0 { sent(250, 75) } else { sent(130, 75) };
        let found = after(40, 10, seldom).expect_err("a finding");
        assert!(found.contains("in 10 s"), "{found}");
    }

    #[test]
    fn frames_may_grow_with_active_cells_and_not_with_all() {
        let advertised = |cells: u64| move |_| sent(200, 75).and(sent(1, 12 * cells));
        assert_eq!(after(40, 2_500, advertised(2_500)), Ok(()));
        assert!(after(40, 2_500, advertised(20_000)).is_err());
    }

    #[test]
    fn whoever_is_not_there_is_tried_again_and_not_without_end() {
        let tried = |handshakes| move |_| Sent { handshakes, ..Sent::default() };
        assert_eq!(after(30, 1, tried(60)), Ok(()));
        assert!(after(30, 1, tried(250)).is_err());
    }
}
