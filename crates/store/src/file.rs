//! The journal's file, and whether the disk has what the file reads as.
//!
//! A system that cannot write the bytes it has taken says so once, at the next sync. From then on the file
//! reads as if it were written, and the next sync reports no fault. So a failed sync is remembered. Before
//! the file is used again, all of it is written once more, as it reads, and synced. Then the disk has what
//! was read.

use std::{
    io,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{BackendError, StorageBackend};

use crate::settings::SETTINGS;

/// A file that remembers, beyond its own life, that a sync has failed.
#[derive(Debug)]
pub(crate) struct Watched {
    file: Box<dyn StorageBackend>,
    is_doubtful: Arc<AtomicBool>,
}

impl Watched {
    pub(crate) fn new(file: Box<dyn StorageBackend>, is_doubtful: &Arc<AtomicBool>) -> Self {
        Self { file, is_doubtful: Arc::clone(is_doubtful) }
    }

    /// Writes the whole file again if a sync has failed.
    pub(crate) fn settle(&self) -> io::Result<()> {
        if !self.is_doubtful.load(Ordering::Acquire) {
            return Ok(());
        }
        // If another process has the file by now, this one must not write it.
        if !self.file.try_lock_range(Bound::Unbounded, Bound::Unbounded)? {
            return Err(io::Error::other("another node uses it"));
        }
        let end = self.file.len()?;
        let piece_bytes = SETTINGS.journal.rewritten_bytes;
        let mut piece = vec![0; piece_bytes];
        let mut from = 0;
        while from < end {
            let length = usize::try_from(end - from).map_or(piece_bytes, |left| left.min(piece_bytes));
            self.file.read(from, &mut piece[..length])?;
            self.file.write(from, &piece[..length])?;
            from += length as u64;
        }
        self.file.sync_data()?;
        self.is_doubtful.store(false, Ordering::Release);
        Ok(())
    }
}

impl StorageBackend for Watched {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.file.sync_data();
        if synced.is_err() {
            self.is_doubtful.store(true, Ordering::Release);
        }
        synced
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write(offset, bytes)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}
