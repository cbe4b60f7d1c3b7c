//! What the daemons are once they run, and that it is enough.

use crate::site::{Papers, authority, place, ready, server_command, writes};
use miot_proto::control;
use miot_tests::built::built;
use miot_tests::daemons::{free_port, preloaded, server};
use miot_tests::process::{Background, run, until};
use miot_tests::traced::{events, fsck};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::process::Command;

/// A user that every machine has and who owns nothing.
const NOBODY: u32 = 65534;
/// Another.
const DAEMON: u32 = 1;
/// `CAP_DAC_OVERRIDE`, `CAP_SYS_PTRACE`, `CAP_LEASE`.
const NEEDED: u64 = 1 << 1 | 1 << 19 | 1 << 28;

fn may_be_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: giving up privileges can be shown only by root");
    }
    root
}

/// Fields of /proc/…/status, the same in all threads.
fn status(daemon: &Background) -> impl Fn(&str) -> String + use<> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap();
    let all: Vec<String> =
        tasks.flatten().flat_map(|task| fs::read_to_string(task.path().join("status"))).collect();
    assert!(all.len() > 1, "there are threads");
    move |key| {
        let of = |text: &String| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}:")));
            line.unwrap_or_else(|| panic!("{key} in {text}")).split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let first = of(&all[0]);
        assert!(all.iter().all(|text| of(text) == first), "{key} is the same in all threads");
        first
    }
}

fn capabilities(status: &impl Fn(&str) -> String, which: &str) -> u64 {
    u64::from_str_radix(&status(which), 16).unwrap()
}

#[test]
fn a_log_client_keeps_three_capabilities_and_reads_everybody() {
    if !may_be_root() {
        return;
    }
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let ours = own.lines().find_map(|line| line.strip_prefix("CapPrm:")).unwrap();
    let ours = u64::from_str_radix(ours.trim(), 16).unwrap();
    if ours & NEEDED != NEEDED {
        return println!("SKIPPED: root of this machine does not have the capabilities {NEEDED:x}");
    }
    for user in [None, Some("nobody")] {
        let place = place(&format!("client-{}", user.unwrap_or("root")));
        let (trace, port) = (place.join("trace"), free_port());
        let server = server(port, &trace);
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // As the log-client makes it where everybody looks for it.
        let dir = shared.path().join("miot");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
        let uid = user.map_or(0, |_| NOBODY);
        chown(&dir, Some(uid), Some(uid)).unwrap();
        // Everybody may write here, and files here are recorded.
        let out = tempfile::tempdir().unwrap();
        fs::set_permissions(out.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let hook = shared.path().join("libmiot_posix.so");
        fs::copy(&built().hook, &hook).unwrap();

        let mut command = Command::new(&built().log_client);
        command.args(["--node", "node", "--server", &format!("127.0.0.1:{port}")]).arg("--dir").arg(&dir);
        command.args(user.iter().flat_map(|user| ["--user", user]));
        let mut client = Background::start(&mut command);
        until("the log-client has made its control page", || {
            assert!(client.running(), "log-client ended\n{}", client.printed());
            dir.join(control::FILE).exists()
        });

        for writer in [0, DAEMON, NOBODY] {
            let mut dd = preloaded("setpriv", &dir);
            dd.env("LD_PRELOAD", "").args([format!("--reuid={writer}"), format!("--regid={writer}")]);
            dd.args(["--clear-groups", "env"]).arg(format!("LD_PRELOAD={}", hook.display()));
            let of = format!("of={}", out.path().join(writer.to_string()).display());
            let _ = run(dd.args(["dd", "if=/dev/zero", &of, "bs=512", "count=10"])).success();
        }
        let status = status(&client);
        assert_eq!(status("Uid"), format!("{uid} {uid} {uid} {uid}"));
        for (which, expected) in
            [("CapInh", 0), ("CapPrm", NEEDED), ("CapEff", NEEDED), ("CapBnd", NEEDED), ("CapAmb", 0)]
        {
            assert_eq!(capabilities(&status, which), expected, "{which} as {user:?}");
        }
        assert_eq!(status("NoNewPrivs"), "1");
        until("the segments of all are gone", || {
            let names = fs::read_dir(&dir).unwrap().flatten().map(|entry| entry.file_name());
            let known = ["control", "lock", "spool"];
            names.into_iter().all(|name| name.to_str().is_some_and(|name| known.contains(&name)))
        });
        for (name, daemon) in [("log-client", client), ("log-server", server)] {
            let (status, text) = daemon.stop(Signal::TERM);
            assert!(status.success(), "{name}: {status}\n{text}");
        }
        let report = fsck(&trace);
        assert_eq!(report.code(), 0, "{}{}", report.stdout, report.stderr);
        assert_eq!(writes(&events(&trace), "node"), 30, "as {user:?}");
    }
}

#[test]
fn a_log_server_becomes_an_ordinary_user() {
    if !may_be_root() {
        return;
    }
    let place = place("server-user");
    let (dir, port) = (place.join("pki"), free_port());
    authority(&dir);
    // The trace must be somewhere where others may go; its directory is made for them.
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let trace = open.path().join("trace");
    let mut command = server_command(port, &trace, Some(&Papers::new(&dir, "server/localhost")));
    let server = ready(command.args(["--user", "nobody"]));
    let status = status(&server);
    assert_eq!(status("Uid"), format!("{NOBODY} {NOBODY} {NOBODY} {NOBODY}"));
    assert_eq!(status("Gid").split(' ').next(), Some("65534"));
    assert!(status("Groups").split_whitespace().all(|group| group == "65534"), "{}", status("Groups"));
    for which in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(capabilities(&status, which), 0, "{which}");
    }
    assert_eq!(capabilities(&status, "CapBnd"), 0);
    assert_eq!(status("NoNewPrivs"), "1");
    assert_eq!(fs::metadata(&trace).unwrap().uid(), NOBODY);
    // Only root may read the key, which was read before.
    assert!(server.printed().contains("cannot be read again"), "{}", server.printed());
    let (status, text) = server.stop(Signal::TERM);
    assert!(status.success(), "{text}");
    assert!(!text.contains("running as root"), "{text}");

    let server = ready(&mut server_command(free_port(), &place.join("trace"), None));
    assert!(server.printed().contains("running as root"), "{}", server.printed());
    drop(server);
}

#[test]
fn a_user_that_does_not_exist() {
    let place = place("no-user");
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut client = Command::new(&built().log_client);
    client.args(["--user", "no-such-user", "--dir"]).arg(shared.path().join("miot"));
    let mut server = server_command(free_port(), &place.join("trace"), None);
    server.args(["--user", "no-such-user"]);
    for mut command in [client, server] {
        let ended = run(&mut command);
        assert_eq!(ended.code(), 2, "{}", ended.stderr);
        assert!(ended.stderr.contains("there is no user `no-such-user`"), "{}", ended.stderr);
    }
}
