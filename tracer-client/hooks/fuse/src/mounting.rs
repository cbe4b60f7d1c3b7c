//! Mounting, serving and unmounting.

use crate::Passthrough;
use crate::descriptors::DescriptorBudget;
use crate::options::{MountSettings, Options};
use anyhow::{Context as _, bail, ensure};
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

/// File system type in the mount table.
const TYPE: &str = "fuse.miot-fuse";
const DEVICE: &str = "/dev/fuse";

/// Canonical paths of the two directories.
#[derive(Clone, Debug)]
pub struct MountPaths {
    source: PathBuf,
    mountpoint: PathBuf,
}

impl MountPaths {
    /// Resolves and checks the directories of the command line.
    ///
    /// # Errors
    /// If they do not exist or cannot be mounted, with the remedy.
    pub fn check(options: &Options) -> anyhow::Result<MountPaths> {
        let paths = MountPaths {
            source: directory(&options.source, "SOURCE")?,
            mountpoint: directory(&options.mountpoint, "MOUNTPOINT")?,
        };
        let MountPaths { source, mountpoint } = &paths;
        ensure!(
            !is_mounted(mountpoint),
            "{}: miot-fuse is already mounted there: run umount first",
            mountpoint.display()
        );
        ensure!(
            source == mountpoint || !mountpoint.starts_with(source),
            "MOUNTPOINT {} is in SOURCE {}: the file system would contain itself; name a directory outside, or SOURCE itself",
            mountpoint.display(),
            source.display()
        );
        Ok(paths)
    }
}

fn directory(path: &Path, role: &str) -> anyhow::Result<PathBuf> {
    let shown = path.display();
    let found = path.canonicalize().and_then(|found| Ok((found.metadata()?.is_dir(), found)));
    match found {
        Ok((true, found)) => Ok(found),
        Ok((false, _)) => bail!("{role} {shown} is not a directory: name a directory"),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            bail!("{role} {shown} is a stale mount whose program has died: run umount {shown}")
        }
        Err(error) => {
            Err(error).with_context(|| format!("{role} {shown} cannot be used: name a directory that exists"))
        }
    }
}

fn is_mounted(mountpoint: &Path) -> bool {
    is_miot_fuse(&std::fs::read("/proc/self/mountinfo").unwrap_or_default(), mountpoint)
}

/// Returns whether the uppermost mount on a directory is a miot-fuse. `table` has the format of
/// `/proc/self/mountinfo`.
fn is_miot_fuse(table: &[u8], mountpoint: &Path) -> bool {
    let mut is_uppermost = false;
    for line in table.split(|byte| *byte == b'\n') {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let Some(fs_type) = words.iter().position(|word| *word == b"-").and_then(|dash| words.get(dash + 1))
        else {
            continue;
        };
        if words.get(4).is_some_and(|at| unescaped(at) == mountpoint.as_os_str().as_bytes()) {
            // A later line is mounted over earlier ones.
            is_uppermost = *fs_type == TYPE.as_bytes();
        }
    }
    is_uppermost
}

/// Replaces octal escapes such as `\040` by their bytes.
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

/// A mounted file system.
#[derive(Debug)]
pub struct Mounted {
    session: Session<Passthrough>,
    mountpoint: PathBuf,
}

/// Mounts the file system.
///
/// # Errors
/// If descriptors are scarce, the source cannot be opened, or the mount fails.
pub fn mount(options: &Options, settings: &MountSettings, paths: MountPaths) -> anyhow::Result<Mounted> {
    let budget = DescriptorBudget::of_this_process(options.threads())?;
    let MountPaths { source, mountpoint } = paths;
    let open_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(&source, open_flags, Mode::empty())
        .with_context(|| format!("SOURCE {} cannot be opened", source.display()))?;
    let files = Passthrough::new(root, &mountpoint, options, budget)
        .with_context(|| format!("SOURCE {} cannot be served", source.display()))?;
    let name = settings.fsname.as_deref().map_or(source.as_os_str(), OsStr::new);
    let mut config = Config::default();
    config.n_threads = Some(budget.threads);
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    let session = if rustix::process::geteuid().is_root() {
        let device = mount_as_root(options, settings, name, &mountpoint)?;
        Session::from_fd(files, device, config.acl, config)
    } else {
        config.mount_options = fusermount_options(options, settings, name);
        Session::new(files, &mountpoint, &config)
    };
    let session = session.with_context(|| format!("{} cannot be mounted", mountpoint.display()))?;
    Ok(Mounted { session, mountpoint })
}

/// Mounts as root without a helper program. fuser's own unmounting is not used, because it would
/// remove any other file system that is mounted there when the program ends.
fn mount_as_root(
    options: &Options,
    settings: &MountSettings,
    name: &OsStr,
    mountpoint: &Path,
) -> anyhow::Result<OwnedFd> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("{DEVICE} cannot be opened: load the kernel module (modprobe fuse); in a container: --device {DEVICE}"))?;
    let mode = rustix::fs::stat(mountpoint).map_or(0o040_000, |stat| stat.st_mode);
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id=0,group_id=0,default_permissions,subtype=miot-fuse",
        device.as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !settings.suid);
    flags.set(MountFlags::NODEV, !settings.dev);
    flags.set(MountFlags::NOEXEC, settings.noexec);
    flags.set(MountFlags::NOATIME, settings.noatime);
    flags.set(MountFlags::SYNCHRONOUS, settings.sync);
    flags.set(MountFlags::DIRSYNC, settings.dirsync);
    let data = CString::new(data)?;
    rustix::mount::mount(name, mountpoint, c"fuse", flags, &*data).with_context(|| {
        format!(
            "{} cannot be mounted: CAP_SYS_ADMIN is required; in a container: --cap-add SYS_ADMIN",
            mountpoint.display()
        )
    })?;
    Ok(device)
}

/// Returns the options for `fusermount3`, which mounts for users other than root.
fn fusermount_options(options: &Options, settings: &MountSettings, name: &OsStr) -> Vec<MountOption> {
    let mut out = vec![
        MountOption::DefaultPermissions,
        MountOption::FSName(name.to_string_lossy().into_owned()),
        MountOption::CUSTOM("subtype=miot-fuse".into()),
    ];
    let chosen = [
        (options.read_only, MountOption::RO),
        (settings.noexec, MountOption::NoExec),
        (settings.noatime, MountOption::NoAtime),
        (settings.sync, MountOption::Sync),
        (settings.dirsync, MountOption::DirSync),
    ];
    out.extend(chosen.into_iter().filter(|(set, _)| *set).map(|(_, option)| option));
    out
}

impl Mounted {
    /// Serves requests until the file system is unmounted.
    ///
    /// # Errors
    /// If the kernel's device fails.
    pub fn serve(mut self) -> anyhow::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let mut fuser_unmount = self.session.unmount_callable();
        let mountpoint = self.mountpoint.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut is_second = false;
            for _ in signals.forever() {
                if is_second {
                    // Requests on open files then fail.
                    std::process::exit(1);
                }
                is_second = true;
                // Programs with open files can finish; for all others the mount is removed.
                if rustix::mount::unmount(&mountpoint, UnmountFlags::DETACH) == Err(Errno::PERM) {
                    let _ = fuser_unmount.unmount();
                }
            }
        })?;
        let served = self.session.run();
        // The kernel reports the end of a connection as ENODEV, which the session handles, or as
        // ECONNABORTED.
        let is_aborted = |error: &std::io::Error| Errno::from_io_error(error) == Some(Errno::CONNABORTED);
        if served.as_ref().is_err_and(is_aborted) && !is_mounted(&self.mountpoint) {
            return Ok(());
        }
        served.with_context(|| format!("serving {} failed", self.mountpoint.display()))
    }

    /// Unmounts a file system that is not served.
    pub fn unmount(self) {
        let _ = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_uppermost_mount_counts() {
        let below = "36 35 98:0 / /mnt/a\\040b rw shared:1 - fuse.miot-fuse /data rw\n";
        let above = "37 36 0:5 / /mnt/a\\040b rw - tmpfs tmpfs rw\n";
        let at = Path::new("/mnt/a b");
        assert!(is_miot_fuse(below.as_bytes(), at));
        assert!(!is_miot_fuse(format!("{below}{above}").as_bytes(), at));
        assert!(!is_miot_fuse(below.as_bytes(), Path::new("/mnt")));
    }
}
