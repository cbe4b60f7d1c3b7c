//! Measures the cost of MIOT, compared with the floor and with its peers, in one run.
//!
//! | command | what is measured |
//! |---|---|
//! | `op` | one recorded operation on one thread, and the first one |
//! | `threads` | one recorded operation on 1 to 64 threads |
//! | `drain` | events per second that one log-client drains without losses |
//! | `idle` | a node with 500 idle processes |
//! | `startup` | cost for a short-lived program |
//! | `hook` | the `posix` hook in a `pread` loop |
//! | `mpi` | both hooks in a loop of `MPI_File_write_at` |
//! | `apps` | the `posix` hook with fio, a metadata storm, `git status` and sqlite3 |
//! | `gluster` | the translator in GlusterFS mounts |
//! | `fuse` | a directory through miot-fuse, beside libfuse's pass-through file system |
//! | `pipeline` | events per second and CPU time from lanes to sealed, ordered files |
//! | `nodes` | events per second of a log-server with 1, 16 and 256 nodes |
//! | `cluster` | a log-server with 10 000 nodes of one event per second each, over TLS |
//! | `broker` | events per second through a broker, beside TCP |
//! | `bytes` | bytes per event on the wire, live and sealed, beside CTF |
//! | `sync` | cost of acknowledging only durable batches |
//! | `streams` | memory of a log-server with many streams |
//! | `recovery` | a log-server after a crash |
//! | `delay` | time from a completion to the line of `miot tail` |
//! | `distributed` | `miot query` on one and on four workers |
//! | `sets` | one, two and four log-servers: events per second, reading and following their traces |
//! | `store` | time from the seal of a part until it is in an object store and in a table catalog |
//! | `replay` | duration of `miot replay` beside the trace's, and delay of requests |
//! | `fsstats` | names per second of `miot fsstats`, beside `find -printf` |
//! | `simulate` | requests per second and core of `miot simulate`, and scaling of sweeps |
//! | `bench` | `miot bench` beside fio and beside an MPI-IO program |
//! | `estimate` | estimated and measured times of BT-IO's phases on two storages |
//! | `analysis` | analyses of a long trace, in time and memory, beside DuckDB |
//! | `python` | regions in Python, a call beside DFTracer, reading beside pyarrow and the tool |
//! | `paper` | the table and the figures of the MIOT paper |
//!
//! Each command writes `COMMAND.json`. `--report` converts these files to the tables of
//! `docs/dev/performance.md`. All repetitions are interleaved: compared variants run side by side,
//! so that ratios are valid on a busy machine too.

mod analysis;
mod apps;
mod broker;
mod bytes;
mod cluster;
mod daemons;
mod delay;
mod distributed;
mod drain;
mod estimate;
mod first;
mod fleet;
mod fsstats;
mod fuse;
mod gluster;
mod hook;
mod idle;
mod leftovers;
mod lttng;
mod machine;
mod memory;
mod mpi;
mod node;
mod nodes;
mod op;
mod paper;
mod parallel;
mod pattern;
mod pipeline;
mod played;
mod process;
mod proof;
mod python;
mod recovery;
mod replay;
mod report;
mod server;
mod sets;
mod share;
mod simulate;
mod sink;
mod startup;
mod stats;
mod store;
mod streams;
mod sync;
mod targets;
mod threads;
mod worker;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Duration of the benchmarks, which determines the precision of their figures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    Full,
    Quick,
    Smoke,
}

impl Size {
    fn name(self) -> &'static str {
        match self {
            Size::Full => "full",
            Size::Quick => "quick",
            Size::Smoke => "smoke",
        }
    }
}

/// Resources of a benchmark.
pub(crate) struct Bench {
    size: Size,
    /// Scratch folder on a disk.
    pub(crate) disk: tempfile::TempDir,
    /// Scratch folder on a tmpfs.
    pub(crate) memory: tempfile::TempDir,
}

impl Bench {
    fn new(size: Size, out: &Path) -> Result<Bench> {
        Ok(Bench { size, disk: leftovers::scratch(out)?, memory: leftovers::scratch(Path::new("/dev/shm"))? })
    }

    /// Selects a number for a full run, a quick run, or a smoke run.
    pub(crate) fn pick<T>(&self, full: T, quick: T, smoke: T) -> T {
        match self.size {
            Size::Full => full,
            Size::Quick => quick,
            Size::Smoke => smoke,
        }
    }

    /// True for a smoke run, which only shows that everything runs.
    pub(crate) fn is_smoke(&self) -> bool {
        self.size == Size::Smoke
    }
}

/// A benchmark. Returns its results.
type Run = fn(&Bench) -> Result<Value>;

/// Benchmarks in the order in which they run.
const BENCHMARKS: [(&str, Run); 30] = [
    ("op", op::run),
    ("threads", threads::run),
    ("drain", drain::run),
    ("idle", idle::run),
    ("startup", startup::run),
    ("hook", hook::run),
    ("mpi", mpi::run),
    ("apps", apps::run),
    ("gluster", gluster::run),
    ("fuse", fuse::run),
    ("pipeline", pipeline::run),
    ("nodes", nodes::run),
    ("cluster", cluster::run),
    ("broker", broker::run),
    ("bytes", bytes::run),
    ("sync", sync::run),
    ("streams", streams::run),
    ("recovery", recovery::run),
    ("delay", delay::run),
    ("sets", sets::run),
    ("store", store::run),
    ("fsstats", fsstats::run),
    ("replay", replay::run),
    ("simulate", simulate::run),
    ("bench", parallel::run),
    ("estimate", estimate::run),
    ("paper", paper::run),
    ("analysis", analysis::run),
    ("distributed", distributed::run),
    ("python", python::run),
];

/// Compares MIOT with the floor and with its peers.
#[derive(Parser)]
#[command(name = "tests/bench/run.sh")]
struct Args {
    /// Benchmarks to run (default: all): op, threads, drain, idle, startup, hook, mpi, apps, fuse,
    /// gluster, pipeline, nodes, cluster, broker, bytes, sync, streams, recovery, delay, sets,
    /// store, fsstats, replay, simulate, bench, estimate, paper, analysis, distributed,
    /// python.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(BENCHMARKS.map(|(name, _)| name)))]
    names: Vec<String>,
    /// Fewer and shorter repetitions, about six minutes in total: the figures are rough.
    #[arg(long)]
    quick: bool,
    /// Minimum of repetitions: shows only that everything runs.
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// Write the tables of docs/dev/performance.md from existing results, and measure only the
    /// named benchmarks.
    #[arg(long)]
    report: bool,
    /// Remove the leftovers of interrupted runs (mounts, loop devices, processes, folders) and
    /// exit.
    #[arg(long)]
    clean: bool,
    /// Folder for the results, a JSON file of each benchmark. [default: target/bench, with --quick
    /// target/bench/quick, with --smoke target/bench/smoke]
    #[arg(long)]
    out: Option<PathBuf>,
}

impl Args {
    fn size(&self) -> Size {
        match (self.quick, self.smoke) {
            (true, _) => Size::Quick,
            (_, true) => Size::Smoke,
            _ => Size::Full,
        }
    }

    fn out(&self) -> PathBuf {
        let own = match self.size() {
            Size::Full => "target/bench",
            Size::Quick => "target/bench/quick",
            Size::Smoke => "target/bench/smoke",
        };
        self.out.clone().unwrap_or_else(|| own.into())
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("miot-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let out = args.out();
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let out = out.canonicalize()?;
    leftovers::remove(&out);
    if args.clean {
        return Ok(());
    }
    let wanted =
        |name: &str| args.names.iter().any(|wanted| wanted == name) || args.names.is_empty() && !args.report;
    let started = Instant::now();
    let mut failed = Vec::new();
    for (name, bench) in BENCHMARKS.into_iter().filter(|(name, _)| wanted(name)) {
        if let Err(error) = measure(name, bench, args.size(), &out) {
            // The others can still be measured.
            eprintln!("miot-bench: {name} FAILED: {error:#}");
            failed.push(name);
        }
    }
    if args.report {
        report::write(&out)?;
    }
    eprintln!("   {:.0} s in all", started.elapsed().as_secs_f64());
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Runs one benchmark and writes its results. After a failure no results of an earlier run remain;
/// of `apps`, those of the programs that did not fail are written.
fn measure(name: &str, run: Run, size: Size, out: &Path) -> Result<()> {
    let path = out.join(format!("{name}.json"));
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error).with_context(|| path.display().to_string());
    }
    let bench = Bench::new(size, out)?;
    eprintln!("== {name}");
    let (before, started) = (machine::state(), Instant::now());
    let results = run(&bench)?;
    let document = json!({
        "bench": name, "size": size.name(), "commit": machine::commit(), "machine": machine::describe(),
        "before": before, "after": machine::state(), "seconds": started.elapsed().as_secs_f64().round(),
        "results": results,
    });
    std::fs::write(&path, serde_json::to_string_pretty(&document)? + "\n")?;
    let failed = document["results"]["failed"].as_array().map_or(0, Vec::len);
    ensure!(failed == 0, "{failed} of its programs failed, and have no rows");
    eprintln!("   {} ({:.0} s)", path.display(), started.elapsed().as_secs_f64());
    Ok(())
}
