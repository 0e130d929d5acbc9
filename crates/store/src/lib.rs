//! Stores of rows. **When [`Store::commit`] has returned, its rows survive any crash, and come back as the
//! last commit left them.**
//!
//! There are two stores: [`MemoryStore`], which lasts as long as it is held (for tests and simulations), and
//! [`Journal`], a file. Both pass one suite, in `contract`. The crate knows rows and small named values. It
//! does not know what they mean, and never decides anything.
//!
//! The nodes of a region share [`pools`]. Several nodes keep them in their [`redis`], by calls of functions
//! there. Pools in Redis may be lost in a crash; the rules of pools do not rely on their survival.

mod file;
mod journal;
mod memory;
pub mod pools;
pub mod private;
pub mod redis;
mod settings;

use std::fmt::Debug;

use acequia_limits::LimitId;
use acequia_node::Row;

pub use crate::{journal::Journal, memory::MemoryStore};

/// Rows of cells, and small named values, that survive a crash.
pub trait Store: Debug + Send + Sync {
    /// Makes changes durable, all or none, in order. A row without a state removes the row that was there. A
    /// value that is `None` is removed, any other is set.
    ///
    /// # Errors
    /// The store cannot be written. It is unknown whether the store has all of the changes or none: try the
    /// same changes again until they succeed, before any others.
    fn commit(&self, rows: &[Row], values: &[(&str, Option<&[u8]>)]) -> Result<(), StoreError>;

    /// The rows of a limit, in the order of their tags.
    ///
    /// # Errors
    /// The store cannot be read.
    fn rows(&self, limit: LimitId) -> Result<Vec<Row>, StoreError>;

    /// A named value.
    ///
    /// # Errors
    /// The store cannot be read.
    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// The most memory for parts of the store's file, in bytes; 0 if it has none.
    fn cache_bytes(&self) -> usize {
        0
    }
}

/// A failure of a store, and how to mend it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be opened.
    #[error("cannot open the journal {path}: {cause}. {mend}")]
    Open {
        /// The file.
        path: String,
        /// The system's error.
        cause: String,
        /// How to mend it.
        mend: &'static str,
    },
    /// The store cannot be read.
    #[error(
        "cannot read the journal: {0}. If the disk is sound, restore the file from a copy or start with a new `data` folder (its windows then count as spent)"
    )]
    Read(String),
    /// The store cannot be written.
    #[error(
        "cannot write the journal: {0}. Make room on the disk or mend it: until then nothing new is reserved"
    )]
    Write(String),
}

/// One suite for every store.
#[cfg(test)]
mod contract {
    use acequia_limits::{Algorithm, CellTag, Now, Rate, meter::Meter};
    use acequia_node::CellRecord;

    use super::*;

    pub(crate) fn row(limit: u128, tag: u128, owed: Option<u64>) -> Row {
        let meter = Algorithm::TokenBucket(Meter::new(Rate::parse("1/h").expect("a rate"), 100));
        let state = owed.map(|owed| CellRecord::new(&meter, &[0, owed], Now::at(0)));
        Row { limit: LimitId(limit), tag: CellTag(tag), state }
    }

    pub(crate) fn check(store: &dyn Store) {
        assert_eq!(store.rows(LimitId(1)).expect("rows"), []);
        assert_eq!(store.value("key").expect("a value"), None);

        let first = [row(1, 9, Some(5)), row(1, 3, Some(6)), row(2, 3, Some(7))];
        store.commit(&first, &[("key", Some(b"secret")), ("other", Some(b""))]).expect("a commit");
        assert_eq!(store.rows(LimitId(1)).expect("rows"), [row(1, 3, Some(6)), row(1, 9, Some(5))]);
        assert_eq!(store.rows(LimitId(2)).expect("rows"), [row(2, 3, Some(7))]);
        assert_eq!(store.value("key").expect("a value").as_deref(), Some(&b"secret"[..]));
        assert_eq!(store.value("other").expect("a value").as_deref(), Some(&b""[..]));

        // In a batch the last change of a row counts, and removals keep their order among writes.
        let second = [row(1, 3, Some(8)), row(1, 3, None), row(1, 9, None), row(1, 9, Some(1))];
        store.commit(&second, &[("key", None)]).expect("a commit");
        assert_eq!(store.rows(LimitId(1)).expect("rows"), [row(1, 9, Some(1))]);
        assert_eq!(store.value("key").expect("a value"), None);

        let edges = [row(u128::MAX, 0, Some(1)), row(u128::MAX, u128::MAX, Some(2))];
        store.commit(&edges, &[]).expect("a commit");
        assert_eq!(store.rows(LimitId(u128::MAX)).expect("rows"), edges);
        store.commit(&[], &[]).expect("an empty commit");
    }
}
