//! Is an open file still the one that its name stands for?

use crate::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Checks that a file is there under its name, and is as long as it was written.
///
/// # Errors
/// [`Error::Gone`] if it was deleted, renamed, replaced or cut, or a folder above it was; [`Error::Io`].
pub(crate) fn check(file: &File, path: &Path, bytes: u64) -> Result<(), Error> {
    let gone = |what: String| Err(Error::Gone { path: path.to_owned(), what });
    let open = file.metadata().map_err(Error::io("look at", path))?;
    if open.nlink() == 0 {
        return gone("it was deleted".to_owned());
    }
    let named = match fs::symlink_metadata(path) {
        Ok(named) => named,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return gone("it, or a folder above it, was renamed".to_owned());
        }
        Err(e) => return Err(Error::io("look at", path)(e)),
    };
    if (named.dev(), named.ino()) != (open.dev(), open.ino()) {
        return gone("another file has its name".to_owned());
    }
    if open.len() < bytes {
        return gone(format!("it has {} of {bytes} bytes", open.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_happens_to_a_file_under_its_writer_is_seen() {
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
        let said = |file: &File| match check(file, &path, 5).unwrap_err() {
            Error::Gone { what, .. } => what,
            other => panic!("{other}"),
        };
        let file = fresh();
        fs::remove_file(&path).unwrap();
        assert_eq!(said(&file), "it was deleted");
        let file = fresh();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(said(&file), "it was deleted");
        let file = fresh();
        fs::rename(&folder, &other).unwrap();
        assert!(said(&file).contains("renamed"));
        let file = fresh();
        fs::hard_link(&path, folder.join("kept")).unwrap();
        fs::write(folder.join("new"), "12345").unwrap();
        fs::rename(folder.join("new"), &path).unwrap();
        assert!(said(&file).contains("another file"));
        let file = fresh();
        fs::write(&path, "").unwrap();
        assert_eq!(said(&file), "it has 0 of 5 bytes");
    }
}
