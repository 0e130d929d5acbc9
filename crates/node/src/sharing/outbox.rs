//! What waits to be told to one peer, and what was told and not yet confirmed.
//!
//! Only the latest of each fact waits, so a link that was down for an hour has no more to say than
//! one that was down for a second. A few frames may be under way at once; what a lost one said is
//! said again, as it is by then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use acequia_limits::{CellTag, LimitId};
use acequia_rights::Writer;

use super::wire::{ENTRIES_MAX, Entry, FrameWriter, Header, Seen, ShortId};

/// Frames on their way to one peer.
const FRAMES_MAX: usize = 16;
/// Frames after which one that was not confirmed, though later ones were, counts as lost.
const REORDERED_MAX: u64 = 3;
/// The most short numbers that are remembered of a peer's: past it all are forgotten, and asked for.
const IDS_MAX: usize = 4 << 20;

/// A cell: the catalogue's slot of its limit, and its tag.
pub(crate) type CellKey = (u16, CellTag);

/// What a fact is about: a later one about the same takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    Version,
    Acked(Writer),
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
    News(CellKey),
    Usage(LimitId, Writer),
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
            | Self::News(cell) => Some(cell),
            Self::Version | Self::Acked(_) | Self::Renew | Self::Unknown(_) | Self::Usage(..) => None,
        }
    }

    /// Whether only the peer's present process can make anything of it.
    const fn is_for_one_process(&self) -> bool {
        matches!(self, Self::Grant(..) | Self::Renew | Self::Unknown(_))
    }
}

/// A fact that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    /// Its entry; the cell's number is filled in when it is sent.
    pub(crate) entry: Entry,
    /// The batch that must be on disk before it leaves; 0 for none.
    pub(crate) after_batch: u64,
}

#[derive(Debug)]
struct Sent {
    number: u64,
    at_ns: u64,
    introduced: Vec<CellKey>,
    facts: Vec<(Topic, Waiting)>,
}

/// The way to one peer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: BTreeMap<Topic, Waiting>,
    under_way: VecDeque<Sent>,
    next_number: u64,
    ids: BTreeMap<CellKey, Own>,
    cells: BTreeMap<ShortId, CellKey>,
    next_id: u32,
    /// The peer's numbers, and the other way round.
    theirs: BTreeMap<ShortId, CellKey>,
    theirs_by_cell: BTreeMap<CellKey, ShortId>,
    /// Bytes and entries sent, since the start.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// A number that this end gave.
#[derive(Clone, Copy, Debug)]
struct Own {
    id: ShortId,
    /// Whether the peer is known to know it.
    known: bool,
}

impl Outbox {
    /// Puts a fact in line.
    pub(crate) fn tell(&mut self, topic: Topic, entry: Entry, after_batch: u64) {
        self.waiting.insert(topic, Waiting { entry, after_batch });
    }

    /// Whether anything could be sent, with what is on disk.
    pub(crate) fn is_ready(&self, committed: u64) -> bool {
        self.under_way.len() < FRAMES_MAX && self.waiting.values().any(|fact| fact.after_batch <= committed)
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

    /// Fills a frame with what may leave.
    pub(crate) fn fill(
        &mut self,
        header: &Header,
        committed: u64,
        now_ns: u64,
        name: impl Fn(CellKey) -> Option<(LimitId, u16)>,
    ) -> Vec<u8> {
        let mut frame = FrameWriter::new(header);
        let (mut introduced, mut facts) = (Vec::new(), Vec::new());
        let mut described = BTreeSet::new();
        if self.under_way.len() < FRAMES_MAX {
            let topics: Vec<Topic> = self
                .waiting
                .iter()
                .filter(|(_, fact)| fact.after_batch <= committed)
                .map(|(topic, _)| *topic)
                .take(ENTRIES_MAX)
                .collect();
            for topic in topics {
                if frame.is_full() {
                    break;
                }
                let Some(mut fact) = self.waiting.remove(&topic) else { continue };
                if let Some(cell) = topic.cell() {
                    let Some((limit, which)) = name(cell) else { continue };
                    let (id, introduce) = self.id(cell, &mut described);
                    if introduce {
                        frame.push(&Entry::Introduce { id, limit, tag: cell.1, which });
                        introduced.push(cell);
                    }
                    set_id(&mut fact.entry, id);
                }
                frame.push(&fact.entry);
                self.entries += 1;
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

    /// What the peer confirms. Gives the time in which the newest frame went there and back.
    pub(crate) fn confirmed(&mut self, seen: &Seen, now_ns: u64) -> Option<u64> {
        let mut round_ns = None;
        let mut lost = Vec::new();
        let under_way = std::mem::take(&mut self.under_way);
        for sent in under_way {
            if seen.has(sent.number) {
                round_ns = Some(now_ns.saturating_sub(sent.at_ns));
                for cell in sent.introduced {
                    if let Some(own) = self.ids.get_mut(&cell) {
                        own.known = true;
                    }
                }
            } else if sent.number + REORDERED_MAX < seen.highest {
                lost.push(sent);
            } else {
                self.under_way.push_back(sent);
            }
        }
        lost.into_iter().for_each(|sent| self.again(sent));
        round_ns
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
        self.waiting.retain(|topic, _| !topic.is_for_one_process());
        self.ids.values_mut().for_each(|own| own.known = false);
        self.theirs.clear();
        self.theirs_by_cell.clear();
    }

    /// The peer goes by another catalogue than when cells were introduced: it shall hear again which numbers they
    /// have.
    pub(crate) fn introduce_again(&mut self) {
        self.ids.values_mut().for_each(|own| own.known = false);
    }

    /// The peer is another incarnation: nothing that was said to the one before is for it.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.under_way.clear();
    }

    /// A cell is of no interest any more.
    pub(crate) fn forget(&mut self, cell: &CellKey) {
        if let Some(own) = self.ids.remove(cell) {
            self.cells.remove(&own.id);
        }
    }

    /// The peer calls a cell by a number.
    pub(crate) fn introduce(&mut self, id: ShortId, cell: CellKey) {
        if self.theirs.len() >= IDS_MAX {
            self.theirs.clear();
            self.theirs_by_cell.clear();
        }
        if let Some(before) = self.theirs.insert(id, cell)
            && self.theirs_by_cell.get(&before) == Some(&id)
        {
            self.theirs_by_cell.remove(&before);
        }
        self.theirs_by_cell.insert(cell, id);
    }

    /// The peer does not know a number that we used: one of ours is introduced again when it is next
    /// used, one of its own is not used any more.
    pub(crate) fn unknown(&mut self, id: ShortId) {
        if id.0 & 1 == 1 {
            if let Some(cell) = self.theirs.remove(&ShortId(id.0 & !1)) {
                self.theirs_by_cell.remove(&cell);
            }
        } else if let Some(own) = self.cells.get(&id).and_then(|cell| self.ids.get_mut(cell)) {
            own.known = false;
        }
    }

    /// The cell that the peer means.
    pub(crate) fn cell(&self, id: ShortId) -> Option<CellKey> {
        let own = ShortId(id.0 & !1);
        if id.0 & 1 == 0 { self.theirs.get(&id).copied() } else { self.cells.get(&own).copied() }
    }

    /// The number of a cell, and whether it must be introduced first. A number that the peer gave it
    /// serves as well.
    fn id(&mut self, cell: CellKey, described: &mut BTreeSet<CellKey>) -> (ShortId, bool) {
        if let Some(theirs) = self.theirs_by_cell.get(&cell) {
            return (ShortId(theirs.0 | 1), false);
        }
        let own = match self.ids.get(&cell) {
            Some(own) => *own,
            None => {
                self.next_id = self.next_id.wrapping_add(2);
                while self.cells.contains_key(&ShortId(self.next_id)) {
                    self.next_id = self.next_id.wrapping_add(2);
                }
                let own = Own { id: ShortId(self.next_id), known: false };
                self.ids.insert(cell, own);
                self.cells.insert(own.id, cell);
                own
            }
        };
        (own.id, !own.known && described.insert(cell))
    }

    /// What a lost frame said, unless something newer waits.
    fn again(&mut self, sent: Sent) {
        for (topic, fact) in sent.facts {
            self.waiting.entry(topic).or_insert(fact);
        }
    }
}

fn set_id(entry: &mut Entry, number: ShortId) {
    match entry {
        Entry::Introduce { id, .. }
        | Entry::Unknown { id }
        | Entry::News { id, .. }
        | Entry::Short { id, .. }
        | Entry::Grant { id, .. }
        | Entry::Return { id, .. }
        | Entry::Recall { id, .. }
        | Entry::Refused { id, .. }
        | Entry::Ask { id, .. }
        | Entry::Give { id, .. }
        | Entry::Got { id, .. } => *id = number,
        Entry::Renew(_) | Entry::Version(_) | Entry::Acked { .. } | Entry::Usage { .. } => {}
    }
}
