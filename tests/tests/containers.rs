//! Programs in their own process id and mount namespaces, which see the MIOT directory at another
//! path. They are recorded; running programs are not treated as dead, and dead ones are detected,
//! even if their process ids are used outside.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::built;
use miot_tests::daemons::{client, free_port, server, until_all_inspected};
use miot_tests::process::{Background, until};
use miot_tests::test_dir::fresh;
use miot_tests::traced::{assert_good, events};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A process id that is probably unused outside, and is below the largest possible one.
const HIGH: u32 = 4_000_000;

/// Two programs that write a word and then hang: one with a small process id and one with a large
/// one, if ids can be chosen.
const INSIDE: &str = r#"
    mount --bind "$MIOT_OUTSIDE" "$MIOT_DIR" || exit 1
    export LD_PRELOAD="$MIOT_HOOK"
    sh -c 'echo low > low; cat gate' &
    echo 4000000 > /proc/sys/kernel/ns_last_pid
    sh -c 'echo high > high; cat gate' &
    wait
"#;

/// Process ids in the names of the segments.
fn segments(dir: &Path) -> Vec<u32> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(".seg")?.split_once('-')?.0.parse().ok()).collect()
}

#[test]
fn segments_in_a_container_live_as_long_as_their_programs() {
    let place = fresh("containers");
    fs::create_dir(place.join("inside")).unwrap();
    mknodat(CWD, place.join("gate"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let (trace, dir, port) = (place.join("trace"), shared.path().join("miot"), free_port());
    let server = server(port, &trace);
    let client = client(port, "node", &dir);

    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", INSIDE]);
    unshare.current_dir(&place).env("MIOT_OUTSIDE", &dir).env("MIOT_DIR", place.join("inside"));
    let mut container = Background::start(unshare.env("MIOT_HOOK", &built().hook));
    until("both programs have a segment", || {
        assert!(container.running(), "{}", container.printed());
        ["low", "high"].iter().all(|file| place.join(file).exists()) && segments(&dir).len() >= 2
    });
    // Checks must not remove them.
    let seen = segments(&dir);
    until_all_inspected(&dir);
    assert!(container.running());
    assert!(seen.iter().all(|pid| segments(&dir).contains(pid)), "{seen:?}, then {:?}", segments(&dir));
    assert!(
        seen.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()),
        "process ids that are used outside: {seen:?}"
    );
    if !seen.iter().any(|pid| *pid > HIGH) {
        eprintln!("NOT TESTED: numbers cannot be chosen here, {seen:?}");
    }

    let _ = container.stop(Signal::KILL);
    until("nothing is left of them", || segments(&dir).is_empty());
    client.end();
    server.end();
    let rows = events(&trace);
    for (name, bytes) in [("low", 4), ("high", 5)] {
        let path = place.join(name).display().to_string();
        let written =
            rows.iter().filter(|row| row.path.as_deref() == Some(path.as_str()) && row.op == "write");
        assert_eq!(written.map(|row| row.result).collect::<Vec<_>>(), [bytes], "{name}");
    }
    assert_good(&trace);
}
