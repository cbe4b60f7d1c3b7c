//! Measures the CPU time of a device sample.
//!
//! `cargo run --release -p miot-log-client --features testing --example devices_cost` samples this
//! machine, then file trees that look like `proc` and `sys` of machines with more disks and more
//! mounts. Prints one row each: microseconds of CPU per sample, the minimum of several rounds,
//! which other processes disturb least.
//!
//! The kernel generates its files when they are read, which the trees do not show. So measure this
//! machine with more mounts as well: `unshare --mount sh -c 'for n in $(seq 100); do mkdir -p
//! /tmp/m/$n; mount -t tmpfs m /tmp/m/$n; done; exec target/release/examples/devices_cost'`.

use miot_log_client::testing::devices::Devices;
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const ROUNDS: usize = 9;
const SAMPLES: u32 = 200;
/// Numbers of disks and mounts; half of the mounts are NFS and half FUSE.
const TREES: [(usize, usize); 6] = [(1, 0), (10, 0), (100, 0), (10, 2), (10, 20), (10, 200)];

fn main() -> std::io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?.lines().count();
    println!("| where | disks | mounts | devices in a sample | µs of CPU |");
    println!("|---|--:|--:|--:|--:|");
    let (devices, cost) = measure(Path::new("/"));
    let disks = fs::read_to_string("/proc/diskstats")?.lines().count();
    println!("| this machine | {disks} | {mounts} | {devices} | {cost:.0} |");
    for (disks, mounts) in TREES {
        let root = tempfile::tempdir_in("/dev/shm")?;
        plant(root.path(), disks, mounts)?;
        let (devices, cost) = measure(root.path());
        println!("| files | {disks} | {mounts} | {devices} | {cost:.0} |");
    }
    Ok(())
}

/// Number of devices in a sample, and microseconds of CPU for it.
fn measure(root: &Path) -> (usize, f64) {
    let mut devices = Devices::under(root);
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let before = cpu();
        for _ in 0..SAMPLES {
            let _ = devices.sample();
        }
        best = best.min((cpu() - before) / f64::from(SAMPLES));
    }
    (devices.sample(), best)
}

/// CPU time of this thread, microseconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Writes files in the kernel's formats.
fn plant(root: &Path, disks: usize, mounts: usize) -> std::io::Result<()> {
    // One line per operation; Linux 6 has this many for NFS 4.2.
    const OPERATIONS: usize = 70;
    let (mut diskstats, mut mountinfo, mut mountstats) = (String::new(), String::new(), String::new());
    for n in 0..disks {
        let _ = writeln!(diskstats, "   8 {n} sd{n} 10 1 16 100 20 2 32 200 0 150 300 3 0 8 30 4 40");
        fs::create_dir_all(root.join(format!("sys/class/block/sd{n}")))?;
    }
    for n in 0..mounts {
        if n % 2 == 0 {
            let _ = writeln!(mountinfo, "{n} 1 0:{n} / /nfs/{n} rw,relatime - nfs4 fs:/{n} rw,vers=4.2");
            let _ = writeln!(mountstats, "device fs:/{n} mounted on /nfs/{n} with fstype nfs4 statvers=1.1");
            mountstats += "\tbytes:\t7340032 1048576 0 0 5242880 1048577 1280 256\n\tper-op statistics\n";
            for operation in 0..OPERATIONS {
                let name = ["READ", "WRITE", "COMMIT"].get(operation).copied().unwrap_or("GETATTR");
                let _ = writeln!(mountstats, "\t{name}: 61 61 0 7320 6832 3 19 24 0");
            }
        } else {
            let _ = writeln!(mountinfo, "{n} 1 0:{n} / /fuse/{n} rw - fuse.glusterfs g:/{n} rw,user_id=0");
            let _ = writeln!(mountstats, "device g:/{n} mounted on /fuse/{n} with fstype fuse.glusterfs");
            let folder = root.join(format!("sys/fs/fuse/connections/{n}"));
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("waiting"), "3\n")?;
        }
    }
    fs::create_dir_all(root.join("proc/self"))?;
    fs::write(root.join("proc/diskstats"), diskstats)?;
    fs::write(root.join("proc/self/mountinfo"), mountinfo)?;
    fs::write(root.join("proc/self/mountstats"), mountstats)
}
