//! `miot bench`: a parallel I/O benchmark.

pub(crate) mod chosen;
pub(crate) mod launched;
mod plot;
mod presets;
mod print;

use anyhow::Context as _;
use chosen::SingleMeasurement;
use clap::Args;
use miot_trace_events::Format;
use miot_workload::comm::{RankLink, StopHandle};
use miot_workload::coordinator::{Coordinator, Repetition};
use miot_workload::suite::Interface;
use miot_workload::{Suite, rank};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{IsTerminal as _, Write as _, stderr, stdout};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Measure parallel I/O: access patterns of several processes, timed between barriers
///
/// Processes wait at a barrier, access a new file in a pattern, and wait at a second barrier. The
/// measured time runs from the first process that leaves the first barrier to the last process that
/// leaves the second barrier. It is S + T + B: S until the first access by any process, T until the
/// end of the last access, B until all processes have left the second barrier. Bandwidth is bytes
/// divided by that time, in MiB (2^20 bytes) per second.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot bench --dir /mnt/scratch --pattern strided --block 1M --count 256 --operation write\n  miot bench --dir /mnt/scratch --preset classic --processes 8 --format csv\n  miot bench --dir /mnt/scratch --preset classic --plot classic.svg\n  miot bench --dir /mnt/scratch suite.toml\n  miot bench --preset classic --show > suite.toml\n  mpiexec -n 8 miot bench --mpi --dir /mnt/scratch --pattern strided --collective\n\nFiles are created in a new directory in DIR and removed at the end. See docs/guide/bench.md."
)]
pub(crate) struct Arguments {
    /// File with the measurements, in TOML; `-`: standard input
    #[arg(value_name = "SUITE", conflicts_with_all = ["pattern", "preset"])]
    suite: Option<PathBuf>,
    /// Directory on the file system to measure
    #[arg(long, value_name = "DIR", required_unless_present = "show")]
    dir: Option<PathBuf>,
    /// Run a suite that comes with MIOT instead of a file
    #[arg(long, value_name = "NAME", value_enum, conflicts_with = "pattern")]
    preset: Option<presets::Preset>,
    #[command(flatten)]
    chosen: SingleMeasurement,
    /// Number of processes [default: that of the suite, or 2]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    processes: Option<u64>,
    /// Run as a rank of an MPI job: mpiexec -n 4 miot bench --mpi ...
    #[arg(long, conflicts_with_all = ["processes", "show"])]
    mpi: bool,
    /// Maximum number of repetitions per measurement [default: that of the suite, or 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    repetitions: Option<u64>,
    /// Double the blocks of each measurement until it is reproducible (B below 1 % of the time, the
    /// mean within the requested confidence), up to files of this size
    #[arg(long, value_name = "SIZE", value_parser = chosen::bytes, num_args = 0..=1, default_missing_value = "4 GiB")]
    enlarge: Option<u64>,
    /// Write a plot of the bandwidth of each measurement, with all repetitions
    #[arg(long, value_name = "FILE.svg", conflicts_with = "show")]
    plot: Option<PathBuf>,
    /// Print the suite and measure nothing
    #[arg(long)]
    show: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Arguments of a process of a benchmark.
#[derive(Args, Debug)]
pub(crate) struct Rank {
    rank: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.mpi {
        return launched::run(arguments);
    }
    let suite = suite(arguments)?;
    if arguments.show {
        write!(stdout(), "{}", miot_workload::suite::to_toml(&suite)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(run) = suite.runs.iter().find(|run| run.interface == Interface::MpiIo) {
        anyhow::bail!(
            "run `{}` uses MPI-IO, which requires MPI: mpiexec -n {} miot bench --mpi …",
            run.name,
            suite.processes
        );
    }
    let mut coordinator = coordinator(&target(arguments)?, suite.processes)?;
    measure(&mut coordinator, &suite, arguments)?;
    coordinator.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn target(arguments: &Arguments) -> anyhow::Result<PathBuf> {
    let target = arguments
        .dir
        .as_deref()
        .context("--dir DIR is missing: the directory for the files of the benchmark")?;
    target.canonicalize().with_context(|| format!("cannot use {}", target.display()))
}

/// Makes all measurements of a suite and prints the results.
fn measure(coordinator: &mut Coordinator, suite: &Suite, arguments: &Arguments) -> anyhow::Result<()> {
    // Fail before the first measurement if the plot cannot be written.
    let create =
        |path: &PathBuf| File::create(path).with_context(|| format!("cannot write {}", path.display()));
    let plot = arguments.plot.as_ref().map(create).transpose()?;
    let mut outcomes = Vec::new();
    let mut out = stdout();
    let mut table = print::Printer::new(arguments.format);
    for run in &suite.runs {
        let quiet = !stderr().is_terminal();
        let mut number = 0;
        let enlarged = arguments.enlarge.map(|most| coordinator.enlarge(run, suite, most)).transpose()?;
        let run = enlarged.as_ref().unwrap_or(run);
        let outcome = coordinator.measure(run, suite, |repetition: &Repetition| {
            number += 1;
            if !quiet {
                let bandwidth = repetition.bandwidth;
                let _ = write!(stderr(), "\r\x1b[K{}: repetition {number}, {bandwidth:.1} MiB/s", run.name);
            }
        });
        if !quiet {
            let _ = write!(stderr(), "\r\x1b[K");
        }
        let outcome = outcome?;
        table.print(&mut out, &outcome)?;
        outcomes.push(outcome);
    }
    table.finish(&mut out)?;
    if let Some(mut plot) = plot {
        plot.write_all(plot::svg(&outcomes).as_bytes()).context("cannot write the plot")?;
    }
    Ok(())
}

/// Starts processes that create their files in a new directory in `target` and stop at signals.
pub(crate) fn coordinator(target: &Path, processes: u64) -> anyhow::Result<Coordinator> {
    let program = std::env::current_exe().context("cannot determine the path of this program")?;
    let coordinator = Coordinator::start(target, processes, |rank| {
        let mut command = Command::new(&program);
        command.arg("bench-rank").arg(rank.to_string());
        command
    })?;
    stop_at_signals(coordinator.stop_handle()?)?;
    Ok(coordinator)
}

/// Stops the processes of the benchmark at a terminating signal. Their files are then removed.
fn stop_at_signals(stopper: StopHandle) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            stopper.stop();
        }
    })?;
    Ok(())
}

fn suite(arguments: &Arguments) -> anyhow::Result<Suite> {
    let mut suite = match (&arguments.suite, &arguments.preset) {
        (Some(path), _) => {
            let text = if path.as_os_str() == "-" {
                std::io::read_to_string(std::io::stdin())
            } else {
                std::fs::read_to_string(path)
            };
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            Suite::parse(&text).with_context(|| format!("{} is not a suite", path.display()))?
        }
        (None, Some(preset)) => preset.suite()?,
        (None, None) => arguments.chosen.suite()?,
    };
    suite.processes = arguments.processes.unwrap_or(suite.processes);
    suite.repetitions =
        arguments.repetitions.and_then(|n| usize::try_from(n).ok()).unwrap_or(suite.repetitions);
    suite.check()?;
    Ok(suite)
}

/// Runs a process of the benchmark. The coordinator reports its result.
pub(crate) fn rank(arguments: &Rank) -> anyhow::Result<ExitCode> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let served = rank::serve(RankLink::new(UnixStream::from(socket), arguments.rank));
    Ok(if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
