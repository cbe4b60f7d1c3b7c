//! A cgroup with a small share of the processors, for a log-server that would run on another
//! machine.

use crate::leftovers::PREFIX;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Time of the processors that the group gets while it is limited, and the period, µs.
const QUOTA: (u32, u32) = (5_000, 100_000);

/// Versions of the interface of cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A cgroup named by the process id of the run, removed when dropped. Its processes must have ended
/// by then.
pub(crate) struct Share {
    dir: PathBuf,
    version: Version,
}

impl Share {
    /// Creates the group of a process.
    ///
    /// # Errors
    /// Without root, or without the cpu controller.
    pub(crate) fn around(pid: u32) -> Result<Share> {
        let mounts = std::fs::read_to_string("/proc/mounts").context("/proc/mounts")?;
        for (root, version) in hierarchies(&mounts) {
            remove_old(&root);
            if version == Version::Two {
                let controllers = std::fs::read_to_string(root.join("cgroup.controllers"))?;
                if !controllers.split_whitespace().any(|name| name == "cpu") {
                    continue;
                }
                write(&root.join("cgroup.subtree_control"), "+cpu")?;
            }
            let dir = root.join(format!("{PREFIX}{}", std::process::id()));
            std::fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
            let share = Share { dir, version };
            share.set("cgroup.procs", &pid.to_string())?;
            return Ok(share);
        }
        bail!("no cgroup hierarchy has the cpu controller")
    }

    /// Limits the group to [`QUOTA`] and the least weight, or ends the limit: the process then runs
    /// as usual, and catches up between two measurements.
    pub(crate) fn limit(&self, is_limited: bool) -> Result<()> {
        let (quota, period) = QUOTA;
        let settings = match (self.version, is_limited) {
            (Version::One, true) => {
                let quota = ("cpu.cfs_quota_us", quota.to_string());
                vec![("cpu.shares", "2".into()), ("cpu.cfs_period_us", period.to_string()), quota]
            }
            (Version::One, false) => vec![("cpu.cfs_quota_us", "-1".into()), ("cpu.shares", "1024".into())],
            (Version::Two, true) => {
                vec![("cpu.weight", "1".into()), ("cpu.max", format!("{quota} {period}"))]
            }
            (Version::Two, false) => vec![("cpu.max", format!("max {period}")), ("cpu.weight", "100".into())],
        };
        settings.iter().try_for_each(|(file, value)| self.set(file, value))
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        write(&self.dir.join(file), value)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.dir) {
            eprintln!("{} stays: {error}", self.dir.display());
        }
    }
}

fn write(file: &Path, value: &str) -> Result<()> {
    std::fs::write(file, value).with_context(|| format!("{value} in {}", file.display()))
}

/// Mount points of the hierarchies that may have the cpu controller.
fn hierarchies(mounts: &str) -> Vec<(PathBuf, Version)> {
    let of = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (dir, kind, options) = (words.next()?, words.next()?, words.next()?);
        match kind {
            "cgroup" if options.split(',').any(|option| option == "cpu") => Some((dir.into(), Version::One)),
            "cgroup2" => Some((dir.into(), Version::Two)),
            _ => None,
        }
    };
    mounts.lines().filter_map(of).collect()
}

/// Removes groups of runs that were killed. One that has processes stays.
fn remove_old(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let is_ended = |name: &str| {
            let pid = name.strip_prefix(PREFIX)?.parse::<u32>().ok()?;
            Some(!Path::new(&format!("/proc/{pid}")).exists())
        };
        if entry.file_name().to_str().and_then(is_ended) == Some(true) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let mounts = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        assert_eq!(
            hierarchies(mounts),
            [
                (PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"), Version::One),
                (PathBuf::from("/sys/fs/cgroup/unified"), Version::Two)
            ]
        );
    }
}
