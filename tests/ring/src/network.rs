//! Frames under way: late, lost, twice, out of order, or long after their sender is gone.

use std::collections::BTreeMap;

use crate::random::Random;

/// More frames under way than this, and the oldest are lost.
const FRAMES_MAX: usize = 512;
/// Frames that are kept to be delivered again when nobody expects them.
const ATTIC_MAX: usize = 24;

/// A frame from one place to another.
#[derive(Clone, Debug)]
pub struct Flying {
    /// Whose connection it comes over.
    pub from: usize,
    /// Whose it is.
    pub to: usize,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// How bad links are, in parts of a million for each frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Frames that never arrive.
    pub loss: u32,
    /// Frames that arrive twice.
    pub twice: u32,
    /// Frames that are kept for much later.
    pub kept: u32,
    /// The shortest and the longest way.
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
    /// Of all links.
    pub weather: Weather,
}

impl Network {
    /// Nothing under way.
    pub fn new(weather: Weather) -> Self {
        Self { weather, ..Self::default() }
    }

    /// A frame leaves.
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

    /// The next frame that is due by now, on a link that is up.
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

    /// An old frame once more.
    pub fn again(&mut self, random: &mut Random) -> Option<Flying> {
        (!self.attic.is_empty()).then(|| self.attic[random.index(self.attic.len())].clone())
    }

    /// Everything under way is lost.
    pub fn drop_all(&mut self) {
        self.flying.clear();
    }
}
