//! The config file on disk. It is read when it has changed, and never further than a config may be long.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::atomic::AtomicU64,
    time::{Duration, SystemTime},
};

use ring::digest::{Context, Digest, SHA256};

use super::FILE_BYTES_MAX;
use crate::settings::SETTINGS;

/// A config file, and what it last held.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    text: String,
    /// How the file looked when it was read; `None` if it may have changed unseen.
    stamp: Option<Stamp>,
    /// Why the last reading failed.
    fault: Option<io::ErrorKind>,
}

/// The marks that tell two versions of a file apart without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(found: &Metadata) -> Self {
        Self {
            inode: (found.dev(), found.ino()),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }

    /// This stamp, if no later write can have the same times; otherwise `None`.
    fn settled(self, now: SystemTime) -> Option<Self> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::from_secs(u64::try_from(self.changed.0).unwrap_or(0));
        (now >= changed + SETTINGS.reading.settles).then_some(self)
    }
}

/// How often the config was read again since the start.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    /// The new config was put in force.
    pub(crate) applied: AtomicU64,
    /// The new config was refused, and the old one stays.
    pub(crate) refused: AtomicU64,
    /// The config was read, and nothing in it was new.
    pub(crate) unchanged: AtomicU64,
}

/// The content of some files when they were last checked for changes.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    looked: Vec<Looked>,
    digest: Option<Digest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    Missing,
    /// The file may have changed since without a visible sign.
    Lately,
    At(Stamp),
}

impl Watched {
    /// Whether the files hold something else than at the last call. They are read only if they look
    /// different, or may have changed unseen.
    pub(crate) fn have_changed(&mut self, files: &[&Path]) -> bool {
        let look = |path: &&Path| match fs::metadata(path) {
            Ok(found) => Stamp::of(&found).settled(SystemTime::now()).map_or(Looked::Lately, Looked::At),
            Err(_) => Looked::Missing,
        };
        let looked: Vec<_> = files.iter().map(look).collect();
        if looked == self.looked && !looked.contains(&Looked::Lately) {
            return false;
        }
        let mut all = Context::new(&SHA256);
        for path in files {
            let mut bytes = Vec::new();
            let read = File::open(path)
                .and_then(|file| file.take(SETTINGS.reading.watched_bytes_max).read_to_end(&mut bytes));
            // A file that cannot be read is not the same as an empty file.
            all.update(&read.map_or(u64::MAX, |length| length as u64).to_be_bytes());
            all.update(&bytes);
        }
        let digest = all.finish();
        let have_changed = self.digest.is_none_or(|before| before.as_ref() != digest.as_ref());
        *self = Self { looked, digest: Some(digest) };
        have_changed
    }
}

impl ConfigFile {
    /// Reads a config file.
    ///
    /// # Errors
    /// The file cannot be read, is no text, or is larger than [`FILE_BYTES_MAX`].
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let (text, stamp) = read(path)?;
        Ok(Self { path: path.to_owned(), text, stamp, fault: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Reads the file again if it looks different, or if an operator asked for that. Says whether its text is
    /// new.
    ///
    /// # Errors
    /// As [`ConfigFile::open`]. A fault that repeats is returned once, unless an operator asked.
    pub(crate) fn read_again(&mut self, is_asked: bool) -> io::Result<bool> {
        match self.look(is_asked) {
            Ok(is_new) => {
                self.fault = None;
                Ok(is_new)
            }
            Err(fault) => {
                let is_told = self.fault.replace(fault.kind()) == Some(fault.kind());
                if is_told && !is_asked { Ok(false) } else { Err(fault) }
            }
        }
    }

    fn look(&mut self, is_asked: bool) -> io::Result<bool> {
        let now = Stamp::of(&fs::metadata(&self.path)?);
        if !is_asked && self.stamp == Some(now) {
            return Ok(false);
        }
        match read(&self.path) {
            Ok((text, stamp)) => {
                self.stamp = stamp;
                let is_new = text != self.text;
                self.text = text;
                Ok(is_new)
            }
            Err(fault) => {
                // A fault of the text stays until the text changes. Any other fault may pass by itself.
                let is_lasting =
                    matches!(fault.kind(), io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidData);
                self.stamp = if is_lasting { now.settled(SystemTime::now()) } else { None };
                Err(fault)
            }
        }
    }
}

/// The text of a config.
///
/// # Errors
/// The file cannot be read, is no text, or is larger than [`FILE_BYTES_MAX`].
pub fn read_text(path: &Path) -> io::Result<String> {
    read(path).map(|(text, _)| text)
}

fn read(path: &Path) -> io::Result<(String, Option<Stamp>)> {
    let file = File::open(path)?;
    let found = file.metadata()?;
    let too_large = || {
        io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "the file is larger than {FILE_BYTES_MAX} bytes: leave limits out, or run two deployments"
            ),
        )
    };
    if found.len() > FILE_BYTES_MAX as u64 {
        return Err(too_large());
    }
    // A pipe, for instance, has no length before it is read.
    let mut text = String::new();
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    if text.len() > FILE_BYTES_MAX {
        return Err(too_large());
    }
    Ok((text, Stamp::of(&found).settled(SystemTime::now())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_file_has_changed_only_if_its_content_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        let mut watched = Watched::default();
        let mut have_changed = || watched.have_changed(&[&a, &b]);
        assert!(have_changed(), "seen for the first time");
        assert!(!have_changed(), "both are missing");
        fs::write(&a, "1").expect("written");
        assert!(have_changed() && !have_changed(), "one is there");
        fs::write(&a, "2").expect("written");
        assert!(have_changed() && !have_changed(), "as long, and at nearly the same time");
        let other = folder.path().join("other");
        fs::write(&other, "2").expect("written");
        fs::rename(&other, &a).expect("renamed");
        assert!(!have_changed(), "another file, the same text");
        fs::write(&b, "").expect("written");
        assert!(have_changed(), "an empty file is no missing one");
        std::os::unix::fs::symlink(&b, &other).expect("linked");
        fs::rename(&other, &a).expect("renamed");
        assert!(have_changed() && !have_changed(), "a link to another file");
    }

    /// Dates the last write of a file, and so its change, as far back as a test may.
    fn age(path: &Path, ago: Duration) {
        let file = File::options().write(true).open(path).expect("a file");
        file.set_modified(SystemTime::now() - ago).expect("set");
    }

    #[test]
    fn a_file_is_read_when_it_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("acequia.yaml");
        fs::write(&path, "a: 1\n").expect("written");
        let mut file = ConfigFile::open(&path).expect("read");
        assert_eq!(file.text(), "a: 1\n");
        assert!(!file.read_again(false).expect("read"), "the same text");

        fs::write(&path, "a: 2\n").expect("written");
        assert!(file.read_again(false).expect("read"), "as long as before, and at nearly the same time");
        age(&path, Duration::from_secs(60));
        assert!(!file.read_again(false).expect("read"));

        let other = folder.path().join("other");
        fs::write(&other, "a: 3\n").expect("written");
        fs::rename(&other, &path).expect("replaced");
        assert!(file.read_again(false).expect("read"));
        fs::remove_file(&path).expect("removed");
        file.read_again(false).expect_err("nothing there");
        assert!(!file.read_again(false).expect("told before"));
        file.read_again(true).expect_err("nothing there still");
        assert_eq!(file.text(), "a: 3\n");
    }

    #[test]
    fn a_file_that_did_not_change_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("acequia.yaml");
        fs::write(&path, "a: 1\n").expect("written");
        let mut file = ConfigFile::open(&path).expect("read");
        let now = Stamp::of(&fs::metadata(&path).expect("there"));
        assert_eq!(now.settled(SystemTime::now()), None, "it may be written again within its time");
        assert_eq!(now.settled(SystemTime::now() + 2 * SETTINGS.reading.settles), Some(now));
        // As if it had been read long after it was written.
        file.stamp = Some(now);
        file.text = "what a reading would show as changed".to_owned();
        assert!(!file.read_again(false).expect("not read"));
        assert!(file.read_again(true).expect("read"), "somebody asked");
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("acequia.yaml");
        File::create(&path).and_then(|file| file.set_len(1 << 40)).expect("a file with a hole");
        let fault = ConfigFile::open(&path).expect_err("too large");
        assert!(fault.to_string().contains("larger than 16777216 bytes"), "{fault}");
    }
}
