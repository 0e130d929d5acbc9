//! Frames on their way. They may be late, lost, duplicated or out of order, or outlive their sender.

use std::collections::BTreeMap;

use crate::random::Random;

/// If more frames than this are on their way, the oldest are lost.
const FRAMES_MAX: usize = 512;
/// The most frames that are kept for an unexpected second delivery.
const ATTIC_MAX: usize = 24;

/// A frame from one place to another.
#[derive(Clone, Debug)]
pub struct Flying {
    /// The place whose connection carries the frame.
    pub from: usize,
    /// The receiving place.
    pub to: usize,
    /// The frame's bytes.
    pub bytes: Vec<u8>,
}

/// How bad links are, in millionths of all frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Frames that never arrive.
    pub loss: u32,
    /// Frames that arrive twice.
    pub twice: u32,
    /// Frames of which a copy is kept for a much later delivery.
    pub kept: u32,
    /// The shortest and the longest delay.
    pub way_ns: (u64, u64),
}

/// The links between all places.
#[derive(Clone, Debug, Default)]
pub struct Network {
    flying: BTreeMap<(u64, u64), Flying>,
    sent: u64,
    attic: Vec<Flying>,
    /// Links that carry nothing: (from, to).
    pub cut: Vec<(usize, usize)>,
    /// The state of all links.
    pub weather: Weather,
}

impl Network {
    /// A network without frames.
    pub fn new(weather: Weather) -> Self {
        Self { weather, ..Self::default() }
    }

    /// Sends a frame.
    pub fn send(&mut self, now: u64, from: usize, to: usize, bytes: Vec<u8>, random: &mut Random) {
        let weather = self.weather;
        let flying = Flying { from, to, bytes };
        if random.chance(weather.kept) {
            if self.attic.len() < ATTIC_MAX {
                self.attic.push(flying.clone());
            } else {
                let place = random.index(ATTIC_MAX);
                self.attic[place] = flying.clone();
            }
        }
        if self.cut.contains(&(from, to)) || random.chance(weather.loss) {
            return;
        }
        if random.chance(weather.twice) {
            let due = now + random.between(weather.way_ns.0, weather.way_ns.1 * 4);
            self.put(due, flying.clone());
        }
        let due = now + random.between(weather.way_ns.0, weather.way_ns.1);
        self.put(due, flying);
    }

    fn put(&mut self, due: u64, flying: Flying) {
        self.sent += 1;
        self.flying.insert((due, self.sent), flying);
        if self.flying.len() > FRAMES_MAX {
            self.flying.pop_first();
        }
    }

    /// The next frame that is due by now, on a working link.
    pub fn arrive(&mut self, now: u64) -> Option<Flying> {
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > now {
                return None;
            }
            let flying = entry.remove();
            if !self.cut.contains(&(flying.from, flying.to)) {
                return Some(flying);
            }
        }
        None
    }

    /// When the next frame is due.
    pub fn next_due(&self) -> Option<u64> {
        self.flying.keys().next().map(|(due, _)| *due)
    }

    /// Delivers an old frame once more.
    pub fn again(&mut self, random: &mut Random) -> Option<Flying> {
        (!self.attic.is_empty()).then(|| self.attic[random.index(self.attic.len())].clone())
    }

    /// Loses all frames on their way.
    pub fn drop_all(&mut self) {
        self.flying.clear();
    }
}
