//! `store`: time from the seal of a part until it is in an object store and in a table catalog.
//!
//! The log-server, `miot-uploader` and `rclone serve s3` run on this machine, and events keep
//! coming at a constant rate. *In the store* is the time until the ledger file of the part, which
//! is put last, is an object. *In the table* is the time until the program that registers the part
//! in a DuckLake catalog has succeeded. At the end DuckDB counts the rows of each part through
//! catalog and store.

use crate::Bench;
use crate::daemons::{self, free_port, wait_until};
use crate::node::Node;
use crate::pipeline::count;
use crate::process;
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
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant, SystemTime};

/// Bucket, and prefix of the trace in it.
const BUCKET: &str = "traces";
const PREFIX: &str = "bench";
const KEYS: (&str, &str) = ("a-key", "a-secret");
/// Threads that make events, in slices of this length.
const THREADS: u64 = 4;
const SLICE: Duration = Duration::from_secs(2);
/// Time between two looks for files.
const POLL: Duration = Duration::from_millis(5);
/// Longest time from a seal to the table.
const PATIENCE: Duration = Duration::from_secs(120);

/// Prints, as JSON, the number of rows of each file of the events in the catalog.
const ASK: &str = "
import importlib.machinery, importlib.util, json, sys
loader = importlib.machinery.SourceFileLoader('register', sys.argv[1])
module = importlib.util.module_from_spec(importlib.util.spec_from_loader('register', loader))
loader.exec_module(module)
connection = module.duckdb.connect()
for extension in ('ducklake', 'sqlite_scanner'):
    module.load(connection, extension)
module.use_s3(connection)
connection.execute(f\"ATTACH 'ducklake:{sys.argv[2]}' AS lake (READ_ONLY)\")
rows = connection.sql('SELECT filename, count(*) FROM lake.events GROUP BY filename').fetchall()
print(json.dumps({name.rsplit('/', 1)[1]: count for name, count in rows}))
";

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

/// A running child, killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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
    Ok(Running(process::ends_with_us(command).spawn().with_context(|| name.to_string())?))
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let Some(programs) = Programs::find() else {
        println!("store: no rclone or DuckDB here, skipped (tests/setup.sh installs them)");
        return Ok(json!({ "skipped": "no rclone or DuckDB" }));
    };
    let (rate, seal_after, parts) = bench.pick((100_000, 5, 24), (100_000, 5, 6), (2000, 1, 2));
    let rows = Site::start(bench, &programs, seal_after)?.measure(rate, parts)?;
    println!("{:>6} {:>9} {:>8} {:>11} {:>11}", "part", "events", "MiB", "in store, s", "in table, s");
    for row in &rows {
        let figure = |key: &str, decimals| number(&row[key], decimals);
        let (events, mib) = (figure("events", 0), figure("mib", 2));
        let (store, table) = (figure("store_s", 2), figure("table_s", 2));
        println!("{:>6} {events:>9} {mib:>8} {store:>11} {table:>11}", figure("part", 0));
    }
    Ok(json!({ "rate": rate, "seal_after_s": seal_after, "parts": rows }))
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
    fn start<'a>(bench: &Bench, programs: &'a Programs, seal_after: u64) -> Result<Site<'a>> {
        let dir = bench.disk.path().join("site");
        std::fs::create_dir_all(&dir)?;
        let store = Store::start(&programs.rclone, &dir)?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/register/register-ducklake");
        let catalog = format!("sqlite:{}", dir.join("catalog.sqlite").display());
        let settings = format!(
            "http = \"off\"\nseal_after = \"{seal_after}s\"\nstore = \"s3://{BUCKET}/{PREFIX}\"\nregister = [{:?}, {script:?}, {catalog:?}]\n",
            programs.python
        );
        let server = Server::start(&dir, &settings)?;
        let servers = [server.address().to_string()];
        let node = Node::start(&dir, &bench.memory.path().join("store"), "bench", &servers)?;
        let mut command = Command::new(daemons::built("miot-uploader")?);
        command.arg("--config").arg(dir.join("log-server.toml")).envs(store.environment());
        let uploader = start(&mut command, &dir, "miot-uploader")?;
        Ok(Site { programs, dir, uploader, node, server, store, script, catalog })
    }

    /// Records until this number of parts is in the table. Returns the figures of each.
    fn measure(self, rate: u64, parts: u64) -> Result<Vec<Value>> {
        let mut command = worker::own("miot-mixed")?;
        command.env("MIOT_DIR", self.node.dir());
        let mut worker = Worker::start("miot-mixed", command)?;
        let (stop, stopped) = mpsc::channel::<()>();
        let (recorded, delays) = std::thread::scope(|scope| {
            let worker = &mut worker;
            let recording = scope.spawn(move || {
                while stopped.try_recv() == Err(TryRecvError::Empty) {
                    worker.paced(rate, SLICE.as_millis() as u64, THREADS)?;
                }
                Ok(())
            });
            let delays = (0..parts).map(|part| self.delays(part)).collect::<Result<Vec<_>>>();
            drop(stop);
            (recording.join(), delays)
        });
        recorded.unwrap_or_else(|_| bail!("the thread of the worker has failed"))?;
        let delays = delays?;
        // The worker makes one operation more, to check that it records.
        let made = worker.calls() + 1;
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
    fn finish(mut self, made: u64) -> Result<Vec<Size>> {
        self.node.stop()?;
        let trace = self.server.trace().to_path_buf();
        self.server.stop()?;
        let rows = count(&trace)?;
        ensure!(rows.events + rows.lost == made, "{} events and {} lost of {made}", rows.events, rows.lost);
        let of_trace = Reader::open(&trace)?.count(Table::Events)?;
        for part in of_trace.keys() {
            until(&self.dir, &mark(&trace, *part))?;
        }
        let usage = process::terminate(&mut self.uploader.0);
        ensure!(usage.success, "the uploader ended with an error: {usage:?}");
        let mut ask = Command::new(&self.programs.python);
        ask.args(["-c", ASK]).arg(&self.script).arg(&self.catalog).envs(self.store.environment());
        let of_table: BTreeMap<String, u64> = serde_json::from_str(&process::said(&mut ask)?)?;
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
        ensure!(Instant::now() < patience, "{} does not come: {}", file.display(), log());
        std::thread::sleep(POLL);
    }
    Ok(SystemTime::now())
}

/// The file that says that a part is in the store and registered.
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
    let parts = || results["parts"].as_array().into_iter().flatten();
    let of = |key: &str| Summary::of(parts().filter_map(|part| part[key].as_f64()).collect());
    let mut text = format!(
        "{} parts; {} events/s; a part is sealed after {} s: {:.0} events, {:.1} MiB (medians).\n\n\
         | from the seal, seconds | median | longest |\n|---|--:|--:|\n",
        parts().count(),
        results["rate"],
        results["seal_after_s"],
        of("events").median,
        of("mib").median
    );
    for (what, key) in
        [("until the part is in the store", "store_s"), ("until its rows are in the table", "table_s")]
    {
        let _ = writeln!(text, "| {what} | {:.2} | {:.2} |", of(key).median, of(key).max);
    }
    text
}
