//! Checks that an open file is still the file at its path.

use crate::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Checks that `path` still names the open file, and that the file has at least `bytes` bytes.
///
/// # Errors
/// [`Error::Replaced`] if the file or a folder above it was deleted, renamed or replaced, or the
/// file was truncated; [`Error::Io`].
pub(crate) fn check(file: &File, path: &Path, bytes: u64) -> Result<(), Error> {
    let replaced = |what: String| Err(Error::Replaced { path: path.to_owned(), what });
    let open = file.metadata().map_err(Error::io("read the attributes of", path))?;
    if open.nlink() == 0 {
        return replaced("it was deleted".to_owned());
    }
    let named = match fs::symlink_metadata(path) {
        Ok(named) => named,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return replaced("it, or a folder above it, was renamed".to_owned());
        }
        Err(e) => return Err(Error::io("read the attributes of", path)(e)),
    };
    if (named.dev(), named.ino()) != (open.dev(), open.ino()) {
        return replaced("another file has its name".to_owned());
    }
    if open.len() < bytes {
        return replaced(format!("it has {} of {bytes} bytes", open.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn deleted_renamed_and_replaced_files_are_detected() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, other) = (dir.path().join("folder"), dir.path().join("other"));
        let path = folder.join("file");
        let fresh = || {
            let _ = (fs::remove_dir_all(&folder), fs::remove_dir_all(&other));
            fs::create_dir(&folder).unwrap();
            fs::write(&path, "12345").unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            check(&file, &path, 5).unwrap();
            file
        };
        let reason = |file: &File| match check(file, &path, 5).unwrap_err() {
            Error::Replaced { what, .. } => what,
            other => panic!("{other}"),
        };
        let file = fresh();
        fs::remove_file(&path).unwrap();
        assert_eq!(reason(&file), "it was deleted");
        let file = fresh();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(reason(&file), "it was deleted");
        let file = fresh();
        fs::rename(&folder, &other).unwrap();
        assert!(reason(&file).contains("renamed"));
        let file = fresh();
        fs::hard_link(&path, folder.join("kept")).unwrap();
        fs::write(folder.join("new"), "12345").unwrap();
        fs::rename(folder.join("new"), &path).unwrap();
        assert!(reason(&file).contains("another file"));
        let file = fresh();
        fs::write(&path, "").unwrap();
        assert_eq!(reason(&file), "it has 0 of 5 bytes");
    }
}
