//! The command line.

use clap::{Parser, ValueEnum};
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  miot-fuse --allow-other /data /data     put /data under the tracer, in place
  miot-fuse -f --cache none /scratch /mnt every read and write, one by one
  miot run -- sh -c 'miot-fuse /data /mnt && ./job /mnt; umount /mnt'
                                          a trace of its own
  umount /mnt                             ends it; so do SIGTERM and SIGINT
  /data  /mnt  fuse.miot-fuse  allow_other,cache=auto  0 0
                                          in /etc/fstab (package fuse3)

Requests are recorded where a log-client works ($MIOT_DIR, else /dev/shm/miot); without one the file system works all \
the same. After SIGTERM files that are open can still be used, and miot-fuse ends with the last of them; a second signal \
ends it at once.

Options of -o: ro, rw, allow_other, cache=..., threads=N; suid, dev, exec, atime, sync and dirsync, with no before the first four; \
fsname=NAME. Those of mount and systemd (defaults, auto, noauto, nofail, _netdev, user, x-...) are accepted and mean nothing here.";

/// Show a directory as a file system that records what the kernel asks
#[derive(Parser, Clone, Debug)]
#[command(name = "miot-fuse", version, after_help = AFTER_HELP)]
pub struct Options {
    /// The directory to show
    pub source: PathBuf,
    /// The directory to show it at; may be SOURCE itself, but not be in it
    pub mountpoint: PathBuf,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Other users may use it, too; what they may do is decided as in SOURCE
    #[arg(long)]
    pub allow_other: bool,
    /// Nothing can be changed
    #[arg(long)]
    pub read_only: bool,
    /// What the kernel may remember
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub cache: Cache,
    /// Requests that are served at the same time [default: twice the processors, 4 to 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Options as in /etc/fstab, see below
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
}

/// What the kernel may remember.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    /// Nothing: every call becomes requests of its own
    None,
    /// Names and attributes for a second, data while a file is open
    #[default]
    Auto,
    /// Everything, where nobody else changes SOURCE
    Always,
}

/// Flags of the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Honour set-user-id bits.
    pub suid: bool,
    /// Devices can be opened.
    pub dev: bool,
    /// Nothing can be run.
    pub noexec: bool,
    /// Access times stay.
    pub noatime: bool,
    /// Everything is written at once.
    pub sync: bool,
    /// Changes of directories are.
    pub dirsync: bool,
    /// What the mount table says in the place of the source.
    pub fsname: Option<String>,
}

impl Options {
    /// Puts what `-o` says into the other options, and gives the rest of it.
    ///
    /// # Errors
    /// What is not known or not well formed.
    pub fn settle(&mut self) -> Result<Flags, String> {
        let mut flags = Flags::default();
        for option in std::mem::take(&mut self.options) {
            let (key, value) = option.split_once('=').unwrap_or((&option, ""));
            match (key, value) {
                ("ro", "") => self.read_only = true,
                ("rw", "") => self.read_only = false,
                ("allow_other", "") => self.allow_other = true,
                ("cache", how) => {
                    self.cache = Cache::from_str(how, false).map_err(|_| {
                        format!("-o {option}: expected cache=none, cache=auto or cache=always")
                    })?
                }
                ("threads", n) => {
                    let number = n.parse().ok().filter(|n| (1..=1024).contains(n));
                    self.threads =
                        Some(number.ok_or(format!("-o {option}: expected a number from 1 to 1024"))?);
                }
                ("suid", "") => flags.suid = true,
                ("nosuid", "") => flags.suid = false,
                ("dev", "") => flags.dev = true,
                ("nodev", "") => flags.dev = false,
                ("exec", "") => flags.noexec = false,
                ("noexec", "") => flags.noexec = true,
                ("atime", "") => flags.noatime = false,
                ("noatime", "") => flags.noatime = true,
                ("sync", "") => flags.sync = true,
                ("dirsync", "") => flags.dirsync = true,
                ("fsname", name) if !name.is_empty() => flags.fsname = Some(name.to_owned()),
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
                _ => return Err(format!("-o {option}: no such option; see miot-fuse --help")),
            }
        }
        Ok(flags)
    }

    /// Threads that serve requests.
    #[must_use]
    pub fn threads(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.threads.map_or((2 * processors).clamp(4, 16), usize::from)
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
    fn options_of_fstab_are_those_of_the_command_line() {
        let mut given =
            options(&["-o", "ro,allow_other,cache=none,threads=3,suid,noexec,x-systemd.automount,nofail"]);
        let flags = given.settle().unwrap();
        assert!(given.read_only && given.allow_other && flags.suid && flags.noexec && !flags.dev);
        assert_eq!((given.cache, given.threads()), (Cache::None, 3));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for wrong in ["cache=some", "threads=0", "threads=x", "allow_root", "fsname="] {
            let said = options(&["-o", wrong]).settle().unwrap_err();
            assert!(said.contains(wrong), "{said}");
        }
    }
}
