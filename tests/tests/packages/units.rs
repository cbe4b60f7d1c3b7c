//! The units as systemd judges them: valid, with no more exposure than documented, and with no
//! permission that the daemons do not need.

use crate::alice_copies;
use miot_tests::built::root;
use miot_tests::machine::Machine;
use miot_tests::process::{run, until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// All units.
const OPEN: [&str; 3] = ["miot-log-server", "miot-log-client", "miot-recording"];
/// Maximum exposure of a service, in tenths.
const WIDEST: usize = 20;

/// Checks that the findings of `systemd-analyze security` for a service are exactly those explained
/// in docs/start/install.md.
fn is_explained(service: &str, report: &str) {
    let report: Value = serde_json::from_str(report).unwrap_or_else(|e| panic!("{e}: {report}"));
    let points = report.as_array().unwrap().iter();
    let points = points.filter(|point| point["exposure"].as_str().is_some_and(|exposure| exposure != "0"));
    let reported: BTreeSet<String> = points.map(|point| point["name"].as_str().unwrap().to_owned()).collect();
    assert!(!reported.is_empty());

    let page = fs::read_to_string(root().join("docs/start/install.md")).unwrap();
    let whose = if service == "miot-log-server" { "log-server" } else { "log-client" };
    let mut explained = BTreeSet::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| ")) {
        // An escaped bar is part of a cell.
        let cells: Vec<String> =
            row.replace("\\|", "\n").split('|').map(|cell| cell.replace('\n', "|")).collect();
        if cells.len() > 2 && ["both", whose].contains(&cells[0].trim()) {
            explained.extend(cells[1].split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    assert_eq!(explained, reported, "{service}: docs/start/install.md, and systemd-analyze security");
}

/// Returns the total exposure of a service in tenths. Checks that docs/start/install.md has the
/// same number.
fn says_how_open(service: &str, report: &str) {
    let exposure = report.lines().find_map(|line| line.split_once("Overall exposure level for")).unwrap().1;
    let exposure = exposure.split_once(": ").unwrap().1.split(' ').next().unwrap();
    let tenths: usize = exposure.replace('.', "").parse().unwrap();
    assert!(tenths <= WIDEST, "{service}: {exposure}");
    let page = fs::read_to_string(root().join("docs/start/install.md")).unwrap();
    let sentence =
        page.split("\n\n").find(|part| part.starts_with("`systemd-analyze security` says")).unwrap();
    let before = sentence.split(&format!("`{service}`")).next().unwrap();
    let said = before.rsplit(" ").find(|word| word.parse::<f32>().is_ok());
    assert_eq!(said, Some(exposure), "{service} in docs/start/install.md");
}

/// Needs no machine: it uses the unit files alone.
#[test]
fn systemd_findings_for_the_units_are_documented() {
    let analyze = |service: &str, more: &[&str]| {
        let unit = root().join(format!("deploy/systemd/{service}.service"));
        let mut analyze = Command::new("systemd-analyze");
        run(analyze.args(["security", "--offline=true", "--no-pager"]).args(more).arg(unit)).success().stdout
    };
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("NOT TESTED: what is left open by the units: systemd-analyze is not here");
        return;
    }
    for service in OPEN {
        is_explained(service, &analyze(service, &["--json=short"]));
        says_how_open(service, &analyze(service, &[]));
    }
}

/// Checks that systemd has no complaint, and that the exposure is not higher than documented in
/// docs/start/install.md.
pub(crate) fn are_in_order(machine: &Machine) {
    let verified = machine.run([
        "systemd-analyze",
        "verify",
        "--man=no",
        "/usr/lib/systemd/system/miot-log-server.service",
        "/usr/lib/systemd/system/miot-log-client.service",
        "/usr/lib/systemd/system/miot-recording.service",
    ]);
    assert_eq!((verified.code(), verified.stderr.as_str()), (0, ""), "{}", verified.stdout);
    for service in OPEN {
        let report = machine.run(["systemd-analyze", "security", "--json=short", service]).success();
        is_explained(service, &report.stdout);
        let report = machine.run(["systemd-analyze", "security", "--no-pager", service]).success();
        says_how_open(service, &report.stdout);
    }
    let fields =
        machine.shell("journalctl --quiet --output=cat --unit=miot-log-client MIOT_SERVER=localhost:4747");
    assert!(fields.contains("recording dir=/dev/shm/miot node=\"miot-packages\" server="), "{fields}");
    // Only the service's user may read traces; programs of all users may record.
    machine.shell(
        "test \"$(stat -c '%U %a' /var/lib/miot/trace)\" = 'miot 750'
         test \"$(stat -c '%U %a' /dev/shm/miot)\" = 'miot 1777'",
    );
}

/// Effect of a missing permission.
#[derive(Debug)]
enum Lacks {
    /// The service does not start.
    Start,
    /// The service reports this text after a user's program has recorded.
    Says(&'static str),
    /// The service cannot be reached.
    Answer,
}

const CLIENT: &str = "miot-log-client";
const SERVER: &str = "miot-log-server";

/// Permissions to remove from a service, and the effect. Two of the log-client's capabilities are
/// in `tests/tests/tls/capabilities.rs`.
const LESS: [(&str, &[&str], Lacks); 11] = [
    (
        CLIENT,
        &["CapabilityBoundingSet=~CAP_DAC_OVERRIDE", "AmbientCapabilities=~CAP_DAC_OVERRIDE"],
        Lacks::Says("cannot be opened"),
    ),
    (CLIENT, &["PrivateUsers=yes"], Lacks::Says("cannot be opened")),
    (CLIENT, &["ProcSubset=pid"], Lacks::Start),
    (CLIENT, &["ReadWritePaths="], Lacks::Start),
    (CLIENT, &["PrivateNetwork=yes"], Lacks::Says("Connection refused")),
    (
        CLIENT,
        &["RestrictAddressFamilies=", "RestrictAddressFamilies=AF_UNIX"],
        Lacks::Says("Address family not supported"),
    ),
    (
        CLIENT,
        &["RestrictAddressFamilies=", "RestrictAddressFamilies=AF_INET AF_INET6", "TimeoutStartSec=5s"],
        Lacks::Start,
    ),
    (SERVER, &["StateDirectory="], Lacks::Start),
    (SERVER, &["PrivateNetwork=yes"], Lacks::Answer),
    (SERVER, &["RestrictAddressFamilies=", "RestrictAddressFamilies=AF_UNIX"], Lacks::Start),
    (
        SERVER,
        &["RestrictAddressFamilies=", "RestrictAddressFamilies=AF_INET AF_INET6", "TimeoutStartSec=5s"],
        Lacks::Start,
    ),
];

/// Checks that each permission is needed: without it, its effect occurs.
pub(crate) fn leave_nothing_too_much(machine: &Machine) {
    for (number, (service, lines, lacks)) in LESS.iter().enumerate() {
        let folder = format!("/run/systemd/system/{service}.service.d");
        machine.shell(&format!(
            "mkdir -p {folder}; printf '[Service]\\n{}\\n' > {folder}/less.conf; systemctl daemon-reload",
            lines.join("\\n")
        ));
        let started = machine.run(["systemctl", "restart", service]).code() == 0;
        assert_eq!(started, !matches!(lacks, Lacks::Start), "{service}, {lines:?}\n{}", machine.journal());
        match lacks {
            Lacks::Start => {}
            Lacks::Says(words) => {
                alice_copies(machine, &format!("less-{number}"));
                until(&format!("{service} with {lines:?} says `{words}`"), || {
                    machine
                        .shell(&format!(
                            "journalctl --quiet --output=cat \
                                _SYSTEMD_INVOCATION_ID=$(systemctl show --property=InvocationID --value {service})"
                        ))
                        .contains(words)
                });
            }
            Lacks::Answer => {
                let status = machine.run(["miot", "ctl", "--server", "127.0.0.1:4747", "status"]);
                assert_ne!(status.code(), 0, "{lines:?}: {}", status.stdout);
            }
        }
        machine.shell(&format!(
            "rm -r {folder}; systemctl daemon-reload; systemctl reset-failed {service} || true; systemctl restart {service}"
        ));
    }
}
