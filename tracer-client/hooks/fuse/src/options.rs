//! Command line.

use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Examples:
  miot-fuse --allow-other /data /data     record all requests for /data, in place
  miot-fuse -f --cache none /scratch /mnt record every read and write separately
  miot run -- sh -c 'miot-fuse /data /mnt && ./job /mnt; umount /mnt'
                                          record a job into a trace of its own
  umount /mnt                             stop; SIGTERM and SIGINT do the same
  /data  /mnt  fuse.miot-fuse  allow_other,cache=auto  0 0
                                          line in /etc/fstab (package fuse3)

Requests are recorded while a log-client runs ($MIOT_DIR, else /dev/shm/miot). Without one the file system works but \
records nothing. After SIGTERM, open files remain usable and miot-fuse exits when the last one is closed. A second \
signal ends it immediately.

Options of -o: ro, rw, allow_other, cache=..., attr_timeout=SECONDS, threads=N, [no]suid, [no]dev, [no]exec, [no]atime, sync, dirsync, \
fsname=NAME. Options of mount and systemd (defaults, auto, noauto, nofail, _netdev, user, x-...) are accepted and ignored.";

/// Mount a pass-through file system that records every kernel request for a directory
#[derive(Parser, Clone, Debug)]
#[command(name = "miot-fuse", version, after_help = AFTER_HELP)]
pub struct Options {
    /// Source directory
    pub source: PathBuf,
    /// Mount point: SOURCE itself or a directory outside of it
    pub mountpoint: PathBuf,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Allow access by other users, with the permissions of SOURCE
    #[arg(long)]
    pub allow_other: bool,
    /// Mount read-only
    #[arg(long)]
    pub read_only: bool,
    /// Caching by the kernel
    #[arg(long, value_name = "POLICY", default_value = "auto")]
    pub cache: CachePolicy,
    /// Time for which the kernel may cache attributes, instead of that of --cache
    #[arg(long, value_name = "SECONDS", value_parser = attr_timeout)]
    pub attr_timeout: Option<Duration>,
    /// Number of requests served concurrently [default: twice the processors, 4 to 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Mount options as in /etc/fstab, see below
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
}

/// Number of threads that serve requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadCount {
    /// Set by the user; it is not reduced.
    Fixed(usize),
    /// The default; it is reduced if descriptors are scarce.
    UpTo(usize),
}

/// Caching by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CachePolicy {
    /// No caching: every call becomes a request
    None,
    /// Names and attributes for one second, data while a file is open
    #[default]
    Auto,
    /// Everything; for a SOURCE that changes only through this mount
    Always,
}

/// Mount options of `-o` without an option of their own on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountSettings {
    /// Honor set-user-id bits.
    pub suid: bool,
    /// Allow access to devices.
    pub dev: bool,
    /// Do not allow execution of programs.
    pub noexec: bool,
    /// Do not update access times.
    pub noatime: bool,
    /// Write data synchronously.
    pub sync: bool,
    /// Write changes of directories synchronously.
    pub dirsync: bool,
    /// Name in the mount table instead of the source.
    pub fsname: Option<String>,
}

/// A mount option of `-o` that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountOptionError {
    /// The value of `cache` is unknown.
    #[error("-o {0}: expected cache=none, cache=auto or cache=always")]
    Cache(String),
    /// The value of `attr_timeout` is out of range.
    #[error("-o {0}: expected seconds from 0 to 86400, such as 0.5")]
    AttributeTimeout(String),
    /// The value of `threads` is out of range.
    #[error("-o {0}: expected a number from 1 to 1024")]
    Threads(String),
    /// The option is unknown.
    #[error("-o {0}: no such option; see miot-fuse --help")]
    Unknown(String),
}

/// Longest time for which the kernel may cache names and attributes: a day.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The time is negative, too long or not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected seconds from 0 to 86400, such as 0.5")]
struct InvalidTimeout;

fn attr_timeout(seconds: &str) -> Result<Duration, InvalidTimeout> {
    let seconds = seconds.parse().map_err(|_| InvalidTimeout)?;
    let timeout = Duration::try_from_secs_f64(seconds).map_err(|_| InvalidTimeout)?;
    if timeout <= MAX_TIMEOUT { Ok(timeout) } else { Err(InvalidTimeout) }
}

/// Times for which the kernel may cache what a reply contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheTimes {
    pub(crate) names: Duration,
    pub(crate) attributes: Duration,
}

impl Options {
    /// Returns the times for which the kernel may cache names and attributes.
    pub(crate) fn cache_times(&self) -> CacheTimes {
        let names = match self.cache {
            CachePolicy::None => Duration::ZERO,
            CachePolicy::Auto => Duration::from_secs(1),
            CachePolicy::Always => MAX_TIMEOUT,
        };
        CacheTimes { names, attributes: self.attr_timeout.unwrap_or(names) }
    }

    /// Moves the options of `-o` to the other options, and returns those that have none.
    ///
    /// # Errors
    /// If an option is unknown or its value is invalid.
    pub fn apply_mount_options(&mut self) -> Result<MountSettings, MountOptionError> {
        let mut settings = MountSettings::default();
        for option in std::mem::take(&mut self.options) {
            let (key, value) = option.split_once('=').unwrap_or((&option, ""));
            match (key, value) {
                ("ro", "") => self.read_only = true,
                ("rw", "") => self.read_only = false,
                ("allow_other", "") => self.allow_other = true,
                ("cache", policy) => {
                    let policy = CachePolicy::from_str(policy, false);
                    self.cache = policy.map_err(|_| MountOptionError::Cache(option.clone()))?;
                }
                ("attr_timeout", seconds) => {
                    let timeout = attr_timeout(seconds);
                    self.attr_timeout =
                        Some(timeout.map_err(|_| MountOptionError::AttributeTimeout(option.clone()))?);
                }
                ("threads", n) => {
                    let number = n.parse().ok().filter(|n| (1..=1024).contains(n));
                    self.threads = Some(number.ok_or(MountOptionError::Threads(option.clone()))?);
                }
                ("suid", "") => settings.suid = true,
                ("nosuid", "") => settings.suid = false,
                ("dev", "") => settings.dev = true,
                ("nodev", "") => settings.dev = false,
                ("exec", "") => settings.noexec = false,
                ("noexec", "") => settings.noexec = true,
                ("atime", "") => settings.noatime = false,
                ("noatime", "") => settings.noatime = true,
                ("sync", "") => settings.sync = true,
                ("dirsync", "") => settings.dirsync = true,
                ("fsname", name) if !name.is_empty() => settings.fsname = Some(name.to_owned()),
                (
                    ""
                    | "defaults"
                    | "default_permissions"
                    | "auto"
                    | "noauto"
                    | "nofail"
                    | "_netdev"
                    | "user"
                    | "nouser"
                    | "users"
                    | "owner"
                    | "group"
                    | "relatime"
                    | "async"
                    | "subtype",
                    _,
                ) => {}
                (ignored, _) if ignored.starts_with("x-") => {}
                _ => return Err(MountOptionError::Unknown(option)),
            }
        }
        Ok(settings)
    }

    /// Returns the number of threads that serve requests.
    #[must_use]
    pub fn threads(&self) -> ThreadCount {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let default = ThreadCount::UpTo((2 * processors).clamp(4, 16));
        self.threads.map_or(default, |threads| ThreadCount::Fixed(threads.into()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn options(words: &[&str]) -> Options {
        Options::parse_from(["miot-fuse", "/a", "/b"].iter().chain(words))
    }

    #[test]
    fn mount_options_set_the_command_line_options() {
        let mut given = options(&[
            "-o",
            "ro,allow_other,cache=none,attr_timeout=0.004,threads=3,suid,noexec,x-systemd.automount,nofail",
        ]);
        let settings = given.apply_mount_options().unwrap();
        assert!(given.read_only && given.allow_other);
        assert!(settings.suid && settings.noexec && !settings.dev);
        assert_eq!((given.cache, given.threads()), (CachePolicy::None, ThreadCount::Fixed(3)));
        let times = CacheTimes { names: Duration::ZERO, attributes: Duration::from_millis(4) };
        assert_eq!(given.cache_times(), times);
    }

    #[test]
    fn unknown_mount_options_are_refused() {
        for wrong in [
            "cache=some",
            "attr_timeout=-1",
            "attr_timeout=nan",
            "attr_timeout=86401",
            "threads=0",
            "threads=x",
            "allow_root",
            "fsname=",
        ] {
            let error = options(&["-o", wrong]).apply_mount_options().unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
