//! A mount of miot-fuse for a test, unmounted even if the test fails.

use miot_tests::built::built;
use miot_tests::process::{Background, until};
use miot_tests::test_dir::fresh;
use rustix::mount::{UnmountFlags, unmount};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Two directories of a test. The second is the mount point.
#[derive(Debug)]
pub(crate) struct MountDirs {
    pub(crate) dir: PathBuf,
    pub(crate) source: PathBuf,
    pub(crate) mount: PathBuf,
}

impl MountDirs {
    pub(crate) fn new(name: &str) -> MountDirs {
        // Unmount the leftovers of an earlier run that was killed.
        let test = std::env::current_exe().unwrap_or_default();
        let left = test.ancestors().nth(3).unwrap_or(Path::new("/")).join("tmp").join(name).join("mount");
        while unmount(&left, UnmountFlags::DETACH).is_ok() {}
        let dir = fresh(name);
        let place = MountDirs { source: dir.join("source"), mount: dir.join("mount"), dir };
        fs::create_dir(&place.source).unwrap();
        fs::create_dir(&place.mount).unwrap();
        place
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let at = format!(" {} ", self.mount.display());
        table.lines().any(|line| line.contains(&at) && line.contains("- fuse.miot-fuse "))
    }

    /// Mounts in a separate foreground process.
    pub(crate) fn mounted(self, options: &[&str]) -> Mounted {
        self.mounted_by(&[], options)
    }

    /// Like [`MountDirs::mounted`], through a program that starts another one with fewer rights or
    /// resources.
    pub(crate) fn mounted_by(self, starter: &[&str], options: &[&str]) -> Mounted {
        let program = built().folder.join("miot-fuse");
        let mut words = starter.iter().map(OsStr::new).chain([program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        command.args(["-f", "--allow-other"]).args(options).arg(&self.source).arg(&self.mount);
        let mut server = Background::start(&mut command);
        until("mounted", || self.is_mounted() || !server.running());
        assert!(self.is_mounted(), "{}", server.printed());
        Mounted { server: Some(server), place: self }
    }
}

impl Drop for MountDirs {
    fn drop(&mut self) {
        while self.is_mounted() && unmount(&self.mount, UnmountFlags::DETACH).is_ok() {}
    }
}

#[derive(Debug)]
pub(crate) struct Mounted {
    server: Option<Background>,
    pub(crate) place: MountDirs,
}

impl Mounted {
    /// Unmounts and checks that the program ends without an error.
    pub(crate) fn end(mut self) {
        let mut server = self.server.take().unwrap();
        unmount(&self.place.mount, UnmountFlags::empty())
            .unwrap_or_else(|e| panic!("{e}: {}", server.printed()));
        until("miot-fuse ends with its mount", || !server.running());
        assert_eq!(server.printed(), "");
    }

    /// Id of the process that serves the mount.
    pub(crate) fn id(&self) -> u32 {
        self.server.as_ref().unwrap().id()
    }

    pub(crate) fn server(&mut self) -> Background {
        self.server.take().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.place.mount, UnmountFlags::DETACH);
    }
}

/// Command that runs a shell script in a directory.
pub(crate) fn shell(directory: &Path, script: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("sh");
    command.arg("-ec").arg(script).current_dir(directory);
    command
}
