//! Groups of cells: the unit in which cells are placed.

use std::fmt;

/// Slots of a Redis Cluster.
pub(super) const SLOTS: u16 = 16_384;

/// One of [`Group::COUNT`] groups, among which all cells are divided. All keys of a group have its number as
/// their hash tag, so that they lie in one slot and so on one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group(u16);

impl Group {
    /// The number of groups. More groups would spread load more evenly over many shards; fewer would need
    /// fewer keys besides the cells, since each group has one. The number never changes: a cell's group is in
    /// its key.
    pub const COUNT: u16 = 1_024;

    /// The group with a number, if the number is in `0..COUNT`.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number < Self::COUNT { Some(Self(number)) } else { None }
    }

    /// The group of a hash. The low bits of the hash must be spread evenly.
    #[must_use]
    pub const fn of_hash(hash: u64) -> Self {
        Self((hash % Self::COUNT as u64) as u16)
    }

    /// All groups, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// The group's number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The slot of the group's keys in a Redis Cluster.
    #[must_use]
    pub fn slot(self) -> u16 {
        crc16(self.0.to_string().as_bytes()) % SLOTS
    }

    /// The name of a key in this group.
    #[must_use]
    pub fn key(self, prefix: &str, suffix: &str) -> String {
        format!("{prefix}:{self}:{suffix}")
    }
}

/// The group as a hash tag: `{17}`.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", self.0)
    }
}

/// CRC-16/XMODEM, by which the Redis Cluster specification assigns keys to slots.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_groups_follow_the_redis_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(Group(17).key("acequia", "w:1"), "acequia:{17}:w:1");
    }

    #[test]
    fn slots_are_spread_over_three_primaries() {
        let mut groups = [0; 3];
        for group in Group::all() {
            groups[usize::from(group.slot()) * 3 / usize::from(SLOTS)] += 1;
        }
        assert!(groups.iter().all(|groups| (290..=390).contains(groups)), "{groups:?}");
    }
}
