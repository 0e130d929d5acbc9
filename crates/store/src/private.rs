//! Files that only their owner may read, since a journal holds keys of callers.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use tracing::warn;

/// Rights for the owner alone.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// The rights of all users besides the owner and the group.
const OTHERS: u32 = 0o007;
/// The rights of all users besides the owner.
const NOT_OWNER: u32 = 0o077;

/// Makes a folder and its missing parents, for the owner alone (0700). An existing folder stays as it is: its
/// maker chose who may enter.
///
/// # Errors
/// The system's error.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Opens or makes a file for its owner alone (0600), even if it existed and others could read it. A file of
/// another owner stays as it is.
///
/// # Errors
/// The system's error.
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

/// Whether every user of this machine may read or replace a file. `false` if the file cannot be found.
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
    fn new_and_existing_files_are_made_private_to_their_owner() {
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
