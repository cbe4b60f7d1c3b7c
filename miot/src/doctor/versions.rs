//! Versions of the installed and of the running programs.

use super::report::CheckReport;
use miot_log_client::{Config, ControlView};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const AREA: &str = "versions";
const OURS: &str = env!("CARGO_PKG_VERSION");

pub(super) fn examine(config: &Config, report: &mut CheckReport) {
    for program in ["log-client", "log-server"] {
        if let Some(path) = find(program) {
            compare(program, &path, report);
        }
    }
    running(config, report);
}

/// Finds a program in the directory of this program or in PATH. Not every machine has both daemons.
fn find(program: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(program)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = beside.into_iter().chain(std::env::split_paths(&path).map(|folder| folder.join(program)));
    all.find(|file| file.is_file())
}

fn compare(check: &'static str, path: &Path, report: &mut CheckReport) {
    let name = path.display();
    let output = Command::new(path).arg("--version").stdin(Stdio::null()).output();
    let theirs = match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Ok(output) => {
            let found = format!("{name} --version ended with {}", output.status);
            return report.problem(AREA, check, found, "apt install --reinstall its package");
        }
        Err(error) => {
            return report.problem(AREA, check, format!("{name}: {error}"), format!("chmod 755 {name}"));
        }
    };
    let version = theirs.rsplit(' ').next().unwrap_or_default();
    if version == OURS {
        report.ok(AREA, check, format!("{version}, same as this tool"));
    } else {
        let found = format!("{name} is {version}, this tool is {OURS}");
        report.warning(AREA, check, found, "install the same version of all packages");
    }
}

/// Checks for a daemon that was not restarted after an upgrade: its executable was deleted.
fn running(config: &Config, report: &mut CheckReport) {
    let Some(reader) = ControlView::of_node(&config.dir).ok().map(|view| view.reader()) else { return };
    let Ok(exe) = std::fs::read_link(format!("/proc/{}/exe", reader.pid)) else { return };
    if exe.to_string_lossy().ends_with(" (deleted)") {
        let found =
            format!("the running log-client (process {}) is older than the installed one", reader.pid);
        report.warning(AREA, "running", found, "systemctl restart miot-log-client (loses no events)");
    } else {
        report.ok(AREA, "running", format!("the running log-client is {}", exe.display()));
    }
}
