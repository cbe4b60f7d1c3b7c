//! The preloaded library: it exists, fits this machine, loads, and its events arrive.

use super::report::CheckReport;
use crate::run::hook;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

const AREA: &str = "library";
const PRELOAD_FILE: &str = "/etc/ld.so.preload";

pub(super) fn examine(report: &mut CheckReport) {
    preloaded_by_all(Path::new(PRELOAD_FILE), report);
    let library = match hook::library("posix") {
        Ok(library) => library,
        Err(error) => {
            let advice = "apt install miot-client, or: export MIOT_HOOK_DIR=DIR";
            return report.problem(AREA, "found", format!("{error:#}"), advice);
        }
    };
    let name = library.display();
    match library.metadata() {
        Ok(metadata) if metadata.permissions().mode() & 0o004 == 0 => {
            let found = format!(
                "{name} is not readable for all users: programs of others print an error and are not traced"
            );
            return report.problem(AREA, "found", found, format!("chmod 755 {name}"));
        }
        _ => report.ok(AREA, "found", name.to_string()),
    }
    match machine(&library) {
        Ok(()) => report.ok(
            AREA,
            "kind",
            format!("like this program: {}-bit {}", usize::BITS, std::env::consts::ARCH),
        ),
        Err(found) => {
            let advice = "install the package for this machine: dpkg --print-architecture";
            return report.problem(AREA, "kind", format!("{name}: {found}"), advice);
        }
    }
    match loads(&library) {
        Ok(()) => report.ok(AREA, "loads", "a program with it starts without messages and has it mapped"),
        Err(found) => {
            let advice = format!("LD_DEBUG=libs LD_PRELOAD={name} /bin/true");
            return report.problem(AREA, "loads", found, advice);
        }
    }
    match records() {
        Ok(events) => report.ok(
            AREA,
            "records",
            format!("a small program recorded {events} events in a separate trace"),
        ),
        Err(found) => {
            report.problem(AREA, "records", found, "miot run -o /tmp/miot-doctor -- /bin/cat /etc/hostname");
        }
    }
}

/// Checks /etc/ld.so.preload: a line that cannot be loaded makes every program on the machine print
/// an error.
fn preloaded_by_all(file: &Path, report: &mut CheckReport) {
    let Ok(text) = std::fs::read_to_string(file) else { return };
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let names = lines.flat_map(|line| line.split([' ', ':', '\t'])).filter(|name| name.contains("libmiot"));
    for name in names {
        // The loader replaces $LIB by its own directory.
        if name.contains('$') || Path::new(name).is_file() {
            report.ok(AREA, "for everybody", format!("{} has {name}", file.display()));
        } else {
            let found =
                format!("{} has {name}, which does not exist: every program prints an error", file.display());
            report.problem(AREA, "for everybody", found, format!("sed -i '\\,{name},d' {}", file.display()));
        }
    }
}

/// Checks that class and machine of an ELF file are those of this program.
fn machine(library: &Path) -> Result<(), String> {
    let head = |path: &Path| -> std::io::Result<[u8; 20]> {
        use std::io::Read as _;
        let mut head = [0; 20];
        std::fs::File::open(path)?.read_exact(&mut head)?;
        Ok(head)
    };
    let theirs = head(library).map_err(|error| format!("cannot be read: {error}"))?;
    let ours = head(Path::new("/proc/self/exe")).map_err(|error| error.to_string())?;
    if theirs[..4] != *b"\x7fELF" {
        return Err("it is not a library (not an ELF file)".into());
    }
    let kind = |head: &[u8; 20]| (head[4], head[5], head[18], head[19]);
    if kind(&theirs) != kind(&ours) {
        let machine = |head: &[u8; 20]| u16::from_le_bytes([head[18], head[19]]);
        return Err(format!(
            "it is for another machine (ELF machine {}, this one is {})",
            machine(&theirs),
            machine(&ours)
        ));
    }
    Ok(())
}

fn loads(library: &Path) -> Result<(), String> {
    let mut program = Command::new("/bin/cat");
    program.arg("/proc/self/maps").env("LD_PRELOAD", library).env("MIOT_DIR", "/nonexistent");
    let output = program.stdin(Stdio::null()).output().map_err(|error| format!("/bin/cat: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || !stderr.is_empty() {
        return Err(format!("a program with it ended with {}: {}", output.status, stderr.trim()));
    }
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    match String::from_utf8_lossy(&output.stdout).contains(&*name) {
        true => Ok(()),
        false => Err("the loader ignored it without a message".into()),
    }
}

/// Tests the whole path from a program to a trace with `miot run`, which has both daemons in one
/// process.
fn records() -> Result<u64, String> {
    let place = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let trace = place.path().join("trace");
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut run = Command::new(&own);
    run.args(["run", "--quiet", "-o"]).arg(&trace).args(["--", "/bin/cat", "/etc/passwd"]);
    let output = run.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`miot run` ended with {}: {}", output.status, stderr.trim()));
    }
    let reader = miot_trace_store::Reader::open(&trace).map_err(|error| error.to_string())?;
    let counts = reader.count(miot_trace_store::Table::Events).map_err(|error| error.to_string())?;
    match counts.values().sum() {
        0 => Err("a small program was traced and no event is in the trace".into()),
        events => Ok(events),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;

    #[test]
    fn libraries_of_other_machines_are_detected() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("lib.so");
        assert_eq!(machine(Path::new("/proc/self/exe")), Ok(()));
        let mut head = std::fs::read("/proc/self/exe").unwrap();
        head.truncate(64);
        head[18] ^= 0xff;
        std::fs::write(&file, &head).unwrap();
        assert!(machine(&file).unwrap_err().contains("another machine"));
        std::fs::write(&file, "not a library, but long enough").unwrap();
        assert!(machine(&file).unwrap_err().contains("ELF"));
    }

    #[test]
    fn missing_preloaded_library_is_a_problem() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("ld.so.preload");
        let verdict = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let mut report = CheckReport::default();
            preloaded_by_all(&file, &mut report);
            report.worst()
        };
        assert_eq!(verdict("/nonexistent/libmiot_posix.so # ours\n"), Verdict::Problem);
        assert_eq!(verdict("/nonexistent/libother.so\n"), Verdict::Ok);
        assert_eq!(verdict("# /nonexistent/libmiot_posix.so\n"), Verdict::Ok);
    }
}
