//! Free space on disks.

use super::report::CheckReport;
use miot_log_client::Config;
use miot_proto::units::format_bytes;
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use std::path::Path;

const AREA: &str = "disk";

/// Capacity of a file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeSpace {
    pub(super) size: u64,
    /// Free space for this user.
    pub(super) free: u64,
    /// Number of files that can be created; `None` if the file system does not count them.
    pub(super) inodes: Option<u64>,
}

/// Returns the capacity of the file system of `path`.
pub(super) fn free_space(path: &Path) -> Option<FreeSpace> {
    let stat = statvfs(path).ok()?;
    Some(FreeSpace {
        size: stat.f_blocks.saturating_mul(stat.f_frsize),
        free: stat.f_bavail.saturating_mul(stat.f_frsize),
        inodes: (stat.f_files > 0).then_some(stat.f_favail),
    })
}

/// Checks the disk space of the spool, if the spool is on a disk.
pub(super) fn spool(config: &Config, report: &mut CheckReport) {
    match &config.spool_dir {
        None => report.ok(AREA, "spool", format!("in memory, at most {}", format_bytes(config.spool_bytes))),
        Some(dir) => folder("spool", dir, config.user.as_deref(), config.spool_bytes, report),
    }
}

/// Checks a directory of a daemon: it exists or can be created, `user` can write to it, and
/// `wanted` bytes are free.
pub(super) fn folder(
    check: &'static str,
    dir: &Path,
    user: Option<&str>,
    wanted: u64,
    report: &mut CheckReport,
) {
    let name = dir.display();
    let owner = user.unwrap_or("root");
    let Some(there) = dir.ancestors().find(|path| path.exists()) else { return };
    if !there.is_dir() {
        let found = format!("{} is not a directory", there.display());
        return report.problem(
            AREA,
            check,
            found,
            format!("mv {0} {0}.old && install -d -o {owner} {name}", there.display()),
        );
    }
    if statvfs(there).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        let found = format!("{name} is on a file system that is mounted read-only");
        return report.problem(AREA, check, found, format!("mount -o remount,rw {}", there.display()));
    }
    if !writable(there, user) {
        let who = user.map_or("you".to_owned(), |user| format!("user {user}"));
        let (what, advice) = match there == dir {
            true => ("cannot be written", format!("chown {owner} {name}")),
            false => ("does not exist and cannot be created", format!("install -d -o {owner} {name}")),
        };
        return report.problem(AREA, check, format!("{name} {what} by {who}"), advice);
    }
    let Some(FreeSpace { size, free, inodes }) = free_space(there) else { return };
    let space = format!("{name}: {} of {} free", format_bytes(free), format_bytes(size));
    if free < wanted / 16 || inodes == Some(0) {
        let found = format!("{space}; up to {} are needed", format_bytes(wanted));
        report.problem(
            AREA,
            check,
            found,
            format!("free some space: du -xh --max-depth=1 {} | sort -h", there.display()),
        );
    } else if free < wanted {
        let found = format!("{space}; up to {} are needed", format_bytes(wanted));
        report.warning(AREA, check, found, "free some space, or lower the limit in the configuration");
    } else {
        report.ok(AREA, check, space);
    }
}

/// Returns whether a daemon could write to `dir`: as this user, or, for root, as the user that it
/// switches to.
fn writable(dir: &Path, user: Option<&str>) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let is_root = rustix::process::geteuid().is_root();
    match user.map(miot_daemon::User::find) {
        Some(Ok(user)) if is_root && user.uid() != 0 => dir.metadata().is_ok_and(|metadata| {
            let mode = metadata.mode();
            match (metadata.uid() == user.uid(), metadata.gid() == user.gid()) {
                (true, _) => mode & 0o200 != 0,
                (false, true) => mode & 0o020 != 0,
                (false, false) => mode & 0o002 != 0,
            }
        }),
        _ => access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
    }
}
