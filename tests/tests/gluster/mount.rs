//! `mount -t glusterfs` with the translator.

use crate::{Profile, client};
use miot_tests::built::{built, root};
use miot_tests::gluster::Gluster;
use miot_tests::node::Node;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Programs on a mount; `$FROM` is a folder to copy.
const PROGRAMS: &str = r#"
    cp -r "$FROM" copied; tar -cf all.tar copied; mkdir out; tar -xf all.tar -C out
    diff -r "$FROM" out/copied; rm -r out
    git init -q repository; cp -r "$FROM" repository/; cd repository; git add .
    git -c user.name=b -c user.email=b@localhost commit -qm all; test -z "$(git status --short)"; cd ..
    for i in $(seq 15); do
        mkdir m$i; echo $i > m$i/f; mv m$i/f m$i/g; ln m$i/g m$i/h; ln -s g m$i/s; readlink m$i/s
        chmod 600 m$i/g; truncate -s 10 m$i/g; cat m$i/g; stat m$i/h; rm -r m$i
    done
    df .; fallocate -l 100000 space; flock space true; ls -l "#;

#[test]
fn mount_requests_agree_with_the_volume_profile() {
    let place = fresh("gluster-mount");
    let Some(mut gluster) = Gluster::start(&place) else { return };
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = Node::start(&place, shared.path());
    for volume in ["traced", "other"] {
        gluster.volume(volume, false);
    }
    gluster.ask_for("traced", "user.miot", "all");
    assert!(gluster.volume_file("traced").ends_with("subvolumes traced\nend-volume\n"));
    assert!(!gluster.volume_file("other").contains("type debug/miot"), "a volume without user.miot");
    gluster.cli(&["volume", "profile", "traced", "start"]);
    let before = gluster.profile("traced");

    let mount = gluster.mount("traced", &node.dir);
    let other = gluster.mount("other", &node.dir);
    let from = root().join("docs");
    let script = format!("export HOME=$PWD FROM='{}'; {PROGRAMS}", from.display());
    mount.shell(&script);
    other.shell(&script);
    let fio = |rest: &str| {
        let line = format!("fio --bs=4k --ioengine=psync --fallocate=none --output-format=json {rest}");
        let text = mount.shell(&line).stdout;
        let report: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
        let jobs = report["jobs"].as_array().unwrap().clone();
        ["read", "write"]
            .map(|way| jobs.iter().map(|job| job[way]["total_ios"].as_u64().unwrap()).sum::<u64>() as usize)
    };
    let random = fio("--name=random --filename=random --size=2m --rw=randrw --direct=1 --overwrite=1");
    let _ = fio("--name=checked --filename=checked --bs=64k --size=2m --rw=write --fsync=8 --verify=crc32c");
    let mounted = mount.id();
    let others = other.id();
    mount.end();
    other.end();
    let profile = Profile::since(&gluster, "traced", &before);
    let rows = node.end();

    assert!(rows.iter().all(|row| row.pid != others), "the mount without the translator");
    let all = client(&rows);
    assert!(all.iter().all(|row| row.pid == mounted));
    profile.agrees_with(&all);
    for row in &all {
        assert!(
            row.path.as_deref().is_some_and(|path| path.starts_with('/')) || row.op == "symlink",
            "{row:?}"
        );
        let asks = !matches!(row.op.as_str(), "close" | "closedir");
        assert_eq!(row.caller_uid, asks.then_some(0), "{row:?}");
        assert_eq!(row.flags & 4 != 0, asks, "another thread may end it: {row:?}");
        assert!(row.enclosing.is_none(), "{row:?}");
    }
    // By file: fio's own numbers, and the blocks that it wrote before.
    let direct = |op: &str| {
        let of_fio = |row: &&&PrintedEvent| row.path.as_deref() == Some("/random") && row.op == op;
        all.iter().filter(of_fio).filter(|row| row.length == Some(4096)).count()
    };
    assert_eq!(["read", "write"].map(direct), [random[0], random[1] + (2 << 20) / 4096]);
    // Each open file is closed once, with the handle of its open.
    let mut open = BTreeSet::new();
    let mut counts = BTreeMap::<&str, u64>::new();
    for row in &all {
        *counts.entry(&row.op).or_default() += 1;
        match row.op.as_str() {
            "open" | "create" | "opendir" if row.result >= 0 => {
                assert!(open.insert(row.handle.unwrap()), "{row:?}");
            }
            "close" | "closedir" => assert!(open.remove(&row.handle.unwrap()), "{row:?}"),
            "read" | "write" | "flush" | "fsync" | "readdirplus" => {
                assert!(open.contains(&row.handle.unwrap()), "{row:?}");
            }
            _ => {}
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
    assert_eq!(counts["close"], profile.of(&["RELEASE"]));
    assert_eq!(counts["closedir"], profile.of(&["RELEASEDIR"]));
}

#[test]
fn request_names_the_thread_and_user_that_made_it() {
    let place = fresh("gluster-caller");
    let Some(mut gluster) = Gluster::start(&place) else { return };
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = Node::start(&place, shared.path());
    gluster.volume("traced", true);
    gluster.ask_for("traced", "user.miot", "all");
    let mount = gluster.mount("traced", &node.dir);
    // The posix hook in fio records for the same log-client.
    let fio = "fio --name=threads --numjobs=3 --thread --bs=16k --size=1m --ioengine=psync --direct=1 --rw=randrw \
               --fallocate=none";
    let mut preloaded = gluster.inside(&mount.dir, fio);
    let _ = run(preloaded.env("LD_PRELOAD", &built().hook).env("MIOT_DIR", &node.dir)).success();
    mount.shell(
        "mkdir open; chmod 777 open; setpriv --reuid=65534 --regid=65534 --clear-groups touch open/by-nobody",
    );
    let dir = mount.dir.clone();
    mount.end();
    let rows = node.end();

    let served = client(&rows);
    let mut matched = BTreeMap::<u32, usize>::new();
    for call in rows.iter().filter(|row| row.layer == "posix" && matches!(&*row.op, "pread" | "pwrite")) {
        let Some(path) = call.path.as_deref().and_then(|path| path.strip_prefix(dir.to_str()?)) else {
            continue;
        };
        let inside = |row: &&&PrintedEvent| {
            row.time <= call.time
                && row.time - row.duration >= call.time - call.duration
                && row.caller_tid == Some(call.tid)
        };
        let same = |row: &&&PrintedEvent| {
            row.path.as_deref() == Some(path)
                && format!("p{}", row.op) == call.op
                && (row.offset, row.length, row.result) == (call.offset, call.length, call.result)
        };
        let found: Vec<_> = served.iter().filter(same).filter(inside).collect();
        assert_eq!(found.len(), 1, "{call:?} was served by {found:?}");
        *matched.entry(call.tid).or_default() += 1;
    }
    assert_eq!(matched.len(), 3, "three threads: {matched:?}");
    assert!(matched.values().all(|calls| *calls >= 64), "{matched:?}");
    let made = served
        .iter()
        .find(|row| row.op == "create" && row.path.as_deref() == Some("/open/by-nobody"))
        .unwrap();
    assert_eq!(made.caller_uid, Some(65534));
}
