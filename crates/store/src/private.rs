//! Files that only their owner may read: a journal holds the keys of callers.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use tracing::warn;

/// For the owner alone.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// What anybody else of the machine may do.
const OTHERS: u32 = 0o007;
/// What anybody but the owner may do.
const NOT_OWNER: u32 = 0o077;

/// Makes a folder and those above it, where they are missing, for their owner alone (0700). A folder that is there stays as
/// it is: whoever made it chose who may enter it.
///
/// # Errors
/// What the system says.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Opens or makes a file for its owner alone (0600), also where it was there before and others could read it. A file that belongs to
/// somebody else stays as it is.
///
/// # Errors
/// What the system says.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.mode(FILE_MODE).open(path)?;
    let mode = file.metadata()?.permissions().mode();
    if mode & NOT_OWNER != 0 {
        let closed = file.set_permissions(Permissions::from_mode(mode & !NOT_OWNER));
        if let Err(fault) = closed {
            warn!(path = %path.display(), %fault, "others may read this file, and it cannot be closed to them: chmod 600");
        }
    }
    Ok(file)
}

/// Whether every user of this machine may read a file, or replace it. Not so for one that cannot be found.
pub fn is_open_to_all(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & OTHERS != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o777
    }

    #[test]
    fn what_is_made_is_for_its_owner_and_what_was_there_becomes_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("a/b");
        create_folder(&inner).expect("made");
        assert_eq!((mode(&folder.path().join("a")), mode(&inner)), (0o700, 0o700));
        let path = inner.join("file");
        open(File::options().write(true).create(true), &path).expect("made");
        assert_eq!(mode(&path), 0o600);

        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        assert!(is_open_to_all(&path));
        open(File::options().read(true), &path).expect("opened");
        assert_eq!(mode(&path), 0o600);
        assert!(!is_open_to_all(&path) && !is_open_to_all(&inner.join("none")));

        fs::set_permissions(&inner, Permissions::from_mode(0o750)).expect("set");
        create_folder(&inner).expect("there");
        assert_eq!(mode(&inner), 0o750, "an operator's choice stays");
    }
}
