//! `miot replay`: repeats the requests of a trace or a model.

mod model;
mod outcome;
mod target;
mod trace;

use crate::filter::moment;
use crate::source::{Source, bar};
use anyhow::{Context as _, bail};
use clap::Args;
use jiff::Timestamp;
use miot_trace_analysis::Missing;
use miot_trace_events::Format;
use miot_workload::replay::{
    InitialFiles, Pace, Plan, ReplayNotice, ReplayOptions, ReplayRoot, WorkerInput, run_replay, run_worker,
};
use outcome::ReplayOutcome;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::io::{Write as _, stdout};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Sender, channel};
use target::Target;

/// Exit code of a replay in which requests failed that did not fail in the trace.
const EXIT_DIFFERENT: u8 = 3;

/// Repeat the requests of a trace or a model in another directory: same calls, sizes, offsets and
/// order
///
/// DIR replaces the root of the traced system: /scratch/a becomes DIR/scratch/a, and nothing
/// outside DIR is written. Files that existed before the trace are created first, with generated
/// content. Each process and thread of the trace becomes a process and a thread; requests on the
/// same file wait for each other as in the trace. DIR is emptied at the end.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot replay miot-trace --into /mnt/new\n  miot replay miot-trace --into /mnt/new --pace fast --format json\n  miot replay miot-trace --into /mnt/new --pace 2x --keep\n  miot replay solver.toml --into /mnt/new\n\nExit codes: 0 success; 3 requests failed that did not fail in the trace; 1 the replay was aborted. See docs/guide/replay.md."
)]
pub(crate) struct Arguments {
    /// Trace directory or model
    #[arg(value_name = "TRACE|MODEL")]
    source: PathBuf,
    /// Empty directory on the file system to test
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    /// Start times of requests: `original`: relative to the first request, as in the trace; `2x`,
    /// `0.5x`: faster or slower by this factor; `think`: with the pause after the previous request
    /// of the thread as in the trace; `fast`: without pauses
    #[arg(long, value_name = "original|Nx|think|fast", default_value = "original", value_parser = pace)]
    pace: Pace,
    /// Use DIR even if it is not empty. Existing files are overwritten, and nothing is removed at
    /// the end
    #[arg(long)]
    force: bool,
    /// Keep the files of the replay in DIR
    #[arg(long)]
    keep: bool,
    /// Only requests completed at or after this time, e.g. 2026-11-21T12:00:00Z, or an age such as
    /// 10m, 90s, 2h, 1d
    #[arg(long, value_name = "TIME|AGO", value_parser = moment)]
    since: Option<Timestamp>,
    /// Only requests completed before this time or age
    #[arg(long, value_name = "TIME|AGO", value_parser = moment)]
    until: Option<Timestamp>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Arguments of a process of a replay.
#[derive(Args, Debug)]
pub(crate) struct Process {
    /// Descriptor of the memory that all processes share
    memory: RawFd,
    /// Position of this process's steps in the plan on standard input
    at: u64,
    /// Length of these steps in bytes
    bytes: u64,
    /// Number of the process in the trace, shown in process lists
    #[arg(long)]
    of: u64,
}

fn pace(text: &str) -> Result<Pace, String> {
    match text {
        "original" => Ok(Pace::Original(1.0)),
        "think" => Ok(Pace::Think),
        "fast" => Ok(Pace::Fast),
        _ => match text.strip_suffix('x').and_then(|speed| speed.parse().ok()) {
            Some(speed) if f64::is_finite(speed) && speed > 0.0 => Ok(Pace::Original(speed)),
            _ => Err("expected `original`, `think`, `fast`, or a speed such as `2x` or `0.5x`".into()),
        },
    }
}

/// Plan of a replay, and what it leaves out.
struct ReplayTask {
    plan: Plan,
    needs: InitialFiles,
    /// Number of requests that cannot be replayed, by reason.
    not_replayed: BTreeMap<String, u64>,
    /// Number of requests that are replaced by another call.
    made_otherwise: BTreeMap<String, u64>,
    /// Events missing in the trace.
    missing: Missing,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (to, receiver) = channel();
    stop_at_signals(to.clone())?;
    let task = if arguments.source.is_file() {
        if arguments.since.is_some() || arguments.until.is_some() {
            bail!("--since and --until require a trace; {} is a model", arguments.source.display());
        }
        model::task(&crate::model::read(&arguments.source)?)?
    } else {
        let Arguments { source, since, until, .. } = arguments;
        trace::task(&Source { dir: source.clone(), since: *since, until: *until })?
    };
    let ReplayTask { plan, needs, not_replayed, made_otherwise, missing } = task;
    let target = Target::new(&arguments.into, arguments.force, arguments.keep)?;
    let made = target.prepare(&needs, &receiver)?;
    let (processes, threads) = (plan.processes(), plan.threads());
    let recorded_seconds = plan.duration() as f64 / 1e9;
    let program = std::env::current_exe().context("cannot determine the path of this program")?;
    let command = || {
        let mut command = Command::new(&program);
        // Not in the terminal's foreground group: Ctrl-C stops the replay, which ends its
        // processes.
        command.arg("replay-process").process_group(0);
        command
    };
    let progress = bar(plan.steps, "requests");
    let (fidelity, took) = run_replay(
        plan,
        ReplayOptions {
            root: target.root(),
            pace: arguments.pace,
            command: &command,
            progress: &mut |done| progress.set_position(done),
        },
        (to, &receiver),
    )?;
    progress.finish_and_clear();
    let failed = fidelity.failed_only_here;
    let outcome = ReplayOutcome {
        elapsed_seconds: took as f64 / 1e9,
        recorded_seconds,
        processes,
        threads,
        late_nanoseconds: fidelity.lateness(),
        fidelity,
        made,
        not_replayed,
        made_otherwise,
        missing,
    };
    outcome.write(&mut stdout().lock(), arguments.format, arguments.pace)?;
    target.clear()?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_DIFFERENT) })
}

fn stop_at_signals(to: Sender<ReplayNotice>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let _ = to.send(ReplayNotice::Stop(signal));
        }
    })?;
    Ok(())
}

/// Runs a process that the replay started.
pub(crate) fn process(process: &Process) -> anyhow::Result<ExitCode> {
    // SAFETY: the parent process left both descriptors open for this process, and no code closes
    // them; using a closed descriptor fails with EBADF.
    let [plan, board] = [0, process.memory].map(|open| unsafe { BorrowedFd::borrow_raw(open) });
    let report = run_worker(WorkerInput { plan, board, job: (process.at, process.bytes) })
        .with_context(|| format!("cannot replay process {} of the trace", process.of))?;
    stdout().write_all(&postcard::to_stdvec(&report)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the directory below which all names are resolved.
fn below(root: &std::path::Path) -> anyhow::Result<ReplayRoot> {
    ReplayRoot::open(root).with_context(|| format!("cannot use {}", root.display()))
}
