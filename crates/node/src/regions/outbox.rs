//! The facts that wait to be sent to one peer, and those that were sent and not yet confirmed.
//!
//! Only the latest of each fact waits, so a link that was down for an hour has no more to carry than one that
//! was down for a second. A few frames may be under way at once. The facts of a lost frame are sent again, in
//! their state by then.
//!
//! A frame that was given up may only be late. Once it is confirmed, its facts are not sent again, and its
//! round-trip time counts. Otherwise a link that became slower than the sender's patience would carry the
//! same facts for ever. That would make it still slower, and nothing would be confirmed in time again.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry as MapEntry};

use acequia_limits::LimitId;
use acequia_rights::Incarnation;
use smallvec::SmallVec;

use super::{
    CellKey,
    names::ConnectionNumbers,
    wire::{FrameEntry, FrameHeader, FrameWriter, ReceivedFrames, ShortId},
};
use crate::{FORWARD_NS, settings::SETTINGS};

/// The topic of a fact: a later fact about the same topic takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    /// First in order, since a request waits for it.
    ForwardReply(u64),
    Forward(u64),
    Version,
    Acked(Incarnation),
    Renew,
    Unknown(ShortId),
    Return(CellKey, u64),
    Grant(CellKey, u64),
    Give(CellKey, u64),
    Got(CellKey, u64),
    Recall(CellKey, u64),
    Refused(CellKey, u64),
    Ask(CellKey, u64),
    Short(CellKey),
    Advertisement(CellKey),
    Usage(LimitId, Incarnation),
    Digest,
    Differs,
    Settle(u128),
    Ping,
}

impl Topic {
    /// The cell that the topic is about, if any.
    const fn cell(&self) -> Option<CellKey> {
        match *self {
            Self::Return(cell, _)
            | Self::Grant(cell, _)
            | Self::Give(cell, _)
            | Self::Got(cell, _)
            | Self::Recall(cell, _)
            | Self::Refused(cell, _)
            | Self::Ask(cell, _)
            | Self::Short(cell)
            | Self::Advertisement(cell) => Some(cell),
            Self::ForwardReply(_)
            | Self::Forward(_)
            | Self::Version
            | Self::Acked(_)
            | Self::Renew
            | Self::Unknown(_)
            | Self::Usage(..)
            | Self::Digest
            | Self::Differs
            | Self::Settle(_)
            | Self::Ping => None,
        }
    }

    /// Whether only the peer's present process can use such a fact.
    const fn is_for_one_process(&self) -> bool {
        matches!(
            self,
            Self::Grant(..)
                | Self::Renew
                | Self::Unknown(_)
                | Self::Digest
                | Self::Differs
                | Self::Forward(_)
                | Self::ForwardReply(_)
                | Self::Ping
        )
    }

    /// Whether such a fact is of no use when it is sent again.
    const fn is_for_now(&self) -> bool {
        matches!(self, Self::Forward(_) | Self::ForwardReply(_) | Self::Ping)
    }
}

/// A fact that waits.
#[derive(Clone, Debug)]
pub(crate) struct WaitingFact {
    /// The entry; the cell's number is filled in when the entry is sent.
    pub(crate) entry: FrameEntry,
    /// The batch that must be on disk before the fact leaves; 0 for none.
    pub(crate) after_batch: u64,
    /// The fact's place among all facts: of two about the same topic, the greater is the later.
    told: u64,
    /// The frames that carried the fact, were given up, and may only be late.
    given_up_in: SmallVec<[u64; 2]>,
}

/// The round-trip times of frames that were just confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    /// The time of the newest frame: of those in time, if there are any.
    pub(crate) newest_ns: u64,
    /// The longest time, late frames included.
    pub(crate) longest_ns: u64,
}

#[derive(Debug)]
struct SentFrame {
    number: u64,
    at_ns: u64,
    /// Numbers of this end that the frame introduces.
    introduced: Vec<ShortId>,
    facts: Vec<(Topic, WaitingFact)>,
}

/// The facts on their way to one peer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: BTreeMap<Topic, WaitingFact>,
    under_way: VecDeque<SentFrame>,
    /// Frames that count as lost: each frame's number, and when it was sent.
    given_up: VecDeque<(u64, u64)>,
    /// Answers to forwards: each forward's number, and when the answer was queued: steady clock.
    forward_replies: VecDeque<(u64, u64)>,
    next_number: u64,
    /// How many facts were queued so far.
    told: u64,
    pub(crate) names: ConnectionNumbers,
    /// Bytes and entries sent since the start.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

impl Outbox {
    /// Queues a fact.
    pub(crate) fn tell(&mut self, topic: Topic, entry: FrameEntry, after_batch: u64) {
        let fact = self.fact(entry, after_batch);
        self.waiting.insert(topic, fact);
    }

    fn fact(&mut self, entry: FrameEntry, after_batch: u64) -> WaitingFact {
        self.told += 1;
        WaitingFact { entry, after_batch, told: self.told, given_up_in: SmallVec::new() }
    }

    /// Queues the settlement of a charge. Returns whether there was room.
    pub(crate) fn settle(&mut self, id: u128, cost: Option<u64>) -> bool {
        let waiting = self.waiting.range(Topic::Settle(0)..=Topic::Settle(u128::MAX)).count();
        let has_room = waiting < SETTINGS.links.settlements_max;
        if has_room {
            // The first settlement counts, as at the node that made the charge.
            let fact = self.fact(FrameEntry::Settle { id, cost }, 0);
            self.waiting.entry(Topic::Settle(id)).or_insert(fact);
        }
        has_room
    }

    /// Queues the answer to a forward.
    pub(crate) fn tell_forward_reply(&mut self, number: u64, units: Option<u64>, now_ns: u64) {
        if self.forward_replies.len() >= SETTINGS.links.replies_max
            && let Some((oldest, _)) = self.forward_replies.pop_front()
        {
            self.waiting.remove(&Topic::ForwardReply(oldest));
        }
        self.forward_replies.push_back((number, now_ns));
        self.tell(Topic::ForwardReply(number), FrameEntry::ForwardReply { number, units }, 0);
    }

    /// Forgets answers that were queued so long ago that nobody waits for them: if not sent yet, they never
    /// are.
    pub(crate) fn forget_forward_replies(&mut self, now_ns: u64) {
        while let Some((number, at_ns)) = self.forward_replies.front().copied()
            && now_ns >= at_ns + FORWARD_NS
        {
            self.forward_replies.pop_front();
            self.waiting.remove(&Topic::ForwardReply(number));
        }
    }

    /// Drops forwards before this number that were not sent: nobody waits for them any more.
    pub(crate) fn forget_forwards(&mut self, before: u64) {
        if before > 0 {
            self.waiting
                .extract_if(Topic::Forward(0)..=Topic::Forward(before - 1), |_, _| true)
                .for_each(drop);
        }
    }

    /// Whether anything could be sent, given what is on disk.
    pub(crate) fn is_ready(&self, committed: u64) -> bool {
        self.under_way.len() < SETTINGS.links.frames_max
            && self.waiting.values().any(|fact| fact.after_batch <= committed)
    }

    /// How many facts wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The last frame's number.
    pub(crate) const fn last_number(&self) -> u64 {
        self.next_number
    }

    /// The next frame's number.
    pub(crate) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Fills a frame with what may leave. `forward` returns for how many microseconds a forward is of use;
    /// `None` for none.
    pub(crate) fn fill(
        &mut self,
        header: &FrameHeader,
        committed: u64,
        now_ns: u64,
        name: impl Fn(CellKey) -> Option<(LimitId, Option<u16>)>,
        forward: impl Fn(u64) -> Option<u32>,
    ) -> Vec<u8> {
        let mut frame = FrameWriter::new(header);
        let (mut introduced, mut facts) = (Vec::new(), Vec::new());
        let mut described = BTreeSet::new();
        if self.under_way.len() < SETTINGS.links.frames_max {
            let mut ready = self.waiting.extract_if(.., |_, fact| fact.after_batch <= committed);
            while !frame.is_full()
                && let Some((topic, mut fact)) = ready.next()
            {
                if let Some(cell) = topic.cell() {
                    let Some((limit, which)) = name(cell) else { continue };
                    let (id, known) = self.names.number(cell);
                    // One introduction in a frame is enough.
                    if !known && described.insert(id) {
                        frame.push(&FrameEntry::Introduce { id, limit, tag: cell.tag, which });
                        introduced.push(id);
                    }
                    set_id(&mut fact.entry, id);
                }
                if let FrameEntry::Forward { number, within_us, .. } = &mut fact.entry {
                    let Some(left_us) = forward(*number) else { continue };
                    *within_us = left_us;
                }
                frame.push(&fact.entry);
                // A ping states no fact, so it does not count.
                self.entries += u64::from(!matches!(fact.entry, FrameEntry::Ping));
                facts.push((topic, fact));
            }
        }
        if !facts.is_empty() {
            self.under_way.push_back(SentFrame { number: header.number, at_ns: now_ns, introduced, facts });
        }
        let bytes = frame.finish();
        self.bytes += bytes.len() as u64;
        bytes
    }

    /// Takes the peer's confirmations. Returns how long the newly confirmed frames took.
    pub(crate) fn confirmed(&mut self, received: &ReceivedFrames, now_ns: u64) -> Option<Rounds> {
        // This process sent no such frame. An earlier one did, of which this disk, an old copy, knows
        // nothing.
        if received.highest > self.next_number {
            return None;
        }
        let late_ns = self.confirmed_late(received, now_ns);
        let mut newest_ns = None;
        let mut longest_ns = late_ns;
        let mut lost = Vec::new();
        let under_way = std::mem::take(&mut self.under_way);
        for sent in under_way {
            if received.has(sent.number) {
                newest_ns = Some(now_ns.saturating_sub(sent.at_ns));
                longest_ns = longest_ns.max(newest_ns);
                sent.introduced.into_iter().for_each(|id| self.names.learned(id));
            } else if sent.number + SETTINGS.links.reordered_max < received.highest {
                lost.push(sent);
            } else {
                self.under_way.push_back(sent);
            }
        }
        lost.into_iter().for_each(|sent| self.again(sent));
        Some(Rounds { newest_ns: newest_ns.or(late_ns)?, longest_ns: longest_ns? })
    }

    /// Takes confirmations of frames that were given up: their facts need not be sent again. Returns the
    /// longest time that one took.
    fn confirmed_late(&mut self, received: &ReceivedFrames, now_ns: u64) -> Option<u64> {
        let came: BTreeMap<u64, u64> =
            self.given_up.iter().copied().filter(|(number, _)| received.has(*number)).collect();
        self.given_up.retain(|(number, _)| !came.contains_key(number));
        if !came.is_empty() {
            let is_said =
                |fact: &WaitingFact| fact.given_up_in.iter().any(|number| came.contains_key(number));
            self.waiting.retain(|_, fact| !is_said(fact));
            self.under_way.iter_mut().for_each(|sent| sent.facts.retain(|(_, fact)| !is_said(fact)));
        }
        came.values().map(|at_ns| now_ns.saturating_sub(*at_ns)).max()
    }

    /// Counts frames as lost that were sent before this time and not confirmed.
    pub(crate) fn expire(&mut self, before_ns: u64) {
        while self.under_way.front().is_some_and(|sent| sent.at_ns < before_ns) {
            if let Some(sent) = self.under_way.pop_front() {
                self.again(sent);
            }
        }
    }

    /// Prepares for a new process of the peer, which knows nothing of what the last one was told.
    pub(crate) fn restart(&mut self) {
        while let Some(sent) = self.under_way.pop_front() {
            self.again(sent);
        }
        self.given_up.clear();
        self.waiting.retain(|topic, _| !topic.is_for_one_process());
        self.forward_replies.clear();
        self.names.introduce_again();
        self.names.forget_theirs();
    }

    /// Drops everything: it is meant for an incarnation that is replaced or closed.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.forward_replies.clear();
        self.under_way.clear();
        self.given_up.clear();
    }

    /// Queues the facts of a lost frame again, unless a later fact about the same topic waits. Frames are
    /// given up in any order, and two of them may carry facts about one topic: the later fact stays.
    fn again(&mut self, sent: SentFrame) {
        let SentFrame { number, at_ns, facts, .. } = sent;
        // Frames before this one are too old to be confirmed.
        let oldest = number.saturating_sub(SETTINGS.links.given_up_max as u64);
        for (topic, mut fact) in facts.into_iter().filter(|(topic, _)| !topic.is_for_now()) {
            fact.given_up_in.retain(|before| *before >= oldest);
            fact.given_up_in.push(number);
            match self.waiting.entry(topic) {
                MapEntry::Vacant(free) => drop(free.insert(fact)),
                MapEntry::Occupied(mut held) if is_rather_said(topic, &fact, held.get()) => {
                    drop(held.insert(fact))
                }
                MapEntry::Occupied(_) => {}
            }
        }
        if self.given_up.len() >= SETTINGS.links.given_up_max {
            self.given_up.pop_front();
        }
        self.given_up.push_back((number, at_ns));
    }
}

/// Whether `one` is sent rather than `other`, of two facts about the same topic.
const fn is_rather_said(topic: Topic, one: &WaitingFact, other: &WaitingFact) -> bool {
    match topic {
        // The first settlement counts, as at the node that made the charge.
        Topic::Settle(_) => one.told < other.told,
        _ => other.told < one.told,
    }
}

fn set_id(entry: &mut FrameEntry, number: ShortId) {
    match entry {
        FrameEntry::Introduce { id, .. }
        | FrameEntry::Unknown { id }
        | FrameEntry::Advertisement { id, .. }
        | FrameEntry::Short { id, .. }
        | FrameEntry::Grant { id, .. }
        | FrameEntry::Return { id, .. }
        | FrameEntry::Recall { id, .. }
        | FrameEntry::Refused { id, .. }
        | FrameEntry::Ask { id, .. }
        | FrameEntry::Give { id, .. }
        | FrameEntry::Got { id, .. } => *id = number,
        FrameEntry::Renew(_)
        | FrameEntry::Version(..)
        | FrameEntry::Acked { .. }
        | FrameEntry::Usage { .. }
        | FrameEntry::Digest(_)
        | FrameEntry::Differs(_)
        | FrameEntry::Settle { .. }
        | FrameEntry::Forward { .. }
        | FrameEntry::ForwardReply { .. }
        | FrameEntry::Ping => {}
    }
}

#[cfg(test)]
mod tests {
    use acequia_limits::CellTag;
    use acequia_rights::{MemberId, VersionId};

    use super::{
        super::wire::{Rough, read},
        *,
    };

    fn header(outbox: &mut Outbox) -> FrameHeader {
        FrameHeader {
            incarnation: Incarnation { member: MemberId(0), node: 0, number: 1 },
            process_number: 1,
            number: outbox.number(),
            received: ReceivedFrames::default(),
            heartbeat: 1,
            wall_ns: 1,
            corrected_ns: 0,
            is_believed: true,
            loan_max: 0,
            version_id: VersionId::default(),
        }
    }

    fn tell_news(outbox: &mut Outbox, tag: u128) {
        let rough = Rough::new(1);
        let entry = FrameEntry::Advertisement {
            id: ShortId::default(),
            demand: rough,
            holds: rough,
            left: rough,
            stands: None,
            owed: Rough::default(),
        };
        outbox.tell(Topic::Advertisement(CellKey { slot: 1, tag: CellTag(tag) }), entry, 0);
    }

    /// The next frame: how many introductions it has, and how many other entries.
    fn next(outbox: &mut Outbox) -> (usize, usize) {
        let header = header(outbox);
        let bytes = outbox.fill(&header, 0, 1, |_| Some((LimitId(9), None)), |_| Some(1));
        let entries = read(&bytes).expect("a frame").entries;
        let introduced = entries.iter().filter(|entry| matches!(entry, FrameEntry::Introduce { .. })).count();
        (introduced, entries.len() - introduced)
    }

    #[test]
    fn waiting_forward_replies_are_bounded_and_expire() {
        let mut outbox = Outbox::default();
        for number in 1..=SETTINGS.links.replies_max as u64 + 10 {
            outbox.tell_forward_reply(number, Some(1), number);
        }
        assert_eq!(outbox.len(), SETTINGS.links.replies_max, "the oldest are not said");
        outbox.forget_forward_replies(FORWARD_NS + 20);
        assert_eq!(outbox.len(), SETTINGS.links.replies_max - 10, "nor those that nobody waits for");
        // The process that waited for them is gone. With an old disk, the next process has the same numbers.
        outbox.restart();
        outbox.tell_forward_reply(30, Some(1), FORWARD_NS);
        outbox.forget_forward_replies(FORWARD_NS + 40);
        assert_eq!(outbox.len(), 1);
        assert_eq!(next(&mut outbox), (0, 1));
        outbox.expire(2);
        assert_eq!(outbox.len(), 0, "what was lost is not said again");
    }

    #[test]
    fn entries_that_do_not_fit_in_a_frame_wait_for_the_next() {
        let mut outbox = Outbox::default();
        for tag in 0..10_000 {
            tell_news(&mut outbox, tag << 64);
        }
        let (mut frames, mut all) = (0, 0);
        while outbox.is_ready(0) {
            let (introduced, others) = next(&mut outbox);
            assert_eq!(introduced, others, "each is introduced with its news");
            (frames, all) = (frames + 1, all + others);
        }
        assert_eq!(all, 10_000);
        assert!((2..SETTINGS.links.frames_max).contains(&frames), "{frames}");
    }

    #[test]
    fn a_fact_confirmed_by_one_frame_is_not_repeated_for_a_later_one() {
        let mut outbox = Outbox::default();
        let received = |highest| ReceivedFrames { highest, ..ReceivedFrames::default() };
        tell_news(&mut outbox, 7);
        assert_eq!(next(&mut outbox), (1, 1));
        outbox.expire(2);
        assert_eq!(outbox.len(), 1, "it may be lost");
        // The first frame with the fact is confirmed while the second is under way.
        assert_eq!(next(&mut outbox), (1, 1));
        let rounds = outbox.confirmed(&received(1), 31).expect("how long it took");
        assert_eq!(rounds, Rounds { newest_ns: 30, longest_ns: 30 });
        outbox.expire(2);
        assert_eq!(outbox.len(), 0);
        // A fact that is newer than the late frame is sent.
        tell_news(&mut outbox, 7);
        assert_eq!(next(&mut outbox).1, 1);
        outbox.expire(2);
        tell_news(&mut outbox, 7);
        outbox.confirmed(&received(3), 41);
        assert_eq!(outbox.len(), 1);
    }

    #[test]
    fn a_confirmation_for_another_process_is_ignored() {
        let mut outbox = Outbox::default();
        tell_news(&mut outbox, 7);
        assert_eq!(next(&mut outbox), (1, 1));
        let of_another = ReceivedFrames { highest: 900, mask: u64::MAX, ..ReceivedFrames::default() };
        assert!(outbox.confirmed(&of_another, 2).is_none());
        assert_eq!(outbox.len(), 0, "it is not said again with each frame that comes");
        outbox.expire(2);
        assert_eq!(outbox.len(), 1, "but when it has not been confirmed for long");
    }

    #[test]
    fn of_two_lost_frames_about_one_fact_the_later_is_repeated() {
        let mut outbox = Outbox::default();
        let tell = |outbox: &mut Outbox, cost| {
            outbox.tell(
                Topic::Short(CellKey { slot: 1, tag: CellTag(7) }),
                FrameEntry::Short { id: ShortId::default(), units: cost },
                0,
            );
            assert!(outbox.settle(9, Some(cost)), "there is room");
            let header = header(outbox);
            outbox.fill(&header, 0, 1, |_| Some((LimitId(9), None)), |_| Some(1));
        };
        tell(&mut outbox, 1);
        tell(&mut outbox, 2);
        outbox.expire(2);
        let header = header(&mut outbox);
        let bytes = outbox.fill(&header, 0, 1, |_| Some((LimitId(9), None)), |_| Some(1));
        let said = read(&bytes).expect("a frame").entries;
        assert!(said.iter().any(|entry| matches!(entry, FrameEntry::Short { units: 2, .. })), "{said:?}");
        assert!(
            said.iter().any(|entry| matches!(entry, FrameEntry::Settle { cost: Some(1), .. })),
            "{said:?}"
        );
        assert_eq!(said.len(), 3, "each once, and the cell's name");
    }

    #[test]
    fn a_cell_is_introduced_in_each_frame_until_one_is_confirmed() {
        let mut outbox = Outbox::default();
        let short = |outbox: &mut Outbox| {
            tell_news(outbox, 7);
            let entry = FrameEntry::Short { id: ShortId::default(), units: 1 };
            outbox.tell(Topic::Short(CellKey { slot: 1, tag: CellTag(7) }), entry, 0);
        };
        short(&mut outbox);
        assert_eq!(next(&mut outbox), (1, 2));
        short(&mut outbox);
        assert_eq!(next(&mut outbox), (1, 2), "the first may be lost");
        outbox.confirmed(&ReceivedFrames { highest: 2, mask: 1, ..ReceivedFrames::default() }, 2);
        short(&mut outbox);
        assert_eq!(next(&mut outbox), (0, 2));
        outbox.names.forget(CellKey { slot: 1, tag: CellTag(7) });
        short(&mut outbox);
        assert_eq!(next(&mut outbox), (1, 2));
    }
}
