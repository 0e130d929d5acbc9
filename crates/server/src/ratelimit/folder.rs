//! A folder of a config's files. A mounted folder may be replaced as a whole, by a link that is put in its place.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{RatelimitDomain, read_domain};
use crate::config::{FILE_BYTES_MAX, Watched, read_text};

/// The most files in a folder.
pub const FOLDER_FILES_MAX: usize = 1_000;

/// How deep folders may lie within the folder.
const DEPTH_MAX: usize = 8;

/// A folder, and what its files last held.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    names: Vec<PathBuf>,
    watched: Watched,
    texts: Vec<FileText>,
    /// Why the last reading failed.
    fault: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileText {
    name: String,
    text: String,
}

impl Folder {
    /// Reads a folder, and the folders in it. Names that begin with a dot do not count.
    ///
    /// # Errors
    /// A file cannot be read, or there are too many.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut folder = Self {
            path: path.to_owned(),
            names: Vec::new(),
            watched: Watched::default(),
            texts: Vec::new(),
            fault: None,
        };
        folder.look()?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the files again if they look different. Says whether any text is new.
    ///
    /// # Errors
    /// As [`Folder::open`]. A fault that repeats is returned once, unless an operator asked.
    pub(crate) fn read_again(&mut self, is_asked: bool) -> io::Result<bool> {
        match self.look() {
            Ok(is_new) => {
                self.fault = None;
                Ok(is_new)
            }
            Err(fault) => {
                let is_told = self.fault.replace(fault.to_string()) == self.fault;
                // The next look reads again.
                self.watched = Watched::default();
                if is_told && !is_asked { Ok(false) } else { Err(fault) }
            }
        }
    }

    fn look(&mut self) -> io::Result<bool> {
        let names = names(&self.path)?;
        let paths: Vec<&Path> = names.iter().map(PathBuf::as_path).collect();
        let have_changed = self.watched.have_changed(&paths);
        if !have_changed && names == self.names {
            return Ok(false);
        }
        let mut texts = Vec::with_capacity(names.len());
        let mut bytes = 0;
        for path in &names {
            let text = read_text(path)?;
            bytes += text.len();
            if bytes > FILE_BYTES_MAX {
                let what =
                    format!("the files are larger than {FILE_BYTES_MAX} bytes together: leave limits out");
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
            }
            texts.push(FileText { name: path.display().to_string(), text });
        }
        let is_new = texts != self.texts;
        (self.names, self.texts) = (names, texts);
        Ok(is_new)
    }

    /// The domains in the files, in the order of the files' names.
    ///
    /// # Errors
    /// Every file that is no config.
    pub(crate) fn domains(&self) -> Result<Vec<RatelimitDomain>, Vec<String>> {
        let mut faults = Vec::new();
        let read = self.texts.iter().map(|file| read_domain(&file.name, &file.text));
        let domains = read.filter_map(|domain| domain.map_err(|fault| faults.push(fault)).ok()).collect();
        if faults.is_empty() { Ok(domains) } else { Err(faults) }
    }
}

/// The files of a folder and of the folders in it, down to a depth that no config needs.
fn names(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    let mut folders = vec![FolderAt { path: folder.to_owned(), depth: 0 }];
    while let Some(FolderAt { path, depth }) = folders.pop() {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            match fs::metadata(entry.path()) {
                // A link that leads nowhere is no file.
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(cause),
                Ok(found) if found.is_dir() && depth < DEPTH_MAX => {
                    folders.push(FolderAt { path: entry.path(), depth: depth + 1 });
                }
                Ok(found) if found.is_dir() => {
                    let what =
                        format!("folders within folders, deeper than {DEPTH_MAX}: a link may lead back");
                    return Err(io::Error::other(what));
                }
                Ok(_) if names.len() == FOLDER_FILES_MAX => {
                    let what = format!("more than {FOLDER_FILES_MAX} files: write several domains into one");
                    return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
                }
                Ok(_) => names.push(entry.path()),
            }
        }
    }
    names.sort();
    Ok(names)
}

/// A folder within the folder.
struct FolderAt {
    path: PathBuf,
    depth: usize,
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(folder: &Path, name: &str, domain: &str) {
        fs::write(folder.join(name), format!("domain: {domain}\n")).expect("written");
    }

    fn domains(folder: &Folder) -> Vec<String> {
        folder.domains().expect("configs").into_iter().map(|domain| domain.domain).collect()
    }

    #[test]
    fn a_folder_is_read_again_when_a_file_comes_changes_or_goes() {
        let place = tempfile::tempdir().expect("a folder");
        write(place.path(), "b.yaml", "b");
        write(place.path(), ".hidden", "no");
        fs::create_dir(place.path().join("sub")).expect("made");
        symlink("nowhere", place.path().join("dead")).expect("linked");
        let mut folder = Folder::open(place.path()).expect("read");
        assert_eq!(domains(&folder), ["b"]);
        assert!(!folder.read_again(false).expect("read"));
        write(place.path(), "a.yaml", "a");
        assert!(folder.read_again(false).expect("read"));
        assert_eq!(domains(&folder), ["a", "b"]);
        write(place.path(), "a.yaml", "c");
        assert!(folder.read_again(false).expect("read"));
        fs::remove_file(place.path().join("b.yaml")).expect("removed");
        assert!(folder.read_again(false).expect("read"));
        assert_eq!(domains(&folder), ["c"]);
        write(&place.path().join("sub"), "d.yaml", "d");
        assert!(folder.read_again(false).expect("read"));
        assert_eq!(domains(&folder), ["c", "d"]);
        symlink("..", place.path().join("sub/back")).expect("linked");
        folder.read_again(false).expect_err("a link that leads back");
    }

    /// A mounted ConfigMap has a link to a folder of its present version, and a link to each file through it.
    #[test]
    fn a_folder_behind_a_link_is_read_again_when_the_link_is_swapped() {
        let place = tempfile::tempdir().expect("a folder");
        for (version, domain) in [("..1", "one"), ("..2", "two")] {
            fs::create_dir(place.path().join(version)).expect("made");
            write(&place.path().join(version), "a.yaml", domain);
        }
        symlink("..1", place.path().join("..data")).expect("linked");
        symlink("..data/a.yaml", place.path().join("a.yaml")).expect("linked");
        let mut folder = Folder::open(place.path()).expect("read");
        assert_eq!(domains(&folder), ["one"]);
        symlink("..2", place.path().join("..new")).expect("linked");
        fs::rename(place.path().join("..new"), place.path().join("..data")).expect("swapped");
        assert!(folder.read_again(false).expect("read"));
        assert_eq!(domains(&folder), ["two"]);
    }

    #[test]
    fn a_folder_that_is_gone_is_told_once_and_keeps_its_limits() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("config");
        fs::create_dir(&path).expect("made");
        write(&path, "a.yaml", "a");
        let mut folder = Folder::open(&path).expect("read");
        fs::remove_dir_all(&path).expect("removed");
        folder.read_again(false).expect_err("gone");
        assert!(!folder.read_again(false).expect("told before"));
        folder.read_again(true).expect_err("somebody asked");
        assert_eq!(domains(&folder), ["a"]);
        fs::create_dir(&path).expect("made");
        write(&path, "a.yaml", "b");
        assert!(folder.read_again(false).expect("read"));
    }
}
