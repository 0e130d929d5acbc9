//! The trace of a history: the last events in a readable form, and a hash of all events. Equal runs have
//! equal hashes.

use std::collections::VecDeque;

/// The number of recent events that are kept.
const KEPT: usize = 400;

/// An event. Places are given by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process started, after a clean stop or not.
    Start(usize, bool),
    /// A process ended. These numbers of batches and rows still reached the disk.
    Crash(usize, usize, usize),
    /// A process stopped cleanly.
    Stop(usize),
    /// A disk was lost, with its incarnation.
    LoseDisk(usize),
    /// A disk was replaced by an older one.
    OldDisk(usize),
    /// A batch was written.
    Write(usize, u64),
    /// A node ticked.
    Tick(usize),
    /// A frame arrived, and was accepted or refused.
    Frame(usize, usize, bool),
    /// A request: place, limit, key, cost, and whether it passed.
    Ask(usize, usize, usize, u64, bool),
    /// A caller came back: place, limit, and the real cost.
    Settle(usize, usize, u64),
    /// An operator's command at a place, and whether it succeeded.
    Command(usize, &'static str, bool),
    /// A process sleeps for this many milliseconds.
    Sleep(usize, u64),
    /// A wall clock's error in milliseconds, from now on.
    Wall(usize, i64),
    /// A steady clock's drift in parts per million, from now on.
    Drift(usize, i32),
    /// A link was cut or repaired.
    Link(usize, usize, bool),
    /// A node forgot idle cells.
    Sweep(usize),
    /// A disk writes nothing for this many milliseconds.
    Stuck(usize, u64),
    /// All faults end.
    Heal,
}

/// The trace so far.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    last: VecDeque<(u64, Event)>,
    /// Faults and commands, which are rarer than other events.
    notable: VecDeque<(u64, Event)>,
    hash: u64,
    /// The number of recorded events.
    pub events: u64,
}

impl Trace {
    /// Records an event.
    pub fn note(&mut self, now: u64, event: Event) {
        self.events += 1;
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back((now, event));
        let usual = matches!(event, Event::Tick(_) | Event::Frame(..) | Event::Ask(..) | Event::Write(..));
        if !usual {
            if self.notable.len() == KEPT {
                self.notable.pop_front();
            }
            self.notable.push_back((now, event));
        }
        let number = match event {
            Event::Ask(place, limit, key, cost, allowed) => {
                place as u64
                    | (limit as u64) << 8
                    | (key as u64) << 16
                    | cost << 20
                    | u64::from(allowed) << 63
            }
            Event::Frame(from, to, taken) => {
                1 << 62 | from as u64 | (to as u64) << 8 | u64::from(taken) << 16
            }
            Event::Tick(place) => 1 << 61 | place as u64,
            Event::Write(place, batch) => 1 << 60 | (place as u64) << 40 | batch,
            _ => 1 << 59,
        };
        self.mix(now ^ number);
    }

    /// Adds a number to the hash.
    pub const fn mix(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }

    /// Adds bytes to the hash.
    pub fn mix_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    /// The newest events.
    pub fn newest(&self, count: u64) -> impl Iterator<Item = &(u64, Event)> {
        self.last.iter().skip(self.last.len().saturating_sub(count as usize))
    }

    /// The hash of the whole history.
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// The last faults and commands and the last events of any kind, as text. `start` is the time at which
    /// the history began.
    pub fn last(&self, count: usize, start: u64) -> Vec<String> {
        let say = |(at, event): &(u64, Event)| format!("{:>12.6} {event:?}", (at - start) as f64 / 1e9);
        let notable = self.notable.iter().skip(self.notable.len().saturating_sub(count)).map(say);
        let last = self.last.iter().skip(self.last.len().saturating_sub(count)).map(say);
        notable.chain(std::iter::once("    -- and at last --".to_owned())).chain(last).collect()
    }
}
