//! Unreadable directories, changes during the walk, mounts, and invalid files.

use super::{as_of, assert_same, figures, fsstats, snapshot, tree};
use miot_tests::built::built;
use miot_tests::process::{Background, run, until};
use miot_tests::test_dir::fresh;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

const NOBODY: u32 = 65_534;

#[test]
fn unreadable_directories_are_counted() {
    // A directory that all users may enter.
    let place = tempfile::Builder::new().prefix("fsstats-").tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let dir = place.path().join("tree");
    fs::create_dir_all(dir.join("closed/inside")).unwrap();
    fs::create_dir_all(dir.join("no-search")).unwrap();
    fs::write(dir.join("no-search/file"), "x").unwrap();
    fs::write(dir.join("open"), "x").unwrap();
    fs::set_permissions(dir.join("closed"), Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(dir.join("no-search"), Permissions::from_mode(0o744)).unwrap();
    let miot = place.path().join("miot");
    fs::copy(&built().miot, &miot).unwrap();
    let mut command = Command::new(&miot);
    command.args(["fsstats", "--format", "json"]).arg(&dir).uid(NOBODY).gid(NOBODY);
    let found = snapshot(&mut command);
    assert_eq!((&found["contents"]["directories"], &found["contents"]["files"]), (&json!(3), &json!(1)));
    let error =
        |step: &str, path: &str| json!({ "step": step, "error": "EACCES", "count": 1, "examples": [path] });
    assert_eq!(found["errors"], json!([error("stat", "no-search/file"), error("open", "closed")]));
    let all = snapshot(&mut fsstats(&dir, as_of()));
    assert_eq!((&all["contents"]["directories"], &all["contents"]["files"]), (&json!(4), &json!(2)));
}

#[test]
fn vanishing_directories_do_not_end_the_walk() {
    let place = fresh("fsstats-vanishes");
    let (dir, checkpoint) = (place.join("tree"), place.join("walk.ckpt"));
    let _ = tree(&["many", dir.to_str().unwrap(), "20000"]);
    let mut command = fsstats(&dir, as_of());
    command.args(["--threads", "1", "--rate", "4000", "--checkpoint-every", "1ms", "--checkpoint"]);
    let output = place.join("out.json");
    command.arg(&checkpoint).arg("-o").arg(&output);
    let walk = Background::start(&mut command);
    until("the walk is under way", || checkpoint.exists());
    for part in 0..3 {
        fs::remove_dir_all(dir.join(part.to_string())).unwrap();
    }
    until("the end", || output.exists());
    let (status, text) = walk.stop(Signal::TERM);
    assert!(status.success(), "{text}");
    let found: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
    assert!(found["contents"]["files"].as_u64().unwrap() >= 5_000);
    for row in found["errors"].as_array().unwrap() {
        assert_eq!(row["error"], "ENOENT", "{row}");
    }
}

#[test]
fn mounts_are_skipped_and_a_mount_loop_ends() {
    let place = fresh("fsstats-mounts");
    let dir = place.join("tree");
    fs::create_dir_all(dir.join("a/loop")).unwrap();
    fs::create_dir_all(dir.join("other")).unwrap();
    fs::create_dir_all(dir.join("kernel")).unwrap();
    fs::write(dir.join("a/file"), "12345").unwrap();
    fs::write(dir.join("mounted-file"), "").unwrap();
    let miot = built().miot.display();
    let script = format!(
        "cd {} && mount --bind tree tree/a/loop && mount -t tmpfs x tree/other && mount -t proc x tree/kernel &&
         mount --bind tree/a/file tree/mounted-file && printf 123 > tree/other/in-it &&
         {miot} fsstats tree --format json > own.json && {miot} fsstats tree --cross --format json > all.json",
        place.display()
    );
    let _ =
        run(Command::new("unshare").args(["-m", "--propagation", "private", "sh", "-ec", &script])).success();
    let read =
        |name: &str| -> Value { serde_json::from_slice(&fs::read(place.join(name)).unwrap()).unwrap() };
    let (own, all) = (read("own.json"), read("all.json"));
    // tree, a; a/file
    let totals = |found: &Value| {
        let contents = &found["contents"];
        json!([
            contents["directories"],
            contents["files"],
            contents["names"],
            found["totals"]["size"],
            found["mounts"]
        ])
    };
    assert_eq!(totals(&own), json!([2, 1, 2, 5, 4]));
    let mut left: Vec<_> = own["mounts_named"].as_array().unwrap().iter().map(Value::to_string).collect();
    left.sort();
    assert_eq!(left.join(" "), r#""a/loop" "kernel" "mounted-file" "other""#);
    // Also other and other/in-it, but not the loop, /proc, and the file that is counted already.
    assert_eq!(totals(&all), json!([3, 2, 4, 8, 3]));
}

#[test]
fn access_times_of_directories_are_unchanged() {
    let place = fresh("fsstats-atime");
    let dir = place.join("tree");
    fs::create_dir_all(dir.join("a/b")).unwrap();
    std::os::unix::fs::symlink("target", dir.join("a/link")).unwrap();
    let _ = run(Command::new("touch")
        .args(["-h", "-d", "2001-01-01"])
        .args(["a/b", "a/link", "a", "."].map(|name| dir.join(name))));
    let times =
        || ["a/b", "a", "", "a/link"].map(|name| fs::symlink_metadata(dir.join(name)).unwrap().atime());
    let before = times();
    assert_eq!(before[0], before[2]);
    let _ = snapshot(&mut fsstats(&dir, as_of()));
    assert_eq!(times(), before);
}

#[test]
fn invalid_files_are_refused() {
    let place = fresh("fsstats-refused");
    let dir = place.join("tree");
    let _ = tree(&["many", dir.to_str().unwrap(), "600"]);
    let fails = |command: &mut Command, says: &str| {
        let ended = run(command);
        assert_eq!(ended.code(), 1, "{}", ended.stdout);
        assert!(ended.stderr.contains(says), "{says}: {}", ended.stderr);
        assert_eq!(ended.stdout, "");
    };
    let at = as_of();
    let checkpoint = place.join("walk.ckpt");
    let with = |dir: &Path, more: &[&str]| {
        let mut command = fsstats(dir, at);
        command.arg("--checkpoint").arg(&checkpoint).args(more);
        command
    };
    fails(&mut fsstats(&place.join("none"), at), "No such file");
    for option in ["-o", "--checkpoint"] {
        fails(fsstats(&dir, at).args([option, "/proc/file"]), "cannot write into /proc");
    }
    fs::write(&checkpoint, "something of mine").unwrap();
    fails(&mut with(&dir, &[]), "add --resume to continue from it, or remove it");
    fails(&mut with(&dir, &["--resume"]), "is not a checkpoint of miot fsstats");
    fs::remove_file(&checkpoint).unwrap();
    let walk = Background::start(&mut with(&dir, &["--rate", "100", "--checkpoint-every", "1ms"]));
    until("a checkpoint", || checkpoint.exists());
    let _ = walk.stop(Signal::INT);
    fails(&mut with(&place, &["--resume"]), "is of another walk");
    fails(&mut with(&dir, &["--resume", "--exclude", "x"]), "other options");
    let good = fs::read(&checkpoint).unwrap();
    for at in [9, 20, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&checkpoint, bad).unwrap();
        fails(&mut with(&dir, &["--resume"]), "is damaged");
    }
    fs::write(&checkpoint, &good[..good.len() / 2]).unwrap();
    fails(&mut with(&dir, &["--resume"]), "is damaged");
    fs::write(&checkpoint, &good).unwrap();
    let expected = snapshot(&mut fsstats(&dir, at));
    assert_same(&figures(&snapshot(&mut with(&dir, &["--resume"]))), &figures(&expected));

    let path = place.join("snapshot.json");
    let compare = || {
        let mut command = Command::new(&built().miot);
        command.args(["fsstats", "--compare"]).arg(&path).arg(&path);
        command
    };
    fails(&mut compare(), "cannot read");
    for (text, says) in [
        ("{}", "is not a snapshot"),
        (r#"{"format":"miot-fsstats","version":2}"#, "upgrade MIOT"),
        (r#"{"format":"miot-fsstats","version":1}"#, "is damaged"),
    ] {
        fs::write(&path, text).unwrap();
        fails(&mut compare(), says);
    }
    let ended = run(Command::new(&built().miot).args(["fsstats", "/proc/sys/kernel/random"]));
    assert!(ended.stderr.contains("is a proc file system"), "{}", ended.stderr);
}
