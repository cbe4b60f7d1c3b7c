//! An empty place for the files of one run.

use std::path::{Path, PathBuf};

/// Removed with all that is in it when it is dropped. Nothing is there until somebody makes it.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// The place of this target in this thread.
    pub(crate) fn new(target: &str) -> Scratch {
        let thread = format!("{:?}", std::thread::current().id());
        let place = std::env::temp_dir().join(format!("miot-{target}-{}-{thread}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        Scratch(place)
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
