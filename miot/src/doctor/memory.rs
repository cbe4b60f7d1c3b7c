//! The MIOT directory: in memory, large enough, writable for traced programs, served by a
//! log-client.

use super::disk::{FreeSpace, free_space};
use super::report::CheckReport;
use miot_log_client::{Config, ControlError, ControlView, IN_MEMORY};
use miot_proto::units::format_bytes;
use rustix::fs::{Access, statfs};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const AREA: &str = "memory";
/// Least free space, bytes: a few programs exhaust less.
const LEAST_FREE: u64 = 64 << 20;
/// First user id of human users; lower ids belong to the system and its services.
const FIRST_PERSON: u32 = 1000;
/// Mode of a directory in which all users may create files and remove only their own.
const SHARED: u32 = 0o1777;

/// Returns the log-server of the running log-client.
pub(super) fn examine(config: &Config, report: &mut CheckReport) -> Option<String> {
    mounted(config, report);
    open(config, report);
    served(config, report)
}

fn mounted(config: &Config, report: &mut CheckReport) {
    let dir = config.dir.as_path();
    let there = dir.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    let kind = match statfs(there) {
        Ok(stat) => stat.f_type as u64,
        Err(error) => {
            let found = format!("cannot examine {}: {error}", there.display());
            return report.problem(AREA, "mounted", found, "mount -t tmpfs tmpfs /dev/shm");
        }
    };
    if IN_MEMORY.contains(&kind) {
        report.ok(AREA, "mounted", format!("{} is in memory", dir.display()));
    } else {
        let found = format!(
            "{} is not in memory (file system {kind:#x}): recording would wait for a disk",
            dir.display()
        );
        report.problem(
            AREA,
            "mounted",
            found,
            "mount -t tmpfs -o mode=1777 tmpfs /dev/shm, and set `dir` to /dev/shm/miot",
        );
    }
    let Some(FreeSpace { size, free, inodes }) = free_space(there) else { return };
    let spool = if config.spool_dir.is_some() { 0 } else { config.spool_bytes };
    let wanted = config.node_bytes.saturating_add(spool);
    let space = format!("{} of {} are free at {}", format_bytes(free), format_bytes(size), there.display());
    let remount = format!("mount -o remount,size={} {}", wanted.max(LEAST_FREE) * 2, mount_point(there));
    if free < LEAST_FREE || inodes == Some(0) {
        let found = format!("{space}: threads get no lanes, and their events are lost as `no_lane`");
        report.problem(AREA, "size", found, format!("free some space, or: {remount}"));
    } else if size < wanted {
        let found =
            format!("{space}; `node_bytes` and the spool in memory may take {}", format_bytes(wanted));
        report.warning(AREA, "size", found, format!("{remount}, or lower `node_bytes`"));
    } else {
        report.ok(AREA, "size", space);
    }
}

fn mount_point(path: &Path) -> String {
    let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
    let own = device(path);
    let top = path.ancestors().take_while(|above| device(above) == own).last();
    top.unwrap_or(path).display().to_string()
}

fn open(config: &Config, report: &mut CheckReport) {
    let dir = config.dir.as_path();
    let Ok(metadata) = dir.symlink_metadata() else {
        let found = format!("{} does not exist: a log-client creates it", dir.display());
        return report.warning(
            AREA,
            "permissions",
            found,
            "systemctl start miot-log-client, or: log-client &",
        );
    };
    let mode = metadata.mode() & 0o7777;
    let name = dir.display();
    if !metadata.is_dir() {
        let found = format!("{name} is not a directory");
        report.problem(AREA, "permissions", found, format!("rm {name}, and start the log-client again"));
    } else if mode == SHARED {
        report.ok(AREA, "permissions", format!("{name}: every user's programs can be traced (mode 1777)"));
    } else if rustix::fs::access(dir, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let found =
            format!("{name} (mode {mode:04o}, user {}): your programs cannot record there", metadata.uid());
        report.problem(AREA, "permissions", found, format!("chmod 1777 {name}"));
    } else if mode & 0o002 != 0 {
        let found = format!("{name} (mode {mode:04o}): users can remove each other's files");
        report.problem(AREA, "permissions", found, format!("chmod 1777 {name}"));
    } else if metadata.uid() < FIRST_PERSON {
        let found =
            format!("{name} (mode {mode:04o}): only programs of user {} can be traced", metadata.uid());
        report.problem(AREA, "permissions", found, format!("chmod 1777 {name}"));
    } else {
        report.ok(
            AREA,
            "permissions",
            format!("{name} (mode {mode:04o}): programs of user {} can be traced", metadata.uid()),
        );
    }
}

fn served(config: &Config, report: &mut CheckReport) -> Option<String> {
    let dir = config.dir.as_path();
    let start = "systemctl start miot-log-client, or: log-client &";
    match ControlView::of_node(dir) {
        Ok(mut view) => match view.check_reader() {
            Ok(reader) if view.settings().enabled => {
                report.ok(AREA, "log-client", format!("running (process {}), recording is on", reader.pid));
                return view.server();
            }
            Ok(_) => {
                let found = "running, and recording is switched off";
                report.warning(AREA, "log-client", found, format!("miot ctl --dir {} on", dir.display()));
                return view.server();
            }
            Err(error) => report.problem(AREA, "log-client", error.to_string(), start),
        },
        Err(error @ ControlError::Version { .. }) => {
            let advice = "install the same version of all packages, then: systemctl restart miot-log-client";
            report.problem(AREA, "log-client", error.to_string(), advice);
        }
        Err(error) => report.problem(AREA, "log-client", error.to_string(), start),
    }
    None
}
