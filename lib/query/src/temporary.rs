//! Temporary files, which are removed even if a signal ends the process while its threads write them.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tempfile::{Builder, NamedTempFile};

static MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// How often a folder is tried to be emptied in which the engine makes files meanwhile.
const ATTEMPTS: usize = 100;

fn note(path: &Path) {
    MADE.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
}

/// A folder for what does not fit into memory.
pub(crate) fn folder(within: &Path) -> io::Result<PathBuf> {
    let folder = Builder::new().prefix("miot-query-").tempdir_in(within)?.keep();
    note(&folder);
    Ok(folder)
}

/// A file that is to get its name later.
pub(crate) fn file(builder: &Builder<'_, '_>, within: &Path) -> io::Result<NamedTempFile> {
    builder.tempfile_in(within).inspect(|file| note(file.path()))
}

/// Removes what is left of them.
pub(crate) fn remove() {
    for path in MADE.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let remove =
            || if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        let again = |error: io::Error| error.kind() == ErrorKind::DirectoryNotEmpty;
        (0..ATTEMPTS).take_while(|_| remove().is_err_and(again)).count();
    }
}
