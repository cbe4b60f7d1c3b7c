//! `miot fsstats`: contents of a file system.

#![expect(clippy::disallowed_types, reason = "interruption flag, and count of running threads")]

mod print;

use crate::files::check_writable;
use crate::filter::moment;
use crate::output::Out;
use crate::source::bar;
use anyhow::{Context as _, bail};
use clap::Args;
use jiff::Timestamp;
use miot_fs_contents::{
    Checkpoint, DirectoryOpener, Excludes, Growth, Identity, Pace, Snapshot, Walk, checkpoint, mounts, pace,
    walk,
};
use miot_trace_events::Format;
use rustix::fs::{CWD, Mode, OFlags, StatFs, StatxAttributes, fstatfs, openat};
use std::io::Write as _;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Analyze the contents of a file system: distributions of sizes, ages, names, links, directories
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot fsstats /home\n  miot fsstats /home -o march.json              write a snapshot for --compare\n  miot fsstats --compare january.json march.json\n  miot fsstats /lustre --idle --rate 2000 --checkpoint walk.ckpt      after an interruption: the same command with --resume\n\nA file with several names is counted once. Symbolic links are not followed. Mounts below DIR are not entered\nwithout --cross. Errors of single entries are counted by reason and are not a failure.\n\nExit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted (with --checkpoint it can be resumed)."
)]
pub(crate) struct Arguments {
    /// Directory
    #[arg(value_name = "DIR", required_unless_present = "compare")]
    dir: Option<PathBuf>,
    /// Compare two snapshots instead
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with = "dir")]
    compare: Vec<PathBuf>,
    /// Also write the snapshot to this file, as JSON
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also enter other file systems and mounts, except those that the kernel generates, e.g. /proc
    #[arg(long)]
    cross: bool,
    /// Skip entries whose name matches this glob, or, if it contains a /, whose path below DIR
    /// matches
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Number of threads [default: number of processors, at most 8]
    #[arg(long, value_name = "N")]
    threads: Option<NonZero<u16>>,
    /// Maximum number of names per second
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Use the lowest priority for processor and disk
    #[arg(long)]
    idle: bool,
    /// Periodically write the state of the walk to this file, for --resume
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Interval between checkpoints
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = every, requires = "checkpoint")]
    checkpoint_every: Duration,
    /// Continue from the checkpoint, or start if there is none
    #[arg(long, requires = "checkpoint")]
    resume: bool,
    /// Compute ages relative to this time instead of the start of the walk
    #[arg(long, value_name = "TIME|AGO", value_parser = moment)]
    as_of: Option<Timestamp>,
    /// Output format; json is the snapshot, csv the distributions
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Exit code of a shell for SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "expected a number of names per second".to_owned())?;
    if (0.001..1e9).contains(&rate) { Ok(rate) } else { Err("expected 0.001 to 1000000000".to_owned()) }
}

fn every(text: &str) -> Result<Duration, String> {
    miot_proto::units::parse_duration(text).map_err(|error| error.to_string())
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let [old, new] = &arguments.compare[..] {
        return compare(old, new, arguments.format);
    }
    let Some(dir) = &arguments.dir else { bail!("expected a directory") };
    let Some(snapshot) = walked(arguments, dir)? else { return Ok(ExitCode::from(EXIT_INTERRUPTED)) };
    if let Some(path) = &arguments.output {
        snapshot.write(path)?;
    }
    let mut out = Out::new(arguments.format == Format::Json);
    match arguments.format {
        Format::Text => print::text(&snapshot, &mut out)?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &snapshot)?;
            writeln!(out)?;
        }
        Format::Csv => print::csv(&snapshot, &mut out)?,
    }
    // Remove the checkpoint last: until here the walk can be resumed.
    if let Some(path) = &arguments.checkpoint {
        let _ = std::fs::remove_file(path);
    }
    Ok(ExitCode::SUCCESS)
}

fn compare(old: &Path, new: &Path, format: Format) -> anyhow::Result<ExitCode> {
    let (old, new) = (Snapshot::read(old)?, Snapshot::read(new)?);
    let seconds = new.as_of.as_second().saturating_sub(old.as_of.as_second());
    let growth = Growth::between(&old.contents, &new.contents, seconds);
    let mut out = Out::new(format == Format::Json);
    match format {
        Format::Text => print::growth([&old, &new], &growth, &mut out)?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &growth)?;
            writeln!(out)?;
        }
        Format::Csv => print::growth_csv(&growth, &mut out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Walks the directory; returns `None` if interrupted.
fn walked(arguments: &Arguments, dir: &Path) -> anyhow::Result<Option<Snapshot>> {
    let shown = dir.display();
    for file in [&arguments.output, &arguments.checkpoint].into_iter().flatten() {
        check_writable(file)?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, dir, flags, Mode::empty()).with_context(|| format!("cannot open {shown}"))?;
    let directory = std::fs::canonicalize(dir).with_context(|| format!("cannot open {shown}"))?;
    let stat = walk::root_attributes(&root)?;
    let statfs = fstatfs(&root)?;
    if let Some(kind) = mounts::pseudo(&statfs) {
        eprintln!(
            "miot: {shown} is a {kind} file system: the kernel generates its files, and their sizes are not meaningful"
        );
    }
    let is_whole = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && !arguments.cross;
    let estimate = is_whole.then(|| used_inodes(&statfs)).flatten();
    let (device, inode) = walk::inode(&stat);
    let path = std::os::unix::ffi::OsStrExt::as_bytes(directory.as_os_str());
    let identity = Identity {
        directory: miot_trace_store::escape::path(path).0.into_owned(),
        device,
        inode,
        cross: arguments.cross,
        exclude: arguments.exclude.clone(),
    };
    let old = checkpoint_to_resume(arguments, &identity)?;
    let now = match &old {
        Some(old) => old.now,
        None => arguments.as_of.unwrap_or_else(Timestamp::now).as_second(),
    };
    if arguments.idle {
        pace::give_way().context("cannot lower the priority (--idle)")?;
    }
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get).min(8);
    let threads = arguments.threads.map_or(processors, |threads| usize::from(threads.get()));
    let walk = Walk::new(
        DirectoryOpener::new(root, arguments.cross),
        Excludes::new(&arguments.exclude)?,
        Pace::new(arguments.rate),
        arguments.cross,
        now,
        threads,
    );
    let before = Duration::from_nanos(old.as_ref().map_or(0, |old| old.took));
    match old {
        Some(old) => walk.resume(old.state),
        None => walk.begin().with_context(|| format!("cannot read {shown}"))?,
    }
    let begun = Instant::now();
    let took = || before + begun.elapsed();
    let save = |walk: &Walk| -> anyhow::Result<()> {
        let Some(path) = &arguments.checkpoint else { return Ok(()) };
        let (identity, took) = (identity.clone(), took().as_nanos() as u64);
        Ok(checkpoint::write(path, Checkpoint { identity, now, took, state: walk.state() })?)
    };
    let ended = watched(&walk, threads, estimate, arguments.checkpoint_every, save)?;
    if !ended {
        explain_interruption(arguments.checkpoint.as_deref());
        return Ok(None);
    }
    let figures = walk.figures();
    let (format, version, made_by) = Snapshot::format();
    Ok(Some(Snapshot {
        format,
        version,
        made_by,
        directory: identity.directory.clone(),
        as_of: Timestamp::from_second(now)?,
        took_seconds: took().as_secs_f64(),
        cross: arguments.cross,
        exclude: arguments.exclude.clone(),
        excluded: figures.excluded,
        mounts: figures.mounts,
        mounts_named: figures.mounts_named,
        totals: figures.contents.size.sum(),
        errors: figures.errors.rows,
        contents: figures.contents,
    }))
}

/// Returns the number of inodes in use, if the file system reports it.
fn used_inodes(statfs: &StatFs) -> Option<u64> {
    (statfs.f_files > 0).then(|| statfs.f_files.saturating_sub(statfs.f_ffree))
}

fn explain_interruption(checkpoint: Option<&Path>) {
    match checkpoint {
        Some(path) => eprintln!("miot: interrupted; use --resume to continue from {}", path.display()),
        None => eprintln!("miot: interrupted; with --checkpoint FILE it could be resumed"),
    }
}

/// Returns the checkpoint to continue from, if there is one and `--resume` was given.
fn checkpoint_to_resume(arguments: &Arguments, identity: &Identity) -> anyhow::Result<Option<Checkpoint>> {
    let Some(path) = &arguments.checkpoint else { return Ok(None) };
    let shown = path.display();
    if !arguments.resume {
        if path.exists() {
            bail!("{shown} exists: add --resume to continue from it, or remove it to start again");
        }
        return Ok(None);
    }
    let Some(old) = checkpoint::read(path)? else {
        eprintln!("miot: no checkpoint {shown}: starting from the beginning");
        return Ok(None);
    };
    if old.identity != *identity {
        bail!(
            "the checkpoint {shown} is of another walk ({}, {}): give the same directory and options, or remove it",
            old.identity.directory,
            if old.identity.device == identity.device { "other options" } else { "another file system" }
        );
    }
    Ok(Some(old))
}

/// Runs the threads with a progress bar and checkpoints; returns false if interrupted.
fn watched(
    walk: &Walk,
    threads: usize,
    estimate: Option<u64>,
    every: Duration,
    save: impl Fn(&Walk) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let handlers = [libc::SIGINT, libc::SIGTERM].map(|signal| {
        signal_hook::flag::register_conditional_shutdown(
            signal,
            EXIT_INTERRUPTED.into(),
            Arc::clone(&interrupted),
        )
        .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
    });
    for handler in handlers {
        handler.context("cannot handle signals")?;
    }
    let bar = bar(estimate.unwrap_or(0), "names");
    let at_work = AtomicUsize::new(threads);
    std::thread::scope(|scope| {
        let work = |thread| {
            let end = EndSignal { watcher: std::thread::current(), at_work: &at_work };
            scope.spawn(move || {
                let _end = end;
                walk.work(thread);
            })
        };
        let workers: Vec<_> = (0..threads).map(work).collect();
        let mut saved = Instant::now();
        while at_work.load(Ordering::Acquire) > 0 {
            std::thread::park_timeout(Duration::from_millis(50));
            let names = walk.progress.names.load(Ordering::Relaxed);
            if estimate.is_none() {
                bar.set_length(walk.progress.estimate());
            } else if bar.length().is_some_and(|length| length < names) {
                bar.set_length(names);
            }
            bar.set_position(names);
            if interrupted.load(Ordering::Relaxed) {
                walk.stop();
                break;
            }
            if saved.elapsed() >= every {
                if let Err(error) = save(walk) {
                    walk.stop();
                    return Err(error);
                }
                saved = Instant::now();
            }
        }
        let panicked = workers.into_iter().map(|worker| worker.join()).any(|end| end.is_err());
        if panicked {
            bail!("a thread of the walk panicked");
        }
        Ok(())
    })?;
    let ended = !interrupted.load(Ordering::Relaxed);
    if !ended {
        save(walk)?;
    }
    Ok(ended)
}

/// Signals on drop that a thread of the walk has ended, so that the main thread wakes at once.
struct EndSignal<'a> {
    watcher: Thread,
    at_work: &'a AtomicUsize,
}

impl Drop for EndSignal<'_> {
    fn drop(&mut self) {
        self.at_work.fetch_sub(1, Ordering::Release);
        self.watcher.unpark();
    }
}
