//! Rows in a file, with redb: copy-on-write pages, checksums, one fsync a commit.
//!
//! After any fault of the file, redb wants to be opened anew. The next operation does that. It finds the last
//! commit that was whole, as after a crash.

use std::{
    fs::File,
    io,
    ops::Bound,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

use acequia_limits::{CellTag, LimitId};
use acequia_node::Row;
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, StorageBackend, StorageError, TableDefinition,
    TableError, backends::FileBackend,
};

use crate::{Store, StoreError, file::Watched, private, settings::SETTINGS};

/// The file in the `data` folder.
const FILE: &str = "journal.redb";
/// The file's name until it is complete.
const UNFINISHED: &str = "journal.redb.unfinished";
/// The number of bytes by which redb knows its files.
const MAGIC_BYTES: usize = 9;
/// From (limit, tag) to the postcard bytes of a state.
const ROWS: TableDefinition<'_, (u128, u128), &[u8]> = TableDefinition::new("rows");
/// Named values.
const VALUES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("values");
/// The value that says how the file is laid out.
const FORMAT_NAME: &str = "format";
/// The layout of this version.
const FORMAT: &[u8] = b"1";

/// A way to the bytes. It gives the same bytes each time, by one handle, even if the file's name changes.
type Reach = dyn Fn() -> Result<Box<dyn StorageBackend>, DatabaseError> + Send + Sync;

/// A file in a node's `data` folder.
pub struct Journal {
    reach: Box<Reach>,
    cache_bytes: usize,
    /// `None` after a fault.
    database: Mutex<Option<Database>>,
    is_doubtful: Arc<AtomicBool>,
}

/// A way to a file.
fn reach_file(file: File) -> Box<Reach> {
    Box::new(move || Ok(Box::new(FileBackend::new(file.try_clone()?)?) as Box<dyn StorageBackend>))
}

fn unopened(path: &str, fault: &DatabaseError) -> StoreError {
    let mend = match fault {
        DatabaseError::DatabaseAlreadyOpen => {
            "Another node uses this `data` folder: stop it, or give this node a folder of its own"
        }
        _ => "If it was damaged, restore it from a copy, or move it away and start afresh",
    };
    StoreError::Open { path: path.to_owned(), cause: fault.to_string(), mend }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal in a folder. Makes the folder and the journal if they are missing.
    ///
    /// # Errors
    /// The folder cannot be written, another process has the journal open, or this version cannot read the
    /// file.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        Self::open_within(folder, SETTINGS.journal.cache_bytes)
    }

    /// Opens the journal with `cache_bytes` of memory for parts of the file, including parts that wait to be
    /// written. With more memory, a large journal is written with fewer reads.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_within(folder: &Path, cache_bytes: usize) -> Result<Self, StoreError> {
        let path = folder.join(FILE);
        let fault = |cause: String, mend| StoreError::Open { path: path.display().to_string(), cause, mend };
        let open = |path: &Path| {
            private::open(File::options().read(true).write(true).create(true).truncate(false), path)
        };
        let unwritable = |e: io::Error| {
            fault(e.to_string(), "Make the `data` folder writable for this user, or name another one")
        };
        private::create_folder(folder).map_err(unwritable)?;
        if path.exists() {
            return Self::over(reach_file(open(&path).map_err(unwritable)?), cache_bytes)
                .first_opened(&path.display().to_string());
        }
        // The new file has another name, so that an unfinished one is not taken for a damaged journal.
        let unfinished = folder.join(UNFINISHED);
        let file = open(&unfinished).map_err(unwritable)?;
        let journal = Self::over(reach_file(file.try_clone().map_err(unwritable)?), cache_bytes);
        if path.exists() {
            // Another process has just made the journal.
            return Self::open_within(folder, cache_bytes);
        }
        journal
            .begin_anew(|_| true)
            .and_then(|()| journal.first_opened(&path.display().to_string()))
            .and_then(|journal| {
                std::fs::rename(&unfinished, &path)
                    .and_then(|()| File::open(folder)?.sync_all())
                    .map_err(unwritable)?;
                Ok(journal)
            })
    }

    /// Opens the journal on the caller's bytes, such as those of a simulated disk. `reach` gives a way to
    /// them, always to the same ones, and is called again after each fault.
    ///
    /// # Errors
    /// The bytes are not available, or are no journal that this version reads.
    pub fn open_on(
        reach: impl Fn() -> io::Result<Box<dyn StorageBackend>> + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let journal = Self::over(Box::new(move || Ok(reach()?)), SETTINGS.journal.cache_bytes);
        journal.begin_anew(|magic| magic.iter().all(|byte| *byte == 0))?;
        journal.first_opened("given by the caller")
    }

    /// Empties bytes that are there, if their beginning shows that they are unfinished. The first bytes mark
    /// a file as a database of redb. redb writes them last of all bytes of an empty database, and before any
    /// commit.
    fn begin_anew(&self, is_unfinished: impl Fn(&[u8]) -> bool) -> Result<(), StoreError> {
        let anew = || -> Result<(), DatabaseError> {
            let file = Watched::new((self.reach)()?, &self.is_doubtful);
            let mut magic = [0; MAGIC_BYTES];
            let length = file.len()?;
            if length >= magic.len() as u64 {
                file.read(0, &mut magic)?;
            }
            if length > 0 && is_unfinished(&magic) {
                if !file.try_lock_range(Bound::Unbounded, Bound::Unbounded)? {
                    return Err(DatabaseError::DatabaseAlreadyOpen);
                }
                file.set_len(0)?;
            }
            Ok(())
        };
        anew().map_err(|e| unopened("a journal that is being made", &e))
    }

    fn first_opened(self, path: &str) -> Result<Self, StoreError> {
        let database = self.opened().map_err(|e| unopened(path, &e))?;
        match value(&database, FORMAT_NAME)?.as_deref() {
            None => commit(&database, &[], &[(FORMAT_NAME, Some(FORMAT))])?,
            Some(FORMAT) => {}
            Some(other) => {
                let cause = format!("its format is {:?}", String::from_utf8_lossy(other));
                let (path, mend) = (path.to_owned(), "A newer version wrote it: run that version");
                return Err(StoreError::Open { path, cause, mend });
            }
        }
        *self.database() = Some(database);
        Ok(self)
    }

    fn over(reach: Box<Reach>, cache_bytes: usize) -> Self {
        Self { reach, cache_bytes, database: Mutex::default(), is_doubtful: Arc::default() }
    }

    fn opened(&self) -> Result<Database, DatabaseError> {
        let file = Watched::new((self.reach)()?, &self.is_doubtful);
        file.settle()?;
        Database::builder().set_cache_size(self.cache_bytes).create_with_backend(file)
    }

    /// The database again after a fault. If the file has been emptied meanwhile, it would open as a new one:
    /// its format value is missing.
    fn opened_again(&self) -> Result<Database, String> {
        let database = self.opened().map_err(|fault| fault.to_string())?;
        match value(&database, FORMAT_NAME) {
            Ok(Some(format)) if format == FORMAT => Ok(database),
            Ok(_) => Err("the file has lost what it held".to_owned()),
            Err(fault) => Err(fault.to_string()),
        }
    }

    /// Works with the database. After a fault the database is closed, and will be opened anew.
    fn with<T>(
        &self,
        fault: fn(String) -> StoreError,
        work: impl FnOnce(&Database) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut place = self.database();
        // The database is taken out, so that a panic of `work` leaves none behind, too.
        let database = match place.take() {
            Some(database) => database,
            None => self.opened_again().map_err(fault)?,
        };
        let done = work(&database)?;
        *place = Some(database);
        Ok(done)
    }

    fn database(&self) -> MutexGuard<'_, Option<Database>> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Journal {
    fn cache_bytes(&self) -> usize {
        self.cache_bytes
    }

    fn commit(&self, rows: &[Row], values: &[(&str, Option<&[u8]>)]) -> Result<(), StoreError> {
        self.with(StoreError::Write, |database| commit(database, rows, values))
    }

    fn rows(&self, limit: LimitId) -> Result<Vec<Row>, StoreError> {
        self.with(StoreError::Read, |database| rows(database, limit))
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.with(StoreError::Read, |database| value(database, name))
    }
}

fn commit(database: &Database, rows: &[Row], values: &[(&str, Option<&[u8]>)]) -> Result<(), StoreError> {
    let mut transaction = database.begin_write().map_err(write)?;
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

fn rows(database: &Database, limit: LimitId) -> Result<Vec<Row>, StoreError> {
    let transaction = database.begin_read().map_err(read)?;
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

fn value(database: &Database, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
    let transaction = database.begin_read().map_err(read)?;
    let table = match transaction.open_table(VALUES) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        table => table.map_err(read)?,
    };
    let value = table.get(name).map_err(|e: StorageError| read(e))?;
    Ok(value.map(|value| value.value().to_vec()))
}

fn read(cause: impl std::fmt::Display) -> StoreError {
    StoreError::Read(cause.to_string())
}

fn write(cause: impl std::fmt::Display) -> StoreError {
    StoreError::Write(cause.to_string())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, io, ops::Bound};

    use redb::BackendError;

    use super::*;
    use crate::contract;

    #[test]
    fn the_journal_keeps_the_contract_of_a_store() {
        let folder = tempfile::tempdir().expect("a folder");
        contract::check(&Journal::open(folder.path()).expect("a journal"));
    }

    #[test]
    fn rows_survive_a_close_and_reopen_of_the_journal() {
        let folder = tempfile::tempdir().expect("a folder");
        let rows = [contract::row(1, 2, Some(3))];
        let journal = Journal::open(folder.path()).expect("a journal");
        journal.commit(&rows, &[("name", Some(b"value"))]).expect("a commit");
        drop(journal);
        let journal = Journal::open(folder.path()).expect("a journal");
        assert_eq!(journal.rows(LimitId(1)).expect("rows"), rows);
        assert_eq!(journal.value("name").expect("a value").as_deref(), Some(&b"value"[..]));
    }

    /// A kind of failure of a disk.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Failing {
        /// The disk takes nothing more, and can keep what it took.
        Writes,
        /// The disk takes everything, and loses what it took since the last sync.
        Syncs,
    }

    /// A disk behind a cache.
    #[derive(Debug, Default)]
    struct Disk {
        /// The bytes as they read.
        cached: Vec<u8>,
        /// The bytes on the disk.
        kept: Vec<u8>,
        /// The pages where the cache is newer than the disk.
        dirty: BTreeSet<usize>,
        failing: Option<Failing>,
        /// How many operations still succeed; and, below, how many fail after them.
        well: usize,
        badly: usize,
    }

    const PAGE: usize = 4_096;

    impl Disk {
        fn fails(&mut self, kind: Failing) -> bool {
            if self.failing != Some(kind) || self.badly == 0 {
                return false;
            }
            let fails = self.well == 0;
            self.well = self.well.saturating_sub(1);
            self.badly -= usize::from(fails);
            fails
        }

        /// The disk after a power cut: of the pages that were not synced, some are there.
        fn after_a_cut(&self, is_there: impl Fn(usize) -> bool) -> Self {
            let mut kept = self.kept.clone();
            kept.resize(self.cached.len(), 0);
            for page in self.dirty.iter().copied().filter(|page| is_there(*page)) {
                let bytes = page * PAGE..((page + 1) * PAGE).min(kept.len());
                kept[bytes.clone()].copy_from_slice(&self.cached[bytes]);
            }
            Self { cached: kept.clone(), kept, ..Self::default() }
        }
    }

    #[derive(Clone, Debug, Default)]
    struct Handle(Arc<Mutex<Disk>>);

    impl Handle {
        fn disk(&self) -> MutexGuard<'_, Disk> {
            self.0.lock().expect("no panic")
        }

        fn journal(&self) -> Journal {
            let handle = self.clone();
            let journal =
                Journal::over(Box::new(move || Ok(Box::new(handle.clone()))), SETTINGS.journal.cache_bytes);
            let database = journal.opened().expect("a disk that is sound");
            commit(&database, &[], &[(FORMAT_NAME, Some(FORMAT))]).expect("a commit");
            *journal.database() = Some(database);
            journal
        }
    }

    impl StorageBackend for Handle {
        fn len(&self) -> io::Result<u64> {
            Ok(self.disk().cached.len() as u64)
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            let from = offset as usize;
            out.copy_from_slice(&self.disk().cached[from..from + out.len()]);
            Ok(())
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            let mut disk = self.disk();
            if disk.fails(Failing::Writes) {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            disk.cached.resize(len as usize, 0);
            Ok(())
        }

        fn sync_data(&self) -> io::Result<()> {
            let mut disk = self.disk();
            if disk.fails(Failing::Syncs) {
                // The fault is reported only once.
                disk.dirty.clear();
                return Err(io::Error::other("what was taken is lost"));
            }
            disk.kept = disk.after_a_cut(|_| true).kept;
            disk.dirty.clear();
            Ok(())
        }

        fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            let mut disk = self.disk();
            if disk.fails(Failing::Writes) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let from = offset as usize;
            disk.cached[from..from + bytes.len()].copy_from_slice(bytes);
            disk.dirty.extend(from / PAGE..(from + bytes.len()).div_ceil(PAGE));
            Ok(())
        }

        fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
            Ok(true)
        }

        fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
            Ok(())
        }
    }

    /// Commits as the node's writer does, again until the batch is there. After each commit nothing is
    /// missing. After each fault the batch is there or not, whenever the power fails.
    fn write_through(failing: Failing, well: usize, badly: usize) -> usize {
        let handle = Handle::default();
        let journal = handle.journal();
        let mut faults = 0;
        let mut written: Vec<Row> = Vec::new();
        for batch in 0..3_u64 {
            if batch == 1 {
                let mut disk = handle.disk();
                (disk.failing, disk.well, disk.badly) = (Some(failing), well, badly);
            }
            // So many rows that the file must grow.
            let new: Vec<Row> =
                (0..400).map(|tag| contract::row(1, u128::from(batch * 400 + tag), Some(7))).collect();
            let all = [&written[..], &new[..]].concat();
            while journal.commit(&new, &[]).is_err() {
                faults += 1;
                for cut in [|_| false, |_| true, |page: usize| page.is_multiple_of(2)] {
                    let after = Handle(Arc::new(Mutex::new(handle.disk().after_a_cut(cut))));
                    let rows = after.journal().rows(LimitId(1)).expect("rows");
                    assert!(
                        rows == written || rows == all,
                        "{failing:?} {well} {badly}: neither old nor new"
                    );
                }
            }
            written = all;
            for cut in [|_| false, |_| true, |page: usize| page.is_multiple_of(2)] {
                let after = Handle(Arc::new(Mutex::new(handle.disk().after_a_cut(cut))));
                let rows = after.journal().rows(LimitId(1)).expect("rows");
                assert_eq!(rows.len(), written.len(), "{failing:?} {well} {badly}");
                assert!(rows == written, "{failing:?} {well} {badly}: other rows");
            }
            assert!(journal.rows(LimitId(1)).expect("rows") == written);
        }
        faults
    }

    #[test]
    fn a_disk_that_fails_and_recovers_loses_no_committed_row() {
        for failing in [Failing::Writes, Failing::Syncs] {
            for badly in [1, 3] {
                let faults: Vec<usize> = (0..24).map(|well| write_through(failing, well, badly)).collect();
                assert!(faults.iter().any(|faults| *faults > 0), "{failing:?}: nothing ever failed");
            }
        }
    }

    #[test]
    fn a_commit_after_a_failed_sync_writes_lost_pages_again() {
        let rows =
            |limit, owed| -> Vec<Row> { (0..400).map(|tag| contract::row(limit, tag, Some(owed))).collect() };
        // A commit that makes the file grow syncs more than once.
        for well in 0..4 {
            let handle = Handle::default();
            let journal = handle.journal();
            journal.commit(&[rows(1, 3), rows(2, 3)].concat(), &[]).expect("a commit");
            (handle.disk().failing, handle.disk().well, handle.disk().badly) =
                (Some(Failing::Syncs), well, 1);
            let failed = journal.commit(&rows(1, 4), &[]).is_err();
            // This does not write pages of the first limit, and yet they must be there.
            journal.commit(&rows(2, 5), &[]).or_else(|_| journal.commit(&rows(2, 5), &[])).expect("a commit");
            let after = Handle(Arc::new(Mutex::new(handle.disk().after_a_cut(|_| false)))).journal();
            assert!(after.rows(LimitId(2)).expect("rows") == rows(2, 5), "{well}: a commit is lost");
            let first = after.rows(LimitId(1)).expect("rows");
            assert!(first == rows(1, 4) || (failed && first == rows(1, 3)), "{well}: neither old nor new");
        }
    }

    #[test]
    fn a_journal_whose_creation_was_interrupted_is_created_again() {
        let mut cut_short = 0;
        for (failing, well) in (0..40).flat_map(|well| [(Failing::Writes, well), (Failing::Syncs, well)]) {
            let handle = Handle::default();
            (handle.disk().failing, handle.disk().well, handle.disk().badly) =
                (Some(failing), well, usize::MAX);
            let on = |handle: &Handle| {
                let handle = handle.clone();
                Journal::open_on(move || Ok(Box::new(handle.clone())))
            };
            if on(&handle).is_ok() {
                continue;
            }
            for cut in [|_| false, |_| true, |page: usize| page.is_multiple_of(2)] {
                let after = Handle(Arc::new(Mutex::new(handle.disk().after_a_cut(cut))));
                cut_short += usize::from(!after.disk().cached.is_empty());
                contract::check(&on(&after).expect("an empty journal"));
            }
        }
        assert!(cut_short > 20, "{cut_short}");
    }

    #[test]
    fn an_unfinished_file_is_not_taken_for_a_journal() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(UNFINISHED), [7; 10_000]).expect("a file");
        contract::check(&Journal::open(folder.path()).expect("a journal"));
        assert!(!folder.path().join(UNFINISHED).exists());
        let journal = Journal::open(folder.path()).expect("the same");
        assert_eq!(journal.value("other").expect("a value").as_deref(), Some(&b""[..]));
    }

    #[test]
    fn committed_rows_can_be_read_after_a_failed_commit() {
        let handle = Handle::default();
        let journal = handle.journal();
        let rows = [contract::row(1, 2, Some(3))];
        journal.commit(&rows, &[]).expect("a commit");
        handle.disk().failing = Some(Failing::Syncs);
        handle.disk().badly = 1;
        journal.commit(&[contract::row(1, 3, Some(4))], &[]).expect_err("a failed sync");
        assert!(journal.rows(LimitId(1)).expect("rows").starts_with(&rows));
    }

    #[test]
    fn an_emptied_journal_file_is_reported_as_lost() {
        let handle = Handle::default();
        let journal = handle.journal();
        handle.disk().failing = Some(Failing::Writes);
        handle.disk().badly = 1;
        journal.commit(&[contract::row(1, 2, Some(3))], &[]).expect_err("a failed write");
        *handle.disk() = Disk::default();
        for _ in 0..3 {
            let fault = journal.commit(&[], &[]).expect_err("emptied").to_string();
            assert!(fault.contains("lost what it held"), "{fault}");
        }
    }

    #[test]
    fn faults_of_the_journal_say_what_to_do() {
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
