//! A file system whose writes can be made to wait.

use crate::process::run;
use rustix::mount::{UnmountFlags, unmount};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted ext4 of 16 MiB; thawed and unmounted when dropped. Needs root.
#[derive(Debug)]
pub struct FrozenExt4(PathBuf);

impl FrozenExt4 {
    /// Makes a file system in the file `image` and mounts it at the directory `at`.
    #[must_use]
    pub fn mount(image: &Path, at: &Path) -> FrozenExt4 {
        let script = "truncate -s 16M \"$1\" && mkfs.ext4 -q \"$1\" && mount -o loop \"$1\" \"$2\"";
        let _ = run(Command::new("sh").args(["-ec", script, "sh"]).arg(image).arg(at)).success();
        FrozenExt4(at.to_owned())
    }

    /// Makes writes wait.
    pub fn freeze(&self) {
        self.set("--freeze");
    }

    /// Lets writes go on.
    pub fn thaw(&self) {
        self.set("--unfreeze");
    }

    fn set(&self, word: &str) {
        let _ = run(Command::new("fsfreeze").arg(word).arg(&self.0));
    }
}

impl Drop for FrozenExt4 {
    fn drop(&mut self) {
        self.thaw();
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}
