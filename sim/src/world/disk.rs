//! A disk in memory. A power cut loses or tears its unsynced data.

use std::{
    collections::BTreeSet,
    io::{self, BufRead},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use acequia_server::regions::AuditFile;
use redb::{BackendError, StorageBackend};

use crate::random::Random;

/// The bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// What becomes of unsynced data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsynced {
    /// All of it is lost.
    Lost,
    /// All of it was written.
    Written,
    /// Chance decides for every sector.
    Torn,
}

/// How a disk takes writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    #[default]
    Sound,
    /// The disk takes no more writes.
    Full,
    /// The power goes at the sync after this many more. Then the world must end the process
    /// ([`Disk::is_cut`]).
    CutAfter(u64),
}

/// A region's disk. Handles from before a power cut are of no use.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    state: Arc<Mutex<State>>,
    generation: u64,
}

/// What a disk holds: the journal, and the audit log.
#[derive(Clone, Debug, Default)]
struct State {
    /// The contents that a process reads.
    cached: Vec<u8>,
    /// The contents after a power cut.
    kept: Vec<u8>,
    /// The sectors in which both may differ.
    dirty: BTreeSet<usize>,
    audit: Vec<u8>,
    mood: Mood,
    is_cut: bool,
    generation: u64,
    durable_writes: u64,
}

/// A copy of a disk.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    kept: Vec<u8>,
    audit: Vec<u8>,
}

impl Disk {
    pub(crate) fn new() -> Self {
        Self { state: Arc::default(), generation: 0 }
    }

    /// A handle for a process that starts now.
    pub(crate) fn handle(&self) -> Self {
        Self { state: Arc::clone(&self.state), generation: self.state().generation }
    }

    /// Cuts the power. Older handles stop working, and `unsynced` says what becomes of unsynced data.
    pub(crate) fn cut(&self, unsynced: Unsynced, random: &mut Random) {
        let state = &mut *self.state();
        let (length, dirty) = (state.cached.len(), std::mem::take(&mut state.dirty));
        state.kept.resize(length, 0);
        for sector in dirty {
            let is_there = match unsynced {
                Unsynced::Lost => false,
                Unsynced::Written => true,
                Unsynced::Torn => random.chance(500_000),
            };
            let bytes = sector * SECTOR..((sector + 1) * SECTOR).min(length);
            if is_there && !bytes.is_empty() {
                state.kept[bytes.clone()].copy_from_slice(&state.cached[bytes]);
            }
        }
        state.cached.clone_from(&state.kept);
        state.is_cut = false;
        state.mood = Mood::Sound;
        state.generation += 1;
    }

    /// The contents after a power cut now.
    pub(crate) fn copy(&self) -> Copy {
        let state = self.state();
        Copy { kept: state.kept.clone(), audit: state.audit.clone() }
    }

    /// Replaces the disk with a new one or a copy. Only while no process uses it.
    pub(crate) fn replace(&self, copy: Option<Copy>) {
        let mut state = self.state();
        let Copy { kept, audit } = copy.unwrap_or(Copy { kept: Vec::new(), audit: Vec::new() });
        let (generation, durable_writes) = (state.generation + 1, state.durable_writes);
        *state = State { cached: kept.clone(), kept, audit, generation, durable_writes, ..State::default() };
    }

    /// From now on the disk takes writes in this mood.
    pub(crate) fn set_mood(&self, mood: Mood) {
        self.state().mood = mood;
    }

    /// Whether the power went at a sync: then the process must end.
    pub(crate) fn is_cut(&self) -> bool {
        self.state().is_cut
    }

    /// Whether the disk holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.state().cached.is_empty()
    }

    /// The number of durable writes so far.
    pub(crate) fn durable_writes(&self) -> u64 {
        self.state().durable_writes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if this handle may still use the disk.
    fn used(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.generation != self.generation || state.is_cut {
            return Err(io::Error::other("the power is gone"));
        }
        Ok(state)
    }

    fn written(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.used()?;
        if state.mood == Mood::Full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(state)
    }
}

impl State {
    /// Counts a sync. Fails if the power goes at it.
    fn counts_sync(&mut self) -> io::Result<()> {
        match &mut self.mood {
            Mood::CutAfter(0) => {
                self.is_cut = true;
                return Err(io::Error::other("the power is gone"));
            }
            Mood::CutAfter(left) => *left -= 1,
            Mood::Sound | Mood::Full => {}
        }
        self.durable_writes += 1;
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.used()?.cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let from = offset as usize;
        let state = self.used()?;
        let bytes = state.cached.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.written()?.cached.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let state = &mut *self.used()?;
        state.counts_sync()?;
        let length = state.cached.len();
        state.kept.resize(length, 0);
        for sector in std::mem::take(&mut state.dirty) {
            let bytes = sector * SECTOR..((sector + 1) * SECTOR).min(length);
            if !bytes.is_empty() {
                state.kept[bytes.clone()].copy_from_slice(&state.cached[bytes]);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let from = offset as usize;
        let state = &mut *self.written()?;
        let place = state.cached.get_mut(from..from + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        place.copy_from_slice(bytes);
        state.dirty.extend(from / SECTOR..(from + bytes.len()).div_ceil(SECTOR));
        Ok(())
    }

    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}

impl AuditFile for Disk {
    fn last(&mut self) -> io::Result<Option<u8>> {
        Ok(self.used()?.audit.last().copied())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.written()?;
        state.counts_sync()?;
        state.audit.extend_from_slice(bytes);
        Ok(())
    }

    fn read(&self) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(Box::new(io::Cursor::new(self.used()?.audit.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_takes_what_was_not_synced_and_every_handle() {
        let disk = Disk::new();
        let handle = disk.handle();
        handle.set_len(4_096).expect("room");
        handle.write(0, b"kept").expect("a write");
        handle.sync_data().expect("a sync");
        handle.write(0, b"lost").expect("a write");
        disk.cut(Unsynced::Lost, &mut Random::new(1));
        handle.write(0, b"late").expect_err("an old handle");
        let mut found = [0; 4];
        StorageBackend::read(&disk.handle(), 0, &mut found).expect("a read");
        assert_eq!(&found, b"kept");
    }

    #[test]
    fn a_torn_write_is_there_in_part() {
        let disk = Disk::new();
        let handle = disk.handle();
        handle.set_len(64 * SECTOR as u64).expect("room");
        handle.write(0, &[7; 64 * SECTOR]).expect("a write");
        disk.cut(Unsynced::Torn, &mut Random::new(1));
        let mut found = vec![0; 64 * SECTOR];
        StorageBackend::read(&disk.handle(), 0, &mut found).expect("a read");
        let there = found.chunks(SECTOR).filter(|sector| sector[0] == 7).count();
        assert!((16..48).contains(&there), "{there}");
    }

    #[test]
    fn the_power_goes_at_the_sync_that_was_set() {
        let disk = Disk::new();
        disk.set_mood(Mood::CutAfter(1));
        let handle = disk.handle();
        handle.sync_data().expect("the first");
        handle.sync_data().expect_err("the second");
        assert!(disk.is_cut());
    }
}
