//! Checks system limits of the running log-client, or else of this process.

use super::report::CheckReport;
use miot_log_client::{Config, ControlView};
use miot_proto::units::format_bytes;
use std::fs::read_to_string;
use std::path::Path;

const AREA: &str = "limits";
/// Descriptors of a log-client besides those of segments.
const OWN_FILES: u64 = 64;

pub(super) fn examine(config: &Config, report: &mut CheckReport) {
    let reader =
        ControlView::of_node(&config.dir).ok().map(|view| view.reader()).filter(|reader| !reader.closed);
    let pid = reader.map(|reader| reader.pid.to_string()).filter(|pid| Path::new("/proc").join(pid).exists());
    files(config, pid.as_deref(), report);
    file_size(config, report);
    cgroup(config, report);
    report.ok(AREA, "memlock", "not used: MIOT does not lock memory");
}

/// Checks the number of open files. A segment takes two descriptors; the log-client raises its soft
/// limit to the hard limit.
fn files(config: &Config, pid: Option<&str>, report: &mut CheckReport) {
    let who = pid.map_or("here".to_owned(), |pid| format!("of the log-client (process {pid})"));
    let Some(limit) = limit(pid.unwrap_or("self"), "Max open files", 1) else {
        return report.ok(AREA, "open files", format!("you may not read the limit {who}"));
    };
    let wanted = 2 * config.segments as u64 + OWN_FILES;
    if limit < OWN_FILES * 2 {
        let found = format!("{limit} {who}: too low to trace programs");
        report.problem(
            AREA,
            "open files",
            found,
            format!("LimitNOFILE={wanted} in the service, or: ulimit -Hn {wanted}"),
        );
    } else if limit < wanted {
        let programs = (limit - OWN_FILES) / 2;
        let found = format!(
            "{limit} {who}: enough for {programs} processes at a time, `segments` allows {}",
            config.segments
        );
        report.warning(
            AREA,
            "open files",
            found,
            format!("LimitNOFILE={wanted} in the service, or: ulimit -Hn {wanted}"),
        );
    } else {
        report.ok(AREA, "open files", format!("{limit} {who}"));
    }
}

/// Checks the limit of file sizes, which applies to segments.
fn file_size(config: &Config, report: &mut CheckReport) {
    match limit("self", "Max file size", 0) {
        Some(limit) if limit < config.process_bytes => {
            let found = format!(
                "{} for programs started here: their lanes cannot grow to {} (`process_bytes`)",
                format_bytes(limit),
                format_bytes(config.process_bytes)
            );
            report.warning(
                AREA,
                "file size",
                found,
                "ulimit -f unlimited, or `fsize` in /etc/security/limits.conf",
            );
        }
        _ => report.ok(AREA, "file size", "no relevant limit"),
    }
}

/// Checks the memory limit of the control group: pages of a segment are charged to the program's
/// group.
fn cgroup(config: &Config, report: &mut CheckReport) {
    match memory_limit(Path::new("/")) {
        Some((limit, group)) if limit < 2 * config.process_bytes => {
            let found = format!(
                "{group} may use {}, which includes shared memory: the lanes of a program use up to {}",
                format_bytes(limit),
                format_bytes(config.process_bytes)
            );
            report.warning(AREA, "control group", found, "raise its memory limit, or lower `process_bytes`");
        }
        Some((limit, group)) => {
            report.ok(AREA, "control group", format!("{group} may use {}", format_bytes(limit)));
        }
        None => report.ok(AREA, "control group", "no memory limit"),
    }
}

/// Returns the smallest memory limit of the control groups of this process, and the group's name.
fn memory_limit(root: &Path) -> Option<(u64, String)> {
    let lines = read_to_string(root.join("proc/self/cgroup")).ok()?;
    let path = lines.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
    let groups = Path::new(&path).ancestors();
    let limits = groups.filter_map(|group| {
        let file = root.join("sys/fs/cgroup").join(group.strip_prefix("/").ok()?).join("memory.max");
        let limit = read_to_string(file).ok()?.trim().parse().ok()?;
        Some((limit, group.display().to_string()))
    });
    limits.min()
}

/// Reads a line of `/proc/<pid>/limits`: soft limit with `which` 0, hard limit with 1. Returns
/// `u64::MAX` for no limit.
fn limit(pid: &str, name: &str, which: usize) -> Option<u64> {
    let text = read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().nth(which)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        assert!(limit("self", "Max open files", 1).unwrap() >= limit("self", "Max open files", 0).unwrap());
        assert_eq!(limit("self", "Max nonsense", 0), None);
    }

    #[test]
    fn the_tightest_control_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let file = root.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        put("proc/self/cgroup", "0::/a/b\n");
        put("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(memory_limit(root.path()), None);
        put("sys/fs/cgroup/a/memory.max", "4096\n");
        put("sys/fs/cgroup/a/b/memory.max", "8192\n");
        assert_eq!(memory_limit(root.path()), Some((4096, "/a".into())));
    }
}
