//! Requests of one layer are linked with those of the layer below: `miot cat --tree`, `miot stat
//! --by layer`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::built;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::tmpfs::UNMOUNT;
use miot_tests::traced::{assert_good, traced};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn miot(arguments: &[&str], trace: &Path) -> String {
    run(Command::new(&built().miot).args(arguments).arg(trace)).success().stdout
}

fn is(event: &Value, layer: &str, op: &str) -> bool {
    event["layer"] == layer && event["op"] == op
}

fn children(event: &Value) -> &[Value] {
    event["children"].as_array().map_or(&[], Vec::as_slice)
}

/// A program writes eight blocks and reads them back through `miot-fuse`, to which the kernel sends
/// a request for each of them.
#[test]
fn posix_calls_are_parents_of_mount_requests() {
    let place = fresh("layers-fuse");
    for directory in ["source", "mount"] {
        std::fs::create_dir(place.join(directory)).unwrap();
    }
    let fuse = built().folder.join("miot-fuse");
    let script = format!(
        "{} source mount || exit 9
         dd if=/dev/zero of=mount/file bs=4096 count=8 2> /dev/null && dd if=mount/file of=/dev/null bs=4096 iflag=direct 2> /dev/null
         code=$?; {UNMOUNT}
         exit $code",
        fuse.display()
    );
    let trace = place.join("trace");
    let _ = traced(&place, &trace, &["sh", "-c", &script]).success();
    assert_good(&trace);

    let trees = miot(&["cat", "--tree", "--format", "json", "--path", "**/mount/file"], &trace);
    let trees: Vec<Value> = trees.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for op in ["write", "read"] {
        let calls: Vec<_> =
            trees.iter().filter(|tree| is(tree, "posix", op) && tree["result"] == 4096).collect();
        assert_eq!(calls.len(), 8, "{op}: {trees:#?}");
        for call in calls {
            let served: Vec<_> = children(call).iter().filter(|child| is(child, "fuse", op)).collect();
            assert!(
                matches!(served[..], [one] if one["result"] == 4096 && one["offset"] == call["offset"]),
                "{call:#}"
            );
            assert_eq!(served[0]["caller_tid"], call["tid"]);
        }
    }
    let text = miot(&["cat", "--tree", "--op", "write", "--path", "**/mount/file"], &trace);
    let indented = text.lines().filter(|line| line.contains("   fuse   write")).count();
    assert_eq!(indented, 8, "{text}");

    let rows: Value =
        serde_json::from_str(&miot(&["stat", "--by", "layer", "--format", "json"], &trace)).unwrap();
    let below = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["layer"] == "fuse" && row["above"] == "posix")
        .unwrap();
    assert_eq!(
        (&below["write_moved"], &below["write_amplification"]),
        (&32768.into(), &1.0.into()),
        "{below:#}"
    );
    assert!(below["read_moved"] == 32768, "{below:#}");
}
