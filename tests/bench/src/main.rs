//! What MIOT costs, beside the floor and beside its peers, in one run.
//!
//! | command | what is measured |
//! |---|---|
//! | `op` | one recorded operation, on one thread |
//! | `threads` | the same on 1 to 64 threads |
//! | `hook` | the `posix` hook under a `pread` loop and under fio |
//! | `pipeline` | events per second and CPU time from lanes to sealed, ordered files |
//! | `delay` | from a completion to the line of `miot tail` |
//! | `tables` | nothing: writes the tables of `docs/performance.md` from the last results |
//!
//! Each writes `target/bench/COMMAND.json`. All repetitions are interleaved: what is compared ran side by
//! side, so that ratios hold on a busy machine too.

mod daemons;
mod delay;
mod hook;
mod lttng;
mod machine;
mod op;
mod pipeline;
mod played;
mod process;
mod report;
mod stats;
mod targets;
mod threads;
mod worker;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// What a benchmark may use.
pub(crate) struct Bench {
    /// Fewer and shorter repetitions.
    pub(crate) quick: bool,
    /// Scratch folder on a disk.
    pub(crate) disk: tempfile::TempDir,
    /// Scratch folder on a tmpfs.
    pub(crate) memory: tempfile::TempDir,
}

impl Bench {
    fn new(quick: bool, out: &std::path::Path) -> Result<Bench> {
        Ok(Bench {
            quick,
            disk: tempfile::Builder::new().prefix("scratch-").tempdir_in(out)?,
            memory: tempfile::Builder::new().prefix("miot-bench-").tempdir_in("/dev/shm")?,
        })
    }

    /// One of two numbers: for a full run, for a quick one.
    pub(crate) fn either<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// Compares MIOT with the floor and with its peers.
#[derive(Parser)]
#[command(name = "miot-bench")]
struct Args {
    /// What to measure; everything if none is named.
    #[arg(value_parser = ["op", "threads", "hook", "pipeline", "delay", "tables"])]
    names: Vec<String>,
    /// Fewer and shorter repetitions: shows that everything runs, the figures are rough.
    #[arg(long)]
    quick: bool,
    /// Where the results go.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
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
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    let all = ["op", "threads", "hook", "pipeline", "delay", "tables"].map(String::from);
    let names = if args.names.is_empty() { &all[..] } else { &args.names[..] };
    for name in names {
        let bench = Bench::new(args.quick, &args.out)?;
        eprintln!("== {name}");
        let results = match name.as_str() {
            "op" => op::run(&bench)?,
            "threads" => threads::run(&bench)?,
            "hook" => hook::run(&bench)?,
            "pipeline" => pipeline::run(&bench)?,
            "delay" => delay::run(&bench)?,
            _ => {
                report::write(&args.out)?;
                continue;
            }
        };
        write(args, name, results)?;
    }
    Ok(())
}

fn write(args: &Args, name: &str, results: Value) -> Result<()> {
    let path = args.out.join(format!("{name}.json"));
    let document =
        json!({ "bench": name, "quick": args.quick, "machine": machine::describe(), "results": results });
    std::fs::write(&path, serde_json::to_string_pretty(&document)? + "\n")?;
    eprintln!("   {}", path.display());
    Ok(())
}
