//! Users that the daemons run as.

use crate::site::{Papers, authority, place, server_command};
use miot_tests::built::built;
use miot_tests::daemons::{free_port, ready};
use miot_tests::process::{Background, run};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

/// A user that every machine has and that owns nothing.
pub(crate) const NOBODY: u32 = 65534;

pub(crate) fn may_be_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: giving up privileges can be shown only by root");
    }
    root
}

/// Fields of /proc/…/status. They are the same in all threads.
pub(crate) fn status(daemon: &Background) -> impl Fn(&str) -> String + use<> {
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

pub(crate) fn capabilities(status: &impl Fn(&str) -> String, which: &str) -> u64 {
    u64::from_str_radix(&status(which), 16).unwrap()
}

#[test]
fn log_server_switches_to_an_ordinary_user() {
    if !may_be_root() {
        return;
    }
    let place = place("server-user");
    let (dir, port) = (place.join("pki"), free_port());
    authority(&dir);
    // The trace must be in a place that other users may enter. Its directory is created for them.
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
    // Only root may read the key, which was read earlier.
    assert!(server.printed().contains("cannot be read again"), "{}", server.printed());
    let text = server.end();
    assert!(!text.contains("running as root"), "{text}");

    let server = ready(&mut server_command(free_port(), &place.join("trace"), None));
    assert!(server.printed().contains("running as root"), "{}", server.printed());
    drop(server);
}

#[test]
fn unknown_user_is_refused() {
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
