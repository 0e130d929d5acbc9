//! Values by cell, for a million cells: each has a slot, which it keeps until it is removed.
//!
//! A cell is found by a hash of its tag. The hashes are never walked, only the slots, whose order depends on
//! nothing but what was added and removed before. So one history has one order, whatever the hash. A cell
//! costs its value, 20 bytes for its name and about 8 to be found by. A slot's number is a name of 4 bytes
//! for those that keep it elsewhere.

use acequia_limits::CellTag;
use hashbrown::HashTable;

use crate::cell::CellKey;

/// Values by cell.
#[derive(Debug)]
pub(crate) struct Slots<V> {
    /// The slots, to be found by their cells' hashes.
    found: HashTable<u32>,
    slots: Vec<Option<(Packed, V)>>,
    free: Vec<u32>,
}

/// A cell's name without the padding of a word of 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    tag: [u32; 4],
    limit: u32,
}

impl Packed {
    fn new(CellKey { slot: limit, tag }: CellKey) -> Self {
        Self { tag: [tag.0 as u32, (tag.0 >> 32) as u32, (tag.0 >> 64) as u32, (tag.0 >> 96) as u32], limit }
    }

    fn key(self) -> CellKey {
        let [a, b, c, d] = self.tag.map(u128::from);
        CellKey { slot: self.limit, tag: CellTag(a | b << 32 | c << 64 | d << 96) }
    }

    /// A hash in which all bits count; tags are hashes already, as a rule.
    fn hash(self) -> u64 {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let [a, b, c, d] = self.tag.map(u64::from);
        let mixed =
            ((a | b << 32) ^ (c | d << 32).rotate_left(17) ^ u64::from(self.limit)).wrapping_mul(GOLDEN);
        mixed ^ mixed >> 32
    }
}

impl<V> Default for Slots<V> {
    fn default() -> Self {
        Self { found: HashTable::new(), slots: Vec::new(), free: Vec::new() }
    }
}

impl<V> Slots<V> {
    /// How many cells there are.
    pub(crate) fn len(&self) -> usize {
        self.found.len()
    }

    /// All slots have numbers below this.
    pub(crate) fn end(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// The slot of a cell.
    pub(crate) fn slot(&self, key: CellKey) -> Option<u32> {
        let packed = Packed::new(key);
        self.found.find(packed.hash(), |slot| self.is_at(*slot, packed)).copied()
    }

    /// The cell in a slot.
    pub(crate) fn key(&self, slot: u32) -> Option<CellKey> {
        self.slots.get(slot as usize)?.as_ref().map(|(packed, _)| packed.key())
    }

    /// The value in a slot.
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut V> {
        self.slots.get_mut(slot as usize)?.as_mut().map(|(_, value)| value)
    }

    pub(crate) fn get(&self, key: CellKey) -> Option<&V> {
        self.slots[self.slot(key)? as usize].as_ref().map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: CellKey) -> Option<&mut V> {
        let slot = self.slot(key)?;
        self.at_mut(slot)
    }

    /// The slot of a cell; a cell without one gets a slot with this value.
    pub(crate) fn slot_or_insert(&mut self, key: CellKey, value: impl FnOnce() -> V) -> u32 {
        if let Some(slot) = self.slot(key) {
            return slot;
        }
        let packed = Packed::new(key);
        let value = Some((packed, value()));
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = value;
                slot
            }
            None => {
                let slot = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
                assert!(slot < u32::MAX, "cells are bounded far below");
                self.slots.push(value);
                slot
            }
        };
        let slots = &self.slots;
        self.found.insert_unique(packed.hash(), slot, |slot| hash_at(slots, *slot));
        slot
    }

    /// Removes a cell: its slot may be another's afterwards.
    pub(crate) fn remove(&mut self, key: CellKey) -> Option<V> {
        let packed = Packed::new(key);
        let slots = &self.slots;
        let is_it = |slot: &u32| slots[*slot as usize].as_ref().is_some_and(|(at, _)| *at == packed);
        let (slot, _) = self.found.find_entry(packed.hash(), is_it).ok()?.remove();
        self.free.push(slot);
        self.slots[slot as usize].take().map(|(_, value)| value)
    }

    /// All cells, in the order of their slots.
    pub(crate) fn keys(&self) -> impl Iterator<Item = CellKey> + '_ {
        self.slots.iter().flatten().map(|(packed, _)| packed.key())
    }

    /// All values, in the order of their slots.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.slots.iter_mut().flatten().map(|(_, value)| value)
    }

    /// All slots in order, the free ones included.
    pub(crate) fn slots_mut(&mut self) -> impl Iterator<Item = Option<&mut V>> {
        self.slots.iter_mut().map(|slot| slot.as_mut().map(|(_, value)| value))
    }

    fn is_at(&self, slot: u32, packed: Packed) -> bool {
        self.slots[slot as usize].as_ref().is_some_and(|(at, _)| *at == packed)
    }
}

fn hash_at<V>(slots: &[Option<(Packed, V)>], slot: u32) -> u64 {
    slots[slot as usize].as_ref().map_or(0, |(packed, _)| packed.hash())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_agree_with_a_map(steps in prop::collection::vec((0..3u8, 0..40u128, any::<u16>()), 1..300)) {
            let (mut slots, mut map) = (Slots::default(), BTreeMap::new());
            for (step, n, value) in steps {
                let key = CellKey { slot: (n % 3) as u32, tag: CellTag(n << (n % 100)) };
                match step {
                    0 => {
                        let slot = slots.slot_or_insert(key, || value);
                        map.entry(key).or_insert(value);
                        prop_assert_eq!(slots.key(slot), Some(key));
                    }
                    1 => prop_assert_eq!(slots.remove(key), map.remove(&key)),
                    _ => prop_assert_eq!(slots.get_mut(key), map.get_mut(&key)),
                }
                prop_assert_eq!(slots.len(), map.len());
            }
            let mut keys: Vec<CellKey> = slots.keys().collect();
            keys.sort_unstable();
            prop_assert_eq!(keys, map.keys().copied().collect::<Vec<_>>());
            for (key, value) in map {
                prop_assert_eq!(slots.get(key), Some(&value));
            }
        }
    }

    #[test]
    fn a_slot_keeps_its_number_and_a_free_number_is_reused() {
        let [a, b, c] = [(1, 1), (1, 2), (2, 1)].map(|(slot, tag)| CellKey { slot, tag: CellTag(tag) });
        let mut slots = Slots::default();
        let [first, second] = [a, b].map(|key| slots.slot_or_insert(key, || key));
        assert_eq!(slots.slot_or_insert(a, || b), first, "it was there");
        assert_eq!(slots.remove(a), Some(a));
        assert_eq!((slots.key(first), slots.key(second)), (None, Some(b)));
        assert_eq!(slots.slot_or_insert(c, || c), first);
        assert_eq!(slots.keys().collect::<Vec<_>>(), [c, b], "in the order of slots");
    }
}
