//! `mpi`: overhead of the hooks in an `MPI_File_write_at` of 4 KiB to a file in memory, separately
//! and together.
//!
//! As in `hook`, every variant runs in its own process, all of them on the same processor. The
//! overhead of a variant is the median over the repetitions of its difference to the plain run of
//! the same repetition.

use crate::played::{Played, Reads};
use crate::process::Aside;
use crate::proof::{Expected, Watched};
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
use std::rc::Rc;

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
    // One reader per variant, which sleeps meanwhile, so that the records of each are counted.
    let recording = |key: &str, each| -> Result<Watched> {
        let played = Rc::new(Played::start(&shm.join(key), Reads::Copies, &Played::ample())?);
        played.sleep();
        Ok(Watched::played(&played, Expected::Requests(each)))
    };
    let off = Settings { enabled: false, ..Settings::default() };
    let off = Rc::new(Played::start(&shm.join("off"), Reads::Nothing, &off)?);
    let nobody = Watched::nobody(&shm.join("nobody"));
    let flags = flags()?;
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = worker::compile("mpi", bench.disk.path(), &flags)?;
    let (both, mpi) = (daemons::built("libmiot_posix.so")?, daemons::built("libmiot_mpi.so")?);
    // The posix hook loads the mpi hook that lies beside it; a copy finds none.
    let posix = bench.disk.path().join("libmiot_posix.so");
    std::fs::copy(&both, &posix)?;
    let [posix, mpi, both] = [posix, mpi, both].map(|library| library.display().to_string());
    let ways: [(&str, &str, &str, Watched); 6] = [
        ("plain", "plain", "", nobody.clone()),
        ("posix", "posix hook, recording", &posix, recording("posix", 1)?),
        ("mpi", "mpi hook, recording", &mpi, recording("mpi", 1)?),
        ("both", "both hooks, recording", &both, recording("both", 2)?),
        ("off", "both hooks, switched off", &both, Watched::played(&off, Expected::Nothing)),
        ("dormant", "both hooks, no log-client on the node", &both, nobody),
    ];
    let mut workers = Vec::new();
    for (key, _, preload, watched) in &ways {
        let mut command = Command::new(&program);
        command.arg(shm.join("data")).env("MIOT_DIR", watched.lanes.dir()).env("LD_PRELOAD", preload);
        aside.pin(&mut command);
        workers.push(Worker::start(key, command)?);
    }
    let proofs = ways.iter().map(|(.., watched)| watched.start()).collect::<Result<Vec<_>>>()?;
    ways.iter().filter_map(|(.., watched)| watched.lanes.played()).for_each(Played::sleep);
    let count = bench.pick(5000, 5000, 300);
    let mut times = vec![Vec::new(); ways.len()];
    for repetition in 0..=bench.pick(60, 15, 2) {
        let mut order: Vec<usize> = (0..ways.len()).collect();
        if repetition % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let reader = ways[at].3.lanes.played();
            reader.inspect(|reader| reader.wake());
            let ns = workers[at].run(count, 1)?.cpu_ns / count as f64;
            if let Some(reader) = reader {
                reader.catch_up()?;
                reader.sleep();
            }
            if repetition > 0 {
                times[at].push(ns);
            }
        }
    }
    let mut recorded = Vec::new();
    for (((.., preload, _), worker), proof) in ways.iter().zip(workers).zip(proofs) {
        if !preload.is_empty() {
            worker.expect_mapped(Path::new(preload))?;
        }
        recorded.push(proof.end(&worker, worker.calls())?);
        worker.finish()?;
    }
    let lost = recorded.iter().filter_map(|counts| counts["lost"].as_u64()).sum::<u64>();
    let labels: Vec<[&str; 2]> = ways.iter().map(|(key, label, ..)| [*key, *label]).collect();
    let rows = rows(&labels, &times, recorded);
    Ok(json!({ "ways": rows, "miot_lost": lost, "processors": machine::processors() }))
}

fn rows(labels: &[[&str; 2]], times: &[Vec<f64>], recorded: Vec<Value>) -> Vec<Value> {
    println!("{:45} {:>9} {:>9} {:>7}", "MPI_File_write_at of 4 KiB", "ns", "added", "ratio");
    let mut rows = Vec::new();
    for (([key, label], own), recorded) in labels.iter().zip(times).zip(recorded) {
        let of_plain = |change: fn(f64, f64) -> f64| -> Interval {
            let values: Vec<f64> =
                own.iter().zip(&times[0]).map(|(own, plain)| change(*own, *plain)).collect();
            median_with_interval(&values)
        };
        let row = json!({
            "key": key, "way": label, "ns": Summary::of(own.clone()),
            "added_ns": of_plain(|own, plain| own - plain), "ratio": of_plain(|own, plain| own / plain),
            "recorded": recorded,
        });
        let cell = |name: &str, digits| number(&row[name]["median"], digits);
        println!("{label:45} {:>9} {:>9} {:>7}", cell("ns", 0), cell("added_ns", 0), cell("ratio", 3));
        rows.push(row);
    }
    rows
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
