//! Cgroups that limit the time of the processors, for log-servers that would run on other machines.

use crate::leftovers::PREFIX;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Period of a quota, µs.
const PERIOD: u32 = 100_000;
/// Quota of a log-server apart.
const APART: Quota = Quota(5_000);

/// Time of the processors in each period of 100 ms, µs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota(pub(crate) u32);

impl Quota {
    /// The quota as a share of one processor.
    pub(crate) fn share(self) -> f64 {
        f64::from(self.0) / f64::from(PERIOD)
    }
}

/// Versions of the interface of cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A cgroup named by the process ids of the run and of its process, removed when dropped. Its
/// processes must have ended by then.
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
            let dir = root.join(format!("{PREFIX}{}-{pid}", std::process::id()));
            std::fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
            let share = Share { dir, version };
            share.set("cgroup.procs", &pid.to_string())?;
            return Ok(share);
        }
        bail!("no cgroup hierarchy has the cpu controller")
    }

    /// Limits the group to [`APART`] and the least weight, or ends the limit: the process then runs
    /// as usual, and catches up between two measurements.
    pub(crate) fn limit(&self, is_limited: bool) -> Result<()> {
        let (file, least, usual) = match self.version {
            Version::One => ("cpu.shares", "2", "1024"),
            Version::Two => ("cpu.weight", "1", "100"),
        };
        self.set(file, if is_limited { least } else { usual })?;
        self.set_quota(is_limited.then_some(APART))
    }

    /// Limits the time of the processors, or ends the limit.
    pub(crate) fn set_quota(&self, quota: Option<Quota>) -> Result<()> {
        match self.version {
            Version::One => {
                self.set("cpu.cfs_period_us", &PERIOD.to_string())?;
                self.set("cpu.cfs_quota_us", &quota.map_or("-1".into(), |Quota(time)| time.to_string()))
            }
            Version::Two => {
                let quota = quota.map_or("max".into(), |Quota(time)| time.to_string());
                self.set("cpu.max", &format!("{quota} {PERIOD}"))
            }
        }
    }

    /// Returns the number of periods so far in which the group ran, and the number of those in
    /// which the quota stopped it.
    pub(crate) fn throttled(&self) -> Result<Periods> {
        let path = self.dir.join("cpu.stat");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Periods::parse(&text).with_context(|| format!("{}: {text}", path.display()))
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        write(&self.dir.join(file), value)
    }
}

/// Periods of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Periods {
    /// Periods in which the group ran.
    pub(crate) all: u64,
    /// Periods in which the quota stopped the group.
    pub(crate) throttled: u64,
}

impl Periods {
    fn parse(stat: &str) -> Option<Periods> {
        let number = |key: &str| stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
        Some(Periods { all: number("nr_periods ")?, throttled: number("nr_throttled ")? })
    }

    /// Returns the share of the periods since `before` in which the quota stopped the group.
    pub(crate) fn throttled_since(self, before: Periods) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.throttled.saturating_sub(before.throttled) as f64 / all as f64
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
            let pid = name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok()?;
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

    #[test]
    fn throttled_periods_are_those_of_both_versions() {
        let before = Periods { all: 10, throttled: 2 };
        for stat in [
            "nr_periods 30\nnr_throttled 17\nthrottled_time 5\n",
            "usage_usec 7\nnr_periods 30\nnr_throttled 17\nthrottled_usec 5\n",
        ] {
            let now = Periods { all: 30, throttled: 17 };
            assert_eq!(Periods::parse(stat), Some(now));
            assert!((now.throttled_since(before) - 0.75).abs() < 1e-9);
        }
        assert_eq!(Periods::parse("usage_usec 7\n"), None);
    }
}
