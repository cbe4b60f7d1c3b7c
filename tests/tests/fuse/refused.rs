//! Impossible mounts are refused with a reason, and a mount ends on request.

use crate::mounted::{MountDirs, shell};
use miot_tests::built::built;
use miot_tests::process::{run, signal_id, until};
use miot_tests::tmpfs::UNMOUNT;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

fn refused(source: &Path, mount: &Path, options: &[&str], expected: &str) {
    let program = built().folder.join("miot-fuse");
    let ended = run(Command::new(program).args(options).arg(source).arg(mount));
    assert!(ended.code() != 0 && ended.stderr.contains(expected), "{expected}: {ended:?}");
    assert_eq!(
        ended.stderr.matches("miot-fuse: ").count() + ended.stderr.matches("error: ").count(),
        1,
        "{ended:?}"
    );
}

#[test]
fn impossible_mount_is_refused() {
    let place = MountDirs::new("fuse-refused");
    let file = place.dir.join("file");
    fs::write(&file, "").unwrap();
    refused(&place.dir.join("none"), &place.mount, &[], "name a directory that exists");
    refused(&file, &place.mount, &[], "SOURCE");
    refused(&place.source, &file, &[], "MOUNTPOINT");
    refused(&place.source, &place.dir.join("none"), &[], "name a directory that exists");
    refused(&place.source, &place.mount, &["-o", "allow_root"], "no such option");
    refused(&place.source, &place.mount, &["-o", "cache=some"], "cache=none");
    refused(&place.source, &place.mount, &["--attr-timeout=-1"], "--attr-timeout");
    refused(&place.source, &place.mount, &["-o", "attr_timeout=x"], "seconds from 0 to 86400");
    refused(&place.source, &place.mount, &["--threads", "0"], "--threads");
    // A mount inside its source would contain itself, by any name.
    fs::create_dir(place.source.join("in")).unwrap();
    symlink(place.source.join("in"), place.dir.join("link")).unwrap();
    refused(&place.source, &place.source.join("in"), &[], "contain itself");
    refused(&place.source, &place.dir.join("link"), &[], "contain itself");
    let mounted = place.mounted(&[]);
    refused(&mounted.place.source, &mounted.place.mount, &[], "already");
    mounted.end();
}

#[test]
fn directory_can_be_covered_by_its_own_mount() {
    let place = MountDirs::new("fuse-in-place");
    fs::write(place.mount.join("before"), "was here").unwrap();
    let script = format!(
        "{} --allow-other mount mount; cat mount/before; echo more > mount/after\n{UNMOUNT}\ncat mount/after",
        built().folder.join("miot-fuse").display()
    );
    let ended = run(&mut shell(&place.dir, script)).success();
    assert_eq!(ended.stdout, "was heremore\n");
    assert!(!place.is_mounted());
}

#[test]
fn signal_unmounts_after_open_files_are_closed() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = MountDirs::new("fuse-signal");
        fs::write(place.source.join("file"), "content").unwrap();
        let mut mounted = place.mounted(&[]);
        let mut server = mounted.server();
        let open = fs::File::open(mounted.place.mount.join("file")).unwrap();
        signal_id(server.id(), signal);
        until("it is unmounted", || !mounted.place.is_mounted());
        assert_eq!(std::io::read_to_string(&open).unwrap(), "content");
        assert!(server.running());
        drop(open);
        until("miot-fuse ends", || !server.running());
        let (status, printed) = server.stop(Signal::TERM);
        assert!(status.success(), "{signal:?}: {status}\n{printed}");
    }
}

#[test]
fn dead_mount_is_distinguished_from_a_missing_directory() {
    let place = MountDirs::new("fuse-died");
    let mut mounted = place.mounted(&[]);
    let (status, _) = mounted.server().stop(Signal::KILL);
    assert!(!status.success());
    refused(&mounted.place.source, &mounted.place.mount, &[], "whose program has died");
    assert!(fs::metadata(&mounted.place.mount).is_err());
}
