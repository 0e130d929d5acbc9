//! Cells by tag: open addressing with linear probing, 32 bytes a place.
//!
//! A check on a random cell costs about one cache miss here. The tag, the limit and the state lie in one half
//! of a cache line, and the list of pages stays in the cache. Places are in the order of the tags' low
//! halves, so growing copies front to back.

use acequia_limits::{CellTag, algorithm::Inline};

use crate::cell::pages::Pages;

/// The places of the smallest table that is not empty.
const PLACES_MIN: usize = 16;
/// Places a page: 4 KiB.
const PAGE: usize = 128;
/// How many places are sampled to estimate whose cells a table has.
const SAMPLE: usize = 128;

/// The highest slot of a limit: the bits that a cell has for one.
pub(crate) const SLOT_MAX: u32 = (1 << 17) - 1;
/// The most variants of one limit that can be told apart: the bits that a cell has for them.
pub const VARIANTS_MAX: usize = 1 << (SLOT_SHIFT - 2);

/// The contents of a place.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Cell {
    /// The tag's low 96 bits; the shard supplies the rest.
    tag: [u32; 3],
    /// From the highest bit on: the limit's slot in the catalogue, whether the state lies on the heap,
    /// whether the variant is a guess, and the variant under which the state was written. All bits are 0 in
    /// an empty place.
    packed: u32,
    /// The state itself, or its place on the heap in the first word.
    pub(crate) state: Inline,
}

/// The bits below the slot: two flags and the variant.
const SLOT_SHIFT: u32 = SLOT_MAX.leading_zeros();
const HEAP: u32 = 1 << (SLOT_SHIFT - 1);
const GUESS: u32 = 1 << (SLOT_SHIFT - 2);
const VARIANT: u32 = GUESS - 1;
const EMPTY: Cell = Cell { tag: [0; 3], packed: 0, state: [0; 2] };

impl Cell {
    /// A cell whose state is in the cell itself.
    pub(crate) fn inline(tag: CellTag, slot: u32, variant: u16, state: Inline) -> Self {
        Self { tag: short(tag), packed: pack(slot, variant), state }
    }

    /// A cell whose state is at a place on the heap.
    pub(crate) fn heap(tag: CellTag, slot: u32, variant: u16, place: usize) -> Self {
        Self { tag: short(tag), packed: pack(slot, variant) | HEAP, state: [place as u64, 0] }
    }

    /// The limit's slot in the catalogue, from 1.
    #[inline]
    pub(crate) const fn slot(&self) -> u32 {
        self.packed >> SLOT_SHIFT
    }

    pub(crate) const fn variant(&self) -> u16 {
        (self.packed & VARIANT) as u16
    }

    /// Whether the cell is known to have this variant.
    #[inline]
    pub(crate) fn is_under(&self, variant: u16) -> bool {
        self.packed & (GUESS | VARIANT) == u32::from(variant)
    }

    /// Whether the cell's variant is a guess.
    pub(crate) fn is_guess(&self) -> bool {
        self.packed & GUESS != 0
    }

    pub(crate) fn set_variant(&mut self, variant: u16) {
        self.packed = pack(self.slot(), variant) | self.packed & HEAP;
    }

    /// Marks the variant as a guess, until a request or a peer tells which it is.
    pub(crate) fn guess(&mut self) {
        self.packed |= GUESS;
    }

    /// The state's place on the heap, if it is there.
    pub(crate) fn heap_place(&self) -> Option<usize> {
        (self.packed & HEAP != 0).then_some(self.state[0] as usize)
    }

    pub(crate) fn set_heap_place(&mut self, place: usize) {
        self.packed |= HEAP;
        self.state = [place as u64, 0];
    }

    /// The low 96 bits of the tag.
    pub(crate) fn tag_low(&self) -> u128 {
        let [a, b, c] = self.tag;
        u128::from(a) | u128::from(b) << 32 | u128::from(c) << 64
    }

    /// The [`CellTag::salt`] of the cell's tag.
    pub(crate) const fn salt(&self) -> u32 {
        self.tag[2]
    }

    fn is_empty(&self) -> bool {
        self.packed == 0
    }

    /// The number that determines the cell's place in the table.
    fn order(&self) -> u64 {
        order_of(self.tag)
    }
}

fn order_of(tag: [u32; 3]) -> u64 {
    u64::from(tag[0]) | u64::from(tag[1]) << 32
}

/// A slot and a variant in the bits that a cell has for them: neither is larger (`Registry` ensures that).
fn pack(slot: u32, variant: u16) -> u32 {
    debug_assert!(slot <= SLOT_MAX && usize::from(variant) < VARIANTS_MAX, "slot {slot}, variant {variant}");
    slot << SLOT_SHIFT | u32::from(variant)
}

fn short(tag: CellTag) -> [u32; 3] {
    [tag.0 as u32, (tag.0 >> 32) as u32, (tag.0 >> 64) as u32]
}

/// The cells of a shard.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Pages<Cell, PAGE>,
    len: usize,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        bytes_of(self.places.len())
    }

    /// Bytes of the places that the cells need, including places that stay empty between cells.
    pub(crate) fn bytes_needed(&self) -> usize {
        bytes_of(self.len * 4 / 3)
    }

    /// Whether `more` cells fit without growing: in three quarters of the places, beyond which probes get
    /// long.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        (self.len + more) * 4 <= self.places.len() * 3
    }

    /// The place of a cell.
    #[inline]
    pub(crate) fn find(&self, tag: CellTag, slot: u32) -> Option<usize> {
        if self.places.len() == 0 {
            return None;
        }
        let tag = short(tag);
        let mut at = self.home(order_of(tag));
        loop {
            let cell = &self.places[at];
            if cell.tag == tag && cell.slot() == slot {
                return Some(at);
            }
            if cell.is_empty() {
                return None;
            }
            at = self.after(at);
        }
    }

    #[inline]
    pub(crate) fn at(&self, place: usize) -> &Cell {
        &self.places[place]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, place: usize) -> &mut Cell {
        &mut self.places[place]
    }

    /// Adds a cell that is not in the table; other cells keep their places. There must be room.
    pub(crate) fn insert(&mut self, cell: Cell) -> usize {
        assert!(self.has_room(1), "room is made before a cell is added");
        let mut at = self.home(cell.order());
        while !self.places[at].is_empty() {
            at = self.after(at);
        }
        self.places[at] = cell;
        self.len += 1;
        at
    }

    /// Grows the table by half, or to what `bytes_max` allows. Says whether it grew: a gain of less than an
    /// eighth is not worth the copying.
    pub(crate) fn grow(&mut self, bytes_max: usize) -> bool {
        let old = self.places.len();
        let places = Pages::<Cell, PAGE>::whole(rounded_up(old * 3 / 2).min(bytes_max / size_of::<Cell>()));
        let is_worth = places > old + old / 8;
        if is_worth {
            self.rebuild(places, |_| true);
        }
        is_worth
    }

    /// Rebuilds the table with `places` places, and with the cells that `keeps` chooses.
    fn rebuild(&mut self, places: usize, mut keeps: impl FnMut(&Cell) -> bool) {
        let old = std::mem::replace(&mut self.places, Pages::filled(EMPTY, places));
        self.len = 0;
        for cell in old.into_iter().filter(|cell| !cell.is_empty() && keeps(cell)) {
            self.insert(cell);
        }
    }

    /// Removes the cells that `gone` chooses, and passes each cell to `gone` once.
    pub(crate) fn remove_if(&mut self, mut gone: impl FnMut(&Cell) -> bool) {
        let are_gone: Vec<bool> = self.iter().map(&mut gone).collect();
        if !are_gone.contains(&true) {
            return;
        }
        // Removal in place would meet cells twice where probes wrap around. A copy is simple, and as quick as
        // the removals it replaces.
        let mut are_gone = are_gone.into_iter();
        self.rebuild(self.places.len(), |_| are_gone.next() == Some(false));
        if self.len * 8 < self.places.len() {
            self.rebuild(rounded_up(self.len * 3), |_| true);
        }
    }

    /// Shrinks the table to what `bytes_max` allows, if its cells and `more` fit. If possible, shrinks by a
    /// sixteenth more, to avoid shrinking again soon.
    pub(crate) fn shrink(&mut self, more: usize, bytes_max: usize) {
        let most = bytes_max / size_of::<Cell>();
        for most in [most - most / 16, most] {
            let places = Pages::<Cell, PAGE>::whole(most);
            if (self.len + more) * 4 <= places * 3 && places < self.places.len() {
                self.rebuild(places, |_| true);
                return;
            }
        }
    }

    /// Counts the cells near the tag's place: how many `is_wanted` chooses, and how many there are. Places
    /// follow the hash, so these cells are a random sample: mostly 96, with a standard error of 5 % at most.
    pub(crate) fn sample(&self, around: CellTag, mut is_wanted: impl FnMut(&Cell) -> bool) -> (usize, usize) {
        let (mut wanted, mut all) = (0, 0);
        let mut at = if self.places.len() == 0 { 0 } else { self.home(order_of(short(around))) };
        for _ in 0..self.places.len().min(SAMPLE) {
            let cell = &self.places[at];
            if !cell.is_empty() {
                all += 1;
                wanted += usize::from(is_wanted(cell));
            }
            at = self.after(at);
        }
        (wanted, all)
    }

    /// The places of the cells of these slots, which are sorted.
    pub(crate) fn places_of(&self, slots: &[u32]) -> Vec<usize> {
        let cells = self.places.iter().enumerate();
        let is_of = |cell: &Cell| !cell.is_empty() && slots.binary_search(&cell.slot()).is_ok();
        cells.filter(|(_, cell)| is_of(cell)).map(|(at, _)| at).collect()
    }

    /// The places of all cells.
    pub(crate) fn places(&self) -> Vec<usize> {
        let cells = self.places.iter().enumerate();
        cells.filter(|(_, cell)| !cell.is_empty()).map(|(at, _)| at).collect()
    }

    /// Every cell, for moving its state on the heap.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Cell> {
        self.places.iter_mut().filter(|cell| !cell.is_empty())
    }

    /// Every cell, in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Cell> {
        self.places.iter().filter(|cell| !cell.is_empty())
    }

    /// The place where a cell's search begins: the order scaled to the number of places.
    fn home(&self, order: u64) -> usize {
        ((u128::from(order) * self.places.len() as u128) >> 64) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.places.len() { 0 } else { at + 1 }
    }
}

/// Rounds up to whole pages, or to a part of a single page.
fn rounded_up(places: usize) -> usize {
    places.max(PLACES_MIN).next_multiple_of(if places <= PAGE { PLACES_MIN } else { PAGE })
}

fn bytes_of(places: usize) -> usize {
    places * size_of::<Cell>()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn tag(n: u64) -> CellTag {
        // Many tags share a place on purpose.
        CellTag(u128::from(n % 7) << 62 | u128::from(n) << 64)
    }

    proptest! {
        #[test]
        fn a_table_agrees_with_a_map(steps in prop::collection::vec((0..4u8, 0..200u64), 1..400)) {
            let mut table = Table::default();
            let mut map = BTreeMap::new();
            for (step, n) in steps {
                match step {
                    0 | 1 => {
                        if !table.has_room(1) {
                            assert!(table.grow(usize::MAX));
                        }
                        match table.find(tag(n), 1) {
                            Some(place) => table.at_mut(place).state[1] += 1,
                            None => {
                                table.insert(Cell::inline(tag(n), 1, 3, [n, 1]));
                            }
                        }
                        *map.entry(n).or_insert(0) += 1;
                    }
                    2 => {
                        table.remove_if(|cell| cell.state[0] % 5 == n % 5);
                        map.retain(|m, _| m % 5 != n % 5);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), map.len());
                let found = table.find(tag(n), 1).map(|place| table.at(place).state);
                prop_assert_eq!(found, map.get(&n).map(|count| [n, *count]));
                prop_assert_eq!(table.find(tag(n), 2), None);
            }
            prop_assert_eq!(table.iter().count(), map.len());
            for (n, count) in map {
                let place = table.find(tag(n), 1).expect("every cell is found");
                prop_assert_eq!(table.at(place).state, [n, count]);
                prop_assert_eq!(table.at(place).variant(), 3);
            }
        }
    }

    #[test]
    fn a_table_that_shrank_grows_again() {
        let unlike = |n: u64| CellTag(u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for kept in 0..400 {
            let mut table = Table::default();
            for n in 0..3_500 {
                if !table.has_room(1) {
                    assert!(table.grow(usize::MAX), "{} places, {kept} kept", table.places.len());
                }
                table.insert(Cell::inline(unlike(n), 1, 3, [n, 1]));
                if n == 3_000 {
                    let before = table.bytes();
                    table.remove_if(|cell| cell.state[0] >= kept);
                    assert!(table.bytes() <= before / 2, "{kept} kept in {} bytes", table.bytes());
                }
            }
            assert_eq!(table.len(), kept as usize + 499);
            // A reduced bound is kept, if the cells fit.
            let tight = table.bytes_needed() + 4_096;
            table.shrink(1, tight);
            assert!(table.bytes() <= tight, "{} of {tight}", table.bytes());
            let before = table.bytes();
            table.shrink(1, tight / 2);
            assert_eq!(table.bytes(), before);
            assert!(table.find(unlike(3_499), 1).is_some());
        }
    }

    #[test]
    fn the_largest_slot_and_variant_fit_in_a_cell_beside_its_flags() {
        let variant = (VARIANTS_MAX - 1) as u16;
        let mut cell = Cell::inline(tag(1), SLOT_MAX, variant, [3, 4]);
        assert!(!cell.is_guess() && cell.is_under(variant));
        cell.guess();
        cell.set_heap_place(7);
        assert!(cell.is_guess() && !cell.is_under(variant));
        assert_eq!((cell.slot(), cell.variant(), cell.heap_place()), (SLOT_MAX, variant, Some(7)));
        cell.set_variant(0);
        assert!(!cell.is_guess() && cell.is_under(0));
        assert_eq!((cell.slot(), cell.variant(), cell.heap_place()), (SLOT_MAX, 0, Some(7)));
        assert!(!Cell::inline(tag(1), 1, 0, [0; 2]).is_empty());
    }

    #[test]
    fn a_cell_takes_half_a_cache_line() {
        assert_eq!((size_of::<Cell>(), align_of::<Cell>()), (32, 32));
    }
}
