//! Temporary directory for the files of one run.

use std::path::{Path, PathBuf};

/// Path of a directory that does not exist yet. Dropping it removes the directory with its
/// contents.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Returns the path for this target in this thread.
    pub(crate) fn new(target: &str) -> Scratch {
        let thread = format!("{:?}", std::thread::current().id());
        let path = std::env::temp_dir().join(format!("miot-{target}-{}-{thread}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
