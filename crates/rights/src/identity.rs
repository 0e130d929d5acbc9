//! The ids of members and incarnations, which write rows.

use serde::{Deserialize, Serialize};

/// A member, by its number: see [`MemberId::named`]. A member is a node with a share, or a region that has
/// only one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId(pub u16);

/// One incarnation of a node: a node of a region, and how often it has begun anew. A node that lost its disk,
/// or was evicted, comes back as a later incarnation, which owns nothing of the earlier one's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation {
    /// The node's member.
    pub member: MemberId,
    /// The node's number in its region: see [`node_named`].
    pub node: u16,
    /// Counts up whenever the node begins with nothing. Never reused.
    pub number: u32,
}

impl MemberId {
    /// The number of the member with this name, alike in every file and on every node, so that nobody has to
    /// assign numbers. Two names of one cluster may have one number, once in 65,536: a config with both is
    /// refused.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self(number_of(name))
    }
}

/// The number of the node with this name in its region; computed as in [`MemberId::named`].
#[must_use]
pub fn node_named(name: &str) -> u16 {
    number_of(name)
}

/// FNV-1a of 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>), folded. It can never change: journals
/// and catalogues contain its results.
fn number_of(name: &str) -> u16 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let hash = name.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    let half = (hash >> 32) as u32 ^ hash as u32;
    (half >> 16) as u16 ^ half as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_number_depends_on_its_name_only() {
        let numbers = ["eu", "us", "ap", ""].map(|name| MemberId::named(name).0);
        assert_eq!(numbers, [53_311, 24_124, 24_554, 61_457]);
    }
}
