//! Rows in a file, with redb: copy-on-write pages, checksums, one fsync a commit.

use std::path::Path;

use acequia_limits::{CellTag, LimitId};
use acequia_node::Row;
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, StorageError, TableDefinition, TableError,
};

use crate::{Store, StoreError};

/// The file in the `data` folder.
const FILE: &str = "journal.redb";
/// (limit, tag) to the postcard bytes of a state.
const ROWS: TableDefinition<'_, (u128, u128), &[u8]> = TableDefinition::new("rows");
/// Named values.
const VALUES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("values");
/// The value that says how the file is laid out.
const FORMAT_NAME: &str = "format";
/// This version's layout.
const FORMAT: &[u8] = b"1";

/// A file in a node's `data` folder.
pub struct Journal {
    database: Database,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal in a folder, and makes both where they are missing.
    ///
    /// # Errors
    /// The folder cannot be written, another process has the journal open, or the file is not one
    /// that this version reads.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(FILE);
        let fault = |cause: String, mend| StoreError::Open { path: path.display().to_string(), cause, mend };
        std::fs::create_dir_all(folder).map_err(|e| {
            fault(e.to_string(), "Make the `data` folder writable for this user, or name another one")
        })?;
        let database = Database::create(&path).map_err(|e| {
            let mend = match e {
                DatabaseError::DatabaseAlreadyOpen => {
                    "Another node uses this `data` folder: stop it, or give this node a folder of its own"
                }
                _ => "If it was damaged, restore it from a copy, or move it away and start afresh",
            };
            fault(e.to_string(), mend)
        })?;
        let journal = Self { database };
        match journal.value(FORMAT_NAME)?.as_deref() {
            None => journal.commit(&[], &[(FORMAT_NAME, Some(FORMAT))])?,
            Some(FORMAT) => {}
            Some(other) => {
                let cause = format!("its format is {:?}", String::from_utf8_lossy(other));
                return Err(fault(cause, "A newer version wrote it: run that version"));
            }
        }
        Ok(journal)
    }
}

impl Store for Journal {
    fn commit(&self, rows: &[Row], values: &[(&str, Option<&[u8]>)]) -> Result<(), StoreError> {
        let mut transaction = self.database.begin_write().map_err(write)?;
        transaction.set_durability(Durability::Immediate).map_err(write)?;
        {
            let mut table = transaction.open_table(ROWS).map_err(write)?;
            for row in rows {
                let key = (row.limit.0, row.tag.0);
                match &row.state {
                    Some(state) => {
                        let bytes = postcard::to_stdvec(state).map_err(write)?;
                        table.insert(key, bytes.as_slice()).map_err(write)?;
                    }
                    None => {
                        table.remove(key).map_err(write)?;
                    }
                }
            }
        }
        {
            let mut table = transaction.open_table(VALUES).map_err(write)?;
            for (name, value) in values {
                match value {
                    Some(value) => table.insert(*name, *value).map_err(write)?,
                    None => table.remove(*name).map_err(write)?,
                };
            }
        }
        transaction.commit().map_err(write)
    }

    fn rows(&self, limit: LimitId) -> Result<Vec<Row>, StoreError> {
        let transaction = self.database.begin_read().map_err(read)?;
        let table = match transaction.open_table(ROWS) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            table => table.map_err(read)?,
        };
        let mut rows = Vec::new();
        for entry in table.range((limit.0, 0)..=(limit.0, u128::MAX)).map_err(read)? {
            let (key, bytes) = entry.map_err(read)?;
            let state = postcard::from_bytes(bytes.value()).map_err(read)?;
            rows.push(Row { limit, tag: CellTag(key.value().1), state: Some(state) });
        }
        Ok(rows)
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let transaction = self.database.begin_read().map_err(read)?;
        let table = match transaction.open_table(VALUES) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            table => table.map_err(read)?,
        };
        let value = table.get(name).map_err(|e: StorageError| read(e))?;
        Ok(value.map(|value| value.value().to_vec()))
    }
}

fn read(cause: impl std::fmt::Display) -> StoreError {
    StoreError::Read(cause.to_string())
}

fn write(cause: impl std::fmt::Display) -> StoreError {
    StoreError::Write(cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract;

    #[test]
    fn it_keeps_the_contract() {
        let folder = tempfile::tempdir().expect("a folder");
        contract::check(&Journal::open(folder.path()).expect("a journal"));
    }

    #[test]
    fn rows_are_there_after_it_was_closed() {
        let folder = tempfile::tempdir().expect("a folder");
        let rows = [contract::row(1, 2, Some(3))];
        let journal = Journal::open(folder.path()).expect("a journal");
        journal.commit(&rows, &[("name", Some(b"value"))]).expect("a commit");
        drop(journal);
        let journal = Journal::open(folder.path()).expect("a journal");
        assert_eq!(journal.rows(LimitId(1)).expect("rows"), rows);
        assert_eq!(journal.value("name").expect("a value").as_deref(), Some(&b"value"[..]));
    }

    #[test]
    fn faults_say_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::open(folder.path()).expect("a journal");
        let taken = Journal::open(folder.path()).expect_err("open twice").to_string();
        assert!(taken.contains("Another node"), "{taken}");
        journal.commit(&[], &[(FORMAT_NAME, Some(b"2"))]).expect("a commit");
        drop(journal);
        let newer = Journal::open(folder.path()).expect_err("a newer format").to_string();
        assert!(newer.contains("newer version"), "{newer}");
        std::fs::write(folder.path().join(FILE), b"not a database").expect("a write");
        let damaged = Journal::open(folder.path()).expect_err("damaged").to_string();
        assert!(damaged.contains("restore it"), "{damaged}");
        let file = folder.path().join("file");
        std::fs::write(&file, b"").expect("a write");
        let folder = Journal::open(&file).expect_err("no folder").to_string();
        assert!(folder.contains("writable"), "{folder}");
    }
}
