//! A walk that is killed and resumed repeatedly has the figures of an uninterrupted one.

use super::{as_of, assert_same, figures, fsstats, snapshot, tree};
use miot_tests::process::{Background, signal_id, until};
use miot_tests::test_dir::fresh;
use rustix::process::Signal;
use serde_json::json;
use std::os::unix::fs::MetadataExt as _;

#[test]
fn walk_killed_many_times_equals_an_uninterrupted_one() {
    let place = fresh("fsstats-killed");
    let (dir, as_of, checkpoint) = (place.join("tree"), as_of(), place.join("walk.ckpt"));
    let _ = tree(&["many", dir.to_str().unwrap(), "100000"]);
    let expected = snapshot(&mut fsstats(&dir, as_of));
    assert_eq!(expected["contents"]["files"], 100_000);
    assert_eq!(expected["contents"]["further_links"], 4_999);
    assert_eq!(expected["contents"]["directories"], 1 + 20 + 400);

    let inode = || std::fs::metadata(&checkpoint).ok().map(|meta| meta.ino());
    let output = place.join("out.json");
    let mut kills = 0;
    loop {
        let mut command = fsstats(&dir, as_of);
        command.args(["--threads", "3", "--rate", "60000", "--checkpoint-every", "15ms", "--resume"]);
        command.arg("--checkpoint").arg(&checkpoint).arg("-o").arg(&output);
        let before = inode();
        let mut walk = Background::start(&mut command);
        until("a new checkpoint, or the end", || inode() != before || !walk.running());
        // Until this run has come further than the previous one.
        if !walk.running() {
            break;
        }
        signal_id(walk.id(), Signal::KILL);
        let _ = walk.stop(Signal::KILL);
        kills += 1;
    }
    let resumed: serde_json::Value = serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    assert!(kills >= 5, "killed {kills} times only");
    assert_same(&figures(&resumed), &figures(&expected));
    assert_eq!(resumed["errors"], json!([]));
    assert!(!checkpoint.exists(), "a walk that has ended needs no checkpoint");
}

#[test]
fn interrupted_walk_leaves_a_checkpoint() {
    let place = fresh("fsstats-interrupted");
    let (dir, as_of, checkpoint) = (place.join("tree"), as_of(), place.join("walk.ckpt"));
    let _ = tree(&["many", dir.to_str().unwrap(), "5000"]);
    let expected = snapshot(&mut fsstats(&dir, as_of));
    let mut command = fsstats(&dir, as_of);
    command.args(["--rate", "500", "--checkpoint-every", "1ms", "--checkpoint"]).arg(&checkpoint);
    let walk = Background::start(&mut command);
    until("a checkpoint", || checkpoint.exists());
    let (status, text) = walk.stop(Signal::INT);
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(text.contains("use --resume to continue from"), "{text}");
    let resumed = snapshot(fsstats(&dir, as_of).args(["--resume", "--checkpoint"]).arg(&checkpoint));
    assert_same(&figures(&resumed), &figures(&expected));
}
