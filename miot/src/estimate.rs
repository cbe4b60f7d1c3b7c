//! `miot estimate`: estimates the I/O time of an application on other storage.

mod measure;

use crate::bench::chosen;
use crate::model::read;
use crate::output::Out;
use crate::summary::bytes;
use anyhow::Context as _;
use clap::Args;
use miot_trace_analysis::model::estimate::{Bandwidth, Estimate, Ior, estimate};
use miot_trace_analysis::model::{Model, Phase};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::table;
use miot_workload::suite::{Cache, Sync};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Estimate how long an application's I/O takes on other storage, by running only its phases there
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot estimate solver.toml                       IOR command that reproduces each phase\n  miot estimate solver.toml --run nvme=/scratch --run nfs=/home/me\n  miot estimate solver.toml --mpi --run nfs=/home/me\n  miot estimate solver.toml --bandwidth reached.csv\n  miot estimate solver.toml --bandwidth reached.csv --measured nfs=trace-on-nfs\n\n\
FILE is CSV with a header: configuration,phase,operation,mib_per_second. A phase is identified by any number of its family. Operations are numbered \
from 1 and may be empty. The mean of several lines for one operation is used. \
Time = weight / bandwidth, summed over the phases; error = |estimated - measured bandwidth| / measured bandwidth (Mendez et al. 2012)."
)]
pub(crate) struct Arguments {
    /// Model or trace
    #[arg(value_name = "MODEL|DIR")]
    model: PathBuf,
    /// Bandwidths measured by a benchmark of the phases
    #[arg(long, value_name = "FILE")]
    bandwidth: Vec<PathBuf>,
    /// Measure the phases in this directory now, with the processes of `miot bench`
    #[arg(long, value_name = "NAME=DIR", value_parser = named)]
    run: Vec<(String, PathBuf)>,
    /// With --run: keep the page cache, drop it before the clock runs, or bypass it (direct)
    #[arg(long, value_name = "HOW", value_parser = chosen::named::<Cache>, default_value = "keep")]
    cache: Cache,
    /// With --run: sync data never, at the end of a phase, or with each request
    #[arg(long, value_name = "WHEN", value_parser = chosen::named::<Sync>, default_value = "never")]
    sync: Sync,
    /// With --run: measure phases of MPI-IO through MPI-IO, with processes started by this command,
    /// e.g. mpiexec
    #[arg(long, value_name = "COMMAND", num_args = 0..=1, default_missing_value = "mpiexec")]
    mpi: Option<String>,
    /// With --run: maximum number of repetitions per measurement
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: u16,
    /// Model or trace of the application on a configuration, to compute the error of the estimate
    #[arg(long, value_name = "NAME=MODEL|DIR", value_parser = named)]
    measured: Vec<(String, PathBuf)>,
    /// Leave out phases that took less than 1 % of the time, like the paper
    #[arg(long)]
    relevant: bool,
    /// Path of the file of the benchmark
    #[arg(long, value_name = "PATH", default_value = "FILE")]
    target: String,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_owned(), path.into())),
        _ => Err("expected the name of a configuration, =, and a path, e.g. nfs=trace-on-nfs".into()),
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut model = read(&arguments.model)?;
    if arguments.relevant {
        model.phases.retain(Phase::is_relevant);
    }
    anyhow::ensure!(!model.phases.is_empty(), "{} has no phases", arguments.model.display());
    model.placed().context("cannot estimate the model")?;
    let mut out = Out::new(arguments.format == Format::Json);
    if arguments.bandwidth.is_empty() && arguments.run.is_empty() {
        anyhow::ensure!(
            arguments.measured.is_empty(),
            "--measured requires bandwidths: add --bandwidth FILE or --run NAME=DIR"
        );
        commands(&model, arguments, &mut out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut reached = Vec::new();
    for path in &arguments.bandwidth {
        reached.extend(bandwidths(path)?);
    }
    let options = measure::Options {
        cache: arguments.cache,
        sync: arguments.sync,
        repetitions: usize::from(arguments.repetitions),
        launcher: arguments.mpi.as_deref(),
    };
    for (name, directory) in &arguments.run {
        anyhow::ensure!(
            !reached.iter().any(|row: &Bandwidth| row.configuration == *name),
            "--run {name}: this configuration already has bandwidths"
        );
        reached.extend(measure::measure(&model, name, directory, options)?);
    }
    let mut measured: BTreeMap<&str, Model> = BTreeMap::new();
    for (name, path) in &arguments.measured {
        anyhow::ensure!(
            reached.iter().any(|row| row.configuration == *name),
            "--measured {name}: this configuration has no bandwidths"
        );
        measured.insert(name, read(path)?);
    }
    let mut names: Vec<&str> = Vec::new();
    for row in &reached {
        if !names.contains(&row.configuration.as_str()) {
            names.push(&row.configuration);
        }
    }
    let mut estimates: Vec<Vec<Estimate>> = Vec::new();
    for name in &names {
        let rows = estimate(&model, name, &reached, measured.get(name));
        estimates.push(rows.map_err(|error| {
            anyhow::anyhow!(
                "configuration {name}: {error}: run their benchmark (miot estimate MODEL) and add a line"
            )
        })?);
    }
    let total = |rows: &[Estimate]| rows.last().map_or(f64::INFINITY, |row| row.seconds);
    let best = estimates.iter().min_by(|a, b| total(a).total_cmp(&total(b)));
    let choice = best.and_then(|rows| rows.first()).map_or("", |row| row.configuration.as_str());
    match arguments.format {
        Format::Text => text(&estimates, choice, &mut out)?,
        Format::Json => {
            let report = EstimateReport { choice, estimates: estimates.iter().flatten().collect() };
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
        }
        Format::Csv => records(&mut out, Format::Csv, true, estimates.iter().flatten())?,
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct EstimateReport<'a> {
    choice: &'a str,
    estimates: Vec<&'a Estimate>,
}

/// Benchmark command for one operation of a phase.
#[derive(Serialize)]
struct Command {
    phases: String,
    operation: usize,
    runs: u64,
    processes: u64,
    segments: u64,
    block: u64,
    transfer: u64,
    command: String,
}

fn commands(model: &Model, arguments: &Arguments, out: &mut impl Write) -> anyhow::Result<()> {
    let of_phase = |phase: &Phase| -> Vec<Command> {
        let of = |(nth, operation)| {
            let ior = Ior::of(phase, operation, &model.layer);
            Command {
                phases: phase.numbers.to_string(),
                operation: nth + 1,
                runs: phase.count(),
                processes: ior.processes,
                segments: ior.segments,
                block: ior.block,
                transfer: ior.transfer,
                command: ior.command(&arguments.target),
            }
        };
        phase.operations.iter().enumerate().map(of).collect()
    };
    let all: Vec<Command> = model.phases.iter().flat_map(of_phase).collect();
    match arguments.format {
        Format::Text => {
            let rows = all.iter().map(|it| [it.phases.clone(), it.operation.to_string(), it.command.clone()]);
            table(out, ["phases", "operation", "command"].map(str::to_owned), rows.collect())?;
        }
        format => records(out, format, true, &all)?,
    }
    Ok(())
}

/// Line of a bandwidth file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BandwidthLine {
    configuration: String,
    phase: u64,
    operation: Option<u64>,
    mib_per_second: f64,
}

fn bandwidths(path: &Path) -> anyhow::Result<Vec<Bandwidth>> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_path(path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let mut rows = Vec::new();
    for line in reader.deserialize::<BandwidthLine>() {
        let line = line.with_context(|| {
            format!(
                "{}: expected CSV with the columns configuration,phase,operation,mib_per_second",
                path.display()
            )
        })?;
        anyhow::ensure!(
            line.mib_per_second.is_finite() && line.mib_per_second > 0.0,
            "{}: phase {} of {}: a bandwidth must be above 0, found {}",
            path.display(),
            line.phase,
            line.configuration,
            line.mib_per_second
        );
        rows.push(Bandwidth {
            configuration: line.configuration,
            phase: line.phase,
            operation: line.operation,
            bytes_per_second: line.mib_per_second * f64::from(1 << 20),
        });
    }
    anyhow::ensure!(!rows.is_empty(), "{} has no bandwidths", path.display());
    Ok(rows)
}

/// Prints the estimates like the paper's tables 3 and 4.
fn text(estimates: &[Vec<Estimate>], choice: &str, out: &mut impl Write) -> std::io::Result<()> {
    let seconds = |value: f64| format!("{value:.3}");
    let header =
        ["configuration", "phases", "bytes", "MiB/s", "Time(CH) s", "Time(MD) s", "error MiB/s", "error %"];
    let rows = estimates.iter().flatten().map(|row| {
        [
            row.configuration.clone(),
            row.phases.clone(),
            bytes(row.bytes),
            format!("{:.1}", row.bytes_per_second / f64::from(1 << 20)),
            seconds(row.seconds),
            row.measured_seconds.map_or("-".into(), seconds),
            row.error_absolute.map_or("-".into(), |error| format!("{:.1}", error / f64::from(1 << 20))),
            row.error_relative.map_or("-".into(), |error| format!("{error:.2}")),
        ]
    });
    table(out, header.map(str::to_owned), rows.collect())?;
    if estimates.len() > 1 {
        writeln!(out, "\nleast time: {choice}")?;
    }
    Ok(())
}
