//! Places groups on several independent shards. **A group moves only to a new shard or from a shard that is
//! gone.**

use std::hash::{Hash, Hasher};

use hashring::HashRing;

use super::group::Group;

/// Points of a shard on the ring. With 512 of them the fullest of eight shards has 7 % more than the mean;
/// with 64, 38 %.
const POINTS: u16 = 512;

/// A point of a shard on the ring.
#[derive(Clone, Copy, Debug)]
struct Point<'a> {
    shard: usize,
    name: &'a str,
    number: u16,
}

/// Writes bytes of our own. The bytes that `Hash` of the standard types writes may change, and a group must
/// stay where it is.
impl Hash for Point<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write(self.name.as_bytes());
        // No name has this byte: names are UTF-8.
        hasher.write(&[0xff]);
        hasher.write(&self.number.to_le_bytes());
    }
}

struct Key(Group);

impl Hash for Key {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write(&self.0.number().to_le_bytes());
    }
}

/// For each group, the index of its shard. The order of the names changes only the indexes.
pub(super) fn placed(names: &[String]) -> Vec<Option<usize>> {
    let mut ring = HashRing::new();
    let points = names
        .iter()
        .enumerate()
        .flat_map(|(shard, name)| (0..POINTS).map(move |number| Point { shard, name, number }));
    // Adding the points one by one would sort the ring each time.
    ring.batch_add(points.collect());
    Group::all().map(|group| ring.get(&Key(group)).map(|point| point.shard)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|shard| format!("redis-{shard}:6379")).collect()
    }

    #[test]
    fn a_ninth_shard_takes_about_a_ninth_and_nothing_moves_between_the_others() {
        let (before, after) = (placed(&names(8)), placed(&names(9)));
        let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
        let share = moved.len() as f64 / f64::from(Group::COUNT);
        assert!((0.05..0.2).contains(&share), "{share}");
        assert!(moved.iter().all(|(_, after)| **after == Some(8)), "a group moved between old shards");
    }

    #[test]
    fn every_shard_has_its_part() {
        let placed = placed(&names(8));
        for shard in 0..8 {
            let groups = placed.iter().filter(|place| **place == Some(shard)).count();
            assert!((85..=175).contains(&groups), "shard {shard} has {groups}");
        }
    }

    #[test]
    fn the_order_of_the_shards_does_not_matter() {
        let names = names(5);
        let reversed: Vec<String> = names.iter().rev().cloned().collect();
        let (one, other) = (placed(&names), placed(&reversed));
        assert!(one.iter().zip(&other).all(|(one, other)| *one == other.map(|shard| 4 - shard)));
    }

    /// The data in Redis were placed by this function, so it must not change with a compiler or a library.
    #[test]
    fn the_placement_of_groups_on_shards_never_changes() {
        let placed = placed(&names(4));
        let first: Vec<usize> = placed.iter().take(12).flatten().copied().collect();
        assert_eq!(first, PLACED);
    }

    const PLACED: [usize; 12] = [2, 2, 1, 3, 3, 0, 1, 2, 3, 0, 1, 3];

    #[test]
    fn without_shards_no_group_is_placed() {
        assert!(placed(&[]).iter().all(Option::is_none));
    }
}
