//! `fuse`: a directory through `miot-fuse`, compared with libfuse's own pass-through file system
//! and `bindfs`. All are on the same tmpfs, so that the measured cost is that of FUSE.
//!
//! All are mounted at the same time. Each round makes each measurement through all of them in turn,
//! forwards and backwards. Data goes through mounts with default options (names and attributes are
//! cached for a second, data until the next open). Metadata calls go through mounts without caches,
//! so that each becomes requests.

use crate::daemons::{self, Daemons};
use crate::played::{Recorded, recorded_in};
use crate::report::{interval, number};
use crate::stats::{Summary, median_with_interval};
use crate::{Bench, pipeline, process};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Folder of libfuse's examples in Debian's libfuse3-dev.
const EXAMPLES: &str = "/usr/share/doc/libfuse3-dev/examples";
/// libfuse's pass-through file system of the low-level interface.
const EXAMPLE: &str = "passthrough_ll";
const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;

/// Variant with which all others are compared.
const PEER: &str = "libfuse";

/// Variants that record each request.
const RECORDERS: [&str; 2] = ["recording", "attributes"];

/// A variant of access to the directory.
struct Way {
    key: &'static str,
    label: &'static str,
    /// Directories for data and for metadata.
    dirs: [PathBuf; 2],
    _mounts: Vec<Mount>,
}

/// A FUSE mount, unmounted when dropped.
struct Mount {
    child: Child,
    at: PathBuf,
}

impl Mount {
    fn start(mut command: Command, at: &Path) -> Result<Mount> {
        std::fs::create_dir_all(at)?;
        let log = File::create(at.with_extension("log"))?;
        let child = process::ends_with_us(&mut command)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{command:?}"))?;
        let mut mount = Mount { child, at: at.to_owned() };
        let patience = Instant::now() + Duration::from_secs(10);
        while !mount.is_there() {
            let said = || std::fs::read_to_string(at.with_extension("log")).unwrap_or_default();
            let runs = mount.child.try_wait()?.is_none() && Instant::now() < patience;
            ensure!(runs, "{command:?} does not mount: {}", said());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(mount)
    }

    fn is_there(&self) -> bool {
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        table.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| Path::new(at) == self.at))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_there() && !Command::new("umount").arg(&self.at).status().is_ok_and(|done| done.success())
        {
            let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        }
        process::wait(&mut self.child, Duration::from_secs(10));
    }
}

/// A measurement.
struct Measure {
    key: &'static str,
    label: &'static str,
    unit: &'static str,
    /// Measures data, through the first directory. Otherwise metadata, through the second.
    data: bool,
    /// Seconds for one unit.
    run: fn(&Path, Amount) -> Result<f64>,
}

#[derive(Clone, Copy)]
struct Amount {
    mebibytes: usize,
    blocks: usize,
    calls: usize,
}

const MEASURES: [Measure; 6] = [
    Measure {
        key: "write",
        label: "write, 1 MiB in order",
        unit: "MiB/s",
        data: true,
        run: |dir, amount| in_order(dir, amount, true),
    },
    Measure {
        key: "read",
        label: "read, 1 MiB in order",
        unit: "MiB/s",
        data: true,
        run: |dir, amount| in_order(dir, amount, false),
    },
    Measure {
        key: "random write",
        label: "write, 4 KiB at random",
        unit: "µs",
        data: true,
        run: |dir, amount| at_random(dir, amount, true),
    },
    Measure {
        key: "random read",
        label: "read, 4 KiB at random",
        unit: "µs",
        data: true,
        run: |dir, amount| at_random(dir, amount, false),
    },
    Measure {
        key: "stat",
        label: "`stat`",
        unit: "µs",
        data: false,
        run: |dir, amount| {
            let file = dir.join("data");
            each(amount.calls, || Ok(std::fs::metadata(&file).map(|_| ())?))
        },
    },
    Measure {
        key: "open",
        label: "`open` and `close`",
        unit: "µs",
        data: false,
        run: |dir, amount| {
            let file = dir.join("data");
            each(amount.calls, || Ok(File::open(&file).map(|_| ())?))
        },
    },
];

fn each(times: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..times {
        call()?;
    }
    Ok(started.elapsed().as_secs_f64() / times as f64)
}

fn in_order(dir: &Path, amount: Amount, write: bool) -> Result<f64> {
    let file = OpenOptions::new().read(true).write(true).open(dir.join("data"))?;
    let mut buffer = vec![b'x'; MIB];
    let mut at = 0;
    each(amount.mebibytes, || {
        if write {
            file.write_all_at(&buffer, at)?
        } else {
            file.read_exact_at(&mut buffer, at)?
        }
        at += MIB as u64;
        Ok(())
    })
}

fn at_random(dir: &Path, amount: Amount, write: bool) -> Result<f64> {
    let file = OpenOptions::new().read(true).write(true).open(dir.join("data"))?;
    let blocks = (amount.mebibytes * (MIB / BLOCK)) as u64;
    let mut buffer = vec![b'y'; BLOCK];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    each(amount.blocks, || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 33) % blocks * BLOCK as u64;
        if write {
            file.write_all_at(&buffer, at)?
        } else {
            file.read_exact_at(&mut buffer, at)?
        }
        Ok(())
    })
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let (disk, shm) = (bench.disk.path(), bench.memory.path());
    let daemons = Daemons::start(&disk.join("daemons"), &shm.join("node"), "drop-newest")?;
    let source = shm.join("source");
    std::fs::create_dir(&source)?;
    let amount = Amount {
        mebibytes: bench.pick(128, 64, 4),
        blocks: bench.pick(5_000, 2_000, 50),
        calls: bench.pick(5_000, 2_000, 50),
    };
    std::fs::write(source.join("data"), vec![b'z'; amount.mebibytes * MIB])?;
    let nobody = shm.join("nobody");
    let ways = ways(disk, &source, daemons.node(), &nobody)?;
    ensure!(ways.iter().any(|way| RECORDERS.contains(&way.key)), "miot-fuse cannot be mounted here");
    let mut times = vec![vec![Vec::new(); ways.len()]; MEASURES.len()];
    let rounds = bench.pick(8, 3, 1);
    for round in 0..=rounds {
        for (measure, times) in MEASURES.iter().zip(&mut times) {
            for step in 0..ways.len() {
                let at = if round % 2 == 0 { step } else { ways.len() - 1 - step };
                let dir = &ways[at].dirs[usize::from(!measure.data)];
                let seconds = (measure.run)(dir, amount)
                    .with_context(|| format!("{} of {}", measure.key, ways[at].label))?;
                if round > 0 {
                    times[at].push(seconds);
                }
            }
        }
    }
    let recorders = ways.iter().filter(|way| RECORDERS.contains(&way.key)).count();
    let named: Vec<(&str, &str)> = ways.iter().map(|way| (way.key, way.label)).collect();
    drop(ways);
    let trace = daemons.trace().to_path_buf();
    daemons.stop()?;
    let rows = pipeline::count(&trace)?;
    // Each of these calls is at least one request: names are not cached, and writes are passed on.
    let least = (recorders * (rounds + 1) * (2 * amount.calls + amount.blocks)) as u64;
    ensure!(rows.events + rows.lost >= least, "{} records of {least} calls", rows.events + rows.lost);
    ensure!(recorded_in(&nobody) == Recorded::default(), "a dormant file system has recorded");
    let peer = named.iter().position(|(key, _)| *key == PEER);
    let mut results = Vec::new();
    for (measure, times) in MEASURES.iter().zip(&times) {
        println!("{:40} {:>10} {:>12}", measure.label, measure.unit, "× libfuse");
        for (way, own) in times.iter().enumerate() {
            let shown = |seconds: &f64| if measure.unit == "µs" { seconds * 1e6 } else { 1.0 / seconds };
            let times_peer = peer.map(|peer| {
                let ratios: Vec<f64> = own.iter().zip(&times[peer]).map(|(own, peer)| own / peer).collect();
                median_with_interval(&ratios)
            });
            let row = json!({
                "measure": measure.key, "label": measure.label, "unit": measure.unit, "key": named[way].0, "way": named[way].1,
                "figure": Summary::of(own.iter().map(shown).collect()), "time_of_libfuse": times_peer,
            });
            println!(
                "{:40} {:>10} {:>12}",
                named[way].1,
                number(&row["figure"]["median"], 1),
                number(&row["time_of_libfuse"]["median"], 2)
            );
            results.push(row);
        }
    }
    Ok(json!({ "rows": results, "events": rows.events, "lost": rows.lost }))
}

fn ways(disk: &Path, source: &Path, node: &Path, nobody: &Path) -> Result<Vec<Way>> {
    let mut ways = vec![Way {
        key: "direct",
        label: "no FUSE",
        dirs: [source.to_owned(), source.to_owned()],
        _mounts: Vec::new(),
    }];
    let example = disk.join(EXAMPLE);
    let built =
        build_example(&example).inspect_err(|error| eprintln!("libfuse's example IS SKIPPED: {error:#}"));
    if built.is_ok() {
        for (key, label, more) in [
            (PEER, "libfuse's `passthrough_ll`", ""),
            ("checks", "libfuse's `passthrough_ll`, `default_permissions`", ",default_permissions"),
        ] {
            ways.push(two(disk, key, label, |at, asks| {
                let mut command = Command::new(&example);
                let cache = if asks { "cache=never" } else { "cache=auto" };
                command.args(["-f", "-o"]).arg(format!("source={},{cache}{more}", source.display())).arg(at);
                command
            })?);
        }
    }
    let bindfs = two(disk, "bindfs", "`bindfs`", |at, asks| {
        let mut command = Command::new("bindfs");
        let seconds = u8::from(!asks);
        let options = format!("attr_timeout={seconds},entry_timeout={seconds}");
        command.args(["-f", "--multithreaded", "-o", &options]).arg(source).arg(at);
        command
    });
    ways.extend(bindfs.inspect_err(|error| eprintln!("bindfs IS SKIPPED: {error:#}")).ok());
    let miot = daemons::built("miot-fuse")?;
    for (key, label, dir, more) in [
        ("dormant", "`miot-fuse`, not recording", nobody, [].as_slice()),
        ("recording", "`miot-fuse`, recording", node, &[]),
        ("attributes", "`miot-fuse --attr-timeout 0.001`, recording", node, &["--attr-timeout", "0.001"]),
    ] {
        ways.push(two(disk, key, label, |at, asks| {
            let mut command = Command::new(&miot);
            command.args(["-f", "--cache", if asks { "none" } else { "auto" }]);
            if asks {
                command.args(more);
            }
            command.arg(source).arg(at).env("MIOT_DIR", dir);
            command
        })?);
    }
    Ok(ways)
}

/// Mounts one directory for data and one for metadata.
fn two(
    disk: &Path,
    key: &'static str,
    label: &'static str,
    command: impl Fn(&Path, bool) -> Command,
) -> Result<Way> {
    let dirs = [disk.join(format!("{key}-data")), disk.join(format!("{key}-asks"))];
    let mounts = dirs
        .iter()
        .zip([false, true])
        .map(|(at, asks)| Mount::start(command(at, asks), at))
        .collect::<Result<Vec<_>>>()?;
    Ok(Way { key, label, dirs, _mounts: mounts })
}

fn build_example(program: &Path) -> Result<()> {
    let script = format!(
        "cc -O2 -o '{}' {EXAMPLES}/{EXAMPLE}.c $(pkg-config --cflags --libs fuse3)",
        program.display()
    );
    let done = Command::new("sh").args(["-c", &script]).output()?;
    ensure!(done.status.success(), "{EXAMPLES}/{EXAMPLE}.c: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| what | through | median | unit | time of libfuse's | 95 % interval |\n|---|---|--:|---|--:|--:|\n",
    );
    for row in results["rows"].as_array().into_iter().flatten() {
        let word = |key: &str| row[key].as_str().unwrap_or("").to_string();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} × | {} |",
            word("label"),
            word("way"),
            number(&row["figure"]["median"], 1),
            word("unit"),
            number(&row["time_of_libfuse"]["median"], 2),
            interval(&row["time_of_libfuse"], 2)
        );
    }
    let _ = writeln!(text, "\n{} events recorded, {} lost.", results["events"], results["lost"]);
    text
}
