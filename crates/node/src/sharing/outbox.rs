//! What waits to be told to one peer, and what was told and not yet confirmed.
//!
//! Only the latest of each fact waits, so a link that was down for an hour has no more to say than
//! one that was down for a second. A few frames may be under way at once; what a lost one said is
//! said again, as it is by then.
//!
//! A frame that was given up may only be late. What it said is said no more once it is confirmed, and
//! how long it took counts: a link that became slower than the patience for it would otherwise carry
//! the same for ever, be the slower for it, and confirm nothing in time again.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry as MapEntry};

use acequia_limits::{CellTag, LimitId};
use acequia_rights::Incarnation;
use smallvec::SmallVec;

use super::{
    names::Names,
    wire::{Entry, FrameWriter, Header, ReceivedFrames, ShortId},
};
use crate::DRAW_NS;

/// Frames on their way to one peer.
const FRAMES_MAX: usize = 16;
/// Frames after which one that was not confirmed, though later ones were, counts as lost.
const REORDERED_MAX: u64 = 3;

/// Frames that were given up and may still be confirmed: a peer tells of as many.
const GIVEN_UP_MAX: usize = 64;

/// Settlements that wait for one peer.
const SETTLE_MAX: usize = 1_024;

/// Answers to draws that wait for one peer, or were sent a moment ago: past them the oldest is not said, and what it charged passes nobody.
const DRAWN_MAX: usize = 1_024;

/// A cell: the catalogue's slot of its limit, and its tag.
pub(crate) type CellKey = (u32, CellTag);

/// What a fact is about: a later one about the same takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    /// First, since somebody waits.
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
    /// The cell it is about, if it is.
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

    /// Whether only the peer's present process can make anything of it.
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

    /// Whether it is of no use when it is said again.
    const fn is_for_now(&self) -> bool {
        matches!(self, Self::Forward(_) | Self::ForwardReply(_) | Self::Ping)
    }
}

/// A fact that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    /// Its entry; the cell's number is filled in when it is sent.
    pub(crate) entry: Entry,
    /// The batch that must be on disk before it leaves; 0 for none.
    pub(crate) after_batch: u64,
    /// Its place among all that was told: of two about the same, the greater is the later.
    told: u64,
    /// The frames that said so, were given up, and may only be late.
    given_up_in: SmallVec<[u64; 2]>,
}

/// How long frames took there and back that were just confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    /// The newest of them: of those that came in time, if any did.
    pub(crate) newest_ns: u64,
    /// The one that took longest, late ones included.
    pub(crate) longest_ns: u64,
}

#[derive(Debug)]
struct Sent {
    number: u64,
    at_ns: u64,
    /// Numbers of this end that it introduces.
    introduced: Vec<ShortId>,
    facts: Vec<(Topic, Waiting)>,
}

/// The way to one peer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: BTreeMap<Topic, Waiting>,
    under_way: VecDeque<Sent>,
    /// Frames that count as lost, each with when it was sent.
    given_up: VecDeque<(u64, u64)>,
    /// Answers to draws, each with when it was told: steady clock.
    drawn: VecDeque<(u64, u64)>,
    next_number: u64,
    /// Facts that were told so far.
    told: u64,
    pub(crate) names: Names,
    /// Bytes and entries sent, since the start.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

impl Outbox {
    /// Puts a fact in line.
    pub(crate) fn tell(&mut self, topic: Topic, entry: Entry, after_batch: u64) {
        let fact = self.fact(entry, after_batch);
        self.waiting.insert(topic, fact);
    }

    fn fact(&mut self, entry: Entry, after_batch: u64) -> Waiting {
        self.told += 1;
        Waiting { entry, after_batch, told: self.told, given_up_in: SmallVec::new() }
    }

    /// Puts the settlement of a charge in line, if there is room.
    pub(crate) fn settle(&mut self, id: u128, cost: Option<u64>) -> bool {
        let waiting = self.waiting.range(Topic::Settle(0)..=Topic::Settle(u128::MAX)).count();
        let has_room = waiting < SETTLE_MAX;
        if has_room {
            // The first word counts, as with the node that made the charge.
            let fact = self.fact(Entry::Settle { id, cost }, 0);
            self.waiting.entry(Topic::Settle(id)).or_insert(fact);
        }
        has_room
    }

    /// Puts the answer to a draw in line.
    pub(crate) fn tell_drawn(&mut self, number: u64, units: Option<u64>, now_ns: u64) {
        if self.drawn.len() >= DRAWN_MAX
            && let Some((oldest, _)) = self.drawn.pop_front()
        {
            self.waiting.remove(&Topic::ForwardReply(oldest));
        }
        self.drawn.push_back((number, now_ns));
        self.tell(Topic::ForwardReply(number), Entry::ForwardReply { number, units }, 0);
    }

    /// Answers that were told so long ago are waited for no more: those that were not sent are not said.
    pub(crate) fn forget_drawn(&mut self, now_ns: u64) {
        while let Some((number, at_ns)) = self.drawn.front().copied()
            && now_ns >= at_ns + DRAW_NS
        {
            self.drawn.pop_front();
            self.waiting.remove(&Topic::ForwardReply(number));
        }
    }

    /// Draws before this number are waited for no more: those that were not sent are not said.
    pub(crate) fn forget_draws(&mut self, before: u64) {
        if before > 0 {
            self.waiting
                .extract_if(Topic::Forward(0)..=Topic::Forward(before - 1), |_, _| true)
                .for_each(drop);
        }
    }

    /// Whether anything could be sent, with what is on disk.
    pub(crate) fn is_ready(&self, committed: u64) -> bool {
        self.under_way.len() < FRAMES_MAX && self.waiting.values().any(|fact| fact.after_batch <= committed)
    }

    /// Facts that wait.
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

    /// Fills a frame with what may leave. `draw` says within how many microseconds a draw is of use, if it is.
    pub(crate) fn fill(
        &mut self,
        header: &Header,
        committed: u64,
        now_ns: u64,
        name: impl Fn(CellKey) -> Option<(LimitId, Option<u16>)>,
        draw: impl Fn(u64) -> Option<u32>,
    ) -> Vec<u8> {
        let mut frame = FrameWriter::new(header);
        let (mut introduced, mut facts) = (Vec::new(), Vec::new());
        let mut described = BTreeSet::new();
        if self.under_way.len() < FRAMES_MAX {
            let mut ready = self.waiting.extract_if(.., |_, fact| fact.after_batch <= committed);
            while !frame.is_full()
                && let Some((topic, mut fact)) = ready.next()
            {
                if let Some(cell) = topic.cell() {
                    let Some((limit, which)) = name(cell) else { continue };
                    let (id, known) = self.names.number(cell);
                    // Once a frame is enough.
                    if !known && described.insert(id) {
                        frame.push(&Entry::Introduce { id, limit, tag: cell.1, which });
                        introduced.push(id);
                    }
                    set_id(&mut fact.entry, id);
                }
                if let Entry::Forward { number, within_us, .. } = &mut fact.entry {
                    let Some(left_us) = draw(*number) else { continue };
                    *within_us = left_us;
                }
                frame.push(&fact.entry);
                // What is asked of time is not said of anything.
                self.entries += u64::from(!matches!(fact.entry, Entry::Ping));
                facts.push((topic, fact));
            }
        }
        if !facts.is_empty() {
            self.under_way.push_back(Sent { number: header.number, at_ns: now_ns, introduced, facts });
        }
        let bytes = frame.finish();
        self.bytes += bytes.len() as u64;
        bytes
    }

    /// What the peer confirms. Gives how long that took, if it is news.
    pub(crate) fn confirmed(&mut self, received: &ReceivedFrames, now_ns: u64) -> Option<Rounds> {
        // This process has sent no such frame. An earlier one has, of which an old copy of the disk says nothing.
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
            } else if sent.number + REORDERED_MAX < received.highest {
                lost.push(sent);
            } else {
                self.under_way.push_back(sent);
            }
        }
        lost.into_iter().for_each(|sent| self.again(sent));
        Some(Rounds { newest_ns: newest_ns.or(late_ns)?, longest_ns: longest_ns? })
    }

    /// Of what was given up, the peer confirms some: that need not be said again. Gives how long it took at most.
    fn confirmed_late(&mut self, received: &ReceivedFrames, now_ns: u64) -> Option<u64> {
        let came: BTreeMap<u64, u64> =
            self.given_up.iter().copied().filter(|(number, _)| received.has(*number)).collect();
        self.given_up.retain(|(number, _)| !came.contains_key(number));
        if !came.is_empty() {
            let is_said = |fact: &Waiting| fact.given_up_in.iter().any(|number| came.contains_key(number));
            self.waiting.retain(|_, fact| !is_said(fact));
            self.under_way.iter_mut().for_each(|sent| sent.facts.retain(|(_, fact)| !is_said(fact)));
        }
        came.values().map(|at_ns| now_ns.saturating_sub(*at_ns)).max()
    }

    /// Frames that were sent before this time, and not confirmed, are lost.
    pub(crate) fn expire(&mut self, before_ns: u64) {
        while self.under_way.front().is_some_and(|sent| sent.at_ns < before_ns) {
            if let Some(sent) = self.under_way.pop_front() {
                self.again(sent);
            }
        }
    }

    /// The peer began anew, and knows nothing of what it was told.
    pub(crate) fn restart(&mut self) {
        while let Some(sent) = self.under_way.pop_front() {
            self.again(sent);
        }
        self.given_up.clear();
        self.waiting.retain(|topic, _| !topic.is_for_one_process());
        self.drawn.clear();
        self.names.introduce_again();
        self.names.forget_theirs();
    }

    /// The peer is another incarnation: nothing that was said to the one before is for it.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.drawn.clear();
        self.under_way.clear();
        self.given_up.clear();
    }

    /// What a lost frame said, unless something later about the same waits. Frames are given up in any order, and two of
    /// them may have said something about the same: the later word stays.
    fn again(&mut self, sent: Sent) {
        let Sent { number, at_ns, facts, .. } = sent;
        // As long as one that was given up before may be late.
        let oldest = number.saturating_sub(GIVEN_UP_MAX as u64);
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
        if self.given_up.len() >= GIVEN_UP_MAX {
            self.given_up.pop_front();
        }
        self.given_up.push_back((number, at_ns));
    }
}

/// Whether the one is said of two facts about the same.
const fn is_rather_said(topic: Topic, one: &Waiting, other: &Waiting) -> bool {
    match topic {
        // The first word counts, as with the node that made the charge.
        Topic::Settle(_) => one.told < other.told,
        _ => other.told < one.told,
    }
}

fn set_id(entry: &mut Entry, number: ShortId) {
    match entry {
        Entry::Introduce { id, .. }
        | Entry::Unknown { id }
        | Entry::Advertisement { id, .. }
        | Entry::Short { id, .. }
        | Entry::Grant { id, .. }
        | Entry::Return { id, .. }
        | Entry::Recall { id, .. }
        | Entry::Refused { id, .. }
        | Entry::Ask { id, .. }
        | Entry::Give { id, .. }
        | Entry::Got { id, .. } => *id = number,
        Entry::Renew(_)
        | Entry::Version(..)
        | Entry::Acked { .. }
        | Entry::Usage { .. }
        | Entry::Digest(_)
        | Entry::Differs(_)
        | Entry::Settle { .. }
        | Entry::Forward { .. }
        | Entry::ForwardReply { .. }
        | Entry::Ping => {}
    }
}

#[cfg(test)]
mod tests {
    use acequia_rights::{MemberId, VersionId};

    use super::{
        super::wire::{Rough, read},
        *,
    };

    fn header(outbox: &mut Outbox) -> Header {
        Header {
            incarnation: Incarnation { member: MemberId(0), node: 0, number: 1 },
            boot: 1,
            number: outbox.number(),
            received: ReceivedFrames::default(),
            beat: 1,
            wall_ns: 1,
            corrected_ns: 0,
            is_believed: true,
            loan_max: 0,
            version_id: VersionId::default(),
        }
    }

    fn tell_news(outbox: &mut Outbox, tag: u128) {
        let rough = Rough::new(1);
        let entry = Entry::Advertisement {
            id: ShortId::default(),
            demand: rough,
            holds: rough,
            left: rough,
            stands: None,
        };
        outbox.tell(Topic::Advertisement((1, CellTag(tag))), entry, 0);
    }

    /// The next frame: how many introductions it has, and how many other entries.
    fn next(outbox: &mut Outbox) -> (usize, usize) {
        let header = header(outbox);
        let bytes = outbox.fill(&header, 0, 1, |_| Some((LimitId(9), None)), |_| Some(1));
        let entries = read(&bytes).expect("a frame").entries;
        let introduced = entries.iter().filter(|entry| matches!(entry, Entry::Introduce { .. })).count();
        (introduced, entries.len() - introduced)
    }

    #[test]
    fn answers_to_draws_have_a_bound_and_an_end() {
        let mut outbox = Outbox::default();
        for number in 1..=DRAWN_MAX as u64 + 10 {
            outbox.tell_drawn(number, Some(1), number);
        }
        assert_eq!(outbox.len(), DRAWN_MAX, "the oldest are not said");
        outbox.forget_drawn(DRAW_NS + 20);
        assert_eq!(outbox.len(), DRAWN_MAX - 10, "nor those that nobody waits for");
        // Whoever waited for them is gone, and with an old disk the next process has the same numbers.
        outbox.restart();
        outbox.tell_drawn(30, Some(1), DRAW_NS);
        outbox.forget_drawn(DRAW_NS + 40);
        assert_eq!(outbox.len(), 1);
        assert_eq!(next(&mut outbox), (0, 1));
        outbox.expire(2);
        assert_eq!(outbox.len(), 0, "what was lost is not said again");
    }

    #[test]
    fn a_frame_takes_what_fits_and_the_rest_waits() {
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
        assert!((2..FRAMES_MAX).contains(&frames), "{frames}");
    }

    #[test]
    fn what_a_late_frame_said_is_not_said_again() {
        let mut outbox = Outbox::default();
        let received = |highest| ReceivedFrames { highest, ..ReceivedFrames::default() };
        tell_news(&mut outbox, 7);
        assert_eq!(next(&mut outbox), (1, 1));
        outbox.expire(2);
        assert_eq!(outbox.len(), 1, "it may be lost");
        // The first that said so is confirmed, while the second is under way.
        assert_eq!(next(&mut outbox), (1, 1));
        let rounds = outbox.confirmed(&received(1), 31).expect("how long it took");
        assert_eq!(rounds, Rounds { newest_ns: 30, longest_ns: 30 });
        outbox.expire(2);
        assert_eq!(outbox.len(), 0);
        // What is newer than the late one is said.
        tell_news(&mut outbox, 7);
        assert_eq!(next(&mut outbox).1, 1);
        outbox.expire(2);
        tell_news(&mut outbox, 7);
        outbox.confirmed(&received(3), 41);
        assert_eq!(outbox.len(), 1);
    }

    #[test]
    fn what_the_peer_saw_of_another_process_says_nothing() {
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
    fn of_two_lost_frames_about_the_same_the_later_word_is_said_again() {
        let mut outbox = Outbox::default();
        let tell = |outbox: &mut Outbox, cost| {
            outbox.tell(
                Topic::Short((1, CellTag(7))),
                Entry::Short { id: ShortId::default(), units: cost },
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
        assert!(said.iter().any(|entry| matches!(entry, Entry::Short { units: 2, .. })), "{said:?}");
        assert!(said.iter().any(|entry| matches!(entry, Entry::Settle { cost: Some(1), .. })), "{said:?}");
        assert_eq!(said.len(), 3, "each once, and the cell's name");
    }

    #[test]
    fn a_cell_is_introduced_once_a_frame_until_one_is_confirmed_and_again_when_it_was_forgotten() {
        let mut outbox = Outbox::default();
        let short = |outbox: &mut Outbox| {
            tell_news(outbox, 7);
            let entry = Entry::Short { id: ShortId::default(), units: 1 };
            outbox.tell(Topic::Short((1, CellTag(7))), entry, 0);
        };
        short(&mut outbox);
        assert_eq!(next(&mut outbox), (1, 2));
        short(&mut outbox);
        assert_eq!(next(&mut outbox), (1, 2), "the first may be lost");
        outbox.confirmed(&ReceivedFrames { highest: 2, mask: 1, ..ReceivedFrames::default() }, 2);
        short(&mut outbox);
        assert_eq!(next(&mut outbox), (0, 2));
        outbox.names.forget((1, CellTag(7)));
        short(&mut outbox);
        assert_eq!(next(&mut outbox), (1, 2));
    }
}
