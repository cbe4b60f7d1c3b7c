//! Permission to control a node, and the messages where no node can be controlled.

use super::{ControlDirs, refused};
use miot_tests::built::built;
use miot_tests::process::run;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn ctl_without_a_log_client_names_the_reason() {
    let place = ControlDirs::new("refused");
    let says = |dir: &Path, what: &str, advice: &str| {
        for words in [&["off"][..], &["snapshot"], &["set", "--sample", "1/2"], &["status"]] {
            let (code, text) = refused(dir, words);
            assert!(code == 1 && text.contains(what) && text.contains(advice), "{words:?}: {code} {text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    };
    says(&place.path.join("nowhere"), "no log-client serves", "start log-client, or give its directory");
    let node = place.node();
    let dir = node.dir.clone();
    for (words, what) in [
        (&["set"][..], "nothing to set"),
        (&["set", "--flight-recorder", "on", "--when-full", "wait"], "`overwrite-oldest`, not `wait`"),
    ] {
        let (code, text) = refused(&dir, words);
        assert!(code == 1 && text.contains(what), "{words:?}: {code} {text}");
    }
    for (words, what) in [
        (&["set", "--sample", "1/10"][..], "e.g. 1/16"),
        (&["set", "--ops", "raed"], "posix.read"),
        (&["set", "--min-duration", "10"], "500us"),
        (&["set", "--when-full", "block"], "overwrite-oldest"),
        (&["of"], "off"),
    ] {
        let (code, text) = refused(&dir, words);
        assert!(code == 2 && text.contains(what), "{words:?}: {code} {text}");
    }
    node.freeze();
    says(&dir, "has not swept", "SIGSTOP");
    node.signal(Signal::CONT);
    node.steer(&["on"]);
    drop(node);
    says(&dir, "is dead, its lock is free", "start it again");
    let place = ControlDirs::new("refused-ended");
    let node = place.node();
    let dir = node.dir.clone();
    let _ = node.end();
    says(&dir, "has ended", "start it again");
}

#[test]
fn another_user_may_not_control_a_node() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can become another user");
        return;
    }
    let place = ControlDirs::new("user");
    let node = place.node();
    let tool = tempfile::tempdir().unwrap();
    for folder in [tool.path(), place.shared.path(), &node.dir] {
        fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    // A copy at a place where all users may execute it, which shared memory may not permit.
    let miot = tool.path().join("miot");
    let _ = fs::copy(&built().miot, &miot).unwrap();
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&miot).args(words);
        run(command.arg("--dir").arg(&node.dir))
    };
    for words in [&["ctl", "off"][..], &["ctl", "snapshot"], &["ctl", "set", "--sample", "1/2"]] {
        let ended = as_nobody(words);
        let says = "cannot be written by user 65534, it belongs to user 0: only the user who runs the log-client and root";
        assert!(
            ended.code() == 1 && ended.stderr.contains(says),
            "{words:?}: {} {}",
            ended.code(),
            ended.stderr
        );
    }
    assert_eq!((&node.status()["enabled"], &node.status()["snapshots_asked"]), (&true.into(), &0.into()));
    let status: Value =
        serde_json::from_str(&as_nobody(&["ctl", "status", "--format", "json"]).success().stdout).unwrap();
    for key in ["dir", "log_client", "pid", "ops", "enabled", "tsc_hz", "when_full"] {
        assert_eq!(status[key], node.status()[key], "all users may read the status: {key}");
    }
    node.freeze();
    let still = as_nobody(&["ctl", "status"]);
    assert!(
        still.code() == 1
            && still.stderr.contains("has not swept")
            && still.stdout.contains("silent: process")
    );
    node.signal(Signal::CONT);
    let mut program = place.own(&node);
    program.tell("own 1");
    let top = as_nobody(&["top", "--in-flight"]).success();
    assert!(top.stderr.contains("1 processes of other users are not shown"), "{}", top.stderr);
    program.end();
    let _ = node.end();
}
