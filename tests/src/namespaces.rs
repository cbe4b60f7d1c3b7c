//! Namespaces of a test's own: networks and mounts that nothing outside sees, and that are gone
//! when the test is.
//!
//! Needs root, or user namespaces.

use crate::process::{Ended, run};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Namespaces that other programs can enter.
#[derive(Debug)]
pub struct Namespaces {
    kinds: &'static [&'static str],
    /// Keeps the namespaces; ends when its input does, so with the test.
    keeper: Child,
}

impl Namespaces {
    /// Namespaces of these kinds, as options of `unshare` and `nsenter`: with `--net` the loopback
    /// is down, with `--mount` the mounts are as outside. Returns `None`, with a message, where
    /// that is not allowed.
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

    /// The process that is inside.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.keeper.id()
    }

    /// The same command, inside. Its process is the command itself.
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

    /// A small file system inside, at a folder that is there.
    pub fn mount(&self, folder: &Path, size: &str) {
        self.shell(&format!("mount -t tmpfs -o size={size} tmpfs '{}'", folder.display()));
    }

    /// Where the folder is found from outside.
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

/// Bytes that are free in a file system.
///
/// # Panics
/// If it cannot be asked.
#[must_use]
pub fn free(folder: &Path) -> u64 {
    let there = rustix::fs::statvfs(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    there.f_bavail * there.f_frsize
}

/// A file that takes all but `leave` bytes, or what there is: others write as well.
///
/// # Errors
/// If it cannot be made.
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
