//! Alignment is relative to the block size of the file's own file system: an ext4 with blocks of 1
//! KiB in a mount namespace.

use super::{assert_figures, row, stat};
use miot_tests::namespaces::Namespaces;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::traced::{assert_good, command};
use std::ffi::OsStr;
use std::process::Command;

/// Four writes of 512 bytes, 1536 bytes apart. The second and the fourth start inside a block of 1
/// KiB, all but the first inside a block of 4 KiB. The program has ended long before the log-client
/// could query its files.
#[test]
fn alignment_uses_the_block_size_that_the_process_saw() {
    let Some(room) = Namespaces::new(&["--mount"]) else { return };
    let place = fresh("characterize-blocks");
    let (image, mount, trace) = (place.join("image"), place.join("small blocks"), place.join("trace"));
    std::fs::create_dir(&mount).unwrap();
    let script = "truncate -s 8M \"$1\" && mkfs.ext4 -q -b 1024 \"$1\" && mount -o loop \"$1\" \"$2\"";
    let mounted =
        run(&mut room.inside(Command::new("sh").args(["-c", script, "sh"]).arg(&image).arg(&mount)));
    if !mounted.status.success() {
        eprintln!("NOT TESTED: this machine mounts no image of ext4: {}", mounted.stderr);
        return;
    }
    let writes = "for directory; do for n in 0 3 6 9; do \
                  dd if=/dev/zero of=\"$directory/data\" bs=512 count=1 seek=$n conv=notrunc; done; done";
    let directories = [mount.as_os_str(), place.as_os_str()];
    let words = [&["sh", "-c", writes, "sh"].map(OsStr::new)[..], &directories].concat();
    let _ = run(&mut room.inside(&command(&place, &trace, &words))).success();
    assert_good(&trace);
    let table = stat(&trace, &["--by", "file", "--layer", "posix", "--path", "**/data"]);
    assert_eq!(table["block_size_assumed"], false, "{table:#}");
    assert_figures(
        row(&table, "path", "small blocks/data"),
        &[("writes", 4), ("file_alignment", 1024), ("file_not_aligned", 2)],
    );
    assert_figures(
        row(&table, "path", "characterize-blocks/data"),
        &[("writes", 4), ("file_alignment", 4096), ("file_not_aligned", 3)],
    );
}
