//! Scratch folders, and leftovers of interrupted runs in them.
//!
//! The name of a folder contains the process id of its run. When that process has ended, the
//! following are removed: mounts below the folder, loop devices of files in it, daemons that were
//! started with a path in it, and the folder itself.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Prefix of the name of every scratch folder and cgroup.
pub(crate) const PREFIX: &str = "miot-bench-";

/// Creates a scratch folder.
pub(crate) fn scratch(parent: &Path) -> Result<tempfile::TempDir> {
    let prefix = format!("{PREFIX}{}-", std::process::id());
    tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir_in(parent)
        .with_context(|| format!("a folder in {}", parent.display()))
}

/// Removes leftovers of ended runs whose results went to `out`, or to a folder in it.
pub(crate) fn remove(out: &Path) {
    let nested = std::fs::read_dir(out).into_iter().flatten().flatten().map(|entry| entry.path());
    let parents = [PathBuf::from("/dev/shm"), out.to_path_buf()].into_iter().chain(nested);
    let found = parents.flat_map(|parent| std::fs::read_dir(parent).into_iter().flatten().flatten());
    for folder in found.map(|entry| entry.path()).filter(|path| owner(path).is_some_and(is_gone)) {
        eprintln!("miot-bench: removing {} of a run that was cut off", folder.display());
        end_processes(&folder);
        unmount_below(&folder);
        detach_below(&folder);
        if let Err(error) = std::fs::remove_dir_all(&folder) {
            eprintln!("miot-bench: {}: {error}", folder.display());
        }
    }
}

/// Returns the process id in the name of a scratch folder.
fn owner(folder: &Path) -> Option<u32> {
    folder.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

fn is_gone(pid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim() != "miot-bench"
}

/// Processes with a path below the folder among their arguments.
fn processes_of(folder: &Path) -> Vec<libc::pid_t> {
    let text = folder.as_os_str().as_encoded_bytes();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| {
        let arguments = std::fs::read(entry.path().join("cmdline")).ok()?;
        arguments.windows(text.len()).any(|part| part == text).then_some(())?;
        entry.file_name().to_str()?.parse().ok()
    })
    .collect()
}

fn end_processes(folder: &Path) {
    let started = Instant::now();
    loop {
        let pids = processes_of(folder);
        if pids.is_empty() || started.elapsed() > Duration::from_secs(20) {
            return;
        }
        let late = started.elapsed() > Duration::from_secs(10);
        for pid in pids {
            // SAFETY: sends a signal to a process that was just identified as one of the
            // benchmark's.
            unsafe { libc::kill(pid, if late { libc::SIGKILL } else { libc::SIGTERM }) };
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn unmount_below(folder: &Path) {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let below = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|at| Path::new(at).starts_with(folder));
    for at in below {
        // Unmount at once if possible, otherwise when the last user has ended.
        let done =
            |flags: &[&str]| Command::new("umount").args(flags).arg(at).status().is_ok_and(|s| s.success());
        if !done(&[]) && !done(&["--lazy"]) {
            eprintln!("miot-bench: {at} stays mounted");
        }
    }
}

fn detach_below(folder: &Path) {
    let list =
        Command::new("losetup").args(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]).output();
    let list = list.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for (device, file) in list.lines().filter_map(|line| line.trim().split_once(char::is_whitespace)) {
        if Path::new(file.trim()).starts_with(folder) {
            let _ = Command::new("losetup").arg("--detach").arg(device).status();
        }
    }
}
