//! A request that hangs below the mount is shown with file, offset and length.

use crate::mounted::MountDirs;
use miot_tests::frozen_ext4::FrozenExt4;
use miot_tests::node::Node;
use miot_tests::process::{Background, until};
use std::process::Command;

#[test]
fn hanging_write_has_file_offset_and_length() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: a write on a frozen file system (not root)");
        return;
    }
    let place = MountDirs::new("fuse-hangs");
    let ext4 = FrozenExt4::mount(&place.dir.join("image"), &place.source);
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = Node::start(&place.dir, shared.path());
    let dir = format!("MIOT_DIR={}", node.dir.display());
    let mounted = place.mounted_by(&["env", &dir], &[]);
    let file = mounted.place.mount.join("data");
    std::fs::write(&file, [0; 16384]).unwrap();
    ext4.freeze();
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "bs=4096", "seek=2", "count=1", "conv=notrunc"]);
    let mut dd = Background::start(dd.arg(format!("of={}", file.display())));
    let mut shown = None;
    until("the write is shown in flight", || {
        let mut rows = node.in_flight(&[]).into_iter();
        shown = rows.find(|row| row["layer"] == "fuse" && row["op"] == "write");
        shown.is_some()
    });
    let shown = shown.unwrap();
    assert_eq!((&shown["offset"], &shown["length"]), (&8192.into(), &4096.into()), "{shown}");
    assert!(shown["file"].as_str().is_some_and(|file| file.ends_with("/data")), "{shown}");
    ext4.thaw();
    until("dd ends", || !dd.running());
    mounted.end();
    let rows = node.end();
    let wrote = |row: &&miot_tests::trace::PrintedEvent| row.op == "write" && row.offset == Some(8192);
    assert_eq!(rows.iter().filter(wrote).map(|row| row.result).collect::<Vec<_>>(), [4096]);
}
