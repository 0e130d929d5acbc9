//! Names the cell that counts a request.

use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;

/// The name of a cell within a node: a keyed 128-bit hash of the limit and of the values that the limit
/// counts by. The values are not kept, so a cell costs the same for every key length. Two keys share a cell
/// with probability 2^-128 a pair. Two such keys share one limit, which admits less, not more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct CellTag(pub u128);

impl CellTag {
    /// The cell's own number, which staggers the edges of its windows.
    pub const fn salt(self) -> u32 {
        (self.0 >> 64) as u32
    }
}

/// The secret that the tags are made with, so that no outsider can aim keys at one place of the table. The
/// secret is drawn at random once and kept with the journal: tags must mean the same after a restart.
#[derive(Clone, Copy)]
pub struct HashKey(pub [u8; 16]);

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

/// Makes the tags of one limit's cells (SipHash-1-3, 128 bits), with a secret of the limit's own.
#[derive(Clone, Debug)]
pub struct Tagger(SipHasher13);

impl Tagger {
    /// The tagger of a limit's cells.
    pub fn new(key: &HashKey, limit: crate::LimitId) -> Self {
        let secret = SipHasher13::new_with_key(&key.0).hash(&limit.0.to_le_bytes());
        Self(SipHasher13::new_with_key(&secret.as_bytes()))
    }

    /// The cell of a limit that counts by one entry.
    #[inline]
    pub fn one(&self, value: &[u8]) -> CellTag {
        CellTag(self.0.hash(value).as_u128())
    }

    /// The cell of a limit that counts by any other number of entries. Each value is preceded by its
    /// length, so that no two lists of values look alike.
    pub fn all<'v>(&self, values: impl Iterator<Item = &'v [u8]>) -> CellTag {
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        for value in values {
            bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
            bytes.extend_from_slice(value);
        }
        self.one(&bytes)
    }

    /// A second cell beside the cell `tag`. The second cell counts the requests that have these values but
    /// use the limit's own variant ([`crate::limit::VariantChoice::OwnApart`]).
    #[cold]
    pub fn apart(&self, tag: CellTag) -> CellTag {
        self.all([&tag.0.to_le_bytes()[..], b"apart"].into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LimitId;

    #[test]
    fn each_part_of_a_cells_identity_changes_its_hash() {
        let tagger = |limit| Tagger::new(&HashKey([7; 16]), LimitId(limit));
        let all = |limit, values: &[&str]| tagger(limit).all(values.iter().map(|v| v.as_bytes()));
        let tags = [
            tagger(1).one(b"a"),
            tagger(2).one(b"a"),
            tagger(1).one(b"b"),
            all(3, &["a", ""]),
            all(3, &["", "a"]),
            all(3, &["ab", "c"]),
            all(3, &["a", "bc"]),
            all(3, &[]),
            Tagger::new(&HashKey([8; 16]), LimitId(1)).one(b"a"),
            tagger(1).apart(tagger(1).one(b"a")),
            tagger(1).apart(tagger(1).one(b"b")),
        ];
        let distinct: std::collections::BTreeSet<CellTag> = tags.into_iter().collect();
        assert_eq!(distinct.len(), tags.len());
        assert_eq!(all(3, &["a", "b"]), all(3, &["a", "b"]));
    }
}
