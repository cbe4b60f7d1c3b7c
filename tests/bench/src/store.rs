//! `store`: time from the seal of a part until it is in an object store and in a table catalog.
//!
//! The log-server, `miot-uploader` and `rclone serve s3` run on this machine, and events keep
//! coming at a constant rate. *In the store* is the time until the ledger file of the part, which
//! is put last, is an object. *In the table* is the time until the program that registers the part
//! in a DuckLake catalog has succeeded. At the end DuckDB counts the rows of each part through
//! catalog and store. Small parts follow each other; a part of the default size is sealed once.

use crate::Bench;
use crate::daemons::{self, free_port, wait_until};
use crate::fleet::{Fleet, Plan};
use crate::node::Node;
use crate::pattern::Pattern;
use crate::pipeline::count;
use crate::process::{self, Running};
use crate::report::number;
use crate::server::Server;
use crate::stats::Summary;
use crate::worker::{self, Worker};
use anyhow::{Context as _, Result, bail, ensure};
use miot_trace_store::{Reader, Table};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Bucket, and prefix of the trace in it.
const BUCKET: &str = "traces";
const PREFIX: &str = "bench";
const KEYS: (&str, &str) = ("a-key", "a-secret");
/// Threads that make events, in slices of this length.
const THREADS: u64 = 4;
const SLICE: Duration = Duration::from_secs(2);
/// Interval between two checks for a file.
const POLL: Duration = Duration::from_millis(5);
/// Longest time from a seal to the table.
const PATIENCE: Duration = Duration::from_secs(120);

/// Number of rows of each file of the events in the catalog.
const ASK: &str = "SELECT filename, count(*) FROM lake.events GROUP BY filename";

/// Programs that `tests/setup.sh` installs.
struct Programs {
    rclone: PathBuf,
    python: PathBuf,
}

impl Programs {
    fn find() -> Option<Programs> {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let found = |path: &str| Some(target.join(path)).filter(|path| path.exists());
        Some(Programs { rclone: found("test-stores/bin/rclone")?, python: found("test-lake/bin/python")? })
    }
}

/// An S3 server on loopback with one bucket.
struct Store {
    _server: Running,
    port: u16,
    folder: PathBuf,
}

impl Store {
    fn start(program: &Path, dir: &Path) -> Result<Store> {
        let (data, port) = (dir.join("store"), free_port()?);
        let folder = data.join(BUCKET);
        std::fs::create_dir_all(&folder)?;
        let mut command = Command::new(program);
        command.args(["serve", "s3", "--config", "/dev/null", "--addr", &format!("127.0.0.1:{port}")]);
        command.args(["--auth-key", &format!("{},{}", KEYS.0, KEYS.1)]).arg(&data);
        let server = start(&mut command, dir, "rclone")?;
        wait_until("rclone", dir, || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(Store { _server: server, port, folder: folder.join(PREFIX) })
    }

    /// Environment of programs that use the store.
    fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", KEYS.0.into()),
            ("AWS_SECRET_ACCESS_KEY", KEYS.1.into()),
        ]
    }
}

/// Starts a program that writes its messages to `NAME.log`.
fn start(command: &mut Command, dir: &Path, name: &str) -> Result<Running> {
    let log = std::fs::File::create(dir.join(format!("{name}.log")))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(Running::new(process::ends_with_us(command).spawn().with_context(|| name.to_string())?))
}

/// What is recorded, and when it is sealed.
struct Load {
    what: &'static str,
    /// Settings of the log-server.
    seal: String,
    /// Number of parts that are measured.
    parts: u64,
    /// Events per second of one node.
    rate: u64,
    /// Batches that other nodes send at once.
    plan: Option<Plan>,
}

impl Load {
    fn all(bench: &Bench) -> [Load; 2] {
        let rate = bench.pick(100_000, 100_000, 2000);
        let (seal_after, parts) = bench.pick((5, 24), (5, 6), (1, 2));
        // The default of `seal_rows`, except in a smoke run.
        let seal_rows: u64 = bench.pick(8 << 20, 8 << 20, 16 << 10);
        let (nodes, rows) = (16, 1024);
        let batches = seal_rows / nodes / rows + 1;
        [
            Load {
                what: "small parts",
                seal: format!("seal_after = \"{seal_after}s\""),
                parts,
                rate,
                plan: None,
            },
            Load {
                what: "a part of the default size",
                seal: format!("seal_rows = {seal_rows}"),
                parts: 1,
                rate,
                plan: Some(Plan { pattern: Pattern::Mixed, nodes, streams: 1, rows, batches }),
            },
        ]
    }
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let Some(programs) = Programs::find() else {
        println!("store: no rclone or DuckDB here, skipped (tests/setup.sh installs them)");
        return Ok(json!({ "skipped": "no rclone or DuckDB" }));
    };
    println!("{:>6} {:>9} {:>8} {:>11} {:>11}", "part", "events", "MiB", "in store, s", "in table, s");
    let mut loads = Vec::new();
    for load in Load::all(bench) {
        let (dir, lanes) = (bench.disk.path().join("site"), bench.memory.path().join("site"));
        let parts = Site::start(&dir, &lanes, &programs, &load)?.measure(&load)?;
        std::fs::remove_dir_all(&dir)?;
        std::fs::remove_dir_all(&lanes)?;
        println!("{}", load.what);
        for part in &parts {
            let figure = |key: &str, decimals| number(&part[key], decimals);
            let (events, mib) = (figure("events", 0), figure("mib", 2));
            let (store, table) = (figure("store_s", 2), figure("table_s", 2));
            println!("{:>6} {events:>9} {mib:>8} {store:>11} {table:>11}", figure("part", 0));
        }
        loads.push(json!({ "what": load.what, "rate": load.rate, "parts": parts }));
    }
    Ok(json!({ "loads": loads }))
}

/// A log-server with a node, its uploader, the store and the catalog.
struct Site<'a> {
    programs: &'a Programs,
    dir: PathBuf,
    // Dropped in this order.
    uploader: Running,
    node: Node,
    server: Server,
    store: Store,
    script: PathBuf,
    catalog: String,
}

impl Site<'_> {
    fn start<'a>(dir: &Path, lanes: &Path, programs: &'a Programs, load: &Load) -> Result<Site<'a>> {
        std::fs::create_dir_all(dir)?;
        let store = Store::start(&programs.rclone, dir)?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/register/register-ducklake");
        let catalog = format!("sqlite:{}", dir.join("catalog.sqlite").display());
        let settings = format!(
            "http = \"off\"\n{}\nstore = \"s3://{BUCKET}/{PREFIX}\"\nregister = [{:?}, {script:?}, {catalog:?}]\n",
            load.seal, programs.python
        );
        let server = Server::start(dir, &settings)?;
        let node = Node::start(dir, lanes, "bench", &[server.address().to_string()])?;
        let mut command = Command::new(daemons::built("miot-uploader")?);
        command.arg("--config").arg(dir.join("log-server.toml")).envs(store.environment());
        let uploader = start(&mut command, dir, "miot-uploader")?;
        Ok(Site { programs, dir: dir.into(), uploader, node, server, store, script, catalog })
    }

    /// Records until all parts of the load are in the table. Returns the figures of each.
    fn measure(self, load: &Load) -> Result<Vec<Value>> {
        let fleet = load.plan.map(Fleet::build);
        let mut command = worker::own("miot-mixed")?;
        command.env("MIOT_DIR", self.node.dir());
        let mut worker = Worker::start("miot-mixed", command)?;
        let (stop, stopped) = mpsc::channel::<()>();
        let (recorded, sent, delays) = std::thread::scope(|scope| {
            let (worker, address) = (&mut worker, self.server.address());
            let recording = scope.spawn(move || {
                while stopped.try_recv() == Err(TryRecvError::Empty) {
                    worker.paced(load.rate, SLICE.as_millis() as u64, THREADS)?;
                }
                Ok(())
            });
            let sending = fleet.map(|fleet| scope.spawn(move || fleet.ship(address).map(drop)));
            let delays = (0..load.parts).map(|part| self.delays(part)).collect::<Result<Vec<_>>>();
            drop(stop);
            (recording.join(), sending.map_or(Ok(Ok(())), ScopedJoinHandle::join), delays)
        });
        for ended in [recorded, sent] {
            ended.unwrap_or_else(|_| bail!("a thread that records has failed"))?;
        }
        let delays = delays?;
        // The worker makes one operation more, to check that it records.
        let made = worker.calls() + 1 + load.plan.map_or(0, |plan| plan.events());
        worker.finish()?;
        let sizes = self.finish(made)?;
        let rows = delays.into_iter().zip(&sizes).enumerate().map(|(part, (delays, size))| {
            json!({
                "part": part, "events": size.events, "mib": size.bytes as f64 / f64::from(1 << 20),
                "store_s": delays.store, "table_s": delays.table,
            })
        });
        Ok(rows.collect())
    }

    /// Waits until a part is in the table. Returns the times since its seal.
    fn delays(&self, part: u64) -> Result<Delays> {
        let trace = self.server.trace();
        let object = self.store.folder.join(format!("ledger/part-{part:06}.sealed"));
        let in_store = until(&self.dir, &object)?;
        let in_table = until(&self.dir, &mark(trace, part))?;
        // The time of the last write to the file: a little before it has its name.
        let sealed = std::fs::metadata(events_file(trace, part))?.modified()?;
        let since = |time: SystemTime| time.duration_since(sealed).map(|time| time.as_secs_f64());
        Ok(Delays { store: since(in_store)?, table: since(in_table)? })
    }

    /// Stops the daemons once all parts are in the table, and compares the table with the trace and
    /// with the number of events made. Returns the sizes of the parts.
    fn finish(self, made: u64) -> Result<Vec<Size>> {
        self.node.stop()?;
        let trace = self.server.trace().to_path_buf();
        self.server.stop()?;
        let rows = count(&trace)?;
        ensure!(rows.events + rows.lost == made, "{} events and {} lost of {made}", rows.events, rows.lost);
        let of_trace = Reader::open(&trace)?.count(Table::Events)?;
        for part in of_trace.keys() {
            until(&self.dir, &mark(&trace, *part))?;
        }
        let usage = self.uploader.terminate();
        ensure!(usage.success, "the uploader ended with an error: {usage:?}");
        let mut ask = Command::new(&self.programs.python);
        ask.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../lake.py"))
            .arg(&self.script)
            .arg(&self.catalog);
        let said = process::said(ask.arg(ASK).envs(self.store.environment()))?;
        let found: Vec<(String, u64)> = serde_json::from_str(&said)?;
        let file = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let of_table: BTreeMap<String, u64> = found.iter().map(|(path, rows)| (file(path), *rows)).collect();
        let name = |part: &u64| format!("part-{part:06}.parquet");
        let expected: BTreeMap<String, u64> =
            of_trace.iter().map(|(part, rows)| (name(part), *rows)).collect();
        ensure!(of_table == expected, "rows of the table: {of_table:?}, of the trace: {expected:?}");
        let size = |(part, events): (&u64, &u64)| {
            Ok(Size { events: *events, bytes: std::fs::metadata(events_file(&trace, *part))?.len() })
        };
        of_trace.iter().map(size).collect()
    }
}

/// Times since the seal of a part, seconds.
struct Delays {
    store: f64,
    table: f64,
}

/// Size of a sealed part.
struct Size {
    events: u64,
    bytes: u64,
}

/// Waits for a file. Returns the time when it was there.
fn until(dir: &Path, file: &Path) -> Result<SystemTime> {
    let patience = Instant::now() + PATIENCE;
    while !file.exists() {
        let log = || std::fs::read_to_string(dir.join("miot-uploader.log")).unwrap_or_default();
        ensure!(
            Instant::now() < patience,
            "no {} after {PATIENCE:?}; log of miot-uploader: {}",
            file.display(),
            log()
        );
        std::thread::sleep(POLL);
    }
    Ok(SystemTime::now())
}

/// Path of the file that marks a part as uploaded and registered.
fn mark(trace: &Path, part: u64) -> PathBuf {
    trace.join(format!("ledger/part-{part:06}.uploaded"))
}

fn events_file(trace: &Path, part: u64) -> PathBuf {
    trace.join(format!("events/part-{part:06}.parquet"))
}

pub(crate) fn table(results: &Value) -> String {
    if let Some(reason) = results["skipped"].as_str() {
        return format!("Not measured: {reason}.\n");
    }
    let mut text = String::from(
        "Seconds from the seal of a part; the sizes of the parts are medians.\n\n\
         | | events/s | parts | events | MiB | in the store, median | longest | in the table, median | longest |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for load in results["loads"].as_array().into_iter().flatten() {
        let parts = || load["parts"].as_array().into_iter().flatten();
        let of = |key: &str| Summary::of(parts().filter_map(|part| part[key].as_f64()).collect());
        let (store, table) = (of("store_s"), of("table_s"));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} |",
            load["what"].as_str().unwrap_or(""),
            load["rate"],
            parts().count(),
            of("events").median,
            of("mib").median,
            store.median,
            store.max,
            table.median,
            table.max
        );
    }
    text
}
