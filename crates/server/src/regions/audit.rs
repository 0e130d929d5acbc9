//! The audit log: who changed the catalogue, when, why, and how. The log has lines of JSON in the `data`
//! folder and is only ever appended to. Each line is on disk before its change is in force.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use acequia_store::private;
use serde::{Deserialize, Serialize};

/// The file in the `data` folder.
pub const FILE: &str = "audit.jsonl";
/// The most entries that are read back.
pub const ENTRIES_MAX: usize = 10_000;
/// The longest text of a caller in an entry, in bytes.
pub const TEXT_BYTES_MAX: usize = 1_024;

/// One change of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// The time of the change: this node's wall clock, nanoseconds since 1970.
    pub wall_ns: u64,
    /// The author, as the caller names himself, and the address.
    pub author: String,
    /// The reason, in the author's words.
    pub reason: String,
    /// The order.
    pub what: String,
    /// The version before: epoch and number.
    pub before: (u32, u64),
    /// The version after.
    pub after: (u32, u64),
    /// The changes, a line each.
    pub changes: Vec<String>,
}

/// The log of one node.
#[derive(Debug)]
pub struct Audit {
    file: Box<dyn AuditFile>,
}

/// The file of a log: bytes that are only ever appended.
pub trait AuditFile: fmt::Debug + Send {
    /// The last byte; `None` if the file is empty.
    ///
    /// # Errors
    /// The file cannot be read.
    fn last(&mut self) -> io::Result<Option<u8>>;

    /// Adds bytes to the end. The bytes are on disk when this returns.
    ///
    /// # Errors
    /// The file cannot be written. Some of the bytes may be there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// All bytes, from the beginning.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read(&self) -> io::Result<Box<dyn BufRead + '_>>;
}

/// A file of this machine.
#[derive(Debug)]
struct OnDisk {
    path: PathBuf,
    file: File,
}

impl AuditFile for OnDisk {
    fn last(&mut self) -> io::Result<Option<u8>> {
        if self.file.seek(SeekFrom::End(0))? == 0 {
            return Ok(None);
        }
        let mut last = [0];
        self.file.seek(SeekFrom::End(-1))?;
        io::Read::read_exact(&mut self.file, &mut last)?;
        Ok(Some(last[0]))
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file.sync_data()
    }

    fn read(&self) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(Box::new(BufReader::new(File::open(&self.path)?)))
    }
}

impl Audit {
    /// Opens the log in a folder. Makes the file if there is none.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(folder: &Path) -> io::Result<Self> {
        private::create_folder(folder)?;
        let path = folder.join(FILE);
        let file = private::open(OpenOptions::new().create(true).read(true).append(true), &path)?;
        Self::open_on(Box::new(OnDisk { path, file }))
    }

    /// As [`Audit::open`], on a file of the caller's.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open_on(mut file: Box<dyn AuditFile>) -> io::Result<Self> {
        // A crash may have torn the last line: the next entry begins on a new one.
        if file.last()?.is_some_and(|last| last != b'\n') {
            file.append(b"\n")?;
        }
        Ok(Self { file })
    }

    /// Writes an entry down. The entry is on disk when this returns.
    ///
    /// # Errors
    /// The file cannot be written. Then the change must not happen.
    pub fn append(&mut self, entry: &AuditEntry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.file.append(&line)
    }

    /// The newest entries, oldest first, without the lines that cannot be read.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn newest(&self, count: usize) -> io::Result<Vec<AuditEntry>> {
        let mut entries = std::collections::VecDeque::new();
        for line in self.file.read()?.split(b'\n') {
            if let Ok(entry) = serde_json::from_slice(&line?) {
                entries.push_back(entry);
                if entries.len() > count.min(ENTRIES_MAX) {
                    entries.pop_front();
                }
            }
        }
        Ok(entries.into())
    }
}

/// A caller's text as the log takes it: one line of bounded length.
pub(crate) fn clean(text: &str) -> String {
    let mut clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = (0..=TEXT_BYTES_MAX.min(clean.len())).rev().find(|at| clean.is_char_boundary(*at));
    clean.truncate(end.unwrap_or(0));
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> AuditEntry {
        AuditEntry {
            wall_ns: number,
            author: "ana from 127.0.0.1:9".to_owned(),
            reason: String::new(),
            what: "budget set shop/per-key rate=1/s".to_owned(),
            before: (1, number),
            after: (1, number + 1),
            changes: vec!["shop/per-key: token_bucket.rate 2/s -> 1/s".to_owned()],
        }
    }

    #[test]
    fn audit_entries_survive_a_crash_in_the_middle_of_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut audit = Audit::open(folder.path()).expect("a log");
        audit.append(&entry(1)).expect("written");
        audit.append(&entry(2)).expect("written");
        let path = folder.path().join(FILE);
        let whole = std::fs::read(&path).expect("read");
        std::fs::write(&path, &whole[..whole.len() - 9]).expect("torn");
        let mut audit = Audit::open(folder.path()).expect("a log");
        audit.append(&entry(3)).expect("written");
        assert_eq!(audit.newest(10).expect("read"), [entry(1), entry(3)]);
        assert_eq!(audit.newest(1).expect("read"), [entry(3)]);
    }

    #[test]
    fn an_operators_text_is_kept_as_one_short_line() {
        assert_eq!(clean("a\nb\u{7}c"), "a b c");
        let long = "ä".repeat(TEXT_BYTES_MAX);
        assert_eq!(clean(&long).len(), TEXT_BYTES_MAX);
    }
}
