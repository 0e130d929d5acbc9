//! Finds the cells that come most often, among any number of them: a space-saving sketch (Metwally, Agrawal
//! and El Abbadi, ICDT 2005), which merges (Agarwal et al., "Mergeable summaries", PODS 2012).
//!
//! A cell in the sketch came at most `count` times, and at least `count - error` times. A cell that is not in
//! the sketch came at most as often as the least count in it. So any cell with more than a sixteenth of all
//! requests is in the sketch.

use std::fmt::Write as _;

use acequia_limits::{CellTag, Descriptor, Limit, selector::Canonical};

use crate::settings::SETTINGS;

/// The cells that came most often.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sketch {
    /// The tags apart from the cells: a search reads only these.
    tags: Vec<CellTag>,
    cells: Vec<Counted>,
    /// The most that a missing cell may have been counted, from merges.
    merged_least: u64,
}

/// A cell in the sketch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// How often the cell came, at most.
    pub(crate) count: u64,
    /// How far `count` may be too high.
    pub(crate) error: u64,
    /// The units that the cell had left when it last came.
    pub(crate) remaining: u64,
    /// The cell's values; `None` if the cell came only once since it took another's place.
    pub(crate) key: Option<CellKeyText>,
}

/// The values that a cell counts, as in the brackets of a limit's path: `tenant=big-co,ip=10.0.0.1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CellKeyText {
    /// At most `hot_key_bytes_max` of the settings.
    pub(crate) text: String,
    /// Whether the text was cut.
    pub(crate) is_cut: bool,
}

impl Sketch {
    /// Counts a cell. `name` writes the cell's values if they are unknown and worth the time: in a flood of
    /// cells that come once each, they are not.
    #[inline]
    pub(crate) fn count(&mut self, tag: CellTag, remaining: u64, name: impl FnOnce(&mut CellKeyText)) {
        match self.tags.iter().position(|known| *known == tag) {
            Some(place) => {
                let cell = &mut self.cells[place];
                cell.count += 1;
                cell.remaining = remaining;
                if cell.key.is_none() {
                    name(cell.key.insert(CellKeyText::default()));
                }
            }
            None => self.enter(tag, remaining, name),
        }
    }

    /// Begins to follow a cell. If there is no room, it takes the place of the cell that came least.
    #[inline(never)]
    fn enter(&mut self, tag: CellTag, remaining: u64, name: impl FnOnce(&mut CellKeyText)) {
        if self.cells.len() < SETTINGS.counts.hot_cells_max {
            let mut cell = Counted { count: 1, remaining, ..Counted::default() };
            name(cell.key.insert(CellKeyText::default()));
            self.tags.push(tag);
            return self.cells.push(cell);
        }
        let least = self.cells.iter().enumerate().min_by_key(|(_, cell)| cell.count);
        let Some((place, _)) = least else { return };
        self.tags[place] = tag;
        let cell = &mut self.cells[place];
        *cell = Counted { error: cell.count, count: cell.count + 1, remaining, key: None };
    }

    /// The most that a missing cell may have been counted.
    fn least(&self) -> u64 {
        let full = self.cells.len() >= SETTINGS.counts.hot_cells_max;
        let own = if full { self.cells.iter().map(|cell| cell.count).min().unwrap_or(0) } else { 0 };
        own.max(self.merged_least)
    }

    /// Adds the counts of another sketch. If only one of the two follows a cell, the other may have counted
    /// it as often as its least count. The result may exceed `hot_cells_max`: it is for display, not for
    /// counting on.
    pub(crate) fn merge(&mut self, other: &Self) {
        let (ours, theirs) = (self.least(), other.least());
        for (tag, cell) in self.tags.iter().zip(&mut self.cells) {
            if !other.tags.contains(tag) {
                cell.count += theirs;
                cell.error += theirs;
            }
        }
        for (tag, theirs) in other.tags.iter().zip(&other.cells) {
            match self.tags.iter().position(|known| known == tag) {
                Some(place) => {
                    let cell = &mut self.cells[place];
                    cell.count += theirs.count;
                    cell.error += theirs.error;
                    cell.remaining = cell.remaining.min(theirs.remaining);
                    cell.key = cell.key.take().or_else(|| theirs.key.clone());
                }
                None => {
                    self.tags.push(*tag);
                    let (count, error) = (theirs.count + ours, theirs.error + ours);
                    self.cells.push(Counted { count, error, ..theirs.clone() });
                }
            }
        }
        self.merged_least = ours + theirs;
    }

    /// Halves the counts so many times, so that cells that have cooled down give way.
    pub(crate) fn halve(&mut self, times: u32) {
        let half = |count: u64| count.checked_shr(times).unwrap_or(0);
        self.merged_least = half(self.merged_least);
        for place in (0..self.cells.len()).rev() {
            let cell = &mut self.cells[place];
            (cell.count, cell.error) = (half(cell.count), half(cell.error));
            if cell.count == 0 {
                self.cells.swap_remove(place);
                self.tags.swap_remove(place);
            }
        }
    }

    /// The cells, most frequent first.
    pub(crate) fn sorted(&self) -> Vec<&Counted> {
        let mut all: Vec<(CellTag, &Counted)> = self.tagged().collect();
        all.sort_by_key(|(tag, cell)| (std::cmp::Reverse(cell.count), cell.error, *tag));
        all.into_iter().map(|(_, cell)| cell).collect()
    }

    /// The cells with their tags, in no order.
    pub(crate) fn tagged(&self) -> impl Iterator<Item = (CellTag, &Counted)> {
        self.tags.iter().copied().zip(&self.cells)
    }
}

impl CellKeyText {
    /// Writes the values of a descriptor's cell of a limit.
    pub(crate) fn write(&mut self, limit: &Limit, descriptor: &Descriptor<'_>) {
        for (place, by) in limit.by.iter().enumerate() {
            if place > 0 {
                self.push(",");
            }
            self.push_encoded(by.key.as_bytes());
            self.push("=");
            match by.canonical(descriptor) {
                None => {}
                Some(Canonical::Value(value)) => self.push_encoded(value),
                Some(Canonical::V4(network)) => self.push(&std::net::Ipv4Addr::from(network).to_string()),
                Some(Canonical::V6(network)) => self.push(&std::net::Ipv6Addr::from(network).to_string()),
                Some(Canonical::NoAddress) => self.push("none"),
            }
        }
    }

    fn push_encoded(&mut self, bytes: &[u8]) {
        // No more could fit, with the key in front. A character that is cut in two here is never written.
        let (bytes, rest) = bytes.split_at(bytes.len().min(SETTINGS.counts.hot_key_bytes_max));
        for chunk in bytes.utf8_chunks() {
            let mut buffer = [0; 4];
            for c in chunk.valid().chars() {
                let c_bytes = c.encode_utf8(&mut buffer);
                if c.is_control() || matches!(c, '%' | ',') {
                    self.push_hex(c_bytes.as_bytes());
                } else {
                    self.push(c_bytes);
                }
            }
            self.push_hex(chunk.invalid());
        }
        self.is_cut |= !rest.is_empty();
    }

    fn push_hex(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let mut hex = String::with_capacity(3);
            // Writing to a string cannot fail.
            let _ = write!(hex, "%{byte:02X}");
            self.push(&hex);
        }
    }

    /// Writes whole pieces only, so that the text can be read.
    fn push(&mut self, piece: &str) {
        if self.is_cut || self.text.len() + piece.len() > SETTINGS.counts.hot_key_bytes_max {
            self.is_cut = true;
        } else {
            self.text.push_str(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn count(sketch: &mut Sketch, cell: u128) {
        sketch.count(CellTag(cell), 0, |key| key.text.push_str(&cell.to_string()));
    }

    /// A stream in which some cells come often, between any number of others.
    fn stream(seed: u64, length: u64) -> impl Iterator<Item = u128> {
        let mut state = seed;
        (0..length).map(move |step| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match state >> 61 {
                0 => 0,
                1..3 => 2 + u128::from(state >> 50 & 7),
                _ => 1_000 + u128::from(seed * length + step),
            }
        })
    }

    fn check(sketch: &Sketch, counts: &BTreeMap<u128, u64>) {
        let all: u64 = counts.values().sum();
        for cell in sketch.sorted() {
            let Some(key) = &cell.key else {
                assert!(cell.count - cell.error <= 3, "came once in each: {cell:?}");
                continue;
            };
            let number: u128 = key.text.parse().expect("its own text");
            let real = counts[&number];
            assert!(cell.count >= real && cell.count - cell.error <= real, "{cell:?} is {real}");
        }
        for (number, real) in counts {
            let is_there = sketch.tags.contains(&CellTag(*number));
            assert!(is_there || *real <= sketch.least(), "{number} came {real} times");
            assert!(
                is_there || *real <= all / SETTINGS.counts.hot_cells_max as u64,
                "{number} came {real} times of {all}"
            );
        }
    }

    #[test]
    fn counts_are_at_most_too_high_by_their_error() {
        let (mut sketch, mut counts) = (Sketch::default(), BTreeMap::new());
        for cell in stream(1, 20_000) {
            count(&mut sketch, cell);
            *counts.entry(cell).or_default() += 1;
        }
        check(&sketch, &counts);
        assert_eq!(sketch.cells.len(), SETTINGS.counts.hot_cells_max);
        let hottest = sketch.sorted()[0];
        assert_eq!(hottest.key.as_ref().map(|key| key.text.as_str()), Some("0"));
    }

    #[test]
    fn sketches_of_several_threads_can_be_merged() {
        let (mut merged, mut counts) = (Sketch::default(), BTreeMap::new());
        for seed in 1..=3 {
            let mut sketch = Sketch::default();
            for cell in stream(seed, 5_000) {
                count(&mut sketch, cell);
                *counts.entry(cell).or_default() += 1;
            }
            merged.merge(&sketch);
        }
        check(&merged, &counts);
        let mut few = Sketch::default();
        count(&mut few, 7);
        few.merge(&Sketch::default());
        assert_eq!((few.sorted()[0].count, few.sorted()[0].error), (1, 0), "nothing is forgotten of few");
    }

    #[test]
    fn a_cell_without_recent_requests_leaves_the_sketch() {
        let mut sketch = Sketch::default();
        (0..8).for_each(|_| count(&mut sketch, 1));
        count(&mut sketch, 2);
        sketch.halve(1);
        assert_eq!((sketch.sorted().len(), sketch.sorted()[0].count), (1, 4));
        sketch.halve(200);
        assert!(sketch.sorted().is_empty());
    }

    fn written(limit: &str, pairs: &[(&[u8], &[u8])]) -> CellKeyText {
        let limit = Limit::new(serde_json::from_str(limit).expect("a spec")).expect("a limit");
        let mut key = CellKeyText::default();
        key.write(&limit, &Descriptor::new(pairs, None));
        key
    }

    const BY: &str = r#"{"name": "a", "domain": "d", "by": ["k", {"ip": "ip", "v4": 24}],
                         "fixed_window": {"limit": 1, "window": "1m"}}"#;

    #[test]
    fn a_key_is_written_as_in_a_limits_path() {
        let key = written(BY, &[(b"ip", b"10.1.2.3"), (b"k", b"50%, \xffx\x07"), (b"other", b"y")]);
        assert_eq!((key.text.as_str(), key.is_cut), ("k=50%25%2C %FFx%07,ip=10.1.2.0", false));
    }

    #[test]
    fn long_keys_are_cut_between_characters() {
        for letter in ["ä", "%", "\u{ff}", "x"] {
            let long = letter.repeat(40_000);
            let key = written(BY, &[(b"ip", b"::1"), (b"k", long.as_bytes())]);
            assert!(
                key.is_cut
                    && key.text.len() <= SETTINGS.counts.hot_key_bytes_max
                    && key.text.len() > SETTINGS.counts.hot_key_bytes_max - 4
            );
            assert!(!key.text.contains("ip"), "what is behind the cut is not there either");
        }
        let bytes = [0xff; 300];
        let key = written(BY, &[(b"ip", b"::1"), (b"k", &bytes)]);
        assert!(key.is_cut && key.text.ends_with("%FF"));
    }
}
