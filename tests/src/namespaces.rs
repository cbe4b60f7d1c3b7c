//! Network and mount namespaces of a test. Nothing outside sees them, and they disappear with the
//! test.
//!
//! They need root or user namespaces.

use crate::process::{Ended, run};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Namespaces that other programs can enter.
#[derive(Debug)]
pub struct Namespaces {
    kinds: &'static [&'static str],
    /// Process that keeps the namespaces. It ends when its standard input closes, so with the test.
    keeper: Child,
}

impl Namespaces {
    /// Creates namespaces of these kinds, given as options of `unshare` and `nsenter`. With
    /// `--net`, loopback is down. With `--mount`, the mounts are a copy of those outside. Prints a
    /// message and returns `None` where this is not permitted.
    #[must_use]
    pub fn new(kinds: &'static [&'static str]) -> Option<Namespaces> {
        let mut unshare = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            unshare.arg("--map-root-user");
        }
        unshare.args(kinds).args(["sh", "-c", "echo ready; exec cat"]);
        let keeper = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let namespaces = keeper.ok().map(|keeper| Namespaces { kinds, keeper }).and_then(|mut namespaces| {
            let mut line = String::new();
            BufReader::new(namespaces.keeper.stdout.take()?).read_line(&mut line).ok()?;
            (line == "ready\n").then_some(namespaces)
        });
        if namespaces.is_none() {
            eprintln!(
                "NOT TESTED: this machine allows no namespaces (root, or unprivileged user namespaces, are needed)"
            );
        }
        namespaces
    }

    /// Id of the process inside.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.keeper.id()
    }

    /// Returns the command that runs `command` inside, in the same process.
    #[must_use]
    pub fn inside(&self, command: &Command) -> Command {
        let mut nsenter = Command::new("nsenter");
        nsenter.arg("--target").arg(self.id().to_string()).args(self.kinds);
        if !rustix::process::geteuid().is_root() {
            nsenter.args(["--user", "--preserve-credentials"]);
        }
        nsenter.arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => nsenter.env(name, value),
                None => nsenter.env_remove(name),
            };
        }
        nsenter
    }

    /// Runs a line of shell inside.
    ///
    /// # Panics
    /// If it fails.
    pub fn shell(&self, line: &str) -> Ended {
        run(&mut self.inside(Command::new("sh").args(["-ec", line]))).success()
    }

    /// Mounts a small file system inside, at an existing folder.
    pub fn mount(&self, folder: &Path, size: &str) {
        self.shell(&format!("mount -t tmpfs -o size={size} tmpfs '{}'", folder.display()));
    }

    /// Path of a folder inside, as seen from outside.
    #[must_use]
    pub fn seen(&self, folder: &Path) -> PathBuf {
        let inside = folder.strip_prefix("/").unwrap_or(folder);
        Path::new("/proc").join(self.id().to_string()).join("root").join(inside)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Free bytes of a file system.
///
/// # Panics
/// If the file system cannot be queried.
#[must_use]
pub fn free(folder: &Path) -> u64 {
    let there = rustix::fs::statvfs(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    there.f_bavail * there.f_frsize
}

/// Fills a file system with a file until about `leave` bytes remain. Other writers may take more.
///
/// # Errors
/// If the file cannot be created.
pub fn fill(folder: &Path, leave: u64) -> io::Result<PathBuf> {
    let path = folder.join("ballast");
    let mut file = File::create(&path)?;
    let block = vec![1; 64 << 10];
    while free(folder) > leave + block.len() as u64 {
        match file.write_all(&block) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
            written => written?,
        }
    }
    Ok(path)
}
