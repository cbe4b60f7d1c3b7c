//! Asynchronous writes that hang are shown in flight with file, offset and length.

use miot_tests::built::built;
use miot_tests::compile::compile;
use miot_tests::frozen_ext4::FrozenExt4;
use miot_tests::node::Node;
use miot_tests::process::{Background, until};
use miot_tests::test_dir::fresh;
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Interfaces of the program, and their operations.
const INTERFACES: [(&str, &str); 3] =
    [("aio", "aio_write"), ("libaio", "libaio_write"), ("uring", "uring_write")];

#[test]
fn asynchronous_writes_that_hang_are_shown_in_flight() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: asynchronous writes on a frozen file system (not root)");
        return;
    }
    let place = fresh("asynchronous-hangs");
    let program = compile(&place, "async_hangs", &["async_hangs.c"], &["-laio", "-luring"]);
    let (mount, go) = (place.join("mount"), place.join("go"));
    fs::create_dir(&mount).unwrap();
    let ext4 = FrozenExt4::mount(&place.join("image"), &mount);
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = Node::start(&place, shared.path());
    let mut programs = INTERFACES.map(|(interface, _)| {
        let file = mount.join(interface);
        fs::write(&file, [0; 16384]).unwrap();
        let mut command = Command::new(&program);
        command.env("MIOT_DIR", &node.dir).env("LD_PRELOAD", &built().hook);
        Background::start(command.arg(interface).arg(&file).arg(&go))
    });
    ext4.freeze();
    fs::write(&go, "").unwrap();
    for ((interface, op), program) in INTERFACES.iter().zip(&programs) {
        let mut found = None;
        until("the write is shown in flight", || {
            let mut rows = node.in_flight(&[]).into_iter();
            found = rows.find(|row| row["pid"] == program.id() && row["op"] == *op);
            found.is_some()
        });
        let row = found.unwrap();
        assert_eq!((&row["offset"], &row["length"]), (&8192.into(), &4096.into()), "{row}");
        let file = mount.join(interface).display().to_string();
        assert_eq!(row["file"], Value::from(file), "{row}");
    }
    ext4.thaw();
    until("the programs end", || programs.iter_mut().all(|program| !program.running()));
    assert_eq!(node.in_flight(&[]), Vec::<Value>::new());
    let rows = node.end();
    for (_, op) in INTERFACES {
        let of = rows.iter().filter(|row| row.op == op);
        let of: Vec<_> = of.map(|row| (row.offset, row.length, row.result)).collect();
        assert_eq!(of, [(Some(8192), Some(4096), 4096)], "{op}");
    }
}
