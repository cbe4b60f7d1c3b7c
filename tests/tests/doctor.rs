//! `miot doctor` names each problem and its fix. Each problem is created here once.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, VERSION, frame_header};
use miot_tests::built::built;
use miot_tests::daemons::{client, client_command, free_port, server, started};
use miot_tests::process::{Background, run, signal_id};
use miot_tests::test_dir::fresh;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// A healthy node.
struct Node {
    place: PathBuf,
    dir: PathBuf,
    config: PathBuf,
    port: u16,
    server: Background,
    client: Background,
    _shared: tempfile::TempDir,
}

impl Node {
    fn new(name: &str) -> Node {
        let place = fresh(&format!("doctor-{name}"));
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let (dir, port) = (shared.path().join("miot"), free_port());
        let server = server(port, &place.join("trace"));
        let client = client(port, "n1", &dir);
        let node =
            Node { config: place.join("client.toml"), place, dir, port, server, client, _shared: shared };
        node.configure("");
        node
    }

    fn configure(&self, more: &str) {
        let text = format!(
            "dir = {:?}\nnode = \"n1\"\nserver = \"localhost:{}\"\nnode_bytes = \"64 MiB\"\n{more}",
            self.dir, self.port
        );
        fs::write(&self.config, text).unwrap();
    }

    fn doctor(&self) -> Command {
        let mut command = Command::new(&built().miot);
        command.args(["doctor", "--format", "json", "--config"]).arg(&self.config).env_remove("MIOT_DIR");
        command
    }

    /// Returns verdict and text of one check. Checks that the exit code matches the problems.
    fn finds(&self, command: &mut Command, check: &str) -> (String, String) {
        let output = command.output().unwrap();
        let findings: Vec<Value> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect();
        let of = |finding: &Value| {
            format!("{}: {}", finding["area"].as_str().unwrap(), finding["check"].as_str().unwrap())
        };
        let problems = findings.iter().any(|finding| finding["verdict"] == "problem");
        assert_eq!(output.status.code(), Some(i32::from(problems)), "{findings:#?}");
        for finding in findings.iter().filter(|finding| finding["verdict"] != "ok") {
            assert!(finding["mend"].as_str().is_some_and(|fix| !fix.is_empty()), "{finding}");
        }
        let worst = findings.iter().filter(|finding| of(finding) == check).max_by_key(|finding| {
            ["ok", "warning", "problem"].iter().position(|verdict| finding["verdict"] == **verdict)
        });
        let finding = worst.unwrap_or_else(|| panic!("no check {check}: {findings:#?}"));
        (finding["verdict"].as_str().unwrap().to_owned(), format!("{} {}", finding["found"], finding["mend"]))
    }

    #[track_caller]
    fn expect(&self, command: &mut Command, check: &str, verdict: &str, word: &str) {
        let (found, said) = self.finds(command, check);
        assert!(found == verdict && said.contains(word), "{check} is {found}: {said}");
    }

    fn end(self) {
        let _ = self.client.stop(Signal::TERM);
        self.server.end();
    }
}

#[test]
fn healthy_node_has_no_problems() {
    let node = Node::new("well");
    let mut command = Command::new(&built().miot);
    let output = run(command.args(["doctor", "--config"]).arg(&node.config).env_remove("MIOT_DIR")).success();
    assert!(output.stdout.contains(" 0 problems") && !output.stdout.contains("PROBLEM"), "{}", output.stdout);
    for check in
        ["memory: log-client", "library: records", "connection: accepted", "disk: spool", "clock: counter"]
    {
        assert!(output.stdout.contains(check), "{check}: {}", output.stdout);
    }
    let (verdict, said) = node.finds(&mut node.doctor(), "clock: offset");
    assert!(verdict == "ok" && said.contains("round trip"), "asked the log-server: {said}");
    node.end();
}

#[test]
fn broken_node_is_diagnosed() {
    let node = Node::new("broken");
    let doctor = || node.doctor();

    node.configure("nonsense = 1\n");
    node.expect(&mut doctor(), "configuration: log-client", "problem", "nonsense");
    node.configure("");

    // Recording is off.
    let ctl = |word: &str| {
        run(Command::new(&built().miot).arg("ctl").arg("--dir").arg(&node.dir).arg(word)).success()
    };
    let _ = ctl("off");
    node.expect(&mut doctor(), "memory: log-client", "warning", "miot ctl");
    let _ = ctl("on");

    // The MIOT directory: not in memory; without a log-client; users could remove each other's
    // files.
    let mut elsewhere = doctor();
    elsewhere.arg("--dir").arg(node.place.join("elsewhere"));
    node.expect(&mut elsewhere, "memory: mounted", "problem", "tmpfs");
    node.expect(&mut elsewhere, "memory: log-client", "problem", "start");
    let mode = fs::metadata(&node.dir).unwrap().permissions();
    fs::set_permissions(&node.dir, fs::Permissions::from_mode(0o777)).unwrap();
    node.expect(&mut doctor(), "memory: permissions", "problem", "chmod 1777");
    fs::set_permissions(&node.dir, mode).unwrap();

    // Limits.
    let mut limited = Command::new("sh");
    let words = "ulimit -Sn 100; ulimit -Hn 100; ulimit -f 100; exec \"$0\" doctor --format json --config \"$1\" --dir \"$2\"";
    limited.args(["-c", words]).arg(&built().miot).arg(&node.config).arg(node.place.join("none"));
    node.expect(&mut limited, "limits: open files", "problem", "LimitNOFILE");
    node.expect(&mut limited, "limits: file size", "warning", "ulimit -f");

    // The library: missing, for another machine, not a library.
    let hooks = node.place.join("hooks");
    fs::create_dir(&hooks).unwrap();
    node.expect(doctor().env("MIOT_HOOK_DIR", &hooks), "library: found", "problem", "miot-client");
    let file = hooks.join("libmiot_posix.so");
    let mut bytes = fs::read(&built().hook).unwrap();
    bytes[18] ^= 0x40;
    fs::write(&file, &bytes).unwrap();
    node.expect(doctor().env("MIOT_HOOK_DIR", &hooks), "library: kind", "problem", "another machine");
    bytes[18] ^= 0x40;
    bytes.truncate(4096);
    fs::write(&file, &bytes).unwrap();
    node.expect(doctor().env("MIOT_HOOK_DIR", &hooks), "library: loads", "problem", "LD_DEBUG");

    // The connection: an invalid name, a port without a service, another service.
    let nobody = free_port();
    node.expect(
        doctor().args(["--server", "no-such-host.invalid:1"]),
        "connection: name",
        "problem",
        "getent",
    );
    let at = format!("localhost:{nobody}");
    node.expect(doctor().args(["--server", &at]), "connection: reached", "problem", "firewall");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("127.0.0.1:{}", other.local_addr().unwrap().port());
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let accepted = "connection: accepted";
    node.expect(doctor().args(["--server", &at]), accepted, "problem", "MIOT protocol but HTTP");
    answer.join().unwrap();

    // Disk: an impossible spool.
    fs::write(node.place.join("file"), "").unwrap();
    node.configure(&format!("spool_dir = {:?}\n", node.place.join("file")));
    node.expect(&mut doctor(), "disk: spool", "problem", "not a directory");
    node.configure("spool_dir = \"/proc/spool\"\n");
    node.expect(&mut doctor(), "disk: spool", "problem", "/proc");

    // The log-server's side.
    let server_config = node.place.join("server.toml");
    fs::write(&server_config, "trace = \"/proc/trace\"\n").unwrap();
    node.expect(doctor().arg("--server-config").arg(&server_config), "disk: trace", "problem", "/proc");
    node.configure("");

    // The log-client is killed.
    signal_id(node.client.id(), Signal::KILL);
    node.expect(&mut doctor(), "memory: log-client", "problem", "start");
    node.end();
}

/// The configuration was changed, and the log-client was not restarted.
#[test]
fn server_of_the_running_log_client_is_checked() {
    let node = Node::new("other-server");
    node.expect(&mut node.doctor(), "connection: log-server", "ok", "as configured");
    let nobody = free_port();
    let text = fs::read_to_string(&node.config).unwrap();
    fs::write(&node.config, text.replace(&format!(":{}", node.port), &format!(":{nobody}"))).unwrap();
    let mut doctor = node.doctor();
    node.expect(&mut doctor, "connection: log-server", "warning", &format!("127.0.0.1:{}", node.port));
    node.expect(&mut doctor, "connection: log-server", "warning", &format!("localhost:{nobody}"));
    node.expect(&mut doctor, "connection: accepted", "ok", "served");
    // The requested server is the one that is checked.
    let at = format!("localhost:{nobody}");
    node.expect(node.doctor().args(["--server", &at]), "connection: reached", "problem", "firewall");
    node.end();
}

#[test]
fn mismatched_certificates_are_diagnosed() {
    let node = Node::new("certificates");
    let pki = node.place.join("pki");
    let miot = |words: &[&str]| {
        let mut command = Command::new(&built().miot);
        run(command.arg("pki").args(words).current_dir(&node.place)).success()
    };
    let _ = miot(&["init", "pki"]);
    let _ = miot(&["node", "pki", "n1"]);
    let _ = miot(&["node", "pki", "n2"]);
    let _ = miot(&["init", "other", "--name", "somebody else"]);
    let files = |certificate: &str, key: &str, authority: &Path| {
        let find = |name: &str| {
            let found = walk(&pki).into_iter().find(|path| path.ends_with(name));
            found.unwrap_or_else(|| panic!("no {name} below {}: {:?}", pki.display(), walk(&pki)))
        };
        format!(
            "tls_certificate = {:?}\ntls_key = {:?}\ntls_authority = {authority:?}\n",
            find(certificate),
            find(key)
        )
    };
    let authority = pki.join("ca.pem");
    node.configure(&files("n1.pem", "n1.key", &authority));
    node.expect(&mut node.doctor(), "certificates: name", "ok", "n1");
    node.expect(&mut node.doctor(), "certificates: authority", "ok", "days");
    node.expect(&mut node.doctor(), "connection: handshake", "problem", "TLS");
    node.configure(&files("n2.pem", "n2.key", &authority));
    node.expect(&mut node.doctor(), "certificates: name", "problem", "n2");
    let _ = miot(&["node", "pki", "late", "--not-after", "2026-01-01"]);
    let _ = miot(&["node", "pki", "soon", "--days", "5"]);
    node.configure(&files("late.pem", "late.key", &authority));
    node.expect(&mut node.doctor(), "certificates: expiry", "problem", "expired on 2026-01-01");
    node.configure(&files("soon.pem", "soon.key", &authority));
    node.expect(&mut node.doctor(), "certificates: expiry", "warning", "4 days left");
    let _ = miot(&["init", "old", "--not-after", "2026-01-01"]);
    node.configure(&files("n1.pem", "n1.key", &node.place.join("old/ca.pem")));
    node.expect(&mut node.doctor(), "certificates: authority", "problem", "expired on 2026-01-01");
    node.configure(&files("n1.pem", "n2.key", &authority));
    node.expect(&mut node.doctor(), "certificates: files", "problem", "does not belong");
    node.configure(&files("n1.pem", "n1.key", &node.place.join("other/ca.pem")));
    node.expect(&mut node.doctor(), "certificates: authority", "warning", "signed by");
    node.configure("tls_certificate = \"/nonexistent.pem\"\n");
    node.expect(&mut node.doctor(), "configuration: log-client", "problem", "tls_key");
    let key = walk(&pki).into_iter().find(|path| path.ends_with("n1.key")).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    node.configure(&files("n1.pem", "n1.key", &authority));
    node.expect(&mut node.doctor(), "certificates: files", "problem", "chmod 600");
    node.end();
}

#[test]
fn version_mismatch_is_diagnosed() {
    let node = Node::new("versions");
    // The tool looks for the daemons in its own directory.
    let bin = node.place.join("bin");
    fs::create_dir(&bin).unwrap();
    let here = |program: &Path| {
        let path = bin.join(program.file_name().unwrap());
        fs::hard_link(program, &path).or_else(|_| fs::copy(program, &path).map(drop)).unwrap();
        path
    };
    let tool = here(&built().miot);
    let doctor = || {
        let mut command = Command::new(&tool);
        command.args(["doctor", "--format", "json", "--config"]).arg(&node.config).env_remove("MIOT_DIR");
        command
    };
    for (program, check) in [("log-client", "versions: log-client"), ("log-server", "versions: log-server")] {
        let path = bin.join(program);
        let install = |script: &str, mode| {
            let _ = fs::remove_file(&path);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        install(&format!("echo {program} 99.1.2"), 0o755);
        node.expect(&mut doctor(), check, "warning", "99.1.2");
        install("exit 3", 0o755);
        node.expect(&mut doctor(), check, "problem", "reinstall");
        install("", 0o644);
        node.expect(&mut doctor(), check, "problem", "chmod 755");
        install(&format!("echo {program} {}", env!("CARGO_PKG_VERSION")), 0o755);
        node.expect(&mut doctor(), check, "ok", "same as this tool");
    }

    // An upgrade replaced the file of the running log-client.
    let dir = node.dir.with_file_name("upgraded");
    fs::remove_file(bin.join("log-client")).unwrap();
    let options = client_command(&format!("127.0.0.1:{}", node.port), "n1", &dir);
    let client = started(Command::new(here(&built().log_client)).args(options.get_args()), &dir);
    node.expect(doctor().arg("--dir").arg(&dir), "versions: running", "ok", "log-client");
    fs::remove_file(bin.join("log-client")).unwrap();
    node.expect(doctor().arg("--dir").arg(&dir), "versions: running", "warning", "restart");
    drop(client.stop(Signal::TERM));
    node.end();
}

/// Starts a server that only answers `miot doctor`, with a clock error of `offset`. Returns its
/// port.
fn server_with_clock(offset: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut header = [0; FRAME_HEADER];
        while stream.read_exact(&mut header).is_ok() {
            let (length, crc) = frame_header(header, MAX_FRAME).unwrap();
            let mut payload = vec![0; length];
            stream.read_exact(&mut payload).unwrap();
            let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + offset;
            let time = time.as_nanos() as i64;
            let answer = match Message::from_payload(&payload, crc).unwrap() {
                Message::Ping { sent } => Message::Pong { sent, received: time, answered: time },
                _ => Message::Welcome { version: VERSION, through: 0 },
            };
            stream.write_all(&answer.frame()).unwrap();
        }
    });
    port
}

#[test]
fn clock_offset_is_diagnosed() {
    let node = Node::new("clock");
    let at = format!("127.0.0.1:{}", server_with_clock(Duration::from_secs(7200)));
    node.expect(node.doctor().args(["--server", &at]), "clock: offset", "warning", "behind the log-server");
    node.end();
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
