//! Mounting, serving, and ending.

use crate::Passthrough;
use crate::descriptors::Budget;
use crate::options::{Flags, Options};
use anyhow::{Context as _, Error, bail, ensure};
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What the mount table calls a file system of this.
const TYPE: &str = "fuse.miot-fuse";
const DEVICE: &str = "/dev/fuse";

/// The two directories, as they are.
#[derive(Clone, Debug)]
pub struct Places {
    source: PathBuf,
    mountpoint: PathBuf,
}

impl Places {
    /// # Errors
    /// If they cannot be mounted so, with what to do.
    pub fn of(options: &Options) -> anyhow::Result<Places> {
        let places = Places {
            source: directory(&options.source, "SOURCE")?,
            mountpoint: directory(&options.mountpoint, "MOUNTPOINT")?,
        };
        let Places { source, mountpoint } = &places;
        ensure!(
            !is_mounted(mountpoint),
            "{}: miot-fuse is mounted there already: umount it first",
            mountpoint.display()
        );
        ensure!(
            source == mountpoint || !mountpoint.starts_with(source),
            "MOUNTPOINT {} is in SOURCE {}, so that the file system would contain itself: name a directory outside, or SOURCE itself",
            mountpoint.display(),
            source.display()
        );
        Ok(places)
    }
}

fn directory(path: &Path, role: &str) -> anyhow::Result<PathBuf> {
    let shown = path.display();
    let found = path.canonicalize().and_then(|found| Ok((found.metadata()?.is_dir(), found)));
    match found {
        Ok((true, found)) => Ok(found),
        Ok((false, _)) => bail!("{role} {shown} is not a directory: name one"),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            bail!("{role} {shown} is left from a file system whose program has died: umount {shown}")
        }
        Err(error) => {
            Err(error).with_context(|| format!("{role} {shown} cannot be used: name a directory that exists"))
        }
    }
}

fn is_mounted(mountpoint: &Path) -> bool {
    is_ours(&std::fs::read("/proc/self/mountinfo").unwrap_or_default(), mountpoint)
}

/// Whether a table in the form of `/proc/self/mountinfo` has a miot-fuse on top of this directory.
fn is_ours(table: &[u8], mountpoint: &Path) -> bool {
    let mut ours = false;
    for line in table.split(|byte| *byte == b'\n') {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let Some(kind) = words.iter().position(|word| *word == b"-").and_then(|dash| words.get(dash + 1))
        else {
            continue;
        };
        if words.get(4).is_some_and(|at| unescaped(at) == mountpoint.as_os_str().as_bytes()) {
            // Later lines are mounted over earlier ones.
            ours = *kind == TYPE.as_bytes();
        }
    }
    ours
}

/// `\040` and the like are bytes.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = word;
    while let [first, after @ ..] = rest {
        let octal =
            after.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) if *first == b'\\' => (out.push(byte), rest = &after[3..]),
            _ => (out.push(*first), rest = after),
        };
    }
    out
}

/// A file system that is mounted and not yet served.
#[derive(Debug)]
pub struct Mounted {
    session: Session<Passthrough>,
    mountpoint: PathBuf,
}

/// Mounts.
///
/// # Errors
/// If the kernel does not.
pub fn mount(options: &Options, flags: &Flags, places: Places) -> anyhow::Result<Mounted> {
    let budget = Budget::of_this_process(options.threads(), options.threads.is_some()).map_err(Error::msg)?;
    let Places { source, mountpoint } = places;
    let opened = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(&source, opened, Mode::empty())
        .with_context(|| format!("SOURCE {} cannot be opened", source.display()))?;
    let files = Passthrough::new(root, &mountpoint, options.cache, budget)
        .with_context(|| format!("SOURCE {} cannot be served", source.display()))?;
    let name = flags.fsname.as_deref().map_or(source.as_os_str(), OsStr::new);
    let mut config = Config::default();
    config.n_threads = Some(budget.threads);
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    let session = if rustix::process::geteuid().is_root() {
        let device = device(options, flags, name, &mountpoint)?;
        Session::from_fd(files, device, config.acl, config)
    } else {
        config.mount_options = for_fusermount(options, flags, name);
        Session::new(files, &mountpoint, &config)
    };
    let session = session.with_context(|| format!("{} cannot be mounted", mountpoint.display()))?;
    Ok(Mounted { session, mountpoint })
}

/// Mounts as root: without a helper, and without fuser's unmounting, which at the end would take away whatever else is
/// mounted there by then.
fn device(options: &Options, flags: &Flags, name: &OsStr, mountpoint: &Path) -> anyhow::Result<OwnedFd> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("{DEVICE} cannot be opened: has the kernel FUSE (modprobe fuse)? In a container: --device {DEVICE}"))?;
    let mode = rustix::fs::stat(mountpoint).map_or(0o040_000, |stat| stat.st_mode);
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id=0,group_id=0,default_permissions,subtype=miot-fuse",
        device.as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut how = MountFlags::empty();
    how.set(MountFlags::RDONLY, options.read_only);
    how.set(MountFlags::NOSUID, !flags.suid);
    how.set(MountFlags::NODEV, !flags.dev);
    how.set(MountFlags::NOEXEC, flags.noexec);
    how.set(MountFlags::NOATIME, flags.noatime);
    how.set(MountFlags::SYNCHRONOUS, flags.sync);
    how.set(MountFlags::DIRSYNC, flags.dirsync);
    let data = CString::new(data)?;
    rustix::mount::mount(name, mountpoint, c"fuse", how, &*data).with_context(|| {
        format!(
            "{} cannot be mounted: it takes CAP_SYS_ADMIN, in a container --cap-add SYS_ADMIN",
            mountpoint.display()
        )
    })?;
    Ok(device)
}

/// The same for `fusermount3`, which mounts for other users.
fn for_fusermount(options: &Options, flags: &Flags, name: &OsStr) -> Vec<MountOption> {
    let mut out = vec![
        MountOption::DefaultPermissions,
        MountOption::FSName(name.to_string_lossy().into_owned()),
        MountOption::CUSTOM("subtype=miot-fuse".into()),
    ];
    let chosen = [
        (options.read_only, MountOption::RO),
        (flags.noexec, MountOption::NoExec),
        (flags.noatime, MountOption::NoAtime),
        (flags.sync, MountOption::Sync),
        (flags.dirsync, MountOption::DirSync),
    ];
    out.extend(chosen.into_iter().filter(|(set, _)| *set).map(|(_, option)| option));
    out
}

impl Mounted {
    /// Serves until it is unmounted.
    ///
    /// # Errors
    /// If the kernel's device fails.
    pub fn serve(mut self) -> anyhow::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let mut by_fuser = self.session.unmount_callable();
        let mountpoint = self.mountpoint.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut asked = false;
            for _ in signals.forever() {
                if asked {
                    // The kernel ends what is open with an error.
                    std::process::exit(1);
                }
                asked = true;
                // Whoever is in it may finish: it is gone for all others.
                if rustix::mount::unmount(&mountpoint, UnmountFlags::DETACH) == Err(Errno::PERM) {
                    let _ = by_fuser.unmount();
                }
            }
        })?;
        let served = self.session.run();
        // How a connection ends is told in two ways, of which the session knows one (ENODEV).
        let is_aborted = |error: &std::io::Error| Errno::from_io_error(error) == Some(Errno::CONNABORTED);
        if served.as_ref().is_err_and(is_aborted) && !is_mounted(&self.mountpoint) {
            return Ok(());
        }
        served.with_context(|| format!("serving {} failed", self.mountpoint.display()))
    }

    /// Takes the mount away that is not to be served after all.
    pub fn give_up(self) {
        let _ = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_mount_at_a_place_counts() {
        let below = "36 35 98:0 / /mnt/a\\040b rw shared:1 - fuse.miot-fuse /data rw\n";
        let above = "37 36 0:5 / /mnt/a\\040b rw - tmpfs tmpfs rw\n";
        let at = Path::new("/mnt/a b");
        assert!(is_ours(below.as_bytes(), at));
        assert!(!is_ours(format!("{below}{above}").as_bytes(), at));
        assert!(!is_ours(below.as_bytes(), Path::new("/mnt")));
    }
}
