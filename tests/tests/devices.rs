//! Device samples from the kernel's counters to `miot devices`: with both daemons, real writes to a
//! disk, a log-server that is killed meanwhile, and a FUSE file system that delays programs.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt64Type};
use miot_tests::built::built;
use miot_tests::daemons::{client_command, free_port, server, started};
use miot_tests::namespaces::Namespaces;
use miot_tests::process::{Background, run, until};
use miot_tests::steered::Steered;
use miot_tests::test_dir::fresh;
use miot_tests::traced::assert_good;
use miot_trace_store::{Reader, Table};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rows of `devices` by device, in stored order: end, interval, bytes written, writes.
fn rows(trace: &Path) -> BTreeMap<String, Vec<(u64, i64, u64, u64)>> {
    let mut found: BTreeMap<String, Vec<_>> = BTreeMap::new();
    let mut last = i64::MIN;
    for batch in Reader::open(trace).unwrap().table(Table::Devices).unwrap() {
        let u64s = |name: &str| miot_trace_store::schema::column::<UInt64Type>(&batch, name).unwrap();
        let (uptimes, bytes, writes) = (u64s("uptime"), u64s("write_bytes"), u64s("writes"));
        let intervals = batch.column_by_name("interval").unwrap().as_primitive::<Int64Type>();
        let times = batch.column_by_name("time").unwrap().as_primitive::<TimestampNanosecondType>();
        let kinds = batch.column_by_name("kind").unwrap().as_string::<i32>();
        let names = batch.column_by_name("device").unwrap().as_string::<i32>();
        for row in 0..batch.num_rows() {
            assert!(times.value(row) >= last, "in order of time: {} after {last}", times.value(row));
            last = times.value(row);
            if kinds.value(row) == "block" {
                let one = (uptimes.value(row), intervals.value(row), bytes.value(row), writes.value(row));
                found.entry(names.value(row).to_owned()).or_default().push(one);
            }
        }
    }
    found
}

/// Kernel counters of a device: writes completed and bytes written.
fn counted(device: &str) -> (u64, u64) {
    let text = fs::read_to_string("/proc/diskstats").unwrap();
    let line = text.lines().find(|line| line.split_whitespace().nth(2) == Some(device)).unwrap();
    let field = |n| line.split_whitespace().nth(n).unwrap().parse::<u64>().unwrap();
    (field(7), field(9) * 512)
}

/// A block device with a file system that no other process uses: a loop device, or else the disk of
/// the build.
struct Disk {
    name: String,
    folder: PathBuf,
    /// Mount to be unmounted and detached at the end.
    made: Option<String>,
}

impl Disk {
    fn new(place: &Path) -> Disk {
        let (image, folder) = (place.join("disk.img"), place.join("mounted"));
        fs::create_dir_all(&folder).unwrap();
        let file = fs::File::create(&image).unwrap();
        file.set_len(64 << 20).unwrap();
        let ok = |command: &mut Command| command.output().ok().filter(|output| output.status.success());
        let made = ok(Command::new("mkfs.ext4").arg("-q").arg("-F").arg(&image))
            .and_then(|_| ok(Command::new("losetup").args(["--find", "--show"]).arg(&image)))
            .map(|output| String::from_utf8(output.stdout).unwrap().trim().to_owned());
        if let Some(device) = made {
            if ok(Command::new("mount").arg(&device).arg(&folder)).is_some() {
                let name = device.trim_start_matches("/dev/").to_owned();
                return Disk { name, folder, made: Some(device) };
            }
            let _ = ok(Command::new("losetup").arg("-d").arg(&device));
        }
        let number = place.metadata().unwrap().dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let link = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))
            .expect("the build is on no block device");
        let whole = if link.join("partition").exists() { link.parent().unwrap().to_owned() } else { link };
        let name = whole.file_name().unwrap().to_str().unwrap().to_owned();
        println!("NO LOOP DEVICE HERE: the disk of the build is used, {name}, which others use too");
        Disk { name, folder: place.to_owned(), made: None }
    }

    fn write(&self, mib: usize) {
        let file = fs::File::create(self.folder.join("data")).unwrap();
        std::io::Write::write_all(&mut &file, &vec![7; mib << 20]).unwrap();
        file.sync_all().unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(device) = &self.made {
            let _ = Command::new("umount").arg(&self.folder).status();
            let _ = Command::new("losetup").arg("-d").arg(device).status();
        }
    }
}

#[test]
fn device_samples_equal_the_kernel_counters() {
    let place = fresh("devices");
    let disk = Disk::new(&place);
    disk.write(1);
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let (trace, dir, port) = (place.join("trace"), shared.path().join("miot"), free_port());
    let first = server(port, &trace);
    let before = counted(&disk.name);
    let mut command = client_command(&format!("127.0.0.1:{port}"), "node", &dir);
    let client = started(command.env("MIOT_CLIENT_DEVICES_EVERY", "200ms"), &dir);
    let has = |n: usize| Reader::open(&trace).is_ok() && rows(&trace).values().any(|rows| rows.len() >= n);
    disk.write(16);
    until("some samples are in the trace", || has(3));
    // Sampling continues while the log-server is dead. Samples that it had not acknowledged are
    // sent again.
    let (status, _) = first.stop(Signal::KILL);
    assert!(!status.success());
    disk.write(16);
    let second = server(port, &trace);
    let so_far = rows(&trace).get(&disk.name).map_or(0, Vec::len);
    until("more samples are in the trace", || has(so_far + 3));
    client.end();
    let after = counted(&disk.name);
    second.end();

    let all = rows(&trace);
    let samples =
        all.get(&disk.name).unwrap_or_else(|| panic!("{} is not among {:?}", disk.name, all.keys()));
    // Each sample starts at the end of the previous one, so none is missing or repeated.
    for pair in samples.windows(2) {
        assert_eq!(pair[1].0 - pair[0].0, pair[1].1 as u64, "{pair:?}");
    }
    let (bytes, writes) = samples.iter().fold((0, 0), |sum, row| (sum.0 + row.2, sum.1 + row.3));
    let (counted_writes, counted_bytes) = (after.0 - before.0, after.1 - before.1);
    assert!(counted_bytes >= 32 << 20, "{counted_bytes} bytes were written");
    if disk.made.is_some() {
        assert_eq!((bytes, writes), (counted_bytes, counted_writes));
    } else {
        assert!(bytes <= counted_bytes && bytes >= 32 << 20, "{bytes} of {counted_bytes}");
    }
    assert_good(&trace);

    let mut tool = Command::new(&built().miot);
    let printed =
        run(tool.arg("devices").arg(&trace).args(["--format", "json", "--device", &disk.name])).success();
    let row: Value = serde_json::from_str(printed.stdout.lines().next().unwrap()).unwrap();
    assert_eq!(row["write_bytes"].as_u64(), Some(bytes));
    let utilization = row["utilization"].as_f64().unwrap();
    assert!(utilization > 0.0 && utilization < 1.5, "{row}");
    let text = run(Command::new(&built().miot).arg("devices").arg(&trace)).success().stdout;
    assert!(text.contains(&disk.name) && text.contains("util"), "{text}");
}

/// Kind, mount and requests in flight of the samples of a device, in order of time.
fn in_flight(trace: &Path, device: &str) -> Vec<(String, String, u64)> {
    let mut found = Vec::new();
    for batch in Reader::open(trace).unwrap().table(Table::Devices).unwrap() {
        let text = |name: &str| batch.column_by_name(name).unwrap().as_string::<i32>().clone();
        let (kinds, names, mounts) = (text("kind"), text("device"), text("mount"));
        let counts = miot_trace_store::schema::column::<UInt64Type>(&batch, "in_flight").unwrap();
        for row in (0..batch.num_rows()).filter(|row| names.value(*row) == device) {
            found.push((kinds.value(row).to_owned(), mounts.value(row).to_owned(), counts.value(row)));
        }
    }
    found
}

/// A file system that delays programs (`src/bin/reluctant.rs`), mounted where only the namespaces
/// see it. The test itself never accesses it: a process that waits for it cannot be killed.
struct Reluctant<'a> {
    room: &'a Namespaces,
    /// File that ends the connection together with the waiting processes.
    abort: PathBuf,
    daemon: Steered,
    /// Waiting programs, stored here so that they are waited for after the connection has ended.
    programs: Vec<Background>,
}

impl Reluctant<'_> {
    fn mount<'a>(room: &'a Namespaces, name: &str, directory: &Path) -> Reluctant<'a> {
        const CONNECTIONS: &str = "/sys/fs/fuse/connections";
        room.shell(&format!("mountpoint -q {CONNECTIONS} || mount -t fusectl fusectl {CONNECTIONS}"));
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_reluctant"));
        let mut daemon = Steered::start(&mut room.inside(daemon.arg(name).arg(directory)));
        assert_eq!(daemon.answer(), "mounted");
        // mountinfo has device numbers, so the mount need not be accessed.
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", room.id())).unwrap();
        let line = mounts.lines().find(|line| line.contains(&format!(" - fuse.test {name} "))).unwrap();
        let minor = line.split(' ').nth(2).unwrap().split_once(':').unwrap().1;
        let abort = room.seen(Path::new(CONNECTIONS)).join(minor).join("abort");
        assert!(abort.exists(), "{}", abort.display());
        Reluctant { room, abort, daemon, programs: Vec::new() }
    }

    /// Starts programs that request the attributes of the file.
    fn ask(&mut self, count: u64, file: &Path) {
        let stat = |_| Background::start(&mut self.room.inside(Command::new("stat").arg(file)));
        self.programs.extend((0..count).map(stat));
    }

    /// Waits until they have ended by themselves, each with this text.
    fn ended(&mut self, text: &str) {
        until("all programs that waited have ended", || !self.programs.iter_mut().any(Background::running));
        for program in self.programs.drain(..) {
            until("a program prints the reason", || program.printed().contains(text));
        }
    }

    fn abort(&self) {
        fs::write(&self.abort, "1").unwrap();
    }
}

impl Drop for Reluctant<'_> {
    fn drop(&mut self) {
        // Before waiting for programs, and before the daemon ends, which would do the same.
        let _ = fs::write(&self.abort, "1");
    }
}

#[test]
fn waiting_fuse_requests_are_sampled() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("NOT TESTED: devices on a FUSE file system: not root, or no /dev/fuse");
        return;
    }
    let Some(room) = Namespaces::new(&["--mount"]) else { return };
    let place = fresh("devices-fuse");
    let mounted = place.join("a mount");
    fs::create_dir(&mounted).unwrap();
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let (trace, dir, port) = (place.join("trace"), shared.path().join("miot"), free_port());
    let mut slow = Reluctant::mount(&room, "slow", &mounted);
    let file = mounted.join("file");
    // It must be a file system before it starts to delay programs.
    slow.ask(1, &file);
    slow.ended("regular empty file");

    let server = server(port, &trace);
    let mut client = client_command(&format!("127.0.0.1:{port}"), "node", &dir);
    client.env("MIOT_CLIENT_DEVICES_EVERY", "200ms");
    let client = started(&mut room.inside(&client), &dir);
    let expected = |count| Some(("fuse".to_owned(), mounted.display().to_string(), count));
    let last = || Reader::open(&trace).ok().and_then(|_| in_flight(&trace, "slow").pop());
    slow.ask(5, &file);
    until("a sample has five requests in flight", || last() == expected(5));
    slow.daemon.send("answer");
    slow.ended("regular empty file");
    until("a sample has no request in flight", || last() == expected(0));
    slow.ask(3, &file);
    until("a sample has three requests in flight", || last() == expected(3));
    slow.abort();
    slow.ended("connection abort");
    client.end();
    server.end();
    let counts: Vec<u64> = in_flight(&trace, "slow").iter().map(|(.., count)| *count).collect();
    assert_eq!(counts.iter().max(), Some(&5), "{counts:?}");
    assert_good(&trace);
    let text = run(Command::new(&built().miot).arg("devices").arg(&trace)).success().stdout;
    assert!(text.lines().any(|line| line.contains("fuse") && line.contains("slow")), "{text}");
}

/// Reports that real NFS and Lustre mounts are not tested. Their statistics are tested with
/// composed texts of several versions (`log-client/src/devices/`).
#[test]
fn nfs_and_lustre_are_reported_as_not_tested() {
    let kernel = fs::read_to_string("/proc/filesystems").unwrap();
    for name in ["nfs", "lustre"] {
        let here = kernel.lines().any(|line| line.split_whitespace().next_back() == Some(name));
        let why = if here { "no server of it is at hand" } else { "this kernel has no client of it" };
        eprintln!(
            "NOT TESTED: devices on a mount of {name}: {why}; its parser is tested with composed statistics"
        );
    }
}
