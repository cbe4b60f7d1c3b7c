//! `miot simulate`: simulates programs on processors, caches and disks.

mod explain;
mod plots;
mod rates;
mod tables;

use crate::output::Out;
use crate::source::{Progress, bar};
use crate::unread;
use anyhow::{Context as _, ensure};
use clap::Args;
use figment::Figment;
use figment::providers::{Format as _, Serialized, Toml};
use miot_simulator::generate::MODELS;
use miot_simulator::{Config, Outcome, Workload, presets, simulate_observed};
use miot_trace_events::Format;
use miot_trace_results::Error;
use miot_trace_results::simulate::parameters::{self, Point, Vary};
use miot_trace_results::simulate::programs::{self, Programs};
use miot_trace_results::simulate::{self, Simulations, sweep};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Simulate traced programs on other storage: how much cache, read-ahead and write-behind keeps
/// processors busy
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot simulate miot-trace --storage nvme                       a recorded trace on an NVMe SSD\n  miot simulate --like venus --copies 2 --cache 4M..512M        Miller's figure 8\n  miot simulate miot-trace --storage disk,parallel,nvme --plot storage.svg\n  miot simulate miot-trace --vary disk.devices=1,2,4,8 --plot devices.svg\n  miot simulate miot-trace --set write_behind=false --explain | head -50\n  miot simulate --storage disk --print-config > machine.toml    print all parameters, to edit them\n\nStorage:\n  cray           Miller 1990: no queues, up to 15 ms to position, then 9.6 MB/s\n  cray-location  Miller 1990 taken literally: completion depends only on the location, at most 15 ms\n  cray-ssd       cray with 32 MW (256 MiB) of SSD before the disks, 1 us per KB\n  disk           one current 7200 rpm disk, elevator\n  sata           one SATA SSD\n  nvme           one NVMe SSD\n  parallel       8 servers behind a network of 100 Gbit/s, striped by 1 MiB\n\nModel: docs/guide/simulate.md."
)]
pub(crate) struct Arguments {
    /// Trace directories, in which each thread becomes a process, or files in Miller's format
    #[arg(value_name = "DIR|FILE")]
    traces: Vec<PathBuf>,
    /// Also simulate a model of this program of Miller's tables: bvi, ccm, forma, gcm, les, upw,
    /// venus
    #[arg(long, value_name = "PROGRAM", value_delimiter = ',', value_parser = model)]
    like: Vec<String>,
    /// Number of copies of all programs, each with its own files
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    copies: u32,
    /// Start all processes at once instead of at their times in the trace
    #[arg(long)]
    together: bool,
    /// Machine and storage, see below; one simulation for each
    #[arg(long, value_name = "NAME", default_value = "cray", value_delimiter = ',', value_parser = storage)]
    storage: Vec<String>,
    /// Parameters that override those of the storage, in the format of --print-config
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Main-memory cache: a size, a list, or a range that doubles, e.g. 32M, 8M,64M or 4M..512M
    #[arg(long, value_name = "SIZE")]
    cache: Option<String>,
    /// SSD before the disks: a size, a list or a range
    #[arg(long, value_name = "SIZE")]
    ssd: Option<String>,
    /// Replacement policy of the cache: lru, fifo, clock, 2q, or a list
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Read ahead the size of the last read if it was sequential: true, false, or true,false
    #[arg(long, value_name = "BOOL")]
    read_ahead: Option<String>,
    /// Processes do not wait for writes: true, false, or true,false
    #[arg(long, value_name = "BOOL")]
    write_behind: Option<String>,
    /// Number of processors
    #[arg(long, value_name = "N")]
    processors: Option<String>,
    /// Value of any parameter
    #[arg(long, value_name = "NAME=VALUE", value_parser = Vary::parse)]
    set: Vec<Vary>,
    /// List or range of values of any parameter; one simulation for each combination
    #[arg(long, value_name = "NAME=A,B|FROM..TO", value_parser = Vary::parse)]
    vary: Vec<Vary>,
    /// Number of simulations at a time [default: one per processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Write a plot: bytes over time, or, for several simulations, the shares of time
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print the bytes over time in this number of steps; with --format csv nothing else
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..=4096))]
    over_time: Option<u32>,
    /// Print each step of the simulation
    #[arg(long)]
    explain: bool,
    /// Print all parameters and exit
    #[arg(long)]
    print_config: bool,
    /// Output format; json has all figures and the rates over time, csv one line per simulation
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

fn model(name: &str) -> Result<String, String> {
    let names: Vec<_> = MODELS.iter().map(|model| model.name).collect();
    if names.contains(&name) { Ok(name.to_owned()) } else { Err(format!("there are {}", names.join(", "))) }
}

fn storage(name: &str) -> Result<String, String> {
    let names = presets::ALL.map(|(name, _)| name);
    if names.contains(&name) { Ok(name.to_owned()) } else { Err(format!("there are {}", names.join(", "))) }
}

impl Arguments {
    /// Returns the machines and the varied parameters.
    fn machines(&self) -> anyhow::Result<(Vec<Config>, Vec<Vary>)> {
        let short = [
            ("cache.size", &self.cache),
            ("ssd.size", &self.ssd),
            ("cache.policy", &self.policy),
            ("read_ahead", &self.read_ahead),
            ("write_behind", &self.write_behind),
            ("processors", &self.processors),
        ];
        let mut all = self.set.clone();
        for (key, text) in short {
            if let Some(text) = text {
                all.push(Vary::of(key, text).map_err(|error| anyhow::anyhow!("{key}: {error}"))?);
            }
        }
        all.extend(self.vary.iter().cloned());
        simulate::machines(&self.storage, all, |config| match &self.config {
            None => Ok(config),
            Some(file) => {
                ensure!(file.is_file(), "{}: no such file", file.display());
                let figment =
                    Figment::from(Serialized::defaults(config)).merge(Toml::file(file).search(false));
                Ok(figment.extract()?)
            }
        })
    }
}

/// Returns the plot of one simulation over time, or of several by their parameters.
fn plot(outcomes: &[Outcome], points: &[Point], vary: &[Vary], storage: &[String]) -> String {
    match outcomes {
        [only] if vary.is_empty() => {
            plots::over_time(only, &format!("Bytes over time, {}", storage.join(", ")))
        }
        several => {
            let labels: Vec<_> = points.iter().map(|point| tables::labels(vary, point).join(" ")).collect();
            let names: Vec<_> = vary.iter().map(|vary| vary.key.as_str()).collect();
            plots::of_sweep(several, &labels, &names.join(" "))
        }
    }
}

/// Simulates, and prints each step.
fn simulate_explained(config: &Config, workload: &Workload, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let mut failed = None;
    let outcome = simulate_observed(config, workload, |time, step| {
        if failed.is_none() {
            failed = writeln!(out, "{}", explain::StepLine(time, step)).err();
        }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    writeln!(out)?;
    Ok(outcome)
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (machines, vary) = arguments.machines()?;
    let mut out = BufWriter::new(Out::new(arguments.format == Format::Json));
    if arguments.print_config {
        ensure!(machines.len() == 1, "--print-config requires a single --storage");
        write!(out, "{}", parameters::toml(&machines[0])?)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        !arguments.traces.is_empty() || !arguments.like.is_empty(),
        "nothing to simulate: name a trace directory, or a model with --like"
    );
    let (points, vary) = parameters::points(&arguments.storage, &machines, vary)?;
    let is_single = vary.is_empty();
    for (given, name) in [(arguments.explain, "--explain"), (arguments.over_time.is_some(), "--over-time")] {
        ensure!(!given || is_single, "{name} requires a single simulation: remove lists and ranges");
    }
    ensure!(
        !arguments.explain || arguments.format == Format::Text,
        "--explain prints only text: remove --format"
    );
    let programs = gather(arguments)?;
    let workload = &programs.workload;
    let outcomes = if arguments.explain {
        vec![simulate_explained(&points[0].config, workload, &mut out)?]
    } else {
        let jobs =
            arguments.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let bar = bar(points.len() as u64, "simulations");
        sweep::run(&points, workload, jobs, &|| bar.inc(1))?
    };
    if let Some(file) = &arguments.plot {
        let svg = plot(&outcomes, &points, &vary, &arguments.storage);
        std::fs::write(file, svg).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let all = Simulations { storage: arguments.storage.clone(), machines, vary, points, programs, outcomes };
    print(arguments, &all, &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Combines the traces and the models.
fn gather(arguments: &Arguments) -> anyhow::Result<Programs> {
    let open = |dir: &Path| unread::open(dir).map_err(|error| Error::Failed(format!("{error:#}")));
    let Arguments { traces, like, copies, together, .. } = arguments;
    let programs = programs::gather(traces, like, *copies, *together, &open, &Progress::default())?;
    for warning in &programs.warnings {
        eprintln!("miot: {warning}");
    }
    Ok(programs)
}

/// Prints the results.
fn print(arguments: &Arguments, all: &Simulations, out: &mut impl Write) -> anyhow::Result<()> {
    let Simulations { vary, points, programs, outcomes, .. } = all;
    let is_single = vary.is_empty();
    match arguments.format {
        Format::Text => {
            match outcomes.as_slice() {
                [only] if is_single => {
                    tables::write(only, &programs.workload, out)?;
                    if let Some(steps) = arguments.over_time {
                        writeln!(out)?;
                        rates::write(&rates::steps(only, steps), out)?;
                    }
                }
                several => tables::write_sweep(vary, points, several, out)?,
            }
            if !programs.notes.is_empty() {
                writeln!(out)?;
            }
            for note in &programs.notes {
                writeln!(out, "{note}")?;
            }
        }
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, &all.to_json())?;
            writeln!(out)?;
        }
        Format::Csv => match (arguments.over_time, outcomes.as_slice()) {
            (Some(steps), [only]) => rates::csv(&rates::steps(only, steps), out)?,
            _ => tables::csv(vary, &all.rows(), out)?,
        },
    }
    Ok(())
}
