//! The Debian packages on a Debian: they are installed, started by systemd in their sandboxes,
//! restarted, upgraded and removed while programs of several users record.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod profile;
mod units;

use miot_tests::built::{built, root};
use miot_tests::judge::{Asked, Producer, Rules, judge};
use miot_tests::machine::{Machine, cannot_boot};
use miot_tests::process::{Background, run, until};
use miot_tests::test_dir::fresh;
use miot_tests::victim::{LIVES, WORDS};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGES: [&str; 6] =
    ["miot-server", "miot-client", "miot-dev", "miot-tools", "miot-query", "miot-uploader"];
const VERSIONS: [&str; 2] = ["0.1.0-1", "0.1.0-2"];
const SERVICES: [&str; 2] = ["miot-log-server", "miot-log-client"];
const USERS: [&str; 3] = ["alice", "bob", "root"];
/// Folder in the machine with the programs of this build.
const PROGRAMS: &str = "/opt/programs";
/// Number of requests after which a producer reports its count.
const STRIDE: u64 = 1;

/// Packages of both versions, in separate folders. `None` if they cannot be built here.
/// `$MIOT_PACKAGES` names existing ones.
fn packages(place: &Path) -> Option<[PathBuf; 2]> {
    if let Some(made) = std::env::var_os("MIOT_PACKAGES") {
        return Some(VERSIONS.map(|version| Path::new(&made).join(version)));
    }
    let tools = root().join("target/tools/bin/cargo-deb");
    if !tools.exists() && run(Command::new("sh").args(["-c", "command -v cargo-deb"])).code() != 0 {
        return None;
    }
    let _ = built();
    let [first, second] = VERSIONS.map(|version| place.join(version));
    let mut script = Command::new(root().join("deploy/build-packages.sh"));
    script.args(["--debug", "--version", VERSIONS[0], "--out"]).arg(&first);
    if std::env::var_os("MIOT_TESTS_BUILT").is_some() {
        script.arg("--no-build");
    }
    let made = run(&mut script).success();
    assert_eq!(made.stdout.lines().count(), PACKAGES.len(), "{}", made.stdout);
    pack_again(&first, &second, &place.join("content"));
    Some([first, second])
}

/// Packs the packages of the first version again as those of the second one, with the same files
/// and scripts: of the same build, the build script would make the same.
fn pack_again(first: &Path, second: &Path, content: &Path) {
    let [old, new] = VERSIONS.map(|version| format!("\nVersion: {version}\n"));
    fs::create_dir_all(second).unwrap();
    for package in fs::read_dir(first).unwrap() {
        let mut unpack = Command::new("dpkg-deb");
        let _ = run(unpack.arg("--raw-extract").arg(package.unwrap().path()).arg(content)).success();
        let control = content.join("DEBIAN/control");
        let text = fs::read_to_string(&control).unwrap();
        assert_eq!(text.matches(&old).count(), 1, "{text}");
        fs::write(&control, text.replace(&old, &new)).unwrap();
        // In a folder, dpkg-deb gives the package its name.
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", "-Zgzip", "-z1", "--build"]);
        let _ = run(pack.arg(content).arg(second)).success();
        fs::remove_dir_all(content).unwrap();
    }
}

/// A program of a user that records until it is stopped.
struct Recording {
    number: u64,
    user: &'static str,
    pid: u32,
    progress: PathBuf,
}

impl Recording {
    fn start(machine: &Machine, number: u64, user: &'static str) -> Recording {
        let progress = machine.shared.join(format!("progress-{number}"));
        fs::write(&progress, vec![0; (LIVES as usize) * WORDS * 8]).unwrap();
        let pid = machine.shell(&format!(
            "chown {user} /shared/progress-{number}
             systemd-run --quiet --unit=recording-{number} --uid={user} \
                {PROGRAMS}/victim {number} 2 20000 {STRIDE} 30000 5 /shared/progress-{number} >&2
             systemctl show --property=MainPID --value recording-{number}"
        ));
        Recording { number, user, pid: pid.trim().parse().unwrap(), progress }
    }

    /// Number of requests that it has made, by its own count.
    fn made(&self) -> u64 {
        let bytes = fs::read(&self.progress).unwrap_or_default();
        let words =
            bytes.chunks_exact(WORDS * 8).map(|life| u64::from_le_bytes(life[..8].try_into().unwrap()));
        words.map(|word| word & !miot_tests::victim::DONE).sum()
    }

    fn goes_on(&self) {
        let before = self.made();
        until(&format!("{}'s program goes on recording", self.user), || self.made() > before + 500);
    }

    fn stop(self, machine: &Machine, node: &str, asked: &mut Asked) {
        machine.shell(&format!("kill -KILL {}", self.pid));
        until("the program has ended", || {
            machine.run(["systemctl", "is-active", "--quiet", &format!("recording-{}", self.number)]).code()
                != 0
        });
        let producer = Producer { node: node.into(), pid: self.pid, stride: STRIDE, paths: 5 };
        asked.harvest(self.number, producer, &self.progress).unwrap();
        assert_eq!(asked.refused(self.number), 0, "{}: requests that were not recorded", self.user);
    }
}

fn main_pid(machine: &Machine, service: &str) -> u32 {
    machine.shell(&format!("systemctl show --property=MainPID --value {service}")).trim().parse().unwrap()
}

fn is_active(machine: &Machine, service: &str) -> bool {
    machine.run(["systemctl", "is-active", "--quiet", service]).code() == 0
}

/// Installs the packages in a folder, which have this version.
fn install(machine: &Machine, folder: &Path, version: &str) {
    let packages = machine.shared.join("packages");
    let _ = fs::remove_dir_all(&packages);
    let _ = run(Command::new("cp").arg("-r").arg(folder).arg(&packages)).success();
    machine.shell("dpkg -i /shared/packages/*.deb");
    let installed = machine.shell(&format!("dpkg-query -W -f '${{Version}}\\n' {}", PACKAGES.join(" ")));
    assert_eq!(installed.lines().collect::<Vec<_>>(), [version; PACKAGES.len()]);
}

#[test]
fn packages_survive_restart_upgrade_and_removal() {
    if let Some(reason) = cannot_boot() {
        eprintln!("NOT TESTED: the packages on a booted Debian: {reason}");
        return;
    }
    let place = fresh("packages");
    let Some([first, second]) = packages(&place) else {
        eprintln!("NOT TESTED: the packages: cargo-deb is not here, tests/setup.sh builds it");
        return;
    };
    let node = "miot-packages";
    let machine = Machine::boot(&place.join("machine"), node, &[(&built().folder, PROGRAMS)]);
    for user in USERS.iter().filter(|user| **user != "root") {
        machine.shell(&format!("useradd --create-home {user}"));
    }

    install(&machine, &first, VERSIONS[0]);
    for service in SERVICES {
        assert!(is_active(&machine, service), "{service}\n{}", machine.journal());
        machine.shell(&format!("systemctl is-enabled {service}"));
    }
    units::are_in_order(&machine);

    let recording: Vec<Recording> =
        (1..).zip(USERS).map(|(number, user)| Recording::start(&machine, number, user)).collect();
    let load_goes_on = || recording.iter().for_each(Recording::goes_on);
    load_goes_on();
    for service in ["miot-log-client", "miot-log-server", "miot-log-client"] {
        let before = main_pid(&machine, service);
        machine.shell(&format!("systemctl restart {service}"));
        assert_ne!(main_pid(&machine, service), before);
        load_goes_on();
    }
    reloads_tell_of_mistakes(&machine);
    killed_and_stopped_daemons_come_back(&machine, &load_goes_on);
    log_client_runs_with_real_time_priority(&machine, &load_goes_on);

    // Changes by an administrator are kept.
    machine.shell("echo '# ours' >> /etc/miot/log-client.toml");
    let before = SERVICES.map(|service| main_pid(&machine, service));
    install(&machine, &second, VERSIONS[1]);
    for (service, before) in SERVICES.iter().zip(before) {
        assert!(is_active(&machine, service), "{service}\n{}", machine.journal());
        assert_ne!(main_pid(&machine, service), before, "{service} is still the old one");
    }
    machine.shell("grep -q '^# ours' /etc/miot/log-client.toml");
    load_goes_on();

    let mut asked = Asked::default();
    recording.into_iter().for_each(|recording| recording.stop(&machine, node, &mut asked));
    machine.shell("systemctl stop miot-log-client");
    // Units stop by themselves after the remaining events are delivered. Until then the state is
    // "deactivating".
    until("recording has ended", || {
        machine.shell("systemctl show --property=ActiveState --value miot-recording").trim() == "inactive"
    });
    machine.shell(
        "systemctl stop miot-log-server
         test -z \"$(ls /dev/shm/miot/spool)\" -a -z \"$(ls /dev/shm/miot | grep -v -e control -e lock -e spool -e log-server)\"
         cp -r /var/lib/miot/trace /shared/trace",
    );
    let verdict = judge(&machine.shared.join("trace"), &asked, Rules::COMPLETE);
    eprintln!("packages: {verdict}; {} requests by the programs' own counts", asked.made());
    assert_eq!((verdict.lost, verdict.no_lane), (0, 0));
    assert!(verdict.delivered >= asked.made());

    machine.shell("systemctl start miot-log-server miot-log-client");
    units::leave_nothing_too_much(&machine);
    preloaded_programs_are_seen_from_outside(&machine);
    commands_have_pages_and_completions(&machine);
    removed_cleanly(&machine);
    machine.off();
    let _ = fs::remove_dir_all(&place);
}

fn reloads_tell_of_mistakes(machine: &Machine) {
    machine
        .shell("sed -i 's/^silent_after = .*/silent_after = \"4s\"/' /etc/miot/log-server.toml; systemctl reload miot-log-server");
    until("the log-server has read its configuration again", || {
        machine.journal().contains("the configuration was read again changed=\"silent_after\"")
    });
    machine
        .shell("cp /etc/miot/log-server.toml /root/kept; echo 'nonsense = 1' >> /etc/miot/log-server.toml");
    let reload = machine.run(["systemctl", "reload", "miot-log-server"]);
    assert_ne!(reload.code(), 0, "an error in the configuration is not reported");
    assert!(is_active(machine, "miot-log-server"));
    machine
        .shell("cp /root/kept /etc/miot/log-server.toml; systemctl reload miot-log-server miot-log-client");
}

/// Kills and stops the daemons. The watchdog restarts a stopped one.
fn killed_and_stopped_daemons_come_back(machine: &Machine, load_goes_on: &dyn Fn()) {
    for service in SERVICES {
        machine.shell(&format!(
            "mkdir -p /run/systemd/system/{service}.service.d
             printf '[Service]\\nWatchdogSec=2s\\nTimeoutAbortSec=1s\\n' > /run/systemd/system/{service}.service.d/soon.conf
             systemctl daemon-reload; systemctl restart {service}"
        ));
        for signal in ["KILL", "STOP"] {
            let before = main_pid(machine, service);
            machine.shell(&format!("kill -{signal} {before}"));
            until(&format!("{service} is there again after SIG{signal}"), || {
                is_active(machine, service) && ![0, before].contains(&main_pid(machine, service))
            });
            load_goes_on();
        }
        machine.shell(&format!(
            "rm -r /run/systemd/system/{service}.service.d; systemctl daemon-reload; systemctl restart {service}"
        ));
    }
}

/// With the settings of the documentation.
fn log_client_runs_with_real_time_priority(machine: &Machine, load_goes_on: &dyn Fn()) {
    let page = fs::read_to_string(root().join("docs/reference/losses.md")).unwrap();
    let settings = page.split("```ini\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    fs::write(machine.shared.join("priority.conf"), settings).unwrap();
    machine.shell(
        "mkdir -p /run/systemd/system/miot-log-client.service.d
         cp /shared/priority.conf /run/systemd/system/miot-log-client.service.d
         systemctl daemon-reload; systemctl restart miot-log-client",
    );
    let threads = machine.shell(&format!("chrt --all-tasks --pid {}", main_pid(machine, "miot-log-client")));
    let count = |text| threads.matches(text).count();
    assert!(count("policy: SCHED_FIFO") > 1, "{threads}");
    assert_eq!(count("policy: SCHED_FIFO"), count("policy:"), "{threads}");
    load_goes_on();
    machine.shell(
        "rm -r /run/systemd/system/miot-log-client.service.d
         systemctl daemon-reload; systemctl restart miot-log-client",
    );
}

/// Runs a preloaded program of a user to its end.
fn alice_copies(machine: &Machine, name: &str) {
    machine.shell(&format!(
        "systemd-run --quiet --pipe --wait --uid=alice --setenv=LD_PRELOAD=/usr/lib/miot/libmiot_posix.so \
            dd if=/etc/passwd of=/tmp/{name} status=none"
    ));
}

fn preloaded_programs_are_seen_from_outside(machine: &Machine) {
    let mut tail = machine.beside(&built().miot);
    let mut tail = Background::start(tail.args(["tail", "-f", "127.0.0.1:4747"]));
    let mut copies = 0;
    until("a copy by alice is visible from outside", || {
        assert!(tail.running(), "{}", tail.printed());
        copies += 1;
        alice_copies(machine, &format!("copy-{copies}"));
        tail.printed().contains("/tmp/copy-")
    });
    let (_, text) = tail.stop(Signal::INT);
    assert!(text.lines().any(|line| line.contains(" write ") && line.contains("/tmp/copy-")), "{text}");
    let run =
        machine.shell("cd /tmp; miot run -o run -- cat /etc/passwd > /dev/null; miot cat run --op read");
    assert!(run.contains("/etc/passwd"), "{run}");
    let asked = machine.shell("cd /tmp; miot query run \"SELECT path FROM io WHERE class = 'read'\"");
    assert!(asked.contains("/etc/passwd"), "{asked}");
    let asked = machine.shell(
        "echo 'MIOT_WORKER_PLACES=/var/lib/traces' > /etc/miot/query-worker.env; cp -r /tmp/run /var/lib/traces
        chmod -R a+rX /var/lib/traces; systemctl start miot-query-worker
        miot query /var/lib/traces --workers 127.0.0.1:4750 \"SELECT path FROM io WHERE class = 'read'\"
        systemctl stop miot-query-worker; rm -r /etc/miot/query-worker.env /var/lib/traces",
    );
    assert!(asked.contains("/etc/passwd"), "{asked}");
}

fn commands_have_pages_and_completions(machine: &Machine) {
    // The small Debian skips manual pages on installation, so the package files are checked.
    let listed = machine.shell("dpkg-deb --contents /shared/packages/miot-tools_*.deb");
    for file in [
        "man1/miot.1.gz",
        "man1/miot-run.1.gz",
        "man1/miot-pki-init.1.gz",
        "man1/miot-query.1.gz",
        "completions/miot",
        "_miot",
    ] {
        assert!(listed.contains(file), "{file}\n{listed}");
    }
    machine.shell("bash -c 'source /usr/share/bash-completion/completions/miot; complete -p miot'");
    machine.shell("test -e /usr/include/miot.h -a -e /usr/include/miot_caliper.h -a -e /usr/lib/libmiot.a -a -e /usr/lib/pkgconfig/miot.pc");
}

/// Removes the packages during a traced program, which must continue.
fn removed_cleanly(machine: &Machine) {
    let recording = Recording::start(machine, 9, "bob");
    recording.goes_on();
    machine.shell("dpkg -r miot-uploader miot-query miot-tools miot-dev miot-client miot-server");
    let refused = machine.shell("systemctl show --property=ActiveState --value recording-9");
    assert_eq!(refused.trim(), "active", "a traced program has ended");
    assert!(SERVICES.iter().all(|service| !is_active(machine, service)));
    machine.shell("test -e /etc/miot/log-client.toml -a -d /var/lib/miot/trace");
    machine.shell(&format!("kill -KILL {}; dpkg -P miot-client miot-server", recording.pid));
    let left = machine.shell(
        "find / -xdev '(' -path /shared -o -path /proc ')' -prune -o -name '*miot*' -print | \
            grep -v -e /var/lib/dpkg/info/format -e '^/run/systemd/' -e '^/tmp/' -e /var/log || true",
    );
    assert_eq!(left, "", "left behind");
    // Units that are only referred to are "not-found".
    let units = machine
        .shell("systemctl list-units --all --plain --no-legend 'miot*' | grep -v ' not-found ' || true");
    assert_eq!(units, "", "units left behind");
}
