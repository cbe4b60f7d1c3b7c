//! `mpi`: overhead of the hooks in an `MPI_File_write_at` of 4 KiB to a file in memory, separately
//! and together.
//!
//! As in `hook`, every variant runs in its own process, all of them on the same processor. The
//! overhead of a variant is the median over the repetitions of its difference to the plain run of
//! the same repetition.

use crate::played::{Played, Reads};
use crate::process::Aside;
use crate::report::{interval, number};
use crate::stats::{Interval, Summary, median_with_interval};
use crate::worker::{self, Worker};
use crate::{Bench, daemons, machine};
use anyhow::{Context as _, Result, ensure};
use miot_proto::control::Settings;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program for MPICH.
pub(crate) fn compile(source: &Path, out: &Path) -> Result<PathBuf> {
    let output = Command::new("mpicc.mpich")
        .args(["-O2", "-g", "-w", "-o"])
        .args([out, source])
        .arg("-lm")
        .output()
        .context("mpicc.mpich: tests/setup.sh installs it")?;
    ensure!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    Ok(out.to_path_buf())
}

/// Compiler flags for MPICH.
fn flags() -> Result<Vec<String>> {
    let shown = Command::new("mpicc.mpich")
        .arg("-show")
        .output()
        .context("mpicc.mpich: tests/setup.sh installs it")?;
    let text = String::from_utf8(shown.stdout)?;
    Ok(text
        .split_whitespace()
        .filter(|word| ["-I", "-L", "-l"].iter().any(|f| word.starts_with(f)))
        .map(str::to_owned)
        .collect())
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let aside = Aside::step()?;
    let shm = bench.memory.path();
    let on = Played::start(&shm.join("on"), Reads::Copies, &Played::ample())?;
    let off = Settings { enabled: false, ..Settings::default() };
    let off = Played::start(&shm.join("off"), Reads::Nothing, &off)?;
    let nobody = shm.join("nobody");
    let flags = flags()?;
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = worker::compile("mpi", bench.disk.path(), &flags)?;
    let (posix, mpi) = (daemons::built("libmiot_posix.so")?, daemons::built("libmiot_mpi.so")?);
    let both = format!("{}:{}", posix.display(), mpi.display());
    let (posix, mpi) = (posix.display().to_string(), mpi.display().to_string());
    let ways: [(&str, &str, &str, &Path); 6] = [
        ("plain", "plain", "", &nobody),
        ("posix", "posix hook, recording", &posix, on.dir()),
        ("mpi", "mpi hook, recording", &mpi, on.dir()),
        ("both", "both hooks, recording", &both, on.dir()),
        ("off", "both hooks, switched off", &both, off.dir()),
        ("dormant", "both hooks, no log-client on the node", &both, &nobody),
    ];
    let mut workers = Vec::new();
    for (key, _, preload, node) in &ways {
        let mut command = Command::new(&program);
        command.arg(shm.join("data")).env("MIOT_DIR", node).env("LD_PRELOAD", preload);
        aside.pin(&mut command);
        workers.push(Worker::start(key, command)?);
    }
    let count = bench.pick(5000, 5000, 300);
    let mut times = vec![Vec::new(); ways.len()];
    for repetition in 0..=bench.pick(60, 15, 2) {
        let mut order: Vec<usize> = (0..ways.len()).collect();
        if repetition % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let ns = workers[at].run(count, 1)?.cpu_ns / count as f64;
            on.catch_up()?;
            if repetition > 0 {
                times[at].push(ns);
            }
        }
    }
    for worker in workers {
        worker.finish()?;
    }
    println!("{:45} {:>9} {:>9} {:>7}", "MPI_File_write_at of 4 KiB", "ns", "added", "ratio");
    let mut rows = Vec::new();
    for ((key, label, ..), own) in ways.iter().zip(&times) {
        let of_plain = |change: fn(f64, f64) -> f64| -> Interval {
            let values: Vec<f64> =
                own.iter().zip(&times[0]).map(|(own, plain)| change(*own, *plain)).collect();
            median_with_interval(&values)
        };
        let row = json!({
            "key": key, "way": label, "ns": Summary::of(own.clone()),
            "added_ns": of_plain(|own, plain| own - plain), "ratio": of_plain(|own, plain| own / plain),
        });
        let cell = |name: &str, digits| number(&row[name]["median"], digits);
        println!("{label:45} {:>9} {:>9} {:>7}", cell("ns", 0), cell("added_ns", 0), cell("ratio", 3));
        rows.push(row);
    }
    Ok(json!({ "ways": rows, "miot_lost": on.losses(), "processors": machine::processors() }))
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from("| way | ns | added ns | 95 % interval | ratio |\n|---|--:|--:|--:|--:|\n");
    for row in results["ways"].as_array().into_iter().flatten() {
        let added = &row["added_ns"];
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row["way"].as_str().unwrap_or(""),
            number(&row["ns"]["median"], 0),
            number(&added["median"], 0),
            interval(added, 0),
            number(&row["ratio"]["median"], 3)
        );
    }
    let _ = writeln!(text, "\nLost while measuring: {}.", results["miot_lost"]);
    text
}
