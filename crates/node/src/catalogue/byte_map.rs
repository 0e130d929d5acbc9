//! A map from the bytes of keys and values.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// Up to this many keys, a scan is quicker than a hash.
const KEYS_SCANNED: usize = 8;

/// A map that only grows. A search costs about as much for 10 000 keys as for one.
///
/// Operators choose the keys, clients only what is searched for: no client can make searches long.
#[derive(Debug)]
pub(crate) struct ByteMap<T> {
    /// In the order in which they came.
    entries: Vec<(Box<[u8]>, T)>,
    /// Places in `entries`, once there are too many to scan.
    places: HashTable<u32>,
}

impl<T> Default for ByteMap<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), places: HashTable::new() }
    }
}

impl<T> ByteMap<T> {
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<&T> {
        if self.entries.len() > KEYS_SCANNED {
            return self.hashed(key).map(|place| &self.entries[place].1);
        }
        self.entries.iter().find(|(known, _)| **known == *key).map(|(_, value)| value)
    }

    #[inline(never)]
    fn hashed(&self, key: &[u8]) -> Option<usize> {
        let is_it = |place: &u32| *self.entries[*place as usize].0 == *key;
        self.places.find(hash(key), is_it).map(|place| *place as usize)
    }
}

impl<T: Default> ByteMap<T> {
    /// The value of a key, which is made if there is none.
    pub(crate) fn get_or_default(&mut self, key: &[u8]) -> &mut T {
        let known = match self.entries.len() > KEYS_SCANNED {
            true => self.hashed(key),
            false => self.entries.iter().position(|(known, _)| **known == *key),
        };
        let place = known.unwrap_or_else(|| {
            self.entries.push((key.into(), T::default()));
            self.index();
            self.entries.len() - 1
        });
        &mut self.entries[place].1
    }

    /// Files the places of the entries that are not filed.
    fn index(&mut self) {
        if self.entries.len() > KEYS_SCANNED {
            for place in self.places.len()..self.entries.len() {
                let rehash = |place: &u32| hash(&self.entries[*place as usize].0);
                self.places.insert_unique(hash(&self.entries[place].0), place as u32, rehash);
            }
        }
    }
}

#[inline]
fn hash(key: &[u8]) -> u64 {
    let mut hasher = FixedState::default().build_hasher();
    hasher.write(key);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_keys_are_found_again_and_no_others() {
        for many in [0, 1, KEYS_SCANNED, KEYS_SCANNED + 1, 1_000] {
            let mut map = ByteMap::<usize>::default();
            for _ in 0..2 {
                for number in 0..many {
                    *map.get_or_default(format!("key-{number}").as_bytes()) += number;
                }
            }
            for number in 0..many {
                assert_eq!(map.get(format!("key-{number}").as_bytes()), Some(&(2 * number)), "of {many}");
            }
            for other in ["", "key", "key-", "key-1000", "KEY-0"] {
                assert_eq!(map.get(other.as_bytes()), None, "{other} of {many}");
            }
        }
    }
}
