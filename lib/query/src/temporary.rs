//! Temporary files. They are removed even if a signal ends the process while its threads write
//! them.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tempfile::{Builder, NamedTempFile};

static MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Maximum number of attempts to remove a directory in which the engine still creates files.
const ATTEMPTS: usize = 100;

fn note(path: &Path) {
    MADE.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
}

/// Creates a directory for data that does not fit in memory.
pub(crate) fn folder(within: &Path) -> io::Result<PathBuf> {
    let folder = Builder::new().prefix("miot-query-").tempdir_in(within)?.keep();
    note(&folder);
    Ok(folder)
}

/// Creates a file that is renamed later.
pub(crate) fn file(builder: &Builder<'_, '_>, within: &Path) -> io::Result<NamedTempFile> {
    builder.tempfile_in(within).inspect(|file| note(file.path()))
}

/// Removes the remaining temporary files.
pub(crate) fn remove() {
    for path in MADE.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let remove =
            || if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        let again = |error: io::Error| error.kind() == ErrorKind::DirectoryNotEmpty;
        (0..ATTEMPTS).take_while(|_| remove().is_err_and(again)).count();
    }
}
