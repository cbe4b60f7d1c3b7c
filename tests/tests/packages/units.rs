//! The units as systemd sees them: in order, no wider open than is explained, and of what they leave open nothing is too much.

use crate::alice_copies;
use miot_tests::machine::Machine;
use miot_tests::process::until;

/// Nothing for systemd to complain about, and no wider open than is explained in docs/install.md.
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
    for (service, tenths) in [("miot-log-server", 20), ("miot-log-client", 20), ("miot-recording", 20)] {
        let security = machine.run([
            "systemd-analyze",
            "security",
            "--no-pager",
            &format!("--threshold={tenths}"),
            service,
        ]);
        eprintln!("packages: {}", security.stdout.trim_end().lines().last().unwrap_or_default());
        assert_eq!(security.code(), 0, "{}{}", security.stdout, security.stderr);
    }
    let fields =
        machine.shell("journalctl --quiet --output=cat --unit=miot-log-client MIOT_SERVER=localhost:4747");
    assert!(fields.contains("recording dir=/dev/shm/miot node=\"miot-packages\" server="), "{fields}");
    // Nobody but its user may read traces; everybody's programs may record.
    machine.shell(
        "test \"$(stat -c '%U %a' /var/lib/miot/trace)\" = 'miot 750'
         test \"$(stat -c '%U %a' /dev/shm/miot)\" = 'miot 1777'",
    );
}

/// What goes wrong with one permission less.
#[derive(Debug)]
enum Lacks {
    /// It does not come up.
    Start,
    /// It says so, in these words, once a user's program has recorded.
    Says(&'static str),
    /// Nobody reaches it.
    Answer,
}

const CLIENT: &str = "miot-log-client";
const SERVER: &str = "miot-log-server";

/// What a service may do, taken away; and what it then lacks. Two of the log-client's capabilities are in
/// `tests/tests/tls/capabilities.rs`.
const LESS: [(&str, &[&str], Lacks); 11] = [
    (
        CLIENT,
        &["CapabilityBoundingSet=~CAP_DAC_OVERRIDE", "AmbientCapabilities=~CAP_DAC_OVERRIDE"],
        Lacks::Says("it cannot be opened"),
    ),
    (CLIENT, &["PrivateUsers=yes"], Lacks::Says("it cannot be opened")),
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

/// Each permission is needed: without it something named is missing.
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
