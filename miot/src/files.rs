//! Output files.

use anyhow::Context as _;
use std::path::Path;

/// Returns true for a pipe or a device, which cannot be replaced.
pub(crate) fn is_special(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|found| !found.is_file())
}

/// Returns the directory of a file.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Fails if a file cannot be created or replaced, so that a long run does not fail at its end.
pub(crate) fn check_writable(file: &Path) -> anyhow::Result<()> {
    if is_special(file) {
        return Ok(());
    }
    let folder = folder_of(file);
    let made = tempfile::tempfile_in(folder);
    made.map(drop).with_context(|| format!("cannot write into {}", folder.display()))
}
